"""Kernel parameters by restricted maximum likelihood: L-BFGS on log parameters from several starts."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost._blocks import pad_columns
from mcmcpost.hyper._likelihood import negative_restricted_likelihood, stein_covariance
from mcmcpost.hyper._search import Start, minimise_from
from mcmcpost.kernels import AbstractKernel

PRIOR_SD = 1.5
"""Weak normal prior on each log parameter about its first start: an inert coordinate keeps a finite lengthscale."""
NUGGET_BOUNDS = (1e-8, 1e2)
RANGE = 3.5
"""Log parameters stay within this of their start, a factor of 33: the line search may not run to a diagonal kernel."""


class Tuned(NamedTuple):
    """A kernel and nugget at a maximum of the restricted likelihood.

    kernel, nugget : the maximiser.
    loss : negative log restricted likelihood there, nats, summed over integrands, prior included.
    num_evaluations : likelihood evaluations over all starts.
    """

    kernel: AbstractKernel
    nugget: float
    loss: float
    num_evaluations: int


def maximise_restricted_likelihood(
    starts: tuple[AbstractKernel, ...],
    draws: Float[np.ndarray, "m d"],
    scores: Float[np.ndarray, "m d"],
    basis: Float[np.ndarray, "m q"],
    values: Float[np.ndarray, "m p"],
    *,
    nugget: float,
    free_nugget: bool,
    max_steps: int = 50,
) -> Tuned:
    """Tune every positive parameter of the kernel, and the nugget if it is free, for all integrands jointly.

    Several starts, at large lengthscales, because the likelihood has poor local optima and a single start leaves rare
    outliers (MATH.md section 2). Parameters that are zero or negative (a centre) are held fixed. An evaluation whose
    covariance is not positive definite counts as +∞, which the line search backs away from; if every start is one,
    the nugget is raised tenfold until it is not.

    Parameters
    ----------
    starts : kernels of one structure; their parameters are the starting points.
    draws, scores : (m, d), distinct states.
    basis : (m, q), unpenalised part. values : (m, p), integrands of unit scale.
    nugget : relative η, fixed or starting point.

    Raises
    ------
    ValueError
        If the likelihood is finite at none of the starts under any nugget.
    """
    data = tuple(jnp.asarray(a) for a in (draws, scores, basis, pad_columns(values)))
    centre = jnp.asarray(np.append(pack(starts[0]), np.log(nugget)))
    parts = [eqx.partition(start, is_positive) for start in starts]
    prepared = []
    for start, (parameters, static) in zip(starts, parts, strict=True):
        initial = np.append(pack(start), np.log(nugget))
        bounds = np.stack([initial - RANGE, initial + RANGE], axis=1)
        bounds[-1] = np.log(NUGGET_BOUNDS)
        free = np.ones(len(initial), bool)
        free[-1] = free_nugget
        loss = functools.partial(_loss_and_gradient, centre, parameters, static, data)
        prepared.append(Start(loss, initial, free, bounds))
    best = minimise_from(prepared, max_steps=max_steps)
    if best is not None:
        kernel = unpack(jnp.asarray(best.x[:-1]), *parts[best.start])
        kernel = jax.tree.map(np.asarray, kernel)
        return Tuned(kernel, float(np.exp(best.x[-1])), best.value, best.num_evaluations)
    if nugget >= NUGGET_BOUNDS[1]:
        raise ValueError(
            "maximise_restricted_likelihood: expected a positive definite Stein kernel matrix at one start, got none "
            f"at nugget {nugget:g}. Raise `nugget` or pass a kernel with a shorter lengthscale."
        )
    return maximise_restricted_likelihood(
        starts,
        draws,
        scores,
        basis,
        values,
        nugget=10.0 * nugget,
        free_nugget=free_nugget,
        max_steps=max_steps,
    )


def is_positive(leaf: Any) -> bool:
    """Return whether a leaf of a kernel is a tunable parameter: a positive number or array of them."""
    return eqx.is_inexact_array_like(leaf) and bool(np.all(np.asarray(leaf) > 0))


def pack(kernel: Any) -> Float[np.ndarray, " h"]:
    """Return the logarithms of the positive parameters of a kernel, or of a tuple of kernels."""
    leaves = jax.tree.leaves(eqx.filter(kernel, is_positive))
    return np.log(np.concatenate([np.ravel(np.asarray(leaf, float)) for leaf in leaves] or [np.ones(0)]))


def unpack(x: Float[Array, " h"], parameters: Any, static: Any) -> Any:
    """Return the kernel whose log parameters are `x`; `parameters` and `static` are the partition of one like it."""
    leaves, structure = jax.tree.flatten(parameters)
    ends = np.cumsum([np.size(leaf) for leaf in leaves])
    parts = jnp.split(jnp.exp(x), ends[:-1]) if leaves else []
    shaped = [part.reshape(np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)]
    return eqx.combine(jax.tree.unflatten(structure, shaped), static)


@eqx.filter_jit
def _loss_and_gradient(
    centre: Float[Array, " h"], parameters: Any, static: Any, data: tuple[Array, ...], x: Float[Array, " h"]
) -> tuple[Float[Array, ""], Float[Array, " h"]]:
    draws, scores, basis, values = data
    noise = jnp.ones(draws.shape[0], draws.dtype)
    x = jnp.asarray(x)

    def covariance(x: Float[Array, " h"]) -> Float[Array, "m m"]:
        return stein_covariance(unpack(x[:-1], parameters, static), draws, scores, noise, jnp.exp(x[-1]))

    matrix, pull_back = jax.vjp(covariance, x)
    likelihood = negative_restricted_likelihood(matrix, basis, values)
    offset = (x - centre)[:-1]
    loss = jnp.sum(likelihood.losses) + 0.5 * jnp.sum((offset / PRIOR_SD) ** 2)
    slope = pull_back(likelihood.slope)[0]
    return loss, slope.at[:-1].add(offset / PRIOR_SD**2)
