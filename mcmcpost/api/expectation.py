"""Public functions of expectations: posterior means and quantiles of one trace, and related means of several."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from mcmcpost._core.arguments import as_names, as_real, check_flags, check_kind
from mcmcpost._core.errors import InputError, InputTypeError
from mcmcpost._core.precision import in_float64
from mcmcpost._core.warn import warn
from mcmcpost.api.derived import answer_spread
from mcmcpost.api.question import (
    NO_GAIN,
    GatedTrace,
    Question,
    contradicted,
    of_moving,
    pose,
    read_gated,
    warn_of_contradiction,
)
from mcmcpost.control import (
    AbstractControlVariate,
    Estimate,
    JointEstimate,
    TaskInput,
    TrainedVectorValued,
    VectorValued,
    contradicting,
    estimate_expectations,
    estimate_jointly,
    estimate_quantiles,
    level_texts,
    pool,
    repeated_chain,
    stored_estimate,
    worth_of,
)
from mcmcpost.io import ConvergenceWarning, check_convergence, integrand_values, warn_of_convergence
from mcmcpost.scores import ScoreError

if TYPE_CHECKING:
    import pandas
    import xarray


def expectation(
    tree: "xarray.DataTree",
    integrands: Any = None,
    method: str | AbstractControlVariate = "auto",
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
) -> Estimate:
    """Estimate posterior expectations, with their Monte Carlo errors, by Stein control variates.

    Parameters
    ----------
    tree : a trace with scores, from `from_numpyro`, `attach_scores`, `from_arrays`, nutpie or `load_tree`. Draws and
        scores in the chunks of dask, larger than memory, are reduced chunk by chunk. Draws with weights,
        ``sample_stats.log_weight``, have self-normalised means and weighted control variates
        (docs/methods/weighted_draws.md).
    integrands : None for every variable of the posterior group that is a number for every draw, with a warning of the
        others; a list of variable names; an array (chain, draw[, p]) or a function of one constrained draw (a dict of
        arrays), named ``f``; or a mapping from names to such.
    method : ``"auto"``, another name in `METHODS`, or an object such as ``ZeroVariance(degree=2)``.
    standardize : known (mean, sd) of the unconstrained draws, each a scalar or (d,), as for a prior; by default the
        sample's own moments.
    folds : of the cross-fitting, at most 1,000; about eight by default, whole chains or contiguous blocks of them.
    allow_bad_scores : compute although the score gate fails; every status is then ``bad_scores``.
    fallback : return the plain mean where its error is not larger than the controlled one. With few draws the estimate
        of the error can hide a real gain: False returns the controlled mean, and the gain may then be below one.

    Returns
    -------
    Estimate : mean, mcse, gain, status, … arrays over the quantities, in the integrands' units. Where the tree records
        how long sampling took (`sampling_time`, in seconds, an attribute that PyMC and ``mcmcpost sample`` write),
        ``info["worth"]`` says how long it would take for the same errors.

    Raises
    ------
    ScoreError : the scores are not those of the draws, in a way that was recognised.
    ValueError, TypeError : input of a wrong shape, kind or name; `Screened` or `VectorValued` for weighted draws.

    Warns
    -----
    ScoreWarning : Stein's identity fails for a reason that was not recognised, or the chains have not converged. A
        control variate would then be biased by more than its error says, so plain means are returned, whatever the
        method; `allow_bad_scores` overrides.
    ConvergenceWarning : the chains, or their halves, disagree about the mean or the spread of an integrand (R-hat),
        transitions of the sampler diverged, or Pareto k̂ of the weights is above 0.7; the status is then
        ``heavy_tail``.
    """
    question = pose(tree, integrands, method, allow_bad_scores, weighted=True)
    return answer(question, standardize=standardize, folds=folds, fallback=fallback)


def joint_expectation(
    tasks: "Mapping[str, tuple[xarray.DataTree, Any]]",
    method: VectorValued | TrainedVectorValued | None = None,
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
) -> JointEstimate:
    """Estimate related expectations on several traces and targets together: fidelities, temperatures, time points.

    Parameters
    ----------
    tasks : from a name to (tree, integrands); the integrands as in `expectation`, None for the stored values. All
        targets live on one unconstrained space. Traces are taken to be independent of each other unless their draws
        and scores are the same.
    method : `VectorValued(...)`, the default with its default arguments, or `TrainedVectorValued(...)`.
    standardize : known (mean, sd) of the unconstrained draws of all tasks together; one pooled transform serves all.
    folds, allow_bad_scores, fallback : as in `expectation`; fold k is left out of every task at once.

    Warns
    -----
    ScoreWarning, ConvergenceWarning : as in `expectation`.

    Returns
    -------
    JointEstimate : a dict from name to `Estimate`, with `covariance` of all errors and the learnt task covariance. A
        task whose scores fail the gate is its plain mean, ``bad_scores``, and takes no part in the fit.

    Raises
    ------
    ScoreError : as in `expectation`, naming the task.
    ValueError, TypeError : no task, tasks of different dimension, a parameter that some tasks move and others hold
        fixed, a covariance that does not fit, a bad integrand.
    """
    where, cure = "joint_expectation", 'Pass {"name": (tree, integrands)}.'
    check_kind(where, "method", method, (VectorValued, TrainedVectorValued, None), "Or use expectation.")
    check_flags(where, allow_bad_scores=allow_bad_scores, fallback=fallback)
    check_kind(where, "tasks", tasks, Mapping, cure)
    as_names(where, "tasks", tasks)
    if not tasks:
        raise InputError(where, "`tasks`, at least one", "none", cure)
    choice = VectorValued() if method is None else method
    inputs = {}
    gated: dict[int, GatedTrace] = {}  # tasks may share a tree
    for name, pair in tasks.items():
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise InputTypeError(
                "joint_expectation",
                f"task {name!r} to be a pair (tree, integrands)",
                type(pair).__name__,
                "Add None for the stored values.",
            )
        tree, integrands = pair
        new = id(tree) not in gated  # the divergences of a tree are told once
        if new:
            try:
                gated[id(tree)] = read_gated(tree, allow_bad_scores)
            except ScoreError as error:
                raise ScoreError(f"joint_expectation: task {name!r}: {error}") from error
        trace, check = gated[id(tree)]
        failed = check.failed
        labels, values, events, _ = integrand_values(tree, integrands)
        found = check_convergence(tree, [([f"{name}: {label}" for label in labels], values)])
        warn_of_convergence(found if new else found._replace(divergences=0))
        bad = failed and (allow_bad_scores or check.pattern not in NO_GAIN)
        inputs[name] = TaskInput(trace, labels, values, bad, not failed or allow_bad_scores, check.verified, events)
    joint = in_float64(estimate_jointly)(inputs, choice, num_folds=folds, moments=standardize, fallback=fallback)
    parts = ((task, contradicted(one, known=inputs[task].bad_scores)) for task, one in joint.items())
    warn_of_contradiction([f"{task}: {name}" for task, names in parts for name in names])
    return joint


def summary(
    tree: "xarray.DataTree",
    integrands: Any = None,
    method: str | AbstractControlVariate = "auto",
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
    sd: bool = False,
    quantiles: Sequence[float] = (),
) -> "pandas.DataFrame":
    """Return a table to join to ``az.summary``: mcse, mean_cv, mcse_cv, gain, method, status, digits.

    ``az.summary(trace).join(mp.summary(trace))`` has the plain mean and standard deviation too, as has
    ``expectation(trace).to_dataframe()``. ArviZ does not know the weights of weighted draws: take the latter for them.

    Parameters
    ----------
    tree, integrands, method, standardize, folds, allow_bad_scores, fallback : as in `expectation`.
    sd : also `sd_cv` and `mcse_sd_cv`, the controlled standard deviation and its error; see `standard_deviation`.
    quantiles : probabilities π whose quantiles are wanted too, in columns ``q{π}_cv`` and ``mcse_q{π}_cv``; see
        `quantile`, which takes no `standardize` and no `fallback`. The ends of ``az.summary``'s 89 % interval are those
        of (0.055, 0.945).

    Returns
    -------
    DataFrame : a row for each quantity. `mcse` is the plain error and `gain` (mcse/mcse_cv)²; `digits` are the
        significant digits of `mean_cv` that its error supports.
    """
    check_flags("summary", sd=sd)
    levels = check_probabilities(quantiles) if np.size(quantiles) else np.empty(0)
    question = pose(tree, integrands, method, allow_bad_scores, weighted=True)
    table = answer(question, standardize=standardize, folds=folds, fallback=fallback).to_dataframe()
    table = table.drop(columns=["mean", "sd"])
    if sd:
        spread = answer_spread(question, "sd", standardize=standardize, folds=folds, fallback=fallback)
        table["sd_cv"], table["mcse_sd_cv"] = spread.mean, spread.mcse
    if len(levels):
        found = answer_quantiles(question, levels, folds=folds)
        for place, level in enumerate(level_texts(levels)):
            own = slice(place, None, len(levels))
            table[f"q{level}_cv"], table[f"mcse_q{level}_cv"] = found.mean[own], found.mcse[own]
    return table


def quantile(
    tree: "xarray.DataTree",
    probabilities: float | Sequence[float],
    integrands: Any = None,
    method: str | AbstractControlVariate = "auto",
    *,
    folds: int | None = None,
    allow_bad_scores: bool = False,
) -> Estimate:
    """Estimate posterior quantiles by inverting a controlled distribution function.

    Other arguments and errors are those of `expectation`. One result per integrand and probability, named
    ``name [probability]``; `mcse` is in the integrand's units. Indicators are not smooth, so that gains are modest;
    without one the status is ``plain``. A quantile with fewer than three effective draws beyond it is ``unseen``.
    The error is that of Maritz and Jarrett (1978, doi:10.1080/01621459.1978.10480027); see `estimate_quantiles`.

    Raises
    ------
    ValueError : a probability outside (0, 1).
    """
    levels = check_probabilities(probabilities)
    question = pose(tree, integrands, method, allow_bad_scores, weighted=True)
    found = answer_quantiles(question, levels, folds=folds)
    warn_of_contradiction(contradicted(found, known=question.bad_scores))
    return found


def pool_estimates(*estimates: "Estimate | xarray.DataTree") -> Estimate:
    """Combine estimates of the same quantities from independent chains of one posterior, without their draws.

    Chains that are added to a finished reduction cost their own reduction only. The pooled means are those of the
    parts, weighted by their draws where all were made by the same method, and by their errors elsewhere; see
    `mcmcpost.control.estimates.pooling.pool`. A joint reduction of all chains knows a little more, since its fits see
    all draws.

    Parameters
    ----------
    estimates : of `expectation`, at least two, or trees that ``estimate.to_datatree`` returned, as `load_tree` reads
        them. Names and the number of draws of a chain have to be the same.

    Returns
    -------
    Estimate : residuals have the chains of all parts, one after the other; `info` has the draws of each part.

    Raises
    ------
    ValueError, TypeError : fewer than two; other names or numbers of draws; a chain in two of them; what is no
        estimate.

    Warns
    -----
    ConvergenceWarning : a part contradicts the pooled estimate.
    """
    where = "pool_estimates"
    parts = [one if isinstance(one, Estimate) else stored_estimate(one) for one in estimates]
    if len(parts) < 2:
        raise InputError(where, "at least two estimates", len(parts), "Pass those of the old and of the new chains.")
    for part in parts[1:]:
        if part.names != parts[0].names:
            other = sorted({*part.names} ^ {*parts[0].names}) or "another order"
            raise InputError(where, "estimates of the same quantities", other, "Ask each for the same integrands.")
        if part.residuals.shape[1] != parts[0].residuals.shape[1]:
            draws = f"{parts[0].residuals.shape[1]} and {part.residuals.shape[1]}"
            cure = "Reduce as many draws of each chain: tree.isel(draw=slice(n))."
            raise InputError(where, "estimates from chains of one length", draws, cure)
    shared = repeated_chain(parts)
    if shared is not None:
        got = f"one of the chains of estimate {shared[0]} in estimate {shared[1]}, counting from 0"
        raise InputError(where, "every chain once", got, "Pass estimates of different chains.")
    pooled = pool(parts)
    apart = [name for name, bad in zip(pooled.names, contradicting(parts, pooled), strict=True) if bad]
    if apart:
        warn(
            f"The estimates of {', '.join(apart)} contradict each other: they are of other posteriors, or their chains "
            "have not converged.",
            ConvergenceWarning,
        )
    return pooled


def check_probabilities(probabilities: float | Sequence[float]) -> Float[np.ndarray, " a"]:
    """Return the distinct probabilities in the order given; refuse an empty list, and any outside (0, 1)."""
    levels = np.atleast_1d(as_real("quantile", "probabilities", probabilities)).astype(float)
    if levels.ndim != 1 or not len(levels) or not ((levels > 0) & (levels < 1)).all():
        raise InputError("quantile", "probabilities inside (0, 1)", probabilities, "For example 0.05, not 5.")
    return np.array(list(dict.fromkeys(levels.tolist())))  # results are named by their probability


def answer_quantiles(question: Question, levels: Float[np.ndarray, " a"], *, folds: int | None = None) -> Estimate:
    """Return the quantiles of a question's integrands at the probabilities `levels`."""
    return in_float64(estimate_quantiles)(
        question.trace,
        question.names,
        question.values,
        levels,
        question.method,
        num_folds=folds,
        bad_scores=question.bad_scores,
        verified=question.check.verified,
        events=question.events,
    )


def answer(
    question: Question,
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    fallback: bool = True,
) -> Estimate:
    """Return the expectations of the integrands of a question; arguments as in `expectation`."""
    check_flags("expectation", fallback=fallback)
    estimate = in_float64(estimate_expectations)(
        question.trace,
        question.names,
        question.values,
        question.method,
        num_folds=folds,
        moments=of_moving(question.every, standardize),
        bad_scores=question.bad_scores,
        verified=question.check.verified,
        events=question.events,
        fallback=fallback,
    )
    warn_of_contradiction(contradicted(estimate, known=question.bad_scores))
    if question.seconds is None or not (worth := worth_of(estimate, question.seconds)):
        return estimate
    return estimate._replace(info=estimate.info | {"sampling_time": question.seconds, "worth": worth})
