"""Actions: the n×i matrices S through which a computation-aware process sees its data."""

import abc
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mcmcpost._checks import fault
from mcmcpost.kernels import AbstractKernel, gram

TILE = 2**19
"""Kernel entries alive at a time, per product: memory is O(TILE + ni), never O(n²)."""


class AbstractActions(eqx.Module):
    """A matrix S (n, i), known by its products."""

    @property
    @abc.abstractmethod
    def num_actions(self) -> int:
        """i."""

    @abc.abstractmethod
    def project(self, V: Float[Array, "n k"]) -> Float[Array, "i k"]:
        """Return SᵀV."""

    @abc.abstractmethod
    def column(self, j: Int[Array, ""], n: int) -> Float[Array, " n"]:
        """Return the action s_j (n,)."""

    @abc.abstractmethod
    def gram(self) -> Float[Array, "i i"]:
        """Return SᵀS."""

    @abc.abstractmethod
    def cross(
        self, kernel: AbstractKernel, Z: Float[Array, "o d"], X: Float[Array, "n d"], *, tile: int = TILE
    ) -> Float[Array, "o i"]:
        """Return K(Z, X) S for X (n, d), row block by row block, recomputed in a backward pass."""

    @abc.abstractmethod
    def normalised(self) -> "tuple[AbstractActions, Bool[Array, ' i']]":
        """Return SM with orthonormal columns, and which of them are zero because S has less than full rank.

        M is constant under differentiation: objectives that depend on the span of S alone have the right gradient.
        """


class DenseActions(AbstractActions):
    """Any actions, as a matrix (n, i)."""

    matrix: Float[Array | np.ndarray, "n i"]

    @property
    def num_actions(self) -> int:
        return self.matrix.shape[1]

    def project(self, V: Float[Array, "n k"]) -> Float[Array, "i k"]:
        return _matmul(jnp.asarray(self.matrix).T, V)

    def column(self, j: Int[Array, ""], n: int) -> Float[Array, " n"]:  # noqa: ARG002
        return jnp.asarray(self.matrix)[:, j]

    def gram(self) -> Float[Array, "i i"]:
        return self.project(jnp.asarray(self.matrix))

    def cross(
        self, kernel: AbstractKernel, Z: Float[Array, "o d"], X: Float[Array, "n d"], *, tile: int = TILE
    ) -> Float[Array, "o i"]:
        matrix = jnp.asarray(self.matrix)
        return _by_row_blocks(lambda rows: _matmul(gram(kernel, rows, X), matrix), Z, len(X), tile)

    def normalised(self) -> tuple[AbstractActions, Bool[Array, " i"]]:
        matrix = jnp.asarray(self.matrix)
        fixed = jax.lax.stop_gradient(matrix)
        norms = jnp.linalg.norm(fixed, axis=0)
        scale = jnp.where(norms > 0, 1 / jnp.where(norms > 0, norms, 1), 0)
        unit = fixed * scale[None, :]
        squares, vectors = jnp.linalg.eigh(_matmul(unit.T, unit))
        live = squares > max(matrix.shape) * jnp.finfo(matrix.dtype).eps * squares[-1]
        shrink = jnp.where(live, 1 / jnp.sqrt(jnp.where(live, squares, 1)), 0)
        return DenseActions(_matmul(matrix, scale[:, None] * vectors * shrink[None, :])), ~live


class SparseActions(AbstractActions):
    """Actions that share no row: i groups of at most k rows each.

    values : (i, k) the entries; those outside the mask are ignored.
    rows : (i, k) where they stand. mask : (i, k) which are in use.
    """

    values: Float[Array | np.ndarray, "i k"]
    rows: Int[Array | np.ndarray, "i k"]
    mask: Bool[Array | np.ndarray, "i k"]

    @property
    def num_actions(self) -> int:
        return self.values.shape[0]

    def entries(self) -> Float[Array, "i k"]:
        """Return the values, zero outside the mask."""
        return jnp.where(self.mask, self.values, 0)

    def project(self, V: Float[Array, "n k"]) -> Float[Array, "i k"]:
        return jnp.einsum("ik,ikc->ic", self.entries(), V[self.rows], precision="highest")

    def column(self, j: Int[Array, ""], n: int) -> Float[Array, " n"]:
        entries = self.entries()
        return jnp.zeros(n, entries.dtype).at[jnp.asarray(self.rows)[j]].add(entries[j])

    def gram(self) -> Float[Array, "i i"]:
        return jnp.diag(jnp.sum(self.entries() ** 2, axis=1))

    def cross(
        self, kernel: AbstractKernel, Z: Float[Array, "o d"], X: Float[Array, "n d"], *, tile: int = TILE
    ) -> Float[Array, "o i"]:
        entries, points = self.entries(), X[self.rows.reshape(-1)]

        def block(rows: Float[Array, "b d"]) -> Float[Array, "b i"]:
            return jnp.sum(gram(kernel, rows, points).reshape(-1, *entries.shape) * entries[None], axis=2)

        return _by_row_blocks(block, Z, len(points), tile)

    def normalised(self) -> tuple[AbstractActions, Bool[Array, " i"]]:
        norms = jnp.linalg.norm(jax.lax.stop_gradient(self.entries()), axis=1)
        live = norms > 0
        values = jnp.asarray(self.values) / jnp.where(live, norms, 1)[:, None]
        return SparseActions(values, self.rows, self.mask), ~live


def balanced_blocks(n: int, num_actions: int) -> tuple[Int[np.ndarray, "i k"], Bool[np.ndarray, "i k"]]:
    """Cut n rows into blocks of consecutive rows whose lengths differ by one at most: none empty, no row dropped.

    Returns
    -------
    rows : (i, k) the row numbers, k = ⌈n/i⌉; a short block repeats its last row there. mask : (i, k) without these.

    Raises
    ------
    ValueError : not between 1 and n blocks.
    """
    if not 1 <= num_actions <= n:
        raise ValueError(fault("balanced_blocks", f"between 1 and {n} actions", num_actions, "Use one row a block."))
    width = -(-n // num_actions)
    starts = (np.arange(num_actions + 1) * n) // num_actions
    place = starts[:-1, None] + np.arange(width)[None, :]
    return np.minimum(place, starts[1:, None] - 1), place < starts[1:, None]


def near_order(X: Float[np.ndarray, "n d"], width: int) -> Int[np.ndarray, " n"]:
    """Return an order of the rows in which neighbours are near: halves at the medians of widest coordinates.

    Coordinates are in units of their standard deviations; groups of at most `width` rows stay as they come.
    """
    spread = X.std(axis=0)
    scaled = X / np.where(spread > 0, spread, 1)

    def split(rows: Int[np.ndarray, " m"]) -> list[np.ndarray]:
        if len(rows) <= width:
            return [rows]
        widest = np.argmax(scaled[rows].std(axis=0))
        ordered = rows[np.argsort(scaled[rows, widest], kind="stable")]
        middle = len(rows) // 2
        return split(ordered[:middle]) + split(ordered[middle:])

    return np.concatenate(split(np.arange(len(X))))


def _by_row_blocks(
    function: Callable[[Float[Array, "b d"]], Float[Array, "b i"]], Z: Float[Array, "o d"], columns: int, tile: int
) -> Float[Array, "o i"]:
    o, d = Z.shape
    blocks = -(-o // int(np.clip(tile // columns, 1, o)))
    length = -(-o // blocks)
    rows = Z[np.minimum(np.arange(blocks * length), o - 1)].reshape(blocks, length, d)
    values = jax.lax.map(jax.checkpoint(function), rows)
    return values.reshape(blocks * length, -1)[:o]


def _matmul(left: Float[Array, "a b"], right: Float[Array, "b c"]) -> Float[Array, "a c"]:
    return jnp.matmul(left, right, precision="highest")
