"""Optimisers that infer from gradients by Gaussian processes, and probabilistic linear solvers."""

from mcmcpost.optimize.directions import GPH, GPX, AbstractMethod, Memory
from mcmcpost.optimize.linear import LinearSolution, MatrixBased, SolutionBased, solve_linear
from mcmcpost.optimize.minimizer import gp_optimizer, minimize, scale_by_gp

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
