"""Vector-valued control variates by stochastic optimisation: Algorithms 1 and 2 of Sun, Barp and Briol."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from mcmcpost._checks import fault
from mcmcpost.control._minibatch import Schedule, make_schedule, shuffled_units, unit_weights
from mcmcpost.control._task_family import AbstractTaskControl, TaskRows

CACHE_ENTRIES = 1 << 25
"""Features of all rows with at most this many entries (256 MB) are computed once, others in every mini-batch."""
SETTLED = 0.01
"""Training has settled when the mean loss of the last tenth of the epochs is within this of the tenth before."""
_CHUNK = 256


class MeanSquare(eqx.Module):
    """Σ_t of the mean squared residual (equation 8): the variance of independent draws."""

    @property
    def block(self) -> int:
        return 1


class ChainVariance(eqx.Module):
    """Σ_t of the batch-means estimate of the residual's variance in the Markov-chain central limit theorem.

    The mean over blocks of ℓ·(mean residual in the block)², blocks of ℓ consecutive draws of one chain. Appendix A.1
    prints another estimator, with all lags up to m − 1 and the mean subtracted: it is (Σ_j (r_j − r̄))²/m, which is
    zero whatever g is, so it cannot be minimised. Only m/ℓ block means are fitted, so a flexible family needs a larger
    penalty than with `MeanSquare`.

    block : ℓ, a few autocorrelation times; None for ⌊√n⌋, n the length of the shortest chain.
    """

    block: int | None = None

    def __check_init__(self) -> None:
        if self.block is not None and self.block < 1:
            raise ValueError(fault("ChainVariance", "`block` of at least 1", self.block, "Use a few dozen draws."))


class Stochastic(eqx.Module):
    """How a vector-valued control variate is trained: Adam on mini-batches, for draws too many for a direct solve.

    num_epochs : passes over the data.
    batch_size : draws in a mini-batch, over all tasks together; shared among them in proportion to their draws.
    learning_rate : Adam's.
    penalty : λ of λ‖θ‖², Euclidean (Appendix A.2).
    learn_covariance : train B = LLᵀ as well, under + ‖B‖²_F (Algorithm 1), or leave it as given (Algorithm 2).
    objective : `MeanSquare` when None.
    """

    num_epochs: int = 400
    batch_size: int = 10
    learning_rate: float = 1e-3
    penalty: float = 1e-5
    learn_covariance: bool = False
    objective: MeanSquare | ChainVariance | None = None

    def __check_init__(self) -> None:
        for name, value in (("num_epochs", self.num_epochs), ("batch_size", self.batch_size)):
            if value < 1:
                raise ValueError(fault("Stochastic", f"`{name}` of at least 1", value, "Use a positive integer."))
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            got = self.learning_rate
            raise ValueError(fault("Stochastic", "`learning_rate` above 0", got, "Values of unit scale suit 1e-3."))
        if not (math.isfinite(self.penalty) and self.penalty >= 0):
            got = self.penalty
            raise ValueError(fault("Stochastic", "`penalty` finite and not negative", got, "Values such as 1e-5 suit."))


class StochasticFit(NamedTuple):
    """A trained vector-valued control variate.

    control : the family at its last parameters. beta : (T,) its constants, β.
    loss : the whole objective on all data at the end.
    history : (num_epochs,) mean mini-batch objective of each epoch.
    num_steps : Adam steps.
    converged : whether `history` has settled: the mean over the last tenth of the epochs within `SETTLED`, relative, of
        the mean over the tenth before. It says that more epochs would change little, not that the optimum is global.
    finite : whether every loss and every parameter is finite; if not, training diverged and the control is worthless.
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
    chains: Int[np.ndarray, " m"] | None = None,
    beta: Float[Array | np.ndarray, " t"] | None = None,
) -> StochasticFit:
    """Minimise Σ_t mean_j (f_t(x_tj) − g_t(x_tj) − β_t)² + λ‖θ‖² (+ ‖B‖²_F) by Adam on mini-batches.

    Starts from `control` as it is; its constructors start at g = 0. Everything random, that is the order of the draws,
    comes from `key`.

    Parameters
    ----------
    control : the family, with B given or free; `choice.learn_covariance` frees it.
    rows : m draws of all tasks, those of one chain of one task in draw order.
    values : (m,) integrand of each row's task, of unit scale.
    chains : (m,) chain labels, which `ChainVariance` needs where a task has several chains.
    beta : (T,) first constants; the task means when None. A fit's `control` and `beta` are its warm start.

    Raises
    ------
    ValueError
        if a task has no rows, `batch_size` is below the number of tasks, or a chain is shorter than a block.

    Source: Sun, Barp and Briol, Vector-Valued Control Variates (ICML 2023), Algorithms 1 and 2, Appendix A.2.
    """
    objective = choice.objective or MeanSquare()
    tasks = np.asarray(rows.tasks)
    schedule = make_schedule(
        tasks,
        num_tasks=control.num_tasks,
        batch_size=choice.batch_size,
        block=objective.block,
        chains=None if chains is None else np.asarray(chains),
    )
    if choice.learn_covariance:
        control = control.release_covariance()
    data = TaskRows(jnp.asarray(rows.draws), jnp.asarray(rows.scores), jnp.asarray(tasks))
    f = jnp.asarray(values)
    shapes = eqx.filter_eval_shape(control.features, data)
    cached = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) <= CACHE_ENTRIES
    penalty, rate = jnp.asarray(choice.penalty, f.dtype), jnp.asarray(choice.learning_rate, f.dtype)
    first = _task_means(f, jnp.asarray(tasks), control.num_tasks) if beta is None else jnp.asarray(beta, f.dtype)
    trained, constants, loss, history = _train(
        control, first, data, f, schedule, penalty, rate, key, num_epochs=choice.num_epochs, cached=cached
    )
    parameters = jax.tree.leaves((eqx.filter(trained, trained.trainable()), constants, loss, history))
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
    """Run every epoch in one scan; one compilation serves every key, penalty, learning rate and value."""
    free, frozen = eqx.partition(control, control.trainable())
    features = control.features(rows) if cached else None
    weights = unit_weights(schedule, values.dtype)
    optimiser = optax.adam(rate)

    def blocks(parameters: tuple, units: Int[Array, " b"]) -> Float[Array, " b"]:
        """Return ℓ·(mean residual)² of each unit; ℓ = 1 is the squared residual of a draw."""
        family: AbstractTaskControl = eqx.combine(parameters[0], frozen)
        members = schedule.units[units]
        index = members.ravel()
        batch = jax.tree.map(lambda a: a[index], rows)
        known = family.features(batch) if features is None else jax.tree.map(lambda a: a[index], features)
        residual = values[index] - family.evaluate(known, batch.tasks) - parameters[1][batch.tasks]
        return members.shape[1] * jnp.mean(residual.reshape(members.shape), axis=1) ** 2

    def penalties(parameters: tuple) -> Float[Array, ""]:
        family: AbstractTaskControl = eqx.combine(parameters[0], frozen)
        return penalty * family.squared_norm() + family.covariance_penalty()

    def loss(parameters: tuple, units: Int[Array, " b"]) -> Float[Array, ""]:
        return jnp.sum(weights * blocks(parameters, units)) + penalties(parameters)

    def step(state: TrainState, units: Int[Array, " b"]) -> tuple[TrainState, Float[Array, ""]]:
        value, slope = jax.value_and_grad(loss)(state.parameters, units)
        with jax.numpy_dtype_promotion("standard"):  # optax raises floats to its integer step count
            updates, adam = optimiser.update(slope, state.adam, state.parameters)
        return TrainState(optax.apply_updates(state.parameters, updates), adam), value

    def epoch(state: TrainState, key: PRNGKeyArray) -> tuple[TrainState, Float[Array, ""]]:
        state, losses = jax.lax.scan(step, state, shuffled_units(schedule, key=key))
        return state, jnp.mean(losses)

    start = (free, beta)
    state, history = jax.lax.scan(epoch, TrainState(start, optimiser.init(start)), jax.random.split(key, num_epochs))
    squares = _in_chunks(lambda units: blocks(state.parameters, units), schedule.units.shape[0])
    total = jnp.sum(_task_means(squares, schedule.tasks, control.num_tasks)) + penalties(state.parameters)
    return eqx.combine(state.parameters[0], frozen), state.parameters[1], total, history


def _in_chunks(function: Any, count: int) -> Float[Array, " u"]:
    """Return function(0), …, function(count − 1) from blocks of indices, the last of which overlaps."""
    size = min(_CHUNK, count)
    starts = jnp.minimum(jnp.arange(-(-count // size)) * size, count - size)
    index = starts[:, None] + jnp.arange(size)[None]
    found = jax.lax.map(function, index)
    return jnp.zeros(count, found.dtype).at[index.ravel()].set(found.ravel())


def _task_means(values: Float[Array, " m"], tasks: Int[Array, " m"], num_tasks: int) -> Float[Array, " t"]:
    ones = jnp.ones_like(values)
    return jax.ops.segment_sum(values, tasks, num_tasks) / jax.ops.segment_sum(ones, tasks, num_tasks)


def _settled(history: Float[Array, " e"]) -> Bool[Array, ""]:
    width = max(1, history.shape[0] // 10)
    if history.shape[0] < 2 * width:
        return jnp.zeros((), bool)
    late, early = jnp.mean(history[-width:]), jnp.mean(history[-2 * width : -width])
    return jnp.abs(late - early) <= SETTLED * jnp.abs(early)
