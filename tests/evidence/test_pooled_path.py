"""The semi-exact part of the pooled path: its definition, what it gains, and that its error is honest."""

import numpy as np
import pytest
from scipy.stats import chi2

from mcmcpost.evidence import Ladder, make_ladder, power_ladder
from mcmcpost.evidence.path_regression import (
    PENALTIES,
    Family,
    Mixtures,
    _Basis,
    _moments,
    _regression,
    _weight_changes,
)
from mcmcpost.evidence.pooled import pooled_path
from mcmcpost.stein import num_polynomial_features

GRID = np.linspace(-9.0, 9.0, 20_001)


def factor(x):
    return -3.0 * np.log(np.cosh(1.5 * (x - 1.0)))


def product_path(rng: np.random.Generator, num_draws: int, d: int = 4) -> tuple[Ladder, float]:
    """Return iid draws of a path whose likelihood is a product of factors that no polynomial controls."""
    levels = power_ladder(10, 4)
    x = np.empty((1, num_draws, len(levels), d))
    for i, t in enumerate(levels):
        mass = np.cumsum(np.exp(t * factor(GRID) - 0.5 * GRID**2))
        x[0, :, i] = np.interp(rng.random((num_draws, d)), mass / mass[-1], GRID)
    masses = [np.exp(t * factor(GRID) - 0.5 * GRID**2).sum() for t in (0.0, 1.0)]
    slope = -4.5 * np.tanh(1.5 * (x - 1.0))
    return make_ladder(levels, x, factor(x).sum(-1), slope, -x), d * float(np.log(masses[1] / masses[0]))


@pytest.mark.slow
def test_the_semi_exact_levels_minimise_their_objective(rng):
    d, n, landmarks = 2, 60, 7
    family = Family(3, 2, landmarks)
    q = num_polynomial_features(d, 3)
    weights = rng.dirichlet(np.ones(n))
    features = rng.normal(size=(n, q + landmarks))
    values = rng.normal(size=n)
    offset = weights @ features
    basis = _Basis(features - offset, offset)
    means, coefficients = _regression(_moments(weights, basis, values), basis.offset, family, d)
    assert len(means) == family.num_levels
    small = num_polynomial_features(d, 2)
    columns = np.r_[0:small, q : q + landmarks]
    design = np.c_[np.ones(n), features[:, columns]]
    for penalty, mean, theta in zip(PENALTIES, means[4:], coefficients[4:], strict=True):
        ridge = np.diag(np.r_[np.zeros(1 + small), np.full(landmarks, penalty)])
        wanted = np.linalg.solve(design.T @ (weights[:, None] * design) + ridge, design.T @ (weights * values))
        np.testing.assert_allclose(np.r_[mean, theta[columns]], wanted, rtol=1e-6, atol=1e-8)
        assert not np.delete(theta, columns).any()


@pytest.mark.slow
def test_a_kernel_beside_the_quadratic_is_better_and_its_error_honest(rng):
    replications = 12
    errors, reported, polynomials, methods = [], [], [], []
    for _ in range(replications):
        ladder, truth = product_path(rng, 60)
        found = pooled_path(ladder, num_nodes=8)
        methods.append(found.method.split("(")[0])
        errors.append(found.value - truth)
        reported.append(np.hypot(found.mcse, found.discretisation_error))
        polynomials.append(found.fit.integral[3] - truth)
    assert methods.count("SemiExact") > replications / 2
    assert np.mean(np.abs(errors)) < 0.7 * np.mean(np.abs(polynomials))
    assert np.mean(np.square(np.array(errors) / reported)) < chi2.isf(1e-5, replications) / replications


@pytest.mark.slow
def test_a_degree_that_is_asked_for_is_what_is_fitted(rng):
    ladder, truth = product_path(rng, 40, d=2)
    found = pooled_path(ladder, degree=2)
    assert (found.degree, found.level, found.method) == (2, 2, "ZeroVariance(degree=2)")
    assert found.fit.mean.shape[1] == 3
    assert abs(found.value - truth) < 4.5 * found.mcse


@pytest.mark.slow
def test_leaving_out_a_block_is_as_pooling_the_others(rng):
    ladder, _ = product_path(rng, 48, d=2)
    found = pooled_path(ladder, degree=2, num_nodes=8)
    kept = np.arange(48) >= 2  # the first of the 24 blocks is draws 0 and 1 of the one chain
    part = ladder._replace(
        draws=ladder.draws[:, kept],
        log_likelihood=ladder.log_likelihood[:, kept],
        gradient_log_likelihood=ladder.gradient_log_likelihood[:, kept],
        gradient_log_prior=ladder.gradient_log_prior[:, kept],
    )
    alone = pooled_path(part, degree=2, num_nodes=8)
    moved = np.asarray(found.fit.deleted)[0] - np.asarray(found.fit.integral)
    np.testing.assert_allclose(
        moved[1:], (np.asarray(alone.fit.integral) - np.asarray(found.fit.integral))[1:], rtol=0.03
    )


def test_mixtures_that_are_not_finite_leave_nothing_and_raise_nothing(rng):
    weights = rng.dirichlet(np.ones(30))
    known, unknown = rng.normal(size=(1, 30)), np.full((6, 30), np.nan)
    mine, patterns = _weight_changes(weights, Mixtures(np.zeros((7, 2)), np.concatenate([known, unknown]), 1, False))
    assert mine.shape == (6, 4)
    assert patterns.shape == (4, 30)
    assert np.isnan(patterns).all()
