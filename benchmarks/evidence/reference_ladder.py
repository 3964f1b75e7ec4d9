"""The log evidence from a ladder that starts at a normal fitted to a trace, beside the bridge from
that trace.

    python -m benchmarks.evidence.reference_ladder

Traces, models and exact values are those of ``_posteriors``: four chains of 1,000 draws, or ten of
500 (eight schools). A normal is fitted to all draws of the trace, the rungs are placed by the
barrier, and every rung is sampled by NUTS with replica exchange in every iteration: four chains of
500 draws after 500 of warm-up. Hare-lynx takes HMC of eight steps, as on its ladder from the prior
(`benchmarks.evidence.evidence_models`). ``bridge`` is `bridge_evidence` of the trace alone.
Gradients are those of the ladder's chains, warm-up included, and for the bridge those at the draws
and the proposals; the trace's own are not counted.
"""

import argparse
import sys
import time
import warnings
from collections import Counter

import jax
import numpy as np

import mcmcpost as mp
from benchmarks._command import Command, add_shared
from benchmarks._table import emit
from benchmarks.evidence._posteriors import POSTERIORS, Posterior

NAMES = ("gamma_poisson", "regression", "eight_schools", "logistic", "hare_lynx")

KERNELS = {"hare_lynx": mp.HamiltonianKernel(num_steps=8)}
"""NUTS elsewhere: in lockstep every chain waits for the longest trajectory, with a solve of the ODE
at each step."""

METHODS = ("pooled", "MBAR", "stepping stone")

TITLE = "log evidence from a ladder that starts at a normal fitted to the trace"


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--posteriors gamma_poisson --replications 1")
    add_shared(parser)
    parser.add_argument("--posteriors", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--replications", type=int, default=10)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--rungs", type=int, help="by the barrier if left out")
    parser.add_argument("--name", default="reference_ladder", help="of the JSON file")
    args = parser.parse_args()
    settings = {
        "replications": args.replications,
        "draws": args.draws,
        "rungs": args.rungs or "by the barrier",
    }
    rows: list[dict] = []
    for name in args.posteriors:
        rows += _rows(name, POSTERIORS[name](args.shared, args.replications), args)
        emit(args.name, TITLE, rows, final=False, **settings)
    emit(args.name, TITLE, rows, **settings)


def _rows(name: str, posterior: Posterior, args: argparse.Namespace) -> list[dict]:
    found, seconds, work, barriers, chosen, rungs = [], [], [], [], Counter(), []
    for r in range(args.replications):
        trace = posterior.trace(r)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = time.process_time()
            ladder = mp.sample_power_posteriors(
                posterior.model,
                kwargs=posterior.kwargs,
                reference=trace,
                temperatures=args.rungs,
                key=jax.random.key(r),
                num_samples=args.draws,
                kernel=KERNELS.get(name),
                exchange=1,
            )
            sampled = time.process_time()
            evidence = mp.log_evidence(ladder)
            estimated = time.process_time()
            bridge = mp.bridge_evidence(
                trace, posterior.model, key=jax.random.key(r), **posterior.kwargs
            )
            seconds.append((estimated - start, time.process_time() - estimated, sampled - start))
        by_name = {e.method: (e.value, e.error) for e in evidence.estimates}
        found.append([*(by_name[method] for method in METHODS), (bridge.value, bridge.error)])
        work.append(
            (ladder["sample_stats"].attrs["gradient_evaluations"], bridge.info["gradients"])
        )
        barriers.append(evidence.info["barrier"])
        rungs.append(evidence.info["num_rungs"])
        chosen[evidence.pooled.method.split("(")[0]] += 1
        print(f"{name}: {r + 1} of {args.replications}", file=sys.stderr, flush=True)
    values, errors = np.moveaxis(np.array(found), 2, 0)
    cpu, gradients = np.array(seconds), np.array(work)
    labels = [*METHODS, "bridge"]
    return [
        {
            "posterior": name,
            "estimate": label,
            "rmse": np.sqrt(((values[:, j] - posterior.truth) ** 2).mean()),
            "mean error": errors[:, j].mean(),
            "mean z²": (((values[:, j] - posterior.truth) / errors[:, j]) ** 2).mean(),
            "max |z|": (np.abs(values[:, j] - posterior.truth) / errors[:, j]).max(),
            "rungs": f"{np.mean(rungs):.3g}" if label == "pooled" else "",
            "barrier": f"{np.mean(barriers):.2g}" if label == "pooled" else "",
            "control": " ".join(f"{key}:{n}" for key, n in chosen.most_common())
            if label == "pooled"
            else "",
            "gradients": int(np.median(gradients[:, int(label == "bridge")]))
            if label in ("pooled", "bridge")
            else "",
            "CPU s": np.median(cpu[:, int(label == "bridge")])
            if label in ("pooled", "bridge")
            else "",
            "of it sampling": np.median(cpu[:, 2]) if label == "pooled" else "",
        }
        for j, label in enumerate(labels)
    ]


if __name__ == "__main__":
    main()
