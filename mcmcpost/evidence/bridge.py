"""Bridge sampling: the log evidence from posterior draws and a density fitted to other draws of the
same trace."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import brentq
from scipy.special import expit

from mcmcpost.control import (
    AbstractControlVariate,
    Options,
    PlainMean,
    Sample,
    estimate_expectations,
)
from mcmcpost.core.arguments import (
    as_float64,
    as_labels,
    check_count,
    check_flags,
    check_function,
    check_key,
    hashable,
)
from mcmcpost.core.devices import host_generator, map_rows
from mcmcpost.core.errors import InputError, Status
from mcmcpost.core.mcse import (
    Weights,
    mcse_mean,
    mean_over_draws,
    tail_draws,
    variance_over_draws,
    weights_khat,
)
from mcmcpost.core.precision import check_rounding
from mcmcpost.evidence.ladder import EvidenceEstimate
from mcmcpost.evidence.normal_mean import normal_mean
from mcmcpost.evidence.warp import (
    Warp,
    as_warp,
    control_normal,
    fit_normal,
    fit_warp,
    likelier,
)
from mcmcpost.scores import check_scalar, disagreeing, effective_size
from mcmcpost.trace import make_trace, not_finite

BATCH_SIZE = 1024
"""Points at which the log density is evaluated together."""


def checked_density(
    where: str, logdensity_fn: Callable[[Array], Array], d: int
) -> Callable[[Float[np.ndarray, "n d"]], Float[np.ndarray, " n"]]:
    """Return a function of points (n, d) that is the log density at each; all its calls share one
    compiled program.

    Raises
    ------
    ValueError : it is not a scalar, at once, or NaN or +∞ somewhere. −∞, outside the support, is
        kept.
    """
    # Once and not at every call: it traces the model, which took a tenth of a bridge of eight
    # schools.
    check_scalar(where, logdensity_fn, d)
    function = hashable(logdensity_fn)

    def density(points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        # Full blocks: the numbers of draws and of proposals differ, and each would compile a
        # program of its own.
        values = map_rows(
            function, points, batch_size=BATCH_SIZE, full_blocks=True, progress="densities"
        )
        check_rounding(where, values)
        return check_values(where, values.astype(float), points)

    return density


def check_values(
    where: str, values: Float[np.ndarray, " n"], points: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, " n"]:
    """Return log densities as they are; see `checked_density` for those that are refused."""
    bad = np.isnan(values) | (values == np.inf)
    if bad.any():
        raise InputError(
            where,
            "a log density that is finite, or −∞ outside the support",
            f"NaN or +∞ at {bad.sum()} of {len(points)} points, first "
            f"{points[np.argmax(bad)].tolist()}",
            "Return −∞ where the density is zero; a failed solver is not zero density by itself.",
        )
    return values


MIN_PARTICIPANTS = 10.0
"""With fewer effective draws in the overlap of posterior and proposal, the estimate is not to be
used."""

DRIFT_LEVEL = 1e-4
"""Level of the test that the chains and their halves agree, as in the score gate."""

WHERE = "Bridge sampling"

LEAST_DRAWS = 8
"""Draws of a chain: four in each half."""

MIN_PROPOSALS, MAX_PROPOSALS = 100, 10_000_000


class Half(NamedTuple):
    """Half of the draws, a map fitted to the other half, and how their densities compare at both.

    draws : (c, n, d). rows : which of each chain they are. weights : of these draws, None where
        they are equal.
    warp : of the proposal g, standard normals to draws of g.
    standard : (cn + m, d) the draws, then m draws of g, in the coordinates in which g is standard
        normal.
    log_ratio : (cn + m,) log q − log g there. image : (cn + m,) the same at the mirror images −z in
        these coordinates; None where they were not asked for.
    ess : median effective sample size of the draws over the coordinates, at least one.
    """

    draws: Float[np.ndarray, "c n d"]
    rows: slice
    weights: Weights | None
    warp: Warp
    standard: Float[np.ndarray, " r d"]
    log_ratio: Float[np.ndarray, " r"]
    image: Float[np.ndarray, " r"] | None
    ess: float

    @property
    def mirrored(self) -> Float[np.ndarray, " r"]:
        """Return log q − log g of the density averaged over z and its mirror image (warp-III)."""
        assert self.image is not None
        # g is symmetric in z, so that the posterior averaged over ±z has the ratio (r(z) + r(−z))/2
        # to it. All skewness of what the map has left is gone, at twice the evaluations.
        return np.logaddexp(self.log_ratio, self.image) - np.log(2.0)

    def split(self, rows: Float[np.ndarray, "r ..."]) -> tuple[np.ndarray, np.ndarray]:
        """Return what belongs to the draws, (c, n, ...), and to the proposals, (m, ...)."""
        c, n, _ = self.draws.shape
        return rows[: c * n].reshape(c, n, *rows.shape[1:]), rows[c * n :]


class BridgeOverlap(NamedTuple):
    """log q − log g − log Z, q/Z the posterior and g the density fitted to the other half, for each
    half of the draws.

    Where both densities are alike it is near zero, at the draws as at the proposals.

    at_draws : two of (m,) at the draws of each half, weighted draws as often as their weight says.
        at_proposals : two of (m,) at the draws of g.
    """

    at_draws: tuple[Float[np.ndarray, " _"], ...]
    at_proposals: tuple[Float[np.ndarray, " _"], ...]


def half_overlap(halves: list[Half], log_z: float) -> BridgeOverlap:
    """Return how posterior and fitted density overlap in each half, given log Z."""
    parts = [half.split(half.log_ratio[:, None]) for half in halves]
    return BridgeOverlap(
        tuple(
            equal_rows(drawn, half.weights)[:, 0] - log_z
            for (drawn, _), half in zip(parts, halves, strict=True)
        ),
        tuple(proposed[:, 0] - log_z for _, proposed in parts),
    )


class Bridge(NamedTuple):
    """One solved bridge.

    value, mcse : log Z and its standard error.
    drawn_error : the part of `mcse` that is due to the draws.
    share : s₁ = ess/(ess + proposals).
    participants : effective number of draws, or of proposals if smaller, in the overlap.
    ess : median effective sample size of the draws over the coordinates.
    controls : control variates of the means over the draws and over the proposals.
    """

    value: float
    mcse: float
    drawn_error: float
    share: float
    participants: float
    ess: float
    controls: tuple[str, str] = (PlainMean().label, PlainMean().label)


def bridge_sampling(
    draws: object,
    logdensity_fn: Callable[[Array], Array],
    *,
    key: jax.Array,
    names: tuple[str, ...] | None = None,
    symmetric: bool = True,
    num_proposals: int | None = None,
) -> EvidenceEstimate:
    """Estimate log Z = log ∫q with the optimal bridge between posterior draws and a normal fitted
    to other draws.

    Z = E_g[q h]/E_p[g h] with h = 1/(s₁q + s₂Zg), p = q/Z the posterior and g the proposal. The
    first half of each chain fits the proposal and the second half is bridged; then the halves are
    exchanged and both results averaged. The shares s are those of the effective sample sizes, and
    the error includes autocorrelation.

    Parameters
    ----------
    draws : (c, n, d) posterior draws on the unconstrained space.
    logdensity_fn : (d,) → log q, log-Jacobian included. Constants that it leaves out are left out
        of the evidence.
    names : d labels for error messages.
    symmetric : bridge to the density averaged over x and its mirror image 2μ − x, which has no
        skewness (warp-III); twice the evaluations. Otherwise the density itself.
    num_proposals : for each half; by default as many as draws in it.

    Returns
    -------
    EvidenceEstimate : status ``plain``; ``too_few_draws`` (NaN) with fewer than d + 2 distinct
        states or four draws of a chain in a half; ``not_converged`` where proposal and posterior
        hardly overlap or the halves disagree.

    Raises
    ------
    ValueError : the density is not finite at a draw, NaN at a proposal, or a coordinate is
        constant.

    Source: Meng and Wong (1996, Statistica Sinica 6), Meng and Schilling (2002,
    doi:10.1198/106186002457) for the warp, Frühwirth-Schnatter (2004,
    doi:10.1111/j.1368-423X.2004.00125.x) for the error, Gronau et al. (2017,
    doi:10.1016/j.jmp.2017.09.005) for the whole.
    """
    points, labels = check_draws(WHERE, draws, names)
    check_key(WHERE, key)
    check_function(
        WHERE, "logdensity_fn", logdensity_fn, 1, "Its argument is one unconstrained draw (d,)."
    )
    check_count(
        WHERE, "num_proposals", num_proposals, "Leave it out.", most=MAX_PROPOSALS, optional=True
    )
    check_flags(WHERE, symmetric=symmetric)
    if too_few(points):
        return no_bridge(points)
    density = checked_density(WHERE, logdensity_fn, points.shape[-1])
    halves = evaluate_halves(
        density, points, labels, key, symmetric=symmetric, num_proposals=num_proposals
    )
    return refuse_drift(plain_bridge(halves, symmetric=symmetric), points, labels)


def no_bridge(points: Float[np.ndarray, "c n d"]) -> EvidenceEstimate:
    """Return that there are too few draws."""
    return EvidenceEstimate(
        "bridge", np.nan, np.nan, Status.TOO_FEW_DRAWS, {"num_draws": points[..., 0].size}
    )


def evaluate_halves(
    density: Callable[[np.ndarray], np.ndarray],
    points: Float[np.ndarray, "c n d"],
    names: tuple[str, ...],
    key: jax.Array,
    *,
    bent: bool = False,
    symmetric: bool = True,
    num_proposals: int | None = None,
    known: Float[np.ndarray, "c n"] | None = None,
    scores: Float[np.ndarray, "c n d"] | None = None,
    weights: Weights | None = None,
) -> list[Half]:
    """Fit a proposal to each half of the chains and evaluate `density`, (r, d) → (r,) log q, for
    the other half.

    bent : fit a `Warp`; otherwise a normal. num_proposals : for each half; by default as many as
        draws in it.
    known, scores : log q and its gradient at all the draws, where they have been computed before;
        gradients control the mean and the covariance of a fit. weights : of the draws; a proposal
        is fitted to draws that are repeated as often as their weights say.
    """
    d = points.shape[-1]
    # A density fitted to the draws that it is bridged to lies too near to them, and the bridge
    # would be biased; hence each half is bridged to a fit of the other.
    one, other = (
        _half_of_draws(points, weights, rows) for rows in half_rows(points.shape[1], weights)
    )
    halves = []
    for (fit, use), k in zip(((one, other), (other, one)), jax.random.split(key), strict=True):
        fitted = equal_rows(fit.draws, fit.weights)
        normal, controlled = fit_normal(WHERE, fitted, names), None
        if scores is not None:
            slopes = equal_rows(scores[:, fit.rows], fit.weights)
            controlled = control_normal(normal, fitted, slopes)
        warp = (
            fit_warp(WHERE, fitted, names, fit.ess, controlled)
            if bent
            else as_warp(likelier(normal, controlled, fitted, fit.ess))
        )
        number = num_proposals or use.draws.size // d
        at_draws = None if known is None else known[:, use.rows].reshape(-1)
        halves.append(_evaluate(density, use, warp, k, number, at_draws, symmetric=symmetric))
    return halves


def refit_halves(
    density: Callable[[np.ndarray], np.ndarray],
    halves: list[Half],
    names: tuple[str, ...],
    key: jax.Array,
    num_proposals: int,
    *,
    controlled: bool = False,
) -> list[Half]:
    """Fit the map of each half again, to the draws that it was fitted to and to its first
    proposals, and bridge anew.

    Proposals and draws are weighted to the posterior as draws of their mixture (`_pooled`), so that
    many proposals count for as many more draws. None of them is among the draws that the map is
    then bridged to, nor among the new proposals.

    halves : of bent maps, with mirror images, which are proposals as well. num_proposals : new
        ones, for each half. controlled : scores have controlled the normals of these maps, which
        may be nearer to the posterior than those of the points.
    """
    refitted = []
    for half, fit, k in zip(halves, halves[::-1], jax.random.split(key), strict=True):
        pool, ess = _pooled(half, fit)
        at_draws, _ = half.split(half.log_ratio + half.warp.log_density(half.standard))
        use = _HalfOfDraws(half.draws, half.rows, half.weights, half.ess)
        before = half.warp.normal.ordered(np.argsort(half.warp.order))
        warp = fit_warp(WHERE, pool, names, ess, before if controlled else None)
        refitted.append(
            _evaluate(density, use, warp, k, num_proposals, at_draws.reshape(-1), symmetric=False)
        )
    return refitted


SMALL = 0.25
"""Variance of the proposals' part of an error, in that of the draws' part, below which more of them
are not worth their evaluations."""


def add_proposals(
    density: Callable[[np.ndarray], np.ndarray], halves: list[Half], key: jax.Array, most: int
) -> list[Half]:
    """Return the halves with more draws of their maps, until these are a small part of the error of
    the bridge (`SMALL`), and at most `most` of them.

    halves : without mirror images.
    """
    extended = []
    for half, k in zip(halves, jax.random.split(key), strict=True):
        bridge = _solve(half, symmetric=False)
        (r, d), drawn, wanted = half.standard.shape, half.draws[..., 0].size, 0.0
        if bridge.drawn_error > 0:
            by_proposals = (bridge.mcse / bridge.drawn_error) ** 2 - 1.0
            wanted = min(most, (r - drawn) * by_proposals / SMALL)
        number = int(wanted) - (r - drawn)
        if number > 0:
            z = host_generator(k).normal(size=(number, d))
            ratio = density(half.warp.restore(z)) - half.warp.log_density(z)
            half = half._replace(
                standard=np.concatenate([half.standard, z]),
                log_ratio=np.concatenate([half.log_ratio, ratio]),
            )
        extended.append(half)
    return extended


def _pooled(half: Half, fit: Half) -> tuple[Float[np.ndarray, "r d"], float]:
    """Return points for the posterior, of the draws of `fit` and the proposals of `half`, and their
    effective number.

    The map of `half` was fitted to the draws of `fit`. As a draw of the mixture of ess draws of p
    and m of g, a point has the weight p/(ess·p + m·g): at most that of a draw, wherever g is too
    small.
    """
    assert half.image is not None
    z, d = half.warp.standardise(fit.draws.reshape(-1, fit.draws.shape[-1])), fit.draws.shape[-1]
    at_draws, _ = fit.split(fit.log_ratio + fit.warp.log_density(fit.standard))
    drawn = at_draws - half.warp.log_density(z).reshape(at_draws.shape)
    proposed = np.concatenate([half.split(logs)[1] for logs in (half.log_ratio, half.image)])
    # Of the fitted draws, not of those to be bridged, which would have a part in the map.
    log_z = solve_bridge(drawn, proposed, fit.ess, fit.weights).value
    if not np.isfinite(log_z):
        return equal_rows(fit.draws, fit.weights), fit.ess
    shift = np.log(fit.ess / len(proposed)) - log_z
    each = (
        fit.ess / drawn.size * (np.ones(drawn.shape) if fit.weights is None else fit.weights.values)
    )
    of_draws, of_proposals = (each * expit(drawn + shift)).reshape(-1), expit(proposed + shift)
    weights = np.concatenate([of_draws, of_proposals])
    # Draws that are autocorrelated count for fewer.
    squares = (of_proposals**2).sum() + (of_draws**2).sum() * np.count_nonzero(of_draws) / fit.ess
    g = half.split(half.standard)[1]
    rows = np.concatenate([fit.draws.reshape(-1, d), half.warp.restore(np.concatenate([g, -g]))])
    # Systematic resampling, as fits take points of equal weight.
    steps = np.cumsum(weights)
    chosen = np.searchsorted(steps, (np.arange(len(rows)) + 0.5) / len(rows) * steps[-1])
    return rows[chosen], float(weights.sum() ** 2 / squares)


def _evaluate(
    density: Callable[[np.ndarray], np.ndarray],
    use: "_HalfOfDraws",
    warp: Warp,
    key: jax.Array,
    num_proposals: int,
    at_draws: Float[np.ndarray, " r"] | None,
    *,
    symmetric: bool,
) -> Half:
    """Return half of the draws beside a map fitted to others. at_draws : log q at the draws, where
    it is known."""
    d = use.draws.shape[-1]
    drawn = use.draws.reshape(-1, d)
    proposed = host_generator(key).normal(size=(num_proposals, d))
    # Draws before proposals: `Half.split` relies on this order.
    standard = np.concatenate([warp.standardise(drawn), proposed])
    at_draws = density(drawn) if at_draws is None else at_draws
    check_inside(at_draws)
    size, mirrored = len(proposed), -standard if symmetric else standard[:0]
    # In one call: what fills the last block is evaluated once.
    values = density(warp.restore(np.concatenate([proposed, mirrored])))
    ratio = np.concatenate([at_draws, values[:size]]) - warp.log_density(standard)
    image = values[size:] - warp.log_density(mirrored) if symmetric else None
    return Half(use.draws, use.rows, use.weights, warp, standard, ratio, image, use.ess)


class _HalfOfDraws(NamedTuple):
    """Half of the draws (c, n, d): which of each chain they are, their weights, and how many they
    are worth."""

    draws: Float[np.ndarray, "c n d"]
    rows: slice
    weights: Weights | None
    ess: float


def _half_of_draws(
    points: Float[np.ndarray, "c n d"], weights: Weights | None, rows: slice
) -> _HalfOfDraws:
    row_weights = None if weights is None else weights.select(rows)
    return _HalfOfDraws(
        points[:, rows], rows, row_weights, median_ess(points[:, rows], row_weights)
    )


def half_rows(num_draws: int, weights: Weights | None) -> tuple[slice, slice]:
    """Return the earlier and the later half of a chain.

    Of a nested-sampling run, whose order is that of the likelihood, these are every second draw and
    the others, each a run of half as many live points.
    """
    if weights is not None and weights.num_live is not None:
        return slice(0, None, 2), slice(1, None, 2)
    return slice(None, num_draws // 2), slice(num_draws // 2, None)


def equal_rows(
    rows: Float[np.ndarray, "c n k"], weights: Weights | None
) -> Float[np.ndarray, "m k"]:
    """Return the rows of all chains, repeated or left out as their weights say."""
    flat = rows.reshape(-1, rows.shape[-1])
    return flat if weights is None else flat[weights.repeated()]


def plain_bridge(halves: list[Half], *, symmetric: bool) -> EvidenceEstimate:
    """Return the average of the bridges of both halves, to the symmetrised density or to the
    density itself."""
    name = "warp-III" if symmetric else "fitted"
    estimate = average_halves([_solve(half, symmetric) for half in halves], halves)
    return estimate._replace(
        method=f"bridge ({name})", info=estimate.info | overlap_khats(halves, symmetric=symmetric)
    )


def controlled_bridge(
    halves: list[Half], scores: Float[np.ndarray, "c n d"], method: AbstractControlVariate
) -> EvidenceEstimate:
    """Return the average of the bridges of both halves, both means of each with control variates.

    Z = E_g[q h]/E_p[g h] holds for every h. With h of the plain bridge, fixed, these are two
    expectations of bounded functions, that over the posterior with `method` and that over standard
    normals with polynomials (`normal_mean`).

    Parameters
    ----------
    scores : ∇ log q at all the draws.
    """
    # The plain root serves as Z₀ of docs/mathematics.md section 3, "From the posterior alone": the
    # identity holds for every Z₀, so that its error enters to second order only.
    bridges = [
        _control(half, _solve(half, symmetric=False), scores[:, half.rows], method)
        for half in halves
    ]
    both = average_halves(bridges, halves)
    return both._replace(
        method="bridge (controlled)", info=both.info | overlap_khats(halves, symmetric=False)
    )


def _solve(half: Half, symmetric: bool) -> Bridge:
    ratio = half.mirrored if symmetric else half.log_ratio
    return solve_bridge(*half.split(ratio), half.ess, half.weights)


def _control(
    half: Half, bridge: Bridge, scores: Float[np.ndarray, "c n d"], method: AbstractControlVariate
) -> Bridge:
    """Return a bridge with its two means controlled; as it is, if one of them is not positive."""
    if not np.isfinite(bridge.value):
        return bridge
    at_draws, at_proposals = half.split(half.log_ratio)
    proposed, drawn = _terms(at_draws, at_proposals, half.ess, bridge.value)
    z, g = half.split(half.standard)
    trace = make_trace(z, pulled_scores(half, scores))._replace(weights=half.weights)
    estimate = estimate_expectations(
        Sample.of(trace, ("term",), drawn[..., None]), method, Options()
    )
    # Not by `method`: its error allows for autocorrelation and for tails that chains have not
    # visited, so that of independent proposals it refused gains in variance of a third.
    over_proposals = normal_mean(g, proposed)
    means = np.array([float(estimate.mean[0]), over_proposals.value])
    # f₁ and f₂ are positive, but a controlled mean need not be where the densities hardly overlap,
    # and it has no logarithm then.
    if not (means > 0).all():
        return bridge
    errors = np.array([float(estimate.mcse[0]), over_proposals.mcse]) / means
    errors[1] = np.hypot(errors[1], _unseen_error(at_proposals - bridge.value, bridge.share))
    return bridge._replace(
        # log Z = log Z₀ + log E_g[f₁] − log E_p[f₂]; the two sides share no draw, so that their
        # errors add in squares.
        value=bridge.value + float(np.log(means[1] / means[0])),
        mcse=float(np.hypot(*errors)),
        drawn_error=float(errors[0]),
        controls=(estimate.method[0], over_proposals.control),
    )


def pulled_scores(half: Half, scores: Float[np.ndarray, "c n d"]) -> Float[np.ndarray, "c n d"]:
    """Return the scores of the posterior at the draws of a half in the coordinates in which g is
    standard normal."""
    z, _ = half.split(half.standard)
    d = z.shape[-1]
    return half.warp.pull(z.reshape(-1, d), scores.reshape(-1, d)).reshape(z.shape)


def refuse_drift(
    estimate: EvidenceEstimate,
    points: Float[np.ndarray, "c n d"],
    names: tuple[str, ...],
    weights: Weights | None = None,
) -> EvidenceEstimate:
    """Return the estimate as not converged where chains, or their halves, disagree on a coordinate.

    Of weighted draws those that are nearly a sample of equal weights are tested, as one chain.
    """
    if weights is not None:
        points = points.reshape(1, -1, points.shape[-1])[:, weights.representative()]
    if points.shape[1] < LEAST_DRAWS:
        return estimate
    drifting = disagreeing(points, DRIFT_LEVEL)
    if not drifting.any():
        return estimate
    reason = (
        "the chains, or their halves, disagree on "
        f"{', '.join(names[i] for i in np.flatnonzero(drifting))}"
    )
    return estimate._replace(status=Status.NOT_CONVERGED, info=estimate.info | {"reason": reason})


def average_halves(bridges: list[Bridge], halves: list[Half]) -> EvidenceEstimate:
    """Average the two halves.

    They share no draw and no proposal, yet near a posterior that the fitted family contains their
    errors are not independent: to first order in the error of the fit, half A fitted and half B
    bridged err by s₁·T̄ₐᵀ(Var T)⁻¹T̄_b, T̄ the errors of the likelihood equations of the fit, for a
    normal its moments, and so do B fitted and A bridged. Its variance, s₁²·p/(ess_a·ess_b) with p
    fitted parameters, is the covariance, which is at most the product of the errors. Quadratic
    control variates remove what the moments err by. Others leave a part that is not known, so that
    the bound stands for all.
    """
    values, errors = np.array([b.value for b in bridges]), np.array([b.mcse for b in bridges])
    a, b = bridges
    # Mean z² of the average, whose error counts the covariance, is at most 1.5 at autocorrelations
    # up to 0.97 (docs/results, bridge_errors).
    num_fitted = float(np.mean([half.warp.num_fitted for half in halves]))
    covariance = min(
        a.share * b.share * num_fitted / (a.ess * b.ess), a.drawn_error * b.drawn_error
    )
    variance = (errors**2).sum() / 4 + covariance / 2
    fewest = min(b.participants for b in bridges)
    info: dict[str, Any] = {
        "halves": values.tolist(),
        "halves_mcse": errors.tolist(),
        "participants": fewest,
        "ess": [b.ess for b in bridges],
    }
    controlled = any(label != PlainMean().label for bridge in bridges for label in bridge.controls)
    if controlled:
        info["controls"] = [list(bridge.controls) for bridge in bridges]
    status = Status.CONTROLLED if controlled else Status.PLAIN
    if not fewest >= MIN_PARTICIPANTS:
        status = Status.NOT_CONVERGED
        info["reason"] = f"{fewest:.3g} effective draws lie where proposal and posterior overlap"
    return EvidenceEstimate("bridge", float(values.mean()), float(np.sqrt(variance)), status, info)


def check_draws(
    where: str, draws: object, names: tuple[str, ...] | None
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return finite draws (c, n, d) and their labels."""
    points = as_float64(where, "draws", draws, "chain, draw, d")
    if 0 in points.shape:
        raise InputError(
            where, "at least one chain, draw and parameter", points.shape, "Sample first."
        )
    labels = as_labels(where, names, points.shape[-1])
    if not np.isfinite(points).all():
        raise not_finite(where, ~np.isfinite(points), labels)
    return points, labels


def too_few(points: Float[np.ndarray, "c n d"], weights: Weights | None = None) -> bool:
    """Return whether a half has fewer than four draws of a chain or d + 2 distinct states, or
    weights worth fewer."""
    n, d = points.shape[1:]
    if n < LEAST_DRAWS:
        return True
    for rows in half_rows(n, weights):
        row_weights = None if weights is None else weights.select(rows)
        # d + 1 states span a covariance of full rank at best; one more leaves something to bridge.
        if len(np.unique(equal_rows(points[:, rows], row_weights), axis=0)) < d + 2 or (
            row_weights is not None and row_weights.ess < d + 2
        ):
            return True
    return False


def check_inside(values: Float[np.ndarray, " n"]) -> None:
    """Refuse draws at which the log density is −∞."""
    outside = np.isinf(values).sum()
    if outside:
        raise InputError(
            WHERE,
            "a finite log density at every draw",
            f"−∞ at {outside} of {len(values)}",
            "The draws are of another density or another space; draws are unconstrained.",
        )


def median_ess(draws: Float[np.ndarray, "c n d"], weights: Weights | None = None) -> float:
    """Return the median over coordinates of the effective sample size, between one and Kish's of
    the weights."""
    if weights is None:
        # At least one: the logarithm of the size is the shift between both sides of the bridge.
        return float(max(np.median(effective_size(draws, draws.std(axis=(0, 1), ddof=1))), 1.0))
    sizes = variance_over_draws(draws, weights) / mcse_mean(draws, weights) ** 2
    return float(max(min(np.median(sizes), weights.ess), 1.0))


def overlap_khats(halves: list[Half], *, symmetric: bool) -> dict[str, float]:
    """Return the Pareto k̂ of both sides of a bridge, the larger of the two halves.

    ``khat_proposals`` is that of q/g at the proposals, the weights of importance sampling without
    any draws, and ``khat_draws`` that of g/q at the draws, the terms of the reciprocal estimate
    without any proposals. Above 0.7 that estimate would fail, as where the posterior, or the fitted
    density, has the longer tail. A bridge can still be good: its terms are bounded, and each side
    covers the tails of the other. Where both are above, neither does. Vehtari et al. (2024, Journal
    of Machine Learning Research 25, 72).
    """
    khats: dict[str, list[float]] = {"khat_proposals": [], "khat_draws": []}
    for half in halves:
        ratio = half.mirrored if symmetric else half.log_ratio
        drawn, proposed = half.split(ratio)
        # Draws of weight zero have the log weight −∞, which `weights_khat` counts as nothing.
        with np.errstate(divide="ignore"):
            weights = 0.0 if half.weights is None else np.log(half.weights.values)
        khats["khat_proposals"].append(weights_khat(proposed))
        khats["khat_draws"].append(weights_khat(weights - drawn))
    return {side: max(values) for side, values in khats.items()}


def _terms(
    at_draws: np.ndarray, at_proposals: np.ndarray, ess: float, log_z: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return f₁ = p/(s₁p + s₂g) at the proposals and f₂ = g/(s₁p + s₂g) at the draws; see
    `solve_bridge`."""
    # As logistic functions of the log ratio neither term overflows: f₁ ≤ 1/s₁ and f₂ ≤ 1/s₂.
    share, shift = ess / (ess + len(at_proposals)), np.log(ess / len(at_proposals))
    return expit(at_proposals + shift - log_z) / share, expit(log_z - shift - at_draws) / (
        1.0 - share
    )


def solve_bridge(
    at_draws: Float[np.ndarray, "c n"],
    at_proposals: Float[np.ndarray, " m"],
    ess: float,
    weights: Weights | None = None,
) -> Bridge:
    """Solve Meng and Wong's fixed point for log Z, and its relative error.

    E_g[f₁] = E_p[f₂] with f₁ = p/(s₁p + s₂g), f₂ = g/(s₁p + s₂g), s₁ : s₂ = ess : m. The left side
    falls and the right one grows with Z, so the root is found by bracketing. Var log Z ≈ Var f₁/(m
    E²f₁) + mcse²(f₂)/E²f₂. The identity holds for every s₁ and every Z in f₁ and f₂, so that
    neither adds to the error.

    Parameters
    ----------
    at_draws, at_proposals : log q − log g. −∞ at a proposal weighs nothing.
    weights : of the draws; E_p is then the weighted mean, with its error.
    """
    # Meng and Wong's optimal shares are for independent draws; effective draws stand in for them.
    # Any share is valid, so that a poor estimate of the size costs variance and no bias.
    share = ess / (ess + len(at_proposals))
    finite = at_proposals[np.isfinite(at_proposals)]
    if not len(finite):
        return Bridge(np.nan, np.nan, np.nan, share, 0.0, ess)

    def gap(log_z: float) -> float:
        proposed, drawn = _terms(at_draws, at_proposals, ess, log_z)
        return _mean(drawn, weights) - float(proposed.mean())

    # log Z lies among the log ratios, up to the shift of the shares; 50 nats beyond, the smaller
    # term has vanished to e⁻⁵⁰ and the sign of the gap is certain. −∞ at a proposal would make the
    # bracket infinite.
    reach = abs(np.log(ess / len(at_proposals))) + 50.0
    low, high = min(at_draws.min(), finite.min()) - reach, max(at_draws.max(), finite.max()) + reach
    value = brentq(gap, low, high, xtol=1e-12, rtol=4 * np.finfo(float).eps)
    proposed, drawn = _terms(at_draws, at_proposals, ess, value)
    # Both sides underflow where the densities are hundreds of nats apart: there is no root to speak
    # of.
    if not (proposed.any() and drawn.any()):
        return Bridge(np.nan, np.nan, np.nan, share, 0.0, ess)
    # By the identity at this Z: what the search leaves would be 1e-13 beside an exact bridge.
    value += np.log(proposed.mean() / _mean(drawn, weights))
    proposed_error = np.hypot(
        proposed.std() / (np.sqrt(len(proposed)) * proposed.mean()),
        _unseen_error(at_proposals - value, share),
    )
    drawn_error = float(mcse_mean(drawn[..., None], weights)[0]) / _mean(drawn, weights)
    shares = np.ones(drawn.shape) if weights is None else weights.values
    # Kish's number takes draws for independent; those of a chain count for ess in place of their
    # number.
    participants = min(_kish(proposed), _kish(shares * drawn) * min(ess / _kish(shares), 1.0))
    return Bridge(
        float(value),
        float(np.hypot(proposed_error, drawn_error)),
        drawn_error,
        share,
        participants,
        ess,
    )


FARTHEST = 1e3
"""Lengths of a tail to which it is extrapolated at most: that of rounding errors has no end."""


def _unseen_error(log_ratio: Float[np.ndarray, " m"], share: float) -> float:
    """Return the relative standard error of E_g[f₁] that is due to ratios w = p/g larger than any
    that a proposal has met, up to 1/s₁, which bounds f₁.

    Beyond the largest w_m a generalised Pareto tail, from a threshold u, has P(w > u + t(w_m − u))
    = t^(−1/k̂)/m, and the variance of the mean is ∫(w − 1)² dP/m. With many proposals for each draw
    these terms are as rare as large, and where none was met the others do not show them.
    """
    m, most = len(log_ratio), 1.0 / share
    khat = min(weights_khat(log_ratio), 1.0)
    tail = np.exp(np.partition(log_ratio, -tail_draws(m))[-tail_draws(m) :])
    start, length = tail.min() - 1.0, np.ptp(tail)
    if not (khat > 0 and length > 0 and tail.max() < most):
        return 0.0
    end = np.log(min((most - tail.min()) / length, FARTHEST))
    powers = np.arange(3) - 1.0 / khat
    integrals = np.where(powers == 0, end, np.expm1(powers * end) / np.where(powers, powers, 1.0))
    variance = (start**2, 2 * start * length, length**2) @ integrals / khat
    return float(np.sqrt(max(variance, 0.0)) / m)


def _mean(series: Float[np.ndarray, "c n"], weights: Weights | None) -> float:
    return float(mean_over_draws(series[..., None], weights)[0])


def _kish(weights: np.ndarray) -> float:
    return float(weights.sum() ** 2 / (weights**2).sum())
