"""A computation-aware process beside the exact one, SGPR and SVGP on a subset of pol, in equal
seconds of training.

    taskset -c 0 python -m benchmarks.gp.computation_aware
    taskset -c 0 python -m benchmarks.gp.computation_aware --peers PYTHON  # with torch and gpytorch

n training rows of pol and 556 test rows, both standardised by the training rows; Matérn-3/2 ARD
from lengthscales 1, amplitude 1 and noise 0.5. CaGP-Opt learns block-sparse actions by the evidence
bound; the exact process is Cholesky with the analytic gradient and L-BFGS. All have the same
seconds of wall clock on one core, compilation left out: each is compiled by a one-step fit first.
``projected`` is trained by the evidence of the projected data, (9), of which its losses are. ``step
s`` is CPU seconds for one value and gradient. CaGP-CG is left out: finding 256 residuals takes 256
kernel products, as long as the whole budget. GPyTorch's SGPR and SVGP have i and 1,024 inducing
points and two learning rates (``benchmarks.gp._sparse_peers``); their losses are of one batch where
they have batches.
"""

import dataclasses
import gzip
import itertools
import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs
from scipy.optimize import minimize

from benchmarks._command import Command, add_shared, needed
from benchmarks._replicate import generator
from benchmarks._table import emit
from benchmarks.gp._projected_likelihood import ProjectedLikelihood
from mcmcpost.gp import ComputationAwareGP
from mcmcpost.gp.computation_aware import AbstractObjective
from mcmcpost.gp.data import Prediction
from mcmcpost.solve.search import LBFGS, Adam
from mcmcpost.stein import Matern32, Scaled, gram

TARGET_STEP = 3.47
"""Seconds of the GPyTorch branch for one CaGP-Opt step at n = 5288, i = 256; a prototype took
0.63."""
TEST_ROWS = 556
START_NOISE = 0.5
RATES = (0.1, 0.01)
"""Learning rates of the peers' Adam."""


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(
        __doc__, quick="--rows 1000 --actions 64 --seconds 10 --methods CaGP-Opt exact"
    )
    add_shared(parser)
    parser.add_argument("--name", default="computation_aware", help="of the file in results/")
    parser.add_argument("--rows", type=int, default=5_000, help="training rows")
    parser.add_argument("--actions", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=45, help="of training per method")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peers", default=None, help="an interpreter with torch and gpytorch")
    args = parser.parse_args()
    data = _pol(args.shared, args.rows, args.seed)
    methods = {method: METHODS[method] for method in args.methods}
    if args.peers:
        for kind, inducing, rate in itertools.product(
            ("SGPR", "SVGP"), (args.actions, 1024), RATES
        ):
            methods[f"{kind}, {inducing}, rate {rate}"] = _peer(args.peers, kind, inducing, rate)
    rows = []
    for method, train in methods.items():
        rows.append({"method": method} | train(*data[:3], args.actions, args.seconds, data[3]))
        emit(
            args.name,
            "pol subset: computation-aware, exact and sparse processes after equal seconds of "
            "training",
            rows,
            final=len(rows) == len(methods),
            n=args.rows,
            d=data[0].shape[1],
            i=args.actions,
            seconds=args.seconds,
            seed=args.seed,
            target=f"step ≤ {TARGET_STEP} s (GPyTorch CaGP-Opt); prototype .63 s",
        )


def _pol(
    shared: Path, rows: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    with gzip.open(needed(shared / "data" / "uci" / "pol.csv.gz", "--shared")) as file:
        table = np.loadtxt(file, delimiter=",")
    table = table[generator("pol subset", seed).permutation(len(table))[: rows + TEST_ROWS]]
    train = table[:rows]
    spread = train.std(axis=0)
    scaled = (table - train.mean(axis=0)) / np.where(spread > 0, spread, 1)
    return scaled[:rows, :-1], scaled[:rows, -1], scaled[rows:, :-1], scaled[rows:, -1]


def _computation_aware(
    make: Callable[[float], LBFGS | Adam], objective: AbstractObjective | None = None
) -> Callable[..., dict]:
    def run(
        X: np.ndarray, y: np.ndarray, Z: np.ndarray, actions: int, seconds: float, truth: np.ndarray
    ) -> dict:
        kernel = Scaled(1.0, Matern32(np.ones(X.shape[1])))
        process = ComputationAwareGP(
            kernel, START_NOISE, actions, objective=objective, optimiser=LBFGS(max_steps=1)
        )
        process.fit(X, y)
        cpu = time.process_time()
        fitted = dataclasses.replace(process, optimiser=make(seconds)).fit(X, y)
        cpu = time.process_time() - cpu
        record = fitted.record
        return _row(
            fitted.predict(Z), truth, len(record.history), record.seconds, cpu, fitted.noise
        ) | {
            "start loss/n": record.history[0] / len(y),
            "end loss/n": record.objective / len(y),
            "status": str(record.status),
        }

    return run


def _exact(
    X: np.ndarray, y: np.ndarray, Z: np.ndarray, _: int, seconds: float, truth: np.ndarray
) -> dict:
    """Fit the exact process: loss and slope by LAPACK's Cholesky and inverse, L-BFGS on log
    parameters."""
    n, d = X.shape
    points, outputs = jnp.asarray(X), jnp.asarray(y)

    def covariance(x: jax.Array) -> jax.Array:
        kernel = Scaled(jnp.exp(x[0]), Matern32(jnp.exp(x[1 : d + 1])))
        return gram(kernel, points) + jnp.exp(x[d + 1]) * jnp.eye(n)

    form = jax.jit(covariance)
    pull_back = jax.jit(lambda x, slope: jax.vjp(covariance, x)[1](slope)[0])

    def evaluate(x: np.ndarray) -> tuple[float, np.ndarray]:
        lower, _ = dpotrf(form(x), lower=1)
        alpha, _ = dpotrs(lower, y, lower=1)
        loss = 0.5 * (y @ alpha + n * np.log(2 * np.pi)) + np.sum(np.log(np.diag(lower)))
        half, _ = dpotri(lower, lower=1)
        inverse = np.tril(half) + np.tril(half, -1).T
        return float(loss), np.asarray(pull_back(x, 0.5 * (inverse - np.outer(alpha, alpha))))

    start = np.concatenate([np.zeros(d + 1), [np.log(START_NOISE)]])
    evaluate(start)
    began, cpu = time.perf_counter(), time.process_time()
    losses: list[float] = []
    best = (np.inf, start)

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal best
        value, slope = evaluate(x)
        losses.append(value)
        best = min(best, (value, x.copy()), key=lambda pair: pair[0])
        return value, slope

    def stop(_: np.ndarray) -> None:
        if time.perf_counter() - began > seconds:
            raise StopIteration

    minimize(loss, start, jac=True, method="L-BFGS-B", callback=stop)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    x = jnp.asarray(best[1])
    kernel = Scaled(jnp.exp(x[0]), Matern32(jnp.exp(x[1 : d + 1])))
    lower = jnp.linalg.cholesky(covariance(x))
    cross = gram(kernel, jnp.asarray(Z), points)
    explained = solve_triangular(lower, cross.T, lower=True)
    variance = jnp.exp(x[0]) + jnp.exp(x[d + 1]) - jnp.sum(explained**2, axis=0)
    prediction = Prediction(
        np.asarray(cross @ cho_solve((lower, True), outputs)), np.asarray(variance)
    )
    return _row(prediction, truth, len(losses), wall, cpu, float(jnp.exp(x[d + 1]))) | {
        "start loss/n": losses[0] / n,
        "end loss/n": best[0] / n,
        "status": "",
    }


def run_peer(
    interpreter: str,
    kind: str,
    inducing: int,
    rate: float | str,
    seconds: float,
    clock: str,
    *data: np.ndarray,
) -> tuple[Prediction, dict[str, Any]]:
    """Return the prediction at Z, and the record, of one of GPyTorch's processes; the data are X, y
    and Z."""
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        np.savez(file, noise=START_NOISE, **dict(zip("XyZ", data, strict=True)))
        file.flush()
        command = [
            interpreter,
            "-m",
            "benchmarks.gp._sparse_peers",
            file.name,
            kind,
            str(inducing),
            str(rate),
        ]
        done = subprocess.run(
            [*command, str(seconds), clock], capture_output=True, text=True, check=True
        )
        found = np.load(file.name)
        return Prediction(found["mean"], found["variance"]), json.loads(
            done.stdout.splitlines()[-1]
        )


def _peer(interpreter: str, kind: str, inducing: int, rate: float) -> Callable[..., dict]:
    def run(
        X: np.ndarray, y: np.ndarray, Z: np.ndarray, _: int, seconds: float, truth: np.ndarray
    ) -> dict:
        prediction, record = run_peer(interpreter, kind, inducing, rate, seconds, "wall", X, y, Z)
        evaluations, wall, cpu, noise = (
            record[name] for name in ("evaluations", "wall s", "cpu s", "noise")
        )
        losses = {name: record[name] for name in ("start loss/n", "end loss/n")}
        return _row(prediction, truth, evaluations, wall, cpu, noise) | losses | {"status": ""}

    return run


def _row(
    prediction: Prediction,
    truth: np.ndarray,
    evaluations: int,
    wall: float,
    cpu: float,
    noise: float,
) -> dict[str, Any]:
    error = prediction.mean - truth
    nll = 0.5 * np.mean(np.log(2 * np.pi * prediction.variance) + error**2 / prediction.variance)
    return {
        "evaluations": evaluations,
        "wall s": wall,
        "cpu s": cpu,
        "step s": cpu / evaluations,
        "test NLL": nll,
        "test RMSE": np.sqrt(np.mean(error**2)),
        "coverage 95": np.mean(np.abs(error) <= 1.959964 * np.sqrt(prediction.variance)),
        "noise": noise,
    }


METHODS: dict[str, Callable[..., dict]] = {
    "CaGP-Opt": _computation_aware(lambda s: LBFGS(max_steps=10_000, max_seconds=s)),
    "CaGP-Opt, Adam": _computation_aware(lambda s: Adam(max_steps=50, max_seconds=s)),
    "CaGP-Opt, projected": _computation_aware(
        lambda s: LBFGS(max_steps=10_000, max_seconds=s), ProjectedLikelihood()
    ),
    "exact": _exact,
}

if __name__ == "__main__":
    main()
