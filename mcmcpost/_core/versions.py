"""Which versions a result was made with."""

import platform
from importlib.metadata import PackageNotFoundError, version

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
