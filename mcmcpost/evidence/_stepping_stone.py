"""Evidence estimators on the stored log likelihoods of the rungs, without control: stepping stone and MBAR."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import logsumexp

from mcmcpost._mcse import mcse_mean
from mcmcpost._types import Status
from mcmcpost.evidence._ladder import Ladder
from mcmcpost.evidence._mbar import asymptotic_covariance
from mcmcpost.evidence._record import EvidenceEstimate


def stepping_stones(ladder: Ladder) -> Float[np.ndarray, " _"]:
    """Return log Z(t_{i+1}) − log Z(t_i) of each step, from the draws of its lower rung alone."""
    scaled = ladder.log_likelihood[:, :, :-1] * np.diff(ladder.temperatures)
    return logsumexp(scaled, axis=(0, 1)) - np.log(scaled.shape[0] * scaled.shape[1])


def stepping_stone(ladder: Ladder) -> EvidenceEstimate:
    """Return Σ_i log E_{t_i}[exp((t_{i+1} − t_i)ℓ)] with its error by the delta method, ESS-aware, rungs independent.

    Xie, Lewis, Fan, Kuo and Chen (2011, doi:10.1093/sysbio/syq085).
    """
    logs = stepping_stones(ladder)
    ratios = np.exp(ladder.log_likelihood[:, :, :-1] * np.diff(ladder.temperatures) - logs)
    error = float(np.sqrt(np.sum(mcse_mean(ratios) ** 2)))
    value = float(logs.sum())
    known = np.isfinite(value) and np.isfinite(error)
    smallest = (ratios.sum(axis=(0, 1)) ** 2 / (ratios**2).sum(axis=(0, 1))).min()
    status = Status.PLAIN if known else Status.UNDEFINED
    return EvidenceEstimate("stepping stone", value, error, status, {"smallest_weight_ess": float(smallest)})


def mbar_estimate(
    ladder: Ladder, values: Float[np.ndarray, " t"], deleted: Float[np.ndarray, " b"], *, converged: bool
) -> EvidenceEstimate:
    """Return MBAR's log Z(1) − log Z(0), its error the larger of the block jackknife and the asymptotic one.

    Parameters
    ----------
    values : (t,) the free energies log Z(t_j). deleted : (b,) log Z(1) without each block of draws.
    """
    c, n, t = ladder.log_likelihood.shape
    flat = jnp.asarray(ladder.log_likelihood.reshape(-1))
    sizes = jnp.full(t, float(c * n))
    levels = jnp.asarray(ladder.temperatures)
    covariance = asymptotic_covariance(levels, flat, sizes, jnp.asarray(values))
    asymptotic = float(jnp.sqrt(jnp.maximum(covariance[-1, -1], 0.0)))
    b = len(deleted)
    jackknife = float(np.sqrt((b - 1) / b * ((deleted - deleted.mean()) ** 2).sum()))
    info = {"asymptotic_error": asymptotic, "jackknife_error": jackknife}
    status = Status.PLAIN if converged else Status.NOT_CONVERGED
    return EvidenceEstimate("MBAR", float(values[-1] - values[0]), max(asymptotic, jackknife), status, info)
