"""Bridge sampling on random halves of the 10,000 posteriordb reference draws, against exact log evidences.

    python -m benchmarks.evidence.bridge

500 of the 1,000 draws of each chain, in their order. The halves are of one sample of 10,000, so the estimates are not
independent and their coverage is a count, not a test. ``--fresh`` takes 5,000 independent exact draws for each
replication instead (blr: σ by inverse quadrature, β given σ is normal).

Targets: rmse at most 2.0e-3 (blr) and 5.5e-3 (eight schools) with coverage of ± two errors
between 88 and 99 %; 5e-5 is aimed at on blr with control variates.
"""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import numpy as np
import xarray

import mcmcpost as mp
from benchmarks import _eight_schools
from benchmarks._replicate import generator
from benchmarks._table import emit
from benchmarks.control import posteriordb

TRUTHS = {"blr": -194.9675885389, "eight_schools": -31.3113473523}
"""Half-normal and half-Cauchy normalised, as NumPyro has them."""
TARGETS = {"blr": 2.0e-3, "eight_schools": 5.5e-3}
COVERAGE = (0.88, 0.99)
Source = Callable[[np.random.Generator], xarray.DataTree]
METHODS = {
    "normal": {"proposal": "normal"},
    "warp3": {"proposal": "warp3"},
    "controlled2": {"degree": 2},
    "controlled3": {"degree": 3},
    "controlled4": {"degree": 4},
}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    parser.add_argument("--posteriors", nargs="+", choices=TRUTHS, default=list(TRUTHS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["normal", "warp3"])
    parser.add_argument("--replications", type=int, default=50)
    parser.add_argument("--fresh", action="store_true", help="independent exact draws for each replication; blr only")
    parser.add_argument("--name", default="bridge", help="of the JSON file")
    args = parser.parse_args()
    root = args.shared / "data" / "posteriordb"
    if args.fresh and args.posteriors != ["blr"]:
        parser.error("--fresh has an exact sampler for --posteriors blr only")
    rows: list[dict] = []
    for posterior in args.posteriors:
        tree, model_and_data = _posterior(root, posterior)
        for method in args.methods:
            source = partial(_fresh, *model_and_data[1:]) if args.fresh else partial(_half, tree)
            rows.append(_row(posterior, source, model_and_data, method, args.replications))
            emit(args.name, TITLES[args.fresh], rows, final=False)
    emit(
        args.name,
        TITLES[args.fresh],
        rows,
        truths=TRUTHS,
        targets=TARGETS,
        coverage=f"between {COVERAGE[0]} and {COVERAGE[1]}",
        replications=args.replications,
    )


TITLES = {
    False: "log evidence by bridge sampling on random halves of posteriordb reference draws",
    True: "log evidence by bridge sampling on fresh exact draws of posteriordb's blr",
}


def _posterior(root: Path, name: str) -> tuple:
    tree = posteriordb.CASES[name](root)[0]
    if name == "blr":
        data = posteriordb._read(root, "sblrc-blr", "sblrc")
        return tree, (posteriordb._blr_model, np.array(data["X"]), np.array(data["y"]))
    return tree, (_eight_schools.model,)


def _row(posterior: str, source: Source, model_and_data: tuple, method: str, replications: int) -> dict:
    errors, mcses, statuses, seconds = [], [], set(), []
    for r in range(replications):
        start = time.perf_counter()
        found = mp.bridge_evidence(
            source(generator(posterior, r)), *model_and_data, key=jax.random.key(r), **METHODS[method]
        )
        seconds.append(time.perf_counter() - start)
        errors.append(found.value - TRUTHS[posterior])
        mcses.append(found.mcse)
        statuses.add(str(found.status))
        if r % 10 == 9:
            print(f"{posterior} {method}: {r + 1} of {replications}", file=sys.stderr, flush=True)
    error, mcse = np.array(errors), np.array(mcses)
    rmse, coverage = np.sqrt((error**2).mean()), (np.abs(error) <= 2 * mcse).mean()
    spread = (error**2).std(ddof=1) / np.sqrt(replications) / (2 * rmse)
    return {
        "posterior": posterior,
        "method": method,
        "rmse": rmse,
        "rmse se": spread,
        "rmse met": "yes" if rmse - 2 * spread <= TARGETS[posterior] else "NO",
        "bias": error.mean(),
        "mean mcse": mcse.mean(),
        "coverage": coverage,
        "coverage met": "yes" if COVERAGE[0] <= coverage <= COVERAGE[1] else "NO",
        "mean z²": ((error / mcse) ** 2).mean(),
        "status": " ".join(sorted(statuses)),
        "seconds": np.median(seconds),
    }


def _half(tree: xarray.DataTree, rng: np.random.Generator) -> xarray.DataTree:
    """Return 500 draws of each chain in their order; only the unconstrained draws are read."""
    stats = tree["sample_stats"].to_dataset()
    chosen = np.stack([np.sort(rng.permutation(stats.sizes["draw"])[:500]) for _ in range(stats.sizes["chain"])])
    take = chosen[..., None]
    return mp.from_arrays(
        np.take_along_axis(stats["unconstrained_draw"].values, take, axis=1),
        np.take_along_axis(stats["gradient"].values, take, axis=1),
        names=[str(name) for name in stats["unconstrained_parameter"].values],
    )


def _fresh(design: np.ndarray, outcome: np.ndarray, rng: np.random.Generator) -> xarray.DataTree:
    """Return 10 × 500 independent draws of blr: β given σ is normal, and σ has a density in one dimension."""
    left, singular, right = np.linalg.svd(design, full_matrices=False)
    fitted = outcome @ left
    grid = np.linspace(-0.6, 0.8, 200_001)
    variance = np.exp(2 * grid)[:, None]
    total = variance + 100 * singular**2
    rest, freedom = outcome @ outcome - fitted @ fitted, len(outcome) - len(singular)
    log_density = -0.5 * (np.log(total) + fitted**2 / total).sum(1) - 0.5 * rest / variance[:, 0]
    log_density += (1 - freedom) * grid - variance[:, 0] / 200
    mass = np.cumsum(np.exp(log_density - log_density.max()))
    sigma = np.exp(np.interp(rng.random(5_000), mass / mass[-1], grid))[:, None]
    precision = singular**2 / sigma**2 + 0.01
    beta = (
        singular * fitted / sigma**2 / precision + rng.standard_normal(precision.shape) / np.sqrt(precision)
    ) @ right
    sites = {
        "beta": (("chain", "draw", "k"), beta.reshape(10, 500, -1)),
        "sigma": (("chain", "draw"), sigma.reshape(10, 500)),
    }
    return xarray.DataTree.from_dict({"posterior": xarray.Dataset(sites)})


if __name__ == "__main__":
    main()
