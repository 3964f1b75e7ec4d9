"""Ladders sampled by other programs: one trace for each temperature, or a tree without
gradients."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mcmcpost.core.arguments import check_kind, check_number, check_trace_type
from mcmcpost.core.errors import InputError, InputTypeError, fault, warn
from mcmcpost.evidence import (
    LadderWarning,
    TemperedTarget,
    gradient_finding,
    likelihood_finding,
    make_ladder,
    repeated_fraction,
)
from mcmcpost.ladders.lanes import Evaluation, evaluate_at
from mcmcpost.ladders.power_posteriors import resolve_target
from mcmcpost.trace import check_same_order
from mcmcpost.trees import ladder_to_datatree, load_tree
from mcmcpost.trees.convention import (
    DRAWS,
    GROUP,
    TEMPERATURE,
    coordinate_labels,
    posterior_sites,
    refuse_weights,
)
from mcmcpost.trees.ladder_trees import LIKELIHOOD_SLOPE, LOG_LIKELIHOOD, PRIOR_SLOPE, REFERENCE
from mcmcpost.trees.numpyro_model import ProbedModel

if TYPE_CHECKING:
    import xarray


_WHERE = "ladder_from_traces"

_CURE = "Store it in sample_stats of every trace, or pass the model, from which it is recomputed."


class _Stored(NamedTuple):
    """The stored variables of one rung, with dims chain and draw first; None where missing."""

    draws: np.ndarray | None
    labels: tuple[str, ...] | None
    sites: dict[str, np.ndarray]
    log_likelihood: np.ndarray | None
    likelihood_slope: np.ndarray | None
    prior_slope: np.ndarray | None


def ladder_from_traces(
    traces: "Mapping[float, Any] | Sequence[tuple[float, Any]] | xarray.DataTree",
    model: Callable[..., Any] | None = None,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    log_likelihood: Callable[[jax.Array], jax.Array] | None = None,
    log_prior: Callable[[jax.Array], jax.Array] | None = None,
) -> "xarray.DataTree":
    """Return a ladder tree from traces of other programs, one for each temperature.

    Without a model every trace must hold, in `sample_stats`, `unconstrained_draw`,
    `log_likelihood_total`, `gradient_log_likelihood` and `gradient_log_prior` (or `gradient`, the
    score of its own rung). With one the constrained draws are enough: the values of the model are
    used, and stored ones are compared with them.

    Parameters
    ----------
    traces : from inverse temperature to a trace or the path of one, or such pairs; or one tree with
        a `temperature` dim. All with the same chains and draws.
    model, args, kwargs : the NumPyro program that was sampled.
    log_likelihood, log_prior : instead of a model, functions of one unconstrained draw (d,).

    Returns
    -------
    DataTree : as from `sample_power_posteriors`; `sample_stats.repeated_fraction` counts repeated
        states of each rung.

    Raises
    ------
    ValueError : a quantity is missing and there is no model, shapes differ, or temperatures do not
        run from 0 to 1.

    Warns
    -----
    LadderWarning : stored log likelihoods carry an additive constant or differ otherwise, or stored
        gradients are off.
    """
    # Mappings and lists come in any order, a ladder in that of its temperatures.
    rungs = sorted(
        ((_level(t), _load(trace)) for t, trace in _pairs(traces)), key=lambda pair: pair[0]
    )
    if not rungs:
        raise InputError(_WHERE, "at least two traces", "none", "Pass {t: trace, ...}.")
    stored = [_read(t, tree) for t, tree in rungs]
    target, probed = _target(model, args, kwargs, log_likelihood, log_prior, stored)
    draws, labels = _stack_draws(stored, probed, [t for t, _ in rungs])
    temperatures = [t for t, _ in rungs]
    if target is None:
        values = _stored_values(stored, temperatures)
        findings: list[str] = []
    else:
        # The model's values are the ones that are used: a stored likelihood without its constant
        # shifts the evidence by it, and nothing in the draws shows that (docs/results,
        # stored_ladders).
        values = evaluate_at(target, draws)
        findings = _compare(stored, values)
    ladder = make_ladder(
        temperatures,
        draws,
        values.log_likelihood,
        values.gradient_log_likelihood,
        values.gradient_log_prior,
        labels if target is None else target.names,
    )
    for finding in findings:
        warn(f"{_WHERE}: {finding}. The model's value is used.", LadderWarning)
    repeated = repeated_fraction(ladder)
    attrs = {"findings": "; ".join(findings), "repeated_states": float(repeated.mean())}
    sites = None if probed is None else probed.constrain(ladder.draws)
    tree = ladder_to_datatree(ladder, sites, None, attrs)
    tree[GROUP] = tree[GROUP].to_dataset().assign(repeated_fraction=(TEMPERATURE, repeated))
    return tree


def _pairs(traces: Any) -> list[tuple[float, Any]]:
    if hasattr(traces, "children"):
        levels = [
            group[TEMPERATURE].values
            for group in traces.children.values()
            if TEMPERATURE in group.dims
        ]
        if not levels:
            raise InputError(
                _WHERE,
                f"a tree with a dim `{TEMPERATURE}`",
                "one without",
                "Pass {t: trace, ...} instead.",
            )
        # Groups such as `observed_data` have no temperature and go to every rung whole.
        return [
            (float(t), traces.isel({TEMPERATURE: i}, missing_dims="ignore"))
            for i, t in enumerate(levels[0])
        ]
    check_kind(_WHERE, "traces", traces, (Mapping, list, tuple), "Pass {t: trace, ...}.")
    pairs = list(traces.items() if isinstance(traces, Mapping) else traces)
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise InputTypeError(
            _WHERE, "pairs (temperature, trace)", type(pairs[0]).__name__, "Or {t: trace, ...}."
        )
    return pairs


def _level(temperature: Any) -> float:
    check_number(
        _WHERE, "temperature", temperature, "It is inverse: 0 is the prior.", inside="[0, 1]"
    )
    return float(temperature)


def _load(trace: Any) -> "xarray.DataTree":
    tree = load_tree(trace) if isinstance(trace, str | os.PathLike) else trace
    check_trace_type(_WHERE, tree)
    refuse_weights(_WHERE, tree)
    return tree


def _read(temperature: float, tree: "xarray.DataTree") -> _Stored:
    stats = tree.children[GROUP].to_dataset() if GROUP in tree.children else None
    # Its ℓ is log p(y|x) + log p(x) − log q(x), which would be taken for a likelihood.
    if stats is not None and stats.attrs.get(REFERENCE, "prior") != "prior":
        got, cure = (
            "one from a fitted reference",
            "Pass the whole ladder to log_evidence, which knows its reference.",
        )
        raise InputError(_WHERE, "rungs of a ladder from the prior", got, cure)

    def stat(name: str) -> np.ndarray | None:
        if stats is None or name not in stats.data_vars:
            return None
        return stats[name].transpose("chain", "draw", ...).values

    slope, prior_slope, score = stat(LIKELIHOOD_SLOPE), stat(PRIOR_SLOPE), stat("gradient")
    if prior_slope is None and slope is not None and score is not None:
        # s_t = t∇ℓ + ∇log p, solved for what is missing.
        prior_slope = score - temperature * slope
    likelihood = stat(LOG_LIKELIHOOD)
    if likelihood is None and "log_likelihood" in tree.children:
        # ArviZ keeps one value for each observation, in one variable for each observed site: their
        # sum is ℓ.
        pointwise = tree.children["log_likelihood"].to_dataset().transpose("chain", "draw", ...)
        parts = [
            variable.values.reshape(*variable.shape[:2], -1).sum(axis=-1)
            for variable in pointwise.data_vars.values()
        ]
        likelihood = sum(parts[1:], start=parts[0]) if parts else None
    sites = posterior_sites(_WHERE, tree) if "posterior" in tree.children else {}
    labels = None if stat(DRAWS) is None or stats is None else coordinate_labels(stats[DRAWS])
    return _Stored(stat(DRAWS), labels, sites, likelihood, slope, prior_slope)


def _target(
    model: Callable[..., Any] | None,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    log_likelihood: Callable[[jax.Array], jax.Array] | None,
    log_prior: Callable[[jax.Array], jax.Array] | None,
    stored: list[_Stored],
) -> tuple[TemperedTarget | None, ProbedModel | None]:
    if model is None and log_likelihood is None and log_prior is None:
        return None, None
    if model is not None:
        return resolve_target(_WHERE, model, args, kwargs, log_likelihood, log_prior, None, None)
    # Functions take unconstrained draws alone, from which the number of parameters is read.
    first = stored[0].draws
    if first is None:
        raise InputError(_missing(DRAWS, "the first trace"))
    # The prior is not sampled here: zeros of the right shape serve as its draw.
    size = first.shape[-1]
    return resolve_target(
        _WHERE,
        None,
        (),
        None,
        log_likelihood,
        log_prior,
        lambda _: jnp.zeros(size),
        stored[0].labels,
    )


def _stack_draws(
    stored: list[_Stored], probed: ProbedModel | None, temperatures: list[float]
) -> tuple[np.ndarray, tuple[str, ...] | None]:
    parts = []
    for t, rung in zip(temperatures, stored, strict=True):
        # The model orders its coordinates itself; unlabelled draws of another program may be in any
        # other order.
        if probed is not None and (rung.draws is None or _sites_rather(rung, probed)):
            parts.append(probed.unconstrain(rung.sites)[0])
        elif rung.draws is not None:
            parts.append(rung.draws)
        else:
            raise InputError(_missing(DRAWS, f"the trace at temperature {t:g}"))
    shapes = {draws.shape for draws in parts}
    if len(shapes) > 1:
        raise InputError(
            _WHERE,
            "as many chains and draws at every temperature",
            sorted(shapes),
            "Thin the longer traces.",
        )
    labels = {
        f"the trace at {t:g}": rung.labels
        for t, rung in zip(temperatures, stored, strict=True)
        if probed is None or not _sites_rather(rung, probed)
    }
    # Stacked in two orders, coordinates would be mixed up without an error.
    check_same_order(_WHERE, labels if probed is None else {"the model": probed.names} | labels)
    return np.stack(parts, axis=2), stored[0].labels


def _sites_rather(rung: _Stored, probed: ProbedModel) -> bool:
    """Return whether the sites are taken: stored draws without the labels of the model may be in
    any order."""
    foreign = rung.labels is None or sorted(rung.labels) != sorted(probed.names)
    return foreign and set(probed.sites) <= set(rung.sites)


def _stored_values(stored: list[_Stored], temperatures: list[float]) -> Evaluation:
    columns = []
    for name, field in (
        (LOG_LIKELIHOOD, "log_likelihood"),
        (LIKELIHOOD_SLOPE, "likelihood_slope"),
        (PRIOR_SLOPE, "prior_slope"),
    ):
        arrays = [getattr(rung, field) for rung in stored]
        for t, array in zip(temperatures, arrays, strict=True):
            if array is None:
                raise InputError(_missing(name, f"the trace at temperature {t:g}"))
        columns.append(np.stack(arrays, axis=2))
    likelihood, slope, prior_slope = columns
    # The value of the log prior is used by nothing after sampling.
    return Evaluation(likelihood, np.zeros_like(likelihood), slope, prior_slope)


def _compare(stored: list[_Stored], values: Evaluation) -> list[str]:
    """Return the findings about the stored quantities that every rung has."""
    findings: list[str | None] = []
    likelihood, slope, prior_slope = (
        # What some rungs lack is not compared: shapes and temperatures of a part would mislead.
        np.stack(arrays, axis=2) if all(array is not None for array in arrays) else None
        for arrays in zip(
            *((rung.log_likelihood, rung.likelihood_slope, rung.prior_slope) for rung in stored),
            strict=True,
        )
    )
    if likelihood is not None:
        findings.append(likelihood_finding(likelihood, values.log_likelihood))
    if slope is not None:
        findings.append(
            gradient_finding(
                "gradient of the log likelihood", slope, values.gradient_log_likelihood
            )
        )
    if prior_slope is not None:
        findings.append(
            gradient_finding("gradient of the log prior", prior_slope, values.gradient_log_prior)
        )
    return [finding for finding in findings if finding is not None]


def _missing(name: str, where: str) -> str:
    return fault(_WHERE, f"`{GROUP}.{name}`", f"none in {where}", _CURE)
