"""Quantiles of draws by themselves: order statistics, what lies beyond the last of them, and their errors."""

from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

from mcmcpost.core.mcse import pareto_khat

TAIL = 20.0
"""Effective draws of a tail that is taken for a Pareto tail: which of them lie close together is chance."""

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
        """Return the function of S effective draws, whose tails are the last `TAIL` of them, or a quarter."""
        invert, start = partial(order_quantiles, ordered, places), np.minimum(TAIL / size, 0.25)
        inner = start * np.exp(-INNER)
        low, high = invert(inner) - invert(start), invert(1 - inner) - invert(1 - start)
        return cls(ordered, places, start, khat, low, high)

    def __call__(self, levels: Float[np.ndarray, "*s q"]) -> Float[np.ndarray, "*s q"]:
        found = order_quantiles(self.ordered, self.places, np.clip(levels, self.start, 1 - self.start))
        for level, last in ((levels, self.low), (1 - levels, self.high)):
            beyond = np.log(self.start / np.clip(level, np.finfo(float).tiny, self.start))
            with np.errstate(over="ignore"):
                found = found + last * np.expm1(self.khat * beyond) / np.expm1(self.khat * INNER)
        return found

    def error(self, levels: Float[np.ndarray, " q"], size: Float[np.ndarray, " q"]) -> Float[np.ndarray, " q"]:
        """Return √E(Q(U) − Q(π))² for the level U of an order statistic, Beta(Sπ + 1, S(1−π) + 1) for S draws.

        About Q(π) in place of the mean of Q(U), otherwise the estimator of Maritz and Jarrett (1978,
        doi:10.1080/01621459.1978.10480027), as ``scipy.stats.mstats.mjci``, which knows independent draws only.
        """
        inside, chances = np.clip(levels, 0.0, 1.0), np.exp(-0.5 * STEPS**2)
        own = special.betaincinv(size * inside + 1, size * (1 - inside) + 1, special.ndtr(STEPS)[:, None])
        return np.sqrt(chances / chances.sum() @ (self(own) - self(levels)) ** 2)


def tail_shape(
    values: Float[np.ndarray, "c n q"], levels: Float[np.ndarray, " q"], size: Float[np.ndarray, " q"]
) -> Float[np.ndarray, " q"]:
    """Return the Pareto k̂ of the columns whose quantile lies in a tail, and about zero, its least value, elsewhere."""
    found = np.full(len(levels), EXPONENTIAL)
    near = np.flatnonzero(size * np.minimum(levels, 1 - levels) < TAIL)
    found[near] = pareto_khat(values[..., near]).clip(EXPONENTIAL)
    return found


def middle_places(weights: Float[np.ndarray, "n q"]) -> Float[np.ndarray, "n q"]:
    """Return where ordered draws of these weights are from zero, the first, to one: the middle of each weight."""
    middle = np.cumsum(weights, axis=0) - 0.5 * weights
    return (middle - middle[0]) / (middle[-1] - middle[0])


def order_quantiles(
    ordered: Float[np.ndarray, "n q"], places: Float[np.ndarray, "n q"] | None, levels: Float[np.ndarray, "*s q"]
) -> Float[np.ndarray, "*s q"]:
    """Return the order statistics' quantiles at `levels`, each of those of its column, linearly interpolated.

    A NaN level belongs to a column that is reported as NaN.

    Parameters
    ----------
    places : where the order statistics are from zero to one; None for even steps.
    """
    if places is not None:
        found = [np.interp(*column) for column in zip(np.nan_to_num(levels).T, places.T, ordered.T, strict=True)]
        return np.stack(found, axis=-1)
    position = np.clip(np.nan_to_num(levels), 0.0, 1.0) * (len(ordered) - 1)
    low = np.floor(position).astype(int)
    high = np.minimum(low + 1, len(ordered) - 1)
    column = np.arange(ordered.shape[1])
    return ordered[low, column] + (position - low) * (ordered[high, column] - ordered[low, column])
