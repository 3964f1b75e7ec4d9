"""Bridge sampling on random halves of the 10,000 posteriordb reference draws, against exact log evidences.

    python -m benchmarks.bridge

500 of the 1,000 draws of each chain, in their order. The halves are of one sample of 10,000, so the estimates are not
independent: the coverage is a count, not a test. Targets (TARGETS.md section 3): rmse at most 2.0e-3 (blr) and 5.5e-3
(eight schools) with coverage of ± two errors between 88 and 99 %; 5e-5 is aimed at on blr with control variates.
"""

import argparse
import sys
import time
from pathlib import Path

import jax
import numpy as np

import mcmcpost as mp
from benchmarks import _eight_schools, posteriordb
from benchmarks._replicate import generator
from benchmarks._table import emit

TRUTHS = {"blr": -194.9675885389, "eight_schools": -31.3113473523}
"""Half-normal and half-Cauchy normalised, as NumPyro has them."""
TARGETS = {"blr": 2.0e-3, "eight_schools": 5.5e-3}
COVERAGE = (0.88, 0.99)
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
    parser.add_argument("--name", default="bridge", help="of the JSON file")
    args = parser.parse_args()
    root = args.shared / "data" / "posteriordb"
    rows: list[dict] = []
    for posterior in args.posteriors:
        tree, model_and_data = _posterior(root, posterior)
        for method in args.methods:
            rows.append(_row(posterior, tree, model_and_data, method, args.replications))
            emit(args.name, _TITLE, rows, final=False)
    emit(
        args.name,
        _TITLE,
        rows,
        truths=TRUTHS,
        targets=TARGETS,
        coverage=f"between {COVERAGE[0]} and {COVERAGE[1]}",
        replications=args.replications,
    )


_TITLE = "log evidence by bridge sampling on random halves of posteriordb reference draws"


def _posterior(root: Path, name: str) -> tuple:
    tree = posteriordb.CASES[name](root)[0]
    if name == "blr":
        data = posteriordb._read(root, "sblrc-blr", "sblrc")
        return tree, (posteriordb._blr_model, np.array(data["X"]), np.array(data["y"]))
    return tree, (_eight_schools.model,)


def _row(posterior: str, tree: object, model_and_data: tuple, method: str, replications: int) -> dict:
    errors, mcses, statuses, seconds = [], [], set(), []
    for r in range(replications):
        start = time.perf_counter()
        found = mp.bridge_evidence(
            _half(tree, generator(posterior, r)), *model_and_data, key=jax.random.key(r), **METHODS[method]
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


def _half(tree: object, rng: np.random.Generator) -> object:
    """Return 500 draws of each chain in their order; only the unconstrained draws are read."""
    stats = tree["sample_stats"].to_dataset()
    chosen = np.stack([np.sort(rng.permutation(stats.sizes["draw"])[:500]) for _ in range(stats.sizes["chain"])])
    take = chosen[..., None]
    return mp.from_arrays(
        np.take_along_axis(stats["unconstrained_draw"].values, take, axis=1),
        np.take_along_axis(stats["gradient"].values, take, axis=1),
        names=[str(name) for name in stats["unconstrained_parameter"].values],
    )


if __name__ == "__main__":
    main()
