"""Semi-exact control variates of hundreds of coordinates: quadratic features that stand out, and a kernel of a few.

Quadratic Stein features are pairs of coordinates: with one more coordinate that is constantly one, and whose score is
zero, every linear and quadratic Stein feature is u_i s_j + u_j s_i + 2·1(i=j) for a pair of coordinates. For a residual
r, the one matrix M = (r∘u)ᵀs ranks all of them: the correlation of r with a feature is the entry of M + Mᵀ over the
feature's norm.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float, Int

from mcmcpost.control.folds import Subsets, pad_rows
from mcmcpost.control.least_squares import by_fold, labels_of
from mcmcpost.control.method import (
    AbstractControlVariate,
    ControlFit,
    Refits,
    Work,
    mean_of_residuals,
    no_control,
    num_fits,
    refuse_weighted,
)
from mcmcpost.control.problem import Problem
from mcmcpost.control.zero_variance import DRAWS_PER_FEATURE, MIN_TRAIN
from mcmcpost.core.arguments import check_count, check_flags
from mcmcpost.core.arrays import over_rows, zeros
from mcmcpost.core.errors import Status
from mcmcpost.core.runtime import say_step
from mcmcpost.stein import SquaredExponential, stein_gram

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


MAX_BASE = 2_000
"""Largest number of features that every fit has."""

MAX_ADDED = 300
"""Largest number of features that a round adds by default."""

RELEVANT = 6
"""Coordinates of the kernel."""

CENTRES = 200
"""States at which the kernel is expanded."""

NUGGET = 0.1
"""Relative to the kernel's mean diagonal."""

JITTER = 1e-11
"""Added to Gram matrices of columns of unit norm, of which some may be combinations of others."""


class Screened(AbstractControlVariate):
    """Regress on linear and diagonal quadratic features, mixed ones that stand out, and a kernel of few coordinates.

    For hierarchical models, with more parameters than a full quadratic has draws for. Every step is made for each
    integrand by itself and again without each fold; the number of steps that is used has the least held-out residual.
    The refits that give the error keep the features of the fit on all draws.

    1. Least squares on the d linear features and the d diagonal ones; on the linear ones where draws are too few for
       both, and on none where they are too few for those.
    2. Rounds: all other quadratic (or linear) features are ranked by their correlation with the residual, and the best
       are added (sure independence screening, Fan and Lv 2008, doi:10.1111/j.1467-9868.2008.00674.x).
    3. A squared exponential Stein kernel of the six coordinates whose features carry most of the fit, expanded at 200
       states (subset of regressors, Rasmussen and Williams 2006, section 8.3.1).

    Coordinates are scaled and never rotated. docs/mathematics.md section 2.

    Parameters
    ----------
    rounds : at most.
    per_round : features that a round adds; by default one for a hundred training states, between 5 and 300. All rounds
        together add at most one for three training states.
    kernel : whether to make step 3.
    max_states : states on which fits are made at most, evenly spaced; by default all. The estimate is then the mean of
        the held-out residuals of all states.
    """

    rounds: int = 3
    per_round: int | None = None
    kernel: bool = True
    max_states: int | None = None

    def __check_init__(self) -> None:
        check_count("Screened", "rounds", self.rounds, "Use 3.", most=1_000)
        for name, value in (("per_round", self.per_round), ("max_states", self.max_states)):
            check_count("Screened", name, value, "Leave it out.", optional=True)
        check_flags("Screened", kernel=self.kernel)

    @property
    def label(self) -> str:
        return "Screened()"

    def num_added(self, num_train: int) -> int:
        """Return how many features a round adds."""
        wanted = min(max(num_train // 100, 5), MAX_ADDED) if self.per_round is None else self.per_round
        return max(1, min(wanted, int(num_train / DRAWS_PER_FEATURE) // self.rounds))

    def work(self, problem: Problem) -> Work:
        """Return the multiplications of a fit, to the leading order."""
        everyone, d = problem.draws.shape
        folds = problem.folds.thin(self.max_states)
        m, k, train = folds.num_everyone, folds.num_folds, folds.num_train
        a, s = self.num_added(train), num_fits(problem)
        q = 1 + len(_always(d, self.num_always(train)).first)
        ranked = float(num_ranked(m, d) * d**2)
        sizes = [a * (r + 1) for r in range(self.rounds)] + ([a * self.rounds + CENTRES] if self.kernel else [])
        path = self.rounds * ranked + m * q * sizes[-1] + sum(m * size**2 for size in sizes)
        refits = s * (q**2 + q * sizes[-1] ** 2 + sizes[-1] ** 3 / 3)
        rest = everyone * (q + 2 * sizes[-1] + (CENTRES * RELEVANT if self.kernel else 0)) if everyone > m else 0
        return Work(shared=2.0 * m * q**2 + s * q**3 / 3 + 2 * ranked, each=(1 + k) * path + refits + rest)

    def num_always(self, num_train: int) -> int:
        """Return how many features every fit may have."""
        return min(MAX_BASE, int(num_train / DRAWS_PER_FEATURE) - self.rounds * self.num_added(num_train) - 1)

    def crossfit(self, problem: Problem) -> ControlFit:
        """Fit every integrand by itself.

        Time, for each integrand, round and fold, is that of one product of d × m by m × d matrices in single precision,
        and of one of q × m by m × a in double, with q features of step 1 and a added. `info` has, for each integrand,
        the number of steps after the first (the kernel counts as one), the columns that they added, and the coordinates
        of the kernel.
        """
        refuse_weighted(self.label, problem)
        problem = problem.thin(self.max_states)
        train, k, p = problem.folds.num_train, problem.folds.num_folds, problem.values.shape[1]
        if train < MIN_TRAIN:
            return no_control(problem, Status.TOO_FEW_DRAWS, self.label)
        rows = Rows.of((problem.seen() if problem.by_residuals else problem).unrotated())
        added = self.num_added(train)
        always = _always(rows.num_coordinates, self.num_always(train))
        ranking = Ranking.of(rows, always)
        halves = Subsets.of(k).halves
        subsets = np.concatenate([np.ones((1, k), bool), ~np.eye(k, dtype=bool), halves])
        bases = _bases(rows, always, subsets)
        norms = rows.norms(always) if problem.by_residuals else np.empty(0)

        mean, control = np.empty(p), zeros(problem.values.shape)
        refits = Refits.none(problem)
        facts: list[tuple[int, int, list[int]]] = []
        rules: list[list[Rule]] = []
        for j in range(p):
            say_step(f"{self.label}, quantity {j + 1} of {p}")
            kernel = functools.cache(functools.partial(_kernel, rows, bases[0], j)) if self.kernel else None
            full = _path(rows, bases[0], ranking, j, self.rounds, added, kernel)
            held_out = np.empty((len(full.stages), len(rows.order)))
            of_folds: list[tuple[Rule, ...]] = []
            for base, fold in zip(bases[1 : k + 1], rows.folds, strict=True):
                path = _path(rows, base, ranking, j, self.rounds, added, kernel)
                held_out[:, fold] = _fitted(base, path, fold)
                if problem.by_residuals:
                    of_folds.append(_rules(rows, norms, path))
            held_out /= rows.root
            stage = int(np.argmin(_variances(rows.values[:, j] / rows.root - held_out, rows.root**2)))
            own = len(full.stages[stage].added)
            facts.append((stage, own, list(full.coordinates)))
            if problem.by_residuals:
                rules.append([rule[stage] for rule in of_folds])
                continue
            chosen = full.added.first(own)
            again = [_fit(base, j, chosen, _crossed(base, chosen)) for base in bases[1:]]
            mean[j] = _intercept(rows, full.stages[stage])
            refits.without_fold[:, j] = [_intercept(rows, fit) for fit in again[:k]]
            refits.halves[:, j] = [_intercept(rows, fit) for fit in again[k:]]
            control[rows.order, j] = held_out[stage]
        if problem.by_residuals:
            whole = problem.unrotated()
            states = whole.draws, whole.scores
            for index, found in over_rows(_at_states, states, (labels_of(problem),), (always, rules)):
                control[index] = found
            mean, refits = mean_of_residuals(problem, control)
        steps, sizes, coordinates = zip(*facts, strict=True)
        info = {
            "num_features": len(always.first),
            "num_fitted": len(rows.order),
            "steps": list(steps),
            "num_added": list(sizes),
            "coordinates": list(coordinates),
        }
        return ControlFit(mean, control, refits, np.zeros(p), (Status.CONTROLLED,) * p, (self.label,) * p, info)


class Base(NamedTuple):
    """The regression of all integrands on the features that every fit has, over some folds.

    kept : (k,) the folds. pairs : the features without the constant.
    features : (m, q) the constant first, times the roots, of unit norm.
    lower : (q, q) Cholesky factor L of their Gram matrix. half : (q, p) L⁻¹ times their moments with the values.
    """

    kept: Bool[np.ndarray, " k"]
    pairs: Pairs
    features: Float[np.ndarray, "m q"]
    lower: Float[np.ndarray, "q q"]
    half: Float[np.ndarray, "q p"]


class Stage(NamedTuple):
    """A fit: the coefficients of the features that every fit has, and of the columns added to them."""

    base: Float[np.ndarray, " q"]
    added: Float[np.ndarray, " a"]


class Added(NamedTuple):
    """Columns beside the features that every fit has, and their moments in each fold.

    columns : (m, a) features, times the roots, and columns of a kernel last. penalty : (a,) on squared coefficients.
    cross : (k, q, a) with the features that every fit has. gram : (k, a, a). moments : (k, a) with the integrand.
    """

    columns: Float[np.ndarray, "m a"]
    penalty: Float[np.ndarray, " a"]
    cross: Float[np.ndarray, "k q a"]
    gram: Float[np.ndarray, "k a a"]
    moments: Float[np.ndarray, "k a"]

    @classmethod
    def of(cls, rows: Rows, base: Base, column: int, columns: Float[np.ndarray, "m a"], penalty: float) -> "Added":
        """Return some columns, all with the same penalty."""
        return cls(
            columns=columns,
            penalty=np.full(columns.shape[1], penalty),
            cross=rows.by_fold(base.features, columns),
            gram=rows.by_fold(columns, columns),
            moments=rows.by_fold(columns, rows.values[:, column, None])[..., 0],
        )

    def beside(self, rows: Rows, new: "Added") -> "Added":
        """Return these columns and `new` ones."""
        between = rows.by_fold(self.columns, new.columns)
        upper = np.concatenate([self.gram, between], axis=2)
        lower = np.concatenate([between.transpose(0, 2, 1), new.gram], axis=2)
        return Added(
            columns=np.concatenate([self.columns, new.columns], axis=1),
            penalty=np.concatenate([self.penalty, new.penalty]),
            cross=np.concatenate([self.cross, new.cross], axis=2),
            gram=np.concatenate([upper, lower], axis=1),
            moments=np.concatenate([self.moments, new.moments], axis=1),
        )

    def first(self, number: int) -> "Added":
        """Return the first columns."""
        own = slice(number)
        return Added(
            self.columns[:, own], self.penalty[own], self.cross[..., own], self.gram[:, own, own], self.moments[:, own]
        )


class Landmarks(NamedTuple):
    """The columns of a kernel as functions of any state, K₀((u, s), centres)·mix, in some of the coordinates."""

    coordinates: tuple[int, ...]
    draws: Float[np.ndarray, "j e"]
    scores: Float[np.ndarray, "j e"]
    mix: Float[np.ndarray, "j r"]

    def columns(self, draws: Float[np.ndarray, "m d1"], scores: Float[np.ndarray, "m d1"]) -> Float[np.ndarray, "m r"]:
        states = pad_rows(draws[:, self.coordinates]), pad_rows(scores[:, self.coordinates])
        return _kernel_gram(*states, self.draws, self.scores)[: len(draws)] @ self.mix


class Path(NamedTuple):
    """The fits of one integrand over some folds, each with more of the added columns than the one before.

    pairs : the features added, which are the first of the columns; those of the kernel follow.
    coordinates : those that carry most of the last fit before the kernel's.
    """

    stages: tuple[Stage, ...]
    added: Added
    pairs: Pairs
    coordinates: tuple[int, ...]
    landmarks: Landmarks | None


class Rule(NamedTuple):
    """One fit as a function of any state: coefficients of the features that every fit has, those added, and a kernel.

    None of the features is scaled. The kernel's columns are those of its `Landmarks`.
    """

    always: Float[np.ndarray, " q"]
    pairs: Pairs
    added: Float[np.ndarray, " a"]
    landmarks: Landmarks | None
    kernel: Float[np.ndarray, " r"]

    def control(
        self, draws: Float[np.ndarray, "b d1"], scores: Float[np.ndarray, "b d1"], always: Float[np.ndarray, "b q"]
    ) -> Float[np.ndarray, " b"]:
        """Return the control variate at some states, whose features that every fit has are `always`."""
        found = always @ self.always + features_of(draws, scores, self.pairs) @ self.added
        return found if self.landmarks is None else found + self.landmarks.columns(draws, scores) @ self.kernel


def _always(d: int, limit: int) -> Pairs:
    """Return the linear and diagonal features, the linear ones, or none."""
    each, constant = np.arange(d), np.full(d, d)
    if 2 * d <= limit:
        return Pairs(np.concatenate([constant, each]), np.concatenate([each, each]))
    return Pairs(constant, each) if d <= limit else Pairs(each[:0], each[:0])


def _bases(rows: Rows, pairs: Pairs, subsets: Bool[np.ndarray, "s k"]) -> list[Base]:
    constant = rows.root[:, None] / np.linalg.norm(rows.root)
    features = np.concatenate([constant, rows.features(pairs)], axis=1)
    grams, moments = rows.by_fold(features, features), rows.by_fold(features, rows.values)
    found = []
    for kept in subsets:
        lower = np.linalg.cholesky(np.tensordot(kept, grams, 1) + JITTER * np.eye(features.shape[1]))
        half = scipy.linalg.solve_triangular(lower, np.tensordot(kept, moments, 1), lower=True)
        found.append(Base(kept, pairs, features, lower, half))
    return found


def _path(
    rows: Rows,
    base: Base,
    ranking: Ranking,
    column: int,
    rounds: int,
    number: int,
    kernel: Callable[[tuple[int, ...]], tuple[Landmarks, Added]] | None,
) -> Path:
    """Return the fits after 0, 1, … rounds, fewer where no features are left, and with the kernel."""
    added = Added.of(rows, base, column, np.empty((len(rows.order), 0)), 0.0)
    crossed, taken = _crossed(base, added), Pairs(*np.empty((2, 0), int))
    stages = [_fit(base, column, added, crossed)]
    for _ in range(rounds):
        number = min(number, ranking.num_candidates - len(taken.first))
        if number == 0:
            break
        residual = rows.values[:, column] - base.features @ stages[-1].base - added.columns @ stages[-1].added
        for fold, kept in zip(rows.folds, base.kept, strict=True):
            residual[fold] *= kept
        best = ranking.best(residual * rows.root, number, taken)
        taken = Pairs(*np.concatenate([taken, best], axis=1))
        new = Added.of(rows, base, column, rows.features(best), 0.0)
        added, crossed = added.beside(rows, new), np.concatenate([crossed, _crossed(base, new)], axis=1)
        stages.append(_fit(base, column, added, crossed))
    coordinates = _relevant(rows.num_coordinates, Pairs(*np.concatenate([base.pairs, taken], axis=1)), stages[-1])
    landmarks = None
    if kernel is not None:
        landmarks, new = kernel(coordinates)
        added, crossed = added.beside(rows, new), np.concatenate([crossed, _crossed(base, new)], axis=1)
        stages.append(_fit(base, column, added, crossed))
    return Path(tuple(stages), added, taken, coordinates, landmarks)


def _rules(rows: Rows, norms: Float[np.ndarray, " q"], path: Path) -> tuple[Rule, ...]:
    """Return the fits of a path as functions of any state; `norms` are those of the features that every fit has."""
    number, added = len(path.pairs.first), rows.norms(path.pairs)

    def rule(fit: Stage) -> Rule:
        own = min(number, len(fit.added))
        return Rule(
            always=fit.base[1:] / norms,
            pairs=Pairs(path.pairs.first[:own], path.pairs.second[:own]),
            added=fit.added[:own] / added[:own],
            landmarks=path.landmarks if len(fit.added) > number else None,
            kernel=fit.added[number:],
        )

    return tuple(map(rule, path.stages))


def _at_states(
    draws: Float[np.ndarray, "m d"],
    scores: Float[np.ndarray, "m d"],
    labels: Int[np.ndarray, " m"],
    always: Pairs,
    rules: Sequence[Sequence[Rule]],
) -> Float[np.ndarray, "m p"]:
    """Return the control variates of all integrands at some states, by the fits without each state's fold."""
    found = zeros((len(labels), len(rules)))
    for fold, some in by_fold(labels, len(always.first) + draws.shape[1]):
        u, s = with_one(draws[some], 1.0), with_one(scores[some], 0.0)
        features = features_of(u, s, always)
        for j, of_folds in enumerate(rules):
            found[some, j] = of_folds[fold].control(u, s, features)
    return found


def _crossed(base: Base, added: Added) -> Float[np.ndarray, "q a"]:
    """Return L⁻¹ times the moments of added columns with the base's features, over the base's folds."""
    return _solved(base, np.tensordot(base.kept, added.cross, 1), 0)


def _solved(base: Base, right: Float[np.ndarray, "q *a"], trans: int) -> Float[np.ndarray, "q *a"]:
    return scipy.linalg.solve_triangular(base.lower, right, lower=True, trans=trans, check_finite=False)


def _fit(base: Base, column: int, added: Added, crossed: Float[np.ndarray, "q a"]) -> Stage:
    """Return the regression of an integrand on the base's features and others, over the base's folds.

    crossed : what `_crossed` returns for the columns added.
    """
    half = base.half[:, column]
    if not len(added.penalty):
        return Stage(_solved(base, half, 1), np.empty(0))
    gram = np.tensordot(base.kept, added.gram, 1) - crossed.T @ crossed + np.diag(JITTER + added.penalty)
    theta = scipy.linalg.solve(gram, base.kept @ added.moments - crossed.T @ half, assume_a="pos")
    return Stage(_solved(base, half - crossed @ theta, 1), theta)


def _relevant(d: int, pairs: Pairs, fit: Stage) -> tuple[int, ...]:
    """Return the coordinates whose features, all of unit norm, carry most of a fit."""
    energy = np.concatenate([fit.base[1:], fit.added]) ** 2
    total = np.bincount(pairs.first, energy, minlength=d + 1)
    total += np.bincount(pairs.second, np.where(pairs.first == pairs.second, 0.0, energy), minlength=d + 1)
    return tuple(sorted(np.argsort(-total[:d], kind="stable")[:RELEVANT].tolist()))


def _kernel(rows: Rows, base: Base, column: int, coordinates: tuple[int, ...]) -> tuple[Landmarks, Added]:
    """Return columns, times the roots, whose ridge regression is that with the Stein kernel at `CENTRES` states.

    The kernel has unit mean diagonal. Their moments are the same whatever the folds of the base.
    """
    u, s = rows.draws[:, coordinates], rows.scores[:, coordinates]
    centres = np.linspace(0, len(u) - 1, min(CENTRES, len(u))).astype(int)
    gram = _kernel_gram(u, s, u[centres], s[centres])
    scale = np.diag(gram[centres]).mean()
    values, vectors = np.linalg.eigh(gram[centres] / scale)
    keep = values > 1e-8 * values[-1]
    mix = vectors[:, keep] / np.sqrt(values[keep]) / scale
    landmarks = Landmarks(coordinates, u[centres], s[centres], mix)
    return landmarks, Added.of(rows, base, column, gram @ mix * rows.root[:, None], NUGGET)


def _kernel_gram(
    draws: Float[np.ndarray, "m e"],
    scores: Float[np.ndarray, "m e"],
    centres: Float[np.ndarray, "j e"],
    their_scores: Float[np.ndarray, "j e"],
) -> Float[np.ndarray, "m j"]:
    """Return a Stein kernel whose lengthscale is twice the root of the number of coordinates, each of unit standard
    deviation."""
    kernel = SquaredExponential(2 * np.sqrt(draws.shape[1]))
    return np.asarray(stein_gram(kernel, draws, scores, centres, their_scores))


def _intercept(rows: Rows, fit: Stage) -> float:
    """Return the constant of a fit, whose column has unit norm."""
    return fit.base[0] / np.linalg.norm(rows.root)


def _fitted(base: Base, path: Path, fold: slice) -> Float[np.ndarray, "r b"]:
    """Return the control variate of each stage at the rows of a fold, times the roots."""
    features, columns = base.features[fold, 1:], path.added.columns[fold]
    return np.stack([features @ stage.base[1:] + columns[:, : len(stage.added)] @ stage.added for stage in path.stages])


def _variances(residuals: Float[np.ndarray, "r m"], counts: Float[np.ndarray, " m"]) -> Float[np.ndarray, " r"]:
    weight = counts / counts.sum()
    return (residuals - (residuals @ weight)[:, None]) ** 2 @ weight
