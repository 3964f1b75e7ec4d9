"""Draws of a stored trace: the variables of the posterior group, or the unconstrained draws beside them."""

from typing import TYPE_CHECKING

import numpy as np

from mcmcpost._checks import fault
from mcmcpost.io._convention import DRAWS, GROUP, element_names, read_draws

if TYPE_CHECKING:
    import xarray


def posterior_sites(tree: "xarray.DataTree") -> dict[str, np.ndarray]:
    """Return the variables (chain, draw, ...) of the posterior group."""
    if "posterior" not in tree.children:
        raise ValueError(
            fault("attach_scores", "a posterior group", ", ".join(tree.children) or "no group", "Load a trace.")
        )
    return {
        str(name): variable.transpose("chain", "draw", ...).values
        for name, variable in tree.children["posterior"].to_dataset().data_vars.items()
        if {"chain", "draw"} <= set(variable.dims)
    }


def stored_draws(tree: "xarray.DataTree") -> tuple[np.ndarray, tuple[str, ...] | None]:
    """Return unconstrained draws (c, n, d) and labels: the stored ones, else the posterior group as it is."""
    if GROUP in tree.children and DRAWS in tree.children[GROUP].data_vars:
        return read_draws(tree)
    sites = posterior_sites(tree)
    names = tuple(name for key, value in sites.items() for name in element_names(key, value.shape[2:]))
    if not names:
        raise ValueError(
            fault("attach_scores", "variables with dims chain and draw", "none in the posterior group", "Load a trace.")
        )
    return np.concatenate([v.reshape(*v.shape[:2], -1) for v in sites.values()], axis=-1, dtype=np.float64), names
