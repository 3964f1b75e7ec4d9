"""The command ``evidence``: a ladder from a file or a model, and its evidence as text."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

import mcmcpost
from mcmcpost._core.text import digits_of, significant
from mcmcpost.cli.model_file import load_model_file, parse_options
from mcmcpost.cli.options import LADDER, is_model_file, refuse_sampling, settings_of

if TYPE_CHECKING:
    import pandas
    import xarray

    from mcmcpost.evidence import Evidence, EvidenceComparison


POWER = 5.0


def open_ladder(source: Path, given: Mapping[str, int | None], options: list[str] | None) -> "xarray.DataTree":
    """Sample the power posteriors of a model file, or load a ladder, which takes no sampling options."""
    if is_model_file(source):
        return sample_ladder(source, settings_of(given, LADDER), options)
    refuse_sampling("evidence", source, "ladder", {**given, "option": options or None})
    return mcmcpost.load_tree(source)


def sample_ladder(path: Path, settings: Mapping[str, int], options: list[str] | None) -> "xarray.DataTree":
    """Sample the power posteriors of a model file.

    settings : those of `LADDER`, and `exchange`, the iterations between swaps, where rungs are swapped.
    """
    model_file, chosen = load_model_file(path), parse_options(options or [])
    args, kwargs = model_file.arguments(chosen)
    tree = mcmcpost.sample_power_posteriors(
        model_file.model,
        args,
        kwargs,
        temperatures=mcmcpost.power_ladder(settings["rungs"], POWER),
        key=jax.random.key(settings["seed"]),
        num_warmup=settings["warmup"],
        num_samples=settings["draws"],
        num_chains=settings["chains"],
        init=model_file.start(chosen),
        exchange=settings.get("exchange"),
        progress=sys.stderr.isatty(),
    )
    tree.attrs |= {"model_file": path.name, "seed": settings["seed"]}
    return tree


def evidence_text(name: str, evidence: "Evidence") -> str:
    """Return the estimate, every method on the same draws, and the rungs."""
    missed = evidence.discretisation_error
    head = (
        f"{name}: log evidence {digits_of(evidence.value, evidence.error)} ± {significant(evidence.mcse, 2)} (Monte"
        f" Carlo) ± {significant(missed, 2)} (discretisation), {evidence.method}, {evidence.status}"
    )
    methods = evidence.to_dataframe()
    table = methods.assign(
        log_evidence=list(map(digits_of, methods["log_evidence"], methods["mcse"])),
        mcse=[significant(x, 2) for x in methods["mcse"]],
        discretisation_error=["" if np.isnan(x) else significant(x, 2) for x in methods["discretisation_error"]],
    )
    return "\n\n".join([head, table.to_string(), _rungs(evidence.rungs_to_dataframe()).to_string()])


def _rungs(rungs: "pandas.DataFrame") -> "pandas.DataFrame":
    shown: dict[str, list[str]] = {}
    if "mean_cv" in rungs:
        shown["mean_cv"] = list(map(digits_of, rungs["mean_cv"], rungs["mcse_cv"]))
        shown |= {key: [significant(x, 2) for x in rungs[key]] for key in ("mcse_cv", "mcse")}
        shown |= {key: [significant(x, 3) for x in rungs[key]] for key in ("gain", "ess", "variance")}
    shown["rhat"] = [significant(x, 4) for x in rungs["rhat"]]
    if any(rungs["problem"]):
        shown["problem"] = list(rungs["problem"])
    index = [significant(x, 4) for x in rungs.index]
    return type(rungs)(shown, index=type(rungs.index)(index, name="temperature"))


def comparison_text(comparison: "EvidenceComparison") -> str:
    """Return one line per model, best first."""
    table = comparison.to_dataframe()
    errors = {"log_evidence": "error", "log_bayes_factor": "log_bayes_factor_error", "probability": "probability_error"}
    shown: dict[str, Any] = {}
    for column, error in errors.items():
        shown[column] = list(map(digits_of, table[column], table[error]))
        shown[error] = [significant(x, 2) for x in table[error]]
    return type(table)(shown, index=table.index).to_string()
