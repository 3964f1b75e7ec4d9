"""Precision and input checks: the one place that enters float64 and the one voice in which errors speak."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np


def fault(where: str, expected: str, got: object, cure: str) -> str:
    """Return an error message that says where, what was expected, what was got, and the cure."""
    return f"{where}: expected {expected}, got {got}. {cure}"


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


def as_float64(where: str, name: str, values: object, shape: str, *, copy: bool = True) -> np.ndarray:
    """Return `values` as a float64 array, refusing what is not a real numeric array of the rank of `shape`.

    Without `copy` a float64 array is returned as a view that cannot be written to.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise TypeError(
            fault(where, f"`{name}` to be a real numeric array", f"dtype {array.dtype}", "Convert it to floats.")
        )
    if array.ndim != len(shape.split(",")):
        raise ValueError(
            fault(
                where,
                f"`{name}` of shape ({shape})",
                array.shape,
                "Add the missing axes: one chain is an axis of length one.",
            )
        )
    result = array.astype(np.float64, copy=copy).view()
    result.flags.writeable = copy
    return result


def check_count(where: str, name: str, value: object, cure: str, *, least: int = 1) -> None:
    """Refuse what is not an integer of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(fault(where, f"`{name}` of at least {least}, an integer", value, cure))


def check_kind(where: str, name: str, value: object, kind: type | tuple[type, ...], cure: str) -> None:
    """Refuse what is no instance of `kind`, such as the name of a kernel in place of the kernel."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join("None" if k is type(None) else k.__name__.removeprefix("Abstract") for k in kinds)
        got = repr(value) if isinstance(value, str | type) else f"a {type(value).__name__}"
        raise TypeError(fault(where, f"`{name}` to be a {names}", got, cure))


def as_points(where: str, name: str, points: object) -> jax.Array:
    """Return points (n, d) as a floating JAX array; a traced array is fine."""
    array = jnp.asarray(points)
    if array.ndim != 2:
        cure = "One coordinate is a column: x[:, None]."
        raise ValueError(fault(where, f"`{name}` of shape (n, d)", array.shape, cure))
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.result_type(float))
