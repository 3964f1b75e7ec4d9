"""Scores computed after sampling, by whichever package, and whether they are of the density that was sampled."""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float

from mcmcpost._checks import fault
from mcmcpost.io._convention import GROUP
from mcmcpost.scores import ScoreError
from mcmcpost.trace import Trace

if TYPE_CHECKING:
    import xarray

RECORDED = ("lp", "logp")
"""Where samplers record log density, log-Jacobian included, up to a constant: ArviZ's schema and nutpie."""
_COMPARED = 200
_SHARE = 0.01
_ROUNDING = 100.0


class Scored(NamedTuple):
    """Draws with the scores that one log density has there.

    trace : draws and scores (c, n, d).
    logdensity : log density of unconstrained draws, (m, d) → (m,).
    versions : attrs that say what computed the scores.
    """

    trace: Trace
    logdensity: Callable[[Float[np.ndarray, "m d"]], Float[np.ndarray, " m"]]
    versions: dict[str, str]


def scored_one_by_one(
    draws: Float[np.ndarray, "c n d"],
    names: tuple[str, ...],
    logdensity: Callable[[np.ndarray], float],
    gradient: Callable[[np.ndarray], np.ndarray],
    versions: dict[str, str],
) -> Scored:
    """Return the scores of a density that knows one draw (d,) at a time; NaN where its value is not finite."""
    rows = draws.reshape(-1, draws.shape[-1])
    scores = np.full_like(rows, np.nan)
    for i, row in enumerate(rows):
        if np.isfinite(logdensity(row)):
            scores[i] = gradient(row)
    return Scored(
        Trace(draws, scores.reshape(draws.shape), names),
        lambda points: np.array([logdensity(point) for point in points], dtype=np.float64),
        versions,
    )


def check_agreement(where: str, tree: "xarray.DataTree", scored: Scored) -> None:
    """Refuse a log density that is not the one that the sampler recorded in ``sample_stats.lp`` or ``logp``.

    The two may differ by a constant. At up to 200 draws the range of the difference must stay below a hundredth of the
    recorded standard deviation, or of one, beyond rounding in the recorded precision. Draws at which the density is not
    finite have scores that are not, and are left to the gate.

    Parameters
    ----------
    where : the public function that speaks in the error message.
    tree : the trace; without such a record nothing is tested.
    scored : its draws, in the same order, and the log density.

    Raises
    ------
    ScoreError : they differ by more than a constant.
    """
    stats = tree.children.get(GROUP)
    lead = scored.trace.draws.shape[:2]
    for name in RECORDED:
        if stats is None or name not in stats.data_vars or set(stats[name].dims) != {"chain", "draw"}:
            continue
        recorded = stats[name].transpose("chain", "draw").values
        if recorded.shape == lead and recorded.dtype.kind == "f" and np.isfinite(recorded).all():
            _compare(where, name, recorded, scored)


def _compare(where: str, name: str, recorded: np.ndarray, scored: Scored) -> None:
    flat = recorded.reshape(-1)
    chosen = np.unique(np.linspace(0, len(flat) - 1, _COMPARED).astype(int))
    values = scored.logdensity(scored.trace.draws.reshape(len(flat), -1)[chosen])
    difference = (values - flat[chosen].astype(np.float64))[np.isfinite(values)]
    if not difference.size:
        return
    rounding = _ROUNDING * float(np.finfo(recorded.dtype).eps) * float(np.abs(flat).max())
    allowed = _SHARE * max(1.0, float(flat.std(dtype=np.float64))) + rounding
    low, high = float(difference.min()), float(difference.max())
    if high - low > allowed:
        raise ScoreError(
            fault(
                where,
                f"a log density that differs from the recorded `{GROUP}.{name}` by a constant",
                f"differences from {low:.4g} to {high:.4g}",
                "Pass the model, the prior and the data that were sampled, log-Jacobian included."
                " allow_bad_scores=True overrides.",
            )
        )
