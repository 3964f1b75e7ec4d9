"""Quantiles by inverting a controlled distribution function."""

from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

from mcmcpost.control.estimate import Estimate, estimate_distinct, rescaled, spread
from mcmcpost.control.method import AbstractControlVariate
from mcmcpost.control.problem import Options, Sample
from mcmcpost.core.errors import TRUSTED, Status
from mcmcpost.core.mcse import Weights, pareto_khat
from mcmcpost.scores import effective_size

RULE_OF_THREE = 3.0
"""Over n draws, an upper bound of 95 % for the probability of an event that none of them saw."""

TAIL = 20.0
"""Effective draws of a tail that is taken for a Pareto tail: which of them lie close together is chance."""

INNER = np.log(4.0)
"""Log ratio of the levels of the two quantiles that it goes through."""

EXPONENTIAL = 1e-6
"""Least k̂, which stands for zero."""

STEPS = np.linspace(-4.0, 4.0, 65)
"""Normal deviates at which the distribution of the level of an order statistic is looked at."""


def estimate_quantiles(
    sample: Sample, probabilities: Float[np.ndarray, " a"], method: AbstractControlVariate, options: Options
) -> Estimate:
    """Estimate quantiles of each integrand, one result per (integrand, probability).

    The empirical distribution function F̂, moved by the control variate's correction at the quantile itself, is
    inverted: q solves F̂(q) = π − (F_cv(q₀) − F̂(q₀)) with q₀ the quantile of the previous pass, in two passes.

    The error of a plain quantile is the root mean square distance from those at the levels where it may stand, which
    are distributed as those of an order statistic of S independent draws, S the effective sample size of F̂: a jump
    that two errors of F̂ reach counts, and so does what lies beyond the draws (`_QuantileFunction`). That of a
    controlled one is smaller by as much as F_cv has a smaller mcse than F̂, since the few draws between its own levels
    say little about the density, and at least that of its own levels. Indicators are rough, so gains are modest.

    A quantile with fewer than three effective draws beyond it is ``unseen``. That of an event that was not seen is in
    doubt, with an error of one, where its probability may be as large as the quantile's tail.

    Parameters
    ----------
    probabilities : in (0, 1). options : of which `standardize` and `fallback` are not used.
    """
    options = options._replace(standardize=None, fallback=True)
    options.check(sample.trace)
    distinct, place = sample.without_repeats()
    if distinct is not sample:
        found = estimate_quantiles(distinct, probabilities, method, options)
        first = (place[:, None] * len(probabilities) + np.arange(len(probabilities))).reshape(-1)
        return spread(found, quantile_labels(sample.names, probabilities), first)
    values = sample.scaled
    p, a = values.shape[-1], len(probabilities)
    varying = np.repeat(sample.varying, a)
    flat = np.repeat(values.reshape(-1, p), a, axis=1)
    levels = np.tile(probabilities, p)
    labels = quantile_labels(sample.names, probabilities)
    finite = np.isfinite(flat).all(axis=0)
    safe = np.where(finite, flat, 0.0)
    safe[:, ~varying] = np.median(safe[:, ~varying], axis=0)
    order = np.argsort(safe, axis=0, kind="stable")
    ordered, weights = np.take_along_axis(safe, order, axis=0), sample.trace.weights
    places = None if weights is None else _places(weights.values.reshape(-1)[order])
    unknown = varying | np.repeat(sample.events, a)
    invert = partial(_invert, ordered, places)
    plain = invert(levels)
    quantile = plain
    for _ in range(2):
        below = np.where(finite, safe <= quantile, np.nan).reshape(*values.shape[:2], -1)
        indicators = Sample.of(sample.trace, labels, below, unknown, sample.states)
        estimate = estimate_distinct(indicators, method, options)
        quantile = invert(levels - (estimate.mean - estimate.mean_plain))
    nan = np.where(finite, 0.0, np.nan)
    series = safe.reshape(below.shape)
    size = _effective_size(estimate, series)
    known, used = np.isfinite(size), estimate.mcse < estimate.mcse_plain
    size = np.where(known, size, 1.0)
    khat = _tail_shape(series, levels, size) if weights is None else np.full(len(size), EXPONENTIAL)
    function = _QuantileFunction.of(ordered, places, size, khat)
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = np.where(used, (estimate.mcse_plain / estimate.mcse) ** 2, 1.0)
    plain_error = np.where(known, function.error(levels, size), np.nan)
    moved = np.clip(
        levels - (estimate.mean - estimate.mean_plain), np.fmin(levels, 1 / size), np.fmax(levels, 1 - 1 / size)
    )
    own = function.error(moved, size * gain)
    error = np.where(used, np.fmax(plain_error / np.sqrt(gain), own), plain_error)
    constant = ordered[0] == ordered[-1]
    tail = np.where(ordered[0] > 0, levels, 1 - levels)
    never = indicators.unseen & constant & np.isin(ordered[0], (0.0, 1.0))
    doubted = never & (tail < RULE_OF_THREE * estimate.mcse)
    error, plain_error = np.where(doubted, 1.0, error), np.where(doubted, 1.0, plain_error)
    few = ~constant & (size * np.minimum(levels, 1 - levels) < RULE_OF_THREE)
    status = [Status.UNSEEN if rare and s in TRUSTED else s for rare, s in zip(few, estimate.status, strict=True)]
    largest = ~constant & ~few  # every draw is at most the largest value, which many have: no event is unseen
    status = [Status.PLAIN if top and s is Status.UNSEEN else s for top, s in zip(largest, status, strict=True)]
    crossfit = invert(levels - (estimate.mean_crossfit - estimate.mean_plain))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = estimate.covariance / estimate.mcse[:, None] / estimate.mcse[None, :]
    found = estimate._replace(
        mean=quantile + nan,
        mcse=error + nan,
        mean_plain=plain + nan,
        mcse_plain=plain_error + nan,
        mean_crossfit=crossfit + nan,
        gain=np.where(used & (error > 0), (plain_error / np.where(error > 0, error, 1.0)) ** 2, 1.0) + nan,
        status=tuple(status),
        sd=_sd(safe, weights) + nan,
        covariance=correlation * error[:, None] * error[None, :],
        info=estimate.info | {"note": "residuals are those of the indicator of each quantile"},
    )
    return rescaled(found, np.repeat(sample.units, a))._replace(residuals=estimate.residuals)


def quantile_labels(names: tuple[str, ...], probabilities: Float[np.ndarray, " a"]) -> tuple[str, ...]:
    """Return the names of the quantiles of each integrand."""
    levels = level_texts(probabilities)
    return tuple(f"{name} [{level}]" for name in names for level in levels)


def level_texts(probabilities: Float[np.ndarray, " a"]) -> list[str]:
    """Return the probabilities as text: six digits, and all where two would look the same."""
    short = [f"{level:g}" for level in probabilities]
    return short if len(set(short)) == len(short) else [repr(float(level)) for level in probabilities]


def _sd(values: Float[np.ndarray, "m q"], weights: Weights | None) -> Float[np.ndarray, " q"]:
    if weights is None:
        return values.std(axis=0, ddof=1) if len(values) > 1 else np.full(values.shape[1], np.nan)
    return np.sqrt(weights.variance(values.reshape(*weights.values.shape, -1)))


def _effective_size(estimate: Estimate, values: Float[np.ndarray, "c n q"]) -> Float[np.ndarray, " q"]:
    """Return the effective sample size of the indicator of each quantile; where it is constant, that of the values."""
    with np.errstate(invalid="ignore", divide="ignore"):
        found = (estimate.sd / estimate.mcse_plain) ** 2
    same = np.flatnonzero((estimate.sd == 0) & np.isfinite(estimate.mcse_plain))
    if len(same):
        found[same] = effective_size(values[..., same], values[..., same].std(axis=(0, 1)))
    return found.clip(1.0, 100.0 * np.prod(values.shape[:2]))


class _QuantileFunction(NamedTuple):
    """The quantile function of each column; in its tails that of a generalised Pareto distribution.

    ordered, places : (n, q) as for `_invert`.
    start, khat : (q,) level at which the tails begin, and their shape.
    low, high : (q,) how far each of them goes from there to a quarter of that level.
    """

    ordered: Float[np.ndarray, "n q"]
    places: Float[np.ndarray, "n q"] | None
    start: Float[np.ndarray, " q"]
    khat: Float[np.ndarray, " q"]
    low: Float[np.ndarray, " q"]
    high: Float[np.ndarray, " q"]

    @classmethod
    def of(
        cls,
        ordered: Float[np.ndarray, "n q"],
        places: Float[np.ndarray, "n q"] | None,
        size: Float[np.ndarray, " q"],
        khat: Float[np.ndarray, " q"],
    ) -> "_QuantileFunction":
        """Return the function of S effective draws, whose tails are the last `TAIL` of them, or a quarter."""
        invert, start = partial(_invert, ordered, places), np.minimum(TAIL / size, 0.25)
        inner = start * np.exp(-INNER)
        low, high = invert(inner) - invert(start), invert(1 - inner) - invert(1 - start)
        return cls(ordered, places, start, khat, low, high)

    def __call__(self, levels: Float[np.ndarray, " q"]) -> Float[np.ndarray, " q"]:
        found = _invert(self.ordered, self.places, np.clip(levels, self.start, 1 - self.start))
        for level, last in ((levels, self.low), (1 - levels, self.high)):
            beyond = np.log(self.start / np.clip(level, np.finfo(float).tiny, self.start))
            with np.errstate(over="ignore"):
                found = found + last * np.expm1(self.khat * beyond) / np.expm1(self.khat * INNER)
        return found

    def error(self, levels: Float[np.ndarray, " q"], size: Float[np.ndarray, " q"]) -> Float[np.ndarray, " q"]:
        """Return √E(Q(U) − Q(π))² for the level U of an order statistic, Beta(Sπ + 1, S(1−π) + 1) for S draws.

        About Q(π) in place of the mean of Q(U), otherwise the estimator of Maritz and Jarrett (1978,
        doi:10.1080/01621459.1978.10480027), as ``scipy.stats.mstats.mjci``, which knows independent draws only.
        """
        inside, middle = np.clip(levels, 0.0, 1.0), self(levels)
        chances = np.exp(-0.5 * STEPS**2)
        square = np.zeros(len(levels))
        for step, chance in zip(STEPS, chances / chances.sum(), strict=True):
            level = special.betaincinv(size * inside + 1, size * (1 - inside) + 1, special.ndtr(step))
            square += chance * (self(level) - middle) ** 2
        return np.sqrt(square)


def _tail_shape(
    values: Float[np.ndarray, "c n q"], levels: Float[np.ndarray, " q"], size: Float[np.ndarray, " q"]
) -> Float[np.ndarray, " q"]:
    """Return the Pareto k̂ of the columns whose quantile lies in a tail, and about zero, its least value, elsewhere."""
    found = np.full(len(levels), EXPONENTIAL)
    near = np.flatnonzero(size * np.minimum(levels, 1 - levels) < TAIL)
    found[near] = pareto_khat(values[..., near]).clip(EXPONENTIAL)
    return found


def _places(weights: Float[np.ndarray, "n q"]) -> Float[np.ndarray, "n q"]:
    """Return where ordered draws of these weights are from zero, the first, to one: the middle of each weight."""
    middle = np.cumsum(weights, axis=0) - 0.5 * weights
    return (middle - middle[0]) / (middle[-1] - middle[0])


def _invert(
    ordered: Float[np.ndarray, "n q"], places: Float[np.ndarray, "n q"] | None, levels: Float[np.ndarray, " q"]
) -> Float[np.ndarray, " q"]:
    """Return the order statistics' quantiles at `levels`, one level per column, linearly interpolated.

    A NaN level belongs to a column that is reported as NaN.

    Parameters
    ----------
    places : where the order statistics are from zero to one; None for even steps.
    """
    if places is not None:
        found = [np.interp(*column) for column in zip(np.nan_to_num(levels), places.T, ordered.T, strict=True)]
        return np.array(found)
    position = np.clip(np.nan_to_num(levels), 0.0, 1.0) * (len(ordered) - 1)
    low = np.floor(position).astype(int)
    high = np.minimum(low + 1, len(ordered) - 1)
    column = np.arange(ordered.shape[1])
    return ordered[low, column] + (position - low) * (ordered[high, column] - ordered[low, column])
