"""One step of the exact marginal likelihood: its inverse by LAPACK's potri and by triangular solves in XLA.

    taskset -c 0 python -m benchmarks.gp.exact_likelihood

Matérn-3/2 with ARD, d = 26, CPU seconds of the fastest of five calls. A step is the covariance, its inverse, and the
gradient in all 28 parameters. ``gemm`` is one product of two n×n matrices, the floor of a dense step.
"""

import argparse
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve

from benchmarks._table import emit
from benchmarks.linops.kernel_product import fastest
from mcmcpost.hyper import Adam, Softplus, maximise_exact_likelihood
from mcmcpost.kernels import Matern32, Scaled, gram
from mcmcpost.linsolve import invert

DIMENSION = 26


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 2_000, 4_000])
    emit("exact_likelihood", "CPU seconds of the exact likelihood", [row(n) for n in parser.parse_args().sizes])


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


if __name__ == "__main__":
    main()
