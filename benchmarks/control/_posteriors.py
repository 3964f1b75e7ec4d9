"""Posteriors as PyMC programs, with what their quantities are: those of the benchmarks `costs` and
`structure`."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.interpolate import make_interp_spline
from scipy.optimize import minimize
from scipy.special import expit

if TYPE_CHECKING:
    import pymc

GLOBALS, SCALES, LOCALS = "globals", "scales", "locals"


class Radon(NamedTuple):
    """Log radon of 919 houses in 85 counties, made up: the counties' uranium, and whether a floor
    is a basement."""

    county: np.ndarray
    floor: np.ndarray
    uranium: np.ndarray
    y: np.ndarray


def radon_data(noise: float = 0.75) -> Radon:
    """Return the houses, where `noise` is the standard deviation within a county."""
    rng = np.random.default_rng(0)
    num_counties, num_houses = 85, 919
    county = rng.integers(0, num_counties, num_houses)
    floor = rng.integers(0, 2, num_houses).astype(float)
    uranium = rng.normal(size=num_counties)
    intercepts = 1.3 + 0.7 * uranium * 0.5 + rng.normal(0, 0.3, num_counties)
    slopes = -0.6 + rng.normal(0, 0.25, num_counties)
    y = intercepts[county] + slopes[county] * floor + rng.normal(0, noise, num_houses)
    return Radon(county, floor, uranium, y)


def radon() -> "pymc.Model":
    """Varying intercepts and slopes of 85 counties, correlated, non-centred: 177 parameters."""
    import pymc as pm

    data = radon_data()
    num_counties = len(data.uranium)
    with pm.Model(coords={"c": np.arange(num_counties), "e": ["intercept", "slope"]}) as model:
        mu, g = pm.Normal("mu", 0, 2, dims="e"), pm.Normal("g", 0, 1)
        scales = pm.Exponential.dist(1.0)
        chol, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=scales)
        z = pm.Normal("z", 0, 1, dims=("c", "e"))
        county_mean = np.stack([data.uranium, 0 * data.uranium], 1) * g
        ab = pm.Deterministic("ab", mu + z @ chol.T + county_mean, dims=("c", "e"))
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", ab[data.county, 0] + ab[data.county, 1] * data.floor, sigma, observed=data.y)
    return model


def radon_centred() -> "pymc.Model":
    """The program of `radon`, centred: 177 parameters.

    Houses differ less within a county than there: with the same data chains of 1,000 draws have 26
    effective ones of the correlation, as nobody would use this parametrization then.
    """
    import pymc as pm

    data = radon_data(noise=0.3)
    num_counties = len(data.uranium)
    with pm.Model(coords={"c": np.arange(num_counties), "e": ["intercept", "slope"]}) as model:
        mu, g = pm.Normal("mu", 0, 2, dims="e"), pm.Normal("g", 0, 1)
        scales = pm.Exponential.dist(1.0)
        chol, correlation, _ = pm.LKJCholeskyCov("chol", n=2, eta=2, sd_dist=scales)
        pm.Deterministic("rho", correlation[0, 1])
        county_mean = np.stack([data.uranium, 0 * data.uranium], 1) * g
        ab = pm.MvNormal("ab", mu + county_mean, chol=chol, dims=("c", "e"))
        sigma = pm.HalfNormal("sigma", 1)
        pm.Normal("y", ab[data.county, 0] + ab[data.county, 1] * data.floor, sigma, observed=data.y)
    return model


def random_walk(length: int = 80) -> "pymc.Model":
    """A local level observed with noise, centred, with both scales unknown: 82 parameters."""
    import pymc as pm

    rng = np.random.default_rng(4)
    y = 1.0 + np.cumsum(rng.normal(0, 0.3, length)) + rng.normal(0, 0.5, length)
    with pm.Model(coords={"time": np.arange(length)}) as model:
        tau, sigma = pm.HalfNormal("tau", 1), pm.HalfNormal("sigma", 1)
        start = pm.Normal.dist(0, 3)
        level = pm.GaussianRandomWalk("level", sigma=tau, init_dist=start, dims="time")
        pm.Normal("y", level, sigma, observed=y)
    return model


def crossed(num_items: int = 40, num_raters: int = 25) -> "pymc.Model":
    """A logistic regression, 40 items crossed with 25 raters, each pair once: 69 parameters."""
    import pymc as pm

    rng = np.random.default_rng(5)
    item, rater = (axis.ravel() for axis in np.indices((num_items, num_raters)))
    x = rng.normal(size=len(item))
    a, b = rng.normal(0, 0.8, num_items), rng.normal(0, 0.5, num_raters)
    y = rng.random(len(x)) < expit(0.3 + 0.7 * x + a[item] + b[rater])
    coords = {"item": np.arange(num_items), "rater": np.arange(num_raters)}
    with pm.Model(coords=coords) as model:
        intercept, slope = pm.Normal("intercept", 0, 2), pm.Normal("slope", 0, 2)
        sd_item, sd_rater = pm.HalfNormal("sd_item", 1), pm.HalfNormal("sd_rater", 1)
        a = pm.Deterministic("a", sd_item * pm.Normal("za", 0, 1, dims="item"), dims="item")
        b = pm.Deterministic("b", sd_rater * pm.Normal("zb", 0, 1, dims="rater"), dims="rater")
        logit = intercept + slope * x + a[item] + b[rater]
        pm.Bernoulli("y", logit_p=logit, observed=y.astype(int))
    return model


def nested(num_regions: int = 10, each: int = 4, pupils: int = 15) -> "pymc.Model":
    """Marks of 600 pupils, 40 schools, 10 regions: intercepts of regions and schools, non-centred,
    55 parameters."""
    import pymc as pm

    rng = np.random.default_rng(8)
    num_schools = num_regions * each
    region = np.repeat(np.arange(num_regions), each)
    school = np.repeat(np.arange(num_schools), pupils)
    x = rng.normal(size=len(school))
    level = rng.normal(0, 0.6, num_regions)[region] + rng.normal(0, 0.4, num_schools)
    y = 2.0 + 0.5 * x + level[school] + rng.normal(0, 1.0, len(school))
    coords = {"region": np.arange(num_regions), "school": np.arange(num_schools)}
    with pm.Model(coords=coords) as model:
        intercept, slope = pm.Normal("intercept", 0, 5), pm.Normal("slope", 0, 2)
        sd_region, sd_school = pm.HalfNormal("sd_region", 1), pm.HalfNormal("sd_school", 1)
        sigma = pm.HalfNormal("sigma", 2)
        z_region, z_school = (
            pm.Normal("z_region", 0, 1, dims="region"),
            pm.Normal("z_school", 0, 1, dims="school"),
        )
        a = pm.Deterministic("a", sd_region * z_region, dims="region")
        b = pm.Deterministic("b", a[region] + sd_school * z_school, dims="school")
        pm.Normal("y", intercept + slope * x + b[school], sigma, observed=y)
    return model


def autoregression(length: int = 80) -> "pymc.Model":
    """A stationary level of order one read twice with noise, centred: 84 parameters.

    Read once, its two scales are told apart so badly that chains do not mix.
    """
    import pymc as pm

    rng = np.random.default_rng(9)
    level = np.empty(length)
    level[0] = 1.0 + rng.normal(0, 0.5 / np.sqrt(1 - 0.7**2))
    for t in range(1, length):
        level[t] = 0.3 + 0.7 * level[t - 1] + rng.normal(0, 0.5)
    y = level[:, None] + rng.normal(0, 0.3, (length, 2))
    with pm.Model(coords={"time": np.arange(length)}) as model:
        mean, phi = pm.Normal("mean", 0, 2), pm.Uniform("phi", 0, 1)
        tau, sigma = pm.HalfNormal("tau", 1), pm.HalfNormal("sigma", 1)
        start = pm.Normal.dist(mean, tau / pm.math.sqrt(1 - phi**2))
        rho = pm.math.stack([mean * (1 - phi), phi])
        level = pm.AR(
            "level",
            rho=rho,
            sigma=tau,
            init_dist=start,
            constant=True,
            steps=length - 1,
            dims="time",
        )
        pm.Normal("y", level[:, None], sigma, observed=y)
    return model


def item_response(num_persons: int = 60, num_items: int = 12) -> "pymc.Model":
    """The answers of 60 persons to 12 items that differ in difficulty and discrimination: 88
    parameters."""
    import pymc as pm

    rng = np.random.default_rng(10)
    ability, difficulty = rng.normal(size=(num_persons, 1)), rng.normal(0.2, 1.0, num_items)
    discrimination = np.exp(rng.normal(0.2, 0.3, num_items))
    y = rng.random((num_persons, num_items)) < expit(discrimination * (ability - difficulty))
    coords = {"person": np.arange(num_persons), "item": np.arange(num_items)}
    with pm.Model(coords=coords) as model:
        mean_b, sd_b = pm.Normal("mean_b", 0, 1), pm.HalfNormal("sd_b", 1)
        mean_log_a, sd_log_a = pm.Normal("mean_log_a", 0, 1), pm.HalfNormal("sd_log_a", 0.5)
        theta = pm.Normal("theta", 0, 1, dims="person")
        b = pm.Normal("b", mean_b, sd_b, dims="item")
        z_a = pm.Normal("z_a", 0, 1, dims="item")
        a = pm.Deterministic("a", pm.math.exp(mean_log_a + sd_log_a * z_a), dims="item")
        pm.Bernoulli("y", logit_p=a * (theta[:, None] - b), observed=y.astype(int))
    return model


def horseshoe(num_coefficients: int = 30, rows: int = 100) -> "pymc.Model":
    """A regularised horseshoe (Piironen and Vehtari 2017), 5 of 30 coefficients large, non-centred:
    63 parameters."""
    import pymc as pm

    rng = np.random.default_rng(11)
    x = rng.normal(size=(rows, num_coefficients))
    y = 0.5 + x[:, :5] @ np.array([2.0, -2.0, 1.5, -1.0, 0.5]) + rng.normal(size=rows)
    slab = 2.0
    with pm.Model(coords={"coefficient": np.arange(num_coefficients)}) as model:
        intercept, sigma = pm.Normal("intercept", 0, 2), pm.HalfNormal("sigma", 2)
        tau = pm.HalfNormal("tau", 0.2)
        local, z = (
            pm.HalfStudentT("local", nu=3, sigma=1, dims="coefficient"),
            pm.Normal("z", 0, 1, dims="coefficient"),
        )
        shrunk = tau * local * slab / pm.math.sqrt(slab**2 + (tau * local) ** 2)
        beta = pm.Deterministic("beta", z * shrunk, dims="coefficient")
        pm.Normal("y", intercept + pm.math.dot(x, beta), sigma, observed=y)
    return model


def gaussian_process(length: int = 50) -> "pymc.Model":
    """A smooth curve at 50 times of a year with noise, whitened, its three scales unknown: 54
    parameters.

    The covariance of places on a circle is diagonal in sines and cosines, so that no factor has to
    be computed at each gradient: twenty times as fast as with the Cholesky factor of places on a
    line.
    """
    import pymc as pm

    rng = np.random.default_rng(12)
    frequency = (np.arange(length) + 1) // 2
    angle = 2 * np.pi * np.arange(length)[:, None] / length * frequency
    # orthogonal: the constant, pairs of a cosine and a sine, and the alternating sign of the
    # highest frequency
    basis = np.sqrt(2) * np.where(np.arange(length) % 2, np.cos(angle), np.sin(angle))
    basis[:, 0], basis[:, -1] = 1.0, np.cos(angle[:, -1])

    def whitened(z: Any, lengthscale: Any, maths: Any) -> Any:
        spectrum = maths.exp(-((2 * np.pi * lengthscale * frequency) ** 2) / 2)
        return maths.dot(basis, maths.sqrt(spectrum / maths.sum(spectrum)) * z)

    y = whitened(rng.normal(size=length), 0.05, np) + rng.normal(0, 0.5, length)
    with pm.Model(coords={"time": np.arange(length)}) as model:
        mean, lengthscale = pm.Normal("mean", 0, 1), pm.InverseGamma("lengthscale", 5, 0.3)
        amplitude, sigma = pm.HalfNormal("amplitude", 1), pm.HalfNormal("sigma", 1)
        z = pm.Normal("z", 0, 1, dims="time")
        f = pm.Deterministic("f", mean + amplitude * whitened(z, lengthscale, pm.math), dims="time")
        pm.Normal("y", f, sigma, observed=y)
    return model


def spatial(num_rows: int = 6, num_columns: int = 8) -> "pymc.Model":
    """Counts on a grid of 6 × 8 cells, their log rates an intrinsic CAR field and a covariate: 51
    parameters."""
    import pymc as pm

    rng = np.random.default_rng(13)
    place = np.stack(np.indices((num_rows, num_columns)), -1).reshape(-1, 2)
    neighbours = (np.abs(place[:, None] - place).sum(-1) == 1).astype(int)
    x = rng.normal(size=len(place))
    smooth = np.sin(place[:, 0] / 2) + np.cos(place[:, 1] / 2)
    y = rng.poisson(np.exp(1.5 + 0.3 * x + 0.5 * (smooth - smooth.mean())))
    with pm.Model(coords={"cell": np.arange(len(place))}) as model:
        intercept, slope = pm.Normal("intercept", 0, 2), pm.Normal("slope", 0, 1)
        sd = pm.HalfNormal("sd", 1)
        field = pm.ICAR("field", W=neighbours, dims="cell")
        rate = pm.Deterministic("log_rate", intercept + slope * x + sd * field, dims="cell")
        pm.Poisson("y", pm.math.exp(rate), observed=y)
    return model


def interaction(num_items: int = 12, num_raters: int = 15, each: int = 2) -> "pymc.Model":
    """Marks of 12 items by 15 raters, two of each pair, with an effect of every pair: 212
    parameters."""
    import pymc as pm

    rng = np.random.default_rng(14)
    item, rater = (
        np.repeat(axis, each) for axis in np.indices((num_items, num_raters)).reshape(2, -1)
    )
    a, b = rng.normal(1.0, 0.6, num_items), rng.normal(0, 0.5, num_raters)
    both = rng.normal(0, 0.5, (num_items, num_raters))
    y = a[item] + b[rater] + both[item, rater] + rng.normal(0, 0.8, len(item))
    coords = {"item": np.arange(num_items), "rater": np.arange(num_raters)}
    with pm.Model(coords=coords) as model:
        intercept, sigma = pm.Normal("intercept", 0, 5), pm.HalfNormal("sigma", 1)
        sd_item, sd_rater, sd_pair = (
            pm.HalfNormal(name, 1) for name in ("sd_item", "sd_rater", "sd_pair")
        )
        a = pm.Normal("a", intercept, sd_item, dims="item")
        b = pm.Deterministic("b", sd_rater * pm.Normal("zb", 0, 1, dims="rater"), dims="rater")
        z = pm.Normal("z", 0, 1, dims=("item", "rater"))
        pair = pm.Deterministic("pair", sd_pair * z, dims=("item", "rater"))
        pm.Normal("y", a[item] + b[rater] + pair[item, rater], sigma, observed=y)
    return model


def walks(length: int = 20, num_sites: int = 12) -> "pymc.Model":
    """Levels of 12 sites at 20 times, a random walk each with one scale for all, centred: 244
    parameters."""
    import pymc as pm

    rng = np.random.default_rng(15)
    level = rng.normal(1.0, 0.7, num_sites) + np.cumsum(
        rng.normal(0, 0.3, (length, num_sites)), axis=0
    )
    y = level + rng.normal(0, 0.4, level.shape)
    with pm.Model(coords={"time": np.arange(length), "site": np.arange(num_sites)}) as model:
        mean, sd = pm.Normal("mean", 0, 2), pm.HalfNormal("sd", 1)
        tau, sigma = pm.HalfNormal("tau", 1), pm.HalfNormal("sigma", 1)
        level = pm.Flat("level", dims=("time", "site"))
        pm.Potential("start", pm.logp(pm.Normal.dist(mean, sd), level[0]).sum())
        pm.Potential("steps", pm.logp(pm.Normal.dist(level[:-1], tau), level[1:]).sum())
        pm.Normal("y", level, sigma, observed=y)
    return model


PRIOR_SD, THRESHOLDS = 1.5, np.array([0.0, 1.0, -1.0])


def three_data() -> tuple[np.ndarray, np.ndarray]:
    """Return covariates (30, 3) and outcomes (30,), so few that the posterior is skew."""
    rng = np.random.default_rng(6)
    x = np.concatenate([np.ones((30, 1)), rng.normal(size=(30, 2))], 1)
    return x, (rng.random(30) < expit(x @ np.array([0.4, 1.0, -1.0]))).astype(int)


def three() -> "pymc.Model":
    """A logistic regression with 3 coefficients on 30 rows."""
    import pymc as pm

    x, y = three_data()
    with pm.Model() as model:
        beta = pm.Normal("beta", 0, PRIOR_SD, shape=3)
        pm.Bernoulli("y", logit_p=x @ beta, observed=y)
    return model


THREE_FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "mean": lambda draw: draw["beta"],
    "square": lambda draw: draw["beta"] ** 2,
    "exp": lambda draw: jnp.exp(draw["beta"]),
    "indicator": lambda draw: draw["beta"] > THRESHOLDS,
}


def three_truth(points: int = 161, width: float = 12.0) -> np.ndarray:
    """Return the twelve expectations of `THREE_FUNCTIONS` (12,) by quadrature.

    Each is a function of one coefficient. The trapezoidal rule over the other two gives its density
    on a grid, to rounding since the density is smooth and vanishes at the ends. A quintic spline
    integrates it, so that a threshold need not be a point of the grid. With two thirds of the
    spacing no expectation moves by more than 3e-6 of itself.
    """
    x, y = three_data()

    def log_density(beta: np.ndarray) -> np.ndarray:
        logit = beta @ x.T
        return (y * logit - np.logaddexp(0, logit)).sum(-1) - (beta**2).sum(-1) / (2 * PRIOR_SD**2)

    mode = minimize(lambda beta: -log_density(beta), np.zeros(3), tol=1e-10)
    sd = np.sqrt(np.diag(mode.hess_inv))
    axes = np.linspace(mode.x - width * sd, mode.x + width * sd, points).T
    density = np.empty((points,) * 3)
    for i, first in enumerate(axes[0]):  # a plane at a time: all rows at all points would be 0.8 GB
        plane = np.stack(np.meshgrid([first], axes[1], axes[2], indexing="ij"), -1)[0]
        density[i] = np.exp(log_density(plane) + mode.fun)
    truth = []
    for j, axis in enumerate(axes):
        marginal = density.sum(tuple({0, 1, 2} - {j}))

        def integral(f: np.ndarray, lower: float, axis: np.ndarray = axis) -> float:
            return float(make_interp_spline(axis, f, k=5).integrate(lower, axis[-1]))

        functions = (axis, axis**2, np.exp(axis))
        whole = integral(marginal, axis[0])
        smooth = [integral(marginal * f, axis[0]) / whole for f in functions]
        truth.append([*smooth, integral(marginal, THRESHOLDS[j]) / whole])
    return np.array(truth).T.ravel()


def bridge_data() -> np.ndarray:
    return np.random.default_rng(7).normal(1.0, 1.5, 12)


def bridge() -> "pymc.Model":
    """A normal sample of 12 with mean and scale unknown."""
    import pymc as pm

    with pm.Model() as model:
        mu, sigma = pm.Normal("mu", 0, 5), pm.HalfNormal("sigma", 2)
        pm.Normal("y", mu, sigma, observed=bridge_data())
    return model


class Posterior(NamedTuple):
    """A PyMC program and the quantities of its draws.

    kinds : variable ↦ its kind, of those that are reduced, in this order. Means, regression
        coefficients, correlations and lengthscales are `GLOBALS`, standard deviations `SCALES`, and
        what has an index of the data `LOCALS`.
    functions : of a draw, reduced instead of the variables.
    truth : of the quantities; by default from long chains.
    num_draws : of each chain.
    truth_runs : how many runs of four chains the truth is from.
    """

    build: Callable[[], "pymc.Model"]
    kinds: Mapping[str, str]
    functions: Mapping[str, Callable[[Any], Any]] | None = None
    truth: Callable[[], np.ndarray] | None = None
    num_draws: int = 1_000
    truth_runs: int = 16

    @property
    def variables(self) -> tuple[str, ...]:
        return tuple(self.kinds)


def kinds(globals: str = "", scales: str = "", locals: str = "") -> dict[str, str]:
    """Return the kind of each of the variables that stand in the words."""
    given = {GLOBALS: globals, SCALES: scales, LOCALS: locals}
    return {variable: kind for kind, variables in given.items() for variable in variables.split()}


POSTERIORS: Mapping[str, Posterior] = {
    "radon": Posterior(radon, kinds("mu g", "sigma chol_stds", "ab")),
    "radon-centred": Posterior(
        radon_centred, kinds("mu g rho", "sigma chol_stds", "ab"), truth_runs=8
    ),
    "crossed": Posterior(crossed, kinds("intercept slope", "sd_item sd_rater", "a b")),
    "nested": Posterior(
        nested, kinds("intercept slope", "sd_region sd_school sigma", "a b"), truth_runs=8
    ),
    "walk": Posterior(random_walk, kinds("", "tau sigma", "level")),
    "autoregression": Posterior(
        autoregression, kinds("mean phi", "tau sigma", "level"), truth_runs=8
    ),
    "item-response": Posterior(
        item_response, kinds("mean_b mean_log_a", "sd_b sd_log_a", "theta a b"), truth_runs=8
    ),
    "horseshoe": Posterior(horseshoe, kinds("intercept", "tau sigma", "beta"), truth_runs=8),
    "gaussian-process": Posterior(
        gaussian_process, kinds("mean lengthscale", "amplitude sigma", "f"), truth_runs=8
    ),
    "spatial": Posterior(spatial, kinds("intercept slope", "sd", "log_rate"), truth_runs=8),
    "interaction": Posterior(
        interaction, kinds("intercept", "sd_item sd_rater sd_pair sigma", "a b pair")
    ),
    "walks": Posterior(walks, kinds("mean", "sd tau sigma", "level")),
    "three": Posterior(three, kinds("beta"), THREE_FUNCTIONS, three_truth, num_draws=250),
    "bridge": Posterior(bridge, kinds("mu", "sigma"), num_draws=200),
}
