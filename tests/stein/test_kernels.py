"""Base kernels: profiles, compositions, Gram matrices, refusals."""

import itertools
from zlib import crc32

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from kernel_registry import KERNELS, PROFILES, concrete_kernels

from mcmcpost.stein import (
    AbstractKernel,
    InverseMultiquadric,
    Matern32,
    Matern52,
    Polynomial,
    Product,
    RationalQuadratic,
    Scaled,
    SquaredExponential,
    Sum,
    Weighted,
    gram,
)


def test_every_concrete_kernel_is_registered() -> None:
    registered = {type(kernel) for kernel in KERNELS.values()}
    assert concrete_kernels() <= registered


@pytest.fixture(scope="module")
def grams() -> dict[str, tuple[np.ndarray, ...]]:
    """Return the Gram of two sets and of one, of every kernel, each beside `evaluate`, by one
    program."""
    X, Y = (np.random.default_rng(crc32(b"grams")).normal(size=(n, 3)) for n in (4, 5))

    @jax.jit
    def program(X: jax.Array, Y: jax.Array) -> dict[str, tuple[jax.Array, ...]]:
        def of_each(kernel: AbstractKernel) -> tuple[jax.Array, ...]:
            slow = jax.vmap(lambda x: jax.vmap(lambda y: kernel.evaluate(x, y))(Y))(X)
            return (
                gram(kernel, X, Y),
                slow,
                gram(kernel, X),
                jax.vmap(lambda x: kernel.evaluate(x, x))(X),
            )

        return {name: of_each(kernel) for name, kernel in KERNELS.items()}

    return jax.tree.map(np.asarray, program(X, Y))


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_gram_is_evaluate_on_every_pair(
    name: str, grams: dict[str, tuple[np.ndarray, ...]]
) -> None:
    fast, slow, own, diagonal = grams[name]
    np.testing.assert_allclose(fast, slow, rtol=1e-11, atol=1e-12 * np.abs(slow).max())
    np.testing.assert_allclose(np.diag(own), diagonal, rtol=1e-13)


@pytest.fixture(scope="module")
def derivatives() -> dict[str, tuple[list[np.ndarray], list[np.ndarray]]]:
    """Return the derivatives of every profile and their slopes by autodiff, by one program."""

    @jax.jit
    def program(r: jax.Array) -> dict[str, tuple[list[jax.Array], list[jax.Array]]]:
        return {
            name: jax.jvp(
                lambda u, kernel=kernel: kernel.derivatives(u, 4), (r,), (jnp.ones_like(r),)
            )
            for name, kernel in PROFILES.items()
        }

    return jax.tree.map(np.asarray, program(np.linspace(0.05, 6.0, 9)))


@pytest.mark.parametrize("name", PROFILES)
def test_each_closed_derivative_is_the_autodiff_of_the_one_before(
    name: str, derivatives: dict[str, tuple[list[np.ndarray], list[np.ndarray]]]
) -> None:
    closed, slopes = derivatives[name]
    assert len(closed) == 5
    for slope, derivative in zip(slopes[:-1], closed[1:], strict=True):
        np.testing.assert_allclose(slope, derivative, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("r", [1e-12, 1e-6, 1e-2, 1.0])
def test_matern_derivatives_keep_their_digits_near_zero(r: float) -> None:
    """The printed forms of docs/mathematics.md section 1, which do not cancel."""
    s, t = np.sqrt(3 * r), np.sqrt(5 * r)
    expected = [(1 + s) * np.exp(-s), -1.5 * np.exp(-s), 2.25 * np.exp(-s) / s]
    np.testing.assert_allclose(Matern32().derivatives(jnp.asarray(r), 2), expected, rtol=1e-14)
    e = np.exp(-t)
    expected = [
        (1 + t + t**2 / 3) * e,
        -5 / 6 * (1 + t) * e,
        25 / 12 * e,
        -125 / 24 * e / t,
        625 / 48 * e * (1 + t) / t**3,
    ]
    np.testing.assert_allclose(Matern52().derivatives(jnp.asarray(r), 4), expected, rtol=1e-14)


def test_matern_derivatives_at_zero_are_the_documented_convention() -> None:
    zero = jnp.asarray(0.0)
    np.testing.assert_array_equal(Matern32().derivatives(zero, 3), [1.0, -1.5, 0.0, 0.0])
    np.testing.assert_allclose(
        Matern52().derivatives(zero, 4), [1.0, -5 / 6, 25 / 12, 0.0, 0.0], rtol=1e-15
    )
    first = jax.grad(lambda r: Matern52().derivatives(r, 0)[0])
    assert first(zero) == pytest.approx(-5 / 6)
    assert jax.grad(first)(zero) == pytest.approx(25 / 12)
    assert jax.grad(jax.grad(first))(zero) == 0


def test_rational_quadratic_tends_to_the_squared_exponential() -> None:
    r = jnp.linspace(0.0, 4.0, 7)
    rational, limit = (
        RationalQuadratic(1.0, 1e9).derivatives(r, 3),
        SquaredExponential().derivatives(r, 3),
    )
    np.testing.assert_allclose(rational, limit, rtol=1e-7)


def test_inverse_multiquadric_without_an_exponent_has_one_half() -> None:
    r = jnp.asarray([0.0, 1e-18, 0.3, 7.0, 1e12])
    np.testing.assert_allclose(
        InverseMultiquadric(2.0).derivatives(r, 4),
        InverseMultiquadric(2.0, 0.5).derivatives(r, 4),
        rtol=1e-13,
    )
    assert len(jax.tree.leaves(InverseMultiquadric(2.0))) == 1


def test_operators_build_compositions() -> None:
    a, b = SquaredExponential(), Matern52()
    assert isinstance(a + b, Sum)
    assert isinstance(a * b, Product)
    for factor, scaled in (
        (2.0, 2.0 * a),
        (2.0, a * 2.0),
        (2.0, np.float64(2.0) * a),
        (2.0, jnp.asarray(2.0) * a),
    ):
        assert isinstance(scaled, Scaled)
        assert float(scaled.amplitude) == factor


def test_parameters_keep_jax_arrays_and_become_float64_otherwise() -> None:
    traced = jnp.asarray(2.0, jnp.float32)
    assert SquaredExponential(traced).lengthscale is traced
    stored = SquaredExponential([1, 2]).lengthscale
    assert isinstance(stored, np.ndarray)
    assert stored.dtype == np.float64


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: SquaredExponential(0.0), "SquaredExponential.*lengthscale.*greater than 0"),
        (lambda: SquaredExponential([1.0, -1.0]), "lengthscale"),
        (lambda: SquaredExponential(np.nan), "finite"),
        (lambda: Matern32(-1.0), "Matern32.*lengthscale"),
        (lambda: Matern52(np.inf), "Matern52.*finite"),
        (lambda: Matern52(np.ones((2, 2))), "one value per coordinate"),
        (lambda: RationalQuadratic(1.0, 0.0), "alpha"),
        (lambda: RationalQuadratic(1.0, np.ones(2)), "alpha.*scalar"),
        (lambda: InverseMultiquadric(1.0, -0.5), "exponent"),
        (lambda: Polynomial(0), "degree"),
        (
            lambda: gram(SquaredExponential(), np.arange(3.0)),
            r"gram: expected `X` of shape \(n, d\)",
        ),
        (lambda: gram(SquaredExponential(), np.ones((3, 2)), np.ones((3, 1))), "of one dimension"),
        (lambda: Polynomial(2, offset=-1.0), "offset.*at least 0"),
        (lambda: Polynomial(2, scale=0.0), "scale"),
        (lambda: Polynomial(2, centre=np.nan), "centre"),
        (lambda: Scaled(0.0, SquaredExponential()), "amplitude"),
        (lambda: Weighted(SquaredExponential(), -1.0), "alpha"),
    ],
)
def test_bad_parameters_are_refused_at_construction(build: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build()


def test_a_factor_that_is_no_kernel_is_refused() -> None:
    with pytest.raises(TypeError, match="Sum"):
        Sum(SquaredExponential(), 1.0)


def test_lengthscales_of_another_dimension_are_refused() -> None:
    with pytest.raises(ValueError, match=r"lengthscale.*length d = 3"):
        gram(SquaredExponential([1.0, 2.0]), np.zeros((2, 3)))


def test_integer_points_are_numbers_and_nan_stays_nan() -> None:
    kernel = SquaredExponential(1.5)
    wanted = np.exp(-0.5 / 1.5**2)
    np.testing.assert_allclose(gram(kernel, np.array([[0], [1]]))[0, 1], wanted)
    assert np.isnan(gram(kernel, np.array([[np.nan], [0.0]]))[0]).all()


def test_construction_under_a_transformation_skips_the_range_check() -> None:
    values = jax.vmap(lambda ell: SquaredExponential(ell).evaluate(jnp.zeros(2), jnp.ones(2)))(
        jnp.asarray([1.0, 2.0])
    )
    np.testing.assert_allclose(values, np.exp([-1.0, -0.25]), rtol=1e-15)


def test_distances_survive_a_far_origin(rng: np.random.Generator) -> None:
    X = rng.normal(size=(5, 2))
    np.testing.assert_allclose(
        gram(Matern52(), X + 1e6), gram(Matern52(), (X + 1e6) - 1e6), atol=1e-9
    )


@pytest.mark.slow
def test_products_of_any_two_profiles_stay_closed(rng: np.random.Generator) -> None:
    @jax.jit
    def program(X: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        pairs = list(itertools.pairwise(PROFILES.values()))[1::3]
        return [(gram(one * other, X), gram(one, X) * gram(other, X)) for one, other in pairs]

    for product, factors in program(rng.normal(size=(4, 3))):
        np.testing.assert_allclose(product, factors, rtol=1e-12)
