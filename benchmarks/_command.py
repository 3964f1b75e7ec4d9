"""The command line of a benchmark: its options, and a quick size of the same computation."""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SHARED = "MCMCPOST_BENCHMARK_DATA"
"""Environment variable: where `--shared` is if it is not given."""


class Command(argparse.ArgumentParser):
    """The options of one benchmark, with ``--quick``.

    Parameters
    ----------
    description : the module's docstring, of which the first line is shown.
    quick : options that ``--quick`` adds behind those that are given, so that the run ends within
        two minutes of one core. Its table is printed and not kept.
    """

    def __init__(self, description: str, *, quick: str) -> None:
        super().__init__(description=description.splitlines()[0], allow_abbrev=False)
        self.quick = quick
        self.add_argument(
            "--quick",
            action="store_true",
            help=f"print a small table and keep none, by {quick or 'a whole run'}",
        )

    def parse_args(self, args: Sequence[str] | None = None, namespace: None = None) -> Any:
        """Return the options, those of ``--quick`` last."""
        given = sys.argv[1:] if args is None else list(args)
        options = super().parse_args(given, namespace)
        if options.quick:
            options = super().parse_args([*given, *shlex.split(self.quick)], namespace)
        if getattr(options, "peers", None) and not shutil.which(options.peers):
            raise SystemExit(
                f"{options.peers} is no program: name an interpreter that has the packages "
                "with --peers"
            )
        return options


def needed(path: Path, option: str) -> Path:
    """Return a path that exists; otherwise end the program with the option that names it."""
    if not path.exists():
        raise SystemExit(f"{path} is missing: name its place with {option}")
    return path


def add_shared(parser: argparse.ArgumentParser) -> None:
    """Add the option that says where data are that are not of this repository."""
    place = Path(os.environ.get(SHARED, "../shared"))
    parser.add_argument(
        "--shared", type=Path, default=place, help="has data/posteriordb and data/uci"
    )
