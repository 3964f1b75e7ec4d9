"""Quantiles by inverting a controlled distribution function."""

from functools import partial

import numpy as np
from jaxtyping import Bool, Float

from mcmcpost._core.precision import beyond_rounding, in_units, units_of
from mcmcpost._core.weights import Weights
from mcmcpost.control.estimates.estimate import (
    Estimate,
    assemble,
    fit_integrands,
    rescaled,
    spread,
)
from mcmcpost.control.estimates.integrands import first_of_same, read_integrands
from mcmcpost.control.method import AbstractControlVariate
from mcmcpost.control.problem import check_cross_fitting
from mcmcpost.trace import StoredTrace, Trace, distinct_states

RULE_OF_THREE = 3.0
"""Over n draws, an upper bound of 95 % for the probability of an event that none of them saw."""


def estimate_quantiles(
    trace: Trace | StoredTrace,
    names: tuple[str, ...],
    values: Float[np.ndarray, "c n p"],
    probabilities: Float[np.ndarray, " a"],
    method: AbstractControlVariate,
    *,
    num_folds: int | None = None,
    bad_scores: bool = False,
    verified: bool = True,
    events: Bool[np.ndarray, " p"] | None = None,
) -> Estimate:
    """Estimate quantiles of each integrand, one result per (integrand, probability).

    The empirical distribution function F̂, moved by the control variate's correction at the quantile itself, is
    inverted: q solves F̂(q) = π − (F_cv(q₀) − F̂(q₀)) with q₀ the quantile of the previous pass, in two passes. The
    error of a plain quantile is half the distance between the empirical quantiles at π ± the mcse of F̂, as in ArviZ;
    that of a controlled one is smaller by as much as F_cv has a smaller mcse than F̂, since the few draws between its
    own two quantiles say little about the density. Indicators are rough, so gains are modest. The quantile of an event
    that was not seen is in doubt, with an error of one, where its probability may be as large as the quantile's tail.

    Parameters
    ----------
    values : (c, n, p). probabilities : in (0, 1). Other arguments are those of `estimate_expectations`.
    """
    check_cross_fitting(trace, num_folds, None)
    distinct, place = np.unique(first_of_same(values), return_inverse=True)
    if len(distinct) < len(names):
        found = estimate_quantiles(
            trace,
            tuple(names[j] for j in distinct),
            values[..., distinct],
            probabilities,
            method,
            num_folds=num_folds,
            bad_scores=bad_scores,
            verified=verified,
            events=None if events is None else events[distinct],
        )
        first = (place[:, None] * len(probabilities) + np.arange(len(probabilities))).reshape(-1)
        return spread(found, quantile_labels(names, probabilities), first)
    units = units_of(values)
    values = in_units(values, units)
    p, a = values.shape[-1], len(probabilities)
    varying = np.repeat(beyond_rounding(values), a)
    flat = np.repeat(values.reshape(-1, p), a, axis=1)
    levels = np.tile(probabilities, p)
    labels = quantile_labels(names, probabilities)
    finite = np.isfinite(flat).all(axis=0)
    safe = np.where(finite, flat, 0.0)
    safe[:, ~varying] = np.median(safe[:, ~varying], axis=0)
    order = np.argsort(safe, axis=0, kind="stable")
    ordered, weights = np.take_along_axis(safe, order, axis=0), trace.weights
    places = None if weights is None else _places(weights.values.reshape(-1)[order])
    unknown = varying | (True if events is None else np.repeat(events, a))
    invert = partial(_invert, ordered, places)
    plain = invert(levels)
    quantile, states = plain, distinct_states(trace)
    for _ in range(2):
        below = np.where(finite, safe <= quantile, np.nan).reshape(*values.shape[:2], -1)
        indicators = read_integrands(labels, below, states, unknown, weights)
        fitted = fit_integrands(trace, indicators, method, num_folds=num_folds)
        estimate = assemble(indicators, fitted, bad_scores=bad_scores, verified=verified)
        quantile = invert(levels - (estimate.mean - estimate.mean_plain))
    nan = np.where(finite, 0.0, np.nan)
    plain_half = 0.5 * (invert(levels + estimate.mcse_plain) - invert(levels - estimate.mcse_plain))
    with np.errstate(invalid="ignore", divide="ignore"):
        half = plain_half * np.where(estimate.mcse_plain > 0, estimate.mcse / estimate.mcse_plain, 1.0)
    tail = np.where(ordered[0] > 0, levels, 1 - levels)
    never = indicators.unseen & (ordered[0] == ordered[-1]) & np.isin(ordered[0], (0.0, 1.0))
    doubted = never & (tail < RULE_OF_THREE * estimate.mcse)
    half, plain_half = np.where(doubted, 1.0, half), np.where(doubted, 1.0, plain_half)
    crossfit = invert(levels - (estimate.mean_crossfit - estimate.mean_plain))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = estimate.covariance / estimate.mcse[:, None] / estimate.mcse[None, :]
    found = estimate._replace(
        mean=quantile + nan,
        mcse=half + nan,
        mean_plain=plain + nan,
        mcse_plain=plain_half + nan,
        mean_crossfit=crossfit + nan,
        gain=np.where(doubted, 1.0, estimate.gain) + nan,
        sd=_sd(safe, weights) + nan,
        covariance=correlation * half[:, None] * half[None, :],
        info=estimate.info | {"note": "residuals are those of the indicator of each quantile"},
    )
    return rescaled(found, np.repeat(units, a))._replace(residuals=estimate.residuals)


def quantile_labels(names: tuple[str, ...], probabilities: Float[np.ndarray, " a"]) -> tuple[str, ...]:
    """Return the names of the quantiles of each integrand."""
    return tuple(f"{name} [{level:g}]" for name in names for level in probabilities)


def _sd(values: Float[np.ndarray, "m q"], weights: Weights | None) -> Float[np.ndarray, " q"]:
    if weights is None:
        return values.std(axis=0, ddof=1)
    return np.sqrt(weights.variance(values.reshape(*weights.values.shape, -1)))


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
