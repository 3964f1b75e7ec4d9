"""Control functionals by dense Cholesky: ridge regression on a Stein kernel with an unpenalised basis."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.kernels import AbstractKernel
from mcmcpost.linsolve import LeastSquaresSolution, factorise, generalised_least_squares
from mcmcpost.stein import stein_diagonal, stein_gram


class KernelFit(NamedTuple):
    """A cross-fitted control functional.

    mean : (p,) coefficient of the constant, fitted on all states.
    control : (k, b, p) g at held-out rows, fitted without their fold.
    fold_means : (k, p) coefficient of the constant, fitted without each fold.
    model_variance : (p,) variance of `mean` under the kernel's own model, amplitude by restricted likelihood.
    nugget : the largest relative nugget that a factorisation needed.
    num_steps : products with the kernel matrix; zero for a dense solve.
    converged : whether every solve reached its tolerance.
    """

    mean: Float[Array, " p"]
    control: Float[Array, "k b p"]
    fold_means: Float[Array, "k p"]
    model_variance: Float[Array, " p"]
    nugget: Float[Array, ""]
    num_steps: Int[Array, ""]
    converged: Bool[Array, ""]


@eqx.filter_jit
def crossfit_dense(
    kernel: AbstractKernel,
    nugget: Float[Array, ""],
    draws: Float[Array, "m d"],
    scores: Float[Array, "m d"],
    basis: Float[Array, "m q"],
    values: Float[Array, "m p"],
    counts: Float[Array, " m"],
    held_out: Int[Array, "k b"],
    held_out_mask: Bool[Array, "k b"],
    train: Int[Array, "k t"],
    train_mask: Bool[Array, "k t"],
    everyone: Int[Array, " a"],
    everyone_mask: Bool[Array, " a"],
) -> KernelFit:
    """Fit A = K₀/mean(diag K₀) + η·diag(1/n_i) on the rows `everyone` and on `train` for each fold.

    Oates, Girolami and Chopin (2017, doi:10.1111/rssb.12185) with the constant unpenalised; South et al. (2022) with
    the polynomial basis unpenalised; MATH.md section 2. Folds are refitted, one after the other, rather than downdated
    from A⁻¹: it costs less for fewer than a dozen folds, and a downdate loses the digits that a small nugget leaves.
    """
    scale = mean_diagonal(kernel, draws, scores, counts)

    def fit(rows: Int[Array, " t"], mask: Bool[Array, " t"]) -> tuple[LeastSquaresSolution, Array, Array]:
        weight = counts[rows] * mask
        gram, noise = normalised_gram(kernel, draws[rows], scores[rows], weight, scale)
        factor = factorise(gram, noise, nugget)
        real = mask.astype(draws.dtype)[:, None]
        solution = generalised_least_squares(factor.lower, basis[rows] * real, values[rows] * real)
        return solution, amplitude(values[rows] * real, solution.dual, jnp.sum(real) - basis.shape[1]), factor.nugget

    def leave_out(fold: tuple) -> tuple[Float[Array, "b p"], Float[Array, " p"], Float[Array, ""]]:
        out, out_mask, rows, mask = fold
        solution, _, used = fit(rows, mask)
        across = stein_gram(kernel, draws[out], scores[out], draws[rows], scores[rows]) / scale
        control = across @ solution.dual + basis[out, 1:] @ solution.coefficients[1:]
        return control * out_mask[:, None], solution.coefficients[0], used

    whole, size, used = fit(everyone, everyone_mask)
    control, means, nuggets = jax.lax.map(leave_out, (held_out, held_out_mask, train, train_mask))
    return KernelFit(
        mean=whole.coefficients[0],
        control=control,
        fold_means=means,
        model_variance=size * whole.variance_factor,
        nugget=jnp.maximum(jnp.max(nuggets), used),
        num_steps=jnp.zeros((), int),
        converged=jnp.ones((), bool),
    )


def amplitude(values: Float[Array, "m p"], dual: Float[Array, "m p"], freedom: Float[Array, ""]) -> Float[Array, " p"]:
    """Return the restricted-likelihood amplitude fᵀPf/(m − q) of each integrand, with Pf the dual coefficients."""
    return jnp.maximum(jnp.sum(values * dual, axis=0), 0.0) / freedom


def mean_diagonal(
    kernel: AbstractKernel, draws: Float[Array, "m d"], scores: Float[Array, "m d"], counts: Float[Array, " m"]
) -> Float[Array, ""]:
    """Return the mean of K₀'s diagonal over the rows that are not padding: the unit of the relative nugget."""
    real = (counts > 0).astype(draws.dtype)
    return jnp.sum(stein_diagonal(kernel, draws, scores) * real) / jnp.sum(real)


def normalised_gram(
    kernel: AbstractKernel,
    draws: Float[Array, "m d"],
    scores: Float[Array, "m d"],
    counts: Float[Array, " m"],
    scale: Float[Array, ""],
) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
    """Return K₀/scale with padding replaced by the identity, and the noise 1/n_i (zero on padding)."""
    real = (counts > 0).astype(draws.dtype)
    gram = stein_gram(kernel, draws, scores) / scale * real[:, None] * real[None, :] + jnp.diag(1.0 - real)
    return gram, jnp.where(counts > 0, 1.0 / jnp.maximum(counts, 1.0), 0.0)
