"""Control variates, cross-fitting and standard errors."""

from mcmcpost.control.auto import MAX_DEGREE, NEED, Auto
from mcmcpost.control.errors import SAFETY, tail_inflation
from mcmcpost.control.estimates.derived import KINDS, Smooth, estimate_derived, estimate_spread
from mcmcpost.control.estimates.estimate import Estimate, estimate_expectations
from mcmcpost.control.estimates.pooling import contradicting, pool, repeated_chain, stored_estimate
from mcmcpost.control.estimates.quantiles import estimate_quantiles, level_texts
from mcmcpost.control.estimates.worth import worth_of
from mcmcpost.control.folds import Subsets
from mcmcpost.control.functional import ControlFunctional, SemiExact
from mcmcpost.control.kernel_choice import REML, GridREML
from mcmcpost.control.least_squares import HIGHEST_DEGREE, Lasso, LeastSquares, Ridge
from mcmcpost.control.method import AbstractControlVariate, ControlFit, PlainMean, Refits
from mcmcpost.control.problem import Problem, check_cross_fitting, participants, read_moments, standard_coordinates
from mcmcpost.control.screened import Screened
from mcmcpost.control.tasks.joint_estimate import JointEstimate, TaskInput, estimate_jointly
from mcmcpost.control.tasks.task_families import NeuralNetwork
from mcmcpost.control.tasks.task_tuning import ConvexTaskCovariance, TaskREML
from mcmcpost.control.tasks.trained import (
    ChainVariance,
    KernelFamily,
    MeanSquare,
    PolynomialFamily,
    Stochastic,
    TrainedVectorValued,
)
from mcmcpost.control.tasks.vector_valued import VectorValued
from mcmcpost.control.weights import SteinWeights, check_weights, solve_stein_weights
from mcmcpost.control.zero_variance import ZeroVariance

__all__ = [
    "HIGHEST_DEGREE",
    "KINDS",
    "MAX_DEGREE",
    "NEED",
    "REML",
    "SAFETY",
    "AbstractControlVariate",
    "Auto",
    "ChainVariance",
    "ControlFit",
    "ControlFunctional",
    "ConvexTaskCovariance",
    "Estimate",
    "GridREML",
    "JointEstimate",
    "KernelFamily",
    "Lasso",
    "LeastSquares",
    "MeanSquare",
    "NeuralNetwork",
    "PlainMean",
    "PolynomialFamily",
    "Problem",
    "Refits",
    "Ridge",
    "Screened",
    "SemiExact",
    "Smooth",
    "SteinWeights",
    "Stochastic",
    "Subsets",
    "TaskInput",
    "TaskREML",
    "TrainedVectorValued",
    "VectorValued",
    "ZeroVariance",
    "check_cross_fitting",
    "check_weights",
    "contradicting",
    "estimate_derived",
    "estimate_expectations",
    "estimate_jointly",
    "estimate_quantiles",
    "estimate_spread",
    "level_texts",
    "participants",
    "pool",
    "read_moments",
    "repeated_chain",
    "solve_stein_weights",
    "standard_coordinates",
    "stored_estimate",
    "tail_inflation",
    "worth_of",
]
