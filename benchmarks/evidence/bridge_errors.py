"""The error of the plain bridges under autocorrelation, beside block reshuffling.

    python -m benchmarks.evidence.bridge_errors

Draws are functions of stationary Gaussian AR(1) chains, so that they are exactly of their target
whatever the correlation: a skew coordinate, a funnel and a banana in five dimensions. Four chains
of 500 draws give both plain bridges with the default number of proposals.

``true`` is the standard deviation of the estimates over the replications, ``error`` the mean of
what is reported. ``half``, ``half error`` and ``reshuffled`` are about a single direction, one half
of the draws fitted and the other bridged. Reshuffling (Micaletto and Vehtari 2025,
arXiv:2508.14487) cuts each chain into ten blocks, assigns them at random to the two halves, and
takes the standard deviation of the estimate over eight assignments; it knows correlation up to the
length of a block.

Targets: mean z² between 0.6 and 1.5.
"""

import sys

import jax
import numpy as np
from scipy.special import gammaln
from scipy.stats import gamma, norm

from benchmarks._command import Command
from benchmarks._replicate import generator
from benchmarks._table import emit
from mcmcpost.control import PlainMean
from mcmcpost.evidence import EvidenceEstimate, estimate_from_posterior, evaluate_rows

CHAINS, DRAWS = 4, 500
BLOCKS, ASSIGNMENTS = 10, 8
CORRELATIONS = (0.0, 0.9, 0.97)
NAMES = ("a", "b", "c", "d", "e")


def _bend(z: np.ndarray) -> np.ndarray:
    """Return draws of the target, of standard normals (n, 5)."""
    skew = np.log(gamma.ppf(norm.cdf(z[:, 0]), 1.5))
    return np.stack(
        [skew, z[:, 1], z[:, 2] * np.exp(0.8 * z[:, 1]), z[:, 3], z[:, 4] + z[:, 3] ** 2], axis=1
    )


def _log_density(x: np.ndarray) -> np.ndarray:
    """Return the log density of the target, normalised."""
    skew = 1.5 * x[:, 0] - np.exp(x[:, 0]) - gammaln(1.5)
    rest = (
        x[:, 1] ** 2
        + (x[:, 2] * np.exp(-0.8 * x[:, 1])) ** 2
        + x[:, 3] ** 2
        + (x[:, 4] - x[:, 3] ** 2) ** 2
    )
    return skew - 0.5 * rest - 0.8 * x[:, 1] - 2.0 * np.log(2 * np.pi)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--replications 5")
    parser.add_argument("--replications", type=int, default=30)
    args = parser.parse_args()
    rows = []
    for correlation in CORRELATIONS:
        rows += _rows(correlation, args.replications)
        print(f"correlation {correlation}", file=sys.stderr, flush=True)
    emit(
        "bridge_errors",
        "error of the bridge under autocorrelation",
        rows,
        replications=args.replications,
    )


def _rows(correlation: float, replications: int) -> list[dict]:
    found: dict[str, list[tuple[float, ...]]] = {}
    for r in range(replications):
        rng = generator(f"bridge errors {correlation}", r)
        draws = _bend(_chains(rng, correlation).reshape(-1, 5)).reshape(CHAINS, DRAWS, 5)
        keys = jax.random.split(jax.random.key(r), 1 + ASSIGNMENTS)
        first = _bridges(draws, keys[0])
        again = [_bridges(_reshuffled(draws, rng), key) for key in keys[1:]]
        for method, estimate in first.items():
            spread = np.std([other[method].info["halves"][0] for other in again], ddof=1)
            half, half_error = estimate.info["halves"][0], estimate.info["halves_mcse"][0]
            found.setdefault(method, []).append(
                (estimate.value, estimate.mcse, half, half_error, spread)
            )
    return [_row(method, correlation, np.array(values)) for method, values in found.items()]


def _row(method: str, correlation: float, values: np.ndarray) -> dict:
    value, error, half, half_error, spread = values.T
    return {
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


def _bridges(draws: np.ndarray, key: jax.Array) -> dict[str, EvidenceEstimate]:
    posterior = evaluate_rows(draws, _log_density, np.zeros_like, NAMES, scores=False)
    found = estimate_from_posterior(posterior, PlainMean(), key=key).estimates
    return {e.method.removeprefix("bridge (").removesuffix(")"): e for e in found}


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
