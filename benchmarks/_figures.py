"""Figures in prose that are taken from the tables, so that they cannot drift from them.

A figure is a column and the row that it is taken from, as the table prints them::

    mean z²; target = banana; method = auto
    max(mean z²; method != zv3)                      # or min, median, rms: of all rows left
    rmse; method = auto over method = plain as .2f   # a ratio; what is not said again is as before
    memory; trace = 8 GB over 1000                   # or the ratio to a number
    large_trace: memory; run = reduce                # of a table other than the text's own

A row is chosen by the values of its columns; ``=`` may list several, ``a or b``. The format is
Python's, two digits (``#.2g``) where none is given, except that a number from 0.00001 to a million
has no exponent, and that 2e-06 is written as 2e-6.

In ``results/notes.json`` a figure stands in braces where its number belongs. In a page of Markdown
the number is followed by a name, ``7<!--=hare_lynx-->``, and the names are explained in one comment
at the end of the page::

    <!-- figures
    borehole = surrogate_hmc_models: per 1000 gradients; target = borehole; method = surrogate
    -->
"""

import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import Any, NamedTuple

from benchmarks._table import shown

STATISTICS = {
    "min": min,
    "max": max,
    "median": median,
    "rms": lambda numbers: math.sqrt(fmean(x**2 for x in numbers)),
}
PLACEHOLDER = re.compile(r"\{([^{}]+)\}")
NAMED = re.compile(r"(−?\d(?:[\d,.]*\d)?(?:e-?\d+)?)?<!--=(.*?)-->")
EXPLAINED = re.compile(r"<!-- figures\n(.*?)-->", re.DOTALL)


class Figure(NamedTuple):
    """What is taken from a table: a column, of the rows that meet the conditions."""

    table: str
    column: str
    conditions: Mapping[tuple[str, bool], tuple[str, ...]]
    statistic: str


def fill(text: str, table: str, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the text with the number of each figure in braces, which is of `table` where it names
    no other."""
    return PLACEHOLDER.sub(
        lambda found: number(found[1], table, rows, f"notes.json, {table}"), text
    )


def renew(page: str, text: str, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return a page of Markdown with the number before each name as it is in the tables."""
    lines = [
        line for block in EXPLAINED.findall(text) for line in block.splitlines() if line.strip()
    ]
    figures = {
        name.strip(): figure.strip()
        for name, _, figure in (line.partition(" = ") for line in lines)
    }
    used = [name for _, name in NAMED.findall(text)]
    if sorted(figures) != sorted({*used}) or len(figures) != len(lines):
        raise ValueError(
            f"{page}: expected every figure to be explained once and used, got "
            f"{sorted({*used} ^ {*figures})} and {len(lines)} lines. See "
            "benchmarks/_figures.py."
        )

    def renewed(found: re.Match[str]) -> str:
        if found[1] is None:
            raise ValueError(
                f"{page}, figure `{found[2]}`: expected a number right before its name."
            )
        value = number(figures[found[2]], "", rows, f"{page}, figure `{found[2]}`")
        return f"{value}<!--={found[2]}-->"

    return NAMED.sub(renewed, text)


def number(
    figure: str, table: str, rows: Mapping[str, Sequence[Mapping[str, Any]]], where: str
) -> str:
    """Return a figure as text; `where` begins the message when it cannot be had."""
    value = evaluated(figure, table, rows, where)
    _, _, form = figure.partition(" as ")
    try:
        return formatted(value, form.strip() or "#.2g")
    except ValueError as error:
        raise ValueError(f"{where}: `{figure}`: {error}") from error


def evaluated(
    figure: str, table: str, rows: Mapping[str, Sequence[Mapping[str, Any]]], where: str
) -> float:
    """Return a figure, which is finite, as a number."""
    body, _, _ = figure.partition(" as ")
    first, *rest = body.split(" over ")
    above = _parsed(first, Figure(table, "", {}, ""))
    try:
        if len(rest) > 1:
            raise ValueError("expected at most one `over`")
        value = _value(above, rows)
        if rest:
            below = rest[0].strip()
            value /= (
                float(below)
                if re.fullmatch(r"[\d.e-]+", below)
                else _value(_parsed(below, above), rows)
            )
        if not math.isfinite(value):
            raise ValueError(f"expected a finite number, got {value}")
    except (LookupError, ValueError, ZeroDivisionError) as error:
        raise ValueError(f"{where}: `{figure}`: {error}") from error
    return value


def table_of(figure: str) -> str:
    """Return the name of the table that a figure names first."""
    return _parsed(figure.partition(" as ")[0].split(" over ")[0], Figure("", "", {}, "")).table


def _parsed(text: str, before: Figure) -> Figure:
    """Return the figure that a text names; what it does not name is that of `before`."""
    named = re.fullmatch(r"(\w+): (.*)", text.strip())
    table, text = (named[1], named[2]) if named else (before.table, text.strip())
    called = re.fullmatch(rf"({'|'.join(STATISTICS)})\((.*)\)", text)
    statistic, text = (called[1], called[2]) if called else ("", text)
    column, conditions = before.column, dict(before.conditions)
    for part in text.split(";"):
        named = re.fullmatch(r"(.*?) (!?=) (.*)", part.strip())
        if named:
            conditions |= {(named[1], named[2] == "="): tuple(named[3].split(" or "))}
        else:
            column = part.strip()
    return Figure(table, column, conditions, statistic)


def _value(figure: Figure, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> float:
    """Return the number that a figure is."""
    if figure.table not in rows:
        raise LookupError(f"there is no table `{figure.table}`")
    for column in (figure.column, *(name for name, _ in figure.conditions)):
        if not any(column in row for row in rows[figure.table]):
            raise LookupError(
                f"`{figure.table}` has no column `{column}`, but {list(rows[figure.table][0])}"
            )
    chosen = [
        row
        for row in rows[figure.table]
        if all(
            (shown(row.get(name, "")) in values) is equal
            for (name, equal), values in figure.conditions.items()
        )
    ]
    if not chosen or (len(chosen) > 1 and not figure.statistic):
        raise LookupError(f"expected one row of `{figure.table}`, got {len(chosen)}")
    numbers = [float(row[figure.column]) for row in chosen]
    return STATISTICS[figure.statistic](numbers) if figure.statistic else numbers[0]


def formatted(value: float, form: str = "#.2g") -> str:
    """Return a finite number as it stands in prose: without an exponent from 0.00001 to a
    million."""
    text = format(abs(value), form).rstrip(".")
    if "e" in text and form.endswith("g") and 1e-5 <= abs(value) < 1e6:
        text = f"{float(text):,.0f}" if abs(value) >= 1 else f"{float(text):.9f}".rstrip("0")
    return ("−" if value < 0 else "") + re.sub(
        r"e([+-])0*", lambda found: "e" + found[1].strip("+"), text
    )
