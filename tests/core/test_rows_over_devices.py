"""A function of one row at many rows: any size of block, any tree, one program, 64 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mcmcpost.core.devices import map_rows


def of_row(row):
    return {"sum": row["x"].sum() + row["n"], "square": row["x"] ** 2}


@pytest.mark.parametrize("full_blocks", [False, True])
@pytest.mark.parametrize("batch_size", [1, 4, 11, 64])
def test_every_row_gets_its_value(rng, batch_size, full_blocks):
    rows = {"x": rng.normal(size=(11, 3)), "n": np.arange(11)}
    found = map_rows(of_row, rows, batch_size=batch_size, full_blocks=full_blocks)
    np.testing.assert_allclose(found["sum"], rows["x"].sum(1) + rows["n"], rtol=1e-14)
    np.testing.assert_allclose(found["square"], rows["x"] ** 2, rtol=1e-14)


@pytest.mark.parametrize("x64", [False, True])
def test_work_is_in_64_bits_and_results_are_numpy_arrays(x64):
    with jax.enable_x64(x64):
        found = map_rows(lambda x: (x / 3, x > 1), np.array([1.0, 2.0]))
    assert [type(leaf) for leaf in found] == [np.ndarray, np.ndarray]
    assert (found[0].dtype, found[1].dtype) == (np.float64, bool)
    np.testing.assert_array_equal(found[0], np.array([1.0, 2.0]) / 3)


@pytest.mark.slow
def test_rows_may_be_keys(key):
    keys = jax.random.split(key, 5)
    found = map_rows(lambda one: jax.random.normal(one, (2,)), keys, batch_size=2)
    np.testing.assert_array_equal(found, jax.vmap(lambda one: jax.random.normal(one, (2,)))(keys))


def test_full_blocks_of_any_number_of_rows_share_one_program():
    traced = []

    def square(x):
        traced.append(None)
        return x**2

    for size in (3, 8, 20):
        np.testing.assert_array_equal(
            map_rows(square, jnp.arange(size), batch_size=8, full_blocks=True), np.arange(size) ** 2
        )
    assert len(traced) == 1
