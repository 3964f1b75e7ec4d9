"""Markov moves of one chain: leapfrog by true gradients, by surrogate gradients, and delayed acceptance."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.surrogate.designs import EnergyAndGradient, FittedSurrogate

STEP_FACTORS = (0.2, 1.2)
"""The step size of a trajectory is the adapted one times a factor uniform between these. No length resonates, and short
steps leave tails in which long ones are rejected."""

DIVERGENCE = 1000.0
"""Energy error from which a trajectory counts as divergent, as in NumPyro."""


class Target(NamedTuple):
    """The true potential energy on the flat unconstrained space: alone, and with its gradient."""

    energy: Callable[[Any], Array]
    evaluate: Callable[[Any], EnergyAndGradient]


def flat_target(potential: Callable[[Any], Any], z: Any) -> Target:
    """Return the potential on flat draws; z : a batch of draws, a pytree of which the structure counts."""
    unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), z))[1]

    def energy(x: Float[Array, " d"]) -> Float[Array, ""]:
        return potential(unravel(x))

    return Target(energy, lambda x: EnergyAndGradient(*jax.value_and_grad(energy)(x)))


class Point(NamedTuple):
    """A state of the chain. gradient : true, NaN where it was never evaluated."""

    x: Float[Array, " d"]
    energy: Float[Array, ""]
    gradient: Float[Array, " d"]


class Metric(NamedTuple):
    """Adapted step size and mass: inverse mass matrix and square root of the mass matrix, (d,) or (d, d)."""

    step_size: Float[Array, ""]
    inverse_mass: Float[Array, "..."]
    mass_root: Float[Array, "..."]

    def momentum(self, key: Array, d: int) -> Float[Array, " d"]:
        """Draw a momentum."""
        noise = jax.random.normal(key, (d,), self.step_size.dtype)
        return self.mass_root * noise if self.mass_root.ndim == 1 else self.mass_root @ noise

    def velocity(self, p: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return M⁻¹p."""
        return self.inverse_mass * p if self.inverse_mass.ndim == 1 else self.inverse_mass @ p

    def kinetic(self, p: Float[Array, " d"]) -> Float[Array, ""]:
        """Return ½pᵀM⁻¹p."""
        return 0.5 * p @ self.velocity(p)


class Outcome(NamedTuple):
    """The result of a move and its cost.

    path_accept_prob : mean acceptance probability over the points of the trajectory. The step size is adapted to it: it
        is less noisy than that of the last point and leads to larger steps, those of NUTS.
    true_energies : those that an acceptance depends on; that of a true trajectory came with its last gradient.
    """

    accept_prob: Float[Array, ""]
    path_accept_prob: Float[Array, ""]
    diverging: Bool[Array, ""]
    true_gradients: Int[Array, ""]
    true_energies: Int[Array, ""]
    surrogate_gradients: Int[Array, ""]


class Leapfrog(NamedTuple):
    """The points of a trajectory (leading axis l) with potential and kinetic energies, infinite beyond its end."""

    points: Float[Array, "l d"]
    gradients: Float[Array, "l d"]
    energies: Float[Array, " l"]
    kinetic: Float[Array, " l"]

    def errors(self, point: Point, kinetic: Float[Array, ""]) -> Float[Array, " l"]:
        """Return by how much the Hamiltonian differs from that at the start."""
        return self.energies + self.kinetic - point.energy - kinetic


def leapfrog(
    evaluate: Callable[[Any], EnergyAndGradient],
    metric: Metric,
    x: Float[Array, " d"],
    p: Float[Array, " d"],
    gradient: Float[Array, " d"],
    step_size: Float[Array, ""],
    num_steps: int | Int[Array, ""],
    most: int,
) -> Leapfrog:
    """Return the trajectory of (x, p), given the gradient at x; num_steps : at most `most`, the length l."""

    def step(i: Any, carry: tuple) -> tuple:
        x, p, gradient, path = carry
        p = p - 0.5 * step_size * gradient
        x = x + step_size * metric.velocity(p)
        energy, gradient = evaluate(x)
        p = p - 0.5 * step_size * gradient
        new = Leapfrog(x, gradient, energy, metric.kinetic(p))
        return x, p, gradient, jax.tree.map(lambda all, one: all.at[i].set(one), path, new)

    none, far = jnp.zeros((most, len(x)), x.dtype), jnp.full(most, jnp.inf, x.dtype)
    return jax.lax.fori_loop(0, num_steps, step, (x, p, gradient, Leapfrog(none, none, far, far)))[3]


def accepts(key: Array, log_ratio: Float[Array, ""]) -> Bool[Array, ""]:
    """Accept with probability min(1, ratio)."""
    return jnp.log(jax.random.uniform(key, (), log_ratio.dtype)) < log_ratio


def hamiltonian_move(
    target: Target, point: Point, metric: Metric, key: Array, num_steps: int | Int[Array, ""], most: int
) -> tuple[Point, Outcome, Leapfrog]:
    """Move by Hamiltonian Monte Carlo on the gradients of `target`, by `num_steps`, which are at most `most`."""
    key_p, key_step, key_accept = jax.random.split(key, 3)
    p = metric.momentum(key_p, len(point.x))
    step_size = _jittered(key_step, metric.step_size)
    path = leapfrog(target.evaluate, metric, point.x, p, point.gradient, step_size, num_steps, most)
    errors = path.errors(point, metric.kinetic(p))
    last = num_steps - 1
    moved = Point(path.points[last], path.energies[last], path.gradients[last])
    new, outcome = _finish(key_accept, point, moved, errors[last], (num_steps, 1, 0))
    return new, outcome._replace(path_accept_prob=jnp.sum(_accept_prob(errors)) / num_steps), path


def surrogate_move(
    target: Target,
    surrogate: FittedSurrogate,
    point: Point,
    metric: Metric,
    key: Array,
    num_steps: int,
    num_moves: int,
) -> tuple[Point, Outcome]:
    """Move along the surrogate's energy and accept with the true one.

    One move: its leapfrog is reversible and keeps volume, so the ratio is that of the true Hamiltonian. Several, each
    accepted with the surrogate's energy Ê: together they are reversible with respect to exp(−Ê), so the second stage
    accepts with exp(E(x) − Ê(x) − E(y) + Ê(y)) (Christen and Fox, 2005).
    """
    key_moves, key_accept = jax.random.split(key)
    cost = (0, 1, 1 + num_moves * num_steps)
    if num_moves == 1:
        key_p, key_step = jax.random.split(key_moves)
        p = metric.momentum(key_p, len(point.x))
        start = surrogate.evaluate(point.x)
        step_size = _jittered(key_step, metric.step_size)
        path = leapfrog(surrogate.evaluate, metric, point.x, p, start.gradient, step_size, num_steps, num_steps)
        end = path.points[-1]
        energy = target.energy(end)
        error = energy + path.kinetic[-1] - point.energy - metric.kinetic(p)
    else:
        start = surrogate.evaluate(point.x)
        model = Target(lambda x: surrogate.evaluate(x).energy, surrogate.evaluate)

        def inner(inside: Point, key: Array) -> tuple[Point, None]:
            return hamiltonian_move(model, inside, metric, key, num_steps, num_steps)[0], None

        stop = jax.lax.scan(inner, Point(point.x, *start), jax.random.split(key_moves, num_moves))[0]
        energy, end = target.energy(stop.x), stop.x
        error = energy - stop.energy - point.energy + start.energy
    return _finish(key_accept, point, Point(end, energy, jnp.full_like(end, jnp.nan)), error, cost)


def _jittered(key: Array, step_size: Float[Array, ""]) -> Float[Array, ""]:
    return step_size * jax.random.uniform(key, (), step_size.dtype, *STEP_FACTORS)


def _finish(
    key: Array, point: Point, moved: Point, error: Float[Array, ""], cost: tuple[Any, int, int]
) -> tuple[Point, Outcome]:
    taken = accepts(key, -error)  # not where it is NaN
    new = jax.tree.map(lambda to, stay: jnp.where(taken, to, stay), moved, point)
    counts = (jnp.asarray(count, int) for count in cost)
    chance = _accept_prob(error)
    return new, Outcome(chance, chance, ~(error <= DIVERGENCE), *counts)


def _accept_prob(error: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.minimum(1, jnp.exp(-jnp.where(jnp.isnan(error), jnp.inf, error)))
