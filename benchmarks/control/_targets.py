"""Targets with exact expectations and samplers: a smooth, an exponential and an indicator integrand
each."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import cauchy, norm, t

from benchmarks._replicate import generator

SHAPE = (4, 125)
Integrand = Callable[[np.ndarray], np.ndarray]


class Target(NamedTuple):
    """A density by its exact sampler.

    draw : (random stream, number) ↦ draws and scores, both (number, d).
    integrands : name ↦ function of the draws (…, d) and its exact expectation.
    """

    draw: Callable[[np.random.Generator, int], tuple[np.ndarray, np.ndarray]]
    integrands: Mapping[str, tuple[Integrand, float]]


def sampler(name: str) -> Callable[[int], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the replications of a target: `SHAPE` independent draws."""
    target = TARGETS[name]

    def sample(replication: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, s = target.draw(generator(name, replication), SHAPE[0] * SHAPE[1])
        values = np.stack([f(x) for f, _ in target.integrands.values()], -1)
        return x.reshape(*SHAPE, -1), s.reshape(*SHAPE, -1), values.reshape(*SHAPE, -1)

    return sample


def first(function: Integrand) -> Integrand:
    """Return an integrand of the first coordinate."""
    return lambda x: function(x[:, 0])


def _exp(x: np.ndarray) -> np.ndarray:
    return np.exp(0.3 * x)


def _above(x: np.ndarray) -> np.ndarray:
    return (x > 1).astype(float)


def _logistic(x: np.ndarray) -> np.ndarray:
    return expit(x - 1)


def _gaussian(dimension: int, correlation: float = 0.0) -> Target:
    lag = np.abs(np.subtract.outer(np.arange(dimension), np.arange(dimension)))
    covariance = correlation**lag if correlation else np.eye(dimension)
    lower, precision = np.linalg.cholesky(covariance), np.linalg.inv(covariance)

    def draw(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.standard_normal((number, dimension)) @ lower.T
        return x, -x @ precision

    last = dimension - 1
    phase = np.zeros(dimension)
    phase[[0, last]] += 0.7
    smooth = np.cos(0.5) * np.exp(-0.5 * phase @ covariance @ phase)
    return Target(
        draw,
        {
            "cos(.5+.7(x1+xd))": (lambda x: np.cos(0.5 + 0.7 * (x[:, 0] + x[:, last])), smooth)
            if last
            else (first(lambda x: np.cos(0.5 + 0.7 * x)), np.cos(0.5) * np.exp(-0.5 * 0.49)),
            "exp(.3x1)": (first(_exp), np.exp(0.045)),
            "1(x1>1)": (first(_above), norm.sf(1)),
        },
    )


BEND = 0.5


def _banana() -> Target:
    def draw(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
        z, e = rng.standard_normal((2, number))
        return np.stack([z, BEND * (z**2 - 1) + e], 1), np.stack([2 * BEND * z * e - z, -e], 1)

    # E cos(b(z² − 1) + e), with E exp(ibz²) = (1 − 2ib)^(−1/2)
    smooth = np.exp(-0.5) * (np.exp(-1j * BEND) / np.sqrt(1 - 2j * BEND)).real
    tail = quad(lambda z: norm.pdf(z) * norm.sf(1 - BEND * (z**2 - 1)), -12, 12)[0]
    return Target(
        draw,
        {
            "cos(x2)": (lambda x: np.cos(x[:, 1]), smooth),
            "exp(.3x1)": (first(_exp), np.exp(0.045)),
            "1(x2>1)": (lambda x: _above(x[:, 1]), tail),
        },
    )


def _funnel() -> Target:
    """v ~ N(0, 1), x₁, x₂ ~ N(0, eᵛ)."""

    def draw(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
        v, *x = rng.standard_normal((3, number))
        x = np.exp(v / 2) * np.stack(x)
        scaled = x * np.exp(-v)
        return np.stack([v, *x], 1), np.stack([-v - 1 + 0.5 * (x * scaled).sum(0), *-scaled], 1)

    smooth = quad(lambda v: norm.pdf(v) * np.exp(-np.exp(v) / 2), -12, 12)[0]
    return Target(
        draw,
        {
            "cos(x1)": (lambda x: np.cos(x[:, 1]), smooth),
            "exp(.3v)": (first(_exp), np.exp(0.045)),
            "1(v>1)": (first(_above), norm.sf(1)),
        },
    )


def _mixture() -> Target:
    """0.3 N(−1.5, 1) + 0.7 N(1.5, 1) in x₁, and an independent standard normal x₂."""
    shift, share = 1.5, 0.7

    def draw(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.standard_normal((number, 2))
        x[:, 0] += np.where(rng.random(number) < share, shift, -shift)
        right = share * norm.pdf(x[:, 0], shift)
        right /= right + (1 - share) * norm.pdf(x[:, 0], -shift)
        return x, np.stack([shift * (2 * right - 1) - x[:, 0], -x[:, 1]], 1)

    def mixed(at: Callable[[float], float]) -> float:
        return share * at(shift) + (1 - share) * at(-shift)

    return Target(
        draw,
        {
            "cos(x1)": (first(np.cos), mixed(lambda m: np.cos(m) * np.exp(-0.5))),
            "exp(.3x1)": (first(_exp), mixed(lambda m: np.exp(0.3 * m + 0.045))),
            "1(x1>1)": (first(_above), mixed(lambda m: norm.sf(1 - m))),
        },
    )


def _student(freedom: float, cosine: float) -> Target:
    """Student t; no exponential moment, so a logistic function stands for it."""
    law = cauchy if freedom == 1 else t(freedom)

    def draw(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.standard_t(freedom, (number, 1))
        return x, -(freedom + 1) * x / (freedom + x**2)

    bounded = sum(
        quad(lambda x: law.pdf(x) * _logistic(x), *ends, epsabs=1e-11)[0] for ends in _RAYS
    )
    return Target(
        draw,
        {
            "cos(x)": (first(np.cos), cosine),
            "logistic(x-1)": (first(_logistic), bounded),
            "1(x>1)": (first(_above), float(law.sf(1))),
        },
    )


_RAYS = ((-np.inf, -50), (-50, -10), (-10, 1), (1, 12), (12, 50), (50, np.inf))


def _exponential() -> Target:
    """Unit exponential on the raw scale, whose score −1 breaks Stein's identity at the boundary."""

    def draw(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.exponential(size=(number, 1)), -np.ones((number, 1))

    return Target(
        draw,
        {
            "cos(x)": (first(np.cos), 0.5),
            "exp(.3x)": (first(_exp), 1 / 0.7),
            "1(x>1)": (first(_above), np.exp(-1)),
        },
    )


def autoregressive(rho: float) -> Target:
    """Four stationary AR(1) chains of two independent standard normal coordinates, one chain after
    the other."""

    def draw(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
        noise = rng.standard_normal((4, number // 4, 2))
        x = noise.copy()
        for i in range(1, x.shape[1]):
            x[:, i] = rho * x[:, i - 1] + np.sqrt(1 - rho**2) * noise[:, i]
        return x.reshape(number, 2), -x.reshape(number, 2)

    return Target(
        draw,
        {
            "cos(1.5x1)": (first(lambda v: np.cos(1.5 * v)), np.exp(-(1.5**2) / 2)),
            "exp(.5x1)": (first(lambda v: np.exp(0.5 * v)), np.exp(0.5**2 / 2)),
            "1(x1>1)": (first(_above), norm.sf(1.0)),
        },
    )


TARGETS: dict[str, Target] = {
    "gaussian d=1": _gaussian(1),
    "gaussian d=10 correlated": _gaussian(10, 0.7),
    "gaussian d=50": _gaussian(50),
    "banana d=2": _banana(),
    "funnel d=3": _funnel(),
    "mixture d=2": _mixture(),
    "student t3": _student(3.0, (1 + np.sqrt(3)) * np.exp(-np.sqrt(3))),
    "cauchy": _student(1.0, np.exp(-1.0)),
    "exponential raw": _exponential(),
}
