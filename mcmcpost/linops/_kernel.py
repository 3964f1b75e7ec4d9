"""The Gram matrix of a kernel as an operator."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost._checks import as_points, check_kind
from mcmcpost.kernels import AbstractKernel
from mcmcpost.linops._operator import TileOperator, device_mesh, fold, pad, split, tile_diagonal, tile_size


class KernelTile(eqx.Module):
    """k(x_i, y_j) as a tile function of rows."""

    kernel: AbstractKernel

    def __call__(self, x: Float[Array, "a d"], y: Float[Array, "b d"]) -> Float[Array, "a b"]:
        return self.kernel.jet(x, y).value


def kernel_operator(kernel: AbstractKernel, X: object, *, block: int | None = None) -> TileOperator:
    """Return the operator k(X, X) of points (n, d), its tiles shared by all devices."""
    check_kind("kernel_operator", "kernel", kernel, AbstractKernel, "Such as Matern32().")
    tile, points = KernelTile(kernel), as_points("kernel_operator", "X", X)
    return TileOperator(tile, points, tile_diagonal(tile, points), block=block, mesh=device_mesh())


@eqx.filter_jit
def bilinear_gradient[K: AbstractKernel](
    kernel: K,
    X: Float[Array, "n d"],
    left: Float[Array, "n s"],
    right: Float[Array, "n s"],
    *,
    block: int | None = None,
) -> K:
    """Return ∂/∂θ Σ_s left_sᵀ K(θ) right_s for every parameter θ that is a JAX array, as a kernel of derivatives.

    One pass over the tiles above the diagonal: each is formed once, weighted by its entry of left·rightᵀ and of the
    transpose, and differentiated in place, so memory is O(block²) whatever n is. The backward pass of a tile is one
    more matrix product per side, not one per parameter.
    """
    n = X.shape[0]
    blocks, size = split(n, block or tile_size(X.dtype))
    points = fold(X, n, blocks, size)
    lefts, rights = (pad(array, blocks * size - n).reshape(blocks, size, -1) for array in (left, right))
    parameters, static = eqx.partition(kernel, eqx.is_inexact_array)

    def weighted(parameters: K, x: Array, y: Array, weights: Array) -> Array:
        return jnp.sum(weights * KernelTile(eqx.combine(parameters, static))(x, y))

    def step(total: K, pair: Array) -> tuple[K, None]:
        i, j = pair[0], pair[1]
        mirror = jnp.where(i == j, 0, 1).astype(left.dtype)
        weights = jnp.matmul(lefts[i], rights[j].T, precision="highest")
        weights = weights + mirror * jnp.matmul(rights[i], lefts[j].T, precision="highest")
        return jax.tree.map(jnp.add, total, jax.grad(weighted)(parameters, points[i], points[j], weights)), None

    pairs = jnp.asarray(np.stack(np.triu_indices(blocks), axis=1))
    slope, _ = jax.lax.scan(step, jax.tree.map(jnp.zeros_like, parameters), pairs)
    return slope
