"""Log likelihood, log prior and their gradients at stored draws, NaN where a solve failed."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from mcmcpost.evidence._ladder import TemperedTarget
from mcmcpost.scores import over_devices

BLOCK = 512


class Evaluation(NamedTuple):
    """At one draw, or stacked over leading axes.

    log_likelihood, log_prior : scalars ℓ and log p(x).
    gradient_log_likelihood, gradient_log_prior : (d,), NaN where the value is not finite.
    """

    log_likelihood: Any
    log_prior: Any
    gradient_log_likelihood: Any
    gradient_log_prior: Any


def evaluate(target: TemperedTarget, draw: Array, forward_mode: bool) -> Evaluation:
    """Evaluate both terms of the target at one draw.

    Automatic differentiation may give a finite gradient where a value is infinite (a masked failure of an ODE solver
    does), which is wrong: it becomes NaN.
    """
    likelihood, slope = _value_and_gradient(target.log_likelihood, draw, forward_mode)
    prior, prior_slope = _value_and_gradient(target.log_prior, draw, forward_mode)
    return Evaluation(
        likelihood,
        prior,
        jnp.where(jnp.isfinite(likelihood), slope, jnp.nan),
        jnp.where(jnp.isfinite(prior), prior_slope, jnp.nan),
    )


def _value_and_gradient(function: Callable[[Array], Array], draw: Array, forward_mode: bool) -> tuple[Array, Array]:
    if not forward_mode:
        return jax.value_and_grad(function)(draw)
    basis = jnp.eye(draw.shape[0], dtype=draw.dtype)
    return jax.vmap(lambda unit: jax.jvp(function, (draw,), (unit,)), out_axes=(None, 0))(basis)


def evaluate_at(target: TemperedTarget, draws: np.ndarray, *, forward_mode: bool = False) -> Evaluation:
    """Evaluate both terms at draws (..., d), in blocks of one shape, over all devices; call it under 64-bit JAX."""
    lead, d = draws.shape[:-1], draws.shape[-1]
    flat = np.asarray(draws, np.float64).reshape(-1, d)
    devices = jax.device_count()
    steps = -(-len(flat) // (BLOCK * devices))
    block = devices * -(-len(flat) // (steps * devices))
    padded = np.concatenate([flat, np.repeat(flat[-1:], steps * block - len(flat), axis=0)])
    compiled = _compile(target, forward_mode)
    parts = [jax.tree.map(np.asarray, compiled(over_devices(rows))) for rows in padded.reshape(steps, block, d)]
    whole = jax.tree.map(lambda *arrays: np.concatenate(arrays)[: len(flat)], *parts)
    return jax.tree.map(lambda array: array.reshape(*lead, *array.shape[1:]), whole)


@lru_cache(maxsize=4)
def _compile(target: TemperedTarget, forward_mode: bool) -> Callable[[Array], Evaluation]:
    return jax.jit(jax.vmap(lambda draw: evaluate(target, draw, forward_mode)))
