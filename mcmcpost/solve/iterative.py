"""The result of a solver, the contract of an iterative solver, and the loop that runs every one of
them."""

import abc
from enum import IntEnum
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.core.arguments import check_number
from mcmcpost.stein.products import Regularised


class Outcome(IntEnum):
    """How a solve ended."""

    RUNNING = 0
    """Not a final state."""
    CONVERGED = 1
    """The residual, recomputed from the value, is within twice the tolerance; the solver's own was
    within it."""
    BUDGET = 2
    """The budget ended first; the value is the last one, whose residual need not be below that of
    zero."""
    STAGNATED = 3
    """The tolerance is below what this precision and matrix allow."""
    BROKEN = 4
    """The matrix is not positive definite, or a number is not finite; the value is the last finite
    one."""
    JITTERED = 5
    """Solved, but the matrix was singular in this precision: a multiple of the identity was added
    to factorise it."""


class Solution(NamedTuple):
    """The state in which a solve of AX = B stopped.

    value : (n, k).
    residual : (n, k) B − A·value.
    residual_norms : (k,) of the residual relative to its right-hand side.
    outcome : an `Outcome`.
    num_steps : of the solver.
    epochs : every entry of A computed once is one; preparation, steps and the check of the residual
        together.
    """

    value: Float[Array, "n k"]
    residual: Float[Array, "n k"]
    residual_norms: Float[Array, " k"]
    outcome: Int[Array, ""]
    num_steps: Int[Array, ""]
    epochs: Float[Array, ""]


def column_norms(B: Float[Array, "n k"]) -> Float[Array, " k"]:
    """Return the Euclidean norms (k,) of columns, also where their squares would overflow or
    vanish."""
    peak = jnp.max(jnp.abs(B), axis=0)
    unit = jnp.where(peak > 0, peak, 1)
    return unit * jnp.linalg.norm(B / unit[None], axis=0)


SLACK = 2.0
"""Factor by which a recomputed residual may exceed the tolerance, for the rounding errors of the
recursion."""

PATIENCE = 3
"""Recomputed residuals in a row that did not halve, after which the tolerance is out of reach."""


class AbstractIterativeSolver(eqx.Module):
    """A solver as a state machine, for right-hand sides of unit norm.

    A state is a NamedTuple with `value` and `residual` (n, k), which may lag behind, and `working`,
    false once no step can change the value any more.

    rtol : of the residual, relative to each right-hand side.
    budget : in solver epochs.
    """

    rtol: eqx.AbstractVar[float]
    budget: eqx.AbstractVar[float]

    @abc.abstractmethod
    def prepare(self, system: Regularised) -> Any:
        """Return what all steps share: factors, a preconditioner, a step size."""

    @abc.abstractmethod
    def init(self, prepared: Any, value: Array, residual: Array) -> Any:
        """Return the state at `value`, whose residual is exact."""

    @abc.abstractmethod
    def step(
        self, system: Regularised, prepared: Any, right: Array, state: Any, key: jax.Array
    ) -> Any:
        """Return the next state."""

    @abc.abstractmethod
    def restart(self, prepared: Any, state: Any, residual: Array) -> Any:
        """Return the state at the value of `state` with its residual recomputed."""

    @abc.abstractmethod
    def step_epochs(self, n: int) -> float:
        """Return the share of the n×n entries that one step computes."""

    @abc.abstractmethod
    def prepare_epochs(self, n: int) -> float:
        """Return the share of the n×n entries that the preparation computes."""


def check_limits(solver: AbstractIterativeSolver) -> None:
    """Refuse a tolerance outside (0, 1), or a budget that is not positive."""
    where = type(solver).__name__
    check_number(where, "rtol", solver.rtol, "It is relative: 1e-2 to 1e-10.", inside="(0, 1)")
    check_number(where, "budget", solver.budget, "It counts solver epochs.", inside="(0, inf]")


class _Run(NamedTuple):
    state: Any
    spent: Float[Array, ""]
    epochs: Float[Array, ""]
    steps: Int[Array, ""]
    checked: Float[Array, ""]
    failures: Int[Array, ""]
    outcome: Int[Array, ""]


def worst_residual(norms: Float[Array, " k"], probes: int) -> Float[Array, ""]:
    """Return the largest norm, the last `probes` columns counting by their average."""
    alone = norms[: norms.shape[0] - probes]
    parts = [alone] if probes == 0 else [alone, jnp.mean(norms[-probes:], keepdims=True)]
    return jnp.max(jnp.concatenate(parts))


def iterate(
    system: Regularised,
    right: Float[Array, "n k"],
    solver: AbstractIterativeSolver,
    initial: Float[Array, "n k"] | None,
    probes: int,
    key: jax.Array,
) -> Solution:
    """Drive `solver` until the recomputed residual is within tolerance, or the budget, or progress,
    ends."""
    n = right.shape[0]
    # One tolerance serves columns of any size; a column of zeros is divided by one.
    norms = column_norms(right)
    unit = jnp.where(norms > 0, norms, 1)
    scaled = right / unit[None]
    cost = jnp.asarray(solver.step_epochs(n), right.dtype)
    prepared = solver.prepare(system)
    value = jnp.zeros_like(right) if initial is None else initial / unit[None]
    residual = scaled if initial is None else scaled - system.matmul(value)
    # The residual of a start that is not zero has cost a product.
    first = solver.prepare_epochs(n) + (0 if initial is None else 1)

    def measure(residual: Array) -> Array:
        return worst_residual(jnp.linalg.norm(residual, axis=0), probes)

    def move(run: _Run) -> _Run:
        new = solver.step(system, prepared, scaled, run.state, jax.random.fold_in(key, run.steps))
        # A step that is not finite is taken back: what those before it have reached is returned.
        finite = jnp.all(jnp.isfinite(new.value)) & jnp.all(jnp.isfinite(new.residual))
        state = jax.tree.map(lambda ours, old: jnp.where(finite, ours, old), new, run.state)
        outcome = jnp.where(finite & new.working, run.outcome, Outcome.BROKEN)
        return run._replace(
            state=state,
            spent=run.spent + cost,
            epochs=run.epochs + cost,
            steps=run.steps + 1,
            outcome=outcome,
        )

    def check(run: _Run) -> _Run:
        # Rounding lets the residual of the recursion drift away from the one of the value.
        residual = scaled - system.matmul(run.state.value)
        size = measure(residual)
        failures = jnp.where(size < 0.5 * run.checked, 0, run.failures + 1)
        outcome = jnp.where(failures >= PATIENCE, Outcome.STAGNATED, Outcome.RUNNING)
        # The last that applies stands: what is within tolerance has converged, whatever was spent.
        outcome = jnp.where(run.spent >= solver.budget, Outcome.BUDGET, outcome)
        outcome = jnp.where(size <= SLACK * solver.rtol, Outcome.CONVERGED, outcome)
        state = solver.restart(prepared, run.state, residual)
        return run._replace(
            state=state,
            epochs=run.epochs + 1,
            checked=size,
            failures=failures,
            outcome=outcome.astype(int),
        )

    def body(run: _Run) -> _Run:
        # The true residual costs an epoch: only where the recursion says that it is small.
        pause = (measure(run.state.residual) <= solver.rtol) | (run.spent >= solver.budget)
        return jax.lax.cond(pause, check, move, run)

    def running(run: _Run) -> Bool[Array, ""]:
        return run.outcome == Outcome.RUNNING

    start = _Run(
        solver.init(prepared, value, residual),
        spent=jnp.zeros((), right.dtype),
        epochs=jnp.asarray(first, right.dtype),
        steps=jnp.zeros((), int),
        checked=jnp.asarray(jnp.inf, right.dtype),
        failures=jnp.zeros((), int),
        outcome=jnp.asarray(int(Outcome.RUNNING)),
    )
    end = jax.lax.while_loop(running, body, start)
    final = end.state
    return Solution(
        final.value * unit[None],
        final.residual * unit[None],
        jnp.linalg.norm(final.residual, axis=0),
        end.outcome,
        end.steps,
        end.epochs,
    )
