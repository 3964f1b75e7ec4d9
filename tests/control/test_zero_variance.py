"""Polynomial control variates: exactness, folds left out exactly, penalties."""

import numpy as np
import pytest
from control_cases import estimate, gaussian_trace

from mcmcpost.control import Lasso, LeastSquares, Ridge, ZeroVariance
from mcmcpost.control.features.families import independent_columns
from mcmcpost.control.zero_variance import lasso_path
from mcmcpost.core.errors import Status
from mcmcpost.trace import make_trace


def test_degree_two_is_exact_for_a_quadratic_of_a_correlated_gaussian(rng):
    precision = np.array([[2.0, 0.9], [0.9, 1.0]])
    x = rng.multivariate_normal([1.0, -2.0], np.linalg.inv(precision), size=(2, 60))
    trace = make_trace(x, -(x - [1.0, -2.0]) @ precision)
    values = np.stack([x[..., 0], x[..., 0] * x[..., 1]], axis=-1)
    result = estimate(trace, values, ZeroVariance(2))
    truth = [1.0, -2.0 + np.linalg.inv(precision)[0, 1]]
    np.testing.assert_allclose(result.mean, truth, rtol=1e-11)
    assert result.status == (Status.EXACT, Status.EXACT)
    assert (result.mcse < 1e-12).all()


@pytest.mark.parametrize("repeats", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_large_design_by_blocks_is_the_same_fit(rng, repeats, monkeypatch):
    x = np.repeat(rng.normal(size=(4, 150, 3)), repeats, axis=1)
    # its square is the constant: one is dropped
    x[..., 2] = np.where(rng.uniform(size=x.shape[:2]) < 0.5, -1.0, 1.0)
    trace = make_trace(x, -x)
    values = np.stack([np.cos(x[..., 0]), np.exp(0.3 * x[..., 1]) * x[..., 2]], axis=-1)
    dense = estimate(trace, values, ZeroVariance(2))
    monkeypatch.setattr("mcmcpost.core.arrays.LARGE", 0)
    monkeypatch.setattr("mcmcpost.core.arrays.ENTRIES", 700)
    blocks = estimate(trace, values, ZeroVariance(2))
    assert blocks.info == dense.info
    assert blocks.info["num_dependent_features"] == 1
    np.testing.assert_allclose(blocks.mean, dense.mean, rtol=1e-9)
    np.testing.assert_allclose(blocks.mcse, dense.mcse, rtol=1e-6)
    np.testing.assert_allclose(blocks.residuals, dense.residuals, atol=1e-9)


def test_too_few_draws_are_regularised_by_default_and_refused_without_a_penalty(rng):
    trace = gaussian_trace(rng, (2, 40, 8))
    values = trace.draws[..., :1] ** 2
    result = estimate(trace, values, ZeroVariance(2))
    assert result.status[0] in (Status.REGULARISED, Status.PLAIN)
    assert result.info["penalty"] == "Ridge"
    with pytest.raises(
        ValueError, match=r"distinct training draws for .* features without a penalty"
    ):
        estimate(gaussian_trace(rng, (2, 20, 8)), values[:, :20], ZeroVariance(2, LeastSquares()))


def test_an_explicit_ridge_shrinks_towards_the_plain_mean(rng):
    trace = gaussian_trace(rng)
    values = trace.draws[..., :1] ** 2
    weak, strong = (estimate(trace, values, ZeroVariance(2, Ridge(s))) for s in (1e-8, 1e3))
    assert weak.variance_ratio[0] > 1e6
    np.testing.assert_allclose(strong.mean, values.mean(axis=(0, 1)), atol=0.02)


@pytest.mark.slow
def test_lasso_selects_the_true_features_and_satisfies_its_optimality_conditions(rng):
    trace = gaussian_trace(rng, (4, 100, 5))
    x = trace.draws
    values = (x[..., 0] * x[..., 1] + x[..., 2] + 0.1 * np.sin(3 * x[..., 3]))[..., None]
    result = estimate(trace, values, ZeroVariance(3, Lasso()))
    assert result.info["num_selected"][0] < 30
    assert result.variance_ratio[0] > 30

    features = rng.normal(size=(80, 6))
    gram, moment = features.T @ features, features.T @ rng.normal(size=(80, 2))
    largest = np.abs(moment).max(axis=0)
    fractions = np.array([0.5, 0.1])
    path = lasso_path(gram, moment, fractions, largest)
    for theta, fraction in zip(path, fractions, strict=True):
        slope = moment - gram @ theta
        level = fraction * largest
        on = theta != 0
        np.testing.assert_allclose(slope[on], (np.sign(theta) * level)[on], rtol=1e-6)
        assert (np.abs(slope) <= level * (1 + 1e-6)).all()


def test_dependent_columns_are_dropped_and_the_constant_stays(rng):
    columns = rng.normal(size=(50, 3))
    design = np.c_[np.ones(50), columns, columns[:, 0] - 2 * columns[:, 1], np.ones(50)]
    design /= np.linalg.norm(design, axis=0)
    keep = independent_columns(design)
    assert keep[0]
    assert keep.sum() == 4
    assert np.linalg.matrix_rank(design[:, keep]) == 4


@pytest.mark.parametrize("degree", [0, -1])
def test_a_degree_that_is_not_a_positive_integer_is_refused(degree):
    with pytest.raises(ValueError, match="`degree` of at least 1"):
        ZeroVariance(degree)


@pytest.mark.slow
def test_a_high_degree_knows_that_it_does_not_know_the_tail():
    """1/x under Gamma(3, 2): a polynomial of degree eight follows it between the draws of log x,
    not beyond."""
    z = []
    for seed in range(12):
        x = np.random.default_rng(seed).gamma(3.0, 0.5, size=(4, 300, 1))
        result = estimate(make_trace(np.log(x), 3 - 2 * x), 1 / x, ZeroVariance(8))
        z.append((result.mean[0] - 1.0) / result.mcse[0])
        assert result.gain[0] > 100
    assert np.abs(z).max() < 3


def test_a_high_degree_is_exact_for_its_polynomial(rng):
    x = rng.normal(size=(4, 100, 1))
    result = estimate(make_trace(x, -x), x**4, ZeroVariance(4))
    assert result.status == (Status.EXACT,)
    np.testing.assert_allclose(result.mean, 3.0, rtol=1e-10)
