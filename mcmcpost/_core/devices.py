"""Rows shared out over all devices: placing them there, and a function of one row at many rows."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array
from tqdm import tqdm

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
    """Return ``function(row)`` for every row, in 64 bits, vectorised over blocks of one size and over all devices.

    A later call with the same function and size of block finds the compiled program again. The last block is filled
    with copies of the last row, whose results are dropped.

    Parameters
    ----------
    function : of one row, written in JAX.
    rows : an array (n, ...), or a pytree of them, n at least 1.
    batch_size : rows of a block on each device at most; memory grows with it.
    full_blocks : make every block that large, so that calls with different n share a program. By default the blocks are
        as equal as they can be, so that little is computed twice.
    progress : title of a progress bar, shown on a terminal only; None for no bar.

    Returns
    -------
    The pytree that `function` returns, of NumPy arrays (n, ...).
    """
    with jax.enable_x64(True):
        size = len(jax.tree.leaves(rows)[0])
        devices = jax.device_count()
        steps = -(-size // (batch_size * devices))
        block = devices * (batch_size if full_blocks else -(-size // (steps * devices)))
        vectorised = jax.vmap(jax.jit(function))  # in this order JAX finds the compiled function again
        parts = []
        # tqdm takes None for "only on a terminal".
        for step in tqdm(range(steps), desc=progress, disable=True if progress is None else None, leave=False):
            index = np.minimum(np.arange(step * block, (step + 1) * block), size - 1)
            found = vectorised(jax.tree.map(lambda leaf, index=index: over_devices(leaf[index]), rows))
            parts.append(jax.tree.map(np.asarray, found))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves)[:size], *parts)


def over_devices(array: Array | np.ndarray) -> Array:
    """Return an array with its leading axis over all devices; its size must divide by their number."""
    devices = jax.devices()
    if len(devices) == 1:
        return jnp.asarray(array)
    # An Auto mesh partitions the vmapped function; shard_map would break diffrax's default adjoint.
    mesh = jax.make_mesh((len(devices),), (_AXIS,), axis_types=(AxisType.Auto,), devices=devices)
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(_AXIS)))
