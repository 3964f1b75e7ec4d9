"""Comparing models by their evidence, and methods with each other."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.special import softmax

from mcmcpost._core.arguments import check_kind, check_number
from mcmcpost._core.errors import InputError
from mcmcpost.evidence.ladders.ladder import EvidenceEstimate
from mcmcpost.evidence.log_evidence import Evidence

if TYPE_CHECKING:
    import pandas

DISAGREEMENT = 4.0
"""Joint standard errors by which methods on the same draws may differ before they are said to disagree."""


class EvidenceComparison(NamedTuple):
    """Log evidences, Bayes factors and posterior probabilities of several models.

    names : t models. log_evidence, error : (t,) with √(mcse² + discretisation_error²).
    log_bayes_factor : (t, t) log p(y|row) − log p(y|column), with `log_bayes_factor_error`; models are taken to be
        sampled independently.
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
        """Return one row per model, best first: log_evidence, error, log_bayes_factor and its error against the best,
        probability, probability_error."""
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
    ValueError : fewer than two models, an evidence that is not finite, or a prior that does not name each model with a
        positive number.
    """
    where = "compare_evidence"
    names = tuple(evidences)
    if len(names) < 2:
        raise InputError(where, "at least two models", len(names), 'Pass {"m1": evidence, "m2": evidence}.')
    for name in names:
        cure = "Pass what log_evidence, bridge_evidence or laplace_evidence returned."
        check_kind(where, str(name), evidences[name], (Evidence, EvidenceEstimate), cure)
    value = np.array([float(evidences[name].value) for name in names])
    error = np.array([evidences[name].error for name in names])
    for name, v, e in zip(names, value, error, strict=True):
        if not (np.isfinite(v) and np.isfinite(e)):
            raise InputError(where, f"a finite log evidence with its error for {name}", f"{v} ± {e}", "Leave it out.")
    check_kind(where, "prior", prior, (Mapping, None), "Name every model.")
    if prior is not None and set(prior) != set(names):
        raise InputError(where, f"`prior` for each of {names}", tuple(prior), "Name every model.")
    chances = dict.fromkeys(names, 1.0) if prior is None else prior
    for name in names:
        check_number(where, f"prior[{name!r}]", chances[name], "It is a probability, up to a constant.")
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
    """Return a sentence for each method whose estimate differs from the reported one beyond both errors.

    Rules that miss part of the path are given their discretisation error as well.
    """
    first = evidence.estimates[0]
    found = []
    for other in evidence.estimates[1:]:
        gap = abs(other.value - first.value)
        scale = np.hypot(other.error, first.error)
        trusted = not other.info.get("reason") and np.isfinite(gap) and np.isfinite(scale)
        if trusted and gap > DISAGREEMENT * scale:
            found.append(
                f"{other.method} {other.value:.6g} ± {other.error:.2g} and {first.method} {first.value:.6g} ±"
                f" {first.error:.2g} differ by {gap / scale:.1f} joint errors"
            )
    return found
