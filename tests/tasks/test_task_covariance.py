"""The convex scheme for the task covariance: descent, one answer from every start, each half-step
optimal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mcmcpost.stein import SquaredExponential, stein_gram
from mcmcpost.tasks.tuning import alternating_task_covariance, best_covariance

PENALTY = 1e-3


def data(rng, sizes=(30, 20), related=True):
    tasks = np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(tasks), 2))
    gram = np.asarray(stein_gram(SquaredExponential(1.5), x, -x))
    f = np.sin(1.5 * x[:, 0]) + 0.5 * x[:, 1]
    f = (
        np.where(tasks == 1, 1.5 * f + 3.0, f)
        if related
        else np.where(tasks == 1, np.cos(2 * x[:, 1]), f)
    )
    return gram / np.mean(np.diag(gram)), tasks, f


@jax.jit
def objective(mixed, beta, b, gram, tasks, f, delta):
    """The slow definition, for Θ̃ (m, T)."""
    r = f - (gram @ mixed)[jnp.arange(len(f)), tasks] - beta[tasks]
    counts = jnp.bincount(tasks, length=len(beta))[tasks]
    c = mixed.T @ gram @ mixed
    rough = jnp.trace(jnp.linalg.solve(b, c + delta**2 * jnp.eye(len(b))))
    return jnp.sum(r**2 / counts) + PENALTY * rough + jnp.sum(b**2)


def theta_tilde(fit, tasks):
    return fit.coefficients[:, None] * fit.covariance[tasks]


@pytest.mark.parametrize("related", [True, False])
def test_the_objective_does_not_increase_while_delta_is_fixed(related, rng):
    fit = alternating_task_covariance(*data(rng, related=related), penalty=PENALTY)
    assert fit.converged
    assert not fit.nugget_raised
    assert fit.num_steps == len(fit.history)
    for rung in range(3):
        steps = fit.history[fit.rungs == rung]
        assert len(steps) > 1
        assert (np.diff(steps) <= 1e-10 * steps[0]).all()


@pytest.mark.slow
def test_every_start_leads_to_the_same_covariance(rng):
    gram, tasks, f = data(rng, sizes=(20, 15, 15))
    a = rng.normal(size=(3, 3))
    starts = [np.eye(3), 50 * np.eye(3), a @ a.T + 0.1 * np.eye(3)]
    fits = [
        alternating_task_covariance(
            gram, tasks, f, penalty=PENALTY, deltas=[0.01], rtol=1e-10, max_steps=2000, start=b
        )
        for b in starts
    ]
    for fit in fits:
        assert fit.converged
        np.testing.assert_allclose(
            fit.covariance, fits[0].covariance, atol=1e-6 * np.abs(fits[0].covariance).max()
        )
        np.testing.assert_allclose(fit.history[-1], fits[0].history[-1], rtol=1e-9)


@pytest.mark.slow
def test_the_end_is_stationary_in_every_variable(rng):
    gram, tasks, f = data(rng)
    fit = alternating_task_covariance(
        gram, tasks, f, penalty=PENALTY, deltas=[0.05], rtol=1e-12, max_steps=3000
    )
    at = (jnp.asarray(theta_tilde(fit, tasks)), jnp.asarray(fit.beta), jnp.asarray(fit.covariance))
    rest = (jnp.asarray(gram), jnp.asarray(tasks), jnp.asarray(f), 0.05)
    value, slopes = jax.value_and_grad(objective, (0, 1, 2))(*at, *rest)
    np.testing.assert_allclose(value, fit.history[-1], rtol=1e-9)
    for slope in slopes:
        np.testing.assert_allclose(slope, 0, atol=1e-7)


@pytest.mark.slow
def test_the_objective_is_jointly_convex(rng):
    gram, tasks, f = (jnp.asarray(a) for a in data(rng, sizes=(8, 6)))

    def point():
        a = rng.normal(size=(2, 2))
        return (
            jnp.asarray(rng.normal(size=(14, 2))),
            jnp.asarray(rng.normal(size=2)),
            jnp.asarray(a @ a.T),
        )

    for _ in range(50):
        left, right = point(), point()
        middle = tuple((a + b) / 2 for a, b in zip(left, right, strict=True))
        ends = [objective(*p, gram, tasks, f, 0.1) for p in (left, right)]
        assert objective(*middle, gram, tasks, f, 0.1) <= (ends[0] + ends[1]) / 2 * (1 + 1e-12)


@pytest.mark.slow
def test_the_closed_form_covariance_has_no_slope(rng):
    a = rng.normal(size=(4, 3))
    c, lam, jitter = (jnp.asarray(v) for v in (a @ a.T, 0.3, 0.01))

    def loss(b):
        return lam * jnp.trace(jnp.linalg.solve(b, c + jitter * jnp.eye(4))) + jnp.sum(b**2)

    b = jnp.asarray(best_covariance(np.asarray(c), float(lam), float(jitter)))
    np.testing.assert_allclose(jax.grad(loss)(b), 0, atol=1e-8)
    np.testing.assert_allclose(
        2 * np.linalg.eigvalsh(b) ** 3, lam * (np.linalg.eigvalsh(c) + jitter), atol=1e-12
    )


@pytest.mark.parametrize("factor", [1.5, -1.5])
def test_multiples_at_shared_draws_have_correlation_one(factor, rng):
    gram, _, f = data(rng, sizes=(40, 10))
    gram, f = gram[:40, :40], f[:40]
    tasks, delta = np.repeat([0, 1], 40), 1e-4
    values = np.concatenate([f, factor * f + 3])
    deltas = (1e-1, 1e-2, 1e-3, delta)
    b = alternating_task_covariance(
        np.tile(gram, (2, 2)), tasks, values, penalty=PENALTY, deltas=deltas
    ).covariance
    assert np.sign(factor) * b[0, 1] / np.sqrt(b[0, 0] * b[1, 1]) > 0.99
    np.testing.assert_allclose(b[0, 1] / b[0, 0], factor, rtol=0.01)
    np.testing.assert_allclose(np.linalg.eigvalsh(b)[0], np.cbrt(PENALTY * delta**2 / 2), rtol=1e-3)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_function_at_different_draws_is_recognised(sign, rng):
    gram, tasks, _ = data(rng, sizes=(64, 50))
    f = gram[:, :4] @ np.array([1.0, -1.0, 0.5, 1.0])  # a member of the kernel's space
    f = np.where(tasks == 1, sign * f, f) / f.std()
    b = alternating_task_covariance(gram[4:, 4:], tasks[4:], f[4:], penalty=PENALTY).covariance
    assert sign * b[0, 1] / np.sqrt(b[0, 0] * b[1, 1]) > 0.8


def test_unrelated_tasks_are_told_apart(rng):
    gram, tasks, f = data(rng, sizes=(60, 50), related=False)
    b = alternating_task_covariance(gram, tasks, f, penalty=PENALTY).covariance
    assert abs(b[0, 1]) / np.sqrt(b[0, 0] * b[1, 1]) < 0.5


def test_a_budget_that_is_spent_is_not_convergence(rng):
    fit = alternating_task_covariance(*data(rng), penalty=PENALTY, deltas=[1e-3], max_steps=1)
    assert not fit.converged
    assert fit.num_steps == 1


def test_bad_input_is_refused(rng):
    gram, tasks, f = data(rng)
    with pytest.raises(ValueError, match="`penalty`, a number in"):
        alternating_task_covariance(gram, tasks, f, penalty=0.0)
    for deltas in ([], [0.1, 0.2], [0.1, 0.0]):
        with pytest.raises(ValueError, match="`deltas`"):
            alternating_task_covariance(gram, tasks, f, penalty=1.0, deltas=deltas)
    with pytest.raises(ValueError, match="`start` positive definite"):
        alternating_task_covariance(gram, tasks, f, penalty=1.0, start=np.ones((2, 2)))
    with pytest.raises(ValueError, match="draws of every task"):
        alternating_task_covariance(gram, 2 * tasks, f, penalty=1.0)
