"""The pooled, continuous path: every draw of the ladder controls the mean log likelihood at every temperature."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy import special
from tqdm import tqdm

from mcmcpost._core.devices import no_bar
from mcmcpost.evidence.ladders.ladder import PATH_POWER
from mcmcpost.evidence.mbar import log_mixture, solve_free_energies
from mcmcpost.kernels import SquaredExponential
from mcmcpost.linsolve import blas_threads, cholesky_factor, solve_lower, solve_positive
from mcmcpost.stein import num_polynomial_features, polynomial_exponents, polynomial_features, stein_gram

RIDGE = 1e-12
"""Ridge penalty relative to the squared norm of a feature; it only decides combinations that vanish."""

NEGLIGIBLE = 1e-290

LENGTHSCALE = 2.0
"""Lengthscale of the kernel, in units of √d standard deviations of the coordinates at each temperature."""

PENALTIES = (1e-6, 1e-9)
"""Penalties on the squared norm of the kernel part, relative to the weighted mean square of the residuals."""

JITTER = 1e-10

NUM_CHANGES = 4
"""Dimension of the space in which leaving out a block changes the weights of the draws."""


class PooledDraws(NamedTuple):
    """All draws of all rungs in one row each.

    points : (n, d) unconstrained. log_likelihood : (n,) ℓ, −∞ allowed.
    gradient_log_likelihood, gradient_log_prior : (n, d), finite (zero where ℓ = −∞).
    blocks : (n,) the jackknife block of each draw: contiguous in its chain, all rungs together.
    members : (k, l) the draws of each block, filled up with n.
    rungs : (n,) the rung of each draw.
    counts : (n,) how many draws each counts for: one, unless the draws of its rung have weights.
    """

    points: Float[np.ndarray, "n d"]
    log_likelihood: Float[np.ndarray, " n"]
    gradient_log_likelihood: Float[np.ndarray, "n d"]
    gradient_log_prior: Float[np.ndarray, "n d"]
    blocks: Int[np.ndarray, " n"]
    members: Int[np.ndarray, "k l"]
    rungs: Int[np.ndarray, " n"]
    counts: Float[np.ndarray, " n"]


class Mixtures(NamedTuple):
    """MBAR on all draws and without each of k blocks.

    free_energies : (k+1, t); log_densities : (k+1, n) log of the mixture density of the draws kept, first all of them.
    num_steps, converged : of the iterations.
    """

    free_energies: Float[np.ndarray, "k t"]
    log_densities: Float[np.ndarray, "k n"]
    num_steps: int
    converged: bool


class Family(NamedTuple):
    """The control variates that are fitted together, called levels: degrees 0..degree, then semi-exact ones.

    degree : the highest degree of the polynomials. kernel_degree : degree of the polynomial used with the kernel.
    num_landmarks : J, the landmarks of the kernel; zero for polynomials only. Each of `PENALTIES` is one more level.
    """

    degree: int
    kernel_degree: int = 0
    num_landmarks: int = 0

    @property
    def num_levels(self) -> int:
        return self.degree + 1 + (len(PENALTIES) if self.num_landmarks else 0)


class PathFit(NamedTuple):
    """The controlled mean log likelihood μ(t) at k temperatures, and its integral, for the g levels of a `Family`.

    mean : (k, g) μ(t); level zero is the plain weighted mean. ess : (k,) Kish's effective number of the weighted
    draws. variance_ratio : (k, g) weighted Var ℓ over that of the held-out residual.
    integral : (g,) ∫μ dt on all draws. crossfit : (g,) the same of the residuals r of draws held out of their fits.
    deleted : (b, g) the integral without each block. influence : (n, g) of each draw on `crossfit`, ∫ w_n(r_n − r̄) dt.
    """

    mean: Float[np.ndarray, "k g"]
    ess: Float[np.ndarray, " k"]
    variance_ratio: Float[np.ndarray, "k g"]
    integral: Float[np.ndarray, " g"]
    crossfit: Float[np.ndarray, " g"]
    deleted: Float[np.ndarray, "b g"]
    influence: Float[np.ndarray, "n g"]


def path_quadrature(
    num_nodes: int, power: float = PATH_POWER
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Return Gauss–Legendre temperatures and weights of ∫₀¹ μ(s^a)·a s^(a−1) ds, with the power a (docs/mathematics.md
    section 3)."""
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    s = 0.5 * (nodes + 1.0)
    return s**power, 0.5 * weights * power * s ** (power - 1.0)


def solve_mixtures(
    temperatures: Float[np.ndarray, " t"], pooled: PooledDraws, start: Float[np.ndarray, " t"], *, num_blocks: int
) -> Mixtures:
    """Solve MBAR on all draws and again without each block."""
    values, mixtures, steps, converged = _solve_each(
        temperatures, pooled.log_likelihood, pooled.blocks, pooled.rungs, pooled.counts, start, num_blocks=num_blocks
    )
    return Mixtures(np.asarray(values), np.asarray(mixtures), int(steps.sum()), bool(converged.all()))


@partial(jax.jit, static_argnames="num_blocks")
def _solve_each(
    temperatures: Float[Array, " t"],
    log_likelihood: Float[Array, " n"],
    blocks: Int[Array, " n"],
    rungs: Int[Array, " n"],
    counted: Float[Array, " n"],
    start: Float[Array, " t"],
    *,
    num_blocks: int,
) -> tuple[Float[Array, "k t"], Float[Array, "k n"], Int[Array, " k"], Bool[Array, " k"]]:
    rung_of = jax.nn.one_hot(rungs, len(temperatures), dtype=start.dtype)

    def solve(guess: Array, left_out: Array) -> tuple[Array, tuple[Array, Array, Array, Array]]:
        counts = jnp.where(blocks != left_out, counted, 0.0)
        sizes = counts @ rung_of
        found = solve_free_energies(temperatures, log_likelihood, counts, sizes, guess)
        mixture = log_mixture(temperatures, log_likelihood, sizes, found.values)
        return found.values, (found.values, mixture, found.num_steps, found.converged)

    # Each solve starts from the one before: a block less changes little.
    return jax.lax.scan(solve, start, jnp.arange(-1, num_blocks))[1]


_quiet = np.errstate(divide="ignore", over="ignore", invalid="ignore")
"""What is not finite is no answer, which its error says."""


class _Basis(NamedTuple):
    """Functions of mean zero at one temperature: polynomial ones, orthonormal under the weights, low degrees first;
    then K₀(·, landmarks)L⁻ᵀ with K₀ = LLᵀ among landmarks, whose coefficients have the norm of the kernel's space.

    centred : (n, q) minus their weighted mean. offset : (q,) that mean, whose expectation under the target is zero.
    """

    centred: Float[np.ndarray, "n q"]
    offset: Float[np.ndarray, " q"]


class _Moments(NamedTuple):
    """Of ℓ and the basis under some weights: E ℓ, E x (q,), E[(ℓ − E ℓ)x] (q,), and E xxᵀ (q, q)."""

    level: float
    mean: Float[np.ndarray, " q"]
    cross: Float[np.ndarray, " q"]
    square: Float[np.ndarray, "q q"]


@_quiet
def weighted_ess(
    temperatures: Float[np.ndarray, " k"], pooled: PooledDraws, mixtures: Mixtures
) -> Float[np.ndarray, " k"]:
    """Return Kish's effective number of the draws as weighted at each temperature."""
    return np.array([1.0 / np.sum(_weights(t, pooled, mixtures) ** 2) for t in temperatures])


@_quiet
def fit_path(
    temperatures: Float[np.ndarray, " k"],
    quadrature: Float[np.ndarray, " k"],
    pooled: PooledDraws,
    mixtures: Mixtures,
    *,
    family: Family,
) -> PathFit:
    """Fit the weighted control variates of `family` at each temperature on all draws and without each block.

    At t the draws weigh w_n ∝ c_n exp(tℓ_n)/Σ_j m_j exp(t_jℓ_n − f_j), c_n how many each counts for, and the regression
    of ℓ on Stein features with the score t∇ℓ + ∇log p has the intercept μ(t) (docs/mathematics.md section 3). Every
    deletion has its own f_j, weights and coefficients; what it changes in the weights of the other draws is projected
    on a few principal components (see `_weight_changes`), so that a few Gram matrices serve all deletions. The features
    of lower degrees come first, so their fits are leading blocks of one Gram matrix. A semi-exact level adds a squared
    exponential Stein kernel at J landmarks, drawn systematically by the weights, with a ridge. Polynomials and kernel
    are in coordinates standardised at each temperature. Memory is O(n(q + J + blocks)). By LAPACK: compiling it took
    longer than most ladders do.
    """
    values, d, g, b = _finite(pooled), pooled.points.shape[1], family.num_levels, len(pooled.members)
    members = [rows[rows < len(values)] for rows in pooled.members]
    mean, ratio, ess = np.empty((len(temperatures), g)), np.empty((len(temperatures), g)), np.empty(len(temperatures))
    integral, crossfit, deleted, influence = np.zeros(g), np.zeros(g), np.zeros((b, g)), np.zeros((len(values), g))
    nodes = tqdm(temperatures, desc="path", disable=no_bar(True), leave=False)
    for k, (t, step) in enumerate(zip(nodes, quadrature, strict=True)):
        weights = _weights(t, pooled, mixtures)
        basis = _basis_at(t, pooled, weights, family)
        with blas_threads(len(basis.offset)):
            mean[k], _ = _regression(_moments(weights, basis, values), basis.offset, family, d)
            without = _moments_without(weights, basis, values, mixtures, members)
        residuals = np.empty((len(values), g))
        for block, (rows, moments) in enumerate(zip(members, without, strict=True)):
            means, coefficients = _regression(moments, basis.offset, family, d)
            deleted[block] += step * means
            residuals[rows] = values[rows, None] - basis.centred[rows] @ coefficients.T - coefficients @ basis.offset
        centre = weights @ residuals
        residuals -= centre
        ess[k] = 1.0 / np.sum(weights**2)
        ratio[k] = (weights @ (values - weights @ values) ** 2) / (weights @ residuals**2)
        integral += step * mean[k]
        crossfit += step * centre
        influence += (step * weights)[:, None] * residuals
    return PathFit(mean, ess, ratio, integral, crossfit, deleted, influence)


def _moments(weights: Float[np.ndarray, " n"], basis: _Basis, values: Float[np.ndarray, " n"]) -> _Moments:
    level = weights @ values
    cross = (weights * (values - level)) @ basis.centred
    return _Moments(level, weights @ basis.centred, cross, _second_moments(weights, basis.centred))


def _moments_without(
    weights: Float[np.ndarray, " n"],
    basis: _Basis,
    values: Float[np.ndarray, " n"],
    mixtures: Mixtures,
    members: Sequence[Int[np.ndarray, " _"]],
) -> list[_Moments]:
    """Return the moments without each block; the changes of the weights may have either sign."""
    mine, patterns = _weight_changes(weights, mixtures)
    squares = np.stack([basis.centred.T @ ((weights * change)[:, None] * basis.centred) for change in patterns])
    squares = np.tensordot(mine, squares, 1)
    kept = mine @ patterns * weights
    for block, rows in enumerate(members):
        squares[block] -= basis.centred[rows].T @ (kept[block, rows, None] * basis.centred[rows])
        kept[block, rows] = 0.0
    total = kept.sum(1)
    kept /= total[:, None]
    middle = weights @ values
    means, shifts = kept @ basis.centred, kept @ (values - middle)
    kept *= values - middle
    crosses = kept @ basis.centred - shifts[:, None] * means
    return [
        _Moments(middle + shifts[block], means[block], crosses[block], squares[block] / total[block])
        for block in range(len(members))
    ]


@_quiet
def path_integral(
    temperatures: Float[np.ndarray, " k"],
    quadrature: Float[np.ndarray, " k"],
    pooled: PooledDraws,
    mixtures: Mixtures,
    *,
    family: Family,
) -> Float[np.ndarray, " g"]:
    """Return ∫μ dt of every level on all draws alone, for another quadrature rule at little cost."""
    values, total = _finite(pooled), np.zeros(family.num_levels)
    for t, step in zip(temperatures, quadrature, strict=True):
        weights = _weights(t, pooled, mixtures)
        basis = _basis_at(t, pooled, weights, family)
        with blas_threads(len(basis.offset)):
            mean, _ = _regression(_moments(weights, basis, values), basis.offset, family, pooled.points.shape[1])
        total += step * mean
    return total


def _finite(pooled: PooledDraws) -> Float[np.ndarray, " n"]:
    return np.where(np.isfinite(pooled.log_likelihood), pooled.log_likelihood, 0.0)


def _weights(temperature: float, pooled: PooledDraws, mixtures: Mixtures) -> Float[np.ndarray, " n"]:
    """Return the normalised weights of all draws at a positive temperature."""
    known = np.isfinite(pooled.log_likelihood)
    logs = np.log(pooled.counts) + temperature * _finite(pooled) - mixtures.log_densities[0]
    return special.softmax(np.where(known, logs, -np.inf))


def _weight_changes(
    weights: Float[np.ndarray, " n"], mixtures: Mixtures
) -> tuple[Float[np.ndarray, "k r"], Float[np.ndarray, "r n"]]:
    """Return factors of the (k, n) changes of the weights when each of k blocks is left out, before normalisation.

    Without a block the mixture density of the draws changes, and the weight of each of the others by its inverse: by
    little, and smoothly in the log likelihood. The leading `NUM_CHANGES` principal components under the weights hold
    that to rounding for two rungs, and to a small part of the change for many.
    """
    change = np.zeros((len(mixtures.log_densities) - 1, len(weights)))
    seen = weights > NEGLIGIBLE
    change[:, seen] = np.exp(mixtures.log_densities[:1, seen] - mixtures.log_densities[1:, seen])
    moments = (change * weights) @ change.T
    sound = np.isfinite(moments).all()  # elsewhere LAPACK raises
    leading = (np.linalg.eigh(moments)[1] if sound else np.full_like(moments, np.nan))[:, -NUM_CHANGES:]
    return leading, leading.T @ change


def _second_moments(weights: Float[np.ndarray, " n"], features: Float[np.ndarray, "n q"]) -> Float[np.ndarray, "q q"]:
    """Return Σ_n w_n x_n x_nᵀ, w_n ≥ 0; a product with its own transpose takes half the time."""
    half = np.sqrt(weights)[:, None] * features
    return half.T @ half


def _basis_at(temperature: float, pooled: PooledDraws, weights: Float[np.ndarray, " n"], family: Family) -> _Basis:
    """Return the basis at one temperature, standardised twice: the coordinates first, then the features."""
    if family.degree == 0:
        return _Basis(np.zeros((len(weights), 0)), np.zeros(0))
    centred = pooled.points - weights @ pooled.points
    covariance = _second_moments(weights, centred)
    scale = np.sqrt(np.diagonal(covariance))
    scale = np.where(scale > 0, scale, 1.0)
    correlation = covariance / np.outer(scale, scale) + RIDGE * np.eye(len(scale))
    lower = scale[:, None] * _factor(correlation)
    z = solve_lower(lower, centred.T).T
    scores = (temperature * pooled.gradient_log_likelihood + pooled.gradient_log_prior) @ lower
    features = polynomial_features(z, scores, polynomial_exponents(z.shape[1], family.degree))
    polynomials = _orthonormal(weights, np.asarray(features))
    if not family.num_landmarks:
        return polynomials
    landmarks = _landmark_features(weights, z, scores, family.num_landmarks)
    offset = weights @ landmarks
    return _Basis(
        np.concatenate([polynomials.centred, landmarks - offset], axis=1),
        np.concatenate([polynomials.offset, offset]),
    )


def _orthonormal(weights: Float[np.ndarray, " n"], features: Float[np.ndarray, "n q"]) -> _Basis:
    # Far draws of other rungs may overflow the features; their weight is nil.
    features = np.where((weights > NEGLIGIBLE)[:, None], features, 0.0)
    norm = np.sqrt(weights @ features**2)
    features /= np.where(norm > 0, norm, 1.0)
    offset = weights @ features
    features -= offset
    gram = _second_moments(weights, features)
    factor = _factor(gram + RIDGE * len(gram) * np.eye(len(gram)))
    return _Basis(solve_lower(factor, features.T).T, solve_lower(factor, offset[:, None])[:, 0])


def _landmark_features(
    weights: Float[np.ndarray, " n"], z: Float[np.ndarray, "n d"], scores: Float[np.ndarray, "n d"], num_landmarks: int
) -> Float[np.ndarray, "n J"]:
    """Return K₀(z, landmarks)L⁻ᵀ, the kernel scaled to a weighted mean diagonal of about one."""
    kernel = SquaredExponential(jnp.asarray(LENGTHSCALE * np.sqrt(z.shape[1])))
    seen = (weights > NEGLIGIBLE)[:, None]
    z, scores = np.where(seen, z, 0.0), np.where(seen, scores, 0.0)
    at = np.searchsorted(np.cumsum(weights), (np.arange(num_landmarks) + 0.5) / num_landmarks)
    chosen = np.minimum(at, len(weights) - 1)
    across = np.asarray(stein_gram(kernel, z[chosen], scores[chosen], z, scores))
    among = across[:, chosen]
    size = np.trace(among) / num_landmarks
    factor = _factor(among / size + JITTER * num_landmarks * np.eye(num_landmarks))
    return solve_lower(factor, across / size).T


def _factor(matrix: Float[np.ndarray, "q q"]) -> Float[np.ndarray, "q q"]:
    """Return the lower Cholesky factor; NaN where the matrix is not positive definite."""
    lower = cholesky_factor(matrix)
    return np.full_like(matrix, np.nan) if lower is None else lower


def _regression(
    moments: _Moments, offset: Float[np.ndarray, " q"], family: Family, d: int
) -> tuple[Float[np.ndarray, " g"], Float[np.ndarray, "g q"]]:
    """Return intercepts and coefficients, zero outside each level; the basis may be of other weights than the moments.

    offset : that of the basis.
    """
    q, top = len(offset), len(offset) - family.num_landmarks
    gram = moments.square - np.outer(moments.mean, moments.mean) + RIDGE * max(q, 1) * np.eye(q)
    coefficients = np.zeros((family.num_levels, q))
    factor = _factor(gram[:top, :top])
    half = solve_lower(factor, moments.cross[:top, None])
    for level in range(1, family.degree + 1):
        size = num_polynomial_features(d, level)
        coefficients[level, :size] = solve_lower(factor[:size, :size], half[:size], transposed=True)[:, 0]
    if family.num_landmarks:
        size = num_polynomial_features(d, family.kernel_degree)
        columns = np.concatenate([np.arange(size), np.arange(top, q)])
        system = gram[np.ix_(columns, columns)]
        penalised = np.arange(len(columns)) >= size
        for level, penalty in enumerate(PENALTIES, start=family.degree + 1):
            solved = solve_positive(system + np.diag(penalty * penalised), moments.cross[columns, None])
            coefficients[level, columns] = solved[:, 0]
    return moments.level - coefficients @ (moments.mean + offset), coefficients
