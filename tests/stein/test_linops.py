"""Tile operators against their dense twins, and the partial pivoted Cholesky."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mcmcpost.stein.products import TileOperator, pivoted_cholesky


class GaussianTile(eqx.Module):
    """exp(−(x − y)²/ν), with one leaf and a nested pytree of rows."""

    width: jax.Array

    def __call__(self, rows: dict[str, jax.Array], columns: dict[str, jax.Array]) -> jax.Array:
        width = jnp.asarray(self.width, rows["x"].dtype)
        return jnp.exp(-((rows["x"][:, None] - columns["x"][None, :]) ** 2) / width)


def make(
    n: int, rng: np.random.Generator, dtype: type, block: int
) -> tuple[TileOperator, np.ndarray]:
    """An operator whose diagonal differs from its tile's, so that losing it shows."""
    x = rng.normal(size=n).astype(dtype)
    diagonal = (1.5 + rng.uniform(size=n)).astype(dtype)
    dense = np.exp(-((x[:, None] - x[None]) ** 2) / dtype(2.0))
    np.fill_diagonal(dense, diagonal)
    return TileOperator(GaussianTile(jnp.asarray(2.0)), {"x": x}, diagonal, block=block), dense


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "block", "dtype"),
    [
        *((n, block, np.float64) for n, block in ((1, 4), (7, 3), (8, 4), (21, 5), (21, 512))),
        (7, 3, np.float32),
    ],
)
def test_products_columns_and_diagonal_are_the_dense_ones(
    n: int, block: int, dtype: type, rng: np.random.Generator
) -> None:
    operator, dense = make(n, rng, dtype, block)
    V = rng.normal(size=(n, 3)).astype(dtype)
    tolerance = {"rtol": 0, "atol": 20 * n * np.finfo(dtype).eps}
    product = operator.matmul(V)
    assert product.dtype == operator.dtype == dtype
    assert operator.shape == (n, n)
    np.testing.assert_allclose(product, dense @ V, **tolerance)
    np.testing.assert_allclose(operator.dense(), dense, **tolerance)
    np.testing.assert_array_equal(operator.diagonal(), np.diag(dense))
    index = np.array([n - 1, 0])
    np.testing.assert_allclose(operator.columns(index), dense[:, index], **tolerance)


@pytest.mark.parametrize("o", [1, 6, 11])
def test_cross_products_are_the_dense_ones(o: int, rng: np.random.Generator) -> None:
    operator, _ = make(17, rng, np.float64, 5)
    other, V = rng.normal(size=o), rng.normal(size=(17, 2))
    dense = np.exp(-((other[:, None] - operator.rows["x"][None]) ** 2) / 2)
    np.testing.assert_allclose(
        operator.cross_matmul({"x": other}, V), dense @ V, rtol=1e-12, atol=1e-13
    )


@pytest.mark.slow
def test_products_differentiate_and_map(rng: np.random.Generator) -> None:
    operator, _ = make(9, rng, np.float64, 4)
    V, W = rng.normal(size=(2, 9, 2)), rng.normal(size=(9, 2))

    def objective(width: jax.Array, V: jax.Array) -> jax.Array:
        moved = TileOperator(GaussianTile(width), operator.rows, operator.exact_diagonal, block=4)
        return jnp.sum(W * moved.matmul(V))

    def dense(width: jax.Array, V: jax.Array) -> jax.Array:
        x = jnp.asarray(operator.rows["x"])
        K = jnp.exp(-((x[:, None] - x[None]) ** 2) / width)
        return jnp.sum(
            W
            * (
                jnp.where(jnp.eye(9, dtype=bool), jnp.asarray(operator.exact_diagonal)[:, None], K)
                @ V
            )
        )

    found, expected = (
        jax.jit(jax.grad(function, (0, 1)))(2.0, V[0]) for function in (objective, dense)
    )
    for slope, twin in zip(found, expected, strict=True):
        np.testing.assert_allclose(slope, twin, rtol=1e-11)
    mapped = jax.vmap(operator.matmul)(V)
    np.testing.assert_allclose(mapped, np.stack([operator.matmul(v) for v in V]), rtol=1e-13)


def test_equal_operators_share_one_compilation(rng: np.random.Generator) -> None:
    traces = 0

    class Counting(eqx.Module):
        scale: jax.Array

        def __call__(self, rows: jax.Array, columns: jax.Array) -> jax.Array:
            nonlocal traces
            traces += 1
            return self.scale * rows[:, None] * columns[None, :]

    for scale in (1.0, 2.0, 3.0):
        x = rng.normal(size=6)
        TileOperator(Counting(jnp.asarray(scale)), x, scale * x**2).matmul(x[:, None])
        if scale == 1.0:
            first = traces
    assert traces == first


def test_product_memory_is_that_of_a_tile() -> None:
    """The largest array of a compiled product at n = 4096 is a tile, not the matrix."""
    n, block = 4096, 256
    tile = GaussianTile(jnp.asarray(2.0))

    def product(x: jax.Array, V: jax.Array) -> jax.Array:
        return TileOperator(tile, {"x": x}, jnp.ones_like(x), block=block).matmul(V)

    stats = jax.jit(product).lower(np.zeros(n), np.zeros((n, 1))).compile().memory_analysis()
    assert stats.temp_size_in_bytes < 8 * (6 * block**2 + 20 * n)


@pytest.mark.parametrize("lengths", [(3, 4), (0, 0)])
def test_rows_of_another_length_are_refused(lengths: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match=r"TileOperator.*one positive length"):
        TileOperator(
            GaussianTile(jnp.asarray(1.0)), {"x": np.zeros(lengths[0])}, np.ones(lengths[1])
        )


class FeatureTile(eqx.Module):
    def __call__(self, rows: jax.Array, columns: jax.Array) -> jax.Array:
        return jnp.matmul(rows, columns.T)


def feature_operator(F: np.ndarray) -> TileOperator:
    return TileOperator(FeatureTile(), F, np.sum(F**2, 1), block=8)


def test_pivoted_cholesky_reproduces_a_matrix_of_low_rank(rng: np.random.Generator) -> None:
    """And stops there: columns beyond the rank are zero, not noise or NaN."""
    F = rng.normal(size=(20, 4))
    L = np.asarray(pivoted_cholesky(feature_operator(F), 9))
    assert L.shape == (20, 9)
    np.testing.assert_allclose(L @ L.T, F @ F.T, atol=1e-12)
    assert np.abs(L[:, 4:]).max() < 1e-6


def test_pivoted_cholesky_is_monotone_and_positive(rng: np.random.Generator) -> None:
    F = rng.normal(size=(15, 15)) * 2.0 ** -np.arange(15)
    K, operator = F @ F.T, feature_operator(F)
    full = np.asarray(pivoted_cholesky(operator, 15))
    traces = [np.trace(K - full[:, :k] @ full[:, :k].T) for k in range(16)]
    assert (np.diff(traces) <= 1e-12).all()
    np.testing.assert_allclose(full @ full.T, K, atol=1e-12 * np.trace(K))
    assert np.linalg.eigvalsh(K - full[:, :5] @ full[:, :5].T).min() > -1e-12 * np.trace(K)
    np.testing.assert_allclose(pivoted_cholesky(operator, 5), full[:, :5], atol=1e-13)


def test_pivoted_cholesky_of_a_shifted_matrix(rng: np.random.Generator) -> None:
    F = rng.normal(size=(8, 2))
    L = np.asarray(pivoted_cholesky(feature_operator(F), 8, shift=0.3))
    np.testing.assert_allclose(L @ L.T, F @ F.T + 0.3 * np.eye(8), atol=1e-12)


def test_pivoted_cholesky_of_zero_and_of_too_large_a_rank(rng: np.random.Generator) -> None:
    assert not np.asarray(pivoted_cholesky(feature_operator(np.zeros((5, 2))), 3)).any()
    F = rng.normal(size=(3, 3))
    L = np.asarray(pivoted_cholesky(feature_operator(F), 6))
    np.testing.assert_allclose(L @ L.T, F @ F.T, atol=1e-12)
