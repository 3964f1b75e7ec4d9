"""The gradient Gram factorised by projection: exact solve, log determinant and conditional covariances."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float

from mcmcpost.gp._gradient_gram import GradientGram, cross_blocks, span_basis
from mcmcpost.gp._scalar_profile import ScalarProfile
from mcmcpost.linsolve import Factor, factorise


class ProjectedFactor(NamedTuple):
    """Cholesky factors of the two parts of the system.

    basis : (d, q) orthonormal, or None for all of space. inside : factor of the system in the q coordinates.
    outside : (n, n) factor of A₁ + σ²I, the system of each of the d − q other directions.
    nugget : the larger of the two multiples of the identity that factorisation had to add; raised : whether it is
    above its floor, 8 eps times the largest diagonal entry.
    """

    basis: Float[Array, "d q"] | None
    inside: Float[Array, "i i"]
    outside: Float[Array, "n n"]
    nugget: Float[Array, ""]
    raised: Bool[Array, ""]

    def into(self, V: Float[Array, "n d"]) -> Float[Array, "n q"]:
        """Return white vectors in the coordinates of the basis."""
        return V if self.basis is None else V @ self.basis


class Conditional(NamedTuple):
    """Covariance of value and white gradient at one point, [1 ⊕ B] inside [1 ⊕ B]ᵀ + outside (I − BBᵀ) on gradients.

    inside : (1 + k, 1 + k). outside : scalar. basis : (d, k) orthonormal, its last column zero where the point lies in
    the span of the data.
    """

    inside: Float[Array, "e e"]
    outside: Float[Array, ""]
    basis: Float[Array, "d k"]


def projected_factor(gram: GradientGram) -> ProjectedFactor:
    """Factorise: inside the span of the points a gradient Gram in q dimensions, outside it A₁ for all directions.

    SPD and of order n·q, with no 1/κ″ (MATH.md section 4, better than Woodbury). A factorisation that breaks down has
    its nugget raised tenfold, which the record says.
    """
    basis = span_basis(gram.points, stationary=gram.stationary)
    small = gram if basis is None else gram.project(basis)
    outer = outside_matrix(gram)
    inside, outside = floored_cholesky(small.dense()), floored_cholesky(outer)
    nugget = jnp.maximum(inside.nugget, outside.nugget)
    return ProjectedFactor(basis, inside.lower, outside.lower, nugget, inside.raised | outside.raised)


def outside_matrix(gram: GradientGram) -> Float[Array, "n n"]:
    """Return A₁ + σ²I (n, n)."""
    return gram.terms.first + gram.noise * jnp.eye(gram.shape[0], dtype=gram.points.dtype)


def floored_cholesky(matrix: Float[Array, "i i"]) -> Factor:
    """Factorise matrix + nugget·I, the nugget at first 8 eps times the largest diagonal entry, raised on breakdown."""
    floor = 8 * jnp.finfo(matrix.dtype).eps * jnp.max(jnp.diagonal(matrix))
    return factorise(matrix, jnp.ones(matrix.shape[0], matrix.dtype), floor)


def factor_solve(factor: ProjectedFactor, right: Float[Array, "n w"], d: int) -> Float[Array, "n w"]:
    """Return (K + σ²I)⁻¹ right for observations (n, w) of points in d dimensions."""
    values, gradients = right[:, : right.shape[1] - d], right[:, right.shape[1] - d :]
    within = factor.into(gradients)
    stacked = jnp.concatenate([values, within], axis=1)
    solved = cho_solve((factor.inside, True), stacked.reshape(-1)).reshape(stacked.shape)
    if factor.basis is None:
        return solved
    along = solved[:, values.shape[1] :]
    across = cho_solve((factor.outside, True), gradients - within @ factor.basis.T)
    return jnp.concatenate([solved[:, : values.shape[1]], along @ factor.basis.T + across], axis=1)


def conditional(
    profile: ScalarProfile, gram: GradientGram, factor: ProjectedFactor, x: Float[Array, " d"]
) -> Conditional:
    """Return the posterior covariance of value and gradient at one white point, without any d×d matrix.

    The point adds one direction e to the basis. The data's gradients along e see A₁ and the rank-one terms of x; the
    remaining directions see A₁ alone, so each has the variance a₁(x, x) − a₁ᵀ(A₁ + σ²I)⁻¹a₁.
    """
    d = gram.points.shape[1]
    if factor.basis is None:
        basis, here, points = jnp.eye(d, dtype=x.dtype), x, gram.points
    else:
        within = factor.basis.T @ x
        rest = x - factor.basis @ within
        rest = rest - factor.basis @ (factor.basis.T @ rest)
        length = jnp.linalg.norm(rest)
        apart = length > 8 * jnp.finfo(x.dtype).eps * jnp.linalg.norm(x)
        direction = jnp.where(apart, rest / jnp.where(apart, length, 1), 0)
        basis = jnp.concatenate([factor.basis, direction[:, None]], axis=1)
        here = jnp.append(within, jnp.where(apart, length, 0))
        points = jnp.pad(gram.points @ factor.basis, ((0, 0), (0, 1)))
    q = basis.shape[1] - (factor.basis is not None)
    terms, own = profile.terms(x[None], gram.points), profile.terms(x[None], x[None], same=True)
    prior = cross_blocks(profile.stationary, own, here[None], here[None])[0, :, 0]
    cross = cross_blocks(profile.stationary, terms, here[None], points)[0]
    seen = cross[:, :, 1 - gram.with_values : 1 + q].reshape(prior.shape[0], -1)
    half = solve_triangular(factor.inside, seen.T, lower=True)
    inside = prior - half.T @ half
    aside = solve_triangular(factor.outside, terms.first[0], lower=True)
    if factor.basis is not None:
        across = solve_triangular(factor.outside, cross[:, :, -1].T, lower=True)
        inside = inside - across.T @ across
    return Conditional(inside, own.first[0, 0] - aside @ aside, basis)


def joint_samples(
    profile: ScalarProfile,
    gram: GradientGram,
    right: Float[Array, "n w"],
    new: Float[Array, "m d"],
    key: Array,
    num_samples: int,
) -> Float[Array, "s m e"]:
    """Draw values and white gradients (s, m, 1 + d) at white points from the joint posterior.

    Exact: in the span of all n + m points one dense system of order n·q, outside it a matrix normal with the row
    covariance of A₁ given the data.
    """
    d = gram.points.shape[1]
    m = new.shape[0]
    basis = span_basis(jnp.concatenate([gram.points, new]), stationary=profile.stationary)
    whole = jnp.eye(d, dtype=new.dtype) if basis is None else basis
    data, here = gram.project(whole), new @ whole
    first = 1 - gram.with_values
    terms, own = profile.terms(new, gram.points), profile.terms(new, new, same=True)
    e = 1 + here.shape[1]
    inner = floored_cholesky(data.dense()).lower
    cross = cross_blocks(profile.stationary, terms, here, data.points)[:, :, :, first:].reshape(m * e, -1)
    prior = cross_blocks(profile.stationary, own, here, here).reshape(m * e, m * e)
    half = solve_triangular(inner, cross.T, lower=True)
    gradients = right[:, right.shape[1] - d :]
    observed = jnp.concatenate([right[:, : right.shape[1] - d], gradients @ whole], axis=1)
    mean = half.T @ solve_triangular(inner, observed.reshape(-1), lower=True)
    within_key, across_key = jax.random.split(key)
    white = jax.random.normal(within_key, (num_samples, m * e), new.dtype)
    drawn = mean[None] + white @ floored_cholesky(prior - half.T @ half).lower.T
    drawn = drawn.reshape(num_samples, m, e)
    values, gradient = drawn[..., :1], drawn[..., 1:] @ whole.T
    if basis is not None:
        outer = floored_cholesky(outside_matrix(gram)).lower
        half = solve_triangular(outer, terms.first.T, lower=True)
        rows = floored_cholesky(own.first - half.T @ half).lower
        noise = jnp.einsum("ij,sjd->sid", rows, jax.random.normal(across_key, (num_samples, m, d), new.dtype))
        noise = noise + (half.T @ solve_triangular(outer, gradients, lower=True))[None]
        gradient = gradient + noise - (noise @ whole) @ whole.T
    return jnp.concatenate([values, gradient], axis=-1)
