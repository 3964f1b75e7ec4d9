"""The tests E[(x_i − x̄_i) s_j] = −δ_ij over all pairs, by matrix products and an ESS only where it can matter."""

import numpy as np
from jaxtyping import Bool, Float

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
    x = draws - draws.mean((0, 1))
    x_flat, x_scale = _unit(x.reshape(size, d))
    s_flat, s_scale = _unit(scores.reshape(size, d))
    scale = x_scale[:, None] * s_scale[None, :]
    first = x_flat.T @ s_flat / size
    second = (x_flat**2).T @ (s_flat**2) / size
    third = (x_flat**3).T @ (s_flat**3) / size
    sd = np.sqrt(np.maximum(second - first**2, 0.0))
    skew = (third - 3 * first * second + 2 * first**3) / np.where(sd > 0, sd, 1.0) ** 3
    z = normal_score(first + np.eye(d) / scale, sd, skew, np.full((d, d), float(size)))
    z[~tested_pairs(d)] = np.nan
    rows, columns = np.nonzero(np.abs(z) > screen)
    step = max(1, 64 * 2**20 // (8 * size))
    for k in range(0, len(rows), step):
        i, j = rows[k : k + step], columns[k : k + step]
        z[i, j] = z_zero_mean(x[..., i] * scores[..., j] + (i == j), screen)
    return z


def _unit(columns: Float[np.ndarray, "n d"]) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " d"]]:
    root = np.sqrt((columns**2).mean(0))
    scale = np.where(root > 0, root, 1.0)
    return columns / scale, scale
