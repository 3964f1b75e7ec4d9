"""Posterior mean and covariance of value, gradient and Hessian, in white coordinates."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mcmcpost.gp._gradient_factor import ProjectedFactor, conditional, joint_samples, projected_factor
from mcmcpost.gp._gradient_gram import GradientGram, cross_matmul, split_weights
from mcmcpost.gp._low_rank import DiagonalPlusLowRank
from mcmcpost.gp._scalar_profile import ScalarProfile
from mcmcpost.kernels import product

BATCH = 32
"""New points whose covariance blocks are formed together."""


class Spread(NamedTuple):
    """Posterior variances at white points. value : (m,). gradient : (m, d)."""

    value: Float[Array, " m"]
    gradient: Float[Array, "m d"]


@eqx.filter_jit
def posterior_mean(
    profile: ScalarProfile, points: Float[Array, "n d"], weights: Float[Array, "n w"], new: Float[Array, "m d"]
) -> Float[Array, "m e"]:
    """Return values and gradients (m, 1 + d) at new points: the representation Σ_b cov(·, b) weights_b."""
    return cross_matmul(profile.stationary, profile.terms(new, points), new, points, weights)


@eqx.filter_jit
def posterior_hessian(
    profile: ScalarProfile, points: Float[Array, "n d"], weights: Float[Array, "n w"], new: Float[Array, "m d"]
) -> DiagonalPlusLowRank:
    """Return the mean of the Hessian at new points, tr(M̆)I + [X̃ Z][M M̂; M̂ 0][X̃ Z]ᵀ, rank 2n.

    M = A₃∘(δ·z) − A₂∘α, M̂ = A₂ and M̆ = A₂∘(δ·z) − A₁∘α for stationary kernels; M = A₃∘(x·z) + A₂∘α, M̂ = A₂ and
    M̆ = 0 for dot products. The paper's (12), with the M matrices of D.1 and D.2 as corrected.
    """
    n, d = points.shape
    m = new.shape[0]
    alpha, Z = split_weights(weights, d)
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
    ends = jnp.broadcast_to(points[None], (m, n, d))
    ends = new[:, None] - ends if profile.stationary else ends
    factor = jnp.swapaxes(jnp.concatenate([ends, jnp.broadcast_to(Z[None], (m, n, d))], axis=1), 1, 2)
    corner = jax.vmap(jnp.diag)
    core = jnp.block([[corner(outer), corner(terms.second)], [corner(terms.second), jnp.zeros((m, n, n), new.dtype)]])
    return DiagonalPlusLowRank(jnp.broadcast_to(jnp.sum(trace, 1)[:, None], (m, d)), factor, core)


@eqx.filter_jit
def posterior_spread(
    profile: ScalarProfile, gram: GradientGram, factor: ProjectedFactor, new: Float[Array, "m d"]
) -> Spread:
    """Return the posterior variances of value and gradient at new points."""

    def one(x: Float[Array, " d"]) -> Spread:
        inside, outside, basis = conditional(profile, gram, factor, x)
        gradient = outside * (1 - jnp.sum(basis**2, 1)) + jnp.sum((basis @ inside[1:, 1:]) * basis, 1)
        return Spread(jnp.maximum(inside[0, 0], 0), jnp.maximum(gradient, 0))

    return jax.lax.map(one, new, batch_size=BATCH)


@eqx.filter_jit
def posterior_gradient_covariance(
    profile: ScalarProfile, gram: GradientGram, factor: ProjectedFactor, x: Float[Array, " d"]
) -> DiagonalPlusLowRank:
    """Return the covariance of the gradient at one point, v I + B(S − vI)Bᵀ, never d×d."""
    inside, outside, basis = conditional(profile, gram, factor, x)
    k = basis.shape[1]
    diagonal = jnp.full(x.shape, outside)
    return DiagonalPlusLowRank(diagonal, basis, inside[1:, 1:] - outside * jnp.eye(k, dtype=x.dtype))


compiled_factor = eqx.filter_jit(projected_factor)
compiled_samples = eqx.filter_jit(joint_samples)
