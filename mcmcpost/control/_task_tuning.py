"""Kernel, task covariance and nugget of a vector-valued control variate: given, by likelihood, or by convex steps."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mcmcpost._checks import fault
from mcmcpost.control._joint_problem import JointProblem
from mcmcpost.control._task_covariance import alternating_task_covariance
from mcmcpost.control._tuning import DEFAULT_NUGGET
from mcmcpost.hyper import maximise_task_likelihood
from mcmcpost.kernels import AbstractKernel, SquaredExponential
from mcmcpost.linops import tile_gram
from mcmcpost.stein import Coregionalisation, matrix_stein_tile

MAX_FULL_TASKS = 10
LOW_RANK = 3
START_CORRELATION = 0.9
NUGGET_STEP = 10.0


class TaskREML(eqx.Module):
    """Restricted maximum likelihood of kernel, task covariance and nugget by L-BFGS, all tasks jointly.

    squared_lengthscales : starting points on standard coordinates, one lengthscale per coordinate from each: large
        ones for the near-polynomial flat limit, a short one for rough integrands; one start leaves rare outliers
        (MATH.md section 2).
    nugget : where the nugget starts, which is tuned unless the method gives one; high, and it falls where it can.
    rank : B = WWᵀ + diagonal with so many columns of W; by default B = LLᵀ up to ten tasks, rank three beyond.
    max_draws : rows that the likelihood sees, evenly spaced within tasks.
    max_steps : of L-BFGS, from each start; at most twice as many likelihood evaluations.
    """

    squared_lengthscales: tuple[float, ...] = (3.0, 100.0, 1000.0)
    nugget: float = 1e-2
    rank: int | None = None
    max_draws: int = 600
    max_steps: int = 100


class ConvexTaskCovariance(eqx.Module):
    """B by the alternating convex scheme of Sun, Barp and Briol (2023), Appendix D.3, for tasks with one target.

    The kernel and the nugget are tuned first, with B = I as in their Appendix D.2. By restricted likelihood
    (`TaskREML`) B is better where draws differ: the penalty ‖B‖² here compresses correlations.

    penalty : λ. deltas : the decreasing sequence δ.
    kernel : how the kernel is tuned.
    """

    penalty: float = 1e-5
    deltas: tuple[float, ...] = (1e-1, 1e-2, 1e-3)
    kernel: TaskREML = eqx.field(default_factory=TaskREML)


class TaskModel(NamedTuple):
    """What is given of a matrix-valued kernel, None for what is to be found.

    kernel : one kernel, or several with their covariances. covariance : (t, t) B. nugget : relative η.
    order : of the Langevin operator. tuning : how the rest is found.
    """

    kernel: AbstractKernel | Coregionalisation | None
    covariance: Float[np.ndarray, "t t"] | None
    nugget: float | None
    order: int
    tuning: TaskREML | ConvexTaskCovariance | None

    @property
    def is_given(self) -> bool:
        """Whether nothing is to be tuned."""
        between = self.covariance is not None or isinstance(self.kernel, Coregionalisation)
        return self.kernel is not None and between and self.tuning is None


def tune_tasks(
    joint: JointProblem, design: Float[np.ndarray, "m q"], model: TaskModel
) -> tuple[Coregionalisation, float]:
    """Return the matrix-valued kernel and the nugget for the tasks of a joint problem.

    design : (m, q) the unpenalised part, task indicators first.

    Raises
    ------
    ValueError : no nugget below one makes the kernel matrix positive definite.
    """
    num_tasks, d = joint.num_tasks, joint.draws.shape[1]
    if isinstance(model.tuning, ConvexTaskCovariance):
        return _convex(joint, design, model, model.tuning)
    tuning = model.tuning or TaskREML()
    if isinstance(model.kernel, Coregionalisation):
        starts: tuple[Coregionalisation, ...] = (model.kernel,)
    else:
        between = _first_covariance(joint) if model.covariance is None else model.covariance
        lengths = tuning.squared_lengthscales
        default = tuple(SquaredExponential(np.sqrt(v) * np.ones(d)) for v in lengths)
        kernels = default if model.kernel is None else (model.kernel,)
        starts = tuple(Coregionalisation((kernel,), between[None], model.order) for kernel in kernels)
    if model.is_given:
        return starts[0], model.nugget or DEFAULT_NUGGET
    rows = _some_rows(joint, max(tuning.max_draws, 2 * design.shape[1]))
    nugget = tuning.nugget if model.nugget is None else model.nugget
    while nugget < 1.0:
        tuned = maximise_task_likelihood(
            starts,
            joint.draws[rows],
            joint.scores[rows],
            joint.labels[rows],
            design[rows],
            joint.values[rows],
            joint.counts[rows],
            nugget=nugget,
            free_nugget=model.nugget is None,
            learn_kernel=model.kernel is None or model.tuning is not None,
            learn_covariance=model.covariance is None and num_tasks > 1,
            rank=(tuning.rank or LOW_RANK) if num_tasks > MAX_FULL_TASKS or tuning.rank else None,
            max_steps=tuning.max_steps,
        )
        if tuned is not None:
            return tuned.kernel, tuned.nugget if model.nugget is None else model.nugget
        nugget *= NUGGET_STEP
    raise ValueError(
        fault(
            "VectorValued",
            "a positive definite kernel matrix under some nugget below one",
            f"none for {num_tasks} tasks of {np.diff(joint.starts).tolist()} states",
            "Pass a kernel with a shorter lengthscale.",
        )
    )


def _convex(
    joint: JointProblem, design: Float[np.ndarray, "m q"], model: TaskModel, tuning: ConvexTaskCovariance
) -> tuple[Coregionalisation, float]:
    """Return the kernel tuned with B = I, and B by the convex scheme."""
    separate = model._replace(covariance=np.eye(joint.num_tasks), tuning=tuning.kernel)
    tuned, nugget = tune_tasks(joint, design, separate)
    rows = _some_rows(joint, tuning.kernel.max_draws)
    one = matrix_stein_tile(Coregionalisation(tuned.kernels, np.ones((1, 1, 1)), model.order))
    points = tuple(jnp.asarray(a) for a in (joint.draws[rows], joint.scores[rows], np.ones((len(rows), 1))))
    gram = tile_gram(one, points)
    found = alternating_task_covariance(
        gram / jnp.mean(jnp.diagonal(gram)),
        joint.labels[rows],
        joint.values[rows],
        penalty=tuning.penalty,
        deltas=tuning.deltas,
    )
    return Coregionalisation(tuned.kernels, floored(found.covariance)[None], model.order), nugget


def _first_covariance(joint: JointProblem) -> Float[np.ndarray, "t t"]:
    """Return the start of B: tasks whose ridge coefficients on the scores point the same way are related."""
    slopes = []
    for t in range(joint.num_tasks):
        rows = joint.rows_of(t)
        scores, weight = joint.scores[rows], joint.counts[rows][:, None]
        ridge = np.trace(scores.T @ (weight * scores)) / scores.shape[1]
        gram = scores.T @ (weight * scores) + ridge * np.eye(scores.shape[1])
        slope = np.linalg.solve(gram, scores.T @ (weight[:, 0] * joint.values[rows]))
        norm = np.linalg.norm(slope)
        slopes.append(slope / norm if norm > 0 else slope)
    related = np.array(slopes) @ np.array(slopes).T
    np.fill_diagonal(related, 1.0)
    return START_CORRELATION * related + (1 - START_CORRELATION) * np.eye(joint.num_tasks)


def _some_rows(joint: JointProblem, size: int) -> np.ndarray:
    """Return at most about `size` rows, evenly spaced within each task and at least two of each."""
    sizes = np.diff(joint.starts)
    share = min(1.0, size / sizes.sum())
    parts = []
    for start, n in zip(joint.starts[:-1], sizes, strict=True):
        parts.append(start + np.linspace(0, n - 1, max(min(n, 2), int(n * share))).astype(int))
    return np.concatenate(parts)


def floored(covariance: Float[np.ndarray, "t t"]) -> Float[np.ndarray, "t t"]:
    """Return the covariance with a floor under its spectrum, so that exact copies of a task stay positive definite."""
    return covariance + 1e-8 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
