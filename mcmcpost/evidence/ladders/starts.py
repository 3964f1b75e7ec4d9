"""Starts and first mass matrices of the chains of a ladder: prior draws resampled by their tempered likelihood."""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Float

from mcmcpost._core.errors import InputError
from mcmcpost.evidence.ladders.ladder import TemperedTarget
from mcmcpost.evidence.ladders.lanes import Evaluation, evaluate_at

SPREAD = 0.05
"""Standard deviation of the starts about a given start, in prior standard deviations."""


class Pool(NamedTuple):
    """Weighted candidates for a start.

    draws : (m, d).
    log_likelihood : (m,) ℓ.
    temperature : (m,) inverse temperature that each was drawn at.
    """

    draws: Float[np.ndarray, "m d"]
    log_likelihood: Float[np.ndarray, " m"]
    temperature: Float[np.ndarray, " m"]


class Starts(NamedTuple):
    """Starts (t, c, d) and inverse mass matrices (t, d, d), rung by rung."""

    draws: Float[np.ndarray, "t c d"]
    inverse_mass: Float[np.ndarray, "t d d"]


def prior_pool(
    where: str,
    target: TemperedTarget,
    draws: Float[np.ndarray, "n d"],
    values: Evaluation,
    init: Float[np.ndarray, " d"] | None,
    copies: int,
    key: jax.Array,
) -> Pool:
    """Return prior draws, and `copies` of `init` with `SPREAD` about it, as candidates."""
    likelihood = np.asarray(values.log_likelihood)
    if not np.isfinite(values.log_prior).any():
        raise InputError(
            where, "a prior whose log density is finite at its draws", "none", "Check log_prior, sample_prior."
        )
    if init is not None:
        spread = SPREAD * np.nan_to_num(np.nanstd(np.where(np.isfinite(draws), draws, np.nan), axis=0))
        near = init + spread * _generator(key).normal(size=(copies, len(init)))
        near[0] = init
        draws = np.concatenate([draws, near])
        extra = evaluate_at(target, near)
        if not np.isfinite(extra.log_likelihood + extra.log_prior)[0]:
            raise InputError(
                where, "`init` where prior and likelihood are finite", init.tolist(), "Start nearer the mode."
            )
        likelihood = np.concatenate([likelihood, np.asarray(extra.log_likelihood)])
    if not np.isfinite(likelihood).any():
        raise InputError(
            where, "a finite likelihood at some prior draw", "none", "Pass `init` near the posterior mode."
        )
    return Pool(draws, likelihood, np.zeros(len(draws)))


def choose_starts(pool: Pool, temperatures: Float[np.ndarray, " t"], num_chains: int, key: jax.Array) -> Starts:
    """Resample candidates with weights exp((t − t₀)ℓ), each at most once per rung, and estimate covariances alike.

    On a cold rung few candidates have weight, too few for a covariance. It gets that of the coldest rung whose weights
    have a large enough effective size.
    """
    usable = np.isfinite(pool.log_likelihood) & np.isfinite(pool.draws).all(axis=1)
    draws, likelihood, level = (array[usable] for array in pool)
    gumbel = _generator(key).gumbel(size=(len(temperatures), len(draws)))
    starts, masses = [], []
    mass = None
    for temperature, noise in zip(temperatures, gumbel, strict=True):
        log_weight = (temperature - level) * likelihood
        order = np.argsort(-(log_weight + noise))
        starts.append(draws[np.resize(order[:num_chains], num_chains)])
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        size = 1 / (weight**2).sum()
        if mass is None or size >= max(20, 5 * draws.shape[1]):
            mass = _covariance(draws, weight, size)
        masses.append(mass)
    return Starts(np.stack(starts), np.stack(masses))


def _generator(key: jax.Array) -> np.random.Generator:
    """Return NumPy's generator from a key: small host arrays need no compilation."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).reshape(-1))


def _covariance(
    draws: Float[np.ndarray, "m d"], weight: Float[np.ndarray, " m"], size: float
) -> Float[np.ndarray, "d d"]:
    centred = draws - weight @ draws
    covariance = (centred * weight[:, None]).T @ centred
    variance = np.diagonal(covariance)
    scale = np.where((variance > 0) & np.isfinite(variance), variance, 1.0)
    shrunk = size / (size + 5) * covariance + 5 / (size + 5) * np.diag(scale)
    return shrunk if size > 2 * len(scale) and np.isfinite(shrunk).all() else np.diag(scale)
