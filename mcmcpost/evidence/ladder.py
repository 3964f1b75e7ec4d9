"""A ladder of power posteriors p(x|y, t) ∝ p(y|x)^t p(x): its record, its temperatures, its stored
values."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy.interpolate import PchipInterpolator

from mcmcpost.core.arguments import (
    HUGE,
    as_float64,
    as_labels,
    as_real,
    check_count,
    check_number,
    check_size,
)
from mcmcpost.core.errors import InputError, Status
from mcmcpost.evidence.warp import Normal
from mcmcpost.trace import Trace, make_trace


class LadderStats(NamedTuple):
    """Statistics of the sampler. The prior rung is drawn iid: it has no steps and always accepts.

    acceptance_rate, num_steps, diverging : (c, n, t) of every trajectory; a step costs one
        gradient.
    step_size : (c, t) after warm-up, NaN at the prior.
    swap_rate : (c, t) accepted fraction of the swaps proposed with the next rung; NaN without any.
    round_trips : how often a state went from the first rung to the last and back, added up over the
        chains.
    gradient_evaluations : gradients that the chains of all rungs needed, warm-up included.
    lockstep_evaluations : gradients computed: every chain waits for the longest trajectory.
    """

    acceptance_rate: Float[np.ndarray, "c n t"]
    num_steps: Int[np.ndarray, "c n t"]
    diverging: Bool[np.ndarray, "c n t"]
    step_size: Float[np.ndarray, "c t"]
    swap_rate: Float[np.ndarray, "c t"]
    round_trips: int
    gradient_evaluations: int
    lockstep_evaluations: int


class EvidenceEstimate(NamedTuple):
    """An estimate of log p(y) with its Monte Carlo standard error, in nats.

    method : as reported, for example ``bridge (warp-III)``.
    value, mcse : log evidence and its standard error; NaN where undefined.
    status : ``controlled`` or ``plain`` for a good estimate; ``not_converged``, ``too_few_draws``,
        ``undefined``.
    info : JSON-able facts.
    """

    method: str
    value: float
    mcse: float
    status: Status
    info: dict[str, Any]

    @property
    def error(self) -> float:
        """√(mcse² + discretisation_error²)."""
        return float(np.hypot(self.mcse, self.info.get("discretisation_error", 0.0)))

    def with_rounding(self, log_densities: Float[np.ndarray, "..."]) -> "EvidenceEstimate":
        """Return the estimate with the rounding of the log densities, which all draws share, in its
        error."""
        # With a constant of 1e6 in log q every difference is known to 1e-10 only, alike at all
        # draws: no jackknife sees it.
        rounding = float(np.finfo(float).eps * np.abs(log_densities).max())
        return self._replace(mcse=float(np.hypot(self.mcse, rounding)))


BOTH_ENDS = "Both ends are rungs."

MAX_RUNGS = 100_000


class TemperedTarget(NamedTuple):
    """A posterior with likelihood and prior kept apart, both on the unconstrained space.

    log_likelihood : (d,) → scalar log p(y|x), normalised over y.
    log_prior : (d,) → scalar log p(x), log-Jacobian included, normalised over x.
    sample_prior : key → one draw (d,) of the prior.
    names : d coordinate labels.
    """

    log_likelihood: Callable[[Array], Array]
    log_prior: Callable[[Array], Array]
    sample_prior: Callable[[jax.Array], Array]
    names: tuple[str, ...]


PATH_POWER = 5.0
"""A path from the prior is steep near it: quadrature, rungs and plots use s = t^(1/5), in which it
is smooth."""

REFERENCE_POWER = 2.0
"""From a reference it is steep only where a tail of the reference is heavier than the
posterior's."""


class Exchange(NamedTuple):
    """What replica exchange did.

    swap_rate : (t−1,) accepted fraction of the swaps of neighbouring rungs, over the chains; NaN
        without any.
    round_trips : how often a state went from the first rung to the last and back, added up over the
        chains.
    """

    swap_rate: Float[np.ndarray, " _"]
    round_trips: int


class Ladder(NamedTuple):
    """Draws of t power posteriors with the gradients of log likelihood and log prior apart, on the
    unconstrained space.

    One pass over the draws gives the score at *any* inverse temperature: s_t = t∇ℓ + ∇log p
    (docs/mathematics.md section 3). From a reference q, a fitted normal, ℓ = log p(y|x) + log p(x)
    − log q(x), and q stands for the prior.

    temperatures : (t,) inverse temperatures, increasing; 0 is the prior or the reference, and 1 the
        posterior.
    draws : (c, n, t, d).
    log_likelihood : (c, n, t) ℓ = log p(y|x).
    gradient_log_likelihood, gradient_log_prior : (c, n, t, d), the latter log-Jacobian included.
    names : d coordinate labels.
    reference : q; None for a ladder from the prior.
    exchange : what replica exchange did; None without any.
    """

    temperatures: Float[np.ndarray, " t"]
    draws: Float[np.ndarray, "c n t d"]
    log_likelihood: Float[np.ndarray, "c n t"]
    gradient_log_likelihood: Float[np.ndarray, "c n t d"]
    gradient_log_prior: Float[np.ndarray, "c n t d"]
    names: tuple[str, ...]
    reference: Normal | None = None
    exchange: Exchange | None = None

    @property
    def start(self) -> str:
        """The distribution at t = 0 in words."""
        return "prior" if self.reference is None else "reference"

    @property
    def power(self) -> float:
        """The path is smooth in t^(1/power)."""
        return PATH_POWER if self.reference is None else REFERENCE_POWER

    def score(self, temperature: float) -> Float[np.ndarray, "c n t d"]:
        """Return the score of the power posterior at `temperature` at every draw of every rung."""
        return temperature * self.gradient_log_likelihood + self.gradient_log_prior

    def rung(self, index: int) -> Trace:
        """Return the draws of one rung with the scores of its own target."""
        # s_t = t∇ℓ + ∇log p, docs/mathematics.md section 3.
        scores = self.temperatures[index] * self.gradient_log_likelihood[:, :, index]
        scores = scores + self.gradient_log_prior[:, :, index]
        return make_trace(self.draws[:, :, index], scores, self.names)

    def select(self, rungs: np.ndarray) -> "Ladder":
        """Return the ladder of the chosen rungs; swaps are those of all of them only."""
        return self._replace(
            # Swap rates are of neighbouring rungs, and without one of them the neighbours are
            # others.
            exchange=self.exchange if len(rungs) == len(self.temperatures) else None,
            temperatures=self.temperatures[rungs],
            draws=self.draws[:, :, rungs],
            log_likelihood=self.log_likelihood[:, :, rungs],
            gradient_log_likelihood=self.gradient_log_likelihood[:, :, rungs],
            gradient_log_prior=self.gradient_log_prior[:, :, rungs],
        )


def check_temperatures(where: str, temperatures: object) -> Float[np.ndarray, " t"]:
    """Return inverse temperatures as an array: at least two, strictly increasing, from 0 to 1."""
    values = _levels(where, temperatures)
    cure = "Use power_ladder(31, 5), or np.unique(np.r_[0.0, ..., 1.0])."
    if len(values) < 2 or not np.isfinite(values).all():
        raise InputError(where, "at least two finite inverse temperatures", values.tolist(), cure)
    if (np.diff(values) <= 0).any():
        kind = "repeated" if (np.diff(np.sort(values)) == 0).any() else "unsorted"
        raise InputError(
            where, "strictly increasing inverse temperatures", f"{kind} {values.tolist()}", cure
        )
    if values[0] != 0.0 or values[-1] != 1.0:
        ends = f"{values[0]:g} to {values[-1]:g}"
        raise InputError(where, "a ladder from 0 (the prior) to 1 (the posterior)", ends, cure)
    return values


def _levels(where: str, temperatures: object) -> Float[np.ndarray, " t"]:
    return as_float64(
        where, "temperatures", np.atleast_1d(as_real(where, "temperatures", temperatures)), "t"
    )


def new_temperatures(where: str, ladder: Ladder, temperatures: object) -> Float[np.ndarray, " t"]:
    """Return new temperatures in order, refusing those outside (0, 1), repeated, or in the
    ladder."""
    levels = np.sort(_levels(where, temperatures))
    if not len(levels) or not ((levels > 0) & (levels < 1)).all():
        raise InputError(
            where, "new temperatures inside (0, 1)", levels.tolist(), "Both ends are rungs."
        )
    known = np.intersect1d(levels, ladder.temperatures)
    if len(known) or (np.diff(levels) == 0).any():
        raise InputError(
            where,
            "temperatures that are new, each once",
            (known if len(known) else levels).tolist(),
            "Leave out temperatures that the ladder has.",
        )
    return levels


def make_ladder(
    temperatures: object,
    draws: object,
    log_likelihood: object,
    gradient_log_likelihood: object,
    gradient_log_prior: object,
    names: tuple[str, ...] | None = None,
    *,
    reference: Normal | None = None,
    exchange: Exchange | None = None,
) -> Ladder:
    """Return a `Ladder` after checking shapes; values that are not finite stay, rungs are judged
    later.

    A log likelihood below −1e75 becomes −∞, which it is to rounding at every temperature but zero:
    prior draws may be anywhere. A rung without any other value is refused.
    """
    where = "Ladder"
    levels = check_temperatures(where, temperatures)
    points = as_float64(where, "draws", draws, "chain, draw, temperature, d")
    values = as_float64(where, "log_likelihood", log_likelihood, "chain, draw, temperature")
    slopes = [
        as_float64(where, name, array, "chain, draw, temperature, d")
        for name, array in (
            ("gradient_log_likelihood", gradient_log_likelihood),
            ("gradient_log_prior", gradient_log_prior),
        )
    ]
    if 0 in points.shape or points.shape[2] != len(levels):
        raise InputError(
            where,
            f"draws (chain, draw, {len(levels)}, d)",
            points.shape,
            "One rung for each temperature.",
        )
    check_size(where, "draws", points)
    for name, array, shape in (
        ("log_likelihood", values, points.shape[:3]),
        ("gradient_log_likelihood", slopes[0], points.shape),
        ("gradient_log_prior", slopes[1], points.shape),
    ):
        if array.shape != shape:
            raise InputError(
                where, f"`{name}` of shape {shape}", array.shape, "One value for each draw."
            )
    # Prior draws may have a log likelihood of −1e80, whose fourth power, in the participants of an
    # error, overflows.
    low = values < -HUGE
    impossible = low.all(axis=(0, 1))
    if impossible.any():
        at = ", ".join(f"{level:g}" for level in levels[impossible])
        cure = "Are the likelihood and the draws those of one model?"
        raise InputError(
            where,
            f"`log_likelihood` above {-HUGE:g} at some draw of every rung",
            f"none at {at}",
            cure,
        )
    values = np.where(low, -np.inf, values)
    check_size(where, "log_likelihood", values)
    labels = as_labels(where, names, points.shape[-1])
    return Ladder(levels, points, values, slopes[0], slopes[1], labels, reference, exchange)


def power_ladder(size: int, power: float | int = 5) -> Float[np.ndarray, " t"]:
    """Return t_i = ((i−1)/(size−1))^power, i = 1..size: rungs crowd near the prior, where the path
    is steep.

    Friel and Pettitt (2008, doi:10.1111/j.1467-9868.2007.00650.x) with power 5.
    """
    check_count("power_ladder", "size", size, BOTH_ENDS, least=2, most=MAX_RUNGS)
    check_number("power_ladder", "power", power, "Use 5.")
    # A large power makes the first temperatures underflow to zero together.
    temperatures = np.linspace(0.0, 1.0, size) ** power
    if not (np.diff(temperatures) > 0).all():
        raise InputError("power_ladder", "a `power` whose temperatures differ", power, "Use 5.")
    return temperatures


def geometric_ladder(size: int, smallest: float = 1e-4) -> Float[np.ndarray, " t"]:
    """Return 0 and then inverse temperatures in constant ratio from `smallest` to 1."""
    check_count("geometric_ladder", "size", size, BOTH_ENDS, least=2, most=MAX_RUNGS)
    check_number("geometric_ladder", "smallest", smallest, "Use 1e-4.", inside="(0, 1)")
    return np.concatenate([[0.0], np.geomspace(smallest, 1.0, size - 1) if size > 2 else [1.0]])


FLOOR = 0.05
"""Least share of a pilot interval, relative to equal shares: noise can hide that the variance
changes on it."""


def equidistributed_ladder(ladder: Ladder, size: int) -> Float[np.ndarray, " t"]:
    """Return `size` temperatures with equal contributions to the error of the trapezoid rule, from
    a pilot ladder.

    On [a, b] the rule errs by (b − a)³|μ″|/12, and μ′ is the variance v of the log likelihood, so
    rungs are spread with density |dv/dt|^(1/3). The pilot gives v at its rungs; between them its
    derivative is taken as constant.

    Parameters
    ----------
    ladder : a pilot run, as short as its variances are informative.
    size : number of temperatures, both ends included.
    """
    where = "adaptive_ladder"  # what is called with a tree
    check_count(where, "size", size, BOTH_ENDS, least=2, most=MAX_RUNGS)
    variance = _variances(ladder)
    gap = np.diff(ladder.temperatures)
    # Rungs with density |μ″|^(1/3) give every step the same error of the trapezoid; its integral
    # over a pilot step is |Δv/gap|^(1/3)·gap, which is this.
    share = np.cbrt(np.abs(np.diff(variance)) * gap**2)
    total = share.sum()
    if not np.isfinite(total) or total == 0:
        raise InputError(
            where,
            "a pilot whose log likelihood has a finite variance that changes along the ladder",
            f"variances {np.array2string(variance, precision=3)}",
            "Draw more, or use power_ladder.",
        )
    share = np.maximum(share / total, FLOOR / len(share))
    cumulative = np.concatenate([[0.0], np.cumsum(share)])
    # Interpolated in t^(1/power), where the path is smooth, and by a monotone spline: a cubic one
    # could fold the ladder back.
    level = PchipInterpolator(
        cumulative / cumulative[-1], ladder.temperatures ** (1 / ladder.power)
    )
    temperatures = level(np.linspace(0.0, 1.0, size)) ** ladder.power
    # The interpolated ends miss 0 and 1 by rounding, and a ladder without both has no evidence.
    temperatures[[0, -1]] = 0.0, 1.0
    return temperatures


def _variances(ladder: Ladder) -> Float[np.ndarray, " t"]:
    """Return the variance of the finite log likelihoods of every rung."""
    likelihood = ladder.log_likelihood.reshape(-1, len(ladder.temperatures))
    finite = np.isfinite(likelihood)
    # Prior draws of zero likelihood are left out: one −∞ would make the variance of the rung NaN.
    count = np.maximum(finite.sum(axis=0), 1)
    mean = np.where(finite, likelihood, 0.0).sum(axis=0) / count
    squares = np.where(finite, np.where(finite, likelihood, 0.0) - mean, 0.0) ** 2
    return np.where(finite.sum(axis=0) > 1, squares.sum(axis=0) / count, np.nan)


TOLERANCE = 1e-4
"""Differences that are put down to another solver tolerance: of ℓ in nats, of gradients relative to
their size."""


class LadderWarning(UserWarning):
    """A stored ladder disagrees with its model; the values of the model are used."""


def likelihood_finding(
    stored: Float[np.ndarray, "..."], model: Float[np.ndarray, "..."]
) -> str | None:
    """Return how stored log likelihoods differ from the model's, in words; None where they agree.

    An additive constant (a normalising constant left out, or counted twice) leaves every
    expectation as it is and shifts the log evidence by its own size.
    """
    both = np.isfinite(stored) & np.isfinite(model)
    lost = int((np.isfinite(stored) != np.isfinite(model)).sum())
    if not both.any():
        return "the stored log likelihood and the model's are nowhere both finite"
    difference = (stored - model)[both]
    offset = float(np.median(difference))
    limit = TOLERANCE * (1 + np.abs(model[both]))
    around = np.abs(difference - offset)
    finding = None
    # In this order: a constant is told from other differences, because it alone leaves expectations
    # right and shifts the evidence by its size (docs/results, stored_ladders).
    if (np.abs(difference) <= limit).all():
        pass
    elif (around <= np.maximum(limit, 1e-3 * abs(offset))).all():
        finding = (
            f"the stored log likelihood carries an additive constant of {offset:.6f}, by "
            "which its log evidence would be off, as when a normalising constant is left out "
            "or counted twice"
        )
    else:
        share = float((np.abs(difference) > limit).mean())
        finding = (
            f"the stored log likelihood differs from the model's at {share:.1%} of the draws, "
            f"by {offset:.4g} in the median and up to {np.abs(difference).max():.4g}, as with "
            "another model, other data or other draws"
        )
    if lost:
        text = f"one of the two is not finite at {lost} draws"
        finding = text if finding is None else f"{finding}; {text}"
    return finding


def gradient_finding(
    name: str, stored: Float[np.ndarray, "... d"], model: Float[np.ndarray, "... d"]
) -> str | None:
    """Return how stored gradients differ from the model's, in words; None where they agree."""
    both = np.isfinite(stored).all(axis=-1) & np.isfinite(model).all(axis=-1)
    ours, theirs = model[both], stored[both]
    size = np.sqrt((ours**2).sum())
    if not both.any() or size == 0:
        return None
    error = float(np.sqrt(((theirs - ours) ** 2).sum()) / size)
    if error <= TOLERANCE:
        return None
    # The regression coefficient names what went wrong: −1 a wrong sign, 1.1 a wrong scale.
    slope = float((theirs * ours).sum() / size**2)
    kind = " (the wrong sign)" if slope < 0 else ""
    return (
        f"the stored {name} is off by {error:.1%} of its size, {slope:.3f} times the model's on "
        f"average{kind}"
    )


def repeated_fraction(ladder: Ladder) -> Float[np.ndarray, " t"]:
    """Return the fraction of draws of every rung that repeat another: rejected proposals, or
    copies."""
    draws = np.moveaxis(ladder.draws, 2, 0)
    return np.array(
        [
            1 - len(np.unique(rung.reshape(-1, rung.shape[-1]), axis=0)) / rung[..., 0].size
            for rung in draws
        ]
    )
