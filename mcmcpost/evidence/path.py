"""The pooled estimate of the log evidence: which degree, which error, and whether the rungs overlap
at all.

The path is integrated by nested quadrature: Gauss–Legendre nodes and Kronrod's extension of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import eigh_tridiagonal

from mcmcpost.control import (
    MAX_DEGREE,
    NEED,
    SAFETY,
    PlainMean,
    SemiExact,
    ZeroVariance,
    participants,
    tail_inflation,
)
from mcmcpost.core.mcse import Weights, mcse_mean
from mcmcpost.evidence.ladder import Ladder
from mcmcpost.evidence.mbar import adjacent_overlap, stepping_stones
from mcmcpost.evidence.path_regression import (
    PENALTIES,
    Family,
    Mixtures,
    PathFit,
    PooledDraws,
    fit_path,
    plain_path,
    solve_mixtures,
)
from mcmcpost.stein import num_polynomial_features


class PathRule(NamedTuple):
    """A rule for ∫₀¹ μ(t) dt and one within it, which uses every second node.

    temperatures : (k,) nodes, k odd. weights, coarse : (k,) of the rule, and of the one within,
        zero elsewhere.
    """

    temperatures: Float[np.ndarray, " k"]
    weights: Float[np.ndarray, " k"]
    coarse: Float[np.ndarray, " k"]


def path_rule(num_nodes: int, power: float) -> PathRule:
    """Return Gauss–Legendre of `num_nodes` and its Kronrod extension for ∫₀¹ μ(s^a)·a s^(a−1) ds,
    with the power a.

    The extension has `num_nodes` + 1 further nodes, docs/mathematics.md section 3. The weights of
    each rule add up to one, to the last digit: a log likelihood of 1e6 has its constant in every
    node.
    """
    nodes, weights = kronrod(num_nodes)
    coarse = np.zeros_like(weights)
    # Kronrod's nodes interlace those of Gauss, which are every second one: both rules share all
    # evaluations.
    coarse[1::2] = np.polynomial.legendre.leggauss(num_nodes)[1]
    s = 0.5 * (nodes + 1.0)
    # dt/ds of docs/mathematics.md section 3, and the half that takes (−1, 1) to (0, 1).
    speed = 0.5 * power * s ** (power - 1.0)
    fine, within = speed * weights, speed * coarse
    return PathRule(s**power, fine / fine.sum(), within / within.sum())


def kronrod(n: int) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Return the 2n + 1 nodes on (−1, 1), increasing, and the weights of Kronrod's extension of n
    Gauss–Legendre nodes.

    The nodes are the eigenvalues of a Jacobi matrix, whose elements follow from those of the
    Legendre polynomials by Laurie's recursion; a weight is the squared first component of the
    eigenvector. The rule is exact to degree 3n + 1. Laurie (1997,
    doi:10.1090/S0025-5718-97-00861-2), whose diagonal is zero here by symmetry.
    """
    squares = _kronrod_recurrence(n)
    nodes, vectors = eigh_tridiagonal(np.zeros(2 * n + 1), np.sqrt(squares))
    return 0.5 * nodes, 2.0 * vectors[0] ** 2


def _kronrod_recurrence(n: int) -> Float[np.ndarray, " k"]:
    """Return the squared elements beside the diagonal of the Jacobi–Kronrod matrix on (−2, 2),
    where they tend to one.

    Gautschi's ``r_kronrod``, in which b[0] takes part as a factor alone.
    """
    k = np.arange(1, 2 * n + 1)
    b = np.concatenate([[1.0], 4.0 / (4.0 - 1.0 / k**2)])
    # The first 3n/2 coefficients are those of Legendre; Laurie's recursion fills the others in from
    # them.
    b[(3 * n + 1) // 2 + 1 :] = 0.0
    s, t = np.zeros((2, n // 2 + 2))
    t[1] = b[n + 1]
    for m in range(n - 1):
        total = 0.0
        for i in range((m + 1) // 2, -1, -1):
            total += b[i + n + 1] * s[i] - b[m - i] * s[i + 1]
            s[i + 1] = total
        s, t = t, s
    s[1:] = s[:-1].copy()
    # Second phase of the recursion, in which each odd step yields one more coefficient.
    for m in range(n - 1, 2 * n - 2):
        total = 0.0
        for i in range(m + 1 - n, (m - 1) // 2 + 1):
            j = n - 1 - (m - i)
            total += b[m - i] * s[j + 2] - b[i + n + 1] * s[j + 1]
            s[j + 1] = total
        if m % 2:
            b[(m + 1) // 2 + n + 1] = s[j + 1] / s[j + 2]
        s, t = t, s
    return b[1:]


NUM_NODES = 12
"""Gauss–Legendre nodes of a path from the prior; they are doubled where they are too few."""

REFERENCE_NODES = 8
"""Nodes of a path from a reference, likewise."""

MOST_NODES = 48
"""Nodes from which on they are not doubled."""

MANY_NODES = 200
"""Nodes that may be asked for, four times those of the automatic rule: 1,000 take a minute."""

SHARE_OF_ERROR = 1 / 3
"""Part of the Monte Carlo error up to which a discretisation error is small: it adds a twentieth to
their sum."""

ROUNDING = 1e-9
"""Part of the value, or of one nat, up to which it is small beside an exact control variate."""

NUM_BLOCKS = 24

ESS_PER_FEATURE = 3.0

MIN_OVERLAP = 0.03
"""Klimovich, Shirts and Mobley (2015, doi:10.1007/s10822-015-9840-9)."""

MIN_ESS = 10.0

NUM_LANDMARKS = 128

KERNEL_DEGREE = 3

MAX_WORK = 4e11
"""Multiplications that a path may take: about a minute of one core."""

FIRST_SHARE = 1 / 3
"""Part of them that the first nodes may take; then the nodes can be doubled once."""

FAR = 100.0
"""Ratio of discretisation error to its limit from which nodes are doubled twice at once: ten to
three hundred times less is what one doubling leaves (by hand)."""


class PooledPath(NamedTuple):
    """The log evidence from all draws of the ladder at once.

    value, mcse : ∫μ dt of the controlled path and its Monte Carlo standard error.
    start_error : the part of it that is the error of the share of prior draws at which the
        likelihood is not zero.
    discretisation_error : distance to the integral with every second node.
    degree, level, method : of the polynomial, zero for none; the column of `fit` that was chosen;
        and its name.
    temperatures : (k,) the quadrature nodes; `fit` has the path there.
    mixtures : MBAR, all draws first and then without each block. overlap : (t−1,) of neighbouring
        rungs.
    reason : why the pooled path is not to be used; empty if it can be used.
    info : the value and error of each method tried, and the smallest effective sample size and
        overlap.
    """

    value: float
    mcse: float
    start_error: float
    discretisation_error: float
    degree: int
    level: int
    method: str
    temperatures: Float[np.ndarray, " k"]
    fit: PathFit
    mixtures: Mixtures
    overlap: Float[np.ndarray, " t-1"]
    reason: str
    info: dict[str, Any]


class LastRung(NamedTuple):
    """Weights of the draws of the last rung of a ladder, and how many draws they are worth."""

    weights: Weights
    ess: float


def pool_rungs(ladder: Ladder, last: LastRung | None = None) -> tuple[PooledDraws, int]:
    """Return all draws in one row each, and the number of jackknife blocks: contiguous in a chain,
    rungs together.

    The order of a nested-sampling run is that of the likelihood: its blocks are draws at equal
    distances.
    """
    c, n, t = ladder.log_likelihood.shape
    per_chain = min(max(NUM_BLOCKS // c, 1), n)
    # Contiguous blocks follow the autocorrelation of a chain.
    nested = last is not None and last.weights.num_live is not None
    block = np.arange(n) % per_chain if nested else np.arange(n) * per_chain // n
    counts = np.ones((c, n, t))
    if last is not None:
        counts[:, :, -1] = last.weights.values * last.ess / (c * n)
    blocks = np.broadcast_to((np.arange(c)[:, None] * per_chain + block)[:, :, None], (c, n, t))
    # Where ℓ = −∞ the gradient may be NaN; such draws weigh nothing at t > 0, but 0 · NaN would
    # spoil every sum.
    known = np.isfinite(ladder.log_likelihood)[..., None]
    slopes = [
        np.where(known, gradient, 0.0).reshape(c * n * t, -1)
        for gradient in (ladder.gradient_log_likelihood, ladder.gradient_log_prior)
    ]
    return PooledDraws(
        points=ladder.draws.reshape(c * n * t, -1),
        log_likelihood=ladder.log_likelihood.reshape(-1),
        gradient_log_likelihood=slopes[0],
        gradient_log_prior=slopes[1],
        blocks=blocks.reshape(-1),
        members=_members(blocks.reshape(-1), c * per_chain),
        rungs=np.broadcast_to(np.arange(t), (c, n, t)).reshape(-1),
        counts=counts.reshape(-1),
    ), c * per_chain


def _members(blocks: Int[np.ndarray, " n"], num_blocks: int) -> Int[np.ndarray, "k l"]:
    """Return the rows of each block, filled up with n."""
    sizes = np.bincount(blocks, minlength=num_blocks)
    members = np.full((num_blocks, sizes.max()), len(blocks))
    members[np.arange(sizes.max()) < sizes[:, None]] = np.argsort(blocks, kind="stable")
    return members


def pooled_path(
    ladder: Ladder,
    *,
    degree: int | None = None,
    num_nodes: int | None = None,
    power: float | None = None,
    controlled: bool = True,
    kernel: bool = True,
    last: LastRung | None = None,
    prior: Float[np.ndarray, "c n"] | None = None,
) -> PooledPath:
    """Integrate the controlled mean log likelihood over the whole path, every draw serving every
    temperature.

    Parameters
    ----------
    degree : degree of the zero-variance control variate. By default the method with the smallest
        error is chosen: a degree with at least three effective draws for each feature at every
        temperature, up to eight in one dimension, six in two and three beyond; or such a degree of
        at most three with a kernel (semi-exact). The kernel is left out, and then the highest
        degree, where the path would take more than `MAX_WORK` multiplications. The smallest of
        several estimated errors is too small. The error of each method therefore includes the
        change of the value from the method below it, for polynomials times the ratio of their
        errors.
    num_nodes : of Gauss–Legendre, to which Kronrod's rule adds `num_nodes` + 1; the value is that
        of both, and its discretisation error the distance to the former. By default 12, and eight
        from a reference, doubled up to 48 until that error is below a third of the Monte Carlo
        error, as far as `MAX_WORK` allows.
    power : nodes are placed in t^(1/power), by default that of the ladder; one for a path that is
        nowhere steep.
    controlled : whether scores may be used. kernel : whether a method may have a kernel.
    last : weights of the draws of the last rung, where they are not equal.
    prior : log likelihoods at t = 0 where that rung was left out: the share of possible draws is of
        all of them.
    """
    levels = np.asarray(ladder.temperatures)
    pooled, num_blocks = pool_rungs(ladder, last)
    t = len(levels)
    # Not from the trapezoid: the mean log likelihood of the prior may be -1e10, or infinite.
    start = np.concatenate([[0.0], np.cumsum(stepping_stones(ladder))])
    mixtures = solve_mixtures(levels, pooled, start, num_blocks=num_blocks)
    sizes = np.bincount(pooled.rungs, pooled.counts, minlength=t)
    energies = mixtures.free_energies[0]
    # Overlap by the free energies of all draws; the deletions are for the jackknife only.
    overlap = np.asarray(
        adjacent_overlap(levels, pooled.log_likelihood, pooled.counts, sizes, energies)
    )

    options = _Options(degree, power or ladder.power, controlled, kernel, last)
    number = num_nodes or (NUM_NODES if ladder.reference is None else REFERENCE_NODES)
    integral = _integrate(ladder, pooled, mixtures, number, options, FIRST_SHARE * MAX_WORK)
    left = MAX_WORK - integral.work
    may_grow = num_nodes is None and not _reason(mixtures, overlap, integral.smallest_ess)
    # Each node is a fit of its own, so that they are added only where the quadrature is what limits
    # the answer, and never for a path that will be refused anyway.
    while may_grow and integral.too_coarse:
        # Work is counted in multiplications and not in seconds: a loaded machine must not change
        # the answer.
        most = min(MOST_NODES, int(left / integral.work * number))
        if 2 * number > most:
            break
        number = _more_nodes(integral, number, most, options.power, pooled, mixtures)
        integral = _integrate(ladder, pooled, mixtures, number, options, left)
        left -= integral.work
    if prior is None and levels[0] == 0.0:
        prior = ladder.log_likelihood[:, :, 0]
    start_value, start_error = (0.0, 0.0) if prior is None else _log_possible(prior)
    of_degree, _, label = _level(integral.family, integral.choice.level)
    return PooledPath(
        value=integral.value + start_value,
        mcse=float(np.hypot(integral.choice.error, start_error)),
        start_error=float(start_error),
        discretisation_error=integral.discretisation_error,
        degree=of_degree,
        level=integral.choice.level,
        method=label,
        temperatures=integral.temperatures,
        fit=integral.fit,
        mixtures=mixtures,
        overlap=overlap,
        reason=_reason(mixtures, overlap, integral.smallest_ess),
        info={
            "tried": integral.choice.tried,
            "smallest_ess": integral.smallest_ess,
            "smallest_overlap": float(overlap.min()),
            "num_nodes": number,
        },
    )


class _Options(NamedTuple):
    """Arguments of `pooled_path` that do not depend on the nodes."""

    degree: int | None
    power: float
    controlled: bool
    kernel: bool
    last: LastRung | None


class _Integral(NamedTuple):
    """The path with one number of nodes, the level of the family that was chosen, and the
    multiplications it took."""

    temperatures: Float[np.ndarray, " k"]
    family: Family
    fit: PathFit
    choice: "_Choice"
    smallest_ess: float
    discretisation_error: float
    work: float

    @property
    def value(self) -> float:
        return float(self.fit.integral[self.choice.level])

    @property
    def limit(self) -> float:
        """The discretisation error that is small beside the Monte Carlo error."""
        return max(SHARE_OF_ERROR * self.choice.error, ROUNDING * max(1.0, abs(self.value)))

    @property
    def too_coarse(self) -> bool:
        return self.discretisation_error > self.limit


def _integrate(
    ladder: Ladder,
    pooled: PooledDraws,
    mixtures: Mixtures,
    num_nodes: int,
    options: _Options,
    max_work: float,
) -> _Integral:
    nodes, weights, coarse = path_rule(num_nodes, options.power)
    family = Family(0)
    smallest = float(plain_path(nodes, pooled, mixtures).ess.min())
    num_draws, d = pooled.points.shape

    def work(family: Family) -> float:
        return len(nodes) * family.work(num_draws, d, len(pooled.members))

    if options.controlled and options.degree is not None:
        family = Family(options.degree)
    elif options.controlled:
        # Landmarks that are a large part of few draws would be interpolated.
        landmarks = min(NUM_LANDMARKS, num_draws // 4) if options.kernel else 0
        family = _family(d, smallest, landmarks, lambda family: work(family) <= max_work)
    fit = fit_path(nodes, weights, pooled, mixtures, family=family)
    choice = _choose_level(ladder, fit, family, options.degree, options.last)
    # Gauss minus Kronrod, about the error of Gauss alone: it is reported for the better rule, and
    # so is conservative.
    missed = abs(float((weights - coarse) @ fit.mean[:, choice.level]))
    return _Integral(nodes, family, fit, choice, smallest, missed, work(family))


def _more_nodes(
    integral: _Integral,
    number: int,
    most: int,
    power: float,
    pooled: PooledDraws,
    mixtures: Mixtures,
) -> int:
    """Return the number doubled, and again where the error is far off, or where the path without
    controls, which is as steep, is not resolved."""
    far = integral.discretisation_error > FAR * integral.limit
    while 2 * number <= most:
        number *= 2
        # The plain path costs next to nothing, and it is as steep as the controlled one.
        nodes, weights, coarse = path_rule(number, power)
        missed = abs((weights - coarse) @ plain_path(nodes, pooled, mixtures).mean)
        if not far and missed <= integral.limit:
            break
        far = False
    return number


class _Choice(NamedTuple):
    """The level of a family with the smallest error, that error, and what every level tried would
    report."""

    level: int
    error: float
    tried: dict[str, dict[str, float]]


def _choose_level(
    ladder: Ladder, fit: PathFit, family: Family, degree: int | None, last: LastRung | None
) -> _Choice:
    """Compare the levels by error; a `degree` that was asked for is taken where its error is
    finite."""
    errors = [path_error(ladder, fit, 0, last)]
    chosen, error, tried = 0, errors[0], {}
    for level in range(1, family.num_levels):
        _, before, label = _level(family, level)
        errors.append(path_error(ladder, fit, level, last))
        # The last change, times the ratio by which errors still shrink, estimates the next one. The
        # penalties of the kernel are no such series: the whole change counts.
        series = level <= family.degree and errors[before] > 0
        shrinking = min(1.0, errors[level] / errors[before]) if series else 1.0
        change = shrinking * float(fit.integral[level] - fit.integral[before])
        combined = float(np.hypot(errors[level], change))
        tried[label] = {"value": float(fit.integral[level]), "mcse": combined}
        if np.isfinite(combined) and (level == degree or combined * NEED < error):
            chosen, error = level, combined
    return _Choice(chosen, error, tried)


def _family(d: int, smallest_ess: float, landmarks: int, fits: Callable[[Family], bool]) -> Family:
    """Return the largest family that the draws allow, and the work too; degree one at least where
    the draws do."""
    degrees = range(_highest_degree(d, smallest_ess), 0, -1)
    families = (
        family
        for degree in degrees
        for family in (Family(degree, min(KERNEL_DEGREE, degree), landmarks), Family(degree))
        if landmarks or not family.kernel_degree
    )
    return next(filter(fits, families), Family(min(len(degrees), 1)))


def _level(family: Family, level: int) -> tuple[int, int, str]:
    """Return the degree of a level, the level below it, and its name."""
    if level == 0:
        return 0, 0, PlainMean().label
    if level <= family.degree:
        return level, level - 1, ZeroVariance(level).label
    first = level == family.degree + 1
    penalty = PENALTIES[level - family.degree - 1]
    name = f"{SemiExact(family.kernel_degree).label}, penalty {penalty:g}"
    return family.kernel_degree, family.kernel_degree if first else level - 1, name


def _highest_degree(d: int, smallest_ess: float) -> int:
    degrees = range(1, MAX_DEGREE.get(d, 3) + 1)
    return sum(
        smallest_ess >= ESS_PER_FEATURE * (num_polynomial_features(d, degree) + 1)
        for degree in degrees
    )


def path_error(ladder: Ladder, fit: PathFit, level: int, last: LastRung | None = None) -> float:
    """Return √(max(1.1·jackknife², held-out²)·√(m/3P)·(1 + 3/P) + (integral − held-out integral)²),
    as `total_error`.

    The held-out error is that of the series of influences, rungs added up draw by draw, so that it
    sees autocorrelation and rungs that moved together. P are the draws that participate in that
    series without controls. Weighted draws have the influence of their weighted mean, see
    `Weights.influence`.
    """
    c, n, _ = ladder.log_likelihood.shape
    parts = _influence(ladder, fit, [0, level])
    if last is not None:
        weights = last.weights.values[..., None]
        parts = np.stack(
            [*np.moveaxis(parts, 2, 0)[:-1], last.weights.influence(parts[:, :, -1] / weights)],
            axis=2,
        )
    influence = parts.sum(axis=2)
    deleted = fit.deleted[:, level]
    b = len(deleted)
    jackknife = (b - 1) / b * ((deleted - deleted.mean()) ** 2).sum()
    # Jackknife and held-out residuals: the first knows the free energies, weights and coefficients
    # that were refitted, the second the autocorrelation. With few blocks either may be too small by
    # chance.
    held_out = mcse_mean(influence[..., 1]) ** 2
    if last is not None:
        # The influences of weighted draws are very unequal, and the estimated error may lie below
        # that of independent ones.
        held_out = np.fmax(held_out, influence[..., 1].var() / (c * n))
    total = c * n if last is None else last.weights.ess
    inflation = tail_inflation(participants(influence[..., 0].reshape(-1, 1)), float(total))[0]
    gap = float(fit.integral[level] - fit.crossfit[level])
    return (
        float(np.sqrt(np.fmax(SAFETY * jackknife, held_out) * inflation + gap**2))
        if b > 1
        else np.nan
    )


def _influence(ladder: Ladder, fit: PathFit, levels: list[int]) -> Float[np.ndarray, "c n t g"]:
    c, n, t = ladder.log_likelihood.shape
    return c * n * fit.influence[:, levels].reshape(c, n, t, -1)


def path_influence(ladder: Ladder, path: PooledPath) -> Float[np.ndarray, "c n t"]:
    """Return the influence of every draw: the mean over some draws, summed over the rungs, is what
    they add to the value, to first order."""
    return _influence(ladder, path.fit, [path.level])[..., 0]


def _log_possible(prior: Float[np.ndarray, "c n"]) -> tuple[float, float]:
    """Return the log share of prior draws with positive likelihood, and its standard error.

    The path starts there: as t → 0 the power posterior becomes the prior, or the reference, *given*
    that the likelihood is positive.
    """
    share = (prior != -np.inf).mean()
    return float(np.log(share)), float(np.sqrt((1 - share) / (share * prior.size)))


def _reason(mixtures: Mixtures, overlap: np.ndarray, smallest_ess: float) -> str:
    if not mixtures.converged:
        return "the multistate Bennett equations did not converge"
    if not overlap.min() >= MIN_OVERLAP:
        where = int(np.argmin(overlap))
        return f"rungs {where} and {where + 1} overlap by {overlap.min():.3g}, below {MIN_OVERLAP}"
    if not smallest_ess >= MIN_ESS:
        return (
            f"the pooled draws count as {smallest_ess:.3g} somewhere along the path, below "
            f"{MIN_ESS:g}"
        )
    return ""
