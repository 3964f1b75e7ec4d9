"""Solvers of symmetric positive definite kernel systems; each returns a record with value, status and cost."""

from mcmcpost.linsolve._cg import CGSolution, conjugate_gradients
from mcmcpost.linsolve._choice import Cholesky, ConjugateGradients
from mcmcpost.linsolve._cholesky import Factor, LeastSquaresSolution, factorise, generalised_least_squares

__all__ = [
    "CGSolution",
    "Cholesky",
    "ConjugateGradients",
    "Factor",
    "LeastSquaresSolution",
    "conjugate_gradients",
    "factorise",
    "generalised_least_squares",
]
