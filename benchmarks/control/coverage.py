"""Coverage of the bounds of controlled intervals: how often the truth is within their errors.

    python -m benchmarks.control.coverage [--targets NAME ...] [--replicates N]

Ten targets of `benchmarks.control.marginals` with exact truths, four chains of 500 independent
draws or of AR(1) normals with coefficient 0.9 that drive the same maps. A row is one target,
dependence, kind of interval of 0.89 (with equal tails or the shortest) and bound, all quantities of
the target together.

``known`` : share of the bounds that are neither ``unseen`` nor exact to rounding. All that follows
    is of these.
``50 %``, ``80 %``, ``95 %`` : how often bound ± that quantile of a normal times mcse has the truth.
``z²``, ``max |z|`` : of (bound − truth)/mcse.
``true``, ``reported`` : gains, as in `benchmarks.control.marginals`.
``plain 95 %`` : of the plain bounds of the same replicates.

With 200 independent z the standard errors of the three shares are 3.5, 2.8 and 1.5 %; quantities of
one replicate are not independent.
"""

import json
import sys
import time
import warnings
from typing import Any

import jax
import numpy as np
import scipy.stats

import mcmcpost as mp
from benchmarks._command import Command, add_shared
from benchmarks._table import RESULTS, emit
from benchmarks.control import marginals

DRAWS = 2_000
TARGETS = (*marginals.EXACT, "regression")
COVERAGE = (0.5, 0.8, 0.95)
KINDS = ("eti", "hdi")
FEWEST = 0.05
"""Share of the bounds of a row that are known, below which nothing is said of them: a handful."""


def rows(case: marginals.Case) -> list[dict[str, Any]]:
    """Return the rows of a case, one for each kind of interval and bound."""
    found: dict[str, list[list[np.ndarray]]] = {kind: [] for kind in KINDS}
    for r in range(case.replicates):
        tree, values, _ = case.sample(r)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dist = mp.distribution(tree, values)
            for kind in KINDS:
                result = dist.interval(marginals.PROB, kind)
                unseen = [status == "unseen" for status in result.status]
                numbers = (result.mean, result.mcse, result.mean_plain, result.mcse_plain, unseen)
                found[kind].append([np.reshape(part, (-1, 2)) for part in numbers])
    table = []
    for kind, replicates in found.items():
        parts = [np.array(part) for part in zip(*replicates, strict=True)]
        for end, bound in enumerate(("lower", "upper")):
            exact = case.truth.value[kind][:, end]
            first = {"target": case.target, "dependence": case.dependence, "interval": kind}
            numbers = _numbers(*(part[..., end] for part in parts), exact)
            table.append(first | {"bound": bound, "replicates": case.replicates} | numbers)
    return table


def _numbers(
    mean: np.ndarray,
    mcse: np.ndarray,
    plain: np.ndarray,
    plain_mcse: np.ndarray,
    unseen: np.ndarray,
    exact: np.ndarray,
) -> dict[str, Any]:
    """Return the columns of one row, from bounds (replicates, quantities)."""
    gap, plain_gap = mean - exact, plain - exact
    size = np.sqrt((plain_gap**2).mean(0))
    rounding = (mcse < marginals.ROUNDING * size) & (np.abs(gap) < marginals.ROUNDED * size)
    known = ~unseen & ~rounding
    columns = [f"{100 * share:g} %" for share in COVERAGE]
    columns += ["z²", "max |z|", "true", "reported", "plain 95 %"]
    if known.mean() < FEWEST:
        # All rows have all columns: those of the first are the table's.
        return {"known": float(known.mean())} | dict.fromkeys(columns, "")
    z, plain_z = (gap / np.where(known, mcse, 1.0))[known], (plain_gap / plain_mcse)[known]
    limits = scipy.stats.norm.isf((1 - np.array(COVERAGE)) / 2)
    gains = np.where(known, (plain_mcse / np.where(known, mcse, 1.0)) ** 2, np.nan)[known]
    numbers = [
        *((np.abs(z) < limit).mean() for limit in limits),
        (z**2).mean(),
        np.abs(z).max(),
        (plain_gap[known] ** 2).mean() / (gap[known] ** 2).mean(),
        np.median(gains),
        (np.abs(plain_z) < limits[-1]).mean(),
    ]
    return {"known": float(known.mean())} | dict(zip(columns, map(float, numbers), strict=True))


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--targets gamma(2) --replicates 3")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--replicates", type=int, default=200)
    add_shared(parser)
    args = parser.parse_args()
    title = f"Coverage of the bounds of intervals, {DRAWS:,} draws"
    table: list[dict[str, Any]] = []
    for name in args.targets:
        exact = marginals.exact_target(name, args.shared)
        for case in marginals.exact_cases(name, exact, {DRAWS: args.replicates}):
            start = time.process_time()
            new = rows(case)
            seconds = time.process_time() - start
            print(f"{name}, {case.dependence}: {seconds:.0f} s", file=sys.stderr, flush=True)
            # Rows that are not run again stay as they are; targets may run side by side.
            path = RESULTS / "coverage.json"
            if path.exists() and not args.quick:
                table = json.loads(path.read_text())["rows"]
            table = [*(row for row in table if place(row) != place(new[0])), *new]
            table.sort(key=place)
            emit("coverage", title, table, final=False)
    emit("coverage", title, table)


def place(row: dict[str, Any]) -> tuple[int, int]:
    """Return where rows of a target and dependence stand in the table."""
    return TARGETS.index(row["target"]), list(marginals.DEPENDENCE).index(row["dependence"])


if __name__ == "__main__":
    main()
