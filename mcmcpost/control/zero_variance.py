"""Zero-variance (polynomial) control variates."""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float

from mcmcpost.control.folds import Subsets
from mcmcpost.control.least_squares import (
    HIGHEST_DEGREE,
    Lasso,
    LeastSquares,
    PolynomialFit,
    Ridge,
    exponents_of_degree,
    fit_by_blocks,
    has_large_design,
    lasso_crossfit,
    polynomial_basis,
    regress,
    ridge_strengths,
)
from mcmcpost.control.method import ROUNDING, AbstractControlVariate, ControlFit, Refits, no_control
from mcmcpost.control.problem import Problem
from mcmcpost.control.standard_errors import residual_variance
from mcmcpost.core.arguments import check_count, check_kind
from mcmcpost.core.errors import InputError, Status
from mcmcpost.stein import num_polynomial_features

DRAWS_PER_FEATURE = 3.0
"""Training states per feature below which a fit without a penalty is made only if it is asked for."""

MIN_TRAIN = 10
"""Distinct training states below which nothing is tuned or regressed."""

MIN_GIVEN = 3
"""Distinct training states that are needed where kernel and nugget are given."""

GAP_DEGREE = 4
"""Degree from which the error includes the distance of the mean from those of the two degrees below."""


def has_enough(degree: int, num_coordinates: int, num_train: int) -> bool:
    """Return whether there are three training draws for each feature of a degree, the constant included, and ten."""
    size = num_polynomial_features(num_coordinates, degree) + 1
    return num_train >= max(MIN_TRAIN, DRAWS_PER_FEATURE * size)


class ZeroVariance(AbstractControlVariate):
    """Regress the integrand on Stein features Δφ + ∇φ·s of all monomials φ up to a total degree.

    Exact where the integrand minus its mean is such a combination, for example any quadratic of a Gaussian at degree
    two. Mira, Solgi and Imparato (2013, doi:10.1007/s11222-012-9344-6); docs/mathematics.md section 2.

    A polynomial of high degree follows the integrand between the draws and departs from it beyond the outermost one,
    where no residual shows it. From degree four on, the error includes the largest distance of the mean from those of
    the two degrees below. ``benchmarks.control.high_degree`` measures how well that covers the true error.

    Parameters
    ----------
    degree : total degree of the polynomial φ, at least one. There are C(d+degree, degree) − 1 features.
    penalty : `LeastSquares()`, `Ridge(...)` or `Lasso(...)`. By default least squares where there are at least three
        distinct training draws per feature, and otherwise ridge with the status ``regularised``.
    max_interaction : largest number of different coordinates in one monomial; all by default. Where it is smaller than
        the degree, the monomials are those of the trace's own parameters.
    """

    degree: int = 2
    penalty: LeastSquares | Ridge | Lasso | None = None
    max_interaction: int | None = None

    def __check_init__(self) -> None:
        where = "ZeroVariance"
        check_count(where, "degree", self.degree, "Use 1, 2 or 3.", most=HIGHEST_DEGREE)
        check_count(where, "max_interaction", self.max_interaction, "Leave it out for all.", optional=True)
        check_kind(where, "penalty", self.penalty, (LeastSquares, Ridge, Lasso, None), "Such as Ridge().")

    @property
    def label(self) -> str:
        return f"ZeroVariance(degree={self.degree})"

    def crossfit(self, problem: Problem) -> ControlFit:
        if problem.num_train < MIN_TRAIN:
            return no_control(problem, Status.TOO_FEW_DRAWS, self.label)
        if self.max_interaction is not None and self.max_interaction < self.degree:
            # Coordinates that the sample covariance rotates would make the features, and their means, depend on it.
            problem = problem.unrotated()
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
        enough = problem.num_train >= DRAWS_PER_FEATURE * most
        if isinstance(self.penalty, LeastSquares | None) and enough and has_large_design(problem, most):
            fit = fit_by_blocks(problem, exponents)
            return self._finish(problem, fit, LeastSquares(), int(fit.num_features[0]), len(exponents), {})
        basis = polynomial_basis(problem, exponents)
        size = basis.shape[1]
        penalty = self.penalty
        if penalty is None:
            penalty = LeastSquares() if problem.num_train >= DRAWS_PER_FEATURE * size else Ridge()
        info: dict[str, Any] = {}
        match penalty:
            case LeastSquares():
                if problem.num_train <= size:
                    raise InputError(
                        "ZeroVariance",
                        f"more than {size} distinct training draws for {size - 1} features without a penalty",
                        problem.num_train,
                        "Use penalty=Ridge(), a lower degree, or more draws.",
                    )
                fit = _crossfit(problem, basis, np.zeros(problem.values.shape[1]))
            case Ridge():
                strengths = _ridge(problem, basis, penalty)
                fit, info = _crossfit(problem, basis, strengths), {"ridge": strengths.tolist()}
            case Lasso():
                fit = lasso_crossfit(problem, basis, penalty)
                info = {"num_selected": fit.num_features.tolist()}
        return self._finish(problem, fit, penalty, size - 1, len(exponents), info)

    def _finish(
        self,
        problem: Problem,
        fit: PolynomialFit,
        penalty: LeastSquares | Ridge | Lasso,
        num_features: int,
        num_monomials: int,
        info: dict[str, Any],
    ) -> ControlFit:
        p = len(fit.mean)
        status = Status.CONTROLLED if isinstance(penalty, LeastSquares) else Status.REGULARISED
        facts = {
            "degree": self.degree,
            "num_features": num_features,
            "num_dependent_features": num_monomials - num_features,
            "penalty": type(penalty).__name__,
        }
        return ControlFit(
            mean=fit.mean,
            control=fit.control,
            refits=Refits(fit.fold_means, fit.half_means, Refits.none(problem).quarters),
            doubt=np.zeros(p),
            status=(status,) * p,
            method=(self.label,) * p,
            info=facts | info,
        )


def _ridge(problem: Problem, basis: Float[np.ndarray, "m q"], penalty: Ridge) -> np.ndarray:
    features = basis[:, 1:]
    if penalty.strength is None:
        return ridge_strengths(features, problem.values, problem.counts)
    centred = features - problem.counts @ features / problem.counts.sum()
    top = np.linalg.norm(centred * np.sqrt(problem.counts)[:, None], ord=2)
    return np.full(problem.values.shape[1], penalty.strength * top**2)


def _crossfit(problem: Problem, basis: Float[np.ndarray, "m q"], penalties: Float[np.ndarray, " p"]) -> PolynomialFit:
    """Cross-fit with one penalty per integrand; integrands that share a penalty share the factorisation."""
    mean = np.empty(problem.values.shape[1])
    control = np.empty_like(problem.values)
    fold_means = np.empty((problem.folds.num_folds, len(mean)))
    half_means = np.empty((len(Subsets.of(problem.folds.num_folds).halves), len(mean)))
    size = basis.shape[1]
    for level in np.unique(penalties):
        columns = np.flatnonzero(penalties == level)
        part = regress(problem.select(columns), basis, np.where(np.arange(size) == 0, 0.0, level))
        mean[columns], control[:, columns], fold_means[:, columns], half_means[:, columns] = part[:4]
    return PolynomialFit(mean, control, fold_means, half_means, np.full(len(mean), size - 1))
