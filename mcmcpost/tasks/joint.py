"""Related expectations on several traces, estimated together, with the covariance of their
errors."""

import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from mcmcpost.control import Estimate, FoldFit, Options, Problem, Sample, read_moments
from mcmcpost.control.estimate import GROUP, NUMBERS, assemble, covariance_of, rescaled
from mcmcpost.control.problem import make_joint_problem, make_problem
from mcmcpost.core.arguments import as_names, check_flags, check_kind
from mcmcpost.core.errors import InputError, InputTypeError
from mcmcpost.core.precision import in_float64
from mcmcpost.core.runtime import json_able
from mcmcpost.sample import NO_GAIN, check_gate, contradicted, warn_of_contradiction
from mcmcpost.scores import ScoreCheck, ScoreError
from mcmcpost.tasks.trained import TrainedVectorValued
from mcmcpost.tasks.vector_valued import VectorValued
from mcmcpost.trace import Trace, check_same_order, distinct_states, moving, with_coordinates
from mcmcpost.trees import check_convergence, integrand_values, read_trace, warn_of_convergence

if TYPE_CHECKING:
    import pandas
    import xarray


class TaskInput(NamedTuple):
    """One trace with its integrands; `bad_scores` if the gate failed and was overridden.

    `controlled` is False where the gate's finding leaves only the plain mean. `verified` : as in
    `Options`.
    """

    sample: Sample
    bad_scores: bool = False
    controlled: bool = True
    verified: bool = True

    @property
    def trace(self) -> Trace:
        assert isinstance(self.sample.trace, Trace)  # tasks are read into memory
        return self.sample.trace


class JointEstimate(dict[str, Estimate]):
    """Estimates by task name, with what only the whole has.

    labels : P pairs (task, integrand), tasks in order.
    covariance : (P, P) of the estimates' errors, positive semidefinite with mcse² on its diagonal:
        the part of the error that the common fit makes under the kernel's model, and the rest,
        within the same draws, with the correlation of the residual series. Other draws are
        independent.
    task_labels, task_covariance : the (task, integrand) pairs that were fitted together and their
        learnt B, for integrands of unit scale; empty where nothing was fitted.
    """

    labels: tuple[tuple[str, str], ...]
    covariance: Float[np.ndarray, "p p"]
    task_labels: tuple[tuple[str, str], ...]
    task_covariance: Float[np.ndarray, "t t"]

    def __init__(
        self,
        estimates: Mapping[str, Estimate],
        covariance: Float[np.ndarray, "p p"],
        task_labels: tuple[tuple[str, str], ...],
        task_covariance: Float[np.ndarray, "t t"],
    ) -> None:
        super().__init__(estimates)
        self.labels = tuple(
            (task, name) for task, estimate in estimates.items() for name in estimate.names
        )
        self.covariance = covariance
        self.task_labels = task_labels
        self.task_covariance = task_covariance

    @property
    def task_correlation(self) -> Float[np.ndarray, "t t"]:
        """The learnt B as a correlation matrix."""
        # A learnt B has a floor under its spectrum (`floored`), so that no variance is zero.
        sd = np.sqrt(np.diagonal(self.task_covariance))
        return self.task_covariance / sd[:, None] / sd[None, :]

    def to_dataframe(self) -> "pandas.DataFrame":
        """Return one row per task and quantity, with the columns of `Estimate.to_dataframe`."""
        import pandas

        return pandas.concat(
            {task: estimate.to_dataframe() for task, estimate in self.items()}, names=["task"]
        )

    def to_json_dict(self) -> dict[str, dict[str, Any]]:
        """Return ``{"tasks": {name: ...}}`` with what `Estimate.to_json_dict` has of each."""
        return {"tasks": {task: estimate.to_json_dict() for task, estimate in self.items()}}

    def to_datatree(self) -> "xarray.DataTree":
        """Return a new tree with the estimates of all tasks in the group `control_variates`.

        Returns
        -------
        DataTree : `mean_cv`, `mcse_cv`, … `status` and `method` over `task`, labelled by the task's
            name, or ``name: integrand`` where a task has several; `covariance` (task, task_bis) of
            the errors; the learnt B as `task_correlation` (fitted_task, fitted_task_bis), a
            correlation matrix, and `task_covariance`. One subgroup per task, by its number, with
            what `Estimate.to_datatree` writes for it; its attr `task` is the name.
        """
        import xarray

        # Labels must be unique along the dim: a task of several integrands is named with each of
        # them.
        single = {name: len(estimate.names) == 1 for name, estimate in self.items()}

        def text(labels: tuple[tuple[str, str], ...]) -> np.ndarray:
            return np.array(
                [task if single[task] else f"{task}: {name}" for task, name in labels], dtype=object
            )

        parts = list(self.values())
        variables: dict[str, Any] = {
            name: (
                "task",
                np.concatenate([np.asarray(getattr(estimate, field)) for estimate in parts]),
            )
            for name, field in NUMBERS.items()
        }
        for name in ("status", "method"):
            flat = [str(item) for estimate in parts for item in getattr(estimate, name)]
            variables[name] = ("task", np.array(flat, dtype=object))
        variables["covariance"] = (("task", "task_bis"), self.covariance)
        coords = {"task": text(self.labels), "task_bis": text(self.labels)}
        if len(self.task_labels):
            pair = ("fitted_task", "fitted_task_bis")
            variables |= {"task_covariance": (pair, self.task_covariance)}
            variables |= {"task_correlation": (pair, self.task_correlation)}
            coords |= {name: text(self.task_labels) for name in pair}
        # One fit has one set of facts, which each of its estimates repeats; traces are their own.
        facts = ({k: v for k, v in one.info.items() if k != "trace"} for one in parts)
        attrs = {
            "info": json.dumps(json_able(next(filter(None, facts), {})), allow_nan=False),
            "mcmcpost_version": version("mcmcpost"),
        }
        tree = xarray.DataTree()
        tree[GROUP] = xarray.DataTree(xarray.Dataset(variables, coords=coords, attrs=attrs))
        for number, (name, estimate) in enumerate(self.items()):
            dataset = estimate.to_datatree()[GROUP].to_dataset()
            # By number: names of tasks may hold a slash, which is a path to xarray.
            tree[f"task_{number}"] = xarray.DataTree(dataset.assign_attrs(task=name))
        return tree


def estimate_jointly(
    inputs: Mapping[str, TaskInput], method: VectorValued | TrainedVectorValued, options: Options
) -> JointEstimate:
    """Estimate the expectations of all tasks with one vector-valued control variate.

    Tasks that share draws and scores go through the Kronecker solve of `VectorValued.crossfit`.
    Integrands that are constant or not finite, traces of fewer than four states and traces that
    failed the gate take no part in the fit and are reported with their status. A coordinate that no
    task of the fit moves is left out of the fit.

    Parameters
    ----------
    inputs : the tasks by name. options : of all of them, but for `bad_scores` and `verified`.

    Raises
    ------
    ValueError : tasks of different dimensions; a coordinate that is fixed in some of the fitted
        tasks and moves in others; a covariance that does not fit them.
    """
    check_dimensions({name: item.trace for name, item in inputs.items()})
    for item in inputs.values():
        options.check(item.trace)
    # Everything is estimated in the units of the tasks, in which no covariance between them
    # overflows or vanishes. B compares integrands, and a quantity in thousands beside one in
    # thousandths would have all of it.
    samples = {
        name: item.sample._replace(values=item.sample.scaled, units=np.ones(len(item.sample.names)))
        for name, item in inputs.items()
    }
    # Bad scores of one task would spoil the common fit of all, so that it stands outside and is its
    # plain mean.
    traces = {
        name: item.trace
        for name, item in inputs.items()
        if item.controlled and len(item.sample.columns)
    }
    labels = tuple((name, samples[name].names[j]) for name in traces for j in samples[name].columns)
    task_fits = _fit_tasks(traces, samples, method, options)
    estimates = {
        name: assemble(
            samples[name],
            options._replace(bad_scores=item.bad_scores, verified=item.verified),
            task_fits.problems.get(name),
            task_fits.fits.get(name),
        )
        for name, item in inputs.items()
    }
    covariance = _covariance(estimates, inputs, *_common_error(estimates, task_fits, samples))
    units = {name: item.sample.units for name, item in inputs.items()}
    every = np.concatenate(list(units.values()))
    # Errors of 1e200 have a covariance that no number holds: infinite, with finite estimates beside
    # it.
    with np.errstate(over="ignore"):
        covariance = covariance * every[:, None] * every
    estimates = {name: rescaled(estimate, units[name]) for name, estimate in estimates.items()}
    return JointEstimate(estimates, covariance, labels, task_fits.task_covariance)


def check_dimensions(traces: Mapping[str, Trace]) -> None:
    """Refuse tasks that do not live in one space, their parameters in one order."""
    # B⊗k needs one x for all tasks: k₀ is evaluated between draws of different ones.
    sizes = {name: trace.draws.shape[-1] for name, trace in traces.items()}
    if len(set(sizes.values())) > 1:
        expected = "tasks of one dimension, whose targets live on one unconstrained space"
        raise InputError(
            "joint_expectation", expected, sizes, "Estimate the others by `expectation`."
        )
    check_same_order(
        "joint_expectation", {f"task {name!r}": trace.names for name, trace in traces.items()}
    )


def same_states(a: Trace, b: Trace) -> bool:
    """Return whether two traces are the same draws of the same target."""
    return np.array_equal(a.draws, b.draws) and np.array_equal(a.scores, b.scores)


def moving_in_all(traces: Mapping[str, Trace]) -> Bool[np.ndarray, " d"]:
    """Return which coordinates move in all tasks, refusing one that moves in some and is fixed in
    others.

    Stein features along a coordinate do not average to zero in a task that holds it fixed: the
    score along it is a gradient of the density of one value. Tasks that move it would lose what it
    explains were it left out of all.
    """
    # The map to common coordinates divides by a spread, which a fixed coordinate has not.
    moves = {name: moving(trace.draws) for name, trace in traces.items()}
    everywhere = np.logical_and.reduce(list(moves.values()))
    somewhere = np.logical_or.reduce(list(moves.values()))
    if (everywhere != somewhere).any():
        place = int(np.argmax(everywhere != somewhere))
        fixed, free = (
            [name for name, in_task in moves.items() if in_task[place] == moved]
            for moved in (False, True)
        )
        raise InputError(
            "joint_expectation",
            "each parameter to move in every task or in none",
            f"{traces[fixed[0]].names[place]!r}, fixed in task {fixed[0]!r} and not in task "
            f"{free[0]!r}",
            "Estimate one of these tasks by `expectation`, which leaves its fixed parameters out.",
        )
    return everywhere


class TaskFits(NamedTuple):
    """The control variates of the tasks that were fitted.

    problems, fits : by the name of the task.
    model_covariance : (t, t) of the errors that the common fit makes, in the problems' units; None
        for tasks of the same draws, whose residuals show their correlation.
    task_covariance : (t, t) B.
    """

    problems: dict[str, Problem]
    fits: dict[str, FoldFit]
    model_covariance: Float[np.ndarray, "t t"] | None
    task_covariance: Float[np.ndarray, "t t"]


def _fit_tasks(
    traces: dict[str, Trace],
    samples: Mapping[str, Sample],
    method: VectorValued | TrainedVectorValued,
    options: Options,
) -> TaskFits:
    """Fit the tasks of `traces`, of which there may be none, by the coordinates that move."""
    if not traces:
        return TaskFits({}, {}, None, np.eye(0))
    states = [samples[name].states for name in traces]
    values = [samples[name].fitted_values for name in traces]
    moves, moments = moving_in_all(traces), options.standardize
    if not moves.all():
        traces = {name: with_coordinates(trace, moves) for name, trace in traces.items()}
        states = [distinct_states(trace) for trace in traces.values()]
        if moments is not None:
            mean, sd = (moment[moves] for moment in read_moments(moments, len(moves)))
            moments = (mean, sd)
    first, *others = traces.values()
    # Shared draws: the system falls into diagonal ones (docs/mathematics.md section 2, shared
    # draws).
    if all(same_states(first, other) for other in others):
        problem = make_problem(
            first,
            np.concatenate(values, axis=-1),
            states=states[0],
            num_folds=options.folds,
            moments=moments,
        )
        whole = method.crossfit(problem)
        ends = np.cumsum([task_values.shape[-1] for task_values in values])
        columns = [
            slice(end - task_values.shape[-1], end)
            for end, task_values in zip(ends, values, strict=True)
        ]
        problems, fits = (
            [problem.select(columns_of_task) for columns_of_task in columns],
            [whole.select(columns_of_task) for columns_of_task in columns],
        )
        model, between = None, np.asarray(whole.info.get("task_covariance", np.eye(ends[-1])))
    else:
        joint = make_joint_problem(
            list(traces.values()), values, states=states, num_folds=options.folds, moments=moments
        )
        together = method.crossfit_joint(joint)
        problems, fits = list(joint.problems), list(together.fits)
        model, between = together.model_covariance, together.task_covariance
    return TaskFits(
        dict(zip(traces, problems, strict=True)),
        dict(zip(traces, fits, strict=True)),
        model,
        between,
    )


def _common_error(
    estimates: Mapping[str, Estimate], task_fits: TaskFits, samples: Mapping[str, Sample]
) -> tuple[Int[np.ndarray, " t"], Float[np.ndarray, "t t"]]:
    """Return where each task of a common fit stands among all P, and the covariance of the errors
    that the fit makes.

    A task that was fitted alone or not at all has none, and no task has more than its whole error.
    The correlations are those of the kernel's model, whose B often has rank one, as if it were
    known: they are shrunk as one observation of unrelated tasks would shrink a B that was learnt
    from each task's states.
    """
    # Of shared draws the residual series show how the errors are correlated, and no model is
    # needed.
    if task_fits.model_covariance is None:
        return np.zeros(0, int), np.zeros((0, 0))
    sd = np.sqrt(np.maximum(np.diagonal(task_fits.model_covariance), 0.0))
    unit = sd[:, None] * sd[None, :]
    correlation = np.where(
        unit > 0, task_fits.model_covariance / np.where(unit > 0, unit, 1.0), 0.0
    )
    rows: list[int] = []
    errors: list[float] = []
    states: list[int] = []
    start = 0
    for name, estimate in estimates.items():
        if name in task_fits.fits:
            fit, problem = task_fits.fits[name], task_fits.problems[name]
            for k, j in enumerate(samples[name].columns):
                # A task that went back to its plain mean or to its own fit shares no error with the
                # others.
                together = estimate.method[j] == fit.method[k] and not fit.method[k].endswith(
                    "alone"
                )
                error = float(sd[len(rows)] * problem.scale[k])
                # The model's error may exceed the one from refits: in 2 of 30 replications of the
                # South functions it left a correlation of 1 − 1e-8 (docs/results,
                # vector_valued_south_quadratic).
                errors.append(min(error, float(estimate.mcse[j])) if together else 0.0)
                rows.append(start + int(j))
                states.append(problem.num_states)
        start += len(estimate.names)
    # The shrinkage that is described above, as a factor for each task, so that the matrix stays
    # positive semidefinite.
    learnt = np.sqrt(1.0 - 1.0 / (np.array(states) + 1.0))
    correlation = np.where(
        np.eye(len(rows), dtype=bool), correlation, correlation * np.outer(learnt, learnt)
    )
    return np.array(rows, int), np.outer(errors, errors) * correlation


def _covariance(
    estimates: Mapping[str, Estimate],
    inputs: Mapping[str, TaskInput],
    index: Int[np.ndarray, " t"],
    between: Float[np.ndarray, "t t"],
) -> Float[np.ndarray, "p p"]:
    """Return `between`, the covariance of the common errors, plus that of the rest, by residuals of
    the same draws."""
    owner = np.repeat(
        np.arange(len(estimates)), [len(estimate.names) for estimate in estimates.values()]
    )
    mcse = np.concatenate([estimate.mcse for estimate in estimates.values()])
    total = np.zeros((len(mcse), len(mcse)))
    total[np.ix_(index, index)] = between
    # Whatever part the common fit has, the diagonal is mcse² in the end.
    remaining_error = np.sqrt(np.maximum(mcse**2 - np.diagonal(total), 0.0))
    names, left = list(estimates), list(range(len(estimates)))
    while left:
        # Groups of tasks on the same draws: within them residuals correlate, between them draws are
        # independent.
        same = [
            k for k in left if same_states(inputs[names[left[0]]].trace, inputs[names[k]].trace)
        ]
        left = [k for k in left if k not in same]
        at = np.concatenate([np.flatnonzero(owner == k) for k in same])
        residuals = np.concatenate([estimates[names[k]].residuals for k in same], axis=-1)
        total[np.ix_(at, at)] += covariance_of(residuals, remaining_error[at])
    return total


def joint_expectation(
    tasks: "Mapping[str, tuple[xarray.DataTree, Any]]",
    method: VectorValued | TrainedVectorValued | None = None,
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
) -> JointEstimate:
    """Estimate related expectations on several traces and targets together: fidelities,
    temperatures, time points.

    Parameters
    ----------
    tasks : from a name to (tree, integrands); the integrands as in `expectation`, None for the
        stored values. All targets live on one unconstrained space. Traces are taken to be
        independent of each other unless their draws and scores are the same.
    method : `VectorValued(...)`, the default with its default arguments, or
        `TrainedVectorValued(...)`.
    standardize : known (mean, sd) of the unconstrained draws of all tasks together; one pooled
        transform serves all.
    folds, allow_bad_scores, fallback : as in `expectation`; fold k is left out of every task at
        once.

    Warns
    -----
    ScoreWarning, ConvergenceWarning : as in `expectation`.

    Returns
    -------
    JointEstimate : a dict from name to `Estimate`, with `covariance` of all errors and the learnt
        task covariance. A task whose scores fail the gate is its plain mean, ``bad_scores``, and
        takes no part in the fit.

    Raises
    ------
    ScoreError : as in `expectation`, naming the task.
    ValueError, TypeError : no task, tasks of different dimension, a parameter that some tasks move
        and others hold fixed, a covariance that does not fit, a bad integrand.
    """
    where, cure = "joint_expectation", 'Pass {"name": (tree, integrands)}.'
    check_kind(
        where, "method", method, (VectorValued, TrainedVectorValued, None), "Or use expectation."
    )
    check_flags(where, allow_bad_scores=allow_bad_scores, fallback=fallback)
    check_kind(where, "tasks", tasks, Mapping, cure)
    as_names(where, "tasks", tasks)
    if not tasks:
        raise InputError(where, "`tasks`, at least one", "none", cure)
    choice = VectorValued() if method is None else method
    inputs = {}
    # By identity: two trees with equal content are gated twice, which costs time and nothing else.
    gated: dict[int, tuple[Trace, ScoreCheck]] = {}  # tasks may share a tree
    for name, pair in tasks.items():
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise InputTypeError(
                "joint_expectation",
                f"task {name!r} to be a pair (tree, integrands)",
                type(pair).__name__,
                "Add None for the stored values.",
            )
        tree, integrands = pair
        new = id(tree) not in gated  # divergences and repeated chains of a tree are told once
        if new:
            try:
                # The gate knows no tasks, and an error without the name would send a person through
                # all of them.
                trace = read_trace(tree)
                gated[id(tree)] = trace, check_gate(tree, trace, allow_bad_scores)
            except ScoreError as error:
                raise ScoreError(f"joint_expectation: task {name!r}: {error}") from error
        trace, check = gated[id(tree)]
        failed = check.failed
        labels, values, events, *_ = integrand_values(tree, integrands)
        convergence = check_convergence(tree, [([f"{name}: {label}" for label in labels], values)])
        warn_of_convergence(
            convergence if new else convergence._replace(divergences=0, repeated=None)
        )
        # A constant score or an edge leaves a right plain mean: only other failures make the draws
        # doubtful.
        bad = failed and (allow_bad_scores or check.pattern not in NO_GAIN)
        sample = Sample.of(trace, labels, values, events)
        inputs[name] = TaskInput(sample, bad, not failed or allow_bad_scores, check.verified)
    joint = in_float64(estimate_jointly)(
        inputs, choice, Options(standardize, folds, allow_bad_scores, fallback)
    )
    # After the fits: a controlled mean that contradicts the plain one is only then known.
    parts = (
        (task, contradicted(one, known=inputs[task].bad_scores)) for task, one in joint.items()
    )
    warn_of_contradiction([f"{task}: {name}" for task, names in parts for name in names])
    return joint
