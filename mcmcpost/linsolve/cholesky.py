"""Dense Cholesky with a documented nugget ladder, and generalised least squares on its factor."""

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

from mcmcpost.linsolve.iterative import Outcome, Solution, column_norms

LADDER_STEP = 10.0

LADDER_LENGTH = 8


class Cholesky(eqx.Module):
    """Factorise the dense matrix; where it is not positive definite, raise its nugget tenfold until it is."""


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
def factorise(gram: Float[Array, "m m"], noise: Float[Array, " m"], nugget: Float[Array, ""]) -> Factor:
    """Factorise ``gram + nugget·diag(noise)``; on breakdown raise the nugget tenfold, at most eight times.

    docs/mathematics.md section 2 (the relative nugget η, falling back ×10 on Cholesky failure). The nugget used is in
    the record, so a caller can say that the question was changed.
    """
    index = jnp.arange(gram.shape[0])

    def failed(state: tuple) -> Bool[Array, ""]:
        lower, _, step = state
        return jnp.isnan(lower[-1, -1]) & (step <= LADDER_LENGTH)

    def climb(state: tuple) -> tuple:
        _, level, step = state
        level = jnp.where(step > 0, level * LADDER_STEP, level)
        return jnp.linalg.cholesky(gram.at[index, index].add(level * noise)), level, step + 1

    lower, level, _ = jax.lax.while_loop(failed, climb, (jnp.full_like(gram, jnp.nan), nugget, 0))
    return Factor(lower, level, level > nugget)


class Inverse(NamedTuple):
    """The inverse (n, n) of a symmetric positive definite matrix and its log determinant; NaN where it is not one."""

    matrix: Float[Array | np.ndarray, "n n"]
    log_determinant: Float[Array | np.ndarray, ""]


THREADED = 1_500
"""Order of a matrix from which on LAPACK may use several threads.

Below it they gain a fifth at most, and on a busy machine they wait for each other: beside two other processes 500 rows
took 3 to 40 times as long on two threads as on one (``benchmarks.gp.exact_likelihood --threads``).
"""


def blas_threads(order: int | float) -> AbstractContextManager[Any]:
    """Return the context in which BLAS uses one thread for matrices of an order below 1,500."""
    return _thread_pools().limit(limits=1, user_api="blas") if order < THREADED else nullcontext()


@cache
def _thread_pools() -> ThreadpoolController:
    return ThreadpoolController()


def invert(matrix: Float[Array, "n n"]) -> Inverse:
    """Return the inverse by Cholesky, outside of ``jit`` only.

    On a CPU by LAPACK's ``potrf`` and ``potri``, n³ operations in all where XLA, which has no ``potri``, takes 7n³/3:
    1.8 to 2.1 times the time (``benchmarks.gp.exact_likelihood``). Below 1,500 rows they use one thread.
    """
    if next(iter(matrix.devices())).platform != "cpu":
        return Inverse(*_invert_by_solves(matrix))
    dense = np.asarray(matrix)
    with blas_threads(len(dense)):
        return _invert_by_lapack(dense)


def _invert_by_lapack(dense: Float[np.ndarray, "n n"]) -> Inverse:
    potrf, potri = scipy.linalg.get_lapack_funcs(("potrf", "potri"), (dense,))
    lower, fault = potrf(dense.T, lower=1, clean=1)  # zeros above; dense is symmetric, its transpose in LAPACK's order
    if fault:
        return Inverse(np.full_like(dense, np.nan), dense.dtype.type(np.nan))
    log_determinant = 2 * np.log(np.diagonal(lower)).sum()
    whole = potri(lower, lower=1, overwrite_c=1)[0]
    whole += np.tril(whole, -1).T
    return Inverse(whole, log_determinant)


@jax.jit
def _invert_by_solves(matrix: Float[Array, "n n"]) -> tuple[Float[Array, "n n"], Float[Array, ""]]:
    lower = jnp.linalg.cholesky(matrix)
    return cho_solve((lower, True), jnp.eye(len(matrix), dtype=matrix.dtype)), 2 * jnp.sum(jnp.log(jnp.diag(lower)))


def sampling_factor(covariance: Float[Array, "i i"], size: Float[Array, ""]) -> Float[Array, "i i"]:
    """Return a factor of a posterior covariance, which is known to the rounding of prior variances of that `size`.

    Where the posterior is certain all of it is rounding, and a floor relative to itself would be too small. Zeros where
    the prior has no variance.
    """
    floor = jnp.where(size > 0, 8 * jnp.finfo(covariance.dtype).eps * size, 1)
    lower = factorise(covariance, jnp.ones(len(covariance), covariance.dtype), floor).lower
    return jnp.where(size > 0, lower, 0)


ACCURATE = 0.38
"""Power of the rounding unit up to which a relative residual is that of a solution, 1e-6 in double precision."""


def is_accurate(relative: Float[Array, "*k"]) -> Bool[Array, ""]:
    """Return whether relative residuals of a direct solve are all small enough for it to have converged."""
    return jnp.all(relative <= jnp.finfo(relative.dtype).eps ** ACCURATE)


def solve_dense(matrix: Float[Array, "n n"], right: Float[Array, "n k"]) -> Solution:
    """Solve by Cholesky; a matrix singular in its precision gets the smallest multiple of I that lets it be factored.

    `Outcome.JITTERED` says so; the residual is that of the matrix as given. `Outcome.STAGNATED` says that the matrix
    could be factored, and is too badly conditioned for a small residual.
    """
    n = matrix.shape[0]
    floor = 10 * jnp.finfo(matrix.dtype).eps * jnp.mean(jnp.diagonal(matrix))
    plain = jnp.linalg.cholesky(matrix)
    sound = ~jnp.isnan(plain[-1, -1])
    lower = jax.lax.cond(sound, lambda: plain, lambda: factorise(matrix, jnp.ones(n, matrix.dtype), floor).lower)
    value = cho_solve((lower, True), right)
    residual = right - matrix @ value
    norms = column_norms(right)
    finite = jnp.all(jnp.isfinite(value))
    relative = column_norms(residual) / jnp.where(norms > 0, norms, 1)
    solved = jnp.where(is_accurate(relative), Outcome.CONVERGED, Outcome.STAGNATED)
    outcome = jnp.where(sound, solved, Outcome.JITTERED)
    outcome = jnp.where(finite, outcome, Outcome.BROKEN)
    return Solution(value, residual, relative, outcome, jnp.ones((), int), jnp.ones((), matrix.dtype))
