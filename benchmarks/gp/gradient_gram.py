"""Solves of the gradient Gram system: seconds and memory of every solver, and of the automatic
rule.

    python -m benchmarks.gp.gradient_gram
    python -m benchmarks.gp.gradient_gram --peers /path/to/python        # with torch and gpytorch

Squared exponential, ℓ² = d, points N(0, I) or a random walk, gradients of the relaxed Rosenbrock
function, noise 1e-6, relative residual 1e-6, marked ``*`` where it was not reached. ``-`` is a
system whose work arrays exceed 4 GB (or ``--max-order``), or whose solver would need more than the
time limit. Milliseconds are the least of the repeats after compilation, the solvers of a row in
turn; MB is what XLA's program allocates. ``ratio`` is the automatic rule's time over the best of
the row's solvers of ours; ``GPyTorch`` is a Cholesky solve with its RBFKernelGrad. The second table
is the paper's Figure 4: uniform points in [−2, 2]^100, ℓ² = 10·100, matrix-free; a product beside
one product of two 1000 × 1000 float32 matrices.
"""

import argparse
import json
import subprocess
import tempfile
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks._command import Command
from benchmarks._replicate import generator
from benchmarks._table import emit
from benchmarks.gp._woodbury import Woodbury
from mcmcpost.gp import Automatic
from mcmcpost.gp.gradient_operator import gradient_gram, scalar_profile
from mcmcpost.gp.gradient_solvers import (
    AbstractGradientSolver,
    DenseCholesky,
    GradientCG,
    ProjectedCholesky,
)
from mcmcpost.stein import SquaredExponential

RTOL = 1e-6
SOLVERS: dict[str, AbstractGradientSolver] = {
    "dense": DenseCholesky(),
    "Woodbury": Woodbury(),
    "projected": ProjectedCholesky(),
    "PCG": GradientCG(RTOL, 2000, precondition=True),
    "proj. CG": GradientCG(RTOL, 2000, precondition=False),
    "CG": GradientCG(RTOL, 2000, project=False, precondition=False),
}


def slopes(x: np.ndarray) -> np.ndarray:
    """Return the gradients of the relaxed Rosenbrock function at rows (n, d)."""
    rise = x[:, 1:] - x[:, :-1] ** 2
    gradient = np.zeros_like(x)
    gradient[:, :-1] = 2 * x[:, :-1] - 8 * rise * x[:, :-1]
    gradient[:, 1:] += 4 * rise
    return gradient


class Timed:
    """A compiled solve of one system, Gram's terms included: the seconds of its calls and what its
    solution says."""

    def __init__(
        self, solver: AbstractGradientSolver, X: np.ndarray, lengthscale: float, noise: float
    ) -> None:
        profile = scalar_profile("benchmark", SquaredExponential(lengthscale))
        solver.check(profile, *X.shape, False)

        def solve(points: jax.Array, right: jax.Array) -> Any:
            gram = gradient_gram(profile, points, jnp.asarray(noise))
            return eqx.filter(solver.solve(gram, right), eqx.is_array)

        self._data = (
            jnp.asarray((X - X.mean(axis=0)) / lengthscale),
            jnp.asarray(slopes(X) * lengthscale),
        )
        self._program = jax.jit(solve).lower(*self._data).compile()
        memory = self._program.memory_analysis()
        self.megabytes = (
            memory.temp_size_in_bytes + memory.argument_size_in_bytes + memory.output_size_in_bytes
        ) / 1e6
        self.taken: list[float] = []
        self.solution = self.call()

    def call(self) -> Any:
        start = time.perf_counter()
        solution = jax.block_until_ready(self._program(*self._data))
        self.taken.append(time.perf_counter() - start)
        return solution

    @property
    def seconds(self) -> float:
        return min(self.taken)

    @property
    def converged(self) -> bool:
        return bool(self.solution.converged)


def in_turn(solves: list[Timed], repeats: int) -> None:
    """Time every solve in turn, so that a slow moment of the machine falls on all of them alike."""
    for _ in range(repeats - 1):
        for solve in solves:
            if sum(solve.taken) < 1:
                solve.call()


def automatic(
    runs: dict[str, Timed], X: np.ndarray, lengthscale: float, noise: float
) -> list[Timed]:
    """Return what the automatic rule runs: its choice, and its way out where iterations did not
    converge.

    A program among `runs` is not compiled and timed a second time.
    """
    profile = scalar_profile("benchmark", SquaredExponential(lengthscale))
    chosen = Automatic(rtol=RTOL).choose(profile.stationary, *X.shape, with_values=False)
    if isinstance(chosen, ProjectedCholesky):
        return [runs["projected"]]
    first = Timed(chosen, X, lengthscale, noise)
    return [first] if first.converged or "projected" not in runs else [first, runs["projected"]]


def gpytorch_solve(
    interpreter: str, X: np.ndarray, lengthscale: float, noise: float, repeats: int
) -> dict[str, float]:
    """Return seconds and residual of the same system by GPyTorch, whose noise is that of an
    unscaled gradient."""
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        np.savez(file, X=X, G=slopes(X), lengthscale=lengthscale, noise=noise / lengthscale**2)
        file.flush()
        command = [interpreter, "-m", "benchmarks.gp._gradient_peers", file.name, str(repeats)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def clouds(kind: str, n: int, d: int) -> np.ndarray:
    """Return well-spread points N(0, I) or a random walk of steps 0.15, as a trajectory leaves
    them."""
    steps = generator(f"gradient gram {kind}", n * 10_000 + d).standard_normal((n, d))
    return steps if kind == "spread" else np.cumsum(0.15 * steps, axis=0)


def grid(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    slow: dict[str, float] = {}
    for kind in args.kinds:
        for n in args.points:
            for d in args.dimensions:
                rows.append(_row(kind, n, d, args, slow))
                print(
                    {key: cell for key, cell in rows[-1].items() if not key.endswith("MB")},
                    flush=True,
                )
    return rows


def _row(
    kind: str, n: int, d: int, args: argparse.Namespace, slow: dict[str, float]
) -> dict[str, Any]:
    X = clouds(kind, n, d)
    row: dict[str, Any] = {"points": kind, "d": d, "N": n}
    orders = {"dense": n * d, "Woodbury": n * n, "projected": n * min(d, n - 1)}
    system = X, np.sqrt(d), 1e-6
    timed: dict[str, Timed] = {}
    for name, solver in SOLVERS.items():
        order = orders.get(name, 0)
        if order <= args.max_order and order < slow.get(name, np.inf):
            timed[name] = Timed(solver, *system)
            if timed[name].seconds > args.limit / 8:  # twice the order takes eight times as long
                slow[name] = 2 * order
    runs = {name: [solve] for name, solve in timed.items()} | {
        "automatic": automatic(timed, *system)
    }
    in_turn(
        list({id(solve): solve for parts in runs.values() for solve in parts}.values()),
        args.repeats,
    )
    times = {}
    for name in [*SOLVERS, "automatic"]:
        if name not in runs:
            row |= {f"{name} ms": "-", f"{name} MB": "-"}
            continue
        seconds, converged = sum(part.seconds for part in runs[name]), runs[name][-1].converged
        row[f"{name} ms"] = f"{1e3 * seconds:.3g}{'' if converged else '*'}"
        row[f"{name} MB"] = f"{max(part.megabytes for part in runs[name]):.3g}"
        if converged:
            times[name] = seconds
    if args.peers and n * d <= args.max_order:
        peer = gpytorch_solve(args.peers, X, np.sqrt(d), 1e-6, args.repeats)
        row["GPyTorch ms"] = f"{1e3 * peer['seconds']:.3g}{'' if peer['residual'] < RTOL else '*'}"
    elif args.peers:
        row["GPyTorch ms"] = "-"
    row["best"] = min(
        (name for name in times if name != "automatic"), key=times.__getitem__, default="-"
    )
    row["ratio"] = times.get("automatic", np.nan) / times.get(row["best"], np.nan)
    return row


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
        solve = Timed(SOLVERS[name], X, np.sqrt(1000.0), 0.0)
        in_turn([solve], repeats)
        products = int(solve.solution.num_products)
        row = {
            "solver": name,
            "seconds": solve.seconds,
            "MB": solve.megabytes,
            "products": products,
        }
        row |= {"residual": float(solve.solution.residual), "converged": solve.converged}
        rows.append(row | {"sgemms per product": solve.seconds / products / min(taken)})
    return rows


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(
        __doc__, quick="--dimensions 10 100 --points 5 20 --kinds spread --repeats 10 --name _quick"
    )
    parser.add_argument("--dimensions", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--points", type=int, nargs="+", default=[5, 10, 20, 50, 200])
    parser.add_argument(
        "--kinds", nargs="+", choices=["spread", "trajectory"], default=["spread", "trajectory"]
    )
    parser.add_argument("--limit", type=float, default=60.0, help="seconds per solve")
    parser.add_argument(
        "--max-order",
        type=int,
        default=12_900,
        help="of a factorised matrix; 12,900 is 4 GB of work",
    )
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--peers", default=None, help="an interpreter with torch and gpytorch")
    parser.add_argument(
        "--name", default="", help="added to the name of the JSON file; leaves out the second table"
    )
    args = parser.parse_args()
    rows = grid(args)
    settings = {
        "rtol": RTOL,
        "limit": args.limit,
        "max_order": args.max_order,
        "not_converged": "*",
    }
    emit("gradient_gram" + args.name, "Gradient Gram solves", rows, **settings)
    if not args.name:
        emit(
            "gradient_gram_matrix_free", "N = 1000, d = 100, matrix-free", figure_four(1), rtol=RTOL
        )


if __name__ == "__main__":
    main()
