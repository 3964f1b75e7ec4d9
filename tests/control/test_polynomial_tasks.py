"""Polynomial vector-valued control variates: the feature form is the kernel form."""

import numpy as np
import pytest
from task_cases import draw_rows, integrand, means_by_quadrature, quadrature, variance_ratio

from mcmcpost.control.task_families import FixedCovariance, first_order_features, fit_polynomial_tasks, solve_task_ridge
from mcmcpost.kernels import Polynomial
from mcmcpost.stein import stein_gram

COVARIANCES = {
    "related": np.array([[1.0, 0.8], [0.8, 1.2]]),
    "unrelated": np.eye(2),
    "one": np.ones((2, 2)),
    "negative": np.array([[1.0, -0.9], [-0.9, 1.0]]),
}
COVARIANCE = pytest.mark.parametrize("b", COVARIANCES.values(), ids=COVARIANCES)


def kernel_ridge(gram, values, tasks, b, penalty):
    """Return fitted g and β of (B∘K₀ + λ diag(m_t)) c = f − Zβ, docs/mathematics.md section 2."""
    across = b[np.ix_(tasks, tasks)] * gram
    z = np.eye(len(b))[tasks]
    a = across + penalty * np.diag(np.bincount(tasks)[tasks])
    beta = np.linalg.solve(z.T @ np.linalg.solve(a, z), z.T @ np.linalg.solve(a, values))
    c = np.linalg.solve(a, values - z @ beta)
    return across @ c, beta


def fitted(features, ridge, b, tasks):
    return np.sum((features @ ridge.coefficients) * b[tasks], axis=1)


@COVARIANCE
def test_second_order_degree_one_is_the_linear_kernel(b, rng):
    rows = draw_rows(rng, (20, 12))
    f, s = integrand(rows), rows.scores
    ridge = solve_task_ridge(s, f, rows.tasks, b, penalty=0.03)
    g, beta = kernel_ridge(s @ s.T, f, rows.tasks, b, 0.03)
    np.testing.assert_allclose(ridge.beta, beta, atol=1e-10)
    np.testing.assert_allclose(fitted(s, ridge, b, rows.tasks), g, atol=1e-10)


@pytest.mark.parametrize("offset", [0.0, 0.7])
@pytest.mark.parametrize("degree", [1, 2, 3])
def test_first_order_features_are_a_feature_map_of_the_polynomial_kernel(degree, offset, rng):
    rows = draw_rows(rng, (9, 6))
    phi = first_order_features(rows.draws, rows.scores, degree=degree, offset=offset)
    gram = stein_gram(Polynomial(degree, offset=offset), rows.draws, rows.scores)
    np.testing.assert_allclose(phi @ phi.T, gram, rtol=1e-10, atol=1e-10)


@COVARIANCE
def test_the_polynomial_kernel_fit_is_the_feature_fit(b, rng):
    rows = draw_rows(rng, (25, 14))
    f = integrand(rows)
    phi = first_order_features(rows.draws, rows.scores, degree=2)
    ridge = solve_task_ridge(phi, f, rows.tasks, b, penalty=0.03)
    g, beta = kernel_ridge(phi @ phi.T, f, rows.tasks, b, 0.03)
    np.testing.assert_allclose(ridge.beta, beta, atol=1e-9)
    np.testing.assert_allclose(fitted(phi, ridge, b, rows.tasks), g, atol=1e-9)
    r = f - g - beta[rows.tasks]
    squares = sum(np.mean(r[rows.tasks == t] ** 2) for t in range(2))
    norm = 0.03 * np.trace(b @ ridge.coefficients.T @ ridge.coefficients)
    np.testing.assert_allclose(ridge.objective, squares + norm, rtol=1e-10)


def test_a_quadratic_integrand_is_exact(rng):
    rows = draw_rows(rng, (20, 20))
    x = rows.draws
    f = x[:, 0] ** 2 - x[:, 0] * x[:, 1] + 2 * x[:, 1] + rows.tasks * x[:, 0]
    fit = fit_polynomial_tasks(rows, f, FixedCovariance(np.eye(2)), degree=2, penalty=0.0)
    truth = []
    for task in range(2):
        at, weight = quadrature(task)
        y = at.draws
        truth.append(weight @ (y[:, 0] ** 2 - y[:, 0] * y[:, 1] + 2 * y[:, 1] + task * y[:, 0]))
    np.testing.assert_allclose(fit.beta, truth, atol=1e-10)
    np.testing.assert_allclose(f - np.asarray(fit.control(rows)), fit.beta[rows.tasks], atol=1e-10)


def test_a_task_with_one_draw_borrows_from_the_other(rng):
    rows = draw_rows(rng, (60, 1))
    fit = fit_polynomial_tasks(rows, integrand(rows), FixedCovariance(np.ones((2, 2))), degree=1, penalty=1e-6)
    assert (variance_ratio(fit.control, rng) > 2).all()


def test_the_fit_integrates_to_zero_and_lowers_variance(rng):
    rows = draw_rows(rng, (150, 100))
    b = FixedCovariance(COVARIANCES["related"])
    fit = fit_polynomial_tasks(rows, integrand(rows), b, degree=3, penalty=1e-6)
    mean, size = means_by_quadrature(fit.control)
    np.testing.assert_allclose(mean / size, 0, atol=1e-9)
    assert (variance_ratio(fit.control, rng) > 10).all()


def test_without_covariance_there_is_no_control(rng):
    rows = draw_rows(rng, (10, 10))
    f = integrand(rows)
    ridge = solve_task_ridge(rows.scores, f, rows.tasks, np.zeros((2, 2)), penalty=0.1)
    np.testing.assert_allclose(ridge.beta, [f[:10].mean(), f[10:].mean()])


def test_bad_input_is_refused(rng):
    rows = draw_rows(rng, (10, 10))
    f = integrand(rows)
    with pytest.raises(ValueError, match="`penalty` not negative"):
        solve_task_ridge(rows.scores, f, rows.tasks, np.eye(2), penalty=-1.0)
    with pytest.raises(ValueError, match="finite features and values"):
        solve_task_ridge(rows.scores * np.nan, f, rows.tasks, np.eye(2), penalty=1.0)
    with pytest.raises(ValueError, match="draws of every task"):
        solve_task_ridge(rows.scores, f, rows.tasks, np.eye(3), penalty=1.0)
    with pytest.raises(ValueError, match="`degree` ≥ 1"):
        first_order_features(rows.draws, rows.scores, degree=0)
