"""Public functions of the model evidence: power posteriors, bridges, Laplace, comparison,
Savage–Dickey ratios."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from mcmcpost.control import HIGHEST_DEGREE, AbstractControlVariate, Auto, Options, PlainMean
from mcmcpost.core.arguments import (
    as_names,
    check_count,
    check_flags,
    check_key,
    check_kind,
    check_number,
)
from mcmcpost.core.errors import InputError, Status, warn
from mcmcpost.core.precision import in_float64
from mcmcpost.distributions import distribution
from mcmcpost.evidence import (
    MAX_PROPOSALS,
    MIN_PROPOSALS,
    Evidence,
    EvidenceComparison,
    EvidenceEstimate,
    Ladder,
    check_ladder,
    check_options,
    compare_models,
    disagreements,
    estimate_from_posterior,
    estimate_log_evidence,
    evaluate_draws,
    evaluate_rows,
    examine_rungs,
    laplace_importance,
    make_ladder,
    stored_bridge,
    stored_evidence,
    with_bridge,
)
from mcmcpost.sample import NO_GAIN, resolve_method
from mcmcpost.scores import ScoreWarning
from mcmcpost.trace import make_trace
from mcmcpost.trees import (
    RowDensity,
    Scored,
    Target,
    check_agreement,
    check_convergence,
    check_slopes,
    gate,
    ladder_to_datatree,
    read_density,
    read_ladder,
    read_target,
    read_weights,
    recorded_log_density,
    warn_of_convergence,
)

if TYPE_CHECKING:
    import xarray


OTHER_MODEL = (
    "the draws are not of this model: its gradients fail the score gate, as those of another "
    "model, other data or another prior than were sampled would. The number is not its "
    "evidence"
)
"""What is said of an evidence with the status ``bad_scores``."""


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
    log_likelihood : (chain, draw, t), normalised over the data; an additive constant moves the log
        evidence with it.
    gradient_log_likelihood, gradient_log_prior : (chain, draw, t, d), the latter log-Jacobian
        included.
    names : d coordinate labels.

    Raises
    ------
    ValueError, TypeError : an array of a wrong shape or kind; temperatures that are no ladder.
    """
    slopes = (gradient_log_likelihood, gradient_log_prior)
    return ladder_to_datatree(
        make_ladder(temperatures, draws, log_likelihood, *slopes, names=names)
    )


def log_evidence(
    tree: "xarray.DataTree",
    method: str | AbstractControlVariate | None = None,
    *,
    path: str = "auto",
    degree: int | None = None,
    num_nodes: int | None = None,
    folds: int | None = None,
    standardize: tuple[Any, Any] | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
    bridge: Evidence | None = None,
) -> Evidence:
    """Estimate log p(y) from a ladder of power posteriors by thermodynamic integration with control
    variates.

    log p(y) = ∫₀¹ E_t[log p(y|x)] dt. Where neighbouring rungs overlap, all draws serve every
    temperature: the multistate Bennett weights, a weighted zero-variance control variate and
    Gauss–Kronrod quadrature leave no ladder error (``pooled``). Otherwise each rung is controlled
    by its own draws and the second-order rule is reported (``corrected``), with its discretisation
    error beside the Monte Carlo error. Stepping stone, MBAR and the other rules are computed from
    the same draws as cross-checks. docs/mathematics.md section 3; Sun, Barp and Briol (2023),
    section 5.2.

    Parameters
    ----------
    tree : a ladder, from `sample_power_posteriors`, from the prior or from a reference, or
        `ladder_from_traces`.
    method : control variate of the rungs one by one: a name in `METHODS`, an object, or
        ``VectorValued(...)`` for all rungs jointly. By default polynomials chosen by their honest
        error, and a kernel where the rungs are reported.
    path : ``"auto"``, ``"pooled"`` or ``"rungs"``: which estimate is the value.
    degree : of the polynomials of the pooled path; chosen by its honest error by default.
    num_nodes : Gauss–Legendre nodes of its quadrature; Kronrod's rule adds num_nodes + 1, and its
        error is the distance between the two. By default 12, and eight from a reference, doubled up
        to 48 where they are too few; at most 200.
    folds, standardize, fallback : of the rungs, as in `expectation`.
    allow_bad_scores : use control variates although the score gate fails.
    bridge : `bridge_evidence` of the last rung, ``tree.sel(temperature=1.0)``, or of another trace
        of this posterior. It is reported beside the ladder, and with ``path="auto"`` first where it
        is sound and its error smaller. By default the bridge that the tree has, where a log
        evidence of it was stored.

    Returns
    -------
    Evidence : value, mcse and discretisation_error in nats, status, every other method in
        `estimates`; `to_dataframe()` for the methods, `rungs_to_dataframe()`, `to_datatree()`.

    Raises
    ------
    ValueError : log likelihoods or gradients are missing, or the temperatures are not a ladder from
        0 to 1.

    Warns
    -----
    ScoreWarning : the gradients are not those of the stored draws: no control variate is used.
    EvidenceWarning : rungs were left out or have not converged, or methods disagree by more than
        four joint errors.
    ConvergenceWarning : transitions were divergent at any temperature, or two chains are the same.
    """
    ladder = read_ladder(tree)
    if bridge is None:
        bridge = stored_bridge("log_evidence", tree)
    # Without scalars no R-hat is computed: only the divergences of all rungs.
    # rungs that disagree are complaints of the evidence
    warn_of_convergence(check_convergence(tree, ()))
    return evidence_of(
        ladder,
        None if method is None else resolve_method(method),
        Options(standardize, folds, allow_bad_scores, fallback),
        path=path,
        degree=degree,
        num_nodes=num_nodes,
        bridge=bridge,
    )


def evidence_of(
    ladder: Ladder,
    method: AbstractControlVariate | None,
    options: Options,
    *,
    path: str = "auto",
    degree: int | None = None,
    num_nodes: int | None = None,
    bridge: Evidence | None = None,
) -> Evidence:
    """Return the log evidence of a ladder that was read; arguments are those of
    `estimate_log_evidence`."""
    check_options(ladder, options, path=path, degree=degree, num_nodes=num_nodes)
    cure = "Pass bridge_evidence(tree.sel(temperature=1.0), model, key=key)."
    check_kind("log_evidence", "bridge", bridge, (Evidence, None), cure)
    # In 64 bits: MBAR and nodes of the path need more digits than float32 has.
    evidence = in_float64(_estimate)(
        ladder, method, options, path=path, degree=degree, num_nodes=num_nodes
    )
    if bridge is not None:
        evidence = with_bridge(evidence, bridge, choose=path == "auto")
    for text in (*evidence.complaints, *disagreements(evidence)):
        warn(f"log_evidence: {text}", EvidenceWarning)
    return evidence


def _estimate(
    ladder: Ladder, method: AbstractControlVariate | None, options: Options, **nodes: Any
) -> Evidence:
    # Rungs that cannot be used are left out of the score gate too, which would fail on their NaN.
    health = examine_rungs(ladder)
    check = check_ladder(ladder, health)
    if not check.passed:
        warn(check.message, ScoreWarning)
    evidence = estimate_log_evidence(ladder, health, check, method, options, **nodes)
    return (
        evidence
        if check.passed
        else evidence._replace(info=evidence.info | {"score_gate": check.message})
    )


def compare_evidence(
    evidences: "Mapping[str, Evidence | EvidenceEstimate | xarray.DataTree]",
    prior: Mapping[str, float] | None = None,
) -> EvidenceComparison:
    """Return log Bayes factors, in nats, with errors, and posterior model probabilities.

    Kass and Raftery (1995, doi:10.1080/01621459.1995.10476572). Models are taken to be sampled
    independently.

    Parameters
    ----------
    evidences : from a model's name to its `log_evidence`, `bridge_evidence`, …, or to a tree with a
        stored one, which `load_tree` returned; nothing is computed again.
    prior : prior probability of each model, up to a constant; equal by default.

    Returns
    -------
    EvidenceComparison : `to_dataframe()` has one row per model, the best first.

    Raises
    ------
    ValueError : fewer than two models, an evidence that is not finite, a prior that does not name
        each model; a tree without an evidence; trees whose `observed_data` differ.

    Warns
    -----
    EvidenceWarning : for one of the models, methods on the same draws disagree by more than four
        joint errors.
    """
    check_kind(
        "compare_evidence",
        "evidences",
        evidences,
        Mapping,
        'Pass {"m1": evidence, "m2": evidence}.',
    )
    as_names("compare_evidence", "evidences", evidences)
    # Of trees the data can be compared; an `Evidence` has none.
    trees: dict[str, Any] = {
        name: one for name, one in evidences.items() if hasattr(one, "children")
    }
    check_same_data("compare_evidence", trees)
    known: dict[str, Any] = dict(evidences)
    known |= {
        name: stored_evidence(f"compare_evidence: {name}", tree) for name, tree in trees.items()
    }
    for name, evidence in known.items():
        for text in disagreements(evidence) if isinstance(evidence, Evidence) else ():
            warn(f"compare_evidence: {name}: {text}", EvidenceWarning)
    return compare_models(known, prior)


def check_same_data(where: str, trees: "Mapping[str, xarray.DataTree]") -> None:
    """Refuse trees that have other observed data under one name: a Bayes factor needs the same data
    in all models."""
    seen: dict[str, tuple[str, np.ndarray]] = {}
    for owner, tree in trees.items():
        group = tree.children.get("observed_data")
        for name, variable in {} if group is None else group.data_vars.items():
            # Under one name the data must be one: y and log y differ by a Jacobian, and so would
            # the Bayes factor.
            first, values = seen.setdefault(str(name), (owner, variable.values))
            numbers = values.dtype.kind == variable.dtype.kind == "f"
            if not np.array_equal(values, variable.values, equal_nan=numbers):
                expected = f"models of the same data, {name} of {first} {values.shape}"
                cure = "Fit all models to the same observations, not transformed."
                raise InputError(
                    where, expected, f"other values in {owner} {variable.values.shape}", cure
                )


def bridge_evidence(
    tree: "xarray.DataTree",
    model: Any = None,
    /,
    *args: Any,
    logdensity_fn: Callable[[jax.Array], jax.Array] | None = None,
    key: jax.Array,
    method: str | AbstractControlVariate = "auto",
    degree: int | None = None,
    num_proposals: int | None = None,
    allow_bad_scores: bool = False,
    **kwargs: Any,
) -> Evidence:
    """Estimate the log evidence from posterior draws alone, in seconds, by bridge sampling with
    control variates.

    A density fitted to the earlier half of each chain is the bridge for the later half, and
    conversely: a normal, bent where the draws are skew or where the mean or scale of a coordinate
    depends on another. It is fitted again to the draws and its first proposals together. The
    warp-III and the fitted bridge, the latter with control variates, and, where it may be the best,
    the controlled path from the normal to the posterior share the draws; the value is that of the
    smallest honest error, and the others are beside it. It works well where the posterior has one
    mode; the effective draws in the overlap tell. Modes that no draw has visited are looked for by
    climbs of the density, not with ``"plain"``. docs/methods/bridge.md; see
    `mcmcpost.evidence.estimate_from_posterior`.

    Parameters
    ----------
    tree : a trace; ``sample_stats.unconstrained_draw`` where it is there, else the latent sites
        transformed. Draws with weights, ``sample_stats.log_weight``, have self-normalised means
        (docs/methods/weighted_draws.md).
    model : a NumPyro program; `args` and `kwargs` are its arguments. Or a ``pymc.Model`` or
        ``bridgestan.StanModel``, which contains its data. Priors must be proper: those of a Stan
        program are not checked.
    logdensity_fn : instead of a model, the log density of one unconstrained draw, log-Jacobian
        included. A constant that it leaves out is missing from the evidence too, and an improper
        prior is not detected.
    key : JAX key of the proposals.
    method : control variate of the bridge's mean over the draws, a name in `METHODS` or an object.
        ``"auto"`` chooses among linear families, ``mp.Auto()`` with kernels too. ``"plain"`` needs
        no gradient, and gives the two plain bridges alone.
    degree : of the polynomials of the controlled path; chosen by its honest error by default. Zero
        leaves the path out.
    num_proposals : draws of the fitted density for each half of the draws, after as many
        evaluations of the log density to fit it again; by default 16 for each draw, at most 20,000
        or as many as draws, and up to 100,000 where the log density takes little work.
    allow_bad_scores : go on although the model is not the density of the draws.

    Returns
    -------
    Evidence : value and mcse in nats, status, every method in `estimates`; `to_dataframe()`,
        `to_datatree()`. `info` has ``participants``, ``pareto_khat``, how many ``densities`` and
        ``gradients`` were evaluated, and in ``modes`` what was looked for outside the draws; of
        weighted draws also ``weights_ess`` and ``weights_khat``, above 0.7 of which the status is
        ``heavy_tail``.

    Raises
    ------
    ScoreError : the density or its gradients are not those that the trace has, as of another model
        or of other data.
    ValueError : an improper prior, or one that PyMC does not normalise; a log density that is NaN,
        or not finite at a draw; a constant coordinate.

    Warns
    -----
    ScoreWarning : Stein's identity fails for another reason: plain bridges alone, with status
        ``bad_scores`` where the draws may be of another density.
    EvidenceWarning : the overlap is poor, a few weighted draws decide, chains or halves disagree,
        a mode has no draws, or methods differ by more than four joint errors.
    ConvergenceWarning : transitions were divergent, or two chains are the same. A region without
        draws, such as the neck of a funnel, is missing from the fitted density too, and no bridge
        can show it.
    """
    where = "bridge_evidence"
    # Kernels for the means of the bridge took a third of the time for eight schools and left the
    # answer as it was.
    choice = (
        Auto(kernel=False)
        if isinstance(method, str) and method == "auto"
        else resolve_method(method)
    )
    check_count(
        where,
        "degree",
        degree,
        "Zero leaves the path out.",
        least=0,
        most=HIGHEST_DEGREE,
        optional=True,
    )
    check_count(
        where,
        "num_proposals",
        num_proposals,
        "Leave it out.",
        least=MIN_PROPOSALS,
        most=MAX_PROPOSALS,
        optional=True,
    )
    check_flags(where, allow_bad_scores=allow_bad_scores)
    check_key(where, key)
    # With all constants: what PyMC or Stan drop from a density is missing from the evidence.
    target = read_density(where, tree, model, args, kwargs, logdensity_fn)
    options = {"key": key, "degree": degree, "num_proposals": num_proposals}
    # chains that disagree are complaints of the evidence
    warn_of_convergence(check_convergence(tree, ()))
    evidence = in_float64(_bridge)(tree, target, choice, allow_bad_scores, options)
    for text in (*evidence.complaints, *disagreements(evidence)):
        warn(f"{where}: {text}", EvidenceWarning)
    return evidence


def _bridge(
    tree: "xarray.DataTree",
    target: Target | RowDensity,
    method: AbstractControlVariate,
    allow_bad_scores: bool,
    options: dict[str, Any],
) -> Evidence:
    # Gradients cost several densities each, and plain bridges need none.
    scores = not isinstance(method, PlainMean)
    if isinstance(target, RowDensity):
        posterior = evaluate_rows(
            target.draws, target.values, target.slopes, target.names, scores=scores
        )
    else:
        posterior = evaluate_draws(target.draws, target.logdensity, target.names, scores=scores)
    # A trace has scores; those of zero are never tested nor used.
    slopes = np.zeros_like(posterior.draws) if posterior.scores is None else posterior.scores
    weights = read_weights("bridge_evidence", tree, posterior.draws.shape[:2])
    posterior = posterior._replace(weights=weights)
    trace = make_trace(posterior.draws, slopes, posterior.names)._replace(weights=weights)
    points = posterior.draws.reshape(-1, posterior.draws.shape[-1])
    if not allow_bad_scores:
        # Before the bridge: another model's evidence from these draws is a number like any other,
        # and nothing in it tells.
        check_agreement(
            "bridge_evidence",
            tree,
            Scored(trace, lambda index: posterior.values(points[index]), {}),
        )
        if posterior.scores is not None:
            check_slopes("bridge_evidence", tree, trace)
    other = False
    if posterior.scores is not None:
        check = gate(trace, allow_bad_scores, recorded_log_density(tree, trace))
        # A constant score, an edge or chains that disagree do not make the model another one.
        other = check.failed and check.pattern not in (*NO_GAIN, "not_converged")
        method = PlainMean() if check.failed and not allow_bad_scores else method
    evidence = estimate_from_posterior(posterior, method, **options)
    if not (other and np.isfinite(evidence.value)):
        return evidence
    return evidence._replace(
        status=Status.BAD_SCORES, complaints=(OTHER_MODEL, *evidence.complaints)
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
    """Estimate the log evidence by importance sampling from the Laplace approximation, to about
    twenty dimensions.

    `tree`, `model`, `args`, `kwargs`, `logdensity_fn` and `key` are those of `bridge_evidence`. The
    draws only start the search for the mode, so that the estimate is an independent check of
    theirs, and weights of the draws do not matter (see `mcmcpost.evidence.laplace_importance`).
    """
    where = "laplace_evidence"
    check_count(where, "num_proposals", num_proposals, "Use 20,000.", least=2, most=MAX_PROPOSALS)
    check_key(where, key)
    # The Hessian at the mode is by JAX: densities of other packages, one row at a time, have none.
    target = read_target(where, tree, model, args, kwargs, logdensity_fn)
    return in_float64(laplace_importance)(
        target.draws, target.logdensity, key=key, names=target.names, num_proposals=num_proposals
    )


METHOD = "Savage–Dickey"

FEW_ERRORS = 3.0
"""Standard errors above zero that a density must be for its logarithm to have an error by the delta
method."""


def savage_dickey(
    tree: "xarray.DataTree",
    quantity: Any,
    point: float,
    prior: Any,
    method: str | AbstractControlVariate = "auto",
    *,
    allow_bad_scores: bool = False,
) -> EvidenceEstimate:
    """Estimate the log Bayes factor of ``quantity = point`` against the model of a trace, by the
    density ratio.

    log p(y|M₀) − log p(y|M₁) = log p(h = t|y, M₁) − log p(h = t|M₁), where M₀ is M₁ with h = t and
    the prior of its other parameters is that of M₁ given h = t, as when h is independent of them.
    Positive values favour the point. The posterior density is that of `distribution`, without a
    bandwidth; its error becomes that of the logarithm by the delta method. Two evidences are not
    needed, and their errors do not enter.

    Parameters
    ----------
    tree : a trace of the larger model M₁.
    quantity : h, the name of a scalar variable, or ``{name: function of a draw}`` for an element or
        a contrast.
    point : t, the value under M₀, in units of h; inside its range, not at an edge of it.
    prior : the prior density of h at t under M₁, a number; or its distribution, with ``logpdf`` as
        SciPy's or ``log_prob`` as NumPyro's.
    method, allow_bad_scores : as in `distribution`.

    Returns
    -------
    EvidenceEstimate : `value` is the log Bayes factor in nats, `mcse` its standard error. `info`
        has ``density``, ``density_mcse`` and ``prior_density``. Status that of the density;
        ``unseen`` with fewer than three effective draws beyond t; ``undefined`` (NaN) where the
        density is less than three of its errors. There bridges to both models are better.

    Raises
    ------
    ValueError : several quantities; a discrete one; a point that is not finite; a prior density
        that is not finite and positive.

    Source: Dickey (1971, doi:10.1214/aoms/1177693507); Verdinelli and Wasserman (1995,
    doi:10.1080/01621459.1995.10476554) for priors that depend on h.
    """
    where = "savage_dickey"
    check_number(
        where,
        "point",
        point,
        "It is the value of the quantity under the null.",
        inside="(-inf, inf)",
    )
    # Before the posterior's, which takes far longer.
    prior_density = _prior_density(where, prior, float(point))
    dist = distribution(tree, quantity, method, allow_bad_scores=allow_bad_scores)
    if len(dist.names) != 1:
        cure = "Name a scalar variable, or pass {name: function of a draw}."
        raise InputError(where, "one quantity", ", ".join(dist.names), cure)
    curve = dist.pdf(float(point))
    if curve.status[0, 0] is Status.UNDEFINED and dist.sample.finite.all():
        cure = "Divide probabilities, which distribution(...).probability(lower, upper) gives."
        raise InputError(
            where, "a quantity that has a density", f"few values of {dist.names[0]}", cure
        )
    density, error, status = float(curve.mean[0, 0]), float(curve.mcse[0, 0]), curve.status[0, 0]
    info = {"density": density, "density_mcse": error, "prior_density": prior_density}
    # The logarithm of an estimate that may be zero has no variance; NaN ends here too.
    if not density > FEW_ERRORS * error:
        reason = f"the posterior density at {point:g} is {density:.2g} ± {error:.2g}"
        return EvidenceEstimate(METHOD, np.nan, np.nan, Status.UNDEFINED, info | {"reason": reason})
    return EvidenceEstimate(
        METHOD, float(np.log(density / prior_density)), error / density, status, info
    )


def _prior_density(where: str, prior: Any, point: float) -> float:
    """Return the prior density at a point, given as a number or as a distribution of SciPy or
    NumPyro."""
    value, kind = prior, "a number"
    for name in ("logpdf", "log_prob"):
        if callable(getattr(prior, name, None)):
            # NumPyro computes in the precision of the process.
            with jax.enable_x64(True):
                value, kind = (
                    np.exp(np.asarray(getattr(prior, name)(point), float)),
                    f"exp {name}({point:g})",
                )
            if value.shape == ():
                value = float(value)
            break
    cure = (
        "Pass a density such as 0.4, scipy.stats.norm(0, 1), or numpyro.distributions.Normal(0, 1)."
    )
    check_number(where, f"prior, {kind}", value, cure)
    return float(value)
