"""The half-integer Bessel profiles behind the Matérn family, closed under differentiation."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


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
