"""Solvers of symmetric positive definite kernel systems; each returns a record with value, status and cost."""

from mcmcpost.linsolve.alternating_projections import AlternatingProjections
from mcmcpost.linsolve.cholesky import (
    Cholesky,
    Factor,
    Inverse,
    blas_threads,
    factorise,
    invert,
    is_accurate,
    sampling_factor,
)
from mcmcpost.linsolve.iterative import AbstractIterativeSolver, Outcome, Solution
from mcmcpost.linsolve.krylov import CGSolution, ConjugateGradients, conjugate_gradients
from mcmcpost.linsolve.least_squares import (
    LeastSquaresSolution,
    cholesky_factor,
    fit_rows,
    generalised_least_squares,
    leave_blocks_out,
    solve_lower,
    solve_positive,
)
from mcmcpost.linsolve.linear_solve import Solver, solve
from mcmcpost.linsolve.stochastic_gradient import StochasticGradientDescent

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
    "solve_positive",
]
