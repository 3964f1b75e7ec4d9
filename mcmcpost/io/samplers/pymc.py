"""Densities and scores of PyMC models, on the unconstrained space of their value variables."""

from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from mcmcpost._core.errors import InputError
from mcmcpost.io.convention import element_names, posterior_sites
from mcmcpost.io.diagnostics import RowDensity

if TYPE_CHECKING:
    import pymc
    import xarray


def pymc_density(where: str, tree: "xarray.DataTree", model: "pymc.Model", *, normalised: bool) -> RowDensity:
    """Return the draws of `tree` and the density of a PyMC model, ``compile_logp`` and ``compile_dlogp`` with Jacobian.

    The free variables are read from the posterior group and sent through the transformations of the model, those whose
    bounds are parameters included. Coordinates are labelled ``sigma_log__`` or ``w_simplex__[0]``, in the order of
    ``model.value_vars``.

    Raises
    ------
    ValueError : a free variable is discrete, is not among the draws, or is of another shape there. Where a `normalised`
        density is asked for, a prior is improper, or is not normalised by PyMC.
    """
    if normalised:
        check_normalised(where, model)
    discrete = [variable.name for variable in model.discrete_value_vars]
    if discrete:
        raise InputError(
            where,
            "continuous free variables",
            f"discrete {', '.join(discrete)}",
            "A score exists for continuous parameters only: sum the discrete ones out of the model.",
        )
    values = _unconstrain(model, _free_values(where, tree, model))
    ordered = [values[variable.name] for variable in model.value_vars]
    names = tuple(
        name
        for variable, value in zip(model.value_vars, ordered, strict=True)
        for name in element_names(variable.name, value.shape[2:])
    )
    shapes = {variable.name: value.shape[2:] for variable, value in zip(model.value_vars, ordered, strict=True)}
    draws = np.concatenate([value.reshape(*value.shape[:2], -1) for value in ordered], axis=-1)
    cuts = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])[:-1]
    logp, dlogp = model.compile_logp(jacobian=True), model.compile_dlogp(jacobian=True)

    def point(row: np.ndarray) -> dict[str, np.ndarray]:
        return {name: part.reshape(shapes[name]) for name, part in zip(shapes, np.split(row, cuts), strict=True)}

    return RowDensity(
        draws,
        names,
        lambda row: float(logp(point(row))),
        lambda row: np.asarray(dlogp(point(row)), dtype=np.float64),
        {"pymc_version": version("pymc")},
    )


IMPROPER = ("FlatRV", "HalfFlatRV", "ICARRV")
UNNORMALISED = ("CARRV",)
"""Distributions of PyMC of which it leaves the normalising constant out."""

SAME_SUPPORT = ({"LogTransform", "LogExpM1"}, {"LogOddsTransform", "Interval", "IntervalTransform"})
"""Transformations that may stand for each other: any other than its own leaves part of a distribution's mass out."""


def check_normalised(where: str, model: "pymc.Model") -> None:
    """Refuse priors whose density, as PyMC has it, does not integrate to one."""
    kinds = {rv.name: type(rv.owner.op).__name__ for rv in model.free_RVs}
    improper = [name for name, kind in kinds.items() if kind in IMPROPER]
    if improper:
        cure = "The evidence does not exist: give them proper ones."
        raise InputError(where, "proper priors", f"improper ones of {', '.join(improper)}", cure)
    loose = [f"{name}, a {kind.removesuffix('RV')}" for name, kind in kinds.items() if kind in UNNORMALISED]
    loose += [
        f"{rv.name}, with the transformation {type(transform).__name__}"
        for rv, transform in model.rvs_to_transforms.items()
        if rv in model.free_RVs and _narrows(rv, transform)
    ]
    if loose:
        cure = "Write the log density with its constant in JAX and pass logdensity_fn=, or choose another prior."
        raise InputError(where, "priors that PyMC normalises", "; ".join(loose), cure)


def _narrows(variable: Any, transform: Any) -> bool:
    """Return whether a transformation is not that of the distribution, as `ordered` and the logarithm of a normal."""
    from pymc.distributions.transforms import _default_transform

    own, chosen = type(_default_transform(variable.owner.op, variable)).__name__, type(transform).__name__
    return transform is not None and own != chosen and not any({own, chosen} <= group for group in SAME_SUPPORT)


def _free_values(where: str, tree: "xarray.DataTree", model: "pymc.Model") -> list[np.ndarray]:
    """Return the draws of the free variables (c, n, ...)."""
    sites = posterior_sites(where, tree)
    missing = [variable.name for variable in model.free_RVs if variable.name not in sites]
    if missing:
        raise InputError(
            where,
            f"the free variables of the model, {', '.join(v.name for v in model.free_RVs)}, among the draws",
            f"{', '.join(sites)} without {', '.join(missing)}",
            "Keep every free variable when sampling, and pass the model that was sampled.",
        )
    shapes = model.eval_rv_shapes()
    for variable in model.free_RVs:
        if sites[variable.name].shape[2:] != tuple(shapes[variable.name]):
            raise InputError(
                where,
                f"`{variable.name}` of shape (chain, draw{''.join(f', {n}' for n in shapes[variable.name])})",
                sites[variable.name].shape,
                "Pass the model, with the data, that was sampled.",
            )
    return [sites[variable.name] for variable in model.free_RVs]


def _unconstrain(model: "pymc.Model", sites: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the draws of the value variables {name: (c, n, ...)}."""
    from pytensor.graph.replace import graph_replace

    given: dict[Any, Any] = {variable: variable.type() for variable in model.free_RVs}
    transforms = [model.rvs_to_transforms[variable] for variable in given]
    forward = [
        value if transform is None else transform.forward(value, *variable.owner.inputs)
        for (variable, value), transform in zip(given.items(), transforms, strict=True)
    ]
    # A bound may be another parameter: it takes its value from the same draw, not from its distribution.
    compiled = model.compile_fn(
        graph_replace(forward, given, strict=False),
        inputs=list(given.values()),
        point_fn=False,
        on_unused_input="ignore",
    )
    lead = sites[0].shape[:2]
    types = [value.type.dtype for value in given.values()]
    flat = [site.reshape(-1, *site.shape[2:]).astype(dtype) for site, dtype in zip(sites, types, strict=True)]
    rows = [compiled(*row) for row in zip(*flat, strict=True)]
    columns = [np.stack(column).astype(np.float64) for column in zip(*rows, strict=True)]
    return {
        model.rvs_to_values[variable].name: column.reshape(*lead, *column.shape[1:])
        for variable, column in zip(given, columns, strict=True)
    }
