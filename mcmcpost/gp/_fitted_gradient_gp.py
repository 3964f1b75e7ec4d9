"""A Gaussian process conditioned on gradients: predictions, samples and the likelihood of its data."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost._checks import fault, in_float64
from mcmcpost.gp._data import check_inputs
from mcmcpost.gp._gradient_factor import ProjectedFactor
from mcmcpost.gp._gradient_gram import GradientGram, gradient_gram
from mcmcpost.gp._gradient_likelihood import gradient_log_likelihood
from mcmcpost.gp._gradient_posterior import (
    compiled_factor,
    compiled_samples,
    posterior_gradient_covariance,
    posterior_hessian,
    posterior_mean,
    posterior_spread,
)
from mcmcpost.gp._gradient_solution import GradientSolution, check_memory, projected_dimension
from mcmcpost.gp._low_rank import DiagonalPlusLowRank
from mcmcpost.gp._scalar_profile import ScalarProfile
from mcmcpost.kernels import AbstractKernel


class GradientPrediction(NamedTuple):
    """The posterior at new inputs.

    value : (m,), up to a constant where only gradients were observed. gradient : (m, d).
    value_variance : (m,), gradient_variance : (m, d); of the process without noise, None if not asked for.
    hessian : of leading axis m, None if not asked for.
    """

    value: Float[Array | np.ndarray, " m"]
    gradient: Float[Array | np.ndarray, "m d"]
    value_variance: Float[Array | np.ndarray, " m"] | None
    gradient_variance: Float[Array | np.ndarray, "m d"] | None
    hessian: DiagonalPlusLowRank | None


class GradientSample(NamedTuple):
    """Joint draws from the posterior. value : (s, m). gradient : (s, m, d)."""

    value: Float[Array | np.ndarray, "s m"]
    gradient: Float[Array | np.ndarray, "s m d"]


@dataclasses.dataclass(frozen=True)
class FittedGradientGP:
    """A process conditioned on data.

    kernel, noise : used. mean : the prior mean, None for zero. constant : of the prior mean of values, by generalised
    least squares; zero without values. X : (n, d). solution : of the solve, with its status and cost.
    log_marginal_likelihood : of the data, None where the system is too large to factorise.
    num_evaluations : of the likelihood while tuning.
    """

    kernel: AbstractKernel
    noise: float
    mean: Callable[[Any], Any] | None
    constant: float
    X: Float[np.ndarray, "n d"]
    solution: GradientSolution
    num_evaluations: int
    profile: ScalarProfile
    origin: Float[np.ndarray, " d"]
    root: Float[np.ndarray, " d"]
    observations: Float[np.ndarray, "n w"]

    @in_float64
    def predict(self, X_new: object, *, variance: bool = True, hessian: bool = False) -> GradientPrediction:
        """Return value, gradient, their variances, and the Hessian if asked for, at X_new (m, d).

        Raises
        ------
        ValueError : X_new of another dimension or not finite, or the Hessian of a Matérn-3/2, which does not exist.
        MemoryError : variances of more points than a factorisation can hold.
        """
        inputs = check_inputs("GradientGP.predict", X_new, self.X.shape[1])
        if hessian and not self.profile.has_hessian:
            cure = "Its paths are differentiable once; use Matern52 or a smoother kernel."
            raise ValueError(fault("GradientGP.predict", "a kernel whose process has a Hessian", "Matern32", cure))
        new = (jnp.asarray(inputs) - self.origin[None]) * self.root[None]
        mean = posterior_mean(self.profile, self._points, jnp.asarray(self.solution.value), new)
        value, gradient = mean[:, 0] + self.constant, mean[:, 1:] * self.root[None]
        if self.mean is not None:
            value = value + jax.vmap(self.mean)(jnp.asarray(inputs))
            gradient = gradient + jax.vmap(jax.grad(self.mean))(jnp.asarray(inputs))
        spread = posterior_spread(self.profile, self._gram, self._factor, new) if variance else None
        return GradientPrediction(
            value,
            gradient,
            None if spread is None else spread.value,
            None if spread is None else spread.gradient * self.root[None] ** 2,
            self._hessian(inputs, new) if hessian else None,
        )

    @in_float64
    def gradient_covariance(self, x: object) -> DiagonalPlusLowRank:
        """Return the posterior covariance of the gradient at one input (d,), rank min(d, n)."""
        point = check_inputs("GradientGP.gradient_covariance", np.asarray(x)[None], self.X.shape[1])[0]
        white = (jnp.asarray(point) - self.origin) * self.root
        covariance = posterior_gradient_covariance(self.profile, self._gram, self._factor, white)
        return _rescale(covariance, jnp.asarray(self.root))

    @in_float64
    def sample(self, X_new: object, *, num_samples: int, key: Array) -> GradientSample:
        """Draw values and gradients at X_new (m, d) from the joint posterior; values up to the prior's constant.

        Raises
        ------
        MemoryError : more points, old and new, than a factorisation can hold.
        """
        inputs = check_inputs("GradientGP.sample", X_new, self.X.shape[1])
        points = len(inputs) + len(self.X)
        check_memory(
            "GradientGP.sample", points * (1 + projected_dimension(self.profile.stationary, points, self.X.shape[1]))
        )
        new = (jnp.asarray(inputs) - self.origin[None]) * self.root[None]
        drawn = compiled_samples(self.profile, self._gram, jnp.asarray(self.observations), new, key, num_samples)
        value, gradient = drawn[..., 0] + self.constant, drawn[..., 1:] * self.root[None, None]
        if self.mean is not None:
            value = value + jax.vmap(self.mean)(jnp.asarray(inputs))[None]
            gradient = gradient + jax.vmap(jax.grad(self.mean))(jnp.asarray(inputs))[None]
        return GradientSample(value, gradient)

    def value_and_gradient(self) -> Callable[[Array], tuple[Array, Array]]:
        """Return x (d,) ↦ posterior mean of value and gradient, to be traced by JAX, in the dtype of x."""
        points = (self.X - self.origin[None]) * self.root[None]

        def evaluate(x: Float[Array, " d"]) -> tuple[Float[Array, ""], Float[Array, " d"]]:
            u, weights, origin, root = (
                jnp.asarray(part, x.dtype) for part in (points, self.solution.value, self.origin, self.root)
            )
            mean = posterior_mean(self.profile, u, weights, ((x - origin) * root)[None])[0]
            value, gradient = mean[0] + jnp.asarray(self.constant, x.dtype), mean[1:] * root
            if self.mean is None:
                return value, gradient
            prior, slope = jax.value_and_grad(self.mean)(x)
            return value + prior, gradient + slope

        return evaluate

    @in_float64
    def log_marginal_likelihood(self) -> float:
        """Return log p(data | kernel, noise), nats.

        Raises
        ------
        MemoryError : more points than a factorisation can hold.
        """
        self._check_factor()
        root = jnp.asarray(self.root)[None]
        d = self.X.shape[1]
        data = jnp.asarray(self.observations)
        data = jnp.concatenate([data[:, : data.shape[1] - d], data[:, data.shape[1] - d :] * root], axis=1)
        return float(_log_likelihood(self.kernel, jnp.asarray(self.noise), jnp.asarray(self.X), data))

    @property
    def _points(self) -> Array:
        return (jnp.asarray(self.X) - self.origin[None]) * self.root[None]

    @property
    def _gram(self) -> GradientGram:
        with_values = self.observations.shape[1] > self.X.shape[1]
        return compiled_gram(self.profile, self._points, jnp.asarray(self.noise), with_values)

    @functools.cached_property
    def _factor(self) -> ProjectedFactor:
        self._check_factor()
        return jax.tree.map(np.asarray, compiled_factor(self._gram))

    def _check_factor(self) -> None:
        n, d = self.X.shape
        with_values = self.observations.shape[1] > d
        check_memory("GradientGP", n * (projected_dimension(self.profile.stationary, n, d) + with_values))

    def _hessian(self, inputs: Float[np.ndarray, "m d"], new: Float[Array, "m d"]) -> DiagonalPlusLowRank:
        inside = posterior_hessian(self.profile, self._points, jnp.asarray(self.solution.value), new)
        inside = _rescale(inside, jnp.asarray(self.root))
        if self.mean is None:
            return inside
        m, d = inputs.shape
        curvature = jax.vmap(jax.hessian(self.mean))(jnp.asarray(inputs))
        k = inside.core.shape[-1]
        core = jnp.zeros((m, k + d, k + d), curvature.dtype).at[:, :k, :k].set(inside.core).at[:, k:, k:].set(curvature)
        whole = jnp.broadcast_to(jnp.eye(d, dtype=curvature.dtype)[None], (m, d, d))
        return DiagonalPlusLowRank(inside.diagonal, jnp.concatenate([inside.factor, whole], axis=-1), core)


def _rescale(white: DiagonalPlusLowRank, root: Float[Array, " d"]) -> DiagonalPlusLowRank:
    factor = jnp.broadcast_to(root[:, None], white.factor.shape) * white.factor
    return DiagonalPlusLowRank(white.diagonal * jnp.broadcast_to(root**2, white.diagonal.shape), factor, white.core)


compiled_gram = eqx.filter_jit(
    lambda profile, points, noise, with_values: gradient_gram(profile, points, noise, with_values=with_values)
)
_log_likelihood = eqx.filter_jit(gradient_log_likelihood)
