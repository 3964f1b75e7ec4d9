"""Weights of draws: self-normalised means, and the influence of each draw on them."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from mcmcpost._core.large_arrays import column_variance

LEAST = 1e-20
"""Weights are at least this part of the largest: smaller ones change no mean."""


class Weights(NamedTuple):
    """Weights of the draws of a trace, as of importance sampling, sequential Monte Carlo or nested sampling.

    values : (c, n), positive, of mean one over all draws.
    num_live : (c, n) live points from which each draw of a nested-sampling run was the worst, the draws of a chain in
        the order of the run; None for other draws, which are taken to be random.
    khat : Pareto k̂ of the weights: above 0.7 a few draws decide (Vehtari et al. 2024, JMLR 25(72)).
    """

    values: Float[np.ndarray, "c n"]
    num_live: Float[np.ndarray, "c n"] | None
    khat: float

    @classmethod
    def of(cls, log_weights: Float[np.ndarray, "c n"], num_live: Float[np.ndarray, "c n"] | None = None) -> "Weights":
        """Return the weights with these finite logarithms, up to a constant."""
        values = np.maximum(np.exp(log_weights - log_weights.max()), LEAST)
        return cls(values / values.mean(), num_live, weights_khat(log_weights))

    @property
    def ess(self) -> float:
        """Kish's effective sample size (Σw)²/Σw²: as many draws of equal weight have the error of a mean."""
        return float(self.values.sum() ** 2 / (self.values**2).sum())

    def select(self, rows: slice) -> "Weights":
        """Return the weights of some draws of each chain.

        Every k-th draw of a nested-sampling run has a k-th of its live points.
        """
        values = self.values[:, rows]
        live = None if self.num_live is None else self.num_live[:, rows] / (rows.step or 1)
        return Weights(values / values.mean(), live, self.khat)

    def mean(self, series: Float[np.ndarray, "c n *p"]) -> Float[np.ndarray, "*p"]:
        """Return Σwf/Σw of each series."""
        return np.tensordot(self.values, series, 2) / self.values.size

    def variance(self, series: Float[np.ndarray, "c n *p"]) -> Float[np.ndarray, "*p"]:
        """Return Σw(f − m)²/Σw of each series."""
        return self.mean((series - self.mean(series)) ** 2)

    def influence(self, series: Float[np.ndarray, "c n *p"]) -> Float[np.ndarray, "c n *p"]:
        """Return, for each draw, N times how much it moves the weighted mean m of N draws.

        For independent draws it is w(f − m), whose squares make the error of the self-normalised mean (Owen 2013,
        *Monte Carlo theory, methods and examples*, section 9.2). A draw of a nested-sampling run also shrinks the
        volume of all that come after it by 1/K, for K live points: it is w(f − m) − Σ_{later} w(f − m)/K. Dead points
        are a Poisson process in the log volume, so that squares of these make the error, that of the volumes included.
        """
        own = self.values.reshape(self.values.shape + (1,) * (series.ndim - 2)) * (series - self.mean(series))
        if self.num_live is None:
            return own
        later = np.flip(np.cumsum(np.flip(own, axis=1), axis=1), axis=1) - own
        return own - later / self.num_live.reshape(self.num_live.shape + (1,) * (series.ndim - 2))

    def representative(self) -> Int[np.ndarray, " m"]:
        """Return positions, chains concatenated, of draws that are nearly a sample of equal weights, none twice.

        Of N draws N/max w are taken at even steps of the summed weights, half as many of a nested-sampling run, whose
        order is broken so that it is not taken for correlation.
        """
        size = max(int(self.values.size / self.values.max()) // (1 if self.num_live is None else 2), 1)
        rows = np.unique(self._at_even_steps(size))
        if self.num_live is None:
            return rows
        golden = (np.sqrt(5) - 1) / 2
        return rows[np.argsort(np.arange(len(rows)) * golden % 1)]

    def repeated(self) -> Int[np.ndarray, " m"]:
        """Return as many positions as draws, chains concatenated, each as often as its weight says to within one."""
        return self._at_even_steps(self.values.size)

    def _at_even_steps(self, size: int) -> Int[np.ndarray, " m"]:
        total = np.cumsum(self.values.reshape(-1))
        steps = (np.arange(size) + 0.5) / size
        return np.minimum(np.searchsorted(total, steps * total[-1]), len(total) - 1)


def tail_draws(size: int) -> int:
    """Return how many of `size` draws ArviZ takes for a tail."""
    return int(min(0.2 * size, 3 * np.sqrt(size)))


def weights_khat(log_weights: Float[np.ndarray, "..."]) -> float:
    """Return the Pareto k̂ of weights with these logarithms; that of a weight of zero is −∞.

    k̂ is −∞ for fewer than 25 draws or where the largest weights are equal, and ∞ where a few draws have all the weight
    that floating-point numbers can show.
    """
    from arviz_stats.base import array_stats

    flat = log_weights.reshape(-1)
    if flat.size < 25 or np.ptp(np.sort(flat)[-tail_draws(flat.size) :]) == 0:
        return -np.inf
    khat = float(array_stats.psislw(-flat)[1])
    return np.inf if np.isnan(khat) else khat


def mean_over_draws(series: Float[np.ndarray, "c n *p"], weights: Weights | None) -> Float[np.ndarray, "*p"]:
    """Return the mean of each series, weighted where there are weights."""
    return series.mean(axis=(0, 1)) if weights is None else weights.mean(series)


def variance_over_draws(series: Float[np.ndarray, "c n *p"], weights: Weights | None) -> Float[np.ndarray, "*p"]:
    """Return the variance of each series over the draws, weighted where there are weights."""
    if weights is not None:
        return weights.variance(series)
    return column_variance(series.reshape(series.shape[0] * series.shape[1], -1)).reshape(series.shape[2:])
