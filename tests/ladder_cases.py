"""Ladders with closed-form evidence that several test modules share."""

from typing import NamedTuple

import numpy as np

from mcmcpost.evidence import Ladder, make_ladder, power_ladder


class GaussianPath(NamedTuple):
    """Prior N(0, I), one observation `centre` ~ N(x, noise²): everything along the path is closed
    form."""

    centre: np.ndarray
    noise: float

    def moments(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (t, d) and standard deviation (t,) of the power posteriors."""
        precision = 1 + t / self.noise**2
        return (t / self.noise**2 / precision)[:, None] * self.centre, precision**-0.5

    def log_evidence(self, t: np.ndarray) -> np.ndarray:
        """Return log ∫ p(y|x)^t p(x) dx."""
        d, square = len(self.centre), self.centre @ self.centre
        constant = -0.5 * d * np.log(2 * np.pi * self.noise**2)
        return (
            t * constant
            - 0.5 * d * np.log1p(t / self.noise**2)
            - 0.5 * square * t / (self.noise**2 + t)
        )

    def log_likelihood_moments(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return μ(t) and v(t) of the log likelihood."""
        d = len(self.centre)
        mean, sd = self.moments(t)
        gap = ((mean - self.centre) ** 2).sum(axis=1)
        mu = -0.5 * d * np.log(2 * np.pi * self.noise**2) - 0.5 * (d * sd**2 + gap) / self.noise**2
        return mu, (0.5 * d * sd**4 + sd**2 * gap) / self.noise**4

    def ladder(
        self, rng: np.random.Generator, num_draws: int, temperatures: np.ndarray, chains: int = 1
    ) -> Ladder:
        """Return iid draws of every power posterior."""
        mean, sd = self.moments(temperatures)
        x = mean + sd[:, None] * rng.normal(size=(chains, num_draws, *mean.shape))
        gap = x - self.centre
        d = len(self.centre)
        values = -0.5 * (gap**2).sum(-1) / self.noise**2 - 0.5 * d * np.log(
            2 * np.pi * self.noise**2
        )
        return make_ladder(temperatures, x, values, -gap / self.noise**2, -x)


def short_ladder(rng: np.random.Generator) -> tuple[Ladder, GaussianPath]:
    """Return a ladder in one dimension, of the shape of the command line's short runs, and its
    path."""
    path = gaussian_path(1)
    return path.ladder(rng, 60, power_ladder(5, 4), chains=2), path


def gaussian_path(d: int) -> GaussianPath:
    """Return a path in d dimensions whose posterior is two prior standard deviations off."""
    return GaussianPath(np.full(d, 2.0 / np.sqrt(d)), 0.5)


RUNGS = power_ladder(9, 4)
