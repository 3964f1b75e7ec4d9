"""Bridge sampling: the log evidence from posterior draws and a fitted proposal, plain and with control variates."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import solve_triangular
from scipy.optimize import brentq
from scipy.special import expit

from mcmcpost._core.arguments import as_float64, as_labels, check_count, check_flags, check_function, check_key
from mcmcpost._core.devices import map_rows
from mcmcpost._core.errors import InputError
from mcmcpost._core.mcse import mcse_mean
from mcmcpost._core.status import Status
from mcmcpost.evidence.ladder import EvidenceEstimate, make_ladder
from mcmcpost.evidence.pooled import PooledPath, path_error, pooled_path
from mcmcpost.scores import batch_scores, check_scalar, disagreeing, effective_size

BATCH_SIZE = 1024
"""Points at which the log density is evaluated together."""


class Normal(NamedTuple):
    """N(mean, lower lowerᵀ) on the unconstrained space.

    mean : (d,). lower : (d, d), lower triangular.
    """

    mean: Float[np.ndarray, " d"]
    lower: Float[np.ndarray, "d d"]

    def standardise(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return z = lower⁻¹(x − mean)."""
        return solve_triangular(self.lower, (points - self.mean).T, lower=True).T

    def restore(self, standard: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return x = mean + lower z."""
        return self.mean + standard @ self.lower.T

    def log_density(self, standard: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Return log N(x) at x = mean + lower z."""
        constant = 0.5 * len(self.mean) * np.log(2 * np.pi) + np.log(np.diagonal(self.lower)).sum()
        return -0.5 * (standard**2).sum(axis=1) - constant


def fit_normal(where: str, points: Float[np.ndarray, "n d"], names: tuple[str, ...]) -> Normal:
    """Return the normal with the mean and covariance of the points.

    Raises
    ------
    ValueError : a coordinate is constant or a combination of those before it; the message names it.
    """
    mean, spread = points.mean(axis=0), points.std(axis=0, ddof=1)
    floor = 1e3 * np.finfo(float).eps
    flat = np.flatnonzero(spread <= floor * np.abs(points).max(axis=0))
    cure = "Keep it out of the draws, or fix it in the log density."
    if len(flat):
        text = f"the constant {', '.join(names[i] for i in flat)}"
        raise InputError(where, "coordinates that vary", text, cure)
    correlation = np.atleast_2d(np.corrcoef(points.T))
    lower = np.zeros_like(correlation)
    for i in range(len(mean)):
        lower[i, :i] = solve_triangular(lower[:i, :i], correlation[:i, i], lower=True) if i else 0.0
        rest = correlation[i, i] - (lower[i, :i] ** 2).sum()
        if rest <= floor * len(mean):
            text = f"{names[i]}, a linear combination of {', '.join(names[:i])}"
            raise InputError(where, "draws of a density, with a covariance of full rank", text, cure)
        lower[i, i] = np.sqrt(rest)
    return Normal(mean, spread[:, None] * lower)


def log_densities(
    where: str, logdensity_fn: Callable[[Array], Array], points: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, " n"]:
    """Return the log density at every point; all calls share one compiled program.

    Raises
    ------
    ValueError : it is not a scalar, or NaN or +∞ somewhere. −∞, outside the support, is kept.
    """
    check_scalar(where, logdensity_fn, points.shape[-1])
    values = map_rows(logdensity_fn, points, batch_size=BATCH_SIZE, full_blocks=True).astype(float)
    bad = np.isnan(values) | (values == np.inf)
    if bad.any():
        raise InputError(
            where,
            "a log density that is finite, or −∞ outside the support",
            f"NaN or +∞ at {bad.sum()} of {len(points)} points, first {points[np.argmax(bad)].tolist()}",
            "Return −∞ where the density is zero; a failed solver is not zero density by itself.",
        )
    return values


MIN_PARTICIPANTS = 10.0
"""With fewer effective draws in the overlap of posterior and proposal, the estimate is not to be used."""

DRIFT_LEVEL = 1e-4
"""Level of the test that the chains and their halves agree, as in the score gate."""

WHERE = "bridge_sampling"

MAX_PROPOSALS = 10_000_000


class Bridge(NamedTuple):
    """One solved bridge.

    value, mcse : log Z and its standard error.
    drawn_error : the part of `mcse` that is due to the draws.
    share : s₁ = ess/(ess + proposals).
    participants : effective number of draws, or of proposals if smaller, in the overlap.
    ess : median effective sample size of the draws over the coordinates.
    """

    value: float
    mcse: float
    drawn_error: float
    share: float
    participants: float
    ess: float


def bridge_sampling(
    draws: object,
    logdensity_fn: Callable[[Array], Array],
    *,
    key: jax.Array,
    names: tuple[str, ...] | None = None,
    symmetric: bool = True,
    num_proposals: int | None = None,
) -> EvidenceEstimate:
    """Estimate log Z = log ∫q with the optimal bridge between posterior draws and a normal fitted to other draws.

    Z = E_g[q h]/E_p[g h] with h = 1/(s₁q + s₂Zg), p = q/Z the posterior and g the proposal. The first half of each
    chain fits the proposal and the second half is bridged; then the halves are exchanged and both results averaged.
    The shares s are those of the effective sample sizes, and the error includes autocorrelation.

    Parameters
    ----------
    draws : (c, n, d) posterior draws on the unconstrained space.
    logdensity_fn : (d,) → log q, log-Jacobian included. Constants that it leaves out are left out of the evidence.
    names : d labels for error messages.
    symmetric : bridge to the density averaged over x and its mirror image 2μ − x, which has no skewness (warp-III);
        twice the evaluations. Otherwise the density itself.
    num_proposals : for each half; by default as many as draws in it.

    Returns
    -------
    EvidenceEstimate : status ``plain``; ``too_few_draws`` (NaN) with fewer than d + 2 distinct states or four draws of
        a chain in a half; ``not_converged`` where proposal and posterior hardly overlap or the halves disagree.

    Raises
    ------
    ValueError : the density is not finite at a draw, NaN at a proposal, or a coordinate is constant.

    Source: Meng and Wong (1996, Statistica Sinica 6), Meng and Schilling (2002, doi:10.1198/106186002457) for the
    warp, Frühwirth-Schnatter (2004, doi:10.1111/j.1368-423X.2004.00125.x) for the error, Gronau et al. (2017,
    doi:10.1016/j.jmp.2017.09.005) for the whole.
    """
    method = f"bridge ({'warp-III' if symmetric else 'normal'})"
    points, labels = check_draws(WHERE, draws, names, key)
    check_function(WHERE, "logdensity_fn", logdensity_fn, 1, "Its argument is one unconstrained draw (d,).")
    check_count(WHERE, "num_proposals", num_proposals, "Leave it out.", most=MAX_PROPOSALS, optional=True)
    check_flags(WHERE, symmetric=symmetric)
    if too_few(points):
        return EvidenceEstimate(method, np.nan, np.nan, Status.TOO_FEW_DRAWS, {"num_draws": points[..., 0].size})
    density = partial(log_densities, WHERE, logdensity_fn)
    estimate = cross_bridges(density, points, labels, key, symmetric, num_proposals)
    return refuse_drift(estimate._replace(method=method), points, labels)


def cross_bridges(
    density: Callable[[np.ndarray], np.ndarray],
    points: Float[np.ndarray, "c n d"],
    names: tuple[str, ...],
    key: jax.Array,
    symmetric: bool = True,
    num_proposals: int | None = None,
) -> EvidenceEstimate:
    """Bridge each half of the chains by a fit to the other; `density` is (n, d) → (n,) log q."""
    d = points.shape[-1]
    found = [
        _bridge_half(density, fit_normal(WHERE, fit.reshape(-1, d), names), use, symmetric, num_proposals, k)
        for (fit, use), k in zip(split_halves(points), jax.random.split(key), strict=True)
    ]
    return combine(found, d * (d + 1) // 2 + (0 if symmetric else d))


def refuse_drift(
    estimate: EvidenceEstimate, points: Float[np.ndarray, "c n d"], names: tuple[str, ...]
) -> EvidenceEstimate:
    """Return the estimate as not converged where chains, or their halves, disagree on a coordinate."""
    apart = disagreeing(points, DRIFT_LEVEL)
    if not apart.any():
        return estimate
    reason = f"the chains, or their halves, disagree on {', '.join(names[i] for i in np.flatnonzero(apart))}"
    return estimate._replace(status=Status.NOT_CONVERGED, info=estimate.info | {"reason": reason})


def combine(found: list[Bridge], num_fitted: int) -> EvidenceEstimate:
    """Average the two halves.

    They share no draw and no proposal, yet near a normal posterior their errors are not independent: to first order in
    the error of the fit, half A fitted and half B bridged err by s₁·T̄ₐᵀ(Var T)⁻¹T̄_b, T̄ the errors of the fitted
    moments, and so do B fitted and A bridged. Its variance, s₁²·num_fitted/(ess_a·ess_b), is the covariance.
    """
    values, errors = np.array([b.value for b in found]), np.array([b.mcse for b in found])
    a, b = found
    covariance = min(a.share * b.share * num_fitted / (a.ess * b.ess), a.drawn_error * b.drawn_error)
    variance = (errors**2).sum() / 4 + covariance / 2
    fewest = min(b.participants for b in found)
    info: dict[str, Any] = {
        "values": values.tolist(),
        "mcses": errors.tolist(),
        "participants": fewest,
        "ess": [b.ess for b in found],
    }
    status = Status.PLAIN
    if not fewest >= MIN_PARTICIPANTS:
        status = Status.NOT_CONVERGED
        info["reason"] = f"{fewest:.3g} effective draws lie where proposal and posterior overlap"
    return EvidenceEstimate("bridge", float(values.mean()), float(np.sqrt(variance)), status, info)


def check_draws(
    where: str, draws: object, names: tuple[str, ...] | None, key: object
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return finite draws (c, n, d) and their labels."""
    check_key(where, key)
    points = as_float64(where, "draws", draws, "chain, draw, d")
    if 0 in points.shape:
        raise InputError(where, "at least one chain, draw and parameter", points.shape, "Sample first.")
    bad = ~np.isfinite(points).all(axis=-1)
    if bad.any():
        raise InputError(where, "finite draws", f"{bad.sum()} with NaN or infinity", "Remove them.")
    return points, as_labels(where, names, points.shape[-1])


def split_halves(points: Float[np.ndarray, "c n d"]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (draws to fit, draws to bridge), first with the earlier half of each chain fitted, then with the later."""
    half = points.shape[1] // 2
    return [(points[:, :half], points[:, half:]), (points[:, half:], points[:, :half])]


def too_few(points: Float[np.ndarray, "c n d"]) -> bool:
    """Return whether a half has fewer than four draws of a chain or d + 2 distinct states."""
    d = points.shape[-1]
    return points.shape[1] < 8 or any(
        len(np.unique(part.reshape(-1, d), axis=0)) < d + 2 for part, _ in split_halves(points)
    )


def _bridge_half(
    density: Callable[[np.ndarray], np.ndarray],
    normal: Normal,
    use: Float[np.ndarray, "c n d"],
    symmetric: bool,
    num_proposals: int | None,
    key: jax.Array,
) -> Bridge:
    c, n, d = use.shape
    number = num_proposals or c * n
    drawn = normal.standardise(use.reshape(-1, d))
    standard = np.concatenate([drawn, np.asarray(jax.random.normal(key, (number, d), float))])
    points = normal.restore(np.concatenate([standard, -standard]) if symmetric else standard)
    points[: c * n] = use.reshape(-1, d)  # not back and forth: a draw at the edge of the support stays inside
    values = density(points)
    check_inside(values[: c * n])
    log_ratio = values[: len(standard)]
    if symmetric:
        log_ratio = np.logaddexp(log_ratio, values[len(standard) :]) - np.log(2.0)
    log_ratio = log_ratio - normal.log_density(standard)
    return solve_bridge(log_ratio[: c * n].reshape(c, n), log_ratio[c * n :], median_ess(use))


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


def median_ess(draws: Float[np.ndarray, "c n d"]) -> float:
    """Return the median over coordinates of the effective sample size, at least one."""
    return float(max(np.median(effective_size(draws, draws.std(axis=(0, 1), ddof=1))), 1.0))


def solve_bridge(at_draws: Float[np.ndarray, "c n"], at_proposals: Float[np.ndarray, " m"], ess: float) -> Bridge:
    """Solve Meng and Wong's fixed point for log Z, and its relative error.

    E_g[f₁] = E_p[f₂] with f₁ = p/(s₁p + s₂g), f₂ = g/(s₁p + s₂g), s₁ : s₂ = ess : m. The left side falls and the right
    one grows with Z, so the root is found by bracketing. Var log Z ≈ Var f₁/(m E²f₁) + mcse²(f₂)/E²f₂.

    Parameters
    ----------
    at_draws, at_proposals : log q − log g. −∞ at a proposal weighs nothing.
    """
    share = ess / (ess + len(at_proposals))
    shift = np.log(ess / len(at_proposals))
    finite = at_proposals[np.isfinite(at_proposals)]
    if not len(finite):
        return Bridge(np.nan, np.nan, np.nan, share, 0.0, ess)

    def terms(log_z: float) -> tuple[np.ndarray, np.ndarray]:
        proposed, drawn = expit(at_proposals + shift - log_z), expit(log_z - shift - at_draws)
        return proposed / share, drawn / (1.0 - share)

    def gap(log_z: float) -> float:
        proposed, drawn = terms(log_z)
        return float(drawn.mean() - proposed.mean())

    reach = abs(shift) + 50.0
    low, high = min(at_draws.min(), finite.min()) - reach, max(at_draws.max(), finite.max()) + reach
    value = brentq(gap, low, high, xtol=1e-12, rtol=4 * np.finfo(float).eps)
    proposed, drawn = terms(value)
    if not (proposed.any() and drawn.any()):
        return Bridge(np.nan, np.nan, np.nan, share, 0.0, ess)
    proposed_error = proposed.std() / (np.sqrt(len(proposed)) * proposed.mean())
    drawn_error = float(mcse_mean(drawn) / drawn.mean())
    participants = min(_kish(proposed), _kish(drawn) * ess / drawn.size)
    return Bridge(float(value), float(np.hypot(proposed_error, drawn_error)), drawn_error, share, participants, ess)


def _kish(weights: np.ndarray) -> float:
    return float(weights.sum() ** 2 / (weights**2).sum())


NUM_NODES = 10

QUADRATIC = 2
"""Degree from which the control variate removes the errors of the fitted moments, which both halves share."""


def controlled_bridge(
    draws: object,
    logdensity_fn: Callable[[Array], Array],
    *,
    key: jax.Array,
    names: tuple[str, ...] | None = None,
    degree: int | None = None,
) -> EvidenceEstimate:
    """Estimate log Z = ∫₀¹ E_t[log q − log g] dt, E_t under g^(1−t)q^t/Z_t, with zero-variance control variates.

    g is the normal fitted to one half of each chain. As many draws of g and the draws of the other half are the two
    rungs of a ladder on which log q − log g is the log likelihood. The ladder is pooled (docs/mathematics.md section
    3): every draw serves every t, at which its score is known. Where the posterior is near the normal, log q − log g is
    nearly a polynomial, whose expectation Stein features reproduce.

    Parameters
    ----------
    draws, logdensity_fn, key, names : as in `bridge_sampling`.
    degree : of the zero-variance control variate; by default the best by its honest error, up to three.

    Returns
    -------
    EvidenceEstimate : status ``controlled``; ``plain`` where no degree gained; ``too_few_draws``, ``not_converged``.
        The distance to twice the quadrature nodes is part of the error.
    """
    points, labels = check_draws(WHERE, draws, names, key)
    check_function(WHERE, "logdensity_fn", logdensity_fn, 1, "Its argument is one unconstrained draw (d,).")
    check_count(WHERE, "degree", degree, "Leave it out.", most=10, optional=True)
    if too_few(points):
        info = {"num_draws": points[..., 0].size}
        return EvidenceEstimate(_label(degree), np.nan, np.nan, Status.TOO_FEW_DRAWS, info)
    d = points.shape[-1]
    found = [
        _path_half(logdensity_fn, fit_normal(WHERE, fit.reshape(-1, d), labels), use, degree, k)
        for (fit, use), k in zip(split_halves(points), jax.random.split(key), strict=True)
    ]
    return refuse_drift(_combine(found), points, labels)


def _path_half(
    logdensity_fn: Callable[[Array], Array],
    normal: Normal,
    use: Float[np.ndarray, "c n d"],
    degree: int | None,
    key: jax.Array,
) -> PooledPath:
    """Return the pooled path of one half; log q − log g is shifted to keep its digits."""
    c, n, d = use.shape
    density = partial(log_densities, WHERE, logdensity_fn)
    proposed = normal.restore(np.asarray(jax.random.normal(key, (c * n, d), float)))
    both = np.stack([proposed.reshape(use.shape), use], axis=2)
    standard = normal.standardise(both.reshape(-1, d))
    values = density(both.reshape(-1, d)).reshape(c, n, 2)
    check_inside(values[..., 1].reshape(-1))
    log_ratio = values - normal.log_density(standard).reshape(c, n, 2)
    shift = float(np.median(log_ratio[..., 1]))
    slope = batch_scores(logdensity_fn, both.reshape(1, -1, d)).reshape(both.shape)
    base = np.linalg.solve(normal.lower.T, -standard.T).T.reshape(both.shape)
    ladder = make_ladder([0.0, 1.0], both, log_ratio - shift, slope - base, base)
    path = pooled_path(ladder, degree=degree, num_nodes=NUM_NODES)
    if degree:
        # A degree that was asked for was not chosen by its error, so what it changed is no part of that.
        path = path._replace(mcse=path_error(ladder, path.fit, degree))
    return path._replace(value=path.value + shift)


def _combine(found: list[PooledPath]) -> EvidenceEstimate:
    values = np.array([path.value for path in found])
    errors = np.array([np.hypot(path.mcse, path.discretisation_error) for path in found])
    degrees = [path.degree for path in found]
    # Without the quadratic the halves share the errors of their fitted moments, see `bridge_sampling`.
    together = np.linalg.norm(errors) if min(degrees) >= QUADRATIC else errors.sum()
    reasons = [path.reason for path in found if path.reason]
    info = {
        "values": values.tolist(),
        "mcses": errors.tolist(),
        "controls": [path.method for path in found],
        "discretisation_error": max(path.discretisation_error for path in found),
        "smallest_ess": min(path.info["smallest_ess"] for path in found),
    }
    status = Status.CONTROLLED if max(degrees) else Status.PLAIN
    if reasons:
        status, info["reason"] = Status.NOT_CONVERGED, reasons[0]
    method = _label(max(degrees))
    return EvidenceEstimate(method, float(values.mean()), float(together / len(found)), status, info)


def _label(degree: int | None) -> str:
    return "bridge (controlled path)" if degree is None else f"bridge (controlled path, degree {degree})"
