"""The contract of a kernel, and the algebra that keeps it: scaled, summed and multiplied kernels."""

import abc
from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from mcmcpost._checks import fault
from mcmcpost.kernels._jet import Jet, multiply, scale
from mcmcpost.kernels._parameters import OtherPoints, Parameter, Point, Points, check_parameter, parameter


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


def check_kernels(where: str, *kernels: object) -> None:
    for kernel in kernels:
        if not isinstance(kernel, AbstractKernel):
            raise TypeError(
                fault(where, "kernels of mcmcpost.kernels", f"a {type(kernel).__name__}", "Use Scaled for a factor.")
            )


class Scaled(AbstractKernel):
    """amplitude · k(x, y); the amplitude is a variance, not a standard deviation.

    amplitude : scalar; positive.
    """

    amplitude: Parameter = eqx.field(converter=parameter)
    kernel: AbstractKernel

    def __check_init__(self) -> None:
        check_kernels("Scaled", self.kernel)
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
        check_kernels("Sum", self.first, self.second)

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
        check_kernels("Product", self.first, self.second)

    def evaluate(self, x: Point, y: Point) -> Float[Array, ""]:
        return self.first.evaluate(x, y) * self.second.evaluate(x, y)

    def jet(self, x: Points, y: OtherPoints) -> Jet:
        return multiply(self.first.jet(x, y), self.second.jet(x, y))
