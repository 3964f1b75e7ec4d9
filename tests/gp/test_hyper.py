"""Restricted likelihood of a Stein kernel: value, gradient, optimisers."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import check_grad
from scipy.stats import multivariate_normal

from mcmcpost.core.arrays import COLUMNS, pad_columns
from mcmcpost.solve.restricted import (
    maximise_restricted_likelihood,
    negative_restricted_likelihood,
    search_grid,
    stein_covariance,
)
from mcmcpost.stein import Matern52, SquaredExponential

covariance_of = eqx.filter_jit(stein_covariance)
likelihood = eqx.filter_jit(negative_restricted_likelihood)


@pytest.fixture
def data(rng):
    x = rng.normal(size=(60, 2))
    smooth = np.sin(x[:, 0] + 0.5 * x[:, 1])
    rough = (x[:, 1] > 0.3).astype(float)
    return tuple(
        jnp.asarray(a) for a in (x, -x, np.ones((60, 1)), np.stack([smooth, rough], axis=1))
    )


@pytest.mark.slow
def test_the_likelihood_is_that_of_contrasts(data):
    """With amplitude profiled, the loss differs by a constant from the density of any full set of
    contrasts of f."""
    x, s, basis, values = data
    contrast = np.linalg.qr(
        np.c_[np.asarray(basis), np.random.default_rng(0).normal(size=(60, 59))]
    )[0][:, 1:]

    def direct(covariance: np.ndarray, f: np.ndarray) -> float:
        inside = contrast.T @ covariance @ contrast
        y = contrast.T @ f
        amplitude = y @ np.linalg.solve(inside, y) / 59
        return -multivariate_normal(np.zeros(59), amplitude * inside, allow_singular=True).logpdf(y)

    covariances = [
        np.asarray(covariance_of(SquaredExponential(ell), x, s, jnp.ones(60), jnp.asarray(1e-2)))
        for ell in (0.7, 2.0)
    ]
    losses = [np.asarray(likelihood(jnp.asarray(c), basis, values).losses) for c in covariances]
    for j in range(2):
        expected = direct(covariances[0], values[:, j]) - direct(covariances[1], values[:, j])
        np.testing.assert_allclose(losses[0][j] - losses[1][j], expected, rtol=1e-6)


@pytest.mark.slow
def test_the_slope_is_the_derivative(data, rng):
    x, s, basis, values = data
    covariance = np.asarray(
        covariance_of(SquaredExponential(1.0), x, s, jnp.ones(60), jnp.asarray(1e-1))
    )
    direction = rng.normal(size=(60, 60))
    direction = direction + direction.T

    def along(step: np.ndarray) -> float:
        moved = jnp.asarray(covariance + step[0] * direction)
        return float(likelihood(moved, basis, values).losses.sum())

    def slope(step: np.ndarray) -> np.ndarray:
        moved = jnp.asarray(covariance + step[0] * direction)
        return np.array([np.sum(likelihood(moved, basis, values).slope * direction)])

    assert check_grad(along, slope, np.zeros(1), epsilon=1e-7) < 1e-4 * abs(slope(np.zeros(1))[0])


def test_columns_of_zeros_count_for_nothing(data):
    x, s, basis, values = data
    covariance = covariance_of(SquaredExponential(1.0), x, s, jnp.ones(60), jnp.asarray(1e-1))
    alone = likelihood(covariance, basis, values)
    padded = likelihood(covariance, basis, jnp.asarray(pad_columns(np.asarray(values))))
    assert padded.losses.shape == (COLUMNS,)
    np.testing.assert_allclose(padded.losses, [*alone.losses, *np.zeros(COLUMNS - 2)], rtol=1e-12)
    np.testing.assert_allclose(
        padded.slope, alone.slope, rtol=1e-9, atol=1e-9 * np.abs(alone.slope).max()
    )


@pytest.mark.slow
def test_the_grid_keeps_rough_integrands_from_costing_smooth_ones(data):
    x, s, basis, values = data
    x, s, basis, values = (
        np.asarray(a) for a in (x, s, basis, values / values.std(axis=0, keepdims=True))
    )
    groups = search_grid(x, s, basis, values, shared=False)
    owner = {member: group for group in groups for member in group.members}
    assert set(owner) == {0, 1}
    assert owner[1].nugget > 100 * owner[0].nugget
    assert len(search_grid(x, s, basis, values, shared=True)) == 1
    assert {
        group.nugget for group in search_grid(x, s, basis, values, shared=False, nuggets=(1e-3,))
    } == {1e-3}


@pytest.mark.slow
@pytest.mark.parametrize("start", [SquaredExponential(3.0 * np.ones(2)), Matern52(2.0)])
def test_the_optimiser_improves_on_every_start_and_keeps_the_kernel(data, start):
    x, s, basis, values = data
    arrays = (np.asarray(a) for a in (x, s, basis, values[:, :1]))
    tuned = maximise_restricted_likelihood((start,), *arrays, nugget=1e-6, free_nugget=True)
    at_start = likelihood(
        covariance_of(start, x, s, jnp.ones(60), jnp.asarray(1e-6)), basis, values[:, :1]
    )
    assert type(tuned.kernel) is type(start)
    assert tuned.loss < float(at_start.losses[0]) - 1.0
    assert np.shape(tuned.kernel.lengthscale) == np.shape(start.lengthscale)


@pytest.mark.slow
def test_a_nugget_under_which_every_start_breaks_down_is_raised(rng):
    x = np.repeat(rng.normal(size=(20, 1)), 2, axis=0)
    values = np.cos(x)
    tuned = maximise_restricted_likelihood(
        (SquaredExponential(100.0),),
        x,
        -x,
        np.ones((40, 1)),
        values,
        nugget=1e-18,
        free_nugget=False,
    )
    assert tuned.nugget > 1e-18
    assert np.isfinite(tuned.loss)
