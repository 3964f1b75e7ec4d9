"""The integrands on one trace: which of them vary, which are the same, and their plain means."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from mcmcpost._core.large_arrays import columns_of, in_blocks
from mcmcpost._core.mcse import mcse_mean
from mcmcpost._core.precision import ROUNDINGS, beyond_rounding, same_to_rounding
from mcmcpost._core.status import Status
from mcmcpost._core.stored import sampling_step
from mcmcpost._core.weights import Weights, mean_over_draws
from mcmcpost.control.problem import column_sd, sd_over_draws
from mcmcpost.scores import effective_size
from mcmcpost.trace import States

MIN_STATES = 4
"""Distinct states, or effective draws of weighted ones, below which no error is reported, not even of a constant."""


class Integrands(NamedTuple):
    """The integrands on one trace, and what their values show.

    names : p labels. values : (c, n, p). states : the distinct states of the trace.
    finite, varying : (p,) whether an integrand is finite at every draw; whether it is and is not constant up to
        rounding, as the diagonal of a correlation matrix is.
    unseen : (p,) whether it is zero at every draw, or one, as the indicator of an event is that was not seen.
    ess : the smallest effective sample size of a coordinate, of large arrays, of every so many draws, or that of the
        weights.
    weights : of the draws, None where they are equal.
    """

    names: tuple[str, ...]
    values: Float[np.ndarray, "c n p"]
    states: States
    finite: Bool[np.ndarray, " p"]
    varying: Bool[np.ndarray, " p"]
    unseen: Bool[np.ndarray, " p"]
    ess: float
    weights: Weights | None = None

    @property
    def too_few(self) -> bool:
        """Whether there are too few distinct states, or effective draws, to know anything of the errors."""
        decided = self.weights is not None and self.weights.ess < MIN_STATES
        return decided or len(self.states.counts) < MIN_STATES

    @property
    def columns(self) -> Int[np.ndarray, " k"]:
        """The integrands to which a control variate can be fitted."""
        return np.flatnonzero(self.varying & (not self.too_few))

    @property
    def fitted_values(self) -> Float[np.ndarray, "c n k"]:
        """The values of these integrands, without a copy where they follow each other."""
        return columns_of(self.values, self.columns)


def read_integrands(
    names: tuple[str, ...],
    values: Float[np.ndarray, "c n p"],
    states: States,
    events: Bool[np.ndarray, " p"] | None = None,
    weights: Weights | None = None,
) -> Integrands:
    """Return the integrands on a trace of these distinct states and weights, with what their values say.

    events : as for `estimate_expectations`.
    """
    with np.errstate(invalid="ignore"):
        low, high = values.min(axis=(0, 1)), values.max(axis=(0, 1))
        finite = np.isfinite(low) & np.isfinite(high)
        unseen = finite & (high == low) & ((low == 0) | (low == 1)) & (True if events is None else events)
    ess = np.nan
    if unseen.any() and weights is not None:
        ess = weights.ess
    elif unseen.any():
        step = sampling_step((*values.shape[:2], states.draws.shape[1]))
        chains = states.draws[states.inverse.reshape(values.shape[:2])[:, ::step]]
        ess = float(effective_size(chains, chains.std(axis=(0, 1))).min())
    return Integrands(names, values, states, finite, beyond_rounding(values), unseen, ess, weights)


def first_of_same(values: Float[np.ndarray, "c n p"]) -> Int[np.ndarray, " p"]:
    """Return for each integrand the first one that has its values, up to rounding, at every draw.

    A correlation matrix holds each of its correlations twice. Integrands that are constant, or not finite, are theirs.
    """
    first = np.arange(values.shape[-1])
    varies = np.flatnonzero(beyond_rounding(values))
    if len(varies) < 2:
        return first
    with np.errstate(invalid="ignore"):
        mean = values.mean(axis=(0, 1))
    size = np.maximum(values.max(axis=(0, 1)), -values.min(axis=(0, 1)))
    order = varies[np.argsort(mean[varies], kind="stable")]
    apart = np.diff(mean[order]) > ROUNDINGS * np.finfo(np.float32).eps * size[order][1:]
    for run in np.split(order, np.flatnonzero(apart) + 1):
        kept: list[int] = []
        for j in sorted(run.tolist()):
            first[j] = next((i for i in kept if same_to_rounding(values[..., i], values[..., j])), j)
            if first[j] == j:
                kept.append(j)
    return first


class Plain(NamedTuple):
    """The plain posterior mean, its Monte Carlo standard error and the posterior standard deviation, (p,) each.

    They are NaN for an integrand that is not finite, and the error is NaN where there are too few states.
    """

    mean: Float[np.ndarray, " p"]
    mcse: Float[np.ndarray, " p"]
    sd: Float[np.ndarray, " p"]


def plain_means(integrands: Integrands) -> Plain:
    """Return the plain means; a constant is its median and has no error, and what is ``unseen`` has 1/(ESS + 2).

    An indicator that holds at ESS independent draws fails with probability 1/(ESS + 2) ± 1/(ESS + 2), if nothing was
    known of it before (Laplace's rule of succession).
    """
    values, finite, varying = integrands.values, integrands.finite, integrands.varying
    weights = integrands.weights
    chains, draws, p = values.shape
    safe = values if finite.all() else np.where(finite, values, 0.0)
    if weights is not None:
        sd = sd_over_draws(safe, weights)
    else:
        sd = column_sd(safe.reshape(-1, p), ddof=1) if chains * draws > 1 else np.full(p, np.nan)
    nan = np.where(finite, 0.0, np.nan)
    mean = mean_over_draws(safe, weights)
    constant = np.flatnonzero(~varying)
    for some in in_blocks(len(constant), chains * draws):
        mean[constant[some]] = np.median(safe[..., constant[some]], axis=(0, 1))
    return Plain(
        mean=mean + nan,
        mcse=np.where(varying, mcse_mean(safe, weights), np.where(integrands.unseen, 1 / (integrands.ess + 2), 0.0))
        + (np.nan if integrands.too_few else nan),
        sd=np.where(varying, sd, 0.0) + nan,
    )


def plain_status(integrands: Integrands) -> Iterator[Status]:
    """Yield the status of the plain mean of each integrand."""
    for finite, varying, unseen in zip(integrands.finite, integrands.varying, integrands.unseen, strict=True):
        if not finite:
            yield Status.UNDEFINED
        elif integrands.too_few:
            yield Status.TOO_FEW_DRAWS
        else:
            yield Status.PLAIN if varying else Status.UNSEEN if unseen else Status.CONSTANT
