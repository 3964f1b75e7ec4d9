"""The pooled, continuous path: every draw of the ladder controls the mean log likelihood at every
temperature."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from scipy import special
from tqdm import tqdm

from mcmcpost.core.devices import no_bar
from mcmcpost.evidence.mbar import log_mixture, solve_free_energies
from mcmcpost.solve import PositiveMatrix, blas_threads, cholesky_factor, solve_lower
from mcmcpost.stein import (
    SquaredExponential,
    num_polynomial_features,
    polynomial_exponents,
    polynomial_features,
    stein_gram,
)

RIDGE = 1e-12
"""Ridge penalty relative to the squared norm of a feature; it only decides combinations that
vanish."""

NEGLIGIBLE = 1e-290

LENGTHSCALE = 2.0
"""Lengthscale of the kernel, in units of √d standard deviations of the coordinates at each
temperature."""

PENALTIES = (1e-6, 1e-9)
"""Penalties on the squared norm of the kernel part, relative to the weighted mean square of the
residuals."""

JITTER = 1e-10


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

    free_energies : (k+1, t); log_densities : (k+1, n) log of the mixture density of the draws kept,
        first all of them.
    num_steps, converged : of the iterations.
    """

    free_energies: Float[np.ndarray, "k t"]
    log_densities: Float[np.ndarray, "k n"]
    num_steps: int
    converged: bool


class Family(NamedTuple):
    """The control variates that are fitted together, called levels: degrees 0..degree, then
    semi-exact ones.

    degree : the highest degree of the polynomials. kernel_degree : degree of the polynomial used
        with the kernel.
    num_landmarks : J, the landmarks of the kernel; zero for polynomials only. Each of `PENALTIES`
        is one more level.
    """

    degree: int
    kernel_degree: int = 0
    num_landmarks: int = 0

    @property
    def num_levels(self) -> int:
        return self.degree + 1 + (len(PENALTIES) if self.num_landmarks else 0)

    def work(self, num_draws: int, d: int, num_blocks: int) -> float:
        """Return the multiplications of one temperature: of the kernel, the Gram matrices and the
        gradients."""
        levels = _levels(self, d)
        columns = levels.sizes[-1] + self.num_landmarks
        with_kernel = (levels.number - len(levels.sizes)) * (
            levels.kernel_size + self.num_landmarks
        )
        # Two Newton steps for all draws and one for each deletion, as in `_fit_node`.
        gradients = (num_blocks + 2) * (levels.number + sum(levels.sizes) + with_kernel)
        return float(num_draws) * (self.num_landmarks**2 + columns**2 / 2 + gradients)


class PathFit(NamedTuple):
    """The controlled mean log likelihood μ(t) at k temperatures, and its integral, for the g levels
    of a `Family`.

    mean : (k, g) μ(t); level zero is the plain weighted mean. ess : (k,) Kish's effective number of
    the weighted draws. variance_ratio : (k, g) weighted Var ℓ over that of the held-out residual.
    integral : (g,) ∫μ dt on all draws. crossfit : (g,) the same of the residuals r of draws held
        out of their fits.
    deleted : (b, g) the integral without each block. influence : (n, g) of each draw on `crossfit`,
        ∫ w_n(r_n − r̄) dt.
    """

    mean: Float[np.ndarray, "k g"]
    ess: Float[np.ndarray, " k"]
    variance_ratio: Float[np.ndarray, "k g"]
    integral: Float[np.ndarray, " g"]
    crossfit: Float[np.ndarray, " g"]
    deleted: Float[np.ndarray, "b g"]
    influence: Float[np.ndarray, "n g"]


def solve_mixtures(
    temperatures: Float[np.ndarray, " t"],
    pooled: PooledDraws,
    start: Float[np.ndarray, " t"],
    *,
    num_blocks: int,
) -> Mixtures:
    """Solve MBAR on all draws and again without each block."""
    values, mixtures, steps, converged = _solve_each(
        temperatures,
        pooled.log_likelihood,
        pooled.blocks,
        pooled.rungs,
        pooled.counts,
        start,
        num_blocks=num_blocks,
    )
    return Mixtures(
        np.asarray(values), np.asarray(mixtures), int(steps.sum()), bool(converged.all())
    )


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
        # By zero counts in place of shorter arrays: one compiled shape serves all deletions.
        counts = jnp.where(blocks != left_out, counted, 0.0)
        sizes = counts @ rung_of
        solution = solve_free_energies(temperatures, log_likelihood, counts, sizes, guess)
        mixture = log_mixture(temperatures, log_likelihood, sizes, solution.values)
        return solution.values, (solution.values, mixture, solution.num_steps, solution.converged)

    # Each solve starts from the one before: a block less changes little.
    return jax.lax.scan(solve, start, jnp.arange(-1, num_blocks))[1]


_quiet = np.errstate(divide="ignore", over="ignore", invalid="ignore")
"""What is not finite is no answer, which its error says."""


class _Gram(NamedTuple):
    """Moments of features under weights that add up to less than one where a block is left out.

    total : Σ_n w_n. mean : (q,) Σ_n w_n x_n. square : (q, q) Σ_n w_n x_n x_nᵀ.
    """

    total: float
    mean: Float[np.ndarray, " q"]
    square: Float[np.ndarray, "q q"]

    def without(self, block: "_Gram") -> "_Gram":
        return _Gram(self.total - block.total, self.mean - block.mean, self.square - block.square)

    def covariance(self) -> Float[np.ndarray, "q q"]:
        mean = self.mean / self.total
        return self.square / self.total - np.outer(mean, mean)


class _NodeFit(NamedTuple):
    """The regression at one temperature, for the g levels.

    mean : (g,) μ. deleted : (b, g) without each block. residuals : (n, g) held out, with the
        expectation μ.
    """

    mean: Float[np.ndarray, " g"]
    deleted: Float[np.ndarray, "b g"]
    residuals: Float[np.ndarray, "n g"]


class PlainPath(NamedTuple):
    """Weighted means of ℓ at k temperatures, without controls, and Kish's effective number of the
    weighted draws."""

    mean: Float[np.ndarray, " k"]
    ess: Float[np.ndarray, " k"]


@_quiet
def plain_path(
    temperatures: Float[np.ndarray, " k"], pooled: PooledDraws, mixtures: Mixtures
) -> PlainPath:
    """Return the path without controls, which costs next to nothing."""
    values, weights = _finite(pooled), (_weights(t, pooled, mixtures) for t in temperatures)
    mean, ess = zip(*((at @ values, 1.0 / (at @ at)) for at in weights), strict=True)
    return PlainPath(np.array(mean), np.array(ess))


@_quiet
def fit_path(
    temperatures: Float[np.ndarray, " k"],
    quadrature: Float[np.ndarray, " k"],
    pooled: PooledDraws,
    mixtures: Mixtures,
    *,
    family: Family,
) -> PathFit:
    """Fit the weighted control variates of `family` at each temperature on all draws and without
    each block.

    At t the draws weigh w_n ∝ c_n exp(tℓ_n)/Σ_j m_j exp(t_jℓ_n − f_j), c_n how many each counts
    for, and the regression of ℓ on Stein features with the score t∇ℓ + ∇log p has the intercept
    μ(t) (docs/mathematics.md section 3). Every deletion has its own f_j, weights and coefficients,
    see `_fit_node`. The features of lower degrees come first, so their fits are leading blocks of
    one Gram matrix. A semi-exact level adds a squared exponential Stein kernel at J landmarks,
    drawn systematically by the weights, with a ridge. Polynomials and kernel are in coordinates
    standardised at each temperature. Memory is O(n(q + J + blocks)). By LAPACK: compiling it took
    longer than most ladders do.
    """
    values, g, b = _finite(pooled), family.num_levels, len(pooled.members)
    levels = _levels(family, pooled.points.shape[1])
    members = [_rows(rows[rows < len(values)]) for rows in pooled.members]
    mean, ratio, ess = (
        np.empty((len(temperatures), g)),
        np.empty((len(temperatures), g)),
        np.empty(len(temperatures)),
    )
    crossfit, deleted, influence = np.zeros(g), np.zeros((b, g)), np.zeros((len(values), g))
    nodes = tqdm(temperatures, desc="path", disable=no_bar(True), leave=False)
    for k, (t, step) in enumerate(zip(nodes, quadrature, strict=True)):
        weights = _weights(t, pooled, mixtures)
        kept = _weights_without(weights, pooled, mixtures)
        # Threads that wait for each other on small systems cost more than they bring (docs/results,
        # exact_likelihood_threads).
        with blas_threads(levels.sizes[-1] + levels.num_landmarks):
            features = _features_at(t, pooled, weights, family)
            node = _fit_node(features, values, weights, kept, members, levels)
        centre = weights @ node.residuals
        around = node.residuals - centre
        mean[k] = node.mean
        ess[k] = 1.0 / np.sum(weights**2)
        ratio[k] = (weights @ (values - weights @ values) ** 2) / (weights @ around**2)
        crossfit += step * centre
        deleted += step * node.deleted
        # ∫ w_n(r_n − r̄) dt, accumulated node by node: residuals of all nodes together would be (k,
        # n, g).
        influence += (step * weights)[:, None] * around
    return PathFit(mean, ess, ratio, quadrature @ mean, crossfit, deleted, influence)


def _rows(members: Int[np.ndarray, " l"]) -> Int[np.ndarray, " l"] | slice:
    """Return increasing rows as a slice, which needs no copy, where they follow each other."""
    contiguous = len(members) and members[-1] - members[0] == len(members) - 1
    return slice(members[0], members[-1] + 1) if contiguous else members


def _finite(pooled: PooledDraws) -> Float[np.ndarray, " n"]:
    return np.where(np.isfinite(pooled.log_likelihood), pooled.log_likelihood, 0.0)


def _weights(
    temperature: float, pooled: PooledDraws, mixtures: Mixtures
) -> Float[np.ndarray, " n"]:
    """Return the normalised weights of all draws at a positive temperature."""
    known = np.isfinite(pooled.log_likelihood)
    logs = np.log(pooled.counts) + temperature * _finite(pooled) - mixtures.log_densities[0]
    return special.softmax(np.where(known, logs, -np.inf))


def _weights_without(
    weights: Float[np.ndarray, " n"], pooled: PooledDraws, mixtures: Mixtures
) -> Float[np.ndarray, "k n"]:
    """Return the normalised weights of all draws when each of k blocks is left out, and with it its
    part of the mixture."""
    kept = np.zeros((len(pooled.members), len(weights)))
    seen = weights > NEGLIGIBLE
    # w_n ∝ exp(tℓ_n)/mixture_n: without a block the numerator stays, and only the mixture changes.
    # Where the weight has vanished the ratio of mixtures may overflow, and 0 · ∞ is NaN.
    kept[:, seen] = weights[seen] * np.exp(
        mixtures.log_densities[:1, seen] - mixtures.log_densities[1:, seen]
    )
    kept[pooled.blocks == np.arange(len(kept))[:, None]] = 0.0
    return kept / kept.sum(axis=1, keepdims=True)


def _features_at(
    temperature: float, pooled: PooledDraws, weights: Float[np.ndarray, " n"], family: Family
) -> Float[np.ndarray, "n q"]:
    """Return functions whose expectation at one temperature is zero: polynomial ones, low degrees
    first; then K₀(·, landmarks)L⁻ᵀ with K₀ = LLᵀ among landmarks, whose coefficients have the norm
    of the kernel's space."""
    if family.degree == 0:
        return np.zeros((len(weights), 0))
    centred = pooled.points - weights @ pooled.points
    covariance = _second_moments(weights, centred)
    scale = np.sqrt(np.diagonal(covariance))
    scale = np.where(scale > 0, scale, 1.0)
    # A ridge on the correlation is relative to each coordinate; on the covariance it would swamp
    # those whose units make them small.
    correlation = covariance / np.outer(scale, scale) + RIDGE * np.eye(len(scale))
    lower = scale[:, None] * _factor(correlation)
    # Far draws of other rungs may overflow the features; their weight is nil.
    seen = (weights > NEGLIGIBLE)[:, None]
    z = np.where(seen, solve_lower(lower, centred.T).T, 0.0)
    scores = np.where(
        seen,
        (temperature * pooled.gradient_log_likelihood + pooled.gradient_log_prior) @ lower,
        0.0,
    )
    features = np.asarray(
        polynomial_features(z, scores, polynomial_exponents(z.shape[1], family.degree))
    )
    if not family.num_landmarks:
        return features
    return np.concatenate(
        [features, _landmark_features(weights, z, scores, family.num_landmarks)], axis=1
    )


def _second_moments(
    weights: Float[np.ndarray, " n"], features: Float[np.ndarray, "n q"]
) -> Float[np.ndarray, "q q"]:
    """Return Σ_n w_n x_n x_nᵀ, w_n ≥ 0; a product with its own transpose takes half the time."""
    half = np.sqrt(weights)[:, None] * features
    return half.T @ half


def _landmark_features(
    weights: Float[np.ndarray, " n"],
    z: Float[np.ndarray, "n d"],
    scores: Float[np.ndarray, "n d"],
    num_landmarks: int,
) -> Float[np.ndarray, "n J"]:
    """Return K₀(z, landmarks)L⁻ᵀ, the kernel scaled to a weighted mean diagonal of about one."""
    kernel = SquaredExponential(jnp.asarray(LENGTHSCALE * np.sqrt(z.shape[1])))
    # Systematic resampling without a random number: the same ladder gives the same landmarks.
    at = np.searchsorted(np.cumsum(weights), (np.arange(num_landmarks) + 0.5) / num_landmarks)
    chosen = np.minimum(at, len(weights) - 1)
    across = np.asarray(stein_gram(kernel, z, scores, z[chosen], scores[chosen]))
    among = across[chosen]
    size = np.trace(among) / num_landmarks
    # A draw of large weight is a landmark several times over, and rows that are equal make the Gram
    # matrix singular.
    factor = _factor(among / size + JITTER * num_landmarks * np.eye(num_landmarks))
    return solve_lower(size * factor, across.T).T


def _factor(matrix: Float[np.ndarray, "q q"]) -> Float[np.ndarray, "q q"]:
    """Return the lower Cholesky factor; NaN where the matrix is not positive definite."""
    lower = cholesky_factor(matrix)
    return np.full_like(matrix, np.nan) if lower is None else lower


def _fit_node(
    features: Float[np.ndarray, "n q"],
    values: Float[np.ndarray, " n"],
    weights: Float[np.ndarray, " n"],
    kept: Float[np.ndarray, "b n"],
    members: Sequence[Int[np.ndarray, " _"] | slice],
    levels: "_Levels",
) -> _NodeFit:
    """Regress the values on the features with all weights, and with those `kept` without each
    block.

    All fits share one pass of products: the Gram matrix of each block under the weights of all
    draws. Coefficients take Newton steps, from gradients under the weights that are meant. The fit
    to all draws takes two, of which the second removes the rounding of the normal equations
    (corrected seminormal equations; Björck 1987, doi:10.1016/0024-3795(87)90101-7). A deletion
    takes one from there. As its Gram matrix is that of the weights before they change, its error is
    of second order in that change.
    """
    # A Gram matrix without a block is the whole one minus the block's: the products for all blocks
    # cost as much as those for all draws once. A pass that all deletions share took a seventh of
    # the time.
    parts = [_gram(weights[rows], features[rows]) for rows in members]
    whole = _Gram(
        sum(gram.total for gram in parts),
        np.sum([gram.mean for gram in parts], axis=0),
        np.sum([gram.square for gram in parts], axis=0),
    )
    centred = (values - weights @ values)[:, None]
    coefficients = np.zeros((levels.number, features.shape[1]))
    residuals = np.repeat(centred, levels.number, axis=1)
    # From zero, so that the first step is the fit itself and the second one its refinement.
    for _ in range(2):
        (gradient,), _ = levels.gradients(weights[None], residuals, features)
        coefficients = coefficients + levels.step(whole.covariance(), gradient, coefficients)
        residuals = centred - features @ coefficients.T
    means = kept @ features
    gradients, deleted = levels.gradients(kept, residuals, features)
    held_out = np.empty_like(residuals)
    for block, (rows, gram) in enumerate(zip(members, parts, strict=True)):
        change = levels.step(whole.without(gram).covariance(), gradients[block], coefficients)
        # The mean residual without the block, at the coefficients without it.
        deleted[block] -= change @ means[block]
        held_out[rows] = residuals[rows] - features[rows] @ change.T
    middle = weights @ values
    return _NodeFit(middle + weights @ residuals, middle + deleted, middle + held_out)


def _gram(weights: Float[np.ndarray, " n"], features: Float[np.ndarray, "n q"]) -> _Gram:
    return _Gram(float(weights.sum()), weights @ features, _second_moments(weights, features))


class _Levels(NamedTuple):
    """The columns of the features that each level of a family uses.

    sizes : of the polynomials of each degree from zero, which lead. kernel_size : of those used
        with the kernel.
    num_landmarks : columns of the kernel, the last ones.
    """

    sizes: tuple[int, ...]
    kernel_size: int
    num_landmarks: int

    @property
    def number(self) -> int:
        return len(self.sizes) + (len(PENALTIES) if self.num_landmarks else 0)

    def gradients(
        self,
        weights: Float[np.ndarray, "b n"],
        residuals: Float[np.ndarray, "n g"],
        features: Float[np.ndarray, "n q"],
    ) -> tuple[Float[np.ndarray, "b g q"], Float[np.ndarray, "b g"]]:
        """Return Σ_n w_n x_n (r_n − r̄) for each row of normalised weights and each level, and the
        means r̄.

        Only the columns of a level are filled.
        """
        means = weights @ residuals
        sums = np.zeros((*means.shape, features.shape[1]))
        for level in range(1, self.number):
            size = self.sizes[level] if level < len(self.sizes) else features.shape[1]
            around = residuals[:, level] - means[:, level, None]
            sums[:, level, :size] = (weights * around) @ features[:, :size]
        return sums, means

    def step(
        self,
        covariance: Float[np.ndarray, "q q"],
        gradient: Float[np.ndarray, "g q"],
        coefficients: Float[np.ndarray, "g q"],
    ) -> Float[np.ndarray, "g q"]:
        """Return the change of the coefficients, zero outside each level, by which the penalised
        gradient vanishes."""
        top, kernel = self.sizes[-1], slice(self.sizes[-1], None)
        scale = np.ones(len(covariance))
        # Features of unit norm: a cubic of a far draw is 1e6 times a linear one, and one ridge
        # could not serve both.
        norm = np.sqrt(np.diagonal(covariance)[:top])
        scale[:top] = 1.0 / np.where(norm > 0, norm, 1.0)
        gram = covariance * np.outer(scale, scale) + RIDGE * max(len(scale), 1) * np.eye(len(scale))
        slopes = gradient * scale
        factor, plain = _factor(gram[:top, :top]), len(self.sizes)
        change = np.zeros_like(gradient)
        # One solve for all degrees: the first entries of L⁻¹x depend on the first of x only, and
        # L⁻ᵀ keeps last zeros.
        beyond = np.arange(top)[:, None] >= np.array(self.sizes)
        half = np.where(beyond, 0.0, solve_lower(factor, slopes[:plain, :top].T))
        change[:plain, :top] = np.where(beyond, 0.0, solve_lower(factor, half, transposed=True)).T
        if self.num_landmarks:
            # The kernel is what its columns have that the polynomials, which are not penalised,
            # have not.
            size = self.kernel_size
            lower = factor[:size, :size]
            white = solve_lower(
                lower, np.concatenate([gram[:size, kernel], slopes[plain:, :size].T], axis=1)
            )
            # Block elimination: the Schur complement of the polynomials is what is left to the
            # kernel, and only it has a penalty.
            shared, half = white[:, : self.num_landmarks], white[:, self.num_landmarks :]
            schur = gram[kernel, kernel] - shared.T @ shared
            for level, penalty in enumerate(PENALTIES):
                slope = (
                    slopes[plain + level, kernel] - penalty * coefficients[plain + level, kernel]
                )
                right = slope - shared.T @ half[:, level]
                change[plain + level, kernel] = PositiveMatrix(
                    schur + penalty * np.eye(len(schur))
                ).solve(right[:, None])[:, 0]
            solved = change[plain:, kernel].T
            change[plain:, :size] = solve_lower(lower, half - shared @ solved, transposed=True).T
        return change * scale


def _levels(family: Family, d: int) -> _Levels:
    sizes = tuple(num_polynomial_features(d, degree) for degree in range(family.degree + 1))
    kernel_size = num_polynomial_features(d, family.kernel_degree) if family.num_landmarks else 0
    return _Levels(sizes, kernel_size, family.num_landmarks)
