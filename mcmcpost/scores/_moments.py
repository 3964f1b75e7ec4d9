"""z-scores of "this series has mean zero", ESS-aware and corrected for skewness and few draws."""

import numpy as np
from jaxtyping import Float

from mcmcpost._blocks import in_blocks
from mcmcpost._mcse import mcse_mean


def z_zero_mean(series: Float[np.ndarray, "c n *k"], screen: float = 0.0) -> Float[np.ndarray, "*k"]:
    """Return the z-score of E[series] = 0 for each series.

    t = mean / se with se the larger of the ArviZ MCSE and sd/√(c·n), so that an estimated efficiency above one never
    raises a flag; see `normal_score` for the rest. A series whose |z| would be at most `screen` if its draws were
    independent passes whatever its ESS: its ESS is not computed, and that bound is returned.

    Parameters
    ----------
    series : (c, n, ...) chains, draws.
    screen : a threshold; zero computes every ESS.

    Returns
    -------
    (...) z-scores; NaN where it cannot be computed (fewer than four draws a chain, non-finite values), ±∞ for a
    constant that is not zero.
    """
    shape = series.shape[2:]
    columns = series.reshape(*series.shape[:2], -1)
    size = columns.shape[0] * columns.shape[1]
    parts = [_z(columns[..., some], screen) for some in in_blocks(columns.shape[-1], size)]
    return np.concatenate([np.zeros(0), *parts]).reshape(shape)


def _z(series: Float[np.ndarray, "c n k"], screen: float) -> Float[np.ndarray, " k"]:
    if series.shape[1] < 4:
        return np.full(series.shape[-1], np.nan)
    size = series.shape[0] * series.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):
        mean = series.mean((0, 1))
        centred = series - mean
        sd = centred.std((0, 1))
        unit = centred / np.where(sd > 0, sd, 1.0)
        skew = (unit**3).mean((0, 1))
        z = normal_score(mean, sd, skew, np.full(mean.shape, float(size)))
        slow = np.flatnonzero(~(np.abs(z) <= screen) & np.isfinite(z))
        if slow.size:
            ess = effective_size(series[..., slow], sd[slow])
            z[slow] = normal_score(mean[slow], sd[slow], skew[slow], ess)
    return z


def effective_size(series: Float[np.ndarray, "c n k"], sd: Float[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
    """Return the effective sample size for the mean of each series of standard deviation `sd`, at most c·n."""
    size = float(series.shape[0] * series.shape[1])
    error = mcse_mean(series)
    return np.minimum(np.where(error > 0, sd / np.where(error > 0, error, 1.0), np.sqrt(size)) ** 2, size)


def normal_score(
    mean: Float[np.ndarray, "*k"],
    sd: Float[np.ndarray, "*k"],
    skew: Float[np.ndarray, "*k"],
    ess: Float[np.ndarray, "*k"],
) -> Float[np.ndarray, "*k"]:
    """Return the standard normal equivalent of t = mean·√ess/sd.

    Two corrections keep short and skewed series from raising false alarms. With a = skew/√ess the monotone cubic
    t + a t²/3 + a² t³/27 + a/6 of Hall (1992, doi:10.1111/j.2517-6161.1992.tb01872.x) replaces t where it is smaller,
    but t is never multiplied by less than max(1/2, 1 − 10/√ess): far out the cubic is flat and would hide gross
    failures. Then Student's t with max(ess − 1, 1) degrees of freedom is mapped to a normal by Wallace's (1959) formula
    (8ν + 1)/(8ν + 3)·√(ν log(1 + t²/ν)), which does not underflow in the far tail.
    """
    rounding = 1e-13 * np.abs(mean)
    constant = sd <= rounding
    t = mean * np.sqrt(ess) / np.where(constant, 1.0, sd)
    a = skew / np.sqrt(ess)
    hall = t + a * t**2 / 3 + a**2 * t**3 / 27 + a / 6
    least = np.maximum(0.5, 1 - 10 / np.sqrt(ess))
    size = np.where(np.isfinite(hall), np.clip(np.abs(hall), least * np.abs(t), np.abs(t)), np.abs(t))
    nu = np.maximum(ess - 1.0, 1.0)
    z = (8 * nu + 1) / (8 * nu + 3) * np.sqrt(nu * np.log1p(size**2 / nu)) * np.sign(t)
    exact = np.where(mean == 0.0, 0.0, np.copysign(np.inf, mean))
    return np.where(constant & np.isfinite(mean), exact, z)
