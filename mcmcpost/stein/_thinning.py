"""Stein thinning: a few draws chosen to follow the target."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mcmcpost._checks import check_count, check_kind
from mcmcpost.kernels import AbstractKernel
from mcmcpost.linops import TileOperator
from mcmcpost.stein._kernel import Points, stein_operator


class Thinned(NamedTuple):
    """indices : (size,) of the points in the order chosen. discrepancy : (size,) of the points chosen so far."""

    indices: Int[Array, " k"]
    discrepancy: Float[Array, " k"]


def stein_thin(kernel: AbstractKernel, X: Points, SX: Points, size: int) -> Thinned:
    """Choose `size` of n points, one after the other, each the one that lowers the Stein discrepancy most.

    π_j = argmin_i k₀(x_i, x_i)/2 + Σ_{j'<j} k₀(x_{π_j'}, x_i); a point may be chosen again. One column of the Stein
    kernel per choice. Riabiz et al. (2022, doi:10.1111/rssb.12503), Algorithm 1.
    """
    check_count("stein_thinning", "size", size, "Choose some draws.")
    check_kind("stein_thinning", "kernel", kernel, AbstractKernel, "Such as InverseMultiquadric().")
    return _choose(stein_operator(kernel, X, SX), size)


@eqx.filter_jit
def _choose(operator: TileOperator, size: int) -> Thinned:
    diagonal = operator.diagonal()

    def step(state: tuple[Array, Array], count: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        potential, total = state  # Σ over the chosen of k₀(·, x_i), and of k₀ between them
        best = jnp.argmin(0.5 * diagonal + potential)
        total = total + 2 * potential[best] + diagonal[best]
        potential = potential + operator.columns(best[None])[:, 0]
        return (potential, total), (best, jnp.sqrt(jnp.maximum(total, 0)) / count)

    counts = jnp.arange(1, size + 1, dtype=diagonal.dtype)
    start = jnp.zeros_like(diagonal), jnp.zeros((), diagonal.dtype)
    return Thinned(*jax.lax.scan(step, start, counts)[1])
