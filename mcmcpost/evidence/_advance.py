"""One compiled program that moves every lane (rung × chain), in warm-up and in sampling alike."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mcmcpost.evidence._evaluate import Evaluation, evaluate
from mcmcpost.evidence._exchange import propose_swaps
from mcmcpost.evidence._kernel import HamiltonianKernel, KernelFunctions, make_kernel
from mcmcpost.evidence._ladder import TemperedTarget


class Record(NamedTuple):
    """What one iteration leaves; l lanes, c chains.

    draw (l, d), log_likelihood (l,), gradient_log_likelihood and gradient_log_prior (l, d) : after the exchange.
    num_steps, accept_prob, diverging : (l,) of the trajectory.
    accepted, proposed : (pairs, c) swaps.
    """

    draw: Array
    log_likelihood: Array
    gradient_log_likelihood: Array
    gradient_log_prior: Array
    num_steps: Array
    accept_prob: Array
    diverging: Array
    accepted: Array
    proposed: Array


class Plan(NamedTuple):
    """What the program is compiled for.

    rungs, chains : of the sampled lanes, which come first; padding follows them.
    with_prior : an iid prior draw stands below the lowest rung, and may be swapped in.
    num_warmup : iterations whose records are not kept.
    exchange : iterations between rounds of exchange, or None.
    capacity : iterations of one call at most.
    """

    rungs: int
    chains: int
    with_prior: bool
    num_warmup: int
    exchange: int | None
    capacity: int


class Program(NamedTuple):
    """`init` of `KernelFunctions`, compiled, and `make_advance`."""

    init: Callable[..., Any]
    advance: Callable[..., tuple[Any, Record]]


@lru_cache(maxsize=4)
def make_program(target: TemperedTarget, kernel: HamiltonianKernel, plan: Plan) -> Program:
    """Return the compiled first state and iterations; kept for calls with the same functions and sizes."""
    functions = make_kernel(target, kernel, plan.num_warmup)
    return Program(jax.jit(functions.init), make_advance(target, kernel, functions, plan))


def make_advance(
    target: TemperedTarget, kernel: HamiltonianKernel, functions: KernelFunctions, plan: Plan
) -> Callable[..., tuple[Any, Record]]:
    """Return ``advance(state, temperatures, key, first, count, partners)`` → the state and `capacity` records.

    The number of iterations is an argument, so that every call shares one compilation. `partners` are the prior draws
    of this call, an `Evaluation` and draws (capacity, c, ...), or None.
    """

    pairs = 0 if plan.exchange is None else plan.rungs - 1 + plan.with_prior

    def advance(
        state: Any, temperatures: Array, key: jax.Array, first: Array, count: Array, partners: Any
    ) -> tuple[Any, Record]:
        def body(j: Array, carry: tuple[Any, Record]) -> tuple[Any, Record]:
            moved, records = carry
            partner = jax.tree.map(lambda array: array[j], partners)
            moved, record = iterate(moved, temperatures, jax.random.fold_in(key, first + j), first + j, partner)
            return moved, jax.tree.map(lambda store, value: store.at[j].set(value), records, record)

        empty = _empty_record(state, pairs, plan.chains)
        stores = jax.tree.map(lambda leaf: jnp.zeros((plan.capacity, *leaf.shape), leaf.dtype), empty)
        return jax.lax.fori_loop(0, count, body, (state, stores))

    def iterate(state: Any, temperatures: Array, key: jax.Array, iteration: Array, partner: Any) -> tuple[Any, Record]:
        swap_key, jitter_key = jax.random.split(key)
        jitter = jax.random.uniform(jitter_key, temperatures.shape, temperatures.dtype, -1.0, 1.0)
        state = functions.step(state, temperatures, jitter)
        swapping = jnp.zeros((), bool) if plan.exchange is None else iteration % plan.exchange == 0
        values = _evaluate_if((iteration >= plan.num_warmup) | swapping, target, kernel, state.z)
        nothing = jnp.zeros((pairs, plan.chains), bool)
        accepted, proposed = nothing, nothing
        moved = state.z, values
        if plan.exchange is not None:
            parity = iteration // plan.exchange % 2
            moved, accepted, proposed = jax.lax.cond(
                swapping,
                lambda: _swap(plan, swap_key, parity, temperatures, moved, partner),
                lambda: (moved, nothing, nothing),
            )
            state = _with_states(state, temperatures, moved, swapping)
        record = Record(
            moved[0],
            moved[1].log_likelihood,
            moved[1].gradient_log_likelihood,
            moved[1].gradient_log_prior,
            state.num_steps,
            state.accept_prob,
            state.diverging,
            accepted,
            proposed,
        )
        return state, record

    return jax.jit(advance)


def _empty_record(state: Any, pairs: int, chains: int) -> Record:
    lane, row, pair = jnp.zeros_like(state.potential_energy), jnp.zeros_like(state.z), jnp.zeros((pairs, chains), bool)
    steps, accept, diverging = map(jnp.zeros_like, (state.num_steps, state.accept_prob, state.diverging))
    return Record(row, lane, row, row, steps, accept, diverging, pair, pair)


def _evaluate_if(wanted: Array, target: TemperedTarget, kernel: HamiltonianKernel, draws: Array) -> Evaluation:
    def at(draw: Array) -> Evaluation:
        return evaluate(target, draw, kernel.forward_mode)

    zero = jnp.zeros(draws.shape[:1], draws.dtype)
    zeros = Evaluation(zero, zero, jnp.zeros_like(draws), jnp.zeros_like(draws))
    return jax.lax.cond(wanted, jax.vmap(at), lambda _: zeros, draws)


def _swap(
    plan: Plan, key: jax.Array, parity: Array, temperatures: Array, moved: Any, partner: Any
) -> tuple[Any, Array, Array]:
    """Swap lanes between rungs; a state given to the prior rung is dropped, as the next draw there is a fresh one."""
    lanes = plan.rungs * plan.chains

    def by_rung(lane: Array, prior: Array | None) -> Array:
        rows = lane[:lanes].reshape(plan.rungs, plan.chains, *lane.shape[1:])
        return rows if prior is None else jnp.concatenate([prior[None], rows])

    rows = (
        jax.tree.map(by_rung, moved, partner)
        if plan.with_prior
        else jax.tree.map(lambda lane: by_rung(lane, None), moved)
    )
    levels = temperatures[:lanes].reshape(plan.rungs, plan.chains)[:, 0]
    levels = jnp.concatenate([jnp.zeros(1, levels.dtype), levels]) if plan.with_prior else levels
    swap = propose_swaps(key, parity, levels, rows[1].log_likelihood)

    def exchanged(row: Array, lane: Array) -> Array:
        index = swap.source.reshape(*swap.source.shape, *[1] * (row.ndim - 2))
        new = jnp.take_along_axis(row, index, axis=0)[int(plan.with_prior) :]
        return jnp.concatenate([new.reshape(lanes, *lane.shape[1:]), lane[lanes:]])

    return jax.tree.map(exchanged, rows, moved), swap.accepted, swap.proposed


def _with_states(state: Any, temperatures: Array, moved: Any, swapping: Array) -> Any:
    """Return the kernel's state at the exchanged draws, with the potential and gradient of the rung they came to."""
    draws, values = moved
    energy = -(values.log_prior + temperatures * values.log_likelihood)
    slope = -(values.gradient_log_prior + temperatures[:, None] * values.gradient_log_likelihood)
    usable = swapping & jnp.isfinite(energy)
    return state._replace(
        z=jnp.where(swapping, draws, state.z),
        potential_energy=jnp.where(usable, energy, state.potential_energy),
        z_grad=jnp.where(usable[:, None], slope, state.z_grad),
    )
