"""The semi-exact part of the pooled path: its definition, what it gains, and that its error is
honest."""

import numpy as np
import pytest
from scipy.stats import chi2

from mcmcpost.evidence import Ladder, make_ladder, path as pooled, pooled_path, power_ladder
from mcmcpost.evidence.path import NUM_NODES
from mcmcpost.evidence.path_regression import (
    PENALTIES,
    Family,
    Mixtures,
    PooledDraws,
    _fit_node,
    _levels,
    fit_path,
)
from mcmcpost.stein import num_polynomial_features

GRID = np.linspace(-9.0, 9.0, 20_001)


def factor(x):
    return -3.0 * np.log(np.cosh(1.5 * (x - 1.0)))


def product_path(rng: np.random.Generator, num_draws: int, d: int = 4) -> tuple[Ladder, float]:
    """Return iid draws of a path whose likelihood is a product of factors that no polynomial
    controls."""
    levels = power_ladder(10, 4)
    x = np.empty((1, num_draws, len(levels), d))
    for i, t in enumerate(levels):
        mass = np.cumsum(np.exp(t * factor(GRID) - 0.5 * GRID**2))
        x[0, :, i] = np.interp(rng.random((num_draws, d)), mass / mass[-1], GRID)
    masses = [np.exp(t * factor(GRID) - 0.5 * GRID**2).sum() for t in (0.0, 1.0)]
    slope = -4.5 * np.tanh(1.5 * (x - 1.0))
    return make_ladder(levels, x, factor(x).sum(-1), slope, -x), d * float(
        np.log(masses[1] / masses[0])
    )


def test_the_levels_minimise_their_objectives_with_and_without_each_block(rng):
    d, n, landmarks = 2, 90, 7
    family = Family(3, 2, landmarks)
    q = num_polynomial_features(d, 3)
    weights = rng.dirichlet(np.ones(n))
    features = rng.normal(size=(n, q + landmarks)) @ np.diag(np.geomspace(1e-3, 1e3, q + landmarks))
    features[:, q:] /= np.abs(features[:, q:]).max(axis=0)
    values = rng.normal(size=n)
    members = [slice(0, 30), np.arange(30, 90, 2), np.arange(31, 90, 2)]
    kept = np.stack([weights] * 3)
    for block, rows in enumerate(members):
        kept[block, rows] = 0.0
    kept /= kept.sum(axis=1, keepdims=True)
    found = _fit_node(features, values, weights, kept, members, _levels(family, d))

    def regression(weights, columns, penalty):
        design = np.c_[np.ones(n), features[:, columns]]
        size = np.sqrt(weights @ design**2)
        ridge = np.diag(np.r_[0.0, penalty * (columns >= q)] / size**2)
        system = (design / size).T @ (weights[:, None] * design / size) + ridge
        theta = np.linalg.solve(system, (design / size).T @ (weights * values)) / size
        return theta[0], values - design @ theta + theta[0]

    small = np.arange(num_polynomial_features(d, 2))
    cases = [(np.arange(num_polynomial_features(d, degree)), 0.0) for degree in range(4)]
    cases += [(np.r_[small, q : q + landmarks], penalty) for penalty in PENALTIES]
    assert found.mean.shape == (len(cases),)
    for level, (columns, penalty) in enumerate(cases):
        np.testing.assert_allclose(
            found.mean[level], regression(weights, columns, penalty)[0], rtol=1e-6, atol=1e-8
        )
        for block, rows in enumerate(members):
            mean, residuals = regression(kept[block], columns, penalty)
            np.testing.assert_allclose(found.deleted[block, level], mean, rtol=1e-6, atol=1e-8)
            np.testing.assert_allclose(
                found.residuals[rows, level], residuals[rows], rtol=1e-6, atol=1e-7
            )


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_a_kernel_beside_the_quadratic_is_better_and_its_error_honest(rng):
    replications = 12
    errors, reported, polynomials, methods = [], [], [], []
    for _ in range(replications):
        ladder, truth = product_path(rng, 60)
        found = pooled_path(ladder, num_nodes=8)
        methods.append(found.method.split("(")[0])
        errors.append(found.value - truth)
        reported.append(np.hypot(found.mcse, found.discretisation_error))
        polynomials.append(found.fit.integral[3] - truth)
    assert methods.count("SemiExact") > replications / 2
    assert np.mean(np.abs(errors)) < 0.7 * np.mean(np.abs(polynomials))
    assert (
        np.mean(np.square(np.array(errors) / reported))
        < chi2.isf(1e-5, replications) / replications
    )


@pytest.mark.slow
@pytest.mark.parametrize("family", [Family(3, 3, 40), Family(3), Family(2), Family(1)])
@pytest.mark.parametrize("part", [1.01, 0.0])
def test_the_work_bounds_what_is_fitted_and_how_often(rng, monkeypatch, family, part):
    ladder, _ = product_path(rng, 16, d=2)
    nodes, blocks, done = 2 * NUM_NODES + 1, 16, []
    most = 3 * part * nodes * family.work(16 * 10, 2, blocks)
    monkeypatch.setattr(pooled, "MAX_WORK", most)
    monkeypatch.setattr(pooled, "NUM_LANDMARKS", 40)
    monkeypatch.setattr(pooled, "MAX_DEGREE", {2: 3})

    def counted(temperatures, *args, family):
        done.append((len(temperatures), family))
        return fit_path(temperatures, *args, family=family)

    monkeypatch.setattr(pooled, "fit_path", counted)
    found = pooled_path(ladder)
    assert done[0] == (nodes, family if part else Family(1))
    assert len(found.fit.deleted) == blocks
    assert sum(nodes * kind.work(16 * 10, 2, blocks) for nodes, kind in done) <= most or not part
    assert len(done) == 1 or part


@pytest.mark.slow
def test_a_degree_that_is_asked_for_is_what_is_fitted(rng):
    ladder, truth = product_path(rng, 40, d=2)
    found = pooled_path(ladder, degree=2)
    assert (found.degree, found.level, found.method) == (2, 2, "ZeroVariance(degree=2)")
    assert found.fit.mean.shape[1] == 3
    assert abs(found.value - truth) < 4.5 * found.mcse


@pytest.mark.slow
def test_the_discretisation_error_of_a_smooth_path_covers_and_decides_nothing(rng):
    ladder, _ = product_path(rng, 40, d=2)
    found = pooled_path(ladder, degree=2)
    fine = pooled_path(ladder, degree=2, num_nodes=4 * found.info["num_nodes"])
    assert found.info["num_nodes"] == NUM_NODES
    assert abs(found.value - fine.value) < found.discretisation_error < found.mcse / 3
    assert found.mcse == pytest.approx(fine.mcse, rel=0.02)


@pytest.mark.slow
def test_leaving_out_a_block_is_as_pooling_the_others(rng):
    ladder, _ = product_path(rng, 48, d=2)
    found = pooled_path(ladder, degree=2, num_nodes=8)
    kept = np.arange(48) >= 2  # the first of the 24 blocks is draws 0 and 1 of the one chain
    part = ladder._replace(
        draws=ladder.draws[:, kept],
        log_likelihood=ladder.log_likelihood[:, kept],
        gradient_log_likelihood=ladder.gradient_log_likelihood[:, kept],
        gradient_log_prior=ladder.gradient_log_prior[:, kept],
    )
    alone = pooled_path(part, degree=2, num_nodes=8)
    moved = np.asarray(found.fit.deleted)[0] - np.asarray(found.fit.integral)
    np.testing.assert_allclose(
        moved[1:], (np.asarray(alone.fit.integral) - np.asarray(found.fit.integral))[1:], rtol=0.03
    )


def test_mixtures_that_are_not_finite_leave_nothing_and_raise_nothing(rng):
    n, b = 30, 6
    blocks = np.arange(n) % b
    known, unknown = rng.normal(size=(1, n)), np.full((b, n), np.nan)
    draws = rng.normal(size=(n, 2))
    pooled = PooledDraws(
        draws,
        draws[:, 0],
        draws,
        -draws,
        blocks,
        np.arange(n).reshape(-1, b).T,
        blocks * 0,
        np.ones(n),
    )
    mixtures = Mixtures(np.zeros((b + 1, 2)), np.concatenate([known, unknown]), 1, False)
    found = fit_path(np.array([0.3, 0.9]), np.array([0.5, 0.5]), pooled, mixtures, family=Family(1))
    assert np.isfinite(found.integral).all()
    assert np.isnan(found.deleted).all()
    assert np.isnan(found.crossfit[1])
