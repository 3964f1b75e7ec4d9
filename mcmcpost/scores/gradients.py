"""Gradients of a log density at stored draws: compiled once, in batches, over all devices."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, Float
from tqdm import tqdm

from mcmcpost._core.checks import as_float64
from mcmcpost._core.errors import InputError

_AXIS = "draws"


def batch_scores(
    logdensity_fn: Callable[[Array], Array],
    draws: object,
    *,
    batch_size: int = 512,
    progress: bool = False,
) -> Float[np.ndarray, "c n d"]:
    """Return the gradient of a log density at every stored draw, in float64.

    s = ∇ log p(x). The gradient is compiled once and vectorised over blocks of equal size, each device taking its
    share. A draw at which log p is NaN or infinite gets a NaN score: automatic differentiation may give a finite
    gradient there (a masked failure of an ODE solver does), which is wrong.

    Parameters
    ----------
    logdensity_fn : log density of one unconstrained draw, (d,) → scalar, written in JAX.
    draws : (c, n, d) unconstrained draws.
    batch_size : draws differentiated at a time on each device; memory grows with it.
    progress : show a progress bar, on a terminal only.

    Returns
    -------
    (c, n, d) scores.

    Raises
    ------
    ValueError : `draws` is not (chain, draw, d), `batch_size` is below one, or the log density is not a scalar.
    """
    points = as_float64("batch_scores", "draws", draws, "chain, draw, d")
    if batch_size < 1:
        raise InputError("batch_scores", "`batch_size` of at least one", batch_size, "Use 512.")
    if points.size == 0:
        raise InputError("batch_scores", "at least one chain, draw and parameter", points.shape, "Sample first.")
    flat = points.reshape(-1, points.shape[-1])
    with jax.enable_x64(True):
        _check_scalar(logdensity_fn, flat[0])
        devices = jax.devices()
        share = -(-len(flat) // len(devices))
        steps = -(-share // batch_size)
        # Blocks of one shape compile once; equal ones leave little to pad.
        block = len(devices) * -(-share // steps)
        padded = np.concatenate([flat, np.repeat(flat[-1:], steps * block - len(flat), axis=0)])
        score_block = _compile(logdensity_fn)
        # tqdm takes None for "only on a terminal".
        blocks = tqdm(padded.reshape(steps, block, -1), desc="scores", disable=None if progress else True, leave=False)
        scores = np.concatenate([np.asarray(score_block(rows)) for rows in blocks])
    return scores[: len(flat)].reshape(points.shape)


def _check_scalar(logdensity_fn: Callable[[Array], Array], draw: Float[np.ndarray, " d"]) -> None:
    value = jax.eval_shape(logdensity_fn, jax.ShapeDtypeStruct(draw.shape, draw.dtype))
    if getattr(value, "shape", None) != ():
        raise InputError(
            "batch_scores",
            "`logdensity_fn` to map one draw (d,) to a scalar",
            getattr(value, "shape", value),
            "Sum the terms of the log density.",
        )


def _compile(
    logdensity_fn: Callable[[Array], Array],
) -> Callable[[Float[np.ndarray, "m d"]], Float[Array, "m d"]]:
    def score(draw: Array) -> Array:
        value, gradient = jax.value_and_grad(logdensity_fn)(draw)
        return jnp.where(jnp.isfinite(value), gradient, jnp.nan)

    compiled = jax.jit(jax.vmap(score))
    return lambda rows: compiled(over_devices(rows))


def over_devices(array: Array | np.ndarray) -> Array:
    """Return an array with its leading axis over all devices; its size must divide by their number."""
    devices = jax.devices()
    if len(devices) == 1:
        return jnp.asarray(array)
    # An Auto mesh partitions the vmapped function; shard_map would break diffrax's default adjoint.
    mesh = jax.make_mesh((len(devices),), (_AXIS,), axis_types=(AxisType.Auto,), devices=devices)
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec(_AXIS)))
