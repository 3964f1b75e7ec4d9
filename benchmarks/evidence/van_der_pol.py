"""Evidence of the van der Pol oscillator, 31 rungs: every method on the same draws, independent or
by MCMC.

    python -m benchmarks.evidence.van_der_pol          # independent draws of exact power posteriors
    python -m benchmarks.evidence.van_der_pol --rules  # rules on exact means, 9, 17 and 31 rungs
    python -m benchmarks.evidence.van_der_pol --mcmc   # on draws of sample_power_posteriors

Targets: mean absolute error of log Z at m = 5, 10, 20, 40 draws per rung: 0.013 / 0.0034 / 0.0017 /
0.0013 with each rung controlled by itself, 0.0004 / 0.00021 / 0.00013 / 0.00009 pooled and
continuous.
"""

import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
import numpy as np

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._replicate import generator
from benchmarks._table import emit
from benchmarks.evidence._van_der_pol import LOG_EVIDENCE, exact_ladder, exact_moments
from mcmcpost.evidence import corrected_rule, discretisation_errors, simpson_rule, trapezoid_rule
from mcmcpost.stein import SquaredExponential, Weighted
from models import van_der_pol as model_file
from models.van_der_pol import PRIOR_SCALE

LADDER = mp.power_ladder(31, 5)
SIZES = (5, 10, 20, 40)
POOLED = dict(zip(SIZES, (0.0004, 0.00021, 0.00013, 0.00009), strict=True))
RUNGS = dict(zip(SIZES, (0.013, 0.0034, 0.0017, 0.0013), strict=True))
KERNEL = SquaredExponential(3.0)
NUGGET = 1e-12
"""Long against a cold rung, in coordinates that the prior standardises: the flat limit is what
reaches the targets."""
PAPER = Weighted(SquaredExponential(3.0), 0.1)
"""The paper's preconditioned kernel, α = 0.1 and lengthscale 3."""


def tasks_covariance() -> np.ndarray:
    """Return a given B of means and variances: neighbouring rungs related, a mean and a variance
    not."""
    s = np.linspace(0.0, 1.0, len(LADDER))
    near = np.exp(-np.abs(s[:, None] - s[None, :]) / 0.5)
    return np.kron(near, np.eye(2))


METHODS: dict[str, tuple[Any, str]] = {
    "MC": ("plain", "corrected"),
    "ZV2": (mp.ZeroVariance(2, mp.LeastSquares()), "corrected"),
    "ZV4": (mp.ZeroVariance(4, mp.LeastSquares()), "corrected"),
    "CF": (mp.ControlFunctional(KERNEL, NUGGET), "corrected"),
    "CF paper": (mp.ControlFunctional(PAPER, 1e-8), "corrected"),
    "SECF": (mp.SemiExact(2, KERNEL, NUGGET), "corrected"),
    "VV": (mp.VectorValued(KERNEL, tasks_covariance(), NUGGET, guard=False), "corrected"),
}
SMALLEST = {"ZV2": 10, "ZV4": 20, "SECF": 20}
"""Draws per rung from which a method can be fitted at all."""


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--replications 5 --sizes 5 10 --methods MC CF")
    parser.add_argument("--replications", type=int, default=100)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--methods", nargs="*", choices=METHODS, default=list(METHODS))
    parser.add_argument("--rules", action="store_true", help="the rules on exact means only")
    parser.add_argument("--name", default="", help="added to the name of the JSON file")
    parser.add_argument("--mcmc", action="store_true", help="draws of sample_power_posteriors")
    args = parser.parse_args()
    if args.rules:
        return rules()
    rows = []
    for m in args.sizes:
        sample = (
            mcmc_ladders(m, args.replications) if args.mcmc else exact_ladders(m, args.replications)
        )
        rows += table(m, sample, args.methods)
        name, kind = (
            ("van_der_pol_mcmc", "our own MCMC")
            if args.mcmc
            else ("van_der_pol", "independent draws")
        )
        name += args.name
        title = f"van der Pol, 31 rungs of m draws, log evidence {LOG_EVIDENCE}: {kind}"
        emit(name, title, rows, final=m == args.sizes[-1], replications=args.replications)
    return None


def exact_ladders(m: int, replications: int) -> Iterator[Any]:
    for r in range(replications):
        yield mp.ladder_from_arrays(
            LADDER, *exact_ladder(generator(f"van_der_pol {m}", r), m, LADDER)
        )


def mcmc_ladders(m: int, replications: int) -> Iterator[Any]:
    """Yield the first m draws of each of many chains, all sampled at once by
    `sample_power_posteriors`."""
    tree = _chains(replications)
    for r in range(replications):
        yield tree.isel(chain=slice(r, r + 1), draw=slice(0, m))


@cache
def _chains(replications: int) -> Any:
    return mp.sample_power_posteriors(
        model_file.model,
        kwargs=model_file.data(),
        temperatures=LADDER,
        key=jax.random.key(0),
        num_warmup=200,
        num_samples=max(SIZES),
        num_chains=replications,
        init=model_file.init(),
        kernel=mp.HamiltonianKernel(num_steps=4, forward_mode=True),
    )


def table(m: int, ladders: Iterator[Any], methods: list[str]) -> list[dict[str, Any]]:
    """Return one row per method; pooled, MBAR and stepping stone come with the first call."""
    found: dict[str, list[tuple[float, float]]] = {}
    seconds: dict[str, list[float]] = {}

    def timed(name: str, call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = call()
        seconds.setdefault(name, []).append(time.perf_counter() - start)
        return result

    for ladder in ladders:
        pooled = timed(
            "pooled", lambda ladder=ladder: mp.log_evidence(ladder, "plain", path="pooled")
        )
        record(found, "pooled", pooled, "pooled")
        for name in methods:
            if m < SMALLEST.get(name, 0):
                continue
            method, rule = METHODS[name]
            call = lambda ladder=ladder, method=method: mp.log_evidence(  # noqa: E731
                ladder,
                method,
                path="rungs",
                degree=0,
                folds=5,
                standardize=(0.0, PRIOR_SCALE),
                fallback=False,
            )
            evidence = timed(name, call)
            record(found, name, evidence, rule)
            if name == "MC":
                for other in ("trapezoid", "simpson", "MBAR", "stepping stone"):
                    record(found, other, evidence, other)
    rows = []
    for name, pairs in found.items():
        value, error = np.array(pairs).T
        gap = np.abs(value - LOG_EVIDENCE)
        targets = (
            POOLED
            if name == "pooled"
            else RUNGS
            if name in ("ZV2", "ZV4", "CF", "CF paper", "SECF", "VV")
            else {}
        )
        rows.append(
            {
                "m": m,
                "method": name,
                "R": len(gap),
                "MAE": gap.mean(),
                "se": gap.std(ddof=1) / np.sqrt(len(gap)),
                "target": targets.get(m, ""),
                "median": np.median(gap),
                "median error": np.median(error),
                "mean z²": np.mean((gap / error) ** 2),
                "within 2": np.mean(gap < 2 * error),
                "seconds": np.median(seconds[name]) if name in seconds else "",
            }
        )
    return rows


def record(
    found: dict[str, list[tuple[float, float]]], name: str, evidence: mp.Evidence, method: str
) -> None:
    estimate = next((e for e in evidence.estimates if e.method == method), None)
    # a rule that the rungs left do not allow; R says how many replications a row has
    if estimate is None:
        return
    missed = estimate.info.get("discretisation_error", 0.0)
    found.setdefault(name, []).append((estimate.value, float(np.hypot(estimate.mcse, missed))))


def rules() -> None:
    rows = []
    for size in (9, 17, 31):
        t = mp.power_ladder(size, 5)
        mean, variance = exact_moments(t)
        errors = discretisation_errors(t, mean, variance)
        for name, rule in (
            ("trapezoid", trapezoid_rule(t)),
            ("corrected", corrected_rule(t)),
            ("simpson", simpson_rule(t)),
        ):
            gap = rule.integrate(mean, variance) - LOG_EVIDENCE
            rows.append(
                {
                    "rungs": size,
                    "rule": name,
                    "error": gap,
                    "reported": errors[name],
                    "reported/true": errors[name] / abs(gap),
                }
            )
    emit(
        "van_der_pol_rules",
        "van der Pol, rules on exact means and variances",
        rows,
        log_evidence=LOG_EVIDENCE,
    )


if __name__ == "__main__":
    main()
