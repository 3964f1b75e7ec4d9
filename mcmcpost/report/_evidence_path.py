"""The path of thermodynamic integration as a picture."""

from typing import TYPE_CHECKING

import numpy as np

from mcmcpost._cli_edge import digits_of
from mcmcpost.evidence import Evidence
from mcmcpost.report._canvas import CONTROLLED, PLAIN, axes_for

if TYPE_CHECKING:
    from matplotlib.axes import Axes

POWER = 5.0
"""The abscissa is t^(1/5), on which the path is smooth and the area under the curve is not the log evidence."""


def plot_evidence_path(evidence: Evidence, ax: "Axes | None" = None) -> "Axes":
    """Plot the mean log likelihood along the inverse temperature: rungs with ± two errors, and the pooled path.

    Parameters
    ----------
    evidence : from `log_evidence`.
    ax : matplotlib axes to draw on; new ones by default.

    Returns
    -------
    Axes
    """
    axes = axes_for("plot_evidence_path", ax, (7.0, 4.0))
    if evidence.rungs is not None:
        s = evidence.temperatures[evidence.used] ** (1 / POWER)
        rungs = evidence.rungs
        series = (
            (-0.004, rungs.mean_plain, rungs.mean_error_plain, PLAIN, "s", "rungs, plain"),
            (0.004, rungs.mean, rungs.mean_error, CONTROLLED, "o", "rungs, controlled"),
        )
        for shift, mean, error, color, marker, label in series:
            axes.errorbar(s + shift, mean, 2 * error, ls="", ms=4, lw=1, color=color, marker=marker, label=label)
    if evidence.pooled is not None:
        path = np.asarray(evidence.pooled.fit.mean)[:, evidence.pooled.level]
        axes.plot(evidence.pooled.temperatures ** (1 / POWER), path, color="C3", lw=1.5, label="pooled path")
    ticks = np.array([0.0, 1e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0])
    axes.set_xticks(ticks ** (1 / POWER), [f"{t:g}" for t in ticks])
    axes.set_xlabel("inverse temperature t (spaced as t^(1/5))")
    axes.set_ylabel("mean log likelihood")
    value = digits_of(evidence.value, evidence.error)
    axes.set_title(f"log evidence {value} ± {evidence.error:.2g} ({evidence.method})")
    axes.legend()
    return axes
