"""Ladders of power posteriors as trees: every variable has dims (chain, draw, temperature, ...)."""

from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from mcmcpost.core.arguments import check_trace_type, check_tree_type
from mcmcpost.core.errors import InputError
from mcmcpost.evidence import EVIDENCE_GROUP, Exchange, Ladder, LadderStats, Normal, make_ladder
from mcmcpost.trace import make_trace
from mcmcpost.trees import convention

if TYPE_CHECKING:
    import xarray


LOG_LIKELIHOOD = "log_likelihood_total"

LIKELIHOOD_SLOPE = "gradient_log_likelihood"

PRIOR_SLOPE = "gradient_log_prior"

REFERENCE = "reference"

TWIN = "reference_parameter"

ROUND_TRIPS = "round_trips"

DIMS = ("chain", "draw", convention.TEMPERATURE)

_CURE = (
    "Sample with sample_power_posteriors, or recompute from the model: ladder_from_traces(tree, "
    "model, args)."
)


def ladder_to_datatree(
    ladder: Ladder,
    values: Mapping[str, np.ndarray] | None = None,
    stats: LadderStats | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> "xarray.DataTree":
    """Return a tree of a ladder.

    Parameters
    ----------
    ladder : draws and gradients on the unconstrained space.
    values : constrained variables (chain, draw, temperature, ...) of the posterior group; the draws
        by default.
    stats : statistics of the sampler.
    attrs : recorded with the statistics.

    Returns
    -------
    DataTree : `posterior`; `sample_stats` with `log_likelihood_total`, `gradient_log_likelihood`,
        `gradient_log_prior`, `unconstrained_draw`, and what `stats` holds. Its attribute
        `reference` is ``prior``, or ``normal`` with `reference_mean` and `reference_lower`, the
        lower triangular root of the covariance.
    """
    import xarray

    # Functions without a model have no constrained sites: ArviZ's tables then show the
    # unconstrained ones.
    variables = _draws_by_name(ladder) if values is None else values
    # A site called `temperature` would be taken for the coordinate of that dim.
    convention.check_names(
        "Ladder", {name: array.shape[3:] for name, array in variables.items()}, DIMS
    )
    coords = {
        "chain": np.arange(ladder.draws.shape[0]),
        "draw": np.arange(ladder.draws.shape[1]),
        convention.TEMPERATURE: ladder.temperatures,
    }
    posterior = {
        name: ((*DIMS, *(f"{name}_dim_{i}" for i in range(array.ndim - 3))), array)
        for name, array in variables.items()
    }
    record: dict[str, Any] = {
        LOG_LIKELIHOOD: (DIMS, ladder.log_likelihood),
        # Apart, so that one pass over the draws has the score of any temperature
        # (docs/mathematics.md section 3).
        LIKELIHOOD_SLOPE: ((*DIMS, convention.PARAMETER), ladder.gradient_log_likelihood),
        PRIOR_SLOPE: ((*DIMS, convention.PARAMETER), ladder.gradient_log_prior),
        convention.DRAWS: ((*DIMS, convention.PARAMETER), ladder.draws),
    }
    work: dict[str, Any] = {REFERENCE: "prior"}
    if ladder.reference is not None:
        # xarray allows a variable no two dims of one name: the columns of the factor have another.
        record |= {
            convention.MEAN: (convention.PARAMETER, ladder.reference.mean),
            convention.LOWER: ((convention.PARAMETER, TWIN), ladder.reference.lower),
        }
        work = {REFERENCE: "normal"}
    if stats is not None:
        record |= {
            "acceptance_rate": (DIMS, stats.acceptance_rate),
            "n_steps": (DIMS, stats.num_steps),
            "diverging": (DIMS, stats.diverging),
            "step_size": (("chain", convention.TEMPERATURE), stats.step_size),
            "swap_rate": (("chain", convention.TEMPERATURE), stats.swap_rate),
        }
        work |= {
            "gradient_evaluations": stats.gradient_evaluations,
            "lockstep_evaluations": stats.lockstep_evaluations,
        }
        # Zero round trips of independent rungs would read as a ladder that does not mix.
        if np.isfinite(stats.swap_rate).any():
            work |= {ROUND_TRIPS: stats.round_trips}
    labels = np.array(ladder.names, dtype=object)
    versions = {f"{name}_version": version(name) for name in ("mcmcpost", "jax", "numpyro")}
    return xarray.DataTree.from_dict(
        {
            "posterior": xarray.Dataset(posterior, coords=coords),
            convention.GROUP: xarray.Dataset(
                record,
                coords={**coords, convention.PARAMETER: labels},
                attrs={**convention.ATTRS, **versions, **work, **(attrs or {})},
            ),
        }
    )


def read_ladder(tree: "xarray.DataTree") -> Ladder:
    """Return the ladder of a tree with a `temperature` dim; dims may come in any order.

    Raises
    ------
    TypeError : `tree` is not a DataTree.
    ValueError : draws, log likelihood or gradients are missing, or the temperatures do not increase
        from 0 to 1.
    """
    check_trace_type("read_ladder", tree)
    stats = _statistics(tree)
    for name, what in (
        (convention.DRAWS, "unconstrained draws"),
        (LOG_LIKELIHOOD, "the log likelihood of every draw"),
        (LIKELIHOOD_SLOPE, "gradients of the log likelihood"),
        (PRIOR_SLOPE, "gradients of the log prior"),
    ):
        if name not in stats.data_vars:
            raise InputError(
                "read_ladder",
                f"`{convention.GROUP}.{name}`, {what}",
                ", ".join(map(str, stats.data_vars)),
                _CURE,
            )
    # Gradients of another sign or space pass every shape test.
    for name, value in convention.ATTRS.items():
        if stats.attrs.get(name, value) != value:
            raise InputError(
                "read_ladder", f"attribute {name}={value!r}", repr(stats.attrs[name]), _CURE
            )
    draws = convention.oriented("read_ladder", stats[convention.DRAWS], DIMS, rank=4)
    normal = None
    if stats.attrs.get(REFERENCE, "prior") != "prior":
        if not {convention.MEAN, convention.LOWER} <= set(stats.data_vars):
            raise InputError(
                "read_ladder",
                f"`{convention.GROUP}.{convention.MEAN}` and `{convention.LOWER}` of its reference",
                "none",
                _CURE,
            )
        # Other programs may write the dims in any order, and a factor that is transposed has a
        # covariance of its own.
        lower = stats[convention.LOWER].transpose(convention.PARAMETER, TWIN)
        normal = Normal(
            stats[convention.MEAN].values.astype(np.float64), lower.values.astype(np.float64)
        )
    exchange = None
    if ROUND_TRIPS in stats.attrs:
        rate = convention.oriented(
            "read_ladder", stats["swap_rate"], ("chain", convention.TEMPERATURE), rank=2
        ).mean("chain")
        # The last rung has no next one: its rate is NaN.
        exchange = Exchange(rate.values[:-1], int(stats.attrs[ROUND_TRIPS]))
    return make_ladder(
        stats[convention.TEMPERATURE].values,
        draws.values,
        convention.oriented("read_ladder", stats[LOG_LIKELIHOOD], DIMS, rank=3).values,
        convention.oriented("read_ladder", stats[LIKELIHOOD_SLOPE], DIMS, rank=4).values,
        convention.oriented("read_ladder", stats[PRIOR_SLOPE], DIMS, rank=4).values,
        convention.coordinate_labels(draws),
        reference=normal,
        exchange=exchange,
    )


def is_ladder(tree: "xarray.DataTree") -> bool:
    """Return whether the sampler statistics of `tree` are stacked over temperatures."""
    check_tree_type("is_ladder", tree)
    return (
        convention.GROUP in tree.children
        and convention.TEMPERATURE in tree.children[convention.GROUP].dims
    )


def is_evidence_alone(tree: "xarray.DataTree") -> bool:
    """Return whether a tree has an evidence, and no draws that it could be of."""
    check_tree_type("is_evidence_alone", tree)
    return EVIDENCE_GROUP in tree.children and not {"posterior", convention.GROUP} & set(
        tree.children
    )


def posterior_rung(tree: "xarray.DataTree") -> "xarray.DataTree":
    """Return the trace of a ladder's last rung, the posterior: its score is the sum of the two
    gradients."""
    return last_rung(tree, read_ladder(tree))


def last_rung(tree: "xarray.DataTree", ladder: Ladder) -> "xarray.DataTree":
    """Return the trace of the last rung of `tree`, which was read as `ladder`."""
    # t = 1 in t∇ℓ + ∇log p.
    scores = ladder.gradient_log_likelihood[:, :, -1] + ladder.gradient_log_prior[:, :, -1]
    last = {
        name: node.to_dataset()
        .isel({convention.TEMPERATURE: -1}, missing_dims="ignore")
        .drop_vars(convention.TEMPERATURE, errors="ignore")
        for name, node in tree.children.items()
        # An evidence of the whole ladder is none of its last rung's trace.
        if name in (convention.GROUP, "posterior")
    }
    of_ladder = [
        name
        for name in (convention.MEAN, convention.LOWER)
        if convention.GROUP in last and name in last[convention.GROUP]
    ]
    if convention.GROUP in last:
        # The reference is the ladder's: a trace of the posterior has none.
        last[convention.GROUP] = last[convention.GROUP].drop_vars(of_ladder)
        last[convention.GROUP].attrs.pop(REFERENCE, None)
    rung = type(tree).from_dict(last)
    rung.attrs = dict(tree.attrs)
    return convention.with_trace(rung, make_trace(ladder.draws[:, :, -1], scores, ladder.names), {})


def _statistics(tree: "xarray.DataTree") -> "xarray.Dataset":
    """Return the `sample_stats` of a tree whose variables are stacked over a `temperature`
    coordinate."""
    if convention.GROUP not in tree.children:
        raise InputError(
            "read_ladder",
            f"a group `{convention.GROUP}`",
            ", ".join(tree.children) or "no group",
            _CURE,
        )
    stats = tree.children[convention.GROUP].to_dataset()
    if convention.TEMPERATURE not in stats.coords or convention.TEMPERATURE not in stats.dims:
        raise InputError(
            "read_ladder",
            f"`{convention.GROUP}` with a dim and coordinate `{convention.TEMPERATURE}`",
            f"dims {', '.join(map(str, stats.sizes))}",
            "For one trace per temperature use ladder_from_traces({t: tree, ...}).",
        )
    return stats


def _draws_by_name(ladder: Ladder) -> dict[str, np.ndarray]:
    return {name: ladder.draws[..., i].copy() for i, name in enumerate(ladder.names)}
