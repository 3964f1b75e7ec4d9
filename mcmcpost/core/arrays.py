"""Long axes in blocks, arrays that may be larger than memory, and the chunks of dask arrays.

Columns are padded to share programs. Dask is imported where such an array is given, which cannot exist without it.
"""

import itertools
import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

ENTRIES = 1 << 20
"""Entries of a temporary block (8 MB)."""

LARGE = 1 << 22
"""Entries (32 MB) above which an array is not formed whole."""

COLUMNS = 8
"""The number of integrands is padded to a multiple of this, so that different numbers share one compiled program."""


def is_large(entries: int) -> bool:
    """Return whether an array of so many entries is worked through in blocks."""
    return entries > LARGE


def in_blocks(length: int, width: int) -> Iterator[slice]:
    """Yield slices of an axis of `length`, each of at most `ENTRIES` entries where one index has `width` of them."""
    step = max(1, ENTRIES // max(width, 1))
    yield from (slice(start, min(start + step, length)) for start in range(0, length, step))


def pad_columns(values: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m q"]:
    """Return `values` with columns of zeros up to a multiple of `COLUMNS`; a large array is returned unchanged."""
    if is_large(values.size):
        return values
    return np.pad(values, ((0, 0), (0, -values.shape[1] % COLUMNS)))


SCRATCH = 1 << 27
"""Size in bytes (134 MB) from which an array is kept in a temporary file."""


def zeros(shape: Sequence[int], dtype: np.dtype | type = np.float64) -> np.ndarray:
    """Return zeros. A large array is kept in a temporary file, whose pages the system can move out of memory.

    The file has no name, is in ``$TMPDIR`` or /var/tmp, and is deleted with the array. Where a file of that size cannot
    be reserved (no room, or a system without ``posix_fallocate``) the array is in memory.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size >= SCRATCH and hasattr(os, "posix_fallocate"):
        try:
            with tempfile.TemporaryFile(dir=scratch_folder()) as file:
                os.posix_fallocate(file.fileno(), 0, size)
                return np.frombuffer(mmap.mmap(file.fileno(), size), dtype).reshape(shape)
        except OSError:
            pass
    return np.zeros(shape, dtype)


def copy_of(array: np.ndarray) -> np.ndarray:
    """Return a copy that can be written to, see `zeros`."""
    new = zeros(array.shape, array.dtype)
    new[...] = array
    return new


def columns_of(array: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return ``array[..., index]``, see `zeros`, without a copy where the columns follow each other."""
    if len(index) and (np.diff(index) == 1).all():
        return array[..., index[0] : index[-1] + 1]
    new = zeros((*array.shape[:-1], len(index)), array.dtype)
    return np.take(array, index, axis=-1, out=new, mode="clip")


def column_variance(columns: Float[np.ndarray, "n p"], ddof: int = 0) -> Float[np.ndarray, " p"]:
    """Return the variance of each column, by blocks of rows."""
    mean, squares = columns.mean(axis=0), np.zeros(columns.shape[1])
    for rows in in_blocks(*columns.shape):
        squares += ((columns[rows] - mean) ** 2).sum(axis=0)
    return squares / (len(columns) - ddof)


def rows_of(array: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return ``array[index]``, see `zeros`."""
    new = zeros((len(index), *array.shape[1:]), array.dtype)
    return np.take(array, index, axis=0, out=new, mode="clip")  # any other mode makes a whole copy first


def scratch_folder() -> str:
    """Return the folder of large files: /var/tmp where there is none in ``$TMPDIR``, since /tmp may be in memory."""
    large = "/var/tmp"
    return large if "TMPDIR" not in os.environ and Path(large).is_dir() else tempfile.gettempdir()


WINDOW = 16
"""Chunks that are computed at a time, at most. Their results are used in order, whatever computes them."""


SAMPLED = 1 << 22
"""Numbers (32 MB) of draws, evenly spaced, that stand for all where they are many."""


def is_chunked(variable: Any) -> bool:
    """Return whether a variable of a tree is in the chunks of dask, and too large to be read whole."""
    chunked = variable.chunks is not None and hasattr(variable.data, "to_delayed")
    return chunked and is_large(variable.size)


def sampling_step(shape: Sequence[int]) -> int:
    """Return the step at which arrays (c, n, d) have at most `SAMPLED` numbers, or one draw of each chain."""
    return -(-math.prod(shape) // SAMPLED)


def read_values(variable: Any, dtype: type | None = None) -> np.ndarray:
    """Return the values of a variable of a tree: large ones in chunks of dask are read by chunks, as `dtype`."""
    if is_chunked(variable):
        return read_chunks(variable.data, variable.dtype if dtype is None else dtype)
    return variable.values


def read_chunks(source: Any, dtype: np.dtype | type) -> np.ndarray:
    """Return a dask array as one array, see `zeros`, read a few chunks at a time."""
    whole = zeros(source.shape, dtype)
    places = itertools.product(*map(slices_of, source.chunks))
    for batch in itertools.batched(zip(places, source.to_delayed().reshape(-1), strict=True), WINDOW):
        for (place, _), block in zip(batch, _compute([block for _, block in batch]), strict=True):
            whole[place] = block
    return whole


def _compute(tasks: Sequence[Any]) -> tuple[Any, ...]:
    import dask

    # The values of integrands travel with the tasks, of which a cluster would warn.
    quiet = {"distributed.admin.large-graph-warning-threshold": "10GB"} if "distributed" in dask.config.config else {}
    with dask.config.set(quiet):
        return dask.compute(*tasks)


class Box(NamedTuple):
    """The chains and draws of a chunk."""

    chains: slice
    draws: slice


def merged(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    """Return the sizes of chunks of which neighbours are joined while they have at most `most` draws together."""
    joined = [0]
    for size in sizes:
        if joined[-1] and joined[-1] + size > most:
            joined.append(0)
        joined[-1] += size
    return tuple(joined)


def slices_of(sizes: Sequence[int]) -> list[slice]:
    """Return the slices of an axis that is in chunks of these sizes."""
    return [slice(end - size, end) for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)]
