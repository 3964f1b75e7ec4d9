"""The gradient Gram factorised by projection: exact solves, likelihood, posterior mean and
covariance."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float

from mcmcpost.core.errors import InputError
from mcmcpost.gp import gradient_operator
from mcmcpost.solve import Factor, factorise, sampling_factor
from mcmcpost.solve.search import (
    KERNEL_MEMORY,
    LBFGS,
    Hyperparameters,
    Packing,
    TrainingProblem,
    is_positive,
)
from mcmcpost.stein import AbstractKernel, product


class DiagonalPlusLowRank(NamedTuple):
    """diag(diagonal) + factor·core·factorᵀ, for each of any leading axes.

    diagonal : (..., d). factor : (..., d, k). core : (..., k, k), symmetric.
    """

    diagonal: Float[Array | np.ndarray, "*b d"]
    factor: Float[Array | np.ndarray, "*b d k"]
    core: Float[Array | np.ndarray, "*b k k"]

    def dense(self) -> Float[np.ndarray, "*b d d"]:
        """Return the whole matrix, (..., d, d)."""
        d = self.diagonal.shape[-1]
        factor = np.asarray(self.factor)
        return np.asarray(self.diagonal)[..., None] * np.eye(d) + factor @ np.asarray(
            self.core
        ) @ np.swapaxes(factor, -1, -2)

    def entries(self) -> Float[np.ndarray, "*b d"]:
        """Return the diagonal of the whole matrix, (..., d)."""
        factor = np.asarray(self.factor)
        return np.asarray(self.diagonal) + np.sum(factor @ np.asarray(self.core) * factor, axis=-1)

    def matvec(self, v: Float[np.ndarray, "*b d"]) -> Float[np.ndarray, "*b d"]:
        """Return the product with vectors (..., d), O(dk)."""
        factor = np.asarray(self.factor)
        inside = np.asarray(self.core) @ (np.swapaxes(factor, -1, -2) @ v[..., None])
        return np.asarray(self.diagonal) * v + (factor @ inside)[..., 0]

    def solve(self, v: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
        """Return the inverse of one matrix times v (d,), O(dk² + k³); its diagonal part must not
        vanish."""
        factor, core = np.asarray(self.factor), np.asarray(self.core)
        level = np.asarray(self.diagonal)
        thin = factor / level[:, None]
        # Woodbury without the inverse of the core, which may be singular.
        inside = np.eye(core.shape[0]) + core @ (factor.T @ thin)
        return v / level - thin @ np.linalg.solve(inside, core @ (thin.T @ v))


class ProjectedFactor(NamedTuple):
    """Cholesky factors of the two parts of the system.

    basis : (d, q) orthonormal, or None for all of space. inside : factor of the system in the q
        coordinates.
    outside : (n, n) factor of A₁ + σ²I, the system of each of the d − q other directions.
    nugget : the larger of the two multiples of the identity that factorisation had to add; raised :
    whether it is above its floor, 8 eps times the largest diagonal entry.
    """

    basis: Float[Array, "d q"] | None
    inside: Float[Array, "i i"]
    outside: Float[Array, "n n"]
    nugget: Float[Array, ""]
    raised: Bool[Array, ""]

    def into(self, V: Float[Array, "n d"]) -> Float[Array, "n q"]:
        """Return white vectors in the coordinates of the basis."""
        return V if self.basis is None else V @ self.basis


class PointCovariance(NamedTuple):
    """Covariance of value and white gradient at one point, [1 ⊕ B] inside [1 ⊕ B]ᵀ + outside (I −
    BBᵀ) on gradients.

    inside : (1 + k, 1 + k). outside : scalar. basis : (d, k) orthonormal, its last column zero
    where the point lies in the span of the data.
    """

    inside: Float[Array, "e e"]
    outside: Float[Array, ""]
    basis: Float[Array, "d k"]


def projected_factor(gram: gradient_operator.GradientGram) -> ProjectedFactor:
    """Factorise: inside the span of the points a gradient Gram in q dimensions, outside it A₁ for
    all directions.

    SPD and of order n·q, with no 1/κ″ (docs/mathematics.md section 4, projection). A factorisation
    that breaks down has its nugget raised tenfold, which the record says.
    """
    basis = gradient_operator.span_basis(gram.points, stationary=gram.stationary)
    small = gram if basis is None else gram.project(basis)
    outer = outside_matrix(gram)
    inside, outside = floored_cholesky(small.dense()), floored_cholesky(outer)
    nugget = jnp.maximum(inside.nugget, outside.nugget)
    return ProjectedFactor(
        basis, inside.lower, outside.lower, nugget, inside.raised | outside.raised
    )


def outside_matrix(gram: gradient_operator.GradientGram) -> Float[Array, "n n"]:
    """Return A₁ + σ²I (n, n)."""
    return gram.terms.first + gram.noise * jnp.eye(gram.shape[0], dtype=gram.points.dtype)


def floored_cholesky(matrix: Float[Array, "i i"]) -> Factor:
    """Factorise matrix + nugget·I, the nugget at first 8 eps times the largest diagonal entry,
    raised on breakdown.

    A matrix of zeros, of data that have no prior variance, gets the nugget one: its solutions
    change nothing.
    """
    largest = jnp.max(jnp.diagonal(matrix))
    floor = jnp.where(largest > 0, 8 * jnp.finfo(matrix.dtype).eps * largest, 1)
    return factorise(matrix, jnp.ones(matrix.shape[0], matrix.dtype), floor)


def factor_solve(
    factor: ProjectedFactor, right: Float[Array, "n w"], d: int
) -> Float[Array, "n w"]:
    """Return (K + σ²I)⁻¹ right for observations (n, w) of points in d dimensions."""
    values, gradients = right[:, : right.shape[1] - d], right[:, right.shape[1] - d :]
    # The span and its complement do not see each other: two solves, and their sum.
    within = factor.into(gradients)
    stacked = jnp.concatenate([values, within], axis=1)
    solved = cho_solve((factor.inside, True), stacked.reshape(-1)).reshape(stacked.shape)
    if factor.basis is None:
        return solved
    along = solved[:, values.shape[1] :]
    across = cho_solve((factor.outside, True), gradients - within @ factor.basis.T)
    return jnp.concatenate([solved[:, : values.shape[1]], along @ factor.basis.T + across], axis=1)


def conditional(
    profile: gradient_operator.ScalarProfile,
    gram: gradient_operator.GradientGram,
    factor: ProjectedFactor,
    x: Float[Array, " d"],
) -> PointCovariance:
    """Return the posterior covariance of value and gradient at one white point, without any d×d
    matrix.

    The point adds one direction e to the basis. The data's gradients along e see A₁ and the
    rank-one terms of x; the remaining directions see A₁ alone, so each has the variance a₁(x, x) −
    a₁ᵀ(A₁ + σ²I)⁻¹a₁.
    """
    d = gram.points.shape[1]
    if factor.basis is None:
        basis, here, points = jnp.eye(d, dtype=x.dtype), x, gram.points
    else:
        within = factor.basis.T @ x
        remainder = x - factor.basis @ within
        # Once more: near the span the first projection leaves rounding of the size of what is left.
        remainder = remainder - factor.basis @ (factor.basis.T @ remainder)
        length = jnp.linalg.norm(remainder)
        # A point in the span has no direction of its own; normalised rounding would be an arbitrary
        # one.
        outside_span = length > 8 * jnp.finfo(x.dtype).eps * jnp.linalg.norm(x)
        direction = jnp.where(outside_span, remainder / jnp.where(outside_span, length, 1), 0)
        basis = jnp.concatenate([factor.basis, direction[:, None]], axis=1)
        here = jnp.append(within, jnp.where(outside_span, length, 0))
        # Data lie in the span, so that their coordinate along the new direction is zero.
        points = jnp.pad(gram.points @ factor.basis, ((0, 0), (0, 1)))
    q = basis.shape[1] - (factor.basis is not None)
    terms, at_point = (
        profile.terms(x[None], gram.points),
        profile.terms(x[None], x[None], same=True),
    )
    prior = gradient_operator.cross_blocks(profile.stationary, at_point, here[None], here[None])[
        0, :, 0
    ]
    cross = gradient_operator.cross_blocks(profile.stationary, terms, here[None], points)[0]
    # Gradients of the data in the q directions, and their values if observed, are in the dense
    # part.
    seen = cross[:, :, 1 - gram.with_values : 1 + q].reshape(prior.shape[0], -1)
    half = solve_triangular(factor.inside, seen.T, lower=True)
    inside = prior - half.T @ half
    # Along each of the remaining directions the data see A₁ alone.
    aside = solve_triangular(factor.outside, terms.first[0], lower=True)
    if factor.basis is not None:
        # Along e the rank-one terms of x act too, but the data's system is that of A₁ + σ²I.
        across = solve_triangular(factor.outside, cross[:, :, -1].T, lower=True)
        inside = inside - across.T @ across
    return PointCovariance(inside, at_point.first[0, 0] - aside @ aside, basis)


def joint_samples(
    profile: gradient_operator.ScalarProfile,
    gram: gradient_operator.GradientGram,
    right: Float[Array, "n w"],
    new: Float[Array, "m d"],
    key: Array,
    num_samples: int,
) -> Float[Array, "s m e"]:
    """Draw values and white gradients (s, m, 1 + d) at white points from the joint posterior.

    Exact: in the span of all n + m points one dense system of order n·q, outside it a matrix normal
    with the row covariance of A₁ given the data.
    """
    d = gram.points.shape[1]
    m = new.shape[0]
    # The span of old and new points: outside it all of them see A₁ alone.
    basis = gradient_operator.span_basis(
        jnp.concatenate([gram.points, new]), stationary=profile.stationary
    )
    whole = jnp.eye(d, dtype=new.dtype) if basis is None else basis
    data, here = gram.project(whole), new @ whole
    first = 1 - gram.with_values
    terms, among_new = profile.terms(new, gram.points), profile.terms(new, new, same=True)
    e = 1 + here.shape[1]
    inner = floored_cholesky(data.dense()).lower
    cross = gradient_operator.cross_blocks(profile.stationary, terms, here, data.points)[
        :, :, :, first:
    ].reshape(m * e, -1)
    prior = gradient_operator.cross_blocks(profile.stationary, among_new, here, here).reshape(
        m * e, m * e
    )
    half = solve_triangular(inner, cross.T, lower=True)
    gradients = right[:, right.shape[1] - d :]
    observed = jnp.concatenate([right[:, : right.shape[1] - d], gradients @ whole], axis=1)
    mean = half.T @ solve_triangular(inner, observed.reshape(-1), lower=True)
    within_key, across_key = jax.random.split(key)
    white = jax.random.normal(within_key, (num_samples, m * e), new.dtype)
    # What is certain has a covariance of rounding: its jitter is relative to the prior.
    drawn = (
        mean[None] + white @ sampling_factor(prior - half.T @ half, jnp.max(jnp.diagonal(prior))).T
    )
    drawn = drawn.reshape(num_samples, m, e)
    values, gradient = drawn[..., :1], drawn[..., 1:] @ whole.T
    if basis is not None:
        outer = floored_cholesky(outside_matrix(gram)).lower
        half = solve_triangular(outer, terms.first.T, lower=True)
        rows = sampling_factor(
            among_new.first - half.T @ half, jnp.max(jnp.diagonal(among_new.first))
        )
        # Matrix normal: rows (m, m) correlate points, the d directions are independent.
        noise = jnp.einsum(
            "ij,sjd->sid", rows, jax.random.normal(across_key, (num_samples, m, d), new.dtype)
        )
        noise = noise + (half.T @ solve_triangular(outer, gradients, lower=True))[None]
        # The complement only: what lies in the span was drawn above.
        gradient = gradient + noise - (noise @ whole) @ whole.T
    return jnp.concatenate([values, gradient], axis=-1)


BATCH = 32
"""New points whose covariance blocks are formed together."""


class Spread(NamedTuple):
    """Posterior variances at white points. value : (m,). gradient : (m, d)."""

    value: Float[Array, " m"]
    gradient: Float[Array, "m d"]


@eqx.filter_jit
def posterior_mean(
    profile: gradient_operator.ScalarProfile,
    points: Float[Array, "n d"],
    weights: Float[Array, "n w"],
    new: Float[Array, "m d"],
) -> Float[Array, "m e"]:
    """Return values and gradients (m, 1 + d) at new points: the representation Σ_b cov(·, b)
    weights_b."""
    return gradient_operator.cross_matmul(
        profile.stationary, profile.terms(new, points), new, points, weights
    )


@eqx.filter_jit
def posterior_hessian(
    profile: gradient_operator.ScalarProfile,
    points: Float[Array, "n d"],
    weights: Float[Array, "n w"],
    new: Float[Array, "m d"],
) -> DiagonalPlusLowRank:
    """Return the mean of the Hessian at new points, tr(M̆)I + [X̃ Z][M M̂; M̂ 0][X̃ Z]ᵀ, rank 2n.

    M = A₃∘(δ·z) − A₂∘α, M̂ = A₂ and M̆ = A₂∘(δ·z) − A₁∘α for stationary kernels; M = A₃∘(x·z) +
    A₂∘α, M̂ = A₂ and M̆ = 0 for dot products. The paper's (12), with the M matrices of D.1 and D.2
    as corrected.
    """
    n, d = points.shape
    m = new.shape[0]
    alpha, Z = gradient_operator.split_weights(weights, d)
    terms = profile.terms(new, points, third=True)
    along = product(new, Z)
    if profile.stationary:
        along = along - jnp.sum(points * Z, 1)[None, :]
    outer = jnp.asarray(terms.third) * along
    trace = terms.second * along if profile.stationary else jnp.zeros_like(along)
    if alpha is not None:
        sign = -1.0 if profile.stationary else 1.0
        outer = outer + sign * terms.second * alpha[None, :]
        trace = trace - terms.first * alpha[None, :] if profile.stationary else trace
    # (m, n, d) is the factor that is returned, not a temporary.
    ends = jnp.broadcast_to(points[None], (m, n, d))
    ends = new[:, None] - ends if profile.stationary else ends
    factor = jnp.swapaxes(
        jnp.concatenate([ends, jnp.broadcast_to(Z[None], (m, n, d))], axis=1), 1, 2
    )
    corner = jax.vmap(jnp.diag)
    core = jnp.block(
        [
            [corner(outer), corner(terms.second)],
            [corner(terms.second), jnp.zeros((m, n, n), new.dtype)],
        ]
    )
    return DiagonalPlusLowRank(jnp.broadcast_to(jnp.sum(trace, 1)[:, None], (m, d)), factor, core)


@eqx.filter_jit
def posterior_spread(
    profile: gradient_operator.ScalarProfile,
    gram: gradient_operator.GradientGram,
    factor: ProjectedFactor,
    new: Float[Array, "m d"],
) -> Spread:
    """Return the posterior variances of value and gradient at new points."""

    def one(x: Float[Array, " d"]) -> Spread:
        inside, outside, basis = conditional(profile, gram, factor, x)
        # diag of v(I − BBᵀ) + BSBᵀ without a d×d matrix.
        gradient = outside * (1 - jnp.sum(basis**2, 1)) + jnp.sum(
            (basis @ inside[1:, 1:]) * basis, 1
        )
        return Spread(jnp.maximum(inside[0, 0], 0), jnp.maximum(gradient, 0))

    return jax.lax.map(one, new, batch_size=BATCH)


@eqx.filter_jit
def posterior_gradient_covariance(
    profile: gradient_operator.ScalarProfile,
    gram: gradient_operator.GradientGram,
    factor: ProjectedFactor,
    x: Float[Array, " d"],
) -> DiagonalPlusLowRank:
    """Return the covariance of the gradient at one point, v I + B(S − vI)Bᵀ, never d×d."""
    inside, outside, basis = conditional(profile, gram, factor, x)
    k = basis.shape[1]
    diagonal = jnp.full(x.shape, outside)
    return DiagonalPlusLowRank(
        diagonal, basis, inside[1:, 1:] - outside * jnp.eye(k, dtype=x.dtype)
    )


compiled_factor = eqx.filter_jit(projected_factor)

compiled_samples = eqx.filter_jit(joint_samples)

GRADIENT_RANGE = 1e3
"""Parameters of the kernel stay within this factor of their start."""

GRADIENT_NOISE_BOUNDS = np.array([-np.log(1e8), np.log(1e8)])

TUNING_ORDER = 1200
"""Points are thinned for tuning until the projected system has at most this order."""


class GradientTuned(NamedTuple):
    """A kernel and noise at a maximum of the marginal likelihood, and the evaluations of it."""

    kernel: AbstractKernel
    noise: float
    num_evaluations: int


def white_data(
    kernel: AbstractKernel, X: Float[Array, "n d"], observations: Float[Array, "n w"]
) -> tuple[Float[Array, "n d"], Float[Array, "n w"]]:
    """Return points and observations (n, d or 1 + d) in white coordinates."""
    profile = gradient_operator.scalar_profile("GradientGP", kernel)
    root = profile.root(X)
    points = (X - profile.origin(X)[None]) * root[None]
    d = X.shape[1]
    values, gradients = (
        observations[:, : observations.shape[1] - d],
        observations[:, observations.shape[1] - d :],
    )
    return points, jnp.concatenate([values, gradients / root[None]], axis=1)


def gradient_log_likelihood(
    kernel: AbstractKernel,
    noise: Float[Array, ""],
    X: Float[Array, "n d"],
    observations: Float[Array, "n w"],
) -> Float[Array, ""]:
    """Return log N(observations; 0, K + σ²(I⊗Λ)), differentiable in kernel and noise.

    −½(gᵀK⁻¹g + (d−q) log det A₁ + log det(inside) + N log det Λ + Nw log 2π), docs/mathematics.md
    section 4; values have noise σ². Its derivative goes through no QR: holding the basis still
    leaves that of the log determinant exact, because a rank-one term leaves the basis at second
    order only, and the quadratic form is 2gᵀz − zᵀKz with z = K⁻¹g held still.
    """
    profile = gradient_operator.scalar_profile("GradientGP", kernel)
    n, d = X.shape
    points, white = white_data(kernel, X, observations)
    gram = gradient_operator.gradient_gram(
        profile, points, noise, with_values=observations.shape[1] > d
    )
    # See above: the factor is held still, and the derivatives enter through z and the log
    # determinants.
    factor = projected_factor(jax.lax.stop_gradient(gram))
    z = factor_solve(factor, jax.lax.stop_gradient(white), d)
    quadratic = 2 * jnp.sum(z * white) - jnp.sum(z * gram.matmul(z))
    small = gram if factor.basis is None else gram.project(factor.basis)
    # N log det Λ, Λ = root² (section 4, Projection in place of Woodbury).
    logdet = _logdet(factor.inside, small.dense()) + 2 * n * jnp.sum(jnp.log(profile.root(X)))
    if factor.basis is not None:
        logdet = logdet + (d - factor.basis.shape[1]) * _logdet(
            factor.outside, outside_matrix(gram)
        )
    return -0.5 * (quadratic + logdet + white.size * np.log(2 * np.pi))


def _logdet(lower: Float[Array, "i i"], matrix: Float[Array, "i i"]) -> Float[Array, ""]:
    """Return the log determinant with its derivative tr(M⁻¹∂M), given the factor of the matrix."""
    still = jax.lax.stop_gradient(matrix)
    # tr(M⁻¹∂M) through the matrix itself; reverse mode through the Cholesky factor is not needed.
    inverse = cho_solve((lower, True), jnp.eye(len(lower), dtype=lower.dtype))
    return 2 * jnp.sum(jnp.log(jnp.diagonal(lower))) + jnp.sum(inverse * (matrix - still))


def tune_gradient_kernel(
    kernel: AbstractKernel,
    noise: float,
    X: Float[np.ndarray, "n d"],
    observations: Float[np.ndarray, "n w"],
    *,
    free_noise: bool,
    max_steps: int = 50,
) -> GradientTuned:
    """Maximise the marginal likelihood over the positive parameters of the kernel, and the noise if
    it is free.

    Bounded L-BFGS on their logarithms from the kernel given. The cost is that of a Cholesky
    factorisation per step, so more points than `TUNING_ORDER` allows are thinned evenly.

    Raises
    ------
    ValueError : the likelihood is not finite at the start.
    """
    scalar = gradient_operator.scalar_profile("GradientGP", kernel)
    n = _tuning_points(scalar.stationary, *X.shape, with_values=observations.shape[1] > X.shape[1])
    rows = np.linspace(0, len(X) - 1, n).round().astype(int)
    data = jnp.asarray(X[rows]), jnp.asarray(observations[rows])
    start = Hyperparameters(kernel, np.asarray(noise))
    packing = Packing(start, free=Hyperparameters(is_positive, free_noise))
    initial = packing.pack(start)
    bounds = packing.box(initial, GRADIENT_RANGE)
    level = packing.where(Hyperparameters(False, True))
    # Relative to the start, which is in units of the data.
    bounds[level] = initial[level, None] + GRADIENT_NOISE_BOUNDS[None]
    loss = functools.partial(_loss_and_slope, packing, *data)
    best = LBFGS(max_steps, memory=KERNEL_MEMORY).minimise_from(
        [TrainingProblem(loss, initial, bounds)]
    )
    if best is None:
        raise InputError(
            "GradientGP: expected a finite marginal likelihood at the starting kernel, got "
            "none. Raise `noise` or pass a kernel with a shorter lengthscale."
        )
    best_parameters = jax.tree.map(np.asarray, packing.unpack(jnp.asarray(best.x)))
    return GradientTuned(best_parameters.kernel, float(best_parameters.noise), best.num_evaluations)


def _tuning_points(stationary: bool, n: int, d: int, *, with_values: bool) -> int:
    # q depends on n below d, so that the largest n has no closed form.
    while (
        n > 2
        and n * (gradient_operator.projected_dimension(stationary, n, d) + with_values)
        > TUNING_ORDER
    ):
        n -= 1
    gradient_operator.check_memory(
        "GradientGP", n * (gradient_operator.projected_dimension(stationary, n, d) + with_values)
    )
    return n


@eqx.filter_jit
def _loss_and_slope(
    packing: Packing,
    X: Float[Array, "n d"],
    observations: Float[Array, "n w"],
    x: Float[Array | np.ndarray, " h"],
) -> tuple[Float[Array, ""], Float[Array, " h"]]:
    def loss(x: Float[Array, " h"]) -> Float[Array, ""]:
        kernel, noise = packing.unpack(x)
        return -gradient_log_likelihood(kernel, noise, X, observations)

    return jax.value_and_grad(loss)(jnp.asarray(x))
