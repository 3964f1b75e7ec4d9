"""The hare–lynx posterior for the paper's tasks E[v₁(s′)]: a truth from many draws, and short
chains to be tested on.

    python -m benchmarks.control._lotka_volterra_pool [--pieces 20] [--replications 100]

Both are made in blocks, each by NUTS with a key of its own from `KEY`, and each block is kept in
``.cache``: a run that is stopped goes on where it was, and the first blocks are the same however
many are asked for. Delete the files after a change of the model or of a size. The truth shares no
draw with the replications.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import mcmcpost as mp
from benchmarks.control._pools import Pool, sample_lotka_volterra
from models import lotka_volterra

CACHE = Path(__file__).parents[1] / ".cache"
KEY = 1913
TRUTH_STREAM, REPLICATION_STREAM = 0, 1

TASK_NAMES = tuple(f"prey[{year:.1f}]" for year in lotka_volterra.TASK_YEARS)
TASK_SETS = {
    "1913 T=2": slice(5, 7),
    "1912 T=5": slice(0, 5),
    "1912 T=10": slice(0, 10),
    "1914 T=10": slice(10, 20),
}
"""The paper's sets of tasks, as columns of `TASK_NAMES`."""

METHOD = mp.ZeroVariance(degree=4)
"""Of the truth. At 20 × 20,000 draws degree 3 would leave summed errors of a tenth of the best
peer's, degree 4 of 2–4 %."""
NUM_WARMUP = 500
PIECE_CHAINS, PIECE_DRAWS = 4, 5_000
BLOCK, CHAIN_DRAWS, THIN = 25, 1_000, 2
"""Replications per block, the draws of each one's chain, and the thinning that leaves the paper's m
= 500."""


class Truth(NamedTuple):
    """Means of all 20 tasks and their standard errors (20,), over the independent estimates
    `pieces` (k, 20).

    mcse : (k, 20), the error that each piece reports.
    """

    mean: np.ndarray
    standard_error: np.ndarray
    pieces: np.ndarray
    mcse: np.ndarray

    def summed_error(self, tasks: slice) -> float:
        """Return the standard errors summed over one of `TASK_SETS`."""
        return float(self.standard_error[tasks].sum())


def truth(pieces: int = 20, num_draws: int = PIECE_DRAWS) -> Truth:
    """Return the average of `pieces` degree-4 zero-variance estimates, each on 4 × `num_draws`
    draws of its own.

    Pieces share no draw, no warm-up and no fit, so their spread is the error of the average,
    whatever each one's own error says. It is the truth of the program at its solver's tolerance,
    which the replications share.
    """

    def piece(block: int) -> dict[str, np.ndarray]:
        draws, scores = sample_lotka_volterra(
            _key(TRUTH_STREAM, block), PIECE_CHAINS, NUM_WARMUP, num_draws
        )
        found = mp.expectation(mp.from_arrays(draws, scores), expected_prey(draws), METHOD)
        return {"mean": found.mean, "mcse": found.mcse}

    found = _blocks(f"truth_zv{METHOD.degree}_{PIECE_CHAINS}x{num_draws}", pieces, piece)
    error = found["mean"].std(0, ddof=1) / np.sqrt(pieces) if pieces > 1 else found["mcse"][0]
    return Truth(found["mean"].mean(0), error, found["mean"], found["mcse"])


def replications(
    count: int = 100, num_draws: int = CHAIN_DRAWS, block_size: int = BLOCK
) -> dict[str, np.ndarray]:
    """Return `count` chains of every other of `num_draws` draws: draws, scores (R, 1, m, 8), values
    (R, 1, m, 20).

    Each replication has its own start, its own warm-up and one chain; chains of one block only move
    in lockstep.
    """

    def block(index: int) -> dict[str, np.ndarray]:
        chains = sample_lotka_volterra(
            _key(REPLICATION_STREAM, index), block_size, NUM_WARMUP, num_draws
        )
        draws, scores = (array[:, ::THIN] for array in chains)
        return {"draws": draws, "scores": scores, "values": expected_prey(draws)}

    found = _blocks(f"replications_{block_size}x{num_draws}", -(-count // block_size), block)
    return {name: array.reshape(-1, 1, *array.shape[2:])[:count] for name, array in found.items()}


def task_pool(count: int = 100, pieces: int = 20) -> Pool:
    """Return the replications with the truth of all 20 tasks; take columns by `TASK_SETS`."""
    exact = truth(pieces)
    return Pool(
        **replications(count), names=TASK_NAMES, truth=exact.mean, truth_mcse=exact.standard_error
    )


def expected_prey(draws: np.ndarray) -> np.ndarray:
    """Return v₁(s′) of unconstrained draws (c, n, 8) at the paper's 20 times, (c, n, 20)."""
    sites = tuple(lotka_volterra.init("paper"))

    def one(draw: jax.Array) -> jax.Array:
        found = lotka_volterra.quantities(dict(zip(sites, draw, strict=True)))
        return jnp.stack([found[name] for name in TASK_NAMES])

    solve = jax.jit(lambda flat: jax.lax.map(one, flat, batch_size=512))
    return np.asarray(solve(jnp.asarray(draws.reshape(-1, len(sites))))).reshape(
        *draws.shape[:2], len(TASK_NAMES)
    )


def _key(stream: int, block: int) -> jax.Array:
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(KEY), stream), block)


def _blocks(
    name: str, count: int, make: Callable[[int], Mapping[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    """Return the first `count` blocks stacked, (count, ...) each, making those that are not in the
    cache."""
    CACHE.mkdir(exist_ok=True)
    found = []
    for block in range(count):
        path = CACHE / f"lotka_volterra_{name}_{block:03d}.npz"
        if not path.exists():
            start = time.perf_counter()
            partial = path.with_suffix(".partial.npz")
            np.savez(partial, **make(block))
            partial.rename(path)  # a block that is there is whole
            print(f"{path.name}: {time.perf_counter() - start:.0f} s", flush=True)
        with np.load(path) as arrays:
            found.append(dict(arrays))
    return {key: np.stack([block[key] for block in found]) for key in found[0]}


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    # every block compiles the same programs
    jax.config.update("jax_compilation_cache_dir", str(CACHE / "jax"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pieces", type=int, default=20)
    parser.add_argument("--piece-draws", type=int, default=PIECE_DRAWS)
    parser.add_argument("--replications", type=int, default=100)
    parser.add_argument("--chain-draws", type=int, default=CHAIN_DRAWS)
    parser.add_argument("--block-size", type=int, default=BLOCK)
    args = parser.parse_args()
    start = time.perf_counter()
    if args.pieces:
        exact = truth(args.pieces, args.piece_draws)
        for name, tasks in TASK_SETS.items():
            print(f"{name}: summed standard error {exact.summed_error(tasks):.2g}")
        print(f"truth: {args.pieces} pieces, {time.perf_counter() - start:.0f} s", flush=True)
    start = time.perf_counter()
    if args.replications:
        shape = replications(args.replications, args.chain_draws, args.block_size)["values"].shape
        print(f"replications: {shape}, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
