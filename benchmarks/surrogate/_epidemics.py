"""Epidemics in six towns: a hierarchical posterior of 20 parameters whose likelihood is one ODE
solve.

Susceptible, exposed and infectious fractions of each town (SEIR), time in weeks: s′ = −β_i s i, e′
= β_i s i − σ e, i′ = σ e − γ i. A town has its own transmission rate β_i and initial infectious
fraction, log-normal about means that are inferred. Incubation, recovery, the reported part of the
cases and the dispersion are shared. Counts are negative binomial about the cases of each week. The
data are simulated once, from a fixed seed. All sites are on the real line, so that they are the
unconstrained coordinates.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float

from benchmarks._replicate import generator

TOWNS, WEEKS, POPULATION = 6, 16, 20_000

PRIORS = {
    "log_beta": (np.log(2.0), 0.3),
    "log_beta_spread": (np.log(0.2), 0.5),
    "log_start": (np.log(1e-3), 1.0),
    "log_start_spread": (np.log(0.5), 0.5),
    "log_sigma": (np.log(1.5), 0.3),
    "log_gamma": (0.0, 0.3),
    "logit_reported": (-0.5, 1.0),
    "log_concentration": (np.log(20.0), 1.0),
}
"""Mean and standard deviation of the normal priors of the shared parameters."""

TRUTH = {
    "log_beta": np.log(1.8),
    "log_beta_spread": np.log(0.15),
    "log_start": np.log(2e-3),
    "log_start_spread": np.log(0.6),
    "log_sigma": np.log(1.4),
    "log_gamma": np.log(1.1),
    "logit_reported": -1.0,
    "log_concentration": np.log(30.0),
}

STEP = 0.5
"""Of Tsit5, in weeks. A test compares with tight tolerances: log likelihoods are right to 0.01
where chains go."""


class Rates(NamedTuple):
    """Per week. beta : of each town. sigma : from exposed to infectious. gamma : of recovery."""

    beta: Float[Array, " towns"]
    sigma: Float[Array, ""]
    gamma: Float[Array, ""]


def _flow(
    time: Float[Array, ""], fractions: Float[Array, "3 towns"], rates: Rates
) -> Float[Array, "3 towns"]:
    del time
    susceptible, exposed, infectious = fractions
    infected = rates.beta * susceptible * infectious
    return jnp.stack(
        [
            -infected,
            infected - rates.sigma * exposed,
            rates.sigma * exposed - rates.gamma * infectious,
        ]
    )


def weekly_cases(rates: Rates, start: Float[Array, " towns"]) -> Float[Array, "weeks towns"]:
    """Return the fraction of each town that falls ill in each week."""
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(_flow),
        diffrax.Tsit5(),
        t0=0.0,
        t1=float(WEEKS),
        dt0=STEP,
        y0=jnp.stack([1 - 2 * start, start, start]),
        args=rates,
        saveat=diffrax.SaveAt(ts=jnp.arange(WEEKS + 1.0)),
        stepsize_controller=diffrax.ConstantStepSize(),
        max_steps=round(WEEKS / STEP),
        throw=False,
    )
    not_yet_ill = solution.ys[:, 0] + solution.ys[:, 1]
    return jnp.maximum(not_yet_ill[:-1] - not_yet_ill[1:], 1e-12)


def cases(values: Mapping[str, Any]) -> Float[Array, "weeks towns"]:
    """Return the expected reported cases of each week."""
    rates = Rates(*(jnp.exp(values[name]) for name in ("log_betas", "log_sigma", "log_gamma")))
    reported = POPULATION * jax.nn.sigmoid(values["logit_reported"])
    return reported * weekly_cases(rates, jnp.minimum(jnp.exp(values["log_starts"]), 0.3))


def model(counts: Float[np.ndarray, "weeks towns"]) -> None:
    """Declare the counts of each week and town."""
    values = {name: numpyro.sample(name, dist.Normal(*prior)) for name, prior in PRIORS.items()}
    for name in ("log_beta", "log_start"):
        town = dist.Normal(values[name], jnp.exp(values[f"{name}_spread"]))
        values[f"{name}s"] = numpyro.sample(f"{name}s", town.expand([TOWNS]).to_event(1))
    concentration = jnp.exp(values["log_concentration"])
    numpyro.sample(
        "counts", dist.NegativeBinomial2(cases(values), concentration), obs=jnp.asarray(counts)
    )


def init() -> dict[str, np.ndarray]:
    """Return the values that the data are simulated from, where chains start."""
    rng = generator("epidemics", 0)
    towns = {
        f"{name}s": TRUTH[name] + np.exp(TRUTH[f"{name}_spread"]) * rng.standard_normal(TOWNS)
        for name in ("log_beta", "log_start")
    }
    return {name: np.asarray(value) for name, value in TRUTH.items()} | towns


def data() -> dict[str, object]:
    """Return the simulated counts."""
    rng = generator("epidemics", 1)
    mean = np.asarray(cases(init()))
    concentration = np.exp(TRUTH["log_concentration"])
    return {
        "counts": rng.poisson(
            mean * rng.gamma(concentration, 1 / concentration, mean.shape)
        ).astype(float)
    }
