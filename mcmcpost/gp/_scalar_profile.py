"""Kernels as profiles of one scalar, in coordinates where their scale matrix is the identity."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost._checks import fault
from mcmcpost.kernels import (
    DOT_PRODUCT,
    STATIONARY,
    AbstractKernel,
    DotProduct,
    Matern32,
    Scaled,
    Stationary,
    product,
    spread,
)

type Points = Float[Array, "n d"]
type OtherPoints = Float[Array, "m d"]


class Terms(NamedTuple):
    """The profile between two sets of points, with the signs and factors of the derivatives of the kernel.

    value : (m, n) κ. first : (m, n) −2κ′ (stationary) or κ′. second : −4κ″ or κ″. third : −8κ‴ or κ‴, if asked for.
    """

    value: Float[Array, "m n"]
    first: Float[Array, "m n"]
    second: Float[Array, "m n"]
    third: Float[Array, "m n"] | None


class ScalarProfile(eqx.Module):
    """amplitude·κ(r), r = ‖u − v‖² (stationary) or u·v (dot product), u = Λ^{1/2}(x − origin).

    In these white coordinates Λ is the identity, white gradients are Λ^{−1/2}g, and noise σ²(I⊗Λ) is σ²I: the one form
    in which the structured algebra is written (MATH.md section 4).
    """

    kernel: Stationary | DotProduct
    amplitude: Float[Array | np.ndarray, ""]

    @property
    def stationary(self) -> bool:
        """Whether the profile is of a distance, not of an inner product."""
        return isinstance(self.kernel, STATIONARY)

    @property
    def has_hessian(self) -> bool:
        """Whether second derivatives of the process exist in mean square: not those of Matérn-3/2."""
        return not isinstance(self.kernel, Matern32)

    def root(self, like: Float[Array | np.ndarray, "n d"]) -> Float[Array, " d"]:
        """Return the diagonal of Λ^{1/2}."""
        if isinstance(self.kernel, STATIONARY):
            return 1 / spread("GradientGP", "lengthscale", self.kernel.lengthscale, like)
        return spread("GradientGP", "scale", self.kernel.scale, like)

    def origin(self, points: Float[Array | np.ndarray, "n d"]) -> Float[Array, " d"]:
        """Return the origin of white coordinates: the kernel's centre, or the points' mean, against cancellation."""
        if isinstance(self.kernel, STATIONARY):
            return jnp.mean(jnp.asarray(points), axis=0)
        return spread("GradientGP", "centre", self.kernel.centre, points)

    def terms(self, x: OtherPoints, y: Points, *, same: bool = False, third: bool = False) -> Terms:
        """Return the profile between white x (m, d) and y (n, d).

        `same` says that they are the same points, so the diagonal of r is exact. An r below its own rounding error is
        a coincidence, r = 0: the derivatives of rough kernels are infinite there, and only ever multiply zero.
        """
        r = product(x, y)
        if self.stationary:
            norms = jnp.sum(x**2, 1)[:, None] + jnp.sum(y**2, 1)[None, :]
            r = norms - 2 * r
            r = jnp.where(r > 8 * jnp.finfo(x.dtype).eps * norms, r, 0)
            r = jnp.where(jnp.eye(x.shape[0], dtype=bool), 0, r) if same else r
        scale = jnp.asarray(self.amplitude, x.dtype)
        step = -2.0 if self.stationary else 1.0
        k = self.kernel.derivatives(r, 3 if third else 2)
        second = (-1.0 if self.stationary else 1.0) * step**2
        last = step**3 * scale * k[3] if third else None
        return Terms(scale * k[0], step * scale * k[1], second * scale * k[2], last)


def scalar_profile(where: str, kernel: AbstractKernel) -> ScalarProfile:
    """Return the profile of a kernel, factors of `Scaled` multiplied into its amplitude.

    Raises
    ------
    TypeError : a kernel that is not one profile of one scalar (a sum, a product, a weight), or without gradients.
    """
    amplitude = jnp.asarray(1.0, jnp.result_type(float))
    inside = kernel
    while isinstance(inside, Scaled):
        amplitude = amplitude * jnp.asarray(inside.amplitude, amplitude.dtype)
        inside = inside.kernel
    if not isinstance(inside, STATIONARY + DOT_PRODUCT):
        names = ", ".join(kind.__name__ for kind in STATIONARY + DOT_PRODUCT)
        cure = "Sums, products and weights have no such structure; a Matérn-1/2 process has no gradient."
        raise TypeError(fault(where, f"`kernel` one of {names}, or Scaled", type(inside).__name__, cure))
    return ScalarProfile(inside, amplitude)
