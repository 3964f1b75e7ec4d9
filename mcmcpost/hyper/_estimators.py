"""Stochastic gradients of a log marginal likelihood from one block of linear solves."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mcmcpost._checks import fault
from mcmcpost.hyper._random_features import sample_prior
from mcmcpost.kernels import AbstractKernel


class Sides(NamedTuple):
    """½ Σ_s left_sᵀ (∂H) right_s is the gradient.

    left, right : (n, 1 + s).
    """

    left: Float[Array, "n k"]
    right: Float[Array, "n k"]


class AbstractEstimator(eqx.Module):
    """Which systems to solve, and how their solutions give ∂L = ½ v_yᵀ(∂H)v_y − ½ tr(H⁻¹∂H), v_y = H⁻¹y.

    The probes of a key are the same at every call, so that solutions change little from step to step and serve as
    first guesses (Lin et al. 2024, section 4).

    num_probes : s, vectors of the trace estimate.
    """

    num_probes: eqx.AbstractVar[int]

    @abc.abstractmethod
    def targets(
        self, kernel: AbstractKernel, noise: Float[Array, ""], X: Float[Array, "n d"], key: jax.Array
    ) -> Float[Array, "n s"]:
        """Return the probe right-hand sides b_j."""

    @abc.abstractmethod
    def sides(self, solved: Float[Array, "n k"], targets: Float[Array, "n s"]) -> Sides:
        """Return the factors of the gradient from the solutions [v_y, H⁻¹b_1, …]."""


class Standard(AbstractEstimator):
    """Hutchinson's trace estimator: b_j = z_j ~ N(0, I) and tr(H⁻¹∂H) ≈ mean_j (H⁻¹z_j)ᵀ(∂H)z_j (eq. 7).

    num_probes : s.
    """

    num_probes: int = 64

    def __check_init__(self) -> None:
        check_probes(self)

    def targets(
        self, kernel: AbstractKernel, noise: Float[Array, ""], X: Float[Array, "n d"], key: jax.Array
    ) -> Float[Array, "n s"]:
        del kernel, noise  # the probes are white
        return jax.random.normal(key, (X.shape[0], self.num_probes), X.dtype)

    def sides(self, solved: Float[Array, "n k"], targets: Float[Array, "n s"]) -> Sides:
        mean = -1.0 / self.num_probes
        return Sides(
            jnp.concatenate([solved[:, :1], mean * solved[:, 1:]], 1), jnp.concatenate([solved[:, :1], targets], 1)
        )


class Pathwise(AbstractEstimator):
    """b_j = f_j(X) + ε_j ~ N(0, H), so that ẑ_j = H⁻¹b_j ~ N(0, H⁻¹) and tr(H⁻¹∂H) ≈ mean_j ẑ_jᵀ(∂H)ẑ_j (eq. 8–10).

    The solutions start closer to zero, never estimate with more variance than `Standard`, and are posterior samples at
    no further solve. The prior samples f_j come from random features, which bias the gradient by about a per cent at
    2,000 features.

    num_probes : s. num_features : per term of the kernel.
    """

    num_probes: int = 64
    num_features: int = 2_000

    def __check_init__(self) -> None:
        check_probes(self)

    def targets(
        self, kernel: AbstractKernel, noise: Float[Array, ""], X: Float[Array, "n d"], key: jax.Array
    ) -> Float[Array, "n s"]:
        prior_key, noise_key = jax.random.split(key)
        prior = sample_prior(kernel, prior_key, num_features=self.num_features, num_samples=self.num_probes, like=X)
        white = jax.random.normal(noise_key, (X.shape[0], self.num_probes), X.dtype)
        return prior(X) + jnp.sqrt(noise) * white

    def sides(self, solved: Float[Array, "n k"], targets: Float[Array, "n s"]) -> Sides:
        del targets  # only their solutions count
        left = jnp.concatenate([solved[:, :1], -solved[:, 1:] / self.num_probes], 1)
        return Sides(left, solved)


def check_probes(estimator: AbstractEstimator) -> None:
    """Refuse an estimator without probes."""
    if estimator.num_probes < 1:
        where = type(estimator).__name__
        raise ValueError(fault(where, "`num_probes` of at least 1", estimator.num_probes, "Use 64."))
