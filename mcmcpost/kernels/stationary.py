"""Stationary kernels: a profile κ of r = Σ (x_i − y_i)²/ℓ_i², with its derivatives in closed form.

There is no Matérn-1/2: its sample paths have no gradient, so neither its Stein kernel nor its gradient process exists.
"""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

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
from mcmcpost.kernels.jet import Field, Jet, Term, inner, product


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def bessel(p: int, t: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return G_μ(s) = √(2/π) s^μ K_μ(s) with s = √t and μ = p + 1/2, elementwise; 0 where it is infinite.

    G_μ(s) = θ_p(s) e^{−s} for p ≥ 0 and θ_n(s) e^{−s}/s^{2n+1}, n = −p − 1, for p < 0, with the reverse Bessel
    polynomials θ₀ = 1, θ₁ = 1 + s, θ_n = (2n−1) θ_{n−1} + s² θ_{n−2}. Since dG_μ/dt = −G_{μ−1}/2, every derivative of a
    Matérn profile is again such a function, with no cancellation near t = 0, where the closed forms of the tables
    lose every digit.

    Parameters
    ----------
    p : order; Matérn-3/2 is G_{3/2}(√(3r)), p = 1; Matérn-5/2 is G_{5/2}(√(5r))/3, p = 2.
    t : s² ≥ 0, any shape.
    """
    s = jnp.sqrt(t)
    if p >= 0:
        return _reverse_bessel(p, s) * jnp.exp(-s)
    n = -p - 1
    away = jnp.where(t > 0, s, 1)
    return jnp.where(t > 0, _reverse_bessel(n, away) * jnp.exp(-away) / away ** (2 * n + 1), 0)


@bessel.defjvp
def _bessel_jvp(p: int, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (t,), (tangent,) = primals, tangents
    return bessel(p, t), -0.5 * bessel(p - 1, t) * tangent


def _reverse_bessel(n: int, s: Float[Array, "..."]) -> Float[Array, "..."]:
    previous, current = jnp.ones_like(s), 1 + s
    if n == 0:
        return previous
    for j in range(2, n + 1):
        previous, current = current, (2 * j - 1) * current + s**2 * previous
    return current


def squared_distance(where: str, lengthscale: Parameter, x: Point, y: Point) -> Float[Array, ""]:
    """Return r = Σ (x_i − y_i)²/ℓ_i² for one pair of points (d,)."""
    point = jnp.asarray(x)
    return jnp.sum(((point - jnp.asarray(y)) / spread(where, "lengthscale", lengthscale, point)) ** 2)


def stationary_jet(where: str, lengthscale: Parameter, derivatives: Profile, x: Points, y: OtherPoints) -> Jet:
    """Return the jet of κ(r) between x (n, d) and y (m, d): docs/mathematics.md section 1, table of stationary kernels.

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
        four times as fast in Stein products (``benchmarks.linops.kernel_product --stein``).

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
