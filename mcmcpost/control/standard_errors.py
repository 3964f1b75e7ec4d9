"""The error of a controlled mean, and whether its control variate is believed.

The error is how far the mean moves when some of the draws are left out, and what that cannot show.
What is reported of an integrand depends on its fit and on its plain mean.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Array, Bool, Float

from mcmcpost.control.folds import Subsets
from mcmcpost.control.method import ROUNDING, FoldFit, PlainMean, Refits, mean_of_residuals
from mcmcpost.control.moments import Outline
from mcmcpost.control.problem import Options, Problem, Sample, are_few, column_sd, sd_over_draws
from mcmcpost.core.arrays import in_blocks
from mcmcpost.core.errors import Status
from mcmcpost.core.mcse import (
    Weights,
    mcse_mean,
    mean_over_draws,
    pareto_khat,
    participants,
    tail_draws,
    thinned,
    variance_over_draws,
)

SAFETY = 1.1
"""Factor on the variance that refits show, which has about seven degrees of freedom."""

FASTEST = 1.25
"""Largest exponent of the rate of convergence that is believed."""

GROWING = 0.1, 0.3
"""Shares of participating draws below which no rate is believed, and above which `FASTEST` is."""

ON_QUARTERS = 0.25, 1.0
"""Deviations of quarters, in errors of the plain mean of as many independent draws, up to which a
rate is believed in full, and from which none is."""


def total_error(
    problem: Problem, fit: FoldFit, residual_error: Float[np.ndarray, " p"]
) -> Float[np.ndarray, " p"]:
    """Return the standard error of the fit's mean, in the problem's units.

    error² = max(1.1·refit variance, residual error²)·√(m/3P)·(1 + 3/P) + gap² + doubt²

    - `refit_variance`: how far the mean moves without each fold and on halves of them.
    - residual error: of the mean of the held-out residuals. It sees autocorrelation within the
      folds.
    - P: of m draws, those that participate in the integrand or, if they are fewer, in a coordinate;
      m/3 for a Gaussian. The residuals of a flexible fit do not tell how well the tails were
      visited, because it passes through whatever it sees.
    - doubt: what the method itself knows of, such as the distance of two kernel fits
      (`functional.crossfit_both`).
    - gap: the distance of the mean from that of the held-out residuals. Stein's equation f − Lv = β
      has a solution v on the region that the draws visit for *every* β, so that small residuals can
      surround a wrong constant.

    ``benchmarks.control.errors`` measures how well that holds.

    Parameters
    ----------
    residual_error : (p,) in the problem's units, as the result is.
    """
    # The mean of the held-out residuals, which must agree with the fit's own constant.
    crossfit = (
        problem.counts @ problem.values - problem.counts @ fit.control
    ) / problem.counts.sum()
    return combined_error(
        problem.outline, fit.mean, fit.refits, crossfit, residual_error, fit.doubt
    )


def combined_error(
    outline: Outline,
    mean: Float[np.ndarray, " p"],
    refits: Refits,
    crossfit: Float[np.ndarray, " p"],
    residual_error: Float[np.ndarray, " p"],
    doubt: Float[np.ndarray, " p"] | float = 0.0,
) -> Float[np.ndarray, " p"]:
    """Return `total_error` from the mean, the refits, and the mean and the error of the held-out
    residuals."""
    # `fmax`: where no refit was made its NaN gives way to the residual error.
    variance = np.fmax(SAFETY * refit_variance(outline, mean, refits), residual_error**2)
    inflation = tail_inflation(outline.participants, outline.total)
    return np.sqrt(variance * inflation + (mean - crossfit) ** 2 + doubt**2)


def refit_variance(
    outline: Outline, mean: Float[np.ndarray, " p"], refits: Refits
) -> Float[np.ndarray, " p"]:
    """Return the variance of a fit's mean that its refits show; NaN where there are none.

    Where the variance of an optimal estimator falls with the number of draws as n^(−2a), its mean
    square deviation on a part ρ of the draws is ρ^(−2a) − 1 times that variance. Squared deviations
    are divided by that factor; the larger one is taken of that without one fold and of the average
    over halves and quarters. Means, and regressions on fixed features, have a = ½: these are then
    the jackknife and balanced half samples. Kernels converge faster. Their quarters deviate, in
    squares, 4^a + 1 times as much as their halves, which gives a, between ½ and 1¼. It is kept
    closer to ½ the fewer draws participate: on integrands that grow, halves and quarters differ by
    chance. So it is where fits on quarters are hardly better than a plain mean: they do not
    converge yet, as between two modes that chains with few effective draws seldom cross, and no
    rate follows from how wrong they are.

    Where draws are few (`are_few`) halves and quarters say nothing: only single folds are left out,
    at the rate ½.
    """
    share, size = outline.participants / outline.total, outline.sizes / outline.total
    few = are_few(outline.total, outline.num_coordinates)
    halves, quarters = (kept @ size for kept in Subsets.of(len(size)))
    others = size.sum() - size
    deviation = partial(_mean_deviation, mean)

    low, high = GROWING
    slow = np.full(len(mean), 0.5)
    if few:
        return deviation(refits.without_fold, others, slow)
    with np.errstate(invalid="ignore", divide="ignore"):
        # At a = ½ the factors are 3 on quarters and 1 on halves: times 3 it is the ratio of
        # deviations, which is 4^a + 1; at least 2 inside the logarithm keeps a at ½ or above.
        of_quarters = 3 * deviation(refits.quarters, quarters, slow)
        rate = 0.5 * np.log2(
            np.maximum(of_quarters / deviation(refits.halves, halves, slow) - 1, 2.0)
        )
        # Values have unit variance, so that a plain mean of independent draws has the variance
        # 1/total.
        least, most = ON_QUARTERS
        converged = np.clip(
            (most - np.sqrt(outline.total * of_quarters)) / (most - least), 0.0, 1.0
        )
    # The rate may be believed more, the more of the draws take part in the variance.
    fastest = 0.5 + (FASTEST - 0.5) * np.clip((share - low) / (high - low), 0.0, 1.0) * converged
    rate = np.where(np.isfinite(rate), np.minimum(rate, fastest), 0.5)
    on_halves, on_quarters = (
        deviation(refits.halves, halves, rate),
        deviation(refits.quarters, quarters, rate),
    )
    # Halves and quarters share draws with each other: their mean, not their sum.
    on_parts = np.where(np.isfinite(on_quarters), (on_halves + on_quarters) / 2, on_halves)
    return np.fmax(deviation(refits.without_fold, others, rate), on_parts)


def _mean_deviation(
    mean: Float[np.ndarray, " p"],
    means: Float[Array | np.ndarray, "s p"],
    shares: Float[np.ndarray, " s"],
    rate: Float[np.ndarray, " p"],
) -> Float[np.ndarray, " p"]:
    """Return the mean over refits of their squared deviations from `mean`, each divided by
    ρ^(−2a) − 1: by how much a fit on a share ρ of the draws deviates, over the variance of the
    whole one (mathematics, section 2, Errors)."""
    squares = (means - mean) ** 2 / (shares[:, None] ** (-2 * rate) - 1)
    # Fits that were not made are NaN, and out of the mean.
    known = np.isfinite(squares)
    return np.where(known, squares, 0.0).sum(axis=0) / np.where(
        known.any(axis=0), known.sum(axis=0), np.nan
    )


def judged_variance(problem: Problem, fit: FoldFit) -> Float[np.ndarray, " p"]:
    """Return n·`total_error`² as if draws were independent. Methods are compared by it."""
    total = problem.counts.sum()
    return (
        total
        * total_error(problem, fit, np.sqrt(residual_variance(problem, fit.control) / total)) ** 2
    )


def plain_variance(problem: Problem) -> Float[np.ndarray, " p"]:
    """Return `judged_variance` of the plain means, in which means over parts of the folds see
    autocorrelation."""
    plain = PlainMean().crossfit(problem)
    return judged_variance(
        problem, plain._replace(refits=mean_of_residuals(problem, plain.control)[1])
    )


SUSPECT = 0.1
"""Share of participating draws below which the tail is looked at: where k̂ is too large there are
fewer."""


def heavy_tailed(values: Float[np.ndarray, "c n p"]) -> Bool[np.ndarray, " p"]:
    """Return which integrands have too heavy a tail for the error of their mean to be known from
    these draws.

    Their Pareto k̂ is above ½, where the variance is infinite, by more than a standard error: (1 +
    ½)/√M for M draws of a tail (Smith 1987, doi:10.1214/aos/1176350499).
    """
    values = thinned(values)
    # Of thinned draws k̂ is less certain, as its standard error in the bound says.
    size = values.shape[0] * values.shape[1]
    heavy = participants(values.reshape(size, -1)) < SUSPECT * size
    # k̂ costs a fit of each tail: it is asked of suspects alone.
    heavy[heavy] = pareto_khat(values[..., heavy]) > 0.5 + 1.5 / np.sqrt(max(tail_draws(size), 1))
    return heavy


PER_PARTICIPANT = 3.0
"""A variance that P draws make up is enlarged by 1 + 3/P: it is known from so few alone.

Of plain standard deviations at 60 to 145 effective draws the mean z² was 1.3 to 2.0 without it, and
is 1.0 to 1.2 (five targets, 400 replications each, by hand).
"""


def tail_inflation(participants: Float[np.ndarray, " p"], total: float) -> Float[np.ndarray, " p"]:
    """Return √(m/3P)·(1 + 3/P), at least one, by which the variance of a mean of m draws is
    enlarged for heavy tails.

    Where a few draws make up the variance, that of the tail without draws is missing from the Monte
    Carlo error. A Gaussian, with P = m/3, is enlarged by 1 + 9/m.
    """
    return np.sqrt(np.maximum(total / (3.0 * participants), 1.0)) * (
        1.0 + PER_PARTICIPANT / participants
    )


def residual_variance(
    problem: Problem, control: Float[np.ndarray, "m p"]
) -> Float[np.ndarray, " p"]:
    """Return the variance of values − control over draws, within the problem's units."""
    counts, total, squares = problem.counts, problem.counts.sum(), np.zeros(control.shape[1])
    mean = (counts @ problem.values - counts @ control) / total
    # Block by block, so that no array of residuals of all states is made.
    for rows in in_blocks(*control.shape):
        squares += counts[rows] @ (problem.values[rows] - control[rows] - mean) ** 2
    return squares / total


DISAGREEMENT = 2.9e-7
"""One-sided probability at which the controlled and the plain mean contradict each other: five
standard errors."""

DOUBT = 1.35e-3
"""One-sided probability from which their distance begins to count as an error: three standard
errors."""

CONTRADICTING = 100.0, 25.0
"""Effective draws from which the plain mean of an integrand may contradict a controlled one: of
any, and of one whose tail is no heavier than a Gaussian's (`LIGHT`).

With fewer, the draws may have missed a tail: on 100 samples of 40 normal draws four exact means of
x⁶ were contradicted by the plain one, which was up to 38 of its own standard errors too small (by
hand). An event has no tail: beside 54 effective draws a kernel gave it the probability 1.07 ±
0.004, on a density with a kink (by hand).
"""

LIGHT = 0.8
"""Participating draws, in units of the third that participate of a Gaussian, from which there is no
tail to be missed. The sample of a Gaussian has a little less than a third by chance."""


class Columns(NamedTuple):
    """What is reported of some integrands: fields of `Estimate` with one entry an integrand.

    sd : (k,) posterior standard deviation.
    used : (k,) whether the control variate is; otherwise the other fields are those of the plain
        mean.
    """

    mean: Float[np.ndarray, " k"]
    mcse: Float[np.ndarray, " k"]
    sd: Float[np.ndarray, " k"]
    gain: Float[np.ndarray, " k"]
    variance_ratio: Float[np.ndarray, " k"]
    mean_crossfit: Float[np.ndarray, " k"]
    status: tuple[Status, ...]
    method: tuple[str, ...]
    used: Bool[np.ndarray, " k"]


RULE_OF_THREE = 3.0
"""Effective draws of an event below which they say little of its probability.

Over n draws 3/n is an upper bound of 95 % for the probability of an event that none of them saw.
"""


def plain_means(sample: Sample, sizes: Float[np.ndarray, " p"] | None = None) -> Columns:
    """Return plain means, scaled; a constant is its median and has no error, and what is ``unseen``
    has 1/(ESS + 2).

    An indicator that holds at ESS independent draws fails with probability 1/(ESS + 2) ± 1/(ESS +
    2), if nothing was known of it before (Laplace's rule of succession). All is NaN for an
    integrand that is not finite, and the error is NaN where there are too few states.

    sizes : where the integrands are events, the effective sample sizes of the quantities that they
        are of. The error is then that of a probability with two more draws of either kind (Agresti
        and Coull 1998, *The American Statistician* 52): where few draws are of one kind, the usual
        error is the smaller the fewer they are by chance. Three draws in a row that saw an event
        look like three independent ones. Where fewer than three effective draws are of one kind,
        they and one more are the quantity's.
    """
    values, finite, varying, weights = (
        sample.scaled,
        sample.finite,
        sample.varying,
        sample.trace.weights,
    )
    chains, draws, p = values.shape
    # Zeros in place of what is not finite: no warnings on the way, and NaN again at the end.
    safe = values if finite.all() else np.where(finite, values, 0.0)
    if weights is not None:
        sd = sd_over_draws(safe, weights)
    else:
        sd = column_sd(safe.reshape(-1, p), ddof=1) if chains * draws > 1 else np.full(p, np.nan)
    nan = np.where(finite, 0.0, np.nan)
    mean = mean_over_draws(safe, weights)
    constant = np.flatnonzero(~varying)
    # The mean of equal numbers is rounded, their median is the number.
    for block in in_blocks(len(constant), chains * draws):
        mean[constant[block]] = np.median(safe[..., constant[block]], axis=(0, 1))
    unvarying = np.where(sample.unseen, 1 / (sample.ess + 2), 0.0)
    error = mcse_mean(safe, weights)
    if sizes is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            # p(1 − p)/mcse²: effective draws of the indicator itself.
            effective, tail, one = (
                mean * (1 - mean) / error**2,
                np.minimum(mean, 1 - mean),
                1 / (sizes + 2),
            )
            # Two more draws of either kind (Agresti and Coull), at the indicator's effective size.
            more = (effective * mean + 2) / (effective + 4)
            error = np.where(effective > 0, np.sqrt(more * (1 - more) / effective), error)
            error = np.where(
                tail < RULE_OF_THREE / sizes, np.maximum(error, np.sqrt((tail + one) * one)), error
            )
    return Columns(
        mean=mean + nan,
        mcse=np.where(varying, error, unvarying) + (np.nan if sample.too_few else nan),
        sd=np.where(varying, sd, 0.0) + nan,
        gain=1 + nan,
        variance_ratio=1 + nan,
        mean_crossfit=mean + nan,
        status=tuple(_plain_status(sample)),
        method=(PlainMean().label,) * p,
        used=np.zeros(p, bool),
    )


def _plain_status(sample: Sample) -> Iterator[Status]:
    for finite, varying, unseen in zip(sample.finite, sample.varying, sample.unseen, strict=True):
        if not finite:
            yield Status.UNDEFINED
        elif sample.too_few:
            yield Status.TOO_FEW_DRAWS
        else:
            yield Status.PLAIN if varying else Status.UNSEEN if unseen else Status.CONSTANT


class Residuals(NamedTuple):
    """What draws show of some integrands less their cross-fitted control variates.

    mean, variance : (k,) over draws. error : (k,) of the mean, from the draws alone. of_values :
        (k,) the variance of the integrands themselves.
    """

    mean: Float[np.ndarray, " k"]
    variance: Float[np.ndarray, " k"]
    error: Float[np.ndarray, " k"]
    of_values: Float[np.ndarray, " k"]

    @classmethod
    def of(
        cls,
        residual: Float[np.ndarray, "c n k"],
        values: Float[np.ndarray, "c n k"],
        weights: Weights | None,
    ) -> "Residuals":
        """Return those of the residuals, and of the values, at every draw."""
        with np.errstate(invalid="ignore", divide="ignore"):
            mean, error = mean_over_draws(residual, weights), mcse_mean(residual, weights)
            return cls(
                mean,
                variance_over_draws(residual, weights),
                error,
                variance_over_draws(values, weights),
            )


def reported_columns(
    mean: Float[np.ndarray, " k"],
    mcse: Float[np.ndarray, " k"],
    seen: Residuals,
    plain: Columns,
    status: Sequence[Status],
    method: Sequence[str],
    outline: Outline,
    options: Options,
) -> Columns:
    """Return what is reported of some integrands, given their controlled and their plain means.

    A controlled mean that contradicts the plain one is returned where the caller overrode the score
    gate.

    Parameters
    ----------
    mean, mcse : of the fits, with `total_error`. status, method : k of them, of the fits.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        size = np.abs(plain.mean) + plain.sd
        ess = (plain.sd / plain.mcse) ** 2
        # Both: residuals of a fit through every draw are zero, and its mean may still be in doubt.
        exact = np.isfinite(seen.error) & (
            np.maximum(np.sqrt(seen.variance), mcse) <= ROUNDING * size
        )
        # an ESS above the number of draws is often chance
        independent = plain.sd / np.sqrt(outline.total)
        # The plain mean's error as if its tail had been visited as rarely as it may.
        slack = np.fmax(plain.mcse, independent) * np.sqrt(
            tail_inflation(outline.participants, outline.total)
        )
        doubted, limit = (
            scipy.stats.t.isf(chance, np.maximum(ess - 1, 1)) * np.hypot(slack, mcse)
            for chance in (DOUBT, DISAGREEMENT)
        )
        # A plain mean of few effective draws is no witness against a controlled one, unless no tail
        # can be missing.
        of_any, of_light = CONTRADICTING
        witness = ess >= np.where(
            3 * outline.participants >= LIGHT * outline.total, of_light, of_any
        )
        distance = np.where(options.bad_scores | ~witness, 0.0, np.abs(mean - plain.mean))
        believed = ~(distance > limit)
        # From three errors on the distance begins to count, and at five it counts whole.
        doubt = distance * np.clip((distance - doubted) / (limit - doubted), 0.0, 1.0)
        mcse = np.where(exact | ~believed, mcse, np.hypot(mcse, doubt))
        # Without a gain the plain mean is reported, which needs no assumption.
        usable = (
            np.isfinite(mcse) & np.isfinite(mean) & ((mcse < plain.mcse) | (not options.fallback))
        )
        # Exact to rounding is not exact: the sum of the draws itself has that error.
        reported = np.where(exact, np.maximum(mcse, np.finfo(float).eps * size), mcse)
        gain = (plain.mcse / reported) ** 2
        ratio = seen.of_values / seen.variance
    fitted = np.array([verdict not in (Status.PLAIN, Status.TOO_FEW_DRAWS) for verdict in status])
    finished = np.array([verdict is not Status.NOT_CONVERGED for verdict in status])
    used = fitted & usable & believed
    reached = np.array(status, dtype=object)
    # Verified scores only: by themselves wrong ones can leave no residual either.
    reached[used & exact & finished] = Status.EXACT if options.verified else Status.ON_TRUST
    reached[fitted & ~usable] = Status.PLAIN
    reached[fitted & ~usable & ~np.isfinite(plain.mcse)] = Status.TOO_FEW_DRAWS
    reached[fitted & usable & ~believed] = Status.BAD_SCORES
    return Columns(
        mean=np.where(used, mean, plain.mean),
        mcse=np.where(used, reported, plain.mcse),
        sd=plain.sd,
        gain=np.where(used, gain, 1.0),
        variance_ratio=np.where(used, ratio, 1.0),
        mean_crossfit=np.where(used, seen.mean, plain.mean),
        status=tuple(reached),
        method=tuple(np.where(used, np.array(method, dtype=object), PlainMean().label)),
        used=used,
    )
