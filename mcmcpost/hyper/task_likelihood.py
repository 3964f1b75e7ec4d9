"""Task covariance and kernel of vector-valued control variates, jointly, by restricted maximum likelihood."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.hyper.optimisers import KERNEL_MEMORY, LBFGS, TrainingProblem
from mcmcpost.hyper.parameters import Packing, is_positive
from mcmcpost.hyper.restricted_likelihood import negative_restricted_likelihood
from mcmcpost.kernels import AbstractKernel
from mcmcpost.linops import tile_diagonal, tile_gram
from mcmcpost.stein import Coregionalisation, MatrixSteinTile

TASK_NUGGET_BOUNDS = (1e-10, 1e2)
"""The lower bound is below that for one task, because related tasks determine each other to more digits."""

TASK_RANGE = np.exp(12.0)
"""Parameters of kernels stay within this factor of their start. Without a prior an inert coordinate may become flat."""

LOG_DIAGONAL_BOUNDS = (-14.0, 6.0)

ROUNDING = 1e-13
"""Added to a learnt B, relative to its trace: tasks that are multiples of each other make it singular to rounding."""

COVARIANCE_FLOOR = 1e-6
"""Relative size of the smallest eigenvalue of a covariance that starts a search."""


class TaskParameters(NamedTuple):
    """The kernels, the entries (q, e) of the factors of their covariances, and the nugget."""

    kernels: Any
    entries: Any
    nugget: Any


class TasksTuned(NamedTuple):
    """A matrix-valued kernel and nugget at a maximum of the restricted likelihood.

    kernel : its covariances carry the scale of their kernels, K_q/mean(diag K_q).
    nugget : relative η.
    loss : negative log restricted likelihood there, nats.
    num_evaluations : likelihood evaluations over all starts.
    """

    kernel: Coregionalisation
    nugget: float
    loss: float
    num_evaluations: int


def maximise_task_likelihood(
    starts: tuple[Coregionalisation, ...],
    draws: Float[np.ndarray, "m d"],
    scores: Float[np.ndarray, "m d"],
    tasks: Int[np.ndarray, " m"],
    basis: Float[np.ndarray, "m q"],
    values: Float[np.ndarray, " m"],
    counts: Float[np.ndarray, " m"],
    *,
    nugget: float,
    free_nugget: bool,
    learn_kernel: bool = True,
    learn_covariance: bool = True,
    rank: int | None = None,
    max_steps: int = 80,
) -> TasksTuned | None:
    """Tune kernels, the B_q and the nugget η of A = Σ B_q⊗K_q/mean(diag) + η·diag(1/n) for all tasks together.

    docs/mathematics.md section 2 (the recipe that turns the borehole error of 1.29 at m = 20 into 0.0007); Sun, Barp
    and Briol (2023), Appendix D.2, with the quadratic form that its print lost. B = LLᵀ with a positive diagonal, or
    WWᵀ + diag with W of `rank` columns. The overall amplitude is profiled out, the constants by generalised least
    squares.

    Parameters
    ----------
    starts : kernels of one structure, with covariances for K_q/mean(diag K_q).
    draws, scores : (m, d), each row with its own task's score. tasks : (m,) labels.
    basis : (m, q), the unpenalised part, task indicators first. values : (m,), of unit scale per task.
    counts : (m,) copies n of each state.
    nugget : relative η, fixed or starting point.

    Returns
    -------
    The best of all starts, or None where the likelihood is finite at none of them: raise the nugget.
    """
    num_tasks = starts[0].num_tasks
    data = jax.device_put((draws, scores, np.eye(num_tasks)[tasks], basis, values[:, None], 1 / counts))
    logs = _positive_entries(num_tasks, rank)
    free = TaskParameters(is_positive if learn_kernel else False, learn_covariance, free_nugget)
    packings, problems = [], []
    for start in starts:
        entries = np.stack([_covariance_entries(b, rank) for b in np.asarray(start.covariances)])
        tree = TaskParameters(start.kernels, entries, np.asarray(nugget))
        packing = Packing(tree, free=free, positive=TaskParameters(True, logs, True))
        initial = packing.pack(tree)
        bounds = packing.box(initial, TASK_RANGE)
        bounds[packing.where(TaskParameters(False, logs, False))] = LOG_DIAGONAL_BOUNDS
        bounds[packing.where(TaskParameters(False, False, True))] = np.log(TASK_NUGGET_BOUNDS)
        loss = functools.partial(_task_loss, packing, num_tasks, rank, start.order, data)
        packings.append(packing)
        problems.append(TrainingProblem(loss, initial, bounds))
    best = LBFGS(max_steps, memory=KERNEL_MEMORY).minimise_from(problems)
    if best is None:
        return None
    if not best.x.size:
        return TasksTuned(_scaled(starts[best.start], draws, scores), nugget, best.value, best.num_evaluations)
    found: TaskParameters = packings[best.start].unpack(jnp.asarray(best.x))
    between = np.asarray(_covariances(jnp.asarray(found.entries), num_tasks, rank))
    between = between + ROUNDING * np.trace(between, axis1=1, axis2=2)[:, None, None] * np.eye(num_tasks)
    tuned = Coregionalisation(jax.tree.map(np.asarray, found.kernels), between, starts[0].order)
    return TasksTuned(_scaled(tuned, draws, scores), float(found.nugget), best.value, best.num_evaluations)


def _scaled(kernel: Coregionalisation, draws: np.ndarray, scores: np.ndarray) -> Coregionalisation:
    """Return the kernel with each B_q divided by the mean of diag K_q."""
    points = jax.device_put((draws, scores))
    scales = np.array([float(_kernel_scale(k, kernel.order, *points)) for k in kernel.kernels])
    covariances = np.asarray(kernel.covariances) / scales[:, None, None]
    return Coregionalisation(kernel.kernels, covariances, kernel.order)


def _kernel_scale(kernel: AbstractKernel, order: int, draws: Array, scores: Array) -> Float[Array, ""]:
    one = jnp.ones((draws.shape[0], 1), draws.dtype)
    tile = MatrixSteinTile((kernel,), jnp.ones((1, 1, 1), draws.dtype), order)
    return jnp.mean(tile_diagonal(tile, (draws, scores, one)))


def _positive_entries(num_tasks: int, rank: int | None) -> Bool[np.ndarray, " e"]:
    if rank is None:
        rows, columns = np.tril_indices(num_tasks)
        return rows == columns
    return np.repeat([False, True], [num_tasks * rank, num_tasks])


def _covariance_entries(covariance: Float[np.ndarray, "t t"], rank: int | None) -> Float[np.ndarray, " e"]:
    """Return the parameters of B: the lower triangle of its factor, or W and the rest of the diagonal."""
    num_tasks = len(covariance)
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, COVARIANCE_FLOOR * values[-1])
    if rank is None:
        return np.linalg.cholesky((vectors * values) @ vectors.T)[np.tril_indices(num_tasks)]
    factor = vectors[:, -rank:] * np.sqrt(values[-rank:])
    rest = np.maximum(np.diagonal(covariance) - (factor**2).sum(axis=1), 1e-2 * np.diagonal(covariance))
    return np.concatenate([factor.ravel(), rest])


def _covariances(entries: Float[Array, "q e"], num_tasks: int, rank: int | None) -> Float[Array, "q t t"]:
    def covariance(entry: Float[Array, " e"]) -> Float[Array, "t t"]:
        if rank is None:
            factor = jnp.zeros((num_tasks, num_tasks), entry.dtype).at[np.tril_indices(num_tasks)].set(entry)
            return factor @ factor.T
        factor = entry[: num_tasks * rank].reshape(num_tasks, rank)
        return factor @ factor.T + jnp.diag(entry[num_tasks * rank :])

    return jax.vmap(covariance)(entries)


@eqx.filter_jit
def _task_loss(
    packing: Packing,
    num_tasks: int,
    rank: int | None,
    order: int,
    data: tuple[Array, ...],
    x: Float[Array, " h"],
) -> tuple[Float[Array, ""], Float[Array, " h"]]:
    draws, scores, tasks, basis, values, noise = data

    def covariance(x: Float[Array, " h"]) -> Float[Array, "m m"]:
        kernels, entries, nugget = packing.unpack(x)
        between = _covariances(entries, num_tasks, rank)
        scales = jnp.stack([_kernel_scale(kernel, order, draws, scores) for kernel in kernels])
        gram = tile_gram(MatrixSteinTile(kernels, between / scales[:, None, None], order), (draws, scores, tasks))
        return gram / jnp.mean(jnp.diagonal(gram)) + nugget * jnp.diag(noise)

    matrix, pull_back = jax.vjp(covariance, jnp.asarray(x))
    likelihood = negative_restricted_likelihood(matrix, basis, values)
    return jnp.sum(likelihood.losses), pull_back(likelihood.slope)[0]
