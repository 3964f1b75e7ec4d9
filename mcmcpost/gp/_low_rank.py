"""Symmetric matrices that are diagonal plus low rank."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float


class DiagonalPlusLowRank(NamedTuple):
    """diag(diagonal) + factor·core·factorᵀ, for each of any leading axes.

    diagonal : (..., d). factor : (..., d, k). core : (..., k, k), symmetric.
    """

    diagonal: Float[Array | np.ndarray, "*b d"]
    factor: Float[Array | np.ndarray, "*b d k"]
    core: Float[Array | np.ndarray, "*b k k"]

    def dense(self) -> Float[np.ndarray, "*b d d"]:
        """Return the whole matrix, (..., d, d)."""
        d = self.diagonal.shape[-1]
        factor = np.asarray(self.factor)
        return np.asarray(self.diagonal)[..., None] * np.eye(d) + factor @ np.asarray(self.core) @ np.swapaxes(
            factor, -1, -2
        )

    def entries(self) -> Float[np.ndarray, "*b d"]:
        """Return the diagonal of the whole matrix, (..., d)."""
        factor = np.asarray(self.factor)
        return np.asarray(self.diagonal) + np.sum(factor @ np.asarray(self.core) * factor, axis=-1)

    def matvec(self, v: Float[np.ndarray, "*b d"]) -> Float[np.ndarray, "*b d"]:
        """Return the product with vectors (..., d), O(dk)."""
        factor = np.asarray(self.factor)
        inside = np.asarray(self.core) @ (np.swapaxes(factor, -1, -2) @ v[..., None])
        return np.asarray(self.diagonal) * v + (factor @ inside)[..., 0]

    def solve(self, v: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
        """Return the inverse of one matrix times v (d,), O(dk² + k³); its diagonal part must not vanish."""
        factor, core = np.asarray(self.factor), np.asarray(self.core)
        level = np.asarray(self.diagonal)
        thin = factor / level[:, None]
        inside = np.eye(core.shape[0]) + core @ (factor.T @ thin)
        return v / level - thin @ np.linalg.solve(inside, core @ (thin.T @ v))
