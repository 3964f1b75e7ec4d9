"""Run the benchmarks of a subject, or list them.

    python -m benchmarks                        # the subjects
    python -m benchmarks calibration --quick    # each of its benchmarks, in two minutes; no table
    python -m benchmarks calibration            # every table again, by its recorded command
    python -m benchmarks calibration --list     # print the commands and run none

A subject is a page of ``docs/results``. ``--table`` leaves all tables of the page out but those
that it names. Commands with PYTHON compare with other packages and need ``--peers``, an interpreter
that has them; commands with DATA need ``--shared``, a folder that has ``data/posteriordb`` and
``data/uci``; the one with DIAMONDS needs ``--diamonds``, the ``diamonds.csv`` of ggplot2, which is
also in the wheel of plotnine. Of the quick runs three read such data, and stop with one line where
it is missing. Recorded commands overwrite ``benchmarks/results``. Where rows of a table are of
several runs, as its column of commits tells, the recorded command is that of the last.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks._command import SHARED, needed
from benchmarks._table import PLACEHOLDERS, RESULTS
from benchmarks.collect import PAGES, ROOT


def recorded(tables: Iterable[str]) -> list[str]:
    """Return the recorded commands of tables, each once."""
    return list(
        dict.fromkeys(
            json.loads((RESULTS / f"{name}.json").read_text())["command"] for name in tables
        )
    )


def quick(tables: Iterable[str]) -> list[str]:
    """Return the quick command of every benchmark that tables come from."""
    modules = dict.fromkeys(shlex.split(command)[2] for command in recorded(tables))
    return [f"python -m {module} --quick" for module in modules]


def filled(command: str, places: dict[str, Path | None]) -> list[str]:
    """Return the words of a command with this machine's interpreter and paths."""
    words = [sys.executable, *shlex.split(command)[1:]]
    for option, placeholder in PLACEHOLDERS.items():
        if placeholder in words:
            place = places[option]
            if place is None:
                raise SystemExit(f"needs {placeholder}, so give {option}: {command}")
            words[words.index(placeholder)] = str(needed(place, option))
    return words


def _place(text: str) -> Path:
    return Path(text).absolute()


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__.splitlines()[0]
    )
    parser.add_argument("subject", nargs="?", choices=PAGES)
    parser.add_argument("--table", nargs="+", help="only these tables of the subject")
    parser.add_argument(
        "--quick", action="store_true", help="each benchmark once, at a small size; keeps no table"
    )
    parser.add_argument("--list", action="store_true", help="print the commands and run none")
    parser.add_argument(
        "--peers", type=_place, help="an interpreter with the packages to compare with"
    )
    parser.add_argument("--shared", type=_place, help="a folder with data/posteriordb and data/uci")
    parser.add_argument("--diamonds", type=_place, help="the diamonds.csv of ggplot2 or plotnine")
    args = parser.parse_args(words)
    if args.subject is None:
        for name, page in PAGES.items():
            print(f"{name}: {page.about}")
        return
    tables = args.table or PAGES[args.subject].tables
    if {*tables} - {*PAGES[args.subject].tables}:
        parser.error(f"{args.subject} has the tables {', '.join(PAGES[args.subject].tables)}")
    commands = quick(tables) if args.quick else recorded(tables)
    if args.list:
        print("\n".join(commands))
        return
    places = {"--peers": args.peers, "--shared": args.shared, "--diamonds": args.diamonds}
    runs = [(command, filled(command, places)) for command in commands]
    environment = os.environ | ({SHARED: str(args.shared)} if args.shared else {})
    failed = []
    for command, run in runs:
        print(f"$ {command}", flush=True)
        if subprocess.run(run, cwd=ROOT, env=environment, check=False).returncode:
            failed.append(command)
    if failed:
        raise SystemExit("\n".join(["these failed:", *failed]))


if __name__ == "__main__":
    main()
