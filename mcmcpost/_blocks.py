"""Blocks of a long axis, so that what is computed on the way stays small; columns, so that programs are shared."""

from collections.abc import Iterator

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
