"""The data contract: the group, variables, dims and attrs of draws and scores in a tree."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from mcmcpost.core.arguments import as_float64, as_real, check_trace_type
from mcmcpost.core.arrays import is_large, read_values
from mcmcpost.core.errors import InputError, InputTypeError, fault
from mcmcpost.core.mcse import Weights
from mcmcpost.trace import STARTS, Trace, check_same_order, make_trace, posterior_mark

if TYPE_CHECKING:
    import xarray


MEAN, LOWER = "reference_mean", "reference_lower"
"""The normal from which a ladder starts: its mean and the lower factor of its covariance, in
`GROUP`."""


GROUP = "sample_stats"

DRAWS = "unconstrained_draw"

SCORES = "gradient"

PARAMETER = "unconstrained_parameter"

TEMPERATURE = "temperature"

LOG_WEIGHT = "log_weight"
"""Logarithms of the weights of draws, up to a constant; their variable in `GROUP`, with dims chain
and draw."""

NUM_LIVE = "num_live"
"""Likewise the live points of each step of a nested-sampling run."""

ATTRS = {"score_sign": "+", "score_jacobian": "included", "score_space": "unconstrained"}

_CURES = {
    "score_sign": "Negate `gradient` and set the attribute to '+': scores are +∇ log density.",
    "score_jacobian": "Add the gradient of the log-Jacobian and set the attribute to 'included'; "
    "see attach_scores.",
    "score_space": "Differentiate on the unconstrained space; see attach_scores.",
}


def read_trace(tree: "xarray.DataTree", *, weighted: bool = False) -> Trace:
    """Return the draws and scores of a tree.

    Reads ``sample_stats.unconstrained_draw`` and ``sample_stats.gradient``, as nutpie writes them:
    dims ``chain``, ``draw`` and one more, in any order; labels from the coordinate of the third
    dim, ``x[i]`` without one. Warm-up groups are ignored.

    Parameters
    ----------
    tree : a tree with a `sample_stats` group.
    weighted : accept draws with weights, `read_weights`, which are refused otherwise.

    Returns
    -------
    Trace : draws and scores (c, n, d), not to be written to: the tree's own arrays where these are
        float64. The scores are not tested; see `check_tree`.

    Raises
    ------
    TypeError : `tree` is not a DataTree.
    ValueError : scores or draws are missing, their shapes disagree with each other or with the
        posterior group, or the attrs declare another convention than +∇ log density, log-Jacobian
        included, on the unconstrained space; draws and scores label their parameters in different
        orders; the draws have weights that are not asked for.
    """
    # Refusals come before any value is read: a trace in chunks may be of many gigabytes.
    draws, scores, names = draws_and_scores(tree)
    if not weighted:
        refuse_weights("read_trace", tree)
    # nutpie writes float64, NumPyro and BlackJAX float32 by default.
    x, s = (read_values(variable, np.float64) for variable in (draws, scores))
    trace = make_trace(x, s, names, copy=False, source=str(tree.encoding.get("source", "")))
    weights = read_weights("read_trace", tree, trace.draws.shape[:2])
    return trace._replace(weights=weights, posterior=posterior_mark(tree))


def draws_and_scores(
    tree: "xarray.DataTree",
) -> "tuple[xarray.DataArray, xarray.DataArray, tuple[str, ...] | None]":
    """Return draws, scores and the labels of the parameters, after the checks of `read_trace`."""
    check_trace_type("read_trace", tree)
    # A ladder has the same variables with one more dim, and its rungs are draws of other targets.
    if GROUP in tree.children and TEMPERATURE in tree.children[GROUP].dims:
        cure = (
            "Use log_evidence (mcmcpost evidence), or mcmcpost.trees.posterior_rung(tree), the "
            "trace of its last rung."
        )
        raise InputError(
            "read_trace", "a trace of one target", f"a ladder, with a dim {TEMPERATURE}", cure
        )
    for name in (SCORES, DRAWS):
        if GROUP not in tree.children or name not in tree.children[GROUP].data_vars:
            raise InputError(_missing(tree, name))
    variables = tree.children[GROUP].to_dataset()
    # Programs declare their convention on the group or on the variable.
    for attrs in (variables.attrs, variables[SCORES].attrs):
        _check_declared(attrs)
    for name in (SCORES, DRAWS):
        if _is_reserved(variables[name]):
            raise InputError(_missing(tree, name))
    draws, scores = (oriented("read_trace", variables[name], rank=3) for name in (DRAWS, SCORES))
    check_aligned("read_trace", tree, scores)
    labels = {DRAWS: coordinate_labels(draws), SCORES: coordinate_labels(scores)}
    check_same_order("read_trace", labels)
    return draws, scores, labels[DRAWS] or labels[SCORES]


def _is_reserved(variable: "xarray.DataArray") -> bool:
    """Return whether a variable has no number: nutpie's Zarr store makes room for what was not
    asked for, all NaN."""
    if variable.dtype.kind != "f" or not variable.size:
        return False
    # nutpie's Zarr store allocates `gradient` and `unconstrained_draw`, all NaN, where they were
    # not asked for.
    # most have a number here, and are not read
    ends = variable.isel({dim: [0, -1] for dim in variable.dims})
    return bool(ends.isnull().all()) and bool(variable.isnull().all())


def has_weights(tree: "xarray.DataTree") -> bool:
    """Return whether the draws of a tree have weights."""
    return GROUP in tree.children and LOG_WEIGHT in tree.children[GROUP].data_vars


def refuse_weights(where: str, tree: "xarray.DataTree") -> None:
    """Refuse a tree whose draws have weights, for what would take them for draws of equal
    weight."""
    if has_weights(tree):
        cure = (
            "resample(tree, key=key) draws such; expectation, quantile and what derives from them "
            "read the weights."
        )
        raise InputError(where, "draws of equal weight", f"`{GROUP}.{LOG_WEIGHT}`", cure)


def read_weights(where: str, tree: "xarray.DataTree", shape: tuple[int, ...]) -> Weights | None:
    """Return the weights of the draws of a tree, None where there are none.

    ``sample_stats.log_weight`` holds their logarithms up to a constant that all chains share, and
    ``sample_stats.num_live``, for a nested-sampling run, the live points at each draw, which are
    then in order.

    Parameters
    ----------
    shape : chains and draws that there must be.

    Raises
    ------
    ValueError, TypeError : one of them has other dims or another shape, or is not finite; live
        points below one.
    """
    if not has_weights(tree):
        return None
    stats = tree.children[GROUP].to_dataset()
    # `sampler="mclmc"` of nutpie writes `log_weight` too: its draws are weighted like others.
    arrays = [
        oriented(where, stats[name], rank=2).values
        for name in (LOG_WEIGHT, NUM_LIVE)
        if name in stats
    ]
    return make_weights(where, *arrays, shape=shape)


def make_weights(
    where: str, log_weights: Any, num_live: Any = None, *, shape: tuple[int, ...]
) -> Weights:
    """Return the weights of these arrays (chain, draw) after checking them; see `read_weights`."""
    logs = as_float64(
        where, "log_weights", as_chain_draw(where, "log_weights", log_weights), "chain, draw"
    )
    live = None
    if num_live is not None:
        live = as_float64(where, NUM_LIVE, as_chain_draw(where, NUM_LIVE, num_live), "chain, draw")
    for name, array in (("log_weights", logs), (NUM_LIVE, logs if live is None else live)):
        if array.shape != tuple(shape):
            raise InputError(
                where, f"`{name}` of shape {tuple(shape)}", array.shape, "Give one for each draw."
            )
    # A draw of weight zero takes part in nothing but the count of draws; NaN would spoil all.
    if not np.isfinite(logs).all():
        got = f"{int((~np.isfinite(logs)).sum())} that are not"
        raise InputError(
            where, "finite `log_weights`", got, "Leave out draws of weight zero, and repair NaN."
        )
    if live is not None and not (live >= 1).all():
        raise InputError(
            where,
            f"`{NUM_LIVE}` of at least one",
            live.min(),
            "They are the live points of each step.",
        )
    return Weights.of(logs, live)


def _missing(tree: "xarray.DataTree", name: str) -> str:
    """Return the message for a missing variable, which may be stored under another name."""
    stats = tree.children.get(GROUP)
    if stats is None and tree.parent is not None:  # tree.posterior, in the place of tree
        cure = f"Pass the whole tree, of which this is the group {tree.name}."
        return fault("read_trace", f"`{GROUP}.{name}` in the tree", "one group of it", cure)
    if stats is None:
        got, others = "groups " + (", ".join(tree.children) or "none"), []
    else:
        got = (
            "one that is all NaN"
            if name in stats.data_vars
            else ", ".join(map(str, stats.data_vars)) or "nothing"
        )
        others = [
            str(k)
            for k, v in stats.data_vars.items()
            if k not in (SCORES, DRAWS) and _looks_like_scores(v)
        ]
    cure = score_cure(tree)
    if others:
        cure = (
            f"If {' or '.join(others)} holds these values, rename it: tree['{GROUP}'] = "
            f"tree['{GROUP}'].to_dataset().rename({{'{others[0]}': '{name}'}}). Else: "
            f"{score_cure(tree)}"
        )
    return fault("read_trace", f"`{GROUP}.{name}` in the tree", got, cure)


WITH_PYMC = 'pm.sample(idata_kwargs={"include_transformed": True}, nuts={"store_gradient": True})'
"""How PyMC keeps unconstrained draws and scores: nutpie, by which it samples where it is installed,
stores both."""


def score_cure(tree: "xarray.DataTree") -> str:
    """Return how a trace of this sampler gets its scores."""
    # A sampler's attributes stand on the groups or on the tree, as versions of ArviZ differ.
    nodes = (tree, *(tree.children[name] for name in (GROUP, "posterior") if name in tree.children))
    attrs = [node.attrs for node in nodes]
    if any("stan_version" in one for one in attrs):
        written = next((one["diagnostic_file"] for one in attrs if "diagnostic_file" in one), None)
        kept = "Run CmdStan with `output diagnostic_file=diagnostic.csv`."
        if written is not None:
            kept = (
                f"Give the diagnostic files that the run wrote, {written}, with --diagnostics, or "
                "to load_tree."
            )
        return (
            f"{kept} Or compute them by BridgeStan: --model FILE.stan --data FILE.json, in Python"
            " attach_scores(tree, bridgestan.StanModel(program, data))."
        )
    if any(str(one.get("inference_library", "")).lower() == "pymc" for one in attrs):
        return (
            "Compute them from the model: attach_scores(tree, model); or let nutpie keep them: "
            f"{WITH_PYMC}."
        )
    return (
        "Attach scores with attach_scores(tree, model, *args) or attach_scores(tree, "
        "logdensity_fn=f), on the command line with --model FILE.py. PyMC keeps them with "
        f"{WITH_PYMC}, nutpie with store_gradient=True and store_unconstrained=True."
    )


def _looks_like_scores(variable: "xarray.DataArray") -> bool:
    return (
        variable.ndim == 3
        and {"chain", "draw"} <= set(variable.dims)
        and variable.dtype.kind == "f"
    )


def sample_dataset(variables: Mapping[str, np.ndarray]) -> "xarray.Dataset":
    """Return variables (chain, draw, ...) with ArviZ's dims and coordinates, and none of its
    attrs."""
    import arviz_base

    check_names("Variables", {name: array.shape[2:] for name, array in variables.items()})
    # Its attributes would say that ArviZ made the variables, with a time that makes equal trees
    # differ.
    dataset = arviz_base.dict_to_dataset(dict(variables), check_conventions=False)
    # In place, on a dataset that is new: `drop_attrs` merges all variables anew for each of them,
    # minutes of 3,000.
    dataset.attrs = {}
    for variable in dataset.variables.values():
        variable.attrs = {}
    return dataset


SAMPLE_DIMS = ("chain", "draw")


def check_names(
    where: str, shapes: Mapping[Any, tuple[int, ...]], dims: tuple[str, ...] = SAMPLE_DIMS
) -> None:
    """Refuse names under which variables cannot be saved, or would be lost as the coordinate of a
    dim.

    Parameters
    ----------
    shapes : of each variable at one draw; its axes become the dims ``NAME_dim_0``, ``NAME_dim_1``,
        as ArviZ's.
    dims : those that all variables have in common.
    """
    bad = [name for name in shapes if not _can_be_saved(name)]
    if bad:
        raise InputError(
            where, "names without '/' and null bytes", bad, "Rename them: no file could have them."
        )
    # xarray takes a variable with the name of a dim for its coordinate, and drops it without a
    # word.
    axes = {f"{name}_dim_{i}" for name, shape in shapes.items() for i in range(len(shape))}
    lost = [name for name in shapes if name in axes or name in dims]
    if lost:
        expected = f"names other than {', '.join([*dims, *sorted(axes & set(lost))])}"
        raise InputError(
            where, expected, lost, "Rename them: they are those of dims, and would be lost."
        )


def _can_be_saved(name: object) -> bool:
    if not isinstance(name, str) or name in ("", ".", "..") or set(name) & set("/\0"):
        return False
    # halves of letters, which UTF-8 has not
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def as_chain_draw(where: str, name: str, values: Any) -> np.ndarray:
    """Return a real array, with chains and draws first if its dims are named; refuse one that names
    only one."""
    named = {"chain", "draw"} & set(getattr(values, "dims", ()))
    if len(named) == 1 or stacked_dim(values) is not None:
        raise InputError(
            where,
            f"`{name}` with dims chain and draw",
            tuple(map(str, values.dims)),
            dims_cure(values),
        )
    if hasattr(values, "transpose") and {"chain", "draw"} <= set(getattr(values, "dims", ())):
        values = values.transpose("chain", "draw", ...)
    return as_real(where, name, values)


def stacked_dim(values: Any) -> str | None:
    """Return the dim of a labelled array that has chains and draws in one, as ``az.extract`` makes
    it."""
    dims = getattr(values, "dims", ())
    for dim in () if {"chain", "draw"} & set(dims) else dims:
        # `az.extract` names the dim "sample", `stack` whatever a person likes: the MultiIndex
        # tells.
        levels = getattr(getattr(values, "indexes", {}).get(dim), "names", ())
        if dim == "sample" or {"chain", "draw"} <= set(levels):
            return str(dim)
    return None


def dims_cure(values: Any, dims: tuple[str, ...] = ("chain", "draw")) -> str:
    """Return what to do with a labelled array that has not all of `dims`."""
    if stacked := stacked_dim(values):
        return (
            f'Unstack chains and draws: unstack("{stacked}") of the array, or of the dataset of '
            "each group."
        )
    cure = f"Rename its dims, or name variables that have {' and '.join(dims)}."
    missing = set(dims) - set(values.dims)
    return (
        f"Select with a list, which keeps the dim: isel({missing.pop()}=[0]). {cure}"
        if len(missing) == 1
        else cure
    )


def check_same_labels(where: str, name: str, values: Any, other: Any) -> None:
    """Refuse an array whose chains or draws are labelled otherwise than those of `other`, each if
    it has labels."""
    for dim in ("chain", "draw"):
        if dim in getattr(values, "coords", ()) and dim in getattr(other, "coords", ()):
            ours, theirs = (
                np.asarray(values.coords[dim].values),
                np.asarray(other.coords[dim].values),
            )
            # xarray would align by label without a word; NumPy arrays beside it would not.
            if ours.shape == theirs.shape and not np.array_equal(ours, theirs):
                place = int(np.argmax(ours != theirs)) if ours.ndim else 0
                got = f"{ours.flat[place]} for {theirs.flat[place]} at position {place}"
                cure = (
                    "Select them by label in the order of the trace: values.sel(chain=..., "
                    "draw=...)."
                )
                raise InputError(
                    where, f"`{name}` with the trace's own labels of dim {dim}", got, cure
                )


def _check_declared(attrs: Mapping[Any, Any]) -> None:
    for name, value in ATTRS.items():
        if attrs.get(name, value) != value:
            raise InputError(
                "read_trace", f"attribute {name}={value!r}", repr(attrs[name]), _CURES[name]
            )


def oriented(
    where: str,
    variable: "xarray.DataArray",
    dims: tuple[str, ...] = ("chain", "draw"),
    *,
    rank: int | None = None,
) -> "xarray.DataArray":
    """Return a variable with `dims` first; refuse one without them or, where `rank` is given, of
    another rank."""
    if not set(dims) <= set(variable.dims) or rank not in (None, variable.ndim):
        wanted = dims if rank is None else (*dims, PARAMETER)[:rank]
        raise InputError(
            where,
            f"`{variable.name}` with dims {', '.join(wanted[:-1])} and {wanted[-1]}",
            tuple(map(str, variable.dims)),
            dims_cure(variable, dims),
        )
    return variable.transpose(*dims, ...)


def check_aligned(
    where: str,
    tree: "xarray.DataTree",
    stats: "xarray.DataArray | xarray.DataTree",
    *,
    labels: bool = True,
) -> None:
    """Refuse statistics of the sampler with other numbers, or `labels`, of chains or draws than the
    posterior group."""
    posterior = tree.children.get("posterior")
    if posterior is None:
        return
    for dim in ("chain", "draw"):
        if dim not in posterior.sizes or dim not in stats.sizes:
            continue
        ours, got = posterior.sizes[dim], f"{stats.sizes[dim]} there"
        same = ours == stats.sizes[dim]
        # As many draws are not the same draws: a slice of one group alone shifts all scores by its
        # start.
        if labels and same and dim in posterior.coords and dim in stats.coords:
            one, other = (array.coords[dim].values for array in (posterior, stats))
            same = bool(np.array_equal(one, other))
            if not same:
                place = int(np.argmax(one != other))
                got = f"label {other[place]} there for {one[place]} at position {place}"
        if not same:
            expected = f"the same {dim}s in posterior ({ours}) and {GROUP}"
            raise InputError(
                where, expected, got, "Select chains and draws on the whole tree, not on one group."
            )


def coordinate_labels(variable: "xarray.DataArray") -> tuple[str, ...] | None:
    """Return the labels along the last dim; None where its coordinate holds no text."""
    dim = variable.dims[-1]
    # Numbers are positions, which two programs may count alike in different orders: only text is a
    # label.
    if dim in variable.coords and variable[dim].dtype.kind in "OUST":
        return tuple(str(label) for label in variable[dim].values)
    return None


def element_names(
    name: str, shape: tuple[int, ...], labels: tuple[tuple[str, ...], ...] | None = None
) -> list[str]:
    """Return ``name``, ``name[0]`` or ``name[0, 1]`` for every element, in C order; `labels`
    replace positions."""
    if not shape:
        return [name]
    axes = labels or tuple(tuple(map(str, range(size))) for size in shape)
    return [
        f"{name}[{', '.join(axis[i] for axis, i in zip(axes, index, strict=True))}]"
        for index in np.ndindex(*shape)
    ]


def with_trace(tree: "xarray.DataTree", trace: Trace, attrs: dict[str, str]) -> "xarray.DataTree":
    """Return a new tree: `tree` with the draws and scores of `trace`, and `attrs`, in its
    `sample_stats` group."""
    import xarray

    # Shallow: arrays are shared and never written to.
    new = tree.copy()
    stats = new.children[GROUP].to_dataset() if GROUP in new.children else xarray.Dataset()
    stats = stats.drop_vars([SCORES, DRAWS, PARAMETER], errors="ignore")
    if stats.sizes.get(PARAMETER, trace.draws.shape[-1]) != trace.draws.shape[-1]:
        # Statistics of another parameterisation, as nutpie's mass matrix, would be mislabelled.
        stats = stats.drop_dims(PARAMETER)
    # Labels of chains and draws are the posterior's: other ones in `sample_stats` would be refused
    # at the next reading.
    known = new.children["posterior"].coords if "posterior" in new.children else stats.coords
    coords = {
        dim: known[dim].values if dim in known else np.arange(size)
        for dim, size in zip(("chain", "draw"), trace.draws.shape[:2], strict=True)
    }
    dims = ("chain", "draw", PARAMETER)
    added = xarray.Dataset(
        {DRAWS: (dims, trace.draws), SCORES: (dims, trace.scores)},
        coords={**coords, PARAMETER: np.array(trace.names, dtype=object)},
    )
    merged = stats.assign(added.variables)
    merged.attrs = {**stats.attrs, **ATTRS, "mcmcpost_version": version("mcmcpost"), **attrs}
    new[GROUP] = xarray.DataTree(merged)
    return new


def posterior_sites(where: str, tree: "xarray.DataTree") -> dict[str, np.ndarray]:
    """Return the variables (chain, draw, ...) of the posterior group."""
    if "posterior" not in tree.children:
        raise InputError(
            where, "a posterior group", ", ".join(tree.children) or "no group", "Load a trace."
        )
    return {
        str(name): variable.transpose("chain", "draw", ...).values
        for name, variable in tree.children["posterior"].to_dataset().data_vars.items()
        if {"chain", "draw"} <= set(variable.dims)
    }


def refuse_outside(
    where: str, sites: Mapping[str, np.ndarray], outside: Mapping[str, np.ndarray]
) -> None:
    """Refuse draws (c, n) of sites (c, n, ...) that have no unconstrained counterpart, by those of
    the first site."""
    name, bad = next(iter(outside.items()))
    chain, draw = np.argwhere(bad)[0]
    got = (
        f"{bad.sum()} of {bad.size} draws of `{name}` on its boundary or beyond, the first at "
        f"chain {chain}, draw {draw}: {sites[name][chain, draw].tolist()}"
    )
    cure = (
        "Pass the model that was sampled. Where rounding has moved a draw to the boundary, leave "
        "that draw out."
    )
    raise InputError(where, "draws inside the support of every site", got, cure)


def stored_draws(
    where: str, tree: "xarray.DataTree"
) -> tuple[np.ndarray, tuple[str, ...] | None] | None:
    """Return the stored unconstrained draws (c, n, d) and their labels, None where there are
    none."""
    if GROUP not in tree.children or DRAWS not in tree.children[GROUP].data_vars:
        return None
    if _is_reserved(tree.children[GROUP].to_dataset()[DRAWS]):
        return None
    draws = oriented(where, tree.children[GROUP].to_dataset()[DRAWS], rank=3)
    return draws.values, coordinate_labels(draws)


def posterior_as_draws(where: str, tree: "xarray.DataTree") -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the posterior group as unconstrained draws (c, n, d), and their labels."""
    sites = posterior_sites(where, tree)
    names = tuple(
        name for key, value in sites.items() for name in element_names(key, value.shape[2:])
    )
    if not names:
        raise InputError(
            where,
            "variables with dims chain and draw",
            "none in the posterior group",
            "Load a trace.",
        )
    for key, value in sites.items():
        if value.dtype.kind not in "fiub":
            cure = "Leave it out of the posterior group."
            raise InputTypeError(
                where, f"`{key}` to be a real number", f"dtype {value.dtype}", cure
            )
    # In the order of the tree, as the docstring of `attach_scores` promises, and not sorted as
    # `ravel_pytree` would.
    return np.concatenate(
        [v.reshape(*v.shape[:2], -1) for v in sites.values()], axis=-1, dtype=np.float64
    ), names


def telling_draws(tree: "xarray.DataTree") -> np.ndarray:
    """Return draws (c, n, p) that tell chains from others: the unconstrained ones, or else the
    posterior's floats; of large ones the first."""
    stats = tree.children.get(GROUP)
    group = tree.children.get("posterior") if stats is None or DRAWS not in stats else stats
    if group is None or not {"chain", "draw"} <= set(group.dims):
        return np.zeros((0, 0, 0))
    # Integers may be equal by chance; floats of different chains are not.
    chosen = (group[DRAWS],) if group is stats else group.data_vars.values()
    ordered = [
        one.transpose("chain", "draw", ...)
        for one in chosen
        if {"chain", "draw"} <= set(one.dims) and one.dtype.kind == "f"
    ]
    if is_large(sum(one.size for one in ordered)):
        ordered = [one.isel(draw=slice(STARTS)) for one in ordered]
    parts = [one.values.reshape(*one.shape[:2], -1) for one in ordered]
    return np.concatenate(parts, axis=-1) if parts else np.zeros((0, 0, 0))
