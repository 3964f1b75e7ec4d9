"""Stationary kernels: a profile κ of r = Σ (x_i − y_i)²/ℓ_i², with its derivatives in closed form.

There is no Matérn-1/2: its sample paths have no gradient, so neither its Stein kernel nor its gradient process exists.
"""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from mcmcpost.kernels._base import AbstractKernel
from mcmcpost.kernels._bessel import bessel
from mcmcpost.kernels._jet import Field, Jet, Term, inner, product
from mcmcpost.kernels._parameters import OtherPoints, Parameter, Point, Points, check_parameter, parameter, spread

type Profile = Callable[[Array, int], tuple[Array, ...]]


def squared_distance(where: str, lengthscale: Parameter, x: Point, y: Point) -> Float[Array, ""]:
    """Return r = Σ (x_i − y_i)²/ℓ_i² for one pair of points (d,)."""
    point = jnp.asarray(x)
    return jnp.sum(((point - jnp.asarray(y)) / spread(where, "lengthscale", lengthscale, point)) ** 2)


def stationary_jet(where: str, lengthscale: Parameter, derivatives: Profile, x: Points, y: OtherPoints) -> Jet:
    """Return the jet of κ(r) between x (n, d) and y (m, d): MATH.md section 1, table of stationary kernels.

    With Λ = diag(1/ℓ²) and δ = x − y: ∇ₓk = 2κ′Λδ = −∇ᵧk and ∇ₓ·∇ᵧk = −2κ′ trΛ − 4κ″‖Λδ‖². Points are centred before
    r is formed from matrix products, and an r below its own rounding error is a coincidence, r = 0: the profiles of
    rough kernels have infinite derivatives there, which must not meet rounding noise. So points closer than 4e-8 of the
    extent of the data are one point, in single precision those closer than a thousandth of it.
    """
    precision = 1 / spread(where, "lengthscale", lengthscale, x) ** 2
    centre = jnp.mean(y, 0, keepdims=True)
    left, right = x - centre, y - centre
    left_scaled, right_scaled = left * precision[None], right * precision[None]
    norms = jnp.sum(left * left_scaled, 1)[:, None] + jnp.sum(right * right_scaled, 1)[None, :]
    distance = norms - 2 * product(left_scaled, right)
    r = jnp.where(distance <= 8 * jnp.finfo(x.dtype).eps * norms, 0, distance)  # NaN stays NaN
    k, k1, k2 = derivatives(r, 2)
    difference = Field(left_scaled, -right_scaled)
    # Isotropic: ‖Λδ‖² = r/ℓ², one matrix product less.
    square = precision[0] * r if lengthscale.ndim == 0 else jnp.maximum(inner(difference, difference), 0)
    return Jet(
        k,
        (Term(2 * k1, difference),),
        (Term(-2 * k1, difference),),
        -2 * k1 * jnp.sum(precision) - 4 * k2 * square,
    )


class SquaredExponential(AbstractKernel):
    """κ(r) = exp(−r/2), r = Σ (x_i − y_i)²/ℓ_i².

    lengthscale : scalar, or (d,) for one per coordinate (ARD); positive.
    """

    lengthscale: Parameter = eqx.field(converter=parameter, default=1.0)

    def __check_init__(self) -> None:
        check_parameter("SquaredExponential", "lengthscale", self.lengthscale)

    def derivatives(self, r: Float[Array, "..."], order: int) -> tuple[Float[Array, "..."], ...]:
        """Return κ, κ′, …, κ^(order) at r ≥ 0, elementwise."""
        k = jnp.exp(-0.5 * r)
        return tuple((-0.5) ** j * k for j in range(order + 1))

    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        return self.derivatives(squared_distance("SquaredExponential", self.lengthscale, x, y), 0)[0]

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        return stationary_jet("SquaredExponential", self.lengthscale, self.derivatives, x, y)


class Matern32(AbstractKernel):
    """κ(r) = (1 + s) e^{−s}, s = √(3r): once differentiable paths, enough for a first-order Stein kernel.

    κ″ and beyond are infinite at r = 0 and returned as 0 there: they only ever multiply δ = 0.

    lengthscale : scalar, or (d,) for one per coordinate (ARD); positive.
    """

    lengthscale: Parameter = eqx.field(converter=parameter, default=1.0)

    def __check_init__(self) -> None:
        check_parameter("Matern32", "lengthscale", self.lengthscale)

    def derivatives(self, r: Float[Array, "..."], order: int) -> tuple[Float[Array, "..."], ...]:
        """Return κ, κ′, …, κ^(order) at r ≥ 0, elementwise; 0 where infinite."""
        return tuple((-1.5) ** j * bessel(1 - j, 3 * r) for j in range(order + 1))

    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        return self.derivatives(squared_distance("Matern32", self.lengthscale, x, y), 0)[0]

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        return stationary_jet("Matern32", self.lengthscale, self.derivatives, x, y)


class Matern52(AbstractKernel):
    """κ(r) = (1 + s + s²/3) e^{−s}, s = √(5r): twice differentiable paths.

    κ‴ and beyond are infinite at r = 0 and returned as 0 there: they only ever multiply δ = 0.

    lengthscale : scalar, or (d,) for one per coordinate (ARD); positive.
    """

    lengthscale: Parameter = eqx.field(converter=parameter, default=1.0)

    def __check_init__(self) -> None:
        check_parameter("Matern52", "lengthscale", self.lengthscale)

    def derivatives(self, r: Float[Array, "..."], order: int) -> tuple[Float[Array, "..."], ...]:
        """Return κ, κ′, …, κ^(order) at r ≥ 0, elementwise; 0 where infinite."""
        return tuple((-2.5) ** j / 3 * bessel(2 - j, 5 * r) for j in range(order + 1))

    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        return self.derivatives(squared_distance("Matern52", self.lengthscale, x, y), 0)[0]

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        return stationary_jet("Matern52", self.lengthscale, self.derivatives, x, y)
