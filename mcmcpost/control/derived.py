"""Smooth functions of expectations, by the delta method on the draws: standard deviations,
correlations, ratios."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.control.estimate import Estimate, Fits, assemble, covariance_of, rescaled
from mcmcpost.control.method import (
    ROUNDING,
    AbstractControlVariate,
    FoldFit,
    PlainMean,
    columnwise,
    concatenate_fits,
    mean_of_residuals,
)
from mcmcpost.control.problem import Options, Problem, Sample, sd_over_draws
from mcmcpost.control.standard_errors import PER_PARTICIPANT, plain_means
from mcmcpost.control.trace_moments import TraceMoments
from mcmcpost.core.arguments import check_size
from mcmcpost.core.errors import REPRODUCED, TRUSTED, WORST_FIRST, Status
from mcmcpost.core.mcse import mcse_mean, mean_over_draws, participants


class Smooth(NamedTuple):
    """Some quantities that are one function of different expectations.

    names : q labels.
    inputs : (q, r) the expectations that each is a function of.
    function : of the r expectations, an array (r,), to the value; JAX differentiates it twice.
    steps : whether it may have steps, as a function of a user's.
    """

    names: tuple[str, ...]
    inputs: Int[np.ndarray, "q r"]
    function: Callable[[Float[Array, " r"]], Float[Array, ""]]
    steps: bool = False


class Expansion(NamedTuple):
    """Functions of p expectations about a point, to second order.

    value : (q,), NaN where the slope is not finite, or is zero beside a jump.
    slope : (q, p) of all expectations, zero for those that a function does not use.
    curvature : (q,) standard error of the second-order term ½ δᵀHδ, its mean included, for errors δ
        of the expectations with the covariance C: its second moment is ½ tr(HCHC) + (½ tr HC)².
    """

    value: Float[np.ndarray, " q"]
    slope: Float[np.ndarray, "q p"]
    curvature: Float[np.ndarray, " q"]


def expand(
    parts: Sequence[Smooth], point: Float[np.ndarray, " p"], covariance: Float[np.ndarray, "p p"]
) -> Expansion:
    """Return the expansion of all quantities about the expectations `point`, whose errors have this
    covariance."""

    values, slopes, moments = [], [], []
    for formula in parts:
        # A covariance that is unknown adds nothing to the curvature; the error is NaN by its own
        # part.
        input_covariance = np.nan_to_num(
            covariance[formula.inputs[:, :, None], formula.inputs[:, None, :]]
        )
        value, slope_of_inputs, moment = map(
            np.asarray,
            _program_of(formula.function, formula.steps)(point[formula.inputs], input_covariance),
        )
        moments.append(moment)
        values.append(value)
        wide = np.zeros((len(formula.names), len(point)))
        # `add.at`: a function may use one expectation twice, as corr(x, x) does.
        np.add.at(wide, (np.arange(len(wide))[:, None], formula.inputs), slope_of_inputs)
        slopes.append(wide)
    value, slope = np.concatenate(values), np.concatenate(slopes)
    # A slope that is not finite has no linear part: the quantity is undefined, not exact.
    smooth = np.isfinite(slope).all(axis=1) & ~np.isnan(value)
    return Expansion(
        value=np.where(smooth, value, np.nan),
        slope=np.where(smooth[:, None], slope, 0.0),
        curvature=np.sqrt(np.maximum(np.concatenate(moments), 0.0)),
    )


# one for the estimates and the plain means, and for later calls with the same function
@lru_cache(maxsize=64)
def _program_of(
    function: Callable[[Array], Array], steps: bool
) -> Callable[[Float[np.ndarray, "q r"], Float[np.ndarray, "q r r"]], tuple[Array, Array, Array]]:
    """Return one compiled program for value, slope and the second moment of the second-order term
    of a function.

    Its arguments are points and the covariances of their errors. The value is NaN where `steps`,
    slope and moment are zero, and the function has another value three errors from its point.
    """

    def about(
        at: Float[Array, " r"], covariance: Float[Array, "r r"]
    ) -> tuple[Float[Array, ""], Float[Array, " r"], Float[Array, ""]]:
        value, slope = jax.value_and_grad(function)(at)
        # With M = HC: ½ tr(HCHC) + (½ tr HC)², section 2, Functions of expectations.
        product = jax.hessian(function)(at) @ covariance
        moment = 0.5 * jnp.sum(product * product.T) + (0.5 * jnp.trace(product)) ** 2
        if steps:
            unit = jnp.eye(len(at))
            # The value three errors away along each axis tells a step, of which slope and curvature
            # are zero.
            directions = jnp.concatenate([jnp.zeros((1, len(at))), unit, -unit])
            shifted = jax.vmap(
                lambda direction: function(
                    at + 3.0 * jnp.sqrt(jnp.diagonal(covariance)) * direction
                )
            )(directions)
            flat = (slope == 0).all() & (moment == 0)
            value = jnp.where(flat & (shifted != shifted[0]).any(), jnp.nan, value)
        return value, slope, moment

    return jax.jit(jax.vmap(about))


def estimate_derived(
    sample: Sample,
    parts: Sequence[Smooth],
    method: AbstractControlVariate,
    options: Options,
    fits: Fits | None = None,
) -> Estimate:
    """Estimate smooth functions of the expectations of p integrands.

    fits : by the method, of the first integrands in units of their own, where they are known.

    The integrands are fitted once. A function g of their expectations μ is then the expectation of
    its linearisation about their estimates, h = g(μ̂) + ∇g(μ̂)ᵀ(f − μ̂), whose control variate is
    ∇gᵀ times theirs; so that its error, the choice between it and the plain mean, and its status
    are those of any other integrand (the delta method, applied to draws and refits and not to a
    covariance). The error includes the second-order term; see `Expansion`.

    Returns
    -------
    Estimate : of all quantities of all `parts`, in order. `mean_plain` is g of the plain means;
        `sd` and `residuals` are those of h.
    """
    options.check(sample.trace)
    check_size("functions of expectations", "integrands", sample.values)
    weights, source = sample.trace.weights, sample.problem(options)
    terms = None if source is None else _crossfit(source, sample, method, fits)
    # The means of the fits, believed or not, as h has the controls of all of them. A point between
    # the plain mean of one input and the controlled one of another is near neither estimate.
    fitted = options._replace(fallback=False, bad_scores=True)
    means = assemble(sample, fitted, source, terms)
    about = expand(parts, means.mean, means.covariance)
    at_plain = expand(
        parts, means.mean_plain, covariance_of(sample.values, means.mcse_plain, weights)
    )
    # Fits may be as wrong as a variance below zero, and the plain value stands; so may plain means.
    lost = np.isnan(about.value) & ~np.isnan(at_plain.value)
    undefined = np.isnan(at_plain.value) & ~np.isnan(about.value)
    about = Expansion(
        value=np.where(lost, at_plain.value, about.value),
        slope=np.where(lost[:, None], at_plain.slope, about.slope),
        curvature=np.where(lost, np.inf, about.curvature),
    )
    fixed = sample.finite & ~sample.varying  # what is left of a constant is rounding
    # h = g(μ̂) + ∇gᵀ(f − μ̂), whose refits and residuals are ∇gᵀ times those of f.
    series, plain_series = (
        linear_combinations(sample.values - mean, np.where(fixed, 0.0, expansion.slope))
        + expansion.value
        for mean, expansion in ((means.mean, about), (means.mean_plain, at_plain))
    )
    if lost.any():
        series = np.where(lost, plain_series, series)
    labels = tuple(name for formula in parts for name in formula.names)
    linear = Sample.of(sample.trace, labels, series, np.zeros(len(labels), bool), sample.states)
    # as those of the sample: below, squares of errors are added
    linear = linear._replace(units=np.ones(len(labels)))
    # of what was not seen, which has no part in the series
    constant_error = np.where(sample.varying, 0.0, means.mcse)
    unseen, unseen_plain = (
        linear_combinations(constant_error**2, expansion.slope**2)
        for expansion in (about, at_plain)
    )
    # In squares: the error of the linear part, the second-order term, and what was not seen.
    beyond = np.sqrt(about.curvature**2 + unseen)
    plain, variance_plain = plain_means(linear), mcse_mean(plain_series, weights) ** 2
    moves = plain_series if weights is None else weights.influence(plain_series)
    flat, curved = moves.reshape(-1, len(labels)), at_plain.curvature > 0
    variance_plain *= skew_inflation(flat, variance_plain, len(flat), curved)
    mcse_plain = np.sqrt(variance_plain + at_plain.curvature**2 + unseen_plain)
    mcse_plain = np.where(np.isnan(plain.mcse), np.nan, np.where(undefined, np.inf, mcse_plain))
    problem, fit = linear.problem(options), None
    if source is not None and terms is not None and problem is not None:
        fit = image(terms, source, problem, about.slope[np.ix_(linear.columns, sample.columns)])
        fit = fit._replace(doubt=np.hypot(fit.doubt, beyond[linear.columns] / problem.scale))
    estimate = assemble(linear, options, problem, fit, plain._replace(mcse=mcse_plain))
    constant = linear.finite & ~linear.varying  # the slope is zero
    with np.errstate(invalid="ignore"):
        # A constant has no residuals to judge by: the smaller error decides.
        controlled = np.where(
            constant, beyond < mcse_plain, [label != PlainMean().label for label in estimate.method]
        )
    mcse_plain = np.where(undefined, np.nan, mcse_plain)
    mcse = np.where(controlled, np.where(constant, beyond, estimate.mcse), mcse_plain)
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = np.where(controlled, (mcse_plain / mcse) ** 2, estimate.gain)
        rounded = mcse <= ROUNDING * (np.abs(about.value) + estimate.sd)
    used = " + ".join(dict.fromkeys(label for label in means.method if label != PlainMean().label))
    status = np.array(estimate.status, dtype=object)
    # the linear part is exact, and the quantity is not
    changed = np.isin(status, REPRODUCED) & ~rounded
    status[changed & controlled] = Status.CONTROLLED
    status[changed & ~controlled] = Status.BAD_SCORES if options.bad_scores else Status.PLAIN
    with np.errstate(invalid="ignore"):
        # Mostly the error of an unseen event: the status says so, not how it was combined.
        status[unseen > 0.5 * mcse**2] = Status.UNSEEN
    return estimate._replace(
        mean=np.where(controlled, estimate.mean, at_plain.value),
        mcse=mcse,
        gain=gain,
        status=tuple(status),
        method=tuple(
            used if flat else label
            for flat, label in zip(constant & controlled, estimate.method, strict=True)
        ),
        mean_plain=at_plain.value,
        mcse_plain=mcse_plain,
        covariance=covariance_of(estimate.residuals, mcse, weights),
    )


def _crossfit(
    problem: Problem, sample: Sample, method: AbstractControlVariate, fits: Fits | None
) -> FoldFit:
    """Return the fits of the integrands of a problem, those that are known without fitting them
    again."""
    if fits is None or fits.terms is None:
        return method.crossfit(problem)
    columns = sample.columns
    known = columns < len(fits.place)
    places = np.searchsorted(fits.distinct.columns, fits.place[columns[known]])
    before = columnwise(lambda field: field[..., places], fits.terms)
    if known.all():
        return before
    return concatenate_fits([before, method.crossfit(problem.select(np.flatnonzero(~known)))])


def skew_inflation(
    series: Float[np.ndarray, "m q"],
    variance: Float[np.ndarray, " q"],
    size: int,
    curved: Bool[np.ndarray, " q"],
) -> Float[np.ndarray, " q"]:
    """Return 1 + 3/P, by which the error variance of plain means of linear parts is enlarged where
    the function is curved.

    A square, as in a standard deviation, is skewed, and a few draws make up its error: where its
    tail was hardly visited, estimate and error are both too small. The mean square of t-statistics
    of n independent draws with skewness γ is 1 + 2(1 + γ²)/n, where 1 + γ² is at most n/P. Nor is
    the effective size known. A linear function of means is the mean of that function, and has the
    error of `expectation`.

    Parameters
    ----------
    series : the linear parts, of weighted draws their influence, at the draws or at some of them.
    variance : of their means over `size` draws. P is the participants among as many effective draws
        as that tells, at most all.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        effective = np.fmin(series.var(axis=0) / variance, size)
        inflation = 1 + PER_PARTICIPANT / (effective * participants(series) / len(series))
    return np.where(curved, inflation, 1.0)


ROUNDED = 1e-14
"""Relative error of a function of sums that are exact."""


def derived_of_sums(sums: TraceMoments, parts: Sequence[Smooth], options: Options) -> Estimate:
    """Return smooth functions of the expectations of the quantities that were summed, by the delta
    method.

    As `estimate_derived`, but the error is that of the linear part by the covariance of the
    expectations, which residuals over runs tell, where draws are not at hand. `sd` is that of the
    linear part at the draws that are kept.
    """
    means = sums.estimate(options)
    about = expand(parts, means.mean, means.covariance)
    plain_covariance = covariance_of(sums.rows(), means.mcse_plain)
    at_plain = expand(parts, means.mean_plain, plain_covariance)
    residuals = linear_combinations(means.residuals - means.mean, about.slope) + about.value

    def linear_variance(
        expansion: Expansion, covariance: Float[np.ndarray, "p p"]
    ) -> Float[np.ndarray, " q"]:
        covariance = np.nan_to_num(covariance)
        linear = np.einsum("qi,ij,qj->q", expansion.slope, covariance, expansion.slope)
        return np.maximum(linear, 0.0)

    def error(expansion: Expansion, linear: Float[np.ndarray, " q"]) -> Float[np.ndarray, " q"]:
        rounding = ROUNDED * expansion.value  # NaN where there is no value
        return np.sqrt(linear + expansion.curvature**2 + rounding**2)

    variance_plain = linear_variance(at_plain, plain_covariance)
    kept, curved = linear_combinations(sums.sample(), at_plain.slope), at_plain.curvature > 0
    variance_plain *= skew_inflation(kept, variance_plain, sums.num_draws, curved)
    mcse = error(about, linear_variance(about, means.covariance))
    mcse_plain = error(at_plain, variance_plain)
    # What most of the error comes from says how it was found.
    share = np.abs(about.slope) * np.nan_to_num(means.mcse)
    from_term = share.argmax(axis=1)
    used = mcse < mcse_plain
    status, method = [], []
    for k, j in enumerate(from_term):
        term_status = means.status[j] if used[k] or means.status[j] not in TRUSTED else Status.PLAIN
        term_status = (
            Status.CONTROLLED
            if term_status in REPRODUCED and about.curvature[k] > 0
            else term_status
        )
        constant = not np.any(share[k]) and mcse[k] == 0
        status.append(
            Status.UNDEFINED if np.isnan(mcse[k]) else Status.CONSTANT if constant else term_status
        )
        method.append(means.method[j] if used[k] else PlainMean().label)
    mean, mcse = np.where(used, about.value, at_plain.value), np.where(used, mcse, mcse_plain)
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = np.where(used, (mcse_plain / mcse) ** 2, 1.0) + 0 * mcse
    return Estimate(
        names=tuple(name for formula in parts for name in formula.names),
        mean=mean,
        mcse=mcse,
        gain=gain,
        variance_ratio=gain,
        status=tuple(status),
        method=tuple(method),
        sd=linear_combinations(sums.sample(), about.slope).std(axis=0),
        mean_plain=at_plain.value,
        mcse_plain=mcse_plain,
        mean_crossfit=expand(parts, means.mean_crossfit, means.covariance).value,
        residuals=residuals,
        covariance=covariance_of(residuals, mcse),
        info=means.info,
    )


class Kind(NamedTuple):
    """A quantity of two integrands u and v, of one where they are the same.

    label : with a place for each name. offset : of the diagonal from which on pairs are asked for;
        None for it alone.
    function : of (E u, E v, E u², E v², E uv), for integrands of unit size.
    power : of the integrands' units in that of the quantity.
    """

    label: str
    offset: int | None
    function: Callable[[Float[Array, " r"]], Float[Array, ""]]
    power: int


def _covariance(moments: Float[Array, " r"]) -> Float[Array, ""]:
    u, v, _, _, uv = moments
    return uv - u * v


def _sd(moments: Float[Array, " r"]) -> Float[Array, ""]:
    variance = _covariance(moments)
    # a constant has slope 0
    return jnp.where(variance == 0, 0.0, jnp.sqrt(jnp.where(variance == 0, 1.0, variance)))


def _correlation(moments: Float[Array, " r"]) -> Float[Array, ""]:
    u, v, uu, vv, uv = moments
    return (uv - u * v) / jnp.sqrt((uu - u**2) * (vv - v**2))


KINDS = {
    "variance": Kind("var({})", None, _covariance, 2),
    "sd": Kind("sd({})", None, _sd, 1),
    "covariance": Kind("cov({}, {})", 0, _covariance, 2),
    "correlation": Kind("corr({}, {})", 1, _correlation, 0),
}


def estimate_spread(
    kind: Kind,
    sample: Sample,
    method: AbstractControlVariate,
    options: Options,
    fits: Fits | None = None,
) -> Estimate:
    """Estimate variances, standard deviations, covariances or correlations of integrands, whose
    `fits` may be known.

    They are functions of the means of the integrands, centred and of unit standard deviation, and
    of their products.
    """
    weights, scaled, varies = sample.trace.weights, sample.scaled, sample.varying
    # A product with a constant indicator is an event that was not seen, too.
    events = np.isin(sample.values[0, 0], (0.0, 1.0)) & sample.events
    with np.errstate(invalid="ignore"):
        sd = np.where(varies, sd_over_draws(scaled, weights), 1.0)
        standard = (scaled - mean_over_draws(scaled, weights)) / sd * varies
    pairs = SpreadTerms.of(kind, sample.names)
    # Products of a fixed entry are exactly zero, not unseen.
    # as the zeros of a Cholesky factor: what it has to do with others is zero, too
    fixed = ~varies & ~events
    products = Sample.of(
        sample.trace,
        pairs.names,
        pairs.products(standard),
        np.concatenate([events, ~(fixed[pairs.one] | fixed[pairs.two])]),
        sample.states,
    )
    estimate = estimate_derived(products, [pairs.smooth], method, options, fits)
    with np.errstate(over="ignore", under="ignore"):
        return rescaled(estimate, pairs.unit(kind, sample.units * sd))


class SpreadTerms(NamedTuple):
    """The expectations of which spreads are functions: those of p integrands and of some of their
    products.

    names : of both. one, two : (r,) which integrands a product is of. smooth : the spreads as
        functions of them.
    pairs : (2, q) the integrands of each spread.
    """

    names: tuple[str, ...]
    one: Int[np.ndarray, " r"]
    two: Int[np.ndarray, " r"]
    smooth: Smooth
    pairs: Int[np.ndarray, "two q"]

    @classmethod
    def of(cls, kind: Kind, names: tuple[str, ...]) -> "SpreadTerms":
        """Return those of the spreads of a kind of integrands with these names."""
        p = len(names)
        diagonal = np.arange(p)
        pairs = np.stack(
            (diagonal, diagonal) if kind.offset is None else np.triu_indices(p, kind.offset)
        )
        needed = (diagonal, diagonal) if kind.offset is None else np.triu_indices(p)
        place = np.zeros((p, p), int)
        place[needed] = p + np.arange(len(needed[0]))
        one, two = pairs
        inputs = np.stack([one, two, place[one, one], place[two, two], place[one, two]], axis=1)
        labels = tuple(kind.label.format(names[i], names[j]) for i, j in zip(one, two, strict=True))
        products = tuple(f"{names[i]} {names[j]}" for i, j in zip(*needed, strict=True))
        return cls((*names, *products), *needed, Smooth(labels, inputs, kind.function), pairs)

    def products(self, standard: Float[np.ndarray, "*n p"]) -> Float[np.ndarray, "*n q"]:
        """Return the integrands, centred and in units of their standard deviations, and the
        products."""
        return np.concatenate(
            [standard, standard[..., self.one] * standard[..., self.two]], axis=-1
        )

    def unit(self, kind: Kind, sd: Float[np.ndarray, " p"]) -> Float[np.ndarray, " q"]:
        """Return the unit of each spread, from those of the integrands."""
        one, two = self.pairs
        # A root for each factor: the product of two units may overflow where the quantity does not.
        return np.sqrt(sd[one] ** kind.power) * np.sqrt(sd[two] ** kind.power)


def image(
    fit: FoldFit, source: Problem, problem: Problem, slope: Float[np.ndarray, "q k"]
) -> FoldFit:
    """Return the control variates of linear combinations, the integrands of `problem`, from those
    of `source`."""
    # From the units of the integrands to those of their combination.
    weights = slope * source.scale / problem.scale[:, None]
    plain = np.array([status is Status.PLAIN for status in fit.status])
    # those of a plain mean, which says nothing of its refits
    over_folds = mean_of_residuals(source, fit.control)[1]
    refits = columnwise(lambda refit, mean: np.where(plain, mean, refit), fit.refits, over_folds)
    terms = [np.flatnonzero(row) for row in weights]
    return FoldFit(
        mean=linear_combinations(fit.mean, weights),
        control=linear_combinations(fit.control, weights),
        refits=columnwise(lambda means: linear_combinations(means, weights), refits),
        # Absolute: what the parts doubt may point the same way.
        doubt=linear_combinations(fit.doubt, np.abs(weights)),
        status=tuple(
            min((fit.status[j] for j in columns), key=WORST_FIRST.index) for columns in terms
        ),
        method=tuple(
            " + ".join(dict.fromkeys(fit.method[j] for j in columns if not plain[j]))
            for columns in terms
        ),
        info=fit.info,
    )


def linear_combinations(
    columns: Float[np.ndarray, "*n k"], weights: Float[np.ndarray, "q k"]
) -> Float[np.ndarray, "*n q"]:
    """Return combinations of columns; what is not finite makes those NaN in which it has a weight,
    and no other."""
    known = np.isfinite(columns)
    if known.all():
        return columns @ weights.T
    # NaN times a weight of zero is NaN, and must not reach combinations that do not use it.
    lost = ~known @ (weights != 0).T
    return np.where(lost, np.nan, np.where(known, columns, 0.0) @ weights.T)
