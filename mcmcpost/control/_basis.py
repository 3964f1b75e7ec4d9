"""The polynomial Stein basis of a problem: constant first, features of unit norm, dependent ones removed."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from mcmcpost.control._linear import independent_columns
from mcmcpost.control._problem import Problem
from mcmcpost.stein import polynomial_exponents, polynomial_features


class Basis(NamedTuple):
    """Stein features L∇φ of monomials φ at the states of a problem.

    design : (m, q) the constant one, then features of unit weighted norm; zero on padding.
    num_dropped : features removed because they were combinations of others.
    """

    design: Float[np.ndarray, "m q"]
    num_dropped: int


def polynomial_basis(problem: Problem, exponents: Int[np.ndarray, "a d"]) -> Basis:
    """Return the constant and the features of `exponents`, of which there may be none."""
    real = (problem.counts > 0).astype(float)[:, None]
    if not len(exponents):
        return Basis(real, 0)
    features = np.asarray(polynomial_features(problem.draws, problem.scores, exponents)) * real
    norms = np.sqrt(problem.counts @ features**2)
    unit = np.concatenate([real / np.sqrt(problem.counts.sum()), features / np.where(norms > 0, norms, 1.0)], axis=1)
    keep = independent_columns(unit * np.sqrt(problem.counts)[:, None])
    unit[:, 0] = real[:, 0]
    return Basis(unit[:, keep], int((~keep).sum()))


def exponents_of_degree(num_parameters: int, degree: int, max_interaction: int | None = None) -> np.ndarray:
    """Return the monomials of total degree 1 to `degree`; none for degree zero."""
    if degree == 0:
        return np.zeros((0, num_parameters), int)
    return polynomial_exponents(num_parameters, degree, max_interaction=max_interaction)
