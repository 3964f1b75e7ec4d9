"""Public functions of marginal distributions: probabilities, quantiles, intervals, densities."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import ndtr

from mcmcpost.control import AbstractControlVariate, Distribution, Estimate, Options, PlainMean
from mcmcpost.control.distribution import STRAIGHT
from mcmcpost.control.estimate import covariance_of
from mcmcpost.control.order_statistics import ROUNDING
from mcmcpost.control.standard_errors import RULE_OF_THREE
from mcmcpost.core.arguments import check_number, check_probabilities
from mcmcpost.core.errors import TRUSTED, InputError, Status
from mcmcpost.core.precision import in_float64
from mcmcpost.sample import Question, contradicted, pose, warn_of_contradiction
from mcmcpost.sums import InChunks, is_summed

if TYPE_CHECKING:
    import xarray


def distribution(
    tree: "xarray.DataTree",
    integrands: Any = None,
    method: str | AbstractControlVariate = "auto",
    *,
    folds: int | None = None,
    allow_bad_scores: bool = False,
) -> Distribution:
    """Return the marginal distribution of each quantity, of which everything can be asked, with its error.

    ``dist = mp.distribution(trace, ["mu", "tau"])`` has ``dist.cdf(t)``, ``dist.pdf(t)``, ``dist.quantile(0.05)``,
    ``dist.interval(0.89, kind="hdi")`` and ``dist.probability(lower=0.0)``. Whatever controls the mean of a quantity
    controls all functions of it, in any dimension (docs/mathematics.md section 2), so that these gain about as much as
    the mean does. What limits them: a tail in which there are few draws, and a quantity whose mean is not controlled.

    Arguments and errors are those of `expectation`. `method` is what controls the means of the quantities; a kernel
    method is fitted to every event by itself.

    Returns
    -------
    Distribution : of quantities whose values are a coordinate of the trace, a monotone function of one, or nearly a
        cubic of a few; events of others are regressed on the scores as any integrand is. Of a trace in the chunks of
        dask probabilities and quantiles are from sums over all draws, each in one pass or two; densities and shortest
        intervals are those of 16,384 evenly spaced draws.
    """
    options = Options(folds=folds, allow_bad_scores=allow_bad_scores)
    if is_summed(tree, method, options):
        return distribution_of_chunks(InChunks.of(tree, integrands, method, options))
    return answer_distribution(pose(tree, integrands, method, options, weighted=True))


def answer_distribution(question: Question) -> Distribution:
    """Return the distributions of a question's integrands."""
    return in_float64(Distribution.of)(question.sample, question.method, question.options)


def quantile(
    tree: "xarray.DataTree",
    probabilities: float | Sequence[float],
    integrands: Any = None,
    method: str | AbstractControlVariate = "auto",
    *,
    folds: int | None = None,
    allow_bad_scores: bool = False,
) -> Estimate:
    """Estimate posterior quantiles by inverting a controlled distribution function; see `distribution`.

    Other arguments and errors are those of `expectation`. One result per integrand and probability, named
    ``name [probability]``; `mcse` is in the integrand's units. A quantile with fewer than three effective draws beyond
    it is ``unseen``. The error of the plain one is that of Maritz and Jarrett (1978,
    doi:10.1080/01621459.1978.10480027).

    Raises
    ------
    ValueError : a probability outside (0, 1).
    """
    levels = check_probabilities(probabilities)
    dist = distribution(tree, integrands, method, folds=folds, allow_bad_scores=allow_bad_scores)
    found = dist.quantile(levels)
    warn_of_contradiction(contradicted(found, known=dist.options.bad_scores))
    return found


INTERVALS = ("eti", "hdi")


def resolve_interval(where: str, ci_prob: float | None, ci_kind: str | None) -> tuple[float, str] | None:
    """Return the probability and the kind of the interval that is wanted, None where neither is given.

    What is left out is that of ``arviz_base.rcParams``, so that the table has the interval of ``az.summary``.
    """
    if ci_prob is None and ci_kind is None:
        return None
    from arviz_base import rcParams

    prob = rcParams["stats.ci_prob"] if ci_prob is None else ci_prob
    kind = rcParams["stats.ci_kind"] if ci_kind is None else ci_kind
    check_number(where, "ci_prob", prob, "For example 0.89, not 89.", inside="(0, 1)")
    if not isinstance(kind, str) or kind not in INTERVALS:
        cure = '"eti" has equal tails, "hdi" is the shortest.'
        raise InputError(where, f"`ci_kind` to be one of {', '.join(INTERVALS)}", repr(kind), cure)
    return float(prob), kind


PILOT = 1 << 14
"""Draws, evenly spaced, that tell where thresholds are to be and along which fields."""


def distribution_of_chunks(chunks: InChunks) -> Distribution:
    """Return the distributions of quantities under draws in the chunks of dask; see `is_summed`."""
    # Quantiles in memory take a search for each; of some thousand draws it is short, and near enough.
    chunks = chunks.thinned(PILOT)
    question = chunks.question
    pilot = in_float64(Distribution.of)(question.sample, question.method, question.options, of_all=False)
    return pilot._replace(over_all=OverChunks(chunks, pilot, np.arange(len(pilot.names))))


MOST_PASSES = 3
"""Passes over all draws for quantiles. The second is for those that were outside in the first, which is rare."""


class OverChunks(NamedTuple):
    """Probabilities and quantiles of the quantities of a trace in chunks, from sums over all of its draws.

    pilot : their distributions at the evenly spaced draws. places : (p,) of the quantities in the pilot's sample.
    """

    chunks: InChunks
    pilot: Distribution
    places: Int[np.ndarray, " p"]

    def select(self, places: Int[np.ndarray, " r"]) -> "OverChunks":
        """Return what is known of some of the quantities."""
        return self._replace(places=self.places[places])

    def probabilities(
        self, of: Int[np.ndarray, " q"], lower: Float[np.ndarray, " q"], upper: Float[np.ndarray, " q"]
    ) -> Estimate:
        """Return the probabilities that quantities are above one number and at most another."""
        return self.chunks.probabilities(self.places[of], lower, upper)

    def quantiles(self, levels: Float[np.ndarray, " a"]) -> Estimate:
        """Return the quantiles of all p quantities, those of one after those of another; see `Bracket`."""
        pilot = self.pilot.select(self.places)
        start, p = pilot.quantile(levels), len(self.places)
        of, values = np.repeat(np.arange(p), len(levels)), pilot.sample.values.reshape(-1, p)
        brackets = [
            Bracket.of(values[:, j], float(level), float(start.mean[k]), float(start.mcse[k]))
            for k, (j, level) in enumerate(zip(of, np.tile(levels, p), strict=True))
        ]
        # Beside an atom, as of max(x, 0), no polynomial follows: the quantile stays that of the few draws.
        left = np.flatnonzero(np.isfinite(start.mean) & [not bracket.atom for bracket in brackets])
        numbers = np.stack([start.mean, start.mcse, start.mean_plain, start.mcse_plain, start.mean_crossfit])
        events: dict[int, Estimate] = {}
        few = np.array([status is Status.UNSEEN for status in start.status])
        for _ in range(MOST_PASSES):
            if not len(left):
                break
            # All quantities and levels in one pass: reading the draws is what it costs.
            upper = np.concatenate([brackets[k].points for k in left])
            sizes = [len(brackets[k].points) for k in left]  # of a discrete quantity there may be fewer
            found = self.probabilities(np.repeat(of[left], sizes), np.full(len(upper), -np.inf), upper)
            unknown = []
            for end, size, k in zip(np.cumsum(sizes), sizes, left.tolist(), strict=True):
                own = found.select(np.arange(end - size, end))
                if start.sd[k] == 0 and own.mean.tolist() == [0.0, 1.0]:
                    continue  # constant at all draws, as at those few
                root = brackets[k].root(own)
                numbers[:, k], events[k], few[k] = root.numbers, own.select(np.array([root.nearest])), root.few
                if not root.known:
                    unknown.append(k)
                    brackets[k] = brackets[k].moved(root)
            left = np.array(unknown, int)
        return _of_events(start, events, numbers, few)


def _of_events(
    start: Estimate, events: "dict[int, Estimate]", numbers: Float[np.ndarray, "five q"], few: Bool[np.ndarray, " q"]
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
        own = events.get(k)
        # A constant has no runs of its own; its residual is what it is.
        residuals[..., k] = start.mean[k] if own is None else own.residuals[..., 0]
        if own is not None:
            status[k], method[k], ratio[k] = own.status[0], own.method[0], own.variance_ratio[0]
        status[k] = Status.UNSEEN if few[k] and status[k] in TRUSTED else status[k]
        # Every draw is at most the largest value, which many may have: no event is unseen.
        status[k] = Status.PLAIN if status[k] is Status.UNSEEN and not few[k] else status[k]
        status[k] = Status.UNDEFINED if np.isnan(numbers[0, k]) else status[k]
    mean, mcse, mean_plain, mcse_plain, mean_crossfit = numbers
    # A polynomial through five points may do worse than the draws where these hardly gain.
    worse = (mcse > mcse_plain) | np.array([own is Status.PLAIN for own in status])
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
"""Degree of the polynomial that it is there: four errors of 16,384 draws are hundreds of those of 10⁸, and over that
distance a distribution function is no parabola to within one of the latter."""

REACH = 4.0
"""Standard errors of a quantile of the evenly spaced draws within which that of all draws is looked for."""

SPACINGS = 2.0
"""And so many of these draws at least: between two of them are others, which tell the slope."""

TIED = 10
"""Draws for each of its values from which a quantity is taken for a discrete one."""

REPEATS = 10
"""Draws with one value that a chain which stands still may have, beside a tenth of those near: more are an atom."""

FURTHER = 3.0
"""How far outside a quantile is looked for at once, in units of a bracket."""

REAL = 1e-9
"""Imaginary part up to which a root is real."""


class Root(NamedTuple):
    """A quantile by the distribution function at the points of a bracket.

    numbers : mean, mcse, both without control variates, and the cross-fitted mean. nearest : of the points.
    known : whether it is between them, and they are close enough. few : whether fewer than three effective draws are
        beyond it.
    """

    numbers: tuple[float, float, float, float, float]
    nearest: int
    known: bool
    few: bool


class Bracket(NamedTuple):
    """Where a quantile of all draws is looked for, about that of some of them.

    values : (n,) in order, of some draws. points : (k,) thresholds: values themselves where these are few, `tied`.
    atom : whether one value near the quantile has a probability of its own, among others that have none.
    """

    values: Float[np.ndarray, " n"]
    level: float
    points: Float[np.ndarray, " k"]
    tied: bool
    atom: bool = False

    @classmethod
    def of(cls, values: Float[np.ndarray, " n"], level: float, centre: float, error: float) -> "Bracket":
        """Return the bracket about a quantile with an error."""
        ordered = np.sort(values)
        known = np.unique(ordered)
        if len(known) == 1:  # and perhaps not at other draws
            return cls(ordered, level, np.array([np.nextafter(known[0], -np.inf), known[0]]), True)
        if TIED * len(known) < len(ordered):
            return cls(ordered, level, known[_about(int(np.searchsorted(known, centre)), len(known))], True)
        apart = SPACINGS / len(ordered)
        spacing = np.ptp(np.quantile(ordered, np.clip([level - apart, level + apart], 0, 1))) / 2
        reach = max(REACH * error, spacing) if np.isfinite(error) else spacing
        inside = ordered[np.abs(ordered - centre) <= reach]
        most = np.unique(inside, return_counts=True)[1].max(initial=0)
        atom = reach == 0 or most > REPEATS + len(inside) / TIED
        return cls(ordered, level, centre + reach * POINTS, False, bool(atom))

    def moved(self, root: Root) -> "Bracket":
        """Return another one about a quantile that is not known yet."""
        if self.tied:
            known = np.unique(self.values)
            return self._replace(points=known[_about(int(np.searchsorted(known, root.numbers[0])), len(known))])
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

        function, plain, crossfit = (curve(part, CUBIC) for part in (below.mean, below.mean_plain, below.mean_crossfit))
        at = self._where(function)
        if at is None:
            # By a line: only where to look next, and with an error that is as large as what is left.
            line = curve(below.mean, 1)
            slope = max(float(line.deriv()(0.0)), np.finfo(float).tiny)
            at = float(np.clip((self.level - line(0.0)) / slope, -FURTHER, FURTHER))
            left, inside = reach * max(abs(at), 1.0), False
        else:
            slope, again = float(function.deriv()(at)), self._where(curve(below.mean, CUBIC + 1))
            # What a polynomial of one degree more moves it by bounds what this one does not follow.
            left, inside = reach * (2.0 if again is None else abs(again - at)), True
        slope /= reach
        found = centre + reach * at
        mcse, mcse_plain = (
            self._in_units(float(np.interp(at, POINTS, errors)), slope) for errors in (below.mcse, below.mcse_plain)
        )
        mean_plain, mean_crossfit = (
            found + (float(function(at)) - float(part(at))) / slope for part in (plain, crossfit)
        )
        # Beyond what the noise of five points may do, it is what the polynomial does not follow.
        left = np.sqrt(max(left**2 - mcse**2, 0.0))
        numbers = (found, float(np.hypot(mcse, left)), mean_plain, mcse_plain, mean_crossfit)
        return Root(numbers, int(np.argmin(np.abs(POINTS - at))), bool(inside and left <= mcse), few)

    def _where(self, function: np.polynomial.Polynomial) -> float | None:
        """Return where a distribution function has the level, between the points; None where nowhere."""
        # Of a cubic there may be three; that of a distribution function is where it rises, nearest to the middle.
        roots = (function - self.level).roots()
        real = roots.real[(np.abs(roots.imag) < REAL) & (np.abs(roots.real) <= 1)]
        real = real[function.deriv()(real) > 0]
        return float(real[np.argmin(np.abs(real))]) if len(real) else None

    def _in_units(self, error: float, slope: float) -> float:
        """Return the error of a quantile from that of the probability there.

        In a tail that is known to a tenth at best the distribution function is no straight line within its error.
        """
        known = float(np.hypot(error, ROUNDING)) / slope
        if error < STRAIGHT * min(self.level, 1 - self.level):
            return known
        # Then the draws themselves say how far apart the levels are that it may have.
        ends = np.quantile(self.values, np.clip([self.level - error, self.level + error], 0, 1))
        return max(known, float(np.ptp(ends)) / 2)

    def _of_values(self, below: Estimate, few: bool) -> Root:
        """Return the least of the values that has the level, and its distance from those which may be it."""
        known = np.unique(self.values)

        def least(function: Float[np.ndarray, " k"]) -> int:
            return int(np.searchsorted(np.maximum.accumulate(function), self.level).clip(0, len(function) - 1))

        def error(function: Float[np.ndarray, " k"], errors: Float[np.ndarray, " k"], at: int) -> float:
            # P(level ≤ F(v)) for each value v: the least with the level may be any that is as near as its error.
            deviates = (function - self.level) / np.where(errors > 0, errors, np.finfo(float).tiny)
            chances = np.diff(np.concatenate([[0.0], np.maximum.accumulate(ndtr(deviates))]), append=1.0)
            chances[-2] += chances[-1]  # beyond the last
            return float(np.sqrt(chances[:-1] @ (self.points - self.points[at]) ** 2))

        if len(known) == 1 and below.mean[0] >= self.level:
            # One value at some thousand draws, and yet the quantile is another: they do not say which.
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
