"""Posteriors of 50 to 500 parameters, sampled by NUTS: replications of 4 × 1,000 draws, and the
truth from all of them.

    python -m benchmarks.control._hierarchical_models [--models NAME ...]

Every model has 40 chains; four of them and one thousand draws of each are a replication. The truth
is a linear control variate on all draws, in the coordinates of the sampler. Chains are kept in
``.cache``; delete the file after a change of a model.
"""

import argparse
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

import mcmcpost as mp
from benchmarks.control._pools import Pool, logistic_model

CACHE = Path(__file__).parents[1] / ".cache"
CHAINS, EACH, DRAWS = 40, 4, 1_000


class Model(NamedTuple):
    """A program without arguments, the draws of each chain, the quantities of one draw, and the
    warm-up.

    inverse_mass : (d, d) of NUTS, which is then not adapted; by default a diagonal one is.
    """

    program: Callable[[], None]
    num_draws: int
    quantities: Callable[[Mapping[str, jax.Array]], Mapping[str, jax.Array]]
    num_warmup: int = 700
    inverse_mass: np.ndarray | None = None


def varying_slopes(num_groups: int = 80, each: int = 8) -> Model:
    """Varying intercepts and slopes of 80 groups, non-centred: 166 parameters, the target of
    TARGETS.md."""
    rng = np.random.default_rng(1)
    group = np.repeat(np.arange(num_groups), each)
    x, w = rng.normal(size=num_groups * each), rng.normal(size=num_groups)
    intercepts = 1.0 + 0.4 * w + 0.7 * rng.normal(size=num_groups)
    slopes = 0.5 + 0.3 * rng.normal(size=num_groups)
    y = jnp.asarray(intercepts[group] + slopes[group] * x + 0.9 * rng.normal(size=len(x)))
    group, x, w = jnp.asarray(group), jnp.asarray(x), jnp.asarray(w)

    def program() -> None:
        mu_a, gamma = (
            numpyro.sample("mu_a", dist.Normal(0, 5)),
            numpyro.sample("gamma", dist.Normal(0, 2)),
        )
        mu_b = numpyro.sample("mu_b", dist.Normal(0, 2))
        tau_a, tau_b = (
            numpyro.sample("tau_a", dist.HalfNormal(1)),
            numpyro.sample("tau_b", dist.HalfNormal(1)),
        )
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        with numpyro.plate("group", num_groups):
            za, zb = numpyro.sample("za", dist.Normal()), numpyro.sample("zb", dist.Normal())
        mean = (mu_a + gamma * w + tau_a * za)[group] + (mu_b + tau_b * zb)[group] * x
        numpyro.sample("y", dist.Normal(mean, sigma), obs=y)

    def quantities(site: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        named = {name: site[name] for name in ("mu_a", "gamma", "mu_b", "tau_a", "tau_b", "sigma")}
        a = site["mu_a"] + site["gamma"] * w + site["tau_a"] * site["za"]
        b = site["mu_b"] + site["tau_b"] * site["zb"]
        return named | {"a[5]": a[5], "b[40]": b[40]}

    return Model(program, 4 * DRAWS, quantities)


def logistic(d: int, each: int = 4, laplace: bool = False) -> Model:
    """Logistic regression on 4 rows, or `each`, for a coefficient, whose covariates are correlated
    by a half.

    laplace : sample with the covariance at the mode as inverse mass, which takes a tenth of the
        gradients.
    """
    rng = np.random.default_rng(d)
    rows = each * d
    x = (rng.normal(size=(rows, d)) + rng.normal(size=(rows, 1))) / np.sqrt(2)
    beta = rng.normal(size=d) * 2 / np.sqrt(d)
    y = (rng.random(rows) < 1 / (1 + np.exp(-x @ beta))).astype(int)
    first = jnp.asarray(x[0])

    def quantities(site: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        b = site["beta"]
        return {
            "beta[1]": b[0],
            "beta[d]": b[-1],
            "beta[1]²": b[0] ** 2,
            "p(x₁)": jax.nn.sigmoid(first @ b),
        }

    inverse_mass = _covariance_at_mode(x, y) if laplace else None
    return Model(functools.partial(logistic_model, x, y), DRAWS, quantities, 500, inverse_mass)


def _covariance_at_mode(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the inverse Hessian (d, d) of a logistic regression with unit normal priors at its
    mode, by Newton."""
    beta = np.zeros(x.shape[1])
    for _ in range(20):
        p = 1 / (1 + np.exp(-x @ beta))
        hessian = (x.T * (p * (1 - p))) @ x + np.eye(len(beta))
        beta += np.linalg.solve(hessian, x.T @ (y - p) - beta)
    return np.linalg.inv(hessian)


def horseshoe(d: int = 100, rows: int = 100) -> Model:
    """A regularised horseshoe (Piironen and Vehtari 2017) on 100 coefficients, five of them large:
    202 parameters."""
    rng = np.random.default_rng(7)
    x = rng.normal(size=(rows, d))
    beta = np.where(np.arange(d) < 5, np.array([2.0, -2.0, 1.5, -1.5, 1.0])[np.arange(d) % 5], 0.0)
    y = jnp.asarray(x @ beta + rng.normal(size=rows))
    x = jnp.asarray(x)

    def coefficients(z: jax.Array, local: jax.Array, tau: jax.Array) -> jax.Array:
        slab = 2.0
        return z * tau * local * slab / jnp.sqrt(slab**2 + (tau * local) ** 2)

    def program() -> None:
        sigma = numpyro.sample("sigma", dist.HalfNormal(2))
        tau = numpyro.sample("tau", dist.HalfNormal(0.1))
        with numpyro.plate("coefficient", d):
            local, z = (
                numpyro.sample("local", dist.HalfCauchy(1.0)),
                numpyro.sample("z", dist.Normal()),
            )
        numpyro.sample("y", dist.Normal(x @ coefficients(z, local, tau), sigma), obs=y)

    def quantities(site: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        b = coefficients(site["z"], site["local"], site["tau"])
        return {
            "beta[1]": b[0],
            "beta[5]": b[4],
            "beta[50]": b[49],
            "sigma": site["sigma"],
            "tau": site["tau"],
        }

    return Model(program, DRAWS, quantities)


def radon(num_counties: int = 85) -> Model:
    """Houses in counties of very different size, a floor and a county covariate, centred: 90
    parameters."""
    rng = np.random.default_rng(3)
    size = np.maximum(1, np.round(np.exp(rng.normal(1.6, 1.1, num_counties)))).astype(int)
    county = np.repeat(np.arange(num_counties), size)
    floor, uranium = (rng.random(len(county)) < 0.2).astype(float), rng.normal(0, 0.4, num_counties)
    level = 1.4 + 0.7 * uranium + 0.2 * rng.normal(size=num_counties)
    y = jnp.asarray(level[county] - 0.7 * floor + 0.75 * rng.normal(size=len(county)))
    county, floor, uranium = jnp.asarray(county), jnp.asarray(floor), jnp.asarray(uranium)

    def program() -> None:
        mu, gamma = (
            numpyro.sample("mu", dist.Normal(0, 5)),
            numpyro.sample("gamma", dist.Normal(0, 5)),
        )
        beta = numpyro.sample("beta", dist.Normal(0, 5))
        tau, sigma = (
            numpyro.sample("tau", dist.HalfNormal(1)),
            numpyro.sample("sigma", dist.HalfNormal(1)),
        )
        with numpyro.plate("county", num_counties):
            alpha = numpyro.sample("alpha", dist.Normal(mu + gamma * uranium, tau))
        numpyro.sample("y", dist.Normal(alpha[county] + beta * floor, sigma), obs=y)

    smallest, largest = int(np.argmin(size)), int(np.argmax(size))

    def quantities(site: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        named = {name: site[name] for name in ("mu", "gamma", "beta", "tau", "sigma")}
        return named | {
            "alpha[small]": site["alpha"][smallest],
            "alpha[large]": site["alpha"][largest],
        }

    return Model(program, DRAWS, quantities)


def stochastic_volatility(length: int = 497) -> Model:
    """Log volatilities of 497 returns, an AR(1) by its innovations: 500 parameters."""
    rng = np.random.default_rng(11)
    h = np.zeros(length)
    for t in range(length):
        h[t] = (0.95 * h[t - 1] if t else 0.0) + 0.25 * rng.normal()
    y = jnp.asarray(np.exp((h - 1.0) / 2) * rng.normal(size=length))

    def path(mu: jax.Array, phi: jax.Array, sigma: jax.Array, z: jax.Array) -> jax.Array:
        first = z[0] / jnp.sqrt(1 - phi**2)

        def combine(a: tuple, b: tuple) -> tuple:
            return a[0] * b[0], b[0] * a[1] + b[1]

        factors = jnp.full(z.shape, phi)
        return mu + sigma * jax.lax.associative_scan(combine, (factors, z.at[0].set(first)))[1]

    def program() -> None:
        mu, sigma = (
            numpyro.sample("mu", dist.Normal(0, 2)),
            numpyro.sample("sigma", dist.HalfNormal(0.5)),
        )
        phi = 2 * numpyro.sample("phi", dist.Beta(20, 1.5)) - 1
        z = numpyro.sample("z", dist.Normal().expand([length]).to_event(1))
        numpyro.sample("y", dist.Normal(0.0, jnp.exp(path(mu, phi, sigma, z) / 2)), obs=y)

    def quantities(site: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        phi = 2 * site["phi"] - 1
        h = path(site["mu"], phi, site["sigma"], site["z"])
        return {
            "mu": site["mu"],
            "phi": phi,
            "sigma": site["sigma"],
            "h[250]": h[249],
            "exp(h[497]/2)": jnp.exp(h[-1] / 2),
        }

    return Model(program, DRAWS, quantities)


MODELS: Mapping[str, Callable[[], Model]] = {
    "varying slopes d=166": varying_slopes,
    "radon d=90": radon,
    "logistic d=50": lambda: logistic(50),
    "logistic d=200": lambda: logistic(200),
    "horseshoe d=202": horseshoe,
    "volatility d=500": stochastic_volatility,
    "logistic d=500": lambda: logistic(500, laplace=True),
    "logistic d=500, 10 d rows": lambda: logistic(500, each=10, laplace=True),
}


def pool(name: str) -> Pool:
    """Return the chains of a model, sampled if they are not kept, cut into replications."""
    CACHE.mkdir(exist_ok=True)
    path = CACHE / f"{name.replace(' ', '_')}.npz"
    if not path.exists():
        np.savez(path, **_sampled(MODELS[name]()))
    with np.load(path) as kept:
        cut = [_replications(kept[field]) for field in ("draws", "scores", "values")]
        names, parameters = (tuple(kept[field].tolist()) for field in ("names", "parameters"))
        return Pool(*cut, names, kept["truth"], kept["truth_mcse"], parameters)


def _replications(chains: np.ndarray) -> np.ndarray:
    """Return (R, 4, 1000, d): blocks of draws of groups of chains, all groups' first blocks
    first."""
    groups, blocks = len(chains) // EACH, chains.shape[1] // DRAWS
    parts = chains.reshape(groups, EACH, blocks, DRAWS, -1)
    return np.moveaxis(parts, 2, 0).reshape(groups * blocks, EACH, DRAWS, -1)


def _sampled(model: Model) -> dict[str, Any]:
    adapted = model.inverse_mass is None
    kernel = NUTS(
        model.program,
        inverse_mass_matrix=model.inverse_mass,
        dense_mass=not adapted,
        adapt_mass_matrix=adapted,
    )
    mcmc = MCMC(
        kernel,
        num_warmup=model.num_warmup,
        num_samples=model.num_draws,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(1), extra_fields=("z_grad", "diverging"))
    tree = mp.from_numpyro(mcmc)
    stats = tree["sample_stats"]
    shape = (CHAINS, model.num_draws, -1)
    draws, scores = (stats[key].values.reshape(shape) for key in ("unconstrained_draw", "gradient"))
    site = mcmc.get_samples(group_by_chain=True)
    found = jax.jit(jax.vmap(jax.vmap(model.quantities)))(site)
    values = np.stack([np.asarray(value) for value in found.values()], -1)
    parameters = stats["unconstrained_parameter"].values.tolist()
    whole = mp.expectation(mp.from_arrays(draws, scores, names=parameters), values, "zv1")
    print(f"{stats['diverging'].values.sum()} divergences, d={draws.shape[-1]}", flush=True)
    return {
        "draws": draws,
        "scores": scores,
        "values": values,
        "names": np.array(list(found)),
        "truth": whole.mean,
        "truth_mcse": whole.mcse,
        "parameters": np.array(parameters),
    }


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    for name in parser.parse_args().models:
        kept = pool(name)
        print(
            name,
            kept.draws.shape,
            dict(zip(kept.names, zip(kept.truth, kept.truth_mcse, strict=True), strict=True)),
        )


if __name__ == "__main__":
    main()
