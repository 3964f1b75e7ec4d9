"""Many short chains: how long a reduction takes, and whether its errors are as large as the true
ones.

    python -m benchmarks.scale.short_chains

Five coordinates of unit variance, each chain an autoregression (lag-one correlation 0.5) that
starts in the target: 10,000 chains of 10 draws, 2,000 of one draw, and 4 of 25,000 as many draws in
long chains. Integrands: a coordinate, exp(x/2), cos(1.5 x) and a product of two. ``first`` has the
compilation of its shape, ``s`` is the median CPU time of the others. ``z2`` is the mean of
((estimate − truth)/mcse)² over the replications, for the integrand for which it is largest, and
``band`` the upper end of its χ² band at level 1e-5. The first coordinate, which is reproduced
exactly, is left out.
"""

import time
from typing import Any

import jax
import numpy as np
from scipy.stats import chi2

import mcmcpost as mp
from benchmarks._command import Command
from benchmarks._table import emit

DIMENSION, LAG = 5, 0.5
TRUTH = np.array([0.0, np.exp(1 / 8), np.exp(-0.5 * 1.5**2), 0.0])


def main() -> None:
    parser = Command(__doc__, quick="--shapes 1000x10 4x2500 --methods zv2 --replications 5")
    parser.add_argument("--shapes", nargs="+", default=["10000x10", "2000x1", "4x25000"])
    parser.add_argument("--methods", nargs="+", default=["plain", "zv2"])
    parser.add_argument("--replications", type=int, default=40)
    parser.add_argument("--name", default="", help="added to the name of the JSON file")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    rows: list[dict[str, Any]] = []
    for shape in args.shapes:
        chains, draws = map(int, shape.split("x"))
        for method in args.methods:
            rows.append({"chains": chains, "draws": draws, "method": method})
            rows[-1] |= replicated(chains, draws, method, args.replications)
            emit(
                "short_chains" + args.name,
                "Many short chains",
                rows,
                final=False,
                replications=args.replications,
            )
    emit("short_chains" + args.name, "Many short chains", rows, replications=args.replications)


def replicated(chains: int, draws: int, method: str, replications: int) -> dict[str, Any]:
    seconds, squares, gains = [], [], []
    for replication in range(replications):
        x = autoregression(np.random.default_rng([chains, draws, replication]), chains, draws)
        values = np.stack(
            [x[..., 0], np.exp(x[..., 0] / 2), np.cos(1.5 * x[..., 1]), x[..., 2] * x[..., 3]],
            axis=-1,
        )
        tree = mp.from_arrays(x, -x)
        start = time.process_time()
        found = mp.expectation(tree, values, method)
        seconds.append(time.process_time() - start)
        squares.append((((found.mean - TRUTH) / found.mcse) ** 2)[1:3])
        gains.append(found.gain[1:3])
    return {
        "first": seconds[0],
        "s": float(np.median(seconds[1:])),
        "gain": float(np.median(gains)),
        "z2": float(np.mean(squares, axis=0).max()),
        "band": float(chi2.isf(1e-5, replications) / replications),
    }


def autoregression(rng: np.random.Generator, chains: int, draws: int) -> np.ndarray:
    """Return stationary draws (c, n, d) of a standard normal."""
    x = rng.normal(size=(chains, draws, DIMENSION))
    for i in range(1, draws):
        x[:, i] = LAG * x[:, i - 1] + np.sqrt(1 - LAG**2) * x[:, i]
    return x


if __name__ == "__main__":
    main()
