"""The structured gradient Gram against nested autodiff, at coincident points too; its solvers; its
likelihood."""

import itertools
from zlib import crc32

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gradient_cases import autodiff_blocks, observed, representation
from kernel_registry import PROFILES
from scipy.stats import multivariate_normal

from benchmarks.gp._woodbury import Woodbury
from mcmcpost.gp import Automatic
from mcmcpost.gp.gradient_operator import cross_matmul, gradient_gram, scalar_profile
from mcmcpost.gp.gradient_posterior import (
    gradient_log_likelihood,
    posterior_hessian,
    posterior_mean,
)
from mcmcpost.gp.gradient_solvers import (
    DenseCholesky,
    GradientCG,
    ProjectedCholesky,
    QuadraticClosedForm,
    solve_system,
)
from mcmcpost.stein import (
    ExponentialDotProduct,
    Matern32,
    Matern52,
    Polynomial,
    RationalQuadratic,
    Scaled,
    SquaredExponential,
    Weighted,
)

NOISE = 0.3
KERNELS = {name: kernel for name, kernel in PROFILES.items() if f"{name}_ard" not in PROFILES}
"""Without those that differ from another in one lengthscale for all coordinates, which others
have."""


build = eqx.filter_jit(gradient_gram)
dense = eqx.filter_jit(lambda gram: gram.dense())


def dense_and_product(profile, u, V):
    """Of gradients, then of values and gradients, for weights (n, 1 + d) of values and
    gradients."""
    grams = [
        gradient_gram(profile, u, jnp.asarray(0.0), with_values=with_values)
        for with_values in (False, True)
    ]
    return [(gram.dense(), gram.matmul(V[:, 1 - gram.with_values :])) for gram in grams]


def cross_product(profile, v, u, V):
    return cross_matmul(profile.stationary, profile.terms(v, u), v, u, V)


def mean_and_hessian(profile, u, weights, v):
    return posterior_mean(profile, u, weights, v), posterior_hessian(profile, u, weights, v)


@eqx.filter_jit
def of_each(function, cases):
    """Return the function of every case in one program: it compiles in half the time."""
    return {name: function(*arguments) for name, arguments in cases.items()}


def white(kernel, X):
    profile = scalar_profile("test", kernel)
    root, origin = np.asarray(profile.root(X)), np.asarray(profile.origin(X))
    return profile, root, origin, jnp.asarray((X - origin) * root)


def scales(root, with_values):
    return np.concatenate([np.ones(int(with_values)), root])


def five_points(rng):
    """Five points in three dimensions, two of them the same."""
    X = rng.normal(size=(5, 3))
    X[3] = X[1]
    return X


@pytest.fixture
def points(rng):
    return five_points(rng)


def close(actual, expected, tolerance=1e-10):
    np.testing.assert_allclose(
        actual, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max()
    )


@pytest.fixture(scope="module")
def products():
    """Points, weights and, of every profile, its nested autodiff, its whitening and its structured
    products."""
    rng = np.random.default_rng(crc32(b"products"))
    X, new, V = five_points(rng), rng.normal(size=(4, 3)), rng.normal(size=(5, 4))
    kernels = {name: Scaled(1.7, kernel) for name, kernel in KERNELS.items()}
    both = np.concatenate([X, new])
    blocks = of_each(autodiff_blocks, {name: (kernel, both, X) for name, kernel in kernels.items()})
    whitened = {name: white(kernel, X) for name, kernel in kernels.items()}
    own = of_each(
        dense_and_product, {name: (profile, u, V) for name, (profile, _, _, u) in whitened.items()}
    )
    cross = of_each(
        cross_product,
        {
            name: (profile, (new - origin) * root, u, V[:, 1:])
            for name, (profile, root, origin, u) in whitened.items()
        },
    )
    roots = {name: root for name, (_, root, _, _) in whitened.items()}
    return V, *(jax.tree.map(np.asarray, table) for table in (roots, blocks, own, cross))


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_dense_products_and_cross_products_are_nested_autodiff(name, products):
    V, roots, blocks, own, cross = products
    root, blocks = roots[name], blocks[name]
    for with_values, (matrix, product) in zip((False, True), own[name], strict=True):
        expected = observed(blocks[:5], with_values)
        scale = np.tile(scales(root, with_values), 5)
        close(scale[:, None] * matrix * scale, expected)
        close(scale * np.ravel(product), expected @ (V[:, 1 - with_values :].ravel() / scale))
    expected = np.einsum("aibj,bj->ai", blocks[5:, :, :, 1:], V[:, 1:] / root) / np.append(
        1.0, root
    )
    close(cross[name], expected)


def derivatives(kernel, X, weights, x):
    value = representation(kernel, X, weights)
    return jax.vmap(value)(x), jax.vmap(jax.grad(value))(x), jax.vmap(jax.hessian(value))(x)


@pytest.fixture(scope="module", params=[True, False], ids=["values", "gradients"])
def means(request):
    """Of every profile its whitening, the posterior mean of random weights, and the definition by
    autodiff."""
    rng = np.random.default_rng(crc32(b"means"))
    X, weights = five_points(rng), rng.normal(size=(5, 3 + request.param))
    new = np.concatenate([rng.normal(size=(2, 3)), X[:1]])
    kernels = {name: Scaled(0.6, kernel) for name, kernel in KERNELS.items()}
    whitened = {name: white(kernel, X) for name, kernel in kernels.items()}
    slow, fast = {}, {}
    for name, (profile, root, origin, u) in whitened.items():
        of_values = weights[:, : int(request.param)] if request.param else np.zeros((5, 1))
        slow[name] = (
            kernels[name],
            X,
            np.c_[of_values, weights[:, int(request.param) :] / root],
            new,
        )
        fast[name] = (profile, u, weights, (new - origin) * root)
    found = of_each(mean_and_hessian, fast)
    return whitened, found, jax.tree.map(np.asarray, of_each(derivatives, slow))


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_value_gradient_and_hessian_of_the_mean_are_nested_autodiff(name, means):
    whitened, found, definition = means
    profile, root, *_ = whitened[name]
    mean, curvature = found[name]
    value, gradient, hessian = definition[name]
    close(np.asarray(mean)[:, 0], value)
    close(np.asarray(mean)[:, 1:] * root, gradient)
    rough = not profile.has_hessian
    close((root[:, None] * curvature.dense() * root)[: 3 - rough], hessian[: 3 - rough])


@pytest.mark.parametrize("distance", [0.0, 1e-9, 1e-6, 1e-3])
@pytest.mark.parametrize(
    "kernel", [Matern32(), Matern52(), SquaredExponential(), RationalQuadratic()]
)
def test_close_points_give_a_finite_symmetric_gram(kernel, distance, points):
    points[3, 0] += distance
    profile, *_, u = white(kernel, points)
    gram = np.asarray(dense(build(profile, u, jnp.asarray(0.0), with_values=True)))
    np.testing.assert_allclose(gram, gram.T, atol=1e-12)
    assert np.linalg.eigvalsh(gram).min() > -1e-9


SYSTEMS = {
    "squared_exponential": (SquaredExponential(np.linspace(1.5, 3.0, 12)), 5, 12),
    "matern32": (Matern32(2.0), 5, 12),
    "matern52_more_points_than_dimensions": (Matern52(np.array([1.0, 2.0, 1.5])), 9, 3),
    "rational": (Scaled(2.0, RationalQuadratic(2.5, 1.2)), 5, 12),
    "exponential": (ExponentialDotProduct(np.linspace(0.1, 0.3, 12), 0.2), 5, 12),
    "polynomial": (Polynomial(3, 1.0, 0.3), 5, 12),
    "one_point": (SquaredExponential(1.5), 1, 4),
}
SOLVERS = {
    "dense": DenseCholesky(),
    "woodbury": Woodbury(),
    "projected": ProjectedCholesky(),
    "cg": GradientCG(1e-12, project=False, precondition=False),
    "preconditioned_cg": GradientCG(1e-12, project=False, precondition=True),
    "projected_preconditioned_cg": GradientCG(1e-12, precondition=True),
    "projected_adaptive_cg": GradientCG(1e-12),
    "automatic": Automatic(),
    "automatic_iterative": Automatic(dense_order=1, rtol=1e-12),
}
MAIN = ["projected", "projected_preconditioned_cg"]
# it chooses of these, as is tested below
OTHERS = [name for name in SOLVERS if name not in (*MAIN, "automatic")]
# the others see a dot product only through the same matrices
DOT_PRODUCT = ["woodbury", "automatic_iterative"]


def system(name, rng, with_values=False):
    kernel, n, d = SYSTEMS[name]
    X, G = rng.normal(size=(n, d)), rng.normal(size=(n, d + with_values))
    profile, root, _, u = white(kernel, X)
    gram = build(profile, u, jnp.asarray(NOISE), with_values=with_values)
    return kernel, profile, gram, X, jnp.asarray(G), root


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "solver"),
    [
        *itertools.product(SYSTEMS, MAIN),
        *itertools.product(["rational"], OTHERS),
        *itertools.product(["exponential"], DOT_PRODUCT),
    ],
)
def test_every_solver_is_the_dense_solution(name, solver, rng):
    _, profile, gram, _, right, _ = system(name, rng)
    solution = solve_system(SOLVERS[solver], profile, gram, right)
    expected = np.linalg.solve(np.asarray(dense(gram)), np.ravel(right)).reshape(right.shape)
    close(solution.value, expected, 1e-8)
    assert bool(solution.converged)
    assert float(solution.residual) < 1e-9
    assert not bool(solution.raised)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "solver"),
    [
        *itertools.product(["squared_exponential", "exponential"], MAIN),
        ("squared_exponential", "dense"),
        *itertools.product(["matern52_more_points_than_dimensions"], ["projected", "automatic"]),
    ],
)
def test_values_and_gradients_are_solved_together(name, solver, rng):
    _, profile, gram, _, right, _ = system(name, rng, with_values=True)
    solution = solve_system(SOLVERS[solver], profile, gram, right)
    expected = np.linalg.solve(np.asarray(dense(gram)), np.ravel(right)).reshape(right.shape)
    close(solution.value, expected, 1e-8)


def test_the_closed_form_solves_gradients_of_a_quadratic(rng):
    X, root = rng.normal(size=(5, 12)), rng.normal(size=(12, 12))
    kernel = Scaled(0.5, Polynomial(2, 0.0, np.linspace(0.5, 2.0, 12), 0.3))
    profile, scale, _, u = white(kernel, X)
    gram = build(profile, u, jnp.asarray(0.0))
    quadratic = jnp.asarray((X - 0.3) @ (root @ root.T) / scale)
    solution = solve_system(QuadraticClosedForm(), profile, gram, quadratic)
    assert bool(solution.converged)
    assert float(solution.residual) < 1e-12
    other = solve_system(
        QuadraticClosedForm(), profile, gram, jnp.asarray(rng.normal(size=(5, 12)))
    )
    assert not bool(other.converged)


@pytest.mark.slow
def test_the_hessian_of_a_quadratic_is_found_from_enough_gradients(rng):
    """With as many gradients as dimensions the quadratic kernel knows the whole matrix."""
    X, root = rng.normal(size=(5, 5)), rng.normal(size=(5, 5))
    profile, _, _, u = white(Scaled(0.5, Polynomial(2, 0.0)), X)
    gram = build(profile, u, jnp.asarray(0.0))
    weights = solve_system(
        QuadraticClosedForm(), profile, gram, jnp.asarray(X @ (root @ root.T))
    ).value
    close(posterior_hessian(profile, u, weights, u[:1]).dense()[0], root @ root.T, 1e-8)


@pytest.mark.slow
def test_an_unfinished_solve_says_so_and_the_rule_falls_back(rng):
    _, profile, gram, _, right, _ = system("squared_exponential", rng)
    short = solve_system(GradientCG(1e-12, max_steps=2), profile, gram, right)
    assert not bool(short.converged)
    assert int(short.num_products) == 3
    rescued = solve_system(Automatic(dense_order=1, max_steps=2), profile, gram, right)
    assert bool(rescued.converged)
    assert rescued.order == 5 * 4


@pytest.mark.slow
def test_coincident_points_without_noise_raise_the_nugget(rng):
    X = np.repeat(rng.normal(size=(3, 4)), 2, axis=0)
    profile, *_, u = white(SquaredExponential(1.0), X)
    gram = build(profile, u, jnp.asarray(0.0))
    right = jnp.asarray(np.repeat(rng.normal(size=(3, 4)), 2, axis=0))
    for solver in (DenseCholesky(), ProjectedCholesky()):
        solution = solve_system(solver, profile, gram, right)
        assert np.isfinite(solution.value).all()
        assert float(solution.nugget) > 0
        assert float(solution.residual) < 1e-6


def test_systems_beyond_memory_are_refused(monkeypatch):
    profile, *_ = white(SquaredExponential(1.0), np.zeros((2, 3)))
    monkeypatch.setattr("mcmcpost.gp.gradient_operator.MEMORY", 1e5)
    for solver in (DenseCholesky(), ProjectedCholesky(), GradientCG()):
        with pytest.raises(MemoryError, match=r"at most 1e\+05 bytes.*fewer points"):
            solver.check(profile, 300, 300, False)


def test_solvers_refuse_what_they_cannot_take():
    profile, *_ = white(SquaredExponential(1.0), np.zeros((2, 3)))
    quadratic, *_ = white(Polynomial(2, 0.0), np.zeros((2, 3)))
    with pytest.raises(ValueError, match="gradients only"):
        QuadraticClosedForm().check(quadratic, 3, 4, True)
    with pytest.raises(ValueError, match="Polynomial"):
        QuadraticClosedForm().check(profile, 3, 4, False)
    with pytest.raises(ValueError, match="no more points"):
        QuadraticClosedForm().check(quadratic, 5, 4, False)


@pytest.mark.parametrize("kernel", [SquaredExponential() + Matern52(), Weighted(Matern52(), 0.1)])
def test_kernels_that_are_not_one_profile_are_refused(kernel):
    with pytest.raises(TypeError, match=r"one of SquaredExponential.*Matérn-1/2"):
        scalar_profile("GradientGP", kernel)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "with_values"),
    [
        ("squared_exponential", True),
        ("matern52_more_points_than_dimensions", False),
        ("exponential", True),
    ],
)
def test_the_likelihood_is_the_dense_density_and_its_slope_its_difference(name, with_values, rng):
    kernel, _, gram, X, right, root = system(name, rng, with_values)
    scale = np.tile(scales(root, with_values), len(X))
    covariance = scale[:, None] * np.asarray(dense(gram)) * scale
    parameters, static = eqx.partition(
        kernel, lambda leaf: eqx.is_inexact_array_like(leaf) and np.all(leaf != 0)
    )
    flat, unravel = jax.flatten_util.ravel_pytree(
        (jax.tree.map(jnp.asarray, parameters), jnp.asarray(NOISE))
    )

    @jax.jit
    @jax.value_and_grad
    def likelihood(x):
        moved, noise = unravel(x)
        return gradient_log_likelihood(eqx.combine(moved, static), noise, jnp.asarray(X), right)

    flat = np.asarray(flat)
    value, slope = likelihood(flat)
    expected = multivariate_normal(np.zeros(len(covariance)), covariance).logpdf(np.ravel(right))
    np.testing.assert_allclose(value, expected, rtol=1e-9)
    step = 1e-5
    differences = [
        (float(likelihood(flat + e)[0]) - float(likelihood(flat - e)[0])) / (2 * step)
        for e in step * np.eye(len(flat))
    ]
    np.testing.assert_allclose(slope, differences, rtol=1e-5, atol=1e-5 * np.abs(slope).max())
