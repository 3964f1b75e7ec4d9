"""Sampling a ladder: exact moments on a Gaussian path, an iid prior rung, exchange, resuming, failures."""

import jax
import numpy as np
import pytest

from mcmcpost._mcse import mcse_mean
from mcmcpost.evidence import HamiltonianKernel, TemperedTarget, power_ladder, sample_ladder

HMC = HamiltonianKernel(num_steps=4)  # compiles in half the time of NUTS


@pytest.fixture(autouse=True, scope="module")
def _rank_promotion():
    # NumPyro's kernels promote ranks.
    with jax.numpy_rank_promotion("allow"):
        yield


def gaussian(d, y=1.3, noise=0.5):
    """Return the target of y ~ N(x, noise²), x ~ N(0, 1) in d dimensions."""
    constant = 0.5 * d * np.log(2 * np.pi)
    return TemperedTarget(
        lambda x: -0.5 * (((y - x) / noise) ** 2).sum() - d * np.log(noise) - constant,
        lambda x: -0.5 * (x**2).sum() - constant,
        lambda key: jax.random.normal(key, (d,)),
        tuple(f"x[{i}]" for i in range(d)),
    )


def gaussian_moments(t, y=1.3, noise=0.5):
    variance = 1 / (1 + t / noise**2)
    return t * y / noise**2 * variance, variance


@pytest.mark.parametrize(("d", "kernel"), [(1, HamiltonianKernel()), (10, HMC)])
def test_every_rung_has_its_moments(d, kernel, key):
    temperatures = power_ladder(6, 3)
    ladder, stats = sample_ladder(
        gaussian(d), temperatures, key=key, num_warmup=200, num_samples=400, num_chains=4, kernel=kernel
    )
    for i, t in enumerate(temperatures):
        mean, variance = gaussian_moments(t)
        draws = ladder.draws[:, :, i]
        for values, truth in ((draws, mean), ((draws - mean) ** 2, variance)):
            z = (values.mean(axis=(0, 1)) - truth) / mcse_mean(values)
            assert np.abs(z).max() < 4.5, (t, z)
    x = ladder.draws
    np.testing.assert_allclose(ladder.gradient_log_likelihood, (1.3 - x) / 0.25, rtol=1e-12)
    np.testing.assert_allclose(ladder.gradient_log_prior, -x, rtol=1e-12)
    assert stats.acceptance_rate[:, :, 1:].mean() > 0.6
    assert np.isfinite(stats.step_size[:, 1:]).all()
    assert stats.lockstep_evaluations >= stats.gradient_evaluations > 0
