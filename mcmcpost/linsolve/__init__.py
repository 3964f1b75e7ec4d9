"""Solvers of symmetric positive definite kernel systems; each returns a record with value, status and cost."""

from mcmcpost.linsolve.alternating_projections import AlternatingProjections
from mcmcpost.linsolve.cholesky import (
    Cholesky,
    Factor,
    Inverse,
    LeastSquaresSolution,
    factorise,
    generalised_least_squares,
    invert,
    raise_nugget,
)
from mcmcpost.linsolve.iterative import AbstractIterativeSolver, Outcome, Solution
from mcmcpost.linsolve.krylov import CGSolution, ConjugateGradients, conjugate_gradients
from mcmcpost.linsolve.leave_out import leave_blocks_out
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
    "conjugate_gradients",
    "factorise",
    "generalised_least_squares",
    "invert",
    "leave_blocks_out",
    "raise_nugget",
    "solve",
]
