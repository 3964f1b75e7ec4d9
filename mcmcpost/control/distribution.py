"""The marginal distributions of quantities: probabilities, quantiles, intervals and densities.

Every number is a controlled expectation, or follows from some: a probability is one, a quantile is
where a distribution function that is made of them has a level, and a density is that of c 1{h > t},
c the control of the quantity's mean.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import isotonic_regression

from mcmcpost.control import order_statistics
from mcmcpost.control.auto import Auto
from mcmcpost.control.estimate import (
    Curve,
    Estimate,
    assemble,
    placed,
    rescaled,
    side_by_side,
)
from mcmcpost.control.features.families import NEED
from mcmcpost.control.features.quantity import doubt_of_steps
from mcmcpost.control.functions import (
    SAME,
    SPLINES,
    Marginal,
    Splines,
    crossfit_functions,
    marginals,
)
from mcmcpost.control.method import (
    AbstractControlVariate,
    PlainMean,
    mean_of_residuals,
    replace_columns,
)
from mcmcpost.control.problem import Options, Problem, Sample, with_values
from mcmcpost.control.quantiles import quantiles, sd_of
from mcmcpost.control.standard_errors import RULE_OF_THREE, plain_means, plain_variance
from mcmcpost.core.arguments import as_real, check_number, check_probabilities
from mcmcpost.core.arrays import LARGE, in_blocks
from mcmcpost.core.errors import TRUSTED, InputError, Status
from mcmcpost.core.mcse import mcse_mean, mean_over_draws
from mcmcpost.core.precision import in_float64
from mcmcpost.core.runtime import SHOWN
from mcmcpost.scores import effective_size

EPS = float(np.finfo(float).eps)
"""The least error of a probability."""

UNSURE = 1 / 3
"""Relative error of E[v·∇h | h] from which no density is had from it."""


class OverAll(Protocol):
    """What is known of the p quantities of a sample by more draws than it has."""

    def probabilities(
        self,
        of: Int[np.ndarray, " q"],
        lower: Float[np.ndarray, " q"],
        upper: Float[np.ndarray, " q"],
    ) -> Estimate:
        """Return the probabilities that quantities are above one number and at most another."""

    def quantiles(self, levels: Float[np.ndarray, " a"]) -> Estimate:
        """Return the quantiles of all p quantities, those of one after those of another."""

    def shortest(self, prob: float) -> Estimate:
        """Return the ends of the shortest intervals of all p quantities, those of one after those
        of another."""

    def densities(self, of: Int[np.ndarray, " r"], at: Float[np.ndarray, "r t"]) -> list[Curve]:
        """Return the densities of some quantities, each at points of its own."""

    def select(self, places: Int[np.ndarray, " r"]) -> "OverAll":
        """Return what is known of some of the quantities."""


class Distribution(NamedTuple):
    """The marginal distributions of some quantities, of which everything can be asked.

    sample : the quantities that differ. names : of all, and place : (p,) which of the sample each
        of them is.
    problem : of those that vary, `columns` of the sample; None where nothing does.
    marginals : of these, what is known of their functions.
    over_all : of a trace in chunks, of which the sample has evenly spaced draws: what all of them
        say.
    """

    sample: Sample
    names: tuple[str, ...]
    place: Int[np.ndarray, " p"]
    method: AbstractControlVariate
    options: Options
    problem: Problem | None
    marginals: tuple[Marginal | None, ...]
    over_all: OverAll | None = None

    def __repr__(self) -> str:
        """Return the names: the arrays of a tuple fill screens."""
        names = [*self.names[:SHOWN], *["…"] * (len(self.names) > SHOWN)]
        return f"Distribution of {', '.join(names)}"

    @property
    def explained(self) -> Float[np.ndarray, " p"]:
        """R² of every quantity by what stands for it; NaN where nothing does.

        One for a coordinate of the trace and what is monotone in one, at least .98 for a cubic of a
        few coordinates. Functions of what is explained by less gain less; they are right all the
        same.
        """
        known = [self.marginal(int(j)) for j in self.place]
        return np.array([np.nan if one is None else one.explained for one in known])

    @classmethod
    def of(
        cls,
        sample: Sample,
        method: AbstractControlVariate,
        options: Options,
        *,
        of_all: bool = True,
    ) -> "Distribution":
        """Return the distributions of the integrands of a sample; `standardize` and `fallback` are
        not used.

        of_all : the draws are all there are, so that integrands which are the same at each of them
            are the same.
        """
        options = options._replace(standardize=None, fallback=True)
        options.check(sample.trace)
        distinct, place = (
            sample.without_repeats() if of_all else (sample, np.arange(len(sample.names)))
        )
        problem = distinct.problem(options)
        known: tuple[Marginal | None, ...] = ()
        if problem is not None:
            known = tuple(marginals(problem, method))
        return cls(distinct, sample.names, place, method, options, problem, known)

    @in_float64
    def cdf(self, thresholds: "float | Sequence[Any] | np.ndarray") -> Curve:
        """Return P(h ≤ t) of every quantity, which does not decrease in t.

        thresholds : t points for all quantities, or (p, t) for each its own.
        """
        at = self._points("cdf", thresholds)
        rows = []
        if self.over_all is None:
            # Each block has as many indicators: their covariances alone, which a curve has not, are
            # of 20,000 points 3 GB.
            blocks = list(in_blocks(at.shape[1], self.sample.values[..., 0].size, LARGE))
            for j, row in zip(self.place.tolist(), at, strict=True):
                one = self._prepared(np.array([j]))
                rows.append(Curve.of(row, [one.below(row[None, block]) for block in blocks]))
        else:
            of = np.repeat(self.place, at.shape[1])
            estimate = self.over_all.probabilities(of, np.full(at.size, -np.inf), at.reshape(-1))
            each = [estimate.select(row) for row in np.arange(at.size).reshape(at.shape)]
            rows = [Curve.of(row, [density]) for row, density in zip(at, each, strict=True)]
        curve = Curve.side_by_side(rows, self.names)
        # Each probability is estimated by itself: together they may decrease by as much as their
        # errors. One that is hardly known, as a plain one, must not move one that is known well.
        order = np.argsort(at, axis=1, kind="stable")
        mean = curve.mean.copy()
        weights = np.maximum(np.where(np.isfinite(curve.mcse), curve.mcse, 1.0), EPS) ** -2.0
        for probabilities, weight, by in zip(mean, weights, order, strict=True):
            known = by[np.isfinite(probabilities[by])]
            if len(known):
                rising = isotonic_regression(probabilities[known], weights=weight[known])
                probabilities[known] = rising.x
        return curve._replace(mean=np.clip(mean, 0.0, 1.0))

    @in_float64
    def probability(self, lower: float = -np.inf, upper: float = np.inf) -> Estimate:
        """Return P(lower ≤ h ≤ upper) of every quantity."""
        cure = "Pass lower=0.0, upper=1.0, or both."
        for name, bound in (("lower", lower), ("upper", upper)):
            check_number("probability", name, bound, cure, inside="[-inf, inf]")
        if not lower < upper or np.isinf([lower, upper]).all():
            raise InputError(
                "probability", "`lower` below `upper`, one of them finite", (lower, upper), cure
            )
        # A draw at the lower bound is inside: the step is below it.
        finite_low = np.nextafter(lower, -np.inf)
        finite = [bound for bound in (finite_low, upper) if np.isfinite(bound)]

        def answer(dist: Distribution) -> Estimate:
            values = dist.sample.values
            with np.errstate(invalid="ignore"):
                inside = np.where(
                    np.isfinite(values), (values >= lower) & (values <= upper), np.nan
                )
            return dist.events(inside, np.tile(finite, (values.shape[-1], 1)), shared=True)[0]

        if self.over_all is None:
            estimate = self._by_quantity(answer)
        else:
            every = np.arange(len(self.sample.names))
            estimate = self.over_all.probabilities(
                every, *(np.full(len(every), end) for end in (finite_low, upper))
            )
        inequality = [
            f"{lower:g} <= " if np.isfinite(lower) else "",
            f" <= {upper:g}" if np.isfinite(upper) else "",
        ]
        labels = tuple(f"P({inequality[0]}{name}{inequality[1]})" for name in self.names)
        return placed(_clipped(estimate), labels, self.place)

    def quantile(self, probabilities: "float | Sequence[float] | np.ndarray") -> Estimate:
        """Return the quantiles at some levels in (0, 1), those of one quantity after those of
        another."""
        quantiles, _ = self.quantiles_and_interval(check_probabilities(probabilities), None)
        assert quantiles is not None
        return quantiles

    def interval(self, prob: float = 0.89, kind: str = "eti") -> Estimate:
        """Return the lower and the upper bound of an interval of every quantity, named as in
        ``az.summary``.

        With fewer than three effective draws beyond either bound it is ``unseen``: of the shortest,
        fewer than six outside.

        kind : ``"eti"`` with equal tails, or ``"hdi"``, the shortest.
        """
        check_number("interval", "prob", prob, "Pass prob=0.89.", inside="(0, 1)")
        if kind not in ("eti", "hdi"):
            raise InputError(
                "interval", '`kind` to be "eti" or "hdi"', repr(kind), 'Pass kind="hdi".'
            )
        _, bounds = self.quantiles_and_interval(None, (prob, kind))
        assert bounds is not None
        return bounds

    @in_float64
    def quantiles_and_interval(
        self, levels: Float[np.ndarray, " a"] | None, interval: tuple[float, str] | None
    ) -> tuple[Estimate | None, Estimate | None]:
        """Return `quantile` of distinct levels and `interval` of (prob, kind), None for what is not
        wanted.

        Quantiles of one quantity share what is prepared for it, so that both together take half as
        long as one after the other.
        """
        wanted = [] if levels is None else levels.tolist()
        tails: list[float] = []
        bounds: Estimate | None = None
        title = ""
        if interval is not None:
            prob, kind = interval
            title = f"{kind}{int(prob * 100)}"  # as ArviZ rounds it
            if kind == "eti":
                tails = [(1 - prob) / 2, (1 + prob) / 2]
            elif self.over_all is not None:
                bounds = self.over_all.shortest(prob)
            else:
                bounds = self._by_quantity(partial(_shortest, prob=prob), singly=True)
        distinct = list(dict.fromkeys(wanted + tails))
        estimate = self._quantiles(np.array(distinct)) if distinct else None

        def rows(of: list[float]) -> Int[np.ndarray, "p a"]:
            return self.place[:, None] * len(distinct) + [distinct.index(level) for level in of]

        quantiles = None
        if levels is not None and estimate is not None:
            labels = order_statistics.quantile_labels(self.names, levels)
            quantiles = placed(estimate, labels, rows(wanted).reshape(-1))
        if interval is None:
            return quantiles, None
        place = rows(tails) if bounds is None else 2 * self.place[:, None] + np.arange(2)
        ends = estimate if bounds is None else bounds
        assert ends is not None
        labels = tuple(f"{name} [{title}_{end}]" for name in self.names for end in ("lb", "ub"))
        return quantiles, placed(ends, labels, place.reshape(-1))

    @in_float64
    def pdf(self, points: "float | Sequence[Any] | np.ndarray") -> Curve:
        """Return the density of every quantity, without a bandwidth where its mean is controlled.

        With the field v that controls the mean of h, E[c 1{h > t}] = −p(t) E[v·∇h | h = t]: an
        ordinary expectation, which is controlled as a probability is, over a regression on h. Where
        its error is smaller it is a kernel estimate, ``plain``, whose bias is in the error to first
        order. With fewer than three effective draws beyond a point it is ``unseen``, with at least
        the error of that. What has a few values only, as a count, has probabilities and no density:
        NaN, ``undefined``.

        points : t points for all quantities, or (p, t) for each its own.
        """
        at = self._points("pdf", points)
        if self.over_all is None:
            rows = [
                _densities(self._prepared(np.array([j])), row)
                for j, row in zip(self.place.tolist(), at, strict=True)
            ]
        else:
            rows = self.over_all.densities(self.place, at)
        return Curve.side_by_side(rows, self.names)

    def _quantiles(self, levels: Float[np.ndarray, " a"]) -> Estimate:
        if self.over_all is None:
            return self._by_quantity(partial(quantiles, probabilities=levels))
        return self.over_all.quantiles(levels)

    def _points(
        self, where: str, points: "float | Sequence[Any] | np.ndarray"
    ) -> Float[np.ndarray, "p t"]:
        at = np.atleast_1d(as_real(where, "points", points)).astype(float)
        fits = at.ndim <= 2 and at.size and (at.ndim == 1 or len(at) == len(self.names))
        if not fits or not np.isfinite(at).all():
            expected = f"finite points (t,), or ({len(self.names)}, t) for each quantity its own"
            got = "NaN or an infinity" if fits else f"shape {at.shape}"
            raise InputError(where, expected, got, "Pass numpy.linspace(0, 1, 41).")
        return np.broadcast_to(at, (len(self.names), at.shape[-1]))

    def select(self, places: Int[np.ndarray, " q"]) -> "Distribution":
        """Return the distributions of the quantities at some places of the sample."""
        columns = np.flatnonzero(np.isin(self.sample.columns, places))
        sample = self.sample.select(places)
        return self._replace(
            sample=sample,
            names=sample.names,
            place=np.arange(len(places)),
            problem=self.problem.select(columns)
            if self.problem is not None and len(columns)
            else None,
            marginals=tuple(self.marginals[column] for column in columns),
            over_all=None if self.over_all is None else self.over_all.select(places),
        )

    def _prepared(self, places: Int[np.ndarray, " k"]) -> "Distribution":
        """Return the distributions of some quantities of the sample, with the regressions of their
        functions at hand."""
        chosen = self.select(places)
        if chosen.problem is None:
            return chosen
        known = (None if m is None else m.prepared(chosen.problem) for m in chosen.marginals)
        return chosen._replace(marginals=tuple(known))

    def _by_quantity(
        self, answer: "Callable[[Distribution], Estimate]", *, singly: bool = False
    ) -> Estimate:
        """Return the results for all quantities, in their order.

        Those whose functions are known are taken some at a time, or each by itself where all are
        taken `singly`; the others at once, since they share their regression.
        """
        p = len(self.sample.names)
        known = np.array([singly or self.marginal(j) is not None for j in range(p)])
        alone, others = np.flatnonzero(known), np.flatnonzero(~known)
        # Side by side they take half of the time, and some hundred numbers a state and quantity.
        width = SPLINES * self.sample.values[..., 0].size
        groups = in_blocks(len(alone), width, 1 if singly else LARGE)
        parts = [answer(self._prepared(alone[group])) for group in groups]
        parts += [answer(self.select(others))] if len(others) else []
        estimate = side_by_side(parts, self.sample.trace.weights)
        each = len(estimate.mean) // p
        first = np.argsort(np.concatenate([alone, others])) * each
        return estimate.select((first[:, None] + np.arange(each)).reshape(-1))

    def marginal(self, j: int) -> Marginal | None:
        """Return what is known of a quantity of the sample."""
        place = np.flatnonzero(self.sample.columns == j)
        return self.marginals[place[0]] if len(place) else None

    def standard(self, j: int, thresholds: Float[np.ndarray, " t"]) -> Float[np.ndarray, " t"]:
        """Return thresholds of a quantity of the sample, in its own units, in those of the
        problem."""
        place = int(np.flatnonzero(self.sample.columns == j)[0])
        assert self.problem is not None
        return (
            thresholds / self.sample.units[j] - self.problem.location[place]
        ) / self.problem.scale[place]

    def mapped(
        self, j: int, marginal: Marginal, points: Float[np.ndarray, " t"]
    ) -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, " t"]]:
        """Return the marginal's h at some points of a quantity of the sample, and dh by the
        quantity there."""
        place = int(np.flatnonzero(self.sample.columns == j)[0])
        assert self.problem is not None
        standard, unit = self.standard(j, points), self.problem.scale[place] * self.sample.units[j]
        return marginal.at(standard), marginal.stretch(standard) / unit

    def _steps(
        self, j: int, marginal: Marginal, thresholds: Float[np.ndarray, " t"]
    ) -> Float[np.ndarray, " t"]:
        """Return h at thresholds of a quantity, between the same draws as these where rounding
        decides.

        A draw that is equal to a threshold could be on the other side of it, and nothing would be
        exact.
        """
        assert self.problem is not None
        steps = marginal.at(self.standard(j, thresholds))
        series = self.sample.values[..., j].reshape(-1)
        order = np.argsort(series, kind="stable")
        h = next(iter(marginal.fields.values())).value[self.problem.inverse][order]
        number = np.searchsorted(series[order], thresholds, side="right")
        low = np.concatenate([[-np.inf], np.maximum.accumulate(h)])[number]
        high = np.concatenate([np.minimum.accumulate(h[::-1])[::-1], [np.inf]])[number]
        between = np.where(low < high, np.clip(steps, low, np.nextafter(high, low)), steps)
        # Of what is no coordinate, a step may be anywhere between two draws: only its error tells.
        return np.where(np.abs(between - steps) <= SAME * np.ptp(h), between, steps)

    def _doubt(
        self,
        j: int,
        marginal: Marginal,
        thresholds: Float[np.ndarray, " t"],
        steps: Float[np.ndarray, " t"],
    ) -> Float[np.ndarray, " t"]:
        """Return the error of the probability of each event from a step that may be elsewhere."""
        if marginal.certain and marginal.is_linear:
            return np.zeros(len(steps))
        assert self.problem is not None
        value = next(iter(marginal.fields.values())).value
        unsure = marginal.unsure(self.standard(j, thresholds))[0] if marginal.certain else None
        return doubt_of_steps(value, self.problem.num_states, steps, unsure)

    def effective_sizes(self) -> Float[np.ndarray, " p"]:
        """Return the effective sample sizes of the quantities of the sample; infinite for one that
        is not finite."""
        p, known = len(self.sample.names), self.sample.varying
        if self.sample.trace.weights is not None:
            return np.full(p, self.sample.trace.weights.ess)
        sizes = np.full(p, np.inf)
        series = self.sample.scaled[..., known]
        sizes[known] = effective_size(series, series.std(axis=(0, 1)))
        return sizes

    def below(self, thresholds: Float[np.ndarray, "p t"]) -> Estimate:
        """Return P(h ≤ t) of the quantities of the sample, each at t thresholds of its own."""
        values = self.sample.values[..., None]
        with np.errstate(invalid="ignore"):
            below = np.where(np.isfinite(values), values <= thresholds, np.nan)
        return self.events(below.reshape(*values.shape[:2], -1), thresholds, shared=False)[0]

    def events(
        self,
        values: Float[np.ndarray, "c n q"],
        thresholds: Float[np.ndarray, "p t"],
        *,
        shared: bool,
    ) -> tuple[Estimate, Float[np.ndarray, "f q"]]:
        """Return the probabilities of events of the quantities of the sample, and those without
        each fold.

        shared : an event of each quantity has all of its thresholds as steps; otherwise there are t
            events of each.
        """
        sample, each = self.sample, 1 if shared else thresholds.shape[1]
        of = np.repeat(np.arange(len(sample.names)), each)
        labels, unknown = tuple(sample.names[j] for j in of), (sample.varying | sample.unseen)[of]
        events = Sample.of(sample.trace, labels, values, unknown, sample.states)
        plain_events = plain_means(events, self.effective_sizes()[of])
        if self.problem is None or (problem := events.problem_on(self.problem)) is None:
            estimate = assemble(events, self.options, plain=plain_events)
            return estimate, estimate.mean[None]
        plain = plain_variance(problem)
        # Events of what is no known function of the coordinates are regressed on the scores, as any
        # integrand.
        direct: list[int] = []
        splines: list[tuple[np.ndarray, Mapping[str, Splines]]] = []
        steps, doubt = np.zeros(len(plain)), np.zeros(len(plain))
        for j in range(len(sample.names)):
            members = np.flatnonzero(of[events.columns] == j)
            marginal = self.marginal(j)
            if marginal is None or not marginal.fields:
                direct += members.tolist()
            elif len(members):
                marginal_steps = self._steps(j, marginal, thresholds[j])
                marginal_doubt = self._doubt(j, marginal, thresholds[j], marginal_steps)
                if shared:
                    fields = {
                        name: Splines.of(problem, field, marginal_steps)
                        for name, field in marginal.fields.items()
                    }
                    splines.append((members, fields))
                    doubt[members] = np.linalg.norm(marginal_doubt)
                else:
                    splines.append((members, marginal.splines))
                    columns = events.columns[members] - j * each
                    steps[members], doubt[members] = (
                        marginal_steps[columns],
                        marginal_doubt[columns],
                    )
        best = crossfit_functions(problem, splines, plain, None if shared else steps)
        # Where no draw is on the wrong side of a step, residuals show nothing.
        controlled = np.array([status is not Status.PLAIN for status in best.status])
        doubt = np.where(controlled, doubt / problem.scale, 0.0)
        best = best._replace(doubt=np.hypot(best.doubt, doubt))
        if direct:
            # A kernel for each of hundreds of indicators gains little and takes seconds.
            method = (
                dataclasses.replace(self.method, kernel=False)
                if isinstance(self.method, Auto)
                else self.method
            )
            direct_columns = np.array(direct)
            best = replace_columns(
                best,
                method.crossfit(problem.select(direct_columns)),
                direct_columns,
                np.arange(len(direct_columns)),
            )
        estimate = assemble(events, self.options, problem, best, plain_events)
        # The jackknife of shortest intervals asks for these: of plain estimates those of the draws.
        without = np.repeat(estimate.mean[None], problem.folds.num_folds, axis=0)
        moved = np.asarray(best.refits.without_fold)
        used = estimate.mean[events.columns] != estimate.mean_plain[events.columns]
        controlled = problem.location + problem.scale * moved
        without[:, events.columns] = np.where(
            used & np.isfinite(moved), controlled, _without_folds(problem)
        )
        return estimate, without


BETTERED = (Status.PLAIN, Status.CONTROLLED, Status.REGULARISED, Status.HEAVY_TAIL)
"""Statuses of events that their margin may better: what is exact, or not known, stays."""


def by_margins(
    estimate: Estimate,
    sample: Sample,
    margins: Mapping[str, Sequence[Float[np.ndarray, "c n"]]],
    method: AbstractControlVariate,
    options: Options,
) -> Estimate:
    """Return the expectations of a sample, its events of comparisons by the distributions of their
    margins where that lowers their errors.

    P(a + b > 0) gains as the distribution of a + b does. The event's own values show no more than a
    step along a direction that is not known.

    margins : of events of the sample by name: one value above zero and the other below.
    """
    # A place for each margin.
    places = np.array(
        [
            j
            for j, name in enumerate(sample.names)
            for _ in margins.get(name, ())
            if estimate.status[j] in BETTERED
        ],
        dtype=int,
    )
    # Known moments are of the expectation alone, and the plain mean asks for no control.
    if not len(places) or isinstance(method, PlainMean) or options.standardize is not None:
        return estimate
    names = tuple(sample.names[j] for j in places)
    each = np.stack([m for j in np.unique(places) for m in margins[sample.names[j]]], axis=-1)
    quantities = Sample.of(sample.trace, names, each, np.zeros(len(names), bool), sample.states)
    dist = Distribution.of(quantities, method, options, of_all=False)
    steps = np.zeros((len(names), 1))
    events = dist.events(sample.values[..., places], steps, shared=True)[0]
    source, lowest = np.arange(len(sample.names)), estimate.mcse**2
    for k, j in enumerate(places):
        if events.mcse[k] ** 2 * NEED < lowest[j]:
            source[j], lowest[j] = len(source) + k, events.mcse[k] ** 2
    if (source < len(source)).all():
        return estimate
    return side_by_side([estimate, events], sample.trace.weights).select(source)


def _without_folds(problem: Problem) -> Float[np.ndarray, "k p"]:
    """Return the plain means without each fold."""
    nothing = np.zeros_like(problem.values)
    return problem.location + problem.scale * np.asarray(
        mean_of_residuals(problem, nothing)[1].without_fold
    )


def _clipped(estimate: Estimate) -> Estimate:
    return estimate._replace(mean=np.clip(estimate.mean, 0.0, 1.0))


def _densities(dist: Distribution, at: Float[np.ndarray, " t"]) -> Curve:
    """Return the density of the quantity of a sample of one."""
    # p(t) = −E[c 1{h > t}]/E[v·∇h | h = t] (docs/mathematics.md section 2): the numerator is an
    # expectation.
    sample, problem, marginal, each = dist.sample, dist.problem, dist.marginal(0), at[None]
    series, scale = sample.scaled[..., 0], sample.units[0]
    varies = bool(sample.varying[0]) and problem is not None
    if problem is None or not varies or order_statistics.has_few_values(series, problem.num_states):
        nothing = np.full(each.shape, np.nan)
        same = Status.CONSTANT if sample.finite[0] and not varies else Status.UNDEFINED
        status = np.array([[same] * len(at)], dtype=object)
        return Curve((), each, nothing, nothing, nothing, nothing, nothing, status)
    ess = float(dist.effective_sizes()[0])
    kernel, kernel_error = order_statistics.density_of_draws(sample, at / scale, ess)
    below = mean_over_draws((series[..., None] <= at / scale).astype(float), sample.trace.weights)
    # The largest draw itself has none above it, and yet is one.
    below = np.where(at / scale == series.max(), 1 - 1 / series.size, below)
    known = order_statistics.Densities.of_kernel(
        kernel / scale, kernel_error / scale, below, (ess, float(series.std()) * scale)
    )
    if marginal is None:
        return known.curve(at)
    h, stretch = dist.mapped(0, marginal, at)
    for splines in marginal.splines.values():
        field = splines.field
        slope, slope_error = field.conditional(problem.counts, h, ess)
        slope_error = np.hypot(slope_error, field.unlike_coarse(problem.counts, h))
        value, control = (
            at_states[problem.inverse].reshape(*series.shape, 1)
            for at_states in (field.value, field.control)
        )
        # What is controlled is the density of what stands for the quantity: with an R² of 0.988 it
        # may be 15 % off.
        change = change_error = np.zeros(len(at))
        if not marginal.certain:
            quantity_values = problem.values[problem.inverse, 0].reshape(series.shape)
            change, change_error = order_statistics.density_of_leftover(
                quantity_values, value[..., 0], h, sample.trace.weights
            )
        products = Sample.of(
            sample.trace,
            tuple(map(str, at)),
            -control * (value > h),
            np.zeros(len(at), bool),
            sample.states,
        )
        product_problem = products.problem_on(problem)
        columns = products.columns
        if product_problem is None:
            continue
        fit = splines.crossfit(
            product_problem, "density", field.ramps(product_problem.counts, h[columns])
        )
        estimate = assemble(products, dist.options, product_problem, fit)
        with np.errstate(invalid="ignore", divide="ignore"):
            unit = stretch / slope
            density, plain = estimate.mean * unit, estimate.mean_plain * unit
            raw = estimate.mcse_plain * np.abs(unit)
            deviation = np.hypot(
                np.hypot(estimate.mcse * unit, density * slope_error / slope),
                change_error * stretch,
            )
            if not marginal.is_linear:
                deviation = np.hypot(deviation, density * marginal.unsure(dist.standard(0, at))[1])
            density = density + change * stretch
        status = np.array(estimate.status, dtype=object)
        # The mean is exact to rounding, and the map from the quantity to the coordinate is
        # interpolated.
        status[
            np.isin(status, (Status.EXACT, Status.ON_TRUST))
            & ~(deviation <= order_statistics.ROUNDING * density)
        ] = Status.CONTROLLED
        deviation = np.where(np.isin(np.arange(len(at)), columns), deviation, np.nan)
        # Over a slope that is mostly error a density is anything, and its error as small as itself.
        deviation[slope_error > UNSURE * np.abs(slope)] = np.nan
        known = known.improved(density, deviation, plain, raw, status)
    return known.curve(at)


def _shortest(dist: Distribution, prob: float) -> Estimate:
    """Return the ends of the shortest interval of one quantity, and their errors from leaving out
    folds."""
    sample, whole, weights = dist.sample, dist.problem, dist.sample.trace.weights
    series = sample.scaled
    numbers = np.full((4, 2), np.nan)  # mean, mcse, and both without control variates
    if not sample.varying[0] or whole is None:
        value = np.median(series)
        numbers[:] = np.array([value, 0.0, value, 0.0])[:, None] if sample.finite[0] else np.nan
        status: tuple[Status, ...] = (
            Status.CONSTANT if sample.finite[0] else Status.UNDEFINED,
        ) * 2
        method: tuple[str, ...] = (PlainMean().label,) * 2
        residuals = np.repeat(series, 2, axis=2)
    else:

        def below(grid: np.ndarray) -> Float[np.ndarray, "c n t"]:
            return (series <= grid.reshape(-1)).astype(float)

        def controlled(grid: np.ndarray) -> order_statistics.Known:
            probabilities, without = dist.events(
                below(grid), grid.reshape(1, -1) * sample.units, shared=False
            )
            return order_statistics.Known(
                probabilities.mean, probabilities.mcse, without, probabilities.residuals, weights
            )

        def plain(grid: np.ndarray) -> order_statistics.Known:
            events = below(grid)
            problem = with_values(whole, events, sample.states, weights)
            return order_statistics.Known(
                problem.location,
                mcse_mean(events, weights),
                _without_folds(problem),
                events,
                weights,
            )

        ends, reach = order_statistics.shortest_of_draws(series[..., 0], prob)
        numbers[:2] = order_statistics.converged_ends(controlled, ends, reach, series[..., 0], prob)
        numbers[2:] = order_statistics.converged_ends(plain, ends, reach, series[..., 0], prob)
        there, _ = dist.events(below(numbers[0]), numbers[:1] * sample.units, shared=False)
        status, method, residuals = there.status, there.method, there.residuals
        # Both ends are of one interval: one of either would hold another probability, and neither
        # error would be right. So the end at which nothing is controlled has the other's method.
        known = [end for end in (0, 1) if status[end] is not Status.PLAIN]
        if known and np.linalg.norm(numbers[1]) < np.linalg.norm(numbers[3]):
            status = tuple(status[end if end in known else known[0]] for end in (0, 1))
            method = tuple(method[end if end in known else known[0]] for end in (0, 1))
        else:
            numbers[:2], status, method = numbers[2:], (Status.PLAIN,) * 2, (PlainMean().label,) * 2
        # As the bounds of an interval with equal tails are, each with half of what is outside.
        if dist.effective_sizes()[0] * (1 - prob) / 2 < RULE_OF_THREE:
            status = tuple(Status.UNSEEN if one in TRUSTED else one for one in status)
    mean, mcse, mean_plain, mcse_plain = numbers
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = np.where(mcse > 0, (mcse_plain / mcse) ** 2, 1.0)
    estimate = Estimate(
        names=sample.names * 2,
        mean=mean,
        mcse=mcse,
        gain=gain,
        variance_ratio=gain,
        status=status,
        method=method,
        sd=np.repeat(sd_of(series.reshape(-1, 1), weights), 2),
        mean_plain=mean_plain,
        mcse_plain=mcse_plain,
        mean_crossfit=mean,
        residuals=residuals,
        covariance=np.diag(mcse**2),  # with all quantities, when they are side by side
        info={"note": "residuals are those of an indicator near each end"},
    )
    return rescaled(estimate, np.repeat(sample.units, 2))._replace(residuals=residuals)
