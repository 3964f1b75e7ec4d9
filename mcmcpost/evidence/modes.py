"""A search for modes that no draw has visited, whose mass is missing from an evidence."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Float
from scipy.special import logsumexp
from scipy.stats import chi2

from mcmcpost.core.devices import host_generator
from mcmcpost.evidence.warp import Normal, fit_normal

NUM_STARTS = 32
"""Points from which the density is climbed, and rows of every block of gradients."""

DISTANCES = (3.0, 10.0, 30.0)
"""Standard deviations of the starts, in those of the draws, in turn: a mode at eight standard
deviations in each of d coordinates is met from the second in five dimensions, from the third in
twenty."""

STEPS = 40
"""Gradients of a climb at most: those that take longer are on ridges, or run away."""

SETTLED = 1e-2
"""Newton decrement, twice the distance in log density from the top, at which a climb ends."""

NEAR = 0.5
"""Standard deviations of the draws below which two ends of climbs are one mode."""

MOST_MODES = 8
"""Ends of climbs that are looked at, those of most climbs first: each takes `NUM_CHECKS`
densities."""

SHARE = 0.9
"""Probability of the ellipsoid about a mode in which draws are counted, were it normal."""

NUM_CHECKS = 256
"""Draws of the normal approximation of a mode by which the mass of its ellipsoid is estimated."""

TOO_FEW = 0.25
"""Share of the draws that an ellipsoid should have, below which it counts as not visited."""

LEAST_EXPECTED = 10.0
"""Effective draws that it should have: of fewer, none may be there by chance."""


class ModeSearch(NamedTuple):
    """What climbs of the density from far away have found beside the draws.

    num_starts : climbs. num_gradients : that they took.
    missed : mass of the largest mode that no draw has visited, relative to the mass that was found;
        zero if none was found. mode : (d,) where it is.
    """

    num_starts: int
    num_gradients: int
    missed: float
    mode: Float[np.ndarray, " d"]


def search_modes(
    draws: Float[np.ndarray, "n d"],
    names: tuple[str, ...],
    values: Callable[[Float[np.ndarray, "m d"]], Float[np.ndarray, " m"]],
    slopes: Callable[[Float[np.ndarray, "m d"]], Float[np.ndarray, "m d"]],
    *,
    log_z: float,
    error: float,
    ess: float,
    key: jax.Array,
) -> ModeSearch:
    """Climb log q from points far from the draws, and count the draws at the modes where climbs
    end.

    Draws and proposals are where chains were: a mode that no chain has visited shows in neither.
    About a mode of q, with the normal that has its curvature, the ellipsoid of probability `SHARE`
    has the posterior probability E_normal[q/normal; inside]/Z, which needs no draws. Far fewer
    draws in it have missed the mode.

    Parameters
    ----------
    draws : all of them, of equal weight. values, slopes : log q and its gradient.
    log_z, error : log evidence that was found from the draws, and its error: less mass is not
        looked for. ess : effective number of the draws.
    """
    d = draws.shape[1]
    normal = fit_normal("search_modes", draws, names)
    for_starts, for_origins, for_checks = jax.random.split(key, 3)
    scales = np.resize(DISTANCES, NUM_STARTS)[:, None]
    starts = scales * host_generator(for_starts).normal(size=(NUM_STARTS, d))
    z = normal.standardise(draws)
    chosen = host_generator(for_origins).integers(len(z), size=NUM_STARTS)

    blocks_done = 0

    def downhill(points: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "m d"]:
        """Return −∇log q in the coordinates z, in blocks of one size, which share a program."""
        nonlocal blocks_done
        blocks = -(-len(points) // NUM_STARTS)
        blocks_done += blocks
        rows = normal.restore(points[np.minimum(np.arange(blocks * NUM_STARTS), len(points) - 1)])
        blocks_of_slopes = [slopes(block) for block in np.split(rows, blocks)]
        return -np.concatenate(blocks_of_slopes)[: len(points)] @ normal.lower

    ends, settled = _climb(downhill, z[chosen], starts)
    modes = _different(ends[settled])[:MOST_MODES]
    search = ModeSearch(NUM_STARTS, 0, 0.0, np.full(d, np.nan))
    # Of several modes without draws the heaviest is told.
    for mode, k in zip(modes, jax.random.split(for_checks, MOST_MODES), strict=False):
        missed = _missed(mode, z, normal, values, downhill, log_z, k)
        if missed > max(error, LEAST_EXPECTED / ess, search.missed):
            search = search._replace(missed=missed, mode=normal.restore(mode[None])[0])
    return search._replace(num_gradients=blocks_done * NUM_STARTS)


def _climb(
    downhill: Callable[[np.ndarray], np.ndarray],
    origins: Float[np.ndarray, "m d"],
    jumps: Float[np.ndarray, "m d"],
) -> tuple[Float[np.ndarray, "m d"], Bool[np.ndarray, " m"]]:
    """Return where climbs from origin + jump end, and which of them ended at a stationary point.

    BFGS with a radius for each climb, by gradients alone: log q far out may be −∞, or not a number,
    where its gradient is not finite either, and steps there are shortened. All climbs take a step
    at once, so that a batch of gradients serves them; SciPy's minimisers climb one after the other.
    """
    m, d = origins.shape
    at, step = origins, jumps
    slope = downhill(at)
    inverse = np.tile(np.eye(d), (m, 1, 1))
    # The jump to the start is the first step, so that one that has no gradient is shortened until
    # it has. After it steps are one standard deviation, and twice the last one, at most.
    radius, jumped, scaled = np.ones(m), np.zeros(m, bool), np.zeros(m, bool)
    for _ in range(STEPS):
        there = at + step
        with np.errstate(all="ignore"):
            new = downhill(there)
        # A gradient of 1e200 has no norm in floats either.
        finite = (np.abs(new) < 1e100).all(axis=1)
        new = np.where(finite[:, None], new, 0.0)
        before, after = (slope * step).sum(axis=1), (new * step).sum(axis=1)
        # Past the top along the step by half of the slope before: back to the secant's zero. No
        # values are needed, which would double the evaluations.
        over = jumped & (after > 0.5 * np.abs(before))
        length = np.linalg.norm(step, axis=1)
        back = np.clip(np.abs(before) / np.maximum(np.abs(before) + after, 1e-300), 0.1, 0.9)
        taken = finite & ~over
        radius = np.where(
            ~finite, length / 4, np.where(over, back * length, np.maximum(radius, 2 * length))
        )
        radius = np.where(taken & ~jumped, 1.0, radius)
        inverse, scaled = _update(inverse, scaled, step, new - slope, jumped & finite)
        at = np.where(taken[:, None], there, at)
        slope = np.where(taken[:, None], new, slope)
        step = np.where(
            (jumped | taken)[:, None], -np.einsum("mij,mj->mi", inverse, slope), step / 4
        )
        jumped = jumped | taken
        decrement = -(slope * step).sum(axis=1)
        settled = jumped & scaled & (decrement < SETTLED)
        if settled.all():
            break
        size = np.linalg.norm(step, axis=1)
        shorter = np.where(jumped, np.minimum(1.0, radius / np.maximum(size, 1e-300)), 1.0)
        step = step * np.where(settled, 0.0, shorter)[:, None]
    return at, settled


def _update(
    inverse: Float[np.ndarray, "m d d"],
    scaled: Bool[np.ndarray, " m"],
    step: Float[np.ndarray, "m d"],
    change: Float[np.ndarray, "m d"],
    moved: Bool[np.ndarray, " m"],
) -> tuple[Float[np.ndarray, "m d d"], Bool[np.ndarray, " m"]]:
    """Return inverse Hessians after the BFGS update, where the curvature along the step is
    positive, and which have had one."""
    curvature = (step * change).sum(axis=1)
    size = np.linalg.norm(step, axis=1) * np.linalg.norm(change, axis=1)
    use = moved & (curvature > 1e-6 * size) & (size > 0)
    rho = np.where(use, 1.0 / np.where(use, curvature, 1.0), 0.0)
    squares = (change**2).sum(axis=1)
    first = use & ~scaled
    level = np.where(first, curvature / np.where(first, squares, 1.0), 1.0)
    inverse = inverse * level[:, None, None]
    left = np.eye(step.shape[1]) - rho[:, None, None] * step[:, :, None] * change[:, None, :]
    return left @ inverse @ left.transpose(0, 2, 1) + rho[:, None, None] * (
        step[:, :, None] * step[:, None, :]
    ), scaled | use


def _different(points: Float[np.ndarray, "m d"]) -> list[Float[np.ndarray, " d"]]:
    """Return one of each group of points that are near each other, the largest group first."""
    groups: list[list[np.ndarray]] = []
    for point in points:
        near = (g for g in groups if np.linalg.norm(g[0] - point) < NEAR)
        group = next(near, None)
        if group is None:
            groups.append([point])
        else:
            group.append(point)
    return [group[0] for group in sorted(groups, key=len, reverse=True)]


def _missed(
    mode: Float[np.ndarray, " d"],
    z: Float[np.ndarray, "n d"],
    normal: Normal,
    values: Callable[[np.ndarray], np.ndarray],
    downhill: Callable[[np.ndarray], np.ndarray],
    log_z: float,
    key: jax.Array,
) -> float:
    """Return the mass of a mode relative to the mass found, at least, if draws have missed it; zero
    otherwise."""
    d = len(mode)
    width = 1e-3 * np.eye(d)
    slopes = downhill(np.concatenate([mode + width, mode - width, mode[None]]))
    hessian = (slopes[:d] - slopes[d : 2 * d]) / 2e-3
    if not np.isfinite(hessian).all():
        return 0.0
    try:
        lower = np.linalg.cholesky((hessian + hessian.T) / 2)
    except np.linalg.LinAlgError:  # a saddle, or a ridge
        return 0.0
    top = mode - np.linalg.solve(hessian, slopes[-1])
    # 2 · log density below the top, were it normal.
    depths = (((z - top) @ lower) ** 2).sum(axis=1)
    edge = chi2.ppf(SHARE, d)
    standard = host_generator(key).normal(size=(NUM_CHECKS, d))
    inside = (standard**2).sum(axis=1) <= edge
    local = Normal(top, np.linalg.inv(lower).T)
    points = normal.restore(local.restore(standard[inside]))
    log_ratio = values(points) - (
        local.log_density(standard[inside]) - np.log(np.diagonal(normal.lower)).sum()
    )
    total = logsumexp(log_ratio)
    if not np.isfinite(total):
        return 0.0
    ratio = np.exp(log_ratio - total)
    # E[q/normal; inside] of `NUM_CHECKS` draws, and three of its standard errors below.
    spread = np.sqrt(max((ratio**2).sum() - 1.0 / NUM_CHECKS, 0.0))
    if 3 * spread >= 1:
        return 0.0
    share = np.exp(min(total - np.log(NUM_CHECKS) - log_z, 700.0)) * (1 - 3 * spread)
    visited = float((depths <= edge).mean())
    return float(share) if visited < TOO_FEW * min(share, 1.0) else 0.0
