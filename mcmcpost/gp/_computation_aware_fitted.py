"""A fitted computation-aware process: predictions, the two parts of their variance, samples."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, PRNGKeyArray

from mcmcpost._checks import fault, in_float64
from mcmcpost.gp._computation_aware_posterior import Projection, joint_covariance, predict, prior_variance
from mcmcpost.gp._data import Prediction, Training, check_inputs
from mcmcpost.gp._training import TrainingRecord
from mcmcpost.kernels import AbstractKernel, gram
from mcmcpost.linsolve import factorise

SPLIT_LIMIT = 8_192
"""Training rows up to which the exact posterior is computed, for the split of the variance: 0.5 GB."""


class SplitPrediction(NamedTuple):
    """The posterior with its variance in two parts.

    mean : (n,). mathematical : (n,), what the data leave unknown, the exact posterior's. computational : (n,), what
    the budget leaves unknown on top. combined : (n,), their sum, the variance of `predict`.
    """

    mean: Float[np.ndarray, " n"]
    mathematical: Float[np.ndarray, " n"]
    computational: Float[np.ndarray, " n"]
    combined: Float[np.ndarray, " n"]


class FittedComputationAwareGP(eqx.Module):
    """A computation-aware process and its data.

    kernel, noise : in units of standardised outputs, y = centre + scale·output.
    projection : the data as its actions see them: `rank` of `num_actions` are independent; `nugget` was added to the
        projected system, `raised` where that is more than rounding.
    record : how training went.
    """

    kernel: AbstractKernel
    noise: float
    projection: Projection
    record: TrainingRecord
    training: Training

    @property
    def num_actions(self) -> int:
        """Actions taken: the number asked for, or n where the data have fewer rows."""
        return self.projection.actions.num_actions

    def predict(self, X: object, *, noise: bool = True) -> Prediction:
        """Return mean and combined variance at X (n, d), in the units of y; the noise is included by default.

        Raises
        ------
        TypeError, ValueError : not numbers, not finite, or of other columns than the training inputs.
        """
        inputs = check_inputs("predict", X, self.training.X.shape[1])
        mean, variance = _predict(self.kernel, self.projection, self.training.X, inputs)
        return Prediction(self._mean(mean), self._variance(variance + self.noise * noise))

    def predict_split(self, X: object, *, noise: bool = True) -> SplitPrediction:
        """Return the variance at X (n, d) as mathematical plus computational; the noise counts as mathematical.

        Needs the exact posterior, an n×n factorisation: for up to 8,192 training rows.

        Raises
        ------
        TypeError, ValueError : as `predict`; too many training rows.
        """
        rows = len(self.training.outputs)
        if rows > SPLIT_LIMIT:
            cure = "`predict` gives the combined variance."
            raise ValueError(fault("predict_split", f"at most {SPLIT_LIMIT} training rows", rows, cure))
        inputs = check_inputs("predict_split", X, self.training.X.shape[1])
        mean, combined = _predict(self.kernel, self.projection, self.training.X, inputs)
        exact = _exact_variance(self.kernel, np.asarray(self.noise), self.training.X, inputs)
        mathematical = self._variance(exact + self.noise * noise)
        computational = self._variance(np.maximum(combined - exact, 0))  # an exact zero may round below
        return SplitPrediction(self._mean(mean), mathematical, computational, mathematical + computational)

    def sample(self, X: object, num_samples: int, *, key: PRNGKeyArray, noise: bool = False) -> np.ndarray:
        """Return joint posterior samples (num_samples, n) of the latent function at X (n, d), or of y with noise.

        Raises
        ------
        TypeError, ValueError : as `predict`.
        """
        inputs = check_inputs("sample", X, self.training.X.shape[1])
        added = np.asarray(self.noise * noise)
        mean, lower = _joint(self.kernel, self.projection, self.training.X, inputs, added)
        normal = in_float64(jax.random.normal)(key, (num_samples, len(inputs)))
        return self._mean(mean[None, :] + normal @ lower.T)

    def _mean(self, values: Any) -> np.ndarray:
        return self.training.centre + self.training.scale * values

    def _variance(self, values: Any) -> np.ndarray:
        return self.training.scale**2 * values


@in_float64
@eqx.filter_jit
def _predict(
    kernel: AbstractKernel,
    projection: Projection,
    X: Float[Array | np.ndarray, "m d"],
    Z: Float[Array | np.ndarray, "o d"],
) -> tuple[Float[Array, " o"], Float[Array, " o"]]:
    return predict(kernel, jnp.asarray(X), projection, jnp.asarray(Z))


@in_float64
@eqx.filter_jit
def _exact_variance(
    kernel: AbstractKernel,
    noise: Float[Array | np.ndarray, ""],
    X: Float[Array | np.ndarray, "m d"],
    Z: Float[Array | np.ndarray, "o d"],
) -> Float[Array, " o"]:
    points, inputs = jnp.asarray(X), jnp.asarray(Z)
    lower = jnp.linalg.cholesky(gram(kernel, points) + noise * jnp.eye(len(points)))
    explained = solve_triangular(lower, gram(kernel, points, inputs), lower=True)
    return jnp.maximum(prior_variance(kernel, inputs) - jnp.sum(explained**2, axis=0), 0)


@in_float64
@eqx.filter_jit
def _joint(
    kernel: AbstractKernel,
    projection: Projection,
    X: Float[Array | np.ndarray, "m d"],
    Z: Float[Array | np.ndarray, "o d"],
    noise: Float[Array | np.ndarray, ""],
) -> tuple[Float[Array, " o"], Float[Array, "o o"]]:
    """Return the mean and a Cholesky factor of the covariance, raised by rounding where it is singular."""
    points, inputs = jnp.asarray(X), jnp.asarray(Z)
    mean, _ = predict(kernel, points, projection, inputs)
    covariance = joint_covariance(kernel, points, projection, inputs) + noise * jnp.eye(len(inputs))
    floor = jnp.finfo(covariance.dtype).eps * jnp.mean(prior_variance(kernel, inputs))
    return mean, factorise(covariance, jnp.ones(len(inputs)), floor).lower
