"""The path of thermodynamic integration as a picture."""

from typing import Any

import numpy as np

from mcmcpost._cli_edge import digits_of, significant
from mcmcpost.evidence import Evidence
from mcmcpost.report._canvas import CIRCLE, CONTROLLED, PLAIN, SQUARE, THIRD, Series, canvas_for
from mcmcpost.report._dialects import LOWER_RIGHT

POWER = 5.0
"""The abscissa is t^(1/5), on which the path is smooth and the area under the curve is not the log evidence."""


def plot_evidence_path(evidence: Evidence, ax: Any = None, *, backend: str | None = None) -> Any:
    """Plot the mean log likelihood along the inverse temperature: rungs with ± two errors, and the pooled path.

    Parameters
    ----------
    evidence : from `log_evidence`.
    ax : matplotlib axes, a bokeh figure or a PlotlyPlot of arviz-plots to draw on; a new one by default.
    backend : "matplotlib", "bokeh", "plotly" or "none"; by default that of `ax`, or
        ``arviz_base.rcParams["plot.backend"]``.

    Returns
    -------
    The target: matplotlib Axes, a bokeh figure, a PlotlyPlot, whose `figure` is plotly's, or a list of calls.
    """
    canvas = canvas_for("plot_evidence_path", ax, backend, (7.0, 4.0))
    if evidence.rungs is not None:
        rungs, t = evidence.rungs, evidence.temperatures[evidence.used]
        for shift, mean, error, series in (
            (-0.004, rungs.mean_plain, rungs.mean_error_plain, Series("rungs, plain", PLAIN, SQUARE)),
            (0.004, rungs.mean, rungs.mean_error, Series("rungs, controlled", CONTROLLED, CIRCLE)),
        ):
            told = [
                f"t = {significant(temperature, 3)}: {digits_of(m, e)} ± {significant(e, 2)}"
                for temperature, m, e in zip(t, mean, error, strict=True)
            ]
            canvas.points(t ** (1 / POWER) + shift, mean, series, told, y_error=2 * error)
    if evidence.pooled is not None:
        path = np.asarray(evidence.pooled.fit.mean)[:, evidence.pooled.level]
        t = evidence.pooled.temperatures
        told = [f"t = {significant(temperature, 3)}: {m:.6g}" for temperature, m in zip(t, path, strict=True)]
        canvas.line(t ** (1 / POWER), path, THIRD, label="pooled path", width=1.5, told=told)
    ticks = [0.0, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0]
    places = [t ** (1 / POWER) for t in ticks], [f"{t:g}" for t in ticks]
    canvas.x_axis("inverse temperature t (spaced as t^(1/5))", ticks=places)
    canvas.y_axis("mean log likelihood")
    value = digits_of(evidence.value, evidence.error)
    canvas.title(f"log evidence {value} ± {evidence.error:.2g} ({evidence.method})")
    if evidence.rungs is not None or evidence.pooled is not None:
        canvas.legend(LOWER_RIGHT)
    return canvas.target
