"""The command ``reduce``: expectations and quantiles of every quantity of a trace, as a table or a tree."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas

from mcmcpost._core.text import digits_of, significant
from mcmcpost.api.expectation import answer, answer_quantiles
from mcmcpost.api.question import pose
from mcmcpost.cli.edge import say
from mcmcpost.cli.progress import phase
from mcmcpost.cli.quantities import Asked, named_scalars, say_left_out
from mcmcpost.control import Estimate
from mcmcpost.io import posterior_variables

if TYPE_CHECKING:
    import xarray


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
    with phase("control variates"):
        estimates = [answer(question)]
    if probabilities is not None:
        with phase("quantiles"):
            estimates.append(answer_quantiles(question, probabilities))
    return estimates


def tree_with(tree: "xarray.DataTree", estimates: Sequence[Estimate]) -> "xarray.DataTree":
    """Return a new tree with the expectations and the quantiles beside the draws."""
    result = estimates[0].to_datatree(tree)
    for quantiles in estimates[1:]:
        result["control_variates_quantiles"] = quantiles.to_datatree()["control_variates"]
    return result


def estimates_text(estimates: Sequence[Estimate]) -> str:
    """Return one row for each quantity, every mean to the digits that its error supports."""
    table = pandas.concat([estimate.to_dataframe() for estimate in estimates])
    shown = pandas.DataFrame(
        {
            "mean": list(map(digits_of, table["mean"], table["mcse"])),
            "sd": [significant(x, 3) for x in table["sd"]],
            "mcse": [significant(x, 2) for x in table["mcse"]],
            "mean_cv": list(map(digits_of, table["mean_cv"], table["mcse_cv"])),
            "mcse_cv": [significant(x, 2) for x in table["mcse_cv"]],
            "gain": [significant(x, 3) for x in table["gain"]],
            "method": list(map(str, table["method"])),
            "status": list(map(str, table["status"])),
        },
        index=pandas.Index(list(table.index)),
    )
    return shown.to_string()
