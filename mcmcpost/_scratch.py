"""Arrays that may be larger than memory: beyond a size they lie in temporary files."""

import math
import mmap
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

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
