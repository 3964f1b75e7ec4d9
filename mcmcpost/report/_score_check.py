"""The score gate as a picture."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mcmcpost._cli_edge import significant
from mcmcpost.report._canvas import (
    CIRCLE,
    CONTROLLED,
    DASHED,
    DIAMOND,
    INK,
    PLAIN,
    THIRD,
    TRIANGLE,
    Series,
    canvas_for,
    rows_height,
)  # fmt: skip
from mcmcpost.report._ticks import bent, bent_ticks
from mcmcpost.scores import ScoreCheck

FAR = 1e4
"""Beyond this every |z| is drawn alike."""


def plot_score_check(
    check: ScoreCheck,
    names: Sequence[str] | None = None,
    ax: Any = None,
    *,
    rows: int | None = None,
    backend: str | None = None,
) -> Any:
    """Plot the tests of Stein's identity, one row per unconstrained parameter, against the threshold that passes.

    z of E[s_j] = 0, z of E[(x_j − x̄_j) s_j] = −1, and the largest |z| of E[(x_i − x̄_i) s_j] = 0 over i ≠ j.
    Where one is far above the threshold, the abscissa is asinh(|z|/threshold), and its ticks say |z|.

    Parameters
    ----------
    check : from `check_tree`.
    names : d labels; ``x[j]`` by default.
    ax : matplotlib axes, a bokeh figure or a PlotlyPlot of arviz-plots to draw on; a new one by default.
    backend : "matplotlib", "bokeh", "plotly" or "none"; by default that of `ax`, or
        ``arviz_base.rcParams["plot.backend"]``.
    rows : draw the first so many parameters only.

    Returns
    -------
    The target: matplotlib Axes, a bokeh figure, a PlotlyPlot, whose `figure` is plotly's, or a list of calls.
    """
    d = len(check.z_mean)
    shown = d if rows is None else min(rows, d)
    canvas = canvas_for("plot_score_check", ax, backend, (7.0, rows_height(shown)))
    labels = [f"x[{j}]" for j in range(shown)] if names is None else list(names[:shown])
    product = np.abs(check.z_product)
    off = np.where(np.eye(d, dtype=bool) | np.isnan(product), -np.inf, product).max(axis=0)
    tests = (
        (np.abs(check.z_mean), Series("mean of the score", CONTROLLED, CIRCLE)),
        (np.diagonal(product), Series("draw × own score", THIRD, DIAMOND)),
        (np.where(np.isfinite(off) | (off > 0), off, np.nan), Series("draw × other scores", PLAIN, TRIANGLE)),
    )
    largest = min(FAR, max(np.nanmax(z[:shown], initial=check.threshold) for z, _ in tests))
    far = largest > 3 * check.threshold
    for z, series in tests:
        told = [f"{name}: |z| = {significant(value, 3)}" for name, value in zip(labels, z[:shown], strict=True)]
        near = np.minimum(z, FAR)[:shown]
        canvas.points(bent(near, check.threshold) if far else near, np.arange(shown), series, told)
    ends = np.array([check.threshold, largest])
    limit, most = (bent(ends, check.threshold) if far else ends).tolist()
    canvas.line([limit, limit], [-0.6, shown - 0.4], INK, label="largest |z| that passes", style=DASHED)
    canvas.rows(labels)
    ticks = bent_ticks(check.threshold, largest) if far else None
    canvas.x_axis("|z|", ticks=ticks, limits=(0.0, 1.04 * most))
    canvas.legend()
    return canvas.target
