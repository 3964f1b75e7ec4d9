"""Rows shared out over all processes and their devices, and files that process 0 alone reads and
writes.

Every process of ``jax.distributed`` runs the same program on the same data. It computes its share
of the rows on its own devices, and gets the results of all: nothing waits for another process but
at the end of a block of work.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, Int
from tqdm import tqdm

from mcmcpost.core.precision import in_either_precision

BATCH_SIZE = 512
"""Rows that a function is evaluated at together on each device."""

_AXIS = "rows"


def map_rows(
    function: Callable[[Any], Any],
    rows: Any,
    *,
    batch_size: int = BATCH_SIZE,
    full_blocks: bool = False,
    progress: str | None = None,
) -> Any:
    """Return ``function(row)`` for every row, vectorised over blocks of one size and over all
    devices.

    In 64 bits, unless JAX knows the arrays that `function` reads in 32 alone, see
    `in_either_precision`.

    A later call with the same function and size of block finds the compiled program again. The last
    block is filled with copies of the last row, whose results are dropped. Every process must make
    the call, with the same rows.

    Parameters
    ----------
    function : of one row, written in JAX.
    rows : an array (n, ...), or a pytree of them, n at least 1.
    batch_size : rows of a block on each device at most; memory grows with it.
    full_blocks : make every block that large, so that calls with different n share a program. By
        default the blocks are as equal as they can be, so that little is computed twice.
    progress : title of a progress bar, shown on a terminal by process 0 only; None for no bar.

    Returns
    -------
    The pytree that `function` returns, of NumPy arrays (n, ...), in every process.
    """
    size = len(jax.tree.leaves(rows)[0])
    mine = rows_of_process(size)
    devices = jax.local_device_count()
    steps = -(-len(mine) // (batch_size * devices))
    block = devices * (batch_size if full_blocks else -(-len(mine) // (steps * devices)))
    vectorised = jax.vmap(jax.jit(function))  # in this order JAX finds the compiled function again

    def run() -> Any:
        parts = []
        for step in tqdm(
            range(steps), desc=progress, disable=no_bar(progress is not None), leave=False
        ):
            index = mine[np.minimum(np.arange(step * block, (step + 1) * block), len(mine) - 1)]
            block_values = vectorised(
                jax.tree.map(lambda leaf, index=index: over_devices(leaf[index]), rows)
            )
            parts.append(jax.tree.map(np.asarray, block_values))
        local = jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(mine)], *parts)
        return gather_rows(local, size)

    return in_either_precision(run)


def host_generator(key: jax.Array) -> np.random.Generator:
    """Return NumPy's generator from a key of JAX: arrays on the host need no compilation, which for
    every new shape takes half a second."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).reshape(-1))


def over_devices(array: Array | np.ndarray) -> Array:
    """Return an array with its leading axis over this process's devices; its size must divide by
    their number."""
    devices = jax.local_devices()
    if len(devices) == 1:
        return jax.device_put(array)  # `jnp.asarray` compiles a program for every new shape
    # An Auto mesh partitions the vmapped function; shard_map would break diffrax's default adjoint.
    mesh = jax.make_mesh((len(devices),), (_AXIS,), axis_types=(AxisType.Auto,), devices=devices)
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(_AXIS)))


def rows_of_process(size: int) -> Int[np.ndarray, " r"]:
    """Return the indices of the rows that this process computes, equally many in each; the last row
    may be repeated."""
    share = -(-size // jax.process_count())
    return np.minimum(np.arange(share) + jax.process_index() * share, size - 1)


def gather_rows(local: Any, size: int, *, axis: int = 0) -> Any:
    """Return all rows, in every process, of a pytree of arrays of `rows_of_process` along an
    axis.

    Every process must make the call; under 64-bit JAX, without which other processes see single
    precision.
    """

    def whole(leaf: Any) -> np.ndarray:
        array = np.asarray(leaf)
        if jax.process_count() > 1:
            array = np.concatenate(multihost_utils.process_allgather(array), axis)
        return array[(slice(None),) * axis + (slice(size),)]

    return jax.tree.map(whole, local)


def is_first_process() -> bool:
    """Return whether this is process 0, which writes files; so is a program without
    ``jax.distributed``."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def no_bar(progress: bool) -> bool | None:
    """Return tqdm's `disable`: None, which shows a bar on a terminal only, in process 0 if there is
    to be one."""
    return None if progress and is_first_process() else True


def read_everywhere(path: Path) -> bytes | None:
    """Return what process 0 reads from a file, in every process; None where process 0 has no such
    file.

    Under 64-bit JAX, in which the size of the file has room.
    """
    content = path.read_bytes() if is_first_process() and path.exists() else None
    if jax.process_count() == 1:
        return content
    size = int(
        multihost_utils.broadcast_one_to_all(np.int64(-1 if content is None else len(content)))
    )
    if size < 0:
        return None
    return multihost_utils.broadcast_one_to_all(
        np.frombuffer(content or bytes(size), np.uint8)
    ).tobytes()
