"""Checkpoints: the state of the sampler and the draws so far in a file, from which an interrupted run continues."""

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mcmcpost._core.arguments import check_kind
from mcmcpost._core.errors import InputError
from mcmcpost._core.unfinished import written_beside


def save_checkpoint(
    path: Path, step: int, state: Any, records: dict[str, np.ndarray], settings: dict[str, Any]
) -> None:
    """Write the state after `step` iterations; a crash leaves the previous file intact."""
    content: dict[str, Any] = {f"state_{i}": _data(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
    content |= {f"record_{name}": array for name, array in records.items()}
    content |= {"step": step, "settings": np.array(json.dumps(settings))}
    with written_beside(path) as temporary:
        with temporary.open("wb") as file:
            np.savez(file, **content)
        temporary.replace(path)


def load_checkpoint(path: Path, like: Any, settings: dict[str, Any]) -> tuple[int, Any, dict[str, np.ndarray]]:
    """Return the iterations done, the state, shaped as `like`, and the records.

    Raises
    ------
    ValueError : the file is no checkpoint, or that of a run with other settings.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            content = dict(file)
            stored = json.loads(str(content["settings"]))
            step = int(content["step"])
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise InputError(
            "checkpoint", f"a file of this function at {path}", repr(error), "Remove it to start again."
        ) from error
    wrong = [name for name in settings if not _same(stored.get(name), settings[name])]
    if wrong:
        got = ", ".join(f"{name}={_short(stored.get(name))}" for name in wrong)
        wanted = ", ".join(f"{name}={_short(settings[name])}" for name in wrong)
        raise InputError("checkpoint", f"the run that {path} belongs to", f"{wanted}; there {got}", "Use another file.")
    leaves, structure = jax.tree.flatten(like)
    state = [_leaf(leaf, content[f"state_{i}"]) for i, leaf in enumerate(leaves)]
    records = {name.removeprefix("record_"): array for name, array in content.items() if name.startswith("record_")}
    return step, jax.tree.unflatten(structure, state), records


def checkpoint_path(where: str, checkpoint: str | os.PathLike[str] | None) -> Path | None:
    """Return the path, whose folder must exist."""
    if checkpoint is None:
        return None
    check_kind(where, "checkpoint", checkpoint, (str, os.PathLike), "Name a file.")
    path = Path(checkpoint)
    if not path.parent.is_dir() or path.is_dir():
        raise InputError(where, "`checkpoint` to be a file in an existing folder", str(path), "Create it first.")
    return path


def _data(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _leaf(like: Any, stored: np.ndarray) -> Any:
    if _is_key(like):
        return jax.random.wrap_key_data(jax.numpy.asarray(stored), impl=jax.random.key_impl(like))
    return jax.numpy.asarray(stored)


def _is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, list) and isinstance(other, list) and one and isinstance(one[0], float):
        return len(one) == len(other) and bool(np.allclose(one, other, rtol=1e-6, atol=0, equal_nan=True))
    return bool(one == other)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) < 60 else text[:57] + "..."
