"""Scores at stored draws: right values, any batch, any number of devices, and no finite score where
there is none."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mcmcpost.scores import batch_scores


def logdensity(x):
    return -0.5 * x @ x - jnp.log1p(x[0] ** 2)


def gradient(draws):
    scores = -draws
    scores[..., 0] -= 2 * draws[..., 0] / (1 + draws[..., 0] ** 2)
    return scores


@pytest.mark.parametrize("batch_size", [1, 7, 512])
def test_scores_are_the_gradient_for_any_batch(rng, batch_size):
    draws = rng.normal(size=(3, 11, 2))
    scores = batch_scores(logdensity, draws, batch_size=batch_size)
    np.testing.assert_allclose(scores, gradient(draws), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("x64", [False, True])
def test_scores_are_float64_whatever_the_configuration(rng, x64):
    draws = rng.normal(size=(1, 5, 2)).astype(np.float32)
    with jax.enable_x64(x64):
        scores = batch_scores(logdensity, draws)
        assert jnp.zeros(1).dtype == (jnp.float64 if x64 else jnp.float32)
    assert scores.dtype == np.float64
    np.testing.assert_allclose(scores, gradient(draws.astype(np.float64)), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("bad", [-jnp.inf, jnp.inf, jnp.nan])
def test_no_finite_score_where_the_density_fails(bad):
    def masked(x):
        return jnp.where(x[0] > 0, -0.5 * x @ x, bad)

    scores = batch_scores(masked, np.array([[[1.0, 2.0], [-1.0, 2.0]]]))
    np.testing.assert_array_equal(scores[0, 0], [-1.0, -2.0])
    assert np.isnan(scores[0, 1]).all()


def test_nan_draw_gives_nan_score():
    assert np.isnan(batch_scores(logdensity, np.array([[[np.nan, 1.0]]]))).any()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"draws": np.zeros((3, 2))}, ValueError, "chain, draw, d"),
        ({"draws": np.zeros((2, 0, 2))}, ValueError, "at least one chain"),
        ({"draws": np.zeros((1, 3, 2), dtype=complex)}, TypeError, "real numeric"),
        ({"draws": np.zeros((1, 3, 2)), "batch_size": 0}, ValueError, "batch_size"),
        ({"draws": np.zeros((1, 3, 2)), "logdensity_fn": lambda x: x}, ValueError, "scalar"),
    ],
)
def test_bad_input(arguments, error, words):
    with pytest.raises(error, match=words):
        batch_scores(**{"logdensity_fn": logdensity} | arguments)


@pytest.mark.slow
def test_four_devices_share_the_draws():
    # diffrax's default adjoint is what most ways of sharing out work break.
    script = """
import diffrax, jax, jax.numpy as jnp, numpy as np
from mcmcpost.scores import batch_scores
assert len(jax.devices()) == 4
draws = np.random.default_rng(0).normal(size=(3, 7, 2))
assert np.array_equal(batch_scores(lambda x: -0.5 * x @ x, draws, batch_size=2), -draws)
decay = diffrax.ODETerm(lambda t, y, rate: -rate * y)
control = diffrax.PIDController(rtol=1e-9, atol=1e-9)
def logdensity(x):
    args = (decay, diffrax.Tsit5(), 0.0, 1.0, 0.1, jnp.exp(x[1]))
    return diffrax.diffeqsolve(*args, args=jnp.exp(x[0]), stepsize_controller=control).ys[-1]
scores = batch_scores(logdensity, draws, batch_size=4)
value = np.exp(draws[..., 1] - np.exp(draws[..., 0]))
exact = np.stack([-np.exp(draws[..., 0]) * value, value], -1)
np.testing.assert_allclose(scores, exact, rtol=1e-5, atol=1e-8)
"""
    flags = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0",
        "JAX_PLATFORMS": "cpu",
    }
    result = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | flags, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
