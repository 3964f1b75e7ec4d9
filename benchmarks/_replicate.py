"""The replication loop: independent traces in, estimates of every method out, nothing excluded."""

import sys
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

import mcmcpost as mp

SEED = 20250101
"""Of every benchmark; streams are told apart by the target's name and the replication."""

Sample = Callable[[int], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Replication number ↦ draws (c, n, d), scores (c, n, d), integrands (c, n, p)."""


class Runs(NamedTuple):
    """Estimates of one method over R replications of p integrands.

    mean, mcse, gain, mean_plain, mean_crossfit : (R, p).
    status : per integrand, how often each status was seen; ``refused`` is a ScoreError, counted as
        the plain mean.
    warned : replications in which the score gate warned.
    seconds : median per replication.
    """

    mean: np.ndarray
    mcse: np.ndarray
    gain: np.ndarray
    mean_plain: np.ndarray
    mean_crossfit: np.ndarray
    status: list[Counter]
    warned: int
    seconds: float

    def statuses(self, column: int) -> str:
        return " ".join(f"{name}:{count}" for name, count in self.status[column].most_common())


def generator(name: str, replication: int) -> np.random.Generator:
    """Return the random stream of one replication of one target."""
    return np.random.default_rng([SEED, zlib.crc32(name.encode()), replication])


def replicate(
    name: str,
    sample: Sample,
    methods: Mapping[str, Any],
    replications: int,
    minutes: float = float("inf"),
) -> dict[str, Runs]:
    """Run every method on the first `replications` traces, fewer if `minutes` pass: always the
    first ones."""
    found: dict[str, list[tuple]] = {label: [] for label in methods}
    start = time.perf_counter()
    for r in range(replications):
        if time.perf_counter() - start > 60 * minutes:
            break
        draws, scores, values = sample(r)
        for label, method in methods.items():
            found[label].append(_once(draws, scores, values, method))
        if r % 10 == 9:
            print(
                f"{name}: {r + 1} of {replications}, {time.perf_counter() - start:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    return {label: _collect(records) for label, records in found.items()}


def _once(draws: np.ndarray, scores: np.ndarray, values: np.ndarray, method: Any) -> tuple:
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        tree = mp.from_arrays(draws, scores, allow_bad_scores=True)
        try:
            found = mp.expectation(tree, values, method)
            status = tuple(str(item) for item in found.status)
        except mp.ScoreError:
            found = mp.expectation(tree, values, "plain", allow_bad_scores=True)
            status = ("refused",) * values.shape[-1]
    warned = any(issubclass(item.category, mp.ScoreWarning) for item in caught)
    for item in caught:
        if not issubclass(item.category, mp.ScoreWarning):
            warnings.warn_explicit(item.message, item.category, item.filename, item.lineno)
    arrays = (found.mean, found.mcse, found.gain, found.mean_plain, found.mean_crossfit)
    return arrays, status, warned, time.perf_counter() - start


def _collect(records: list[tuple]) -> Runs:
    arrays, status, warned, seconds = zip(*records, strict=True)
    counts = [Counter(column) for column in zip(*status, strict=True)]
    return Runs(
        *map(np.array, zip(*arrays, strict=True)), counts, sum(warned), float(np.median(seconds))
    )
