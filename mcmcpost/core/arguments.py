"""Checks of what a user gave; each raises an `InputError` or an `InputTypeError`."""

import inspect
import os
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mcmcpost.core.errors import ADDED, InputError, InputTypeError, fault
from mcmcpost.core.runtime import did_you_mean


def as_float64(
    where: str, name: str, values: object, shape: str, *, copy: bool = True
) -> np.ndarray:
    """Return `values` as a float64 array, and refuse one that is not real and numeric or has not
    the rank of `shape`.

    Without `copy` a float64 array is returned as a view that cannot be written to.
    """
    array = as_real(where, name, values)
    # The empty shape "" is a scalar: splitting it gives one axis, times False none.
    if array.ndim != len(shape.split(",")) * bool(shape):
        raise InputError(
            where,
            f"`{name}` of shape ({shape})",
            array.shape,
            "Add the missing axes: one chain is an axis of length one.",
        )
    # A view, so that the flag is set on it and never on the caller's array.
    result = array.astype(np.float64, copy=copy).view()
    result.flags.writeable = copy
    return result


def as_real(where: str, name: str, values: Any) -> np.ndarray:
    """Return `values` as an array; refuse masked entries, ragged lists, and what is no real
    number."""
    if np.ma.is_masked(values):
        cure = "Fill them in: control variates need every draw, with its score."
        raise InputError(
            where, f"`{name}` without masked entries", np.ma.count_masked(values), cure
        )
    # NumPy raises ValueError for a ragged list and TypeError for objects that refuse conversion.
    try:
        array = np.asarray(values)
    except ValueError as error:
        cure = "Give every chain as many draws, and every draw as many values."
        lengths = [len(each) if hasattr(each, "__len__") else 1 for each in values]
        if name in ("draws", "scores") and len(set(lengths)) > 1:
            raise InputError(
                where, f"`{name}` with chains of one length", lengths, ADDED
            ) from error
        raise InputError(where, f"`{name}` to be one array", str(error), cure) from error
    except TypeError as error:
        got = f"a {type(values).__name__}"
        raise InputTypeError(
            where, f"`{name}` to be a real numeric array", got, "Pass its values."
        ) from error
    if array.dtype.kind == "O" and not array.ndim:
        got = f"a {type(values).__name__}"  # as a dict in a dict
        raise InputTypeError(where, f"`{name}` to be a real numeric array", got, "Pass its values.")
    # f, i, u, b: complex numbers, texts, dates and objects have other kinds.
    if array.dtype.kind not in "fiub":
        raise InputTypeError(
            where,
            f"`{name}` to be a real numeric array",
            f"dtype {array.dtype}",
            "Convert it to floats.",
        )
    return array


def check_probabilities(probabilities: Any) -> np.ndarray:
    """Return the distinct probabilities in the order given; refuse an empty list, and any outside
    (0, 1)."""
    levels = np.atleast_1d(as_real("quantile", "probabilities", probabilities)).astype(float)
    if levels.ndim != 1 or not len(levels) or not ((levels > 0) & (levels < 1)).all():
        raise InputError(
            "quantile", "probabilities inside (0, 1)", probabilities, "For example 0.05, not 5."
        )
    return np.array(list(dict.fromkeys(levels.tolist())))  # results are named by their probability


HUGE = 1e75
"""Numbers of this size and larger, and of its inverse and smaller, have fourth powers that are
infinite or zero."""


def check_size(where: str, name: str, values: np.ndarray) -> None:
    """Refuse columns of finite numbers, along the last axis, that are too large or small for their
    variance."""
    if not values.size:
        return
    # Extremes by column and not over all: one large column must not hide behind a usual one.
    axes = tuple(range(values.ndim - 1))
    with np.errstate(invalid="ignore"):
        size = np.maximum(values.max(axis=axes), -values.min(axis=axes))
        bad = np.isfinite(size) & ((size >= HUGE) | ((size > 0) & (size <= 1 / HUGE)))
    if bad.any():
        got = f"{size[bad].flat[0]:.3g}" if size.ndim else f"{size:.3g}"
        expected = f"`{name}` whose largest numbers are within {1 / HUGE:g} to {HUGE:g}"
        raise InputError(where, expected, got, "Rescale them: change the unit.")


def as_names(where: str, name: str, names: object) -> tuple[str, ...]:
    """Return a list or tuple of names, or what else can be gone through once, as a tuple; a single
    text is refused."""
    given = (
        tuple(names) if isinstance(names, Iterable) and not isinstance(names, str | bytes) else None
    )
    if given is None or not all(isinstance(one, str) for one in given):
        raise InputTypeError(
            where,
            f"`{name}` to be a list of names",
            # Of a dict its keys: what it holds may be traces.
            repr(names if given is None else list(given)),
            'Such as ("a", "b").',
        )
    return given


def as_labels(where: str, names: object, d: int, name: str = "names") -> tuple[str, ...]:
    """Return d distinct coordinate labels, ``x[0]``, ``x[1]``, … where there are none."""
    labels = tuple(f"x[{i}]" for i in range(d)) if names is None else as_names(where, name, names)
    if len(labels) != d or len(set(labels)) != d:
        raise InputError(
            where, f"`{name}`, {d} distinct coordinate names", labels, "Name every coordinate once."
        )
    return labels


MOST = 2**31 - 1
"""Counts above this one are refused everywhere."""


def check_count(
    where: str,
    name: str,
    value: Any,
    cure: str,
    *,
    least: int = 1,
    most: int = MOST,
    optional: bool = False,
) -> None:
    """Refuse a value that is not an integer from `least` to `most`; `optional` lets None pass."""
    if optional and value is None:
        return
    # A bool is an int to Python, and `True` draws are surely a mistake.
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not least <= value <= most:
        bound = f"at most {most}" if whole and value > most else f"at least {least}"
        raise InputError(where, f"`{name}` of {bound}, an integer", repr(value), cure)


def as_number(value: Any) -> Any:
    """Return a number as a float and anything else as it is: the converter of a field that
    `check_number` reads."""
    return (
        _real(value)
        if isinstance(value, int | np.integer | np.floating) and not isinstance(value, bool)
        else value
    )


def as_count(value: Any) -> Any:
    """Return an integer of NumPy, which JAX would trace, as Python's: the converter for
    `check_count`."""
    return int(value) if isinstance(value, np.integer) else value


def check_number(
    where: str,
    name: str,
    value: object,
    cure: str,
    *,
    inside: str = "(0, inf)",
    optional: bool = False,
) -> None:
    """Refuse a value that is not a real number inside an interval such as ``"[0, 1)"``.

    A value that JAX traces passes, and None where it is `optional`.
    """
    # A traced value has no number yet; it is checked where it was made.
    if (optional and value is None) or isinstance(value, jax.core.Tracer):
        return
    low, high = map(float, inside[1:-1].split(","))
    # NaN, for what is no real number, is inside no interval, and so refused below.
    number = _real(value)
    above = number > low if inside[0] == "(" else number >= low
    below = number < high if inside[-1] == ")" else number <= high
    if not (above and below):
        raise InputError(
            where, f"`{name}`, a number in {inside.replace('inf', '∞')}", repr(value), cure
        )


def _real(value: Any) -> float:
    """Return a real scalar as a float, infinite where it is too large, and NaN for anything
    else."""
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    if isinstance(value, bool) or not (
        isinstance(value, int | float) or (kind in ("f", "i", "u") and value.ndim == 0)
    ):
        return float("nan")
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def check_numbers(where: str, name: str, values: object, cure: str) -> None:
    """Refuse what is not a tuple or list of at least one positive number."""
    if not isinstance(values, tuple | list) or not values:
        raise InputError(
            where, f"`{name}` to be a tuple of at least one number", repr(values), cure
        )
    for value in values:
        check_number(where, name, value, cure)


def check_flags(where: str, **flags: object) -> None:
    """Refuse flags that are neither True nor False, by their names."""
    for name, value in flags.items():
        if not isinstance(value, bool | np.bool_):
            raise InputTypeError(
                where, f"`{name}` to be True or False", repr(value), "Pass one of them."
            )


def check_function(
    where: str, name: str, function: object, takes: int | None, cure: str, *, optional: bool = False
) -> None:
    """Refuse what cannot be called with so many arguments, None for any; a function that does not
    tell them passes."""
    if optional and function is None:
        return
    arguments = {None: "", 1: " of one argument"}.get(takes, f" of {takes} arguments")
    expected = f"`{name}` to be a function{arguments}"
    if not callable(function):
        text = repr(function)
        got = (
            text if len(text) <= 60 and "\n" not in text else _with_article(type(function).__name__)
        )
        raise InputTypeError(where, expected, got, cure)
    if takes is None:
        return
    # Functions written in C have no signature: they get the benefit of the doubt.
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        return
    try:
        signature.bind(*[None] * takes)
    except TypeError as error:
        raise InputTypeError(where, expected, f"{signature}: {error}", cure) from error


def hashable[F: Callable[..., Any]](function: F) -> F | partial[Any]:
    """Return a function by which compiled programs are found again: itself, or a wrapper of one
    without a hash, as an `equinox.Module` that holds arrays."""
    try:
        hash(function)
    except TypeError:
        return partial(function)  # whose hash is its identity
    return function


def check_key(where: str, key: Any, *, optional: bool = False) -> None:
    """Refuse what is not one JAX key."""
    if optional and key is None:
        return
    typed = isinstance(key, jax.Array) and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
    # Raw keys of JAX: two words for threefry, four for the other generators.
    raw = (
        isinstance(key, jax.Array | np.ndarray)
        and key.dtype == np.uint32
        and key.shape in ((2,), (4,))
    )
    if (typed and key.ndim == 0) or raw:
        return
    # An array is printed on a line for each key.
    got, cure = " ".join(repr(key).split()), "Pass key=jax.random.key(0)."
    if typed:
        got, cure = f"{key.size} keys", "Pass one of them: key=keys[0]."
    raise InputTypeError(where, "`key` to be a JAX key", got, cure)


def check_kind(
    where: str, name: str, value: object, kind: type | tuple[type | None, ...], cure: str
) -> None:
    """Refuse a value that is not an instance of `kind`, such as the name of a kernel instead of the
    kernel.

    None among several kinds lets None pass.
    """
    kinds = tuple(
        type(None) if one is None else one for one in (kind if isinstance(kind, tuple) else (kind,))
    )
    if not isinstance(value, kinds):
        names = " or ".join(
            "None" if k is type(None) else k.__name__.removeprefix("Abstract") for k in kinds
        )
        got = repr(value) if isinstance(value, str | type) else _with_article(type(value).__name__)
        raise InputTypeError(where, f"`{name}` to be {_with_article(names)}", got, cure)


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'aeioAEIO' else 'a'} {name}"


MOMENTS = "moments"
"""The group of a tree that holds sums over draws; sums themselves have it as an attribute."""


def check_tree_type(where: str, tree: object) -> None:
    """Refuse what is not a DataTree."""
    if isinstance(tree, type) or not (hasattr(tree, "children") and hasattr(tree, "to_dataset")):
        cure = "Convert it, as with arviz.convert_to_datatree; load_tree reads a file."
        if isinstance(tree, str | os.PathLike):
            cure = f"load_tree({str(tree)!r}) reads a file."
        if hasattr(tree, "to_datatree") and not isinstance(tree, type):
            cure = "Its to_datatree() makes one."
        raise InputTypeError(where, "an xarray.DataTree", type(tree).__name__, cure)


def check_trace_type(where: str, tree: object) -> None:
    """Refuse what is not a DataTree, and sums, which have no draws."""
    of_sums = hasattr(tree, "num_chains") and hasattr(tree, MOMENTS)
    # A class has properties where its objects have values.
    if not isinstance(tree, type) and (of_sums or MOMENTS in getattr(tree, "children", ())):
        cure = (
            "They give means, by expectation and summary, on the command line by reduce; all else "
            "needs the trace."
        )
        raise InputError(where, "a trace", "sums of one, which have no draws", cure)
    check_tree_type(where, tree)


def as_path(where: str, path: object, cure: str = "Name a file.") -> Path:
    """Return a path; refuse what names no file."""
    check_kind(where, "path", path, (str, os.PathLike), cure)
    assert isinstance(path, str | os.PathLike)
    if not str(path):
        raise InputError(where, "`path` to name a file", "an empty text", "Name a file.")
    # `lstat` asks the system whether such a name can be, without opening anything.
    try:
        path = Path(path).expanduser()
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        pass  # whoever reads or writes it says so
    except (OSError, ValueError, RuntimeError) as error:
        # too long, with a null byte, or ~ of nobody
        raise InputError(
            where, "`path` that a file can have", str(error), "Pick another name."
        ) from error
    return Path(path)


def check_no_pipe(where: str, place: Path) -> None:
    """Refuse a pipe, socket or device: reading one waits for another program, and formats need a
    file's ends."""
    if place.exists() and not (place.is_file() or place.is_dir()):
        raise InputError(
            where, "a file", f"{place}, a pipe or a device", "Write its content to a file first."
        )


def missing_file(where: str, expected: str, place: Path) -> FileNotFoundError:
    """Return the error of a file that does not exist; it asks for the file of the folder that has
    almost its name."""
    if place.is_symlink():
        # Its own name is in the folder, and is not what is missing.
        cure = f"It is a link to {place.readlink()}, where there is no file: make it again."
        return FileNotFoundError(fault(where, expected, str(place), cure))
    beside = [path.name for path in place.parent.iterdir()] if place.parent.is_dir() else []
    whence = "" if place.is_absolute() else f"; it is relative to {Path.cwd()}"
    cure = f"{did_you_mean(place.name, beside)}Check the path{whence}."
    if "*" in place.name:  # the shell leaves a pattern as it is where no file has such a name
        cure = f"Patterns are read by the shell, in Python by glob.glob. {cure}"
    return FileNotFoundError(fault(where, expected, str(place), cure))


def check_writable(where: str, folder: Path) -> None:
    """Refuse a folder in which no file can be made. It tries: permissions do not show that a disk
    is read-only."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        got, cure = (
            f"{folder}, where no file can be made ({error.strerror})",
            "Pick a folder of yours.",
        )
        raise PermissionError(fault(where, "a folder that can be written to", got, cure)) from error
