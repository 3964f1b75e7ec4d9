"""Kernel and nugget of a control functional by restricted marginal likelihood: by L-BFGS or on a
grid."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from mcmcpost.core.arrays import pad_columns
from mcmcpost.core.errors import InputError
from mcmcpost.solve.dense import blas_threads
from mcmcpost.solve.search import (
    KERNEL_MEMORY,
    LBFGS,
    Hyperparameters,
    Packing,
    TrainingProblem,
    is_positive,
)
from mcmcpost.stein import AbstractKernel, SquaredExponential, stein_gram


class RestrictedLikelihood(NamedTuple):
    """Negative log restricted likelihoods of p integrands, and the derivative of their sum in A.

    losses : (p,) in nats, up to a constant; NaN where A is not positive definite, zero for a column
        of zeros.
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
    """Return A = K₀/mean(diag K₀) + η·diag(noise): the one ridge convention (docs/mathematics.md
    section 2)."""
    gram = stein_gram(kernel, draws, scores)
    return gram / jnp.mean(jnp.diagonal(gram)) + nugget * jnp.diag(noise)


def negative_restricted_likelihood(
    covariance: Float[Array, "m m"], basis: Float[Array, "m q"], values: Float[Array, "m p"]
) -> RestrictedLikelihood:
    """Evaluate ½(m−q) log(fᵀPf) + ½ log det A + ½ log det HᵀA⁻¹H for each column f of `values`.

    The constants Hγ are profiled out by generalised least squares and the amplitude of each
    integrand by its maximum; P = A⁻¹ − A⁻¹H(HᵀA⁻¹H)⁻¹HᵀA⁻¹. The gradient is analytic: ½pP − ½(m−q)
    Σ (Pf)(Pf)ᵀ/(fᵀPf). Sun, Barp and Briol (2023), Appendix D.2, with the quadratic form that its
    print lost (docs/mathematics.md section 2).

    Parameters
    ----------
    covariance : (m, m), A.
    basis : (m, q), the unpenalised part H, constant included.
    values : (m, p), integrands of unit scale; a column of zeros is padding and counts for nothing.
    """
    size, rank = basis.shape
    lower = jnp.linalg.cholesky(covariance)
    losses, white, q, energy = _losses(lower, basis, values)
    # P = L⁻ᵀ(1 − QQᵀ)L⁻¹ and Pf = L⁻ᵀw with the white residuals w (section 2, Hyper-parameters).
    along = solve_triangular(lower, q, lower=True, trans=1)
    image = solve_triangular(lower, white, lower=True, trans=1)
    projected = cho_solve((lower, True), jnp.eye(size, dtype=covariance.dtype)) - along @ along.T
    # Columns of zeros pad the integrands to few compiled shapes; each real one counts P once.
    real = jnp.sum(jnp.any(values != 0, axis=0))
    slope = 0.5 * (real * projected - (size - rank) * (image / energy[None, :]) @ image.T)
    return RestrictedLikelihood(losses, slope)


def _losses(
    lower: Float[Array, "m m"], basis: Float[Array, "m q"], values: Float[Array, "m p"]
) -> tuple[Float[Array, " p"], Float[Array, "m p"], Float[Array, "m q"], Float[Array, " p"]]:
    """Return the losses, the white residuals w = (1 − QQᵀ)L⁻¹f with the orthonormal Q of L⁻¹H, and
    wᵀw = fᵀPf."""
    size, rank = basis.shape
    q, r = jnp.linalg.qr(solve_triangular(lower, basis, lower=True))
    white = solve_triangular(lower, values, lower=True)
    white = white - q @ (q.T @ white)
    # An integrand in the span of H has fᵀPf = 0; its logarithm of −∞ would decide the sum over
    # integrands. Unit scale makes ‖f‖² = m, of which this is the rounding.
    energy = jnp.maximum(jnp.sum(white**2, axis=0), size * jnp.finfo(lower.dtype).eps)
    # ½ log det A is the sum of log diag L, and ½ log det HᵀA⁻¹H that of log |diag R|.
    half_logdet = jnp.sum(jnp.log(jnp.diagonal(lower))) + jnp.sum(jnp.log(jnp.abs(jnp.diagonal(r))))
    real = jnp.any(values != 0, axis=0)
    return (
        jnp.where(real, 0.5 * (size - rank) * jnp.log(energy) + half_logdet, 0.0),
        white,
        q,
        energy,
    )


PRIOR_SD = 1.5
"""Standard deviation of a normal prior on each log parameter, centred at its first start.

Without it the lengthscale of a coordinate that has no effect would be infinite.
"""

NUGGET_BOUNDS = (1e-8, 1e2)

RESTRICTED_RANGE = np.exp(3.5)
"""Factor, 33, within which parameters of the kernel stay of their start: no line search reaches a
diagonal kernel."""


class Tuned(NamedTuple):
    """A kernel and nugget at a maximum of the restricted likelihood.

    kernel, nugget : the maximiser.
    loss : negative log restricted likelihood there, nats, summed over integrands, prior included.
    gain : how much lower that is than at the start.
    num_evaluations : likelihood evaluations over all starts.
    """

    kernel: AbstractKernel
    nugget: float
    loss: float
    gain: float
    num_evaluations: int


def maximise_restricted_likelihood(
    starts: tuple[AbstractKernel, ...],
    draws: Float[np.ndarray, "m d"],
    scores: Float[np.ndarray, "m d"],
    basis: Float[np.ndarray, "m q"],
    values: Float[np.ndarray, "m p"],
    *,
    nugget: float,
    free_nugget: bool,
    shortest: float = 1 / RESTRICTED_RANGE,
    max_steps: int = 50,
) -> Tuned:
    """Tune every positive parameter of the kernel, and the nugget if it is free, for all integrands
    jointly.

    Several starts, at large lengthscales, because the likelihood has poor local optima and a single
    start leaves rare outliers (docs/mathematics.md section 2). Parameters that are zero or negative
    (a centre) are held fixed. An evaluation whose covariance is not positive definite counts as +∞,
    which the line search backs away from; if every start is one, the nugget is raised tenfold until
    it is not.

    Parameters
    ----------
    starts : kernels of one structure; their parameters are the starting points.
    draws, scores : (m, d), distinct states.
    basis : (m, q), unpenalised part. values : (m, p), integrands of unit scale.
    nugget : relative η, fixed or starting point.
    shortest : smallest parameter of the kernel, relative to its start.

    Raises
    ------
    ValueError
        If the likelihood is finite at none of the starts under any nugget.
    """
    data = jax.device_put((draws, scores, basis, pad_columns(values)))
    # All starts share one prior, centred at the first, so that their losses can be compared.
    centre = jnp.asarray(Packing(starts[0]).pack(starts[0]))
    packings, problems = [], []
    for start in starts:
        tree = Hyperparameters(start, np.asarray(nugget))
        packing = Packing(tree, free=Hyperparameters(is_positive, free_nugget))
        initial = packing.pack(tree)
        bounds = packing.box(initial, RESTRICTED_RANGE)
        # Long lengthscales are the flat limit of smooth integrands and stay free; short ones follow
        # noise and steps between draws, hence a lower bound of its own.
        bounds[:, 0] = initial + np.log(shortest)
        # The nugget's box holds its start whatever was asked for: L-BFGS-B must not begin outside.
        lowest, highest = NUGGET_BOUNDS
        bounds[packing.where(Hyperparameters(False, True))] = np.log(
            (min(lowest, nugget), max(highest, nugget))
        )
        packings.append(packing)
        problems.append(
            TrainingProblem(
                functools.partial(_restricted_loss, centre, packing, data), initial, bounds
            )
        )
    # threads that wait for each other took six times as long on two cores
    with blas_threads(len(values)):
        best = LBFGS(max_steps, memory=KERNEL_MEMORY).minimise_from(problems)
    if best is not None:
        kernel, level = jax.tree.map(np.asarray, packings[best.start].unpack(jnp.asarray(best.x)))
        return Tuned(kernel, float(level), best.value, best.gain, best.num_evaluations)
    # No start was positive definite: the question is changed as in the ladder of `factorise`.
    if nugget >= NUGGET_BOUNDS[1]:
        raise InputError(
            "maximise_restricted_likelihood: expected a positive definite Stein kernel "
            f"matrix at one start, got none at nugget {nugget:g}. Raise `nugget` or pass a "
            "kernel with a shorter lengthscale."
        )
    return maximise_restricted_likelihood(
        starts,
        draws,
        scores,
        basis,
        values,
        nugget=10.0 * nugget,
        free_nugget=free_nugget,
        shortest=shortest,
        max_steps=max_steps,
    )


@eqx.filter_jit
def _restricted_loss(
    centre: Float[Array, " k"], packing: Packing, data: tuple[Array, ...], x: Float[Array, " h"]
) -> tuple[Float[Array, ""], Float[Array, " h"]]:
    draws, scores, basis, values = data
    noise = jnp.ones(draws.shape[0], draws.dtype)
    x = jnp.asarray(x)

    def covariance(x: Float[Array, " h"]) -> Float[Array, "m m"]:
        kernel, nugget = packing.unpack(x)
        return stein_covariance(kernel, draws, scores, noise, nugget)

    # The likelihood's derivative in A is closed: reverse mode passes through the kernel matrix
    # only, not through Cholesky and QR.
    matrix, pull_back = jax.vjp(covariance, x)
    likelihood = negative_restricted_likelihood(matrix, basis, values)
    # Kernel parameters come first in x, the nugget, if free, after them; it has no prior.
    offset = x[: len(centre)] - centre
    loss = jnp.sum(likelihood.losses) + 0.5 * jnp.sum((offset / PRIOR_SD) ** 2)
    slope = pull_back(likelihood.slope)[0]
    return loss, slope.at[: len(centre)].add(offset / PRIOR_SD**2)


GRID_SPREADS = (0.1, 0.5, 2.0, 8.0, 32.0)
"""Squared lengthscales, relative to the median squared distance: short ones for corners and steps
in few dimensions, long ones for smooth posteriors."""

GRID_NUGGETS = (1e-10, 1e-7, 1e-4, 1e-2, 1.0)
"""Relative nuggets η; the large ones serve rough integrands, the least one few draws of a smooth
one."""


class GridChoice(NamedTuple):
    """A point of the grid, and the integrands it is best for.

    lengthscale, nugget : floats, on the coordinates given.
    members : indices of the integrands that use them.
    """

    lengthscale: float
    nugget: float
    members: tuple[int, ...]


def _median_squared_distance(draws: Float[np.ndarray, "m d"]) -> float:
    """Return the median of ‖x−y‖² over pairs of at most 1,000 evenly spaced draws."""
    from scipy.spatial.distance import pdist

    subset = draws[np.linspace(0, len(draws) - 1, min(len(draws), 1000)).astype(int)]
    return float(np.median(pdist(subset, "sqeuclidean"))) if len(subset) > 1 else 1.0


@jax.jit
def _grid_losses(
    draws: Float[Array, "m d"],
    scores: Float[Array, "m d"],
    basis: Float[Array, "m q"],
    values: Float[Array, "m p"],
    lengthscales: Float[Array, " a"],
    nuggets: Float[Array, " b"],
) -> Float[Array, "a b p"]:
    def of_lengthscale(lengthscale: Float[Array, ""]) -> Float[Array, "b p"]:
        gram = stein_gram(SquaredExponential(lengthscale), draws, scores)
        gram = gram / jnp.mean(jnp.diagonal(gram))
        eye = jnp.eye(gram.shape[0], dtype=gram.dtype)
        # `map`, not `vmap`: one (m, m) matrix in memory at a time.
        return jax.lax.map(
            lambda nugget: _losses(jnp.linalg.cholesky(gram + nugget * eye), basis, values)[0],
            nuggets,
        )

    return jax.lax.map(of_lengthscale, lengthscales)


def search_grid(
    draws: Float[np.ndarray, "m d"],
    scores: Float[np.ndarray, "m d"],
    basis: Float[np.ndarray, "m q"],
    values: Float[np.ndarray, "m p"],
    *,
    shared: bool,
    nuggets: tuple[float, ...] = GRID_NUGGETS,
) -> tuple[GridChoice, ...]:
    """Choose lengthscale and nugget from the grid, for every integrand by itself or, `shared`, for
    all together.

    Every grid point costs one factorisation for all integrands. The grid depends on the draws
    alone, so that what is chosen for one integrand does not depend on the others.

    Parameters
    ----------
    draws, scores : (m, d), a subset of distinct states.
    basis : (m, q), the unpenalised part, constant included.
    values : (m, p), integrands of unit scale.
    nuggets : relative η that may be chosen.
    """
    lengthscales = np.sqrt(np.asarray(GRID_SPREADS) * _median_squared_distance(draws))
    with blas_threads(len(values)):
        losses = np.asarray(
            _grid_losses(
                draws, scores, basis, pad_columns(values), lengthscales, np.asarray(nuggets)
            )
        )
    losses = losses[..., : values.shape[1]]
    # NaN would win argmin; a huge number loses to every point that is positive definite.
    flat = np.where(np.isfinite(losses), losses, 1e300).reshape(-1, values.shape[1])
    best = (
        np.full(values.shape[1], np.argmin(flat.sum(axis=1))) if shared else np.argmin(flat, axis=0)
    )
    groups = []
    for point in np.unique(best):
        i, j = divmod(int(point), len(nuggets))
        members = tuple(int(k) for k in np.flatnonzero(best == point))
        groups.append(GridChoice(float(lengthscales[i]), float(nuggets[j]), members))
    return tuple(groups)
