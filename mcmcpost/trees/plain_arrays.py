"""Trees of plain arrays."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from mcmcpost.core.arguments import as_float64, as_labels, check_flags
from mcmcpost.core.errors import InputError
from mcmcpost.trace import make_trace
from mcmcpost.trees.convention import (
    GROUP,
    LOG_WEIGHT,
    NUM_LIVE,
    as_chain_draw,
    check_same_labels,
    make_weights,
    sample_dataset,
    with_trace,
)
from mcmcpost.trees.diagnostics import gate, gate_attrs

if TYPE_CHECKING:
    import xarray


_WHERE = "from_arrays"


def from_arrays(
    draws: object,
    scores: object,
    values: object = None,
    *,
    names: Iterable[str] | None = None,
    value_names: Iterable[str] | None = None,
    log_weights: object = None,
    num_live: object = None,
    allow_bad_scores: bool = False,
) -> "xarray.DataTree":
    """Return a tree of draws, scores and quantities of interest, after the score gate.

    Parameters
    ----------
    draws : (c, n, d) unconstrained draws; dims named `chain` and `draw` may come in any order, here
        and below.
    scores : (c, n, d) ∇ log density of the unconstrained draw, log-Jacobian included.
    values : (c, n, p) quantities of interest, kept as scalar variables of the posterior group;
        default the draws.
    names : d coordinate labels; default ``x[i]``.
    value_names : p labels; default ``f[i]``, or `names` where `values` is None.
    log_weights : (c, n) log weights of the draws, finite, up to a constant that all chains share:
        log p − log g for draws of g, the logarithms of the weights of a sequential Monte Carlo
        sampler. They become ``sample_stats.log_weight``. Scores are those of the target p.
    num_live : (c, n) for a nested-sampling run, whose draws are in order: the live points of each
        step.
    allow_bad_scores : keep scores that the gate would refuse.

    Returns
    -------
    DataTree with groups `posterior` and `sample_stats`.

    Raises
    ------
    ValueError : shapes or names disagree; weights that are not finite; `num_live` without weights.
    ScoreError : the scores fail the gate.
    """
    check_flags(_WHERE, allow_bad_scores=allow_bad_scores)
    # Before anything is transposed: labelled arrays of other draws would be taken by position.
    for name, array in (
        ("scores", scores),
        ("values", values),
        ("log_weights", log_weights),
        ("num_live", num_live),
    ):
        check_same_labels(_WHERE, name, array, draws)
    points, slopes = as_chain_draw(_WHERE, "draws", draws), as_chain_draw(_WHERE, "scores", scores)
    trace = make_trace(points, slopes, names)
    given = None if values is None else as_chain_draw(_WHERE, "values", values)
    quantities = (
        trace.draws if given is None else as_float64(_WHERE, "values", given, "chain, draw, p")
    )
    if not quantities.shape[-1]:
        raise InputError(
            _WHERE,
            "`values` of at least one quantity",
            quantities.shape,
            "Leave it out for the draws.",
        )
    if quantities.shape[:2] != trace.draws.shape[:2]:
        raise InputError(
            _WHERE,
            f"`values` with the chains and draws of `draws` {trace.draws.shape[:2]}",
            quantities.shape[:2],
            "One row of values belongs to each draw.",
        )
    default = (
        trace.names if values is None else tuple(f"f[{i}]" for i in range(quantities.shape[-1]))
    )
    labels = (
        default
        if value_names is None
        else as_labels(_WHERE, value_names, quantities.shape[-1], "value_names")
    )
    stats: dict[str, np.ndarray] = {}
    if log_weights is not None:
        trace = trace._replace(
            weights=make_weights(_WHERE, log_weights, num_live, shape=trace.draws.shape[:2])
        )
        given_stats = {LOG_WEIGHT: log_weights} | ({} if num_live is None else {NUM_LIVE: num_live})
        stats = {
            name: as_chain_draw(_WHERE, name, array).astype(float)
            for name, array in given_stats.items()
        }
    elif num_live is not None:
        raise InputError(
            _WHERE, "`log_weights` beside `num_live`", "none", "Pass both, or neither."
        )
    # With the weights: Stein's identity holds under the target, not under what was drawn from.
    check = gate(trace, allow_bad_scores)
    return with_trace(_tree(quantities, labels, stats), trace, gate_attrs(check))


def _tree(
    values: np.ndarray, names: tuple[str, ...], stats: dict[str, np.ndarray]
) -> "xarray.DataTree":
    import xarray

    # Copies: a view keeps the whole array alive, and the tree must not change with it.
    variables = {name: values[..., i].copy() for i, name in enumerate(names)}
    groups = {"posterior": sample_dataset(variables)} | (
        {GROUP: sample_dataset(stats)} if stats else {}
    )
    return xarray.DataTree.from_dict(groups)
