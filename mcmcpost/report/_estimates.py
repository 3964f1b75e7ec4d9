"""Plain against controlled estimates as pictures."""

from typing import Any

import numpy as np

from mcmcpost._cli_edge import digits_of, significant
from mcmcpost._types import Status
from mcmcpost.control import Estimate
from mcmcpost.report._canvas import CIRCLE, CONTROLLED, FAINT, PLAIN, SQUARE, Series, canvas_for, rows_height
from mcmcpost.report._ticks import decade_ticks

ROOM = 1.4
"""Length of the axis of gains in lengths of the longest bar: words follow the bars."""


def plot_controlled_forest(estimate: Estimate, ax: Any = None, *, backend: str | None = None) -> Any:
    """Plot plain and controlled means with ± two standard errors, one row per quantity.

    Every row is measured from its controlled mean in posterior standard deviations, so that quantities of different
    units share an axis. The intervals are those of the estimates; for intervals of the posterior see
    ``arviz.plot_forest``.

    Parameters
    ----------
    estimate : from `expectation`; a quantity that is not finite has an empty row.
    ax : matplotlib axes, a bokeh figure or a PlotlyPlot of arviz-plots to draw on; a new one by default.
    backend : "matplotlib", "bokeh", "plotly" or "none"; by default that of `ax`, or
        ``arviz_base.rcParams["plot.backend"]``.

    Returns
    -------
    The target: matplotlib Axes, a bokeh figure, a PlotlyPlot, whose `figure` is plotly's, or a list of calls.
    """
    canvas = canvas_for("plot_controlled_forest", ax, backend, (7.0, rows_height(len(estimate.names))))
    unit = np.where(estimate.sd > 0, estimate.sd, 1.0)
    rows = np.arange(len(estimate.names))
    canvas.upright(0.0, FAINT)
    reach = [0.0]
    for shift, mean, mcse, series in (
        (-0.16, estimate.mean_plain, estimate.mcse_plain, Series("plain mean", PLAIN, SQUARE)),
        (0.16, estimate.mean, estimate.mcse, Series("control variate", CONTROLLED, CIRCLE)),
    ):
        told = [
            f"{name}: {digits_of(m, e)} ± {significant(e, 2)}"
            for name, m, e in zip(estimate.names, mean, mcse, strict=True)
        ]
        centre, error = (mean - estimate.mean) / unit, 2 * mcse / unit
        canvas.points(centre, rows + shift, series, told, x_error=error)
        ends = np.concatenate([centre, centre - error, centre + error])
        reach += ends[np.isfinite(ends)].tolist()
    canvas.rows(estimate.names)
    room = 0.05 * (max(reach) - min(reach)) or 1.0
    canvas.x_axis("difference from controlled mean (sd), ± 2 mcse", limits=(min(reach) - room, max(reach) + room))
    canvas.legend()
    return canvas.target


def plot_gain(estimate: Estimate, ax: Any = None, *, backend: str | None = None) -> Any:
    """Plot the gain (mcse/mcse_cv)², the factor of draws saved, one bar per quantity on a logarithmic axis.

    The abscissa is log₁₀ of the gain, and its ticks say the gain. An exact quantity has no finite gain: its
    bar is open and ends at ten times the largest other one.

    Parameters
    ----------
    estimate : from `expectation`.
    ax : matplotlib axes, a bokeh figure or a PlotlyPlot of arviz-plots to draw on; a new one by default.
    backend : "matplotlib", "bokeh", "plotly" or "none"; by default that of `ax`, or
        ``arviz_base.rcParams["plot.backend"]``.

    Returns
    -------
    The target: matplotlib Axes, a bokeh figure, a PlotlyPlot, whose `figure` is plotly's, or a list of calls.
    """
    canvas = canvas_for("plot_gain", ax, backend, (7.0, rows_height(len(estimate.names))))
    exact = np.array([status is Status.EXACT for status in estimate.status])
    known = np.isfinite(estimate.gain) & (estimate.gain > 0) & ~exact
    lengths = np.where(known, np.log10(estimate.gain, where=known, out=np.zeros(len(exact))), 0.0)
    lengths[exact] = 1.0 + max(lengths.max(initial=0.0), 0.0)
    for shown, filled in ((known, True), (exact, False)):
        canvas.bars(np.flatnonzero(shown).tolist(), lengths[shown].tolist(), CONTROLLED, filled=filled)
    canvas.upright(0.0, PLAIN)
    limits = min(0.0, lengths.min(initial=0.0)) - 0.05, ROOM * max(1.0, lengths.max(initial=0.0))
    texts = [
        f"{significant(gain, 3)}× {status}" if has else str(status)
        for gain, status, has in zip(estimate.gain, estimate.status, known, strict=True)
    ]
    gap = 0.008 * (limits[1] - limits[0])
    canvas.words(np.maximum(lengths, 0.0) + gap, np.arange(len(texts)), texts, align="left")
    canvas.rows(estimate.names)
    canvas.x_axis("gain: factor of draws saved", ticks=decade_ticks(*limits), limits=limits)
    return canvas.target
