"""Autocorrelation of the integrands and of what the control variate leaves of them."""

from typing import Any

import numpy as np
from jaxtyping import Float

from mcmcpost._types import Status
from mcmcpost.control import Estimate
from mcmcpost.report._canvas import CONTROLLED, DASHED, FAINT, PLAIN, SOLID, canvas_for
from mcmcpost.report._dialects import UPPER_RIGHT
from mcmcpost.report._ticks import whole_ticks

MAX_LAG = 40


def autocorrelations(series: Float[np.ndarray, "c n p"], max_lag: int = MAX_LAG) -> Float[np.ndarray, "k p"]:
    """Return the autocorrelation at lags 0, 1, …, averaged over chains; NaN for a constant series."""
    from arviz_stats.base import array_stats

    lags = min(max_lag + 1, series.shape[1])
    with np.errstate(invalid="ignore", divide="ignore"):
        parts = [array_stats.autocorr(series[..., j], axis=-1)[:, :lags].mean(0) for j in range(series.shape[-1])]
    return np.stack(parts, axis=-1)


def plot_residual_autocorrelation(
    estimate: Estimate,
    values: Float[np.ndarray, "c n p"],
    ax: Any = None,
    *,
    max_lag: int = MAX_LAG,
    backend: str | None = None,
) -> Any:
    """Plot the autocorrelation of the integrands f and of the cross-fitted residuals f − g: thin lines, thick median.

    The mcse is that of the residuals with their autocorrelation: a control variate helps less where it lasts longer.

    Parameters
    ----------
    estimate : of p quantities. Those whose residual is at rounding, or not finite, are left out.
    values : (c, n, p) the integrands at the draws.
    ax : matplotlib axes, a bokeh figure or a PlotlyPlot of arviz-plots to draw on; a new one by default.
    backend : "matplotlib", "bokeh", "plotly" or "none"; by default that of `ax`, or
        ``arviz_base.rcParams["plot.backend"]``.
    max_lag : last lag.

    Returns
    -------
    The target: matplotlib Axes, a bokeh figure, a PlotlyPlot, whose `figure` is plotly's, or a list of calls.
    """
    canvas = canvas_for("plot_residual_autocorrelation", ax, backend, (7.0, 3.2))
    shown = [j for j, status in enumerate(estimate.status) if status not in (Status.EXACT, Status.UNDEFINED)]
    canvas.level(0.0, FAINT)
    lags = np.arange(min(max_lag + 1, values.shape[1]), dtype=float)
    for series, color, style, label in (
        (values, PLAIN, DASHED, "integrand"),
        (estimate.residuals, CONTROLLED, SOLID, "residual"),
    ):
        if shown:
            lines = autocorrelations(series[..., shown], max_lag)
            if len(shown) > 1:
                broken = np.append(lines, np.full((1, len(shown)), np.nan), axis=0).ravel("F")
                along = np.tile(np.append(lags, np.nan), len(shown))
                canvas.line(along, broken, color, style=style, width=0.6, alpha=0.5)
            canvas.line(lags, np.median(lines, axis=1), color, label=label, style=style, width=2.0)
    places = whole_ticks(len(lags) - 1)
    canvas.x_axis("lag (draws)", ticks=(places, list(map(str, places))))
    canvas.y_axis("autocorrelation")
    if shown:
        canvas.legend(UPPER_RIGHT)
    return canvas.target
