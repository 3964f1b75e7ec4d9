"""Controls from the named dimensions of a trace: sums over what is exchangeable in the prior.

A variable with a dimension, as the effects of a hundred groups, is exchangeable in prior, and the
posterior of scales and of global parameters depends on it mostly through sums over the dimension.
Some hundred such sums take the place of all pairs of coordinates, over which that signal is spread,
each too small to be chosen by itself (docs/mathematics.md section 2).
"""

import abc
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from mcmcpost.control.features.families import AbstractFamily
from mcmcpost.control.problem import Problem
from mcmcpost.core.arguments import as_names
from mcmcpost.core.errors import InputError, InputTypeError
from mcmcpost.core.runtime import did_you_mean

type Labels = tuple[str, ...] | tuple[tuple[str, ...], ...]
"""The labels of a block in their order, or of a grid those of each row."""

type Structure = tuple[tuple[str, Labels], ...]
"""Blocks that a person gave, as `as_structure` keeps them: each one's name and labels."""

FEW = 6
"""Entries up to which a variable is global: each takes part by itself, and there are not enough for
a sum."""

FEW_OF_FACTOR = 15
"""The same of a packed Cholesky factor, as PyMC names it, whose entries are not exchangeable: of up
to five effects. As globals they gained two to three times as much as a block on means of four and
of five effects, and no more on six."""

INDICES = {"[": r"\[.*\]", ".": r"(?:\.\d+)+", "_": r"_\d+(?:[._]\d+)*"}
"""``z[0, 1]`` of NumPyro, PyMC and Stan's constrained names, ``z.1.2`` of Stan, ``z_0.1`` and
``z_0_1`` of nutpie."""


def structure_of(names: Sequence[str]) -> dict[str, Labels]:
    """Return the blocks that labels tell, each by its name: the labels of its coordinates, in their
    order.

    A variable of more than six entries is a block. Its dimensions of at most six entries split it,
    as into ``z[:, 0]`` and ``z[:, 1]``, if every part has more than six entries itself. With two
    longer dimensions it is a grid, ``z[:, :]``: the labels of each row.
    """
    # A trace writes all of its indices in one way: beside z[0] and z[1], beta_1 and beta_2 are
    # variables of their own.
    ends = re.compile(rf"^.+?({'|'.join(INDICES.values())})$")
    styles = {match[1][0] for match in map(ends.match, names) if match}
    style = next((style for style in INDICES if style in styles), None)
    if style is None:
        return {}
    pattern = re.compile(rf"^(.+?)({INDICES[style]})$")
    variables: dict[tuple[str, int], list[tuple[str, list[str]]]] = {}
    for match in filter(None, map(pattern.match, names)):
        inside = match[2][1:-1].split(",") if style == "[" else re.split(r"[._]", match[2][1:])
        index = [entry.strip() for entry in inside]
        # The depth tells x_1 of a vector x from x_1_0 of a vector x_1.
        variables.setdefault((match[1], len(index)), []).append((match[0], index))
    blocks: dict[str, Labels] = {}
    for (name, depth), members in variables.items():
        if len(members) <= (FEW_OF_FACTOR if "cholesky-" in name else FEW):
            continue
        # A short dimension, as intercept and slope, is no sum: its entries are blocks of their own.
        short = [axis for axis in range(depth) if len({index[axis] for _, index in members}) <= FEW]
        parts: dict[str, dict[tuple[str, ...], str]] = {}
        for label, index in members:
            entries = [index[axis] if axis in short else ":" for axis in range(depth)]
            long = tuple(index[axis] for axis in range(depth) if axis not in short)
            parts.setdefault(f"{name}[{', '.join(entries)}]" if depth > 1 else name, {})[long] = (
                label
            )
        # no dimension is long, or not each entry of it has all of the others
        if min(map(len, parts.values())) <= FEW:
            parts = {
                f"{name}[{', '.join(':' * depth)}]": {
                    tuple(index): label for label, index in members
                }
            }
        blocks |= {block_name: _in_rows(labels) for block_name, labels in parts.items()}
    return blocks


def _in_rows(labels: Mapping[tuple[str, ...], str]) -> Labels:
    """Return labels by their indices as a grid, if there are two, both long, and it is complete; or
    as they are."""
    places = [list(dict.fromkeys(along)) for along in zip(*labels, strict=True)]
    if (
        len(places) == 2
        and min(map(len, places)) > FEW
        and len(labels) == len(places[0]) * len(places[1])
    ):
        return tuple(tuple(labels[row, column] for column in places[1]) for row in places[0])
    return tuple(labels.values())


def as_structure(structure: Any) -> Any:
    """Return a mapping as a tuple, which can be hashed, and anything else as it is: see
    `check_structure`."""
    if not isinstance(structure, Mapping):
        return structure
    return tuple((str(name), _as_labels(str(name), labels)) for name, labels in structure.items())


def _as_labels(name: str, labels: Any) -> Labels:
    """Return the labels that a person gave a block, or each row of a grid, as tuples."""
    given = (
        tuple(labels)
        if isinstance(labels, Iterable) and not isinstance(labels, str | bytes)
        else labels
    )
    if isinstance(given, tuple) and given and not any(isinstance(row, str) for row in given):
        return tuple(tuple(map(str, as_names("structure", name, row))) for row in given)
    # those of an array are of a type of NumPy
    return tuple(map(str, as_names("structure", name, given)))


def check_structure(where: str, structure: Any) -> None:
    """Refuse what `as_structure` did not make of blocks of two labels or more, each in one block;
    None passes.

    A grid has two rows or more, and two columns.
    """
    if structure is None:
        return
    cure = "Change what mp.structure(trace) returns; {} is no structure."
    if not (
        isinstance(structure, tuple)
        and all(isinstance(item, tuple) and len(item) == 2 for item in structure)
    ):
        got = type(structure).__name__
        raise InputTypeError(
            where, "`structure` to be a mapping from names of blocks to labels", got, cure
        )
    block_of: dict[str, str] = {}
    for name, labels in structure:
        if len(labels) < 2:
            cure = "Leave it out: a coordinate in no block is global."
            raise InputError(
                where, f"`structure` with at least two labels in block `{name}`", labels, cure
            )
        if not isinstance(labels[0], str) and (
            len(set(map(len, labels))) > 1 or len(labels[0]) < 2
        ):
            cure = "What is no complete table is a block: one list of its labels."
            got = f"rows of {', '.join(str(len(row)) for row in labels)}"
            raise InputError(
                where,
                f"`structure` with rows of one length, at least two, in grid `{name}`",
                got,
                cure,
            )
        for label in _flat(labels):
            if label in block_of:
                got = f"{label} in {block_of[label]} and {name}"
                raise InputError(
                    where, "`structure` with every label in one block, once", got, cure
                )
            block_of[label] = name


def _flat(labels: Labels) -> list[str]:
    """Return the labels of a block, or of a grid row after row."""
    return [label for row in labels for label in ([row] if isinstance(row, str) else row)]


class Blocks(NamedTuple):
    """The coordinates of a trace by kind.

    globals : (g,) coordinates in no block: scalars, and those of variables of few entries.
    blocks : the coordinates of each variable along its long dimension, (m,); of one with a short
        second dimension, those of each of its entries; of a grid, rows by columns, (r, c).
    """

    globals: Int[np.ndarray, " g"]
    blocks: tuple[Int[np.ndarray, "..."], ...]

    @classmethod
    def of(cls, names: Sequence[str], structure: Structure | None = None) -> "Blocks":
        """Return the kinds of coordinates with these labels, by a structure that a person gave or
        by themselves."""
        places = {label: place for place, label in enumerate(names)}
        given = structure_of(names).items() if structure is None else structure
        for name, labels in given:
            unknown = [label for label in _flat(labels) if label not in places]
            if unknown:
                cure = (
                    f"{did_you_mean(unknown[0], names)}They are those along "
                    "`unconstrained_parameter`."
                )
                got = f"{unknown[0]} in block `{name}`"
                raise InputError("structure", "labels of coordinates that move", got, cure)
        blocks = tuple(
            np.array([places[label] for label in _flat(labels)]).reshape(np.shape(labels))
            for _, labels in given
        )
        inside = np.concatenate([np.array([], int), *map(np.ravel, blocks)])
        return cls(np.setdiff1d(np.arange(len(names)), inside), blocks)


class Last:
    """The raw coordinates of every block at the draws that were last asked for, which families of a
    structure share."""

    # replaced as one, so that threads see no mixture
    coordinates: tuple[np.ndarray | None, list[np.ndarray]] = (None, [])


@dataclass(frozen=True, eq=False)
class _OnBlocks(AbstractFamily):
    """Controls of a structure, of the trace's own coordinates.

    blocks : (m,) each, or of a grid (r, c), which counts as a block of all its entries.
    shift, scale : (d,) such that a coordinate is shift + scale·z, where z is standardised and has
        unit scale.
    last : what families of one structure share.
    """

    globals: Int[np.ndarray, " g"]
    blocks: tuple[Int[np.ndarray, "..."], ...]
    shift: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]
    last: Last = field(default_factory=Last, repr=False)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The ordered pairs of blocks of one length."""
        number = range(len(self.blocks))
        return [
            (a, b) for a in number for b in number if self.blocks[a].size == self.blocks[b].size
        ]

    def controls(
        self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b d"]
    ) -> Float[np.ndarray, "b q"]:
        return self._affine(draws, scores, 1.0)

    def along(
        self, draws: Float[np.ndarray, "b d"], direction: Float[np.ndarray, " d"]
    ) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, "b n"]]:
        return np.arange(self.size), self._affine(draws, direction[None], 0.0)

    @abc.abstractmethod
    def _affine(
        self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b1 d"], divergence: float
    ) -> Float[np.ndarray, "b q"]:
        """Return ∇·v times `divergence` and v·s of every control; one s may stand for all."""

    def _raw(
        self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b1 d"]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return raw coordinates and scores of every block, of grids row after row."""
        last, x = self.last.coordinates
        flat = [block.ravel() for block in self.blocks]
        # By identity: families of one structure are asked in turn for the same block of draws.
        if last is not draws:
            x = [self.shift[block] + self.scale[block] * draws[:, block] for block in flat]
            self.last.coordinates = (draws, x)
        return x, [scores[:, block] / self.scale[block] for block in flat]

    def _along(
        self, x: list[np.ndarray], s: list[np.ndarray], divergence: float
    ) -> list[np.ndarray]:
        """Return z_a·s_b + m[a=b] of every pair of blocks."""
        # A gradient is zero but for a few coordinates.
        moving = [np.flatnonzero(gradient.any(axis=0)) for gradient in s]
        return [
            np.einsum("bm,bm->b", x[a][:, moving[b]], s[b][:, moving[b]])
            + divergence * x[a].shape[1] * (a == b)
            for a, b in self.pairs
        ]


@dataclass(frozen=True, eq=False)
class BlockSums(_OnBlocks):
    """Quadratics of the globals, z_a·s_b + m[a=b], (Σz_a)(Σs_b)/m + [a=b], and (Σz_a) s_k and
    (Σs_a) z_k of a global k.

    The last makes of the first-order controls, these and `SumsByGlobals` what they are about any
    origin, as about the mean of effects that are not centred.
    """

    @property
    def size(self) -> int:
        g, b = len(self.globals), len(self.blocks)
        return g * (g + 1) // 2 + 2 * len(self.pairs) + 2 * b * g

    def _affine(
        self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b1 d"], divergence: float
    ) -> Float[np.ndarray, "b q"]:
        u, t = draws[:, self.globals], scores[:, self.globals]
        one, two = np.triu_indices(len(self.globals))
        # u_k t_l + u_l t_k + 2·1[k = l] (section 2, Many coordinates, table, sums).
        parts = [u[:, one] * t[:, two] + u[:, two] * t[:, one] + divergence * 2.0 * (one == two)]
        x, s = self._raw(draws, scores)
        total, of_scores = [block.sum(axis=1) for block in x], [block.sum(axis=1) for block in s]
        for (a, b), sums in zip(self.pairs, self._along(x, s, divergence), strict=True):
            # (Σz_a)(Σs_b)/m: the divergence of ones·onesᵀ/m is one.
            shared = total[a] * of_scores[b] / x[a].shape[1] + divergence * (a == b)
            parts.append(np.stack([sums, shared], axis=1))
        # (Σz_a)/√m has the size of one coordinate, as the other controls have.
        for ours, theirs, block in zip(total, of_scores, x, strict=True):
            root = np.sqrt(block.shape[1])
            parts += [ours[:, None] / root * t, theirs[:, None] / root * u]
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True, eq=False)
class SumsByGlobals(_OnBlocks):
    """(z_a·s_b + m[a=b]) x_k and (z_a·z_b) s_k of every pair of blocks and every global k."""

    @property
    def size(self) -> int:
        return len(self.globals) * (len(self.pairs) + sum(a <= b for a, b in self.pairs))

    def _affine(
        self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b1 d"], divergence: float
    ) -> Float[np.ndarray, "b q"]:
        u, t = draws[:, self.globals], scores[:, self.globals]
        x, s = self._raw(draws, scores)
        parts = [sums[:, None] * u for sums in self._along(x, s, divergence)]
        # For `along`, where a gradient has no part in the globals: the second half is zeros.
        if not t.any():  # as of the direction of one group's effect
            return np.concatenate(
                [*parts, np.zeros((len(u), self.size - len(parts) * u.shape[1]))], axis=1
            )
        for a, b in self.pairs:
            # z_a·z_b is symmetric, and (a, b) and (b, a) would be one control twice.
            if a <= b:
                parts.append((np.einsum("bm,bm->b", x[a], x[b])[:, None] / x[a].shape[1] - 1.0) * t)
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True, eq=False)
class Margins(_OnBlocks):
    """What `BlockSums` and `SumsByGlobals` are of blocks, of the margins of grids with each other
    and with blocks.

    A margin is the sums of a grid's rows, or of its columns, divided by the root of their number:
    coordinates along orthonormal directions. There are also (Σ_j x_ij s_ij + c)·x_ai and (Σ_j
    x_ij²) s_ai/c, summed over i, of a block a as long as the grid, and the same of columns: spreads
    differ with it where rows have scales of their own.
    """

    @property
    def margins(self) -> list[tuple[int, int]]:
        """The number of each margin's grid, and the dimension that is left."""
        return [
            (k, axis) for k, block in enumerate(self.blocks) if block.ndim == 2 for axis in (0, 1)
        ]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The ordered pairs of one length of blocks and, numbered after them, margins, of which one
        is a margin."""
        lengths = [block.size for block in self.blocks] + [
            self.blocks[k].shape[axis] for k, axis in self.margins
        ]
        number = range(len(lengths))
        return [
            (a, b)
            for a in number
            for b in number
            if max(a, b) >= len(self.blocks) and lengths[a] == lengths[b]
        ]

    @property
    def beside(self) -> list[tuple[int, int, int]]:
        """Grid, dimension and block of every spread."""
        blocks = [k for k, block in enumerate(self.blocks) if block.ndim == 1]
        return [
            (k, axis, e)
            for k, axis in self.margins
            for e in blocks
            if self.blocks[e].size == self.blocks[k].shape[axis]
        ]

    @property
    def size(self) -> int:
        g, of = len(self.globals), self._grid_of()
        once = sum(of[a] != of[b] for a, b in self.pairs) + g * sum(a <= b for a, b in self.pairs)
        return len(self.pairs) * (1 + g) + once + 2 * len(self.beside)

    def _grid_of(self) -> list[int]:
        """Return the number of the block that the coordinates of each block and margin are of."""
        return [*range(len(self.blocks)), *(k for k, _ in self.margins)]

    def _affine(
        self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b1 d"], divergence: float
    ) -> Float[np.ndarray, "b q"]:
        u, t = draws[:, self.globals], scores[:, self.globals]
        x, s = self._raw(draws, scores)
        table_x, table_s = (
            [
                columns.reshape(-1, *block.shape)
                for columns, block in zip(raw, self.blocks, strict=True)
            ]
            for raw in (x, s)
        )
        for k, axis in self.margins:
            root = np.sqrt(self.blocks[k].shape[1 - axis])
            # Divided by the root: margins are coordinates along orthonormal directions, scores
            # likewise.
            x, s = (
                [*x, table_x[k].sum(axis=2 - axis) / root],
                [*s, table_s[k].sum(axis=2 - axis) / root],
            )
        of, parts = self._grid_of(), []
        for a, b in self.pairs:
            m, within = x[a].shape[1], of[a] == of[b]
            # Row i and column i of a square grid share one entry: m inner products of directions,
            # 1/m each.
            trace = m if a == b else float(within)
            along = np.einsum("bm,bm->b", x[a], s[b])[:, None] + divergence * trace
            parts += [along, along * u]
            if not within:  # products of two totals of one grid are in `BlockSums`
                parts.append((x[a].sum(axis=1) * s[b].sum(axis=1) / m)[:, None])
            if a <= b:
                # Less one keeps it apart from t_k, one of the scores: its mean is zero either way.
                parts.append((np.einsum("bm,bm->b", x[a], x[b])[:, None] / m - 1.0) * t)
        for k, axis, e in self.beside:
            other = self.blocks[k].shape[1 - axis]
            spread = (table_x[k] * table_s[k]).sum(axis=2 - axis) + divergence * other
            squares = (table_x[k] ** 2).sum(axis=2 - axis) / other
            parts += [
                np.einsum("bm,bm->b", *both)[:, None] for both in ((spread, x[e]), (squares, s[e]))
            ]
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True, eq=False)
class Neighbours(_OnBlocks):
    """Σx_i s_{i+k}, Σx_{i+k} s_i, each also times x_j, and (Σx_i x_{i+k}) s_j, of some lags k: for
    sequences.

    blocks : (m,) each, or the lines of a grid that are sequences, (l, m), over which sums are, too;
        the sums of its columns, divided by √l, are one more sequence.
    lags : those beyond half of a sequence are left out.
    """

    lags: tuple[int, ...] = (1,)

    @property
    def size(self) -> int:
        return sum(block.ndim * len(self._lags_of(block)) for block in self.blocks) * (
            2 + 3 * len(self.globals)
        )

    def _lags_of(self, block: Int[np.ndarray, "..."]) -> list[int]:
        return [lag for lag in self.lags if 2 * lag <= block.shape[-1]]

    def _affine(
        self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b1 d"], divergence: float
    ) -> Float[np.ndarray, "b q"]:
        del divergence  # a coordinate stands with the score of another
        u, t = draws[:, self.globals], scores[:, self.globals]
        parts = []
        for block, *raw in zip(self.blocks, *self._raw(draws, scores), strict=True):
            lines = [columns.reshape(len(columns), -1, block.shape[-1]) for columns in raw]
            # Sums of a grid's columns are one more sequence, for levels that all lines share.
            series = [
                lines,
                [line.sum(axis=1, keepdims=True) / np.sqrt(len(block)) for line in lines],
            ][: block.ndim]
            for (x, s), lag in itertools.product(series, self._lags_of(block)):
                ahead = np.einsum("blm,blm->b", x[..., :-lag], s[..., lag:])[:, None]
                back = np.einsum("blm,blm->b", x[..., lag:], s[..., :-lag])[:, None]
                # A mean over the entries of x, of the size of a squared coordinate.
                product = np.einsum("blm,blm->b", x[..., :-lag], x[..., lag:])[:, None] / x[0].size
                parts += [ahead, back, ahead * u, back * u, product * t]
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True, eq=False)
class Pairs(AbstractFamily):
    """x_i s_j + x_j s_i of pairs of coordinates: of a global and each of a block, or of two blocks
    at each index.

    first, second : (q,) coordinates, different in each pair.
    """

    first: Int[np.ndarray, " q"]
    second: Int[np.ndarray, " q"]

    @property
    def size(self) -> int:
        return len(self.first)

    def controls(
        self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b d"]
    ) -> Float[np.ndarray, "b q"]:
        return (
            draws[:, self.first] * scores[:, self.second]
            + draws[:, self.second] * scores[:, self.first]
        )

    def along(
        self, draws: Float[np.ndarray, "b d"], direction: Float[np.ndarray, " d"]
    ) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, "b n"]]:
        # Of a constant direction only pairs that hold one of its coordinates are not zero.
        moving = np.flatnonzero((direction[self.first] != 0) | (direction[self.second] != 0))
        subset = Pairs(self.first[moving], self.second[moving])
        # which have no divergence
        return moving, subset.controls(draws, np.broadcast_to(direction, draws.shape))


@dataclass(frozen=True, eq=False)
class Diagonal(AbstractFamily):
    """x_i s_i + 1 of every coordinate: for what depends on each one's spread, as squares do and
    standard deviations."""

    num_coordinates: int

    @property
    def size(self) -> int:
        return self.num_coordinates

    def controls(
        self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b d"]
    ) -> Float[np.ndarray, "b q"]:
        return draws * scores + 1.0

    def along(
        self, draws: Float[np.ndarray, "b d"], direction: Float[np.ndarray, " d"]
    ) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, "b n"]]:
        moving = np.flatnonzero(direction)
        return moving, draws[:, moving] * direction[moving]


def structure_families(
    problem: Problem, room: int, structure: Structure | None = None
) -> list[AbstractFamily]:
    """Return the families of a problem's named dimensions, from small to large; none without a
    block.

    room : how many controls of single coordinates, and of pairs of them, there may be. structure :
        as for `Blocks.of`.
    """
    partition = Blocks.of(problem.names, structure)
    if not partition.blocks:
        return []
    # Raw coordinates, shift + scale·z: the exchangeable prior is in these.
    units = (problem.shift, np.linalg.norm(problem.lower, axis=1))
    given = (partition.globals, partition.blocks, *units, Last())
    sums: list[AbstractFamily] = [BlockSums(*given), SumsByGlobals(*given)]
    margins = Margins(*given)
    if margins.size <= MOST_OF_MARGINS:
        sums.append(margins)
    if sequences := _sequences(problem, partition.blocks):
        given = (partition.globals, sequences, *units, Last())
        sums += [Neighbours(*given, lags) for lags in LAGS]
    families = [family for family in sums if family.size]
    families.append(Diagonal(len(problem.names)))
    room -= len(problem.names)
    # By need, while there is room: a large group that does not fit does not stop smaller ones.
    for pairs in _by_interaction(problem, partition):
        if pairs.size <= room:
            families.append(pairs)
            room -= pairs.size
    return families


MOST_OF_MARGINS = 200
"""Controls of grids' margins, of which one grid beside two effects and five globals has 66: several
grids of one length and many globals would have hundreds, and squares and pairs would be left out
for them."""

DRAWS_PER_LOCAL = 4.5
"""Training states for each control, the scores among them, up to which there are controls of single
coordinates."""


def room_of(num_train: int, num_coordinates: int) -> int:
    """Return how many controls of single coordinates, and of pairs of them, there may be."""
    return max(int(num_train / DRAWS_PER_LOCAL) - 2 * num_coordinates, 0)


ORDERING_STATES = 1_000
"""Evenly spaced states by which groups of pairs are put in order, and sequences are told."""

LAGS = (1,), (2, 3, 4, 6, 8)
"""Of the families for sequences. A smooth level depends on its scale through sums over many lags:
of a random walk of 80 steps the second made true gains of both scales 26 and 18, where they were 5
and 3, and those of levels 14 (5)."""

CORRELATED = 0.05
"""By how much neighbours in a block are more correlated than others, from which it is a sequence.
It is .1 to .5 in random walks, autoregressions, and fields on a grid, and at most .03 where the
order means nothing. In lines of grids it is .25 to .46, and at most .005 (walks of 12 sites, a
lattice of 12 × 15, and 12 × 15 interactions)."""

BY_CHANCE = 4.0
"""Standard errors of independent draws that this is at least."""


def _sequences(
    problem: Problem, blocks: tuple[Int[np.ndarray, "..."], ...]
) -> tuple[Int[np.ndarray, "..."], ...]:
    """Return the blocks whose order means something: neighbours are correlated, or their scores, as
    others are not.

    That of a centred random walk is in its draws and its scores, that of one of increments in its
    scores alone. Of a grid the rows are told by themselves, and the columns, on average over them.
    """
    m = problem.num_states
    rows = np.linspace(0, m - 1, min(m, ORDERING_STATES)).astype(int)

    def excess(columns: Float[np.ndarray, "n m"]) -> float:
        length = columns.shape[1]
        # of a coordinate that stands still at these states
        with np.errstate(invalid="ignore", divide="ignore"):
            correlation = np.nan_to_num(np.corrcoef(columns, rowvar=False))
        # Distances of a third to two thirds: exchangeable blocks have some correlation at every
        # distance.
        far = np.mean(
            [np.diagonal(correlation, lag).mean() for lag in range(length // 3, 2 * length // 3)]
        )
        return float(np.diagonal(correlation, 1).mean() - far)

    def is_sequence(block: Int[np.ndarray, "..."]) -> bool:
        lines = np.atleast_2d(block)
        num_pairs = len(lines) * (lines.shape[1] - 1)
        # Increments show their order in the scores alone: the clearer of both decides.
        clearest = max(
            abs(np.mean([excess(states[:, line]) for line in lines])) for states in (draws, scores)
        )
        return bool(clearest > max(CORRELATED, BY_CHANCE / np.sqrt(len(rows) * num_pairs)))

    draws, scores = np.asarray(problem.draws[rows]), np.asarray(problem.scores[rows])
    in_order = itertools.chain(*([block, block.T][: block.ndim] for block in blocks))
    return tuple(block for block in in_order if block.shape[-1] >= SHORTEST and is_sequence(block))


SHORTEST = 3
"""Coordinates of a block from which its order may mean something."""


def _by_interaction(problem: Problem, partition: Blocks) -> list[Pairs]:
    """Return pairs of globals with blocks, and of blocks, by how much the blocks' coordinates need
    them.

    That is the mean squared correlation of x_i s_j + x_j s_i with what the scores leave of x_j. It
    does not look at any integrand: what is chosen for one does not depend on the others.
    """
    m = problem.num_states
    rows = np.linspace(0, m - 1, min(m, ORDERING_STATES)).astype(int)
    draws, scores = np.asarray(problem.draws[rows]), np.asarray(problem.scores[rows])
    blocks = [block.ravel() for block in partition.blocks]
    every = np.concatenate(blocks)
    residual = np.zeros_like(draws)
    # What a linear control takes off anyway is no reason for a product.
    residual[:, every] = (
        draws[:, every] - scores @ np.linalg.lstsq(scores, draws[:, every], rcond=None)[0]
    )
    groups = [Pairs(np.full(len(block), k), block) for k in partition.globals for block in blocks]
    groups += [Pairs(a, b) for a, b in itertools.combinations(blocks, 2) if len(a) == len(b)]
    needed = []
    for pairs in groups:
        controls, left = pairs.controls(draws, scores), residual[:, pairs.second]
        alike = np.einsum("bq,bq->q", controls, left) ** 2
        size = np.einsum("bq,bq->q", controls, controls) * np.einsum("bq,bq->q", left, left)
        needed.append(np.mean(alike / np.where(size > 0, size, 1.0)))
    return [groups[k] for k in np.argsort(-np.array(needed), kind="stable")]
