"""`auto` against the plain mean: is it ever more than 5 per cent worse in RMSE?

    python -m benchmarks.control.auto_vs_plain

4 × 125 draws, independent where an exact sampler exists, otherwise short or cut NUTS chains.
``ratio`` is RMSE(auto)/RMSE(plain) over the replications, with the standard error of the paired
delta method; ``crossfit`` is the same for `mean_crossfit`. ``refused`` among the statuses is a
ScoreError, in whose place the plain mean counts.
"""

from collections.abc import Callable

import jax
import numpy as np

from benchmarks._command import Command
from benchmarks._replicate import Runs, Sample, replicate
from benchmarks._table import emit
from benchmarks.control._pools import Pool, eight_schools, logistic, lotka_volterra_pool
from benchmarks.control._targets import TARGETS, sampler

POOLS: dict[str, Callable[[int], Pool]] = {
    "eight schools": eight_schools,
    "lynx-hare": lotka_volterra_pool,
    "logistic d=20": logistic,
}
TARGET = 1.05


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(
        __doc__, quick="--replications 5 --targets 'gaussian d=1' 'banana d=2' 'student t3'"
    )
    parser.add_argument("--replications", type=int, default=100)
    parser.add_argument(
        "--targets", nargs="+", choices=[*TARGETS, *POOLS], default=[*TARGETS, *POOLS]
    )
    parser.add_argument("--method", default="auto")
    parser.add_argument("--name", default="auto_vs_plain", help="of the JSON file")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="stop early, per target"
    )
    args = parser.parse_args()
    rows = []
    for name in args.targets:
        sample, names, truth, truth_mcse = _case(name, args.replications)
        run = replicate(name, sample, {args.method: args.method}, args.replications, args.minutes)[
            args.method
        ]
        rows += [_row(name, names[j], run, j, truth[j], truth_mcse[j]) for j in range(len(names))]
        emit(
            args.name,
            f"RMSE of {args.method} over RMSE of the plain mean, 4 × 125 draws; target ≤ {TARGET}",
            rows,
            final=name == args.targets[-1],
            replications=args.replications,
            method=args.method,
        )


def _case(name: str, replications: int) -> tuple[Sample, tuple[str, ...], np.ndarray, np.ndarray]:
    if name in POOLS:
        pool = POOLS[name](replications)
        return pool.sample, pool.names, pool.truth, pool.truth_mcse
    integrands = TARGETS[name].integrands
    truth = np.array([value for _, value in integrands.values()])
    return sampler(name), tuple(integrands), truth, np.zeros(len(truth))


def _row(
    name: str, integrand: str, run: Runs, column: int, truth: float, truth_mcse: float
) -> dict:
    auto, plain = (run.mean[:, column] - truth) ** 2, (run.mean_plain[:, column] - truth) ** 2
    ratio = np.sqrt(auto.mean() / plain.mean())
    # log ratio = ½(log mean auto − log mean plain): paired delta method
    influence = (
        auto / auto.mean() - plain / plain.mean() if auto.mean() > 0 else np.zeros(len(auto))
    )
    error = ratio * influence.std(ddof=1) / 2 / np.sqrt(len(auto))
    z = (run.mean[:, column] - truth) / np.sqrt(run.mcse[:, column] ** 2 + truth_mcse**2)
    held_out = run.mean_crossfit[:, column] - truth
    verdict = (
        "ok" if ratio <= TARGET else "within noise" if ratio - 2 * error <= TARGET else "MISSED"
    )
    return {
        "target": name,
        "integrand": integrand,
        "R": len(auto),
        "rmse plain": np.sqrt(plain.mean()),
        "ratio": ratio,
        "se": error,
        "verdict": verdict,
        "mean z²": np.mean(z**2),
        "max|z|": np.abs(z).max(),
        "crossfit": np.sqrt(np.mean(held_out**2) / plain.mean()),
        "its z²": np.mean(held_out**2 / (run.mcse[:, column] ** 2 + truth_mcse**2)),
        "truth mcse/rmse": truth_mcse / np.sqrt(auto.mean()) if auto.mean() > 0 else 0.0,
        "warned": run.warned,
        "seconds": run.seconds,
        "status": run.statuses(column),
    }


if __name__ == "__main__":
    main()
