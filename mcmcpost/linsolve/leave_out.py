"""Generalised least squares without each block of rows in turn, the blocks eliminated by halves."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float

from mcmcpost.linsolve.cholesky import LeastSquaresSolution, white_least_squares


class _Eliminated(NamedTuple):
    """Rows E that a branch of the tree has eliminated, and the rows R that it keeps.

    lower : (e, e), L, where LLᵀ is A_EE given the rows that were eliminated before.
    across : (e, r), L⁻¹A_ER. white : (e, q + p), L⁻¹ of the columns.
    dropped, kept : the rows E and R.
    """

    lower: Float[Array, "e e"]
    across: Float[Array, "e r"]
    white: Float[Array, "e w"]
    dropped: slice
    kept: slice


def leave_blocks_out(
    matrix: Float[Array, "n n"], basis: Float[Array, "n q"], values: Float[Array, "n p"], num_blocks: int
) -> tuple[list[LeastSquaresSolution], Bool[Array, ""]]:
    """Return the generalised least squares of `values` on `basis` under A without each of k equal blocks of rows.

    Half of the blocks are eliminated, A_RR − A_RE A_EE⁻¹A_ER is what the other half sees, and so on down to one block:
    about .8n³ operations where k factorisations take kn³/3. Every step is a Cholesky factorisation of some ordering of
    the rows, so that no digits are lost to a small nugget, as they are where A⁻¹ is downdated. The tree is that of
    cross-validation by Joulani, György and Szepesvári (2015, arXiv 1507.00066).

    Parameters
    ----------
    matrix : A, symmetric positive definite; the identity on rows of padding, where `basis` and `values` are zero.
    num_blocks : k; block i is rows i·n/k to (i + 1)·n/k.

    Returns
    -------
    one solution a block, whose `dual` is (n, p), zero on the block; and whether every factorisation succeeded.
    """
    size, rank = len(matrix) // num_blocks, basis.shape[1]
    last_pivots: list[Array] = []

    def visit(blocks: range, matrix: Array, columns: Array, path: tuple[_Eliminated, ...]) -> list:
        if len(blocks) == 1:
            return [_solve(path, rank, num_blocks * size)]
        middle = len(blocks) // 2
        found = []
        for kept, dropped in ((blocks[:middle], blocks[middle:]), (blocks[middle:], blocks[:middle])):
            keep, drop = (slice((b[0] - blocks[0]) * size, (b[-1] + 1 - blocks[0]) * size) for b in (kept, dropped))
            lower = jnp.linalg.cholesky(matrix[drop, drop])
            last_pivots.append(lower[-1, -1])  # NaN where the factorisation failed
            across = solve_triangular(lower, matrix[drop, keep], lower=True)
            white = solve_triangular(lower, columns[drop], lower=True)
            rows = (slice(b[0] * size, (b[-1] + 1) * size) for b in (dropped, kept))
            step = _Eliminated(lower, across, white, *rows)
            inner = matrix[keep, keep] - across.T @ across
            found += visit(kept, inner, columns[keep] - across.T @ white, (*path, step))
        return found

    solutions = visit(range(num_blocks), matrix, jnp.concatenate([basis, values], axis=1), ())
    return solutions, ~jnp.isnan(jnp.stack(last_pivots)).any()


def _solve(path: tuple[_Eliminated, ...], rank: int, num_rows: int) -> LeastSquaresSolution:
    white = jnp.concatenate([step.white for step in path])
    coefficients, residual, covariance = white_least_squares(white[:, :rank], white[:, rank:])
    dual = jnp.zeros((num_rows, residual.shape[1]), residual.dtype)
    stop = len(white)
    for step in reversed(path):
        start = stop - len(step.white)
        right = residual[start:stop] - step.across @ dual[step.kept]
        dual = dual.at[step.dropped].set(solve_triangular(step.lower, right, lower=True, trans=1))
        stop = start
    return LeastSquaresSolution(coefficients, dual, covariance)
