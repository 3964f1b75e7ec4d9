"""The log evidence of a ladder, and comparisons of models and of methods by it.

It is pooled and continuous where the rungs overlap, rung by rung otherwise.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from mcmcpost.control import HIGHEST_DEGREE, NEED, AbstractControlVariate, Auto, Options, PlainMean
from mcmcpost.core.arguments import check_count, check_flags, check_kind, check_number
from mcmcpost.core.errors import InputError, Status
from mcmcpost.evidence.barrier import PathDiagnostics, diagnose_path
from mcmcpost.evidence.ladder import EvidenceEstimate, Ladder
from mcmcpost.evidence.mbar import mbar_estimate, stepping_stone
from mcmcpost.evidence.path import MANY_NODES, PooledPath, path_influence, pooled_path
from mcmcpost.evidence.record import Evidence
from mcmcpost.evidence.rungs import (
    LadderCheck,
    Rule,
    RungHealth,
    RungMeans,
    control_rungs,
    corrected_rule,
    discretisation_errors,
    simpson_rule,
    trapezoid_rule,
)

if TYPE_CHECKING:
    import pandas


PATHS = ("auto", "pooled", "rungs")

AGREEMENT = 4.0
"""Joint standard errors by which the two halves of the draws may differ."""

ROUNDING = 1e-10
"""Part of the value, or of one nat, by which they may differ beside that: an exact path has errors
of rounding."""


def check_options(
    ladder: Ladder,
    options: Options,
    *,
    path: str = "auto",
    degree: int | None = None,
    num_nodes: int | None = None,
) -> None:
    """Refuse options that `estimate_log_evidence` cannot use, before any work."""
    if not isinstance(path, str) or path not in PATHS:
        raise InputError(
            "log_evidence", f"`path` to be one of {', '.join(PATHS)}", repr(path), 'Use "auto".'
        )
    check_count(
        "log_evidence",
        "degree",
        degree,
        "None lets the error choose.",
        least=0,
        most=HIGHEST_DEGREE,
        optional=True,
    )
    check_count(
        "log_evidence",
        "num_nodes",
        num_nodes,
        "Leave it out.",
        least=2,
        most=MANY_NODES,
        optional=True,
    )
    check_flags(
        "log_evidence", fallback=options.fallback, allow_bad_scores=options.allow_bad_scores
    )
    options.check(ladder.rung(0))


def estimate_log_evidence(
    ladder: Ladder,
    health: RungHealth,
    check: LadderCheck,
    method: AbstractControlVariate | None,
    options: Options,
    *,
    path: str = "auto",
    degree: int | None = None,
    num_nodes: int | None = None,
) -> Evidence:
    """Estimate log p(y) = ∫₀¹ E_t[log p(y|x)] dt from draws of the power posteriors.

    Rungs that are not usable are left out and named in `complaints`. Where the score gate failed no
    control variate is used unless the options allow it. No error is below the rounding of the log
    likelihood at the last rung.

    Parameters
    ----------
    health, check : from `examine_rungs` and `check_ladder`.
    method : control variate of each rung by itself; polynomials chosen by their honest error by
        default, a kernel too where the rungs are what is reported. `VectorValued` fits all rungs
        jointly.
    options : of the rungs.
    path : ``"auto"``, ``"pooled"`` or ``"rungs"``.
    degree, num_nodes : of the pooled path, see `pooled_path`.
    """
    used = np.flatnonzero(health.usable)
    usable = ladder.select(used)
    controlled = check.passed or options.allow_bad_scores
    pooled = None
    if len(used) > 1:
        # Of the whole ladder: where the prior rung is left out as unusable, the share of possible
        # prior draws is known all the same.
        prior = ladder.log_likelihood[:, :, 0] if ladder.temperatures[0] == 0 else None
        pooled = pooled_path(
            usable, degree=degree, num_nodes=num_nodes, controlled=controlled, prior=prior
        )
    pooled_first = path == "pooled" or (path == "auto" and pooled is not None and not pooled.reason)
    # Rules need both ends; the pooled path reaches an end that is missing by weighting the other
    # rungs.
    rungs, influence = None, None
    estimates: list[EvidenceEstimate] = []
    if len(used) > 1 and usable.temperatures[0] == 0.0 and usable.temperatures[-1] == 1.0:
        rungs = control_rungs(
            usable,
            # As a cross-check beside the pooled path polynomials do: a kernel for each of thirty
            # rungs costs far more than it says.
            (method or Auto(kernel=not pooled_first)) if controlled else PlainMean(),
            options._replace(bad_scores=not check.passed and controlled),
        )
        estimates = _rule_estimates(usable, rungs)
        influence = rungs.influence(corrected_rule(usable.temperatures))
    # Where the pooled path is the answer the error shares of the rungs are of its influence,
    # otherwise of the rule's.
    passing = None
    if pooled is not None:
        influence = (
            path_influence(usable, pooled) if pooled_first or influence is None else influence
        )
        passing = diagnose_path(usable, pooled.mixtures.log_densities[0], influence)
        estimates.insert(0 if pooled_first else len(estimates), _pooled_estimate(pooled))
    if rungs is not None and pooled is not None:
        energies, converged = pooled.mixtures.free_energies, pooled.mixtures.converged
        # Cross-checks on the same draws, which need no scores.
        estimates.append(stepping_stone(usable))
        estimates.append(mbar_estimate(usable, energies[0], energies[1:, -1], converged=converged))
    if not estimates:
        estimates = [
            EvidenceEstimate(
                "none", np.nan, np.nan, Status.UNDEFINED, {"discretisation_error": np.nan}
            )
        ]
    elif usable.temperatures[-1] > 0:
        estimates = [e.with_rounding(usable.log_likelihood[:, :, -1]) for e in estimates]
    best = estimates[0]
    info: dict[str, Any] = {
        "num_chains": ladder.draws.shape[0],
        "num_draws": ladder.draws.shape[1],
        "num_rungs": len(ladder.temperatures),
        "reference": "prior" if ladder.reference is None else "fitted normal",
        "impossible_prior_draws": int(health.impossible.sum()),
    }
    if passing is not None:
        info |= {"barrier": passing.barrier.total, "advised_rungs": passing.barrier.advised_size}
        info |= (
            {"round_trips": int(passing.round_trips)} if np.isfinite(passing.round_trips) else {}
        )
    if influence is not None:
        # Influences are linear: the value from half of the draws needs no second fit.
        info |= _halves(best, influence.sum(axis=-1))
    return Evidence(
        value=best.value,
        mcse=best.mcse,
        discretisation_error=best.info["discretisation_error"],
        status=_status(best, health, check, controlled),
        method=best.method,
        complaints=(
            *_complaints(ladder, health, check, pooled, passing, best),
            *halves_complaint(info),
        ),
        estimates=tuple(estimates),
        temperatures=ladder.temperatures,
        health=health,
        used=used,
        rungs=rungs,
        pooled=pooled,
        info=info,
        diagnostics=passing,
    )


def _halves(best: EvidenceEstimate, influence: Float[np.ndarray, "c n"]) -> dict[str, list[float]]:
    """Return the value from the earlier and from the later half of each chain, to first order, and
    their errors."""
    half = influence.shape[1] // 2
    if not half or not np.isfinite(best.value):
        return {}
    values = [
        best.value + float(series.mean()) for series in (influence[:, :half], influence[:, half:])
    ]
    # Half of the draws have twice the variance; the errors of the halves are not estimated again.
    return {"halves": values, "halves_mcse": [best.mcse * float(np.sqrt(2.0))] * 2}


def halves_complaint(info: dict[str, Any]) -> tuple[str, ...]:
    """Return a sentence where the halves of the draws differ by more than `AGREEMENT` joint
    errors."""
    values, errors = (
        np.array(info.get(key, [np.nan, np.nan])) for key in ("halves", "halves_mcse")
    )
    # Written with `not … >` so that NaN is no complaint.
    if not abs(values[0] - values[1]) > AGREEMENT * np.hypot(*errors) + ROUNDING * max(
        1.0, abs(values[0])
    ):
        return ()
    text = " and ".join(f"{v:.6g} ± {e:.2g}" for v, e in zip(values, errors, strict=True))
    return (f"the halves of the chains give {text}, further apart than their errors allow",)


def with_bridge(evidence: Evidence, bridge: Evidence, *, choose: bool = True) -> Evidence:
    """Return the evidence of a ladder with the bridges of its posterior beside it.

    Both say what log p(y) is. The bridge is the answer if it is sound and its error is smaller by
    `NEED`; the others are cross-checks. What is known about the rungs and the path stays that of
    the ladder, but for the halves.

    Parameters
    ----------
    choose : otherwise the ladder's own answer stays.
    """
    evidence = evidence._replace(bridge=bridge)
    # A bridge is asked for a smaller error by `NEED`, since the smaller of two estimated errors is
    # too small on average.
    sound = bridge.status in (Status.CONTROLLED, Status.PLAIN) and not bridge.complaints
    if not (
        choose
        and sound
        and (bridge.error * NEED < evidence.error or not np.isfinite(evidence.error))
    ):
        return evidence._replace(estimates=evidence.estimates + bridge.estimates)
    return evidence._replace(
        value=bridge.value,
        mcse=bridge.mcse,
        discretisation_error=bridge.discretisation_error,
        status=bridge.status,
        method=bridge.method,
        estimates=bridge.estimates + evidence.estimates,
        info=evidence.info
        | {key: bridge.info[key] for key in ("halves", "halves_mcse") if key in bridge.info},
    )


def _complaints(
    ladder: Ladder,
    health: RungHealth,
    check: LadderCheck,
    pooled: PooledPath | None,
    passing: PathDiagnostics | None,
    best: EvidenceEstimate,
) -> tuple[str, ...]:
    at = [f"t = {t:.3g}" for t in ladder.temperatures]
    stray = [at[i] for i in np.flatnonzero(health.usable & ~health.converged)]
    texts = (
        [f"no pooled path: {pooled.reason}{_cure(pooled, passing)}"]
        if pooled is not None and pooled.reason
        else []
    )
    for i in np.flatnonzero(~health.usable):
        # An inner rung that is left out is bridged by its neighbours, an end is not.
        end = i in (0, len(at) - 1)
        texts.append(
            f"the rung {at[i]} has {health.problem[i]}"
            + ", and the path there is extrapolated" * end
        )
    if not check.tested and best.status is not Status.PLAIN:
        texts.append("there are too few draws to test the scores, so nothing is known about them")
    if health.impossible[0] and not np.isfinite(best.value):
        texts.append(
            f"{health.impossible[0]} draws of the {ladder.start} have zero likelihood: the "
            "mean log likelihood there, which rules over the rungs need, is undefined; the "
            "pooled path does without it"
        )
    return (*texts, f"the chains disagree at {', '.join(stray)}") if stray else tuple(texts)


def _cure(pooled: PooledPath, passing: PathDiagnostics | None) -> str:
    """Return how many rungs would overlap, where the barrier is known."""
    if passing is None or not pooled.mixtures.converged or not np.isfinite(passing.barrier.total):
        return ""
    number = passing.barrier.overlapping_size
    return f"; sample {number} rungs at barrier_ladder(tree, {number}), which would overlap"


def _status(
    best: EvidenceEstimate, health: RungHealth, check: LadderCheck, controlled: bool
) -> Status:
    if not np.isfinite(best.value):
        return Status.UNDEFINED
    # A density that ends where it is not zero forbids control variates, but plain values are not in
    # doubt there.
    if not check.passed and (controlled or not check.edge):
        return Status.BAD_SCORES
    stray = (health.usable & ~health.converged).any() or not health.usable[[0, -1]].all()
    return Status.NOT_CONVERGED if stray or best.info.get("reason") else best.status


def _pooled_estimate(pooled: PooledPath) -> EvidenceEstimate:
    status = Status.CONTROLLED if pooled.level else Status.PLAIN
    info: dict[str, Any] = {
        "discretisation_error": pooled.discretisation_error,
        "control": pooled.method,
    }
    info |= {"degree": pooled.degree, "reason": pooled.reason}
    return EvidenceEstimate("pooled", pooled.value, pooled.mcse, status, info | pooled.info)


def _rule_estimates(ladder: Ladder, rungs: RungMeans) -> list[EvidenceEstimate]:
    rules: dict[str, Rule | None] = {
        "corrected": corrected_rule(ladder.temperatures),
        "trapezoid": trapezoid_rule(ladder.temperatures),
        "simpson": simpson_rule(ladder.temperatures) if ladder.reference is None else None,
    }
    errors = discretisation_errors(ladder.temperatures, rungs.mean, rungs.variance)
    controlled = any(name != PlainMean().label for name in rungs.method)
    estimates = []
    for name, rule in rules.items():
        if rule is None:
            continue
        value, mcse = rungs.apply(rule)
        status = Status.CONTROLLED if controlled else Status.PLAIN
        estimates.append(
            EvidenceEstimate(name, value, mcse, status, {"discretisation_error": errors[name]})
        )
    return estimates


DISAGREEMENT = 4.0
"""Joint standard errors by which methods on the same draws may differ before they are said to
disagree."""

ROUNDED = 1e-12
"""Distance of two log evidences, relative to their size, that is rounding."""


class EvidenceComparison(NamedTuple):
    """Log evidences, Bayes factors and posterior probabilities of several models.

    names : t models. log_evidence, error : (t,) with √(mcse² + discretisation_error²).
    log_bayes_factor : (t, t) log p(y|row) − log p(y|column), with `log_bayes_factor_error`; models
        are taken to be sampled independently.
    probability : (t,) posterior model probabilities. probability_error : (t,) by the delta method.
    """

    names: tuple[str, ...]
    log_evidence: Float[np.ndarray, " t"]
    error: Float[np.ndarray, " t"]
    log_bayes_factor: Float[np.ndarray, "t t"]
    log_bayes_factor_error: Float[np.ndarray, "t t"]
    probability: Float[np.ndarray, " t"]
    probability_error: Float[np.ndarray, " t"]

    def to_dataframe(self) -> "pandas.DataFrame":
        """Return one row per model, best first: log_evidence, error, log_bayes_factor and its error
        against the best, probability, probability_error."""
        import pandas

        best = int(np.argmax(self.log_evidence))
        table = pandas.DataFrame(
            {
                "log_evidence": self.log_evidence,
                "error": self.error,
                "log_bayes_factor": self.log_bayes_factor[:, best],
                "log_bayes_factor_error": self.log_bayes_factor_error[:, best],
                "probability": self.probability,
                "probability_error": self.probability_error,
            },
            index=pandas.Index(self.names, name="model"),
        )
        return table.sort_values("log_evidence", ascending=False)


def compare_models(
    evidences: Mapping[str, Evidence | EvidenceEstimate], prior: Mapping[str, float] | None = None
) -> EvidenceComparison:
    """Return log Bayes factors and posterior model probabilities with their errors.

    Parameters
    ----------
    prior : prior probability of each model, up to a constant; equal by default.

    Raises
    ------
    ValueError : fewer than two models, an evidence that is not finite, or a prior that does not
        name each model with a positive number.
    """
    where = "compare_evidence"
    names = tuple(evidences)
    if len(names) < 2:
        raise InputError(
            where, "at least two models", len(names), 'Pass {"m1": evidence, "m2": evidence}.'
        )
    for name in names:
        cure = "Pass what log_evidence, bridge_evidence or laplace_evidence returned."
        check_kind(where, str(name), evidences[name], (Evidence, EvidenceEstimate), cure)
    value = np.array([float(evidences[name].value) for name in names])
    error = np.array([evidences[name].error for name in names])
    for name, v, e in zip(names, value, error, strict=True):
        if not (np.isfinite(v) and np.isfinite(e)):
            raise InputError(
                where,
                f"a finite log evidence with its error for {name}",
                f"{v} ± {e}",
                "Leave it out.",
            )
    check_kind(where, "prior", prior, (Mapping, None), "Name every model.")
    if prior is not None and set(prior) != set(names):
        raise InputError(where, f"`prior` for each of {names}", tuple(prior), "Name every model.")
    chances = dict.fromkeys(names, 1.0) if prior is None else prior
    for name in names:
        check_number(
            where, f"prior[{name!r}]", chances[name], "It is a probability, up to a constant."
        )
    weights = np.array([float(chances[name]) for name in names])
    probability = softmax(value + np.log(weights))
    # ∂p_i/∂v_j = p_i(δ_ij − p_j)
    slope = probability[:, None] * (np.eye(len(names)) - probability)
    return EvidenceComparison(
        names,
        value,
        error,
        value[:, None] - value[None, :],
        np.hypot(error[:, None], error[None, :]) * (1 - np.eye(len(names))),
        probability,
        np.sqrt((slope**2) @ error**2),
    )


def disagreements(evidence: Evidence) -> list[str]:
    """Return a sentence for each method whose estimate differs from the reported one beyond both
    errors.

    Rules that miss part of the path are given their discretisation error as well.
    """
    first = evidence.estimates[0]
    sentences = []
    for other in evidence.estimates[1:]:
        gap = abs(other.value - first.value)
        scale = np.hypot(other.error, first.error)
        trusted = not other.info.get("reason") and np.isfinite(gap) and np.isfinite(scale)
        # Exact ones have errors that are rounding, too, and of each other they know no more.
        if trusted and gap > DISAGREEMENT * scale + ROUNDED * max(1.0, abs(first.value)):
            sentences.append(
                f"{other.method} {other.value:.6g} ± {other.error:.2g} and {first.method} "
                f"{first.value:.6g} ± {first.error:.2g} differ by {gap / scale:.1f} joint "
                "errors"
            )
    return sentences
