"""Replica exchange: neighbouring rungs swap states, so that the hot ones carry the cold ones between modes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


class Swap(NamedTuple):
    """What one round of exchange decided.

    source : (t, c) the rung whose state each rung takes over.
    accepted, proposed : (t−1, c) whether the pair of rungs i and i+1 swapped, and whether it tried.
    """

    source: Int[Array, "t c"]
    accepted: Bool[Array, "p c"]
    proposed: Bool[Array, "p c"]


def propose_swaps(
    key: Array, parity: Int[Array, ""], temperatures: Float[Array, " t"], log_likelihood: Float[Array, "t c"]
) -> Swap:
    """Swap the states of rungs i and i+1 with probability min(1, exp((tᵢ − tᵢ₊₁)(ℓᵢ₊₁ − ℓᵢ))), for i of one parity.

    Pairs of one parity are disjoint, so each swap alone leaves the product of the power posteriors invariant;
    alternating the parity moves states along the ladder. A state without a finite ℓ never moves to a colder rung.
    """
    t, c = log_likelihood.shape
    lower = jnp.arange(t - 1)
    gap = (temperatures[:-1] - temperatures[1:])[:, None]
    log_ratio = gap * (log_likelihood[1:] - log_likelihood[:-1])
    uniform = jax.random.uniform(key, (t - 1, c), log_ratio.dtype)
    proposed = jnp.broadcast_to((lower % 2 == parity)[:, None], (t - 1, c))
    # A NaN ratio compares false: rejected.
    accepted = proposed & (jnp.log(uniform) < log_ratio)
    none = jnp.zeros((1, c), bool)
    up, down = jnp.concatenate([accepted, none]), jnp.concatenate([none, accepted])
    source = jnp.arange(t)[:, None] + up.astype(int) - down.astype(int)
    return Swap(source, accepted, proposed)
