"""The score gate: do these scores belong to these draws?"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtri

from mcmcpost.scores._convergence import disagreeing
from mcmcpost.scores._diagnose import Finding, diagnose
from mcmcpost.scores._moments import z_zero_mean
from mcmcpost.scores._products import tested_pairs, z_products
from mcmcpost.scores._text import listed, where_not_finite
from mcmcpost.trace import Trace, moving, without_fixed

LEVEL = 1e-4


class ScoreError(ValueError):
    """The scores cannot be those of the draws."""


class ScoreWarning(UserWarning):
    """The scores, or the draws, look wrong in a way that is not recognised with certainty."""


class ScoreCheck(NamedTuple):
    """What the score gate found.

    verdict : "pass", "warn" or "error".
    pattern : None, "nonfinite", "sign", "jacobian", "constrained", "order", "scale", "constant", "boundary",
        "not_converged", "too_few_draws" or "unknown".
    message : one sentence with the cause, the coordinates and the cure; empty for a pass.
    z_mean : (d,) normal equivalents of the tests of E[s] = 0; NaN where not tested.
    z_product : (d, d) the same for E[(x_i − x̄_i) s_j] = −δ_ij; NaN where not tested.
    threshold : largest |z| that passes.
    """

    verdict: str
    pattern: str | None
    message: str
    z_mean: Float[np.ndarray, " d"]
    z_product: Float[np.ndarray, "d d"]
    threshold: float


def check_scores(trace: Trace) -> ScoreCheck:
    """Test that the scores of `trace` are those of its draws.

    E[s] = 0 and E[(x_i − x̄_i) s_j] = −δ_ij, with ESS-aware errors and a Bonferroni threshold at level 1e-4 over all
    the tests. Coordinates that fail are repaired in every way that is known to go wrong: a repair that passes names
    the mistake. |z| below the threshold is an upper bound (that of independent draws). Above d = 50 only pairs in a
    cyclic band |i − j| of about 2,500 are tested, the diagonal always. Coordinates that never move, where
    others do, are not tested.

    Parameters
    ----------
    trace : draws and scores (c, n, d).

    Returns
    -------
    ScoreCheck : non-finite scores and recognised mistakes are errors; constant scores, bounded supports, chains that
        disagree and failures that are not recognised are warnings.
    """
    d = trace.draws.shape[-1]
    threshold = float(-ndtri(LEVEL / (2 * (d + tested_pairs(d).sum()))))
    empty = ScoreCheck("pass", None, "", np.full(d, np.nan), np.full((d, d), np.nan), threshold)
    finite = np.isfinite(trace.scores).all((0, 1))
    if not finite.all():
        return empty._replace(verdict="error", pattern="nonfinite", message=where_not_finite(trace))
    moves = moving(trace.draws)
    if not moves.all():
        part = check_scores(without_fixed(trace))
        empty.z_mean[moves] = part.z_mean
        empty.z_product[np.ix_(moves, moves)] = part.z_product
        return part._replace(z_mean=empty.z_mean, z_product=empty.z_product)
    if trace.draws.shape[1] < 4:
        text = (
            f"Score gate: {trace.draws.shape[1]} draws a chain are too few to test the scores; at least 4 are needed,"
            " so nothing is known about them."
        )
        return empty._replace(verdict="warn", pattern="too_few_draws", message=text)
    z_mean = z_zero_mean(trace.scores, threshold)
    z_product = z_products(trace.draws, trace.scores, threshold)
    check = empty._replace(z_mean=z_mean, z_product=z_product)
    apart = disagreeing(trace.draws, LEVEL)
    if _failing(z_mean, z_product, threshold).any():
        finding = diagnose(trace, z_mean, z_product, threshold, apart)
    elif apart.any():
        finding = _not_converged(trace, apart)
    else:
        return check
    return check._replace(**finding._asdict())


def _failing(
    z_mean: Float[np.ndarray, " d"], z_product: Float[np.ndarray, "d d"], threshold: float
) -> Bool[np.ndarray, " d"]:
    return (np.abs(z_mean) > threshold) | (np.abs(z_product) > threshold).any(0)


def _not_converged(trace: Trace, apart: Bool[np.ndarray, " d"]) -> Finding:
    text = (
        f"Score gate: the chains disagree on {listed(trace.names, apart)}, although the scores pass: not converged, so"
        " averages over these draws are not posterior expectations; run longer or reparameterise."
    )
    return Finding("warn", "not_converged", text)
