"""The restricted marginal likelihood of a control functional and its gradient in the covariance."""

from typing import NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from mcmcpost.kernels import AbstractKernel
from mcmcpost.stein import stein_gram


class RestrictedLikelihood(NamedTuple):
    """Negative log restricted likelihoods of p integrands, and the derivative of their sum in A.

    losses : (p,) in nats, up to a constant; NaN where A is not positive definite, zero for a column of zeros.
    slope : (m, m) ∂(Σ losses)/∂A.
    """

    losses: Float[Array, " p"]
    slope: Float[Array, "m m"]


def stein_covariance(
    kernel: AbstractKernel,
    draws: Float[Array, "m d"],
    scores: Float[Array, "m d"],
    noise: Float[Array, " m"],
    nugget: Float[Array, ""],
) -> Float[Array, "m m"]:
    """Return A = K₀/mean(diag K₀) + η·diag(noise): the one ridge convention (MATH.md section 2)."""
    gram = stein_gram(kernel, draws, scores)
    return gram / jnp.mean(jnp.diagonal(gram)) + nugget * jnp.diag(noise)


def negative_restricted_likelihood(
    covariance: Float[Array, "m m"], basis: Float[Array, "m q"], values: Float[Array, "m p"]
) -> RestrictedLikelihood:
    """Evaluate ½(m−q) log(fᵀPf) + ½ log det A + ½ log det HᵀA⁻¹H for each column f of `values`.

    The constants Hγ are profiled out by generalised least squares and the amplitude of each integrand by its maximum;
    P = A⁻¹ − A⁻¹H(HᵀA⁻¹H)⁻¹HᵀA⁻¹. The gradient is analytic: ½pP − ½(m−q) Σ (Pf)(Pf)ᵀ/(fᵀPf). Sun, Barp and Briol
    (2023), Appendix D.2, with the quadratic form that its print lost (MATH.md section 2).

    Parameters
    ----------
    covariance : (m, m), A.
    basis : (m, q), the unpenalised part H, constant included.
    values : (m, p), integrands of unit scale; a column of zeros is padding and counts for nothing.
    """
    size, rank = basis.shape
    lower = jnp.linalg.cholesky(covariance)
    precision = cho_solve((lower, True), jnp.eye(size, dtype=covariance.dtype))
    q, r = jnp.linalg.qr(solve_triangular(lower, basis, lower=True))
    along = solve_triangular(lower, q, lower=True, trans=1)
    projected = precision - along @ along.T
    image = projected @ values
    floor = size * jnp.finfo(covariance.dtype).eps
    energy = jnp.maximum(jnp.sum(values * image, axis=0), floor)
    half_logdet = jnp.sum(jnp.log(jnp.diagonal(lower))) + jnp.sum(jnp.log(jnp.abs(jnp.diagonal(r))))
    real = jnp.any(values != 0, axis=0)
    losses = jnp.where(real, 0.5 * (size - rank) * jnp.log(energy) + half_logdet, 0.0)
    slope = 0.5 * (jnp.sum(real) * projected - (size - rank) * (image / energy[None, :]) @ image.T)
    return RestrictedLikelihood(losses, slope)
