"""Plain against controlled estimates as pictures."""

from typing import TYPE_CHECKING

import numpy as np

from mcmcpost._cli_edge import significant
from mcmcpost._types import Status
from mcmcpost.control import Estimate
from mcmcpost.report._canvas import CONTROLLED, PLAIN, axes_for, legend_above, name_rows, rows_height

if TYPE_CHECKING:
    from matplotlib.axes import Axes


ROOM = 1.4
"""Length of the axis of gains in lengths of the longest bar: words follow the bars."""


def plot_controlled_forest(estimate: Estimate, ax: "Axes | None" = None) -> "Axes":
    """Plot plain and controlled means with ± two standard errors, one row per quantity.

    Every row is measured from its controlled mean in posterior standard deviations, so that quantities of different
    units share an axis. The intervals are those of the estimates; for intervals of the posterior see
    ``arviz.plot_forest``.

    Parameters
    ----------
    estimate : from `expectation`; a quantity that is not finite has an empty row.
    ax : matplotlib axes to draw on; new ones by default.

    Returns
    -------
    Axes
    """
    axes = axes_for("plot_controlled_forest", ax, (7.0, rows_height(len(estimate.names))))
    unit = np.where(estimate.sd > 0, estimate.sd, 1.0)
    rows = np.arange(len(estimate.names))
    series = (
        (-0.16, (estimate.mean_plain - estimate.mean) / unit, estimate.mcse_plain / unit, PLAIN, "s", "plain mean"),
        (0.16, np.zeros(len(rows)) * estimate.mean, estimate.mcse / unit, CONTROLLED, "o", "control variate"),
    )
    axes.axvline(0.0, color="0.8", lw=1, zorder=0)
    for shift, centre, error, color, marker, label in series:
        axes.errorbar(
            centre, rows + shift, xerr=2 * error, ls="", ms=4, lw=1.2, color=color, marker=marker, label=label
        )
    name_rows(axes, estimate.names)
    axes.set_xlabel("difference from the controlled mean (posterior sd), ± 2 mcse")
    legend_above(axes)
    return axes


def plot_gain(estimate: Estimate, ax: "Axes | None" = None) -> "Axes":
    """Plot the gain (mcse/mcse_cv)², the factor of draws saved, one bar per quantity on a logarithmic axis.

    An exact quantity has no finite gain: its bar is open and ten times as long as the longest other one.

    Parameters
    ----------
    estimate : from `expectation`.
    ax : matplotlib axes to draw on; new ones by default.

    Returns
    -------
    Axes
    """
    axes = axes_for("plot_gain", ax, (7.0, rows_height(len(estimate.names))))
    exact = np.array([status is Status.EXACT for status in estimate.status])
    finite = np.isfinite(estimate.gain)
    longest = max(estimate.gain[finite & ~exact], default=1.0)
    shown = np.where(exact, 10 * max(longest, 1.0), estimate.gain)
    axes.set_xscale("log")
    for row, (gain, status) in enumerate(zip(shown, estimate.status, strict=True)):
        text = str(status) if exact[row] or not finite[row] else f"{significant(gain, 3)}× {status}"
        if np.isfinite(gain):
            face = "none" if exact[row] else CONTROLLED
            axes.barh(row, gain - 1.0, left=1.0, height=0.6, facecolor=face, edgecolor=CONTROLLED)
        end = max(gain, 1.0) if np.isfinite(gain) else 1.0
        axes.annotate(text, (end, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize="small")
    axes.axvline(1.0, color=PLAIN, lw=1)
    seen = shown[np.isfinite(shown)]
    axes.set_xlim(0.9 * min(1.0, min(seen, default=1.0)), max(10.0, max(seen, default=1.0)) ** ROOM)
    name_rows(axes, estimate.names)
    axes.set_xlabel("gain: factor of draws saved")
    return axes
