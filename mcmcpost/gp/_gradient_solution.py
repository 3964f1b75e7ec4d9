"""What solvers of the gradient Gram system share: the contract, the record, the memory they may take."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mcmcpost._checks import fault
from mcmcpost.gp._gradient_gram import GradientGram
from mcmcpost.gp._scalar_profile import ScalarProfile

MEMORY = 4e9
"""Bytes that a dense factorisation may take: its matrix, the factor and one work copy."""
ACCURATE = 1e-6
"""Relative residual up to which a direct solve counts as converged."""


class GradientSolution(NamedTuple):
    """Weights of the representation of the posterior mean, and what they cost.

    value : (n, w) white. residual : relative, ‖b − Kv‖/‖b‖, by one product after the solve. converged : whether it is
    within the solver's tolerance. num_products : structured products made. order : of the largest matrix factorised.
    nugget : multiple of the identity that a Cholesky factorisation added; raised : whether above its floor at rounding.
    """

    value: Float[Array, "n w"]
    residual: Float[Array, ""]
    converged: Bool[Array, ""]
    num_products: Int[Array, ""]
    order: int
    nugget: Float[Array, ""]
    raised: Bool[Array, ""]


class AbstractGradientSolver(eqx.Module):
    """Solves the system of a `GradientGram`."""

    @abc.abstractmethod
    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        """Refuse a system that the solver cannot take: of another structure, or beyond memory."""

    @abc.abstractmethod
    def solve(self, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
        """Return (K + σ²I)⁻¹ right with its status and cost; traced by JAX."""


def projected_dimension(stationary: bool, n: int, d: int) -> int:
    """Return q, the dimension of the span of the rank-one terms."""
    return min(d, max(n - 1, 1) if stationary else n)


def fits(order: int) -> bool:
    """Return whether a matrix of that order, its factor and a work copy fit in `MEMORY`."""
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
        raise MemoryError(fault(where, f"at most {MEMORY:.0e} bytes", f"a need of {need:.1e}", cure))


def refuse_values(where: str, with_values: bool) -> None:
    if with_values:
        raise ValueError(fault(where, "gradients only", "values too", "Use ProjectedCholesky or GradientCG."))


def relative_residual(gram: GradientGram, right: Float[Array, "n w"], value: Float[Array, "n w"]) -> Float[Array, ""]:
    size = jnp.linalg.norm(right)
    return jnp.linalg.norm(right - gram.matmul(value)) / jnp.where(size > 0, size, 1)


def direct(
    gram: GradientGram,
    right: Float[Array, "n w"],
    value: Float[Array, "n w"],
    order: int,
    nugget: Float[Array, ""],
    raised: Bool[Array, ""],
) -> GradientSolution:
    residual = relative_residual(gram, right, value)
    one = jnp.ones((), int)
    return GradientSolution(value, residual, residual <= ACCURATE, one, order, nugget, raised)
