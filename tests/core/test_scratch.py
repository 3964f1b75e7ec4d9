"""Large arrays lie in temporary files, and no number depends on it."""

import errno
import mmap
import os

import numpy as np
import pytest
import xarray

import mcmcpost as mp
from mcmcpost.core import arrays

pytestmark = pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no files can be reserved on this system")


@pytest.fixture
def small(monkeypatch):
    """Take every array for a large one, and blocks of a hundred entries."""
    monkeypatch.setattr(arrays, "SCRATCH", 8)
    monkeypatch.setattr(arrays, "LARGE", 100)
    monkeypatch.setattr(arrays, "ENTRIES", 100)


def in_file(array):
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return isinstance(array, memoryview | mmap.mmap)


def test_only_a_large_array_lies_in_a_file():
    edge = arrays.SCRATCH // 8
    large, ordinary = arrays.zeros((edge,)), arrays.zeros((edge - 1,))
    large[-1] = 1.0
    assert in_file(large)
    assert not in_file(ordinary)
    assert large.sum() == 1.0


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, bool])
def test_shape_and_kind_are_those_asked_for(dtype):
    array = arrays.zeros((3, 4, 5), dtype)
    assert in_file(array)
    assert array.shape == (3, 4, 5)
    assert array.dtype == dtype
    assert not array.any()


@pytest.mark.usefixtures("small")
def test_nothing_is_asked_of_the_disk_for_an_empty_array():
    assert arrays.zeros((0, 4)).shape == (0, 4)


@pytest.mark.usefixtures("small")
def test_no_file_is_left_behind(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)  # Python asks the environment once
    array = arrays.zeros((1_000,))
    assert in_file(array)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("small")
def test_without_room_the_array_is_in_memory(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    array = arrays.zeros((1_000,))
    assert not in_file(array)
    assert not array.any()


@pytest.mark.usefixtures("small")
def test_copies_are_the_callers_own(rng):
    array = rng.normal(size=(20, 3))
    index = np.array([3, 3, 19, 0])
    copy, rows = arrays.copy_of(array), arrays.rows_of(array, index)
    np.testing.assert_array_equal(copy, array)
    np.testing.assert_array_equal(rows, array[index])
    copy[:] = rows[:1]
    assert in_file(copy)
    assert in_file(rows)
    assert not np.shares_memory(copy, array)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("suffix", ["nc", "zarr"])
@pytest.mark.parametrize("shape", [(3, 211, 4), (1, 5, 300), (2, 60, 2)])
def test_a_tree_read_by_pieces_is_the_stored_one(tmp_path, rng, shape, suffix):
    stored = xarray.DataTree.from_dict(
        {
            "posterior": xarray.Dataset(
                {
                    "theta": (("chain", "draw", "i"), rng.normal(size=shape), {"units": "m"}),
                    "count": (("chain", "draw"), rng.integers(9, size=shape[:2])),
                    "label": ("i", [f"name {i}" for i in range(shape[2])]),
                },
                coords={"draw": np.arange(shape[1]) * 2},
                attrs={"seed": 3},
            )
        }
    )
    path = tmp_path / f"trace.{suffix}"
    if suffix == "nc":
        encoding = {"/posterior": {"theta": {"zlib": True, "chunksizes": (1, 5, 2)}}}
        stored.to_netcdf(path, engine="h5netcdf", encoding=encoding)
    else:
        stored.to_zarr(path, consolidated=False)
    tree = mp.load_tree(path)
    xarray.testing.assert_identical(tree, stored)
    assert in_file(tree["posterior/theta"].values)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["zv1", "cf"])
def test_estimates_do_not_depend_on_where_arrays_lie(monkeypatch, tmp_path, rng, method):
    draws = np.repeat(rng.normal(size=(2, 150, 2)), rng.integers(1, 4, size=150), axis=1)  # with repeats
    path = mp.save_tree(mp.from_arrays(draws, -draws), tmp_path / "trace.nc")
    plain = mp.expectation(mp.load_tree(path), method=method)
    with monkeypatch.context() as patch:
        patch.setattr(arrays, "SCRATCH", 8)
        scratch = mp.expectation(mp.load_tree(path), method=method)
    assert in_file(scratch.residuals)
    for one, other in zip(plain[1:9], scratch[1:9], strict=True):
        np.testing.assert_array_equal(one, other)
