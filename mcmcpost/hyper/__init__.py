"""Hyper-parameters by marginal likelihood: of Stein kernels (restricted, on a grid or by L-BFGS) and of processes."""

from mcmcpost.hyper.marginal_likelihood import (
    AbstractEstimator,
    LikelihoodFit,
    Pathwise,
    Standard,
    StepReport,
    estimate_gradient,
    maximise_exact_likelihood,
    maximise_likelihood_by_solves,
)
from mcmcpost.hyper.optimisers import (
    KERNEL_MEMORY,
    LBFGS,
    AbstractOptimiser,
    Adam,
    Minimum,
    TrainingProblem,
    TrainingRecord,
    TrainingStatus,
    join_records,
    share,
)
from mcmcpost.hyper.parameters import AbstractScale, Hyperparameters, Log, Packing, Softplus, is_positive
from mcmcpost.hyper.random_features import has_random_features, sample_prior
from mcmcpost.hyper.restricted_likelihood import (
    GridChoice,
    RestrictedLikelihood,
    Tuned,
    maximise_restricted_likelihood,
    negative_restricted_likelihood,
    search_grid,
    stein_covariance,
)
from mcmcpost.hyper.task_likelihood import TasksTuned, maximise_task_likelihood

__all__ = [
    "KERNEL_MEMORY",
    "LBFGS",
    "AbstractEstimator",
    "AbstractOptimiser",
    "AbstractScale",
    "Adam",
    "GridChoice",
    "Hyperparameters",
    "LikelihoodFit",
    "Log",
    "Minimum",
    "Packing",
    "Pathwise",
    "RestrictedLikelihood",
    "Softplus",
    "Standard",
    "StepReport",
    "TasksTuned",
    "TrainingProblem",
    "TrainingRecord",
    "TrainingStatus",
    "Tuned",
    "estimate_gradient",
    "has_random_features",
    "is_positive",
    "join_records",
    "maximise_exact_likelihood",
    "maximise_likelihood_by_solves",
    "maximise_restricted_likelihood",
    "maximise_task_likelihood",
    "negative_restricted_likelihood",
    "sample_prior",
    "search_grid",
    "share",
    "stein_covariance",
]
