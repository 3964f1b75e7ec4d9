"""The face of a control variate: a frozen choice that is cross-fitted to a problem."""

import abc
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.control.folds import Subsets
from mcmcpost.control.problem import Problem
from mcmcpost.core.errors import InputError, Status

if TYPE_CHECKING:
    from mcmcpost.control.features.families import AbstractFamily
    from mcmcpost.control.linear import LinearFits

ROUNDING = 1e-10
"""A residual, or any other part of the error, is rounding if it is below this fraction of the
integrand's size."""


class Refits(NamedTuple):
    """The estimates of fits that see only some of the folds, their hyper-parameters kept, with
    those of `Subsets`.

    without_fold, halves, quarters : (k, p), (h, p), (r, p), in the problem's units; NaN where no
        fit was made.
    """

    without_fold: Float[Array | np.ndarray, " k *p"]
    halves: Float[Array | np.ndarray, " h *p"]
    quarters: Float[Array | np.ndarray, " r *p"]

    @classmethod
    def none(cls, num_folds: int, p: int) -> "Refits":
        """Return that no fit was made again."""
        subsets = Subsets.of(num_folds)
        sizes = (num_folds, len(subsets.halves), len(subsets.quarters))
        return cls(*(np.full((size, p), np.nan) for size in sizes))

    @classmethod
    def of_means(cls, sums: Float[np.ndarray, "k p"], sizes: Float[np.ndarray, " k"]) -> "Refits":
        """Return the means over parts of the folds, from the sum over each and its size."""
        k, p = sums.shape
        # Quarters of a mean tell nothing that halves do not: its rate is known to be ½.
        parts = ~np.eye(k, dtype=bool), Subsets.of(k).halves
        without_fold, halves = (kept @ sums / (kept @ sizes)[:, None] for kept in parts)
        return cls(without_fold, halves, cls.none(k, p).quarters)


class FoldFit(NamedTuple):
    """A cross-fitted control variate for each of p integrands, in the problem's units.

    mean : (p,) the estimate β̂ of the fit on all draws.
    control : (m, p) the zero-mean g at each state, fitted without that state's fold.
    refits : the estimate when some folds are left out, which shows its error.
    doubt : (p,) standard error of the estimate that neither residuals nor refits show.
    status : p statuses of the fit itself; whether anything was gained is decided later.
    method : p labels of what was fitted.
    info : JSON-able facts: degrees, kernels, nuggets, costs.
    """

    mean: Float[np.ndarray, " p"]
    control: Float[np.ndarray, "m p"]
    refits: Refits
    doubt: Float[np.ndarray, " p"]
    status: tuple[Status, ...]
    method: tuple[str, ...]
    info: dict[str, Any]

    def select(self, columns: np.ndarray | slice) -> "FoldFit":
        """Return the fit restricted to some integrands; `info` stays that of all."""
        return columnwise(lambda a: a[..., columns], self)


def columnwise[Columns: tuple[Any, ...]](
    operation: Callable[..., np.ndarray], *records: Columns
) -> Columns:
    """Return a record like the first whose fields are an operation on those of all records, field
    by field.

    The fields are arrays whose last axis is the integrands, records of such arrays, and tuples of
    one entry an integrand, on which the operation acts as on an array. A field `info`, which is a
    dict, is kept from the first.
    """
    fields: list[Any] = []
    for parts in zip(*records, strict=True):
        # `info` is of a whole fit and has no columns.
        if isinstance(parts[0], dict):
            fields.append(parts[0])
        elif hasattr(parts[0], "_fields"):
            fields.append(columnwise(operation, *parts))
        elif isinstance(parts[0], tuple):
            # As object arrays, so that one indexing operation serves statuses and numbers alike.
            fields.append(tuple(operation(*(np.array(entries, dtype=object) for entries in parts))))
        else:
            fields.append(operation(*parts))
    return type(records[0])(*fields)


class AbstractControlVariate(eqx.Module):
    """A method of `expectation`: its parameters are choices, its data come with the problem."""

    @abc.abstractmethod
    def crossfit(self, problem: Problem) -> FoldFit:
        """Fit on all states and, for the residuals, on the complement of each fold."""

    @property
    @abc.abstractmethod
    def label(self) -> str:
        """The method as reported, for example ``ZeroVariance(degree=2)``."""

    @property
    def from_sums(self) -> bool:
        """Whether the estimate needs sums over the draws alone, as `mcmcpost.moments` has; see
        `families`."""
        return False

    def coordinates(self, problem: Problem) -> Problem:
        """Return the problem in the coordinates of the linear families."""
        return problem

    def families(
        self, problem: Problem, num_train: int
    ) -> "tuple[list[AbstractFamily], list[str]]":
        """Return the linear families from small to large, and the method's label with each; none by
        default.

        Parameters
        ----------
        problem : in its `coordinates`, of all states or of some that stand for them.
        num_train : the smallest number of states on which a fit without a fold is made.
        """
        del problem, num_train
        return [], []

    def fields(self, problem: Problem) -> "list[LinearFits]":
        """Return the linear fits whose fields serve functions of the integrands, simplest first;
        none by default."""
        del problem
        return []

    @property
    def joint_estimator(self) -> Callable[..., Any] | None:
        """Estimate several related tasks together, from {name: Sample} and Options; None fits each
        by itself."""
        return None


class PlainMean(AbstractControlVariate):
    """The plain posterior mean: no control variate."""

    @property
    def from_sums(self) -> bool:
        return True

    @property
    def label(self) -> str:
        return "PlainMean()"

    def crossfit(self, problem: Problem) -> FoldFit:
        return no_control(problem, Status.PLAIN, self.label)


def no_control(
    problem: Problem, status: Status, label: str, info: dict[str, Any] | None = None
) -> FoldFit:
    """Return the fit with g = 0."""
    p = problem.values.shape[1]
    mean = problem.counts @ problem.values / problem.counts.sum()
    return FoldFit(
        mean=mean,
        control=np.zeros_like(problem.values),
        refits=Refits.none(problem.folds.num_folds, p),
        doubt=np.zeros(p),
        status=(status,) * p,
        method=(label,) * p,
        info=info or {},
    )


def refuse_weighted(label: str, problem: Problem) -> None:
    """Refuse a problem of weighted draws, for methods that fit all draws alike."""
    if problem.weighted:
        cure = 'Use SemiExact, ZeroVariance or method="auto"; or resample(tree, key=key) first.'
        raise InputError(label, "draws of equal weight", "weighted draws", cure)


def mean_of_residuals(
    problem: Problem, control: Float[np.ndarray, "m p"]
) -> tuple[Float[np.ndarray, " p"], Refits]:
    """Return the mean of the held-out residuals as the estimate, and that over parts of the
    folds."""
    folds, counts = problem.folds, problem.counts
    # Sums over folds serve the mean and all refits: no pass over the draws for each.
    sums, sizes = (
        folds.totals(problem.values, counts) - folds.totals(control, counts),
        problem.outline.sizes,
    )
    return sums.sum(axis=0) / sizes.sum(), Refits.of_means(sums, sizes)


def merge_fits(old: FoldFit, new: FoldFit, take: Bool[np.ndarray, " p"]) -> FoldFit:
    """Return `old` with the columns `take` from `new`, and without `info`."""
    # Without `info`, whose lists are of one of the two fits.
    return columnwise(lambda a, b: np.where(take, b, a), old, new)._replace(info={})


def replace_columns(
    old: FoldFit, new: FoldFit, columns: Int[np.ndarray, " k"], places: Int[np.ndarray, " k"]
) -> FoldFit:
    """Return `old` with some columns from `new`, where they stand at `places`, and without
    `info`."""

    def put(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        replaced = a.copy()
        replaced[..., columns] = b[..., places]
        return replaced

    # An empty choice keeps `old` as it is, with its `info`.
    return columnwise(put, old, new)._replace(info={}) if len(columns) else old


def concatenate_fits(fits: Sequence[FoldFit]) -> FoldFit:
    """Return the fit of all integrands of several fits to one problem, with the `info` of the
    first."""
    return columnwise(lambda *parts: np.concatenate(parts, axis=-1), *fits)


class JointFit(NamedTuple):
    """Cross-fitted control variates of all tasks of a joint problem.

    fits : one `FoldFit` for each of its problems.
    model_covariance : (t, t) of the fits' errors under the kernel's own model, in the problems'
        units; zero where there is no such model.
    task_covariance : (t, t) B, of integrands of unit scale.
    """

    fits: tuple[FoldFit, ...]
    model_covariance: Float[np.ndarray, "t t"]
    task_covariance: Float[np.ndarray, "t t"]
