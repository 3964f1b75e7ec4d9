"""Dot-product kernels: a profile κ of r = (x − c)ᵀΛ(y − c), Λ = diag(scale²)."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from mcmcpost._core.arguments import check_count
from mcmcpost.kernels.base import (
    AbstractKernel,
    OtherPoints,
    Parameter,
    Point,
    Points,
    Profile,
    check_parameter,
    parameter,
    spread,
)
from mcmcpost.kernels.jet import Field, Jet, Term, product


def scaled_product(where: str, scale: Parameter, centre: Parameter, x: Point, y: Point) -> Float[Array, ""]:
    """Return r = (x − c)ᵀΛ(y − c) for one pair of points (d,)."""
    left, right = jnp.asarray(x), jnp.asarray(y)
    middle = spread(where, "centre", centre, left)
    return jnp.sum(spread(where, "scale", scale, left) ** 2 * (left - middle) * (right - middle))


def dot_product_jet(
    where: str, scale: Parameter, centre: Parameter, derivatives: Profile, x: Points, y: OtherPoints
) -> Jet:
    """Return the jet of κ(r) between x (n, d) and y (m, d): docs/mathematics.md section 1, table of dot-product
    kernels.

    With x̃ = x − c, ỹ = y − c: ∇ₓk = κ′Λỹ, ∇ᵧk = κ′Λx̃ and ∇ₓ·∇ᵧk = κ′ trΛ + κ″ x̃ᵀΛ²ỹ.
    """
    weight = spread(where, "scale", scale, x) ** 2
    middle = spread(where, "centre", centre, x)[None]
    left, right = (x - middle) * weight[None], (y - middle) * weight[None]
    r = product(left, y - middle)
    k, k1, k2 = derivatives(r, 2)
    square = weight[0] * r if scale.ndim == 0 else product(left, right)
    return Jet(
        k,
        (Term(k1, Field(None, right)),),
        (Term(k1, Field(left, None)),),
        k1 * jnp.sum(weight) + k2 * square,
    )


class Polynomial(AbstractKernel):
    """κ(r) = (r + offset)^degree, r = (x − c)ᵀΛ(y − c).

    degree : integer, at least 1.
    offset : scalar, not negative.
    scale : scalar or (d,); positive; Λ = diag(scale²).
    centre : scalar or (d,).
    """

    degree: int = eqx.field(static=True)
    offset: Parameter = eqx.field(converter=parameter, default=1.0)
    scale: Parameter = eqx.field(converter=parameter, default=1.0)
    centre: Parameter = eqx.field(converter=parameter, default=0.0)

    def __check_init__(self) -> None:
        check_count("Polynomial", "degree", self.degree, "Use degree 1, 2, …")
        check_parameter("Polynomial", "offset", self.offset, positive=False, scalar=True)
        check_parameter("Polynomial", "scale", self.scale)
        check_parameter("Polynomial", "centre", self.centre, lower=-float("inf"))

    def derivatives(self, r: Float[Array, "..."], order: int) -> tuple[Float[Array, "..."], ...]:
        """Return κ, κ′, …, κ^(order), elementwise: falling factorials times (r + offset)^{degree − j}."""
        base = r + jnp.asarray(self.offset, r.dtype)
        values, factor = [], 1
        for j in range(order + 1):
            values.append(factor * base ** (self.degree - j) if j <= self.degree else jnp.zeros_like(base))
            factor *= self.degree - j
        return tuple(values)

    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        return self.derivatives(scaled_product("Polynomial", self.scale, self.centre, x, y), 0)[0]

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        return dot_product_jet("Polynomial", self.scale, self.centre, self.derivatives, x, y)


class ExponentialDotProduct(AbstractKernel):
    """κ(r) = exp(r), r = (x − c)ᵀΛ(y − c); overflows unless the points are scaled to order one.

    scale : scalar or (d,); positive; Λ = diag(scale²).
    centre : scalar or (d,).
    """

    scale: Parameter = eqx.field(converter=parameter, default=1.0)
    centre: Parameter = eqx.field(converter=parameter, default=0.0)

    def __check_init__(self) -> None:
        check_parameter("ExponentialDotProduct", "scale", self.scale)
        check_parameter("ExponentialDotProduct", "centre", self.centre, lower=-float("inf"))

    def derivatives(self, r: Float[Array, "..."], order: int) -> tuple[Float[Array, "..."], ...]:
        """Return κ, κ′, …, κ^(order), elementwise: all are exp(r)."""
        return (jnp.exp(r),) * (order + 1)

    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        return self.derivatives(scaled_product("ExponentialDotProduct", self.scale, self.centre, x, y), 0)[0]

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        return dot_product_jet("ExponentialDotProduct", self.scale, self.centre, self.derivatives, x, y)
