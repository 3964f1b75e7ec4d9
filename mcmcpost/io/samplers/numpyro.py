"""Traces of NumPyro, with the scores that its sampler computed."""

import sys
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

from mcmcpost._core.arguments import check_flags, check_kind
from mcmcpost._core.errors import InputError
from mcmcpost.io.convention import GROUP, element_names, with_trace
from mcmcpost.io.diagnostics import gate, gate_attrs
from mcmcpost.io.samplers.numpyro_model import ProbedModel, probe_model
from mcmcpost.scores import batch_scores
from mcmcpost.trace import Trace, make_trace

if TYPE_CHECKING:
    import numpyro
    import xarray


def from_numpyro(
    mcmc: "numpyro.infer.MCMC", *, allow_bad_scores: bool = False, log_likelihood: bool = False
) -> "xarray.DataTree":
    """Return the ArviZ tree of a NumPyro run with its unconstrained draws and scores, after the score gate.

    With ``extra_fields=("z_grad",)`` in the run the scores cost nothing: HMC and NUTS keep the gradient of the
    potential, and score = −z_grad. Without it, as after `SurrogateHMC`, they are recomputed from the model and the
    arguments of the run, and the attribute `score_evaluations` is the number of gradients that this takes. Coordinates
    are labelled ``site[i]`` in the order of the program. With ``NUTS(potential_fn=...)`` the draws are taken as
    unconstrained, in the order of the flattened parameters.

    Parameters
    ----------
    mcmc : a finished run.
    allow_bad_scores : keep scores that the gate would refuse.
    log_likelihood : keep that of every observation at every draw too, in a group of that name, as ``az.loo`` and `elpd`
        need it. The model is run once for each draw.

    Returns
    -------
    DataTree : ``arviz.from_numpyro(mcmc)`` with `unconstrained_draw` and `gradient` in `sample_stats`.

    Raises
    ------
    ValueError : nothing was run, a latent site is discrete or was not collected, or the scores can neither be found nor
        recomputed.
    ScoreError : the scores fail the gate.
    """
    import arviz_base
    import numpyro

    check_flags("from_numpyro", allow_bad_scores=allow_bad_scores, log_likelihood=log_likelihood)
    check_kind("from_numpyro", "mcmc", mcmc, numpyro.infer.MCMC, "Pass what was run, not its samples.")
    if mcmc.last_state is None:
        raise InputError("from_numpyro", "a finished MCMC run", "one without draws", "Call mcmc.run first.")
    _attach_submodules("numpyro")
    tree = arviz_base.from_numpyro(mcmc, log_likelihood=log_likelihood)
    if GROUP in tree.children:
        tree[GROUP] = tree.children[GROUP].to_dataset().drop_vars("z_grad", errors="ignore")
    # Only HMC and its subclasses promise that z_grad is the gradient of the potential.
    kept = mcmc.get_extra_fields(group_by_chain=True) if isinstance(mcmc.sampler, numpyro.infer.HMC) else {}
    samples = mcmc.get_samples(group_by_chain=True)
    z_grad = kept.get("z_grad")
    if mcmc.sampler.model is None:
        trace = _potential_trace(mcmc, samples, z_grad)
    else:
        trace = _model_trace(mcmc, samples, z_grad)
    check = gate(trace, allow_bad_scores)
    evaluated = _evaluations(trace) if z_grad is None else {"score_evaluations": "0"}
    return with_trace(tree, trace, gate_attrs(check) | _versions() | evaluated)


def _evaluations(trace: Trace) -> dict[str, str]:
    """Return the record of gradients evaluated after sampling, one per draw."""
    return {"score_evaluations": str(trace.draws.shape[0] * trace.draws.shape[1])}


def _versions() -> dict[str, str]:
    return {"numpyro_version": version("numpyro"), "jax_version": version("jax")}


def _model_trace(mcmc: "numpyro.infer.MCMC", samples: dict[str, Any], z_grad: dict[str, Any] | None) -> Trace:
    model: ProbedModel = probe_model(
        "from_numpyro", mcmc.sampler.model, mcmc._args, mcmc._kwargs, only=None if z_grad is None else set(z_grad)
    )
    draws, names = model.unconstrain({name: np.asarray(value) for name, value in samples.items()})
    if z_grad is None:
        return make_trace(draws, batch_scores(model.logdensity, draws), names)
    flat = [np.asarray(z_grad[name], dtype=np.float64).reshape(*draws.shape[:2], -1) for name in model.sites]
    return make_trace(draws, -np.concatenate(flat, axis=-1), names)


def _potential_trace(mcmc: "numpyro.infer.MCMC", samples: Any, z_grad: Any) -> Trace:
    draws = _flatten(samples)
    leaves = samples._asdict() if hasattr(samples, "_asdict") else samples
    named = (
        {str(key): leaves[key] for key in (sorted(leaves) if leaves is samples else leaves)}
        if isinstance(leaves, dict)
        else {f"Param:{i}": leaf for i, leaf in enumerate(jax.tree.leaves(leaves))}
    )
    names = tuple(name for key, leaf in named.items() for name in element_names(key, np.shape(leaf)[2:]))
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
        _, unravel = ravel_pytree(jax.tree.map(lambda leaf: np.asarray(leaf[0, 0], dtype=np.float64), samples))
    return make_trace(draws, batch_scores(lambda x: -potential(unravel(x)), draws), names)


def _flatten(tree: Any) -> np.ndarray:
    leaves = [np.asarray(leaf, dtype=np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(*leaf.shape[:2], -1) for leaf in leaves], axis=-1)


def _attach_submodules(package: str) -> None:
    """Make loaded submodules attributes of their packages again.

    ArviZ loads NumPyro lazily. Where that comes first and ``from numpyro.infer import ...`` second, Python runs the
    package twice, and `numpyro.infer` is left without `initialization`, which ArviZ's own converter needs.
    """
    for name, module in tuple(sys.modules.items()):
        parent, _, child = name.rpartition(".")
        if parent.split(".")[0] == package and parent in sys.modules and not hasattr(sys.modules[parent], child):
            setattr(sys.modules[parent], child, module)
