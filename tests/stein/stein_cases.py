"""What the Stein kernels of both orders are checked for alike."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from mcmcpost.kernels import AbstractKernel


def check_parameter_gradients(gram: Callable[..., jax.Array], kernel: AbstractKernel, rng: np.random.Generator) -> None:
    """Compare the derivatives of a Gram matrix in the kernel's parameters with central differences.

    With a repeated state, where √r is not differentiable.
    """
    X = rng.normal(size=(4, 3))
    X[3] = X[0]
    S, C = -X, rng.normal(size=(4, 4))
    flat, unravel = ravel_pytree(jax.tree.map(jnp.asarray, kernel))

    @jax.jit
    @jax.value_and_grad
    def objective(parameters: jax.Array) -> jax.Array:
        return jnp.sum(C * gram(unravel(parameters), X, S))

    flat, step = np.asarray(flat), 1e-5
    gradient = np.asarray(objective(flat)[1])
    ends = [(objective(flat + step * e)[0], objective(flat - step * e)[0]) for e in np.eye(flat.size)]
    numeric = np.diff(np.asarray(ends))[:, 0] / (-2 * step)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-7 * np.abs(gradient).max())
