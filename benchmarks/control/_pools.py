"""Posteriors that have to be sampled: many NUTS draws, cut into replications, with the truth from
all of them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import unconstrain_fn

import mcmcpost as mp
from benchmarks import _eight_schools
from models import lotka_volterra

CHAINS, DRAWS = 4, 125


class Pool(NamedTuple):
    """Replications of chains: draws, scores (R, c, n, d), values (R, c, n, p), names and truths
    with their errors.

    parameters : (d,) labels of the coordinates, from which the structure of a model is found; None
        where it has none.
    """

    draws: np.ndarray
    scores: np.ndarray
    values: np.ndarray
    names: tuple[str, ...]
    truth: np.ndarray
    truth_mcse: np.ndarray
    parameters: tuple[str, ...] | None = None

    def sample(self, replication: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.draws[replication], self.scores[replication], self.values[replication]


def logistic_model(covariates: np.ndarray, outcome: np.ndarray) -> None:
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([covariates.shape[1]]).to_event(1))
    numpyro.sample(
        "y", dist.Bernoulli(logits=jnp.asarray(covariates) @ beta), obs=jnp.asarray(outcome)
    )


def logistic_data() -> dict[str, np.ndarray]:
    """Return 200 rows with 20 covariates."""
    rng = np.random.default_rng(20)
    covariates = rng.standard_normal((200, 20))
    outcome = rng.random(200) < 1 / (1 + np.exp(-covariates @ rng.normal(0, 0.7, 20)))
    return {"covariates": covariates, "outcome": outcome.astype(int)}


def logistic(replications: int) -> Pool:
    """Return a 20-dimensional logistic regression on 200 rows; every replication has its own four
    chains."""
    chains = replications * CHAINS
    mcmc = MCMC(
        NUTS(logistic_model),
        num_warmup=200,
        num_samples=4 * DRAWS,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(20), **logistic_data(), extra_fields=("z_grad",))
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["beta"])
    scores = -np.asarray(mcmc.get_extra_fields(group_by_chain=True)["z_grad"]["beta"])
    b = draws[..., 0]
    middle = np.median(b)
    values = np.stack([np.tanh(b), np.exp(b), (b > middle).astype(float)], -1)
    names = ("tanh(b1)", "exp(b1)", "1(b1>median)")
    found = mp.expectation(mp.from_arrays(draws, scores), values, "zv2")
    shape = (replications, CHAINS, DRAWS, -1)
    cut = [a[:, :DRAWS].reshape(shape) for a in (draws, scores, values)]
    return Pool(*cut, names, found.mean, found.mcse)


def eight_schools(replications: int) -> Pool:
    """Return short NUTS runs of eight schools against quadrature."""
    draws, scores, values = _eight_schools.nuts_replicates(replications, CHAINS, 200, DRAWS)
    names = ("theta1", "exp(.1mu)", "1(mu>5)")
    truth = np.array([_eight_schools.TRUTHS[name] for name in names])
    return Pool(
        draws, scores, np.stack([values[name] for name in names], -1), names, truth, np.zeros(3)
    )


def lotka_volterra_pool(replications: int) -> Pool:
    """Return blocks of 20 long chains of the hare–lynx posterior, the paper's priors; the truth by
    degree 3."""
    chains = 20
    groups = chains // CHAINS
    blocks = -(-replications // groups)
    draws, scores = sample_lotka_volterra(
        jax.random.key(1912), chains, 500, max(blocks, 20) * DRAWS
    )
    values, names = _lotka_volterra_values(draws)
    found = mp.expectation(mp.from_arrays(draws, scores), values, "zv3")

    def cut(a: np.ndarray) -> np.ndarray:
        parts = a[:, : blocks * DRAWS].reshape(groups, CHAINS, blocks, DRAWS, -1)
        return np.moveaxis(parts, 2, 1).reshape(groups * blocks, CHAINS, DRAWS, -1)

    return Pool(*(cut(a) for a in (draws, scores, values)), names, found.mean, found.mcse)


def sample_lotka_volterra(
    key: jax.Array, num_chains: int, num_warmup: int, num_draws: int, priors: str = "paper"
) -> tuple[np.ndarray, np.ndarray]:
    """Return draws and scores (c, n, 8) in the order of the program, started near the mode."""
    mcmc = run_lotka_volterra(key, num_chains, num_warmup, num_draws, priors)
    site = mcmc.get_samples(group_by_chain=True)
    grad = mcmc.get_extra_fields(group_by_chain=True)["z_grad"]
    order = list(lotka_volterra.init("paper"))
    return np.stack([site[name] for name in order], -1), -np.stack(
        [grad[name] for name in order], -1
    )


def run_lotka_volterra(
    key: jax.Array, num_chains: int, num_warmup: int, num_draws: int, priors: str
) -> MCMC:
    """Run NUTS with a dense mass matrix, chains in lockstep, started within 0.05 of the mode."""
    start_key, chain_key = jax.random.split(key)
    data = lotka_volterra.data(priors)
    constrained = {name: jnp.asarray(value) for name, value in lotka_volterra.init(priors).items()}
    centre = unconstrain_fn(lotka_volterra.model, (), data, constrained)
    centre = {name: centre[name] for name in constrained}
    keys = dict(zip(centre, jax.random.split(start_key, len(centre)), strict=True))
    starts = {
        name: value + 0.05 * jax.random.normal(keys[name], (num_chains, *jnp.shape(value)))
        for name, value in centre.items()
    }
    mcmc = MCMC(
        NUTS(lotka_volterra.model, dense_mass=True),
        num_warmup=num_warmup,
        num_samples=num_draws,
        num_chains=num_chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(
        chain_key, extra_fields=("z_grad", "diverging", "num_steps"), init_params=starts, **data
    )
    return mcmc


def _lotka_volterra_values(draws: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    order = list(lotka_volterra.init("paper"))

    def one(draw: jax.Array) -> jax.Array:
        found = lotka_volterra.quantities(dict(zip(order, draw, strict=True)))
        return jnp.stack([found["prey[1914.0]"], found["alpha"]])

    solve = jax.jit(lambda flat: jax.lax.map(one, flat, batch_size=512))
    found = np.asarray(solve(jnp.asarray(draws.reshape(-1, draws.shape[-1])))).reshape(
        *draws.shape[:2], 2
    )
    above = (draws[..., 0] > np.log(0.55)).astype(float)
    return np.concatenate([found, above[..., None]], -1), (
        "prey[1914.0]",
        "exp(log alpha)",
        "1(alpha>.55)",
    )
