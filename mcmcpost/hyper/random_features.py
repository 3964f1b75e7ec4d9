"""Prior samples of stationary kernels by random Fourier features, with the spectral law of each kernel."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mcmcpost._core.errors import InputError
from mcmcpost.kernels import (
    STATIONARY,
    AbstractKernel,
    InverseMultiquadric,
    Matern32,
    Matern52,
    Product,
    RationalQuadratic,
    Scaled,
    SquaredExponential,
    Sum,
    spread,
)

ROWS = 4_096
"""Rows whose features exist at once."""


def has_random_features(kernel: AbstractKernel) -> bool:
    """Return whether `sample_prior` knows the spectral law of this kernel."""
    match kernel:
        case Scaled():
            return has_random_features(kernel.kernel)
        case Sum() | Product():
            return has_random_features(kernel.first) and has_random_features(kernel.second)
        case _:
            return isinstance(kernel, STATIONARY)


class Spectrum(NamedTuple):
    """Equal-weight frequencies of one stationary kernel.

    frequencies : (d, r). amplitude : variance of the process.
    """

    frequencies: Float[Array, "d r"]
    amplitude: Float[Array, ""]


class PriorSample(NamedTuple):
    """Samples f_j(x) = Σ_i √(a/r) (u_ij sin ω_iᵀx + v_ij cos ω_iᵀx), summed over spectra of amplitude a.

    weights : (2r, s) per spectrum, standard normal.
    """

    spectra: tuple[Spectrum, ...]
    weights: tuple[Float[Array, "q s"], ...]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n s"]:
        """Return the samples at X (n, d), as (n, s)."""
        return jax.lax.map(self._at, X, batch_size=ROWS)

    def _at(self, x: Float[Array, " d"]) -> Float[Array, " s"]:
        total = jnp.zeros(self.weights[0].shape[1], x.dtype)
        for spectrum, weight in zip(self.spectra, self.weights, strict=True):
            angles = x @ spectrum.frequencies
            waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)])
            total = total + jnp.sqrt(spectrum.amplitude / angles.shape[0]) * (waves @ weight)
        return total


def sample_prior(
    kernel: AbstractKernel, key: jax.Array, *, num_features: int, num_samples: int, like: Float[Array, "n d"]
) -> PriorSample:
    """Return samples of the process with this kernel; a smooth function of its parameters for a fixed key.

    The law of the frequencies is the kernel's own: normal for the squared exponential, multivariate t with 2ν degrees
    of freedom for Matérn-ν (one χ² per frequency vector, not per coordinate), gamma mixtures for the rational kernels;
    a product adds frequencies, a sum adds samples. Rahimi and Recht (2008); the covariance is exact on average over
    keys only, and `num_features` bound its error at one key.

    Parameters
    ----------
    num_features : sines and cosines together, per term of a sum.
    like : (n, d), for its dimension and dtype.

    Raises
    ------
    ValueError : a kernel that is not stationary; use the standard estimator for it.
    """
    frequency_key, weight_key = jax.random.split(key)
    spectra = _spectra(kernel, frequency_key, max(1, num_features // 2), like)
    keys = jax.random.split(weight_key, len(spectra))
    weights = tuple(
        jax.random.normal(key, (2 * s.frequencies.shape[1], num_samples), like.dtype)
        for key, s in zip(keys, spectra, strict=True)
    )
    return PriorSample(spectra, weights)


def _spectra(kernel: AbstractKernel, key: jax.Array, r: int, like: Array) -> tuple[Spectrum, ...]:
    first, second = jax.random.split(key)
    match kernel:
        case Scaled():
            a = jnp.asarray(kernel.amplitude, like.dtype)
            return tuple(Spectrum(s.frequencies, a * s.amplitude) for s in _spectra(kernel.kernel, key, r, like))
        case Sum():
            return _spectra(kernel.first, first, r, like) + _spectra(kernel.second, second, r, like)
        case Product():
            left, right = _spectra(kernel.first, first, r, like), _spectra(kernel.second, second, r, like)
            return tuple(
                Spectrum(a.frequencies + b.frequencies, a.amplitude * b.amplitude) for a in left for b in right
            )
        case SquaredExponential():
            precision = jnp.ones(r, like.dtype)
        case Matern32() | Matern52():
            half = 1.5 if isinstance(kernel, Matern32) else 2.5
            precision = half / jax.random.gamma(second, half, (r,), like.dtype)
        case RationalQuadratic():
            alpha = jnp.asarray(kernel.alpha, like.dtype)
            precision = jax.random.gamma(second, alpha, (r,), like.dtype) / alpha
        case InverseMultiquadric():
            exponent = jnp.asarray(0.5 if kernel.exponent is None else kernel.exponent, like.dtype)
            precision = 2 * jax.random.gamma(second, exponent, (r,), like.dtype)
        case _:
            raise InputError(
                "sample_prior",
                "a stationary kernel, or scales, sums and products of them",
                type(kernel).__name__,
                "It has no random Fourier features; use Standard(), or Cholesky().",
            )
    width = spread(type(kernel).__name__, "lengthscale", kernel.lengthscale, like)
    directions = jax.random.normal(first, (like.shape[1], r), like.dtype)
    return (Spectrum(directions * jnp.sqrt(precision)[None] / width[:, None], jnp.ones((), like.dtype)),)
