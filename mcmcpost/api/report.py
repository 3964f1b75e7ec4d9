"""The public function of the report: one HTML file about a trace, an evidence or a joint estimate."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mcmcpost._core.arguments import as_names, check_count, check_flags, check_kind
from mcmcpost._core.errors import InputError
from mcmcpost._core.text import number_of_draws
from mcmcpost._core.versions import versions
from mcmcpost.api.evidence import evidence_of
from mcmcpost.api.expectation import answer, answer_quantiles, check_probabilities
from mcmcpost.api.question import pose, resolve_method
from mcmcpost.control import AbstractControlVariate, JointEstimate
from mcmcpost.evidence import Evidence, disagreements
from mcmcpost.io import (
    Convergence,
    PosteriorVariables,
    check_convergence,
    is_ladder,
    last_rung,
    posterior_variables,
    read_ladder,
)
from mcmcpost.report import Contents, EvidencePart, PosteriorPart, check_destination, listing, render, write_html

if TYPE_CHECKING:
    import xarray


RECORDED = ("model_file", "inference_library", "inference_library_version", "num_warmup", "sampling_time", "created_at")
"""Attributes of a tree, written by samplers, that a report shows."""


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
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    fallback: bool = True,
    quantiles: float | Sequence[float] = (),
) -> str:
    """Return one self-contained HTML file about a trace, and write it where a `path` is given.

    The table of plain and controlled estimates, a forest of both, gains, autocorrelation of the residuals, the score
    gate, R-hat and effective sample sizes, the path of the evidence, the learnt correlation of tasks, versions and
    seed. The file loads nothing, and every name is escaped. Above thirty quantities the elements of large variables are
    folded, and a script inside the file, the only one that its content security policy allows, searches and sorts them;
    without scripts every row can still be unfolded.

    Parameters
    ----------
    tree : a trace with scores; a ladder, whose last rung is the posterior and whose evidence is estimated; or None for
        `evidence` or `joint` alone.
    path : a new file ending in .html, checked before the work; `overwrite` allows it to exist.
    integrands, method, allow_bad_scores, standardize, folds, fallback : as in `expectation`.
    quantiles : probabilities whose quantiles of every integrand are wanted too; see `quantile`.
    evidence : from `log_evidence`. joint : from `joint_expectation`.
    title : heading. asked : more lines about the request, from label to text. command : how the report was made.

    Returns
    -------
    str : the HTML.

    Raises
    ------
    ImportError : jinja2 or matplotlib, the extra `report`, are not installed.
    FileExistsError, FileNotFoundError, PermissionError, ValueError : `path` cannot be written; see `check_destination`.
    ScoreError, ValueError, TypeError : as in `expectation`.
    """
    where = "html_report"
    check_flags(where, overwrite=overwrite, allow_bad_scores=allow_bad_scores, fallback=fallback)
    check_count("folds", "folds", folds, "Leave it out for eight.", least=2, optional=True)
    resolve_method(method)
    check_kind(where, "evidence", evidence, (Evidence, None), "Pass what log_evidence returned.")
    check_kind(where, "joint", joint, (JointEstimate, None), "Pass what joint_expectation returned.")
    check_kind(where, "title", title, str, "It is the heading.")
    check_kind(where, "command", command, (str, None), "It is a line of text.")
    check_kind(where, "asked", asked, (Mapping, None), "Pass {label: text}.")
    levels = check_probabilities(quantiles) if np.size(quantiles) else None
    as_names(where, "asked", [part for pair in (asked or {}).items() for part in pair])
    place = None if path is None else check_destination(path, overwrite)
    subject = None if tree is None else read_subject(tree, evidence, allow_bad_scores)
    contents = gather(
        subject,
        integrands,
        method,
        evidence=evidence if subject is None else subject.evidence,
        joint=joint,
        title=title,
        asked=asked,
        command=command,
        allow_bad_scores=allow_bad_scores,
        levels=levels,
        standardize=standardize,
        folds=folds,
        fallback=fallback,
    )
    text = render(contents)
    if place is not None:
        write_html(text, place, overwrite)
    return text


class Subject(NamedTuple):
    """What a report is about: the trace of one target, its variables, and an evidence or None.

    note : description of the trace where it is not the tree that was given. convergence : of all rungs of a ladder.
    """

    tree: "xarray.DataTree"
    variables: PosteriorVariables
    evidence: Evidence | None
    note: str | None = None
    convergence: Convergence | None = None


def read_subject(tree: "xarray.DataTree", evidence: Evidence | None, allow_bad_scores: bool) -> Subject:
    """Return a trace as it is, and a ladder as its last rung with its evidence, estimated where none is given."""
    if not is_ladder(tree):
        return Subject(tree, posterior_variables(tree), evidence)
    ladder = read_ladder(tree)
    if evidence is None:
        evidence = evidence_of(ladder, allow_bad_scores=allow_bad_scores)
    rung = last_rung(tree, ladder)
    note = "the last rung of a ladder of power posteriors"
    return Subject(rung, posterior_variables(rung), evidence, note, check_convergence(tree, ()))


def gather(
    subject: Subject | None,
    integrands: Any,
    method: str | AbstractControlVariate,
    *,
    evidence: Evidence | None,
    title: str,
    asked: Mapping[str, str] | None,
    command: str | None,
    allow_bad_scores: bool,
    joint: JointEstimate | None = None,
    levels: Float[np.ndarray, " a"] | None = None,
    folds: int | None = None,
    **options: Any,
) -> Contents:
    """Compute what a report shows; arguments as in `html_report`, and `levels` the checked probabilities."""
    if subject is None and evidence is None and joint is None:
        raise InputError("html_report", "a trace, an evidence or a joint estimate", "none", "Pass one.")
    lines = dict(asked or {})
    notices: list[str] = []
    posterior = None
    if subject is not None:
        lines |= {} if subject.note is None else {"Trace": subject.note}
        question = pose(subject.tree, integrands, method, allow_bad_scores)
        estimate = answer(question, folds=folds, **options)
        quantiles = None if levels is None else answer_quantiles(question, levels, folds=folds)
        trace, check = question.every, question.check
        chains, draws, d = trace.draws.shape
        lines |= {
            "Method": method if isinstance(method, str) else repr(method),
            "Draws": f"{number_of_draws(chains, draws)}, {d} unconstrained parameters",
            "Expectations": listing(question.names),
        }
        convergence = question.convergence
        if (whole := subject.convergence) is not None:
            convergence = convergence._replace(divergences=whole.divergences, transitions=whole.transitions)
        notices += [text for text in (convergence.complaint, convergence.note, check.message) if text]
        posterior = PosteriorPart(
            estimate, question.values, check, trace.names, convergence.recorded_divergences, quantiles
        )
    if evidence is not None:
        if "score_gate" in evidence.info:
            notices.append(f"Evidence: {evidence.info['score_gate']}")
        notices += [f"Evidence: {text}" for text in (*evidence.complaints, *disagreements(evidence))]
    if joint is not None:
        lines["Related tasks"] = ", ".join(joint)
    found = None if evidence is None else EvidencePart(evidence, evidence.to_dataframe(), evidence.rungs_to_dataframe())
    return Contents(
        title=title,
        notices=tuple(notices),
        asked=lines | dict(asked or {}),
        provenance=_provenance(None if subject is None else subject.tree, command),
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
