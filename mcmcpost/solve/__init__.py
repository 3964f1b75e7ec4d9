"""Solvers of symmetric positive definite kernel systems; each returns a record with value, status
and cost."""

from mcmcpost.solve.conjugate_gradients import CGSolution, ConjugateGradients, conjugate_gradients
from mcmcpost.solve.dense import (
    Cholesky,
    Factor,
    Inverse,
    LeastSquaresSolution,
    PositiveMatrix,
    blas_threads,
    cholesky_factor,
    factorise,
    fit_rows,
    generalised_least_squares,
    invert,
    is_accurate,
    leave_blocks_out,
    sampling_factor,
    solve_lower,
)
from mcmcpost.solve.iterative import AbstractIterativeSolver, Outcome, Solution
from mcmcpost.solve.linear_solve import Solver, solve
from mcmcpost.solve.row_methods import AlternatingProjections, StochasticGradientDescent

__all__ = [
    "AbstractIterativeSolver",
    "AlternatingProjections",
    "CGSolution",
    "Cholesky",
    "ConjugateGradients",
    "Factor",
    "Inverse",
    "LeastSquaresSolution",
    "Outcome",
    "PositiveMatrix",
    "Solution",
    "Solver",
    "StochasticGradientDescent",
    "blas_threads",
    "cholesky_factor",
    "conjugate_gradients",
    "factorise",
    "fit_rows",
    "generalised_least_squares",
    "invert",
    "is_accurate",
    "leave_blocks_out",
    "sampling_factor",
    "solve",
    "solve_lower",
]
