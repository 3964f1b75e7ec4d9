"""Control variates, cross-fitting and standard errors."""

from mcmcpost.control.auto import MAX_DEGREE, Auto
from mcmcpost.control.derived import KINDS, Smooth, estimate_derived, estimate_spread
from mcmcpost.control.distribution import Distribution, by_margins
from mcmcpost.control.estimate import (
    Curve,
    Estimate,
    Fits,
    contradicting,
    estimate_expectations,
    pool,
    repeated_chain,
    stored_estimate,
    with_worth,
)
from mcmcpost.control.features.families import NEED
from mcmcpost.control.features.structure import structure_of
from mcmcpost.control.features.summed import (
    Features,
    Layout,
    Sums,
    check_same_features,
    fingerprints_of,
    sums_of,
)
from mcmcpost.control.folds import Subsets
from mcmcpost.control.kernels.choice import REML, GridREML
from mcmcpost.control.kernels.functional import ControlFunctional, SemiExact
from mcmcpost.control.kernels.weights import SteinWeights, check_weights, solve_stein_weights
from mcmcpost.control.method import AbstractControlVariate, FoldFit, PlainMean, Refits
from mcmcpost.control.order_statistics import level_texts
from mcmcpost.control.problem import Options, Problem, Sample, read_moments, standard_coordinates
from mcmcpost.control.standard_errors import SAFETY, tail_inflation
from mcmcpost.control.trace_moments import TraceMoments, stored_moments
from mcmcpost.control.zero_variance import (
    HIGHEST_DEGREE,
    Lasso,
    LeastSquares,
    Ridge,
    Structured,
    VectorFields,
    ZeroVariance,
)
from mcmcpost.core.mcse import participants

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
    "Features",
    "Fits",
    "FoldFit",
    "GridREML",
    "Lasso",
    "Layout",
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
    "Sums",
    "TraceMoments",
    "VectorFields",
    "ZeroVariance",
    "by_margins",
    "check_same_features",
    "check_weights",
    "contradicting",
    "estimate_derived",
    "estimate_expectations",
    "estimate_spread",
    "fingerprints_of",
    "level_texts",
    "participants",
    "pool",
    "read_moments",
    "repeated_chain",
    "solve_stein_weights",
    "standard_coordinates",
    "stored_estimate",
    "stored_moments",
    "structure_of",
    "sums_of",
    "tail_inflation",
    "with_worth",
]
