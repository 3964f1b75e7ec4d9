"""Least squares on a polynomial Stein basis with folds left out: dense, by blocks of rows, with ridge, with LASSO."""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.control.folds import Folds, Subsets
from mcmcpost.control.problem import Problem
from mcmcpost.core.arguments import check_count, check_number
from mcmcpost.core.arrays import StoredRows, in_blocks, is_large, over_rows, zeros
from mcmcpost.solve import blas_threads, solve_positive
from mcmcpost.stein import polynomial_exponents, polynomial_features

GCV_INFLATION = 1.4
"""Each degree of freedom counts 1.4 in generalised cross-validation, against undersmoothing (Kim and Gu 2004)."""


HIGHEST_DEGREE = 16
"""Beyond it features of a few hundred draws differ by rounding, and errors were found too small."""


class LeastSquares(eqx.Module):
    """No penalty; refused where the training draws do not exceed the features."""


class Ridge(eqx.Module):
    """A quadratic penalty on standardised features.

    strength : relative to the largest eigenvalue of the features' covariance; chosen per integrand by generalised
        cross-validation when None.
    """

    strength: float | None = None

    def __check_init__(self) -> None:
        check_number("Ridge", "strength", self.strength, "Leave it out to have it chosen.", optional=True)


class Lasso(eqx.Module):
    """An absolute-value penalty that selects features, followed by least squares on those selected.

    path_length : penalties tried, log-spaced over three decades; the best by the held-out folds is used. Selection
        is repeated inside every fold.
    """

    path_length: int = 20

    def __check_init__(self) -> None:
        check_count("Lasso", "path_length", self.path_length, "Use 20.", most=10_000)


def ridge_strengths(
    features: Float[np.ndarray, "m q"], values: Float[np.ndarray, "m p"], counts: Float[np.ndarray, " m"]
) -> Float[np.ndarray, " p"]:
    """Return the penalty per integrand, relative to the largest squared singular value, by cross-validation.

    Generalised cross-validation RSS/(1 − 1.4·df/m)² on a grid of 25 values from 1e-12 to 1, on weighted features with
    the constant removed.
    """
    root = np.sqrt(counts)[:, None]
    total = counts.sum()
    centred = (features - counts @ features / total) * root
    target = (values - counts @ values / total) * root
    u, singular, _ = np.linalg.svd(centred, full_matrices=False)
    along = (u.T @ target) ** 2
    outside = np.maximum((target**2).sum(axis=0) - along.sum(axis=0), 0.0)
    m = np.count_nonzero(counts)
    grid = np.logspace(-12, 0, 25)
    scores = []
    for strength in grid:
        shrink = singular**2 / (singular**2 + strength * singular[0] ** 2)
        rss = ((1 - shrink)[:, None] ** 2 * along).sum(axis=0) + outside
        room = 1 - GCV_INFLATION * (1 + shrink.sum()) / m
        scores.append(rss / room**2 if room > 0 else np.full(rss.shape, np.inf))
    best = np.array(scores)
    return np.where(np.isfinite(best).any(axis=0), grid[np.argmin(best, axis=0)], 1.0) * singular[0] ** 2


RANK_TOLERANCE = 1e-10
"""Relative to columns of unit norm."""


class LinearFit(NamedTuple):
    """A penalised least-squares fit, constant first.

    mean : (p,) its intercept.
    control : (k, b, p) the fitted part without the constant at held-out rows, fitted without their fold.
    fold_means, half_means : (k, p), (h, p) the intercept fitted without each fold, and on each half of the folds; NaN
        where those rows do not determine it.
    """

    mean: Float[np.ndarray, " p"]
    control: Float[np.ndarray, "k b p"]
    fold_means: Float[np.ndarray, "k p"]
    half_means: Float[np.ndarray, "h p"]


def independent_columns(design: Float[np.ndarray, "m q"]) -> Bool[np.ndarray, " q"]:
    """Return which columns to keep so that none is, to rounding, a combination of the others.

    Columns are of unit norm; the first, the constant, always stays. A pivoted QR, which is slower, is made only where
    a plain one shows that a column is dependent.
    """
    size = design.shape[1]
    if design.shape[0] >= size and (np.abs(np.diagonal(np.linalg.qr(design, mode="r"))) > RANK_TOLERANCE).all():
        return np.ones(size, bool)
    rest = design[:, 1:] - design[:, :1] * (design[:, 0] @ design[:, 1:] / (design[:, 0] @ design[:, 0]))
    r, order = scipy.linalg.qr(rest, mode="r", pivoting=True)
    rank = int((np.abs(np.diagonal(r)) > RANK_TOLERANCE).sum())
    keep = np.zeros(size, bool)
    keep[0] = True
    keep[1 + order[:rank]] = True
    return keep


def fit_linear(
    design: Float[np.ndarray, "m q"],
    penalty: Float[np.ndarray, " q"],
    values: Float[np.ndarray, "m p"],
    counts: Float[np.ndarray, " m"],
    folds: Folds,
    halves: Bool[np.ndarray, "h k"],
) -> LinearFit:
    """Minimise Σ nᵢ(fᵢ − xᵢᵀθ)² + Σ penaltyⱼθⱼ², and again without some of the folds, exactly.

    With QR = [N^½X; Λ^½] the hat matrix is QQᵀ (its upper rows), and leaving out the rows F moves Rθ by
    −(I − Q_FᵀQ_F)⁻¹Q_Fᵀe_F, with e the residuals: no fit is repeated. With more features than rows the same is solved
    in the space of the rows: the residuals at F are then (I − Q_FQ_Fᵀ)⁻¹e_F, and Rθ moves by Q_Fᵀ times their negative.
    By LAPACK: compiling would take a thousand times as long as solving.

    Parameters
    ----------
    design : (m, q), first column the constant.
    penalty : (q,), zero for the constant.
    counts : (m,) weights nᵢ; zero for padding.
    folds : of which only the rows held out matter.
    halves : sets of folds on which to fit again.
    """
    rows, size = design.shape
    with blas_threads(np.cbrt(float(rows) * size * size)), np.errstate(invalid="ignore"):
        root = np.sqrt(counts)[:, None]
        weighted = design * root
        if penalty.any() or size > rows:
            weighted = np.concatenate([weighted, np.diag(np.sqrt(penalty))])
        q, r = np.linalg.qr(weighted)
        q = q[:rows]
        target = values * root
        coefficients = q.T @ target
        error = target - q @ coefficients
        rule, singular = scipy.linalg.lapack.dtrtrs(r, np.eye(size, 1), trans=1)
        rule = np.full(size, np.nan) if singular else rule[:, 0]
        blocks = [out for out, _ in folds.rows()]
        if size <= rows:
            grams = np.stack([q[block].T @ q[block] for block in blocks])
            moments = np.stack([q[block].T @ error[block] for block in blocks])

            def moved(left: Bool[np.ndarray, " k"]) -> Float[np.ndarray, "q p"]:
                inner = np.eye(size) - grams[left].sum(axis=0)
                return coefficients - solve_positive(inner, moments[left].sum(axis=0))
        else:

            def moved(left: Bool[np.ndarray, " k"]) -> Float[np.ndarray, "q p"]:
                out = np.concatenate([block for block, gone in zip(blocks, left, strict=True) if gone])
                inner = np.eye(len(out)) - q[out] @ q[out].T
                return coefficients - q[out].T @ solve_positive(inner, error[out])

        control = np.zeros((*folds.held_out()[0].shape, values.shape[1]))
        fold_means = np.empty((len(blocks), values.shape[1]))
        for k, block in enumerate(blocks):
            inside = moved(np.arange(len(blocks)) == k)
            fold_means[k] = rule @ inside
            control[k, : len(block)] = q[block] @ inside / root[block] - fold_means[k]
        half_means = np.array([rule @ moved(~half) for half in halves])
        return LinearFit(rule @ coefficients, control, fold_means, half_means)


class PolynomialFit(NamedTuple):
    """A cross-fitted regression of p integrands on Stein features.

    mean : (p,) the intercept of the fit on all states.
    control : (m, p) the fitted part without the intercept, fitted without each state's fold.
    fold_means, half_means : (k, p), (h, p) the intercept of the fit without each fold, and on each half of them.
    num_features : (p,) features used, without the constant.
    """

    mean: Float[np.ndarray, " p"]
    control: Float[np.ndarray, "m p"]
    fold_means: Float[np.ndarray, "k p"]
    half_means: Float[np.ndarray, "h p"]
    num_features: Int[np.ndarray, " p"]


def regress(problem: Problem, design: Float[np.ndarray, "m q"], penalty: Float[np.ndarray, " q"]) -> PolynomialFit:
    """Return the fit of all integrands of a problem by `fit_linear`, by rows of the problem."""
    halves = Subsets.of(problem.folds.num_folds).halves
    fit = fit_linear(design, penalty, problem.values, problem.counts, problem.folds, halves)
    control = problem.folds.scatter(fit.control, len(problem.values))
    features = np.full(control.shape[1], design.shape[1] - 1)
    return PolynomialFit(fit.mean, control, fit.fold_means, fit.half_means, features)


class Features(NamedTuple):
    """Stein features of monomials, divided by their norms.

    exponents : (a, d). norms : (a,).
    """

    exponents: Int[np.ndarray, "a d"]
    norms: Float[np.ndarray, " a"]

    def of(self, draws: Float[np.ndarray, "m d"], scores: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "m a"]:
        """Return the features at some states."""
        if not len(self.norms):
            return np.zeros((len(draws), 0))
        return np.asarray(polynomial_features(draws, scores, self.exponents)) / self.norms


def polynomial_basis(problem: Problem, exponents: Int[np.ndarray, "a d"]) -> Float[np.ndarray, "m q"]:
    """Return the constant one and the Stein features L∇φ of some monomials φ, of which there may be none.

    Features have unit weighted norm and are zero on padding; those that are combinations of others are left out.
    """
    return basis_with_features(problem, exponents)[0]


def basis_with_features(
    problem: Problem, exponents: Int[np.ndarray, "a d"]
) -> tuple[Float[np.ndarray, "m q"], Features]:
    """Return what `polynomial_basis` returns, and its features, with which it can be made of other states."""
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


def exponents_of_degree(num_parameters: int, degree: int, max_interaction: int | None = None) -> np.ndarray:
    """Return the monomials of total degree 1 to `degree`; none for degree zero."""
    if degree == 0:
        return np.zeros((0, num_parameters), int)
    return polynomial_exponents(num_parameters, degree, max_interaction=max_interaction)


NUM_STEPS = 200
"""Accelerated proximal steps per penalty; each penalty starts from the solution of the one before."""

MAX_SELECTED = 1 / 3
"""Largest number of selected features per training state."""


def lasso_crossfit(problem: Problem, basis: Float[np.ndarray, "m q"], penalty: Lasso) -> PolynomialFit:
    """Regress on features that an absolute-value penalty selects, and select again without each fold.

    The penalty is the one with the least held-out squared error. Fits on halves keep the features of the whole. South
    et al. (2022, doi:10.1214/20-EJS1797), who select and regress as here; Leluc, Portier and Segers (2021), LSLASSO.
    """
    total = problem.counts.sum()
    root = np.sqrt(problem.counts)[:, None]
    features = basis[:, 1:]
    features = (features - problem.counts @ features / total) * root
    target = problem.values * root
    blocks = [out for out, _ in problem.folds.rows()]
    grams = np.stack([features[b].T @ features[b] for b in blocks])
    moments = np.stack([features[b].T @ target[b] for b in blocks])
    energies = np.stack([(target[b] ** 2).sum(axis=0) for b in blocks])

    gram, moment = grams.sum(axis=0), moments.sum(axis=0)
    fractions = np.logspace(-0.1, -3, penalty.path_length)
    largest = np.abs(moment).max(axis=0)
    inside = np.stack(
        [lasso_path(gram - g, moment - b, fractions, largest) for g, b in zip(grams, moments, strict=True)]
    )
    errors = (
        energies[:, None, :]
        - 2 * np.einsum("klqp,kqp->klp", inside, moments)
        + np.einsum("klqp,kqr,klrp->klp", inside, grams, inside, optimize=True)
    ).sum(axis=0)
    best = np.argmin(errors, axis=0)
    whole = np.asarray(lasso_path(gram, moment, fractions, largest))

    mean = np.empty(problem.values.shape[1])
    control = np.empty_like(problem.values)
    fold_means = np.empty((len(blocks), problem.values.shape[1]))
    half_means = np.empty((len(Subsets.of(len(blocks)).halves), problem.values.shape[1]))
    num_features = np.empty(len(best), int)
    for j, level in enumerate(best):
        part = problem.select(np.array([j]))
        full = _select(whole[level, :, j], problem.num_states)
        selected = _refit(part, basis, full)
        mean[j], half_means[:, j] = selected.mean[0], selected.half_means[:, 0]
        num_features[j] = full.sum()
        for k, block in enumerate(blocks):
            chosen = _select(inside[k, level, :, j], problem.num_states - len(block))
            refit = _refit(part, basis, chosen)
            control[block, j] = refit.control[block, 0]
            fold_means[k, j] = refit.fold_means[k, 0]
    control[problem.counts == 0] = 0.0
    return PolynomialFit(mean, control, fold_means, half_means, num_features)


@jax.jit
def lasso_path(
    gram: Float[Array, "q q"], moment: Float[Array, "q p"], fractions: Float[Array, " l"], largest: Float[Array, " p"]
) -> Float[Array, "l q p"]:
    """Minimise ½θᵀGθ − bᵀθ + λ|θ|₁ for λ = fraction·largest, along a decreasing path, by FISTA.

    Beck and Teboulle (2009, doi:10.1137/080716542), step 1/λmax(G).
    """
    step = 1.0 / jnp.linalg.eigvalsh(gram)[-1]

    def at_penalty(start: Float[Array, "q p"], fraction: Float[Array, ""]) -> tuple:
        threshold = (step * fraction * largest)[None, :]

        def advance(_: Array, state: tuple) -> tuple:
            theta, ahead, momentum = state
            moved = ahead - step * (gram @ ahead - moment)
            new = jnp.sign(moved) * jnp.maximum(jnp.abs(moved) - threshold, 0.0)
            faster = 0.5 * (1 + jnp.sqrt(1 + 4 * momentum**2))
            return new, new + (momentum - 1) / faster * (new - theta), faster

        theta = jax.lax.fori_loop(0, NUM_STEPS, advance, (start, start, jnp.ones(())))[0]
        return theta, theta

    return jax.lax.scan(at_penalty, jnp.zeros_like(moment), fractions)[1]


def _select(theta: Float[np.ndarray, " q"], num_train: int) -> np.ndarray:
    """Return the mask of the non-zero coefficients, and of the largest only if there are more than may be selected."""
    limit = max(1, int(MAX_SELECTED * num_train))
    cut = np.sort(np.abs(theta))[-limit] if len(theta) > limit else 0.0
    return (np.abs(theta) >= cut) & (theta != 0)


def _refit(problem: Problem, basis: Float[np.ndarray, "m q"], chosen: Bool[np.ndarray, " a"]) -> PolynomialFit:
    """Regress on some features by a program of one shape: the others are zero columns, kept regular by a penalty."""
    design = basis * np.concatenate([[True], chosen])
    return regress(problem, design, np.concatenate([[0.0], np.where(chosen, 0.0, 1.0)]))


PIVOT_TOLERANCE = 1e-10
"""Smallest pivot of the Gram matrix of unit columns: a distance of 1e-5 from the span of the other columns."""


def has_large_design(problem: Problem, size: int) -> bool:
    """Return whether a design of `size` columns is large, and larger than one Gram matrix for each fold.

    That of rows which stay where they are stored always counts as large.
    """
    rows = len(problem.counts)
    return isinstance(problem.draws, StoredRows) or (is_large(rows * size) and problem.folds.num_folds * size < rows)


class FoldMoments(NamedTuple):
    """Moments of some states, by fold.

    folds : (k,) those that the states are in. gram : (k, q, q) XᵀNX. cross : (k, q, p) XᵀNf.
    """

    folds: Int[np.ndarray, " k"]
    gram: Float[np.ndarray, "k q q"]
    cross: Float[np.ndarray, "k q p"]


def fit_by_blocks(problem: Problem, exponents: Int[np.ndarray, "a d"]) -> PolynomialFit:
    """Minimise Σ nᵢ(fᵢ − xᵢᵀθ)² over all states, without each fold and on halves, x the constant and the features.

    Without some folds the normal equations are a difference of Gram matrices. Coefficients are good to the condition
    number of the Gram matrix of unit columns times 1e-16, where `fit_linear` has its square root: a few digits fewer.
    Time is O(m q² + k q³), memory O(k q²) beside the problem's own arrays. Rows that stay where they are stored are
    read twice, chunk by chunk, and each chunk's moments and fitted values are computed where it is.
    """
    k, p = problem.folds.num_folds, problem.values.shape[1]
    size = len(exponents) + 1
    gram, cross = np.zeros((k, size, size)), np.zeros((k, size, p))
    rows = (problem.draws, problem.scores)
    labels = labels_of(problem)
    arrays = (labels, problem.counts, problem.values)
    for _, part in over_rows(_moments, rows, arrays, (exponents,), entries=size * (size + p)):
        gram[part.folds] += part.gram
        cross[part.folds] += part.cross

    norms = np.sqrt(np.einsum("kii->i", gram))
    norms[norms == 0] = 1.0
    gram /= norms[:, None] * norms
    cross /= norms[:, None]
    whole = gram.sum(axis=0)
    keep = _independent(whole)
    inside = np.ix_(keep, keep)
    theta = np.zeros((k, size, p))
    for fold in range(k):
        theta[fold, keep] = solve_positive((whole - gram[fold])[inside], (cross.sum(axis=0) - cross[fold])[keep])
    mean = solve_positive(whole[inside], cross.sum(axis=0)[keep])[0] / norms[0]
    halves = Subsets.of(k).halves.astype(float)
    half_means = np.array(
        [solve_positive(np.tensordot(h, gram, 1)[inside], np.tensordot(h, cross, 1)[keep])[0] for h in halves]
    )
    theta /= norms[:, None]
    control = zeros(problem.values.shape)
    for index, part in over_rows(_fitted, rows, (labels,), (exponents, theta)):
        control[index] = part
    return PolynomialFit(mean, control, theta[:, 0], half_means / norms[0], np.full(p, keep.sum() - 1))


def labels_of(problem: Problem) -> Int[np.ndarray, " m"]:
    """Return the fold of each row, −1 on padding."""
    labels = zeros(problem.counts.shape, np.int32)
    labels[: problem.num_states] = problem.folds.labels
    labels[problem.num_states :] = -1
    return labels


def by_fold(labels: Int[np.ndarray, " m"], width: int) -> Iterator[tuple[int, slice]]:
    """Yield blocks of rows with one label each, those of padding, −1, left out; see `in_blocks`."""
    ends = np.append(np.flatnonzero(np.diff(labels)) + 1, len(labels))
    for start, end in itertools.pairwise([0, *ends.tolist()]):
        for some in in_blocks(end - start, width) if labels[start] >= 0 else ():
            yield int(labels[start]), slice(start + some.start, start + some.stop)


def _moments(
    draws: Float[np.ndarray, "m d"],
    scores: Float[np.ndarray, "m d"],
    labels: Int[np.ndarray, " m"],
    counts: Float[np.ndarray, " m"],
    values: Float[np.ndarray, "m p"],
    exponents: Int[np.ndarray, "a d"],
) -> FoldMoments:
    folds, size = np.unique(labels[labels >= 0]), len(exponents) + 1
    gram, cross = np.zeros((len(folds), size, size)), np.zeros((len(folds), size, values.shape[1]))
    for fold, some in by_fold(labels, size):
        place, root = np.searchsorted(folds, fold), np.sqrt(counts[some])[:, None]
        features = np.asarray(polynomial_features(draws[some], scores[some], exponents))
        rows = np.concatenate([root, features * root], axis=1)
        gram[place] += rows.T @ rows
        cross[place] += rows.T @ (values[some] * root)
    return FoldMoments(folds, gram, cross)


def _fitted(
    draws: Float[np.ndarray, "m d"],
    scores: Float[np.ndarray, "m d"],
    labels: Int[np.ndarray, " m"],
    exponents: Int[np.ndarray, "a d"],
    theta: Float[np.ndarray, "k q p"],
) -> Float[np.ndarray, "m p"]:
    """Return the features times the coefficients of each row's fold, zero on padding."""
    fitted = zeros((len(labels), theta.shape[2]))
    for fold, some in by_fold(labels, theta.shape[1]):
        fitted[some] = np.asarray(polynomial_features(draws[some], scores[some], exponents)) @ theta[fold, 1:]
    return fitted


def _independent(gram: Float[np.ndarray, "q q"]) -> Bool[np.ndarray, " q"]:
    """Return which columns to keep, by Cholesky with pivoting beside the constant, which stays."""
    centred = gram[1:, 1:] - np.outer(gram[1:, 0], gram[0, 1:]) / gram[0, 0]
    _, order, rank, _ = scipy.linalg.lapack.dpstrf(centred, tol=PIVOT_TOLERANCE, lower=1)
    keep = np.zeros(len(gram), bool)
    keep[0] = True
    keep[order[:rank]] = True  # LAPACK counts from one, and so do the features here
    return keep
