"""Long axes in blocks, columns padded to share programs, and arrays that may be larger than memory."""

import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float

ENTRIES = 1 << 20
"""Of a block that is formed on the way: 8 MB."""


LARGE = 1 << 22
"""Entries (32 MB) above which an array is not formed whole."""


COLUMNS = 8
"""Integrands are padded to a multiple of this: any few of them share one compiled program."""


def is_large(entries: int) -> bool:
    """Return whether an array is to be worked through in blocks."""
    return entries > LARGE


def in_blocks(length: int, width: int) -> Iterator[slice]:
    """Yield slices of an axis of `length`, each of at most `ENTRIES` entries where one index has `width` of them."""
    step = max(1, ENTRIES // max(width, 1))
    yield from (slice(start, min(start + step, length)) for start in range(0, length, step))


def pad_columns(values: Float[np.ndarray, "m p"]) -> Float[np.ndarray, "m q"]:
    """Return `values` with columns of zeros up to a multiple of `COLUMNS`; a large array as it is."""
    if is_large(values.size):
        return values
    return np.pad(values, ((0, 0), (0, -values.shape[1] % COLUMNS)))


SCRATCH = 1 << 27
"""Bytes (134 MB) from which an array lies in a temporary file."""


def zeros(shape: Sequence[int], dtype: np.dtype | type = np.float64) -> np.ndarray:
    """Return zeros; a large array lies in a temporary file, whose pages the system can take from memory.

    The file is in ``$TMPDIR``, or /var/tmp, without a name, and goes with the array. Where a file of that size cannot
    be reserved (no room, or a system without ``posix_fallocate``) the array is in memory like any other.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    if size >= SCRATCH and hasattr(os, "posix_fallocate"):
        try:
            with tempfile.TemporaryFile(dir=_folder()) as file:
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


def rows_of(array: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return ``array[index]``, see `zeros`."""
    new = zeros((len(index), *array.shape[1:]), array.dtype)
    return np.take(array, index, axis=0, out=new, mode="clip")  # any other mode makes a whole copy first


def _folder() -> str | None:
    """Return where large files belong: /tmp may itself be memory. None leaves it to Python."""
    large = "/var/tmp"
    return large if "TMPDIR" not in os.environ and Path(large).is_dir() else None
