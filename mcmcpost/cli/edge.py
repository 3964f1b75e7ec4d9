"""Errors and warnings of the program as one line each, and the folder of the compilation cache."""

import ast
import linecache
import os
import re
import sys
from pathlib import Path
from typing import Any

from mcmcpost._core.errors import InputError, InputTypeError, MissingPackageError, fault
from mcmcpost._core.text import did_you_mean, one_line

PACKAGE = Path(__file__).parents[1]

MODULE_PREFIX = "_mcmcpost_model_"
"""Prefix of the modules that model files are imported as."""


def say(kind: str, message: object) -> None:
    """Print an error or a warning as one line on stderr."""
    print(f"mcmcpost: {kind}: {one_line(message)}", file=sys.stderr)


def is_user_error(error: BaseException) -> bool:
    """Return whether `error` is about the input; errors that NumPy or JAX raise keep their traceback."""
    return isinstance(error, (InputError, InputTypeError, MissingPackageError, OSError))


def usage_fault(error: BaseException) -> str | None:
    """Return what is wrong with a command line in one sentence and where its help is; None for any other error."""
    import typer

    usage: type[Any] = typer.BadParameter.__mro__[1]  # the class that typer keeps to itself
    if not isinstance(error, usage):
        return None
    text = error.format_message().replace("Value error, ", "").rstrip(".")
    value, found, choices = text.partition(" is not one of ")
    question = did_you_mean(value.split()[-1].strip("'"), re.findall(r"'([^']+)'", choices)) if found else ""
    end = "" if text.endswith("?") else "."
    command = error.ctx.command_path if error.ctx else "mcmcpost"
    return f"{text}{end} {question}See {command} --help."


def model_file_fault(error: BaseException) -> str | None:
    """Return the message of an error raised in a model file or in code that it calls; None for any other error.

    An error that the file raises itself keeps its own message, after the line, if it says more than a key. A solve that
    fails in a compiled program leaves no line of the file in the traceback.
    """
    if "EquinoxRuntimeError" in str(error):
        files = [str(module.__file__) for name, module in sys.modules.items() if name.startswith(MODULE_PREFIX)]
        expected, got = "`model` to run at every point", f"EquinoxRuntimeError: {_gist(error).rstrip('.')}"
        return fault(f"Model file {', '.join(files)}", expected, got, _CURES["EquinoxRuntimeError"])
    trace, place = error.__traceback__, None
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).startswith(MODULE_PREFIX):
            place = trace
        elif PACKAGE in Path(trace.tb_frame.f_code.co_filename).parents:
            place = None
        trace = trace.tb_next
    if place is None:
        return None
    code = place.tb_frame.f_code
    own = place.tb_next is None and _is_raised_at(Path(code.co_filename), place.tb_lineno)
    where = f"Model file {code.co_filename}, line {place.tb_lineno}"
    if own and str(error) and not isinstance(error, KeyError):
        return f"{where}: {error}"
    said = _gist(error) or linecache.getline(code.co_filename, place.tb_lineno).strip()
    cure = _CURES.get(type(error).__name__, "Set MCMCPOST_DEBUG=1 to see the traceback.")
    return fault(where, f"`{code.co_name}` to run", f"{type(error).__name__}: {said.rstrip('.')}", cure)


_CURES = {
    "EquinoxRuntimeError": "Give `diffeqsolve` throw=False, and the log density −inf where its result is not a success:"
    " a solve that fails at any point ends all chains.",
    "TracerArrayConversionError": "Use jax.numpy: jnp.exp for np.exp, and data as jnp.asarray(values).",
    "SystemExit": "Leave it out: a model file is imported.",
}

_INNER = re.compile(r"^[\w.]*(?:Error|Exception): (.+)", re.MULTILINE)
"""The last line of a traceback, which JAX puts into the messages of errors at run time."""


def _gist(error: BaseException) -> str:
    """Return the line of a message that says what happened; "" where there is none."""
    text = "" if isinstance(error, SystemExit) else str(error)
    return next(reversed(_INNER.findall(text)), next(iter(text.strip().splitlines()), ""))


def _is_raised_at(file: Path, line: int) -> bool:
    """Return whether a ``raise`` statement of `file` covers `line`."""
    nodes = ast.walk(ast.parse(file.read_text()))
    return any(isinstance(node, ast.Raise) and node.lineno <= line <= (node.end_lineno or line) for node in nodes)


def join_processes() -> None:
    """Join the other processes of this command, where ``JAX_COORDINATOR_ADDRESS`` says how.

    JAX finds their number, and which this one is, where Slurm or Open MPI started them; elsewhere they are
    ``JAX_NUM_PROCESSES`` and ``JAX_PROCESS_ID``.
    """
    if "JAX_COORDINATOR_ADDRESS" not in os.environ:
        return
    import jax

    number, this = (_whole_number(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
    jax.distributed.initialize(num_processes=number, process_id=this)


def _whole_number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is not None and not text.isdecimal():
        raise InputError(name, "a whole number", repr(text), "Such as 0, or leave it out under Slurm.")
    return None if text is None else int(text)


def cache_directory() -> Path | None:
    """Return the user's folder for compiled programs, or None where the user has no home."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        base = Path(root) if root and Path(root).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "mcmcpost" / "jax"
