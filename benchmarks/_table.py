"""One table for each benchmark: aligned text on the terminal, and JSON with versions, command,
commit and CPU time."""

import itertools
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from mcmcpost.core.runtime import version_of

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("jax", "numpyro", "arviz", "numpy", "scipy", "mcmcpost")


def emit(
    name: str | None,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    *,
    final: bool = True,
    **settings: Any,
) -> None:
    """Print `rows` as one table and write them to ``results/<name>.json``, unless the run is a
    quick one.

    Parameters
    ----------
    name : of the file, None to keep none.
    title : one line on what the rows are.
    rows : records with the same keys, in the order of the columns.
    final : print too; otherwise only write, so that a long run that is stopped leaves its rows.
    settings : sizes, keys, replications and targets, recorded and printed beside the rows.
    """
    on = environment()
    if final:
        versions = "  ".join(f"{key} {value}" for key, value in on.items())
        print(f"\n{title}", settings_line(settings), aligned(rows), versions, sep="\n", flush=True)
    if name is None or "--quick" in sys.argv:
        return
    record = {
        "title": title,
        "settings": settings,
        "rows": list(rows),
        "environment": on,
        "command": command(),
    }
    record |= {
        "commit": commit(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "cpu_seconds": round(_cpu_seconds()),
    }
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(_plain(record), indent=1) + "\n")


def settings_line(settings: Mapping[str, Any]) -> str:
    """Return sizes, replications and targets as one line."""
    return "  ".join(f"{key}={shown(value)}" for key, value in settings.items())


def aligned(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as text: numbers to the right, words to the left."""
    if not rows:
        return "(no rows)"
    columns = list(rows[0])
    cells = [[shown(row.get(column, "")) for column in columns] for row in rows]
    widths = [
        max(len(column), *(len(line[j]) for line in cells)) for j, column in enumerate(columns)
    ]
    right = [all(not isinstance(row.get(column, ""), str) for row in rows) for column in columns]

    def line(texts: Sequence[str]) -> str:
        parts = [
            t.rjust(w) if r else t.ljust(w) for t, w, r in zip(texts, widths, right, strict=True)
        ]
        return "  ".join(parts).rstrip()

    return "\n".join(
        [line(columns), line(["-" * w for w in widths]), *(line(texts) for texts in cells)]
    )


def environment() -> dict[str, str]:
    """Return the versions, processor and number of cores of this run; `benchmarks.gpu` runs without
    some packages."""
    versions = {package: version_of(package) or "none" for package in PACKAGES}
    cpu = next(
        (
            text.split(":", 1)[1].strip()
            for text in _lines("/proc/cpuinfo")
            if text.startswith("model name")
        ),
        platform.processor(),
    )
    cores = str(len(os.sched_getaffinity(0)))
    return {"python": platform.python_version(), **versions, "cpu": cpu, "cores": cores}


PLACEHOLDERS = {"--peers": "PYTHON", "--shared": "DATA", "--diamonds": "DIAMONDS"}
"""What stands in a recorded command for the absolute path that follows an option; ``PATH`` after
any other word."""


def command() -> str:
    """Return the command that would repeat this run from the root of the repository, with no path
    of this machine."""
    place = Path(sys.argv[0]).resolve().relative_to(Path(__file__).parents[1]).with_suffix("")
    words = []
    for before, word in itertools.pairwise(sys.argv):
        option, equals, value = word.partition("=")
        if equals and Path(value).is_absolute():
            word = f"{option}={PLACEHOLDERS.get(option, 'PATH')}"
        elif Path(word).is_absolute():
            word = PLACEHOLDERS.get(before, "PATH")
        words.append(shlex.quote(word))
    return " ".join(["python -m", ".".join(place.parts), *words])


def commit() -> str:
    """Return the commit that the code of this run is of, with a ``+`` if files of it were
    changed."""
    root = Path(__file__).parents[1]
    if not ((root / ".git").exists() and shutil.which("git")):
        return "unknown"

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", root, *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    changed = git("status", "--porcelain", "--", "*.py")
    return git("rev-parse", "--short=7", "HEAD") + ("+" if changed else "")


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of those it has waited for, until now."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []


def shown(value: Any) -> str:
    """Return a value as a table prints it."""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, float | np.floating):
        size = abs(value)
        return f"{value:.3e}" if size and (size < 1e-3 or size >= 1e6) else f"{value:.4g}"
    return str(value)


def _plain(value: Any) -> Any:
    match value:
        case Mapping():
            return {str(key): _plain(item) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case np.ndarray():
            return _plain(value.tolist())
        case np.generic():
            return _plain(value.item())
        case float():
            return value if np.isfinite(value) else str(value)
        case _:
            return value
