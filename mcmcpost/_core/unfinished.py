"""Files and folders that are written under a temporary name, so that a crash leaves no half-written one."""

import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_UNFINISHED: set[Path] = set()

_RENAMING = threading.Lock()
"""Held while something gets its final name, and from the removal to the end of the process."""

_ATTEMPTS = 100

_LENGTH = 50
"""Characters of a name that its temporary one keeps: file names end at 255 bytes."""


@contextmanager
def written_beside(place: Path, name: str | None = None) -> Iterator[Path]:
    """Give a temporary name beside `place`, to write under and to rename; what is still there at the end is removed.

    name : the temporary one, so that the next writer takes the place of what a kill leaves; by default one that no
        other writer has.
    """
    temporary = place.with_name(name or f".{place.stem[:_LENGTH]}-{uuid.uuid4().hex}{place.suffix}")
    _UNFINISHED.add(temporary)
    try:
        yield temporary
    finally:
        _remove(temporary)
        _UNFINISHED.discard(temporary)


def rename_finished(temporary: Path, place: Path) -> None:
    """Give what was written under `temporary` its final name; while the process is ending it waits for that."""
    with _RENAMING:
        temporary.rename(place)


def remove_unfinished() -> None:
    """Remove what is being written in any thread, before the process ends without unwinding them.

    A thread that still writes makes a folder anew, so that it is removed until it is gone; and it cannot give what is
    being removed its final name any more.
    """
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
