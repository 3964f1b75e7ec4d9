"""Estimates to a tree."""

import json
import math
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from mcmcpost._core.errors import fault

if TYPE_CHECKING:
    import xarray


GROUP = "control_variates"


NUMBERS = ("mean", "mcse", "gain", "variance_ratio", "sd", "mean_plain", "mcse_plain", "mean_crossfit")


def estimate_to_datatree(estimate: Any, tree: "xarray.DataTree | None" = None) -> "xarray.DataTree":
    """Return a new tree with the estimates in the group `control_variates`.

    Parameters
    ----------
    estimate : an `Estimate` of p quantities.
    tree : the trace of the estimate, from which the other groups are taken; it is not changed, and their arrays are
        shared with it, as by ``tree.copy()``.

    Returns
    -------
    DataTree : variables `mean`, `mcse`, `gain`, `variance_ratio`, `sd`, `mean_plain`, `mcse_plain`, `mean_crossfit`,
        `status` and `method` over `quantity`; `residual` (chain, draw, quantity), whose spread is that of f − g and
        not of the posterior; `covariance` (quantity, quantity_bis). Attrs: the methods, `info` as JSON with null for
        what is not finite, its scalar entries one by one, and versions.
    """
    import xarray

    names = np.array(estimate.names, dtype=object)
    variables: dict[str, Any] = {name: ("quantity", np.asarray(getattr(estimate, name))) for name in NUMBERS}
    variables |= {
        "status": ("quantity", np.array([str(status) for status in estimate.status], dtype=object)),
        "method": ("quantity", np.array([str(method) for method in estimate.method], dtype=object)),
        "residual": (("chain", "draw", "quantity"), np.asarray(estimate.residuals)),
        "covariance": (("quantity", "quantity_bis"), np.asarray(estimate.covariance)),
    }
    new = xarray.DataTree() if tree is None else tree.copy()
    coords = {"quantity": names, "quantity_bis": names, **_chain_draw(new, np.shape(estimate.residuals))}
    results = xarray.Dataset(variables, coords=coords, attrs=_attrs(estimate))
    new[GROUP] = xarray.DataTree(results)
    return new


def _chain_draw(tree: "xarray.DataTree", shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    posterior = tree.children.get("posterior")
    sizes = tuple(shape[:2]) if posterior is None else tuple(posterior.sizes.get(dim, 0) for dim in ("chain", "draw"))
    if sizes != tuple(shape[:2]):
        raise ValueError(
            fault(
                "estimate_to_datatree", f"a tree of {tuple(shape[:2])} chains and draws", sizes, "Pass its own trace."
            )
        )
    return {
        dim: posterior.coords[dim].values if posterior is not None and dim in posterior.coords else np.arange(size)
        for dim, size in zip(("chain", "draw"), shape, strict=False)
    }


def _attrs(estimate: Any) -> dict[str, str | int | float]:
    info = {str(key): json_able(value) for key, value in estimate.info.items()}
    scalars = {
        key: value for key, value in info.items() if isinstance(value, (str, int, float)) and type(value) is not bool
    }
    return {
        **scalars,
        "method": ", ".join(dict.fromkeys(str(method) for method in estimate.method)),
        "info": json.dumps(info, allow_nan=False),
        "residual_is": "f - g, cross-fitted: its spread is not that of the posterior",
        "mcmcpost_version": version("mcmcpost"),
        "jax_version": version("jax"),
        "arviz_version": version("arviz"),
    }


def json_able(value: Any) -> Any:
    """Return plain lists, dicts and numbers, None for NaN and infinities."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return [json_able(item) for item in value]
    if isinstance(value, dict):
        return {str(key): json_able(item) for key, item in value.items()}
    plain = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain
