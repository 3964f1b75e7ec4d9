"""Gaussian processes on kernel systems of any size, and what is made of them.

Regression, processes of gradients, optimisers that infer from gradients, and surrogate Hamiltonian
Monte Carlo.
"""

from mcmcpost.gp.actions import BlockActions
from mcmcpost.gp.computation_aware import ComputationAwareGP
from mcmcpost.gp.gradient import GradientGP
from mcmcpost.gp.gradient_solvers import Automatic
from mcmcpost.gp.iterative_gp import IterativeGP, SubsetStart
from mcmcpost.gp.linear_solvers import solve_linear
from mcmcpost.gp.optimizers import GPH, GPX, gp_optimizer, minimize
from mcmcpost.gp.surrogate import SubspaceSurrogate
from mcmcpost.gp.surrogate_hmc import SurrogateHMC
from mcmcpost.solve.search import LBFGS, Adam

__all__ = [
    "GPH",
    "GPX",
    "LBFGS",
    "Adam",
    "Automatic",
    "BlockActions",
    "ComputationAwareGP",
    "GradientGP",
    "IterativeGP",
    "SubsetStart",
    "SubspaceSurrogate",
    "SurrogateHMC",
    "gp_optimizer",
    "minimize",
    "solve_linear",
]
