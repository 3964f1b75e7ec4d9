"""Public functions of marginal distributions: probabilities, quantiles, intervals, densities."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mcmcpost.control import AbstractControlVariate, Distribution, Estimate, Options
from mcmcpost.core.arguments import check_number, check_probabilities
from mcmcpost.core.errors import InputError
from mcmcpost.core.precision import in_float64
from mcmcpost.over_chunks import OverChunks
from mcmcpost.sample import Question, contradicted, make_question, warn_of_contradiction
from mcmcpost.sums import InChunks, is_summed

if TYPE_CHECKING:
    import xarray


def distribution(
    tree: "xarray.DataTree",
    integrands: Any = None,
    method: str | AbstractControlVariate = "auto",
    *,
    folds: int | None = None,
    allow_bad_scores: bool = False,
) -> Distribution:
    """Return the marginal distribution of each quantity, of which everything can be asked, with its
    error.

    ``dist = mp.distribution(trace, ["mu", "tau"])`` has ``dist.cdf(t)``, ``dist.pdf(t)``,
    ``dist.quantile(0.05)``, ``dist.interval(0.89, kind="hdi")`` and
    ``dist.probability(lower=0.0)``. Whatever controls the mean of a quantity controls all functions
    of it, in any dimension (docs/mathematics.md section 2), so that these gain about as much as the
    mean does. What limits them: a tail in which there are few draws, and a quantity whose mean is
    not controlled.

    Arguments and errors are those of `expectation`. `method` is what controls the means of the
    quantities; a kernel method is fitted to every event by itself.

    Returns
    -------
    Distribution : of quantities whose values are a coordinate of the trace, a monotone function of
        one, or nearly a cubic of a few; events of others are regressed on the scores as any
        integrand is. Of a trace in the chunks of dask all is from sums over all draws:
        probabilities and densities in one pass, quantiles in one or two, shortest intervals in two
        to four.
    """
    options = Options(folds=folds, allow_bad_scores=allow_bad_scores)
    if is_summed(tree, method, options):
        return distribution_of_chunks(InChunks.of(tree, integrands, method, options))
    return answer_distribution(make_question(tree, integrands, method, options, weighted=True))


def answer_distribution(question: Question) -> Distribution:
    """Return the distributions of a question's integrands."""
    return in_float64(Distribution.of)(question.sample, question.method, question.options)


def quantile(
    tree: "xarray.DataTree",
    probabilities: float | Sequence[float],
    integrands: Any = None,
    method: str | AbstractControlVariate = "auto",
    *,
    folds: int | None = None,
    allow_bad_scores: bool = False,
) -> Estimate:
    """Estimate posterior quantiles by inverting a controlled distribution function; see
    `distribution`.

    Other arguments and errors are those of `expectation`. One result per integrand and probability,
    named ``name [probability]``; `mcse` is in the integrand's units. A quantile with fewer than
    three effective draws beyond it is ``unseen``. The error of the plain one is that of Maritz and
    Jarrett (1978, doi:10.1080/01621459.1978.10480027).

    Raises
    ------
    ValueError : a probability outside (0, 1).
    """
    levels = check_probabilities(probabilities)
    dist = distribution(tree, integrands, method, folds=folds, allow_bad_scores=allow_bad_scores)
    estimate = dist.quantile(levels)
    warn_of_contradiction(contradicted(estimate, known=dist.options.bad_scores))
    return estimate


INTERVALS = ("eti", "hdi")


def resolve_interval(
    where: str, ci_prob: float | None, ci_kind: str | None
) -> tuple[float, str] | None:
    """Return the probability and the kind of the interval that is wanted, None where neither is
    given.

    What is left out is that of ``arviz_base.rcParams``, so that the table has the interval of
    ``az.summary``.
    """
    if ci_prob is None and ci_kind is None:
        return None
    from arviz_base import rcParams

    prob = rcParams["stats.ci_prob"] if ci_prob is None else ci_prob
    kind = rcParams["stats.ci_kind"] if ci_kind is None else ci_kind
    check_number(where, "ci_prob", prob, "For example 0.89, not 89.", inside="(0, 1)")
    if not isinstance(kind, str) or kind not in INTERVALS:
        cure = '"eti" has equal tails, "hdi" is the shortest.'
        raise InputError(where, f"`ci_kind` to be one of {', '.join(INTERVALS)}", repr(kind), cure)
    return float(prob), kind


PILOT = 1 << 14
"""Draws, evenly spaced, that tell where thresholds are to be and along which fields."""


def distribution_of_chunks(chunks: InChunks) -> Distribution:
    """Return the distributions of quantities under draws in the chunks of dask; see `is_summed`."""
    # Quantiles in memory take a search for each; of some thousand draws it is short, and near
    # enough.
    chunks = chunks.thinned(PILOT)
    question = chunks.question
    pilot = in_float64(Distribution.of)(
        question.sample, question.method, question.options, of_all=False
    )
    return pilot._replace(
        over_all=OverChunks(chunks, chunks.served(), pilot, np.arange(len(pilot.names)))
    )
