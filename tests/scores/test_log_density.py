"""Scores against the recorded log density: what it finds, and that it never blames right scores."""

import numpy as np
import pytest
import xarray

import mcmcpost as mp
from mcmcpost.scores import check_scores
from mcmcpost.scores.log_density import misfit
from mcmcpost.trace import make_trace


def gaussian(rng, d, n):
    lower = np.tril(rng.normal(size=(d, d))) + 2 * np.eye(d)
    z = rng.standard_normal((n, d))
    return z @ lower.T, -z @ np.linalg.inv(lower), -0.5 * (z**2).sum(axis=1)


def banana(rng, _, n):
    z, e = rng.standard_normal((2, n))
    x = np.stack([z, 0.5 * (z**2 - 1) + e], axis=1)
    return x, np.stack([z * e - z, -e], axis=1), -0.5 * (z**2 + e**2)


def gamma(rng, _, n):
    g = rng.gamma(3.0, 0.5, size=(n, 1))
    return np.log(g), 3 - 2 * g, (3 * np.log(g) - 2 * g)[:, 0]


def logistic(rng, d, n):
    """A posterior of thirty coin flips, with draws from about it: the test needs no draws of the
    density itself."""
    X, x = rng.standard_normal((30, d)) / np.sqrt(d), rng.standard_normal((n, d))
    eta = x @ X.T
    return (
        x,
        -(1 / (1 + np.exp(-eta))) @ X - x,
        -np.logaddexp(0, eta).sum(axis=1) - 0.5 * (x**2).sum(axis=1),
    )


TARGETS = [(logistic, 3), (gaussian, 1), (gaussian, 3), (gaussian, 20), (banana, 2), (gamma, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("n", [400, 4000])
@pytest.mark.parametrize(("target", "d"), TARGETS)
def test_right_scores_are_confirmed(target, d, n, rng):
    x, s, lp = target(rng, d, n)
    found = misfit(x, s, lp - 1234.5)
    assert found.known
    assert not found.wrong
    assert not misfit(x, s, np.round(lp - 1234.5, 2)).wrong
    assert not misfit(x, s, (lp - 1234.5).astype(np.float32).astype(float)).wrong
    assert misfit(x, s, 7.0 - lp).known  # a potential


@pytest.mark.parametrize("n", [400, 4000])
@pytest.mark.parametrize(("target", "d"), TARGETS)
def test_scores_that_are_wrong_by_a_little_are_found(target, d, n, rng):
    x, s, lp = target(rng, d, n)
    large = misfit(x, 1.05 * s, lp)
    assert large.wrong
    np.testing.assert_allclose(large.factor, 1.05, rtol=0.01)
    shifted = misfit(x, s + 0.03 / x.std(axis=0), lp)
    assert shifted.wrong
    np.testing.assert_allclose(shifted.shift, 0.03, atol=0.01)


def test_third_derivatives_are_not_mistaken_for_wrong_scores(rng):
    """In twenty dimensions no draws are near: the test knows nothing, and says nothing."""
    X, x = rng.standard_normal((100, 20)), 0.6 * rng.standard_normal((1000, 20))
    eta = x @ X.T
    lp = -np.logaddexp(0, eta).sum(axis=1) - 0.5 * (x**2).sum(axis=1)
    scores = -(1 / (1 + np.exp(-eta))) @ X - x
    found = misfit(x, scores, lp)
    assert not found.wrong
    assert not found.known


@pytest.mark.parametrize("d", [20, 60])
def test_right_scores_of_group_effects_are_not_blamed(d, rng):
    """The skew of a log standard deviation looks like scores that are shifted by a multiple of
    their own size."""
    sd = 0.3
    v, e = sd * rng.standard_normal((4, 1000, 1)), rng.standard_normal((4, 1000, d))
    x = np.concatenate([v, np.exp(v) * e], axis=-1)
    scores = np.concatenate(
        [-v / sd**2 + (e**2 - 1).sum(axis=-1, keepdims=True), -e * np.exp(-v)], axis=-1
    )
    lp = -0.5 * (v[..., 0] / sd) ** 2 - 0.5 * (e**2).sum(axis=-1) - d * v[..., 0]
    assert misfit(x.reshape(-1, d + 1), scores.reshape(-1, d + 1), lp.reshape(-1)).wrong
    check = check_scores(make_trace(x, scores), lp)
    assert (check.verdict, check.verified) == ("pass", False)


def test_what_tells_nothing_is_not_judged(rng):
    assert misfit(*gaussian(rng, 5, 50)) is None
    x, s, lp = gaussian(rng, 2, 400)
    assert misfit(x, s, np.ones(400)) is None
    assert (
        misfit(np.repeat(x[:20], 20, axis=0), np.repeat(s[:20], 20, axis=0), np.repeat(lp[:20], 20))
        is None
    )
    assert misfit(1e200 * x, 1e-200 * s, lp) is None
    collinear = misfit(np.c_[x, x[:, 0]], np.c_[s, np.zeros(400)], lp)
    assert not collinear.wrong
    tiny = misfit(1e-30 * x, 1e30 * s, lp)
    assert tiny.known


def tree_of(x, scores, lp):
    tree = mp.from_arrays(x, scores)
    stats = tree["sample_stats"].to_dataset().assign(lp=(("chain", "draw"), lp))
    tree["sample_stats"] = xarray.DataTree(stats)
    return tree


@pytest.mark.slow
def test_scores_times_a_twentieth_more_are_plain_with_a_log_density_and_on_trust_without(rng):
    x = rng.standard_normal((4, 250, 2))
    lp = -0.5 * (x**2).sum(axis=-1)
    right = mp.expectation(tree_of(x, -x, lp), method="zv2")
    assert set(right.status) == {mp.Status.EXACT}
    longer = mp.expectation(tree_of(x, -x, lp.astype(np.longdouble)), method="zv2")
    assert set(longer.status) == {mp.Status.EXACT}
    partly = lp.copy()
    partly[:, 7::50], partly[0, 0] = -np.inf, np.nan
    for scores, recorded in ((-1.05 * x, lp), (-x + 0.03, lp), (-1.05 * x, partly)):
        with pytest.warns(
            mp.ScoreWarning, match="not the gradient of the log density that the sampler recorded"
        ):
            wrong = mp.expectation(tree_of(x, scores, recorded), method="zv2")
        assert set(wrong.status) == {mp.Status.BAD_SCORES}
        np.testing.assert_array_equal(wrong.mean, wrong.mean_plain)
        trusted = mp.expectation(mp.from_arrays(x, scores), method="zv2")
        assert set(trusted.status) == {mp.Status.ON_TRUST}
