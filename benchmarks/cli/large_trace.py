"""Seconds and peak memory of ``mcmcpost reduce`` and ``mcmcpost report`` on a large trace.

    python -m benchmarks.cli.large_trace
    python -m benchmarks.cli.large_trace --draws 420000 --methods zv1 --limit 1800 --name _2gb

A correlated Gaussian in 50 dimensions, 4 chains of 25,000 autoregressive draws (lag-one correlation
0.5) with their scores, 120 MB on disk with the constrained values; 420,000 draws are 2 GB. Each
command is a process of its own with an empty compilation cache. Peak memory: ``private``, which
only swapping could free, and ``resident``, which counts pages of files too. ``limit`` marks a
command that was stopped.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._table import emit

CHAINS = 4
TITLE = "A large trace through the command line"
PROGRAM = [sys.executable, "-c", "from mcmcpost.app import main; main()"]


def main() -> None:
    parser = Command(__doc__, quick="--draws 5000 --methods zv1")
    parser.add_argument("--draws", type=int, default=25_000, help="per chain")
    parser.add_argument("--dimension", type=int, default=50)
    parser.add_argument("--methods", nargs="+", default=["zv1", "auto"])
    parser.add_argument("--limit", type=float, default=170.0, help="seconds for one command")
    parser.add_argument("--name", default="", help="added to the name of the JSON file")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.nc"
        mp.save_tree(gaussian_trace(args.draws, args.dimension), path)
        size = path.stat().st_size / 1e6
        for method in args.methods:
            for command in ("reduce", "report"):
                extra = ["-o", str(Path(folder) / f"{method}.html")] if command == "report" else []
                rows.append(
                    measure(
                        command, method, [str(path), "--method", method, *extra], folder, args.limit
                    )
                )
                settings = {
                    "chains": CHAINS,
                    "draws": args.draws,
                    "dimension": args.dimension,
                    "file_megabytes": size,
                }
                emit("large_trace" + args.name, TITLE, rows, final=False, **settings)
    emit("large_trace" + args.name, TITLE, rows, **settings)


def gaussian_trace(draws: int, dimension: int, seed: int = 0) -> Any:
    """Return autoregressive draws of N(0, LLᵀ) with scores."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(CHAINS, draws, dimension))
    for i in range(1, draws):
        z[:, i] = 0.5 * z[:, i - 1] + np.sqrt(0.75) * z[:, i]
    lower = np.eye(dimension) + np.tril(rng.normal(size=(dimension, dimension)), -1) / dimension
    return mp.from_arrays(z @ lower.T, -z @ np.linalg.inv(lower))


def measure(
    command: str, method: str, arguments: list[str], folder: str, limit: float
) -> dict[str, Any]:
    """Run one command and return its wall time, processor time and peak memory."""
    cache = tempfile.mkdtemp(dir=folder)
    start = time.perf_counter()
    process = subprocess.Popen(
        [*PROGRAM, command, *arguments],
        env=os.environ | {"XDG_CACHE_HOME": cache},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    status, code, usage, private = 0, None, None, 0
    while not status:
        status, code, usage = os.wait4(process.pid, os.WNOHANG)
        if not status:
            private = max(private, private_megabytes(process.pid))
        if not status and time.perf_counter() - start > limit:
            process.kill()
        time.sleep(0.05)
    process.returncode = os.waitstatus_to_exitcode(code)
    _, errors = process.communicate()
    stopped = time.perf_counter() - start > limit
    if process.returncode and not stopped:
        raise RuntimeError(errors.decode())
    return {
        "command": command,
        "method": method,
        "seconds": round(time.perf_counter() - start, 1),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1),
        "private_megabytes": private,
        "resident_megabytes": round(usage.ru_maxrss / 1024),
        "end": "limit" if stopped else "done",
    }


def private_megabytes(pid: int) -> int:
    """Return the memory of a process that belongs to no file; zero of one that has just ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) // 1024 for line in lines if line.startswith("RssAnon")), 0)


if __name__ == "__main__":
    main()
