"""The last points and gradients of an optimiser, and the quasi-Newton matrices that they define."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.gp import DiagonalPlusLowRank

CURVATURE = 1e-10
"""A pair of step and gradient change counts where its cosine exceeds this."""


class Memory(NamedTuple):
    """The last m + 1 evaluations, newest last; only the last `filled` rows hold any. points, gradients : (m + 1, d)."""

    points: Float[Array, "m d"]
    gradients: Float[Array, "m d"]
    filled: Int[Array, ""]


class Secants(NamedTuple):
    """Steps S and gradient changes Y (m, d), zero where unusable; usable : (m,); scale : γ = sᵀy/yᵀy of the newest."""

    S: Float[Array, "p d"]
    Y: Float[Array, "p d"]
    usable: Bool[Array, " p"]
    scale: Float[Array, ""]


def empty_memory(pairs: int, x: Float[Array, " d"]) -> Memory:
    """Return a memory for so many pairs, with nothing in it."""
    zeros = jnp.zeros((pairs + 1, x.shape[0]), x.dtype)
    return Memory(zeros, zeros, jnp.zeros((), int))


def remember(memory: Memory, x: Float[Array, " d"], gradient: Float[Array, " d"]) -> Memory:
    """Return the memory with one more evaluation, the oldest forgotten."""
    points = jnp.concatenate([memory.points[1:], x[None]])
    gradients = jnp.concatenate([memory.gradients[1:], gradient[None]])
    return Memory(points, gradients, jnp.minimum(memory.filled + 1, len(points)))


def held(memory: Memory) -> Bool[Array, " m"]:
    """Return which rows hold an evaluation."""
    return jnp.arange(len(memory.points)) >= len(memory.points) - memory.filled


def recent(memory: Memory, pairs: int) -> Memory:
    """Return the newest `pairs` + 1 evaluations."""
    points, gradients = memory.points[-pairs - 1 :], memory.gradients[-pairs - 1 :]
    return Memory(points, gradients, jnp.minimum(memory.filled, len(points)))


def secants(memory: Memory) -> Secants:
    """Return the pairs of positive curvature."""
    both = held(memory)[:-1]
    S = jnp.where(both[:, None], jnp.diff(memory.points, axis=0), 0)
    Y = jnp.where(both[:, None], jnp.diff(memory.gradients, axis=0), 0)
    along = jnp.sum(S * Y, 1)
    usable = along > CURVATURE * jnp.linalg.norm(S, axis=1) * jnp.linalg.norm(Y, axis=1)
    S, Y = jnp.where(usable[:, None], S, 0), jnp.where(usable[:, None], Y, 0)
    newest = len(S) - 1 - jnp.argmax(usable[::-1])
    found = usable[newest]
    scale = jnp.where(found, along[newest] / jnp.where(found, jnp.sum(Y[newest] ** 2), 1), 1)
    return Secants(S, Y, usable, scale)


def inverse_hessian(pairs: Secants) -> DiagonalPlusLowRank:
    """Return the L-BFGS inverse Hessian in compact form, γI + [S γY] C [S γY]ᵀ.

    Source: Byrd, Nocedal and Schnabel, Representations of quasi-Newton matrices (Math. Program. 1994), Theorem 2.2.
    """
    gamma, free = pairs.scale, jnp.where(pairs.usable, 0.0, 1.0)
    along = pairs.S @ pairs.Y.T + jnp.diag(free)
    inverse = jnp.linalg.inv(jnp.triu(along))
    corner = inverse.T @ (jnp.diag(jnp.diagonal(along)) + gamma * pairs.Y @ pairs.Y.T) @ inverse
    core = jnp.block([[corner, -inverse.T], [-inverse, jnp.zeros_like(corner)]])
    factor = jnp.concatenate([pairs.S, gamma * pairs.Y]).T
    return DiagonalPlusLowRank(jnp.full(factor.shape[:1], gamma), factor, core)


def hessian(pairs: Secants) -> DiagonalPlusLowRank:
    """Return the L-BFGS Hessian in compact form, σI − [σS Y] M⁻¹ [σS Y]ᵀ, σ = 1/γ (the same source, Theorem 2.3)."""
    sigma, free = 1 / pairs.scale, jnp.diag(jnp.where(pairs.usable, 0.0, 1.0))
    along = pairs.S @ pairs.Y.T
    lower, diagonal = jnp.tril(along, -1), jnp.diag(jnp.diagonal(along))
    middle = jnp.block([[sigma * pairs.S @ pairs.S.T + free, lower], [lower.T, -diagonal - free]])
    factor = jnp.concatenate([sigma * pairs.S, pairs.Y]).T
    return DiagonalPlusLowRank(jnp.full(factor.shape[:1], sigma), factor, -jnp.linalg.inv(middle))


def scaled_identity(scale: Float[Array, ""], d: int) -> DiagonalPlusLowRank:
    """Return scale·I in d dimensions."""
    return DiagonalPlusLowRank(jnp.full((d,), scale), jnp.zeros((d, 1), scale.dtype), jnp.zeros((1, 1), scale.dtype))


def apply(matrix: DiagonalPlusLowRank, V: Float[Array, "m d"]) -> Float[Array, "m d"]:
    """Return the matrix times each row of V, traced by JAX."""
    factor = jnp.asarray(matrix.factor)
    return jnp.asarray(matrix.diagonal)[None] * V + ((V @ factor) @ matrix.core) @ factor.T
