"""Iterative solvers that update some rows at a time: alternating projections and stochastic
gradient descent.

Alternating projections are greedy block Gauss–Seidel on factors of the diagonal blocks, computed
once. Stochastic gradient descent with momentum takes random rows; its step size is found from the
matrix.
"""

from typing import NamedTuple, override

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.core.arguments import as_count, as_number, check_count, check_number
from mcmcpost.solve.iterative import AbstractIterativeSolver, check_limits
from mcmcpost.stein.products import Regularised


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
    """Solve the block of rows whose residuals have the largest sum of squares, update every
    residual, repeat.

    Wu, Wenger, Jones, Pleiss and Gardner (2024); Lin et al. (2024), Algorithm 2, whose choice of
    block by the norm of a sum is corrected to the sum of squared norms. Memory is n·block_size for
    the factors of the diagonal blocks.

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
            # Padding gets rows of the identity: the block stays positive definite, and padded rows
            # decouple.
            indices, is_real = block
            both = is_real[:, None] & is_real[None, :]
            return jnp.linalg.cholesky(
                jnp.where(both, system.block(indices), jnp.eye(size, dtype=system.dtype))
            )

        return _Blocks(rows, real, jax.lax.map(factor, (rows, real)))

    @override
    def init(self, prepared: _Blocks, value: Array, residual: Array) -> _ProjectionState:
        return _ProjectionState(value, residual, jnp.ones((), bool))

    @override
    def step(
        self,
        system: Regularised,
        prepared: _Blocks,
        right: Array,
        state: _ProjectionState,
        key: jax.Array,
    ) -> _ProjectionState:
        # Squared norms, not the norm of a sum as printed: residuals of opposite signs would cancel.
        squares = jnp.sum(state.residual**2, axis=1)
        worst = jnp.argmax(jnp.sum(jnp.where(prepared.real, squares[prepared.rows], 0), axis=1))
        rows, real = prepared.rows[worst], prepared.real[worst][:, None]
        change = cho_solve(
            (prepared.factors[worst], True), jnp.where(real, state.residual[rows], 0)
        )
        # Padding repeats row n − 1, and `add` below would count its change once for each copy.
        change = jnp.where(real, change, 0)
        return _ProjectionState(
            state.value.at[rows].add(change),
            state.residual - system.columns_matmul(rows, change),
            state.working,
        )

    @override
    def restart(
        self, prepared: _Blocks, state: _ProjectionState, residual: Array
    ) -> _ProjectionState:
        return state._replace(residual=residual)

    @override
    def step_epochs(self, n: int) -> float:
        return self._layout(n)[1] / n

    @override
    def prepare_epochs(self, n: int) -> float:
        return self._layout(n)[1] / n

    def _layout(self, n: int) -> tuple[int, int]:
        # Equal blocks: one short block at the end would be padded to full length and cost as much.
        count = -(-n // min(self.block_size, n))
        return count, -(-n // count)


GROWTH = 4.0
"""A residual estimate so many times its smallest is divergence: return to the smallest and halve
the step."""


class _DescentState(NamedTuple):
    """`residual` holds each row as it was when last visited; `best_*` is where its norm was
    smallest."""

    value: Float[Array, "n k"]
    residual: Float[Array, "n k"]
    momentum: Float[Array, "n k"]
    step_size: Float[Array, ""]
    best_value: Float[Array, "n k"]
    best_residual: Float[Array, "n k"]
    best_norm: Float[Array, ""]
    working: Bool[Array, ""]


class StochasticGradientDescent(AbstractIterativeSolver):
    """Minimise ½xᵀAx − bᵀx by gradients at a few random rows, with momentum.

    Lin et al. (2024), Algorithm 3; the residual starts from that of the first guess, not from the
    right-hand side. The first step size is 1/λ, λ the largest eigenvalue of the block of A at
    `batch_size` evenly spaced rows; divergence halves it.

    rtol : of the residual, relative to each right-hand side.
    budget : in solver epochs; a step costs batch_size/n of one.
    batch_size : rows of one gradient.
    momentum : inside [0, 1).
    step_size : fixed by hand; found when None.
    """

    rtol: float = 1e-2
    budget: float = eqx.field(converter=as_number, default=1_000.0)
    batch_size: int = eqx.field(converter=as_count, default=500)
    momentum: float = 0.9
    step_size: float | None = None

    def __check_init__(self) -> None:
        check_limits(self)
        where = "StochasticGradientDescent"
        check_count(where, "batch_size", self.batch_size, "Use 500.")
        check_number(where, "momentum", self.momentum, "Use 0.9.", inside="[0, 1)")
        check_number(
            where, "step_size", self.step_size, "Leave it out to have it found.", optional=True
        )

    @override
    def prepare(self, system: Regularised) -> Float[Array, ""]:
        if self.step_size is not None:
            return jnp.asarray(self.step_size, system.dtype)
        n = system.shape[0]
        rows = jnp.asarray(np.linspace(0, n - 1, self._batch(n)).astype(int))
        # Above 2/λ gradient descent diverges. λ of evenly spaced rows is a lower bound of that of
        # all, hence the halving.
        return 1 / jnp.linalg.eigvalsh(system.block(rows))[-1]

    @override
    def init(self, prepared: Array, value: Array, residual: Array) -> _DescentState:
        norm = jnp.linalg.norm(residual)
        return _DescentState(
            value,
            residual,
            jnp.zeros_like(value),
            prepared,
            value,
            residual,
            norm,
            jnp.ones((), bool),
        )

    @override
    def step(
        self,
        system: Regularised,
        prepared: Array,
        right: Array,
        state: _DescentState,
        key: jax.Array,
    ) -> _DescentState:
        n = right.shape[0]
        rows = jax.random.choice(key, n, (self._batch(n),), replace=False)
        value = state.value + state.momentum  # where the newest rows of the residual belong
        downhill = right[rows] - system.rows_matmul(rows, value)
        momentum = (self.momentum * state.momentum).at[rows].add(state.step_size * downhill)
        residual = state.residual.at[rows].set(downhill)
        # Rows that were not visited are stale: this norm is an estimate, cheap enough for every
        # step.
        norm = jnp.linalg.norm(residual)
        better = norm <= state.best_norm
        moved = _DescentState(
            value,
            residual,
            momentum,
            state.step_size,
            jnp.where(better, value, state.best_value),
            jnp.where(better, residual, state.best_residual),
            jnp.where(better, norm, state.best_norm),
            state.working,
        )
        # After divergence momentum is what led there: it starts again from zero at half the step.
        back = state._replace(
            value=state.best_value,
            residual=state.best_residual,
            momentum=jnp.zeros_like(momentum),
            step_size=0.5 * state.step_size,
        )
        fine = norm <= GROWTH * state.best_norm
        return jax.tree.map(lambda new, old: jnp.where(fine, new, old), moved, back)

    @override
    def restart(self, prepared: Array, state: _DescentState, residual: Array) -> _DescentState:
        # The residual is exact again, so the smallest norm is counted from here; the step size
        # stays as found.
        return self.init(state.step_size, state.value, residual)

    @override
    def step_epochs(self, n: int) -> float:
        return self._batch(n) / n

    @override
    def prepare_epochs(self, n: int) -> float:
        # The block for λ holds b² of the n² entries of a product.
        return 0.0 if self.step_size is not None else (self._batch(n) / n) ** 2

    def _batch(self, n: int) -> int:
        return min(self.batch_size, n)
