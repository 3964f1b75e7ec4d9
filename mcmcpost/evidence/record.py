"""The record of a log evidence: its tables, and how trees and JSON hold it and are read."""

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mcmcpost.core.arguments import check_trace_type, check_tree_type
from mcmcpost.core.errors import TRUSTED, InputError, Status, written_whole
from mcmcpost.core.runtime import digits_of, json_able, significant
from mcmcpost.evidence.barrier import Barrier, PathDiagnostics
from mcmcpost.evidence.bridge import BridgeOverlap
from mcmcpost.evidence.ladder import EvidenceEstimate
from mcmcpost.evidence.path import PooledPath
from mcmcpost.evidence.path_regression import Mixtures, PathFit
from mcmcpost.evidence.rungs import RungHealth, RungMeans

if TYPE_CHECKING:
    import pandas
    import xarray


EVIDENCE_GROUP, BRIDGE_GROUP = "evidence", "evidence_bridge"
"""The groups of a tree that hold an evidence, and the bridge that stands beside the evidence of a
ladder."""


class Evidence(NamedTuple):
    """A log evidence with both error terms, other estimates on the same draws, and the path that
    was integrated.

    That of a posterior trace alone has no rungs: `temperatures` and `used` are empty, `health`,
    `rungs` and `pooled` None.

    value : log p(y), in nats. mcse : Monte Carlo standard error. discretisation_error : size of the
        quadrature error along the path, not a standard error.
    status, method : what happened and which estimator `value` is, ``pooled`` or a rule.
    complaints : sentences on what is wrong with the ladder and why the pooled path was not used.
    estimates : every method on the same draws, that of `value` first.
    temperatures : (t,) all rungs. health : of every rung.
    used : the rungs that were usable, to which `rungs` and `pooled` refer.
    rungs : controlled means and variances rung by rung; None where an end of the ladder is missing.
    pooled : the continuous path; None where it was not asked for.
    info : JSON-able facts. ``halves`` and ``halves_mcse``: the value from the earlier and the later
        half of each chain. Of a ladder also ``reference`` (``prior``, or ``fitted normal``),
        ``barrier`` Λ, ``advised_rungs`` and, with replica exchange, ``round_trips``; of a trace
        ``participants``, ``pareto_khat``, how many ``densities`` and ``gradients`` were evaluated,
        and ``modes``, a sentence on what was looked for outside the draws; ``score_gate`` what the
        gate found, where it failed.
    diagnostics : of a ladder, for the rungs in `used`, barrier, rejection and swap rates and where
        the error comes from; of a trace the overlap of posterior and fitted density. None where it
        is unknown.
    bridge : of a ladder, the evidence of its posterior by bridges, where that was given; its
        estimates are among those of the ladder.
    """

    value: float
    mcse: float
    discretisation_error: float
    status: Status
    method: str
    complaints: tuple[str, ...]
    estimates: tuple[EvidenceEstimate, ...]
    temperatures: Float[np.ndarray, " t"]
    health: RungHealth | None
    used: np.ndarray
    rungs: RungMeans | None
    pooled: PooledPath | None
    info: dict[str, Any]
    diagnostics: PathDiagnostics | BridgeOverlap | None = None
    bridge: "Evidence | None" = None

    def __repr__(self) -> str:
        """Return the value, what is wrong, and every method on the same draws: the paths of a tuple
        fill screens."""
        lines: list[tuple[str, Evidence | EvidenceEstimate]] = [("log evidence", self)]
        lines += [(one.method, one) for one in self.estimates]
        numbers = [
            f"{name}: {digits_of(one.value, one.error)} ± {significant(one.error, 2)}, {one.status}"
            for name, one in lines
        ]
        return "\n  ".join([numbers[0], *self.complaints, *numbers[1:]])

    @property
    def error(self) -> float:
        """√(mcse² + discretisation_error²)."""
        return float(np.hypot(self.mcse, self.discretisation_error))

    def to_dataframe(self) -> "pandas.DataFrame":
        """Return one row per method on the same draws: log_evidence, mcse, discretisation_error,
        status.

        The first row is the one that is reported; `discretisation_error` is NaN for methods that
        have none. Where there are bridges also khat_proposals and khat_draws, the Pareto k̂ of both
        sides (docs/methods/bridge.md).
        """
        import pandas

        columns: dict[str, Any] = {
            "log_evidence": [e.value for e in self.estimates],
            "mcse": [e.mcse for e in self.estimates],
            "discretisation_error": [
                e.info.get("discretisation_error", np.nan) for e in self.estimates
            ],
            "status": [str(e.status) for e in self.estimates],
        }
        for side in ("khat_proposals", "khat_draws"):
            if any(side in e.info for e in self.estimates):
                columns[side] = [e.info.get(side, np.nan) for e in self.estimates]
        return pandas.DataFrame(
            columns,
            index=pandas.Index([e.method for e in self.estimates], name="method"),
        )

    def rungs_to_dataframe(self) -> "pandas.DataFrame":
        """Return one row per rung: means and variances of the log likelihood, plain and controlled,
        and diagnostics.

        mean, mcse are plain; mean_cv, mcse_cv controlled by the rung's own draws; variance,
        variance_mcse of the log likelihood controlled likewise; gain (mcse/mcse_cv)²; method and
        status of the control variate; rhat, ess (of the log likelihood), distinct states of the
        draws, how many are impossible (of zero likelihood) and whether the half-chains agree
        (converged); problem why a rung was left out. With the next rung: overlap, the probability
        that a draw of one is attributed to the other (0.03 is needed for the pooled path);
        rejection, the expected rejection rate of a swap, half or less on a good ladder; swap_rate,
        the accepted fraction where the sampler swapped. error_share is the share of the variance of
        the value that is due to the draws of the rung.
        """
        import pandas

        health, used, rungs = self.health, self.used, self.rungs
        size = len(self.temperatures)
        index = pandas.Index(self.temperatures, name="temperature")
        if health is None:
            return pandas.DataFrame(index=index)

        def spread(values: np.ndarray) -> np.ndarray:
            # Rungs that were left out have no row in `rungs` and `pooled`, which refer to those in
            # `used`.
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
                    # Var ℓ/mcse², the effective size that the plain error stands for.
                    "ess": spread(rungs.variance_plain / rungs.mean_error_plain**2),
                }
                # Objects and not fixed-width strings: an empty entry must not cut the others short.
                for name, texts in (
                    ("method", rungs.method),
                    ("status", tuple(map(str, rungs.status))),
                ):
                    columns[name] = np.full(size, "", dtype=object)
                    columns[name][used] = texts
        if self.pooled is not None and isinstance(self.diagnostics, PathDiagnostics):
            columns |= {
                # Between a rung and the next: the last one has none.
                "overlap": spread(np.append(self.pooled.overlap, np.nan)),
                "rejection": spread(np.append(self.diagnostics.rejection, np.nan)),
                "swap_rate": spread(np.append(self.diagnostics.swap_rate, np.nan)),
                "error_share": spread(self.diagnostics.error_share),
            }
        columns |= {
            name: getattr(health, name) for name in ("rhat", "states", "impossible", "converged")
        }
        columns |= {"problem": list(health.problem)}
        return pandas.DataFrame(columns, index=index)

    def path_to_dataframe(self) -> "pandas.DataFrame":
        """Return the continuous path at the quadrature nodes: mean and mean_cv of ℓ, weighted ess,
        variance_ratio."""
        import pandas

        pooled = self.pooled
        if pooled is None:
            return pandas.DataFrame(columns=["mean", "mean_cv", "ess", "variance_ratio"])
        return pandas.DataFrame(
            {
                "mean": pooled.fit.mean[:, 0],
                "mean_cv": pooled.fit.mean[:, pooled.level],
                "ess": pooled.fit.ess,
                "variance_ratio": pooled.fit.variance_ratio[:, pooled.level],
            },
            index=pandas.Index(pooled.temperatures, name="temperature"),
        )

    def to_datatree(self, tree: "xarray.DataTree | None" = None) -> "xarray.DataTree":
        """Return a new tree with the evidence in the group `evidence`; `tree` is not changed. See
        `from_datatree`.

        Variables over `method`, over `temperature` (the rungs), over `node` (the continuous path)
        and over `barrier_temperature`, as in the tables, and the overlap of a bridge; attrs
        log_evidence, mcse, discretisation_error, status, method_reported, complaints (one a line).
        A bridge beside the evidence of a ladder is in the group `evidence_bridge`.
        """
        import xarray

        if tree is not None:
            check_tree_type("Evidence.to_datatree", tree)
        methods, rungs, path = (
            self.to_dataframe(),
            self.rungs_to_dataframe(),
            self.path_to_dataframe(),
        )
        variables: dict[str, Any] = {
            f"method_{name}": ("method", methods[name].to_numpy()) for name in methods
        }
        # netCDF has no nested values: the facts of each estimate go through JSON.
        infos = [json.dumps(json_able(e.info), allow_nan=False) for e in self.estimates]
        variables["method_info"] = ("method", np.array(infos, object))
        variables |= {f"rung_{name}": ("temperature", rungs[name].to_numpy()) for name in rungs}
        variables |= {f"path_{name}": ("node", path[name].to_numpy(float)) for name in path}
        coords: dict[str, Any] = {
            "method": methods.index.to_numpy(object),
            "temperature": self.temperatures,
            "node": path.index.to_numpy(float),
        }
        if isinstance(self.diagnostics, PathDiagnostics):
            variables["barrier"] = ("barrier_temperature", self.diagnostics.barrier.cumulative)
            coords["barrier_temperature"] = self.diagnostics.barrier.temperatures
        if isinstance(self.diagnostics, BridgeOverlap):
            for name, sets in self.diagnostics._asdict().items():
                # The halves may have different numbers of draws, and so each has a dimension to
                # itself.
                variables |= {
                    f"{name}_{half}": (f"{name}_{half}_row", values)
                    for half, values in enumerate(sets)
                }
        flat = {
            key: value for key, value in self.info.items() if isinstance(value, int | float | str)
        }
        nested = {key: value for key, value in self.info.items() if key not in flat}
        results = xarray.Dataset(
            variables,
            coords=coords,
            attrs={
                "log_evidence": self.value,
                "mcse": self.mcse,
                "discretisation_error": self.discretisation_error,
                "status": str(self.status),
                "method_reported": self.method,
                "complaints": "\n".join(self.complaints),
                **flat,
                "info": json.dumps(json_able(nested), allow_nan=False),
                "mcmcpost_version": version("mcmcpost"),
            },
        )
        # An earlier bridge would otherwise stand beside an evidence that it was not compared with.
        new = (
            xarray.DataTree()
            if tree is None
            else tree.drop_nodes(BRIDGE_GROUP, errors="ignore").copy()
        )
        new[EVIDENCE_GROUP] = xarray.DataTree(results)
        if self.bridge is not None:
            new[BRIDGE_GROUP] = self.bridge.to_datatree()[EVIDENCE_GROUP]
        return new

    @classmethod
    def from_datatree(cls, tree: "xarray.DataTree") -> "Evidence":
        """Return the evidence that `to_datatree` wrote to a tree; nothing is computed again.

        Tables, figures and comparisons are those of the evidence that was written. What only its
        estimation needed is not stored: of `rungs` the series and covariances, of `pooled` the fit
        of each block and the mixtures.

        Raises
        ------
        ValueError : there is no evidence in the tree, or one that is not of the draws beside it.
        """
        return stored_evidence("Evidence.from_datatree", tree)

    def to_json_dict(self) -> dict[str, Any]:
        """Return value, errors, status, every method, rungs and path, with None for NaN and
        infinities.

        `load_tree` reads a JSON file of it. It has all of the evidence but the overlap of a bridge,
        whose values are as many as the draws.
        """
        rungs, path = (
            table.reset_index() for table in (self.rungs_to_dataframe(), self.path_to_dataframe())
        )
        drawn = self.diagnostics
        barrier = (
            {"barrier_path": drawn.barrier._asdict()} if isinstance(drawn, PathDiagnostics) else {}
        )
        return json_able(
            {
                "log_evidence": self.value,
                "mcse": self.mcse,
                "discretisation_error": self.discretisation_error,
                "status": str(self.status),
                "method": self.method,
                "complaints": list(self.complaints),
                "methods": [
                    {
                        "method": e.method,
                        "log_evidence": e.value,
                        "mcse": e.mcse,
                        "status": str(e.status),
                        **e.info,
                    }
                    for e in self.estimates
                ],
                "rungs": rungs.to_dict("records"),
                "path": path.to_dict("records"),
                **barrier,
                **({} if self.bridge is None else {"bridge": self.bridge.to_json_dict()}),
                **self.info,
            }
        )


CURE = (
    "Estimate it again: log_evidence or bridge_evidence, on the command line --path auto or "
    "--model FILE.py."
)


def stored_evidence(where: str, tree: "xarray.DataTree") -> Evidence:
    """Return the evidence that `Evidence.to_datatree` wrote to a tree, see
    `Evidence.from_datatree`.

    Raises
    ------
    ValueError : there is none, or it is of another ladder or trace than the one that the tree
        holds.
    """
    check_trace_type(where, tree)
    if EVIDENCE_GROUP not in tree.children:
        got = f"the groups {', '.join(tree.children)}" if tree.children else "a tree without groups"
        cure = "Keep one in it: log_evidence(tree).to_datatree(tree), or mcmcpost evidence -o."
        raise InputError(where, "a tree with an evidence", got, cure)
    evidence = _from_group(where, tree.children[EVIDENCE_GROUP].to_dataset())
    if BRIDGE_GROUP in tree.children:
        evidence = evidence._replace(
            bridge=_from_group(where, tree.children[BRIDGE_GROUP].to_dataset())
        )
    _check_draws_of(where, evidence, tree)
    return evidence


def stored_bridge(where: str, tree: "xarray.DataTree") -> Evidence | None:
    """Return the bridge that stands beside the evidence of a ladder, or alone in its tree; None
    without one."""
    for name in (BRIDGE_GROUP, EVIDENCE_GROUP):
        group = tree.children.get(name)
        if group is not None and not group.sizes.get("temperature"):
            return _from_group(where, group.to_dataset())
    return None


def _check_draws_of(where: str, evidence: Evidence, tree: "xarray.DataTree") -> None:
    """Refuse an evidence of other draws than those beside it, which were thinned, joined or sampled
    since.

    A ladder's may lie beside the trace of its posterior, and a bridge beside a ladder: these are
    not compared.
    """
    sizes: dict[str, int] = {}
    # A ladder has its temperatures in `sample_stats`, a trace its draws in `posterior`.
    for group in ("posterior", "sample_stats"):
        sizes |= {
            str(dim): size
            for dim, size in (tree.children[group].sizes if group in tree.children else {}).items()
        }
    # One is a ladder and the other is not: their sizes need not agree.
    if ("temperature" in sizes) != bool(len(evidence.temperatures)):
        return
    kept = {"chain": "num_chains", "draw": "num_draws", "temperature": "num_rungs"}
    # Sizes are all that can be compared cheaply; they tell thinning, joining and added rungs.
    wrong = [
        (dim, name)
        for dim, name in kept.items()
        if sizes.get(dim) != evidence.info.get(name) and dim in sizes
    ]
    if wrong and "draw" in sizes:
        expected = ", ".join(f"{sizes[dim]} {dim}s" for dim, _ in wrong)
        got = ", ".join(f"{evidence.info.get(name)}" for _, name in wrong)
        raise InputError(
            where, f"an evidence of the draws in the tree ({expected})", f"one of {got}", CURE
        )


@written_whole("an evidence", CURE)
def _from_group(where: str, group: "xarray.Dataset") -> Evidence:
    """Return the evidence of one group, by way of what `Evidence.to_json_dict` has of it."""
    # The common form of both files is that of `to_json_dict`, so that a field is parsed in one
    # place, `evidence_from_json`.
    wanted = {
        "log_evidence",
        "mcse",
        "discretisation_error",
        "status",
        "method_reported",
        "complaints",
        "info",
    }
    missing = sorted(
        map(str, (wanted - set(group.attrs)) | ({"method_info"} - set(group.data_vars)))
    )
    if missing:
        got = f"a group `{EVIDENCE_GROUP}` without {', '.join(missing)}"
        raise InputError(where, "an evidence that this version of mcmcpost wrote", got, CURE)

    def records(dim: str, prefix: str) -> list[dict[str, Any]]:
        columns = {
            str(n).removeprefix(prefix): v.values
            for n, v in group.data_vars.items()
            if str(n).startswith(prefix)
        }
        columns |= {dim: group[dim].values}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    # A file's numbers are NumPy's, the facts of an estimate Python's.
    facts = {
        str(key): value.item() if hasattr(value, "item") else value
        for key, value in group.attrs.items()
    }
    for key in ("method_reported", "info", "complaints", "mcmcpost_version"):
        facts.pop(key, None)
    methods = records("method", "method_")
    # Columns beyond these are those of the estimates' facts that a table shows, and NaN where there
    # is none.
    kept = ("method", "log_evidence", "mcse", "status")
    methods = [{key: row[key] for key in kept} | json.loads(row["info"]) for row in methods]
    facts |= json.loads(group.attrs["info"])
    facts |= {
        "method": group.attrs["method_reported"],
        "complaints": [text for text in str(group.attrs["complaints"]).split("\n") if text],
        "methods": methods,
        "rungs": records("temperature", "rung_"),
        "path": [row | {"temperature": row.pop("node")} for row in records("node", "path_")],
    }
    if "barrier" in group.data_vars:
        curve = {
            "temperatures": group["barrier_temperature"].values,
            "cumulative": group["barrier"].values,
        }
        facts["barrier_path"] = curve
    evidence = evidence_from_json(where, facts)
    if "at_draws_0" not in group.data_vars:
        return evidence
    sets = (
        tuple(group[f"{name}_{half}"].values for half in (0, 1)) for name in BridgeOverlap._fields
    )
    return evidence._replace(diagnostics=BridgeOverlap(*sets))


_ERRORS = ("mcse", "discretisation_error")

RECORDED = (
    "log_evidence",
    "mcse",
    "discretisation_error",
    "status",
    "method",
    "complaints",
    "methods",
    "rungs",
    "path",
)
"""The keys of `Evidence.to_json_dict` that are fields or tables; others are facts of the
estimate."""


@written_whole("an evidence", CURE)
def evidence_from_json(where: str, facts: Mapping[str, Any]) -> Evidence:
    """Return the evidence of which `Evidence.to_json_dict` made these facts; None is NaN.

    Raises
    ------
    ValueError : something that an evidence has is not there, an error is negative, or a number that
        its status trusts is missing.
    """
    missing = [key for key in RECORDED if key not in facts]
    if missing:
        got = f"one without {', '.join(missing)}"
        raise InputError(where, "an evidence that this version of mcmcpost wrote", got, CURE)
    # The bridge is read by this function too, with NaN put back there.
    known = _with_nan({key: value for key, value in facts.items() if key != "bridge"})
    info = {
        key: value
        for key, value in known.items()
        if key not in (*RECORDED, "barrier_path", "source")
    }
    estimates = tuple(
        EvidenceEstimate(
            str(row["method"]),
            float(row["log_evidence"]),
            float(row["mcse"]),
            Status(row["status"]),
            {
                key: value
                for key, value in row.items()
                if key not in ("method", "log_evidence", "mcse", "status")
            },
        )
        for row in known["methods"]
    )
    # A row of a table is a record: `column` returns what all rungs have in one.
    rungs = known["rungs"]
    column = {key: np.array([row[key] for row in rungs]) for key in (rungs[0] if rungs else ())}
    # Which rungs were used is not stored by itself: a rung was left out where a problem is named,
    # and only there.
    used = np.flatnonzero([row["problem"] == "" for row in rungs])
    health = None
    if rungs:
        health = RungHealth(
            np.isin(np.arange(len(rungs)), used),
            column["impossible"].astype(int),
            column["states"].astype(int),
            column["rhat"].astype(float),
            column["converged"].astype(bool),
            tuple(map(str, column["problem"])),
        )
    usable = {key: values[used] for key, values in column.items()}
    pooled = _stored_path(known["path"], estimates, usable)
    diagnostics = None
    if "barrier_path" in known and pooled is not None:
        diagnostics = PathDiagnostics(
            Barrier(*(np.array(known["barrier_path"][key], float) for key in Barrier._fields)),
            usable["rejection"][:-1].astype(float),
            usable["swap_rate"][:-1].astype(float),
            float(info.get("round_trips", np.nan)),
            usable["error_share"].astype(float),
        )
    # A wrong error or a number that is not there would go into Bayes factors without a word.
    for row in (known, *known["methods"]):
        told = {key: float(row[key]) for key in _ERRORS if key in row}
        told |= {"log_evidence": float(row["log_evidence"])}
        wrong = [key for key in _ERRORS if told.get(key, 0.0) < 0]
        if Status(row["status"]) in TRUSTED and np.isnan(told["log_evidence"]):
            wrong += ["log_evidence"]
        if wrong:
            got = f"a {wrong[0]} of {told[wrong[0]]} with the status {row['status']}"
            raise InputError(where, "numbers that an evidence can have", got, CURE)
    return Evidence(
        value=float(known["log_evidence"]),
        mcse=float(known["mcse"]),
        discretisation_error=float(known["discretisation_error"]),
        status=Status(known["status"]),
        method=str(known["method"]),
        complaints=tuple(map(str, known["complaints"])),
        estimates=estimates,
        temperatures=column["temperature"].astype(float) if rungs else np.zeros(0),
        health=health,
        used=used,
        rungs=_stored_rungs(usable) if "mean_cv" in usable else None,
        pooled=pooled,
        info=info,
        diagnostics=diagnostics,
        bridge=evidence_from_json(where, facts["bridge"]) if "bridge" in facts else None,
    )


def _with_nan(value: Any) -> Any:
    """Return facts of JSON with NaN for None."""
    if isinstance(value, Mapping):
        return {key: _with_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_nan(item) for item in value]
    return np.nan if value is None else value


def _stored_rungs(usable: Mapping[str, np.ndarray]) -> RungMeans:
    """Return the means of the usable rungs from their table; of covariances and residuals nothing
    is known."""
    t = len(usable["mean"])
    number = {
        key: usable[key].astype(float)
        for key in ("mean", "mcse", "mean_cv", "mcse_cv", "variance", "ess")
    }
    return RungMeans(
        mean=number["mean_cv"],
        variance=number["variance"],
        mean_plain=number["mean"],
        # The inverse of the column `ess` of `rungs_to_dataframe`.
        variance_plain=number["ess"] * number["mcse"] ** 2,
        mean_error=number["mcse_cv"],
        variance_error=usable["variance_mcse"].astype(float),
        mean_error_plain=number["mcse"],
        covariance=np.full((t, 2, 2), np.nan),
        joint=None,
        series=np.zeros((0, 0, t, 2)),
        status=tuple(map(Status, usable["status"])),
        method=tuple(map(str, usable["method"])),
    )


def _stored_path(
    path: list[dict[str, Any]],
    estimates: tuple[EvidenceEstimate, ...],
    usable: Mapping[str, np.ndarray],
) -> PooledPath | None:
    """Return the continuous path from its table, with two levels: plain, and what was chosen."""
    estimate = next((e for e in estimates if e.method == "pooled"), None)
    if estimate is None or not path:
        return None
    nodes = {key: np.array([row[key] for row in path], float) for key in path[0]}
    ratio = np.stack([np.ones(len(path)), nodes["variance_ratio"]], axis=1)
    unknown = np.full(2, np.nan)
    fit = PathFit(
        np.stack([nodes["mean"], nodes["mean_cv"]], axis=1),
        nodes["ess"],
        ratio,
        unknown,
        unknown,
        np.zeros((0, 2)),
        np.zeros((0, 2)),
    )
    facts = {
        key: value
        for key, value in estimate.info.items()
        if key in ("tried", "smallest_ess", "smallest_overlap")
    }
    return PooledPath(
        value=estimate.value,
        mcse=estimate.mcse,
        start_error=np.nan,
        discretisation_error=float(estimate.info["discretisation_error"]),
        degree=int(estimate.info["degree"]),
        level=1,
        method=str(estimate.info["control"]),
        temperatures=nodes["temperature"],
        fit=fit,
        mixtures=Mixtures(
            np.zeros((0, len(usable["rhat"]))), np.zeros((0, 0)), 0, not estimate.info["reason"]
        ),
        overlap=usable["overlap"][:-1].astype(float),
        reason=str(estimate.info["reason"]),
        info=facts | {"num_nodes": estimate.info["num_nodes"]},
    )
