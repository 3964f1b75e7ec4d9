"""Draws of a tree and the log density that they are of."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float

from mcmcpost._checks import fault
from mcmcpost.io._convention import DRAWS, GROUP, check_tree_type, read_draws
from mcmcpost.io._model import probe_model
from mcmcpost.io._posterior import posterior_sites, stored_draws
from mcmcpost.io._tempered import check_evidence_exists

if TYPE_CHECKING:
    import xarray


class Target(NamedTuple):
    """Unconstrained draws (c, n, d), their labels, and the log density (d,) → scalar on that space."""

    draws: Float[np.ndarray, "c n d"]
    names: tuple[str, ...] | None
    logdensity: Callable[[Array], Array]


def read_target(
    where: str,
    tree: "xarray.DataTree",
    model: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    logdensity_fn: Callable[[Array], Array] | None,
) -> Target:
    """Return the draws of `tree` with a NumPyro model's density or a given one.

    ``sample_stats.unconstrained_draw`` is used where it is there, with a model only if its labels are the model's;
    otherwise the latent sites are transformed.
    """
    check_tree_type(where, tree)
    stored = GROUP in tree.children and DRAWS in tree.children[GROUP].data_vars
    if not stored and "posterior" not in tree.children:
        groups = ", ".join(map(str, tree.children)) or "no group"
        raise ValueError(fault(where, "a posterior group or unconstrained draws", groups, "Load a trace."))
    if model is not None and logdensity_fn is None:
        probed = probe_model(where, model, args, kwargs)
        check_evidence_exists(probed)
        if stored and read_draws(tree)[1] == probed.names:
            return Target(read_draws(tree)[0], probed.names, probed.logdensity)
        draws, names = probed.unconstrain(posterior_sites(tree))
        return Target(draws, names, probed.logdensity)
    if logdensity_fn is not None and not (model or args or kwargs):
        draws, labels = stored_draws(tree)
        return Target(draws, labels, logdensity_fn)
    raise ValueError(
        fault(
            where,
            "either a NumPyro model with its arguments or `logdensity_fn` alone",
            "neither" if logdensity_fn is None else "both",
            f"Call {where}(tree, model, *args, key=key) or {where}(tree, logdensity_fn=f, key=key).",
        )
    )
