"""The normal that is fitted to draws: proposal of a bridge, reference of a ladder, Laplace approximation."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import solve_triangular

from mcmcpost._core.errors import InputError


class Normal(NamedTuple):
    """N(mean, lower lowerᵀ) on the unconstrained space.

    mean : (d,). lower : (d, d), lower triangular.
    """

    mean: Float[np.ndarray, " d"]
    lower: Float[np.ndarray, "d d"]

    def standardise(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return z = lower⁻¹(x − mean)."""
        return solve_triangular(self.lower, (points - self.mean).T, lower=True).T

    def restore(self, standard: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return x = mean + lower z."""
        return self.mean + standard @ self.lower.T

    def log_density(self, standard: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Return log N(x) at x = mean + lower z."""
        constant = 0.5 * len(self.mean) * np.log(2 * np.pi) + np.log(np.diagonal(self.lower)).sum()
        return -0.5 * (standard**2).sum(axis=1) - constant


def fit_normal(where: str, points: Float[np.ndarray, "n d"], names: tuple[str, ...]) -> Normal:
    """Return the normal with the mean and covariance of the points.

    Raises
    ------
    ValueError : a coordinate is constant or a combination of those before it; the message names it.
    """
    mean, spread = points.mean(axis=0), points.std(axis=0, ddof=1)
    floor = 1e3 * np.finfo(float).eps
    flat = np.flatnonzero(spread <= floor * np.abs(points).max(axis=0))
    cure = "Keep it out of the draws, or fix it in the log density."
    if len(flat):
        text = f"the constant {', '.join(names[i] for i in flat)}"
        raise InputError(where, "coordinates that vary", text, cure)
    correlation = np.atleast_2d(np.corrcoef(points.T))
    lower = np.zeros_like(correlation)
    for i in range(len(mean)):
        lower[i, :i] = solve_triangular(lower[:i, :i], correlation[:i, i], lower=True) if i else 0.0
        rest = correlation[i, i] - (lower[i, :i] ** 2).sum()
        if rest <= floor * len(mean):
            text = f"{names[i]}, a linear combination of {', '.join(names[:i])}"
            raise InputError(where, "draws of a density, with a covariance of full rank", text, cure)
        lower[i, i] = np.sqrt(rest)
    return Normal(mean, spread[:, None] * lower)
