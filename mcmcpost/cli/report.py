"""The command ``report``: an HTML report of a stored trace or ladder, and its summary."""

import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import mcmcpost
from mcmcpost._core.status import WITHOUT_GAIN, Status
from mcmcpost._core.text import number_of_quantities, significant
from mcmcpost.api.report import gather, read_subject
from mcmcpost.cli.edge import say
from mcmcpost.cli.options import refuse_model_file
from mcmcpost.cli.progress import phase, stopwatch
from mcmcpost.cli.quantities import Asked, named_scalars, say_left_out
from mcmcpost.cli.reduce import say_worth
from mcmcpost.cli.source import load_trace
from mcmcpost.io import is_ladder
from mcmcpost.report import check_destination, render, write_html


def report_facts(
    trace: Path,
    output: Path,
    asked: Asked,
    method: str,
    *,
    model: Path | None,
    options: list[str] | None,
    probabilities: np.ndarray | None,
    overwrite: bool,
    allow_bad_scores: bool,
) -> dict[str, Any]:
    """Write the report of a stored trace or ladder and return its summary, as plain values for JSON."""
    place = check_destination(output, overwrite)
    refuse_model_file("report", trace)
    tree = load_trace([trace], model, options, allow_bad_scores=allow_bad_scores)
    with warnings.catch_warnings():
        for told in (mcmcpost.ScoreWarning, mcmcpost.ConvergenceWarning, mcmcpost.EvidenceWarning):
            warnings.simplefilter("ignore", told)  # the notices of the report contain them
        with phase("evidence" if is_ladder(tree) else "reading"):
            subject = read_subject(tree, None, allow_bad_scores)
        say_left_out(subject.variables)
        scalars = named_scalars(subject.tree, subject.variables, asked)
        since = stopwatch()
        with phase("control variates"):
            contents = gather(
                subject,
                scalars,
                method,
                evidence=subject.evidence,
                title=f"Report on {trace.name}",
                asked={"File": str(trace)} | ({} if model is None else {"Model": str(model)}),
                command=shlex.join(["mcmcpost", *sys.argv[1:]]),
                allow_bad_scores=allow_bad_scores,
                levels=probabilities,
            )
    took = since()
    for text in contents.notices:
        say("warning", text)
    with phase("figures"):
        text = render(contents)
        write_html(text, place, overwrite)
    assert contents.posterior is not None  # a trace was given
    say_worth(contents.posterior.estimate, took)
    check = contents.posterior.check
    estimates = [part for part in (contents.posterior.estimate, contents.posterior.quantiles) if part is not None]
    facts = {
        "path": str(place),
        "bytes": len(text.encode()),
        "score_check": check.verdict,
        "divergences": contents.posterior.divergences,
        "notices": list(contents.notices),
        "quantities": [q for part in estimates for q in part.to_json_dict()["quantities"]],
    }
    if contents.evidence is not None:
        facts["evidence"] = contents.evidence.evidence.to_json_dict()
    return facts


def report_line(facts: dict[str, Any]) -> str:
    """Return the summary in one line."""
    varying = [q for q in facts["quantities"] if q["status"] != Status.CONSTANT]
    gains = [q["gain"] for q in varying if q["gain"] is not None and q["status"] not in WITHOUT_GAIN]
    gain = f", median gain {significant(float(np.median(gains)), 3)}" if gains else ""
    return f"{facts['path']}: {number_of_quantities(len(varying))}{gain}, scores {facts['score_check']}"
