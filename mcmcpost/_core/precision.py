"""Precision: functions run in float64, and points as floating JAX arrays."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from mcmcpost._core.arguments import as_real
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
