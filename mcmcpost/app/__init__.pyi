# The names of the door, each with the file that it is imported from on first use.

from .page import html_report as html_report
from .plots import (
    plot_controlled_forest as plot_controlled_forest,
    plot_distribution as plot_distribution,
    plot_evidence_path as plot_evidence_path,
    plot_gain as plot_gain,
    plot_residual_autocorrelation as plot_residual_autocorrelation,
    plot_score_check as plot_score_check,
    plot_task_correlation as plot_task_correlation,
)

def main() -> None: ...
