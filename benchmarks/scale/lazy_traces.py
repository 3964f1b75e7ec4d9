"""Memory and time of reductions of traces that stay in chunks: Zarr folders, generated draws, a
cluster of two workers.

    python -m benchmarks.scale.lazy_traces --gigabytes 0.5 2 8 --methods zv1
    python -m benchmarks.scale.lazy_traces --gigabytes 40 --kind generated --methods zv1
    python -m benchmarks.scale.lazy_traces --gigabytes 0.5 2 --methods auto --ask quantiles spreads

Independent normals with standard deviations from 1 to 3 and their scores, 4 chains; ``gigabytes``
counts draws and scores. ``asked`` of five integrands, functions of one coordinate each, are means,
quantiles at .05, .5 and .95, or standard deviations. ``zarr`` is a folder on the disk, with chunks
of about 8 MB; ``generated`` draws are computed by dask whenever a chunk is read, as often as a
folder would be. Every case is a process of its own. ``private`` is the largest memory that belongs
to no file. CPU seconds are those of all processes; on a shared machine the wall clock says less.
``difference`` from the first row of the same trace, method and question is that of means and
errors, relative; ``gain`` is the median reported one.
"""

import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import jax
import numpy as np
import xarray

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._table import emit
from benchmarks.cli.large_trace import private_megabytes

CHAINS, BLOCK = 4, 1 << 20
DIMS = ("chain", "draw", "unconstrained_parameter")


def main() -> None:
    parser = Command(__doc__, quick="--gigabytes 0.05 --methods zv1 --schedulers threads")
    parser.add_argument("--gigabytes", type=float, nargs="+", default=[0.5])
    parser.add_argument("--dimension", type=int, default=50)
    parser.add_argument("--methods", nargs="+", default=["zv1"])
    parser.add_argument("--ask", nargs="+", choices=QUESTIONS, default=["means"])
    parser.add_argument("--kind", choices=["zarr", "generated"], default="zarr")
    parser.add_argument("--schedulers", nargs="+", choices=SCHEDULERS, default=["threads"])
    parser.add_argument("--name", default="", help="added to the name of the JSON file")
    parser.add_argument(
        "--one", nargs=3, metavar=("PLACE", "METHOD", "SCHEDULER"), help="what each process runs"
    )
    args = parser.parse_args()
    if args.one:
        print(json.dumps(reduced(*args.one, args.ask[0], args.gigabytes[0], args.dimension)))
        return
    rows: list[dict[str, Any]] = []
    for gigabytes in args.gigabytes:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            place = Path(folder) / "trace.zarr" if args.kind == "zarr" else None
            if place is not None:
                generated(gigabytes, args.dimension).to_zarr(place, consolidated=False)
            for method, asked in itertools.product(args.methods, args.ask):
                first = None
                for scheduler in args.schedulers:
                    found = launch(str(place), method, scheduler, asked, gigabytes, args.dimension)
                    first = np.array(found["numbers"]) if first is None else first
                    apart = np.abs(np.array(found.pop("numbers")) / first - 1).max()
                    rows.append(
                        {"kind": args.kind, "gigabytes": gigabytes, "method": method} | found
                    )
                    rows[-1]["difference"] = float(apart)
                    emit("lazy_traces" + args.name, "Traces that stay in chunks", rows, final=False)
    emit("lazy_traces" + args.name, "Traces that stay in chunks", rows, dimension=args.dimension)


def launch(
    place: str, method: str, scheduler: str, asked: str, gigabytes: float, dimension: int
) -> dict[str, Any]:
    module = [sys.executable, "-m", "benchmarks.scale.lazy_traces", "--gigabytes", str(gigabytes)]
    given = ["--dimension", str(dimension), "--ask", asked, "--one", place, method, scheduler]
    done = subprocess.run([*module, *given], stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def generated(gigabytes: float, dimension: int, piece: int = BLOCK) -> xarray.DataTree:
    """Return the trace, of which dask computes each chunk, of `piece` entries, from its own
    seed."""
    draws = int(gigabytes * 1e9 / (16 * CHAINS * dimension))
    step = max(1, piece // dimension)
    blocks = tuple(min(step, draws - start) for start in range(0, draws, step))
    chunks = ((1,) * CHAINS, blocks)
    scale = np.linspace(1.0, 3.0, dimension)

    def array(factor: np.ndarray) -> da.Array:
        return da.map_blocks(block_of_all, factor, chunks=(*chunks, (dimension,)), dtype=float)

    variables = {
        f"f{j}": (DIMS[:2], da.map_blocks(block_of_one, j, chunks=chunks, dtype=float))
        for j in range(len(INTEGRANDS))
    }
    stats = xarray.Dataset(
        {"unconstrained_draw": (DIMS, array(scale)), "gradient": (DIMS, array(-1.0 / scale))}
    )
    return xarray.DataTree.from_dict(
        {"posterior": xarray.Dataset(variables), "sample_stats": stats}
    )


INTEGRANDS: tuple[Callable[[np.ndarray], np.ndarray], ...] = (
    lambda z: np.exp(z / 2),
    lambda z: z**3,
    np.cos,
    np.tanh,
    np.sin,
)
"""Functions of one coordinate each, the first, the second and so on, in units of its standard
deviation."""


def normals(place: tuple[int, ...], stream: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return standard normals of a chunk: those of an integrand's coordinate have a stream of their
    own."""
    return np.random.Generator(np.random.SFC64([*place[:2], stream])).standard_normal(shape)


def block_of_all(factor: np.ndarray, block_info: Any = None) -> np.ndarray:
    """Return a chunk (1, n, d) of standard normals times a factor."""
    place, shape = block_info[None]["chunk-location"], block_info[None]["chunk-shape"]
    own = len(INTEGRANDS)
    block = np.empty(shape)
    for j in range(own):
        block[..., j] = normals(place, j, shape[:2])
    block[..., own:] = normals(place, own, (*shape[:2], shape[2] - own))
    block *= factor
    return block


def block_of_one(j: int, block_info: Any = None) -> np.ndarray:
    """Return a chunk (1, n) of an integrand."""
    return INTEGRANDS[j](
        normals(block_info[None]["chunk-location"], j, block_info[None]["chunk-shape"])
    )


def reduced(
    place: str, method: str, scheduler: str, asked: str, gigabytes: float, dimension: int
) -> dict[str, Any]:
    """Reduce the trace in this process and return the numbers and what they took."""
    jax.config.update("jax_enable_x64", True)
    largest, stop = [0], threading.Event()

    def watch() -> None:
        while not stop.wait(0.1):
            largest[0] = max(largest[0], private_megabytes(os.getpid()))

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    with ExitStack() as stack:
        SCHEDULERS[scheduler](stack)
        on_disk = place != "None"
        tree = (
            xarray.open_datatree(place, engine="zarr", consolidated=False, chunks={})
            if on_disk
            else generated(gigabytes, dimension)
        )
        found = QUESTIONS[asked](tree, sorted(map(str, tree["posterior"].data_vars)), method)
        seconds = time.perf_counter() - start
    stop.set()
    watcher.join()
    own, workers = (
        resource.getrusage(resource.RUSAGE_SELF),
        resource.getrusage(resource.RUSAGE_CHILDREN),
    )
    return {
        "asked": asked,
        "scheduler": scheduler,
        "draws": tree["posterior"].sizes["chain"] * tree["posterior"].sizes["draw"],
        "integrands": len(INTEGRANDS),
        "gain": float(np.median(found.gain)),
        "s": round(seconds, 1),
        "cpu s": round(own.ru_utime + own.ru_stime + workers.ru_utime + workers.ru_stime, 1),
        "private MB": largest[0],
        "resident MB": round(own.ru_maxrss / 1024),
        "status": ", ".join(sorted(set(map(str, found.status)))),
        "numbers": [*found.mean.tolist(), *found.mcse.tolist(), *found.gain.tolist()],
    }


QUESTIONS: dict[str, Callable[[xarray.DataTree, list[str], str], mp.Estimate]] = {
    "means": mp.expectation,
    "quantiles": lambda tree, names, method: mp.quantile(tree, [0.05, 0.5, 0.95], names, method),
    "spreads": mp.standard_deviation,
}


def threads(_: ExitStack) -> None:
    dask.config.set(scheduler="threads", num_workers=2)


def two_workers(stack: ExitStack) -> None:
    from distributed import Client, LocalCluster

    cluster = LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit="4GB"
    )
    stack.enter_context(Client(stack.enter_context(cluster)))


SCHEDULERS = {"threads": threads, "two workers": two_workers}


if __name__ == "__main__":
    main()
