"""Control variates of many coordinates: features by pairs, screening outside each fold, the kernel of a few of them."""

import numpy as np
import pytest
from control_cases import estimate, gaussian_trace

from mcmcpost.control import Auto, LeastSquares, Screened, ZeroVariance, auto
from mcmcpost.control.auto import work_of
from mcmcpost.control.problem import make_problem
from mcmcpost.control.screened import Pairs, Ranking, Rows
from mcmcpost.core.errors import InputError, Status
from mcmcpost.stein import polynomial_features
from mcmcpost.trace import make_trace


@pytest.fixture
def wide(rng):
    """Return 4 × 250 draws of seventy independent normals with a mixed, a diagonal and a smooth integrand."""
    trace = gaussian_trace(rng, (4, 250, 70))
    x = trace.draws
    mixed = x[..., 3] * x[..., 9] + 0.5 * x[..., 5] ** 2 + x[..., 0]
    smooth = np.exp(0.4 * x[..., 12]) * np.cos(x[..., 30])
    return trace, np.stack([mixed, smooth], axis=-1)


def rows_of(trace, values):
    return Rows.of(make_problem(trace, values).unrotated())


def test_pairs_are_the_stein_features_of_monomials(rng):
    x = rng.normal(size=(2, 40, 3))
    trace = make_trace(x, -np.sinh(x))
    rows = rows_of(trace, x[..., :1])
    pairs = [(3, 1), (0, 0), (1, 2)]
    exponents = np.array([[0, 1, 0], [2, 0, 0], [0, 1, 1]])
    expected = np.asarray(polynomial_features(rows.draws[:, :3], rows.scores[:, :3], exponents))
    found = rows.features(Pairs(*np.array(pairs).T))
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected, axis=0), rtol=1e-12)


def test_the_ranking_is_by_correlation(rng):
    x = np.repeat(rng.normal(size=(4, 80, 6)), 2, axis=1)
    rows = rows_of(make_trace(x, -(x**3)), x[..., :1])
    pairs = Pairs(*np.concatenate([np.triu_indices(6), [np.full(6, 6), np.arange(6)]], axis=1))
    features = rows.features(pairs)
    residual = features[:, 4] + 0.5 * features[:, 23] + 0.05 * rng.normal(size=len(features))
    residual -= rows.root * (rows.root @ residual) / (rows.root @ rows.root)
    order = np.argsort(-np.abs(features.T @ residual))
    none = Pairs(*np.empty((2, 0), int))
    ranking = Ranking.of(rows, none)
    assert ranking.num_candidates == 27
    best = np.array(ranking.best(residual * rows.root, 27, none))
    np.testing.assert_array_equal(best, np.array(pairs)[:, order])
    again = np.array(ranking.best(residual * rows.root, 5, Pairs(*best[:, :2])))
    np.testing.assert_array_equal(again, best[:, 2:7])


@pytest.mark.parametrize("repeats", [1, 3])
def test_with_every_feature_it_is_the_quadratic_fit(rng, repeats):
    x = np.repeat(rng.normal(size=(4, 60, 4)), repeats, axis=1)
    trace = make_trace(x, -(x**3))
    problem = make_problem(trace, np.stack([np.sinh(x[..., 0] * x[..., 1]), x[..., 2] * x[..., 3]], -1)).unrotated()
    expected = ZeroVariance(2, LeastSquares()).crossfit(problem)
    found = Screened(rounds=1, per_round=6, kernel=False).crossfit(problem)
    assert found.info["num_added"] == [6, 6]
    for part in ("mean", "control"):
        np.testing.assert_allclose(getattr(found, part), getattr(expected, part), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.refits.without_fold, expected.refits.without_fold, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.refits.halves, expected.refits.halves, rtol=1e-6, atol=1e-8)


def test_a_mixed_quadratic_of_seventy_coordinates_is_found_exactly(wide):
    trace, values = wide
    found = estimate(trace, values, Screened(kernel=False))
    np.testing.assert_allclose(found.mean[0], 0.5, atol=1e-9)
    assert found.variance_ratio[0] > 1e15
    assert found.status[0] is Status.EXACT


def test_the_kernel_sees_the_coordinates_of_the_integrand(wide):
    trace, values = wide
    without = estimate(trace, values[..., 1:], Screened(kernel=False))
    found = estimate(trace, values[..., 1:], Screened())
    assert {12, 30} <= set(found.info["coordinates"][0])
    assert found.variance_ratio[0] > 1.5 * without.variance_ratio[0] > 6
    truth = np.exp(0.08 - 0.5)
    assert abs(found.mean[0] - truth) < 3 * found.mcse[0]
    assert found.gain[0] > 2


@pytest.mark.parametrize("repeats", [1, 2])
def test_fits_on_some_states_are_evaluated_at_all(rng, repeats):
    x = np.repeat(rng.normal(size=(4, 150, 12)), repeats, axis=1)
    values = np.stack([x[..., 3] * x[..., 9] + x[..., 5] ** 2, np.exp(0.4 * x[..., 2]) * np.cos(x[..., 7])], axis=-1)
    problem = make_problem(make_trace(x, -x), values)
    some = problem.thin(360)
    found, alone = Screened(max_states=360).crossfit(problem), Screened().crossfit(some.seen())
    assert {key: found.info[key] for key in ("steps", "num_added")} == {
        key: alone.info[key] for key in ("steps", "num_added")
    }
    assert found.info["steps"] == [1, 4]
    assert found.info["num_fitted"] == 360
    np.testing.assert_allclose(found.control[some.folds.everyone], alone.control[:360], rtol=1e-6, atol=1e-8)
    residuals = problem.values - found.control
    np.testing.assert_allclose(found.mean, problem.counts @ residuals / problem.counts.sum(), atol=1e-12)
    assert (residuals.var(axis=0) < 0.5 * problem.values.var(axis=0)).all()


@pytest.mark.parametrize("max_states", [None, 700])
def test_no_held_out_control_depends_on_its_fold(wide, max_states):
    trace, values = wide
    problem = make_problem(trace, values[..., 1:])
    out = problem.folds.rows()[2][0]
    changed = problem.values.copy()
    changed[out] = 1.0
    method = Screened(rounds=1, max_states=max_states)
    fits = [method.crossfit(problem), method.crossfit(problem._replace(values=changed))]
    assert fits[0].info["steps"] == fits[1].info["steps"] == [2]
    np.testing.assert_array_equal(fits[0].control[out], fits[1].control[out])
    assert not np.allclose(fits[0].control, fits[1].control)


def test_neighbours_change_nothing(wide):
    trace, values = wide
    both, alone = estimate(trace, values, Screened()), estimate(trace, values[..., 1:], Screened())
    np.testing.assert_allclose(both.mean[1:], alone.mean, rtol=1e-12)
    np.testing.assert_allclose(both.mcse[1:], alone.mcse, rtol=1e-9)


@pytest.mark.parametrize(
    ("size", "num_features", "added"),
    [((4, 200, 70), 140, 18), ((4, 60, 70), 0, 15), ((4, 8, 300), 0, 9), ((4, 50, 1), 2, 0)],
)
def test_fewer_draws_have_fewer_features(rng, size, num_features, added):
    x = rng.normal(size=size)
    found = estimate(make_trace(x, -x), np.exp(x[..., :1]), Screened(kernel=False))
    assert found.info["num_features"] == num_features
    assert found.info["num_added"][0] <= added
    assert abs(found.mean[0] - np.exp(0.5)) < 5 * found.mcse[0]


def test_coordinates_that_depend_on_each_other_leave_the_fit_finite(rng):
    x = rng.normal(size=(4, 100, 5))
    x = np.concatenate([x, x[..., :1], x[..., 1:2] + x[..., 2:3]], axis=-1)
    found = estimate(make_trace(x, -x), x[..., :1] * x[..., 3:4], Screened())
    assert abs(found.mean[0]) < 5 * found.mcse_plain[0]
    assert np.isfinite(found.mcse[0])


def test_auto_takes_it_where_a_quadratic_has_too_many_features(wide):
    trace, values = wide
    found = estimate(trace, values, Auto())
    assert found.method == ("Screened()",) * 2
    assert set(found.info["tried"]) == {"ZeroVariance(degree=1)", "Screened()"}


def test_parameters_are_checked():
    for bad in ({"rounds": 0}, {"per_round": True}, {"per_round": -1}, {"max_states": 0}):
        with pytest.raises(InputError, match="of at least 1, an integer"):
            Screened(**bad)


def test_auto_keeps_a_bound_on_its_work_that_does_not_depend_on_what_else_is_asked_for(wide):
    trace, values = wide
    one, both = make_problem(trace, values[..., :1]), make_problem(trace, values)
    usual = Auto().candidates(both)
    assert [type(method) for method in usual] == [ZeroVariance, Screened]
    assert usual[1] == Screened(per_round=Screened().num_added(both.folds.num_train))
    before = np.inf
    for max_work in (1e11, 4e8, 1.5e8, 1e8, 1e5):
        auto = Auto(max_work=max_work)
        found = auto.candidates(both)
        assert found == auto.candidates(one)
        works = [work_of(method, both) for method in found]
        assert all(work.each <= max_work and work.shared <= 10 * max_work for work in works)
        added = [method.per_round for method in found if isinstance(method, Screened)]
        assert sum(added) <= before
        before = sum(added)
    assert found == []
    assert Auto(max_work=1e5).crossfit(both).info == {"tried": {}}
    fit = Auto(max_work=4e8).crossfit(both)
    assert {label: facts["work"] for label, facts in fit.info["tried"].items()} == {
        method.label: work_of(method, both).total(2) for method in Auto(max_work=4e8).candidates(both)
    }


def test_auto_takes_fewer_states_before_fewer_features(wide, monkeypatch):
    trace, values = wide
    monkeypatch.setattr(auto, "SCREENED_STATES", 400)
    problem = make_problem(trace, values)
    full = work_of(Screened(), problem).each
    (found,) = (method for method in Auto(max_work=0.9 * full).candidates(problem) if isinstance(method, Screened))
    assert found == Screened(per_round=Screened().num_added(problem.folds.thin(500).num_train), max_states=500)
    (found,) = (method for method in Auto(max_work=0.42 * full).candidates(problem) if isinstance(method, Screened))
    assert found.max_states == 500
    assert found.per_round < Screened().num_added(problem.folds.thin(500).num_train)
    monkeypatch.setattr(auto, "SCREENED_STATES", 501)
    (found,) = (method for method in Auto(max_work=0.9 * full).candidates(problem) if isinstance(method, Screened))
    assert found.max_states is None
    assert found.per_round < Screened().num_added(problem.folds.num_train)


def test_auto_gains_what_is_to_be_had_from_fewer_draws_than_parameters(rng):
    x = rng.normal(size=(4, 25, 200))
    values = np.stack([x[..., 0], x[..., 0] * x[..., 7], rng.normal(size=(4, 25))], axis=-1)
    found = estimate(make_trace(x, -x), values, Auto())
    assert (np.abs(found.mean) < 5 * found.mcse + 1e-9).all()
    assert (found.gain[:2] > 100).all()
    assert 1 <= found.gain[2] < 3


@pytest.mark.parametrize(("d", "kernel", "tried"), [(30, True, True), (30, False, False), (10, True, False)])
def test_auto_tries_it_beside_a_quadratic_for_its_kernel_in_many_coordinates(rng, d, kernel, tried):
    problem = make_problem(gaussian_trace(rng, (4, 500, d)), rng.normal(size=(4, 500, 1)))
    found = Auto(kernel=kernel).candidates(problem)
    assert ZeroVariance(2, LeastSquares()) in found
    assert (Screened(max_states=auto.SCREENED_STATES) in found) == tried


@pytest.mark.slow
def test_auto_reaches_what_depends_on_few_of_many_coordinates(rng):
    x = rng.normal(size=(4, 500, 30))
    values = np.stack([np.exp(0.5 * x[..., 0]), np.cos(x[..., 2]), x[..., 0] * x[..., 7]], axis=-1)
    truth = np.array([np.exp(0.125), np.exp(-0.5), 0.0])
    found, without = (estimate(make_trace(x, -x), values, Auto(kernel=kernel)) for kernel in (True, False))
    assert found.method[:2] == ("Screened()",) * 2
    assert (found.gain[:2] > 2 * without.gain[:2]).all()
    assert (np.abs(found.mean - truth) < 4 * found.mcse + 1e-9).all()
