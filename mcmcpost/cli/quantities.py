"""The quantities that are estimated: posterior variables, those of a model file, and expressions, as named scalars."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from mcmcpost._core.errors import InputError
from mcmcpost._core.precision import in_float64
from mcmcpost.cli.edge import say
from mcmcpost.cli.expressions import Expression, evaluate_expressions
from mcmcpost.cli.model_file import ModelFile
from mcmcpost.io import PosteriorVariables, posterior_variables
from mcmcpost.io.convention import element_names
from mcmcpost.io.numpyro_model import ProbedModel

if TYPE_CHECKING:
    import xarray


GROUP = "generated_quantities"

BATCH = 512


def with_quantities(tree: "xarray.DataTree", model_file: ModelFile) -> "xarray.DataTree":
    """Return a new tree: `tree` with the model file's ``quantities`` at every draw in `generated_quantities`."""
    import xarray

    if model_file.quantities is None:
        return tree.copy()
    posterior = tree["posterior"]
    values = evaluate_quantities(model_file, posterior_variables(tree).draws())
    dims = ("chain", "draw")
    variables = {
        name: ((*dims, *(f"{name}_dim_{i}" for i in range(array.ndim - 2))), array) for name, array in values.items()
    }
    new = tree.copy()
    coords = {dim: posterior[dim].values for dim in dims if dim in posterior.coords}
    new[GROUP] = xarray.DataTree(xarray.Dataset(variables, coords=coords))
    return new


def check_quantities(model_file: ModelFile, probed: ProbedModel) -> None:
    """Trace ``quantities`` on one abstract draw of the model, so that its errors appear before sampling."""

    def at_one(draw: jax.Array) -> list[Any]:
        return list(model_file.named(probed.sites_of(draw)).values())

    with jax.enable_x64(True):
        jax.eval_shape(at_one, jax.ShapeDtypeStruct((len(probed.names),), np.float64))


def evaluate_quantities(model_file: ModelFile, posterior: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the file's ``quantities`` at every draw in float64, {name: (c, n)}; empty if the file has none.

    Parameters
    ----------
    posterior
        Constrained draws, {variable: (c, n, ...)}.
    """
    if model_file.quantities is None:
        return {}
    lead = next(iter(posterior.values())).shape[:2]
    flat = {
        name: values.reshape(-1, *values.shape[2:]).astype(np.float64 if values.dtype.kind == "f" else values.dtype)
        for name, values in posterior.items()
    }

    names: list[str] = []

    def at_one(row: dict[str, Any]) -> list[Any]:
        values = model_file.named(row)
        names[:] = list(values)  # JAX would sort a dict by its keys
        return list(values.values())

    @in_float64
    def at_all(draws: dict[str, np.ndarray]) -> list[Any]:
        return jax.jit(lambda rows: jax.lax.map(at_one, rows, batch_size=BATCH))(draws)

    arrays = at_all(flat)
    return {name: array.reshape(*lead, *array.shape[1:]) for name, array in zip(names, arrays, strict=True)}


def named_scalars(
    tree: "xarray.DataTree", variables: PosteriorVariables, expressions: Mapping[str, str | Expression]
) -> dict[str, np.ndarray]:
    """Return every scalar of the posterior, every stored quantity and every expression of them, {name: (c, n)}.

    Parameters
    ----------
    variables : those of the posterior group of `tree`. Their scalars are views of the tree's own arrays.

    Raises
    ------
    ValueError
        Two of them have the same name, or an expression contains an unknown variable.
    """
    draws, stored = variables.draws(), _stored(tree)
    scalars: dict[str, np.ndarray] = {}
    for names, values, *_ in variables.elements():
        _add(scalars, names, np.moveaxis(values, -1, 0))
    for arrays in (stored, evaluate_expressions({**draws, **stored}, expressions)):
        for name, array in arrays.items():
            parts = [array[(..., *i)] for i in np.ndindex(array.shape[2:])]
            _add(scalars, element_names(name, array.shape[2:]), parts)
    return scalars


def say_left_out(variables: PosteriorVariables) -> None:
    """Warn of variables that are not estimated."""
    if variables.left_out:
        say("warning", f"left out {', '.join(variables.left_out)}: not a number for every chain and draw")


def _add(scalars: dict[str, np.ndarray], names: Sequence[str], arrays: Iterable[np.ndarray]) -> None:
    taken = sorted(set(names) & set(scalars))
    if taken:
        raise InputError("Quantities", "names not taken yet", taken, "Rename the quantity.")
    scalars |= dict(zip(names, arrays, strict=True))


def _stored(tree: "xarray.DataTree") -> dict[str, np.ndarray]:
    group = tree.children.get(GROUP)
    if group is None:
        return {}
    return {str(name): v.transpose("chain", "draw", ...).values for name, v in group.data_vars.items()}
