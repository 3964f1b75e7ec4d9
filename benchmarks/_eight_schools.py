"""Eight schools, non-centred: the model, exact expectations by quadrature, exact draws, and many
short NUTS runs."""

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from scipy.stats import norm

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
KEY = 8


def model() -> None:
    eta = numpyro.sample("eta", dist.Normal(0.0, 1.0).expand([8]).to_event(1))
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    numpyro.sample("y", dist.Normal(mu + tau * eta, ERRORS).to_event(1), obs=jnp.asarray(EFFECTS))


class Marginal(NamedTuple):
    """log τ on a fine grid with its posterior weights; given τ, μ is normal with `mean` and
    `spread`."""

    log_tau: np.ndarray
    weight: np.ndarray
    mean: np.ndarray
    spread: np.ndarray


@cache
def marginal() -> Marginal:
    """Return the posterior of log τ: given τ, μ and θ are normal, and are integrated out."""
    log_tau = np.linspace(-25.0, 12.0, 40_001)
    tau = np.exp(log_tau)[:, None]
    variance = ERRORS**2 + tau**2
    precision = 1 / 25.0 + (1 / variance).sum(1)
    mean, spread = (EFFECTS / variance).sum(1) / precision, precision**-0.5
    fit = -0.5 * ((EFFECTS**2 / variance).sum(1) - mean**2 * precision) - 0.5 * np.log(
        variance
    ).sum(1)
    log_density = fit - 0.5 * np.log(precision) - np.log1p((tau[:, 0] / 5) ** 2) + log_tau
    weight = np.exp(log_density - log_density.max())
    return Marginal(log_tau, weight / weight.sum(), mean, spread)


def exact_draws(rng: np.random.Generator, size: int) -> dict[str, np.ndarray]:
    """Return independent draws of η (size, 8), μ and τ (size,): τ by inverse quadrature, then μ
    given τ, then η."""
    found = marginal()
    log_tau = np.interp(rng.random(size), np.cumsum(found.weight), found.log_tau)
    centre, spread = (np.interp(log_tau, found.log_tau, of) for of in (found.mean, found.spread))
    mu, tau = centre + spread * rng.standard_normal(size), np.exp(log_tau)[:, None]
    precision = 1 + tau**2 / ERRORS**2
    mean = tau / ERRORS**2 * (EFFECTS - mu[:, None]) / precision
    return {
        "eta": mean + rng.standard_normal((size, 8)) / np.sqrt(precision),
        "mu": mu,
        "tau": tau[:, 0],
    }


def _quadrature() -> dict[str, float]:
    """Integrate over log τ."""
    log_tau, weight, mean, spread = marginal()
    tau = np.exp(log_tau)
    pull = ERRORS[0] ** 2 / (ERRORS[0] ** 2 + tau**2)
    return {
        "mu": weight @ mean,
        "tau": weight @ tau,
        "theta1": weight @ (pull * mean + (1 - pull) * EFFECTS[0]),
        "exp(.1mu)": weight @ np.exp(0.1 * mean + 0.005 * spread**2),
        "1(mu>5)": weight @ norm.sf((5 - mean) / spread),
    }


TRUTHS = _quadrature()
"""By quadrature; ``posteriordb`` compares reference draws with them."""


def means() -> dict[str, float]:
    """Return those of all sites, by the labels that a trace has."""
    log_tau, weight, mean, _ = marginal()
    tau = np.exp(log_tau)[:, None]
    eta = weight @ (tau * (EFFECTS - mean[:, None]) / (tau**2 + ERRORS**2))
    named = {f"eta[{j}]": float(value) for j, value in enumerate(eta)}
    return named | {name: float(TRUTHS[name]) for name in ("mu", "tau")}


def nuts_replicates(
    replications: int, num_chains: int, num_warmup: int, num_draws: int
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Return draws and scores (R, c, n, 10) in the order η, μ, log τ, and integrands (R, c, n).

    All chains of all replications are one vectorised program; each adapts by itself.
    """
    mcmc = MCMC(
        NUTS(model),
        num_warmup=num_warmup,
        num_samples=num_draws,
        num_chains=replications * num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(KEY), extra_fields=("z_grad",))
    site = mcmc.get_samples(group_by_chain=True)
    grad = mcmc.get_extra_fields(group_by_chain=True)["z_grad"]
    lead = (replications, num_chains, num_draws)

    def flat(eta: jax.Array, mu: jax.Array, tau: jax.Array) -> np.ndarray:
        return np.concatenate([eta, mu[..., None], tau[..., None]], axis=-1).reshape(*lead, 10)

    draws = flat(site["eta"], site["mu"], np.log(site["tau"]))
    scores = -flat(grad["eta"], grad["mu"], grad["tau"])
    mu, tau = draws[..., 8], np.exp(draws[..., 9])
    values = {
        "mu": mu,
        "tau": tau,
        "theta1": mu + tau * draws[..., 0],
        "exp(.1mu)": np.exp(0.1 * mu),
        "1(mu>5)": (mu > 5).astype(float),
    }
    return draws, scores, values
