"""Gaussian-process regression on kernel systems of any size."""

from mcmcpost.gp._data import Prediction

__all__ = ["Prediction"]
