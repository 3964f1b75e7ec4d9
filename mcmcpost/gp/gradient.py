"""Gaussian processes conditioned on gradients: tuning, conditioning and prediction."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost.core.arguments import (
    as_float64,
    check_count,
    check_flags,
    check_function,
    check_key,
    check_kind,
    check_number,
    check_size,
)
from mcmcpost.core.errors import InputError, fault, warn
from mcmcpost.core.precision import in_float64
from mcmcpost.gp import gradient_posterior
from mcmcpost.gp.data import check_inputs, refuse_rows
from mcmcpost.gp.gradient_operator import (
    GradientGram,
    ScalarProfile,
    check_memory,
    gradient_gram,
    projected_dimension,
    scalar_profile,
)
from mcmcpost.gp.gradient_solvers import (
    AbstractGradientSolver,
    Automatic,
    GradientSolution,
    solve_system,
)
from mcmcpost.scores import check_scalar
from mcmcpost.stein import AbstractKernel, Matern52, Scaled


class GradientPrediction(NamedTuple):
    """The posterior at new inputs.

    value : (m,), up to a constant where only gradients were observed. gradient : (m, d).
    value_variance : (m,), gradient_variance : (m, d); of the process without noise, None if not
        asked for.
    hessian : of leading axis m, None if not asked for.
    """

    value: Float[Array | np.ndarray, " m"]
    gradient: Float[Array | np.ndarray, "m d"]
    value_variance: Float[Array | np.ndarray, " m"] | None
    gradient_variance: Float[Array | np.ndarray, "m d"] | None
    hessian: gradient_posterior.DiagonalPlusLowRank | None


class GradientSample(NamedTuple):
    """Joint draws from the posterior. value : (s, m). gradient : (s, m, d)."""

    value: Float[Array | np.ndarray, "s m"]
    gradient: Float[Array | np.ndarray, "s m d"]


@dataclasses.dataclass(frozen=True)
class FittedGradientGP:
    """A process conditioned on data.

    kernel, noise : used. mean : the prior mean, None for zero. constant : of the prior mean of
    values, by generalised least squares; zero without values. X : (n, d). solution : of the solve,
    with its status and cost.
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
    def predict(
        self, X_new: object, *, variance: bool = True, hessian: bool = False
    ) -> GradientPrediction:
        """Return value, gradient, their variances, and the Hessian if asked for, at X_new (m, d).

        Raises
        ------
        ValueError : X_new of another dimension or not finite, or the Hessian of a Matérn-3/2, which
            does not exist.
        MemoryError : variances of more points than a factorisation can hold.
        """
        check_flags("GradientGP.predict", variance=variance, hessian=hessian)
        inputs = check_inputs("GradientGP.predict", X_new, self.X.shape[1])
        if hessian and not self.profile.has_hessian:
            cure = "Its paths are differentiable once; use Matern52 or a smoother kernel."
            raise InputError(
                "GradientGP.predict", "a kernel whose process has a Hessian", "Matern32", cure
            )
        new = (jnp.asarray(inputs) - self.origin[None]) * self.root[None]
        mean = gradient_posterior.posterior_mean(
            self.profile, self._points, jnp.asarray(self.solution.value), new
        )
        # Out of white coordinates (section 4): g = Λ^{1/2} times the white gradient, variances by
        # its square.
        value, gradient = mean[:, 0] + self.constant, mean[:, 1:] * self.root[None]
        if self.mean is not None:
            value = value + jax.vmap(self.mean)(jnp.asarray(inputs))
            gradient = gradient + jax.vmap(jax.grad(self.mean))(jnp.asarray(inputs))
        spread = (
            gradient_posterior.posterior_spread(self.profile, self._gram, self._factor, new)
            if variance
            else None
        )
        return GradientPrediction(
            value,
            gradient,
            None if spread is None else spread.value,
            None if spread is None else spread.gradient * self.root[None] ** 2,
            self._hessian(inputs, new) if hessian else None,
        )

    @in_float64
    def gradient_covariance(self, x: object) -> gradient_posterior.DiagonalPlusLowRank:
        """Return the posterior covariance of the gradient at one input (d,), rank min(d, n)."""
        where = "GradientGP.gradient_covariance"
        point = check_inputs(where, as_float64(where, "x", x, "d")[None], self.X.shape[1])[0]
        white = (jnp.asarray(point) - self.origin) * self.root
        covariance = gradient_posterior.posterior_gradient_covariance(
            self.profile, self._gram, self._factor, white
        )
        return _rescale(covariance, jnp.asarray(self.root))

    @in_float64
    def sample(self, X_new: object, *, num_samples: int, key: Array) -> GradientSample:
        """Draw values and gradients at X_new (m, d) from the joint posterior; values up to the
        prior's constant.

        Raises
        ------
        MemoryError : more points, old and new, than a factorisation can hold.
        """
        check_count("GradientGP.sample", "num_samples", num_samples, "Ask for some.")
        check_key("GradientGP.sample", key)
        inputs = check_inputs("GradientGP.sample", X_new, self.X.shape[1])
        points = len(inputs) + len(self.X)
        # Joint draws factorise old and new points together, in the span of both.
        check_memory(
            "GradientGP.sample",
            points * (1 + projected_dimension(self.profile.stationary, points, self.X.shape[1])),
        )
        new = (jnp.asarray(inputs) - self.origin[None]) * self.root[None]
        drawn = gradient_posterior.compiled_samples(
            self.profile, self._gram, jnp.asarray(self.observations), new, key, num_samples
        )
        value, gradient = drawn[..., 0] + self.constant, drawn[..., 1:] * self.root[None, None]
        if self.mean is not None:
            value = value + jax.vmap(self.mean)(jnp.asarray(inputs))[None]
            gradient = gradient + jax.vmap(jax.grad(self.mean))(jnp.asarray(inputs))[None]
        return GradientSample(value, gradient)

    def value_and_gradient(self) -> Callable[[Array], tuple[Array, Array]]:
        """Return x (d,) ↦ posterior mean of value and gradient, to be traced by JAX, in the dtype
        of x."""
        points = (self.X - self.origin[None]) * self.root[None]

        def evaluate(x: Float[Array, " d"]) -> tuple[Float[Array, ""], Float[Array, " d"]]:
            # In the dtype of x: this function runs inside samplers, in whichever precision they
            # have.
            u, weights, origin, root = (
                jnp.asarray(array, x.dtype)
                for array in (points, self.solution.value, self.origin, self.root)
            )
            mean = gradient_posterior.posterior_mean(
                self.profile, u, weights, ((x - origin) * root)[None]
            )[0]
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
        # Observations are kept white; the likelihood whitens by itself, for its derivative in the
        # lengthscales.
        data = jnp.concatenate(
            [data[:, : data.shape[1] - d], data[:, data.shape[1] - d :] * root], axis=1
        )
        return float(
            _log_likelihood(self.kernel, jnp.asarray(self.noise), jnp.asarray(self.X), data)
        )

    @property
    def _points(self) -> Array:
        return (jnp.asarray(self.X) - self.origin[None]) * self.root[None]

    @property
    def _gram(self) -> GradientGram:
        with_values = self.observations.shape[1] > self.X.shape[1]
        return compiled_gram(self.profile, self._points, jnp.asarray(self.noise), with_values)

    @functools.cached_property
    def _factor(self) -> gradient_posterior.ProjectedFactor:
        self._check_factor()
        # As NumPy arrays: the factor in double precision outlives the 64-bit scope of this call.
        return jax.tree.map(np.asarray, gradient_posterior.compiled_factor(self._gram))

    def _check_factor(self) -> None:
        n, d = self.X.shape
        with_values = self.observations.shape[1] > d
        check_memory(
            "GradientGP", n * (projected_dimension(self.profile.stationary, n, d) + with_values)
        )

    def _hessian(
        self, inputs: Float[np.ndarray, "m d"], new: Float[Array, "m d"]
    ) -> gradient_posterior.DiagonalPlusLowRank:
        inside = gradient_posterior.posterior_hessian(
            self.profile, self._points, jnp.asarray(self.solution.value), new
        )
        inside = _rescale(inside, jnp.asarray(self.root))
        if self.mean is None:
            return inside
        m, d = inputs.shape
        # The prior mean's Hessian may have full rank: it joins as the factor I with itself as core.
        curvature = jax.vmap(jax.hessian(self.mean))(jnp.asarray(inputs))
        k = inside.core.shape[-1]
        core = (
            jnp.zeros((m, k + d, k + d), curvature.dtype)
            .at[:, :k, :k]
            .set(inside.core)
            .at[:, k:, k:]
            .set(curvature)
        )
        whole = jnp.broadcast_to(jnp.eye(d, dtype=curvature.dtype)[None], (m, d, d))
        return gradient_posterior.DiagonalPlusLowRank(
            inside.diagonal, jnp.concatenate([inside.factor, whole], axis=-1), core
        )


def _rescale(
    white: gradient_posterior.DiagonalPlusLowRank, root: Float[Array, " d"]
) -> gradient_posterior.DiagonalPlusLowRank:
    factor = jnp.broadcast_to(root[:, None], white.factor.shape) * white.factor
    return gradient_posterior.DiagonalPlusLowRank(
        white.diagonal * jnp.broadcast_to(root**2, white.diagonal.shape), factor, white.core
    )


compiled_gram = eqx.filter_jit(
    lambda profile, points, noise, with_values: gradient_gram(
        profile, points, noise, with_values=with_values
    )
)

_log_likelihood = eqx.filter_jit(gradient_posterior.gradient_log_likelihood)

START_NOISE = 1e-6
"""Noise that tuning starts from, relative to the mean square of the white gradients."""


class GradientGP(eqx.Module):
    """A Gaussian process observed through its gradients, and its values if they are given.

    kernel : one profile (`SquaredExponential`, `Matern52`, `Polynomial`, …), or `Scaled` one; the
        start of tuning. None is `Scaled` `Matern52` with one lengthscale per coordinate: it has
        Hessians, and is conditioned 100–500 times better than the squared exponential on
        trajectories. The amplitude of a kernel without `Scaled` is one.
    noise : σ² of the noise σ²(I⊗Λ) on gradients and σ² on values; None is tuned, or zero without
        tuning.
    solver : None is `Automatic`.
    mean : a JAX function of one point (d,), the prior mean; its gradient and Hessian come from
        autodiff.
    tune : whether to maximise the marginal likelihood over the kernel's positive parameters and the
        noise.
    max_steps : of L-BFGS.

    Source: de Roos, Gessner and Hennig, High-Dimensional Gaussian Process Inference with
    Derivatives (ICML 2021).
    """

    kernel: AbstractKernel | None = None
    noise: float | None = None
    solver: AbstractGradientSolver | None = None
    mean: Callable[[Any], Any] | None = None
    tune: bool = True
    max_steps: int = 50

    def __check_init__(self) -> None:
        check_kind(
            "GradientGP", "kernel", self.kernel, (AbstractKernel, None), "Such as Matern52()."
        )
        check_kind(
            "GradientGP",
            "solver",
            self.solver,
            (AbstractGradientSolver, None),
            "Such as Automatic().",
        )
        check_number(
            "GradientGP", "noise", self.noise, "Give a variance.", inside="[0, inf)", optional=True
        )
        check_function(
            "GradientGP",
            "mean",
            self.mean,
            1,
            "It is the prior mean of one point (d,).",
            optional=True,
        )
        check_flags("GradientGP", tune=self.tune)
        check_count("GradientGP", "max_steps", self.max_steps, "Or tune=False.")

    @in_float64
    def fit(self, X: object, gradients: object, values: object = None) -> "FittedGradientGP":
        """Condition on gradients (n, d), and values (n,) or None, at inputs X (n, d).

        Raises
        ------
        TypeError : a kernel without gradients or without one profile.
        ValueError : data of the wrong shape or not finite.
        MemoryError : more points than the solver's arrays can hold.

        Warns
        -----
        UserWarning : the solve ended before its tolerance: it had too few steps, or gradients
            contradict each other.
        """
        inputs = check_inputs("GradientGP", X, None)
        observations = self._observations(inputs, gradients, values)
        kernel = _default_kernel(inputs, observations) if self.kernel is None else self.kernel
        noise = 0.0 if self.noise is None else float(self.noise)
        # Tuning has no constant: the mean stands for the one that `_condition` finds by least
        # squares.
        centred = observations.copy()
        if values is not None:
            centred[:, 0] -= centred[:, 0].mean()
        evaluations = 0
        if self.tune:
            white = np.asarray(
                gradient_posterior.white_data(
                    kernel, jnp.asarray(inputs), jnp.asarray(observations)
                )[1]
            )
            # Relative to the white gradients, so that the start does not depend on the units of the
            # data.
            scale = float(np.mean(white[:, -inputs.shape[1] :] ** 2)) or 1.0
            free = self.noise is None
            start = START_NOISE * scale if free else noise
            tuned = gradient_posterior.tune_gradient_kernel(
                kernel, start, inputs, centred, free_noise=free, max_steps=self.max_steps
            )
            kernel, noise, evaluations = tuned.kernel, tuned.noise, tuned.num_evaluations
        fitted = _condition(self, kernel, noise, inputs, observations, evaluations)
        if not fitted.solution.converged:
            got = f"{float(fitted.solution.residual):.1g}"
            cure = (
                "The mean is off by more than the variance says. Raise `noise`, or the solver's "
                "steps."
            )
            warn(
                fault(
                    "GradientGP.fit",
                    "a solution to the solver's tolerance",
                    f"a relative residual of {got}",
                    cure,
                )
            )
        return fitted

    def _observations(
        self, X: Float[np.ndarray, "n d"], gradients: object, values: object
    ) -> Float[np.ndarray, "n w"]:
        slopes = as_float64("GradientGP", "gradients", gradients, "n, d")
        if slopes.shape != X.shape:
            raise InputError(
                "GradientGP", f"`gradients` of the shape of `X`, {X.shape}", slopes.shape, "Match."
            )
        refuse_rows("GradientGP", "gradients", ~np.isfinite(slopes).all(axis=1))
        check_size("GradientGP", "gradients", slopes)
        if self.mean is not None:
            check_scalar("GradientGP", self.mean, X.shape[1], "mean")
            slopes = slopes - np.asarray(jax.vmap(jax.grad(self.mean))(jnp.asarray(X)))
        if values is None:
            return slopes
        heights = as_float64("GradientGP", "values", values, "n")
        if len(heights) != len(X):
            raise InputError(
                "GradientGP", f"{len(X)} `values`", len(heights), "Give one per row of `X`."
            )
        refuse_rows("GradientGP", "values", ~np.isfinite(heights))
        if self.mean is not None:
            heights = heights - np.asarray(jax.vmap(self.mean)(jnp.asarray(X)))
        return np.concatenate([heights[:, None], slopes], axis=1)


def _condition(
    process: GradientGP,
    kernel: AbstractKernel,
    noise: float,
    X: Float[np.ndarray, "n d"],
    observations: Float[np.ndarray, "n w"],
    evaluations: int,
) -> FittedGradientGP:
    profile = scalar_profile("GradientGP", kernel)
    solver = Automatic() if process.solver is None else process.solver
    points, white = gradient_posterior.white_data(kernel, jnp.asarray(X), jnp.asarray(observations))
    with_values = observations.shape[1] > X.shape[1]
    n, d = X.shape
    # Before the Gram's N² entries exist.
    solver.check(profile, n, d, with_values)
    gram = compiled_gram(profile, points, jnp.asarray(noise), with_values)
    constant = 0.0
    if with_values:
        # 1ᵀK⁻¹f/1ᵀK⁻¹1 by one solve for the vector of ones, as in section 5, One right-hand side;
        # gradients do not see a constant.
        ones = jnp.zeros_like(white).at[:, 0].set(1.0)
        weights = solve_system(solver, profile, gram, ones).value
        constant = float(jnp.sum(weights * white) / jnp.sum(weights * ones))
        # The same system with the constant taken out: the weights are linear in the data.
        white = white - constant * ones
    solution = solve_system(solver, profile, gram, white)
    parts = (profile, profile.origin(jnp.asarray(X)), profile.root(X), white)
    solution, *arrays = jax.tree.map(np.asarray, (solution, *parts))
    return FittedGradientGP(
        kernel, noise, process.mean, constant, X, solution, evaluations, *arrays
    )


def _default_kernel(
    X: Float[np.ndarray, "n d"], observations: Float[np.ndarray, "n w"]
) -> AbstractKernel:
    """Return Matérn-5/2 with the spread of each coordinate times √(2d), the distance of two points,
    to start with."""
    spread = X.std(axis=0)
    # A coordinate that is constant but for rounding gives no lengthscale.
    tiny = np.finfo(float).eps * np.abs(X).max(axis=0)
    lengthscale = np.where(spread > tiny, spread, 1.0) * np.sqrt(2 * X.shape[1])
    white = observations[:, -X.shape[1] :] * lengthscale
    # Matérn-5/2 of amplitude a has white gradients of variance −2κ′(0) a = 5a/3.
    return Scaled(0.6 * float(np.mean(white**2)) or 1.0, Matern52(lengthscale))
