"""The score gate tests whether the scores belong to the draws, and names the likely cause if they
do not."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtri

from mcmcpost.core.arrays import sampling_step
from mcmcpost.core.errors import InputError
from mcmcpost.core.mcse import MANY_CHAINS
from mcmcpost.core.precision import digits_of_text, unit_of_text
from mcmcpost.scores import identities
from mcmcpost.scores.consistency import (
    LEVEL,
    cut_off,
    stuck_chains,
    too_coarse,
    wild_scores,
    wrong_chains,
)
from mcmcpost.scores.log_density import Misfit, misfit
from mcmcpost.trace import SHOWN, Trace, listed, moving, of_source, sampled, without_fixed


def where_not_finite(trace: Trace) -> str:
    """Return the message for NaN or infinite scores: how many draws, the first place, the
    coordinates, the cure."""
    bad = ~np.isfinite(trace.scores)
    chain, draw, _ = np.argwhere(bad)[0]
    count, size = int(bad.any(-1).sum()), bad[..., 0].size
    # Leaving draws out is no cure: the mean of all scores is zero, not that of those that are left.
    cause, cure = "failed there, as a failed ODE solve does", "Keep these draws, and compute"
    if count == size:
        cause, cure = "fails everywhere, as with NaN among the data", "Repair the data, and compute"
    return (
        f"Score gate: the scores{of_source(trace.source)} are not finite at {count} of {size} "
        f"draws (first at chain {chain}, draw {draw}), in {listed(trace.names, bad.any((0, 1)))}: "
        f"the log density or its gradient {cause}. {cure}"
        " the scores again with attach_scores (--model FILE.py)."
        ' Control variates need them finite: allow_bad_scores=True allows method="plain" only.'
    )


_MOST_DIAGNOSED = 50

_UNCONVERGED_FACTOR = 3.0


def diagnose(
    trace: Trace,
    z_mean: Float[np.ndarray, " d"],
    z_product: Float[np.ndarray, "d d"],
    threshold: float,
    unconverged: Bool[np.ndarray, " d"],
) -> identities.Finding:
    """Name the cause of failed tests: first a known mistake, then one without repair, then chains
    that disagree.

    Parameters
    ----------
    trace : draws and finite scores (c, n, d).
    z_mean, z_product, threshold : as in `ScoreCheck`.
    unconverged : (d,) coordinates whose chains disagree.
    """
    z_given = np.maximum(np.abs(z_mean), np.abs(np.diag(z_product)))
    failing = z_given > threshold
    # First: scores of the draw before, in a chain with memory, can look as if they lacked a
    # log-Jacobian.
    if failing.any() and not unconverged.any() and (rows := _rows(trace, threshold)) is not None:
        return rows
    # Chains that have not met fail these tests with correct scores: then only a gross failure is
    # called a mistake.
    needed = threshold * (_UNCONVERGED_FACTOR if unconverged.any() else 1.0)
    suspects = [int(j) for j in np.flatnonzero(z_given > needed)[:_MOST_DIAGNOSED]]
    alone = identities.given_others(trace.draws)
    explained = {
        j: _best_repair(
            trace.draws[..., j], trace.scores[..., j], alone[..., j], z_given[j], threshold
        )
        for j in suspects
    }
    mistakes: dict[identities.Repair, list[int]] = defaultdict(list)
    bounded, scaled = [], []
    for j, cause in explained.items():
        if isinstance(cause, identities.Repair):
            mistakes[cause].append(j)
        elif cause == "boundary":
            bounded.append(j)
        elif cause == "scale":
            scaled.append(j)
    # What single coordinates do not explain may be common to all: another order, or one factor.
    if sum(map(len, mistakes.values())) < len(suspects):
        centred = failing & (np.abs(z_mean) <= threshold)
        common = (
            _order(trace, failing, threshold)
            or _unrelated(trace, threshold)
            or _scale(trace, centred, threshold)
        )
        if common is not None:
            return common
    if mistakes:
        return _mistake(trace.names, mistakes)
    if scaled and not unconverged.any() and np.isin(np.flatnonzero(failing), scaled).all():
        return _units(trace, scaled)
    # Draws that are all the same have constant scores too, and another message.
    stuck = np.ptp(trace.draws, axis=(0, 1)) == 0
    # To rounding: scores that a program computed are seldom equal to the last digit.
    constant = ~stuck & (
        np.ptp(trace.scores, axis=(0, 1)) <= 1e-12 * np.abs(trace.scores).max((0, 1))
    )
    if (constant & failing).any():
        return _no_gain(
            trace.names,
            constant & failing,
            "constant",
            "are constant: the density has no slope to use",
        )
    if unconverged.any():
        said = f"the chains disagree on {listed(trace.names, unconverged)}"
        return _disagree("every draw is the same" if stuck.all() else said)
    if bounded:
        which = np.isin(np.arange(len(trace.names)), bounded)
        return _no_gain(
            trace.names,
            which,
            "boundary",
            "do not average to zero because the density ends at a boundary",
        )
    return _unknown(trace.names, z_mean, z_product, threshold)


def _best_repair(
    draws: Float[np.ndarray, "c n"],
    scores: Float[np.ndarray, "c n"],
    alone: Float[np.ndarray, "c n"],
    z_given: float,
    threshold: float,
) -> identities.Repair | str | None:
    # Every repair is tried and the best one named: several may pass in a short trace.
    z = [identities.z_repaired(draws, scores, repair) for repair in identities.REPAIRS]
    best = int(np.argmin(z))
    bounded, factor = identities.z_bounded(draws, scores), -float((alone * scores).mean())
    scale = (
        identities.z_repaired(draws, scores / factor, identities.AS_GIVEN) if factor > 0 else np.inf
    )
    # The repair must explain the failure, not merely be too noisy to reject; and wrong scores fail
    # locally as well.
    limit = min(identities.REPAIR_LIMIT, np.sqrt(z_given**2 - threshold**2))
    local = identities.z_local(draws, scores) > identities.REPAIR_LIMIT
    # A factor is fitted, and has the smallest |z| of causes that explain as much: among them it
    # comes last. One that the coordinate shows only beside the others need not show locally.
    if scale <= limit and (
        not local or (scale < min(z[best], bounded) and min(z[best], bounded) > limit / 2)
    ):
        return "scale"
    if min(z[best], bounded) > limit or not local:
        return None
    return "boundary" if bounded < z[best] else identities.REPAIRS[best]


def _mistake(
    names: tuple[str, ...], mistakes: dict[identities.Repair, list[int]]
) -> identities.Finding:
    ranked = sorted(mistakes.items(), key=lambda item: -len(item[1]))
    clauses = [
        f"the scores of {listed(names, np.isin(np.arange(len(names)), which))} {repair.cause}"
        for repair, which in ranked
    ]
    first = ranked[0][0]
    return identities.Finding(
        "error", first.pattern, f"Score gate: {'; '.join(clauses)}. {first.cure}"
    )


def _order(
    trace: Trace, failing: Bool[np.ndarray, " d"], threshold: float
) -> identities.Finding | None:
    """Recognise scores stored in another order of coordinates: E[x_i s_j] = −1 at one place i ≠ j
    of each column."""
    columns = np.flatnonzero(failing)
    if not 2 <= len(columns) <= _MOST_DIAGNOSED:
        return None
    # Under right scores E[(x_i − x̄_i)s_j] = −δ_ij: −1 off the diagonal is the mark of column i's
    # score.
    x = trace.draws[..., columns] - trace.draws[..., columns].mean((0, 1))
    source = []
    for j in columns:
        shifted = x * trace.scores[..., j, None]
        zero, minus_one = (
            np.abs(identities.z_zero_mean(shifted)),
            np.abs(identities.z_zero_mean(shifted + 1)),
        )
        fits = np.flatnonzero(
            (minus_one <= identities.REPAIR_LIMIT) & (zero > threshold) & (columns != j)
        )
        if len(fits) != 1:
            return None
        source.append(int(fits[0]))
    # An order is a permutation: one source for two columns is chance.
    if len(set(source)) != len(source):
        return None
    pairs = ", ".join(
        f"{trace.names[int(j)]} holds that of {trace.names[int(columns[i])]}"
        for j, i in zip(columns, source, strict=True)
    )
    return identities.Finding(
        "error",
        "order",
        f"Score gate: the scores are in another order than the draws: the score of {pairs}. "
        "Order both alike; a flattened dict is sorted by key, a NumPyro trace follows the "
        "program.",
    )


_FURTHEST = 3
"""Draws by which scores are looked for before and after their own."""


def _rows(trace: Trace, threshold: float) -> identities.Finding | None:
    """Recognise scores in another order of draws: they go with other draws better than with their
    own.

    Scores that are a function of their own draw, right or wrong, vary most with that draw.
    """
    # A few coordinates of many tell, since what is wrong with rows is common to all.
    columns = slice(_MOST_DIAGNOSED)
    x, s = (
        trace.draws[..., columns] - trace.draws[..., columns].mean((0, 1)),
        trace.scores[..., columns],
    )
    if (np.ptp(s, axis=(0, 1)) == 0).any():
        return None
    candidates = {}

    def compare(text: str, x: np.ndarray, other: np.ndarray, beside: np.ndarray) -> None:
        z = identities.z_zero_mean(np.concatenate([x * other + 1, x * (beside - other)], -1))
        right, nearer = np.abs(z[: len(z) // 2]), z[len(z) // 2 :]
        # All must be right, and one of them with certainty more than beside their own draw.
        if right.max() <= identities.REPAIR_LIMIT and nearer.max() > threshold:
            candidates[text] = right.max()

    # Any order of draws without memory that are few can look right by chance, the other sign not.
    sign = np.abs(identities.z_zero_mean(1 - x * s)).max()

    compare("in the opposite order of draws", x, s[:, ::-1], s)
    for step in range(1, min(_FURTHEST, x.shape[1] - 4) + 1):
        count = f"those of {step} draw{'s' * (step > 1)}"
        compare(
            f"{count} before the one that they stand beside",
            x[:, :-step],
            s[:, step:],
            s[:, :-step],
        )
        compare(
            f"{count} after the one that they stand beside", x[:, step:], s[:, :-step], s[:, step:]
        )
    if candidates and sign > identities.REPAIR_LIMIT:
        return _misplaced(min(candidates, key=candidates.__getitem__))
    return None


def _unrelated(trace: Trace, threshold: float) -> identities.Finding | None:
    """Recognise scores of quite other draws, with which products vanish where they should be −1."""
    x, s = trace.draws - trace.draws.mean((0, 1)), trace.scores
    if (np.ptp(s, axis=(0, 1)) == 0).any():
        return None  # constant scores have such products, and another message
    zero, minus_one = (
        np.abs(identities.z_zero_mean(x * s)),
        np.abs(identities.z_zero_mean(x * s + 1)),
    )
    if (minus_one <= 2 * threshold).any() or np.maximum(
        zero, np.abs(identities.z_zero_mean(s))
    ).max() > threshold:
        return None
    return _misplaced("not of the draws that they stand beside: they do not change with them")


def _misplaced(where: str) -> identities.Finding:
    cure = "Store each draw with its own gradient, both thinned and ordered alike."
    return identities.Finding("error", "rows", f"Score gate: the scores are {where}. {cure}")


def _no_gain(
    names: tuple[str, ...], which: Bool[np.ndarray, " d"], pattern: str, cause: str
) -> identities.Finding:
    return identities.Finding(
        "warn",
        pattern,
        f"Score gate: the scores of {listed(names, which)} {cause}, so no gain is possible "
        "from them; sample and store an unconstrained parameter instead, as log θ.",
    )


def _disagree(said: str) -> identities.Finding:
    return identities.Finding(
        "warn",
        "not_converged",
        f"Score gate: {said} and the scores do not average as they must: not converged; run "
        "longer or reparameterise before trusting any average.",
    )


def _scale(
    trace: Trace, candidates: Bool[np.ndarray, " d"], threshold: float
) -> identities.Finding | None:
    """Recognise scores that are a common multiple of the right ones, as those of a tempered
    density.

    `candidates` fail E[(x_i − x̄_i) s_i] = −1 but not E[s_i] = 0.
    """
    x = identities.given_others(trace.draws)
    factors = -(x * trace.scores).mean((0, 1))
    # The median over coordinates: single ones may be off by their own Monte Carlo error.
    factor = float(np.median(factors))
    # A factor common to all coordinates needs all of them to fail, and two at least.
    if not candidates.all() or len(candidates) < 2 or factor <= 0:
        return None
    z = identities.z_zero_mean(x * trace.scores / factor + 1, threshold)
    if not (np.abs(z) <= threshold).all():
        return None
    return identities.Finding(
        "warn",
        "scale",
        f"Score gate: every score is {factor:.3g} times what these draws imply, as for a "
        f"tempered or rescaled density{_units_text(x * trace.scores)}; pass the scores of the "
        "density that was sampled.",
    )


_KNOWN_FACTORS = (
    (float(np.log(10)), "ln 10 = 2.303 would be scores of log10 θ beside draws of log θ"),
    (1 / float(np.log(10)), "1/ln 10 = 0.4343 would be scores of log θ beside draws of log10 θ"),
)


_FAR = 0.4
"""Logarithm of a standard deviation that a factor can be compared with."""


def _units_text(products: Float[np.ndarray, "c n k"]) -> str:
    """Return what factors that agree with a known one would mean, each by the test that has refused
    one."""
    z, text = min(
        (np.abs(identities.z_zero_mean(products + factor)).max(), text)
        for factor, text in _KNOWN_FACTORS
    )
    return f" ({text})" if z <= identities.REPAIR_LIMIT else ""


def _units(trace: Trace, columns: list[int]) -> identities.Finding:
    """Describe scores that are a factor of their own of the right ones in some coordinates, as
    those in other units."""
    products, names = (
        (identities.given_others(trace.draws) * trace.scores)[..., columns],
        [trace.names[j] for j in columns],
    )
    shown = [
        f"{-factor:.3g} ({name})" for factor, name in zip(products.mean((0, 1)), names, strict=True)
    ]
    more = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    guess, sd = _units_text(products), trace.draws[..., columns].std((0, 1))
    # Deviations near one are any factor.
    if (
        not guess
        and (np.abs(np.log(sd)) > _FAR).all()
        and np.abs(identities.z_zero_mean(products + sd)).max() <= identities.REPAIR_LIMIT
    ):
        guess = " (the standard deviations of the draws, as for scores of standardised parameters)"
    return identities.Finding(
        "warn",
        "scale",
        "Score gate: expected scores with E[(x_i − x̄_i) s_i] = −1, got scores that are a "
        "constant times such ones, as of a tempered density, in other units, or beside draws "
        f"that are too wide or narrow: {', '.join(shown[:SHOWN])}{more}{guess}. "
        "Differentiate the sampled log density with respect to the draw as it is stored.",
    )


def _unknown(
    names: tuple[str, ...],
    z_mean: Float[np.ndarray, " d"],
    z_product: Float[np.ndarray, "d d"],
    threshold: float,
) -> identities.Finding:
    mean, product = np.abs(z_mean) > threshold, (np.abs(z_product) > threshold).any(0)
    parts = []
    if mean.any():
        parts.append(
            f"E[score] = 0 fails for {listed(names, mean)} (|z| up to {np.abs(z_mean).max():.3g})"
        )
    if product.any():
        worst = np.nanmax(np.abs(z_product))
        parts.append(
            f"E[(x_i − x̄_i) s_j] = −δ_ij fails for {listed(names, product)} (|z| up to {worst:.3g})"
        )
    return identities.Finding(
        "warn",
        "unknown",
        f"Score gate: {' and '.join(parts)}, {threshold:.3g} being allowed: the draws are too "
        "few or have not converged, or the scores miss a term such as a log-Jacobian; check "
        "R-hat, then how the scores were made.",
    )


class ScoreError(InputError):
    """The scores cannot be those of the draws."""


class ScoreWarning(UserWarning):
    """The scores or the draws look wrong, but no mistake is recognised with certainty."""


class ScoreCheck(NamedTuple):
    """The result of the score gate.

    verdict : "pass", "warn" or "error".
    pattern : None, "nonfinite", "rounded", "precision", "wild", "chains", "sign", "jacobian",
        "constrained", "order", "rows", "scale", "constant", "boundary", "not_converged",
        "too_few_draws", "log_density" or "unknown".
    message : one sentence with the cause, the coordinates and the cure; empty for a pass.
    z_mean : (d,) normal equivalents of the tests of E[s] = 0; NaN where not tested.
    z_product : (d, d) the same for E[(x_i − x̄_i) s_j] = −δ_ij; NaN where not tested. On the
        diagonal also of x_i less its regression on the others, where that tells more.
    threshold : largest |z| that passes.
    verified : whether a recorded log density confirms the scores, to a hundredth.
    """

    verdict: str
    pattern: str | None
    message: str
    z_mean: Float[np.ndarray, " d"]
    z_product: Float[np.ndarray, "d d"]
    threshold: float
    verified: bool = False

    @property
    def failed(self) -> bool:
        """Whether Stein's identity is in doubt. Too few draws to test it do not count as a
        failure."""
        return self.verdict != "pass" and self.pattern != "too_few_draws"


def check_scores(trace: Trace, log_density: Float[np.ndarray, "c n"] | None = None) -> ScoreCheck:
    """Test that the scores of `trace` are those of its draws.

    E[s] = 0 and E[(x_i − x̄_i) s_j] = −δ_ij, with ESS-aware errors and a Bonferroni threshold at
    level 1e-4 over all the tests. Coordinates that fail are repaired in every way that is known to
    go wrong: a repair that passes names the mistake. |z| below the threshold is an upper bound
    (that of independent draws). Above d = 50 only pairs in a cyclic band |i − j| of about 2,500 are
    tested, the diagonal always. Coordinates that never move, where others do, are not tested.

    These tests know scores that are wrong by a few Monte Carlo errors only. With the log density
    that the sampler recorded, scores that are five per cent too large, or shifted, are found by its
    differences between near draws (`misfit`), in a few dimensions, and in twenty where the density
    is nearly Gaussian, unless the identity denies it.

    All draws are tested for being finite, and of large arrays every so many of each chain, four
    million numbers, for the rest, in memory or stored. Weighted draws are tested on nearly equally
    weighted ones among them (`Weights.representative`), as one chain.

    Parameters
    ----------
    trace : draws and scores (c, n, d).
    log_density : (c, n) at the draws, log-Jacobian included, up to a constant.

    Returns
    -------
    ScoreCheck : non-finite scores and recognised mistakes are errors; constant scores, bounded
        supports, chains that disagree and failures that are not recognised are warnings.
    """
    if not np.isfinite(trace.scores).all():
        empty = _untested(trace.draws.shape[-1])
        return empty._replace(verdict="error", pattern="nonfinite", message=where_not_finite(trace))
    thinned, untested = (
        Trace(sampled(trace.draws), sampled(trace.scores), trace.names),
        _untested(trace.draws.shape[-1]),
    )
    if (text := _rounded(thinned)) is not None:
        return untested._replace(verdict="error", pattern="rounded", message=text)
    if (finding := too_coarse(thinned)) is not None:
        return untested._replace(**finding._asdict())
    # Draws of no weight may have any scores.
    step = sampling_step(trace.draws.shape)
    if trace.weights is None and (finding := wild_scores(without_fixed(thinned), step)) is not None:
        return untested._replace(**finding._asdict())
    draws, scores = trace.draws, trace.scores
    # Tests of means know no weights: rows that are nearly equally weighted stand for the trace.
    if trace.weights is not None:
        rows, d = trace.weights.representative(), draws.shape[-1]
        draws, scores = (array.reshape(1, -1, d)[:, rows] for array in (trace.draws, trace.scores))
        log_density = None if log_density is None else log_density.reshape(1, -1)[:, rows]
    # The recorded density takes the same step through the draws as `sampled` does.
    log_density = None if log_density is None else log_density[:, :: sampling_step(draws.shape)]
    return _check(Trace(sampled(draws), sampled(scores), trace.names), log_density)


COARSE, FEW = 0.3, 10
"""Draws are rounded where their distinct values are further apart than so much of their standard
deviation, and there are at least so many times fewer of them than of their scores."""


def _rounded(trace: Trace) -> str | None:
    """Return the message for draws that a text file has rounded to a few values, None where there
    are none.

    Their mean may be off by half a unit, which no error knows. Scores of one value of a coordinate
    differ anyway with the others, but then these do not come in a few values.
    """
    for j in np.flatnonzero(np.ptp(trace.draws, axis=(0, 1)) > 0):
        x = trace.draws[..., j].reshape(-1)
        # A thousand draws tell a few values from many: most coordinates leave the loop here.
        levels = np.unique(x[:1000])
        if (
            FEW * len(levels) > len(x[:1000])
            or np.diff(levels).min(initial=np.inf) < COARSE * x.std()
        ):
            continue
        levels, digits = np.unique(x), digits_of_text(x)
        if digits is not None and FEW * len(levels) <= len(np.unique(trace.scores[..., j])):
            return (
                f"Score gate: the draws of {trace.names[j]} are rounded to {digits} digits, "
                f"{len(levels)} values with {trace.draws[..., j].size} scores that differ: "
                f"their mean can be off by {unit_of_text(x) / 2:.2g}, and no error shows it. "
                "Write the file with more digits: sig_figs=18 in CmdStan."
            )
    return None


def _untested(d: int) -> ScoreCheck:
    # Bonferroni over d means and the tested pairs, two-sided.
    threshold = float(-ndtri(LEVEL / (2 * (d + identities.tested_pairs(d).sum()))))
    return ScoreCheck("pass", None, "", np.full(d, np.nan), np.full((d, d), np.nan), threshold)


def _check(trace: Trace, log_density: Float[np.ndarray, "c n"] | None) -> ScoreCheck:
    """Test scores that are finite, of draws in memory, all of them."""
    d, empty = trace.draws.shape[-1], _untested(trace.draws.shape[-1])
    threshold = empty.threshold
    moves = moving(trace.draws)
    # Fixed coordinates have scores that need not average to zero: the others are tested alone.
    if not moves.all():
        of_moving = _check(without_fixed(trace), log_density)
        empty.z_mean[moves] = of_moving.z_mean
        empty.z_product[np.ix_(moves, moves)] = of_moving.z_product
        return of_moving._replace(z_mean=empty.z_mean, z_product=empty.z_product)
    if trace.draws.shape[1] < 4 and trace.draws.shape[0] < MANY_CHAINS:
        text = (
            f"Score gate: {trace.draws.shape[1]} draws a chain are too few to test the "
            "scores; at least 4 are needed, so nothing is known about them."
        )
        return empty._replace(verdict="warn", pattern="too_few_draws", message=text)
    if (finding := stuck_chains(trace)) is not None:
        return empty._replace(**finding._asdict())
    # With `threshold` as a screen an ESS is computed only where independent draws would already
    # fail.
    z_mean = identities.z_zero_mean(trace.scores, threshold)
    z_product = identities.z_products(trace.draws, trace.scores, threshold)
    # The sharper of two tests of each coordinate's own product.
    alone, diagonal = (
        identities.z_zero_mean(identities.given_others(trace.draws) * trace.scores + 1, threshold),
        np.diag(z_product),
    )
    np.fill_diagonal(z_product, np.where(np.abs(alone) > np.abs(diagonal), alone, diagonal))
    check = empty._replace(z_mean=z_mean, z_product=z_product)
    unmixed = identities.disagreeing(trace.draws, LEVEL)
    # Before the tests of all draws: what is wrong in one chain they explain by causes that all
    # would share, if at all.
    if not unmixed.any() and (finding := wrong_chains(trace)) is not None:
        return check._replace(**finding._asdict())
    if _failing(z_mean, z_product, threshold).any():
        finding = diagnose(trace, z_mean, z_product, threshold, unmixed)
        # An end of the density fails them with scores that are right in the middle, where wrong
        # ones fail as well.
        failing = np.flatnonzero(_failing(z_mean, z_product, threshold))[:_MOST_DIAGNOSED]
        if finding.pattern in ("unknown", "scale") and all(
            identities.z_local(trace.draws[..., j], trace.scores[..., j]) <= threshold
            for j in failing
        ):
            finding = cut_off(trace) or finding
        return check._replace(**finding._asdict())
    # Scores that fail are not asked: with a wrong sign any density grows outwards.
    if not unmixed.any() and (finding := cut_off(trace)) is not None:
        return check._replace(**finding._asdict())
    # After the identities: only scores that pass them need the sharper, costlier comparison.
    mismatch = None
    if log_density is not None:
        mismatch = misfit(
            trace.draws.reshape(-1, d), trace.scores.reshape(-1, d), log_density.reshape(-1)
        )
    check = check._replace(verified=mismatch is not None and mismatch.known)
    # Both must agree: in many dimensions a skewed density can look like wrong scores.
    if mismatch is not None and mismatch.wrong and not _denied(trace, mismatch, threshold):
        return check._replace(**_contradicted(trace.names, mismatch)._asdict())
    if unmixed.any():
        return check._replace(**_not_converged(trace, unmixed)._asdict())
    return check


def _denied(trace: Trace, mismatch: Misfit, threshold: float) -> bool:
    """Return whether Stein's identity denies the factor or the largest shift that a misfit finds.

    In many dimensions even near draws are far apart. Third derivatives of a skewed density then
    look like a factor and a shift. Scores c s + b of a density with the scores s have the mean b,
    and the mean of (x − x̄)·s/d is −c.
    """
    worst, centred = (
        int(np.abs(mismatch.shift).argmax()),
        trace.draws - trace.draws.mean(axis=(0, 1)),
    )
    shift = (
        trace.scores[..., worst] * trace.draws[..., worst].std()
        - mismatch.shift[worst] * mismatch.factor
    )
    factor = (centred * trace.scores).mean(axis=-1) + mismatch.factor
    return bool(
        (np.abs(identities.z_zero_mean(np.stack([shift, factor], axis=-1))) > threshold).any()
    )


def _contradicted(names: tuple[str, ...], mismatch: Misfit) -> identities.Finding:
    worst = int(np.abs(mismatch.shift).argmax())
    return identities.Finding(
        "warn",
        "log_density",
        "Score gate: the scores are not the gradient of the log density that the sampler "
        f"recorded: they are {mismatch.factor:.3g} times as large and shifted by up to "
        f"{abs(mismatch.shift[worst]):.2g} of 1/sd (in {names[worst]}). Pass the scores of the "
        "density that was sampled: its data, its prior, its log-Jacobian; or drop the "
        "recorded one, if it is of another density.",
    )


def _failing(
    z_mean: Float[np.ndarray, " d"], z_product: Float[np.ndarray, "d d"], threshold: float
) -> Bool[np.ndarray, " d"]:
    return (np.abs(z_mean) > threshold) | (np.abs(z_product) > threshold).any(0)


def _not_converged(trace: Trace, unmixed: Bool[np.ndarray, " d"]) -> identities.Finding:
    text = (
        f"Score gate: the chains disagree on {listed(trace.names, unmixed)}, although the "
        "scores pass: not converged, so averages over these draws are not posterior "
        "expectations; run longer or reparameterise."
    )
    return identities.Finding("warn", "not_converged", text)
