"""What was asked of the results beside what the tables say: every target is met, or it is answered.

``results/targets.json`` maps a subject to its targets, each with

``what`` : was asked for. ``aim`` : "≤ 0.06" or "≥ 1000".
``figure`` : what was reached, taken from a table as in `benchmarks._figures`. ``by hand`` : instead
    of it, a number that no table has.
``error`` : the figure of its standard error, or a number. Within two of them of the aim a target is
    not said to be missed.
``answer`` : what was tried, which a target that is missed must have. It may have figures in braces.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks._figures import evaluated, fill, formatted, table_of

AIM = re.compile(r"([≤≥]) (\d[\d.]*)")
MET, NEARLY, MISSED = "met", "within its error", "not met"


def target_rows(
    subject: str,
    targets: Sequence[Mapping[str, Any]],
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[dict[str, str]]:
    """Return for each target what was asked, the aim, what was reached, the verdict, the table's
    name, an answer."""
    return [_row(f"targets.json, {subject}: {target['what']}", target, rows) for target in targets]


def _row(
    where: str, target: Mapping[str, Any], rows: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, str]:
    aim = AIM.fullmatch(target["aim"])
    if aim is None:
        raise ValueError(f'{where}: expected an aim like "≤ 0.06", got {target["aim"]!r}.')
    error = target.get("error", 0.0)
    error = evaluated(error, "", rows, where) if isinstance(error, str) else error
    value = (
        target["by hand"] if "by hand" in target else evaluated(target["figure"], "", rows, where)
    )
    excess = (value - float(aim[2])) * (1 if aim[1] == "≤" else -1)
    verdict = MET if excess <= 0 else NEARLY if excess <= 2 * error else MISSED
    reached = "0" if value == 0 else formatted(value, "#.3g")
    answer = fill(target.get("answer", ""), "", rows)
    if verdict == MISSED and not answer:
        raise ValueError(f"{where}: expected an answer, since {reached} is not {target['aim']}.")
    return {
        "what": target["what"],
        "aim": target["aim"],
        "reached": f"{reached} ± {formatted(error)}" if error else reached,
        "verdict": verdict,
        "table": "" if "by hand" in target else table_of(target["figure"]),
        "answer": answer,
    }
