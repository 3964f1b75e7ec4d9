"""Traces of BlackJAX: states have unconstrained positions and, for most kernels, the gradient."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from mcmcpost._core.arguments import as_names, as_real, check_flags, check_function
from mcmcpost._core.errors import InputError, InputTypeError
from mcmcpost._core.versions import version_of
from mcmcpost._core.weights import LEAST
from mcmcpost.io.convention import GROUP, LOG_WEIGHT, element_names, make_weights, sample_dataset, with_trace
from mcmcpost.io.diagnostics import gate, gate_attrs
from mcmcpost.scores import batch_scores
from mcmcpost.trace import make_trace

if TYPE_CHECKING:
    import xarray


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

    HMC, NUTS, MALA and similar kernels keep the gradient of the log density in the state, so that scores cost nothing.
    Random walks do not, and then `logdensity_fn` is differentiated. Positions are taken as unconstrained, and are the
    variables of the posterior group: expectations of constrained values are functions of them. The state of a
    sequential Monte Carlo sampler has `particles` and `weights`, and needs `logdensity_fn`: that of the target at the
    temperature of the state. Its weights become ``sample_stats.log_weight``; those that are below 1e-20 of the largest
    are taken as that.

    Parameters
    ----------
    states : the states of all draws stacked, as from ``lax.scan``: `position`, a pytree whose leaves start with `dims`,
        and, where the kernel has them, `logdensity` and `logdensity_grad`; or `particles` and `weights`, one state with
        ``dims=("draw",)``, or the states of several independent runs as chains.
    info : the infos of the same transitions; divergences and the like are kept.
    logdensity_fn : log density of one position, as given to BlackJAX, for kernels without a gradient.
    dims : the leading axes, ``("chain", "draw")``, ``("draw", "chain")`` or, for one chain, ``("draw",)``.
    allow_bad_scores : keep scores that the gate would refuse.

    Returns
    -------
    DataTree : groups `posterior`, one variable for each leaf (``x`` where the position is an array), and
        `sample_stats`. Coordinates are labelled in the order of the flattened position, dicts by sorted key.

    Raises
    ------
    ValueError : there is no gradient and no `logdensity_fn`, `dims` are others, or leaves do not start with them.
    ScoreError : the scores fail the gate.
    """
    check_flags(_WHERE, allow_bad_scores=allow_bad_scores)
    check_function(_WHERE, "logdensity_fn", logdensity_fn, 1, "Its argument is one position.", optional=True)
    dims = as_names(_WHERE, "dims", dims)
    if sorted(dims) not in (["chain", "draw"], ["draw"]):
        raise InputError(
            _WHERE, "`dims` of chain and draw, or draw alone", dims, "Name the leading axes in their order."
        )
    weighted = hasattr(states, "particles") and hasattr(states, "weights")
    if not (weighted or hasattr(states, "position")):
        raise InputTypeError(
            _WHERE, "states with a `position`", type(states).__name__, "Pass the stacked states of the kernel."
        )
    places = states.particles if weighted else states.position
    position = jax.tree.map(lambda leaf: _chain_draw_first(leaf, dims), places)
    sites = _named_leaves(position)
    draws = _flatten(list(sites.values()))
    names = tuple(name for site, leaf in sites.items() for name in element_names(site, leaf.shape[2:]))
    gradient = getattr(states, "logdensity_grad", None)
    if gradient is not None:
        scores = _flatten([_chain_draw_first(leaf, dims) for leaf in jax.tree.leaves(gradient)])
    elif logdensity_fn is not None:
        scores = batch_scores(_on_rows(logdensity_fn, position), draws)
    else:
        raise InputError(
            _WHERE,
            "states with `logdensity_grad`",
            type(states).__name__,
            "This kernel keeps no gradient: pass logdensity_fn, the function that was sampled.",
        )
    trace, statistics = make_trace(draws, scores, names), _statistics(states, info, dims)
    if weighted:
        shares = _chain_draw_first(states.weights, dims).astype(float)
        with np.errstate(invalid="ignore", divide="ignore"):
            statistics[LOG_WEIGHT] = np.log(np.maximum(shares, LEAST * shares.max()))
        trace = trace._replace(weights=make_weights(_WHERE, statistics[LOG_WEIGHT], shape=draws.shape[:2]))
    check = gate(trace, allow_bad_scores)
    evaluations = 0 if gradient is not None else draws.shape[0] * draws.shape[1]
    attrs = {"blackjax_version": version_of("blackjax") or "unknown", "score_evaluations": str(evaluations)}
    return with_trace(_tree(sites, statistics), trace, gate_attrs(check) | attrs)


def _chain_draw_first(leaf: Any, dims: tuple[str, ...]) -> np.ndarray:
    array = as_real(_WHERE, "states", leaf)
    if array.ndim < len(dims):
        raise InputError(
            _WHERE, f"leaves that start with {', '.join(dims)}", array.shape, "Stack the states, or name dims."
        )
    if len(dims) == 1:
        return array[None]
    return np.moveaxis(array, (dims.index("chain"), dims.index("draw")), (0, 1))


def _named_leaves(position: Any) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(position)
    return {jax.tree_util.keystr(path, simple=True, separator=".") or "x": leaf for path, leaf in leaves}


def _flatten(leaves: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([leaf.reshape(*leaf.shape[:2], -1).astype(np.float64) for leaf in leaves], axis=-1)


def _on_rows(logdensity_fn: Callable[[Any], jax.Array], position: Any) -> Callable[[jax.Array], jax.Array]:
    with jax.enable_x64(True):
        _, unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.asarray(leaf[0, 0], jnp.float64), position))
    return lambda row: logdensity_fn(unravel(row))


def _statistics(states: Any, info: Any, dims: tuple[str, ...]) -> dict[str, np.ndarray]:
    found = {name: getattr(info, field) for field, name in _STATISTICS.items() if hasattr(info, field)}
    if hasattr(states, "logdensity"):
        found["lp"] = states.logdensity
    return {name: _chain_draw_first(value, dims) for name, value in found.items()}


def _tree(sites: dict[str, np.ndarray], statistics: dict[str, np.ndarray]) -> "xarray.DataTree":
    import xarray

    return xarray.DataTree.from_dict({"posterior": sample_dataset(sites), GROUP: sample_dataset(statistics)})
