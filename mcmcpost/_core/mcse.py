"""Monte Carlo standard errors, R-hat and Pareto k̂, computed by ArviZ, which is imported on first use."""

import numpy as np
from jaxtyping import Float

from mcmcpost._core.large_arrays import in_blocks
from mcmcpost._core.precision import beyond_rounding
from mcmcpost._core.weights import Weights, tail_draws

GOOD_KHAT = 0.7
"""Pareto k̂ of weights up to which their mean and its error can be trusted (Vehtari et al. 2024, JMLR 25(72))."""

MANY_CHAINS = 32
"""Chains from which the error between them is known to an eighth, and is used too."""


LONG = 1 << 22
"""Draws above which errors are those of means over neighbouring draws, and R-hat and k̂ are those of some draws."""

LEAST_LENGTH = 1_000
"""Draws, or means of draws, that are left of each chain at least."""


def spacing(chains: int, draws: int) -> int:
    """Return the number of neighbouring draws of which one, or the mean, stands for all: one up to `LONG` draws."""
    return max(1, min(-(-chains * draws // LONG), draws // LEAST_LENGTH))


def thinned(series: Float[np.ndarray, "c n p"]) -> Float[np.ndarray, "c s p"]:
    """Return every so many draws of each chain, see `spacing`, without a copy."""
    return series[:, :: spacing(*series.shape[:2])]


def _means(series: Float[np.ndarray, "c n p"]) -> Float[np.ndarray, "c s p"]:
    """Return the means over neighbouring draws, see `spacing`; the draws after the last whole block are left out."""
    chains, draws, width = series.shape
    size = spacing(chains, draws)
    if size == 1:
        return series
    means = [chain[: draws // size * size].reshape(-1, size, width).mean(axis=1) for chain in series]
    return np.stack(means)


def mcse_mean(series: Float[np.ndarray, "c n *p"], weights: Weights | None = None) -> Float[np.ndarray, "*p"]:
    """Return the Monte Carlo standard error of the mean of each series.

    The ESS-based error of Vehtari et al. (2021, doi:10.1214/20-BA1221), rank normalisation not applied, as
    ``arviz.mcse(method="mean")``. Each series is scaled to unit standard deviation first: ArviZ takes any series whose
    range is below 1e-15 for a constant, which small residuals are not.

    An ESS knows correlations up to the length of a chain only. From 32 chains on, which are independent, the error is
    at least that between their means, and for fewer than four draws a chain it is that one.

    Of more than four million draws it is that of the means over blocks of neighbouring draws, at least a thousand of
    each chain, whose mean is the same (batch means).

    The error of a weighted mean is that of the mean of `Weights.influence`, and at least that of independent draws,
    which is the whole of it for a nested-sampling run.

    Parameters
    ----------
    series : (c, n, ...) chains, draws.
    weights : of the draws; equal by default.

    Returns
    -------
    (...) in the units of `series`; NaN where a value is not finite, and for fewer than four draws in each of fewer than
    32 chains; zero for a constant series.
    """
    if weights is not None:
        influence = weights.influence(series)
        independent = np.sqrt((influence**2).sum(axis=(0, 1))) / weights.values.size
        return independent if weights.num_live is not None else np.fmax(mcse_mean(influence), independent)
    c, n = series.shape[:2]
    columns = series.reshape(c, n, -1)
    error = np.empty(columns.shape[-1])
    for some in in_blocks(len(error), c * n):
        error[some] = _mcse_mean(columns[..., some])
    return error.reshape(series.shape[2:])


def _mcse_mean(series: Float[np.ndarray, "c n p"]) -> Float[np.ndarray, " p"]:
    from arviz_stats.base import array_stats

    with np.errstate(invalid="ignore"):
        finite = np.isfinite(series.min(axis=(0, 1))) & np.isfinite(series.max(axis=(0, 1)))
        series = _means(series)
    safe = np.where(finite, series, 0.0)
    centred = safe - safe.mean(axis=(0, 1))
    scale = centred.std(axis=(0, 1), ddof=1) if series.shape[0] * series.shape[1] > 1 else np.zeros(series.shape[2:])
    unit = centred / np.where(scale > 0, scale, 1.0)
    error = array_stats.mcse(unit, chain_axis=0, draw_axis=1, method="mean") * scale
    if len(series) >= MANY_CHAINS:
        error = np.fmax(error, centred.mean(axis=1).std(axis=0, ddof=1) / np.sqrt(len(series)))
    return np.where(finite, error, np.nan)


def rank_rhat(series: Float[np.ndarray, "c n *p"]) -> Float[np.ndarray, "*p"]:
    """Return the rank-normalised split R-hat of each series (Vehtari et al. 2021), NaN for a chain or a constant.

    Of more than four million draws it is that of every so many of each chain.
    """
    from arviz_stats.base import array_stats

    return np.where(beyond_rounding(series), array_stats.rhat(thinned(series), chain_axis=0, draw_axis=1), np.nan)


def pareto_khat(series: Float[np.ndarray, "c n p"]) -> Float[np.ndarray, " p"]:
    """Return the larger Pareto k̂ of the two tails of each series; −∞ for a tail of one value or fewer than 25 draws."""
    from arviz_stats.base import array_stats

    size = series.shape[0] * series.shape[1]
    tail = tail_draws(size)
    found = np.full(series.shape[-1], -np.inf)
    if tail < 5:
        return found
    ordered = np.sort(series.reshape(size, -1), axis=0)
    for side, varies in (("left", ordered[0] < ordered[tail - 1]), ("right", ordered[-tail] < ordered[-1])):
        for j in np.flatnonzero(varies):
            own = array_stats.pareto_khat(series[..., j], chain_axis=0, draw_axis=1, r_eff=1.0, tail=side)
            found[j] = np.fmax(found[j], own)
    return found
