"""A + diag(noise), the system that every solver sees, and the low-rank factor behind its preconditioner."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float, Int

from mcmcpost._core.errors import InputError
from mcmcpost.linops.operator import TileOperator


def pivoted_cholesky(
    operator: TileOperator, rank: int, *, shift: float | Float[Array, ""] = 0.0
) -> Float[Array, "n rank"]:
    """Return L (n, rank) with L Lᵀ ≈ A + shift·I, choosing at each step the largest residual diagonal.

    The residual trace never increases with the rank. Once the residual is at rounding (below eps times the largest
    diagonal entry) the remaining columns are zero: a matrix of lower rank is reproduced, with no division by zero.
    Only `rank` columns of A are ever formed; the loop is compiled, not unrolled.

    Source: Harbrecht, Peters and Schneider, On the low-rank approximation by the pivoted Cholesky decomposition
    (Applied Numerical Mathematics 2012), Algorithm 1.
    """
    return _factor(operator, rank, jnp.asarray(shift, operator.dtype))


@eqx.filter_jit
def _factor(operator: TileOperator, rank: int, extra: Float[Array, ""]) -> Float[Array, "n rank"]:
    n = operator.shape[0]
    start = operator.diagonal() + extra
    floor = jnp.finfo(start.dtype).eps * jnp.max(start)

    def step(k: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        factor, residual = state
        pivot = jnp.argmax(residual)
        largest = residual[pivot]
        column = operator.columns(pivot[None])[:, 0]
        column = column.at[pivot].add(extra) - jnp.matmul(factor, factor[pivot], precision="highest")
        usable = largest > floor
        new = jnp.where(usable, column / jnp.sqrt(jnp.where(usable, largest, 1)), 0)
        residual = jnp.maximum(residual - new**2, 0).at[pivot].set(0)
        return factor.at[:, k].set(new), residual

    return jax.lax.fori_loop(0, min(rank, n), step, (jnp.zeros((n, rank), start.dtype), start))[0]


def _as_array(noise: object) -> Array | np.ndarray:
    return noise if isinstance(noise, jax.Array) else np.asarray(noise, getattr(noise, "dtype", float))


class Regularised(eqx.Module):
    """The symmetric positive definite A + diag(noise), never formed.

    operator : A, (n, n).
    noise : (n,) or scalar, variances, zero where A is positive definite by itself.
    """

    operator: TileOperator
    noise: Float[Array | np.ndarray, "..."] = eqx.field(converter=_as_array)

    def __check_init__(self) -> None:
        if self.noise.ndim > 1 or (self.noise.ndim == 1 and self.noise.shape != self.operator.shape[:1]):
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

    def columns_matmul(self, indices: Int[Array, " b"], U: Float[Array, "b k"]) -> Float[Array, "n k"]:
        """Return columns `indices` of the matrix times U, b/n of a product; repeated indices add."""
        part = jax.tree.map(lambda leaf: jnp.asarray(leaf)[indices], self.operator.rows)
        some = TileOperator(
            self.operator.tile, part, self.operator.diagonal()[indices], block=self.operator.block
        ).cross_matmul(self.operator.rows, U)
        return some.at[indices].add(self.row_noise[indices][:, None] * U)

    def block(self, indices: Int[Array, " b"]) -> Float[Array, "b b"]:
        """Return the principal block of distinct `indices`."""
        part = jax.tree.map(lambda leaf: jnp.asarray(leaf)[indices], self.operator.rows)
        full = self.operator.tile(part, part)
        return _with_diagonal(full, self.operator.diagonal()[indices] + self.row_noise[indices])

    def dense(self) -> Float[Array, "n n"]:
        """Return the whole matrix, for direct solvers."""
        return _with_diagonal(self.operator.dense(), self.operator.diagonal() + self.row_noise)

    def preconditioner(self, rank: int) -> "LowRankInverse":
        """Return the inverse of LLᵀ + diag(noise), L of this rank the pivoted Cholesky factor of A.

        With rank zero that of the diagonal of the matrix; a noise of zero is replaced by a small one.
        """
        n, size, diagonal = self.shape[0], min(rank, self.shape[0]), self.operator.diagonal()
        if not size:
            return LowRankInverse.of(jnp.zeros((n, 1), self.dtype), diagonal + self.row_noise)
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
        inner = low_rank.T @ (low_rank / noise[:, None]) + jnp.eye(low_rank.shape[1], dtype=low_rank.dtype)
        return cls(low_rank, noise, cho_factor(inner, lower=True)[0])

    def __call__(self, R: Float[Array, "n k"]) -> Float[Array, "n k"]:
        scaled = R / self.noise[:, None]
        return scaled - self.low_rank @ cho_solve((self.factor, True), self.low_rank.T @ scaled) / self.noise[:, None]


def _with_diagonal(matrix: Float[Array, "n n"], diagonal: Float[Array, " n"]) -> Float[Array, "n n"]:
    return jnp.where(jnp.eye(len(diagonal), dtype=bool), diagonal[:, None], matrix)
