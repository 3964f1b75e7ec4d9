"""The report as one HTML file: no script, nothing loaded from anywhere."""

import os
import uuid
from importlib.resources import files
from pathlib import Path

from mcmcpost._checks import fault
from mcmcpost._folder import check_writable
from mcmcpost.report._canvas import require
from mcmcpost.report._contents import (
    Contents,
    convergence_rows,
    estimate_rows,
    evidence_rows,
    headline,
    joint_rows,
    rung_rows,
)
from mcmcpost.report._drawings import evidence_drawing, joint_drawing, posterior_drawings

TEMPLATE = "report.html.j2"


def render(contents: Contents) -> str:
    """Return the HTML of a report; every text is escaped."""
    require("report", "jinja2", "matplotlib")
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["drawn"] = lambda drawing: Markup(drawing.svg)
    template = environment.from_string(files("mcmcpost.report").joinpath(TEMPLATE).read_text(encoding="utf-8"))
    posterior, evidence, joint = contents.posterior, contents.evidence, contents.joint
    facts: dict[str, object] = {"headline": "", "quantities": [], "convergence": [], "drawings": {}}
    if posterior is not None:
        facts |= {
            "headline": headline(posterior.estimate),
            "quantities": estimate_rows(posterior.estimate),
            "convergence": convergence_rows(posterior.estimate.names, posterior.values),
            "drawings": posterior_drawings(posterior),
        }
    if evidence is not None:
        facts |= {
            "path": evidence_drawing(evidence.evidence),
            "methods": evidence_rows(evidence),
            "rungs": rung_rows(evidence),
        }
    if joint is not None:
        facts |= {"tasks": joint_rows(joint), "matrix": joint_drawing(joint) if len(joint.task_labels) else None}
    return template.render(contents=contents, **facts)


def check_destination(path: str | os.PathLike[str], overwrite: bool = False) -> Path:
    """Refuse before the work what could not be written after it; return the path.

    Raises
    ------
    ValueError : the name does not end in .html or .htm.
    FileExistsError : it exists and may not be overwritten, or is a folder.
    FileNotFoundError, PermissionError : its folder does not exist, or cannot be written to.
    """
    place = Path(path)
    if place.suffix.lower() not in (".html", ".htm"):
        raise ValueError(fault("report", "an output ending in .html", str(place), "Rename it."))
    if place.is_dir():
        raise FileExistsError(fault("report", "an output file", f"the folder {place}", "Pick another name."))
    if place.exists() and not overwrite:
        cure = "Pick another name, or allow it to be replaced with --force (overwrite=True)."
        raise FileExistsError(fault("report", "a new output file", f"{place}, which exists", cure))
    if not place.parent.is_dir():
        raise FileNotFoundError(fault("report", "an existing folder", str(place.parent), "Create it first."))
    check_writable("report", place.parent)
    return place


def write_html(text: str, path: Path, overwrite: bool = False) -> Path:
    """Write a rendered report under a temporary name beside `path` and rename it, so no half report is left."""
    temporary = path.with_name(f".{path.stem}-{uuid.uuid4().hex}{path.suffix}")
    try:
        temporary.write_text(text, encoding="utf-8")
        check_destination(path, overwrite)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
