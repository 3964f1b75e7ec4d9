"""Stochastic vector-valued control variates: against the exact minimiser, quadrature, and what a
mini-batch holds."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from task_cases import MEANS, SCALES, draw_rows, integrand, means_by_quadrature, variance_ratio

from mcmcpost.control.problem import make_joint_problem
from mcmcpost.stein import SquaredExponential, polynomial_exponents
from mcmcpost.tasks import ChainVariance, PolynomialFamily, Stochastic, TrainedVectorValued, trained
from mcmcpost.tasks.trained import (
    fit_stochastic,
    make_schedule,
    proportional_counts,
    shuffled_units,
    unit_weights,
)
from mcmcpost.tasks.trained_families import (
    CholeskyCovariance,
    FixedCovariance,
    KernelTasks,
    PolynomialTasks,
)
from mcmcpost.trace import make_trace

RELATED = np.array([[1.0, 0.8], [0.8, 1.2]])
FULL = 10_000
SIZES = (30, 20)  # and twenty epochs: what trains at these shapes is compiled once
SHORT = Stochastic(num_epochs=20)


def kernel_tasks(rows, covariance=RELATED):
    return KernelTasks.start(SquaredExponential(2.0), rows, FixedCovariance(covariance))


def separable_design(control, rows):
    """The slow definition: column j of g, at unit coefficient j, one at a time."""
    flat, shape = control.coefficients.size, control.coefficients.shape
    at = [
        eqx.tree_at(lambda c: c.coefficients, control, jnp.asarray(row.reshape(shape)))
        for row in np.eye(flat)
    ]
    return np.stack([np.asarray(c(rows)) for c in at], axis=1)


def exact_minimiser(design, values, tasks, weights, penalty):
    """Return (θ, β, objective) of Σ w r² + λ‖θ‖² by least squares on the stacked system."""
    size = design.shape[1]
    root = np.sqrt(weights)[:, None]
    top = np.concatenate([design, np.eye(2)[tasks]], axis=1) * root
    bottom = np.sqrt(penalty) * np.eye(size, size + 2)
    full, target = (
        np.concatenate([top, bottom]),
        np.concatenate([values * root[:, 0], np.zeros(size)]),
    )
    solution = np.linalg.lstsq(full, target, rcond=None)[0]
    return solution[:size], solution[size:], np.sum((target - full @ solution) ** 2)


def quadratic_tasks(rows):
    return PolynomialTasks.start(rows, FixedCovariance(RELATED), degree=2)


@pytest.mark.slow
@pytest.mark.parametrize("make", [kernel_tasks, quadratic_tasks], ids=["kernel", "polynomial"])
def test_full_batches_reach_the_exact_ridge_solution(make, rng, key):
    rows = draw_rows(rng, (25, 15))
    f = integrand(rows)
    control = make(rows)
    choice = Stochastic(num_epochs=6000, batch_size=FULL, learning_rate=0.01, penalty=0.05)
    fit = fit_stochastic(control, rows, f, choice, key=key)
    weights = 1 / np.bincount(rows.tasks)[rows.tasks]
    theta, beta, objective = exact_minimiser(
        separable_design(control, rows), f, rows.tasks, weights, 0.05
    )
    assert fit.num_steps == 6000
    assert bool(fit.converged)
    assert bool(fit.finite)
    np.testing.assert_allclose(fit.loss, objective, rtol=1e-5)  # a constant learning rate hovers
    np.testing.assert_allclose(fit.beta, beta, atol=1e-3)
    np.testing.assert_allclose(np.ravel(fit.control.coefficients), theta, atol=2e-3)


@pytest.mark.slow
def test_chain_variance_is_least_squares_on_block_means(rng, key):
    rows = draw_rows(rng, (120, 60))
    f = integrand(rows)
    control = PolynomialTasks.start(rows, FixedCovariance(RELATED), degree=1)
    objective = ChainVariance(block=5)
    choice = Stochastic(
        num_epochs=5000, batch_size=FULL, learning_rate=0.01, penalty=0.05, objective=objective
    )
    fit = fit_stochastic(control, rows, f, choice, key=key)
    pooled = separable_design(control, rows).reshape(36, 5, -1).mean(axis=1)
    tasks = rows.tasks[::5]
    weights = 5 / np.bincount(tasks)[tasks]
    theta, beta, exact = exact_minimiser(
        pooled, f.reshape(36, 5).mean(axis=1), tasks, weights, 0.05
    )
    np.testing.assert_allclose(fit.loss, exact, rtol=1e-5)
    np.testing.assert_allclose(fit.beta, beta, atol=1e-3)
    np.testing.assert_allclose(np.ravel(fit.control.coefficients), theta, atol=2e-3)


def test_the_printed_chain_variance_is_zero_and_batch_means_are_not(rng):
    m, rho = 20_000, 0.6
    noise = rng.normal(size=m)
    r = np.zeros(m)
    for i in range(1, m):
        r[i] = rho * r[i - 1] + noise[i]
    short = r[:400] - r[:400].mean()
    printed = np.mean(short**2) + 2 * sum(
        np.sum(short[:-s] * short[s:]) / 400 for s in range(1, 400)
    )
    assert abs(printed) < 1e-10
    schedule = make_schedule(np.zeros(m, int), num_tasks=1, batch_size=FULL, block=100)
    blocks = (r - r.mean())[np.asarray(schedule.units)].mean(axis=1)
    truth = 1 / (1 - rho) ** 2
    error = truth * np.sqrt(2 / len(blocks))
    assert abs(100 * np.mean(blocks**2) - truth) < 4.5 * error


@pytest.mark.slow
@pytest.mark.parametrize("free", [False, True], ids=["fixed B", "free B"])
@pytest.mark.parametrize("family", ["kernel", "polynomial"])
def test_every_member_integrates_to_zero(family, free, rng):
    rows = draw_rows(rng, (12, 9))
    covariance = CholeskyCovariance.start(RELATED) if free else FixedCovariance(RELATED)
    if family == "kernel":
        control = KernelTasks.start(SquaredExponential(2.0), rows, covariance)
    else:
        control = PolynomialTasks.start(rows, covariance, degree=3)
    theta = jnp.asarray(rng.normal(size=control.coefficients.shape))
    control = eqx.tree_at(lambda c: c.coefficients, control, theta)
    mean, size = means_by_quadrature(control)
    assert (size > 0.1).all()
    np.testing.assert_allclose(mean / size, 0, atol=1e-9)


@pytest.mark.slow
def test_the_kernel_family_is_the_separable_sum(rng):
    rows = draw_rows(rng, (5, 4))
    control = kernel_tasks(rows)
    theta = rng.normal(size=9)
    control = eqx.tree_at(lambda c: c.coefficients, control, jnp.asarray(theta))
    at = draw_rows(rng, (3, 3))

    def k0(x, s, y, t):
        def k(x, y):
            return SquaredExponential(2.0).evaluate(x, y)

        mixed = jnp.trace(jax.jacfwd(jax.grad(k, 1), 0)(x, y))
        return mixed + s @ jax.grad(k, 1)(x, y) + t @ jax.grad(k, 0)(x, y) + k(x, y) * (s @ t)

    pairs = jax.jit(jax.vmap(jax.vmap(k0, (None, None, 0, 0)), (0, 0, None, None)))
    each = pairs(*at[:2], *rows[:2])
    slow = np.sum(RELATED[np.ix_(at.tasks, rows.tasks)] * np.asarray(each) * theta[None], axis=1)
    np.testing.assert_allclose(control(at) * control.scale, slow, rtol=1e-10)


@pytest.mark.slow
def test_the_polynomial_family_is_the_mixed_langevin_operator(rng):
    rows = draw_rows(rng, (5, 4))
    control = quadratic_tasks(rows)
    theta = rng.normal(size=control.coefficients.shape)
    control = eqx.tree_at(lambda c: c.coefficients, control, jnp.asarray(theta))

    @jax.jit
    @jax.vmap
    def langevin(x, s):
        def monomials(x):
            return jnp.stack([jnp.prod(x**power) for power in polynomial_exponents(2, 2)])

        return (
            jnp.trace(jax.hessian(monomials)(x), axis1=1, axis2=2) + jax.jacobian(monomials)(x) @ s
        )

    each = np.asarray(langevin(*rows[:2]))
    along = each / np.sqrt(np.mean(each**2, axis=0))
    slow = np.sum(along * (RELATED[rows.tasks] @ theta.T), axis=1)
    np.testing.assert_allclose(control(rows), slow, rtol=1e-10)


@pytest.mark.slow
def test_a_quadratic_integrand_is_in_the_span_of_the_polynomial_family(rng):
    """Its residual is then its expectation: E x₀² − E x₀x₁ + 2 E x₁ + t E x₀ of task t."""
    rows = draw_rows(rng, (20, 20))
    x = rows.draws
    f = x[:, 0] ** 2 - x[:, 0] * x[:, 1] + 2 * x[:, 1] + rows.tasks * x[:, 0]
    control = PolynomialTasks.start(rows, FixedCovariance(np.eye(2)), degree=2)
    design = np.concatenate([separable_design(control, rows), np.eye(2)[rows.tasks]], axis=1)
    solution, _, rank, _ = np.linalg.lstsq(design, f)
    np.testing.assert_allclose(design @ solution, f, atol=1e-10)
    assert rank == design.shape[1]
    (m0, m1), size = MEANS[1], SCALES[1] ** 2
    np.testing.assert_allclose(
        solution[-2:], [1.0, m0**2 + size - m0 * m1 + 2 * m1 + m0], atol=1e-9
    )


@pytest.mark.slow
def test_a_task_of_one_draw_borrows_from_the_other(rng, key):
    rows = draw_rows(rng, (60, 1))
    control = PolynomialTasks.start(rows, FixedCovariance(np.ones((2, 2))), degree=1)
    choice = Stochastic(num_epochs=500, batch_size=FULL, learning_rate=0.02, penalty=1e-6)
    fit = fit_stochastic(control, rows, integrand(rows), choice, key=key)
    assert (variance_ratio(fit.control, rng) > 2).all()


@pytest.mark.slow
@pytest.mark.parametrize("learn", [False, True], ids=["algorithm 2", "algorithm 1"])
def test_variance_falls_on_fresh_draws(learn, rng, key):
    rows = draw_rows(rng, (120, 80))
    choice = Stochastic(learning_rate=5e-3, learn_covariance=learn)
    fit = fit_stochastic(kernel_tasks(rows), rows, integrand(rows), choice, key=key)
    assert bool(fit.finite)
    assert float(fit.history[-1]) < 0.2 * float(fit.history[0])
    assert (variance_ratio(fit.control, rng) > 5).all()
    b = np.asarray(fit.control.covariance.matrix)
    if learn:
        assert np.linalg.eigvalsh(b)[0] > 0
        assert np.abs(b - RELATED).max() > 0.01
        assert b[0, 1] / np.sqrt(b[0, 0] * b[1, 1]) > 0.3
    else:
        np.testing.assert_array_equal(b, RELATED)


@pytest.mark.slow
def test_what_is_given_is_not_trained(rng, key):
    rows = draw_rows(rng, SIZES)
    start = kernel_tasks(rows)
    fit = fit_stochastic(start, rows, integrand(rows), SHORT, key=key)
    for name in ("kernel", "draws", "scores", "tasks", "scale", "covariance"):
        old, new = (jax.tree.leaves(getattr(c, name)) for c in (start, fit.control))
        assert all(np.array_equal(a, b) for a, b in zip(old, new, strict=True))
    assert np.abs(fit.control.coefficients).max() > 0


@pytest.mark.slow
def test_training_starts_from_the_control_variate_that_is_given(rng, key):
    rows = draw_rows(rng, SIZES)
    f = integrand(rows)
    fit = fit_stochastic(kernel_tasks(rows), rows, f, SHORT, key=key)
    still = Stochastic(num_epochs=20, learning_rate=1e-12)
    again = fit_stochastic(fit.control, rows, f, still, key=key)
    np.testing.assert_allclose(again.control.coefficients, fit.control.coefficients, atol=1e-9)
    assert bool(again.converged)


@pytest.mark.slow
def test_the_key_decides_everything(rng, key):
    rows = draw_rows(rng, SIZES)
    f = integrand(rows)
    first, again = (fit_stochastic(kernel_tasks(rows), rows, f, SHORT, key=key) for _ in range(2))
    other = fit_stochastic(kernel_tasks(rows), rows, f, SHORT, key=jax.random.fold_in(key, 1))
    assert eqx.tree_equal(first, again)
    assert np.abs(first.control.coefficients - other.control.coefficients).max() > 0


@pytest.mark.slow
def test_features_computed_in_every_batch_give_the_same_fit(rng, key, monkeypatch):
    rows = draw_rows(rng, SIZES)
    f = integrand(rows)
    cached = fit_stochastic(kernel_tasks(rows), rows, f, SHORT, key=key)
    monkeypatch.setattr(trained, "CACHE_ENTRIES", 0)
    fresh = fit_stochastic(kernel_tasks(rows), rows, f, SHORT, key=key)
    np.testing.assert_allclose(fresh.history, cached.history, rtol=1e-9)
    np.testing.assert_allclose(fresh.loss, cached.loss, rtol=1e-9)


@pytest.mark.slow
def test_the_loss_is_the_objective_on_all_data_and_without_real_steps_beta_is_the_task_means(
    rng, key, monkeypatch
):
    rows = draw_rows(rng, (31, 20))
    f = integrand(rows)
    monkeypatch.setattr(trained, "_CHUNK", 8)  # 51 = 6·8 + 3: the last chunk overlaps
    still = fit_stochastic(
        kernel_tasks(rows), rows, f, Stochastic(num_epochs=1, learning_rate=1e-12), key=key
    )
    np.testing.assert_allclose(still.beta, [f[:31].mean(), f[31:].mean()], atol=1e-10)
    assert not bool(still.converged)
    fit = fit_stochastic(
        kernel_tasks(rows), rows, f, Stochastic(num_epochs=1, learning_rate=0.1), key=key
    )
    r = f - np.asarray(fit.control(rows)) - np.asarray(fit.beta)[rows.tasks]
    expected = sum(np.mean(r[rows.tasks == t] ** 2) for t in range(2)) + 1e-5 * np.sum(
        fit.control.coefficients**2
    )
    np.testing.assert_allclose(fit.loss, expected, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("bad", ["rate", "value"])
def test_divergence_shows_in_the_record(bad, rng, key):
    rows = draw_rows(rng, SIZES)
    f = integrand(rows)
    if bad == "value":
        f[3] = np.nan
    rate = 1e200 if bad == "rate" else 1e-3
    fit = fit_stochastic(
        kernel_tasks(rows), rows, f, Stochastic(num_epochs=20, learning_rate=rate), key=key
    )
    assert not bool(fit.finite)
    assert not bool(fit.converged)


@pytest.mark.parametrize(
    ("sizes", "total", "expected"),
    [
        ((60, 30, 10), 10, (6, 3, 1)),
        ((100, 100), 10, (5, 5)),
        ((50, 25, 25), 10, (5, 3, 2)),
        ((1000, 1, 1), 10, (8, 1, 1)),
        ((7, 3), 100, (7, 3)),
    ],
)
def test_counts_are_proportional(sizes, total, expected):
    assert tuple(proportional_counts(np.array(sizes), total)) == expected


@pytest.mark.slow
def test_every_step_has_the_same_shares_and_an_epoch_meets_every_draw_once(key, rng):
    tasks = rng.permutation(np.repeat(np.arange(3), (60, 30, 10)))
    schedule = make_schedule(tasks, num_tasks=3, batch_size=10)
    first, second = (shuffled_units(schedule, key=k) for k in jax.random.split(key))
    for epoch in (np.asarray(first), np.asarray(second)):
        assert epoch.shape == (10, 10)
        rows = np.asarray(schedule.units)[epoch][..., 0]
        assert sorted(rows.ravel()) == list(range(100))
        for step in rows:
            assert tuple(np.bincount(tasks[step])) == (6, 3, 1)
    assert not np.array_equal(first, second)
    np.testing.assert_allclose(
        unit_weights(schedule, np.dtype(float)), 1 / np.repeat([6, 3, 1], [6, 3, 1])
    )


def test_a_short_task_starts_again_without_a_repeat_in_a_step(key):
    tasks = np.repeat([0, 1], (23, 7))
    schedule = make_schedule(tasks, num_tasks=2, batch_size=8)
    epoch = np.asarray(shuffled_units(schedule, key=key))
    assert all(len(set(step)) == 8 for step in epoch)
    assert set(epoch.ravel()) == set(range(30))


def test_blocks_are_contiguous_and_straddle_no_run(rng):
    tasks = np.repeat([0, 0, 1, 1], (13, 12, 9, 11))
    chains = np.repeat([0, 1, 0, 1], (13, 12, 9, 11))
    schedule = make_schedule(tasks, num_tasks=2, batch_size=20, block=4, runs=chains)
    units = np.asarray(schedule.units)
    assert (np.diff(units, axis=1) == 1).all()
    assert (tasks[units] == np.asarray(schedule.tasks)[:, None]).all()
    assert (chains[units] == chains[units[:, :1]]).all()
    assert len(units) == 3 + 3 + 2 + 2
    assert tuple(np.asarray(schedule.counts)) == (3, 2)
    assert (
        make_schedule(tasks, num_tasks=2, batch_size=20, block=None, runs=chains).units.shape[1]
        == 3
    )
    shuffled = rng.permutation(len(tasks))
    mixed = make_schedule(
        tasks[shuffled], num_tasks=2, batch_size=20, block=4, runs=chains[shuffled]
    )
    assert (chains[shuffled][mixed.units] == chains[shuffled][mixed.units[:, :1]]).all()


def test_a_run_that_is_shorter_than_a_block_is_left_out_where_the_task_has_a_longer_one():
    tasks, runs = np.repeat([0, 0, 1], (3, 9, 8)), np.repeat([0, 1, 2], (3, 9, 8))
    units = np.asarray(make_schedule(tasks, num_tasks=2, batch_size=20, block=4, runs=runs).units)
    np.testing.assert_array_equal(units.ravel(), [*range(4, 12), *range(12, 20)])


def caught_schedules(monkeypatch):
    caught = []

    def spy(*arguments, **options):
        caught.append((arguments, options, make_schedule(*arguments, **options)))
        return caught[-1][-1]

    monkeypatch.setattr(trained, "make_schedule", spy)
    return caught


def untrained(control, beta, *_, num_epochs, **__):
    return control, beta, jnp.zeros(()), jnp.zeros(num_epochs)


@pytest.mark.slow
@pytest.mark.parametrize("block", [None, 10])
def test_blocks_of_a_crossfitted_method_straddle_no_chain_and_no_held_out_draws(
    block, rng, key, monkeypatch
):
    """Two chains of 60 draws a task, eight folds: without a fold its chain is two runs, or one that
    is shorter."""
    draws = rng.normal(size=(2, 2, 60, 1))
    draws[0, 0, 31] = draws[0, 0, 30]  # a repeated state is one row, and no gap
    traces = [make_trace(x, -x) for x in draws]
    joint = make_joint_problem(traces, [np.cos(x) for x in draws], num_folds=8)
    training = Stochastic(num_epochs=1, batch_size=40, objective=ChainVariance(block))
    caught = caught_schedules(monkeypatch)
    # nine shapes, of which only the schedules are looked at
    monkeypatch.setattr(trained, "_train", untrained)
    TrainedVectorValued(PolynomialFamily(1), key=key, training=training).crossfit_joint(joint)
    fits = [joint.folds.everyone, *(inside for _, inside in joint.folds.rows())]
    assert len(caught) == len(fits) == 9
    for index, (_, _, schedule) in zip(fits, caught, strict=True):
        rows = index[np.asarray(schedule.units)]
        assert rows.shape[1] > 1
        assert (np.diff(rows, axis=1) == 1).all()
        assert (joint.chains[rows] == joint.chains[rows[:, :1]]).all()
        assert (joint.labels[rows] == joint.labels[rows[:, :1]]).all()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"penalty": -1.0}, "`penalty`, a number in \\[0"),
        ({"penalty": float("nan")}, "`penalty`"),
        ({"learning_rate": 0.0}, "`learning_rate`, a number in"),
        ({"num_epochs": 0}, "`num_epochs` of at least 1"),
        ({"batch_size": 1}, "`batch_size` of at least 2 tasks"),
        ({"objective": ChainVariance(block=50)}, "`block` of at most 10"),
    ],
    ids=["penalty", "nan penalty", "rate", "epochs", "batch", "block"],
)
def test_a_bad_choice_is_refused(change, words, rng, key):
    rows = draw_rows(rng, (20, 10))
    with pytest.raises(ValueError, match=words):
        fit_stochastic(kernel_tasks(rows), rows, integrand(rows), Stochastic(**change), key=key)


def test_bad_tasks_blocks_and_covariances_are_refused(rng):
    rows = draw_rows(rng, (20, 10))
    with pytest.raises(ValueError, match="`block` of at least 1"):
        ChainVariance(block=0)
    with pytest.raises(ValueError, match=r"draws of every task, got none of tasks \[2\]"):
        kernel_tasks(rows, np.eye(3))
    with pytest.raises(ValueError, match="Number the tasks from zero"):
        kernel_tasks(rows._replace(tasks=rows.tasks + 1))
    with pytest.raises(ValueError, match="symmetric positive semi-definite"):
        FixedCovariance(np.array([[1.0, 2.0], [2.0, 1.0]]))
    with pytest.raises(ValueError, match="Start from a blend with the identity"):
        CholeskyCovariance.start(np.ones((2, 2)))


@pytest.mark.slow
def test_float32_stays_float32(rng, key):
    rows = draw_rows(rng, SIZES)
    small = rows._replace(
        draws=rows.draws.astype(np.float32), scores=rows.scores.astype(np.float32)
    )
    f = integrand(rows).astype(np.float32)
    control = KernelTasks.start(
        SquaredExponential(2.0), small, FixedCovariance(RELATED.astype(np.float32))
    )
    fit = fit_stochastic(
        control, small, f, Stochastic(num_epochs=3, learn_covariance=True), key=key
    )
    assert {leaf.dtype for leaf in (fit.beta, fit.loss, fit.control.coefficients)} == {
        np.dtype(np.float32)
    }


@pytest.mark.slow
def test_strict_promotion_is_kept(rng, key):
    rows = draw_rows(rng, SIZES)
    with jax.numpy_dtype_promotion("strict"):
        fit = fit_stochastic(
            kernel_tasks(rows), rows, integrand(rows), Stochastic(num_epochs=2), key=key
        )
    assert bool(fit.finite)
