"""Scores against the differences of a recorded log density between near draws."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.spatial import cKDTree
from scipy.stats import chi2

MOST_DRAWS = 2_000

NEIGHBOURS = (1, 4, 16, 64)
"""Ranks of the neighbours that a draw is paired with: the weights choose between near ones and rounding."""

LEVEL = 1e-6

LARGEST = 0.01
"""By how much the factor may differ from one, and the shift in white coordinates from zero."""

DOMINANT = 9.0
"""Wrong scores must explain so many times the squared misfit that third derivatives leave, which look alike to 4."""


class Misfit(NamedTuple):
    """How scores miss the differences of a log density.

    factor : the scores are too large by this factor.
    shift : (d,) and by these shifts, in units of one over the standard deviation.
    wrong : whether that is significant, large, and explains the misfit.
    known : whether neither is beyond `LARGEST`, and three standard errors of them are not either.
    """

    factor: float
    shift: Float[np.ndarray, " d"]
    wrong: bool
    known: bool


def misfit(
    draws: Float[np.ndarray, "m d"], scores: Float[np.ndarray, "m d"], log_density: Float[np.ndarray, " m"]
) -> Misfit | None:
    """Compare ℓ(y) − ℓ(x) with ½(s(x) + s(y))·(y − x) over near pairs of draws, which differ by O(|y − x|³).

    The differences of the two are regressed on the second and on y − x, with weights for errors of third order and for
    the rounding of ℓ. A log density of the other sign, as some programs record, is turned. Draws at which none was
    recorded (NaN, or an infinity) are left out.

    Returns
    -------
    None where there are too few different draws, for so many parameters, to tell.
    """
    rows = np.flatnonzero(np.isfinite(log_density))
    if not rows.size:
        return None
    kept = rows[np.linspace(0, len(rows) - 1, min(len(rows), MOST_DRAWS)).astype(int)]
    x, first = np.unique(draws[kept], axis=0, return_index=True)
    s, values = scores[kept][first], log_density[kept][first]
    m, d = x.shape
    with np.errstate(over="ignore"):
        sd, levels = x.std(axis=0), np.unique(values)
    if m < 10 * (d + 1) or len(levels) < 2 or not np.isfinite(sd).all():
        return None
    unit = (x - x.mean(axis=0)) / sd
    spread = np.linalg.cholesky(unit.T @ unit / m + 1e-12 * np.eye(d))
    z, t = np.linalg.solve(spread, unit.T).T, (s * sd) @ spread
    ranks = [rank for rank in NEIGHBOURS if rank < m]
    distance, other = (a[:, ranks].ravel() for a in cKDTree(z).query(z, k=ranks[-1] + 1))
    pairs, rows = np.unique(
        np.sort(np.c_[np.repeat(np.arange(m), len(ranks)), other], axis=1), axis=0, return_index=True
    )
    one, two = pairs.T
    cubic = np.maximum(distance[rows], 1e-12) ** 3
    step = z[two] - z[one]
    predicted = 0.5 * ((t[one] + t[two]) * step).sum(axis=1)
    found = values[two] - values[one]
    if np.median(np.abs(found + predicted) / cubic) < np.median(np.abs(found - predicted) / cubic):
        found = -found
    error = found - predicted
    # The smallest difference of a rounded density is its rounding, that of others is next to nothing.
    rounding = np.diff(levels).min() + 1e-13 * np.abs(levels).max()
    regressors = np.c_[predicted, step]
    weight = 1 / np.hypot(np.median(np.abs(error) / cubic) * cubic, rounding)
    for _ in range(5):
        coefficients = np.linalg.lstsq(regressors * weight[:, None], error * weight)[0]
        rest = error - regressors @ coefficients
        third = (rest**2 - rounding**2 / 6) / cubic**2  # the difference of two rounded numbers
        size = np.minimum(np.maximum(third, 0.0), 20 * np.median(np.abs(third))) @ cubic / cubic.sum()
        weight = 1 / np.hypot(np.sqrt(size) * cubic, rounding)
    influence = np.zeros((m, d + 1))
    np.add.at(influence, one, regressors * (rest * weight**2)[:, None])
    bread = np.linalg.pinv((regressors * weight[:, None]).T @ (regressors * weight[:, None]), hermitian=True)
    covariance = bread @ (influence.T @ influence) @ bread
    missed = np.abs(coefficients).max()
    explained = np.sum((regressors @ coefficients * weight) ** 2)
    significant = chi2.sf(coefficients @ np.linalg.pinv(covariance, hermitian=True) @ coefficients, d + 1) < LEVEL
    unsure = np.sqrt(np.maximum(np.diagonal(covariance), 0.0)).max()
    return Misfit(
        factor=1 / (1 + coefficients[0]),
        shift=np.linalg.solve(spread.T, -coefficients[1:]),
        wrong=bool(significant and missed > LARGEST and explained > DOMINANT * size * np.sum((cubic * weight) ** 2)),
        known=bool(max(missed, 3 * unsure) < LARGEST),
    )
