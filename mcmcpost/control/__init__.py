"""Control variates, cross-fitting and standard errors."""

from mcmcpost.control._auto import MAX_DEGREE, NEED, Auto
from mcmcpost.control._control_functional import DENSE_LIMIT, ControlFunctional, SemiExact
from mcmcpost.control._estimate import Estimate, estimate_expectations
from mcmcpost.control._joint_estimate import JointEstimate, TaskInput, estimate_jointly
from mcmcpost.control._method import (
    AbstractControlVariate,
    ControlFit,
    PlainMean,
    feature_inflation,
    tail_inflation,
)
from mcmcpost.control._neural import NeuralNetwork
from mcmcpost.control._penalty import Lasso, LeastSquares, Ridge
from mcmcpost.control._problem import Problem, make_problem, standard_coordinates
from mcmcpost.control._quantile import estimate_quantiles
from mcmcpost.control._stochastic import ChainVariance, MeanSquare, Stochastic
from mcmcpost.control._task_tuning import ConvexTaskCovariance, TaskREML
from mcmcpost.control._trained import KernelFamily, PolynomialFamily, TrainedVectorValued
from mcmcpost.control._tuning import REML, GridREML
from mcmcpost.control._vector_valued import VectorValued
from mcmcpost.control._weights import SteinWeights, solve_stein_weights
from mcmcpost.control._zero_variance import ZeroVariance

__all__ = [
    "DENSE_LIMIT",
    "MAX_DEGREE",
    "NEED",
    "REML",
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
    "Ridge",
    "SemiExact",
    "SteinWeights",
    "Stochastic",
    "TaskInput",
    "TaskREML",
    "TrainedVectorValued",
    "VectorValued",
    "ZeroVariance",
    "estimate_expectations",
    "estimate_jointly",
    "estimate_quantiles",
    "feature_inflation",
    "make_problem",
    "solve_stein_weights",
    "standard_coordinates",
    "tail_inflation",
]
