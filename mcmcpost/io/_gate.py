"""The score gate at the edge: raise, warn and record."""

import warnings
from typing import TYPE_CHECKING

from mcmcpost.io._convention import read_trace
from mcmcpost.scores import ScoreCheck, ScoreError, ScoreWarning, check_scores
from mcmcpost.trace import Trace

if TYPE_CHECKING:
    import xarray


def gate(trace: Trace, allow_bad_scores: bool = False) -> ScoreCheck:
    """Test the scores of `trace`; raise on an error, warn on a warning.

    Parameters
    ----------
    trace : draws and scores (c, n, d).
    allow_bad_scores : return an error instead of raising it.

    Returns
    -------
    ScoreCheck : see `gate_attrs` for what to record of it.

    Raises
    ------
    ScoreError : the scores are not finite or show a recognised mistake.
    """
    check = check_scores(trace)
    if check.verdict == "error" and not allow_bad_scores:
        cure = "" if check.pattern == "nonfinite" else " allow_bad_scores=True overrides."
        raise ScoreError(check.message + cure)
    if check.verdict == "warn":
        warnings.warn(check.message, ScoreWarning, stacklevel=3)
    return check


def gate_attrs(check: ScoreCheck) -> dict[str, str]:
    """Return the attrs that record `check`: an error that came this far was overridden."""
    verdict = "overridden" if check.verdict == "error" else check.verdict
    return {"score_check": verdict, "score_check_message": check.message}


def check_tree(tree: "xarray.DataTree", allow_bad_scores: bool = False) -> ScoreCheck:
    """Run the score gate on a stored tree; see `gate`."""
    return gate(read_trace(tree), allow_bad_scores)
