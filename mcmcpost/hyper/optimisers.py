"""The optimisers of hyper-parameters: bounded L-BFGS from several starts, and Adam that takes back exploding steps."""

import abc
import dataclasses
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, PyTree
from scipy.optimize import minimize

from mcmcpost._core.errors import InputError

INFINITE = 1e25
"""Stands for +∞ in the line search, which backs away from it."""


type Loss = Callable[[Any], tuple[Any, Any]]
"""Parameters (h,) ↦ value and gradient, NumPy or JAX."""


class Start(NamedTuple):
    """A loss with its gradient, a point to start from, and a box.

    initial : (h,) parameters. free : (h,) which of them move. bounds : (h, 2).
    """

    loss: Loss
    initial: Float[np.ndarray, " h"]
    free: Bool[np.ndarray, " h"]
    bounds: Float[np.ndarray, "h 2"]


class Minimum(NamedTuple):
    """The lowest point found: `value` at `x` (h,), from which of the starts, after how many evaluations of all."""

    value: float
    x: Float[np.ndarray, " h"]
    start: int
    num_evaluations: int


def minimise_from(starts: Sequence[Start], *, max_steps: int) -> Minimum | None:
    """Return the best minimum over the starts, or None if the loss is finite at none of them.

    An evaluation that is not finite counts as +∞. Every start has `max_steps` steps of L-BFGS and twice as many
    evaluations.
    """
    found = [_minimise(start, index, max_steps) for index, start in enumerate(starts)]
    best = min(found, key=lambda minimum: minimum.value)
    evaluations = sum(minimum.num_evaluations for minimum in found)
    return None if best.value >= INFINITE else best._replace(num_evaluations=evaluations)


def _minimise(start: Start, index: int, max_steps: int) -> Minimum:
    def at(part: np.ndarray) -> tuple[float, np.ndarray]:
        x = start.initial.copy()
        x[start.free] = part
        value, slope = start.loss(x)
        if not np.isfinite(value):
            return INFINITE, np.zeros_like(part)
        return float(value), np.asarray(slope)[start.free]

    options = {"maxiter": max_steps, "maxfun": 2 * max_steps}
    first, bounds = start.initial[start.free], start.bounds[start.free]
    result = minimize(at, first, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    x = start.initial.copy()
    x[start.free] = result.x
    return Minimum(float(result.fun), x, index, int(result.nfev))


EXPLOSION = 0.1
"""Adam takes back a step to more than this above the lowest loss, in nats per datum: measured blow-ups reach 1.5."""


MOST_HALVINGS = 30
"""Parameters (h,) ↦ value in nats and gradient."""


class TrainingProblem(NamedTuple):
    """A loss, where to start, a box, and how many data the loss counts.

    start : (h,). bounds : (h, 2).
    units : (h,), in which L-BFGS measures each parameter, as its first steps are steepest descent.
    """

    loss: Loss
    start: Float[np.ndarray, " h"]
    bounds: Float[np.ndarray, "h 2"]
    units: Float[np.ndarray, " h"]
    size: int


class TrainingStatus(StrEnum):
    """Why training stopped."""

    CONVERGED = "converged"
    """The gradient or the decrease is below the optimiser's tolerance."""
    OUT_OF_STEPS = "out_of_steps"
    """All steps were taken."""
    OUT_OF_TIME = "out_of_time"
    """The seconds were used up."""
    STALLED = "stalled"
    """No step of any length improved; the best point is kept."""
    FIXED = "fixed"
    """Nothing was free."""


class TrainingRecord(NamedTuple):
    """How training went.

    status : why it stopped. objective : the lowest loss, in nats of all data, that of the point returned.
    history : (e,) loss of every evaluation, in order, inf where it was not finite. num_steps : accepted steps.
    rejected : evaluations that were not finite or exploded, and were taken back. seconds : wall clock, compilation
    included.
    """

    status: TrainingStatus
    objective: float
    history: Float[np.ndarray, " e"]
    num_steps: int
    rejected: int
    seconds: float


def join_records(records: Sequence[TrainingRecord]) -> TrainingRecord:
    """Return one record of several rounds: the status of the last that had something to train, the last objective."""
    moved = [record.status for record in records if record.status is not TrainingStatus.FIXED]
    return TrainingRecord(
        moved[-1] if moved else TrainingStatus.FIXED,
        records[-1].objective,
        np.concatenate([record.history for record in records]),
        sum(record.num_steps for record in records),
        sum(record.rejected for record in records),
        sum(record.seconds for record in records),
    )


class AbstractOptimiser(eqx.Module):
    """Minimises a loss in a box."""

    max_steps: eqx.AbstractVar[int]
    max_seconds: eqx.AbstractVar[float]

    @abc.abstractmethod
    def minimise(self, problem: TrainingProblem) -> tuple[Float[np.ndarray, " h"], TrainingRecord]:
        """Return the best of the points evaluated, the start included.

        Raises
        ------
        ValueError : the loss is not finite at the start.
        """


def share(optimiser: AbstractOptimiser, rounds: int) -> AbstractOptimiser:
    """Return the optimiser with its share of the budget for one of several rounds."""
    steps, seconds = max(optimiser.max_steps // rounds, 1), optimiser.max_seconds / rounds
    return dataclasses.replace(optimiser, max_steps=steps, max_seconds=seconds)


class LBFGS(AbstractOptimiser):
    """SciPy's L-BFGS-B; where the loss is not finite its line search sees a bowl about the best point so far.

    With both bounds finite for every parameter SciPy's first step may run to a corner of the box: leave one open.

    max_steps : iterations, with at most twice as many evaluations. max_seconds : checked after each iteration.
    """

    max_steps: int = 100
    max_seconds: float = float("inf")

    def __check_init__(self) -> None:
        _check_budget("LBFGS", self.max_steps, self.max_seconds)

    def minimise(self, problem: TrainingProblem) -> tuple[Float[np.ndarray, " h"], TrainingRecord]:
        watch = _Watch(problem.loss, problem.start)
        steps = 0

        def at(z: np.ndarray) -> tuple[float, np.ndarray]:
            x = z * problem.units
            value, slope = watch(x)
            if np.isfinite(value):
                return value, slope * problem.units
            away, height = x - watch.best, 1 + abs(watch.lowest)  # a bowl about the best point sends the search back
            return watch.lowest + height * (1 + away @ away), 2 * height * away * problem.units

        def stop(_: np.ndarray) -> None:
            nonlocal steps
            steps += 1
            if watch.seconds > self.max_seconds:
                raise StopIteration

        options = {"maxiter": self.max_steps, "maxfun": 2 * self.max_steps, "maxcor": 20}
        start, bounds = problem.start / problem.units, problem.bounds / problem.units[:, None]
        result = minimize(at, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options, callback=stop)
        stopped = {0: TrainingStatus.CONVERGED, 1: TrainingStatus.OUT_OF_STEPS, 2: TrainingStatus.STALLED}
        late = watch.seconds > self.max_seconds
        return watch.best, watch.record(TrainingStatus.OUT_OF_TIME if late else stopped[result.status], steps, 0)


class Adam(AbstractOptimiser):
    """Adam with a rate that falls linearly to a tenth; a step that explodes is taken back and the rate halved.

    rate : at the start. max_steps : evaluations. max_seconds : checked after each.
    """

    rate: float = 0.1
    max_steps: int = 300
    max_seconds: float = float("inf")

    def __check_init__(self) -> None:
        _check_budget("Adam", self.max_steps, self.max_seconds)
        if not 0 < self.rate < np.inf:
            raise InputError("Adam", "a positive `rate`", self.rate, "Try 0.1.")

    def minimise(self, problem: TrainingProblem) -> tuple[Float[np.ndarray, " h"], TrainingRecord]:
        watch = _Watch(problem.loss, problem.start)
        fresh = optax.scale_by_adam().init(jnp.asarray(problem.start))
        moments, x, shrink, exploded, status = fresh, problem.start, 1.0, 0, TrainingStatus.OUT_OF_STEPS
        value, slope = watch(x)
        for step in range(self.max_steps):
            if watch.seconds > self.max_seconds:
                status = TrainingStatus.OUT_OF_TIME
                break
            if not np.isfinite(value) or value > watch.lowest + EXPLOSION * problem.size:
                exploded += int(np.isfinite(value))
                shrink /= 2
                if shrink < 0.5**MOST_HALVINGS:
                    status = TrainingStatus.STALLED
                    break
                x, slope, moments = watch.best, watch.slope, fresh
            direction, moments = _adam_direction(jnp.asarray(slope), moments)
            rate = self.rate * shrink * (1 - 0.9 * step / self.max_steps)
            x = np.clip(x - rate * np.asarray(direction), *problem.bounds.T)
            value, slope = watch(x)
        steps = len(watch.history) - 1 - watch.broken - exploded
        return watch.best, watch.record(status, steps, exploded)


class _Watch:
    """A loss that remembers its history and the lowest point so far."""

    def __init__(self, loss: Loss, start: Float[np.ndarray, " h"]) -> None:
        self.loss, self.began = loss, time.perf_counter()
        self.history: list[float] = []
        self.broken, self.lowest, self.best, self.slope = 0, np.inf, start, np.zeros_like(start)
        if not np.isfinite(self(start)[0]):
            got = self.history.pop()
            raise InputError("fit", "a finite loss at the start", got, "Start from another kernel or noise.")

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def __call__(self, x: Float[np.ndarray, " h"]) -> tuple[float, Float[np.ndarray, " h"]]:
        if self.history and np.array_equal(x, self.best):
            return self.lowest, self.slope
        raw, gradient = self.loss(x)
        slope = np.asarray(gradient)
        value = float(raw) if np.isfinite(slope).all() and np.isfinite(raw) else np.inf
        self.history.append(value)
        self.broken += int(not np.isfinite(value))
        if value < self.lowest:
            self.lowest, self.best, self.slope = value, np.array(x), slope
        return value, slope

    def record(self, status: TrainingStatus, steps: int, exploded: int) -> TrainingRecord:
        history = np.array(self.history)
        return TrainingRecord(status, self.lowest, history, int(steps), int(self.broken + exploded), self.seconds)


@jax.jit
def _adam_direction(slope: Float[Array, " h"], moments: PyTree) -> tuple[Float[Array, " h"], PyTree]:
    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to its integer step count
        return optax.scale_by_adam().update(slope, moments)


def _check_budget(where: str, max_steps: int, max_seconds: float) -> None:
    if max_steps < 1 or not max_seconds > 0:
        got = f"{max_steps} steps and {max_seconds} s"
        raise InputError(where, "a budget of at least one step and more than no time", got, "Raise it.")
