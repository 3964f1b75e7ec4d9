"""Drawing on any backend of arviz-plots: ticks, what each backend does in its own way, and the
canvas."""

import abc
import html
import math
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mcmcpost.core.errors import InputError, InputTypeError, MissingPackageError

MOST_TICKS = 8

FEW_TICKS = 6
"""Where labels have many digits."""

PLAIN_DECADES = 4

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def decade_ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Return log₁₀ of the round numbers between 10^low and 10^high, and the numbers as text.

    Powers of ten, at most eight; where they are fewer than three also their double and fivefold.
    """
    # Axes are linear in log₁₀ and labelled here: logarithmic axes, and bars on them, differ between
    # backends.
    powers = range(math.ceil(low), math.floor(high) + 1)
    stride = math.ceil(len(powers) / MOST_TICKS)
    if len(powers) > 2:
        kept = [k for k in powers if k % stride == 0]
        return [float(k) for k in kept], [_power_text(k) for k in kept]
    places = [
        (k + math.log10(m), m * 10.0**k)
        for k in range(math.floor(low), math.ceil(high) + 1)
        for m in (1, 2, 5)
    ]
    inside = [(place, value) for place, value in places if low <= place <= high]
    return [place for place, _ in inside], [f"{value:g}" for _, value in inside]


def whole_ticks(last: int) -> list[int]:
    """Return whole numbers from 0 to `last`, evenly spaced, at most nine."""
    # The shortest of 1, 2, 5, 10, … that leaves at most nine ticks.
    steps = (m * 10**k for k in range(20) for m in (1, 2, 5))
    return list(range(0, last + 1, next(step for step in steps if step * MOST_TICKS >= last)))


def even_ticks(low: float, high: float) -> tuple[list[float], list[str]]:
    """Return round numbers between `low` and `high`, evenly spaced, at most six, and the numbers as
    text."""
    first = math.floor(math.log10(high - low)) - 1
    steps = (m * 10.0**k for k in range(first, first + 3) for m in (1, 2, 5))
    # Places as multiples of the step: adding it up would label 0.30000000000000004.
    step = next(step for step in steps if (high - low) / step < FEW_TICKS)
    places = [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    return places, [f"{place:g}".replace("-", "−") for place in places]


def asinh_scaled(values: np.ndarray, bend: float) -> np.ndarray:
    """Return asinh(values/bend), which is linear in values below `bend` and logarithmic far above
    it."""
    return np.arcsinh(values / bend)


def asinh_ticks(bend: float, most: float) -> tuple[list[float], list[str]]:
    """Return ticks of an `asinh_scaled` axis, at zero and round numbers from `bend`/3 to `most`,
    and their labels."""
    # From a third of the bend on, where the axis is linear and smaller ticks would lie on each
    # other.
    powers, texts = decade_ticks(math.log10(bend / 3), math.log10(most))
    return [0.0, *asinh_scaled(10.0 ** np.array(powers), bend).tolist()], ["0", *texts]


def _power_text(power: int) -> str:
    plain = abs(power) <= PLAIN_DECADES
    return f"{10.0**power:g}" if plain else "10" + str(power).translate(SUPERSCRIPTS)


ABOVE, LOWER_RIGHT, UPPER_RIGHT = "above", "lower right", "upper right"

DOTS = 100
"""Pixels to the inch of a figure on a web page."""

BAR = 0.6

MARGINS = 90
"""Pixels that plotly leaves above and below a plot and others do not."""

CLEAR = "rgba(0, 0, 0, 0)"


class AbstractDialect(abc.ABC):
    """One backend of arviz-plots.

    name : its name in arviz-plots. packages : modules that it needs. home : prefix of the modules
    that define its targets. size : of a point, in the units of its `scatter`. small : font size of
    text beside data.
    many_texts : whether its `text` writes several texts in one call. tilted : arguments of tilted
        tick labels.
    behind : arguments that draw a line behind the data.
    """

    name: str
    packages: tuple[str, ...]
    home: str
    size: float
    small: Any
    many_texts: bool = True
    tilted: Mapping[str, Any] = MappingProxyType({"rotation": 45})
    behind: Mapping[str, Any] = MappingProxyType({})

    def owns(self, target: object) -> bool:
        """Return whether `target` is one of this backend."""
        # By name: asking `isinstance` would import every backend, of which a person may have one.
        return any(
            f"{kind.__module__}.{kind.__name__}".startswith(self.home)
            for kind in type(target).__mro__
        )

    @abc.abstractmethod
    def figure(self, size: tuple[float, float]) -> dict[str, Any]:
        """Return the arguments of `create_plotting_grid` for one plot of that size in inches."""

    @abc.abstractmethod
    def artist(self, label: str | None, entry: bool, hover: Sequence[str] | None) -> dict[str, Any]:
        """Return arguments of an artist that belongs to `label`.

        entry : it represents its label in the legend. hover : hover text of each point.
        """

    @abc.abstractmethod
    def plain(self, names: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        """Return names as tick labels without markup or mathematics, and the arguments that this
        needs."""

    @abc.abstractmethod
    def legend(self, target: Any, place: str) -> None:
        """Show the legend of everything drawn so far."""

    @abc.abstractmethod
    def bars(
        self, target: Any, rows: Sequence[int], ends: Sequence[float], color: str, filled: bool
    ) -> None:
        """Draw horizontal bars from zero to `ends`."""

    @abc.abstractmethod
    def matrix(self, target: Any, values: np.ndarray, label: str) -> None:
        """Draw a heat map from −1 (blue) to 1 (red) with its colour bar."""


class Matplotlib(AbstractDialect):
    """Targets are ``matplotlib.axes.Axes``."""

    name, packages, home = "matplotlib", ("matplotlib",), "matplotlib.axes."
    size, small, many_texts = 16.0, "small", False
    tilted = MappingProxyType({"rotation": 45, "ha": "right", "rotation_mode": "anchor"})
    behind = MappingProxyType({"zorder": 0})

    def figure(self, size: tuple[float, float]) -> dict[str, Any]:
        return {"figsize": size, "figsize_units": "inches", "layout": "constrained"}

    def artist(
        self,
        label: str | None,
        entry: bool,
        hover: Sequence[str] | None,  # noqa: ARG002
    ) -> dict[str, Any]:
        # matplotlib makes an entry of every artist that has a label: intervals would double those
        # of their points.
        return {"label": label} if entry else {}

    def plain(self, names: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        # A name such as a$b$ is no mathematics, and what matplotlib cannot parse raises when it is
        # drawn.
        return list(names), {"parse_math": False}

    def legend(self, target: Any, place: str) -> None:
        where = (
            {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 2}
            if place == ABOVE
            else {"loc": place}
        )
        target.legend(frameon=False, **where)

    def bars(
        self, target: Any, rows: Sequence[int], ends: Sequence[float], color: str, filled: bool
    ) -> None:
        target.barh(rows, ends, height=BAR, facecolor=color if filled else "none", edgecolor=color)

    def matrix(self, target: Any, values: np.ndarray, label: str) -> None:
        image = target.imshow(values, vmin=-1.0, vmax=1.0, cmap="RdBu_r")
        target.figure.colorbar(image, ax=target, label=label, shrink=0.8)


class Bokeh(AbstractDialect):
    """Targets are ``bokeh.plotting.figure``."""

    name, packages, home = "bokeh", ("bokeh",), "bokeh.plotting."
    size, small = 6.0, "12px"
    behind = MappingProxyType({"level": "underlay"})

    def figure(self, size: tuple[float, float]) -> dict[str, Any]:
        return {"figsize": tuple(DOTS * side for side in size), "figsize_units": "dots"}

    def artist(
        self,
        label: str | None,
        entry: bool,  # noqa: ARG002
        hover: Sequence[str] | None,  # noqa: ARG002
    ) -> dict[str, Any]:
        # bokeh puts all artists of one label under one entry: each has to name it.
        return {} if label is None else {"legend_label": label}

    def plain(self, names: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        from bokeh.models import PlainText

        # bokeh takes text with dollars for LaTeX.
        return [PlainText(text=name) for name in names], {}

    def legend(self, target: Any, place: str) -> None:
        # It exists only once something with a label has been drawn, so that this comes last.
        legend = target.legend[0]
        legend.border_line_color = None
        if place == ABOVE:
            legend.ncols = 2
            legend.location = "center"
            target.add_layout(legend, "above")
        else:
            legend.location = {LOWER_RIGHT: "bottom_right", UPPER_RIGHT: "top_right"}[place]

    def bars(
        self, target: Any, rows: Sequence[int], ends: Sequence[float], color: str, filled: bool
    ) -> None:
        target.hbar(
            y=list(rows),
            right=list(ends),
            left=0.0,
            height=BAR,
            line_color=color,
            fill_color=color if filled else None,
        )

    def matrix(self, target: Any, values: np.ndarray, label: str) -> None:
        from bokeh.palettes import RdBu11, interp_palette
        from bokeh.transform import linear_cmap

        rows, columns = np.indices(values.shape)
        colors = linear_cmap("value", interp_palette(RdBu11, 256), -1.0, 1.0)
        squares = target.rect(
            x="x",
            y="y",
            width=1.0,
            height=1.0,
            fill_color=colors,
            line_color=None,
            source={"x": columns.ravel(), "y": rows.ravel(), "value": values.ravel()},
        )
        target.grid.visible = False
        target.add_layout(squares.construct_color_bar(title=label), "right")


class Plotly(AbstractDialect):
    """Targets are ``arviz_plots.backend.plotly.core.PlotlyPlot``: a figure, a row and a column of
    it."""

    name, packages, home = "plotly", ("plotly", "webcolors"), "arviz_plots.backend.plotly."
    size, small = 36.0, 12
    behind = MappingProxyType({"layer": "below"})

    def figure(self, size: tuple[float, float]) -> dict[str, Any]:
        width, height = (DOTS * side for side in size)
        # Without it the rows of a short plot are squeezed between plotly's margins.
        return {"figsize": (width, height + MARGINS), "figsize_units": "dots"}

    def artist(self, label: str | None, entry: bool, hover: Sequence[str] | None) -> dict[str, Any]:
        # One entry switches the whole group: points and their intervals.
        named = {} if label is None else {"name": label, "legendgroup": label, "showlegend": entry}
        if hover is not None:
            return {**named, "hovertext": self.plain(hover)[0], "hoverinfo": "text"}
        return named if entry else {**named, "hoverinfo": "skip"}

    def plain(self, names: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        # plotly reads a subset of HTML in every text, and MathJax between dollars.
        return [html.escape(name, quote=False).replace("$", "&#36;") for name in names], {}

    def legend(self, target: Any, place: str) -> None:
        above = {"orientation": "h", "x": 0.5, "xanchor": "center", "y": 1.0, "yanchor": "bottom"}
        inside = {
            "x": 1.0,
            "xanchor": "right",
            **dict(zip(("y", "yanchor"), self._edge(place), strict=True)),
        }
        target.figure.update_layout(legend=above if place == ABOVE else inside)

    def bars(
        self, target: Any, rows: Sequence[int], ends: Sequence[float], color: str, filled: bool
    ) -> None:
        from plotly.graph_objects import Bar

        marker = {"color": color if filled else CLEAR, "line": {"color": color, "width": 1}}
        target.add_trace(
            Bar(
                x=list(ends),
                y=list(rows),
                orientation="h",
                width=BAR,
                # With an offset bars lie on their rows: plotly moves those of several traces beside
                # each other.
                offset=-BAR / 2,
                marker=marker,
                showlegend=False,
                hoverinfo="skip",
            )
        )

    def matrix(self, target: Any, values: np.ndarray, label: str) -> None:
        from plotly.graph_objects import Heatmap

        target.add_trace(
            Heatmap(z=values, zmin=-1.0, zmax=1.0, colorscale="RdBu_r", colorbar={"title": label})
        )

    @staticmethod
    def _edge(place: str) -> tuple[float, str]:
        return (0.0, "bottom") if place == LOWER_RIGHT else (1.0, "top")


class Nothing(AbstractDialect):
    """Targets are lists, to which every call appends what it would draw; used in tests."""

    name, packages, home = "none", (), "builtins.list"
    size, small = 16.0, "small"

    def figure(self, size: tuple[float, float]) -> dict[str, Any]:
        return {"figsize": size, "figsize_units": "inches"}

    def artist(self, label: str | None, entry: bool, hover: Sequence[str] | None) -> dict[str, Any]:
        return {"label": label, "entry": entry, "hover": hover}

    def plain(self, names: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        return list(names), {}

    def legend(self, target: Any, place: str) -> None:
        target.append({"function": "legend", "place": place})

    def bars(
        self, target: Any, rows: Sequence[int], ends: Sequence[float], color: str, filled: bool
    ) -> None:
        target.append(
            {"function": "bars", "rows": rows, "ends": ends, "color": color, "filled": filled}
        )

    def matrix(self, target: Any, values: np.ndarray, label: str) -> None:
        target.append({"function": "matrix", "values": values, "label": label})


DIALECTS = {dialect.name: dialect for dialect in (Matplotlib(), Bokeh(), Plotly(), Nothing())}

PLAIN = "#666666"

CONTROLLED = "#1f77b4"

THIRD = "#d62728"

FAINT = "#cccccc"

INK = "#000000"

WHITE = "#ffffff"
"""Colours that are distinct from each other and from a white background, the same in every
backend."""

CIRCLE, TRIANGLE, DIAMOND, SQUARE = "C0", "C2", "C4", "C5"

SOLID, DASHED = "C0", "C1"
"""Markers and line styles by their position in the cycles of arviz-plots, since backends name them
differently."""

MOST_LETTERS = 40


class Series(NamedTuple):
    """Colour and marker of one kind of points, and their label in the legend, None for no entry."""

    label: str | None
    color: str
    marker: str


class Canvas(NamedTuple):
    """A target to draw on, the module of arviz-plots that draws on it, and the dialect of its
    backend."""

    dialect: AbstractDialect
    pen: Any
    target: Any

    def points(
        self,
        x: Any,
        y: Any,
        series: Series,
        hover: Sequence[str],
        *,
        x_error: Any = None,
        y_error: Any = None,
    ) -> None:
        """Draw points, with intervals of plus and minus their errors where given; NaN is not drawn.

        hover : hover text of each point, where the backend supports it.
        """
        x, y = (np.asarray(values, dtype=float) for values in (x, y))
        # Intervals first, so that markers lie upon them.
        if x_error is not None or y_error is not None:
            self.pen.line(
                _ends(x, x_error),
                _ends(y, y_error),
                self.target,
                color=series.color,
                width=1.2,
                **self.dialect.artist(series.label, False, None),
            )
        self.pen.scatter(
            x,
            y,
            self.target,
            color=series.color,
            marker=series.marker,
            size=self.dialect.size,
            **self.dialect.artist(series.label, series.label is not None, hover),
        )

    def line(
        self,
        x: Any,
        y: Any,
        color: str,
        *,
        label: str | None = None,
        style: str = SOLID,
        width: float = 1.0,
        alpha: float = 1.0,
        hover: Sequence[str] | None = None,
    ) -> None:
        """Draw a line through points, broken at NaN."""
        self.pen.line(
            x,
            y,
            self.target,
            color=color,
            linestyle=style,
            width=width,
            alpha=alpha,
            **self.dialect.artist(label, label is not None, hover),
        )

    def band(self, x: Any, low: Any, high: Any, color: str) -> None:
        """Fill the area between two curves faintly."""
        self.pen.fill_between_y(
            x,
            low,
            high,
            self.target,
            color=color,
            alpha=0.25,
            **self.dialect.artist(None, False, None),
        )

    def vertical_line(self, x: float, color: str) -> None:
        """Draw a vertical line across the plot, behind the data."""
        self.pen.vline(x, self.target, color=color, width=1.0, **self.dialect.behind)

    def horizontal_line(self, y: float, color: str) -> None:
        """Draw a horizontal line across the plot, behind the data."""
        self.pen.hline(y, self.target, color=color, width=1.0, **self.dialect.behind)

    def bars(
        self, rows: Sequence[int], ends: Sequence[float], color: str, *, filled: bool = True
    ) -> None:
        """Draw horizontal bars from zero to `ends`."""
        if len(rows):
            self.dialect.bars(self.target, rows, ends, color, filled)

    def matrix(self, values: np.ndarray, label: str) -> None:
        """Draw a heat map of values from −1 to 1; `label` is that of the colour bar."""
        self.dialect.matrix(self.target, values, label)

    def text(
        self, x: Any, y: Any, texts: Sequence[str], *, color: str = INK, align: str = "center"
    ) -> None:
        """Write small text; `align` is the end of each text that lies at x."""
        # matplotlib's `text` writes one text a call; bokeh makes a glyph of each call.
        groups = [(x, y, texts)] if self.dialect.many_texts else zip(x, y, texts, strict=True)
        for group in groups if len(texts) else ():
            self.pen.text(
                *group,
                self.target,
                color=color,
                size=self.dialect.small,
                horizontal_align=align,
                **self.dialect.artist(None, False, None),
            )

    def rows(self, names: Sequence[str], margin: float = 0.6, every: int = 1) -> None:
        """Label the rows 0, 1, … from top to bottom, or every so many of them."""
        labels, plainly = self.dialect.plain([row_name(name) for name in names[::every]])
        self.pen.yticks(list(range(0, len(names), every)), labels, self.target, **plainly)
        # Reversed limits: the first row is on top, as in the tables.
        self.pen.ylim((len(names) - 1 + margin, -margin), self.target)

    def columns(self, names: Sequence[str], every: int = 1) -> None:
        """Label the columns 0, 1, … of a matrix, or every so many of them."""
        labels, plainly = self.dialect.plain([row_name(name) for name in names[::every]])
        self.pen.xticks(
            list(range(0, len(names), every)), labels, self.target, **self.dialect.tilted, **plainly
        )
        self.pen.xlim((-0.5, len(names) - 0.5), self.target)

    def x_axis(
        self,
        label: str,
        *,
        ticks: tuple[Sequence[float | int], Sequence[str]] | None = None,
        limits: tuple[float, float] | None = None,
    ) -> None:
        """Label the horizontal axis; `ticks` are positions and their labels."""
        self.pen.xlabel(label, self.target)
        if ticks is not None:
            self.pen.xticks(*ticks, self.target)
        if limits is not None:
            self.pen.xlim(limits, self.target)

    def name_x_axis(self, name: str, ticks: tuple[Sequence[float], Sequence[str]]) -> None:
        """Label the horizontal axis by the name of a quantity, which may have markup or mathematics
        in it."""
        self.pen.xticks(*ticks, self.target)
        labels, plainly = self.dialect.plain([row_name(name)])
        self.pen.xlabel(labels[0], self.target, **plainly)

    def y_axis(self, label: str) -> None:
        """Label the vertical axis."""
        self.pen.ylabel(label, self.target)

    def title(self, text: str) -> None:
        """Write a title."""
        self.pen.title(text, self.target)

    def legend(self, place: str = ABOVE) -> None:
        """Show the legend, above the plot or in the corner `place`."""
        self.dialect.legend(self.target, place)


def require(where: str, *modules: str) -> None:
    """Raise an error that says how to install an optional package where it is missing."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        cure = (
            "They are optional: install `mcmcpost[plots]` for plots, `mcmcpost[report]` for "
            "reports."
        )
        raise MissingPackageError(
            where, f"the packages {', '.join(modules)}", f"no {', '.join(missing)}", cure
        )


def canvas_for(where: str, ax: Any, backend: str | None, size: tuple[float, float]) -> Canvas:
    """Return a canvas on `ax`, or on a new figure of that size in inches.

    The backend is the one named, else that of `ax`, else ``arviz_base.rcParams["plot.backend"]``.
    """
    dialect = _dialect(where, ax, backend)
    require(where, *dialect.packages)
    # Loaded by name: each of these modules imports its plotting library.
    pen = import_module(f"arviz_plots.backend.{dialect.name}")
    target = pen.create_plotting_grid(1, **dialect.figure(size))[1] if ax is None else ax
    return Canvas(dialect, pen, target)


PANEL = (3.4, 2.6)
"""Width and height in inches of one of several plots in a grid."""

MOST_COLUMNS = 3


def canvases_for(
    where: str, ax: Any, backend: str | None, size: tuple[float, float], count: int
) -> list[Canvas]:
    """Return canvases on the targets `ax`, or on those of a new figure: one of that size, or
    several in a grid."""
    if count == 1:
        return [canvas_for(where, ax, backend, size)]
    if ax is not None:
        targets = list(ax.ravel()) if isinstance(ax, np.ndarray) else ax
        if not isinstance(targets, list | tuple) or len(targets) != count:
            cure = "Pass one target for each quantity, or no `ax`."
            raise InputError(where, f"`ax` to be {count} targets", f"a {type(ax).__name__}", cure)
        return [canvas_for(where, target, backend, size) for target in targets]
    dialect = _dialect(where, None, backend)
    require(where, *dialect.packages)
    pen = import_module(f"arviz_plots.backend.{dialect.name}")
    columns = min(count, MOST_COLUMNS)
    rows = -(-count // columns)
    figure = dialect.figure((columns * PANEL[0], rows * PANEL[1]))
    # Not squeezed: an array whatever the number; a last row may have targets that stay empty.
    targets = pen.create_plotting_grid(count, rows, columns, squeeze=False, **figure)[1]
    return [Canvas(dialect, pen, target) for target in targets.ravel()[:count]]


def rows_height(count: int) -> float:
    """Return the height in inches of a figure with that many labelled rows."""
    return 1.3 + 0.28 * count


def row_name(name: str) -> str:
    """Return a name as a row label: printable, on one line, of at most 40 characters, among them a
    short index."""
    text = "".join(c if c.isprintable() else " " for c in name)
    if len(text) <= MOST_LETTERS:
        return text
    stem, bracket, index = text.rpartition("[")
    kept = bracket + index if stem and len(index) < MOST_LETTERS // 2 else ""
    return text[: MOST_LETTERS - 1 - len(kept)] + "…" + kept


def _dialect(where: str, ax: Any, backend: str | None) -> AbstractDialect:
    if ax is not None:
        return _owner(where, ax, backend)
    if backend is None:
        from arviz_base import rcParams

        backend = rcParams["plot.backend"]
    return _named(where, backend)


def _named(where: str, backend: str) -> AbstractDialect:
    if not isinstance(backend, str) or backend not in DIALECTS:
        known = f"`backend` to be one of {', '.join(DIALECTS)}"
        raise InputError(where, known, repr(backend), "Name one of these, or leave it out.")
    return DIALECTS[backend]


def _owner(where: str, ax: Any, backend: str | None) -> AbstractDialect:
    wanted = None if backend is None else _named(where, backend)
    owner = next((dialect for dialect in DIALECTS.values() if dialect.owns(ax)), None)
    if owner is None or wanted not in (None, owner):
        kind = "any backend of arviz-plots" if wanted is None else wanted.name
        cure = "Pass matplotlib axes, a bokeh figure, a PlotlyPlot of arviz-plots, or no `ax`."
        raise InputTypeError(
            where, f"`ax` to be a target of {kind}", f"a {type(ax).__name__}", cure
        )
    return owner


def _ends(values: np.ndarray, error: Any) -> np.ndarray:
    """Return both ends of every interval, each pair followed by NaN, which breaks the line."""
    error = 0.0 if error is None else np.asarray(error, dtype=float)
    return np.stack([values - error, values + error, np.full_like(values, np.nan)], axis=-1).ravel()


MOST_NAMED = 20
"""Rows of a matrix that are all named; of more, every so many are, and the figure grows no
further."""


def matrix_size(count: int) -> tuple[float, float]:
    """Return width and height in inches of the figure of `count` tasks."""
    side = 2.2 + 0.45 * min(count, MOST_NAMED)
    return side + 1.0, side
