"""Words of the score gate: lists of coordinates and the place of a bad value."""

import numpy as np
from jaxtyping import Bool

from mcmcpost.trace import Trace

_SHOWN = 5


def listed(names: tuple[str, ...], which: Bool[np.ndarray, " d"]) -> str:
    """Return the chosen names, the first five spelled out."""
    chosen = [name for name, keep in zip(names, which, strict=True) if keep]
    more = len(chosen) - _SHOWN
    return ", ".join(chosen[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def where_not_finite(trace: Trace) -> str:
    """Return the message for NaN or infinite scores: how many draws, the first place, the coordinates, the cure."""
    bad = ~np.isfinite(trace.scores)
    chain, draw, _ = np.argwhere(bad)[0]
    count = int(bad.any(-1).sum())
    return (
        f"Score gate: the scores are not finite at {count} of {bad[..., 0].size} draws (first at chain {chain}, draw"
        f" {draw}), in {listed(trace.names, bad.any((0, 1)))}: the log density or its gradient failed there, as a"
        " failed ODE solve does. Drop these draws, or compute the scores again with attach_scores (--model FILE.py)."
        ' Control variates need them finite: allow_bad_scores=True allows method="plain" only.'
    )
