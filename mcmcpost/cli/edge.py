"""The edge of the program: whose error it is, where the cache lies, how a number is printed."""

import dis
import os
from pathlib import Path
from types import FrameType, TracebackType

PACKAGE = Path(__file__).parent


MODULE_PREFIX = "_mcmcpost_model_"
"""How `mcmcpost.io._model_file`, too heavy to import for ``--help``, names the modules of model files."""


def is_user_error(error: BaseException) -> bool:
    """Whether `error` was raised on purpose, by this package, about what the user gave.

    A `ValueError` that NumPy or JAX raised under our feet is our fault and keeps its traceback: the innermost frame
    must be ours and stand on the instruction of a ``raise``.
    """
    if isinstance(error, OSError):
        return True
    trace = error.__traceback__
    if not isinstance(error, ValueError | TypeError | ImportError) or trace is None:
        return False
    while trace.tb_next is not None:
        trace = trace.tb_next
    return _is_ours(trace.tb_frame) and _on_purpose(trace)


def model_file_fault(error: BaseException) -> str | None:
    """Return what to say of an error raised in a model file, or below it but not by us; None of any other.

    One that the file raises itself is in its author's words.
    """
    from mcmcpost._core.errors import fault

    trace, place = error.__traceback__, None
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).startswith(MODULE_PREFIX):
            place = trace
        elif _is_ours(trace.tb_frame):
            place = None
        trace = trace.tb_next
    if place is None:
        return None
    if place.tb_next is None and _on_purpose(place):
        return str(error)
    code = place.tb_frame.f_code
    where = f"Model file {code.co_filename}, line {place.tb_lineno}"
    cure = "Set MCMCPOST_DEBUG=1 to see the traceback."
    return fault(where, f"`{code.co_name}` to run", f"{type(error).__name__}: {error}", cure)


def _is_ours(frame: FrameType) -> bool:
    return PACKAGE in Path(frame.f_code.co_filename).parents


def _on_purpose(trace: TracebackType) -> bool:
    """Whether the error stands on the instruction of a ``raise`` in this frame."""
    return dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] == "RAISE_VARARGS"


def cache_directory() -> Path | None:
    """Return the user's folder for compiled programs, or None where the user has no home."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(root) if root and Path(root).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "mcmcpost" / "jax"
