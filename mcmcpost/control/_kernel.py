"""Control functionals by dense Cholesky: ridge regression on a Stein kernel with an unpenalised basis."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree

from mcmcpost._blocks import is_large
from mcmcpost.linops import Tile, TileOperator, tile_diagonal, tile_gram
from mcmcpost.linsolve import LeastSquaresSolution, factorise, generalised_least_squares


class KernelFit(NamedTuple):
    """A cross-fitted control functional of p integrands with c constants (one a task; c = 1 for a single target).

    mean : (c, p) coefficients of the constants, fitted on all states.
    control : (k, b, p) g at held-out rows, fitted without their fold.
    fold_means : (k, c, p) coefficients of the constants, fitted without each fold.
    model_covariance : (p, c, c) covariance of `mean` under the kernel's own model, amplitude by restricted likelihood.
    nugget : the largest relative nugget that a factorisation needed.
    num_steps : products with the kernel matrix; zero for a dense solve.
    converged : whether every solve reached its tolerance.
    """

    mean: Float[Array, "c p"]
    control: Float[Array, "k b p"]
    fold_means: Float[Array, "k c p"]
    model_covariance: Float[Array, "p c c"]
    nugget: Float[Array, ""]
    num_steps: Int[Array, ""]
    converged: Bool[Array, ""]


class KernelData(NamedTuple):
    """What a kernel system is built from.

    rows : pytree of (m, ...) arrays that the Stein tile takes, for example (draws, scores).
    basis : (m, q) the unpenalised part, its first columns the constants; zero on padding.
    values : (m, p). counts : (m,) copies of each state, zero on padding.
    held_out, held_out_mask : (k, b) rows of each fold and which of them are real.
    """

    rows: PyTree
    basis: Float[Array, "m q"]
    values: Float[Array, "m p"]
    counts: Float[Array, " m"]
    held_out: Int[Array, "k b"]
    held_out_mask: Bool[Array, "k b"]


@eqx.filter_jit
def crossfit_dense(
    tile: Tile,
    nugget: Float[Array, ""],
    data: KernelData,
    train: Int[Array, "k t"],
    train_mask: Bool[Array, "k t"],
    everyone: Int[Array, " a"],
    everyone_mask: Bool[Array, " a"],
    *,
    num_constants: int = 1,
) -> KernelFit:
    """Fit A = K₀/mean(diag K₀) + η·diag(1/n_i) on the rows `everyone` and on `train` for each fold.

    Oates, Girolami and Chopin (2017, doi:10.1111/rssb.12185) with the constant unpenalised; South et al. (2022) with
    the polynomial basis unpenalised; MATH.md section 2. Folds are refitted, one after the other, rather than downdated
    from A⁻¹: it costs less for fewer than a dozen folds, and a downdate loses the digits that a small nugget leaves.
    """
    c = num_constants
    scale = mean_diagonal(tile, data.rows, data.counts)

    def fit(index: Int[Array, " t"], mask: Bool[Array, " t"]) -> tuple[LeastSquaresSolution, Array, Array]:
        weight = data.counts[index] * mask
        gram, noise = normalised_gram(tile, take(data.rows, index), weight, scale)
        factor = factorise(gram, noise, nugget)
        real = mask.astype(data.values.dtype)[:, None]
        values = data.values[index] * real
        solution = generalised_least_squares(factor.lower, data.basis[index] * real, values)
        return solution, amplitude(values, solution.dual, jnp.sum(real) - data.basis.shape[1]), factor.nugget

    def leave_out(fold: tuple) -> tuple[Float[Array, "b p"], Float[Array, "c p"], Float[Array, ""]]:
        out, out_mask, index, mask = fold
        solution, _, used = fit(index, mask)
        across = cross_product(tile, take(data.rows, out), take(data.rows, index), solution.dual) / scale
        control = across + data.basis[out, c:] @ solution.coefficients[c:]
        return control * out_mask[:, None], solution.coefficients[:c], used

    whole, size, used = fit(everyone, everyone_mask)
    control, means, nuggets = jax.lax.map(leave_out, (data.held_out, data.held_out_mask, train, train_mask))
    return KernelFit(
        mean=whole.coefficients[:c],
        control=control,
        fold_means=means,
        model_covariance=size[:, None, None] * whole.covariance[None, :c, :c],
        nugget=jnp.maximum(jnp.max(nuggets), used),
        num_steps=jnp.zeros((), int),
        converged=jnp.ones((), bool),
    )


def cross_product(tile: Tile, rows: PyTree, columns: PyTree, V: Float[Array, "t p"]) -> Float[Array, "b p"]:
    """Return K₀(rows, columns) V; a large K₀ is never formed."""
    if not is_large(jax.tree.leaves(rows)[0].shape[0] * len(V)):
        return tile(rows, columns) @ V
    return TileOperator(tile, columns, tile_diagonal(tile, columns)).cross_matmul(rows, V)


def take(rows: PyTree, index: Int[Array, " t"]) -> PyTree:
    """Return some of the rows of every leaf."""
    return jax.tree.map(lambda leaf: leaf[index], rows)


def amplitude(values: Float[Array, "m p"], dual: Float[Array, "m p"], freedom: Float[Array, ""]) -> Float[Array, " p"]:
    """Return the restricted-likelihood amplitude fᵀPf/(m − q) of each integrand, with Pf the dual coefficients."""
    return jnp.maximum(jnp.sum(values * dual, axis=0), 0.0) / freedom


def mean_diagonal(tile: Tile, rows: PyTree, counts: Float[Array, " m"]) -> Float[Array, ""]:
    """Return the mean of K₀'s diagonal over the rows that are not padding: the unit of the relative nugget."""
    diagonal = tile_diagonal(tile, rows)
    real = (counts > 0).astype(diagonal.dtype)
    return jnp.sum(diagonal * real) / jnp.sum(real)


def normalised_gram(
    tile: Tile, rows: PyTree, counts: Float[Array, " m"], scale: Float[Array, ""]
) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
    """Return K₀/scale with padding replaced by the identity, and the noise 1/n_i (zero on padding)."""
    real = (counts > 0).astype(counts.dtype)
    gram = tile_gram(tile, rows) / scale * real[:, None] * real[None, :] + jnp.diag(1.0 - real)
    return gram, jnp.where(counts > 0, 1.0 / jnp.maximum(counts, 1.0), 0.0)
