"""Folds of the cross-fitting: rows that are held out in turn, and sets of folds."""

import functools
import itertools
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float, Int

from mcmcpost.core.arrays import in_blocks

PAD = 64
"""Rows are padded to a multiple of this with rows of count zero: traces of nearly one size share a
compiled program."""


MOST_FOLDS = 1_000
"""Folds k that may be asked for: the list of their halves and quarters takes memory of the order of
k²."""


class Folds(NamedTuple):
    """The rows of a problem that are held out in turn, and those that each fit sees.

    labels : (m,) the fold of each row, −1 where there is none. Rows of padding come after them.
    seen : (m,) whether the fits may see a row.
    num_folds : k; the folds are 0, …, k − 1.
    """

    labels: Int[np.ndarray, " m"]
    seen: Bool[np.ndarray, " m"]
    num_folds: int

    @classmethod
    def from_labels(cls, labels: Int[np.ndarray, " m"]) -> "Folds":
        """Return the folds 0, …, k − 1 of rows with these labels; a row of label −1 is padding."""
        real = labels >= 0
        size = len(labels) - int(np.argmax(real[::-1]))
        small = np.zeros((size,), np.int32)
        small[...] = labels[:size]
        return cls(small, real[:size], int(labels.max()) + 1)

    def merged(self, num_folds: int) -> "Folds":
        """Return at most so many folds, of neighbours together."""
        if self.num_folds <= num_folds:
            return self
        labels = np.where(self.labels < 0, -1, self.labels * num_folds // self.num_folds).astype(
            self.labels.dtype
        )
        return self._replace(labels=labels, num_folds=num_folds)

    @property
    def num_train(self) -> int:
        """The smallest number of rows on which a fit without a fold is made."""
        most = max(np.count_nonzero(self.seen & (self.labels == k)) for k in range(self.num_folds))
        return self.num_everyone - int(most)

    @property
    def num_everyone(self) -> int:
        """The number of rows on which the fit on all folds is made."""
        return int(np.count_nonzero(self.seen))

    @property
    def everyone(self) -> Int[np.ndarray, " a"]:
        """The rows on which the fit on all folds is made."""
        return np.flatnonzero(self.seen)

    def held_out(self) -> tuple[Int[np.ndarray, "k b"], Bool[np.ndarray, "k b"]]:
        """Return the rows of each fold, padded to an array, and which of its entries are real."""
        return ragged([np.flatnonzero(self.labels == k) for k in range(self.num_folds)])

    def rows(self) -> list[tuple[Int[np.ndarray, " b"], Int[np.ndarray, " t"]]]:
        """Return, for each fold, the rows that are held out and those of the fit without it."""
        held_out = (self.labels == k for k in range(self.num_folds))
        return [(np.flatnonzero(mask), np.flatnonzero(self.seen & ~mask)) for mask in held_out]

    def rows_of(self, parts: Bool[np.ndarray, "s k"]) -> list[Int[np.ndarray, " b"]]:
        """Return the rows of a fit that sees only some of the folds, for each of s sets of
        folds."""
        rows = self.everyone
        labels = self.labels[rows]
        return [rows[subset[labels]] for subset in parts]

    def thin(self, max_rows: int | None, counts: Float[np.ndarray, " m"] | None = None) -> "Folds":
        """Return folds whose fits see at most `max_rows` rows; every row is still held out once.

        The rows are evenly spaced, or at even steps of the summed `counts` where these are given.
        """
        size = self.num_everyone
        if max_rows is None or (size <= max_rows and counts is None):
            return self
        rows = self.everyone
        if counts is None:
            chosen = np.linspace(0, size - 1, max_rows).astype(int)
        else:
            total, wanted = np.cumsum(counts[rows]), min(max_rows, size)
            chosen = np.minimum(
                np.searchsorted(total, (np.arange(wanted) + 0.5) / wanted * total[-1]), size - 1
            )
        seen = np.zeros(len(self.labels), bool)
        seen[rows[chosen]] = True
        return self._replace(seen=seen)

    def totals(
        self, rows: Float[np.ndarray, "m p"], counts: Float[np.ndarray, " m"] | None = None
    ) -> Float[np.ndarray, "k p"]:
        """Return the sum of rows over each fold, each row `counts` times; both may have padding
        after them."""
        folds = np.arange(self.num_folds)
        totals = np.zeros((len(folds), rows.shape[1]))
        for block in in_blocks(len(self.labels), len(folds) + rows.shape[1]):
            indicator = (folds[:, None] == self.labels[block]).astype(float)
            totals += (indicator if counts is None else indicator * counts[block]) @ rows[block]
        return totals

    def scatter(
        self, parts: Float[np.ndarray, "k b *p"], num_rows: int
    ) -> Float[np.ndarray, " m *p"]:
        """Return held-out values by row, from values by fold; zero on padding."""
        rows, real = self.held_out()
        scattered = np.zeros((num_rows, *parts.shape[2:]))
        scattered[rows[real]] = parts[real]
        return scattered


class Subsets(NamedTuple):
    """The sets of folds on which a fit is made again, to see how far its mean moves.

    halves : (h, k) about half of the folds, and the other half, balanced: two folds are together as
        often as apart, so that for a mean of independent folds the mean squared deviation is that
        of the jackknife (McCarthy 1969, *Pseudo-replication: half samples*).
    quarters : (r, k) about a quarter; none for fewer than four folds.
    """

    halves: Bool[np.ndarray, "h k"]
    quarters: Bool[np.ndarray, "r k"]

    @staticmethod
    @functools.cache
    def of(num_folds: int) -> "Subsets":
        """Return those of `num_folds` folds, from the rows of a Hadamard matrix."""
        signs = scipy.linalg.hadamard(1 << (num_folds - 1).bit_length())[1:, :num_folds] > 0
        shares = signs.mean(axis=1)
        signs = signs[(shares >= 1 / 3) & (shares <= 2 / 3)]
        crossed = [
            a & b
            for one, two in itertools.pairwise(signs)
            for a in (one, ~one)
            for b in (two, ~two)
        ]
        quarters = np.array(crossed, bool).reshape(-1, num_folds)
        quarters = quarters[np.abs(quarters.mean(axis=1) - 0.25) <= 0.1]
        subsets = Subsets(np.concatenate([signs, ~signs]), quarters[: 2 * num_folds])
        for sets in subsets:
            sets.flags.writeable = False  # all who ask have the same
        return subsets


def padded(rows: int) -> int:
    """Return the next multiple of `PAD`."""
    return -(-rows // PAD) * PAD


def pad_rows(array: np.ndarray) -> np.ndarray:
    """Return the array with rows of zeros up to a multiple of `PAD`."""
    extra = padded(len(array)) - len(array)
    return np.concatenate([array, np.zeros((extra, *array.shape[1:]), array.dtype)])


def ragged(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return row lists of different lengths as one padded array (k, b) and the mask of its real
    entries."""
    width = max(PAD, padded(max((len(indices) for indices in parts), default=0)))
    rows = np.zeros((len(parts), width), int)
    mask = np.zeros((len(parts), width), bool)
    for k, indices in enumerate(parts):
        rows[k, : len(indices)] = indices
        mask[k, : len(indices)] = True
    return rows, mask
