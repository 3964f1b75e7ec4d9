"""Control variates on posteriors of 50 to 500 parameters: reported and true gains of every method.

    python -m benchmarks.control.hierarchical

Replications of 4 × 1,000 NUTS draws. `gain` is the median of those reported, `true` the mean square
error of the plain mean over that of the controlled one, both against a linear control variate on
all draws of the pool, and `z²` the mean of its square; `plain z²` that of the plain mean. `seconds`
are CPU seconds of one call with all quantities, compilation not counted. A controlled mean counts
also where the plain one would be returned by default. `ridge` is that on all linear and quadratic
features, through their kernel, and `ensemble` a peer: see `benchmarks.control._ensemble`. Every row
has the commit that it was made with: --keep leaves those as they are that are not made again, also
those of `screened`, quadratic features chosen by their correlation with residuals, which was a
method of the package until `Structured` took its place.
"""

import json
import time
import warnings

import jax
import numpy as np

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._table import RESULTS, commit, emit
from benchmarks.control._ensemble import Ensemble
from benchmarks.control._hierarchical_models import MODELS, pool
from benchmarks.control._pools import Pool
from mcmcpost.control import REML
from mcmcpost.stein import Polynomial

METHODS = {
    "zv1": mp.ZeroVariance(1, mp.LeastSquares()),
    "diagonal": mp.ZeroVariance(2, mp.LeastSquares(), max_interaction=1),
    "lasso": mp.ZeroVariance(2, mp.Lasso(), max_interaction=1),
    "ridge": mp.SemiExact(1, Polynomial(1), tuning=REML(), max_states=1_600),
    "secf": mp.SemiExact(1, max_states=1_600),
    "ensemble": Ensemble(),
    "zv1+ensemble": Ensemble(linear=True),
    "structured": mp.Structured(),
    "auto": "auto",
}

SLOW = ("lasso", "ridge", "secf")
"""Methods that are left out beyond `MANY` coordinates, where they take minutes."""

MANY = 300


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(
        __doc__, quick="--models 'logistic d=50' --methods zv1 structured --replications 1"
    )
    parser.add_argument("--replications", type=int, default=10)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument(
        "--keep", action="store_true", help="keep the other rows of the table as they are"
    )
    args = parser.parse_args()
    kept = (
        json.loads((RESULTS / "hierarchical.json").read_text())
        if args.keep and not args.quick
        else {"rows": []}
    )
    here = commit()
    rows = {(name, method): [] for name in MODELS for method in METHODS}
    for row in kept["rows"]:
        rows.setdefault((row["model"], row["method"]), []).append({"commit": kept["commit"]} | row)
    for name in args.models:
        chains = pool(name)
        methods = [m for m in args.methods if chains.draws.shape[-1] <= MANY or m not in SLOW]
        for method in methods:
            found = _rows(name, chains, method, min(args.replications, len(chains.draws)))
            rows[name, method] = [{"commit": here} | row for row in found]
            title = (
                "Posteriors of 50 to 500 parameters, 4 × 1,000 NUTS draws: reported and true gains"
            )
            final = (name, method) == (args.models[-1], methods[-1])
            every = [row for part in rows.values() for row in part]
            emit("hierarchical", title, every, final=final, replications=args.replications)


def _rows(name: str, chains: Pool, method: str, replications: int) -> list[dict]:
    found, seconds = [], []
    for replication in range(replications):
        draws, scores, values = chains.sample(replication)
        tree = mp.from_arrays(draws, scores, names=chains.parameters)
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            own = mp.expectation(tree, values, METHODS[method], fallback=False)
        seconds.append(time.process_time() - start)
        found.append((own.mean, own.mcse, own.variance_ratio, own.mean_plain, own.mcse_plain))
    mean, mcse, ratio, plain, mcse_plain = (np.array(part) for part in zip(*found, strict=True))
    square, plain_square = (mean - chains.truth) ** 2, (plain - chains.truth) ** 2
    return [
        {
            "model": name,
            "quantity": quantity,
            "method": method,
            "variance ratio": float(np.median(ratio[:, j])),
            "gain": float(np.median((mcse_plain[:, j] / mcse[:, j]) ** 2)),
            "true": float(plain_square[:, j].mean() / square[:, j].mean()),
            "z²": float((square[:, j] / (mcse[:, j] ** 2 + chains.truth_mcse[j] ** 2)).mean()),
            "plain z²": float(
                (plain_square[:, j] / (mcse_plain[:, j] ** 2 + chains.truth_mcse[j] ** 2)).mean()
            ),
            "seconds": float(np.median(seconds)),
        }
        for j, quantity in enumerate(chains.names)
    ]


if __name__ == "__main__":
    main()
