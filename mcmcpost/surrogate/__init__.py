"""Surrogate Hamiltonian Monte Carlo: fewer true gradients for the next trace."""

from mcmcpost.surrogate.designs import (
    AbstractSurrogate,
    EnergyAndGradient,
    FittedSurrogate,
    SubspaceSurrogate,
    farthest_points,
)
from mcmcpost.surrogate.hmc import SurrogateHMC
from mcmcpost.surrogate.transitions import SurrogateState

__all__ = [
    "AbstractSurrogate",
    "EnergyAndGradient",
    "FittedSurrogate",
    "SubspaceSurrogate",
    "SurrogateHMC",
    "SurrogateState",
    "farthest_points",
]
