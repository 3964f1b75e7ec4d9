"""The papers' UCI regressions: inputs and outputs standardised by the training rows of a split."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks._command import needed


class Split(NamedTuple):
    """X (m, d), y (m,) of the training rows, X_test, y_test of the others."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def load(shared: Path, name: str, split: int, rows: int | None = None) -> Split:
    """Return one of ten splits; with `rows`, so many random training rows only."""
    table = np.loadtxt(
        needed(shared / "data" / "uci" / f"{name}.csv.gz", "--shared"), delimiter=","
    )
    test = np.loadtxt(shared / "data" / "uci" / f"{name}.mask.csv.gz", delimiter=",")[:, split] > 0
    train = table[~test]
    if rows is not None:
        train = train[np.random.default_rng(split).permutation(len(train))[:rows]]
    mean, scale = train.mean(axis=0), train.std(axis=0)
    scale = np.where(scale > 1e-12 * (1 + np.abs(mean)), scale, 1.0)
    train, held = (train - mean) / scale, (table[test] - mean) / scale
    return Split(train[:, :-1], train[:, -1], held[:, :-1], held[:, -1])
