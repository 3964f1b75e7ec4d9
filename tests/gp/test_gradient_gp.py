"""The gradient Gaussian process: conditioning, variances, samples, tuning, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gradient_cases import autodiff_blocks, observed

from mcmcpost.gp import Automatic, GradientGP
from mcmcpost.gp.gradient import GradientPrediction
from mcmcpost.gp.gradient_solvers import DenseCholesky, GradientCG
from mcmcpost.stein import (
    ExponentialDotProduct,
    Matern32,
    Matern52,
    Polynomial,
    Scaled,
    SquaredExponential,
)

CASES = {
    "squared_exponential": (Scaled(2.0, SquaredExponential(np.linspace(1.0, 2.0, 7))), 4, 7),
    "matern52_many_points": (Scaled(0.7, Matern52(np.array([1.0, 1.5]))), 8, 2),
    "dot_product": (ExponentialDotProduct(np.linspace(0.2, 0.4, 7), 0.1), 4, 7),
}
NOISE = 0.05


@jax.jit
def bowl(x):
    return jnp.sum(jnp.cos(x)) + 0.5 * jnp.sum(x**2)


def bowl_values(X):
    return np.sum(np.cos(X) + 0.5 * X**2, axis=1)


def bowl_gradients(X):
    return X - np.sin(X)


def bowl_hessians(X):
    return (1 - np.cos(X))[:, :, None] * np.eye(X.shape[1])


def dense_posterior(kernel, X, new, observations, with_values):
    """Return mean (m, 1 + d) and covariance (m(1+d), m(1+d)) by textbook formulas on autodiff
    blocks."""
    d = X.shape[1]
    white = 1 / kernel_root(kernel, d)
    noise = NOISE * np.tile(np.concatenate([np.ones(int(with_values)), white**-2]), len(X))
    n, both = len(X), np.concatenate([X, new])
    blocks = np.asarray(autodiff_blocks(kernel, both, both))  # slices in JAX are programs
    K = observed(blocks[:n, :, :n], with_values) + np.diag(noise)
    cross = blocks[n:, :, :n, 1 - with_values :].reshape(len(new) * (1 + d), -1)
    prior = blocks[n:, :, n:].reshape(cross.shape[0], -1)
    mean = cross @ np.linalg.solve(K, observations.ravel())
    return mean.reshape(len(new), 1 + d), prior - cross @ np.linalg.solve(K, cross.T)


def kernel_root(kernel, d):
    inside = kernel.kernel if isinstance(kernel, Scaled) else kernel
    scale = inside.scale if isinstance(inside, ExponentialDotProduct) else 1 / inside.lengthscale
    return np.broadcast_to(scale, (d,))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_prediction_and_variances_are_the_dense_posterior(name, rng):
    kernel, n, d = CASES[name]
    X, G = rng.normal(size=(n, d)), rng.normal(size=(n, d))
    new = np.concatenate([rng.normal(size=(2, d)), X[:1]])
    fitted = GradientGP(kernel, NOISE, tune=False).fit(X, G)
    mean, covariance = dense_posterior(kernel, X, new, G, False)
    prediction = fitted.predict(new)
    variance = np.diag(covariance).reshape(len(new), 1 + d)
    np.testing.assert_allclose(prediction.value, mean[:, 0], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(prediction.gradient, mean[:, 1:], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(prediction.value_variance, variance[:, 0], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(prediction.gradient_variance, variance[:, 1:], rtol=1e-8, atol=1e-9)
    record = fitted.gradient_covariance(new[0])
    np.testing.assert_allclose(
        record.dense(), covariance[1 : 1 + d, 1 : 1 + d], rtol=1e-8, atol=1e-9
    )
    np.testing.assert_allclose(record.entries(), variance[0, 1:], rtol=1e-8, atol=1e-9)
    v = rng.normal(size=d)
    np.testing.assert_allclose(record.matvec(v), record.dense() @ v, rtol=1e-10)
    assert record.factor.shape[1] <= min(d, n + 1)
    assert isinstance(prediction.value, np.ndarray)


@pytest.mark.slow
def test_values_join_the_gradients_and_carry_their_constant(rng):
    kernel, n, d = CASES["squared_exponential"]
    X, G, y = rng.normal(size=(n, d)), rng.normal(size=(n, d)), rng.normal(size=n)
    new = rng.normal(size=(3, d))
    process = GradientGP(kernel, NOISE, tune=False)
    fitted, moved = process.fit(X, G, y), process.fit(X, G, y + 100.0)
    centred = np.concatenate([(y - fitted.constant)[:, None], G], axis=1)
    mean, covariance = dense_posterior(kernel, X, new, centred, True)
    prediction = fitted.predict(new)
    np.testing.assert_allclose(prediction.value, mean[:, 0] + fitted.constant, rtol=1e-8)
    np.testing.assert_allclose(prediction.gradient, mean[:, 1:], rtol=1e-8)
    np.testing.assert_allclose(prediction.value_variance, np.diag(covariance)[:: 1 + d], rtol=1e-8)
    np.testing.assert_allclose(moved.predict(new).value, prediction.value + 100.0, rtol=1e-9)
    # jitted, as in a sampler: its operations one by one are forty programs
    value, gradient = jax.jit(fitted.value_and_gradient())(jnp.asarray(new[0], jnp.float32))
    assert gradient.dtype == jnp.float32
    np.testing.assert_allclose(value, prediction.value[0], rtol=1e-4)
    np.testing.assert_allclose(gradient, prediction.gradient[0], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_samples_have_the_posterior_moments(rng, key):
    kernel, n, d = CASES["squared_exponential"]
    X, G = rng.normal(size=(n, d)), rng.normal(size=(n, d))
    new = rng.normal(size=(2, d))
    fitted = GradientGP(kernel, NOISE, tune=False).fit(X, G)
    drawn = fitted.sample(new, num_samples=20_000, key=key)
    mean, covariance = dense_posterior(kernel, X, new, G, False)
    flat = np.concatenate([drawn.value[..., None], drawn.gradient], axis=-1).reshape(20_000, -1)
    deviations = np.sqrt(np.diag(covariance))
    assert np.abs((flat.mean(axis=0) - mean.ravel()) / deviations).max() < 4.5 / np.sqrt(20_000)
    correlation = (np.cov(flat.T) - covariance) / np.outer(deviations, deviations)
    assert np.abs(correlation).max() < 5 * np.sqrt(2 / 20_000)


@pytest.mark.slow
def test_the_prior_mean_is_added_with_its_derivatives(rng):
    kernel, n, d = CASES["squared_exponential"]
    X, new = rng.normal(size=(n, d)), rng.normal(size=(3, d))
    fitted = GradientGP(kernel, 1e-6, mean=bowl, tune=False).fit(
        X, bowl_gradients(X), bowl_values(X)
    )
    prediction = fitted.predict(new, hessian=True)
    np.testing.assert_allclose(prediction.value, bowl_values(new), rtol=1e-9)
    np.testing.assert_allclose(prediction.gradient, bowl_gradients(new), rtol=1e-9)
    np.testing.assert_allclose(prediction.hessian.dense(), bowl_hessians(new), rtol=1e-8, atol=1e-9)
    value, gradient = jax.jit(jax.vmap(fitted.value_and_gradient()))(jnp.asarray(new))
    np.testing.assert_allclose(value, prediction.value, rtol=1e-12)
    np.testing.assert_allclose(gradient, prediction.gradient, rtol=1e-12)


@pytest.mark.slow
def test_tuning_raises_the_likelihood_and_learns_a_smooth_function(rng):
    X, new = rng.uniform(-2, 2, size=(40, 2)), rng.uniform(-1.5, 1.5, size=(20, 2))
    slopes = bowl_gradients(X)
    start = GradientGP(tune=False, noise=1e-4).fit(X, slopes)
    fitted = GradientGP().fit(X, slopes)
    assert fitted.log_marginal_likelihood() > start.log_marginal_likelihood() + 10
    assert fitted.num_evaluations > 3
    prediction = fitted.predict(new, hessian=True)
    np.testing.assert_allclose(prediction.gradient, bowl_gradients(new), atol=0.05)
    np.testing.assert_allclose(prediction.hessian.dense(), bowl_hessians(new), atol=0.4)
    assert (prediction.value - bowl_values(new)).std() < 0.02


@pytest.mark.slow
def test_a_given_noise_is_kept_and_a_given_solver_is_used(rng):
    X = rng.normal(size=(4, 6))
    fitted = GradientGP(Scaled(1.0, Matern52(2.0)), 0.1, solver=GradientCG(1e-10)).fit(X, -X)
    assert fitted.noise == 0.1
    assert int(fitted.solution.num_products) > 1
    dense = GradientGP(fitted.kernel, 0.1, solver=DenseCholesky(), tune=False).fit(X, -X)
    assert dense.solution.order == 24
    np.testing.assert_allclose(fitted.solution.value, dense.solution.value, rtol=1e-7, atol=1e-9)


@pytest.mark.slow
def test_inputs_are_not_changed_and_results_are_numpy(rng):
    X, G = rng.normal(size=(3, 2)).astype(np.float32), rng.normal(size=(3, 2)).astype(np.float32)
    before = X.copy(), G.copy()
    prediction = GradientGP(Matern52(1.0), 0.1, tune=False).fit(X, G).predict(X)
    np.testing.assert_array_equal(X, before[0])
    np.testing.assert_array_equal(G, before[1])
    assert isinstance(prediction, GradientPrediction)
    assert {type(part) for part in prediction if part is not None} == {np.ndarray}
    assert prediction.gradient.dtype == np.float64


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [None, SquaredExponential(1.0), Matern32(1.0), Polynomial(2)])
def test_coincident_points_are_fitted(kernel, rng):
    X = np.repeat(rng.normal(size=(3, 4)), 2, axis=0)
    fitted = GradientGP(kernel, 1e-3, tune=kernel is None, max_steps=5).fit(X, np.cos(X))
    assert all(np.isfinite(part).all() for part in fitted.predict(X) if part is not None)


@pytest.mark.slow
def test_bad_input_is_refused(rng):
    X, G = rng.normal(size=(3, 2)), rng.normal(size=(3, 2))
    broken = G.copy()
    broken[1, 0] = np.nan
    fitted = GradientGP(Matern32(1.0), 0.1, tune=False).fit(X, G)
    with pytest.raises(ValueError, match=r"finite values of `gradients`.*1 rows.*: 1"):
        GradientGP().fit(X, broken)
    with pytest.raises(ValueError, match="`gradients` of the shape of `X`"):
        GradientGP().fit(X, G[:, :1])
    with pytest.raises(ValueError, match="3 `values`, got 2"):
        GradientGP().fit(X, G, np.zeros(2))
    with pytest.raises(ValueError, match="finite values of `values`"):
        GradientGP().fit(X, G, np.full(3, np.inf))
    with pytest.raises(ValueError, match="`noise`, a number in"):
        GradientGP(noise=-1.0)
    with pytest.raises(TypeError, match="one of SquaredExponential"):
        GradientGP(Matern52() + Matern32()).fit(X, G)
    with pytest.raises(ValueError, match="has a Hessian, got Matern32"):
        fitted.predict(X, hessian=True)
    with pytest.raises(ValueError, match="`X` with 2 columns"):
        fitted.predict(np.zeros((1, 3)))


@pytest.mark.slow
def test_more_points_than_memory_holds_are_refused(monkeypatch, rng):

    X = rng.normal(size=(30, 8))
    fitted = GradientGP(Matern52(1.0), 0.1, tune=False).fit(X, X)
    monkeypatch.setattr("mcmcpost.gp.gradient_operator.MEMORY", 1e4)
    with pytest.raises(MemoryError, match=r"GradientGP.*fewer points"):
        fitted.predict(X)
    assert fitted.predict(X, variance=False).gradient.shape == (30, 8)
    with pytest.raises(MemoryError, match="GradientCG"):
        GradientGP(Matern52(1.0), 0.1, solver=GradientCG(), tune=False).fit(X, X)


@pytest.mark.slow
def test_tuning_goes_on_where_an_evaluation_is_not_finite(rng):
    """The first step of L-BFGS overflows this kernel; a search that stops there has three
    evaluations."""
    X = rng.normal(size=(25, 3))
    G = np.column_stack([np.cos(X[:, 0]), 0.6 * X[:, 1], 0 * X[:, 2]])
    short, tuned = (
        GradientGP(ExponentialDotProduct(0.3), max_steps=steps).fit(X, G) for steps in (1, 50)
    )
    assert tuned.num_evaluations > 10
    assert tuned.log_marginal_likelihood() > short.log_marginal_likelihood() + 20


@pytest.mark.slow
def test_a_solve_that_ends_before_its_tolerance_says_so(rng):
    X = rng.normal(size=(20, 2))
    process = GradientGP(Matern52(1.0), 0.0, solver=GradientCG(max_steps=3), tune=False)
    with pytest.warns(
        UserWarning,
        match=r"got a relative residual of .*\. The mean is off by more than the variance",
    ):
        fitted = process.fit(X, np.sin(X))
    assert not fitted.solution.converged


@pytest.mark.slow
def test_data_without_prior_variance_leave_the_prior(rng):
    """A point at the centre of a polynomial kernel without offset: its gradient is zero whatever
    the function."""
    kernel, x = Polynomial(2, offset=0.0), rng.normal(size=(3, 2))
    found = GradientGP(kernel, 0.0, tune=False).fit(np.zeros((1, 2)), np.zeros((1, 2))).predict(x)
    np.testing.assert_allclose(found.gradient, 0.0, atol=1e-12)
    assert np.isfinite(found.gradient_variance).all()
    assert (found.gradient_variance > 0).all()


@pytest.mark.slow
def test_samples_where_the_posterior_is_certain(rng, key):
    """Rounding is that of the prior: what is left of it is no variance, and no reason for NaN."""
    X = np.linspace(-1, 1, 20)[:, None]
    exact = GradientGP(SquaredExponential(1.0), 0.0, tune=False).fit(X, np.cos(X), np.sin(X[:, 0]))
    drawn = exact.sample(X, num_samples=3, key=key).value
    np.testing.assert_allclose(drawn, np.broadcast_to(np.sin(X[:, 0]), drawn.shape), atol=1e-5)
    gradients = rng.normal(size=(5, 2))
    zero = GradientGP(Polynomial(2, offset=0.0), 1e-3, tune=False).fit(gradients, gradients)
    assert not zero.sample(np.zeros((1, 2)), num_samples=5, key=key).value.any()


@pytest.mark.slow
def test_the_centre_of_a_kernel_is_held_wherever_it_is(rng):
    X = rng.normal(size=(8, 2))
    for sign in (1.0, -1.0):
        fitted = GradientGP(Scaled(1.0, Polynomial(2, centre=sign))).fit(
            sign * X, sign * X @ np.diag([2.0, 1.0])
        )
        assert fitted.kernel.kernel.centre == sign


@pytest.mark.slow
def test_small_systems_may_be_solved_by_conjugate_gradients():
    solver = Automatic(dense_order=0)
    assert (
        GradientGP(Matern52(), 1e-3, solver=solver, tune=False)
        .fit(np.eye(2), np.eye(2))
        .solution.converged
    )
