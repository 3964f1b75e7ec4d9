"""Vector-valued control variates trained by stochastic optimisation: Algorithms 1 and 2 of Sun,
Barp and Briol."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from mcmcpost.control import HIGHEST_DEGREE, AbstractControlVariate, FoldFit, Problem
from mcmcpost.control.method import JointFit, concatenate_fits, mean_of_residuals, no_control
from mcmcpost.control.problem import JointProblem, join
from mcmcpost.control.zero_variance import MIN_TRAIN
from mcmcpost.core.arguments import check_count, check_flags, check_key, check_kind, check_number
from mcmcpost.core.errors import InputError, Status
from mcmcpost.stein import AbstractKernel, check_covariance
from mcmcpost.tasks.trained_families import (
    AbstractTaskControl,
    FixedCovariance,
    KernelTasks,
    NeuralNetwork,
    PolynomialTasks,
    TaskRows,
    task_sizes,
)


class Schedule(NamedTuple):
    """An epoch of mini-batches of units, a unit being `block` consecutive rows of one chain of one
    task.

    units : (u, ℓ) row numbers, sorted by task. tasks : (u,) the task of each unit.
    slots : (e, b) positions, sorted by task, of the units of each of the e steps in a shuffled list
        of units.
    counts : (T,) units of each task in a step. sizes : (T,) units of each task.
    """

    units: Int[Array, "u l"]
    tasks: Int[Array, " u"]
    slots: Int[Array, "e b"]
    counts: Int[Array, " t"]
    sizes: Int[Array, " t"]


def proportional_counts(sizes: Int[np.ndarray, " t"], total: int) -> Int[np.ndarray, " t"]:
    """Split `total` in proportion to `sizes` by largest remainders, at least one each and no more
    than there are.

    Exact wherever total·m_t/Σm is an integer, else within one of it unless a small task was rounded
    up to one.
    """
    total = min(total, int(sizes.sum()))
    # In proportion, so that all tasks use up their units in about as many steps and none is seen
    # many times over in an epoch; the weights 1/b_t keep the gradient right for any counts.
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
    runs: Int[np.ndarray, " m"] | None = None,
) -> Schedule:
    """Cut the rows into units and lay out the steps of an epoch.

    An epoch has max_t ⌈u_t/b_t⌉ steps. A task whose units are used up earlier starts again, so that
    every step has the same counts, no row comes twice in one step, and every unit is equally likely
    to be used.

    Parameters
    ----------
    tasks : (m,) labels 0, …, T − 1; rows of one run of one task are in draw order.
    batch_size : rows in a step, at least T; with blocks, at least one block of each task is taken
        all the same.
    block : rows of a unit; None for ⌊√n⌋, n the length of a task's longest run in the task where
        that is shortest. Rows that do not fill a block are left out at the start of their run.
    runs : (m,) labels of the stretches of consecutive draws of one chain; None where each task is
        one run.

    Raises
    ------
    ValueError
        if a label is out of range, `batch_size` is below T, or no run of a task is as long as
        `block`.
    """
    # Faults are raised before anything is compiled.
    sizes = task_sizes("Stochastic", tasks, num_tasks)
    if batch_size < num_tasks:
        cure = "A mini-batch holds at least one draw of each task."
        raise InputError(
            "Stochastic", f"`batch_size` of at least {num_tasks} tasks", batch_size, cure
        )
    labels = np.zeros_like(tasks) if runs is None else np.asarray(runs)
    # Stretches of one task and one run, each in draw order (a stable sort): block means over a seam
    # between two chains would be no batch means.
    pairs, member = np.unique(np.stack([tasks, labels], 1), axis=0, return_inverse=True)
    stretches = np.split(
        np.argsort(member.ravel(), kind="stable"), np.cumsum(np.bincount(member.ravel()))[:-1]
    )
    longest = np.zeros(num_tasks, int)
    np.maximum.at(longest, pairs[:, 0], [len(stretch) for stretch in stretches])
    # ⌊√n⌋ is the usual length of batch means; of the shortest task, so that every task has a whole
    # block.
    length = max(int(np.sqrt(longest.min())), 1) if block is None else block
    if length > longest.min():
        expected = (
            f"`block` of at most {longest.min()}, the longest run of consecutive draws of task "
            f"{longest.argmin()}"
        )
        cure = (
            "Use a shorter block: it must not straddle two chains or the draws that a fold holds "
            "out."
        )
        raise InputError("ChainVariance", expected, length, cure)
    # What does not fill a block is dropped at the start, where a chain is farthest from its
    # posterior.
    units = np.concatenate(
        [stretch[len(stretch) % length :].reshape(-1, length) for stretch in stretches]
    )
    owner = np.asarray(tasks)[units[:, 0]]
    sizes = np.bincount(owner, minlength=num_tasks)
    counts = proportional_counts(sizes, max(num_tasks, batch_size // length))
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    # (e, b) with the same counts in every step: one compiled shape, and weights that do not change.
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
    """Return the units of every step of one epoch, shuffled within tasks; column i is always of one
    task."""
    # Sorted by task first and by noise within it: slots stay valid, and the shuffle needs no loop
    # over tasks.
    order = jnp.lexsort((jax.random.uniform(key, schedule.tasks.shape), schedule.tasks))
    return order[schedule.slots]


def unit_weights(schedule: Schedule, dtype: np.dtype) -> Float[Array, " b"]:
    """Return 1/b_t for the columns of a step: Σ over them is Σ_t of the mean over the units of task
    t."""
    return (1 / schedule.counts.astype(dtype))[schedule.tasks[schedule.slots[0]]]


CACHE_ENTRIES = 1 << 25
"""Entries (256 MB) up to which the features of all rows are computed once, and not in every
mini-batch."""

SETTLED = 0.01
"""Relative change of the mean loss, from one tenth of the epochs to the last tenth, up to which it
is settled."""

_CHUNK = 256


class MeanSquare(eqx.Module):
    """Σ_t of the mean squared residual (equation 8): the variance of independent draws."""

    @property
    def block(self) -> int:
        return 1


class ChainVariance(eqx.Module):
    """Σ_t of the batch-means estimate of the residual's variance in the Markov-chain central limit
    theorem.

    The mean over blocks of ℓ·(mean residual in the block)², blocks of ℓ consecutive draws of one
    chain. Appendix A.1 prints another estimator, with all lags up to m − 1 and the mean subtracted:
    it is (Σ_j (r_j − r̄))²/m, which is zero whatever g is, so it cannot be minimised. Only m/ℓ
    block means are fitted, so a flexible family needs a larger penalty than with `MeanSquare`.

    block : ℓ, a few autocorrelation times; None for ⌊√n⌋, n the number of consecutive draws on
        which a fit is made.
    """

    block: int | None = None

    def __check_init__(self) -> None:
        check_count("ChainVariance", "block", self.block, "Use a few dozen draws.", optional=True)


class Stochastic(eqx.Module):
    """How a vector-valued control variate is trained: Adam on mini-batches, for draws too many for
    a direct solve.

    num_epochs : passes over the data.
    batch_size : draws in a mini-batch, over all tasks together; shared among them in proportion to
        their draws.
    learning_rate : Adam's.
    penalty : λ of λ‖θ‖², Euclidean (Appendix A.2).
    learn_covariance : train B = LLᵀ as well, under + ‖B‖²_F (Algorithm 1), or leave it as given
        (Algorithm 2).
    objective : `MeanSquare` when None.
    """

    num_epochs: int = 400
    batch_size: int = 10
    learning_rate: float = 1e-3
    penalty: float = 1e-5
    learn_covariance: bool = False
    objective: MeanSquare | ChainVariance | None = None

    def __check_init__(self) -> None:
        check_count("Stochastic", "num_epochs", self.num_epochs, "Use 400.")
        check_count("Stochastic", "batch_size", self.batch_size, "Use a few draws of each task.")
        check_number(
            "Stochastic", "learning_rate", self.learning_rate, "Values of unit scale suit 1e-3."
        )
        check_number(
            "Stochastic", "penalty", self.penalty, "Values such as 1e-5 suit.", inside="[0, inf)"
        )
        check_flags("Stochastic", learn_covariance=self.learn_covariance)
        kinds = (MeanSquare, ChainVariance, None)
        check_kind("Stochastic", "objective", self.objective, kinds, "Such as ChainVariance().")


class StochasticFit(NamedTuple):
    """A trained vector-valued control variate.

    control : the family at its last parameters. beta : (T,) its constants, β.
    loss : the whole objective on all data at the end.
    history : (num_epochs,) mean mini-batch objective of each epoch.
    num_steps : Adam steps.
    converged : whether `history` has settled: the mean over the last tenth of the epochs within
        `SETTLED`, relative, of the mean over the tenth before. It says that more epochs would
        change little, not that the optimum is global.
    finite : whether every loss and every parameter is finite; if not, training diverged and the
        control is worthless.
    """

    control: AbstractTaskControl
    beta: Float[Array, " t"]
    loss: Float[Array, ""]
    history: Float[Array, " e"]
    num_steps: int
    converged: Bool[Array, ""]
    finite: Bool[Array, ""]


class TrainState(NamedTuple):
    """Parameters (θ, perhaps B) and β, and Adam's moments of both."""

    parameters: tuple[Any, Float[Array, " t"]]
    adam: Any


def fit_stochastic(
    control: AbstractTaskControl,
    rows: TaskRows,
    values: Float[Array | np.ndarray, " m"],
    choice: Stochastic,
    *,
    key: PRNGKeyArray,
    runs: Int[np.ndarray, " m"] | None = None,
) -> StochasticFit:
    """Minimise Σ_t mean_j (f_t(x_tj) − g_t(x_tj) − β_t)² + λ‖θ‖² (+ ‖B‖²_F) by Adam on
    mini-batches.

    Training starts from `control` as it is, which is g = 0 for a new one, and from the task means
    as constants β. Everything random, that is the order of the draws, comes from `key`.

    Parameters
    ----------
    control : the family, with B given or free; `choice.learn_covariance` frees it.
    rows : m draws of all tasks, those of one run of one task in draw order.
    values : (m,) integrand of each row's task, of unit scale.
    runs : (m,) labels of the stretches of consecutive draws, which `ChainVariance` needs; see
        `make_schedule`.

    Raises
    ------
    ValueError
        if a task has no rows, `batch_size` is below the number of tasks, or no run of a task is as
        long as a block.

    Source: Sun, Barp and Briol, Vector-Valued Control Variates (ICML 2023), Algorithms 1 and 2,
    Appendix A.2.
    """
    objective = choice.objective or MeanSquare()
    tasks = np.asarray(rows.tasks)
    # On the host and once: the layout depends on sizes alone, only the shuffle is random.
    schedule = make_schedule(
        tasks,
        num_tasks=control.num_tasks,
        batch_size=choice.batch_size,
        block=objective.block,
        runs=runs,
    )
    if choice.learn_covariance:
        control = control.release_covariance()
    data, f = jax.device_put((TaskRows(rows.draws, rows.scores, tasks), values))
    shapes = eqx.filter_eval_shape(control.features, data)
    # By shapes alone, without computing them: 4,000 rows of a kernel family are 16e6 entries.
    cached = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) <= CACHE_ENTRIES
    penalty, rate = jnp.asarray(choice.penalty, f.dtype), jnp.asarray(choice.learning_rate, f.dtype)
    # At g = 0 the task means are the best constants. Adam moves by about its learning rate a step,
    # and from zero it would take thousands of steps to find them.
    first = _task_means(f, data.tasks, control.num_tasks)
    trained, constants, loss, history = _train(
        control,
        first,
        data,
        f,
        schedule,
        penalty,
        rate,
        key,
        num_epochs=choice.num_epochs,
        cached=cached,
    )
    parameters = jax.tree.leaves(
        (eqx.filter(trained, trained.trainable()), constants, loss, history)
    )
    return StochasticFit(
        control=trained,
        beta=constants,
        loss=loss,
        history=history,
        num_steps=choice.num_epochs * schedule.slots.shape[0],
        converged=_settled(history),
        finite=jnp.all(jnp.stack([jnp.isfinite(leaf).all() for leaf in parameters])),
    )


@eqx.filter_jit
def _train(
    control: AbstractTaskControl,
    beta: Float[Array, " t"],
    rows: TaskRows,
    values: Float[Array, " m"],
    schedule: Schedule,
    penalty: Float[Array, ""],
    rate: Float[Array, ""],
    key: PRNGKeyArray,
    *,
    num_epochs: int,
    cached: bool,
) -> tuple[AbstractTaskControl, Float[Array, " t"], Float[Array, ""], Float[Array, " e"]]:
    """Run every epoch in one scan; one compilation serves every key, penalty, learning rate and
    value."""
    # Gradients of what is trained only: m training rows and their scores are leaves too.
    free, frozen = eqx.partition(control, control.trainable())
    features = control.features(rows) if cached else None
    weights = unit_weights(schedule, values.dtype)
    optimiser = optax.adam(rate)

    def blocks(parameters: tuple[Any, ...], units: Int[Array, " b"]) -> Float[Array, " b"]:
        """Return ℓ·(mean residual)² of each unit; ℓ = 1 is the squared residual of a draw."""
        family: AbstractTaskControl = eqx.combine(parameters[0], frozen)
        members = schedule.units[units]
        index = members.ravel()
        batch = jax.tree.map(lambda a: a[index], rows)
        known = (
            family.features(batch)
            if features is None
            else jax.tree.map(lambda a: a[index], features)
        )
        # f_t(x_tj) − g_t(x_tj) − β_t of equation 8 of the paper.
        residual = values[index] - family.evaluate(known, batch.tasks) - parameters[1][batch.tasks]
        return members.shape[1] * jnp.mean(residual.reshape(members.shape), axis=1) ** 2

    def penalties(parameters: tuple[Any, ...]) -> Float[Array, ""]:
        family: AbstractTaskControl = eqx.combine(parameters[0], frozen)
        return penalty * family.squared_norm() + family.covariance_penalty()

    def loss(parameters: tuple[Any, ...], units: Int[Array, " b"]) -> Float[Array, ""]:
        return jnp.sum(weights * blocks(parameters, units)) + penalties(parameters)

    def step(state: TrainState, units: Int[Array, " b"]) -> tuple[TrainState, Float[Array, ""]]:
        value, slope = jax.value_and_grad(loss)(state.parameters, units)
        # The strict promotion of the tests would refuse a dependency's arithmetic.
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to its integer step count
            updates, adam = optimiser.update(slope, state.adam, state.parameters)
        return TrainState(optax.apply_updates(state.parameters, updates), adam), value

    def epoch(state: TrainState, key: PRNGKeyArray) -> tuple[TrainState, Float[Array, ""]]:
        state, losses = jax.lax.scan(step, state, shuffled_units(schedule, key=key))
        return state, jnp.mean(losses)

    start = (free, beta)
    state, history = jax.lax.scan(
        epoch, TrainState(start, optimiser.init(start)), jax.random.split(key, num_epochs)
    )
    # The objective on all data: the history has mini-batches, each at other parameters. In chunks,
    # since features that were not cached do not fit in memory all at once.
    squares = _in_chunks(lambda units: blocks(state.parameters, units), schedule.units.shape[0])
    total = jnp.sum(_task_means(squares, schedule.tasks, control.num_tasks)) + penalties(
        state.parameters
    )
    return eqx.combine(state.parameters[0], frozen), state.parameters[1], total, history


def _in_chunks(function: Any, count: int) -> Float[Array, " u"]:
    """Return function(0), …, function(count − 1) from blocks of indices, the last of which
    overlaps."""
    size = min(_CHUNK, count)
    # The last block overlaps in place of a remainder, which would be a second compiled shape; equal
    # values are written twice.
    starts = jnp.minimum(jnp.arange(-(-count // size)) * size, count - size)
    index = starts[:, None] + jnp.arange(size)[None]
    values = jax.lax.map(function, index)
    return jnp.zeros(count, values.dtype).at[index.ravel()].set(values.ravel())


def _task_means(
    values: Float[Array, " m"], tasks: Int[Array, " m"], num_tasks: int
) -> Float[Array, " t"]:
    ones = jnp.ones_like(values)
    return jax.ops.segment_sum(values, tasks, num_tasks) / jax.ops.segment_sum(
        ones, tasks, num_tasks
    )


def _settled(history: Float[Array, " e"]) -> Bool[Array, ""]:
    width = max(1, history.shape[0] // 10)
    if history.shape[0] < 2 * width:
        return jnp.zeros((), bool)
    late, early = jnp.mean(history[-width:]), jnp.mean(history[-2 * width : -width])
    return jnp.abs(late - early) <= SETTLED * jnp.abs(early)


class KernelFamily(eqx.Module):
    """g_t = Σ_j B_{t t_j} k₀(·, x_j) θ_j, one coefficient a draw.

    kernel : on standardised coordinates. covariance : (T, T) B, where training starts or, by
    default, stays; identity where None.
    """

    kernel: AbstractKernel
    covariance: Any = None

    def __check_init__(self) -> None:
        check_kind(
            "KernelFamily",
            "kernel",
            self.kernel,
            AbstractKernel,
            "Such as SquaredExponential(2.0).",
        )
        if self.covariance is not None:
            check_covariance("KernelFamily", self.covariance)

    def start(self, rows: TaskRows, num_tasks: int) -> AbstractTaskControl:
        return KernelTasks.start(self.kernel, rows, _covariance(self.covariance, num_tasks))


class PolynomialFamily(eqx.Module):
    """g_t = Σ_{t'} B_{tt'} Σ_i Θ_{it'} L_t φ_i for monomials φ_i up to a total degree (Appendix C.2
    and C.3).

    degree : of the polynomials. covariance : as for `KernelFamily`.
    """

    degree: int = 2
    covariance: Any = None

    def __check_init__(self) -> None:
        check_count(
            "PolynomialFamily", "degree", self.degree, "Use 1, 2 or 3.", most=HIGHEST_DEGREE
        )
        if self.covariance is not None:
            check_covariance("PolynomialFamily", self.covariance)

    def start(self, rows: TaskRows, num_tasks: int) -> AbstractTaskControl:
        return PolynomialTasks.start(
            rows, _covariance(self.covariance, num_tasks), degree=self.degree
        )


class TrainedVectorValued(AbstractControlVariate):
    """Train a family of vector-valued control variates by Adam on mini-batches, for problems too
    large for a solve.

    Algorithms 1 and 2 of Sun, Barp and Briol (2023), neural families of Appendix C.2, polynomials
    of C.3, the chain variance of A.1. Where a solve is possible, `VectorValued` is faster and more
    accurate by orders of magnitude (results, "Vector-valued"). The estimate is the mean of the
    held-out residuals: each fold's family is trained on the others. A copy of a state counts once
    in training.

    Parameters
    ----------
    family : `KernelFamily`, `PolynomialFamily` or `NeuralNetwork`.
    key : of everything random: the order of the draws and the first weights of a network.
    training : `Stochastic(...)`.
    """

    family: KernelFamily | PolynomialFamily | NeuralNetwork
    key: PRNGKeyArray = eqx.field(kw_only=True)
    training: Stochastic | None = None

    def __check_init__(self) -> None:
        where, families = "TrainedVectorValued", (KernelFamily, PolynomialFamily, NeuralNetwork)
        check_kind(where, "family", self.family, families, "Such as PolynomialFamily(2).")
        check_kind(where, "training", self.training, (Stochastic, None), "Such as Stochastic().")
        check_key(where, self.key)

    @property
    def label(self) -> str:
        return f"TrainedVectorValued({type(self.family).__name__})"

    def crossfit(self, problem: Problem) -> FoldFit:
        # Each integrand is a task of its own, on the same draws.
        copies = tuple(problem.select(np.array([j])) for j in range(problem.values.shape[1]))
        return concatenate_fits(self.crossfit_joint(join(copies)).fits)

    def crossfit_joint(self, joint: JointProblem) -> JointFit:
        """Train on all rows but each fold's in turn, and on all rows."""
        training = self.training or Stochastic()
        t = joint.num_tasks
        if joint.folds.num_train < MIN_TRAIN:
            few = tuple(
                no_control(problem, Status.TOO_FEW_DRAWS, self.label) for problem in joint.problems
            )
            return JointFit(few, np.zeros((t, t)), np.eye(t))
        keys = jax.random.split(self.key, joint.folds.num_folds + 1)
        # For its loss and B only: the reported mean is that of the held-out residuals.
        whole = self._train(joint, joint.folds.everyone, training, keys[0])
        control = np.zeros(len(joint.values))
        finite, settled = bool(whole.finite), bool(whole.converged)
        # A network follows its training draws: only rows that it has not seen say what it is worth.
        for (out, inside), key in zip(joint.folds.rows(), keys[1:], strict=True):
            fit = self._train(joint, inside, training, key)
            control[out] = np.asarray(fit.control(_rows(joint, out)))
            finite, settled = finite and bool(fit.finite), settled and bool(fit.converged)
        covariance = getattr(whole.control, "covariance", None)
        between = np.eye(t) if covariance is None else np.asarray(covariance.matrix)
        info = {
            "loss": float(whole.loss),
            "num_steps": whole.num_steps,
            "finite": finite,
            "task_covariance": between.tolist(),
        }
        fits = []
        for problem, mine, control_of_task in joint.by_problem(control):
            if not finite:
                fits.append(no_control(problem, Status.NOT_CONVERGED, self.label, info))
                continue
            mean, refits = mean_of_residuals(problem, control_of_task)
            status = Status.CONTROLLED if settled else Status.NOT_CONVERGED
            labels = (self.label,) * len(mine)
            fits.append(
                FoldFit(
                    mean,
                    control_of_task,
                    refits,
                    np.zeros(len(mine)),
                    (status,) * len(mine),
                    labels,
                    info,
                )
            )
        return JointFit(tuple(fits), np.zeros((t, t)), between)

    def _train(
        self, joint: JointProblem, index: np.ndarray, training: Stochastic, key: PRNGKeyArray
    ) -> StochasticFit:
        first, order = jax.random.split(key)
        rows = _rows(joint, index)
        start = (
            self.family.start(joint.num_tasks, joint.draws.shape[1], key=first)
            if isinstance(self.family, NeuralNetwork)
            else self.family.start(rows, joint.num_tasks)
        )
        return fit_stochastic(
            start, rows, joint.values[index], training, key=order, runs=runs_of(joint, index)
        )


def _rows(joint: JointProblem, index: np.ndarray) -> TaskRows:
    return jax.device_put(TaskRows(joint.draws[index], joint.scores[index], joint.labels[index]))


def runs_of(joint: JointProblem, index: Int[np.ndarray, " r"]) -> Int[np.ndarray, " r"]:
    """Return labels of the stretches of some rows, in order, that are consecutive rows of one chain
    of one task."""
    # A fold that was left out interrupts a chain, too.
    breaks = (
        (np.diff(index) != 1)
        | (np.diff(joint.chains[index]) != 0)
        | (np.diff(joint.labels[index]) != 0)
    )
    return np.concatenate([[0], np.cumsum(breaks)])


def _covariance(given: Any, num_tasks: int) -> FixedCovariance:
    matrix = np.eye(num_tasks) if given is None else np.asarray(given, float)
    if matrix.shape != (num_tasks, num_tasks):
        cure = "One row for each integrand that varies."
        raise InputError(
            "TrainedVectorValued", f"a covariance of {num_tasks} tasks", matrix.shape, cure
        )
    return FixedCovariance(jnp.asarray(matrix))
