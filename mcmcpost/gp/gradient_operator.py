"""The Gram matrix of values and gradients of a process, multiplied in O(N²d) and never formed.

White coordinates (`ScalarProfile`): rows are points u_a, δ_ab = u_a − u_b, A₁ = −2κ′, A₂ = −4κ″, A₃
= −8κ‴ for stationary kernels, A₁ = κ′, A₂ = κ″, A₃ = κ‴ for dot products. All of the following is
tested against nested autodiff.

=====================  ===================================  ========================================
covariance             stationary                           dot product
=====================  ===================================  ========================================
f(u_a), f(u_b)         κ                                    κ
f(u_a), ∇f(u_b)        A₁δ                                  A₁u_a
∇f(u_a), f(u_b)        −A₁δ                                 A₁u_b
∇f(u_a), ∇f(u_b)       A₁I + A₂δδᵀ                          A₁I + A₂u_b u_aᵀ
∇∇ᵀf(u_a), ∇f(u_b)·z   A₃(δ·z)δδᵀ + A₂((δ·z)I + δzᵀ + zδᵀ)  A₃(u_a·z)u_b u_bᵀ + A₂(u_b zᵀ + z u_bᵀ)
∇∇ᵀf(u_a), f(u_b)      −A₂δδᵀ − A₁I                         A₂u_b u_bᵀ
=====================  ===================================  ========================================

Corrections to de Roos, Gessner and Hennig (ICML 2021):

==========  =================================  =====================================================
place       printed                            right
==========  =================================  =====================================================
(4), (5)    −k′Λ − k″[Λδ][Λδ]ᵀ; B = K′⊗Λ       −2k′Λ − 4k″[Λδ][Λδ]ᵀ; B = −2K′⊗Λ, and C changes sign
(7)         Z = Λ⁻¹G K′⁻¹ − X̃Q                 Z = Λ⁻¹G K′⁻¹ − X̃Q K′⁻¹
(11)        k″ in the first two terms          −2k″ there for stationary kernels
(13)        stationary: K′ = 2k′, K″ = 4k″     K′ = −2k′, K″ = 4k″ with G̃ = −G
(27)        contracts with Z_b^j               contracts with Z_b^l
B.3         −4Λ                                −2Λ
B.3.1       Matérn k″ without its prefactor    prefactor 2ν/r
Alg. 2      ends with M ← mᵀ − M               M ← diag(m) − M
D.1         the Hessian has a term in Λ        no such term
D.2         k̃‴ = 8k″; M, M̂, M̆ of mixed sign    k̃‴ = 8k‴; M, M̂ and M̆ all negative
==========  =================================  =====================================================
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost import stein
from mcmcpost.core.errors import InputTypeError, fault


class Terms(NamedTuple):
    """The profile between two sets of points, with the signs and factors of the derivatives of the
    kernel.

    value : (m, n) κ. first : (m, n) −2κ′ (stationary) or κ′. second : −4κ″ or κ″. third : −8κ‴ or
        κ‴, if asked for.
    """

    value: Float[Array, "m n"]
    first: Float[Array, "m n"]
    second: Float[Array, "m n"]
    third: Float[Array, "m n"] | None


class ScalarProfile(eqx.Module):
    """amplitude·κ(r), r = ‖u − v‖² (stationary) or u·v (dot product), u = Λ^{1/2}(x − origin).

    In these white coordinates Λ is the identity, white gradients are Λ^{−1/2}g and noise σ²(I⊗Λ) is
    σ²I. All the structured algebra is written in them (docs/mathematics.md section 4).
    """

    kernel: stein.Stationary | stein.DotProduct
    amplitude: Float[Array | np.ndarray, ""]

    @property
    def stationary(self) -> bool:
        """Whether the profile is of a distance, not of an inner product."""
        return isinstance(self.kernel, stein.STATIONARY)

    @property
    def has_hessian(self) -> bool:
        """Whether second derivatives of the process exist in mean square: not those of
        Matérn-3/2."""
        return not isinstance(self.kernel, stein.Matern32)

    def root(self, like: Float[Array | np.ndarray, "n d"]) -> Float[Array, " d"]:
        """Return the diagonal of Λ^{1/2}."""
        if isinstance(self.kernel, stein.STATIONARY):
            return 1 / stein.spread("GradientGP", "lengthscale", self.kernel.lengthscale, like)
        return stein.spread("GradientGP", "scale", self.kernel.scale, like)

    def origin(self, points: Float[Array | np.ndarray, "n d"]) -> Float[Array, " d"]:
        """Return the origin of white coordinates: the kernel's centre, or the points' mean, against
        cancellation."""
        if isinstance(self.kernel, stein.STATIONARY):
            return jnp.mean(jnp.asarray(points), axis=0)
        return stein.spread("GradientGP", "centre", self.kernel.centre, points)

    def terms(
        self,
        x: Float[Array, "m d"],
        y: Float[Array, "n d"],
        *,
        same: bool = False,
        third: bool = False,
    ) -> Terms:
        """Return the profile between white x (m, d) and y (n, d).

        `same` says that they are the same points, so the diagonal of r is exact. An r below its own
        rounding error is a coincidence, r = 0: the derivatives of rough kernels are infinite there,
        and only ever multiply zero.
        """
        r = stein.product(x, y)
        if self.stationary:
            # The origin is the points' mean for stationary kernels, which keeps the digits of this
            # difference.
            norms = jnp.sum(x**2, 1)[:, None] + jnp.sum(y**2, 1)[None, :]
            r = norms - 2 * r
            # 8 eps of the norms bounds the rounding of r, as in `stein.stationary_jet`.
            r = jnp.where(r > 8 * jnp.finfo(x.dtype).eps * norms, r, 0)
            r = jnp.where(jnp.eye(x.shape[0], dtype=bool), 0, r) if same else r
        scale = jnp.asarray(self.amplitude, x.dtype)
        step = -2.0 if self.stationary else 1.0
        # A₂ = −4κ″ and A₃ = −8κ‴: powers of −2, with one more sign for the second.
        k = self.kernel.derivatives(r, 3 if third else 2)
        second = (-1.0 if self.stationary else 1.0) * step**2
        last = step**3 * scale * k[3] if third else None
        return Terms(scale * k[0], step * scale * k[1], second * scale * k[2], last)


def scalar_profile(where: str, kernel: stein.AbstractKernel) -> ScalarProfile:
    """Return the profile of a kernel, factors of `Scaled` multiplied into its amplitude.

    Raises
    ------
    TypeError : a kernel that is not one profile of one scalar (a sum, a product, a weight), or
        without gradients.
    """
    amplitude = jnp.asarray(1.0, jnp.result_type(float))
    inside = kernel
    while isinstance(inside, stein.Scaled):
        amplitude = amplitude * jnp.asarray(inside.amplitude, amplitude.dtype)
        inside = inside.kernel
    if not isinstance(inside, stein.STATIONARY + stein.DOT_PRODUCT):
        names = ", ".join(kind.__name__ for kind in stein.STATIONARY + stein.DOT_PRODUCT)
        cure = (
            "Sums, products and weights have no such structure; a Matérn-1/2 process has no "
            "gradient."
        )
        raise InputTypeError(
            where, f"`kernel` one of {names}, or Scaled", type(inside).__name__, cure
        )
    return ScalarProfile(inside, amplitude)


class GradientGram(eqx.Module):
    """K + noise·I for gradients, or values and gradients, of a process at white points; memory O(N²
    + Nd).

    Weights and observations are arrays (n, w): w = d for gradients, w = 1 + d with the values
    first.

    points : (n, d) white. terms : the profile between them. noise : σ², of every white observation.
    with_values : whether the values at the points are observed too.
    """

    points: Float[Array, "n d"]
    terms: Terms
    noise: Float[Array, ""]
    stationary: bool = eqx.field(static=True)
    with_values: bool = eqx.field(static=True)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of points, and of observations per point."""
        n, d = self.points.shape
        return n, d + self.with_values

    def matmul(self, V: Float[Array, "n w"]) -> Float[Array, "n w"]:
        """Return (K + noise·I)V in O(N²d)."""
        image = cross_matmul(self.stationary, self.terms, self.points, self.points, V)
        # The row of values is computed in any case, and dropped where none are observed.
        return image[:, 1 - self.with_values :] + self.noise * V

    def dense(self) -> Float[Array, "nw nw"]:
        """Return the whole matrix, observations of one point adjacent."""
        n, width = self.shape
        first = 1 - self.with_values
        blocks = cross_blocks(self.stationary, self.terms, self.points, self.points)[
            :, first:, :, first:
        ]
        return blocks.reshape(n * width, n * width) + self.noise * jnp.eye(
            n * width, dtype=self.points.dtype
        )

    def project(self, basis: Float[Array, "d q"]) -> "GradientGram":
        """Return the same system in the coordinates `basis`, orthonormal, whose span holds every
        point."""
        return GradientGram(
            self.points @ basis, self.terms, self.noise, self.stationary, self.with_values
        )


def gradient_gram(
    profile: ScalarProfile,
    points: Float[Array, "n d"],
    noise: Float[Array, ""],
    *,
    with_values: bool = False,
) -> GradientGram:
    """Return the system of gradients (and values) at white points (n, d)."""
    terms = profile.terms(points, points, same=True)
    return GradientGram(points, terms, noise, profile.stationary, with_values)


def split_weights(
    V: Float[Array, "n w"], d: int
) -> tuple[Float[Array, " n"] | None, Float[Array, "n d"]]:
    """Return the weights of values (n,), None without them, and of gradients (n, d)."""
    return (V[:, 0] if V.shape[1] > d else None), V[:, V.shape[1] - d :]


def cross_matmul(
    stationary: bool,
    terms: Terms,
    x: Float[Array, "m d"],
    y: Float[Array, "n d"],
    V: Float[Array, "n w"],
) -> Float[Array, "m e"]:
    """Return the covariance of values and gradients at x with the observations at y, times their
    weights: (m, 1 + d).

    With S_ab = δ_ab·Z_b (stationary) or x_a·Z_b and W = A₂∘S ∓ A₁α: values are (A₁∘S)1 + κα,
    gradients A₁Z + (W1)x − Wy or A₁Z + Wy. The paper's (9), and C.2 as corrected.
    """
    # 1,000 gradients in 100 dimensions: 0.82 of the time of an sgemm, and 20.8 MB for a whole solve
    # (docs/results/gradient_gp.md, gradient_gram_matrix_free).
    alpha, Z = split_weights(V, x.shape[1])
    along = stein.product(x, Z)
    # S_ab = δ_ab·Z_b without an (m, n, d) array of differences.
    if stationary:
        along = along - jnp.sum(y * Z, 1)[None, :]
    value = jnp.sum(terms.first * along, 1)
    W = terms.second * along
    if alpha is not None:
        value = value + terms.value @ alpha
        # Values and gradients of one point share W: one product with the points serves both.
        W = W + (-1.0 if stationary else 1.0) * terms.first * alpha[None, :]
    pull = jnp.sum(W, 1)[:, None] * x - W @ y if stationary else W @ y
    return jnp.concatenate([value[:, None], terms.first @ Z + pull], axis=1)


def cross_blocks(
    stationary: bool, terms: Terms, x: Float[Array, "m d"], y: Float[Array, "n d"]
) -> Float[Array, "m e n e"]:
    """Return the covariance of values and gradients at x with values and gradients at y, all
    blocks: (m, e, n, e).

    e = 1 + d, values first. For factorisations, and as the dense twin of `cross_matmul`.
    """
    m, n, d = x.shape[0], y.shape[0], x.shape[1]
    if stationary:
        # (m, n, d): this form is for factorisations, whose matrix is larger still.
        right = x[:, None] - y[None]
        left, sign = right, -1.0
    else:
        left, right, sign = (
            jnp.broadcast_to(y[None], (m, n, d)),
            jnp.broadcast_to(x[:, None], (m, n, d)),
            1.0,
        )
    first = terms.first[..., None]
    # f with ∇f is A₁δ and ∇f with f −A₁δ: δ changes sign with the order of the points.
    top = jnp.concatenate([terms.value[..., None], first * right], axis=-1)[..., None, :]
    inner = (terms.second[..., None] * left)[..., :, None] * right[..., None, :]
    inner = inner + first[..., None] * jnp.eye(d, dtype=x.dtype)[None, None]
    below = jnp.concatenate([(sign * first * left)[..., None], inner], axis=-1)
    return jnp.moveaxis(jnp.concatenate([top, below], axis=-2), 2, 1)


def span_basis(points: Float[Array, "n d"], *, stationary: bool) -> Float[Array, "d q"] | None:
    """Return an orthonormal basis (d, q) of the span of the rank-one terms, or None where it is the
    whole space.

    Stationary: span{u_a − u_1}, q = min(d, n−1), which holds the points too as they are centred;
    dot product: span{u_a}, q = min(d, n).
    """
    vectors = (points - points[:1])[1:] if stationary and points.shape[0] > 1 else points
    # Differences from the first point span what those of all pairs do.
    n, d = vectors.shape
    return None if n >= d else jnp.linalg.qr(vectors.T)[0]


MEMORY = 4e9
"""Bytes that a dense factorisation may take: its matrix, the factor and one work copy."""


def projected_dimension(stationary: bool, n: int, d: int) -> int:
    """Return q, the dimension of the span of the rank-one terms."""
    return min(d, max(n - 1, 1) if stationary else n)


def fits(order: int) -> bool:
    """Return whether a matrix of that order, its factor and a work copy fit in `MEMORY`."""
    # Three matrices of 8-byte numbers, see `MEMORY`.
    return 24.0 * order**2 <= MEMORY


def check_memory(where: str, order: int) -> None:
    """Refuse to factorise a matrix of an order that does not fit."""
    check_bytes(where, 24.0 * order**2)


def check_bytes(where: str, need: float) -> None:
    """Refuse work arrays larger than `MEMORY`.

    Raises
    ------
    MemoryError : says how large, and what to use instead.
    """
    if need > MEMORY:
        cure = "Use GradientCG, or fewer points."
        raise MemoryError(
            fault(where, f"at most {MEMORY:.0e} bytes", f"a need of {need:.1e}", cure)
        )
