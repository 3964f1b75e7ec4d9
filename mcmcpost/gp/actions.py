"""Actions, the n×i matrices on which a computation-aware process projects its data, and policies
that choose them.

In the product of a kernel matrix with block-sparse actions that hold every row each kernel entry is
evaluated once.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from mcmcpost.core.arguments import as_float64, check_flags
from mcmcpost.core.errors import InputError
from mcmcpost.stein import AbstractKernel, gram
from mcmcpost.stein.products import kernel_operator

TILE_ROWS = 256
"""Most rows of a square tile of the kernel matrix: half a megabyte in double precision, which stays
in cache."""

type Learned = tuple[AbstractKernel, Float[Array, "t g k"]]
"""The kernel, and the entries of t tiles with g actions of k rows each."""

type Pair = tuple[Int[Array, ""], Int[Array, ""]]
"""Two tiles."""


def block_image(
    kernel: AbstractKernel,
    X: Float[Array, "n d"],
    entries: Float[Array, "i k"],
    rows: Int[Array | np.ndarray, "i k"],
    mask: Bool[Array | np.ndarray, "i k"],
) -> Float[Array, "n i"]:
    """Return K(X, X) S for actions S that share no row and leave none out.

    The matrix is symmetric, so the tiles on one side of its diagonal are enough. A backward pass
    evaluates each of them once more, with its derivatives. Memory is O(ni) and a tile. The kernel
    and the entries have derivatives, X has none.

    Parameters
    ----------
    entries : (i, k), zero outside the mask. rows : (i, k) where they stand. mask : (i, k) which are
        in use.
    """
    (i, k), n = entries.shape, len(X)
    # Long actions are cut into pieces of one tile each, short ones share a tile in groups: tiles of
    # near equal size keep padding short.
    pieces = -(-k // TILE_ROWS)
    blocks = -(-i // max(TILE_ROWS // k, 1))
    group = -(-i // blocks)
    pad = (0, blocks * group - i), (0, pieces * -(-k // pieces) - k)
    tiles = blocks * pieces
    values = jnp.pad(entries, pad).reshape(tiles, group, -1)
    # Padding repeats a row, with entries of zero: it adds nothing to the image.
    order = jnp.pad(jnp.asarray(rows), pad, mode="edge").reshape(-1)
    columns = group * (jnp.arange(tiles) // pieces)
    points = X[order].reshape(tiles, -1, X.shape[1])
    image = _image((jax.tree.map(jnp.asarray, kernel), values), points, columns, blocks * group)
    used = jnp.pad(jnp.asarray(mask), pad).reshape(-1)
    # Where each row of X stands among the tiles. Padding is sent to n, out of range, and dropped.
    place = (
        jnp.zeros(n, order.dtype)
        .at[jnp.where(used, order, n)]
        .set(jnp.arange(order.size), mode="drop")
    )
    return image[place, :i]


# The backward pass is written by hand: autodiff of the scan would keep all tiles, n²/2 entries.
@eqx.filter_custom_vjp
def _image(
    learned: Learned, points: Float[Array, "t r d"], columns: Int[Array, " t"], width: int
) -> Array:
    """Return the image (t·r, width), rows in the order of the tiles; tile t acts in g columns from
    columns[t] on."""
    kernel, values = learned
    tiles, rows = points.shape[:2]

    def add(image: Array, pair: Pair) -> tuple[Array, None]:
        a, b = pair
        tile = gram(kernel, points[a], points[b])
        image = _add_at(image, a * rows, columns[b], _matmul(tile, _spread(values[b])))
        # A tile on the diagonal is its own mirror image and must count once.
        mirrored = jnp.where(a == b, 0, _matmul(tile.T, _spread(values[a])))
        return _add_at(image, b * rows, columns[a], mirrored), None

    return jax.lax.scan(add, jnp.zeros((tiles * rows, width), points.dtype), _pairs(tiles))[0]


@_image.def_fwd  # type: ignore[untyped-decorator]
def _image_forward(perturbed: Any, *arguments: Any) -> tuple[Array, None]:  # noqa: ARG001
    return _image(*arguments), None


@_image.def_bwd  # type: ignore[untyped-decorator]
def _image_backward(
    residuals: None,  # noqa: ARG001
    slope: Array,
    perturbed: Any,  # noqa: ARG001
    learned: Learned,
    points: Float[Array, "t r d"],
    columns: Int[Array, " t"],
    width: int,  # noqa: ARG001
) -> Learned:
    """Return the gradient of the inner product of the image with `slope`, tile by tile."""
    kernel, values = learned
    (tiles, rows), group = points.shape[:2], values.shape[1]

    def add(total: Learned, pair: Pair) -> tuple[Learned, None]:
        a, b = pair
        above = jax.lax.dynamic_slice(slope, (a * rows, columns[b]), (rows, group))
        below = jnp.where(
            a == b, 0, jax.lax.dynamic_slice(slope, (b * rows, columns[a]), (rows, group))
        )

        # One derivative of the tile serves both of its products.
        def inner(terms: tuple[AbstractKernel, Array, Array]) -> Float[Array, ""]:
            kernel, left, right = terms
            tile = gram(kernel, points[a], points[b])
            return jnp.sum(above * _matmul(tile, _spread(right))) + jnp.sum(
                below * _matmul(tile.T, _spread(left))
            )

        of_kernel, of_left, of_right = eqx.filter_grad(inner)((kernel, values[a], values[b]))
        return (
            jax.tree.map(jnp.add, total[0], of_kernel),
            total[1].at[a].add(of_left).at[b].add(of_right),
        ), None

    nothing = jax.tree.map(jnp.zeros_like, eqx.filter(learned, eqx.is_inexact_array))
    return jax.lax.scan(add, nothing, _pairs(tiles))[0]


def _pairs(tiles: int) -> tuple[Int[Array, " p"], Int[Array, " p"]]:
    """Return the tiles on and above the diagonal."""
    above, right = np.triu_indices(tiles)
    return jnp.asarray(above), jnp.asarray(right)


def _spread(values: Float[Array, "g k"]) -> Float[Array, "gk g"]:
    """Return the actions of a tile as columns that share no row."""
    group, k = values.shape
    # (g, k) entries on the diagonal of blocks: the tile's product is then one GEMM.
    return (values[:, :, None] * jnp.eye(group, dtype=values.dtype)[:, None, :]).reshape(
        group * k, group
    )


def _add_at(image: Array, row: Array, column: Array, block: Array) -> Array:
    before = jax.lax.dynamic_slice(image, (row, column), block.shape)
    return jax.lax.dynamic_update_slice(image, before + block, (row, column))


def _matmul(left: Float[Array, "a b"], right: Float[Array, "b c"]) -> Float[Array, "a c"]:
    return jnp.matmul(left, right, precision="highest")


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
        self,
        kernel: AbstractKernel,
        Z: Float[Array, "o d"],
        X: Float[Array, "n d"],
        *,
        tile: int = TILE,
    ) -> Float[Array, "o i"]:
        """Return K(Z, X) S for X (n, d), row block by row block, recomputed in a backward pass."""

    @abc.abstractmethod
    def image(self, kernel: AbstractKernel, X: Float[Array, "n d"]) -> Float[Array, "n i"]:
        """Return K(X, X) S for the rows X (n, d) that S acts on."""

    @abc.abstractmethod
    def normalised(self) -> "tuple[AbstractActions, Bool[Array, ' i']]":
        """Return SM with orthonormal columns, and which of them are zero because S has less than
        full rank.

        M is constant under differentiation: objectives that depend on the span of S alone have the
        right gradient.
        """


class DenseActions(AbstractActions):
    """Any actions, as a matrix (n, i)."""

    matrix: Float[Array | np.ndarray, "n i"]

    @property
    def num_actions(self) -> int:
        return self.matrix.shape[1]

    def project(self, V: Float[Array, "n k"]) -> Float[Array, "i k"]:
        return _exact_matmul(jnp.asarray(self.matrix).T, V)

    def column(self, j: Int[Array, ""], n: int) -> Float[Array, " n"]:  # noqa: ARG002
        return jnp.asarray(self.matrix)[:, j]

    def gram(self) -> Float[Array, "i i"]:
        return self.project(jnp.asarray(self.matrix))

    def cross(
        self,
        kernel: AbstractKernel,
        Z: Float[Array, "o d"],
        X: Float[Array, "n d"],
        *,
        tile: int = TILE,
    ) -> Float[Array, "o i"]:
        matrix = jnp.asarray(self.matrix)
        return _by_row_blocks(
            lambda rows: _exact_matmul(gram(kernel, rows, X), matrix), Z, len(X), tile
        )

    def image(self, kernel: AbstractKernel, X: Float[Array, "n d"]) -> Float[Array, "n i"]:
        return self.cross(kernel, X, X)

    def normalised(self) -> tuple[AbstractActions, Bool[Array, " i"]]:
        matrix = jnp.asarray(self.matrix)
        # The objective depends on the span alone: M held still leaves its gradient right, and
        # eigenvectors, whose derivative is infinite where eigenvalues meet, out of it.
        fixed = jax.lax.stop_gradient(matrix)
        norms = jnp.linalg.norm(fixed, axis=0)
        scale = jnp.where(norms > 0, 1 / jnp.where(norms > 0, norms, 1), 0)
        # Unit columns first: the rank then does not depend on the units of the actions.
        unit = fixed * scale[None, :]
        squares, vectors = jnp.linalg.eigh(_exact_matmul(unit.T, unit))
        # The usual numerical rank: below it an eigenvalue of the Gram matrix is rounding.
        live = squares > max(matrix.shape) * jnp.finfo(matrix.dtype).eps * squares[-1]
        shrink = jnp.where(live, 1 / jnp.sqrt(jnp.where(live, squares, 1)), 0)
        return DenseActions(
            _exact_matmul(matrix, scale[:, None] * vectors * shrink[None, :])
        ), ~live


class SparseActions(AbstractActions):
    """Actions that share no row: i groups of at most k rows each.

    values : (i, k) the entries; those outside the mask are ignored.
    rows : (i, k) where they stand. mask : (i, k) which are in use.
    whole : whether every row of the data is in a group. Each kernel entry is then evaluated once in
        a product and once in its derivatives: at n = 50,000 a step of training takes a third of the
        time.
    """

    values: Float[Array | np.ndarray, "i k"]
    rows: Int[Array | np.ndarray, "i k"]
    mask: Bool[Array | np.ndarray, "i k"]
    whole: bool = eqx.field(static=True, default=False)

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
        self,
        kernel: AbstractKernel,
        Z: Float[Array, "o d"],
        X: Float[Array, "n d"],
        *,
        tile: int = TILE,
    ) -> Float[Array, "o i"]:
        entries, points = self.entries(), X[self.rows.reshape(-1)]

        def block(rows: Float[Array, "b d"]) -> Float[Array, "b i"]:
            # (b, i, k) kernel entries, summed over the k rows of each action.
            return jnp.sum(
                gram(kernel, rows, points).reshape(-1, *entries.shape) * entries[None], axis=2
            )

        return _by_row_blocks(block, Z, len(points), tile)

    def image(self, kernel: AbstractKernel, X: Float[Array, "n d"]) -> Float[Array, "n i"]:
        if not self.whole:
            return self.cross(kernel, X, X)
        return block_image(kernel, X, self.entries(), self.rows, self.mask)

    def normalised(self) -> tuple[AbstractActions, Bool[Array, " i"]]:
        norms = jnp.linalg.norm(jax.lax.stop_gradient(self.entries()), axis=1)
        live = norms > 0
        values = jnp.asarray(self.values) / jnp.where(live, norms, 1)[:, None]
        return SparseActions(values, self.rows, self.mask, self.whole), ~live


def balanced_blocks(
    n: int, num_actions: int
) -> tuple[Int[np.ndarray, "i k"], Bool[np.ndarray, "i k"]]:
    """Cut n rows into blocks of consecutive rows whose lengths differ by one at most: none empty,
    no row dropped.

    Returns
    -------
    rows : (i, k) the row numbers, k = ⌈n/i⌉; a short block repeats its last row there. mask : (i,
        k) without these.

    Raises
    ------
    ValueError : not between 1 and n blocks.
    """
    if not 1 <= num_actions <= n:
        raise InputError(
            "balanced_blocks", f"between 1 and {n} actions", num_actions, "Use one row a block."
        )
    width = -(-n // num_actions)
    starts = (np.arange(num_actions + 1) * n) // num_actions
    place = starts[:-1, None] + np.arange(width)[None, :]
    return np.minimum(place, starts[1:, None] - 1), place < starts[1:, None]


def near_order(X: Float[np.ndarray, "n d"], width: int) -> Int[np.ndarray, " n"]:
    """Return an order of the rows in which neighbours are near: halves at the medians of widest
    coordinates.

    Coordinates are in units of their standard deviations; groups of at most `width` rows stay as
    they come.
    """
    spread = X.std(axis=0)
    scaled = X / np.where(spread > 0, spread, 1)

    def split(rows: Int[np.ndarray, " m"]) -> list[np.ndarray]:
        if len(rows) <= width:
            return [rows]
        widest = np.argmax(scaled[rows].std(axis=0))
        # Stable, so that blocks of equal inputs do not depend on the sorting algorithm.
        ordered = rows[np.argsort(scaled[rows, widest], kind="stable")]
        middle = len(rows) // 2
        return split(ordered[:middle]) + split(ordered[middle:])

    return np.concatenate(split(np.arange(len(X))))


def _by_row_blocks(
    function: Callable[[Float[Array, "b d"]], Float[Array, "b i"]],
    Z: Float[Array, "o d"],
    columns: int,
    tile: int,
) -> Float[Array, "o i"]:
    o, d = Z.shape
    # So many rows that a block of the kernel matrix has at most `tile` entries.
    blocks = -(-o // int(np.clip(tile // columns, 1, o)))
    length = -(-o // blocks)
    rows = Z[np.minimum(np.arange(blocks * length), o - 1)].reshape(blocks, length, d)
    # Recomputed in the backward pass: kept, the blocks would be the whole matrix.
    values = jax.lax.map(jax.checkpoint(function), rows)
    return values.reshape(blocks * length, -1)[:o]


def _exact_matmul(left: Float[Array, "a b"], right: Float[Array, "b c"]) -> Float[Array, "a c"]:
    return jnp.matmul(left, right, precision="highest")


type SystemProduct = Callable[[Float[Array, " n"]], Float[Array, " n"]]
"""s ↦ (K + σ²I) s."""


class IterationState(NamedTuple):
    """The posterior after `step` actions: C = DDᵀ approximates (K + σ²I)⁻¹ from below.

    weights : (n,), v = Cy. residual : (n,), y − (K + σ²I)v.
    directions : (n, i), D, conjugate: Dᵀ(K + σ²I)D = I; columns not reached yet, and those of
        actions that depended on earlier ones, are zero. images : (n, i), (K + σ²I)D.
    step : actions taken. rank : those that were independent.
    """

    weights: Float[Array, " n"]
    residual: Float[Array, " n"]
    directions: Float[Array, "n i"]
    images: Float[Array, "n i"]
    step: Int[Array, ""]
    rank: Int[Array, ""]


class AbstractChooser(eqx.Module):
    """Chooses the next action."""

    @abc.abstractmethod
    def choose(self, state: IterationState) -> Float[Array, " n"]:
        """Return the action (n,) that follows `state`."""


def init(outputs: Float[Array, " n"], num_actions: int) -> IterationState:
    """Return the prior, with room for `num_actions`; outputs (n,) have mean zero."""
    room = jnp.zeros((len(outputs), num_actions), outputs.dtype)
    none = jnp.zeros((), int)
    return IterationState(jnp.zeros_like(outputs), outputs, room, room, none, none)


def step(
    state: IterationState, action: Float[Array, " n"], product: SystemProduct
) -> IterationState:
    """Condition on one more action: Algorithm S1 of Wenger et al. (2024), with one product instead
    of two.

    The image of the direction is updated with it, so that the residual needs no product of its own.
    Directions are conjugated twice: once loses orthogonality to rounding. An action in the span of
    earlier ones changes nothing.
    """
    # Of unit length, so that the test of novelty below has no units.
    norm = jnp.linalg.norm(action)
    direction = action / jnp.where(norm > 0, norm, 1)
    image = product(direction)
    energy = direction @ image
    # Dᵀ(K + σ²I)s from the image: conjugation needs no further product with K.
    for _ in range(2):
        overlap = state.directions.T @ image
        direction = direction - state.directions @ overlap
        image = image - state.images @ overlap
    left = direction @ image
    # What is left of sᵀ(K + σ²I)s is rounding where the action lies in the span of earlier ones.
    novel = left > len(action) * jnp.finfo(action.dtype).eps * energy
    scale = jnp.where(novel, 1 / jnp.sqrt(jnp.where(novel, left, 1)), 0)
    direction, image = scale * direction, scale * image
    # The new direction is conjugate to the others, so that it has its own coefficient and the
    # earlier ones stay.
    observed = direction @ state.residual
    return IterationState(
        state.weights + observed * direction,
        state.residual - observed * image,
        state.directions.at[:, state.step].set(direction),
        state.images.at[:, state.step].set(image),
        state.step + 1,
        state.rank + novel.astype(state.rank.dtype),
    )


@eqx.filter_jit
def take_actions(
    kernel: AbstractKernel,
    noise: Float[Array, ""],
    X: Float[Array, "n d"],
    outputs: Float[Array, " n"],
    chooser: AbstractChooser,
    num_actions: int,
) -> IterationState:
    """Take `num_actions` actions of the chooser; one product with K each, never n×n in memory."""
    operator = kernel_operator(kernel, X)

    def product(vector: Float[Array, " n"]) -> Float[Array, " n"]:
        return operator.matmul(vector[:, None])[:, 0] + noise * vector

    def advance(_: Int[Array, ""], state: IterationState) -> IterationState:
        return step(state, chooser.choose(state), product)

    return jax.lax.fori_loop(0, num_actions, advance, init(outputs, num_actions))


class Planned(AbstractChooser):
    """Actions that are known before the iteration."""

    actions: AbstractActions

    def choose(self, state: IterationState) -> Float[Array, " n"]:
        return self.actions.column(state.step, len(state.weights))


class Residual(AbstractChooser):
    """The residual of the representer weights, as in conjugate gradients."""

    def choose(self, state: IterationState) -> Float[Array, " n"]:
        return state.residual


class ActionTask(NamedTuple):
    """The data that a policy chooses actions for.

    X : (n, d). outputs : (n,), of mean zero. num_actions : at most n. key : None where the user
        gave none.
    """

    X: Float[Array, "n d"]
    outputs: Float[Array, " n"]
    num_actions: int
    key: PRNGKeyArray | None


class AbstractPolicy(eqx.Module):
    """Chooses the actions of a process."""

    @property
    @abc.abstractmethod
    def learned(self) -> bool:
        """Whether the entries of the actions are optimised with the hyper-parameters."""

    @abc.abstractmethod
    def start(self, task: ActionTask) -> AbstractChooser:
        """Return a `Planned` batch, or what chooses each action from the state of the iteration."""


class BlockActions(AbstractPolicy):
    """Block-sparse actions, one for each of i balanced blocks of rows, their n entries learned
    (CaGP-Opt).

    Wenger et al. (2024), section 4.2. They start as the sums of their blocks. Near rows share a
    block: an action then starts as a local mean instead of one over all the inputs.

    learn : whether the entries are optimised. near : whether blocks are of near rows, instead of
        consecutive ones.
    """

    learn: bool = True
    near: bool = True

    def __check_init__(self) -> None:
        check_flags("BlockActions", learn=self.learn, near=self.near)

    @property
    def learned(self) -> bool:
        return self.learn

    def start(self, task: ActionTask) -> AbstractChooser:
        rows, mask = balanced_blocks(len(task.outputs), task.num_actions)
        if self.near:
            rows = near_order(np.asarray(task.X), rows.shape[1])[rows]
        # Entries of one: the sums of the blocks.
        return Planned(SparseActions(jnp.asarray(mask, task.outputs.dtype), rows, mask, whole=True))


class ResidualActions(AbstractPolicy):
    """Residuals of conjugate gradients: the posterior mean is that of the unfinished solve
    (CaGP-CG).

    In training the actions are found anew in each round, at the hyper-parameters of the last.
    """

    @property
    def learned(self) -> bool:
        return False

    def start(self, task: ActionTask) -> AbstractChooser:  # noqa: ARG002
        return Residual()


class UnitActions(AbstractPolicy):
    """Unit vectors of evenly spaced rows: the exact process on a subset of the data."""

    @property
    def learned(self) -> bool:
        return False

    def start(self, task: ActionTask) -> AbstractChooser:
        rows = (np.arange(task.num_actions) * len(task.outputs)) // task.num_actions
        used = np.ones((task.num_actions, 1), bool)
        return Planned(SparseActions(jnp.asarray(used, task.outputs.dtype), rows[:, None], used))


class RandomActions(AbstractPolicy):
    """Independent normal entries, dense; needs a key."""

    @property
    def learned(self) -> bool:
        return False

    def start(self, task: ActionTask) -> AbstractChooser:
        if task.key is None:
            raise InputError("RandomActions", "a `key`", None, "Pass key=jax.random.key(0) to fit.")
        shape = len(task.outputs), task.num_actions
        return Planned(DenseActions(jax.random.normal(task.key, shape, task.outputs.dtype)))


class GivenActions(AbstractPolicy):
    """The first i columns of a matrix (n, at least i) that the user gives.

    learn : whether its entries are optimised.
    """

    matrix: Float[Array | np.ndarray, "n i"]
    learn: bool = False

    def __check_init__(self) -> None:
        as_float64("GivenActions", "matrix", self.matrix, "rows, actions")
        check_flags("GivenActions", learn=self.learn)

    @property
    def learned(self) -> bool:
        return self.learn

    def start(self, task: ActionTask) -> AbstractChooser:
        matrix, n, i = np.asarray(self.matrix), len(task.outputs), task.num_actions
        if (
            matrix.ndim != 2
            or matrix.shape[0] != n
            or matrix.shape[1] < i
            or not np.isfinite(matrix).all()
        ):
            expected = f"a finite matrix ({n}, at least {i})"
            raise InputError("GivenActions", expected, matrix.shape, "One row for each row of X.")
        return Planned(DenseActions(jnp.asarray(matrix[:, :i], task.outputs.dtype)))
