"""Marginal distributions: exact where the mean is, right on average where it is not, and honest
about what is neither.

Thirty groups of four chains of 100 draws, with seeds of their own, say whether errors hold.
"""

import functools
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import scipy.special
import scipy.stats
import xarray
from chain_cases import ar1
from scipy.interpolate import PchipInterpolator
from scipy.optimize import brentq
from scipy.stats import norm

import mcmcpost as mp
from mcmcpost.control import distribution
from mcmcpost.control.order_statistics import shortest_of_draws
from mcmcpost.control.quantiles import _bracketed

LEVELS = np.array([0.05, 0.25, 0.5, 0.75, 0.95])

EXACT = (mp.Status.EXACT, mp.Status.ON_TRUST)


def tree_of(x, scores, beside=None, names=("h", "other"), **options):
    """Return a trace of a coordinate and one beside it that is normal."""
    draws, slopes = [x], [scores]
    if beside is not None:
        draws.append(beside)
        slopes.append(-beside)
    return mp.from_arrays(
        np.stack(draws, -1), np.stack(slopes, -1), names=names[: len(draws)], **options
    )


class Target(NamedTuple):
    """A distribution that is drawn from exactly, and its score."""

    draw: object
    score: object
    cdf: object
    pdf: object


def _mixture(x):
    return 0.4 * norm.pdf(x + 1.5), 0.6 * norm.pdf(x - 1)


TARGETS = {
    "log-gamma": Target(
        lambda rng, shape: np.log(rng.gamma(3.0, size=shape)),
        lambda x: 3.0 - np.exp(x),
        scipy.stats.loggamma(3.0).cdf,
        scipy.stats.loggamma(3.0).pdf,
    ),
    "Student": Target(
        lambda rng, shape: rng.standard_t(5, size=shape),
        lambda x: -6 * x / (5 + x**2),
        scipy.stats.t(5).cdf,
        scipy.stats.t(5).pdf,
    ),
    "two normals": Target(
        lambda rng, shape: np.where(rng.random(shape) < 0.4, -1.5, 1.0) + rng.normal(size=shape),
        lambda x: -(_mixture(x)[0] * (x + 1.5) + _mixture(x)[1] * (x - 1)) / sum(_mixture(x)),
        lambda x: 0.4 * norm.cdf(x + 1.5) + 0.6 * norm.cdf(x - 1),
        lambda x: sum(_mixture(x)),
    ),
}


def quantiles_of(target, levels):
    return np.array(
        [
            brentq(lambda x, level=level: target.cdf(x) - level, -40.0, 40.0, xtol=1e-13)
            for level in levels
        ]
    )


def shortest_of(target, prob):
    """Return the interval at whose ends the densities are the same."""

    def ends(below):
        return quantiles_of(target, [below, below + prob])

    below = brentq(
        lambda level: np.subtract(*target.pdf(ends(level))), 1e-6, 1 - prob - 1e-6, xtol=1e-13
    )
    return ends(below)


@pytest.fixture(scope="module")
def normal():
    x = np.random.default_rng(11).normal(size=(4, 100, 2))
    return x, mp.from_arrays(x, -x, names=("a", "b"))


# ---- a normal posterior, where everything is known but for rounding


@pytest.mark.slow
def test_all_of_a_normal_distribution_is_exact(normal):
    x, tree = normal
    dist = mp.distribution(tree, ["a"], "zv2")
    # Some thresholds are draws, which rounding must not put on the other side of the step.
    at = np.concatenate(
        [[-1.9, -0.3, 0.0, 0.7, 2.1], np.sort(x[..., 0].reshape(-1))[[5, 100, 300, 390]]]
    )
    curve = dist.cdf(at)
    assert curve.names == ("a",)
    assert curve.at.shape == curve.mean.shape == (1, len(at))
    density = dist.pdf(at)
    for found, expected in ((curve, norm.cdf(at)), (density, norm.pdf(at))):
        assert set(found.status.flat) <= set(EXACT)
        assert (found.mcse < 1e-12).all()
        assert (np.abs(found.mean[0] - expected) < 10 * found.mcse[0] + 1e-13).all()
    assert set(dist.quantile(LEVELS).status) <= set(EXACT)
    for estimate, expected, most in (
        (dist.quantile(LEVELS), norm.ppf(LEVELS), 1e-11),
        (dist.interval(0.89), norm.ppf([0.055, 0.945]), 1e-11),
        (dist.interval(0.89, kind="hdi"), norm.ppf([0.055, 0.945]), 1e-8),
        (dist.probability(lower=-1.0, upper=0.5), [norm.cdf(0.5) - norm.cdf(-1.0)], 1e-12),
        (dist.probability(lower=0.0), [0.5], 1e-12),
        (dist.probability(upper=-1.0), [norm.cdf(-1.0)], 1e-12),
    ):
        assert (estimate.mcse < most).all(), estimate.names
        assert (np.abs(estimate.mean - expected) < 4 * estimate.mcse + 1e-13).all(), estimate.names
        assert (np.abs(estimate.mean_plain - expected) < 5 * estimate.mcse_plain).all()
        assert (estimate.gain > 1e12).all()


def test_a_draw_at_a_bound_is_inside(normal):
    """Also where that is what few draws decide: {lower ≤ h} and {h ≤ upper}."""
    x, tree = normal
    dist = mp.distribution(tree, ["a"], "zv2")
    bound = np.sort(x[..., 0].reshape(-1))[200]
    both = dist.probability(lower=bound).mean + dist.probability(upper=bound).mean
    np.testing.assert_allclose(both, 1.0, atol=1e-12)
    found = dist.probability(lower=bound)
    assert found.mean_plain == (x[..., 0] >= bound).mean()
    assert found.mcse < 1e-12
    np.testing.assert_allclose(found.mean, norm.sf(bound), atol=1e-12)


def test_it_is_told_how_well_a_quantity_is_explained(rng):
    x = rng.normal(size=(4, 200, 3))
    functions = {
        "coordinate": x[..., 0],
        "monotone": np.exp(x[..., 0]),
        "product": x[..., 0] + x[..., 1] * x[..., 2],
        "nearly": x[..., 0] + 0.5 * np.abs(x[..., 1]) ** 2.5,
        "noise": rng.normal(size=(4, 200)),
    }
    found = mp.distribution(mp.from_arrays(x, -x), functions, "zv2").explained
    np.testing.assert_allclose(found[:3], 1.0, atol=1e-12)
    assert 0.98 < found[3] < 0.9999
    assert np.isnan(found[4])


@pytest.mark.slow
def test_names_say_what_was_asked(normal):
    _, tree = normal
    dist = mp.distribution(tree, method="plain")
    assert dist.names == ("a", "b")
    assert dist.probability(lower=0.0, upper=2.0).names == ("P(0 <= a <= 2)", "P(0 <= b <= 2)")
    assert dist.probability(upper=2.0).names == ("P(a <= 2)", "P(b <= 2)")
    assert dist.quantile([0.1, 0.5]).names == ("a [0.1]", "a [0.5]", "b [0.1]", "b [0.5]")
    assert dist.interval(0.9, "hdi").names == (
        "a [hdi90_lb]",
        "a [hdi90_ub]",
        "b [hdi90_lb]",
        "b [hdi90_ub]",
    )
    table = dist.cdf([[0.0, 1.0], [-1.0, 2.0]]).to_dataframe()
    assert table.index.tolist() == [("a", 0.0), ("a", 1.0), ("b", -1.0), ("b", 2.0)]
    assert table.columns.tolist() == ["mean", "mcse", "mean_cv", "mcse_cv", "gain", "status"]
    assert set(table["status"]) == {"plain"}


# ---- draws of known distributions, where errors and gains are those that were stated


STATED = {  # half of the median gains of these seeds
    "log-gamma": {
        "cdf": [63, 1_700, 2_500, 630, 180],
        "quantile": [45, 2_000, 2_600, 640, 140],
        "pdf": [290, 810, 450, 420, 61],
    },
    "Student": {
        "cdf": [84, 240, 250, 200, 67],
        "quantile": [69, 320, 280, 190, 60],
        "pdf": [490, 120, 49, 100, 13],
    },
    "two normals": {
        "cdf": [76, 65, 82, 210, 120],
        "quantile": [59, 76, 96, 190, 90],
        "pdf": [910, 180, 29, 70, 59],
    },
}


@functools.cache
def replicates(name):
    """Return 30 distributions of a coordinate of four chains of 100 exact draws, beside a normal
    one: two tests ask them."""
    target, found = TARGETS[name], []
    for seed in range(30):
        rng = np.random.default_rng([seed, 11])
        x = target.draw(rng, (4, 100))
        tree = tree_of(x, target.score(x), rng.normal(size=x.shape))
        found.append(mp.distribution(tree, ["h"], "zv2"))
    return found


def squares_and_gains(results, truth):
    """Return mean z² and the median gain of results of many replicates."""
    parts = ((np.reshape(part, -1) for part in (r.mean, r.mcse, r.gain)) for r in results)
    mean, mcse, gain = (np.array(column) for column in zip(*parts, strict=True))
    return (((mean - truth) / mcse) ** 2).mean(axis=0), np.median(gain, axis=0)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", TARGETS)
def test_probabilities_and_densities_have_the_errors_and_the_gains_that_are_stated(name):
    target = TARGETS[name]
    at = quantiles_of(target, LEVELS)
    curves = [(dist.cdf(at), dist.pdf(at)) for dist in replicates(name)]
    for k, (question, truth) in enumerate({"cdf": LEVELS, "pdf": target.pdf(at)}.items()):
        squares, gains = squares_and_gains([pair[k] for pair in curves], truth)
        assert (squares <= 2.0).all(), (question, squares)
        assert (gains > STATED[name][question]).all(), (question, gains)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("name", TARGETS)
def test_quantiles_and_intervals_have_the_errors_and_the_gains_that_are_stated(name):
    target = TARGETS[name]
    found = {"quantile": [], "eti": [], "hdi": []}
    for dist in replicates(name):
        found["quantile"].append(dist.quantile(LEVELS))
        found["eti"].append(dist.interval(0.89))
        found["hdi"].append(dist.interval(0.89, "hdi"))
    truth = {
        "quantile": quantiles_of(target, LEVELS),
        "eti": quantiles_of(target, [0.055, 0.945]),
        "hdi": shortest_of(target, 0.89),
    }
    for question, results in found.items():
        squares, gains = squares_and_gains(results, truth[question])
        # Where the shortest interval is the plain one, its jackknife over eight folds is no better
        # than the draws.
        assert (squares <= (2.5 if question == "hdi" else 2.0)).all(), (question, squares)
        assert (gains >= STATED[name].get(question, 1.0)).all(), (question, gains)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_errors_hold_for_chains_that_mix_slowly():
    results = []
    for seed in range(16):
        rng = np.random.default_rng([seed, 5])
        x, other = ar1(rng, (4, 1_000, 2), 0.9).transpose(2, 0, 1)
        # A cube root is no polynomial: it is controlled, and not exact.
        dist = mp.distribution(tree_of(x, -x, other), {"c": np.cbrt(x) + 0.3 * other}, "zv2")
        results.append(dist.cdf([-1.0, 0.0, 0.8]))
    truth = [cdf_of_root_and_normal(at) for at in (-1.0, 0.0, 0.8)]
    squares, gains = squares_and_gains(results, truth)
    assert (squares <= 2.0).all(), squares
    assert (gains > 1.5).all(), gains


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("seed", [0, 17, 19])
def test_a_quantile_does_not_depend_on_what_else_is_asked_for(seed):
    """The search went on for all levels until the last was found."""
    z = ar1(np.random.default_rng(seed), (4, 500, 2), 0.9)
    x = np.log(scipy.stats.gamma(2.0).ppf(norm.cdf(z)))
    tree = mp.from_arrays(x, 2.0 - np.exp(x))
    dist = mp.distribution(tree)
    alone, bounds = dist.quantile(0.5), dist.interval(0.9)
    beside, ends = dist.quantiles_and_interval(np.array([0.02, 0.5, 0.95, 0.99]), (0.9, "eti"))
    np.testing.assert_allclose(beside.mean[1::4], alone.mean, rtol=0, atol=1e-9)
    np.testing.assert_allclose(beside.mcse[1::4], alone.mcse, rtol=1e-6)
    np.testing.assert_allclose(ends.mean, bounds.mean, rtol=0, atol=1e-9)
    assert (ends.names, beside.names[1]) == (bounds.names, alone.names[0])
    table = mp.summary(tree, median=True, quantiles=[0.02, 0.95], ci_prob=0.9, ci_kind="eti")
    np.testing.assert_allclose(table["median_cv"], alone.mean, rtol=0, atol=1e-9)
    np.testing.assert_allclose(table["q0.95_cv"], table["eti90_ub_cv"], rtol=0, atol=1e-9)
    np.testing.assert_allclose(table["eti90_lb_cv"], bounds.mean[::2], rtol=0, atol=1e-9)
    np.testing.assert_allclose(table["q0.02_cv"], beside.mean[::4], rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:R-hat")
@pytest.mark.parametrize("seed", [155, 163, 302])
def test_a_probability_that_is_hardly_known_does_not_move_one_that_is_exact(seed):
    """Chains of a normal that mix so slowly that hardly one has a draw in a tail, where P is
    plain."""
    x = ar1(np.random.default_rng(seed), (4, 100, 1), 0.9)[..., 0]
    at = np.linspace(-3.0, 3.0, 25)
    curve = mp.distribution(tree_of(x, -x, allow_bad_scores=True), "h").cdf(at)
    exact = curve.mcse[0] < 1e-6
    assert exact.sum() > 10
    np.testing.assert_allclose(curve.mean[0, exact], norm.cdf(at[exact]), atol=1e-9)
    assert (np.diff(curve.mean[0]) >= 0).all()


def bracketed(at, level, mean, mcse, method, size):
    """Return the quantile and the slope between three points at which a distribution function of so
    many effective draws is known."""
    below = SimpleNamespace(mean=np.asarray(mean), mcse=np.asarray(mcse), method=method)
    dist = SimpleNamespace(
        marginal=lambda _: 0,
        effective_sizes=lambda: np.array([size]),
        sample=SimpleNamespace(units=np.ones(1)),
        below=lambda _: below,
    )
    points = iter(at[[0, 2], None])
    return _bracketed(dist, at[1:2], level, lambda _: next(points))


def test_a_point_that_is_hardly_known_tells_no_slope():
    """About a quantile the distribution function is exact at two points, and beyond them no draw
    is."""
    at, level = np.array([1.6, 2.1, 3.3]), np.array([0.95])
    quantile, slope = bracketed(
        at, level, [*norm.cdf(at[:2]), 1.0], [0.0, 0.0, 0.07], ("spline",) * 3, 20.0
    )
    (secant,) = np.diff(norm.cdf(at[:2])) / np.diff(at[:2])
    np.testing.assert_allclose(slope, secant)
    np.testing.assert_allclose(quantile, at[0] + (level - norm.cdf(at[0])) / secant)


@pytest.mark.parametrize(("mcse", "told"), [(0.004, False), (0.0004, True)])
def test_points_of_two_methods_tell_a_slope_where_both_are_well_known(mcse, told):
    """What one method errs by at one point, and another does not at the next, is no density."""
    at, level = np.array([1.6, 1.7, 1.8]), np.array([0.95])
    mean, errors = norm.cdf(at) + np.array([0.0, 0.0, 0.01]), np.full(3, mcse)
    one = bracketed(at, level, mean, errors, ("spline",) * 3, 1000.0)
    quantile, slope = bracketed(at, level, mean, errors, ("spline", "spline", "plain"), 1000.0)
    between = np.diff(mean[:2]) / np.diff(at[:2])
    np.testing.assert_allclose(slope, one[1] if told else between)
    assert told == (quantile == one[0])


def test_between_points_of_three_methods_the_slope_is_that_of_the_draws():
    at, level, size = np.array([1.6, 1.7, 1.8]), np.array([0.95]), 1000.0
    methods = ("cubic", "spline", "plain")
    quantile, slope = bracketed(at, level, norm.cdf(at), np.full(3, 0.004), methods, size)
    assert quantile == at[1]
    between = 2 * 1.5 * np.sqrt(level * (1 - level) / size)
    np.testing.assert_allclose(slope, between / (at[2] - at[0]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:R-hat")
def test_a_density_beyond_the_last_effective_draws_is_unseen_and_has_an_error():
    """Of 20 effective draws the outer seventh has fewer than three: what a fit says there is not
    believed by itself."""
    z2, beyond = [], []
    for seed in range(12):
        z = ar1(np.random.default_rng(seed), (4, 100), 0.9)
        u = np.log(scipy.stats.gamma(3.0).ppf(norm.cdf(z)))
        tree = mp.from_arrays(u[..., None], (3.0 - np.exp(u))[..., None], names=["h"])
        at = np.log(scipy.stats.gamma(3.0).ppf([0.02, 0.04, 0.5, 0.96]))
        found = mp.distribution(tree).pdf(at)
        truth = np.exp(3.0 * at - np.exp(at)) / 2.0
        z2.append(((found.mean[0] - truth) / found.mcse[0]) ** 2)
        beyond.append(found.status[0] == "unseen")
    assert np.max(z2) < 16
    share = np.mean(beyond, axis=0)
    assert share[0] > 0.8
    assert share[2] == 0.0


def cdf_of_root_and_normal(at):
    """Return P(x^(1/3) + 0.3 y ≤ t) of two standard normals by a sum over y."""
    y = np.linspace(-8, 8, 20_001)
    return norm.pdf(y) @ norm.cdf((at - 0.3 * y) ** 3) * (y[1] - y[0])


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_shortest_intervals_of_a_scale_have_the_errors_that_are_stated():
    """The scale of five effects under a half-Cauchy prior, chains of AR(0.9): both ends slide along
    the density."""
    effects = np.array([1.1, -0.6, 0.4, -1.5, 0.2])
    u = np.linspace(-4, 6, 40_001)
    total = effects @ effects
    # of the logarithm
    density = np.exp(-4 * u - total / 2 * np.exp(-2 * u) - np.log1p(np.exp(2 * u)))
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    known = np.concatenate([[True], np.diff(below) > 1e-15 * below[-1]])
    quantiles = PchipInterpolator(below[known] / below[-1], u[known])
    levels = np.linspace(0.0, 0.11, 100_001)[1:-1]
    ends = np.exp(quantiles(np.stack([levels, levels + 0.89])))
    truth, found = ends[:, np.argmin(ends[1] - ends[0])], []
    for seed in range(24):
        z = ar1(np.random.default_rng([seed, 21]), (4, 500), 0.9)
        x = quantiles(norm.cdf(z))
        scores = -4 + total * np.exp(-2 * x) - 2 / (1 + np.exp(-2 * x))
        dist = mp.distribution(
            mp.from_arrays(x[..., None], scores[..., None]), {"scale": np.exp(x)}, "zv2"
        )
        found.append(dist.interval(0.89, "hdi"))
    squares, gains = squares_and_gains(found, truth)
    assert (squares <= 1.5).all(), squares
    assert (gains > 5).all(), gains


def test_ends_of_a_shortest_interval_are_not_looked_for_as_far_as_the_outermost_draw(rng):
    """Of a funnel's coordinates a few draws make the standard deviation."""
    series = rng.normal(size=(4, 200))
    ends, reach = shortest_of_draws(series, 0.89)
    series[0, 0] = 1e6
    with_one = shortest_of_draws(series, 0.89)
    assert with_one[0] == pytest.approx(ends, abs=0.1)
    assert with_one[1] == pytest.approx(reach, rel=0.1)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("draws", [100, 500])
@pytest.mark.parametrize("power", [1.2, 5.0])
def test_a_shortest_interval_ends_where_the_density_is_largest_and_ends_at_once(power, draws):
    """Of a beta(a, 1), whose interval is (.11^(1/a), 1); of its mirror image the same, mirrored."""
    truth, found, mirrored = np.array([0.11 ** (1 / power), 1.0]), [], []
    for seed in range(8):
        p = np.random.default_rng([seed, 41]).beta(power, 1, size=(4, draws, 1))
        tree = mp.from_arrays(np.log(p / (1 - p)), power - (power + 1) * p)
        dist = mp.distribution(tree, {"p": p[..., 0], "1 - p": 1 - p[..., 0]})
        both = dist.interval(0.89, "hdi")
        found.append(both.select(np.array([0, 1])))
        mirrored.append(both.select(np.array([2, 3])))
    for bounds, exact in ((found, truth), (mirrored, 1 - truth[::-1])):
        z = np.array([(one.mean - exact) / one.mcse for one in bounds])
        assert (np.abs(z) < 4).all(), z
        # Nor is the error of an end that hundreds of draws show how far it was looked for.
        assert (np.median([one.mcse for one in bounds], axis=0) < 0.02).all()
    for one, image in zip(found, mirrored, strict=True):
        assert (np.abs(one.mean + image.mean[::-1] - 1) < one.mcse + image.mcse[::-1]).all()


@pytest.mark.parametrize(("prob", "unseen"), [(0.89, False), (0.99, True)])
@pytest.mark.parametrize("kind", ["eti", "hdi"])
def test_bounds_beyond_which_hardly_any_draw_lies_are_unseen(rng, kind, prob, unseen):
    x = rng.standard_t(5, size=(4, 100, 1))
    tree = mp.from_arrays(x, -6 * x / (5 + x**2))
    assert [status == "unseen" for status in mp.distribution(tree).interval(prob, kind).status] == [
        unseen
    ] * 2


@pytest.mark.slow
def test_densities_of_what_a_polynomial_nearly_is_are_its_own():
    """Of a maximum and of a sum with a power of 2.5 polynomials leave one per cent, and had
    densities 3 to 15 % off."""
    y = np.linspace(-9, 9, 4_001)
    at = np.array([[0.5, 1.2, 1.7, 2.3, 3.3], [-1.1, 0.2, 0.9, 1.8, 3.9]])
    largest = norm.pdf(at[0] - 1.5) * norm.cdf(at[0]) + norm.cdf(at[0] - 1.5) * norm.pdf(at[0])
    power = norm.pdf(at[1][:, None] - 0.5 * np.abs(y) ** 2.5) @ norm.pdf(y) * (y[1] - y[0])
    truth, curves = np.concatenate([largest, power]), []
    for seed in range(12):
        x = np.random.default_rng([seed, 31]).normal(size=(4, 1_000, 2))
        functions = {
            "largest": np.maximum(x[..., 0] + 1.5, x[..., 1]),
            "power": x[..., 0] + 0.5 * np.abs(x[..., 1]) ** 2.5,
        }
        curves.append(mp.distribution(mp.from_arrays(x, -x), functions, "zv2").pdf(at))
    squares, gains = squares_and_gains(curves, truth)
    assert squares.mean() <= 1.2, squares
    assert (squares <= 2.5).all(), squares
    assert (gains[:5] > 1.5).all(), gains


@pytest.mark.slow
def test_a_density_that_ends_at_once_has_the_error_of_what_stands_for_it():
    """Of the share of one of two exponentials, uniform, and of a Dirichlet's component: the
    polynomial goes on beyond zero, and densities there were 10 to 80 errors off."""
    of_share, of_component = scipy.stats.uniform(), scipy.stats.beta(1, 14)
    levels, curves = np.array([0.01, 0.03, 0.1, 0.3]), []
    for seed in range(8):
        rng = np.random.default_rng([777, seed])
        e = rng.exponential(size=(4, 250, 2))
        tree = mp.from_arrays(np.log(e), 1 - e)
        share = {"share": e[..., 0] / e.sum(axis=-1)}
        curves.append(mp.distribution(tree, share, "zv2").pdf(of_share.ppf(levels)))
        a, b = np.array([2.0, 1.0, 4.0]), np.array([13.0, 12.0, 8.0])
        z = rng.beta(a, b, size=(4, 250, 3))
        tree = mp.from_arrays(np.log(z / (1 - z)), a * (1 - z) - b * z)
        component = {"component": z[..., 1] * (1 - z[..., 0])}
        curves.append(mp.distribution(tree, component, "zv2").pdf(of_component.ppf(levels)))
    for own, marginal in ((curves[::2], of_share), (curves[1::2], of_component)):
        squares, _ = squares_and_gains(own, marginal.pdf(marginal.ppf(levels)))
        assert (squares <= 3.5).all(), squares


# ---- functions of a coordinate that are not itself


@pytest.fixture(scope="module")
def skew():
    rng = np.random.default_rng(3)
    x = TARGETS["log-gamma"].draw(rng, (4, 250))
    return x, tree_of(x, TARGETS["log-gamma"].score(x), rng.normal(size=x.shape))


def test_a_distribution_function_rises_from_zero_to_one(skew):
    x, tree = skew
    dist = mp.distribution(tree, ["h"], "zv2")
    at = np.linspace(-6.0, 5.0, 101)
    shuffled = np.random.default_rng(0).permutation(101)
    for points, order in ((at, np.arange(101)), (at[shuffled], np.argsort(shuffled))):
        curve = dist.cdf(points)
        assert (np.diff(curve.mean[0, order]) >= 0).all()
        assert curve.mean.min() >= 0.0
        assert curve.mean.max() <= 1.0
        inside = (points > x.min()) & (points < x.max())
        truth = TARGETS["log-gamma"].cdf(points)
        assert (np.abs(curve.mean[0] - truth)[inside] < 5 * curve.mcse[0][inside]).all()
        assert (curve.status[0, ~inside] == mp.Status.UNSEEN).all()
        assert (np.abs(curve.mean[0] - truth)[~inside] < 3 * curve.mcse[0][~inside]).all()


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("increasing", [True, False], ids=["exp x", "exp −x"])
def test_a_monotone_function_of_a_coordinate_has_the_probabilities_of_the_coordinate(
    skew, increasing
):
    x, tree = skew
    sign = 1.0 if increasing else -1.0
    dist = mp.distribution(tree, {"rate": np.exp(sign * x)}, "zv2")
    own = mp.distribution(tree, {"h": sign * x}, "zv2")
    at = np.array([0.0, 0.3, 1.0, 1.5]) * sign
    found, expected = dist.cdf(np.exp(at)), own.cdf(at)
    truth = TARGETS["log-gamma"].cdf(at) if increasing else 1 - TARGETS["log-gamma"].cdf(-at)
    # The map is known between the draws alone: a step may be elsewhere between two of them.
    assert (np.abs(found.mean - expected.mean) < 0.5 * expected.mcse + 1e-4).all()
    assert (np.abs(found.mean[0] - truth) < 5 * found.mcse[0]).all()
    assert (found.gain > 20).all()
    levels = np.array([0.1, 0.5, 0.9])
    for one, other in (
        (dist.quantile(levels), own.quantile(levels)),
        (dist.interval(0.8), own.interval(0.8)),
    ):
        apart = np.abs(np.log(one.mean) - other.mean)
        assert (apart < 0.5 * other.mcse + 1e-3).all()
        np.testing.assert_allclose(one.mcse, other.mcse * one.mean, rtol=0.1, atol=1e-4)


@pytest.mark.slow
def test_the_density_of_a_parameter_with_a_bound_is_zero_beyond_it_and_integrates_to_one(skew):
    x, tree = skew
    dist = mp.distribution(tree, {"scale": np.exp(x)}, "zv2")
    points = np.linspace(-1.0, 16.0, 341)
    curve = dist.pdf(points)
    assert not curve.mean[0, points < 0].any()
    assert set(curve.status[0, points < 0]) == {mp.Status.UNSEEN}
    assert (curve.mean >= 0).all()
    np.testing.assert_allclose(np.trapezoid(curve.mean[0], points), 1.0, atol=0.02)
    inside = (points > np.exp(x).min()) & (points < np.exp(x).max())
    truth = scipy.stats.gamma(3.0).pdf(points)
    assert (np.abs(curve.mean[0] - truth)[inside] < 5 * curve.mcse[0][inside] + 1e-3).all()
    assert np.median(curve.gain[0, inside]) > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["exp(θ)", "exp(5.6 θ)", "expit(3 θ)"])
def test_a_map_that_is_known_at_draws_alone_has_an_error_of_its_own(name):
    rng = np.random.default_rng(0)
    theta, beside = rng.normal(size=(2, 4, 500))
    factor = {"exp(θ)": 1.0, "exp(5.6 θ)": 5.6, "expit(3 θ)": 3.0}[name]
    forward = scipy.special.expit if name.startswith("expit") else np.exp
    z = norm.ppf(LEVELS)
    truth = forward(factor * z)
    slope = factor * truth * (1 - truth if name.startswith("expit") else 1.0)
    dist = mp.distribution(tree_of(theta, -theta, beside), {"f": forward(factor * theta)})
    quantile, density = dist.quantile(LEVELS), dist.pdf(truth)
    assert (np.abs(quantile.mean - truth) < 4.5 * quantile.mcse).all()
    # The 0.05 quantile of exp(θ) was off by 3e-5 of itself, its density by 1e-3, and both said
    # 1e-13.
    assert (np.abs(np.log(quantile.mean / truth)) < 1e-4).all()
    assert (np.abs(density.mean[0] - norm.pdf(z) / slope) < 4.5 * density.mcse[0]).all()
    assert (density.mcse[0] < 1e-2 * density.mean[0]).all()
    # A status of rounding is not that of a plain quantile.
    assert not any(
        label == "PlainMean()" and own in EXACT
        for label, own in zip(quantile.method, quantile.status, strict=True)
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("power", [1 / 3, 3.0])
def test_a_quantile_where_the_density_is_zero_or_infinite_knows_how_far_it_is(power):
    """The median of sign(θ)|θ|^power is zero. That of the cube root, whose density is zero there,
    was 0.016 ± 3e-6: Newton's method had a slope from farther away."""
    controlled = 0
    for seed in range(4):
        theta, beside = np.random.default_rng(seed).normal(size=(2, 4, 250))
        values = np.sign(theta) * np.abs(theta) ** power
        median = mp.quantile(tree_of(theta, -theta, beside), 0.5, {"f": values})
        if median.method[0] != "PlainMean()":
            controlled += 1
            assert abs(median.mean[0]) < 3 * median.mcse[0] < 3 * median.mcse_plain[0]
    assert controlled >= 2


def test_a_kernel_estimate_far_too_wide_for_a_skew_density_says_so():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(4, 500, 2))
    tree = mp.from_arrays(x, -x, np.exp(4 * x.sum(-1, keepdims=True)), value_names=["f"])
    density = mp.distribution(tree, ["f"], "plain").pdf([1.0])
    truth = norm.pdf(0.0) / (4 * np.sqrt(2))  # the kernel estimate is 1e-9
    assert abs(density.mean[0, 0] - truth) < 3 * density.mcse[0, 0]


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "method",
    [
        "plain",
        "cf",
        "zv2",
        "zv1",
        "secf",
        "auto",
    ],
)
def test_every_method_answers_every_question(method):
    rng = np.random.default_rng(8)
    x = TARGETS["log-gamma"].draw(rng, (4, 50))
    dist = mp.distribution(tree_of(x, TARGETS["log-gamma"].score(x)), ["h"], method)
    at = quantiles_of(TARGETS["log-gamma"], LEVELS[1:4])
    for found, truth in (
        (dist.cdf(at), LEVELS[1:4]),
        (dist.quantile(LEVELS[1:4]), at),
        (dist.probability(lower=at[0], upper=at[2]), 0.5),
        (dist.interval(0.5), at[[0, 2]]),
        (dist.interval(0.5, "hdi"), shortest_of(TARGETS["log-gamma"], 0.5)),
        (dist.pdf(at), TARGETS["log-gamma"].pdf(at)),
    ):
        assert (np.abs(found.mean - truth) < 5 * found.mcse).all()
        assert (found.mcse < 1.0).all()
        if method == "plain":
            np.testing.assert_array_equal(found.mean, found.mean_plain)
            assert (found.gain == 1.0).all()


# ---- values that are not what a quantity usually is


ROUNDED = {
    "float32": lambda x: x.astype(np.float32).astype(float),
    "six digits": lambda x: np.vectorize(lambda v: float(f"{v:.6g}"))(x),
    "four decimals": lambda x: np.round(x, 4),
    "two decimals": lambda x: np.round(x, 2),
}


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("rounded", ROUNDED.values(), ids=ROUNDED)
def test_values_that_were_rounded_are_known_no_better(rounded):
    """Quantiles and densities of exp(x) to six digits were a hundred errors off."""
    levels, at = np.array([0.05, 0.5, 0.9]), np.array([-1.0, 0.1, 1.005])
    squares = []
    for seed in range(8):
        x = np.random.default_rng(seed).normal(size=(4, 100, 2))
        values = {"rate": rounded(np.exp(x[..., 0]))}
        dist = mp.distribution(mp.from_arrays(x, -x), values, "zv1")
        quantiles, density = dist.quantile(levels), dist.pdf(np.exp(at))
        for found, truth in (
            ((quantiles.mean, quantiles.mcse), np.exp(norm.ppf(levels))),
            ((density.mean[0], density.mcse[0]), norm.pdf(at) / np.exp(at)),
        ):
            squares.append(((found[0] - truth) / found[1]) ** 2)
    assert np.mean(squares, axis=0).max() < 4.0


@pytest.mark.parametrize("chunked", [False, True])
def test_a_discrete_quantity_has_no_density(normal, chunked):
    x, tree = normal
    values = {"count": np.round(x[..., 0]), "two digits": np.round(x[..., 0], 2)}
    posterior = tree.posterior.to_dataset().assign(
        {name: (("chain", "draw"), each) for name, each in values.items()}
    )
    tree = tree.assign({"posterior": xarray.DataTree(posterior)})
    if chunked:
        tree = xarray.DataTree.from_dict(
            {name: group.to_dataset().chunk({"draw": 90}) for name, group in tree.children.items()}
        )
    density = mp.distribution(tree, list(values), "zv1").pdf([0.0, 0.5])
    assert set(density.status[0]) == {mp.Status.UNDEFINED}
    assert np.isnan(density.mean[0]).all()
    assert (np.abs(density.mean[1] - norm.pdf([0.0, 0.5])) < 5 * density.mcse[1]).all()
    with pytest.raises(mp.InputError, match=r"savage_dickey.*few values of count.*probability"):
        mp.savage_dickey(tree, "count", 0.0, 0.4)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_what_is_constant_or_not_finite_or_asked_for_twice(normal):
    x, tree = normal
    broken = x[..., 0].copy()
    broken[1, 7] = np.nan
    values = {"a": x[..., 0], "same": 2.5 + 0.0 * x[..., 0], "broken": broken, "again": x[..., 0]}
    dist = mp.distribution(tree, values, "zv2")
    curve, density = dist.cdf([0.0, 2.5, 3.0]), dist.pdf([0.0, 2.5, 3.0])
    np.testing.assert_array_equal(curve.mean[1], [0.0, 1.0, 1.0])
    assert curve.status.shape == curve.mean.shape
    assert all(type(one) is mp.Status for found in (curve, density) for one in found.status.flat)
    assert set(curve.status[1]) == {mp.Status.CONSTANT}
    assert np.isnan(curve.mean[2]).all()
    assert set(curve.status[2]) == {mp.Status.UNDEFINED}
    assert np.isnan(density.mean[1:3]).all()
    assert set(density.status[1]) == {mp.Status.CONSTANT}
    assert set(density.status[2]) == {mp.Status.UNDEFINED}
    np.testing.assert_array_equal(curve.mean[3], curve.mean[0])
    for found in (
        dist.quantile([0.5]),
        dist.interval(0.9),
        dist.interval(0.9, "hdi"),
        dist.probability(upper=0.5),
    ):
        each = len(found.mean) // 4
        same, bad = slice(each, 2 * each), slice(2 * each, 3 * each)
        assert set(found.status[same]) == {mp.Status.CONSTANT}
        assert (found.mcse[same] == 0).all()
        assert set(found.status[bad]) == {mp.Status.UNDEFINED}
        assert np.isnan(found.mean[bad]).all()
        np.testing.assert_array_equal(found.mean[3 * each :], found.mean[:each])
    np.testing.assert_array_equal(dist.quantile(0.5).mean[1], 2.5)


@pytest.mark.slow
def test_whole_numbers_have_the_probabilities_of_their_steps(normal):
    x, tree = normal
    dist = mp.distribution(
        tree, {"tenths": np.round(10 * x[..., 0]), "integers": np.round(2 * x[..., 0])}, "zv2"
    )
    curve = dist.cdf([-1.0, 0.0, 0.5, 1.0])
    for row, unit in ((0, 10), (1, 2)):
        truth = norm.cdf((np.array([-1.0, 0.0, 0.0, 1.0]) + 0.5) / unit)
        assert (np.abs(curve.mean[row] - truth) < 4 * curve.mcse[row] + 1e-12).all()
    # The same event, once with a threshold at values and once between them.
    assert (np.abs(curve.mean[:, 1] - curve.mean[:, 2]) < 3 * curve.mcse[:, 1:3].max(axis=1)).all()
    found = dist.quantile([0.25, 0.5, 0.75])
    assert (np.abs(found.mean - [-7, 0, 7, -1, 0, 1]) < 5 * found.mcse + 0.5).all()


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("scale", "shift"),
    [
        (1e-170, 0.0),
        (1.0, 1e6),
        (1e60, 0.0),
        (-3.0, 2.0),
    ],
)
def test_units_of_a_quantity_change_nothing_but_units(skew, scale, shift):
    """1e6 ± 1 leaves ten digits, and 1e-170 has a variance of zero."""
    x, tree = skew
    own = mp.distribution(tree, {"h": np.sign(scale) * x}, "zv2")
    moved = mp.distribution(tree, {"h": shift + scale * x}, "zv2")
    at, digits = np.array([-0.5, 0.2, 1.0]), 1e-8 + 4e-13 * abs(shift)
    size = abs(scale)
    one, other = own.cdf(at), moved.cdf(shift + size * at)
    np.testing.assert_allclose(other.mean, one.mean, atol=digits)
    np.testing.assert_allclose(other.mcse, one.mcse, rtol=1e-4, atol=digits)
    one, other = own.pdf(at), moved.pdf(shift + size * at)
    np.testing.assert_allclose(other.mean * size, one.mean, atol=digits)
    one, other = own.quantile(LEVELS), moved.quantile(LEVELS)
    np.testing.assert_allclose((other.mean - shift) / size, one.mean, atol=digits)
    np.testing.assert_allclose(other.mcse / size, one.mcse, rtol=1e-3, atol=digits)
    one, other = own.interval(0.89, "hdi"), moved.interval(0.89, "hdi")
    assert (np.abs((other.mean - shift) / size - one.mean) < 0.05 * one.mcse + 2e-4).all()


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_weighted_draws_have_weighted_distributions():
    """Draws of N(0, 1.3²) with the weights of N(0, 1) have its quantiles, and none of their own."""
    rng = np.random.default_rng(12)
    x, other = 1.3 * rng.normal(size=(2, 4, 300))
    logs = sum(norm.logpdf(part) - norm.logpdf(part, scale=1.3) for part in (x, other))
    tree = mp.from_arrays(
        np.stack([x, other], -1), -np.stack([x, other], -1), log_weights=logs, names=("a", "b")
    )
    dist = mp.distribution(tree, {"a": x, "skew": np.exp(0.5 * x) + 0.2 * other}, "zv2")
    curve = dist.cdf([-1.0, 0.0, 1.5])
    assert (np.abs(curve.mean[0] - norm.cdf([-1.0, 0.0, 1.5])) < 5 * curve.mcse[0] + 1e-12).all()
    assert (curve.mcse[0] < 1e-9).all()
    y = np.linspace(-8, 8, 4_001)
    inner = np.maximum(np.array([0.9, 1.6])[:, None] - 0.2 * y, 1e-300)
    truth = norm.cdf(2 * np.log(inner)) @ norm.pdf(y) * (y[1] - y[0])
    found = dist.cdf([[0.0, 0.1], [0.9, 1.6]])
    assert (np.abs(found.mean[1] - truth) < 4 * found.mcse[1]).all()
    assert (found.gain[1] > 2).all()
    quantiles = dist.quantile([0.25, 0.75])
    assert (
        np.abs(quantiles.mean[:2] - norm.ppf([0.25, 0.75])) < 5 * quantiles.mcse[:2] + 1e-12
    ).all()
    shortest = dist.interval(0.89, "hdi")
    assert (np.abs(shortest.mean[:2] - norm.ppf([0.055, 0.945])) < 4 * shortest.mcse[:2]).all()
    assert (
        np.abs(shortest.mean_plain[:2] - norm.ppf([0.055, 0.945])) < 5 * shortest.mcse_plain[:2]
    ).all()
    density = dist.pdf([0.0, 1.0])
    assert (np.abs(density.mean[0] - norm.pdf([0.0, 1.0])) < 5 * density.mcse[0] + 1e-12).all()


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_variables_with_shapes_have_rows_for_their_elements(normal):
    x, _ = normal
    rng = np.random.default_rng(4)
    z = rng.normal(size=(4, 100, 3))
    draws = np.concatenate([x[..., :1], z], -1)
    posterior = {"mu": (("chain", "draw"), x[..., 0]), "z": (("chain", "draw", "group"), z)}
    tree = mp.from_arrays(draws, -draws, names=("mu", "z[0]", "z[1]", "z[2]"))
    tree["posterior"] = xarray.DataTree(
        xarray.Dataset(posterior, coords={"group": ["x", "y", "w"]})
    )
    dist = mp.distribution(tree, ["mu", "z"], "zv1")
    assert dist.names == ("mu", "z[x]", "z[y]", "z[w]")
    curve = dist.cdf([[0.0], [0.1], [0.2], [0.3]])
    np.testing.assert_allclose(curve.mean[:, 0], norm.cdf([0.0, 0.1, 0.2, 0.3]), atol=1e-12)
    assert dist.quantile([0.3, 0.6]).mean.shape == (8,)
    np.testing.assert_allclose(
        dist.interval(0.5).mean.reshape(4, 2), [norm.ppf([0.25, 0.75])] * 4, atol=1e-10
    )


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_stored_trace_has_the_distributions_of_the_one_in_memory(skew, monkeypatch):
    from mcmcpost.core import arrays

    monkeypatch.setattr(arrays, "LARGE", 1_000)
    monkeypatch.setattr(arrays, "ENTRIES", 2_000)
    _, tree = skew
    lazy = xarray.DataTree.from_dict(
        {name: group.to_dataset().chunk({"draw": 90}) for name, group in tree.children.items()}
    )
    functions = ["h", "other"]
    at = np.array([-0.5, 0.5, 1.5])
    found, own = (mp.distribution(each, functions, "zv2") for each in (tree, lazy))
    one, other = found.pdf(at), own.pdf(at)
    assert (np.abs(other.mean - one.mean) < 2 * np.hypot(one.mcse, other.mcse)).all()
    for ask in (lambda dist: dist.cdf(at), lambda dist: dist.quantile([0.1, 0.5])):
        one, other = ask(found), ask(own)
        assert (np.abs(other.mean - one.mean) < 2 * np.hypot(one.mcse, other.mcse) + 1e-9).all()
        np.testing.assert_allclose(
            other.mean_plain, one.mean_plain, atol=0.3 * one.mcse_plain.max()
        )
        np.testing.assert_allclose(other.mcse_plain, one.mcse_plain, rtol=0.3)


# ---- what a user can get wrong


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (
            lambda dist: dist.cdf([0.0, np.nan]),
            r"cdf.*finite points.*got NaN or an infinity.*Pass numpy",
        ),
        (lambda dist: dist.cdf([]), r"cdf.*finite points.*got shape \(0,\)"),
        (
            lambda dist: dist.cdf([[0.0], [1.0], [2.0]]),
            r"\(2, t\) for each quantity.*got shape \(3, 1\)",
        ),
        (lambda dist: dist.cdf(["a"]), r"cdf.*real numeric array"),
        (lambda dist: dist.pdf([0.0, np.inf]), r"pdf.*finite points"),
        (lambda dist: dist.pdf(np.zeros((1, 2, 3))), r"pdf.*finite points"),
        (lambda dist: dist.quantile(5.0), r"probabilities inside \(0, 1\).*0.05, not 5"),
        (lambda dist: dist.quantile([]), r"probabilities inside \(0, 1\)"),
        (lambda dist: dist.quantile([0.5, np.nan]), r"probabilities inside \(0, 1\)"),
        (
            lambda dist: dist.probability(),
            r"`lower` below `upper`, one of them finite.*Pass lower=0.0",
        ),
        (lambda dist: dist.probability(1.0, 1.0), r"`lower` below `upper`"),
        (lambda dist: dist.probability(2.0, 1.0), r"`lower` below `upper`.*got \(2.0, 1.0\)"),
        (lambda dist: dist.probability(lower=np.nan), r"`lower`, a number"),
        (
            lambda dist: dist.interval(89.0),
            r"`prob`, a number in \(0, 1\).*got 89.0.*Pass prob=0.89",
        ),
        (
            lambda dist: dist.interval(0.9, "shortest"),
            r"`kind` to be \"eti\" or \"hdi\".*got 'shortest'",
        ),
    ],
)
def test_bad_questions_are_refused_with_what_to_do(normal, ask, words):
    dist = mp.distribution(normal[1], method="plain")
    with pytest.raises((mp.InputError, mp.InputTypeError), match=words):
        ask(dist)


def test_a_distribution_is_printed_as_its_names(normal):
    dist = mp.distribution(normal[1], ["b", "a"])
    assert repr(dist) == "Distribution of b, a"
    assert repr(curve := dist.cdf([0.0, 1.0])) == repr(curve.to_dataframe())


def test_bad_arguments_of_a_distribution_are_those_of_an_expectation(normal):
    _, tree = normal
    for arguments, words in (
        ({"method": "zv9"}, "one of auto, plain"),
        ({"integrands": ["nope"]}, "a variable of the posterior group"),
        ({"folds": 1}, "`folds` of at least 2"),
    ):
        with pytest.raises(ValueError, match=words):
            mp.distribution(tree, **arguments)
    draws = normal[0]
    wrong = mp.from_arrays(draws, draws, allow_bad_scores=True)
    with pytest.raises(mp.ScoreError, match="wrong sign"):
        mp.distribution(wrong)


@pytest.mark.parametrize("explained", [True, False])
def test_many_points_are_taken_in_blocks(explained, rng, monkeypatch):
    x = rng.normal(size=(2, 200))
    tree = tree_of(x, -x)
    values = (x if explained else rng.normal(size=x.shape))[..., None]
    dist, at = mp.distribution(tree, values), np.linspace(-2.0, 2.0, 11)
    whole = dist.cdf(at)
    monkeypatch.setattr(distribution, "LARGE", 4 * x.size)
    for one, other in zip(whole[1:], dist.cdf(at)[1:], strict=True):
        if one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=1e-9)
        else:
            np.testing.assert_array_equal(one, other)
