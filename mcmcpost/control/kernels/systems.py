"""The kernel system of control functionals, folds left out: by dense Cholesky, or without an m×m
matrix."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Bool, Float, Int, PyTree

from mcmcpost.control.folds import Folds, Subsets
from mcmcpost.control.method import Refits
from mcmcpost.control.problem import JointProblem, Problem
from mcmcpost.core.arrays import is_large, pad_columns
from mcmcpost.solve import (
    ConjugateGradients,
    LeastSquaresSolution,
    blas_threads,
    conjugate_gradients,
    fit_rows,
    leave_blocks_out,
)
from mcmcpost.stein.products import (
    Tile,
    TileOperator,
    device_mesh,
    pivoted_cholesky,
    tile_diagonal,
    tile_gram,
)


class KernelFit(NamedTuple):
    """A cross-fitted control functional of p integrands with c constants (one a task; c = 1 for a
    single target).

    mean : (c, p) coefficients of the constants, fitted on all states.
    control : (k, b, p) g at held-out rows, fitted without their fold.
    refits : (k, c, p), (h, c, p), (r, c, p) the same, fitted on parts of the folds; NaN where that
        was not done.
    model_covariance : (p, c, c) covariance of `mean` under the kernel's own model, amplitude by
        restricted likelihood.
    nugget : the largest relative nugget that a factorisation needed.
    num_steps : products with the kernel matrix; zero for a dense solve.
    converged : whether every solve reached its tolerance.
    """

    mean: Float[Array | np.ndarray, "c p"]
    control: Float[Array | np.ndarray, "k b p"]
    refits: Refits
    model_covariance: Float[Array | np.ndarray, "p c c"]
    nugget: Float[Array | np.ndarray, ""]
    num_steps: Int[Array | np.ndarray, ""]
    converged: Bool[Array | np.ndarray, ""]


class KernelData(NamedTuple):
    """What a kernel system is built from.

    rows : pytree of (m, ...) arrays that the Stein tile takes, for example (draws, scores).
    basis : (m, q) the unpenalised part, its first columns the constants; zero on padding.
    values : (m, p). counts : (m,) copies of each state, zero on padding.
    folds : the rows that are held out in turn, all of them seen.
    """

    rows: PyTree
    basis: Float[Array, "m q"]
    values: Float[Array, "m p"]
    counts: Float[Array, " m"]
    folds: Folds


def kernel_data(
    rows: PyTree,
    basis: Float[np.ndarray, "m q"],
    values: Float[np.ndarray, "m p"],
    problem: Problem | JointProblem,
) -> KernelData:
    """Return the kernel system of some integrands (m, p) of a problem, with its counts, as JAX
    arrays, and its folds.

    Weighted states count once each: their weights are those of the residuals alone.
    """
    # The noise is 1/n_i: weights as counts would claim precision that a draw does not have.
    weighted = isinstance(problem, Problem) and problem.weighted
    return KernelData(
        rows=jax.tree.map(jax.device_put, rows),
        basis=jax.device_put(basis),
        values=jax.device_put(values),
        counts=jax.device_put((problem.counts > 0).astype(float) if weighted else problem.counts),
        folds=problem.folds,
    )


class DenseSystem(NamedTuple):
    """A kernel system on the host, without padding.

    gram : (m, m) K₀/scale. basis : (m, q). values : (m, p). counts : (m,). scale : mean(diag K₀).
    """

    gram: Float[np.ndarray, "m m"]
    basis: Float[np.ndarray, "m q"]
    values: Float[np.ndarray, "m p"]
    counts: Float[np.ndarray, " m"]
    scale: float

    def of(
        self, index: Int[np.ndarray, " t"], nugget: float
    ) -> tuple[np.ndarray, np.ndarray, float, np.ndarray, np.ndarray]:
        """Return what `fit_rows` takes for a fit on some of the rows."""
        matrix = self.gram[np.ix_(index, index)]
        # η·diag(1/n_i), section 2, Control functional: a state seen n times is known n times as
        # well.
        return matrix, 1.0 / self.counts[index], nugget, self.basis[index], self.values[index]


def dense_system(tile: Tile, data: KernelData) -> DenseSystem:
    """Return the system with its Gram matrix, which is computed on the device."""
    # Padding is for compiled programs; LAPACK takes the rows as they are.
    m = len(data.folds.labels)
    gram, scale = scaled_gram(tile, data.rows, data.counts)
    basis, values, counts = (
        np.asarray(array)[:m] for array in (data.basis, data.values, data.counts)
    )
    return DenseSystem(np.asarray(gram)[:m, :m], basis, values, counts, float(scale))


def crossfit_dense(
    tile: Tile, nugget: float, data: KernelData, *, num_constants: int = 1
) -> KernelFit:
    """Fit A = K₀/mean(diag K₀) + η·diag(1/n_i) on the rows of each fit of the folds.

    Oates, Girolami and Chopin (2017, doi:10.1111/rssb.12185) with the constant unpenalised; South
    et al. (2022) with the polynomial basis unpenalised; docs/mathematics.md section 2. What follows
    the Gram matrix is LAPACK on the host, since compiling it would take seconds.
    """
    c, folds, system = num_constants, data.folds, dense_system(tile, data)
    gram, basis, values, *_ = system
    everyone = np.arange(len(gram))

    def constants(parts: Bool[np.ndarray, "s k"]) -> Float[np.ndarray, "s c p"]:
        estimates = np.full((len(parts), c, values.shape[1]), np.nan)
        for subset, index in enumerate(folds.rows_of(parts)):
            if len(index) >= basis.shape[1]:  # not with more constants, one a task, than rows
                estimates[subset] = fit_rows(*system.of(index, nugget))[0].coefficients[:c]
        return estimates

    # LAPACK on the host: compiling the fits took thirty times as long as solving them (d8baa01).
    with blas_threads(len(everyone)):
        # All rows in any order; fits without a fold need them fold by fold.
        whole, used = fit_rows(*system.of(everyone, nugget))
        index, solutions, used_without = _without_folds(system, nugget, folds)
        held_out, real = folds.held_out()
        control = np.zeros((*held_out.shape, values.shape[1]))
        for k, (solution, out) in enumerate(zip(solutions, held_out, strict=True)):
            # The dual is zero on the fold's own rows, so that K₀ may stand whole. The constant is
            # no control.
            control[k] = (
                gram[np.ix_(out, index)] @ solution.dual
                + basis[out, c:] @ solution.coefficients[c:]
            )
        means = np.stack([solution.coefficients[:c] for solution in solutions])
        subsets = Subsets.of(folds.num_folds)
        refits = Refits(means, constants(subsets.halves), constants(subsets.quarters))
    # Degrees of freedom m − q of the restricted likelihood.
    size = amplitude(values[everyone], whole.dual, len(everyone) - basis.shape[1])
    return KernelFit(
        mean=whole.coefficients[:c],
        control=control * real[..., None],
        refits=refits,
        model_covariance=size[:, None, None] * whole.covariance[None, :c, :c],
        nugget=np.asarray(max(used, used_without)),
        num_steps=np.zeros((), int),
        converged=np.ones((), bool),
    )


def fit_constant(tile: Tile, nugget: float, data: KernelData) -> Float[np.ndarray, " p"]:
    """Return the `mean` of `crossfit_dense`, of the fit on all rows alone."""
    system = dense_system(tile, data)
    everyone = np.arange(len(system.gram))
    with blas_threads(len(everyone)):
        return fit_rows(*system.of(everyone, nugget))[0].coefficients[0]


def _without_folds(
    system: DenseSystem, nugget: float, folds: Folds
) -> tuple[Int[np.ndarray, " m"], list[LeastSquaresSolution], float]:
    """Return the rows in the order of their folds, the fits without each fold, in that order, and
    their nugget."""
    blocks = folds.rows_of(np.eye(folds.num_folds, dtype=bool))
    index = np.concatenate(blocks)
    solutions, used = leave_blocks_out(*system.of(index, nugget), [len(block) for block in blocks])
    return index, solutions, used


class FoldRules(NamedTuple):
    """The fits without each fold as functions of any state, K₀(x, rows)·dual +
    basis(x)·coefficients.

    rows : pytree of (m, ...) arrays that the Stein tile takes. dual : (k, m, p), zero on the rows
        of the fold.
    coefficients : (k, q, p). nugget : what all factorisations needed.
    """

    tile: Tile
    rows: PyTree
    dual: Float[np.ndarray, "k m p"]
    coefficients: Float[np.ndarray, "k q p"]
    nugget: float

    def kernel_term(self, fold: int, rows: PyTree) -> Float[np.ndarray, "b p"]:
        """Return the part of the kernel at some rows, of the fit without a fold."""
        dual = self.dual[fold]
        product = _cross_product(self.tile, rows, self.rows, jax.device_put(pad_columns(dual)))
        return np.asarray(product)[:, : dual.shape[1]]


def fit_without_folds(tile: Tile, nugget: float, data: KernelData) -> FoldRules:
    """Return the fits of `crossfit_dense` without each fold, to be evaluated at other states."""
    system, folds = dense_system(tile, data), data.folds
    with blas_threads(len(system.gram)):
        index, solutions, used = _without_folds(system, nugget, folds)
    dual = np.zeros((folds.num_folds, len(data.counts), system.values.shape[1]))
    for fold_dual, solution in zip(dual, solutions, strict=True):
        # gram was K₀/scale, and rules are evaluated with K₀ itself.
        fold_dual[index] = solution.dual / system.scale
    # a worker of dask unpickles JAX arrays in 32 bits
    tile, rows = jax.tree.map(np.asarray, (tile, data.rows))
    return FoldRules(
        tile, rows, dual, np.stack([solution.coefficients for solution in solutions]), used
    )


@eqx.filter_jit
def scaled_gram(
    tile: Tile, rows: PyTree, counts: Float[Array, " m"]
) -> tuple[Float[Array, "m m"], Float[Array, ""]]:
    """Return K₀/mean(diag K₀), and that mean, which is over all rows but padding."""
    scale = mean_diagonal(tile, rows, counts)
    return tile_gram(tile, rows) / scale, scale


def cross_product(
    tile: Tile, rows: PyTree, columns: PyTree, V: Float[Array, "t p"]
) -> Float[Array, "b p"]:
    """Return K₀(rows, columns) V; a large K₀ is never formed."""
    # A K₀ that is not large (`is_large`) is formed at once; others are made in tiles.
    if not is_large(jax.tree.leaves(rows)[0].shape[0] * len(V)):
        return tile(rows, columns) @ V
    return TileOperator(tile, columns, tile_diagonal(tile, columns)).cross_matmul(rows, V)


_cross_product = eqx.filter_jit(cross_product)


def amplitude(
    values: Float[Array | np.ndarray, "m p"],
    dual: Float[Array | np.ndarray, "m p"],
    freedom: int | Float[Array, ""],
) -> Float[Array | np.ndarray, " p"]:
    """Return the restricted-likelihood amplitude fᵀPf/(m − q) of each integrand, with Pf the dual
    coefficients."""
    # Rounding can take fᵀPf of an exact fit below zero.
    return (values * dual).sum(axis=0).clip(0.0) / freedom


def mean_diagonal(tile: Tile, rows: PyTree, counts: Float[Array, " m"]) -> Float[Array, ""]:
    """Return the mean of K₀'s diagonal over the rows that are not padding: the unit of the relative
    nugget."""
    diagonal = tile_diagonal(tile, rows)
    real = (counts > 0).astype(diagonal.dtype)
    return jnp.sum(diagonal * real) / jnp.sum(real)


def normalised_gram(
    tile: Tile, rows: PyTree, counts: Float[Array, " m"], scale: Float[Array, ""]
) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
    """Return K₀/scale with padding replaced by the identity, and the noise 1/n_i (zero on
    padding)."""
    real = (counts > 0).astype(counts.dtype)
    # Identity on padding: the factor exists, and padded rows have zero weights.
    gram = tile_gram(tile, rows) / scale * real[:, None] * real[None, :] + jnp.diag(1.0 - real)
    return gram, jnp.where(counts > 0, 1.0 / jnp.maximum(counts, 1.0), 0.0)


MOST_PRODUCTS = 100_000
"""Products after which a solve ends whose budget has no end."""


class _MaskedSystem(eqx.Module):
    """A = K₀/scale + η·diag(1/n), restricted to a different set of rows in each of k blocks of
    columns.

    masks : (m, k). noise : (m, 1) the nugget over the counts. low_rank : (m, r), K₀/scale ≈
        low_rank·low_rankᵀ.
    factors : (k, r, r) Cholesky factors of the Woodbury inner matrices.
    """

    operator: TileOperator
    scale: Float[Array, ""]
    noise: Float[Array, "m 1"]
    masks: Float[Array, "m k"]
    low_rank: Float[Array, "m r"]
    factors: Float[Array, "k r r"]

    def masked(self, matrix: Float[Array, "m w"]) -> Float[Array, "m w"]:
        blocks = matrix.reshape(*self.masks.shape, -1)
        return (blocks * self.masks[:, :, None]).reshape(matrix.shape)

    def spread(self, matrix: Float[Array, "m r"]) -> Float[Array, "m w"]:
        """Return one masked copy of `matrix` per block of columns."""
        # (m, k·r): the columns of block k stand side by side for one kernel product.
        copies = matrix[:, None, :] * self.masks[:, :, None]
        return copies.reshape(len(matrix), -1)

    def product(self, matrix: Float[Array, "m w"]) -> Float[Array, "m w"]:
        # Masked rows keep their noise alone: the system of a block is definite on all rows.
        return (
            self.masked(self.operator.matmul(self.masked(matrix))) / self.scale
            + self.noise * matrix
        )

    def precondition(self, matrix: Float[Array, "m w"]) -> Float[Array, "m w"]:
        scaled = matrix / self.noise
        rank, blocks = self.low_rank.shape[1], self.masks.shape[1]
        # Woodbury for each block: its own (r, r) factor, one low-rank matrix for all.
        inside = jnp.moveaxis((self.low_rank.T @ scaled).reshape(rank, blocks, -1), 1, 0)
        solved = jax.vmap(lambda factor, rhs: cho_solve((factor, True), rhs))(self.factors, inside)
        back = self.low_rank @ jnp.moveaxis(solved, 0, 1).reshape(rank, -1)
        return scaled - self.masked(back) / self.noise

    def solve(
        self,
        right: Float[Array, "m r"],
        solver: ConjugateGradients,
        basis: Float[Array, "m q"],
        num_constants: int,
        initial: Float[Array, "m w"] | None = None,
    ) -> tuple[Array, Array, Array]:
        """Solve every block for `right`, which starts with `basis`.

        Return (k, m, r) solutions, the products used, and whether all converged.
        """
        size = basis.shape[1]

        def variance(value: Array, residual: Array) -> Array:
            """The sum over blocks and constants of e₁ᵀ(HᵀX + XᵀR)⁻¹e₁, which falls with every
            product.

            From zero XᵀR vanishes on the diagonal, and this is the variance of the rule. From any
            start it bounds it: HᵀX + XᵀR is minus twice the quadratic that conjugate gradients
            minimise.
            """
            images, left = (
                jnp.moveaxis(array.reshape(*self.masks.shape, -1), 1, 0)[:, :, :size]
                for array in (value, residual)
            )
            # (q, q) for each block k: HᵀX + XᵀR over the m rows.
            precision = jnp.einsum("mq,kmr->kqr", basis, images) + jnp.einsum(
                "kmq,kmr->kqr", images, left
            )
            return jnp.sum(
                jnp.diagonal(jnp.linalg.inv(precision), axis1=1, axis2=2)[:, :num_constants]
            )

        solution = conjugate_gradients(
            self.product,
            self.spread(right),
            precondition=self.precondition,
            rtol=solver.rtol,
            max_steps=max(1, int(min(solver.budget, MOST_PRODUCTS))),
            initial=initial,
            enough=variance if solver.gain else None,
            gain=solver.gain,
        )
        blocks = jnp.moveaxis(solution.value.reshape(*self.masks.shape, -1), 1, 0)
        return blocks, solution.num_steps, jnp.all(solution.converged)


def _masked_system(
    tile: Tile,
    nugget: Float[Array, ""],
    rows: PyTree,
    counts: Float[Array, " m"],
    masks: Float[Array, "m k"],
    rank: int,
) -> _MaskedSystem:
    real = (counts > 0).astype(counts.dtype)
    operator = TileOperator(tile, rows, tile_diagonal(tile, rows), mesh=device_mesh())
    scale = jnp.sum(operator.diagonal() * real) / jnp.sum(real)
    # Noise on padding too, which divides by it.
    noise = (nugget / jnp.where(counts > 0, counts, 1.0))[:, None]
    low_rank = pivoted_cholesky(operator, min(rank, counts.shape[0])) / jnp.sqrt(scale)

    def inner(mask: Float[Array, " m"]) -> Float[Array, "r r"]:
        # I + Lᵀ D L with the rows of the block: mask/noise on its diagonal.
        scaled = low_rank * (mask / noise[:, 0])[:, None]
        return cho_factor(
            scaled.T @ low_rank + jnp.eye(low_rank.shape[1], dtype=scaled.dtype), lower=True
        )[0]

    masks = masks * real[:, None]
    return _MaskedSystem(operator, scale, noise, masks, low_rank, jax.lax.map(inner, masks.T))


def crossfit_iterative(
    tile: Tile,
    nugget: Float[Array, ""],
    solver: ConjugateGradients,
    data: KernelData,
    *,
    num_constants: int = 1,
) -> KernelFit:
    """Fit as `crossfit_dense`, by preconditioned conjugate gradients with tiled products.

    The fit on all states and those without each fold are columns of one system: column block k
    lives on the rows outside fold k, so one pass over the kernel serves all of them. Memory is
    O(block² + m(k+1)(q+p) + m·rank). A control variate from an unfinished solve still has mean
    zero, so its cross-fitted error stays honest; the record says that the solve was not finished.
    Halves and quarters are not fitted: they would take three times the columns. The error is then
    that without each fold, at the rate of a mean, which is 1.5 to 3 times too large for smooth
    integrands.
    """
    held_out, real = jax.device_put(data.folds.held_out())
    arrays = data.rows, data.basis, data.values, data.counts, held_out, real
    return _crossfit_iterative(tile, nugget, solver, *arrays, num_constants)


@eqx.filter_jit
def _crossfit_iterative(
    tile: Tile,
    nugget: Float[Array, ""],
    solver: ConjugateGradients,
    rows: PyTree,
    basis: Float[Array, "m q"],
    values: Float[Array, "m p"],
    counts: Float[Array, " m"],
    held_out: Int[Array, "k b"],
    held_out_mask: Bool[Array, "k b"],
    num_constants: int,
) -> KernelFit:
    """Fit as `crossfit_iterative`, with the folds as arrays."""
    c = num_constants
    (m, size), folds = basis.shape, held_out.shape[0]
    outside = jnp.ones((folds, m), basis.dtype)
    inside = held_out_mask.astype(basis.dtype)
    # Padded entries of `held_out` name row 0: their factor is one, so that it stays in.
    outside = outside.at[jnp.arange(folds)[:, None], held_out].multiply(1.0 - inside)
    masks = jnp.concatenate([jnp.ones((1, m), basis.dtype), outside]).T
    system = _masked_system(tile, nugget, rows, counts, masks, solver.rank)
    solved, steps, converged = system.solve(
        jnp.concatenate([basis, values], axis=1), solver, basis, c
    )

    def least_squares(block: Float[Array, "m r"]) -> tuple[Array, Array, Array]:
        images, duals = block[:, :size], block[:, size:]
        # (HᵀA⁻¹H)⁻¹ of section 2, Semi-exact, with A⁻¹H from the solve.
        inverse = jnp.linalg.inv(basis.T @ images)
        gamma = inverse @ (basis.T @ duals)
        return gamma, duals - images @ gamma, inverse

    gammas, duals, inverses = jax.vmap(least_squares)(solved)
    freedom = jnp.sum(masks[:, 0] * (counts > 0)) - size
    # g = K₀c: the nugget is of the rows of a fit, and held-out rows are none of these.
    fitted = system.operator.matmul(jnp.moveaxis(duals[1:], 0, 1).reshape(m, -1)) / system.scale
    fitted = jnp.moveaxis(fitted.reshape(m, folds, -1), 1, 0)

    def at_held_out(
        fit: Float[Array, "m p"], gamma: Float[Array, "q p"], rows: Int[Array, " b"], mask: Array
    ) -> Array:
        return (fit[rows] + basis[rows, c:] @ gamma[c:]) * mask[:, None]

    subsets = Subsets.of(folds)
    unknown = (jnp.full((len(parts), *gammas[0, :c].shape), jnp.nan) for parts in subsets)
    covariance = inverses[0, :c, :c]
    # Of an unfinished solve the diagonal may be negative: no variance then.
    covariance = jnp.where(jnp.diagonal(covariance)[:, None] > 0, covariance, 0.0)
    return KernelFit(
        mean=gammas[0, :c],
        control=jax.vmap(at_held_out)(fitted, gammas[1:], held_out, held_out_mask),
        refits=Refits(gammas[1:, :c], *unknown),
        model_covariance=amplitude(values, duals[0], freedom)[:, None, None] * covariance[None],
        nugget=nugget,
        num_steps=steps,
        converged=converged,
    )


@eqx.filter_jit
def solve_iterative(
    tile: Tile,
    nugget: Float[Array, ""],
    solver: ConjugateGradients,
    rows: PyTree,
    basis: Float[Array, "m q"],
    counts: Float[Array, " m"],
    initial: Float[Array, " m"] | None = None,
) -> tuple[Float[Array, " m"], Float[Array, ""], Int[Array, ""], Bool[Array, ""]]:
    """Return the rule w = X(HᵀX)⁻¹e₁ with X ≈ A⁻¹H, its model variance wᵀAw, the products used, and
    convergence.

    The rule integrates constants exactly however early the solve stopped, and wᵀAw is the variance
    of the rule that is returned, unfinished or not (docs/mathematics.md section 5). `initial` is a
    rule to start from, where the basis is the constant alone: its best multiple, at one product.
    """
    system = _masked_system(
        tile, nugget, rows, counts, jnp.ones((len(counts), 1), counts.dtype), solver.rank
    )
    start = None
    if initial is not None:
        rule = initial[:, None]
        # α = 1ᵀw/(wᵀAw) minimises the quadratic along w: the best multiple to start from.
        start = rule * jnp.sum(basis * rule) / jnp.sum(rule * system.product(rule))
    solved, steps, converged = system.solve(basis, solver, basis, 1, start)
    images = solved[0]
    first = jnp.zeros(basis.shape[1], basis.dtype).at[0].set(1.0)
    # Not the transpose: of an unfinished solve HᵀX is not symmetric, and Hᵀw = HᵀX(HᵀX)⁻¹e₁ = e₁.
    rule = images @ jnp.linalg.solve(basis.T @ images, first)
    return rule, rule @ system.product(rule[:, None])[:, 0], steps, converged
