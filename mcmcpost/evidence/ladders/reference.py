"""Ladders from a normal fitted to earlier draws, instead of from the prior: the target, and where its rungs belong."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost._core.devices import map_rows
from mcmcpost._core.errors import InputError
from mcmcpost.evidence.bridge import solve_bridge
from mcmcpost.evidence.ladders.barrier import path_barrier
from mcmcpost.evidence.ladders.ladder import REFERENCE_POWER, TemperedTarget
from mcmcpost.evidence.normal import Normal

NUM_PLACING = 1_000
"""Draws of the trace, and as many of the reference, from which the barrier is estimated to place the rungs."""


def reference_target(target: TemperedTarget, normal: Normal) -> TemperedTarget:
    """Return the target whose path goes from the normal q at t = 0 to the posterior p(y|x)p(x) at t = 1.

    Its prior is q, normalised exactly and drawn exactly, and its log likelihood is log p(y|x) + log p(x) − log q(x), so
    that p_t ∝ q^(1−t)(p(y|x)p(x))^t and log p(y) is the integral of the mean of that along the path. The prior of
    `target` is not sampled.
    """
    mean, lower = normal  # NumPy's: as JAX arrays they would lose digits outside of 64 bits
    inverse = np.linalg.inv(lower)
    constant = float(normal.log_density(np.zeros((1, len(mean))))[0])

    def log_reference(draw: Array) -> Array:
        standard = jnp.matmul(inverse, draw - mean)
        return constant - 0.5 * standard @ standard

    return TemperedTarget(
        log_likelihood=lambda draw: target.log_likelihood(draw) + target.log_prior(draw) - log_reference(draw),
        log_prior=log_reference,
        sample_prior=lambda key: jnp.matmul(lower, jax.random.normal(key, mean.shape, float)) + mean,
        names=target.names,
    )


def place_rungs(
    where: str,
    target: TemperedTarget,
    normal: Normal,
    draws: Float[np.ndarray, "n d"],
    key: jax.Array,
    size: int | None = None,
) -> Float[np.ndarray, " t"]:
    """Return `size` temperatures with equal shares of the barrier between reference and posterior, see `Barrier.place`.

    The barrier comes from both ends: draws of the trace that the reference is fitted to, and exact draws of the
    reference. Where they are bad, as those of a warm-up, so is the placement, and nothing else.

    Parameters
    ----------
    target : from `reference_target`.
    """
    some = draws[np.linspace(0, len(draws) - 1, min(NUM_PLACING, len(draws))).astype(int)]
    exact = normal.restore(np.asarray(jax.random.normal(key, some.shape, float)))
    values = map_rows(target.log_likelihood, np.concatenate([some, exact]))
    values = np.where(np.isnan(values) | (values == np.inf), -np.inf, values)
    at_draws, at_exact = values[: len(some)], values[len(some) :]
    inside = at_draws[np.isfinite(at_draws)]
    if not len(inside):
        cure = "Pass a trace of this model and of these data."
        raise InputError(where, "a `reference` inside the support of the model", "a density of zero at all draws", cure)
    log_z = solve_bridge(inside[None], at_exact, float(len(inside))).value
    if not np.isfinite(log_z):
        log_z = float(np.median(inside))  # without overlap: any constant separates the ends
    return path_barrier(values, np.logaddexp(0.0, values - log_z), power=REFERENCE_POWER).place(size)
