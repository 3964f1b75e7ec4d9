"""Spreads, correlations and functions of expectations: exact values, calibration, and what they do
at the edges."""

import gc

import arviz_base
import arviz_stats
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import xarray as xr
from chain_cases import ar1

import mcmcpost as mp
from mcmcpost.sample import Question

COVARIANCE = np.array([[1.0, 0.5, -1.0], [0.5, 1.25, -0.3], [-1.0, -0.3, 5.04]])
MEAN = np.array([1.0, 2.0, 3.0])
NAMES = ("a", "b", "c")


def normal_tree(rng, chains=4, draws=250, values=None):
    x = MEAN + rng.normal(size=(chains, draws, 3)) @ np.linalg.cholesky(COVARIANCE).T
    scores = -(x - MEAN) @ np.linalg.inv(COVARIANCE)
    return mp.from_arrays(
        x, scores, x if values is None else values(x), names=NAMES, value_names=NAMES
    )


@pytest.fixture
def tree(rng):
    return normal_tree(rng)


@pytest.mark.parametrize(
    ("estimator", "truth", "first"),
    [
        (mp.variance, np.diagonal(COVARIANCE), "var(a)"),
        (mp.standard_deviation, np.sqrt(np.diagonal(COVARIANCE)), "sd(a)"),
        (mp.covariance, COVARIANCE[np.triu_indices(3)], "cov(a, a)"),
        (
            mp.correlation,
            (COVARIANCE / np.sqrt(np.outer(np.diagonal(COVARIANCE), np.diagonal(COVARIANCE))))[
                np.triu_indices(3, 1)
            ],
            "corr(a, b)",
        ),
    ],
)
def test_spreads_of_a_normal_posterior_are_exact(tree, estimator, truth, first):
    before = tree.copy(deep=True)
    found = estimator(tree, method="zv2")
    assert found.names[0] == first
    np.testing.assert_allclose(found.mean, truth, rtol=1e-10)
    assert set(found.status) == {"on_trust"}
    assert (np.abs(found.mean_plain - truth) < 5 * found.mcse_plain).all()
    assert (found.mcse_plain > 0.01 * np.abs(found.mean_plain)).all()
    assert tree.identical(before)


def test_the_plain_standard_deviation_and_its_error_are_arviz_s(tree):
    found = mp.standard_deviation(tree, method="plain")
    table = arviz_stats.summary(tree, round_to="none")
    np.testing.assert_allclose(found.mean, table["sd"], rtol=1e-3)  # n in place of n - 1
    np.testing.assert_allclose(found.mcse, table["mcse_sd"], rtol=0.05)
    np.testing.assert_array_equal(found.mean, found.mean_plain)
    assert set(found.status) == {"plain"}


@pytest.mark.slow
def test_a_linear_function_is_the_expectation_of_the_combination(tree):
    for method in ("zv1", "plain"):
        asked = {"f": lambda draw: jnp.exp(0.3 * draw["a"]), "g": lambda draw: draw["c"] ** 2}
        found = mp.delta_method(
            tree, {"sum": lambda mean: mean["f"] - 0.1 * mean["g"] + 3.0}, asked, method
        )
        whole = mp.expectation(
            tree,
            {"sum": lambda draw: jnp.exp(0.3 * draw["a"]) - 0.1 * draw["c"] ** 2 + 3.0},
            method,
        )
        np.testing.assert_allclose(found.mean, whole.mean, rtol=1e-12)
        np.testing.assert_allclose(found.mcse, whole.mcse, rtol=1e-6)
        np.testing.assert_allclose(found.mcse_plain, whole.mcse_plain, rtol=1e-10)
        np.testing.assert_allclose(found.residuals, whole.residuals, atol=1e-12)
        assert found.status == whole.status


@pytest.mark.slow
def test_functions_take_arrays_of_the_shape_of_a_draw(tree):
    stacked = {"x": lambda draw: jnp.stack([draw["a"], draw["b"]]), "c": lambda draw: draw["c"]}
    found = mp.delta_method(
        tree,
        {"ratio": lambda mean: mean["x"][0] / mean["x"][1], "c": lambda mean: mean["c"]},
        stacked,
        "zv1",
    )
    assert found.names == ("ratio", "c")
    np.testing.assert_allclose(found.mean, [0.5, 3.0], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("method", ["plain", "zv3"])
def test_errors_are_honest_over_replications(rng, method):
    """The coefficient of variation of a lognormal and its correlation with another variable, 100
    draws a chain."""
    truth = np.array([np.sqrt(np.expm1(1 / 16)), 0.25 * 0.5 / np.sqrt(np.expm1(1 / 16) * 1.25)])
    z, gain = [], []
    for _ in range(25):
        tree = normal_tree(
            rng,
            draws=100,
            values=lambda x: np.concatenate([np.exp(x[..., :1] / 4), x[..., 1:]], -1),
        )
        spread = mp.delta_method(
            tree,
            {"cv": lambda mean: jnp.sqrt(mean["aa"] - mean["a"] ** 2) / mean["a"]},
            {"a": lambda draw: draw["a"], "aa": lambda draw: draw["a"] ** 2},
            method,
        )
        found = mp.correlation(tree, ["a", "b"], method)
        z.append(
            (np.array([spread.mean[0], found.mean[0]]) - truth) / [spread.mcse[0], found.mcse[0]]
        )
        gain.append([spread.gain[0], found.gain[0]])
    squares = np.mean(np.square(z), axis=0)
    assert (squares < 1.8).all()
    assert (squares > (0.4 if method == "plain" else 0.05)).all()
    assert (np.median(gain, axis=0) > (0.9 if method == "plain" else 3.0)).all()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::mcmcpost.ConvergenceWarning")
def test_a_spread_is_that_of_the_fits_where_one_of_them_is_worse_than_the_plain_mean():
    """Chains that lie to one side: the plain second moment less the square of the controlled mean
    was below zero, and the standard deviation undefined."""
    z = ar1(np.random.default_rng(10), (4, 100, 1), 0.95)
    x = scipy.stats.gamma.ppf(scipy.stats.norm.cdf(z), 3.0)
    tree = mp.from_arrays(np.log(x), 3.0 - x)
    found = mp.standard_deviation(tree, {"x": x[..., 0]}, "zv3")
    moments = {"x": x[..., 0], "xx": x[..., 0] ** 2}
    first, second = mp.expectation(tree, moments, "zv3", fallback=False).mean
    assert found.status == ("controlled",)
    np.testing.assert_allclose(found.mean[0], np.sqrt(second - first**2), rtol=1e-6)
    assert abs(found.mean[0] - np.sqrt(3.0)) < 3 * found.mcse[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::mcmcpost.ConvergenceWarning")
def test_the_error_of_a_plain_spread_knows_how_few_effective_draws_make_it_up(rng):
    """ArviZ's mcse_sd had a mean z² of 2.2 for exp(x/2) of normal chains with AR(0.9)."""
    x = ar1(rng, (4, 250, 120), 0.9)
    tree = mp.from_arrays(x[..., :1], -x[..., :1])
    integrands = {"f": np.exp(0.5 * x)}
    found = mp.standard_deviation(tree, integrands, "plain")
    truth = np.sqrt(np.expm1(0.25) * np.exp(0.25))
    z = (found.mean - truth) / found.mcse
    assert 0.5 < np.mean(z**2) < 1.65  # χ² of 120 at 1e-5, over 120


@pytest.mark.slow
@pytest.mark.parametrize("method", ["plain", "zv1"])
def test_where_the_slope_vanishes_the_second_order_is_the_error(rng, method):
    """The square of a mean of zero: the estimate is the square of a normal error, and its own error
    as large."""
    errors, reported = [], []
    for _ in range(20):
        x = rng.normal(size=(4, 50, 1))
        tree = mp.from_arrays(x, -x, x + 0.2 * (x**2 - 1), value_names=("f",))
        found = mp.delta_method(tree, {"square": lambda mean: mean["f"] ** 2}, method=method)
        errors.append(found.mean[0])
        reported.append(found.mcse[0])
        assert found.status[0] not in ("exact", "on_trust")
    assert 0.05 < np.mean(np.square(errors)) / np.mean(np.square(reported)) < 2.0


def test_a_mean_that_is_exact_has_an_exact_square(tree):
    found = mp.delta_method(tree, {"square": lambda mean: (mean["a"] - 1.0) ** 2}, method="zv1")
    assert abs(found.mean[0]) < 1e-20
    assert found.mcse[0] < 1e-20
    assert found.mcse_plain[0] > 1e-4


@pytest.mark.filterwarnings("ignore::mcmcpost.ScoreWarning")
def test_a_slope_of_zero_hides_no_doubt(rng):
    x = rng.normal(size=(1, 3, 1))
    few = mp.from_arrays(x, -x, names=("a",), allow_bad_scores=True)
    found = mp.delta_method(
        few, {"none": lambda mean: 0.0 * mean["a"]}, method="plain", allow_bad_scores=True
    )
    assert found.status == ("too_few_draws",)
    x = rng.normal(size=(4, 250, 1))
    wrong = mp.from_arrays(x, x, names=("a",), allow_bad_scores=True)
    centre = float(x.mean())
    square = {"square": lambda mean: (mean["a"] - centre) ** 2}
    assert mp.delta_method(wrong, square, method="plain", allow_bad_scores=True).status == (
        "bad_scores",
    )


@pytest.mark.slow
def test_what_is_not_finite_matters_only_where_it_is_used(tree):
    values = np.array(tree.posterior["a"])
    values[0, 0] = np.nan
    found = mp.delta_method(
        tree,
        {"good": lambda mean: mean["b"] / mean["c"], "bad": lambda mean: mean["nan"] + mean["b"]},
        {"nan": values, "b": tree.posterior["b"].values, "c": tree.posterior["c"].values},
        "zv1",
    )
    assert [str(status) for status in found.status] == ["on_trust", "undefined"]
    assert np.isfinite(found.mean).tolist() == [True, False]
    assert [
        str(status) for status in mp.standard_deviation(tree, {"nan": values}, "zv1").status
    ] == ["undefined"]
    root = mp.delta_method(tree, {"root": lambda mean: jnp.sqrt(-mean["b"])}, method="zv1")
    assert [str(status) for status in root.status] == ["undefined"]


@pytest.mark.slow
def test_the_mean_where_a_quantity_is_finite_is_a_ratio(rng, recwarn):
    """Without the draws where it is not, controls would shift the mean: z² was 8.3, of the ratio
    0.5."""
    bound = -2.5
    truth = scipy.stats.norm.expect(lambda x: np.log(x - bound), lb=bound, conditional=True)
    z = []
    for _ in range(30):
        x = rng.normal(size=(4, 500, 1))
        with np.errstate(invalid="ignore"):
            f = np.log(x[..., 0] - bound)
        finite = np.isfinite(f)
        integrands = {"f": np.where(finite, f, 0.0), "finite": finite}
        ratio = {"f": lambda mean: mean["f"] / mean["finite"]}
        found = mp.delta_method(mp.from_arrays(x, -x), ratio, integrands, "zv2")
        z.append(float((found.mean[0] - truth) / found.mcse[0]))
    assert np.mean(np.square(z)) < 2.4  # χ² of 30 at 1e-5, over 30
    assert found.gain[0] > 1.5
    assert not recwarn.list
    with pytest.warns(
        UserWarning, match=r"f at \d+ of 2000 draws.*Do not leave these draws out.*delta_method"
    ):
        mp.expectation(mp.from_arrays(x, -x), {"f": f}, "zv2")


def test_a_step_beside_the_expectation_is_undefined(tree):
    steps = {
        "near": lambda mean: jnp.floor(mean["a"] - 1.0),  # E[a] = 1
        "far": lambda mean: jnp.floor(mean["a"] - 1.5),
        "flat": lambda mean: 0.0 * mean["a"] + 3.0,
    }
    found = mp.delta_method(tree, steps, method="plain")
    assert [str(status) for status in found.status] == ["undefined", "constant", "constant"]
    assert found.mean[1:].tolist() == [-1.0, 3.0]


def test_a_name_that_is_not_there_is_told(tree):
    with pytest.raises(KeyError) as raised:
        mp.delta_method(tree, {"ratio": lambda mean: mean["a"] / mean["d"]}, method="plain")
    assert "delta_method: the argument of `ratio` has a, b, c." in raised.value.__notes__


@pytest.mark.slow
def test_a_constant_has_no_spread_and_no_correlation(tree):
    asked = {"a": tree.posterior["a"].values, "one": np.ones((4, 250))}
    found = mp.standard_deviation(tree, asked, "zv1")
    assert found.mean[1] == found.mcse[1] == 0
    assert found.status[1] == "constant"
    assert mp.correlation(tree, asked, "zv1").status == ("undefined",)


@pytest.mark.slow
def test_what_has_one_value_has_no_part_in_spreads(tree):
    """A constant, or a zero that is a parameter, as in a Cholesky factor: no event that was not
    seen."""
    new = tree.copy()
    new["posterior"] = (
        tree["posterior"].to_dataset().assign(zero=(("chain", "draw"), np.zeros((4, 250))))
    )
    asked = {"more": np.full((4, 250), 1.7)}
    both = (
        mp.covariance(new, ["a", "zero"], "zv1"),
        mp.covariance(new, {"a": new.posterior["a"].values} | asked, "zv1"),
    )
    for found in (*both, mp.variance(new, ["a", "zero"], "zv1")):
        own = np.array(["zero" in name or "more" in name for name in found.names])
        assert (found.mcse[own] == 0).all()
        assert (found.mcse[~own] > 0).all()
        assert {found.status[j] for j in np.flatnonzero(own)} == {"constant"}
    rare = mp.variance(tree, {"rare": lambda draw: draw["a"] > 50.0}, "zv1")
    assert rare.status == ("unseen",)
    assert rare.mcse[0] > 1e-4


def test_an_event_that_was_not_seen_has_its_share_in_the_error(tree):
    # Values, of which nothing else is known: an expectation sees more in a comparison.
    asked = {"rare": lambda draw: draw["a"] > 50.0, "half": tree.posterior["b"].values > 2.0}
    found = mp.delta_method(tree, {"odds": lambda mean: mean["rare"] / mean["half"]}, asked, "zv1")
    unseen = mp.expectation(tree, asked, "zv1")
    assert unseen.status[0] == "unseen"
    np.testing.assert_allclose(found.mcse, unseen.mcse[0] / unseen.mean[1], rtol=0.01)
    assert found.status == ("unseen",)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_spreads_have_the_units_of_the_integrands(tree, unit):
    values = np.exp(0.3 * tree.posterior["a"].values)
    own, found = (mp.standard_deviation(tree, {"f": values * size}, "zv2") for size in (1.0, unit))
    for name in ("mean", "mcse", "mean_plain", "mcse_plain"):
        np.testing.assert_allclose(getattr(found, name), unit * getattr(own, name), rtol=1e-9)
    np.testing.assert_allclose(found.gain, own.gain, rtol=1e-9)


@pytest.mark.slow
def test_the_summary_joins_that_of_arviz(rng):
    x = rng.normal(size=(4, 100, 3))
    tree = mp.from_arrays(x, -x)
    years = xr.DataArray(x, dims=("chain", "draw", "year"), coords={"year": [1990, 2000, 2001]})
    posterior = xr.Dataset({"level": years}, {"chain": range(4), "draw": range(100)})
    tree["posterior"] = xr.DataTree(posterior)
    table = arviz_stats.summary(tree, round_to="none")
    joined = table.join(mp.summary(tree, method="zv2", sd=True, quantiles=(0.055, 0.945)))
    assert list(joined.index) == ["level[1990]", "level[2000]", "level[2001]"]
    assert not joined.isna().any(axis=None)
    np.testing.assert_allclose(joined["mean_cv"], 0.0, atol=1e-12)
    np.testing.assert_allclose(joined["sd_cv"], 1.0, atol=1e-12)
    own = mp.quantile(tree, [0.055, 0.945], method="zv2")
    for k, end in enumerate(("eti89_lb", "eti89_ub")):
        assert (
            np.abs(joined[f"q{(0.055, 0.945)[k]}_cv"] - joined[end]) < 3 * own.mcse_plain[k::2]
        ).all()
    np.testing.assert_array_equal(joined[["q0.055_cv", "q0.945_cv"]].to_numpy().ravel(), own.mean)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "prob", "kind"),
    [
        ({"ci_prob": 0.89}, 0.89, "eti"),
        ({"ci_kind": "hdi"}, 0.5, "hdi"),
        ({"ci_prob": 0.75, "ci_kind": "hdi"}, 0.75, "hdi"),
    ],
)
def test_the_interval_of_the_summary_is_that_of_arviz(rng, asked, prob, kind):
    """Of a normal posterior the bounds are known, and the columns are those of ArviZ."""
    x = rng.normal(size=(4, 250, 2))
    tree = mp.from_arrays(x, -x)
    with arviz_base.rc_context({"stats.ci_prob": 0.5, "stats.ci_kind": "eti"}):
        table = mp.summary(tree, method="zv1", median=True, **asked)
        joined = arviz_stats.summary(tree, round_to="none", **asked).join(table)
    title = f"{kind}{int(100 * prob)}"
    assert not joined.isna().any(axis=None)
    ends = scipy.stats.norm.interval(prob)
    for column, truth in (("median", 0.0), (f"{title}_lb", ends[0]), (f"{title}_ub", ends[1])):
        # where it is zero, bounds are still looked for between points
        error = table[f"mcse_{column}_cv"]
        assert (np.abs(table[f"{column}_cv"] - truth) < 4.5 * error + 1e-7).all()
        assert (error < 0.005).all()  # of the plain ones, about 0.05
        if column in joined:
            assert (np.abs(joined[column] - joined[f"{column}_cv"]) < 0.4).all()
    found = mp.distribution(tree, method="zv1").interval(prob, kind)
    # Quantiles beside them are found in the same products, which may move the last digit.
    for error, expected in (("", found.mean), ("mcse_", found.mcse)):
        ends = table[[f"{error}{title}_{end}_cv" for end in ("lb", "ub")]].to_numpy().ravel()
        np.testing.assert_allclose(ends, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_the_summary_has_what_is_asked_of_the_distribution_and_no_more(tree):
    plain = list(mp.summary(tree, method="zv1"))
    assert not any("lb" in column or "median" in column for column in plain)
    with arviz_base.rc_context({"stats.ci_prob": 0.5}):
        table = mp.summary(
            tree, method="zv1", sd=True, median=True, quantiles=(0.25, 0.75), ci_kind="eti"
        )
    every = ["sd", "median", "eti50_lb", "eti50_ub", "q0.25", "q0.75"]
    assert list(table) == plain + [
        column for name in every for column in (f"{name}_cv", f"mcse_{name}_cv")
    ]
    for bound, same in (("eti50_lb", "q0.25"), ("eti50_ub", "q0.75")):
        np.testing.assert_allclose(table[f"{bound}_cv"], table[f"{same}_cv"], rtol=1e-9)


@pytest.mark.slow
def test_a_function_does_not_keep_the_question(rng):
    """The compiled program of a function is cached: what the function holds stays in memory."""
    x = rng.normal(size=(2, 50, 1))
    mp.delta_method(
        mp.from_arrays(x, -x, names=("x",)), {"square": lambda mean: mean["x"] ** 2}, method="plain"
    )
    gc.collect()
    assert not any(isinstance(held, Question) for held in gc.get_objects())


def test_a_function_of_constants_alone_is_one(rng):
    """Their rounding is no reason for an error; a diagonal of a correlation matrix varies by it."""
    x = rng.normal(size=(4, 100, 1))
    ones = 1 + np.finfo(float).eps * rng.integers(0, 2, size=(4, 100, 1))
    tree = mp.from_arrays(
        x, -x, np.concatenate([x, ones], -1), names=("x",), value_names=("x", "one")
    )
    found = mp.delta_method(tree, {"gap": lambda mean: mean["one"] - 1.0}, method="zv1")
    assert abs(found.mean[0]) < 1e-15
    assert (found.mcse[0], found.status) == (0.0, (mp.Status.CONSTANT,))
