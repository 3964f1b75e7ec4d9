"""The public functions: trees in, estimates out. Composition only; the mathematics is in the layers below."""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mcmcpost._core.errors import InputError, InputTypeError
from mcmcpost._core.precision import in_float64
from mcmcpost._core.status import Status
from mcmcpost.control import (
    AbstractControlVariate,
    Auto,
    ControlFunctional,
    Estimate,
    JointEstimate,
    PlainMean,
    SemiExact,
    SteinWeights,
    TaskInput,
    TrainedVectorValued,
    VectorValued,
    ZeroVariance,
    estimate_expectations,
    estimate_jointly,
    estimate_quantiles,
    solve_stein_weights,
    standard_coordinates,
)
from mcmcpost.io import check_tree, integrand_values, read_trace
from mcmcpost.kernels import AbstractKernel, InverseMultiquadric
from mcmcpost.scores import ScoreCheck, ScoreError, ScoreWarning
from mcmcpost.stein import kernel_stein_discrepancy as stein_discrepancy, stein_thin
from mcmcpost.trace import Trace, without_fixed

if TYPE_CHECKING:
    import pandas
    import xarray


METHODS: dict[str, AbstractControlVariate] = {
    "auto": Auto(),
    "plain": PlainMean(),
    "zv1": ZeroVariance(1),
    "zv2": ZeroVariance(2),
    "zv3": ZeroVariance(3),
    "cf": ControlFunctional(max_states=4_000),
    "secf": SemiExact(2, max_states=4_000),
}
"""Short names of methods, for the command line and ``method=``; kernels are fitted on at most 4,000 states."""


NO_GAIN = ("constant", "boundary")
"""Findings of the score gate under which no control variate can help: the status is ``plain``, not ``bad_scores``."""


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
    """Estimate posterior expectations with Stein control variates and honest Monte Carlo errors.

    Parameters
    ----------
    tree : a trace with scores, from `from_numpyro`, `attach_scores`, `from_arrays`, nutpie or `load_tree`.
    integrands : None for every variable of the posterior group; a list of variable names; an array (chain, draw[, p]);
        or a mapping from a name to such an array or to a function of one constrained draw (a dict of arrays).
    method : ``"auto"``, another name in `METHODS`, or an object such as ``ZeroVariance(degree=2)``.
    standardize : known (mean, sd) of the unconstrained draws, each a scalar or (d,), as for a prior; by default the
        sample's own moments.
    folds : of the cross-fitting; about eight by default, whole chains or contiguous blocks of them.
    allow_bad_scores : compute although the score gate fails; every status is then ``bad_scores``.
    fallback : return the plain mean where the controlled error is not smaller than its own. With few draws an error
        that is honest can hide a real gain: False returns the controlled mean, whose gain may then be below one.

    Returns
    -------
    Estimate : mean, mcse, gain, status, … arrays over the quantities, in the integrands' units.

    Raises
    ------
    ScoreError : the scores are not those of the draws, in a way that was recognised.
    ValueError, TypeError : input of a wrong shape, kind or name.

    Warns
    -----
    ScoreWarning : Stein's identity fails for a reason that was not recognised, or the chains have not converged. A
        control variate would then be biased by more than its error says, so plain means are returned, whatever the
        method; `allow_bad_scores` overrides.
    """
    asked = prepare(tree, integrands, method, allow_bad_scores)
    return estimate_prepared(asked, standardize=standardize, folds=folds, fallback=fallback)


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
    choice = VectorValued() if method is None else method
    if not isinstance(choice, (VectorValued, TrainedVectorValued)):
        raise InputTypeError("joint_expectation", "`method` to be a VectorValued", repr(method), "Or use expectation.")
    if not isinstance(tasks, Mapping):
        cure = 'Pass {"name": (tree, integrands)}.'
        raise InputTypeError("joint_expectation", "a dict from name to task", type(tasks).__name__, cure)
    if not tasks:
        raise InputError("joint_expectation", "at least one task", "none", 'Pass {"name": (tree, integrands)}.')
    inputs = {}
    for name, pair in tasks.items():
        if not (isinstance(pair, tuple) and len(pair) == 2):
            raise InputTypeError(
                "joint_expectation",
                f"task {name!r} to be a pair (tree, integrands)",
                type(pair).__name__,
                "Add None for the stored values.",
            )
        tree, integrands = pair
        try:
            check = _usable_scores(tree, allow_bad_scores)
        except ScoreError as error:
            raise ScoreError(f"joint_expectation: task {name!r}: {error}") from error
        failed = _identity_fails(check)
        labels, values = integrand_values(tree, integrands)
        bad = failed and (allow_bad_scores or check.pattern not in NO_GAIN)
        inputs[name] = TaskInput(read_trace(tree), labels, values, bad, not failed or allow_bad_scores)
    return in_float64(estimate_jointly)(inputs, choice, num_folds=folds, moments=standardize, fallback=fallback)


def summary(
    tree: "xarray.DataTree",
    integrands: Any = None,
    method: str | AbstractControlVariate = "auto",
    **options: Any,
) -> "pandas.DataFrame":
    """Return a table beside ``az.summary``: mean, sd, mcse, mean_cv, mcse_cv, gain, method, status, digits.

    Arguments are those of `expectation`; `digits` are the significant digits of `mean_cv` that its error supports.
    """
    return expectation(tree, integrands, method, **options).to_dataframe()


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
    ``name [probability]``; `mcse` is in the integrand's units. An indicator is rough: gains are modest, and where there
    is none the status is ``plain``.

    Raises
    ------
    ValueError : a probability outside (0, 1).
    """
    levels = np.atleast_1d(np.asarray(probabilities, float))
    if levels.ndim != 1 or not len(levels) or not ((levels > 0) & (levels < 1)).all():
        raise InputError("quantile", "probabilities inside (0, 1)", probabilities, "For example 0.05, 0.5.")
    levels = np.array(list(dict.fromkeys(levels.tolist())))  # a repeated one would be a repeated name
    asked = prepare(tree, integrands, method, allow_bad_scores)
    return in_float64(estimate_quantiles)(
        asked.trace, asked.names, asked.values, levels, asked.method, num_folds=folds, bad_scores=asked.bad_scores
    )


def stein_weights(
    tree: "xarray.DataTree",
    integrands: Any = None,
    method: ControlFunctional | SemiExact | None = None,
    *,
    standardize: tuple[Any, Any] | None = None,
    initial: SteinWeights | None = None,
    allow_bad_scores: bool = False,
) -> SteinWeights:
    """Compute one set of weights that serves every later expectation: Σ w f over chains and draws.

    w = A⁻¹1/(1ᵀA⁻¹1) for ``ControlFunctional()``, the default; polynomial features are integrated exactly too for
    ``SemiExact()``. `integrands` only tune the kernel. Keep them with ``weights.to_datatree(tree)``. The weights carry
    no honest error of their own: for that, use `expectation`. Beyond 6,000 states conjugate gradients stop once a
    product lowers the variance of the rule by less than a thousandth; `initial` are weights of the same draws, under
    a kernel or temperature nearby, to start them from.
    """
    check = _usable_scores(tree, allow_bad_scores)
    if _identity_fails(check) and not allow_bad_scores:
        raise InputError(
            "stein_weights", "scores that satisfy Stein's identity", check.message, "See allow_bad_scores."
        )
    values = integrand_values(tree, integrands).values
    return in_float64(solve_stein_weights)(
        _trace(tree), values, method or ControlFunctional(), moments=standardize, initial=initial
    )


class ThinnedDraws(NamedTuple):
    """Draws in the order in which Stein thinning chose them, with repeats.

    chain, draw : (size,) positions. discrepancy : (size,) kernel Stein discrepancy after each.
    """

    chain: np.ndarray
    draw: np.ndarray
    discrepancy: np.ndarray


def stein_thinning(
    tree: "xarray.DataTree", size: int, kernel: AbstractKernel | None = None, *, allow_bad_scores: bool = False
) -> ThinnedDraws:
    """Choose `size` draws whose equally weighted average follows the target best, greedily by Stein discrepancy.

    Riabiz et al. (2022, doi:10.1111/rssb.12503), Algorithm 1. It corrects burn-in and compresses a trace; where every
    draw is kept, `stein_weights` has smaller errors. `kernel` as for `kernel_stein_discrepancy`.
    """
    _usable_scores(tree, allow_bad_scores)
    trace = _trace(tree)
    found = in_float64(_thin)(trace, kernel, size)
    chain, draw = np.divmod(found.indices, trace.draws.shape[1])
    return ThinnedDraws(chain, draw, found.discrepancy)


def _thin(trace: Trace, kernel: AbstractKernel | None, size: int) -> Any:
    return stein_thin(kernel or _default_discrepancy_kernel(trace), *_standardised(trace), size)


def _default_discrepancy_kernel(trace: Trace) -> AbstractKernel:
    return InverseMultiquadric(np.sqrt(trace.draws.shape[-1]))


def _standardised(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Return draws and scores (n, d) in standard coordinates."""
    d = trace.draws.shape[-1]
    mean, lower = standard_coordinates(trace.draws)
    z = np.linalg.solve(lower, (trace.draws.reshape(-1, d) - mean).T).T
    return z, trace.scores.reshape(-1, d) @ lower


def kernel_stein_discrepancy(
    tree: "xarray.DataTree", kernel: AbstractKernel | None = None, *, weights: SteinWeights | None = None
) -> float:
    """Return the kernel Stein discrepancy between the draws and the target that the scores describe.

    √(Σᵢⱼ wᵢwⱼ k₀(xᵢ, xⱼ)), with equal weights by default, in standardised coordinates. Gorham and Mackey (2017,
    arXiv:1703.01717). Zero only for a perfect rule; memory is O(block·n).

    Parameters
    ----------
    kernel : on standardised coordinates; by default the inverse multiquadric (1 + ‖z−z'‖²/d)^(−1/2), which controls
        weak convergence.
    weights : Stein weights of this trace.
    """
    trace = _trace(tree)
    return float(in_float64(_discrepancy)(trace, kernel, None if weights is None else weights.values.reshape(-1)))


def _discrepancy(trace: Trace, kernel: AbstractKernel | None, weights: np.ndarray | None) -> Any:
    return stein_discrepancy(kernel or _default_discrepancy_kernel(trace), *_standardised(trace), weights=weights)


class Prepared(NamedTuple):
    """A question about a trace, resolved: what the gate found, and the method that it leaves."""

    check: ScoreCheck
    trace: Trace
    names: tuple[str, ...]
    values: Float[np.ndarray, "c n p"]
    method: AbstractControlVariate
    bad_scores: bool


def prepare(
    tree: "xarray.DataTree", integrands: Any, method: str | AbstractControlVariate, allow_bad_scores: bool
) -> Prepared:
    """Return the arrays and the method of a question, after the score gate."""
    choice = resolve_method(method)
    gate = check_tree if isinstance(choice, PlainMean) else _usable_scores
    check, trace = gate(tree, allow_bad_scores), _trace(tree)
    if check.pattern == "nonfinite":  # plain means do not depend on the scores, which are transformed all the same
        trace = trace._replace(scores=np.zeros_like(trace.scores))
    names, values = integrand_values(tree, integrands)
    failed = _identity_fails(check)
    if failed and not allow_bad_scores:
        choice = PlainMean()
    bad = failed and not (check.pattern in NO_GAIN and isinstance(choice, PlainMean))
    return Prepared(check, trace, names, values, choice, bad)


def estimate_prepared(
    asked: Prepared,
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    fallback: bool = True,
) -> Estimate:
    """Answer a prepared question; arguments as in `expectation`."""
    estimate = in_float64(estimate_expectations)(
        asked.trace,
        asked.names,
        asked.values,
        asked.method,
        num_folds=folds,
        moments=standardize,
        bad_scores=asked.bad_scores,
        fallback=fallback,
    )
    pairs = zip(estimate.names, estimate.status, strict=True)
    contradicted = [name for name, status in pairs if status is Status.BAD_SCORES and not asked.bad_scores]
    if contradicted:
        warnings.warn(
            f"The controlled means of {', '.join(contradicted)} contradict the plain ones by more than five standard "
            "errors: the scores may be of another density, or the chains have not seen the tails. The plain means "
            "are returned.",
            ScoreWarning,
            stacklevel=3,
        )
    return estimate


def _trace(tree: "xarray.DataTree") -> Trace:
    """Return the coordinates that move: features of a fixed one do not average to zero."""
    return without_fixed(read_trace(tree))


def _usable_scores(tree: "xarray.DataTree", allow_bad_scores: bool) -> ScoreCheck:
    """Run the score gate; scores that are not finite are of no use, whatever is allowed."""
    check = check_tree(tree, allow_bad_scores)
    if check.pattern == "nonfinite":
        raise ScoreError(check.message)
    return check


def _identity_fails(check: ScoreCheck) -> bool:
    """Return whether the gate found Stein's identity in doubt; too few draws to test it are no such finding."""
    return check.verdict != "pass" and check.pattern != "too_few_draws"


def resolve_method(method: str | AbstractControlVariate) -> AbstractControlVariate:
    """Return the method that a short name stands for; an object stands for itself."""
    if isinstance(method, AbstractControlVariate):
        return method
    if isinstance(method, str) and method in METHODS:
        return METHODS[method]
    raise InputError(
        "method", f"one of {', '.join(METHODS)} or a method object", repr(method), "See ZeroVariance, SemiExact."
    )
