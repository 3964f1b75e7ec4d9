"""The same posterior, one action at a time: the action may depend on what the others have left over."""

import abc
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mcmcpost.gp._actions import TILE, DenseActions
from mcmcpost.kernels import AbstractKernel

type Product = Callable[[Float[Array, " n"]], Float[Array, " n"]]
"""s ↦ (K + σ²I) s."""


class IterationState(NamedTuple):
    """The posterior after `step` actions: C = DDᵀ approximates (K + σ²I)⁻¹ from below.

    weights : (n,), v = Cy. residual : (n,), y − (K + σ²I)v.
    directions : (n, i), D, conjugate: Dᵀ(K + σ²I)D = I; columns not reached yet, and those of actions that depended on
        earlier ones, are zero. images : (n, i), (K + σ²I)D.
    step : actions taken. rank : those that were independent.
    """

    weights: Float[Array, " n"]
    residual: Float[Array, " n"]
    directions: Float[Array, "n i"]
    images: Float[Array, "n i"]
    step: Int[Array, ""]
    rank: Int[Array, ""]


class AbstractChooser(eqx.Module):
    """Chooses the next action."""

    @abc.abstractmethod
    def choose(self, state: IterationState) -> Float[Array, " n"]:
        """Return the action (n,) that follows `state`."""


def init(outputs: Float[Array, " n"], num_actions: int) -> IterationState:
    """Return the prior, with room for `num_actions`; outputs (n,) have mean zero."""
    room = jnp.zeros((len(outputs), num_actions), outputs.dtype)
    none = jnp.zeros((), int)
    return IterationState(jnp.zeros_like(outputs), outputs, room, room, none, none)


def step(state: IterationState, action: Float[Array, " n"], product: Product) -> IterationState:
    """Condition on one more action: Algorithm S1 of Wenger et al. (2024), with one product instead of two.

    The image of the direction is updated with it, so that the residual needs no product of its own. Directions are
    conjugated twice: once loses orthogonality to rounding. An action in the span of earlier ones changes nothing.
    """
    norm = jnp.linalg.norm(action)
    direction = action / jnp.where(norm > 0, norm, 1)
    image = product(direction)
    energy = direction @ image
    for _ in range(2):
        overlap = state.directions.T @ image
        direction = direction - state.directions @ overlap
        image = image - state.images @ overlap
    left = direction @ image
    novel = left > len(action) * jnp.finfo(action.dtype).eps * energy
    scale = jnp.where(novel, 1 / jnp.sqrt(jnp.where(novel, left, 1)), 0)
    direction, image = scale * direction, scale * image
    observed = direction @ state.residual
    return IterationState(
        state.weights + observed * direction,
        state.residual - observed * image,
        state.directions.at[:, state.step].set(direction),
        state.images.at[:, state.step].set(image),
        state.step + 1,
        state.rank + novel.astype(state.rank.dtype),
    )


@eqx.filter_jit
def iterate(
    kernel: AbstractKernel,
    noise: Float[Array, ""],
    X: Float[Array, "n d"],
    outputs: Float[Array, " n"],
    chooser: AbstractChooser,
    num_actions: int,
    *,
    tile: int = TILE,
) -> IterationState:
    """Take `num_actions` actions of the chooser; one product with K each, never n×n in memory."""

    def product(vector: Float[Array, " n"]) -> Float[Array, " n"]:
        return DenseActions(vector[:, None]).cross(kernel, X, X, tile=tile)[:, 0] + noise * vector

    def advance(_: Int[Array, ""], state: IterationState) -> IterationState:
        return step(state, chooser.choose(state), product)

    return jax.lax.fori_loop(0, num_actions, advance, init(outputs, num_actions))
