"""The pooled, continuous path: every draw of the ladder controls the mean log likelihood at every temperature."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.evidence.ladder import PATH_POWER
from mcmcpost.evidence.mbar import log_mixture, solve_free_energies
from mcmcpost.kernels import SquaredExponential
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
    """

    points: Float[Array, "n d"]
    log_likelihood: Float[Array, " n"]
    gradient_log_likelihood: Float[Array, "n d"]
    gradient_log_prior: Float[Array, "n d"]
    blocks: Int[Array, " n"]
    members: Int[Array, "k l"]
    rungs: Int[Array, " n"]


class Mixtures(NamedTuple):
    """MBAR on all draws and without each of k blocks.

    free_energies : (k+1, t); log_densities : (k+1, n) log of the mixture density of the draws kept, first all of them.
    num_steps, converged : of the iterations.
    """

    free_energies: Float[Array, "k t"]
    log_densities: Float[Array, "k n"]
    num_steps: Int[Array, ""]
    converged: Bool[Array, ""]


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

    mean: Float[Array, "k g"]
    ess: Float[Array, " k"]
    variance_ratio: Float[Array, "k g"]
    integral: Float[Array, " g"]
    crossfit: Float[Array, " g"]
    deleted: Float[Array, "b g"]
    influence: Float[Array, "n g"]


def path_quadrature(
    num_nodes: int, power: float = PATH_POWER
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Return Gauss–Legendre temperatures and weights of ∫₀¹ μ(s^a)·a s^(a−1) ds, with the power a (docs/mathematics.md
    section 3)."""
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    s = 0.5 * (nodes + 1.0)
    return s**power, 0.5 * weights * power * s ** (power - 1.0)


@partial(jax.jit, static_argnames="num_blocks")
def solve_mixtures(
    temperatures: Float[Array, " t"], pooled: PooledDraws, start: Float[Array, " t"], *, num_blocks: int
) -> Mixtures:
    """Solve MBAR on all draws and again without each block."""
    rung_of = jax.nn.one_hot(pooled.rungs, len(temperatures), dtype=start.dtype)

    def solve(guess: Array, left_out: Array) -> tuple[Array, tuple[Array, Array, Array, Array]]:
        counts = (pooled.blocks != left_out).astype(start.dtype)
        sizes = counts @ rung_of
        found = solve_free_energies(temperatures, pooled.log_likelihood, counts, sizes, guess)
        mixture = log_mixture(temperatures, pooled.log_likelihood, sizes, found.values)
        return found.values, (found.values, mixture, found.num_steps, found.converged)

    # Each solve starts from the one before: a block less changes little.
    _, (values, mixtures, steps, converged) = jax.lax.scan(solve, start, jnp.arange(-1, num_blocks))
    return Mixtures(values, mixtures, steps.sum(), converged.all())


type _Totals = tuple[Array, ...]
"""The integrals that a scan over the nodes adds up: see `PathFit`, from `integral` on."""


class _Basis(NamedTuple):
    """Functions of mean zero at one temperature: polynomial ones, orthonormal under the weights, low degrees first;
    then K₀(·, landmarks)L⁻ᵀ with K₀ = LLᵀ among landmarks, whose coefficients have the norm of the kernel's space.

    centred : (n, q) minus their weighted mean. offset : (q,) that mean, whose expectation under the target is zero.
    """

    centred: Float[Array, "n q"]
    offset: Float[Array, " q"]


@jax.jit
def weighted_ess(temperatures: Float[Array, " k"], pooled: PooledDraws, mixtures: Mixtures) -> Float[Array, " k"]:
    """Return Kish's effective number of the draws as weighted at each temperature."""
    return jax.lax.map(lambda t: 1.0 / jnp.sum(_weights(t, pooled, mixtures.log_densities[0]) ** 2), temperatures)


@partial(jax.jit, static_argnames="family")
def fit_path(
    temperatures: Float[Array, " k"],
    quadrature: Float[Array, " k"],
    pooled: PooledDraws,
    mixtures: Mixtures,
    *,
    family: Family,
) -> PathFit:
    """Fit the weighted control variates of `family` at each temperature on all draws and without each block.

    At t the draws weigh w_n ∝ exp(tℓ_n)/Σ_j m_j exp(t_jℓ_n − f_j) and the regression of ℓ on Stein features with the
    score t∇ℓ + ∇log p has the intercept μ(t) (docs/mathematics.md section 3). Every deletion has its own f_j, weights
    and coefficients; what it changes in the weights of the other draws is projected on a few principal components (see
    `_weight_changes`), so that a few Gram matrices serve all deletions. The features of lower degrees come first, so
    their fits are leading blocks of one Gram matrix. A semi-exact level adds a squared exponential Stein kernel at J
    landmarks, drawn systematically by the weights, with a ridge. Polynomials and kernel are in coordinates standardised
    at each temperature. Memory is O(n(q + J + blocks)).
    """
    values = _finite(pooled)
    d = pooled.points.shape[1]

    def node(carry: _Totals, at: tuple[Array, Array]) -> tuple[_Totals, tuple[Array, ...]]:
        t, step = at
        weights = _weights(t, pooled, mixtures.log_densities[0])
        basis = _basis_at(t, pooled, weights, family)

        mine, patterns = _weight_changes(weights, mixtures)
        grams = jax.lax.map(lambda change: _second_moments(weights * change, basis.centred), patterns)

        def without(block: Array) -> tuple[Array, Array]:
            rows = pooled.members[block]
            changed = weights * (mine[block] @ patterns)
            own = changed.at[rows].get(mode="fill", fill_value=0.0)
            kept = changed.at[rows].set(0.0, mode="drop")
            lost = _second_moments(own, basis.centred.at[rows].get(mode="fill", fill_value=0.0))
            total = kept.sum()
            moments = (jnp.tensordot(mine[block], grams, 1) - lost) / total
            return _weighted_regression(kept / total, moments, basis, values, family, d)

        full = _weighted_regression(weights, _second_moments(weights, basis.centred), basis, values, family, d)
        parts = jax.lax.map(without, jnp.arange(len(pooled.members)))
        means, coefficients = (jnp.concatenate([one[None], rest]) for one, rest in zip(full, parts, strict=True))

        def residual(of_blocks: Float[Array, "b q"]) -> Array:
            # Each draw is predicted by the fit that did not see its block.
            mine = of_blocks[pooled.blocks]
            return values - jnp.sum(basis.centred * mine, axis=1) - mine @ basis.offset

        residuals = jax.lax.map(residual, jnp.moveaxis(coefficients[1:], 1, 0))
        centre = residuals @ weights
        spread = (residuals - centre[:, None]) ** 2 @ weights
        influence = (weights[None, :] * (residuals - centre[:, None])).T
        carry = tuple(
            total + step * part for total, part in zip(carry, (means[0], centre, means[1:], influence), strict=True)
        )
        plain = weights @ values
        return carry, (means[0], 1.0 / jnp.sum(weights**2), weights @ (values - plain) ** 2 / spread)

    g = family.num_levels
    start: _Totals = (jnp.zeros(g), jnp.zeros(g), jnp.zeros((len(pooled.members), g)), jnp.zeros((len(values), g)))
    total, (mean, ess, ratio) = jax.lax.scan(node, start, (temperatures, quadrature))
    return PathFit(mean, ess, ratio, *total)


@partial(jax.jit, static_argnames="family")
def path_integral(
    temperatures: Float[Array, " k"],
    quadrature: Float[Array, " k"],
    pooled: PooledDraws,
    mixtures: Mixtures,
    *,
    family: Family,
) -> Float[Array, " g"]:
    """Return ∫μ dt of every level on all draws alone, for another quadrature rule at little cost."""
    values = _finite(pooled)

    def mean(t: Array) -> Array:
        weights = _weights(t, pooled, mixtures.log_densities[0])
        basis = _basis_at(t, pooled, weights, family)
        moments = _second_moments(weights, basis.centred)
        return _weighted_regression(weights, moments, basis, values, family, pooled.points.shape[1])[0]

    return quadrature @ jax.lax.map(mean, temperatures)


def _finite(pooled: PooledDraws) -> Float[Array, " n"]:
    return jnp.where(jnp.isfinite(pooled.log_likelihood), pooled.log_likelihood, 0.0)


def _weights(temperature: Float[Array, ""], pooled: PooledDraws, log_density: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return the normalised weights of all draws at a positive temperature."""
    known = jnp.isfinite(pooled.log_likelihood)
    return jax.nn.softmax(jnp.where(known, temperature * _finite(pooled) - log_density, -jnp.inf))


def _weight_changes(weights: Float[Array, " n"], mixtures: Mixtures) -> tuple[Float[Array, "k r"], Float[Array, "r n"]]:
    """Return factors of the (k, n) changes of the weights when each of k blocks is left out, before normalisation.

    Without a block the mixture density of the draws changes, and the weight of each of the others by its inverse: by
    little, and smoothly in the log likelihood. The leading `NUM_CHANGES` principal components under the weights hold
    that to rounding for two rungs, and to a small part of the change for many.
    """
    change = jnp.exp(mixtures.log_densities[:1] - mixtures.log_densities[1:])
    change = jnp.where((weights > NEGLIGIBLE)[None, :], change, 0.0)
    leading = jnp.linalg.eigh((change * weights[None, :]) @ change.T)[1][:, -NUM_CHANGES:]
    return leading, leading.T @ change


def _second_moments(weights: Float[Array, " n"], features: Float[Array, "n q"]) -> Float[Array, "q q"]:
    return features.T @ (weights[:, None] * features)


def _basis_at(
    temperature: Float[Array, ""], pooled: PooledDraws, weights: Float[Array, " n"], family: Family
) -> _Basis:
    """Return the basis at one temperature, standardised twice: the coordinates first, then the features."""
    if family.degree == 0:
        return _Basis(jnp.zeros((len(weights), 0)), jnp.zeros(0))
    mean = weights @ pooled.points
    centred = pooled.points - mean[None, :]
    covariance = centred.T @ (weights[:, None] * centred)
    scale = jnp.sqrt(jnp.diagonal(covariance))
    scale = jnp.where(scale > 0, scale, 1.0)
    correlation = covariance / jnp.outer(scale, scale) + RIDGE * jnp.eye(len(scale))
    lower = scale[:, None] * jnp.linalg.cholesky(correlation)
    z = solve_triangular(lower, centred.T, lower=True).T
    scores = (temperature * pooled.gradient_log_likelihood + pooled.gradient_log_prior) @ lower
    polynomials = _orthonormal(weights, polynomial_features(z, scores, polynomial_exponents(z.shape[1], family.degree)))
    if not family.num_landmarks:
        return polynomials
    landmarks = _landmark_features(weights, z, scores, family.num_landmarks)
    offset = weights @ landmarks
    return _Basis(
        jnp.concatenate([polynomials.centred, landmarks - offset[None, :]], axis=1),
        jnp.concatenate([polynomials.offset, offset]),
    )


def _orthonormal(weights: Float[Array, " n"], features: Float[Array, "n q"]) -> _Basis:
    # Far draws of other rungs may overflow the features; their weight is nil.
    features = jnp.where((weights > NEGLIGIBLE)[:, None], features, 0.0)
    norm = jnp.sqrt(weights @ features**2)
    features = features / jnp.where(norm > 0, norm, 1.0)[None, :]
    offset = weights @ features
    features = features - offset[None, :]
    gram = features.T @ (weights[:, None] * features)
    factor = jnp.linalg.cholesky(gram + RIDGE * len(gram) * jnp.eye(len(gram)))
    return _Basis(
        solve_triangular(factor, features.T, lower=True).T,
        solve_triangular(factor, offset, lower=True),
    )


def _landmark_features(
    weights: Float[Array, " n"], z: Float[Array, "n d"], scores: Float[Array, "n d"], num_landmarks: int
) -> Float[Array, "n J"]:
    """Return K₀(z, landmarks)L⁻ᵀ, the kernel scaled to a weighted mean diagonal of about one."""
    kernel = SquaredExponential(jnp.asarray(LENGTHSCALE * np.sqrt(z.shape[1])))
    seen = (weights > NEGLIGIBLE)[:, None]
    z, scores = jnp.where(seen, z, 0.0), jnp.where(seen, scores, 0.0)
    at = jnp.searchsorted(jnp.cumsum(weights), (jnp.arange(num_landmarks) + 0.5) / num_landmarks)
    chosen = jnp.minimum(at, len(weights) - 1)
    among = stein_gram(kernel, z[chosen], scores[chosen])
    size = jnp.trace(among) / num_landmarks
    factor = jnp.linalg.cholesky(among / size + JITTER * num_landmarks * jnp.eye(num_landmarks))
    across = stein_gram(kernel, z[chosen], scores[chosen], z, scores) / size
    return solve_triangular(factor, across, lower=True).T


def _weighted_regression(
    weights: Float[Array, " n"],
    moments: Float[Array, "q q"],
    basis: _Basis,
    values: Float[Array, " n"],
    family: Family,
    d: int,
) -> tuple[Float[Array, " g"], Float[Array, "g q"]]:
    """Return intercepts and coefficients, zero outside each level, with other weights than the basis was built for.

    moments : those of the basis under `weights`, not centred.
    """
    plain = weights @ values
    q = basis.centred.shape[1]
    mean = weights @ basis.centred
    gram = moments - jnp.outer(mean, mean) + RIDGE * max(q, 1) * jnp.eye(q)
    right = basis.centred.T @ (weights * (values - plain))
    intercepts, coefficients = [plain], [jnp.zeros(q)]

    def add(columns: np.ndarray, part: Array) -> None:
        intercepts.append(plain - (mean + basis.offset)[columns] @ part)
        coefficients.append(jnp.zeros(q).at[columns].set(part))

    polynomials = np.arange(q - family.num_landmarks)
    factor = jnp.linalg.cholesky(gram[np.ix_(polynomials, polynomials)])
    half = solve_triangular(factor, right[polynomials], lower=True)
    for level in range(1, family.degree + 1):
        size = num_polynomial_features(d, level)
        add(np.arange(size), solve_triangular(factor[:size, :size].T, half[:size]))
    if family.num_landmarks:
        size = num_polynomial_features(d, family.kernel_degree)
        columns = np.concatenate([np.arange(size), np.arange(q - family.num_landmarks, q)])
        penalised = np.arange(len(columns)) >= size
        for penalty in PENALTIES:
            system = gram[np.ix_(columns, columns)] + jnp.diag(penalty * penalised)
            add(columns, cho_solve((jnp.linalg.cholesky(system), True), right[columns]))
    return jnp.stack(intercepts), jnp.stack(coefficients)
