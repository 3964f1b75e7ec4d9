"""Public functions of the model evidence: power posteriors, bridge sampling, the Laplace approximation, comparison."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax

from mcmcpost._core.arguments import as_names, check_count, check_key, check_kind
from mcmcpost._core.errors import InputError
from mcmcpost._core.precision import in_float64
from mcmcpost._core.warn import warn
from mcmcpost.api.question import resolve_method
from mcmcpost.control import AbstractControlVariate
from mcmcpost.evidence import (
    MAX_PROPOSALS,
    Evidence,
    EvidenceComparison,
    EvidenceEstimate,
    Ladder,
    bridge_sampling,
    check_ladder,
    check_options,
    compare_models,
    controlled_bridge,
    disagreements,
    estimate_log_evidence,
    examine_rungs,
    laplace_importance,
    make_ladder,
)
from mcmcpost.io import ladder_to_datatree, read_ladder, read_target
from mcmcpost.scores import ScoreWarning

if TYPE_CHECKING:
    import xarray


class EvidenceWarning(UserWarning):
    """A ladder is incomplete, or methods on the same draws disagree by more than their errors."""


def ladder_from_arrays(
    temperatures: object,
    draws: object,
    log_likelihood: object,
    gradient_log_likelihood: object,
    gradient_log_prior: object,
    *,
    names: tuple[str, ...] | None = None,
) -> "xarray.DataTree":
    """Return the tree of a ladder that was sampled anywhere, for `log_evidence`.

    Parameters
    ----------
    temperatures : (t,) inverse temperatures, increasing from 0 (the prior) to 1 (the posterior).
    draws : (chain, draw, t, d) on the unconstrained space.
    log_likelihood : (chain, draw, t), normalised over the data; an additive constant moves the log evidence with it.
    gradient_log_likelihood, gradient_log_prior : (chain, draw, t, d), the latter log-Jacobian included.
    names : d coordinate labels.

    Raises
    ------
    ValueError, TypeError : an array of a wrong shape or kind; temperatures that are no ladder.
    """
    slopes = (gradient_log_likelihood, gradient_log_prior)
    return ladder_to_datatree(make_ladder(temperatures, draws, log_likelihood, *slopes, names=names))


def log_evidence(
    tree: "xarray.DataTree",
    method: str | AbstractControlVariate | None = None,
    *,
    path: str = "auto",
    degree: int | None = None,
    num_nodes: int = 24,
    folds: int | None = None,
    standardize: tuple[Any, Any] | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
) -> Evidence:
    """Estimate log p(y) from a ladder of power posteriors by thermodynamic integration with control variates.

    log p(y) = ∫₀¹ E_t[log p(y|x)] dt. Where neighbouring rungs overlap, all draws serve every temperature: the
    multistate Bennett weights, a weighted zero-variance control variate and Gauss–Legendre quadrature leave no ladder
    error (``pooled``). Otherwise each rung is controlled by its own draws and the second-order rule is reported
    (``corrected``), with its discretisation error beside the Monte Carlo error. Stepping stone, MBAR and the other
    rules are computed from the same draws as cross-checks. docs/mathematics.md section 3; Sun, Barp and Briol (2023),
    section 5.2.

    Parameters
    ----------
    tree : a ladder, from `sample_power_posteriors` or `ladder_from_traces`.
    method : control variate of the rungs one by one: a name in `METHODS`, an object, or ``VectorValued(...)`` for all
        rungs jointly. By default polynomials chosen by their honest error, and a kernel where the rungs are reported.
    path : ``"auto"``, ``"pooled"`` or ``"rungs"``: which estimate is the value.
    degree : of the polynomials of the pooled path; chosen by its honest error by default.
    num_nodes : of its quadrature; its error is the distance to twice as many.
    folds, standardize, fallback : of the rungs, as in `expectation`.
    allow_bad_scores : use control variates although the score gate fails.

    Returns
    -------
    Evidence : value, mcse and discretisation_error in nats, status, every other method in `estimates`;
        `to_dataframe()` for the methods, `rungs_to_dataframe()`, `to_datatree()`.

    Raises
    ------
    ValueError : log likelihoods or gradients are missing, or the temperatures are not a ladder from 0 to 1.

    Warns
    -----
    ScoreWarning : the gradients are not those of the stored draws: no control variate is used.
    EvidenceWarning : rungs were left out or have not converged, or methods disagree by more than four joint errors.
    """
    return evidence_of(
        read_ladder(tree),
        None if method is None else resolve_method(method),
        path=path,
        degree=degree,
        num_nodes=num_nodes,
        num_folds=folds,
        moments=standardize,
        fallback=fallback,
        allow_bad_scores=allow_bad_scores,
    )


def evidence_of(ladder: Ladder, method: AbstractControlVariate | None = None, **options: Any) -> Evidence:
    """Return the log evidence of a ladder that was read; `options` are those of `estimate_log_evidence`."""
    check_options(ladder, **options)
    evidence = in_float64(_estimate)(ladder, method, **options)
    for text in (*evidence.complaints, *disagreements(evidence)):
        warn(f"log_evidence: {text}", EvidenceWarning)
    return evidence


def _estimate(
    ladder: Ladder, method: AbstractControlVariate | None, *, allow_bad_scores: bool, **options: Any
) -> Evidence:
    health = examine_rungs(ladder)
    check = check_ladder(ladder, health)
    if not check.passed:
        warn(check.message, ScoreWarning)
    return estimate_log_evidence(ladder, health, check, method, allow_bad_scores=allow_bad_scores, **options)


def compare_evidence(
    evidences: Mapping[str, Evidence | EvidenceEstimate], prior: Mapping[str, float] | None = None
) -> EvidenceComparison:
    """Return log Bayes factors, in nats, with errors, and posterior model probabilities.

    Kass and Raftery (1995, doi:10.1080/01621459.1995.10476572). Models are taken to be sampled independently.

    Parameters
    ----------
    evidences : from a model's name to its `log_evidence`, `bridge_evidence`, ….
    prior : prior probability of each model, up to a constant; equal by default.

    Returns
    -------
    EvidenceComparison : `to_dataframe()` has one row per model, the best first.

    Raises
    ------
    ValueError : fewer than two models, an evidence that is not finite, a prior that does not name each model.

    Warns
    -----
    EvidenceWarning : for one of the models, methods on the same draws disagree by more than four joint errors.
    """
    check_kind("compare_evidence", "evidences", evidences, Mapping, 'Pass {"m1": evidence, "m2": evidence}.')
    as_names("compare_evidence", "evidences", evidences)
    for name, evidence in evidences.items():
        for text in disagreements(evidence) if isinstance(evidence, Evidence) else ():
            warn(f"compare_evidence: {name}: {text}", EvidenceWarning)
    return compare_models(evidences, prior)


def bridge_evidence(
    tree: "xarray.DataTree",
    model: Callable[..., Any] | None = None,
    /,
    *args: Any,
    logdensity_fn: Callable[[jax.Array], jax.Array] | None = None,
    key: jax.Array,
    proposal: str | None = None,
    degree: int | None = 0,
    num_proposals: int | None = None,
    **kwargs: Any,
) -> EvidenceEstimate:
    """Estimate the log evidence from posterior draws by bridge sampling.

    A normal proposal fitted to the earlier half of each chain is the bridge for the later half, and conversely. It is a
    cross-check of `log_evidence` from one trace, and works well where the posterior is nearly normal or symmetric (see
    `mcmcpost.evidence.bridge_sampling`).

    Parameters
    ----------
    tree : a trace; ``sample_stats.unconstrained_draw`` where it is there, else the latent sites transformed.
    model : a NumPyro program; `args` and `kwargs` are its arguments. Its priors must be proper.
    logdensity_fn : instead of a model, the log density of one unconstrained draw, log-Jacobian included. A constant
        that it leaves out is missing from the evidence too, and an improper prior is not detected.
    key : JAX key of the proposals.
    proposal : ``"warp3"``, the default, which removes skewness at twice the evaluations, or ``"normal"``.
    degree : zero for the plain bridge. Otherwise the path from the normal to the posterior is integrated with
        zero-variance control variates of this degree, None for the best by its error up to three: much more precise
        where the posterior is smooth and near a normal, with one gradient for each draw and seconds to minutes of
        linear algebra (see `mcmcpost.evidence.controlled_bridge`).
    num_proposals : for each half of the draws; by default, and always with control variates, as many as its draws.

    Returns
    -------
    EvidenceEstimate : value, mcse, status.

    Raises
    ------
    ValueError : an improper prior; a log density that is NaN, or not finite at a draw; a constant coordinate.
    """
    where = "bridge_evidence"
    if proposal not in (None, "warp3", "normal"):
        raise InputError(where, '`proposal` "warp3" or "normal"', repr(proposal), "Use warp3.")
    check_count(where, "degree", degree, "Use 0 for the plain bridge.", least=0, most=10, optional=True)
    check_count(where, "num_proposals", num_proposals, "Leave it out.", most=MAX_PROPOSALS, optional=True)
    check_key(where, key)
    if degree != 0 and (proposal == "warp3" or num_proposals is not None):
        got = 'proposal="warp3"' if proposal == "warp3" else f"num_proposals={num_proposals}"
        raise InputError(where, "a normal and as many proposals as draws with `degree`", got, "Leave it out.")
    target = read_target(where, tree, model, args, kwargs, logdensity_fn)
    if degree != 0:
        return in_float64(controlled_bridge)(
            target.draws, target.logdensity, key=key, names=target.names, degree=degree
        )
    return in_float64(bridge_sampling)(
        target.draws,
        target.logdensity,
        key=key,
        names=target.names,
        symmetric=proposal != "normal",
        num_proposals=num_proposals,
    )


def laplace_evidence(
    tree: "xarray.DataTree",
    model: Callable[..., Any] | None = None,
    /,
    *args: Any,
    logdensity_fn: Callable[[jax.Array], jax.Array] | None = None,
    key: jax.Array,
    num_proposals: int = 20_000,
    **kwargs: Any,
) -> EvidenceEstimate:
    """Estimate the log evidence by importance sampling from the Laplace approximation, to about twenty dimensions.

    Arguments are those of `bridge_evidence`; the draws only start the search for the mode, so that the estimate is an
    independent check of theirs (see `mcmcpost.evidence.laplace_importance`).
    """
    where = "laplace_evidence"
    check_count(where, "num_proposals", num_proposals, "Use 20,000.", least=2, most=MAX_PROPOSALS)
    check_key(where, key)
    target = read_target(where, tree, model, args, kwargs, logdensity_fn)
    return in_float64(laplace_importance)(
        target.draws, target.logdensity, key=key, names=target.names, num_proposals=num_proposals
    )
