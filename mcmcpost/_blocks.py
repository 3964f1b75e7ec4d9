"""Blocks of a long axis, so that what is computed on the way stays small beside a large trace."""

from collections.abc import Iterator

ENTRIES = 1 << 20
"""Of a block that is formed on the way: 8 MB."""
LARGE = 1 << 22
"""Entries (32 MB) above which an array is not formed whole."""


def is_large(entries: int) -> bool:
    """Return whether an array is to be worked through in blocks."""
    return entries > LARGE


def in_blocks(length: int, width: int) -> Iterator[slice]:
    """Yield slices of an axis of `length`, each of at most `ENTRIES` entries where one index has `width` of them."""
    step = max(1, ENTRIES // max(width, 1))
    yield from (slice(start, min(start + step, length)) for start in range(0, length, step))
