"""The automatic choice of a method for each integrand."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from mcmcpost.control.functional import ControlFunctional, SemiExact, crossfit_both, is_compared
from mcmcpost.control.kernel_choice import POLISH_STATES, OwnGridREML
from mcmcpost.control.least_squares import HIGHEST_DEGREE, LeastSquares, Ridge
from mcmcpost.control.method import (
    ROUNDING,
    AbstractControlVariate,
    ControlFit,
    PlainMean,
    Work,
    mean_of_residuals,
    merge_fits,
    no_control,
    num_fits,
)
from mcmcpost.control.problem import Problem
from mcmcpost.control.screened import Screened
from mcmcpost.control.standard_errors import judged_variance, residual_variance
from mcmcpost.control.zero_variance import MIN_TRAIN, ZeroVariance, has_enough
from mcmcpost.core.arguments import check_count, check_flags, check_number
from mcmcpost.core.arrays import in_blocks
from mcmcpost.core.errors import Status
from mcmcpost.core.runtime import say_step
from mcmcpost.scores import effective_size
from mcmcpost.solve import Cholesky
from mcmcpost.stein import num_polynomial_features

MAX_FEATURES = 2_000

MAX_DEGREE = {1: 8, 2: 6}

KERNEL_STATES = 1_600
"""States on which the kernel candidate is fitted, so that ten different kernels take seconds."""

SCREENED_STATES = 4_000
"""States on which `Screened` is fitted: at most where a quadratic fits too, and else at least, before it adds fewer
features a round."""

FEW_COORDINATES = 10
"""Coordinates up to which a kernel of all of them is as good as that of the few that matter to an integrand."""

MAX_KERNEL_COORDINATES = 60
"""Coordinates up to which a kernel of all of them is tried."""

MAX_WORK = 1e11
"""Multiplications that one candidate may take for one integrand, by default: seconds of a core."""

SHARED = 10.0
"""How many times as many it may take for what all integrands share."""

SLOW = 5.0
"""Draws of an integrand per effective draw from which the second kernel is not used: it passes through what was seen,
and a tail is visited in few excursions."""

NEED = 1.05
"""A richer method must lower the cross-fitted residual variance by this factor, or the simpler one is kept."""

PART_OF_DISTANCE = 1 / 3
"""The error of the kernel alone is at least this part of the distance of its estimate from the semi-exact one."""


class Auto(AbstractControlVariate):
    """Choose per integrand among the plain mean, polynomials and a kernel, by `judged_variance`, refits included.

    The candidates are

    - zero variance of every degree for which there are at least three distinct training draws per feature (up to degree
      three; eight and six in one and two dimensions), and the next degree by ridge;
    - `Screened`, where draws are too few for a quadratic by least squares, or it has more than 2,000 features;
      elsewhere in more than ten dimensions, for its kernel of the coordinates that matter, on at most 4,000 states;
    - a semi-exact control functional on the quadratic (or linear) part, in up to 60 dimensions, fitted on at most 1,600
      states; of more than 1,000, another on 1,000, of the integrands to which lengthscales of their own are worth much
      (`OwnGridREML`) and whose chains do not mix slowly. Up to 500 states, and in up to three dimensions, also the
      kernel alone: either error sees the other's estimate (`crossfit_both`).

    Of weighted draws the effective number counts, and neither `Screened` nor the second kernel is tried. A richer
    method replaces a simpler one if it lowers the error variance by 5 per cent. The choice is made on the folds that
    give the error, which is optimistic; ``benchmarks.control.calibration`` measures what is left of it.

    Work is bounded before it is done, by counts of multiplications and never by a clock, and so that no choice depends
    on what else is asked for. With m states, k folds, s = 1 + k + 14 fits and q features, one candidate takes

    - least squares: 2mq² + sq³/3 once, and smq for each integrand,
    - ridge: 10mq·min(m, q) once, and mq² + sq³/3 for each,
    - `Screened`: what its least squares take once, and `Screened.work` for each,
    - the kernel, fitted on t ≤ 1,600 states in d coordinates: dt² once, and 3t³ + mtd for each.

    A candidate that would take more than `max_work` for each integrand, or ten times that once, is left out; `Screened`
    is fitted on fewer states, at least 4,000, or adds fewer features a round instead. So the kernel is tried up to 1.1
    million states of 50 parameters. There are at most ten candidates: p integrands take at most 10(10 + p) times
    `max_work`.

    Parameters
    ----------
    max_degree : of the polynomials.
    kernel : whether to try the semi-exact control functional, and the kernel of `Screened`.
    max_work : multiplications of one candidate for one integrand.
    """

    max_degree: int | None = None
    kernel: bool = True
    max_work: float = MAX_WORK

    def __check_init__(self) -> None:
        check_number("Auto", "max_work", self.max_work, "Use 1e11.")
        check_count("Auto", "max_degree", self.max_degree, "Leave it out.", most=HIGHEST_DEGREE, optional=True)
        check_flags("Auto", kernel=self.kernel)

    @property
    def label(self) -> str:
        return "Auto()"

    def crossfit(self, problem: Problem) -> ControlFit:
        if problem.num_train < MIN_TRAIN:
            return no_control(problem, Status.TOO_FEW_DRAWS, PlainMean().label)
        best, p = PlainMean().crossfit(problem), problem.values.shape[1]
        plain = residual_variance(problem, best.control)
        moved = best._replace(refits=mean_of_residuals(problem, best.control)[1])  # sees autocorrelation, as theirs do
        lowest = judged_variance(problem, moved)
        tried: dict[str, Any] = {}
        for method, fit in self._crossfits(problem):
            honest = judged_variance(problem, fit)
            ratio = _ratio(plain, residual_variance(problem, fit.control))
            label = method.label if method.label not in tried else f"{method.label}, {POLISH_STATES} states"
            tried[label] = {"variance_ratio": ratio, "work": work_of(method, problem).total(p), **fit.info}
            # Below rounding nothing is better: which of two exact fits has the smaller residual is chance.
            better = np.isfinite(honest) & (honest * NEED < lowest) & (lowest > ROUNDING**2)
            if isinstance(method, SemiExact) and isinstance(method.tuning, OwnGridREML):
                better[better] = ~_mix_slowly(problem, np.flatnonzero(better))
            best = merge_fits(best, fit, better)
            lowest = np.where(better, honest, lowest)
        return best._replace(info={"tried": tried})

    def _crossfits(self, problem: Problem) -> Iterator[tuple[AbstractControlVariate, ControlFit]]:
        """Yield the candidates and their fits; after a semi-exact one that is compared, the kernel alone."""
        for method in self.candidates(problem):
            say_step(method.label)
            if isinstance(method, SemiExact) and is_compared(problem, method):
                semi, alone = crossfit_both(problem, method)
                apart = PART_OF_DISTANCE * np.abs(semi.mean - alone.mean)
                yield method, semi
                yield ControlFunctional(max_states=method.max_states), alone._replace(doubt=np.fmax(alone.doubt, apart))
            else:
                yield method, method.crossfit(problem)

    def candidates(self, problem: Problem) -> list[AbstractControlVariate]:
        """Return the methods worth trying on this problem, from simple to rich."""
        d, train = problem.draws.shape[1], problem.num_train
        top = MAX_DEGREE.get(d, 3) if self.max_degree is None else self.max_degree
        methods: list[AbstractControlVariate] = []
        degree = 0
        while degree < top and _fits(d, degree + 1, train):
            plainly = ZeroVariance(degree + 1, LeastSquares())
            if not self._allows(plainly, problem):
                break
            methods.append(plainly)
            degree += 1
        most = min(MAX_FEATURES, 4 * train)
        if degree < top and num_polynomial_features(d, degree + 1) <= (most if degree else MAX_FEATURES):
            methods += [method for method in (ZeroVariance(degree + 1, Ridge()),) if self._allows(method, problem)]
        if top >= 2 and not problem.weighted and (degree < 2 or (self.kernel and d > FEW_COORDINATES)):
            screened = self._screened(problem) if degree < 2 else [Screened(max_states=SCREENED_STATES)]
            methods += [method for method in screened if self._allows(method, problem)][:1]
        if self.kernel and d <= MAX_KERNEL_COORDINATES:
            kernels: dict[int, OwnGridREML | None] = {KERNEL_STATES: None}
            if d > 1 and not problem.weighted and problem.folds.num_everyone > POLISH_STATES:
                kernels[POLISH_STATES] = OwnGridREML()
            for states, tuning in kernels.items():
                few = problem.thin(states).folds.num_train
                base = max((b for b in (1, 2) if b <= top and _fits(d, b, few)), default=0)
                wanted = [SemiExact(base, tuning=tuning, solver=Cholesky(), max_states=states)] if base else []
                methods += [method for method in wanted if self._allows(method, problem)]
        return methods

    def _screened(self, problem: Problem) -> Iterator[Screened]:
        """Yield `Screened` on all states, half of them, …, and on the fewest with half the features a round, …"""
        states, kernel = None, self.kernel
        while True:
            added = Screened().num_added(problem.folds.thin(states).num_train)
            yield Screened(per_round=added, kernel=kernel, max_states=states)
            fewer = (states or problem.folds.num_everyone) // 2
            if fewer < SCREENED_STATES:
                break
            states = fewer
        for step in range(1, added.bit_length()):
            yield Screened(per_round=added >> step, kernel=kernel, max_states=states)

    def _allows(self, method: AbstractControlVariate, problem: Problem) -> bool:
        work = work_of(method, problem)
        return work.each <= self.max_work and work.shared <= SHARED * self.max_work


def work_of(method: AbstractControlVariate, problem: Problem) -> Work:
    """Return how many multiplications a candidate takes, to the leading order."""
    m, d = problem.draws.shape
    match method:
        case ZeroVariance():
            q, s = num_polynomial_features(d, method.degree) + 1, num_fits(problem)
            if isinstance(method.penalty, Ridge):
                return Work(shared=10.0 * m * q * min(m, q), each=m * q**2 + s * q**3 / 3)
            return Work(shared=2.0 * m * q**2 + s * q**3 / 3, each=float(s * m * q))
        case Screened():
            return method.work(problem)
        case _:
            assert isinstance(method, ControlFunctional | SemiExact)
            size = float(problem.folds.thin(method.max_states).num_everyone)
            return Work(shared=size**2 * d, each=3 * size**3 + m * size * d)


def _mix_slowly(problem: Problem, columns: Int[np.ndarray, " k"]) -> Bool[np.ndarray, " k"]:
    """Return for which of some integrands an effective draw takes more than `SLOW` draws."""
    rows = problem.inverse.reshape(problem.num_chains, -1)
    size = np.empty(len(columns))
    for some in in_blocks(len(columns), rows.size):
        series = problem.values[rows[:, :, None], columns[some]]
        size[some] = effective_size(series, series.std(axis=(0, 1)))
    return rows.size > SLOW * size


def _fits(d: int, degree: int, train: int) -> bool:
    return num_polynomial_features(d, degree) <= MAX_FEATURES and has_enough(degree, d, train)


def _ratio(plain: Float[np.ndarray, " p"], variance: Float[np.ndarray, " p"]) -> list[float]:
    return [float(a / b) if b > 0 else float("inf") for a, b in zip(plain, variance, strict=True)]
