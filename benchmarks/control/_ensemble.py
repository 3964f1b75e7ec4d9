"""Ensembles of least-squares control variates over random subsets of coordinates, a rival of
`Structured`.

Nguyen, Drovandi and South (2025, Ensemble Control Variates, arXiv:2509.01091) average zero-variance
control variates by least squares, each of some features. How many members there are, and how large,
is chosen here by the draws and the time of the structured fits. Members are averaged with equal
weights.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float, Int

from mcmcpost import Status
from mcmcpost.control import AbstractControlVariate, FoldFit, Problem, Refits, Subsets

DRAWS_PER_FEATURE = 3
"""Training states for each feature of a member."""

JITTER = 1e-11
"""Added to Gram matrices of columns of unit norm."""


class Ensemble(AbstractControlVariate):
    """Average the quadratic control variates of random subsets of the coordinates.

    A member is fitted by least squares to all linear and quadratic features of its subset, which is
    as large as `num_features` and the draws allow.

    num_members : of the ensemble. num_features : of a member, at most.
    linear : whether every member has the linear features of all coordinates too.
    """

    num_members: int = 10
    num_features: int = 600
    linear: bool = False

    @property
    def label(self) -> str:
        return "Ensemble()"

    def crossfit(self, problem: Problem) -> FoldFit:
        """Fit every member to all integrands at once, and average them, their held-out parts and
        their refits."""
        problem = problem.unrotated()
        d, p = problem.draws.shape[1], problem.values.shape[1]
        most = min(self.num_features, problem.folds.num_train // DRAWS_PER_FEATURE)
        sizes = [
            size
            for size in range(1, d + 1)
            if len(pairs(np.arange(size), d, self.linear)[0]) < most
        ]
        rng = np.random.default_rng(d)
        total = None
        for _ in range(self.num_members):
            own = np.sort(rng.permutation(d)[: sizes[-1]])
            member = fit_member(problem, *pairs(own, d, self.linear))
            total = (
                member
                if total is None
                else Member(*(a + b for a, b in zip(total, member, strict=True)))
            )
        assert total is not None
        mean, control, without_fold, halves = (part / self.num_members for part in total)
        refits = Refits(without_fold, halves, Refits.none(*without_fold.shape).quarters)
        info = {"num_coordinates": sizes[-1]}
        return FoldFit(
            mean, control, refits, np.zeros(p), (Status.CONTROLLED,) * p, (self.label,) * p, info
        )


class Member(NamedTuple):
    """The means of a least-squares fit, its held-out control variates, and its means without some
    folds."""

    mean: Float[np.ndarray, " p"]
    control: Float[np.ndarray, "m p"]
    without_fold: Float[np.ndarray, "k p"]
    halves: Float[np.ndarray, "h p"]


def pairs(
    own: Int[np.ndarray, " a"], d: int, linear: bool
) -> tuple[Int[np.ndarray, " q"], Int[np.ndarray, " q"]]:
    """Return the features of a subset as pairs of coordinates; coordinate d is the constant one."""
    first, second = np.triu_indices(len(own))
    one = np.arange(d) if linear else own
    return np.concatenate([np.full(len(one), d), own[first]]), np.concatenate([one, own[second]])


def fit_member(
    problem: Problem, first: Int[np.ndarray, " q"], second: Int[np.ndarray, " q"]
) -> Member:
    """Return the least-squares fit on the features u_i s_j + u_j s_i + 2·1(i=j) of some pairs, by
    normal equations."""
    m, k = problem.num_states, problem.folds.num_folds
    root, one = np.sqrt(problem.counts[:m, None]), np.ones((m, 1))
    u = np.concatenate([problem.draws[:m], one], axis=1)
    s = np.concatenate([problem.scores[:m], 0 * one], axis=1)
    features = u[:, first] * s[:, second] + u[:, second] * s[:, first] + 2.0 * (first == second)
    design = np.concatenate([one, features], axis=1) * root
    norm = np.linalg.norm(design, axis=0)
    design /= np.where(norm > 0, norm, 1.0)
    values = problem.values[:m] * root
    blocks = [out for out, _ in problem.folds.rows()]
    grams = np.stack([design[block].T @ design[block] for block in blocks])
    moments = np.stack([design[block].T @ values[block] for block in blocks])

    def solved(kept: Bool[np.ndarray, " k"]) -> Float[np.ndarray, "q p"]:
        gram = np.tensordot(kept, grams, 1) + JITTER * np.eye(len(norm))
        return scipy.linalg.solve(
            gram, np.tensordot(kept, moments, 1), assume_a="pos", overwrite_a=True
        )

    control, without_fold = np.zeros(problem.values.shape), []
    for fold, block in enumerate(blocks):
        theta = solved(np.arange(k) != fold)
        control[block] = design[block, 1:] @ theta[1:] / root[block]
        without_fold.append(theta[0] / norm[0])
    halves = [solved(half)[0] / norm[0] for half in Subsets.of(k).halves]
    return Member(
        solved(np.ones(k, bool))[0] / norm[0], control, np.array(without_fold), np.array(halves)
    )
