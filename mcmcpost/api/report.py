"""The public function of the report: a trace, an evidence, a joint estimate in, one HTML file out."""

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mcmcpost._core.errors import InputError
from mcmcpost._core.versions import versions
from mcmcpost.api.evidence import log_evidence
from mcmcpost.api.expectation import estimate_prepared, prepare
from mcmcpost.control import AbstractControlVariate, JointEstimate
from mcmcpost.evidence import Evidence, disagreements
from mcmcpost.io import check_convergence, is_ladder, posterior_rung, read_trace
from mcmcpost.report import Contents, EvidencePart, PosteriorPart, check_destination, render, write_html

if TYPE_CHECKING:
    import xarray


RECORDED = ("model_file", "inference_library", "inference_library_version", "num_warmup", "sampling_time", "created_at")
"""Attributes of a tree that samplers write and that a report repeats."""


def html_report(
    tree: "xarray.DataTree | None",
    path: str | os.PathLike[str] | None = None,
    integrands: Any = None,
    method: str | AbstractControlVariate = "auto",
    *,
    evidence: Evidence | None = None,
    joint: JointEstimate | None = None,
    title: str = "Report",
    asked: Mapping[str, str] | None = None,
    command: str | None = None,
    overwrite: bool = False,
    allow_bad_scores: bool = False,
    **options: Any,
) -> str:
    """Return one self-contained HTML file about a trace, and write it where a `path` is given.

    The table of plain and controlled estimates, a forest of both, gains, autocorrelation of the residuals, the score
    gate, R-hat and effective sample sizes, the path of the evidence, the learnt correlation of tasks, versions and
    seed. It loads nothing, holds no script, and escapes every name.

    Parameters
    ----------
    tree : a trace with scores; a ladder, whose last rung is the posterior and whose evidence is estimated; or None for
        `evidence` or `joint` alone.
    path : a new file ending in .html, checked before the work; `overwrite` allows it to exist.
    integrands, method, allow_bad_scores, options : as in `expectation`.
    evidence : from `log_evidence`. joint : from `joint_expectation`.
    title : heading. asked : more lines, label to text, of what was asked. command : how the report was made.

    Returns
    -------
    str : the HTML.

    Raises
    ------
    ImportError : jinja2 or matplotlib, the extra `report`, are not installed.
    FileExistsError, FileNotFoundError, PermissionError, ValueError : `path` cannot be written; see `check_destination`.
    ScoreError, ValueError, TypeError : as in `expectation`.
    """
    place = None if path is None else check_destination(path, overwrite)
    contents = gather(
        tree, integrands, method, evidence=evidence, joint=joint, title=title, asked=asked, command=command,
        allow_bad_scores=allow_bad_scores, **options,
    )  # fmt: skip
    text = render(contents)
    if place is not None:
        write_html(text, place, overwrite)
    return text


def gather(
    tree: "xarray.DataTree | None",
    integrands: Any = None,
    method: str | AbstractControlVariate = "auto",
    *,
    evidence: Evidence | None = None,
    joint: JointEstimate | None = None,
    title: str = "Report",
    asked: Mapping[str, str] | None = None,
    command: str | None = None,
    allow_bad_scores: bool = False,
    **options: Any,
) -> Contents:
    """Compute what a report shows; arguments as in `html_report`."""
    if tree is None and evidence is None and joint is None:
        raise InputError("html_report", "a trace, an evidence or a joint estimate", "none", "Pass one.")
    lines = dict(asked or {})
    notices: list[str] = []
    posterior = None
    if tree is not None:
        if is_ladder(tree):
            evidence = log_evidence(tree, allow_bad_scores=allow_bad_scores) if evidence is None else evidence
            lines["Trace"] = "the last rung of a ladder of power posteriors"
            tree = posterior_rung(tree)
        question = prepare(tree, integrands, method, allow_bad_scores)
        estimate = estimate_prepared(question, **options)
        convergence = check_convergence(tree)
        trace = read_trace(tree)  # the question leaves out parameters that never move
        chains, draws, d = trace.draws.shape
        lines |= {
            "Method": method if isinstance(method, str) else repr(method),
            "Draws": f"{chains} chains of {draws} draws, {d} unconstrained parameters",
            "Expectations": ", ".join(question.names),
        }
        notices += [text for text in (convergence.complaint, question.check.message) if text]
        posterior = PosteriorPart(estimate, question.values, question.check, trace.names, convergence.divergences)
    if evidence is not None:
        notices += [f"Evidence: {text}" for text in (*evidence.complaints, *disagreements(evidence))]
    if joint is not None:
        lines["Related tasks"] = ", ".join(joint)
    found = None if evidence is None else EvidencePart(evidence, evidence.to_dataframe(), evidence.rungs_to_dataframe())
    return Contents(
        title=title,
        notices=tuple(notices),
        asked=lines,
        provenance=_provenance(tree, command),
        posterior=posterior,
        evidence=found,
        joint=joint,
    )


def _provenance(tree: "xarray.DataTree | None", command: str | None) -> dict[str, str]:
    recorded: dict[str, str] = {}
    for attrs in () if tree is None else _attributes(tree):
        recorded |= {name: str(attrs[name]) for name in ("seed", *RECORDED) if name in attrs}
    installed = ", ".join(f"{name} {text}" for name, text in versions().items() if text is not None)
    return {
        "Command": command or "mcmcpost.html_report, from Python",
        "Seed of the sampler": recorded.pop("seed", "not recorded"),
        **{name.replace("_", " ").capitalize(): text for name, text in recorded.items()},
        "Versions": installed,
    }


def _attributes(tree: "xarray.DataTree") -> Iterator[Mapping[Any, Any]]:
    for group in ("sample_stats", "posterior"):
        if group in tree.children:
            yield tree.children[group].attrs
    yield tree.attrs
