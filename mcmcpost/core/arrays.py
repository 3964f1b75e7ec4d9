"""Long axes in blocks, and the chunks of dask arrays.

Columns are padded to share programs. Dask is imported where such an array is given, which cannot
exist without it.
"""

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mcmcpost.core.errors import InputError

ENTRIES = 1 << 20
"""Entries of a temporary block (8 MB)."""

LARGE = 1 << 22
"""Entries (32 MB) above which an array is not formed whole."""

PIECES, LARGEST_PIECE = 2_000, 1 << 24
"""Pieces in which a large trace is read, at most, as long as each has no more entries (134 MB) than
a worker bears. Telling dask's scheduler of one takes the client milliseconds."""

COLUMNS = 8
"""The number of integrands is padded to a multiple of this, so that different numbers share one
compiled program."""


def is_large(entries: int) -> bool:
    """Return whether an array of so many entries is worked through in blocks."""
    return entries > LARGE


def piece_size(entries: int, least: int | None = None) -> int:
    """Return the entries of a piece of an array of `entries` that is read piece by piece, `least`
    (by default `ENTRIES`) or more."""
    least = ENTRIES if least is None else least
    return max(least, min(entries // PIECES, LARGEST_PIECE))


def in_blocks(length: int, width: int, most: int | None = None) -> Iterator[slice]:
    """Yield slices of an axis of `length`, each of at most `most` (by default `ENTRIES`) entries
    where one index has `width` of them."""
    step = max(1, (ENTRIES if most is None else most) // max(width, 1))
    yield from (slice(start, min(start + step, length)) for start in range(0, length, step))


def pad_columns(values: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m q"]:
    """Return `values` with columns of zeros up to a multiple of `COLUMNS`; a large array is
    returned unchanged."""
    if is_large(values.size):
        return values
    return np.pad(values, ((0, 0), (0, -values.shape[1] % COLUMNS)))


def columns_of(array: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return ``array[..., index]``, without a copy where the columns follow each other."""
    if len(index) and (np.diff(index) == 1).all():
        return array[..., index[0] : index[-1] + 1]
    return array[..., index]


def column_variance(columns: Float[np.ndarray, "n p"], ddof: int = 0) -> Float[np.ndarray, " p"]:
    """Return the variance of each column, by blocks of rows."""
    mean, squares = columns.mean(axis=0), np.zeros(columns.shape[1])
    for rows in in_blocks(*columns.shape):
        squares += ((columns[rows] - mean) ** 2).sum(axis=0)
    return squares / (len(columns) - ddof)


WINDOW = 16
"""Chunks that are computed at a time, at most. Their results are used in order, whatever computes
them."""


SAMPLED = 1 << 22
"""Numbers (32 MB) of draws, evenly spaced, that stand for all where they are many."""


def is_chunked(variable: Any) -> bool:
    """Return whether a variable of a tree is in the chunks of dask, and too large to be read
    whole."""
    chunked = variable.chunks is not None and hasattr(variable.data, "to_delayed")
    return chunked and is_large(variable.size)


def sampling_step(shape: Sequence[int]) -> int:
    """Return the step at which arrays (c, n, d) have at most `SAMPLED` numbers, or one draw of each
    chain."""
    return -(-math.prod(shape) // SAMPLED)


def read_values(variable: Any, dtype: type | None = None) -> np.ndarray:
    """Return the values of a variable of a tree: large ones in chunks of dask are read by chunks,
    as `dtype`."""
    if is_chunked(variable):
        return read_chunks(variable.data, variable.dtype if dtype is None else dtype)
    return variable.values


def read_chunks(source: Any, dtype: np.dtype | type) -> np.ndarray:
    """Return a dask array as one array, read a few chunks at a time.

    Raises
    ------
    ValueError : it is larger than the machine's memory, before anything is read.
    """
    size, memory = math.prod(source.shape) * np.dtype(dtype).itemsize, memory_of_machine()
    if size > memory:
        got = f"an array of {size / 1e9:.1f} GB, and {memory / 1e9:.1f} GB of memory"
        cure = (
            'Thin the draws, tree.isel(draw=slice(None, None, 10)), or use method="auto", which '
            "sums over chunks."
        )
        raise InputError(
            "draws in chunks", "draws that fit into memory, since all are needed at once", got, cure
        )
    whole = np.empty(source.shape, dtype)
    places = itertools.product(*map(slices_of, source.chunks))
    for batch in itertools.batched(
        zip(places, source.to_delayed().reshape(-1), strict=True), WINDOW
    ):
        for (place, _), block in zip(batch, _compute([block for _, block in batch]), strict=True):
            whole[place] = block
    return whole


def memory_of_machine() -> float:
    """Return the bytes of memory of the machine; infinite where the system does not say."""
    if not hasattr(os, "sysconf"):
        return math.inf
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _compute(tasks: Sequence[Any]) -> tuple[Any, ...]:
    import dask

    # The values of integrands travel with the tasks, of which a cluster would warn.
    quiet = (
        {"distributed.admin.large-graph-warning-threshold": "10GB"}
        if "distributed" in dask.config.config
        else {}
    )
    with dask.config.set(quiet):
        return dask.compute(*tasks)


class Box(NamedTuple):
    """The chains and draws of a chunk."""

    chains: slice
    draws: slice


def merged(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the sizes of chunks of which neighbours are joined while they have at most `most`
    draws together."""
    joined = [0]
    for size in sizes:
        if joined[-1] and joined[-1] + size > most:
            joined.append(0)
        joined[-1] += size
    return tuple(joined)


def slices_of(sizes: Sequence[int]) -> list[slice]:
    """Return the slices of an axis that is in chunks of these sizes."""
    return [
        slice(end - size, end) for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)
    ]
