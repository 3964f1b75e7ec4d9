"""The command ``doctor``: devices, precision, versions, optional packages."""

import os
import platform
from typing import Any

from mcmcpost._core.versions import version_of, versions

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

    from mcmcpost.cli.edge import cache_directory

    devices = jax.devices()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
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
            f"There is one CPU device for {facts['cores']} cores. With {SETTING}={facts['cores']} before the command"
            " each core is a device, and scores and temperature ladders run on all of them. Do not use this for models"
            " with products of matrices of 1,000 columns: jaxlib 0.12 can compute them wrongly on several devices."
        )
    if facts["precision"] != "float64":
        hints.append("JAX computes in 32 bits here: the environment overrides the program's 64.")
    missing = [name for name in ("matplotlib", "jinja2") if facts["optional"][name] is None]
    if missing:
        hints.append(f"No {' and no '.join(missing)}: install mcmcpost[report] for plots and reports.")
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
    optional = {name: text or f"not installed ({OPTIONAL[name]})" for name, text in facts["optional"].items()}
    width = max(map(len, [*lines, *optional]))
    text = [f"{name:<{width}}  {value}" for name, value in (lines | optional).items()]
    return "\n".join([*text, *(f"hint: {hint}" for hint in facts["hints"])])
