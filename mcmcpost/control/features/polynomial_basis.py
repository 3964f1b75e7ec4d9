"""The constant and the Stein features of monomials as columns, which kernels leave unpenalised."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float, Int

from mcmcpost.control.problem import Problem
from mcmcpost.core.arrays import in_blocks
from mcmcpost.stein import polynomial_exponents, polynomial_features

RANK_TOLERANCE = 1e-10
"""Relative to columns of unit norm."""


def independent_columns(design: Float[np.ndarray, "m q"]) -> Bool[np.ndarray, " q"]:
    """Return which columns to keep so that none is, to rounding, a combination of the others.

    Columns are of unit norm; the first, the constant, always stays. A pivoted QR, which is slower,
    is made only where a plain one shows that a column is dependent.
    """
    size = design.shape[1]
    if (
        design.shape[0] >= size
        and (np.abs(np.diagonal(np.linalg.qr(design, mode="r"))) > RANK_TOLERANCE).all()
    ):
        return np.ones(size, bool)
    rest = design[:, 1:] - design[:, :1] * (
        design[:, 0] @ design[:, 1:] / (design[:, 0] @ design[:, 0])
    )
    r, order = scipy.linalg.qr(rest, mode="r", pivoting=True)
    rank = int((np.abs(np.diagonal(r)) > RANK_TOLERANCE).sum())
    keep = np.zeros(size, bool)
    keep[0] = True
    keep[1 + order[:rank]] = True
    return keep


class Features(NamedTuple):
    """Stein features of monomials, divided by their norms.

    exponents : (a, d). norms : (a,).
    """

    exponents: Int[np.ndarray, "a d"]
    norms: Float[np.ndarray, " a"]

    def of(
        self, draws: Float[np.ndarray, "m d"], scores: Float[np.ndarray, "m d"]
    ) -> Float[np.ndarray, "m a"]:
        """Return the features at some states."""
        if not len(self.norms):
            return np.zeros((len(draws), 0))
        return np.asarray(polynomial_features(draws, scores, self.exponents)) / self.norms


def polynomial_basis(
    problem: Problem, exponents: Int[np.ndarray, "a d"]
) -> Float[np.ndarray, "m q"]:
    """Return the constant one and the Stein features L∇φ of some monomials φ, of which there may be
    none.

    Features have unit weighted norm and are zero on padding; those that are combinations of others
    are left out.
    """
    return basis_with_features(problem, exponents)[0]


def basis_with_features(
    problem: Problem, exponents: Int[np.ndarray, "a d"]
) -> tuple[Float[np.ndarray, "m q"], Features]:
    """Return what `polynomial_basis` returns, and its features, with which it can be made of other
    states."""
    real = (problem.counts > 0).astype(float)[:, None]
    if not len(exponents):
        return real, Features(exponents, np.zeros(0))
    draws, scores = np.asarray(problem.draws), np.asarray(problem.scores)
    features = np.asarray(polynomial_features(draws, scores, exponents)) * real
    norms = np.sqrt(problem.counts @ features**2)
    norms = np.where(norms > 0, norms, 1.0)
    unit = np.concatenate([real / np.sqrt(problem.counts.sum()), features / norms], axis=1)
    keep = independent_columns(unit * np.sqrt(problem.counts)[:, None])
    unit[:, 0] = real[:, 0]
    return unit[:, keep], Features(exponents[keep[1:]], norms[keep[1:]])


def exponents_of_degree(
    num_parameters: int, degree: int, max_interaction: int | None = None
) -> np.ndarray:
    """Return the monomials of total degree 1 to `degree`; none for degree zero."""
    if degree == 0:
        return np.zeros((0, num_parameters), int)
    return polynomial_exponents(num_parameters, degree, max_interaction=max_interaction)


def by_fold(labels: Int[np.ndarray, " m"], width: int) -> Iterator[tuple[int, slice]]:
    """Yield blocks of rows with one label each, those of padding, −1, left out; see `in_blocks`."""
    ends = np.append(np.flatnonzero(np.diff(labels)) + 1, len(labels))
    for start, end in itertools.pairwise([0, *ends.tolist()]):
        for some in in_blocks(end - start, width) if labels[start] >= 0 else ():
            yield int(labels[start]), slice(start + some.start, start + some.stop)
