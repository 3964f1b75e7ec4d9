"""The error of a controlled mean: the error that residuals show, the part that they do not, and inflation factors."""

import numpy as np
from jaxtyping import Float, Int

from mcmcpost._core.large_arrays import in_blocks
from mcmcpost.control.method import ControlFit
from mcmcpost.control.problem import Problem


def mean_doubt(
    problem: Problem,
    mean: Float[np.ndarray, " p"],
    control: Float[np.ndarray, "m p"],
    model_variance: Float[np.ndarray, " p"],
) -> Float[np.ndarray, " p"]:
    """Return √((β̂ − cross-fitted mean)² + model variance).

    Stein's equation f − Lv = β has a solution v on the region that the draws visit for *every* β: only the tails
    determine β. A flexible fit can therefore have small held-out residuals around a wrong constant. Two numbers show
    it: the difference between the fits with and without the folds, and the variance under the kernel's own model, which
    is large where 1ᵀA⁻¹1 is small.
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
    """Return n·`total_error`² as if draws were independent. Methods are compared by it."""
    total = problem.counts.sum()
    variance = residual_variance(problem, fit.control)
    inflation = np.empty_like(variance)
    for some in in_blocks(len(variance), len(problem.counts)):
        inflation[some] = tail_inflation((problem.values[:, some] - fit.control[:, some])[problem.inverse])
    return total * total_error(np.sqrt(variance / total), fit, inflation) ** 2


def tail_inflation(residual: Float[np.ndarray, "n p"]) -> Float[np.ndarray, " p"]:
    """Return 1 + 10/P + 50/P², by which the variance of each column's mean is enlarged for heavy tails.

    P = (Σr²)²/Σr⁴ is the effective number of draws that make up the variance; it is n/3 for a Gaussian residual. A
    flexible fit of a smooth integrand leaves a residual that grows fast beyond the draws. A few draws then make up the
    variance, and the tail without draws is missing from the Monte Carlo error: errors of 10–50 times the reported one
    were measured. The constants were set on ``benchmarks/control/calibration.py``.
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

    The coefficients are estimated from as many independent draws as the effective sample size of the integrand.
    Neighbouring folds are correlated, so that cross-fitting shows the error of the coefficients only in part. The
    constant was set on AR(1) chains with an effective sample size of 50 (``benchmarks/control/calibration.py``).
    """
    return 1.0 + 10.0 * np.minimum(num_features / np.maximum(ess, 1.0), 1.0)
