"""Bounded L-BFGS from several starts: the one optimiser of marginal likelihoods."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import minimize

INFINITE = 1e25
"""Stands for +∞ in the line search, which backs away from it."""

type Loss = Callable[[Any], tuple[Any, Any]]
"""Parameters (h,) ↦ value and gradient, NumPy or JAX."""


class Start(NamedTuple):
    """A loss with its gradient, a point to start from, and a box.

    initial : (h,) parameters. free : (h,) which of them move. bounds : (h, 2).
    """

    loss: Loss
    initial: Float[np.ndarray, " h"]
    free: Bool[np.ndarray, " h"]
    bounds: Float[np.ndarray, "h 2"]


class Minimum(NamedTuple):
    """The lowest point found: `value` at `x` (h,), from which of the starts, after how many evaluations of all."""

    value: float
    x: Float[np.ndarray, " h"]
    start: int
    num_evaluations: int


def minimise_from(starts: Sequence[Start], *, max_steps: int) -> Minimum | None:
    """Return the best minimum over the starts, or None if the loss is finite at none of them.

    An evaluation that is not finite counts as +∞. Every start has `max_steps` steps of L-BFGS and twice as many
    evaluations.
    """
    found = [_minimise(start, index, max_steps) for index, start in enumerate(starts)]
    best = min(found, key=lambda minimum: minimum.value)
    evaluations = sum(minimum.num_evaluations for minimum in found)
    return None if best.value >= INFINITE else best._replace(num_evaluations=evaluations)


def _minimise(start: Start, index: int, max_steps: int) -> Minimum:
    def at(part: np.ndarray) -> tuple[float, np.ndarray]:
        x = start.initial.copy()
        x[start.free] = part
        value, slope = start.loss(x)
        if not np.isfinite(value):
            return INFINITE, np.zeros_like(part)
        return float(value), np.asarray(slope)[start.free]

    options = {"maxiter": max_steps, "maxfun": 2 * max_steps}
    first, bounds = start.initial[start.free], start.bounds[start.free]
    result = minimize(at, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    x = start.initial.copy()
    x[start.free] = result.x
    return Minimum(float(result.fun), x, index, int(result.nfev))
