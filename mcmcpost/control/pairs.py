"""Quadratic Stein features as pairs of coordinates, at the states of a problem, and which go with a residual.

With one more coordinate that is constantly one, and whose score is zero, every linear and quadratic Stein feature is
u_i s_j + u_j s_i + 2·1(i=j) for a pair of coordinates. For a residual r, the one matrix M = (r∘u)ᵀs ranks all of them:
the correlation of r with a feature is the entry of M + Mᵀ over the feature's norm.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from mcmcpost.control.problem import Problem
from mcmcpost.control.zero_variance import MIN_TRAIN

RANKING = 2e9
"""Largest number of multiplications in one ranking; beyond it, fewer states are ranked, evenly spaced."""


class Pairs(NamedTuple):
    """Features, as pairs of coordinates; coordinate d is the constant one."""

    first: Int[np.ndarray, " q"]
    second: Int[np.ndarray, " q"]


class Rows(NamedTuple):
    """The states of a problem in the order of its folds.

    order : (m,) the state of each row. folds : k slices of rows. root : (m,) roots of the counts.
    draws, scores : (m, d + 1), the last coordinate constant.
    values : (m, p), times the roots.
    """

    order: Int[np.ndarray, " m"]
    folds: tuple[slice, ...]
    root: Float[np.ndarray, " m"]
    draws: Float[np.ndarray, "m d1"]
    scores: Float[np.ndarray, "m d1"]
    values: Float[np.ndarray, "m p"]

    @classmethod
    def of(cls, problem: Problem) -> "Rows":
        """Return the rows of a problem, without padding."""
        parts = [held_out for held_out, _ in problem.folds.rows()]
        order, ends = np.concatenate(parts), np.cumsum([len(part) for part in parts])
        root = np.sqrt(problem.counts[order])
        return cls(
            order=order,
            folds=tuple(slice(end - len(part), end) for part, end in zip(parts, ends, strict=True)),
            root=root,
            draws=with_one(problem.draws[order], 1.0),
            scores=with_one(problem.scores[order], 0.0),
            values=problem.values[order] * root[:, None],
        )

    @property
    def num_coordinates(self) -> int:
        return self.draws.shape[1] - 1

    def features(self, pairs: Pairs) -> Float[np.ndarray, "m a"]:
        """Return the features of some pairs, times the roots, of unit norm; zero where they vanish."""
        found = features_of(self.draws, self.scores, pairs) * self.root[:, None]
        found /= _norms(found)
        return found

    def norms(self, pairs: Pairs) -> Float[np.ndarray, " a"]:
        """Return by what `features` divides."""
        return _norms(features_of(self.draws, self.scores, pairs) * self.root[:, None])

    def by_fold(self, one: Float[np.ndarray, "m a"], two: Float[np.ndarray, "m b"]) -> Float[np.ndarray, "k a b"]:
        """Return oneᵀtwo over the rows of each fold."""
        return np.stack([one[fold].T @ two[fold] for fold in self.folds])


def features_of(
    draws: Float[np.ndarray, "m d1"], scores: Float[np.ndarray, "m d1"], pairs: Pairs
) -> Float[np.ndarray, "m a"]:
    """Return the features of some pairs of coordinates, of which the last one is constant."""
    i, j = pairs
    found = draws[:, i] * scores[:, j]
    found += draws[:, j] * scores[:, i]
    found += 2.0 * (i == j)
    return found


def _norms(columns: Float[np.ndarray, "m a"]) -> Float[np.ndarray, " a"]:
    norm = np.linalg.norm(columns, axis=0)
    return np.where(norm > 0, norm, 1.0)


def with_one(rows: Float[np.ndarray, "m d"], value: float) -> Float[np.ndarray, "m d1"]:
    """Return the rows with one more coordinate, which is constant."""
    return np.concatenate([rows, np.full((len(rows), 1), value)], axis=1)


class Ranking(NamedTuple):
    """What ranks all features: some states in single precision, and the norm of each feature on them.

    chosen : (a,) rows. draws : (a, d + 1). scores : (a, d).
    norm : (d + 1, d); infinite where an entry is no candidate, or one that stands elsewhere too.
    num_candidates : its finite entries.
    """

    chosen: Int[np.ndarray, " a"]
    draws: Float[np.ndarray, "a d1"]
    scores: Float[np.ndarray, "a d"]
    norm: Float[np.ndarray, "d1 d"]
    num_candidates: int

    @classmethod
    def of(cls, rows: Rows, always: Pairs) -> "Ranking":
        """Return the ranking of all features but those that every fit has."""
        m, d = len(rows.order), rows.num_coordinates
        chosen = np.linspace(0, m - 1, num_ranked(m, d)).astype(int)
        u, s = rows.draws[chosen].astype(np.float32), rows.scores[chosen, :d].astype(np.float32)
        root = rows.root[chosen, None].astype(np.float32)
        mixed = u[:, :d] * s * root
        energy = ((u * root) ** 2).T @ s**2
        energy[:d] += energy[:d].T + 2 * mixed.T @ mixed
        energy[np.arange(d), np.arange(d)] += 8 * root[:, 0] @ mixed + 4 * (root**2).sum()
        norm = np.sqrt(energy)
        norm[norm <= 1e-6 * norm.max()] = np.inf
        norm[:d][np.tril_indices(d, -1)] = np.inf
        norm[always] = np.inf
        return cls(chosen, u, s, norm, int(np.isfinite(norm).sum()))

    def best(self, residual: Float[np.ndarray, " m"], number: int, taken: Pairs) -> Pairs:
        """Return the features that correlate most with a residual, the best first, without those taken before."""
        d = self.scores.shape[1]
        found = (self.draws * residual[self.chosen, None].astype(np.float32)).T @ self.scores
        found[:d] += found[:d].T.copy()
        np.abs(found, out=found)
        found /= self.norm
        found[taken] = -1.0
        # The largest entries are in the rows whose own largest are.
        rows = np.sort(np.argpartition(-found.max(axis=1), min(number, d) - 1)[:number])
        flat = found[rows].ravel()
        most = np.argpartition(-flat, number - 1)[:number]
        first, second = np.divmod(most[np.lexsort((most, -flat[most]))], d)
        return Pairs(rows[first], second)


def num_ranked(m: int, d: int) -> int:
    """Return at how many of m states features are ranked."""
    return min(m, max(int(RANKING / d**2), MIN_TRAIN))
