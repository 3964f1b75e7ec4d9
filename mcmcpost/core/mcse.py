"""Monte Carlo standard errors and R-hat of many series at once, Pareto k̂ by ArviZ, and weights of
draws."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import ndtri
from scipy.stats import rankdata

from mcmcpost.core.arrays import column_variance, in_blocks
from mcmcpost.core.precision import beyond_rounding

LEAST = 1e-20
"""Weights are at least this part of the largest: smaller ones change no mean."""


class Weights(NamedTuple):
    """Weights of the draws of a trace, as of importance sampling, sequential Monte Carlo or nested
    sampling.

    values : (c, n), positive, of mean one over all draws.
    num_live : (c, n) live points from which each draw of a nested-sampling run was the worst, the
        draws of a chain in the order of the run; None for other draws, which are taken to be
        random.
    khat : Pareto k̂ of the weights: above 0.7 a few draws decide (Vehtari et al. 2024, JMLR
        25(72)).
    """

    values: Float[np.ndarray, "c n"]
    num_live: Float[np.ndarray, "c n"] | None
    khat: float

    @classmethod
    def of(
        cls, log_weights: Float[np.ndarray, "c n"], num_live: Float[np.ndarray, "c n"] | None = None
    ) -> "Weights":
        """Return the weights with these finite logarithms, up to a constant."""
        # Relative to the largest: exp of log weights themselves may overflow, or all be zero.
        values = np.maximum(np.exp(log_weights - log_weights.max()), LEAST)
        return cls(values / values.mean(), num_live, weights_khat(log_weights))

    @property
    def ess(self) -> float:
        """Kish's effective sample size (Σw)²/Σw²: as many draws of equal weight have the error of a
        mean."""
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

        For independent draws it is w(f − m), whose squares make the error of the self-normalised
        mean (Owen 2013, *Monte Carlo theory, methods and examples*, section 9.2). A draw of a
        nested-sampling run also shrinks the volume of all that come after it by 1/K, for K live
        points: it is w(f − m) − Σ_{later} w(f − m)/K. Dead points are a Poisson process in the log
        volume, so that squares of these make the error, that of the volumes included.
        """
        deviations = self.values.reshape(self.values.shape + (1,) * (series.ndim - 2)) * (
            series - self.mean(series)
        )
        if self.num_live is None:
            return deviations
        # Σ over later draws, as the reversed cumulative sum less the draw itself.
        later = np.flip(np.cumsum(np.flip(deviations, axis=1), axis=1), axis=1) - deviations
        return deviations - later / self.num_live.reshape(
            self.num_live.shape + (1,) * (series.ndim - 2)
        )

    def representative(self) -> Int[np.ndarray, " m"]:
        """Return positions, chains concatenated, of draws that are nearly a sample of equal
        weights, none twice.

        Of N draws N/max w are taken at even steps of the summed weights, half as many of a
        nested-sampling run, whose order is broken so that it is not taken for correlation.
        """
        # N/max w steps are as long as the largest weight, so that no draw is taken twice but by
        # rounding.
        size = max(
            int(self.values.size / self.values.max()) // (1 if self.num_live is None else 2), 1
        )
        rows = np.unique(self._at_even_steps(size))
        if self.num_live is None:
            return rows
        # Multiples of the golden ratio mod 1 spread neighbours far apart, without a key.
        golden = (np.sqrt(5) - 1) / 2
        return rows[np.argsort(np.arange(len(rows)) * golden % 1)]

    def repeated(self) -> Int[np.ndarray, " m"]:
        """Return as many positions as draws, chains concatenated, each as often as its weight says
        to within one."""
        return self._at_even_steps(self.values.size)

    def _at_even_steps(self, size: int) -> Int[np.ndarray, " m"]:
        total = np.cumsum(self.values.reshape(-1))
        # Midpoints of equal steps: systematic resampling without its random offset, so that it
        # repeats.
        steps = (np.arange(size) + 0.5) / size
        return np.minimum(np.searchsorted(total, steps * total[-1]), len(total) - 1)


def tail_draws(size: int) -> int:
    """Return how many of `size` draws ArviZ takes for a tail."""
    return int(min(0.2 * size, 3 * np.sqrt(size)))


def weights_khat(log_weights: Float[np.ndarray, "..."]) -> float:
    """Return the Pareto k̂ of weights with these logarithms; that of a weight of zero is −∞.

    k̂ is −∞ for fewer than 25 draws or where the largest weights are equal, and ∞ where a few draws
    have all the weight that floating-point numbers can show.
    """
    from arviz_stats.base import array_stats

    flat = log_weights.reshape(-1)
    if flat.size < 25 or np.ptp(np.sort(flat)[-tail_draws(flat.size) :]) == 0:
        return -np.inf
    # where many of the largest weights are equal, as of draws that repeat
    with np.errstate(all="ignore"):
        khat = float(array_stats.psislw(-flat)[1])
    return np.inf if np.isnan(khat) else khat


def mean_over_draws(
    series: Float[np.ndarray, "c n *p"], weights: Weights | None
) -> Float[np.ndarray, "*p"]:
    """Return the mean of each series, weighted where there are weights."""
    return series.mean(axis=(0, 1)) if weights is None else weights.mean(series)


def variance_over_draws(
    series: Float[np.ndarray, "c n *p"], weights: Weights | None
) -> Float[np.ndarray, "*p"]:
    """Return the variance of each series over the draws, weighted where there are weights."""
    if weights is not None:
        return weights.variance(series)
    return column_variance(series.reshape(series.shape[0] * series.shape[1], -1)).reshape(
        series.shape[2:]
    )


GOOD_KHAT = 0.7
"""Pareto k̂ of weights up to which their mean and its error can be trusted (Vehtari et al. 2024,
JMLR 25(72))."""

MANY_CHAINS = 32
"""Chains from which the error between them is known to an eighth, and is used too."""


LEAST_DRAWS = 4
"""Draws a chain from which autocorrelations are known at all."""

LONG = 1 << 22
"""Draws above which errors are those of means over neighbouring draws, and R-hat and k̂ are those
of some draws."""

LEAST_LENGTH = 1_000
"""Draws, or means of draws, that are left of each chain at least."""


def spacing(chains: int, draws: int) -> int:
    """Return the number of neighbouring draws of which one, or the mean, stands for all: one up to
    `LONG` draws."""
    return max(1, min(-(-chains * draws // LONG), draws // LEAST_LENGTH))


def thinned(series: Float[np.ndarray, "c n p"]) -> Float[np.ndarray, "c s p"]:
    """Return every so many draws of each chain, see `spacing`, without a copy."""
    return series[:, :: spacing(*series.shape[:2])]


def _means(series: Float[np.ndarray, "c n p"]) -> Float[np.ndarray, "c s p"]:
    """Return the means over neighbouring draws, see `spacing`; the draws after the last whole block
    are left out."""
    chains, draws, width = series.shape
    size = spacing(chains, draws)
    if size == 1:
        return series
    means = [
        chain[: draws // size * size].reshape(-1, size, width).mean(axis=1) for chain in series
    ]
    return np.stack(means)


def mcse_mean(
    series: Float[np.ndarray, "c n *p"], weights: Weights | None = None
) -> Float[np.ndarray, "*p"]:
    """Return the Monte Carlo standard error of the mean of each series.

    The ESS-based error of Vehtari et al. (2021, doi:10.1214/20-BA1221), rank normalisation not
    applied, as ``arviz.mcse(method="mean")``, of series of any size: ArviZ takes one whose range is
    below 1e-15 for a constant, which small residuals are not.

    An ESS knows correlations up to the length of a chain only. From 32 chains on, which are
    independent, the error is at least that between their means, and for fewer than four draws a
    chain it is that one.

    Of more than four million draws it is that of the means over blocks of neighbouring draws, at
    least a thousand of each chain, whose mean is the same (batch means).

    The error of a weighted mean is that of the mean of `Weights.influence`, and at least that of
    independent draws, which is the whole of it for a nested-sampling run.

    Parameters
    ----------
    series : (c, n, ...) chains, draws.
    weights : of the draws; equal by default.

    Returns
    -------
    (...) in the units of `series`; NaN where a value is not finite, and for fewer than four draws
    in each of fewer than 32 chains; zero for a constant series.
    """
    if weights is not None:
        influence = weights.influence(series)
        # Owen's error of the self-normalised mean, for draws taken as independent.
        independent = np.sqrt((influence**2).sum(axis=(0, 1))) / weights.values.size
        return (
            independent
            if weights.num_live is not None
            else np.fmax(mcse_mean(influence), independent)
        )
    c, n = series.shape[:2]
    columns = series.reshape(c, n, -1)
    error = np.empty(columns.shape[-1])
    for columns_of_block in in_blocks(len(error), c * n):
        error[columns_of_block] = _mcse_mean(columns[..., columns_of_block])
    return error.reshape(series.shape[2:])


def _mcse_mean(series: Float[np.ndarray, "c n p"]) -> Float[np.ndarray, " p"]:
    with np.errstate(invalid="ignore"):
        # Extremes are NaN or infinite where any value is: no array of flags of the size of the
        # draws.
        finite = np.isfinite(series.min(axis=(0, 1))) & np.isfinite(series.max(axis=(0, 1)))
        series = _means(series)
    c, n, p = series.shape
    # A series that is not finite is zeros here, and NaN again in the result.
    safe = np.where(finite, series, 0.0)
    centred = safe - safe.mean(axis=(0, 1))
    scale = centred.std(axis=(0, 1), ddof=1) if c * n > 1 else np.zeros(p)
    # To unit standard deviation and back: squares of small residuals underflow.
    unit = centred / np.where(scale > 0, scale, 1.0)
    error = scale * (_relative_mcse(unit) if n >= LEAST_DRAWS else np.nan)
    if c >= MANY_CHAINS:
        error = np.fmax(error, centred.mean(axis=1).std(axis=0, ddof=1) / np.sqrt(c))
    return np.where(finite, error, np.nan)


def _relative_mcse(series: Float[np.ndarray, "c n p"]) -> Float[np.ndarray, " p"]:
    """Return the error of each series over its standard deviation, √(τ/N), as ArviZ does, for all
    series at once.

    The autocorrelations ρ_t of N draws are those of split chains, and τ = −1 + 2 Σ_k P_k sums
    P_k = ρ_2k + ρ_2k+1 while they are positive, none larger than the one before (Geyer 1992,
    doi:10.1214/ss/1177011137; Stan Reference Manual, *Effective sample size*). ArviZ takes half a
    millisecond and more a series, which was the tenth part of a reduction of many quantities.
    """
    split = _split(series)
    p, chains, n = split.shape
    level = split.mean(axis=2, keepdims=True)
    # Padded to twice the length, so that lags do not wrap round.
    padded = next_fast_len(2 * n, real=True)
    power = np.abs(rfft(split - level, padded)) ** 2
    covariance = irfft(power.mean(axis=1), padded)[:, :n] / n
    total = covariance[:, :1] + level.var(axis=1, ddof=1)
    rho = 1 - (covariance[:, :1] * n / (n - 1) - covariance) / np.where(total > 0, total, 1.0)
    rho[:, 0] = 1.0
    pairs = rho[:, : n // 2 * 2].reshape(p, -1, 2).sum(axis=2)[:, : max((n - 3) // 2, 0) + 1]
    negative = pairs <= 0
    end = np.where(negative.any(axis=1), negative.argmax(axis=1), pairs.shape[1] - 1)
    summed = np.arange(pairs.shape[1]) < end[:, None]
    monotone = np.minimum.accumulate(pairs, axis=1)
    # Of the pair that ends the sum only the even lag counts, once, and not where it is negative
    # too.
    even, ends_negative = rho[np.arange(p), 2 * end], negative[np.arange(p), end]
    even = np.where(ends_negative, np.maximum(even, 0.0), even)
    tau = -1 + 2 * (monotone * summed).sum(axis=1) + even
    size = chains * n
    return np.sqrt(np.maximum(tau, 1 / np.log10(size)) / size)


def _split(series: Float[np.ndarray, "c n p"]) -> Float[np.ndarray, "p c2 h"]:
    """Return both halves of each chain as chains of their own, without the middle one of an odd
    number of draws."""
    half = series.shape[1] // 2
    return np.moveaxis(np.concatenate([series[:, :half], series[:, -half:]]), 2, 0)


def rank_rhat(series: Float[np.ndarray, "c n *p"]) -> Float[np.ndarray, "*p"]:
    """Return the rank-normalised split R-hat of each series (Vehtari et al. 2021,
    doi:10.1214/20-BA1221), as ArviZ does, NaN for a chain or a constant.

    The larger of those of the draws and of their distances from the median. Of more than four
    million draws it is that of every so many of each chain.
    """
    shape = series.shape[2:]
    if series.shape[0] < 2 or series.shape[1] < LEAST_DRAWS:
        return np.full(shape, np.nan)
    draws = thinned(series)
    split = _split(draws.reshape(*draws.shape[:2], -1))
    with np.errstate(invalid="ignore", divide="ignore"):
        folded = np.abs(split - np.median(split, axis=(1, 2), keepdims=True))
        rhat = np.fmax(_rhat_of_ranks(split), _rhat_of_ranks(folded))
    return np.where(beyond_rounding(series), rhat.reshape(shape), np.nan)


def _rhat_of_ranks(split: Float[np.ndarray, "p c h"]) -> Float[np.ndarray, " p"]:
    z, n = normal_scores(split.reshape(len(split), -1)).reshape(split.shape), split.shape[2]
    between, within = z.mean(axis=2).var(axis=1, ddof=1), z.var(axis=2, ddof=1).mean(axis=1)
    return np.sqrt(between / within + (n - 1) / n)


def normal_scores(values: Float[np.ndarray, "p m"]) -> Float[np.ndarray, "p m"]:
    """Return the normal scores of the ranks in each row, (rank − 3/8)/(m + 1/4) by Blom as in
    Vehtari et al. 2021; equal values have the mean of their ranks."""
    m = values.shape[1]
    order = np.argsort(values, axis=1)
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, np.arange(1.0, m + 1)[None, :], axis=1)
    # `rankdata`, which is slower, is needed for equal values only.
    equal = (np.diff(np.take_along_axis(values, order, axis=1), axis=1) == 0).any(axis=1)
    ranks[equal] = rankdata(values[equal], axis=1)
    return ndtri((ranks - 3 / 8) / (m + 1 / 4))


def pareto_khat(series: Float[np.ndarray, "c n p"]) -> Float[np.ndarray, " p"]:
    """Return the larger Pareto k̂ of the two tails of each series; −∞ for a tail of one value or
    fewer than 25 draws."""
    from arviz_stats.base import array_stats

    size = series.shape[0] * series.shape[1]
    tail = tail_draws(size)
    khat = np.full(series.shape[-1], -np.inf)
    if tail < 5:
        return khat
    ordered = np.sort(series.reshape(size, -1), axis=0)
    for side, varies in (
        ("left", ordered[0] < ordered[tail - 1]),
        ("right", ordered[-tail] < ordered[-1]),
    ):
        for j in np.flatnonzero(varies):
            with np.errstate(invalid="ignore", divide="ignore"):  # of the few values of an event
                of_side = array_stats.pareto_khat(
                    series[..., j], chain_axis=0, draw_axis=1, r_eff=1.0, tail=side
                )
            khat[j] = np.fmax(khat[j], of_side)
    return khat


def participants(
    columns: Float[np.ndarray, "n p"], counts: Float[np.ndarray, " n"] | None = None
) -> Float[np.ndarray, " p"]:
    """Return (Σf²)²/Σf⁴ of each centred column: how many draws make up its variance, a third of
    them for a Gaussian.

    counts : (n,) copies of each row. A constant column counts as a Gaussian one.
    """
    total = len(columns) if counts is None else counts.sum()
    mean = columns.mean(axis=0) if counts is None else counts @ columns / total
    size, squares, fourths = np.zeros((3, columns.shape[1]))
    for rows in in_blocks(*columns.shape):
        centred = columns[rows] - mean
        if counts is not None:
            # Rows without copies are no draws: their size must not set the scale.
            centred *= (counts[rows] > 0)[:, None]
        size = np.maximum(size, np.abs(centred).max(axis=0))
    for rows in in_blocks(*columns.shape):
        weight = np.ones(rows.stop - rows.start) if counts is None else counts[rows]
        # In units of the largest: fourth powers of large or small numbers leave the range of
        # doubles.
        unit = ((columns[rows] - mean) / np.where(size > 0, size, 1.0)) ** 2
        squares, fourths = squares + weight @ unit, fourths + weight @ unit**2
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(size > 0, squares**2 / fourths, total / 3)


def kernel_density(
    series: Float[np.ndarray, " n"], at: Float[np.ndarray, " t"], factor: float
) -> tuple[Float[np.ndarray, " t"], float]:
    """Return ArviZ's kernel estimate of a density with its width times a factor, and that width."""
    from arviz_stats.base import array_stats

    grid, density, width = array_stats.kde(series, bw_fct=factor)
    return np.interp(at, grid, density), float(width)
