"""Kernel control variates: control functionals and their semi-exact form."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from mcmcpost.control.features.families import (
    MonomialFeatures,
    basis_with_features,
    by_fold,
    exponents_of_degree,
)
from mcmcpost.control.folds import pad_rows
from mcmcpost.control.kernels.choice import REML, GridREML, OwnGridREML, Setting, tune
from mcmcpost.control.kernels.systems import (
    FoldRules,
    KernelData,
    KernelFit,
    crossfit_dense,
    crossfit_iterative,
    fit_constant,
    fit_without_folds,
    kernel_data,
)
from mcmcpost.control.linear import DRAWS_PER_FEATURE
from mcmcpost.control.method import (
    ROUNDING,
    AbstractControlVariate,
    FoldFit,
    Refits,
    mean_of_residuals,
    merge_fits,
    no_control,
)
from mcmcpost.control.problem import Problem
from mcmcpost.control.standard_errors import judged_variance, residual_variance, tail_inflation
from mcmcpost.control.zero_variance import HIGHEST_DEGREE, MIN_GIVEN, MIN_TRAIN, has_enough
from mcmcpost.core.arguments import check_count, check_kind, check_number
from mcmcpost.core.arrays import columns_of, in_blocks
from mcmcpost.core.errors import InputError, Status
from mcmcpost.core.mcse import participants
from mcmcpost.solve import Cholesky, ConjugateGradients
from mcmcpost.stein import AbstractKernel, SteinTile

REAL_RIDGE = 1.0
"""The grid's largest nugget, tried where a fit gains nothing."""

COMPARED_STATES, COMPARED_COORDINATES = 500, 3
"""States, or else coordinates, up to which kernel fits with and without a polynomial are compared.

Fits to few draws have not seen the tails. In few coordinates a fit passes through any number of
draws, and is wrong only beyond the outermost ones, where no residual shows it.
"""

AGREEMENT = 2.0
"""Errors of the other fit within which the estimates of two kernel fits agree."""

LONGER = 1.4
"""Factor on the lengthscales of a tuned kernel under which its estimate should not move by more
than its error."""

STATE_WIDTH = 1 << 8
"""Numbers that stand for a state where kernel fits are evaluated in blocks: 4,096 states at a
time."""

DENSE_LIMIT = 6_000
"""Distinct states up to which the kernel system is factorised. Larger ones are solved by conjugate
gradients."""


class ControlFunctional(AbstractControlVariate):
    """Interpolate the integrand in the Stein space of a kernel, with the constant unpenalised.

    β̂ = (1ᵀA⁻¹f)/(1ᵀA⁻¹1), A = K₀/mean(diag K₀) + η·diag(1/n_i). Oates, Girolami and Chopin (2017,
    doi:10.1111/rssb.12185); docs/mathematics.md section 2. Fits to few draws are compared with
    `SemiExact`: see `crossfit_both`.

    Parameters
    ----------
    kernel : on standardised coordinates, used as it is. By default a squared exponential whose
        lengthscales are tuned.
    nugget : relative η. By default tuned with the kernel, or 1e-8 with a kernel that is given.
    tuning : `GridREML(...)`, the default without a kernel, or `REML(...)`, which starts at the
        kernel that is given.
    solver : `Cholesky()` or `ConjugateGradients(...)`; by default Cholesky up to 6,000 distinct
        states.
    budget : largest number of products with the kernel matrix. It selects conjugate gradients and
        replaces the budget of a solver that is given.
    max_states : largest number of states that are fitted, evenly spaced, by Cholesky. The estimate
        is then the mean of the held-out residuals of all draws. By default all states are fitted.
        Of weighted draws, 6,000 at most are, at even steps of the summed weights, and the weighted
        mean of the residuals is the estimate.
    """

    kernel: AbstractKernel | None = None
    nugget: float | None = None
    tuning: REML | GridREML | None = None
    solver: Cholesky | ConjugateGradients | None = None
    budget: int | None = None
    max_states: int | None = None

    def __check_init__(self) -> None:
        _check(self)

    @property
    def label(self) -> str:
        return "ControlFunctional()"

    def crossfit(self, problem: Problem) -> FoldFit:
        # The other fit of the comparison has the highest degree that the draws allow.
        degree = max(
            (b for b in (1, 2) if has_enough(b, problem.draws.shape[1], problem.folds.num_train)),
            default=0,
        )
        if degree and is_compared(problem, self):
            return crossfit_both(problem, SemiExact(degree, **self.__dict__))[1]
        return crossfit_kernel(problem, self, 0)


class SemiExact(AbstractControlVariate):
    """A control functional in which polynomial Stein features are unpenalised, as the constant is.

    Exact where `ZeroVariance` of the same degree is, a control functional otherwise. South,
    Karvonen, Nemeth, Girolami and Oates (2022, doi:10.1093/biomet/asab036). Fits to few draws are
    compared with `ControlFunctional`: see `crossfit_both`.

    Parameters
    ----------
    degree : total degree of the unpenalised polynomial. Needs at least three training states per
        feature.
    kernel, nugget, tuning, solver, budget, max_states : as for `ControlFunctional`.
    """

    degree: int = 2
    kernel: AbstractKernel | None = None
    nugget: float | None = None
    tuning: REML | GridREML | None = None
    solver: Cholesky | ConjugateGradients | None = None
    budget: int | None = None
    max_states: int | None = None

    def __check_init__(self) -> None:
        check_count("SemiExact", "degree", self.degree, "Use 1, 2 or 3.", most=HIGHEST_DEGREE)
        _check(self)

    @property
    def label(self) -> str:
        return f"SemiExact(degree={self.degree})"

    def crossfit(self, problem: Problem) -> FoldFit:
        enough = has_enough(self.degree, problem.draws.shape[1], problem.folds.num_train)
        if enough and is_compared(problem, self):
            return crossfit_both(problem, self)[0]
        return crossfit_kernel(problem, self, self.degree)


def is_compared(problem: Problem, choice: ControlFunctional | SemiExact) -> bool:
    """Return whether `crossfit_both` compares a fit of a tuned kernel: to few states, or in few
    coordinates."""
    states = problem.num_states
    fitted = states if choice.max_states is None else min(choice.max_states, states)
    # In few coordinates a fit on some of many states is compared too; in more only one on all.
    if problem.draws.shape[1] <= COMPARED_COORDINATES:
        compared = fitted <= DENSE_LIMIT
    else:
        compared = fitted == states <= COMPARED_STATES
    # its kernel alone may be none
    tuned = choice.kernel is None and not isinstance(choice.tuning, OwnGridREML)
    return compared and tuned and not problem.weighted and choice.budget is None


def crossfit_both(problem: Problem, choice: SemiExact) -> tuple[FoldFit, FoldFit]:
    """Return the semi-exact fit and that of the kernel alone, each with what the other does not
    explain as its doubt.

    Where the draws have not visited a tail, both can pass through every value and give the same
    estimate on all parts of the draws, and yet differ: what the fit is beyond the draws is decided
    by its form. The doubt of each is the distance of the two estimates less twice the error of the
    other. That error is without the other's own doubt: a fit that is far away because it has not
    seen a tail would hide that this one has not either.
    """
    options = {name: value for name, value in choice.__dict__.items() if name != "degree"}
    semi, alone = (
        crossfit_kernel(problem, choice, choice.degree),
        crossfit_kernel(problem, ControlFunctional(**options), 0),
    )
    doubts = disagreement(problem, semi, alone), disagreement(problem, alone, semi)
    semi, alone = (
        fit._replace(doubt=np.hypot(fit.doubt, d))
        for fit, d in zip((semi, alone), doubts, strict=True)
    )
    return semi, alone


def disagreement(problem: Problem, fit: FoldFit, other: FoldFit) -> Float[np.ndarray, " p"]:
    """Return by how much two estimates differ beyond twice the error of the other, its doubt not
    counted."""
    inexact = residual_variance(problem, fit.control) > ROUNDING**2
    return np.where(inexact, _beyond(problem, other, fit.mean, AGREEMENT), 0.0)


def _beyond(
    problem: Problem, fit: FoldFit, mean: Float[np.ndarray, " p"], errors: float = 1.0
) -> Float[np.ndarray, " p"]:
    """Return how far another estimate is from that of a fit beyond some of its errors, its doubt
    not counted."""
    # With the other's doubt a fit that is far away would excuse itself, see `crossfit_both`.
    sure = fit._replace(doubt=np.zeros_like(fit.doubt))
    error = np.sqrt(judged_variance(problem, sure) / problem.counts.sum())
    return np.fmax(np.abs(fit.mean - mean) - errors * error, 0.0)


def _check(choice: ControlFunctional | SemiExact) -> None:
    where = type(choice).__name__
    check_kind(
        where, "kernel", choice.kernel, (AbstractKernel, None), "Such as SquaredExponential(2.0)."
    )
    check_kind(where, "tuning", choice.tuning, (REML, GridREML, None), "Such as REML().")
    check_kind(
        where,
        "solver",
        choice.solver,
        (Cholesky, ConjugateGradients, None),
        "Such as ConjugateGradients().",
    )
    check_number(where, "nugget", choice.nugget, "It is relative: 1e-8 to 1.", optional=True)
    check_count(
        where,
        "max_states",
        choice.max_states,
        "Fit on more states.",
        least=MIN_TRAIN,
        optional=True,
    )
    if choice.kernel is not None and isinstance(choice.tuning, GridREML):
        raise InputError(
            where,
            "no `kernel` with GridREML, which has its own",
            choice.kernel,
            "Use tuning=REML().",
        )
    cure = "It counts products of ConjugateGradients()."
    check_count(where, "budget", choice.budget, cure, optional=True)
    if choice.budget is not None and isinstance(choice.solver, Cholesky):
        raise InputError(where, "no `budget` with Cholesky()", choice.budget, cure)
    if choice.max_states is not None and (
        choice.budget is not None or isinstance(choice.solver, ConjugateGradients)
    ):
        raise InputError(
            where, "no `max_states` with ConjugateGradients", choice.max_states, "Use Cholesky()."
        )


def crossfit_kernel(
    problem: Problem, choice: ControlFunctional | SemiExact, degree: int
) -> FoldFit:
    """Return the fit with polynomials of a degree, 0 for the kernel alone, compared with no
    other."""
    tuning = choice.tuning or (GridREML() if choice.kernel is None else None)
    whole = problem
    # Weighted draws are always thinned by weight, since a kernel system knows no weights.
    problem = problem.thin(
        DENSE_LIMIT if problem.weighted and choice.max_states is None else choice.max_states
    )
    if problem.folds.num_train < (MIN_TRAIN if tuning or degree else MIN_GIVEN):
        return no_control(problem, Status.TOO_FEW_DRAWS, choice.label)
    fitted = problem.folds.num_everyone
    # Zero states select Cholesky: the fit is on few of them, whatever their number.
    solver = solver_of(choice, 0 if problem.by_residuals else fitted, ConjugateGradients())
    on_subset = problem.by_residuals and isinstance(solver, Cholesky)
    # A fit on some states is made on a problem of its own and evaluated at all.
    subset = problem.seen() if on_subset else problem
    basis, features = basis_with_features(
        subset, exponents_of_degree(problem.draws.shape[1], degree)
    )
    size = basis.shape[1]
    if size > 1 and problem.folds.num_train < DRAWS_PER_FEATURE * size:
        return no_control(problem, Status.TOO_FEW_DRAWS, choice.label, {"num_features": size - 1})
    settings = tune(subset, basis, choice.kernel, choice.nugget, tuning, solver)
    if not settings:
        return no_control(problem, Status.PLAIN, choice.label)

    def fit_with(
        settings: Sequence[Setting],
        basis: Float[np.ndarray, "m b"] = basis,
        features: MonomialFeatures = features,
    ) -> FoldFit:
        if on_subset:
            return _fit_members(problem, subset, basis, features, settings, choice)
        return _fit(problem, basis, settings, solver, choice)

    fit = fit_with(settings)
    # A nugget that was asked for is kept, gain or not.
    if isinstance(tuning, GridREML) and choice.nugget is None:
        fit = _or_with_ridge(problem, settings, fit, fit_with)
    comparable = (
        degree
        and isinstance(tuning, GridREML)
        and isinstance(solver, Cholesky)
        and not problem.weighted
    )
    # Below these limits `crossfit` has compared already; beyond, only sharp fits in few directions.
    if comparable and not is_compared(whole, choice) and (few := _of_few(problem, settings, fit)):
        alone = fit_with(
            few, *basis_with_features(subset, exponents_of_degree(problem.draws.shape[1], 0))
        )
        with np.errstate(invalid="ignore"):  # the other integrands have no such fit, and no doubt
            fit = fit._replace(doubt=np.hypot(fit.doubt, disagreement(problem, fit, alone)))
    facts = {
        "degree": degree,
        "num_features": size - 1,
        "num_fitted": fitted,
        "solver": type(solver).__name__,
    }
    return fit._replace(info=facts | fit.info)


def _of_few(problem: Problem, settings: Sequence[Setting], fit: FoldFit) -> list[Setting]:
    """Return the settings whose kernel varies in few coordinates, of integrands that a tail can
    matter to.

    Such a fit is as good as one in few coordinates, and knows as little of the tails that no draw
    has visited. Their mass is about 1/n: they cannot matter where the residuals have more than 1/n
    of the variance.
    """
    plain = residual_variance(problem, np.zeros_like(fit.control))
    sharp = problem.counts.sum() * residual_variance(problem, fit.control) < plain
    selected = []
    for setting in settings:
        members = tuple(j for j in setting.members if sharp[j])
        if members and setting.num_resolved(problem.draws.shape[1]) <= COMPARED_COORDINATES:
            selected.append(setting._replace(members=members))
    return selected


def _fit(
    problem: Problem,
    basis: Float[np.ndarray, "m q"],
    settings: Sequence[Setting],
    solver: Cholesky | ConjugateGradients,
    choice: ControlFunctional | SemiExact,
) -> FoldFit:
    """Return the fit of the integrands that have a setting, on all states; NaN for others."""
    p = problem.values.shape[1]
    mean, moved, control = np.full(p, np.nan), np.full(p, np.nan), np.zeros(problem.values.shape)
    refits = Refits.none(problem.folds.num_folds, p)
    status = [Status.CONTROLLED] * p
    facts = []
    # A tuned kernel on all states gives the constant itself, which longer lengthscales test.
    tuned = choice.kernel is None and isinstance(solver, Cholesky) and not problem.by_residuals
    for setting in settings:
        columns = np.array(setting.members)
        subset = problem.select(columns)
        data = kernel_data(
            (np.asarray(subset.draws), np.asarray(subset.scores)), basis, subset.values, subset
        )
        fit = _solve(data, setting, solver)
        if tuned:
            moved[columns] = _with_longer_scales(data, setting)
        control[:, columns] = subset.folds.scatter(np.asarray(fit.control), len(control))
        mean[columns] = np.asarray(fit.mean)[0]
        again = Refits(*(np.asarray(means)[:, 0] for means in fit.refits))
        # A fit on some states estimates by residuals of all draws, not by its constant.
        if problem.by_residuals:
            mean[columns], again = mean_of_residuals(subset, control[:, columns])
        for means, refit_means in zip(refits, again, strict=True):
            means[:, columns] = refit_means
        reached = float(fit.nugget)
        for j in columns:
            status[j] = _status(choice, reached, bool(fit.converged))
        facts.append(
            setting.describe() | {"nugget_used": reached, "num_products": int(fit.num_steps)}
        )
    made = FoldFit(
        mean, control, refits, np.zeros(p), tuple(status), (choice.label,) * p, {"fits": facts}
    )
    return made._replace(doubt=_beyond(problem, made, moved)) if tuned else made


def _with_longer_scales(data: KernelData, setting: Setting) -> Float[np.ndarray, " p"]:
    """Return the means of the same fit with all lengthscales `LONGER`.

    Where the density at the outermost draws is not small, f − Lv = β has a solution v on all draws
    for every β (`errors.total_error`), and which of them is the smoothest is for the kernel to say.
    """
    kernel = jax.tree.map(lambda scale: LONGER * scale, setting.kernel)
    return fit_constant(SteinTile(kernel), setting.nugget, data)


def _status(choice: ControlFunctional | SemiExact, nugget: float, converged: bool = True) -> Status:
    if not converged:
        return Status.NOT_CONVERGED
    # The nugget goes through the device's precision: a thousandth is no raise.
    raised = choice.nugget is not None and nugget > choice.nugget * 1.001
    return Status.NUGGET_RAISED if raised else Status.CONTROLLED


def _fit_members(
    problem: Problem,
    subset: Problem,
    basis: Float[np.ndarray, "t q"],
    features: MonomialFeatures,
    settings: Sequence[Setting],
    choice: ControlFunctional | SemiExact,
) -> FoldFit:
    """Return the fit of the integrands that have a setting, on the states of `subset` alone; NaN
    for others.

    The fits without each fold are evaluated at all states of the problem, and the residuals make
    the estimate.
    """
    p = problem.values.shape[1]
    mean, control = np.full(p, np.nan), np.zeros(problem.values.shape)
    refits = Refits.none(problem.folds.num_folds, p)
    status = [Status.CONTROLLED] * p
    rows = jax.device_put((subset.draws, subset.scores))
    rules, facts = [], []
    for setting in settings:
        group = subset.select(np.array(setting.members))
        tile = SteinTile(setting.kernel)
        rules.append(
            fit_without_folds(tile, setting.nugget, kernel_data(rows, basis, group.values, group))
        )
        for j in setting.members:
            status[j] = _status(choice, rules[-1].nugget)
        facts.append(setting.describe() | {"nugget_used": rules[-1].nugget, "num_products": 0})
    # All settings in one pass over the states, which may be many and on disk.
    columns = np.concatenate([setting.members for setting in settings])
    d = problem.draws.shape[1]
    resolved = np.concatenate(
        [np.full(len(each.members), each.num_resolved(d)) for each in settings]
    )
    control[:, columns] = _at_states(problem.draws, problem.scores, problem.labels, features, rules)
    selected = problem.select(columns)
    mean[columns], again = mean_of_residuals(selected, columns_of(control, columns))
    for means, refit_means in zip(refits, again, strict=True):
        means[:, columns] = refit_means
    doubt = np.zeros(p)
    if not selected.weighted:
        doubt[columns] = _unseen_error(selected, columns_of(control, columns), resolved)
    return FoldFit(
        mean, control, refits, doubt, tuple(status), (choice.label,) * p, {"fits": facts}
    )


def _unseen_error(
    problem: Problem, control: Float[np.ndarray, "m p"], resolved: Float[np.ndarray, " p"]
) -> Float[np.ndarray, " p"]:
    """Return what `tail_inflation` adds to the error of the mean of the residuals, by how many make
    up their variance.

    Those of the few outermost draws are the only sign of how wrong the kernel is beyond them. In
    more coordinates more of the draws are outermost, and the factor counts less: where the kernel
    resolves more than `COMPARED_COORDINATES`, to the power of their squared ratio. A chain that
    mixes slowly visits a tail for many draws in a row: the variance is at least that of sums over
    blocks of √n states of a chain.
    """
    m, total = problem.num_states, problem.counts.sum()
    counts, chains = problem.counts[:m], problem.chains[:m]
    # √n states a block, chains apart: long enough for an excursion, and enough blocks for a
    # variance.
    length = max(int(np.sqrt(m / (chains.max() + 1))), 1)
    starts = np.union1d(np.arange(0, m, length), np.flatnonzero(np.diff(chains)) + 1)
    mean = (problem.counts @ problem.values - problem.counts @ control) / total
    residual = np.zeros((m, control.shape[1]))
    blocks = np.zeros((len(starts), control.shape[1]))
    for rows in in_blocks(*residual.shape):
        residual[rows] = problem.values[rows] - control[rows] - mean
        # Blocks of rows and blocks of chains do not align: sums over the part inside are added up.
        first = np.searchsorted(starts, rows.start, side="right") - 1
        inside = np.maximum(starts[first : np.searchsorted(starts, rows.stop)] - rows.start, 0)
        blocks[first : first + len(inside)] += np.add.reduceat(
            counts[rows, None] * residual[rows], inside, axis=0
        )
    variance = np.maximum(
        residual_variance(problem, control) / total, (blocks**2).sum(axis=0) / total**2
    )
    power = np.minimum((COMPARED_COORDINATES / resolved) ** 2, 1.0)
    # Section 2, Errors: √(m/3P)(1 + 3/P), to a power, less the one that is counted already.
    return np.sqrt((tail_inflation(participants(residual, counts), total) ** power - 1) * variance)


def _at_states(
    draws: Float[np.ndarray, "m d"],
    scores: Float[np.ndarray, "m d"],
    labels: Int[np.ndarray, " m"],
    features: MonomialFeatures,
    rules: Sequence[FoldRules],
) -> Float[np.ndarray, "m p"]:
    """Return the fits without each state's fold, the rules side by side, at some states; zero on
    padding."""
    # (m, p) of all rules side by side: k folds one after the other, never k copies.
    fits = np.zeros((len(labels), sum(rule.dual.shape[2] for rule in rules)))
    for fold, block in by_fold(labels, STATE_WIDTH):
        states, size = (draws[block], scores[block]), block.stop - block.start
        polynomial, padded = features.of(*states), tuple(map(pad_rows, states))
        parts = [
            rule.kernel_term(fold, padded)[:size] + polynomial @ rule.coefficients[fold, 1:]
            for rule in rules
        ]
        fits[block] = np.concatenate(parts, axis=1)
    return fits


def _or_with_ridge(
    problem: Problem,
    settings: Sequence[Setting],
    fit: FoldFit,
    fit_with: Callable[[Sequence[Setting]], FoldFit],
) -> FoldFit:
    """Return the fit with a ridge of `REAL_RIDGE` for integrands whose error gains nothing, if that
    has a smaller one.

    The likelihood of a step or a corner is highest for a kernel that passes through it at a short
    lengthscale. Where draws are correlated, such a fit has gaps between them.
    """
    error = judged_variance(problem, fit)
    # `not <`, so that NaN counts as lost.
    lost = ~(error < residual_variance(problem, np.zeros_like(fit.control)))
    ridged = []
    for setting in settings:
        members = tuple(j for j in setting.members if lost[j] and setting.nugget < REAL_RIDGE)
        if members:
            ridged.append(setting._replace(nugget=REAL_RIDGE, members=members))
    if not ridged:
        return fit
    other = fit_with(ridged)
    with np.errstate(invalid="ignore"):
        # Integrands without a ridged fit are NaN there, and not better.
        better = judged_variance(problem, other) < error
    return merge_fits(fit, other, better)._replace(
        info={"fits": fit.info["fits"] + other.info["fits"]}
    )


def solver_of(
    choice: ControlFunctional | SemiExact, num_states: int, iterative: ConjugateGradients
) -> Cholesky | ConjugateGradients:
    """Return the solver asked for, or `Cholesky` up to 6,000 states and `iterative` beyond or with
    a budget."""
    solver = choice.solver or (
        Cholesky() if num_states <= DENSE_LIMIT and choice.budget is None else iterative
    )
    if choice.budget is None or isinstance(solver, Cholesky):
        return solver
    return dataclasses.replace(solver, budget=choice.budget)


def _solve(data: KernelData, setting: Setting, solver: Cholesky | ConjugateGradients) -> KernelFit:
    tile = SteinTile(setting.kernel)
    match solver:
        case Cholesky():
            return crossfit_dense(tile, setting.nugget, data)
        case ConjugateGradients():
            return crossfit_iterative(tile, jnp.asarray(setting.nugget), solver, data)
