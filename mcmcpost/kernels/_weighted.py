"""Weighted kernels: features that vanish in the tails."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from mcmcpost.kernels._base import AbstractKernel, check_kernels
from mcmcpost.kernels._jet import Field, Jet, Term, contract, product, scale
from mcmcpost.kernels._parameters import OtherPoints, Parameter, Point, Points, check_parameter, parameter


class Weighted(AbstractKernel):
    """w(x) w(y) k(x, y), w(x) = 1/(1 + α‖x‖²): the "preconditioned" kernel, whose features vanish in the tails.

    Its Stein kernel is that of k with the score s replaced by s + ∇log w, times w(x) w(y) (MATH.md section 1).

    alpha : scalar, not negative.

    Source: Oates, Girolami and Chopin, Control functionals for Monte Carlo integration (JRSS B 2017), section 4.1.
    """

    kernel: AbstractKernel
    alpha: Parameter = eqx.field(converter=parameter)

    def __check_init__(self) -> None:
        check_kernels("Weighted", self.kernel)
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
