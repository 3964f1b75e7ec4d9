"""Sums over draws that add: all that a linear fit, its cross-fitting, its ridge and its refits
need."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from mcmcpost.core.arrays import in_blocks


class Moments(NamedTuple):
    """Sums over the draws of each fold, of controls x (q of them) and quantities f (p of them).

    They add over chunks, chains and processes, and over time as a sampler goes on: the moments of
    all draws are the sum of those of any parts of them, whatever the order. Nothing is kept for
    each draw.

    gram : (k, q, q), Σ n x xᵀ, where n is the weight of a draw.
    cross : (k, q, p), Σ n x fᵀ.
    squares : (k, p), Σ n f².
    """

    gram: Float[np.ndarray, "k q q"]
    cross: Float[np.ndarray, "k q p"]
    squares: Float[np.ndarray, "k p"]

    @classmethod
    def of(
        cls,
        controls: Float[np.ndarray, "m q"],
        values: Float[np.ndarray, "m p"],
        labels: Int[np.ndarray, " m"],
        counts: Float[np.ndarray, " m"],
        num_folds: int,
    ) -> "Moments":
        """Return the moments of some draws, whose folds are `labels`; those of label −1 are left
        out."""
        whole = [(controls, values, labels, counts)]
        return cls.over_blocks(whole, num_folds, controls.shape[1], values.shape[1])

    @classmethod
    def over_blocks(
        cls,
        blocks: Iterable[tuple[np.ndarray, ...]],
        num_folds: int,
        q: int,
        p: int,
        known: Float[np.ndarray, "k q q"] | None = None,
    ) -> "Moments":
        """Return the moments of draws that come in blocks (controls, values, labels, counts), as in
        `of`.

        known : the products of the controls, where there are moments of other quantities.
        """
        gram, cross, squares = cls.zero(num_folds, q, p)
        for controls, values, labels, counts in blocks:
            for fold in range(num_folds):
                rows = np.flatnonzero(labels == fold)
                for block in in_blocks(len(rows), q + p):  # copies of a few rows at a time
                    root = np.sqrt(counts[rows[block]])[:, None]
                    x, f = controls[rows[block]] * root, values[rows[block]] * root
                    if known is None:
                        gram[fold] += x.T @ x
                    cross[fold] += x.T @ f
                    squares[fold] += (f**2).sum(axis=0)
        return cls(gram if known is None else known, cross, squares)

    @classmethod
    def zero(cls, num_folds: int, q: int, p: int) -> "Moments":
        """Return the moments of no draw."""
        return cls(
            np.zeros((num_folds, q, q)), np.zeros((num_folds, q, p)), np.zeros((num_folds, p))
        )

    def __add__(self, other: "Moments") -> "Moments":  # type: ignore[override]
        """Return the moments of the draws of both."""
        return Moments(*(one + two for one, two in zip(self, other, strict=True)))

    def of_other_values(
        self,
        controls: Float[np.ndarray, "m q"],
        values: Float[np.ndarray, "m p"],
        labels: Int[np.ndarray, " m"],
        counts: Float[np.ndarray, " m"],
    ) -> "Moments":
        """Return the moments of other quantities of the same draws; see `of`."""
        whole = [(controls, values, labels, counts)]
        num_folds, q, _ = self.gram.shape
        return Moments.over_blocks(whole, num_folds, q, values.shape[1], known=self.gram)

    def over(self, kept: Bool[np.ndarray, "s k"]) -> "Moments":
        """Return the moments of s sets of folds."""
        return Moments(*(np.tensordot(kept.astype(float), sums, 1) for sums in self))

    def mixed(self, mix: Float[np.ndarray, "q r"]) -> "Moments":
        """Return the moments of the controls xᵀM."""
        return Moments(mix.T @ self.gram @ mix, mix.T @ self.cross, self.squares)

    def less(self, coefficients: Float[np.ndarray, "q p"]) -> "Moments":
        """Return the moments of the quantities f − xᵀθ.

        Their squares lose digits where f − xᵀθ is small beside f: relative to Σf² they are good to
        rounding.
        """
        image = self.gram @ coefficients
        squares = (
            self.squares
            - 2 * (coefficients * self.cross).sum(axis=1)
            + (coefficients * image).sum(axis=1)
        )
        return Moments(self.gram, self.cross - image, np.maximum(squares, 0.0))

    def quantities(self, columns: Int[np.ndarray, " k"] | slice) -> "Moments":
        """Return the moments of some quantities."""
        return Moments(self.gram, self.cross[..., columns], self.squares[..., columns])

    def controls(self, places: Int[np.ndarray, " r"]) -> "Moments":
        """Return the moments of some controls."""
        return Moments(self.gram[:, places][:, :, places], self.cross[:, places], self.squares)

    def without_last(self, size: int, coefficients: Float[np.ndarray, "r p"]) -> "Moments":
        """Return the moments of the first controls and of f + xᵀθ, where x are the others, which
        are left out."""
        tail = self.gram[:, :, size:] @ coefficients
        squares = (coefficients * (2 * self.cross[:, size:] + tail[:, size:])).sum(axis=1)
        return Moments(
            self.gram[:, :size, :size],
            self.cross[:, :size] + tail[:, :size],
            self.squares + squares,
        )


class Outline(NamedTuple):
    """What the choice of a fit and its error need to know of draws beside their sums.

    sizes : (k,) draws of each fold, by weight.
    participants : (p,) draws that make up the variance of a quantity. num_train : those of the
        smallest fit without a fold. num_coordinates : d. All as in `Problem`.
    """

    sizes: Float[np.ndarray, " k"]
    participants: Float[np.ndarray, " p"]
    num_train: int
    num_coordinates: int

    @property
    def total(self) -> float:
        """The draws, by weight."""
        return float(self.sizes.sum())

    def select(self, columns: np.ndarray | slice) -> "Outline":
        """Return the outline of some integrands."""
        return self._replace(participants=self.participants[columns])
