"""The log evidence of weighted draws: exact values, honest errors, uneven weights, nested-sampling
runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gammaln
from scipy.stats import chi2

import mcmcpost as mp
from mcmcpost.control import PlainMean, ZeroVariance
from mcmcpost.core.mcse import Weights
from mcmcpost.evidence import estimate_from_posterior, evaluate_rows
from mcmcpost.evidence.bridge import evaluate_halves, plain_bridge
from mcmcpost.evidence.log_evidence import halves_complaint

SHAPE = 4.0

REPLICATIONS = 200


def log_density(x):
    """Log of d independent Gamma(4) variables: log Z = d log Γ(4)."""
    return jnp.sum(SHAPE * x - jnp.exp(x))


def rows(x):
    return (SHAPE * x - np.exp(x)).sum(axis=-1)


def slopes(x):
    return SHAPE - np.exp(x)


def student(rng, shape, d, scale=1.2):
    """Return draws of a Student t beside the posterior, and their log weights."""
    z = rng.normal(size=(*shape, d)) / np.sqrt(rng.chisquare(5, size=(*shape, 1)) / 5)
    x = np.log(SHAPE) - 0.1 + scale * z / np.sqrt(SHAPE)
    return x, rows(x) + (5 + d) / 2 * np.log1p((z**2).sum(-1) / 5), None


def correlated(rng, shape, d, correlation=0.8):
    """Return AR(1) chains of a wider normal, and their log weights."""
    z = rng.normal(size=(*shape, d))
    for i in range(1, shape[1]):
        z[:, i] = correlation * z[:, i - 1] + np.sqrt(1 - correlation**2) * z[:, i]
    x = np.log(SHAPE) + 1.3 * z / np.sqrt(SHAPE)
    return x, rows(x) + 0.5 * (z**2).sum(-1), None


def quartic(x):
    return -0.25 * (x**2).sum(axis=-1) ** 2


QUARTIC = np.log(4 * np.pi * quad(lambda r: r**2 * np.exp(-0.25 * r**4), 0, 5)[0])


def nested(rng, live=100, size=5.0):
    """Return an exact run in a ball, its log weights and its live points; log Z of `quartic` is
    `QUARTIC`."""
    log_volume = np.cumsum(np.log(rng.beta(live, 1, size=12 * live)))
    direction = rng.normal(size=(12 * live, 3))
    x = (
        direction
        / np.linalg.norm(direction, axis=1, keepdims=True)
        * size
        * np.exp(log_volume / 3)[:, None]
    )
    believed = -np.arange(1, len(x) + 1) / live
    return x[None], (believed + quartic(x))[None], np.full((1, len(x)), float(live))


def tree_of(x, log_weights, live=None):
    return mp.from_arrays(x, slopes(x), log_weights=log_weights, num_live=live)


@pytest.mark.slow
def test_the_weights_are_those_of_the_bridge_identity(rng, key):
    x, log_weights, _ = student(rng, (4, 500), 2, scale=2.0)
    found = mp.bridge_evidence(
        tree_of(x, log_weights), logdensity_fn=log_density, key=key, method="plain"
    )
    assert found.status is mp.Status.PLAIN
    assert abs(found.value - 2 * gammaln(SHAPE)) < 4.5 * found.error < 0.01
    assert found.info["weights_khat"] < 0.7
    assert found.info["weights_ess"] < 0.9 * 2_000
    # One fit alone, with as many proposals as draws: many more of them, as by default, outvote
    # wrong draws.
    wrong = plain_bridge(
        evaluate_halves(rows, x, ("a", "b"), key, symmetric=False, bent=True), symmetric=False
    )
    assert abs(wrong.value - 2 * gammaln(SHAPE)) > 10 * wrong.mcse


@pytest.mark.slow
def test_equal_weights_change_nothing(rng, key):
    x = np.log(rng.gamma(SHAPE, size=(4, 250, 2)))
    without = mp.bridge_evidence(
        mp.from_arrays(x, slopes(x)), logdensity_fn=log_density, key=key, method="plain"
    )
    weighted = mp.bridge_evidence(
        tree_of(x, np.full((4, 250), 7.0)), logdensity_fn=log_density, key=key, method="plain"
    )
    # Effective sizes above the number of draws are believed of neither; below it they agree.
    np.testing.assert_allclose(weighted.value, without.value, atol=0.4 * without.error)
    np.testing.assert_allclose(weighted.error, without.error, rtol=0.25)


@pytest.mark.slow
def test_uneven_weights_are_told(rng, key):
    x = np.log(SHAPE) + 0.4 * rng.normal(size=(1, 8_000, 5)) / np.sqrt(SHAPE)
    log_weights = rows(x) + 0.5 * SHAPE * ((x - np.log(SHAPE)) ** 2).sum(-1) / 0.16
    posterior = evaluate_rows(x, rows, slopes, scores=False)._replace(
        weights=Weights.of(log_weights)
    )
    found = estimate_from_posterior(posterior, PlainMean(), key=key)
    assert "k-hat" in found.complaints[0]
    assert "effective draws decide" in found.complaints[0]
    assert found.info["weights_khat"] > 0.7
    assert found.status is mp.Status.HEAVY_TAIL
    assert {e.status for e in found.estimates} <= {mp.Status.HEAVY_TAIL, mp.Status.NOT_CONVERGED}


def test_weights_worth_fewer_draws_than_a_covariance_needs_are_a_status(rng, key):
    x, _, _ = student(rng, (1, 200), 5)
    log_weights = np.full((1, 200), -40.0)
    log_weights[0, :3] = 0.0
    posterior = evaluate_rows(x, rows, slopes, scores=False)._replace(
        weights=Weights.of(log_weights)
    )
    assert (
        estimate_from_posterior(posterior, PlainMean(), key=key).status is mp.Status.TOO_FEW_DRAWS
    )


def test_weights_that_are_not_finite_are_named(rng, key):
    x, log_weights, _ = student(rng, (2, 50), 1)
    tree = tree_of(x, log_weights)
    tree["sample_stats"]["log_weight"].values[0, 3] = np.nan
    with pytest.raises(ValueError, match="finite `log_weights`"):
        mp.bridge_evidence(tree, logdensity_fn=log_density, key=key, method="plain")


@pytest.mark.slow
def test_the_laplace_approximation_knows_no_weights(rng, key):
    x, log_weights, _ = student(rng, (1, 100), 2)
    options = {"logdensity_fn": log_density, "key": key, "num_proposals": 2_000}
    found = mp.laplace_evidence(tree_of(x, log_weights), **options)
    assert abs(found.value - 2 * gammaln(SHAPE)) < 4.5 * found.mcse


def test_halves_may_differ_by_rounding():
    assert not halves_complaint({"halves": [3.0, 3.0 + 1e-11], "halves_mcse": [1e-13, 1e-13]})
    assert halves_complaint({"halves": [3.0, 3.0 + 1e-8], "halves_mcse": [1e-10, 1e-10]})


CASES = {
    "independent": (lambda rng: student(rng, (4, 250), 2), rows, 2 * gammaln(SHAPE)),
    "AR(.8)": (lambda rng: correlated(rng, (4, 500), 2), rows, 2 * gammaln(SHAPE)),
    "nested": (nested, quartic, QUARTIC),
}


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("case", CASES)
def test_the_error_of_plain_bridges_is_calibrated(case, rng):
    draw, density, truth = CASES[case]
    z = []
    for r in range(REPLICATIONS):
        x, log_weights, live = draw(rng)
        names = tuple("abc"[: x.shape[-1]])
        halves = evaluate_halves(
            density,
            x,
            names,
            jax.random.key(r),
            symmetric=False,
            bent=True,
            weights=Weights.of(log_weights, live),
        )
        found = plain_bridge(halves, symmetric=False)
        z.append((found.value - truth) / found.mcse)
    z = np.array(z)
    largest = chi2.isf(1e-5, len(z) - 1) / (len(z) - 1)
    assert 0.4 < z.var(ddof=1) < largest, z.var(ddof=1)
    assert abs(z.mean()) < 4.5 / np.sqrt(len(z))


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_control_variates_of_weighted_draws_shrink_an_honest_error(rng):
    z, gain = [], []
    for r in range(12):
        x, log_weights, _ = student(rng, (4, 250), 2)
        posterior = evaluate_rows(x, rows, slopes)._replace(weights=Weights.of(log_weights))
        found = estimate_from_posterior(posterior, ZeroVariance(2), key=jax.random.key(r))
        by_name = {e.method: e for e in found.estimates}
        controlled = [by_name[name] for name in ("bridge (controlled)", "bridge (controlled path)")]
        z.append([(e.value - 2 * gammaln(SHAPE)) / e.error for e in controlled])
        gain.append(by_name["bridge (warp-III)"].mcse / by_name["bridge (controlled path)"].error)
        assert found.method == "bridge (controlled path)"
    assert (np.square(z).sum(axis=0) < chi2.isf(1e-5, len(z))).all(), z
    assert np.median(gain) > 20, gain
