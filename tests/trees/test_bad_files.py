"""Files that are not what they should be: every one is refused in a message of ours, none is read
wrongly."""

import json
import os
from functools import partial
from pathlib import Path

import h5netcdf
import h5py
import numpy as np
import pandas
import pytest
import xarray

import mcmcpost as mp

DATA = Path(__file__).parents[1] / "data"
DIAGNOSTICS = sorted(DATA.glob("cmdstan_diagnostic*"))

OK = "chain,draw,a,gradient_a\n0,0,1,-1\n0,1,2,-2\n1,0,3,-3\n1,1,-1,1\n"

TABLES = [
    # label, text of the table, words of the message
    ("empty", "", "a table with a header.*got an empty file"),
    ("white", " \n\n", "a table with a header.*got no line"),
    ("header only", "chain,draw,a\n", "no row"),
    ("longer row", "a,b\n1,2\n1,2,3,4\n", "a table with a header"),
    ("every row longer", "a,b\n1,2,3\n4,5,6\n", "as many values as columns"),
    ("every row longer by a comma", "a,b\n1,2,\n4,5,\n", "as many values as columns"),
    ("one row, longer", "a,b\n1,2,3\n", "as many values as columns"),
    ("one row, longer by a comma", "a,b\n1,2,\n", "as many values as columns"),
    ("no header", "1,2\n3,4\n5,6\n", "names in the first line"),
    ("no header, numbers with points", "0.5,-0.5\n0.1,-0.1\n", "names in the first line"),
    ("words", "a,b\nx,y\n", "other values in a, b"),
    ("one word", "a\n1\nNaN?\n", "other values in a"),
    ("decimal commas", 'a\n"1,5"\n"2,5"\n', "other values in a"),
    ("bars", "a|b\n1|2\n3|4\n", "other values in a"),
    ("both signs", "a;gradient_a\n1,234;-0.5\n", "other values in gradient_a"),
    ("thousands", "a;gradient_a\n1.234,5;-1\n", "other values in a"),
    ("commas for all", "a,gradient_a\n1,5,-1,5\n2,5,-2,5\n", "separate by semicolons"),
    ("complex", "a\n1+2j\n3+4j\n", "other values in a"),
    ("dates", "a\n2020-01-01\n2020-01-02\n", "other values in a"),
    ("json", '{"a": [1, 2]}\n', "rows of numbers|no row"),
    ("html", "<html>\n<b>1</b>\n", "other values"),
    ("open quote", 'a,b\n"1,2\n3,4\n', "a table with a header|other values"),
    ("no header", "0,0,1.5\n0,1,2.5\n", "names in the first line"),
    (
        "cut in its last line",
        OK + "1,2,0.5\n",
        "got 3. The file was cut off",
    ),
    ("a column twice", "a,a\n1,2\n3,4\n", "every column once"),
    ("a gradient twice", "a,gradient_a,gradient_a\n1,-1,1\n2,-2,2\n", "every column once"),
    ("no name", "a,\n1,2\n3,4\n", "a name for every column"),
    ("name with a slash", "a/b\n1\n2\n", "names without '/'"),
    ("only places", "chain,draw\n0,0\n0,1\n", "a column of draws"),
    ("only gradients", "gradient_a\n1\n2\n", "none for a"),
    ("gradient of another", "a,gradient_b\n1,2\n3,4\n", "none for b"),
    ("gradient without name", "a,gradient_\n1,2\n3,4\n", "a column of draws"),
    ("part of an array", "t[0],t[1],gradient_t[0]\n1,2,3\n4,5,6\n", "gradient_t\\[1\\]"),
    ("part of Stan's array", "t.1,t.2,gradient_t.2\n1,2,3\n4,5,6\n", "gradient_t\\.1"),
    ("a draw twice", OK + "1,1,0,0\n", "got chain 1 draw 1 twice. Number the draws of each"),
    ("chains without their numbers", "draw,a\n0,1\n1,2\n0,3\n1,4\n", "add a column `chain`"),
    ("chains that are words", OK.replace("\n1,", "\nb,"), "other values in chain"),
    ("chains that are no integers", OK.replace("\n1,", "\n0.5,"), "whole numbers in `chain`"),
    ("a chain that is missing", OK.replace("\n1,0", "\n,0"), "whole numbers in `chain`"),
    ("chains under a capital", OK.replace("chain", "Chain") + "1,1,0,0\n", "got Chain 1 draw 1"),
    ("an element under two names", "t[1],t.1\n1,2\n3,4\n", "each element of t once"),
    (
        "infinite draws",
        OK.replace("3,-3", "inf,-3"),
        r"Trace of .*draws\.csv: .* infinity in a, the",
    ),
    ("draws beyond range", OK.replace("3,-3", "1e400,-3"), "finite draws"),
    ("draws too large to square", OK.replace("3,-3", "1e200,-3"), "1e-75 to 1e\\+75"),
    ("draws too small to square", "a,gradient_a\n1e-200,1\n2e-200,1\n", "1e-75 to 1e\\+75"),
    ("CmdStan's output with text", "lp__,accept_stat__,a\n1,1,x\n", "complete rows of numbers"),
]


@pytest.mark.parametrize(
    ("text", "words"), [pytest.param(*case, id=label) for label, *case in TABLES]
)
def test_tables(tmp_path, text, words):
    path = tmp_path / "draws.csv"
    path.write_text(text)
    with pytest.raises(mp.InputError, match=words):
        mp.load_tree(path)


@pytest.mark.parametrize("variable", ["unconstrained_draw", "gradient"])
def test_numbers_that_are_not_finite_are_told_with_file_and_parameter(tmp_path, variable):
    paths = [tmp_path / name for name in ("whole.nc", "broken.nc")]
    rng = np.random.default_rng(5)
    for i, path in enumerate(paths):
        tree = mp.from_arrays(x := rng.normal(size=(2, 40, 3)), -x, names=("a", "b", "c"))
        tree["sample_stats"][variable][0, 3, 1:] = np.nan if i else 0.5
        mp.save_tree(tree, path)
    for given, place in ((paths[1:], "0, draw 3"), (paths, "2, draw 3")):
        source = ", ".join(map(str, given))
        with pytest.raises(mp.InputError, match=f"{source}.* in b, c") as told:
            mp.check_tree(mp.load_tree(*given))
        assert f"first at chain {place}" in str(told.value)


def test_the_names_that_pandas_gives_are_names(tmp_path):
    path = tmp_path / "draws.csv"
    path.write_text("0,1\n1,2\n3,4\n")
    assert sorted(mp.load_tree(path)["posterior"].data_vars) == ["0", "1"]


@pytest.mark.parametrize("text", ["a,b\n1,2\n3,\n", "a,b\n1,2\n3,nan\n"])
def test_a_gap_is_no_number(tmp_path, text):
    path = tmp_path / "draws.csv"
    path.write_text(text)
    assert np.isnan(mp.load_tree(path)["posterior"]["b"].values).tolist() == [[False, True]]


def test_the_table_that_they_change_is_read(tmp_path):
    path = tmp_path / "draws.csv"
    path.write_text(OK)
    assert mp.load_tree(path)["sample_stats"]["gradient"].shape == (2, 2, 1)


def test_a_column_that_looks_like_a_parameter_is_told(tmp_path, rng):
    import pandas

    a, b = rng.normal(size=(2, 400))
    columns = {
        "chain": np.repeat(range(4), 100),
        "a": a,
        "b": b,
        "square": np.exp(a),
        "gradient_a": -a,
    }
    path = tmp_path / "draws.csv"
    pandas.DataFrame(columns).to_csv(path, index=False)
    with pytest.warns(UserWarning, match=r"load_tree: b in .* looks like a parameter"):
        mp.load_tree(path)
    pandas.DataFrame(columns).drop(columns="b").to_csv(path, index=False)
    mp.load_tree(path)


BYTES = [
    # label, name, content (None for a folder), words of the message
    ("binary table", "x.csv", b"\xff\xfe\x00\x01,\x80\n", "a table with a header|rows of numbers"),
    ("UTF-16 table", "x.csv", "a,b\n1,2\n".encode("utf-16"), "a table with a header"),
    (
        "netCDF as a table",
        "x.csv",
        b"\x89HDF\r\n\x1a\n",
        r"header in .*x\.csv, got a netCDF-4.*NAME",
    ),
    ("netCDF as JSON", "x.json", b"\x89HDF\r\n\x1a\n", r"JSON .*x\.json, got a netCDF-4.*NAME"),
    ("packed table", "x.csv", b"\x1f\x8b\x08\x00", r"header in .*x\.csv, got .*gzip.*gunzip"),
    ("packed table by its name", "x.csv.gz", b"\x1f\x8b\x08\x00", "got .*gzip.*gunzip"),
    ("empty JSON", "x.json", b"", "JSON of an evidence.*got an empty file"),
    ("folder named as a table", "x.csv", None, "a table with a header.*got a folder"),
    ("folder named as JSON", "x.json", None, "JSON of an evidence.*got a folder"),
    ("empty netCDF", "x.nc", b"", "netCDF-4.*got an empty file"),
    ("text as netCDF", "x.nc", b"a,b\n1,2\n", "netCDF-4.*A table of draws is named"),
    ("netCDF-3", "x.nc", b"CDF\x01" + bytes(100), "netCDF-4.*got a netCDF-3"),
    ("HDF5 signature only", "x.nc", b"\x89HDF\r\n\x1a\n", "netCDF-4"),
    ("folder named as netCDF", "x.nc", None, "netCDF-4 .* got another folder"),
    ("folder without suffix", "x", None, "netCDF-4 .* got another folder"),
    ("zip as netCDF", "x.nc", b"PK\x03\x04" + bytes(50), "netCDF-4"),
    ("pickle", "x.pkl", b"\x80\x04N.", "netCDF-4"),
    ("empty Zarr", "x.zarr", None, "Zarr"),
    ("file named as Zarr", "x.zarr", b"zarr", "Zarr"),
]


@pytest.mark.parametrize(
    ("name", "content", "words"), [pytest.param(*case, id=label) for label, *case in BYTES]
)
def test_bytes(tmp_path, name, content, words):
    path = tmp_path / name
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(mp.InputError, match=words):
        mp.load_tree(path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file(tmp_path, share):
    whole = mp.save_tree(
        mp.from_arrays(
            *[np.random.default_rng(3).normal(size=(2, 40, 1))] * 2, allow_bad_scores=True
        ),
        tmp_path / "x.nc",
    )
    content = whole.read_bytes()
    whole.write_bytes(content[: int(share * len(content))])
    with pytest.raises(mp.InputError, match="netCDF-4"):
        mp.load_tree(whole)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("missing.nc", "existing file"),
        ("missing.csv", "existing file"),
        ("no/folder/x.zarr", "existing file"),
        ("x\n.nc", "x"),
    ],
)
def test_missing_files(path, words):
    for read in (mp.load_tree, mp.from_cmdstan):
        with pytest.raises(FileNotFoundError, match=words):
            read(path)


def test_a_link_without_its_file_is_told_as_one(tmp_path):
    link = tmp_path / "dangling.nc"
    link.symlink_to("gone.nc")
    words = r"got .*dangling.nc. It is a link to gone.nc, where there is no file: make it again.$"
    with pytest.raises(FileNotFoundError, match=words):
        mp.load_tree(link)


def write_cycle(path):
    with h5py.File(path, "w") as file:
        group = file.create_group("posterior")
        group["x"] = np.zeros((2, 5))
        group["loop"] = file["/"]


def write_itself(path):
    with h5py.File(path, "w") as file:
        group = file.create_group("posterior")
        group.create_group("inner")["itself"] = group


def write_soft_link(path):
    with h5py.File(path, "w") as file:
        file.create_group("posterior")["loop"] = h5py.SoftLink("/posterior")


def write_sparse(path, dtype="f8"):
    """A file of a few kilobytes whose data set would have 320 terabytes."""
    with h5netcdf.File(path, "w") as file:
        file.dimensions = {"chain": 4, "draw": 10**13}
        chunks = (4, 1 << 16)
        file.create_group("posterior").create_variable("x", ("chain", "draw"), dtype, chunks=chunks)


SPECIAL = [
    # label, name, function that makes it, words of the message
    (
        "a group that contains the root",
        "x.nc",
        write_cycle,
        "a group in two places, /posterior/loop",
    ),
    ("a group that contains itself", "x.nc", write_itself, "a group in two places"),
    ("a soft link to its own group", "x.nc", write_soft_link, "a group in two places"),
    ("sparse numbers", "x.nc", write_sparse, "fits into memory"),
    ("sparse texts", "x.nc", partial(write_sparse, dtype="S8"), "fits into memory"),
    ("a pipe", "x.nc", os.mkfifo, "a pipe or a device"),
    ("a pipe of a table", "x.csv", os.mkfifo, "a pipe or a device"),
    ("a pipe without suffix", "x", os.mkfifo, "a pipe or a device"),
]


@pytest.mark.parametrize(
    ("name", "write", "words"), [pytest.param(*case, id=label) for label, *case in SPECIAL]
)
def test_files_that_would_not_end(tmp_path, name, write, words):
    write(tmp_path / name)
    with pytest.raises(mp.InputError, match=words):
        mp.load_tree(tmp_path / name)


@pytest.mark.parametrize("name", ["x.nc", "x.zarr"])
def test_a_link_as_output_is_not_replaced(tmp_path, name):
    link = tmp_path / name
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match="does not exist yet"):
        mp.save_tree(mp.from_arrays(ONES, -ONES), link)
    assert link.is_symlink()
    assert [*tmp_path.iterdir()] == [link]


NAMES = ["", ".", "..", "a/b", "a\0b", "\ud800", "chain", "draw"]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_no_file_can_have_are_refused_when_the_tree_is_made(name):
    with pytest.raises(mp.InputError, match="names "):
        mp.from_arrays(ONES, -ONES, names=("a", "b", name))


@pytest.mark.parametrize("name", ["a\\b", "zarr.json", "x" * 256])
def test_names_that_no_folder_can_have(tmp_path, name):
    tree = mp.from_arrays(ONES, -ONES, names=("a", "b", name))
    with pytest.raises(mp.InputError, match=r"names that folders can have.*write netCDF"):
        mp.save_tree(tree, tmp_path / "x.zarr")
    assert name in mp.load_tree(mp.save_tree(tree, tmp_path / "x.nc"))["posterior"]


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_what_no_file_can_have_is_left_out_and_named(tmp_path, suffix):
    tree = mp.from_arrays(ONES, -ONES)
    tree.attrs |= {"settings": {"tune": 1000, "steps": np.arange(2), "draws": None}, "seed": None}
    tree["posterior"]["x[0]"].attrs = {"unit": "kg", "prior": print, "bounds": [1, [2, 3]]}
    # as PyMC's SMC has its temperatures
    ragged = np.array([[0.1, 1.0], [0.1, 0.3, 1.0]], dtype=object)
    text = np.array(["a", "b"], object)
    tree["stats"] = xarray.Dataset(
        {"beta": ("chain", ragged), "text": ("chain", text), "n": ("chain", [2, 3])}
    )
    pairs = xarray.Coordinates.from_pandas_multiindex(
        pandas.MultiIndex.from_tuples([("a", 1), ("b", 2)]), "pair"
    )
    tree["constants"] = xarray.Dataset({"mass": ("pair", [1.0, 2.0])}, coords=pairs)
    before = tree.copy(deep=True)
    words = (
        r"without the attribute prior of /posterior/x\[0\], a builtin_function_or_method, "
        r"/stats/beta of objects"
    )
    words += (
        r"; as JSON text the attribute settings of /, a dict, the attribute seed"
        if suffix == ".nc"
        else r"\.$"
    )
    with pytest.warns(UserWarning, match=words):
        back = mp.load_tree(mp.save_tree(tree, tmp_path / f"x{suffix}"))
    assert str(tree) == str(before)
    settings, bounds = back.attrs["settings"], back["posterior"]["x[0]"].attrs["bounds"]
    if suffix == ".nc":
        settings, bounds = json.loads(settings), json.loads(bounds)
    assert (settings, bounds) == ({"tune": 1000, "steps": [0, 1], "draws": None}, [1, [2, 3]])
    assert list(back["stats"].data_vars) == ["text", "n"]
    levels = [back["constants"][f"pair_level_{i}"].values.tolist() for i in (0, 1)]
    assert levels == [["a", "b"], [1, 2]]
    for name in ("gradient", "unconstrained_draw"):
        np.testing.assert_array_equal(back["sample_stats"][name], tree["sample_stats"][name])


def test_a_long_name_of_a_file_is_no_obstacle_to_its_temporary_one(tmp_path):
    assert mp.save_tree(mp.from_arrays(ONES, -ONES), tmp_path / f"{'x' * 250}.nc").exists()


DIMS = ("chain", "draw", "unconstrained_parameter")


def of(array, dims=DIMS, **coords):
    return xarray.DataArray(array, dims=dims, coords=coords)


ONES = np.random.default_rng(4).normal(size=(2, 40, 3))

TREES = [
    # label, variables of sample_stats or changes of the tree, words of the message
    ("no statistics", {}, "sample_stats"),
    ("no gradient", {"unconstrained_draw": of(ONES)}, "gradient"),
    ("no draws", {"gradient": of(ONES)}, "unconstrained_draw"),
    (
        "two dims",
        {"unconstrained_draw": of(ONES[..., 0], DIMS[:2]), "gradient": of(ONES[..., 0], DIMS[:2])},
        "with dims",
    ),
    (
        "other dims",
        {"unconstrained_draw": of(ONES, ("a", "b", "c")), "gradient": of(ONES, ("a", "b", "c"))},
        "with dims",
    ),
    (
        "four dims",
        {"unconstrained_draw": of(ONES[..., None], (*DIMS, "k")), "gradient": of(ONES)},
        "with dims",
    ),
    (
        "fewer scores",
        {"unconstrained_draw": of(ONES), "gradient": of(ONES[..., :2], (*DIMS[:2], "other"))},
        "shape",
    ),
    ("words", {"unconstrained_draw": of(ONES.astype(str)), "gradient": of(ONES)}, "real numeric"),
    ("complex", {"unconstrained_draw": of(ONES * 1j), "gradient": of(ONES)}, "real numeric"),
    (
        "objects",
        {"unconstrained_draw": of(ONES.astype(object)), "gradient": of(ONES)},
        "real numeric",
    ),
    ("NaN", {"unconstrained_draw": of(ONES * np.nan), "gradient": of(ONES)}, "all NaN"),
    (
        "empty",
        {"unconstrained_draw": of(ONES[:, :0]), "gradient": of(ONES[:, :0])},
        "the same draws",
    ),
    ("NaN scores", {"unconstrained_draw": of(ONES), "gradient": of(ONES * np.nan)}, "all NaN"),
    ("wrong sign", {"unconstrained_draw": of(ONES), "gradient": of(ONES)}, "sign"),
    (
        "names twice",
        {
            "unconstrained_draw": of(ONES, unconstrained_parameter=list("aab")),
            "gradient": of(-ONES),
        },
        "distinct",
    ),
    ("too large", {"unconstrained_draw": of(ONES * 1e200), "gradient": of(-ONES)}, "1e-75"),
]


@pytest.mark.parametrize(
    ("variables", "words"), [pytest.param(*case, id=label) for label, *case in TREES]
)
def test_trees(variables, words):
    posterior = xarray.Dataset({"q": of(ONES[..., 0], DIMS[:2])})
    groups = {"sample_stats": xarray.Dataset(variables)} if variables else {}
    tree = xarray.DataTree.from_dict({"posterior": posterior} | groups)
    for use in (mp.check_tree, mp.expectation, mp.html_report, mp.stein_weights):
        with pytest.raises((mp.InputError, mp.InputTypeError, mp.ScoreError), match=words):
            use(tree)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("score_sign", "-"),
        ("score_jacobian", "left out"),
        ("score_space", "constrained"),
        ("score_sign", 1),
    ],
)
def test_declared_conventions(name, value):
    tree = mp.from_arrays(ONES, -ONES)
    tree["sample_stats"].attrs[name] = value
    with pytest.raises(mp.InputError, match=name):
        mp.check_tree(tree)


@pytest.mark.parametrize("files", [[0, 0], [0, 1, 0], ["copy", 0]])
def test_a_chain_of_cmdstan_that_is_given_twice(tmp_path, files):
    copy = tmp_path / "copy.csv"
    copy.write_text(DIAGNOSTICS[0].read_text())
    with pytest.raises(mp.InputError, match="every chain once"):
        mp.from_cmdstan([copy if file == "copy" else DIAGNOSTICS[file] for file in files])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "a CSV of CmdStan"),
        (b"\xff\xfe\x00" * 1_000, "a CSV of CmdStan"),
        (b"# only comments\n", "a CSV of CmdStan"),
        (b"lp__,a,g_a\n", "complete rows|at least one"),
        (b"lp__,a,g_a\n1,2,x\n", "complete rows"),
        (b"lp__,a,g_a\n1,2\n", "complete rows"),
        (b"lp__,a,g_a\n1,2,3,4\n", "as many values as columns|CSV of CmdStan"),
        (b"lp__,a\n1,2\n", "g_NAME"),
        (b"a,g_a\n1,2\n", "lp__"),
        (b"lp__,g_a\n1,2\n", "g_NAME"),
        (b"lp__,a,g_a\n1,inf,3\n2,1,3\n", "finite draws"),
        (b"# save_warmup = 1\nlp__,a,g_a\n1,2,3\n", "num_warmup|at least one"),
    ],
)
def test_diagnostic_files(tmp_path, content, words):
    path = tmp_path / "diagnostic.csv"
    path.write_bytes(content)
    with pytest.raises(mp.InputError, match=words) as told:
        mp.from_cmdstan(path)
    assert len(str(told.value)) < 300


@pytest.mark.parametrize("name", ["x.txt", "x", "x.csv", "x.nc.gz", ".nc"])
def test_names_that_no_tree_is_saved_under(tmp_path, name):
    with pytest.raises(mp.InputError, match=r"ending in \.nc or \.zarr"):
        mp.save_tree(mp.from_arrays(ONES, -ONES), tmp_path / name)


def test_a_table_in_another_encoding_is_refused_without_its_bytes(tmp_path):
    path = tmp_path / "draws.csv"
    path.write_text("a,b\n" + "1.0,2.0\n" * 1_000, encoding="utf-16")
    with pytest.raises(mp.InputError, match="Save it in UTF-8") as told:
        mp.load_tree(path)
    assert len(str(told.value)) < 300
