"""The automatic choice of a method for each integrand."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from mcmcpost.control.features.families import (
    NEED,
    AbstractFamily,
    polynomials,
    vector_fields,
)
from mcmcpost.control.features.quantity import FunctionsOf
from mcmcpost.control.features.structure import (
    Blocks,
    as_structure,
    check_structure,
    room_of,
    structure_families,
)
from mcmcpost.control.functions import crossfit_of_coordinates, families_of_functions
from mcmcpost.control.kernels.choice import POLISH_STATES, GridREML, OwnGridREML
from mcmcpost.control.kernels.functional import (
    ControlFunctional,
    SemiExact,
    crossfit_both,
    crossfit_kernel,
    disagreement,
    is_compared,
)
from mcmcpost.control.linear import (
    MAX_FEATURES,
    LinearFits,
    LinearSystem,
    affordable,
    choose_families,
    linear_system,
    nested_fits,
)
from mcmcpost.control.method import (
    ROUNDING,
    AbstractControlVariate,
    FoldFit,
    PlainMean,
    no_control,
    replace_columns,
)
from mcmcpost.control.problem import Problem
from mcmcpost.control.standard_errors import judged_variance, plain_variance
from mcmcpost.control.zero_variance import (
    HIGHEST_DEGREE,
    MIN_TRAIN,
    Ridge,
    Structured,
    VectorFields,
    ZeroVariance,
    has_enough,
)
from mcmcpost.core.arguments import check_count, check_flags, check_number
from mcmcpost.core.arrays import in_blocks
from mcmcpost.core.errors import Status
from mcmcpost.core.runtime import say_step
from mcmcpost.scores import effective_size
from mcmcpost.solve import Cholesky
from mcmcpost.stein import num_polynomial_features

MAX_DEGREE = {1: 8, 2: 6}

FIELD_DEGREE = 2
"""Largest degree of the polynomials whose fields serve functions of a quantity."""

MAX_VECTOR_DEGREE = 2
"""Largest degree of vector fields."""

MAX_FIELDS = 600
"""Vector fields of a degree up to which they take part: in up to 24 dimensions those of degree one,
in nine those of degree two."""

KERNEL_STATES = 1_600
"""States on which the kernel candidate is fitted, so that ten different kernels take seconds."""

TRIAL_STATES = 300
"""Evenly spaced states on which a kernel is tried first: it takes a twentieth of the fit on
`KERNEL_STATES`."""

PROMISING = 1.3
"""A kernel must lower the error variance on the trial's states by this factor, or it is not fitted
to more."""

WITHIN = 1.0
"""How many times the error variance of the linear fit on all draws that of the trial's kernel may
be, where a trace has named dimensions. The kernel improves with the draws, too: on the posterior of
an ODE more than sixfold, so that the limit would lose gains there. Of three hierarchical models
with 1,000 draws twice as much gave true gains of means that were up to a fifth larger, for half as
long again."""

ALWAYS_COORDINATES = 3
"""Coordinates up to which a kernel is fitted without a trial: there it gains where polynomials do
not."""

CHEAP_STATES = 500
"""States up to which kernels are fitted with lengthscales for each integrand by itself."""

MAX_KERNEL_COORDINATES = 60
"""Coordinates up to which a kernel of all of them is tried."""

MAX_BESIDE_STRUCTURE = 20
"""The same of traces with named dimensions: beyond, sums over them leave a kernel nothing. In a
nested model of 55 parameters it chose none and took 16 of 19 CPU seconds; of a Gaussian process of
54 it took 8 of 10, for equal gains."""

MAX_WORK = 1e11
"""Multiplications that one candidate may take for one integrand, by default: seconds of a core."""

SHARED = 10.0
"""How many times as many it may take for what all integrands share."""

POLISHED = 1e-3
"""Error variance, relative to the integrand's, above which lengthscales of their own are sought: of
smooth functions, which are below it, they cost five times the fit and changed gains by less than
replications differ (three log-gamma coordinates, 1,000 draws); of indicators they doubled them."""

TOO_FAR = 1e-2
"""The same above which they are not sought in more than `ALWAYS_COORDINATES`. With 1,000 draws of
six real models they took a third to a half of the time, and there left gains as they were; below,
they gain up to tenfold."""

SLOW = 5.0
"""Draws of an integrand per effective draw from which the second kernel is not used: it passes
through what was seen, and a tail is visited in few excursions."""

SHARE_OF_DISTANCE = 1 / 3
"""The error of the kernel alone is at least this part of the distance of its estimate from the
semi-exact one."""


class Auto(AbstractControlVariate):
    """Choose per integrand among the plain mean, linear families and a kernel, by
    `judged_variance`, refits included.

    Cheap candidates come first, and dearer ones are fitted to those integrands alone that they can
    still serve.

    1. Linear families, from small to large, of all integrands at once: the scores; sums over named
       dimensions, where the trace has variables with more than six entries; polynomials of degree
       two and three (up to eight and six in one and two dimensions); beside these all vector
       fields of degree one and two, 600 at most, where they lower the error variance fourfold or
       more (`VectorFields`). A family takes part with at least 1.5 training draws for each control,
       and with a ridge where there are fewer than ten; the scores always.
    2. Of integrands that are functions of one coordinate, as their values tell, events among them:
       splines and steps along the field that controls that coordinate's mean
       (`mcmcpost.control.functions`), of polynomials of degree two at most, or of vector fields
       beside these.
    3. A semi-exact control functional on the quadratic (or linear) part, in up to 60 dimensions, 20
       of named ones, of the integrands whose linear residual is not rounding and, in more than
       three dimensions, to which a kernel fitted on 300 evenly spaced states promises more than the
       linear fit there, of named dimensions also at most the error variance of that on all draws.
       It is fitted on at most 1,600 states; of more than 500, another on at most 1,000, of the
       integrands to which lengthscales of their own are worth much (`OwnGridREML`), where little is
       left in more than three dimensions, and whose chains do not mix slowly. Up to 500 states, and
       in up to three dimensions, also the kernel alone: either error sees the other's estimate
       (`crossfit_both`), and both see that of the linear fit.

    Of weighted draws the effective number counts, and the second kernel is not tried. A richer
    method replaces a simpler one if it lowers the error variance by 5 per cent. The choice is made
    on the folds that give the error, which is optimistic; ``benchmarks.control.calibration``
    measures what is left of it.

    Work is bounded before it is done, by counts of multiplications and never by a clock. With m
    states, k folds and q controls, linear families take 4mq² + (k + 14)q³/3 once and mq for each
    integrand; a kernel on t states in d coordinates takes dt² once, and 3t³ + mtd for each. A
    candidate that would take more than `max_work` for each integrand, or ten times that once, is
    left out.

    Parameters
    ----------
    max_degree : of the polynomials.
    kernel : whether to try the semi-exact control functional.
    max_work : multiplications of one candidate for one integrand.
    structure : blocks of coordinates, as for `Structured`; ``{}`` for none.
    """

    max_degree: int | None = None
    kernel: bool = True
    max_work: float = MAX_WORK
    structure: Any = eqx.field(converter=as_structure, static=True, default=None)

    def __check_init__(self) -> None:
        check_number("Auto", "max_work", self.max_work, "Use 1e11.")
        check_count(
            "Auto",
            "max_degree",
            self.max_degree,
            "Leave it out.",
            most=HIGHEST_DEGREE,
            optional=True,
        )
        check_flags("Auto", kernel=self.kernel)
        check_structure("Auto", self.structure)

    @property
    def label(self) -> str:
        return "Auto()"

    @property
    def from_sums(self) -> bool:
        return True

    def crossfit(self, problem: Problem) -> FoldFit:
        if problem.num_train < MIN_TRAIN:
            return no_control(problem, Status.TOO_FEW_DRAWS, PlainMean().label)
        best, lowest, tried = PlainMean().crossfit(problem), plain_variance(problem), []
        linear_problem = self.coordinates(problem)
        families, labels = self.families(linear_problem, linear_problem.num_train)
        if families:
            say_step(labels[-1])
            system = linear_system(linear_problem, families[:1])
            first = choose_families(
                linear_problem, linear_problem.outline, system, labels[:1], lowest
            )
            best = first.at_states()
            # Nothing more is tried where the scores alone leave rounding, as for what is linear
            # under a normal density.
            left = np.flatnonzero(judged_variance(problem, best) > ROUNDING**2)
            if len(left) and len(families) > 1:
                remaining = linear_problem.select(left)
                system = linear_system(remaining, families)
                richer = choose_families(remaining, remaining.outline, system, labels, lowest[left])
                best = replace_columns(
                    best, richer.at_states(), left, np.arange(len(left))
                )._replace(info=richer.info)
            controlled = np.array([status is not Status.PLAIN for status in best.status])
            lowest = np.where(controlled, judged_variance(problem, best), lowest)
            tried.append({"method": labels[-1], "integrands": problem.values.shape[1]} | best.info)
            # Functions of one coordinate next: they use the linear fits' fields, at little cost.
            best, lowest = crossfit_of_coordinates(
                linear_problem, best, lowest, partial(_serving, families, labels, system)
            )
        linear = best
        for method, columns in self._dearer(problem, lowest, any_family=bool(families)):
            say_step(method.label)
            subset, known = problem.select(columns), linear.select(columns)
            for candidate, fit in _crossfits(subset, method):
                slow = np.zeros(len(columns))
                if isinstance(method, SemiExact) and isinstance(method.tuning, OwnGridREML):
                    # An excursion to a tail looks to a kernel like many draws: by how much it moves
                    # an estimate is doubted, the more so the more slowly integrands mix.
                    slow = _slowness(subset)
                    moved = slow * np.abs(fit.mean - best.mean[columns])
                    fit = fit._replace(doubt=np.hypot(fit.doubt, moved))
                honest = _judged(subset, fit)
                if isinstance(method, SemiExact):
                    sharp = honest * NEED < lowest[columns]
                    fit = fit._replace(doubt=_beside(subset, fit, known))
                    honest = _judged(subset, fit)
                    # Of two fits that contradict each other neither is as good as it says.
                    lost = np.flatnonzero(sharp & ~(honest * NEED < lowest[columns]))
                    shared = SHARE_OF_DISTANCE * np.abs(fit.mean - known.mean)[lost]
                    doubt = best.doubt.copy()
                    doubt[columns[lost]] = np.hypot(doubt[columns[lost]], shared)
                    best = best._replace(doubt=doubt)
                    lowest[columns[lost]] += problem.counts.sum() * shared**2
                # Chosen by the error that would be reported; a richer method must be five per cent
                # better.
                better = (honest * NEED < lowest[columns]) & (lowest[columns] > ROUNDING**2)
                better &= slow < 1
                best = replace_columns(best, fit, columns[better], np.flatnonzero(better))
                lowest[columns] = np.where(better, honest, lowest[columns])
                tried.append({"method": candidate.label, "integrands": len(columns)} | fit.info)
        return best._replace(info={"tried": tried})

    def coordinates(self, problem: Problem) -> Problem:
        # Those of the trace where there is structure in them; polynomials of a total degree are the
        # same in any.
        return problem.unrotated() if Blocks.of(problem.names, self.structure).blocks else problem

    def fields(self, problem: Problem) -> list[LinearFits]:
        linear_problem = self.coordinates(problem)
        families, labels = (
            self.families(linear_problem, linear_problem.num_train)
            if linear_problem.num_train >= MIN_TRAIN
            else ([], [])
        )
        if not families:
            return []
        return _serving(families, labels, None, linear_problem)

    def functions(self, problem: Problem, names: Sequence[str]) -> list[tuple[FunctionsOf, str]]:
        """Return families for integrands that are functions of a coordinate; see
        `families_of_functions`.

        The linear fits of these draws tell for which they are worth having.
        """
        linear_problem = self.coordinates(problem)
        families, labels = (
            self.families(linear_problem, linear_problem.num_train)
            if linear_problem.num_train >= MIN_TRAIN
            else ([], [])
        )
        if not families:
            return []
        plain, system = plain_variance(problem), linear_system(linear_problem, families)
        fit = choose_families(
            linear_problem, linear_problem.outline, system, labels, plain
        ).at_states()
        controlled = np.array([status is not Status.PLAIN for status in fit.status])
        lowest = np.where(controlled, judged_variance(linear_problem, fit), plain)
        fits = partial(_serving, families, labels, system)
        return families_of_functions(linear_problem.unrotated(), names, lowest, fits)

    def families(self, problem: Problem, num_train: int) -> tuple[list[AbstractFamily], list[str]]:
        d = problem.draws.shape[1]
        top = MAX_DEGREE.get(d, 3) if self.max_degree is None else self.max_degree
        named = [(polynomials(d, 1)[0], ZeroVariance(1).label)]
        if top >= 2:
            room = room_of(num_train, d)
            named += [
                (family, Structured().label)
                for family in structure_families(problem, room, self.structure)
            ]
        for degree in range(2, top + 1):
            if num_polynomial_features(d, degree) <= MAX_FEATURES:
                named.append((polynomials(d, degree)[-1], ZeroVariance(degree).label))
            if degree == min(top, MAX_VECTOR_DEGREE + 1):
                # After their gradients; before polynomials of a degree that is put in doubt.
                degrees = [
                    k for k in range(1, degree) if d * num_polynomial_features(d, k) <= MAX_FIELDS
                ]
                fields = vector_fields(d, len(degrees))  # none in one dimension
                named += zip(fields, [VectorFields(k).label for k in degrees], strict=False)
        return affordable(named, num_train, SHARED * self.max_work)

    def _dearer(
        self, problem: Problem, lowest: Float[np.ndarray, " p"], *, any_family: bool
    ) -> Iterator[tuple[AbstractControlVariate, Int[np.ndarray, " k"]]]:
        """Yield what costs more than the linear families, and the integrands that it is worth
        trying for."""
        m, d = problem.draws.shape
        if not any_family and m * d * min(m, d) <= SHARED * self.max_work:
            # Of fewer draws than parameters the scores have no solution without a penalty.
            yield ZeroVariance(1, Ridge()), np.flatnonzero(lowest > ROUNDING**2)
        top = MAX_DEGREE.get(d, 3) if self.max_degree is None else self.max_degree
        structured = bool(Blocks.of(problem.names, self.structure).blocks)
        if not self.kernel or d > (MAX_BESIDE_STRUCTURE if structured else MAX_KERNEL_COORDINATES):
            return
        columns = np.flatnonzero(lowest > ROUNDING**2)
        if (
            d > ALWAYS_COORDINATES
            and problem.folds.num_everyone > TRIAL_STATES
            and not problem.weighted
            and len(columns)
        ):
            most = WITHIN * lowest[columns] if structured else np.full(len(columns), np.inf)
            columns = columns[self._promises(problem.select(columns), most)]
        # Of few states every integrand gets lengthscales of its own: there they gain tenfold, and
        # cost little.
        grid = None if problem.folds.num_everyone <= CHEAP_STATES else GridREML(polish=False)
        method = self._semi_exact(problem, KERNEL_STATES, top, grid)
        if method is None or not len(columns):
            return
        yield method, columns
        # Read only now: lengthscales of their own are sought where the kernel of the grid has left
        # much, and in many coordinates not too much.
        left = lowest[columns] > POLISHED
        if d > ALWAYS_COORDINATES:
            left &= lowest[columns] < TOO_FAR
        columns = columns[left] if grid else columns[:0]
        # on fewer states, they must make up for the others
        every = problem.folds.num_everyone <= POLISH_STATES
        tuning = OwnGridREML(least=float(d)) if every else OwnGridREML()
        method = self._semi_exact(problem, POLISH_STATES, top, tuning)
        if d > 1 and not problem.weighted and method is not None and len(columns):
            yield method, columns

    def _semi_exact(
        self, problem: Problem, states: int, top: int, tuning: GridREML | None
    ) -> SemiExact | None:
        """Return the semi-exact fit on so many states, where they are enough and its work is
        allowed."""
        m, d = problem.draws.shape
        folds = problem.folds.thin(states)
        degree = max(
            (b for b in (1, 2) if b <= top and has_enough(b, d, folds.num_train)), default=0
        )
        size = float(folds.num_everyone)
        # 3t³ for the factorisations of one kernel, mtd for its values at all states.
        if (
            not degree
            or 3 * size**3 + m * size * d > self.max_work
            or size**2 * d > SHARED * self.max_work
        ):
            return None
        return SemiExact(degree, tuning=tuning, solver=Cholesky(), max_states=states)

    def _promises(self, problem: Problem, most: Float[np.ndarray, " p"]) -> Bool[np.ndarray, " p"]:
        """Return for which integrands a kernel beats the linear families on a few evenly spaced
        states, with at most some error variance."""
        few = problem.thin(TRIAL_STATES).seen()
        linear_problem = self.coordinates(few)
        families, labels = self.families(linear_problem, linear_problem.num_train)
        top = MAX_DEGREE.get(few.draws.shape[1], 3) if self.max_degree is None else self.max_degree
        method = self._semi_exact(few, TRIAL_STATES, top, GridREML(polish=False))
        if method is None:
            # Where no trial can be made nothing speaks against the kernel.
            return np.ones(few.values.shape[1], bool)
        plain = plain_variance(few)
        fits = choose_families(
            linear_problem,
            linear_problem.outline,
            linear_system(linear_problem, families),
            labels,
            plain,
        )
        linear = judged_variance(linear_problem, fits.at_states())
        kernel = judged_variance(few, crossfit_kernel(few, method, method.degree))
        # Against the better of both: a linear fit on few states may be worse than the plain mean.
        return (kernel * PROMISING < np.fmin(linear, plain)) & (kernel < most)


def _serving(
    families: Sequence[AbstractFamily],
    labels: Sequence[str],
    system: LinearSystem | None,
    problem: Problem,
) -> list[LinearFits]:
    """Return the linear fits of quantities whose fields serve functions of them, simplest first.

    A field of high degree sharpens the middle of a distribution function and spoils its tails,
    since splines multiply it. Of a mean, vector fields come after the cubic; here they come after
    the quadratic, without it.

    system : of other integrands of the same draws, by some of the families, if there is one.
    """
    high = [ZeroVariance(degree).label for degree in range(FIELD_DEGREE + 1, HIGHEST_DEGREE + 1)]
    vector = [VectorFields(degree).label for degree in range(1, MAX_VECTOR_DEGREE + 1)]
    low = [pair for pair in zip(families, labels, strict=True) if pair[1] not in high]
    names = [label for _, label in low]
    most = sum(label not in vector for label in names)
    # Without a cubic, as of many parameters, the basis is the leading part of the one that is
    # there, and need not be made again.
    if (
        system is not None
        and names == list(labels[: len(low)])
        and len(system.families) >= len(low)
    ):
        system = system.of_other_values(problem)
    else:
        system = linear_system(problem, [family for family, _ in low])
    return nested_fits(system, names, (1, most, len(low)), problem)


def _crossfits(
    problem: Problem, method: AbstractControlVariate
) -> Iterator[tuple[AbstractControlVariate, FoldFit]]:
    """Yield a candidate and its fit; after a semi-exact one that is compared, the kernel alone."""
    if isinstance(method, SemiExact) and is_compared(problem, method):
        semi, alone = crossfit_both(problem, method)
        # Two fits that agree in every part of the draws may share what they have not seen.
        shared = SHARE_OF_DISTANCE * np.abs(semi.mean - alone.mean)
        yield method, semi
        yield (
            ControlFunctional(max_states=method.max_states),
            alone._replace(doubt=np.fmax(alone.doubt, shared)),
        )
    else:
        yield method, method.crossfit(problem)


def _judged(problem: Problem, fit: FoldFit) -> Float[np.ndarray, " p"]:
    """Return the error variances of a fit, infinite where it found nothing but noise.

    Such a fit is the plain mean without its refits, and would seem better than that: an estimate
    was then plain where scores alone lowered its error, if no other integrand had a kernel.
    """
    fitted = np.array([status is not Status.PLAIN for status in fit.status])
    return np.where(fitted, judged_variance(problem, fit), np.inf)


def _beside(problem: Problem, fit: FoldFit, linear: FoldFit) -> Float[np.ndarray, " p"]:
    """Return the doubt of a kernel's fit, with the distance that a linear fit does not explain.

    What is beyond the draws a kernel says by its lengthscale, and polynomials by their form: of
    2,000 draws of an inverse gamma variance with shape 4 the mean of its square was up to eight of
    the kernel's errors off, and within one of theirs.
    """
    fitted = np.array([status is not Status.PLAIN for status in linear.status])
    return np.hypot(fit.doubt, np.where(fitted, disagreement(problem, fit, linear), 0.0))


def _slowness(problem: Problem) -> Float[np.ndarray, " p"]:
    """Return how slowly each integrand mixes, from zero, where draws are independent, to one, where
    an effective draw takes `SLOW` draws."""
    # Through `inverse`: mixing is that of the chains, repeats included.
    rows = problem.inverse.reshape(problem.num_chains, -1)
    size = np.empty(problem.values.shape[1])
    for block in in_blocks(len(size), rows.size):
        series = problem.values[:, block][rows]
        size[block] = effective_size(series, series.std(axis=(0, 1)))
    return np.clip((rows.size / size - 1) / (SLOW - 1), 0.0, 1.0)
