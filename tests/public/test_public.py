"""The public functions on trees: composition, the gate's consequences, and what is left
untouched."""

import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.stats
from scipy.signal import lfilter
from scipy.stats import norm

import mcmcpost as mp
from mcmcpost.stein import SquaredExponential


@pytest.fixture
def draws(rng):
    return rng.normal(size=(4, 100, 2))


@pytest.fixture
def tree(draws):
    return mp.from_arrays(draws, -draws, names=("a", "b"))


def test_the_table_has_the_promised_columns_and_the_plain_mean(tree, draws):
    table = mp.expectation(tree, method="zv2").to_dataframe()
    assert list(table.columns) == [
        "mean", "sd", "mcse", "mean_cv", "mcse_cv", "gain", "method", "status", "digits",
    ]  # fmt: skip
    assert list(table.index) == ["a", "b"]
    pd.testing.assert_frame_equal(
        mp.summary(tree, method="zv2"), table.drop(columns=["mean", "sd"])
    )
    np.testing.assert_allclose(table["mean"], draws.mean(axis=(0, 1)))
    assert set(table["status"]) == {"on_trust"}  # no log density verifies the scores
    np.testing.assert_allclose(table["mean_cv"], 0.0, atol=1e-12)


def test_integrands_may_be_functions_arrays_or_names(tree, draws):
    by_function = mp.expectation(tree, {"c": lambda d: np.e ** d["a"]}, "zv2")
    by_array = mp.expectation(tree, np.exp(draws[..., 0]), "zv2")
    np.testing.assert_allclose(by_function.mean, by_array.mean, rtol=1e-9)
    assert mp.expectation(tree, ["b"], "plain").names == ("b",)


def test_the_tree_is_untouched_and_results_go_into_a_new_one(tree):
    before = tree.copy(deep=True)
    result = mp.expectation(tree, method="zv2")
    out = result.to_datatree(tree)
    assert before.identical(tree)
    assert "control_variates" in out.children
    assert "control_variates" not in tree.children
    assert out["control_variates"]["mean_cv"].sizes == {"quantity": 2}
    quantities = result.to_json_dict()["quantities"]
    for name, column in result.to_dataframe().items():  # a name means one thing everywhere
        assert [quantity[name] for quantity in quantities] == list(column)
        if name != "digits":
            assert list(out["control_variates"][name].values) == list(column)


def test_json_has_null_for_what_is_not_finite(tree, draws):
    values = np.where(draws[..., 0] > 2.0, np.nan, draws[..., 0])
    record = json.loads(
        json.dumps(mp.expectation(tree, {"x": values}, "zv2").to_json_dict(), allow_nan=False)
    )
    (quantity,) = record["quantities"]
    assert quantity["status"] == "undefined"
    assert quantity["mean"] is None
    assert quantity["mean_cv"] is None


@pytest.mark.slow
def test_an_unrecognised_failure_of_the_gate_gives_plain_means_whatever_the_method(rng):
    x = np.abs(rng.normal(size=(4, 250, 1)))
    with pytest.warns(mp.ScoreWarning):
        half_normal = mp.from_arrays(x, -x)
    for method in ("auto", "zv2", mp.SemiExact(1, SquaredExponential(1.0), 1e-4)):
        with pytest.warns(mp.ScoreWarning):
            result = mp.expectation(half_normal, method=method)
        assert result.mean == result.mean_plain
        assert result.status == (mp.Status.PLAIN,)
    with pytest.warns(mp.ScoreWarning):
        forced = mp.expectation(half_normal, method="zv2", allow_bad_scores=True)
    assert forced.status == (mp.Status.BAD_SCORES,)
    with pytest.warns(mp.ScoreWarning), pytest.raises(ValueError, match="Stein's identity"):
        mp.stein_weights(half_normal)


@pytest.mark.slow
def test_a_controlled_mean_that_contradicts_the_plain_one_is_warned_about(rng):
    """Two bumps with the scores of one normal of the same mean and variance, which the gate lets
    through."""
    x = 0.9 * rng.choice([-1.0, 1.0], size=(4, 300, 1)) + np.sqrt(0.19) * rng.normal(
        size=(4, 300, 1)
    )
    tree = mp.from_arrays(x, -x)
    with pytest.warns(mp.ScoreWarning, match=r"The controlled estimates of f\[0\] contradict"):
        # of a normal this is three, exactly
        result = mp.expectation(tree, x**4, mp.ZeroVariance(4))
    assert result.status == (mp.Status.BAD_SCORES,)
    assert result.mean == result.mean_plain
    with pytest.warns(mp.ScoreWarning, match=r"var\(f\[0\]\) contradict"):
        mp.variance(tree, x**2, mp.ZeroVariance(4))
    with pytest.warns(mp.ScoreWarning, match="half contradict"):
        mp.delta_method(tree, {"half": lambda mean: mean["f"][0] / 2}, x**4, mp.ZeroVariance(4))
    with pytest.warns(mp.ScoreWarning, match=r"one: f\[0\] contradict"):
        mp.joint_expectation(
            {"one": (tree, x**4)}, mp.VectorValued(SquaredExponential(3.0), np.eye(1), 1e-6)
        )


@pytest.mark.slow
def test_a_fixed_parameter_costs_the_others_nothing(draws):
    with_fixed = np.insert(draws, 1, 2.0, axis=-1)
    tree = mp.from_arrays(
        with_fixed, np.where(with_fixed == 2.0, 0.0, -with_fixed), names=("a", "fixed", "b")
    )
    alone = mp.from_arrays(draws, -draws, names=("a", "b"))
    cubes = draws[..., 0] ** 3 + np.exp(draws[..., 1])
    # features of a coordinate that is held fixed do not average to zero: degree three was biased by
    # them
    found, expected = (mp.expectation(t, cubes, "zv3", fallback=False) for t in (tree, alone))
    np.testing.assert_allclose([found.mean, found.mcse], [expected.mean, expected.mcse])
    assert mp.expectation(tree, method="zv1").status == (
        mp.Status.ON_TRUST,
        mp.Status.CONSTANT,
        mp.Status.ON_TRUST,
    )
    assert "<p>Constant: fixed = 2</p>" in mp.html_report(tree, method="zv1")


def test_a_wrong_sign_is_an_error_unless_overridden(draws):
    with pytest.raises(mp.ScoreError, match="wrong sign"):
        mp.from_arrays(draws, draws)
    tree = mp.from_arrays(draws, draws, allow_bad_scores=True)
    with pytest.raises(mp.ScoreError, match="wrong sign"):
        mp.expectation(tree)
    # minus one, and believed
    wrong = mp.expectation(tree, draws[..., 0] ** 2, "zv2", allow_bad_scores=True)
    assert wrong.status == (mp.Status.BAD_SCORES,)
    np.testing.assert_allclose(wrong.mean, -1.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: mp.expectation(t, method="zv9"), "one of auto, plain"),
        (lambda t: mp.expectation(t, ["nope"]), "a variable of the posterior group"),
        (lambda t: mp.expectation(t, folds=1), "`folds` of at least 2"),
        (lambda t: mp.quantile(t, 1.5), r"probabilities inside \(0, 1\)"),
        (lambda t: mp.quantile(t, []), r"probabilities inside \(0, 1\)"),
        (lambda t: mp.expectation(t, np.ones((4, 99))), "integrands"),
    ],
)
def test_bad_arguments_are_named(tree, call, words):
    with pytest.raises(ValueError, match=words):
        call(tree)


def test_quantiles_of_what_is_controlled_are_exact(tree):
    result = mp.quantile(tree, [0.1, 0.5, 0.1], ["a"], method="zv2")
    assert result.names == ("a [0.1]", "a [0.5]")
    np.testing.assert_array_less(np.abs(result.mean - norm.ppf([0.1, 0.5])), 4.5 * result.mcse)
    assert (result.mcse < 1e-10 * result.mcse_plain).all()


@pytest.mark.slow
def test_stein_weights_integrate_everything_better_than_equal_ones(tree, draws):
    weights = mp.stein_weights(tree, method=mp.ControlFunctional(SquaredExponential(2.0), 1e-6))
    np.testing.assert_allclose(weights.values.sum(), 1.0)
    np.testing.assert_allclose(weights.mean(np.cos(draws[..., 0])), np.exp(-0.5), atol=1e-3)
    stored = weights.to_datatree(tree)
    weighted = (stored["sample_stats"]["stein_weight"] * stored["posterior"]["a"]).sum()
    np.testing.assert_allclose(weighted, 0.0, atol=1e-3)
    kernel = SquaredExponential(2.0)  # the weights minimise the discrepancy of their own kernel
    better = mp.kernel_stein_discrepancy(tree, kernel, weights=weights)
    assert better < 0.1 * mp.kernel_stein_discrepancy(tree, kernel)


@pytest.mark.slow
def test_without_x64_the_library_still_solves_in_float64_and_leaves_the_configuration_alone():
    program = """
import numpy as np, jax, mcmcpost as mp
x = np.random.default_rng(0).normal(size=(4, 60, 2)).astype("float32")
result = mp.expectation(mp.from_arrays(x, -x), x[..., 0] ** 2, method="zv2")
assert result.mean.dtype == np.float64 and abs(result.mean[0] - 1) < 1e-4, result.mean
assert not jax.config.jax_enable_x64
assert jax.numpy.ones(1).dtype == np.float32
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_a_quantile_of_what_is_not_finite_is_undefined_and_its_gain_is_its_own(tree, draws):
    broken = draws[..., 0].copy()
    broken[2, 3] = np.nan
    words = r"undefined: broken at 1 of \d+ draws, the first at chain 2, draw 3\. Repair"
    with pytest.warns(UserWarning, match=words):
        result = mp.quantile(tree, 0.5, {"good": draws[..., 0], "broken": broken}, "zv2")
    assert result.status[1] is mp.Status.UNDEFINED
    assert np.isnan([result.mean[1], result.mcse[1], result.gain[1]]).all()
    np.testing.assert_allclose(result.gain[0], (result.mcse_plain[0] / result.mcse[0]) ** 2)


def test_arguments_that_would_be_ignored_are_refused(tree):
    with pytest.raises(ValueError, match="max_states"):
        mp.ControlFunctional(max_states=100, solver=mp.ConjugateGradients())
    with pytest.raises(ValueError, match="max_states"):
        mp.stein_weights(tree, method=mp.ControlFunctional(max_states=100))


@pytest.mark.parametrize(
    "ask", [mp.expectation, lambda tree, values, method: mp.quantile(tree, 0.5, values, method)]
)
def test_chains_that_agree_in_the_mean_and_not_in_the_spread_are_told(rng, ask):
    away = np.abs(rng.normal(size=(4, 1))) * (-1.0) ** np.arange(200) + 0.05 * rng.normal(
        size=(4, 200)
    )
    with pytest.warns(UserWarning, match="R-hat") as told:
        ask(mp.from_arrays(away[..., None], -away[..., None]), away, "plain")
    assert len(told) == 1
    independent = rng.normal(size=(4, 25, 3))
    ask(mp.from_arrays(independent, -independent), independent, "plain")


def test_whole_numbers_are_not_taken_for_rounded_ones(rng):
    """Positions of seven digits are exact in float32, and neither constant nor each other."""
    x = rng.normal(size=(4, 200, 1))
    tree, start = mp.from_arrays(x, -x), 12_345_678 + np.round(20 * x[..., 0]).astype(int)
    found = mp.expectation(tree, {"start": start, "end": start + 9, "same": 1.0 * start}, "plain")
    np.testing.assert_allclose(np.diff(found.mean), [9.0, -9.0])
    assert (found.mcse > 0.1).all()
    single = {
        "a": np.float32(1e5 + x[..., 0]),
        "b": np.float32(1e5 + x[..., 0]) + np.float32(0.0625),
    }
    np.testing.assert_allclose(
        np.diff(mp.expectation(tree, single, "plain").mean), 0.0625, rtol=1e-3
    )


def test_quantities_of_other_units_are_not_the_same(rng):
    x = rng.normal(size=(2, 50, 1))
    found = mp.expectation(
        mp.from_arrays(x, -x), np.stack([1e100 * x[..., 0], 2e100 * x[..., 0]], -1), "plain"
    )
    assert found.duplicates == {}


def test_the_gain_of_what_is_exact_is_that_of_its_error(rng):
    x = rng.normal(size=(4, 100, 2))
    found = mp.expectation(mp.from_arrays(x, -x), method="zv2")
    np.testing.assert_allclose(found.gain, (found.mcse_plain / found.mcse) ** 2)


def test_more_folds_than_can_be_halved_are_refused(rng):
    x = rng.normal(size=(2, 1_000, 1))
    with pytest.raises(ValueError, match="`folds` of at most 1000"):
        mp.expectation(mp.from_arrays(x, -x), method="plain", folds=2_000)


def test_a_fixed_coordinate_is_in_no_block(rng):
    draws = rng.normal(size=(2, 50, 9))
    draws[..., 3] = 1.0
    tree = mp.from_arrays(draws, -draws, allow_bad_scores=True)
    moving = tuple(f"x[{i}]" for i in range(9) if i != 3)
    assert mp.structure(tree) == {"x": moving}
    with pytest.raises(
        mp.InputError, match=r"labels of coordinates that move, got x\[3\] in block `x`"
    ):
        mp.expectation(
            tree, method=mp.Structured(structure={"x": ("x[2]", "x[3]")}), allow_bad_scores=True
        )


def normal_pair(rng, chains=4, draws=500, correlation=0.0):
    """Return a trace of two correlated normals `a` and `b`."""
    covariance = np.array([[1.0, 0.5], [0.5, 1.25]])
    z = rng.normal(size=(chains, draws, 2))
    for i in range(1, draws):
        z[:, i] = correlation * z[:, i - 1] + np.sqrt(1 - correlation**2) * z[:, i]
    x = z @ np.linalg.cholesky(covariance).T
    return mp.from_arrays(x, -x @ np.linalg.inv(covariance), names=("a", "b"))


EVENTS = {
    "sum": lambda draw: draw["a"] + draw["b"] > 0.5,
    "ratio": lambda draw: jnp.where(jnp.exp(draw["a"]) <= 1.4 * jnp.exp(draw["b"] / 2), 1.0, 0.0),
    "not": lambda draw: ~(draw["a"] < 0.3),
}
TRUTHS = norm.sf([0.5 / np.sqrt(3.25), -np.log(1.4) / np.sqrt(0.8125), 0.3])


def test_events_of_several_coordinates_gain_as_what_they_compare(rng):
    """On a normal posterior they are exact: their margins, or logarithms of them, are linear."""
    found = mp.expectation(normal_pair(rng), EVENTS)
    np.testing.assert_allclose(found.mean, TRUTHS, atol=1e-8)
    assert (found.mcse < 1e-8).all()
    # Two comparisons in one are no event of one margin, and what has no threshold has none.
    both = {"both": lambda draw: (draw["a"] > 0.3) & (draw["b"] > 0.0)}
    assert mp.expectation(normal_pair(rng), both, "zv2").method != found.method[:1]


@pytest.mark.usefixtures("unchecked")
def test_events_of_margins_that_are_not_linear_have_honest_errors(rng):
    """P(X + Y > 10) of gamma variables sampled by their logarithms, autocorrelated."""
    shapes, z2 = np.array([3.0, 5.0]), []
    event = {"e": lambda draw: jnp.exp(draw["a"]) + jnp.exp(draw["b"]) > 10.0}
    for _ in range(12):
        z = lfilter([np.sqrt(0.19)], [1, -0.9], rng.normal(size=(4, 800, 2)), axis=1)
        u = np.log(scipy.stats.gamma(shapes).ppf(norm.cdf(z[:, 300:])))
        tree = mp.from_arrays(u, shapes - np.exp(u), names=("a", "b"))
        found = mp.expectation(tree, event, mp.ZeroVariance(2))
        assert found.gain[0] > 10
        z2.append(((found.mean[0] - scipy.stats.gamma(8).sf(10.0)) / found.mcse[0]) ** 2)
    assert np.mean(z2) < 2.5
    assert max(z2) < 4.5**2
