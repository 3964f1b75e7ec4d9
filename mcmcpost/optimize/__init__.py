"""Optimisers that infer from gradients by Gaussian processes, and probabilistic linear solvers."""

from mcmcpost.optimize._linear import LinearSolution, MatrixBased, SolutionBased, solve_linear
from mcmcpost.optimize._memory import Memory
from mcmcpost.optimize._methods import GPH, GPX, AbstractMethod
from mcmcpost.optimize._minimize import minimize
from mcmcpost.optimize._transformation import gp_optimizer, scale_by_gp

__all__ = [
    "GPH",
    "GPX",
    "AbstractMethod",
    "LinearSolution",
    "MatrixBased",
    "Memory",
    "SolutionBased",
    "gp_optimizer",
    "minimize",
    "scale_by_gp",
    "solve_linear",
]
