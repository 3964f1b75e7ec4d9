"""The compiled program that moves all chains of all rungs (lanes), and where they start.

It runs NumPyro's kernels, adaptation and replica exchange. Starts and first mass matrices are prior
draws resampled by their tempered likelihood.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.core.arguments import HUGE, check_count, check_flags, check_kind, check_number
from mcmcpost.core.devices import host_generator, map_rows
from mcmcpost.core.errors import InputError
from mcmcpost.evidence import TemperedTarget
from mcmcpost.scores import value_and_score

JITTER = 0.2
"""Half-width of the uniform relative jitter of HMC's step size; without it a fixed length may
resonate."""


class HamiltonianKernel(NamedTuple):
    """The Markov kernel of every rung: NUTS, or HMC of fixed length, with step size and mass matrix
    adapted per chain.

    num_steps : leapfrog steps of HMC; None for NUTS. All chains of all rungs step together, so that
        each waits for the longest trajectory: HMC wastes nothing, NUTS adapts the length.
    max_tree_depth : of NUTS, in warm-up and in sampling. One deep tree keeps all chains waiting.
    target_accept : acceptance probability that the step size is adapted to.
    dense_mass : adapt a dense mass matrix; otherwise a diagonal one.
    forward_mode : differentiate in forward mode, which suits ODE solves with one to three
        parameters.
    """

    num_steps: int | None = None
    max_tree_depth: tuple[int, int] = (6, 8)
    target_accept: float = 0.8
    dense_mass: bool = True
    forward_mode: bool = False


class KernelFunctions(NamedTuple):
    """The kernel, vectorised over lanes: the chains of all rungs.

    init : (keys, starts, temperatures, inverse_mass) → state.
    step : (state, temperatures, jitter) → state; the jitter is uniform in (−1, 1) and independent
        of the state's key.
    """

    init: Callable[[Array, Array, Array, Array], Any]
    step: Callable[[Any, Array, Array], Any]


def check_kernel(where: str, kernel: HamiltonianKernel) -> None:
    """Refuse settings that cannot run."""
    check_kind(where, "kernel", kernel, HamiltonianKernel, "Such as HamiltonianKernel().")
    check_count(where, "num_steps", kernel.num_steps, "Use None for NUTS.", optional=True)
    depths = kernel.max_tree_depth
    if not isinstance(depths, tuple) or len(depths) != 2:
        raise InputError(where, "a tuple of two for `max_tree_depth`", repr(depths), "Use (6, 8).")
    for depth in depths:
        check_count(where, "max_tree_depth", depth, "Use (6, 8).", most=30)
    check_number(where, "target_accept", kernel.target_accept, "Use 0.8.", inside="(0, 1)")
    check_flags(where, dense_mass=kernel.dense_mass, forward_mode=kernel.forward_mode)


def potential(target: TemperedTarget, draw: Array, temperature: Array) -> Float[Array, ""]:
    """Return −log p(x) − tℓ(x), infinite where either is not finite, and above `HUGE`, less in
    float32.

    The gradient of a larger one gives a momentum whose kinetic energy overflows. With a dense mass
    matrix that may be to −∞: then the trajectory ends where the density is zero to rounding, and
    the chain stays there.
    """
    value = target.log_prior(draw) + temperature * target.log_likelihood(draw)
    # A kinetic energy is a square of products of two: in float32 the bound is 4e9.
    most = min(HUGE, float(jnp.finfo(value.dtype).max) ** 0.25)
    return jnp.where(jnp.isfinite(value) & (value > -most), -value, jnp.inf)


def make_kernel(
    target: TemperedTarget, kernel: HamiltonianKernel, num_warmup: int
) -> KernelFunctions:
    """Return the vectorised kernel; all lanes share the iteration, so that adaptation stops for all
    at once."""
    from numpyro.infer.hmc import HMCState, hmc
    from numpyro.infer.hmc_util import HMCAdaptState

    init_kernel, sample_kernel = hmc(
        potential_fn_gen=lambda temperature: lambda draw: potential(target, draw, temperature),
        algo="NUTS" if kernel.num_steps is None else "HMC",
    )

    def init(key: Array, start: Array, temperature: Array, inverse_mass: Array) -> Any:
        return init_kernel(
            start,
            num_warmup=num_warmup,
            inverse_mass_matrix=inverse_mass if kernel.dense_mass else jnp.diagonal(inverse_mass),
            dense_mass=kernel.dense_mass,
            target_accept_prob=kernel.target_accept,
            num_steps=kernel.num_steps,
            # NumPyro does not adapt the step size where number of steps and length are both given,
            # and its default length is 2π.
            trajectory_length=None,
            max_tree_depth=kernel.max_tree_depth,
            forward_mode_differentiation=kernel.forward_mode,
            model_args=(temperature,),
            rng_key=key,
        )

    def step(state: Any, temperature: Array, jitter: Array) -> Any:
        if kernel.num_steps is None:
            return sample_kernel(state, model_args=(temperature,))
        # NumPyro keeps a fixed number of steps: a random step size varies the length.
        # The jittered step must not be taken for the adapted one: the averages of the adaptation
        # would follow the noise.
        adapted = state.adapt_state
        factor = jnp.where(state.i < num_warmup, 1.0, 1 + JITTER * jitter)
        varied = state._replace(adapt_state=adapted._replace(step_size=factor * adapted.step_size))
        new = sample_kernel(varied, model_args=(temperature,))
        kept = jnp.where(state.i < num_warmup, new.adapt_state.step_size, adapted.step_size)
        return new._replace(adapt_state=new.adapt_state._replace(step_size=kept))

    # The iteration is one number for all lanes: conditions on it stay conditions, instead of
    # computing both sides.
    adaptation = HMCAdaptState(**dict.fromkeys(HMCAdaptState._fields, 0) | {"window_idx": None})
    axes = HMCState(**dict.fromkeys(HMCState._fields, 0) | {"i": None, "adapt_state": adaptation})
    return KernelFunctions(
        jax.vmap(init, out_axes=axes),
        jax.vmap(step, in_axes=(axes, 0, 0), out_axes=axes),
    )


class Swap(NamedTuple):
    """The decisions of one round of exchange.

    source : (t, c) the rung whose state each rung takes over.
    accepted, proposed : (t−1, c) whether the pair of rungs i and i+1 swapped, and whether it tried.
    """

    source: Int[Array, "t c"]
    accepted: Bool[Array, "p c"]
    proposed: Bool[Array, "p c"]


def propose_swaps(
    key: Array,
    parity: Int[Array, ""],
    temperatures: Float[Array, " t"],
    log_likelihood: Float[Array, "t c"],
) -> Swap:
    """Swap the states of rungs i and i+1 with probability min(1, exp((tᵢ − tᵢ₊₁)(ℓᵢ₊₁ − ℓᵢ))), for
    i of one parity.

    Pairs of one parity are disjoint, so each swap alone leaves the product of the power posteriors
    invariant; alternating the parity moves states along the ladder. A state without a finite ℓ
    never moves to a colder rung.
    """
    t, c = log_likelihood.shape
    lower = jnp.arange(t - 1)
    # (t−1, c): the ratio of p_i(x′)p_{i+1}(x) to p_i(x)p_{i+1}(x′), in which priors and normalising
    # constants cancel.
    gap = (temperatures[:-1] - temperatures[1:])[:, None]
    log_ratio = gap * (log_likelihood[1:] - log_likelihood[:-1])
    uniform = jax.random.uniform(key, (t - 1, c), log_ratio.dtype)
    proposed = jnp.broadcast_to((lower % 2 == parity)[:, None], (t - 1, c))
    # A NaN ratio compares false: rejected.
    accepted = proposed & (jnp.log(uniform) < log_ratio)
    # The last rung has nobody above it and the first one nobody below; pairs of one parity never
    # share a rung.
    none = jnp.zeros((1, c), bool)
    up, down = jnp.concatenate([accepted, none]), jnp.concatenate([none, accepted])
    source = jnp.arange(t)[:, None] + up.astype(int) - down.astype(int)
    return Swap(source, accepted, proposed)


class Evaluation(NamedTuple):
    """Both terms of a target and their gradients at one draw, or stacked over leading axes.

    log_likelihood, log_prior : scalars ℓ and log p(x).
    gradient_log_likelihood, gradient_log_prior : (d,), NaN where the value is not finite.
    """

    log_likelihood: Any
    log_prior: Any
    gradient_log_likelihood: Any
    gradient_log_prior: Any


def evaluate(target: TemperedTarget, draw: Array, forward_mode: bool) -> Evaluation:
    """Evaluate both terms of the target at one draw."""
    likelihood = value_and_score(target.log_likelihood, draw, forward_mode=forward_mode)
    prior = value_and_score(target.log_prior, draw, forward_mode=forward_mode)
    return Evaluation(likelihood.value, prior.value, likelihood.score, prior.score)


def evaluate_at(
    target: TemperedTarget, draws: np.ndarray, *, forward_mode: bool = False
) -> Evaluation:
    """Evaluate both terms of the target at draws (..., d), in 64 bits and over all devices."""
    lead, d = draws.shape[:-1], draws.shape[-1]
    flat = np.asarray(draws, np.float64).reshape(-1, d)
    evaluations = map_rows(_evaluation(target, forward_mode), flat)
    return jax.tree.map(lambda array: array.reshape(*lead, *array.shape[1:]), evaluations)


@lru_cache(maxsize=4)
def _evaluation(target: TemperedTarget, forward_mode: bool) -> Callable[[Array], Evaluation]:
    """Return `evaluate` of one target; the same function for the same target, so that it is
    compiled once."""
    return partial(evaluate, target, forward_mode=forward_mode)


class Record(NamedTuple):
    """The record of one iteration of l lanes, or of several, stacked.

    draw (l, d), log_likelihood (l,), gradient_log_likelihood and gradient_log_prior (l, d).
    num_steps, accept_prob, diverging : (l,) of the trajectory.
    """

    draw: Array
    log_likelihood: Array
    gradient_log_likelihood: Array
    gradient_log_prior: Array
    num_steps: Array
    accept_prob: Array
    diverging: Array


class Plan(NamedTuple):
    """The sizes that the program is compiled for.

    rungs, chains : of all lanes. A process computes some of them, its last ones repeated where its
        devices need more.
    num_warmup : iterations whose records are not kept.
    exchange : iterations between rounds of exchange, or None.
    capacity : iterations of one call at most.
    """

    rungs: int
    chains: int
    num_warmup: int
    exchange: int | None
    capacity: int


class Position(NamedTuple):
    """Where lanes are: draws (l, d), and both terms of the target there."""

    draw: Any
    values: Evaluation


class Exchanged(NamedTuple):
    """A round of exchange: what changes in the state of this process's lanes, their record, (pairs,
    c) decisions."""

    moved: dict[str, Array]
    record: Record
    accepted: Array
    proposed: Array


class Program(NamedTuple):
    """Compiled functions of the lanes of one process; `lane` (l,) are their indices among all.

    init : of `KernelFunctions`.
    advance : (state, lane, temperatures, key, first, count) → state, position and `capacity`
        records. The number of iterations is an argument, so that every call shares one compilation.
    exchange : (state, lane, temperatures, levels, key, iteration, positions, partner) →
        `Exchanged`. `levels` (t,) are the temperatures of the rungs, `positions` of all lanes,
        `partner` that of the prior rung (c, ...), or None.
    """

    init: Callable[..., Any]
    advance: Callable[..., tuple[Any, Position, Record]]
    exchange: Callable[..., Exchanged]


@lru_cache(maxsize=4)
def make_program(target: TemperedTarget, kernel: HamiltonianKernel, plan: Plan) -> Program:
    """Return the compiled functions; kept for calls with the same functions and sizes."""
    functions = make_kernel(target, kernel, plan.num_warmup)

    def advance(
        state: Any, lane: Array, temperatures: Array, key: jax.Array, first: Array, count: Array
    ) -> tuple[Any, Position, Record]:
        def body(j: Array, carry: tuple[Any, Position, Record]) -> tuple[Any, Position, Record]:
            iteration = first + j
            # Keys follow the iteration and jitters are drawn for all lanes: neither chunks,
            # checkpoints nor the number of processes change a draw.
            jitter_key = jax.random.split(jax.random.fold_in(key, iteration))[1]
            jitter = jax.random.uniform(
                jitter_key, (plan.rungs * plan.chains,), temperatures.dtype, -1.0, 1.0
            )
            moved = functions.step(carry[0], temperatures, jitter[lane])
            # Two more gradients a draw: in warm-up they are needed only where states are about to
            # be exchanged.
            wanted = iteration >= plan.num_warmup
            if plan.exchange is not None:
                wanted |= iteration % plan.exchange == 0
            position = Position(moved.z, _evaluate_if(wanted, target, kernel, moved.z))
            records = jax.tree.map(
                lambda store, value: store.at[j].set(value), carry[2], _record(moved, position)
            )
            return moved, position, records

        empty = Position(state.z, _evaluate_if(jnp.zeros((), bool), target, kernel, state.z))
        # Stores of fixed capacity: `count` is traced, and every call shares one compilation.
        stores = jax.tree.map(
            lambda leaf: jnp.zeros((plan.capacity, *leaf.shape), leaf.dtype), _record(state, empty)
        )
        return jax.lax.fori_loop(0, count, body, (state, empty, stores))

    def exchange(
        state: Any,
        lane: Array,
        temperatures: Array,
        levels: Array,
        key: jax.Array,
        iteration: Array,
        positions: Position,
        partner: Position | None,
    ) -> Exchanged:
        assert plan.exchange is not None
        # Every process decides all swaps with the same key, so that only positions need to be sent.
        swap_key = jax.random.split(jax.random.fold_in(key, iteration))[0]
        parity = iteration // plan.exchange % 2
        moved, accepted, proposed = _swap(plan, swap_key, parity, levels, positions, partner)
        # `moved` is of all lanes, the state of those of this process.
        local = jax.tree.map(lambda row: row[lane], moved)
        return Exchanged(
            _at_position(state, temperatures, local), _record(state, local), accepted, proposed
        )

    return Program(jax.jit(functions.init), jax.jit(advance), jax.jit(exchange))


def forget_programs() -> None:
    """Drop the compiled functions that are kept, and with them JAX's memory of the arrays that they
    read."""
    make_program.cache_clear()
    _evaluation.cache_clear()


def _record(state: Any, position: Position) -> Record:
    values = position.values
    return Record(
        position.draw,
        values.log_likelihood,
        values.gradient_log_likelihood,
        values.gradient_log_prior,
        state.num_steps,
        state.accept_prob,
        state.diverging,
    )


def _evaluate_if(
    wanted: Array, target: TemperedTarget, kernel: HamiltonianKernel, draws: Array
) -> Evaluation:
    def at(draw: Array) -> Evaluation:
        return evaluate(target, draw, kernel.forward_mode)

    zero = jnp.zeros(draws.shape[:1], draws.dtype)
    zeros = Evaluation(zero, zero, jnp.zeros_like(draws), jnp.zeros_like(draws))
    return jax.lax.cond(wanted, jax.vmap(at), lambda _: zeros, draws)


def _swap(
    plan: Plan,
    key: jax.Array,
    parity: Array,
    levels: Array,
    moved: Position,
    partner: Position | None,
) -> tuple[Position, Array, Array]:
    """Swap lanes between rungs. A state that moves to the prior rung is dropped: the next draw
    there is independent."""

    def by_rung(lane: Array, prior: Array | None) -> Array:
        rows = lane.reshape(plan.rungs, plan.chains, *lane.shape[1:])
        return rows if prior is None else jnp.concatenate([prior[None], rows])

    if partner is None:
        rows = jax.tree.map(lambda lane: by_rung(lane, None), moved)
    else:
        rows = jax.tree.map(by_rung, moved, partner)
        levels = jnp.concatenate([jnp.zeros(1, levels.dtype), levels])
    swap = propose_swaps(key, parity, levels, rows.values.log_likelihood)

    def exchanged(row: Array, lane: Array) -> Array:
        index = swap.source.reshape(*swap.source.shape, *[1] * (row.ndim - 2))
        return jnp.take_along_axis(row, index, axis=0)[int(partner is not None) :].reshape(
            lane.shape
        )

    return jax.tree.map(exchanged, rows, moved), swap.accepted, swap.proposed


def _at_position(state: Any, temperatures: Array, position: Position) -> dict[str, Array]:
    """Return the exchanged draws and the potential and gradient of their new rung, by the names of
    the kernel."""
    draws, values = position
    # Both terms are stored apart, so that a state needs no new gradient at its new rung. With the
    # old energy left in place the next acceptance would be wrong.
    energy = -(values.log_prior + temperatures * values.log_likelihood)
    slope = -(values.gradient_log_prior + temperatures[:, None] * values.gradient_log_likelihood)
    usable = jnp.isfinite(energy)
    return {
        "z": draws,
        "potential_energy": jnp.where(usable, energy, state.potential_energy),
        "z_grad": jnp.where(usable[:, None], slope, state.z_grad),
    }


SPREAD = 0.05
"""Standard deviation of the starts about a given start, in prior standard deviations."""


class Pool(NamedTuple):
    """Weighted candidates for a start.

    draws : (m, d).
    log_likelihood : (m,) ℓ.
    temperature : (m,) inverse temperature that each was drawn at.
    """

    draws: Float[np.ndarray, "m d"]
    log_likelihood: Float[np.ndarray, " m"]
    temperature: Float[np.ndarray, " m"]


class Starts(NamedTuple):
    """Starts (t, c, d) and inverse mass matrices (t, d, d), rung by rung."""

    draws: Float[np.ndarray, "t c d"]
    inverse_mass: Float[np.ndarray, "t d d"]


def prior_pool(
    where: str,
    target: TemperedTarget,
    draws: Float[np.ndarray, "n d"],
    values: Evaluation,
    init: Float[np.ndarray, " d"] | None,
    copies: int,
    key: jax.Array,
) -> Pool:
    """Return prior draws, and `copies` of `init` with `SPREAD` about it, as candidates."""
    likelihood = np.asarray(values.log_likelihood)
    if not np.isfinite(values.log_prior).any():
        raise InputError(
            where,
            "a prior whose log density is finite at its draws",
            "none",
            "Check log_prior, sample_prior.",
        )
    if init is not None:
        # A half-Cauchy prior overflows now and then; one infinite draw would make the spread NaN.
        spread = SPREAD * np.nan_to_num(
            np.nanstd(np.where(np.isfinite(draws), draws, np.nan), axis=0)
        )
        near = init + spread * host_generator(key).normal(size=(copies, len(init)))
        near[0] = init
        draws = np.concatenate([draws, near])
        extra = evaluate_at(target, near)
        if not np.isfinite(extra.log_likelihood + extra.log_prior)[0]:
            raise InputError(
                where,
                "`init` where prior and likelihood are finite",
                init.tolist(),
                "Start nearer the mode.",
            )
        likelihood = np.concatenate([likelihood, np.asarray(extra.log_likelihood)])
    if not np.isfinite(likelihood).any():
        raise InputError(
            where,
            "a finite likelihood at some prior draw",
            "none",
            "Pass `init` near the posterior mode.",
        )
    return Pool(draws, likelihood, np.zeros(len(draws)))


def choose_starts(
    pool: Pool, temperatures: Float[np.ndarray, " t"], num_chains: int, key: jax.Array
) -> Starts:
    """Resample candidates with weights exp((t − t₀)ℓ), each at most once per rung, and estimate
    covariances alike.

    On a cold rung few candidates have weight, too few for a covariance. It gets that of the coldest
    rung whose weights have a large enough effective size.
    """
    usable = np.isfinite(pool.log_likelihood) & np.isfinite(pool.draws).all(axis=1)
    draws, likelihood, level = (array[usable] for array in pool)
    # The largest of log weight plus Gumbel noise are a weighted sample without replacement; drawn
    # with replacement, the chains of a cold rung would start at one and the same draw.
    gumbel = host_generator(key).gumbel(size=(len(temperatures), len(draws)))
    starts, masses = [], []
    mass = None
    for temperature, noise in zip(temperatures, gumbel, strict=True):
        log_weight = (temperature - level) * likelihood
        order = np.argsort(-(log_weight + noise))
        starts.append(draws[np.resize(order[:num_chains], num_chains)])
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        size = 1 / (weight**2).sum()
        # Five draws a coordinate, as for the standardising map (docs/mathematics.md section 2,
        # Coordinates).
        if mass is None or size >= max(20, 5 * draws.shape[1]):
            mass = _covariance(draws, weight, size)
        masses.append(mass)
    return Starts(np.stack(starts), np.stack(masses))


def _covariance(
    draws: Float[np.ndarray, "m d"], weight: Float[np.ndarray, " m"], size: float
) -> Float[np.ndarray, "d d"]:
    centred = draws - weight @ draws
    covariance = (centred * weight[:, None]).T @ centred
    variance = np.diagonal(covariance)
    scale = np.where((variance > 0) & np.isfinite(variance), variance, 1.0)
    # The n/(n + 5) of Stan's and NumPyro's adaptation, towards the variances of the draws and not
    # towards 1e-3, since coordinates of the prior need not be of unit scale.
    shrunk = size / (size + 5) * covariance + 5 / (size + 5) * np.diag(scale)
    return shrunk if size > 2 * len(scale) and np.isfinite(shrunk).all() else np.diag(scale)
