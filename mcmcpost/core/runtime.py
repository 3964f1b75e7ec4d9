"""What a running program needs besides numbers, without importing any that computes.

Which step of long work is being done, said to whoever listens: to nobody, unless a program shows
it. Files and folders that are written under a temporary name, so that a crash leaves no
half-written one. Which versions a result was made with. How numbers and counts are printed.
"""

import difflib
import io
import itertools
import math
import os
import platform
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

# By context: threads that work at the same time have listeners of their own.
_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


def say_step(step: str) -> None:
    """Say which step begins."""
    if listener := _listener.get():
        listener(step)


@contextmanager
def listening(listener: Callable[[str], None]) -> Iterator[None]:
    """Have a function called with every step that begins in this thread while the block runs."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


_UNFINISHED: set[Path] = set()

_RENAMING = threading.Lock()
"""Held while something gets its final name, and from the removal to the end of the process."""

_ATTEMPTS = 100

_LENGTH = 50
"""Characters of a name that its temporary one keeps: file names end at 255 bytes."""


@contextmanager
def written_beside(place: Path, name: str | None = None) -> Iterator[Path]:
    """Give a temporary name beside `place`, to write under and to rename; what is still there at
    the end is removed.

    name : the temporary one, so that the next writer takes the place of what a kill leaves; by
        default one that no other writer has.
    """
    # In the same folder: from another disk a rename would be a copy, which a crash cuts off.
    temporary = place.with_name(name or f".{place.stem[:_LENGTH]}-{uuid.uuid4().hex}{place.suffix}")
    _UNFINISHED.add(temporary)
    try:
        yield temporary
    finally:
        _remove(temporary)
        _UNFINISHED.discard(temporary)


class FullDiskFile(io.FileIO):
    """A new file to read and write whose first failed write is kept in `failure`, and after which
    writes do nothing.

    HDF5 keeps what a full disk did not take and tries again when the program ends, which crashes.
    """

    failure: OSError | None = None

    def __init__(self, place: Path) -> None:
        super().__init__(place, "x+")

    def write(self, data: Any) -> int:
        """Write all of `data`, or note why not."""
        view = memoryview(data).cast("B")
        size = len(view)
        # One call may write less than it is given, as up to the end of the disk.
        while self.failure is None and len(view):
            try:
                view = view[super().write(view) :]
            except OSError as error:
                self.failure = error
        return size

    def readinto(self, data: Any) -> int:
        """Read into `data`; what was not written is zeros, in which HDF5 finds no address to
        follow."""
        view = memoryview(data).cast("B")
        size = super().readinto(view)
        view[size:] = bytes(len(view) - size)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file, or note why not."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.failure = self.failure or error
            return size or 0


def rename_finished(temporary: Path, place: Path, overwrite: bool = False) -> None:
    """Give what was written under `temporary` its final name; while the process is ending it waits
    for that.

    overwrite : replace a file or folder that has this name.
    """
    with _RENAMING:
        if not (overwrite and place.is_dir()):
            temporary.rename(place)
            return
        # No system renames onto a folder with files in it.
        with written_beside(place) as old:
            # Until the new one is in its place the old one can come back.
            place.rename(old)
            try:
                temporary.rename(place)
            except OSError:
                old.rename(place)
                raise


def remove_unfinished() -> None:
    """Remove what is being written in any thread, before the process ends without unwinding them.

    A thread that still writes makes a folder anew, so that it is removed until it is gone; and it
    cannot give what is being removed its final name any more.
    """
    # Never released: no thread may name what is removed here.
    _RENAMING.acquire()
    for temporary in tuple(_UNFINISHED):
        for _ in range(_ATTEMPTS):
            _remove(temporary)
            if not os.path.lexists(temporary):
                break


def _remove(place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place, ignore_errors=True)
    else:
        place.unlink(missing_ok=True)


CORE = ("mcmcpost", "jax", "jaxlib", "numpyro", "diffrax", "arviz", "xarray", "numpy", "scipy")


def versions() -> dict[str, str | None]:
    """Return the installed versions of Python, of this package and of what it computes with."""
    return {"python": platform.python_version()} | {name: version_of(name) for name in CORE}


def version_of(name: str) -> str | None:
    """Return the installed version of a distribution, None where there is none."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def one_line(message: object) -> str:
    """Return the message on one line."""
    return " ".join(str(message).split())


def did_you_mean(name: str, known: Iterable[object]) -> str:
    """Return a question about the known name that is most like `name`, if only in other case, and
    "" where none is."""
    names = list(map(str, known))
    alike = difflib.get_close_matches(name, names, 1) or [
        one for one in names if one.casefold() == name.casefold()
    ]
    return f"Did you mean {alike[0]!r}? " if alike else ""


def number_of_quantities(count: int) -> str:
    """Return how many quantities in words."""
    return "1 quantity" if count == 1 else f"{count} quantities"


def counts_text(counts: Mapping[str, int]) -> str:
    """Return counts by what they are of, as "1 chain, 5,900 draws, 3 quantities"."""
    singular = {"quantities": "quantity"}
    return ", ".join(
        f"{count:,} {name if count != 1 else singular.get(name, name.removesuffix('s'))}"
        for name, count in counts.items()
    )


def number_of_draws(chains: int, draws: int) -> str:
    """Return "1 chain of 500 draws", "4 chains of 1 draw"."""
    return f"{chains} chain{'s' * (chains != 1)} of {draws} draw{'s' * (draws != 1)}"


def significant(value: float, digits: int) -> str:
    """Return `value` with that many significant digits, without an exponent where it stays
    readable."""
    if not math.isfinite(value):
        return str(float(value))
    if value == 0 or not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}" if value else "0"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


YEAR = 31_557_600.0

UNITS = (
    (120.0, 1.0, "s"),
    (7_200.0, 60.0, "min"),
    (172_800.0, 3_600.0, "h"),
    (6.3e7, 86_400.0, "days"),
    (100 * YEAR, YEAR, "years"),
)
"""Units of time: below how many seconds each is used, how many seconds it has, and its name;
beyond, nobody waits for it."""


def duration(seconds: float) -> str:
    """Return a time to two significant digits, in the unit that reads best."""
    for below, size, name in UNITS:
        if seconds < below:
            value = seconds / size
            digits = significant(value, 2) if value < 100 else f"{float(f'{value:.1e}'):,.0f}"
            return f"{digits} {name}"
    return "a century or more"


def digits_of(value: float, error: float) -> str:
    """Return `value` down to the first digit that `error` touches; six significant digits without
    an error."""
    if not math.isfinite(value):
        return str(float(value))
    if not math.isfinite(error) or error <= 0:
        return f"{value:.6g}"
    # Beyond 15 digits a double has none to show.
    place = math.floor(math.log10(error))
    if value != 0 and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{min(15, max(0, math.floor(math.log10(abs(value))) - place))}e}"
    return f"{value:.{min(12, max(0, -place))}f}"


SHOWN = 12
"""Rows of a table in a `repr`."""


def first_rows(rows: Iterable[tuple[str, float, float, float, object]]) -> str:
    """Return the first rows of (name, mean, mcse, gain, status) as an aligned table, and "…" where
    there are more."""
    first = list(itertools.islice(rows, SHOWN + 1))
    cells = [("", "mean", "mcse", "gain", "status")]
    cells += [
        (name, digits_of(mean, mcse), significant(mcse, 2), significant(gain, 3), str(status))
        for name, mean, mcse, gain, status in first[:SHOWN]
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    # Numbers end below each other, as in pandas.
    lines = [
        "  ".join([name.ljust(widths[0]), *map(str.rjust, numbers, widths[1:-1]), status])
        for name, *numbers, status in cells
    ]
    return "\n".join(lines + ["…"] * (len(first) > SHOWN))


def json_able(value: Any) -> Any:
    """Return plain lists, dicts and numbers, None for NaN and infinities."""
    plain = value.tolist() if hasattr(value, "tolist") else value  # an array or a number of NumPy
    if isinstance(plain, (list, tuple)):
        return [json_able(item) for item in plain]
    if isinstance(plain, dict):
        return {str(key): json_able(item) for key, item in plain.items()}
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
