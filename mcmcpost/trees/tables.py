"""Tables of draws: comma-separated values, and columns named by element."""

import csv
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mcmcpost.core.errors import InputError, shortest, warn
from mcmcpost.core.mcse import mcse_mean
from mcmcpost.trace import Trace, make_trace
from mcmcpost.trees.convention import GROUP, LOG_WEIGHT, NUM_LIVE, sample_dataset, with_trace

if TYPE_CHECKING:
    import pandas
    import xarray


_STAN = re.compile(r"(?P<name>[^.:]+)\.(?P<index>\d+(?:\.\d+)*)")

_BRACKETS = re.compile(r"(?P<name>[^\[]+)\[(?P<index>\d+(?:, ?\d+)*)\]")


def variables(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return arrays (c, n, ...) from columns (c, n) that are named by element.

    ``theta.1.2``, as Stan writes it, and ``theta[0, 1]`` or ``theta[1,2]`` are elements of `theta`,
    counted from one or from zero. Where they do not fill an array, every column stays a scalar by
    its own name.
    """
    # By the indices in the names and not by position: programs write elements in row or column
    # order.
    groups: dict[str, dict[tuple[int, ...], str]] = {}
    for column in columns:
        match = _STAN.fullmatch(column) or _BRACKETS.fullmatch(column)
        name, index = (
            (column, ())
            if match is None
            else (match["name"], tuple(map(int, re.split(r"\.|, ?", match["index"]))))
        )
        # theta.1 and theta[1] are one element, and one would replace the other.
        same = groups.setdefault(name, {}).setdefault(index, column)
        if same != column:
            raise InputError(
                "Tables", f"each element of {name} once", f"{same} and {column}", "Leave one out."
            )
    arrays: dict[str, np.ndarray] = {}
    for name, elements in groups.items():
        array = _array({index: columns[column] for index, column in elements.items()})
        arrays |= (
            {column: columns[column] for column in elements.values()}
            if array is None
            else {name: array}
        )
    return arrays


def _parent(column: str) -> str:
    """Return the name of the array that a column is an element of, or the column's own name."""
    match = _STAN.fullmatch(column) or _BRACKETS.fullmatch(column)
    return column if match is None else match["name"]


def _array(elements: dict[tuple[int, ...], np.ndarray]) -> np.ndarray | None:
    """Return the array (c, n, ...) of elements by index, None where they do not fill one."""
    # x[0] beside x[0, 1] is no array, as are gaps: such columns stay scalars under their own names.
    if len({len(index) for index in elements}) > 1:
        return None
    indices = np.array(list(elements), dtype=int).reshape(len(elements), -1)
    first = indices.min(axis=0)
    shape = tuple(int(size) for size in indices.max(axis=0) - first + 1)
    # Counted from zero or from one along all axes alike: beta.3 and beta.4 alone are two columns.
    if not np.isin(first, (0, 1)).all() or len(set(first)) > 1 or math.prod(shape) != len(elements):
        return None
    lead = next(iter(elements.values())).shape
    array = np.empty((*lead, *shape))
    for place, values in zip(indices - first, elements.values(), strict=True):
        array[(..., *place)] = values
    return array


def posterior_tree(columns: Mapping[str, np.ndarray]) -> "xarray.DataTree":
    """Return a tree whose posterior group holds the columns (c, n), elements put together under
    their numbers."""
    import xarray

    dataset = sample_dataset(variables(columns))
    dims = [dim for name in _from_one(columns) if name in dataset for dim in dataset[name].dims[2:]]
    # Elements keep their numbers in every table: theta[1] of the file must not be shown as
    # theta[0].
    labels = {dim: dataset[dim].values + 1 for dim in dims}
    return xarray.DataTree.from_dict({"posterior": dataset.assign_coords(labels)})


def _from_one(columns: Iterable[str]) -> list[str]:
    """Return the names of the arrays whose elements are counted from one in brackets, as
    ``theta[1]``, ``theta[2]``."""
    least: dict[str, int] = {}
    for match in filter(None, map(_BRACKETS.fullmatch, columns)):
        least[match["name"]] = min(
            least.get(match["name"], 1), *map(int, match["index"].split(","))
        )
    return [name for name, first in least.items() if first == 1]


STATISTICS = {
    "lp__": "lp",
    "accept_stat__": "acceptance_rate",
    "stepsize__": "step_size",
    "treedepth__": "tree_depth",
    "n_leapfrog__": "n_steps",
    "divergent__": "diverging",
    "energy__": "energy",
}
"""From the columns of CmdStan and CmdStanPy to the names of ArviZ's schema."""


def sampler_statistics(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return those of the columns (c, n) that are statistics of Stan's sampler, under ArviZ's
    names."""
    statistics = {name: columns[column] for column, name in STATISTICS.items() if column in columns}
    # CmdStan writes 0 and 1; ArviZ's schema has booleans.
    if "diverging" in statistics:
        statistics["diverging"] = statistics["diverging"].astype(bool)
    return statistics


PREFIX = "gradient_"

_WHERE = "load_tree"

_CHAIN = ("chain", ".chain", "chain__")

_DRAW = ("draw", ".draw", "draw__", ".iteration", "iter__")
"""Names of programs; where there are two the later is taken, since those of R and CmdStanPy count
over all chains."""


def read_csv(path: Path) -> "xarray.DataTree":
    """Return the tree of a table with one row for each draw.

    Columns `chain` and `draw` (or ``.chain`` and ``.draw``, ``chain__`` and ``iter__``) say which
    draw it is; without them the rows are one chain in order. ``gradient_NAME`` is the score of the
    unconstrained parameter NAME, which must be a column too. Every column that is no gradient is a
    variable of the posterior group; ``theta[0]``, ``theta[1]``, or ``theta.1``, are one array.
    Columns may also be separated by semicolons or tabulators, with a decimal comma. `log_weight`
    holds the logarithms of the weights of weighted draws.

    Raises
    ------
    ValueError : a value is not a number, a gradient has no parameter, a draw occurs twice, or
        chains differ in length.
    """
    import xarray

    # Names are compared in lower case: R writes .chain, other programs Chain.
    table = _numbers(path)
    known = {str(column).lower(): str(column) for column in table}
    place = {
        name: known[spelling]
        for name, names in (("chain", _CHAIN), ("draw", _DRAW))
        for spelling in names
        if spelling in known
    }
    chains = _chains(path, table, place)
    kept = [name for name in table.columns if name.lower() not in (*_CHAIN, *_DRAW)]
    columns = {
        name: np.stack([chain[name].to_numpy(np.float64) for chain in chains]) for name in kept
    }
    # Weights are no quantity of the posterior.
    stats = {name: columns.pop(name) for name in (LOG_WEIGHT, NUM_LIVE) if name in columns}
    if "accept_stat__" in columns:  # draws_pd() of CmdStanPy; lp__ alone is a quantity like others
        stats |= sampler_statistics(columns)
        columns = {name: values for name, values in columns.items() if name not in STATISTICS}
    kept = [name for name in kept if name in columns]
    gradients = [name for name in kept if name.startswith(PREFIX)]
    names = [name.removeprefix(PREFIX) for name in gradients]
    orphans = [name for name in names if name not in columns]
    # A gradient of which no draws are there is a misspelt name, most often.
    if orphans or len(gradients) == len(kept):
        raise InputError(
            _WHERE,
            f"a column of draws for each {PREFIX}NAME in {path}",
            f"none for {', '.join(orphans)}" if orphans else "none at all",
            "Write the unconstrained parameters beside their gradients, under the same names.",
        )
    tree = posterior_tree(
        {name: values for name, values in columns.items() if name not in gradients}
    )
    if stats:
        tree[GROUP] = xarray.DataTree(sample_dataset(stats))
    if not gradients:
        return tree
    draws, scores = (
        np.stack([columns[name] for name in group], axis=-1) for group in (names, gradients)
    )
    trace = make_trace(draws, scores, tuple(names), source=str(path))
    _refuse_parts(path, names, columns)
    _tell_of_parameters(
        path, {name: columns[name] for name in kept if name not in (*names, *gradients)}, trace
    )
    return with_trace(tree, trace, {})


def _refuse_parts(path: Path, names: Sequence[str], columns: Mapping[str, np.ndarray]) -> None:
    """Refuse an array of which some elements have a gradient and others have none."""
    parents = {_parent(name) for name in names}
    bare = [
        name
        for name in columns
        if not name.startswith(PREFIX) and name not in names and _parent(name) in parents
    ]
    if bare:
        cure = "Write the gradient of every element, or of none."
        raise InputError(
            _WHERE, f"a column {PREFIX}{bare[0]} in {path}", f"none for {', '.join(bare)}", cure
        )


ENOUGH = 100
"""Draws from which a column is suspected."""

MOST_Z = 4.0
"""|z| of E[(b − b̄)s] up to which a column b may be a parameter of its own: of a function g of the
others the mean is −E[∇g]."""

NO_PARAMETERS = (
    "lp__",
    "lp",
    "logp",
    "log_density",
    "log_posterior",
    "log_prior",
    "log_likelihood",
    "energy__",
)
"""Columns that pass, as a log density b does because E[(b − b̄)s] = −E[s] = 0, and are no
parameters."""


def _tell_of_parameters(path: Path, alone: Mapping[str, np.ndarray], trace: Trace) -> None:
    """Warn of columns without a gradient that look like parameters: what varies and is no function
    of the others."""
    suspects = []
    for name, values in alone.items() if trace.draws[..., 0].size >= ENOUGH else ():
        if name in NO_PARAMETERS:
            continue
        # For b a function g of the parameters E[(b − b̄)s] = −E[∇g], which is not zero along some
        # coordinate; for a parameter whose score is missing it is zero along all others.
        products = (values - values.mean())[..., None] * trace.scores
        with np.errstate(all="ignore"):
            z = np.abs(products.mean(axis=(0, 1)) / mcse_mean(products))
        if (z < MOST_Z).all():
            suspects.append(name)
    if suspects:
        warn(
            f"{_WHERE}: {', '.join(suspects)} in {path} without a column {PREFIX}NAME: taken for "
            "a quantity, but it looks like a parameter. Add the gradients of all parameters: "
            "gains are smaller without."
        )


class _Form(NamedTuple):
    """How a table is written: what separates its columns, and the decimal sign."""

    sep: str
    decimal: str


def _form(path: Path) -> _Form:
    """Return how a table is written, by its header: names without a comma between them, and with
    semicolons or tabulators, are of a program that may write 1,5 for one and a half."""
    header, body = "", False
    with path.open(encoding="utf-8-sig") as file:
        for line in file:
            if line.startswith("#") or not line.strip():
                continue
            if not header:
                header = line
                if "," in header or not {";", "\t"} & set(header):
                    return _Form(",", ".")
            # Where both signs are in the rows some values are no numbers, which is told.
            elif "," in line:
                body = True
                break
    return _Form(";" if ";" in header else "\t", "," if body else ".")


def _numbers(path: Path) -> "pandas.DataFrame":
    import pandas

    try:
        form = _form(path)
        table = pandas.read_csv(path, comment="#", skipinitialspace=True, **form._asdict())
    except (
        pandas.errors.ParserError,
        pandas.errors.EmptyDataError,
        UnicodeDecodeError,
    ) as error:
        # The text of a decoding error holds all bytes that were read.
        wrong = isinstance(error, UnicodeDecodeError)
        empty = isinstance(error, pandas.errors.EmptyDataError)
        said = "no line" if empty else str(error).strip().rstrip(".")
        got = "bytes that are no UTF-8" if wrong else said
        cure = "Save it in UTF-8." if wrong else "Write one row for each draw."
        raise InputError(_WHERE, f"a table with a header in {path}", got, cure) from error
    _check_header(path, table, form.sep)
    # An index that was written with the table would otherwise be a quantity of the posterior.
    if len(table.columns) and str(table.columns[0]).startswith("Unnamed"):
        table = table.drop(columns=table.columns[0])  # row numbers, as pandas and R write them
    # Its gradients are of the potential: taken as scores they have the wrong sign.
    if "lp__" in table and any(f"g_{name}" in table for name in table):
        got, cure = (
            f"those of CmdStan's diagnostic files in {path}",
            "Give CmdStan's own files, one a chain.",
        )
        raise InputError(_WHERE, f"gradients in columns {PREFIX}NAME", got, cure)
    bad = [str(name) for name, values in table.items() if values.dtype.kind not in "fiub"]
    if bad or table.empty:
        # Columns without a row are of objects to pandas, and hold no other values.
        raise InputError(
            _WHERE,
            f"rows of numbers in {path}",
            "no row" if table.empty else f"other values in {', '.join(bad)}",
            f"{'' if table.empty else 'Leave other columns out. '}Write one row for each draw.",
        )
    return table


def _check_header(path: Path, table: "pandas.DataFrame", sep: str) -> None:
    """Refuse a table whose columns are not each named once, or whose rows are longer than its
    header.

    pandas takes the first values of longer rows for labels: they are where they number the rows, as
    R writes them.
    """
    import pandas

    rows, last = np.arange(len(table)), _last_width(path, sep)
    # One unnamed value at the front of each row, as R writes row names, shifts no column; two would
    # shift all.
    numbered = any(np.array_equal(table.index, rows + first) for first in (0, 1))
    if not numbered or (len(rows) == 1 and last > len(table.columns)):
        got = (
            f"rows of {len(table.columns) + table.index.nlevels} values under "
            f"{len(table.columns)} names"
        )
        cure = "Name every column. Where the comma is the decimal sign, separate by semicolons."
        raise InputError(_WHERE, f"as many values as columns in {path}", got, cure)
    # Read again as text: pandas renames the second x to x.1, which looks like an element of an
    # array.
    names = pandas.read_csv(
        path, sep=sep, comment="#", skipinitialspace=True, header=None, nrows=1, dtype=str
    ).iloc[0]
    # pandas takes what is missing at the end of a row for gaps.
    if last < len(names):
        cure = "The file was cut off: write or copy it again."
        raise InputError(_WHERE, f"{len(names)} values in the last line of {path}", last, cure)
    # Before what is there twice: values of draws may be equal, and names are missing then.
    if all(_is_number(name) for name in names.dropna()) and list(names) != [
        str(i) for i in range(len(names))
    ]:
        got = ", ".join(map(str, names[:4]))  # numbers from zero are the names that pandas gives
        raise InputError(
            _WHERE,
            f"names in the first line of {path}",
            got,
            "Write the names of the columns above.",
        )
    twice = sorted({str(name) for name in names[names.duplicated() & names.notna()]})
    if twice:
        raise InputError(
            _WHERE, f"every column once in {path}", f"{', '.join(twice)} twice", "Leave one out."
        )
    if names[1:].isna().any():
        got = f"none for number {int(np.argmax(names[1:].isna())) + 2}"
        raise InputError(
            _WHERE, f"a name for every column in {path}", got, "Name it, or leave it out."
        )


def _last_width(path: Path, sep: str) -> int:
    """Return the number of values in the last row, of which the end of the file is read."""
    with path.open("rb") as file:
        size, span = file.seek(0, os.SEEK_END), 1 << 16
        while True:
            start = file.seek(max(0, size - span))
            text = file.read().decode("utf-8-sig", errors="replace")
            # Whole lines: what comes before the first end of a line may be half of one.
            lines = text.splitlines()[1 if start else 0 :]
            rows = [line for line in lines if line.strip() and not line.startswith("#")]
            if rows or not start:
                return len(next(csv.reader(rows[-1:], delimiter=sep)))
            span *= 2


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _chains(
    path: Path, table: "pandas.DataFrame", place: dict[str, str]
) -> "list[pandas.DataFrame]":
    for name, column in place.items():
        if not np.equal(np.mod(table[column], 1), 0).all():
            raise InputError(
                _WHERE, f"whole numbers in `{name}` of {path}", "others", "Number chains and draws."
            )
    if place and table.duplicated(list(place.values())).any() and "draw" in place:
        first = table.loc[table.duplicated(list(place.values())), list(place.values())].iloc[0]
        got = " ".join(f"{name} {number}" for name, number in first.items()) + " twice"
        cure = "Number the draws of each chain."
        if "chain" not in place:
            cure = "Of several chains add a column `chain`, the number of the chain of each draw."
        raise InputError(_WHERE, f"every draw once in {path}", got, cure)
    if "draw" in place:
        # Rows may be sorted by value; folds and autocorrelations need the order of the chain.
        table = table.sort_values(place["draw"], kind="stable")
    chains = [chain for _, chain in table.groupby(place["chain"])] if "chain" in place else [table]
    least = shortest(f"{_WHERE}, {path}", [len(chain) for chain in chains])
    return [chain.iloc[:least] for chain in chains]
