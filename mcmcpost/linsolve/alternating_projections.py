"""Alternating projections: greedy block Gauss–Seidel on factors of the diagonal blocks, computed once."""

from typing import NamedTuple, override

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float, Int

from mcmcpost._core.arguments import as_count, as_number, check_count
from mcmcpost.linops import Regularised
from mcmcpost.linsolve.iterative import AbstractIterativeSolver, check_limits


class _Blocks(NamedTuple):
    """rows, real : (blocks, b) indices, padded at the end. factors : (blocks, b, b)."""

    rows: Int[Array, "g b"]
    real: Bool[Array, "g b"]
    factors: Float[Array, "g b b"]


class _ProjectionState(NamedTuple):
    value: Float[Array, "n k"]
    residual: Float[Array, "n k"]
    working: Bool[Array, ""]


class AlternatingProjections(AbstractIterativeSolver):
    """Solve the block of rows whose residuals have the largest sum of squares, update every residual, repeat.

    Wu, Wenger, Jones, Pleiss and Gardner (2024); Lin et al. (2024), Algorithm 2, whose choice of block by the norm of
    a sum is corrected to the sum of squared norms. Memory is n·block_size for the factors of the diagonal blocks.

    rtol : of the residual, relative to each right-hand side.
    budget : in solver epochs; a step costs block_size/n of one.
    block_size : rows solved exactly at a time.
    """

    rtol: float = 1e-2
    budget: float = eqx.field(converter=as_number, default=1_000.0)
    block_size: int = eqx.field(converter=as_count, default=500)

    def __check_init__(self) -> None:
        check_limits(self)
        check_count("AlternatingProjections", "block_size", self.block_size, "Use 500.")

    @override
    def prepare(self, system: Regularised) -> _Blocks:
        n = system.shape[0]
        count, size = self._layout(n)
        index = np.arange(count * size).reshape(count, size)
        rows, real = jnp.asarray(np.minimum(index, n - 1)), jnp.asarray(index < n)

        def factor(block: tuple[Array, Array]) -> Array:
            some, own = block
            both = own[:, None] & own[None, :]
            return jnp.linalg.cholesky(jnp.where(both, system.block(some), jnp.eye(size, dtype=system.dtype)))

        return _Blocks(rows, real, jax.lax.map(factor, (rows, real)))

    @override
    def init(self, prepared: _Blocks, value: Array, residual: Array) -> _ProjectionState:
        return _ProjectionState(value, residual, jnp.ones((), bool))

    @override
    def step(
        self, system: Regularised, prepared: _Blocks, right: Array, state: _ProjectionState, key: jax.Array
    ) -> _ProjectionState:
        squares = jnp.sum(state.residual**2, axis=1)
        worst = jnp.argmax(jnp.sum(jnp.where(prepared.real, squares[prepared.rows], 0), axis=1))
        rows, real = prepared.rows[worst], prepared.real[worst][:, None]
        change = cho_solve((prepared.factors[worst], True), jnp.where(real, state.residual[rows], 0))
        change = jnp.where(real, change, 0)
        return _ProjectionState(
            state.value.at[rows].add(change), state.residual - system.columns_matmul(rows, change), state.working
        )

    @override
    def restart(self, prepared: _Blocks, state: _ProjectionState, residual: Array) -> _ProjectionState:
        return state._replace(residual=residual)

    @override
    def step_epochs(self, n: int) -> float:
        return self._layout(n)[1] / n

    @override
    def prepare_epochs(self, n: int) -> float:
        return self._layout(n)[1] / n

    def _layout(self, n: int) -> tuple[int, int]:
        count = -(-n // min(self.block_size, n))
        return count, -(-n // count)
