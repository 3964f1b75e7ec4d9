"""CPU seconds and memory of `auto` and of linear control variates against dimension and draws.

    python -m benchmarks.control.dimension_scaling

Independent draws, in four chains, of group effects z_j = u₀ + ½u_j around a common mean u₀, all u ~
N(0, 1). The trace holds the non-centred parameters y = 2 sinh(u/2) of a density that is not normal,
with exact scores; the eight integrands are functions of u₀, z₁, z₂ and the mean of all z_j with
exact expectations. Every cell is a process of its own. `seconds` are CPU seconds of one call with
all integrands, compilation included; `memory` is the largest resident set in MB, and `before` that
before the call. `gain` is the geometric mean over integrands and replications of the reported
gains, `true` that of the ratios of squared errors, plain over controlled, and `z²` the mean of
squared errors over squared reported ones. Cells of more than 4·10⁶ numbers have one replication.
"""

import json
import resource
import subprocess
import sys
import time
import warnings
from typing import Any

import jax
import numpy as np
import scipy.stats

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._table import RESULTS, commit, emit

DIMENSIONS, SIZES = (10, 30, 100, 300, 1_000, 2_000), (400, 4_000, 40_000)

SPREAD = 0.5

MOST = 4_000_000
"""Numbers in the draws up to which there are several replications."""


def main() -> None:
    parser = Command(__doc__, quick="--dimensions 10 100 --sizes 400 --replications 1")
    parser.add_argument("--dimensions", type=int, nargs="+", default=list(DIMENSIONS))
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--methods", nargs="+", choices=mp.METHODS, default=["zv1", "auto"])
    parser.add_argument("--replications", type=int, default=3)
    parser.add_argument(
        "--keep", action="store_true", help="keep the other rows of the table as they are"
    )
    parser.add_argument(
        "--limit", type=float, default=3_600.0, help="seconds after which a cell is given up"
    )
    parser.add_argument(
        "--cell", nargs=3, metavar=("D", "N", "METHOD"), help="one cell, printed as JSON"
    )
    args = parser.parse_args()
    if args.cell:
        print(
            json.dumps(cell(int(args.cell[0]), int(args.cell[1]), args.cell[2], args.replications))
        )
        return
    here = commit()
    keep = args.keep and not args.quick
    kept = json.loads((RESULTS / "dimension_scaling.json").read_text()) if keep else {"rows": []}
    rows = {
        (row["n"], row["d"], row["method"]): {"commit": kept["commit"]} | row
        for row in kept["rows"]
    }
    cells = [(d, n, method) for n in args.sizes for d in args.dimensions for method in args.methods]
    for d, n, method in cells:
        words = [
            sys.executable,
            "-m",
            "benchmarks.control.dimension_scaling",
            "--cell",
            str(d),
            str(n),
            method,
        ]
        words += ["--replications", str(args.replications if d * n <= MOST else 1)]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, check=True, timeout=args.limit
            )
            rows[n, d, method] = {"commit": here} | json.loads(done.stdout.splitlines()[-1])
        except subprocess.TimeoutExpired:
            print(f"given up after {args.limit:g} s: d={d}, n={n}, {method}", file=sys.stderr)
        title = (
            "Group effects, independent draws, eight integrands: work and gains against dimension "
            "and draws"
        )
        every = [
            rows[cell] for cell in sorted(rows, key=lambda cell: (*cell[:2], cell[2] == "auto"))
        ]
        emit("dimension_scaling", title, every, final=(d, n, method) == cells[-1])


def cell(d: int, n: int, method: str, replications: int) -> dict[str, Any]:
    """Return the row of one dimension, number of draws and method."""
    jax.config.update("jax_enable_x64", True)
    seconds, before, memory, gains, trues, squares = 0.0, 0.0, 0.0, [], [], []
    for replication in range(replications):
        draws, scores, values, truth = sample(d, n, replication)
        tree = mp.from_arrays(draws, scores)
        if not replication:
            before, start = largest(), time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = mp.expectation(tree, values, method)
        if not replication:
            seconds, memory = time.process_time() - start, largest()
        gains.append(np.log(found.gain))
        trues.append(np.log((found.mean_plain - truth) ** 2 / (found.mean - truth) ** 2))
        squares.append(((found.mean - truth) / found.mcse) ** 2)
    return {
        "d": d,
        "n": n,
        "method": method,
        "seconds": seconds,
        "before": before,
        "memory": memory,
        "gain": float(np.exp(np.mean(gains))),
        "true": float(np.exp(np.mean(trues))),
        "z²": float(np.mean(squares)),
        "replications": replications,
    }


def largest() -> float:
    """Return the largest resident set of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def sample(
    d: int, n: int, replication: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return draws and scores (4, n/4, d), the integrands (4, n/4, 8) and their expectations."""
    rng = np.random.default_rng((d, n, replication))
    u = rng.standard_normal((4, n // 4, d))
    draws, scores = 2 * np.sinh(0.5 * u), -(u + 0.5 * np.tanh(0.5 * u)) / np.cosh(0.5 * u)
    z = np.concatenate([u[..., :1], u[..., :1] + SPREAD * u[..., 1:]], axis=-1)
    y = 2 * np.sinh(0.5 * z)
    one, two = z[..., 1], z[..., 2]
    values = [
        y[..., 0],
        y[..., 1],
        y[..., 0] ** 2,
        y[..., 1] ** 2,
        y[..., 1] * y[..., 2],
        y[..., 1:].mean(axis=-1),
    ]
    values += [np.exp(0.5 * one), (one + two > 1.0).astype(float)]
    var = 1 + SPREAD**2
    together, apart = 4 + 2 * SPREAD**2, 2 * SPREAD**2
    truth = [
        0.0,
        0.0,
        2 * np.expm1(0.5),
        2 * np.expm1(0.5 * var),
        2 * (np.exp(together / 8) - np.exp(apart / 8)),
        0.0,
    ]
    truth += [np.exp(var / 8), scipy.stats.norm.sf(1 / np.sqrt(together))]
    return draws, scores, np.stack(values, axis=-1), np.array(truth)


if __name__ == "__main__":
    main()
