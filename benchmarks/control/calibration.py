"""Calibration: is Var((mean − truth)/mcse) inside the χ² band for every method, and for `auto`
after its choice?

    python -m benchmarks.control.calibration

Targets: AR(1) chains with a standard normal target in two dimensions (ρ = 0.9 and 0.5, 4 × 250
draws), and short NUTS runs of eight schools, non-centred (4 × (200 + 250) draws). The integrands
are no polynomials of the scores' features, so residuals are not zero. ``var z`` is mean z², bias
included; the band is that of χ²_R/R at level 1e-5, two-sided.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from scipy.stats import chi2

from benchmarks._command import Command
from benchmarks._eight_schools import TRUTHS, nuts_replicates
from benchmarks._replicate import Runs, Sample, generator, replicate
from benchmarks._table import emit
from benchmarks.control._targets import autoregressive

METHODS = ("plain", "zv1", "zv2", "zv3", "cf", "secf", "auto")
LEVEL = 1e-5
NUM_CHAINS, NUM_DRAWS, NUM_WARMUP = 4, 250, 200


class Case(NamedTuple):
    """Integrand names with their truths, and the sampler of a replication."""

    truths: dict[str, float]
    sample: Sample


def ar1(rho: float) -> Case:
    """Return the case of stationary AR(1) chains, two independent standard normal coordinates."""
    target = autoregressive(rho)

    def sample(replication: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x, s = target.draw(generator(f"ar1 {rho}", replication), NUM_CHAINS * NUM_DRAWS)
        values = np.stack([f(x) for f, _ in target.integrands.values()], -1)
        return tuple(a.reshape(NUM_CHAINS, NUM_DRAWS, -1) for a in (x, s, values))

    return Case({name: truth for name, (_, truth) in target.integrands.items()}, sample)


def eight_schools(replications: int) -> Case:
    draws, scores, values = nuts_replicates(replications, NUM_CHAINS, NUM_WARMUP, NUM_DRAWS)
    names = ("mu", "tau", "theta1")
    columns = np.stack([values[name] for name in names], -1)
    return Case({name: TRUTHS[name] for name in names}, lambda r: (draws[r], scores[r], columns[r]))


CASES: dict[str, Callable[[int], Case]] = {
    "ar1(.9)": lambda _: ar1(0.9),
    "ar1(.5)": lambda _: ar1(0.5),
    "eight_schools": eight_schools,
}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--replications 10 --cases 'ar1(.5)'")
    parser.add_argument("--replications", type=int, default=200)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--tag", default="", help="appended to the names of the JSON files")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop early, per case")
    args = parser.parse_args()
    for name in args.cases:
        case = CASES[name](args.replications)
        runs = replicate(
            name, case.sample, {m: m for m in args.methods}, args.replications, args.minutes
        )
        rows = [
            calibration_row(method, run, j, *item)
            for method, run in runs.items()
            for j, item in enumerate(case.truths.items())
        ]
        slug = "".join(c if c.isalnum() else "_" for c in name).strip("_")
        title = f"Calibration on {name}, {NUM_CHAINS} chains of {NUM_DRAWS}"
        emit_calibration(f"calibration_{slug}{args.tag}", title, rows, args.replications)


def emit_calibration(name: str, title: str, rows: list[dict], replications: int) -> None:
    """Print and keep a table of `calibration_row`, with the band of the replications that it
    has."""
    low, high = band(rows[0]["R"])
    emit(
        name,
        f"{title}: var z should not exceed {high:.3f}",
        rows,
        replications=replications,
        level=LEVEL,
        band_low=low,
        band_high=high,
    )


def band(replications: int) -> tuple[float, float]:
    """Return the band of mean z² for a standard normal z, two-sided at `LEVEL`."""
    low, high = chi2.ppf([LEVEL / 2, 1 - LEVEL / 2], replications) / replications
    return float(low), float(high)


def calibration_row(method: str, run: Runs, column: int, integrand: str, truth: float) -> dict:
    """Return the record of one method and integrand: mean z² against the band, coverage, gain,
    RMSE."""
    error = run.mean[:, column] - truth
    z = error / run.mcse[:, column]
    low, high = band(len(z))
    value = np.mean(z**2)
    plain = np.mean((run.mean_plain[:, column] - truth) ** 2)
    held_out = run.mean_crossfit[:, column] - truth
    return {
        "integrand": integrand,
        "method": method,
        "R": len(z),
        "var z": value,
        "verdict": "ABOVE" if not value <= high else "below" if value < low else "inside",
        "within ±2": np.mean(np.abs(z) < 2),
        "max|z|": np.abs(z).max(),
        "mean z": z.mean(),
        "median gain": np.median(run.gain[:, column]),
        "rmse/plain": np.sqrt(np.mean(error**2) / plain),
        "crossfit": np.sqrt(np.mean(held_out**2) / plain),
        "its var z": np.mean((held_out / run.mcse[:, column]) ** 2),
        "seconds": run.seconds,
        "warned": run.warned,
        "status": run.statuses(column),
    }


if __name__ == "__main__":
    main()
