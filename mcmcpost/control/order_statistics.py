"""Quantiles and densities of draws by themselves: order statistics, what lies beyond the last of
them, and errors.

And the shortest interval that holds a probability, from a distribution function at points near its
ends.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Bool, Float, Shaped
from scipy import special

from mcmcpost.control.estimate import Curve
from mcmcpost.control.problem import Sample
from mcmcpost.control.standard_errors import RULE_OF_THREE
from mcmcpost.core.errors import REPRODUCED, TRUSTED, Status
from mcmcpost.core.mcse import Weights, kernel_density, mcse_mean, mean_over_draws, pareto_khat
from mcmcpost.scores import effective_size

TAIL = 20.0
"""Effective draws of a tail that is taken for a Pareto tail: which of them lie close together is
chance."""

INNER = np.log(4.0)
"""Log ratio of the levels of the two quantiles that it goes through."""

EXPONENTIAL = 1e-6
"""Least k̂, which stands for zero."""

STEPS = np.linspace(-4.0, 4.0, 65)
"""Normal deviates at which the distribution of the level of an order statistic is looked at."""


class QuantileFunction(NamedTuple):
    """The quantile function of each column; in its tails that of a generalised Pareto distribution.

    ordered, places : (n, q) as for `order_quantiles`.
    start, khat : (q,) level at which the tails begin, and their shape.
    low, high : (q,) how far each of them goes from there to a quarter of that level.
    """

    ordered: Float[np.ndarray, "n q"]
    places: Float[np.ndarray, "n q"] | None
    start: Float[np.ndarray, " q"]
    khat: Float[np.ndarray, " q"]
    low: Float[np.ndarray, " q"]
    high: Float[np.ndarray, " q"]

    @classmethod
    def of(
        cls,
        ordered: Float[np.ndarray, "n q"],
        places: Float[np.ndarray, "n q"] | None,
        size: Float[np.ndarray, " q"],
        khat: Float[np.ndarray, " q"],
    ) -> "QuantileFunction":
        """Return the function of S effective draws, whose tails are the last `TAIL` of them, or a
        quarter."""
        # A tail of twenty effective draws, but never so much that the middle would be a tail.
        invert, start = partial(order_quantiles, ordered, places), np.minimum(TAIL / size, 0.25)
        inner = start * np.exp(-INNER)
        low, high = invert(inner) - invert(start), invert(1 - inner) - invert(1 - start)
        return cls(ordered, places, start, khat, low, high)

    def __call__(self, levels: Float[np.ndarray, "*s q"]) -> Float[np.ndarray, "*s q"]:
        quantiles = order_quantiles(
            self.ordered, self.places, np.clip(levels, self.start, 1 - self.start)
        )
        for level, last in ((levels, self.low), (1 - levels, self.high)):
            # Floor at the smallest normal number: a level of zero is infinitely far out.
            beyond = np.log(self.start / np.clip(level, np.finfo(float).tiny, self.start))
            with np.errstate(over="ignore"):
                # expm1 keeps the digits where k̂ is near zero and the tail is exponential.
                quantiles = quantiles + last * np.expm1(self.khat * beyond) / np.expm1(
                    self.khat * INNER
                )
        return quantiles

    def error(
        self, levels: Float[np.ndarray, " q"], size: Float[np.ndarray, " q"]
    ) -> Float[np.ndarray, " q"]:
        """Return √E(Q(U) − Q(π))² for the level U of an order statistic, Beta(Sπ + 1, S(1−π) + 1)
        for S draws.

        About Q(π) in place of the mean of Q(U), otherwise the estimator of Maritz and Jarrett
        (1978, doi:10.1080/01621459.1978.10480027), as ``scipy.stats.mstats.mjci``, which knows
        independent draws only.
        """
        inside, chances = np.clip(levels, 0.0, 1.0), np.exp(-0.5 * STEPS**2)
        # Quantiles of Beta(Sπ + 1, S(1 − π) + 1) at even normal deviates.
        beta_quantiles = special.betaincinv(
            size * inside + 1, size * (1 - inside) + 1, special.ndtr(STEPS)[:, None]
        )
        return np.sqrt(chances / chances.sum() @ (self(beta_quantiles) - self(levels)) ** 2)


def tail_shape(
    values: Float[np.ndarray, "c n q"],
    levels: Float[np.ndarray, " q"],
    size: Float[np.ndarray, " q"],
) -> Float[np.ndarray, " q"]:
    """Return the Pareto k̂ of the columns whose quantile lies in a tail, and about zero, its least
    value, elsewhere."""
    khat = np.full(len(levels), EXPONENTIAL)
    # Elsewhere no tail is used, and k̂ is expensive.
    near = np.flatnonzero(size * np.minimum(levels, 1 - levels) < TAIL)
    khat[near] = pareto_khat(values[..., near]).clip(EXPONENTIAL)
    return khat


def middle_places(weights: Float[np.ndarray, "n q"]) -> Float[np.ndarray, "n q"]:
    """Return where ordered draws of these weights are from zero, the first, to one: the middle of
    each weight."""
    middle = np.cumsum(weights, axis=0) - 0.5 * weights
    return (middle - middle[0]) / (middle[-1] - middle[0])


def order_quantiles(
    ordered: Float[np.ndarray, "n q"],
    places: Float[np.ndarray, "n q"] | None,
    levels: Float[np.ndarray, "*s q"],
) -> Float[np.ndarray, "*s q"]:
    """Return the order statistics' quantiles at `levels`, each of those of its column, linearly
    interpolated.

    A NaN level belongs to a column that is reported as NaN.

    Parameters
    ----------
    places : where the order statistics are from zero to one; None for even steps.
    """
    if places is not None:
        quantiles = [
            np.interp(*column)
            for column in zip(np.nan_to_num(levels).T, places.T, ordered.T, strict=True)
        ]
        return np.stack(quantiles, axis=-1)
    position = np.clip(np.nan_to_num(levels), 0.0, 1.0) * (len(ordered) - 1)
    low = np.floor(position).astype(int)
    high = np.minimum(low + 1, len(ordered) - 1)
    column = np.arange(ordered.shape[1])
    return ordered[low, column] + (position - low) * (ordered[high, column] - ordered[low, column])


def quantile_labels(
    names: tuple[str, ...], probabilities: Float[np.ndarray, " a"]
) -> tuple[str, ...]:
    """Return the names of the quantiles of each integrand."""
    levels = level_texts(probabilities)
    return tuple(f"{name} [{level}]" for name in names for level in levels)


def level_texts(probabilities: Float[np.ndarray, " a"]) -> list[str]:
    """Return the probabilities as text: six digits, and all where two would look the same."""
    short = [f"{level:g}" for level in probabilities]
    return (
        short if len(set(short)) == len(short) else [repr(float(level)) for level in probabilities]
    )


FEW_VALUES, STATES_OF_EACH = 30, 4
"""Values up to which a quantity is discrete, if there are so many states to each. Of more of them,
as of draws rounded to two digits, a kernel estimate smooths what lies between."""


def has_few_values(series: Float[np.ndarray, "c n"], num_states: int) -> bool:
    """Return whether a quantity is discrete: its few values are shared by different states."""
    return len(np.unique(series)) <= min(FEW_VALUES, num_states // STATES_OF_EACH)


def density_of_draws(
    sample: Sample, at: Float[np.ndarray, " t"], ess: float
) -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, " t"]]:
    """Return ArviZ's kernel estimate of one quantity and its error, that of its bias included.

    Silverman (1986), section 3.3.

    The bias of a width w is ½w²p″ to first order, by which an estimate with √2 of the width differs
    from it. ArviZ does not know weights; those of weighted draws are Gaussian kernels of Scott's
    width.

    at : points in the sample's units, as the estimates are.
    """
    series, weights = sample.scaled[..., 0].reshape(-1), sample.trace.weights
    if weights is None:
        (mean, width), (wider, _) = (
            kernel_density(series, at, factor) for factor in (1.0, np.sqrt(2))
        )
    else:
        density = scipy.stats.gaussian_kde(series, weights=weights.values.reshape(-1))
        mean, width = density(at), float(np.sqrt(density.covariance[0, 0]))
        density.set_bandwidth(density.factor * np.sqrt(2))
        wider = density(at)
    # Where a density ends at once a kernel is off by half of it, whatever its width; in a tail that
    # is little.
    to_end = np.fmin(at - series.min(), series.max() - at)
    end = to_end < width
    # an effective draw at the point itself, that none is there by chance
    one = 1 / (2 * np.sqrt(np.pi) * width * ess)
    bias = np.where(end, np.fmax(np.abs(wider - mean), mean / 2), wider - mean)
    error = np.hypot(np.sqrt((mean + one) * one), bias)
    if weights is None:
        # One width is too wide by far where a density changes a thousandfold, as that of exp(θ),
        # and then both widths agree: near a point the draws themselves tell how dense they are.
        # Near an end the density may be without bound, as that of a square.
        near, noise = _density_of_neighbours(series, at, ess)
        with np.errstate(invalid="ignore"):
            distance = np.abs(mean - near)
            wrong = (distance > DISTRUST * np.hypot(error, noise)) | (to_end < REACH * width)
            error = np.where(wrong & np.isfinite(near), np.hypot(error, distance), error)
    # Beyond the last draw three effective ones may be missing, as near to it as a kernel is wide.
    missing = RULE_OF_THREE / (ess * width) * np.exp(-0.5 * (to_end / (REACH * width)) ** 2)
    return mean, np.where(to_end < 0, missing, error)


def _density_of_neighbours(
    series: Float[np.ndarray, " n"], at: Float[np.ndarray, " t"], ess: float
) -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, " t"]]:
    """Return the density by the distance of the nearest draws on either side, and its error; NaN
    where they tie."""
    n = len(series)
    # Of chains that move slowly neighbours are of one visit: as many as make twenty independent
    # ones.
    each = int(np.clip(np.ceil(10 * n / max(ess, 1.0)), 1, max(n // 4, 1)))
    ordered = np.sort(series)
    place = np.searchsorted(ordered, at)
    low, high = np.maximum(place - each, 0), np.minimum(place + each - 1, n - 1)
    with np.errstate(invalid="ignore", divide="ignore"):
        near = np.where(
            ordered[high] > ordered[low], (high - low) / n / (ordered[high] - ordered[low]), np.nan
        )
        return near, near / np.sqrt(np.maximum(high - low, 1) * min(ess / n, 1.0))


DISTRUST = 4.0
"""Errors by which a kernel estimate differs from the density of the nearest draws where its width
is wrong."""


REACH = 2.0
"""Widths from an end of the draws up to which a kernel has draws on one side alone."""


def density_of_leftover(
    value: Float[np.ndarray, "c n"],
    stand_in: Float[np.ndarray, "c n"],
    at: Float[np.ndarray, " t"],
    weights: Weights | None,
) -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, " t"]]:
    """Return by how much the density of a quantity is above that of what nearly stands for it, and
    the error of that.

    By kernels at the same draws, whose noise is mostly the same; that of their bias is as in
    `density_of_draws`. Where the quantity ends at once, as a share does at zero, what stands for it
    goes on beyond, and no kernel that reaches the end tells how much of the density that is.
    """
    width = kernel_density(value.reshape(-1), at, 1.0)[1]

    def kernels(series: Float[np.ndarray, "c n"], w: float) -> Float[np.ndarray, "c n t"]:
        return np.exp(-0.5 * ((series[..., None] - at) / w) ** 2) / (np.sqrt(2 * np.pi) * w)

    of_value, twice = kernels(value, width), np.sqrt(2) * width  # in squares
    changes = of_value - kernels(stand_in, width)
    change, near = mean_over_draws(changes, weights), mean_over_draws(of_value, weights)
    wider = mean_over_draws(kernels(value, twice) - kernels(stand_in, twice), weights)
    to_end = np.maximum(np.fmin(at - value.min(), value.max() - at), 0.0)
    missing = near * np.exp(-0.5 * (to_end / width) ** 2)
    noise = np.nan_to_num(mcse_mean(changes, weights))
    return change, np.hypot(noise, np.fmax(np.abs(wider - change), missing))


class Densities(NamedTuple):
    """The density of a quantity at t points: a kernel estimate, or what is known better.

    kernel, kernel_error : (t,) the kernel estimate and its error. beyond : effective draws beyond
        each point.
    mean, error, plain, plain_error, gain, status : (t,) as in `Curve`. lowest : the error that is
        to be improved upon.
    """

    kernel: Float[np.ndarray, " t"]
    kernel_error: Float[np.ndarray, " t"]
    beyond: Float[np.ndarray, " t"]
    mean: Float[np.ndarray, " t"]
    error: Float[np.ndarray, " t"]
    plain: Float[np.ndarray, " t"]
    plain_error: Float[np.ndarray, " t"]
    gain: Float[np.ndarray, " t"]
    status: Shaped[np.ndarray, " t"]
    lowest: Float[np.ndarray, " t"]

    @classmethod
    def of_kernel(
        cls,
        kernel: Float[np.ndarray, " t"],
        kernel_error: Float[np.ndarray, " t"],
        below: Float[np.ndarray, " t"],
        size: tuple[float, float],
    ) -> "Densities":
        """Return a kernel estimate where there are draws on both sides.

        below : shares of the draws up to each point. size : the effective draws, and their standard
            deviation.
        """
        seen, (ess, sd) = (below > 0) & (below < 1), size
        mean = np.where(seen, kernel, 0.0)
        # Beyond the draws there is little.
        error = np.where(seen, kernel_error, np.fmax(kernel_error, 1 / (ess + 2) / sd))
        status = np.array([Status.PLAIN if one else Status.UNSEEN for one in seen], dtype=object)
        beyond = ess * np.minimum(below, 1 - below)
        return cls(
            mean,
            kernel_error,
            beyond,
            mean,
            error,
            mean,
            error,
            np.ones(len(mean)),
            status,
            LESS_KNOWN * error,
        )

    def improved(
        self,
        density: Float[np.ndarray, " t"],
        deviation: Float[np.ndarray, " t"],
        plain: Float[np.ndarray, " t"],
        raw: Float[np.ndarray, " t"],
        status: Shaped[np.ndarray, " t"],
    ) -> "Densities":
        """Return the densities with controlled ones where these are known better, NaN where there
        is none.

        plain, raw : what is controlled without its control, and its error.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            better = (
                np.isfinite(deviation)
                & (deviation < self.lowest)
                & (density > -MOST_NEGATIVE * deviation)
                # None at all, with an error that says nothing, is no better than a kernel estimate.
                & ((density > 0) | (deviation < self.error / LESS_KNOWN))
            )
            # Few draws tell the field where a tail begins, and one that is too large divides
            # density and error alike.
            unlike = (density < self.kernel / ALIKE) | (density > ALIKE * self.kernel)
            gain = (raw / deviation) ** 2
        # The mean of c 1{h > t} by itself is that of the few draws beyond t: worse than a kernel's,
        # as is its error.
        better &= (self.beyond > 0) & np.array(
            [verdict not in (Status.PLAIN, Status.UNSEEN) for verdict in status]
        )
        better &= ~(unlike & (self.beyond < FEW)) | np.array(
            [verdict in REPRODUCED for verdict in status]
        )
        return self._replace(
            mean=np.where(better, np.maximum(density, 0.0), self.mean),
            error=np.where(better, deviation, self.error),
            plain=np.where(better, plain, self.plain),
            plain_error=np.where(better, raw, self.plain_error),
            gain=np.where(better, gain, self.gain),
            status=np.where(better, status, self.status),
            lowest=np.where(better, deviation, self.lowest),
        )

    def curve(self, at: Float[np.ndarray, " t"]) -> Curve:
        """Return the curve of one quantity, without its name."""
        # A fit passes through the few draws of a tail: how well it knows what lies beyond them,
        # they do not tell.
        few = (self.beyond < RULE_OF_THREE) & np.array(
            [verdict in TRUSTED for verdict in self.status]
        )
        error = np.where(few, np.fmax(self.error, self.kernel_error), self.error)
        with np.errstate(invalid="ignore", divide="ignore"):
            gain = np.where(few, np.fmin(self.gain, (self.plain_error / error) ** 2), self.gain)
        status = self.status.copy()
        status[few] = Status.UNSEEN
        return Curve(
            names=(),
            at=at[None],
            mean=self.mean[None],
            mcse=error[None],
            mean_plain=self.plain[None],
            mcse_plain=self.plain_error[None],
            gain=gain[None],
            status=status[None],
        )


LESS_KNOWN = 2.0
"""Factor on the error of a kernel estimate beside that of a controlled density: its bias is a
guess."""

MOST_NEGATIVE = 3.0
"""Standard errors below zero from which a density is not believed."""

ALIKE, FEW = 3.0, 10.0
"""Factor between a slope and that of the empirical distribution function up to which it is
believed; likewise between a density and a kernel estimate where fewer effective draws lie
beyond."""

NEARBY = 21
"""Points near either end of the shortest interval at which the distribution function is
estimated."""

ROUNDING = 1e-13
"""Relative error of a distribution function that is exact."""


def shortest_of_draws(
    series: Float[np.ndarray, "c n"], prob: float
) -> tuple[Float[np.ndarray, " two"], float]:
    """Return the shortest interval that holds so many of the draws, and how far its ends may be
    from the true ones."""
    ordered = np.sort(series, axis=None)
    held = max(1, min(int(np.ceil(prob * len(ordered))), len(ordered) - 1))
    first = int(np.argmin(ordered[held:] - ordered[:-held]))
    ess = float(effective_size(series[..., None], series.std()[None])[0])
    ends = ordered[[first, first + held]]
    # Of heavy tails a few draws make the standard deviation, and the ends are found in much less.
    of_ends = float(np.ptp(ends)) / (2 * special.ndtri((1 + prob) / 2))
    scale = min(float(ordered.std()), of_ends or np.inf)
    # The ends of a shortest interval converge as n^(-1/3) (Grübel 1988), not as quantiles do.
    return ends, SURROUNDINGS * scale * ess ** (-1 / 3)


SURROUNDINGS = 6.0
"""Distance to which an end is looked for, over sd/ess^(1/3): about four of its standard errors,
which are 1.2 to 1.5.

With two, the ends stayed near those of the draws, in whatever of the shortest intervals these had
by chance, and so did those without a fold: the errors were half of what they should be.
"""


FINE = 1_001
"""Points between which the ends are looked for."""

QUARTIC = 4
"""Degree of the polynomial that a distribution function is near an end."""

AS_WELL_KNOWN = 100.0
"""Median errors of the points near an end up to which one of them counts as the others do."""

CLOSER = 10.0
"""Errors of an end to which the points about it reach."""

SMALLEST_REACH = 0.1
"""Part to which that distance is made smaller at once."""

CLOSEST = 1e-3
"""Part of the first distance below which slopes are rounding, and the ends with them."""

OUTERMOST = 10
"""Effective draws of either tail whose mean distance tells how far its end may be."""

PASSES = 8
"""How often the points at which the distribution function is known are moved to where the ends were
found."""


class Known(NamedTuple):
    """What is known of a distribution function at points.

    mean, mcse : (q,) its values and their errors. without : (k, q) its values without each fold.
    residuals : (c, n, q) series whose means have errors; those of a control variate, or the
        indicators. weights : of the draws.
    """

    mean: Float[np.ndarray, " q"]
    mcse: Float[np.ndarray, " q"]
    without: Float[np.ndarray, "k q"]
    residuals: Float[np.ndarray, "c n q"]
    weights: Weights | None = None

    def error_of(self, sums: Float[np.ndarray, "q r"]) -> Float[np.ndarray, " r"]:
        """Return the standard errors of weighted sums of the values: the jackknife's or that of
        residuals, the larger.

        Over eight folds the first alone has a relative error of a quarter, and z² a mean of 7/5.
        """
        residual_error, shown = mcse_mean(self.residuals, self.weights), _jackknife(self.without)
        errors = []
        # What is known of the errors, beyond what either shows, is so of sums.
        for error, of_sum in (
            (shown, _jackknife(self.without @ sums)),
            (residual_error, mcse_mean(self.residuals @ sums, self.weights)),
        ):
            real = error > 0
            more = float(np.median(self.mcse[real] / error[real])) if real.any() else 1.0
            errors.append(max(1.0, more) * of_sum)
        return np.fmax(*errors)


class Ends(NamedTuple):
    """The search for the ends of a shortest interval: how far about them the distribution function
    is looked at.

    low, high : the range of the draws. ends, error : (two,) as found so far. reach : of the points
        about them.
    closest : the smallest that it becomes. rounding : (two,) errors of an exact function.
    outermost : (two,) errors of an end that is the first or the last draw. nearby : points about
        each.
    settled : whether the ends are where they were looked for, from points as close as they are
        known.
    """

    low: float
    high: float
    prob: float
    ends: Float[np.ndarray, " two"]
    error: Float[np.ndarray, " two"]
    reach: float
    closest: float
    rounding: Float[np.ndarray, " two"]
    outermost: Float[np.ndarray, " two"]
    nearby: int
    settled: bool = False

    @classmethod
    def about(
        cls,
        ends: Float[np.ndarray, " two"],
        reach: float,
        series: Float[np.ndarray, "c n"],
        prob: float,
        nearby: int = NEARBY,
    ) -> "Ends":
        """Return the search about these ends."""
        ordered = np.sort(series, axis=None)
        ess = float(effective_size(series[..., None], series.std()[None])[0])
        # From an end of the support to the outermost draw it is as far as from one effective draw
        # to the next, up to a factor that is exponentially distributed.
        count = min(int(np.ceil(OUTERMOST * len(ordered) / ess)), len(ordered) - 1)
        gap = (ordered[[count, -1]] - ordered[[0, -1 - count]]) * len(ordered) / (count * ess)
        return cls(
            low=float(ordered[0]),
            high=float(ordered[-1]),
            prob=prob,
            ends=ends,
            error=np.full(2, np.inf),
            reach=reach,
            closest=CLOSEST * reach,
            rounding=ROUNDING * (reach + np.abs(ends)) / CLOSEST,
            outermost=2 * gap,
            nearby=nearby,
        )

    @property
    def grid(self) -> Float[np.ndarray, "two t"]:
        """The points at which the distribution function is to be known."""
        return np.stack(
            [
                np.linspace(
                    max(end - self.reach, self.low), min(end + self.reach, self.high), self.nearby
                )
                for end in self.ends
            ]
        )

    def step(self, known: Known) -> "Ends":
        """Return the search after the function is known at the points."""
        grid, prob, k = self.grid, self.prob, len(known.without)
        # Beyond the outermost draws an exact function is not known, and nothing would be exact.
        errors = np.nan_to_num(known.mcse, nan=1.0).reshape(grid.shape)
        ordinary = AS_WELL_KNOWN * np.median(errors, axis=1, keepdims=True) + ROUNDING
        weight = (ordinary / np.fmax(errors, ordinary)).reshape(-1)
        find = partial(_ends, grid, weight, prob=prob)
        ends = find(known.mean)
        moved = np.array([find(without_fold) for without_fold in known.without])
        edge = (
            np.minimum(np.abs(ends - grid[:, 0]), np.abs(ends - grid[:, -1]))
            <= np.ptp(grid, axis=1) / FINE
        )
        # To first order the ends are sums of the values at the points. Without a fold they may be
        # at another crossing.
        influence = _influence(grid, weight, known.mean, ends, edge)
        error = np.fmax(known.error_of(influence), _jackknife(moved))
        # What is not linear, by its bias, and what a polynomial of that degree cannot follow: at
        # most as much as one of a lower degree differs by.
        bias = (k - 1) * (moved.mean(axis=0) - ends)
        beyond = np.hypot(bias, ends - find(known.mean, degree=QUARTIC - 1))
        # Where densities at both ends are the same, both move by as much, but for what is between
        # them.
        error = np.hypot(error, beyond if edge.any() else beyond.max())
        # Where it is at an edge, it is not there, or beyond the draws.
        at_edge = np.where(ends == [self.low, self.high], self.outermost, self.reach)
        error = np.hypot(error, np.where(edge, at_edge, self.rounding))
        near = bool((np.abs(ends - self.ends) < self.reach / 2).all())
        # The better the function is known, the closer the points, so that the polynomial follows
        # it.
        wanted = max(CLOSER * float(error.max()), SMALLEST_REACH * self.reach, self.closest)
        settled = near and wanted > self.reach / 2
        return self._replace(
            ends=ends,
            error=error,
            reach=wanted if near and not settled else self.reach,
            settled=settled,
        )


def converged_ends(
    evaluate: Callable[[np.ndarray], Known],
    ends: Float[np.ndarray, " two"],
    reach: float,
    series: Float[np.ndarray, "c n"],
    prob: float,
) -> tuple[Float[np.ndarray, " two"], Float[np.ndarray, " two"]]:
    """Return the ends of the shortest interval and their standard errors.

    evaluate : from points (two, t) to what is known of the distribution function there.
    """
    search = Ends.about(ends, reach, series, prob)
    for _ in range(PASSES):
        search = search.step(evaluate(search.grid))
        if search.settled:
            break
    return search.ends, search.error


def _jackknife(without: Float[np.ndarray, "k q"]) -> Float[np.ndarray, " q"]:
    """Return the standard errors of numbers from their values without each of k folds."""
    k = len(without)
    return np.sqrt((k - 1) / k * ((without - without.mean(axis=0)) ** 2).sum(axis=0))


def _ends(
    grid: Float[np.ndarray, "two t"],
    weight: Float[np.ndarray, " 2*t"],
    probabilities: Float[np.ndarray, " 2*t"],
    prob: float,
    degree: int = QUARTIC,
) -> Float[np.ndarray, " two"]:
    """Return the ends, one near each row of points, between which there is so much probability,
    least far apart.

    There the densities are the same. Near either end the distribution function is taken for a
    polynomial, so that its slope is smooth; where the densities are never the same, the interval
    begins with the first of the points or ends with the last.
    """
    (low, low_slope), (high, high_slope) = (
        _smooth(points, values, weights, degree)
        for points, values, weights in zip(
            grid, np.split(probabilities, 2), np.split(weight, 2), strict=True
        )
    )
    lower, upper = (np.linspace(points[0], points[-1], FINE) for points in grid)
    # A fitted polynomial need not increase: its running maximum can be inverted.
    target, rising = np.maximum.accumulate(low(lower) + prob), np.maximum.accumulate(high(upper))
    end = np.interp(target, rising, upper)
    excess = low_slope(lower) - high_slope(end)
    # From the first lower end on that leaves less than `prob` up to the last point, none is one.
    possible = np.count_nonzero(target <= rising[-1])
    # From a lower density at the left end to a lower one at the right: shortest, not longest.
    crossing = np.flatnonzero((excess[:-1] < 0) & (excess[1:] >= 0))
    crossing = crossing[crossing + 1 < possible]
    if not len(crossing):
        if excess[0] >= 0:
            return np.array([lower[0], end[0]])
        return np.array([np.interp(rising[-1], target, lower), upper[-1]])
    # Of several crossings the one nearest to the middle of the points, where the fit is best.
    k = crossing[np.argmin(np.abs(crossing - FINE // 2))]
    fraction = -excess[k] / (excess[k + 1] - excess[k])
    return np.array(
        [lower[k] + fraction * (lower[k + 1] - lower[k]), end[k] + fraction * (end[k + 1] - end[k])]
    )


def _influence(
    grid: Float[np.ndarray, "two t"],
    weight: Float[np.ndarray, " 2*t"],
    probabilities: Float[np.ndarray, " 2*t"],
    ends: Float[np.ndarray, " two"],
    edge: Bool[np.ndarray, " two"],
) -> Float[np.ndarray, "2*t two"]:
    """Return the derivatives of the ends by the values at the points; zero where these do not
    determine them.

    Of F(u) − F(l) = prob and p(l) = p(u), with p and p′ of a polynomial that is linear in the
    values. An end at an edge of the points stays there.
    """
    values, weights_of = np.split(probabilities, 2), np.split(weight, 2)
    parts = []
    for points, ordinates, weights, end in zip(grid, values, weights_of, ends, strict=True):
        middle, half = points.mean(), np.ptp(points) / 2 or 1.0
        powers_at = np.vander((points - middle) / half, QUARTIC + 1, increasing=True)
        solve = np.linalg.pinv(weights[:, None] * powers_at) * weights
        powers = np.polynomial.Polynomial.basis
        x = (end - middle) / half
        level, slope, bend = (
            np.array([powers(j).deriv(m)(x) if m else powers(j)(x) for j in range(QUARTIC + 1)])
            @ solve
            / half**m
            for m in range(3)
        )
        parts.append((level, slope, slope @ ordinates, bend @ ordinates))
    (low, low_slope, p_low, bend_low), (high, high_slope, p_high, bend_high) = parts
    system = np.array([[p_low, -p_high], [bend_low, -bend_high]])
    sides = np.array([np.concatenate([-low, high]), np.concatenate([-low_slope, high_slope])])
    if edge.any():
        system[1], sides[1] = np.eye(2)[edge.argmax()], 0.0
    return (
        np.linalg.solve(system, sides).T
        if np.linalg.det(system)
        else np.zeros((len(probabilities), 2))
    )


def _smooth(
    points: Float[np.ndarray, " t"],
    values: Float[np.ndarray, " t"],
    weights: Float[np.ndarray, " t"],
    degree: int,
) -> tuple[np.polynomial.Polynomial, np.polynomial.Polynomial]:
    fitted = np.polynomial.Polynomial.fit(points, values, degree, w=weights)
    return fitted, fitted.deriv()
