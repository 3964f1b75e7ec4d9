"""A fitted iterative process: predictions and posterior samples."""

import dataclasses
import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from mcmcpost._checks import fault, in_float64
from mcmcpost.gp._data import Prediction, Training, check_inputs
from mcmcpost.hyper import Pathwise, sample_prior
from mcmcpost.kernels import AbstractKernel, gram
from mcmcpost.linops import KernelTile, Regularised, TileOperator, kernel_operator
from mcmcpost.linsolve import AbstractIterativeSolver, Outcome, Solver, solve

EXACT_RTOL = 1e-6
CHUNK = 512
"""New rows whose exact variances are solved for together."""


class FittedIterativeGP(eqx.Module):
    """What `IterativeGP.fit` returns; kernel and noise are those of outputs of unit variance.

    mean_weights : (m,) H⁻¹y. sample_weights : (m, s) H⁻¹(f_j(X) + ε_j), None without random features.
    factor : (m, m) Cholesky factor of H after an exact fit, else None.
    sampler, key_data : of the prior samples f_j.
    info : JSON-able facts: solver and why it was chosen, outcome, residuals, epochs, parameters along the way.
    """

    training: Training
    kernel: AbstractKernel
    noise: float
    solver: Solver
    sampler: Pathwise
    mean_weights: Float[np.ndarray, " m"]
    sample_weights: Float[np.ndarray, "m s"] | None
    factor: Float[np.ndarray, "m m"] | None
    key_data: np.ndarray
    info: dict[str, Any]

    def predict(self, X: object, *, noise: bool = True, exact_variance: bool = False) -> Prediction:
        """Return the posterior mean and variance at X (n, d), in units of y and y².

        After an exact fit the variance is exact. After an iterative one it is the mean square of the posterior samples
        about the mean, with relative error √(2/s); `exact_variance` solves one more system per row of X, to a relative
        residual of 1e-6 or the solver's own if that is smaller. What is left of it enters to second order and can only
        enlarge the variance: with c = k(X, x), v ≈ H⁻¹c is used as 2vᵀc − vᵀHv ≤ cᵀH⁻¹c.

        noise : whether the variance includes that of a new observation.

        Warns
        -----
        UserWarning : solves of an exact variance that ended before their tolerance.
        """
        points = check_inputs("FittedIterativeGP.predict", X, self.training.X.shape[1])
        mean, variance = map(np.asarray, in_float64(self._predict)(points, exact_variance))
        scale, centre = self.training.scale, self.training.centre
        return Prediction(centre + scale * mean, scale**2 * (variance + (self.noise if noise else 0.0)))

    def sample(self, X: object) -> Float[np.ndarray, "n s"]:
        """Return s posterior functions at X (n, d), without noise; the same functions at every call.

        Pathwise conditioning (Wilson et al. 2021): f_j(x) + k(x, X)H⁻¹(y − f_j(X) − ε_j), at no further solve.
        """
        points = check_inputs("FittedIterativeGP.sample", X, self.training.X.shape[1])
        if self.sample_weights is None:
            kind = type(self.kernel).__name__
            raise ValueError(fault("FittedIterativeGP.sample", "a kernel with random features", kind, "Use predict."))
        samples = in_float64(self._samples)(points)
        return np.asarray(self.training.centre + self.training.scale * samples)

    @property
    def _key(self) -> jax.Array:
        return jax.random.wrap_key_data(jnp.asarray(self.key_data))

    def _cross(self, points: Array, weights: Array) -> Array:
        train = jnp.asarray(self.training.X)
        operator = TileOperator(KernelTile(self.kernel), train, jnp.ones(len(train), train.dtype))
        return operator.cross_matmul(points, weights)

    def _samples(self, points: np.ndarray) -> Array:
        new = jnp.asarray(points)
        assert self.sample_weights is not None
        prior_key, _ = jax.random.split(self._key)  # as Pathwise.targets splits it
        prior = sample_prior(
            self.kernel,
            prior_key,
            num_features=self.sampler.num_features,
            num_samples=self.sample_weights.shape[1],
            like=new,
        )
        weights = jnp.asarray(self.mean_weights)[:, None] - jnp.asarray(self.sample_weights)
        return prior(new) + self._cross(new, weights)

    def _predict(self, points: np.ndarray, exact_variance: bool) -> tuple[Array, Array]:
        new = jnp.asarray(points)
        mean = self._cross(new, jnp.asarray(self.mean_weights)[:, None])[:, 0]
        if self.factor is not None or exact_variance or self.sample_weights is None:
            parts = [self._exact_variance(new[i : i + CHUNK]) for i in range(0, len(new), CHUNK)]
            return mean, jnp.concatenate(parts)
        return mean, jnp.mean((self._samples(points) - mean[:, None]) ** 2, axis=1)

    def _exact_variance(self, points: Array) -> Array:
        train = jnp.asarray(self.training.X)
        cross = gram(self.kernel, train, points)
        prior = jax.vmap(lambda x: gram(self.kernel, x[None])[0, 0])(points)
        if self.factor is not None:
            explained = jnp.sum(solve_triangular(jnp.asarray(self.factor), cross, lower=True) ** 2, axis=0)
        else:
            system = Regularised(kernel_operator(self.kernel, train), jnp.asarray(self.noise))
            assert isinstance(self.solver, AbstractIterativeSolver)
            tight = dataclasses.replace(self.solver, rtol=min(self.solver.rtol, EXACT_RTOL))
            solution = solve(system, cross, tight, key=self._key)
            if int(solution.outcome) != Outcome.CONVERGED:
                worst = float(solution.residual_norms.max())
                how = f"{Outcome(int(solution.outcome)).name.lower()} at {worst:.1g}"
                wanted = f"exact variances, solved to {tight.rtol:g}"
                cure = "They are too large. Give the solver more budget or rank, or use sampled variances."
                warnings.warn(fault("FittedIterativeGP.predict", wanted, how, cure), stacklevel=5)
            explained = jnp.sum(solution.value * (cross + solution.residual), axis=0)
        return jnp.maximum(prior - explained, 0)
