"""A frozen surrogate of a potential energy: quadratic plus a gradient Gaussian process in a few directions."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mcmcpost.gp import ScalarProfile, posterior_mean


class EnergyAndGradient(NamedTuple):
    """A potential energy and its gradient at one point (d,)."""

    energy: Float[Array, ""]
    gradient: Float[Array, " d"]


class FittedSurrogate(NamedTuple):
    """Ê(x) = ½wᵀSw + bᵀw + γ m(Pw − o), w = (x − centre)/scale, m the posterior mean of a process, up to a constant.

    centre, scale : (d,). precision, slope : S (d, d) and b (d,) of the quadratic. projection, offset : P (q, d) and
    o (q,), into the white coordinates of the process. points, weights : (m, q), its training points and solution.
    height : γ. profile : of its kernel.
    """

    centre: Float[Array, " d"]
    scale: Float[Array, " d"]
    precision: Float[Array, "d d"]
    slope: Float[Array, " d"]
    projection: Float[Array, "q d"]
    offset: Float[Array, " q"]
    points: Float[Array, "m q"]
    weights: Float[Array, "m q"]
    height: Float[Array, ""]
    profile: ScalarProfile

    def evaluate(self, x: Float[Array, " d"]) -> EnergyAndGradient:
        """Return Ê and ∇Ê: the gradient field is that of an energy, so its leapfrog keeps volume and is reversible."""
        w = (x - self.centre) / self.scale
        pull = self.precision @ w
        mean = posterior_mean(self.profile, self.points, self.weights, (self.projection @ w - self.offset)[None])[0]
        energy = 0.5 * (w @ pull) + self.slope @ w + self.height * mean[0]
        return EnergyAndGradient(
            energy, (pull + self.slope + self.height * (self.projection.T @ mean[1:])) / self.scale
        )


def relative_error(
    surrogate: FittedSurrogate, points: Float[Array, "n d"], gradients: Float[Array, "n d"], kept: Float[Array, " n"]
) -> Float[Array, ""]:
    """Return the root mean square error of ∇Ê over that of the gradient, both times `scale`; infinite without points.

    kept : (n,) one for the points to use, zero for the others.
    """
    found = jax.lax.map(lambda x: surrogate.evaluate(x).gradient, points, batch_size=256)
    square = jnp.sum(((found - gradients) * surrogate.scale[None]) ** 2, axis=1) @ kept
    size = jnp.sum((gradients * surrogate.scale[None]) ** 2, axis=1) @ kept
    error = jnp.sqrt(square / size)
    return jnp.where(jnp.isfinite(error), error, jnp.inf)
