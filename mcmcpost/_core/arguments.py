"""Checks of what a user gave; each raises an `InputError` or an `InputTypeError`."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from mcmcpost._core.errors import InputError, InputTypeError, fault


def as_float64(where: str, name: str, values: object, shape: str, *, copy: bool = True) -> np.ndarray:
    """Return `values` as a float64 array, and refuse one that is not real and numeric or has not the rank of `shape`.

    Without `copy` a float64 array is returned as a view that cannot be written to.
    """
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise InputTypeError(
            where, f"`{name}` to be a real numeric array", f"dtype {array.dtype}", "Convert it to floats."
        )
    if array.ndim != len(shape.split(",")):
        raise InputError(
            where,
            f"`{name}` of shape ({shape})",
            array.shape,
            "Add the missing axes: one chain is an axis of length one.",
        )
    result = array.astype(np.float64, copy=copy).view()
    result.flags.writeable = copy
    return result


def as_labels(where: str, names: Iterable[str] | None, d: int) -> tuple[str, ...]:
    """Return d distinct coordinate labels, ``x[0]``, ``x[1]``, … where there are none."""
    labels = tuple(f"x[{i}]" for i in range(d)) if names is None else tuple(names)
    if len(labels) != d or len(set(labels)) != d:
        raise InputError(where, f"{d} distinct coordinate names", labels, "Name every coordinate once.")
    return labels


def check_count(where: str, name: str, value: object, cure: str, *, least: int = 1) -> None:
    """Refuse a value that is not an integer of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise InputError(where, f"`{name}` of at least {least}, an integer", value, cure)


def check_kind(where: str, name: str, value: object, kind: type | tuple[type, ...], cure: str) -> None:
    """Refuse a value that is not an instance of `kind`, such as the name of a kernel instead of the kernel."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        names = " or ".join("None" if k is type(None) else k.__name__.removeprefix("Abstract") for k in kinds)
        got = repr(value) if isinstance(value, str | type) else f"a {type(value).__name__}"
        raise InputTypeError(where, f"`{name}` to be a {names}", got, cure)


def check_writable(where: str, folder: Path) -> None:
    """Refuse a folder in which no file can be made. It tries: permissions do not show that a disk is read-only."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        got, cure = f"{folder}, where no file can be made ({error.strerror})", "Pick a folder of yours."
        raise PermissionError(fault(where, "a folder that can be written to", got, cure)) from error
