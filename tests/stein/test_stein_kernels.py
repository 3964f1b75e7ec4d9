"""Stein kernels against the definition by nested autodiff, and the properties that make them
useful."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from kernel_registry import ARD, KERNELS
from stein_cases import check_parameter_gradients, of_all, rank_three_shapes

from mcmcpost.stein import (
    AbstractKernel,
    InverseMultiquadric,
    Matern32,
    Matern52,
    Polynomial,
    RationalQuadratic,
    SquaredExponential,
    Weighted,
    stein_diagonal,
    stein_discrepancy,
    stein_gram,
    stein_operator,
)

SLOPES = {
    "squared_exponential_ard": 0.5,
    "matern32_ard": 1.5,
    "matern52_ard": 5 / 6,
    "rational_quadratic": 0.5,
    "inverse_multiquadric_ard": 0.4,
}
"""−κ′(0) of profiles with the lengthscales `ARD`."""
ALL = KERNELS | {
    "matern32_ard": Matern32(ARD),
    "inverse_multiquadric_ard": InverseMultiquadric(ARD, 0.4),
}


def slow_stein(
    kernel: AbstractKernel, x: jax.Array, s: jax.Array, y: jax.Array, t: jax.Array
) -> jax.Array:
    """Σ_i (∂/∂x_i + s_i)(∂/∂y_i + t_i) k, by nested autodiff of `evaluate`."""

    def along(direction: jax.Array, s_i: jax.Array, t_i: jax.Array) -> jax.Array:
        def inside(a: jax.Array) -> jax.Array:
            value, slope = jax.jvp(lambda b: kernel.evaluate(a, b), (y,), (direction,))
            return slope + t_i * value

        value, slope = jax.jvp(inside, (x,), (direction,))
        return slope + s_i * value

    return jnp.sum(jax.vmap(along)(jnp.eye(x.size), s, t))


DEFINED = {name: kernel for name, kernel in KERNELS.items() if f"{name}_ard" not in KERNELS}
"""Compared with the definition: the others differ from one of these in one lengthscale for all
coordinates."""


@of_all(DEFINED)
def slow_gram(
    kernel: AbstractKernel, X: jax.Array, SX: jax.Array, Y: jax.Array, SY: jax.Array
) -> jax.Array:
    row = lambda x, s: jax.vmap(lambda y, t: slow_stein(kernel, x, s, y, t))(Y, SY)  # noqa: E731
    return jax.vmap(row)(X, SX)


@of_all(ALL)
def fast(
    kernel: AbstractKernel, X: jax.Array, SX: jax.Array, Y: jax.Array, SY: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the Gram and the diagonal of the first set; points are (12, 3) wherever they can, to
    compile once."""
    return stein_gram(kernel, X, SX, Y, SY), stein_diagonal(kernel, X, SX)


def itself(name: str, X: np.ndarray, S: np.ndarray) -> np.ndarray:
    """Return `stein_gram(kernel, X, S)` without another compilation: that this is the same is
    tested below."""
    twice, diagonal = fast(name, X, S, X, S)
    return np.where(np.eye(len(X), dtype=bool), diagonal, twice)


@pytest.fixture
def data(rng: np.random.Generator) -> np.ndarray:
    """Points, scores, other points, other scores."""
    return rng.normal(size=(4, 12, 3))


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFINED)
def test_stein_gram_is_its_definition(name: str, data: np.ndarray) -> None:
    slow = slow_gram(name, *data)
    gram, _ = fast(name, *data)
    np.testing.assert_allclose(gram, slow, rtol=1e-10, atol=1e-11 * np.abs(slow).max())


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFINED)
def test_stein_gram_in_single_precision_is_its_definition(name: str, data: np.ndarray) -> None:
    """The bound is eps times the largest term that can cancel."""
    slow = slow_gram(name, *data)
    with jax.numpy_dtype_promotion("strict"):
        single, diagonal = fast(name, *data.astype(np.float32))
    assert single.dtype == diagonal.dtype == jnp.float32
    np.testing.assert_allclose(
        single, slow, rtol=0, atol=200 * np.finfo(np.float32).eps * np.abs(slow).max()
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_gram_of_a_set_with_itself_is_symmetric_and_positive(name: str, data: np.ndarray) -> None:
    X, S, _, _ = data
    full = itself(name, X, S)
    np.testing.assert_allclose(full, fast(name, X, S, X, S)[0], rtol=1e-10, atol=1e-11 * full.max())
    np.testing.assert_allclose(full, full.T, rtol=1e-12, atol=1e-12 * full.max())
    assert np.linalg.eigvalsh(full).min() > -1e-12 * full.max()


ONE_SET = ["squared_exponential_ard", "matern32", "weighted_sum"]


@of_all({name: KERNELS[name] for name in ONE_SET})
def of_one_set(kernel: AbstractKernel, X: jax.Array, S: jax.Array) -> jax.Array:
    return stein_gram(kernel, X, S)


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_SET)
def test_gram_of_a_set_with_itself_has_the_exact_diagonal(name: str, data: np.ndarray) -> None:
    X, S, _, _ = data
    full, expected = of_one_set(name, X, S), itself(name, X, S)
    np.testing.assert_allclose(np.diag(full), np.diag(expected), rtol=1e-14)
    np.testing.assert_allclose(full, expected, rtol=1e-10, atol=1e-11 * full.max())


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOPES)
def test_coincident_points_have_the_analytic_limit(name: str, data: np.ndarray) -> None:
    """k₀(x, x) = −2κ′(0) trΛ + κ(0) s·s′, also where the same point appears in two sets far from
    the origin."""
    X, S, _, _ = data
    X = 100 + X
    T = S[::-1]
    slope = SLOPES[name]
    limit = 2 * slope * np.sum(1 / ARD**2) + np.sum(S * T, 1)
    crossed, diagonal = fast(name, X, S, X, T)
    np.testing.assert_allclose(np.diag(crossed), limit, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        diagonal, 2 * slope * np.sum(1 / ARD**2) + np.sum(S**2, 1), rtol=1e-14
    )


GAUSS_HERMITE = [
    SquaredExponential(1.3),
    RationalQuadratic(1.5, 2.0),
    InverseMultiquadric(1.4),
    Polynomial(3, 1.0, 0.7, 0.2),
    Weighted(SquaredExponential(1.6), 0.1),
    SquaredExponential(1.5) * Polynomial(2),
]


@pytest.mark.parametrize(
    ("kernel", "d"),
    [*((kernel, 2) for kernel in GAUSS_HERMITE), *((kernel, 1) for kernel in GAUSS_HERMITE[-2:])],
    ids=lambda v: type(v).__name__ if isinstance(v, AbstractKernel) else v,
)
def test_stein_kernel_integrates_to_zero(
    kernel: AbstractKernel, d: int, rng: np.random.Generator
) -> None:
    mean, sd = 0.4, 0.7
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(*[nodes] * d, indexing="ij"), -1).reshape(-1, d)
    w = np.prod(np.stack(np.meshgrid(*[weights] * d, indexing="ij"), -1), -1).reshape(-1)
    Y = rng.normal(size=(3, d))
    X = mean + sd * grid
    K = np.asarray(stein_gram(kernel, X, -(X - mean) / sd**2, Y, -(Y - mean) / sd**2))
    w = w / w.sum()
    np.testing.assert_allclose(w @ K, 0, atol=1e-6 * float((w @ np.abs(K)).max()))
    # A wrong sign of the score must not pass.
    wrong = np.asarray(stein_gram(kernel, X, (X - mean) / sd**2, Y, (Y - mean) / sd**2))
    assert np.abs(w @ wrong).max() > 1e-2 * float((w @ np.abs(wrong)).max())


@pytest.mark.slow
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    gap=st.sampled_from([0.0, 1e-14, 1e-9, 1e-5, 1e-2]),
    name=st.sampled_from(
        ["squared_exponential_ard", "matern32", "matern52_ard", "inverse_multiquadric", "weighted"]
    ),
)
def test_gram_is_positive_up_to_rounding_near_duplicates(seed: int, gap: float, name: str) -> None:
    """Matérn-3/2 loses half the digits at a near-coincidence: its κ″ grows as 1/√r, and r has
    rounding error eps."""
    rng = np.random.default_rng(seed)
    half, scores = rng.normal(size=(6, 3)), rng.normal(size=(6, 3))
    X = np.concatenate([half, half + gap * rng.normal(size=(6, 3))])
    K = itself(name, X, np.concatenate([scores, scores]))
    noise = 1e-6 if name == "matern32" else 1e-12
    assert np.isfinite(K).all()
    assert np.linalg.eigvalsh((K + K.T) / 2).min() > -noise * K.max()


@pytest.mark.parametrize("name", KERNELS)
def test_no_intermediate_has_three_axes(name: str) -> None:
    """The gram of two sets never forms an (n, m, d) array."""
    n, m, d = 7, 11, 3
    traced = jax.make_jaxpr(lambda *a: stein_gram(KERNELS[name], *a))(
        *(np.zeros((k, d)) for k in (n, n, m, m))
    )
    assert not rank_three_shapes(traced.jaxpr)
    planted = jax.make_jaxpr(jax.jit(lambda x, y: (x[:, None] - y[None]) * 2))(
        np.zeros((n, d)), np.zeros((m, d))
    )
    assert rank_three_shapes(planted.jaxpr)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["matern32", "weighted", "product_of_both"])
def test_gradients_in_the_parameters_are_finite_and_right(
    name: str, rng: np.random.Generator
) -> None:
    check_parameter_gradients(stein_gram, KERNELS[name], rng)


@pytest.mark.slow
def test_stein_gram_maps_over_parameters_and_data(rng: np.random.Generator) -> None:
    X = rng.normal(size=(2, 12, 3))
    ells = np.asarray([0.8, 1.7])
    with jax.numpy_dtype_promotion("strict"):
        mapped = jax.vmap(lambda ell, x: stein_gram(Matern52(ell), x, -x))(ells, X)
    for together, ell, x in zip(np.asarray(mapped), ells, X, strict=True):
        np.testing.assert_allclose(
            together, stein_gram(Matern52(ell), x, -x, x, -x), rtol=1e-12, atol=1e-13
        )


@pytest.mark.slow
def test_operator_and_discrepancy_are_the_dense_ones(rng: np.random.Generator) -> None:
    kernel = KERNELS["weighted_sum"]
    X, S, w = rng.normal(size=(12, 3)), rng.normal(size=(12, 3)), rng.normal(size=12)
    K = np.asarray(stein_gram(kernel, X, S))
    operator = stein_operator(kernel, X, S, block=5)
    np.testing.assert_allclose(
        operator.matmul(w[:, None])[:, 0], K @ w, rtol=1e-10, atol=1e-11 * K.max()
    )
    np.testing.assert_array_equal(operator.diagonal(), np.diag(K))
    np.testing.assert_array_equal(operator.diagonal(), stein_diagonal(kernel, X, S))
    np.testing.assert_allclose(stein_discrepancy(kernel, X, S), np.sqrt(K.mean()), rtol=1e-10)
    np.testing.assert_allclose(
        stein_discrepancy(kernel, X, S, weights=w), np.sqrt(w @ K @ w), rtol=1e-10
    )


@pytest.mark.slow
def test_discrepancy_falls_with_good_draws_and_not_with_biased_ones(
    rng: np.random.Generator,
) -> None:
    X = rng.normal(size=(800, 2))
    kernel = InverseMultiquadric()
    many, biased = (float(stein_discrepancy(kernel, x, -x)) for x in (X, X + 0.5))
    counts = (np.arange(800) < 50).astype(int)
    few, counted = (
        float(stein_discrepancy(kernel, X, -X, weights=w)) for w in (counts / 50, counts)
    )
    np.testing.assert_allclose(counted / 50, few, rtol=1e-5)
    assert many < few / 2
    assert biased > 3 * many


def test_points_without_scores_are_refused() -> None:
    X = np.zeros((2, 3))
    with pytest.raises(ValueError, match="`Y` and `SY` together"):
        stein_gram(SquaredExponential(), X, X, X)


@pytest.mark.slow
def test_nan_scores_never_give_a_finite_discrepancy(rng: np.random.Generator) -> None:
    X = rng.normal(size=(12, 3))
    S = -X.copy()
    S[2, 1] = np.nan
    assert np.isnan(stein_discrepancy(SquaredExponential(ARD), X, S))
