"""Chains of several files as one trace, files left where they are, and Zarr folders that are not
finished."""

import shutil
import sys

import numpy as np
import pytest
import xarray

import mcmcpost as mp
from mcmcpost.trees import files


def job(
    rng: np.random.Generator, chains: int = 2, draws: int = 60, names: tuple[str, ...] = ("a", "b")
):
    x = rng.normal(size=(chains, draws, len(names)))
    return mp.from_arrays(x, -x, names=names, allow_bad_scores=True)


def test_chains_of_several_files_are_one_trace(tmp_path, rng):
    jobs = [job(rng), job(rng, chains=1), job(rng, chains=3)]
    paths = [
        mp.save_tree(tree, tmp_path / f"{i}.{suffix}")
        for i, (tree, suffix) in enumerate(zip(jobs, ("nc", "zarr", "nc"), strict=True))
    ]
    joined = mp.load_tree(*paths)
    draws = np.concatenate([tree["sample_stats"]["unconstrained_draw"].values for tree in jobs])
    np.testing.assert_array_equal(joined["sample_stats"]["unconstrained_draw"].values, draws)
    np.testing.assert_array_equal(joined["posterior"].coords["chain"], np.arange(6))
    assert joined["sample_stats"]["gradient"].coords["unconstrained_parameter"].values.tolist() == [
        "a",
        "b",
    ]


def test_what_jobs_have_in_common_is_kept(tmp_path, rng):
    """Attributes of the root, groups inside groups, and variables without chains that are the
    same."""
    paths = []
    for i in range(2):
        tree = job(rng)
        tree.attrs = {"model_file": "m.py", "num_warmup": 5, "seed": i}
        tree["posterior/labels"] = xarray.DataTree(xarray.Dataset({"q": ("k", [1, 2])}))
        of_rungs = {"same": ("k", [1.0, 2.0]), "swap_rate": ("k", rng.normal(size=2))}
        tree["sample_stats"] = tree["sample_stats"].to_dataset().assign(of_rungs)
        paths.append(mp.save_tree(tree, tmp_path / f"{i}.nc"))
    joined = mp.load_tree(*paths)
    assert joined.attrs == {"model_file": "m.py", "num_warmup": 5}
    assert joined["posterior/labels"]["q"].values.tolist() == [1, 2]
    assert joined["sample_stats"]["same"].values.tolist() == [1.0, 2.0]
    assert "swap_rate" not in joined["sample_stats"]


def other_reference(tree: xarray.DataTree, mean: float = 1.0) -> None:
    reference = {"reference_mean": ("reference_parameter", np.full(2, mean))}
    tree["sample_stats"] = tree["sample_stats"].to_dataset().assign(reference)


def other_variable(tree: xarray.DataTree) -> None:
    tree["posterior"]["more"] = tree["posterior"]["a"]


def other_group(tree: xarray.DataTree) -> None:
    tree["observed_data"] = xarray.DataTree(xarray.Dataset({"y": ("i", np.arange(3.0))}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_variable, r"the same variables of posterior.*\['more'\] in one only"),
        (other_group, "the groups of .* in "),
        (other_reference, r"the reference_mean of .*0\.nc in .*1\.nc, got another reference"),
    ],
)
def test_files_that_differ_are_refused(tmp_path, rng, change, words):
    one, other = job(rng), job(rng)
    if change is other_reference:
        other_reference(one, 0.0)
    change(other)
    paths = [mp.save_tree(tree, tmp_path / f"{i}.nc") for i, tree in enumerate((one, other))]
    with pytest.raises(mp.InputError, match=words):
        mp.load_tree(*paths)


def test_chains_of_other_runs_are_refused(tmp_path, rng):
    paths = [
        mp.save_tree(tree, tmp_path / f"{i}.nc")
        for i, tree in enumerate((job(rng), job(rng, names=("b", "a"))))
    ]
    with pytest.raises(mp.InputError, match="the labels of unconstrained_parameter"):
        mp.load_tree(*paths)


def test_halves_of_one_run_are_told_to_be_summed(tmp_path, rng):
    run = job(rng)
    halves = [
        mp.save_tree(run.isel(draw=half), tmp_path / f"{i}.nc")
        for i, half in enumerate((slice(30), slice(30, None)))
    ]
    words = r"0\.nc \(0 to 29\) in .*1\.nc, got 30 to 59.*mcmcpost moments .*0\.nc .*1\.nc -o sums"
    with pytest.raises(mp.InputError, match=words):
        mp.load_tree(*halves)


def test_other_data_are_refused(tmp_path, rng):
    paths = []
    for i in range(2):
        tree = job(rng)
        tree["observed_data"] = xarray.DataTree(xarray.Dataset({"y": ("i", rng.normal(size=3))}))
        paths.append(mp.save_tree(tree, tmp_path / f"{i}.nc"))
    with pytest.raises(
        mp.InputError, match=r"observed_data of .*0\.nc in .*1\.nc, got other values"
    ):
        mp.load_tree(*paths)


def numbered_anew(tree: xarray.DataTree) -> xarray.DataTree:
    """Return the tree without the labels of its draws, as of windows that are cut by hand."""
    return tree.map_over_datasets(lambda group: group.drop_vars("draw", errors="ignore"))


@pytest.mark.slow
def test_a_chain_given_twice_is_refused(tmp_path, rng):
    tree = job(rng)
    one = mp.save_tree(tree, tmp_path / "one.nc")
    with pytest.raises(mp.InputError, match=r"chain 0 of .*one\.nc in chain 0 of .*one\.nc"):
        mp.load_tree(one, one)
    swapped = mp.save_tree(tree.isel(chain=[1]), tmp_path / "part.nc")
    with pytest.raises(mp.InputError, match=r"chain 1 of .*one\.nc in chain 0 of .*part\.nc"):
        mp.load_tree(one, swapped)
    early, late = (
        mp.save_tree(numbered_anew(tree.isel(draw=slice(start, start + 48))), tmp_path / name)
        for start, name in ((0, "0.nc"), (12, "12.nc"))
    )
    with pytest.raises(mp.InputError, match=r"draws of chain 0 of .*0\.nc in chain 0 of .*12\.nc"):
        mp.load_tree(early, late)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["nc", "zarr"])
def test_large_variables_stay_in_their_files(tmp_path, rng, suffix, monkeypatch):
    monkeypatch.setattr(files, "LAZY", 1_000)
    monkeypatch.setattr("mcmcpost.core.arrays.LARGE", 100)
    monkeypatch.setattr("mcmcpost.core.arrays.ENTRIES", 100)
    jobs = [job(rng), job(rng)]
    paths = [mp.save_tree(tree, tmp_path / f"{i}.{suffix}") for i, tree in enumerate(jobs)]
    whole, lazy = mp.load_tree(*paths), mp.load_tree(*paths, lazy=True)
    scores = lazy["sample_stats"]["gradient"]
    assert scores.chunks is not None
    assert len(scores.chunks[0]) >= 2
    assert lazy["posterior"]["a"].chunks is None  # 960 bytes
    xarray.testing.assert_identical(lazy.compute(), whole)
    found, own = (
        mp.expectation(tree, method="zv1", allow_bad_scores=True) for tree in (whole, lazy)
    )
    np.testing.assert_allclose(own.mcse, found.mcse, rtol=1e-10)


def test_dask_is_asked_for_where_it_is_needed(tmp_path, rng, monkeypatch):
    path = mp.save_tree(job(rng), tmp_path / "trace.nc")
    monkeypatch.setitem(sys.modules, "dask", None)
    assert mp.load_tree(path).children
    with pytest.raises(mp.MissingPackageError, match=r"mcmcpost\[dask\]"):
        mp.load_tree(path, lazy=True)


def test_a_zarr_folder_that_is_not_written_to_its_end_is_refused(tmp_path, rng):
    tree = job(rng)
    path = tmp_path / "trace.zarr"
    encoding = {
        "/sample_stats": {
            "unconstrained_draw": {"chunks": (1, 20, 2)},
            "gradient": {"chunks": (1, 20, 2)},
        }
    }
    tree.to_zarr(path, consolidated=False, encoding=encoding)
    assert mp.load_tree(path)["posterior"].sizes["draw"] == 60
    chunks = path / "sample_stats" / "gradient" / "c"
    shutil.rmtree(chunks / "1" / "2")
    with pytest.raises(
        mp.InputError, match=r"5 of 6 chunks of sample_stats/gradient.*still being written"
    ):
        mp.load_tree(path)


@pytest.mark.parametrize(
    "name",
    [
        "posterior/a",
        "posterior/zeros",
        "posterior/never",
        "posterior/words",
        "sample_stats/gradient",
    ],
)
def test_a_chunk_that_is_lost_is_never_read_as_zeros(tmp_path, rng, name):
    tree = job(rng)
    tree["posterior"] = (
        tree["posterior"]
        .to_dataset()
        .assign(
            zeros=(("chain", "draw"), np.zeros((2, 60), int)),
            never=(("chain", "draw"), np.zeros((2, 60), bool)),
            words=("word", np.array(["", "a"])),
        )
    )
    path = mp.save_tree(tree, tmp_path / "trace.zarr")
    assert mp.load_tree(path).identical(tree)
    shutil.rmtree(path / name / "c")
    with pytest.raises(mp.InputError, match=f"got 0 of 1 chunks of {name}.*copied whole"):
        mp.load_tree(path)


@pytest.mark.filterwarnings("ignore:Object at")  # Zarr's own words, of which the error is the cure
@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ("sample_stats/zarr.json", "sample_stats without zarr.json"),
        ("posterior/zarr.json", "posterior without zarr.json"),
        ("sample_stats/gradient/zarr.json", "sample_stats/gradient without zarr.json"),
        ("sample_stats/gradient/c/0/0/0", "0 of 1 chunks of sample_stats/gradient"),
    ],
)
def test_a_zarr_folder_that_was_not_copied_whole_is_refused(tmp_path, rng, lost, words):
    path = mp.save_tree(job(rng), tmp_path / "trace.zarr")
    (path / ".DS_Store").mkdir()  # of another program
    assert mp.load_tree(path).children
    (path / lost).unlink()
    with pytest.raises(mp.InputError, match=f"trace.zarr, got {words}.*not copied whole"):
        mp.load_tree(path)


def test_variables_of_a_zarr_folder_with_different_numbers_of_draws_are_refused(tmp_path, rng):
    path = mp.save_tree(job(rng), tmp_path / "trace.zarr")
    shutil.rmtree(path / "sample_stats" / "gradient")
    longer = (
        job(rng, draws=80)["sample_stats"].to_dataset()[["gradient"]].drop_vars(["chain", "draw"])
    )
    longer.to_zarr(path, group="sample_stats", mode="a", consolidated=False)
    with pytest.raises(mp.InputError, match="draw"):
        mp.load_tree(path)


def test_scores_of_a_flat_density_are_whole(tmp_path, rng):
    tree = job(rng)
    tree["sample_stats"]["gradient"] = 0 * tree["sample_stats"]["gradient"]
    path = mp.save_tree(tree, tmp_path / "trace.zarr")
    assert not mp.load_tree(path)["sample_stats"]["gradient"].values.any()
