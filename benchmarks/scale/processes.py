"""Everything long in one process and in several of ``jax.distributed`` on this machine.

    python -m benchmarks.scale.processes --processes 1 2 4

A task runs once to compile and is timed the second time; the next starts when every process has
ended the last. ``s`` is the wall clock of process 0 and ``cpu s`` the largest CPU time of a
process. ``difference`` from one process is the largest absolute one, relative to the largest number
of the result. The aim: rounding.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from numpyro.infer import MCMC

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._table import emit
from mcmcpost.gp import IterativeGP
from mcmcpost.gp.marginal_likelihood import Pathwise
from mcmcpost.solve import ConjugateGradients

RNG = np.random.default_rng(0)
X = RNG.normal(size=(500, 20))
Y = (RNG.uniform(size=500) < 1 / (1 + np.exp(-X[:, 0]))).astype(float)


def main() -> None:
    parser = Command(__doc__, quick="--processes 1 2 --tasks scores stein_weights")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument(
        "--one",
        nargs=4,
        metavar=("FOLDER", "NUMBER", "RANK", "PORT"),
        help="what each process runs",
    )
    args = parser.parse_args()
    if args.one:
        one_process(Path(args.one[0]), *map(int, args.one[1:]), args.tasks)
        return
    with tempfile.TemporaryDirectory() as folder:
        found = {number: launch(Path(folder), number, args.tasks) for number in args.processes}
    rows = []
    for task in args.tasks:
        alone = found[args.processes[0]][0][task]
        for number, results in found.items():
            apart = (
                max(np.abs(result[task] - alone).max() for result in results) / np.abs(alone).max()
            )
            rows.append(
                {
                    "task": task,
                    "processes": number,
                    "s": float(results[0][f"{task} seconds"]),
                    "cpu s": max(float(result[f"{task} cpu"]) for result in results),
                    "difference": float(apart),
                }
            )
    emit("scale_processes", "everything long in several processes", rows)


def launch(folder: Path, number: int, tasks: list[str]) -> list[dict[str, np.ndarray]]:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    place = os.environ | {"JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1"}
    module = [
        sys.executable,
        "-m",
        "benchmarks.scale.processes",
        "--tasks",
        *tasks,
        "--one",
        str(folder),
        str(number),
    ]
    running = [
        subprocess.Popen([*module, str(rank), str(port)], env=place) for rank in range(number)
    ]
    codes = [process.wait() for process in running]
    if any(codes):
        raise SystemExit(f"one of {number} processes failed")
    return [dict(np.load(folder / f"{number}_{rank}.npz")) for rank in range(number)]


def one_process(folder: Path, number: int, rank: int, port: int, tasks: list[str]) -> None:
    if number > 1:
        jax.distributed.initialize(f"localhost:{port}", number, rank)
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore", mp.ScoreWarning)  # the draws are not those of the posterior
    found: dict[str, Any] = {}
    for name in tasks:
        TASKS[name]()
        multihost_utils.sync_global_devices(name)
        wall, cpu = time.perf_counter(), time.process_time()
        found[name] = np.asarray(TASKS[name]())
        found |= {
            f"{name} seconds": time.perf_counter() - wall,
            f"{name} cpu": time.process_time() - cpu,
        }
    np.savez(folder / f"{number}_{rank}.npz", **found)


def log_likelihood(x: jax.Array) -> jax.Array:
    scores = jnp.asarray(X) @ x
    return jnp.sum(jnp.asarray(Y) * scores - jnp.logaddexp(0.0, scores))


def log_prior(x: jax.Array) -> jax.Array:
    return -0.5 * jnp.sum(x**2) - 10 * jnp.log(2 * jnp.pi)


def prior_draw(key: jax.Array) -> jax.Array:
    return jax.random.normal(key, (20,))


def log_density(x: jax.Array) -> jax.Array:
    return log_likelihood(x) + log_prior(x)


def scores() -> Any:
    draws = 0.3 * np.random.default_rng(1).normal(size=(4, 10_000, 20))
    tree = mp.from_arrays(draws, -draws, allow_bad_scores=True)
    return mp.attach_scores(
        tree, logdensity_fn=log_density, allow_bad_scores=True
    ).sample_stats.gradient


def ladder(exchange: int | None) -> Any:
    tree = mp.sample_power_posteriors(
        log_likelihood=log_likelihood,
        log_prior=log_prior,
        sample_prior=prior_draw,
        temperatures=mp.power_ladder(16, 5),
        key=jax.random.key(0),
        num_warmup=150,
        num_samples=150,
        kernel=mp.HamiltonianKernel(num_steps=8),
        exchange=exchange,
    )
    return tree.sample_stats.log_likelihood_total


def gaussian_process() -> Any:
    rng = np.random.default_rng(2)
    points = rng.normal(size=(3_000, 4))
    y = np.sin(2 * points[:, 0]) + 0.3 * rng.normal(size=3_000)
    solver, estimator = ConjugateGradients(1e-6, 200, 100), Pathwise(16, 500)
    return (
        IterativeGP(solver=solver, estimator=estimator, num_steps=3)
        .fit(points, y)
        .predict(points[:100])
        .mean
    )


def weights() -> Any:
    draws = np.random.default_rng(3).normal(size=(4, 2_000, 5))
    return mp.stein_weights(
        mp.from_arrays(draws, -draws), method=mp.ControlFunctional(budget=20)
    ).values


def expectation() -> Any:
    draws = np.random.default_rng(3).normal(size=(4, 2_000, 5))
    values = np.stack([np.cos(draws[..., 0]), np.exp(draws[..., 1] / 2)], axis=-1)
    estimate = mp.expectation(
        mp.from_arrays(draws, -draws), values, mp.ControlFunctional(budget=20)
    )
    return np.concatenate([estimate.mean, estimate.mcse])


def surrogate() -> Any:
    kernel = mp.SurrogateHMC(potential_fn=lambda x: -log_density(x))
    mcmc = MCMC(
        kernel,
        num_warmup=300,
        num_samples=200,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(4), init_params=jnp.zeros((4, 20)))
    return mcmc.get_samples(group_by_chain=True)


TASKS: dict[str, Callable[[], Any]] = {
    "scores": scores,
    "ladder": lambda: ladder(None),
    "ladder, exchange": lambda: ladder(5),
    "IterativeGP": gaussian_process,
    "stein_weights": weights,
    "expectation": expectation,
    "SurrogateHMC": surrogate,
}


if __name__ == "__main__":
    main()
