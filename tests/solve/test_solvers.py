"""Every solver under every operator, eager, jitted, vectorised and differentiated, against dense
algebra."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mcmcpost
from mcmcpost.solve import (
    AbstractIterativeSolver,
    AlternatingProjections,
    Cholesky,
    ConjugateGradients,
    Outcome,
    StochasticGradientDescent,
    solve,
)
from mcmcpost.solve.iterative import worst_residual
from mcmcpost.stein import Matern32, Scaled, SquaredExponential, gram, stein_operator
from mcmcpost.stein.products import Regularised, TileOperator, bilinear_gradient, kernel_operator

N, K = 61, 3
NOISE = 0.3
RTOL = 1e-9
SOLVERS = {
    "cholesky": Cholesky(),
    "cg": ConjugateGradients(RTOL, 500, 10),
    "cg_plain": ConjugateGradients(RTOL, 500, 0),
    "ap": AlternatingProjections(RTOL, 5_000, 16),
    "sgd": StochasticGradientDescent(RTOL, 50_000, 16, momentum=0.7),
}
EXPANDED = [name for name in SOLVERS if name != "cg_plain"]
"""Without the second of the two that differ in a rank."""


def kernel(lengthscale):
    return Scaled(1.5, Matern32(lengthscale))


def limited(name, rtol=RTOL, budget=None):
    """Return the solver with both limits as arrays: one compiled program serves them all."""
    solver = SOLVERS[name]
    if name == "cholesky":
        return solver
    limits = rtol, solver.budget if budget is None else budget
    return eqx.tree_at(lambda s: (s.rtol, s.budget), solver, tuple(map(jnp.asarray, limits)))


def system(name, points, lengthscale=1.3, noise=NOISE):
    if name == "matern":
        return Regularised(
            kernel_operator(kernel(lengthscale), points, block=16), jnp.asarray(noise)
        )
    return Regularised(
        stein_operator(SquaredExponential(lengthscale), points, -points, block=16),
        jnp.full(len(points), noise),
    )


@pytest.fixture
def data(rng):
    return jnp.asarray(rng.normal(size=(N, 2))), jnp.asarray(rng.normal(size=(N, K)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operator", "solver"),
    [
        *(("matern", solver) for solver in SOLVERS),
        # Cholesky sees only the dense matrix, and conjugate gradients on this operator are
        # differentiated below.
        ("stein", "ap"),
        ("stein", "sgd"),
    ],
)
def test_every_solver_agrees_with_dense_algebra(operator, solver, data, key):
    points, right = data
    a = system(operator, points)
    wanted = np.linalg.solve(a.dense(), right)
    got = solve(a, right, limited(solver), key=key).value
    np.testing.assert_allclose(got, wanted, atol=2e-6 * np.abs(wanted).max())


def with_derivatives(solution):
    """Return the solution and its derivatives in lengthscale and right-hand side, at two
    lengthscales, jitted."""

    def scalar(lengthscale, b):
        value = solution(lengthscale, b)
        return jnp.sum(jnp.sin(value)), value

    return jax.jit(jax.vmap(jax.value_and_grad(scalar, (0, 1), has_aux=True), in_axes=(0, None)))


@functools.cache
def dense_with_derivatives(operator):
    @jax.jit
    def reference(points, widths, b):
        def solution(lengthscale, b):
            return jnp.linalg.solve(system(operator, points, lengthscale).dense(), b)

        return with_derivatives(solution)(widths, b)

    return reference


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operator", "solver"), [*(("matern", solver) for solver in EXPANDED), ("stein", "cg")]
)
def test_every_solver_is_jitted_vectorised_and_differentiated(operator, solver, data, key):
    points, right = data

    def ours(lengthscale, b):
        return solve(system(operator, points, lengthscale), b, SOLVERS[solver], key=key).value

    widths = jnp.array([1.3, 1.7])
    got = with_derivatives(ours)(widths, right)
    wanted = dense_with_derivatives(operator)(points, widths, right)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        for one, other in zip(a, b, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-6 * np.abs(other).max())


def test_every_solver_is_in_the_table():
    classes = {
        c
        for c in vars(mcmcpost.solve).values()
        if isinstance(c, type) and issubclass(c, AbstractIterativeSolver)
    }
    assert classes - {AbstractIterativeSolver} | {Cholesky} == {type(s) for s in SOLVERS.values()}


@pytest.mark.slow
@pytest.mark.parametrize("solver", [s for s in SOLVERS if s != "cholesky"])
def test_a_budget_ends_a_solve_with_the_residual_that_it_reached(solver, data, key):
    points, right = data
    a = system("matern", points)
    found = solve(a, right, limited(solver, budget=2.0), key=key)
    assert int(found.outcome) == Outcome.BUDGET
    assert 2 <= float(found.epochs) <= 5
    np.testing.assert_allclose(found.residual, right - a.dense() @ found.value, atol=1e-10)
    wanted = np.linalg.norm(found.residual, axis=0) / np.linalg.norm(right, axis=0)
    np.testing.assert_allclose(found.residual_norms, wanted)
    assert wanted.max() > RTOL


@pytest.mark.slow
@pytest.mark.parametrize("solver", [s for s in EXPANDED if s != "cholesky"])
def test_a_warm_start_nearby_needs_fewer_epochs(solver, data, key):
    points, right = data
    loose = limited(solver, rtol=1e-4)
    before = solve(system("matern", points, 1.3), right, loose, key=key)
    cold = solve(system("matern", points, 1.3001), right, loose, key=key)
    warm = solve(system("matern", points, 1.3001), right, loose, key=key, initial=before.value)
    assert int(warm.outcome) == Outcome.CONVERGED
    assert float(warm.epochs) < float(cold.epochs)
    exact = np.linalg.solve(system("matern", points, 1.3001).dense(), right)
    np.testing.assert_allclose(warm.value, exact, atol=1e-2 * np.abs(exact).max())


@pytest.mark.slow
@pytest.mark.parametrize("solver", EXPANDED)
def test_a_tolerance_out_of_reach_in_float32_is_said(solver, data, key):
    points, right = (array.astype(jnp.float32) for array in data)
    a = system("matern", points, np.float32(4.0), np.float32(1e-3))
    choice = SOLVERS[solver]
    if solver == "sgd":
        choice = StochasticGradientDescent(1e-9, 3_000, 16)
    elif solver != "cholesky":
        choice = eqx.tree_at(lambda s: (s.rtol, s.budget), choice, (1e-12, 4_000.0))
    found = solve(a, right, choice, key=key)
    assert found.value.dtype == jnp.float32
    assert np.isfinite(found.value).all()
    expected = (Outcome.CONVERGED,) if solver == "cholesky" else (Outcome.STAGNATED, Outcome.BUDGET)
    assert int(found.outcome) in expected


@pytest.mark.parametrize("solver", ["cg_plain", "ap"])
def test_an_indefinite_matrix_is_broken_not_endless(solver, data, key):
    points, right = data
    a = Regularised(kernel_operator(kernel(1.3), points, block=16), jnp.asarray(-3.0))
    found = solve(a, right, limited(solver), key=key)
    assert int(found.outcome) in (Outcome.BROKEN, Outcome.BUDGET)
    assert np.isfinite(found.value).all()


@pytest.mark.slow
def test_duplicates_without_noise_are_jittered_by_cholesky_and_said(data, key):
    points, right = data
    twice = np.arange(N) % 31
    found = solve(system("matern", points[twice], noise=0.0), right[twice], Cholesky(), key=key)
    assert int(found.outcome) == Outcome.JITTERED
    np.testing.assert_allclose(found.residual_norms, 0, atol=1e-6)


def test_zero_columns_are_solved_by_zero(data, key):
    points, right = data
    found = solve(system("matern", points), right.at[:, 1].set(0), limited("cg"), key=key)
    assert int(found.outcome) == Outcome.CONVERGED
    assert not np.asarray(found.value[:, 1]).any()


def test_probes_count_by_their_mean():
    norms = jnp.array([0.1, 0.5, 0.1])
    assert float(worst_residual(norms, 0)) == 0.5
    assert float(worst_residual(norms, 2)) == pytest.approx(0.3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "choice"),
    [
        (1, ConjugateGradients(1e-8, 300, 20)),
        (1, AlternatingProjections(1e-8, 2_000, 20)),
        (1, StochasticGradientDescent(1e-8, 20_000, 20)),
        (7, ConjugateGradients(1e-8, 300, 20)),
    ],
)
def test_small_sizes(n, choice, rng, key):
    """Fewer rows than the rank, the block or the batch."""
    points, right = jnp.asarray(rng.normal(size=(n, 2))), jnp.asarray(rng.normal(size=(n, 1)))
    a = system("matern", points, noise=1.0)
    exact = np.linalg.solve(a.dense(), right)
    np.testing.assert_allclose(solve(a, right, choice, key=key).value, exact, atol=1e-6)


@pytest.mark.slow
def test_operator_parts_agree_with_the_dense_matrix(data):
    points, right = data
    a = Regularised(kernel_operator(kernel(1.3), points, block=16), jnp.linspace(0.1, 1.0, N))
    dense = np.asarray(a.dense())
    rows = jnp.array([3, 60, 17])

    @jax.jit  # their operations one by one are sixty programs
    def parts():
        return {
            "matmul": a.matmul(right),
            "rows": a.rows_matmul(rows, right),
            "columns": a.columns_matmul(rows, right[:3]),
            "block": a.block(rows),
            "inverse": a.preconditioner(N)(right),
        }

    got = parts()
    np.testing.assert_allclose(got["matmul"], dense @ right, atol=1e-12)
    np.testing.assert_allclose(got["rows"], dense[rows] @ right, atol=1e-12)
    np.testing.assert_allclose(got["columns"], dense[:, rows] @ right[:3], atol=1e-12)
    np.testing.assert_allclose(got["block"], dense[rows][:, rows], atol=1e-14)
    np.testing.assert_allclose(got["inverse"], np.linalg.solve(dense, right), atol=1e-9)


@pytest.mark.slow
def test_bilinear_gradient_is_that_of_the_dense_form(data, rng):
    points, left = data
    right = jnp.asarray(rng.normal(size=left.shape))
    base = Scaled(jnp.asarray(1.5), Matern32(jnp.array([1.3, 0.8])))
    got = bilinear_gradient(base, points, left, right, block=16)

    @eqx.filter_jit
    @eqx.filter_grad
    def slope(k):
        return jnp.sum(left * (gram(k, points) @ right))

    wanted = slope(base)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rtol": 0.0}, r"`rtol`, a number in \(0, 1\)"),
        ({"budget": 0}, "`budget`, a number in"),
        ({"block_size": 0}, "`block_size` of at least 1"),
    ],
)
def test_settings_that_cannot_run_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        AlternatingProjections(**change)
    with pytest.raises(ValueError, match="`momentum`, a number in"):
        StochasticGradientDescent(momentum=1.0)
    with pytest.raises(ValueError, match="`rank` of at least 0, an integer"):
        ConjugateGradients(rank=-1)


@pytest.mark.slow
def test_right_hand_sides_and_guesses_may_be_lists(data, key):
    points, right = data
    a = system("matern", points)
    # limits and key as elsewhere: the programs of other tests serve
    solver = limited("cg")
    listed = solve(a, right.tolist(), solver, key=key, initial=np.zeros_like(right).tolist())
    np.testing.assert_allclose(
        listed.value, solve(a, right, solver, key=key).value, rtol=1e-6, atol=1e-9
    )


def test_requests_that_do_not_fit_are_refused(data):
    points, right = data
    a = system("matern", points)
    with pytest.raises(ValueError, match="a `key` for StochasticGradientDescent"):
        solve(a, right, SOLVERS["sgd"])
    with pytest.raises(ValueError, match="at least one column that is no probe"):
        solve(a, right, SOLVERS["cg"], probes=K)
    with pytest.raises(ValueError, match="no `initial` for Cholesky"):
        solve(a, right, Cholesky(), initial=right)
    with pytest.raises(ValueError, match="Give one guess per column"):
        solve(a, right, SOLVERS["cg"], initial=right[:, :1])
    with pytest.raises(ValueError, match=r"B of shape \(n, k\)"):
        solve(a, right[:, 0], Cholesky())
    with pytest.raises(ValueError, match="`noise` scalar or of shape"):
        Regularised(a.operator, jnp.ones(3))


@pytest.mark.parametrize("solver", ["cholesky", "cg", "ap"])
def test_sides_of_any_size_and_kind_are_solved(solver, data, key):
    points, _ = data
    a = system("matern", points)
    wanted = np.linalg.solve(a.dense(), np.ones((N, K)))
    for size in (1e170, 1e-170):
        found = solve(a, np.full((N, K), size), limited(solver), key=key)
        assert int(found.outcome) == Outcome.CONVERGED
        np.testing.assert_allclose(np.asarray(found.value) / size, wanted, atol=1e-7)
    for right in (np.ones((N, K), int), [[1.0] * K] * N):
        np.testing.assert_allclose(
            solve(a, right, limited(solver), key=key).value, wanted, atol=1e-7
        )
    assert (
        int(solve(a, np.full((N, K), np.nan), limited(solver), key=key).outcome) == Outcome.BROKEN
    )


@pytest.mark.parametrize("solver", ["cg", "cg_plain"])
def test_a_definite_matrix_needs_no_noise(solver, data, key):
    points, right = data
    found = solve(system("matern", points, 1e-3, 0.0), right, limited(solver, 1e-6, 50.0), key=key)
    assert int(found.outcome) == Outcome.CONVERGED
    np.testing.assert_allclose(found.value, right / 1.5, rtol=1e-4, atol=1e-6)


def test_a_row_that_is_not_a_number_breaks_the_solve(data, key):
    points, right = data
    a = system("matern", points.at[3].set(jnp.nan))
    assert int(solve(a, right, Cholesky(), key=key).outcome) == Outcome.BROKEN


def test_one_operator_on_many_devices_is_the_same(data):
    points, right = data
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("devices",))
    tile = kernel_operator(kernel(1.3), points, block=16)
    shared = TileOperator(tile.tile, tile.rows, tile.exact_diagonal, block=16, mesh=mesh)
    np.testing.assert_allclose(shared.matmul(right), tile.dense() @ right, atol=1e-12)
