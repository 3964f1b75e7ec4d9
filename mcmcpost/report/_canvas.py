"""The one layer through which every figure is drawn: a target of any backend of arviz-plots, and a few strokes."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from mcmcpost._checks import fault
from mcmcpost.report._dialects import ABOVE, DIALECTS, AbstractDialect

PLAIN = "#666666"
CONTROLLED = "#1f77b4"
THIRD = "#d62728"
FAINT = "#cccccc"
INK = "#000000"
WHITE = "#ffffff"
"""Colours that can be told from white paper and from each other, the same in every backend."""
CIRCLE, TRIANGLE, DIAMOND, SQUARE = "C0", "C2", "C4", "C5"
SOLID, DASHED = "C0", "C1"
"""Markers and line styles by their place in arviz-plots' cycles, where every backend has its own word for them."""
MOST_LETTERS = 40


class Series(NamedTuple):
    """How the points of one kind look, and their name in the legend."""

    label: str
    color: str
    marker: str


class Canvas(NamedTuple):
    """A target to draw on, the module of arviz-plots that draws there, and the words of its backend."""

    dialect: AbstractDialect
    pen: Any
    target: Any

    def points(
        self, x: Any, y: Any, series: Series, told: Sequence[str], *, x_error: Any = None, y_error: Any = None
    ) -> None:
        """Draw points, each with an interval of plus and minus its error where there is one; NaN draws nothing.

        told : what each point says when pointed at, where the backend has that.
        """
        x, y = (np.asarray(values, dtype=float) for values in (x, y))
        if x_error is not None or y_error is not None:
            self.pen.line(
                _ends(x, x_error), _ends(y, y_error), self.target, color=series.color, width=1.2,
                **self.dialect.artist(series.label, False, None),
            )  # fmt: skip
        self.pen.scatter(
            x, y, self.target, color=series.color, marker=series.marker, size=self.dialect.size,
            **self.dialect.artist(series.label, True, told),
        )  # fmt: skip

    def line(
        self, x: Any, y: Any, color: str, *, label: str | None = None, style: str = SOLID, width: float = 1.0,
        alpha: float = 1.0, told: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        """Draw a line through points, broken at NaN."""
        self.pen.line(
            x, y, self.target, color=color, linestyle=style, width=width, alpha=alpha,
            **self.dialect.artist(label, label is not None, told),
        )  # fmt: skip

    def upright(self, x: float, color: str) -> None:
        """Draw a vertical line across the plot, behind the rest."""
        self.pen.vline(x, self.target, color=color, width=1.0, **self.dialect.behind)

    def level(self, y: float, color: str) -> None:
        """Draw a horizontal line across the plot, behind the rest."""
        self.pen.hline(y, self.target, color=color, width=1.0, **self.dialect.behind)

    def bars(self, rows: Sequence[int], ends: Sequence[float], color: str, *, filled: bool = True) -> None:
        """Draw horizontal bars from zero to `ends`."""
        if len(rows):
            self.dialect.bars(self.target, rows, ends, color, filled)

    def matrix(self, values: np.ndarray, label: str) -> None:
        """Colour squares by values from −1 to 1; `label` says what the colours are."""
        self.dialect.matrix(self.target, values, label)

    def words(self, x: Any, y: Any, texts: Sequence[str], *, color: str = INK, align: str = "center") -> None:
        """Write words of ours in small letters; `align` says which end of them is at x."""
        groups = [(x, y, texts)] if self.dialect.many_words else zip(x, y, texts, strict=True)
        for group in groups if len(texts) else ():
            self.pen.text(
                *group, self.target, color=color, size=self.dialect.small, horizontal_align=align,
                **self.dialect.artist(None, False, None),
            )  # fmt: skip

    def rows(self, names: Sequence[str], margin: float = 0.6) -> None:
        """Name the rows 0, 1, … from the top downwards."""
        labels, plainly = self.dialect.plain([row_name(name) for name in names])
        self.pen.yticks(list(range(len(names))), labels, self.target, **plainly)
        self.pen.ylim((len(names) - 1 + margin, -margin), self.target)

    def columns(self, names: Sequence[str]) -> None:
        """Name the columns 0, 1, … of a matrix."""
        labels, plainly = self.dialect.plain([row_name(name) for name in names])
        self.pen.xticks(list(range(len(names))), labels, self.target, **self.dialect.slant, **plainly)
        self.pen.xlim((-0.5, len(names) - 0.5), self.target)

    def x_axis(
        self,
        label: str,
        *,
        ticks: tuple[Sequence[float | int], Sequence[str]] | None = None,
        limits: tuple[float, float] | None = None,
    ) -> None:
        """Say what the abscissa is; `ticks` are places and what is written there."""
        self.pen.xlabel(label, self.target)
        if ticks is not None:
            self.pen.xticks(*ticks, self.target)
        if limits is not None:
            self.pen.xlim(limits, self.target)

    def y_axis(self, label: str) -> None:
        """Say what the ordinate is."""
        self.pen.ylabel(label, self.target)

    def title(self, text: str) -> None:
        """Write over the plot."""
        self.pen.title(text, self.target)

    def legend(self, place: str = ABOVE) -> None:
        """Explain what was drawn with a label, above the plot or where a place is free."""
        self.dialect.legend(self.target, place)


def require(where: str, *modules: str) -> None:
    """Refuse to go on without an optional package, and say how to get it."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        cure = "They are optional: install `mcmcpost[plots]` for plots, `mcmcpost[report]` for reports."
        raise ImportError(fault(where, f"the packages {', '.join(modules)}", f"no {', '.join(missing)}", cure))


def canvas_for(where: str, ax: Any, backend: str | None, size: tuple[float, float]) -> Canvas:
    """Return a canvas on `ax`, or on a new figure of that size in inches.

    The backend is the one named, else the one that `ax` is of, else ``arviz_base.rcParams["plot.backend"]``.
    """
    dialect = _dialect(where, ax, backend)
    require(where, *dialect.packages)
    pen = import_module(f"arviz_plots.backend.{dialect.name}")
    target = pen.create_plotting_grid(1, **dialect.figure(size))[1] if ax is None else ax
    return Canvas(dialect, pen, target)


def rows_height(count: int) -> float:
    """Return the height in inches of a figure with that many labelled rows."""
    return 1.3 + 0.28 * count


def row_name(name: str) -> str:
    """Return a name as it fits beside a row: one line, printable, and of at most forty characters."""
    text = "".join(c if c.isprintable() else " " for c in name)
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"


def _dialect(where: str, ax: Any, backend: str | None) -> AbstractDialect:
    if ax is not None:
        return _owner(where, ax, backend)
    if backend is None:
        from arviz_base import rcParams

        backend = rcParams["plot.backend"]
    return _named(where, backend)


def _named(where: str, backend: str) -> AbstractDialect:
    if backend not in DIALECTS:
        known = f"`backend` to be one of {', '.join(DIALECTS)}"
        raise ValueError(fault(where, known, repr(backend), "Name one of these, or leave it out."))
    return DIALECTS[backend]


def _owner(where: str, ax: Any, backend: str | None) -> AbstractDialect:
    wanted = None if backend is None else _named(where, backend)
    owner = next((dialect for dialect in DIALECTS.values() if dialect.owns(ax)), None)
    if owner is None or wanted not in (None, owner):
        kind = "any backend of arviz-plots" if wanted is None else wanted.name
        cure = "Pass matplotlib axes, a bokeh figure, a PlotlyPlot of arviz-plots, or no `ax`."
        raise TypeError(fault(where, f"`ax` to be a target of {kind}", f"a {type(ax).__name__}", cure))
    return owner


def _ends(values: np.ndarray, error: Any) -> np.ndarray:
    """Return both ends of every interval and a gap after them."""
    error = 0.0 if error is None else np.asarray(error, dtype=float)
    return np.stack([values - error, values + error, np.full_like(values, np.nan)], axis=-1).ravel()
