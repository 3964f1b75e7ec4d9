"""Dense and iterative solves of symmetric positive definite systems."""

import jax.numpy as jnp
import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from mcmcpost.solve import (
    Cholesky,
    ConjugateGradients,
    Outcome,
    conjugate_gradients,
    dense as cholesky,
    factorise,
    fit_rows,
    generalised_least_squares,
    invert,
    leave_blocks_out,
    solve,
)
from mcmcpost.stein import SquaredExponential
from mcmcpost.stein.products import Regularised, kernel_operator


@pytest.fixture
def system(rng):
    root = rng.normal(size=(40, 40))
    return jnp.asarray(root @ root.T + np.eye(40)), jnp.asarray(rng.normal(size=(40, 3)))


def test_factorise_keeps_a_nugget_that_works(system):
    matrix, _ = system
    factor = factorise(matrix, jnp.ones(40), jnp.asarray(1e-8))
    assert not bool(factor.raised)
    np.testing.assert_allclose(
        factor.lower @ factor.lower.T, matrix + 1e-8 * np.eye(40), rtol=1e-12
    )


def test_factorise_climbs_tenfold_until_positive_definite():
    matrix = jnp.diag(jnp.array([1.0, 1.0, -3e-6]))
    factor = factorise(matrix, jnp.ones(3), jnp.asarray(1e-8))
    assert bool(factor.raised)
    np.testing.assert_allclose(factor.nugget, 1e-5)
    assert np.isfinite(factor.lower).all()


def test_factorise_gives_up_with_nan_and_says_what_it_tried():
    factor = factorise(-jnp.eye(3) * 1e9, jnp.ones(3), jnp.asarray(1e-8))
    assert np.isnan(factor.lower).any()
    np.testing.assert_allclose(factor.nugget, 1.0)


def test_generalised_least_squares_is_the_textbook_formula(system, rng):
    matrix, values = system
    basis = jnp.asarray(np.c_[np.ones(40), rng.normal(size=(40, 4))])
    matrix, basis, values = (np.asarray(a) for a in (matrix, basis, values))
    gamma, dual, covariance = generalised_least_squares(np.linalg.cholesky(matrix), basis, values)
    inverse = np.linalg.inv(matrix)
    expected = np.linalg.solve(basis.T @ inverse @ basis, basis.T @ inverse @ values)
    np.testing.assert_allclose(gamma, expected, rtol=1e-9)
    np.testing.assert_allclose(covariance, np.linalg.inv(basis.T @ inverse @ basis), rtol=1e-7)
    np.testing.assert_allclose(dual, inverse @ (values - basis @ expected), rtol=1e-7, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("preconditioned", [False, True])
def test_conjugate_gradients_reach_cholesky_in_n_steps(system, preconditioned):
    matrix, right = system
    scale = jnp.diagonal(matrix)[:, None] if preconditioned else jnp.ones((40, 1))
    solution = conjugate_gradients(
        lambda v: matrix @ v, right, precondition=lambda r: r / scale, rtol=1e-12, max_steps=80
    )
    assert bool(solution.converged.all())
    np.testing.assert_allclose(solution.value, np.linalg.solve(matrix, right), rtol=1e-8)
    np.testing.assert_allclose(solution.residual, right - matrix @ solution.value, atol=1e-9)


def test_conjugate_gradients_stop_at_the_budget_and_say_so(system):
    matrix, right = system
    solution = conjugate_gradients(
        lambda v: matrix @ v, right, precondition=lambda r: r, rtol=1e-12, max_steps=3
    )
    assert int(solution.num_steps) == 3
    assert not bool(solution.converged.any())


def test_a_zero_right_hand_side_rests_and_does_not_poison_the_others(system):
    matrix, right = system
    right = right.at[:, 1].set(0.0)
    solution = conjugate_gradients(
        lambda v: matrix @ v, right, precondition=lambda r: r, rtol=1e-10, max_steps=80
    )
    assert bool(solution.converged.all())
    assert not np.any(np.asarray(solution.value[:, 1]))
    np.testing.assert_allclose(
        solution.value[:, 0], np.linalg.solve(matrix, right[:, 0]), rtol=1e-6
    )


def test_an_unreachable_tolerance_ends(system):
    matrix, right = system
    solution = conjugate_gradients(
        lambda v: matrix.astype(jnp.float32) @ v,
        right.astype(jnp.float32),
        precondition=lambda r: r,
        rtol=1e-30,
        max_steps=200,
    )
    assert int(solution.num_steps) <= 200
    assert np.isfinite(solution.value).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_invert_is_the_dense_inverse(rng, dtype):
    root = rng.normal(size=(30, 40))
    matrix = (root @ root.T).astype(dtype)
    found = invert(jnp.asarray(matrix))
    rtol = 1e3 * np.finfo(dtype).eps
    assert found.matrix.dtype == dtype
    np.testing.assert_array_equal(found.matrix, found.matrix.T)
    np.testing.assert_allclose(found.matrix @ matrix, np.eye(30), atol=rtol)
    np.testing.assert_allclose(
        found.log_determinant, np.linalg.slogdet(matrix.astype(float))[1], rtol=rtol
    )


def test_invert_of_an_indefinite_matrix_is_nan():
    found = invert(jnp.asarray(np.diag([1.0, -1.0])))
    assert np.isnan(found.matrix).all()
    assert np.isnan(found.log_determinant)


@pytest.mark.parametrize("sizes", [(8, 7, 9), (8, 0, 7, 9), (0, 12, 12, 0)])
def test_leaving_blocks_out_is_generalised_least_squares_on_the_other_rows(rng, sizes):
    n = 24
    root, noise = rng.normal(size=(n, n)), rng.uniform(1, 2, size=n)
    gram, basis, values = (
        root @ root.T + np.eye(n),
        rng.normal(size=(n, 3)),
        rng.normal(size=(n, 2)),
    )
    solutions, nugget = leave_blocks_out(gram, noise, 0.1, basis, values, sizes)
    assert nugget == 0.1
    matrix, blocks = gram + 0.1 * np.diag(noise), np.repeat(range(len(sizes)), sizes)
    for block, solution in enumerate(solutions):
        rest = blocks != block
        inverse = np.linalg.inv(matrix[np.ix_(rest, rest)])
        covariance = np.linalg.inv(basis[rest].T @ inverse @ basis[rest])
        gamma = covariance @ basis[rest].T @ inverse @ values[rest]
        np.testing.assert_allclose(solution.coefficients, gamma, rtol=1e-8)
        np.testing.assert_allclose(solution.covariance, covariance, rtol=1e-8)
        np.testing.assert_allclose(
            solution.dual[rest], inverse @ (values[rest] - basis[rest] @ gamma), rtol=1e-7
        )
        assert not np.any(solution.dual[~rest])


def test_a_nugget_is_raised_tenfold_until_every_block_can_be_left_out(rng):
    matrix = np.diag([1.0, 1.0, -3e-6, 1.0])
    basis, values = np.ones((4, 1)), rng.normal(size=(4, 1))
    whole, used = fit_rows(matrix, np.ones(4), 1e-8, basis, values)
    parts, used_without = leave_blocks_out(matrix, np.ones(4), 1e-8, basis, values, (2, 2))
    assert used == used_without == pytest.approx(1e-5)
    assert np.isfinite(whole.coefficients).all()
    assert all(np.isfinite(part.coefficients).all() for part in parts)
    whole, used = fit_rows(-1e9 * np.eye(4), np.ones(4), 1e-8, basis, values)
    parts, _ = leave_blocks_out(-1e9 * np.eye(4), np.ones(4), 1e-8, basis, values, (2, 2))
    assert used == pytest.approx(1.0)
    for solution in (whole, *parts):
        assert all(np.isnan(part).all() for part in solution)


def test_a_small_inverse_uses_one_blas_thread_and_gives_the_others_back(monkeypatch):
    seen = []
    lapack = cholesky._invert_by_lapack

    def watched(dense):
        seen.append(
            {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
        )
        return lapack(dense)

    monkeypatch.setattr(cholesky, "_invert_by_lapack", watched)
    monkeypatch.setattr(cholesky, "THREADED", 5)
    with threadpool_limits(2, "blas"):
        for n in (4, 5, 4):
            invert(jnp.eye(n))
    assert seen == [{1}, {2}, {1}]


@pytest.mark.slow
def test_a_factor_of_an_ill_conditioned_matrix_does_not_claim_a_solution(rng):
    inputs = np.linspace(0, 1, 300)[:, None]
    system = Regularised(kernel_operator(SquaredExponential(1.0), inputs), 1e-13)
    found = solve(system, rng.normal(size=(300, 1)), Cholesky())
    assert found.residual_norms[0] > 1e-6
    assert Outcome(int(found.outcome)) is Outcome.STAGNATED


@pytest.mark.slow
def test_a_first_guess_has_the_precision_of_the_system(rng):
    inputs = rng.normal(size=(50, 2)).astype(np.float32)
    system = Regularised(kernel_operator(SquaredExponential(1.0), inputs), np.float32(0.1))
    found = solve(system, np.ones((50, 1)), ConjugateGradients(), initial=np.zeros((50, 1)))
    assert Outcome(int(found.outcome)) is Outcome.CONVERGED
