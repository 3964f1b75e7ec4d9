"""Do the chains agree? A test on half-chains of normal scores of the ranks."""

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtri
from scipy.stats import f as f_distribution
from scipy.stats import rankdata

from mcmcpost._blocks import in_blocks
from mcmcpost.scores._moments import effective_size

_RHAT = 1.05


def disagreeing(draws: Float[np.ndarray, "c n d"], level: float) -> Bool[np.ndarray, " d"]:
    """Return the coordinates whose chains, or whose first and second halves, disagree.

    The draws are replaced by the normal scores of their ranks and every chain is split in two (Vehtari et al. 2021,
    doi:10.1214/20-BA1221). A coordinate disagrees if its split R-hat exceeds 1.05 and the variance of the half-chain
    means exceeds the mean squared MCSE of a half-chain by an F test at `level`, Bonferroni over the coordinates. R-hat
    alone exceeds any fixed limit by chance in a short trace. A coordinate that never moves disagrees.

    Parameters
    ----------
    draws : (c, n, d).
    level : probability of a false alarm over all coordinates.

    Returns
    -------
    (d,) False also where half a chain has fewer than four draws.
    """
    c, n, d = draws.shape
    parts = [_disagreeing(draws[..., some], level / d) for some in in_blocks(d, c * n)]
    return np.concatenate([np.zeros(0, bool), *parts])


def _disagreeing(draws: Float[np.ndarray, "c n d"], level: float) -> Bool[np.ndarray, " d"]:
    """Return which coordinates disagree at `level` each."""
    c, n, d = draws.shape
    stuck = np.ptp(draws, axis=(0, 1)) == 0
    half = n // 2
    if half < 4:
        return stuck
    ranks = np.apply_along_axis(rankdata, 0, draws.reshape(-1, d))
    normal = ndtri((ranks - 0.375) / (c * n + 0.25)).reshape(c, n, d)
    halves = np.concatenate([normal[:, :half], normal[:, n - half :]])
    means, sds = halves.mean(1), halves.std(1)
    sizes = np.stack([effective_size(part[None], sd) for part, sd in zip(halves, sds, strict=True)])
    between = means.var(0, ddof=1)
    within = np.maximum((sds**2 / sizes).mean(0), np.finfo(float).tiny)
    degrees = np.maximum((sizes - 1).sum(0), 1)
    significant = between / within > f_distribution.isf(level, len(halves) - 1, degrees)
    r_hat = np.sqrt(1 + between / np.maximum((sds**2).mean(0), np.finfo(float).tiny))
    return stuck | (significant & (r_hat > _RHAT))
