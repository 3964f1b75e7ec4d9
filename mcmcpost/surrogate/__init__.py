"""Surrogate Hamiltonian Monte Carlo: fewer true gradients for the next trace."""

from mcmcpost.surrogate._designs import (
    AbstractSurrogate,
    PublishedSurrogate,
    SubspaceSurrogate,
)
from mcmcpost.surrogate._fitted import (
    EnergyAndGradient,
    FittedSurrogate,
)
from mcmcpost.surrogate._kernel import (
    SurrogateHMC,
)
from mcmcpost.surrogate._state import (
    SurrogateState,
)

__all__ = [
    "AbstractSurrogate",
    "EnergyAndGradient",
    "FittedSurrogate",
    "PublishedSurrogate",
    "SubspaceSurrogate",
    "SurrogateHMC",
    "SurrogateState",
]
