"""Computation-aware processes, SGPR, SVGP and iterative solves at n = 50,000, in equal CPU seconds
of training.

    command="taskset -c 0 python -m benchmarks.gp.computation_aware_large"
    $command --peers PYTHON --diamonds diamonds.csv
    $command --peers PYTHON     # data from a known function
    $command --diamonds diamonds.csv --numbers 256 512 1024 2048

``diamonds`` is the file of that name in the wheel of plotnine and in ggplot2: the logarithm of the
price of 53,940 diamonds by their weight, sizes and grades, the grades as 0, 1, 2, …. ``synthetic``
are draws of y = sin(2πx₁) + f(x) + ε on the unit cube, f a Matérn-3/2 process of variance 1 and
lengthscale 0.25, drawn by 4,096 random features, and ε of standard deviation 0.1. Inputs and
outputs are standardised by the training rows. Of every data set n random rows are for training, and
all others, or 4,000, for testing.

All processes have zero mean and a Matérn-3/2 kernel with ARD and start at lengthscales 1, amplitude
1 and noise 0.5. CaGP-Opt learns its actions and hyper-parameters on all rows, by the evidence bound
and L-BFGS, and compiles within its seconds. "After a subset" it spends the first fifth of them on
the same fit to a subset of the rows, and starts at the kernel and noise found there. SGPR and SVGP
are those of GPyTorch, with Adam at rate 0.1, the better of the two in the table
``computation_aware``, and SGPR also with L-BFGS. "Exact on a subset" is ``IterativeGP`` by
Cholesky's factorisation of the subset, with as many steps of L-BFGS as half the seconds allow.
"Iterative after a subset" takes the kernel and noise found so and solves for all rows by conjugate
gradients, with the variance from 32 posterior samples. Nothing is chosen by the test rows. Each
method runs in a process of its own, whose peak memory is counted with its libraries. ``train s``
and ``predict s`` are CPU seconds.

``--numbers`` compares numbers of actions, sums of near rows that are not learned, at the kernel and
noise of the exact process on the subset; ``bound/n`` is what training would minimise.
"""

import csv
import multiprocessing
import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks._command import Command, needed
from benchmarks._replicate import generator
from benchmarks._table import emit
from benchmarks.gp.computation_aware import START_NOISE, run_peer
from mcmcpost.gp import BlockActions, ComputationAwareGP, IterativeGP
from mcmcpost.gp.data import Prediction
from mcmcpost.gp.marginal_likelihood import Pathwise
from mcmcpost.solve import ConjugateGradients
from mcmcpost.solve.search import (
    LBFGS,
    AbstractOptimiser,
    TrainingProblem,
    TrainingRecord,
    TrainingStatus,
)
from mcmcpost.stein import AbstractKernel, Matern32, Scaled

GRADES = {
    "cut": ["Fair", "Good", "Very Good", "Premium", "Ideal"],
    "color": ["J", "I", "H", "G", "F", "E", "D"],
    "clarity": ["I1", "SI2", "SI1", "VS2", "VS1", "VVS2", "VVS1", "IF"],
}
NUMBERS = ("carat", "depth", "table", "x", "y", "z")
SYNTHETIC_TEST_ROWS = 4_000
PROBES = 32
"""Posterior samples, from which the variance after conjugate gradients is."""


class Problem(NamedTuple):
    """Standardised training rows X (n, d), y (n,), and test rows Z (o, d) with `truth` (o,)."""

    X: np.ndarray
    y: np.ndarray
    Z: np.ndarray
    truth: np.ndarray


class Budget(NamedTuple):
    """CPU seconds of training, actions, rows of the subset, and epochs of conjugate gradients."""

    seconds: float
    actions: int
    subset: int
    epochs: int


class Outcome(NamedTuple):
    """A prediction at the test rows and how it was found."""

    prediction: Prediction
    evaluations: int
    train: float
    predict: float
    noise: float
    peak: float
    status: str


class _Spent(Exception):
    """The CPU seconds are used up."""


class TimedLBFGS(AbstractOptimiser):
    """L-BFGS that ends before the evaluation that would take it beyond so many CPU seconds."""

    cpu_seconds: float
    max_steps: int = 10_000
    max_seconds: float = float("inf")

    def minimise(self, problem: TrainingProblem) -> tuple[np.ndarray, TrainingRecord]:
        began, longest = time.process_time(), 0.0
        seen: list[tuple[float, np.ndarray]] = []

        def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal longest
            start = time.process_time()
            if len(seen) > 1 and start - began + longest > self.cpu_seconds:
                raise _Spent
            value, slope = (np.asarray(part) for part in problem.loss(x))
            seen.append(
                (
                    float(value) if np.isfinite(slope).all() and np.isfinite(value) else np.inf,
                    x.copy(),
                )
            )
            longest = time.process_time() - start
            return float(value), slope

        try:
            return LBFGS(max_steps=self.max_steps).minimise(problem._replace(loss=loss))
        except _Spent:
            value, best = min(seen, key=lambda pair: pair[0])
            history = np.array([value for value, _ in seen])
            spent = time.process_time() - began
            return best, TrainingRecord(
                TrainingStatus.OUT_OF_TIME, value, history, len(seen) - 1, 0, spent
            )


def main() -> None:
    parser = Command(__doc__, quick="--rows 2000 --actions 32 --subset 500 --seconds 6 --epochs 5")
    parser.add_argument(
        "--name", help="of the file in results/; computation_aware_large or …_synthetic by default"
    )
    parser.add_argument(
        "--diamonds", type=Path, help="diamonds.csv; without it the data are synthetic"
    )
    parser.add_argument("--rows", type=int, default=50_000, help="training rows")
    parser.add_argument(
        "--actions", type=int, default=512, help="actions, and inducing points of SGPR and SVGP"
    )
    parser.add_argument("--subset", type=int, default=5_000, help="rows of the subset")
    parser.add_argument(
        "--seconds", type=float, default=300, help="of CPU time for training, per method"
    )
    parser.add_argument("--epochs", type=int, default=20, help="of conjugate gradients")
    parser.add_argument(
        "--methods", nargs="+", choices=[*METHODS, *PEERS], default=[*METHODS, *PEERS]
    )
    parser.add_argument(
        "--numbers", nargs="+", type=int, help="of actions, to be compared in place of the methods"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--peers", default=None, help="an interpreter with torch and gpytorch")
    args = parser.parse_args()
    problem = _synthetic(args.rows, args.seed)
    if args.diamonds:
        problem = _diamonds(needed(args.diamonds, "--diamonds"), args.rows, args.seed)
    budget = Budget(args.seconds, args.actions, args.subset, args.epochs)
    settings = {
        "data": "diamonds" if args.diamonds else "synthetic",
        "n": len(problem.y),
        "d": problem.X.shape[1],
    }
    settings |= {
        "test": len(problem.truth),
        "subset": args.subset,
        "seconds": args.seconds,
        "seed": args.seed,
    }
    if args.numbers:
        _compare_numbers(
            problem, budget, args.numbers, args.name or "computation_aware_actions", settings
        )
        return
    methods = [method for method in args.methods if method in METHODS or args.peers]
    rows = []
    for method in methods:
        found = _alone(_run, method, problem, budget, args.peers)
        rows.append({"method": method} | _row(found, problem.truth))
        emit(
            args.name
            or ("computation_aware_large" if args.diamonds else "computation_aware_synthetic"),
            "Computation-aware, sparse and iterative processes after equal CPU seconds of training",
            rows,
            final=len(rows) == len(methods),
            **settings,
            i=args.actions,
            epochs=args.epochs,
        )


def _compare_numbers(
    problem: Problem, budget: Budget, numbers: list[int], name: str, settings: dict
) -> None:
    kernel, noise = _alone(_subset_parameters, problem, budget)
    rows = []
    for number in numbers:
        found, bound = _alone(_not_learned, problem, number, kernel, noise)
        rows.append({"actions": number, "bound/n": bound} | _row(found, problem.truth))
        title = "Numbers of actions that are not learned, at one kernel and noise"
        emit(name, title, rows, final=len(rows) == len(numbers), **settings)


def _alone[T](function: Callable[..., T], *arguments: Any) -> T:
    """Return what the function returns in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def _diamonds(path: Path, rows: int, seed: int) -> Problem:
    with path.open(newline="") as file:
        table = np.array(
            [
                [
                    *(float(row[name]) for name in NUMBERS),
                    *(grades.index(row[name]) for name, grades in GRADES.items()),
                    np.log(float(row["price"])),
                ]
                for row in csv.DictReader(file)
            ]
        )
    order = generator("diamonds", seed).permutation(len(table))
    return _standardised(table[order], rows)


def _synthetic(rows: int, seed: int) -> Problem:
    rng = generator("smooth and rough", seed)
    X = rng.random((rows + SYNTHETIC_TEST_ROWS, 3))
    features = 4_096
    frequencies = rng.normal(size=(3, features)) / np.sqrt(rng.chisquare(3, features) / 3) / 0.25
    amplitudes, phases = rng.normal(size=features), rng.uniform(0, 2 * np.pi, features)
    rough = np.concatenate(
        [np.cos(part @ frequencies + phases) @ amplitudes for part in np.array_split(X, 50)]
    )
    f = np.sin(2 * np.pi * X[:, 0]) + np.sqrt(2 / features) * rough
    return _standardised(np.column_stack([X, f + 0.1 * rng.normal(size=len(X))]), rows)


def _standardised(table: np.ndarray, rows: int) -> Problem:
    train = table[:rows]
    scaled = (table - train.mean(axis=0)) / train.std(axis=0)
    return Problem(scaled[:rows, :-1], scaled[:rows, -1], scaled[rows:, :-1], scaled[rows:, -1])


def _run(method: str, problem: Problem, budget: Budget, peers: str) -> Outcome:
    if method in METHODS:
        return METHODS[method](problem, budget)
    X, y, Z, _ = problem
    kind, rate = PEERS[method]
    prediction, record = run_peer(peers, kind, budget.actions, rate, budget.seconds, "cpu", X, y, Z)
    names = "evaluations", "cpu s", "predict s", "noise", "peak GB"
    return Outcome(prediction, *(record[name] for name in names), "")


def _start(problem: Problem) -> AbstractKernel:
    return Scaled(1.0, Matern32(np.ones(problem.X.shape[1])))


def _computation_aware(problem: Problem, budget: Budget) -> Outcome:
    return _learn_actions(problem, budget, _start(problem), START_NOISE, time.process_time(), 0)


def _computation_aware_after(problem: Problem, budget: Budget) -> Outcome:
    began = time.process_time()
    actions, optimiser = min(budget.actions, budget.subset), TimedLBFGS(budget.seconds / 5)
    process = ComputationAwareGP(_start(problem), START_NOISE, actions, optimiser=optimiser)
    first = process.fit(problem.X[: budget.subset], problem.y[: budget.subset])
    return _learn_actions(
        problem, budget, first.kernel, first.noise, began, len(first.record.history)
    )


def _learn_actions(
    problem: Problem,
    budget: Budget,
    kernel: AbstractKernel,
    noise: float,
    began: float,
    before: int,
) -> Outcome:
    """Fit on all rows in the seconds that are left; `before` is the number of evaluations on a
    subset."""
    optimiser = TimedLBFGS(budget.seconds - (time.process_time() - began))
    process = ComputationAwareGP(kernel, noise, budget.actions, optimiser=optimiser).fit(
        problem.X, problem.y
    )
    record = process.record
    return _predicted(
        process, problem, before + len(record.history), began, process.noise, str(record.status)
    )


def _fit_subset(problem: Problem, budget: Budget, began: float) -> tuple[Any, int]:
    """Return the exact process on a subset and its steps, of which half the seconds allow as
    many."""
    X, y = problem.X[: budget.subset], problem.y[: budget.subset]
    process = IterativeGP(_start(problem), noise=START_NOISE, num_steps=2)
    process.fit(X, y)
    each = (time.process_time() - began) / 3
    steps = max(1, int((budget.seconds / 2 - (time.process_time() - began)) / each))
    process = IterativeGP(_start(problem), noise=START_NOISE, num_steps=steps)
    return process.fit(X, y), steps


def _subset_parameters(problem: Problem, budget: Budget) -> tuple[AbstractKernel, float]:
    fitted, _ = _fit_subset(problem, budget, time.process_time())
    return fitted.kernel, fitted.noise


def _not_learned(
    problem: Problem, number: int, kernel: AbstractKernel, noise: float
) -> tuple[Outcome, float]:
    began = time.process_time()
    process = ComputationAwareGP(
        kernel, noise, number, policy=BlockActions(learn=False), optimise=False
    )
    fitted = process.fit(problem.X, problem.y)
    bound = fitted.record.objective / len(problem.y)
    return _predicted(fitted, problem, 1, began, noise, str(fitted.record.status)), bound


def _exact_subset(problem: Problem, budget: Budget) -> Outcome:
    began = time.process_time()
    fitted, steps = _fit_subset(problem, budget, began)
    return _predicted(fitted, problem, steps, began, fitted.noise, fitted.info["outcome"])


def _iterative_after(problem: Problem, budget: Budget) -> Outcome:
    began = time.process_time()
    first, steps = _fit_subset(problem, budget, began)
    solver = ConjugateGradients(rtol=1e-2, budget=budget.epochs, rank=500)
    process = IterativeGP(
        first.kernel,
        noise=first.noise,
        optimise=False,
        solver=solver,
        estimator=Pathwise(num_probes=PROBES),
    )
    fitted = process.fit(problem.X, problem.y)
    status = f"{fitted.info['outcome']}, residual {fitted.info['residual']:.2g}"
    return _predicted(fitted, problem, steps, began, fitted.noise, status)


def _predicted(
    fitted: Any, problem: Problem, evaluations: int, began: float, noise: float, status: str
) -> Outcome:
    trained = time.process_time()
    prediction = fitted.predict(problem.Z)
    spent = time.process_time() - trained
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return Outcome(prediction, evaluations, trained - began, spent, float(noise), peak, status)


def _row(found: Outcome, truth: np.ndarray) -> dict[str, Any]:
    mean, variance = found.prediction
    error = mean - truth
    return {
        "test NLL": 0.5 * np.mean(np.log(2 * np.pi * variance) + error**2 / variance),
        "test RMSE": np.sqrt(np.mean(error**2)),
        "coverage 90": np.mean(np.abs(error) <= 1.644854 * np.sqrt(variance)),
        "noise": found.noise,
        "evaluations": found.evaluations,
        "train s": found.train,
        "predict s": found.predict,
        "peak GB": found.peak,
        "status": found.status,
    }


METHODS: dict[str, Callable[[Problem, Budget], Outcome]] = {
    "CaGP-Opt": _computation_aware,
    "CaGP-Opt after a subset": _computation_aware_after,
    "exact on a subset": _exact_subset,
    "iterative after a subset": _iterative_after,
}
PEERS: dict[str, tuple[str, float | str]] = {
    "SGPR": ("SGPR", 0.1),
    "SGPR, L-BFGS": ("SGPR", "lbfgs"),
    "SVGP": ("SVGP", 0.1),
}
"""The process and its learning rate of Adam, or L-BFGS."""

if __name__ == "__main__":
    main()
