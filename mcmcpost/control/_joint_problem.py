"""What vector-valued control variates are fitted to: the rows of all tasks, each with its own draws and target."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from mcmcpost._checks import fault
from mcmcpost._mcse import mcse_mean
from mcmcpost.control._method import ControlFit
from mcmcpost.control._problem import (
    MIN_BLOCK,
    MIN_FOLDS,
    Problem,
    make_problem,
    pad_rows,
    ragged,
    standard_coordinates,
)
from mcmcpost.trace import Trace, check_same_order

INDEPENDENT = 1.5
"""Draws whose median autocorrelation time over coordinates is below this may be split anywhere."""


class Task(NamedTuple):
    """One column of one of the problems."""

    problem: int
    column: int


class JointProblem(NamedTuple):
    """Regressions of T integrands on one Stein space, each with its own draws and scores of its own target.

    problems : one for each trace, all in one pooled standardisation and with folds of one number.
    tasks : T tasks, the columns of the problems in order.
    draws, scores : (m, d) rows of all tasks, zero on padding; a trace with several integrands has a copy for each.
    values : (m,) of unit scale within a task. counts : (m,) copies of each state, zero on padding.
    labels : (m,) the task of each row, zero on padding.
    held_out, held_out_mask, train, train_mask, everyone, everyone_mask : rows as in `Problem`.
    starts : (T + 1,) row offsets of the tasks.
    """

    problems: tuple[Problem, ...]
    tasks: tuple[Task, ...]
    draws: Float[np.ndarray, "m d"]
    scores: Float[np.ndarray, "m d"]
    values: Float[np.ndarray, " m"]
    counts: Float[np.ndarray, " m"]
    labels: Int[np.ndarray, " m"]
    held_out: Int[np.ndarray, "k b"]
    held_out_mask: Bool[np.ndarray, "k b"]
    train: Int[np.ndarray, "k t"]
    train_mask: Bool[np.ndarray, "k t"]
    everyone: Int[np.ndarray, " a"]
    everyone_mask: Bool[np.ndarray, " a"]
    starts: Int[np.ndarray, " t"]

    @property
    def num_tasks(self) -> int:
        return len(self.tasks)

    @property
    def indicators(self) -> Float[np.ndarray, "m t"]:
        """The task of each row, one-hot; zero on padding."""
        return np.eye(self.num_tasks)[self.labels] * (self.counts > 0)[:, None]

    def rows_of(self, task: int) -> slice:
        """Return the rows of a task."""
        return slice(int(self.starts[task]), int(self.starts[task + 1]))

    def by_problem(self, control: Float[np.ndarray, " m"]) -> Iterator[tuple[Problem, list[int], np.ndarray]]:
        """Yield each problem, its tasks, and its part (m, p) of a control variate given at all rows."""
        for i, problem in enumerate(self.problems):
            mine = [t for t, task in enumerate(self.tasks) if task.problem == i]
            part = np.zeros_like(problem.values)
            for j, t in enumerate(mine):
                part[: problem.num_states, j] = control[self.rows_of(t)]
            yield problem, mine, part


class JointFit(NamedTuple):
    """Cross-fitted control variates of all tasks of a joint problem.

    fits : one `ControlFit` for each of its problems.
    model_correlation : (t, t) of the fits' errors under the kernel's own model; the identity where tasks do not share.
    task_covariance : (t, t) B, of integrands of unit scale.
    """

    fits: tuple[ControlFit, ...]
    model_correlation: Float[np.ndarray, "t t"]
    task_covariance: Float[np.ndarray, "t t"]


def make_joint_problem(
    traces: Sequence[Trace],
    values: Sequence[Float[np.ndarray, "_ _ _"]],
    *,
    num_folds: int | None = None,
    moments: tuple[Any, Any] | None = None,
) -> JointProblem:
    """Return the joint problem of each trace's integrands, pooled standardisation, finite varying values.

    Folds are contiguous blocks within chains, as many for every task, and fold k is left out of all tasks at once, so
    that traces with common draws or common random numbers do not leak. About eight; fewer for short correlated chains,
    whose blocks keep at least 50 draws.
    """
    if num_folds is None:
        num_folds = min(default_folds(trace) for trace in traces)
    pooled = np.concatenate([trace.draws.reshape(-1, trace.draws.shape[-1]) for trace in traces])
    coordinates = standard_coordinates(pooled[None], moments)
    problems = tuple(
        make_problem(trace, value, num_folds=num_folds, coordinates=coordinates)
        for trace, value in zip(traces, values, strict=True)
    )
    return join(problems)


def join(problems: tuple[Problem, ...]) -> JointProblem:
    """Return the joint problem of problems in the same coordinates."""
    tasks = tuple(Task(i, j) for i, problem in enumerate(problems) for j in range(problem.values.shape[1]))
    sizes = [problems[i].num_states for i, _ in tasks]
    starts = np.concatenate([[0], np.cumsum(sizes)])

    def stack(name: str) -> np.ndarray:
        return pad_rows(np.concatenate([getattr(problems[i], name)[: problems[i].num_states] for i, _ in tasks]))

    labels = pad_rows(np.repeat(np.arange(len(tasks)), sizes))
    values = np.concatenate([problems[i].values[: problems[i].num_states, j] for i, j in tasks])
    fold = np.full(len(labels), -1)
    for t, (i, _) in enumerate(tasks):
        problem = problems[i]
        for k, (rows, mask) in enumerate(zip(problem.held_out, problem.held_out_mask, strict=True)):
            fold[starts[t] + rows[mask]] = k
    num_folds = fold.max() + 1
    real = fold >= 0
    held_out, held_out_mask = ragged([np.flatnonzero(fold == k) for k in range(num_folds)])
    train, train_mask = ragged([np.flatnonzero(real & (fold != k)) for k in range(num_folds)])
    everyone, everyone_mask = ragged([np.flatnonzero(real)])
    return JointProblem(
        problems=problems,
        tasks=tasks,
        draws=stack("draws"),
        scores=stack("scores"),
        values=pad_rows(values),
        counts=stack("counts"),
        labels=labels,
        held_out=held_out,
        held_out_mask=held_out_mask,
        train=train,
        train_mask=train_mask,
        everyone=everyone[0],
        everyone_mask=everyone_mask[0],
        starts=starts,
    )


def default_folds(trace: Trace) -> int:
    """Return about eight: one draw may be a block where draws are independent, otherwise blocks have 50 draws."""
    chains, draws, _ = trace.draws.shape
    with np.errstate(invalid="ignore", divide="ignore"):
        ess = trace.draws.var(axis=(0, 1)) / mcse_mean(trace.draws) ** 2
    independent = not np.isfinite(ess).all() or np.median(ess) * INDEPENDENT >= chains * draws
    blocks = draws if independent else max(1 if chains > 1 else 2, draws // MIN_BLOCK)
    return max(2, min(MIN_FOLDS, chains * blocks))


def same_states(a: Trace, b: Trace) -> bool:
    """Return whether two traces are the same draws of the same target."""
    return np.array_equal(a.draws, b.draws) and np.array_equal(a.scores, b.scores)


def check_dimensions(names: Sequence[str], traces: Sequence[Trace]) -> None:
    """Raise a `ValueError` unless all tasks live in one space, their parameters in one order."""
    sizes = {name: trace.draws.shape[-1] for name, trace in zip(names, traces, strict=True)}
    if len(set(sizes.values())) > 1:
        expected = "tasks of one dimension, whose targets live on one unconstrained space"
        raise ValueError(fault("joint_expectation", expected, sizes, "Estimate the others by `expectation`."))
    check_same_order("joint_expectation", {f"task {n!r}": trace.names for n, trace in zip(names, traces, strict=True)})
