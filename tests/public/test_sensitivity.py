"""Another prior and derivatives with respect to one, on a conjugate model whose answers are
exact."""

import numpy as np
import pytest
from scipy.stats import chi2, norm

import mcmcpost as mp

Y, NOISE = 1.0, 0.25
NEW_MEAN, NEW_SD = 0.5, 1.2


def trace(rng, shape=(4, 100)):
    """Return exact draws of x given y, with x ~ N(0, 1) and y ~ N(x, 0.25): N(0.8, 0.2)."""
    draws = 0.8 + np.sqrt(0.2) * rng.normal(size=(*shape, 1))
    return mp.from_arrays(draws, 5.0 * (0.8 - draws), names=("x",))


def log_ratio(draw):
    x = draw["x"]
    return -0.5 * ((x - NEW_MEAN) / NEW_SD) ** 2 - np.log(NEW_SD) + 0.5 * x**2


EVIDENCE = norm.logpdf(Y, NEW_MEAN, np.sqrt(NEW_SD**2 + NOISE)) - norm.logpdf(
    Y, 0.0, np.sqrt(1 + NOISE)
)
PRECISION = 1 / NEW_SD**2 + 1 / NOISE
MEAN = (NEW_MEAN / NEW_SD**2 + Y / NOISE) / PRECISION


@pytest.mark.slow
def test_another_prior_has_its_evidence_and_its_posterior(rng):
    tree = trace(rng)
    found = mp.reweight_prior(tree, log_ratio, {"x": lambda draw: draw["x"]}, "zv3")
    plain = mp.reweight_prior(tree, log_ratio, {"x": lambda draw: draw["x"]}, "plain")
    for one in (found, plain):
        assert abs(one.log_evidence_change - EVIDENCE) < 4.5 * one.mcse_log_evidence
        assert abs(one.mean[0] - MEAN) < 4.5 * one.mcse[0]
        assert one.pareto_khat < 0.7
        assert one.ess < 400
    assert found.status is mp.Status.CONTROLLED
    assert plain.status is mp.Status.PLAIN
    assert found.mcse_log_evidence < plain.mcse_log_evidence / 5
    assert found.mcse[0] < plain.mcse[0] / 5
    assert list(found.to_dataframe().columns) == ["mean", "mcse"]
    assert found.to_json_dict()["status"] == "controlled"


@pytest.mark.slow
def test_what_has_one_value_has_no_error_under_any_prior(rng):
    tree = trace(rng)
    fixed = {
        name: (("chain", "draw"), np.full((4, 100), value))
        for name, value in (("zero", 0.0), ("one", 1.0))
    }
    tree["posterior"] = tree["posterior"].to_dataset().assign(fixed)
    asked = ["x", *fixed]
    change = mp.reweight_prior(tree, log_ratio, asked, "zv2")
    slopes = mp.hyper_derivatives(tree, lambda draw: 100 * draw["x"], asked, "plain")
    np.testing.assert_allclose(change.mean[1:], [0.0, 1.0], atol=1e-12)
    assert (change.mcse[1:] < 1e-12).all()
    assert (slopes.mcse[1:] < 1e-12).all()
    assert slopes.status is mp.Status.PLAIN


@pytest.mark.slow
def test_an_event_that_was_not_seen_has_the_error_of_its_complement_and_of_the_slope_s_units(rng):
    tree, far = trace(rng), {"far": lambda draw: draw["x"] > 50.0}
    change = mp.reweight_prior(
        tree, log_ratio, far | {"near": lambda draw: draw["x"] < 50.0}, "plain"
    )
    np.testing.assert_allclose(change.mcse[0], change.mcse[1])
    small, large = (
        mp.hyper_derivatives(tree, lambda draw, k=k: k * draw["x"], far, "plain")
        for k in (1.0, 1e3)
    )
    assert small.mcse[0] > 1e-4
    np.testing.assert_allclose(large.mcse, 1e3 * small.mcse)
    np.testing.assert_allclose(large.mcse_log_evidence, 1e3 * small.mcse_log_evidence)


def test_two_draws_have_no_status_of_success(rng):
    with pytest.warns(mp.ScoreWarning):
        found = mp.reweight_prior(trace(rng, (1, 2)), log_ratio, {"x": lambda draw: draw["x"]})
    assert found.status in (mp.Status.TOO_FEW_DRAWS, mp.Status.HEAVY_TAIL)
    assert np.isnan(found.mcse).all()


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_its_errors_are_honest(rng):
    scores = []
    for _ in range(40):
        found = mp.reweight_prior(trace(rng), log_ratio, {"x": lambda draw: draw["x"]}, "zv1")
        scores.append(
            (
                (found.log_evidence_change - EVIDENCE) / found.mcse_log_evidence,
                (found.mean[0] - MEAN) / found.mcse[0],
            )
        )
    assert np.all(np.mean(np.square(scores), axis=0) < chi2.isf(1e-5, 40) / 40)
    assert np.all(np.abs(np.mean(scores, axis=0)) < 4.5 / np.sqrt(40))


def test_the_same_prior_changes_nothing(rng):
    tree = trace(rng)
    found = mp.reweight_prior(tree, np.zeros((4, 100)), method="zv2")
    assert found.log_evidence_change == pytest.approx(0.0, abs=1e-9)
    assert found.mean[0] == pytest.approx(mp.expectation(tree, method="zv2").mean[0])
    assert found.ess == pytest.approx(400)
    plain = mp.reweight_prior(tree, np.zeros((4, 100)), method="plain")
    assert plain.mcse_log_evidence == 0
    assert plain.status is mp.Status.PLAIN


def test_ratios_that_are_too_unequal_are_told(rng):
    x = trace(rng)["sample_stats"]["unconstrained_draw"].values[..., 0]
    found = mp.reweight_prior(trace(rng), 1.6 * (x - 0.8) ** 2, method="plain")
    assert found.pareto_khat > 0.7
    assert found.status is mp.Status.HEAVY_TAIL


@pytest.mark.parametrize("steepness", [1e2, 5e4])  # all other ratios are zero in floats
def test_fewer_than_four_effective_draws_give_no_error(rng, steepness):
    tree = trace(rng)
    logs = -steepness * (tree["posterior"]["x"].values - 3.0) ** 2
    asked = {"x": lambda draw: draw["x"], "large": lambda draw: draw["x"] > 0.9}
    with pytest.warns(mp.ConvergenceWarning, match="1 effective draws decide"):
        found = mp.reweight_prior(tree, logs, asked)
    assert found.ess < 1.01
    assert found.status is mp.Status.HEAVY_TAIL
    assert np.isnan([*found.mcse, found.mcse_log_evidence]).all()
    x = tree["sample_stats"]["unconstrained_draw"].values
    scores = tree["sample_stats"]["gradient"].values - 2 * steepness * (x - 3.0)
    with pytest.warns(mp.ScoreWarning):
        weighted = mp.from_arrays(x, scores, names=("x",), log_weights=logs)
    with pytest.warns((mp.ScoreWarning, mp.ConvergenceWarning)):
        same = mp.expectation(weighted, asked, "plain")
    np.testing.assert_allclose(found.mean, same.mean, atol=1e-12)
    np.testing.assert_array_equal(found.mcse, same.mcse)


def test_derivatives_are_exact_where_polynomials_are(rng):
    """∂ log N(x; m, 1)/∂m = x at m = 0: d log p(y)/dm = y/1.25, dE[x]/dm = Var x, dE[x²]/dm =
    Cov(x², x)."""
    tree = trace(rng)
    integrands = {"x": lambda draw: draw["x"], "square": lambda draw: draw["x"] ** 2}
    found = mp.hyper_derivatives(tree, lambda draw: draw["x"], integrands, "zv3")
    assert found.log_evidence == pytest.approx(0.8, abs=1e-8)
    np.testing.assert_allclose(found.mean, [0.2, 2 * 0.8 * 0.2], atol=1e-8)
    assert (found.mcse < 1e-8).all()
    plain = mp.hyper_derivatives(tree, lambda draw: draw["x"], integrands, "plain")
    assert plain.status is mp.Status.PLAIN
    assert (np.abs(plain.mean - found.mean) < 4.5 * plain.mcse).all()
    assert list(plain.to_dataframe().index) == ["x", "square"]
    assert plain.to_json_dict()["log_evidence"] == pytest.approx(plain.log_evidence)


@pytest.mark.parametrize("function", [mp.reweight_prior, mp.hyper_derivatives])
def test_what_is_no_number_a_draw_is_refused(rng, function):
    tree = trace(rng)
    with pytest.raises(mp.InputError, match="one number a draw"):
        function(tree, np.zeros((4, 100, 2)))
    for several in ("x", ["x"], {"x": lambda draw: draw["x"]}, [lambda draw: draw["x"]]):
        with pytest.raises(mp.InputTypeError, match="one function of a draw or one array, got a"):
            function(tree, several)
    with pytest.raises(mp.InputError, match="method"):
        function(tree, np.zeros((4, 100)), method="best")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_ratio_must_be_a_ratio(rng, value):
    logs = np.zeros((4, 100))
    logs[1, 3] = value
    with pytest.raises(mp.InputError, match="`log_ratio` that is finite"):
        mp.reweight_prior(trace(rng), logs)
    with pytest.raises(mp.InputError, match="`log_ratio` that is finite"):
        mp.reweight_prior(trace(rng), np.full((4, 100), -np.inf))
