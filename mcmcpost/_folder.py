"""Where results will lie: known before the work."""

import tempfile
from pathlib import Path

from mcmcpost._checks import fault


def check_writable(where: str, folder: Path) -> None:
    """Refuse a folder in which no file can be made; permissions alone do not tell, as for a read-only system."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        got, cure = f"{folder}, where no file can be made ({error.strerror})", "Pick a folder of yours."
        raise PermissionError(fault(where, "a folder that can be written to", got, cure)) from error
