"""Posteriors whose log evidence is known, and traces of them, for the benchmarks of evidence.

The draws of each replication are exact and independent (gamma–Poisson; a conjugate regression with
unknown variance; posteriordb's blr, σ by inverse quadrature and β given σ normal; eight schools, τ
by inverse quadrature; van der Pol), random halves of posteriordb's 10,000 reference draws
(``eight_schools_halves``, whose coverage is therefore a count, not a test), or by NUTS (radiata
pine; a logistic regression of ten coefficients, whose value is by importance sampling from twenty
million proposals; hare-lynx and its rival, stretches of one long run, whose value is from another
run).
"""

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import xarray
from numpyro.infer import MCMC, NUTS, init_to_value
from scipy.special import gammaln

import mcmcpost as mp
from benchmarks import _eight_schools
from benchmarks._command import needed
from benchmarks._replicate import generator
from benchmarks.control import posteriordb
from benchmarks.evidence import _van_der_pol as exact
from models import lotka_volterra, radiata_pine, van_der_pol


class Posterior(NamedTuple):
    """A model with its arguments, its log evidence, and a trace for each replication."""

    model: Callable[..., Any]
    kwargs: dict[str, Any]
    truth: float
    trace: Callable[[int], xarray.DataTree]


def tree_of(**sites: np.ndarray) -> xarray.DataTree:
    variables = {
        name: (("chain", "draw", *(f"{name}_dim_{i}" for i in range(array.ndim - 2))), array)
        for name, array in sites.items()
    }
    return xarray.DataTree.from_dict({"posterior": xarray.Dataset(variables)})


def _gamma_poisson(_shared: Path, _replications: int) -> Posterior:
    counts, shape, rate = np.array([3, 1, 4, 1, 5]), 2.0, 1.0

    def model(counts: np.ndarray) -> None:
        mean = numpyro.sample("mean", dist.Gamma(shape, rate))
        numpyro.sample("counts", dist.Poisson(mean), obs=counts)

    after = shape + counts.sum()
    truth = shape * np.log(rate) - gammaln(shape) + gammaln(after) - gammaln(counts + 1).sum()
    truth -= after * np.log(rate + len(counts))

    def trace(r: int) -> xarray.DataTree:
        return tree_of(
            mean=generator("gamma_poisson", r).gamma(
                after, 1 / (rate + len(counts)), size=(4, 1000)
            )
        )

    return Posterior(model, {"counts": counts}, float(truth), trace)


def _regression(_shared: Path, _replications: int) -> Posterior:
    """β given σ² is N(0, 4σ²) and σ² is inverse gamma(3, 2): the evidence is that of a multivariate
    Student t."""
    rng = np.random.default_rng(1)
    design = np.c_[np.ones(30), rng.normal(size=(30, 4))]
    outcome = design @ rng.normal(size=5) + rng.normal(size=30)

    def model(design: np.ndarray, outcome: np.ndarray) -> None:
        variance = numpyro.sample("variance", dist.InverseGamma(3.0, 2.0))
        scale = variance**0.5
        beta = numpyro.sample("beta", dist.Normal(0.0, 2.0 * scale).expand([5]).to_event(1))
        numpyro.sample("y", dist.Normal(design @ beta, scale), obs=outcome)

    precision = design.T @ design + np.eye(5) / 4
    mean = np.linalg.solve(precision, design.T @ outcome)
    shape, rate = 3.0 + 15.0, 2.0 + 0.5 * (outcome @ outcome - mean @ precision @ mean)
    truth = -15 * np.log(2 * np.pi) - 0.5 * (np.linalg.slogdet(precision)[1] + 5 * np.log(4.0))
    truth += 3 * np.log(2.0) - shape * np.log(rate) + gammaln(shape) - gammaln(3.0)

    def trace(r: int) -> xarray.DataTree:
        rng = generator("regression", r)
        variance = rate / rng.gamma(shape, size=(4, 1000))
        noise = rng.normal(size=(4, 1000, 5)) @ np.linalg.inv(np.linalg.cholesky(precision))
        return tree_of(variance=variance, beta=mean + np.sqrt(variance)[..., None] * noise)

    return Posterior(model, {"design": design, "outcome": outcome}, float(truth), trace)


def _blr(shared: Path, _replications: int) -> Posterior:
    data = posteriordb._read(
        needed(shared / "data" / "posteriordb", "--shared"), "sblrc-blr", "sblrc"
    )
    design, outcome = np.array(data["X"], float), np.array(data["y"], float)
    left, singular, right = np.linalg.svd(design, full_matrices=False)
    fitted = outcome @ left
    grid = np.linspace(-0.6, 0.8, 200_001)
    variance = np.exp(2 * grid)[:, None]
    total = variance + 100 * singular**2
    rest, freedom = outcome @ outcome - fitted @ fitted, len(outcome) - len(singular)
    log_density = -0.5 * (np.log(total) + fitted**2 / total).sum(1) - 0.5 * rest / variance[:, 0]
    log_density += (1 - freedom) * grid - variance[:, 0] / 200
    mass = np.cumsum(np.exp(log_density - log_density.max()))

    def trace(r: int) -> xarray.DataTree:
        rng = generator("blr", r)
        sigma = np.exp(np.interp(rng.random(5_000), mass / mass[-1], grid))[:, None]
        precision = singular**2 / sigma**2 + 0.01
        beta = (
            singular * fitted / sigma**2 / precision
            + rng.standard_normal(precision.shape) / np.sqrt(precision)
        ) @ right
        return tree_of(beta=beta.reshape(10, 500, -1), sigma=sigma.reshape(10, 500))

    return Posterior(
        posteriordb._blr_model, {"design": design, "outcome": outcome}, -194.9675885389, trace
    )


def _schools(_shared: Path, _replications: int) -> Posterior:
    def trace(r: int) -> xarray.DataTree:
        drawn = _eight_schools.exact_draws(generator("eight_schools", r), 4_000)
        return tree_of(
            **{name: array.reshape(4, 1000, *array.shape[1:]) for name, array in drawn.items()}
        )

    return Posterior(_eight_schools.model, {}, -31.3113473523, trace)


def _schools_halves(shared: Path, _replications: int) -> Posterior:
    """Random halves of one sample of 10,000 draws, so that their errors are not independent."""
    tree = posteriordb.CASES["eight_schools"](needed(shared / "data" / "posteriordb", "--shared"))[
        0
    ]
    stats = tree["sample_stats"].to_dataset()

    def trace(r: int) -> xarray.DataTree:
        rng = generator("eight_schools", r)
        chosen = [
            np.sort(rng.permutation(stats.sizes["draw"])[:500]) for _ in range(stats.sizes["chain"])
        ]
        take = np.stack(chosen)[..., None]
        return mp.from_arrays(
            np.take_along_axis(stats["unconstrained_draw"].values, take, axis=1),
            np.take_along_axis(stats["gradient"].values, take, axis=1),
            names=[str(name) for name in stats["unconstrained_parameter"].values],
        )

    return Posterior(_eight_schools.model, {}, -31.3113473523, trace)


def _radiata(_shared: Path, replications: int) -> Posterior:
    kwargs = radiata_pine.data("x")
    return _by_nuts(radiata_pine.model, kwargs, replications, -309.924327665)


def _logistic(_shared: Path, replications: int) -> Posterior:
    rng = np.random.default_rng(3)
    design = np.c_[np.ones(200), rng.normal(size=(200, 9))]
    outcome = rng.random(200) < 1 / (1 + np.exp(-design @ rng.normal(size=10) * 0.8))

    def model(design: np.ndarray, outcome: np.ndarray) -> None:
        beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([10]).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=design @ beta), obs=outcome)

    found = _by_nuts(
        model, {"design": design, "outcome": outcome.astype(int)}, replications, np.nan
    )
    exact = [
        mp.laplace_evidence(found.trace(0), model, key=key, num_proposals=2_000_000, **found.kwargs)
        for key in jax.random.split(jax.random.key(0), 10)
    ]
    truth, error = (
        np.mean([e.value for e in exact]),
        np.linalg.norm([e.mcse for e in exact]) / len(exact),
    )
    print(f"logistic: {truth:.6f} ± {error:.2g} by importance sampling", file=sys.stderr)
    return found._replace(truth=float(truth))


def _by_nuts(
    model: Callable[..., Any], kwargs: dict[str, Any], replications: int, truth: float
) -> Posterior:
    """Sample four chains of 1,000 draws for every replication, all of them one vectorised
    program."""
    mcmc = MCMC(
        NUTS(model, dense_mass=True),
        num_warmup=1000,
        num_samples=1000,
        num_chains=4 * replications,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(1), **kwargs)
    latent = _latent(mcmc)

    def trace(r: int) -> xarray.DataTree:
        return tree_of(**{name: array[4 * r : 4 * r + 4] for name, array in latent.items()})

    return Posterior(model, kwargs, truth, trace)


def _latent(mcmc: MCMC) -> dict[str, np.ndarray]:
    samples = mcmc.get_samples(group_by_chain=True)
    return {name: np.asarray(array) for name, array in samples.items() if name in mcmc.last_state.z}


def _van_der_pol(_shared: Path, _replications: int) -> Posterior:
    def trace(r: int) -> xarray.DataTree:
        rng = generator("van_der_pol posterior", r)
        drawn = np.interp(rng.random(4_000), exact.distribution(1.0), exact.grid().points)
        return tree_of(log_theta=drawn.reshape(4, 1000))

    return Posterior(van_der_pol.model, van_der_pol.data(), exact.LOG_EVIDENCE, trace)


def _hare_lynx(replications: int, *, limited: bool) -> Posterior:
    """Cut one long run of four chains into stretches of 1,000 draws; the value is from another run
    as long."""
    kwargs, start = lotka_volterra.data(limited=limited), lotka_volterra.init(limited=limited)

    def run(seed: int) -> dict[str, np.ndarray]:
        mcmc = MCMC(
            NUTS(lotka_volterra.model, dense_mass=True, init_strategy=init_to_value(values=start)),
            num_warmup=1_000,
            num_samples=1_000 * replications,
            num_chains=4,
            chain_method="vectorized",
            progress_bar=False,
        )
        mcmc.run(jax.random.key(seed), **kwargs)
        return _latent(mcmc)

    long, other = run(2), run(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = mp.bridge_evidence(
            tree_of(**other), lotka_volterra.model, key=jax.random.key(4), **kwargs
        )
    print(
        f"hare-lynx, limited={limited}: {found.value:.6f} ± {found.error:.2g}",
        file=sys.stderr,
        flush=True,
    )

    def trace(r: int) -> xarray.DataTree:
        return tree_of(
            **{name: array[:, 1_000 * r : 1_000 * (r + 1)] for name, array in long.items()}
        )

    return Posterior(lotka_volterra.model, kwargs, found.value, trace)


POSTERIORS: dict[str, Callable[[Path, int], Posterior]] = {
    "gamma_poisson": _gamma_poisson,
    "regression": _regression,
    "blr": _blr,
    "eight_schools": _schools,
    "eight_schools_halves": _schools_halves,
    "radiata_pine": _radiata,
    "logistic": _logistic,
    "van_der_pol": _van_der_pol,
    "hare_lynx": lambda _shared, replications: _hare_lynx(replications, limited=False),
    "hare_lynx_limited": lambda _shared, replications: _hare_lynx(replications, limited=True),
}
