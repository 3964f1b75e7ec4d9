"""GP optimisers and probabilistic linear solvers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.sparse.linalg

from mcmcpost.gp import GPH, GPX, gp_optimizer, minimize, solve_linear
from mcmcpost.gp.gradient_operator import gradient_gram, scalar_profile
from mcmcpost.gp.gradient_posterior import DiagonalPlusLowRank, posterior_hessian
from mcmcpost.gp.gradient_solvers import QuadraticClosedForm
from mcmcpost.gp.linear_solvers import MatrixBased, SolutionBased
from mcmcpost.gp.optimizers import (
    Memory,
    empty_memory,
    hessian,
    inverse_hessian,
    remember,
    scale_by_gp,
    secants,
)
from mcmcpost.stein import Matern52, Polynomial, Scaled

D = 5
"""Of the directions: one compiled program per method serves them all."""
METHODS = {
    "hessian": GPH(3),
    "optimum": GPX(3),
    "published_hessian": GPH(3, quasi_newton=False),
    "published_optimum": GPX(3, quasi_newton=False),
}


@eqx.filter_jit
def direction_of(method, memory):
    return method.direction(memory)


note = jax.jit(remember)


def relaxed_rosenbrock(x):
    rise = x[1:] - x[:-1] ** 2
    return (x[:-1] ** 2).sum() + 2 * (rise**2).sum()


def with_gradient(x):
    rise = x[1:] - x[:-1] ** 2
    gradient = np.zeros_like(x)
    gradient[:-1] = 2 * x[:-1] - 8 * rise * x[:-1]
    gradient[1:] += 4 * rise
    return relaxed_rosenbrock(x), gradient


@pytest.fixture
def spd(rng):
    """The spectrum of the paper's F.1 in 40 dimensions: a dozen eigenvalues above one, the rest
    near one half."""
    index = np.arange(1, 41)
    values = 0.5 + (index - 1) / 39 * 99.5 * 0.6 ** (40 - index)
    basis = np.linalg.qr(rng.normal(size=(40, 40)))[0]
    return basis * values @ basis.T


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_relaxed_rosenbrock_is_minimised(name, rng):
    x0 = rng.normal(size=20)
    before = x0.copy()
    values = []
    found = minimize(
        with_gradient, x0, method=METHODS[name], gtol=1e-6, callback=lambda r: values.append(r.fun)
    )
    assert found.success
    assert np.abs(found.jac).max() <= 1e-6
    np.testing.assert_allclose(found.x, 0, atol=1e-5)
    assert found.nit == len(values)
    assert found.nfev == found.njev >= found.nit
    assert np.all(np.diff(values) < 0)
    np.testing.assert_array_equal(x0, before)
    assert isinstance(found.x, np.ndarray)


@pytest.mark.slow
def test_value_and_gradient_may_come_apart(rng):
    x0 = rng.normal(size=3)
    together = minimize(with_gradient, x0)
    apart = minimize(relaxed_rosenbrock, x0, jac=lambda x: with_gradient(x)[1])
    np.testing.assert_allclose(apart.x, together.x)
    assert apart.nfev == together.nfev


@pytest.mark.slow
def test_the_first_direction_is_the_steepest(rng):
    g = jnp.asarray(rng.normal(size=D))
    memory = note(empty_memory(3, g), jnp.zeros(D), g)
    for method in METHODS.values():
        np.testing.assert_allclose(direction_of(method, memory), -g, rtol=1e-9)


@pytest.mark.slow
def test_without_unexplained_secants_the_direction_is_that_of_lbfgs(rng, spd):
    """On two points the quasi-Newton prior explains everything: nothing is left for the process."""
    curvature = spd[:D, :D]
    memory = empty_memory(3, jnp.zeros(D))
    for x in rng.normal(size=(2, D)):
        memory = note(memory, jnp.asarray(x), jnp.asarray(curvature @ x))
    pairs = secants(memory)
    expected = -inverse_hessian(pairs).dense() @ memory.gradients[-1]
    for method in (METHODS["hessian"], METHODS["optimum"]):
        np.testing.assert_allclose(
            direction_of(method, memory), expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max()
        )


@pytest.mark.slow
def test_compact_matrices_are_the_recursion(rng, spd):
    curvature = spd[:D, :D]
    memory = empty_memory(3, jnp.zeros(D))
    for x in rng.normal(size=(4, D)):
        memory = note(memory, jnp.asarray(x), jnp.asarray(curvature @ x))
    pairs = jax.jit(secants)(memory)
    expected = np.eye(D) / float(pairs.scale)
    for s, y in zip(np.asarray(pairs.S), np.asarray(pairs.Y), strict=True):
        image = expected @ s
        expected = expected - np.outer(image, image) / (s @ image) + np.outer(y, y) / (s @ y)
    np.testing.assert_allclose(hessian(pairs).dense(), expected, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(inverse_hessian(pairs).dense() @ expected, np.eye(D), atol=1e-8)


@pytest.mark.slow
def test_pairs_of_no_curvature_are_left_out(rng):
    points = jnp.asarray(rng.normal(size=(3, D)))
    gradients = jnp.stack([points[0], points[1], points[1] - (points[2] - points[1])])
    pairs = secants(Memory(points, gradients, jnp.asarray(3)))
    np.testing.assert_array_equal(pairs.usable, [True, False])
    assert np.linalg.eigvalsh(hessian(pairs).dense()).min() > 0
    for method in METHODS.values():
        direction = direction_of(
            method,
            Memory(
                *(jnp.concatenate([a[:1], a]) for a in (points, gradients)), jnp.asarray(3, int)
            ),
        )
        assert float(direction @ gradients[-1]) < 0


@pytest.mark.slow
def test_the_optax_face_minimises_a_tree_under_jit():
    def loss(params):
        return relaxed_rosenbrock(params["a"]) + jnp.sum((params["b"] - 1.0) ** 2)

    optimizer = gp_optimizer(METHODS["hessian"])
    params = {"a": jnp.linspace(-1.0, 1.0, 5), "b": jnp.zeros((2, 2))}

    def step(_, carry):
        params, state = carry
        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(
            gradient, state, params, value=value, grad=gradient, value_fn=loss
        )
        return optax.apply_updates(params, updates), state

    params, _ = jax.jit(
        lambda params: jax.lax.fori_loop(0, 30, step, (params, optimizer.init(params)))
    )(params)
    np.testing.assert_allclose(params["a"], 0, atol=1e-5)
    np.testing.assert_allclose(params["b"], 1, atol=1e-5)


def test_the_transformation_asks_for_the_parameters():
    transformation = scale_by_gp(GPX(2))
    with pytest.raises(ValueError, match="expected the parameters"):
        transformation.update(jnp.ones(2), transformation.init(jnp.ones(2)))


@pytest.mark.slow
def test_bad_starts_and_functions_have_a_status(rng):
    assert minimize(lambda x: (np.nan, x), np.ones(3)).status == 3
    spent = minimize(with_gradient, rng.normal(size=3), max_iter=2)
    assert (spent.status, spent.nit, spent.success) == (1, 2, False)
    uphill = minimize(lambda x: (x.sum(), -np.ones_like(x)), np.ones(3))
    assert uphill.status == 2
    with pytest.raises(ValueError, match="`x0` finite"):
        minimize(with_gradient, [np.nan, 1.0])
    with pytest.raises(ValueError, match="`memory` of at least 1"):
        GPH(0)
    with pytest.raises(ValueError, match="stationary"):
        GPX(2, kernel=Polynomial(2))


@pytest.mark.slow
def test_a_function_that_is_infinite_in_places_is_backed_away_from():
    def barrier(x):
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.sum(x - np.log(x)), 1 - 1 / x

    found = minimize(barrier, np.array([0.05, 8.0, 3.0]))
    assert found.success
    np.testing.assert_allclose(found.x, 1, atol=1e-4)


BELIEFS = [MatrixBased(), SolutionBased(), MatrixBased(False), SolutionBased(False)]


@pytest.mark.parametrize("method", BELIEFS, ids=lambda m: f"{type(m).__name__}-{m.own_metric}")
def test_linear_systems_are_solved_with_a_consistent_estimate(method, spd, rng):
    truth = rng.normal(size=40)
    solution = solve_linear(spd, spd @ truth, method=method, rtol=1e-10)
    assert solution.converged
    np.testing.assert_allclose(solution.value, truth, atol=1e-7)
    np.testing.assert_allclose(
        solution.residual, spd @ solution.value - spd @ truth, rtol=0, atol=1e-13
    )
    short = solve_linear(lambda v: spd @ v, spd @ truth, method=method, rtol=1e-10, max_steps=3)
    assert (short.converged, short.num_steps) == (False, 3)
    estimate = short.estimate.dense()
    np.testing.assert_allclose(estimate, estimate.T, atol=1e-10 * np.abs(estimate).max())


@pytest.mark.parametrize("method", BELIEFS[:2], ids=lambda m: type(m).__name__)
def test_in_the_matrix_own_metric_the_steps_are_those_of_conjugate_gradients(method, spd, rng):
    b = rng.normal(size=40)
    for steps in (1, 4, 8):
        expected, _ = scipy.sparse.linalg.cg(spd, b, rtol=0.0, maxiter=steps)
        found = solve_linear(spd, b, method=method, rtol=0.0, max_steps=steps)
        np.testing.assert_allclose(found.value, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
def test_the_matrix_estimate_is_the_posterior_hessian_of_the_quadratic_kernel(spd, rng):
    S = rng.normal(size=(3, 40))
    found = MatrixBased(False).estimate(S, S @ spd)
    scale = found.diagonal[0]
    profile = scalar_profile("test", Scaled(0.5, Polynomial(2, 0.0)))
    u = jnp.asarray(S)
    gram = gradient_gram(profile, u, jnp.asarray(0.0))
    weights = QuadraticClosedForm().solve(gram, jnp.asarray(S @ spd - scale * S)).value
    expected = scale * np.eye(40) + posterior_hessian(profile, u, weights, u[:1]).dense()[0]
    np.testing.assert_allclose(found.dense(), expected, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found.matvec(S[0]), spd @ S[0], rtol=1e-8, atol=1e-9)


def test_a_low_rank_record_solves_as_its_dense_twin(rng):
    core = rng.normal(size=(3, 3))
    record = DiagonalPlusLowRank(rng.uniform(1, 2, size=8), rng.normal(size=(8, 3)), core + core.T)
    v = rng.normal(size=8)
    np.testing.assert_allclose(record.solve(v), np.linalg.solve(record.dense(), v), rtol=1e-9)


def test_an_indefinite_matrix_stops_the_linear_solver_without_a_false_claim():
    solution = solve_linear(np.diag([1.0, -1.0, 2.0]), np.array([0.0, 1.0, 0.1]))
    assert not solution.converged
    with pytest.raises(ValueError, match="`b` finite"):
        solve_linear(np.eye(2), [np.inf, 0.0])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: minimize(lambda x: x @ x, np.ones(3)), r"`fun` to return \(value, gradient\)"),
        (
            lambda: minimize(lambda x: (x @ x, x[:2]), np.ones(3)),
            r"a gradient of shape \(3,\), got \(2,\)",
        ),
        (lambda: solve_linear(np.eye(3), np.ones(2)), r"A \(2, 2\) and x0 \(2,\)"),
        (lambda: solve_linear(np.eye(2), np.ones(2), x0=np.ones(3)), r"A \(2, 2\) and x0 \(2,\)"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call()


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_is_backed_away_from():
    """The first step from 1.9 goes far beyond 2.05, where the value is lower and has no
    gradient."""

    def function(x):
        return (50 * (x[0] - 2) ** 2, 100 * (x - 2)) if x[0] < 2.05 else (-1.5, np.array([np.nan]))

    np.testing.assert_allclose(minimize(function, [1.9], jac=True).x, 2.0, atol=1e-4)


def test_several_lengthscales_are_refused():
    with pytest.raises(ValueError, match="one lengthscale"):
        GPX(kernel=Matern52([0.8, 1e-3]))
