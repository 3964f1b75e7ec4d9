"""Gradients of a log density at stored draws: compiled once, in batches, over all devices."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost._core.arguments import as_float64, check_count
from mcmcpost._core.devices import BATCH_SIZE, map_rows
from mcmcpost._core.errors import InputError, InputTypeError


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
    check_count(where, "batch_size", batch_size, "Use 512.")
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


_NOT_TRACEABLE = (
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
)


def check_scalar(where: str, logdensity_fn: Callable[[Array], Array], d: int, name: str = "logdensity_fn") -> None:
    """Refuse a log density that does not map one draw (d,) to a real scalar, or that JAX cannot trace."""
    expected, cure = f"`{name}` to map one draw (d,) to a scalar", "Sum its terms."

    def checked(draw: Array) -> Array:
        value = logdensity_fn(draw)
        if not isinstance(value, jax.Array | np.ndarray | np.generic | float):
            raise InputTypeError(where, expected, type(value).__name__, cure)
        if np.shape(value) != () or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            raise InputError(where, expected, f"shape {np.shape(value)} of {jnp.result_type(value)}", cure)
        return jnp.asarray(value)

    try:
        with jax.enable_x64(True):
            jax.eval_shape(checked, jax.ShapeDtypeStruct((d,), np.float64))
    except _NOT_TRACEABLE as error:
        got = str(error).partition("\n")[0]
        raise InputTypeError(where, f"`{name}` written in JAX", got, "Use jax.numpy in place of NumPy.") from error


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
