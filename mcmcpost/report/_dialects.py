"""What the common interface of arviz-plots lacks, in each backend's own words: bars, matrices, legends, plain names."""

import abc
import html
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

ABOVE, LOWER_RIGHT, UPPER_RIGHT = "above", "lower right", "upper right"
DOTS = 100
"""Pixels to the inch of a figure on a web page."""
BAR = 0.6
MARGINS = 90
"""Pixels that plotly leaves above and below a plot and others do not."""
CLEAR = "rgba(0, 0, 0, 0)"


class AbstractDialect(abc.ABC):
    """One backend of arviz-plots.

    name : as arviz-plots has it. packages : modules without which it cannot be imported. home : how the names of the
    modules start that its targets come from. size : of a point, as its `scatter` takes it. small : letters beside data.
    many_words : whether its `text` writes several words at once. slant : arguments for labels of ticks that lean.
    behind : arguments for a line behind what is drawn.
    """

    name: str
    packages: tuple[str, ...]
    home: str
    size: float
    small: Any
    many_words: bool = True
    slant: Mapping[str, Any] = MappingProxyType({"rotation": 45})
    behind: Mapping[str, Any] = MappingProxyType({})

    def owns(self, target: object) -> bool:
        """Return whether `target` is one of this backend."""
        return any(f"{kind.__module__}.{kind.__name__}".startswith(self.home) for kind in type(target).__mro__)

    @abc.abstractmethod
    def figure(self, size: tuple[float, float]) -> dict[str, Any]:
        """Return the arguments of `create_plotting_grid` for one plot of that size in inches."""

    @abc.abstractmethod
    def artist(self, label: str | None, entry: bool, told: Sequence[str] | None) -> dict[str, Any]:
        """Return arguments of an artist that belongs to `label`.

        entry : it stands for its label in the legend. told : what each point says to who points at it.
        """

    @abc.abstractmethod
    def plain(self, names: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        """Return names as labels of ticks that nothing reads as markup or mathematics, and arguments that see to it."""

    @abc.abstractmethod
    def legend(self, target: Any, place: str) -> None:
        """Show the legend of what was drawn so far."""

    @abc.abstractmethod
    def bars(self, target: Any, rows: Sequence[int], ends: Sequence[float], color: str, filled: bool) -> None:
        """Draw horizontal bars from zero to `ends`."""

    @abc.abstractmethod
    def matrix(self, target: Any, values: np.ndarray, label: str) -> None:
        """Colour squares from −1, blue, to 1, red, and explain the colours beside them."""


class Matplotlib(AbstractDialect):
    """Targets are ``matplotlib.axes.Axes``."""

    name, packages, home = "matplotlib", ("matplotlib",), "matplotlib.axes."
    size, small, many_words = 16.0, "small", False
    slant = MappingProxyType({"rotation": 45, "ha": "right", "rotation_mode": "anchor"})
    behind = MappingProxyType({"zorder": 0})

    def figure(self, size: tuple[float, float]) -> dict[str, Any]:
        return {"figsize": size, "figsize_units": "inches", "layout": "constrained"}

    def artist(self, label: str | None, entry: bool, told: Sequence[str] | None) -> dict[str, Any]:  # noqa: ARG002
        return {"label": label} if entry else {}

    def plain(self, names: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        return list(names), {"parse_math": False}

    def legend(self, target: Any, place: str) -> None:
        where = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "ncols": 2} if place == ABOVE else {"loc": place}
        target.legend(frameon=False, **where)

    def bars(self, target: Any, rows: Sequence[int], ends: Sequence[float], color: str, filled: bool) -> None:
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

    def artist(self, label: str | None, entry: bool, told: Sequence[str] | None) -> dict[str, Any]:  # noqa: ARG002
        return {} if label is None else {"legend_label": label}

    def plain(self, names: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        from bokeh.models import PlainText

        return [PlainText(text=name) for name in names], {}

    def legend(self, target: Any, place: str) -> None:
        legend = target.legend[0]
        legend.border_line_color = None
        if place == ABOVE:
            legend.ncols = 2
            legend.location = "center"
            target.add_layout(legend, "above")
        else:
            legend.location = {LOWER_RIGHT: "bottom_right", UPPER_RIGHT: "top_right"}[place]

    def bars(self, target: Any, rows: Sequence[int], ends: Sequence[float], color: str, filled: bool) -> None:
        target.hbar(
            y=list(rows), right=list(ends), left=0.0, height=BAR, line_color=color, fill_color=color if filled else None
        )

    def matrix(self, target: Any, values: np.ndarray, label: str) -> None:
        from bokeh.palettes import RdBu11, interp_palette
        from bokeh.transform import linear_cmap

        rows, columns = np.indices(values.shape)
        colors = linear_cmap("value", interp_palette(RdBu11, 256), -1.0, 1.0)
        squares = target.rect(
            x="x", y="y", width=1.0, height=1.0, fill_color=colors, line_color=None,
            source={"x": columns.ravel(), "y": rows.ravel(), "value": values.ravel()},
        )  # fmt: skip
        target.grid.visible = False
        target.add_layout(squares.construct_color_bar(title=label), "right")


class Plotly(AbstractDialect):
    """Targets are ``arviz_plots.backend.plotly.core.PlotlyPlot``: a figure, a row and a column of it."""

    name, packages, home = "plotly", ("plotly", "webcolors"), "arviz_plots.backend.plotly."
    size, small = 36.0, 12
    behind = MappingProxyType({"layer": "below"})

    def figure(self, size: tuple[float, float]) -> dict[str, Any]:
        width, height = (DOTS * side for side in size)
        return {"figsize": (width, height + MARGINS), "figsize_units": "dots"}

    def artist(self, label: str | None, entry: bool, told: Sequence[str] | None) -> dict[str, Any]:
        named = {} if label is None else {"name": label, "legendgroup": label, "showlegend": entry}
        if told is not None:
            return {**named, "hovertext": self.plain(told)[0], "hoverinfo": "text"}
        return named if entry else {**named, "hoverinfo": "skip"}

    def plain(self, names: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        return [html.escape(name, quote=False).replace("$", "&#36;") for name in names], {}

    def legend(self, target: Any, place: str) -> None:
        above = {"orientation": "h", "x": 0.5, "xanchor": "center", "y": 1.0, "yanchor": "bottom"}
        inside = {"x": 1.0, "xanchor": "right", **dict(zip(("y", "yanchor"), self._edge(place), strict=True))}
        target.figure.update_layout(legend=above if place == ABOVE else inside)

    def bars(self, target: Any, rows: Sequence[int], ends: Sequence[float], color: str, filled: bool) -> None:
        from plotly.graph_objects import Bar

        marker = {"color": color if filled else CLEAR, "line": {"color": color, "width": 1}}
        target.add_trace(
            Bar(
                x=list(ends),
                y=list(rows),
                orientation="h",
                width=BAR,
                offset=-BAR / 2,
                marker=marker,
                showlegend=False,
                hoverinfo="skip",
            )
        )

    def matrix(self, target: Any, values: np.ndarray, label: str) -> None:
        from plotly.graph_objects import Heatmap

        target.add_trace(Heatmap(z=values, zmin=-1.0, zmax=1.0, colorscale="RdBu_r", colorbar={"title": label}))

    @staticmethod
    def _edge(place: str) -> tuple[float, str]:
        return (0.0, "bottom") if place == LOWER_RIGHT else (1.0, "top")


class Nothing(AbstractDialect):
    """Targets are lists, to which every call adds what it would have drawn: for tests."""

    name, packages, home = "none", (), "builtins.list"
    size, small = 16.0, "small"

    def figure(self, size: tuple[float, float]) -> dict[str, Any]:
        return {"figsize": size, "figsize_units": "inches"}

    def artist(self, label: str | None, entry: bool, told: Sequence[str] | None) -> dict[str, Any]:
        return {"label": label, "entry": entry, "told": told}

    def plain(self, names: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        return list(names), {}

    def legend(self, target: Any, place: str) -> None:
        target.append({"function": "legend", "place": place})

    def bars(self, target: Any, rows: Sequence[int], ends: Sequence[float], color: str, filled: bool) -> None:
        target.append({"function": "bars", "rows": rows, "ends": ends, "color": color, "filled": filled})

    def matrix(self, target: Any, values: np.ndarray, label: str) -> None:
        target.append({"function": "matrix", "values": values, "label": label})


DIALECTS = {dialect.name: dialect for dialect in (Matplotlib(), Bokeh(), Plotly(), Nothing())}
