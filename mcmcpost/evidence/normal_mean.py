"""Means over independent standard normals, with Hermite polynomials as controls."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import solve

from mcmcpost.control import NEED, PlainMean
from mcmcpost.stein import num_polynomial_features, polynomial_exponents

MOST_WORK, ROWS_PER_POLYNOMIAL, NUM_FOLDS = 1e9, 20, 4
"""Multiplications of the products among polynomials at most, of half as many above degree two: 819
of degree two would take 1.4 s at 18,000 rows."""

MOST_DEGREES = 3
"""Largest degree of them. Higher ones leave residuals that are large only where no proposal lies:
of four ratios of one and two coordinates mean z² was at most 1.7 at degree three, 27 at four with
600 proposals, and 2 to 2,000 at twelve."""


class NormalMean(NamedTuple):
    """Mean of a function of standard normals, its standard error, and the control variate that it
    has."""

    value: float
    mcse: float
    control: str


def normal_mean(standard: Float[np.ndarray, "m d"], values: Float[np.ndarray, " m"]) -> NormalMean:
    """Return the mean of a function of independent standard normals, controlled by Hermite
    polynomials in them.

    These have the mean zero. Coefficients are of least squares on the other folds, so that the mean
    of what is left is unbiased; the degree is the one that leaves least, a higher one by `NEED`.
    """
    m, d = standard.shape
    sizes = [num_polynomial_features(d, k) * (1 if k <= 2 else 2) for k in range(MOST_DEGREES + 1)]
    degree = max(
        k
        for k, size in enumerate(sizes)
        if size <= min(np.sqrt(MOST_WORK / m), m / ROWS_PER_POLYNOMIAL)
    )
    best, control = values - values.mean(), PlainMean().label
    least, residuals = float(best @ best), values
    if degree == 0 or not least > 0:
        return NormalMean(float(values.mean()), float(np.sqrt(least) / m), control)
    exponents = polynomial_exponents(d, degree)
    rows = np.concatenate([np.ones((m, 1)), _hermite(standard, exponents)], axis=1)
    folds = [slice(k, None, NUM_FOLDS) for k in range(NUM_FOLDS)]
    grams = [rows[fold].T @ rows[fold] for fold in folds]
    sides = [rows[fold].T @ values[fold] for fold in folds]
    for k in range(1, degree + 1):
        # Monomials are ordered by degree: those up to k are the first ones.
        columns = slice(num_polynomial_features(d, k) + 1)
        left = np.empty(m)
        for fold, gram, side in zip(folds, grams, sides, strict=True):
            others, of_others = (sum(grams) - gram)[columns, columns], (sum(sides) - side)[columns]
            # Polynomials of norm one under the normal: the ridge is far below what matters, and
            # lets a matrix that a few far proposals dominate be factored.
            others[np.diag_indices_from(others)] += 1e-10 * m
            coefficients = solve(others, of_others, assume_a="pos")
            left[fold] = values[fold] - rows[fold, columns][:, 1:] @ coefficients[1:]
        squares = float(((left - left.mean()) ** 2).sum())
        if squares * NEED < least:
            least, residuals, control = squares, left, f"polynomials of degree {k}"
    return NormalMean(float(residuals.mean()), float(np.sqrt(least) / m), control)


def _hermite(
    z: Float[np.ndarray, "m d"], exponents: Int[np.ndarray, "q d"]
) -> Float[np.ndarray, "m q"]:
    """Return products of Hermite polynomials, orthonormal under the standard normal, one a row of
    exponents."""
    table = [np.ones_like(z), z]
    for k in range(1, int(exponents.max())):
        table.append((z * table[k] - np.sqrt(k) * table[k - 1]) / np.sqrt(k + 1.0))
    polynomials = np.ones((len(z), len(exponents)))
    for column, powers in zip(polynomials.T, exponents, strict=True):
        for i in np.flatnonzero(powers):
            column *= table[powers[i]][:, i]
    return polynomials
