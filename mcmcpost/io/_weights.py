"""Stein weights beside the draws."""

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import xarray


def weights_to_datatree(weights: Any, tree: "xarray.DataTree") -> "xarray.DataTree":
    """Return a new tree: `tree` with ``sample_stats.stein_weight`` (chain, draw), whose sum is one.

    Any expectation is then ``(tree.sample_stats.stein_weight * f).sum()``. Attrs carry the kernel, nugget and status.
    """
    import xarray

    new = tree.copy()
    stats = tree["sample_stats"].to_dataset()
    stats["stein_weight"] = xarray.DataArray(
        weights.values,
        dims=("chain", "draw"),
        attrs={
            "status": str(weights.status),
            "variance_factor": weights.variance_factor,
            "info": json.dumps(weights.info),
        },
    )
    new["sample_stats"] = xarray.DataTree(stats)
    return new
