"""The tests E[(x_i − x̄_i) s_j] = −δ_ij over all pairs, by matrix products and an ESS only where it can matter."""

import numpy as np
from jaxtyping import Bool, Float

from mcmcpost._blocks import in_blocks
from mcmcpost.scores._moments import normal_score, z_zero_mean

_ALL_PAIRS = 50
_PAIRS = _ALL_PAIRS**2


def tested_pairs(d: int) -> Bool[np.ndarray, "d d"]:
    """Return which pairs (i, j) are tested: all up to d = 50, else a band |i − j| (cyclic) of about 2,500 pairs."""
    lag = (np.arange(d)[None, :] - np.arange(d)[:, None]) % d
    return lag < (d if d <= _ALL_PAIRS else max(1, _PAIRS // d))


def z_products(
    draws: Float[np.ndarray, "c n d"], scores: Float[np.ndarray, "c n d"], screen: float
) -> Float[np.ndarray, "d d"]:
    """Return the z-scores of E[(x_i − x̄_i) s_j] = −δ_ij; NaN for pairs that are not tested.

    The first three moments of every product series come from matrix products of powers of the columns, so memory is
    O(n·d + d²). They bound |z| from above (independent draws); only where the bound exceeds `screen` is the series
    formed and its ESS computed.
    """
    d = draws.shape[-1]
    size = draws.shape[0] * draws.shape[1]
    if draws.shape[1] < 4:
        return np.full((d, d), np.nan)
    centre = draws.mean((0, 1))
    x_flat, s_flat = draws.reshape(size, d), scores.reshape(size, d)
    x_scale, s_scale = _root_mean_square(x_flat, centre), _root_mean_square(s_flat, np.zeros(d))
    scale = x_scale[:, None] * s_scale[None, :]
    moments = np.zeros((3, d, d))
    for some in in_blocks(size, d):
        x, s = (x_flat[some] - centre) / x_scale, s_flat[some] / s_scale
        for power, moment in enumerate(moments, 1):
            moment += (x**power).T @ s**power
    first, second, third = moments / size
    sd = np.sqrt(np.maximum(second - first**2, 0.0))
    skew = (third - 3 * first * second + 2 * first**3) / np.where(sd > 0, sd, 1.0) ** 3
    z = normal_score(first + np.eye(d) / scale, sd, skew, np.full((d, d), float(size)))
    z[~tested_pairs(d)] = np.nan
    rows, columns = np.nonzero(np.abs(z) > screen)
    for some in in_blocks(len(rows), size):
        i, j = rows[some], columns[some]
        z[i, j] = z_zero_mean((draws[..., i] - centre[i]) * scores[..., j] + (i == j), screen)
    return z


def _root_mean_square(columns: Float[np.ndarray, "n d"], centre: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
    """Return the size of each column about its centre, one for a column that is zero."""
    squares = np.zeros(columns.shape[1])
    for some in in_blocks(*columns.shape):
        squares += ((columns[some] - centre) ** 2).sum(0)
    return np.where(squares > 0, np.sqrt(squares / len(columns)), 1.0)
