"""Errors where the chain has hardly been: posteriors with thin tails and necks, against exact
truths.

    python -m benchmarks.control.rare_states [--targets NAME ...] [--draws N ...]

Twelve targets (`benchmarks.control._rare_targets`): scales of Gaussian processes seen at 11 and 6
points, logistic regression that is nearly separated, degrees of freedom of a t, a small weight of a
mixture, the same with a mode that one draw in 500 visits, a variance near zero, truncated and
censored normals, two normals far apart, a funnel, and logarithms of gamma variables. Four chains,
of independent draws or of AR(1) normals with coefficient 0.9 that drive the same maps. A row is one
target, number of draws, dependence, and method or, of `auto`, probabilities P, quantiles and
densities of every coordinate, at its 0.05, 0.5 and 0.95 quantiles. What is measured is what is
returned by default, with nothing left out.

``true`` : mean square error of the plain estimate over that of this one, the median over cells:
    quantities, or points of them. ``ratio`` : of the reported over the true gain, the median over
    the cells that gain
        more than 1.5.
``z²`` : mean of ((estimate − truth)/error)², the median over cells; ``worst z²`` the largest of a
    cell, ``at`` which.
``plain z²`` : of the plain estimates of the same cell. Where it is large, too, no error from these
    draws can be right.
``max |z|`` : over all cells and replicates.
``50 %``, ``80 %``, ``95 %`` : how often the normal interval of that probability covers the truth.
``controlled`` : share of the results that have a control variate.

The rule: worst z² at most 1.5, |z| at most 4.5 and a ratio between 0.4 and 1. A cell has a
replicate's noise: with 40, its z² may be 1.6 by chance where errors are right.
"""

import json
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.stats
from arviz_stats.base import array_stats
from scipy.signal import lfilter

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._replicate import generator
from benchmarks._table import RESULTS, emit
from benchmarks.control._rare_targets import RARE, Rare

METHODS = ("plain", "zv2", "structured", "auto")
KINDS = ("P", "quantile", "pdf")
CHAINS = 4
DRAWS = (500, 2_000)
DEPENDENCE = {"independent": 0.0, "AR(0.9)": 0.9}
LEVELS = np.array([0.05, 0.5, 0.95])
COVERAGE = (0.5, 0.8, 0.95)
CONTROLLED = ("controlled", "exact", "on_trust", "regularised")
"""Statuses of results that have a control variate."""
GAIN = 1.5
"""The true gain from which a method is said to gain in a cell."""
ROUNDING = 1e-9
"""Part of the plain error below which an error is rounding, and z says nothing."""


class Answer(NamedTuple):
    """Estimates of the cells of one row (q,), and the plain ones."""

    mean: np.ndarray
    mcse: np.ndarray
    plain: np.ndarray
    plain_mcse: np.ndarray
    controlled: np.ndarray


def sampled(
    name: str, target: Rare, num_draws: int, dependence: str, r: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return draws and scores (c, n, d) of one replicate."""
    phi, shape = DEPENDENCE[dependence], (CHAINS, num_draws // CHAINS, target.num_normals)
    noise = generator(f"rare {name} {num_draws} {dependence}", r).normal(size=shape)
    noise[:, 1:] *= np.sqrt(1 - phi**2)
    return target.transform(lfilter([1.0], [1.0, -phi], noise, axis=1))


def answers(
    target: Rare, x: np.ndarray, scores: np.ndarray, wanted: list[str]
) -> Iterator[tuple[str, Answer]]:
    """Yield what is found of each method, and of each kind of function."""
    tree = mp.from_arrays(x, scores, allow_bad_scores=True)
    values = np.stack([f(x) for f, _ in target.means.values()], -1)
    for method in METHODS:
        if method in wanted:
            try:
                found = mp.expectation(tree, values, method)
            except mp.ScoreError:  # scores are right: a user who is refused has the plain mean
                found = mp.expectation(tree, values, "plain", allow_bad_scores=True)
            yield method, _answer(found)
    if not {*KINDS} & {*wanted}:
        return
    quantities = np.stack([x[..., k] for k, _ in target.marginals.values()], -1)
    points = np.stack([law.ppf(LEVELS) for _, law in target.marginals.values()])
    dist = mp.distribution(tree, quantities, allow_bad_scores=True)
    if "P" in wanted:
        yield "P", _answer(dist.cdf(points))
    if "quantile" in wanted:
        yield "quantile", _answer(dist.quantile(LEVELS))
    if "pdf" in wanted:
        flat = quantities.reshape(-1, quantities.shape[-1])
        kernel = [
            np.interp(at, *array_stats.kde(flat[:, j])[:2], 0.0, 0.0) for j, at in enumerate(points)
        ]
        yield "pdf", _answer(dist.pdf(points))._replace(plain=np.concatenate(kernel))


def _answer(found: Any) -> Answer:
    controlled = np.array([str(status) in CONTROLLED for status in np.ravel(found.status)])
    numbers = (found.mean, found.mcse, found.mean_plain, found.mcse_plain)
    return Answer(*(np.asarray(part).reshape(-1) for part in numbers), controlled)


def truths(target: Rare) -> dict[str, tuple[list[str], np.ndarray]]:
    """Return labels and exact values of the cells of a method and of each kind."""
    margins = target.marginals
    labels = [f"{name} {level:g}" for name in margins for level in LEVELS]
    exact = {
        "P": np.tile(LEVELS, len(margins)),
        "quantile": np.concatenate([law.ppf(LEVELS) for _, law in margins.values()]),
        "pdf": np.concatenate([law.pdf(law.ppf(LEVELS)) for _, law in margins.values()]),
    }
    means = list(target.means), np.array([value for _, value in target.means.values()])
    return {kind: (labels, value) for kind, value in exact.items()} | dict.fromkeys(METHODS, means)


def rows(
    name: str, target: Rare, num_draws: int, dependence: str, replicates: int, wanted: list[str]
) -> list[dict]:
    """Return the rows of one target with so many draws."""
    records: dict[str, list[Answer]] = {}
    for r in range(replicates):
        with warnings.catch_warnings():
            # of scores, and of chains that disagree: what is returned counts
            warnings.simplefilter("ignore")
            for kind, answer in answers(
                target, *sampled(name, target, num_draws, dependence, r), wanted
            ):
                records.setdefault(kind, []).append(answer)
    exact = truths(target)
    first = {"target": name, "draws": num_draws, "dependence": dependence}
    return [
        first | {"what": kind, "replicates": replicates} | _row(stacked, *exact[kind])
        for kind, found in records.items()
        for stacked in [Answer(*map(np.array, zip(*found, strict=True)))]
    ]


def _row(found: Answer, labels: list[str], exact: np.ndarray) -> dict[str, Any]:
    """Return the columns of one row, from estimates (r, q)."""
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of cells with nothing but NaN
        gap, plain_gap = found.mean - exact, found.plain - exact
        plain_size = np.sqrt((plain_gap**2).mean(0))
        rounding = (found.mcse < ROUNDING * plain_size) & (
            np.abs(gap) < 1e3 * ROUNDING * plain_size
        )
        z = np.where(rounding, np.nan, gap / found.mcse)
        true = (plain_gap**2).mean(0) / (gap**2).mean(0)
        reported = np.median((found.plain_mcse / found.mcse) ** 2, axis=0)
        z2, plain_z2 = np.nanmean(z**2, axis=0), ((plain_gap / found.plain_mcse) ** 2).mean(0)
        worst, gaining = int(np.nanargmax(z2)), true > GAIN
        known = np.abs(z[~np.isnan(z)])
        covered = {
            f"{100 * p:g} %": float(np.mean(known < scipy.stats.norm.isf((1 - p) / 2)))
            for p in COVERAGE
        }
        return {
            "true": float(np.median(true)),
            "ratio": float(np.median((reported / true)[gaining])) if gaining.any() else "",
            "z²": float(np.nanmedian(z2)),
            "worst z²": float(z2[worst]),
            "at": labels[worst],
            "plain z²": float(plain_z2[worst]),
            "max |z|": float(known.max()),
            **covered,
            "controlled": float(found.controlled.mean()),
        }


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--targets 'truncated normal' --draws 500 --replicates 3")
    parser.add_argument("--targets", nargs="+", choices=RARE, default=list(RARE))
    parser.add_argument("--draws", nargs="+", type=int, choices=DRAWS, default=list(DRAWS))
    parser.add_argument("--dependence", nargs="+", choices=DEPENDENCE, default=list(DEPENDENCE))
    parser.add_argument("--what", nargs="+", choices=(*METHODS, *KINDS), default=[*METHODS, *KINDS])
    parser.add_argument("--replicates", type=int, default=40)
    parser.add_argument("--name", default="rare_states", help="of the JSON file")
    args = parser.parse_args()
    title = "Errors where the chain has hardly been"
    path = RESULTS / f"{args.name}.json"
    table = json.loads(path.read_text())["rows"] if path.exists() and not args.quick else []

    def place(row: dict) -> tuple[int, ...]:
        orders = (DRAWS, list(RARE), list(DEPENDENCE), [*METHODS, *KINDS])
        return tuple(of.index(row[key]) for of, key in zip(orders, KEYS, strict=True))

    for num_draws in args.draws:
        for name in args.targets:
            target = RARE[name]()
            for dependence in args.dependence:
                start = time.process_time()
                new = rows(name, target, num_draws, dependence, args.replicates, args.what)
                # Rows that are not run again stay as they are.
                made = {place(row) for row in new}
                table = sorted([*(row for row in table if place(row) not in made), *new], key=place)
                print(
                    f"{num_draws} draws, {name}, {dependence}: {time.process_time() - start:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
                emit(args.name, title, table, final=False)
    emit(args.name, title, table)


KEYS = ("draws", "target", "dependence", "what")
"""Columns that tell rows apart, in the order of the table."""


if __name__ == "__main__":
    main()
