"""The error of the plain bridges under autocorrelation, beside block reshuffling.

    python -m benchmarks.evidence.bridge_errors

Draws are functions of stationary Gaussian AR(1) chains, so that they are exactly of their target whatever the
correlation: ``bent`` has a skew coordinate, a funnel and a banana in five dimensions, ``normal`` is a normal in five.
Four chains of 500 draws give both bridges with default numbers of proposals.

``true`` is the standard deviation of the estimates over the replications, ``error`` the mean of what is reported.
``half``, ``half error`` and ``reshuffled`` are about a single direction, one half of the draws fitted and the other
bridged. Reshuffling (Micaletto and Vehtari 2025, arXiv:2508.14487) cuts each chain into ten blocks, assigns them at
random to the two halves, and takes the standard deviation of the estimate over ten assignments; it knows correlation
up to the length of a block.

Targets: mean z² between 0.6 and 1.5.
"""

import argparse
import sys
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from scipy.special import gammaln
from scipy.stats import gamma, norm

from benchmarks._replicate import generator
from benchmarks._table import emit
from mcmcpost.evidence.bridge import evaluate_halves, plain_bridge

CHAINS, DRAWS, PROPOSALS = 4, 500, 8
BLOCKS, ASSIGNMENTS = 10, 10
CORRELATIONS = (0.0, 0.5, 0.9, 0.97)
NAMES = ("a", "b", "c", "d", "e")


class Target(NamedTuple):
    """Draws x of standard normals z (n, 5), and the log density of x, normalised."""

    draw: Callable[[np.ndarray], np.ndarray]
    log_density: Callable[[np.ndarray], np.ndarray]


def _normal(x: np.ndarray) -> np.ndarray:
    return -0.5 * (x**2).sum(axis=1) - 2.5 * np.log(2 * np.pi)


def _bend(z: np.ndarray) -> np.ndarray:
    skew = np.log(gamma.ppf(norm.cdf(z[:, 0]), 1.5))
    return np.stack([skew, z[:, 1], z[:, 2] * np.exp(0.8 * z[:, 1]), z[:, 3], z[:, 4] + z[:, 3] ** 2], axis=1)


def _bent(x: np.ndarray) -> np.ndarray:
    skew = 1.5 * x[:, 0] - np.exp(x[:, 0]) - gammaln(1.5)
    rest = x[:, 1] ** 2 + (x[:, 2] * np.exp(-0.8 * x[:, 1])) ** 2 + x[:, 3] ** 2 + (x[:, 4] - x[:, 3] ** 2) ** 2
    return skew - 0.5 * rest - 0.8 * x[:, 1] - 2.0 * np.log(2 * np.pi)


TARGETS = {"normal": Target(lambda z: z, _normal), "bent": Target(_bend, _bent)}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replications", type=int, default=40)
    args = parser.parse_args()
    rows = []
    for name, target in TARGETS.items():
        for correlation in CORRELATIONS:
            rows += _rows(name, target, correlation, args.replications)
            print(f"{name}, {correlation}", file=sys.stderr, flush=True)
    emit("bridge_errors", "error of the bridge under autocorrelation", rows, replications=args.replications)


def _rows(name: str, target: Target, correlation: float, replications: int) -> list[dict]:
    found: dict[str, list[tuple[float, ...]]] = {}
    for r in range(replications):
        rng = generator(f"bridge errors {name} {correlation}", r)
        draws = target.draw(_chains(rng, correlation).reshape(-1, 5)).reshape(CHAINS, DRAWS, 5)
        keys = jax.random.split(jax.random.key(r), 1 + ASSIGNMENTS)
        first = _bridges(target, draws, keys[0])
        again = [_bridges(target, _reshuffled(draws, rng), key) for key in keys[1:]]
        for method, estimate in first.items():
            spread = np.std([other[method].info["halves"][0] for other in again], ddof=1)
            half, half_error = estimate.info["halves"][0], estimate.info["halves_mcse"][0]
            found.setdefault(method, []).append((estimate.value, estimate.mcse, half, half_error, spread))
    return [_row(name, method, correlation, np.array(values)) for method, values in found.items()]


def _row(name: str, method: str, correlation: float, values: np.ndarray) -> dict:
    value, error, half, half_error, spread = values.T
    return {
        "target": name,
        "AR(1)": correlation,
        "method": method,
        "true": np.sqrt((value**2).mean()),
        "error": error.mean(),
        "mean z²": ((value / error) ** 2).mean(),
        "half": np.sqrt((half**2).mean()),
        "half error": half_error.mean(),
        "half z²": ((half / half_error) ** 2).mean(),
        "reshuffled": spread.mean(),
        "reshuffled z²": ((half / spread) ** 2).mean(),
    }


def _bridges(target: Target, draws: np.ndarray, key: jax.Array) -> dict:
    number = PROPOSALS * CHAINS * DRAWS // 2
    halves = evaluate_halves(target.log_density, draws, NAMES, key, bent=True, num_proposals=number)
    return {"warp-III": plain_bridge(halves, symmetric=True), "fitted": plain_bridge(halves, symmetric=False)}


def _chains(rng: np.random.Generator, correlation: float) -> np.ndarray:
    z = rng.normal(size=(CHAINS, DRAWS, 5))
    for i in range(1, DRAWS):
        z[:, i] = correlation * z[:, i - 1] + np.sqrt(1 - correlation**2) * z[:, i]
    return z


def _reshuffled(draws: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    blocks = draws.reshape(CHAINS, BLOCKS, -1, 5)
    return np.stack([chain[rng.permutation(BLOCKS)] for chain in blocks]).reshape(draws.shape)


if __name__ == "__main__":
    main()
