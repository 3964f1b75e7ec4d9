"""Dense systems: Cholesky with a documented nugget ladder, and generalised least squares.

Least squares under a covariance are by LAPACK, without compiling: on all rows, and without each
block.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float
from threadpoolctl import ThreadpoolController

from mcmcpost.solve.iterative import Outcome, Solution, column_norms

# Eight rungs take the default η, 1e-8, to 1: noise as large as the mean of diag K₀.
LADDER_STEP = 10.0

LADDER_LENGTH = 8


class Cholesky(eqx.Module):
    """Factorise the dense matrix; where it is not positive definite, raise its nugget tenfold until
    it is."""


class Factor(NamedTuple):
    """A lower Cholesky factor of K + nugget·diag(noise), and the nugget that it needed.

    lower : (m, m), NaN where even the last rung failed.
    nugget : the nugget used.
    raised : whether it is larger than the one asked for.
    """

    lower: Float[Array, "m m"]
    nugget: Float[Array, ""]
    raised: Bool[Array, ""]


@jax.jit  # eagerly the loop would be compiled again at each call
def factorise(
    gram: Float[Array, "m m"], noise: Float[Array, " m"], nugget: Float[Array, ""]
) -> Factor:
    """Factorise ``gram + nugget·diag(noise)``; on breakdown raise the nugget tenfold, at most eight
    times.

    docs/mathematics.md section 2 (the relative nugget η, falling back ×10 on Cholesky failure). The
    nugget used is in the record, so a caller can say that the question was changed.
    """
    index = jnp.arange(gram.shape[0])

    def failed(state: tuple[Any, ...]) -> Bool[Array, ""]:
        # XLA's factor is NaN as a whole where a pivot is not positive: its last entry tells, and
        # costs no reduction over m².
        lower, _, step = state
        return jnp.isnan(lower[-1, -1]) & (step <= LADDER_LENGTH)

    # The first attempt (step 0) has the nugget as given: only a breakdown changes the question.
    def climb(state: tuple[Any, ...]) -> tuple[Any, ...]:
        _, level, step = state
        level = jnp.where(step > 0, level * LADDER_STEP, level)
        return jnp.linalg.cholesky(gram.at[index, index].add(level * noise)), level, step + 1

    lower, level, _ = jax.lax.while_loop(failed, climb, (jnp.full_like(gram, jnp.nan), nugget, 0))
    return Factor(lower, level, level > nugget)


class Inverse(NamedTuple):
    """The inverse (n, n) of a symmetric positive definite matrix and its log determinant; NaN where
    it is not one."""

    matrix: Float[Array | np.ndarray, "n n"]
    log_determinant: Float[Array | np.ndarray, ""]


THREADED = 1_500
"""Order of a matrix from which on LAPACK may use several threads.

Below it they gain a fifth at most, and on a busy machine they wait for each other: beside two other
processes 500 rows took 3 to 40 times as long on two threads as on one
(``benchmarks.gp.exact_likelihood --threads``).
"""


def blas_threads(order: int | float) -> AbstractContextManager[Any]:
    """Return the context in which BLAS uses one thread for matrices of an order below 1,500."""
    return _thread_pools().limit(limits=1, user_api="blas") if order < THREADED else nullcontext()


@cache
def _thread_pools() -> ThreadpoolController:
    return ThreadpoolController()


def invert(matrix: Float[Array, "n n"]) -> Inverse:
    """Return the inverse by Cholesky, outside of ``jit`` only.

    On a CPU by LAPACK's ``potrf`` and ``potri``, n³ operations in all where XLA, which has no
    ``potri``, takes 7n³/3: 1.8 to 2.1 times the time (``benchmarks.gp.exact_likelihood``). Below
    1,500 rows they use one thread.
    """
    if next(iter(matrix.devices())).platform != "cpu":
        return Inverse(*_invert_by_solves(matrix))
    dense = np.asarray(matrix)
    with blas_threads(len(dense)):
        return _invert_by_lapack(dense)


def _invert_by_lapack(dense: Float[np.ndarray, "n n"]) -> Inverse:
    potrf, potri = scipy.linalg.get_lapack_funcs(("potrf", "potri"), (dense,))
    # Zeros above the diagonal let the sum with the transpose, below, fill the upper triangle of the
    # inverse.
    # zeros above; dense is symmetric, its transpose in LAPACK's order
    lower, fault = potrf(dense.T, lower=1, clean=1)
    if fault:
        return Inverse(np.full_like(dense, np.nan), dense.dtype.type(np.nan))
    log_determinant = 2 * np.log(np.diagonal(lower)).sum()
    whole = potri(lower, lower=1, overwrite_c=1)[0]
    whole += np.tril(whole, -1).T
    return Inverse(whole, log_determinant)


@jax.jit
def _invert_by_solves(matrix: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    lower = jnp.linalg.cholesky(matrix)
    return cho_solve((lower, True), jnp.eye(len(matrix), dtype=matrix.dtype)), 2 * jnp.sum(
        jnp.log(jnp.diag(lower))
    )


def sampling_factor(covariance: Float[Array, "i i"], size: Float[Array, ""]) -> Float[Array, "i i"]:
    """Return a factor of a posterior covariance, which is known to the rounding of prior variances
    of that `size`.

    Where the posterior is certain all of it is rounding, and a floor relative to itself would be
    too small. Zeros where the prior has no variance.
    """
    floor = jnp.where(size > 0, 8 * jnp.finfo(covariance.dtype).eps * size, 1)
    lower = factorise(covariance, jnp.ones(len(covariance), covariance.dtype), floor).lower
    return jnp.where(size > 0, lower, 0)


ACCURATE = 0.38
"""Power of the rounding unit up to which a relative residual is that of a solution, 1e-6 in double
precision."""


def is_accurate(relative: Float[Array, "*k"]) -> Bool[Array, ""]:
    """Return whether relative residuals of a direct solve are all small enough for it to have
    converged."""
    return jnp.all(relative <= jnp.finfo(relative.dtype).eps ** ACCURATE)


def solve_dense(matrix: Float[Array, "n n"], right: Float[Array, "n k"]) -> Solution:
    """Solve by Cholesky; a matrix singular in its precision gets the smallest multiple of I that
    lets it be factored.

    `Outcome.JITTERED` says so; the residual is that of the matrix as given. `Outcome.STAGNATED`
    says that the matrix could be factored, and is too badly conditioned for a small residual.
    """
    n = matrix.shape[0]
    # Of the size of the rounding of the diagonal: a smaller multiple of I would not change the
    # matrix.
    floor = 10 * jnp.finfo(matrix.dtype).eps * jnp.mean(jnp.diagonal(matrix))
    plain = jnp.linalg.cholesky(matrix)
    sound = ~jnp.isnan(plain[-1, -1])
    # `cond`, so that the ladder, up to nine more factorisations, is climbed only after a breakdown.
    lower = jax.lax.cond(
        sound, lambda: plain, lambda: factorise(matrix, jnp.ones(n, matrix.dtype), floor).lower
    )
    value = cho_solve((lower, True), right)
    # The residual is of the matrix as given, so that it shows what the jitter has changed.
    residual = right - matrix @ value
    norms = column_norms(right)
    finite = jnp.all(jnp.isfinite(value))
    # A right-hand side of zeros has a residual of zeros: its norm of one avoids 0/0.
    relative = column_norms(residual) / jnp.where(norms > 0, norms, 1)
    solved = jnp.where(is_accurate(relative), Outcome.CONVERGED, Outcome.STAGNATED)
    outcome = jnp.where(sound, solved, Outcome.JITTERED)
    outcome = jnp.where(finite, outcome, Outcome.BROKEN)
    return Solution(
        value, residual, relative, outcome, jnp.ones((), int), jnp.ones((), matrix.dtype)
    )


class LeastSquaresSolution(NamedTuple):
    """Generalised least squares of f on H under a covariance A; NaN where A is not positive
    definite.

    coefficients : (q, p), γ = (HᵀA⁻¹H)⁻¹HᵀA⁻¹f.
    dual : (m, p), c = A⁻¹(f − Hγ).
    covariance : (q, q), (HᵀA⁻¹H)⁻¹, the covariance of γ for unit amplitude.
    """

    coefficients: Float[np.ndarray, "q p"]
    dual: Float[np.ndarray, "m p"]
    covariance: Float[np.ndarray, "q q"]


def fit_rows(
    matrix: Float[np.ndarray, "m m"],
    noise: Float[np.ndarray, " m"],
    nugget: float,
    basis: Float[np.ndarray, "m q"],
    values: Float[np.ndarray, "m p"],
) -> tuple[LeastSquaresSolution, float]:
    """Return the generalised least squares under ``matrix + nugget·diag(noise)``, and the nugget
    that it needed.

    The basis H is unpenalised (docs/mathematics.md section 2): coefficients[0] is the estimate
    where H[:, 0] is the constant.
    """
    lower, used = _raise_nugget(cholesky_factor, matrix, noise, nugget)
    return _nothing(basis, values) if lower is None else generalised_least_squares(
        lower, basis, values
    ), used


def _nothing(
    basis: Float[np.ndarray, "m q"], values: Float[np.ndarray, "m p"]
) -> LeastSquaresSolution:
    (rows, rank), width = basis.shape, values.shape[1]
    return LeastSquaresSolution(
        *(np.full(shape, np.nan) for shape in ((rank, width), (rows, width), (rank, rank)))
    )


def _raise_nugget[Result](
    attempt: Callable[[Float[np.ndarray, "m m"]], Result | None],
    matrix: Float[np.ndarray, "m m"],
    noise: Float[np.ndarray, " m"],
    nugget: float,
) -> tuple[Result | None, float]:
    """Return what `attempt` finds, and the nugget, which is raised tenfold until it finds it, at
    most eight times."""
    # `dpotrf` factorises a copy of its own: one copy here serves all rungs, of which the diagonal
    # alone differs.
    diagonal, raised = np.diagonal(matrix), matrix.copy()
    for level in nugget * LADDER_STEP ** np.arange(LADDER_LENGTH + 1):
        np.fill_diagonal(raised, diagonal + level * noise)
        if (solution := attempt(raised)) is not None:
            break
    return solution, float(level)


def cholesky_factor(matrix: Float[np.ndarray, "m m"]) -> Float[np.ndarray, "m m"] | None:
    """Return the lower Cholesky factor of a symmetric matrix, or None where it is not positive
    definite."""
    if not len(matrix):
        return matrix
    # its transpose is in LAPACK's order
    lower, fault = scipy.linalg.lapack.dpotrf(matrix.T, lower=1)
    return None if fault else lower


class PositiveMatrix:
    """A symmetric matrix by its Cholesky factor, whose leading blocks are the factors of those of
    the matrix."""

    def __init__(self, matrix: Float[np.ndarray, "n n"]) -> None:
        self.lower = cholesky_factor(matrix)
        # a leading block may be positive definite all the same
        self.matrix = matrix if self.lower is None else None

    def solve(self, right: Float[np.ndarray, "r k"]) -> Float[np.ndarray, "r k"]:
        """Return A⁻¹B of the leading block of the size of B, by LAPACK; NaN where it is not
        positive definite."""
        size = len(right)
        block = None if self.lower is None else self.lower[:size, :size]
        if self.matrix is not None:
            block = cholesky_factor(self.matrix[:size, :size])
        return (
            np.full_like(right, np.nan)
            if block is None
            else scipy.linalg.lapack.dpotrs(block, right, lower=1)[0]
        )


def generalised_least_squares(
    lower: Float[np.ndarray, "m m"],
    basis: Float[np.ndarray, "m q"],
    values: Float[np.ndarray, "m p"],
) -> LeastSquaresSolution:
    """Solve the generalised least squares of kriging for A = LLᵀ by a QR of L⁻¹H."""
    # White in L⁻¹ coordinates: generalised least squares becomes ordinary (section 2, Semi-exact),
    # and the QR keeps the condition of L⁻¹H, where HᵀA⁻¹H has its square.
    white = solve_lower(lower, np.concatenate([basis, values], axis=1))
    coefficients, residual, covariance = _white_least_squares(white, basis.shape[1])
    return LeastSquaresSolution(
        coefficients, solve_lower(lower, residual, transposed=True), covariance
    )


def solve_lower(
    lower: Float[np.ndarray, "m m"], right: Float[np.ndarray, "m w"], *, transposed: bool = False
) -> Float[np.ndarray, "m w"]:
    """Return L⁻¹B, or L⁻ᵀB; NaN where a pivot is zero."""
    if not right.size:
        return right
    solved, singular = scipy.linalg.lapack.dtrtrs(lower, right, lower=1, trans=int(transposed))
    return np.full_like(right, np.nan) if singular else solved


class _Eliminated(NamedTuple):
    """Rows E that a branch of the tree has eliminated, and the rows R that it keeps.

    lower : (e, e), L, where LLᵀ is A_EE given the rows that were eliminated before.
    across : (e, r), L⁻¹A_ER. white : (e, q + p), L⁻¹ of the columns.
    dropped, kept : the rows E and R.
    """

    lower: Float[np.ndarray, "e e"]
    across: Float[np.ndarray, "e r"]
    white: Float[np.ndarray, "e w"]
    dropped: slice
    kept: slice


def leave_blocks_out(
    matrix: Float[np.ndarray, "n n"],
    noise: Float[np.ndarray, " n"],
    nugget: float,
    basis: Float[np.ndarray, "n q"],
    values: Float[np.ndarray, "n p"],
    sizes: Sequence[int],
) -> tuple[list[LeastSquaresSolution], float]:
    """Return what `fit_rows` does without each of k blocks of rows in turn, and one nugget that all
    of them needed.

    Half of the blocks are eliminated, A_RR − A_RE A_EE⁻¹A_ER is what the other half sees, and so on
    down to one block: about .8n³ operations where k factorisations take kn³/3. Every step is a
    Cholesky factorisation of some ordering of the rows, so that no digits are lost to a small
    nugget, as they are where A⁻¹ is downdated. The tree is that of cross-validation by Joulani,
    György and Szepesvári (2015, arXiv 1507.00066).

    Parameters
    ----------
    sizes : the rows of each block, which follow each other; some may be zero.

    Returns
    -------
    one solution a block, whose `dual` is (n, p), zero on the block; and the nugget.
    """
    rank = basis.shape[1]
    edges = np.concatenate([[0], np.cumsum(sizes)])
    everything = np.concatenate([basis, values], axis=1)

    def visit(
        blocks: range, matrix: np.ndarray, columns: np.ndarray, path: tuple[_Eliminated, ...]
    ) -> list[LeastSquaresSolution] | None:
        if len(blocks) == 1:
            return [_solve(path, rank, len(basis))]
        middle, start = len(blocks) // 2, edges[blocks[0]]
        solutions = []
        # Each half is eliminated once, for all blocks of the other half: log₂ k levels.
        for kept, dropped in (
            (blocks[:middle], blocks[middle:]),
            (blocks[middle:], blocks[:middle]),
        ):
            rows = [slice(edges[b[0]], edges[b[-1] + 1]) for b in (dropped, kept)]
            drop, keep = (slice(span.start - start, span.stop - start) for span in rows)
            lower = cholesky_factor(matrix[drop, drop])
            if lower is None:
                return None
            across, white = (
                solve_lower(lower, matrix[drop, keep]),
                solve_lower(lower, columns[drop]),
            )
            # A_RR − A_RE A_EE⁻¹ A_ER (section 2, Hyper-parameters), and H and f given the rows E
            # alike.
            inner = matrix[keep, keep] - across.T @ across
            step = _Eliminated(lower, across, white, *rows)
            deeper = visit(kept, inner, columns[keep] - across.T @ white, (*path, step))
            if deeper is None:
                return None
            solutions += deeper
        return solutions

    def attempt(raised: np.ndarray) -> list[LeastSquaresSolution] | None:
        return visit(range(len(sizes)), raised, everything, ())

    solutions, used = _raise_nugget(attempt, matrix, noise, nugget)
    return solutions or [_nothing(basis, values)] * len(sizes), used


def _solve(path: tuple[_Eliminated, ...], rank: int, num_rows: int) -> LeastSquaresSolution:
    white = np.concatenate([step.white for step in path])
    coefficients, residual, covariance = _white_least_squares(white, rank)
    dual = np.zeros((num_rows, residual.shape[1]))
    stop = len(white)
    # Back substitution, last eliminated rows first, needs `dual` on the rows kept after them. The
    # block left out is in no step and keeps its zeros.
    for step in reversed(path):
        start = stop - len(step.white)
        right = residual[start:stop] - step.across @ dual[step.kept]
        dual[step.dropped] = solve_lower(step.lower, right, transposed=True)
        stop = start
    return LeastSquaresSolution(coefficients, dual, covariance)


def _white_least_squares(
    white: Float[np.ndarray, "m w"], rank: int
) -> tuple[Float[np.ndarray, "q p"], Float[np.ndarray, "m p"], Float[np.ndarray, "q q"]]:
    """Return the coefficients, residuals and (HᵀH)⁻¹ of the ordinary least squares of the columns
    after `rank`."""
    values = white[:, rank:]
    q, r = np.linalg.qr(white[:, :rank])
    along = q.T @ values
    # R⁻ᵀ: HᵀA⁻¹H = RᵀR, so that (HᵀA⁻¹H)⁻¹ = R⁻¹R⁻ᵀ.
    half = solve_lower(r.T, np.eye(rank))
    return solve_lower(r.T, along, transposed=True), values - q @ along, half.T @ half
