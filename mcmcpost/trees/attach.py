"""Scores for a stored trace, from the model that was sampled or from a log density."""

from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost.core.arguments import check_count, check_flags, check_function, check_trace_type
from mcmcpost.core.devices import map_rows
from mcmcpost.core.errors import InputError
from mcmcpost.core.precision import in_either_precision
from mcmcpost.scores import batch_scores
from mcmcpost.trace import make_trace
from mcmcpost.trees.convention import (
    GROUP,
    check_aligned,
    posterior_as_draws,
    posterior_sites,
    read_weights,
    stored_draws,
    with_trace,
)
from mcmcpost.trees.diagnostics import RowDensity, Scored, check_agreement, gate, gate_attrs
from mcmcpost.trees.numpyro_model import ProbedModel, probe_model
from mcmcpost.trees.samplers import pymc_density
from mcmcpost.trees.stan import bridgestan_density, pystan_density

if TYPE_CHECKING:
    import xarray


class Target(NamedTuple):
    """Unconstrained draws (c, n, d), their labels, and the log density (d,) → scalar on that
    space."""

    draws: Float[np.ndarray, "c n d"]
    names: tuple[str, ...] | None
    logdensity: Callable[[Array], Array]


def read_target(
    where: str,
    tree: "xarray.DataTree",
    model: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    logdensity_fn: Callable[[Array], Array] | None,
) -> Target:
    """Return the draws of `tree` with a NumPyro model's density or a given one.

    Stored unconstrained draws are used where present, with a model only if their labels are the
    model's; otherwise the latent sites are transformed.
    """
    check_trace_type(where, tree)
    check_function(where, "model", model, None, "Pass a NumPyro program.", optional=True)
    check_function(
        where, "logdensity_fn", logdensity_fn, 1, "Its argument is one draw (d,).", optional=True
    )
    # Unconstrained draws as the sampler had them are exact; sites that are transformed back lose
    # digits near a boundary.
    stored = stored_draws(where, tree)
    if stored is None and "posterior" not in tree.children:
        groups = ", ".join(map(str, tree.children)) or "no group"
        raise InputError(where, "a posterior group or unconstrained draws", groups, "Load a trace.")
    if model is not None and logdensity_fn is None:
        probed = probe_model(where, model, args, kwargs)
        # Before any density is evaluated: bridges of an improper prior would converge to a number
        # that means nothing.
        check_evidence_exists(probed)
        return Target(probed.draws_of(tree), probed.names, probed.logdensity)
    if logdensity_fn is not None and not (model or args or kwargs):
        draws, labels = stored or posterior_as_draws(where, tree)
        return Target(draws, labels, logdensity_fn)
    raise InputError(
        where,
        "either a NumPyro model with its arguments or `logdensity_fn` alone",
        "neither" if logdensity_fn is None else "both",
        f"Call {where}(tree, model, *args, key=key) or {where}(tree, logdensity_fn=f, key=key).",
    )


class _ReadsDensity(Protocol):
    def __call__(
        self, where: str, tree: "xarray.DataTree", model: Any, *, normalised: bool
    ) -> RowDensity: ...


_OBJECTS: dict[str, _ReadsDensity] = {
    "pymc": pymc_density,
    "stan": pystan_density,
    "bridgestan": bridgestan_density,
}
"""From a package whose model objects contain their data to the function that reads their
densities."""


def _row_density(
    where: str,
    tree: "xarray.DataTree",
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    normalised: bool,
) -> RowDensity | None:
    """Return the draws and the density of a model object of another package; None if it is of none
    of them.

    Raises
    ------
    ValueError : arguments beside such a model; the tree lacks its variables.
    """
    # By the module of the class: none of these packages is imported for a person who has not.
    package = next((name for name in _OBJECTS if _made_by(model, name)), None)
    if package is None:
        return None
    if args or kwargs:
        raise InputError(
            where,
            f"a model of {package} alone",
            f"{len(args) + len(kwargs)} arguments",
            "The data are part of such a model: leave them out.",
        )
    return _OBJECTS[package](where, tree, model, normalised=normalised)


def _made_by(model: object, package: str) -> bool:
    # Of all bases: a person's subclass of `pymc.Model` has a module of its own.
    return any(base.__module__.partition(".")[0] == package for base in type(model).__mro__)


def read_density(
    where: str,
    tree: "xarray.DataTree",
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    logdensity_fn: Callable[[Array], Array] | None,
) -> Target | RowDensity:
    """Return draws with a density that keeps its constants: as `read_target`, or of a PyMC or
    BridgeStan model."""
    check_trace_type(where, tree)
    if logdensity_fn is None:
        # Normalised: a constant that is left out is missing from the evidence.
        rows = _row_density(where, tree, model, args, kwargs, normalised=True)
        if rows is not None:
            return rows
    return read_target(where, tree, model, args, kwargs, logdensity_fn)


_WHERE = "attach_scores"


def attach_scores(
    tree: "xarray.DataTree",
    model: Any = None,
    /,
    *args: Any,
    logdensity_fn: Callable[[jax.Array], jax.Array] | None = None,
    batch_size: int = 512,
    allow_bad_scores: bool = False,
    **kwargs: Any,
) -> "xarray.DataTree":
    """Return a new tree with scores for the stored draws, after the score gate.

    With a `model` its parameters are read from the posterior group and transformed to the
    unconstrained space. Discrete parameters stay at the values of each draw: scores are those of
    the continuous ones given the discrete ones. With `logdensity_fn` the draws are
    ``sample_stats.unconstrained_draw`` where present, else the variables of the posterior group,
    taken as unconstrained and concatenated in the order of the tree, each in C order. Where the
    sampler recorded its log density, in ``sample_stats.lp`` or ``logp``, the given one must agree
    with it up to a constant. The processes of ``jax.distributed`` share the draws, and each gets
    all scores (docs/processes.md).

    Parameters
    ----------
    tree : a trace; it is not changed.
    model : a NumPyro program, whose arguments are `args` and `kwargs`; or a model object that
        contains its data and takes no arguments: a ``pymc.Model``, PyStan's ``stan.build(...)``, or
        a ``bridgestan.StanModel``.
    logdensity_fn : log density of one unconstrained draw, (d,) → scalar, log-Jacobian included.
    batch_size : draws that JAX differentiates at a time on each device.
    allow_bad_scores : keep scores that the gate, or the recorded log density, would refuse.

    Raises
    ------
    ValueError : neither or both of `model` and `logdensity_fn` are given, a site is missing or of
        another shape, or a discrete one has no draws.
    ScoreError : the scores fail the gate, or the log density is not the recorded one.
    """
    check_trace_type(_WHERE, tree)
    check_flags(_WHERE, allow_bad_scores=allow_bad_scores)
    check_count(_WHERE, "batch_size", batch_size, "Use 512.")
    check_function(
        _WHERE, "logdensity_fn", logdensity_fn, 1, "Its argument is one draw (d,).", optional=True
    )
    if GROUP in tree.children:
        # Statistics of other draws would stand beside the new scores.
        # those of the posterior are taken
        check_aligned(_WHERE, tree, tree.children[GROUP], labels=False)
    if model is not None and logdensity_fn is None:
        scored = _of_model(tree, model, args, kwargs, batch_size)
    elif logdensity_fn is not None and not (model or args or kwargs):
        scored = _of_function(
            *(stored_draws(_WHERE, tree) or posterior_as_draws(_WHERE, tree)),
            logdensity_fn,
            batch_size,
        )
    else:
        raise InputError(
            _WHERE,
            "either a model with its arguments or `logdensity_fn` alone",
            "neither" if logdensity_fn is None else "both",
            "Call attach_scores(tree, model, *args) or attach_scores(tree, logdensity_fn=f).",
        )
    # A model with other data passes Stein's identity where its posterior is near; the recorded
    # density tells at once.
    if not allow_bad_scores:
        check_agreement(_WHERE, tree, scored)
    weights = read_weights(_WHERE, tree, scored.trace.draws.shape[:2])
    # Stein's identity holds for the weighted draws only.
    check = gate(scored.trace._replace(weights=weights), allow_bad_scores)
    chains, draws, _ = scored.trace.draws.shape
    attrs = gate_attrs(check) | scored.versions | {"score_evaluations": str(chains * draws)}
    return with_trace(tree, scored.trace, attrs)


def _of_model(
    tree: "xarray.DataTree",
    model: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    batch_size: int,
) -> Scored:
    # Scores know no constants, and PyStan's density has none.
    rows = _row_density(_WHERE, tree, model, args, kwargs, normalised=False)
    if rows is not None:
        return rows.scored()
    check_function(
        _WHERE, "model", model, None, "Pass a NumPyro program, or a model of PyMC or Stan."
    )
    return _of_program(tree, model, args, kwargs, batch_size)


def _of_program(
    tree: "xarray.DataTree",
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    batch_size: int,
) -> Scored:
    sites = posterior_sites(_WHERE, tree)
    probed = probe_model(_WHERE, model, args, kwargs, drawn=sites)
    draws, names = probed.unconstrain(sites)
    scored = _of_function(
        draws, names, probed.logdensity, batch_size, probed.discrete_of(sites) or None
    )
    return scored._replace(versions={"numpyro_version": version("numpyro")} | scored.versions)


def _of_function(
    draws: np.ndarray,
    names: tuple[str, ...] | None,
    logdensity_fn: Callable[..., jax.Array],
    batch_size: int,
    discrete: dict[str, np.ndarray] | None = None,
) -> Scored:
    def values(index: np.ndarray) -> np.ndarray:
        rows = (draws, *(() if discrete is None else (discrete,)))
        rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[index], rows)
        return np.asarray(
            map_rows(lambda row: logdensity_fn(*row), rows, batch_size=batch_size), np.float64
        )

    # In blocks: the intermediate states of an ODE solve fit into memory for some hundred draws.
    trace = make_trace(
        draws, batch_scores(logdensity_fn, draws, given=discrete, batch_size=batch_size), names
    )
    return Scored(trace, values, {"jax_version": version("jax")})


def check_evidence_exists(probed: ProbedModel) -> None:
    """Refuse priors that are improper or not normalised, and a model without a likelihood."""
    from numpyro import handlers
    from numpyro.infer import init_to_sample

    # Collected in an abstract run and told together: a model may have several.
    improper: list[str] = []
    altered: list[str] = []
    observed: list[str] = []

    def run() -> Array:
        for collected in (improper, altered, observed):
            collected.clear()  # of an attempt in the other precision
        # Improper priors cannot be sampled; init_to_sample can start them.
        started = handlers.substitute(probed.model, substitute_fn=init_to_sample)
        for name, site in handlers.trace(started).get_trace(*probed.args, **probed.kwargs).items():
            if name in probed.sites:
                kinds = [type(layer).__name__ for layer in _layers(site["fn"])]
                improper.extend([name] * ("ImproperUniform" in kinds))
                # `handlers.scale` and subsampling plates on a latent site raise its prior to a
                # power.
                altered.extend(
                    [name] * ("MaskedDistribution" in kinds or not _is_one(site["scale"]))
                )
            elif site["type"] == "sample" and site["is_observed"]:
                observed.append(name)
        return jnp.zeros(())

    in_either_precision(lambda: jax.eval_shape(run))
    if improper:
        raise InputError(
            probed.where,
            "a normalised prior for every latent site",
            f"an improper prior on {', '.join(improper)}",
            "An improper prior has no evidence: give a proper one, as Normal(0, 10).",
        )
    if altered:
        raise InputError(
            probed.where,
            "latent sites without scale or mask",
            f"a scaled, subsampled or masked {', '.join(altered)}",
            "Such a prior is not normalised, so there is no evidence: scale and mask observed "
            "sites only.",
        )
    if not observed:
        raise InputError(
            probed.where,
            "observed sites",
            "no likelihood",
            "Give the data as arguments: obs=y, or a factor.",
        )


def _layers(distribution: Any) -> Iterator[Any]:
    while distribution is not None:
        yield distribution
        distribution = getattr(distribution, "base_dist", None)


def _is_one(scale: Any) -> bool:
    # A scale that depends on an argument is not known in an abstract run, and counts as not one.
    if isinstance(scale, jax.core.Tracer):
        return False
    return scale is None or bool((np.asarray(scale) == 1).all())
