"""Autocorrelation of the integrands and of what the control variate leaves of them."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from mcmcpost._types import Status
from mcmcpost.control import Estimate
from mcmcpost.report._canvas import CONTROLLED, PLAIN, axes_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LAG = 40


def autocorrelations(series: Float[np.ndarray, "c n p"], max_lag: int = MAX_LAG) -> Float[np.ndarray, "k p"]:
    """Return the autocorrelation at lags 0, 1, …, averaged over chains; NaN for a constant series."""
    from arviz_stats.base import array_stats

    lags = min(max_lag + 1, series.shape[1])
    with np.errstate(invalid="ignore", divide="ignore"):
        parts = [array_stats.autocorr(series[..., j], axis=-1)[:, :lags].mean(0) for j in range(series.shape[-1])]
    return np.stack(parts, axis=-1)


def plot_residual_autocorrelation(
    estimate: Estimate, values: Float[np.ndarray, "c n p"], ax: "Axes | None" = None, *, max_lag: int = MAX_LAG
) -> "Axes":
    """Plot the autocorrelation of the integrands f and of the cross-fitted residuals f − g: thin lines, thick median.

    The mcse is that of the residuals with their autocorrelation: a control variate helps less where it lasts longer.

    Parameters
    ----------
    estimate : of p quantities. Those whose residual is at rounding, or not finite, are left out.
    values : (c, n, p) the integrands at the draws.
    ax : matplotlib axes to draw on; new ones by default.
    max_lag : last lag.

    Returns
    -------
    Axes
    """
    axes = axes_for("plot_residual_autocorrelation", ax, (7.0, 3.2))
    shown = [j for j, status in enumerate(estimate.status) if status not in (Status.EXACT, Status.UNDEFINED)]
    axes.axhline(0.0, color="0.8", lw=1, zorder=0)
    for series, color, style, label in (
        (values, PLAIN, "--", "integrand"),
        (estimate.residuals, CONTROLLED, "-", "residual"),
    ):
        if shown:
            lines = autocorrelations(series[..., shown], max_lag)
            if len(shown) > 1:
                axes.plot(lines, color=color, ls=style, lw=0.6, alpha=0.5)
            axes.plot(np.median(lines, axis=1), color=color, ls=style, lw=2, label=label)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("lag (draws)")
    axes.set_ylabel("autocorrelation")
    if shown:
        axes.legend(frameon=False)
    return axes
