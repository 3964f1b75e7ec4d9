"""The log evidence of a ladder: pooled and continuous where the rungs overlap, rung by rung otherwise."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mcmcpost._core.errors import fault
from mcmcpost._core.status import Status
from mcmcpost.control import AbstractControlVariate, Auto, PlainMean
from mcmcpost.evidence.ladder import EvidenceEstimate, Ladder
from mcmcpost.evidence.mbar import mbar_estimate, stepping_stone
from mcmcpost.evidence.pooled import NUM_NODES, PooledPath, pooled_path
from mcmcpost.evidence.rules import Rule, corrected_rule, discretisation_errors, simpson_rule, trapezoid_rule
from mcmcpost.evidence.rungs import LadderCheck, RungHealth, RungMeans, control_rungs

PATHS = ("auto", "pooled", "rungs")


class Evidence(NamedTuple):
    """The log evidence with both error terms, its cross-checks and the path it was integrated along.

    value : log p(y), in nats. mcse : Monte Carlo standard error. discretisation_error : size of the quadrature error
        along the path, not a standard error.
    status, method : what happened and which estimator `value` is, ``pooled`` or a rule.
    complaints : what is wrong with the ladder, and why the pooled path was not used.
    estimates : every method on the same draws, that of `value` first.
    temperatures : (t,) all rungs. health : of every rung.
    used : the rungs that were usable, to which `rungs` and `pooled` refer.
    rungs : controlled means and variances rung by rung; None where an end of the ladder is missing.
    pooled : the continuous path; None where it was not asked for.
    info : JSON-able facts.
    """

    value: float
    mcse: float
    discretisation_error: float
    status: Status
    method: str
    complaints: tuple[str, ...]
    estimates: tuple[EvidenceEstimate, ...]
    temperatures: Float[np.ndarray, " t"]
    health: RungHealth
    used: np.ndarray
    rungs: RungMeans | None
    pooled: PooledPath | None
    info: dict[str, Any]

    @property
    def error(self) -> float:
        """√(mcse² + discretisation_error²)."""
        return float(np.hypot(self.mcse, self.discretisation_error))


def estimate_log_evidence(
    ladder: Ladder,
    health: RungHealth,
    check: LadderCheck,
    method: AbstractControlVariate | None = None,
    *,
    path: str = "auto",
    degree: int | None = None,
    num_nodes: int = NUM_NODES,
    num_folds: int | None = None,
    moments: tuple[Any, Any] | None = None,
    fallback: bool = True,
    allow_bad_scores: bool = False,
) -> Evidence:
    """Estimate log p(y) = ∫₀¹ E_t[log p(y|x)] dt from draws of the power posteriors.

    Rungs that are not usable are left out and named in `complaints`. Where the score gate failed no control variate is
    used unless `allow_bad_scores`.

    Parameters
    ----------
    health, check : from `examine_rungs` and `check_ladder`.
    method : control variate of each rung by itself; polynomials chosen by their honest error by default, a kernel too
        where the rungs are what is reported. `VectorValued` fits all rungs jointly.
    path : ``"auto"``, ``"pooled"`` or ``"rungs"``.
    degree, num_nodes : of the pooled path, see `pooled_path`.
    num_folds, moments, fallback : of the rungs, as in `estimate_expectations`.
    """
    if path not in PATHS:
        raise ValueError(fault("log_evidence", f"`path` to be one of {', '.join(PATHS)}", repr(path), 'Use "auto".'))
    if degree is not None and degree < 0:
        raise ValueError(fault("log_evidence", "`degree` of at least 0", degree, "None lets the error choose."))
    if num_nodes < 2:
        raise ValueError(fault("log_evidence", "`num_nodes` of at least 2", num_nodes, "Use 24."))
    used = np.flatnonzero(health.usable)
    part = ladder.select(used)
    controlled = check.passed or allow_bad_scores
    found = pooled_path(part, degree=degree, num_nodes=num_nodes, controlled=controlled) if len(used) > 1 else None
    pooled_first = path == "pooled" or (path == "auto" and found is not None and not found.reason)
    rungs = None
    estimates: list[EvidenceEstimate] = []
    if len(used) > 1 and part.temperatures[0] == 0.0 and part.temperatures[-1] == 1.0:
        rungs = control_rungs(
            part,
            (method or Auto(kernel=not pooled_first)) if controlled else PlainMean(),
            num_folds=num_folds,
            moments=moments,
            fallback=fallback,
            bad_scores=not check.passed and controlled,
        )
        estimates = _rule_estimates(part, rungs)
    if found is not None:
        estimates.insert(0 if pooled_first else len(estimates), _pooled_estimate(found))
    if rungs is not None and found is not None:
        energies, converged = np.asarray(found.mixtures.free_energies), bool(found.mixtures.converged)
        estimates.append(stepping_stone(part))
        estimates.append(mbar_estimate(part, energies[0], energies[1:, -1], converged=converged))
    if not estimates:
        estimates = [EvidenceEstimate("none", np.nan, np.nan, Status.UNDEFINED, {"discretisation_error": np.nan})]
    best = estimates[0]
    return Evidence(
        value=best.value,
        mcse=best.mcse,
        discretisation_error=best.info["discretisation_error"],
        status=_status(best, health, check),
        method=best.method,
        complaints=_complaints(ladder, health, found, best),
        estimates=tuple(estimates),
        temperatures=ladder.temperatures,
        health=health,
        used=used,
        rungs=rungs,
        pooled=found,
        info={
            "num_chains": ladder.draws.shape[0],
            "num_draws": ladder.draws.shape[1],
            "num_rungs": len(ladder.temperatures),
            "impossible_prior_draws": int(health.impossible.sum()),
        },
    )


def _complaints(
    ladder: Ladder, health: RungHealth, found: PooledPath | None, best: EvidenceEstimate
) -> tuple[str, ...]:
    at = [f"t = {t:.3g}" for t in ladder.temperatures]
    stray = [at[i] for i in np.flatnonzero(health.usable & ~health.converged)]
    texts = [f"no pooled path: {found.reason}"] if found is not None and found.reason else []
    texts += [f"the rung {at[i]} has {health.problem[i]}" for i in np.flatnonzero(~health.usable)]
    if health.impossible[0] and not np.isfinite(best.value):
        texts.append(
            f"{health.impossible[0]} draws of the prior have zero likelihood: the mean log likelihood there, which"
            " rules over the rungs need, is undefined; the pooled path does without it"
        )
    return (*texts, f"the chains disagree at {', '.join(stray)}") if stray else tuple(texts)


def _status(best: EvidenceEstimate, health: RungHealth, check: LadderCheck) -> Status:
    if not np.isfinite(best.value):
        return Status.UNDEFINED
    if not check.passed:
        return Status.BAD_SCORES
    stray = (health.usable & ~health.converged).any()
    return Status.NOT_CONVERGED if stray or best.info.get("reason") else best.status


def _pooled_estimate(found: PooledPath) -> EvidenceEstimate:
    status = Status.CONTROLLED if found.level else Status.PLAIN
    info = {"discretisation_error": found.discretisation_error, "control": found.method, "reason": found.reason}
    return EvidenceEstimate("pooled", found.value, found.mcse, status, info | found.info)


def _rule_estimates(ladder: Ladder, rungs: RungMeans) -> list[EvidenceEstimate]:
    rules: dict[str, Rule | None] = {
        "corrected": corrected_rule(ladder.temperatures),
        "trapezoid": trapezoid_rule(ladder.temperatures),
        "simpson": simpson_rule(ladder.temperatures),
    }
    errors = discretisation_errors(ladder.temperatures, rungs.mean, rungs.variance)
    controlled = any(status not in (Status.PLAIN, Status.TOO_FEW_DRAWS) for status in rungs.status)
    estimates = []
    for name, rule in rules.items():
        if rule is None:
            continue
        value, mcse = rungs.apply(rule)
        status = Status.CONTROLLED if controlled else Status.PLAIN
        estimates.append(EvidenceEstimate(name, value, mcse, status, {"discretisation_error": errors[name]}))
    return estimates
