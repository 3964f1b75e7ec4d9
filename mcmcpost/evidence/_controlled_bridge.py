"""A bridge with control variates: the path of two rungs from a fitted normal to the posterior, pooled."""

from collections.abc import Callable
from functools import partial

import jax
import numpy as np
from jaxtyping import Array, Float

from mcmcpost._types import Status
from mcmcpost.evidence._bridge import WHERE, check_draws, check_inside, refuse_drift, split_halves, too_few
from mcmcpost.evidence._ladder import make_ladder
from mcmcpost.evidence._path import PooledPath, path_error, pooled_path
from mcmcpost.evidence._proposal import Normal, evaluate, fit_normal
from mcmcpost.evidence._record import EvidenceEstimate
from mcmcpost.scores import batch_scores
from mcmcpost.stein import num_polynomial_features

NUM_NODES = 10
QUADRATIC = 2
"""From this degree on the control variate removes the errors of the fitted moments, which the halves share."""


def controlled_bridge(
    draws: object,
    logdensity_fn: Callable[[Array], Array],
    *,
    key: jax.Array,
    names: tuple[str, ...] | None = None,
    degree: int | None = None,
    crossover: bool = True,
) -> EvidenceEstimate:
    """Estimate log Z = ∫₀¹ E_t[log q − log g] dt, E_t under g^(1−t)q^t/Z_t, with zero-variance control variates.

    g is the normal fitted to one half of each chain. As many draws of g and the draws of the other half are the two
    rungs of a ladder on which log q − log g is the log likelihood. Pooled (MATH.md section 3) they are the bridge in
    the middle of which every draw serves every t, and scores are known all along. Where the posterior is near the
    normal log q − log g is nearly a polynomial, whose expectation Stein features reproduce.

    Parameters
    ----------
    draws, logdensity_fn, key, names, crossover : as in `bridge_sampling`.
    degree : of the zero-variance control variate; by default the best by its honest error, up to three.

    Returns
    -------
    EvidenceEstimate : status ``controlled``; ``plain`` where no degree gained; ``too_few_draws``, ``not_converged``.
        The distance to twice the quadrature nodes is part of the error.
    """
    points, labels = check_draws(WHERE, draws, names)
    if too_few(points):
        info = {"num_draws": points[..., 0].size}
        return EvidenceEstimate(_label(degree), np.nan, np.nan, Status.TOO_FEW_DRAWS, info)
    d = points.shape[-1]
    pairs = split_halves(points)[: 2 if crossover else 1]
    found = [
        _path_half(logdensity_fn, fit_normal(WHERE, fit.reshape(-1, d), labels), use, degree, k)
        for (fit, use), k in zip(pairs, jax.random.split(key, len(pairs)), strict=True)
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
    density = partial(evaluate, WHERE, logdensity_fn)
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
        features = num_polynomial_features(d, degree)
        path = path._replace(mcse=path_error(ladder, path.fit, degree, features, path.info["smallest_ess"]))
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
