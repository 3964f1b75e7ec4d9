"""Rational stationary kernels: powers of 1 + r/c, with polynomial tails."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from mcmcpost.kernels._base import AbstractKernel
from mcmcpost.kernels._jet import Jet
from mcmcpost.kernels._parameters import OtherPoints, Parameter, Point, Points, check_parameter, parameter
from mcmcpost.kernels._stationary import squared_distance, stationary_jet


def power_derivatives(
    r: Float[Array, "..."], exponent: Float[Array, ""], width: Float[Array, ""] | float, order: int
) -> tuple[Float[Array, "..."], ...]:
    """Return κ, κ′, …, κ^(order) of κ(r) = (1 + r/width)^{−exponent}, elementwise.

    κ^(j) = (−1/width)^j (exponent)_j (1 + r/width)^{−exponent−j}, (·)_j the rising factorial.
    """
    values = [jnp.exp(-exponent * jnp.log1p(r / width))]
    for j in range(order):
        values.append(-(exponent + j) / (width + r) * values[-1])
    return tuple(values)


class RationalQuadratic(AbstractKernel):
    """κ(r) = (1 + r/(2α))^{−α}: a mixture of squared exponentials of all lengthscales.

    lengthscale : scalar or (d,); positive.
    alpha : scalar; positive. The squared exponential is the limit α → ∞.
    """

    lengthscale: Parameter = eqx.field(converter=parameter, default=1.0)
    alpha: Parameter = eqx.field(converter=parameter, default=1.0)

    def __check_init__(self) -> None:
        check_parameter("RationalQuadratic", "lengthscale", self.lengthscale)
        check_parameter("RationalQuadratic", "alpha", self.alpha, scalar=True)

    def derivatives(self, r: Float[Array, "..."], order: int) -> tuple[Float[Array, "..."], ...]:
        """Return κ, κ′, …, κ^(order) at r ≥ 0, elementwise."""
        alpha = jnp.asarray(self.alpha, r.dtype)
        return power_derivatives(r, alpha, 2 * alpha, order)

    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        return self.derivatives(squared_distance("RationalQuadratic", self.lengthscale, x, y), 0)[0]

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        return stationary_jet("RationalQuadratic", self.lengthscale, self.derivatives, x, y)


class InverseMultiquadric(AbstractKernel):
    """κ(r) = (1 + r)^{−exponent}: with exponent in (0, 1) its Stein discrepancy controls weak convergence.

    lengthscale : scalar or (d,); positive.
    exponent : scalar; positive.

    Source: Gorham and Mackey, Measuring Sample Quality with Kernels (ICML 2017), Theorem 8.
    """

    lengthscale: Parameter = eqx.field(converter=parameter, default=1.0)
    exponent: Parameter = eqx.field(converter=parameter, default=0.5)

    def __check_init__(self) -> None:
        check_parameter("InverseMultiquadric", "lengthscale", self.lengthscale)
        check_parameter("InverseMultiquadric", "exponent", self.exponent, scalar=True)

    def derivatives(self, r: Float[Array, "..."], order: int) -> tuple[Float[Array, "..."], ...]:
        """Return κ, κ′, …, κ^(order) at r ≥ 0, elementwise."""
        return power_derivatives(r, jnp.asarray(self.exponent, r.dtype), 1.0, order)

    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        return self.derivatives(squared_distance("InverseMultiquadric", self.lengthscale, x, y), 0)[0]

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        return stationary_jet("InverseMultiquadric", self.lengthscale, self.derivatives, x, y)
