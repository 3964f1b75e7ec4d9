"""Precision: functions run in float64, points as floating JAX arrays, and units whose squares have a value."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mcmcpost._core.arguments import HUGE, as_real
from mcmcpost._core.errors import InputError


def in_float64[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Run `function` with 64-bit JAX and return its arrays as NumPy arrays.

    Float64 JAX arrays must not leave an ``enable_x64`` block (ordinary operations outside would truncate them), so
    every JAX array in the result, a pytree, is handed back as a NumPy array. The global configuration is untouched.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True):
            return jax.tree.map(_to_numpy, function(*args, **kwargs))

    return wrapped


def _to_numpy(leaf: object) -> object:
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def as_points(where: str, name: str, points: object) -> jax.Array:
    """Return points (n, d) as a floating JAX array; a traced array is fine."""
    array = points if isinstance(points, jax.Array) else jnp.asarray(as_real(where, name, points))
    if array.ndim != 2:
        cure = "One coordinate is a column: x[:, None]."
        raise InputError(where, f"`{name}` of shape (n, d)", array.shape, cure)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.result_type(float))


def units_of(values: Float[np.ndarray, "c n p"]) -> Float[np.ndarray, " p"]:
    """Return a power of two of its size for each integrand whose variance would overflow or vanish, one for others."""
    with np.errstate(invalid="ignore"):
        size = np.maximum(values.max(axis=(0, 1)), -values.min(axis=(0, 1)))
    odd = np.isfinite(size) & (size > 0) & ((size >= HUGE) | (size <= 1 / HUGE))
    _, exponent = np.frexp(np.where(odd, size, 1.0))
    return np.ldexp(1.0, np.where(odd, np.maximum(exponent - 2, -1074), 0))


def in_units(values: Float[np.ndarray, "c n p"], units: Float[np.ndarray, " p"]) -> Float[np.ndarray, "c n p"]:
    """Return values divided by their units, without a copy where all are one."""
    return values if (units == 1).all() else values / units
