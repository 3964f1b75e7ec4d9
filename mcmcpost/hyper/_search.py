"""Bounded L-BFGS from several starts: the one optimiser of marginal likelihoods."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
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
    free: Float[np.ndarray, " h"]
    bounds: Float[np.ndarray, "h 2"]


class Minimum(NamedTuple):
    """The lowest point found: `value` at `x` (h,), from which of the starts, after how many evaluations of all."""

    value: float
    x: Float[np.ndarray, " h"]
    start: int
    num_evaluations: int


def minimise_from(starts: Sequence[Start], *, max_steps: int) -> Minimum | None:
    """Return the best minimum over the starts, or None if the loss is finite at none of them.

    An evaluation that is not finite counts as +∞. At most `max_steps` steps of L-BFGS from each start and twice as
    many evaluations.
    """
    best, evaluations = None, 0
    options = {"maxiter": max_steps, "maxfun": 2 * max_steps}
    for index, (loss, initial, free, bounds) in enumerate(starts):

        def at(
            part: np.ndarray, loss: Loss = loss, initial: np.ndarray = initial, free: np.ndarray = free
        ) -> tuple[float, np.ndarray]:
            x = initial.copy()
            x[free] = part
            value, slope = loss(x)
            if not np.isfinite(value):
                return INFINITE, np.zeros_like(part)
            return float(value), np.asarray(slope)[free]

        found = minimize(at, initial[free], jac=True, method="L-BFGS-B", bounds=bounds[free], options=options)
        evaluations += found.nfev
        if found.fun < INFINITE and (best is None or found.fun < best.value):
            x = initial.copy()
            x[free] = found.x
            best = Minimum(float(found.fun), x, index, 0)
    return None if best is None else best._replace(num_evaluations=evaluations)
