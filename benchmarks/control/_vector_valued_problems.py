"""Related tasks with known truths, for vector-valued control variates: one replication each, as Sun
et al. draw it.

Sun, Barp and Briol (ICML 2023), sections 5.1, E.2, E.3 and E.4. The paper gives each task t its own
data set {x_tj, f_t(x_tj)} (before equation 8) of the sizes (m_L, m_H), without saying whether tasks
share draws; its code draws them afresh, each task with its own seed, also where both have one
target. So here the draws of two tasks are independent. All targets are normal with independent
coordinates and all draws independent: one chain of m draws.

    tasks = borehole(generator("borehole", replication), 50, 50)
    mp.joint_expectation({name: (task.tree(), None) for name, task in tasks.items()}, method=...)
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

import mcmcpost as mp
from models import borehole as borehole_model

if TYPE_CHECKING:
    import xarray

SOUTH_VARIANCES = (1.0, 1.1, 1.15, 1.2, 1.25)
"""Of the second target, in figure 4 of the paper."""


class Task(NamedTuple):
    """One expectation: draws and scores (1, m, d), the integrand's values (1, m) and its exact
    mean."""

    draws: np.ndarray
    scores: np.ndarray
    values: np.ndarray
    truth: float

    def tree(self) -> "xarray.DataTree":
        """Return the draws, scores and values as a trace; the gate does not stop a small or unlucky
        replication."""
        return mp.from_arrays(
            self.draws, self.scores, self.values[..., None], allow_bad_scores=True
        )


Tasks = dict[str, Task]


def borehole(rng: np.random.Generator, m_high: int, m_low: int) -> Tasks:
    """Return ``high`` and ``low``, the two flows of the borehole, under the same eight normals.

    The paper's Table 2 has m_high = m_low of 10, 20, 50, 100 and 150, and reports ``high`` only;
    its figure 5 has m_high = 20 with m_low of 20, 40 and 60. Known moments:
    ``standardize=(borehole.MEAN, borehole.SD)`` of `models`.
    """
    high, low = borehole_model.sample(rng, m_high), borehole_model.sample(rng, m_low)
    return {
        "high": Task(
            *_chain(*high, borehole_model.flow_high(high.draws)), borehole_model.TRUE_FLOW_HIGH
        ),
        "low": Task(
            *_chain(*low, borehole_model.flow_low(low.draws)), borehole_model.TRUE_FLOW_LOW
        ),
    }


def step(rng: np.random.Generator, m: int) -> Tasks:
    """Return ``high`` and ``low``, the two steps under N(0, 1); the paper has m = 40.

    The target is symmetric: the means are 1/2 and (2 − 1)/2 = 1/2.
    """
    return {
        "high": _normal(rng, m, 1.0, step_high, 0.5),
        "low": _normal(rng, m, 1.0, step_low, 0.5),
    }


def south(rng: np.random.Generator, m: int, sigma2: float) -> Tasks:
    """Return ``first``, f₁ under N(0, 1), and ``second``, f₂ under N(0, `sigma2`); the paper has m
    = 50.

    Odd parts average to zero: the means are 1.5 + 1.5 = 3 and 1 + σ². The paper reports the sum of
    both squared errors. This is its text; its code gives the variance σ² to the integrand called f₁
    here, and 1 to f₂.
    """
    return {
        "first": _normal(rng, m, 1.0, south_first, 3.0),
        "second": _normal(rng, m, sigma2, south_second, 1 + sigma2),
    }


def step_high(x: np.ndarray) -> np.ndarray:
    """Return f_H = 1 at x ≥ 0, else 0."""
    return np.where(x >= 0, 1.0, 0.0)


def step_low(x: np.ndarray) -> np.ndarray:
    """Return f_L = 2 at x ≥ 0, else −1."""
    return np.where(x >= 0, 2.0, -1.0)


def south_first(x: np.ndarray) -> np.ndarray:
    """Return f₁ = 1.5 + x + 1.5x² + 1.75 sin(πx)exp(−x²)."""
    return 1.5 + x + 1.5 * x**2 + 1.75 * np.sin(np.pi * x) * np.exp(-(x**2))


def south_second(x: np.ndarray) -> np.ndarray:
    """Return f₂ = 1 + x + x² + sin(πx)exp(−x²)."""
    return 1 + x + x**2 + np.sin(np.pi * x) * np.exp(-(x**2))


def _normal(
    rng: np.random.Generator,
    m: int,
    variance: float,
    integrand: Callable[[np.ndarray], np.ndarray],
    truth: float,
) -> Task:
    x = np.sqrt(variance) * rng.standard_normal(m)
    return Task(*_chain(x[:, None], -x[:, None] / variance, integrand(x)), truth)


def _chain(
    draws: np.ndarray, scores: np.ndarray, values: ArrayLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return draws[None], scores[None], np.asarray(values)[None]
