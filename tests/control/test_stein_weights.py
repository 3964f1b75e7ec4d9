"""Stein weights under a budget, their model error, warm starts, and Stein thinning."""

import jax.numpy as jnp
import numpy as np
import pytest
from control_cases import estimate, gaussian_trace

import mcmcpost as mp
from mcmcpost.control import solve_stein_weights
from mcmcpost.stein import InverseMultiquadric, SquaredExponential, stein_gram, stein_thin

KERNEL = InverseMultiquadric(2.0)
NUGGET = 1e-3
UNTIL_SOLVED = mp.ConjugateGradients(1e-8, 500, rank=5)
UNTIL_ENOUGH = mp.ConjugateGradients(1e-8, 500, rank=5, gain=1e-3)
"""Each with a start and without is a program of its own, so the tests share them."""


def method(**kwargs):
    return mp.ControlFunctional(KERNEL, NUGGET, **kwargs)


@pytest.fixture
def trace(rng):
    return gaussian_trace(rng, (2, 64, 3))


@pytest.mark.slow
def test_variance_falls_with_the_budget_to_the_exact_one(trace):
    values = trace.draws
    weights = solve_stein_weights(trace, values, method())
    assert repr(weights) == "SteinWeights of 2 chains of 64 draws, controlled"
    exact, factors = weights.variance_factor, []
    few = mp.ConjugateGradients(1e-8, 4, rank=5)  # a budget of the solver's own
    for settings in (
        {"solver": UNTIL_SOLVED, "budget": 1},
        {"solver": few},
        {"solver": UNTIL_SOLVED},
    ):
        weights = solve_stein_weights(trace, values, method(**settings))
        assert weights.values.sum() == pytest.approx(1)
        assert weights.status == "not_converged" or len(factors) == 2
        factors.append(weights.variance_factor)
    assert (np.diff(factors) <= 1e-12).all()
    assert min(factors) >= exact * (1 - 1e-8)
    assert factors[-1] == pytest.approx(exact, rel=1e-3)
    assert factors[0] > 1.5 * exact


@pytest.mark.slow
def test_unfinished_weights_with_features_integrate_constants_and_features_exactly(trace):
    few = mp.ConjugateGradients(1e-8, 4, rank=5)
    features = mp.SemiExact(1, kernel=KERNEL, nugget=NUGGET, solver=few)
    weights = solve_stein_weights(trace, trace.draws, features, moments=(0.0, 1.0))
    assert weights.status == "not_converged"
    assert weights.values.sum() == pytest.approx(1, abs=1e-12)
    np.testing.assert_allclose(weights.mean(trace.scores), 0.0, atol=1e-12)


@pytest.mark.slow
def test_a_stop_on_the_variance_is_early_and_nearly_exact(trace):
    exact = solve_stein_weights(trace, trace.draws, method())
    early = solve_stein_weights(trace, trace.draws, method(solver=UNTIL_ENOUGH))
    late = solve_stein_weights(trace, trace.draws, method(solver=UNTIL_SOLVED))
    assert early.status == "controlled"
    assert early.info["num_products"] < late.info["num_products"]
    assert exact.variance_factor <= early.variance_factor < 1.1 * exact.variance_factor


@pytest.mark.slow
def test_model_error_is_that_of_the_dense_posterior(trace):
    values = trace.draws[..., :2] ** 2
    weights = solve_stein_weights(trace, values, method(), moments=(0.0, 1.0))
    n = trace.scores[..., 0].size
    X, S = trace.draws.reshape(n, 3), trace.scores.reshape(n, 3)
    K = np.asarray(stein_gram(KERNEL, jnp.asarray(X), jnp.asarray(S)))
    A = K / np.diag(K).mean() + NUGGET * np.eye(n)
    one, f = np.ones(n), values.reshape(n, 2)
    beta = one @ np.linalg.solve(A, f) / (one @ np.linalg.solve(A, one))
    amplitude = np.sum((f - beta) * np.linalg.solve(A, f - beta), axis=0) / (n - 1)
    wanted = np.sqrt(amplitude / (one @ np.linalg.solve(A, one)))
    np.testing.assert_allclose(weights.model_error(values), wanted, rtol=1e-6)
    np.testing.assert_allclose(weights.mean(values), beta, atol=1e-8)


@pytest.mark.slow
def test_weights_of_a_kernel_nearby_need_fewer_products(trace):
    before = solve_stein_weights(trace, trace.draws, method(solver=UNTIL_SOLVED))
    near = mp.ControlFunctional(InverseMultiquadric(2.02), NUGGET, solver=UNTIL_SOLVED)
    cold = solve_stein_weights(trace, trace.draws, near)
    warm = solve_stein_weights(trace, trace.draws, near, initial=before)
    assert warm.info["num_products"] < cold.info["num_products"]
    np.testing.assert_allclose(warm.mean(trace.draws), cold.mean(trace.draws), atol=1e-4)


@pytest.mark.slow
def test_a_stop_on_the_variance_is_not_fooled_by_a_start_far_off(trace):
    """From another kernel's weights the variance of the rule may rise before it falls."""
    far = mp.ControlFunctional(InverseMultiquadric(0.3), NUGGET)
    start = solve_stein_weights(trace, trace.draws, far)
    exact = solve_stein_weights(trace, trace.draws, method())
    warm = solve_stein_weights(trace, trace.draws, method(solver=UNTIL_ENOUGH), initial=start)
    assert warm.status == "controlled"
    assert exact.variance_factor * (1 - 1e-8) <= warm.variance_factor < 1.1 * exact.variance_factor


@pytest.mark.slow
def test_bad_requests_are_refused(trace):
    weights = solve_stein_weights(trace, trace.draws, method())
    features = mp.SemiExact(1, KERNEL, NUGGET, solver=mp.ConjugateGradients())
    with pytest.raises(ValueError, match="give no first guess"):
        solve_stein_weights(trace, trace.draws, features, initial=weights)
    with pytest.raises(ValueError, match=r"SteinWeights.model_error.*leading shape"):
        weights.model_error(np.ones((1, 5)))
    with pytest.raises(ValueError, match="`budget` of at least 1"):
        method(budget=0)
    with pytest.raises(ValueError, match="no `budget` with Cholesky"):
        method(budget=10, solver=mp.Cholesky())
    with pytest.raises(ValueError, match="no `max_states` with ConjugateGradients"):
        method(budget=10, max_states=100)


@pytest.mark.slow
def test_a_budgeted_control_functional_says_that_it_is_unfinished(rng):
    # with fewer draws three products do not beat the plain mean
    trace = gaussian_trace(rng, (2, 300, 3))
    unfinished = estimate(trace, trace.draws**2, method(budget=3))
    assert set(unfinished.status) == {"not_converged"}


@pytest.mark.slow
def test_thinning_is_the_greedy_choice_of_its_definition(rng):
    X = rng.normal(size=(40, 2))
    K = np.asarray(stein_gram(KERNEL, jnp.asarray(X), jnp.asarray(-X)))
    chosen: list[int] = []
    for _ in range(12):
        chosen.append(int(np.argmin(0.5 * np.diag(K) + K[:, chosen].sum(axis=1))))
    found = stein_thin(KERNEL, X, -X, 12)
    np.testing.assert_array_equal(found.indices, chosen)
    wanted = [np.sqrt(K[np.ix_(chosen[:j], chosen[:j])].mean()) for j in range(1, 13)]
    np.testing.assert_allclose(found.discrepancy, wanted)


def test_thinning_drops_burn_in(rng):
    draws = rng.normal(size=(2, 400, 2))
    draws[:, :40] += 6.0
    tree = mp.from_arrays(draws, -draws)
    thinned = mp.stein_thinning(tree, 50, InverseMultiquadric(1.0), allow_bad_scores=True)
    assert (thinned.draw >= 40).all()
    assert set(thinned.chain) == {0, 1}
    with pytest.raises(ValueError, match="`size` of at least 1"):
        mp.stein_thinning(tree, 0, allow_bad_scores=True)


def test_a_discrepancy_of_scores_that_are_not_finite_is_refused(rng):
    x = rng.normal(size=(2, 20, 2))
    scores = -x
    scores[1, 3] = np.nan
    tree = mp.from_arrays(x, scores, allow_bad_scores=True)
    with pytest.raises(mp.ScoreError, match="not finite at 1 of 40 draws"):
        mp.kernel_stein_discrepancy(tree)


@pytest.mark.slow
def test_what_varies_by_rounding_alone_has_no_vote_in_the_kernel(rng):
    x = rng.normal(size=(2, 60, 2))
    ones = 1 + np.finfo(float).eps * rng.integers(0, 2, size=(2, 60, 20))
    smooth = np.stack([np.sin(2 * x[..., 0]), np.exp(x[..., 1])], axis=-1)
    one, two = (
        mp.stein_weights(mp.from_arrays(x, -x, v))
        for v in (smooth, np.concatenate([smooth, ones], axis=-1))
    )
    np.testing.assert_array_equal(one.values, two.values)


NUMBERS = {"rank": np.int64(50), "gain": np.float64(1e-2)}


@pytest.mark.slow
@pytest.mark.parametrize("options", [NUMBERS, {"budget": np.float64(0.5)}, {"budget": np.inf}])
def test_numbers_of_numpy_and_budgets_without_end_are_taken(rng, options):
    x = rng.normal(size=(2, 40, 2))
    method = mp.ControlFunctional(
        SquaredExponential(3.0), 1e-2, solver=mp.ConjugateGradients(**options)
    )
    assert np.isfinite(mp.stein_weights(mp.from_arrays(x, -x), method=method).values).all()
