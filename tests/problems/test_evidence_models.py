"""Models with a known evidence: van der Pol, radiata pine, and the rival of Lotka–Volterra."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad, solve_ivp
from scipy.special import logsumexp
from scipy.stats import invgamma, multivariate_normal

from mcmcpost.app.model_file import load_model_file
from mcmcpost.core.precision import in_float64
from mcmcpost.ladders import evaluate_at, tempered_target

pytestmark = pytest.mark.usefixtures("rank_promotion")

MODELS = Path(__file__).parents[2] / "models"
VAN_DER_POL = load_model_file(MODELS / "van_der_pol.py")
vdp = sys.modules[VAN_DER_POL.model.__module__]
PINE = load_model_file(MODELS / "radiata_pine.py")
LOTKA_VOLTERRA = load_model_file(MODELS / "lotka_volterra.py")


def target_of(file, options=None, **settings):
    args, kwargs = file.arguments(options)
    return tempered_target("test", file.model, args, kwargs | settings)[0]


def scipy_log_likelihood(log_theta):
    theta = np.exp(log_theta)
    solution = solve_ivp(
        lambda _, u: [u[1], theta * (1 - u[0] ** 2) * u[1] - u[0]],
        (0.0, 10.0), vdp.INITIAL, method="DOP853", t_eval=vdp.TIMES, rtol=1e-12, atol=1e-12,
    )  # fmt: skip
    residual = (vdp.OBSERVED - solution.y[0]) / vdp.NOISE
    return -0.5 * (residual**2).sum() - len(residual) * np.log(vdp.NOISE * np.sqrt(2 * np.pi))


@pytest.mark.slow
@pytest.mark.parametrize("forward_mode", [False, True])
def test_van_der_pol_agrees_with_scipy(forward_mode):
    log_theta = np.array([-0.6, -0.015, 0.3])
    values = in_float64(evaluate_at)(
        target_of(VAN_DER_POL), log_theta[:, None], forward_mode=forward_mode
    )
    np.testing.assert_allclose(
        values.log_likelihood, [scipy_log_likelihood(x) for x in log_theta], rtol=1e-5
    )
    h = 1e-3
    near = np.array([[scipy_log_likelihood(x + k * h) for k in (-2, -1, 1, 2)] for x in log_theta])
    slope = near @ np.array([1.0, -8.0, 8.0, -1.0]) / (12 * h)
    # of a standard deviation of 90
    np.testing.assert_allclose(values.gradient_log_likelihood[:, 0], slope, atol=5e-4)
    np.testing.assert_allclose(values.gradient_log_prior[:, 0], -log_theta / 0.0625, rtol=1e-12)


@pytest.mark.slow
def test_van_der_pol_log_evidence():
    grid = np.linspace(-2.0, 2.0, 1601)
    values = in_float64(evaluate_at)(target_of(VAN_DER_POL), grid[:, None])
    log_z = logsumexp(values.log_likelihood + values.log_prior) + np.log(grid[1] - grid[0])
    assert log_z == pytest.approx(10.35590262, abs=1e-6)


@pytest.mark.slow
def test_a_failed_solve_has_likelihood_zero_and_no_gradient():
    values = in_float64(evaluate_at)(
        target_of(VAN_DER_POL, max_steps=100), np.array([[-1.5], [1.0]])
    )
    assert np.isfinite(values.gradient_log_likelihood[0]).all()
    assert values.log_likelihood[1] == -np.inf
    assert np.isnan(values.gradient_log_likelihood[1]).all()
    assert np.isfinite(values.log_prior).all()
    assert np.isfinite(values.gradient_log_prior).all()


@pytest.mark.slow
@pytest.mark.parametrize(("predictor", "log_z"), [("x", -309.924327665), ("z", -301.435101851)])
def test_radiata_pine_log_evidence(predictor, log_z):
    """Given σ² the marginal of y is normal: the density of the file over that normal's leaves one
    integral."""
    data = PINE.arguments({"predictor": predictor})[1]
    design = np.stack([np.ones(42), data["predictor"] - data["predictor"].mean()], axis=1)
    prior_mean, prior_cov = np.array([3000.0, 185.0]), np.diag([1e6, 1e4])

    def given(variance):
        cov = design @ prior_cov @ design.T + variance * np.eye(42)
        return multivariate_normal.logpdf(data["strength"], design @ prior_mean, cov)

    prior = invgamma(3, scale=2 * 300.0**2)

    def integrand(log_variance):
        variance = np.exp(log_variance)
        return np.exp(given(variance) + prior.logpdf(variance) + log_variance - log_z)

    assert np.log(quad(integrand, 8.0, 16.0, epsabs=1e-12, limit=200)[0]) == pytest.approx(
        0.0, abs=1e-6
    )
    target = target_of(PINE, {"predictor": predictor})
    alpha, beta, variance = 2990.0, 180.0, 9e4
    draw = np.array([alpha, beta, np.log(variance)])
    values = in_float64(evaluate_at)(target, draw[None])
    mean = design @ [alpha, beta]
    assert values.log_likelihood[0] == pytest.approx(
        multivariate_normal.logpdf(data["strength"], mean, variance * np.eye(42))
    )
    log_prior = multivariate_normal.logpdf([alpha, beta], prior_mean, prior_cov) + prior.logpdf(
        variance
    )
    assert values.log_prior[0] == pytest.approx(log_prior + np.log(variance))


def test_an_unknown_predictor_is_refused():
    with pytest.raises(ValueError, match=r"expected `predictor` to be one of .*got 'w'"):
        PINE.data("w")


@pytest.mark.slow
@pytest.mark.parametrize("priors", ["paper", "stan"])
def test_self_limitation_vanishes_with_kappa(priors):
    args, kwargs = LOTKA_VOLTERRA.arguments({"priors": priors})
    free, probed = tempered_target("test", LOTKA_VOLTERRA.model, args, kwargs)
    limited = target_of(LOTKA_VOLTERRA, {"priors": priors, "limited": True})
    assert limited.names == (*free.names, "log_kappa")
    start = {
        k: np.asarray(v)[None, None] for k, v in LOTKA_VOLTERRA.start({"priors": priors}).items()
    }
    draw = probed.unconstrain(start)[0][0, 0]
    without = in_float64(jax.jit(free.log_likelihood))(draw)
    tiny, real = (
        in_float64(jax.jit(limited.log_likelihood))(jnp.append(draw, kappa))
        for kappa in (-40.0, -5.0)
    )
    assert tiny == pytest.approx(float(without), abs=1e-4)
    assert abs(real - without) > 0.1
