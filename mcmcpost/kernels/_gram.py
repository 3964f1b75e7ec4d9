"""Gram matrices of kernels, by matrix products."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mcmcpost._checks import as_points, fault
from mcmcpost.kernels._base import AbstractKernel


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
    points = as_points("gram", "X", X)
    if Y is not None:
        others = as_points("gram", "Y", Y)
        if others.shape[1] != points.shape[1]:
            got = f"{points.shape} and {others.shape}"
            raise ValueError(fault("gram", "`X` and `Y` of one dimension", got, "Give both the same coordinates."))
        return kernel.jet(points, others).value
    full = kernel.jet(points, points).value
    diagonal = jax.vmap(lambda x: kernel.jet(x[None], x[None]).value[0, 0])(points)
    return jnp.where(jnp.eye(points.shape[0], dtype=bool), diagonal[:, None], full)
