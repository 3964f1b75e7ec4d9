"""The automatic choice of a method for each integrand."""

from typing import Any

import numpy as np
from jaxtyping import Float

from mcmcpost._core.arguments import check_count, check_flags
from mcmcpost._core.status import Status
from mcmcpost.control.errors import judged_variance, residual_variance
from mcmcpost.control.functional import SemiExact
from mcmcpost.control.least_squares import HIGHEST_DEGREE, LeastSquares, Ridge
from mcmcpost.control.method import (
    ROUNDING,
    AbstractControlVariate,
    ControlFit,
    PlainMean,
    mean_of_residuals,
    merge_fits,
    no_control,
)
from mcmcpost.control.problem import Problem
from mcmcpost.control.screened import Screened
from mcmcpost.control.zero_variance import DRAWS_PER_FEATURE, MIN_TRAIN, ZeroVariance
from mcmcpost.linsolve import Cholesky
from mcmcpost.stein import num_polynomial_features

MAX_FEATURES = 2_000

MAX_DEGREE = {1: 8, 2: 6}

KERNEL_STATES = 1_600
"""States on which the kernel candidate is fitted, so that ten different kernels take seconds."""

MAX_KERNEL_COORDINATES = 60
"""Coordinates up to which a kernel of all of them is tried."""

NEED = 1.05
"""A richer method must lower the cross-fitted residual variance by this factor, or the simpler one is kept."""


class Auto(AbstractControlVariate):
    """Choose per integrand among the plain mean, polynomials and a kernel, by `judged_variance`, refits included.

    The candidates are zero variance of every degree for which there are at least three distinct training draws per
    feature (up to degree three; eight and six in one and two dimensions), the next degree by ridge, and a semi-exact
    control functional on the quadratic (or linear) part, fitted on at most 1,600 states, in up to 60 dimensions. Where
    draws are too few for a quadratic by least squares, or it has more than 2,000 features, `Screened` is tried too. Of
    weighted draws the effective number counts, and `Screened` is not tried. A richer method replaces a simpler one if
    it lowers the error variance by 5 per cent. The choice is made on the folds that give the error, which is
    optimistic; ``benchmarks.control.calibration`` measures what is left of it.

    Parameters
    ----------
    max_degree : of the polynomials.
    kernel : whether to try the semi-exact control functional, and the kernel of `Screened`.
    """

    max_degree: int | None = None
    kernel: bool = True

    def __check_init__(self) -> None:
        check_count("Auto", "max_degree", self.max_degree, "Leave it out.", most=HIGHEST_DEGREE, optional=True)
        check_flags("Auto", kernel=self.kernel)

    @property
    def label(self) -> str:
        return "Auto()"

    def crossfit(self, problem: Problem) -> ControlFit:
        if problem.num_train < MIN_TRAIN:
            return no_control(problem, Status.TOO_FEW_DRAWS, PlainMean().label)
        best = PlainMean().crossfit(problem)
        plain = residual_variance(problem, best.control)
        moved = best._replace(refits=mean_of_residuals(problem, best.control)[1])  # sees autocorrelation, as theirs do
        lowest = judged_variance(problem, moved)
        tried: dict[str, Any] = {}
        for method in self.candidates(problem):
            fit = method.crossfit(problem)
            honest = judged_variance(problem, fit)
            tried[method.label] = {"variance_ratio": _ratio(plain, residual_variance(problem, fit.control)), **fit.info}
            # Below rounding nothing is better: which of two exact fits has the smaller residual is chance.
            better = np.isfinite(honest) & (honest * NEED < lowest) & (lowest > ROUNDING**2)
            best = merge_fits(best, fit, better)
            lowest = np.where(better, honest, lowest)
        return best._replace(info={"tried": tried})

    def candidates(self, problem: Problem) -> list[AbstractControlVariate]:
        """Return the methods worth trying on this problem, from simple to rich."""
        d, train = problem.draws.shape[1], problem.num_train
        top = MAX_DEGREE.get(d, 3) if self.max_degree is None else self.max_degree
        methods: list[AbstractControlVariate] = []
        degree = 0
        while degree < top and _fits(d, degree + 1, train):
            degree += 1
            methods.append(ZeroVariance(degree, LeastSquares()))
        most = min(MAX_FEATURES, 4 * train)
        if degree < top and num_polynomial_features(d, degree + 1) <= (most if degree else MAX_FEATURES):
            methods.append(ZeroVariance(degree + 1, Ridge()))
        if degree < 2 <= top and not problem.weighted:
            methods.append(Screened(kernel=self.kernel))
        few = problem.thin(KERNEL_STATES).folds.num_train
        base = max((b for b in (1, 2) if b <= top and _fits(d, b, few)), default=0)
        if self.kernel and base and d <= MAX_KERNEL_COORDINATES:
            methods.append(SemiExact(base, solver=Cholesky(), max_states=KERNEL_STATES))
        return methods


def _fits(d: int, degree: int, train: int) -> bool:
    features = num_polynomial_features(d, degree)
    return features <= MAX_FEATURES and train >= DRAWS_PER_FEATURE * (features + 1)


def _ratio(plain: Float[np.ndarray, " p"], variance: Float[np.ndarray, " p"]) -> list[float]:
    return [float(a / b) if b > 0 else float("inf") for a, b in zip(plain, variance, strict=True)]
