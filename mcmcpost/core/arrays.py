"""Long axes in blocks, arrays that may be larger than memory, and draws that stay in the chunks of a dask array.

Columns are padded to share programs. Functions of stored draws are computed by dask a few chunks at a time. Dask is
imported where such an array is given, which cannot exist without it.
"""

import itertools
import math
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from mcmcpost.core.precision import in_float64

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


class Survey(NamedTuple):
    """What is known of a chunk: the range and sum of its columns, every so many of its rows, a number for each row.

    labels : None where nobody asked for them.
    """

    low: Float[np.ndarray, " d"]
    high: Float[np.ndarray, " d"]
    total: Float[np.ndarray, " d"]
    sample: Float[np.ndarray, "c s d"]
    labels: Int[np.ndarray, "c n"] | None


@dataclass(frozen=True)
class StoredArray:
    """Draws or scores (c, n, d) in the chunks of a dask array that was read once.

    source : the dask array, every chunk with all d columns.
    low, high, mean : (d,) of each column, not finite where it is not.
    sample : (c, s, d) every `sampling_step`-th draw. labels : (c, n) numbers that tell rows apart, None for scores.
    """

    source: Any
    low: Float[np.ndarray, " d"]
    high: Float[np.ndarray, " d"]
    mean: Float[np.ndarray, " d"]
    sample: Float[np.ndarray, "c s d"]
    labels: Int[np.ndarray, "c n"] | None

    @classmethod
    def of(
        cls, source: Any, chunks: tuple[tuple[int, ...], ...] | None = None, *, labelled: bool = True
    ) -> "StoredArray":
        """Return a dask array (c, n, d), read once, in `chunks` of chains and draws: by default its own, if not small.

        Neighbouring chunks of less than 8 MB together are read as one. Its rows are `labelled`, or not.
        """
        c, n, d = source.shape
        if chunks is None:
            chains, draws = source.chunks[:2]
            chunks = (chains, merged(draws, max(1, ENTRIES // (max(chains) * d))))
        source = source.rechunk((*chunks, (d,)))
        step = sampling_step(source.shape)
        low, high, total = np.full(d, np.inf), np.full(d, -np.inf), np.zeros(d)
        sample, labels = np.empty((c, -(-n // step), d)), zeros((c, n), np.int64) if labelled else None
        for box, found in over_chunks(_survey, (source,), lambda box: (-box.draws.start % step, step, labelled)):
            with np.errstate(invalid="ignore"):
                low, high = np.minimum(low, found.low), np.maximum(high, found.high)
                total += found.total
            first = -(-box.draws.start // step)
            sample[box.chains, first : first + found.sample.shape[1]] = found.sample
            if labels is not None:
                labels[box.chains, box.draws] = found.labels
        return cls(source, low, high, total / (c * n), sample, labels)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.source.shape)

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float64)

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """The lengths of the chunks along chains and draws."""
        return tuple(self.source.chunks[:2])

    def columns(self, kept: Bool[np.ndarray, " d"]) -> "StoredArray":
        """Return some of the columns. The labels stay, which is right where the others do not vary."""
        parts = {name: getattr(self, name)[kept] for name in ("low", "high", "mean")}
        return replace(self, source=self.source[..., kept], sample=self.sample[..., kept], **parts)

    def rows(self, places: Int[np.ndarray, " k"]) -> "StoredRows":
        """Return some rows, in order, as they are; chains are concatenated."""
        d = self.shape[2]
        return StoredRows(self, places, len(places), np.zeros(d), np.eye(d))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return read_chunks(self.source, np.float64 if dtype is None else dtype)


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


def _survey(block: np.ndarray, start: int, step: int, labelled: bool) -> Survey:
    c, n, d = block.shape
    low, high, total = np.full(d, np.inf), np.full(d, -np.inf), np.zeros(d)
    labels = np.empty((c, n), np.int64) if labelled else None
    multipliers = np.random.default_rng(0).integers(2**62, size=d, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    for chain, part in enumerate(block):
        for some in in_blocks(n, d):
            rows = part[some].astype(np.float64) + 0.0  # a zero has two signs
            with np.errstate(invalid="ignore", over="ignore"):
                low, high = np.minimum(low, rows.min(axis=0)), np.maximum(high, rows.max(axis=0))
                total += rows.sum(axis=0)
            if labels is not None:
                labels[chain, some] = (_mixed(rows.view(np.uint64)) * multipliers).sum(axis=1).view(np.int64)
    return Survey(low, high, total, block[:, start::step].astype(np.float64), labels)


def _mixed(bits: np.ndarray) -> np.ndarray:
    """Return other bits for each number, one to one; those of numbers in single precision end in zeros."""
    bits = (bits ^ (bits >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    return bits ^ (bits >> np.uint64(33))


@dataclass(frozen=True)
class StoredRows:
    """Rows (m, d) of draws or scores that stay where they are stored: (x − shift)·matrix, and rows of zeros after them.

    places : (k,) which rows x they are, chains concatenated, in order. size : m, at least k.
    """

    stored: StoredArray
    places: Int[np.ndarray, " k"]
    size: int
    shift: Float[np.ndarray, " e"]
    matrix: Float[np.ndarray, "e d"]

    @property
    def shape(self) -> tuple[int, int]:
        return self.size, self.matrix.shape[1]

    @property
    def dtype(self) -> np.dtype:
        return np.dtype(np.float64)

    def __len__(self) -> int:
        return self.size

    def __matmul__(self, matrix: Float[np.ndarray, "d e"]) -> "StoredRows":
        return replace(self, matrix=self.matrix @ matrix)

    def __getitem__(self, index: np.ndarray | slice) -> np.ndarray:
        """Return the rows of a slice or of an array of any shape."""
        wanted = np.arange(self.size)[index]
        found = zeros((wanted.size, self.shape[1]))
        order = np.argsort(wanted, axis=None, kind="stable")
        order = order[: np.searchsorted(wanted.reshape(-1)[order], len(self.places))]
        part = replace(self, places=self.places[wanted.reshape(-1)[order]], size=len(order))
        for rows, values in over_rows(_themselves, (part,)):
            found[order[rows]] = values
        return found.reshape(*wanted.shape, -1)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(np.float64 if dtype is None else dtype, copy=False)


def _themselves(rows: np.ndarray) -> np.ndarray:
    return rows


def over_chunks(
    function: Callable[..., Any],
    sources: Sequence[Any],
    inputs: Callable[[Box], tuple | None],
    *,
    entries: int = 1,
) -> Iterator[tuple[Box, Any]]:
    """Yield ``function(*blocks, *inputs(box))`` of the chunks of dask arrays (c, n, d), in order, and their boxes.

    Parameters
    ----------
    sources : with the same chunks.
    inputs : what else the function is given; None leaves a chunk out.
    entries : numbers in a result: of large ones fewer are computed at a time.
    """
    import dask

    boxes = (Box(*place) for place in itertools.product(*map(slices_of, sources[0].chunks[:2])))
    blocks = zip(*(source.to_delayed().reshape(-1) for source in sources), strict=True)
    chunks = ((box, given, own) for box, own in zip(boxes, blocks, strict=True) if (given := inputs(box)) is not None)
    task = dask.delayed(function, pure=False, traverse=False)
    for batch in itertools.batched(chunks, max(1, min(WINDOW, 4 * LARGE // max(entries, 1)))):
        results = _compute([task(*own, *given) for _, given, own in batch])
        yield from zip((box for box, _, _ in batch), results, strict=True)


def over_rows(
    function: Callable[..., Any],
    rows: Sequence[np.ndarray | StoredRows],
    arrays: Sequence[np.ndarray] = (),
    constants: tuple = (),
    *,
    entries: int = 1,
) -> Iterator[tuple[Int[np.ndarray, " b"] | slice, Any]]:
    """Yield ``function(*some rows, *the same rows of arrays, *constants)`` and which rows, until all had their turn.

    Rows in memory have it at once. Of stored rows it is those of a chunk; dask runs the function, in float64, where it
    has the chunk.

    Parameters
    ----------
    rows, arrays : (m, ...) each; of stored rows all, with the same places.
    entries : as in `over_chunks`.
    """
    first = rows[0]
    if isinstance(first, np.ndarray):
        yield slice(0, len(first)), function(*rows, *arrays, *constants)
        return
    stored = [part for part in rows if isinstance(part, StoredRows)]
    n = first.stored.shape[1]
    maps = [(part.shift, part.matrix) for part in stored]
    members: dict[Box, np.ndarray] = {}

    def inputs(box: Box) -> tuple | None:
        index, local = _inside(box, first.places, n)
        if not len(index):
            return None
        members[box] = index
        return function, maps, local, [array[index] for array in arrays], constants

    sources = [part.stored.source for part in stored]
    for box, found in over_chunks(_on_rows, sources, inputs, entries=entries):
        yield members.pop(box), found


def _inside(box: Box, places: Int[np.ndarray, " k"], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return which places are in a box, and where in it, its chains concatenated."""
    chains = np.arange(box.chains.start, box.chains.stop)
    ends = np.searchsorted(places, np.stack([chains * n + box.draws.start, chains * n + box.draws.stop]))
    index = np.concatenate([np.arange(*end) for end in ends.T])
    chain, draw = np.divmod(places[index], n)
    return index, (chain - box.chains.start) * (box.draws.stop - box.draws.start) + draw - box.draws.start


def _on_rows(*given: Any) -> Any:
    """Return a function of the rows that are chosen of some blocks."""
    *blocks, function, maps, local, arrays, constants = given
    rows = [
        (block.reshape(-1, block.shape[-1])[local] - shift) @ matrix
        for block, (shift, matrix) in zip(blocks, maps, strict=True)
    ]
    return in_float64(function)(*rows, *arrays, *constants)
