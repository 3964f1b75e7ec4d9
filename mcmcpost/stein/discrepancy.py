"""Kernel Stein discrepancy of weighted draws, and Stein thinning, which lowers it draw by draw."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Real

from mcmcpost.core.arguments import check_count
from mcmcpost.core.errors import InputError
from mcmcpost.stein.kernels import AbstractKernel
from mcmcpost.stein.operators import Points, check_states, stein_operator
from mcmcpost.stein.products import TileOperator


def stein_discrepancy(
    kernel: AbstractKernel,
    X: Points,
    SX: Points,
    *,
    weights: Real[Array | np.ndarray, " n"] | None = None,
) -> Float[Array, ""]:
    """Return √(Σ_ij w_i w_j k₀(x_i, x_j)), the V-statistic, tile by tile in O(n) memory.

    Parameters
    ----------
    X, SX : (n, d) points and scores.
    weights : (n,), any sign; 1/n when None.

    Source: Gorham and Mackey, Measuring Sample Quality with Kernels (ICML 2017), section 3.
    """
    where = "stein_discrepancy"
    check_states(where, kernel, ("X", "SX"), X, SX)
    points = jnp.asarray(X)
    if weights is not None and np.shape(weights) != points.shape[:1]:
        raise InputError(
            where,
            f"`weights` of shape {points.shape[:1]}",
            np.shape(weights),
            "One weight a point.",
        )
    w = jnp.full(points.shape[0], 1 / points.shape[0]) if weights is None else jnp.asarray(weights)
    w = w.astype(points.dtype)
    square = jnp.vdot(w, stein_operator(kernel, X, SX).matmul(w[:, None])[:, 0])
    return jnp.sqrt(jnp.maximum(square, 0))


class Thinned(NamedTuple):
    """The points chosen.

    indices : (size,) in the order chosen. discrepancy : (size,) Stein discrepancy after each
        choice.
    """

    indices: Int[Array, " k"]
    discrepancy: Float[Array, " k"]


def stein_thin(kernel: AbstractKernel, X: Points, SX: Points, size: int) -> Thinned:
    """Choose `size` of n points, one after the other, each the one that lowers the Stein
    discrepancy most.

    π_j = argmin_i k₀(x_i, x_i)/2 + Σ_{j'<j} k₀(x_{π_j'}, x_i); a point may be chosen again. One
    column of the Stein kernel per choice. Riabiz et al. (2022, doi:10.1111/rssb.12503), Algorithm
    1.
    """
    check_count("stein_thinning", "size", size, "Choose some draws.")
    check_states("stein_thinning", kernel, ("X", "SX"), X, SX)
    return _choose(stein_operator(kernel, X, SX), int(size))


@eqx.filter_jit
def _choose(operator: TileOperator, size: int) -> Thinned:
    diagonal = operator.diagonal()

    def step(
        state: tuple[Array, Array], count: Array
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        potential, total = state  # Σ over the chosen of k₀(·, x_i), and of k₀ between them
        best = jnp.argmin(0.5 * diagonal + potential)
        total = total + 2 * potential[best] + diagonal[best]
        potential = potential + operator.columns(best[None])[:, 0]
        return (potential, total), (best, jnp.sqrt(jnp.maximum(total, 0)) / count)

    counts = jnp.arange(1, size + 1, dtype=diagonal.dtype)
    start = jnp.zeros_like(diagonal), jnp.zeros((), diagonal.dtype)
    return Thinned(*jax.lax.scan(step, start, counts)[1])
