"""Kernel Stein discrepancy of weighted draws."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost.kernels import AbstractKernel
from mcmcpost.stein._kernel import stein_operator

type Points = Float[Array | np.ndarray, "n d"]


def kernel_stein_discrepancy(
    kernel: AbstractKernel, X: Points, SX: Points, *, weights: Float[Array | np.ndarray, " n"] | None = None
) -> Float[Array, ""]:
    """Return √(Σ_ij w_i w_j k₀(x_i, x_j)), the V-statistic, tile by tile in O(n) memory.

    Parameters
    ----------
    X, SX : (n, d) points and scores.
    weights : (n,), any sign; 1/n when None.

    Source: Gorham and Mackey, Measuring Sample Quality with Kernels (ICML 2017), section 3.
    """
    points = jnp.asarray(X)
    w = jnp.full(points.shape[0], 1 / points.shape[0], points.dtype) if weights is None else jnp.asarray(weights)
    square = jnp.vdot(w, stein_operator(kernel, X, SX).matmul(w[:, None])[:, 0])
    return jnp.sqrt(jnp.maximum(square, 0))
