"""Errors about what a user gave, and the checks that raise them."""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np


def fault(where: str, expected: str, got: object, cure: str) -> str:
    """Return an error message that says where, what was expected, what was got, and the cure."""
    return f"{where}: expected {expected}, got {got}. {cure}"


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


def check_writable(where: str, folder: Path) -> None:
    """Refuse a folder in which no file can be made; permissions alone do not tell, as for a read-only system."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        got, cure = f"{folder}, where no file can be made ({error.strerror})", "Pick a folder of yours."
        raise PermissionError(fault(where, "a folder that can be written to", got, cure)) from error
