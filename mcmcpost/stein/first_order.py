"""First-order Langevin Stein kernels by matrix products."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost._core.arguments import check_count, check_kind
from mcmcpost._core.errors import InputError
from mcmcpost.kernels import AbstractKernel, Field, Scaled, SquaredExponential, Sum, Weighted, contract, product, spread
from mcmcpost.linops import TileOperator, device_mesh, tile_diagonal, tile_gram

FLUSH = -80.0
"""Logarithm of the kernel value below which it is set to zero: subnormal numbers would slow factorisations a
hundredfold."""

type Points = Float[Array | np.ndarray, "n d"]

type OtherPoints = Float[Array | np.ndarray, "m d"]


@functools.singledispatch
def stein_block(kernel: AbstractKernel, X: Array, SX: Array, Y: Array, SY: Array) -> Float[Array, "n m"]:
    """Return k₀(x_i, y_j) = ∇ₓ·∇ᵧk + s_x·∇ᵧk + s_y·∇ₓk + k s_x·s_y, (n, m), from the kernel's jet.

    Kernels for which the operator passes inside, or the matrix products merge, have their own rule.
    """
    jet = kernel.jet(X, Y)
    across = contract(jet.gradient_x, Field(None, SY)) + contract(jet.gradient_y, Field(SX, None))
    return jet.divergence + across + jet.value * product(SX, SY)


@stein_block.register
def _(kernel: Scaled, X: Array, SX: Array, Y: Array, SY: Array) -> Array:
    return jnp.asarray(kernel.amplitude, X.dtype) * stein_block(kernel.kernel, X, SX, Y, SY)


@stein_block.register
def _(kernel: Sum, X: Array, SX: Array, Y: Array, SY: Array) -> Array:
    return stein_block(kernel.first, X, SX, Y, SY) + stein_block(kernel.second, X, SX, Y, SY)


@stein_block.register
def _(kernel: Weighted, X: Array, SX: Array, Y: Array, SY: Array) -> Array:
    """k̃₀ = w(x) w(y) k₀ with s replaced by s + ∇log w: a weight changes the score (docs/mathematics.md section 1)."""
    (wx, gx), (wy, gy) = kernel.weight(X), kernel.weight(Y)
    return wx[:, None] * wy[None, :] * stein_block(kernel.kernel, X, SX + gx, Y, SY + gy)


@stein_block.register
def _(kernel: SquaredExponential, X: Array, SX: Array, Y: Array, SY: Array) -> Array:
    """Two matrix products: k₀ = κ [trΛ + (s_x − Λδ)·(s_y + Λδ)], the bracket bilinear in (s − Λx, Λx) of each point."""
    precision = spread("SquaredExponential", "lengthscale", kernel.lengthscale, X) ** -2
    centre = jnp.mean(Y, 0, keepdims=True)
    left, right = (X - centre) * precision[None], (Y - centre) * precision[None]
    a, b = SX - left, SY - right
    ones_left, ones_right = jnp.ones_like(X[:, :1]), jnp.ones_like(Y[:, :1])
    log_kernel = product(
        jnp.concatenate([left, -0.5 * _rowsum(left, X - centre), ones_left], 1),
        jnp.concatenate([Y - centre, ones_right, -0.5 * _rowsum(right, Y - centre)], 1),
    )
    bracket = product(
        jnp.concatenate([a, left, _rowsum(a, left) + jnp.sum(precision), ones_left], 1),
        jnp.concatenate([b, right, ones_right, _rowsum(b, right)], 1),
    )
    value = jnp.where(log_kernel < FLUSH, 0, jnp.exp(jnp.clip(log_kernel, FLUSH, 0)))
    return value * bracket


def _rowsum(a: Array, b: Array) -> Array:
    return jnp.sum(a * b, 1, keepdims=True)


class SteinTile(eqx.Module):
    """The Stein kernel as a tile function of rows (points, scores); two equal kernels share one compilation."""

    kernel: AbstractKernel

    def __call__(self, rows: tuple[Points, Points], columns: tuple[OtherPoints, OtherPoints]) -> Float[Array, "n m"]:
        (X, SX), (Y, SY) = jax.tree.map(jnp.asarray, (rows, columns))
        return stein_block(self.kernel, X, SX, Y, SY)


def check_states(where: str, kernel: object, names: tuple[str, str], points: Any, scores: Any) -> None:
    """Refuse what is no kernel, and points and scores that are no two floating arrays (n, d) of one shape."""
    check_kind(where, "kernel", kernel, AbstractKernel, "Such as SquaredExponential(2.0).")
    for name, array in zip(names, (points, scores), strict=True):
        check_kind(where, name, array, (np.ndarray, jax.Array), "Pass an array (n, d).")
        if array.ndim != 2 or not jnp.issubdtype(array.dtype, jnp.floating) or not array.size:
            got = f"shape {array.shape} of {array.dtype}"
            raise InputError(where, f"`{name}`, floating numbers of shape (n, d)", got, "One row is one point.")
    if points.shape != scores.shape:
        got = f"{points.shape} and {scores.shape}"
        raise InputError(where, f"`{names[0]}` and `{names[1]}` of one shape", got, "A point needs its score.")


def stein_diagonal(kernel: AbstractKernel, X: Points, SX: Points) -> Float[Array, " n"]:
    """Return k₀(x_i, x_i), shape (n,), exact at coincidence (δ is formed as an exact zero).

    X, SX : (n, d) points and scores.
    """
    check_states("stein_diagonal", kernel, ("X", "SX"), X, SX)
    return tile_diagonal(SteinTile(kernel), (X, SX))


@eqx.filter_jit
def stein_gram(
    kernel: AbstractKernel, X: Points, SX: Points, Y: OtherPoints | None = None, SY: OtherPoints | None = None
) -> Float[Array, "n m"]:
    """Return the first-order Langevin Stein kernel k₀ between two sets of points, by matrix products.

    k₀(x, y) = ∇ₓ·∇ᵧk + s_x·∇ᵧk + s_y·∇ₓk + k s_x·s_y; E_π[k₀(·, y)] = 0 where s = ∇log π. The two sets may carry
    scores of different targets (the vector-valued case).

    Parameters
    ----------
    X, SX : (n, d) points and scores, of one dtype, which the result follows.
    Y, SY : (m, d), or both None for X with itself, when the diagonal is exact.

    Returns
    -------
    (n, m); no (n, m, d) array is formed. Differentiable in the kernel's parameters.

    Raises
    ------
    ValueError
        if only one of `Y` and `SY` is given.

    Source: Sun, Barp and Briol, Vector-Valued Control Variates (ICML 2023), equation 3.
    """
    check_states("stein_gram", kernel, ("X", "SX"), X, SX)
    return gram_of_tile("stein_gram", SteinTile(kernel), (X, SX), Y, SY)


def gram_of_tile(
    where: str, tile: Any, rows: tuple[Points, Points], Y: OtherPoints | None, SY: OtherPoints | None
) -> Float[Array, "n m"]:
    """Return a Stein kernel between two sets of points, or of one with itself where `Y` and `SY` are both None."""
    if (Y is None) != (SY is None):
        missing = "Y" if Y is None else "SY"
        raise InputError(where, "`Y` and `SY` together", f"no `{missing}`", "A point needs its score.")
    if Y is not None:
        check_states(where, tile.kernel, ("Y", "SY"), Y, SY)
        if Y.shape[1] != rows[0].shape[1]:
            got = f"{rows[0].shape} and {Y.shape}"
            raise InputError(where, "`X` and `Y` of one dimension", got, "Give both the same coordinates.")
    return tile_gram(tile, rows) if Y is None else tile(rows, (Y, SY))


def stein_operator(kernel: AbstractKernel, X: Points, SX: Points, *, block: int | None = None) -> TileOperator:
    """Return the Stein Gram matrix of X, SX (n, d) as an operator that multiplies in tiles and is never formed."""
    check_count("stein_operator", "block", block, "Leave it out.", optional=True)
    tile, diagonal = SteinTile(kernel), stein_diagonal(kernel, X, SX)
    return TileOperator(tile, (X, SX), diagonal, block=block, mesh=device_mesh())
