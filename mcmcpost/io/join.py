"""The chains of several trees of one model as one tree."""

import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mcmcpost._core.errors import InputError
from mcmcpost.io.convention import DRAWS, GROUP
from mcmcpost.io.ladder_trees import LOWER, MEAN

if TYPE_CHECKING:
    import xarray

WHERE = "load_tree"

COMPARED = 100
"""Draws at the start of two chains that show whether they are the same."""


def join_chains(names: Sequence[str], trees: "Sequence[xarray.DataTree]") -> "xarray.DataTree":
    """Return a new tree with the chains of all `trees`, numbered from zero; arrays of dask stay in their chunks.

    Groups without chains, as observed data, are those of the first. Attributes that differ are left out, and variables
    without chains, such as the swap rates of a ladder; the reference of a ladder may not differ.

    Parameters
    ----------
    names : of the trees, for the messages.

    Raises
    ------
    ValueError : groups, variables, shapes, labels or data differ, or a chain is in two trees.
    """
    import xarray

    groups_of = [_groups(tree) for tree in trees]
    first, *others = groups_of
    for name, other in zip(names[1:], others, strict=True):
        _check_same_groups(names[0], first, name, other)
    _check_distinct(names, trees)
    joined_groups = {}
    for group in first:
        parts = [groups[group] for groups in groups_of]
        if "chain" not in parts[0].dims:
            joined_groups[group] = parts[0].drop_attrs(deep=False).assign_attrs(_common([part.attrs for part in parts]))
            continue
        differing = _differing(parts)
        joined = xarray.concat(
            [part.drop_vars(["chain", *differing], errors="ignore") for part in parts],
            dim="chain",
            data_vars="minimal",
            coords="minimal",
            compat="override",
            join="exact",
            combine_attrs="drop_conflicts",
        )
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
    one: str, first: "Mapping[str, xarray.Dataset]", name: str, other: "Mapping[str, xarray.Dataset]"
) -> None:
    cure = "Give chains of one run, with the same draws; reduce others by themselves."
    if first.keys() != other.keys():
        listed, got = (", ".join(group for group in groups if group != "/") for groups in (first, other))
        raise InputError(WHERE, f"the groups of {one} ({listed}) in {name}", got, cure)
    for group, ours in first.items():
        theirs = other[group]
        if set(ours.data_vars) != set(theirs.data_vars):
            names = sorted(map(str, set(ours.data_vars) ^ set(theirs.data_vars)))
            raise InputError(WHERE, f"the same variables of {group} in {one} and {name}", f"{names} in one only", cure)
        sizes = [{dim: size for dim, size in part.sizes.items() if dim != "chain"} for part in (ours, theirs)]
        if sizes[0] != sizes[1]:
            raise InputError(WHERE, f"{group} of the sizes {sizes[0]}, as in {one}, in {name}", sizes[1], cure)
        for dim in sizes[0]:
            if dim in ours.coords and dim in theirs.coords and not ours[dim].equals(theirs[dim]):
                raise InputError(WHERE, f"the labels of {dim} in {group} of {one} in {name}", "others", cure)
        if "chain" not in ours.dims and not ours.equals(theirs):
            raise InputError(WHERE, f"the {group} of {one} in {name}", "other values", cure)
        reference = [variable for variable in _differing([ours, theirs]) if variable in (MEAN, LOWER)]
        if reference:
            raise InputError(WHERE, f"the {' and '.join(reference)} of {one} in {name}", "another reference", cure)


def _check_distinct(names: Sequence[str], trees: "Sequence[xarray.DataTree]") -> None:
    """Refuse a chain that is in two trees: its first draws are the same, and are not constant."""
    starts = [starts_of(tree) for tree in trees]
    for (i, ours), (j, theirs) in itertools.combinations(enumerate(starts), 2):
        for chain, start in enumerate(ours):
            same = (theirs == start).all(axis=(1, 2)) if start.size else np.zeros(0, bool)
            if same.any() and np.ptp(start, axis=0).any():
                got = f"chain {chain} of {names[i]} as chain {int(np.argmax(same))} of {names[j]}"
                raise InputError(WHERE, "every chain once", got, "Leave one of them out.")


def starts_of(tree: "xarray.DataTree") -> np.ndarray:
    """Return the first draws (c, n, p): the unconstrained ones, or else the posterior's floats."""
    stats = tree.children.get(GROUP)
    group = tree.children.get("posterior") if stats is None or DRAWS not in stats else stats
    if group is None or not {"chain", "draw"} <= set(group.dims):
        return np.zeros((0, 0, 0))
    head = group.to_dataset().isel(draw=slice(COMPARED))
    chosen = (head[DRAWS],) if group is stats else head.data_vars.values()
    ordered = [one.transpose("chain", "draw", ...) for one in chosen if {"chain", "draw"} <= set(one.dims)]
    parts = [one.values.reshape(*one.shape[:2], -1) for one in ordered if one.dtype.kind == "f"]
    return np.concatenate(parts, axis=-1) if parts else np.zeros((0, 0, 0))
