"""The log evidence beside other methods, on the same draws and from the prior.

    python -m benchmarks.evidence.peers --shared DATA

``answer`` is `bridge_evidence` on 4 × 1,000 draws of the posterior (`_posteriors` says whose). On
the same draws stand

- ``warp-III``, the method of R's bridgesampling: a normal fitted to one half, as many proposals as
  draws, the density symmetrised; both halves in turn, as for all methods here;
- ``harmonic``, the learned harmonic mean (McEwen et al. 2021, arXiv:2111.12720; with a flow,
  Polanska et al. 2024, arXiv:2405.05969): 1/Z = E[φ/q] over one half, φ the density fitted to the
  other with its base normal shrunk to the variance 0.8, so that its tails lie within the
  posterior's. The flow is mcmcpost's own map (`mcmcpost.evidence.warp`), in the place of a neural
  one;
- ``ellipsoid``, Gelfand and Dey's estimate with φ a normal cut to the ellipsoid that holds half of
  it (Robert and Wraith 2009, arXiv:0907.5123): the learned harmonic mean with a normal of reduced
  volume;
- ``morph``: MorphZ (Zahraoui et al. 2026, arXiv:2512.10283), a bridge to kernel densities of pairs
  of parameters, by its defaults with as many proposals as draws; up to ten parameters.

From the prior, and not from the draws, come

- ``nested``: dynesty with 250 live points and its defaults for the dimension;
- ``stepping stone``: Xie et al. (2011) on 16 rungs ((i − 1)/15)^5 with four chains of 250 draws
  after 250 of warm-up on each, sampled with NUTS by `sample_power_posteriors`.

CPU seconds and evaluations are medians for one seed, after the first, which compiles. They leave
out the sampling of the posterior draws, and include that of the prior ladder. Evaluations are
densities, with ``+`` gradients.

Targets: rmse of the answer at most that of every other estimate; mean z² of the answer at most 1.5;
eight schools to .002, the logistic regression to .001 and hare-lynx to .002.
"""

import contextlib
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
from benchmarks._command import Command, add_shared
from benchmarks._replicate import generator
from benchmarks._table import emit
from benchmarks.evidence._posteriors import POSTERIORS as SIMPLE, Posterior, tree_of
from mcmcpost.evidence import bridge_sampling, fit_normal, fit_warp, stepping_stone
from mcmcpost.trees import Target, read_ladder, read_target

GROUPS, EACH = 37, 5
LIVE = 250
"""Live points of dynesty."""

TEMPERATURE = 0.8
"""Variance of the base normal of the learned harmonic mean."""


MOST_PARAMETERS = 10
"""Parameters up to which MorphZ is run: a quarter of a second for each pair of them."""


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
    parser = Command(__doc__, quick="--models gamma_poisson --replications 2")
    add_shared(parser)
    parser.add_argument("--models", nargs="+", choices=POSTERIORS, default=list(PRIORS))
    parser.add_argument("--replications", type=int, default=20)
    parser.add_argument("--ladders", type=int, default=0, help="replications of stepping stone")
    parser.add_argument("--name", default="evidence_peers", help="of the JSON file")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in args.models:
        rows += _rows(name, args.shared, args.replications, args.ladders)
        emit(args.name, _TITLE, rows, final=name == args.models[-1], replications=args.replications)


_TITLE = "log evidence beside other methods"


def _rows(name: str, shared: Path, replications: int, ladders: int) -> list[dict[str, Any]]:
    posterior = POSTERIORS[name](shared, replications)
    prior = PRIORS[name](posterior.kwargs) if name in PRIORS else None
    found: dict[str, list[Answer]] = {}
    for r in range(replications):
        tree = posterior.trace(r)
        answers = _from_draws(posterior, tree, r)
        if prior is not None:
            answers["nested"] = _nested(prior, generator(f"{name} nested", r))
        if r < ladders:
            answers["stepping stone"] = _stepping_stone(posterior, r)
        for method, answer in answers.items():
            found.setdefault(method, []).append(answer)
        print(f"{name}: {r + 1} of {replications}", file=sys.stderr, flush=True)
    return [_row(name, posterior.truth, method, answers) for method, answers in found.items()]


def _row(name: str, truth: float, method: str, answers: list[Answer]) -> dict[str, Any]:
    values, errors = (
        np.array([getattr(a, field) for a in answers]) for field in ("value", "error")
    )
    later = answers[1:] or answers
    densities, gradients = (
        int(np.median([getattr(a, f) for a in later])) for f in ("densities", "gradients")
    )
    return {
        "model": name,
        "truth": f"{truth:.4f}",
        "method": method,
        "seeds": len(answers),
        "rmse": np.sqrt(((values - truth) ** 2).mean()),
        "bias": (values - truth).mean(),
        "mean error": errors.mean(),
        "mean z²": (((values - truth) / errors) ** 2).mean(),
        "CPU s": np.median([a.seconds for a in later]),
        "evaluations": f"{densities} + {gradients}" if gradients else str(densities),
    }


def _from_draws(posterior: Posterior, tree: xarray.DataTree, r: int) -> dict[str, Answer]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.process_time()
        answer = mp.bridge_evidence(
            tree, posterior.model, key=jax.random.key(r), **posterior.kwargs
        )
        seconds = time.process_time() - start
    target = read_target("peers", tree, posterior.model, (), posterior.kwargs, None)
    size = target.draws[..., 0].size
    start = time.process_time()
    warp = bridge_sampling(
        target.draws, target.logdensity, key=jax.random.key(r), names=target.names
    )
    plain = time.process_time() - start
    return {
        "answer": Answer(
            answer.value, answer.error, seconds, answer.info["densities"], answer.info["gradients"]
        ),
        # Each draw and each proposal, of which there are as many, is evaluated there and at its
        # mirror image.
        "warp-III": Answer(warp.value, warp.mcse, plain, 4 * size, 0),
        **_reciprocal(target),
        **({"morph": _morph(target, r)} if target.draws.shape[-1] <= MOST_PARAMETERS else {}),
    }


def _morph(target: Target, r: int) -> Answer:
    """Return MorphZ's estimate; its error is its diagnostic, relative to the evidence."""
    import morphZ  # with much that only it needs

    density = jax.jit(target.logdensity)
    draws = target.draws.reshape(-1, target.draws.shape[-1])
    density(draws[0])  # compiled before, as what others call is
    np.random.seed(r)  # noqa: NPY002 # the generator that it draws from
    start = time.process_time()
    with contextlib.redirect_stdout(sys.stderr):
        found = morphZ.evidence(
            draws,
            lambda x: float(density(x)),
            n_resamples=len(draws),
            morph_type="2_group" if draws.shape[1] > 1 else "indep",
            param_names=list(target.names),
            show_progress=False,
        )
    value, error = found[0]
    return Answer(value, error, time.process_time() - start, 3 * len(draws) // 2, 0)


def _reciprocal(target: Target) -> dict[str, Answer]:
    """Return Gelfand and Dey's estimate with both kinds of φ."""
    draws = target.draws
    c, n, d = draws.shape
    start = time.process_time()
    log_q = np.asarray(
        jax.jit(lambda x: jax.lax.map(target.logdensity, x, batch_size=1024))(draws.reshape(-1, d))
    )
    log_q, shared = log_q.reshape(c, n), time.process_time() - start
    answers = {}
    for method, log_phi in (("harmonic", _shrunk_flow), ("ellipsoid", _cut_normal)):
        start, values, squares = time.process_time(), [], []
        for fit, use in (
            (slice(None, n // 2), slice(n // 2, None)),
            (slice(n // 2, None), slice(None, n // 2)),
        ):
            logs = log_phi(draws[:, fit].reshape(-1, d), draws[:, use].reshape(-1, d), target.names)
            logs = logs - log_q[:, use].reshape(-1)
            ratio = np.exp(logs - logs.max())
            mcse = array_stats.mcse(ratio.reshape(c, -1), chain_axis=0, draw_axis=1, method="mean")
            values.append(-float(logsumexp(logs) - np.log(len(logs))))
            squares.append((float(mcse) / ratio.mean()) ** 2)
        seconds = shared + time.process_time() - start
        answers[method] = Answer(
            float(np.mean(values)), float(np.sqrt(sum(squares)) / 2), seconds, c * n, 0
        )
    return answers


def _shrunk_flow(fitted: np.ndarray, points: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Return log φ at the points, φ the image of N(0, 0.8 I) under the map fitted to other
    draws."""
    flow = fit_warp("peers", fitted, names, len(fitted))
    z = flow.standardise(points)
    square, d = (z**2).sum(1), z.shape[1]
    return (
        flow.log_density(z) + 0.5 * square * (1 - 1 / TEMPERATURE) - 0.5 * d * np.log(TEMPERATURE)
    )


def _cut_normal(fitted: np.ndarray, points: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """Return log φ at the points, φ the normal of other draws in the ellipsoid that holds half of
    it."""
    normal = fit_normal("peers", fitted, names)
    z = normal.standardise(points)
    inside = (z**2).sum(1) < stats.chi2.median(z.shape[1])
    return np.where(inside, normal.log_density(z) + np.log(2.0), -np.inf)


def _stepping_stone(posterior: Posterior, r: int) -> Answer:
    start = time.process_time()
    ladder = mp.sample_power_posteriors(
        posterior.model,
        kwargs=posterior.kwargs,
        temperatures=mp.power_ladder(16, 5),
        key=jax.random.key(r),
        num_warmup=250,
        num_samples=250,
        num_chains=4,
    )
    found = stepping_stone(read_ladder(ladder))
    gradients = ladder["sample_stats"].attrs["gradient_evaluations"]
    return Answer(found.value, found.mcse, time.process_time() - start, 0, int(gradients))


def _nested(prior: Prior, rng: np.random.Generator) -> Answer:
    start = time.process_time()
    sampler = dynesty.NestedSampler(
        prior.log_likelihood,
        prior.transform,
        prior.dimension,
        nlive=LIVE,
        rstate=rng,
        bound="multi",
        sample="auto",
    )
    sampler.run_nested(print_progress=False)
    found = sampler.results
    return Answer(
        float(found.logz[-1]),
        float(found.logzerr[-1]),
        time.process_time() - start,
        int(np.sum(found.ncall)),
        0,
    )


def _hierarchical(_shared: Path, _replications: int) -> Posterior:
    """y of 37 groups of five is N(θ, 1), θ = μ + τη with η ~ N(0, 1), μ ~ N(0, 25), log τ ~ N(0,
    1): by quadrature."""
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
    within = -0.5 * ((y - means[:, None]) ** 2).sum() - 0.5 * GROUPS * (
        (EACH - 1) * np.log(2 * np.pi) + np.log(EACH)
    )
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
        sites = {
            "eta": eta.reshape(4, 1000, GROUPS),
            "mu": mu.reshape(4, 1000),
            "log_tau": log_tau.reshape(4, 1000),
        }
        return tree_of(**sites)

    return Posterior(model, {"y": y}, truth, trace)


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

    return Prior(
        3, transform, lambda x: _normal_log_likelihood(strength - x[0] - x[1] * centred, x[2])
    )


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
    return Prior(
        10, lambda u: 2 * ndtri(u), lambda x: float(-np.logaddexp(0.0, -sign * (design @ x)).sum())
    )


POSTERIORS = SIMPLE | {"hierarchical": _hierarchical}

PRIORS: dict[str, Callable[[dict[str, Any]], Prior]] = {
    "gamma_poisson": _gamma_poisson_prior,
    "regression": _regression_prior,
    "radiata_pine": _radiata_prior,
    "eight_schools": _schools_prior,
    "logistic": _logistic_prior,
}


if __name__ == "__main__":
    main()
