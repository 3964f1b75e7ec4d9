"""Gaussian processes conditioned on gradients: tuned and fitted."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mcmcpost._checks import as_float64, fault, in_float64
from mcmcpost.gp._data import check_inputs, refuse_rows
from mcmcpost.gp._fitted_gradient_gp import FittedGradientGP, compiled_gram
from mcmcpost.gp._gradient_likelihood import tune_gradient_kernel, white_data
from mcmcpost.gp._gradient_solution import AbstractGradientSolver
from mcmcpost.gp._gradient_solvers import Automatic, solve_system
from mcmcpost.gp._scalar_profile import scalar_profile
from mcmcpost.kernels import AbstractKernel, Matern52, Scaled

START_NOISE = 1e-6
"""Noise that tuning starts from, relative to the mean square of the white gradients."""


class GradientGP(eqx.Module):
    """A Gaussian process observed through its gradients, and its values if they are given.

    kernel : one profile (`SquaredExponential`, `Matern52`, `Polynomial`, …), or `Scaled` one; the start of tuning.
        None is `Scaled` `Matern52` with one lengthscale per coordinate: it has Hessians, and is conditioned 100–500
        times better than the squared exponential on trajectories. The amplitude of a kernel without `Scaled` is one.
    noise : σ² of the noise σ²(I⊗Λ) on gradients and σ² on values; None is tuned, or zero without tuning.
    solver : None is `Automatic`.
    mean : a JAX function of one point (d,), the prior mean; its gradient and Hessian come from autodiff.
    tune : whether to maximise the marginal likelihood over the kernel's positive parameters and the noise.
    max_steps : of L-BFGS.

    Source: de Roos, Gessner and Hennig, High-Dimensional Gaussian Process Inference with Derivatives (ICML 2021).
    """

    kernel: AbstractKernel | None = None
    noise: float | None = None
    solver: AbstractGradientSolver | None = None
    mean: Callable[[Any], Any] | None = None
    tune: bool = True
    max_steps: int = 50

    def __check_init__(self) -> None:
        if self.noise is not None and not (np.isfinite(self.noise) and self.noise >= 0):
            raise ValueError(fault("GradientGP", "`noise` finite and not negative", self.noise, "Give a variance."))

    @in_float64
    def fit(self, X: object, gradients: object, values: object = None) -> "FittedGradientGP":
        """Condition on gradients (n, d), and values (n,) or None, at inputs X (n, d).

        Raises
        ------
        TypeError : a kernel without gradients or without one profile.
        ValueError : data of the wrong shape or not finite.
        MemoryError : more points than the solver's arrays can hold.
        """
        inputs = check_inputs("GradientGP", X, None)
        observations = self._observations(inputs, gradients, values)
        kernel = _default_kernel(inputs, observations) if self.kernel is None else self.kernel
        noise = 0.0 if self.noise is None else float(self.noise)
        centred = observations.copy()
        if values is not None:
            centred[:, 0] -= centred[:, 0].mean()
        evaluations = 0
        if self.tune:
            white = np.asarray(white_data(kernel, jnp.asarray(inputs), jnp.asarray(observations))[1])
            scale = float(np.mean(white[:, -inputs.shape[1] :] ** 2)) or 1.0
            start = noise or START_NOISE * scale
            free = self.noise is None
            if not free:
                start = max(noise, np.finfo(float).tiny)
            tuned = tune_gradient_kernel(kernel, start, inputs, centred, free_noise=free, max_steps=self.max_steps)
            kernel, evaluations = tuned.kernel, tuned.num_evaluations
            noise = tuned.noise if free else noise
        return _condition(self, kernel, noise, inputs, observations, evaluations)

    def _observations(self, X: Float[np.ndarray, "n d"], gradients: object, values: object) -> Float[np.ndarray, "n w"]:
        slopes = as_float64("GradientGP", "gradients", gradients, "n, d")
        if slopes.shape != X.shape:
            raise ValueError(fault("GradientGP", f"`gradients` of the shape of `X`, {X.shape}", slopes.shape, "Match."))
        refuse_rows("GradientGP", "gradients", ~np.isfinite(slopes).all(axis=1))
        if self.mean is not None:
            slopes = slopes - np.asarray(jax.vmap(jax.grad(self.mean))(jnp.asarray(X)))
        if values is None:
            return slopes
        heights = as_float64("GradientGP", "values", values, "n")
        if len(heights) != len(X):
            raise ValueError(fault("GradientGP", f"{len(X)} `values`", len(heights), "Give one per row of `X`."))
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
    points, white = white_data(kernel, jnp.asarray(X), jnp.asarray(observations))
    with_values = observations.shape[1] > X.shape[1]
    n, d = X.shape
    solver.check(profile, n, d, with_values)
    gram = compiled_gram(profile, points, jnp.asarray(noise), with_values)
    constant = 0.0
    if with_values:
        ones = jnp.zeros_like(white).at[:, 0].set(1.0)
        weights = solve_system(solver, profile, gram, ones).value
        constant = float(jnp.sum(weights * white) / jnp.sum(weights * ones))
        white = white - constant * ones
    solution = solve_system(solver, profile, gram, white)
    parts = (profile, profile.origin(jnp.asarray(X)), profile.root(X), white)
    solution, *rest = jax.tree.map(np.asarray, (solution, *parts))
    return FittedGradientGP(kernel, noise, process.mean, constant, X, solution, evaluations, *rest)


def _default_kernel(X: Float[np.ndarray, "n d"], observations: Float[np.ndarray, "n w"]) -> AbstractKernel:
    """Return Matérn-5/2 with the spread of each coordinate times √(2d), the distance of two points, to start with."""
    spread = X.std(axis=0)
    tiny = np.finfo(float).eps * np.abs(X).max(axis=0)
    lengthscale = np.where(spread > tiny, spread, 1.0) * np.sqrt(2 * X.shape[1])
    white = observations[:, -X.shape[1] :] * lengthscale
    # Matérn-5/2 of amplitude a has white gradients of variance −2κ′(0) a = 5a/3.
    return Scaled(0.6 * float(np.mean(white**2)) or 1.0, Matern52(lengthscale))
