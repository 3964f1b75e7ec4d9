"""Joint estimates to a tree."""

import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from mcmcpost.io._estimate import GROUP, NUMBERS, estimate_to_datatree, json_able

if TYPE_CHECKING:
    import xarray


def joint_estimate_to_datatree(joint: Any) -> "xarray.DataTree":
    """Return a new tree with the estimates of all tasks in the group `control_variates`.

    Parameters
    ----------
    joint : a `JointEstimate` of P integrands over all tasks.

    Returns
    -------
    DataTree : `mean`, `mcse`, `gain`, … `status` and `method` over `task`, labelled by the task's name, or
        ``name: integrand`` where a task has several; `covariance` (task, task_bis) of the errors; the learnt B as
        `task_correlation` (fitted_task, fitted_task_bis), a correlation matrix, and `task_covariance`. One subgroup
        per task, by its number, with what `estimate_to_datatree` writes for it; its attr `task` is the name.
    """
    import xarray

    single = {name: len(part.names) == 1 for name, part in joint.items()}

    def text(labels: tuple[tuple[str, str], ...]) -> np.ndarray:
        return np.array([task if single[task] else f"{task}: {name}" for task, name in labels], dtype=object)

    parts = list(joint.values())
    variables: dict[str, Any] = {
        name: ("task", np.concatenate([np.asarray(getattr(part, name)) for part in parts])) for name in NUMBERS
    }
    for name in ("status", "method"):
        flat = [str(item) for part in parts for item in getattr(part, name)]
        variables[name] = ("task", np.array(flat, dtype=object))
    variables["covariance"] = (("task", "task_bis"), joint.covariance)
    coords = {"task": text(joint.labels), "task_bis": text(joint.labels)}
    if len(joint.task_labels):
        pair = ("fitted_task", "fitted_task_bis")
        variables |= {"task_covariance": (pair, joint.task_covariance)}
        variables |= {"task_correlation": (pair, joint.task_correlation)}
        coords |= {name: text(joint.task_labels) for name in pair}
    attrs = {
        "info": json.dumps(json_able(next((part.info for part in parts if part.info), {})), allow_nan=False),
        "mcmcpost_version": version("mcmcpost"),
    }
    tree = xarray.DataTree()
    tree[GROUP] = xarray.DataTree(xarray.Dataset(variables, coords=coords, attrs=attrs))
    for number, (name, part) in enumerate(joint.items()):
        own = estimate_to_datatree(part)[GROUP].to_dataset()
        tree[f"task_{number}"] = xarray.DataTree(own.assign_attrs(task=name))
    return tree
