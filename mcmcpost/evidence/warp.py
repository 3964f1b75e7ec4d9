"""Densities fitted to draws: a normal, and a normal that is bent where the draws say that it must
be.

The normal is the proposal of a bridge, the reference of a ladder and the Laplace approximation. The
bent one is a map from a standard normal.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import solve_triangular
from scipy.optimize import minimize

from mcmcpost.core.errors import InputError


class Normal(NamedTuple):
    """N(mean, lower lowerᵀ) on the unconstrained space.

    mean : (d,). lower : (d, d), lower triangular.
    """

    mean: Float[np.ndarray, " d"]
    lower: Float[np.ndarray, "d d"]

    def standardise(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return z = lower⁻¹(x − mean)."""
        return solve_triangular(self.lower, (points - self.mean).T, lower=True).T

    def restore(self, standard: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return x = mean + lower z."""
        return self.mean + standard @ self.lower.T

    def ordered(self, order: Int[np.ndarray, " d"]) -> "Normal":
        """Return the normal of the coordinates in another order."""
        return Normal(self.mean[order], _triangular(self.lower[order]))

    def log_density(self, standard: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Return log N(x) at x = mean + lower z."""
        constant = 0.5 * len(self.mean) * np.log(2 * np.pi) + np.log(np.diagonal(self.lower)).sum()
        return -0.5 * (standard**2).sum(axis=1) - constant


def fit_normal(where: str, points: Float[np.ndarray, "n d"], names: tuple[str, ...]) -> Normal:
    """Return the normal with the mean and covariance of the points.

    Raises
    ------
    ValueError : a coordinate is constant or a combination of those before it; the message names it.
    """
    mean, spread = points.mean(axis=0), points.std(axis=0, ddof=1)
    floor = 1e3 * np.finfo(float).eps
    # Relative to the size of the coordinate: a constant 1e8 has a spread of rounding.
    flat = np.flatnonzero(spread <= floor * np.abs(points).max(axis=0))
    cure = "Keep it out of the draws, or fix it in the log density."
    if len(flat):
        text = f"the constant {', '.join(names[i] for i in flat)}"
        raise InputError(where, "coordinates that vary", text, cure)
    correlation = np.atleast_2d(np.corrcoef(points.T))
    lower = np.zeros_like(correlation)
    # Row by row in place of a library's Cholesky, so that the coordinate that depends on those
    # before it can be named.
    for i in range(len(mean)):
        lower[i, :i] = solve_triangular(lower[:i, :i], correlation[:i, i], lower=True) if i else 0.0
        pivot = correlation[i, i] - (lower[i, :i] ** 2).sum()
        if pivot <= floor * len(mean):
            text = f"{names[i]}, a linear combination of {', '.join(names[:i])}"
            raise InputError(
                where, "draws of a density, with a covariance of full rank", text, cure
            )
        lower[i, i] = np.sqrt(pivot)
    return Normal(mean, spread[:, None] * lower)


def _triangular(root: Float[np.ndarray, "d d"]) -> Float[np.ndarray, "d d"]:
    """Return the lower triangular factor of root rootᵀ with a positive diagonal."""
    lower = np.linalg.qr(root.T, mode="r").T
    return lower * np.where(np.diagonal(lower) < 0, -1.0, 1.0)


def control_normal(
    normal: Normal, points: Float[np.ndarray, "n d"], scores: Float[np.ndarray, "n d"]
) -> Normal:
    """Return the normal of some points with a mean and a covariance that their scores control.

    Where z has the covariance I at the points, the scores of a normal density are −P(z − m): their
    regression on the points has no error, and the covariance of n points that of d(d + 3)/2
    numbers. Of any density P has the same limit as the inverse covariance of z, since E[s zᵀ] = −I
    (Mira, Solgi and Imparato 2013, doi:10.1007/s11222-012-9344-6, the controls of degree one).

    normal : of the points, by `fit_normal`.
    """
    n, d = points.shape
    z, pulled = normal.standardise(points), scores @ normal.lower
    mean_score = pulled.mean(axis=0)
    precision = -(z.T @ (pulled - mean_score)) / (n - 1)
    values, vectors = np.linalg.eigh((precision + precision.T) / 2)
    # The covariance of n normal points is at least (1 − √(d/n))² of the true one in any direction,
    # and so is the true precision of z. Half of that, since draws are neither normal nor
    # independent; what is below it comes of scores that are no linear functions.
    least = max((1 - np.sqrt(min(d / n, 1.0))) ** 2 / 2, LEAST_PRECISION)
    values = np.maximum(values, least)
    mean = vectors @ ((mean_score @ vectors) / values)
    root = normal.lower @ (vectors / np.sqrt(values))
    return Normal(normal.restore(mean[None])[0], _triangular(root))


LEAST_PRECISION = 0.01
"""The same where there are hardly more draws than coordinates: a direction ten times as wide as the
draws say is no estimate but a division by noise."""


def likelier(
    normal: Normal, known: Normal | None, points: Float[np.ndarray, "n d"], ess: float
) -> Normal:
    """Return the normal fitted to the points, or a `known` one unless the first is nearer to their
    density.

    The mean log density at the points themselves is for the first too large, and that at others of
    the same density too small: by 2p/(2(n − d − 2)) together, of n independent normal ones, p = d(d
    + 3)/2 its parameters; and beside it stand three standard deviations of chance.
    """
    if known is None:
        return normal
    fitted, other = (one.log_density(one.standardise(points)).mean() for one in (normal, known))
    # Chains that turn back are worth more draws than they have, but of means alone.
    n, d = min(ess, len(points)), points.shape[1]
    twice = d * (d + 3)
    enough = n > d + 2 and fitted - other > (twice + 3 * np.sqrt(twice)) / (2 * (n - d - 2))
    return normal if enough else known


REACH = 3.0
"""Bound on the logarithm of the factor by which a scale may change with the coordinates before
it."""

ROUNDS = 3
"""How often terms are looked for, each time in what those before have left."""

STEPS, STILL = 10, 1e-3
"""Steps of Fisher scoring for the coefficients of one coordinate, at most, and the change of every
draw's log scale at which they end: any map will do, and the bridge corrects what it has left."""

DRAWS_PER_TERM = 20.0

EXTRA = 4.0
"""What twice the log likelihood must gain for a term, beside the allowance for the number of terms
looked at."""

LIGHT = 0.25
"""Least variance of the product of a series and a feature, in those of both, that is looked for."""

SINGULAR = 1e-12
"""Least share of the variance of a coordinate that another leaves."""

SHAPES = ((-3.0, 3.0), (-0.9, 0.9))
"""Bounds on the skewness and on the logarithm of the tail weight of a coordinate."""


class Warp(NamedTuple):
    """An invertible map z ↦ x, under which standard normal z have a density in closed form.

    x in the order of the map is mean + lower w, and w_k = a_k + b_k sinh((asinh z_k + ε_k)/δ_k),
    sinh–arcsinh normal, moved and scaled by the coordinates before it: w_k ← F·shift_k + exp(R
    tanh(F·scale_k/R)) w_k, with F the features z_i, z_i² − 1 and z_i z_j, i < j < k. Without
    features and with ε = 0, δ = 1 it is the normal itself.

    normal : mean and lower triangular factor of the coordinates in `order`.
    order : (d,) which coordinate comes k-th.
    features : (q, 2) the pairs (i, j), i ≤ j, of each feature; (i, d) is z_i itself.
    shift, scale : (d, q) coefficients, zero unless both coordinates of the feature come before.
    shape : (4, d) a, b, ε and δ.

    Source: Jones and Pewsey (2009, doi:10.1093/biomet/asp053) for the margins, Rosenblatt (1952,
    doi:10.1214/aoms/1177729394) for triangular maps, Meng and Schilling (2002,
    doi:10.1198/106186002457) for warps.
    """

    normal: Normal
    order: Int[np.ndarray, " d"]
    features: Int[np.ndarray, "q 2"]
    shift: Float[np.ndarray, "d q"]
    scale: Float[np.ndarray, "d q"]
    shape: Float[np.ndarray, "4 d"]

    @property
    def num_fitted(self) -> int:
        """The number of parameters that were fitted."""
        d = len(self.order)
        bent = int(((self.shape[2] != 0) | (self.shape[3] != 1)).sum())
        return (
            d * (d + 3) // 2
            + int(np.count_nonzero(self.shift) + np.count_nonzero(self.scale))
            + 2 * bent
        )

    def restore(self, standard: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return x of z."""
        features = _features(standard, self.features)
        moved = features @ self.shift.T + np.exp(self._log_scale(features)) * _stretch(
            standard, self.shape
        )
        points = np.empty_like(moved)
        points[:, self.order] = self.normal.restore(moved)
        return points

    def standardise(self, points: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n d"]:
        """Return z of x, one coordinate after the other."""
        moved = self.normal.standardise(points[:, self.order])
        standard = np.zeros_like(moved)
        # Triangular: the k-th coordinate needs z of those before it only, so that each inverse is
        # in closed form.
        for k in range(len(self.order)):
            used = np.flatnonzero((self.shift[k] != 0) | (self.scale[k] != 0))
            features = _features(standard, self.features[used])
            residual = moved[:, k] - features @ self.shift[k, used]
            standard[:, k] = _unstretch(
                residual / np.exp(_bounded(features @ self.scale[k, used])), self.shape[:, k]
            )
        return standard

    def log_density(self, standard: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " n"]:
        """Return the log density of x at x = x(z)."""
        scales = self._log_scale(_features(standard, self.features))
        return self.normal.log_density(standard) - (
            scales + np.log(_slope(standard, self.shape))
        ).sum(axis=1)

    def pull(
        self, standard: Float[np.ndarray, "n d"], scores: Float[np.ndarray, "n d"]
    ) -> Float[np.ndarray, "n d"]:
        """Return the score with respect to z, log-Jacobian included, of a density whose score at
        x(z) is `scores`."""
        z, (_, _, epsilon, delta) = standard, self.shape
        features = _features(z, self.features)
        logs = self._log_scale(features)
        at_moved = scores[:, self.order] @ self.normal.lower
        stretched = at_moved * np.exp(logs)
        # Derivative in the log scale: of log q along the stretched coordinate, and one from the
        # log-Jacobian; the last factor is d tanh of the bound.
        by_scale = (stretched * _stretch(z, self.shape) + 1.0) * (1.0 - (logs / REACH) ** 2)
        by_feature = at_moved @ self.shift + by_scale @ self.scale
        root = np.sqrt(1.0 + z**2)
        # The second term and the one subtracted below are the derivative of log slope, cosh and
        # 1/√(1 + z²) in turn.
        pulled = stretched * _slope(z, self.shape) + np.tanh((np.arcsinh(z) + epsilon) / delta) / (
            delta * root
        )
        pulled -= z / root**2
        d = len(self.order)
        for column, (i, j) in zip(by_feature.T, self.features, strict=True):
            pulled[:, i] += column * (z[:, j] if j < d else 1.0)
            if j < d:
                pulled[:, j] += column * z[:, i]
        return pulled

    def _log_scale(self, features: Float[np.ndarray, "n q"]) -> Float[np.ndarray, "n d"]:
        return _bounded(features @ self.scale.T)


def as_warp(normal: Normal) -> Warp:
    """Return a normal as a map that bends nothing."""
    d = len(normal.mean)
    none = np.zeros((d, 0))
    return Warp(normal, np.arange(d), np.zeros((0, 2), int), none, none, _straight(d))


def fit_warp(
    where: str,
    points: Float[np.ndarray, "n d"],
    names: tuple[str, ...],
    ess: float,
    known: Normal | None = None,
) -> Warp:
    """Fit a map to the points: the normal, and beyond it the terms that their number makes
    significant.

    In the order in which the coordinates explain each other best, the mean and the log scale of
    each are regressed on features of those before it, by maximum likelihood, and the margin of what
    is left is made sinh–arcsinh normal. A term is taken if twice the log likelihood of `ess`
    independent draws gains more than 2 log(terms looked at) + 4.

    Parameters
    ----------
    ess : how many independent draws the points are worth. known : a normal that is taken in place
        of theirs where that is not `likelier`.

    Raises
    ------
    ValueError : a coordinate is constant or a combination of those before it; the message names it.
    """
    n, d = points.shape
    share = min(ess / n, 1.0)
    # About d³ terms are looked at, so that the largest of as many χ² of noise is near 2 log d³. The
    # n draws count for ess, so that a gain of n autocorrelated ones is too large by n/ess.
    limit = (2.0 * np.log(max(d**3, 1)) + EXTRA) / share
    # which names a constant coordinate in the order that was given
    fit_normal(where, points, names)
    order = _order(points, limit)
    normal = likelier(
        fit_normal(where, points[:, order], tuple(names[i] for i in order)),
        None if known is None else known.ordered(order),
        points[:, order],
        ess,
    )
    moved, standard = normal.standardise(points[:, order]), np.zeros((n, d))
    fitted: list[_Terms] = []
    shape = _straight(d)
    for k in range(d):
        terms, residual = _regress(
            moved[:, k], standard[:, :k], limit, max(int(ess / DRAWS_PER_TERM), 0)
        )
        shape[:, k] = _fit_margin(residual, (2.0 * np.log(d) + 2 * EXTRA) / share)
        standard[:, k] = _unstretch(residual, shape[:, k])
        fitted.append(terms)
    pairs = sorted({pair for terms in fitted for pair in (*terms.shift, *terms.scale)})
    shift, scale = (
        np.array(
            [[getattr(terms, kind).get(pair, 0.0) for pair in pairs] for terms in fitted]
        ).reshape(d, len(pairs))
        for kind in ("shift", "scale")
    )
    features = np.array([(i, d if j < 0 else j) for i, j in pairs], int).reshape(-1, 2)
    return Warp(normal, order, features, shift, scale, shape)


def _straight(d: int) -> Float[np.ndarray, "4 d"]:
    return np.tile([[0.0], [1.0], [0.0], [1.0]], (1, d))


def _bounded(values: np.ndarray) -> np.ndarray:
    return REACH * np.tanh(values / REACH)


def _stretch(z: np.ndarray, shape: np.ndarray) -> np.ndarray:
    a, b, epsilon, delta = shape
    return a + b * np.sinh((np.arcsinh(z) + epsilon) / delta)


def _slope(z: np.ndarray, shape: np.ndarray) -> np.ndarray:
    _, b, epsilon, delta = shape
    return b * np.cosh((np.arcsinh(z) + epsilon) / delta) / (delta * np.sqrt(1.0 + z**2))


def _unstretch(w: np.ndarray, shape: np.ndarray) -> np.ndarray:
    a, b, epsilon, delta = shape
    return np.sinh(delta * np.arcsinh((w - a) / b) - epsilon)


def _features(
    z: Float[np.ndarray, "n d"], pairs: Int[np.ndarray, "q 2"]
) -> Float[np.ndarray, "n q"]:
    one = np.concatenate([z, np.ones((len(z), 1))], axis=1)
    return one[:, pairs[:, 0]] * one[:, pairs[:, 1]] - (pairs[:, 0] == pairs[:, 1])


def _order(points: Float[np.ndarray, "n d"], limit: float) -> Int[np.ndarray, " d"]:
    """Return the coordinates, those first that explain the mean or scale of others better than
    these explain theirs.

    What i explains of j is what twice the log likelihood of j gains, per point, by a quadratic mean
    and a log scale in i, to second order; less than `limit` counts for nothing, and coordinates
    that explain nothing keep their order.
    """
    n, d = points.shape
    u = (points - points.mean(axis=0)) / points.std(axis=0)
    # The square, made orthogonal on these draws to 1 and the line, which the normal has already.
    skewness = (u**3).mean(axis=0)
    s = u**2 - 1.0 - skewness * u
    s /= s.std(axis=0)

    # All pairs from moments: residuals of every coordinate on every other took half of a fit of a
    # hundred coordinates. What i leaves of j is u_j − ρu_i − βs_i, of variance v.
    def moments(of_i: np.ndarray, of_j: np.ndarray) -> Float[np.ndarray, "d d"]:
        return of_i.T @ of_j / n

    rho, beta = moments(u, u), moments(s, u)
    # A squared correlation of one, of a coordinate that is an exact parabola, would have an
    # infinite gain.
    unexplained = np.maximum(1.0 - rho**2, SINGULAR)
    v = np.maximum(unexplained - beta**2, SINGULAR * unexplained)
    by_line = moments(u, u**2) - 2 * (rho * moments(u**2, u) + beta * moments(u * s, u))
    by_square = moments(s, u**2) - 2 * (rho * moments(u * s, u) + beta * moments(s**2, u))
    cubes = [(u ** (3 - k) * s**k).mean(axis=0)[:, None] for k in range(4)]
    by_line += rho**2 * cubes[0] + 2 * rho * beta * cubes[1] + beta**2 * cubes[2]
    by_square += rho**2 * cubes[1] + 2 * rho * beta * cubes[2] + beta**2 * cubes[3]
    explained = np.log(unexplained / v) + ((by_line / v) ** 2 + (by_square / v) ** 2) / 2.0
    gain = np.where(n * explained > limit, explained, 0.0)
    np.fill_diagonal(gain, 0.0)
    # A funnel's log scale explains the spread of the others and is hardly explained by them: it
    # must come first, as the map is triangular.
    ahead = gain - gain.T
    order: list[int] = []
    remaining = list(range(d))
    while remaining:
        first = remaining[int(np.argmax(ahead[np.ix_(remaining, remaining)].sum(axis=1)))]
        order.append(first)
        remaining.remove(first)
    return np.array(order)


class _Terms(NamedTuple):
    """Coefficients of one coordinate, from pairs (i, j) to numbers; j = −1 for z_i itself."""

    shift: dict[tuple[int, int], float]
    scale: dict[tuple[int, int], float]


def _regress(
    w: Float[np.ndarray, " n"], before: Float[np.ndarray, "n k"], limit: float, most: int
) -> tuple[_Terms, Float[np.ndarray, " n"]]:
    """Return the terms of the mean and of the log scale of w, at most `most` each, and (w −
    mean)/scale."""
    shift: list[tuple[int, int]] = []
    scale: list[tuple[int, int]] = []
    fitted = _Terms({}, {})
    residual = w
    lines = np.concatenate([before.T, np.ones((1, len(w)))], dtype=np.float32)
    for _ in range(ROUNDS if before.shape[1] else 0):
        unit = (residual - residual.mean()) / residual.std()
        new_shift = _significant(unit, lines, limit, shift, most)
        new_scale = _significant(unit**2 - 1.0, lines, limit, scale, most)
        if not new_shift and not new_scale:
            break
        shift, scale = shift + new_shift, scale + new_scale
        fitted, residual = _likeliest(w, before, shift, scale)
    return fitted, residual


def _significant(
    series: Float[np.ndarray, " n"],
    lines: Float[np.ndarray, "k n"],
    limit: float,
    known: list[tuple[int, int]],
    most: int,
) -> list[tuple[int, int]]:
    """Return the features that correlate with a series of mean zero by t² above `limit`, the
    strongest first.

    lines : the coordinates before and a column of ones, in single precision.
    """
    one = len(lines) - 1
    # All products z_i z_j, and all z_i as products with one, only to see which are worth a look:
    # with White's variance of each and in double precision this was two fifths of a fit of a
    # hundred coordinates.
    product = (lines * series.astype(lines.dtype)) @ lines.T
    same = np.arange(one)
    product[same, same] -= product[one, one]
    product[one, one] = 0.0
    pairs = np.argwhere(np.triu(product**2 > LIGHT * limit * (series @ series)))
    pairs = pairs[np.argsort(-np.abs(product[tuple(pairs.T)]))][: 2 * most]
    i, j = pairs.T
    terms = (lines[i] * lines[j] - (i == j)[:, None]) * series
    # White's robust t²: the variance of the product itself, not that of independent factors, so
    # that heavy tails do not pass for a term.
    t = terms.sum(axis=1) ** 2 / np.maximum((terms**2).sum(axis=1), np.finfo(float).tiny)
    strongest = pairs[np.argsort(-t)][: np.count_nonzero(t > limit)].tolist()
    chosen = [(i, j if j < one else -1) for i, j in strongest]
    return [pair for pair in chosen if pair not in known][: max(most - len(known), 0)]


def _likeliest(
    w: Float[np.ndarray, " n"],
    before: Float[np.ndarray, "n k"],
    shift: list[tuple[int, int]],
    scale: list[tuple[int, int]],
) -> tuple[_Terms, Float[np.ndarray, " n"]]:
    """Return the coefficients of largest normal likelihood, by Fisher scoring, and what is left."""
    k = before.shape[1]

    def design(pairs: list[tuple[int, int]]) -> np.ndarray:
        indices = np.array([(i, k if j < 0 else j) for i, j in pairs], int).reshape(-1, 2)
        return np.concatenate([_features(before, indices), np.ones((len(w), 1))], axis=1)

    of_shift, of_scale = design(shift), design(scale)
    level = np.zeros(of_scale.shape[1])
    level[-1] = np.log(w.std())
    information = np.linalg.pinv(of_scale.T @ of_scale, hermitian=True)
    for _ in range(STEPS):
        inverse = np.exp(-level[-1] - _bounded(of_scale[:, :-1] @ level[:-1]))
        weighted = of_shift * inverse[:, None]
        mean = np.linalg.pinv(weighted.T @ weighted, hermitian=True) @ (weighted.T @ (w * inverse))
        unit = (w - of_shift @ mean) * inverse
        step = information @ (of_scale.T @ (unit**2 - 1.0) / 2.0)
        change = np.abs(of_scale @ step).max()
        # No draw's log scale moves by more than one in a step: from far away Fisher scoring
        # overshoots where few draws have large features.
        level = level + step / max(1.0, change)
        if change < STILL:
            break
    # The scale without features, and the mean, belong to the margin.
    residual = (w - of_shift[:, :-1] @ mean[:-1]) / np.exp(_bounded(of_scale[:, :-1] @ level[:-1]))
    coefficients = (
        dict(zip(pairs, map(float, c[:-1]), strict=True))
        for pairs, c in ((shift, mean), (scale, level))
    )
    return _Terms(*coefficients), residual


def _fit_margin(series: Float[np.ndarray, " n"], limit: float) -> Float[np.ndarray, " 4"]:
    """Return a, b, ε and δ of a series: a normal unless a sinh–arcsinh one gains more than
    `limit`, and the standard normal unless another does."""
    mean, spread = series.mean(), series.std()
    known = len(series) * (mean**2 + spread**2 - 1.0 - 2.0 * np.log(spread)) <= limit
    plain = np.array([0.0, 1.0, 0.0, 1.0] if known else [mean, spread, 0.0, 1.0])
    unit = (series - mean) / spread
    skewness, kurtosis = (unit**3).mean(), (unit**4).mean() - 3.0
    # Jarque and Bera's statistic: a first look that spares most margins the search.
    if len(series) * (skewness**2 / 6 + kurtosis**2 / 24) <= limit:
        return plain

    optimum = minimize(
        _margin_loss,
        np.zeros(4),
        (unit,),
        method="L-BFGS-B",
        jac=True,
        bounds=((-9.0, 9.0), (-9.0, 9.0), *SHAPES),
    )
    if not 2 * len(series) * (0.5 - optimum.fun) > limit:
        return plain
    a, b, epsilon, delta = optimum.x
    return np.array([mean + spread * a, spread * np.exp(b), epsilon, np.exp(delta)])


def _margin_loss(
    theta: Float[np.ndarray, " 4"], unit: Float[np.ndarray, " n"]
) -> tuple[float, Float[np.ndarray, " 4"]]:
    """Return the mean negative log likelihood of a, log b, ε and log δ, less log √2π, and its
    gradient."""
    (a, epsilon), (b, delta) = theta[::2], np.exp(theta[1::2])
    y = (unit - a) / b
    root, t = np.sqrt(1.0 + y**2), np.arcsinh(y)
    z = np.sinh(delta * t - epsilon)
    loss = 0.5 * z**2 + np.log(b * root / delta) - 0.5 * np.log1p(z**2)
    # By δt − ε, which is arcsinh z.
    slope = z**3 / np.sqrt(1.0 + z**2)
    gradient = (
        -(delta * slope + y / root) / (b * root),
        1.0 / root**2 - delta * slope * y / root,
        -slope,
        delta * slope * t - 1.0,
    )
    return float(loss.mean()), np.array([column.mean() for column in gradient])
