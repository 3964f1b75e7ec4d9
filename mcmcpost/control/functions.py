"""Functions of a quantity: each is regressed on a few controls of its own, from the field that
controls the mean.

The field comes from linear fits of the quantity without each fold (`mcmcpost.control.linear`), so
that it has not seen the state at which it stands. What remains is a small regression for each
function, and those of one quantity share all columns but the one with their step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped
from scipy.interpolate import PchipInterpolator

from mcmcpost.control.features.families import NEED, AbstractFamily
from mcmcpost.control.features.quantity import (
    COARSE,
    KNOTS,
    NODES,
    FunctionsOf,
    NormalDensity,
    Quantity,
    QuantityField,
    coordinate,
    coordinate_of,
    interpolated,
    knots_of,
    roughness,
    spaced,
    spread_between,
    surrogates,
)
from mcmcpost.control.features.regression import Regression
from mcmcpost.control.linear import LinearFits
from mcmcpost.control.method import (
    ROUNDING,
    AbstractControlVariate,
    FoldFit,
    PlainMean,
    concatenate_fits,
    replace_columns,
)
from mcmcpost.control.problem import Problem
from mcmcpost.control.standard_errors import judged_variance
from mcmcpost.core.arrays import LARGE, in_blocks
from mcmcpost.core.errors import Status


def fields_of(
    fits: LinearFits, quantities: Sequence[Quantity], columns: Sequence[int]
) -> list[QuantityField]:
    """Return the fields of some quantities; quantity j is what column j of the fits is of."""
    problem, families = fits.problem, fits.system.families
    assert problem is not None
    if not columns:
        return []
    quantities = [quantities[j] for j in columns]
    coefficients = fits.in_controls()[:, 1:, columns]
    # Fits with the first families alone have no coefficients of the others.
    families = _up_to_last(families, coefficients.any(axis=(0, 2)))
    coefficients = coefficients[:, : sum(family.size for family in families)]
    control = fits.at_states().control[:, columns] * problem.scale[columns]
    # v·∇h is the sum of what v does along the coordinates that h depends on: a few, which many
    # quantities share.
    users: dict[int, list[tuple[int, int]]] = {}
    directions: dict[int, np.ndarray] = {}
    for j, quantity in enumerate(quantities):
        for k, (place, direction) in enumerate(
            zip(quantity.places, quantity.directions(problem), strict=True)
        ):
            users.setdefault(int(place), []).append((j, k))
            directions[int(place)] = direction
    size = len(problem.counts)
    slopes = [
        np.broadcast_to(quantity.slopes, (size, quantity.slopes.shape[1]))
        for quantity in quantities
    ]
    along = _along(problem.draws, problem.labels, slopes, families, coefficients, directions, users)
    # The control is in units of the problem's values, and h, with its gradient, in its own.
    along *= problem.scale[columns]
    return [
        QuantityField(quantity.value, control[:, j], along[:, j])
        for j, quantity in enumerate(quantities)
    ]


def _along(
    draws: Float[np.ndarray, "m d"],
    labels: Int[np.ndarray, " m"],
    slopes: Sequence[Float[np.ndarray, "m _"]],
    families: Sequence[AbstractFamily],
    coefficients: Float[np.ndarray, "k q p"],
    directions: Mapping[int, Float[np.ndarray, " d"]],
    users: Mapping[int, list[tuple[int, int]]],
) -> Float[np.ndarray, "m p"]:
    """Return v·∇h of p quantities, with the coefficients that have not seen each state; zero on
    padding.

    directions : of each coordinate. users : which quantities depend on it, as which of their own.
    """
    starts = np.cumsum([0] + [family.size for family in families])
    along = np.zeros((len(labels), len(slopes)))
    for block in in_blocks(len(labels), coefficients.shape[1]):
        here, folds = (
            draws[block],
            [np.flatnonzero(labels[block] == fold) for fold in range(len(coefficients))],
        )
        for place, direction in directions.items():
            parts = [family.along(here, direction) for family in families]
            columns = np.concatenate(
                [start + nonzero for start, (nonzero, _) in zip(starts, parts, strict=False)]
            )
            values = np.concatenate([value for _, value in parts], axis=1)
            who = [j for j, _ in users[place]]
            slope = np.stack([slopes[j][block, k] for j, k in users[place]], axis=1)
            for rows, theta in zip(folds, coefficients[:, columns][:, :, who], strict=True):
                along[np.ix_(block.start + rows, who)] += slope[rows] * (values[rows] @ theta)
    return along


class Splines(NamedTuple):
    """The regressions on the splines of a field, and on those with half the knots.

    beyond : states beyond a zero of the field. of_events : whether what is regressed has steps.
    """

    field: QuantityField
    fine: Regression
    coarse: Regression
    beyond: Bool[np.ndarray, " m"]
    of_events: bool

    @classmethod
    def of(
        cls, problem: Problem, field: QuantityField, steps: Float[np.ndarray, " s"] | None = None
    ) -> "Splines":
        """Return those at the states of a problem; `steps` are such that all integrands have."""
        common = [] if steps is None else [field.steps(problem.counts, steps)]
        fine, coarse = (
            Regression(
                problem, np.concatenate([field.splines(problem.counts, knots), *common], axis=1)
            )
            for knots in (KNOTS, COARSE)
        )
        return cls(field, fine, coarse, field.beyond_zero(problem.counts), steps is not None)

    def crossfit(
        self, problem: Problem, method: str, last: Float[np.ndarray, "m p"] | None = None
    ) -> FoldFit:
        """Regress functions of the quantity, each with a column of its own.

        The distance of the mean from that with half the knots is part of the error. What splines do
        not follow of a function is the same in every fold, and no refit shows it. So is what lies
        beyond a zero of the field: each side has an identity of its own, and the mean may be that
        of the one with most draws. A function may also grow beyond the outermost draws, which one
        fold's neighbours never show: how it does is seen without several of them.
        """
        fine = self.fine.crossfit(problem, method, last)
        total, weight = problem.counts.sum(), problem.counts * self.beyond
        beyond = (
            np.abs(
                weight @ problem.values - weight.sum() * (problem.counts @ problem.values) / total
            )
            / total
        )
        doubt = np.abs(fine.mean - self.coarse.mean(problem, last)) + beyond
        if last is None and not self.of_events:  # which do not grow
            doubt = np.hypot(doubt, self.fine.outermost(problem, self.field.value))
        return fine._replace(doubt=doubt)


ASTRAY = 3.0
"""Roundings of a map by which a draw may be on the wrong side of a point: three standard errors."""


class Marginal(NamedTuple):
    """A quantity whose functions are controlled, with its fields by the method that each comes
    from, simplest first.

    known, image : (k,) increasing values f of an integrand, standardised, and those of h at the
        same draws; f and h are the same, to a factor and a shift, where there are two.
    explained : R² of f by h: one, or that of a polynomial that stands for f.
    splines : the regressions of each field, once it is `prepared`.
    """

    fields: Mapping[str, QuantityField]
    known: Float[np.ndarray, " k"]
    image: Float[np.ndarray, " k"]
    explained: float = 1.0
    splines: Mapping[str, Splines] = MappingProxyType({})

    @property
    def certain(self) -> bool:
        """Whether h tells where f has a value, and not only nearly."""
        return bool(1 - self.explained <= SAME**2)

    @property
    def is_linear(self) -> bool:
        """Whether f is h, to a factor and a shift."""
        return len(self.known) == 2

    def prepared(self, problem: Problem) -> "Marginal":
        """Return the same with the regressions at hand, which take some hundred numbers a state."""
        return self._replace(
            splines={method: Splines.of(problem, field) for method, field in self.fields.items()}
        )

    def at(self, thresholds: Float[np.ndarray, " t"]) -> Float[np.ndarray, " t"]:
        """Return h where the integrand has these values."""
        return self._map(thresholds, 0)

    def stretch(self, thresholds: Float[np.ndarray, " t"]) -> Float[np.ndarray, " t"]:
        """Return dh/df there."""
        return self._map(thresholds, 1)

    def unsure(
        self, thresholds: Float[np.ndarray, " t"]
    ) -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, " t"]]:
        """Return how far `at` may be off there, and `stretch` relative to itself, since it is known
        at draws only."""
        if self.is_linear:
            return 0 * thresholds, 0 * thresholds
        known, image = spaced(self.known, self.image)
        inside = np.clip(thresholds, known[0], known[-1])
        fine, coarse = (interpolated(known, image, inside, count) for count in NODES)
        rough, rounding = roughness(known, image, inside)
        error, by_slope = (
            np.hypot(one - other, rough * amplified)
            for one, other, amplified in zip(fine[:2], coarse[:2], fine[2], strict=True)
        )
        low, high = self._between(inside)
        with np.errstate(invalid="ignore", divide="ignore"):
            relative = np.where(fine[1] > 0, by_slope / fine[1], np.inf)
            # A draw on either side tells that much of any map, smooth or not, but for rounding.
            return np.fmin(error, high - low + ASTRAY * rounding * np.abs(fine[1])), relative

    def _map(self, thresholds: Float[np.ndarray, " t"], derivative: int) -> Float[np.ndarray, " t"]:
        if self.is_linear:
            slope = np.diff(self.image) / np.diff(self.known)
            return (
                slope + 0 * thresholds
                if derivative
                else self.image[0] + slope * (thresholds - self.known[0])
            )
        # Beyond the draws nothing is known of the map, and there no step is left to control.
        inside = np.clip(thresholds, self.known[0], self.known[-1])
        mapped = interpolated(*spaced(self.known, self.image), inside, NODES[0])[derivative]
        # Monotone, as cubics through any draws are: in place of a polynomial that leaves the gap
        # between two draws.
        low, high = self._between(inside)
        astray = ~(mapped > 0) if derivative else ~((mapped >= low) & (mapped <= high))
        if astray.any():
            mapped[astray] = PchipInterpolator(self.known, self.image)(
                inside[astray], nu=derivative
            )
        return mapped

    def _between(
        self, inside: Float[np.ndarray, " t"]
    ) -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, " t"]]:
        """Return h at the draws below and above."""
        low = np.searchsorted(self.known, inside, side="right") - 1
        high = np.searchsorted(self.known, inside, side="left")
        return self.image[low], self.image[high]


def crossfit_functions(
    problem: Problem,
    splines: Sequence[tuple[Int[np.ndarray, " _"], Mapping[str, Splines]]],
    lowest: Float[np.ndarray, " p"],
    steps: Float[np.ndarray, " p"] | None = None,
) -> FoldFit:
    """Return for each function of a quantity the fit of that field which has the smallest error, or
    the plain mean.

    Parameters
    ----------
    problem : its integrands are functions of quantities.
    splines : of each quantity the columns of its functions, and the regressions of its fields.
    lowest : (p,) error variances that are to be improved upon.
    steps : (p,) h at the step of each function.
    """
    best, lowest = PlainMean().crossfit(problem), lowest.copy()
    # Quantities side by side: what errors take beside the regressions does not grow with them.
    for turn in range(max((len(fields) for _, fields in splines), default=0)):
        fits, places = [], []
        for columns, fields in splines:
            if turn < len(fields):
                method, one = list(fields.items())[turn]
                last = None
                if steps is not None:
                    last = one.field.steps(problem.counts, steps[columns])
                fits.append(one.crossfit(problem.select(columns), f"FunctionOf({method})", last))
                places.append(columns)
        fit, at = concatenate_fits(fits), np.concatenate(places)
        variance = judged_variance(problem.select(at), fit)
        # By 5 per cent (`NEED`): the choice is made on the folds that give the error.
        better = np.isfinite(variance) & (variance * NEED < lowest[at])
        better = np.flatnonzero(better & (lowest[at] > ROUNDING**2))
        best = replace_columns(best, fit, at[better], better)
        lowest[at[better]] = variance[better]
    return best


SPLINES = 128
"""Numbers a state that the regressions of a quantity take."""

MOST_STEPS = 4
"""Steps of an event, in the order of a coordinate, up to which it is taken for a function of it."""


def crossfit_of_coordinates(
    problem: Problem,
    best: FoldFit,
    lowest: Float[np.ndarray, " p"],
    fits: Callable[[Problem], list[LinearFits]],
) -> tuple[FoldFit, Float[np.ndarray, " p"]]:
    """Return the best fits after those of integrands that are functions of one coordinate, and
    their error variances.

    fits : from quantities, as the integrands of the problem, to the linear fits whose fields serve
        their functions.
    """
    unrotated = problem.unrotated()
    served = by_coordinate(unrotated, lowest)
    quantities = [coordinate(unrotated, j) for j in served]
    of = list[
        tuple[Int[np.ndarray, " k"], Mapping[str, QuantityField], Float[np.ndarray, " s"] | None]
    ]()
    doubt = np.zeros(len(lowest))
    for quantity, columns, fields in zip(
        quantities, served.values(), fields_by_method(problem, quantities, fits), strict=True
    ):
        # Each event has a column of its own, and all smooth functions of the coordinate have the
        # same ones.
        is_event = are_events(problem, columns)
        if not is_event.all():
            of.append((columns[~is_event], fields, None))
        for column in columns[is_event][:, None]:
            steps, doubt[column] = _steps_of(problem.select(column), quantity.value)
            if len(steps) <= MOST_STEPS:
                of.append((column, fields, steps))
    for group in in_blocks(len(of), SPLINES * len(problem.counts), LARGE):
        splines = [
            (
                columns,
                {method: Splines.of(problem, field, steps) for method, field in fields.items()},
            )
            for columns, fields, steps in of[group]
        ]
        fit = crossfit_functions(problem, splines, lowest)
        fit = fit._replace(doubt=fit.doubt + doubt)
        variance = judged_variance(problem, fit)
        chosen = np.array([status is not Status.PLAIN for status in fit.status])
        chosen &= variance * NEED < lowest
        best = replace_columns(best, fit, np.flatnonzero(chosen), np.flatnonzero(chosen))
        lowest = np.where(chosen, variance, lowest)
    return best, lowest


def by_coordinate(
    problem: Problem, lowest: Float[np.ndarray, " p"]
) -> dict[int, Int[np.ndarray, " k"]]:
    """Return the integrands that are functions of one coordinate and can gain as such, by that
    coordinate.

    problem : in the trace's own coordinates. lowest : (p,) their error variances so far.
    """
    left = np.flatnonzero(lowest > ROUNDING**2)
    if not len(left):
        return {}
    places = coordinate_of(problem.select(left), lowest[left] / LEAST_GAIN)
    # A coordinate itself is what the linear families are for; there may be hundreds.
    places = np.where(_is_itself(problem, left, places), -1, places)
    return {int(j): left[places == j] for j in np.unique(places) if j >= 0}


def are_events(problem: Problem, columns: Int[np.ndarray, " k"]) -> Bool[np.ndarray, " k"]:
    """Return which integrands have two values only."""
    return np.array([len(np.unique(problem.values[: problem.num_states, k])) == 2 for k in columns])


MOST_CONTROLS = 1_000
"""Controls of functions of coordinates that are summed beside the others: those of about fifty
coordinates."""


def families_of_functions(
    problem: Problem,
    names: Sequence[str],
    lowest: Float[np.ndarray, " p"],
    fits: Callable[[Problem], list[LinearFits]],
) -> list[tuple[FunctionsOf, str]]:
    """Return families of controls, and their labels, of integrands that are functions of one
    coordinate.

    Those of a coordinate stand side by side, the coarse one first. The field, the knots and the
    thresholds are those of these draws: controls have mean zero whatever they are. Where there are
    too many, those integrands have theirs whose error variance is largest.

    Parameters
    ----------
    problem : in the trace's own coordinates, of the draws that stand for all. names : of its
        integrands.
    lowest : (p,) their error variances. fits : as in `crossfit_of_coordinates`.
    """
    # One linear fit serves all coordinates: its right-hand sides are the coordinates themselves.
    served = by_coordinate(problem, lowest)
    if not served:
        return []
    values = np.stack([coordinate(problem, j).value for j in served], axis=1)
    linear = _of_values(problem, values, fits)
    if linear is None:
        return []
    families = list[tuple[FunctionsOf, str]]()
    groups = sorted(enumerate(served.items()), key=lambda group: -lowest[group[1][1]].max())
    for k, (place, columns) in groups:
        thresholds = _thresholds(problem.select(columns), values[:, k])
        # Where the step is that is seen between two of these draws, only the residuals at others
        # tell.
        events = [
            Events(names[j], steps, len(steps))
            for j, steps in zip(columns, thresholds, strict=True)
            if steps is not None
        ]
        both = _coarse_and_fine(problem, linear, k, coordinate(problem, place), events)
        if sum(family.size for family, _ in (*families, *both)) <= MOST_CONTROLS:
            families += both
    return families


class Events(NamedTuple):
    """A function of a quantity that has steps, or none. jumps : steps that may be elsewhere between
    two draws."""

    name: str
    steps: Float[np.ndarray, " s"]
    jumps: int


class Served(NamedTuple):
    """An integrand whose functions are controlled along a field that is known, of column k of
    linear fits.

    problem : in the trace's own coordinates, of the draws that stand for all. column : of it.
    stand_in : the quantity that it is, or nearly. marginal : how its values go to those of the
        quantity.
    """

    problem: Problem
    column: int
    stand_in: Quantity
    marginal: "Marginal"
    linear: LinearFits
    k: int

    @classmethod
    def of(cls, problem: Problem, method: AbstractControlVariate) -> "list[Served]":
        """Return those integrands of a problem."""
        known = []
        for column, one in enumerate(known_quantities(problem)):
            if one is not None:
                stand_in, values, image = one
                known.append((column, stand_in, Marginal({}, values, image, stand_in.explained)))
        if not known:
            return []
        quantities = [stand_in for _, stand_in, _ in known]
        stand_in_problem = problem.with_columns(
            np.stack([stand_in.value for stand_in in quantities], axis=1)
        )
        fits = [
            linear for linear in method.fields(stand_in_problem) if linear.system.mix is not None
        ]
        served = []
        for k, fields in enumerate(fields_by_method(problem, quantities, lambda _: fits)):
            if fields:
                chosen, by_label = (
                    _best_field(problem, fields),
                    {linear.method[k]: linear for linear in fits},
                )
                served.append(cls(problem, *known[k], by_label[chosen], k))
        return served

    def standard(self, values: Float[np.ndarray, "*t"]) -> Float[np.ndarray, "*t"]:
        """Return values of the integrand in the units of the problem."""
        return (values - self.problem.location[self.column]) / self.problem.scale[self.column]

    def families(
        self, names: Sequence[str], steps: Float[np.ndarray, "_ s"], *, ramps: bool = False
    ) -> list[tuple[FunctionsOf, str]]:
        """Return families of controls of some functions of the integrand, and their labels; none
        without a field.

        steps : values of the integrand, as the problem has them, at which each function has a step;
            infinite where it has fewer. ramps : the steps are those of densities.
        """
        values, one = self.problem.values[: self.problem.num_states, self.column], self.marginal
        events = []
        for name, thresholds in zip(names, steps, strict=True):
            # One beyond these draws is no step of theirs, and its control would be that of one or
            # two draws.
            seen = (thresholds > values.min()) & (thresholds < values.max())
            # What is the quantity itself, to a factor and a shift, has its steps at the same draws;
            # a density is that of the quantity.
            surely = one.is_linear and one.certain
            jumps = (
                0
                if ramps
                else int(np.isfinite(thresholds).sum()) - (int(seen.sum()) if surely else 0)
            )
            events.append(Events(name, one.at(thresholds[seen]), jumps))
        return _coarse_and_fine(
            self.problem, self.linear, self.k, self.stand_in, events, ramps=ramps
        )


CHOOSING = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Levels of the quantiles at which it is looked which field is the best for events, and
densities."""


def _best_field(problem: Problem, fields: Mapping[str, QuantityField]) -> str:
    """Return the field that leaves the smallest errors, as geometric means, of the distribution
    function of a quantity.

    Where scores alone control it, as of a log-gamma distribution, the field of a richer fit leaves
    tens of times more.
    """
    if len(fields) == 1:
        return next(iter(fields))
    value, real = next(iter(fields.values())).value, problem.counts > 0
    at = np.quantile(value[real], CHOOSING)
    events, left = (
        problem.with_columns((value[:, None] <= at) * real[:, None].astype(float)),
        dict[str, float](),
    )
    for label, field in fields.items():
        fit = Splines.of(events, field).crossfit(events, label, field.steps(events.counts, at))
        left[label] = float(np.log(np.maximum(judged_variance(events, fit), ROUNDING**2)).sum())
    return min(left, key=lambda label: left[label])


def _of_values(
    problem: Problem, values: Float[np.ndarray, "m k"], fits: Callable[[Problem], list[LinearFits]]
) -> LinearFits | None:
    """Return the largest of the linear fits of some quantities; None where it has more controls
    than draws."""
    linear = next(reversed(fits(problem.with_columns(values))), None)
    return None if linear is None or linear.system.mix is None else linear


def _coarse_and_fine(
    problem: Problem,
    linear: LinearFits,
    k: int,
    quantity: Quantity,
    events: Sequence[Events],
    *,
    ramps: bool = False,
) -> list[tuple[FunctionsOf, str]]:
    """Return families, and their labels, along the field of column k of linear fits: that of the
    quantity."""
    coefficients = linear.in_controls()[:, 1:, k].mean(axis=0)
    families = _up_to_last(linear.system.families, coefficients)
    if not (events and families):
        return []
    value = quantity.value[problem.counts > 0]
    steps = np.unique(np.concatenate([event.steps for event in events]))
    coarse = FunctionsOf(
        families=families,
        coefficients=coefficients[: sum(family.size for family in families)],
        **quantity.polynomial._asdict(),
        knots=knots_of(value, COARSE),
        steps=steps,
        normal=NormalDensity(0.0, 1.0),
        names=tuple(event.name for event in events),
        uses=np.stack([np.isin(steps, event.steps) for event in events]),
        jumps=np.array([event.jumps for event in events]),
        fine=False,
        ramps=ramps,
    )
    coarse = replace(
        coarse, normal=coarse.field(problem.draws, problem.scores).as_normal(problem.counts)
    )
    fine = replace(
        coarse, knots=knots_of(value), steps=steps[:0], uses=coarse.uses[:, :0], fine=True
    )
    return [(family, f"FunctionOf({linear.method[k]})") for family in (coarse, fine)]


def _thresholds(
    problem: Problem, value: Float[np.ndarray, " m"]
) -> list[Float[np.ndarray, " s"] | None]:
    """Return where each integrand steps in the order of a coordinate: nowhere but for events; None
    if too often."""
    thresholds: list[Float[np.ndarray, " s"] | None] = []
    for column, event in enumerate(are_events(problem, np.arange(problem.values.shape[1]))):
        steps = _steps_of(problem.select(np.array([column])), value)[0] if event else np.empty(0)
        thresholds.append(steps if len(steps) <= MOST_STEPS else None)
    return thresholds


def _up_to_last(
    families: Sequence[AbstractFamily], coefficients: Shaped[np.ndarray, " q"]
) -> tuple[AbstractFamily, ...]:
    """Return the families up to the last with a coefficient that is not zero."""
    ends = np.cumsum([family.size for family in families])
    used = np.flatnonzero(coefficients)
    return (
        tuple(families[: int(np.searchsorted(ends, used[-1], side="right")) + 1])
        if len(used)
        else ()
    )


LEAST_GAIN = 2.0
"""Factor by which a function of a coordinate must be able to lower the error variance to be
tried."""


def _is_itself(
    problem: Problem, columns: Int[np.ndarray, " k"], places: Int[np.ndarray, " k"]
) -> Bool[np.ndarray, " k"]:
    """Return which integrands are the coordinate at the same place, to a factor and a shift."""
    same = np.zeros(len(columns), bool)
    for j in np.unique(places[places >= 0]):
        members = np.flatnonzero(places == j)
        value, counts = coordinate(problem, int(j)).value, problem.counts
        along = (counts * value) @ problem.values[:, columns[members]]
        same[members] = along**2 >= (1 - SAME) * (counts @ value**2) * (
            counts @ problem.values[:, columns[members]] ** 2
        )
    return same


def _steps_of(
    problem: Problem, value: Float[np.ndarray, " m"]
) -> tuple[Float[np.ndarray, " s"], float]:
    """Return where an event begins or ends in a coordinate, and the error of not knowing it between
    two draws.

    That is a uniform one: of the probability between them, which their neighbours tell.
    """
    # Halfway between the two draws: where between them it is, nothing tells.
    n = problem.num_states
    order = np.argsort(value[:n], kind="stable")
    h, f = value[:n][order], problem.values[:n, 0][order]
    after = np.flatnonzero(np.diff(f)) + 1
    chance = spread_between(h, after)
    return (h[after] + h[after - 1]) / 2, float(np.ptp(f) * np.sqrt((chance**2).sum()))


def marginals(problem: Problem, method: AbstractControlVariate) -> list[Marginal | None]:
    """Return the integrands as quantities whose functions are controlled; None for one that is not
    known as such."""
    quantities = known_quantities(problem.unrotated())
    known = [one for one in quantities if one is not None]
    fields = iter(fields_by_method(problem, [quantity for quantity, _, _ in known], method.fields))
    return [
        None if one is None else Marginal(next(fields), *one[1:], one[0].explained)
        for one in quantities
    ]


def known_quantities(
    problem: Problem,
) -> list[tuple[Quantity, Float[np.ndarray, " _"], Float[np.ndarray, " _"]] | None]:
    """Return for each integrand what it is a function of, and the map to it, as in `Marginal`; None
    where unknown.

    problem : in the trace's own coordinates.
    """
    quantities = [
        None if j < 0 else _monotone(problem, column, int(j))
        for column, j in enumerate(coordinate_of(problem))
    ]
    unknown = [column for column, image in enumerate(quantities) if image is None]
    for column, stand_in in zip(unknown, surrogates(problem, unknown), strict=True):
        if stand_in is not None:
            quantities[column] = (stand_in, np.array([-1.0, 1.0]), np.array([-1.0, 1.0]))
    return quantities


def fields_by_method(
    problem: Problem, quantities: Sequence[Quantity], fits: Callable[[Problem], list[LinearFits]]
) -> list[dict[str, QuantityField]]:
    """Return for each quantity the fields of some linear fits, by the method of each; see
    `crossfit_of_coordinates`."""
    fields: list[dict[str, QuantityField]] = [{} for _ in quantities]
    if not quantities:
        return fields
    quantity_problem = problem.with_columns(
        np.stack([quantity.value for quantity in quantities], axis=1)
    )
    for linear in fits(quantity_problem):
        if linear.system.mix is None:  # more controls than draws, whose coefficients are not known
            continue
        # Richer families may have come to the fit that is there already, or to none.
        new = [
            j
            for j, (method, status) in enumerate(zip(linear.method, linear.status, strict=True))
            if status is not Status.PLAIN and method not in fields[j]
        ]
        for place, field in zip(new, fields_of(linear, quantities, new), strict=True):
            # The first has few controls, and where none helps its field may be anything.
            if not (fields[place] and field.is_wild(problem.counts)):
                fields[place][linear.method[place]] = field
    return fields


def _monotone(
    problem: Problem, column: int, j: int
) -> tuple[Quantity, Float[np.ndarray, " k"], Float[np.ndarray, " k"]] | None:
    """Return a coordinate as what an integrand is a monotone function of, and the map to it; None
    where it is not."""
    # In the order of the coordinate a monotone integrand moves one way, but for rounding.
    n = problem.num_states
    quantity, f = coordinate(problem, j), problem.values[:n, column]
    order = np.argsort(quantity.value[:n], kind="stable")
    f, h = f[order], quantity.value[:n][order]
    if f[-1] < f[0]:
        quantity = coordinate(problem, j, -1.0)
        f, h = f[::-1], -h[::-1]
    if (np.diff(f) < -SAME * np.ptp(f)).any():
        return None
    slope, intercept = np.polyfit(f, h, 1)
    if np.abs(intercept + slope * f - h).max() <= SAME * np.ptp(h):
        return quantity, f[[0, -1]], intercept + slope * f[[0, -1]]
    known, first = np.unique(np.maximum.accumulate(f), return_index=True)
    # its values are few: where between the draws it goes from one to the next is not known
    if len(known) < n / 2:
        return None
    # Of states that share a value, as rounded ones do, their middle.
    last = np.append(first[1:], n) - 1
    return quantity, known, (h[first] + h[last]) / 2


SAME = 1e-9
"""Relative to their range, by how much values differ that are the same but for rounding."""
