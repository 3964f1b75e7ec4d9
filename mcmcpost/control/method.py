"""The face of a control variate: a frozen choice that is cross-fitted to a problem."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Bool, Float, Int

from mcmcpost._core.status import Status
from mcmcpost.control.problem import Problem, Subsets

ROUNDING = 1e-10
"""A residual, or any other part of the error, is rounding if it is below this fraction of the integrand's size."""


class ControlFit(NamedTuple):
    """A cross-fitted control variate for each of p integrands, in the problem's units.

    mean : (p,) the estimate β̂ of the fit on all draws.
    control : (m, p) the zero-mean g at each state, fitted without that state's fold.
    doubt : (p,) standard error of the estimate that residuals at visited states cannot show, see `mean_doubt`.
    jackknife : (p,) standard error of `mean` by leaving out each fold.
    num_features : (p,) polynomial features fitted, without the constant.
    status : p statuses of the fit itself; whether anything was gained is decided later.
    method : p labels of what was fitted.
    info : JSON-able facts: degrees, kernels, nuggets, costs.
    """

    mean: Float[np.ndarray, " p"]
    control: Float[np.ndarray, "m p"]
    doubt: Float[np.ndarray, " p"]
    jackknife: Float[np.ndarray, " p"]
    fold_means: Float[np.ndarray, "k p"]
    half_means: Float[np.ndarray, "h p"]
    quarter_means: Float[np.ndarray, "r p"]
    num_features: Int[np.ndarray, " p"]
    status: tuple[Status, ...]
    method: tuple[str, ...]
    info: dict[str, Any]

    def select(self, columns: np.ndarray | slice) -> "ControlFit":
        """Return the fit restricted to some integrands; `info` stays that of all."""
        return columnwise(lambda a: a[..., columns], self)


def columnwise[Columns: tuple](operation: Callable[..., np.ndarray], *records: Columns) -> Columns:
    """Return a record like the first whose fields are an operation on those of all records, field by field.

    The fields are arrays whose last axis is the integrands, and tuples of one entry an integrand, on which the
    operation acts as on an array. A field `info`, which is a dict, is kept from the first record.
    """
    fields: list[Any] = []
    for parts in zip(*records, strict=True):
        if isinstance(parts[0], dict):
            fields.append(parts[0])
        elif isinstance(parts[0], tuple):
            fields.append(tuple(operation(*(np.array(part, dtype=object) for part in parts))))
        else:
            fields.append(operation(*parts))
    return type(records[0])(*fields)


class AbstractControlVariate(eqx.Module):
    """A method of `expectation`: its parameters are choices, its data come with the problem."""

    @abc.abstractmethod
    def crossfit(self, problem: Problem) -> ControlFit:
        """Fit on all states and, for the residuals, on the complement of each fold."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """The method as reported, for example ``ZeroVariance(degree=2)``."""


class PlainMean(AbstractControlVariate):
    """The plain posterior mean: no control variate."""

    @property
    def label(self) -> str:
        return "PlainMean()"

    def crossfit(self, problem: Problem) -> ControlFit:
        return no_control(problem, Status.PLAIN, self.label)


def no_control(problem: Problem, status: Status, label: str, info: dict[str, Any] | None = None) -> ControlFit:
    """Return the fit with g = 0."""
    p = problem.values.shape[1]
    mean = problem.counts @ problem.values / problem.counts.sum()
    return ControlFit(
        mean=mean,
        control=np.zeros_like(problem.values),
        doubt=np.zeros(p),
        jackknife=np.zeros(p),
        **no_refits(problem),
        num_features=np.zeros(p, int),
        status=(status,) * p,
        method=(label,) * p,
        info=info or {},
    )


def no_refits(problem):
    k, p = problem.folds.num_folds, problem.values.shape[1]
    subsets = Subsets.of(k)
    return {"fold_means": np.full((k, p), np.nan), "half_means": np.full((len(subsets.halves), p), np.nan), "quarter_means": np.full((len(subsets.quarters), p), np.nan)}


def merge_fits(old: ControlFit, new: ControlFit, take: Bool[np.ndarray, " p"]) -> ControlFit:
    """Return `old` with the columns `take` from `new`, and without `info`."""
    return columnwise(lambda a, b: np.where(take, b, a), old, new)._replace(info={})


def concatenate_fits(fits: Sequence[ControlFit]) -> ControlFit:
    """Return the fit of all integrands of several fits to one problem, with the `info` of the first."""
    return columnwise(lambda *parts: np.concatenate(parts, axis=-1), *fits)


class JointFit(NamedTuple):
    """Cross-fitted control variates of all tasks of a joint problem.

    fits : one `ControlFit` for each of its problems.
    model_correlation : (t, t) of the fits' errors under the kernel's own model; the identity where tasks do not share.
    task_covariance : (t, t) B, of integrands of unit scale.
    """

    fits: tuple[ControlFit, ...]
    model_correlation: Float[np.ndarray, "t t"]
    task_covariance: Float[np.ndarray, "t t"]
