"""One step of the exact marginal likelihood: its inverse by LAPACK's potri and by triangular solves
in XLA.

    taskset -c 0 python -m benchmarks.gp.exact_likelihood
    python -m benchmarks.gp.exact_likelihood --threads --sizes 500 1000 2000
    python -m benchmarks.gp.exact_likelihood --fit --sizes 2000

Matérn-3/2 with ARD, d = 26, CPU seconds of the fastest of five calls. A step is the covariance, its
inverse, and the gradient in all 28 parameters. ``gemm`` is one product of two n×n matrices, the
floor of a dense step. ``--threads`` is LAPACK's inverse, the mean of five calls, on one thread and
on one a core, alone and beside as many busy processes as there are cores. ``--fit`` is a whole fit
to 20 columns and a smooth function with almost no noise, its solver chosen by `IterativeGP`; its
aim is 40 s on two cores.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.scipy.linalg import cho_solve
from threadpoolctl import threadpool_limits

from benchmarks._command import Command
from benchmarks._table import emit
from benchmarks.linops.kernel_product import fastest
from mcmcpost.gp import IterativeGP
from mcmcpost.gp.marginal_likelihood import maximise_exact_likelihood
from mcmcpost.solve import invert
from mcmcpost.solve.search import Adam, Softplus
from mcmcpost.stein import Matern32, Scaled, gram

DIMENSION = 26


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--sizes 500 1000")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 2_000, 4_000])
    parser.add_argument(
        "--threads", action="store_true", help="LAPACK's inverse on one thread and on several"
    )
    parser.add_argument("--fit", action="store_true", help="a whole fit to nearly noise-free rows")
    args = parser.parse_args()
    if args.threads:
        rows = [found for busy in (False, True) for found in on_threads(args.sizes, busy)]
        emit("exact_likelihood_threads", "LAPACK's inverse on one thread and on several", rows)
    elif args.fit:
        emit(
            "exact_likelihood_fit",
            "a whole fit to nearly noise-free rows",
            [whole_fit(n) for n in args.sizes],
        )
    else:
        emit(
            "exact_likelihood", "CPU seconds of the exact likelihood", [row(n) for n in args.sizes]
        )


def row(n: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n, DIMENSION)), rng.normal(size=n)
    kernel = Scaled(1.0, Matern32(np.full(DIMENSION, 3.0)))
    matrix = gram(kernel, jnp.asarray(X)) + jnp.eye(n)
    dense = np.asarray(matrix)

    @jax.jit
    def by_solves(matrix: jax.Array) -> jax.Array:
        return cho_solve((jnp.linalg.cholesky(matrix), True), jnp.eye(n))

    def two_steps() -> None:  # the loss at the start, and after one step
        maximise_exact_likelihood(kernel, 1.0, X, y, scale=Softplus(), optimiser=Adam(max_steps=1))

    found = {
        "step": fastest(two_steps, time.process_time) / 2,
        "inverse": fastest(lambda: invert(matrix), time.process_time),
        "by solves": fastest(lambda: by_solves(matrix), time.process_time),
        "gemm": fastest(lambda: dense @ dense, time.process_time),
    }
    return {"n": n} | found | {"by solves / inverse": found["by solves"] / found["inverse"]}


def on_threads(sizes: list[int], busy: bool) -> list[dict[str, Any]]:
    cores, rows = len(os.sched_getaffinity(0)), []
    with busy_processes(cores if busy else 0):
        for n in sizes:
            matrix = np.eye(n) + 0.1 * np.cov(np.random.default_rng(0).normal(size=(n, n)))
            found = {"machine": "busy" if busy else "quiet", "n": n}
            for threads in (1, cores):
                with threadpool_limits(threads, "blas"):
                    seconds, cpu = mean_of_five(lambda matrix=matrix: inverse(matrix))
                found |= {f"s on {threads}": seconds, f"cpu s on {threads}": cpu}
            rows.append(found)
    return rows


def inverse(matrix: np.ndarray) -> np.ndarray:
    potrf, potri = scipy.linalg.get_lapack_funcs(("potrf", "potri"), (matrix,))
    return potri(potrf(matrix.T, lower=1)[0], lower=1, overwrite_c=1)[0]


def mean_of_five(call: Callable[[], object]) -> tuple[float, float]:
    call()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(5):
        call()
    return (time.perf_counter() - wall) / 5, (time.process_time() - cpu) / 5


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    others = [
        multiprocessing.get_context("spawn").Process(target=spin, daemon=True) for _ in range(count)
    ]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.terminate()


def spin() -> None:
    while True:
        pass


def whole_fit(n: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(n, 20))
    y = np.sin(2 * X[:, 0]) + np.cos(X).sum(axis=1) + 1e-4 * rng.normal(size=n)
    wall, cpu = time.perf_counter(), time.process_time()
    fitted = IterativeGP().fit(X, y)
    return {
        "n": n,
        "solver": fitted.info["solver"],
        "outcome": fitted.info["outcome"],
        "evaluations": len(fitted.info["history"]["value"]),
        "log likelihood": fitted.info["history"]["value"][-1],
        "s": time.perf_counter() - wall,
        "cpu s": time.process_time() - cpu,
    }


if __name__ == "__main__":
    main()
