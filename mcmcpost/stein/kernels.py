"""Base kernels: profiles of one scalar with closed-form derivatives, and their sums, products and
weights.

A stationary kernel is a profile κ of r = Σ (x_i − y_i)²/ℓ_i², a dot-product kernel one of r = (x −
c)ᵀΛ(y − c) with Λ = diag(scale²). There is no Matérn-1/2: its sample paths have no gradient, so
neither its Stein kernel nor its gradient process exists.

The first-order jet of a kernel on two sets of points makes every contraction one matrix product. A
gradient ∇ₓk(x_i, y_j) is a sum of (n, m) coefficients times pairwise vectors u_i + v_j, so that no
(n, m, d) array is ever formed: an inner product of two pairwise vectors is one product of (n, 2d+2)
and (2d+2, m) matrices. Sums, products and weights of kernels stay in this form.
"""

import abc
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost.core.arguments import HUGE, check_count, check_kind
from mcmcpost.core.errors import InputError, InputTypeError
from mcmcpost.core.precision import as_points


class Field(NamedTuple):
    """The pairwise vectors left_i + right_j; None is zero. left : (n, d). right : (m, d)."""

    left: Float[Array, "n d"] | None
    right: Float[Array, "m d"] | None


class Term(NamedTuple):
    """coefficient_ij (left_i + right_j), one summand of a kernel gradient. coefficient : (n, m)."""

    coefficient: Float[Array, "n m"]
    field: Field


class Jet(NamedTuple):
    """A kernel and its first mixed derivatives between two sets of points.

    value : (n, m), k(x_i, y_j).
    gradient_x, gradient_y : ∇ₓk and ∇ᵧk, each a sum of terms.
    divergence : (n, m), ∇ₓ·∇ᵧk.
    """

    value: Float[Array, "n m"]
    gradient_x: tuple[Term, ...]
    gradient_y: tuple[Term, ...]
    divergence: Float[Array, "n m"]


def product(left: Float[Array, "n k"], right: Float[Array, "m k"]) -> Float[Array, "n m"]:
    """Return left rightᵀ in the full precision of the dtype (accelerators would round float32
    inputs otherwise)."""
    return jnp.matmul(left, right.T, precision="highest")


def inner(a: Field, b: Field) -> Float[Array, "..."]:
    """Return (a_left_i + a_right_j)·(b_left_i + b_right_j), shape (n, m), (n, 1) or (1, m), by one
    matrix product."""
    # Both mixed products share one GEMM of inner dimension 2d.
    pairs = [
        (p, q) for p, q in ((a.left, b.right), (b.left, a.right)) if p is not None and q is not None
    ]
    total = None
    if pairs:
        total = product(
            jnp.concatenate([p for p, _ in pairs], 1), jnp.concatenate([q for _, q in pairs], 1)
        )
    if a.left is not None and b.left is not None:
        rows = jnp.sum(a.left * b.left, 1)[:, None]
        total = rows if total is None else total + rows
    if a.right is not None and b.right is not None:
        columns = jnp.sum(a.right * b.right, 1)[None, :]
        total = columns if total is None else total + columns
    if total is None:
        raise ValueError("inner: the two fields have no common side")
    return total


def contract(terms: tuple[Term, ...], field: Field) -> Float[Array, "n m"]:
    """Return Σ_terms coefficient · ⟨term, field⟩, shape (n, m)."""
    parts = [term.coefficient * inner(term.field, field) for term in terms]
    return sum(parts[1:], parts[0])


def scale(factor: Float[Array, "..."], terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Return `terms` with every coefficient multiplied by `factor` (scalar or (n, m))."""
    return tuple(Term(factor * t.coefficient, t.field) for t in terms)


def multiply(a: Jet, b: Jet) -> Jet:
    """Return the jet of the product of two kernels.

    ∇ₓ·∇ᵧ(k₁k₂) = k₁∇ₓ·∇ᵧk₂ + k₂∇ₓ·∇ᵧk₁ + ∇ₓk₁·∇ᵧk₂ + ∇ᵧk₁·∇ₓk₂.
    """
    # Cross terms pair ∇ₓ of one factor with ∇ᵧ of the other; each is a contraction, never (n, m,
    # d).
    pairs = [(t, b.gradient_y) for t in a.gradient_x] + [(t, b.gradient_x) for t in a.gradient_y]
    cross = sum(
        (t.coefficient * contract(others, t.field) for t, others in pairs), jnp.zeros_like(a.value)
    )
    return Jet(
        a.value * b.value,
        scale(a.value, b.gradient_x) + scale(b.value, a.gradient_x),
        scale(a.value, b.gradient_y) + scale(b.value, a.gradient_y),
        a.value * b.divergence + b.value * a.divergence + cross,
    )


if TYPE_CHECKING:
    # type checkers do not follow the converter of a field, which takes any number
    type Parameter = Any
else:
    type Parameter = Float[Array | np.ndarray, "..."]


type Points = Float[Array, "n d"]

type OtherPoints = Float[Array, "m d"]

type Point = Float[Array | np.ndarray, " d"]

type Profile = Callable[[Array, int], tuple[Array, ...]]
"""The scalar r and an order ↦ the function κ(r) of a kernel and its derivatives up to that
order."""


def parameter(value: Any) -> Any:
    """Return `value` unchanged if JAX owns it (it may be traced or differentiated), else as a
    float64 NumPy array.

    What is no number is returned as it is, for `check_parameter` to refuse under its name.
    """
    if isinstance(value, jax.Array):
        return (
            value
            if jnp.issubdtype(value.dtype, jnp.inexact)
            else value.astype(jnp.result_type(float))
        )
    try:
        array = np.asarray(value)
    except ValueError:  # a ragged list
        return value
    return array.astype(np.float64) if array.dtype.kind in "fiu" else value


def check_parameter(
    where: str,
    name: str,
    value: Parameter,
    *,
    positive: bool = True,
    lower: float = 0.0,
    scalar: bool = False,
) -> None:
    """Refuse a parameter of the wrong kind or rank, or out of range; a traced value is checked for
    rank only.

    The fourth powers of all numbers, and of their inverses, must be finite.

    positive : whether the value must exceed `lower`, instead of being at least `lower`.

    Raises
    ------
    ValueError
        naming the kernel, the parameter and what was expected.
    """
    if not isinstance(value, np.ndarray | jax.Array):
        raise InputTypeError(
            where, f"`{name}` to be a number or an array of numbers", repr(value), "Such as 1.0."
        )
    rank = np.ndim(value)
    shape = "a scalar" if scalar else "a scalar or one value per coordinate (d,)"
    if rank > (0 if scalar else 1):
        raise InputError(
            where, f"`{name}` to be {shape}", f"shape {np.shape(value)}", "Pass fewer axes."
        )
    # Under tracing there is no number to compare: rank is all that is known.
    if isinstance(value, jax.core.Tracer):
        return
    number = np.asarray(value, np.float64)
    inside = number > lower if positive else number >= lower
    # Second-order Stein kernels hold fourth powers of inverse lengthscales; beyond this they
    # overflow.
    size = np.abs(number)
    if not (number.size and (inside & (size < HUGE) & ((size > 1 / HUGE) | (size == 0))).all()):
        bound = f"greater than {lower:g}" if positive else f"at least {lower:g}"
        cure = "Optimise its logarithm if it is free, and rescale the coordinates if it is extreme."
        raise InputError(
            where,
            f"`{name}` to be finite, {bound}, and within {1 / HUGE:g} to {HUGE:g}",
            number.tolist(),
            cure,
        )


def spread(where: str, name: str, value: Parameter, like: Array | np.ndarray) -> Float[Array, " d"]:
    """Return a scalar or (d,) parameter as one value per coordinate of `like` (…, d), in its
    floating dtype."""
    d = like.shape[-1]
    if value.ndim == 1 and value.shape[0] != d:
        raise InputError(
            where,
            f"`{name}` scalar or of length d = {d}",
            f"shape {value.shape}",
            "Give one per coordinate.",
        )
    return jnp.broadcast_to(jnp.asarray(value, jnp.result_type(float, like.dtype)), (d,))


class AbstractKernel(eqx.Module):
    """A positive-definite function of two points, with its derivatives as matrix products.

    `evaluate` is the slow definition, on one pair of points; `jet` is the fast form, on two sets of
    points. ``k1 + k2``, ``k1 * k2`` and ``a * k`` build `Sum`, `Product` and `Scaled`.
    """

    __array_ufunc__: ClassVar[None] = None  # so that NumPy leaves ``array * kernel`` to __rmul__

    @abc.abstractmethod
    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        """Return k(x, y) for points x, y of shape (d,); nested autodiff is right wherever x ≠ y."""

    @abc.abstractmethod
    def jet(self, x: Points, y: OtherPoints) -> Jet:
        """Return values and first mixed derivatives between x (n, d) and y (m, d), of one dtype,
        traced by JAX."""

    def __add__(self, other: "AbstractKernel") -> "AbstractKernel":
        return Sum(self, other) if isinstance(other, AbstractKernel) else NotImplemented

    def __mul__(self, other: object) -> "AbstractKernel":
        return Product(self, other) if isinstance(other, AbstractKernel) else Scaled(other, self)

    def __rmul__(self, other: object) -> "AbstractKernel":
        return Scaled(other, self)


def check_kernels(where: str, **kernels: object) -> None:
    """Refuse what are no kernels, by their names."""
    for name, kernel in kernels.items():
        check_kind(
            where, name, kernel, AbstractKernel, "Such as Matern32(); use Scaled for a factor."
        )


class Scaled(AbstractKernel):
    """amplitude · k(x, y); the amplitude is a variance, not a standard deviation.

    amplitude : scalar; positive.
    """

    amplitude: Parameter = eqx.field(converter=parameter)
    kernel: AbstractKernel

    def __check_init__(self) -> None:
        check_kernels("Scaled", kernel=self.kernel)
        check_parameter("Scaled", "amplitude", self.amplitude, scalar=True)

    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        value = self.kernel.evaluate(x, y)
        return jnp.asarray(self.amplitude, value.dtype) * value

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        inside = self.kernel.jet(x, y)
        a = jnp.asarray(self.amplitude, inside.value.dtype)
        return Jet(
            a * inside.value,
            scale(a, inside.gradient_x),
            scale(a, inside.gradient_y),
            a * inside.divergence,
        )


class Sum(AbstractKernel):
    """k₁(x, y) + k₂(x, y)."""

    first: AbstractKernel
    second: AbstractKernel

    def __check_init__(self) -> None:
        check_kernels("Sum", first=self.first, second=self.second)

    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        return self.first.evaluate(x, y) + self.second.evaluate(x, y)

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        a, b = self.first.jet(x, y), self.second.jet(x, y)
        return Jet(
            a.value + b.value,
            a.gradient_x + b.gradient_x,
            a.gradient_y + b.gradient_y,
            a.divergence + b.divergence,
        )


class Product(AbstractKernel):
    """k₁(x, y) k₂(x, y), for any two kernels of this package, whatever their lengthscales, scales
    and centres."""

    first: AbstractKernel
    second: AbstractKernel

    def __check_init__(self) -> None:
        check_kernels("Product", first=self.first, second=self.second)

    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        return self.first.evaluate(x, y) * self.second.evaluate(x, y)

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        return multiply(self.first.jet(x, y), self.second.jet(x, y))


class Weighted(AbstractKernel):
    """w(x) w(y) k(x, y), w(x) = 1/(1 + α‖x‖²): the "preconditioned" kernel, whose features vanish
    in the tails.

    Its Stein kernel is that of k with the score s replaced by s + ∇log w, times w(x) w(y)
    (docs/mathematics.md section 1).

    alpha : scalar, not negative.

    Source: Oates, Girolami and Chopin, Control functionals for Monte Carlo integration (JRSS B
    2017), section 4.1.
    """

    kernel: AbstractKernel
    alpha: Parameter = eqx.field(converter=parameter)

    def __check_init__(self) -> None:
        check_kernels("Weighted", kernel=self.kernel)
        check_parameter("Weighted", "alpha", self.alpha, positive=False, scalar=True)

    def weight(self, x: Float[Array, "n d"]) -> tuple[Float[Array, " n"], Float[Array, "n d"]]:
        """Return w (n,) and ∇log w = −2α x w (n, d) at the points x (n, d)."""
        alpha = jnp.asarray(self.alpha, x.dtype)
        w = 1 / (1 + alpha * jnp.sum(x**2, 1))
        return w, -2 * alpha * w[:, None] * x

    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        left, right = jnp.asarray(x), jnp.asarray(y)
        return (
            self.weight(left[None])[0][0]
            * self.weight(right[None])[0][0]
            * self.kernel.evaluate(left, right)
        )

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        inside = self.kernel.jet(x, y)
        (wx, gx), (wy, gy) = self.weight(x), self.weight(y)
        w = wx[:, None] * wy[None, :]
        left, right = Field(gx, None), Field(None, gy)
        # Product rule: ∇ₓ(wₓwᵧk) = w(∇ₓk + k∇log wₓ), and the same in y.
        value = w * inside.value
        across = contract(inside.gradient_x, right) + contract(inside.gradient_y, left)
        return Jet(
            value,
            (Term(value, left), *scale(w, inside.gradient_x)),
            (Term(value, right), *scale(w, inside.gradient_y)),
            # w(∇ₓ·∇ᵧk + ∇ₓk·∇log wᵧ + ∇ᵧk·∇log wₓ + k ∇log wₓ·∇log wᵧ), section 1, A weight is a
            # change of score.
            w * (inside.divergence + across + inside.value * product(gx, gy)),
        )


@eqx.filter_jit
def gram(kernel: AbstractKernel, X: object, Y: object = None) -> Float[Array, "n m"]:
    """Return the Gram matrix k(X_i, Y_j) by matrix products; with `Y` None, of X with itself, its
    diagonal exact.

    Parameters
    ----------
    X : (n, d), an array. Y : (m, d) or None.

    Returns
    -------
    (n, m), in the dtype of X; NaN where points are.

    Raises
    ------
    ValueError : points that are not rows, or of different dimensions.
    """
    check_kind("gram", "kernel", kernel, AbstractKernel, "Such as Matern32().")
    points = as_points("gram", "X", X)
    if Y is not None:
        others = as_points("gram", "Y", Y)
        if others.shape[1] != points.shape[1]:
            got = f"{points.shape} and {others.shape}"
            raise InputError(
                "gram", "`X` and `Y` of one dimension", got, "Give both the same coordinates."
            )
        return kernel.jet(points, others).value
    # ‖x‖² − 2x·y + ‖y‖² rounds on the diagonal; single pairs have δ = 0 exactly.
    full = kernel.jet(points, points).value
    diagonal = jax.vmap(lambda x: kernel.jet(x[None], x[None]).value[0, 0])(points)
    return jnp.where(jnp.eye(points.shape[0], dtype=bool), diagonal[:, None], full)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def bessel(p: int, t: Float[Array, "..."]) -> Float[Array, "..."]:
    """Return G_μ(s) = √(2/π) s^μ K_μ(s) with s = √t and μ = p + 1/2, elementwise; 0 where it is
    infinite.

    G_μ(s) = θ_p(s) e^{−s} for p ≥ 0 and θ_n(s) e^{−s}/s^{2n+1}, n = −p − 1, for p < 0, with the
    reverse Bessel polynomials θ₀ = 1, θ₁ = 1 + s, θ_n = (2n−1) θ_{n−1} + s² θ_{n−2}. Since dG_μ/dt
    = −G_{μ−1}/2, every derivative of a Matérn profile is again such a function, with no
    cancellation near t = 0, where the closed forms of the tables lose every digit.

    Parameters
    ----------
    p : order; Matérn-3/2 is G_{3/2}(√(3r)), p = 1; Matérn-5/2 is G_{5/2}(√(5r))/3, p = 2.
    t : s² ≥ 0, any shape.
    """
    s = jnp.sqrt(t)
    if p >= 0:
        return _reverse_bessel(p, s) * jnp.exp(-s)
    n = -p - 1
    # One in place of s = 0 in the branch not taken: 1/0 there would make gradients NaN.
    away = jnp.where(t > 0, s, 1)
    return jnp.where(t > 0, _reverse_bessel(n, away) * jnp.exp(-away) / away ** (2 * n + 1), 0)


@bessel.defjvp
def _bessel_jvp(p: int, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (t,), (tangent,) = primals, tangents
    # dG_μ/dt = −G_{μ−1}/2 (section 1, Coincident points); autodiff through √t is infinite at t = 0.
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
    return jnp.sum(
        ((point - jnp.asarray(y)) / spread(where, "lengthscale", lengthscale, point)) ** 2
    )


def stationary_jet(
    where: str, lengthscale: Parameter, derivatives: Profile, x: Points, y: OtherPoints
) -> Jet:
    """Return the jet of κ(r) between x (n, d) and y (m, d): docs/mathematics.md section 1, table of
    stationary kernels.

    With Λ = diag(1/ℓ²) and δ = x − y: ∇ₓk = 2κ′Λδ = −∇ᵧk and ∇ₓ·∇ᵧk = −2κ′ trΛ − 4κ″‖Λδ‖². Points
    are centred before r is formed from matrix products, and an r below its own rounding error is a
    coincidence, r = 0: the profiles of rough kernels have infinite derivatives there, which must
    not meet rounding noise. So points closer than 4e-8 of the extent of the data are one point, in
    single precision those closer than a thousandth of it.
    """
    precision = 1 / spread(where, "lengthscale", lengthscale, x) ** 2
    # About the mean of one set: far from the origin ‖x‖² − 2x·y + ‖y‖² would lose all digits of r.
    centre = jnp.mean(y, 0, keepdims=True)
    left, right = x - centre, y - centre
    left_scaled, right_scaled = left * precision[None], right * precision[None]
    norms = jnp.sum(left * left_scaled, 1)[:, None] + jnp.sum(right * right_scaled, 1)[None, :]
    distance = norms - 2 * product(left_scaled, right)
    # 8 eps of ‖x‖² + ‖y‖² bounds the rounding of the difference, see the docstring.
    r = jnp.where(distance <= 8 * jnp.finfo(x.dtype).eps * norms, 0, distance)  # NaN stays NaN
    k, k1, k2 = derivatives(r, 2)
    difference = Field(left_scaled, -right_scaled)
    # Isotropic: ‖Λδ‖² = r/ℓ², one matrix product less.
    square = (
        precision[0] * r if lengthscale.ndim == 0 else jnp.maximum(inner(difference, difference), 0)
    )
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
        return self.derivatives(squared_distance("SquaredExponential", self.lengthscale, x, y), 0)[
            0
        ]

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        return stationary_jet("SquaredExponential", self.lengthscale, self.derivatives, x, y)


class Matern32(AbstractKernel):
    """κ(r) = (1 + s) e^{−s}, s = √(3r): once differentiable paths, enough for a first-order Stein
    kernel.

    κ″ and beyond are infinite at r = 0 and returned as 0 there: they only ever multiply δ = 0.

    lengthscale : scalar, or (d,) for one per coordinate (ARD); positive.
    """

    lengthscale: Parameter = eqx.field(converter=parameter, default=1.0)

    def __check_init__(self) -> None:
        check_parameter("Matern32", "lengthscale", self.lengthscale)

    def derivatives(self, r: Float[Array, "..."], order: int) -> tuple[Float[Array, "..."], ...]:
        """Return κ, κ′, …, κ^(order) at r ≥ 0, elementwise; 0 where infinite."""
        # t = 3r and dG/dt = −G/2 give a factor −3/2 for each derivative.
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
        # θ₂(s) = 3 + 3s + s² is κ e^s times three; t = 5r gives −5/2 for each derivative.
        return tuple((-2.5) ** j / 3 * bessel(2 - j, 5 * r) for j in range(order + 1))

    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        return self.derivatives(squared_distance("Matern52", self.lengthscale, x, y), 0)[0]

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        return stationary_jet("Matern52", self.lengthscale, self.derivatives, x, y)


def power_derivatives(
    value: Float[Array, "..."],
    inverse: Float[Array, "..."],
    exponent: Float[Array, ""] | float,
    order: int,
) -> tuple[Float[Array, "..."], ...]:
    """Return κ, κ′, …, κ^(order) of κ(r) = (1 + r/c)^{−exponent}, elementwise, from κ and 1/(c +
    r).

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
        # log1p keeps the digits of r/(2α) for large α, where 1 + r/(2α) rounds to one.
        value = jnp.exp(-alpha * jnp.log1p(r / (2 * alpha)))
        return power_derivatives(value, 1 / (2 * alpha + r), alpha, order)

    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        return self.derivatives(squared_distance("RationalQuadratic", self.lengthscale, x, y), 0)[0]

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        return stationary_jet("RationalQuadratic", self.lengthscale, self.derivatives, x, y)


def _optional(value: object) -> Array | np.ndarray | None:
    return None if value is None else parameter(value)


class InverseMultiquadric(AbstractKernel):
    """κ(r) = (1 + r)^{−exponent}: with exponent in (0, 1) its Stein discrepancy controls weak
    convergence.

    lengthscale : scalar or (d,); positive.
    exponent : scalar; positive. Without one it is ½ and is never tuned: a square root in place of a
        logarithm, up to four times as fast in Stein products (``benchmarks.linops.kernel_product
        --stein``).

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
        return self.derivatives(squared_distance("InverseMultiquadric", self.lengthscale, x, y), 0)[
            0
        ]

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        return stationary_jet("InverseMultiquadric", self.lengthscale, self.derivatives, x, y)


def scaled_product(
    where: str, scale: Parameter, centre: Parameter, x: Point, y: Point
) -> Float[Array, ""]:
    """Return r = (x − c)ᵀΛ(y − c) for one pair of points (d,)."""
    left, right = jnp.asarray(x), jnp.asarray(y)
    middle = spread(where, "centre", centre, left)
    return jnp.sum(spread(where, "scale", scale, left) ** 2 * (left - middle) * (right - middle))


def dot_product_jet(
    where: str, scale: Parameter, centre: Parameter, derivatives: Profile, x: Points, y: OtherPoints
) -> Jet:
    """Return the jet of κ(r) between x (n, d) and y (m, d): docs/mathematics.md section 1, table of
    dot-product kernels.

    With x̃ = x − c, ỹ = y − c: ∇ₓk = κ′Λỹ, ∇ᵧk = κ′Λx̃ and ∇ₓ·∇ᵧk = κ′ trΛ + κ″ x̃ᵀΛ²ỹ.
    """
    weight = spread(where, "scale", scale, x) ** 2
    middle = spread(where, "centre", centre, x)[None]
    left, right = (x - middle) * weight[None], (y - middle) * weight[None]
    r = product(left, y - middle)
    k, k1, k2 = derivatives(r, 2)
    # Isotropic: x̃ᵀΛ²ỹ = scale² r, one matrix product less.
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
        """Return κ, κ′, …, κ^(order), elementwise: falling factorials times (r + offset)^{degree −
        j}."""
        base = r + jnp.asarray(self.offset, r.dtype)
        values, factor = [], 1
        for j in range(order + 1):
            # A negative power of a base of zero is infinite, and times the factor, then zero, NaN.
            values.append(
                factor * base ** (self.degree - j) if j <= self.degree else jnp.zeros_like(base)
            )
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
        return self.derivatives(
            scaled_product("ExponentialDotProduct", self.scale, self.centre, x, y), 0
        )[0]

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        return dot_product_jet(
            "ExponentialDotProduct", self.scale, self.centre, self.derivatives, x, y
        )


type Stationary = SquaredExponential | Matern32 | Matern52 | RationalQuadratic | InverseMultiquadric
STATIONARY = (SquaredExponential, Matern32, Matern52, RationalQuadratic, InverseMultiquadric)
"""Kernels that are one profile of r = Σ (x_i − y_i)²/ℓ_i²."""
type DotProduct = Polynomial | ExponentialDotProduct
DOT_PRODUCT = (Polynomial, ExponentialDotProduct)
"""Kernels that are one profile of an inner product."""
