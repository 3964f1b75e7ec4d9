"""CPU seconds of ``mcmcpost reduce`` on a small trace: the first time, when its programs are
compiled, and again.

    python -m benchmarks.cli.first_reduce

4 × 1,000 draws of a banana in eight dimensions with its scores: u is autoregressive (lag-one
correlation 0.5) and standard normal, x₁ = u₁, and xⱼ = uⱼ + 0.4(u₁² − 1). The quantities are the
eight means and the 28 products of two coordinates, by ``auto``. Each run is a process of its own;
the runs of one replication share a compilation cache that is empty before the first. ``imports``
are the seconds of importing what the command imports.

Targets: 15 s for the first run and 4 s for the second, on one core.
"""

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import xarray

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._table import emit

CHAINS, DRAWS, DIMENSION, BEND = 4, 1_000, 8, 0.4
PROGRAM = [sys.executable, "-c", "from mcmcpost.app import main; main()"]
IMPORTS = [sys.executable, "-c", "import mcmcpost.app.commands"]


def main() -> None:
    parser = Command(__doc__, quick="--replications 1")
    parser.add_argument("--replications", type=int, default=3)
    replications = parser.parse_args().replications
    products = [f"p{i}{j}=x[{i}] * x[{j}]" for i, j in itertools.combinations(range(DIMENSION), 2)]
    found: dict[str, list[float]] = {"imports": [], "first": [], "second": []}
    for replication in range(replications):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.nc"
            mp.save_tree(banana(replication), path)
            reduce = [
                *PROGRAM,
                "reduce",
                str(path),
                *(word for text in products for word in ("--expect", text)),
            ]
            for name, command in (("imports", IMPORTS), ("first", reduce), ("second", reduce)):
                found[name].append(cpu_seconds(command, folder))
    rows = [
        {"run": name, "cpu_seconds": statistics.median(seconds)} for name, seconds in found.items()
    ]
    emit(
        "first_reduce",
        "The first reduction of a small trace, and the second",
        rows,
        replications=replications,
    )


def banana(seed: int) -> xarray.DataTree:
    """Return draws of the banana with their scores."""
    rng = np.random.default_rng(seed)
    u = rng.standard_normal((CHAINS, DRAWS, DIMENSION))
    for i in range(1, DRAWS):
        u[:, i] = 0.5 * u[:, i - 1] + np.sqrt(0.75) * u[:, i]
    x, scores = u.copy(), -u
    x[..., 1:] += BEND * (u[..., :1] ** 2 - 1)
    scores[..., 0] += 2 * BEND * u[..., 0] * u[..., 1:].sum(axis=-1)
    return mp.from_arrays(x, scores)


def cpu_seconds(command: list[str], cache: str) -> float:
    """Run a command on one BLAS thread and return its processor time."""
    before = os.times()
    environment = os.environ | {"XDG_CACHE_HOME": cache, "OPENBLAS_NUM_THREADS": "1"}
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )


if __name__ == "__main__":
    main()
