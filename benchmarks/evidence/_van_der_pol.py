"""The van der Pol posterior on a fine grid: independent draws of every power posterior, and the
exact path."""

from functools import cache
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
from scipy.interpolate import CubicSpline

from models.van_der_pol import NOISE, OBSERVED, PRIOR_SCALE, TIMES, solve

LOG_EVIDENCE = 10.35590262
"""By quadrature, with the ODE solved to 1e-12."""
WIDTH = 8.0
KNOTS = 1_601
POINTS = 32_001


class Grid(NamedTuple):
    """log θ on a fine grid, and the log likelihood as a function of it."""

    points: np.ndarray
    log_likelihood: CubicSpline

    def density(self, temperature: float) -> np.ndarray:
        """Return the power posterior on the grid, up to a constant."""
        log = (
            temperature * self.log_likelihood(self.points) - 0.5 * (self.points / PRIOR_SCALE) ** 2
        )
        return np.exp(log - log.max())


@cache
def grid() -> Grid:
    """Return the log likelihood, solved to 1e-11 at 1,601 knots."""
    knots = np.linspace(-WIDTH * PRIOR_SCALE, WIDTH * PRIOR_SCALE, KNOTS)

    def log_likelihood(log_theta: jax.Array) -> jax.Array:
        u = solve(
            jnp.exp(log_theta), TIMES, solver=diffrax.Dopri8(), tolerance=1e-11, max_steps=4_096
        ).values
        constant = len(OBSERVED) * np.log(NOISE * np.sqrt(2 * np.pi))
        return -0.5 * jnp.sum((jnp.asarray(OBSERVED) - u) ** 2) / NOISE**2 - constant

    values = np.asarray(
        jax.jit(lambda rows: jax.lax.map(log_likelihood, rows, batch_size=64))(jnp.asarray(knots))
    )
    points = np.linspace(knots[0], knots[-1], POINTS)
    return Grid(points, CubicSpline(knots, values))


@cache
def distribution(temperature: float) -> np.ndarray:
    """Return the distribution function of a power posterior on the grid, by the trapezoid rule."""
    density = grid().density(temperature)
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    return mass / mass[-1]


def exact_moments(temperatures: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance of the log likelihood at each temperature."""
    values = grid().log_likelihood(grid().points)
    weights = [grid().density(t) for t in temperatures]
    mean = np.array([w @ values / w.sum() for w in weights])
    return mean, np.array(
        [w @ (values - m) ** 2 / w.sum() for w, m in zip(weights, mean, strict=True)]
    )


def exact_ladder(
    rng: np.random.Generator, num_draws: int, temperatures: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Return independent draws (1, n, t, 1), ℓ (1, n, t), and the two gradients (1, n, t, 1)."""
    x = np.stack(
        [np.interp(rng.random(num_draws), distribution(t), grid().points) for t in temperatures],
        axis=1,
    )
    spline = grid().log_likelihood
    return (
        x[None, ..., None],
        spline(x)[None],
        spline(x, 1)[None, ..., None],
        -x[None, ..., None] / PRIOR_SCALE**2,
    )
