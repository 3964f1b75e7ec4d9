"""What the command ``evidence`` does: a ladder from a file, and the evidence as text."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mcmcpost._core.text import digits_of, significant

if TYPE_CHECKING:
    import pandas
    import xarray

    from mcmcpost.evidence import Evidence, EvidenceComparison


POWER = 5.0


def sample_ladder_of(path: Path, settings: Mapping[str, int | None], options: list[str]) -> "xarray.DataTree":
    """Sample the power posteriors of a model file.

    settings : rungs, warmup, draws, chains, seed and exchange, None for the default.
    """
    import jax

    import mcmcpost
    from mcmcpost.cli.model_file import load_model_file, parse_options

    model_file = load_model_file(path)
    given = {key: value for key, value in settings.items() if value is not None}
    args, kwargs = model_file.arguments(parse_options(options))
    tree = mcmcpost.sample_power_posteriors(
        model_file.model,
        args,
        kwargs,
        temperatures=mcmcpost.power_ladder(given.get("rungs", 16), POWER),
        key=jax.random.key(given.get("seed", 0)),
        num_warmup=given.get("warmup", 500),
        num_samples=given.get("draws", 500),
        num_chains=given.get("chains", 4),
        init=model_file.start(parse_options(options)),
        exchange=given.get("exchange"),
        progress=sys.stderr.isatty(),
    )
    tree.attrs |= {"model_file": path.name, "seed": given.get("seed", 0)}
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
