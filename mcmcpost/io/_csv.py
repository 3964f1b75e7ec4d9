"""Draws, and where there are any their scores, in one table of comma-separated values."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mcmcpost._checks import fault
from mcmcpost.io._columns import check_equal_lengths, posterior_tree
from mcmcpost.io._convention import with_trace
from mcmcpost.trace import make_trace

if TYPE_CHECKING:
    import pandas
    import xarray

PREFIX = "gradient_"
_WHERE = "load_tree"
_CHAIN = ("chain", ".chain")
_DRAW = ("draw", ".draw", ".iteration")


def read_csv(path: Path) -> "xarray.DataTree":
    """Return the tree of a table with one row for each draw.

    Columns `chain` and `draw` (or ``.chain``, ``.draw``) say which draw it is; without them the rows are one chain in
    order. ``gradient_NAME`` is the score of the unconstrained parameter NAME, which must be a column too. Every column
    that is no gradient is a variable of the posterior group; ``theta[0]``, ``theta[1]``, or ``theta.1``, are one array.

    Raises
    ------
    ValueError : a value is not a number, a gradient has no parameter, a draw occurs twice, or chains differ in length.
    """
    table = _numbers(path)
    place = {
        name: column for name, names in (("chain", _CHAIN), ("draw", _DRAW)) for column in names if column in table
    }
    chains = _chains(path, table, place)
    kept = [name for name in table.columns if name not in (*_CHAIN, *_DRAW)]
    columns = {name: np.stack([chain[name].to_numpy(np.float64) for chain in chains]) for name in kept}
    gradients = [name for name in kept if name.startswith(PREFIX)]
    names = [name.removeprefix(PREFIX) for name in gradients]
    orphans = [name for name in names if name not in columns]
    if orphans or len(gradients) == len(kept):
        raise ValueError(
            fault(
                _WHERE,
                f"a column of draws for each {PREFIX}NAME in {path}",
                f"none for {', '.join(orphans)}" if orphans else "none at all",
                "Write the unconstrained parameters beside their gradients, under the same names.",
            )
        )
    tree = posterior_tree({name: values for name, values in columns.items() if name not in gradients})
    if not gradients:
        return tree
    draws, scores = (np.stack([columns[name] for name in group], axis=-1) for group in (names, gradients))
    return with_trace(tree, make_trace(draws, scores, tuple(names)), {})


def _numbers(path: Path) -> "pandas.DataFrame":
    import pandas

    try:
        table = pandas.read_csv(path, comment="#", skipinitialspace=True)
    except (pandas.errors.ParserError, pandas.errors.EmptyDataError, UnicodeDecodeError) as error:
        raise ValueError(
            fault(_WHERE, f"a table with a header in {path}", repr(error), "Write one row for each draw.")
        ) from error
    if len(table.columns) and str(table.columns[0]).startswith("Unnamed"):
        table = table.drop(columns=table.columns[0])  # row numbers, as pandas and R write them
    if "lp__" in table and any(str(name).startswith(("g_", "accept_stat__")) for name in table):
        raise ValueError(
            fault(
                _WHERE,
                "a table of draws",
                f"CmdStan's own file {path}",
                "Read it with from_cmdstan(diagnostics, outputs).",
            )
        )
    bad = [str(name) for name, values in table.items() if values.dtype.kind not in "fiub"]
    if bad or table.empty:
        raise ValueError(
            fault(
                _WHERE,
                f"rows of numbers in {path}",
                f"other values in {', '.join(bad)}" if bad else "no row",
                "Leave other columns out, and write one row for each draw.",
            )
        )
    return table


def _chains(path: Path, table: "pandas.DataFrame", place: dict[str, str]) -> "list[pandas.DataFrame]":
    if place and table.duplicated(list(place.values())).any() and "draw" in place:
        twice = table.loc[table.duplicated(list(place.values())), list(place.values())].iloc[0].to_dict()
        raise ValueError(
            fault(_WHERE, f"every draw once in {path}", f"{twice} twice", "Number the draws of each chain.")
        )
    if "draw" in place:
        table = table.sort_values(place["draw"], kind="stable")
    chains = [chain for _, chain in table.groupby(place["chain"])] if "chain" in place else [table]
    check_equal_lengths(f"{_WHERE}, {path}", [len(chain) for chain in chains])
    return chains
