"""The posterior of a Gaussian process that has seen its data through actions only, in one batch."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.gp._actions import AbstractActions
from mcmcpost.kernels import AbstractKernel, gram
from mcmcpost.linsolve import factorise


class Projection(NamedTuple):
    """What the data look like through normalised actions S′, and the posterior weights.

    actions : S′ (n, i).
    image : (n, i), K S′. inner : (i, i), S′ᵀK S′. metric : (i, i), S′ᵀS′, with 1 for a zero column.
    lower : (i, i), factor of S′ᵀ(K + σ²I)S′. weights : (i,), ṽ = (S′ᵀ(K + σ²I)S′)⁻¹S′ᵀy.
    data : (i,), S′ᵀy.
    rank : how many actions are linearly independent.
    nugget : added to the diagonal before factorisation. raised : whether it exceeds rounding.
    """

    actions: AbstractActions
    image: Float[Array, "n i"]
    inner: Float[Array, "i i"]
    metric: Float[Array, "i i"]
    lower: Float[Array, "i i"]
    weights: Float[Array, " i"]
    data: Float[Array, " i"]
    rank: Int[Array, ""]
    nugget: Float[Array, ""]
    raised: Bool[Array, ""]


@eqx.filter_jit
def condition(
    kernel: AbstractKernel,
    noise: Float[Array, ""],
    X: Float[Array, "n d"],
    outputs: Float[Array, " n"],
    actions: AbstractActions,
) -> Projection:
    """Condition on Sᵀy: Algorithm S2 of Wenger et al. (2024), on orthonormalised actions (their eq. 7).

    The posterior depends on the span of S alone (Lemma S4). A direction that S lacks, because an action is zero or
    depends on others, becomes an observation of pure noise with value zero, which changes neither posterior nor bound.
    The system is then bounded below by σ² and needs no jitter beyond rounding.

    Parameters
    ----------
    noise : σ², positive. X : (n, d). outputs : (n,), of mean zero. actions : (n, i).
    """
    actions, dead = actions.normalised()
    image = actions.cross(kernel, X, X)
    inner = actions.project(image)
    inner = 0.5 * (inner + inner.T)
    metric = actions.gram() + jnp.diag(dead.astype(inner.dtype))
    system = inner + noise * metric
    fixed = jax.lax.stop_gradient(system)
    ones = jnp.ones(len(fixed), fixed.dtype)
    factor = factorise(fixed, ones, jnp.finfo(fixed.dtype).eps * jnp.mean(jnp.diagonal(fixed)))
    lower = jnp.linalg.cholesky(system + jax.lax.stop_gradient(factor.nugget) * jnp.eye(len(fixed), dtype=fixed.dtype))
    data = actions.project(outputs[:, None])[:, 0]
    weights = cho_solve((lower, True), data)
    rank = jnp.sum(~dead)
    return Projection(actions, image, inner, metric, lower, weights, data, rank, factor.nugget, factor.raised)


@eqx.filter_jit
def predict(
    kernel: AbstractKernel, X: Float[Array, "n d"], projection: Projection, Z: Float[Array, "o d"]
) -> tuple[Float[Array, " o"], Float[Array, " o"]]:
    """Return the posterior mean (o,) and variance (o,) of the latent function at Z (o, d): eq. 5."""
    cross = projection.actions.cross(kernel, Z, X)
    explained = solve_triangular(projection.lower, cross.T, lower=True)
    return cross @ projection.weights, jnp.maximum(prior_variance(kernel, Z) - jnp.sum(explained**2, axis=0), 0)


@eqx.filter_jit
def joint_covariance(
    kernel: AbstractKernel, X: Float[Array, "n d"], projection: Projection, Z: Float[Array, "o d"]
) -> Float[Array, "o o"]:
    """Return the posterior covariance (o, o) of the latent function at Z (o, d): eq. 5."""
    explained = solve_triangular(projection.lower, projection.actions.cross(kernel, Z, X).T, lower=True)
    return gram(kernel, Z) - explained.T @ explained


def prior_variance(kernel: AbstractKernel, Z: Float[Array, "o d"]) -> Float[Array, " o"]:
    """Return k(z, z), (o,)."""
    return jax.vmap(lambda z: gram(kernel, z[None])[0, 0])(Z)
