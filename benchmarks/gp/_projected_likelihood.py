"""The objective that computation-aware processes are not trained by: the evidence of the projected
data alone."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from mcmcpost.gp.computation_aware import AbstractObjective
from mcmcpost.stein import AbstractKernel


class ProjectedLikelihood(AbstractObjective):
    """−log p(Sᵀy), (9) of Wenger et al. (2024), which generalises badly: it says nothing of the
    directions unseen.

    ½[yᵀS(SᵀK̂S)⁻¹Sᵀy + log det SᵀK̂S − log det SᵀS + i log 2π], i the number of independent
    actions.
    """

    @eqx.filter_jit
    def __call__(
        self,
        kernel: AbstractKernel,
        noise: Float[Array, ""],
        X: Float[Array, "n d"],
        outputs: Float[Array, " n"],
        actions: Any,
    ) -> Float[Array, ""]:
        actions, dead = actions.normalised()
        inner = actions.project(actions.image(kernel, X))
        metric = actions.gram() + jnp.diag(dead.astype(inner.dtype))
        lower = jnp.linalg.cholesky(0.5 * (inner + inner.T) + noise * metric)
        white = solve_triangular(lower, actions.project(outputs[:, None])[:, 0], lower=True)
        volume = jnp.sum(
            jnp.log(jnp.diagonal(lower)) - jnp.log(jnp.diagonal(jnp.linalg.cholesky(metric)))
        )
        absent = jnp.sum(dead)  # a direction that is absent counts as an observation of pure noise
        seen = (len(dead) - absent) * jnp.log(2 * jnp.pi)
        return 0.5 * (white @ white + 2 * volume - absent * jnp.log(noise) + seen)
