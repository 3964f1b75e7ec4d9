"""Marginal likelihood of gradient data, exact through the projection, and its maximisation."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

from mcmcpost.gp._gradient_factor import factor_solve, outside_matrix, projected_factor
from mcmcpost.gp._gradient_gram import gradient_gram
from mcmcpost.gp._gradient_solution import check_memory, projected_dimension
from mcmcpost.gp._scalar_profile import scalar_profile
from mcmcpost.hyper import Start, is_positive, minimise_from, pack, unpack
from mcmcpost.kernels import AbstractKernel

RANGE = np.log(1e3)
"""Log parameters stay within this of their start."""
NOISE_RANGE = np.log(1e8)
TUNING_ORDER = 1200
"""Points are thinned for tuning until the projected system has at most this order."""


class GradientTuned(NamedTuple):
    """A kernel and noise at a maximum of the marginal likelihood of `num_points` of the points."""

    kernel: AbstractKernel
    noise: float
    log_likelihood: float
    num_evaluations: int
    num_points: int


def white_data(
    kernel: AbstractKernel, X: Float[Array, "n d"], observations: Float[Array, "n w"]
) -> tuple[Float[Array, "n d"], Float[Array, "n w"]]:
    """Return points and observations (n, d or 1 + d) in white coordinates."""
    profile = scalar_profile("GradientGP", kernel)
    root = profile.root(X)
    points = (X - profile.origin(X)[None]) * root[None]
    d = X.shape[1]
    values, gradients = observations[:, : observations.shape[1] - d], observations[:, observations.shape[1] - d :]
    return points, jnp.concatenate([values, gradients / root[None]], axis=1)


def gradient_log_likelihood(
    kernel: AbstractKernel, noise: Float[Array, ""], X: Float[Array, "n d"], observations: Float[Array, "n w"]
) -> Float[Array, ""]:
    """Return log N(observations; 0, K + σ²(I⊗Λ)), differentiable in kernel and noise.

    −½(gᵀK⁻¹g + (d−q) log det A₁ + log det(inside) + N log det Λ + Nw log 2π), MATH.md section 4; values have noise σ².
    Its derivative goes through no QR: holding the basis still leaves that of the log determinant exact, because a
    rank-one term leaves the basis at second order only, and the quadratic form is 2gᵀz − zᵀKz with z = K⁻¹g held still.
    """
    profile = scalar_profile("GradientGP", kernel)
    n, d = X.shape
    points, white = white_data(kernel, X, observations)
    gram = gradient_gram(profile, points, noise, with_values=observations.shape[1] > d)
    factor = projected_factor(jax.lax.stop_gradient(gram))
    z = factor_solve(factor, jax.lax.stop_gradient(white), d)
    quadratic = 2 * jnp.sum(z * white) - jnp.sum(z * gram.matmul(z))
    small = gram if factor.basis is None else gram.project(factor.basis)
    logdet = _logdet(factor.inside, small.dense()) + 2 * n * jnp.sum(jnp.log(profile.root(X)))
    if factor.basis is not None:
        logdet = logdet + (d - factor.basis.shape[1]) * _logdet(factor.outside, outside_matrix(gram))
    return -0.5 * (quadratic + logdet + white.size * np.log(2 * np.pi))


def _logdet(lower: Float[Array, "i i"], matrix: Float[Array, "i i"]) -> Float[Array, ""]:
    """Return the log determinant with its derivative tr(M⁻¹∂M), given the factor of the matrix."""
    still = jax.lax.stop_gradient(matrix)
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
    """Maximise the marginal likelihood over the positive parameters of the kernel, and the noise if it is free.

    Bounded L-BFGS on their logarithms from the kernel given. The cost is that of a Cholesky factorisation per step, so
    more points than `TUNING_ORDER` allows are thinned evenly.

    Raises
    ------
    ValueError : the likelihood is not finite at the start.
    """
    scalar = scalar_profile("GradientGP", kernel)
    n = _tuning_points(scalar.stationary, *X.shape, with_values=observations.shape[1] > X.shape[1])
    rows = np.linspace(0, len(X) - 1, n).round().astype(int)
    data = jnp.asarray(X[rows]), jnp.asarray(observations[rows])
    parameters, static = eqx.partition(kernel, is_positive)
    initial = np.append(pack(kernel), np.log(noise))
    bounds = np.stack([initial - RANGE, initial + RANGE], axis=1)
    bounds[-1] = np.log(noise) - NOISE_RANGE, np.log(noise) + NOISE_RANGE
    free = np.ones(len(initial), bool)
    free[-1] = free_noise
    loss = functools.partial(_loss_and_slope, parameters, static, *data)
    best = minimise_from([Start(loss, initial, free, bounds)], max_steps=max_steps)
    if best is None:
        raise ValueError(
            "GradientGP: expected a finite marginal likelihood at the starting kernel, got none. Raise `noise` or pass "
            "a kernel with a shorter lengthscale."
        )
    tuned = jax.tree.map(np.asarray, unpack(jnp.asarray(best.x[:-1]), parameters, static))
    return GradientTuned(tuned, float(np.exp(best.x[-1])), -best.value, best.num_evaluations, n)


def _tuning_points(stationary: bool, n: int, d: int, *, with_values: bool) -> int:
    while n > 2 and n * (projected_dimension(stationary, n, d) + with_values) > TUNING_ORDER:
        n -= 1
    check_memory("GradientGP", n * (projected_dimension(stationary, n, d) + with_values))
    return n


@eqx.filter_jit
def _loss_and_slope(
    parameters: AbstractKernel,
    static: AbstractKernel,
    X: Float[Array, "n d"],
    observations: Float[Array, "n w"],
    x: Float[Array | np.ndarray, " h"],
) -> tuple[Float[Array, ""], Float[Array, " h"]]:
    def loss(x: Float[Array, " h"]) -> Float[Array, ""]:
        return -gradient_log_likelihood(unpack(x[:-1], parameters, static), jnp.exp(x[-1]), X, observations)

    return jax.value_and_grad(loss)(jnp.asarray(x))
