"""Matrix-valued Stein kernels: the definition, the mean under each target, and the paper's own
parametrisation."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from mcmcpost.control.kernels.systems import crossfit_dense, kernel_data
from mcmcpost.control.problem import make_joint_problem
from mcmcpost.stein import (
    Coregionalisation,
    Matern52,
    Polynomial,
    SquaredExponential,
    check_covariance,
    matrix_stein_tile,
    second_order_stein_gram,
    stein_gram,
)
from mcmcpost.trace import make_trace

T = 3
SIZES = (7, 6, 8)
MEANS = np.array([[0.0, 0.0], [0.6, -0.4], [-0.3, 0.5]])
SCALES = np.array([1.0, 1.3, 0.8])
TASKS = np.repeat(np.arange(T), SIZES)
GRAMS = {1: stein_gram, 2: second_order_stein_gram}
KERNELS = {
    "separable": (SquaredExponential(np.array([1.2, 1.7])),),
    "two_terms": (SquaredExponential(np.array([1.2, 1.7])), Matern52(2.0)),
}


def score(x, task):
    return -(x - MEANS[task]) / SCALES[task, None] ** 2


def random_covariances(rng, size, tasks=T):
    factor = rng.normal(size=(size, tasks, tasks))
    return factor @ factor.transpose(0, 2, 1) + 0.1 * np.eye(tasks)[None]


@pytest.fixture
def rows(rng):
    x = MEANS[TASKS] + SCALES[TASKS, None] * rng.normal(size=(len(TASKS), 2))
    return x, score(x, TASKS)


def values_at(x, tasks):
    return np.sin(x @ np.array([1.0, 0.5]) + tasks) + 0.3 * (x**2).sum(axis=1)


@eqx.filter_jit
def tile(kernel, rows, columns):
    return matrix_stein_tile(kernel)(rows, columns)


def gram(kernel, x, s, tasks, y, sy, others):
    """Return (K₀(x_i, y_j))_{t_i u_j} by the package's tile function."""
    eye = np.eye(kernel.num_tasks)
    return np.asarray(tile(kernel, (x, s, eye[tasks]), (y, sy, eye[others])))


def defined_gram(kernel, x, s, tasks):
    """Return Σ_q (B_q)_{t_i t_j} k₀,q(x_i, x_j) entry by entry, each point with the score of its
    own task's target."""
    scalar = [
        np.asarray(GRAMS[kernel.order](k, jnp.asarray(x), jnp.asarray(s))) for k in kernel.kernels
    ]
    terms = list(zip(kernel.covariances, scalar, strict=True))
    entries = [
        [sum(b[t, u] * k[i, j] for b, k in terms) for j, u in enumerate(tasks)]
        for i, t in enumerate(tasks)
    ]
    return np.array(entries)


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, 2])
def test_the_gram_is_the_definition_entry_by_entry(rng, rows, order):
    kernels = KERNELS["two_terms"]
    kernel = Coregionalisation(kernels, random_covariances(rng, len(kernels)), order)
    x, s = rows
    found, expected = gram(kernel, x, s, TASKS, x, s, TASKS), defined_gram(kernel, x, s, TASKS)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-10 * np.abs(expected).max())
    np.testing.assert_allclose(found, found.T, atol=1e-10 * np.abs(found).max())
    assert np.linalg.eigvalsh(found)[0] > -1e-10 * np.linalg.eigvalsh(found)[-1]


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, 2])
def test_other_points_take_the_score_of_the_task_they_are_asked_for(rng, rows, order):
    """The same points asked as draws of each task in turn: one row block of the matrix-valued
    kernel each."""
    kernel = Coregionalisation(KERNELS["separable"], random_covariances(rng, 1), order)
    x, s = rows
    new = rng.normal(size=(5, 2))
    for t in range(T):
        label = np.full(5, t)
        found = gram(kernel, new, score(new, label), label, x, s, TASKS)
        scalar = GRAMS[order](
            kernel.kernels[0], *(jnp.asarray(a) for a in (new, score(new, label), x, s))
        )
        np.testing.assert_allclose(
            found, kernel.covariances[0][t][TASKS] * np.asarray(scalar), rtol=1e-9
        )


@pytest.mark.slow
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("dimension", [1, 2])
def test_every_function_of_the_space_has_mean_zero_under_its_own_target(
    rng, rows, dimension, order
):
    x, s = (a[:, :dimension] for a in rows)
    kernels = (SquaredExponential(np.full(dimension, 1.8)), Polynomial(3, 0.5))
    kernel = Coregionalisation(kernels, random_covariances(rng, 2), order)
    coefficients = rng.normal(size=len(x))
    node, weight = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(*[node] * dimension), -1).reshape(-1, dimension)
    weights = np.prod(
        np.stack(np.meshgrid(*[weight / weight.sum()] * dimension), -1).reshape(len(grid), -1),
        axis=1,
    )
    wrong = []
    for t in range(T):
        at, label = MEANS[t, :dimension] + SCALES[t] * grid, np.full(len(grid), t)
        own = -(at - MEANS[t, :dimension]) / SCALES[t] ** 2
        g = gram(kernel, at, own, label, x, s, TASKS) @ coefficients
        size = np.sqrt(weights @ g**2)
        assert abs(weights @ g) < 1e-9 * size
        g = gram(kernel, at, 1.1 * own, label, x, s, TASKS) @ coefficients
        wrong.append(abs(weights @ g) / size)
    assert min(wrong) > 1e-4  # the check sees a score that is off by a tenth


def whole_matrix(kernel, covariance, x, own, y, other):
    """K₀ with the scores of every target at every point: (n, m, T, T). Theorem 3.1, as the paper
    writes it."""
    blocks = np.empty((len(x), len(y), T, T))
    for t in range(T):
        for u in range(T):
            scalar = stein_gram(kernel, *(jnp.asarray(a) for a in (x, own[:, t], y, other[:, u])))
            blocks[:, :, t, u] = covariance[t, u] * np.asarray(scalar)
    return blocks


@pytest.mark.slow
def test_one_coefficient_a_datum_is_the_paper_s_solution_with_as_many_as_tasks(rng, rows):
    """Theorem 4.1: θ_j ∈ R^T, cross-task scores, normal equations; here (G + λ diag m_t)c = y −
    β."""
    x, s = rows
    penalty, beta = 1e-2, np.array([0.3, -0.2, 0.5])
    covariance = random_covariances(rng, 1)[0]
    (base,) = KERNELS["separable"]
    y, n = values_at(x, TASKS), len(x)
    per_task = np.array(SIZES)[TASKS]

    kernel = Coregionalisation((base,), covariance[None])
    matrix = defined_gram(kernel, x, s, TASKS)
    coefficients = np.linalg.solve(matrix + penalty * np.diag(per_task), y - beta[TASKS])

    every = np.stack([score(x, np.full(n, t)) for t in range(T)], axis=1)
    big = whole_matrix(base, covariance, x, every, x, every)
    features = big[np.arange(n), :, TASKS, :].reshape(n, n * T)
    normal = (features.T / per_task) @ features + penalty * big.transpose(0, 2, 1, 3).reshape(
        n * T, n * T
    )
    theta = np.linalg.lstsq(normal, (features.T / per_task) @ (y - beta[TASKS]), rcond=1e-13)[0]

    new = rng.normal(size=(20, 2))
    at_new = np.stack([score(new, np.full(20, t)) for t in range(T)], axis=1)
    paper = np.einsum(
        "ijts,js->it", whole_matrix(base, covariance, new, at_new, x, every), theta.reshape(n, T)
    )
    for t in range(T):
        label = np.full(20, t)
        ours = gram(kernel, new, at_new[:, t], label, x, s, TASKS) @ coefficients
        np.testing.assert_allclose(ours, paper[:, t], atol=1e-7 * np.abs(paper).max())


@pytest.mark.slow
def test_the_dense_fit_is_the_minimiser_of_the_ridge_objective_with_balanced_tasks(rng):
    """Σ_t Σ_j (f − β_t − g_t)²/m + λ‖g‖² over c and β, by plain normal equations in both, η =
    λm/mean(diag)."""
    size = 8
    traces = [
        make_trace(x, score(x, np.full(size, t)))
        for t in range(2)
        for x in [rng.normal(size=(1, size, 2))]
    ]
    problem = make_joint_problem(
        traces,
        [values_at(a.draws[0], 0)[None, :, None] for a in traces],
        moments=(0.0, 1.0),
        num_folds=2,
    )
    kernel = Coregionalisation(KERNELS["separable"], random_covariances(rng, 1, 2))
    m, nugget = 2 * size, 0.02
    z, s, labels, y = problem.draws[:m], problem.scores[:m], problem.labels[:m], problem.values[:m]
    matrix = defined_gram(kernel, z, s, labels)
    penalty = nugget * matrix.diagonal().mean() / size
    indicators = np.eye(2)[labels]
    design = np.concatenate([matrix, indicators], axis=1)
    rough = np.zeros((m + 2, m + 2))
    rough[:m, :m] = matrix
    solution = np.linalg.lstsq(
        design.T @ design / size + penalty * rough, design.T @ y / size, rcond=None
    )[0]

    points = (problem.draws, problem.scores, problem.indicators)
    data = kernel_data(points, problem.indicators, problem.values[:, None], problem)
    fit = crossfit_dense(matrix_stein_tile(kernel), nugget, data, num_constants=2)
    np.testing.assert_allclose(fit.mean[:, 0], solution[m:], atol=1e-7)


@pytest.mark.parametrize(
    ("matrix", "words"),
    [
        (np.array([[1.0, 0.5], [0.4, 1.0]]), "positive definite.*not symmetric"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), "positive definite.*smallest eigenvalue"),
        (np.ones((2, 2)), "positive definite"),
        (np.zeros((2, 2)), "positive definite"),
        (np.ones((2, 3)), r"positive definite.*\(2, 3\)"),
        (np.ones(2), r"shape \(task, task\)"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "positive definite.*finite False"),
        (np.array([[np.inf, 0.0], [0.0, 1.0]]), "positive definite"),
    ],
)
def test_a_covariance_that_is_none_is_refused(matrix, words):
    with pytest.raises(ValueError, match=words):
        check_covariance("here", matrix)


@pytest.mark.parametrize(
    ("covariances", "order", "words"),
    [
        (np.eye(2), 1, "one covariance of the tasks for each kernel"),
        (np.stack([np.eye(2)] * 2), 1, r"\(1, tasks, tasks\)"),
        (np.zeros((1, 0, 0)), 1, "covariances"),
        (np.array([[[1.0, 2.0], [2.0, 1.0]]]), 1, "positive definite"),
        (np.eye(2)[None], 3, "`order` of at most 2"),
    ],
)
def test_a_kernel_needs_one_covariance_for_each_term(covariances, order, words):
    with pytest.raises(ValueError, match=words):
        Coregionalisation((SquaredExponential(1.0),), covariances, order)
