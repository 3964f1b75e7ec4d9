"""Preconditioned conjugate gradients on a block of right-hand sides."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

Product = Callable[[Float[Array, "n k"]], Float[Array, "n k"]]


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


class _State(NamedTuple):
    value: Float[Array, "n k"]
    residual: Float[Array, "n k"]
    direction: Float[Array, "n k"]
    energy: Float[Array, " k"]
    step: Int[Array, ""]


def conjugate_gradients(
    product: Product,
    right_hand_sides: Float[Array, "n k"],
    *,
    precondition: Product,
    rtol: float,
    max_steps: int,
) -> CGSolution:
    """Solve AX = B for symmetric positive definite A from X = 0, all columns sharing each product with A.

    Iterates while *any* column is above its tolerance, at most `max_steps` products. A column whose search direction
    has vanished (it is solved, or b = 0) rests. Starting at zero keeps the iterates Galerkin, which the
    computation-aware variance needs (MATH.md section 5).

    Parameters
    ----------
    product : V ↦ AV.
    right_hand_sides : (n, k).
    precondition : R ↦ P⁻¹R, symmetric positive definite.
    rtol : relative to the norm of each right-hand side.
    max_steps : budget in products with A.
    """
    goal = rtol * jnp.linalg.norm(right_hand_sides, axis=0)

    def unsolved(state: _State) -> Bool[Array, ""]:
        return (state.step < max_steps) & jnp.any(jnp.linalg.norm(state.residual, axis=0) > goal)

    def advance(state: _State) -> _State:
        image = product(state.direction)
        curvature = jnp.sum(state.direction * image, axis=0)
        moving = (curvature > 0) & (jnp.linalg.norm(state.residual, axis=0) > goal)
        length = jnp.where(moving, state.energy / jnp.where(moving, curvature, 1.0), 0.0)
        value = state.value + length[None, :] * state.direction
        residual = state.residual - length[None, :] * image
        preconditioned = precondition(residual)
        energy = jnp.sum(residual * preconditioned, axis=0)
        memory = jnp.where(moving, energy / jnp.where(state.energy > 0, state.energy, 1.0), 0.0)
        onward = preconditioned + memory[None, :] * state.direction
        direction = jnp.where(moving[None, :], onward, state.direction)
        return _State(value, residual, direction, jnp.where(moving, energy, state.energy), state.step + 1)

    first = precondition(right_hand_sides)
    start = _State(
        jnp.zeros_like(right_hand_sides),
        right_hand_sides,
        first,
        jnp.sum(right_hand_sides * first, axis=0),
        jnp.zeros((), int),
    )
    end = jax.lax.while_loop(unsolved, advance, start)
    return CGSolution(end.value, end.residual, jnp.linalg.norm(end.residual, axis=0) <= goal, end.step)
