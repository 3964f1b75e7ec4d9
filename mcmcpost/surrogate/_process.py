"""The pieces that surrogates are fitted with, in fixed shapes: quadratic, training points, tuning, conditioning."""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from mcmcpost.gp import ProjectedCholesky, ScalarProfile, gradient_gram, gradient_log_likelihood, scalar_profile
from mcmcpost.hyper import is_positive, pack, unpack
from mcmcpost.kernels import AbstractKernel

TUNING_RANGE = math.log(30.0)
"""Log lengthscales and amplitude stay within this of their start."""
NOISE = 1e-4
"""Noise that tuning starts from, relative to the mean square of the white gradients."""
LEARNING_RATE = 0.1


class Quadratic(NamedTuple):
    """½wᵀSw + bᵀw. precision : S (d, d), positive definite. slope : b (d,)."""

    precision: Float[Array, "d d"]
    slope: Float[Array, " d"]


class Tuned(NamedTuple):
    """A kernel and the noise of its white gradients."""

    kernel: AbstractKernel
    noise: Float[Array, ""]


class Process(NamedTuple):
    """A conditioned process: profile, origin and root of its white coordinates (q,), points and weights (m, q)."""

    profile: ScalarProfile
    origin: Float[Array, " q"]
    root: Float[Array, " q"]
    points: Float[Array, "m q"]
    weights: Float[Array, "m q"]


def fit_quadratic(w: Float[Array, "n d"], gradients: Float[Array, "n d"], kept: Float[Array, " n"]) -> Quadratic:
    """Return the least-squares quadratic of gradients at standardised points, its eigenvalues at least 1/(2d).

    A Gaussian in d standardised coordinates has no eigenvalue below 1/d.
    """
    d = w.shape[1]
    design = jnp.concatenate([w, jnp.ones_like(w[:, :1])], axis=1) * kept[:, None]
    ridge = jnp.sqrt(jnp.finfo(w.dtype).eps) * jnp.sum(kept) * jnp.eye(d + 1, dtype=w.dtype)
    solved = jnp.linalg.solve(design.T @ design + ridge, design.T @ gradients)
    values, vectors = jnp.linalg.eigh((solved[:d] + solved[:d].T) / 2)
    return Quadratic((vectors * jnp.maximum(values, 0.5 / d)[None]) @ vectors.T, solved[d])


def farthest_points(points: Float[Array, "n q"], kept: Float[Array, " n"], number: int) -> Int[Array, " m"]:
    """Return rows chosen one by one, each the farthest from those before, from the one nearest to the middle on."""

    def distance(row: Int[Array, ""]) -> Float[Array, " n"]:
        return jnp.sum((points - points[row][None]) ** 2, 1)

    middle = kept @ points / jnp.maximum(jnp.sum(kept), 1)
    first = jnp.argmin(jnp.where(kept > 0, jnp.sum((points - middle[None]) ** 2, 1), jnp.inf))

    def choose(nearest: Float[Array, " n"], _: None) -> tuple[Float[Array, " n"], Int[Array, ""]]:
        row = jnp.argmax(nearest)
        return jnp.minimum(nearest, distance(row)), row

    start = jnp.where(kept > 0, distance(first), -jnp.inf)
    rest = jax.lax.scan(choose, start, None, length=number - 1)[1]
    return jnp.concatenate([first[None], rest])


def tune(start: AbstractKernel, points: Float[Array, "m q"], gradients: Float[Array, "m q"], steps: int) -> Tuned:
    """Return the best kernel and noise of `steps` of Adam on the marginal likelihood, in logarithms, within bounds."""
    parameters, static = eqx.partition(start, is_positive)
    white = jnp.mean((gradients / scalar_profile("SurrogateHMC", start).root(points)[None]) ** 2)
    initial = jnp.append(jnp.asarray(pack(start), points.dtype), jnp.log(NOISE * white))
    below = jnp.append(jnp.full(len(initial) - 1, TUNING_RANGE), 0.5 * math.log(1 / float(jnp.finfo(points.dtype).eps)))
    above = jnp.append(jnp.full(len(initial) - 1, TUNING_RANGE), -math.log(NOISE))

    def loss(x: Float[Array, " h"]) -> Float[Array, ""]:
        kernel = unpack(x[:-1], parameters, static)
        return -gradient_log_likelihood(kernel, jnp.exp(x[-1]), points, gradients) / points.size

    optimiser = optax.adam(LEARNING_RATE)

    def step(carry: tuple, _: None) -> tuple[tuple, None]:
        x, state, best, least = carry
        value, slope = jax.value_and_grad(loss)(x)
        better = value < least
        best, least = jnp.where(better, x, best), jnp.where(better, value, least)
        update, state = optimiser.update(jnp.where(jnp.isfinite(slope), slope, 0), state)
        return (jnp.clip(x + update, initial - below, initial + above), state, best, least), None

    carry = (initial, optimiser.init(initial), initial, jnp.asarray(jnp.inf, points.dtype))
    best = jax.lax.scan(step, carry, None, length=steps)[0][2]
    return Tuned(unpack(best[:-1], parameters, static), jnp.exp(best[-1]))


def condition(tuned: Tuned, points: Float[Array, "m q"], gradients: Float[Array, "m q"]) -> Process:
    """Return the process given its gradients."""
    profile = scalar_profile("SurrogateHMC", tuned.kernel)
    origin, root = profile.origin(points), profile.root(points)
    white = (points - origin[None]) * root[None]
    solution = ProjectedCholesky().solve(gradient_gram(profile, white, tuned.noise), gradients / root[None])
    return Process(profile, origin, root, white, solution.value)
