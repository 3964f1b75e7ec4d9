"""Langevin Stein operators: Stein kernels of first and second order, matrix-valued ones, and
polynomial features.

Stein kernels are computed by matrix products. A matrix-valued kernel has one entry for every pair
of tasks, each task with its own target. Polynomial features are the operator applied to every
monomial, exactly.
"""

import functools
import itertools
import math
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mcmcpost.core.arguments import as_float64, as_real, check_count, check_kind
from mcmcpost.core.errors import InputError, InputTypeError
from mcmcpost.stein.kernels import (
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
    Weighted,
    contract,
    inner,
    product,
    spread,
)
from mcmcpost.stein.products import TileOperator, device_mesh, tile_diagonal, tile_gram

FLUSH = -80.0
"""Logarithm of the kernel value below which it is set to zero: subnormal numbers would slow
factorisations a hundredfold."""

type Points = Float[Array | np.ndarray, "n d"]

type OtherPoints = Float[Array | np.ndarray, "m d"]


@functools.singledispatch
def stein_block(
    kernel: AbstractKernel, X: Array, SX: Array, Y: Array, SY: Array
) -> Float[Array, "n m"]:
    """Return k₀(x_i, y_j) = ∇ₓ·∇ᵧk + s_x·∇ᵧk + s_y·∇ₓk + k s_x·s_y, (n, m), from the kernel's jet.

    Kernels for which the operator passes inside, or the matrix products merge, have their own rule.
    """
    jet = kernel.jet(X, Y)
    # The score is constant in the other point: one-sided fields make s·∇k one contraction each.
    across = contract(jet.gradient_x, Field(None, SY)) + contract(jet.gradient_y, Field(SX, None))
    return jet.divergence + across + jet.value * product(SX, SY)


@stein_block.register
def _(kernel: Scaled, X: Array, SX: Array, Y: Array, SY: Array) -> Array:
    return jnp.asarray(kernel.amplitude, X.dtype) * stein_block(kernel.kernel, X, SX, Y, SY)


@stein_block.register
def _(kernel: Sum, X: Array, SX: Array, Y: Array, SY: Array) -> Array:
    return stein_block(kernel.first, X, SX, Y, SY) + stein_block(kernel.second, X, SX, Y, SY)


@stein_block.register
def _(kernel: Weighted, X: Array, SX: Array, Y: Array, SY: Array) -> Array:
    """k̃₀ = w(x) w(y) k₀ with s replaced by s + ∇log w: a weight changes the score
    (docs/mathematics.md section 1)."""
    (wx, gx), (wy, gy) = kernel.weight(X), kernel.weight(Y)
    return wx[:, None] * wy[None, :] * stein_block(kernel.kernel, X, SX + gx, Y, SY + gy)


@stein_block.register
def _(kernel: SquaredExponential, X: Array, SX: Array, Y: Array, SY: Array) -> Array:
    """Two matrix products: k₀ = κ [trΛ + (s_x − Λδ)·(s_y + Λδ)], the bracket bilinear in (s − Λx,
    Λx) of each point."""
    precision = spread("SquaredExponential", "lengthscale", kernel.lengthscale, X) ** -2
    centre = jnp.mean(Y, 0, keepdims=True)
    # About the mean of Y: both products below are differences of squares, which cancel far from the
    # origin.
    left, right = (X - centre) * precision[None], (Y - centre) * precision[None]
    a, b = SX - left, SY - right
    ones_left, ones_right = jnp.ones_like(X[:, :1]), jnp.ones_like(Y[:, :1])
    # log κ = −½r as one product: [Λx, −½xᵀΛx, 1]·[y, 1, −½yᵀΛy].
    log_kernel = product(
        jnp.concatenate([left, -0.5 * _rowsum(left, X - centre), ones_left], 1),
        jnp.concatenate([Y - centre, ones_right, -0.5 * _rowsum(right, Y - centre)], 1),
    )
    # (s_x − Λx + Λy)·(s_y − Λy + Λx) + trΛ, likewise: its diagonal parts ride in two more columns.
    bracket = product(
        jnp.concatenate([a, left, _rowsum(a, left) + jnp.sum(precision), ones_left], 1),
        jnp.concatenate([b, right, ones_right, _rowsum(b, right)], 1),
    )
    # Rounding may leave r below zero: the clip keeps κ ≤ 1, and exp of what is flushed from
    # underflow in gradients.
    value = jnp.where(log_kernel < FLUSH, 0, jnp.exp(jnp.clip(log_kernel, FLUSH, 0)))
    return value * bracket


def _rowsum(a: Array, b: Array) -> Array:
    return jnp.sum(a * b, 1, keepdims=True)


class SteinTile(eqx.Module):
    """The Stein kernel as a tile function of rows (points, scores); two equal kernels share one
    compilation."""

    kernel: AbstractKernel

    def __call__(
        self, rows: tuple[Points, Points], columns: tuple[OtherPoints, OtherPoints]
    ) -> Float[Array, "n m"]:
        (X, SX), (Y, SY) = jax.tree.map(jnp.asarray, (rows, columns))
        return stein_block(self.kernel, X, SX, Y, SY)


def check_states(
    where: str, kernel: object, names: tuple[str, str], points: Any, scores: Any
) -> None:
    """Refuse what is no kernel, and points and scores that are no two floating arrays (n, d) of one
    shape."""
    check_kind(where, "kernel", kernel, AbstractKernel, "Such as SquaredExponential(2.0).")
    for name, array in zip(names, (points, scores), strict=True):
        check_kind(where, name, array, (np.ndarray, jax.Array), "Pass an array (n, d).")
        if array.ndim != 2 or not jnp.issubdtype(array.dtype, jnp.floating) or not array.size:
            got = f"shape {array.shape} of {array.dtype}"
            raise InputError(
                where, f"`{name}`, floating numbers of shape (n, d)", got, "One row is one point."
            )
    if points.shape != scores.shape:
        got = f"{points.shape} and {scores.shape}"
        raise InputError(
            where, f"`{names[0]}` and `{names[1]}` of one shape", got, "A point needs its score."
        )


def stein_diagonal(kernel: AbstractKernel, X: Points, SX: Points) -> Float[Array, " n"]:
    """Return k₀(x_i, x_i), shape (n,), exact at coincidence (δ is formed as an exact zero).

    X, SX : (n, d) points and scores.
    """
    check_states("stein_diagonal", kernel, ("X", "SX"), X, SX)
    return tile_diagonal(SteinTile(kernel), (X, SX))


@eqx.filter_jit
def stein_gram(
    kernel: AbstractKernel,
    X: Points,
    SX: Points,
    Y: OtherPoints | None = None,
    SY: OtherPoints | None = None,
) -> Float[Array, "n m"]:
    """Return the first-order Langevin Stein kernel k₀ between two sets of points, by matrix
    products.

    k₀(x, y) = ∇ₓ·∇ᵧk + s_x·∇ᵧk + s_y·∇ₓk + k s_x·s_y; E_π[k₀(·, y)] = 0 where s = ∇log π. The two
    sets may carry scores of different targets (the vector-valued case).

    Parameters
    ----------
    X, SX : (n, d) points and scores, of one dtype, which the result follows.
    Y, SY : (m, d), or both None for X with itself, when the diagonal is exact.

    Returns
    -------
    (n, m); no (n, m, d) array is formed. Differentiable in the kernel's parameters.

    Raises
    ------
    ValueError
        if only one of `Y` and `SY` is given.

    Source: Sun, Barp and Briol, Vector-Valued Control Variates (ICML 2023), equation 3.
    """
    check_states("stein_gram", kernel, ("X", "SX"), X, SX)
    return gram_of_tile("stein_gram", SteinTile(kernel), (X, SX), Y, SY)


def gram_of_tile(
    where: str,
    tile: Any,
    rows: tuple[Points, Points],
    Y: OtherPoints | None,
    SY: OtherPoints | None,
) -> Float[Array, "n m"]:
    """Return a Stein kernel between two sets of points, or of one with itself where `Y` and `SY`
    are both None."""
    if (Y is None) != (SY is None):
        missing = "Y" if Y is None else "SY"
        raise InputError(
            where, "`Y` and `SY` together", f"no `{missing}`", "A point needs its score."
        )
    if Y is not None:
        check_states(where, tile.kernel, ("Y", "SY"), Y, SY)
        if Y.shape[1] != rows[0].shape[1]:
            got = f"{rows[0].shape} and {Y.shape}"
            raise InputError(
                where, "`X` and `Y` of one dimension", got, "Give both the same coordinates."
            )
    return tile_gram(tile, rows) if Y is None else tile(rows, (Y, SY))


def stein_operator(
    kernel: AbstractKernel, X: Points, SX: Points, *, block: int | None = None
) -> TileOperator:
    """Return the Stein Gram matrix of X, SX (n, d) as an operator that multiplies in tiles and is
    never formed."""
    check_count("stein_operator", "block", block, "Leave it out.", optional=True)
    tile, diagonal = SteinTile(kernel), stein_diagonal(kernel, X, SX)
    return TileOperator(tile, (X, SX), diagonal, block=block, mesh=device_mesh())


@functools.singledispatch
def second_order_stein_block(
    kernel: AbstractKernel,
    X: Array,  # noqa: ARG001
    SX: Array,  # noqa: ARG001
    Y: Array,  # noqa: ARG001
    SY: Array,  # noqa: ARG001
) -> Float[Array, "n m"]:
    """Return k₀″(x_i, y_j) = (Δₓ + s_x·∇ₓ)(Δᵧ + s_y·∇ᵧ) k, (n, m), for the kernels that have a
    rule."""
    raise InputTypeError(
        "second_order_stein_gram",
        "a kernel with continuous derivatives ΔₓΔᵧk: SquaredExponential, Matern52, "
        "RationalQuadratic, InverseMultiquadric, Polynomial, ExponentialDotProduct, or a "
        "Scaled or Sum of these",
        type(kernel).__name__,
        "Matern32 is too rough for it; first-order kernels (stein_gram) take every kernel.",
    )


@second_order_stein_block.register
def _(kernel: Scaled, X: Array, SX: Array, Y: Array, SY: Array) -> Array:
    return jnp.asarray(kernel.amplitude, X.dtype) * second_order_stein_block(
        kernel.kernel, X, SX, Y, SY
    )


@second_order_stein_block.register
def _(kernel: Sum, X: Array, SX: Array, Y: Array, SY: Array) -> Array:
    return second_order_stein_block(kernel.first, X, SX, Y, SY) + second_order_stein_block(
        kernel.second, X, SX, Y, SY
    )


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

    Points are centred, and an r below its rounding error is a coincidence, as in the first-order
    kernels: there q and p vanish, and κ‴ and κ⁗, infinite for Matérn-5/2, are returned as 0 (κ‴p →
    0 and κ⁗q² → 0 with r).
    """
    precision = spread(type(kernel).__name__, "lengthscale", kernel.lengthscale, X) ** -2
    centre = jnp.mean(Y, 0, keepdims=True)
    left, right = X - centre, Y - centre
    u_left, u_right = left * precision[None], right * precision[None]
    u = Field(u_left, -u_right)
    norms = jnp.sum(left * u_left, 1)[:, None] + jnp.sum(right * u_right, 1)[None, :]
    distance = norms - 2 * product(u_left, right)
    # The second bound keeps r^{5/2}, the divisor in the slope of κ⁗ of Matérn-5/2, from underflow.
    # As in `stationary_jet`, a coincidence is r = 0, so that κ‴ and κ⁗ meet zeros of q and p.
    r = jnp.where(
        distance > jnp.maximum(8 * jnp.finfo(X.dtype).eps * norms, _smallest(X)), distance, 0
    )
    profile = kernel.derivatives(r, 4)
    # All derivatives are flushed where κ is: they carry the same exponential.
    _, k1, k2, k3, k4 = (jnp.where(profile[0] < math.exp(FLUSH), 0, k) for k in profile)

    from_x, from_y = inner(u, Field(SX, None)), inner(u, Field(None, SY))
    # Isotropic, with λ = 1/ℓ²: q = λr, p = λ²r and Λu = λu: three matrix products less.
    if kernel.lengthscale.ndim == 0:
        q, p, curved = precision[0] * r, precision[0] ** 2 * r, precision[0] * (from_x - from_y)
    else:
        v = Field(u_left * precision[None], -u_right * precision[None])
        q, p = jnp.maximum(inner(u, u), 0), jnp.maximum(inner(u, v), 0)
        curved = inner(v, Field(SX, -SY))
    trace, trace_square = jnp.sum(precision), jnp.sum(precision**2)
    laplacians = (
        16 * k4 * q**2 + 16 * k3 * (q * trace + 2 * p) + k2 * (4 * trace**2 + 8 * trace_square)
    )
    across = (4 * k2 * trace + 8 * k3 * q) * (from_x - from_y) + 8 * k2 * curved
    return (
        laplacians + across - 2 * k1 * product(SX * precision[None], SY) - 4 * k2 * from_x * from_y
    )


@second_order_stein_block.register
def _(
    kernel: Polynomial | ExponentialDotProduct, X: Array, SX: Array, Y: Array, SY: Array
) -> Array:
    """With Λ = diag(scale²), a = Λ(x − c), b = Λ(y − c) and r = (x − c)ᵀΛ(y − c), the sum of four
    terms in κ(r).

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

    # Isotropic: aᵀΛb = scale⁴ r, one matrix product less.
    cubic = weight[0, 0] ** 2 * r if kernel.scale.ndim == 0 else product(a * weight, b)
    from_x, from_y = product(SX, b), product(a, SY)
    norm_a, norm_b = jnp.sum(a**2, 1)[:, None], jnp.sum(b**2, 1)[None, :]
    slope_x, slope_y = jnp.sum(SX * a * weight, 1)[:, None], jnp.sum(SY * b * weight, 1)[None, :]
    laplacians = k4 * norm_a * norm_b + 4 * k3 * cubic + 2 * k2 * jnp.sum(weight**2)
    across = k3 * (norm_a * from_x + norm_b * from_y) + 2 * k2 * (slope_x + slope_y)
    return laplacians + across + k1 * product(SX * weight, SY) + k2 * from_x * from_y


def _smallest(like: Array) -> float:
    # The power 2/5 of the smallest normal number, so that r^{5/2} is one.
    return float(jnp.finfo(like.dtype).tiny) ** 0.4


class SecondOrderSteinTile(eqx.Module):
    """The second-order Stein kernel as a tile function of rows (points, scores), for a
    `TileOperator`."""

    kernel: AbstractKernel

    def __call__(
        self, rows: tuple[Points, Points], columns: tuple[OtherPoints, OtherPoints]
    ) -> Float[Array, "n m"]:
        (X, SX), (Y, SY) = jax.tree.map(jnp.asarray, (rows, columns))
        return second_order_stein_block(self.kernel, X, SX, Y, SY)


def second_order_stein_diagonal(
    kernel: AbstractKernel, X: Points, SX: Points
) -> Float[Array, " n"]:
    """Return k₀″(x_i, x_i), shape (n,), exact at coincidence (δ is formed as an exact zero).

    For a stationary kernel it is κ″(0)(4(trΛ)² + 8 trΛ²) − 2κ′(0) sᵀΛs.

    X, SX : (n, d) points and scores.
    """
    check_states("second_order_stein_diagonal", kernel, ("X", "SX"), X, SX)
    return tile_diagonal(SecondOrderSteinTile(kernel), (X, SX))


@eqx.filter_jit
def second_order_stein_gram(
    kernel: AbstractKernel,
    X: Points,
    SX: Points,
    Y: OtherPoints | None = None,
    SY: OtherPoints | None = None,
) -> Float[Array, "n m"]:
    """Return the second-order Langevin Stein kernel k₀″ between two sets of points, by matrix
    products.

    k₀″(x, y) = ΔₓΔᵧk + s_y·∇ᵧΔₓk + s_x·∇ₓΔᵧk + s_xᵀ(∇ₓ∇ᵧᵀk)s_y; E_π[k₀″(·, y)] = 0 where s = ∇log
    π. Its functions are Δu + s·∇u for u in the space of k: with a polynomial k, zero-variance
    polynomials. The two sets may carry scores of different targets (the vector-valued case).

    Parameters
    ----------
    kernel : SquaredExponential, Matern52, RationalQuadratic, InverseMultiquadric, Polynomial,
        ExponentialDotProduct, or a Scaled or Sum of these.
    X, SX : (n, d) points and scores, of one dtype, which the result follows.
    Y, SY : (m, d), or both None for X with itself, when the diagonal is exact.

    Returns
    -------
    (n, m); no (n, m, d) array is formed: O(nmd), without the theorem's double sum over coordinates.
    Differentiable in the kernel's parameters. Matérn-5/2 keeps half the digits between points that
    nearly coincide.

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


SYMMETRY = 1e-10

type TaskRows = tuple[Float[Array, "n d"], Float[Array, "n d"], Float[Array, "n t"]]

type OtherTaskRows = tuple[Float[Array, "m d"], Float[Array, "m d"], Float[Array, "m t"]]


class Coregionalisation(eqx.Module):
    """The matrix-valued kernel K(x, y) = Σ_q B_q k_q(x, y), the linear model of coregionalisation.

    One term is the separable kernel B⊗k of Sun, Barp and Briol (2023), special cases I (several
    targets) and II (one); several terms are not separable. Its Stein kernel is (K₀(x, y))_{tt'} =
    Σ_q (B_q)_{tt'} k₀,q(x, y), with the score of Π_t at x and of Π_t' at y (Theorem 3.1; Theorem
    C.1 for the second-order operator).

    Parameters
    ----------
    kernels : the k_q, on standardised coordinates.
    covariances : (q, t, t), the B_q; each symmetric and positive definite. Only their size relative
        to each other and to the nugget's unit, the mean of diag K₀, matters.
    order : of the Langevin operator, 1 or 2.

    Raises
    ------
    ValueError : a B_q that is not symmetric positive definite, or not one for each kernel; another
        order.
    """

    kernels: tuple[AbstractKernel, ...]
    covariances: Float[Array | np.ndarray, "q t t"] = eqx.field(
        converter=lambda b: as_real("Coregionalisation", "covariances", b).astype(float)
    )
    order: int = eqx.field(static=True, default=1)

    def __check_init__(self) -> None:
        where, b = "Coregionalisation", np.asarray(self.covariances)
        check_kind(where, "kernels", self.kernels, tuple, "Such as (SquaredExponential(2.0),).")
        for kernel in self.kernels:
            check_kind(
                where, "kernels", kernel, AbstractKernel, "Such as (SquaredExponential(2.0),)."
            )
        check_count(where, "order", self.order, "It is that of the Langevin operator.", most=2)
        if b.ndim != 3 or b.shape[0] != len(self.kernels) or b.shape[1] != b.shape[2] or not b.size:
            expected = (
                f"`covariances` of shape ({len(self.kernels)}, tasks, tasks), as many as `kernels`"
            )
            raise InputError(
                where, expected, b.shape, "Give one covariance of the tasks for each kernel."
            )
        for matrix in b:
            check_covariance(where, matrix)

    @property
    def num_tasks(self) -> int:
        """The number of tasks t."""
        return int(np.shape(self.covariances)[-1])


class MatrixSteinTile(eqx.Module):
    """Σ_q (B_q)_{tt'} k₀,q(x, y) as a tile function of rows (points, scores, tasks one-hot)."""

    kernels: tuple[AbstractKernel, ...]
    covariances: Float[Array, "q t t"]
    order: int = eqx.field(static=True)

    def __call__(self, rows: TaskRows, columns: OtherTaskRows) -> Float[Array, "n m"]:
        # Tasks are one-hot rows: T_x B T_yᵀ picks B_{tt'} for each pair of rows, by a matrix
        # product and without a gather.
        (*left, task_left), (*right, task_right) = rows, columns
        total = jnp.zeros((left[0].shape[0], right[0].shape[0]), left[0].dtype)
        for kernel, covariance in zip(self.kernels, self.covariances, strict=True):
            tile = SteinTile(kernel) if self.order == 1 else SecondOrderSteinTile(kernel)
            between = jnp.matmul(task_left @ covariance, task_right.T, precision="highest")
            total = total + between * tile((left[0], left[1]), (right[0], right[1]))
        return total


def matrix_stein_tile(kernel: Coregionalisation) -> MatrixSteinTile:
    """Return the Stein kernel of `kernel` as a tile function."""
    return MatrixSteinTile(kernel.kernels, jnp.asarray(kernel.covariances), kernel.order)


def check_covariance(where: str, covariance: object) -> None:
    """Raise an error unless `covariance` is a finite symmetric positive definite covariance (t, t)
    of tasks."""
    matrix = as_float64(where, "covariance", covariance, "task, task")
    cure = (
        "A covariance of tasks is B = LLᵀ with a positive diagonal of L; add a little to its "
        "diagonal."
    )
    expected = "`covariance`, a symmetric positive definite matrix of the tasks"
    if matrix.shape[0] != matrix.shape[1] or not matrix.size or not np.isfinite(matrix).all():
        raise InputError(
            where, expected, f"shape {matrix.shape}, finite {np.isfinite(matrix).all()}", cure
        )
    size = np.abs(matrix).max()
    # Relative to the largest entry: products such as LLᵀ are symmetric to rounding only.
    if np.abs(matrix - matrix.T).max() > SYMMETRY * size:
        raise InputError(where, expected, "a matrix that is not symmetric", cure)
    lowest = float(np.linalg.eigvalsh(matrix)[0])
    if not lowest > 0:
        raise InputError(where, expected, f"smallest eigenvalue {lowest:.3g}", cure)


MAX_ENTRIES = 1 << 27
"""Exponents, a gigabyte, that are built at most."""

_BLOCK_ENTRIES = 1 << 18  # entries of one block of rows: a few such blocks stay in cache


def num_polynomial_features(d: int, degree: int) -> int:
    """Return the number of monomials of total degree 1..degree in d variables, C(d + degree,
    degree) − 1."""
    for name, value in (("d", d), ("degree", degree)):
        check_count("num_polynomial_features", name, value, "Use a positive integer.", least=0)
    return math.comb(d + degree, degree) - 1


def polynomial_exponents(
    d: int, degree: int, *, max_interaction: int | None = None
) -> Int[np.ndarray, "q d"]:
    """Return the exponents (q, d) of all monomials of total degree 1..degree in d variables.

    They are ordered by total degree, then lexicographically with the first variable leading: z₁,
    z₂, z₁², z₁z₂, z₂², …

    Parameters
    ----------
    max_interaction : the largest number of distinct variables in one monomial; None for no limit.

    Raises
    ------
    ValueError
        if `d`, `degree` or `max_interaction` is below 1, or the exponents would take more than a
        gigabyte.
    """
    where, cure = "polynomial_exponents", "Use a positive integer."
    check_count(where, "d", d, cure)
    check_count(where, "degree", degree, cure)
    check_count(where, "max_interaction", max_interaction, cure, optional=True)
    limit = min(d, degree if max_interaction is None else min(max_interaction, degree))
    # of all monomials, C(d, k) C(degree, k) have exactly k distinct variables
    number = sum(
        math.comb(d, k) * math.comb(degree, k) for k in range(1, min(limit, MAX_ENTRIES) + 1)
    )
    if number * d > MAX_ENTRIES:
        got = (
            f"degree {degree} in {d} variables, {number:.3g} monomials"
            if number < 10**300
            else f"degree {degree}"
        )
        cure = "Use a lower `degree`, or max_interaction=1."
        raise InputError(
            where, f"at most {MAX_ENTRIES / d:.3g} monomials of {d} variables", got, cure
        )
    # Sorted variables with repeats, length first, are the documented order of the columns.
    monomials = sorted(
        (
            m
            for k in range(1, limit + 1)
            for coordinates in itertools.combinations(range(d), k)
            for m in _spread(coordinates, degree)
        ),
        key=lambda m: (len(m), m),
    )
    exponents = np.zeros((len(monomials), d), dtype=int)
    rows = np.repeat(np.arange(len(monomials)), [len(m) for m in monomials])
    np.add.at(exponents, (rows, np.fromiter(itertools.chain(*monomials), int)), 1)
    return exponents


def _spread(variables: tuple[int, ...], degree: int) -> Iterator[tuple[int, ...]]:
    """Yield the monomials, as sorted variables with repeats, that have each of these variables, up
    to a degree."""
    for total in range(degree - len(variables) + 1):
        for more in itertools.combinations_with_replacement(variables, total):
            yield tuple(sorted(variables + more))


def polynomial_features(
    Z: Points, T: Points, exponents: Int[np.ndarray, "q _"]
) -> Float[Array, "n q"]:
    """Return the Stein features Δφ_α + ∇φ_α·t of the monomials φ_α(z) = Π z_i^{α_i}, one column per
    row of exponents.

    Each monomial is built one variable at a time: (φ, Lφ) ← (φ p, Lφ p + φ Lp), with p = z_i^a and
    Lp = a(a−1)z_i^{a−2} + a z_i^{a−1} t_i from tables, as distinct variables have no cross
    derivative. Time is O(n q v), v the largest number of distinct variables in a monomial; no (n,
    q, d) array is formed.

    Parameters
    ----------
    Z, T : (n, d) draws and scores, of one dtype, which the result follows.
    exponents : (q, d), not traced; see `polynomial_exponents`.

    Raises
    ------
    ValueError
        if the exponents have another d than the draws, are empty, or contain a negative.

    Source: Mira, Solgi and Imparato, Zero variance Markov chain Monte Carlo (Statistics and
    Computing 2013); Sun, Barp and Briol (ICML 2023), appendix C.2.
    """
    powers = as_real("polynomial_features", "exponents", exponents)
    for name, points in (("Z", Z), ("T", T)):
        check_kind(
            "polynomial_features", name, points, (np.ndarray, jax.Array), "Pass an array (n, d)."
        )
        if points.ndim != 2 or points.shape != Z.shape:
            raise InputError(
                "polynomial_features", "`Z` and `T` (n, d)", f"{Z.shape}, {T.shape}", "Match them."
            )
    whole = powers.ndim == 2 and powers.dtype.kind in "iu"
    if not whole or powers.shape[1] != Z.shape[1] or powers.shape[0] == 0 or (powers < 0).any():
        raise InputError(
            "polynomial_features",
            f"`exponents`, integers of shape (q ≥ 1, {Z.shape[1]}), not negative",
            f"shape {powers.shape} with minimum {powers.min(initial=0)}",
            "Build them with polynomial_exponents.",
        )
    # A stable sort puts the variables of each monomial first: v slots hold them all. Slots that are
    # left over have power zero, hence φ = 1 and Lφ = 0, and change nothing.
    slots = max(int((powers > 0).sum(1).max()), 1)
    variables = np.argsort(powers == 0, axis=1, kind="stable")[:, :slots]
    powers = np.take_along_axis(powers, variables, 1)
    return _features(Z, T, variables.T, powers.T, int(powers.max()))


@functools.partial(jax.jit, static_argnames="degree")
def _features(
    Z: Float[Array, "n d"],
    T: Float[Array, "n d"],
    variables: Int[Array, "v q"],
    powers: Int[Array, "v q"],
    degree: int,
) -> Float[Array, "n q"]:
    """Fill the (n, q) result by blocks of rows, in place; the last block overlaps the one before
    it."""
    n, q = Z.shape[0], powers.shape[1]
    block = max(1, min(n, _BLOCK_ENTRIES // q))
    # Tables are stacked by power: row a·d + i holds z_i^a.
    index = powers * Z.shape[1] + variables

    def fill(i: Array, out: Array) -> Array:
        # The last block starts early and rewrites rows of the one before: all blocks have one
        # shape.
        start = jnp.minimum(i * block, n - block)
        z, t = (
            jax.lax.dynamic_slice_in_dim(Z, start, block),
            jax.lax.dynamic_slice_in_dim(T, start, block),
        )
        return jax.lax.dynamic_update_slice_in_dim(
            out, _block_features(z, t, index, degree), start, 0
        )

    return jax.lax.fori_loop(0, -(-n // block), fill, jnp.zeros((n, q), Z.dtype))


def _block_features(
    z: Float[Array, "b d"], t: Float[Array, "b d"], index: Int[Array, "v q"], degree: int
) -> Float[Array, "b q"]:
    """Return the features of one block of rows; tables lie transposed, so that a gather copies
    contiguous rows."""
    z, t = z.T, t.T
    table = [jnp.ones_like(z), z]
    for _ in range(degree - 1):
        table.append(table[-1] * z)
    # L z^k = k(k−1)z^{k−2} + k z^{k−1}t = k z^{k−2}(k − 1 + zt).
    steined = [jnp.zeros_like(z), t] + [
        k * table[k - 2] * ((k - 1) + z * t) for k in range(2, degree + 1)
    ]
    value, image = jnp.concatenate(table[: degree + 1]), jnp.concatenate(steined[: degree + 1])
    phi, lphi = value[index[0]], image[index[0]]
    for slot in index[1:]:
        phi, lphi = phi * value[slot], lphi * value[slot] + phi * image[slot]
    return lphi.T
