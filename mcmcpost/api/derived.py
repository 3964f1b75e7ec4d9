"""Public functions of what is derived from expectations: spreads, correlations and any smooth function of means."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost._core.arguments import as_names, check_flags, check_function, check_kind
from mcmcpost._core.errors import InputError, InputTypeError
from mcmcpost._core.precision import in_float64
from mcmcpost.api.question import Question, contradicted, of_moving, pose, warn_of_contradiction
from mcmcpost.control import KINDS, AbstractControlVariate, Estimate, Smooth, estimate_derived, estimate_spread
from mcmcpost.io.integrands import NOT_TRACEABLE, tell_names

if TYPE_CHECKING:
    import xarray


def variance(
    tree: "xarray.DataTree",
    integrands: Any = None,
    method: str | AbstractControlVariate = "auto",
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
) -> Estimate:
    """Estimate posterior variances, named ``var(x)``, with their Monte Carlo errors; arguments as in `expectation`."""
    return _spread("variance", tree, integrands, method, allow_bad_scores, standardize, folds, fallback)


def standard_deviation(
    tree: "xarray.DataTree",
    integrands: Any = None,
    method: str | AbstractControlVariate = "auto",
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
) -> Estimate:
    """Estimate posterior standard deviations, named ``sd(x)``, with their Monte Carlo errors.

    Arguments are those of `expectation`. `mean_plain` is the standard deviation of the draws, and `mcse_plain` its
    error, ArviZ's ``mcse_sd``.
    """
    return _spread("sd", tree, integrands, method, allow_bad_scores, standardize, folds, fallback)


def covariance(
    tree: "xarray.DataTree",
    integrands: Any = None,
    method: str | AbstractControlVariate = "auto",
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
) -> Estimate:
    """Estimate the posterior covariances of all pairs of integrands, ``cov(x, y)`` and ``cov(x, x)``.

    Arguments are those of `expectation`; p integrands have p(p + 1)/2 covariances, in the order of the upper triangle.
    """
    return _spread("covariance", tree, integrands, method, allow_bad_scores, standardize, folds, fallback)


def correlation(
    tree: "xarray.DataTree",
    integrands: Any = None,
    method: str | AbstractControlVariate = "auto",
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
) -> Estimate:
    """Estimate the posterior correlations of all pairs of different integrands, ``corr(x, y)``.

    Arguments are those of `expectation`; p integrands have p(p − 1)/2 correlations, in the order of the upper triangle.
    That of an integrand that is constant is NaN, ``undefined``.
    """
    return _spread("correlation", tree, integrands, method, allow_bad_scores, standardize, folds, fallback)


def delta_method(
    tree: "xarray.DataTree",
    functions: Mapping[str, Callable[[dict[str, Any]], Any]],
    integrands: Any = None,
    method: str | AbstractControlVariate = "auto",
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
) -> Estimate:
    """Estimate smooth functions of posterior expectations, such as their ratios, with their Monte Carlo errors.

    ``delta_method(trace, {"share": lambda mean: mean["a"] / (mean["a"] + mean["b"])})`` is a function of E[a] and E[b];
    the expectation of a/(a + b) is another number, which `expectation` estimates. The error is the first-order one,
    from the draws and from how the control variates move, and the second-order one by the covariance of the
    expectations (van der Vaart 1998, *Asymptotic Statistics*, chapter 3).

    Parameters
    ----------
    tree, method, standardize, folds, allow_bad_scores, fallback : as in `expectation`.
    functions : from a name to a function of the expectations, a dict from the names of variables or integrands to
        arrays of the shape of one draw. It returns a number and is differentiated twice by JAX: write it in `jax.numpy`
        operations.
    integrands : as in `expectation`; what the functions do not use costs time.

    Returns
    -------
    Estimate : one quantity for each function. `mean_plain` is the function of the plain means; `sd` and `residuals` are
        those of the function's linear part at each draw.

    Raises
    ------
    ScoreError, ValueError, TypeError : as in `expectation`; a function does not return one real number.

    Warns
    -----
    ScoreWarning, UserWarning : as in `expectation`.
    """
    where, cure = "delta_method", 'Pass {"name": lambda mean: mean["a"] / mean["b"]}.'
    check_kind(where, "functions", functions, Mapping, cure)
    names = as_names(where, "functions", functions)
    if not names:
        raise InputError(where, "`functions`, at least one", "none", cure)
    for name, function in functions.items():
        check_function(where, name, function, 1, cure)
    question = pose(tree, integrands, method, allow_bad_scores, weighted=True)
    every = np.arange(len(question.names))[None]
    parts = [
        Smooth((name,), every, _of_means(name, function, question.shapes), steps=True)
        for name, function in functions.items()
    ]
    estimate = in_float64(estimate_derived)(
        question.trace,
        question.names,
        question.values,
        parts,
        question.method,
        events=question.events,
        **estimate_options(question, standardize, folds, fallback),
    )
    warn_of_contradiction(contradicted(estimate, known=question.bad_scores))
    return estimate


def _of_means(
    name: str, function: Callable[[dict[str, Any]], Any], shapes: Mapping[str, tuple[int, ...]]
) -> Callable[[Float[Array, " p"]], Float[Array, ""]]:
    """Return a user's function of a dict of means as one of their vector."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])

    def of_vector(means: Float[Array, " p"]) -> Float[Array, ""]:
        pieces = jnp.split(means, ends[:-1])
        named = {key: piece.reshape(shape) for (key, shape), piece in zip(shapes.items(), pieces, strict=True)}
        try:
            value = function(named)
        except NOT_TRACEABLE as error:
            expected, cure = f"`{name}` in operations of jax.numpy", "Write jnp.exp for np.exp, and jnp.where for if."
            raise InputError("delta_method", expected, type(error).__name__, cure) from error
        except KeyError as error:
            tell_names("delta_method", name, error, named)
            raise
        wanted, cure = f"`{name}` to return one real number", "Write a function for each number."
        if value is None or isinstance(value, str | bytes | Mapping):
            raise InputTypeError("delta_method", wanted, type(value).__name__, cure)
        array = jnp.asarray(value)
        if array.shape or jnp.issubdtype(array.dtype, jnp.complexfloating):
            raise InputError("delta_method", wanted, f"{array.dtype} of shape {array.shape}", cure)
        return array.astype(float)

    return of_vector


def _spread(
    kind: str,
    tree: "xarray.DataTree",
    integrands: Any,
    method: str | AbstractControlVariate,
    allow_bad_scores: bool,
    standardize: tuple[Any, Any] | None,
    folds: int | None,
    fallback: bool,
) -> Estimate:
    question = pose(tree, integrands, method, allow_bad_scores, weighted=True)
    estimate = answer_spread(question, kind, standardize=standardize, folds=folds, fallback=fallback)
    warn_of_contradiction(contradicted(estimate, known=question.bad_scores))
    return estimate


def answer_spread(
    question: Question,
    kind: str,
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    fallback: bool = True,
) -> Estimate:
    """Return the variances, standard deviations, … of the integrands of a question; `kind` is a name of `KINDS`."""
    check_flags(kind, fallback=fallback)
    if kind == "correlation" and len(question.names) < 2:
        raise InputError(kind, "at least two integrands", question.names[0], "Name two.")
    return in_float64(estimate_spread)(
        KINDS[kind],
        question.trace,
        question.names,
        question.values,
        question.method,
        events=question.events,
        **estimate_options(question, standardize, folds, fallback),
    )


def estimate_options(
    question: Question, standardize: tuple[Any, Any] | None, folds: int | None, fallback: bool
) -> dict[str, Any]:
    """Return the options of `mcmcpost.control.estimate_derived` for a question."""
    return {
        "num_folds": folds,
        "moments": of_moving(question.every, standardize),
        "bad_scores": question.bad_scores,
        "verified": question.check.verified,
        "fallback": fallback,
    }
