"""The choice of the kernel, task covariance and nugget of a vector-valued control variate.

Task covariance and kernel are chosen jointly by restricted maximum likelihood.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.control.kernels.choice import DEFAULT_NUGGET
from mcmcpost.control.problem import JointProblem
from mcmcpost.core.arguments import check_count, check_kind, check_number, check_numbers
from mcmcpost.core.errors import InputError
from mcmcpost.solve import cholesky_factor, fit_rows
from mcmcpost.solve.restricted import negative_restricted_likelihood
from mcmcpost.solve.search import KERNEL_MEMORY, LBFGS, Packing, TrainingProblem, is_positive
from mcmcpost.stein import (
    AbstractKernel,
    Coregionalisation,
    MatrixSteinTile,
    SquaredExponential,
    matrix_stein_tile,
)
from mcmcpost.stein.products import tile_diagonal, tile_gram
from mcmcpost.tasks.trained_families import task_sizes

TASK_NUGGET_BOUNDS = (1e-10, 1e2)
"""The lower bound is below that for one task, because related tasks determine each other to more
digits."""

TASK_RANGE = np.exp(12.0)
"""Parameters of kernels stay within this factor of their start. Without a prior an inert coordinate
may become flat."""

LOG_DIAGONAL_BOUNDS = (-14.0, 6.0)

ROUNDING = 1e-13
"""Added to a learnt B, relative to its trace: tasks that are multiples of each other make it
singular to rounding."""

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
    """Tune kernels, the B_q and the nugget η of A = Σ B_q⊗K_q/mean(diag) + η·diag(1/n) for all
    tasks together.

    docs/mathematics.md section 2, Hyper-parameters, where the borehole error of 1.29 at m = 20
    becomes 0.0007; Sun, Barp and Briol (2023), Appendix D.2, with the quadratic form that its print
    lost. B = LLᵀ with a positive diagonal, or WWᵀ + diag with W of `rank` columns. The overall
    amplitude is profiled out, the constants by generalised least squares.

    Parameters
    ----------
    starts : kernels of one structure, with covariances for K_q/mean(diag K_q).
    draws, scores : (m, d), each row with its own task's score. tasks : (m,) labels.
    basis : (m, q), the unpenalised part, task indicators first. values : (m,), of unit scale per
        task.
    counts : (m,) copies n of each state.
    nugget : relative η, fixed or starting point.

    Returns
    -------
    The best of all starts, or None where the likelihood is finite at none of them: raise the
    nugget.
    """
    num_tasks = starts[0].num_tasks
    data = jax.device_put(
        (draws, scores, np.eye(num_tasks)[tasks], basis, values[:, None], 1 / counts)
    )
    # Only the diagonal of L (or the free diagonal) is positive and searched as a logarithm; other
    # entries have both signs.
    logs = _positive_entries(num_tasks, rank)
    free = TaskParameters(is_positive if learn_kernel else False, learn_covariance, free_nugget)
    packings, problems = [], []
    # All starts are searched and the best is kept: a single start leaves rare outliers
    # (docs/mathematics.md section 2, Hyper-parameters).
    for start in starts:
        entries = np.stack([_covariance_entries(b, rank) for b in np.asarray(start.covariances)])
        tree = TaskParameters(start.kernels, entries, np.asarray(nugget))
        packing = Packing(tree, free=free, positive=TaskParameters(True, logs, True))
        initial = packing.pack(tree)
        bounds = packing.box(initial, TASK_RANGE)
        # Tasks that are multiples of each other drive a diagonal of L to zero, at which its
        # logarithm has no minimum.
        bounds[packing.where(TaskParameters(False, logs, False))] = LOG_DIAGONAL_BOUNDS
        bounds[packing.where(TaskParameters(False, False, True))] = np.log(TASK_NUGGET_BOUNDS)
        # The packing is static: starts of one structure share one compiled loss.
        loss = functools.partial(_task_loss, packing, num_tasks, rank, start.order, data)
        packings.append(packing)
        problems.append(TrainingProblem(loss, initial, bounds))
    best = LBFGS(max_steps, memory=KERNEL_MEMORY).minimise_from(problems)
    if best is None:
        return None
    # Everything was given: there is a likelihood, but nothing to search.
    if not best.x.size:
        return TasksTuned(
            _scaled(starts[best.start], draws, scores), nugget, best.value, best.num_evaluations
        )
    parameters: TaskParameters = packings[best.start].unpack(jnp.asarray(best.x))
    between = np.asarray(_covariances(jnp.asarray(parameters.entries), num_tasks, rank))
    # So that proportional tasks stay positive definite to the last digit.
    between = between + ROUNDING * np.trace(between, axis1=1, axis2=2)[:, None, None] * np.eye(
        num_tasks
    )
    tuned = Coregionalisation(
        jax.tree.map(np.asarray, parameters.kernels), between, starts[0].order
    )
    return TasksTuned(
        _scaled(tuned, draws, scores), float(parameters.nugget), best.value, best.num_evaluations
    )


def _scaled(kernel: Coregionalisation, draws: np.ndarray, scores: np.ndarray) -> Coregionalisation:
    """Return the kernel with each B_q divided by the mean of diag K_q."""
    points = jax.device_put((draws, scores))
    scales = np.array([float(_kernel_scale(k, kernel.order, *points)) for k in kernel.kernels])
    covariances = np.asarray(kernel.covariances) / scales[:, None, None]
    return Coregionalisation(kernel.kernels, covariances, kernel.order)


def _kernel_scale(
    kernel: AbstractKernel, order: int, draws: Array, scores: Array
) -> Float[Array, ""]:
    # The scalar kernel as a matrix-valued one of a single task: mean(diag K_q) without the (m, m)
    # Gram matrix.
    one = jnp.ones((draws.shape[0], 1), draws.dtype)
    tile = MatrixSteinTile((kernel,), jnp.ones((1, 1, 1), draws.dtype), order)
    return jnp.mean(tile_diagonal(tile, (draws, scores, one)))


def _positive_entries(num_tasks: int, rank: int | None) -> Bool[np.ndarray, " e"]:
    if rank is None:
        rows, columns = np.tril_indices(num_tasks)
        return rows == columns
    return np.repeat([False, True], [num_tasks * rank, num_tasks])


def _covariance_entries(
    covariance: Float[np.ndarray, "t t"], rank: int | None
) -> Float[np.ndarray, " e"]:
    """Return the parameters of B: the lower triangle of its factor, or W and the rest of the
    diagonal."""
    num_tasks = len(covariance)
    values, vectors = np.linalg.eigh(covariance)
    # A start with perfectly related tasks has no Cholesky factor.
    values = np.maximum(values, COVARIANCE_FLOOR * values[-1])
    if rank is None:
        return np.linalg.cholesky((vectors * values) @ vectors.T)[np.tril_indices(num_tasks)]
    factor = vectors[:, -rank:] * np.sqrt(values[-rank:])
    # At least a hundredth: searched as a logarithm, a remainder of zero would start at −∞.
    remainder = np.maximum(
        np.diagonal(covariance) - (factor**2).sum(axis=1), 1e-2 * np.diagonal(covariance)
    )
    return np.concatenate([factor.ravel(), remainder])


def _covariances(
    entries: Float[Array, "q e"], num_tasks: int, rank: int | None
) -> Float[Array, "q t t"]:
    def covariance(entry: Float[Array, " e"]) -> Float[Array, "t t"]:
        if rank is None:
            factor = (
                jnp.zeros((num_tasks, num_tasks), entry.dtype)
                .at[np.tril_indices(num_tasks)]
                .set(entry)
            )
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
        # Each kernel has mean diagonal one, and then their sum too: B carries the sizes, and η
        # stays relative.
        scales = jnp.stack([_kernel_scale(kernel, order, draws, scores) for kernel in kernels])
        gram = tile_gram(
            MatrixSteinTile(kernels, between / scales[:, None, None], order), (draws, scores, tasks)
        )
        return gram / jnp.mean(jnp.diagonal(gram)) + nugget * jnp.diag(noise)

    # The slope in A is in closed form (docs/mathematics.md section 2, Hyper-parameters), so that
    # automatic differentiation goes through the kernel only and never through a factorisation.
    matrix, pull_back = jax.vjp(covariance, jnp.asarray(x))
    likelihood = negative_restricted_likelihood(matrix, basis, values)
    return jnp.sum(likelihood.losses), pull_back(likelihood.slope)[0]


class TaskCovarianceFit(NamedTuple):
    """B and the control variate that goes with it.

    covariance : (T, T) B. beta : (T,) constants.
    coefficients : (m,) θ of g_t(x) = Σ_j B[t, t_j] k₀(x, x_j) θ_j, the best for `covariance`.
    history : objective after each step, over all δ in turn; it does not increase while δ is the
        same.
    rungs : the index of δ at each entry of `history`.
    num_steps : steps of all δ together.
    converged : whether B moved by less than the tolerance, relative, in the last step of the last
        δ.
    nugget_raised : whether a factorisation needed a larger λ than the one asked for.
    """

    covariance: Float[np.ndarray, "t t"]
    coefficients: Float[np.ndarray, " m"]
    beta: Float[np.ndarray, " t"]
    history: Float[np.ndarray, " s"]
    rungs: Int[np.ndarray, " s"]
    num_steps: int
    converged: bool
    nugget_raised: bool


class AlternatingState(NamedTuple):
    """B, and for it the minimisers θ and β, the objective, and whether λ had to be raised."""

    covariance: Float[np.ndarray, "t t"]
    coefficients: Float[np.ndarray, " m"]
    beta: Float[np.ndarray, " t"]
    objective: float
    raised: bool


def alternating_task_covariance(
    gram: Float[Array | np.ndarray, "m m"],
    tasks: Int[Array | np.ndarray, " m"],
    values: Float[Array | np.ndarray, " m"],
    *,
    penalty: float,
    deltas: Sequence[float] = (1e-1, 1e-2, 1e-3),
    max_steps: int = 200,
    rtol: float = 1e-6,
    start: Float[Array | np.ndarray, "t t"] | None = None,
) -> TaskCovarianceFit:
    """Minimise Σ_t mean_j (f_tj − g_t − β_t)² + λ tr(B⁻¹(C + δ²I)) + ‖B‖²_F jointly for a
    decreasing sequence of δ.

    All tasks share one target. g(x) = Σ_j k₀(x, x_j) θ̃_j with θ̃_j ∈ ℝ^T, and C = Θ̃ᵀK₀Θ̃: the
    objective is convex in (Θ̃, β, B) for every δ > 0 (Theorem D.1), and each half of a step is its
    exact minimiser, so the objective falls to the global minimum from any start.

    - For fixed B: (B∘K₀ + λ diag(m_t)) θ = f − Zβ, β by generalised least squares, θ̃_j = θ_j B[:,
      t_j].
    - For fixed Θ̃: 2B = λ B⁻¹(C + δ²I)B⁻¹, so B has the eigenvectors of C and the eigenvalues
      b_i = (λ(c_i + δ²)/2)^{1/3}.

    As printed, δ²I stands inside the double sum over all pairs of draws, so that it is multiplied
    by λ(Σm_t)²; here it is multiplied by λ: a printed δ is ours divided by Σm_t. The weight of ‖B‖²
    is one, as printed; with values and K₀ of unit scale, λ sets the size of B, its eigenvalues
    being (λc_i/2)^{1/3} in the limit. The cube root compresses: tasks that are one function at
    different draws come out correlated 0.7–0.98, and one only where C is of rank one, as with
    shared draws; read the correlations as a ranking, not as estimates.

    Parameters
    ----------
    gram : (m, m) K₀ between all rows, of mean diagonal one. tasks : (m,) labels 0, …, T − 1. values
        : (m,).
    penalty : λ > 0.
    deltas : δ, decreasing, each started at the last one's B; the smallest keeps B positive
        definite.
    max_steps : steps for each δ. rtol : change of B, relative in Frobenius norm, at which one δ is
        done.
    start : the first B, positive definite; the identity when None.

    Raises
    ------
    ValueError
        if the penalty or a δ is not positive, the δ do not decrease, a task has no rows, or `start`
        is singular.

    Source: Sun, Barp and Briol (ICML 2023), Appendix D.3, Theorem D.1; Dinuzzo et al. (2011);
    Ciliberto et al. (2015).
    """
    where = "alternating_task_covariance"
    check_penalty(where, penalty, deltas)
    labels = np.asarray(tasks)
    sizes = task_sizes(where, labels, int(labels.max(initial=0)) + 1)
    kernel, f = np.asarray(gram), np.asarray(values)
    indicators = (labels[:, None] == np.arange(len(sizes))).astype(float)
    covariance = np.eye(len(sizes)) if start is None else np.asarray(start, float)
    if cholesky_factor(covariance) is None:
        raise InputError(
            where, "`start` positive definite", np.asarray(start), "Blend it with the identity."
        )
    history, rungs, raised, converged = [], [], False, False
    for rung, delta in enumerate(deltas):
        # Each half step is an exact minimiser, so that the objective cannot rise, and δ decreases
        # only after it has settled: small δ from a far B converges slowly.
        state = _best_coefficients(kernel, indicators, f, penalty, delta**2, covariance)
        for _ in range(max_steps):
            better = best_covariance(task_roughness(kernel, indicators, state), penalty, delta**2)
            new = _best_coefficients(kernel, indicators, f, penalty, delta**2, better)
            converged = bool(
                np.linalg.norm(better - state.covariance) <= rtol * np.linalg.norm(better)
            )
            state, raised = new, raised or new.raised
            history.append(new.objective)
            rungs.append(rung)
            # NaN will not recover: the history shows where it came from.
            if converged or not np.isfinite(history[-1]):
                break
        covariance = state.covariance
    return TaskCovarianceFit(
        covariance=state.covariance,
        coefficients=state.coefficients,
        beta=state.beta,
        history=np.array(history),
        rungs=np.array(rungs),
        num_steps=len(history),
        converged=converged,
        nugget_raised=raised,
    )


def _best_coefficients(
    gram: Float[np.ndarray, "m m"],
    indicators: Float[np.ndarray, "m t"],
    values: Float[np.ndarray, " m"],
    penalty: float,
    jitter: float,
    covariance: Float[np.ndarray, "t t"],
) -> AlternatingState:
    """Return the minimiser over θ and β for this B, and the objective there: Σ(λ m_t θ)²/m_t +
    λθᵀGθ + …"""
    # λ m_t for every row of task t: the mean over a task's draws in the objective, turned into a
    # nugget.
    noise = indicators @ indicators.sum(axis=0)
    across = (indicators @ covariance @ indicators.T) * gram
    solution, used = fit_rows(across, noise, penalty, indicators, values[:, None])
    # Residuals of a ridge system are noise · θ, which gives the objective without a further
    # product.
    theta = solution.dual[:, 0]
    fit = np.sum((used * theta) ** 2 * noise) + penalty * theta @ across @ theta
    size = penalty * jitter * np.trace(np.linalg.inv(covariance)) + np.sum(covariance**2)
    return AlternatingState(
        covariance, theta, solution.coefficients[:, 0], float(fit + size), used > penalty
    )


def task_roughness(
    gram: Float[np.ndarray, "m m"], indicators: Float[np.ndarray, "m t"], state: AlternatingState
) -> Float[np.ndarray, "t t"]:
    """Return C = Θ̃ᵀK₀Θ̃ = B (DᵀK₀D) B, D the coefficients θ_j spread over the columns t_j."""
    # Θ̃ = D B with D (m, T) of one entry in each row: B stays outside of the large product.
    spread = indicators * state.coefficients[:, None]
    return state.covariance @ (spread.T @ gram @ spread) @ state.covariance


def best_covariance(
    roughness: Float[np.ndarray, "t t"], penalty: float, jitter: float
) -> Float[np.ndarray, "t t"]:
    """Return the minimiser of λ tr(B⁻¹(C + δ²I)) + ‖B‖²_F over B ≻ 0; `jitter` is δ²."""
    # The stationarity condition 2B = λB⁻¹(C + δ²I)B⁻¹ has the eigenvectors of C, and b³ = λ(c +
    # δ²)/2.
    size, vectors = np.linalg.eigh((roughness + roughness.T) / 2)
    # C is positive semidefinite, but rounding leaves eigenvalues below zero, whose cube root is
    # negative.
    size = np.cbrt(penalty * (np.maximum(size, 0) + jitter) / 2)
    return (vectors * size) @ vectors.T


MAX_FULL_TASKS = 10

LOW_RANK = 3

START_CORRELATION = 0.9

NUGGET_STEP = 10.0


def check_penalty(where: str, penalty: object, deltas: Sequence[float]) -> None:
    """Refuse a penalty that is not positive, and δ that are not or do not decrease."""
    check_number(where, "penalty", penalty, "B is undefined without one.")
    cure = "Such as (1e-1, 1e-2, 1e-3)."
    check_numbers(where, "deltas", deltas, cure)
    if any(b >= a for a, b in itertools.pairwise(deltas)):
        raise InputError(where, "`deltas` that decrease", deltas, cure)


class TaskREML(eqx.Module):
    """Restricted maximum likelihood of kernel, task covariance and nugget by L-BFGS, all tasks
    jointly.

    squared_lengthscales : starting points on standard coordinates, each with one lengthscale per
        coordinate. Large ones suit smooth integrands and a short one rough integrands; one start
        alone fails now and then (docs/mathematics.md section 2).
    nugget : first value of the nugget, which is tuned unless the method gives one.
    rank : B = WWᵀ + diagonal with so many columns of W where there are more tasks, LLᵀ elsewhere;
        three by default for more than ten tasks.
    max_draws : largest number of rows in the likelihood, evenly spaced within tasks.
    max_steps : of L-BFGS, from each start; at most twice as many likelihood evaluations.
    """

    squared_lengthscales: tuple[float, ...] = (3.0, 100.0, 1000.0)
    nugget: float = 1e-2
    rank: int | None = None
    max_draws: int = 600
    max_steps: int = 100

    def __check_init__(self) -> None:
        check_numbers(
            "TaskREML", "squared_lengthscales", self.squared_lengthscales, "Such as (3.0, 100.0)."
        )
        check_number("TaskREML", "nugget", self.nugget, "Use 1e-2.", inside="(0, 1)")
        check_count("TaskREML", "rank", self.rank, "Leave it out.", optional=True)
        check_count("TaskREML", "max_draws", self.max_draws, "Use 600.")
        check_count("TaskREML", "max_steps", self.max_steps, "Use 100.")


class ConvexTaskCovariance(eqx.Module):
    """B by the alternating convex scheme of Sun, Barp and Briol (2023), Appendix D.3, for tasks
    with one target.

    The kernel and the nugget are tuned first, with B = I as in their Appendix D.2. By restricted
    likelihood (`TaskREML`) B is better where draws differ: the penalty ‖B‖² here compresses
    correlations.

    penalty : λ. deltas : the decreasing sequence δ.
    kernel : how the kernel is tuned.
    """

    penalty: float = 1e-5
    deltas: tuple[float, ...] = (1e-1, 1e-2, 1e-3)
    kernel: TaskREML = eqx.field(default_factory=TaskREML)

    def __check_init__(self) -> None:
        where = "ConvexTaskCovariance"
        check_penalty(where, self.penalty, self.deltas)
        check_kind(where, "kernel", self.kernel, TaskREML, "Such as TaskREML().")


class TaskModel(NamedTuple):
    """The parts of a matrix-valued kernel that are given; the others are None and are tuned.

    kernel : one kernel, or several with their covariances. covariance : (t, t) B. nugget : relative
        η.
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
        # Tasks whose regressions on the scores are parallel start as related, which costs next to
        # nothing to see.
        between = _first_covariance(joint) if model.covariance is None else model.covariance
        lengths = tuning.squared_lengthscales
        default = tuple(SquaredExponential(np.sqrt(v) * np.ones(d)) for v in lengths)
        kernels = default if model.kernel is None else (model.kernel,)
        starts = tuple(
            Coregionalisation((kernel,), between[None], model.order) for kernel in kernels
        )
    if model.is_given:
        return starts[0], model.nugget or DEFAULT_NUGGET
    # An evaluation costs m³; and at least twice as many rows as unpenalised columns, or no degrees
    # of freedom are left for the likelihood.
    rows = _evenly_spaced_rows(joint, max(tuning.max_draws, 2 * design.shape[1]))
    nugget = tuning.nugget if model.nugget is None else model.nugget
    rank = tuning.rank or (LOW_RANK if num_tasks > MAX_FULL_TASKS else num_tasks)
    # With no finite likelihood at any start the matrix is singular to rounding: long lengthscales
    # need a larger nugget.
    while True:
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
            rank=rank if rank < num_tasks else None,
            max_steps=tuning.max_steps,
        )
        if tuned is not None:
            return tuned.kernel, tuned.nugget if model.nugget is None else model.nugget
        nugget *= NUGGET_STEP
        if nugget >= 1.0:
            raise InputError(
                "VectorValued",
                "a positive definite kernel matrix under some nugget below one",
                f"none for {num_tasks} tasks of {np.diff(joint.starts).tolist()} states",
                "Pass a kernel with a shorter lengthscale.",
            )


def _convex(
    joint: JointProblem,
    design: Float[np.ndarray, "m q"],
    model: TaskModel,
    tuning: ConvexTaskCovariance,
) -> tuple[Coregionalisation, float]:
    """Return the kernel tuned with B = I, and B by the convex scheme."""
    # One target: the tasks share K₀, whose kernel is tuned as if they were unrelated.
    separate = model._replace(covariance=np.eye(joint.num_tasks), tuning=tuning.kernel)
    tuned, nugget = tune_tasks(joint, design, separate)
    rows = _evenly_spaced_rows(joint, tuning.kernel.max_draws)
    one = matrix_stein_tile(Coregionalisation(tuned.kernels, np.ones((1, 1, 1)), model.order))
    points = jax.device_put((joint.draws[rows], joint.scores[rows], np.ones((len(rows), 1))))
    gram = tile_gram(one, points)
    solution = alternating_task_covariance(
        gram / jnp.mean(jnp.diagonal(gram)),
        joint.labels[rows],
        joint.values[rows],
        penalty=tuning.penalty,
        deltas=tuning.deltas,
    )
    return Coregionalisation(tuned.kernels, floored(solution.covariance)[None], model.order), nugget


def _first_covariance(joint: JointProblem) -> Float[np.ndarray, "t t"]:
    """Return the first B: tasks are related as far as their ridge coefficients on the scores are
    parallel."""
    slopes = []
    for t in range(joint.num_tasks):
        rows = joint.rows_of(t)
        scores, weight = joint.scores[rows], joint.counts[rows][:, None]
        # A ridge of the size of the mean diagonal: with ten draws in eight coordinates directions
        # would be noise without it.
        ridge = np.trace(scores.T @ (weight * scores)) / scores.shape[1]
        gram = scores.T @ (weight * scores) + ridge * np.eye(scores.shape[1])
        slope = np.linalg.solve(gram, scores.T @ (weight[:, 0] * joint.values[rows]))
        norm = np.linalg.norm(slope)
        slopes.append(slope / norm if norm > 0 else slope)
    related = np.array(slopes) @ np.array(slopes).T
    # A task whose slope is zero has no direction: it is related to none of the others.
    np.fill_diagonal(related, 1.0)
    return START_CORRELATION * related + (1 - START_CORRELATION) * np.eye(joint.num_tasks)


def _evenly_spaced_rows(joint: JointProblem, size: int) -> np.ndarray:
    """Return at most about `size` rows, evenly spaced within each task and at least two of each."""
    sizes = np.diff(joint.starts)
    share = min(1.0, size / sizes.sum())
    parts = []
    for start, n in zip(joint.starts[:-1], sizes, strict=True):
        # Evenly spaced within the task: neighbouring draws of a chain are alike.
        parts.append(start + np.linspace(0, n - 1, max(min(n, 2), int(n * share))).astype(int))
    return np.concatenate(parts)


def floored(covariance: Float[np.ndarray, "t t"]) -> Float[np.ndarray, "t t"]:
    """Return the covariance with a floor under its spectrum, so that exact copies of a task stay
    positive definite."""
    return covariance + 1e-8 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
