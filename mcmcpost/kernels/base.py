"""The contract of a kernel, its parameters and Gram matrix; scaled, summed, multiplied and weighted kernels."""

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost._core.arguments import HUGE, check_kind
from mcmcpost._core.errors import InputError, InputTypeError
from mcmcpost._core.precision import as_points
from mcmcpost.kernels.jet import Field, Jet, Term, contract, multiply, product, scale

if TYPE_CHECKING:
    type Parameter = Any  # type checkers do not follow the converter of a field, which takes any number
else:
    type Parameter = Float[Array | np.ndarray, "..."]


type Points = Float[Array, "n d"]

type OtherPoints = Float[Array, "m d"]

type Point = Float[Array | np.ndarray, " d"]

type Profile = Callable[[Array, int], tuple[Array, ...]]
"""The scalar r and an order ↦ the function κ(r) of a kernel and its derivatives up to that order."""


def parameter(value: Any) -> Any:
    """Return `value` unchanged if JAX owns it (it may be traced or differentiated), else as a float64 NumPy array.

    What is no number is returned as it is, for `check_parameter` to refuse under its name.
    """
    if isinstance(value, jax.Array):
        return value if jnp.issubdtype(value.dtype, jnp.inexact) else value.astype(jnp.result_type(float))
    try:
        array = np.asarray(value)
    except ValueError:  # a ragged list
        return value
    return array.astype(np.float64) if array.dtype.kind in "fiu" else value


def check_parameter(
    where: str, name: str, value: Parameter, *, positive: bool = True, lower: float = 0.0, scalar: bool = False
) -> None:
    """Refuse a parameter of the wrong kind or rank, or out of range; a traced value is checked for rank only.

    The fourth powers of all numbers, and of their inverses, must be finite.

    positive : whether the value must exceed `lower`, instead of being at least `lower`.

    Raises
    ------
    ValueError
        naming the kernel, the parameter and what was expected.
    """
    if not isinstance(value, np.ndarray | jax.Array):
        raise InputTypeError(where, f"`{name}` to be a number or an array of numbers", repr(value), "Such as 1.0.")
    rank = np.ndim(value)
    shape = "a scalar" if scalar else "a scalar or one value per coordinate (d,)"
    if rank > (0 if scalar else 1):
        raise InputError(where, f"`{name}` to be {shape}", f"shape {np.shape(value)}", "Pass fewer axes.")
    if isinstance(value, jax.core.Tracer):
        return
    number = np.asarray(value, np.float64)
    inside = number > lower if positive else number >= lower
    size = np.abs(number)
    if not (number.size and (inside & (size < HUGE) & ((size > 1 / HUGE) | (size == 0))).all()):
        bound = f"greater than {lower:g}" if positive else f"at least {lower:g}"
        cure = "Optimise its logarithm if it is free, and rescale the coordinates if it is extreme."
        raise InputError(
            where, f"`{name}` to be finite, {bound}, and within {1 / HUGE:g} to {HUGE:g}", number.tolist(), cure
        )


def spread(where: str, name: str, value: Parameter, like: Array | np.ndarray) -> Float[Array, " d"]:
    """Return a scalar or (d,) parameter as one value per coordinate of `like` (…, d), in its floating dtype."""
    d = like.shape[-1]
    if value.ndim == 1 and value.shape[0] != d:
        raise InputError(
            where, f"`{name}` scalar or of length d = {d}", f"shape {value.shape}", "Give one per coordinate."
        )
    return jnp.broadcast_to(jnp.asarray(value, jnp.result_type(float, like.dtype)), (d,))


class AbstractKernel(eqx.Module):
    """A positive-definite function of two points, with its derivatives as matrix products.

    `evaluate` is the slow definition, on one pair of points; `jet` is the fast form, on two sets of points.
    ``k1 + k2``, ``k1 * k2`` and ``a * k`` build `Sum`, `Product` and `Scaled`.
    """

    __array_ufunc__: ClassVar[None] = None  # so that NumPy leaves ``array * kernel`` to __rmul__

    @abc.abstractmethod
    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        """Return k(x, y) for points x, y of shape (d,); nested autodiff is right wherever x ≠ y."""

    @abc.abstractmethod
    def jet(self, x: Points, y: OtherPoints) -> Jet:
        """Return values and first mixed derivatives between x (n, d) and y (m, d), of one dtype, traced by JAX."""

    def __add__(self, other: "AbstractKernel") -> "AbstractKernel":
        return Sum(self, other) if isinstance(other, AbstractKernel) else NotImplemented

    def __mul__(self, other: object) -> "AbstractKernel":
        return Product(self, other) if isinstance(other, AbstractKernel) else Scaled(other, self)

    def __rmul__(self, other: object) -> "AbstractKernel":
        return Scaled(other, self)


def check_kernels(where: str, **kernels: object) -> None:
    """Refuse what are no kernels, by their names."""
    for name, kernel in kernels.items():
        check_kind(where, name, kernel, AbstractKernel, "Such as Matern32(); use Scaled for a factor.")


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
        return Jet(a * inside.value, scale(a, inside.gradient_x), scale(a, inside.gradient_y), a * inside.divergence)


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
            a.value + b.value, a.gradient_x + b.gradient_x, a.gradient_y + b.gradient_y, a.divergence + b.divergence
        )


class Product(AbstractKernel):
    """k₁(x, y) k₂(x, y), for any two kernels of this package, whatever their lengthscales, scales and centres."""

    first: AbstractKernel
    second: AbstractKernel

    def __check_init__(self) -> None:
        check_kernels("Product", first=self.first, second=self.second)

    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        return self.first.evaluate(x, y) * self.second.evaluate(x, y)

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        return multiply(self.first.jet(x, y), self.second.jet(x, y))


class Weighted(AbstractKernel):
    """w(x) w(y) k(x, y), w(x) = 1/(1 + α‖x‖²): the "preconditioned" kernel, whose features vanish in the tails.

    Its Stein kernel is that of k with the score s replaced by s + ∇log w, times w(x) w(y) (docs/mathematics.md section
    1).

    alpha : scalar, not negative.

    Source: Oates, Girolami and Chopin, Control functionals for Monte Carlo integration (JRSS B 2017), section 4.1.
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
        return self.weight(left[None])[0][0] * self.weight(right[None])[0][0] * self.kernel.evaluate(left, right)

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        inside = self.kernel.jet(x, y)
        (wx, gx), (wy, gy) = self.weight(x), self.weight(y)
        w = wx[:, None] * wy[None, :]
        left, right = Field(gx, None), Field(None, gy)
        value = w * inside.value
        across = contract(inside.gradient_x, right) + contract(inside.gradient_y, left)
        return Jet(
            value,
            (Term(value, left), *scale(w, inside.gradient_x)),
            (Term(value, right), *scale(w, inside.gradient_y)),
            w * (inside.divergence + across + inside.value * product(gx, gy)),
        )


@eqx.filter_jit
def gram(kernel: AbstractKernel, X: object, Y: object = None) -> Float[Array, "n m"]:
    """Return the Gram matrix k(X_i, Y_j) by matrix products; with `Y` None, of X with itself, its diagonal exact.

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
            raise InputError("gram", "`X` and `Y` of one dimension", got, "Give both the same coordinates.")
        return kernel.jet(points, others).value
    full = kernel.jet(points, points).value
    diagonal = jax.vmap(lambda x: kernel.jet(x[None], x[None]).value[0, 0])(points)
    return jnp.where(jnp.eye(points.shape[0], dtype=bool), diagonal[:, None], full)
