"""Checkpoints: the state of the sampler and the draws so far in a file, from which an interrupted run continues."""

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mcmcpost._core.arguments import check_kind
from mcmcpost._core.devices import is_first_process, read_everywhere
from mcmcpost._core.errors import InputError
from mcmcpost._core.unfinished import written_beside

DIGEST = hashlib.sha256().digest_size
"""Bytes of the digest that a file begins with: one that is cut off, or changed, is known before it is read."""


class Checkpoint(NamedTuple):
    """What was stored: iterations done, leaves of the state of all lanes, and their records by name."""

    step: int
    state: list[np.ndarray]
    records: dict[str, np.ndarray]


def save_checkpoint(
    path: Path, step: int, state: list[np.ndarray], records: dict[str, np.ndarray], settings: dict[str, Any]
) -> None:
    """Write the state after `step` iterations; a crash leaves the previous file intact."""
    content: dict[str, Any] = {f"state_{i}": leaf for i, leaf in enumerate(state)}
    content |= {f"record_{name}": array for name, array in records.items()}
    content |= {"step": step, "settings": np.array(json.dumps(settings))}
    buffer = io.BytesIO()
    np.savez(buffer, **content)
    with written_beside(path, f".{path.name}.part") as temporary:
        temporary.write_bytes(hashlib.sha256(buffer.getbuffer()).digest() + buffer.getvalue())
        temporary.replace(path)


def load_checkpoint(path: Path, settings: dict[str, Any]) -> Checkpoint | None:
    """Return what is stored, read by process 0 for all, or None where there is no file.

    Raises
    ------
    ValueError : the file is no checkpoint or a damaged one, or that of a run with other settings.
    """
    content = read_everywhere(path)
    if content is None:
        return None
    digest, archive = content[:DIGEST], content[DIGEST:]
    if hashlib.sha256(archive).digest() != digest:
        got = f"{len(content)} bytes that are not one, or not the whole"
        cure = "Remove it to start again, or name another file."
        raise InputError("checkpoint", f"a file of this function at {path}", got, cure)
    with np.load(io.BytesIO(archive), allow_pickle=False) as file:
        arrays = dict(file)
    stored = json.loads(str(arrays["settings"]))
    wrong = [name for name in settings if not _same(stored.get(name), settings[name])]
    if wrong:
        got = ", ".join(f"{name}={_short(stored.get(name))}" for name in wrong)
        wanted = ", ".join(f"{name}={_short(settings[name])}" for name in wrong)
        raise InputError("checkpoint", f"the run that {path} belongs to", f"{wanted}; there {got}", "Use another file.")
    state = [arrays[f"state_{i}"] for i in range(sum(name.startswith("state_") for name in arrays))]
    records = {name.removeprefix("record_"): array for name, array in arrays.items() if name.startswith("record_")}
    return Checkpoint(int(arrays["step"]), state, records)


def checkpoint_path(where: str, checkpoint: str | os.PathLike[str] | None) -> Path | None:
    """Return the path, whose folder must exist where process 0 runs."""
    if checkpoint is None:
        return None
    check_kind(where, "checkpoint", checkpoint, (str, os.PathLike), "Name a file.")
    path = Path(checkpoint)
    if is_first_process() and (not path.parent.is_dir() or path.is_dir()):
        raise InputError(where, "`checkpoint` to be a file in an existing folder", str(path), "Create it first.")
    return path


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list) and one and isinstance(one[0], float):
        return len(one) == len(other) and bool(np.allclose(one, other, rtol=1e-6, atol=0, equal_nan=True))
    return bool(one == other)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 60 else text[:57] + "..."
