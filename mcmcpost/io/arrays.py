"""Trees of plain arrays."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from mcmcpost._core.arguments import as_float64, as_labels, check_flags
from mcmcpost._core.errors import InputError
from mcmcpost.io.convention import as_chain_draw, check_same_labels, sample_dataset, with_trace
from mcmcpost.io.diagnostics import gate, gate_attrs
from mcmcpost.trace import make_trace

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
    allow_bad_scores: bool = False,
) -> "xarray.DataTree":
    """Return a tree of draws, scores and quantities of interest, after the score gate.

    Parameters
    ----------
    draws : (c, n, d) unconstrained draws; dims named `chain` and `draw` may come in any order, here and below.
    scores : (c, n, d) ∇ log density of the unconstrained draw, log-Jacobian included.
    values : (c, n, p) quantities of interest, kept as scalar variables of the posterior group; default the draws.
    names : d coordinate labels; default ``x[i]``.
    value_names : p labels; default ``f[i]``, or `names` where `values` is None.
    allow_bad_scores : keep scores that the gate would refuse.

    Returns
    -------
    DataTree with groups `posterior` and `sample_stats`.

    Raises
    ------
    ValueError : shapes or names disagree.
    ScoreError : the scores fail the gate.
    """
    check_flags(_WHERE, allow_bad_scores=allow_bad_scores)
    for name, array in (("scores", scores), ("values", values)):
        check_same_labels(_WHERE, name, array, draws)
    points, slopes = as_chain_draw(_WHERE, "draws", draws), as_chain_draw(_WHERE, "scores", scores)
    trace = make_trace(points, slopes, names)
    given = None if values is None else as_chain_draw(_WHERE, "values", values)
    quantities = trace.draws if given is None else as_float64(_WHERE, "values", given, "chain, draw, p")
    if not quantities.shape[-1]:
        raise InputError(_WHERE, "`values` of at least one quantity", quantities.shape, "Leave it out for the draws.")
    if quantities.shape[:2] != trace.draws.shape[:2]:
        raise InputError(
            _WHERE,
            f"`values` with the chains and draws of `draws` {trace.draws.shape[:2]}",
            quantities.shape[:2],
            "One row of values belongs to each draw.",
        )
    default = trace.names if values is None else tuple(f"f[{i}]" for i in range(quantities.shape[-1]))
    labels = default if value_names is None else as_labels(_WHERE, value_names, quantities.shape[-1], "value_names")
    check = gate(trace, allow_bad_scores)
    return with_trace(_posterior(quantities, labels), trace, gate_attrs(check))


def _posterior(values: np.ndarray, names: tuple[str, ...]) -> "xarray.DataTree":
    import xarray

    variables = {name: values[..., i].copy() for i, name in enumerate(names)}
    return xarray.DataTree.from_dict({"posterior": sample_dataset(variables)})
