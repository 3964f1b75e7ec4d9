"""z-scores of Stein's identity and of agreement between chains, and known mistakes in scores.

They are the statistics behind the score gate: each mistake has the repair that would undo it, and a
test of whether the repair succeeds.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import expit
from scipy.stats import f as f_distribution, t as student_t

from mcmcpost.core.arrays import in_blocks
from mcmcpost.core.mcse import MANY_CHAINS, mcse_mean, normal_scores


class Finding(NamedTuple):
    """Verdict, pattern and message of the score gate."""

    verdict: str
    pattern: str
    message: str


def z_zero_mean(
    series: Float[np.ndarray, "c n *k"], screen: float = 0.0
) -> Float[np.ndarray, "*k"]:
    """Return the z-score of E[series] = 0 for each series.

    t = mean / se with se the larger of the ArviZ MCSE and sd/√(c·n), so that an estimated
    efficiency above one never raises a flag; see `normal_score` for the rest. A series whose |z|
    would be at most `screen` if its draws were independent passes whatever its ESS: its ESS is not
    computed, and that bound is returned.

    Parameters
    ----------
    series : (c, n, ...) chains, draws.
    screen : a threshold; zero computes every ESS.

    Returns
    -------
    (...) z-scores; NaN where it cannot be computed (fewer than four draws a chain, non-finite
    values), ±∞ for a constant that is not zero.
    """
    shape = series.shape[2:]
    columns = series.reshape(*series.shape[:2], -1)
    size = columns.shape[0] * columns.shape[1]
    parts = [_z(columns[..., block], screen) for block in in_blocks(columns.shape[-1], size)]
    return np.concatenate([np.zeros(0), *parts]).reshape(shape)


def _z(series: Float[np.ndarray, "c n k"], screen: float) -> Float[np.ndarray, " k"]:
    if series.shape[1] < 4 and series.shape[0] < MANY_CHAINS:
        return np.full(series.shape[-1], np.nan)
    size = series.shape[0] * series.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):
        mean = series.mean((0, 1))
        centred = series - mean
        sd = centred.std((0, 1))
        unit = centred / np.where(sd > 0, sd, 1.0)
        skew = (unit**3).mean((0, 1))
        # With the size of independent draws first: it bounds |z|, and most series need no ESS.
        z = normal_score(mean, sd, skew, np.full(mean.shape, float(size)))
        slow = np.flatnonzero(~(np.abs(z) <= screen) & np.isfinite(z))
        if slow.size:
            ess = effective_size(series[..., slow], sd[slow])
            z[slow] = normal_score(mean[slow], sd[slow], skew[slow], ess)
    return z


def effective_size(
    series: Float[np.ndarray, "c n k"], sd: Float[np.ndarray, " k"]
) -> Float[np.ndarray, " k"]:
    """Return the effective sample size for the mean of each series of standard deviation `sd`, at
    most c·n."""
    size = float(series.shape[0] * series.shape[1])
    error = mcse_mean(series)
    # An estimate above c·n, of antithetic draws, would enlarge z and could raise a false alarm.
    return np.minimum(
        np.where(error > 0, sd / np.where(error > 0, error, 1.0), np.sqrt(size)) ** 2, size
    )


def normal_score(
    mean: Float[np.ndarray, "*k"],
    sd: Float[np.ndarray, "*k"],
    skew: Float[np.ndarray, "*k"],
    ess: Float[np.ndarray, "*k"],
) -> Float[np.ndarray, "*k"]:
    """Return the standard normal equivalent of t = mean·√ess/sd.

    Two corrections keep short and skewed series from raising false alarms. With a = skew/√ess the
    monotone cubic t + a t²/3 + a² t³/27 + a/6 of Hall (1992,
    doi:10.1111/j.2517-6161.1992.tb01872.x) replaces t where it is smaller, but t is never
    multiplied by less than max(1/2, 1 − 10/√ess): far out the cubic is flat and would hide gross
    failures. Then Student's t with max(ess − 1, 1) degrees of freedom is mapped to a normal by
    Wallace's (1959) formula (8ν + 1)/(8ν + 3)·√(ν log(1 + t²/ν)), which does not underflow in the
    far tail.
    """
    # Centring a constant leaves rounding of this size: divided by it, t would be any number.
    rounding = 1e-13 * np.abs(mean)
    constant = sd <= rounding
    t = mean * np.sqrt(ess) / np.where(constant, 1.0, sd)
    a = skew / np.sqrt(ess)
    hall = t + a * t**2 / 3 + a**2 * t**3 / 27 + a / 6
    least = np.maximum(0.5, 1 - 10 / np.sqrt(ess))
    # NaN and overflow of the cubic fall back on t itself, the larger of the two.
    size = np.where(
        np.isfinite(hall), np.clip(np.abs(hall), least * np.abs(t), np.abs(t)), np.abs(t)
    )
    nu = np.maximum(ess - 1.0, 1.0)
    z = (8 * nu + 1) / (8 * nu + 3) * np.sqrt(nu * np.log1p(size**2 / nu)) * np.sign(t)
    exact = np.where(mean == 0.0, 0.0, np.copysign(np.inf, mean))
    return np.where(constant & np.isfinite(mean), exact, z)


_ALL_PAIRS = 50

_PAIRS = _ALL_PAIRS**2


def tested_pairs(d: int) -> Bool[np.ndarray, "d d"]:
    """Return which pairs (i, j) are tested: all up to d = 50, else a band |i − j| (cyclic) of about
    2,500 pairs."""
    lag = (np.arange(d)[None, :] - np.arange(d)[:, None]) % d
    return lag < _num_lags(d)


def _num_lags(d: int) -> int:
    return d if d <= _ALL_PAIRS else max(1, _PAIRS // d)


def z_products(
    draws: Float[np.ndarray, "c n d"], scores: Float[np.ndarray, "c n d"], screen: float
) -> Float[np.ndarray, "d d"]:
    """Return the z-scores of E[(x_i − x̄_i) s_j] = −δ_ij; NaN for pairs that are not tested.

    The first three moments of every product series come from sums of products of powers of the
    columns, so memory is O(n·d + d²). They bound |z| from above (independent draws); only where the
    bound exceeds `screen` is the series formed and its ESS computed.
    """
    d, lags = draws.shape[-1], _num_lags(draws.shape[-1])
    size = draws.shape[0] * draws.shape[1]
    z = np.full((d, d), np.nan)
    if draws.shape[1] < 4:
        return z
    centre = draws.mean((0, 1))
    # In units of each column: cubes of products then neither overflow nor vanish.
    x_flat, s_flat = draws.reshape(size, d), scores.reshape(size, d)
    x_scale, s_scale = _root_mean_square(x_flat, centre), _root_mean_square(s_flat, np.zeros(d))
    one = np.broadcast_to(np.arange(d)[:, None], (d, lags))
    two = (one + np.arange(lags)) % d
    moments = np.zeros((3, d, lags))
    for block in in_blocks(size, d):
        x, s = (x_flat[block] - centre) / x_scale, s_flat[block] / s_scale
        # (x_i s_j)^k = x_i^k s_j^k: no series of products is formed.
        for power, moment in enumerate(moments, 1):
            moment += _by_lag(x**power, s**power, lags)
    first, second, third = moments / size
    sd = np.sqrt(np.maximum(second - first**2, 0.0))
    # The third central moment from raw ones; columns of unit size keep its cancellation harmless.
    skew = (third - 3 * first * second + 2 * first**3) / np.where(sd > 0, sd, 1.0) ** 3
    # −δ_ij in the units of the scaled columns.
    expected = (one == two) / (x_scale[one] * s_scale[two])
    z[one, two] = normal_score(first + expected, sd, skew, np.full(first.shape, float(size)))
    rows, columns = np.nonzero(np.abs(z) > screen)
    for block in in_blocks(len(rows), size):
        i, j = rows[block], columns[block]
        z[i, j] = z_zero_mean((draws[..., i] - centre[i]) * scores[..., j] + (i == j), screen)
    return z


def _by_lag(
    x: Float[np.ndarray, "n d"], s: Float[np.ndarray, "n d"], lags: int
) -> Float[np.ndarray, "d l"]:
    """Return the sums over rows of x_i s_j with j = i + lag, cyclic, for the first lags."""
    d = x.shape[1]
    # With all pairs wanted one GEMM has them; the band is read off it.
    if lags == d:
        return np.take_along_axis(x.T @ s, (np.arange(d)[:, None] + np.arange(d)) % d, axis=1)
    return np.stack(
        [np.einsum("ni,ni->i", x, np.roll(s, -lag, axis=1)) for lag in range(lags)], axis=1
    )


def _root_mean_square(
    columns: Float[np.ndarray, "n d"], centre: Float[np.ndarray, " d"]
) -> Float[np.ndarray, " d"]:
    """Return the size of each column about its centre, one for a column that is zero."""
    squares = np.zeros(columns.shape[1])
    for block in in_blocks(*columns.shape):
        squares += ((columns[block] - centre) ** 2).sum(0)
    return np.where(squares > 0, np.sqrt(squares / len(columns)), 1.0)


_RHAT = 1.05

_HALVES = 400
"""Half-chains whose effective sizes are computed, where R-hat is above the limit: a millisecond
each in ArviZ."""

_SHORT_HALF = 25
"""Draws of half a chain below which many chains are tested for a drift instead."""


def disagreeing(draws: Float[np.ndarray, "c n d"], level: float) -> Bool[np.ndarray, " d"]:
    """Return the coordinates whose chains, or whose first and second halves, disagree.

    The draws are replaced by the normal scores of their ranks and every chain is split in two
    (Vehtari et al. 2021, doi:10.1214/20-BA1221). A coordinate disagrees if its split R-hat exceeds
    1.05 and the variance of the half-chain means exceeds the mean squared MCSE of a half-chain by
    an F test at `level`, Bonferroni over the coordinates. R-hat alone exceeds any fixed limit by
    chance in a short trace. A coordinate that never moves disagrees.

    Chains of fewer than 50 draws may be shorter than their autocorrelation time and differ for
    that. Where there are at least 32 of them they are tested for a drift: whether the mean, or the
    mean square, of the normal scores changes from the first to the second halves by a t test over
    chains, at the same level.

    Parameters
    ----------
    draws : (c, n, d).
    level : probability of a false alarm over all coordinates.

    Returns
    -------
    (d,) False also where half a chain has fewer than four draws.
    """
    c, n, d = draws.shape
    parts = [_disagreeing(draws[..., block], level / d) for block in in_blocks(d, c * n)]
    return np.concatenate([np.zeros(0, bool), *parts])


def _disagreeing(draws: Float[np.ndarray, "c n d"], level: float) -> Bool[np.ndarray, " d"]:
    """Return which coordinates disagree at `level` each."""
    c, n, d = draws.shape
    stuck = np.ptp(draws, axis=(0, 1)) == 0
    half = n // 2
    drift = c >= MANY_CHAINS and half < _SHORT_HALF
    if half < (1 if drift else 4):
        return stuck
    normal = normal_scores(draws.reshape(-1, d).T).T.reshape(c, n, d)
    if drift:
        moments = np.stack([normal, normal**2])
        # An odd draw in the middle belongs to neither half.
        change = moments[:, :, n - half :].mean(2) - moments[:, :, :half].mean(2)
        error = change.std(1, ddof=1) / np.sqrt(c)
        # level/4: two sides and two moments.
        return stuck | (np.abs(change.mean(1)) > student_t.isf(level / 4, c - 1) * error).any(0)
    halves = np.concatenate([normal[:, :half], normal[:, n - half :]])
    means, sds = halves.mean(1), halves.std(1)
    tiny = np.finfo(float).tiny
    between = means.var(0, ddof=1)
    # R-hat is cheap: an ESS per half-chain is computed for those alone that it suspects.
    suspects = np.flatnonzero(np.sqrt(1 + between / np.maximum((sds**2).mean(0), tiny)) > _RHAT)
    if not suspects.size:
        return stuck
    few = np.linspace(0, len(halves) - 1, min(len(halves), _HALVES)).astype(int)
    sizes = np.stack(
        [effective_size(halves[i][None][..., suspects], sds[i, suspects]) for i in few]
    )
    within = np.maximum((sds[few][:, suspects] ** 2 / sizes).mean(0), tiny)
    # Each half-chain's variance is known to its effective size less one: degrees of freedom of F.
    degrees = np.maximum((sizes - 1).sum(0), 1)
    stuck[suspects] |= between[suspects] / within > f_distribution.isf(
        level, len(halves) - 1, degrees
    )
    return stuck


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
    "Add the log-Jacobian of the transformation to the log density before differentiating; "
    "attach_scores with the NumPyro model does."
)

_UNCONSTRAIN_SCORES = (
    "Differentiate the log density, log-Jacobian included, with respect to the unconstrained draw."
)

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
        "are those of the constrained positive parameter θ = exp x, while the draws are "
        "unconstrained",
        _UNCONSTRAIN_SCORES,
        _always,
        lambda x, s: (x, s * np.exp(x) + 1),
    ),
    Repair(
        "constrained",
        "are those of the constrained unit-interval parameter θ = σ(x), while the draws are "
        "unconstrained",
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


AS_GIVEN = Repair("", "", "", _always, lambda x, s: (x, s))


def z_repaired(draws: Column, scores: Column, repair: Repair) -> float:
    """Return the largest |z| of four Stein identities of the repaired scores; ∞ where the repair
    cannot apply.

    E[h′(x) + h(x) s] = 0 for h = 1, x − x̄ and the two local ones of `z_local`, whose products keep
    finite moments when a wrong repair has heavy tails.
    """
    if not repair.applies(draws):
        return np.inf
    # exp overflows where a repair is the wrong one; `_worst` then says infinity.
    with np.errstate(over="ignore", invalid="ignore"):
        x, s = repair.undo(draws, scores)
        product = (x - x.mean()) * s + 1
        tests = (s, product, *_local(x, s))
        # A product that could be anything confirms no repair, as that of exp x where x is large.
        if not product.std() < np.sqrt(product.size) / REPAIR_LIMIT:
            return np.inf
    return _worst(tests)


def given_others(draws: Float[np.ndarray, "c n d"]) -> Float[np.ndarray, "c n d"]:
    """Return each coordinate less its linear regression on the others, r = Σ⁻¹(x − x̄)/diag Σ⁻¹; x
    − x̄ of few draws.

    E[r_j s_j] = −1 as E[(x_j − x̄_j) s_j], but of a product with a standard deviation near 1.4
    however correlated the draws are, where the other's is √(1 + Σ_jj (Σ⁻¹)_jj) and hides a factor.
    """
    centred = draws - draws.mean((0, 1))
    c, n, d = draws.shape
    # The estimate of Σ⁻¹ has a bias of d/(c n), which must stay far below the error √(2/(c n)) of
    # slow chains too.
    if d == 1 or c * n < 40 * d**2:
        return centred
    flat = centred.reshape(-1, d)
    size = np.where(flat.std(0) > 0, flat.std(0), 1.0)
    spread = (flat / size).T @ (flat / size) / len(flat)
    if np.linalg.cond(spread) > 1e12:
        return centred
    precision = np.linalg.inv(spread)
    return (centred / size) @ (precision / np.diag(precision)) * size


def z_local(draws: Column, scores: Column) -> float:
    """Return the largest |z| of E[h′(x) + h(x) s] = 0 for h = b and b·y, the bump b = exp(−y²/2), y
    = (x − median)/MAD.

    Wrong scores fail these too; the right scores of chains that have not explored the tails mostly
    pass.
    """
    return float(np.abs(z_zero_mean(np.stack(_local(draws, scores), axis=-1))).max())


def _local(x: Column, s: Column) -> tuple[Column, Column]:
    median = np.median(x)
    # 1.4826 MAD is the standard deviation of a normal, and exists under heavy tails.
    scale = 1.4826 * np.median(np.abs(x - median))
    scale = scale if scale > 0 else 1.0
    y = (x - median) / scale
    bump = np.exp(-(y**2) / 2)
    return bump * (s - y / scale), bump * (y * s + (1 - y**2) / scale)


def z_bounded(draws: Column, scores: Column) -> float:
    """Return the smallest |z| of E[h′ + h s] = 0 over functions h that vanish at the ends of a
    bounded support.

    Half-lines from the smallest draw a, to the largest b, and the interval (a, b), each with two
    functions: h and h·exp(−h/h̄) on the half-lines, h and h·(x − (a + b)/2) on the interval.
    Infinite where the draws do not crowd at an end, which they do where a density stops.
    """
    low, high = draws - draws.min(), draws.max() - draws
    crowded = [np.quantile(h, 0.1) < _CROWDED * np.median(h) for h in (low, high)]
    candidates = []
    for h, slope, crowd in ((low, 1.0, crowded[0]), (high, -1.0, crowded[1])):
        if crowd:
            # h exp(−h/h̄) has the slope exp(−h/h̄)(1 − h/h̄) h′.
            ratio = h / h.mean()
            candidates.append(
                (h * scores + slope, np.exp(-ratio) * (h * scores + slope * (1 - ratio)))
            )
    if any(crowded):
        # h = (x − a)(b − x), h′ = (b − x) − (x − a), and x − (a + b)/2 = −h′/2.
        h, slope = low * high, high - low
        candidates.append((h * scores + slope, -slope / 2 * (h * scores + slope) + h))
    return min((_worst(pair) for pair in candidates), default=np.inf)


def _worst(tests: tuple[Column, ...]) -> float:
    """Return the largest |z| of the tests, or that of the first that fails: later ones cannot mend
    it."""
    worst = 0.0
    for series in tests:
        if not np.isfinite(series).all():
            return np.inf
        worst = max(worst, float(np.abs(z_zero_mean(series[..., None], REPAIR_LIMIT)[0])))
        if not worst <= REPAIR_LIMIT:
            return worst
    return worst
