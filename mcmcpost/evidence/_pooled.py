"""The pooled, continuous path: every draw of the ladder controls the mean log likelihood at every temperature."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.evidence._mbar import log_mixture, solve_free_energies
from mcmcpost.stein import polynomial_exponents, polynomial_features

PATH_POWER = 5.0
"""Gauss–Legendre nodes are placed in s = t^(1/5): the path is steep near the prior."""
RIDGE = 1e-12
"""Of the squared norm of a feature: settles combinations that vanish, far below what they could control."""
NEGLIGIBLE = 1e-290


class PooledDraws(NamedTuple):
    """All draws of all rungs in one row each.

    points : (n, d) unconstrained. log_likelihood : (n,) ℓ, −∞ allowed.
    gradient_log_likelihood, gradient_log_prior : (n, d), finite (zero where ℓ = −∞).
    blocks : (n,) the jackknife block of each draw: contiguous in its chain, all rungs together.
    rungs : (n,) the rung of each draw.
    """

    points: Float[Array, "n d"]
    log_likelihood: Float[Array, " n"]
    gradient_log_likelihood: Float[Array, "n d"]
    gradient_log_prior: Float[Array, "n d"]
    blocks: Int[Array, " n"]
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


class PathFit(NamedTuple):
    """The controlled mean log likelihood μ(t) at k temperatures, and its integral.

    mean, plain : (k,) μ(t) with and without control. ess : (k,) Kish's effective number of the weighted draws.
    variance_ratio : (k,) weighted Var ℓ over that of the held-out residual.
    integral : ∫μ dt on all draws. crossfit : the same of the residuals r of draws held out of their fits.
    deleted : (b,) the integral without each block. influence : (n,) of each draw on `crossfit`, ∫ w_n(r_n − r̄) dt.
    """

    mean: Float[Array, " k"]
    plain: Float[Array, " k"]
    ess: Float[Array, " k"]
    variance_ratio: Float[Array, " k"]
    integral: Float[Array, ""]
    crossfit: Float[Array, ""]
    deleted: Float[Array, " b"]
    influence: Float[Array, " n"]


def path_quadrature(num_nodes: int) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Return Gauss–Legendre temperatures and weights of ∫₀¹ μ(s⁵)·5s⁴ ds (MATH.md section 3)."""
    nodes, weights = np.polynomial.legendre.leggauss(num_nodes)
    s = 0.5 * (nodes + 1.0)
    return s**PATH_POWER, 0.5 * weights * PATH_POWER * s ** (PATH_POWER - 1.0)


@partial(jax.jit, static_argnames="num_blocks")
def solve_mixtures(
    temperatures: Float[Array, " t"], pooled: PooledDraws, start: Float[Array, " t"], *, num_blocks: int
) -> Mixtures:
    """Solve MBAR on all draws and again without each block."""
    rung_of = jax.nn.one_hot(pooled.rungs, len(temperatures), dtype=start.dtype)

    def solve(left_out: Array, guess: Array) -> tuple[Array, Array, Array, Array]:
        counts = (pooled.blocks != left_out).astype(start.dtype)
        sizes = counts @ rung_of
        found = solve_free_energies(temperatures, pooled.log_likelihood, counts, sizes, guess)
        mixture = log_mixture(temperatures, pooled.log_likelihood, sizes, found.values)
        return found.values, mixture, found.num_steps, found.converged

    first = solve(jnp.asarray(-1), start)
    rest = jax.lax.map(lambda b: solve(b, first[0]), jnp.arange(num_blocks))
    values, mixtures, steps, converged = (
        jnp.concatenate([jnp.asarray(a)[None], b]) for a, b in zip(first, rest, strict=True)
    )
    return Mixtures(values, mixtures, steps.sum(), converged.all())


type _Totals = tuple[Array, Array, Array, Array]


class _Node(NamedTuple):
    """One temperature: normalised weights, features of weighted covariance one, and the weighted means of both.

    weights : (n,). centred : (n, q) features minus their weighted mean. offset : (q,) that mean, whose expectation
    under the target is zero.
    """

    weights: Float[Array, " n"]
    centred: Float[Array, "n q"]
    offset: Float[Array, " q"]


@partial(jax.jit, static_argnames="degree")
def fit_path(
    temperatures: Float[Array, " k"],
    quadrature: Float[Array, " k"],
    pooled: PooledDraws,
    mixtures: Mixtures,
    *,
    degree: int,
) -> PathFit:
    """Fit the weighted zero-variance control variate at each temperature on all draws and without each block.

    At t the draws weigh w_n ∝ exp(tℓ_n)/Σ_j m_j exp(t_jℓ_n − f_j) and the regression of ℓ on Stein features with the
    score t∇ℓ + ∇log p has the intercept μ(t) (MATH.md section 3). Every deletion has its own f_j, weights and
    coefficients. Memory is O(n(q + blocks)).

    Parameters
    ----------
    degree : of the polynomials whose Stein features control, in coordinates standardised at each temperature; zero for
        no control.
    """
    finite = jnp.isfinite(pooled.log_likelihood)
    values = jnp.where(finite, pooled.log_likelihood, 0.0)
    blocks = jnp.arange(len(mixtures.log_densities) - 1)

    def weights_at(temperature: Array, log_density: Array, kept: Array) -> Array:
        return jax.nn.softmax(jnp.where(kept & finite, temperature * values - log_density, -jnp.inf))

    def node(carry: _Totals, at: tuple[Array, Array]) -> tuple[_Totals, tuple[Array, ...]]:
        integral, crossfit, deleted, influence = carry
        t, step = at
        weights = weights_at(t, mixtures.log_densities[0], jnp.ones_like(finite))
        plain = weights @ values
        ess = 1.0 / jnp.sum(weights**2)
        if degree == 0:
            mean, fitted = plain, jnp.zeros_like(values)

            def without(block: Array) -> tuple[Array, Array]:
                w = weights_at(t, mixtures.log_densities[block + 1], pooled.blocks != block)
                return w @ values, jnp.zeros(())
        else:
            basis = _features_at(t, pooled, weights, degree)
            mean, fitted = plain - basis.offset @ (basis.centred.T @ (weights * (values - plain))), None

            def without(block: Array) -> tuple[Array, Array]:
                w = weights_at(t, mixtures.log_densities[block + 1], pooled.blocks != block)
                return _weighted_regression(w, basis, values)

        means, coefficients = jax.lax.map(without, blocks)
        if fitted is None:
            # Each draw is predicted by the fit that did not see its block.
            fitted = jnp.sum((basis.centred + basis.offset) * coefficients[pooled.blocks], axis=1)
        residual = values - fitted
        centre = weights @ residual
        carry = (
            integral + step * mean,
            crossfit + step * centre,
            deleted + step * means,
            influence + step * weights * (residual - centre),
        )
        ratio = (weights @ (values - plain) ** 2) / (weights @ (residual - centre) ** 2)
        return carry, (mean, plain, ess, ratio)

    start = (jnp.zeros(()), jnp.zeros(()), jnp.zeros(len(blocks)), jnp.zeros_like(values))
    total, (mean, plain, ess, ratio) = jax.lax.scan(node, start, (temperatures, quadrature))
    return PathFit(mean, plain, ess, ratio, *total)


@partial(jax.jit, static_argnames="degree")
def path_integral(
    temperatures: Float[Array, " k"],
    quadrature: Float[Array, " k"],
    pooled: PooledDraws,
    log_density: Float[Array, " n"],
    *,
    degree: int,
) -> Float[Array, ""]:
    """Return ∫μ dt on all draws alone, for another quadrature rule at little cost."""
    finite = jnp.isfinite(pooled.log_likelihood)
    values = jnp.where(finite, pooled.log_likelihood, 0.0)

    def mean(t: Array) -> Array:
        weights = jax.nn.softmax(jnp.where(finite, t * values - log_density, -jnp.inf))
        plain = weights @ values
        if degree == 0:
            return plain
        basis = _features_at(t, pooled, weights, degree)
        return plain - basis.offset @ (basis.centred.T @ (weights * (values - plain)))

    return quadrature @ jax.lax.map(mean, temperatures)


def _features_at(temperature: Float[Array, ""], pooled: PooledDraws, weights: Float[Array, " n"], degree: int) -> _Node:
    """Return Stein features at one temperature, standardised twice: the coordinates first, then the features."""
    mean = weights @ pooled.points
    centred = pooled.points - mean
    covariance = centred.T @ (weights[:, None] * centred)
    scale = jnp.sqrt(jnp.diagonal(covariance))
    scale = jnp.where(scale > 0, scale, 1.0)
    correlation = covariance / scale[:, None] / scale + RIDGE * jnp.eye(len(scale))
    lower = scale[:, None] * jnp.linalg.cholesky(correlation)
    z = solve_triangular(lower, centred.T, lower=True).T
    scores = (temperature * pooled.gradient_log_likelihood + pooled.gradient_log_prior) @ lower
    features = polynomial_features(z, scores, polynomial_exponents(z.shape[1], degree))
    # Far draws of other rungs may overflow the features; their weight is nil.
    features = jnp.where((weights > NEGLIGIBLE)[:, None], features, 0.0)
    norm = jnp.sqrt(weights @ features**2)
    features = features / jnp.where(norm > 0, norm, 1.0)
    offset = weights @ features
    features = features - offset
    gram = features.T @ (weights[:, None] * features)
    factor = jnp.linalg.cholesky(gram + RIDGE * len(gram) * jnp.eye(len(gram)))
    return _Node(
        weights,
        solve_triangular(factor, features.T, lower=True).T,
        solve_triangular(factor, offset, lower=True),
    )


def _weighted_regression(
    weights: Float[Array, " n"], basis: _Node, values: Float[Array, " n"]
) -> tuple[Float[Array, ""], Float[Array, " q"]]:
    """Return intercept and coefficients of the regression with other weights than the basis was built for."""
    plain, mean = weights @ values, weights @ basis.centred
    gram = basis.centred.T @ (weights[:, None] * basis.centred) - jnp.outer(mean, mean)
    gram = gram + RIDGE * len(gram) * jnp.eye(len(gram))
    right = basis.centred.T @ (weights * (values - plain))
    coefficients = cho_solve((jnp.linalg.cholesky(gram), True), right)
    return plain - (mean + basis.offset) @ coefficients, coefficients
