"""The program around the commands: options, errors as one line each, progress, and the state of the
machine.

Nothing heavy is imported, since ``--help`` needs the defaults of the options.
"""

import ast
import linecache
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tqdm import tqdm

from mcmcpost.core.errors import InputError, InputTypeError, MissingPackageError, fault
from mcmcpost.core.runtime import did_you_mean, listening, one_line, version_of, versions

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
    # Options default to None on the command line, so that one which was typed can be told from a
    # default and refused for a stored trace.
    return dict(defaults) | {name: value for name, value in given.items() if value is not None}


def refuse_sampling(
    command: str, source: Path, kind: str, given: Mapping[str, object], cure: str = "Drop them."
) -> None:
    """Refuse sampling options for a stored source; `kind` is what it is, as ``trace``."""
    # Options without effect would leave a person to believe that more draws had been taken.
    names = [f"--{name}" for name, value in given.items() if value is not None]
    if names:
        listed = ", ".join(names)
        raise InputError(
            f"{command}: the options {listed} belong to a model file, got the {kind} "
            f"{source}. {cure}"
        )


def refuse_model_file(command: str, source: Path) -> None:
    """Refuse a model file where a trace is wanted."""
    if is_model_file(source):
        cure = f"Sample it first: mcmcpost sample {source} -o trace.nc."
        raise InputError(
            f"{command}: expected a trace (.nc, .zarr), got the model file {source}. {cure}"
        )


def check_output(path: Path | None) -> None:
    """Refuse, before the work, an output file that could not be written after it."""
    if path is None:
        return
    from mcmcpost.core.arguments import check_writable

    if path.suffix.lower() not in (".nc", ".zarr"):
        raise InputError(
            f"--output: expected a name ending in .nc or .zarr, got {path}. The suffix is the "
            "format."
        )
    path = path.expanduser()
    try:
        # `exists` follows links: writing would create what the link points at.
        path.lstat()  # of a link that leads nowhere too
    except FileNotFoundError:
        pass
    except OSError as error:  # a name that is too long
        raise InputError(
            f"--output: expected a name that a file can have, got {error}. Pick another."
        ) from error
    else:
        raise FileExistsError(
            f"--output: expected a new file, got {path}, which exists. Nothing is overwritten."
        )
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"--output: expected an existing folder, got {path.parent}. Make it first."
        )
    # An existing folder may still not be writable, which would show after hours of sampling.
    check_writable("--output", path.parent)


def check_distinct(where: str, names: list[str], what: str) -> None:
    """Refuse names that are given twice."""
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(
            f"{where}: expected distinct {what}, got {', '.join(repeated)} twice. Give each once."
        )


PACKAGE = Path(__file__).parents[1]

MODULE_PREFIX = "_mcmcpost_model_"
"""Prefix of the modules that model files are imported as."""


def prepare_streams() -> None:
    """Have output that cannot be printed be no error after the work."""
    for name in ("stdout", "stderr"):
        # A stream that was closed before, as by `>&-`, is None: what is printed there is lost.
        stream = getattr(sys, name) or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
        # Tables have an en dash, for which ASCII has no place.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
        setattr(sys, name, stream)


def say(kind: str, message: object) -> None:
    """Print an error or a warning as one line on stderr."""
    print(f"mcmcpost: {kind}: {one_line(message)}", file=sys.stderr)


def is_user_error(error: BaseException) -> bool:
    """Return whether `error` is about the input; errors that NumPy or JAX raise keep their
    traceback."""
    return isinstance(error, (InputError, InputTypeError, MissingPackageError, OSError))


def usage_fault(error: BaseException) -> str | None:
    """Return what is wrong with a command line in one sentence and where its help is; None for any
    other error."""
    import typer

    usage: type[Any] = typer.BadParameter.__mro__[1]  # the class that typer keeps to itself
    if not isinstance(error, usage):
        return None
    # a prefix of the parser that says nothing
    text = error.format_message().replace("Value error, ", "").rstrip(".")
    # typer's words on a number do not have the value, which its cause, of pydantic, has.
    if "unable to parse" in text and hasattr(error.__cause__, "errors"):
        text = f"{text.partition(',')[0]}, got {error.__cause__.errors()[0]['input']!r}"
        text += ". Repeat the option for several" if error.param.multiple else ""
    if (word := re.fullmatch(r"No such command '(.+)'", text)) and Path(word[1]).exists():
        text += f". A file comes after a command, as in mcmcpost reduce {word[1]}"
    value, separator, choices = text.partition(" is not one of ")
    given = value.split()[-1].strip("'")
    question = did_you_mean(given, re.findall(r"'([^']+)'", choices)) if separator else ""
    if separator and "," in given:
        question = "Repeat the option for several. "
    end = "" if text.endswith("?") else "."
    command = error.ctx.command_path if error.ctx else "mcmcpost"
    return f"{text}{end} {question}See {command} --help."


def model_file_fault(error: BaseException) -> str | None:
    """Return the message of an error raised in a model file or in code that it calls; None for any
    other error.

    An error that the file raises itself keeps its own message, after the line, if it says more than
    a key. A solve that fails in a compiled program leaves no line of the file in the traceback.
    """
    # A solve that fails within a compiled program comes from XLA, and no frame of the traceback is
    # the model's.
    if "EquinoxRuntimeError" in str(error):
        files = [
            str(module.__file__)
            for name, module in sys.modules.items()
            if name.startswith(MODULE_PREFIX)
        ]
        expected, got = (
            "`model` to run at every point",
            f"EquinoxRuntimeError: {_gist(error).rstrip('.')}",
        )
        return fault(f"Model file {', '.join(files)}", expected, got, _CURES["EquinoxRuntimeError"])
    trace, place = error.__traceback__, None
    # The innermost frame of the model file that no code of ours follows: a fault below our own call
    # is ours.
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__", "")).startswith(MODULE_PREFIX):
            place = trace
        elif PACKAGE in Path(trace.tb_frame.f_code.co_filename).parents:
            place = None
        trace = trace.tb_next
    if place is None:
        return None
    code = place.tb_frame.f_code
    # What an author raises on purpose says what is wrong; what NumPy raises there does not.
    deliberate = place.tb_next is None and _is_raised_at(Path(code.co_filename), place.tb_lineno)
    where = f"Model file {code.co_filename}, line {place.tb_lineno}"
    if deliberate and str(error) and not isinstance(error, KeyError):
        return f"{where}: {error}"
    said = _gist(error) or linecache.getline(code.co_filename, place.tb_lineno).strip()
    cure = _CURES.get(type(error).__name__, "Set MCMCPOST_DEBUG=1 to see the traceback.")
    return fault(
        where, f"`{code.co_name}` to run", f"{type(error).__name__}: {said.rstrip('.')}", cure
    )


_CURES = {
    "EquinoxRuntimeError": "Give `diffeqsolve` throw=False, and the log density −inf where its "
    "result is not a success: a solve that fails at any point ends all chains.",
    "ModuleNotFoundError": "Install it beside mcmcpost, or put its file beside this one.",
    "TracerBoolConversionError": "Use jnp.where for `if`: a model is compiled for all values.",
    "TracerArrayConversionError": "Use jax.numpy: jnp.exp for np.exp, and data as "
    "jnp.asarray(values).",
    "SystemExit": "Leave it out: a model file is imported.",
}

_INNER = re.compile(r"^[\w.]*(?:Error|Exception): (.+)", re.MULTILINE)
"""The last line of a traceback, which JAX puts into the messages of errors at run time."""


def _gist(error: BaseException) -> str:
    """Return the line of a message that says what happened; "" where there is none."""
    # The message of SystemExit is an exit code.
    text = "" if isinstance(error, SystemExit) else str(error)
    return next(reversed(_INNER.findall(text)), next(iter(text.strip().splitlines()), ""))


def _is_raised_at(file: Path, line: int) -> bool:
    """Return whether a ``raise`` statement of `file` covers `line`."""
    nodes = ast.walk(ast.parse(file.read_text()))
    return any(
        isinstance(node, ast.Raise) and node.lineno <= line <= (node.end_lineno or line)
        for node in nodes
    )


def join_processes() -> None:
    """Join the other processes of this command, where ``JAX_COORDINATOR_ADDRESS`` says how.

    JAX finds their number, and which this one is, where Slurm or Open MPI started them; elsewhere
    they are ``JAX_NUM_PROCESSES`` and ``JAX_PROCESS_ID``.
    """
    if "JAX_COORDINATOR_ADDRESS" not in os.environ:
        return
    import jax

    # None leaves them to JAX, which asks Slurm or Open MPI.
    number, this = (_whole_number(name) for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID"))
    try:
        jax.distributed.initialize(num_processes=number, process_id=this)
    except (ValueError, RuntimeError) as error:
        raise InputError(
            "JAX_COORDINATOR_ADDRESS",
            "HOST:PORT of the first of several processes",
            f"{os.environ['JAX_COORDINATOR_ADDRESS']!r}: {one_line(error).rstrip('.')}",
            "Set JAX_NUM_PROCESSES and JAX_PROCESS_ID too, or for one process leave all out.",
        ) from error


def _whole_number(name: str) -> int | None:
    text = os.environ.get(name)
    if text is not None and not text.isdecimal():
        raise InputError(
            name, "a whole number", repr(text), "Such as 0, or leave it out under Slurm."
        )
    return None if text is None else int(text)


def cache_directory() -> Path | None:
    """Return the user's folder for compiled programs, or None where the user has no home."""
    root = os.environ.get("XDG_CACHE_HOME")
    try:
        # The XDG specification has relative paths ignored.
        base = Path(root) if root and Path(root).is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return base / "mcmcpost" / "jax"


DELAY, INTERVAL = 2.0, 0.5
"""Seconds after which a phase is shown, and after which its clock is drawn again."""


def stopwatch() -> Callable[[], float]:
    """Return a function that returns the seconds since now. They are told and recorded, and nothing
    depends on them."""
    started = time.monotonic()
    return lambda: time.monotonic() - started


@contextmanager
def phase(title: str) -> Iterator[None]:
    """Show a title, the step and the time since on a terminal while the block runs, if it takes
    long; not in a pipe."""
    done = threading.Event()
    with tqdm(
        desc=title, bar_format="{desc} {elapsed}", disable=None, delay=DELAY, leave=False
    ) as bar:
        if bar.disable:
            yield
            return
        # A thread, because compilations hold the main one; a daemon, so that it never keeps a
        # program that ends.
        clock = threading.Thread(target=_tick, args=(bar, done), daemon=True)
        clock.start()
        try:
            with listening(lambda step: bar.set_description_str(f"{title}: {step}", refresh=False)):
                yield
        finally:
            done.set()
            clock.join()


def _tick(bar: tqdm, done: threading.Event) -> None:
    while not done.wait(INTERVAL):
        bar.update(0)  # unlike refresh, it waits for the delay


OPTIONAL = {
    "matplotlib": "plots and reports, the extra `report`",
    "jinja2": "reports, the extra `report`",
    "arviz-plots": "ArviZ's own plots",
    "dask": "traces larger than memory, the extra `dask`",
    "nutpie": "traces of nutpie",
    "pymc": "traces of PyMC",
    "blackjax": "traces of BlackJAX",
    "pystan": "traces and scores of Stan programs",
    "bridgestan": "scores of Stan programs",
    "emcee": "traces of emcee",
}

SETTING = "JAX_NUM_CPU_DEVICES"


def examine() -> dict[str, Any]:
    """Return what this process runs on, as plain values for JSON."""
    import jax
    import jax.numpy as jnp

    devices = jax.devices()
    # In a container or under a scheduler the machine has more cores than the program may use.
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    cache = cache_directory()
    facts = {
        "platform": platform.platform(),
        "cores": cores,
        "backend": jax.default_backend(),
        "devices": [f"{device.platform}:{device.id} {device.device_kind}" for device in devices],
        "cpu_devices": len(jax.devices("cpu")),
        SETTING: os.environ.get(SETTING),
        "precision": str(jnp.zeros(()).dtype),
        "compilation_cache": None if cache is None else str(cache),
        "versions": versions(),
        "optional": {name: version_of(name) for name in OPTIONAL},
    }
    return facts | {"hints": _hints(facts)}


def _hints(facts: dict[str, Any]) -> list[str]:
    hints = []
    if facts["backend"] == "cpu" and facts["cpu_devices"] == 1 < facts["cores"]:
        hints.append(
            f"There is one CPU device for {facts['cores']} cores. With "
            f"{SETTING}={facts['cores']} before the command each core is a device, and scores "
            "and temperature ladders run on all of them. Do not use this for models with "
            "products of matrices of 1,000 columns: jaxlib 0.12 can compute them wrongly on "
            "several devices."
        )
    if facts["precision"] != "float64":
        hints.append("JAX computes in 32 bits here: the environment overrides the program's 64.")
    missing = [name for name in ("matplotlib", "jinja2") if facts["optional"][name] is None]
    if missing:
        hints.append(
            f"No {' and no '.join(missing)}: install mcmcpost[report] for plots and reports."
        )
    return hints


def doctor_text(facts: dict[str, Any]) -> str:
    """Return the facts as lines."""
    lines = {
        "platform": facts["platform"],
        "cores": facts["cores"],
        "devices": ", ".join(facts["devices"]),
        "CPU devices": f"{facts['cpu_devices']} ({SETTING} {facts[SETTING] or 'not set'})",
        "precision": facts["precision"],
        "compiled programs": facts["compilation_cache"] or "not kept",
        **facts["versions"],
    }
    optional = {
        name: text or f"not installed ({OPTIONAL[name]})"
        for name, text in facts["optional"].items()
    }
    width = max(map(len, [*lines, *optional]))
    text = [f"{name:<{width}}  {value}" for name, value in (lines | optional).items()]
    return "\n".join([*text, *(f"hint: {hint}" for hint in facts["hints"])])
