"""Trees on disk: netCDF files and Zarr folders; the chains of several trees of one model as one
tree.

Tables of draws are read too.
"""

import itertools
import json
import os
from collections.abc import Hashable, Mapping, Sequence
from contextlib import ExitStack
from functools import reduce
from importlib.util import find_spec
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mcmcpost.control import stored_moments
from mcmcpost.core.arguments import (
    MOMENTS,
    as_path,
    check_flags,
    check_no_pipe,
    check_tree_type,
    missing_file,
)
from mcmcpost.core.arrays import in_blocks, piece_size
from mcmcpost.core.devices import is_first_process
from mcmcpost.core.errors import (
    ADDED,
    InputError,
    InputTypeError,
    MissingPackageError,
    UnequalChains,
    fault,
    warn,
)
from mcmcpost.core.runtime import rename_finished, written_beside
from mcmcpost.evidence import BRIDGE_GROUP, EVIDENCE_GROUP, evidence_from_json
from mcmcpost.trace import listed, repeated_draws
from mcmcpost.trees.convention import DRAWS, GROUP, LOWER, MEAN, SCORES, TEMPERATURE, telling_draws
from mcmcpost.trees.ladder_trees import is_evidence_alone
from mcmcpost.trees.stan import is_cmdstan, load_cmdstan
from mcmcpost.trees.tables import read_csv

if TYPE_CHECKING:
    import xarray


WHERE = "load_tree"


def join_chains(names: Sequence[str], trees: "Sequence[xarray.DataTree]") -> "xarray.DataTree":
    """Return a new tree with the chains of all `trees`, numbered from zero; arrays of dask stay in
    their chunks.

    Groups without chains, as observed data, are those of the first. Attributes that differ are left
    out, and variables without chains, such as the swap rates of a ladder; the reference of a ladder
    may not differ.

    Parameters
    ----------
    names : of the trees, for the messages.

    Raises
    ------
    ValueError : groups, variables, shapes, labels or data differ, or a draw is in two trees.
    """
    import xarray

    # Compared before they are joined: xarray fills what does not match with NaN, and a trace of
    # half NaN would go on.
    groups_of = [_groups(tree) for tree in trees]
    first, *others = groups_of
    for name, other in zip(names[1:], others, strict=True):
        _check_same_groups(names[0], first, name, other)
    _check_distinct(names, trees)
    joined_groups = {}
    for group in first:
        parts = [groups[group] for groups in groups_of]
        if "chain" not in parts[0].dims:
            # Seeds and times differ between the files, and those of the first would be said of all
            # chains.
            joined_groups[group] = (
                parts[0]
                .drop_attrs(deep=False)
                .assign_attrs(_common([dataset.attrs for dataset in parts]))
            )
            continue
        differing = _differing(parts)
        joined = xarray.concat(
            [dataset.drop_vars(["chain", *differing], errors="ignore") for dataset in parts],
            dim="chain",
            # Without these three, variables without chains would get one, and equal coordinates be
            # compared value by value. "exact" raises where labels differ, in place of NaN.
            data_vars="minimal",
            coords="minimal",
            compat="override",
            join="exact",
            combine_attrs="drop_conflicts",
        )
        # Every job calls its chain zero.
        joined_groups[group] = joined.assign_coords(chain=np.arange(joined.sizes["chain"]))
    return xarray.DataTree.from_dict(joined_groups)


def _groups(tree: "xarray.DataTree") -> "dict[str, xarray.Dataset]":
    """Return the groups of a tree by their paths, those inside groups and the root too."""
    return {node.path.strip("/") or "/": node.to_dataset(inherit=False) for node in tree.subtree}


def _common(attrs: Sequence[Mapping[Hashable, Any]]) -> dict[Hashable, Any]:
    """Return the attributes that all have alike."""
    first, *others = attrs
    return {
        name: value
        for name, value in first.items()
        if all(name in other and np.array_equal(other[name], value) for other in others)
    }


def _differing(parts: "Sequence[xarray.Dataset]") -> list[Hashable]:
    """Return the variables without chains that are not the same in all parts of a group."""
    first, *others = parts
    alone = [name for name, variable in first.data_vars.items() if "chain" not in variable.dims]
    return [name for name in alone if not all(first[name].equals(other[name]) for other in others)]


def _check_same_groups(
    one: str,
    first: "Mapping[str, xarray.Dataset]",
    name: str,
    other: "Mapping[str, xarray.Dataset]",
) -> None:
    cure = "Give traces of one model, written by one sampler."
    if first.keys() != other.keys():
        listed, got = (
            ", ".join(group for group in groups if group != "/") for groups in (first, other)
        )
        raise InputError(WHERE, f"the groups of {one} ({listed}) in {name}", got, cure)
    for group, ours in first.items():
        theirs = other[group]
        if set(ours.data_vars) != set(theirs.data_vars):
            names = sorted(map(str, set(ours.data_vars) ^ set(theirs.data_vars)))
            raise InputError(
                WHERE,
                f"the same variables of {group} in {one} and {name}",
                f"{names} in one only",
                cure,
            )
        sizes = [
            {dim: size for dim, size in dataset.sizes.items() if dim != "chain"}
            for dataset in (ours, theirs)
        ]
        # there are no sums of ladders
        if sizes[0].get("draw") != sizes[1].get("draw") and TEMPERATURE not in sizes[0]:
            got = f"{sizes[0].get('draw')} draws in {one} and {sizes[1].get('draw')} in {name}"
            raise UnequalChains(WHERE, f"chains of one length in {group}", got, ADDED)
        if sizes[0] != sizes[1]:
            raise InputError(
                WHERE, f"{group} of the sizes {sizes[0]}, as in {one}, in {name}", sizes[1], cure
            )
        for dim in sizes[0]:
            if dim in ours.coords and dim in theirs.coords and not ours[dim].equals(theirs[dim]):
                labels, got = (
                    f"{dataset[dim].values[0]} to {dataset[dim].values[-1]}"
                    for dataset in (ours, theirs)
                )
                # Halves of one run: side by side later draws would be chains of their own.
                if dim == "draw" and TEMPERATURE not in sizes[0]:
                    cure = (
                        "Later draws of the same chains are summed: mcmcpost moments "
                        f"{one} {name} -o sums.nc, then mcmcpost reduce sums.nc; in Python "
                        "mp.expectation(mp.moments(one) + mp.moments(other)). Of other chains "
                        "write draws that are numbered alike."
                    )
                expected = f"the labels of {dim} in {group} of {one} ({labels}) in {name}"
                raise InputError(WHERE, expected, got, cure)
        if "chain" not in ours.dims and not ours.equals(theirs):
            raise InputError(WHERE, f"the {group} of {one} in {name}", "other values", cure)
        reference = [
            variable for variable in _differing([ours, theirs]) if variable in (MEAN, LOWER)
        ]
        if reference:
            raise InputError(
                WHERE,
                f"the {' and '.join(reference)} of {one} in {name}",
                "another reference",
                cure,
            )


def _check_distinct(names: Sequence[str], trees: "Sequence[xarray.DataTree]") -> None:
    """Refuse draws that are in two trees."""
    # Two files of one seed make the errors smaller without adding a draw.
    draws = [telling_draws(tree) for tree in trees]
    places = [(file, chain) for file, one in enumerate(draws) for chain in range(len(one))]
    both = repeated_draws(itertools.chain.from_iterable(draws))
    if both is None:
        return
    (file, chain), (other, again) = (places[place] for place in both)
    # Draws that one file has twice are told with what is else wrong with its chains.
    if file != other:
        got = f"draws of chain {chain} of {names[file]} in chain {again} of {names[other]}"
        raise InputError(WHERE, "every draw once", got, "Leave them out of one of the files.")


_ORDER = "mcmcpost_order"

_CURE = (
    "Give a trace written by save_tree, ArviZ or xarray; write it again if the file is incomplete."
)


def load_tree(
    path: str | os.PathLike[str], *more: str | os.PathLike[str], lazy: bool = False
) -> "xarray.DataTree":
    """Return the tree stored at `path`, read whole, with the file closed; of several, one tree with
    all their chains.

    With `lazy` variables of 134 MB and more stay in the file, in the chunks of dask, so that a
    trace may be larger than memory; see "large traces" in the documentation.

    Parameters
    ----------
    path : a netCDF file, as `save_tree`, ArviZ (0.x too), nutpie and PyMC write it, or a folder
        with the suffix ``.zarr``; or a table with the suffix ``.csv`` and one row for each draw. In
        a table, columns `chain` and `draw` say which draw it is (without them it is one chain), and
        ``gradient_NAME`` is the score of the unconstrained parameter in column NAME. Every column
        that is no gradient becomes a variable of the posterior group; ``theta[0]``, ``theta[1]``,
        or ``theta.1``, ``theta.2``, one array. Or CmdStan's output of one chain, whose scores are
        in its diagnostic file, given too or beside it; see `from_cmdstan`. Or the JSON of one
        evidence, as ``mcmcpost evidence --json`` prints it, with the suffix ``.json``.
    more : files of other chains of the same model, as jobs of their own write them. Chains are
        numbered anew. Files of sums, from `moments`, are added. An evidence in them, which is of
        the chains of one file, is left out.
    lazy : leave variables of 134 MB and more where they are, in the chunks of dask, which has to be
        installed. The file stays open.

    Raises
    ------
    FileNotFoundError : there is nothing at `path`.
    ImportError : dask, the extra `dask`, is not installed, and `lazy` asks for it.
    ValueError : `path` is not a netCDF or Zarr tree, or is truncated; a Zarr folder is not written
        to its end; a table holds what is not a number, a gradient without its parameter, gradients
        of some elements of an array only, a column or a draw twice, rows longer than its header, or
        chains of different lengths; a pipe; a file whose groups contain themselves, or whose
        variables are larger than memory; several files that differ in groups, variables, shapes,
        labels or data, or hold one chain twice; JSON of another kind, or of several evidences.

    Warns
    -----
    UserWarning : a column without a gradient looks like a parameter, since it varies without those
        that have one.
    """
    check_flags("load_tree", lazy=lazy)
    if lazy and find_spec("dask") is None:
        cure = 'Install it: pip install "mcmcpost[dask]"; or leave out `lazy`.'
        raise MissingPackageError("load_tree", "the package dask", "no dask", cure)
    cure = "Name a file; of several pass each, as load_tree(*paths)."
    places = [as_path("load_tree", one, cure) for one in (path, *more)]
    # CmdStan's outputs and diagnostic files pair up among all paths, so that they are read together
    # or not at all.
    of_cmdstan = list(map(is_cmdstan, places))
    if all(of_cmdstan):
        return _with_source(load_cmdstan(places), places)
    if any(of_cmdstan):
        if missing := [place for place in places if not place.exists()]:
            raise missing_file("load_tree", "an existing file", missing[0])
        expected, got = "CmdStan's own files alone, or other traces alone", "both"
        raise InputError(
            "load_tree",
            expected,
            got,
            "Save the chains of CmdStan first: save_tree(load_tree(*files)).",
        )
    trees = [_load(place, lazy) for place in places]
    if len(trees) == 1:
        return _with_source(trees[0], places)
    if (
        alone := [
            place for place, tree in zip(places, trees, strict=True) if is_evidence_alone(tree)
        ]
    ) != []:
        cure = "Pass each to compare_evidence by its name."
        raise InputError(
            "load_tree", "several files of draws", f"{alone[0]}, an evidence alone", cure
        )
    # An evidence of the chains of one file is not that of all.
    trees = [tree.drop_nodes([EVIDENCE_GROUP, BRIDGE_GROUP], errors="ignore") for tree in trees]
    of_sums = [MOMENTS in tree.children for tree in trees]
    if all(of_sums):
        return reduce(add, map(stored_moments, trees)).to_datatree()
    if any(of_sums):
        cure = "Sum the others too: mcmcpost moments."
        raise InputError("load_tree", "sums alone, or traces alone", "both", cure)
    return _with_source(join_chains([str(place) for place in places], trees), places)


def _with_source(tree: "xarray.DataTree", places: Sequence[Path]) -> "xarray.DataTree":
    """Return the new tree with its files where xarray too notes them: messages on draws name
    them."""
    paths = tuple(map(str, places))
    tree.encoding = {"source": listed(paths, np.ones(len(paths), bool))}
    return tree


def _load(place: Path, lazy: bool) -> "xarray.DataTree":
    import xarray

    if not place.exists():
        raise missing_file("load_tree", "an existing file", place)
    check_no_pipe("load_tree", place)
    _check_content(place)
    if place.suffix.lower() == ".csv":
        return read_csv(place)
    if place.suffix.lower() == ".json":
        return _read_evidence(place)
    if place.is_dir() and not _is_zarr(place):
        raise InputError(
            "load_tree", f"a netCDF-4 file, or a folder *.zarr, at {place}", "another folder", _CURE
        )
    kind = "Zarr" if _is_zarr(place) else "netCDF-4"
    try:
        if place.is_file():
            _check_links(place)
        # Consolidated metadata is not in the Zarr 3 specification, and a folder that a job still
        # writes to has none.
        engine = (
            {"engine": "zarr", "consolidated": False} if _is_zarr(place) else {"engine": "h5netcdf"}
        )
        with ExitStack() as stack:
            stored = xarray.open_datatree(place, **engine)
            # Arrays in chunks are read later, from the open file; others are in memory, and a file
            # that stays open cannot be replaced on every system.
            if not lazy:
                stack.enter_context(stored)
            tree = _in_order(stored, lazy)
    # h5py, zarr and xarray raise all of these for files that are cut off or of another kind.
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise InputError("load_tree", f"a {kind} tree at {place}", repr(error), _CURE) from error
    except MemoryError as error:
        cure = "Thin it, or leave it where it is: load_tree(path, lazy=True)."
        raise InputError("load_tree", "a tree that fits into memory", error, cure) from error
    if not tree.children:
        raise InputError(
            "load_tree", f"a tree with groups, as posterior, at {place}", "no group", _CURE
        )
    if _is_zarr(place):
        _check_written(place, tree)
    return tree


_TEXTS = {".csv": "a table with a header in", ".json": "the JSON of an evidence in"}

_NETCDF_3 = ("a netCDF-3 file", "Write it as netCDF-4, as save_tree and ArviZ do.")

_SIGNATURES = {
    b"\x89HDF": ("a netCDF-4 file", "Name it NAME.nc."),
    b"CDF\x01": _NETCDF_3,
    b"CDF\x02": _NETCDF_3,
    b"\x1f\x8b": ("a file packed by gzip", "Unpack it first, with gunzip."),
    b"PK\x03\x04": ("a zip file", "Unpack it first, with unzip."),
}
"""What a file is by its first bytes, and what to do where its name says another kind."""


def _check_content(place: Path) -> None:
    """Refuse a file whose content is of another kind than its name says, as an empty one is.

    Its reader would complain of an encoding, a quote or a signature.
    """
    import h5py

    is_text = place.suffix.lower() in _TEXTS
    kind = "a Zarr tree at" if _is_zarr(place) else "a netCDF-4 tree at"
    expected = f"{_TEXTS.get(place.suffix.lower(), kind)} {place}"
    if place.is_dir() and is_text:
        raise InputError("load_tree", expected, "a folder", "Name a file in it.")
    if place.is_dir() or (not is_text and h5py.is_hdf5(place)):
        return
    with place.open("rb") as file:
        start = file.read(4)
    known = next((what for mark, what in _SIGNATURES.items() if start.startswith(mark)), None)
    if not start:
        known = ("an empty file", "Write it again." if is_text else _CURE)
    elif known is None and not is_text:
        known = ("a file of another kind", f"A table of draws is named NAME.csv. {_CURE}")
    if known is not None:
        raise InputError("load_tree", expected, *known)


def _read_evidence(place: Path) -> "xarray.DataTree":
    """Return the tree of the one evidence in a JSON file: what `Evidence.to_json_dict` returns, or
    `--json` prints."""
    where = f"load_tree: {place}"
    cure = "Print one with mcmcpost evidence --json."
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            where, "the JSON of an evidence", f"{type(error).__name__}: {error}", cure
        ) from error
    record = content.get("evidence", content) if isinstance(content, dict) else content
    if isinstance(record, list) and len(record) > 1:
        raise InputError(
            where,
            "the JSON of one evidence",
            f"{len(record)}",
            "Print them one by one, a file for each.",
        )
    one = record[0] if isinstance(record, list) and record else record
    if not isinstance(one, dict) or "log_evidence" not in one:
        got = (
            f"the keys {', '.join(content) or 'of nothing'}"
            if isinstance(content, dict)
            else f"a {type(content).__name__}"
        )
        raise InputError(where, "the JSON of an evidence", got, cure)
    try:
        return evidence_from_json(where, one).to_datatree()
    except InputError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        got = f"another kind of value ({type(error).__name__}: {error})"
        raise InputError(where, "the JSON of an evidence as it was printed", got, cure) from error


_METADATA = ("zarr.json", ".zgroup", ".zarray")


def _check_written(place: Path, tree: "xarray.DataTree") -> None:
    """Refuse a Zarr folder with a group or an array without its metadata, which Zarr leaves out,
    and one some of whose chunks of draws or scores are not there, which would be read as zeros.

    No folder has chunks of nothing but zeros: where all chunks of the scores are missing, their
    density is flat.
    """
    import zarr

    cure = (
        "It is still being written, its job was stopped, or it was not copied whole: wait, copy it "
        "again, or save the draws before with save_tree."
    )
    expected = f"a Zarr tree that is written to its end at {place}"
    for node in tree.subtree:
        # Folders in that of a group are its groups and arrays; hidden ones are of other programs.
        for folder in (place / node.path.strip("/")).iterdir():
            is_part = folder.is_dir() and not folder.name.startswith(".")
            if is_part and not any((folder / name).is_file() for name in _METADATA):
                got = f"{folder.relative_to(place)} without zarr.json"
                raise InputError("load_tree", expected, got, cure)
    store = zarr.open_group(place, mode="r")
    for name in (f"{GROUP}/{DRAWS}", f"{GROUP}/{SCORES}"):
        array = store.get(name)
        if not isinstance(array, zarr.Array):
            continue
        # Zarr reads a chunk that is missing as the fill value: draws of a job that was killed would
        # be zeros. Without any chunk it is what nutpie makes room for, unless scores were written.
        written = array.nchunks_initialized
        filled = "score_sign" in store[GROUP].attrs and np.isnan(array.fill_value)
        if written < array.nchunks and (written or filled):
            got = f"{written} of {array.nchunks} chunks of {name}"
            raise InputError("load_tree", expected, got, cure)


def save_tree(
    tree: "xarray.DataTree", path: str | os.PathLike[str], *, overwrite: bool = False
) -> Path:
    """Write `tree` to a netCDF file, or to a Zarr folder where `path` ends in ``.zarr``.

    The tree is written under a temporary name beside `path` and renamed, so a crash leaves no
    half-written file. Of several processes of ``jax.distributed`` the first writes it and the
    others go on.

    Parameters
    ----------
    tree : the tree; it is not changed.
    path : a name ending in ``.nc`` or ``.zarr`` that does not exist.
    overwrite : replace a netCDF file, or a Zarr folder, that is there. Until the new one is whole
        the old one stays.

    Returns
    -------
    The path written.

    Raises
    ------
    FileExistsError : `path` exists and may not be overwritten, or is something else than a netCDF
        file or a Zarr folder.
    ValueError : the suffix is neither ``.nc`` nor ``.zarr``; a variable has a name that a folder
        cannot have, and the suffix is ``.zarr``.

    Warns
    -----
    UserWarning : the format has no place for some of the tree. Attributes such as a dict or None
        become JSON text in netCDF; other objects, ragged variables as the statistics of PyMC's SMC,
        and in netCDF complex numbers, are left out. Every other variable is written. The levels of
        a MultiIndex become coordinates without a word.
    """
    check_tree_type("save_tree", tree)
    check_flags("save_tree", overwrite=overwrite)
    place = as_path("save_tree", path)
    if place.suffix.lower() not in (".nc", ".zarr"):
        raise InputError("save_tree", "a path ending in .nc or .zarr", str(place), "Rename it.")
    # Refused before the work, and again before renaming, since another program may have written
    # meanwhile.
    if is_first_process():
        _refuse_existing(place, overwrite)
    if _is_zarr(place):
        _check_folder_names(tree)
    if not place.parent.is_dir():
        raise FileNotFoundError(
            fault("save_tree", "an existing folder", str(place.parent), "Create it first.")
        )
    if not is_first_process():
        return place
    written, altered = _storable(_with_order(tree), _is_zarr(place))
    target = place.resolve() if overwrite else place  # a link stays one
    with written_beside(target) as temporary:
        try:
            if _is_zarr(place):
                # Under a temporary name: netCDF that was cut off cannot be read at all.
                written.to_zarr(temporary, consolidated=False)
            else:
                written.to_netcdf(temporary, engine="h5netcdf")
        except TypeError as error:
            expected, cure = (
                "values and attributes that a file can have",
                "Leave out what is no number and no text.",
            )
            raise InputTypeError("save_tree", expected, str(error), cure) from error
        _refuse_existing(place, overwrite)
        rename_finished(temporary, target, overwrite)
    said = [
        f"{verb} {', '.join(places)}"
        for verb, places in zip(_VERBS, altered, strict=True)
        if places
    ]
    if said:
        warn(f"save_tree: {place} has not all of the tree: {'; '.join(said)}.")
    return place


_VERBS = ("without", "as JSON text")


class _Altered(NamedTuple):
    """What of a tree is not written as it is: places that are left out, and places that become
    text."""

    left_out: list[str]
    as_text: list[str]


def _storable(tree: "xarray.DataTree", zarr: bool) -> "tuple[xarray.DataTree, _Altered]":
    """Return a copy of what the format can hold, and what is not in it as it was.

    A sampler's settings may be anything, and a trace is worth more than they are: attributes become
    JSON text in netCDF, where they can, and the levels of a MultiIndex coordinates. netCDF has no
    true and false: one and zero.
    """
    altered = _Altered([], [])

    def plain(owner: str, attrs: Mapping[Any, Any]) -> dict[Any, Any]:
        kept = {}
        for name, value in attrs.items():
            place = f"the attribute {name} of {owner}, a {type(value).__name__}"
            if _is_plain(value):
                kept[name] = (
                    np.asarray(value).astype(np.int8) if _is_boolean(value) and not zarr else value
                )
            elif (text := _as_json(value)) is None:
                altered.left_out.append(place)
            elif zarr:
                kept[name] = json.loads(text)
            else:
                kept[name] = text
                altered.as_text.append(place)
        return kept

    new = tree.copy()
    for node in new.subtree:
        # Without inheritance: a coordinate of the root would be written into every group.
        content = node.to_dataset(inherit=False).copy()
        levels = [
            k for k in content.dims if k in content.indexes and content.indexes[k].nlevels > 1
        ]
        content = content.reset_index(levels)
        for name, variable in content.variables.items():
            if not _has_form(variable, zarr):
                altered.left_out.append(
                    f"{node.path.rstrip('/')}/{name} of "
                    f"{_KINDS.get(variable.dtype.kind, 'records')}"
                )
                content = content.drop_vars([name])
        content.attrs = plain(node.path, content.attrs)
        for name, variable in content.variables.items():
            variable.attrs = plain(f"{node.path.rstrip('/')}/{name}", variable.attrs)
        node.dataset = content
    return new, altered


_KINDS = {"O": "objects", "c": "complex numbers"}


def _has_form(variable: "xarray.Variable", zarr: bool) -> bool:
    """Return whether the format has such values: no ragged ones, and complex ones in Zarr alone."""
    # PyMC's SMC has ragged statistics and nutpie texts in arrays of objects; netCDF has a place for
    # texts alone.
    if variable.dtype.kind == "O":
        # A text may be missing, as nutpie's messages on transitions that did not diverge.
        missing = (
            value is None or (isinstance(value, float) and np.isnan(value))
            for value in variable.values.flat
        )
        return all(
            none or isinstance(value, str)
            for none, value in zip(missing, variable.values.flat, strict=True)
        )
    return variable.dtype.kind not in ("V" if zarr else "Vc")


def _is_plain(value: object) -> bool:
    try:
        return np.asarray(value).dtype.kind in "fiubSU"
    except ValueError:  # a ragged list
        return False


def _is_boolean(value: object) -> bool:
    return np.asarray(value).dtype.kind == "b"


def _as_json(value: object) -> str | None:
    """Return a value as JSON, arrays as lists; None where it cannot be."""
    try:
        return json.dumps(value, default=lambda one: one.tolist())
    except (TypeError, ValueError, AttributeError):  # a function, or a circle
        return None


def _with_order(tree: "xarray.DataTree") -> "xarray.DataTree":
    """Return a copy that records the order of groups and variables, which neither format keeps."""
    new = tree.copy()
    for node in new.subtree:
        # Flattened draws follow the order of the variables: sorted by name, as a file returns them,
        # labels would be in another order than those of the model.
        order = {"groups": list(node.children), "variables": [str(name) for name in node.data_vars]}
        node.attrs = {**node.attrs, _ORDER: json.dumps(order)}
    return new


def _in_order(tree: "xarray.DataTree", lazy: bool) -> "xarray.DataTree":
    import xarray

    # Values first: the file is closed after this.
    content = _read(tree.to_dataset(inherit=False), lazy)
    order = json.loads(content.attrs.pop(_ORDER, "{}"))
    if not isinstance(order, dict):
        raise TypeError(f"the attribute {_ORDER} is {order!r}")  # load_tree says where
    variables = [name for name in order.get("variables", []) if name in content.data_vars]
    others = [name for name in content.data_vars if name not in variables]
    groups = [name for name in order.get("groups", []) if name in tree.children]
    groups += [name for name in tree.children if name not in groups]
    children = {name: _in_order(tree.children[name], lazy) for name in groups}
    ordered = xarray.Dataset(
        {name: content[name] for name in [*variables, *others]},
        coords=content.coords,
        attrs=content.attrs,
    )
    return xarray.DataTree(ordered, children=children, name=tree.name)


def _check_links(place: Path) -> None:
    """Refuse groups that an HDF5 file has in several places: where one contains itself, reading it
    would not end."""
    import h5py

    with h5py.File(place) as file:
        seen, pending = {h5py.h5o.get_info(file.id).addr}, [file["/"]]
        while pending:
            group = pending.pop()
            for name in group:
                if group.get(name, getclass=True) is not h5py.Group:
                    continue
                # By address and not by name: hard links give one group several names.
                address = h5py.h5o.get_info(group[name].id).addr
                if address in seen:
                    # load_tree says where
                    raise ValueError(f"a group in two places, {group.name}/{name}")
                seen.add(address)
                pending.append(group[name])


LAZY = 1 << 27
"""Size in bytes (134 MB) from which a variable may stay where it is."""


def _read(stored: "xarray.Dataset", lazy: bool) -> "xarray.Dataset":
    """Return the dataset with its values, large ones in chunks of dask where it is `lazy`."""
    numbers = {
        name: variable
        for name, variable in stored.data_vars.items()
        if variable.dtype.kind in "fiub"
    }
    large = {
        name: _in_chunks(variable)
        for name, variable in numbers.items()
        if lazy and variable.nbytes >= LAZY
    }
    return stored.drop_vars(large).load().assign(large)


def _in_chunks(variable: "xarray.DataArray") -> "xarray.DataArray":
    axis, sizes = _pieces(variable)
    return variable.chunk({dim: sizes if i == axis else -1 for i, dim in enumerate(variable.dims)})


def _pieces(variable: "xarray.DataArray") -> tuple[int, tuple[int, ...]]:
    """Return the longest axis of a variable and the lengths of its pieces, whole chunks of the file
    each."""
    # Along whole chunks of the file: a chunk that two pieces share would be unpacked twice.
    axis = int(np.argmax(variable.shape))
    chunks = (
        variable.encoding.get("chunksizes")
        or variable.encoding.get("chunks")
        or (1,) * variable.ndim
    )
    length, chunk = variable.shape[axis], chunks[axis]
    pieces = in_blocks(
        -(-length // chunk), variable.size // length * chunk, piece_size(variable.size)
    )
    return axis, tuple(min(one.stop * chunk, length) - one.start * chunk for one in pieces)


LONGEST_NAME = 255
"""Bytes of the name of a folder."""


def _check_folder_names(tree: "xarray.DataTree") -> None:
    """Refuse variables that Zarr, which makes a folder of each, would lose or could not write."""
    names = [str(name) for node in tree.subtree for name in node.to_dataset().variables]
    bad = [
        name
        for name in names
        if "\\" in name or name == "zarr.json" or len(name.encode()) > LONGEST_NAME
    ]
    if bad:
        expected = (
            f"names that folders can have, of at most {LONGEST_NAME} bytes and without backslashes"
        )
        raise InputError("save_tree", expected, bad, "Rename them, or write netCDF: .nc.")


def _is_zarr(place: Path) -> bool:
    return place.suffix.lower() == ".zarr"


def _refuse_existing(place: Path, overwrite: bool) -> None:
    if not os.path.lexists(place):
        return
    if not overwrite:
        cure = "Nothing is overwritten: pick another name, or pass overwrite=True."
        raise FileExistsError(
            fault("save_tree", "a path that does not exist yet", str(place), cure)
        )
    # A folder that only has such a name may hold anything.
    written = any((place / name).is_file() for name in _METADATA)
    if place.exists() and not (written if _is_zarr(place) else place.is_file()):
        expected = "a Zarr folder to overwrite" if _is_zarr(place) else "a file to overwrite"
        raise FileExistsError(fault("save_tree", expected, str(place), "Pick another name."))
