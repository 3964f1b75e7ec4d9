"""The fitted computation-aware process: training, prediction, the parts of the variance, bad
input."""

import jax
import numpy as np
import pytest
from cagp_cases import KERNEL, exact_posterior, make_case

from benchmarks.gp._projected_likelihood import ProjectedLikelihood
from mcmcpost.gp import BlockActions, ComputationAwareGP
from mcmcpost.gp.actions import (
    AbstractPolicy,
    GivenActions,
    RandomActions,
    ResidualActions,
    UnitActions,
)
from mcmcpost.gp.computation_aware import EvidenceBound
from mcmcpost.solve.search import LBFGS, Adam, TrainingProblem, TrainingStatus
from mcmcpost.stein import Matern32, Polynomial, Scaled

POLICIES = {
    "blocks": BlockActions(),
    "consecutive blocks": BlockActions(near=False),
    "residuals": ResidualActions(),
    "unit": UnitActions(),
    "random": RandomActions(),
    "given": GivenActions(np.eye(203, 20), learn=True),
}
OPTIMISERS = {"lbfgs": LBFGS(max_steps=25), "adam": Adam(rate=1.0, max_steps=40)}
LEARNED = ("blocks", "given")
"""Policies whose actions are parameters of the search."""


def test_every_policy_is_in_the_table():
    assert {type(policy) for policy in POLICIES.values()} == set(AbstractPolicy.__subclasses__())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "optimiser"),
    [*((name, "lbfgs") for name in POLICIES), *((name, "adam") for name in LEARNED)],
)
def test_training_ends_no_higher_than_it_began_and_predicts(policy, optimiser, key, rng):
    """n = 203 and i = 20: no row dropped, no blow-up at Adam's rate of 1.0, no NaN."""
    case = make_case(rng, 203, 203)
    y = 30 + 5 * case.y
    gp = ComputationAwareGP(
        num_actions=20, policy=POLICIES[policy], optimiser=OPTIMISERS[optimiser]
    )
    fitted = gp.fit(case.X, y, key=key)
    record = fitted.record
    assert record.objective <= record.history[0]
    assert np.isfinite(record.history).all() or record.rejected
    assert fitted.num_actions == 20
    mean, variance = fitted.predict(case.X)
    assert np.isfinite(mean).all()
    assert (variance >= fitted.training.scale**2 * fitted.noise).all()
    assert np.mean((mean - y) ** 2) < np.var(y)
    if policy in ("blocks", "residuals"):
        truth = 30 + 5 * (np.sin(2 * case.Z[:, 0]) + 0.3 * case.Z[:, 1])
        mean, variance = fitted.predict(case.Z, noise=False)
        assert np.sqrt(np.mean((mean - truth) ** 2)) < 0.35 * np.std(truth)
        assert np.mean((mean - truth) ** 2 / variance) < 2.5


@pytest.mark.slow
@pytest.mark.parametrize("objective", [EvidenceBound(), ProjectedLikelihood()])
def test_held_hyper_parameters_stay_and_actions_learn(objective, rng):
    case = make_case(rng, 40)
    gp = ComputationAwareGP(
        KERNEL, 0.2, 5, objective=objective, optimiser=LBFGS(max_steps=5), optimise=False
    )
    fitted = gp.fit(case.X, case.y)
    np.testing.assert_array_equal(fitted.kernel.kernel.lengthscale, KERNEL.kernel.lengthscale)
    assert (fitted.noise, fitted.kernel.amplitude) == (0.2, 1.3)
    assert fitted.record.objective < fitted.record.history[0]


@pytest.mark.slow
@pytest.mark.parametrize("policy", [BlockActions(learn=False), UnitActions(), ResidualActions()])
def test_with_nothing_free_the_record_says_so(policy, rng):
    case = make_case(rng, 40)
    fitted = ComputationAwareGP(KERNEL, 0.2, 5, policy=policy, optimise=False).fit(case.X, case.y)
    assert fitted.record.status is TrainingStatus.FIXED
    assert fitted.record.num_steps == 0
    np.testing.assert_array_equal(fitted.record.history, fitted.record.objective)


@pytest.mark.slow
@pytest.mark.parametrize("i", [24, 1000])
def test_one_action_per_row_is_the_exact_process(i, rng):
    """A budget beyond n is n."""
    case = make_case(rng, 24)
    scale = case.y.std()
    gp = ComputationAwareGP(KERNEL, 0.2, i, policy=BlockActions(learn=False), optimise=False)
    fitted = gp.fit(case.X, 7 + case.y)
    exact = exact_posterior(KERNEL, 0.2, case._replace(y=case.y / scale), case.Z)
    mean, variance = fitted.predict(case.Z, noise=False)
    assert fitted.num_actions == 24
    np.testing.assert_allclose(mean, 7 + scale * exact.mean, atol=1e-10)
    np.testing.assert_allclose(variance, scale**2 * np.diag(exact.covariance), atol=1e-10)
    split = fitted.predict_split(case.Z)
    np.testing.assert_allclose(split.computational, 0, atol=1e-10)


@pytest.mark.slow
def test_combined_variance_is_mathematical_plus_computational(rng):
    case = make_case(rng, 40)
    scale = case.y.std()
    fitted = ComputationAwareGP(KERNEL, 0.2, 5, policy=UnitActions(), optimise=False).fit(
        case.X, case.y
    )
    for noise in (False, True):
        prediction, split = (
            fitted.predict(case.Z, noise=noise),
            fitted.predict_split(case.Z, noise=noise),
        )
        exact = exact_posterior(KERNEL, 0.2, case._replace(y=case.y / scale), case.Z)
        np.testing.assert_array_equal(split.mean, prediction.mean)
        np.testing.assert_allclose(split.combined, prediction.variance, rtol=1e-12)
        np.testing.assert_allclose(
            split.mathematical + split.computational, split.combined, rtol=1e-14
        )
        np.testing.assert_allclose(
            split.mathematical, scale**2 * (np.diag(exact.covariance) + 0.2 * noise), rtol=1e-9
        )
        assert (split.computational > 0).all()


@pytest.mark.slow
def test_samples_have_the_mean_and_covariance_of_the_prediction(key, rng):
    case = make_case(rng, 40)
    fitted = ComputationAwareGP(KERNEL, 0.2, 5, policy=UnitActions(), optimise=False).fit(
        case.X, 9 + 4 * case.y
    )
    count = 20_000
    for noise in (False, True):
        draws = fitted.sample(case.Z, count, key=key, noise=noise)
        mean, variance = fitted.predict(case.Z, noise=noise)
        assert draws.shape == (count, 7)
        assert (np.abs(draws.mean(axis=0) - mean) < 4.5 * np.sqrt(variance / count)).all()
        assert (np.abs(draws.var(axis=0) / variance - 1) < 4.5 * np.sqrt(2 / count)).all()
    twice = fitted.sample(case.Z[[0, 0, 1, 2, 3, 4, 5]], count, key=key)
    np.testing.assert_allclose(twice[:, 0], twice[:, 1], atol=1e-5)


@pytest.mark.slow
def test_the_fit_leaves_its_inputs_and_jax_alone(rng):
    case = make_case(rng, 203, 203)
    X, y = case.X.copy(), case.y.copy()
    gp = ComputationAwareGP(num_actions=20, optimiser=LBFGS(max_steps=2))
    with jax.enable_x64(False):
        fitted = gp.fit(X.astype(np.float32), y)
        prediction = fitted.predict(case.Z)
    np.testing.assert_array_equal(y, case.y)
    assert prediction.mean.dtype == prediction.variance.dtype == np.float64
    assert all(isinstance(leaf, np.ndarray | float | int | str) for leaf in jax.tree.leaves(fitted))


@pytest.mark.slow
def test_duplicates_and_constant_columns_and_outputs_fit(rng):
    case, twice = make_case(rng, 102), np.arange(203) // 2
    X = np.column_stack([case.X[twice, :2], np.full(203, 3.0)])
    gp = ComputationAwareGP(num_actions=20, optimiser=LBFGS(max_steps=5))
    fitted = gp.fit(X, case.y[twice])
    assert np.isfinite(fitted.predict(X)).all()
    constant = gp.fit(X, np.full(203, 2.5))
    mean, variance = constant.predict(X)
    np.testing.assert_allclose(mean, 2.5)
    assert np.isfinite(variance).all()


@pytest.mark.slow
def test_zero_and_dependent_actions_are_counted(rng):
    case = make_case(rng, 40)
    S = rng.normal(size=(40, 5))
    S[:, 1], S[:, 4] = 0, S[:, 0] - S[:, 2]
    fitted = ComputationAwareGP(KERNEL, 0.2, 5, policy=GivenActions(S), optimise=False).fit(
        case.X, case.y
    )
    assert (fitted.num_actions, int(fitted.projection.rank)) == (5, 3)
    assert np.isfinite(fitted.predict(case.Z)).all()


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"num_actions": 0}, "`num_actions` of at least 1"),
        ({"noise": 0.0}, "`noise`, a number in \\[1e-06, 100"),
        ({"noise": float("nan")}, "`noise`"),
    ],
)
def test_bad_settings_are_refused(arguments, match):
    with pytest.raises(ValueError, match=match):
        ComputationAwareGP(**arguments)


@pytest.mark.parametrize(
    "make", [lambda: LBFGS(max_steps=0), lambda: Adam(max_seconds=0.0), lambda: Adam(rate=-1.0)]
)
def test_bad_optimisers_are_refused(make):
    with pytest.raises(ValueError, match=r"LBFGS|Adam"):
        make()


@pytest.mark.slow
def test_bad_data_are_refused(key, rng):
    case = make_case(rng, 40)
    gp = ComputationAwareGP(KERNEL, 0.2, 5, policy=UnitActions(), optimise=False)
    broken = case.X.copy()
    broken[3] = np.nan
    with pytest.raises(ValueError, match=r"finite values of `X`.*1 rows that are not: 3"):
        gp.fit(broken, case.y)
    with pytest.raises(ValueError, match="one value of `y`"):
        gp.fit(case.X, case.y[:-1])
    with pytest.raises(ValueError, match="RandomActions: expected a `key`"):
        ComputationAwareGP(policy=RandomActions()).fit(case.X, case.y)
    with pytest.raises(
        ValueError, match=r"GivenActions: expected a finite matrix \(40, at least 4\)"
    ):
        ComputationAwareGP(num_actions=4, policy=GivenActions(np.eye(11))).fit(case.X, case.y)
    fitted = gp.fit(case.X, case.y)
    for call in (fitted.predict, fitted.predict_split, lambda Z: fitted.sample(Z, 2, key=key)):
        with pytest.raises(ValueError, match="`X` with 3 columns"):
            call(case.Z[:, :2])
        with pytest.raises(ValueError, match="finite values"):
            call(np.full((1, 3), np.inf))


@pytest.mark.slow
def test_the_split_of_many_rows_is_refused(rng):
    X = rng.normal(size=(8_193, 1))
    fitted = ComputationAwareGP(
        Scaled(1.0, Matern32(1.0)), 0.2, 1, policy=UnitActions(), optimise=False
    ).fit(X, X[:, 0])
    with pytest.raises(ValueError, match="at most 8192 training rows"):
        fitted.predict_split(X[:2])


def quartic(x: np.ndarray) -> tuple[float, np.ndarray]:
    """Rises without bound away from the origin and is not finite beyond 3."""
    if np.abs(x).max() > 3:
        return np.nan, np.full_like(x, np.nan)
    return float(np.sum(x**4 + x**2)), 4 * x**3 + 2 * x


BOX = np.array([[-10.0, np.inf], [-10.0, 10.0]])


@pytest.mark.parametrize("optimiser", [LBFGS(), Adam(rate=4.0, max_steps=400)])
def test_optimisers_back_away_from_cliffs_and_explosions(optimiser):
    best, record = optimiser.minimise(
        TrainingProblem(quartic, np.array([2.9, -1.0]), BOX, np.array([1.0, 3.0]), 10)
    )
    np.testing.assert_allclose(best, 0, atol=1e-2)
    assert record.objective == quartic(best)[0] == record.history.min()
    assert (record.rejected > 0) == (
        not np.isfinite(record.history).all() or isinstance(optimiser, Adam)
    )


@pytest.mark.parametrize("optimiser", [LBFGS(max_seconds=1e-9), Adam(max_seconds=1e-9)])
def test_a_budget_of_seconds_stops(optimiser):
    _, record = optimiser.minimise(
        TrainingProblem(quartic, np.array([2.9, -1.0]), BOX, np.array([1.0, 3.0]), 10)
    )
    assert record.status is TrainingStatus.OUT_OF_TIME
    assert len(record.history) < 10


@pytest.mark.parametrize("optimiser", [LBFGS(), Adam()])
def test_a_start_that_is_not_finite_is_refused(optimiser):
    with pytest.raises(ValueError, match="a finite loss at the start"):
        optimiser.minimise(
            TrainingProblem(quartic, np.array([5.0, 0.0]), BOX, np.array([1.0, 3.0]), 10)
        )


def test_adam_stalls_rather_than_loop_on_a_loss_that_always_explodes():
    def trap(x: np.ndarray) -> tuple[float, np.ndarray]:
        return (0.0 if (x == 1).all() else 1e9), np.ones_like(x)

    best, record = Adam(max_steps=10_000).minimise(
        TrainingProblem(trap, np.ones(2), BOX, np.array([1.0, 3.0]), 10)
    )
    assert record.status is TrainingStatus.STALLED
    assert len(record.history) < 40
    np.testing.assert_array_equal(best, 1)


@pytest.mark.slow
def test_samples_where_the_prior_has_no_variance(key):
    X = np.linspace(-1, 1, 10)[:, None]
    fitted = ComputationAwareGP(Polynomial(1, offset=0.0), optimise=False).fit(X, X[:, 0])
    np.testing.assert_allclose(fitted.sample(np.zeros((1, 1)), 3, key=key), 0.0, atol=1e-12)
