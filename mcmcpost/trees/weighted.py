"""Weighted draws: the results of nested sampling as a tree, and draws of equal weight from any
weighted tree."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from mcmcpost.core.arguments import as_float64, as_labels, check_count, check_key, check_trace_type
from mcmcpost.core.errors import InputError, InputTypeError
from mcmcpost.core.mcse import LEAST
from mcmcpost.core.runtime import version_of
from mcmcpost.trees.convention import (
    GROUP,
    LOG_WEIGHT,
    NUM_LIVE,
    make_weights,
    read_weights,
    sample_dataset,
)

if TYPE_CHECKING:
    import xarray


def from_dynesty(results: Any, names: Iterable[str] | None = None) -> "xarray.DataTree":
    """Return a tree of the weighted draws of a nested-sampling run, for `attach_scores`.

    The log weights are those of the dead points, ``sample_stats.log_weight``, and
    ``sample_stats.num_live`` tells how far each point shrinks the volume, from which `expectation`
    has the error of the volumes. dynesty's own log evidence and its error are the attrs
    `log_evidence` and `log_evidence_error`. Points of less than 1e-20 of the largest weight are
    left out. The parameters are those of the likelihood; a NumPyro model whose sites have their
    names transforms them, and with ``logdensity_fn`` they must be unconstrained.

    Parameters
    ----------
    results : ``sampler.results`` of dynesty, or anything with arrays `samples` (n, d), `logwt`
        (n,), `logz`, `logzerr` and either `samples_n` (n,) or, where the number of live points was
        constant up to the end, `nlive`.
    names : d labels, the variables of the posterior group; default ``x[i]``.

    Returns
    -------
    DataTree : groups `posterior` and `sample_stats`, one chain, without scores.

    Raises
    ------
    ValueError, TypeError : arrays that are missing, of other shapes or not finite.

    Source: Skilling (2006, doi:10.1214/06-BA127); Speagle (2020, doi:10.1093/mnras/staa278).
    """
    import xarray

    where, fields = "from_dynesty", ("samples", "logwt", "logz", "logzerr")
    missing = [name for name in fields if not hasattr(results, name)]
    if missing:
        raise InputTypeError(
            where, f"results with {', '.join(missing)}", type(results).__name__, "Pass .results."
        )
    draws = as_float64(where, "samples", results.samples, "draw, d")
    labels = as_labels(where, names, draws.shape[-1])
    logs = as_float64(where, "logwt", results.logwt, "draw")
    live = as_float64(where, "samples_n", _live_points(where, results, len(draws)), "draw")
    # Checked whole, before points without weight are left out and with them what is wrong there.
    make_weights(where, logs[None], live[None], shape=(1, len(draws)))
    if not np.isfinite(draws).all():
        raise InputError(
            where,
            "finite `samples`",
            f"{int((~np.isfinite(draws)).sum())} that are not",
            "Remove them.",
        )
    # The first dead points weigh next to nothing, and each would need a score.
    kept = logs > logs.max() + np.log(LEAST)
    variables = {name: draws[None, kept, i] for i, name in enumerate(labels)}
    stats = sample_dataset({LOG_WEIGHT: logs[None, kept], NUM_LIVE: live[None, kept]})
    stats.attrs = {
        "inference_library": "dynesty",
        "inference_library_version": version_of("dynesty") or "unknown",
        "log_evidence": float(np.asarray(results.logz)[-1]),
        "log_evidence_error": float(np.asarray(results.logzerr)[-1]),
    }
    return xarray.DataTree.from_dict({"posterior": sample_dataset(variables), GROUP: stats})


def _live_points(where: str, results: Any, size: int) -> Any:
    """Return the live points at each step; the last ones of a static run are taken from the worst
    to the best."""
    if hasattr(results, "samples_n"):
        return results.samples_n
    if not hasattr(results, "nlive"):
        raise InputTypeError(
            where, "results with samples_n or nlive", type(results).__name__, "Pass .results."
        )
    check_count(where, "nlive", results.nlive, "It is the number of live points.")
    if getattr(results, "niter", None) == size:  # without its last live points
        return np.full(size, results.nlive)
    # A static run ends by removing its live points one by one, each from one fewer.
    return np.minimum(np.arange(size, 0, -1), results.nlive)


def resample(
    tree: "xarray.DataTree", *, key: jax.Array, num_draws: int | None = None
) -> "xarray.DataTree":
    """Return a new tree of one chain of draws of equal weight, by systematic resampling of weighted
    draws.

    It is for what knows no weights, such as ladders, reports and ArviZ. For `expectation` and
    `bridge_evidence` the weighted draws have smaller errors. Copies of a draw are neighbours, so
    that effective sample sizes see them; a nested-sampling run, whose order is that of the
    likelihood, is shuffled.

    Parameters
    ----------
    tree : with ``sample_stats.log_weight``. Groups with its chains and draws are resampled, but for
        those of the prior; other groups and variables are kept.
    key : JAX key.
    num_draws : by default Kish's effective sample size, with which few draws are taken twice.

    Raises
    ------
    ValueError, TypeError : a tree without weights, or with bad ones; a key or number of a wrong
        kind.
    """
    import xarray

    where = "resample"
    check_trace_type(where, tree)
    check_key(where, key)
    check_count(where, "num_draws", num_draws, "Leave it out.", optional=True)
    stats = tree.children.get(GROUP)
    weights = None
    if stats is not None and {"chain", "draw"} <= set(stats.sizes):
        weights = read_weights(where, tree, (stats.sizes["chain"], stats.sizes["draw"]))
    if weights is None:
        raise InputError(
            where, f"a tree with `{GROUP}.{LOG_WEIGHT}`", "none", "Its draws have equal weights."
        )
    size = max(int(weights.ess), 1) if num_draws is None else num_draws
    first, second = jax.random.split(key)
    total = np.cumsum(weights.values.reshape(-1))
    # One uniform number for all: the copies of a draw differ from their expected number by less
    # than one.
    steps = (np.arange(size) + float(jax.random.uniform(first))) / size * total[-1]
    rows = np.minimum(np.searchsorted(total, steps), len(total) - 1)
    # In the order of the likelihood, neighbours would look like the autocorrelation of a chain.
    if weights.num_live is not None:
        rows = rows[np.asarray(jax.random.permutation(second, size))]
    chain, draw = (
        xarray.DataArray(index, dims="draw") for index in np.divmod(rows, weights.values.shape[1])
    )
    new = tree.copy()
    coords = {"chain": [0], "draw": np.arange(size)}
    for name, group in tree.children.items():
        if (
            str(name).startswith("prior")
            or (group.sizes.get("chain"), group.sizes.get("draw")) != weights.values.shape
        ):
            continue
        old = group.to_dataset().drop_vars([LOG_WEIGHT, NUM_LIVE, "chain", "draw"], errors="ignore")
        drawn = [
            name
            for name, variable in old.variables.items()
            if {"chain", "draw"} <= set(variable.dims)
        ]
        chosen = xarray.Dataset()
        if drawn:
            chosen = (
                old[drawn]
                .isel(chain=chain, draw=draw)
                .expand_dims("chain")
                .transpose("chain", "draw", ...)
            )
        kept = old.drop_vars(drawn).drop_dims(["chain", "draw"], errors="ignore")
        new[name].dataset = chosen.merge(kept).assign_coords(coords).assign_attrs(old.attrs)
    return new
