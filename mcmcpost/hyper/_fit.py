"""Kernel parameters by restricted maximum likelihood: L-BFGS on log parameters from several starts."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize

from mcmcpost.hyper._likelihood import negative_restricted_likelihood, stein_covariance
from mcmcpost.kernels import AbstractKernel

PRIOR_SD = 1.5
"""Weak normal prior on each log parameter about its first start: an inert coordinate keeps a finite lengthscale."""
NUGGET_BOUNDS = (1e-8, 1e2)
RANGE = 3.5
"""Log parameters stay within this of their start, a factor of 33: the line search may not run to a diagonal kernel."""
INFINITE = 1e25


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
    data = tuple(jnp.asarray(a) for a in (draws, scores, basis, values))
    centre = _pack(starts[0], nugget)
    budget = {"maxiter": max_steps, "maxfun": 2 * max_steps}
    best: tuple[float, np.ndarray, AbstractKernel] | None = None
    evaluations = 0
    for start in starts:
        parameters, static = eqx.partition(start, _positive)
        initial = _pack(start, nugget)
        size = len(initial) if free_nugget else len(initial) - 1
        loss = functools.partial(_finite_loss, initial, centre, parameters, static, data)
        bounds = [(x - RANGE, x + RANGE) for x in initial[:-1]] + [tuple(np.log(NUGGET_BOUNDS))]
        result = minimize(loss, initial[:size], jac=True, method="L-BFGS-B", bounds=bounds[:size], options=budget)
        evaluations += result.nfev
        if result.fun < INFINITE and (best is None or result.fun < best[0]):
            best = (float(result.fun), np.concatenate([result.x, initial[size:]]), start)
    if best is None and nugget < NUGGET_BOUNDS[1]:
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
    if best is None:
        raise ValueError(
            "maximise_restricted_likelihood: expected a positive definite Stein kernel matrix at one start, got none "
            f"at nugget {nugget:g}. Raise `nugget` or pass a kernel with a shorter lengthscale."
        )
    value, x, start = best
    kernel, level = _unpack(jnp.asarray(x), *eqx.partition(start, _positive))
    return Tuned(jax.tree.map(np.asarray, kernel), float(level), value, evaluations)


def _positive(leaf: Any) -> bool:
    return eqx.is_inexact_array_like(leaf) and bool(np.all(np.asarray(leaf) > 0))


def _pack(kernel: AbstractKernel, nugget: float) -> np.ndarray:
    leaves = jax.tree.leaves(eqx.filter(kernel, _positive))
    return np.log(np.concatenate([*(np.ravel(np.asarray(leaf, float)) for leaf in leaves), [nugget]]))


def _unpack(x: Float[Array, " h"], parameters: Any, static: Any) -> tuple[AbstractKernel, Float[Array, ""]]:
    leaves, structure = jax.tree.flatten(parameters)
    ends = np.cumsum([np.size(leaf) for leaf in leaves])
    parts = jnp.split(jnp.exp(x[:-1]), ends[:-1]) if leaves else []
    shaped = [part.reshape(np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)]
    return eqx.combine(jax.tree.unflatten(structure, shaped), static), jnp.exp(x[-1])


def _finite_loss(
    initial: np.ndarray,
    centre: np.ndarray,
    parameters: Any,
    static: Any,
    data: tuple[Array, ...],
    x: np.ndarray,
) -> tuple[float, np.ndarray]:
    """Return loss and gradient at the free parameters `x`, +∞ (a large number, for the line search) on breakdown."""
    full = jnp.asarray(np.concatenate([x, initial[len(x) :]]))
    value, slope = _loss_and_gradient(full, jnp.asarray(centre), parameters, static, *data)
    if not np.isfinite(value):
        return INFINITE, np.zeros_like(x)
    return float(value), np.asarray(slope)[: len(x)]


@eqx.filter_jit
def _loss_and_gradient(
    x: Float[Array, " h"],
    centre: Float[Array, " h"],
    parameters: Any,
    static: Any,
    draws: Float[Array, "m d"],
    scores: Float[Array, "m d"],
    basis: Float[Array, "m q"],
    values: Float[Array, "m p"],
) -> tuple[Float[Array, ""], Float[Array, " h"]]:
    noise = jnp.ones(draws.shape[0], draws.dtype)

    def covariance(x: Float[Array, " h"]) -> Float[Array, "m m"]:
        kernel, nugget = _unpack(x, parameters, static)
        return stein_covariance(kernel, draws, scores, noise, nugget)

    matrix, pull_back = jax.vjp(covariance, x)
    likelihood = negative_restricted_likelihood(matrix, basis, values)
    offset = (x - centre)[:-1]
    loss = jnp.sum(likelihood.losses) + 0.5 * jnp.sum((offset / PRIOR_SD) ** 2)
    slope = pull_back(likelihood.slope)[0]
    return loss, slope.at[:-1].add(offset / PRIOR_SD**2)
