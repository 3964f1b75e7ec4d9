"""Gaussian-process regression on kernel systems of any size."""

from mcmcpost.gp._computation_aware import ComputationAwareGP
from mcmcpost.gp._computation_aware_fitted import FittedComputationAwareGP, SplitPrediction
from mcmcpost.gp._data import Prediction
from mcmcpost.gp._elbo import AbstractObjective, EvidenceBound, ProjectedLikelihood
from mcmcpost.gp._iterative import Fitted, IterativeGP
from mcmcpost.gp._policies import (
    AbstractPolicy,
    BlockActions,
    GivenActions,
    RandomActions,
    ResidualActions,
    UnitActions,
)
from mcmcpost.gp._subset_start import SubsetStart
from mcmcpost.gp._training import LBFGS, Adam, TrainingRecord, TrainingStatus

__all__ = [
    "LBFGS",
    "AbstractObjective",
    "AbstractPolicy",
    "Adam",
    "BlockActions",
    "ComputationAwareGP",
    "EvidenceBound",
    "Fitted",
    "FittedComputationAwareGP",
    "GivenActions",
    "IterativeGP",
    "Prediction",
    "ProjectedLikelihood",
    "RandomActions",
    "ResidualActions",
    "SplitPrediction",
    "SubsetStart",
    "TrainingRecord",
    "TrainingStatus",
    "UnitActions",
]
