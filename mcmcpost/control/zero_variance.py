"""Zero-variance (polynomial) control variates."""

import dataclasses
from typing import Any

import numpy as np

from mcmcpost._core.errors import InputError
from mcmcpost._core.status import Status
from mcmcpost.control.errors import fold_jackknife, mean_doubt, residual_variance
from mcmcpost.control.least_squares import (
    Basis,
    Lasso,
    LeastSquares,
    Ridge,
    exponents_of_degree,
    fit_by_blocks,
    fit_linear,
    has_large_design,
    lasso_crossfit,
    polynomial_basis,
    ridge_strengths,
)
from mcmcpost.control.method import ROUNDING, AbstractControlVariate, ControlFit, no_control
from mcmcpost.control.problem import Problem

DRAWS_PER_FEATURE = 3.0
"""Below so many training states per feature a fit without a penalty is not attempted unless asked for."""


MIN_TRAIN = 10
"""Distinct training states below which nothing is tuned or regressed."""


MIN_GIVEN = 3
"""The same where kernel and nugget are given."""


GAP_DEGREE = 4
"""From this degree on, the error includes how far the mean is from those of the two degrees below."""


type _Parts = tuple[np.ndarray, np.ndarray, np.ndarray]  # mean (p,), control (m, p), means without each fold (k, p)


class ZeroVariance(AbstractControlVariate):
    """Regress the integrand on Stein features Δφ + ∇φ·s of all monomials φ up to a total degree.

    Exact where the integrand minus its mean is such a combination, for example any quadratic of a Gaussian at degree
    two. Mira, Solgi and Imparato (2013, doi:10.1007/s11222-012-9344-6); docs/mathematics.md section 2.

    A polynomial of high degree follows the integrand between the draws and leaves it beyond the outermost one, where no
    residual shows it: from degree four on the error includes the largest distance of the mean from those of the two
    degrees below. ``benchmarks.control.high_degree`` has what that covers.

    Parameters
    ----------
    degree : total degree of the polynomial φ, at least one. There are C(d+degree, degree) − 1 features.
    penalty : `LeastSquares()`, `Ridge(...)` or `Lasso(...)`. By default least squares where at least three distinct
        training draws stand against each feature, otherwise ridge, and the status says ``regularised``.
    max_interaction : at most so many different coordinates in one monomial; all by default.
    """

    degree: int = 2
    penalty: LeastSquares | Ridge | Lasso | None = None
    max_interaction: int | None = None

    def __check_init__(self) -> None:
        if not isinstance(self.degree, int) or self.degree < 1:
            raise InputError("ZeroVariance", "`degree` to be a positive integer", self.degree, "Use 1, 2 or 3.")

    @property
    def label(self) -> str:
        return f"ZeroVariance(degree={self.degree})"

    def crossfit(self, problem: Problem) -> ControlFit:
        if problem.folds.num_train < MIN_TRAIN:
            return no_control(problem, Status.TOO_FEW_DRAWS, self.label)
        fit = self._fit(problem)
        if self.degree < GAP_DEGREE:
            return fit
        below = [dataclasses.replace(self, degree=self.degree - step)._fit(problem).mean for step in (1, 2)]
        gap = np.max(np.abs(fit.mean - below), axis=0)
        inexact = residual_variance(problem, fit.control) > ROUNDING**2
        return fit._replace(doubt=np.hypot(fit.doubt, np.where(inexact, gap, 0.0)))

    def _fit(self, problem: Problem) -> ControlFit:
        exponents = exponents_of_degree(problem.draws.shape[1], self.degree, self.max_interaction)
        most = len(exponents) + 1
        enough = problem.folds.num_train >= DRAWS_PER_FEATURE * most
        if isinstance(self.penalty, LeastSquares | None) and enough and has_large_design(problem, most):
            fit = fit_by_blocks(problem, exponents)
            info = self._info(LeastSquares(), fit.num_features, fit.num_dropped)
            return self._finish(problem, fit[:3], Status.CONTROLLED, info)
        basis = polynomial_basis(problem, exponents)
        size = basis.design.shape[1]
        penalty = self.penalty
        if penalty is None:
            penalty = LeastSquares() if problem.folds.num_train >= DRAWS_PER_FEATURE * size else Ridge()
        info = self._info(penalty, size - 1, basis.num_dropped)
        status = Status.REGULARISED
        match penalty:
            case LeastSquares():
                if problem.folds.num_train <= size:
                    raise InputError(
                        "ZeroVariance",
                        f"more than {size} distinct training draws for {size - 1} features without a penalty",
                        problem.folds.num_train,
                        "Use penalty=Ridge(), a lower degree, or more draws.",
                    )
                parts = _crossfit(problem, basis, np.zeros(problem.values.shape[1]))
                status = Status.CONTROLLED
            case Ridge():
                strengths = _ridge(problem, basis, penalty)
                info["ridge"] = strengths.tolist()
                parts = _crossfit(problem, basis, strengths)
            case Lasso():
                parts = lasso_crossfit(problem, basis, penalty, info)
        return self._finish(problem, parts, status, info)

    def _info(self, penalty: LeastSquares | Ridge | Lasso, num_features: int, num_dropped: int) -> dict[str, Any]:
        return {
            "degree": self.degree,
            "num_features": num_features,
            "num_dependent_features": num_dropped,
            "penalty": type(penalty).__name__,
        }

    def _finish(self, problem: Problem, parts: _Parts, status: Status, info: dict[str, Any]) -> ControlFit:
        mean, control, fold_means = parts
        p = problem.values.shape[1]
        doubt = mean_doubt(problem, mean, control, np.zeros(p))
        jackknife = fold_jackknife(fold_means)
        features = np.array(info.get("num_selected", [info["num_features"]] * p))
        return ControlFit(mean, control, doubt, jackknife, features, (status,) * p, (self.label,) * p, info)


def _ridge(problem: Problem, basis: Basis, penalty: Ridge) -> np.ndarray:
    features = basis.design[:, 1:]
    if penalty.strength is None:
        return ridge_strengths(features, problem.values, problem.counts)
    centred = features - problem.counts @ features / problem.counts.sum()
    top = np.linalg.norm(centred * np.sqrt(problem.counts)[:, None], ord=2)
    return np.full(problem.values.shape[1], penalty.strength * top**2)


def _crossfit(problem: Problem, basis: Basis, penalties: np.ndarray) -> _Parts:
    """Cross-fit with one penalty per integrand; integrands that share a penalty share the factorisation."""
    mean = np.empty(problem.values.shape[1])
    control = np.empty_like(problem.values)
    fold_means = np.empty((problem.folds.num_folds, problem.values.shape[1]))
    for level in np.unique(penalties):
        columns = np.flatnonzero(penalties == level)
        part = problem.select(columns)
        weights = np.full(basis.design.shape[1], level)
        weights[0] = 0.0
        fit = fit_linear(basis.design, weights, part.values, part.counts, part.folds)
        mean[columns] = np.asarray(fit.mean)
        control[:, columns] = part.folds.scatter(np.asarray(fit.control), len(control))
        fold_means[:, columns] = np.asarray(fit.fold_means)
    return mean, control, fold_means
