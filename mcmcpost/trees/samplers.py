"""Traces as samplers leave them: NumPyro, BlackJAX and PyMC.

NumPyro keeps the scores that its sampler computed. States of BlackJAX have unconstrained positions
and, for most kernels, the gradient. Densities and scores of PyMC models are on the unconstrained
space of their value variables.
"""

import copy
import json
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from mcmcpost.core.arguments import as_names, as_real, check_flags, check_function, check_kind
from mcmcpost.core.errors import InputError, InputTypeError, warn
from mcmcpost.core.mcse import LEAST
from mcmcpost.core.runtime import number_of_draws, version_of
from mcmcpost.scores import batch_scores
from mcmcpost.trace import Trace, make_trace
from mcmcpost.trees.convention import (
    GROUP,
    LOG_WEIGHT,
    element_names,
    make_weights,
    posterior_sites,
    refuse_outside,
    sample_dataset,
    with_trace,
)
from mcmcpost.trees.diagnostics import RowDensity, gate, gate_attrs
from mcmcpost.trees.numpyro_model import ProbedModel, dotted, probe_model, with_dotted_sites

if TYPE_CHECKING:
    import numpyro
    import pymc
    import xarray


def from_numpyro(
    mcmc: "numpyro.infer.MCMC", *, allow_bad_scores: bool = False, log_likelihood: bool = False
) -> "xarray.DataTree":
    """Return the ArviZ tree of a NumPyro run with its unconstrained draws and scores, after the
    score gate.

    With ``extra_fields=("z_grad", "potential_energy")`` in the run the scores cost nothing: HMC and
    NUTS keep the gradient of the potential, and score = −z_grad; they are tested against the
    potential, the negative log density. Without the gradient, as after `SurrogateHMC`, they are
    recomputed from the model and the arguments of the run, and the attribute `score_evaluations` is
    the number of gradients that this takes. Coordinates are labelled ``site[i]`` in the order of
    the program. With ``NUTS(potential_fn=...)`` the draws are taken as unconstrained, in the order
    of the flattened parameters.

    After `DiscreteHMCGibbs`, `MixedHMC` or `HMCGibbs` the scores are recomputed as those of the
    continuous sites given the discrete ones, at the values of each draw. They control the joint
    posterior; discrete sites are quantities as all others. Sites that the sampler sums out are
    neither.

    Parameters
    ----------
    mcmc : a finished run.
    allow_bad_scores : keep scores that the gate would refuse.
    log_likelihood : keep that of every observation at every draw too, in a group of that name, as
        ``az.loo`` and `elpd` need it. The model is run once for each draw.

    Returns
    -------
    DataTree : ``arviz.from_numpyro(mcmc)`` with `unconstrained_draw` and `gradient` in
        `sample_stats`.

    Raises
    ------
    ValueError : nothing was run, a latent site was not collected, or the scores can neither be
        found nor recomputed.
    ScoreError : the scores fail the gate.
    """
    import arviz_base
    import numpyro

    check_flags("from_numpyro", allow_bad_scores=allow_bad_scores, log_likelihood=log_likelihood)
    check_kind(
        "from_numpyro", "mcmc", mcmc, numpyro.infer.MCMC, "Pass what was run, not its samples."
    )
    if mcmc.last_state is None:
        raise InputError(
            "from_numpyro", "a finished MCMC run", "one without draws", "Call mcmc.run first."
        )
    _attach_submodules("numpyro")
    # Before ArviZ sees the names: a slash is a path in a DataTree, and raises without saying so.
    mcmc, slashed = _with_dotted_sites(mcmc)
    samples = mcmc.get_samples(group_by_chain=True)
    # ArviZ runs the model again: in the precision of the run, which the process may have left
    # since.
    single = all(leaf.dtype != np.float64 for leaf in jax.tree.leaves(samples))
    with jax.enable_x64(not single):
        tree = arviz_base.from_numpyro(mcmc, log_likelihood=log_likelihood)
    # ArviZ drops `z_grad` while it is a dict; of a flat potential it keeps it, in its own shape and
    # sign.
    if GROUP in tree.children:
        tree[GROUP] = tree.children[GROUP].to_dataset().drop_vars("z_grad", errors="ignore")
    # Only HMC and its subclasses promise that z_grad is the gradient of the potential.
    kept = (
        mcmc.get_extra_fields(group_by_chain=True)
        if isinstance(mcmc.sampler, numpyro.infer.HMC)
        else {}
    )
    z_grad = kept.get("z_grad")
    if mcmc.sampler.model is None:
        trace = _potential_trace(mcmc, samples, z_grad)
    else:
        trace = _model_trace(mcmc, samples, z_grad)
    check = gate(trace, allow_bad_scores)
    attrs = gate_attrs(check) | _versions()
    attrs |= _evaluations(trace) if z_grad is None else {"score_evaluations": "0"}
    if slashed:
        attrs[SITES] = json.dumps(slashed)
        listed = ", ".join(slashed)
        warn(
            'from_numpyro: "/" in names of sites is "." in the tree, where it would be a '
            f"path: {listed}. attach_scores"
            f" and the like take the model as it is; the attribute {SITES} of {GROUP} has the "
            "old names."
        )
    return with_trace(tree, trace, attrs)


SITES = "numpyro_sites"
"""Attribute of `sample_stats`: the names of sites in the program, as a JSON object by those in the
tree."""


def _with_dotted_sites(mcmc: "numpyro.infer.MCMC") -> "tuple[numpyro.infer.MCMC, dict[str, str]]":
    """Return the run with "." for "/" in the names of its sites, and the old names of those by the
    new ones."""
    kept, model = mcmc._states, mcmc.sampler.model
    sites = [name for state in kept.values() if isinstance(state, dict) for name in state]
    slashed = {dotted(name): name for name in sites if "/" in str(name)}
    if not slashed or model is None:
        return mcmc, {}
    # A copy: a person may go on with the run, whose model and states stay as they are.
    new = copy.copy(mcmc)
    new.sampler = copy.copy(mcmc.sampler)
    new.sampler._model = with_dotted_sites("from_numpyro", model)

    def renamed(state: Any) -> Any:
        return (
            {dotted(name): leaf for name, leaf in state.items()}
            if isinstance(state, dict)
            else state
        )

    new._states = {field: renamed(state) for field, state in kept.items()}
    # chains together
    new._states_flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), new._states)
    return new, slashed


def _evaluations(trace: Trace) -> dict[str, str]:
    """Return the record of gradients evaluated after sampling, one per draw."""
    return {"score_evaluations": str(trace.draws.shape[0] * trace.draws.shape[1])}


def _versions() -> dict[str, str]:
    return {"numpyro_version": version("numpyro"), "jax_version": version("jax")}


def _model_trace(
    mcmc: "numpyro.infer.MCMC", samples: dict[str, Any], z_grad: dict[str, Any] | None
) -> Trace:
    # With gradients at hand only the sites that have one are coordinates: enumerated ones were
    # summed out.
    only = None if z_grad is None else set(z_grad)
    model: ProbedModel = probe_model(
        "from_numpyro", mcmc.sampler.model, mcmc._args, mcmc._kwargs, only=only, drawn=samples
    )
    sites = {name: np.asarray(value) for name, value in samples.items()}
    draws, names = model.unconstrain(sites)
    if z_grad is None:
        scores = batch_scores(model.logdensity, draws, given=model.discrete_of(sites) or None)
        return make_trace(draws, scores, names)
    flat = [
        np.asarray(z_grad[name], dtype=np.float64).reshape(*draws.shape[:2], -1)
        for name in model.sites
    ]
    # NumPyro keeps the gradient of the potential, minus the log density, log-Jacobian included.
    return make_trace(draws, -np.concatenate(flat, axis=-1), names)


def _potential_trace(mcmc: "numpyro.infer.MCMC", samples: Any, z_grad: Any) -> Trace:
    draws = _flatten(samples)
    leaves = samples._asdict() if hasattr(samples, "_asdict") else samples
    named = (
        # JAX flattens a dict by sorted key and a named tuple in its own order: labels must follow.
        {str(key): leaves[key] for key in (sorted(leaves) if leaves is samples else leaves)}
        if isinstance(leaves, dict)
        else {f"Param:{i}": leaf for i, leaf in enumerate(jax.tree.leaves(leaves))}
    )
    names = tuple(
        name for key, leaf in named.items() for name in element_names(key, np.shape(leaf)[2:])
    )
    if z_grad is not None:
        return make_trace(draws, -_flatten(z_grad), names)
    potential = getattr(mcmc.sampler, "_potential_fn", None)
    if potential is None:
        raise InputError(
            "from_numpyro",
            "scores in the extra fields, or a potential to differentiate",
            type(mcmc.sampler).__name__,
            'Run with extra_fields=("z_grad",).',
        )
    with jax.enable_x64(True):
        # In 64 bits, or `unravel` would cast every draw to the precision of the run.
        _, unravel = ravel_pytree(
            jax.tree.map(lambda leaf: np.asarray(leaf[0, 0], dtype=np.float64), samples)
        )
    return make_trace(draws, batch_scores(lambda x: -potential(unravel(x)), draws), names)


def _flatten(tree: Any) -> np.ndarray:
    leaves = [np.asarray(leaf, dtype=np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], axis=-1)


def _attach_submodules(package: str) -> None:
    """Make loaded submodules attributes of their packages again.

    ArviZ loads NumPyro lazily. Where that comes first and ``from numpyro.infer import ...`` second,
    Python runs the package twice, and `numpyro.infer` is left without `initialization`, which
    ArviZ's own converter needs.
    """
    for name, module in tuple(sys.modules.items()):
        parent, _, child = name.rpartition(".")
        if (
            parent.split(".")[0] == package
            and parent in sys.modules
            and not hasattr(sys.modules[parent], child)
        ):
            setattr(sys.modules[parent], child, module)


_WHERE = "from_blackjax"

_STATISTICS = {
    "is_divergent": "diverging",
    "acceptance_rate": "acceptance_rate",
    "num_integration_steps": "n_steps",
    "energy": "energy",
}
"""From fields of BlackJAX's infos to names in ArviZ's schema."""


def from_blackjax(
    states: Any,
    info: Any = None,
    *,
    logdensity_fn: Callable[[Any], jax.Array] | None = None,
    dims: tuple[str, ...] = ("chain", "draw"),
    allow_bad_scores: bool = False,
) -> "xarray.DataTree":
    """Return a tree of the states of a BlackJAX kernel, after the score gate.

    HMC, NUTS, MALA and similar kernels keep the gradient of the log density in the state, so that
    scores cost nothing. Random walks do not, and then `logdensity_fn` is differentiated. Positions
    are taken as unconstrained, and are the variables of the posterior group: expectations of
    constrained values are functions of them. The state of a sequential Monte Carlo sampler has
    `particles` and `weights`, and needs `logdensity_fn`: that of the target at the temperature of
    the state. Its weights become ``sample_stats.log_weight``; those that are below 1e-20 of the
    largest are taken as that.

    Parameters
    ----------
    states : the states of all draws stacked, as from ``lax.scan``: `position`, a pytree whose
        leaves start with `dims`, and, where the kernel has them, `logdensity` and
        `logdensity_grad`; or `particles` and `weights`, one state with ``dims=("draw",)``, or the
        states of several independent runs as chains.
    info : the infos of the same transitions; divergences and the like are kept.
    logdensity_fn : log density of one position, as given to BlackJAX, for kernels without a
        gradient.
    dims : the leading axes, ``("chain", "draw")``, ``("draw", "chain")`` or, for one chain,
        ``("draw",)``.
    allow_bad_scores : keep scores that the gate would refuse.

    Returns
    -------
    DataTree : groups `posterior`, one variable for each leaf (``x`` where the position is an
        array), and `sample_stats`. Coordinates are labelled in the order of the flattened position,
        dicts by sorted key.

    Raises
    ------
    ValueError : there is no gradient and no `logdensity_fn`, `dims` are others, or leaves do not
        start with them.
    ScoreError : the scores fail the gate.
    """
    check_flags(_WHERE, allow_bad_scores=allow_bad_scores)
    check_function(
        _WHERE, "logdensity_fn", logdensity_fn, 1, "Its argument is one position.", optional=True
    )
    dims = as_names(_WHERE, "dims", dims)
    if sorted(dims) not in (["chain", "draw"], ["draw"]):
        raise InputError(
            _WHERE,
            "`dims` of chain and draw, or draw alone",
            dims,
            "Name the leading axes in their order.",
        )
    weighted = hasattr(states, "particles") and hasattr(states, "weights")
    if not (weighted or hasattr(states, "position")):
        raise InputTypeError(
            _WHERE,
            "states with a `position`",
            type(states).__name__,
            "Pass the stacked states of the kernel.",
        )
    places = states.particles if weighted else states.position
    # `lax.scan` over `vmap` stacks draws first, `vmap` over `scan` chains first: only the person
    # knows which.
    position = jax.tree.map(lambda leaf: _chain_draw_first(leaf, dims), places)
    sites = _named_leaves(position)
    draws = _flatten_leaves(list(sites.values()))
    names = tuple(
        name for site, leaf in sites.items() for name in element_names(site, leaf.shape[2:])
    )
    # BlackJAX keeps the gradient of the log density itself: no sign to change, unlike NumPyro's.
    gradient = getattr(states, "logdensity_grad", None)
    if gradient is not None:
        slopes = _named_leaves(jax.tree.map(lambda leaf: _chain_draw_first(leaf, dims), gradient))
        shapes, got = (
            {site: leaf.shape for site, leaf in leaves.items()} for leaves in (sites, slopes)
        )
        # Flattened they could be as long as the draws, and be those of other parameters.
        if shapes != got:
            cure = "Pass the states as the kernel returned them."
            raise InputError(_WHERE, f"a `logdensity_grad` of the shapes {shapes}", got, cure)
        scores = _flatten_leaves(list(slopes.values()))
    elif logdensity_fn is not None:
        scores = batch_scores(_on_rows(logdensity_fn, position), draws)
    else:
        raise InputError(
            _WHERE,
            "states with `logdensity_grad`",
            type(states).__name__,
            "This kernel keeps no gradient: pass logdensity_fn, the function that was sampled.",
        )
    trace = make_trace(draws, scores, names)
    statistics = _statistics(states, info, dims, draws.shape[:2])
    if weighted:
        shares = _chain_draw_first(states.weights, dims).astype(float)
        with np.errstate(invalid="ignore", divide="ignore"):
            # Particles of weight zero have no logarithm, and cannot be left out of an array (c, n).
            statistics[LOG_WEIGHT] = np.log(np.maximum(shares, LEAST * shares.max()))
        trace = trace._replace(
            weights=make_weights(_WHERE, statistics[LOG_WEIGHT], shape=draws.shape[:2])
        )
    check = gate(trace, allow_bad_scores)
    # What the scores cost beyond sampling is part of every comparison of gains.
    evaluations = 0 if gradient is not None else draws.shape[0] * draws.shape[1]
    attrs = {
        "blackjax_version": version_of("blackjax") or "unknown",
        "score_evaluations": str(evaluations),
    }
    return with_trace(_tree(sites, statistics), trace, gate_attrs(check) | attrs)


def _chain_draw_first(leaf: Any, dims: tuple[str, ...]) -> np.ndarray:
    array = as_real(_WHERE, "states", leaf)
    if array.ndim < len(dims):
        raise InputError(
            _WHERE,
            f"leaves that start with {', '.join(dims)}",
            array.shape,
            "Stack the states, or name dims.",
        )
    if len(dims) == 1:
        return array[None]
    return np.moveaxis(array, (dims.index("chain"), dims.index("draw")), (0, 1))


def _named_leaves(position: Any) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(position)
    # "." and not "/", which a tree would take for a path; a bare array has no path at all.
    return {
        jax.tree_util.keystr(path, simple=True, separator=".") or "x": leaf for path, leaf in leaves
    }


def _flatten_leaves(leaves: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(
        [leaf.reshape(*leaf.shape[:2], -1).astype(np.float64) for leaf in leaves], axis=-1
    )


def _on_rows(
    logdensity_fn: Callable[[Any], jax.Array], position: Any
) -> Callable[[jax.Array], jax.Array]:
    with jax.enable_x64(True):
        _, unravel = ravel_pytree(
            jax.tree.map(lambda leaf: jnp.asarray(leaf[0, 0], jnp.float64), position)
        )
    return lambda row: logdensity_fn(unravel(row))


def _statistics(
    states: Any, info: Any, dims: tuple[str, ...], shape: tuple[int, ...]
) -> dict[str, np.ndarray]:
    statistics = {
        name: getattr(info, field) for field, name in _STATISTICS.items() if hasattr(info, field)
    }
    if hasattr(states, "logdensity"):
        statistics["lp"] = states.logdensity
    arrays = {name: _chain_draw_first(value, dims) for name, value in statistics.items()}
    for name, array in arrays.items():
        if array.shape[:2] != shape:
            expected = f"`{name}` of {number_of_draws(*shape)}, as the positions"
            cure = "Pass the infos of the same transitions."
            raise InputError(_WHERE, expected, number_of_draws(*array.shape[:2]), cure)
    return arrays


def _tree(sites: dict[str, np.ndarray], statistics: dict[str, np.ndarray]) -> "xarray.DataTree":
    import xarray

    return xarray.DataTree.from_dict(
        {"posterior": sample_dataset(sites), GROUP: sample_dataset(statistics)}
    )


def pymc_density(
    where: str, tree: "xarray.DataTree", model: "pymc.Model", *, normalised: bool
) -> RowDensity:
    """Return the draws of `tree` and the density of a PyMC model, ``compile_logp`` and
    ``compile_dlogp`` with Jacobian.

    The free variables are read from the posterior group and sent through the transformations of the
    model, those whose bounds are parameters included. Coordinates are labelled ``sigma_log__`` or
    ``w_simplex__[0]``, in the order of ``model.value_vars``.

    Discrete free variables, of compound steps, stay at the values of each draw.

    Raises
    ------
    ValueError : a free variable is not among the draws, or is of another shape there. Where a
        `normalised` density is asked for, a free variable is discrete, or a prior is improper or
        not normalised by PyMC.
    """
    if normalised:
        check_normalised(where, model)
    continuous = model.continuous_value_vars
    discrete = [variable.name for variable in model.discrete_value_vars]
    if not continuous:
        got = f"discrete {', '.join(discrete)} alone" if discrete else "none"
        raise InputError(
            where, "a model with continuous free variables", got, "Pass the model that was sampled."
        )
    if discrete and normalised:
        raise InputError(
            where,
            "continuous free variables",
            f"discrete {', '.join(discrete)}",
            "Only continuous parameters have scores: sum the discrete ones out of the model.",
        )
    sites = _free_values(where, tree, model)
    # PyMC's transformations may have other parameters as bounds: they are evaluated draw by draw.
    values = _unconstrain(model, list(sites.values()))
    outside = {}
    for variable in model.free_RVs:
        value = values[model.rvs_to_values[variable].name]
        bad = ~np.isfinite(value).reshape(*value.shape[:2], -1).all(axis=-1)
        # NaN in the draws is told by the trace; here finite values are on or beyond a boundary.
        if bad.any() and np.isfinite(sites[variable.name]).all():
            outside[variable.name] = bad
    if outside:
        refuse_outside(where, sites, outside)
    # In the order of `compile_dlogp`, which is not that of the posterior group.
    # A row is the continuous values and after them the discrete ones, which no score is of.
    ordered = [*continuous, *model.discrete_value_vars]
    shapes = {variable.name: values[variable.name].shape[2:] for variable in ordered}
    types = {variable.name: variable.type.dtype for variable in ordered}
    names = tuple(
        name
        for variable in continuous
        for name in element_names(variable.name, shapes[variable.name])
    )
    columns = [values[name].reshape(*values[name].shape[:2], -1) for name in shapes]
    rows = np.concatenate(columns, axis=-1)
    cuts = np.cumsum([column.shape[-1] for column in columns])[:-1]
    logp, dlogp = model.compile_logp(jacobian=True), model.compile_dlogp(jacobian=True)

    def point(row: np.ndarray) -> dict[str, np.ndarray]:
        parts = zip(shapes, np.split(row, cuts), strict=True)
        return {
            name: segment.reshape(shapes[name]).astype(types[name], copy=False)
            for name, segment in parts
        }

    return RowDensity(
        rows[..., : len(names)],
        names,
        lambda row: float(logp(point(row))),
        lambda row: np.asarray(dlogp(point(row)), dtype=np.float64),
        {"pymc_version": version("pymc")},
        rows[..., len(names) :] if discrete else None,
    )


IMPROPER = ("FlatRV", "HalfFlatRV", "ICARRV")
UNNORMALISED = ("CARRV",)
"""Distributions of PyMC of which it leaves the normalising constant out."""

SAME_SUPPORT = ({"LogTransform", "LogExpM1"}, {"LogOddsTransform", "Interval", "IntervalTransform"})
"""Transformations that may stand for each other: any other than its own leaves part of a
distribution's mass out."""


def check_normalised(where: str, model: "pymc.Model") -> None:
    """Refuse priors whose density, as PyMC has it, does not integrate to one."""
    kinds = {rv.name: type(rv.owner.op).__name__ for rv in model.free_RVs}
    improper = [name for name, kind in kinds.items() if kind in IMPROPER]
    if improper:
        cure = "The evidence does not exist: give them proper ones."
        raise InputError(where, "proper priors", f"improper ones of {', '.join(improper)}", cure)
    # A constant that is left out shifts the evidence, and no draw shows it.
    loose = [
        f"{name}, a {kind.removesuffix('RV')}"
        for name, kind in kinds.items()
        if kind in UNNORMALISED
    ]
    loose += [
        f"{rv.name}, with the transformation {type(transform).__name__}"
        for rv, transform in model.rvs_to_transforms.items()
        if rv in model.free_RVs and _narrows(rv, transform)
    ]
    if loose:
        cure = (
            "Write the log density with its constant in JAX and pass logdensity_fn=, or choose "
            "another prior."
        )
        raise InputError(where, "priors that PyMC normalises", "; ".join(loose), cure)


def _narrows(variable: Any, transform: Any) -> bool:
    """Return whether a transformation is not that of the distribution, as `ordered` and the
    logarithm of a normal."""
    from pymc.distributions.transforms import _default_transform

    default, chosen = (
        type(_default_transform(variable.owner.op, variable)).__name__,
        type(transform).__name__,
    )
    return (
        transform is not None
        and default != chosen
        and not any({default, chosen} <= group for group in SAME_SUPPORT)
    )


def _free_values(where: str, tree: "xarray.DataTree", model: "pymc.Model") -> dict[str, np.ndarray]:
    """Return the draws of the free variables (c, n, ...) by name."""
    sites = posterior_sites(where, tree)
    missing = [variable.name for variable in model.free_RVs if variable.name not in sites]
    if missing:
        raise InputError(
            where,
            f"the free variables of the model, {', '.join(v.name for v in model.free_RVs)}, "
            "among the draws",
            f"{', '.join(sites)} without {', '.join(missing)}",
            "Keep every free variable when sampling, and pass the model that was sampled.",
        )
    # Other data may have other sizes, and a broadcast would hide it.
    shapes = model.eval_rv_shapes()
    for variable in model.free_RVs:
        if sites[variable.name].shape[2:] != tuple(shapes[variable.name]):
            raise InputError(
                where,
                f"`{variable.name}` of shape (chain, "
                f"draw{''.join(f', {n}' for n in shapes[variable.name])})",
                sites[variable.name].shape,
                "Pass the model, with the data, that was sampled.",
            )
    counts = model.discrete_value_vars
    for name in (
        variable.name for variable in model.free_RVs if model.rvs_to_values[variable] in counts
    ):
        if not (sites[name] == np.rint(sites[name])).all():
            got = f"{sites[name].dtype}s that are not"
            raise InputError(
                where,
                f"whole numbers as draws of the discrete `{name}`",
                got,
                "Pass its own draws.",
            )
    return {variable.name: sites[variable.name] for variable in model.free_RVs}


def _unconstrain(model: "pymc.Model", sites: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Return the draws of the value variables {name: (c, n, ...)}."""
    from pytensor.graph.replace import graph_replace

    given: dict[Any, Any] = {variable: variable.type() for variable in model.free_RVs}
    transforms = [model.rvs_to_transforms[variable] for variable in given]
    forward = [
        value if transform is None else transform.forward(value, *variable.owner.inputs)
        for (variable, value), transform in zip(given.items(), transforms, strict=True)
    ]
    # A bound may be another parameter: it takes its value from the same draw, not from its
    # distribution.
    compiled = model.compile_fn(
        graph_replace(forward, given, strict=False),
        inputs=list(given.values()),
        point_fn=False,
        on_unused_input="ignore",
    )
    lead = sites[0].shape[:2]
    # The compiled function refuses what it would have to round, such as float64 draws of a float32
    # model.
    types = [value.type.dtype for value in given.values()]
    flat = [
        site.reshape(-1, *site.shape[2:]).astype(dtype)
        for site, dtype in zip(sites, types, strict=True)
    ]
    rows = [compiled(*row) for row in zip(*flat, strict=True)]
    columns = [np.stack(column).astype(np.float64) for column in zip(*rows, strict=True)]
    return {
        model.rvs_to_values[variable].name: column.reshape(*lead, *column.shape[1:])
        for variable, column in zip(given, columns, strict=True)
    }
