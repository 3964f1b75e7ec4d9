"""The product of a kernel matrix with block-sparse actions that hold every row; each kernel entry is evaluated once."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.kernels import AbstractKernel, gram

TILE_ROWS = 256
"""Most rows of a square tile of the kernel matrix: half a megabyte in double precision, which stays in cache."""

type Learned = tuple[AbstractKernel, Float[Array, "t g k"]]
"""The kernel, and the entries of t tiles with g actions of k rows each."""

type Pair = tuple[Int[Array, ""], Int[Array, ""]]
"""Two tiles."""


def block_image(
    kernel: AbstractKernel,
    X: Float[Array, "n d"],
    entries: Float[Array, "i k"],
    rows: Int[Array | np.ndarray, "i k"],
    mask: Bool[Array | np.ndarray, "i k"],
) -> Float[Array, "n i"]:
    """Return K(X, X) S for actions S that share no row and leave none out.

    The matrix is symmetric, so the tiles on one side of its diagonal are enough. A backward pass evaluates each of them
    once more, with its derivatives. Memory is O(ni) and a tile. The kernel and the entries have derivatives, X has
    none.

    Parameters
    ----------
    entries : (i, k), zero outside the mask. rows : (i, k) where they stand. mask : (i, k) which are in use.
    """
    (i, k), n = entries.shape, len(X)
    pieces = -(-k // TILE_ROWS)
    blocks = -(-i // max(TILE_ROWS // k, 1))
    group = -(-i // blocks)
    pad = (0, blocks * group - i), (0, pieces * -(-k // pieces) - k)
    tiles = blocks * pieces
    values = jnp.pad(entries, pad).reshape(tiles, group, -1)
    order = jnp.pad(jnp.asarray(rows), pad, mode="edge").reshape(-1)
    columns = group * (jnp.arange(tiles) // pieces)
    points = X[order].reshape(tiles, -1, X.shape[1])
    image = _image((jax.tree.map(jnp.asarray, kernel), values), points, columns, blocks * group)
    used = jnp.pad(jnp.asarray(mask), pad).reshape(-1)
    place = jnp.zeros(n, order.dtype).at[jnp.where(used, order, n)].set(jnp.arange(order.size), mode="drop")
    return image[place, :i]


@eqx.filter_custom_vjp
def _image(learned: Learned, points: Float[Array, "t r d"], columns: Int[Array, " t"], width: int) -> Array:
    """Return the image (t·r, width), rows in the order of the tiles; tile t acts in g columns from columns[t] on."""
    kernel, values = learned
    tiles, rows = points.shape[:2]

    def add(image: Array, pair: Pair) -> tuple[Array, None]:
        a, b = pair
        tile = gram(kernel, points[a], points[b])
        image = _add_at(image, a * rows, columns[b], _matmul(tile, _spread(values[b])))
        mirrored = jnp.where(a == b, 0, _matmul(tile.T, _spread(values[a])))
        return _add_at(image, b * rows, columns[a], mirrored), None

    return jax.lax.scan(add, jnp.zeros((tiles * rows, width), points.dtype), _pairs(tiles))[0]


@_image.def_fwd
def _image_forward(perturbed: Any, *arguments: Any) -> tuple[Array, None]:  # noqa: ARG001
    return _image(*arguments), None


@_image.def_bwd
def _image_backward(
    residuals: None,  # noqa: ARG001
    slope: Array,
    perturbed: Any,  # noqa: ARG001
    learned: Learned,
    points: Float[Array, "t r d"],
    columns: Int[Array, " t"],
    width: int,  # noqa: ARG001
) -> Learned:
    """Return the gradient of the inner product of the image with `slope`, tile by tile."""
    kernel, values = learned
    (tiles, rows), group = points.shape[:2], values.shape[1]

    def add(total: Learned, pair: Pair) -> tuple[Learned, None]:
        a, b = pair
        above = jax.lax.dynamic_slice(slope, (a * rows, columns[b]), (rows, group))
        below = jnp.where(a == b, 0, jax.lax.dynamic_slice(slope, (b * rows, columns[a]), (rows, group)))

        def inner(terms: tuple[AbstractKernel, Array, Array]) -> Float[Array, ""]:
            kernel, left, right = terms
            tile = gram(kernel, points[a], points[b])
            return jnp.sum(above * _matmul(tile, _spread(right))) + jnp.sum(below * _matmul(tile.T, _spread(left)))

        of_kernel, of_left, of_right = eqx.filter_grad(inner)((kernel, values[a], values[b]))
        return (jax.tree.map(jnp.add, total[0], of_kernel), total[1].at[a].add(of_left).at[b].add(of_right)), None

    nothing = jax.tree.map(jnp.zeros_like, eqx.filter(learned, eqx.is_inexact_array))
    return jax.lax.scan(add, nothing, _pairs(tiles))[0]


def _pairs(tiles: int) -> tuple[Int[Array, " p"], Int[Array, " p"]]:
    """Return the tiles on and above the diagonal."""
    above, right = np.triu_indices(tiles)
    return jnp.asarray(above), jnp.asarray(right)


def _spread(values: Float[Array, "g k"]) -> Float[Array, "gk g"]:
    """Return the actions of a tile as columns that share no row."""
    group, k = values.shape
    return (values[:, :, None] * jnp.eye(group, dtype=values.dtype)[:, None, :]).reshape(group * k, group)


def _add_at(image: Array, row: Array, column: Array, block: Array) -> Array:
    before = jax.lax.dynamic_slice(image, (row, column), block.shape)
    return jax.lax.dynamic_update_slice(image, before + block, (row, column))


def _matmul(left: Float[Array, "a b"], right: Float[Array, "b c"]) -> Float[Array, "a c"]:
    return jnp.matmul(left, right, precision="highest")
