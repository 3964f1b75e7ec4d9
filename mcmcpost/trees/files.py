"""Trees on disk: netCDF files and Zarr folders. Tables of draws are read too."""

import json
import os
from collections.abc import Mapping, Sequence
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
    InputError,
    InputTypeError,
    MissingPackageError,
    fault,
    warn,
)
from mcmcpost.core.runtime import FullDiskFile, rename_finished, written_beside
from mcmcpost.evidence import BRIDGE_GROUP, EVIDENCE_GROUP, evidence_from_json
from mcmcpost.trace import listed
from mcmcpost.trees.convention import DRAWS, GROUP, SCORES
from mcmcpost.trees.join import join_chains
from mcmcpost.trees.ladder_trees import is_evidence_alone
from mcmcpost.trees.stan import is_cmdstan, load_cmdstan
from mcmcpost.trees.tables import read_csv

if TYPE_CHECKING:
    import xarray


_ORDER = "mcmcpost_order"

_WHOLE = "every_chunk"
"""Arrays of a group of which every chunk is written, those of fill values too."""

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
        of some elements of an array only, a column or a draw twice, or rows longer than its header;
        a pipe; a file whose groups contain themselves, or whose
        variables are larger than memory; several files that differ in groups, variables, shapes,
        labels or data, or hold one chain twice; JSON of another kind, or of several evidences.

    Warns
    -----
    UserWarning : a column without a gradient looks like a parameter, since it varies without those
        that have one; chains differ in length, and are cut to the shortest.
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

_NEVER_ZERO = (f"{GROUP}/{DRAWS}", f"{GROUP}/{SCORES}")
"""Arrays without chunks of nothing but zeros: scores are zeros where the density is flat."""


def _check_written(place: Path, tree: "xarray.DataTree") -> None:
    """Refuse a Zarr folder with a group or an array without its metadata, which Zarr leaves out,
    and one some of whose chunks are not there, which would be read as zeros.
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
            is_node = folder.is_dir() and not folder.name.startswith(".")
            if is_node and not any((folder / name).is_file() for name in _METADATA):
                got = f"{folder.relative_to(place)} without zarr.json"
                raise InputError("load_tree", expected, got, cure)
    for node in tree.subtree:
        path = node.path.strip("/")
        group = zarr.open_group(place / path, mode="r")
        attrs = group.attrs
        # Zarr reads a chunk that is missing as the fill value: draws of a job that was killed would
        # be zeros. Which chunks other programs leave out for being just that is not known, but for
        # draws and scores.
        whole = json.loads(str(attrs.get(_ORDER, "{}"))).get(_WHOLE, ())
        for name, array in group.arrays():
            if name not in whole and f"{path}/{name}" not in _NEVER_ZERO:
                continue
            written = array.nchunks_initialized
            # Without any chunk it is what nutpie makes room for, unless scores were written.
            filled = name in whole or ("score_sign" in attrs and np.isnan(array.fill_value))
            if written < array.nchunks and (written or filled):
                got = f"{written} of {array.nchunks} chunks of {path}/{name}"
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
    storable, altered = _storable(tree, _is_zarr(place))
    written = _with_order(storable)
    target = Path(os.path.realpath(place)) if overwrite else place  # a link stays one
    with written_beside(target) as temporary:
        try:
            # Under a temporary name: netCDF that was cut off cannot be read at all.
            if _is_zarr(place):
                # Chunks of zeros too: one that is missing is then known to be lost.
                written.to_zarr(temporary, consolidated=False, write_empty_chunks=True)
            else:
                _write_netcdf(written, temporary)
        except OSError as error:
            # As of a full disk, whose words name no file.
            if error.errno is None or error.filename is not None:
                raise
            raise OSError(error.errno, error.strerror, str(place)) from error
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


def _write_netcdf(tree: "xarray.DataTree", place: Path) -> None:
    """Write a tree to a new file, through one of Python's, in which a full disk is an error and no
    crash."""
    from xarray.backends.locks import get_dask_scheduler

    in_chunks = any(
        variable.chunks for node in tree.subtree for variable in node.variables.values()
    )
    # Other processes, which write the chunks of dask there, have no file of this one.
    if in_chunks and get_dask_scheduler() not in (None, "threaded"):
        tree.to_netcdf(place, engine="h5netcdf")
        return
    with FullDiskFile(place) as file:
        try:
            tree.to_netcdf(file, engine="h5netcdf")
        except Exception:
            # HDF5 misses what was not written in words of its own.
            if file.failure is None:
                raise
        if file.failure is not None:
            raise file.failure


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
    """Return a copy that records the order of groups and variables, which neither format keeps, and
    which arrays have all their chunks in Zarr."""
    new = tree.copy()
    for node in new.subtree:
        # Flattened draws follow the order of the variables: sorted by name, as a file returns them,
        # labels would be in another order than those of the model.
        order = {
            "groups": list(node.children),
            "variables": [str(name) for name in node.data_vars],
            _WHOLE: [str(name) for name in node.to_dataset(inherit=False).variables],
        }
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
