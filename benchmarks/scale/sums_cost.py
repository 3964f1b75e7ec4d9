"""What sums over a trace in chunks cost, against its draws, parameters, quantities and workers.

    python -m benchmarks.scale.sums_cost

Independent normals and their scores, in 4 chains, and as quantities exponentials of half of some
coordinates: a Zarr folder with chunks of about 8 MB, whose expectations come from sums. One of the
four numbers is varied, and the others are those of the first row.

``CPU s`` : of all processes, for the sums and the estimates, without imports. ``client s`` : of the
    process that asks, the only one where there is one worker. ``reading s`` : CPU seconds of adding
    up all numbers of the folder, in the same way and without a sum of ours, the floor.
``s`` : by the wall clock. ``sums MB`` : of the sums, which is all that comes back from a worker.
"""

import json
import pickle
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import psutil
import xarray

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._table import emit

CHAINS, CHUNK = 4, 1 << 20
BASE = {"draws": 200_000, "parameters": 50, "quantities": 50, "workers": 1}
VARIED = {
    "draws": (50_000, 800_000),
    "parameters": (12, 200),
    "quantities": (5, 200),
    "workers": (2,),
}


def main() -> None:
    parser = Command(__doc__, quick="--draws 8000 --varied")
    parser.add_argument("--method", default="zv1")
    parser.add_argument("--draws", type=int, default=BASE["draws"], help="of the first row")
    parser.add_argument("--varied", nargs="*", choices=VARIED, default=list(VARIED))
    parser.add_argument("--one", nargs=2, metavar=("PLACE", "WORKERS"), help="of each process")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measured(args.one[0], int(args.one[1]), args.method)))
        return
    base = {**BASE, "draws": args.draws}
    cases = [("none", base)]
    cases += [(name, {**base, name: n}) for name in args.varied for n in VARIED[name]]
    rows: list[dict[str, Any]] = []
    for varied, case in cases:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            place = Path(folder) / "trace.zarr"
            # Written here, so that the process which is timed only reads.
            write(place, **{name: case[name] for name in ("draws", "parameters", "quantities")})
            command = [sys.executable, "-m", "benchmarks.scale.sums_cost", "--method", args.method]
            command += ["--one", str(place), str(case["workers"])]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            rows.append({"varied": varied} | case | json.loads(done.stdout.splitlines()[-1]))
            emit("sums_cost", TITLE, rows, final=False)
    emit("sums_cost", TITLE, rows, method=args.method)


TITLE = "Sums over a trace in chunks"


def write(place: Path, draws: int, parameters: int, quantities: int) -> None:
    """Write a trace of so many draws in all, chunk by chunk."""
    length = draws // CHAINS

    def array(number: int, width: int) -> da.Array:
        step = max(1, CHUNK // width)
        return da.random.default_rng(number).standard_normal(
            (CHAINS, length, width), chunks=(1, min(step, length), width)
        )

    normals = array(1, parameters)
    dims = ("chain", "draw", "unconstrained_parameter")
    # A quantity is of one coordinate; beyond their number, those of others of an equal law.
    known = array(2, max(quantities - parameters, 1))
    of = da.concatenate([normals, known], axis=2) if quantities > parameters else normals
    theta = da.exp(of[..., :quantities].rechunk((1, -1, quantities)) / 2)
    theta = theta.rechunk((1, max(1, CHUNK // quantities), quantities))
    stats = xarray.Dataset({"unconstrained_draw": (dims, normals), "gradient": (dims, -normals)})
    posterior = xarray.Dataset({"theta": (("chain", "draw", "quantity"), theta)})
    tree = xarray.DataTree.from_dict({"posterior": posterior, "sample_stats": stats})
    with dask.config.set(scheduler="threads"):
        tree.to_zarr(place, consolidated=False)


def measured(place: str, workers: int, method: str) -> dict[str, Any]:
    """Return what the expectations of a trace, and reading it, take in this process and its
    workers."""
    with ExitStack() as stack:
        if workers == 1:
            dask.config.set(scheduler="synchronous")
        else:
            from distributed import Client, LocalCluster

            cluster = LocalCluster(
                n_workers=workers, threads_per_worker=1, dashboard_address=None, memory_limit="4GB"
            )
            stack.enter_context(Client(stack.enter_context(cluster)))
        tree = xarray.open_datatree(place, engine="zarr", consolidated=False, chunks={})
        # Programs are compiled, and workers have imported the package, before anything is timed.
        mp.expectation(mp.moments(tree.isel(draw=slice(0, 4_000)), method=method))
        arrays = [*tree["posterior"].data_vars.values(), *tree["sample_stats"].data_vars.values()]
        before = seconds()
        dask.compute(*(array.data.sum() for array in arrays))
        reading, start, clock = seconds() - before, seconds(), time.perf_counter()
        own = time.process_time()
        sums = mp.moments(tree, method=method)
        mp.expectation(sums)
        client, took = time.process_time() - own, time.perf_counter() - clock
        return {
            "CPU s": round(seconds() - start, 2),
            "client s": round(client, 2),
            "reading s": round(reading, 2),
            "s": round(took, 2),
            "sums MB": round(len(pickle.dumps(sums)) / 1e6, 2),
        }


def seconds() -> float:
    """Return the CPU seconds until now of this process and of its workers, which are alive."""
    process = psutil.Process()
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(time.user + time.system for time in times)


if __name__ == "__main__":
    main()
