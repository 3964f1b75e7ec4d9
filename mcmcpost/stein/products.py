"""Matrices given by a function of their rows, such as Gram matrices, multiplied in tiles and never
formed.

A + diag(noise) is the system that every solver sees; its low-rank factor is behind the
preconditioner.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, PyTree

from mcmcpost.core.arguments import check_kind
from mcmcpost.core.errors import InputError
from mcmcpost.core.precision import as_points
from mcmcpost.stein.kernels import AbstractKernel

type Tile = Callable[[Any, Any], Float[Array, "a b"]]

type Matrix = Float[Array | np.ndarray, "n k"]

DIAGONAL_ROWS = 1 << 13
"""Rows of a diagonal that are formed at a time: a tile of one pair holds several times its
entries."""

DEVICES = "devices"
"""The one axis of a mesh."""


def device_mesh() -> Mesh | None:
    """Return a mesh over every accelerator, on a CPU over one device of every process; None for one
    device only.

    Several CPU devices of one process (``JAX_NUM_CPU_DEVICES``) are left alone, as programs that
    span them can return wrong dense products, without a warning, in jaxlib 0.12
    (``benchmarks.linops.device_products``).
    """
    devices = jax.devices()
    if jax.default_backend() == "cpu":
        devices = [
            next(one for one in devices if one.process_index == i)
            for i in range(jax.process_count())
        ]
    return Mesh(np.array(devices), (DEVICES,)) if len(devices) > 1 else None


def tile_size(dtype: np.dtype) -> int:
    """Return the rows of a tile: on a CPU 256 in double precision and 512 in single, 4,096
    elsewhere.

    The handful of arrays behind a Stein tile then stay in a CPU's cache; twice as many rows take up
    to three times as long in double precision (``benchmarks.linops.kernel_product --stein``).
    """
    if jax.default_backend() != "cpu":
        # Launches of kernels are the cost of small tiles: of 512 rows a product takes five to six
        # times as long on an H100 (docs/results/scale.md, gpu). Twice as many gain a seventh more
        # and take four times the memory.
        return 4_096
    return 256 if dtype.itemsize > 4 else 512


class TileOperator(eqx.Module):
    """The symmetric n×n matrix A_ij = tile(row_i, row_j), with a known diagonal.

    Memory is O(block² + nk) and a product costs half the tiles, as A is symmetric by contract: each
    tile serves its mirror image too.

    Parameters
    ----------
    tile : function of two pytrees of rows, leading axes a and b, returning the (a, b) block. Make
        it an `eqx.Module` (its arrays are then traced, its type hashed), so that equal operators
        share one compilation.
    rows : pytree of arrays of leading axis n.
    diagonal : (n,), exact; replaces the tile's own rounding where row and column are the same
        index.
    block : rows and columns of a tile; `tile_size` by default.
    mesh : devices that share the tiles of a product (`device_mesh()`), each with a copy of the
        rows; None for one.

    Raises
    ------
    ValueError
        if the leaves of `rows` and the diagonal disagree on n, or there is no row.
    """

    tile: Tile
    rows: PyTree
    exact_diagonal: Float[Array | np.ndarray, " n"]
    block: int = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)

    def __init__(
        self,
        tile: Tile,
        rows: PyTree,
        diagonal: Float[Array | np.ndarray, " n"],
        *,
        block: int | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        lengths = {leaf.shape[0] for leaf in jax.tree.leaves(rows)} | {diagonal.shape[0]}
        if len(lengths) != 1 or 0 in lengths:
            raise InputError(
                "TileOperator",
                "`rows` and `diagonal` of one positive length",
                sorted(lengths),
                "Give every leaf one entry per row.",
            )
        self.tile, self.rows, self.exact_diagonal, self.mesh = tile, rows, diagonal, mesh
        self.block = tile_size(self.dtype) if block is None else block

    @property
    def shape(self) -> tuple[int, int]:
        n = self.exact_diagonal.shape[0]
        return n, n

    @property
    def dtype(self) -> np.dtype:
        return jax.dtypes.canonicalize_dtype(self.exact_diagonal.dtype)

    def diagonal(self) -> Float[Array, " n"]:
        """Return the diagonal (n,)."""
        return jnp.asarray(self.exact_diagonal)

    @eqx.filter_jit
    def columns(self, indices: Int[Array | np.ndarray, " k"]) -> Float[Array, "n k"]:
        """Return the columns A[:, indices], shape (n, k)."""
        n = self.shape[0]
        index = jnp.asarray(indices)
        block = self.tile(self.rows, _take(self.rows, index))
        mine = jnp.arange(n)[:, None] == index[None, :]
        return jnp.where(mine, jnp.asarray(self.exact_diagonal)[:, None], block)

    def dense(self) -> Float[Array, "n n"]:
        """Return the whole matrix (n, n); for tests and small n."""
        return self.columns(jnp.arange(self.shape[0]))

    @eqx.filter_jit
    def matmul(self, V: Matrix) -> Float[Array, "n k"]:
        """Return A V for V (n, k), tile by tile: each tile above the diagonal also serves its
        transpose."""
        n, blocks, block = self._blocks()
        # Padded rows of V are zero: the copies of the last row in `rows` then add nothing.
        right = pad(jnp.asarray(V), blocks * block - n)
        rows = fold(self.rows, n, blocks, block)
        diagonal = fold(jnp.asarray(self.exact_diagonal), n, blocks, block)
        right = right.reshape(blocks, block, -1)
        # Vᵀ, so that the mirrored product needs no transposed tile: twice as fast
        left = jnp.swapaxes(right, 1, 2)

        def total(operands: tuple[Any, ...], pairs: Int[Array, "p 2"]) -> Array:
            tile, rows, diagonal, right, left = operands

            # Recomputed in the backward pass: kept, the tiles of the scan would be the whole
            # matrix.
            @jax.checkpoint
            def values(i: Array, j: Array) -> Array:
                same = jnp.eye(block, dtype=bool) & (i == j)
                return jnp.where(same, diagonal[i][:, None], tile(_take(rows, i), _take(rows, j)))

            def step(totals: tuple[Array, Array], pair: Array) -> tuple[tuple[Array, Array], None]:
                upper, lower = totals
                # Shares are filled up with the pair (−1, −1): tile (0, 0) is computed there and
                # counts zero.
                i, j = jnp.maximum(pair[0], 0), jnp.maximum(pair[1], 0)
                entries = values(i, j)
                direct, mirror = _shares(pair, right.dtype)
                # A_ij V_j belongs to rows i, and its mirror image V_iᵀ A_ij, transposed at the end,
                # to rows j.
                upper = upper.at[i].add(_matmul(entries, direct * right[j]))
                return (upper, lower.at[j].add(_matmul(mirror * left[i], entries))), None

            (upper, lower), _ = jax.lax.scan(
                step, (jnp.zeros_like(right), jnp.zeros_like(left)), pairs
            )
            return upper + jnp.swapaxes(lower, 1, 2)

        # 4.7 and 3.8 times as fast as broadcast differences in double precision on one core, and on
        # two devices 1.98 and 2.13 times as fast as on one (docs/results/kernels_and_solvers.md,
        # kernel_product and kernel_product_devices).
        product = _over_pairs(self.mesh, total, (self.tile, rows, diagonal, right, left), blocks)
        return product.reshape(blocks * block, -1)[:n]

    @eqx.filter_jit
    def cross_matmul(self, other_rows: PyTree, V: Matrix) -> Float[Array, "o k"]:
        """Return C V, C_ij = tile(other_i, row_j), for `other_rows` of leading axis o and V (n, k).

        Coincidences between the two sets of rows are the tile's own business here: no diagonal is
        replaced.
        """
        n, blocks, block = self._blocks()
        o = jax.tree.leaves(other_rows)[0].shape[0]
        other_blocks, other_block = split(o, self.block)
        right = pad(jnp.asarray(V), blocks * block - n).reshape(blocks, block, -1)
        rows = fold(self.rows, n, blocks, block)
        others = fold(other_rows, o, other_blocks, other_block)

        @jax.checkpoint
        def tile(mine: PyTree, theirs: PyTree) -> Array:
            return self.tile(mine, theirs)

        def row_block(mine: PyTree) -> Array:
            def step(total: Array, theirs: tuple[PyTree, Array]) -> tuple[Array, None]:
                return total + _matmul(tile(mine, theirs[0]), theirs[1]), None

            return jax.lax.scan(
                step, jnp.zeros((other_block, right.shape[-1]), right.dtype), (rows, right)
            )[0]

        # `map` over row blocks: one tile is alive at a time, of at most block² entries.
        return jax.lax.map(row_block, others).reshape(other_blocks * other_block, -1)[:o]

    def _blocks(self) -> tuple[int, int, int]:
        n = self.shape[0]
        return n, *split(n, self.block)


def _shares(pair: Int[Array, " 2"], dtype: np.dtype) -> tuple[Array, Array]:
    """Return 1 or 0: whether a tile counts, as −1 fills the last shares, and whether its mirror
    image does too."""
    real = pair[0] >= 0
    return real.astype(dtype), (real & (pair[0] != pair[1])).astype(dtype)


def _over_pairs[T](
    mesh: Mesh | None, total: Callable[[Any, Array], T], operands: Any, blocks: int
) -> T:
    """Return the sum of `total` over the tiles above the diagonal, each device of the mesh with its
    share of them."""
    pairs = np.stack(np.triu_indices(blocks), axis=1)
    if mesh is None:
        return total(operands, jnp.asarray(pairs))
    short = -len(pairs) % mesh.size
    # Dealt like cards: tiles on the diagonal cost as much as others, and come at regular distances.
    dealt = (
        np.concatenate([pairs, np.full((short, 2), -1)])
        .reshape(-1, mesh.size, 2)
        .swapaxes(0, 1)
        .reshape(-1, 2)
    )
    # Only arrays are sharded or copied to devices; the kernel's structure is compiled in.
    arrays, static = eqx.partition(operands, eqx.is_array_like)

    def share(arrays: Any, pairs: Array) -> T:
        return jax.lax.psum(total(eqx.combine(arrays, static), pairs), DEVICES)

    spread = jax.shard_map(
        share,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(DEVICES)),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    return spread(arrays, jnp.asarray(dealt))


@eqx.filter_jit
def tile_diagonal(tile: Tile, rows: PyTree) -> Float[Array, " n"]:
    """Return tile(row_i, row_i), shape (n,), one pair at a time: differences at coincidence are
    exact zeros."""

    def one(row: PyTree) -> Array:
        single = jax.tree.map(lambda leaf: leaf[None], row)
        return tile(single, single)[0, 0]

    points = jax.tree.map(jnp.asarray, rows)
    # In batches above this size: a `vmap` over all rows holds several (1, d) temporaries for each.
    if jax.tree.leaves(points)[0].shape[0] <= DIAGONAL_ROWS:
        return jax.vmap(one)(points)
    return jax.lax.map(one, points, batch_size=DIAGONAL_ROWS)


@eqx.filter_jit
def tile_gram(tile: Tile, rows: PyTree) -> Float[Array, "n n"]:
    """Return the symmetric matrix tile(row_i, row_j), shape (n, n), with an exact diagonal."""
    full = tile(rows, rows)
    return jnp.where(jnp.eye(full.shape[0], dtype=bool), tile_diagonal(tile, rows)[:, None], full)


def split(n: int, block: int) -> tuple[int, int]:
    """Return how many blocks cover n rows and how long they are: equal blocks, so that padding
    stays short."""
    blocks = -(-n // block)
    return blocks, -(-n // blocks)


def _take(rows: PyTree, index: Array) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[index], rows)


def fold(rows: PyTree, n: int, blocks: int, block: int) -> PyTree:
    """Return `rows` as (blocks, block, …), padded with copies of the last row (a zero could be far
    from the data)."""
    index = jnp.minimum(jnp.arange(blocks * block), n - 1)
    return jax.tree.map(
        lambda leaf: leaf.reshape(blocks, block, *leaf.shape[1:]), _take(rows, index)
    )


def pad(matrix: Array, extra: int) -> Array:
    return jnp.pad(matrix, ((0, extra), (0, 0)))


def _matmul(left: Array, right: Array) -> Array:
    return jnp.matmul(left, right, precision="highest")


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
    mesh: Mesh | None = None,
) -> K:
    """Return ∂/∂θ Σ_s left_sᵀ K(θ) right_s for every parameter θ that is a JAX array, as a kernel
    of derivatives.

    One pass over the tiles above the diagonal: each is formed once, weighted by its entry of
    left·rightᵀ and of the transpose, and differentiated in place, so memory is O(block²) whatever n
    is. The backward pass of a tile is one more matrix product per side, not one per parameter. The
    devices of `mesh` share the tiles; None for one device.
    """
    n = X.shape[0]
    blocks, size = split(n, block or tile_size(X.dtype))
    points = fold(X, n, blocks, size)
    lefts, rights = (
        pad(array, blocks * size - n).reshape(blocks, size, -1) for array in (left, right)
    )
    parameters, static = eqx.partition(kernel, eqx.is_inexact_array)

    def weighted(parameters: K, x: Array, y: Array, weights: Array) -> Array:
        return jnp.sum(weights * KernelTile(eqx.combine(parameters, static))(x, y))

    def total(operands: tuple[Any, ...], pairs: Int[Array, "p 2"]) -> K:
        parameters, points, lefts, rights = operands

        def step(slope: K, pair: Array) -> tuple[K, None]:
            i, j = jnp.maximum(pair[0], 0), jnp.maximum(pair[1], 0)
            direct, mirror = _shares(pair, left.dtype)
            # ∂/∂A_ij of ΣLᵀAR is (LRᵀ)_ij, and A_ji = A_ij adds (RLᵀ)_ij off the diagonal tiles.
            weights = direct * _matmul(lefts[i], rights[j].T) + mirror * _matmul(
                rights[i], lefts[j].T
            )
            return jax.tree.map(
                jnp.add, slope, jax.grad(weighted)(parameters, points[i], points[j], weights)
            ), None

        return jax.lax.scan(step, jax.tree.map(jnp.zeros_like, parameters), pairs)[0]

    return _over_pairs(mesh, total, (parameters, points, lefts, rights), blocks)


def pivoted_cholesky(
    operator: TileOperator, rank: int, *, shift: float | Float[Array, ""] = 0.0
) -> Float[Array, "n rank"]:
    """Return L (n, rank) with L Lᵀ ≈ A + shift·I, choosing at each step the largest residual
    diagonal.

    The residual trace never increases with the rank. Once the residual is at rounding (below eps
    times the largest diagonal entry) the remaining columns are zero: a matrix of lower rank is
    reproduced, with no division by zero. Only `rank` columns of A are ever formed; the loop is
    compiled, not unrolled.

    Source: Harbrecht, Peters and Schneider, On the low-rank approximation by the pivoted Cholesky
    decomposition (Applied Numerical Mathematics 2012), Algorithm 1.
    """
    return _factor(operator, rank, jnp.asarray(shift, operator.dtype))


@eqx.filter_jit
def _factor(operator: TileOperator, rank: int, extra: Float[Array, ""]) -> Float[Array, "n rank"]:
    n = operator.shape[0]
    start = operator.diagonal() + extra
    # A residual diagonal below this is rounding: dividing by its root would make columns of noise.
    floor = jnp.finfo(start.dtype).eps * jnp.max(start)

    def step(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        factor, residual = state
        pivot = jnp.argmax(residual)
        largest = residual[pivot]
        column = operator.columns(pivot[None])[:, 0]
        column = column.at[pivot].add(extra) - jnp.matmul(
            factor, factor[pivot], precision="highest"
        )
        usable = largest > floor
        new = jnp.where(usable, column / jnp.sqrt(jnp.where(usable, largest, 1)), 0)
        # Exact arithmetic leaves zero at the pivot; rounding could have it chosen again.
        residual = jnp.maximum(residual - new**2, 0).at[pivot].set(0)
        return factor.at[:, k].set(new), residual

    return jax.lax.fori_loop(0, min(rank, n), step, (jnp.zeros((n, rank), start.dtype), start))[0]


def _as_array(noise: object) -> Array | np.ndarray:
    return (
        noise if isinstance(noise, jax.Array) else np.asarray(noise, getattr(noise, "dtype", float))
    )


class Regularised(eqx.Module):
    """The symmetric positive definite A + diag(noise), never formed.

    operator : A, (n, n).
    noise : (n,) or scalar, variances, zero where A is positive definite by itself.
    """

    operator: TileOperator
    noise: Float[Array | np.ndarray, "..."] = eqx.field(converter=_as_array)

    def __check_init__(self) -> None:
        if self.noise.ndim > 1 or (
            self.noise.ndim == 1 and self.noise.shape != self.operator.shape[:1]
        ):
            wanted = f"`noise` scalar or of shape {self.operator.shape[:1]}"
            raise InputError("Regularised", wanted, self.noise.shape, "Give one variance per row.")

    @property
    def shape(self) -> tuple[int, int]:
        return self.operator.shape

    @property
    def dtype(self) -> np.dtype:
        return self.operator.dtype

    @property
    def row_noise(self) -> Float[Array, " n"]:
        """The noise of every row (n,)."""
        return jnp.broadcast_to(jnp.asarray(self.noise, self.dtype), self.shape[:1])

    def matmul(self, V: Float[Array, "n k"]) -> Float[Array, "n k"]:
        """Return (A + diag(noise)) V."""
        return self.operator.matmul(V) + self.row_noise[:, None] * V

    def rows_matmul(self, indices: Int[Array, " b"], V: Float[Array, "n k"]) -> Float[Array, "b k"]:
        """Return rows `indices` of the matrix times V, b/n of a product."""
        mine = jax.tree.map(lambda leaf: jnp.asarray(leaf)[indices], self.operator.rows)
        return self.operator.cross_matmul(mine, V) + self.row_noise[indices][:, None] * V[indices]

    def columns_matmul(
        self, indices: Int[Array, " b"], U: Float[Array, "b k"]
    ) -> Float[Array, "n k"]:
        """Return columns `indices` of the matrix times U, b/n of a product; repeated indices
        add."""
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[indices], self.operator.rows)
        # A is symmetric, so that columns times U are a cross product with the roles of rows
        # exchanged.
        product = TileOperator(
            self.operator.tile, rows, self.operator.diagonal()[indices], block=self.operator.block
        ).cross_matmul(self.operator.rows, U)
        return product.at[indices].add(self.row_noise[indices][:, None] * U)

    def block(self, indices: Int[Array, " b"]) -> Float[Array, "b b"]:
        """Return the principal block of distinct `indices`."""
        rows = jax.tree.map(lambda leaf: jnp.asarray(leaf)[indices], self.operator.rows)
        full = self.operator.tile(rows, rows)
        return _with_diagonal(full, self.operator.diagonal()[indices] + self.row_noise[indices])

    def dense(self) -> Float[Array, "n n"]:
        """Return the whole matrix, for direct solvers."""
        return _with_diagonal(self.operator.dense(), self.operator.diagonal() + self.row_noise)

    def preconditioner(self, rank: int) -> "LowRankInverse":
        """Return the inverse of LLᵀ + diag(noise), L of this rank the pivoted Cholesky factor of A.

        With rank zero that of the diagonal of the matrix; a noise of zero is replaced by a small
        one.
        """
        n, size, diagonal = self.shape[0], min(rank, self.shape[0]), self.operator.diagonal()
        if not size:
            return LowRankInverse.of(jnp.zeros((n, 1), self.dtype), diagonal + self.row_noise)
        # Woodbury divides by the noise. √eps of the diagonal keeps I + Lᵀdiag(noise)⁻¹L within half
        # of the digits.
        small = jnp.sqrt(jnp.finfo(self.dtype).eps) * diagonal
        noise = jnp.where(self.row_noise > 0, self.row_noise, small)
        return LowRankInverse.of(pivoted_cholesky(self.operator, size), noise)


class LowRankInverse(eqx.Module):
    """R ↦ (LLᵀ + diag(noise))⁻¹R by the Woodbury identity.

    low_rank : L (n, r). noise : (n,). factor : Cholesky factor of I + Lᵀdiag(noise)⁻¹L.
    """

    low_rank: Float[Array, "n r"]
    noise: Float[Array, " n"]
    factor: Float[Array, "r r"]

    @classmethod
    def of(cls, low_rank: Float[Array, "n r"], noise: Float[Array, " n"]) -> "LowRankInverse":
        # Section 5, Products and preconditioners: an (r, r) factor stands for the (n, n) inverse.
        inner = low_rank.T @ (low_rank / noise[:, None]) + jnp.eye(
            low_rank.shape[1], dtype=low_rank.dtype
        )
        return cls(low_rank, noise, cho_factor(inner, lower=True)[0])

    def __call__(self, R: Float[Array, "n k"]) -> Float[Array, "n k"]:
        scaled = R / self.noise[:, None]
        return (
            scaled
            - self.low_rank
            @ cho_solve((self.factor, True), self.low_rank.T @ scaled)
            / self.noise[:, None]
        )


def _with_diagonal(
    matrix: Float[Array, "n n"], diagonal: Float[Array, " n"]
) -> Float[Array, "n n"]:
    return jnp.where(jnp.eye(len(diagonal), dtype=bool), diagonal[:, None], matrix)
