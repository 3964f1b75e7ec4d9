"""Hyper-parameters of Stein kernels by restricted marginal likelihood: on a grid, or by L-BFGS."""

from mcmcpost.hyper._fit import Tuned, is_positive, maximise_restricted_likelihood, pack, unpack
from mcmcpost.hyper._grid import GRID_NUGGETS, GRID_SPREADS, GridChoice, median_squared_distance, search_grid
from mcmcpost.hyper._likelihood import (
    RestrictedLikelihood,
    negative_restricted_likelihood,
    stein_covariance,
)
from mcmcpost.hyper._search import Loss, Minimum, Start, minimise_from
from mcmcpost.hyper._tasks import TasksTuned, maximise_task_likelihood

__all__ = [
    "GRID_NUGGETS",
    "GRID_SPREADS",
    "GridChoice",
    "Loss",
    "Minimum",
    "RestrictedLikelihood",
    "Start",
    "TasksTuned",
    "Tuned",
    "is_positive",
    "maximise_restricted_likelihood",
    "maximise_task_likelihood",
    "median_squared_distance",
    "minimise_from",
    "negative_restricted_likelihood",
    "pack",
    "search_grid",
    "stein_covariance",
    "unpack",
]
