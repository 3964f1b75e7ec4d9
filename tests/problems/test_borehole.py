"""The borehole model: its priors, its two flows, and their expectations by quadrature."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.util import potential_energy

from mcmcpost.app.model_file import load_model_file
from mcmcpost.app.quantities import evaluate_quantities

FILE = load_model_file(Path(__file__).parents[2] / "models" / "borehole.py")
bh = sys.modules[FILE.model.__module__]
TRUTHS = {"flow_high": 72.878604, "flow_low": 57.994853}  # by Gauss–Hermite quadrature
RULE = (9, 3, 3, 3, 3, 3, 3, 3)  # nodes per input: all but r_w vary by 1.2 % at most


def gauss_hermite(nodes, sd=bh.SD):
    """Return the nodes (n, 8) and weights (n,) of a tensor rule for the inputs."""
    points, weights = zip(*(np.polynomial.hermite_e.hermegauss(k) for k in nodes), strict=True)
    grid = np.stack([a.ravel() for a in np.meshgrid(*points, indexing="ij")], -1)
    weight = np.stack([a.ravel() for a in np.meshgrid(*weights, indexing="ij")], -1).prod(-1)
    return bh.MEAN + sd * grid, weight / weight.sum()


@pytest.mark.slow
@pytest.mark.parametrize("name", TRUTHS)
def test_the_expectations_are_the_truths(name):
    flow = getattr(bh, name)
    (x, weight), (finer, finer_weight) = gauss_hermite(RULE), gauss_hermite((12, *RULE[1:]))
    mean = weight @ np.asarray(flow(x))
    np.testing.assert_allclose(mean, finer_weight @ np.asarray(flow(finer)), rtol=1e-10)
    np.testing.assert_allclose(mean, TRUTHS[name], atol=1e-6)
    np.testing.assert_allclose(mean, getattr(bh, f"TRUE_{name.upper()}"), atol=1e-9)


def test_the_variances_of_table_4_are_not_standard_deviations():
    """Read as standard deviations, they would move the mean by far more than the paper's error of
    0.0118."""
    x, weight = gauss_hermite(RULE, sd=np.concatenate([bh.SD[:1], bh.VARIANCE[1:]]))
    assert abs(weight @ np.asarray(bh.flow_high(x)) - TRUTHS["flow_high"]) > 1e-3


@pytest.mark.slow
def test_the_flows_are_the_papers(rng):
    """Against the formulas of appendix E.4 as they are printed."""
    x = bh.sample(rng, 50).draws
    r_w, r, t_u, t_l, h_u, h_l, length, k_w = x.T
    log = np.log(r / r_w)
    middle = 2 * length * t_u / (log * r_w**2 * k_w)
    high = 2 * np.pi * t_u * (h_u - h_l) / (log * (1 + middle + t_u / t_l))
    low = 5 * t_u * (h_u - h_l) / (log * (1.5 + middle + t_u / t_l))
    np.testing.assert_allclose(bh.flow_high(x), high, rtol=1e-13)
    np.testing.assert_allclose(jax.jit(bh.flow_low)(x), low, rtol=1e-13)
    np.testing.assert_allclose(jax.vmap(bh.flow_high)(jnp.asarray(x)), high, rtol=1e-13)


def test_low_fidelity_is_a_multiple_of_high_to_a_millionth():
    x, weight = gauss_hermite(RULE)
    ratio = np.asarray(bh.flow_low(x)) / np.asarray(bh.flow_high(x))
    mean = weight @ ratio
    np.testing.assert_allclose(mean, 0.7958, atol=5e-5)
    assert np.sqrt(weight @ (ratio - mean) ** 2) < 1e-6 * mean


@pytest.mark.slow
def test_scores_are_those_of_the_program(rng):
    draws, scores = bh.sample(rng, 20)
    sites = {name: jnp.asarray(draws[:, j]) for j, name in enumerate(bh.INPUTS)}
    gradient = jax.vmap(jax.grad(lambda z: potential_energy(FILE.model, (), FILE.data(), z)))(sites)
    found = -np.stack([gradient[name] for name in bh.INPUTS], -1)
    np.testing.assert_allclose(found, (bh.MEAN - draws) / bh.VARIANCE, rtol=1e-12)
    np.testing.assert_allclose(scores, found, rtol=1e-12)


def test_draws_have_the_priors_moments(rng):
    n = 20_000
    z = (bh.sample(rng, n).draws - bh.MEAN) / bh.SD
    assert np.abs(z.mean(0)).max() < 4.5 / np.sqrt(n)
    assert np.abs(np.cov(z.T) - np.eye(8)).max() < 4.5 * np.sqrt(2 / n)


@pytest.mark.slow
@pytest.mark.parametrize("flow", [bh.flow_high, bh.flow_low])
def test_a_negative_radius_gives_nan(flow):
    x = np.stack([bh.MEAN] * 3)
    x[1:, 0] = 0.0, -0.01
    assert np.isfinite(flow(x)).tolist() == [True, True, False]
    assert flow(x)[1] == 0.0
    assert np.isnan(jax.grad(flow)(jnp.asarray(x[2]))).any()


def test_the_file_keeps_the_contract(rng):
    assert FILE.arguments() == ((), {})
    assert list(FILE.start()) == list(bh.INPUTS)
    x = bh.sample(rng, 6).draws
    values = evaluate_quantities(
        FILE, {name: x[:, j].reshape(2, 3) for j, name in enumerate(bh.INPUTS)}
    )
    assert list(values) == ["flow_high", "flow_low"]
    np.testing.assert_allclose(values["flow_high"].ravel(), bh.flow_high(x), rtol=1e-13)
    np.testing.assert_allclose(values["flow_low"].ravel(), bh.flow_low(x), rtol=1e-13)
