"""Least squares by blocks of rows, for traces whose design would be large: only its Gram matrices are kept."""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float, Int

from mcmcpost._blocks import in_blocks, is_large
from mcmcpost._scratch import zeros
from mcmcpost.control._problem import Problem
from mcmcpost.stein import polynomial_features

PIVOT_TOLERANCE = 1e-10
"""Of the Gram matrix of unit columns: 1e-5 of a column's norm."""


class BlockFit(NamedTuple):
    """A least-squares fit, constant first; see `LinearFit`.

    mean : (p,). control : (m, p) the fitted part without the constant, fitted without each state's fold.
    fold_means : (k, p). num_features : without the constant; num_dropped : combinations of others, left out.
    """

    mean: Float[np.ndarray, " p"]
    control: Float[np.ndarray, "m p"]
    fold_means: Float[np.ndarray, "k p"]
    num_features: int
    num_dropped: int


def has_large_design(problem: Problem, size: int) -> bool:
    """Return whether a design of `size` columns is large, and larger than one Gram matrix for each fold."""
    rows = len(problem.counts)
    return is_large(rows * size) and len(problem.held_out) * size < rows


def fit_by_blocks(problem: Problem, exponents: Int[np.ndarray, "a d"]) -> BlockFit:
    """Minimise Σ nᵢ(fᵢ − xᵢᵀθ)² over all states and without each fold, x the constant and the Stein features.

    Without a fold the normal equations are a difference of Gram matrices. Coefficients are good to the condition number
    of the Gram matrix of unit columns times 1e-16, where `fit_linear` has its square root: a few digits fewer. Time is
    O(m q² + k q³), memory O(k q²) beside the problem's own arrays.
    """
    k, p = len(problem.held_out), problem.values.shape[1]
    size = len(exponents) + 1
    gram, cross = np.zeros((k, size, size)), np.zeros((k, size, p))
    for fold, index in _blocks(problem, size):
        rows = _rows(problem, exponents, index)
        gram[fold] += rows.T @ rows
        cross[fold] += rows.T @ (problem.values[index] * np.sqrt(problem.counts[index])[:, None])

    norms = np.sqrt(np.einsum("kii->i", gram))
    norms[norms == 0] = 1.0
    gram /= norms[:, None] * norms
    cross /= norms[:, None]
    whole = gram.sum(axis=0)
    keep = _independent(whole)
    inside = np.ix_(keep, keep)
    theta = np.zeros((k, size, p))
    for fold in range(k):
        theta[fold, keep] = _solve((whole - gram[fold])[inside], (cross.sum(axis=0) - cross[fold])[keep])
    mean = np.asarray(_solve(whole[inside], cross.sum(axis=0)[keep])[0]) / norms[0]
    theta /= norms[:, None]
    control = zeros(problem.values.shape)
    for fold, index in _blocks(problem, size):
        features = np.asarray(polynomial_features(problem.draws[index], problem.scores[index], exponents))
        control[index] = features @ theta[fold, 1:]
    return BlockFit(mean, control, theta[:, 0], int(keep.sum()) - 1, int((~keep).sum()))


def _blocks(problem: Problem, size: int) -> Iterator[tuple[int, Int[np.ndarray, " b"]]]:
    """Yield each fold and some of its states, a block of the design at a time."""
    for fold, (rows, mask) in enumerate(zip(problem.held_out, problem.held_out_mask, strict=True)):
        real = rows[mask]
        for some in in_blocks(len(real), size):
            yield fold, real[some]


def _rows(problem: Problem, exponents: np.ndarray, index: np.ndarray) -> Float[np.ndarray, "b q"]:
    features = np.asarray(polynomial_features(problem.draws[index], problem.scores[index], exponents))
    root = np.sqrt(problem.counts[index])[:, None]
    return np.concatenate([root, features * root], axis=1)


def _independent(gram: Float[np.ndarray, "q q"]) -> Bool[np.ndarray, " q"]:
    """Return which columns to keep, by Cholesky with pivoting beside the constant, which stays."""
    centred = gram[1:, 1:] - np.outer(gram[1:, 0], gram[0, 1:]) / gram[0, 0]
    _, order, rank, _ = scipy.linalg.lapack.dpstrf(centred, tol=PIVOT_TOLERANCE, lower=1)
    keep = np.zeros(len(gram), bool)
    keep[0] = True
    keep[order[:rank]] = True  # LAPACK counts from one, and so do the features here
    return keep


@jax.jit
def _solve(gram: Float[Array, "q q"], cross: Float[Array, "q p"]) -> Float[Array, "q p"]:
    """NaN where the Gram matrix is singular."""
    return cho_solve((jnp.linalg.cholesky(gram), True), cross)
