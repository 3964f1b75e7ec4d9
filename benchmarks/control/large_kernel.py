"""Control functionals on many draws: seconds, peak memory and error, dense and by conjugate
gradients.

    python -m benchmarks.control.large_kernel

One subprocess per row, so that peak memory is the row's own; ``base GB`` is what the process held
before the solve. Gaussian: f = x₁ + x₁x₂ + exp(x₃/2) under N(0, I₁₀), mean e^{1/8}, m = 4,000; R's
ZVCV takes 125 s for an exact fit. Bananas: four independent 2-D bananas, inverse multiquadric of
lengthscale 4; a dense fit of 20,000 draws would take 6.4 GB and about 165 s. ``weights`` solves
once (`stein_weights`); ``expectation`` solves with every fold left out as well. ``first s``
includes compilation, ``warm s`` is a second call. The Gaussian's kernel is tuned by restricted
likelihood inside the time.
"""

import json
import resource
import subprocess
import sys
import time

import jax
import numpy as np

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._replicate import generator
from benchmarks._table import emit
from mcmcpost.stein import InverseMultiquadric

CASES = {
    "gaussian 4000 dense weights": ("gaussian", 4_000, "dense", "weights"),
    "gaussian 4000 dense expectation": ("gaussian", 4_000, "dense", "expectation"),
    "bananas 4000 dense weights": ("bananas", 4_000, "dense", "weights"),
    "bananas 4000 cg weights": ("bananas", 4_000, "cg", "weights"),
    "bananas 4000 dense expectation": ("bananas", 4_000, "dense", "expectation"),
    "bananas 4000 cg expectation": ("bananas", 4_000, "cg", "expectation"),
    "bananas 10000 cg weights": ("bananas", 10_000, "cg", "weights"),
    "bananas 20000 cg weights": ("bananas", 20_000, "cg", "weights"),
    "bananas 20000 cg expectation": ("bananas", 20_000, "cg", "expectation"),
}
BEND = 0.5
RIDGE = 1e-2
"""The prototype's absolute nugget, made relative by mean k₀(x, x) = d/ℓ² + E‖score‖² = 0.5 + 12."""
MAX_STEPS = 30
"""The estimate settles after 10 to 20 products, long before the residual does (docs/mathematics.md
section 5)."""
NUGGET = RIDGE / 12.5


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(
        __doc__, quick="--cases 'bananas 4000 dense weights' 'bananas 4000 cg weights'"
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--max-steps", type=int, default=MAX_STEPS, help="products of conjugate gradients"
    )
    parser.add_argument("--timeout", type=float, default=600, help="seconds per case")
    parser.add_argument(
        "--one", choices=CASES, help="run one case in this process and print a JSON line"
    )
    args = parser.parse_args()
    if args.one:
        print(json.dumps(_run(*CASES[args.one], args.seed, args.max_steps)))
        return
    rows = []
    for case in args.cases:
        command = [sys.executable, "-m", "benchmarks.control.large_kernel", "--one", case]
        command += ["--seed", str(args.seed), "--max-steps", str(args.max_steps)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=args.timeout, check=True
            )
            rows.append(json.loads(done.stdout.splitlines()[-1]))
        except subprocess.TimeoutExpired:
            print(f"{case}: not finished in {args.timeout:.0f} s", file=sys.stderr)
        print(case, "done", file=sys.stderr, flush=True)
        emit(
            "large_kernel",
            "Large control functionals",
            rows,
            final=case == args.cases[-1],
            seed=args.seed,
            max_steps=args.max_steps,
            nugget=NUGGET,
        )


def _gaussian(m: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    x = generator("large gaussian", seed).standard_normal((m, 10))
    return x, -x, x[:, 0] + x[:, 0] * x[:, 1] + np.exp(x[:, 2] / 2), float(np.exp(1 / 8))


def bananas(m: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    z, e = generator("large bananas", seed).standard_normal((2, m, 4))
    x = np.concatenate([z, BEND * (z * z - 1) + e], 1)
    scores = np.concatenate([2 * BEND * z * e - z, -e], 1)
    f = np.cos(z).mean(1) + 0.2 * np.sin(x[:, 0] * x[:, 5]) + 0.1 * (x[:, 4:] ** 2).mean(1)
    return x, scores, f, float(np.exp(-0.5) + 0.1 * (1 + 2 * BEND**2))


def _run(target: str, m: int, solver: str, what: str, seed: int, max_steps: int) -> dict:
    x, scores, f, truth = (_gaussian if target == "gaussian" else bananas)(m, seed)
    draws, scores, values = (a.reshape(4, m // 4, -1) for a in (x, scores, f))
    tree = mp.from_arrays(draws, scores)
    solve = (
        mp.Cholesky()
        if solver == "dense"
        else mp.ConjugateGradients(rtol=1e-3, budget=max_steps, rank=300)
    )
    method, moments = mp.ControlFunctional(solver=solve), None
    if target == "bananas":
        method = mp.ControlFunctional(kernel=InverseMultiquadric(4.0), nugget=NUGGET, solver=solve)
        moments = (0.0, 1.0)
    arguments = (tree, values, method, what, moments)
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    (estimate, mcse, gain, products, status), first, _ = _timed(*arguments)
    _, warm, cpu = _timed(*arguments)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    unit = _cholesky_seconds(m) if m <= 4_000 else ""
    return {
        "target": target,
        "m": m,
        "d": x.shape[1],
        "solver": solver,
        "call": what,
        "first s": first,
        "warm s": warm,
        "cpu s": cpu,
        "peak GB": peak,
        "base GB": base,
        "m×m GB": 8e-9 * m * m,
        "products": products,
        "error": estimate - truth,
        "plain error": f.mean() - truth,
        "mcse": mcse,
        "gain": gain,
        "status": status,
        "cholesky s": unit,
        "warm/cholesky": warm / unit if unit else "",
    }


def _timed(
    tree, values: np.ndarray, method: mp.ControlFunctional, what: str, moments: object
) -> tuple:
    wall, cpu = time.perf_counter(), time.process_time()
    if what == "weights":
        found = mp.stein_weights(tree, values, method, standardize=moments)
        result = (found.mean(values).item(), "", "", found.info["num_products"], str(found.status))
    else:
        estimate = mp.expectation(tree, values, method, standardize=moments)
        products = estimate.info["fits"][0]["num_products"]
        result = (
            estimate.mean[0],
            estimate.mcse[0],
            estimate.gain[0],
            products,
            str(estimate.status[0]),
        )
    return result, time.perf_counter() - wall, time.process_time() - cpu


def _cholesky_seconds(m: int) -> float:
    """Return the time of one LAPACK Cholesky factorisation of order m here: the unit of
    ``warm/cholesky``."""
    matrix = np.eye(m) + 1.0 / m
    start = time.perf_counter()
    np.linalg.cholesky(matrix)
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
