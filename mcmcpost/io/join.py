"""The chains of several trees of one model as one tree."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mcmcpost._core.errors import InputError
from mcmcpost.io.convention import DRAWS, GROUP

if TYPE_CHECKING:
    import xarray

WHERE = "load_tree"

COMPARED = 100
"""Draws at the start of two chains that show whether they are the same."""


def join_chains(names: Sequence[str], trees: "Sequence[xarray.DataTree]") -> "xarray.DataTree":
    """Return a new tree with the chains of all `trees`, numbered from zero; arrays of dask stay in their chunks.

    Groups without chains, as observed data, are those of the first; attributes that differ are left out.

    Parameters
    ----------
    names : of the trees, for the messages.

    Raises
    ------
    ValueError : groups, variables, shapes, labels or data differ, or a chain is in two trees.
    """
    import xarray

    first, *others = trees
    for name, other in zip(names[1:], others, strict=True):
        _check_same_groups(names[0], first, name, other)
    _check_distinct(names, trees)
    groups = {}
    for group in first.children:
        parts = [tree.children[group].to_dataset() for tree in trees]
        if "chain" not in parts[0].dims:
            groups[group] = parts[0]
            continue
        joined = xarray.concat(
            [part.drop_vars("chain", errors="ignore") for part in parts],
            dim="chain",
            data_vars="minimal",
            coords="minimal",
            compat="override",
            join="exact",
            combine_attrs="drop_conflicts",
        )
        groups[group] = joined.assign_coords(chain=np.arange(joined.sizes["chain"]))
    return xarray.DataTree.from_dict(groups)


def _check_same_groups(one: str, first: "xarray.DataTree", name: str, other: "xarray.DataTree") -> None:
    cure = "Give chains of one run, with the same draws; reduce others by themselves."
    if set(first.children) != set(other.children):
        got = ", ".join(other.children)
        raise InputError(WHERE, f"the groups of {one} ({', '.join(first.children)}) in {name}", got, cure)
    for group in first.children:
        ours, theirs = first.children[group].to_dataset(), other.children[group].to_dataset()
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
