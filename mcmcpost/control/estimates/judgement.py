"""Whether a control variate is believed: what is reported of an integrand, given its fit and its plain mean."""

from typing import NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Bool, Float

from mcmcpost._core.mcse import mcse_mean
from mcmcpost._core.status import Status
from mcmcpost._core.weights import Weights, mean_over_draws, variance_over_draws
from mcmcpost.control.errors import tail_inflation, total_error
from mcmcpost.control.estimates.integrands import Plain
from mcmcpost.control.method import ROUNDING, ControlFit, PlainMean
from mcmcpost.control.problem import Problem

DISAGREEMENT = 2.9e-7
"""One-sided probability at which the controlled and the plain mean contradict each other: five standard errors."""

DOUBT = 1.35e-3
"""One-sided probability from which their distance begins to count as an error: three standard errors."""

CONTRADICTING = 100.0
"""Effective draws of an integrand from which its plain mean may contradict a controlled one.

With fewer, the draws may have missed a tail: on 100 samples of 40 normal draws four exact means of x⁶ were contradicted
by the plain one, which was up to 38 of its own standard errors too small (by hand).
"""


class Columns(NamedTuple):
    """What is reported of some integrands: fields of `Estimate` with one entry an integrand.

    used : (k,) whether the control variate is; otherwise the other fields are those of the plain mean.
    """

    mean: Float[np.ndarray, " k"]
    mcse: Float[np.ndarray, " k"]
    gain: Float[np.ndarray, " k"]
    variance_ratio: Float[np.ndarray, " k"]
    mean_crossfit: Float[np.ndarray, " k"]
    status: tuple[Status, ...]
    method: tuple[str, ...]
    used: Bool[np.ndarray, " k"]


def judge(
    asked: Float[np.ndarray, "c n k"],
    residual: Float[np.ndarray, "c n k"],
    plain: Plain,
    fit: ControlFit,
    problem: Problem,
    *,
    weights: Weights | None,
    fallback: bool,
    believe: bool,
    verified: bool,
) -> Columns:
    """Return what is reported of some integrands, given their values and cross-fitted residuals.

    believe : return a controlled mean that contradicts the plain one, for callers who overrode the score gate.
    verified : as in `estimate_expectations`.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        seen, variance = mcse_mean(residual, weights), variance_over_draws(residual, weights)
        size = np.abs(plain.mean) + plain.sd
        ess = (plain.sd / plain.mcse) ** 2
        mcse = problem.scale * total_error(problem, fit, seen / problem.scale)
        exact = np.isfinite(seen) & (np.maximum(np.sqrt(variance), mcse) <= ROUNDING * size)
        mean = problem.location + problem.scale * fit.mean
        total = problem.counts.sum()
        independent = plain.sd / np.sqrt(total)  # an ESS above the number of draws is often chance
        slack = np.fmax(plain.mcse, independent) * np.sqrt(tail_inflation(problem.participants, total))
        doubted, limit = (
            scipy.stats.t.isf(chance, np.maximum(ess - 1, 1)) * np.hypot(slack, mcse)
            for chance in (DOUBT, DISAGREEMENT)
        )
        apart = np.where(believe | (ess < CONTRADICTING), 0.0, np.abs(mean - plain.mean))
        believed = ~(apart > limit)
        doubt = apart * np.clip((apart - doubted) / (limit - doubted), 0.0, 1.0)
        mcse = np.where(exact | ~believed, mcse, np.hypot(mcse, doubt))
        usable = np.isfinite(mcse) & np.isfinite(fit.mean) & ((mcse < plain.mcse) | (not fallback))
        reported = np.where(exact, np.maximum(mcse, np.finfo(float).eps * size), mcse)
        gain = (plain.mcse / reported) ** 2
        ratio = variance_over_draws(asked, weights) / variance
    fitted = np.array([status not in (Status.PLAIN, Status.TOO_FEW_DRAWS) for status in fit.status])
    finished = np.array([status is not Status.NOT_CONVERGED for status in fit.status])
    used = fitted & usable & believed
    status = np.array(fit.status, dtype=object)
    status[used & exact & finished] = Status.EXACT if verified else Status.ON_TRUST
    status[fitted & ~usable] = Status.PLAIN
    status[fitted & ~usable & ~np.isfinite(plain.mcse)] = Status.TOO_FEW_DRAWS
    status[fitted & usable & ~believed] = Status.BAD_SCORES
    return Columns(
        mean=np.where(used, mean, plain.mean),
        mcse=np.where(used, reported, plain.mcse),
        gain=np.where(used, gain, 1.0),
        variance_ratio=np.where(used, ratio, 1.0),
        mean_crossfit=np.where(used, mean_over_draws(residual, weights), plain.mean),
        status=tuple(status),
        method=tuple(np.where(used, np.array(fit.method, dtype=object), PlainMean().label)),
        used=used,
    )
