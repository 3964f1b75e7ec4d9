"""Least squares on a polynomial Stein basis with folds left out: dense, by blocks of rows, with ridge, with LASSO."""

from collections.abc import Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float, Int

from mcmcpost._core.arguments import check_count, check_number
from mcmcpost._core.large_arrays import in_blocks, is_large, zeros
from mcmcpost.control.folds import Folds, Subsets
from mcmcpost.control.problem import Problem
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

    mean: Float[Array, " p"]
    control: Float[Array, "k b p"]
    fold_means: Float[Array, "k p"]
    half_means: Float[Array, "h p"]


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


@jax.jit
def fit_linear(
    design: Float[Array, "m q"],
    penalty: Float[Array, " q"],
    values: Float[Array, "m p"],
    counts: Float[Array, " m"],
    folds: Folds,
    halves: Bool[Array, "h k"],
) -> LinearFit:
    """Minimise Σ nᵢ(fᵢ − xᵢᵀθ)² + Σ penaltyⱼθⱼ², and again without some of the folds, exactly.

    With QR = [N^½X; Λ^½] the hat matrix is QQᵀ (its upper rows), and leaving out the rows F moves Rθ by
    −(I − Q_FᵀQ_F)⁻¹Q_Fᵀe_F, with e the residuals: no fit is repeated. With more features than rows the same is solved
    in the space of the rows: the residuals at F are then (I − Q_FQ_Fᵀ)⁻¹e_F, and Rθ moves by Q_Fᵀ times their negative.

    Parameters
    ----------
    design : (m, q), first column the constant.
    penalty : (q,), zero for the constant.
    counts : (m,) weights nᵢ; zero for padding.
    folds : of which only the rows held out matter.
    halves : sets of folds on which to fit again.
    """
    root = jnp.sqrt(counts)[:, None]
    rows, size = design.shape
    q_all, r = jnp.linalg.qr(jnp.concatenate([design * root, jnp.diag(jnp.sqrt(penalty))]))
    q = q_all[:rows]
    target = values * root
    coefficients = q.T @ target
    error = target - q @ coefficients
    first = jnp.zeros(size, r.dtype).at[0].set(1.0)
    rule = solve_triangular(r, first, lower=False, trans=1)
    k = len(folds.held_out)
    if size <= rows:

        def normal(fold: tuple) -> tuple[Float[Array, "q q"], Float[Array, "q p"]]:
            index, real = fold
            own = q[index] * real[:, None]
            return own.T @ own, own.T @ error[index]

        grams, moments = jax.lax.map(normal, (folds.held_out, folds.held_out_mask))

        def moved(left: Float[Array, " k"]) -> Float[Array, "q p"]:
            inner = jnp.eye(size, dtype=q.dtype) - jnp.tensordot(left, grams, 1)
            return coefficients - cho_solve(cho_factor(inner), jnp.tensordot(left, moments, 1))
    else:
        member = jnp.zeros((k, rows), q.dtype)
        member = member.at[jnp.arange(k)[:, None], folds.held_out].max(folds.held_out_mask.astype(q.dtype))

        def moved(left: Float[Array, " k"]) -> Float[Array, "q p"]:
            out = (left @ member)[:, None]
            inner = jnp.eye(rows, dtype=q.dtype) - (q * out) @ (q * out).T
            return coefficients - (q * out).T @ cho_solve(cho_factor(inner), error * out)

    def leave_out(fold: tuple) -> tuple[Float[Array, "b p"], Float[Array, " p"]]:
        left, index, real = fold
        inside = moved(left)
        intercept = rule @ inside
        root_f = jnp.where(real, root[index, 0], 1.0)[:, None]
        return q[index] @ inside / root_f - intercept[None, :], intercept

    without = (jnp.eye(k, dtype=q.dtype), folds.held_out, folds.held_out_mask)
    control, fold_means = jax.lax.map(leave_out, without)
    half_means = jax.lax.map(lambda left: rule @ moved(left), 1.0 - halves.astype(q.dtype))
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
    control = problem.folds.scatter(np.asarray(fit.control), len(problem.values))
    features = np.full(control.shape[1], design.shape[1] - 1)
    return PolynomialFit(
        np.asarray(fit.mean), control, np.asarray(fit.fold_means), np.asarray(fit.half_means), features
    )


def polynomial_basis(problem: Problem, exponents: Int[np.ndarray, "a d"]) -> Float[np.ndarray, "m q"]:
    """Return the constant one and the Stein features L∇φ of some monomials φ, of which there may be none.

    Features have unit weighted norm and are zero on padding; those that are combinations of others are left out.
    """
    real = (problem.counts > 0).astype(float)[:, None]
    if not len(exponents):
        return real
    features = np.asarray(polynomial_features(problem.draws, problem.scores, exponents)) * real
    norms = np.sqrt(problem.counts @ features**2)
    unit = np.concatenate([real / np.sqrt(problem.counts.sum()), features / np.where(norms > 0, norms, 1.0)], axis=1)
    keep = independent_columns(unit * np.sqrt(problem.counts)[:, None])
    unit[:, 0] = real[:, 0]
    return unit[:, keep]


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
    """Return whether a design of `size` columns is large, and larger than one Gram matrix for each fold."""
    rows = len(problem.counts)
    return is_large(rows * size) and problem.folds.num_folds * size < rows


def fit_by_blocks(problem: Problem, exponents: Int[np.ndarray, "a d"]) -> PolynomialFit:
    """Minimise Σ nᵢ(fᵢ − xᵢᵀθ)² over all states, without each fold and on halves, x the constant and the features.

    Without some folds the normal equations are a difference of Gram matrices. Coefficients are good to the condition
    number of the Gram matrix of unit columns times 1e-16, where `fit_linear` has its square root: a few digits fewer.
    Time is O(m q² + k q³), memory O(k q²) beside the problem's own arrays.
    """
    k, p = problem.folds.num_folds, problem.values.shape[1]
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
    halves = Subsets.of(k).halves.astype(float)
    half_means = np.array(
        [_solve(np.tensordot(h, gram, 1)[inside], np.tensordot(h, cross, 1)[keep])[0] for h in halves]
    )
    theta /= norms[:, None]
    control = zeros(problem.values.shape)
    for fold, index in _blocks(problem, size):
        features = np.asarray(polynomial_features(problem.draws[index], problem.scores[index], exponents))
        control[index] = features @ theta[fold, 1:]
    return PolynomialFit(mean, control, theta[:, 0], half_means / norms[0], np.full(p, keep.sum() - 1))


def _blocks(problem: Problem, size: int) -> Iterator[tuple[int, Int[np.ndarray, " b"]]]:
    """Yield each fold and some of its states, a block of the design at a time."""
    for fold, (rows, _) in enumerate(problem.folds.rows()):
        for some in in_blocks(len(rows), size):
            yield fold, rows[some]


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
    """Return the solution of the normal equations; NaN where the Gram matrix is singular."""
    return cho_solve((jnp.linalg.cholesky(gram), True), cross)
