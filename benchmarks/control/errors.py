"""The protocol of errors: z and reported gains of every method on posteriors with known
expectations.

    python -m benchmarks.control.errors

Four chains of 10, 50, 125 and, on request, more draws: independent or AR(1) from densities with
exact samplers, and up to 125 draws by NUTS of a logistic regression, eight schools and
Lotka–Volterra; smooth, exponential, growing and indicator integrands and |x|. A cell is one method
on one integrand at one size; only cells in which the plain mean's own mean z² is at most 1.5 are
counted. Columns, over the cells in which the method has a true gain above 1.5: how many; mean z²,
its median, nine-tenths quantile and largest value; the median over cells of the 68 % quantile of
|z|, and the share of cells where it lies between 0.5 and 1.05; the largest |z|; the median over
cells of reported over true gain, and the share of cells where that lies between a quarter and two.
Then, over the cells in which the true error is below half of the plain one: the share of
replications that return a controlled mean by default. Last, over all cells: the largest root mean
square error of what is returned by default, over that of the plain mean.

A second table, ``errors_cells``, has every cell that misses an aim: a mean z² above 1.5, a |z|
above 6, or more than 1.05 times the error of the plain mean. With --keep the rows of sizes that are
not run stay as they are.
"""

import functools
import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping

import jax
import numpy as np
from scipy.integrate import quad
from scipy.special import gamma as gamma_function
from scipy.stats import gamma, loggamma

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._replicate import generator
from benchmarks._table import RESULTS, commit, emit
from benchmarks.control._pools import Pool, eight_schools, logistic, lotka_volterra_pool
from benchmarks.control._targets import TARGETS, Target, autoregressive, first

METHODS = ("zv1", "zv2", "zv3", "cf", "secf", "auto")
SIZES = (40, 200, 500)
GAIN = 1.5
"""The true gain from which a method is said to gain in a cell."""
MOST_Z2, MOST_Z, MOST_LOSS = 1.5, 6.0, 1.05
"""The aims of a cell: its mean z², its |z|, and the error of what is returned over that of the
plain mean."""


def _gamma() -> Target:
    """The logarithm of a gamma variable of shape 3 and rate 2: 1/x grows as fast as its tail allows
    twice."""

    def draw(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.gamma(3.0, 0.5, (number, 1))
        return np.log(x), 3 - 2 * x

    cosine = quad(lambda x: gamma(3, scale=0.5).pdf(x) * np.cos(np.log(x)), 0, 40)[0]
    return Target(
        draw, {"cos(u)": (first(np.cos), cosine), "1/x": (first(lambda u: np.exp(-u)), 1.0)}
    )


def _growing() -> Target:
    """A standard normal in three dimensions."""

    def draw(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.standard_normal((number, 3))
        return x, -x

    return Target(
        draw,
        {
            "exp(x1)": (first(np.exp), np.exp(0.5)),
            "|x1|": (first(np.abs), np.sqrt(2 / np.pi)),
            "cos(x1+x2+x3)": (lambda x: np.cos(x.sum(axis=1)), np.exp(-1.5)),
        },
    )


def _log_gamma() -> Target:
    """Four independent logarithms of gamma variables of shape 3: one tail is exponential, one is a
    double exponent."""

    def draw(rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
        x = np.log(rng.gamma(3.0, size=(number, 4)))
        return x, 3 - np.exp(x)

    law = loggamma(3)
    mean = law.mean()
    cosine = quad(lambda x: law.pdf(x) * np.cos(x), -60, 10, limit=500)[0]
    return Target(
        draw,
        {
            "x1": (lambda x: x[:, 0], mean),
            "x1^2": (lambda x: x[:, 0] ** 2, mean**2 + law.var()),
            "x1 x2": (lambda x: x[:, 0] * x[:, 1], mean**2),
            "cos(x1)": (lambda x: np.cos(x[:, 0]), cosine),
            "exp(.3 x1)": (
                lambda x: np.exp(0.3 * x[:, 0]),
                float(gamma_function(3.3) / gamma_function(3)),
            ),
        },
    )


CASES: Mapping[str, Target] = {
    **{
        name: target
        for name, target in TARGETS.items()
        if name not in ("cauchy", "exponential raw")
    },
    "gamma": _gamma(),
    "gaussian d=3": _growing(),
    "log gamma d=4": _log_gamma(),
    "AR(.5)": autoregressive(0.5),
    "AR(.9)": autoregressive(0.9),
    "AR(.97)": autoregressive(0.97),
}

POOLS: Mapping[str, Callable[[int], Pool]] = {
    "logistic d=20": functools.cache(logistic),
    "eight schools": functools.cache(eight_schools),
    "Lotka–Volterra": functools.cache(lotka_volterra_pool),
}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(
        __doc__, quick="--replications 3 --sizes 40 --cases gamma 'gaussian d=3' 'AR(.5)'"
    )
    parser.add_argument("--replications", type=int, default=200)
    everything = [*CASES, *POOLS]
    parser.add_argument("--cases", nargs="+", choices=everything, default=everything)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--name", default="errors", help="of the JSON file")
    parser.add_argument(
        "--keep", action="store_true", help="keep the rows of other sizes as they are"
    )
    args = parser.parse_args()
    here = commit()
    rows, missed = [], []
    for size in args.sizes:
        start = time.process_time()
        cells: dict[str, list[dict]] = {method: [] for method in args.methods}
        for name in args.cases:
            for method, found in _cells(name, size, args.methods, args.replications).items():
                cells[method] += found
            print(
                f"{size} draws, {name}: {time.process_time() - start:.0f} s",
                file=sys.stderr,
                flush=True,
            )
        of = {method: {"commit": here, "draws": size, "method": method} for method in args.methods}
        rows += [of[method] | _row(cells[method]) for method in args.methods]
        missed += [of[method] | cell for method in args.methods for cell in _missed(cells[method])]
        final = size == args.sizes[-1]
        for name, title, found in (
            (
                args.name,
                "Errors and gains, reported and true, on posteriors with known expectations",
                rows,
            ),
            (f"{args.name}_cells", "Cells that miss an aim", missed),
        ):
            kept = _kept(name, args.sizes) if args.keep and not args.quick else []
            order = sorted(found + kept, key=lambda row: row["draws"])
            emit(name, title, order, final=final, replications=args.replications)


def _kept(name: str, sizes: list[int]) -> list[dict]:
    """Return the recorded rows of other sizes: those that another run has written by now."""
    file = RESULTS / f"{name}.json"
    return (
        [row for row in json.loads(file.read_text())["rows"] if row["draws"] not in sizes]
        if file.exists()
        else []
    )


def _cells(name: str, size: int, methods: list[str], replications: int) -> dict[str, list[dict]]:
    """Return the cells of each method on the integrands of one target; none where a pool has fewer
    draws."""
    found: dict[str, list[tuple]] = {method: [] for method in methods}
    if name in POOLS:
        pool = POOLS[name](replications)
        names, truth, truth_mcse = pool.names, pool.truth, pool.truth_mcse
        if size > np.prod(pool.draws.shape[1:3]):
            return {}
    else:
        names = tuple(CASES[name].integrands)
        truth = np.array([value for _, value in CASES[name].integrands.values()])
        truth_mcse = np.zeros(len(truth))
    for r in range(replications):
        if name in POOLS:
            x, s, values = (a[:, : size // 4] for a in pool.sample(r))
        else:
            x, s = CASES[name].draw(generator("errors " + name, r), size)
            values = np.stack([f(x) for f, _ in CASES[name].integrands.values()], axis=-1)
            x, s, values = (a.reshape(4, size // 4, -1) for a in (x, s, values))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", (mp.ScoreWarning, UserWarning))
            tree = mp.from_arrays(x, s, allow_bad_scores=True)
            for method in methods:
                own = mp.expectation(tree, values, method, allow_bad_scores=True, fallback=False)
                found[method].append((own.mean, own.mcse, own.mean_plain, own.mcse_plain))
    of = {
        method: dict(zip(names, _of_method(records, truth, truth_mcse), strict=True))
        for method, records in found.items()
    }
    return {
        method: [{"target": name, "integrand": own} | cell for own, cell in cells.items() if cell]
        for method, cells in of.items()
    }


def _of_method(records: list[tuple], truth: np.ndarray, truth_mcse: np.ndarray) -> list[dict]:
    """Return one record an integrand, empty where the plain error is not calibrated."""
    mean, mcse, plain, mcse_plain = (np.array(part) for part in zip(*records, strict=True))
    used = mcse < mcse_plain  # what `fallback` keeps
    default = np.where(used, mean, plain)
    cells = []
    for j, exact in enumerate(truth):
        if np.mean(((plain[:, j] - exact) / mcse_plain[:, j]) ** 2) > MOST_Z2:
            cells.append({})
            continue
        z = np.abs(mean[:, j] - exact) / np.hypot(mcse[:, j], truth_mcse[j])
        square = np.mean((plain[:, j] - exact) ** 2)
        gain = square / np.mean((mean[:, j] - exact) ** 2)
        cells.append(
            {
                "gain": gain,
                "z2": np.mean(z**2),
                "q68": np.quantile(z, 0.68),
                "worst": z.max(),
                "ratio": np.median((mcse_plain[:, j] / mcse[:, j]) ** 2) / gain,
                "used": np.mean(used[:, j]),
                "default": np.sqrt(np.mean((default[:, j] - exact) ** 2) / square),
            }
        )
    return cells


def _missed(cells: list[dict]) -> list[dict]:
    """Return the columns of the cells that miss an aim, the first two where the method gains."""
    return [
        {
            "target": cell["target"],
            "integrand": cell["integrand"],
            "true gain": cell["gain"],
            "mean z²": cell["z2"],
            "max |z|": cell["worst"],
            "gain ratio": cell["ratio"],
            "default/plain": cell["default"],
        }
        for cell in cells
        if (cell["gain"] > GAIN and (cell["z2"] > MOST_Z2 or cell["worst"] > MOST_Z))
        or cell["default"] > MOST_LOSS
    ]


def _row(cells: list[dict]) -> dict:
    """Return the columns of one method at one size."""
    gaining = [cell for cell in cells if cell["gain"] > GAIN]
    clear = [cell["used"] for cell in cells if cell["gain"] > 4]
    keys = ("z2", "q68", "worst", "ratio")
    z2, q68, worst, ratio = (np.array([cell[key] for cell in gaining] or [np.nan]) for key in keys)
    return {
        "cells": len(gaining),
        "z² median": np.median(z2),
        "z² 90 %": np.quantile(z2, 0.9),
        "z² worst": z2.max(),
        "68 % of |z|": np.median(q68),
        "sharp": np.mean((q68 >= 0.5) & (q68 <= 1.05)),
        "max |z|": worst.max(),
        "gain ratio": np.median(ratio),
        "within 1/4–2": np.mean((ratio >= 0.25) & (ratio <= 2)),
        "used by default": np.mean(clear) if clear else np.nan,
        "worst default/plain": max(cell["default"] for cell in cells),
    }


if __name__ == "__main__":
    main()
