"""The log evidence beside other methods: bridge sampling, nested sampling, reciprocal importance sampling.

    python -m benchmarks.evidence.peers
    python -m benchmarks.evidence.peers --models radiata_pine eight_schools logistic hierarchical --name peers_more

``answer`` is `bridge_evidence` on 4 × 1,000 draws of the posterior (`benchmarks.evidence.bridge` says whose), and
``warp-III`` the method of R's bridgesampling on the same draws. ``reciprocal`` is Gelfand and Dey's estimate on them,
1/Z = E[g/q], with g a normal fitted to one half of the draws and cut to the ellipsoid that holds half of it, averaged
over the other half, and conversely: the form of the harmonic mean whose variance is finite. (The learned harmonic mean
replaces that normal by a flow; it is not compared.) ``nested`` is dynesty with 250 live points and its defaults for the
dimension, from the prior and not from the draws. It is left out for the hierarchical model of 39 parameters, where one
seed did not end in 500 seconds.

CPU seconds and evaluations are medians for one seed, after the first, which compiles. They leave out the sampling of
the posterior draws. Evaluations are densities, with ``+`` gradients.

Targets: rmse of the answer at most that of every other estimate; mean z² of the answer at most 2.
"""

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import dynesty
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import xarray
from arviz_stats.base import array_stats
from scipy import stats
from scipy.special import gammaln, logsumexp, ndtri

import mcmcpost as mp
from benchmarks import _eight_schools
from benchmarks._replicate import generator
from benchmarks._table import emit
from benchmarks.evidence import bridge
from mcmcpost.io import read_target

GROUPS, EACH = 37, 5
LIVE = 250
"""Live points of dynesty."""


class Prior(NamedTuple):
    """What nested sampling needs.

    transform : uniforms (d,) ↦ parameters. log_likelihood : of parameters.
    """

    dimension: int
    transform: Callable[[np.ndarray], np.ndarray]
    log_likelihood: Callable[[np.ndarray], float]


class Answer(NamedTuple):
    """One estimate: value, error, CPU seconds, densities and gradients."""

    value: float
    error: float
    seconds: float
    densities: int
    gradients: int


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--models", nargs="+", choices=POSTERIORS, default=list(DEFAULT))
    parser.add_argument("--replications", type=int, default=10)
    parser.add_argument("--name", default="evidence_peers", help="of the JSON file")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in args.models:
        rows += _rows(name, args.shared, args.replications)
        emit(args.name, _TITLE, rows, final=name == args.models[-1], replications=args.replications)


_TITLE = "log evidence beside other methods"


def _rows(name: str, shared: Path, replications: int) -> list[dict[str, Any]]:
    posterior = POSTERIORS[name](shared, replications)
    prior = PRIORS[name](posterior.kwargs) if name in PRIORS else None
    found: dict[str, list[Answer]] = {}
    for r in range(replications):
        tree = posterior.trace(r)
        answers = _from_draws(posterior, tree, r)
        if prior is not None:
            answers["nested"] = _nested(prior, generator(f"{name} nested", r))
        for method, answer in answers.items():
            found.setdefault(method, []).append(answer)
        print(f"{name}: {r + 1} of {replications}", file=sys.stderr, flush=True)
    return [_row(name, posterior.truth, method, answers) for method, answers in found.items()]


def _row(name: str, truth: float, method: str, answers: list[Answer]) -> dict[str, Any]:
    values, errors = (np.array([getattr(a, field) for a in answers]) for field in ("value", "error"))
    later = answers[1:] or answers
    densities, gradients = (int(np.median([getattr(a, f) for a in later])) for f in ("densities", "gradients"))
    return {
        "model": name,
        "truth": f"{truth:.4f}",
        "method": method,
        "rmse": np.sqrt(((values - truth) ** 2).mean()),
        "bias": (values - truth).mean(),
        "mean error": errors.mean(),
        "mean z²": (((values - truth) / errors) ** 2).mean(),
        "CPU s": np.median([a.seconds for a in later]),
        "evaluations": (f"{densities} + {gradients}" if gradients else str(densities)) if densities else "",
    }


def _from_draws(posterior: bridge.Posterior, tree: xarray.DataTree, r: int) -> dict[str, Answer]:
    options = {"key": jax.random.key(r), **posterior.kwargs}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.process_time()
        answer = mp.bridge_evidence(tree, posterior.model, **options)
        middle = time.process_time()
        plain = mp.bridge_evidence(tree, posterior.model, method="plain", **options)
        end = time.process_time()
    size = tree["posterior"].sizes["chain"] * tree["posterior"].sizes["draw"]
    warp = next(e for e in plain.estimates if e.method == "bridge (warp-III)")
    # Each draw and each proposal, of which there are as many, is evaluated there and at its mirror image.
    return {
        "answer": Answer(answer.value, answer.error, middle - start, 4 * size, 2 * size),
        "warp-III": Answer(warp.value, warp.error, end - middle, 4 * size, 0),
        "reciprocal": _reciprocal(posterior, tree),
    }


def _reciprocal(posterior: bridge.Posterior, tree: xarray.DataTree) -> Answer:
    start = time.process_time()
    target = read_target("peers", tree, posterior.model, (), posterior.kwargs, None)
    draws = target.draws
    d, half = draws.shape[-1], draws.shape[1] // 2
    log_q = np.asarray(jax.jit(lambda x: jax.lax.map(target.logdensity, x, batch_size=1024))(draws.reshape(-1, d)))
    log_q = log_q.reshape(draws.shape[:2])
    values, squares = [], []
    for fit, use in ((slice(None, half), slice(half, None)), (slice(half, None), slice(None, half))):
        points = draws[:, fit].reshape(-1, d)
        lower = np.linalg.cholesky(np.cov(points.T).reshape(d, d))
        z = np.linalg.solve(lower, (draws[:, use].reshape(-1, d) - points.mean(0)).T).T
        size = (z**2).sum(1)
        log_g = -0.5 * (size + d * np.log(2 * np.pi)) - np.log(np.diagonal(lower)).sum() + np.log(2.0)
        logs = np.where(size < stats.chi2.median(d), log_g - log_q[:, use].reshape(-1), -np.inf)
        ratio = np.exp(logs - logs.max())
        mcse = array_stats.mcse(ratio.reshape(len(draws), -1), chain_axis=0, draw_axis=1, method="mean")
        values.append(-float(logsumexp(logs) - np.log(len(logs))))
        squares.append((float(mcse) / ratio.mean()) ** 2)
    error = np.sqrt(sum(squares)) / 2
    return Answer(float(np.mean(values)), float(error), time.process_time() - start, draws[..., 0].size, 0)


def _nested(prior: Prior, rng: np.random.Generator) -> Answer:
    start = time.process_time()
    sampler = dynesty.NestedSampler(
        prior.log_likelihood, prior.transform, prior.dimension, nlive=LIVE, rstate=rng, bound="multi", sample="auto"
    )
    sampler.run_nested(print_progress=False)
    found = sampler.results
    return Answer(
        float(found.logz[-1]), float(found.logzerr[-1]), time.process_time() - start, int(np.sum(found.ncall)), 0
    )


def _hierarchical(_shared: Path, _replications: int) -> bridge.Posterior:
    """y of 37 groups of five is N(θ, 1), θ = μ + τη with η ~ N(0, 1), μ ~ N(0, 25), log τ ~ N(0, 1): by quadrature."""
    rng = np.random.default_rng(5)
    y = 1.0 + 0.7 * rng.normal(size=(GROUPS, 1)) + rng.normal(size=(GROUPS, EACH))

    def model(y: np.ndarray) -> None:
        eta = numpyro.sample("eta", dist.Normal(0.0, 1.0).expand([GROUPS]).to_event(1))
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = jnp.exp(numpyro.sample("log_tau", dist.Normal(0.0, 1.0)))
        numpyro.sample("y", dist.Normal((mu + tau * eta)[:, None], 1.0).to_event(2), obs=y)

    means = y.mean(axis=1)
    grid = np.linspace(-9.0, 4.0, 40_001)
    variance = np.exp(2 * grid) + 1 / EACH
    precision = GROUPS / variance + 1 / 25
    centre = means.sum() / variance / precision
    squares = (means**2).sum() / variance - centre**2 * precision
    given = -0.5 * (GROUPS * np.log(2 * np.pi * variance) + np.log(25 * precision) + squares)
    logs = given + stats.norm.logpdf(grid)
    within = -0.5 * ((y - means[:, None]) ** 2).sum() - 0.5 * GROUPS * ((EACH - 1) * np.log(2 * np.pi) + np.log(EACH))
    truth = float(logsumexp(logs) + np.log(grid[1] - grid[0]) + within)
    mass = np.cumsum(np.exp(logs - logs.max()))

    def trace(r: int) -> xarray.DataTree:
        rng = generator("hierarchical", r)
        log_tau = np.interp(rng.random(4_000), mass / mass[-1], grid)
        tau, own = np.exp(log_tau), np.exp(2 * log_tau) + 1 / EACH
        weight = GROUPS / own + 1 / 25
        mu = means.sum() / own / weight + rng.standard_normal(4_000) / np.sqrt(weight)
        sharp = EACH * tau**2 + 1
        eta = (tau * EACH / sharp)[:, None] * (means - mu[:, None])
        eta += rng.standard_normal((4_000, GROUPS)) / np.sqrt(sharp)[:, None]
        sites = {"eta": eta.reshape(4, 1000, GROUPS), "mu": mu.reshape(4, 1000), "log_tau": log_tau.reshape(4, 1000)}
        return bridge._tree(**sites)

    return bridge.Posterior(model, {"y": y}, truth, trace)


def _gamma_poisson_prior(kwargs: dict[str, Any]) -> Prior:
    counts = kwargs["counts"]
    constant = gammaln(counts + 1).sum()
    return Prior(
        1,
        lambda u: stats.gamma.ppf(u, 2.0),
        lambda x: float(counts.sum() * np.log(x[0]) - len(counts) * x[0] - constant),
    )


def _normal_log_likelihood(rest: np.ndarray, variance: float) -> float:
    return float(-0.5 * (rest @ rest / variance + len(rest) * np.log(2 * np.pi * variance)))


def _regression_prior(kwargs: dict[str, Any]) -> Prior:
    design, outcome = kwargs["design"], kwargs["outcome"]

    def transform(u: np.ndarray) -> np.ndarray:
        variance = stats.invgamma.ppf(u[:1], 3.0, scale=2.0)
        return np.concatenate([variance, 2 * np.sqrt(variance) * ndtri(u[1:])])

    return Prior(6, transform, lambda x: _normal_log_likelihood(outcome - design @ x[1:], x[0]))


def _radiata_prior(kwargs: dict[str, Any]) -> Prior:
    strength, predictor = kwargs["strength"], kwargs["predictor"]
    centred = predictor - predictor.mean()

    def transform(u: np.ndarray) -> np.ndarray:
        variance = stats.invgamma.ppf(u[2], 3.0, scale=2 * 300.0**2)
        return np.array([3000 + 1000 * ndtri(u[0]), 185 + 100 * ndtri(u[1]), variance])

    return Prior(3, transform, lambda x: _normal_log_likelihood(strength - x[0] - x[1] * centred, x[2]))


def _schools_prior(_kwargs: dict[str, Any]) -> Prior:
    errors = _eight_schools.ERRORS
    constant = np.log(errors).sum() + 4 * np.log(2 * np.pi)

    def transform(u: np.ndarray) -> np.ndarray:
        return np.concatenate([ndtri(u[:8]), [5 * ndtri(u[8]), 5 * np.tan(0.5 * np.pi * u[9])]])

    def log_likelihood(x: np.ndarray) -> float:
        rest = (_eight_schools.EFFECTS - x[8] - x[9] * x[:8]) / errors
        return float(-0.5 * rest @ rest - constant)

    return Prior(10, transform, log_likelihood)


def _logistic_prior(kwargs: dict[str, Any]) -> Prior:
    design, sign = kwargs["design"], 2.0 * kwargs["outcome"] - 1
    return Prior(10, lambda u: 2 * ndtri(u), lambda x: float(-np.logaddexp(0.0, -sign * (design @ x)).sum()))


POSTERIORS = bridge.POSTERIORS | {"hierarchical": _hierarchical}

PRIORS: dict[str, Callable[[dict[str, Any]], Prior]] = {
    "gamma_poisson": _gamma_poisson_prior,
    "regression": _regression_prior,
    "radiata_pine": _radiata_prior,
    "eight_schools": _schools_prior,
    "logistic": _logistic_prior,
}

DEFAULT = ("gamma_poisson", "regression")


if __name__ == "__main__":
    main()
