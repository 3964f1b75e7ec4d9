"""Trees on disk: exact round trips, nothing overwritten, and clear words for what is not a
trace."""

import json
import subprocess
import sys

import numpy as np
import pytest
import xarray

import mcmcpost as mp
from mcmcpost.control import Estimate
from mcmcpost.core.errors import Status
from mcmcpost.trees import from_arrays, integrand_values, load_tree, read_trace, save_tree

SUFFIXES = (".nc", ".zarr")


@pytest.fixture
def tree(rng):
    draws = rng.normal(size=(2, 50, 3))
    return from_arrays(
        draws, -draws, np.exp(draws), names=("zeta", "b[0]", "b[1]"), value_names=("z", "y", "a")
    )


@pytest.fixture
def estimate(rng):
    p = 3
    names = (
        "mean",
        "mcse",
        "gain",
        "variance_ratio",
        "sd",
        "mean_plain",
        "mcse_plain",
        "mean_crossfit",
    )
    numbers = {name: rng.normal(size=p) for name in names}
    numbers["gain"][1] = np.nan
    return Estimate(
        names=("z", "y", "a"),
        **numbers,
        status=(Status.CONTROLLED, Status.UNDEFINED, Status.EXACT),
        method=("ZeroVariance(degree=2)", "plain", "plain"),
        residuals=rng.normal(size=(2, 50, p)),
        covariance=rng.normal(size=(p, p)),
        info={
            "degree": 2,
            "nugget": 1e-8,
            "kernel": "Matern52",
            "condition": np.inf,
            "folds": [1, np.int64(2)],
        },
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_round_trip_is_exact(tree, tmp_path, suffix):
    before = tree.copy(deep=True)
    path = save_tree(tree, tmp_path / f"trace{suffix}")
    back = load_tree(str(path))
    assert tree.identical(before)
    assert back.identical(tree)
    assert [path.name] == [file.name for file in tmp_path.iterdir()]
    assert (read_trace(back).source, read_trace(tree).source) == (str(path), "")
    for one, other in zip(read_trace(back)[:-1], read_trace(tree)[:-1], strict=True):
        np.testing.assert_array_equal(one, other)
    # Neither format keeps the order of variables, which is the order of every table.
    assert integrand_values(back).names == ("z", "y", "a")
    assert list(back.children) == list(tree.children)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_loaded_tree_no_longer_needs_its_file(tree, tmp_path, suffix):
    path = save_tree(tree, tmp_path / f"trace{suffix}")
    back = load_tree(path)
    path.rename(tmp_path / "elsewhere")
    assert back.identical(tree)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_nothing_is_overwritten(tree, tmp_path, suffix):
    path = save_tree(tree, tmp_path / f"trace{suffix}")
    with pytest.raises(FileExistsError, match="Nothing is overwritten"):
        save_tree(xarray.DataTree(), path)
    assert load_tree(path).identical(tree)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_there_is_overwritten_where_that_is_allowed(tree, tmp_path, suffix):
    path = save_tree(tree, tmp_path / f"trace{suffix}")
    other = tree.isel(draw=slice(2))
    link = tmp_path / f"link{suffix}"
    link.symlink_to(path)
    assert load_tree(save_tree(other, link, overwrite=True)).identical(other)
    assert link.is_symlink()
    assert load_tree(path).identical(other)
    assert sorted(tmp_path.iterdir()) == sorted([path, link])
    # A folder of something else, with such a name.
    (tmp_path / "new").mkdir()
    work = tmp_path / "new" / f"trace{suffix}"
    work.mkdir()
    (work / "thesis.txt").touch()
    with pytest.raises(FileExistsError, match=r"(file|folder) to overwrite, got .*new"):
        save_tree(tree, work, overwrite=True)
    assert (work / "thesis.txt").is_file()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_failed_write_leaves_nothing(tree, tmp_path, suffix, monkeypatch):
    def half(_, target, **__):
        (target.write_bytes if suffix == ".zarr" else target.write)(b"half")
        raise TypeError("a kind that no file has")

    for writer in ("to_netcdf", "to_zarr"):
        monkeypatch.setattr(xarray.DataTree, writer, half)
    with pytest.raises(TypeError, match="got a kind that no file has"):
        save_tree(tree, tmp_path / f"trace{suffix}")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_error_that_names_the_file(tree, tmp_path):
    # In another process: HDF5 crashed when the program ended, and the limit is of a process.
    mp.save_tree(tree, tmp_path / "whole.nc")
    places = [tmp_path / name / f"trace{name[1:]}" for name in ("0.nc", "1.nc", "2.zarr")]
    for place in places:
        place.parent.mkdir()
    program = """
import resource, sys
import xarray
import mcmcpost as mp
trees = [xarray.open_datatree(sys.argv[1], chunks=chunks) for chunks in (None, {}, None)]
resource.setrlimit(resource.RLIMIT_FSIZE, (800, 800))
for tree, place in zip(trees, sys.argv[2:], strict=True):
    try:
        mp.save_tree(tree, place)
    except OSError as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "whole.nc", *places],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"[Errno 27] File too large: '{each}'" for each in places]
    assert [list(place.parent.iterdir()) for place in places] == [[], [], []]


def test_suffixes_and_folders(tree, tmp_path):
    with pytest.raises(ValueError, match=r"\.nc or \.zarr"):
        save_tree(tree, tmp_path / "trace.csv")
    with pytest.raises(FileNotFoundError, match="existing folder"):
        save_tree(tree, tmp_path / "none" / "trace.nc")
    with pytest.raises(FileNotFoundError, match="existing file"):
        load_tree(tmp_path / "none.nc")


@pytest.mark.parametrize("content", ["foreign", "truncated", "empty", "head"])
def test_a_file_that_is_no_trace(tree, tmp_path, content):
    path = tmp_path / "trace.nc"
    whole = save_tree(tree, tmp_path / "whole.nc").read_bytes()
    cut = {
        "foreign": b"a,b\n1,2\n",
        "truncated": whole[: len(whole) // 2],
        "empty": b"",
        "head": whole[:100],
    }
    path.write_bytes(cut[content])
    with pytest.raises(ValueError, match=r"netCDF-4 tree at .*trace\.nc.*save_tree"):
        load_tree(path)


def test_a_folder_that_is_no_trace(tmp_path):
    (tmp_path / "trace.zarr").mkdir()
    with pytest.raises(ValueError, match=r"trace\.zarr"):
        load_tree(tmp_path / "trace.zarr")


def test_a_file_without_groups(tmp_path):
    xarray.Dataset({"a": ("x", [1.0])}).to_netcdf(tmp_path / "flat.nc", engine="h5netcdf")
    with pytest.raises(ValueError, match="a tree with groups"):
        load_tree(tmp_path / "flat.nc")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_estimates_round_trip(tree, estimate, tmp_path, suffix):
    before = tree.copy(deep=True)
    result = estimate.to_datatree(tree)
    assert tree.identical(before)
    back = load_tree(save_tree(result, tmp_path / f"out{suffix}"))
    assert back.identical(result)
    group = back["control_variates"]
    np.testing.assert_array_equal(
        group["residual"].transpose("chain", "draw", "quantity"), estimate.residuals
    )
    np.testing.assert_array_equal(group["covariance"], estimate.covariance)
    np.testing.assert_array_equal(group["gain"], estimate.gain)
    assert list(group["status"].values) == ["controlled", "undefined", "exact"]
    assert list(group["quantity"].values) == ["z", "y", "a"]
    assert group.attrs["method"] == "ZeroVariance(degree=2), plain"
    assert (group.attrs["kernel"], group.attrs["nugget"]) == ("Matern52", 1e-8)
    assert json.loads(group.attrs["info"]) | {"condition": None} == {
        "degree": 2,
        "nugget": 1e-8,
        "kernel": "Matern52",
        "condition": None,
        "folds": [1, 2],
    }
    assert read_trace(back).names == read_trace(tree).names


def test_estimates_without_a_tree(estimate):
    result = estimate.to_datatree()
    assert list(result.children) == ["control_variates"]
    assert dict(result["control_variates"].sizes) == {
        "chain": 2,
        "draw": 50,
        "quantity": 3,
        "quantity_bis": 3,
    }


def test_estimates_replace_the_older_ones(tree, estimate):
    first = estimate.to_datatree(tree)
    second = estimate._replace(mean=estimate.mean + 1).to_datatree(first)
    np.testing.assert_array_equal(first["control_variates"]["mean_cv"], estimate.mean)
    np.testing.assert_array_equal(second["control_variates"]["mean_cv"], estimate.mean + 1)


@pytest.mark.parametrize("suffix", [".NC", ".Zarr"])
def test_a_suffix_may_be_in_capitals(tree, tmp_path, suffix):
    assert load_tree(save_tree(tree, tmp_path / f"trace{suffix}")).identical(tree)
    (tmp_path / "TRACE.CSV").write_text("chain,draw,a\n0,0,1.5\n0,1,2.5\n")
    np.testing.assert_array_equal(load_tree(tmp_path / "TRACE.CSV")["posterior/a"], [[1.5, 2.5]])


@pytest.mark.parametrize("order", ["[1, 2]", "no JSON", '{"groups": 3}'])
def test_an_order_that_is_none_is_refused(tree, tmp_path, order):
    tree.attrs["mcmcpost_order"] = order
    tree.to_netcdf(tmp_path / "trace.nc", engine="h5netcdf")
    with pytest.raises(ValueError, match="expected a netCDF-4 tree at"):
        load_tree(tmp_path / "trace.nc")


def test_an_estimate_of_another_trace_is_refused(tree, estimate):
    with pytest.raises(ValueError, match=r"a tree of \(2, 50\) chains and draws, got \(2, 49\)"):
        estimate.to_datatree(tree.isel(draw=slice(49)))
    others = tree.copy(deep=True)
    others["posterior"] = others["posterior"].to_dataset().map(lambda variable: variable + 1.0)
    for found in (
        mp.expectation(tree, method="plain"),
        mp.standard_deviation(tree, method="plain"),
        mp.quantile(tree, [0.1], method="plain"),
    ):
        with pytest.raises(ValueError, match="the trace of the estimate, got other draws of z"):
            found.to_datatree(others)
        more = tree.copy()
        more["posterior"] = more["posterior"].to_dataset()[["a", "z"]].assign(b=more["posterior"].y)
        found.to_datatree(more)


def test_attributes_that_are_true_or_false_are_kept(tree, tmp_path):
    """As one and zero in netCDF, which has no such attributes; the tree that is written stays as it
    is."""
    new = tree.copy()
    new.attrs["tuned"] = True
    new["posterior"].attrs["flags"] = [True, False]
    for suffix in (".nc", ".zarr"):
        found = load_tree(save_tree(new, tmp_path / f"x{suffix}"))
        assert found.attrs["tuned"] == 1
        assert np.asarray(found["posterior"].attrs["flags"]).tolist() == [1, 0]
    assert new.attrs["tuned"] is True
