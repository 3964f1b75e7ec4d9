"""The learnt task covariance as a picture."""

from typing import TYPE_CHECKING

from mcmcpost._checks import fault
from mcmcpost.control import JointEstimate
from mcmcpost.report._canvas import axes_for, name_rows, row_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_WRITTEN = 12


def task_names(joint: JointEstimate) -> list[str]:
    """Return the fitted tasks' names, with the integrand's where a task has several."""
    return [task if len(joint[task].names) == 1 else f"{task}: {name}" for task, name in joint.task_labels]


def matrix_size(count: int) -> tuple[float, float]:
    """Return width and height in inches of the figure of so many tasks."""
    side = 2.2 + 0.45 * count
    return side + 1.0, side


def plot_task_correlation(joint: JointEstimate, ax: "Axes | None" = None) -> "Axes":
    """Plot the learnt task covariance B as a correlation matrix; values are written in up to twelve rows.

    Parameters
    ----------
    joint : from `joint_expectation`.
    ax : matplotlib axes to draw on; new ones by default.

    Returns
    -------
    Axes

    Raises
    ------
    ValueError : no task was fitted.
    """
    names = task_names(joint)
    if not names:
        raise ValueError(
            fault("plot_task_correlation", "a joint estimate with fitted tasks", "none", "See the statuses.")
        )
    axes = axes_for("plot_task_correlation", ax, matrix_size(len(names)))
    correlation = joint.task_correlation
    image = axes.imshow(correlation, vmin=-1.0, vmax=1.0, cmap="RdBu_r")
    axes.figure.colorbar(image, ax=axes, label="correlation", shrink=0.8)
    name_rows(axes, names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xticks(
        range(len(names)), list(map(row_name, names)), rotation=45, ha="right", rotation_mode="anchor", parse_math=False
    )
    if len(names) <= MOST_WRITTEN:
        for i, row in enumerate(correlation):
            for j, value in enumerate(row):
                color = "w" if abs(value) > 0.7 else "k"
                axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize="small", color=color)
    return axes
