"""Training objectives of computation-aware processes: a bound on the evidence, the evidence of the projected data."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from mcmcpost.gp._actions import AbstractActions
from mcmcpost.gp._computation_aware_posterior import condition, prior_variance
from mcmcpost.kernels import AbstractKernel


class AbstractObjective(eqx.Module):
    """A loss of kernel, noise and actions."""

    @abc.abstractmethod
    def __call__(
        self,
        kernel: AbstractKernel,
        noise: Float[Array, ""],
        X: Float[Array, "n d"],
        outputs: Float[Array, " n"],
        actions: AbstractActions,
    ) -> Float[Array, ""]:
        """Return the loss in nats, of all data together; differentiable in kernel, noise and actions."""


class EvidenceBound(AbstractObjective):
    """−ELBO = NLL + KL(q‖p) ≥ NLL, q the computation-aware posterior: eq. 11 of Wenger et al. (2024).

    ½[(‖y − K S ṽ‖² + Σ_j K_i(x_j, x_j))/σ² + (n − i) log σ² + n log 2π + ṽᵀSᵀKSṽ − tr((SᵀK̂S)⁻¹SᵀKS)
    + log det SᵀK̂S − log det SᵀS].
    """

    @eqx.filter_jit
    def __call__(
        self,
        kernel: AbstractKernel,
        noise: Float[Array, ""],
        X: Float[Array, "n d"],
        outputs: Float[Array, " n"],
        actions: AbstractActions,
    ) -> Float[Array, ""]:
        p = condition(kernel, noise, X, outputs, actions)
        n, i = p.image.shape
        explained = solve_triangular(p.lower, p.image.T, lower=True)
        spread = jnp.maximum(jnp.sum(prior_variance(kernel, X)) - jnp.sum(explained**2), 0)
        misfit = jnp.sum((outputs - p.image @ p.weights) ** 2)
        shrinkage = jnp.trace(cho_solve((p.lower, True), p.inner))
        fit = (misfit + spread) / noise + (n - i) * jnp.log(noise) + n * jnp.log(2 * jnp.pi)
        complexity = p.weights @ p.inner @ p.weights - shrinkage
        return 0.5 * (fit + complexity + _log_volume(p.lower, p.metric))


class ProjectedLikelihood(AbstractObjective):
    """−log p(Sᵀy): the evidence of the projected data alone, eq. 9; it generalises badly, for comparison.

    ½[yᵀS(SᵀK̂S)⁻¹Sᵀy + log det SᵀK̂S − log det SᵀS + i log 2π], i the number of independent actions.
    """

    @eqx.filter_jit
    def __call__(
        self,
        kernel: AbstractKernel,
        noise: Float[Array, ""],
        X: Float[Array, "n d"],
        outputs: Float[Array, " n"],
        actions: AbstractActions,
    ) -> Float[Array, ""]:
        p = condition(kernel, noise, X, outputs, actions)
        rank = p.rank.astype(p.weights.dtype)
        missing = (len(p.weights) - rank) * jnp.log(noise)  # the fictitious observations of absent directions
        constant = rank * jnp.log(2 * jnp.pi)
        return 0.5 * (p.data @ p.weights + _log_volume(p.lower, p.metric) - missing + constant)


def _log_volume(lower: Float[Array, "i i"], metric: Float[Array, "i i"]) -> Float[Array, ""]:
    """Return log det LLᵀ − log det of the metric."""
    reference = jnp.linalg.cholesky(metric)
    return 2 * jnp.sum(jnp.log(jnp.diagonal(lower)) - jnp.log(jnp.diagonal(reference)))
