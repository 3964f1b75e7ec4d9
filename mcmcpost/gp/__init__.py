"""Gaussian-process regression on kernel systems of any size."""

from mcmcpost.gp._data import Prediction
from mcmcpost.gp._iterative import Fitted, IterativeGP
from mcmcpost.gp._subset_start import SubsetStart

__all__ = ["Fitted", "IterativeGP", "Prediction", "SubsetStart"]
