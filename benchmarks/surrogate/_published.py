"""The surrogate of de Roos, Gessner and Hennig (ICML 2021), to compare with."""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from mcmcpost.gp.gradient_operator import gradient_gram, scalar_profile
from mcmcpost.gp.gradient_solvers import ProjectedCholesky
from mcmcpost.gp.surrogate import AbstractSurrogate, FittedSurrogate, farthest_points
from mcmcpost.stein import SquaredExponential


class PublishedSurrogate(AbstractSurrogate):
    """A process of zero mean with an isotropic squared exponential in all d dimensions.

    ⌊√d⌋ points and ℓ² = 0.4 d unless given. The paper trains on the first points that are a
    lengthscale apart; these are farthest-point.

    Source: section 5.3 and appendix F.3.
    """

    num_training: int | None = eqx.field(static=True, default=None)
    lengthscale: float | None = eqx.field(static=True, default=None)

    def min_gradients(self, d: int) -> int:
        return max(2, math.isqrt(d)) if self.num_training is None else self.num_training

    def fit(
        self, points: Float[Array, "n d"], gradients: Float[Array, "n d"], kept: Float[Array, " n"]
    ) -> FittedSurrogate:
        d, dtype = points.shape[1], points.dtype
        lengthscale = math.sqrt(0.4 * d) if self.lengthscale is None else self.lengthscale
        chosen = farthest_points(points, kept, self.min_gradients(d))
        profile = scalar_profile("PublishedSurrogate", SquaredExponential(lengthscale))
        origin, root = profile.origin(points[chosen]), profile.root(points[chosen])
        white = (points[chosen] - origin[None]) * root[None]
        gram = gradient_gram(profile, white, jnp.zeros((), dtype))
        solution = ProjectedCholesky().solve(gram, gradients[chosen] / root[None])
        return FittedSurrogate(
            centre=jnp.zeros(d, dtype),
            scale=jnp.ones(d, dtype),
            precision=jnp.zeros((d, d), dtype),
            slope=jnp.zeros(d, dtype),
            projection=jnp.diag(root),
            offset=root * origin,
            points=white,
            weights=solution.value,
            height=jnp.ones((), dtype),
            profile=profile,
        )
