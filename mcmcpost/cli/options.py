"""Defaults and checks of the options, before any work. Imports nothing heavy, since ``--help`` needs the defaults."""

import os
from collections.abc import Mapping
from pathlib import Path

from mcmcpost._core.errors import InputError

POSTERIOR = {"warmup": 500, "draws": 1000, "chains": 4, "seed": 0}
"""Settings of a posterior's sampler: adaptation draws, draws to keep, chains, seed."""

LARGEST_SEED = 2**63 - 1
"""What a JAX key can be made of."""

LADDER = POSTERIOR | {"draws": 500, "rungs": 16}
"""Settings of a ladder's sampler, for each rung."""


def is_model_file(source: Path) -> bool:
    """Return whether a source is a model file, which is sampled."""
    return source.suffix == ".py"


def settings_of(given: Mapping[str, int | None], defaults: Mapping[str, int]) -> dict[str, int]:
    """Return the settings: those given, and the defaults of the others."""
    return dict(defaults) | {name: value for name, value in given.items() if value is not None}


def refuse_sampling(
    command: str, source: Path, kind: str, given: Mapping[str, object], cure: str = "Drop them."
) -> None:
    """Refuse sampling options for a stored source; `kind` is what it is, as ``trace``."""
    names = [f"--{name}" for name, value in given.items() if value is not None]
    if names:
        listed = ", ".join(names)
        raise InputError(f"{command}: the options {listed} belong to a model file, got the {kind} {source}. {cure}")


def refuse_model_file(command: str, source: Path) -> None:
    """Refuse a model file where a trace is wanted."""
    if is_model_file(source):
        cure = f"Sample it first: mcmcpost sample {source} -o trace.nc."
        raise InputError(f"{command}: expected a trace (.nc, .zarr), got the model file {source}. {cure}")


def check_output(path: Path | None) -> None:
    """Refuse, before the work, an output file that could not be written after it."""
    if path is None:
        return
    from mcmcpost._core.arguments import check_writable

    if path.suffix.lower() not in (".nc", ".zarr"):
        raise InputError(f"--output: expected a name ending in .nc or .zarr, got {path}. The suffix is the format.")
    if os.path.lexists(path):  # a link that leads nowhere too
        raise FileExistsError(f"--output: expected a new file, got {path}, which exists. Nothing is overwritten.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"--output: expected an existing folder, got {path.parent}. Make it first.")
    check_writable("--output", path.parent)


def check_distinct(where: str, names: list[str], what: str) -> None:
    """Refuse names that are given twice."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"{where}: expected distinct {what}, got {', '.join(repeated)} twice. Give each once.")
