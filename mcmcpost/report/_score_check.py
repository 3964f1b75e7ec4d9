"""The score gate as a picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mcmcpost.report._canvas import CONTROLLED, PLAIN, axes_for, legend_above, name_rows, rows_height
from mcmcpost.scores import ScoreCheck

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FAR = 1e4
"""Beyond this every |z| is drawn alike."""


def plot_score_check(
    check: ScoreCheck, names: Sequence[str] | None = None, ax: "Axes | None" = None, *, rows: int | None = None
) -> "Axes":
    """Plot the tests of Stein's identity, one row per unconstrained parameter, against the threshold that passes.

    z of E[s_j] = 0, z of E[(x_j − x̄_j) s_j] = −1, and the largest |z| of E[(x_i − x̄_i) s_j] = 0 over i ≠ j.

    Parameters
    ----------
    check : from `check_tree`.
    names : d labels; ``x[j]`` by default.
    ax : matplotlib axes to draw on; new ones by default.
    rows : draw the first so many parameters only.

    Returns
    -------
    Axes
    """
    d = len(check.z_mean)
    shown = d if rows is None else min(rows, d)
    axes = axes_for("plot_score_check", ax, (7.0, rows_height(shown)))
    product = np.abs(check.z_product)
    off = np.where(np.eye(d, dtype=bool) | np.isnan(product), -np.inf, product).max(axis=0)
    series = (
        (np.abs(check.z_mean), CONTROLLED, "o", "mean of the score"),
        (np.diagonal(product), "C3", "D", "draw × own score"),
        (np.where(np.isfinite(off) | (off > 0), off, np.nan), PLAIN, "^", "draw × other scores"),
    )
    for values, color, marker, label in series:
        axes.plot(
            np.minimum(values, FAR)[:shown], np.arange(shown), ls="", ms=5, color=color, marker=marker, label=label
        )
    axes.axvline(check.threshold, color="k", lw=1, ls="--", label="largest |z| that passes")
    if max(np.nanmax(values[:shown], initial=0.0) for values, *_ in series) > 3 * check.threshold:
        axes.set_xscale("symlog", linthresh=check.threshold)
    axes.set_xlim(left=0.0)
    name_rows(axes, [f"x[{j}]" for j in range(shown)] if names is None else names[:shown])
    axes.set_xlabel("|z|")
    legend_above(axes)
    return axes
