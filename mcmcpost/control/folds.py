"""Folds of the cross-fitting: rows that are held out in turn, padded to arrays, and sets of folds."""

import itertools
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float, Int

PAD = 64
"""Rows are padded to a multiple of this with rows of count zero: traces of nearly one size share a compiled program."""


class Folds(NamedTuple):
    """The rows of a problem that are held out in turn, and those that each fit sees, padded to arrays.

    held_out, held_out_mask : (k, b) rows of each fold, and which entries are real.
    train, train_mask : (k, t) rows on which the fit without each fold is made; likewise.
    everyone, everyone_mask : (a,) rows on which the fit on all folds is made; likewise.
    """

    held_out: Int[np.ndarray, "k b"]
    held_out_mask: Bool[np.ndarray, "k b"]
    train: Int[np.ndarray, "k t"]
    train_mask: Bool[np.ndarray, "k t"]
    everyone: Int[np.ndarray, " a"]
    everyone_mask: Bool[np.ndarray, " a"]

    @classmethod
    def from_labels(cls, labels: Int[np.ndarray, " m"]) -> "Folds":
        """Return the folds 0, …, k − 1 of rows with these labels; a row of label −1 is padding."""
        real = labels >= 0
        numbers = range(labels.max() + 1)
        held_out, held_out_mask = ragged([np.flatnonzero(labels == k) for k in numbers])
        train, train_mask = ragged([np.flatnonzero(real & (labels != k)) for k in numbers])
        everyone, everyone_mask = ragged([np.flatnonzero(real)])
        return cls(held_out, held_out_mask, train, train_mask, everyone[0], everyone_mask[0])

    @property
    def num_folds(self) -> int:
        return len(self.held_out)

    @property
    def num_train(self) -> int:
        """The smallest number of rows on which a fit without a fold is made."""
        return int(self.train_mask.sum(axis=1).min())

    @property
    def num_everyone(self) -> int:
        """The number of rows on which the fit on all folds is made."""
        return int(self.everyone_mask.sum())

    @property
    def labels(self) -> Int[np.ndarray, " m"]:
        """The fold of each row. Rows of padding, which come after all others, have none."""
        labels = np.empty(self.held_out_mask.sum(), int)
        labels[self.held_out[self.held_out_mask]] = np.repeat(np.arange(self.num_folds), self.held_out_mask.sum(axis=1))
        return labels

    def rows(self) -> list[tuple[Int[np.ndarray, " b"], Int[np.ndarray, " t"]]]:
        """Return, for each fold, the rows that are held out and those of the fit without it."""
        return [
            (out[out_mask], inside[mask])
            for out, out_mask, inside, mask in zip(
                self.held_out, self.held_out_mask, self.train, self.train_mask, strict=True
            )
        ]

    def rows_of(self, parts: Bool[np.ndarray, "s k"]) -> list[Int[np.ndarray, " b"]]:
        """Return the rows of a fit that sees only some of the folds, for each of s sets of folds."""
        rows = self.everyone[self.everyone_mask]
        labels = self.labels[rows]
        return [rows[own[labels]] for own in parts]

    def thin(self, max_rows: int | None, counts: Float[np.ndarray, " m"] | None = None) -> "Folds":
        """Return folds whose fits see at most `max_rows` rows; every row is still held out once.

        The rows are evenly spaced, or at even steps of the summed `counts` where these are given.
        """
        rows = self.everyone[self.everyone_mask]
        if max_rows is None or (len(rows) <= max_rows and counts is None):
            return self
        if counts is None:
            chosen = np.linspace(0, len(rows) - 1, max_rows).astype(int)
        else:
            total, size = np.cumsum(counts[rows]), min(max_rows, len(rows))
            chosen = np.minimum(np.searchsorted(total, (np.arange(size) + 0.5) / size * total[-1]), len(rows) - 1)
        kept = np.zeros(len(self.labels), bool)
        kept[rows[chosen]] = True
        train, train_mask = ragged([inside[kept[inside]] for _, inside in self.rows()])
        everyone, everyone_mask = ragged([np.flatnonzero(kept)])
        return self._replace(train=train, train_mask=train_mask, everyone=everyone[0], everyone_mask=everyone_mask[0])

    def scatter(self, parts: Float[np.ndarray, "k b *p"], num_rows: int) -> Float[np.ndarray, "m *p"]:
        """Return held-out values by row, from values by fold; zero on padding."""
        scattered = np.zeros((num_rows, *parts.shape[2:]))
        scattered[self.held_out[self.held_out_mask]] = parts[self.held_out_mask]
        return scattered


class Subsets(NamedTuple):
    """The sets of folds on which a fit is made again, to see how far its mean moves.

    halves : (h, k) about half of the folds, and the other half, balanced: two folds are together as often as apart,
        so that for a mean of independent folds the mean squared deviation is that of the jackknife (McCarthy 1969,
        *Pseudo-replication: half samples*).
    quarters : (r, k) about a quarter; none for fewer than four folds.
    """

    halves: Bool[np.ndarray, "h k"]
    quarters: Bool[np.ndarray, "r k"]

    @classmethod
    def of(cls, num_folds: int) -> "Subsets":
        """Return those of `num_folds` folds, from the rows of a Hadamard matrix."""
        signs = scipy.linalg.hadamard(1 << (num_folds - 1).bit_length())[1:, :num_folds] > 0
        shares = signs.mean(axis=1)
        signs = signs[(shares >= 1 / 3) & (shares <= 2 / 3)]
        crossed = [a & b for one, two in itertools.pairwise(signs) for a in (one, ~one) for b in (two, ~two)]
        quarters = np.array(crossed, bool).reshape(-1, num_folds)
        quarters = quarters[np.abs(quarters.mean(axis=1) - 0.25) <= 0.1]
        return cls(np.concatenate([signs, ~signs]), quarters[: 2 * num_folds])


def padded(rows: int) -> int:
    """Return the next multiple of `PAD`."""
    return -(-rows // PAD) * PAD


def pad_rows(array: np.ndarray) -> np.ndarray:
    """Return the array with rows of zeros up to a multiple of `PAD`."""
    extra = padded(len(array)) - len(array)
    return np.concatenate([array, np.zeros((extra, *array.shape[1:]), array.dtype)])


def ragged(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return row lists of different lengths as one padded array (k, b) and the mask of its real entries."""
    width = max(PAD, padded(max((len(part) for part in parts), default=0)))
    rows = np.zeros((len(parts), width), int)
    mask = np.zeros((len(parts), width), bool)
    for k, part in enumerate(parts):
        rows[k, : len(part)] = part
        mask[k, : len(part)] = True
    return rows, mask
