"""The communication barrier of a path: how hard it is for states to pass along it, and where its
rungs belong."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float
from scipy import special

from mcmcpost.core.arguments import check_count
from mcmcpost.core.errors import InputError
from mcmcpost.core.mcse import mcse_mean
from mcmcpost.evidence.ladder import BOTH_ENDS, MAX_RUNGS, Ladder
from mcmcpost.evidence.mbar import log_mixture, solve_free_energies, stepping_stones
from mcmcpost.evidence.rungs import examine_rungs

NUM_POINTS = 129
"""Points of the path at which the barrier is computed."""

FEWEST, MOST = 3, 32
"""Rungs that are advised at least and at most."""


class Barrier(NamedTuple):
    """The barrier Λ(t) = ∫₀ᵗ λ along a path, λ(t) = ½E|ℓ − ℓ′| for two independent draws at t.

    Between rungs with a small share δ of the barrier a swap is rejected with probability δ, so that
    equal shares make the best ladder. Syed, Bouchard-Côté, Deligiannidis and Doucet (2022,
    doi:10.1111/rssb.12464), sections 3 to 5.

    temperatures : (k,) from 0 to 1. cumulative : (k,) Λ(t).
    """

    temperatures: Float[np.ndarray, " k"]
    cumulative: Float[np.ndarray, " k"]

    @property
    def total(self) -> float:
        """Λ of the whole path: zero where both ends are the same distribution."""
        return float(self.cumulative[-1])

    @property
    def advised_size(self) -> int:
        """Number of rungs of which neighbours reject half of their swaps, 2Λ + 1, but three to
        32."""
        return min(self.overlapping_size, MOST)

    @property
    def overlapping_size(self) -> int:
        """The same, however many: equal shares of the barrier then have neighbours that overlap by
        about 0.2."""
        return int(max(np.ceil(2 * self.total) + 1, FEWEST))

    def place(self, size: int | None = None) -> Float[np.ndarray, " t"]:
        """Return `size` temperatures with equal shares of the barrier, by default
        `advised_size`."""
        where = "barrier_ladder"
        check_count(where, "size", size, BOTH_ENDS, least=2, most=MAX_RUNGS, optional=True)
        if not np.isfinite(self.total) or self.total <= 0:
            cure = "Draw more, or use power_ladder."
            raise InputError(
                where,
                "a log likelihood that varies and is finite",
                f"a barrier of {self.total}",
                cure,
            )
        # Rungs at equal shares of Λ have equal rejection rates, the best that a given number can do
        # (Syed et al. 2022).
        number = self.advised_size if size is None else size
        temperatures = np.interp(
            np.linspace(0.0, self.total, number), self.cumulative, self.temperatures
        )
        temperatures[[0, -1]] = 0.0, 1.0
        if (np.diff(temperatures) <= 0).any():
            raise InputError(
                where, "a `size` that the barrier can place", number, "Ask for fewer rungs."
            )
        return temperatures


def path_barrier(
    log_likelihood: Float[np.ndarray, " n"], log_density: Float[np.ndarray, " n"], *, power: float
) -> Barrier:
    """Return the barrier of a path from draws of several of its rungs, each weighted to every
    temperature.

    Parameters
    ----------
    log_likelihood : ℓ of the draws of all rungs; draws of zero likelihood are left out.
    log_density : log of the mixture density that they were drawn from, divided by that at t = 0, up
        to a constant.
    power : the points are equally spaced in t^(1/power).
    """
    known = np.isfinite(log_likelihood)
    order = np.argsort(log_likelihood[known], kind="stable")
    values, mixture = log_likelihood[known][order], log_density[known][order]
    steps = np.linspace(0.0, 1.0, NUM_POINTS)
    local = np.array(
        [_half_gini(values, special.softmax(t * values - mixture)) for t in steps**power]
    )
    # In s = t^(1/power) the integrand is λ·dt/ds, which stays small where the path is steep.
    speed = local * power * steps ** (power - 1.0)
    shares = 0.5 * (speed[1:] + speed[:-1]) * np.diff(steps)
    return Barrier(steps**power, np.concatenate([[0.0], np.cumsum(shares)]))


def ladder_barrier(ladder: Ladder) -> Barrier:
    """Return the barrier of a ladder from all draws of its usable rungs."""
    usable = ladder.select(np.flatnonzero(examine_rungs(ladder).usable))
    levels, values = jax.device_put((usable.temperatures, usable.log_likelihood.reshape(-1)))
    if len(levels) < 2:
        raise InputError(
            "barrier_ladder",
            "a ladder with two usable rungs",
            len(levels),
            "See log_evidence(tree).",
        )
    # MBAR's mixture over all rungs (docs/mathematics.md section 3) weighs every draw to every
    # temperature, so that Λ needs no draws at the 129 points themselves.
    sizes = jnp.full(len(levels), float(len(values) // len(levels)))
    start = jax.device_put(np.concatenate([[0.0], np.cumsum(stepping_stones(usable))]))
    energies = jax.jit(solve_free_energies)(
        levels, values, jnp.ones_like(values), sizes, start
    ).values
    mixture = np.asarray(log_mixture(levels, values, sizes, energies))
    return path_barrier(np.asarray(values), mixture, power=usable.power)


def _half_gini(values: Float[np.ndarray, " n"], weights: Float[np.ndarray, " n"]) -> float:
    """Return ½E|ℓ − ℓ′| of increasing values with weights that add up to one."""
    # For sorted values ½E|ℓ − ℓ′| = Σ_n w_n(2F_n − w_n − 1)ℓ_n with F the cumulated weights: one
    # sorting, and no (n, n) array of pairs.
    below = np.cumsum(weights)
    return float(weights * (2 * below - weights - 1.0) @ values)


def rejection_rates(ladder: Ladder) -> Float[np.ndarray, " _"]:
    """Return the expected rejection rate of swaps of neighbouring rungs, from all pairs of their
    draws.

    1 − E[min(1, exp((t_{i+1} − t_i)(ℓ_i − ℓ_{i+1})))], with or without replica exchange.
    """
    values = ladder.log_likelihood.reshape(-1, len(ladder.temperatures))
    return np.array(
        [
            1.0 - _acceptance(gap * hot, gap * cold)
            for gap, hot, cold in zip(
                np.diff(ladder.temperatures), values.T[:-1], values.T[1:], strict=True
            )
        ]
    )


def _acceptance(hot: Float[np.ndarray, " n"], cold: Float[np.ndarray, " m"]) -> float:
    """Return the mean of min(1, exp(a − b)) over all pairs; −∞ for a is never accepted."""
    ordered = np.sort(cold)
    # log Σ exp(−b) over the b that are at least ordered[i], and none beyond the last.
    above = np.append(np.logaddexp.accumulate(-ordered[::-1])[::-1], -np.inf)
    place = np.searchsorted(ordered, hot, side="right")
    with np.errstate(invalid="ignore"):
        accepted = place + np.exp(hot + above[place])
    return float(np.where(hot == -np.inf, 0.0, accepted).mean() / len(cold))


def round_trips(accepted: Bool[np.ndarray, "n p c"]) -> int:
    """Return how often a state went from the first rung to the last and back, added up over the
    chains.

    A state that reaches the prior or the reference is replaced there by an independent draw; its
    successor goes on.

    Parameters
    ----------
    accepted : (n, t−1, c) whether rungs i and i+1 of a chain swapped in each round.
    """
    _, pairs, chains = accepted.shape
    rungs, chain = np.arange(pairs + 1)[:, None], np.arange(chains)
    state = np.broadcast_to(rungs, (pairs + 1, chains))
    # by state: it came from the first rung to the last
    returning = np.zeros((pairs + 1, chains), bool)
    started = np.zeros((pairs + 1, chains), bool)
    none = np.zeros((1, chains), int)
    trips = 0
    for swap in accepted.astype(int):
        source = rungs + np.concatenate([swap, none]) - np.concatenate([none, swap])
        state = np.take_along_axis(state, source, axis=0)
        first, last = state[0], state[-1]
        trips += int(returning[first, chain].sum())
        returning[first, chain], started[first, chain] = False, True
        returning[last, chain] |= started[last, chain]
    return trips


class PathDiagnostics(NamedTuple):
    """How states pass along a ladder, and which rungs the error comes from.

    barrier : Λ along the whole path, from all draws.
    rejection : (t−1,) expected rejection rate of swaps of neighbouring rungs; their sum estimates Λ
        too.
    swap_rate : (t−1,) accepted fraction of the swaps that the sampler tried; NaN without any.
    round_trips : how often a state went from the first rung to the last and back; NaN without
        replica exchange.
    error_share : (t,) share of the Monte Carlo variance of the value that is due to the draws of
        each rung.
    """

    barrier: Barrier
    rejection: Float[np.ndarray, " _"]
    swap_rate: Float[np.ndarray, " _"]
    round_trips: float
    error_share: Float[np.ndarray, " t"]


def diagnose_path(
    ladder: Ladder, log_density: Float[np.ndarray, " m"], influence: Float[np.ndarray, "c n t"]
) -> PathDiagnostics:
    """Return the diagnostics of a ladder.

    Parameters
    ----------
    log_density : (c·n·t,) as in `path_barrier`, of all draws in C order.
    influence : of every draw on the value, centred.
    """
    exchange = ladder.exchange
    squares = mcse_mean(influence) ** 2
    return PathDiagnostics(
        path_barrier(ladder.log_likelihood.reshape(-1), log_density, power=ladder.power),
        rejection_rates(ladder),
        np.full(len(ladder.temperatures) - 1, np.nan) if exchange is None else exchange.swap_rate,
        np.nan if exchange is None else float(exchange.round_trips),
        squares / total if (total := squares.sum()) > 0 else np.full(len(squares), np.nan),
    )
