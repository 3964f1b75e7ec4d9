"""Quantiles: where a controlled distribution function has a level, and how far that is from the
truth."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.interpolate import PchipInterpolator
from scipy.optimize import isotonic_regression

from mcmcpost.control.estimate import Estimate, rescaled, side_by_side
from mcmcpost.control.method import PlainMean
from mcmcpost.control.order_statistics import (
    EXPONENTIAL,
    ROUNDING,
    QuantileFunction,
    middle_places,
    order_quantiles,
    tail_shape,
)
from mcmcpost.control.standard_errors import RULE_OF_THREE
from mcmcpost.core.errors import TRUSTED, Status
from mcmcpost.core.mcse import Weights
from mcmcpost.scores import effective_size

if TYPE_CHECKING:
    from mcmcpost.control.distribution import Distribution

MOST_PASSES = 6
"""Passes in which a quantile is found: more than two where Newton's method is still further away
than its error."""

SMALL_SHARE = 0.3
"""Part of the error that is left of that distance."""

WRONG = 0.1
"""Relative error of a density from a distribution function at three points."""

JUMPS = 10.0
"""Jumps of a controlled distribution function at a draw beyond which a change of it is one.

A guard, not tuned: quantiles of log gammas, gammas, normals and t5 are the same with it.
"""

WIDEN, MOST_WIDENED = 4.0, 8
"""Factor by which an error grows, and how often at most, until the distribution function is that
far from the level on both sides: up to 65,536 times, beyond which the quantile is the plain one."""

STRAIGHT = 0.1
"""Relative error of a tail's probability up to which the error of its quantile is that of the
probability over p."""

ALIKE = 3.0
"""Factor between a slope and that of the empirical distribution function up to which it is
believed."""

SEPARATION = 1.5
"""Plain standard errors between the levels at which a quantile is looked for."""

MOST_GAIN = 1e8
"""Gain that the levels of an order statistic are computed for: of what is exact they would take a
second a quantile."""


def _bracketed(
    dist: "Distribution",
    plain: Float[np.ndarray, " q"],
    levels: Float[np.ndarray, " q"],
    invert: Callable[[np.ndarray], np.ndarray],
) -> tuple[Float[np.ndarray, " q"], Float[np.ndarray, " q"]]:
    """Return where a controlled distribution function at three points has a level, and its slope
    there.

    Quantities of which nothing is known have their plain quantiles and the slope zero. All are in
    scaled units.
    """
    quantile, slope = plain.copy(), np.zeros(len(levels))
    if dist.marginal(0) is None:  # and then of none
        return quantile, slope
    sizes = dist.effective_sizes()
    sizes = np.repeat(sizes, len(levels) // len(sizes))
    width = SEPARATION * np.sqrt(levels * (1 - levels) / sizes)
    low, high = np.clip(levels - width, 0, 1), np.clip(levels + width, 0, 1)
    points = np.stack([invert(low), plain, invert(high)], axis=1)
    units = dist.sample.units[:, None]
    estimate = dist.below(points.reshape(len(units), -1) * units)
    values, mcse = estimate.mean.reshape(points.shape), estimate.mcse.reshape(points.shape)
    # An end that is known less well than it is apart from the middle, as where hardly a draw is
    # beyond it, would draw the slope of the others anywhere.
    change, methods = np.abs(values - values[:, [1]]), np.reshape(estimate.method, points.shape)
    both = np.hypot(mcse, mcse[:, [1]])
    converged = mcse <= change
    known = converged & _is_known(change, both, methods == methods[:, [1]])
    known[:, 1] = True
    for k, level in enumerate(levels):
        at, function = points[k, known[k]], isotonic_regression(values[k, known[k]]).x
        if len(at) > 1 and (np.diff(at) > 0).all() and (np.diff(function) > 0).all():
            curve = PchipInterpolator(function, at)
            inside = np.clip(level, function[0], function[-1])
            # of a quantile by its level; zero at an end of a flat part
            steepness = float(curve(inside, 1))
            quantile[k], slope[k] = curve(inside), 1 / steepness if steepness > 0 else 0.0
    # A slope that is another than the draws' own is that of points which the regression has drawn
    # together: the error would be nothing where it should be anything.
    with np.errstate(invalid="ignore", divide="ignore"):
        of_draws = (high - low) / (points[:, 2] - points[:, 0])
    slope = np.where((slope > of_draws / ALIKE) & (slope < ALIKE * of_draws), slope, 0.0)
    # Between three points of as many methods that of the draws is all that is known.
    alone = (known.sum(axis=1) == 1) & converged.any(axis=1) & np.isfinite(of_draws)
    return quantile, np.where(alone, of_draws, slope)


def _is_known(
    change: Float[np.ndarray, "*q"], mcse: Float[np.ndarray, "*q"], of_one: Bool[np.ndarray, "*q"]
) -> Bool[np.ndarray, "*q"]:
    """Return where the change of a distribution function between two points is known: by one
    method, which errs alike at both, or far beyond the error of the two."""
    # Of a correlation (LKJ) the function rose from a controlled point to a plain one beside it by
    # twice what the density says, and the 95 % quantile was up to six errors from the truth.
    return of_one | (mcse <= WRONG * np.abs(change))


class _Draws(NamedTuple):
    """The draws of the quantity of each of q quantiles, in scaled units.

    values : (n, q), chains concatenated; zero where `finite` (q,) is false. invert : from levels
        (q,) to quantiles.
    """

    values: Float[np.ndarray, "n q"]
    finite: Bool[np.ndarray, " q"]
    invert: Callable[[np.ndarray], np.ndarray]


class _Root(NamedTuple):
    """Where controlled distribution functions have q levels.

    estimate : of the probabilities at the last points. moved : (q,) from these to the quantiles.
    error : (q,) of the quantiles, by the slope; NaN where it is not known, infinite where the level
        was not found on one side.
    """

    estimate: Estimate
    quantile: Float[np.ndarray, " q"]
    moved: Float[np.ndarray, " q"]
    error: Float[np.ndarray, " q"]


def _search(
    dist: "Distribution",
    draws: _Draws,
    levels: Float[np.ndarray, " q"],
    scale: Float[np.ndarray, " q"],
) -> _Root:
    """Find quantiles from those of the draws; see `quantiles`.

    dist : of quantities that all have marginals, or of which nothing is known. scale : (q,) on
        which densities change."""
    sample, p = dist.sample, len(dist.sample.names)
    each = len(levels) // p
    units = np.repeat(sample.units, each)
    quantile, slope = _bracketed(dist, draws.invert(levels), levels, draws.invert)
    # Draws are centred, and what is small beside their mean has lost digits by that.
    rounding = np.finfo(float).eps * np.abs(draws.values.mean(axis=0))

    def levels_of(quantities: np.ndarray) -> np.ndarray:
        return (quantities[:, None] * each + np.arange(each)).reshape(-1)

    def distribution_function(quantities: np.ndarray, at: np.ndarray) -> Estimate:
        rows = levels_of(quantities)
        below = np.where(draws.finite[rows], draws.values[:, rows] <= at[rows], np.nan)
        below = below.reshape(*sample.values.shape[:2], -1)
        chosen = dist if len(quantities) == p else dist.select(quantities)
        thresholds = (at * units)[rows].reshape(-1, each)
        return chosen.events(below, thresholds, shared=False)[0]

    parts, places = list[Estimate](), list[np.ndarray]()
    first_slope, left = slope.copy(), np.arange(p)
    at, mean, mcse, mean_plain, mcse_plain, remainder, known = np.zeros((7, len(levels)))
    method, done = np.full(len(levels), "", dtype=object), np.zeros(len(levels), bool)
    for turn in range(MOST_PASSES):
        before, last_mean, last_mcse, last_method = at, mean.copy(), mcse.copy(), method.copy()
        # One that is found stays, so that it does not depend on what else is asked for.
        at = np.where(done, at, quantile)
        estimate, rows = distribution_function(left, at), levels_of(left)
        mean[rows], mcse[rows], method[rows] = estimate.mean, estimate.mcse, estimate.method
        mean_plain[rows], mcse_plain[rows] = estimate.mean_plain, estimate.mcse_plain
        if turn > 0:
            # The secant: between two points that are close the function is known better than at
            # three far apart.
            with np.errstate(invalid="ignore", divide="ignore"):
                change = mean - last_mean
                secant = change / (at - before)
                # What is left of an indicator jumps at every draw, and may be most of the change.
                jump = mcse / mcse_plain / len(draws.values)
                ratio = secant / slope
            # A density that falls is believed; one that rises may be that of a map which is known
            # at draws only, and has too small an error.
            falls = (ratio > 0) & (ratio <= 0.5) & (np.abs(change) > JUMPS * jump)
            believed = falls | ((ratio > 0.5) & (ratio < 2))
            believed &= _is_known(change, np.hypot(mcse, last_mcse), method == last_method)
            slope = np.where(believed & ~done, secant, slope)
        newton = (mcse < mcse_plain) & (slope > 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            step = np.where(newton, (levels - mean) / slope, 0.0)
            # A step of Newton's method leaves its square, over the scale on which the density
            # changes, and as much of it as the density is wrong.
            remainder = np.where(newton, step**2 / scale + WRONG * np.abs(step), 0.0)
            known = np.where(newton, mcse / slope + ROUNDING * (np.abs(at) + scale) + rounding, 0.0)
        quantile = np.where(newton, at + step, draws.invert(levels - (mean - mean_plain)))
        done |= ((turn > 0) | newton) & ~(remainder > SMALL_SHARE * known)
        # Quantities of which a level is left are looked at again.
        ended = done.reshape(p, each).all(axis=1)[left] | (turn == MOST_PASSES - 1)
        parts.append(estimate.select(levels_of(np.flatnonzero(ended))))
        places.append(levels_of(left[ended]))
        left = left[~ended]
        if not len(left):
            break
    estimate = side_by_side(parts, sample.trace.weights)
    estimate = estimate.select(np.argsort(np.concatenate(places)))
    error = np.where(newton, np.hypot(known, remainder), np.nan)
    # Where the density changes by more than a factor of two on the way, as about zero that of the
    # cube root of a normal, no slope is that of the quantile. What is certain is where the
    # distribution function is further from the level than its error, on either side.
    changed = (slope < first_slope / 2) | (slope > 2 * first_slope)
    doubted = newton & (changed | (remainder > SMALL_SHARE * known))
    of_doubt = np.flatnonzero(doubted.reshape(p, each).any(axis=1))
    rows = levels_of(of_doubt)
    for side in (-1, 1) if len(of_doubt) else ():
        reach, short = np.where(doubted, error, 0.0), doubted.copy()
        for _ in range(MOST_WIDENED):
            there = distribution_function(of_doubt, quantile + side * reach)
            short[rows] &= ~(side * (there.mean - levels[rows]) >= mcse[rows] / 2)
            if not short.any():
                break
            reach = np.where(short, WIDEN * reach, reach)
        error = np.where(doubted, np.fmax(error, np.where(short, np.inf, reach)), error)
    return _Root(estimate, quantile, np.abs(quantile - at), error)


def quantiles(dist: "Distribution", probabilities: Float[np.ndarray, " a"]) -> Estimate:
    """Return quantiles of the quantities of the sample, one result per (quantity, probability).

    The empirical distribution function F̂, moved by the control variate's correction at the
    quantile itself, is inverted: q solves F̂(q) = π − (F_cv(q₀) − F̂(q₀)) with q₀ the quantile of
    the previous pass. Where F_cv, by one method, rises at three points about the quantile it is
    q₀ − (F_cv(q₀) − π)/p, by Newton's method and then by secants, with p the slope of F_cv, since
    order statistics are 1/(n p) apart, which may be more than the error; and that is mcse/p, with
    what the method leaves, and at least as far as F_cv is within its error of π where p changes on
    the way. A quantile whose controlled error is not the smaller one is the plain one.

    The error of a plain quantile is the root mean square distance from those at the levels where it
    may stand, which are distributed as those of an order statistic of S independent draws, S the
    effective sample size of F̂: a jump that two errors of F̂ reach counts, and so does what lies
    beyond the draws (`QuantileFunction`). That of a controlled one is smaller by as much as F_cv
    has a smaller mcse than F̂, since the few draws between its own levels say little about the
    density, and at least that of its own levels.

    A quantile with fewer than three effective draws beyond it is ``unseen``. That of an event that
    was not seen is in doubt, with an error of one, where its probability may be as large as the
    quantile's tail.
    """
    sample = dist.sample
    values = sample.scaled
    p, a = values.shape[-1], len(probabilities)
    varying = np.repeat(sample.varying, a)
    flat = np.repeat(values.reshape(-1, p), a, axis=1)
    levels = np.tile(probabilities, p)
    finite = np.isfinite(flat).all(axis=0)
    safe = np.where(finite, flat, 0.0)
    safe[:, ~varying] = np.median(safe[:, ~varying], axis=0)
    # Sorted once for all levels and passes.
    order = np.argsort(safe, axis=0, kind="stable")
    ordered, weights = np.take_along_axis(safe, order, axis=0), sample.trace.weights
    places = None if weights is None else middle_places(weights.values.reshape(-1)[order])
    invert = partial(order_quantiles, ordered, places)
    plain = invert(levels)
    # Of exp(θ) a few draws make the standard deviation, and near its lower quantiles the density
    # changes within less.
    nearby = 2 * (
        invert(np.minimum(1.5 * levels, (1 + levels) / 2))
        - invert(np.maximum(0.5 * levels, 1.5 * levels - 0.5))
    )
    scale = np.where(nearby > 0, np.fmin(nearby, sd_of(safe, weights)), sd_of(safe, weights))
    known = _search(dist, _Draws(safe, finite, invert), levels, np.where(varying, scale, 1.0))
    estimate, quantile = known.estimate, known.quantile
    used = estimate.mcse < estimate.mcse_plain
    nan = np.where(finite, 0.0, np.nan)
    series = safe.reshape(*values.shape[:2], -1)
    size = _effective_size(estimate, series)
    counted = np.isfinite(size)
    size = np.where(counted, size, 1.0)
    khat = tail_shape(series, levels, size) if weights is None else np.full(len(size), EXPONENTIAL)
    function = QuantileFunction.of(ordered, places, size, khat)
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = np.where(used, (estimate.mcse_plain / estimate.mcse) ** 2, 1.0)
    plain_error = np.where(counted, function.error(levels, size), np.nan)
    moved = np.clip(
        levels - (estimate.mean - estimate.mean_plain),
        np.fmin(levels, 1 / size),
        np.fmax(levels, 1 - 1 / size),
    )
    moved_error = function.error(moved, size * np.minimum(gain, MOST_GAIN))
    error = np.where(used, np.fmax(plain_error / np.sqrt(gain), moved_error), plain_error)
    # Where the density is not known, what is left is how far the last pass moved, and the distance
    # of two draws: a gain of 1e28 says nothing about what lies between them.
    step = 1 / len(ordered)
    spacing = (invert(np.fmin(moved + step, 1.0)) - invert(np.fmax(moved - step, 0.0))) / 2
    error = np.where(
        used & np.isnan(known.error), np.hypot(error, known.moved + spacing / np.sqrt(12)), error
    )
    # In a tail that is known to a tenth at best the distribution function is no straight line
    # within its error.
    straight = estimate.mcse < STRAIGHT * np.minimum(levels, 1 - levels)
    by_density = np.where(straight, known.error, np.fmax(known.error, error))
    error = np.where(np.isnan(known.error), error, by_density)
    worse = used & ~(error < plain_error)
    used, quantile, error = (
        used & ~worse,
        np.where(worse, plain, quantile),
        np.where(worse, plain_error, error),
    )
    constant = ordered[0] == ordered[-1]
    tail = np.where(ordered[0] > 0, levels, 1 - levels)
    never = np.repeat(sample.events, a) & constant & np.isin(ordered[0], (0.0, 1.0))
    doubted = never & (tail < RULE_OF_THREE * estimate.mcse)
    error, plain_error = np.where(doubted, 1.0, error), np.where(doubted, 1.0, plain_error)
    few = ~constant & (size * np.minimum(levels, 1 - levels) < RULE_OF_THREE)
    status = [
        Status.UNSEEN if rare and s in TRUSTED else s
        for rare, s in zip(few, estimate.status, strict=True)
    ]
    known_by_fit = (*TRUSTED, Status.EXACT, Status.ON_TRUST)
    status = [
        Status.PLAIN if is_worse and s in known_by_fit else s
        for is_worse, s in zip(worse, status, strict=True)
    ]
    method = [
        PlainMean().label if is_worse else label
        for is_worse, label in zip(worse, estimate.method, strict=True)
    ]
    # every draw is at most the largest value, which many have: no event is unseen
    largest = ~constant & ~few
    status = [
        Status.PLAIN if top and s is Status.UNSEEN else s
        for top, s in zip(largest, status, strict=True)
    ]
    crossfit = invert(levels - (estimate.mean_crossfit - estimate.mean_plain))
    quantile_estimate = estimate._replace(
        mean=quantile + nan,
        mcse=error + nan,
        mean_plain=plain + nan,
        mcse_plain=plain_error + nan,
        mean_crossfit=crossfit + nan,
        gain=np.where(used & (error > 0), (plain_error / np.where(error > 0, error, 1.0)) ** 2, 1.0)
        + nan,
        status=tuple(status),
        method=tuple(method),
        sd=sd_of(safe, weights) + nan,
        info=estimate.info | {"note": "residuals are those of the indicator of each quantile"},
    )
    return rescaled(quantile_estimate, np.repeat(sample.units, a))._replace(
        residuals=estimate.residuals
    )


def sd_of(values: Float[np.ndarray, "m q"], weights: Weights | None) -> Float[np.ndarray, " q"]:
    if weights is None:
        return values.std(axis=0, ddof=1) if len(values) > 1 else np.full(values.shape[1], np.nan)
    return np.sqrt(weights.variance(values.reshape(*weights.values.shape, -1)))


def _effective_size(
    estimate: Estimate, values: Float[np.ndarray, "c n q"]
) -> Float[np.ndarray, " q"]:
    """Return the effective sample size of the indicator of each quantile; where it is constant,
    that of the values."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ess = (estimate.sd / estimate.mcse_plain) ** 2
    same = np.flatnonzero((estimate.sd == 0) & np.isfinite(estimate.mcse_plain))
    if len(same):
        ess[same] = effective_size(values[..., same], values[..., same].std(axis=(0, 1)))
    return ess.clip(1.0, 100.0 * np.prod(values.shape[:2]))
