"""Probabilities, quantiles, intervals and densities: true and reported gains, calibration and
costs.

    python -m benchmarks.control.marginals [--targets NAME ...] [--replicates N]

One row for each target, number of draws, dependence and `what` is asked of `mcmcpost.distribution`:
`P` and `quantile` at seven levels, the bounds `eti` and `hdi` of intervals of 0.89, and `pdf` on 41
points from the 0.01 to the 0.99 quantile. A cell is one level, bound or point, with all quantities
of the row.

``true`` : mean square error of the plain estimate over that of the controlled one, the median over
    quantities and cells; ``least`` the smallest of a cell, with the median over its quantities,
    ``at`` this level. Of densities it is of errors summed over the points, and the plain estimate
    is the kernel estimate of ArviZ.
``reported`` : median of (plain error/controlled error)².
``z²``, ``plain z²`` : mean of ((estimate − truth)/error)², the error of the truth included; ``worst
    z²`` the largest of a cell, ``z² at`` this level. Left out are results whose errors are
    rounding, and those that are ``unseen``.
``share plain``, ``share unseen`` : of the results, by their status. A density that is ``plain`` is
    a kernel estimate.
``rmse``, ``plain rmse`` : of densities, relative to the largest.
``fit s``, ``call s`` : median CPU seconds of `mcmcpost.distribution` and of its answer for all
    quantities of the target; ``summary s`` those of ``arviz_stats.summary``, and ``sampler s``
    those of the sampler.

Targets are exact draws with a truth in closed form or by quadrature, independent ones or chains of
AR(1) normals with coefficient 0.9 that drive the same maps. Posteriors are PyMC programs sampled by
nutpie (`benchmarks.control.costs`), whose truth is 700,000 other draws, kept in the folder. Of
posteriors 400 draws are a tenth of each chain.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import arviz_stats
import jax
import numpy as np
import scipy.stats
import xarray
from arviz_stats.base import array_stats
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq
from scipy.signal import lfilter
from scipy.special import expit, logit, ndtr

import mcmcpost as mp
from benchmarks import _eight_schools
from benchmarks._command import Command, add_shared, needed
from benchmarks._replicate import generator
from benchmarks._table import RESULTS, emit
from benchmarks.control import costs, posteriordb

CHAINS = 4
LEVELS = np.array([0.025, 0.05, 0.25, 0.5, 0.75, 0.95, 0.975])
PROB = 0.89
"""Of intervals, ArviZ's."""
POINTS, OUTERMOST = 41, 0.01
DEPENDENCE = {"independent": 0.0, "AR(0.9)": 0.9}
REPLICATES = {400: 40, 4_000: 12}
"""Draws ↦ replicates, fewer where a posterior has fewer in its store."""
WHAT = ("P", "quantile", "eti", "hdi", "pdf")
LABELS = {
    "P": tuple(f"{level:g}" for level in LEVELS),
    "quantile": tuple(f"{level:g}" for level in LEVELS),
    "eti": ("lower", "upper"),
    "hdi": ("lower", "upper"),
    "pdf": tuple(f"point {k + 1}" for k in range(POINTS)),
}
ROUNDING = 1e-9
"""Error, over the interquartile range of a quantity, or of a probability, below which it is
rounding."""
ROUNDED = 1e-6
"""True error up to which such a one is let pass without z."""


class Marginal(Protocol):
    """A distribution of one variable, as those of `scipy.stats`."""

    def cdf(self, x: np.ndarray) -> np.ndarray: ...
    def ppf(self, q: np.ndarray) -> np.ndarray: ...
    def pdf(self, x: np.ndarray) -> np.ndarray: ...


class NormalMixture(NamedTuple):
    """Normals, one for each node of a quadrature of what their means and scales depend on."""

    weight: np.ndarray
    mean: np.ndarray
    sd: np.ndarray

    def cdf(self, x: np.ndarray) -> np.ndarray:
        return ndtr((np.asarray(x)[..., None] - self.mean) / self.sd) @ self.weight

    def pdf(self, x: np.ndarray) -> np.ndarray:
        return scipy.stats.norm.pdf(np.asarray(x)[..., None], self.mean, self.sd) @ self.weight

    def ppf(self, q: np.ndarray) -> np.ndarray:
        q = np.asarray(q, float)
        low, high = (
            np.full(q.shape, (self.mean - 9 * self.sd).min()),
            np.full(q.shape, (self.mean + 9 * self.sd).max()),
        )
        for _ in range(100):  # bisection, to rounding
            middle = (low + high) / 2
            below = self.cdf(middle) < q
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return (low + high) / 2


class LogGrid(NamedTuple):
    """A positive variable, of whose logarithm the density is known on a fine grid."""

    log_value: np.ndarray
    below: np.ndarray

    @classmethod
    def of(cls, log_value: np.ndarray, log_density: np.ndarray) -> "LogGrid":
        """Return the distribution, by the trapezoidal rule."""
        density = np.exp(log_density - log_density.max())
        below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
        rising = np.concatenate([[True], np.diff(below) > 1e-15 * below[-1]])
        return cls(log_value[rising], below[rising] / below[-1])

    def cdf(self, x: np.ndarray) -> np.ndarray:
        return PchipInterpolator(self.log_value, self.below)(np.log(x))

    def pdf(self, x: np.ndarray) -> np.ndarray:
        return PchipInterpolator(self.log_value, self.below)(np.log(x), nu=1) / x

    def ppf(self, q: np.ndarray) -> np.ndarray:
        return np.exp(PchipInterpolator(self.below, self.log_value)(q))

    def weights(self) -> np.ndarray:
        """Return the probability of each grid point's cell."""
        middle = (self.below[1:] + self.below[:-1]) / 2
        return np.diff(np.concatenate([[0.0], middle, [1.0]]))


class Exact(NamedTuple):
    """A target that is a map of independent normals.

    transform : normals (…, k) ↦ draws, scores (…, d) and quantities (…, p).
    marginals : of the quantities, p of them.
    """

    num_normals: int
    transform: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
    marginals: tuple[Marginal, ...]


def normal() -> Exact:
    """Ten correlated coordinates; quantities are three of them."""
    factor = np.linalg.cholesky(0.5 ** np.abs(np.subtract.outer(np.arange(10), np.arange(10))))

    def transform(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = z @ factor.T
        return (
            x,
            -np.linalg.solve(factor.T, z.reshape(-1, 10).T).T.reshape(z.shape),
            x[..., [0, 4, 9]],
        )

    return Exact(10, transform, (scipy.stats.norm(),) * 3)


def log_gamma() -> Exact:
    """Three independent logarithms of gamma variables."""
    shapes = np.array([1.0, 2.0, 5.0])

    def transform(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = np.log(scipy.stats.gamma(shapes).isf(ndtr(-z)))
        return x, shapes - np.exp(x), x

    return Exact(3, transform, tuple(scipy.stats.loggamma(shape) for shape in shapes))


def gamma() -> Exact:
    """A gamma variable with shape two, sampled by its logarithm."""

    def transform(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        value = scipy.stats.gamma(2.0).isf(ndtr(-z))
        return np.log(value), 2.0 - value, value

    return Exact(1, transform, (scipy.stats.gamma(2.0),))


def student() -> Exact:
    """Student's t with three degrees of freedom in two dimensions."""

    def transform(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = z[..., :2] / np.sqrt(scipy.stats.chi2(3).isf(ndtr(-z[..., 2:])) / 3)
        return x, -5 * x / (3 + (x**2).sum(-1, keepdims=True)), x

    return Exact(3, transform, (scipy.stats.t(3),) * 2)


def mixture() -> Exact:
    """Two normals in one dimension, four standard deviations apart."""
    marginal = NormalMixture(np.array([0.4, 0.6]), np.array([-2.0, 2.0]), np.ones(2))

    def transform(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = marginal.ppf(ndtr(z))
        first = 0.4 * scipy.stats.norm.pdf(x, -2.0, 1.0) / marginal.pdf(x)
        return x, -x - 2.0 * first + 2.0 * (1 - first), x

    return Exact(1, transform, (marginal,))


def beta() -> Exact:
    """A probability whose density is infinite at zero, sampled by its logit."""

    def transform(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = logit(scipy.stats.beta(0.8, 3.0).ppf(ndtr(z)))
        return x, 0.8 - 3.8 * expit(x), expit(x)

    return Exact(1, transform, (scipy.stats.beta(0.8, 3.0),))


def banana() -> Exact:
    """The second coordinate is half the square of the first, and half as much noise."""

    def transform(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = np.stack([z[..., 0], 0.5 * z[..., 0] ** 2 + 0.5 * z[..., 1]], -1)
        pull = 2 * z[..., 1]
        return x, np.stack([x[..., 0] * (pull - 1), -pull], -1), x

    nodes = np.linspace(-10, 10, 2_001)
    weight = scipy.stats.norm.pdf(nodes)
    second = NormalMixture(weight / weight.sum(), 0.5 * nodes**2, np.full(len(nodes), 0.5))
    return Exact(2, transform, (scipy.stats.norm(), second))


def funnel() -> Exact:
    """Neal's funnel: a log variance of normal(0, 3) and four normals; quantities are it and one of
    them."""

    def transform(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        v, e = 3 * z[..., :1], z[..., 1:]
        x = np.exp(v / 2) * e
        score = -v / 9 + 0.5 * (e**2 - 1).sum(-1, keepdims=True)
        draws = np.concatenate([v, x], -1)
        return draws, np.concatenate([score, -e * np.exp(-v / 2)], -1), draws[..., :2]

    nodes = np.linspace(-27, 27, 2_001)
    weight = scipy.stats.norm.pdf(nodes, 0, 3)
    local = NormalMixture(weight / weight.sum(), np.zeros(len(nodes)), np.exp(nodes / 2))
    return Exact(5, transform, (scipy.stats.norm(0, 3), local))


def eight_schools() -> Exact:
    """Eight schools, non-centred; quantities are μ, τ and the first school's θ."""
    kept = _eight_schools.marginal()
    grid = kept.log_tau[::10]
    tau = LogGrid.of(grid, np.log(np.maximum(kept.weight[::10], np.finfo(float).tiny)))
    effects, errors = _eight_schools.EFFECTS, _eight_schools.ERRORS

    def given(log_tau: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of μ given τ."""
        precisions = 1 / (errors**2 + np.exp(2 * log_tau)[..., None])
        precision = 1 / 25 + precisions.sum(-1)
        return (effects * precisions).sum(-1) / precision, precision**-0.5

    def transform(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        log_tau = np.log(tau.ppf(ndtr(z[..., 0])))
        centre, spread = given(log_tau)
        mu, t = (centre + spread * z[..., 1])[..., None], np.exp(log_tau)[..., None]
        precision = 1 + t**2 / errors**2
        eta = t / errors**2 * (effects - mu) / precision + z[..., 2:] / np.sqrt(precision)
        pull = (effects - mu - t * eta) / errors**2
        of_tau = t * (pull * eta).sum(-1, keepdims=True) - 2 * t**2 / (25 + t**2) + 1
        scores = [-eta + t * pull, -mu / 25 + pull.sum(-1, keepdims=True), of_tau]
        draws = [eta, mu, np.log(t)]
        return (
            np.concatenate(draws, -1),
            np.concatenate(scores, -1),
            np.concatenate([mu, t, mu + t * eta[..., :1]], -1),
        )

    weight, (centre, spread) = tau.weights(), given(tau.log_value)
    variance = np.exp(2 * tau.log_value)
    pull = errors[0] ** 2 / (errors[0] ** 2 + variance)  # θ is between the datum and μ
    theta = NormalMixture(
        weight,
        pull * centre + (1 - pull) * effects[0],
        np.sqrt((pull * spread) ** 2 + pull * variance),
    )
    return Exact(10, transform, (NormalMixture(weight, centre, spread), tau, theta))


def regression(shared: Path) -> Exact:
    """Bayesian linear regression of posteriordb; quantities are two coefficients and σ."""
    data = posteriordb._read(
        needed(shared / "data" / "posteriordb", "--shared"), "sblrc-blr", "sblrc"
    )
    design, outcome = np.array(data["X"]), np.array(data["y"])
    n, d = design.shape
    squares, axes = np.linalg.eigh(design.T @ design)
    along = axes.T @ design.T @ outcome

    def given(log_sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return precisions and means (…, d) of the coefficients given σ, along the axes of the
        design."""
        square = np.exp(2 * log_sigma)[..., None]
        precision = squares / square + 0.01
        return precision, along / square / precision

    centre = 0.5 * np.log(
        np.mean((outcome - design @ np.linalg.lstsq(design, outcome, rcond=None)[0]) ** 2)
    )
    log_sigma = np.linspace(centre - 0.8, centre + 0.8, 4_001)
    precision, mean = given(log_sigma)
    square = np.exp(2 * log_sigma)
    fit = (
        0.5 * (precision * mean**2).sum(-1)
        - 0.5 * np.log(precision).sum(-1)
        - 0.5 * outcome @ outcome / square
    )
    sigma = LogGrid.of(log_sigma, fit - n * log_sigma - square / 200 + log_sigma)

    def transform(z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        log_sigma = np.log(sigma.ppf(ndtr(z[..., 0])))
        precision, mean = given(log_sigma)
        coefficients = (mean + z[..., 1:] / np.sqrt(precision)) @ axes.T
        left, square = outcome - coefficients @ design.T, np.exp(2 * log_sigma)[..., None]
        of_sigma = (left**2).sum(-1, keepdims=True) / square - n - square / 100 + 1
        scores = np.concatenate([left @ design / square - coefficients / 100, of_sigma], -1)
        draws = np.concatenate([coefficients, log_sigma[..., None]], -1)
        return (
            draws,
            scores,
            np.concatenate([coefficients[..., :2], np.exp(log_sigma)[..., None]], -1),
        )

    weight, (precision, mean) = sigma.weights(), given(sigma.log_value)
    of_each = [
        NormalMixture(weight, mean @ axes[j], np.sqrt((1 / precision) @ axes[j] ** 2))
        for j in range(2)
    ]
    return Exact(d + 1, transform, (*of_each, sigma))


EXACT: Mapping[str, Callable[[], Exact]] = {
    "normal d=10": normal,
    "log-gamma d=3": log_gamma,
    "gamma(2)": gamma,
    "student t3": student,
    "mixture": mixture,
    "beta(0.8, 3)": beta,
    "banana": banana,
    "funnel d=5": funnel,
    "eight schools": eight_schools,
}


class Truth(NamedTuple):
    """Numbers of p quantities and their standard errors, by what is asked: (p, t) each.

    Probabilities are at the quantiles, and densities at `points` (p, 41).
    """

    points: np.ndarray
    value: Mapping[str, np.ndarray]
    mcse: Mapping[str, np.ndarray]


def exact_truth(marginals: tuple[Marginal, ...]) -> Truth:
    """Return the truth of marginals that are known."""
    tails = np.array([(1 - PROB) / 2, (1 + PROB) / 2])
    points = np.stack(
        [np.linspace(*one.ppf(np.array([OUTERMOST, 1 - OUTERMOST])), POINTS) for one in marginals]
    )
    value = {
        "P": np.tile(LEVELS, (len(marginals), 1)),
        "quantile": np.stack([one.ppf(LEVELS) for one in marginals]),
        "eti": np.stack([one.ppf(tails) for one in marginals]),
        "hdi": np.stack([shortest(one) for one in marginals]),
        "pdf": np.stack([one.pdf(at) for one, at in zip(marginals, points, strict=True)]),
    }
    return Truth(points, value, {what: np.zeros_like(numbers) for what, numbers in value.items()})


def shortest(marginal: Marginal) -> np.ndarray:
    """Return the ends of the shortest interval of `PROB`: where the densities are the same."""
    levels = np.linspace(0.0, 1 - PROB, 201)
    with np.errstate(invalid="ignore"):
        k = int(np.nanargmin(marginal.ppf(levels + PROB) - marginal.ppf(levels)))
    level = levels[k]  # at either end of a density that falls, or rises, all the way
    if 0 < k < len(levels) - 1:

        def difference(level: float) -> float:
            low, high = marginal.pdf(marginal.ppf(np.array([level, level + PROB])))
            return float(low - high)

        level = brentq(difference, levels[k - 1], levels[k + 1], xtol=1e-14)
    return marginal.ppf(np.array([level, level + PROB]))


CELLS = 4_096
"""Of the histogram that a density of long chains is smoothed from."""
WIDTH = 0.15
"""Of its kernel, in standard deviations. The kernel is of fourth order, whose bias is of the fourth
power of it."""


def long_run_truth(draws: np.ndarray) -> Truth:
    """Return the truth from long chains (c, n, p), with errors by how chains differ."""
    num_chains, _, p = draws.shape
    tails = np.array([(1 - PROB) / 2, (1 + PROB) / 2])
    value: dict[str, list[np.ndarray]] = {what: [] for what in WHAT}
    mcse: dict[str, list[np.ndarray]] = {what: [] for what in WHAT}
    every_point = []
    for j in range(p):
        series = np.sort(draws[..., j].astype(float), axis=1)
        whole = np.sort(series, axis=None)
        points = np.linspace(*np.quantile(whole, [OUTERMOST, 1 - OUTERMOST]), POINTS)
        quantile = np.quantile(whole, LEVELS)

        def answers(
            ordered: np.ndarray, at: np.ndarray = points, t: np.ndarray = quantile
        ) -> dict[str, np.ndarray]:
            return {
                "P": np.searchsorted(ordered, t, side="right") / len(ordered),
                "quantile": np.quantile(ordered, LEVELS),
                "eti": np.quantile(ordered, tails),
                "hdi": smooth_shortest(ordered),
                "pdf": smooth_density(ordered, at),
            }

        found = answers(whole) | {"P": LEVELS}
        # An eighth of the chains is left out at a time: one chain is too short for the ends of a
        # shortest interval.
        groups = np.array_split(np.arange(num_chains), 8)
        without = [
            answers(np.sort(np.delete(series, group, axis=0), axis=None)) for group in groups
        ]
        every_point.append(points)
        for what in WHAT:
            value[what].append(found[what])
            mcse[what].append(
                np.sqrt(
                    7 / 8 * ((np.array([one[what] for one in without]) - found[what]) ** 2).sum(0)
                )
            )
    return Truth(
        np.array(every_point),
        {what: np.array(numbers) for what, numbers in value.items()},
        {what: np.array(numbers) for what, numbers in mcse.items()},
    )


def smooth_density(ordered: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the density of many draws at some points."""
    edges = np.linspace(ordered[0], ordered[-1], CELLS + 1)
    counts, middle = np.histogram(ordered, edges)[0], (edges[1:] + edges[:-1]) / 2
    width = WIDTH * ordered.std()
    u = (at[:, None] - middle) / width
    return (0.5 * (3 - u**2) * scipy.stats.norm.pdf(u)) @ counts / len(ordered) / width


def smooth_shortest(ordered: np.ndarray) -> np.ndarray:
    """Return the ends of the shortest interval of many draws, from a polynomial through the widths
    of all."""
    levels = np.linspace(0.002, 1 - PROB - 0.002, 201)
    lower, upper = np.quantile(ordered, levels), np.quantile(ordered, levels + PROB)
    fitted = np.polynomial.Polynomial.fit(levels, upper - lower, 8)
    fine = np.linspace(levels[0], levels[-1], 10_001)
    return np.quantile(ordered, fine[np.argmin(fitted(fine))] + np.array([0.0, PROB]))


class Case(NamedTuple):
    """One target with so many draws.

    sample : replicate ↦ a tree, the quantities (c, n, p) and the sampler's CPU seconds.
    places : row of the table ↦ its places among the p quantities.
    """

    target: str
    draws: int
    dependence: str
    replicates: int
    places: Mapping[str, list[int]]
    sample: Callable[[int], tuple[xarray.DataTree, np.ndarray, float]]
    truth: Truth


def exact_target(name: str, shared: Path) -> Exact:
    """Return a target of exact draws by its name."""
    return regression(shared) if name == "regression" else EXACT[name]()


def exact_cases(name: str, target: Exact, draws: Mapping[int, int]) -> Iterator[Case]:
    """Yield the cases of a target with exact draws: so many ↦ so many replicates."""
    truth = exact_truth(target.marginals)
    for num_draws, replicates in draws.items():
        for dependence, coefficient in DEPENDENCE.items():

            def sample(r: int, n: int = num_draws // CHAINS, phi: float = coefficient) -> tuple:
                noise = generator(f"marginals {name} {n} {phi}", r).normal(
                    size=(CHAINS, n, target.num_normals)
                )
                noise[:, 1:] *= np.sqrt(1 - phi**2)
                z = lfilter([1.0], [1.0, -phi], noise, axis=1)
                x, scores, values = target.transform(z)
                return mp.from_arrays(x, scores, allow_bad_scores=True), values, np.nan

            places = {"all": list(range(len(target.marginals)))}
            yield Case(name, num_draws, dependence, replicates, places, sample, truth)


class Chosen(NamedTuple):
    """Quantities of a posterior of `costs`: the places of those that are reduced, by row of the
    table."""

    globals: list[int]
    scales: list[int]
    locals: list[int]


CHOSEN = {
    "radon": Chosen([0, 1, 2, 3], [4, 5], list(range(6, 26))),
    "walk": Chosen([], [0, 1], list(range(2, 82, 8))),
    "crossed": Chosen([0, 1], [2, 3], [*range(4, 14), *range(44, 54)]),
}
STORED = 16
"""Replicates of a posterior."""
TRUTH_RUNS, TRUTH_DRAWS, TRUTH_SEED = 14, 12_500, 50_000
"""Runs of four chains, and draws of each, that the truth is computed from; these have no draw of
the replicates."""


def posterior_cases(name: str, folder: Path, draws: Mapping[int, int]) -> Iterator[Case]:
    """Yield the cases of a posterior, sampled where its draws are not in the folder."""
    store, rows = costs.Store(folder, name), CHOSEN[name]._asdict()
    chosen = [j for places in rows.values() for j in places]
    first = np.cumsum([0, *map(len, rows.values())])
    places = {
        row: list(range(at, at + len(of)))
        for (row, of), at in zip(rows.items(), first, strict=False)
        if of
    }
    truth = long_run_truth(long_run(store)[..., chosen])
    for num_draws, replicates in draws.items():
        n = num_draws // CHAINS

        def sample(r: int, n: int = n) -> tuple:
            tree = store.replicate(r % STORED)
            part = slice(n * (r // STORED), n * (r // STORED) + n)
            seconds = tree.attrs["sampling_cpu_seconds"] if n == costs.DRAWS else np.nan
            groups = {
                group: tree[group].to_dataset().isel(draw=part)
                for group in ("posterior", "sample_stats")
            }
            new = xarray.DataTree.from_dict(groups)
            return new, costs.stacked(new, store.posterior.variables)[1][..., chosen], seconds

        stored = STORED * (costs.DRAWS // n)
        yield Case(name, num_draws, "NUTS", min(replicates, stored), places, sample, truth)


def long_run(store: costs.Store) -> np.ndarray:
    """Return all quantities of long chains (c, n, q), sampled if they are not in the folder."""
    path = store.folder / "draws.npy"
    if not path.exists():
        runs = []
        for run in range(TRUTH_RUNS):
            tree = costs.sample(store.compiled, TRUTH_DRAWS, TRUTH_SEED + run)
            runs.append(costs.stacked(tree, store.posterior.variables)[1].astype(np.float32))
            print(f"truth: run {run + 1} of {TRUTH_RUNS}", file=sys.stderr, flush=True)
        np.save(path, np.concatenate(runs))
    return np.load(path, mmap_mode="r")


class Answer(NamedTuple):
    """What is found of one kind, (p, t) each, in so many CPU seconds."""

    mean: np.ndarray
    mcse: np.ndarray
    plain: np.ndarray
    plain_mcse: np.ndarray
    status: np.ndarray
    seconds: float


def answers(
    tree: xarray.DataTree, values: np.ndarray, truth: Truth
) -> tuple[dict[str, Answer], float, float]:
    """Return the answers of a replicate, and the CPU seconds of the fit and of ArviZ's summary."""
    start = time.process_time()
    dist = mp.distribution(tree, values)
    fit = time.process_time() - start
    calls = {
        "P": lambda: dist.cdf(truth.value["quantile"]),
        "quantile": lambda: dist.quantile(LEVELS),
        "eti": lambda: dist.interval(PROB, "eti"),
        "hdi": lambda: dist.interval(PROB, "hdi"),
        "pdf": lambda: dist.pdf(truth.points),
    }
    found = {}
    for what, call in calls.items():
        start = time.process_time()
        result = call()
        seconds = time.process_time() - start
        shape = truth.value[what].shape
        status = np.array(list(map(str, np.ravel(result.status)))).reshape(shape)
        numbers = (result.mean, result.mcse, result.mean_plain, result.mcse_plain)
        found[what] = Answer(*(np.reshape(part, shape) for part in numbers), status, seconds)
    flat = values.reshape(-1, values.shape[-1])
    kernel = [
        np.interp(at, *array_stats.kde(flat[:, j])[:2], 0.0, 0.0)
        for j, at in enumerate(truth.points)
    ]
    found["pdf"] = found["pdf"]._replace(
        plain=np.array(kernel), plain_mcse=np.full(truth.points.shape, np.nan)
    )
    start = time.process_time()
    arviz_stats.summary({f"x{j}": values[..., j] for j in range(values.shape[-1])})
    return found, fit, time.process_time() - start


def rows(case: Case) -> list[dict]:
    """Return the rows of a case."""
    number = case.replicates
    results, fits, summaries, samplers = [], [], [], []
    for r in (number - 1, *range(number)):  # the first compiles the programs, and is not measured
        tree, values, sampler = case.sample(r)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, fit, summary = answers(tree, values, case.truth)
        results.append(found)
        for times, seconds in ((fits, fit), (summaries, summary), (samplers, sampler)):
            times.append(seconds)
    times = {
        "fit s": float(np.median(fits[1:])),
        "summary s": float(np.median(summaries[1:])),
        "sampler s": float(np.median(samplers[1:])),
    }
    spread = case.truth.value["quantile"][:, 4:5] - case.truth.value["quantile"][:, 2:3]
    table = []
    for what in WHAT:
        measured = [result[what] for result in results[1:]]
        one = Answer(
            *(np.array([getattr(result, field) for result in measured]) for field in Answer._fields)
        )
        unit = {"P": 1.0, "pdf": case.truth.value["pdf"].max(axis=1, keepdims=True)}.get(
            what, spread
        )
        for label, places in case.places.items():
            numbers = _numbers(what, one, case.truth, unit, places)
            first = {
                "target": case.target,
                "draws": case.draws,
                "dependence": case.dependence,
                "what": what,
            }
            first |= {"quantities": label, "number": len(places), "replicates": number}
            table.append(first | numbers | {"call s": float(np.median(one.seconds))} | times)
    return table


def _numbers(
    what: str, found: Answer, truth: Truth, unit: Any, places: list[int]
) -> dict[str, Any]:
    """Return gains and calibration of some quantities."""
    value, truth_mcse = truth.value[what], truth.mcse[what]
    unit = np.broadcast_to(unit, value.shape)
    with np.errstate(divide="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rows with nothing but NaN
        square, plain_square = (found.mean - value) ** 2, (found.plain - value) ** 2
        unseen = found.status == "unseen"
        rounding = (found.mcse < ROUNDING * unit) & (np.sqrt(square) < ROUNDED * unit)
        z2 = square / (found.mcse**2 + truth_mcse**2)
        z2 = np.where(unseen | rounding, np.nan, z2)[:, places]
        plain_z2 = np.where(unseen, np.nan, plain_square / (found.plain_mcse**2 + truth_mcse**2))[
            :, places
        ]
        # Errors of rounding differ by chance: no estimate is told apart from the truth by less.
        floor = (ROUNDING * unit) ** 2
        mse, plain_mse = (
            np.maximum(part.mean(0), floor)[places] for part in (square, plain_square)
        )
        ratio = plain_mse / mse
        of_cells = np.median(ratio, axis=0)
        by_cell = np.nanmean(z2, axis=(0, 1))
        least, worst = int(np.argmin(of_cells)), int(np.nanargmax(np.append(by_cell, 0.0)))
        labels = (*LABELS[what], "")
        if what == "pdf":
            true = np.median(plain_mse.sum(1) / mse.sum(1))
            relative = [np.sqrt((part / unit[places] ** 2).mean()) for part in (mse, plain_mse)]
        else:
            true, relative = np.median(ratio), ["", ""]
        reported = np.median((found.plain_mcse / found.mcse)[:, places] ** 2)
        return {
            "true": float(true),
            "least": float(of_cells[least]),
            "at": labels[least],
            "reported": "" if what == "pdf" else float(reported),
            "z²": float(np.nanmean(z2)),
            "worst z²": float(by_cell[worst]) if worst < len(by_cell) else np.nan,
            "z² at": labels[worst],
            "plain z²": "" if what == "pdf" else float(np.nanmean(plain_z2)),
            "share plain": float((found.status == "plain")[:, places].mean()),
            "share unseen": float(unseen[:, places].mean()),
            "rmse": relative[0],
            "plain rmse": relative[1],
        }


TARGETS = (*EXACT, "regression", *CHOSEN)


def cases(args: Any) -> Iterator[Case]:
    """Yield the cases of the command line, each sampled when its turn comes."""
    draws = {number: min(REPLICATES[number], args.replicates) for number in args.draws}
    for name in args.targets:
        if name in CHOSEN:
            yield from posterior_cases(name, args.folder, draws)
        else:
            yield from exact_cases(name, exact_target(name, args.shared), draws)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    parser = Command(__doc__, quick="--targets gamma(2) funnel\\ d=5 --replicates 2 --draws 400")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument(
        "--draws", nargs="+", type=int, choices=REPLICATES, default=list(REPLICATES)
    )
    parser.add_argument("--replicates", type=int, default=40, help="at most; fewer with many draws")
    parser.add_argument(
        "--folder", type=Path, default=costs.FOLDER, help="of replicates and truths of posteriors"
    )
    add_shared(parser)
    args = parser.parse_args()
    title = "Probabilities, quantiles, intervals and densities: gains, calibration and costs"
    # Rows of targets that are not run again stay as they are.
    path = RESULTS / "marginals.json"
    table = json.loads(path.read_text())["rows"] if path.exists() and not args.quick else []
    table = [
        row for row in table if row["target"] not in args.targets or row["draws"] not in args.draws
    ]
    for case in cases(args):
        table += rows(case)
        table.sort(key=lambda row: (TARGETS.index(row["target"]), row["draws"]))
        print(
            f"{case.target}, {case.draws} draws, {case.dependence}: done",
            file=sys.stderr,
            flush=True,
        )
        emit("marginals", title, table, final=False)
    emit("marginals", title, table)


if __name__ == "__main__":
    main()
