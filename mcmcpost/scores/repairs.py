"""Known mistakes in scores, the repair that would undo each, and tests of whether the repair succeeds."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import expit

from mcmcpost.scores.identities import z_zero_mean

Column = Float[np.ndarray, "c n"]

REPAIR_LIMIT = 4.0

_CROWDED = 0.3


class Repair(NamedTuple):
    """One known mistake on one coordinate.

    pattern : name of the mistake.
    cause : clause that says what the scores are.
    cure : sentence that says what to pass instead.
    applies : draws → whether the mistake is conceivable for them.
    undo : (draws, scores) → the repaired pair.
    """

    pattern: str
    cause: str
    cure: str
    applies: Callable[[Column], bool]
    undo: Callable[[Column, Column], tuple[Column, Column]]


def _always(x: Column) -> bool:
    return x.size > 0


def _positive(x: Column) -> bool:
    return bool((x > 0).all())


def _in_unit(x: Column) -> bool:
    return bool(((x > 0) & (x < 1)).all())


def _slope(x: Column) -> Column:
    return expit(x) * expit(-x)


def _interval_jacobian(x: Column) -> Column:
    return 1 - 2 * expit(x)


_ADD_JACOBIAN = (
    "Add the log-Jacobian of the transformation to the log density before differentiating; attach_scores with the"
    " NumPyro model does."
)

_UNCONSTRAIN_SCORES = "Differentiate the log density, log-Jacobian included, with respect to the unconstrained draw."

_UNCONSTRAIN_DRAWS = "Store the unconstrained draws beside these scores."

REPAIRS = (
    Repair(
        "sign",
        "have the wrong sign",
        "Pass +∇ log density: NumPyro's z_grad is the gradient of the potential, so negate it.",
        _always,
        lambda x, s: (x, -s),
    ),
    Repair(
        "jacobian",
        "lack the log-Jacobian of a positive parameter (x = log θ)",
        _ADD_JACOBIAN,
        _always,
        lambda x, s: (x, s + 1),
    ),
    Repair(
        "jacobian",
        "lack the log-Jacobian of an interval parameter (x = logit θ)",
        _ADD_JACOBIAN,
        _always,
        lambda x, s: (x, s + _interval_jacobian(x)),
    ),
    Repair(
        "constrained",
        "are those of the constrained positive parameter θ = exp x, while the draws are unconstrained",
        _UNCONSTRAIN_SCORES,
        _always,
        lambda x, s: (x, s * np.exp(x) + 1),
    ),
    Repair(
        "constrained",
        "are those of the constrained unit-interval parameter θ = σ(x), while the draws are unconstrained",
        _UNCONSTRAIN_SCORES,
        _always,
        lambda x, s: (x, s * _slope(x) + _interval_jacobian(x)),
    ),
    Repair(
        "constrained",
        "are those of log θ while the draws are the positive θ itself",
        _UNCONSTRAIN_DRAWS,
        _positive,
        lambda x, s: (np.log(x), s),
    ),
    Repair(
        "constrained",
        "are those of logit θ while the draws are θ itself, in the unit interval",
        _UNCONSTRAIN_DRAWS,
        _in_unit,
        lambda x, s: (np.log(x) - np.log1p(-x), s),
    ),
)


def z_repaired(draws: Column, scores: Column, repair: Repair) -> float:
    """Return the largest |z| of four Stein identities of the repaired scores; ∞ where the repair cannot apply.

    E[h′(x) + h(x) s] = 0 for h = 1, x − x̄ and the two local ones of `z_local`, whose products keep finite moments
    when a wrong repair has heavy tails.
    """
    if not repair.applies(draws):
        return np.inf
    with np.errstate(over="ignore", invalid="ignore"):
        x, s = repair.undo(draws, scores)
        tests = (s, (x - x.mean()) * s + 1, *_local(x, s))
    return _worst(tests)


def z_local(draws: Column, scores: Column) -> float:
    """Return the largest |z| of E[h′(x) + h(x) s] = 0 for h = b and b·y, the bump b = exp(−y²/2), y = (x − median)/MAD.

    Wrong scores fail these too; the right scores of chains that have not explored the tails mostly pass.
    """
    return float(np.abs(z_zero_mean(np.stack(_local(draws, scores), axis=-1))).max())


def _local(x: Column, s: Column) -> tuple[Column, Column]:
    median = np.median(x)
    scale = 1.4826 * np.median(np.abs(x - median))
    scale = scale if scale > 0 else 1.0
    y = (x - median) / scale
    bump = np.exp(-(y**2) / 2)
    return bump * (s - y / scale), bump * (y * s + (1 - y**2) / scale)


def z_bounded(draws: Column, scores: Column) -> float:
    """Return the smallest |z| of E[h′ + h s] = 0 over functions h that vanish at the ends of a bounded support.

    Half-lines from the smallest draw a, to the largest b, and the interval (a, b), each with two functions: h and
    h·exp(−h/h̄) on the half-lines, h and h·(x − (a + b)/2) on the interval. Infinite where the draws do not crowd at
    an end, which they do where a density stops.
    """
    low, high = draws - draws.min(), draws.max() - draws
    crowded = [np.quantile(h, 0.1) < _CROWDED * np.median(h) for h in (low, high)]
    candidates = []
    for h, slope, crowd in ((low, 1.0, crowded[0]), (high, -1.0, crowded[1])):
        if crowd:
            ratio = h / h.mean()
            candidates.append((h * scores + slope, np.exp(-ratio) * (h * scores + slope * (1 - ratio))))
    if any(crowded):
        h, slope = low * high, high - low
        candidates.append((h * scores + slope, -slope / 2 * (h * scores + slope) + h))
    return min((_worst(pair) for pair in candidates), default=np.inf)


def _worst(tests: tuple[Column, ...]) -> float:
    """Return the largest |z| of the tests, or that of the first that fails: later ones cannot mend it."""
    worst = 0.0
    for series in tests:
        if not np.isfinite(series).all():
            return np.inf
        worst = max(worst, float(np.abs(z_zero_mean(series[..., None], REPAIR_LIMIT)[0])))
        if not worst <= REPAIR_LIMIT:
            return worst
    return worst
