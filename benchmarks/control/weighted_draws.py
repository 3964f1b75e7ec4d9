"""Weighted draws: the self-normalised mean, weighted control variates, and control variates after
resampling.

    python -m benchmarks.control.weighted_draws

``importance`` draws from a Student t of five degrees around the target, ``smc`` is BlackJAX's
adaptive tempering by Hamiltonian moves, ``nested`` is dynesty with random walks. Each replication
has one chain of draws. ``resampled`` is what one does without weights: as many draws of equal
weight as there were, with replacement, and `expectation` by "auto" on them. ``gain`` is the ratio
of the mean squared errors of the plain and the controlled weighted mean.

Targets: mean z² of the controlled means at most 2 on every row; rmse of weighted control variates
below that after resampling.
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import blackjax
import dynesty
import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import cauchy, norm

import mcmcpost as mp
from benchmarks import _eight_schools
from benchmarks._command import Command
from benchmarks._replicate import generator
from benchmarks._table import emit

CURVATURE = 0.3


class Target(NamedTuple):
    """A density on the unconstrained space.

    log_density : of one point (d,), the sum of `log_prior` and `log_likelihood`.
    prior : (random uniforms (d,)) ↦ a point. location, lower : of the proposal of importance
        sampling.
    integrands : name ↦ function of points (m, d), and its exact expectation.
    """

    log_prior: Callable[[jax.Array], jax.Array]
    log_likelihood: Callable[[jax.Array], jax.Array]
    prior: Callable[[np.ndarray], np.ndarray]
    likelihood: Callable[[np.ndarray], float]
    location: np.ndarray
    lower: np.ndarray
    integrands: Mapping[str, tuple[Callable[[np.ndarray], np.ndarray], float]]

    def log_density(self, x: jax.Array) -> jax.Array:
        return self.log_prior(x) + self.log_likelihood(x)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--replications 3 --cases 'normal, importance'")
    parser.add_argument("--replications", type=int, default=20)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--name", default="weighted_draws", help="of the JSON file")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in args.cases:
        rows += _rows(name, args.replications)
        emit(args.name, _TITLE, rows, final=name == args.cases[-1], replications=args.replications)


_TITLE = "expectations from weighted draws"


def _rows(name: str, replications: int) -> list[dict[str, Any]]:
    target, sample = CASES[name]
    density = target()
    scores = jax.jit(jax.vmap(jax.grad(density.log_density)))
    truth = np.array([value for _, value in density.integrands.values()])
    found, facts = [], []
    for r in range(replications):
        rng = generator(name, r)
        points, logs, live = sample(density, rng)
        values = np.stack([f(points) for f, _ in density.integrands.values()], -1)
        slopes = np.asarray(scores(points))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = mp.from_arrays(points[None], slopes[None], log_weights=logs[None], num_live=live)
            controlled = mp.expectation(tree, values[None])
            share = np.exp(logs - logs.max())
            rows = np.sort(rng.choice(len(logs), len(logs), p=share / share.sum()))
            equal = mp.expectation(
                mp.from_arrays(points[None, rows], slopes[None, rows], allow_bad_scores=True),
                values[None, rows],
            )
        pairs = (
            (controlled.mean_plain, controlled.mcse_plain),
            (controlled.mean, controlled.mcse),
            (equal.mean, equal.mcse),
        )
        found.append(pairs)
        facts.append((len(logs), controlled.info["ess"], controlled.info["pareto_khat"]))
        print(f"{name}: {r + 1} of {replications}", file=sys.stderr, flush=True)
    estimate, error = np.moveaxis(np.array(found), 2, 0)  # (R, 3, p) each
    rmse = np.sqrt(((estimate - truth) ** 2).mean(0))
    z2 = (((estimate - truth) / error) ** 2).mean(0)
    size, ess, khat = np.mean(facts, axis=0)
    return [
        {
            "case": name,
            "draws": int(size),
            "ESS": ess,
            "k̂": khat,
            "integrand": label,
            "plain rmse": rmse[0, j],
            "error": error[:, 0, j].mean(),
            "z²": z2[0, j],
            "controlled rmse": rmse[1, j],
            "its error": error[:, 1, j].mean(),
            "its z²": z2[1, j],
            "gain": (rmse[0, j] / rmse[1, j]) ** 2,
            "resampled rmse": rmse[2, j],
            "resampled z²": z2[2, j],
        }
        for j, label in enumerate(density.integrands)
    ]


Draws = tuple[np.ndarray, np.ndarray, np.ndarray | None]


def _importance(
    target: Target, rng: np.random.Generator, size: int = 2_000, freedom: int = 5
) -> Draws:
    d = len(target.location)
    standard = (
        1.2
        * rng.standard_normal((size, d))
        / np.sqrt(rng.chisquare(freedom, size=(size, 1)) / freedom)
    )
    points = target.location + standard @ target.lower.T
    proposal = -0.5 * (freedom + d) * np.log1p(((standard / 1.2) ** 2).sum(1) / freedom)
    return points, np.asarray(jax.vmap(target.log_density)(points)) - proposal, None


def _tempered(target: Target, rng: np.random.Generator, size: int = 1_000) -> Draws:
    d = len(target.location)
    start = np.stack([target.prior(u) for u in rng.random((size, d))])
    tempering = blackjax.adaptive_tempered_smc(
        target.log_prior,
        target.log_likelihood,
        blackjax.hmc.build_kernel(),
        blackjax.hmc.init,
        blackjax.smc.extend_params(
            {
                "step_size": 0.3,
                "inverse_mass_matrix": np.diagonal(target.lower @ target.lower.T),
                "num_integration_steps": 6,
            }
        ),
        blackjax.smc.resampling.systematic,
        0.8,
        num_mcmc_steps=6,
    )
    state, step = tempering.init(jnp.asarray(start)), jax.jit(tempering.step)
    key = jax.random.key(int(rng.integers(2**31)))
    while float(state.tempering_param) < 1:
        key, own = jax.random.split(key)
        state, _ = step(own, state)
    return np.asarray(state.particles), np.log(np.maximum(np.asarray(state.weights), 1e-30)), None


def _nested(target: Target, rng: np.random.Generator, live: int = 250) -> Draws:
    d = len(target.location)
    run = dynesty.NestedSampler(
        target.likelihood, target.prior, d, nlive=live, rstate=rng, sample="rwalk", walks=40
    )
    run.run_nested(print_progress=False)
    tree = mp.from_dynesty(run.results)
    stats = tree["sample_stats"]
    points = np.stack([tree["posterior"][f"x[{i}]"].values[0] for i in range(d)], -1)
    return points, stats["log_weight"].values[0], stats["num_live"].values


def _normal(dimension: int = 5) -> Target:
    """A likelihood of correlated normal errors under a prior N(0, 25)."""
    precision = np.linalg.inv(0.5 * np.eye(dimension) + 0.5)
    covariance = np.linalg.inv(precision + np.eye(dimension) / 25)
    mean = covariance @ precision @ np.ones(dimension)
    spread = float(np.sqrt(covariance[0, 0]))

    def standard(x: np.ndarray) -> np.ndarray:
        return (x[:, 0] - mean[0]) / spread

    return Target(
        lambda x: -0.5 * x @ x / 25,
        lambda x: -0.5 * (x - 1) @ precision @ (x - 1),
        lambda u: 5 * norm.ppf(u),
        lambda x: float(-0.5 * (x - 1) @ precision @ (x - 1)),
        mean + 0.2,
        np.linalg.cholesky(covariance),
        {
            "x": (lambda x: x[:, 0], float(mean[0])),
            "exp(z/2)": (lambda x: np.exp(0.5 * standard(x)), np.exp(0.125)),
            "cos z": (lambda x: np.cos(standard(x)), np.exp(-0.5)),
            "1(z>1)": (lambda x: (standard(x) > 1).astype(float), norm.sf(1)),
        },
    )


def _banana() -> Target:
    """x₁ ~ N(0, 1), and x₂ + c(x₁² − 1) ~ N(0, 1) given x₁."""
    return Target(
        lambda x: -0.5 * x @ x / 25,
        lambda x: -0.5 * (x[0] ** 2 + (x[1] + CURVATURE * (x[0] ** 2 - 1)) ** 2) + 0.5 * x @ x / 25,
        lambda u: 5 * norm.ppf(u),
        lambda x: float(
            -0.5 * (x[0] ** 2 + (x[1] + CURVATURE * (x[0] ** 2 - 1)) ** 2) + 0.5 * x @ x / 25
        ),
        np.zeros(2),
        np.diag([1.2, 1.4]),
        {
            "x1": (lambda x: x[:, 0], 0.0),
            "x2": (lambda x: x[:, 1], 0.0),
            "x2²": (lambda x: x[:, 1] ** 2, 1 + 2 * CURVATURE**2),
            "1(x1>1)": (lambda x: (x[:, 0] > 1).astype(float), norm.sf(1)),
        },
    )


def _schools() -> Target:
    """Eight schools in the order η, μ, log τ; the proposal has the moments of reference draws."""
    effects, errors = jnp.asarray(_eight_schools.EFFECTS), jnp.asarray(_eight_schools.ERRORS)

    def log_prior(x: jax.Array) -> jax.Array:
        return (
            -0.5 * x[:8] @ x[:8]
            - 0.5 * (x[8] / 5) ** 2
            + x[9]
            - jnp.log1p((jnp.exp(x[9]) / 5) ** 2)
        )

    def likelihood(x: np.ndarray) -> float:
        rest = (_eight_schools.EFFECTS - x[8] - np.exp(x[9]) * x[:8]) / _eight_schools.ERRORS
        return float(-0.5 * rest @ rest)

    def prior(u: np.ndarray) -> np.ndarray:
        return np.concatenate(
            [norm.ppf(u[:8]), [5 * norm.ppf(u[8])], [np.log(5 * cauchy.ppf(0.5 + 0.5 * u[9]))]]
        )

    wanted = ("mu", "tau", "theta1", "1(mu>5)")
    functions = (
        lambda x: x[:, 8],
        lambda x: np.exp(x[:, 9]),
        lambda x: x[:, 8] + np.exp(x[:, 9]) * x[:, 0],
        lambda x: (x[:, 8] > 5).astype(float),
    )
    return Target(
        log_prior,
        lambda x: -0.5 * jnp.sum(((effects - x[8] - jnp.exp(x[9]) * x[:8]) / errors) ** 2),
        prior,
        likelihood,
        np.array([0.3, 0, 0, 0, -0.2, 0, 0.3, 0.1, 4.4, 0.8]),
        np.diag([1.0] * 8 + [3.3, 1.2]),
        {
            name: (function, float(_eight_schools.TRUTHS[name]))
            for name, function in zip(wanted, functions, strict=True)
        },
    )


CASES: dict[str, tuple[Callable[[], Target], Callable[..., Draws]]] = {
    "normal, importance": (_normal, _importance),
    "normal, nested": (_normal, _nested),
    "eight schools, smc": (_schools, _tempered),
    "banana, importance": (_banana, _importance),
}


if __name__ == "__main__":
    main()
