"""Polynomial Stein features against autodiff, exact integrals, and their enumeration."""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mcmcpost.stein import (
    num_polynomial_features,
    operators,
    polynomial_exponents,
    polynomial_features,
)


@functools.cache
def slow_features(d: int, degree: int) -> Callable[[np.ndarray, np.ndarray], jax.Array]:
    """Return Δφ + ∇φ·t of every monomial, by autodiff on one draw at a time."""
    exponents = polynomial_exponents(d, degree)

    def phi(z: jax.Array) -> jax.Array:
        powers = [[z[i] ** int(a) for i, a in enumerate(row) if a] for row in exponents]
        return jnp.stack([math.prod(p, start=jnp.ones_like(z[0])) for p in powers])

    def image(z: jax.Array, t: jax.Array) -> jax.Array:
        return jnp.trace(jax.hessian(phi)(z), axis1=1, axis2=2) + jax.jacfwd(phi)(z) @ t

    return jax.jit(jax.vmap(image))


@pytest.mark.slow
@pytest.mark.parametrize(("d", "degree"), [(1, 10), (2, 5), (3, 3), (5, 2), (4, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_features_are_the_langevin_operator_of_monomials(
    d: int, degree: int, dtype: type, rng: np.random.Generator
) -> None:
    Z, T = rng.normal(size=(6, d)).astype(dtype), rng.normal(size=(6, d)).astype(dtype)
    Z[0] = 0
    E = polynomial_exponents(d, degree)
    with jax.numpy_dtype_promotion("strict"):
        fast = polynomial_features(Z, T, E)
    assert fast.dtype == dtype
    slow = np.asarray(slow_features(d, degree)(Z.astype(float), T.astype(float)))
    np.testing.assert_allclose(
        fast, slow, rtol=0, atol=20 * np.finfo(dtype).eps * np.abs(slow).max()
    )


def test_features_integrate_to_zero_under_a_correlated_gaussian() -> None:
    mean, factor = np.array([0.3, -0.2]), np.array([[0.8, 0.0], [0.3, 0.5]])
    nodes, weights = np.polynomial.hermite_e.hermegauss(12)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2)
    w = np.outer(weights, weights).reshape(-1) / (2 * np.pi)
    Z = mean + grid @ factor.T
    T = -np.linalg.solve(factor @ factor.T, (Z - mean).T).T
    F = np.asarray(polynomial_features(Z, T, polynomial_exponents(2, 6)))
    np.testing.assert_allclose(w @ F, 0, atol=1e-12 * float((w @ np.abs(F)).max()))
    wrong = np.asarray(polynomial_features(Z, -T, polynomial_exponents(2, 6)))
    assert np.abs(w @ wrong).max() > 0.1


@pytest.mark.parametrize(("d", "degree"), [(1, 7), (3, 3), (6, 2)])
def test_exponents_are_all_monomials_in_graded_lexicographic_order(d: int, degree: int) -> None:
    E = polynomial_exponents(d, degree)
    assert len(E) == num_polynomial_features(d, degree) == len({tuple(e) for e in E})
    ordered = sorted(map(tuple, E), key=lambda e: (sum(e), tuple(-a for a in e)))
    assert list(map(tuple, E)) == ordered
    assert set(E.sum(1)) == set(range(1, degree + 1))


def test_interactions_are_limited() -> None:
    full, pairs = polynomial_exponents(4, 4), polynomial_exponents(4, 4, max_interaction=2)
    assert list(map(tuple, pairs)) == [tuple(e) for e in full if (e > 0).sum() <= 2]
    assert len(polynomial_exponents(4, 3, max_interaction=1)) == 12


def test_rows_are_filled_by_blocks_that_need_not_divide(
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    Z = rng.normal(size=(23, 3))
    E = polynomial_exponents(3, 3)
    whole = np.asarray(polynomial_features(Z, -Z, E))
    monkeypatch.setattr(operators, "_BLOCK_ENTRIES", 5 * len(E))
    operators._features.clear_cache()
    np.testing.assert_array_equal(polynomial_features(Z, -Z, E), whole)
    operators._features.clear_cache()


@pytest.mark.slow
def test_features_map_jit_and_differentiate(rng: np.random.Generator) -> None:
    Z, E = rng.normal(size=(2, 5, 3)), polynomial_exponents(3, 3)
    features = lambda z: polynomial_features(z, -z, E)  # noqa: E731
    eager = np.stack([features(z) for z in Z])
    np.testing.assert_allclose(jax.jit(jax.vmap(features))(Z), eager, rtol=1e-13, atol=1e-13)
    _, tangent = jax.jvp(features, (jnp.asarray(Z[0]),), (jnp.ones((5, 3)),))
    h = 1e-6
    numeric = (np.asarray(features(Z[0] + h)) - np.asarray(features(Z[0] - h))) / (2 * h)
    np.testing.assert_allclose(tangent, numeric, rtol=1e-6, atol=1e-6)


def test_many_features_use_no_memory_beyond_blocks() -> None:
    """1,770 features of 2,000 draws in 20 dimensions: an (n, q, d) array would be 566 MB."""
    E = polynomial_exponents(20, 3)
    variables, powers = np.zeros((3, len(E)), int), np.ones((3, len(E)), int)
    lowered = operators._features.lower(
        np.zeros((2000, 20)), np.zeros((2000, 20)), variables, powers, 3
    )
    assert lowered.compile().memory_analysis().temp_size_in_bytes < 40e6


@pytest.mark.parametrize(
    ("exponents", "words"),
    [
        (np.ones((2, 4), int), r"shape \(q ≥ 1, 3\)"),
        (np.ones((0, 3), int), "q ≥ 1"),
        (np.array([[1, -1, 0]]), "minimum -1"),
    ],
)
def test_exponents_of_another_shape_are_refused(exponents: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        polynomial_features(np.zeros((2, 3)), np.zeros((2, 3)), exponents)


@pytest.mark.parametrize(("d", "degree", "limit"), [(0, 1, None), (2, 0, None), (2, 2, 0)])
def test_empty_enumerations_are_refused(d: int, degree: int, limit: int | None) -> None:
    with pytest.raises(ValueError, match=r"polynomial_exponents.*at least 1"):
        polynomial_exponents(d, degree, max_interaction=limit)
