"""Linear control variates from sums that add: nested families, folds left out, ridge, refits, all
quantities at once.

Two looks at the draws. The first finds a basis in which the controls are orthonormal, and the fit θ
on all draws; the second sums orthonormal controls and the residuals f − Qθ. All that follows, for
every family, ridge and set of folds, is a small positive definite system, well conditioned whatever
the controls were, whose right-hand sides are as small as the residuals: rounding does not invent
gains.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float, Int

from mcmcpost.control.features.families import AbstractFamily, controls_of, independent_columns
from mcmcpost.control.folds import Subsets
from mcmcpost.control.method import ROUNDING, FoldFit, Refits
from mcmcpost.control.moments import Moments, Outline
from mcmcpost.control.problem import Problem
from mcmcpost.control.standard_errors import combined_error, plain_variance
from mcmcpost.core.arrays import in_blocks, is_large, memory_of_machine
from mcmcpost.core.errors import InputError, Status
from mcmcpost.solve import PositiveMatrix, blas_threads, cholesky_factor

DISTANCE = 1e-10
"""Smallest distance of a control of unit norm from the span of those before it, where the controls
are in memory."""

DISTANCE_FROM_SUMS = 1e-5
"""The same where only sums are at hand, which have half of the digits."""

CLEAR = 1e-3
"""The same from which sums of controls in memory make the basis: their factor is then right to
1e-10, as rounding of 1e-16 over its square."""

COPIES = 5
"""Arrays of the size of the controls that are in memory at once where a basis is made of them."""

DRAWS_PER_FEATURE = 3.0
"""Training states per feature below which a fit without a penalty is made only if it is asked
for."""

FREELY = 10.0
"""Training states per feature from which a ridge gains nothing."""


MAX_FEATURES = 1_200
"""Controls of all linear families together: a fit of 4,000 states with so many takes seconds."""

MAX_SCORES = 2_000
"""Controls of the first family, the scores, beside which nothing cheaper is left."""

DRAWS_PER_RIDGED = 1.5
"""Training states per control below which a family is left out, with whatever ridge."""

CHEAP_SIZE = 200
"""Controls up to which families are compared by refits on halves too, which cost twice those
without a fold."""


class LinearSystem(NamedTuple):
    """Orthonormal controls of nested families, and their sums with the residuals of the fit on all
    draws.

    families : from small to large. sizes : columns of the orthonormal basis that each family and
        those before it span, the constant included. kept : (q,) which controls, after the constant,
        are no combination of others.
    mix : (1 + q, r) from the constant and the controls to the basis; of more controls than draws
        None, with `rows`.
    rows : (m, r) the basis at the states of the problem, where it is in memory, and zero on
        padding.
    moments : of the basis and of f − Qθ. start : (r, p) θ.
    rule : (r,) the constant of a fit is rule·γ, where γ are its coefficients in the basis.
    inverse : (q', r − 1) from γ, without its first, to the coefficients of controls of unit norm,
        which ridges shrink.
    solvers : by ridge, those that were made; systems of other values of the same draws share them.
        Of 1,200 controls in eight folds each takes 115 MB.
    """

    families: tuple[AbstractFamily, ...]
    sizes: tuple[int, ...]
    kept: Bool[np.ndarray, " q"]
    mix: Float[np.ndarray, "q1 r"] | None
    rows: Float[np.ndarray, "m r"] | None
    moments: Moments
    start: Float[np.ndarray, "r p"]
    rule: Float[np.ndarray, " r"]
    inverse: Float[np.ndarray, "q r1"]
    solvers: "dict[float, Solver]"

    @property
    def total(self) -> float:
        """The draws, by weight: the constant of the basis is 1/√total."""
        return float(self.rule[0] ** -2)

    def of_other_values(self, problem: Problem) -> "LinearSystem":
        """Return the system of other integrands at the same states, in the same basis."""
        if self.rows is None:
            return linear_system(problem, self.families)
        start = self.rows.T @ (problem.values * problem.counts[:, None])
        residual = problem.values - self.rows @ start
        moments = self.moments.of_other_values(self.rows, residual, problem.labels, problem.counts)
        return self._replace(moments=moments, start=start)

    def solver(self, ridge: float, size: int) -> "Solver":
        """Return the solver with a ridge of parts of at most `size` columns, which is made
        once."""
        known = self.solvers.get(ridge)
        if known is None or len(known.penalty) < size:
            known = self.solvers[ridge] = Solver(self, ridge, size)
        return known


class LinearFit(NamedTuple):
    """A linear fit of p quantities: with all folds, without each, and on halves.

    mean : (p,) the constant of the fit on all folds. refits : the constants of the others.
    without : (k, r', p) coefficients in the leading part of the basis, fitted without each fold.
    """

    mean: Float[np.ndarray, " p"]
    refits: Refits
    without: Float[np.ndarray, "k r p"]


class LinearFits(NamedTuple):
    """The fits of all quantities of a problem, each of some family and with some ridge.

    problem : in the coordinates of the families; None where there are only sums.
    fits : which quantities each fit is of; they need not be in order.
    status, method, info, doubt : as in `FoldFit`.
    """

    problem: Problem | None
    system: LinearSystem
    fits: tuple[tuple[Int[np.ndarray, " _"], LinearFit], ...]
    status: tuple[Status, ...]
    method: tuple[str, ...]
    info: dict[str, Any]
    doubt: Float[np.ndarray, " p"]

    @property
    def mean(self) -> Float[np.ndarray, " p"]:
        """The constants of the fits on all folds."""
        means = np.empty(self.system.start.shape[1])
        for columns, fit in self.fits:
            means[columns] = fit.mean
        return means

    @property
    def refits(self) -> Refits:
        """The constants of the other fits."""
        refits = Refits.none(len(self.system.moments.gram), self.system.start.shape[1])
        for columns, fit in self.fits:
            for means, constants in zip(refits, fit.refits, strict=True):
                means[:, columns] = constants
        return refits

    def in_basis(self) -> Float[np.ndarray, "k r p"]:
        """Return the coefficients of the basis without each fold."""
        system = self.system
        coefficients = np.zeros((len(system.moments.gram), *system.start.shape))
        for columns, fit in self.fits:
            coefficients[:, : fit.without.shape[1], columns] = fit.without
        return coefficients

    def in_controls(self) -> Float[np.ndarray, "k q1 p"]:
        """Return the coefficients of the controls without each fold; those of the constant, the
        first, are zero."""
        system, basis = self.system, self.in_basis()
        assert system.mix is not None, "more controls than draws have no coefficients"
        kept = np.concatenate([[True], system.kept])
        coefficients = np.zeros((len(basis), len(kept), basis.shape[2]))
        coefficients[:, kept] = system.mix @ basis
        coefficients[:, 0] = 0.0
        return coefficients

    def at_states(self) -> FoldFit:
        """Return the control variates at the states of the problem."""
        problem, system, refits = self.problem, self.system, self.refits
        assert problem is not None, "sums have no states"
        control = np.zeros((len(problem.counts), system.start.shape[1]))
        if system.rows is not None:
            control[...] = _fitted(
                system.rows, problem.labels, self.in_basis(), np.asarray(refits.without_fold)
            )
        else:
            theta, labels = self.in_controls(), problem.labels
            constants = np.zeros(theta[:, 0].shape)
            for block in in_blocks(len(labels), theta.shape[1]):
                x = controls_of(system.families, problem.draws[block], problem.scores[block])
                control[block] = _fitted(x, labels[block], theta, constants)
        return FoldFit(self.mean, control, refits, self.doubt, self.status, self.method, self.info)


def linear_system(problem: Problem, families: Sequence[AbstractFamily]) -> LinearSystem:
    """Return the system of a problem, whose draws are looked at twice.

    Controls of at most 32 MB, or more than there are states, are made orthonormal by a QR
    decomposition; others by a Cholesky factor of their sums, block by block, in memory of the order
    of (folds)·q².

    Raises
    ------
    ValueError : that is more than the machine's memory, before anything is computed.
    """
    width, rows = 1 + sum(family.size for family in families), len(problem.counts)
    # Sums of more controls than states are larger than these: 400 GB for 0.05 with 400 parameters
    # at degree two.
    from_sums = is_large(rows * width) and width <= problem.num_states
    needed = 8.0 * width * (problem.folds.num_folds * width if from_sums else COPIES * rows)
    if needed > (memory := memory_of_machine()):
        got = (
            f"{width - 1} features at {problem.num_states} states, {needed / 1e9:.0f} GB of "
            f"{memory / 1e9:.0f} GB"
        )
        cure = 'Use a lower degree, max_interaction=1 or method="auto".'
        raise InputError("Control variate", "features that fit into memory", got, cure)
    # The work m·w² is that of a square matrix of this order.
    with blas_threads(np.cbrt(float(rows) * width * width)):
        if from_sums:
            return _system_from_sums(problem, tuple(families))
        return _system_in_memory(problem, tuple(families))


def centred_system(problem: Problem, families: Sequence[AbstractFamily]) -> LinearSystem:
    """Return the system whose basis are the controls themselves, centred and of unit norm; θ is
    zero."""
    total = problem.counts.sum()
    controls = controls_of(families, np.asarray(problem.draws), np.asarray(problem.scores))[:, 1:]
    controls *= (problem.counts > 0)[:, None]
    norms = _norms(np.sqrt(problem.counts @ controls**2))
    # Orthonormal under the counts: rows times their roots.
    kept = independent_columns(
        np.concatenate([np.ones((len(controls), 1)) / np.sqrt(total), controls / norms], axis=1)
        * np.sqrt(problem.counts)[:, None]
    )[1:]
    controls, norms = controls[:, kept], norms[kept]
    across = problem.counts @ controls / norms / np.sqrt(total)
    mix = _mix(np.eye(len(norms)), across, norms, total)
    rows = mix[0] + controls @ mix[1:]
    rows *= (problem.counts > 0)[:, None]
    moments = Moments.of(
        rows, problem.values, problem.labels, problem.counts, problem.folds.num_folds
    )
    ends = np.cumsum([family.size for family in families])
    sizes = tuple(1 + int(np.count_nonzero(kept[:end])) for end in ends)
    start = np.zeros((len(mix), problem.values.shape[1]))
    return LinearSystem(
        tuple(families), sizes, kept, mix, rows, moments, start, mix[0], np.eye(len(norms)), {}
    )


def _system_in_memory(problem: Problem, families: tuple[AbstractFamily, ...]) -> LinearSystem:
    draws, scores = np.asarray(problem.draws), np.asarray(problem.scores)
    m, total = problem.num_states, problem.counts.sum()
    # All rows, padding too, so that programs are shared between traces of nearly one size.
    controls = controls_of(families, draws, scores)[:m, 1:]
    root = np.sqrt(problem.counts[:m])[:, None]
    weighted = controls * root
    norms = _norms(np.linalg.norm(weighted, axis=0))
    weighted /= norms
    constant = root / np.sqrt(total)
    across = (constant.T @ weighted)[0]
    # Centred by the constant of unit norm, as it is the first column of the basis and unpenalised.
    weighted -= constant * across
    ends = np.cumsum([0] + [family.size for family in families])
    kept = np.ones(weighted.shape[1], bool)
    mix = None
    # From sums where they tell (`CLEAR`): a QR of all controls is left to what they cannot.
    if weighted.shape[1] < m:
        kept, r = _independent(weighted.T @ weighted, families)
        q = scipy.linalg.solve_triangular(r, weighted[:, kept].T, trans=1).T
        dependent = _less_span(weighted[:, ~kept], q)
        if (np.diagonal(r) < CLEAR).any() or (np.linalg.norm(dependent, axis=0) > DISTANCE).any():
            kept, q, r = _basis_by_families(weighted, families)
        sizes = tuple(1 + int(np.count_nonzero(kept[:end])) for end in ends[1:])
        inverse = scipy.linalg.solve_triangular(r, np.eye(len(r)))
        mix = _mix(inverse, across[kept], norms[kept], total)
        rule = mix[0]
    else:
        # More controls than draws: the basis is that of the draws, and only the constant is to be
        # had from it.
        q, r, order = scipy.linalg.qr(weighted, mode="economic", pivoting=True)
        rank = int(np.count_nonzero(np.abs(np.diagonal(r)) > DISTANCE))
        # The map back is not unique: the least-norm one shrinks as a ridge on all controls would.
        q, inverse = q[:, :rank], np.linalg.pinv(r[:rank, np.argsort(order)])
        sizes = (rank + 1,) * len(families)
        rule = _mix(inverse, across, norms, total)[0]
    basis = np.concatenate([constant, q], axis=1)
    start = basis.T @ (problem.values[:m] * root)
    # Rows at the states are without the roots, since moments bring the counts again.
    rows = np.zeros((len(problem.counts), basis.shape[1]))
    rows[:m] = basis / root
    residual = problem.values - rows @ start
    moments = Moments.of(rows, residual, problem.labels, problem.counts, problem.folds.num_folds)
    return LinearSystem(families, sizes, kept, mix, rows, moments, start, rule, inverse, {})


def _norms(norms: Float[np.ndarray, " q"]) -> Float[np.ndarray, " q"]:
    return np.where(norms > 0, norms, 1.0)


def _mix(
    inverse: Float[np.ndarray, "q r"],
    across: Float[np.ndarray, " q"],
    norms: Float[np.ndarray, " q"],
    total: float,
) -> Float[np.ndarray, "q1 r1"]:
    """Return the map from the constant and the controls to the basis, whose first column is the
    constant's.

    inverse : from centred controls of unit norm to the basis. across : what the constant of unit
        norm has in common with controls of unit norm.
    """
    mix = np.zeros((len(inverse) + 1, inverse.shape[1] + 1))
    mix[0, 0] = 1 / np.sqrt(total)
    mix[0, 1:] = -across @ inverse / np.sqrt(total)
    mix[1:, 1:] = inverse / norms[:, None]
    return mix


def _system_from_sums(problem: Problem, families: tuple[AbstractFamily, ...]) -> LinearSystem:
    def look(*constants: np.ndarray) -> Moments:
        return _moments_of(problem, families, *constants)

    return system_of(look(), problem.counts.sum(), families, look)


def system_of(
    first: Moments,
    total: float,
    families: tuple[AbstractFamily, ...],
    look: Callable[[np.ndarray, np.ndarray], Moments] | None = None,
) -> LinearSystem:
    """Return the system of draws of which there are sums.

    first : of the constant and the controls. total : the draws, by weight.
    look : the sums of xᵀM and f − xᵀMθ from M and θ, where the draws can be seen again; else they
        come from the first.
    """
    # gram is Σ n xxᵀ with x = (1, φ): its first row holds the sums of the controls.
    width, gram = first.gram.shape[1], first.gram.sum(axis=0)
    norms = _norms(np.sqrt(np.diagonal(gram)[1:]))
    across = gram[0, 1:] / norms / np.sqrt(total)
    centred = gram[1:, 1:] / norms[:, None] / norms - np.outer(across, across)
    kept, upper = _independent(centred, families)
    ends = np.cumsum([0] + [family.size for family in families])
    sizes = tuple(1 + int(np.count_nonzero(kept[:end])) for end in ends[1:])
    inverse = scipy.linalg.solve_triangular(upper, np.eye(len(upper)))
    small = _mix(inverse, across[kept], norms[kept], total)
    mix = np.zeros((width, small.shape[1]))
    mix[np.concatenate([[True], kept])] = small
    moments = first.mixed(mix)
    start = PositiveMatrix(moments.gram.sum(axis=0)).solve(moments.cross.sum(axis=0))
    # f − Qθ from a second look keeps the digits of small residuals; sums alone lose them.
    moments = moments.less(start) if look is None else look(mix, start)
    return LinearSystem(families, sizes, kept, small, None, moments, start, small[0], inverse, {})


def _independent(
    gram: Float[np.ndarray, "q q"], families: Sequence[AbstractFamily]
) -> tuple[Bool[np.ndarray, " q"], Float[np.ndarray, "r r"]]:
    """Return which centred controls of unit norm are no combination of others, as their sums tell,
    and their factor.

    Families come in order, so that each is a leading part of the basis.
    """
    kept, upper, end = np.zeros(len(gram), bool), np.zeros((0, 0)), 0
    for family in families:
        before, block = np.flatnonzero(kept), np.arange(end, end + family.size)
        end += family.size
        # As in a block Cholesky: what the families before leave of this one is `inner`.
        link = scipy.linalg.solve_triangular(upper, gram[np.ix_(before, block)], trans=1)
        inner = gram[np.ix_(block, block)] - link.T @ link
        # Pivots are squared distances from the span of those before: the tolerance is squared too.
        _, order, rank, _ = scipy.linalg.lapack.dpstrf(inner, tol=DISTANCE_FROM_SUMS**2, lower=1)
        # The first pivot LAPACK takes if it is positive, as rounding of a dependent control may be.
        if np.diagonal(inner).max() <= DISTANCE_FROM_SUMS**2:
            rank = 0
        pivots = np.sort(order[:rank] - 1)  # LAPACK counts from one
        kept[block[pivots]] = True
        lower = cholesky_factor(inner[np.ix_(pivots, pivots)])
        assert lower is not None
        upper = np.block(
            [[upper, link[:, pivots]], [np.zeros((len(pivots), len(before))), lower.T]]
        )
    return kept, upper


def _basis_by_families(
    weighted: Float[np.ndarray, "m q"], families: Sequence[AbstractFamily]
) -> tuple[Bool[np.ndarray, " q"], Float[np.ndarray, "m r"], Float[np.ndarray, "r r"]]:
    """Return the same from the controls themselves, and their basis, where sums do not tell.

    Of each family those are kept that pivoting finds beside the families before. A plain
    decomposition of all controls goes on with the direction of rounding that is left of the first
    dependent one: of 35 dependent controls of an AR(1) normal in 20 dimensions it kept one, which
    stood for what was dropped in its place.
    """
    kept, basis, end = np.zeros(weighted.shape[1], bool), np.zeros((len(weighted), 0)), 0
    for family in families:
        block = np.arange(end, end + family.size)
        end += family.size
        left = _less_span(weighted[:, block], basis)
        upper, order = scipy.linalg.qr(left, mode="r", pivoting=True)
        rank = int(np.count_nonzero(np.abs(np.diagonal(upper)) > DISTANCE))
        pivots = np.sort(order[:rank])
        kept[block[pivots]] = True
        # What is far smaller than a control is orthogonal to the others only after it has unit
        # norm.
        new = np.linalg.qr(_less_span(np.linalg.qr(left[:, pivots])[0], basis))[0]
        basis = np.concatenate([basis, new], axis=1)
    return kept, basis, np.triu(basis.T @ weighted[:, kept])


def _less_span(
    columns: Float[np.ndarray, "m k"], basis: Float[np.ndarray, "m r"]
) -> Float[np.ndarray, "m k"]:
    """Return what is left of columns beside an orthonormal basis; twice, since the first time
    leaves rounding."""
    for _ in range(2):
        columns = columns - basis @ (basis.T @ columns)
    return columns


def _moments_of(
    problem: Problem,
    families: tuple[AbstractFamily, ...],
    mix: Float[np.ndarray, "q r"] | None = None,
    start: Float[np.ndarray, "r p"] | None = None,
) -> Moments:
    """Return the moments of a problem, block by block: of the controls, or of the basis and f −
    Qθ."""
    width, values, labels = (
        1 + sum(family.size for family in families),
        problem.values,
        problem.labels,
    )

    def blocks() -> Iterator[tuple[np.ndarray, ...]]:
        for block in in_blocks(len(labels), width):
            x, f = controls_of(families, problem.draws[block], problem.scores[block]), values[block]
            if mix is not None and start is not None:
                x = x @ mix
                f = f - x @ start
            yield x, f, labels[block], problem.counts[block]

    size = width if mix is None else mix.shape[1]
    return Moments.over_blocks(blocks(), problem.folds.num_folds, size, values.shape[1])


class Subsystem(NamedTuple):
    """A leading part of the basis, and some quantities: what a fit of them to it needs.

    moments : of the part and of what the part leaves of f − Qθ, where Q is the whole basis.
    start : (r, p) θ of the part. rule : (r,) as in `LinearSystem`, and `total` too.
    """

    moments: Moments
    start: Float[np.ndarray, "r p"]
    rule: Float[np.ndarray, " r"]
    total: float

    @classmethod
    def of(cls, system: LinearSystem, size: int, columns: Int[np.ndarray, " p"]) -> "Subsystem":
        """Return the first `size` columns of the basis, with some quantities."""
        moments = system.moments.quantities(columns)
        if size < len(system.start):
            # The smaller part leaves what the larger one explains: a sum of squares, in which
            # nothing cancels.
            moments = moments.without_last(size, system.start[size:, columns])
        return cls(moments, system.start[:size, columns], system.rule[:size], system.total)

    def held_out(self, fit: LinearFit) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, " p"]]:
        """Return the mean and the variance of f less the control variate without each draw's
        fold."""
        # What is left of the residuals in the moments, as coefficients: the mean is taken off, so
        # that it cancels here.
        moved = fit.without - self.start
        moved[:, 0] += (fit.mean - fit.refits.without_fold) * np.sqrt(self.total)
        gram, cross, squares = self.moments
        # Section 2, Residuals from sums: Σ n e² = Σ (S − 2δᵀB + δᵀGδ), δ being `moved`.
        image = gram @ moved
        sums = (cross[:, 0] - image[:, 0]).sum(axis=0) / np.sqrt(self.total)
        squared = (squares + (moved * (image - 2 * cross)).sum(axis=1)).sum(axis=0) / self.total
        return fit.mean + sums, np.maximum(squared - sums**2, 0.0)


class Solver:
    """Fits with one ridge: on all folds, without each and on halves of them, of any leading part of
    the basis.

    Nested families share the factors of the largest: a leading block of a Cholesky factor is that
    of the block.
    """

    def __init__(self, system: LinearSystem, ridge: float, size: int, half_size: int = 0) -> None:
        """Factorise for parts of at most `size` columns; fits on halves are of at most
        `half_size`."""
        self.gram = system.moments.gram[:, :size, :size]
        self.subsets = Subsets.of(len(self.gram))
        self.ridge = ridge
        self.penalty = np.zeros((size, size))
        if ridge:
            inverse = system.inverse[:, : size - 1]
            # ρCᵀC on coefficients of controls of unit norm; the constant, the first, is free.
            self.penalty[1:, 1:] = ridge * (inverse.T @ inverse)
        # One factor a fold and ridge for all families. With the basis from sums the 176 means of
        # the radon model went from 6.4 to 4.7 CPU s, a random walk's from 1.9 to 1.35 (a09d03a).
        whole = self.gram.sum(axis=0) + self.penalty
        self.whole = PositiveMatrix(whole)
        # Less one fold, not the sum of the others: a tenth of the time, and folds are no small part
        # of the whole.
        self.without = [PositiveMatrix(whole - fold_gram) for fold_gram in self.gram]
        self.halves: list[PositiveMatrix] = []
        self.half_size = 0
        self.factorise_halves(half_size)

    def factorise_halves(self, size: int) -> None:
        """Factorise for fits on halves of at most `size` columns; with zero forget them, which are
        larger than all the others together."""
        if 0 < size <= self.half_size:
            return
        small, penalty = self.gram[:, :size, :size], self.penalty[:size, :size]
        halves = self.subsets.halves[: None if size else 0]
        self.halves = [PositiveMatrix(small[half].sum(axis=0) + penalty) for half in halves]
        self.half_size = size

    def fit(self, subsystem: Subsystem, *, halves: bool) -> LinearFit:
        """Return the fit of a part without each fold, and the constants of those on all folds and,
        if asked, halves."""
        cross, start, rule = subsystem.moments.cross, subsystem.start, subsystem.rule
        size, p = start.shape
        shrunk = self.penalty[:size, :size] @ start if self.ridge else 0.0
        whole = cross.sum(axis=0)

        def coefficients(matrix: PositiveMatrix, right: np.ndarray) -> Float[np.ndarray, "r p"]:
            # γ = Θ + (G + ρCᵀC)⁻¹(B − ρCᵀCΘ), section 2, Fits on some folds.
            return start + matrix.solve(right - shrunk)

        mean = rule @ coefficients(self.whole, whole)
        without = np.stack(
            [
                coefficients(matrix, whole - fold_cross)
                for matrix, fold_cross in zip(self.without, cross, strict=True)
            ]
        )
        half_means = np.full((len(self.subsets.halves), p), np.nan)
        if halves:
            assert size <= self.half_size
            for k, (matrix, half) in enumerate(zip(self.halves, self.subsets.halves, strict=True)):
                half_means[k] = rule @ coefficients(matrix, cross[half].sum(axis=0))
        quarter_means = np.full((len(self.subsets.quarters), p), np.nan)
        return LinearFit(mean, Refits(rule @ without, half_means, quarter_means), without)


def affordable(
    named: Sequence[tuple[AbstractFamily, str]], num_train: int, max_work: float = np.inf
) -> tuple[list[AbstractFamily], list[str]]:
    """Return the families, and their labels, that the draws and the work allow beside those before
    them.

    None where the first is not allowed.

    Parameters
    ----------
    num_train : the smallest number of states on which a fit without a fold is made.
    max_work : multiplications of the look at the draws.
    """
    families: list[AbstractFamily] = []
    labels: list[str] = []
    size = 1
    for place, (family, label) in enumerate(named):
        wanted = size + family.size
        # 2·n·q² multiplications for the Gram matrices of the two looks at n states.
        enough = num_train >= DRAWS_PER_RIDGED * wanted and 2 * num_train * wanted**2 <= max_work
        if wanted <= (MAX_FEATURES if place else MAX_SCORES + 1) and enough:
            families.append(family)
            labels.append(label)
            size = wanted
        elif place == 0:
            break
    return families, labels


def choose_families(
    problem: Problem | None,
    outline: Outline,
    system: LinearSystem,
    labels: Sequence[str],
    plain: Float[np.ndarray, " p"],
) -> LinearFits:
    """Return for each quantity the fit of that family, and with that ridge, which has the smallest
    error.

    Families come from small to large, each with those before it. A larger one is taken where it
    lowers the error variance by what it needs, in which refits on halves count up to `CHEAP_SIZE`
    controls.

    Parameters
    ----------
    problem : in the coordinates of the families; None where there are only sums. outline : of it.
    system : of the problem. labels : of its families, for the record.
    plain : (p,) the error variance of the plain means, to be improved upon.
    """
    choice = _choices(outline, system, plain, len(system.families), for_means=True)[-1]
    return _chosen(problem, system, labels, choice, for_means=True)


class Choice(NamedTuple):
    """What is chosen for each of p quantities.

    place : (p,) which family, −1 for none. ridge : (p,) its ridge. doubt : (p,) as in `FoldFit`.
    """

    place: Int[np.ndarray, " p"]
    ridge: Float[np.ndarray, " p"]
    doubt: Float[np.ndarray, " p"]


def _choices(
    outline: Outline,
    system: LinearSystem,
    plain: Float[np.ndarray, " p"],
    most: int,
    *,
    for_means: bool,
) -> list[Choice]:
    """Return what is chosen of the first family, of the first two, and so on up to `most`; see
    `choose_families`."""
    p, total = system.start.shape[1], outline.total
    everything, lowest = np.arange(p), plain.copy()
    choice = Choice(np.full(p, -1), np.zeros(p), np.zeros(p))
    below, choices = dict[float, list[np.ndarray]](), []
    tried = {
        place: ridges(outline.num_train, size, square=system.mix is not None)
        for place, size in enumerate(system.sizes[:most])
        # otherwise its controls are combinations of those before
        if size > (0, *system.sizes)[place]
    }
    cheap = CHEAP_SIZE if for_means else 0
    # The largest of each ridge first, since its factors serve the others.
    largest, on_halves = dict[float, int](), dict[float, int]()
    for place, grid in tried.items():
        for ridge in grid:
            size = largest[ridge] = system.sizes[place]
            on_halves[ridge] = size if size <= cheap else on_halves.get(ridge, 0)
    for place, family in enumerate(system.families[:most]):
        if place not in tried:
            choices.append(choice)
            continue
        # Which ridge is best within the family, by the error that would be reported; smallest
        # family first.
        subsystem = Subsystem.of(system, system.sizes[place], everything)
        of_family, ridge_of_family, doubt_of_family = np.full(p, np.inf), np.zeros(p), np.zeros(p)
        for ridge in tried[place]:
            solver = system.solver(ridge, largest[ridge])
            solver.factorise_halves(on_halves[ridge])
            fit = solver.fit(subsystem, halves=system.sizes[place] <= cheap)
            crossfit, variance = subsystem.held_out(fit)
            # of the families before, with the same ridge
            smaller_means = below.setdefault(ridge, [])
            # Means at another ridge would put a high degree in doubt that is right (AR(.9), 200
            # draws).
            disagreement = np.zeros(p)
            if family.doubted and smaller_means:
                disagreement = np.max(np.abs(fit.mean - np.stack(smaller_means[-2:])), axis=0)
            smaller_means.append(fit.mean)
            disagreement = np.where(variance > ROUNDING**2, disagreement, 0.0)
            residual = np.sqrt(variance / total)
            error = (
                total
                * combined_error(outline, fit.mean, fit.refits, crossfit, residual, disagreement)
                ** 2
            )
            smaller = error < of_family
            of_family, ridge_of_family = (
                np.where(smaller, error, of_family),
                np.where(smaller, ridge, ridge_of_family),
            )
            doubt_of_family = np.where(smaller, disagreement, doubt_of_family)
        # Below rounding nothing is better: which of two exact fits has the smaller residual is
        # chance.
        better = (of_family * family.need(lowest) < lowest) & (lowest > ROUNDING**2)
        lowest = np.where(better, of_family, lowest)
        choice = Choice(
            np.where(better, place, choice.place),
            np.where(better, ridge_of_family, choice.ridge),
            np.where(better, doubt_of_family, choice.doubt),
        )
        choices.append(choice)
    return choices


def _chosen(
    problem: Problem | None,
    system: LinearSystem,
    labels: Sequence[str],
    choice: Choice,
    *,
    for_means: bool,
) -> LinearFits:
    """Return the fits that are chosen, made again on halves where they are for means."""
    p = len(choice.place)
    fits, status, method = [], [Status.PLAIN] * p, ["PlainMean()"] * p
    for ridge in np.unique(choice.ridge[choice.place >= 0]):
        places = np.unique(choice.place[(choice.place >= 0) & (choice.ridge == ridge)])
        largest = system.sizes[places[-1]]
        solver = system.solver(float(ridge), largest)
        solver.factorise_halves(largest if for_means else 0)
        for place in places:
            columns = np.flatnonzero((choice.place == place) & (choice.ridge == ridge))
            subsystem = Subsystem.of(system, system.sizes[place], columns)
            fits.append((columns, solver.fit(subsystem, halves=for_means)))
            for j in columns:
                status[j] = Status.REGULARISED if ridge else Status.CONTROLLED
                method[j] = labels[place]
        solver.factorise_halves(0)
    none = np.flatnonzero(choice.place < 0)
    if len(none):
        fits.append((none, _constant(system, none)))
    info = {"num_features": [size - 1 for size in system.sizes], "families": list(labels)}
    return LinearFits(
        problem, system, tuple(fits), tuple(status), tuple(method), info, choice.doubt
    )


def nested_fits(
    system: LinearSystem, labels: Sequence[str], limits: Sequence[int], problem: Problem
) -> list[LinearFits]:
    """Return the fits of a problem with the best of so many of the first families, for each limit
    that differs from the others.

    They are wanted for their fields: refits on halves, which tell the error of a mean, are not
    made.
    """
    outline, plain = problem.outline, plain_variance(problem)
    choices = _choices(outline, system, plain, max(limits), for_means=False)
    return [
        _chosen(problem, system, labels, choices[limit - 1], for_means=False)
        for limit in sorted(set(limits))
    ]


def _constant(system: LinearSystem, columns: Int[np.ndarray, " p"]) -> LinearFit:
    """Return the fit of no control: plain means."""
    return Solver(system, 0.0, 1, 1).fit(Subsystem.of(system, 1, columns), halves=True)


def ridges(num_train: int, size: int, *, square: bool) -> tuple[float, ...]:
    """Return the ridges to try, relative to the squared norm of a control."""
    if square and num_train >= FREELY * size:
        return (0.0,)
    return (0.0, 1e-3) if square and num_train >= DRAWS_PER_FEATURE * size else (1e-4, 1e-2)


def _fitted(
    rows: Float[np.ndarray, "m r"],
    labels: Int[np.ndarray, " m"],
    coefficients: Float[np.ndarray, "k r p"],
    constants: Float[np.ndarray, "k p"],
) -> Float[np.ndarray, "m p"]:
    """Return the rows times the coefficients of their folds, less the constants; zero on
    padding."""
    fitted = np.zeros((len(labels), coefficients.shape[2]))
    for fold, (theta, constant) in enumerate(zip(coefficients, constants, strict=True)):
        members = np.flatnonzero(labels == fold)
        fitted[members] = rows[members] @ theta - constant
    return fitted
