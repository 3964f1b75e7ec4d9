"""Gradients of a log density at stored draws: compiled once, in batches, over all devices."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost._core.arguments import as_float64
from mcmcpost._core.devices import BATCH_SIZE, map_rows
from mcmcpost._core.errors import InputError


def batch_scores(
    logdensity_fn: Callable[[Array], Array],
    draws: object,
    *,
    batch_size: int = BATCH_SIZE,
) -> Float[np.ndarray, "c n d"]:
    """Return the gradient of a log density at every stored draw, in float64.

    s = ∇ log p(x). The gradient is compiled once and vectorised over blocks of equal size, each device taking its
    share; a terminal shows a progress bar. A draw at which log p is NaN or infinite gets a NaN score (see
    `value_and_score`).

    Parameters
    ----------
    logdensity_fn : log density of one unconstrained draw, (d,) → scalar, written in JAX.
    draws : (c, n, d) unconstrained draws.
    batch_size : draws differentiated at a time on each device; memory grows with it.

    Returns
    -------
    (c, n, d) scores.

    Raises
    ------
    ValueError : `draws` is not (chain, draw, d), `batch_size` is below one, or the log density is not a scalar.
    """
    where = "batch_scores"
    points = as_float64(where, "draws", draws, "chain, draw, d")
    if batch_size < 1:
        raise InputError(where, "`batch_size` of at least one", batch_size, "Use 512.")
    if points.size == 0:
        raise InputError(where, "at least one chain, draw and parameter", points.shape, "Sample first.")
    check_scalar(where, logdensity_fn, points.shape[-1])
    scores = map_rows(
        lambda draw: value_and_score(logdensity_fn, draw).score,
        points.reshape(-1, points.shape[-1]),
        batch_size=batch_size,
        progress="scores",
    )
    return scores.reshape(points.shape)


def check_scalar(where: str, logdensity_fn: Callable[[Array], Array], d: int) -> None:
    """Refuse a log density that does not map one draw (d,) to a scalar."""
    with jax.enable_x64(True):
        value = jax.eval_shape(logdensity_fn, jax.ShapeDtypeStruct((d,), np.float64))
    if getattr(value, "shape", None) != ():
        raise InputError(
            where,
            "`logdensity_fn` to map one draw (d,) to a scalar",
            getattr(value, "shape", value),
            "Sum the terms of the log density.",
        )


class ValueAndScore(NamedTuple):
    """A log density at one draw (d,), and its gradient."""

    value: Float[Array, ""]
    score: Float[Array, " d"]


def value_and_score(
    logdensity_fn: Callable[[Array], Array], draw: Array, *, forward_mode: bool = False
) -> ValueAndScore:
    """Return a log density and its gradient at one draw; the gradient is NaN where the value is not finite.

    There automatic differentiation may give a finite gradient, which is wrong: a masked failure of an ODE solver does.

    Parameters
    ----------
    logdensity_fn : (d,) → scalar.
    forward_mode : differentiate in forward mode, d directional derivatives.
    """
    if forward_mode:
        basis = jnp.eye(draw.shape[0], dtype=draw.dtype)
        value, slope = jax.vmap(lambda unit: jax.jvp(logdensity_fn, (draw,), (unit,)), out_axes=(None, 0))(basis)
    else:
        value, slope = jax.value_and_grad(logdensity_fn)(draw)
    return ValueAndScore(value, jnp.where(jnp.isfinite(value), slope, jnp.nan))
