"""Warnings that point at the line of the user's program."""

import sys
import warnings
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1])

_BETWEEN = ("beartype", "equinox", "jax", "jaxtyping", "numpyro")
"""Packages that call this one on a user's behalf, or wrap its functions."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn, and give as the place the nearest caller outside this package and the packages that call it.

    Python shows a warning once for every place: a place inside this package would silence all later calls.
    """
    folders = [Path(path) for name in _BETWEEN if (path := getattr(sys.modules.get(name), "__file__", None))]
    inside = (_PACKAGE, *(str(folder.parent) for folder in folders), "<@beartype(")
    warnings.warn(message, category, skip_file_prefixes=inside)
