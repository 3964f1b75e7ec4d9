"""The face of a control variate: a frozen choice that is cross-fitted to a problem."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from mcmcpost._blocks import in_blocks
from mcmcpost._types import Status
from mcmcpost.control._problem import Problem

ROUNDING = 1e-10
"""Below this fraction of the integrand's size a residual, and every other part of the error, is rounding."""


class ControlFit(NamedTuple):
    """A cross-fitted control variate for each of p integrands, in the problem's units.

    mean : (p,) the estimate β̂ of the fit on all draws.
    control : (m, p) the zero-mean g at each state, fitted without that state's fold.
    doubt : (p,) standard error of the estimate that residuals at visited states cannot show, see `mean_doubt`.
    jackknife : (p,) standard error of `mean` by leaving out each fold.
    num_features : (p,) polynomial features fitted, without the constant.
    status : p statuses of the fit itself; whether anything was gained is decided later.
    method : p labels of what was fitted.
    info : JSON-able facts: degrees, kernels, nuggets, costs.
    """

    mean: Float[np.ndarray, " p"]
    control: Float[np.ndarray, "m p"]
    doubt: Float[np.ndarray, " p"]
    jackknife: Float[np.ndarray, " p"]
    num_features: Int[np.ndarray, " p"]
    status: tuple[Status, ...]
    method: tuple[str, ...]
    info: dict[str, Any]

    def select(self, columns: slice) -> "ControlFit":
        """Return the fit restricted to some integrands; `info` stays that of all."""
        return self._replace(
            mean=self.mean[columns],
            control=self.control[:, columns],
            doubt=self.doubt[columns],
            jackknife=self.jackknife[columns],
            num_features=self.num_features[columns],
            status=self.status[columns],
            method=self.method[columns],
        )


class AbstractControlVariate(eqx.Module):
    """A method of `expectation`: its parameters are choices, its data come with the problem."""

    @abc.abstractmethod
    def crossfit(self, problem: Problem) -> ControlFit:
        """Fit on all states and, for the residuals, on the complement of each fold."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """The method as reported, for example ``ZeroVariance(degree=2)``."""


class PlainMean(AbstractControlVariate):
    """The plain posterior mean: no control variate."""

    @property
    def label(self) -> str:
        return "PlainMean()"

    def crossfit(self, problem: Problem) -> ControlFit:
        return no_control(problem, Status.PLAIN, self.label)


def no_control(problem: Problem, status: Status, label: str, info: dict[str, Any] | None = None) -> ControlFit:
    """Return the fit with g = 0."""
    p = problem.values.shape[1]
    mean = problem.counts @ problem.values / problem.counts.sum()
    return ControlFit(
        mean=mean,
        control=np.zeros_like(problem.values),
        doubt=np.zeros(p),
        jackknife=np.zeros(p),
        num_features=np.zeros(p, int),
        status=(status,) * p,
        method=(label,) * p,
        info=info or {},
    )


def mean_doubt(
    problem: Problem,
    mean: Float[np.ndarray, " p"],
    control: Float[np.ndarray, "m p"],
    model_variance: Float[np.ndarray, " p"],
) -> Float[np.ndarray, " p"]:
    """Return √((β̂ − cross-fitted mean)² + model variance).

    On a visited region Stein's equation f − Lv = β has a solution v for *every* β; only the tails pin β down. A
    flexible fit therefore has small held-out residuals around a wrong constant. Two things do see it: the fits with
    and without the folds disagree, and the kernel's own model knows that 1ᵀA⁻¹1 is small.
    """
    crossfit = (problem.counts @ problem.values - problem.counts @ control) / problem.counts.sum()
    return np.sqrt((mean - crossfit) ** 2 + model_variance)


def fold_jackknife(fold_means: Float[np.ndarray, "k p"]) -> Float[np.ndarray, " p"]:
    """Return the delete-a-fold jackknife standard error √((k−1)/k · Σ(β̂₋ₖ − mean)²)."""
    k = len(fold_means)
    return np.sqrt((k - 1) / k * ((fold_means - fold_means.mean(axis=0)) ** 2).sum(axis=0))


def total_error(
    residual_error: Float[np.ndarray, " p"], fit: ControlFit, inflation: Float[np.ndarray, " p"]
) -> Float[np.ndarray, " p"]:
    """Return √(max(residual error, jackknife)²·inflation + doubt²), every term in the problem's units.

    residual_error : (p,) standard error of the mean of the cross-fitted residuals.
    """
    return np.sqrt(np.maximum(residual_error, fit.jackknife) ** 2 * inflation + fit.doubt**2)


def judged_variance(problem: Problem, fit: ControlFit) -> Float[np.ndarray, " p"]:
    """Return n·`total_error`² as if draws were independent: by it methods compare, beside `residual_variance`."""
    total = problem.counts.sum()
    variance = residual_variance(problem, fit.control)
    inflation = np.empty_like(variance)
    for some in in_blocks(len(variance), len(problem.counts)):
        inflation[some] = tail_inflation((problem.values[:, some] - fit.control[:, some])[problem.inverse])
    return total * total_error(np.sqrt(variance / total), fit, inflation) ** 2


def merge_fits(old: ControlFit, new: ControlFit, take: np.ndarray) -> ControlFit:
    """Return `old` with the columns `take` (p,) from `new`; facts of neither."""
    return ControlFit(
        mean=np.where(take, new.mean, old.mean),
        control=np.where(take[None, :], new.control, old.control),
        doubt=np.where(take, new.doubt, old.doubt),
        jackknife=np.where(take, new.jackknife, old.jackknife),
        num_features=np.where(take, new.num_features, old.num_features),
        status=tuple(b if t else a for t, a, b in zip(take, old.status, new.status, strict=True)),
        method=tuple(b if t else a for t, a, b in zip(take, old.method, new.method, strict=True)),
        info={},
    )


def concatenate_fits(fits: tuple[ControlFit, ...]) -> ControlFit:
    """Return the fit of all columns of fits to one problem."""
    return ControlFit(
        mean=np.concatenate([fit.mean for fit in fits]),
        control=np.concatenate([fit.control for fit in fits], axis=1),
        doubt=np.concatenate([fit.doubt for fit in fits]),
        jackknife=np.concatenate([fit.jackknife for fit in fits]),
        num_features=np.concatenate([fit.num_features for fit in fits]),
        status=sum((fit.status for fit in fits), ()),
        method=sum((fit.method for fit in fits), ()),
        info=fits[0].info,
    )


def scatter_folds(problem: Problem, parts: Float[np.ndarray, "k b p"]) -> Float[np.ndarray, "m p"]:
    """Return per-state rows from per-fold rows."""
    out = np.zeros_like(problem.values)
    mask = problem.held_out_mask
    out[problem.held_out[mask]] = np.asarray(parts)[mask]
    return out


def tail_inflation(residual: Float[np.ndarray, "n p"]) -> Float[np.ndarray, " p"]:
    """Return 1 + 10/P + 50/P², by which the variance of each column's mean is enlarged for heavy tails.

    P = (Σr²)²/Σr⁴ counts the draws that carry the variance; it is n/3 for a Gaussian residual. A flexible fit of a
    smooth integrand leaves a residual that explodes just beyond the draws: a handful of draws then carries what was
    seen, and the tail that was not visited is missing from the Monte Carlo error (10–50 reported errors were measured).
    The constants were set on ``benchmarks/calibration.py``.
    """
    centred = residual - residual.mean(axis=0)
    size = np.abs(centred).max(axis=0)
    squares = (centred / np.where(size > 0, size, 1.0)) ** 2
    with np.errstate(invalid="ignore", divide="ignore"):
        participants = np.where(size > 0, squares.sum(axis=0) ** 2 / (squares**2).sum(axis=0), len(residual) / 3)
    return 1.0 + 10.0 / participants + 50.0 / participants**2


def residual_variance(problem: Problem, control: Float[np.ndarray, "m p"]) -> Float[np.ndarray, " p"]:
    """Return the variance of values − control over draws, within the problem's units."""
    weight = problem.counts / problem.counts.sum()
    variance = np.empty(control.shape[1])
    for some in in_blocks(len(variance), len(weight)):
        residual = problem.values[:, some] - control[:, some]
        variance[some] = weight @ (residual - weight @ residual) ** 2
    return variance


def feature_inflation(num_features: Int[np.ndarray, " p"], ess: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
    """Return 1 + 10·min(q/ESS, 1), by which q fitted features enlarge the variance of the mean.

    Coefficients are estimated from as many independent draws as the effective sample size of the integrand; blocks
    next to each other share their errors, which cross-fitting then shows only in part. The constant was set on AR(1)
    chains with an effective sample size of fifty (``benchmarks/calibration.py``).
    """
    return 1.0 + 10.0 * np.minimum(num_features / np.maximum(ess, 1.0), 1.0)
