"""Plots and the HTML report: the only package that knows a plotting backend."""

from mcmcpost.report.contents import (
    Contents,
    EvidencePart,
    PosteriorPart,
    diagnostics_text,
    known_lines,
    listed_rows,
    listing,
)
from mcmcpost.report.html import check_destination, render, write_html
from mcmcpost.report.plots import (
    plot_controlled_forest,
    plot_evidence_path,
    plot_gain,
    plot_residual_autocorrelation,
    plot_score_check,
    plot_task_correlation,
)

__all__ = [
    "Contents",
    "EvidencePart",
    "PosteriorPart",
    "check_destination",
    "diagnostics_text",
    "known_lines",
    "listed_rows",
    "listing",
    "plot_controlled_forest",
    "plot_evidence_path",
    "plot_gain",
    "plot_residual_autocorrelation",
    "plot_score_check",
    "plot_task_correlation",
    "render",
    "write_html",
]
