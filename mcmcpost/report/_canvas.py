"""What every figure shares: the axes to draw on, and colours that can be told from white paper and from each other."""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mcmcpost._checks import fault

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLAIN = "0.4"
CONTROLLED = "C0"
MOST_LETTERS = 40


def require(where: str, *modules: str) -> None:
    """Refuse to go on without an optional package, and say how to get it."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        cure = "They are optional: install `mcmcpost[report]`."
        raise ImportError(fault(where, f"the packages {', '.join(modules)}", f"no {', '.join(missing)}", cure))


def axes_for(where: str, ax: "Axes | None", size: tuple[float, float]) -> "Axes":
    """Return `ax`, or the axes of a new figure of that size in inches."""
    require(where, "matplotlib")
    if ax is not None:
        return ax
    from matplotlib import pyplot

    return pyplot.subplots(figsize=size, layout="constrained")[1]


def rows_height(count: int) -> float:
    """Return the height in inches of a figure with that many labelled rows."""
    return 1.3 + 0.28 * count


def row_name(name: str) -> str:
    """Return a name as it fits beside a row: one line, printable, and of at most forty characters."""
    text = "".join(c if c.isprintable() else " " for c in name)
    return text if len(text) <= MOST_LETTERS else text[: MOST_LETTERS - 1] + "…"


def name_rows(axes: "Axes", names: Any) -> None:
    """Label the rows from the top downwards; a dollar in a name is no mathematics."""
    axes.set_yticks(range(len(names)), list(map(row_name, names)), parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)


def legend_above(axes: "Axes") -> None:
    """Put the legend above the axes, where it hides nothing."""
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
