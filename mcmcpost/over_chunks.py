"""The distributions of quantities of a trace in the chunks of dask, from sums over all of its
draws.

Some evenly spaced draws tell where to look, and along which fields; what is looked at there is
summed over all.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import ndtr

from mcmcpost.control import Distribution, Estimate, Features, PlainMean
from mcmcpost.control.estimate import Curve, covariance_of
from mcmcpost.control.features.quantity import Conditional, FunctionsOf, QuantityField, fields_at
from mcmcpost.control.features.summed import Transform
from mcmcpost.control.functions import Served
from mcmcpost.control.order_statistics import (
    CLOSER,
    ROUNDING,
    Densities,
    Ends,
    Known,
    shortest_of_draws,
)
from mcmcpost.control.quantiles import STRAIGHT
from mcmcpost.control.standard_errors import RULE_OF_THREE
from mcmcpost.core.errors import TRUSTED, Status
from mcmcpost.core.mcse import kernel_density
from mcmcpost.core.precision import in_float64
from mcmcpost.sample import warn_of_not_finite
from mcmcpost.sums import InChunks, features_in_units, problem_of

NEARBY = 11
"""Points near either end of a shortest interval at which the distribution function is estimated."""

MOST_SEARCHED = 5
"""Passes over all draws for shortest intervals."""

PARTS = 32
"""Parts of neighbouring runs that are left out, one after the other, for the error of what is not
linear."""

MOST_PASSES = 3
"""Passes over all draws for quantiles. The second is for those that were outside in the first,
which is rare."""


class OverChunks(NamedTuple):
    """What is asked of the quantities of a trace in chunks, from sums over all of its draws.

    known : what is known of the functions of some quantities, by their places. pilot : the
        distributions at the evenly spaced draws. places : (p,) of the quantities in the pilot's
        sample.
    """

    chunks: InChunks
    known: Mapping[int, Served]
    pilot: Distribution
    places: Int[np.ndarray, " p"]

    def select(self, places: Int[np.ndarray, " r"]) -> "OverChunks":
        """Return what is known of some of the quantities."""
        return self._replace(places=self.places[places])

    def probabilities(
        self,
        of: Int[np.ndarray, " q"],
        lower: Float[np.ndarray, " q"],
        upper: Float[np.ndarray, " q"],
    ) -> Estimate:
        """Return the probabilities that quantities are above one number and at most another."""
        return self.chunks.probabilities(self.places[of], lower, upper, self.known)

    def shortest(self, prob: float) -> Estimate:
        """Return the ends of the shortest intervals of all p quantities, those of one after those
        of another.

        All searches take a pass together. The ends of plain ones are sought beside, of which gains
        are.
        """
        pilot, p = self.pilot.select(self.places), len(self.places)
        start, series, units = pilot.interval(prob, "hdi"), pilot.sample.values, pilot.sample.units
        numbers = np.stack(
            [start.mean, start.mcse, start.mean_plain, start.mcse_plain, start.mean_crossfit]
        )
        both = [slice(2 * j, 2 * j + 2) for j in range(p)]
        searches, events = dict[tuple[int, bool], Ends](), dict[int, Estimate]()
        for j in np.flatnonzero(pilot.sample.varying).tolist():
            # The ends of a shortest interval of few draws are far off; controlled ones tell how
            # far. Closer than their search comes, differences of probabilities are rounding.
            far = shortest_of_draws(series[..., j] / units[j], prob)[1] * units[j]
            search = Ends.about(start.mean[both[j]], far, series[..., j], prob, NEARBY)
            near = max(CLOSER * float(start.mcse[both[j]].max()), search.closest)
            searches[j, False] = search._replace(reach=min(near, far))
            searches[j, True] = search
        for _ in range(MOST_SEARCHED):
            left = [key for key, search in searches.items() if not search.settled]
            if not left:
                break
            for (j, plain), below in zip(
                left, self._about_ends([(*key, searches[key]) for key in left]), strict=True
            ):
                search = searches[j, plain]
                if np.isfinite(below.mean).all():
                    after = search.step(
                        Known(below.mean, below.mcse, _without_parts(below), below.residuals)
                    )
                else:  # not finite at a draw that is not one of the few
                    unknown = np.full(2, np.nan)
                    after = search._replace(ends=unknown, error=unknown, settled=True)
                searches[j, plain] = after
                if not plain:
                    nearest = np.abs(search.grid - after.ends[:, None]).argmin(axis=1)
                    events |= {
                        2 * j + end: below.select(np.array([end * NEARBY + nearest[end]]))
                        for end in (0, 1)
                    }
        for (j, plain), search in searches.items():
            numbers[2 if plain else 0, both[j]], numbers[3 if plain else 1, both[j]] = (
                search.ends,
                search.error,
            )
        for j in {j for j, _ in searches}:
            error, plain_error = numbers[[1, 3], both[j]]
            # Both ends are of one interval: one of either would hold another probability.
            if np.linalg.norm(error) < np.linalg.norm(plain_error):
                numbers[3, both[j]] = np.fmax(plain_error, error)
            else:
                events |= {
                    k: events[k]._replace(status=(Status.PLAIN,)) for k in (2 * j, 2 * j + 1)
                }
        numbers[4] = numbers[0]
        return _of_events(start, events, numbers, np.zeros(2 * p, bool))

    def _about_ends(self, searches: "list[tuple[int, bool, Ends]]") -> list[Estimate]:
        """Return P(h ≤ t) at the points of each search, of a quantity, plain or not, in one
        pass."""
        grids = [search.grid.reshape(-1) for _, _, search in searches]
        each = [len(grid) for grid in grids]
        of, plain = (
            np.repeat(np.array(column), each) for column in list(zip(*searches, strict=True))[:2]
        )
        lower, upper = np.full(len(of), -np.inf), np.concatenate(grids)
        below = self.chunks.probabilities(self.places[of], lower, upper, self.known, plain)
        return [below.select(row) for row in np.arange(len(of)).reshape(len(searches), -1)]

    def densities(self, of: Int[np.ndarray, " r"], at: Float[np.ndarray, "r t"]) -> list[Curve]:
        """Return the densities of some quantities, each at points of its own, in one pass."""
        sample, pilot, t = (
            self.chunks.question.sample,
            self.pilot.select(self.places[of]),
            at.shape[1],
        )
        few, sizes, places = pilot.pdf(at), pilot.effective_sizes(), self.places[of].tolist()
        kernels, controlled = dict[int, KernelsOf](), dict[int, DensityOf]()
        families = list[tuple[FunctionsOf, str]]()
        discrete = pilot.sample.finite & (few.status[:, 0] == Status.UNDEFINED)
        for i in np.flatnonzero(sample.varying[places] & ~discrete).tolist():
            j, served = places[i], self.known.get(places[i])
            kernels[i] = KernelsOf.of(self.chunks, j, at[i])
            if served is None:
                continue
            names, steps = [f"{i} {k}" for k in range(t)], served.standard(at[i] / sample.units[j])
            if named := served.families(names, steps[:, None], ramps=True):
                families += named
                controlled[i] = DensityOf.of(
                    served, named[0][0], j, at[i], sample.units[j], few.mean[i]
                )
        parts = list[tuple[Features, Transform]]()
        if kernels:
            parts.append(self._summand(AllOf(tuple(kernels.values())), kernels, []))
        if controlled:
            parts.append(
                self._summand(AllDensitiesOf(tuple(controlled.values())), controlled, families)
            )
        sums = self.chunks.moments(parts) if parts else []
        means = [in_float64(one.estimate)(self.chunks.question.options) for one in sums]
        curves, width, missing = [], 1 + 3 * t, np.zeros(len(sample.names))
        for i, row in enumerate(at):
            status, nothing = few.status[i : i + 1], np.full((1, t), np.nan)
            if i in kernels:
                k = list(kernels).index(i) * width
                missing[places[i]] = sums[0].missing[k]
                by_kernel = means[0].select(np.arange(k, k + width))
                status = np.array([by_kernel.status[:1] * t], dtype=object)
            if i not in kernels or status[0, 0] is Status.UNDEFINED:
                curves.append(Curve((), row[None], *(nothing,) * 5, status))
                continue
            known = kernels[i].densities(by_kernel, float(sums[0].low[k]), float(sums[0].high[k]))
            if i in controlled:
                k = list(controlled).index(i) * t
                known = controlled[i].better(
                    known, means[1].select(np.arange(k, k + t)), status[0, 0], float(sizes[i])
                )
            curves.append(known.curve(row))
        warn_of_not_finite(
            sample.names, missing, self.chunks.layout.chains * self.chunks.layout.draws
        )
        return curves

    def _summand(
        self, transform: Transform, of: Iterable[int], families: Sequence[tuple[FunctionsOf, str]]
    ) -> tuple[Features, Transform]:
        """Return what is to be summed of a transform that has as many values of each of some
        quantities."""
        sample = self.chunks.question.sample
        values = transform(sample.values, *sample.trace[:2])
        problem, _ = problem_of(sample.trace, values, slice(None))
        each = values.shape[-1] // max(len(list(of)), 1)
        names = tuple(f"{i} {k}" for i in of for k in range(each))
        return features_in_units(
            problem, families, names, values, np.zeros(len(names), bool)
        ), transform

    def quantiles(self, levels: Float[np.ndarray, " a"]) -> Estimate:
        """Return the quantiles of all p quantities, those of one after those of another; see
        `Bracket`."""
        pilot = self.pilot.select(self.places)
        start, p = pilot.quantile(levels), len(self.places)
        of, values = np.repeat(np.arange(p), len(levels)), pilot.sample.values.reshape(-1, p)
        brackets = [
            Bracket.of(values[:, j], float(level), float(start.mean[k]), float(start.mcse[k]))
            for k, (j, level) in enumerate(zip(of, np.tile(levels, p), strict=True))
        ]
        # Beside an atom, as of max(x, 0), no polynomial follows: the quantile stays that of the few
        # draws.
        left = np.flatnonzero(np.isfinite(start.mean) & [not bracket.atom for bracket in brackets])
        numbers = np.stack(
            [start.mean, start.mcse, start.mean_plain, start.mcse_plain, start.mean_crossfit]
        )
        events: dict[int, Estimate] = {}
        few = np.array([status is Status.UNSEEN for status in start.status])
        for _ in range(MOST_PASSES):
            if not len(left):
                break
            # All quantities and levels in one pass: reading the draws is what it costs.
            upper = np.concatenate([brackets[k].points for k in left])
            # of a discrete quantity there may be fewer
            sizes = [len(brackets[k].points) for k in left]
            probabilities = self.probabilities(
                np.repeat(of[left], sizes), np.full(len(upper), -np.inf), upper
            )
            unknown = []
            for end, size, k in zip(np.cumsum(sizes), sizes, left.tolist(), strict=True):
                below = probabilities.select(np.arange(end - size, end))
                if start.sd[k] == 0 and below.mean.tolist() == [0.0, 1.0]:
                    continue  # constant at all draws, as at those few
                root = brackets[k].root(below)
                numbers[:, k], events[k], few[k] = (
                    root.numbers,
                    below.select(np.array([root.nearest])),
                    root.few,
                )
                if not root.known:
                    unknown.append(k)
                    brackets[k] = brackets[k].moved(root)
            left = np.array(unknown, int)
        return _of_events(start, events, numbers, few)


class DensityOf(NamedTuple):
    """What has the density of a quantity h for its mean, −c 1{h > t}/E[v·∇h | h = t], at t points.

    E[v·∇h | h = t] is that of some draws. That it is another by all of them moves the mean to first
    order by the second term; the error of the whole is then that of a mean.

    column : of the quantity. field : the family that knows its field, of coordinates shift +
        scale·z, the `place`.
    within : the regression of v·∇h. h : the points of the field's quantity. unit : what a mean is a
        density by.
    density : at the points, by some draws. unexplained : 1 − R² of the quantity by that of the
        field.
    unsure : relative error of the map to that.
    """

    column: int
    field: FunctionsOf
    place: tuple[Float[np.ndarray, " d"], Float[np.ndarray, " d"]]
    within: Conditional
    h: Float[np.ndarray, " t"]
    unit: Float[np.ndarray, " t"]
    density: Float[np.ndarray, " t"]
    unexplained: float
    unsure: Float[np.ndarray, " t"]

    @classmethod
    def of(
        cls,
        served: Served,
        field: FunctionsOf,
        column: int,
        at: Float[np.ndarray, " t"],
        unit: float,
        density: Float[np.ndarray, " t"],
    ) -> "DensityOf":
        """Return that of an integrand, the quantity of a place; unit : in which the problem's draws
        have it."""
        problem, marginal, standard = served.problem, served.marginal, served.standard(at / unit)
        within = Conditional.of(field.field(problem.draws, problem.scores), problem.counts)
        h, stretch = (
            marginal.at(standard),
            marginal.stretch(standard) / (problem.scale[served.column] * unit),
        )
        with np.errstate(divide="ignore"):
            by = stretch / within.at(h)
        place = problem.shift, np.diagonal(problem.lower).copy()
        unexplained = 0.0 if marginal.certain else 1 - marginal.explained
        # Between draws the map is interpolated: with half of them it differs by as much as it may
        # be wrong.
        halves = (
            []
            if marginal.is_linear
            else [
                marginal._replace(known=marginal.known[k::2], image=marginal.image[k::2])
                for k in (0, 1)
            ]
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            differences = [
                np.abs(half.stretch(standard) / marginal.stretch(standard) - 1) for half in halves
            ]
        unsure = np.max(differences, axis=0, initial=0.0) if differences else np.zeros(len(at))
        return cls(column, field, place, within, h, by, density, unexplained, unsure)

    def better(self, known: Densities, estimate: Estimate, status: Status, ess: float) -> Densities:
        """Return densities with those of this field where they are known better.

        status : of the mean of the quantity. ess : of the draws by which the regression is.
        """
        # To second order, the product of how wrong both the density and E[v·∇h | h = t] of these
        # draws were.
        with np.errstate(invalid="ignore", divide="ignore"):
            second = (
                (estimate.mean - self.density)
                * self.within.error(self.h, ess)
                / self.within.at(self.h)
            )
        # A variance less by 1 − R² is that of a density which differs, as a normal one does, by so
        # much.
        mean, sd = self.field.normal
        other = estimate.mean * self.unexplained * (1 + ((self.h - mean) / sd) ** 2) / 2
        # Of the few draws that are kept hardly one may be beyond a point, which then seems to be a
        # heavy tail.
        light = status is not Status.HEAVY_TAIL
        seen = [
            Status.CONTROLLED if light and one is Status.HEAVY_TAIL else one
            for one in estimate.status
        ]
        error = np.sqrt(
            estimate.mcse**2 + second**2 + other**2 + (estimate.mean * self.unsure) ** 2
        )
        return known.improved(
            estimate.mean,
            error,
            estimate.mean_plain,
            estimate.mcse_plain,
            np.array(seen, dtype=object),
        )

    def of_field(
        self, field: QuantityField, values: Float[np.ndarray, "b p"]
    ) -> Float[np.ndarray, "b t"]:
        """Return what is averaged at some draws."""
        # Of the field's quantity: its step is where that of the control is, and nothing is left
        # between two draws.
        terms = -field.control[:, None] * (field.value[:, None] > self.h) * self.unit
        if self.within.left > ROUNDING**2:
            terms -= self.within.influence(field, self.h) * (self.density / self.within.at(self.h))
        return np.where(np.isfinite(values[:, [self.column]]), terms, np.nan)


class AllDensitiesOf(NamedTuple):
    """What has the densities of several quantities for its means."""

    parts: tuple[DensityOf, ...]

    def __call__(
        self,
        values: Float[np.ndarray, "*b p"],
        draws: Float[np.ndarray, "*b d"],
        scores: Float[np.ndarray, "*b d"],
    ) -> Float[np.ndarray, "*b q"]:
        f, x, s = (array.reshape(-1, array.shape[-1]) for array in (values, draws, scores))
        shift, scale = self.parts[0].place
        # Together: what fields are made of is mostly the same.
        fields = fields_at(
            [density.field for density in self.parts], (x - shift) / scale, s * scale
        )
        every = [
            density.of_field(field, f) for density, field in zip(self.parts, fields, strict=True)
        ]
        return np.concatenate(every, axis=1).reshape(*values.shape[:-1], -1)


class KernelsOf(NamedTuple):
    """A quantity, normal kernels of two widths about t points, and whether it is at most these.

    column : of the quantity. at : the points. width : of the narrower kernels; the others have √2
        of it.
    """

    column: int
    at: Float[np.ndarray, " t"]
    width: float

    @classmethod
    def of(cls, chunks: InChunks, column: int, at: Float[np.ndarray, " t"]) -> "KernelsOf":
        """Return those of a quantity of a trace in chunks, with the width that ArviZ chooses, for
        all draws."""
        sample, total = chunks.question.sample, chunks.layout.chains * chunks.layout.draws
        series, unit = sample.scaled[..., column].reshape(-1), float(sample.units[column])
        # By the power of the number of draws that widths are proportional to (Silverman 1986,
        # section 3.3).
        width = kernel_density(series, at / unit, 1.0)[1] * (series.size / total) ** 0.2
        return cls(column, at, width * unit)

    def densities(self, estimate: Estimate, low: float, high: float) -> Densities:
        """Return kernel estimates from the means over all draws, of which the quantity has this
        range."""
        t = len(self.at)
        with np.errstate(invalid="ignore", divide="ignore"):
            ess = max(float((estimate.sd[0] / estimate.mcse[0]) ** 2), 1.0)
        kernel, wider, below = estimate.mean[1:].reshape(3, t)
        # As for draws in memory: an effective draw that none is there by chance, and the bias, to
        # first order.
        one, end = (
            1 / (2 * np.sqrt(np.pi) * self.width * ess),
            np.fmin(self.at - low, high - self.at) < self.width,
        )
        bias = np.where(end, np.fmax(np.abs(wider - kernel), kernel / 2), wider - kernel)
        error = np.sqrt(estimate.mcse[1 : t + 1] ** 2 + one**2 + bias**2)
        below = np.where(self.at == high, 1 - 1 / ess, below)
        return Densities.of_kernel(kernel, error, below, (ess, float(estimate.sd[0])))

    def __call__(
        self, values: Float[np.ndarray, "*b p"], draws: np.ndarray, scores: np.ndarray
    ) -> Float[np.ndarray, "*b q"]:
        del draws, scores
        quantity = values[..., [self.column]]  # itself too: its range, and its effective size
        square = ((quantity - self.at) / self.width) ** 2
        kernels = [
            np.exp(-square / (2 * by)) / np.sqrt(2 * np.pi * by) / self.width for by in (1.0, 2.0)
        ]
        return np.concatenate(
            [quantity, *kernels, np.where(np.isfinite(quantity), quantity <= self.at, np.nan)],
            axis=-1,
        )


class AllOf(NamedTuple):
    """The values of several transforms, side by side."""

    parts: tuple[Transform, ...]

    def __call__(
        self,
        values: Float[np.ndarray, "*b p"],
        draws: Float[np.ndarray, "*b d"],
        scores: Float[np.ndarray, "*b d"],
    ) -> Float[np.ndarray, "*b q"]:
        return np.concatenate(
            [transform(values, draws, scores) for transform in self.parts], axis=-1
        )


def _without_parts(estimate: Estimate) -> Float[np.ndarray, "k q"]:
    """Return means without each of some parts of the draws, from their residuals over runs."""
    rows = estimate.residuals
    # Neighbouring runs of a chain together, whose dependence is then within a part.
    each = max(PARTS // len(rows), 1)
    parts = [block for chain in rows for block in np.array_split(chain, min(each, len(chain)))]
    sizes, sums = (
        np.array([[len(block)] for block in parts]),
        np.stack([block.sum(axis=0) for block in parts]),
    )
    total = rows.shape[0] * rows.shape[1]
    without = (sums.sum(axis=0) - sums) / (total - sizes)
    return estimate.mean + without - without.mean(axis=0)


def _of_events(
    start: Estimate,
    events: "dict[int, Estimate]",
    numbers: Float[np.ndarray, "five q"],
    few: Bool[np.ndarray, " q"],
) -> Estimate:
    """Return quantiles with the status of events at them, from those of the evenly spaced draws.

    numbers : mean, mcse, both without control variates, and the cross-fitted mean.
    """
    if not events:
        return start
    one = next(iter(events.values()))
    residuals = np.empty((*one.residuals.shape[:2], len(few)))
    status, method, ratio = list(start.status), list(start.method), start.variance_ratio.copy()
    for k in range(len(few)):
        event = events.get(k)
        # A constant has no runs of its own; its residual is what it is.
        residuals[..., k] = start.mean[k] if event is None else event.residuals[..., 0]
        if event is not None:
            status[k], method[k], ratio[k] = (
                event.status[0],
                event.method[0],
                event.variance_ratio[0],
            )
        status[k] = Status.UNSEEN if few[k] and status[k] in TRUSTED else status[k]
        # Every draw is at most the largest value, which many may have: no event is unseen.
        status[k] = Status.PLAIN if status[k] is Status.UNSEEN and not few[k] else status[k]
        status[k] = Status.UNDEFINED if np.isnan(numbers[0, k]) else status[k]
    mean, mcse, mean_plain, mcse_plain, mean_crossfit = numbers
    # A polynomial through five points may do worse than the draws where these hardly gain.
    worse = (mcse > mcse_plain) | np.array([entry is Status.PLAIN for entry in status])
    mean, mcse = np.where(worse, mean_plain, mean), np.where(worse, mcse_plain, mcse)
    for k in np.flatnonzero(worse).tolist():
        status[k] = Status.PLAIN if status[k] in TRUSTED else status[k]
        method[k] = PlainMean().label
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = np.where(mcse > 0, (mcse_plain / mcse) ** 2, 1.0) + 0 * mcse
    return start._replace(
        mean=mean,
        mcse=mcse,
        gain=gain,
        variance_ratio=ratio,
        status=tuple(status),
        method=tuple(method),
        mean_plain=mean_plain,
        mcse_plain=mcse_plain,
        mean_crossfit=mean_crossfit,
        residuals=residuals,
        covariance=covariance_of(residuals, mcse),
        info=one.info | {"note": "residuals are those of the indicator of each quantile"},
    )


POINTS = np.linspace(-1.0, 1.0, 5)
"""Where a distribution function is known about a quantile, in units of how far it is looked for."""

CUBIC = 3
"""Degree of the polynomial that it is there: four errors of 16,384 draws are hundreds of those of
10⁸, and over that distance a distribution function is no parabola to within one of the latter."""

REACH = 4.0
"""Standard errors of a quantile of the evenly spaced draws within which that of all draws is looked
for."""

SPACINGS = 2.0
"""And so many of these draws at least: between two of them are others, which tell the slope."""

TIED = 10
"""Draws for each of its values from which a quantity is taken for a discrete one."""

REPEATS = 10
"""Draws with one value that a chain which stands still may have, beside a tenth of those near: more
are an atom."""

FURTHER = 3.0
"""How far outside a quantile is looked for at once, in units of a bracket."""

REAL = 1e-9
"""Imaginary part up to which a root is real."""


class Root(NamedTuple):
    """A quantile by the distribution function at the points of a bracket.

    numbers : mean, mcse, both without control variates, and the cross-fitted mean. nearest : of the
        points.
    known : whether it is between them, and they are close enough. few : whether fewer than three
        effective draws are beyond it.
    """

    numbers: tuple[float, float, float, float, float]
    nearest: int
    known: bool
    few: bool


class Bracket(NamedTuple):
    """Where a quantile of all draws is looked for, about that of some of them.

    values : (n,) in order, of some draws. points : (k,) thresholds: values themselves where these
        are few, `tied`.
    atom : whether one value near the quantile has a probability of its own, among others that have
        none.
    """

    values: Float[np.ndarray, " n"]
    level: float
    points: Float[np.ndarray, " k"]
    tied: bool
    atom: bool = False

    @classmethod
    def of(
        cls, values: Float[np.ndarray, " n"], level: float, centre: float, error: float
    ) -> "Bracket":
        """Return the bracket about a quantile with an error."""
        ordered = np.sort(values)
        known = np.unique(ordered)
        if len(known) == 1:  # and perhaps not at other draws
            return cls(ordered, level, np.array([np.nextafter(known[0], -np.inf), known[0]]), True)
        if TIED * len(known) < len(ordered):
            return cls(
                ordered, level, known[_about(int(np.searchsorted(known, centre)), len(known))], True
            )
        margin = SPACINGS / len(ordered)
        spacing = np.ptp(np.quantile(ordered, np.clip([level - margin, level + margin], 0, 1))) / 2
        reach = max(REACH * error, spacing) if np.isfinite(error) else spacing
        inside = ordered[np.abs(ordered - centre) <= reach]
        most = np.unique(inside, return_counts=True)[1].max(initial=0)
        atom = reach == 0 or most > REPEATS + len(inside) / TIED
        return cls(ordered, level, centre + reach * POINTS, False, bool(atom))

    def moved(self, root: Root) -> "Bracket":
        """Return another one about a quantile that is not known yet."""
        if self.tied:
            known = np.unique(self.values)
            return self._replace(
                points=known[_about(int(np.searchsorted(known, root.numbers[0])), len(known))]
            )
        return self._replace(points=root.numbers[0] + REACH * root.numbers[1] * POINTS)

    def root(self, below: Estimate) -> Root:
        """Return the quantile, from P(h ≤ t) at the points."""
        with np.errstate(invalid="ignore", divide="ignore"):
            size = float(np.nanmax((below.sd / below.mcse_plain) ** 2, initial=0.0))
        few = bool(size * min(self.level, 1 - self.level) < RULE_OF_THREE)
        if not np.isfinite(below.mean).all():
            return Root((np.nan,) * 5, 0, True, False)
        return (self._of_values if self.tied else self._of_curve)(below, few)

    def _of_curve(self, below: Estimate, few: bool) -> Root:
        centre, reach = self.points.mean(), np.ptp(self.points) / 2

        def curve(values: Float[np.ndarray, " k"], degree: int) -> np.polynomial.Polynomial:
            return np.polynomial.Polynomial.fit(POINTS, values, degree, domain=[-1, 1])

        function, plain, crossfit = (
            curve(means, CUBIC) for means in (below.mean, below.mean_plain, below.mean_crossfit)
        )
        at = self._where(function)
        if at is None:
            # By a line: only where to look next, and with an error that is as large as what is
            # left.
            line = curve(below.mean, 1)
            slope = max(float(line.deriv()(0.0)), np.finfo(float).tiny)
            at = float(np.clip((self.level - line(0.0)) / slope, -FURTHER, FURTHER))
            left, inside = reach * max(abs(at), 1.0), False
        else:
            slope, again = float(function.deriv()(at)), self._where(curve(below.mean, CUBIC + 1))
            # What a polynomial of one degree more moves it by bounds what this one does not follow.
            left, inside = reach * (2.0 if again is None else abs(again - at)), True
        slope /= reach
        quantile = centre + reach * at
        mcse, mcse_plain = (
            self._in_units(float(np.interp(at, POINTS, errors)), slope)
            for errors in (below.mcse, below.mcse_plain)
        )
        mean_plain, mean_crossfit = (
            quantile + (float(function(at)) - float(polynomial(at))) / slope
            for polynomial in (plain, crossfit)
        )
        # Beyond what the noise of five points may do, it is what the polynomial does not follow.
        left = np.sqrt(max(left**2 - mcse**2, 0.0))
        numbers = (quantile, float(np.hypot(mcse, left)), mean_plain, mcse_plain, mean_crossfit)
        return Root(
            numbers, int(np.argmin(np.abs(POINTS - at))), bool(inside and left <= mcse), few
        )

    def _where(self, function: np.polynomial.Polynomial) -> float | None:
        """Return where a distribution function has the level, between the points; None where
        nowhere."""
        # Of a cubic there may be three; that of a distribution function is where it rises, nearest
        # to the middle.
        roots = (function - self.level).roots()
        real = roots.real[(np.abs(roots.imag) < REAL) & (np.abs(roots.real) <= 1)]
        real = real[function.deriv()(real) > 0]
        return float(real[np.argmin(np.abs(real))]) if len(real) else None

    def _in_units(self, error: float, slope: float) -> float:
        """Return the error of a quantile from that of the probability there.

        In a tail that is known to a tenth at best the distribution function is no straight line
        within its error.
        """
        known = float(np.hypot(error, ROUNDING)) / slope
        if error < STRAIGHT * min(self.level, 1 - self.level):
            return known
        # Then the draws themselves say how far apart the levels are that it may have.
        ends = np.quantile(self.values, np.clip([self.level - error, self.level + error], 0, 1))
        return max(known, float(np.ptp(ends)) / 2)

    def _of_values(self, below: Estimate, few: bool) -> Root:
        """Return the least of the values that has the level, and its distance from those which may
        be it."""
        known = np.unique(self.values)

        def least(function: Float[np.ndarray, " k"]) -> int:
            return int(
                np.searchsorted(np.maximum.accumulate(function), self.level).clip(
                    0, len(function) - 1
                )
            )

        def error(
            function: Float[np.ndarray, " k"], errors: Float[np.ndarray, " k"], at: int
        ) -> float:
            # P(level ≤ F(v)) for each value v: the least with the level may be any that is as near
            # as its error.
            deviates = (function - self.level) / np.where(errors > 0, errors, np.finfo(float).tiny)
            chances = np.diff(
                np.concatenate([[0.0], np.maximum.accumulate(ndtr(deviates))]), append=1.0
            )
            chances[-2] += chances[-1]  # beyond the last
            return float(np.sqrt(chances[:-1] @ (self.points - self.points[at]) ** 2))

        if len(known) == 1 and below.mean[0] >= self.level:
            # One value at some thousand draws, and yet the quantile is another: they do not say
            # which.
            return Root((np.nan,) * 5, 0, True, False)
        at, plain = least(below.mean), least(below.mean_plain)
        below_first = below.mean[0] >= self.level and self.points[0] > known[0]
        above_last = below.mean[-1] < self.level and self.points[-1] < known[-1]
        return Root(
            (
                float(self.points[at]),
                error(below.mean, below.mcse, at),
                float(self.points[plain]),
                error(below.mean_plain, below.mcse_plain, plain),
                float(self.points[least(below.mean_crossfit)]),
            ),
            at,
            not (below_first or above_last),
            few,
        )


def _about(place: int, size: int) -> Int[np.ndarray, " k"]:
    """Return up to five places about one, of so many."""
    return np.unique(np.clip(place + np.arange(len(POINTS)) - len(POINTS) // 2, 0, size - 1))
