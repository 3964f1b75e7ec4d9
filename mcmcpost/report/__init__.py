"""Plots and the HTML report: the only package that knows a plotting backend."""

from mcmcpost.report._autocorrelation import plot_residual_autocorrelation
from mcmcpost.report._contents import Contents, EvidencePart, PosteriorPart
from mcmcpost.report._estimates import plot_controlled_forest, plot_gain
from mcmcpost.report._evidence_path import plot_evidence_path
from mcmcpost.report._html import check_destination, render, write_html
from mcmcpost.report._score_check import plot_score_check
from mcmcpost.report._task_correlation import plot_task_correlation

__all__ = [
    "Contents",
    "EvidencePart",
    "PosteriorPart",
    "check_destination",
    "plot_controlled_forest",
    "plot_evidence_path",
    "plot_gain",
    "plot_residual_autocorrelation",
    "plot_score_check",
    "plot_task_correlation",
    "render",
    "write_html",
]
