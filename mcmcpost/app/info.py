"""The command ``info``: what is in a stored trace, ladder or file of sums, as facts and as
lines."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import mcmcpost
from mcmcpost.app.contents import recorded_text
from mcmcpost.app.edge import refuse_model_file
from mcmcpost.core.errors import InputError
from mcmcpost.core.runtime import counts_text, digits_of, number_of_draws, one_line, significant
from mcmcpost.evidence import EVIDENCE_GROUP
from mcmcpost.scores import check_scores
from mcmcpost.sums import as_moments
from mcmcpost.trees import (
    check_convergence,
    is_ladder,
    posterior_rung,
    posterior_variables,
    read_trace,
    read_weights,
    recorded_log_density,
)
from mcmcpost.trees.convention import DRAWS, GROUP, SCORES, TEMPERATURE, score_cure
from mcmcpost.trees.diagnostics import RECORDED as LOG_DENSITIES

if TYPE_CHECKING:
    import xarray


RECORDED = ("model_file", "seed", "num_warmup", "thin", "created_at", "sampling_time")
"""Attributes of a run, which samplers and mcmcpost record."""


def describe(path: Path) -> dict[str, Any]:
    """Return what is in the trace or ladder at `path`, as plain values for JSON.

    The scores are tested by the gate, and R-hat is the largest of the posterior's scalars: of a
    ladder, those of its last rung.
    """
    refuse_model_file("info", path)
    tree = mcmcpost.load_tree(path)
    # What is said of a trace is said of a ladder's last rung, whose draws are the posterior's.
    ladder, sums = is_ladder(tree), as_moments(tree)
    trace = posterior_rung(tree) if ladder else tree
    # the root's win
    attrs = {
        str(name): value for node in (*tree.subtree, tree) for name, value in node.attrs.items()
    }
    posterior = tree.children.get("posterior")
    sizes = {} if posterior is None else dict(posterior.sizes)
    return {
        "path": str(path),
        # A Zarr store is a folder, and its size that of its files.
        "bytes": sum(
            file.stat().st_size
            for file in ([path] if path.is_file() else path.rglob("*"))
            if file.is_file()
        ),
        "kind": "ladder" if ladder else "trace" if sums is None else "file of sums",
        "chains": sizes.get("chain"),
        "draws": sizes.get("draw"),
        "sums": None if sums is None else sums.counts,
        "temperatures": np.asarray(tree[GROUP][TEMPERATURE]).tolist() if ladder else None,
        "sampler": attrs.get("inference_library"),
        **{name: attrs.get(name) for name in RECORDED},
        **_convergence(tree, trace),
        "weights": _weights(trace, posterior),
        "scores": (scores := _scores(trace)),
        "structure": _structure(trace, scores),
        "evidence": _evidence(tree),
        "log_density": [name for name in LOG_DENSITIES if name in _names(tree)],
        "versions": dict(_versions(attrs)),
        "groups": {node.path: _variables(node) for node in tree.subtree if node.data_vars},
    }


def _convergence(tree: "xarray.DataTree", trace: "xarray.DataTree") -> dict[str, Any]:
    """Return the R-hat of a trace, and the divergences of the tree that it is of: of a ladder those
    of all rungs."""
    parts = posterior_variables(trace).scalars() if "posterior" in trace.children else ()
    convergence = check_convergence(trace, parts)
    divergences = check_convergence(tree, ()).recorded_divergences
    return {
        "max_rhat": convergence.max_rhat,
        "worst": convergence.worst,
        "divergences": divergences,
    }


def _weights(
    trace: "xarray.DataTree", posterior: "xarray.DataTree | None"
) -> dict[str, float] | None:
    """Return the effective number of weighted draws and the Pareto k̂ of their weights; None
    without weights."""
    if posterior is None or not {"chain", "draw"} <= set(posterior.sizes):
        return None
    weights = read_weights("info", trace, (posterior.sizes["chain"], posterior.sizes["draw"]))
    return None if weights is None else {"ess": weights.ess, "pareto_khat": weights.khat}


def _evidence(tree: "xarray.DataTree") -> dict[str, Any] | None:
    """Return the log evidence that is stored in a tree; None without one."""
    if EVIDENCE_GROUP not in tree.children:
        return None
    attrs = tree.children[EVIDENCE_GROUP].attrs
    keys = ("log_evidence", "mcse", "discretisation_error", "status", "method_reported")
    return {key: attrs[key] for key in keys if key in attrs}


def _scores(trace: "xarray.DataTree") -> dict[str, Any]:
    """Return how many parameters have scores, the verdict of the gate, and what it says."""
    if not {DRAWS, SCORES} <= _names(trace):
        return {
            "parameters": 0,
            "check": None,
            "message": f"none. {score_cure(trace)}",
            "stein": None,
        }
    # Of a trace whose scores cannot be read the rest is still described: the error is one of its
    # facts.
    try:
        arrays = read_trace(trace, weighted=True)
    except InputError as error:
        return {"parameters": 0, "check": "error", "message": str(error), "stein": None}
    check = check_scores(arrays, recorded_log_density(trace, arrays))
    z = mcmcpost.score_diagnostics(trace).filter(like="stein_z").abs()
    worst = {
        name: {"z": float(column.max()), "parameter": str(column.idxmax())}
        for name, column in z.items()
        if column.notna().any()
    }
    facts = {"parameters": arrays.draws.shape[-1], "check": check.verdict, "message": check.message}
    return facts | {"stein": worst}


def _structure(trace: "xarray.DataTree", scores: dict[str, Any]) -> dict[str, Any] | None:
    """Return the number of global coordinates and the length of each block, or of a grid its rows
    and columns.

    None without scores that can be read.
    """
    if not scores["parameters"]:
        return None
    # A grid's labels have two axes, those of a block one.
    shapes = {name: np.shape(labels) for name, labels in mcmcpost.structure(trace).items()}
    blocks = {name: list(shape) if len(shape) > 1 else shape[0] for name, shape in shapes.items()}
    return {
        "globals": scores["parameters"] - sum(map(math.prod, shapes.values())),
        "blocks": blocks,
    }


def _names(trace: "xarray.DataTree") -> set[str]:
    """Return the names of the statistics of the sampler."""
    return set(map(str, trace.children[GROUP].data_vars)) if GROUP in trace.children else set()


def _versions(attrs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in attrs.items():
        package = name.removesuffix("_version")
        if name.endswith("_version"):
            yield str(attrs.get(package, package)), str(value)


def _variables(node: "xarray.DataTree") -> dict[str, dict[str, Any]]:
    return {
        str(name): {"dims": dict(variable.sizes), "type": str(variable.dtype)}
        for name, variable in node.data_vars.items()
    }


def description(facts: dict[str, Any]) -> str:
    """Return the facts as lines, and one line for each variable."""
    scores, rhat = facts["scores"], facts["max_rhat"]
    log_density = ", ".join(facts["log_density"]) or (None if facts["sums"] else "not recorded")
    shape = number_of_draws(facts["chains"], facts["draws"]) if facts["chains"] else "no posterior"
    # Of sums there are no draws left whose scores could be tested.
    if facts["sums"]:
        shape, scores = counts_text(facts["sums"]), {"check": None, "message": None, "stein": None}
    lines = {
        "file": f"{facts['path']}, a {facts['kind']}, {significant(facts['bytes'] / 1e6, 3)} MB",
        "draws": shape,
        "temperatures": _temperatures(facts["temperatures"]),
        "sampler": facts["sampler"],
        **{
            name.replace("_", " "): recorded_text(name, facts[name])
            for name in RECORDED
            if facts[name] is not None
        },
        "divergences": facts["divergences"]
        if facts["sums"] or facts["divergences"] is not None
        else "not recorded",
        "weights": _weights_text(facts["weights"]),
        "largest R-hat": None if np.isnan(rhat) else f"{significant(rhat, 4)}, {facts['worst']}",
        "scores": f"of {scores['parameters']} parameters: {scores['check']}"
        if scores["check"]
        else scores["message"],
        "score gate": scores["message"] if scores["check"] else None,
        "Stein's z": _stein_text(scores["stein"]),
        **_structure_lines(facts["structure"]),
        "log evidence": evidence_line(facts["evidence"]),
        "log density": log_density,
        "versions": ", ".join(f"{name} {text}" for name, text in facts["versions"].items()) or None,
    }
    shown = {
        name: text
        for name, value in lines.items()
        if value is not None and (text := one_line(value))
    }
    # Names come from the file and may hold line breaks; the table has a line for each variable.
    rows = [
        (
            one_line(f"{group.strip('/')}.{name}"),
            ", ".join(f"{dim} {size}" for dim, size in about["dims"].items()),
            about["type"],
        )
        for group, variables in facts["groups"].items()
        for name, about in variables.items()
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in (0, 1)]
    table = [f"{name:<{widths[0]}}  {dims:<{widths[1]}}  {kind}" for name, dims, kind in rows]
    width = max(map(len, shown))
    return "\n".join([*(f"{name:<{width}}  {value}" for name, value in shown.items()), "", *table])


def _stein_text(stein: dict[str, dict[str, Any]] | None) -> str | None:
    """Return the largest z of each order, see `score_diagnostics`."""
    if not stein:
        return None
    return "at most " + ", ".join(
        f"{worst['z']:.1f} ({worst['parameter']})" for worst in stein.values()
    )


def _weights_text(weights: dict[str, float] | None) -> str | None:
    if weights is None:
        return None
    return (
        f"{significant(weights['ess'], 3)} effective draws, Pareto k-hat "
        f"{significant(weights['pareto_khat'], 2)}"
    )


def _structure_lines(structure: dict[str, Any] | None) -> dict[str, str]:
    """Return how many coordinates are global, and a line for all blocks of one length, or grids of
    one shape."""
    if structure is None:
        return {}
    # One line for all blocks of a length: a hierarchical model may have dozens of them.
    names: dict[str, list[str]] = {}
    for name, size in structure["blocks"].items():
        kind = f"blocks of {size}" if isinstance(size, int) else f"grids of {size[0]} × {size[1]}"
        names.setdefault(kind, []).append(name)
    lines = {kind: ", ".join(alike) for kind, alike in names.items()}
    nothing = {"blocks": "none: the labels tell no variable of more than six entries"}
    return {"globals": str(structure["globals"]), **(lines or nothing)}


def evidence_line(stored: dict[str, Any] | None) -> str | None:
    if not stored or stored.get("log_evidence") is None:
        return None
    # Monte Carlo and discretisation error together say how many digits of the value count.
    error = float(np.hypot(stored.get("mcse", np.nan), stored.get("discretisation_error", 0.0)))
    value = digits_of(stored["log_evidence"], error)
    method = stored.get("method_reported", stored.get("method"))  # of a tree, and of JSON
    return f"{value} ± {significant(error, 2)}, {method}, {stored.get('status')}"


def _temperatures(levels: list[float] | None) -> str | None:
    return (
        None if levels is None else f"{len(levels)}: {', '.join(significant(t, 3) for t in levels)}"
    )
