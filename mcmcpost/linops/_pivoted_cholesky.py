"""Partial pivoted Cholesky: the low-rank factor behind the preconditioner."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mcmcpost.linops._operator import TileOperator


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
