"""The search for hyper-parameters: their unconstrained vector, bounded L-BFGS and Adam.

Free parameters of kernels, noises and whatever is tuned with them are one vector of unconstrained
numbers. L-BFGS starts from one point or from several.
"""

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

from mcmcpost.core.arguments import check_count, check_number
from mcmcpost.core.errors import InputError, fault

VARIANCES = ("amplitude", "noise")
"""Names of leaves that are variances."""

LOCATIONS = ("centre",)
"""Names of leaves that are points and not sizes: they are held wherever the origin is."""


class Hyperparameters(NamedTuple):
    """A kernel and the variance of the noise, or the nugget, that is added to it."""

    kernel: Any
    noise: Any


class AbstractScale(eqx.Module):
    """A smooth increasing map from unconstrained to positive numbers."""

    @abc.abstractmethod
    def positive(self, x: Float[Array, " h"]) -> Float[Array, " h"]:
        """Return the positive values of unconstrained parameters."""

    @abc.abstractmethod
    def unconstrained(self, positive: Float[np.ndarray, " h"]) -> Float[np.ndarray, " h"]:
        """Return the unconstrained parameters of positive values."""

    @abc.abstractmethod
    def interval(self, x: Float[np.ndarray, " h"], factor: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the unconstrained parameters of the positive values of x divided by the factor,
        and times it."""


class Softplus(AbstractScale):
    """log(1 + eˣ), as in Lin et al. (2024), Appendix B."""

    def positive(self, x: Float[Array, " h"]) -> Float[Array, " h"]:
        return jax.nn.softplus(x)

    def unconstrained(self, positive: Float[np.ndarray, " h"]) -> Float[np.ndarray, " h"]:
        # log(eˣ − 1) as x + log(1 − e⁻ˣ): eˣ itself overflows for large x and cancels for small.
        return positive + np.log(-np.expm1(-positive))

    def interval(self, x: Float[np.ndarray, " h"], factor: float) -> tuple[np.ndarray, np.ndarray]:
        middle = np.asarray(self.positive(jnp.asarray(x)))
        return self.unconstrained(middle / factor), self.unconstrained(middle * factor)


class Log(AbstractScale):
    """eˣ."""

    def positive(self, x: Float[Array, " h"]) -> Float[Array, " h"]:
        return jnp.exp(x)

    def unconstrained(self, positive: Float[np.ndarray, " h"]) -> Float[np.ndarray, " h"]:
        return np.log(positive)

    def interval(self, x: Float[np.ndarray, " h"], factor: float) -> tuple[np.ndarray, np.ndarray]:
        return x - np.log(factor), x + np.log(factor)


def is_positive(leaf: Any) -> bool:
    """Return whether a leaf of a kernel can be tuned: a positive number or an array of them."""
    return eqx.is_inexact_array_like(leaf) and bool(np.all(np.asarray(leaf) > 0))


class Packing(eqx.Module):
    """The free leaves of a tree, such as `Hyperparameters`, as one vector x of unconstrained
    numbers.

    Positive numbers go through the scale, others are taken as they are. Leaves that are not free,
    such as the centre of a kernel, keep the values that they have in the tree.

    Parameters
    ----------
    tree : kernels and numbers; gives the structure and the values of the leaves that are not free.
    scale : `Log()` by default.
    free : filter of the free leaves, a prefix of the tree; by default, every positive leaf.
    positive : which free numbers go through the scale, a prefix of the tree with bools or arrays of
        them.
    relative : whether amplitudes and noises are counted as standard deviations and everything else
        in units of its value in `tree`. A search on a scale other than the logarithm then does not
        depend on the units of the inputs.
    """

    fixed: Any
    scale: AbstractScale
    is_scaled: Bool[np.ndarray, " h"]
    units: Float[np.ndarray, " h"] | None
    structure: Any = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)
    squared: tuple[bool, ...] = eqx.field(static=True)
    mixed: bool = eqx.field(static=True)

    def __init__(
        self,
        tree: Any,
        scale: AbstractScale | None = None,
        *,
        free: Any = is_positive,
        positive: Any = True,
        relative: bool = False,
    ) -> None:
        chosen, fixed = eqx.partition(tree, free)
        # A centre of positive coordinates looks like a size to `is_positive`: its name tells.
        places = jax.tree_util.tree_map_with_path(
            lambda path, _: _field(path) not in LOCATIONS, chosen
        )
        chosen, held = eqx.partition(chosen, places)
        self.fixed = eqx.combine(fixed, held)
        leaves = jax.tree_util.tree_flatten_with_path(chosen)[0]
        self.scale = Log() if scale is None else scale
        self.structure = jax.tree.structure(chosen)
        self.shapes = tuple(np.shape(leaf) for _, leaf in leaves)
        self.is_scaled = self.where(positive)
        self.mixed = not self.is_scaled.all()
        self.squared = tuple(relative and _field(path) in VARIANCES for path, _ in leaves)
        pairs = zip(leaves, self.squared, strict=True)
        units = [
            np.ones(np.shape(leaf)) if square else np.asarray(leaf) for (_, leaf), square in pairs
        ]
        self.units = _join(units, float) if relative else None

    def pack(self, tree: Any) -> Float[np.ndarray, " h"]:
        """Return the unconstrained parameters of a tree of the same structure."""
        # What `fixed` lacks is what is free: the same leaves as at construction, whatever this tree
        # holds.
        chosen = eqx.filter(tree, jax.tree.map(_is_none, self.fixed, is_leaf=_is_none))
        leaves = [np.asarray(leaf, float) for leaf in jax.tree.leaves(chosen)]
        pairs = zip(leaves, self.squared, strict=True)
        values = _join([np.sqrt(leaf) if square else leaf for leaf, square in pairs], float)
        if self.units is not None:
            values = values / self.units
        if self.mixed:
            # `where` evaluates both sides: one in place of unscaled numbers keeps log of a negative
            # away.
            return np.where(
                self.is_scaled,
                self.scale.unconstrained(np.where(self.is_scaled, values, 1.0)),
                values,
            )
        return self.scale.unconstrained(values)

    def values(self, x: Float[Array, " h"]) -> Float[Array, " h"]:
        """Return the parameters themselves; with `relative`, variances as standard deviations."""
        if self.mixed:
            # Zero in place of unscaled numbers: an overflow of exp in the branch not taken would
            # make the gradient NaN.
            values = jnp.where(
                self.is_scaled, self.scale.positive(jnp.where(self.is_scaled, x, 0)), x
            )
        else:
            values = self.scale.positive(x)
        return values if self.units is None else values * jnp.asarray(self.units, values.dtype)

    def unpack(self, x: Float[Array, " h"]) -> Any:
        """Return the tree of unconstrained parameters."""
        # Shapes are static: the ends are known at compilation.
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes], dtype=int)
        parts = jnp.split(self.values(x), ends)[:-1]
        leaves = [
            (flat**2 if square else flat).reshape(shape)
            for flat, square, shape in zip(parts, self.squared, self.shapes, strict=True)
        ]
        return eqx.combine(jax.tree.unflatten(self.structure, leaves), self.fixed)

    def where(self, marks: Any) -> Bool[np.ndarray, " h"]:
        """Return which entries of x stand for marked leaves; a prefix of the tree with bools or
        arrays of them."""
        tree = jax.tree.unflatten(self.structure, [np.empty(shape) for shape in self.shapes])
        return _join(jax.tree.leaves(jax.tree.map(_broadcast, marks, tree)), bool)

    def box(self, x: Float[np.ndarray, " h"], factor: float) -> Float[np.ndarray, "h 2"]:
        """Return bounds that keep positive parameters within a factor of their values at x."""
        box = np.stack(self.scale.interval(x, factor), axis=1)
        # Numbers of either sign have no factor to stay within.
        return np.where(self.is_scaled[:, None], box, np.array([[-np.inf, np.inf]]))


def _field(path: tuple[Any, ...]) -> str:
    """Return the name of the field at which a path into a tree ends."""
    return getattr(path[-1], "name", "") if path else ""


def _broadcast(mark: Any, tree: Any) -> Any:
    return jax.tree.map(lambda leaf: np.broadcast_to(mark, np.shape(leaf)), tree)


def _join(parts: list[Any], dtype: type) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in parts] or [np.zeros(0)]).astype(dtype)


def _is_none(leaf: Any) -> bool:
    return leaf is None


EXPLOSION = 0.1
"""Adam takes back a step to more than this above the lowest loss, in nats per datum: measured
blow-ups reach 1.5."""

MOST_HALVINGS = 30
"""Adam stops when steps that explode have halved its rate so often."""

KERNEL_MEMORY = 10
"""Corrections that L-BFGS keeps where it moves the few parameters of kernels only."""

type Loss = Callable[[Any], tuple[Any, Any]]
"""Parameters (h,) ↦ value in nats and gradient (h,), NumPy or JAX."""


class TrainingProblem(NamedTuple):
    """A loss with its gradient, where to start, and a box.

    start : (h,). bounds : (h, 2).
    units : (h,), in which L-BFGS measures each parameter, as its first steps are steepest descent;
        None is ones.
    size : how many data the loss counts.
    """

    loss: Loss
    start: Float[np.ndarray, " h"]
    bounds: Float[np.ndarray, "h 2"]
    units: Float[np.ndarray, " h"] | None = None
    size: int = 1


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

    status : why it stopped. objective : the loss of the point returned, in nats of all data.
    history : (e,) loss of every evaluation, in order, inf where it was not finite. num_steps :
        accepted steps.
    rejected : evaluations that were not finite or exploded, and were taken back. seconds : wall
    clock, compilation included.
    """

    status: TrainingStatus
    objective: float
    history: Float[np.ndarray, " e"]
    num_steps: int
    rejected: int
    seconds: float


def join_records(records: Sequence[TrainingRecord]) -> TrainingRecord:
    """Return one record of several rounds: the status of the last that had something to train, the
    last objective."""
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
        """Return where the search ended, never above the start, and how training went.

        Raises
        ------
        ValueError : the loss is not finite at the start.
        """


class Minimum(NamedTuple):
    """The lowest point found: `value` at `x` (h,), from which of the starts, after how many
    evaluations of all.

    gain : how much lower the value is than at that start.
    """

    value: float
    x: Float[np.ndarray, " h"]
    start: int
    gain: float
    num_evaluations: int


def share(optimiser: AbstractOptimiser, rounds: int) -> AbstractOptimiser:
    """Return the optimiser with its share of the budget for one of several rounds."""
    steps, seconds = max(optimiser.max_steps // rounds, 1), optimiser.max_seconds / rounds
    return dataclasses.replace(optimiser, max_steps=steps, max_seconds=seconds)


class LBFGS(AbstractOptimiser):
    """SciPy's L-BFGS-B; where the loss is not finite its line search sees a bowl about the best
    point so far.

    With both bounds finite for every parameter SciPy's first step may run to a corner of the box:
    leave one open.

    max_steps : iterations, with at most twice as many evaluations. max_seconds : checked after each
        iteration.
    memory : corrections from which the Hessian is estimated.
    """

    max_steps: int = 100
    max_seconds: float = float("inf")
    memory: int = 20

    def __check_init__(self) -> None:
        _check_budget("LBFGS", self.max_steps, self.max_seconds)
        check_count("LBFGS", "memory", self.memory, "Use 20.")

    def minimise(self, problem: TrainingProblem) -> tuple[Float[np.ndarray, " h"], TrainingRecord]:
        return self._minimise(_watch(problem), problem)

    def minimise_from(self, problems: Sequence[TrainingProblem]) -> Minimum | None:
        """Return the best of the minima from several starts, or None if the loss is finite at none
        of them."""
        # `_Watch` and not `_watch`: of several starts some may be infinite, which is no error.
        watches = [_Watch(problem) for problem in problems]
        runs = [
            (index, *self._minimise(watch, problem))
            for index, (watch, problem) in enumerate(zip(watches, problems, strict=True))
            if np.isfinite(watch.lowest)
        ]
        if not runs:
            return None
        index, x, record = min(runs, key=lambda run: run[2].objective)
        gain = watches[index].history[0] - record.objective
        return Minimum(
            record.objective, x, index, gain, sum(len(watch.history) for watch in watches)
        )

    def _minimise(
        self, watch: "_Watch", problem: TrainingProblem
    ) -> tuple[Float[np.ndarray, " h"], TrainingRecord]:
        if not problem.start.size:
            return watch.best, watch.record(TrainingStatus.FIXED, 0, 0)
        units = np.ones(problem.start.size) if problem.units is None else problem.units
        steps = 0

        # Coordinates z = x/units make the first, steepest-descent, step of one size in all
        # parameters.
        def at(z: np.ndarray) -> tuple[float, np.ndarray]:
            x = z * units
            value, slope = watch(x)
            # A wall, 1e25 before, has no slope: the bowl's leads the line search back.
            if np.isfinite(value):
                return value, slope * units
            # a bowl about the best point sends the search back
            away, height = x - watch.best, 1 + abs(watch.lowest)
            return watch.lowest + height * (1 + away @ away), 2 * height * away * units

        def stop(_: np.ndarray) -> None:
            nonlocal steps
            steps += 1
            if watch.seconds > self.max_seconds:
                raise StopIteration

        options = {"maxiter": self.max_steps, "maxfun": 2 * self.max_steps, "maxcor": self.memory}
        start, bounds = problem.start / units, problem.bounds / units[:, None]
        result = minimize(
            at, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options, callback=stop
        )
        # SciPy calls a stop by the callback a failure (status 2): the clock is asked first.
        stopped = {
            0: TrainingStatus.CONVERGED,
            1: TrainingStatus.OUT_OF_STEPS,
            2: TrainingStatus.STALLED,
        }
        status = (
            TrainingStatus.OUT_OF_TIME
            if watch.seconds > self.max_seconds
            else stopped[result.status]
        )
        # The loss at the x returned; the watch may have seen a lower one on the way.
        return result.x * units, watch.record(status, steps, 0)._replace(
            objective=float(result.fun)
        )


class Adam(AbstractOptimiser):
    """Adam with a rate that falls linearly; a step that explodes is taken back and the rate halved.

    rate : at the start. final : the rate at the end, relative to that at the start. max_steps :
    steps, each with one evaluation; the start is evaluated too. max_seconds : checked after each.
    """

    rate: float = 0.1
    max_steps: int = 300
    max_seconds: float = float("inf")
    final: float = 0.1

    def __check_init__(self) -> None:
        _check_budget("Adam", self.max_steps, self.max_seconds)
        check_number("Adam", "rate", self.rate, "Try 0.1.")
        check_number("Adam", "final", self.final, "Try 0.1.", inside="[0, inf)")

    def minimise(self, problem: TrainingProblem) -> tuple[Float[np.ndarray, " h"], TrainingRecord]:
        watch = _watch(problem)
        if not problem.start.size:
            return watch.best, watch.record(TrainingStatus.FIXED, 0, 0)
        moments, x, shrink, exploded, status = (
            None,
            problem.start,
            1.0,
            0,
            TrainingStatus.OUT_OF_STEPS,
        )
        value, slope = watch.lowest, watch.slope
        for step in range(self.max_steps):
            if watch.seconds > self.max_seconds:
                status = TrainingStatus.OUT_OF_TIME
                break
            # Steps that only climb a little are noise of Adam and stay.
            if not np.isfinite(value) or value > watch.lowest + EXPLOSION * problem.size:
                exploded += int(np.isfinite(value))
                shrink /= 2
                if shrink < 0.5**MOST_HALVINGS:
                    status = TrainingStatus.STALLED
                    break
                # The moments led into the explosion: from the best point they start again.
                x, slope, moments = watch.best, watch.slope, None
            change, moments = self._change(slope, moments, step)
            x = np.clip(x - shrink * change, *problem.bounds.T)
            value, slope = watch(x)
        # The history holds the start, steps that were not finite and steps that exploded beside
        # those taken.
        steps = len(watch.history) - 1 - watch.broken - exploded
        return watch.best, watch.record(status, steps, exploded)

    def follow(
        self, slope: Callable[[Float[np.ndarray, " h"]], Any], start: Float[np.ndarray, " h"]
    ) -> Float[np.ndarray, " h"]:
        """Return where `max_steps` steps against noisy gradients end: there is no loss by which to
        take steps back.

        Raises
        ------
        FloatingPointError : a gradient that is not finite; says at which step.
        """
        x, moments = start, None
        for step in range(self.max_steps):
            gradient = np.asarray(slope(x))
            if not np.isfinite(gradient).all():
                got = f"{gradient} at step {step}"
                cure = "Start with more noise."
                raise FloatingPointError(
                    fault("Adam", "a finite gradient of the likelihood", got, cure)
                )
            change, moments = self._change(gradient, moments, step)
            x = x - change
        return x

    def _change(
        self, slope: Float[np.ndarray, " h"], moments: PyTree, step: int
    ) -> tuple[np.ndarray, PyTree]:
        before = optax.scale_by_adam().init(jnp.asarray(slope)) if moments is None else moments
        direction, moments = _adam_direction(jnp.asarray(slope), before)
        return self.rate * (1 - (1 - self.final) * step / self.max_steps) * np.asarray(
            direction
        ), moments


class _Watch:
    """A loss that remembers its history and the lowest point so far; the loss at the start is
    evaluated first."""

    def __init__(self, problem: TrainingProblem) -> None:
        self.loss, self.began = problem.loss, time.perf_counter()
        self.history: list[float] = []
        self.broken, self.lowest, self.best = 0, np.inf, problem.start
        self.slope = np.zeros_like(problem.start)
        self(problem.start)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def __call__(self, x: Float[np.ndarray, " h"]) -> tuple[float, Float[np.ndarray, " h"]]:
        # L-BFGS begins at the start, which the watch has evaluated, and Adam returns to the best
        # point.
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
        return TrainingRecord(
            status, self.lowest, history, int(steps), int(self.broken + exploded), self.seconds
        )


def _watch(problem: TrainingProblem) -> _Watch:
    watch = _Watch(problem)
    if problem.start.size and not np.isfinite(watch.lowest):
        raise InputError(
            "fit",
            "a finite loss at the start",
            watch.history[0],
            "Start from another kernel or noise.",
        )
    return watch


@jax.jit
def _adam_direction(
    slope: Float[Array, " h"], moments: PyTree
) -> tuple[Float[Array, " h"], PyTree]:
    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to its integer step count
        return optax.scale_by_adam().update(slope, moments)


def _check_budget(where: str, max_steps: int, max_seconds: float) -> None:
    check_count(where, "max_steps", max_steps, "Raise it.")
    check_number(where, "max_seconds", max_seconds, "Raise it.", inside="(0, inf]")
