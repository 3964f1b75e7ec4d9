"""Lotka–Volterra, hare–lynx: expected prey at T times from m = 500 draws, every control variate
side by side.

    python -m benchmarks.control._lotka_volterra_pool  # once: truth and replications, cached
    python -m benchmarks.control.lotka_volterra_tasks

Sun, Barp and Briol (2023), Tables 3 and 5: NUTS draws thinned by two, the sum over tasks of the
mean absolute error. The truth is that of a degree-4 zero variance on 400,000 separate draws.
Integrands of one trace share their draws, so a vector-valued fit without a ridge is a scalar fit
with a shared kernel: the rows say what it adds.
"""

import jax
import numpy as np

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._replicate import replicate
from benchmarks._table import emit
from benchmarks.control._lotka_volterra_pool import (
    BLOCK,
    PIECE_DRAWS,
    TASK_SETS,
    replications,
    truth,
)

TARGETS = {"1913 T=2": 0.005, "1912 T=5": 0.012, "1912 T=10": 0.022, "1914 T=10": 0.007}
PAPER = {"1913 T=2": 0.404, "1912 T=5": 0.393, "1912 T=10": 0.938, "1914 T=10": 0.792}
"""The better of the paper's two vector-valued columns."""
SCALAR = {
    "plain": "plain",
    "zv2": "zv2",
    "zv3": "zv3",
    "cf": "cf",
    "SemiExact(2)": mp.SemiExact(2),
    "auto": "auto",
}
JOINT = {"VectorValued()": mp.VectorValued(), "VectorValued(degree=2)": mp.VectorValued(degree=2)}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(
        __doc__,
        quick="--sets '1913 T=2' --replications 2 --block-size 2 --pieces 1 --piece-draws 1000",
    )
    parser.add_argument("--replications", type=int, default=100)
    parser.add_argument(
        "--sets", nargs="+", choices=TASK_SETS, default=list(TASK_SETS), help="of tasks"
    )
    parser.add_argument(
        "--block-size", type=int, default=BLOCK, help="replications that are sampled at once"
    )
    parser.add_argument(
        "--pieces", type=int, default=20, help="of the truth, with draws of their own each"
    )
    parser.add_argument(
        "--piece-draws", type=int, default=PIECE_DRAWS, help="of each of four chains"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop early, per set")
    args = parser.parse_args()
    exact = truth(args.pieces, args.piece_draws)
    pool = replications(args.replications, block_size=args.block_size)
    draws, scores, values = pool["draws"], pool["scores"], pool["values"]
    rows: list[dict] = []
    everything = replicate(
        "scalar",
        lambda r: (draws[r], scores[r], values[r]),
        SCALAR,
        args.replications,
        4 * args.minutes,
    )
    for name in args.sets:
        columns = TASK_SETS[name]
        mean = exact.mean[columns]
        joint = replicate(
            name,
            lambda r, columns=columns: (draws[r], scores[r], values[r][..., columns]),
            JOINT,
            args.replications,
            args.minutes,
        )
        found = [
            (label, run.mean[:, columns], run.mcse[:, columns], run)
            for label, run in everything.items()
        ]
        found += [(label, run.mean, run.mcse, run) for label, run in joint.items()]
        for label, estimates, mcse, run in found:
            error = np.abs(estimates - mean)
            total = error.sum(axis=1)
            target = (
                TARGETS.get(name, "") if label in ("SemiExact(2)", "VectorValued(degree=2)") else ""
            )
            se = total.std(ddof=1) / np.sqrt(len(total))
            rows.append(
                {
                    "tasks": name,
                    "method": label,
                    "R": len(total),
                    "sum of MAE": total.mean(),
                    "se": se,
                    "median": np.median(total),
                    "target": target,
                    "met": ""
                    if target == ""
                    else "yes"
                    if total.mean() - 2 * se <= target
                    else "NO",
                    "mean z²": np.mean((error / mcse) ** 2),
                    "seconds": run.seconds,
                    "paper's best vv": PAPER.get(name, ""),
                }
            )
        emit("lotka_volterra_tasks", "Expected prey at T times, m = 500", rows, final=False)
    emit(
        "lotka_volterra_tasks",
        "Expected prey at T times, m = 500 draws thinned by 2; seconds of scalar rows are for "
        "all 20 times",
        rows,
        replications=args.replications,
        summed_truth_error={name: float(exact.summed_error(TASK_SETS[name])) for name in args.sets},
    )


if __name__ == "__main__":
    main()
