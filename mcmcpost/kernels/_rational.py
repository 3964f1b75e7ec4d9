"""Rational stationary kernels: powers of 1 + r/c, with polynomial tails."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost.kernels._base import AbstractKernel
from mcmcpost.kernels._jet import Jet
from mcmcpost.kernels._parameters import OtherPoints, Parameter, Point, Points, check_parameter, parameter
from mcmcpost.kernels._stationary import squared_distance, stationary_jet


def power_derivatives(
    value: Float[Array, "..."], inverse: Float[Array, "..."], exponent: Float[Array, ""] | float, order: int
) -> tuple[Float[Array, "..."], ...]:
    """Return κ, κ′, …, κ^(order) of κ(r) = (1 + r/c)^{−exponent}, elementwise, from κ and 1/(c + r).

    κ^(j) = (−1/c)^j (exponent)_j (1 + r/c)^{−exponent−j}, (·)_j the rising factorial.
    """
    values = [value]
    for j in range(order):
        values.append(-(exponent + j) * inverse * values[-1])
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
        value = jnp.exp(-alpha * jnp.log1p(r / (2 * alpha)))
        return power_derivatives(value, 1 / (2 * alpha + r), alpha, order)

    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        return self.derivatives(squared_distance("RationalQuadratic", self.lengthscale, x, y), 0)[0]

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        return stationary_jet("RationalQuadratic", self.lengthscale, self.derivatives, x, y)


def _optional(value: object) -> Array | np.ndarray | None:
    return None if value is None else parameter(value)


class InverseMultiquadric(AbstractKernel):
    """κ(r) = (1 + r)^{−exponent}: with exponent in (0, 1) its Stein discrepancy controls weak convergence.

    lengthscale : scalar or (d,); positive.
    exponent : scalar; positive. Without one it is ½ and is never tuned: a square root in place of a logarithm, up to
        four times as fast in Stein products (``benchmarks.kernel_product --stein``).

    Source: Gorham and Mackey, Measuring Sample Quality with Kernels (ICML 2017), Theorem 8.
    """

    lengthscale: Parameter = eqx.field(converter=parameter, default=1.0)
    exponent: Parameter | None = eqx.field(converter=_optional, default=None)

    def __check_init__(self) -> None:
        check_parameter("InverseMultiquadric", "lengthscale", self.lengthscale)
        if self.exponent is not None:
            check_parameter("InverseMultiquadric", "exponent", self.exponent, scalar=True)

    def derivatives(self, r: Float[Array, "..."], order: int) -> tuple[Float[Array, "..."], ...]:
        """Return κ, κ′, …, κ^(order) at r ≥ 0, elementwise."""
        inverse = 1 / (1 + r)
        if self.exponent is None:
            return power_derivatives(jnp.sqrt(inverse), inverse, 0.5, order)
        exponent = jnp.asarray(self.exponent, r.dtype)
        return power_derivatives(jnp.exp(-exponent * jnp.log1p(r)), inverse, exponent, order)

    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        return self.derivatives(squared_distance("InverseMultiquadric", self.lengthscale, x, y), 0)[0]

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        return stationary_jet("InverseMultiquadric", self.lengthscale, self.derivatives, x, y)
