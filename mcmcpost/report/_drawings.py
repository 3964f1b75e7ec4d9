"""The figures of a report and what each says in words."""

import numpy as np

from mcmcpost._cli_edge import digits_of, significant
from mcmcpost.control import Estimate, JointEstimate
from mcmcpost.evidence import Evidence
from mcmcpost.report._autocorrelation import plot_residual_autocorrelation
from mcmcpost.report._canvas import rows_height
from mcmcpost.report._contents import PosteriorPart, headline
from mcmcpost.report._estimates import plot_controlled_forest, plot_gain
from mcmcpost.report._evidence_path import plot_evidence_path
from mcmcpost.report._score_check import plot_score_check
from mcmcpost.report._svg import Drawing, draw
from mcmcpost.report._task_correlation import matrix_size, plot_task_correlation

MOST_ROWS = 60
"""A figure has the first so many rows; the tables have all."""
WIDTH = 7.0


def posterior_drawings(part: PosteriorPart) -> dict[str, Drawing]:
    """Return the figures of one trace by section: forest, gain, autocorrelation, scores."""
    head, shown = _first(part.estimate), len(part.estimate.names)
    size = (WIDTH, rows_height(min(shown, MOST_ROWS)))
    part_of = f" The first {MOST_ROWS} of {shown} quantities." if shown > MOST_ROWS else ""
    d = len(part.parameters)
    part_of_scores = f" The first {MOST_ROWS} of {d} parameters." if d > MOST_ROWS else ""
    return {
        "forest": draw(
            "forest",
            "Plain and controlled estimates",
            "For each quantity the plain mean and the controlled mean, with intervals of two standard errors, measured"
            f" from the controlled mean in posterior standard deviations.{_widest(head)}{part_of}",
            size,
            lambda axes: plot_controlled_forest(head, axes),
        ),
        "gain": draw(
            "gain",
            "Gain per quantity",
            f"Bars of the factor of draws saved, on a logarithmic axis. {headline(part.estimate)}{part_of}",
            size,
            lambda axes: plot_gain(head, axes),
        ),
        "autocorrelation": draw(
            "autocorrelation",
            "Autocorrelation of integrands and residuals",
            "Autocorrelation against lag, averaged over chains: dashed for the integrands, solid for what the control"
            f" variate leaves of them; thick lines are medians over the quantities.{part_of}",
            (WIDTH, 3.2),
            lambda axes: plot_residual_autocorrelation(head, part.values[..., :MOST_ROWS], axes),
        ),
        "scores": draw(
            "scores",
            "Tests of the scores",
            f"The absolute z of each test of Stein's identity for each parameter; up to"
            f" {significant(part.check.threshold, 3)} passes. Verdict: {part.check.verdict}.{part_of_scores}",
            (WIDTH, rows_height(min(d, MOST_ROWS))),
            lambda axes: plot_score_check(part.check, part.parameters, axes, rows=MOST_ROWS),
        ),
    }


def evidence_drawing(evidence: Evidence) -> Drawing:
    """Return the path of thermodynamic integration."""
    return draw(
        "path",
        "Path of the mean log likelihood",
        f"The mean log likelihood against the inverse temperature at {len(evidence.temperatures)} rungs, plain and"
        f" controlled, with two standard errors. Its integral is the log evidence,"
        f" {digits_of(evidence.value, evidence.error)}.",
        (WIDTH, 4.0),
        lambda axes: plot_evidence_path(evidence, axes),
    )


def joint_drawing(joint: JointEstimate) -> Drawing:
    """Return the learnt correlation of the tasks."""
    off = joint.task_correlation[~np.eye(len(joint.task_labels), dtype=bool)]
    spread = f" Off the diagonal from {off.min():.2f} to {off.max():.2f}." if len(off) else ""
    return draw(
        "tasks",
        "Learnt correlation of the tasks",
        f"Matrix of the correlations between {len(joint.task_labels)} tasks that the joint fit learnt.{spread}",
        matrix_size(len(joint.task_labels)),
        lambda axes: plot_task_correlation(joint, axes),
    )


def _first(estimate: Estimate) -> Estimate:
    if len(estimate.names) <= MOST_ROWS:
        return estimate
    rows = slice(MOST_ROWS)
    fields = estimate._asdict()
    kept = {name: field[rows] for name, field in fields.items() if name not in ("residuals", "covariance", "info")}
    return estimate._replace(
        **kept, residuals=estimate.residuals[..., rows], covariance=estimate.covariance[rows, rows]
    )


def _widest(estimate: Estimate) -> str:
    with np.errstate(invalid="ignore", divide="ignore"):
        shift = np.abs(estimate.mean_plain - estimate.mean) / estimate.sd
    if not np.isfinite(shift).any():
        return ""
    j = int(np.nanargmax(np.where(np.isfinite(shift), shift, np.nan)))
    return f" The largest difference is {significant(float(shift[j]), 2)}, of {estimate.names[j]}."
