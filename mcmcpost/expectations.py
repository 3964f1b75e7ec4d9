"""Public functions of expectations: posterior means and quantiles, what is derived from them, and
the elpd.

Derived are spreads, correlations and any smooth function of means. The elpd is made of controlled
log predictive densities of the observations.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mcmcpost import control
from mcmcpost.core.arguments import (
    as_names,
    check_flags,
    check_function,
    check_kind,
    check_probabilities,
    check_trace_type,
)
from mcmcpost.core.errors import (
    REPRODUCED,
    TRUSTED,
    WORST_FIRST,
    InputError,
    InputTypeError,
    Status,
)
from mcmcpost.core.mcse import GOOD_KHAT, tail_draws
from mcmcpost.core.precision import NOT_TRACEABLE, in_float64, not_traceable
from mcmcpost.distributions import answer_distribution, distribution_of_chunks, resolve_interval
from mcmcpost.sample import (
    Question,
    contradicted,
    make_question,
    warn_of_contradiction,
    warn_of_parts,
)
from mcmcpost.sums import InChunks, as_moments, expectation_of_moments, is_summed
from mcmcpost.trees import Integrands, named_values
from mcmcpost.trees.convention import oriented
from mcmcpost.trees.integrands import tell_names

if TYPE_CHECKING:
    import pandas
    import xarray


def variance(
    tree: "xarray.DataTree",
    integrands: Any = None,
    method: str | control.AbstractControlVariate = "auto",
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
) -> control.Estimate:
    """Estimate posterior variances, named ``var(x)``, with their Monte Carlo errors; arguments as
    in `expectation`."""
    return _spread(
        "variance",
        tree,
        integrands,
        method,
        control.Options(standardize, folds, allow_bad_scores, fallback),
    )


def standard_deviation(
    tree: "xarray.DataTree",
    integrands: Any = None,
    method: str | control.AbstractControlVariate = "auto",
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
) -> control.Estimate:
    """Estimate posterior standard deviations, named ``sd(x)``, with their Monte Carlo errors.

    Arguments are those of `expectation`. `mean_plain` is the standard deviation of the draws, and
    `mcse_plain` its error, ArviZ's ``mcse_sd``, enlarged where few effective draws make it up.
    """
    return _spread(
        "sd",
        tree,
        integrands,
        method,
        control.Options(standardize, folds, allow_bad_scores, fallback),
    )


def covariance(
    tree: "xarray.DataTree",
    integrands: Any = None,
    method: str | control.AbstractControlVariate = "auto",
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
) -> control.Estimate:
    """Estimate the posterior covariances of all pairs of integrands, ``cov(x, y)`` and ``cov(x,
    x)``.

    Arguments are those of `expectation`; p integrands have p(p + 1)/2 covariances, in the order of
    the upper triangle.
    """
    return _spread(
        "covariance",
        tree,
        integrands,
        method,
        control.Options(standardize, folds, allow_bad_scores, fallback),
    )


def correlation(
    tree: "xarray.DataTree",
    integrands: Any = None,
    method: str | control.AbstractControlVariate = "auto",
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
) -> control.Estimate:
    """Estimate the posterior correlations of all pairs of different integrands, ``corr(x, y)``.

    Arguments are those of `expectation`; p integrands have p(p − 1)/2 correlations, in the order of
    the upper triangle. That of an integrand that is constant is NaN, ``undefined``.
    """
    return _spread(
        "correlation",
        tree,
        integrands,
        method,
        control.Options(standardize, folds, allow_bad_scores, fallback),
    )


def delta_method(
    tree: "xarray.DataTree",
    functions: Mapping[str, Callable[[dict[str, Any]], Any]],
    integrands: Any = None,
    method: str | control.AbstractControlVariate = "auto",
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
) -> control.Estimate:
    """Estimate smooth functions of posterior expectations, such as their ratios, with their Monte
    Carlo errors.

    ``delta_method(trace, {"share": lambda mean: mean["a"] / (mean["a"] + mean["b"])})`` is a
    function of E[a] and E[b]; the expectation of a/(a + b) is another number, which `expectation`
    estimates. The error is the first-order one, from the draws and from how the control variates
    move, and the second-order one by the covariance of the expectations (van der Vaart 1998,
    *Asymptotic Statistics*, chapter 3).

    Parameters
    ----------
    tree, method, standardize, folds, allow_bad_scores, fallback : as in `expectation`.
    functions : from a name to a function of the expectations, a dict from the names of variables or
        integrands to arrays of the shape of one draw. It returns a number and is differentiated
        twice by JAX: write it in `jax.numpy` operations.
    integrands : as in `expectation`; what the functions do not use costs time.

    Returns
    -------
    Estimate : one quantity for each function. `mean_plain` is the function of the plain means; `sd`
        and `residuals` are those of the function's linear part at each draw.

    Raises
    ------
    ScoreError, ValueError, TypeError : as in `expectation`; a function does not return one real
        number.

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
    options = control.Options(standardize, folds, allow_bad_scores, fallback)
    answers = Answers.of(tree, integrands, method, options)
    question, chunks = answers.question, answers.chunks
    # Any mean may enter a user's function: JAX finds the slopes, zero where it does not.
    every = np.arange(len(question.sample.names))[None]
    parts = [
        control.Smooth((name,), every, _of_means(name, function, question.shapes), steps=True)
        for name, function in functions.items()
    ]
    if chunks is None:
        estimate = in_float64(control.estimate_derived)(
            question.sample, parts, question.method, question.options
        )
    else:
        estimate = chunks.derived(parts)
    warn_of_contradiction(contradicted(estimate, known=question.options.bad_scores))
    return estimate


def _of_means(
    name: str, function: Callable[[dict[str, Any]], Any], shapes: Mapping[str, tuple[int, ...]]
) -> Callable[[Float[Array, " p"]], Float[Array, ""]]:
    """Return a user's function of a dict of means as one of their vector."""
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])

    def of_vector(means: Float[Array, " p"]) -> Float[Array, ""]:
        pieces = jnp.split(means, ends[:-1])
        named = {
            key: piece.reshape(shape)
            for (key, shape), piece in zip(shapes.items(), pieces, strict=True)
        }
        # It is traced: NumPy's functions and `if` fail in JAX's words, which do not name the user's
        # function.
        try:
            value = function(named)
        except NOT_TRACEABLE as error:
            raise not_traceable("delta_method", name, function, error) from error
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
    method: str | control.AbstractControlVariate,
    options: control.Options,
) -> control.Estimate:
    answers = Answers.of(tree, integrands, method, options)
    estimate = answers.spread(kind, alone=True)
    warn_of_contradiction(contradicted(estimate, known=answers.question.options.bad_scores))
    return estimate


@dataclass(frozen=True)
class Answers:
    """What a trace says to a question: from its draws in memory, or from sums over those in chunks.

    chunks : None where draws are in memory.
    """

    question: Question
    chunks: InChunks | None

    @classmethod
    def of(
        cls,
        tree: "xarray.DataTree",
        integrands: Any,
        method: str | control.AbstractControlVariate,
        options: control.Options,
        *,
        weighted: bool = True,
    ) -> "Answers":
        """Return them, after the score gate; draws with weights are refused unless `weighted`."""
        if is_summed(tree, method, options):
            chunks = InChunks.of(tree, integrands, method, options)
            return cls(chunks.question, chunks)
        return cls(make_question(tree, integrands, method, options, weighted=weighted), None)

    @property
    def size(self) -> tuple[int, int]:
        """The chains, and the draws of each."""
        # The question of a trace in chunks is about evenly spaced draws only.
        if self.chunks is not None:
            return self.chunks.layout.chains, self.chunks.layout.draws
        chains, draws, _ = self.question.every.draws.shape
        return chains, draws

    @cached_property
    def fits(self) -> control.Fits:
        """Those of the integrands, from draws in memory: spreads have the means among theirs."""
        question = self.question
        return in_float64(control.Fits.of)(question.sample, question.method, question.options)

    def expectation(self) -> control.Estimate:
        """Return the expectations of the integrands."""
        if self.chunks is not None:
            return self.chunks.expectation()
        return answer(self.question, self.fits)

    def spread(self, kind: str, *, alone: bool = False) -> control.Estimate:
        """Return their variances, standard deviations, … ; `kind` is a name of `KINDS`.

        alone : nothing else is asked, and one fit of means and products costs less than two.
        """
        question = self.question
        if kind == "correlation" and len(question.sample.names) < 2:
            raise InputError(kind, "at least two integrands", question.sample.names[0], "Name two.")
        if self.chunks is not None:
            return self.chunks.spreads(control.KINDS[kind])
        return in_float64(control.estimate_spread)(
            control.KINDS[kind],
            question.sample,
            question.method,
            question.options,
            None if alone else self.fits,
        )

    def distribution(self) -> control.Distribution:
        """Return their distributions."""
        return (
            answer_distribution(self.question)
            if self.chunks is None
            else distribution_of_chunks(self.chunks)
        )


def expectation(
    tree: "xarray.DataTree | control.TraceMoments",
    integrands: Any = None,
    method: str | control.AbstractControlVariate = "auto",
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
) -> control.Estimate:
    """Estimate posterior expectations, with their Monte Carlo errors, by Stein control variates.

    Parameters
    ----------
    tree : a trace with scores, from `from_numpyro`, `attach_scores`, `from_arrays`, nutpie or
        `load_tree`. Draws and scores in the chunks of dask, larger than memory, are summed chunk by
        chunk (docs/large_traces.md): no kernel is tried, and `residuals` are means over runs. Draws
        with weights, ``sample_stats.log_weight``, have self-normalised means and weighted control
        variates (docs/methods/weighted_draws.md). Or the sums of traces, from `moments`, or a tree
        that holds them: integrands are then names of quantities that were summed, and the method is
        that of the sums.
    integrands : None for every variable of the posterior group that is a number for every draw,
        with a warning of the others; a list of variable names; an array (chain, draw[, p]) or a
        function of one constrained draw (a dict of arrays), named ``f``; or a mapping from names to
        such. A function that compares two sides once, as ``draw["a"] / draw["b"] > 2``, is an event
        that gains as the distribution of what is compared (`distribution`).
    method : ``"auto"``, another name in `METHODS`, or an object such as ``ZeroVariance(degree=2)``.
    standardize : known (mean, sd) of the unconstrained draws, each a scalar or (d,), as for a
        prior; by default the sample's own moments.
    folds : of the cross-fitting, at most 1,000; about eight by default, whole chains or contiguous
        blocks of them.
    allow_bad_scores : compute although the score gate fails; every status is then ``bad_scores``.
    fallback : return the plain mean where its error is not larger than the controlled one. With few
        draws the estimate of the error can hide a real gain: False returns the controlled mean, and
        the gain may then be below one.

    Returns
    -------
    Estimate : mean, mcse, gain, status, … arrays over the quantities, in the integrands' units.
        Where the tree records how long sampling took (`sampling_time`, in seconds, an attribute
        that PyMC and ``mcmcpost sample`` write), ``info["worth"]`` says how long it would take for
        the same errors.

    Raises
    ------
    ScoreError : the scores are not those of the draws, in a way that was recognised.
    ValueError, TypeError : input of a wrong shape, kind or name; `VectorValued` for weighted draws.

    Warns
    -----
    ScoreWarning : Stein's identity fails for a reason that was not recognised, or the chains have
        not converged. A control variate would then be biased by more than its error says, so plain
        means are returned, whatever the method; `allow_bad_scores` overrides.
    ConvergenceWarning : the chains, or their halves, disagree about the mean or the spread of an
        integrand (R-hat), transitions of the sampler diverged, or Pareto k̂ of the weights is above
        0.7; the status is then ``heavy_tail``.
    """
    options = control.Options(standardize, folds, allow_bad_scores, fallback)
    # Sums have no draws: what they are of was chosen when they were made.
    if (sums := as_moments(tree)) is not None:
        return expectation_of_moments(sums, integrands, method, options)
    assert not isinstance(tree, control.TraceMoments)
    return Answers.of(tree, integrands, method, options).expectation()


def summary(
    tree: "xarray.DataTree | control.TraceMoments",
    integrands: Any = None,
    method: str | control.AbstractControlVariate = "auto",
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
    sd: bool = False,
    median: bool = False,
    quantiles: Sequence[float] = (),
    ci_prob: float | None = None,
    ci_kind: Literal["eti", "hdi"] | None = None,
) -> "pandas.DataFrame":
    """Return a table to join to ``az.summary``: mcse, mean_cv, mcse_cv, gain, method, status,
    digits.

    ``az.summary(trace).join(mp.summary(trace))`` has the plain mean and standard deviation too, as
    has ``expectation(trace).to_dataframe()``. ArviZ does not know the weights of weighted draws:
    take the latter for them.

    Parameters
    ----------
    tree, integrands, method, standardize, folds, allow_bad_scores, fallback : as in `expectation`.
    sd : also `sd_cv` and `mcse_sd_cv`, the controlled standard deviation and its error; see
        `standard_deviation`.
    median : also `median_cv` and `mcse_median_cv`.
    quantiles : probabilities π whose quantiles are wanted too, in columns ``q{π}_cv`` and
        ``mcse_q{π}_cv``; see `quantile`, which takes no `standardize` and no `fallback`, as do the
        median and the interval.
    ci_prob, ci_kind : also the bounds of the interval of that probability, ``"eti"`` with equal
        tails or ``"hdi"``, the shortest, in the columns of ``az.summary`` with ``_cv``, as
        `eti89_lb_cv` and `mcse_eti89_lb_cv`; see `Distribution.interval`. Where one is given the
        other is that of ``arviz_base.rcParams``. By default there is none, since it takes longer
        than the means.

    Returns
    -------
    DataFrame : a row for each quantity. `mcse` is the plain error and `gain` (mcse/mcse_cv)²;
        `digits` are the significant digits of `mean_cv` that its error supports.
    """
    check_flags("summary", sd=sd, median=median)
    levels = check_probabilities(quantiles) if np.size(quantiles) else np.empty(0)
    interval = resolve_interval("summary", ci_prob, ci_kind)
    options = control.Options(standardize, folds, allow_bad_scores, fallback)
    if (sums := as_moments(tree)) is not None:
        # Squares and events of theirs would have to be sums, too.
        if sd or median or interval or len(levels):
            cure = 'Sum the squares too, {"x2": lambda draw: draw["x"] ** 2}, or ask the trace.'
            raise InputError("summary", "means alone of sums", "what needs the draws", cure)
        estimate = expectation_of_moments(sums, integrands, method, options)
        return estimate.to_dataframe().drop(columns=["mean", "sd"])
    assert not isinstance(tree, control.TraceMoments)
    # One question for all columns: the score gate, R-hat and their warnings come once.
    answers = Answers.of(tree, integrands, method, options)
    table = answers.expectation().to_dataframe().drop(columns=["mean", "sd"])
    if sd:
        spread = answers.spread("sd")
        table["sd_cv"], table["mcse_sd_cv"] = spread.mean, spread.mcse
    if not (median or interval or len(levels)):
        return table
    every = np.array(list(dict.fromkeys([*([0.5] if median else []), *levels])))
    inverse, ends = answers.distribution().quantiles_and_interval(
        every if len(every) else None, interval
    )

    def add(column: str, estimate: control.Estimate | None, place: int) -> None:
        assert estimate is not None
        rows = slice(place, None, len(estimate.names) // len(table))  # those of one in turn
        table[f"{column}_cv"], table[f"mcse_{column}_cv"] = estimate.mean[rows], estimate.mcse[rows]

    # Columns in the order of `az.summary`: median, interval, quantiles.
    if median:
        add("median", inverse, 0)
    if ends is not None:
        for place, name in enumerate(ends.names[:2]):
            add(name.rpartition("[")[2].rstrip("]"), ends, place)
    for text, level in zip(control.level_texts(levels), levels.tolist(), strict=True):
        add(f"q{text}", inverse, every.tolist().index(level))
    return table


def pool_estimates(*estimates: "control.Estimate | xarray.DataTree") -> control.Estimate:
    """Combine estimates of the same quantities from independent chains of one posterior, without
    their draws.

    Chains that are added to a finished reduction cost their own reduction only. The pooled means
    are those of the parts, weighted by their draws where all were made by the same method, and by
    their errors elsewhere; see `mcmcpost.control.estimate.pool`. A joint reduction of all chains
    knows a little more, since its fits see all draws.

    Parameters
    ----------
    estimates : of `expectation`, at least two, or trees that ``estimate.to_datatree`` returned, as
        `load_tree` reads them. Names and the number of draws of a chain have to be the same.

    Returns
    -------
    Estimate : residuals have the chains of all parts, one after the other; `info` has the draws of
        each part.

    Raises
    ------
    ValueError, TypeError : fewer than two; other names or numbers of draws; a chain in two of them;
        what is no estimate.

    Warns
    -----
    ConvergenceWarning : a part contradicts the pooled estimate.
    """
    where = "pool_estimates"
    given: Sequence[object] = estimates
    for one in given:
        if not (isinstance(one, control.Estimate) or hasattr(one, "children")) or isinstance(
            one, type
        ):
            cure = "Pass what expectation() returned"
            cure += f", or load_tree({one!r})." if isinstance(one, str) else "."
            expected = "estimates, each an Estimate or a tree that has one"
            raise InputTypeError(where, expected, type(one).__name__, cure)
    parts = [
        one if isinstance(one, control.Estimate) else control.stored_estimate(one)
        for one in estimates
    ]
    if len(parts) < 2:
        raise InputError(
            where,
            "at least two estimates",
            len(parts),
            "Pass those of the old and of the new chains.",
        )
    for estimate in parts[1:]:
        if estimate.names != parts[0].names:
            other = sorted({*estimate.names} ^ {*parts[0].names}) or "another order"
            raise InputError(
                where,
                "estimates of the same quantities",
                other,
                "Ask each for the same integrands.",
            )
        if estimate.residuals.shape[1] != parts[0].residuals.shape[1]:
            draws = f"{parts[0].residuals.shape[1]} and {estimate.residuals.shape[1]}"
            cure = "Reduce as many draws of each chain: tree.isel(draw=slice(n))."
            raise InputError(where, "estimates from chains of one length", draws, cure)
    # Told by the residuals of its draws, since files of estimates have no draws.
    shared = control.repeated_chain(parts)
    if shared is not None:
        got = f"one of the chains of estimate {shared[0]} in estimate {shared[1]}, counting from 0"
        raise InputError(where, "every chain once", got, "Pass estimates of different chains.")
    pooled = control.pool(parts)
    # Averaging what contradicts itself would hide it: the mean is returned, and the warning names
    # it.
    contradictory = [
        name
        for name, bad in zip(pooled.names, control.contradicting(parts, pooled), strict=True)
        if bad
    ]
    warn_of_parts("The estimates", contradictory)
    return pooled


def answer(question: Question, fits: control.Fits | None = None) -> control.Estimate:
    """Return the expectations of the integrands of a question, whose `fits` may be known."""
    sample, method, options = question.sample, question.method, question.options
    known = in_float64(control.Fits.of)(sample, method, options) if fits is None else fits
    estimate = in_float64(known.expectations)(sample, options)
    if question.margins:
        estimate = in_float64(control.by_margins)(
            estimate, sample, question.margins, method, options
        )
    warn_of_contradiction(contradicted(estimate, known=question.options.bad_scores))
    return estimate if question.seconds is None else control.with_worth(estimate, question.seconds)


LOG_LIKELIHOOD = "log_likelihood"

WITHOUT_KERNELS = control.Auto(kernel=False)


def elpd(
    tree: "xarray.DataTree",
    var_name: str | None = None,
    method: str | control.AbstractControlVariate = WITHOUT_KERNELS,
    *,
    standardize: tuple[Any, Any] | None = None,
    folds: int | None = None,
    allow_bad_scores: bool = False,
    fallback: bool = True,
) -> control.Estimate:
    """Estimate the expected log predictive density by leaving one observation out, with its Monte
    Carlo error.

    With ℓᵢ the log likelihood of observation i, log p(yᵢ | y₋ᵢ) = −log E[exp(−ℓᵢ)] under the
    posterior (Gelfand, Dey and Chang 1992), and its density under the posterior of all observations
    is log E[exp ℓᵢ]. Both are functions of expectations, to which control variates apply.
    ``az.loo`` estimates the first by Pareto-smoothed weights (Vehtari, Gelman and Gabry 2017,
    doi:10.1007/s11222-016-9696-4); its `se` is not a Monte Carlo error but that of the observations
    as a sample.

    Parameters
    ----------
    tree : a trace with scores and a group `log_likelihood`, a value for every draw and observation.
    var_name : the variable of that group; may be left out where there is one.
    method : by default `Auto` without kernels, which take seconds for each observation.
    standardize, folds, allow_bad_scores, fallback : as in `expectation`.

    Returns
    -------
    Estimate : of ``elpd_loo``, ``lppd`` and ``p_loo``, their difference, for all n observations
        together, then for each one of ``elpd_loo(y[i])`` and ``lppd(y[i])``. It is an ``ELPDData``
        too, as ``az.compare({"a": elpd(a), "b": elpd(b)})`` takes. An observation with so
        much influence that exp(−ℓᵢ) has a heavy tail has the status ``heavy_tail``: take that of
        ``az.loo``, or fit the model without it. Memory is that of (2n)² numbers.

    Raises
    ------
    ScoreError, ValueError, TypeError : as in `expectation`; no log likelihood, or several and none
        is named.
    """
    where = "elpd"
    check_kind(
        where, "var_name", var_name, (str, None), "It is a variable of the group `log_likelihood`."
    )
    check_trace_type(where, tree)
    pointwise = _log_likelihood(tree, var_name)
    values = pointwise.values
    # e^ℓ of a thousand terms underflows: ratios to the largest and the smallest draw do not, and
    # their logs come back.
    # Of draws that are not NaN: one would be in the ratios of all.
    best, worst = (end.reduce(values, axis=(0, 1)) for end in (np.fmax, np.fmin))
    with np.errstate(invalid="ignore"):
        scaled = np.exp(values - best), np.exp(worst - values)
    densities = {f"p({name})": scaled[0][..., i] for i, name in enumerate(pointwise.names)}
    densities |= {f"1/p({name})": scaled[1][..., i] for i, name in enumerate(pointwise.names)}
    options = control.Options(standardize, folds, allow_bad_scores, fallback)
    question = make_question(tree, densities, method, options, weighted=True)
    # Sums over observations are functions of all 2n means, whose errors are correlated: hence
    # memory of (2n)².
    n = len(pointwise.names)
    direct, inverse = np.arange(n), np.arange(n) + n
    parts = [
        control.Smooth(("elpd_loo",), inverse[None], _minus_log_product),
        control.Smooth(("lppd",), direct[None], _log_product),
        control.Smooth(("p_loo",), np.concatenate([direct, inverse])[None], _log_product),
        control.Smooth(
            tuple(f"elpd_loo({name})" for name in pointwise.names),
            inverse[:, None],
            _minus_log_product,
        ),
        control.Smooth(
            tuple(f"lppd({name})" for name in pointwise.names), direct[:, None], _log_product
        ),
    ]
    # a log likelihood that never changes is that of a masked observation, and no event that was not
    # seen
    sample = question.sample._replace(events=np.zeros(2 * n, bool), unseen=np.zeros(2 * n, bool))
    estimate = in_float64(control.estimate_derived)(
        sample, parts, question.method, question.options
    )
    with np.errstate(invalid="ignore"):
        shift = np.concatenate([[worst.sum(), best.sum(), (best - worst).sum()], worst, best])
    # The ratios' logs, and what was divided by.
    moved = {
        name: getattr(estimate, name) + shift for name in ("mean", "mean_plain", "mean_crossfit")
    }
    alone = [_few_decide(one) for one in scaled[::-1]]  # of 1/p and of p
    # Totals are as doubtful as the worst of their observations.
    heavy = np.concatenate([[alone[0].any(), alone[1].any(), np.any(alone)], *alone])
    status = tuple(
        Status.HEAVY_TAIL if h and s in TRUSTED else s
        for h, s in zip(heavy, estimate.status, strict=True)
    )
    # p_loo is made of the other two: where the error of one may be far too small, so is its own.
    doubtful = [s for s in status[:2] if s not in TRUSTED and s not in REPRODUCED]
    status = (*status[:2], min((status[2], *doubtful), key=WORST_FIRST.index), *status[3:])
    shifted = estimate._replace(**moved, residuals=estimate.residuals + shift, status=status)
    return _comparable(shifted)


def _comparable(estimate: control.Estimate) -> control.Estimate:
    """Return an estimate of `elpd` that ``az.compare`` takes, which asks for its own class."""
    cls: type[control.Estimate] = _comparable_class()
    return cls(*estimate)


@cache
def _comparable_class() -> Any:
    """Return a class of estimates that are ``ELPDData`` too; made late, since ArviZ is slow to
    import."""
    from arviz_stats.utils import ELPDData
    from xarray import DataArray

    class Elpd(control.Estimate, ELPDData):
        kind, scale = "loo", "log"
        elpd = property(lambda self: float(self.mean[0]))
        p = property(lambda self: float(self.mean[2]))
        elpd_i = property(lambda self: DataArray(self.mean[3 : 3 + self.n_data_points]))
        se = property(lambda self: float(np.sqrt(self.n_data_points * np.var(self.elpd_i))))
        n_data_points = property(lambda self: (len(self.names) - 3) // 2)
        n_samples = property(lambda self: self.residuals[..., 0].size)
        good_k = property(lambda self: min(1 - 1 / np.log10(self.n_samples), GOOD_KHAT))
        warning = property(lambda self: bool(np.isinf(self.pareto_k).any()))
        # k̂ is known to be too large, or not at all.
        pareto_k = property(
            lambda self: DataArray(
                [
                    np.inf if status is Status.HEAVY_TAIL else np.nan
                    for status in self.status[3 : 3 + self.n_data_points]
                ]
            )
        )

        def __init__(self, *_: Any, **__: Any) -> None:
            """Set nothing of ArviZ's: the tuple has the values."""

        def __reduce__(self) -> Any:
            # Pickle finds no class of a function by its name.
            return _comparable, (control.Estimate(*self),)

    return Elpd


def _log_product(means: Float[Array, " r"]) -> Float[Array, ""]:
    return jnp.log(means).sum()


def _minus_log_product(means: Float[Array, " r"]) -> Float[Array, ""]:
    return -_log_product(means)


def _few_decide(values: Float[np.ndarray, "c n p"]) -> Bool[np.ndarray, " p"]:
    """Return where all but a few draws are zero beside the largest: no tail is left whose k̂ could
    be told."""
    return (values > 0).sum(axis=(0, 1)) < tail_draws(values.shape[0] * values.shape[1])


def _log_likelihood(tree: "xarray.DataTree", var_name: str | None) -> Integrands:
    """Return the log likelihoods of the observations, (c, n, p)."""
    group = tree.children.get(LOG_LIKELIHOOD)
    names = [] if group is None else [str(name) for name in group.data_vars]
    if not names or group is None:
        cure = (
            "Keep it when sampling: from_numpyro(mcmc, log_likelihood=True), "
            "pm.compute_log_likelihood(trace)."
        )
        raise InputError(
            "elpd",
            "a group `log_likelihood` with a variable",
            ", ".join(tree.children) or "none",
            cure,
        )
    if var_name is None and len(names) > 1:
        raise InputError(
            "elpd", "`var_name` where there are several variables", ", ".join(names), "Name one."
        )
    name = names[0] if var_name is None else var_name
    if name not in names:
        raise InputError("elpd", f"`var_name` among {', '.join(names)}", name, "Name one of them.")
    return named_values(oriented("elpd", group.to_dataset()[name]))
