"""Which solver a Gaussian process of n rows should use, by memory and measured cost."""

import time
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mcmcpost.kernels import AbstractKernel
from mcmcpost.linops import kernel_operator
from mcmcpost.linsolve import Cholesky, ConjugateGradients, Solver, invert

PILOT = 1_024
"""Rows on which both costs are measured."""
DENSE_LIMIT = 10_000
"""Rows beyond which the six n×n matrices of an exact step need more than five gigabytes."""
RANK = 100
"""Of the preconditioner where both costs are measured."""
LARGE_RANK = 500
"""Beyond the dense limit: half the time of rank 100 at n = 15,000 (``benchmarks.iterative_gp --ranks``)."""
EXPECTED_EPOCHS = 15
"""Solver epochs of one warm-started step, and one more for the gradient."""


class SolverChoice(NamedTuple):
    """The solver, and why.

    reason : ``few rows``, ``memory`` or ``measured cost``.
    cholesky_seconds, iterative_seconds : predicted for one step of the marginal likelihood, None where not measured.
    """

    solver: Solver
    reason: str
    cholesky_seconds: float | None
    iterative_seconds: float | None


def choose_solver(kernel: AbstractKernel, X: Float[np.ndarray, "m d"], columns: int) -> SolverChoice:
    """Choose Cholesky up to 10,000 rows where a step of it is predicted to be cheaper, else conjugate gradients.

    Up to 1,024 rows nothing is measured: compiling the measurement costs more than either. Otherwise the cost of a
    factorisation with inverse grows with n³, that of kernel products with `columns` right-hand sides with n², both
    timed on 1,024 rows. Call it under 64-bit JAX.
    """
    n = len(X)
    iterative = ConjugateGradients(rtol=1e-2, budget=200, rank=LARGE_RANK if n > DENSE_LIMIT else RANK)
    if n > DENSE_LIMIT:
        return SolverChoice(iterative, "memory", None, None)
    if n <= PILOT:
        return SolverChoice(Cholesky(), "few rows", None, None)
    rows = jnp.asarray(X[np.linspace(0, n - 1, PILOT).astype(int)])
    operator, right = kernel_operator(kernel, rows), jnp.ones((PILOT, columns))
    matrix = jnp.eye(PILOT) + 1.0 / PILOT
    cholesky = _seconds(lambda: jnp.asarray(invert(matrix).matrix)) * (n / PILOT) ** 3
    products = _seconds(lambda: operator.matmul(right)) * (n / PILOT) ** 2 * (EXPECTED_EPOCHS + 1)
    solver = Cholesky() if cholesky <= products else iterative
    return SolverChoice(solver, "measured cost", cholesky, products)


def _seconds(call: Callable[[], jax.Array]) -> float:
    call().block_until_ready()
    start = time.perf_counter()
    call().block_until_ready()
    return time.perf_counter() - start
