"""The face of a control variate: a frozen choice that is cross-fitted to a problem."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from mcmcpost._core.status import Status
from mcmcpost.control.problem import Problem

ROUNDING = 1e-10
"""Below this fraction of the integrand's size a residual, and every other part of the error, is rounding."""


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
    num_features: Int[np.ndarray, " p"]
    status: tuple[Status, ...]
    method: tuple[str, ...]
    info: dict[str, Any]

    def select(self, columns: slice) -> "ControlFit":
        """Return the fit restricted to some integrands; `info` stays that of all."""
        return self._replace(
            mean=self.mean[columns],
            control=self.control[:, columns],
            doubt=self.doubt[columns],
            jackknife=self.jackknife[columns],
            num_features=self.num_features[columns],
            status=self.status[columns],
            method=self.method[columns],
        )


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
        num_features=np.zeros(p, int),
        status=(status,) * p,
        method=(label,) * p,
        info=info or {},
    )


def merge_fits(old: ControlFit, new: ControlFit, take: np.ndarray) -> ControlFit:
    """Return `old` with the columns `take` (p,) from `new`; facts of neither."""
    return ControlFit(
        mean=np.where(take, new.mean, old.mean),
        control=np.where(take[None, :], new.control, old.control),
        doubt=np.where(take, new.doubt, old.doubt),
        jackknife=np.where(take, new.jackknife, old.jackknife),
        num_features=np.where(take, new.num_features, old.num_features),
        status=tuple(b if t else a for t, a, b in zip(take, old.status, new.status, strict=True)),
        method=tuple(b if t else a for t, a, b in zip(take, old.method, new.method, strict=True)),
        info={},
    )


def concatenate_fits(fits: tuple[ControlFit, ...]) -> ControlFit:
    """Return the fit of all columns of fits to one problem."""
    return ControlFit(
        mean=np.concatenate([fit.mean for fit in fits]),
        control=np.concatenate([fit.control for fit in fits], axis=1),
        doubt=np.concatenate([fit.doubt for fit in fits]),
        jackknife=np.concatenate([fit.jackknife for fit in fits]),
        num_features=np.concatenate([fit.num_features for fit in fits]),
        status=sum((fit.status for fit in fits), ()),
        method=sum((fit.method for fit in fits), ()),
        info=fits[0].info,
    )


def scatter_folds(problem: Problem, parts: Float[np.ndarray, "k b p"]) -> Float[np.ndarray, "m p"]:
    """Return per-state rows from per-fold rows."""
    out = np.zeros_like(problem.values)
    mask = problem.held_out_mask
    out[problem.held_out[mask]] = np.asarray(parts)[mask]
    return out


class JointFit(NamedTuple):
    """Cross-fitted control variates of all tasks of a joint problem.

    fits : one `ControlFit` for each of its problems.
    model_correlation : (t, t) of the fits' errors under the kernel's own model; the identity where tasks do not share.
    task_covariance : (t, t) B, of integrands of unit scale.
    """

    fits: tuple[ControlFit, ...]
    model_correlation: Float[np.ndarray, "t t"]
    task_covariance: Float[np.ndarray, "t t"]
