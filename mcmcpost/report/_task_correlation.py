"""The learnt task covariance as a picture."""

from typing import Any

import numpy as np

from mcmcpost._checks import fault
from mcmcpost.control import JointEstimate
from mcmcpost.report._canvas import INK, WHITE, canvas_for

MOST_WRITTEN = 12


def task_names(joint: JointEstimate) -> list[str]:
    """Return the fitted tasks' names, with the integrand's where a task has several."""
    return [task if len(joint[task].names) == 1 else f"{task}: {name}" for task, name in joint.task_labels]


def matrix_size(count: int) -> tuple[float, float]:
    """Return width and height in inches of the figure of so many tasks."""
    side = 2.2 + 0.45 * count
    return side + 1.0, side


def plot_task_correlation(joint: JointEstimate, ax: Any = None, *, backend: str | None = None) -> Any:
    """Plot the learnt task covariance B as a correlation matrix; values are written in up to twelve rows.

    Parameters
    ----------
    joint : from `joint_expectation`.
    ax : matplotlib axes, a bokeh figure or a PlotlyPlot of arviz-plots to draw on; a new one by default.
    backend : "matplotlib", "bokeh", "plotly" or "none"; by default that of `ax`, or
        ``arviz_base.rcParams["plot.backend"]``.

    Returns
    -------
    The target: matplotlib Axes, a bokeh figure, a PlotlyPlot, whose `figure` is plotly's, or a list of calls.

    Raises
    ------
    ValueError : no task was fitted.
    """
    names = task_names(joint)
    if not names:
        raise ValueError(
            fault("plot_task_correlation", "a joint estimate with fitted tasks", "none", "See the statuses.")
        )
    canvas = canvas_for("plot_task_correlation", ax, backend, matrix_size(len(names)))
    correlation = joint.task_correlation
    canvas.matrix(correlation, "correlation")
    canvas.rows(names, margin=0.5)
    canvas.columns(names)
    if len(names) <= MOST_WRITTEN:
        dark = np.abs(correlation) > 0.7
        for where, color in ((dark, WHITE), (~dark, INK)):
            i, j = np.nonzero(where)
            canvas.words(j, i, [f"{value:.2f}" for value in correlation[where]], color=color)
    return canvas.target
