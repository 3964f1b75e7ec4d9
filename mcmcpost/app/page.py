"""The report as one HTML file about a trace, an evidence or a joint estimate, and its public
function.

Figures are inline SVG with titles for screen readers, and nothing is loaded.
"""

import base64
import hashlib
import io
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from xml.etree import ElementTree

import numpy as np
from jaxtyping import Float

from mcmcpost.app import contents
from mcmcpost.app.canvas import matrix_size, require, rows_height
from mcmcpost.app.plots import (
    plot_controlled_forest,
    plot_evidence_path,
    plot_gain,
    plot_residual_autocorrelation,
    plot_score_check,
    plot_task_correlation,
)
from mcmcpost.control import AbstractControlVariate, Estimate, Options
from mcmcpost.core.arguments import (
    as_names,
    as_path,
    check_count,
    check_flags,
    check_kind,
    check_probabilities,
    check_trace_type,
    check_writable,
)
from mcmcpost.core.arrays import columns_of
from mcmcpost.core.devices import is_first_process
from mcmcpost.core.errors import InputError, fault
from mcmcpost.core.runtime import digits_of, number_of_draws, significant, versions, written_beside
from mcmcpost.distributions import resolve_interval
from mcmcpost.evidence import (
    EVIDENCE_GROUP,
    BridgeOverlap,
    Evidence,
    PathDiagnostics,
    disagreements,
    stored_evidence,
)
from mcmcpost.evidences import evidence_of
from mcmcpost.expectations import Answers
from mcmcpost.sample import resolve_method
from mcmcpost.tasks import JointEstimate
from mcmcpost.trees import (
    Convergence,
    PosteriorVariables,
    check_convergence,
    is_evidence_alone,
    is_ladder,
    last_rung,
    posterior_variables,
    read_ladder,
)

if TYPE_CHECKING:
    import xarray


SVG = "http://www.w3.org/2000/svg"

XLINK = "http://www.w3.org/1999/xlink"

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "mcmcpost",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "savefig.transparent": True,
}

LEAST, MOST = 3.7, 7.4
"""Least and largest width of an inch of figure in rem: where a screen is too narrow for a wide one,
it scrolls."""

_REFERENCE = re.compile(r"url\(#([^)]+)\)")


class Drawing(NamedTuple):
    """A figure of the report: identifier, title, description in words, and SVG element."""

    key: str
    title: str
    description: str
    svg: str


def draw(
    key: str, title: str, description: str, size: tuple[float, float], plot: Callable[[Any], object]
) -> Drawing:
    """Return what `plot` draws on the axes of a new figure of that size in inches, as inline SVG.

    Text is kept as text, identifiers start with `key`, and the element has the role of an image
    with `title` and `description`. Equal input gives equal bytes.
    """
    from matplotlib import style
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    # A person's own matplotlibrc would change sizes that the layout of the page relies on.
    with style.context(["default", STYLE]), warnings.catch_warnings():
        # The browser has the letters that matplotlib's own font lacks, as those of Chinese: text is
        # kept as text.
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font", UserWarning)
        figure = Figure(figsize=size, layout="constrained")
        # Without pyplot: no display is needed, and no figure is left open.
        FigureCanvasSVG(figure)
        plot(figure.subplots())
        buffer = io.BytesIO()
        # No date and a fixed salt of identifiers: equal reports have equal bytes.
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    root = ElementTree.fromstring(buffer.getvalue())
    _detach(root, key)
    _describe(root, key, title, description)
    root.set("style", f"min-width: {LEAST * size[0]:.1f}rem; max-width: {MOST * size[0]:.1f}rem")
    # Without it every tag would be written ns0:…, which a browser does not take for SVG within
    # HTML.
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    return Drawing(key, title, description, ElementTree.tostring(root, encoding="unicode"))


def _detach(root: ElementTree.Element, key: str) -> None:
    """Prefix every identifier and every reference to one; drop the metadata, which contains web
    addresses."""
    # The file must load nothing and name no address.
    for metadata in root.findall(f"{{{SVG}}}metadata"):
        root.remove(metadata)
    for element in root.iter():
        for name, value in element.attrib.items():
            # All figures stand in one document: two clip paths of one name would be one.
            if name == "id":
                element.set(name, f"{key}-{value}")
            elif name == f"{{{XLINK}}}href" and value.startswith("#"):
                element.set(name, f"#{key}-{value[1:]}")
            else:
                element.set(name, _REFERENCE.sub(rf"url(#{key}-\1)", value))


def _describe(root: ElementTree.Element, key: str, title: str, description: str) -> None:
    root.set("role", "img")
    root.set("aria-labelledby", f"{key}-title {key}-description")
    # The size in points is fixed; without it the figure takes the width that its column has.
    for name in ("width", "height"):
        del root.attrib[name]
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(
            f"{{{SVG}}}{tag}", {"id": f"{key}-{'title' if tag == 'title' else 'description'}"}
        )
        element.text = text
        # First children, where screen readers look for the title.
        root.insert(place, element)


MOST_ROWS = 60
"""Largest number of rows in a figure; tables have all."""

WIDTH = 5.4
"""Width of most figures in inches, whose text can still be read on the screen of a telephone."""


def posterior_drawings(
    section: contents.PosteriorSection, order: Sequence[str]
) -> dict[str, Drawing]:
    """Return the figures of one trace by section: forest, gain, autocorrelation, scores.

    order : the names of the quantities as the tables list them; the first ones are drawn.
    """
    # In the order of the tables, which are regrouped: a figure and its table start alike.
    places = np.array([section.estimate.names.index(name) for name in order[:MOST_ROWS]], dtype=int)
    head, values, shown = (
        section.estimate.select(places),
        columns_of(section.values, places),
        len(order),
    )
    size = (WIDTH, rows_height(len(places)))
    truncated = f" The first {MOST_ROWS} of {shown} quantities." if shown > MOST_ROWS else ""
    d = len(section.parameters)
    truncated_scores = f" The first {MOST_ROWS} of {d} parameters." if d > MOST_ROWS else ""
    drawings = {
        "forest": draw(
            "forest",
            "Plain and controlled estimates",
            "For each quantity the plain mean and the controlled mean, with intervals of two "
            "standard errors, measured from the controlled mean in posterior standard "
            f"deviations.{_widest(head)}{truncated}",
            size,
            lambda axes: plot_controlled_forest(head, axes),
        ),
        "gain": draw(
            "gain",
            "Gain per quantity",
            f"Bars of the factor of draws saved, on a logarithmic axis."
            f" {contents.headline(section.estimate.status, section.estimate.gain)}{truncated}",
            size,
            lambda axes: plot_gain(head, axes),
        ),
        "scores": draw(
            "scores",
            "Tests of the scores",
            "The absolute z of each test of Stein's identity for each parameter; up to "
            f"{significant(section.check.threshold, 3)} passes. Verdict: "
            f"{section.check.verdict}.{truncated_scores}",
            (WIDTH, rows_height(min(d, MOST_ROWS))),
            lambda axes: plot_score_check(section.check, section.parameters, axes, rows=MOST_ROWS),
        ),
    }
    # Of sums there are residuals of runs only, which are long beside the autocorrelation.
    if "num_runs" not in head.info:
        drawings["autocorrelation"] = draw(
            "autocorrelation",
            "Autocorrelation of integrands and residuals",
            "Autocorrelation against lag, averaged over chains: dashed for the integrands, "
            "solid for what the control variate leaves of them; thick lines are medians over "
            f"the quantities.{truncated}",
            (WIDTH, 3.2),
            lambda axes: plot_residual_autocorrelation(head, values, axes),
        )
    return drawings


def evidence_drawings(evidence: Evidence) -> list[Drawing]:
    """Return the path of thermodynamic integration and its barrier; of a trace, the overlap with
    the fitted density."""

    def figure(name: str, title: str, text: str, show: str = "mean") -> Drawing:
        size = (WIDTH, 3.6)
        return draw(
            name, title, text, size, lambda axes: plot_evidence_path(evidence, axes, show=show)
        )

    if isinstance(evidence.diagnostics, BridgeOverlap):
        text = (
            "Log posterior density minus that of the density fitted to the other half of the "
            "draws, shifted by the log evidence: at the draws, and at draws of the fitted "
            "density. The bridge needs that they overlap."
        )
        return [figure("overlap", "Overlap of posterior and fitted density", text)]
    drawings = []
    if len(evidence.temperatures):
        text = (
            "The mean log likelihood against the inverse temperature at "
            f"{len(evidence.temperatures)} rungs, plain and controlled, with two standard "
            "errors. Its integral is the log evidence, "
            f"{digits_of(evidence.value, evidence.error)}."
        )
        drawings.append(figure("path", "Path of the mean log likelihood", text))
    if isinstance(evidence.diagnostics, PathDiagnostics):
        text = (
            "The share of the communication barrier up to each temperature; the best rungs "
            "are equally far apart in height. And the share of the Monte Carlo variance that "
            "is due to the draws of each rung."
        )
        drawings.append(figure("barrier", "Barrier and source of the error", text, show="barrier"))
    return drawings


def joint_drawing(joint: JointEstimate) -> Drawing:
    """Return the learnt correlation of the tasks."""
    # Without the diagonal, whose ones would be the largest.
    off = joint.task_correlation[~np.eye(len(joint.task_labels), dtype=bool)]
    spread = f" Off the diagonal from {off.min():.2f} to {off.max():.2f}." if len(off) else ""
    return draw(
        "tasks",
        "Learnt correlation of the tasks",
        f"Matrix of the correlations between {len(joint.task_labels)} tasks that the joint "
        f"fit learnt.{spread}",
        matrix_size(len(joint.task_labels)),
        lambda axes: plot_task_correlation(joint, axes),
    )


def _widest(estimate: Estimate) -> str:
    with np.errstate(invalid="ignore", divide="ignore"):
        shift = np.abs(estimate.mean_plain - estimate.mean) / estimate.sd
    if not np.isfinite(shift).any():
        return ""
    j = int(np.nanargmax(np.where(np.isfinite(shift), shift, np.nan)))
    return f" The largest difference is {significant(float(shift[j]), 2)}, of {estimate.names[j]}."


TEMPLATE, SCRIPT = "report.html.j2", "report.js"


def render(record: contents.Contents) -> str:
    """Return the HTML of a report; every text is escaped. Its script is there only where rows are
    folded."""
    require("report", "jinja2", "matplotlib")
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True,
        # A name that the template misspells raises, in place of an empty cell.
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # Drawings are made here, with their texts escaped by ElementTree; nothing else passes
    # unescaped.
    environment.filters["drawn"] = lambda drawing: Markup(drawing.svg)
    folder = files("mcmcpost.app")
    template = environment.from_string(folder.joinpath(TEMPLATE).read_text(encoding="utf-8"))
    posterior, evidence, joint = record.posterior, record.evidence, record.joint
    facts: dict[str, object] = {
        "request": contents.request(record),
        "answers": contents.answers(record),
        "known": [],
        "worth": "",
        "shortfalls": [],
        "quantities": [],
        "quantiles": [],
        "intervals": [],
        "convergence": [],
        "tasks": [],
        "drawings": {},
    }
    groups: list[contents.Group] = []
    if posterior is not None:
        # Of all quantities, before constants and doubles are taken out of the tables.
        known = contents.known_lines(posterior.estimate)
        posterior = posterior.listed()
        estimates = contents.groups_of(
            contents.estimate_rows(posterior.estimate), contents.estimates_note
        )
        quantiles, intervals = (
            []
            if estimate is None
            else contents.groups_of(contents.listed_rows(estimate), contents.estimates_note)
            for estimate in (posterior.quantiles, posterior.intervals)
        )
        groups += [*estimates, *quantiles, *intervals]
        facts |= {
            "known": known,
            "worth": posterior.estimate.info.get("worth", ""),
            "shortfalls": contents.shortfalls(posterior.estimate),
            "quantities": estimates,
            "quantiles": quantiles,
            "intervals": intervals,
            "convergence": contents.groups_of(
                contents.convergence_rows(posterior.estimate.names, posterior.values),
                contents.convergence_note,
            ),
            "drawings": posterior_drawings(
                posterior, [row["name"] for group in estimates for row in group.rows]
            ),
        }
    if evidence is not None:
        facts |= {
            "paths": evidence_drawings(evidence.evidence),
            "diagnostics": contents.diagnostics_text(evidence.evidence),
            "methods": contents.evidence_rows(evidence),
            "rungs": contents.rung_rows(evidence),
        }
    if joint is not None:
        tasks = contents.groups_of(contents.joint_rows(joint), contents.estimates_note)
        groups += tasks
        facts |= {
            "tasks": tasks,
            "matrix": joint_drawing(joint) if len(joint.task_labels) else None,
        }
    script = (
        folder.joinpath(SCRIPT).read_text(encoding="utf-8")
        if any(group.label for group in groups)
        else ""
    )
    # The content security policy allows the script of this hash alone: names from a trace cannot
    # run, even unescaped.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return template.render(contents=record, script=Markup(script), digest=digest, **facts)


def check_destination(path: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Return the path of a report after checking, before the work, that it can be written.

    Raises
    ------
    ValueError : the name does not end in .html or .htm.
    FileExistsError : it exists and may not be overwritten, or is a folder.
    FileNotFoundError, PermissionError : its folder does not exist, or cannot be written to.
    """
    place = as_path("report", path)
    if place.suffix.lower() not in (".html", ".htm"):
        raise InputError("report", "an output ending in .html", str(place), "Rename it.")
    if place.is_dir():
        raise FileExistsError(
            fault("report", "an output file", f"the folder {place}", "Pick another name.")
        )
    # The others may come later, when the first process has written it.
    if os.path.lexists(place) and not overwrite and is_first_process():
        cure = "Pick another name, or allow it to be replaced with --force (overwrite=True)."
        raise FileExistsError(fault("report", "a new output file", f"{place}, which exists", cure))
    if not place.parent.is_dir():
        raise FileNotFoundError(
            fault("report", "an existing folder", str(place.parent), "Create it first.")
        )
    check_writable("report", place.parent)
    return place


def write_html(text: str, path: Path, overwrite: bool = False) -> Path:
    """Write a rendered report under a temporary name beside `path` and rename it, so no half report
    is left.

    Of several processes of ``jax.distributed`` the first writes it and the others go on.
    """
    if not is_first_process():
        return path
    target = Path(os.path.realpath(path))  # a link stays one
    with written_beside(target) as temporary:
        # a path may hold bytes that are no text
        temporary.write_text(text, encoding="utf-8", errors="replace")
        # Once more: someone may have written there during the work.
        check_destination(path, overwrite)
        temporary.replace(target)
    return path


RECORDED = (
    "model_file",
    "inference_library",
    "inference_library_version",
    "num_warmup",
    "sampling_time",
    "created_at",
)
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
    ci_prob: float | None = None,
    ci_kind: Literal["eti", "hdi"] | None = None,
) -> str:
    """Return one self-contained HTML file about a trace, and write it where a `path` is given.

    The table of plain and controlled estimates, a forest of both, gains, autocorrelation of the
    residuals, the score gate, R-hat and effective sample sizes, the path of the evidence, the
    learnt correlation of tasks, versions and seed. The file loads nothing, and every name is
    escaped. Above thirty quantities the elements of large variables are folded, and a script inside
    the file, the only one that its content security policy allows, searches and sorts them; without
    scripts every row can still be unfolded.

    Parameters
    ----------
    tree : a trace with scores; a ladder, whose last rung is the posterior and whose evidence is
        estimated unless it is stored in the tree; a tree of a stored evidence alone; or None for
        `evidence` or `joint` alone.
    path : a new file ending in .html, checked before the work; `overwrite` allows it to exist.
    integrands, method, allow_bad_scores, standardize, folds, fallback : as in `expectation`.
    quantiles : probabilities whose quantiles of every integrand are wanted too; see `quantile`.
    ci_prob, ci_kind : bounds of the interval of every integrand, as in `summary`; none by default.
    evidence : from `log_evidence`. joint : from `joint_expectation`.
    title : heading. asked : more lines about the request, from label to text. command : how the
        report was made.

    Returns
    -------
    str : the HTML.

    Raises
    ------
    ImportError : jinja2 or matplotlib, the extra `report`, are not installed.
    FileExistsError, FileNotFoundError, PermissionError, ValueError : `path` cannot be written; see
    `check_destination`.
    ScoreError, ValueError, TypeError : as in `expectation`.
    """
    where = "html_report"
    check_flags(where, overwrite=overwrite, allow_bad_scores=allow_bad_scores, fallback=fallback)
    check_count("folds", "folds", folds, "Leave it out for eight.", least=2, optional=True)
    resolve_method(method)
    check_kind(where, "evidence", evidence, (Evidence, None), "Pass what log_evidence returned.")
    check_kind(
        where, "joint", joint, (JointEstimate, None), "Pass what joint_expectation returned."
    )
    check_kind(where, "title", title, str, "It is the heading.")
    check_kind(where, "command", command, (str, None), "It is a line of text.")
    check_kind(where, "asked", asked, (Mapping, None), "Pass {label: text}.")
    levels = check_probabilities(quantiles) if np.size(quantiles) else None
    interval = resolve_interval(where, ci_prob, ci_kind)
    as_names(where, "asked", [entry for pair in (asked or {}).items() for entry in pair])
    # Before the reduction, which may take minutes.
    place = None if path is None else check_destination(path, overwrite)
    if tree is not None:
        check_trace_type(where, tree)
    subject = (
        None
        if tree is None or is_evidence_alone(tree)
        else read_subject(tree, evidence, allow_bad_scores)
    )
    if subject is not None:
        evidence = subject.evidence
    elif tree is not None and evidence is None:
        evidence = stored_evidence(where, tree)
    record = gather(
        subject,
        integrands,
        method,
        evidence=evidence,
        joint=joint,
        title=title,
        asked=asked,
        command=command,
        options=Options(standardize, folds, allow_bad_scores, fallback),
        levels=levels,
        interval=interval,
    )
    text = render(record)
    if place is not None:
        write_html(text, place, overwrite)
    return text


class Subject(NamedTuple):
    """What a report is about: the trace of one target, its variables, and an evidence or None.

    note : description of the trace where it is not the tree that was given. convergence : of all
        rungs of a ladder.
    """

    tree: "xarray.DataTree"
    variables: PosteriorVariables
    evidence: Evidence | None
    note: str | None = None
    convergence: Convergence | None = None


def read_subject(
    tree: "xarray.DataTree", evidence: Evidence | None, allow_bad_scores: bool
) -> Subject:
    """Return a trace as it is, and a ladder as its last rung, with the evidence that is given or
    stored in the tree.

    That of a ladder is estimated where there is none.
    """
    if evidence is None and EVIDENCE_GROUP in tree.children:
        evidence = stored_evidence("report", tree)
    if not is_ladder(tree):
        return Subject(tree, posterior_variables(tree), evidence)
    # Read once for the evidence and for the posterior, its last rung.
    ladder = read_ladder(tree)
    if evidence is None:
        evidence = evidence_of(ladder, None, Options(allow_bad_scores=allow_bad_scores))
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
    options: Options,
    joint: JointEstimate | None = None,
    levels: Float[np.ndarray, " a"] | None = None,
    interval: tuple[float, str] | None = None,
) -> contents.Contents:
    """Compute what a report shows; arguments as in `html_report`, with `levels` and `interval`
    checked."""
    if subject is None and evidence is None and joint is None:
        raise InputError(
            "html_report", "a trace, an evidence or a joint estimate", "none", "Pass one."
        )
    lines = dict(asked or {})
    notices: list[str] = []
    posterior = None
    if subject is not None:
        lines |= {} if subject.note is None else {"Trace": subject.note}
        reduction = Answers.of(subject.tree, integrands, method, options, weighted=False)
        question, estimate = reduction.question, reduction.expectation()
        # Distributions take several times as long as means: only where they are asked for.
        quantiles = intervals = None
        if levels is not None or interval is not None:
            dist = reduction.distribution()
            quantiles, intervals = dist.quantiles_and_interval(levels, interval)
        trace, check = question.every, question.check
        lines |= {
            "Method": method if isinstance(method, str) else repr(method),
            "Draws": f"{number_of_draws(*reduction.size)}, {len(trace.names)} unconstrained "
            "parameters",
            "Expectations": contents.listing(question.sample.names),
        }
        convergence = question.convergence
        # Divergences of all rungs: those of the last alone say nothing about the path.
        if (whole := subject.convergence) is not None:
            convergence = convergence._replace(
                divergences=whole.divergences, transitions=whole.transitions
            )
        notices += [
            text for text in (convergence.complaint, convergence.note, check.message) if text
        ]
        posterior = contents.PosteriorSection(
            estimate,
            question.sample.values,
            reduction.size,
            check,
            trace.names,
            convergence.recorded_divergences,
            quantiles,
            intervals,
        )
    if evidence is not None:
        if "score_gate" in evidence.info:
            notices.append(f"Evidence: {evidence.info['score_gate']}")
        notices += [
            f"Evidence: {text}" for text in (*evidence.complaints, *disagreements(evidence))
        ]
    if joint is not None:
        lines["Related tasks"] = ", ".join(joint)
    tables = (
        None
        if evidence is None
        else contents.EvidenceSection(
            evidence, evidence.to_dataframe(), evidence.rungs_to_dataframe()
        )
    )
    return contents.Contents(
        title=title,
        notices=tuple(notices),
        asked=lines | dict(asked or {}),
        provenance=_provenance(None if subject is None else subject.tree, command),
        posterior=posterior,
        evidence=tables,
        joint=joint,
    )


def _provenance(tree: "xarray.DataTree | None", command: str | None) -> dict[str, str]:
    recorded: dict[str, str] = {}
    for attrs in () if tree is None else _attributes(tree):
        # The tree's own attributes come last and win: samplers write the same names on their
        # groups.
        recorded |= {
            name: contents.recorded_text(name, attrs[name])
            for name in ("seed", *RECORDED)
            if name in attrs
        }
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
