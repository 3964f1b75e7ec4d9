"""Values of the integrands at every draw: variables, arrays or functions of one constrained
draw."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float

from mcmcpost.core.arguments import check_function, check_kind, check_trace_type
from mcmcpost.core.arrays import ENTRIES, is_chunked, merged, read_values, slices_of
from mcmcpost.core.errors import InputError, InputTypeError, warn
from mcmcpost.core.precision import NOT_TRACEABLE, in_either_precision
from mcmcpost.core.runtime import did_you_mean
from mcmcpost.trees.convention import (
    GROUP,
    as_chain_draw,
    check_same_labels,
    element_names,
    oriented,
)
from mcmcpost.trees.margins import Compared, margins_of, sides_of

if TYPE_CHECKING:
    import xarray


_BATCH = 512


class Integrands(NamedTuple):
    """Named integrands at every draw.

    names : p labels.
    values : (c, n, p), read-only: they may be the arrays of the tree.
    events : (p,) whether a constant zero or one may be that of an event that was not seen: not
        under the name of a parameter, an element of a float variable.
    shapes : of one draw of each variable, array or function, by name; their elements are the
        integrands, in order.
    margins : of integrands that are events of a comparison, by how much its sides differ, in one
        unit or more.
    """

    names: tuple[str, ...]
    values: Float[np.ndarray, "c n p"]
    events: Bool[np.ndarray, " p"]
    shapes: dict[str, tuple[int, ...]]
    margins: Mapping[str, list[Float[np.ndarray, "c n"]]] = MappingProxyType({})


def integrand_values(tree: "xarray.DataTree", integrands: Any = None) -> Integrands:
    """Return the values of the integrands at every draw of `tree`.

    Parameters
    ----------
    tree : a tree with a posterior group.
    integrands : None for every variable of the posterior group that is a number for every draw (a
        warning names the others); a list of its variable names; an array (c, n) or (c, n, p), or a
        function of one constrained draw, a dict of arrays, both named "f"; or a mapping from names
        to such arrays and functions. A function is compiled and vectorised in float64; one that JAX
        cannot trace is called draw by draw.

    Returns
    -------
    Integrands : elements of an array are named ``theta[0]``, ``theta[0, 1]``, those of a variable
        by its coordinates, as in ``az.summary``; integers and booleans become floats.

    Raises
    ------
    ValueError : an unknown variable, a shape that does not start with (chain, draw), or nothing
        asked for.
    TypeError : a value is neither an array nor a function, or is not numeric.
    """
    check_trace_type("integrands", tree)
    parts = _parts_of(tree, integrands)
    if not parts:
        raise InputError(
            "integrands", "at least one integrand", "none", "Name a variable or a function."
        )
    names = tuple(name for integrand in parts for name in integrand.names)
    # Two columns of one name could not be told apart in a table, and would overwrite each other in
    # a mapping.
    if len(set(names)) != len(names):
        repeated = sorted({name for name in names if names.count(name) > 1})
        raise InputError(
            "integrands", "distinct names", repeated, "Rename the repeated integrands."
        )
    if not names:
        raise InputError(
            "integrands",
            "at least one integrand",
            "arrays without values",
            "Give one value a draw.",
        )
    values = (
        parts[0].values
        if len(parts) == 1
        else _side_by_side([integrand.values for integrand in parts])
    )
    shapes = {name: shape for integrand in parts for name, shape in integrand.shapes.items()}
    margins = {name: margin for one in parts for name, margin in one.margins.items()}
    events = np.concatenate([integrand.events for integrand in parts])
    return Integrands(names, values, events, shapes, margins)


def _parts_of(tree: "xarray.DataTree", integrands: Any) -> list[Integrands]:
    """Return the integrands of each variable, array or function, by the kind of what was given."""
    chains_draws = _chains_draws(tree)
    if integrands is None:
        variables = posterior_variables(tree)
        # Chains and draws in one dim, as `az.extract` leaves them, have a cure; "no variable" would
        # not say it.
        if not variables.usable:
            for variable in _posterior(tree).data_vars.values():
                # tells what to do with chains and draws that are one dim
                oriented("integrands", variable)
        if variables.left_out:
            warn(f"Integrands: {variables.left_out_text()}. Encode what you ask for as numbers.")
        return list(map(variables.elements_of, variables.usable))
    if isinstance(integrands, str):
        return [named_values(_variable(tree, integrands))]
    if isinstance(integrands, (list, tuple)) and all(isinstance(name, str) for name in integrands):
        return [named_values(_variable(tree, name)) for name in integrands]
    if isinstance(integrands, Mapping):
        return _of_entries(tree, integrands, chains_draws)
    if callable(integrands):
        return _of_entries(tree, {"f": integrands}, chains_draws)
    # A method that is passed in the place of the integrands would be tried as an array.
    if not hasattr(integrands, "__array__") and (
        not isinstance(integrands, Sequence) or any(map(callable, integrands))
    ):
        expected, got, cure = (
            "variable names, an array, a function, or a mapping to such",
            f"a {type(integrands).__name__}",
            "A method is passed as `method`.",
        )
        if isinstance(integrands, Sequence):
            got, cure = f"{got} of functions", 'Name each: {"square": lambda draw: draw["x"] ** 2}.'
        raise InputTypeError("integrands", expected, got, cure)
    return [_of_array(tree, "f", integrands, chains_draws)]


def _side_by_side(parts: list[Float[np.ndarray, "c n _"]]) -> Float[np.ndarray, "c n p"]:
    width = sum(array.shape[-1] for array in parts)
    return np.concatenate(parts, axis=-1, out=np.zeros((*parts[0].shape[:2], width)))


class PosteriorVariables(NamedTuple):
    """The variables of a posterior group.

    usable : those that are numbers for every chain and draw, by name, with dims chain and draw
        first.
    left_out : names of the others.
    """

    usable: "dict[str, xarray.DataArray]"
    left_out: tuple[str, ...]

    def left_out_text(self) -> str:
        """Return which variables are left out, and why."""
        return f"left out {', '.join(self.left_out)}: not a number for every chain and draw"

    def draws(self) -> dict[str, np.ndarray]:
        """Return the usable variables as arrays (c, n, ...), without a copy but of those in chunks
        of dask."""
        return {name: read_values(variable) for name, variable in self.usable.items()}

    def pieces(self) -> "Iterator[dict[str, np.ndarray]]":
        """Yield the usable variables (c, b, ...), some draws at a time where they are in chunks of
        dask."""
        # One pass for all functions and variables, by the draws of the first variable's chunks.
        chunked = [variable for variable in self.usable.values() if is_chunked(variable)]
        if not chunked:
            yield self.draws()
            return
        width = sum(variable[:, 0].size for variable in self.usable.values())
        for chunk in slices_of(merged(chunked[0].data.chunks[1], max(1, ENTRIES // width))):
            yield {name: variable[:, chunk].values for name, variable in self.usable.items()}

    def scalars(self) -> "Iterator[tuple[tuple[str, ...], Float[np.ndarray, 'c n p']]]":
        """Yield the names and values of the elements of each usable variable, of float64 variables
        without a copy."""
        for name in self.usable:
            names, values, *_ = self.elements_of(name)
            yield names, values

    def elements_of(self, name: str) -> Integrands:
        """Return the named elements of a usable variable, of a float64 variable without a copy."""
        return named_values(self.usable[name])


def posterior_variables(tree: "xarray.DataTree") -> PosteriorVariables:
    """Return the variables of the posterior group of `tree`."""
    variables = {str(name): variable for name, variable in _posterior(tree).data_vars.items()}
    usable = {
        name: oriented("integrands", variable)
        for name, variable in variables.items()
        # Texts and times are no integrands; xarray has them in the same group.
        if variable.dtype.kind in "fiub" and {"chain", "draw"} <= set(variable.dims)
    }
    return PosteriorVariables(usable, tuple(name for name in variables if name not in usable))


def _posterior(tree: "xarray.DataTree") -> "xarray.DataTree":
    check_trace_type("integrands", tree)
    if "posterior" not in tree.children:
        cure = "Pass an array of values."
        raise InputError(
            "integrands", "a posterior group", ", ".join(tree.children) or "none", cure
        )
    return tree.children["posterior"]


def _chains_draws(tree: "xarray.DataTree") -> tuple[int, int]:
    for group in ("posterior", GROUP):
        node = tree.children.get(group)
        if node is not None and {"chain", "draw"} <= set(node.sizes):
            return node.sizes["chain"], node.sizes["draw"]
    for variable in (
        tree.children["posterior"].data_vars.values() if "posterior" in tree.children else ()
    ):
        oriented("integrands", variable)  # tells what to do with chains and draws that are one dim
    raise InputError(
        "integrands",
        "dims chain and draw in the tree",
        ", ".join(tree.children) or "no group",
        "Load a trace.",
    )


def _variable(tree: "xarray.DataTree", name: str) -> "xarray.DataArray":
    variables = _posterior(tree).data_vars
    if name not in variables:
        got, cure = name, f"{did_you_mean(name, variables)}It has {', '.join(map(str, variables))}."
        # Quantities of a model file, which the command line estimates by their names.
        groups = {group: node.data_vars.get(name) for group, node in tree.children.items()}
        other = next(
            (k for k, v in groups.items() if v is not None and {"chain", "draw"} <= set(v.dims)),
            None,
        )
        if other is not None:
            got = f"{name}, which is in the group {other}"
            cure = f'Pass its values: {{"{name}": tree["{other}"]["{name}"]}}.'
        raise InputError("integrands", "a variable of the posterior group", got, cure)
    return oriented("integrands", variables[name])


def names_of(variable: "xarray.DataArray") -> tuple[str, ...]:
    """Return the names of the elements of a variable of dims chain, draw, …, by its coordinates."""
    dims = [str(dim) for dim in variable.dims[2:]]
    labels = tuple(_labels_along(variable, dim) for dim in dims)
    return tuple(element_names(str(variable.name), variable.shape[2:], labels))


def _labels_along(variable: "xarray.DataArray", dim: str) -> tuple[str, ...]:
    """Return the coordinates along a dim, as ArviZ labels its tables; positions where they are none
    or repeat."""
    labels = tuple(map(str, variable[dim].values))
    # Coordinates may repeat, as the county of each observation.
    return labels if len(set(labels)) == len(labels) else tuple(map(str, range(len(labels))))


def named_values(variable: "xarray.DataArray") -> Integrands:
    """Return the elements of a variable of dims chain, draw, …, named by its coordinates."""
    name, names = str(variable.name), names_of(variable)
    values = _numeric(name, variable, (variable.shape[0], variable.shape[1]))
    return Integrands(
        names, values, np.full(len(names), variable.dtype.kind != "f"), {name: variable.shape[2:]}
    )


def _of_entries(
    tree: "xarray.DataTree", entries: Mapping[Any, Any], chains_draws: tuple[int, int]
) -> list[Integrands]:
    for name in entries:
        check_kind(
            "integrands", "key", name, str, "The keys of a dict of integrands are their names."
        )
    for name, entry in entries.items():
        if isinstance(entry, str):
            expected, cure = f"`{name}` to be an array or a function", "Such as lambda d: d[NAME]."
            raise InputTypeError("integrands", expected, repr(entry), cure)
    computed = any(map(callable, entries.values()))
    known = computed or "posterior" in tree.children
    variables = posterior_variables(tree) if known else PosteriorVariables({}, ())
    arrays = _evaluated(entries, variables, chains_draws) if computed else {}
    compared = _sides(entries, arrays, variables, chains_draws)
    # A parameter that is zero throughout is fixed; an event that is zero throughout was not seen,
    # and has an error.
    floats = (variable for variable in variables.usable.values() if variable.dtype.kind == "f")
    parameters = {name for variable in floats for name in names_of(variable)}
    parts = []
    for name, entry in entries.items():
        values, sides = arrays.get(name, entry), compared.get(name)
        if isinstance(entry, Compared):
            values, sides = entry
        integrand = _of_array(tree, name, values, chains_draws)
        parts.append(
            integrand._replace(
                events=np.array([element not in parameters for element in integrand.names]),
                margins={} if sides is None else _margins(integrand, sides),
            )
        )
    return parts


def _sides(
    entries: Mapping[Any, Any],
    arrays: Mapping[str, np.ndarray],
    variables: PosteriorVariables,
    chains_draws: tuple[int, int],
) -> dict[str, np.ndarray]:
    """Return both sides (c, n, ..., 2) of the functions that are comparisons; arrays : their
    values."""
    functions = {}
    with jax.enable_x64(True):
        row = {
            name: jax.ShapeDtypeStruct(
                variable.shape[2:], np.float64 if variable.dtype.kind == "f" else variable.dtype
            )
            for name, variable in variables.usable.items()
        }
        for name, array in arrays.items():
            # Only what has two values can be an event: nothing else is traced again.
            if np.isin(array, (0, 1)).all():
                try:
                    both = sides_of(entries[name], row)
                except (*NOT_TRACEABLE, TypeError, ValueError):
                    # A function of single precision, or of numbers only: its values are right, and
                    # what it compares remains unknown.
                    continue
                if both is not None:
                    functions[name] = both
    return _evaluated(functions, variables, chains_draws) if functions else {}


def _margins(
    integrand: Integrands, sides: Float[np.ndarray, "c n *shape 2"]
) -> dict[str, list[Float[np.ndarray, "c n"]]]:
    """Return the margins of the elements of an integrand, of those that have any."""
    columns = np.asarray(sides, np.float64).reshape(*integrand.values.shape, 2)
    by_name = {
        name: margins_of(integrand.values[..., j], columns[..., j, :])
        for j, name in enumerate(integrand.names)
    }
    return {name: margins for name, margins in by_name.items() if margins}


def _rows(draws: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return variables (c, n, ...) with chains and draws as one axis, floats in float64, in native
    byte order."""
    # Files may hold big-endian numbers, which JAX refuses. Integers stay so: they may be indices.
    return {
        name: values.reshape(-1, *values.shape[2:]).astype(
            np.float64 if values.dtype.kind == "f" else values.dtype.newbyteorder("="), copy=False
        )
        for name, values in draws.items()
    }


def _of_array(
    tree: "xarray.DataTree", name: str, values: Any, chains_draws: tuple[int, int]
) -> Integrands:
    for group in ("posterior", GROUP):
        if group in tree.children:
            check_same_labels("integrands", name, values, tree.children[group])
    array = as_chain_draw("integrands", name, values)
    if array.shape[:2] != chains_draws or array.ndim < 2:
        cure = "Give one value, or one array of values, for every draw."
        # A flat vector is refused even where its size fits: chain on chain and draw on draw cannot
        # be told apart.
        if array.shape[:1] == (math.prod(chains_draws),):
            chains, draws = chains_draws
            cure = (
                f"Where chain follows on chain, reshape it: values.reshape({chains}, {draws}, "
                "*values.shape[1:])."
            )
        expected = f"`{name}` of shape (chain, draw[, p]) with {chains_draws} chains and draws"
        raise InputError("integrands", expected, array.shape, cure)
    names = tuple(element_names(name, array.shape[2:]))
    values = _numeric(name, array, chains_draws)
    return Integrands(names, values, np.ones(len(names), bool), {name: array.shape[2:]})


def _numeric(
    name: str, array: "np.ndarray | xarray.DataArray", chains_draws: tuple[int, int]
) -> Float[np.ndarray, "c n p"]:
    if array.dtype.kind not in "fiub":
        raise InputTypeError(
            "integrands",
            f"`{name}` to be a real number",
            f"dtype {array.dtype}",
            "Leave it out or encode it.",
        )
    whole = array if isinstance(array, np.ndarray) else read_values(array, np.float64)
    values = whole.astype(np.float64, copy=False).reshape(*chains_draws, math.prod(array.shape[2:]))
    # It may be the tree's own array.
    values.flags.writeable = False
    return values


def _evaluated(
    entries: Mapping[Any, Any], variables: PosteriorVariables, chains_draws: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Return the values (c, n, ...) of the functions among the entries. Chunks of stored variables
    are read once."""
    evaluators = {
        name: _evaluator(name, entry) for name, entry in entries.items() if callable(entry)
    }
    arrays: dict[str, np.ndarray] = {}
    start = 0
    for draws in variables.pieces():
        rows = _rows(draws)
        for name, evaluate in evaluators.items():
            values = evaluate(rows)
            values = values.reshape(chains_draws[0], -1, *values.shape[1:])
            if name not in arrays:
                arrays[name] = np.zeros((*chains_draws, *values.shape[2:]), values.dtype)
            kept = arrays[name]
            if values.shape[2:] != kept.shape[2:]:
                raise _ragged(name, {values.shape[2:], kept.shape[2:]})
            # The first piece fixed the type by its own values.
            # untraced, it may return 0 here and 0.5 there
            if not np.can_cast(values.dtype, kept.dtype, "safe"):
                arrays[name] = np.zeros(kept.shape, np.promote_types(values.dtype, kept.dtype))
                arrays[name][:, :start] = kept[:, :start]
            stop = start + values.shape[1]
            arrays[name][:, start:stop] = values
        start = stop
    return arrays


def _evaluator(
    name: str, function: Callable[[dict[str, object]], object]
) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """Return the function for rows of draws: compiled, or called draw by draw where JAX cannot
    trace it."""
    check_function("integrands", name, function, 1, "Its argument is one draw, a dict of arrays.")

    def of_row(row: dict[str, object]) -> jax.Array:
        array = as_numbers("integrands", name, function(row), jnp.asarray)
        if not array.size:
            raise InputError(
                "integrands", f"`{name}` to return a number", f"shape {array.shape}", "Return one."
            )
        return array

    # In blocks: a function that simulates data would need them of all draws at once under `vmap`.
    compiled = jax.jit(lambda rows: jax.lax.map(of_row, rows, batch_size=_BATCH))

    def evaluate(rows: dict[str, np.ndarray]) -> np.ndarray:
        try:
            return in_either_precision(lambda: np.asarray(compiled(rows)))
        # `if draw["x"] > 0` and calls of NumPy or SciPy need numbers: such functions are right, and
        # slow.
        except NOT_TRACEABLE:
            return _one_by_one(name, function, rows)
        except KeyError as error:
            tell_names("integrands", name, error, rows)
            raise
        except TypeError as error:
            if "string indexing" in str(error):  # the label that tables show
                raise InputTypeError(
                    "integrands",
                    f"`{name}` to take elements by their number",
                    str(error).rstrip("."),
                    'Such as lambda draw: draw["theta"][0].',
                ) from error
            owner = str(
                getattr(function, "__module__", None) or type(function).__module__
            ).partition(".")[0]
            if owner not in ("builtins", "numpy", "jax", "scipy") or isinstance(
                error, InputTypeError
            ):
                raise
            # np.exp or sum, which were meant for the values and not for a dict of them
            called = getattr(function, "__name__", type(function).__name__)
            expected, got = f"`{name}` to take one draw, a dict of arrays", f"{called}: {error}"
            raise InputTypeError(
                "integrands", expected, got, 'Such as lambda draw: np.exp(draw["x"]).'
            ) from error

    return evaluate


def tell_names(where: str, name: str, error: KeyError, known: Iterable[str]) -> None:
    """Add to the error of a user's function which names its argument has."""
    key = str(error.args[0]) if error.args else ""
    meant = did_you_mean(key, known)
    error.add_note(f"{where}: the argument of `{name}` has {', '.join(known)}. {meant}".rstrip())


def as_numbers[A: (jax.Array, np.ndarray)](
    where: str, name: str, value: object, convert: Callable[[Any], A]
) -> A:
    """Return what a function returned as an array; refuse what is no number and ragged lists."""
    wanted, cure = (
        f"`{name}` to return numbers",
        "Several values are an array, or functions of their own.",
    )
    if value is None or isinstance(value, Mapping | str | bytes):
        raise InputTypeError(where, wanted, type(value).__name__, cure)
    try:
        return convert(value)
    except NOT_TRACEABLE:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise InputTypeError(where, wanted, repr(value), cure) from error


def _one_by_one(
    name: str, function: Callable[[dict[str, object]], object], draws: dict[str, np.ndarray]
) -> np.ndarray:
    size = len(next(iter(draws.values())))
    # Functions that use jax.numpy without being traceable would round float64 draws to float32.
    with jax.enable_x64(True):
        rows = ({key: array[i].copy() for key, array in draws.items()} for i in range(size))
        values = [as_numbers("integrands", name, function(row), np.asarray) for row in rows]
    shapes = {value.shape for value in values}
    if len(shapes) > 1:
        raise _ragged(name, shapes)
    return np.stack(values)


def _ragged(name: str, shapes: set[tuple[int, ...]]) -> InputError:
    expected = f"`{name}` to return one shape for every draw"
    return InputError("integrands", expected, sorted(shapes), "Pad the result.")
