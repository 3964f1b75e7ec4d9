"""Targets with regions that are hardly visited, in one to three coordinates, with exact draws and
truths.

Densities are tabulated on a grid that holds all but about 1e-7 of the mass. Truths are sums over
the grid, and draws are maps of normals: each coordinate is the inverse of its distribution function
given those before it. Independent normals and chains of AR(1) normals drive the same map.
"""

import functools
from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jax.scipy.special import gammaln, log_ndtr
from scipy.integrate import quad
from scipy.interpolate import CubicSpline
from scipy.special import expit, ndtr

from benchmarks.control import marginals

Integrand = Callable[[np.ndarray], np.ndarray]

NODES = {1: 4_001, 2: 401, 3: 81}
"""Of a grid's axis, by dimension. A step is at most half a standard deviation of the density's
body, where the trapezoidal rule is exact to rounding."""
FINER = 4
"""Steps of a distribution function for one of the grid, by cubic splines of the log density."""
CHUNK = 200_000
"""Points whose densities are computed at once: 11 × 11 covariances of them are 200 MB."""


class Rare(NamedTuple):
    """A target and what is asked of it.

    transform : normals (..., k) ↦ draws and scores (..., d).
    means : name ↦ function of draws (..., d) and its exact expectation.
    marginals : name ↦ coordinate and its exact distribution.
    """

    num_normals: int
    transform: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
    means: Mapping[str, tuple[Integrand, float]]
    marginals: Mapping[str, tuple[int, marginals.Marginal]]


class Tabulated(NamedTuple):
    """The distribution of one coordinate, by its density on a fine grid."""

    nodes: np.ndarray
    density: np.ndarray
    below: np.ndarray

    @classmethod
    def of(cls, nodes: np.ndarray, log_density: np.ndarray) -> "Tabulated":
        fine = np.linspace(nodes[0], nodes[-1], 50_001)
        density = np.exp(CubicSpline(nodes, log_density - log_density.max())(fine))
        below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
        scale = below[-1] * (fine[1] - fine[0]) / 2
        return cls(fine, density / scale, below / below[-1])

    def cdf(self, x: np.ndarray) -> np.ndarray:
        return np.interp(x, self.nodes, self.below)

    def ppf(self, q: np.ndarray) -> np.ndarray:
        return np.interp(q, self.below, self.nodes)

    def pdf(self, x: np.ndarray) -> np.ndarray:
        return np.interp(x, self.nodes, self.density)


def tabulated(
    log_density: Callable[[jax.Array], jax.Array],
    ranges: Mapping[str, tuple[float, float]],
    functions: Mapping[str, Integrand],
) -> Rare:
    """Return the target of an unnormalised log density of one point (d,); means of its coordinates
    are asked, too."""
    d = len(ranges)
    axes = [np.linspace(*ends, NODES[d]) for ends in ranges.values()]
    batched, score = jax.jit(jax.vmap(log_density)), jax.jit(jax.vmap(jax.grad(log_density)))

    def evaluate(points: np.ndarray) -> np.ndarray:
        flat = points.reshape(-1, d)
        parts = [flat[start : start + CHUNK] for start in range(0, len(flat), CHUNK)]
        return np.concatenate([np.asarray(batched(part)) for part in parts]).reshape(
            points.shape[:-1]
        )

    grid = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
    table = evaluate(grid)
    table -= table.max()
    weight = np.exp(table)
    weight /= weight.sum()
    tiny = np.finfo(float).tiny
    # The first k coordinates by themselves, of which draws are made one after the other.
    leading = [np.log(np.exp(table).sum(axis=tuple(range(k + 1, d))) + tiny) for k in range(d - 1)]

    def transform(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        uniform = ndtr(z.reshape(-1, d))
        x = np.empty_like(uniform)
        for k in range(d):
            if k == d - 1:
                before = np.broadcast_to(x[:, None, :k], (len(x), len(axes[k]), k))
                along = np.broadcast_to(axes[k][:, None], (*before.shape[:2], 1))
                rows = evaluate(np.concatenate([before, along], -1)) if k else table[None]
            else:
                rows = CubicSpline(axes[0], leading[k])(x[:, 0]) if k else leading[0][None]
            x[:, k] = inverse(axes[k], rows, uniform[:, k])
        return x.reshape(z.shape), np.asarray(score(x)).reshape(z.shape)

    coordinates = {
        name: functools.partial(lambda x, k: x[..., k], k=k) for k, name in enumerate(ranges)
    }
    means = {
        name: (f, float((weight * f(grid)).sum()))
        for name, f in {**coordinates, **functions}.items()
    }
    margins = {}
    for k, name in enumerate(ranges):
        others = tuple(j for j in range(d) if j != k)
        margins[name] = (k, Tabulated.of(axes[k], np.log(np.exp(table).sum(axis=others) + tiny)))
    return Rare(d, transform, means, margins)


def inverse(nodes: np.ndarray, log_density: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Return where distribution functions with densities (m or 1, g) on the nodes are `uniform`
    (m,)."""
    fine = np.linspace(nodes[0], nodes[-1], FINER * (len(nodes) - 1) + 1)
    x = np.empty(len(uniform))
    for start in range(0, len(uniform), 500):  # rows of 1,600 points each
        part = slice(start, start + 500)
        rows = log_density if len(log_density) == 1 else log_density[part]
        density = np.exp(CubicSpline(nodes, rows - rows.max(axis=1, keepdims=True), axis=1)(fine))
        cells = (density[:, 1:] + density[:, :-1]) / 2
        below = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(cells, axis=1)], 1)
        wanted = uniform[part] * below[:, -1]
        cell = np.clip((below <= wanted[:, None]).sum(axis=1) - 1, 0, len(fine) - 2)
        row = np.arange(len(wanted)) if len(rows) > 1 else np.zeros(len(wanted), int)
        low, high, rest = density[row, cell], density[row, cell + 1], wanted - below[row, cell]
        # The density is linear in the cell: the root of low·t + (high − low)·t²/2 = rest, in the
        # stable form.
        root = np.sqrt(np.maximum(low**2 + 2 * (high - low) * rest, 0.0))
        t = np.clip(2 * rest / np.maximum(low + root, np.finfo(float).tiny), 0.0, 1.0)
        x[part] = fine[cell] + t * (fine[1] - fine[0])
    return x


def _gp_data(number: int, amplitude: float) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs in (0, 1) and noisy values of a sine."""
    rng = np.random.default_rng(number)
    at = np.sort(rng.random(number))
    return at, amplitude * np.sin(6 * at) + 0.3 * rng.standard_normal(number)


def _gp_log_likelihood(
    at: np.ndarray, y: np.ndarray, length: jax.Array, signal: jax.Array, noise: jax.Array
):
    square = np.subtract.outer(at, at) ** 2
    covariance = signal**2 * jnp.exp(-0.5 * square / length**2) + (noise**2 + 1e-10) * jnp.eye(
        len(at)
    )
    factor = jnp.linalg.cholesky(covariance)
    whitened = jax.scipy.linalg.solve_triangular(factor, jnp.asarray(y), lower=True)
    return -0.5 * whitened @ whitened - jnp.log(jnp.diag(factor)).sum()


def gp_three() -> Rare:
    """Lengthscale, signal and noise of a process seen at eleven points, mostly noise; half-normal
    priors."""
    at, y = _gp_data(11, 0.4)

    def log_density(u: jax.Array) -> jax.Array:
        scales = jnp.exp(u)
        return _gp_log_likelihood(at, y, *scales) - 0.5 * (scales**2).sum() + u.sum()

    ranges = {"log length": (-13.0, 1.8), "log signal": (-13.0, 1.8), "log noise": (-13.0, 1.8)}
    return tabulated(log_density, ranges, {"noise": lambda x: np.exp(x[..., 2])})


def gp_two() -> Rare:
    """Lengthscale and noise of a process of unit variance seen at six points."""
    at, y = _gp_data(6, 1.0)

    def log_density(u: jax.Array) -> jax.Array:
        length, noise = jnp.exp(u)
        prior = -0.5 * (length**2 + noise**2) + u.sum()
        return _gp_log_likelihood(at, y, length, jnp.ones(()), noise) + prior

    ranges = {"log length": (-16.0, 1.8), "log noise": (-16.0, 1.8)}
    return tabulated(log_density, ranges, {"noise": lambda x: np.exp(x[..., 1])})


def separated() -> Rare:
    """Logistic regression of twelve outcomes of which one is on the wrong side, with a wide
    prior."""
    at = np.linspace(-1.5, 1.5, 12)
    outcome = np.where(np.arange(12) == 5, 1.0, np.where(np.arange(12) == 6, 0.0, at > 0))
    signs = 2 * outcome - 1

    def log_density(b: jax.Array) -> jax.Array:
        eta = signs * (b[0] + b[1] * at)
        return -jnp.logaddexp(0.0, -eta).sum() - 0.5 * (b**2).sum() / 100

    functions = {"P(y|x=.5)": lambda x: expit(x[..., 0] + 0.5 * x[..., 1])}
    return tabulated(log_density, {"intercept": (-30.0, 30.0), "slope": (-4.0, 55.0)}, functions)


def freedom() -> Rare:
    """Degrees of freedom and scale of twelve values; the prior of the former is gamma(2, 0.1)."""
    y = np.array([-2.9, -1.3, -0.9, -0.6, -0.3, -0.1, 0.1, 0.2, 0.5, 0.8, 1.2, 4.1])

    def log_density(u: jax.Array) -> jax.Array:
        nu, scale = jnp.exp(u)
        constant = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * u[0] - u[1]
        likelihood = 12 * constant - (nu + 1) / 2 * jnp.log1p((y / scale) ** 2 / nu).sum()
        return likelihood + 2 * u[0] - 0.1 * nu - 0.5 * scale**2 / 25 + u[1]

    functions = {"degrees": lambda x: np.exp(x[..., 0])}
    return tabulated(log_density, {"log degrees": (-4.0, 6.0), "log scale": (-5.0, 3.5)}, functions)


def small_weight(against: float = 19.0) -> Rare:
    """Weight and place of a second component that may be empty: where it is, the place has its
    prior.

    against : the prior of the weight is beta(1, 1 + against). Without it, of 500 draws one is in a
        mode of its own, where the second component has all data.
    """
    rng = np.random.default_rng(3)
    y = np.concatenate([rng.standard_normal(18), [2.6, 3.3]])

    def log_density(u: jax.Array) -> jax.Array:
        log_weight, log_other = -jnp.logaddexp(0.0, -u[0]), -jnp.logaddexp(0.0, u[0])
        second, first = log_weight - 0.5 * (y - u[1]) ** 2, log_other - 0.5 * y**2
        return (
            jnp.logaddexp(first, second).sum()
            + log_weight
            + (1 + against) * log_other
            - 0.5 * (u[1] / 3) ** 2
        )

    functions = {"weight": lambda x: expit(x[..., 0])}
    return tabulated(log_density, {"logit weight": (-18.0, 6.0), "place": (-15.0, 15.0)}, functions)


def variance_near_zero() -> Rare:
    """Mean and standard deviation of eight groups' effects that hardly differ."""
    effects = np.array([0.6, -0.4, 0.3, -0.9, 0.2, 1.1, -0.2, 0.4])

    def log_density(u: jax.Array) -> jax.Array:
        variance = 1 + jnp.exp(2 * u[1])
        likelihood = -0.5 * ((effects - u[0]) ** 2).sum() / variance - 4 * jnp.log(variance)
        return likelihood - 0.5 * u[0] ** 2 / 9 - 0.5 * jnp.exp(2 * u[1]) + u[1]

    functions = {"sd": lambda x: np.exp(x[..., 1])}
    return tabulated(log_density, {"mean": (-5.0, 5.0), "log sd": (-17.0, 1.8)}, functions)


def truncated() -> Rare:
    """A standard normal above three, by the logarithm of the excess."""

    def log_density(u: jax.Array) -> jax.Array:
        return -0.5 * (3 + jnp.exp(u[0])) ** 2 + u[0]

    value = {"x": lambda x: 3 + np.exp(x[..., 0])}
    return tabulated(log_density, {"log excess": (-20.0, 1.9)}, value)


def censored() -> Rare:
    """Mean and log scale of two values and of eight that are only known to be above two."""
    y = np.array([1.2, 1.9])

    def log_density(u: jax.Array) -> jax.Array:
        scale = jnp.exp(u[1])
        seen = -0.5 * (((y - u[0]) / scale) ** 2).sum() - 2 * u[1]
        return (
            seen
            + 8 * log_ndtr((u[0] - 2) / scale)
            - 0.5 * (u[0] / 10) ** 2
            - 0.5 * (scale / 3) ** 2
            + u[1]
        )

    functions = {"scale": lambda x: np.exp(x[..., 1])}
    return tabulated(log_density, {"mean": (-20.0, 50.0), "log scale": (-5.0, 3.2)}, functions)


def two_normals() -> Rare:
    """Two normals four standard deviations apart: chains go between them seldom."""
    target = marginals.mixture()
    means = {"x": (_coordinate(0), 0.4), "x²": (lambda x: x[..., 0] ** 2, 5.0)}
    means["cos x"] = (lambda x: np.cos(x[..., 0]), float(np.cos(2.0) * np.exp(-0.5)))
    return Rare(1, lambda z: target.transform(z)[:2], means, {"x": (0, target.marginals[0])})


def funnel() -> Rare:
    """Neal's funnel with four coordinates; one of them has a spike at zero."""
    target = marginals.funnel()
    cosine = quad(
        lambda v: scipy.stats.norm.pdf(v, 0, 3) * np.exp(-np.exp(v) / 2), -30, 30, limit=200
    )[0]
    means = {"v": (_coordinate(0), 0.0), "cos x1": (lambda x: np.cos(x[..., 1]), cosine)}
    margins = {"v": (0, target.marginals[0]), "x1": (1, target.marginals[1])}
    return Rare(5, lambda z: target.transform(z)[:2], means, margins)


def log_gammas() -> Rare:
    """Logarithms of three gamma variables; cosines turn beyond the outermost draws."""
    target = marginals.log_gamma()
    means = {}
    for k, law in enumerate(target.marginals):
        for name, f in (("x", lambda x: x), ("cos 2x", lambda x: np.cos(2 * x))):
            truth = quad(lambda x, f=f, law=law: law.pdf(x) * f(x), -40, 8, limit=1_000)[0]
            means[f"{name[:-1]}x{k + 1}"] = (
                functools.partial(lambda x, k, f: f(x[..., k]), k=k, f=f),
                truth,
            )
    margins = {f"x{k + 1}": (k, law) for k, law in enumerate(target.marginals)}
    return Rare(3, lambda z: target.transform(z)[:2], means, margins)


def _coordinate(k: int) -> Integrand:
    return lambda x: x[..., k]


RARE: Mapping[str, Callable[[], Rare]] = {
    "GP, 11 points": gp_three,
    "GP, 6 points": gp_two,
    "separated logistic": separated,
    "degrees of freedom": freedom,
    "small weight": small_weight,
    "mode of 1 in 500": functools.partial(small_weight, 3.0),
    "variance near zero": variance_near_zero,
    "truncated normal": truncated,
    "censored": censored,
    "two normals": two_normals,
    "funnel": funnel,
    "log gammas": log_gammas,
}
