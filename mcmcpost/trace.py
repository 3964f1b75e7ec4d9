"""Traces as arrays: draws and scores on the unconstrained space, and their distinct states."""

import zlib
from collections.abc import Iterable, Mapping
from itertools import compress, pairwise
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from mcmcpost.core.arguments import as_float64, as_labels, check_size
from mcmcpost.core.arrays import in_blocks, sampling_step
from mcmcpost.core.errors import ADDED, InputError
from mcmcpost.core.mcse import Weights


class Trace(NamedTuple):
    """Draws of one target and the gradients of its log density, on the unconstrained space.

    draws : (c, n, d), unconstrained.
    scores : (c, n, d), ∇ log density of the unconstrained draw, log-Jacobian included.
    names : d coordinate labels.
    weights : of the draws, None where they are equal.
    posterior : the `posterior_mark` of its tree.
    source : the files that they were read from, for messages.
    """

    draws: Float[np.ndarray, "c n d"]
    scores: Float[np.ndarray, "c n d"]
    names: tuple[str, ...]
    weights: Weights | None = None
    posterior: tuple[str, int] | None = None
    source: str = ""


class States(NamedTuple):
    """The distinct draws of a trace. A rejected proposal repeats a state, which is fitted once.

    draws, scores : (m, d) distinct states in order of first visit.
    counts : (m,) how many draws each stands for. first : (m,) the first of them, chains
        concatenated.
    inverse : (c·n,) which state each draw is, chains concatenated.
    """

    draws: Float[np.ndarray, "m d"]
    scores: Float[np.ndarray, "m d"]
    counts: Int[np.ndarray, " m"]
    first: Int[np.ndarray, " m"]
    inverse: Int[np.ndarray, " n"]


def make_trace(
    draws: object,
    scores: object,
    names: Iterable[str] | None = None,
    *,
    copy: bool = True,
    source: str = "",
) -> Trace:
    """Return a `Trace` after checking that draws and scores are two real arrays of one shape (c, n,
    d).

    Without `copy` float64 arrays are not copied, and the trace's cannot be written to.
    """
    draws_ = as_float64("Trace", "draws", draws, "chain, draw, d", copy=copy)
    scores_ = as_float64("Trace", "scores", scores, "chain, draw, d", copy=copy)
    _check_same_shape(draws_.shape, scores_.shape)
    _check_not_empty(draws_.shape)
    labels = as_labels("Trace", names, draws_.shape[-1])
    if not np.isfinite(draws_).all():
        raise not_finite(f"Trace{of_source(source)}", ~np.isfinite(draws_), labels)
    check_size("Trace", "draws", draws_)
    return Trace(draws_, scores_, labels, source=source)


SHOWN = 5
"""Coordinates that a message spells out."""


def listed(names: tuple[str, ...], which: Bool[np.ndarray, " d"]) -> str:
    """Return the chosen names, the first five spelled out."""
    chosen = [name for name, keep in zip(names, which, strict=True) if keep]
    more = len(chosen) - SHOWN
    return ", ".join(chosen[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def of_source(source: str) -> str:
    """Return the words on the files of a trace in a message, none where it has no file."""
    return f" of {source}" if source else ""


def not_finite(
    where: str, missing: Bool[np.ndarray, "c n d"], names: tuple[str, ...]
) -> InputError:
    """Return the error for draws with NaN or infinity: how many, where, and the cure."""
    bad = missing.any(axis=-1)
    chain, draw = np.argwhere(bad)[0]
    got = (
        f"{int(bad.sum())} of {bad.size} draws with NaN or infinity in "
        f"{listed(names, missing.any(axis=(0, 1)))}, the first at chain {chain}, draw {draw}"
    )
    lengths, cure = (
        (~bad).sum(axis=1),
        "Find out what wrote them; leave them out only where that has nothing to do with their "
        "values.",
    )
    # NaN at the ends alone is how xarray pads chains of different lengths, and has a cure of its
    # own.
    if lengths.min() and (bad == (np.arange(bad.shape[1]) >= lengths[:, None])).all():
        cure = (
            f"Chains of different lengths, {lengths.tolist()} draws, are padded so: keep the draws "
            f"of all, tree.isel(draw=slice({lengths.min()})). {ADDED}"
        )
    return InputError(where, "finite draws", got, cure)


def _check_not_empty(shape: tuple[int, ...]) -> None:
    if 0 in shape:
        raise InputError("Trace", "at least one chain, draw and parameter", shape, "Sample first.")


def _check_same_shape(draws: tuple[int, ...], scores: tuple[int, ...]) -> None:
    if draws != scores:
        cure = "Both live on the unconstrained space; see attach_scores."
        raise InputError("Trace", f"`scores` of the shape of `draws` {draws}", scores, cure)


def moving(draws: Float[np.ndarray, "c n d"]) -> Bool[np.ndarray, " d"]:
    """Return which coordinates move. Where none does, as in chains that are stuck, all are
    returned."""
    moves = np.ptp(draws, axis=(0, 1)) > 0
    return moves if moves.any() else np.ones_like(moves)


def with_coordinates(trace: Trace, kept: Bool[np.ndarray, " d"]) -> Trace:
    """Return the trace of some coordinates, whose scores are those of the density given the
    others."""
    names = tuple(compress(trace.names, kept))
    return trace._replace(draws=trace.draws[..., kept], scores=trace.scores[..., kept], names=names)


def sampled(draws: Float[np.ndarray, "c n d"]) -> Float[np.ndarray, "c s d"]:
    """Return every so many draws of each chain, see `sampling_step`: all where they are not
    large."""
    return draws[:, :: sampling_step(draws.shape)]


def without_fixed(trace: Trace) -> Trace:
    """Return the trace of the coordinates that move, whose scores are those of the density given
    the fixed ones.

    Stein's identity fails along a coordinate that is held fixed: E[(x_i − x̄_i) s_i] is zero and
    not minus one.
    """
    moves = moving(trace.draws)
    return trace if moves.all() else with_coordinates(trace, moves)


def check_same_order(where: str, labels: Mapping[str, tuple[str, ...] | None]) -> None:
    """Refuse arrays whose parameters have the same labels in different orders.

    Parameters
    ----------
    where : the public function that the error message names.
    labels : the parameters of each array by the array's name, None without labels. Different sets
        are accepted, since two packages may name one parameter differently.
    """
    known = {name: label for name, label in labels.items() if label is not None}
    for (one, first), (other, second) in pairwise(known.items()):
        if first != second and sorted(first) == sorted(second):
            place = next(
                i for i, pair in enumerate(zip(first, second, strict=True)) if pair[0] != pair[1]
            )
            raise InputError(
                where,
                f"one order of the parameters in {one} and {other}",
                f"{first[place]} and {second[place]} at position {place}",
                "Select by label in one order, as x.sel(unconstrained_parameter=labels), "
                "before comparing.",
            )


def fingerprint(draws: Float[np.ndarray, "c n d"]) -> int:
    """Return a number that tells draws from others, by a thousand of them."""
    flat = draws.reshape(-1, draws.shape[-1])
    # A thousand draws tell other ones, and cost nothing at every use of stored weights.
    return zlib.crc32(flat[np.linspace(0, len(flat) - 1, 1_000).astype(int)].tobytes())


STARTS = 100
"""Draws of each chain that tell it from others where all would be many to read."""


def posterior_mark(tree: Any, name: str | None = None) -> tuple[str, int] | None:
    """Return a variable of the posterior group of a tree, the first of floats by default, and a
    number that tells its first draws from others; None without it."""
    group = tree.children.get("posterior")
    for key, variable in () if group is None else group.data_vars.items():
        sampled = variable.dtype.kind == "f" and {"chain", "draw"} <= set(variable.dims)
        if sampled and name in (None, key):
            starts = variable.transpose("chain", "draw", ...).isel(draw=slice(STARTS)).values
            return str(key), zlib.crc32(np.ascontiguousarray(starts, float).tobytes())
    return None


def check_same_posterior(where: str, tree: Any, mark: tuple[str, int] | None) -> None:
    """Refuse a tree with other draws than those of a `posterior_mark`."""
    here = None if mark is None else posterior_mark(tree, mark[0])
    if mark is not None and here is not None and here[1] != mark[1]:
        got = f"other draws of {mark[0]}"
        raise InputError(where, "the trace of the estimate", got, "Pass its own trace.")


PASSAGE = 32
"""Successive states that tell draws from others: by chance they occur once, even of one coordinate
with few digits."""

_LEAST_STATES = 10
"""Distinct states up to which a chain that comes back to them tells nothing, as one of a count that
is stored as floats; rounded draws have hundreds."""


def passages_of(draws: Float[np.ndarray, "n d"]) -> Int[np.ndarray, " m"]:
    """Return a number for each `PASSAGE` of successive states of a chain.

    The same draws have the same numbers wherever they are in a chain. A state that is repeated is
    one, and a chain of fewer states one passage. A chain that never moves has none, and neither has
    one that moves among few states: another one would go the same way.
    """
    import pandas

    n, d = draws.shape
    # Products and sums of 64-bit integers are those modulo 2⁶⁴; odd factors lose nothing.
    factors = pandas.util.hash_array(np.arange(d + PASSAGE)) | np.uint64(1)
    states = np.empty(n, np.uint64)
    for block in in_blocks(n, d):
        values = np.ascontiguousarray(draws[block], float)
        numbers = pandas.util.hash_array(values.reshape(-1), categorize=False)
        states[block] = numbers.reshape(values.shape) @ factors[PASSAGE:]
    states = states[np.flatnonzero(np.diff(states, prepend=~states[:1]))]
    if len(states) < 2 or len(np.unique(states)) < min(_LEAST_STATES, len(states)):
        return np.zeros(0, np.int64)
    length = min(PASSAGE, len(states))
    passages = np.zeros(len(states) + 1 - length, np.uint64)
    for k in range(length):
        passages += states[k : k + len(passages)] * factors[k]
    return passages.view(np.int64)


def repeated_draws(chains: Iterable[Float[np.ndarray, "_ d"]]) -> tuple[int, int] | None:
    """Return two chains that have a passage of draws in common, or one that has it twice, as that
    one twice; None without any."""
    passages = [passages_of(chain) for chain in chains]
    label = np.repeat(np.arange(len(passages)), [len(one) for one in passages])
    every = np.concatenate([np.zeros(0, np.int64), *passages])
    order = np.argsort(every, kind="stable")
    again = np.flatnonzero(np.diff(every[order]) == 0)
    if not len(again):
        return None
    # The first in the order of the chains.
    at = again[np.argmin(order[again])]
    return int(label[order[at]]), int(label[order[at + 1]])


def distinct_states(trace: Trace) -> States:
    """Return the distinct states of `trace`, in order of first visit.

    Where no state is repeated they are the trace's own arrays, not copies. Whole rows are compared
    only where their first coordinate is repeated.
    """
    flat = trace.draws.reshape(-1, trace.draws.shape[-1])
    first_visit = np.arange(len(flat))
    # Continuous draws share a coordinate only where they share the state: sorting one column finds
    # the few rows that have to be compared whole.
    _, label, copies = np.unique(flat[:, 0], return_inverse=True, return_counts=True)
    tied = np.flatnonzero(copies[label] > 1)
    if len(tied):
        _, first, inverse = np.unique(flat[tied], axis=0, return_index=True, return_inverse=True)
        first_visit[tied] = tied[first[inverse.reshape(-1)]]
    first, inverse, counts = np.unique(first_visit, return_inverse=True, return_counts=True)
    scores = trace.scores.reshape(flat.shape)
    # NUTS hardly ever repeats a state: no copy of the trace is made then.
    if len(first) == len(flat):
        return States(flat, scores, counts, first, inverse)
    return States(flat[first], scores[first], counts, first, inverse)
