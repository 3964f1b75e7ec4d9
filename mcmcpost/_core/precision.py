"""The one place that enters float64."""

import functools
from collections.abc import Callable

import jax
import numpy as np


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
