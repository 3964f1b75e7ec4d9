"""Quadrature along the ladder: linear rules in the means and variances of the log likelihood, and what they miss."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

MIN_RICHARDSON = 9

STEEP = 1.0
"""Between two rungs dμ/dt = v: part of the change of μ by which the trapezoid of v may miss it. Where it misses more,
the rungs are too far apart there for the error to be a power of their distance."""

EVEN_STEP = 1e-8


class Rule(NamedTuple):
    """log Z ≈ Σ mean_weights·μ + variance_weights·v over the rungs."""

    mean_weights: Float[np.ndarray, " t"]
    variance_weights: Float[np.ndarray, " t"]

    def integrate(self, mean: Float[np.ndarray, " t"], variance: Float[np.ndarray, " t"]) -> float:
        """Return the rule's value at means μ and variances v of the log likelihood."""
        return float(self.mean_weights @ mean + self.variance_weights @ variance)


def trapezoid_rule(temperatures: Float[np.ndarray, " t"]) -> Rule:
    """Return Σ (t_{i+1} − t_i)(μ_{i+1} + μ_i)/2."""
    steps = np.diff(temperatures)
    weights = np.zeros(len(temperatures))
    weights[:-1] += steps / 2
    weights[1:] += steps / 2
    return Rule(weights, np.zeros(len(temperatures)))


def corrected_rule(temperatures: Float[np.ndarray, " t"]) -> Rule:
    """Return the trapezoid minus Σ (t_{i+1} − t_i)²(v_{i+1} − v_i)/12, as dμ/dt = v.

    Friel, Hurn and Wyse (2014, doi:10.1007/s11222-013-9397-1); docs/mathematics.md section 3 has the sign and the last
    index, which Sun, Barp and Briol (2023), appendix E.5, misprint.
    """
    steps = np.diff(temperatures)
    weights = np.zeros(len(temperatures))
    weights[1:] -= steps**2 / 12
    weights[:-1] += steps**2 / 12
    return Rule(trapezoid_rule(temperatures).mean_weights, weights)


def simpson_rule(temperatures: Float[np.ndarray, " t"]) -> Rule | None:
    """Return Simpson's rule in s = t^(1/p) of ∫μ(s^p) p s^(p−1) ds, or None where it does not apply.

    It applies to an odd number of rungs of a power law t_i = ((i−1)/(w−1))^p.
    """
    size = len(temperatures)
    if size < 3 or size % 2 == 0 or temperatures[0] != 0.0 or temperatures[-1] != 1.0:
        return None
    power = np.log(temperatures[1]) / np.log(1.0 / (size - 1))
    s = np.linspace(0.0, 1.0, size)
    if power < 1 or not np.allclose(s**power, temperatures, rtol=1e-6, atol=EVEN_STEP * temperatures[1]):
        return None
    weights = np.full(size, 2.0)
    weights[1::2] = 4.0
    weights[[0, -1]] = 1.0
    density = power * s ** (power - 1.0)
    return Rule(weights / (3 * (size - 1)) * density, np.zeros(size))


def discretisation_errors(
    temperatures: Float[np.ndarray, " t"], mean: Float[np.ndarray, " t"], variance: Float[np.ndarray, " t"]
) -> dict[str, float]:
    """Return estimates of what each rule misses: ``trapezoid``, ``corrected`` and, where it applies, ``simpson``.

    The corrected rule's own error is |corrected − corrected on every second rung|/15 (Richardson, for an odd number of
    rungs, nine at least) and, between rungs where the mean is too steep for that (`STEEP`), the correction there;
    together at most the size of the whole correction, which is also the error for fewer rungs or an even number. The
    others' are their distances from the corrected rule, for Simpson's an upper bound (its own Richardson estimate was
    a fifth of the truth on 17 rungs of van der Pol).
    """
    corrected = corrected_rule(temperatures).integrate(mean, variance)
    trapezoid = trapezoid_rule(temperatures).integrate(mean, variance)
    errors = {"trapezoid": abs(corrected - trapezoid), "corrected": abs(corrected - trapezoid)}
    half = slice(None, None, 2)
    odd = len(temperatures) % 2 == 1 and len(temperatures) >= MIN_RICHARDSON
    if odd:
        coarse = corrected_rule(temperatures[half]).integrate(mean[half], variance[half])
        asymptotic = abs(corrected - coarse) / 15
        steps, change = np.diff(temperatures), np.diff(mean)
        steep = np.abs(steps * (variance[1:] + variance[:-1]) / 2 - change) > STEEP * np.abs(change)
        beyond = abs(float((steps**2 * np.diff(variance) / 12)[steep].sum()))
        errors["corrected"] = min(asymptotic + beyond, max(asymptotic, errors["corrected"]))
    fine = simpson_rule(temperatures)
    if fine is not None:
        errors["simpson"] = abs(fine.integrate(mean, variance) - corrected)
    return errors
