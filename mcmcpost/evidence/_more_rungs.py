"""More rungs for a finished ladder, whose own draws stay as they are."""

import os

import jax
import numpy as np
from jaxtyping import Float

from mcmcpost._checks import as_float64, fault, in_float64
from mcmcpost.evidence._kernel import HamiltonianKernel
from mcmcpost.evidence._ladder import Ladder, TemperedTarget
from mcmcpost.evidence._sampling import RunLength, SampledLadder, sample_rungs
from mcmcpost.evidence._starts import Pool, Starts, choose_starts


def sample_more_rungs(
    ladder: Ladder,
    target: TemperedTarget,
    temperatures: object,
    *,
    key: jax.Array,
    num_warmup: int = 500,
    kernel: HamiltonianKernel | None = None,
    progress: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
) -> SampledLadder:
    """Sample rungs at new temperatures only, as many chains and draws as the ladder has.

    They start from the draws of the next hotter rung, resampled by exp((t − t₀)ℓ). See `merge_ladders`.

    Parameters
    ----------
    ladder : a finished ladder.
    target : what it was sampled from.
    temperatures : new inverse temperatures inside (0, 1).
    key, num_warmup, kernel, progress, checkpoint : as in `sample_ladder`.

    Raises
    ------
    ValueError : a temperature is outside (0, 1), repeated or in the ladder already; the target has other coordinates.
    """
    where = "add_rungs"
    levels = new_temperatures(where, ladder, temperatures)
    if target.names != ladder.names:
        raise ValueError(fault(where, f"a target on {ladder.names}", target.names, "Pass the model of the ladder."))
    start_key, run_key = jax.random.split(key)
    chains, draws = ladder.draws.shape[:2]
    starts = in_float64(_starts_from)(ladder, levels, chains, start_key)
    return sample_rungs(
        where,
        target,
        levels,
        RunLength(num_warmup, draws, chains),
        key=run_key,
        kernel=kernel,
        starts=starts,
        progress=progress,
        checkpoint=checkpoint,
    )


def merge_ladders(one: Ladder, other: Ladder) -> Ladder:
    """Return the ladder of the rungs of both, in order of temperature; their draws are untouched."""
    levels = np.concatenate([one.temperatures, other.temperatures])
    order = np.argsort(levels)

    def merged(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.concatenate([first, second], axis=2)[:, :, order]

    return one._replace(
        temperatures=levels[order],
        draws=merged(one.draws, other.draws),
        log_likelihood=merged(one.log_likelihood, other.log_likelihood),
        gradient_log_likelihood=merged(one.gradient_log_likelihood, other.gradient_log_likelihood),
        gradient_log_prior=merged(one.gradient_log_prior, other.gradient_log_prior),
    )


def new_temperatures(where: str, ladder: Ladder, temperatures: object) -> Float[np.ndarray, " t"]:
    """Return new temperatures in order, refusing those outside (0, 1), repeated, or in the ladder."""
    levels = np.sort(as_float64(where, "temperatures", np.atleast_1d(np.asarray(temperatures)), "t"))
    if not len(levels) or not ((levels > 0) & (levels < 1)).all():
        raise ValueError(fault(where, "new temperatures inside (0, 1)", levels.tolist(), "Both ends are rungs."))
    known = np.intersect1d(levels, ladder.temperatures)
    if len(known) or (np.diff(levels) == 0).any():
        raise ValueError(
            fault(where, "temperatures that are new, each once", (known if len(known) else levels).tolist(), "Drop it.")
        )
    return levels


def _starts_from(ladder: Ladder, levels: Float[np.ndarray, " t"], chains: int, key: jax.Array) -> Starts:
    parts = []
    for level, rung_key in zip(levels, jax.random.split(key, len(levels)), strict=True):
        hotter = int(np.searchsorted(ladder.temperatures, level)) - 1
        draws = ladder.draws[:, :, hotter].reshape(-1, ladder.draws.shape[-1])
        likelihood = ladder.log_likelihood[:, :, hotter].reshape(-1)
        pool = Pool(draws, likelihood, np.full(len(draws), ladder.temperatures[hotter]))
        parts.append(choose_starts(pool, level[None], chains, rung_key))
    return Starts(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
