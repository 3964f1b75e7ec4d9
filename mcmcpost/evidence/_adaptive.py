"""Temperatures from a pilot run: rungs that contribute equally to the discretisation error."""

import numpy as np
from jaxtyping import Float
from scipy.interpolate import PchipInterpolator

from mcmcpost._checks import fault
from mcmcpost.evidence._ladder import Ladder

FLOOR = 0.05
"""Least share of one pilot interval, relative to an equal share: a variance that does not change is only noisy."""
POWER = 5
"""Temperatures are interpolated in t^(1/5), in which a path is smooth near the prior."""


def adaptive_ladder(ladder: Ladder, size: int) -> Float[np.ndarray, " t"]:
    """Return `size` temperatures with equal contributions to the error of the trapezoid rule, from a pilot ladder.

    On [a, b] the rule errs by (b − a)³|μ″|/12, and μ′ is the variance v of the log likelihood, so rungs are spread
    with density |dv/dt|^(1/3). The pilot gives v at its rungs; between them its derivative is taken as constant.

    Parameters
    ----------
    ladder : a pilot run, as short as its variances are informative.
    size : number of temperatures, both ends included.
    """
    where = "adaptive_ladder"
    if size < 2:
        raise ValueError(fault(where, "`size` of at least 2", size, "Both ends are rungs."))
    variance = _variances(ladder)
    gap = np.diff(ladder.temperatures)
    share = np.cbrt(np.abs(np.diff(variance)) * gap**2)
    total = share.sum()
    if not np.isfinite(total) or total == 0:
        raise ValueError(
            fault(
                where,
                "a pilot whose log likelihood has a finite variance that changes along the ladder",
                f"variances {np.array2string(variance, precision=3)}",
                "Draw more, or use power_ladder.",
            )
        )
    share = np.maximum(share / total, FLOOR / len(share))
    cumulative = np.concatenate([[0.0], np.cumsum(share)])
    level = PchipInterpolator(cumulative / cumulative[-1], ladder.temperatures ** (1 / POWER))
    temperatures = level(np.linspace(0.0, 1.0, size)) ** POWER
    temperatures[[0, -1]] = 0.0, 1.0
    return temperatures


def _variances(ladder: Ladder) -> Float[np.ndarray, " t"]:
    """Return the variance of the finite log likelihoods of every rung."""
    likelihood = ladder.log_likelihood.reshape(-1, len(ladder.temperatures))
    finite = np.isfinite(likelihood)
    count = np.maximum(finite.sum(axis=0), 1)
    mean = np.where(finite, likelihood, 0.0).sum(axis=0) / count
    squares = np.where(finite, np.where(finite, likelihood, 0.0) - mean, 0.0) ** 2
    return np.where(finite.sum(axis=0) > 1, squares.sum(axis=0) / count, np.nan)
