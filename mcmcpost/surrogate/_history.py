"""What warm-up saw: the positions, gradients and energies of its latest trajectories."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

HELD_OUT = 5
"""One trajectory in so many is kept for the gate."""
ENERGY_RANGE = 6.0
"""Points whose energy is above the upper quartile by more than so many interquartile ranges are not trained on."""


class Trajectory(NamedTuple):
    """The points of one trajectory per chain. points, gradients : (c, l, d). energies : (c, l)."""

    points: Float[Array, "c l d"]
    gradients: Float[Array, "c l d"]
    energies: Float[Array, "c l"]


class History(NamedTuple):
    """The latest s trajectories of every chain; energies are infinite where nothing was written."""

    points: Float[Array, "c s l d"]
    gradients: Float[Array, "c s l d"]
    energies: Float[Array, "c s l"]


class Rows(NamedTuple):
    """All points of all chains. points, gradients : (n, d). training, held_out : (n,) one where used, else zero."""

    points: Float[Array, "n d"]
    gradients: Float[Array, "n d"]
    training: Float[Array, " n"]
    held_out: Float[Array, " n"]


def empty_history(c: int, s: int, l: int, d: int) -> History:
    """Return room for s trajectories of l points in d dimensions for c chains."""
    return History(jnp.zeros((c, s, l, d)), jnp.zeros((c, s, l, d)), jnp.full((c, s, l), jnp.inf))


def record(history: History, new: Trajectory, iteration: Int[Array, ""], write: Bool[Array, ""]) -> History:
    """Overwrite the oldest trajectory where `write`."""
    slot = iteration % history.points.shape[1]
    return History(
        *(old.at[:, slot].set(jnp.where(write, n, old[:, slot])) for old, n in zip(history, new, strict=True))
    )


def pooled(history: History) -> Rows:
    """Return the points of all chains, without those where something is not finite or the energy far above the rest.

    Trajectories are held out whole: their points are neighbours.
    """
    c, s, l, d = history.points.shape
    points, gradients = history.points.reshape(-1, d), history.gradients.reshape(-1, d)
    energies = history.energies.reshape(-1)
    sound = jnp.isfinite(energies) & jnp.isfinite(points).all(1) & jnp.isfinite(gradients).all(1)
    lower, upper = jnp.nanquantile(jnp.where(sound, energies, jnp.nan), jnp.array([0.25, 0.75]))
    sound = sound & (energies <= upper + ENERGY_RANGE * (upper - lower))
    held = jnp.broadcast_to((jnp.arange(s) % HELD_OUT == HELD_OUT - 1)[None, :, None], (c, s, l)).reshape(-1)
    return Rows(
        jnp.where(sound[:, None], points, 0),
        jnp.where(sound[:, None], gradients, 0),
        (sound & ~held).astype(points.dtype),
        (sound & held).astype(points.dtype),
    )
