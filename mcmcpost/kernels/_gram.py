"""Gram matrices of kernels, by matrix products."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost.kernels._base import AbstractKernel


@eqx.filter_jit
def gram(
    kernel: AbstractKernel, X: Float[Array | np.ndarray, "n d"], Y: Float[Array | np.ndarray, "m d"] | None = None
) -> Float[Array, "n m"]:
    """Return the Gram matrix k(X_i, Y_j) by matrix products; with `Y` None, of X with itself, its diagonal exact.

    Parameters
    ----------
    X : (n, d)
    Y : (m, d) or None

    Returns
    -------
    (n, m), in the dtype of X.
    """
    points = jnp.asarray(X)
    if Y is not None:
        return kernel.jet(points, jnp.asarray(Y)).value
    full = kernel.jet(points, points).value
    diagonal = jax.vmap(lambda x: kernel.jet(x[None], x[None]).value[0, 0])(points)
    return jnp.where(jnp.eye(points.shape[0], dtype=bool), diagonal[:, None], full)
