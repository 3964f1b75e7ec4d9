"""The chains of several trees of one model as one tree."""

import itertools
from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mcmcpost.core.errors import InputError, shortest
from mcmcpost.trace import repeated_draws
from mcmcpost.trees.convention import LOWER, MEAN, TEMPERATURE, telling_draws

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
    groups_of = _of_one_length([_groups(tree) for tree in trees])
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


def _of_one_length(
    groups_of: "list[dict[str, xarray.Dataset]]",
) -> "list[dict[str, xarray.Dataset]]":
    """Return the groups with the draws that the posteriors of all trees have."""
    posteriors = [groups.get("posterior") for groups in groups_of]
    lengths = [
        dataset.sizes["draw"]
        for dataset in posteriors
        # A ladder has no sums to which the other draws could go, and is refused.
        if dataset is not None and "draw" in dataset.dims and TEMPERATURE not in dataset.dims
    ]
    if len(lengths) < len(posteriors) or len(set(lengths)) == 1:
        return groups_of
    of_chains = [
        length
        for length, groups in zip(lengths, groups_of, strict=True)
        for _ in range(groups["posterior"].sizes.get("chain", 1))
    ]
    kept = slice(shortest(WHERE, of_chains))
    return [
        {
            # A warm-up, whatever its length, is not of these draws.
            name: dataset.isel(draw=kept) if dataset.sizes.get("draw") == length else dataset
            for name, dataset in groups.items()
        }
        for groups, length in zip(groups_of, lengths, strict=True)
    ]


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
