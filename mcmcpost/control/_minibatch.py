"""Mini-batches with a fixed share of every task, of single draws or of contiguous blocks of a chain."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mcmcpost._checks import fault
from mcmcpost.control._task_family import task_sizes


class Schedule(NamedTuple):
    """An epoch of mini-batches of units, a unit being `block` consecutive rows of one chain of one task.

    units : (u, ℓ) row numbers, sorted by task. tasks : (u,) the task of each unit.
    slots : (e, b) positions, sorted by task, of the units of each of the e steps in a shuffled list of units.
    counts : (T,) units of each task in a step. sizes : (T,) units of each task.
    """

    units: Int[Array, "u l"]
    tasks: Int[Array, " u"]
    slots: Int[Array, "e b"]
    counts: Int[Array, " t"]
    sizes: Int[Array, " t"]


def proportional_counts(sizes: Int[np.ndarray, " t"], total: int) -> Int[np.ndarray, " t"]:
    """Split `total` in proportion to `sizes` by largest remainders, at least one each and no more than there are.

    Exact wherever total·m_t/Σm is an integer, else within one of it unless a small task was rounded up to one.
    """
    total = min(total, int(sizes.sum()))
    quota = total * sizes / sizes.sum()
    counts = np.maximum(np.floor(quota).astype(int), 1)
    while counts.sum() < total:
        counts[np.argmax(np.where(counts < sizes, quota - counts, -np.inf))] += 1
    while counts.sum() > total:
        counts[np.argmax(np.where(counts > 1, counts - quota, -np.inf))] -= 1
    return counts


def make_schedule(
    tasks: Int[np.ndarray, " m"],
    *,
    num_tasks: int,
    batch_size: int,
    block: int | None = 1,
    chains: Int[np.ndarray, " m"] | None = None,
) -> Schedule:
    """Cut the rows into units and lay out the steps of an epoch.

    An epoch has max_t ⌈u_t/b_t⌉ steps. A task that is through earlier starts again, so every step has the same
    counts, no row comes twice in one step, and every unit is equally likely to be met.

    Parameters
    ----------
    tasks : (m,) labels 0, …, T − 1; rows of one chain of one task are in draw order.
    batch_size : rows in a step, at least T; with blocks, at least one block of each task is taken all the same.
    block : rows of a unit; None for ⌊√n⌋, n the length of the shortest chain. Rows that do not fill a block are left
        out at the start of their chain.
    chains : (m,) labels; None where each task is one chain.

    Raises
    ------
    ValueError
        if a label is out of range, `batch_size` is below T, or a chain is shorter than `block`.
    """
    sizes = task_sizes("Stochastic", tasks, num_tasks)
    if batch_size < num_tasks:
        cure = "A mini-batch holds at least one draw of each task."
        raise ValueError(fault("Stochastic", f"`batch_size` of at least {num_tasks} tasks", batch_size, cure))
    labels = np.zeros_like(tasks) if chains is None else np.asarray(chains)
    runs = [np.flatnonzero((tasks == t) & (labels == c)) for t, c in np.unique(np.stack([tasks, labels], 1), axis=0)]
    shortest = min(len(run) for run in runs)
    length = max(int(np.sqrt(shortest)), 1) if block is None else block
    if length > shortest:
        cure = "Use a shorter block: a block must not straddle two chains."
        raise ValueError(fault("ChainVariance", f"`block` of at most {shortest}, the shortest chain", length, cure))
    units = np.concatenate([run[len(run) % length :].reshape(-1, length) for run in runs])
    owner = np.asarray(tasks)[units[:, 0]]
    sizes = np.bincount(owner, minlength=num_tasks)
    counts = proportional_counts(sizes, max(num_tasks, batch_size // length))
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    steps = np.arange(int(np.max(-(-sizes // counts))))[:, None]
    slots = np.concatenate(
        [
            start + (steps * count + np.arange(count)[None]) % size
            for start, count, size in zip(starts, counts, sizes, strict=True)
        ],
        axis=1,
    )
    return Schedule(*(jnp.asarray(a) for a in (units, owner, slots, counts, sizes)))


def shuffled_units(schedule: Schedule, *, key: PRNGKeyArray) -> Int[Array, "e b"]:
    """Return the units of every step of one epoch, shuffled within tasks; column i is always of one task."""
    order = jnp.lexsort((jax.random.uniform(key, schedule.tasks.shape), schedule.tasks))
    return order[schedule.slots]


def unit_weights(schedule: Schedule, dtype: np.dtype) -> Float[Array, " b"]:
    """Return 1/b_t for the columns of a step: Σ over them is Σ_t of the mean over the units of task t."""
    return (1 / schedule.counts.astype(dtype))[schedule.tasks[schedule.slots[0]]]
