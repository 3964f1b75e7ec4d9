"""Preconditioned conjugate gradients on a block of right-hand sides."""

from collections.abc import Callable
from typing import NamedTuple, override

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.core.arguments import as_count, as_number, check_count, check_number
from mcmcpost.core.errors import InputError
from mcmcpost.solve.iterative import AbstractIterativeSolver, check_limits
from mcmcpost.stein.products import LowRankInverse, Regularised

BlockProduct = Callable[[Float[Array, "n k"]], Float[Array, "n k"]]


class _ConjugateState(NamedTuple):
    value: Float[Array, "n k"]
    residual: Float[Array, "n k"]
    direction: Float[Array, "n k"]
    energy: Float[Array, " k"]
    working: Bool[Array, ""]


def _first_state(precondition: BlockProduct, value: Array, residual: Array) -> _ConjugateState:
    # The first direction is P⁻¹r₀; b, as Algorithm 1 of Lin et al. (2024) prints, diverges with a
    # first guess.
    first = precondition(residual)
    return _ConjugateState(
        value, residual, first, jnp.sum(residual * first, axis=0), jnp.ones((), bool)
    )


def _next_state(
    product: BlockProduct, precondition: BlockProduct, goal: Array, state: _ConjugateState
) -> _ConjugateState:
    """Return the next state; a column within its goal, or without a direction of positive
    curvature, rests."""
    image = product(state.direction)
    curvature = jnp.sum(state.direction * image, axis=0)
    moving = (curvature > 0) & (jnp.linalg.norm(state.residual, axis=0) > goal)
    length = jnp.where(moving, state.energy / jnp.where(moving, curvature, 1), 0)
    value = state.value + length[None, :] * state.direction
    residual = state.residual - length[None, :] * image
    preconditioned = precondition(residual)
    energy = jnp.sum(residual * preconditioned, axis=0)
    memory = jnp.where(moving, energy / jnp.where(state.energy > 0, state.energy, 1), 0)
    onward = preconditioned + memory[None, :] * state.direction
    direction = jnp.where(moving[None, :], onward, state.direction)
    return _ConjugateState(
        value, residual, direction, jnp.where(moving, energy, state.energy), jnp.any(moving)
    )


class ConjugateGradients(AbstractIterativeSolver):
    """Conjugate gradients, preconditioned by a pivoted Cholesky factor; the matrix is never formed.

    rtol : residual relative to each right-hand side.
    budget : in solver epochs, one product with the matrix each.
    rank : of the preconditioner; 0 for the diagonal alone.
    gain : for control functionals and Stein weights: stop too, converged, once a product lowers the
        variance of the rule by less than this fraction, long before the residual is small
        (docs/mathematics.md section 5); 0 for the residual only.
    """

    rtol: float = 1e-3
    budget: float = eqx.field(converter=as_number, default=100.0)
    rank: int = eqx.field(converter=as_count, default=300)
    gain: float = eqx.field(converter=as_number, default=0.0)

    def __check_init__(self) -> None:
        check_limits(self)
        check_count("ConjugateGradients", "rank", self.rank, "Use 300.", least=0)
        check_number(
            "ConjugateGradients", "gain", self.gain, "Use 0 for the residual only.", inside="[0, 1)"
        )

    @override
    def prepare(self, system: Regularised) -> LowRankInverse:
        return system.preconditioner(self.rank)

    @override
    def init(self, prepared: LowRankInverse, value: Array, residual: Array) -> _ConjugateState:
        return _first_state(prepared, value, residual)

    @override
    def step(
        self,
        system: Regularised,
        prepared: LowRankInverse,
        right: Array,
        state: _ConjugateState,
        key: jax.Array,
    ) -> _ConjugateState:
        goal = self.rtol * jnp.ones(right.shape[1], right.dtype)
        return _next_state(system.matmul, prepared, goal, state)

    @override
    def restart(
        self, prepared: LowRankInverse, state: _ConjugateState, residual: Array
    ) -> _ConjugateState:
        return _first_state(prepared, state.value, residual)

    @override
    def step_epochs(self, n: int) -> float:
        return 1.0

    @override
    def prepare_epochs(self, n: int) -> float:
        return min(self.rank, n) / n


class CGSolution(NamedTuple):
    """The state in which conjugate gradients stopped.

    value : (n, k) approximate solution.
    residual : (n, k) b − A·value, carried by the recursion.
    converged : (k,) whether ‖residual‖ ≤ rtol·‖b‖, per right-hand side.
    num_steps : products with A.
    """

    value: Float[Array, "n k"]
    residual: Float[Array, "n k"]
    converged: Bool[Array, " k"]
    num_steps: Int[Array, ""]


class _Loop(NamedTuple):
    state: _ConjugateState
    step: Int[Array, ""]
    level: Float[Array, ""]
    done: Bool[Array, ""]


def conjugate_gradients(
    product: BlockProduct,
    right_hand_sides: Float[Array, "n k"],
    *,
    precondition: BlockProduct,
    rtol: float,
    max_steps: int,
    initial: Float[Array, "n k"] | None = None,
    enough: Callable[[Float[Array, "n k"], Float[Array, "n k"]], Float[Array, ""]] | None = None,
    gain: float = 0.0,
) -> CGSolution:
    """Solve AX = B for symmetric positive definite A, all columns sharing each product with A.

    For systems that are no `Regularised` operator. Iterates while *any* column is above its
    tolerance, at most `max_steps` products. A column whose search direction has vanished (it is
    solved, or b = 0) rests. Starting at zero keeps the iterates Galerkin, which the
    computation-aware variance needs (docs/mathematics.md section 5).

    Parameters
    ----------
    product : V ↦ AV.
    right_hand_sides : (n, k).
    precondition : R ↦ P⁻¹R, symmetric positive definite.
    rtol : relative to the norm of each right-hand side.
    max_steps : budget in products with A.
    initial : (n, k) a first guess; zero without one.
    enough : (value, residual) ↦ a positive number that falls as the solve goes on, such as a
        variance.
    gain : stop, converged, once a step lowers `enough` by less than this fraction.
    """
    goal = rtol * jnp.linalg.norm(right_hand_sides, axis=0)
    if (enough is None) != (gain == 0):
        raise InputError(
            "conjugate_gradients", "`enough` with a positive `gain`, or neither", gain, "Give both."
        )

    def unsolved(loop: _Loop) -> Bool[Array, ""]:
        above = jnp.any(jnp.linalg.norm(loop.state.residual, axis=0) > goal)
        return (loop.step < max_steps) & above & ~loop.done & loop.state.working

    def advance(loop: _Loop) -> _Loop:
        state = _next_state(product, precondition, goal, loop.state)
        if enough is None:
            return _Loop(state, loop.step + 1, loop.level, loop.done)
        level = enough(state.value, state.residual)
        return _Loop(state, loop.step + 1, level, loop.level - level < gain * loop.level)

    value = jnp.zeros_like(right_hand_sides) if initial is None else initial
    start = _first_state(
        precondition,
        value,
        right_hand_sides if initial is None else right_hand_sides - product(initial),
    )
    infinite = jnp.asarray(jnp.inf, right_hand_sides.dtype)
    end = jax.lax.while_loop(
        unsolved, advance, _Loop(start, jnp.zeros((), int), infinite, jnp.zeros((), bool))
    )
    residual = end.state.residual
    converged = (jnp.linalg.norm(residual, axis=0) <= goal) | end.done
    return CGSolution(end.state.value, residual, converged, end.step)
