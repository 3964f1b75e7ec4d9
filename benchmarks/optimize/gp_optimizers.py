"""GP optimisers and probabilistic linear solvers against CG, BFGS and L-BFGS: iterations and
gradients.

    python -m benchmarks.optimize.gp_optimizers

Figures 2 and 3 of de Roos, Gessner and Hennig (ICML 2021). ``relaxed Rosenbrock``: 100-D, starts
N(0, I), largest gradient component below the tolerance. ``quadratic``: 100-D, the spectrum of F.1,
gradient norm relative to that at the start; linear solvers take the optimal step, one product each,
the others a line search. SciPy's methods use their own line searches. ``excess`` is the mean
difference in joint evaluations of value and gradient to L-BFGS of the same memory on the same
starts, or to CG among linear solvers, ``± `` its standard error; a target is met when excess − 2
standard errors ≤ 0. ``published`` has the prior mean γI in place of the L-BFGS matrix. The kernel's
default, Matérn-5/2 of lengthscale 0.8 last steps and window 2, was chosen on other starts.
"""

from collections.abc import Callable

import jax
import numpy as np
import scipy.optimize
import scipy.sparse.linalg

from benchmarks._command import Command
from benchmarks._replicate import generator
from benchmarks._table import emit
from mcmcpost.gp import GPH, GPX, minimize, solve_linear
from mcmcpost.gp.linear_solvers import MatrixBased, SolutionBased

D = 100
TOLERANCES = (1e-2, 1e-5)
type Run = Callable[[Callable, np.ndarray, float], tuple[int, int, bool]]


def relaxed_rosenbrock(x: np.ndarray) -> tuple[float, np.ndarray]:
    rise = x[1:] - x[:-1] ** 2
    gradient = np.zeros_like(x)
    gradient[:-1] = 2 * x[:-1] - 8 * rise * x[:-1]
    gradient[1:] += 4 * rise
    return float((x[:-1] ** 2).sum() + 2 * (rise**2).sum()), gradient


def quadratic(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return matrix, solution and start: F.1 with the factor (i − 1) that its print lost."""
    index = np.arange(1, D + 1)
    values = 0.5 + (index - 1) / (D - 1) * 99.5 * 0.6 ** (D - index)
    basis = np.linalg.qr(rng.standard_normal((D, D)))[0]
    return basis * values @ basis.T, rng.standard_normal(D) - 2, 5 * rng.standard_normal(D)


def _ours(method: GPX | GPH) -> Run:
    def run(fun: Callable, x0: np.ndarray, gtol: float) -> tuple[int, int, bool]:
        found = minimize(fun, x0, method=method, gtol=gtol)
        return found.nit, found.nfev, found.success

    return run


def _scipy(name: str, **options: float) -> Run:
    def run(fun: Callable, x0: np.ndarray, gtol: float) -> tuple[int, int, bool]:
        found = scipy.optimize.minimize(
            fun, x0, jac=True, method=name, options={"gtol": gtol, **options}
        )
        return found.nit, found.nfev, bool(np.abs(found.jac).max() <= gtol)

    return run


def methods() -> dict[tuple[str, int], Run]:
    """Return the general optimisers by name and memory (0: all)."""
    runs: dict[tuple[str, int], Run] = {("CG", 0): _scipy("CG"), ("BFGS", 0): _scipy("BFGS")}
    for memory in (2, 10):
        runs["L-BFGS", memory] = _scipy("L-BFGS-B", maxcor=memory, ftol=0.0)
        runs["GP-X", memory] = _ours(GPX(memory))
        runs["GP-H", memory] = _ours(GPH(memory))
        runs["GP-X published", memory] = _ours(GPX(memory, window=memory, quasi_newton=False))
        runs["GP-H published", memory] = _ours(GPH(memory, window=memory, quasi_newton=False))
    return runs


def _row(
    problem: str, tolerance: float, name: str, memory: int, found: np.ndarray, base: np.ndarray
) -> dict:
    excess = found[:, 1] - base[:, 1]
    error = excess.std(ddof=1) / np.sqrt(len(excess)) if len(excess) > 1 else float("nan")
    return {
        "problem": problem,
        "tolerance": tolerance,
        "method": name,
        "memory": "all" if memory == 0 else str(memory),
        "iterations": found[:, 0].mean(),
        "gradients": found[:, 1].mean(),
        "median": float(np.median(found[:, 1])),
        "excess": excess.mean(),
        "±": error,
        "failed": int((found[:, 2] == 0).sum()),
    }


def general(
    problem: str, cases: list[tuple[Callable, np.ndarray, float]], tolerance: float
) -> list[dict]:
    found = {
        key: np.array([run(fun, x0, tolerance * scale) for fun, x0, scale in cases], dtype=float)
        for key, run in methods().items()
    }
    return [
        _row(problem, tolerance, *key, runs, found["L-BFGS", key[1] or 10])
        for key, runs in found.items()
    ]


def linear(systems: list[tuple[np.ndarray, np.ndarray]], tolerance: float) -> list[dict]:
    beliefs = {
        "CG (linear)": None,
        "solution-based": SolutionBased(),
        "matrix-based": MatrixBased(),
        "solution-based, Λ = I": SolutionBased(False),
        "matrix-based, Λ = I": MatrixBased(False),
    }
    found = {}
    for name, belief in beliefs.items():
        runs = []
        for A, b in systems:
            if belief is None:
                steps = [0]
                _, info = scipy.sparse.linalg.cg(
                    A,
                    b,
                    rtol=tolerance,
                    callback=lambda _, steps=steps: steps.append(steps.pop() + 1),
                )
                runs.append((steps[0], steps[0], info == 0))
            else:
                solution = solve_linear(A, b, method=belief, rtol=tolerance)
                runs.append((solution.num_steps, solution.num_steps, solution.converged))
        found[name] = np.array(runs, dtype=float)
    return [
        _row("quadratic", tolerance, name, 0, runs, found["CG (linear)"])
        for name, runs in found.items()
    ]


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--starts 1")
    parser.add_argument("--starts", type=int, default=10)
    args = parser.parse_args()
    starts = [generator("relaxed rosenbrock", r).standard_normal(D) for r in range(args.starts)]
    problems = [quadratic(generator("quadratic", r)) for r in range(args.starts)]
    systems = [(A, A @ (solution - start)) for A, solution, start in problems]
    rows = []
    for tolerance in TOLERANCES:
        rows += general(
            "relaxed Rosenbrock", [(relaxed_rosenbrock, x0, 1.0) for x0 in starts], tolerance
        )
    for tolerance in TOLERANCES:
        rows += linear(systems, tolerance)
        bowls = [
            (lambda x, A=A, b=b: (x @ A @ x / 2 - b @ x, A @ x - b), np.zeros(D), np.abs(b).max())
            for A, b in systems
        ]
        rows += general("quadratic", bowls, tolerance)
    emit(
        "gp_optimizers",
        "GP optimisers: iterations and gradients",
        rows,
        starts=args.starts,
        dimension=D,
    )


if __name__ == "__main__":
    main()
