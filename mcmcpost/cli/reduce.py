"""The command ``reduce``: expectations and quantiles of every quantity of a trace, as a table or a tree."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas

from mcmcpost._core.text import duration
from mcmcpost.api.expectation import answer, answer_quantiles
from mcmcpost.api.question import pose
from mcmcpost.cli.edge import say
from mcmcpost.cli.progress import phase, stopwatch
from mcmcpost.cli.quantities import Asked, named_scalars, say_left_out
from mcmcpost.control import Estimate
from mcmcpost.io import posterior_variables
from mcmcpost.report import known_lines, listed_rows

if TYPE_CHECKING:
    import xarray

QUANTILES = "control_variates_quantiles"
"""The group of a tree that holds the quantiles."""


def reduce_tree(
    tree: "xarray.DataTree",
    asked: Asked,
    probabilities: np.ndarray | None,
    method: str,
    allow_bad_scores: bool,
) -> list[Estimate]:
    """Return the expectations of every quantity and, where `probabilities` are given, their quantiles."""
    variables = posterior_variables(tree)
    say_left_out(variables)
    with phase("score gate"):
        question = pose(tree, named_scalars(tree, variables, asked), method, allow_bad_scores, weighted=True)
    if question.convergence.note:
        say("note", question.convergence.note)
    since = stopwatch()
    with phase("control variates"):
        estimates = [answer(question)]
    say_worth(estimates[0], since())
    if probabilities is not None:
        with phase("quantiles"):
            estimates.append(answer_quantiles(question, probabilities))
    return estimates


def say_worth(estimate: Estimate, seconds: float) -> None:
    """Say what a reduction that took so long is worth, where the trace records the time of its sampling."""
    if worth := estimate.info.get("worth"):
        say("note", f"{worth} This reduction took {duration(seconds)}.")


def tree_with(tree: "xarray.DataTree", estimates: Sequence[Estimate]) -> "xarray.DataTree":
    """Return a new tree with the expectations and the quantiles beside the draws; quantiles of before are not kept."""
    result = estimates[0].to_datatree(tree.drop_nodes(QUANTILES, errors="ignore"))
    for quantiles in estimates[1:]:
        result[QUANTILES] = quantiles.to_datatree()["control_variates"]
    return result


def estimates_text(estimates: Sequence[Estimate]) -> str:
    """Return one row for each quantity, every mean to the digits that its error supports, and a line for constants."""
    rows = [row for estimate in estimates for row in listed_rows(estimate)]
    table = [pandas.DataFrame(rows).set_index("name").rename_axis(None).to_string()] if rows else []
    return "\n".join([*table, *known_lines(estimates[0])])
