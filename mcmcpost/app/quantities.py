"""The quantities that are estimated: posterior variables, those of a model file, and expressions,
as named scalars."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np

from mcmcpost.app.edge import say
from mcmcpost.app.expressions import Expression, evaluate_expressions, evaluate_sides
from mcmcpost.app.model_file import ModelFile
from mcmcpost.core.arrays import read_values
from mcmcpost.core.errors import InputError
from mcmcpost.core.precision import in_float64
from mcmcpost.core.runtime import did_you_mean
from mcmcpost.trees import PosteriorVariables, posterior_variables
from mcmcpost.trees.convention import check_names, element_names, sample_dataset
from mcmcpost.trees.integrands import names_of
from mcmcpost.trees.margins import Compared
from mcmcpost.trees.numpyro_model import ProbedModel

if TYPE_CHECKING:
    import xarray


GROUP = "generated_quantities"

BATCH = 512


def with_quantities(tree: "xarray.DataTree", model_file: ModelFile) -> "xarray.DataTree":
    """Return a new tree: `tree` with the model file's ``quantities`` at every draw in
    `generated_quantities`."""
    import xarray

    if model_file.quantities is None:
        return tree.copy()
    posterior = tree["posterior"]
    values = evaluate_quantities(model_file, posterior_variables(tree).draws())
    # Expressions name both alike, and could not tell which is meant.
    _refuse_taken(f"Model file {model_file.path}", values, posterior.data_vars)
    dims = ("chain", "draw")
    variables = {
        name: ((*dims, *(f"{name}_dim_{i}" for i in range(array.ndim - 2))), array)
        for name, array in values.items()
    }
    new = tree.copy()
    # Labels of chains and draws are the posterior's, with which xarray would otherwise align by
    # position.
    coords = {dim: posterior[dim].values for dim in dims if dim in posterior.coords}
    new[GROUP] = xarray.DataTree(xarray.Dataset(variables, coords=coords))
    return new


def _refuse_taken(where: str, quantities: Iterable[str], variables: Iterable[Any]) -> None:
    taken = sorted({*quantities} & {*variables})
    if taken:
        raise InputError(
            where,
            "`quantities(draw)` to name what is no variable of the trace",
            taken,
            "Rename them.",
        )


def example_tree(model_file: ModelFile, probed: ProbedModel) -> "xarray.DataTree":
    """Return the tree that a run of the model will end in, with one draw of ones, from an abstract
    run.

    What is wrong with ``quantities``, or with what is asked of the tree, appears before the
    sampling.

    Raises
    ------
    ValueError
        The name of a quantity is taken by a variable of the trace or cannot be saved; it is empty
        or not real.
    TypeError
        A quantity is no number.
    """
    import xarray

    where = f"Model file {model_file.path}"

    def at_one(draw: jax.Array) -> tuple[dict[str, Any], dict[str, Any]]:
        sites = probed.sites_of(draw)
        return sites, model_file.named(sites)

    with jax.enable_x64(True):
        # By shapes alone: a quantity that fails does so before hours of sampling, and costs nothing
        # here.
        sites, values = jax.eval_shape(
            at_one, jax.ShapeDtypeStruct((len(probed.names),), np.float64)
        )
    _refuse_taken(where, values, sites)
    bad = [
        name for name, value in values.items() if value.dtype.kind not in "fiub" or not value.size
    ]
    if bad:
        got = f"{values[bad[0]].dtype} of shape {values[bad[0]].shape} for {bad[0]}"
        raise InputError(where, "`quantities(draw)` to return real numbers", got, "Leave it out.")
    check_names(where, {name: value.shape for name, value in values.items()})
    groups = {"posterior": sites, GROUP: values} if values else {"posterior": sites}
    # Names and shapes are what is tried on it; values that any expression can take.
    ones = {
        group: {name: np.ones((1, 1, *v.shape), v.dtype) for name, v in of.items()}
        for group, of in groups.items()
    }
    return xarray.DataTree.from_dict(
        {group: sample_dataset(variables) for group, variables in ones.items()}
    )


def evaluate_quantities(
    model_file: ModelFile, posterior: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the file's ``quantities`` at every draw in float64, {name: (c, n)}; empty if the file
    has none.

    Parameters
    ----------
    posterior
        Constrained draws, {variable: (c, n, ...)}.
    """
    if model_file.quantities is None:
        return {}
    lead = next(iter(posterior.values())).shape[:2]
    flat = {
        name: values.reshape(-1, *values.shape[2:]).astype(
            np.float64 if values.dtype.kind == "f" else values.dtype
        )
        for name, values in posterior.items()
    }

    names: list[str] = []

    def at_one(row: dict[str, Any]) -> list[Any]:
        values = model_file.named(row)
        names[:] = list(values)  # JAX would sort a dict by its keys
        return list(values.values())

    @in_float64
    def at_all(draws: dict[str, np.ndarray]) -> list[Any]:
        # In blocks: a quantity that simulates has intermediate arrays for every draw at once under
        # `vmap`.
        return jax.jit(lambda rows: jax.lax.map(at_one, rows, batch_size=BATCH))(draws)

    arrays = at_all(flat)
    return {
        name: array.reshape(*lead, *array.shape[1:])
        for name, array in zip(names, arrays, strict=True)
    }


class Selection(NamedTuple):
    """What is asked of a trace.

    expressions : of its variables, by name.
    names : of variables, or what ArviZ's `filter_vars` finds them by; None for all.
    filter_vars : None for whole names, ``"like"`` for parts of them, ``"regex"`` for regular
        expressions.
    """

    expressions: Mapping[str, str | Expression]
    names: Sequence[str] | None = None
    filter_vars: Literal["like", "regex"] | None = None


Scalars = dict[str, np.ndarray | Compared]


def named_scalars(
    tree: "xarray.DataTree", variables: PosteriorVariables, selection: Selection
) -> Scalars:
    """Return the scalars of the posterior, the stored quantities and the expressions that are
    asked, {name: (c, n)}, of comparisons with their sides.

    Parameters
    ----------
    variables : those of the posterior group of `tree`. Their scalars are views of the tree's own
        arrays.

    Raises
    ------
    ValueError
        Two of them have the same name, no variable has a name that is asked for, or an expression
        contains an unknown variable.
    """
    # Read when they are named: an expression of two scalars must not read a trace of gigabytes.
    known = ValuesOnDemand(variables.usable | _stored(tree))
    chosen = chosen_names(list(known), selection)
    scalars: Scalars = {}
    for name in (name for name in chosen if name in variables.usable):
        elements = variables.elements_of(name)
        _add(scalars, elements.names, np.moveaxis(elements.values, -1, 0))
    kept = {name: known[name] for name in chosen if name not in variables.usable}
    sides = evaluate_sides(known, selection.expressions, known.numbered)
    computed = evaluate_expressions(known, selection.expressions, known.numbered)
    for name, array in (*kept.items(), *computed.items()):
        places = list(np.ndindex(array.shape[2:]))
        parts: list[np.ndarray | Compared] = [array[(..., *i)] for i in places]
        if name in sides:
            parts = [
                Compared(array[(..., *i)], sides[name][(..., *i, slice(None))]) for i in places
            ]
        _add(scalars, element_names(name, array.shape[2:]), parts)
    return scalars


def where_they_are(
    tree: "xarray.DataTree", variables: PosteriorVariables, selection: Selection
) -> list[str] | Scalars:
    """Return the names of what is asked, which leave large variables in their chunks; see
    `named_scalars`.

    Expressions, and stored quantities, are made of all draws.
    """
    # What is computed from draws needs them; names alone can be summed chunk by chunk.
    if selection.expressions or GROUP in tree.children:
        return named_scalars(tree, variables, selection)
    return chosen_names(list(variables.usable), selection)


def chosen_names(known: list[str], selection: Selection) -> list[str]:
    """Return the names of the variables that are asked for, in the order of ArviZ's `var_names`."""
    import arviz_base
    import xarray

    where, cure = "--var-names", f"There are {', '.join(known)}."
    if selection.names is None:
        if selection.filter_vars is not None:
            raise InputError("--filter-vars", "names in --var-names", "none", cure)
        return known
    exact = selection.filter_vars is None
    wanted = list(selection.names)
    if exact:  # "mu,sigma" are two names, where no variable has that one
        parts = ([name] if name in known else name.split(",") for name in wanted)
        wanted = [entry.strip() for listed in parts for entry in listed if entry.strip()]
        # NumPyro's name of a site in a scope, which has dots in the tree.
        wanted = [name if name in known else name.replace("/", ".") for name in wanted]
    for name in (given.removeprefix("~") for given in wanted if exact):
        if name not in known:
            raise InputError(where, "names of variables", name, did_you_mean(name, known) + cure)
    # ArviZ would leave it out without a word.
    if both := [name for name in wanted if f"~{name}" in wanted]:
        raise InputError(where, "each name with ~ or without", f"{both[0]} and ~{both[0]}", cure)
    # ArviZ's own selection, on a tree of names: "~", like and regex mean what they mean in its
    # functions.
    names = xarray.Dataset({name: (("chain", "draw"), np.zeros((1, 1))) for name in known})
    tree = xarray.DataTree.from_dict({"posterior": names})
    try:
        extracted = arviz_base.extract(
            tree,
            var_names=wanted,
            filter_vars=selection.filter_vars,
            combined=False,
            keep_dataset=True,
        )
    except re.error as error:
        raise InputError(
            where, "regular expressions", f"{error.pattern!r}: {error}", cure
        ) from error
    if not extracted.data_vars:
        expected = "names of variables" if exact else "what some variable has in its name"
        if any(name.startswith("~") for name in wanted):
            expected = "~NAME to leave a variable"
        raise InputError(where, expected, ", ".join(wanted) or "none", cure)
    return [str(name) for name in extracted.data_vars]


def say_left_out(variables: PosteriorVariables) -> None:
    """Warn of variables that are not estimated."""
    if variables.left_out:
        say("warning", variables.left_out_text())


def _add(scalars: Scalars, names: Sequence[str], arrays: Iterable[np.ndarray | Compared]) -> None:
    taken = sorted(set(names) & set(scalars))
    if taken:
        raise InputError("Quantities", "names not taken yet", taken, "Rename the quantity.")
    scalars |= dict(zip(names, arrays, strict=True))


def _stored(tree: "xarray.DataTree") -> "dict[str, xarray.DataArray]":
    group = tree.children.get(GROUP)
    if group is None:
        return {}
    return {str(name): v.transpose("chain", "draw", ...) for name, v in group.data_vars.items()}


class ValuesOnDemand(Mapping[str, np.ndarray]):
    """Values of variables by name, each read when it is asked for, and of elements by their name in
    a table.

    numbered : names of the variables whose elements are numbered, other than by their position.
    """

    def __init__(self, variables: "Mapping[str, xarray.DataArray]") -> None:
        self.variables = variables
        self.numbered = {name for name, variable in variables.items() if _is_numbered(variable)}

    def __contains__(self, name: object) -> bool:
        return name in self.variables or self._element(str(name)) is not None

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self.variables:
            return read_values(self.variables[name])
        element = self._element(name)
        if element is None:
            raise KeyError(name)
        return read_values(element)

    def _element(self, name: str) -> "xarray.DataArray | None":
        # Elements by their names in tables: positions and coordinates differ where files count from
        # one.
        variable = self.variables.get(name.partition("[")[0])
        names = () if variable is None or "[" not in name else names_of(variable)
        if variable is None or name not in names:
            return None
        place = np.unravel_index(names.index(name), variable.shape[2:])
        return variable[(slice(None), slice(None), *map(int, place))]

    def __iter__(self) -> Iterator[str]:
        return iter(self.variables)

    def __len__(self) -> int:
        return len(self.variables)


def _is_numbered(variable: "xarray.DataArray") -> bool:
    """Return whether whole numbers label a dim of the elements, and are not their positions."""
    axes = [np.asarray(variable[dim].values) for dim in variable.dims[2:]]
    return any(
        axis.dtype.kind in "iu" and not np.array_equal(axis, np.arange(len(axis))) for axis in axes
    )
