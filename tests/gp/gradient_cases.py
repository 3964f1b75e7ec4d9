"""The slow definition of a process and its derivatives, by nested autodiff of the kernel on one
pair of points."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mcmcpost.stein import AbstractKernel


@eqx.filter_jit
def autodiff_blocks(kernel: AbstractKernel, X: jax.Array, Y: jax.Array) -> jax.Array:
    """Return the covariance of values and gradients at X with values and gradients at Y, (m, 1 + d,
    n, 1 + d)."""

    def block(x: jax.Array, y: jax.Array) -> jax.Array:
        k = kernel.evaluate
        by_y = jax.jacfwd(k, 1)
        top = jnp.append(k(x, y)[None], by_y(x, y))
        below = jnp.concatenate(
            [jax.jacfwd(k, 0)(x, y)[:, None], jax.jacfwd(by_y, 0)(x, y).T], axis=1
        )
        return jnp.concatenate([top[None], below], axis=0)

    blocks = jax.vmap(lambda x: jax.vmap(lambda y: block(x, y))(Y))
    return jnp.moveaxis(blocks(X), 1, 2)


def observed(blocks: np.ndarray, with_values: bool) -> np.ndarray:
    """Return the blocks as a matrix of the observations: gradients, values first where they are
    observed."""
    first = 1 - with_values
    kept = blocks[:, first:, :, first:]
    return kept.reshape(kept.shape[0] * kept.shape[1], -1)


def representation(kernel: AbstractKernel, X: np.ndarray, weights: jax.Array):
    """Return x ↦ Σ_b cov(f(x), value and gradient at b) weights_b, to be differentiated."""

    def value(x: jax.Array) -> jax.Array:
        def one(b: jax.Array, a: jax.Array, z: jax.Array) -> jax.Array:
            k, slope = jax.jvp(lambda y: kernel.evaluate(x, y), (b,), (z,))
            return a * k + slope

        return jnp.sum(jax.vmap(one)(jnp.asarray(X), weights[:, 0], weights[:, 1:]))

    return value
