"""Tables of draws: columns named by element to arrays, and chains of equal length."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mcmcpost._checks import fault
from mcmcpost.io._convention import sample_dataset

if TYPE_CHECKING:
    import xarray

_STAN = re.compile(r"(?P<name>[^.:]+)\.(?P<index>\d+(?:\.\d+)*)")
_BRACKETS = re.compile(r"(?P<name>[^\[]+)\[(?P<index>\d+(?:, ?\d+)*)\]")


def variables(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays (c, n, ...) from columns (c, n) that are named by element.

    ``theta.1.2``, as Stan writes it, and ``theta[0, 1]`` or ``theta[1,2]`` are elements of `theta`, counted from one or
    from zero. Where they do not fill an array, every column stays a scalar by its own name.
    """
    groups: dict[str, dict[tuple[int, ...], str]] = {}
    for column in columns:
        match = _STAN.fullmatch(column) or _BRACKETS.fullmatch(column)
        name, index = (
            (column, ()) if match is None else (match["name"], tuple(map(int, re.split(r"\.|, ?", match["index"]))))
        )
        groups.setdefault(name, {})[index] = column
    found: dict[str, np.ndarray] = {}
    for name, elements in groups.items():
        array = _array({index: columns[column] for index, column in elements.items()})
        found |= {column: columns[column] for column in elements.values()} if array is None else {name: array}
    return found


def _array(elements: dict[tuple[int, ...], np.ndarray]) -> np.ndarray | None:
    """Return the array (c, n, ...) of elements by index, None where they do not fill one."""
    if len({len(index) for index in elements}) > 1:
        return None
    indices = np.array(list(elements), dtype=int).reshape(len(elements), -1)
    first = indices.min(axis=0)
    shape = tuple(int(size) for size in indices.max(axis=0) - first + 1)
    if not np.isin(first, (0, 1)).all() or len(set(first)) > 1 or math.prod(shape) != len(elements):
        return None
    lead = next(iter(elements.values())).shape
    array = np.empty((*lead, *shape))
    for place, values in zip(indices - first, elements.values(), strict=True):
        array[(..., *place)] = values
    return array


def posterior_tree(columns: Mapping[str, np.ndarray]) -> "xarray.DataTree":
    """Return a tree whose posterior group holds the columns (c, n), elements put together."""
    import xarray

    return xarray.DataTree.from_dict({"posterior": sample_dataset(variables(columns))})


def check_equal_lengths(where: str, lengths: Sequence[int]) -> None:
    """Refuse chains of different lengths."""
    if len(set(lengths)) > 1:
        raise ValueError(
            fault(where, "chains of one length", list(lengths), "Cut the longer ones, or leave out one that stopped.")
        )
