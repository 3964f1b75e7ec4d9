"""Seconds and memory of vector-valued fits: against a NumPy prototype in the same run, many tasks,
shared draws.

    python -m benchmarks.control.vector_valued_speed

``joint`` is one call of `joint_expectation` on the borehole after a first one has compiled: tuning
from three starts, the fit, and its eight folds, without the guard; ``with guard`` adds each task's
own fit. The prototype, where it is present beside the repository, tunes from three starts too and
fits once. The authors' code (torch) took 2.1, 3.0 and 21 s at m = 10, 20 and 50 on another machine.
``62 tasks`` are 31 tempered normals with two integrands each, all in one system of 6,200 rows.
``shared`` are ten integrands at the same 2,000 draws.
"""

import importlib.util
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._replicate import generator
from benchmarks._table import emit
from benchmarks.control._vector_valued_problems import borehole
from benchmarks.control.vector_valued import joint
from models import borehole as model

PROTOTYPE = Path(__file__).parents[3] / "shared" / "prototypes" / "vector_valued_cv.py"
AUTHORS = {10: 2.1, 20: 3.0, 50: 21.0}
SQUARED_LENGTHSCALES = (30.0, 100.0, 1000.0)


def run_borehole(repeats: int) -> None:
    prototype = _prototype()
    rows = []
    for m in (10, 20, 50, 100, 150):
        plain = joint(mp.VectorValued(guard=False), standardize=(model.MEAN, model.SD))
        guarded = joint(mp.VectorValued(), standardize=(model.MEAN, model.SD))
        tasks = [borehole(generator("borehole", r), m, m) for r in range(repeats + 1)]
        first = _seconds(lambda plain=plain, tasks=tasks: plain(tasks[0]))
        ours = np.median([_seconds(lambda t=t, plain=plain: plain(t)) for t in tasks[1:]])
        guarded(tasks[0])
        with_guard = np.median(
            [_seconds(lambda t=t, guarded=guarded: guarded(t)) for t in tasks[1:]]
        )
        theirs = (
            np.median([_seconds(lambda t=t: _fit_prototype(prototype, t)) for t in tasks[1:]])
            if prototype
            else ""
        )
        rows.append(
            {
                "m": m,
                "joint s": ours,
                "with guard s": with_guard,
                "first call s": first,
                "prototype s": theirs,
                "prototype/joint": theirs / ours if prototype else "",
                "authors s": AUTHORS.get(m, ""),
                "authors/joint": AUTHORS[m] / ours if m in AUTHORS else "",
            }
        )
    emit(
        "vector_valued_speed",
        "Borehole: seconds a fit, two tasks of m draws",
        rows,
        repeats=repeats,
    )


def _prototype():
    if not PROTOTYPE.exists():
        return None
    spec = importlib.util.spec_from_file_location("vector_valued_cv", PROTOTYPE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _fit_prototype(prototype, tasks) -> None:
    points = [(task.draws[0] - model.MEAN) / model.SD for task in tasks.values()]
    values = [task.values[0] for task in tasks.values()]
    for start in SQUARED_LENGTHSCALES:
        for nugget in (1e-8, 1e-7, 1e-6):
            with np.errstate(all="ignore"):
                options = {"use_w": False, "prior": False, "nug": nugget, "nu0": start}
                if prototype.fit_reml(points, [-z for z in points], values, **options) is not None:
                    break


def _seconds(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def many_tasks(solver: str) -> dict:
    rng = generator("62 tasks", 0)
    tasks = {}
    for i in range(31):
        precision = 0.2 + i / 30
        x = rng.normal(size=(1, 100, 1)) / np.sqrt(precision)
        values = np.concatenate([np.cos(x) + 0.1 * x**3, np.exp(0.3 * x)], axis=-1)
        tasks[f"rung {i}"] = (
            mp.from_arrays(x, -precision * x, values=values, allow_bad_scores=True),
            None,
        )
    truths = np.array([[np.exp(-1 / (2 * p)), np.exp(0.045 / p)] for p in 0.2 + np.arange(31) / 30])
    method = mp.VectorValued(
        guard=False, solver=mp.ConjugateGradients(1e-4, 100, 600) if solver == "cg" else None
    )
    first = _seconds(lambda: mp.joint_expectation(tasks, method, allow_bad_scores=True))
    start = time.perf_counter()
    found = mp.joint_expectation(tasks, method, allow_bad_scores=True)
    warm = time.perf_counter() - start
    mean = np.array([part.mean for part in found.values()])
    plain = np.array([part.mean_plain for part in found.values()])
    z = (mean - truths) / np.array([part.mcse for part in found.values()])
    ratio = np.sqrt(np.mean((mean - truths) ** 2) / np.mean((plain - truths) ** 2))
    statuses = {str(s) for part in found.values() for s in part.status}
    return {
        "first s": first,
        "warm s": warm,
        "rmse/plain": ratio,
        "mean z²": np.mean(z**2),
        "status": " ".join(statuses),
    }


def shared_draws(guard: bool) -> dict:
    rng = generator("shared draws", 0)
    x = rng.normal(size=(4, 500, 8))
    shifts = np.linspace(0, 1, 10)
    values = np.stack(
        [np.sin(x[..., 0] + s) + 0.1 * x[..., 1] ** 2 * x[..., 2] for s in shifts], axis=-1
    )
    truths = np.sin(shifts) * np.exp(-0.5)
    tree = mp.from_arrays(x, -x, values=values)
    method = mp.VectorValued(guard=guard)
    first = _seconds(lambda: mp.expectation(tree, method=method))
    start = time.perf_counter()
    found = mp.expectation(tree, method=method)
    warm = time.perf_counter() - start
    ratio = np.sqrt(np.mean((found.mean - truths) ** 2) / np.mean((found.mean_plain - truths) ** 2))
    z = (found.mean - truths) / found.mcse
    statuses = {str(s) for s in found.status}
    return {
        "first s": first,
        "warm s": warm,
        "rmse/plain": ratio,
        "mean z²": np.mean(z**2),
        "status": " ".join(statuses),
    }


LARGE = {
    "62 tasks × 100 draws, Cholesky": lambda: many_tasks("cholesky"),
    "62 tasks × 100 draws, conjugate gradients": lambda: many_tasks("cg"),
    "10 tasks sharing 2,000 draws": lambda: shared_draws(False),
    "10 tasks sharing 2,000 draws, with guard": lambda: shared_draws(True),
}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--tables borehole --repeats 1")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--one", choices=LARGE, help="run one large case in this process and print a JSON line"
    )
    parser.add_argument("--tables", nargs="+", default=["borehole", "large"])
    args = parser.parse_args()
    if args.one:
        base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        row = LARGE[args.one]()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        print(json.dumps(row | {"peak GB": peak, "base GB": base}))
        return
    if "borehole" in args.tables:
        run_borehole(args.repeats)
    if "large" in args.tables:
        rows = []
        for case in LARGE:
            command = [
                sys.executable,
                "-m",
                "benchmarks.control.vector_valued_speed",
                "--one",
                case,
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.append({"case": case} | json.loads(done.stdout.strip().splitlines()[-1]))
            print(f"{case} done", file=sys.stderr, flush=True)
        emit(
            "vector_valued_large",
            "Many tasks in one system, and tasks that share their draws",
            rows,
        )


if __name__ == "__main__":
    main()
