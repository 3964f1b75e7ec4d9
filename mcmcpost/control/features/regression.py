"""The regression of functions of one quantity on a few columns, which all of them share but one."""

from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from mcmcpost.control.folds import Folds, Subsets
from mcmcpost.control.method import FoldFit, Refits
from mcmcpost.control.problem import Problem
from mcmcpost.core.errors import Status

DISTANCE = 1e-8
"""Smallest distance of a column of unit norm from the span of those before it."""

STEADY = 1e-9
"""Ridge of a small regression on some of the folds, which hardly moves what these determine."""

OUTERMOST_VISITS = 4
"""Visits to either end of a quantity without which the means of its functions are looked at.

The mean of exp(x), x normal, moves by .2 to .4 of its true error without one (medians, 200 and 500
draws), by .6 to 1.1 without four and 1.2 to 2.7 without eight, that of |x| by 0.6, 3.3 and 28 with
200 draws. Of log gammas four are too many already: 4 to 32, where kernels are taken instead.
"""
ONE_VISIT = 3
"""Steps of a chain up to which two states there belong to one visit: of AR(.97), four visits are
some seventeen states."""
MOST_OUTERMOST = 20
"""One in so many states may be left out at either end, however slowly chains mix."""


class Regression:
    """The regression of functions of one quantity on columns that all of them have, and on one of
    each.

    As in `mcmcpost.control.linear`, sums are those of an orthonormal basis with what the fit on all
    draws leaves. What the functions share is made once.
    """

    def __init__(self, problem: Problem, shared: Float[np.ndarray, "m q"]) -> None:
        """Prepare for integrands at the states of a problem; its own are not looked at."""
        n = problem.num_states
        self.folds, self.root = problem.folds, np.sqrt(problem.counts[:n])[:, None]
        # Orthonormal, so that sums over folds of what the fit on all leaves have as many digits as
        # that has.
        self.basis, self.rule = _orthonormal(shared[:n], self.root)

    @cached_property
    def on_folds(self) -> "_OnFolds":
        """What fits on some of the folds need; the mean of that on all does not."""
        return _OnFolds.of(self.folds, self.basis)

    def mean(
        self, problem: Problem, last: Float[np.ndarray, "m p"] | None = None
    ) -> Float[np.ndarray, " p"]:
        """Return the means by `crossfit`, which takes ten times as long."""
        whole = self._on_all(problem, last)
        return self.rule @ whole.start + whole.last_rule * whole.last_start

    def crossfit(
        self, problem: Problem, method: str, last: Float[np.ndarray, "m p"] | None = None
    ) -> FoldFit:
        """Regress each integrand without each fold and on halves of them; `last` has the column of
        each."""
        whole, folds = self._on_all(problem, last), self.on_folds
        p, k = problem.values.shape[1], self.folds.num_folds
        last_rule = whole.last_rule
        last_column, left = folds.split(whole.last_column), folds.split(whole.left)
        both = np.concatenate([last_column, left], axis=2)
        sides = np.tensordot(folds.sets, folds.basis.transpose(0, 2, 1) @ both, 1)
        squares = np.concatenate([last_column**2, last_column * left], axis=2).sum(axis=1)
        by_column, by_values = np.split(sides, 2, axis=2)
        square, along = np.split(folds.sets @ squares, 2, axis=1)
        by_last = np.linalg.solve(folds.gram, by_column)
        pivot = square + STEADY - (by_column * by_last).sum(axis=1)

        def solve(inside: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            # The last column is eliminated: what functions of a quantity share is factorised once.
            sets, theta = slice(len(last)), np.linalg.solve(folds.gram[: len(last)], inside)
            last = (last - (by_column[sets] * theta).sum(axis=1)) / pivot[sets]
            return theta - by_last[sets] * last[:, None], last

        # What the other folds do not determine is zero without a fold, by (ε/(λ + ε))² where its
        # square is λ: the only draw beyond a threshold must not be reproduced without its own fold.
        every = np.broadcast_to(whole.start, (k, *whole.start.shape))
        inside, last_inside = solve(*solve(every, np.broadcast_to(whole.last_start, (k, p))))
        theta, gamma = (
            a + b
            for a, b in zip(solve(by_values, along), (whole.start, whole.last_start), strict=True)
        )
        theta[:k] -= STEADY**2 * inside
        gamma[:k] -= STEADY**2 * last_inside
        constants = np.tensordot(theta, self.rule, (1, 0)) + gamma * last_rule
        # Quarters would be fits on too few draws for some twenty splines.
        refits = Refits(constants[:k], constants[k:-1], Refits.none(k, constants.shape[1]).quarters)
        fitted = folds.basis @ theta[:k] + last_column * gamma[:k, None]
        control = np.zeros_like(problem.values)
        control[: len(self.root)] = folds.joined(fitted) / self.root
        control[: len(self.root)] -= constants[self.folds.labels[: len(self.root)]]
        return FoldFit(
            constants[-1], control, refits, np.zeros(p), (Status.CONTROLLED,) * p, (method,) * p, {}
        )

    def _on_all(self, problem: Problem, last: Float[np.ndarray, "m p"] | None) -> "_OnAll":
        n, p = len(self.basis), problem.values.shape[1]
        left = problem.values[:n] * self.root
        start = self.basis.T @ left
        left = left - self.basis @ start
        last_column, last_rule = np.zeros((n, p)), np.zeros(p)
        if last is not None:
            last_column, last_rule = _beside(self.basis, self.rule, last[:n] * self.root)
        last_start = (last_column * left).sum(axis=0)
        left -= last_column * last_start
        return _OnAll(start, last_start, last_column, last_rule, left)

    def outermost(
        self, problem: Problem, value: Float[np.ndarray, " m"]
    ) -> Float[np.ndarray, " p"]:
        """Return how far the means move without the outermost states of a quantity, at either
        end."""
        n = len(self.basis)
        order, residuals = np.argsort(value[:n]), problem.values[:n] * self.root
        residuals -= self.basis @ (self.basis.T @ residuals)
        moved = np.zeros(residuals.shape[1])
        for rows in map(_first_visits, (order, order[::-1])):
            # Least squares without rows B of an orthonormal basis, whose residuals are r, differs
            # by Bᵀ(I − BBᵀ)⁻¹r: no refit is needed.
            outer = self.basis[rows]
            kept = (1 + STEADY) * np.eye(len(rows)) - outer @ outer.T
            moved = np.hypot(moved, self.rule @ outer.T @ np.linalg.solve(kept, residuals[rows]))
        return moved


class _OnAll(NamedTuple):
    """The fit on all draws. What fits on some of them differ by is small beside it, and so are the
    sums of what it leaves.

    start, last_start : coefficients of the basis and of the orthonormal columns of each integrand.
    last_column, last_rule : these columns, and how the constant of a fit depends on them.
    left : what the fit leaves.
    """

    start: Float[np.ndarray, "r p"]
    last_start: Float[np.ndarray, " p"]
    last_column: Float[np.ndarray, "n p"]
    last_rule: Float[np.ndarray, " p"]
    left: Float[np.ndarray, "n p"]


class _OnFolds(NamedTuple):
    """The basis by fold, padded to the longest, and its mean products on sets of them.

    rows, real : (k, b) the states of each fold, and which of them are no padding.
    sets : (s, k) all folds but each, halves, and all. gram : of these.
    """

    rows: Int[np.ndarray, "k b"]
    real: Bool[np.ndarray, "k b"]
    basis: Float[np.ndarray, "k b r"]
    sets: Float[np.ndarray, "s k"]
    gram: Float[np.ndarray, "s r r"]

    @classmethod
    def of(cls, folds: Folds, basis: Float[np.ndarray, "n r"]) -> "_OnFolds":
        k, (rows, real) = folds.num_folds, folds.held_out()
        sets = [~np.eye(k, dtype=bool), Subsets.of(k).halves, np.ones((1, k), bool)]
        of_all = np.concatenate(sets).astype(float)
        by_fold = np.where(real[..., None], basis[rows], 0.0)
        gram = np.tensordot(of_all, by_fold.transpose(0, 2, 1) @ by_fold, 1)
        return cls(rows, real, by_fold, of_all, gram + STEADY * np.eye(basis.shape[1]))

    def split(self, columns: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "k b p"]:
        return np.where(self.real[..., None], columns[self.rows], 0.0)

    def joined(self, by_fold: Float[np.ndarray, "k b p"]) -> Float[np.ndarray, "n p"]:
        columns = np.empty((int(self.real.sum()), by_fold.shape[2]))
        columns[self.rows[self.real]] = by_fold[self.real]
        return columns


def _first_visits(order: Int[np.ndarray, " n"]) -> Int[np.ndarray, " r"]:
    """Return the leading ones of states, which are in order, that belong to the first
    `OUTERMOST_VISITS`."""
    most, visits = max(OUTERMOST_VISITS, len(order) // MOST_OUTERMOST), 0
    for k, state in enumerate(order[:most]):
        visits += bool((np.abs(order[:k] - state) > ONE_VISIT).all())
        if visits > OUTERMOST_VISITS:
            return order[:k]
    return order[:most]


def _orthonormal(
    shared: Float[np.ndarray, "n q"], root: Float[np.ndarray, "n one"]
) -> tuple[Float[np.ndarray, "n r"], Float[np.ndarray, " r"]]:
    """Return an orthonormal basis of the constant and some columns, and how the constant of a fit
    depends on it."""
    design = np.concatenate([np.ones((len(root), 1)), shared], axis=1) * root
    norms = np.linalg.norm(design, axis=0)
    design = design[:, norms > 0] / norms[norms > 0]
    basis, upper = np.linalg.qr(design)
    # Splines sum to one, so that a field that vanishes somewhere makes columns that depend on each
    # other.
    while (dependent := np.abs(np.diagonal(upper)) <= DISTANCE).any():
        design = design[:, ~dependent]
        basis, upper = np.linalg.qr(design)
    first = np.zeros(len(upper))
    first[0] = 1 / norms[0]
    return basis, np.linalg.solve(upper.T, first)


def _beside(
    basis: Float[np.ndarray, "n r"],
    rule: Float[np.ndarray, " r"],
    columns: Float[np.ndarray, "n p"],
) -> tuple[Float[np.ndarray, "n p"], Float[np.ndarray, " p"]]:
    """Return columns of unit norm orthogonal to a basis, each by itself, and their part in the
    constant of a fit."""
    sizes = np.linalg.norm(columns, axis=0)
    inside = basis.T @ columns
    outside = columns - basis @ inside
    again = basis.T @ outside  # once more, since what is left may be rounding
    outside, inside = outside - basis @ again, inside + again
    norms = np.linalg.norm(outside, axis=0)
    independent = norms > DISTANCE * np.where(sizes > 0, sizes, 1.0)
    norms = np.where(independent, norms, 1.0)
    return np.where(independent, outside / norms, 0.0), np.where(
        independent, -(rule @ inside) / norms, 0.0
    )
