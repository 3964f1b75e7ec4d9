"""Solvers of symmetric positive definite kernel systems; each returns a record with value, status and cost."""

from mcmcpost.linsolve._alternating_projections import AlternatingProjections
from mcmcpost.linsolve._cg import CGSolution, ConjugateGradients, conjugate_gradients
from mcmcpost.linsolve._cholesky import (
    Cholesky,
    Factor,
    Inverse,
    LeastSquaresSolution,
    factorise,
    generalised_least_squares,
    invert,
)
from mcmcpost.linsolve._iterative import AbstractIterativeSolver, worst_residual
from mcmcpost.linsolve._sgd import StochasticGradientDescent
from mcmcpost.linsolve._solution import Outcome, Solution
from mcmcpost.linsolve._solve import Solver, solve

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
    "conjugate_gradients",
    "factorise",
    "generalised_least_squares",
    "invert",
    "solve",
    "worst_residual",
]
