"""Hyper-parameters by marginal likelihood: of Stein kernels (restricted, on a grid or by L-BFGS) and of processes."""

from mcmcpost.hyper._estimators import (
    AbstractEstimator,
    Pathwise,
    Standard,
)
from mcmcpost.hyper._fit import (
    Tuned,
    is_positive,
    maximise_restricted_likelihood,
    pack,
    unpack,
)
from mcmcpost.hyper._grid import (
    GRID_NUGGETS,
    GRID_SPREADS,
    GridChoice,
    median_squared_distance,
    search_grid,
)
from mcmcpost.hyper._likelihood import (
    RestrictedLikelihood,
    negative_restricted_likelihood,
    stein_covariance,
)
from mcmcpost.hyper._marginal_likelihood import (
    LikelihoodFit,
    StepReport,
    estimate_gradient,
    log_marginal_likelihood,
    maximise_exact_likelihood,
    maximise_likelihood_by_solves,
)
from mcmcpost.hyper._parameters import (
    AbstractScale,
    Log,
    Softplus,
    Template,
)
from mcmcpost.hyper._random_features import (
    PriorSample,
    has_random_features,
    sample_prior,
)
from mcmcpost.hyper._search import (
    Loss,
    Minimum,
    Start,
    minimise_from,
)
from mcmcpost.hyper._tasks import (
    TasksTuned,
    maximise_task_likelihood,
)

__all__ = [
    "GRID_NUGGETS",
    "GRID_SPREADS",
    "AbstractEstimator",
    "AbstractScale",
    "GridChoice",
    "LikelihoodFit",
    "Log",
    "Loss",
    "Minimum",
    "Pathwise",
    "PriorSample",
    "RestrictedLikelihood",
    "Softplus",
    "Standard",
    "Start",
    "StepReport",
    "TasksTuned",
    "Template",
    "Tuned",
    "estimate_gradient",
    "has_random_features",
    "is_positive",
    "log_marginal_likelihood",
    "maximise_exact_likelihood",
    "maximise_likelihood_by_solves",
    "maximise_restricted_likelihood",
    "maximise_task_likelihood",
    "median_squared_distance",
    "minimise_from",
    "negative_restricted_likelihood",
    "pack",
    "sample_prior",
    "search_grid",
    "stein_covariance",
    "unpack",
]
