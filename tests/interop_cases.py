"""A small posterior that other packages have sampled too, where the files are that they wrote, and
a changepoint."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import gammaln

DATA = Path(__file__).parent / "data"
Y = np.array([0.1, 0.5, -0.3, 1.2])


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    scale = numpyro.sample("b_scale", dist.HalfNormal(1.0))
    numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    numpyro.sample("y", dist.Normal(mu, scale), obs=y)


COUNTS = np.array([3, 1, 2, 4, 2, 1, 3, 2, 5, 4, 7, 5, 6, 4, 8, 5])
PLACES = np.arange(1, len(COUNTS))


def changepoint(counts):
    """Counts with one rate before the place `tau` and another from there on: given `tau` the rates
    are gamma."""
    rate = numpyro.sample("rate", dist.Gamma(2.0 * jnp.ones(2), 0.5).to_event(1))
    tau = numpyro.sample("tau", dist.DiscreteUniform(1, len(counts) - 1))
    now = numpyro.deterministic("now", jnp.where(jnp.arange(len(counts)) < tau, rate[0], rate[1]))
    numpyro.sample("counts", dist.Poisson(now).to_event(1), obs=counts)


SHAPES = np.array([[2 + COUNTS[:tau].sum(), 2 + COUNTS[tau:].sum()] for tau in PLACES])
RATES = np.array([[0.5 + tau, 0.5 + len(COUNTS) - tau] for tau in PLACES])
"""Shapes and rates (place, 2) of the gamma distributions of the rates given `tau`."""

_LOGS = (gammaln(SHAPES) - SHAPES * np.log(RATES)).sum(axis=1)
PROBABILITIES = np.exp(_LOGS - _LOGS.max()) / np.exp(_LOGS - _LOGS.max()).sum()


def changepoint_truth():
    """Return the exact means of the variables of `changepoint_chains`, by name."""
    means = SHAPES / RATES
    before = np.arange(len(COUNTS)) < PLACES[:, None]
    now = np.where(before, means[:, :1], means[:, 1:])
    return {
        name: PROBABILITIES @ values
        for name, values in (("rate", means), ("tau", PLACES), ("now", now))
    }


def changepoint_chains(rng, chains, draws):
    """Return exact Gibbs chains that start in the posterior: rates given `tau`, `tau` given the
    rates."""
    tau = rng.choice(PLACES, size=chains, p=PROBABILITIES)
    rates, taus = np.empty((chains, draws, 2)), np.empty((chains, draws), int)
    sums = SHAPES - 2
    for i in range(draws):
        rates[:, i] = rng.gamma(SHAPES[tau - 1]) / RATES[tau - 1]
        logs = np.log(rates[:, i]) @ sums.T - rates[:, i] @ (RATES - 0.5).T
        tau = taus[:, i] = PLACES[np.argmax(logs + rng.gumbel(size=logs.shape), axis=1)]
    now = np.where(np.arange(len(COUNTS)) < taus[..., None], rates[..., :1], rates[..., 1:])
    return {"rate": rates, "tau": taus, "now": now}


def changepoint_scores(rate, tau):
    """Return the scores of the logarithms of the rates (c, n, 2) given `tau` (c, n)."""
    return SHAPES[tau - 1] - RATES[tau - 1] * rate
