"""Solves of the gradient Gram system: seconds and memory of every solver, and of the automatic rule.

    python -m benchmarks.gradient_gram

Squared exponential, ℓ² = d, points N(0, I), gradients of the relaxed Rosenbrock function, noise 1e-6, relative residual
1e-6. ``-`` is a system whose work arrays exceed 4 GB, or whose solver has needed more than the time limit on a smaller
one. Seconds are medians after compilation; MB is what XLA's program allocates. ``ratio`` is the automatic rule's time
over the best of the row. The last row is the paper's Figure 4: uniform points in [−2, 2]^100, ℓ² = 10·100, matrix-free,
beside one product of two 1000 × 1000 matrices.
"""

import argparse
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._replicate import generator
from benchmarks._table import emit
from mcmcpost.gp import (
    AbstractGradientSolver,
    Automatic,
    DenseCholesky,
    GradientCG,
    ProjectedCholesky,
    Woodbury,
    gradient_gram,
    scalar_profile,
)
from mcmcpost.kernels import SquaredExponential

RTOL = 1e-6
SOLVERS: dict[str, AbstractGradientSolver] = {
    "dense": DenseCholesky(),
    "Woodbury": Woodbury(),
    "projected": ProjectedCholesky(),
    "PCG": GradientCG(RTOL, 2000),
    "proj. CG": GradientCG(RTOL, 2000, precondition=False),
    "CG": GradientCG(RTOL, 2000, project=False, precondition=False),
    "automatic": Automatic(rtol=RTOL),
}


def slopes(x: np.ndarray) -> np.ndarray:
    """Return the gradients of the relaxed Rosenbrock function at rows (n, d)."""
    rise = x[:, 1:] - x[:, :-1] ** 2
    gradient = np.zeros_like(x)
    gradient[:, :-1] = 2 * x[:, :-1] - 8 * rise * x[:, :-1]
    gradient[:, 1:] += 4 * rise
    return gradient


def measure(
    solver: AbstractGradientSolver, X: np.ndarray, lengthscale: float, noise: float, repeats: int
) -> dict[str, Any]:
    """Return seconds, megabytes, products made and the residual of one solve, the Gram's terms included."""
    profile = scalar_profile("benchmark", SquaredExponential(lengthscale))
    solver.check(profile, *X.shape, False)

    def solve(points: jax.Array, right: jax.Array) -> Any:
        gram = gradient_gram(profile, points, jnp.asarray(noise))
        return eqx.filter(solver.solve(gram, right), eqx.is_array)

    data = jnp.asarray((X - X.mean(axis=0)) / lengthscale), jnp.asarray(slopes(X) * lengthscale)
    program = jax.jit(solve).lower(*data).compile()
    memory = program.memory_analysis()
    taken = []
    while len(taken) < repeats and sum(taken) < 2:
        start = time.perf_counter()
        solution = jax.block_until_ready(program(*data))
        taken.append(time.perf_counter() - start)
    return {
        "seconds": float(np.median(taken)),
        "MB": (memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes) / 1e6,
        "products": int(solution.num_products),
        "residual": float(solution.residual),
        "converged": bool(solution.converged),
    }


def grid(dimensions: list[int], points: list[int], limit: float, max_order: int, repeats: int) -> list[dict[str, Any]]:
    rows, slow = [], {}
    for n in points:
        for d in dimensions:
            X = generator("gradient gram", n * 10_000 + d).standard_normal((n, d))
            row: dict[str, Any] = {"d": d, "N": n}
            times = {}
            orders = {"dense": n * d, "Woodbury": n * n, "projected": n * min(d, n - 1)}
            for name, solver in SOLVERS.items():
                order = orders.get(name, 0)
                try:
                    if order > max_order or order >= slow.get(name, np.inf):
                        raise MemoryError
                    found = measure(solver, X, np.sqrt(d), 1e-6, repeats)
                except MemoryError:
                    row[f"{name} ms"] = row[f"{name} MB"] = "-"
                    continue
                if found["seconds"] > limit / 8:  # the next size takes eight times as long
                    slow[name] = 2 * order
                if found["converged"]:
                    times[name] = found["seconds"]
                row[f"{name} ms"] = f"{1e3 * found['seconds']:.3g}" + ("" if found["converged"] else "*")
                row[f"{name} MB"] = f"{found['MB']:.3g}"
            row["best"] = min((name for name in times if name != "automatic"), key=times.__getitem__)
            row["ratio"] = times.get("automatic", np.nan) / times[row["best"]]
            rows.append(row)
            print({key: row[key] for key in row if not key.endswith("MB")}, flush=True)
    return rows


def figure_four(repeats: int) -> list[dict[str, Any]]:
    X = generator("figure 4", 0).uniform(-2, 2, (1000, 100))
    square = jnp.asarray(generator("sgemm", 0).standard_normal((1000, 1000)), jnp.float32)
    multiply = jax.jit(lambda a: a @ a).lower(square).compile()
    taken = []
    for _ in range(10):
        start = time.perf_counter()
        jax.block_until_ready(multiply(square))
        taken.append(time.perf_counter() - start)
    rows = []
    for name in ("CG", "PCG"):
        found = measure(SOLVERS[name], X, np.sqrt(1000.0), 0.0, repeats)
        rows.append({"solver": name, **found, "sgemms per product": found["seconds"] / found["products"] / min(taken)})
    return rows


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--points", type=int, nargs="+", default=[5, 10, 20, 50, 200])
    parser.add_argument("--limit", type=float, default=60.0, help="seconds per solve")
    parser.add_argument("--max-order", type=int, default=12_900, help="of a factorised matrix; 12,900 is 4 GB of work")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    rows = grid(args.dimensions, args.points, args.limit, args.max_order, args.repeats)
    settings = {"rtol": RTOL, "limit": args.limit, "max_order": args.max_order, "not_converged": "*"}
    emit("gradient_gram", "Gradient Gram solves", rows, **settings)
    emit("gradient_gram_matrix_free", "N = 1000, d = 100, matrix-free", figure_four(1), rtol=RTOL)


if __name__ == "__main__":
    main()
