"""Single chains, single draws and digits: what is wrong with a part of a trace, and hides in tests
of all of it.

Errors of tests over all draws grow with what is wrong in a part: scores of 1e8 at one draw pass any
of them, and so do the scores of one wrong chain among slow ones.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import ndtri

from mcmcpost.core.mcse import MANY_CHAINS
from mcmcpost.scores.identities import REPAIR_LIMIT, Finding, effective_size, z_zero_mean
from mcmcpost.trace import Trace

LEVEL = 1e-4
"""Probability of a false alarm over all the tests of the score gate."""

_SHORTEST, _EFFECTIVE = 200, 25.0
"""Draws of a chain, and effective ones for the mean of squares, below which it is not tested alone.

What it knows of its own error would be a guess: right scores with autocorrelation 0.99 had |z| of 7
in chains of 500 draws, and those of a density with a long flat tail 11 in chains of 60."""

_CLEARLY = 1.5
"""Times the threshold that a chain must fail by: a slow chain has too small an estimate of its own
error (right scores of eighteen densities, 30 traces each: up to 0.95 times)."""

_MOST_CHAINS = 16
"""Wrong chains of which it is asked whose scores they have: each is compared with every other
chain."""

_SHOWN = 5


_STUCK = 50
"""Draws of one state from which a chain is stuck: of fewer, or among many chains, some of a sampler
that rejects most proposals never move by chance."""


def stuck_chains(trace: Trace) -> Finding | None:
    """Recognise chains that never move beside others that do.

    Whatever was controlled would be so with the weight of their one state, which no error shows.
    """
    c, n, _ = trace.draws.shape
    still = (np.ptp(trace.draws, axis=1) == 0).all(axis=-1)
    if n < _STUCK or c >= MANY_CHAINS or not still.any() or still.all():
        return None
    many, kept = int(still.sum()) > 1, np.flatnonzero(~still).tolist()
    return Finding(
        "warn",
        "not_converged",
        f"Score gate: expected chains that move, got the same {n} draws in chain{'s' * many} "
        f"{_listed(np.flatnonzero(still))}: stuck where {'they' if many else 'it'} began, as at a "
        f"step size that is too large. Leave {'them' if many else 'it'} out, "
        f"tree.isel(chain={kept}), or sample again.",
    )


def wrong_chains(trace: Trace) -> Finding | None:
    """Recognise chains whose scores are not those of their draws, by Stein's identity in each chain
    alone.

    Σ_j (x_j − x̄_j) s_j has the mean −d in every chain, in any coordinates, and its relative error
    is 1/√(n d): it knows a sign, a factor and scores of other draws in one chain where the mean
    over all hides them. E[s] = 0 and E[(x_j − x̄_j) s_j] = −1 in each coordinate add a shift.
    """
    draws, scores = trace.draws, trace.scores
    (c, n, d), centred = draws.shape, draws - draws.mean((0, 1))
    if c < 2 or n < _SHORTEST:
        return None
    limit = _CLEARLY * -float(ndtri(LEVEL / (2 * c * (2 * d + 1))))
    wrong = np.array(
        [_misfit(centred[i : i + 1], scores[i : i + 1], limit) > limit for i in range(c)]
    )
    if not wrong.any():
        return None
    # By the draws, which no mistake in scores makes slow: squares about the mean, as the products
    # are of their kind. It takes longer than all the rest, and in most traces no chain is wrong.
    squares = centred**2
    if effective_size(squares, squares.std((0, 1))).min() < _EFFECTIVE * c:
        return None
    # A mistake that all chains share fails in some of them by chance: then the others, pooled, do
    # not pass clearly.
    if not wrong.all() and _misfit(centred[~wrong], scores[~wrong], limit / 2) > limit / 2:
        return None
    causes = {
        int(i): _cause(centred, scores, int(i), wrong) for i in np.flatnonzero(wrong)[:_MOST_CHAINS]
    }
    # Where no chain is right it is no matter of chains, unless they have changed places.
    if wrong.all() and not (
        c <= _MOST_CHAINS and all("chain" in cause for cause in causes.values())
    ):
        return None
    bad, good = np.flatnonzero(wrong), np.flatnonzero(~wrong)
    got = "; ".join(
        f"{(centred[i] * scores[i]).sum(-1).mean():.3g} in chain "
        f"{i}{causes[i] and f', whose scores {causes[i]}'}"
        for i in map(int, bad[:_SHOWN])
    )
    fits = (
        f", which those of chain{'s' * (len(good) > 1)} {_listed(good)} meet" if good.size else ""
    )
    return Finding(
        "error" if all(causes.values()) and len(causes) == len(bad) else "warn",
        "chains",
        f"Score gate: the scores of chain{'s' * (len(bad) > 1)} {_listed(bad)} are not those "
        f"of their draws: expected Σ_j E[(x_j − x̄_j) s_j] = −{d} and E[s] = 0 in each "
        f"chain{fits}; got the sum {got}. Stack draws and scores in one order of chains, all "
        "with the scores of the density that was sampled, or compute them again.",
    )


def _cause(
    centred: Float[np.ndarray, "c n d"],
    scores: Float[np.ndarray, "c n d"],
    chain: int,
    wrong: Bool[np.ndarray, " c"],
) -> str:
    """Return what would undo the mistake of one chain, the other sign or a change of places; empty
    if neither would."""
    x, s = centred[chain : chain + 1], scores[chain : chain + 1]
    if _misfit(x, -s, REPAIR_LIMIT) <= REPAIR_LIMIT:
        return "have the wrong sign"
    # Who lost its place has taken another's, or was copied: a chain with right scores of its own
    # does not want these.
    places = [
        i
        for i in range(len(wrong))
        if i != chain and (wrong[i] or np.array_equal(scores[i], scores[chain]))
    ]
    z = [_misfit(centred[i : i + 1], s, REPAIR_LIMIT) for i in places]
    return (
        f"belong to the draws of chain {places[int(np.argmin(z))]}"
        if min(z, default=np.inf) <= REPAIR_LIMIT
        else ""
    )


def _listed(chains: Int[np.ndarray, " k"]) -> str:
    more = len(chains) - _SHOWN
    return ", ".join(map(str, chains[:_SHOWN])) + (f" and {more} more" if more > 0 else "")


def _misfit(
    centred: Float[np.ndarray, "c n d"], scores: Float[np.ndarray, "c n d"], screen: float
) -> float:
    """Return the largest |z| of Stein's identity in some chains, their draws centred by the mean of
    all."""
    products = centred * scores
    series = np.concatenate(
        [products.sum(-1, keepdims=True) + centred.shape[-1], products + 1, scores], axis=-1
    )
    return float(np.abs(z_zero_mean(series, screen)).max())


_FEWEST, _WILDEST = 200, 10
"""Draws of which one may be told to be wild, and most that may be: of fewer, or more, they would be
a region."""

_GAP_LEVEL, _LEAST_INDEX = 1e-6, 0.1
"""Probability of so large a gap, and the least tail index that it is computed with: that of 4,000
normals is 0.14.

The largest −log probabilities of right scores were 5 to 11, of funnels and densities singular at
zero, 2,000 columns.
"""

_SCREEN = 8.0
"""Root mean squares by which the largest score of a coordinate must exceed all for it to be looked
at."""


def wild_scores(trace: Trace, step: int = 1) -> Finding | None:
    """Recognise single scores that are beyond the tail of the others.

    Of a tail with index k the logarithm of the ratio of the m-th to the next largest is exponential
    of mean k/m (Rényi 1953), so that a ratio R has probability R^(−m/k). k is Hill's estimate from
    the scores below the gap. The scores of a funnel, or of a density that ends in a power of the
    parameter, are wild as well, but in a row.

    step : of each chain these are every so many draws, to name the draw.
    """
    sizes = np.abs(trace.scores).reshape(-1, trace.scores.shape[-1])
    count, d = sizes.shape
    if count < _FEWEST:
        return None
    # The mean square of the wild score alone is its square over the draws: few draws cannot show a
    # ratio above √n.
    rms = (
        np.sqrt((sizes**2).mean(0))
        if sizes.max(initial=0.0) < 1e150
        else sizes.max(0) / np.sqrt(count)
    )
    hits: dict[int, tuple[float, Bool[np.ndarray, " n"]]] = {}
    for j in np.flatnonzero(sizes.max(0) > min(_SCREEN, 0.9 * np.sqrt(count)) * rms):
        # Draws that a rejection has repeated have one score: each is counted once.
        levels = np.unique(sizes[:, j])[::-1]
        tail, most = (
            max(2 * _WILDEST, min(200, len(levels) // 40)),
            min(_WILDEST, len(levels) // _FEWEST),
        )
        if not most or levels[tail + most] <= 0:
            continue
        logs = np.log(levels[: tail + most + 1])
        for m in range(1, most + 1):
            index = max((logs[m : m + tail] - logs[m + tail]).mean(), _LEAST_INDEX)
            if (logs[m - 1] - logs[m]) * m > -np.log(_GAP_LEVEL / d) * index:
                hits[int(j)] = float(levels[m]), sizes[:, j] >= levels[m - 1]
    if not hits:
        return None
    rows = np.flatnonzero(np.any([where for _, where in hits.values()], axis=0))
    worst = max(hits, key=lambda j: float(sizes[rows, j].max() / hits[j][0]))
    row = int(rows[np.argmax(sizes[rows, worst])])
    chain, draw = divmod(row, trace.scores.shape[1])
    value, usual = trace.scores.reshape(count, d)[row, worst], hits[worst][0]
    others = f"; {len(rows) - 1} more draw{'s' * (len(rows) > 2)} as wild" if len(rows) > 1 else ""
    return Finding(
        "warn",
        "wild",
        f"Score gate: expected scores of one tail, got {value:.3g} for {trace.names[worst]} "
        f"at chain {chain}, draw {draw * step}, where all others are below {usual:.3g} in "
        f"size{others}. No control variate can be fitted to such scores, nor may draws be "
        "left out, since the mean of all scores is zero: compute the scores there again, as "
        "after a failed ODE solve, or a file that was cut.",
    )


_COARSEST = 1e-4
"""Units in the last place of the draws, as a part of their standard deviation, that are too coarse
to compute with."""


def too_coarse(trace: Trace) -> Finding | None:
    """Recognise coordinates so far from zero, for how little they vary, that float64 holds few
    digits of the change."""
    with np.errstate(over="ignore"):
        unit, sd = np.spacing(np.abs(trace.draws).max((0, 1))), trace.draws.std((0, 1))
    # The deviation of a constant is rounding.
    coarse = np.flatnonzero((np.ptp(trace.draws, axis=(0, 1)) > 0) & (unit > _COARSEST * sd))
    if not coarse.size:
        return None
    j = coarse[np.argmax(unit[coarse] / sd[coarse])]
    size = np.abs(trace.draws[..., j]).max()
    more = f", and of {len(coarse) - 1} more" if len(coarse) > 1 else ""
    return Finding(
        "warn",
        "precision",
        f"Score gate: expected draws of {trace.names[j]}{more} that vary by more than "
        f"{1 / _COARSEST:.0f} units in their last place, got values near {size:.3g} with a "
        f"standard deviation of {sd[j]:.3g}, where neighbouring floats are {unit[j]:.2g} "
        "apart: the draws have lost their digits, whatever the scores. Sample the parameter "
        "less a constant of its size, which leaves the scores as they are.",
    )


_OUTERMOST, _LAST, _ENOUGH = 30, 5, 200
"""Draws at an end by which it is judged; the last of them, whose mean slope is the least that is
taken at the end itself; and of how many in all. With fewer chance decides, and more are no end of a
few hundred."""

_SCATTER = 0.3
"""Of the mean slope, how far slopes may scatter about a line that is used: in a funnel and a banana
they scatter by many times it, and lines through them gave false alarms in 10 traces of 120."""

_CUT_LEVEL = 1e-8
"""Probability of a false alarm over both ends of all coordinates, of tails of one slope. Others
expect more draws beyond the last: of right scores of 27 densities, 160 traces each, up to 20 where
they have a finite variance, and 25 of a density that ends like √x. The limit is 27 in one
dimension, and no trace was beyond it."""


def cut_off(trace: Trace) -> Finding | None:
    """Recognise a density that does not vanish where the draws end, as that of an angle or of a
    truncated parameter.

    Then E[s] and E[(x − x̄) s] + 1 differ from zero by the density at the end, which their own
    noise may hide, and controlled means by far more than their errors. Where the m draws next to
    the last are within δ of it, and the log density falls by the slope a + b t at the distance t
    inwards, it should have m/(a ∫₀^δ exp(at + bt²/2) dt) draws beyond the last one. Of a tail of
    one slope that is m/(e^{aδ} − 1), and e^{−aδ} is the smallest of m + 1 uniform numbers over the
    largest, above r with the probability (1 − r)^m.
    """
    count, d = trace.draws.shape[0] * trace.draws.shape[1], trace.draws.shape[-1]
    ratio = 1 - (_CUT_LEVEL / (2 * d)) ** (1 / _OUTERMOST)
    limit = _OUTERMOST * ratio / (1 - ratio)
    scores = _along(trace)
    for j in range(d):
        x, s = trace.draws[..., j], scores[..., j]
        # The largest of slow chains are of one excursion, and near each other for that: all draws
        # promise more beyond than independent ones, as a rule, hence half the limit. Most
        # coordinates end here, without an effective size, which takes most of the time.
        if all(end.beyond <= limit / 2 for end in _ends(x, s)):
            continue
        square = (x[..., None] - x.mean()) ** 2
        size = min(
            float(effective_size(power, power.std((0, 1)))[0]) for power in (square, square**2)
        )
        step = max(1, int(np.ceil(count / size - 0.2)))
        for end in _ends(x[:, ::step], s[:, ::step]):
            if end.beyond > limit:
                return Finding(
                    "warn",
                    "boundary",
                    "Score gate: expected a density that vanishes where the draws end, got "
                    f"{_OUTERMOST} draws of {trace.names[j]} within {end.width:.2g} of "
                    f"{end.last:.4g} and none {end.side}, where the scores say that "
                    f"{f'{end.beyond:.0f} draws' if end.beyond < count else 'many'} should "
                    "be: it ends at a boundary or is an angle, so no gain is possible from "
                    "its scores; sample and store an unconstrained parameter instead, as log "
                    "θ, or two coordinates of a direction.",
                )
    return None


def _along(trace: Trace) -> Float[np.ndarray, "c n d"]:
    """Return for each coordinate the slope of the log density along its regression line,
    s·Σ_j/Σ_jj; s_j of few draws.

    Given the coordinate the mean of either is the slope of its own log density, and this one has no
    noise where the density is normal.
    """
    d = trace.draws.shape[-1]
    draws = trace.draws.reshape(-1, d)
    if d == 1 or len(draws) < 10 * d:
        return trace.scores
    spread = np.cov(draws, rowvar=False)
    return trace.scores @ (spread / np.diag(spread))


class _End(NamedTuple):
    """One end of the draws of a coordinate: the last draw, how near others are, and how many should
    be beyond it."""

    side: str
    last: float
    width: float
    beyond: float


def _ends(draws: Float[np.ndarray, "c n"], scores: Float[np.ndarray, "c n"]) -> Iterator[_End]:
    """Yield both ends; none of so few draws that they are a part of a few hundred."""
    # `np.unique` sorts stably, which takes thrice as long.
    order = np.argsort(draws, axis=None)
    order = order[np.diff(draws.reshape(-1)[order], prepend=-np.inf) > 0]
    if len(order) < _ENOUGH:
        return
    x, s = draws.reshape(-1)[order], scores.reshape(-1)[order]
    for side, last in (
        ("above", slice(None, -_OUTERMOST - 2, -1)),
        ("below", slice(_OUTERMOST + 1)),
    ):
        near, slopes = x[last], s[last] * (-1.0 if side == "above" else 1.0)
        width = float(abs(near[-1] - near[0]))
        inwards = np.abs(near - near[0]) / width
        # The slope of the coordinate's own density is the mean of its scores given it: a line in
        # the distance, since an angle's vanishes at the end. Three errors more, and no less than
        # the last ones, since a line is too steep in tails like a power.
        (change, at_end), errors = np.polyfit(inwards, slopes, 1, cov=True)
        left, mean = slopes - at_end - change * inwards, slopes.mean()
        if left.std(ddof=2) < _SCATTER * abs(mean):
            at_end = max(at_end + 3 * np.sqrt(errors[1, 1]), slopes[:_LAST].mean())
        else:
            # Scores that depend on more than the coordinate: no line is seen in them, and three
            # errors were too few for one banana in twenty.
            at_end, change = mean + 6 * slopes.std(ddof=1) / np.sqrt(len(slopes)), 0.0
        t = np.linspace(0.0, 1.0, 100)
        fall = np.exp(np.clip(width * (at_end * t + change * t**2 / 2), -100.0, 100.0))
        mass = width * np.trapezoid(fall, t)
        beyond = _OUTERMOST / (at_end * mass) if at_end > 0 else np.inf
        yield _End(side, float(near[0]), width, float(beyond))
