"""Importance sampling from the Laplace approximation: log evidence in a few dimensions, independent of the draws."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize
from scipy.special import gammaln

from mcmcpost._core.arguments import check_count, check_function, check_key
from mcmcpost._core.errors import InputError
from mcmcpost._core.status import Status
from mcmcpost.evidence.bridge import MAX_PROPOSALS, check_draws, log_densities
from mcmcpost.evidence.ladders.ladder import EvidenceEstimate
from mcmcpost.evidence.normal import Normal

FREEDOM = 5.0

SCALES = np.array([1.0, 3.0])

SHARES = np.array([0.9, 0.1])
"""Nine tenths of the proposals have the scale of the Laplace approximation. The rest are three times wider, for tails
that the curvature at the mode does not show."""

MIN_ESS = 100.0

METHOD = "importance sampling (Laplace)"


def laplace_importance(
    draws: object,
    logdensity_fn: Callable[[Array], Array],
    *,
    key: jax.Array,
    names: tuple[str, ...] | None = None,
    num_proposals: int = 20_000,
) -> EvidenceEstimate:
    """Estimate log ∫q by importance sampling from Student t proposals at the mode of q.

    L-BFGS finds the mode from the draw of highest density; the proposals have five degrees of freedom, the
    inverse of −∇²log q as scale, and a tenth of them three times that. It needs one mode and at most
    about twenty dimensions.

    Parameters
    ----------
    draws : (c, n, d) draws on the unconstrained space; they only start the search.
    logdensity_fn : (d,) → log q, twice differentiable in JAX, log-Jacobian included.
    names : d labels for error messages.
    num_proposals : of independent draws.

    Returns
    -------
    EvidenceEstimate : status ``plain``, or ``not_converged`` where no mode with a negative definite Hessian is found
        (NaN) or the weights collapse to an effective sample size below a hundred. `info` has the mode, the
        ``laplace`` approximation itself, the effective sample size and the largest weight.

    Source: Geweke (1989, Econometrica 57); Hesterberg (1995, doi:10.1080/00401706.1995.10484303) for the mixture.
    """
    where = "laplace_importance"
    check_key(where, key)
    points, _ = check_draws(where, draws, names)
    check_count(where, "num_proposals", num_proposals, "Use 20,000.", least=2, most=MAX_PROPOSALS)
    check_function(where, "logdensity_fn", logdensity_fn, 1, "Its argument is one unconstrained draw (d,).")
    flat = points.reshape(-1, points.shape[-1])
    at_draws = log_densities(where, logdensity_fn, flat)
    if not np.isfinite(at_draws).any():
        raise InputError(where, "a draw of finite log density", "−∞ at all", "Draws are unconstrained.")
    mode = _climb(logdensity_fn, flat[np.argmax(at_draws)])
    hessian = np.asarray(jax.jit(jax.hessian(logdensity_fn))(jnp.asarray(mode)))
    try:
        upper = np.linalg.cholesky(-(hessian + hessian.T)[::-1, ::-1] / 2)[::-1, ::-1]
    except np.linalg.LinAlgError:
        reason = "the Hessian at the mode is not negative definite"
        return EvidenceEstimate(METHOD, np.nan, np.nan, Status.NOT_CONVERGED, {"mode": mode.tolist(), "reason": reason})
    # −H = U Uᵀ with U upper triangular, so that its inverse transpose is lower triangular, as `Normal` has it.
    laplace = Normal(mode, np.linalg.inv(upper).T)

    standard, log_proposal = _student_mixture(key, num_proposals, laplace)
    log_weights = log_densities(where, logdensity_fn, laplace.restore(standard)) - log_proposal
    top = log_weights.max()
    weights = np.exp(log_weights - top)
    mean = weights.mean()
    ess = weights.sum() ** 2 / (weights**2).sum()
    at_mode = log_densities(where, logdensity_fn, mode[None])[0]
    info = {
        "mode": mode.tolist(),
        "laplace": float(at_mode - laplace.log_density(np.zeros((1, len(mode))))[0]),
        "num_proposals": num_proposals,
        "ess": float(ess),
        "largest_weight": float(weights.max() / weights.sum()),
    }
    status = Status.PLAIN
    if ess < MIN_ESS:
        status = Status.NOT_CONVERGED
        info["reason"] = f"the weights collapse to {ess:.3g} effective proposals"
    error = weights.std(ddof=1) / (np.sqrt(num_proposals) * mean)
    return EvidenceEstimate(METHOD, float(np.log(mean) + top), float(error), status, info)


def _climb(logdensity_fn: Callable[[Array], Array], start: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
    """Return the mode that L-BFGS reaches from `start`, or the best point before it leaves the support."""
    slope = jax.jit(jax.value_and_grad(lambda x: -logdensity_fn(x)))

    def downhill(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = (np.asarray(a, float) for a in slope(jnp.asarray(x)))
        usable = np.isfinite(value) and np.isfinite(gradient).all()
        return (float(value), gradient) if usable else (1e300, np.zeros_like(x))

    return minimize(downhill, start, jac=True, method="L-BFGS-B", options={"maxiter": 1_000, "gtol": 1e-8}).x


def _student_mixture(
    key: jax.Array, number: int, normal: Normal
) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
    """Return standardised proposals of the mixture of two Student t and their log density on the original space."""
    d = len(normal.mean)
    of_direction, of_radius, of_part = jax.random.split(key, 3)
    radius = np.sqrt(FREEDOM / np.asarray(jax.random.chisquare(of_radius, FREEDOM, (number,), float)))
    part = np.asarray(jax.random.bernoulli(of_part, SHARES[1], (number,))).astype(int)
    z = np.asarray(jax.random.normal(of_direction, (number, d), float)) * (radius * SCALES[part])[:, None]
    constant = gammaln((FREEDOM + d) / 2) - gammaln(FREEDOM / 2) - 0.5 * d * np.log(FREEDOM * np.pi)
    constant -= np.log(np.diagonal(normal.lower)).sum()
    square = (z**2).sum(axis=1)
    parts = [
        np.log(share) - d * np.log(scale) - 0.5 * (FREEDOM + d) * np.log1p(square / (FREEDOM * scale**2))
        for share, scale in zip(SHARES, SCALES, strict=True)
    ]
    return z, constant + np.logaddexp(*parts)
