"""Second-order Stein kernels against the definition by nested autodiff, and the properties that
make them useful."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_registry import ARD, KERNELS
from stein_cases import check_parameter_gradients, of_all, rank_three_shapes

from mcmcpost.stein import (
    AbstractKernel,
    InverseMultiquadric,
    Matern32,
    Matern52,
    Polynomial,
    RationalQuadratic,
    Scaled,
    SecondOrderSteinTile,
    SquaredExponential,
    Sum,
    polynomial_exponents,
    polynomial_features,
    second_order_stein_diagonal,
    second_order_stein_gram,
)
from mcmcpost.stein.products import TileOperator

FROM_REGISTRY = (
    "squared_exponential",
    "squared_exponential_ard",
    "matern52",
    "matern52_ard",
    "rational_quadratic",
    "inverse_multiquadric",
    "polynomial",
    "polynomial_linear",
    "exponential_dot_product",
    "scaled",
    "sum",
)
SUPPORTED = {name: KERNELS[name] for name in FROM_REGISTRY} | {
    "inverse_multiquadric_ard": InverseMultiquadric(ARD, 0.4),
    "polynomial_quartic_ard": Polynomial(4, 0.5, ARD, 0.2 * ARD),
    "polynomial_quintic": Polynomial(5, 0.5, 0.6),
    "scaled_sum": Scaled(0.3, Sum(RationalQuadratic(1.4), Scaled(2.0, Matern52(1.1)))),
}
REFUSED = {name: kernel for name, kernel in KERNELS.items() if name not in FROM_REGISTRY} | {
    "scaled_matern32": 2.0 * Matern32(),
    "sum_with_matern32": SquaredExponential() + Matern32(),
}

type Function = Callable[[jax.Array, jax.Array], jax.Array]


def langevin(f: Function, argument: int, score: jax.Array) -> Function:
    """Δf + score·∇f in one argument of f(x, y), by autodiff."""

    def image(x: jax.Array, y: jax.Array) -> jax.Array:
        z, g = (x, lambda a: f(a, y)) if argument == 0 else (y, lambda a: f(x, a))

        def along(direction: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jax.jvp(lambda a: jax.jvp(g, (a,), (direction,))[1], (z,), (direction,))

        slopes, curvatures = jax.vmap(along)(jnp.eye(z.size))
        return jnp.sum(curvatures + score * slopes)

    return image


DEFINED = {
    name: kernel
    for name, kernel in SUPPORTED.items()
    if name != "scaled" and f"{name}_ard" not in SUPPORTED
}
"""Compared with the definition; "scaled_sum" holds what is left out, scaled and with one
lengthscale."""


@of_all(DEFINED)
def slow_gram(
    kernel: AbstractKernel, X: jax.Array, SX: jax.Array, Y: jax.Array, SY: jax.Array
) -> jax.Array:
    def entry(x: jax.Array, s: jax.Array, y: jax.Array, t: jax.Array) -> jax.Array:
        return langevin(langevin(kernel.evaluate, 1, t), 0, s)(x, y)

    row = lambda x, s: jax.vmap(lambda y, t: entry(x, s, y, t))(Y, SY)  # noqa: E731
    return jax.vmap(row)(X, SX)


@of_all(SUPPORTED)
def fast(
    kernel: AbstractKernel, X: jax.Array, SX: jax.Array, Y: jax.Array, SY: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the Gram and the diagonal of the first set; points are (24, 3) wherever they can, to
    compile once."""
    return second_order_stein_gram(kernel, X, SX, Y, SY), second_order_stein_diagonal(kernel, X, SX)


@pytest.fixture
def data(rng: np.random.Generator) -> np.ndarray:
    """Points, scores, other points, other scores."""
    return rng.normal(size=(4, 24, 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFINED)
def test_gram_is_its_definition(name: str, data: np.ndarray) -> None:
    """With other scores at y."""
    slow = slow_gram(name, *data)
    gram, _ = fast(name, *data)
    np.testing.assert_allclose(gram, slow, rtol=1e-9, atol=1e-11 * np.abs(slow).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFINED)
def test_gram_in_single_precision_is_its_definition(name: str, data: np.ndarray) -> None:
    """The bound is eps times the largest entry."""
    slow = slow_gram(name, *data)
    with jax.numpy_dtype_promotion("strict"):
        single, diagonal = fast(name, *data.astype(np.float32))
    assert single.dtype == diagonal.dtype == jnp.float32
    np.testing.assert_allclose(
        single, slow, rtol=0, atol=500 * np.finfo(np.float32).eps * np.abs(slow).max()
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", SUPPORTED)
def test_gram_of_a_set_with_itself_is_symmetric_and_positive(name: str, data: np.ndarray) -> None:
    X, S, _, _ = data
    twice, diagonal = fast(name, X, S, X, S)
    full = np.where(np.eye(24, dtype=bool), diagonal, twice)
    np.testing.assert_allclose(full, full.T, rtol=1e-11, atol=1e-13 * full.max())
    np.testing.assert_allclose(full, twice, rtol=1e-11, atol=1e-12 * full.max())
    assert np.linalg.eigvalsh((full + full.T) / 2).min() > -1e-12 * full.max()


NEAR = ["squared_exponential_ard", "matern52_ard", "inverse_multiquadric"]


ONE_SET = [*NEAR, "polynomial", "scaled_sum"]


@of_all({name: SUPPORTED[name] for name in ONE_SET})
def of_one_set(kernel: AbstractKernel, X: jax.Array, S: jax.Array) -> jax.Array:
    return second_order_stein_gram(kernel, X, S)


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_SET)
def test_gram_of_a_set_with_itself_has_the_exact_diagonal(name: str, data: np.ndarray) -> None:
    X, S, _, _ = data
    twice, diagonal = fast(name, X, S, X, S)
    full = of_one_set(name, X, S)
    np.testing.assert_allclose(np.diag(full), diagonal, rtol=1e-14)
    np.testing.assert_allclose(full, twice, rtol=1e-11, atol=1e-12 * full.max())


SMOOTH = [name for name in DEFINED if "matern" not in name and not name.startswith("scaled")]


@pytest.mark.slow
@pytest.mark.parametrize("name", SMOOTH)
def test_coincident_points_are_the_definition(name: str, data: np.ndarray) -> None:
    """Smooth kernels have an autodiff value at δ = 0; the same point may carry two scores."""
    X, S, _, T = data
    slow = np.diag(slow_gram(name, X, S, X, T))
    crossed, diagonal = fast(name, X, S, X, T)
    np.testing.assert_allclose(np.diag(crossed), slow, rtol=1e-10, atol=1e-11 * np.abs(slow).max())
    own = np.diag(slow_gram(name, X, S, X, S))
    np.testing.assert_allclose(diagonal, own, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lengthscale"), [("matern52", 0.9), ("matern52_ard", ARD)], ids=["isotropic", "ard"]
)
def test_matern52_is_continuous_at_coincidence(
    name: str, lengthscale: float | np.ndarray, data: np.ndarray, rng: np.random.Generator
) -> None:
    """κ‴ and κ⁗ are infinite at 0, yet k₀″ → κ″(0)(4(trΛ)² + 8 trΛ²) − 2κ′(0) s·Λs′, at the rate
    |δ|."""
    X, S, _, _ = data
    T = S[::-1]
    precision = np.broadcast_to(1 / np.square(lengthscale), 3)
    limit = 25 / 12 * (4 * precision.sum() ** 2 + 8 * (precision**2).sum()) + 5 / 3 * np.sum(
        S * precision * T, 1
    )
    direction = rng.normal(size=X.shape)
    direction /= np.sqrt(np.sum(direction**2 * precision, 1, keepdims=True))
    for gap in (1e-2, 1e-4, 1e-6):
        near = np.diag(fast(name, X + gap * direction, S, X, T)[0])
        np.testing.assert_allclose(near, limit, rtol=0, atol=20 * gap * np.abs(limit).max())
        if gap == 1e-2:
            assert np.abs(near - limit).max() > 0.1 * gap * np.abs(limit).max()
    same = np.diag(fast(name, X, S, X, T)[0])
    np.testing.assert_allclose(same, limit, rtol=1e-13)
    far = np.diag(fast(name, 100 + X, S, 100 + X, T)[0])
    np.testing.assert_allclose(far, limit, rtol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("name", NEAR)
@pytest.mark.parametrize("gap", [0.0, 1e-14, 1e-9, 1e-5, 1e-2])
def test_gram_is_positive_up_to_rounding_near_duplicates(
    name: str, gap: float, rng: np.random.Generator
) -> None:
    """Matérn-5/2 loses half the digits at a near-coincidence: its κ‴ grows as 1/√r, and r has
    rounding error eps."""
    half, shift, scores = rng.normal(size=(3, 12, 3))
    X, S = np.concatenate([half, half + gap * shift]), np.concatenate([scores, scores])
    K = of_one_set(name, X, S)
    noise = 1e-6 if name == "matern52_ard" else 1e-12
    assert np.isfinite(K).all()
    assert np.linalg.eigvalsh((K + K.T) / 2).min() > -noise * K.max()


@eqx.filter_jit
@eqx.filter_value_and_grad
def entry_and_slope(
    kernel: AbstractKernel, x: np.ndarray, y: np.ndarray, s: np.ndarray
) -> jax.Array:
    return second_order_stein_gram(kernel, x, s, y, s)[0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ratio", [0.0, 0.25, 0.45, 0.6, 1.0])
def test_matern52_has_no_overflow_at_tiny_distances(dtype: type, ratio: float) -> None:
    """Down to distances whose third and fifth power underflow, in values and in slopes."""
    gap = dtype(float(np.finfo(dtype).tiny) ** ratio / 2)
    x, s = np.full((1, 2), gap, dtype), np.ones((1, 2), dtype)
    value, slope = entry_and_slope(Matern52(jnp.asarray([1.0, 2.0], dtype)), x, np.zeros_like(x), s)
    assert np.isfinite(value)
    assert np.isfinite(slope.lengthscale).all()


GAUSS_HERMITE = [
    SquaredExponential(1.3),
    RationalQuadratic(1.5, 2.0),
    InverseMultiquadric(1.4),
    Polynomial(3, 1.0, 0.7, 0.2),
    Sum(SquaredExponential(1.6), Polynomial(2)),
]


@pytest.mark.parametrize(
    ("kernel", "d"),
    [*((kernel, 2) for kernel in GAUSS_HERMITE), (GAUSS_HERMITE[-1], 1)],
    ids=lambda v: type(v).__name__ if isinstance(v, AbstractKernel) else v,
)
def test_kernel_integrates_to_zero(
    kernel: AbstractKernel, d: int, rng: np.random.Generator
) -> None:
    mean, sd = 0.4, 0.7
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(*[nodes] * d, indexing="ij"), -1).reshape(-1, d)
    w = np.prod(np.stack(np.meshgrid(*[weights] * d, indexing="ij"), -1), -1).reshape(-1)
    w = w / w.sum()
    X, Y, T = mean + sd * grid, rng.normal(size=(3, d)), rng.normal(size=(3, d))
    K = np.asarray(second_order_stein_gram(kernel, X, -(X - mean) / sd**2, Y, T))
    np.testing.assert_allclose(w @ K, 0, atol=1e-6 * float((w @ np.abs(K)).max()))
    # A wrong sign of the score must not pass.
    wrong = np.asarray(second_order_stein_gram(kernel, X, (X - mean) / sd**2, Y, T))
    assert np.abs(w @ wrong).max() > 1e-2 * float((w @ np.abs(wrong)).max())


def test_matern52_integrates_to_zero_across_its_kink() -> None:
    """Gauss–Legendre on either side of y, where k₀″ is continuous and not differentiable."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    y, s = np.array([[0.3]]), np.array([[1.7]])
    total, size = 0.0, 0.0
    for start, end in ((-10.0, 0.3), (0.3, 10.0)):
        x = (start + end) / 2 + (end - start) / 2 * nodes
        w = weights * (end - start) / 2 * np.exp(-(x**2) / 2)
        K = np.asarray(second_order_stein_gram(Matern52(0.9), x[:, None], -x[:, None], y, s))[:, 0]
        total, size = total + w @ K, size + w @ np.abs(K)
    assert abs(total) < 1e-12 * size


def test_polynomial_kernels_are_the_papers_special_cases(data: np.ndarray) -> None:
    """Appendix C.3 with B = 1. Its print is right, if the first Σ_r of degree 2 is read to cover
    both score terms."""
    X, SX, Y, SY = data
    c, d = 0.7, 3
    linear, quadratic = (second_order_stein_gram(Polynomial(k, c), *data) for k in (1, 2))
    np.testing.assert_allclose(linear, SX @ SY.T, rtol=1e-13)
    traces = np.sum(SX * X, 1)[:, None] + np.sum(SY * Y, 1)[None, :]
    printed = 4 * (d + traces) + 2 * ((SX @ SY.T) * (X @ Y.T + c) + (SX @ Y.T) * (X @ SY.T))
    np.testing.assert_allclose(quadratic, printed, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_polynomial_kernels_span_the_zero_variance_features(degree: int, data: np.ndarray) -> None:
    X, S, _, _ = data
    K = np.asarray(second_order_stein_gram(Polynomial(degree, 0.5), X, S))
    features = np.asarray(polynomial_features(X, S, polynomial_exponents(3, degree)))
    assert np.linalg.matrix_rank(K, tol=1e-9 * K.max()) == features.shape[1]
    fitted = features @ np.linalg.lstsq(features, K)[0]
    np.testing.assert_allclose(fitted, K, rtol=0, atol=1e-10 * K.max())


@pytest.mark.parametrize("name", REFUSED)
def test_kernels_without_a_rule_are_refused(name: str, data: np.ndarray) -> None:
    with pytest.raises(TypeError, match=r"expected a kernel with continuous derivatives .*, got "):
        second_order_stein_gram(REFUSED[name], *data)
    with pytest.raises(TypeError, match="first-order kernels"):
        second_order_stein_diagonal(REFUSED[name], *data[:2])


def test_points_without_scores_are_refused() -> None:
    X = np.zeros((2, 3))
    with pytest.raises(ValueError, match="no `SY`"):
        second_order_stein_gram(SquaredExponential(), X, X, X)
    with pytest.raises(ValueError, match="no `Y`"):
        second_order_stein_gram(SquaredExponential(), X, X, None, X)


def test_nan_scores_stay_visible_also_where_the_kernel_vanishes() -> None:
    kernel = SquaredExponential()
    X, S = 100.0 * np.arange(24)[:, None] * np.ones((1, 3)), np.ones((24, 3))
    assert second_order_stein_gram(kernel, X, S, X, S)[0, 1] == 0
    S[0] = np.nan
    K = np.asarray(second_order_stein_gram(kernel, X, S, X, S))
    diagonal = second_order_stein_diagonal(kernel, X, S)
    assert np.isnan(K[0]).all()
    assert np.isnan(K[:, 0]).all()
    assert np.isnan(diagonal[0])


@pytest.mark.parametrize("name", SUPPORTED)
def test_no_intermediate_has_three_axes(name: str) -> None:
    n, m, d = 7, 11, 3
    shapes = (np.zeros((k, d)) for k in (n, n, m, m))
    traced = jax.make_jaxpr(lambda *a: second_order_stein_gram(SUPPORTED[name], *a))(*shapes)
    assert not rank_three_shapes(traced.jaxpr)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["matern52_ard", "polynomial_quartic_ard", "scaled_sum"])
def test_gradients_in_the_parameters_are_finite_and_right(
    name: str, rng: np.random.Generator
) -> None:
    check_parameter_gradients(second_order_stein_gram, SUPPORTED[name], rng)


@pytest.mark.slow
def test_tile_serves_an_operator(rng: np.random.Generator) -> None:
    kernel = SUPPORTED["sum"]
    X, S, v = rng.normal(size=(24, 3)), rng.normal(size=(24, 3)), rng.normal(size=(24, 1))
    K, diagonal = fast("sum", X, S, X, S)
    operator = TileOperator(SecondOrderSteinTile(kernel), (X, S), jnp.asarray(diagonal), block=5)
    np.testing.assert_allclose(operator.matmul(v), K @ v, rtol=1e-10, atol=1e-11 * K.max())


@pytest.mark.slow
def test_gram_maps_over_parameters_and_data(rng: np.random.Generator) -> None:
    X = rng.normal(size=(2, 24, 3))
    ells = np.asarray([0.8, 1.7])
    with jax.numpy_dtype_promotion("strict"):
        mapped = jax.vmap(lambda ell, x: second_order_stein_gram(Matern52(ell), x, -x))(ells, X)
    for together, ell, x in zip(np.asarray(mapped), ells, X, strict=True):
        alone = np.asarray(second_order_stein_gram(Matern52(ell), x, -x, x, -x))
        np.testing.assert_allclose(together, alone, rtol=1e-11, atol=1e-12 * alone.max())
