"""Second-order Langevin Stein kernels by matrix products."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mcmcpost._core.errors import InputTypeError
from mcmcpost.kernels import (
    AbstractKernel,
    ExponentialDotProduct,
    Field,
    InverseMultiquadric,
    Matern52,
    Polynomial,
    RationalQuadratic,
    Scaled,
    SquaredExponential,
    Sum,
    inner,
    product,
    spread,
)
from mcmcpost.linops import tile_diagonal
from mcmcpost.stein.first_order import FLUSH, OtherPoints, Points, check_states, gram_of_tile


@functools.singledispatch
def second_order_stein_block(
    kernel: AbstractKernel,
    X: Array,  # noqa: ARG001
    SX: Array,  # noqa: ARG001
    Y: Array,  # noqa: ARG001
    SY: Array,  # noqa: ARG001
) -> Float[Array, "n m"]:
    """Return k₀″(x_i, y_j) = (Δₓ + s_x·∇ₓ)(Δᵧ + s_y·∇ᵧ) k, (n, m), for the kernels that have a rule."""
    raise InputTypeError(
        "second_order_stein_gram",
        "a kernel with continuous derivatives ΔₓΔᵧk: SquaredExponential, Matern52, RationalQuadratic, "
        "InverseMultiquadric, Polynomial, ExponentialDotProduct, or a Scaled or Sum of these",
        type(kernel).__name__,
        "Matern32 is too rough for it; first-order kernels (stein_gram) take every kernel.",
    )


@second_order_stein_block.register
def _(kernel: Scaled, X: Array, SX: Array, Y: Array, SY: Array) -> Array:
    return jnp.asarray(kernel.amplitude, X.dtype) * second_order_stein_block(kernel.kernel, X, SX, Y, SY)


@second_order_stein_block.register
def _(kernel: Sum, X: Array, SX: Array, Y: Array, SY: Array) -> Array:
    return second_order_stein_block(kernel.first, X, SX, Y, SY) + second_order_stein_block(kernel.second, X, SX, Y, SY)


@second_order_stein_block.register
def _(
    kernel: SquaredExponential | Matern52 | RationalQuadratic | InverseMultiquadric,
    X: Array,
    SX: Array,
    Y: Array,
    SY: Array,
) -> Array:
    """With Λ = diag(1/ℓ²), u = Λδ, r = δᵀΛδ, q = ‖u‖² and p = uᵀΛu, the sum of four terms in κ(r).

    ΔₓΔᵧk = 16κ⁗q² + 16κ‴(q trΛ + 2p) + κ″(4(trΛ)² + 8 trΛ²);
    s_y·∇ᵧΔₓk + s_x·∇ₓΔᵧk = (4κ″ trΛ + 8κ‴q)(s_x − s_y)·u + 8κ″(s_x − s_y)·Λu;
    s_xᵀ(∇ₓ∇ᵧᵀk)s_y = −2κ′ s_xᵀΛs_y − 4κ″(s_x·u)(s_y·u).

    Points are centred, and an r below its rounding error is a coincidence, as in the first-order kernels: there q and p
    vanish, and κ‴ and κ⁗, infinite for Matérn-5/2, are returned as 0 (κ‴p → 0 and κ⁗q² → 0 with r).
    """
    precision = spread(type(kernel).__name__, "lengthscale", kernel.lengthscale, X) ** -2
    centre = jnp.mean(Y, 0, keepdims=True)
    left, right = X - centre, Y - centre
    u_left, u_right = left * precision[None], right * precision[None]
    u = Field(u_left, -u_right)
    norms = jnp.sum(left * u_left, 1)[:, None] + jnp.sum(right * u_right, 1)[None, :]
    distance = norms - 2 * product(u_left, right)
    # The second bound keeps r^{5/2}, the divisor in the slope of κ⁗ of Matérn-5/2, from underflow.
    r = jnp.where(distance > jnp.maximum(8 * jnp.finfo(X.dtype).eps * norms, _smallest(X)), distance, 0)
    profile = kernel.derivatives(r, 4)
    _, k1, k2, k3, k4 = (jnp.where(profile[0] < math.exp(FLUSH), 0, k) for k in profile)

    from_x, from_y = inner(u, Field(SX, None)), inner(u, Field(None, SY))
    if kernel.lengthscale.ndim == 0:
        q, p, curved = precision[0] * r, precision[0] ** 2 * r, precision[0] * (from_x - from_y)
    else:
        v = Field(u_left * precision[None], -u_right * precision[None])
        q, p = jnp.maximum(inner(u, u), 0), jnp.maximum(inner(u, v), 0)
        curved = inner(v, Field(SX, -SY))
    trace, trace_square = jnp.sum(precision), jnp.sum(precision**2)
    laplacians = 16 * k4 * q**2 + 16 * k3 * (q * trace + 2 * p) + k2 * (4 * trace**2 + 8 * trace_square)
    across = (4 * k2 * trace + 8 * k3 * q) * (from_x - from_y) + 8 * k2 * curved
    return laplacians + across - 2 * k1 * product(SX * precision[None], SY) - 4 * k2 * from_x * from_y


@second_order_stein_block.register
def _(kernel: Polynomial | ExponentialDotProduct, X: Array, SX: Array, Y: Array, SY: Array) -> Array:
    """With Λ = diag(scale²), a = Λ(x − c), b = Λ(y − c) and r = (x − c)ᵀΛ(y − c), the sum of four terms in κ(r).

    ΔₓΔᵧk = κ⁗‖a‖²‖b‖² + 4κ‴aᵀΛb + 2κ″ trΛ²;
    s_y·∇ᵧΔₓk = κ‴‖b‖² s_y·a + 2κ″ s_y·Λb, and the same with x and y, a and b exchanged;
    s_xᵀ(∇ₓ∇ᵧᵀk)s_y = κ′ s_xᵀΛs_y + κ″(s_x·b)(s_y·a).
    """
    name = type(kernel).__name__
    weight = spread(name, "scale", kernel.scale, X)[None] ** 2
    middle = spread(name, "centre", kernel.centre, X)[None]
    a, b = (X - middle) * weight, (Y - middle) * weight
    r = product(a, Y - middle)
    _, k1, k2, k3, k4 = kernel.derivatives(r, 4)

    cubic = weight[0, 0] ** 2 * r if kernel.scale.ndim == 0 else product(a * weight, b)
    from_x, from_y = product(SX, b), product(a, SY)
    norm_a, norm_b = jnp.sum(a**2, 1)[:, None], jnp.sum(b**2, 1)[None, :]
    slope_x, slope_y = jnp.sum(SX * a * weight, 1)[:, None], jnp.sum(SY * b * weight, 1)[None, :]
    laplacians = k4 * norm_a * norm_b + 4 * k3 * cubic + 2 * k2 * jnp.sum(weight**2)
    across = k3 * (norm_a * from_x + norm_b * from_y) + 2 * k2 * (slope_x + slope_y)
    return laplacians + across + k1 * product(SX * weight, SY) + k2 * from_x * from_y


def _smallest(like: Array) -> float:
    return float(jnp.finfo(like.dtype).tiny) ** 0.4


class SecondOrderSteinTile(eqx.Module):
    """The second-order Stein kernel as a tile function of rows (points, scores), for a `TileOperator`."""

    kernel: AbstractKernel

    def __call__(self, rows: tuple[Points, Points], columns: tuple[OtherPoints, OtherPoints]) -> Float[Array, "n m"]:
        (X, SX), (Y, SY) = jax.tree.map(jnp.asarray, (rows, columns))
        return second_order_stein_block(self.kernel, X, SX, Y, SY)


def second_order_stein_diagonal(kernel: AbstractKernel, X: Points, SX: Points) -> Float[Array, " n"]:
    """Return k₀″(x_i, x_i), shape (n,), exact at coincidence (δ is formed as an exact zero).

    For a stationary kernel it is κ″(0)(4(trΛ)² + 8 trΛ²) − 2κ′(0) sᵀΛs.

    X, SX : (n, d) points and scores.
    """
    check_states("second_order_stein_diagonal", kernel, ("X", "SX"), X, SX)
    return tile_diagonal(SecondOrderSteinTile(kernel), (X, SX))


@eqx.filter_jit
def second_order_stein_gram(
    kernel: AbstractKernel, X: Points, SX: Points, Y: OtherPoints | None = None, SY: OtherPoints | None = None
) -> Float[Array, "n m"]:
    """Return the second-order Langevin Stein kernel k₀″ between two sets of points, by matrix products.

    k₀″(x, y) = ΔₓΔᵧk + s_y·∇ᵧΔₓk + s_x·∇ₓΔᵧk + s_xᵀ(∇ₓ∇ᵧᵀk)s_y; E_π[k₀″(·, y)] = 0 where s = ∇log π. Its functions
    are Δu + s·∇u for u in the space of k: with a polynomial k, zero-variance polynomials. The two sets may carry scores
    of different targets (the vector-valued case).

    Parameters
    ----------
    kernel : SquaredExponential, Matern52, RationalQuadratic, InverseMultiquadric, Polynomial, ExponentialDotProduct, or
        a Scaled or Sum of these.
    X, SX : (n, d) points and scores, of one dtype, which the result follows.
    Y, SY : (m, d), or both None for X with itself, when the diagonal is exact.

    Returns
    -------
    (n, m); no (n, m, d) array is formed: O(nmd), without the theorem's double sum over coordinates. Differentiable in
    the kernel's parameters. Matérn-5/2 keeps half the digits between points that nearly coincide.

    Raises
    ------
    TypeError
        for a kernel without a second-order rule.
    ValueError
        if only one of `Y` and `SY` is given.

    Source: Sun, Barp and Briol, Vector-Valued Control Variates (ICML 2023), Theorem C.1 with T = 1.
    """
    check_states("second_order_stein_gram", kernel, ("X", "SX"), X, SX)
    return gram_of_tile("second_order_stein_gram", SecondOrderSteinTile(kernel), (X, SX), Y, SY)
