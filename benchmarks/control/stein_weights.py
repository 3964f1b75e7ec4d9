"""Stein weights of many draws under a budget, beside Stein thinning, a dense subset and the plain
mean.

    taskset -c 0 python -m benchmarks.control.stein_weights

Four independent 2-D bananas (d = 8), inverse multiquadric of lengthscale 4, f and settings of
`large_kernel`. One subprocess per row, so that peak memory is the row's own. ``reported`` is the
model's error with the amplitude from a dense subset; thinning has none. Target: an error of a
quarter of the plain mean's at m = 20,000.
"""

import json
import resource
import subprocess
import sys
import time
from typing import Any

import jax
import numpy as np

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._table import emit
from benchmarks.control.large_kernel import NUGGET, bananas
from mcmcpost.stein import InverseMultiquadric

KERNEL = InverseMultiquadric(4.0)
SUBSET = 2_000


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--sizes 4000 --budget 20 --seeds 0")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 20_000, 100_000])
    parser.add_argument("--methods", nargs="+", default=["weights", "thinning", "subset"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--budget", type=int, default=60, help="products with the Stein kernel")
    parser.add_argument("--name", default="", help="added to the name of the JSON file")
    parser.add_argument(
        "--one", nargs=3, metavar=("METHOD", "SIZE", "SEED"), help="one row, as a JSON line"
    )
    args = parser.parse_args()
    if args.one:
        print(json.dumps(row(args.one[0], int(args.one[1]), int(args.one[2]), args.budget)))
        return
    rows = []
    for size in args.sizes:
        for method in args.methods:
            for seed in args.seeds:
                command = [
                    sys.executable,
                    "-m",
                    "benchmarks.control.stein_weights",
                    "--budget",
                    str(args.budget),
                ]
                command += ["--one", method, str(size), str(seed)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                rows.append(json.loads(done.stdout.splitlines()[-1]))
                emit("stein_weights" + args.name, "Stein weights of many draws", rows, final=False)
    emit(
        "stein_weights" + args.name,
        "Stein weights of many draws",
        rows,
        nugget=NUGGET,
        budget=args.budget,
    )


def row(method: str, m: int, seed: int, budget: int) -> dict[str, Any]:
    x, scores, f, truth = bananas(m, seed)
    tree = mp.from_arrays(*(a.reshape(4, m // 4, -1) for a in (x, scores)))
    values = f.reshape(4, m // 4)
    start, cpu = time.perf_counter(), time.process_time()
    reported, products, status = np.nan, 0, ""
    if method == "weights":
        solver = mp.ConjugateGradients(rank=300, gain=1e-3)
        rule = mp.ControlFunctional(KERNEL, NUGGET, solver=solver, budget=budget)
        weights = mp.stein_weights(tree, method=rule, standardize=(0.0, 1.0))
        estimate, reported = float(weights.mean(values)), float(weights.model_error(values))
        products, status = weights.info["num_products"], str(weights.status)
    elif method == "thinning":
        chosen = mp.stein_thinning(tree, SUBSET, KERNEL)
        estimate = float(values[chosen.chain, chosen.draw].mean())
    else:
        few = np.linspace(0, m - 1, SUBSET).astype(int)
        small = mp.from_arrays(*(a[few].reshape(4, SUBSET // 4, -1) for a in (x, scores)))
        rule = mp.ControlFunctional(KERNEL, NUGGET)
        weights = mp.stein_weights(small, method=rule, standardize=(0.0, 1.0))
        part = f[few].reshape(4, -1)
        estimate, reported, status = (
            float(weights.mean(part)),
            float(weights.model_error(part)),
            str(weights.status),
        )
    return {
        "m": m,
        "method": method,
        "seed": seed,
        "seconds": time.perf_counter() - start,
        "cpu s": time.process_time() - cpu,
        "peak GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
        "products": products,
        "error": estimate - truth,
        "reported": reported,
        "plain error": float(f.mean() - truth),
        "plain mcse": float(f.std() / np.sqrt(m)),
        "status": status,
    }


if __name__ == "__main__":
    main()
