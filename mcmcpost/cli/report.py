"""What the command ``report`` does: a trace from a file, an HTML file out, and its facts."""

import shlex
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mcmcpost._core.errors import InputError
from mcmcpost._core.status import WITHOUT_GAIN
from mcmcpost._core.text import number_of_quantities, one_line, significant

if TYPE_CHECKING:
    from mcmcpost.cli.expressions import Expression


def report_facts(
    trace: Path,
    output: Path,
    expressions: "dict[str, Expression]",
    method: str,
    *,
    model: Path | None,
    options: list[str] | None,
    overwrite: bool,
    allow_bad_scores: bool,
) -> dict[str, Any]:
    """Write the report of a stored trace or ladder and return its summary, JSON-able."""
    import mcmcpost
    from mcmcpost.api.report import gather
    from mcmcpost.cli.quantities import named_scalars
    from mcmcpost.cli.source import load_trace
    from mcmcpost.io import is_ladder, posterior_rung
    from mcmcpost.report import check_destination, render, write_html

    place = check_destination(output, overwrite)
    if trace.suffix == ".py":
        cure = f"Sample it first: mcmcpost sample {trace} -o trace.nc."
        raise InputError(f"report: expected a trace (.nc, .zarr), got the model file {trace}. {cure}")
    tree = load_trace(trace, model, options, allow_bad_scores=allow_bad_scores)
    with warnings.catch_warnings():
        for told in (mcmcpost.ScoreWarning, mcmcpost.EvidenceWarning):
            warnings.simplefilter("ignore", told)  # the notices say the same, and more
        contents = gather(
            tree,
            named_scalars(posterior_rung(tree) if is_ladder(tree) else tree, expressions),
            method,
            title=f"Report on {trace.name}",
            asked={"File": str(trace)} | ({} if model is None else {"Model": str(model)}),
            command=shlex.join(["mcmcpost", *sys.argv[1:]]),
            allow_bad_scores=allow_bad_scores,
        )
    for text in contents.notices:
        print(f"mcmcpost: warning: {one_line(text)}", file=sys.stderr)
    write_html(render(contents), place, overwrite)
    assert contents.posterior is not None  # a trace was given
    estimate, check = contents.posterior.estimate, contents.posterior.check
    facts = {
        "path": str(place),
        "bytes": place.stat().st_size,
        "score_check": check.verdict,
        "divergences": contents.posterior.divergences,
        "notices": list(contents.notices),
        **estimate.to_json_dict(),
    }
    if contents.evidence is not None:
        facts["evidence"] = contents.evidence.evidence.to_json_dict()
    return facts


def report_line(facts: dict[str, Any]) -> str:
    """Return what was written in one line."""
    gains = [q["gain"] for q in facts["quantities"] if q["gain"] is not None and q["status"] not in WITHOUT_GAIN]
    gain = f", median gain {significant(float(np.median(gains)), 3)}" if gains else ""
    return f"{facts['path']}: {number_of_quantities(len(facts['quantities']))}{gain}, scores {facts['score_check']}"
