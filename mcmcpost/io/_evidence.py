"""Evidence as tables, as a tree and as JSON."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from mcmcpost.evidence import Evidence, EvidenceComparison
from mcmcpost.io._estimate import json_able

if TYPE_CHECKING:
    import pandas
    import xarray


EVIDENCE_GROUP = "evidence"


def evidence_methods(evidence: Evidence) -> "pandas.DataFrame":
    """Return one row per method on the same draws: log_evidence, mcse, discretisation_error, status.

    The first row is the one that is reported; `discretisation_error` is NaN for methods that have none.
    """
    import pandas

    return pandas.DataFrame(
        {
            "log_evidence": [e.value for e in evidence.estimates],
            "mcse": [e.mcse for e in evidence.estimates],
            "discretisation_error": [e.info.get("discretisation_error", np.nan) for e in evidence.estimates],
            "status": [str(e.status) for e in evidence.estimates],
        },
        index=pandas.Index([e.method for e in evidence.estimates], name="method"),
    )


def evidence_rungs(evidence: Evidence) -> "pandas.DataFrame":
    """Return one row per rung: means and variances of the log likelihood, plain and controlled, and diagnostics.

    mean, mcse are plain; mean_cv, mcse_cv controlled by the rung's own draws; variance, variance_mcse of the log
    likelihood controlled likewise; gain (mcse/mcse_cv)²; rhat, ess (of the log likelihood) and distinct states of the
    draws; problem why a rung was left out.
    """
    import pandas

    health, used, rungs = evidence.health, evidence.used, evidence.rungs
    size = len(evidence.temperatures)

    def spread(values: np.ndarray) -> np.ndarray:
        full = np.full(size, np.nan)
        full[used] = values
        return full

    columns: dict[str, Any] = {}
    if rungs is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            columns = {
                "mean": spread(rungs.mean_plain),
                "mcse": spread(rungs.mean_error_plain),
                "mean_cv": spread(rungs.mean),
                "mcse_cv": spread(rungs.mean_error),
                "variance": spread(rungs.variance),
                "variance_mcse": spread(rungs.variance_error),
                "gain": spread((rungs.mean_error_plain / rungs.mean_error) ** 2),
                "ess": spread(rungs.variance_plain / rungs.mean_error_plain**2),
            }
            methods = np.full(size, "", dtype=object)
            methods[used] = rungs.method
            columns["method"] = methods
    columns |= {"rhat": health.rhat, "states": health.states, "problem": list(health.problem)}
    return pandas.DataFrame(columns, index=pandas.Index(evidence.temperatures, name="temperature"))


def evidence_path(evidence: Evidence) -> "pandas.DataFrame":
    """Return the continuous path at the quadrature nodes: mean and mean_cv of ℓ, weighted ess, variance_ratio."""
    import pandas

    pooled = evidence.pooled
    if pooled is None:
        return pandas.DataFrame(columns=["mean", "mean_cv", "ess", "variance_ratio"])
    return pandas.DataFrame(
        {
            "mean": np.asarray(pooled.fit.mean)[:, 0],
            "mean_cv": np.asarray(pooled.fit.mean)[:, pooled.level],
            "ess": np.asarray(pooled.fit.ess),
            "variance_ratio": np.asarray(pooled.fit.variance_ratio)[:, pooled.level],
        },
        index=pandas.Index(pooled.temperatures, name="temperature"),
    )


def evidence_to_datatree(evidence: Evidence, tree: "xarray.DataTree | None" = None) -> "xarray.DataTree":
    """Return a new tree with the evidence in the group `evidence`; `tree` is not changed.

    Variables over `method`, over `temperature` (the rungs) and over `node` (the continuous path), as in the tables;
    attrs log_evidence, mcse, discretisation_error, status, method_reported, complaints.
    """
    import xarray

    methods, rungs, path = evidence_methods(evidence), evidence_rungs(evidence), evidence_path(evidence)
    variables = {f"method_{name}": ("method", methods[name].to_numpy()) for name in methods}
    variables |= {f"rung_{name}": ("temperature", rungs[name].to_numpy()) for name in rungs}
    variables |= {f"path_{name}": ("node", path[name].to_numpy(float)) for name in path}
    results = xarray.Dataset(
        variables,
        coords={
            "method": methods.index.to_numpy(object),
            "temperature": evidence.temperatures,
            "node": path.index.to_numpy(float),
        },
        attrs={
            "log_evidence": evidence.value,
            "mcse": evidence.mcse,
            "discretisation_error": evidence.discretisation_error,
            "status": str(evidence.status),
            "method_reported": evidence.method,
            "complaints": "; ".join(evidence.complaints),
            **{key: value for key, value in evidence.info.items() if isinstance(value, int | float | str)},
            "mcmcpost_version": version("mcmcpost"),
        },
    )
    new = xarray.DataTree() if tree is None else tree.copy()
    new[EVIDENCE_GROUP] = xarray.DataTree(results)
    return new


def evidence_to_json_dict(evidence: Evidence) -> dict[str, Any]:
    """Return value, errors, status, every method and the rungs, with None for NaN and infinities."""
    rungs = evidence_rungs(evidence).reset_index()
    return json_able(
        {
            "log_evidence": evidence.value,
            "mcse": evidence.mcse,
            "discretisation_error": evidence.discretisation_error,
            "status": str(evidence.status),
            "method": evidence.method,
            "complaints": list(evidence.complaints),
            "methods": [
                {"method": e.method, "log_evidence": e.value, "mcse": e.mcse, "status": str(e.status), **e.info}
                for e in evidence.estimates
            ],
            "rungs": rungs.to_dict("records"),
            **evidence.info,
        }
    )


def comparison_to_dataframe(comparison: EvidenceComparison) -> "pandas.DataFrame":
    """Return one row per model, best first: log_evidence, error, log_bayes_factor and its error against the best,
    probability, probability_error."""
    import pandas

    best = int(np.argmax(comparison.log_evidence))
    table = pandas.DataFrame(
        {
            "log_evidence": comparison.log_evidence,
            "error": comparison.error,
            "log_bayes_factor": comparison.log_bayes_factor[:, best],
            "log_bayes_factor_error": comparison.log_bayes_factor_error[:, best],
            "probability": comparison.probability,
            "probability_error": comparison.probability_error,
        },
        index=pandas.Index(comparison.names, name="model"),
    )
    return table.sort_values("log_evidence", ascending=False)
