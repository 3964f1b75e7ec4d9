"""Public functions of prior sensitivity: another prior by importance ratios, and derivatives by
covariances."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mcmcpost.control import (
    AbstractControlVariate,
    Estimate,
    Options,
    Sample,
    Smooth,
    estimate_derived,
)
from mcmcpost.control.problem import MIN_STATES
from mcmcpost.core.errors import WORST_FIRST, InputError, InputTypeError, Status, warn
from mcmcpost.core.mcse import GOOD_KHAT, LEAST, weights_khat
from mcmcpost.core.precision import in_float64
from mcmcpost.core.runtime import json_able
from mcmcpost.sample import Question, make_question
from mcmcpost.trees import ConvergenceWarning, integrand_values

if TYPE_CHECKING:
    import pandas
    import xarray


class PriorChange(NamedTuple):
    """The posterior and the evidence under another prior, from draws under the old one.

    log_evidence_change, mcse_log_evidence : log p_new(y) − log p_old(y) in nats, log E[r] of the
        prior ratios r under the old posterior, and its standard error.
    names, mean, mcse : p integrands, their expectations under the new posterior, E[rf]/E[r], and
        standard errors.
    pareto_khat : of the ratios; above 0.7 they are too unequal, and the status is ``heavy_tail``.
    ess : (Σr)²/Σr², the draws that are left.
    status : ``heavy_tail``, or the worst of all of them.
    """

    log_evidence_change: float
    mcse_log_evidence: float
    names: tuple[str, ...]
    mean: Float[np.ndarray, " p"]
    mcse: Float[np.ndarray, " p"]
    pareto_khat: float
    ess: float
    status: Status

    def to_dataframe(self) -> "pandas.DataFrame":
        """Return one row per integrand: mean and mcse under the new prior."""
        return _table(self.names, mean=self.mean, mcse=self.mcse)

    def to_json_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, with None for NaN and infinities."""
        return json_able(self._asdict() | {"status": str(self.status)})


class Derivatives(NamedTuple):
    """Derivatives with respect to a hyper-parameter a of the prior or the likelihood.

    log_evidence, mcse_log_evidence : d log p(y)/da = E[g], g = ∂ log p(y, x|a)/∂a, and its standard
        error.
    names, mean, mcse : p integrands, dE[f]/da = Cov(f, g) under the posterior, and standard errors.
    status : the worst of all of them.
    """

    log_evidence: float
    mcse_log_evidence: float
    names: tuple[str, ...]
    mean: Float[np.ndarray, " p"]
    mcse: Float[np.ndarray, " p"]
    status: Status

    def to_dataframe(self) -> "pandas.DataFrame":
        """Return one row per integrand: the derivative of its mean, and mcse."""
        return _table(self.names, mean=self.mean, mcse=self.mcse)

    def to_json_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, with None for NaN and infinities."""
        return json_able(self._asdict() | {"status": str(self.status)})


def reweight_prior(
    tree: "xarray.DataTree",
    log_ratio: Any,
    integrands: Any = None,
    method: str | AbstractControlVariate = "auto",
    *,
    allow_bad_scores: bool = False,
) -> PriorChange:
    """Return the evidence and expectations under another prior of the same support, without
    sampling again.

    With the ratio r = p_new(x)/p_old(x), the evidence changes by the factor E[r], and expectations
    are E[rf]/E[r], all under the old posterior. Both are expectations, so control variates apply.
    An evidence of the old model and `log_evidence_change` add up to that of the new one.

    Parameters
    ----------
    tree : a trace with scores of the old posterior.
    log_ratio : log p_new − log p_old of one constrained draw (a dict of arrays), both priors
        normalised, or its values (chain, draw).
    integrands, method, allow_bad_scores : as in `expectation`.

    Returns
    -------
    PriorChange : with status ``heavy_tail`` where the ratios are too unequal for their error to be
        known: sample again. Fewer than four effective draws give no errors.

    Raises
    ------
    ScoreError, ValueError, TypeError : as in `expectation`; a log ratio that is NaN or +∞
        somewhere, or −∞ everywhere.

    Warns
    -----
    ConvergenceWarning : fewer than four effective draws are left under the new prior.
    ScoreWarning, UserWarning : as `expectation`.

    Source: Kallioinen, Paananen, Bürkner and Vehtari (2024, doi:10.1007/s11222-023-10366-5) for the
    ratios.
    """
    where = "reweight_prior"
    logs = _one_value(where, tree, "log_ratio", log_ratio)
    # Only ratios of ratios matter: less the largest, none overflows, and it is added to the
    # logarithm below.
    top = float(logs.max())
    if np.isnan(logs).any() or not np.isfinite(top):
        cure = (
            "Both priors must have a density at the draws; −∞ outside of the new support is fine."
        )
        raise InputError(where, "`log_ratio` that is finite, or −∞", f"up to {top}", cure)
    # Those of the others are zero to rounding in every mean; 1e-200 would be no number to scale by.
    ratio = np.exp(logs - top)
    ratio[ratio < LEAST] = 0.0
    # Weighted draws are refused here: their weights would have to enter the ratio.
    question = make_question(tree, integrands, method, Options(allow_bad_scores=allow_bad_scores))
    names, values = question.sample.names, question.sample.values
    weight = ratio / ratio.sum()
    first = values[0, 0]
    constant = (values == first).all(axis=(0, 1))  # exactly: what is left of it would be rounding
    # About the reweighted mean, so that E[r(f − m)]/E[r] is small: the linear part of the quotient,
    # which the error is of, is then nearly all of it.
    centre = np.where(constant, first, np.einsum("cn,cnp->p", weight, values))
    khat, ess = weights_khat(logs), float(1 / (weight**2).sum())
    # As `expectation` with these weights: a variance of so few is no error, and no fit is left.
    if ess < MIN_STATES <= logs.size:
        return _few_draws(question, centre, float(np.log(ratio.mean())) + top, khat, ess)
    # (c, n, 1 + p): E[r] and each E[r(f − m)] are expectations under the old posterior, each with
    # controls.
    series = np.concatenate([ratio[..., None], ratio[..., None] * (values - centre)], axis=-1)
    # Rows of indices into the series: 0 is r, or g, and the others are the integrands in order.
    columns = np.arange(1, len(centre) + 1)
    estimate, status = _derived(
        question,
        series,
        np.append(False, _possible_events(question)),
        Smooth(("log evidence",), np.zeros((1, 1), int), _log),
        Smooth(names, np.stack([0 * columns, columns], axis=1), _ratio),
    )
    # Ratios of heavy tails have an infinite variance, of which no sample variance tells.
    if khat > GOOD_KHAT and status not in (Status.BAD_SCORES, Status.UNDEFINED):
        status = Status.HEAVY_TAIL
    return PriorChange(
        log_evidence_change=float(estimate.mean[0]) + top,
        mcse_log_evidence=float(estimate.mcse[0]),
        names=names,
        mean=centre + estimate.mean[1:],
        mcse=estimate.mcse[1:],
        pareto_khat=khat,
        ess=ess,
        status=status,
    )


def _few_draws(
    question: Question, mean: Float[np.ndarray, " p"], log_evidence: float, khat: float, ess: float
) -> PriorChange:
    """Return plain means without errors, and warn that the new prior leaves hardly any draw."""
    warn(
        f"reweight_prior: {ess:.3g} effective draws decide under the new prior, and neither means "
        f"nor errors are reliable; at least {MIN_STATES} are needed for an error. Sample under the "
        "new prior.",
        ConvergenceWarning,
    )
    values = question.sample.values
    known = (values == values[0, 0]).all(axis=(0, 1)) & ~_possible_events(question)
    return PriorChange(
        log_evidence_change=log_evidence,
        mcse_log_evidence=np.nan,
        names=question.sample.names,
        mean=mean,
        mcse=np.where(known, 0.0, np.nan),
        pareto_khat=khat,
        ess=ess,
        status=Status.HEAVY_TAIL if np.isfinite(mean).all() else Status.UNDEFINED,
    )


def hyper_derivatives(
    tree: "xarray.DataTree",
    slope: Any,
    integrands: Any = None,
    method: str | AbstractControlVariate = "auto",
    *,
    allow_bad_scores: bool = False,
) -> Derivatives:
    """Return derivatives of expectations and of the log evidence with respect to a hyper-parameter.

    With g = ∂ log p(y, x|a)/∂a at the value of a that was sampled, d log p(y)/da = E[g] and
    dE[f]/da = Cov(f, g), both under the posterior, so that control variates apply and no ratio is
    needed. For power scaling g is the log prior, or the log likelihood, itself: the derivative with
    respect to its power at one.

    Parameters
    ----------
    tree : a trace with scores.
    slope : g of one constrained draw (a dict of arrays), or its values (chain, draw).
    integrands, method, allow_bad_scores : as in `expectation`.

    Raises
    ------
    ScoreError, ValueError, TypeError : as in `expectation`.

    Source: Kallioinen, Paananen, Bürkner and Vehtari (2024, doi:10.1007/s11222-023-10366-5) for
    power scaling.
    """
    g = _one_value("hyper_derivatives", tree, "slope", slope)
    question = make_question(tree, integrands, method, Options(allow_bad_scores=allow_bad_scores))
    names, values = question.sample.names, question.sample.values
    # Centred and scaled: Cov(f, g) of a log likelihood near −1e6 would lose its digits to the
    # product of the means.
    middle, centre, scale = g.mean(), values.mean(axis=(0, 1)), g.std() or 1.0
    # the error of an unseen event is of unit size
    f, g = values - centre, (g - middle)[..., None] / scale
    p = len(centre)
    columns = np.arange(1, p + 1)
    estimate, status = _derived(
        question,
        # Cov(f, g) = E[fg] − E[f]E[g], a smooth function of three expectations (docs/mathematics.md
        # section 2, functions of expectations).
        np.concatenate([g, f, f * g], axis=-1),
        np.concatenate([[False], _possible_events(question), _possible_events(question)]),
        Smooth(("log evidence",), np.zeros((1, 1), int), _first),
        Smooth(names, np.stack([0 * columns, columns, columns + p], axis=1), _covariance),
    )
    return Derivatives(
        log_evidence=float(middle + scale * estimate.mean[0]),
        mcse_log_evidence=float(scale * estimate.mcse[0]),
        names=names,
        mean=scale * estimate.mean[1:],
        mcse=scale * estimate.mcse[1:],
        status=status,
    )


def _first(means: Float[Array, " r"]) -> Float[Array, ""]:
    return means[0]


def _log(means: Float[Array, " r"]) -> Float[Array, ""]:
    return jnp.log(means[0])


def _ratio(means: Float[Array, " r"]) -> Float[Array, ""]:
    return means[1] / means[0]


def _covariance(means: Float[Array, " r"]) -> Float[Array, ""]:
    return means[2] - means[0] * means[1]


def _one_value(
    where: str, tree: "xarray.DataTree", name: str, given: Any
) -> Float[np.ndarray, "c n"]:
    # What integrands may be besides, which here would be read as an array of objects.
    if isinstance(given, str | Mapping) or (
        isinstance(given, list | tuple)
        and any(isinstance(one, str) or callable(one) for one in given)
    ):
        expected, got = f"`{name}` to be one function of a draw or one array", type(given).__name__
        cure = f'For example {name}=lambda draw: draw["x"].'
        raise InputTypeError(where, expected, f"a {got}", cure)
    integrand = integrand_values(tree, {name: given})
    if integrand.values.shape[-1] != 1:
        got = f"{integrand.values.shape[-1]} values a draw"
        raise InputError(where, f"`{name}` to be one number a draw", got, "Add up its terms.")
    # A comparison is no log ratio: as zero and one it would be taken for a slightly wider prior.
    if integrand.margins or np.asarray(given).dtype.kind == "b":
        raise InputTypeError(where, f"`{name}` to be a number a draw", "True or False", "Give it.")
    return integrand.values[..., 0]


def _possible_events(question: Question) -> Bool[np.ndarray, " p"]:
    """Return which integrands may be events that were not seen; centred, any constant is zero."""
    # Of the values as they are asked for: centred, an event that was never seen is a constant like
    # others.
    return question.sample.events & np.isin(question.sample.values[0, 0], (0.0, 1.0))


def _derived(
    question: Question,
    series: Float[np.ndarray, "c n q"],
    events: Bool[np.ndarray, " q"],
    *parts: Smooth,
) -> tuple[Estimate, Status]:
    """Return functions of the means of series, and the worst of their statuses."""
    names = tuple(map(str, range(series.shape[-1])))
    sample = Sample.of(question.sample.trace, names, series, events, question.sample.states)
    estimate = in_float64(estimate_derived)(sample, parts, question.method, question.options)
    return estimate, min(estimate.status, key=WORST_FIRST.index)


def _table(names: tuple[str, ...], **columns: np.ndarray) -> "pandas.DataFrame":
    import pandas

    return pandas.DataFrame(columns, index=pandas.Index(names, name="quantity"))
