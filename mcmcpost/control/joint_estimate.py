"""Related expectations on several traces, estimated together, with the covariance of their errors."""

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mcmcpost._core.text import json_able
from mcmcpost.control.estimate import (
    GROUP,
    NUMBERS,
    Estimate,
    assemble,
    controllable,
    covariance_of,
    mark,
    plain_estimate,
)
from mcmcpost.control.method import ControlFit, JointFit
from mcmcpost.control.problem import Problem, check_dimensions, make_joint_problem, make_problem, same_states
from mcmcpost.control.trained import TrainedVectorValued
from mcmcpost.control.vector_valued import VectorValued
from mcmcpost.trace import Trace

if TYPE_CHECKING:
    import xarray


class TaskInput(NamedTuple):
    """One trace with its integrands: names (p,), values (c, n, p); `bad_scores` if the gate failed and was overridden.

    `controlled` is False where the gate's finding leaves only the plain mean.
    """

    trace: Trace
    names: tuple[str, ...]
    values: Float[np.ndarray, "c n p"]
    bad_scores: bool = False
    controlled: bool = True


class JointEstimate(dict[str, Estimate]):
    """Estimates by task name, with what only the whole has.

    labels : P pairs (task, integrand), tasks in order.
    covariance : (P, P) of the estimates' errors, positive semidefinite with mcse² on its diagonal: the part of the
        error that the common fit makes (`mean_doubt`) with the kernel model's correlation, and the rest, within the
        same draws, with the correlation of the residual series. Other draws are independent.
    task_labels, task_covariance : the (task, integrand) pairs that were fitted together and their learnt B, for
        integrands of unit scale; empty where nothing was fitted.
    """

    labels: tuple[tuple[str, str], ...]
    covariance: Float[np.ndarray, "p p"]
    task_labels: tuple[tuple[str, str], ...]
    task_covariance: Float[np.ndarray, "t t"]

    def __init__(
        self,
        estimates: Mapping[str, Estimate],
        covariance: Float[np.ndarray, "p p"],
        task_labels: tuple[tuple[str, str], ...],
        task_covariance: Float[np.ndarray, "t t"],
    ) -> None:
        super().__init__(estimates)
        self.labels = tuple((task, name) for task, part in estimates.items() for name in part.names)
        self.covariance = covariance
        self.task_labels = task_labels
        self.task_covariance = task_covariance

    @property
    def task_correlation(self) -> Float[np.ndarray, "t t"]:
        """The learnt B as a correlation matrix."""
        sd = np.sqrt(np.diagonal(self.task_covariance))
        return self.task_covariance / sd[:, None] / sd[None, :]

    def to_datatree(self) -> "xarray.DataTree":
        """Return a new tree with the estimates of all tasks in the group `control_variates`.

        Returns
        -------
        DataTree : `mean`, `mcse`, `gain`, … `status` and `method` over `task`, labelled by the task's name, or
            ``name: integrand`` where a task has several; `covariance` (task, task_bis) of the errors; the learnt B as
            `task_correlation` (fitted_task, fitted_task_bis), a correlation matrix, and `task_covariance`. One subgroup
            per task, by its number, with what `Estimate.to_datatree` writes for it; its attr `task` is the name.
        """
        import xarray

        single = {name: len(part.names) == 1 for name, part in self.items()}

        def text(labels: tuple[tuple[str, str], ...]) -> np.ndarray:
            return np.array([task if single[task] else f"{task}: {name}" for task, name in labels], dtype=object)

        parts = list(self.values())
        variables: dict[str, Any] = {
            name: ("task", np.concatenate([np.asarray(getattr(part, name)) for part in parts])) for name in NUMBERS
        }
        for name in ("status", "method"):
            flat = [str(item) for part in parts for item in getattr(part, name)]
            variables[name] = ("task", np.array(flat, dtype=object))
        variables["covariance"] = (("task", "task_bis"), self.covariance)
        coords = {"task": text(self.labels), "task_bis": text(self.labels)}
        if len(self.task_labels):
            pair = ("fitted_task", "fitted_task_bis")
            variables |= {"task_covariance": (pair, self.task_covariance)}
            variables |= {"task_correlation": (pair, self.task_correlation)}
            coords |= {name: text(self.task_labels) for name in pair}
        attrs = {
            "info": json.dumps(json_able(next((part.info for part in parts if part.info), {})), allow_nan=False),
            "mcmcpost_version": version("mcmcpost"),
        }
        tree = xarray.DataTree()
        tree[GROUP] = xarray.DataTree(xarray.Dataset(variables, coords=coords, attrs=attrs))
        for number, (name, part) in enumerate(self.items()):
            own = part.to_datatree()[GROUP].to_dataset()
            tree[f"task_{number}"] = xarray.DataTree(own.assign_attrs(task=name))
        return tree


def estimate_jointly(
    inputs: Mapping[str, TaskInput],
    method: VectorValued | TrainedVectorValued,
    *,
    num_folds: int | None = None,
    moments: tuple[Any, Any] | None = None,
    fallback: bool = True,
) -> JointEstimate:
    """Estimate the expectations of all tasks with one vector-valued control variate.

    Tasks that share draws and scores go through the Kronecker solve of `VectorValued.crossfit`. Integrands that are
    constant or not finite, traces of fewer than four states and traces that failed the gate take no part in the fit and
    are reported with their status.

    Raises
    ------
    ValueError : tasks of different dimensions; a covariance that does not fit them.
    """
    check_dimensions(tuple(inputs), [item.trace for item in inputs.values()])
    columns = {
        name: controllable(item.trace, item.values) if item.controlled else np.zeros(0, int)
        for name, item in inputs.items()
    }
    fitted = [name for name in inputs if len(columns[name])]
    estimates = {name: plain_estimate(item.names, item.values) for name, item in inputs.items()}
    labels = tuple((name, inputs[name].names[j]) for name in fitted for j in columns[name])
    found: dict[str, tuple[ControlFit, Problem]] = {}
    correlation = task_covariance = np.eye(len(labels))
    shared = len(fitted) > 0 and all(same_states(inputs[fitted[0]].trace, inputs[name].trace) for name in fitted)
    if shared:
        first = inputs[fitted[0]].trace
        stacked = np.concatenate([inputs[name].values[..., columns[name]] for name in fitted], axis=-1)
        problem = make_problem(first, stacked, num_folds=num_folds, moments=moments)
        whole = method.crossfit(problem)
        task_covariance = np.asarray(whole.info.get("task_covariance", task_covariance))
        ends = np.cumsum([len(columns[name]) for name in fitted])
        for name, own in zip(fitted, np.split(np.arange(len(labels)), ends[:-1]), strict=True):
            found[name] = _columns(whole, own), problem.select(own)
    elif fitted:
        joint = make_joint_problem(
            [inputs[name].trace for name in fitted],
            [inputs[name].values[..., columns[name]] for name in fitted],
            num_folds=num_folds,
            moments=moments,
        )
        fit: JointFit = method.crossfit_joint(joint)
        correlation, task_covariance = fit.model_correlation, fit.task_covariance
        found = dict(zip(fitted, zip(fit.fits, joint.problems, strict=True), strict=True))
    for name, (own_fit, problem) in found.items():
        item = inputs[name]
        estimates[name] = assemble(
            item.names, item.values, columns[name], own_fit, problem, fallback=fallback, believe=item.bad_scores
        )
    estimates = {
        name: mark(part, inputs[name].trace, inputs[name].values, bad_scores=inputs[name].bad_scores)
        for name, part in estimates.items()
    }
    traces = {name: item.trace for name, item in inputs.items()}
    index, doubts = ([], []) if shared else _common_doubt(estimates, found, columns)
    covariance = _covariance(estimates, traces, np.array(index, int), np.array(doubts), correlation)
    return JointEstimate(estimates, covariance, labels, task_covariance)


def _columns(fit: ControlFit, columns: np.ndarray) -> ControlFit:
    """Return the fit of some integrands."""
    return ControlFit(
        mean=fit.mean[columns],
        control=fit.control[:, columns],
        doubt=fit.doubt[columns],
        jackknife=fit.jackknife[columns],
        num_features=fit.num_features[columns],
        status=tuple(fit.status[j] for j in columns),
        method=tuple(fit.method[j] for j in columns),
        info=fit.info,
    )


def _common_doubt(
    estimates: Mapping[str, Estimate],
    found: Mapping[str, tuple[ControlFit, Problem]],
    columns: Mapping[str, np.ndarray],
) -> tuple[list[int], list[float]]:
    """Return where each fitted task stands among all P and its doubt, in its units; zero where it was fitted alone."""
    rows, doubts, start = [], [], 0
    for name, part in estimates.items():
        if name in found:
            fit, problem = found[name]
            for k, j in enumerate(columns[name]):
                together = part.method[j] == fit.method[k] and not fit.method[k].endswith("alone")
                doubts.append(min(float(fit.doubt[k] * problem.scale[k]), float(part.mcse[j])) if together else 0.0)
                rows.append(start + int(j))
        start += len(part.names)
    return rows, doubts


def _covariance(
    estimates: Mapping[str, Estimate],
    traces: Mapping[str, Trace],
    index: np.ndarray,
    doubts: np.ndarray,
    correlation: Float[np.ndarray, "t t"],
) -> Float[np.ndarray, "p p"]:
    """Return the covariance of the common doubts plus that of the rest, by residuals of the same draws."""
    owner = np.repeat(np.arange(len(estimates)), [len(part.names) for part in estimates.values()])
    mcse = np.concatenate([part.mcse for part in estimates.values()])
    common = np.zeros(len(mcse))
    common[index] = doubts
    rest = np.sqrt(np.maximum(mcse**2 - common**2, 0.0))
    total = np.zeros((len(mcse), len(mcse)))
    if len(index):
        total[np.ix_(index, index)] = np.outer(doubts, doubts) * correlation
    names, left = list(estimates), list(range(len(estimates)))
    while left:
        same = [k for k in left if same_states(traces[names[left[0]]], traces[names[k]])]
        left = [k for k in left if k not in same]
        at = np.concatenate([np.flatnonzero(owner == k) for k in same])
        residuals = np.concatenate([estimates[names[k]].residuals for k in same], axis=-1)
        total[np.ix_(at, at)] += covariance_of(residuals, rest[at])
    return total
