"""Control variates, cross-fitting and standard errors."""

from mcmcpost.control.auto import MAX_DEGREE, Auto
from mcmcpost.control.derived import KINDS, Smooth, estimate_derived, estimate_spread
from mcmcpost.control.distribution import Distribution, level_texts
from mcmcpost.control.estimate import (
    Curve,
    Estimate,
    contradicting,
    estimate_expectations,
    pool,
    repeated_chain,
    stored_estimate,
    worth_of,
)
from mcmcpost.control.features.structure import structure_of
from mcmcpost.control.folds import Subsets
from mcmcpost.control.kernels.choice import REML, GridREML
from mcmcpost.control.kernels.functional import ControlFunctional, SemiExact
from mcmcpost.control.linear import NEED
from mcmcpost.control.method import AbstractControlVariate, FoldFit, PlainMean, Refits
from mcmcpost.control.problem import Options, Problem, Sample, participants, read_moments, standard_coordinates
from mcmcpost.control.standard_errors import SAFETY, tail_inflation
from mcmcpost.control.weights import SteinWeights, check_weights, solve_stein_weights
from mcmcpost.control.zero_variance import HIGHEST_DEGREE, Lasso, LeastSquares, Ridge, Structured, ZeroVariance

__all__ = [
    "HIGHEST_DEGREE",
    "KINDS",
    "MAX_DEGREE",
    "NEED",
    "REML",
    "SAFETY",
    "AbstractControlVariate",
    "Auto",
    "ControlFunctional",
    "Curve",
    "Distribution",
    "Estimate",
    "FoldFit",
    "GridREML",
    "Lasso",
    "LeastSquares",
    "Options",
    "PlainMean",
    "Problem",
    "Refits",
    "Ridge",
    "Sample",
    "SemiExact",
    "Smooth",
    "SteinWeights",
    "Structured",
    "Subsets",
    "ZeroVariance",
    "check_weights",
    "contradicting",
    "estimate_derived",
    "estimate_expectations",
    "estimate_spread",
    "level_texts",
    "participants",
    "pool",
    "read_moments",
    "repeated_chain",
    "solve_stein_weights",
    "standard_coordinates",
    "stored_estimate",
    "structure_of",
    "tail_inflation",
    "worth_of",
]
