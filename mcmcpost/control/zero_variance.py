"""Linear control variates: zero variance of any degree with its penalties, and sums over named
dimensions."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.control import linear
from mcmcpost.control.features.families import (
    AbstractFamily,
    polynomials,
    vector_fields,
)
from mcmcpost.control.features.structure import (
    as_structure,
    check_structure,
    room_of,
    structure_families,
)
from mcmcpost.control.folds import Subsets
from mcmcpost.control.method import (
    ROUNDING,
    AbstractControlVariate,
    FoldFit,
    Refits,
    no_control,
)
from mcmcpost.control.moments import Moments
from mcmcpost.control.problem import Problem
from mcmcpost.control.standard_errors import plain_variance, residual_variance
from mcmcpost.core.arguments import check_count, check_kind, check_number
from mcmcpost.core.errors import InputError, Status
from mcmcpost.solve import PositiveMatrix
from mcmcpost.stein import num_polynomial_features

GCV_INFLATION = 1.4
"""Each degree of freedom counts 1.4 in generalised cross-validation, against undersmoothing (Kim
and Gu 2004)."""


HIGHEST_DEGREE = 16
"""Beyond it features of a few hundred draws differ by rounding, and errors were found too small."""


class LeastSquares(eqx.Module):
    """No penalty; refused where the training draws do not exceed the features."""


class Ridge(eqx.Module):
    """A quadratic penalty on standardised features.

    strength : relative to the largest eigenvalue of the features' covariance; chosen per integrand
        by generalised cross-validation when None.
    """

    strength: float | None = None

    def __check_init__(self) -> None:
        check_number(
            "Ridge", "strength", self.strength, "Leave it out to have it chosen.", optional=True
        )


class Lasso(eqx.Module):
    """An absolute-value penalty that selects features, followed by least squares on those selected.

    path_length : penalties tried, log-spaced over three decades; the best by the held-out folds is
        used. Selection is repeated inside every fold.
    """

    path_length: int = 20

    def __check_init__(self) -> None:
        check_count("Lasso", "path_length", self.path_length, "Use 20.", most=10_000)


MIN_TRAIN = 10
"""Distinct training states below which nothing is tuned or regressed."""

MIN_GIVEN = 3
"""Distinct training states that are needed where kernel and nugget are given."""


def has_enough(degree: int, num_coordinates: int, num_train: int) -> bool:
    """Return whether there are three training draws for each feature of a degree, the constant
    included, and ten."""
    size = num_polynomial_features(num_coordinates, degree) + 1
    return num_train >= max(MIN_TRAIN, linear.DRAWS_PER_FEATURE * size)


class ZeroVariance(AbstractControlVariate):
    """Regress the integrand on Stein features Δφ + ∇φ·s of all monomials φ up to a total degree.

    Exact where the integrand minus its mean is such a combination, for example any quadratic of a
    Gaussian at degree two. Mira, Solgi and Imparato (2013, doi:10.1007/s11222-012-9344-6);
    docs/mathematics.md section 2.

    A polynomial of high degree follows the integrand between the draws and departs from it beyond
    the outermost one, where no residual shows it. From degree four on, the error includes the
    largest distance of the mean from those of the two degrees below.
    ``benchmarks.control.high_degree`` measures how well that covers the true error.

    Parameters
    ----------
    degree : total degree of the polynomial φ, at least one. There are C(d+degree, degree) − 1
        features.
    penalty : `LeastSquares()`, `Ridge(...)` or `Lasso(...)`. By default least squares where there
        are at least three distinct training draws per feature, and otherwise ridge with the status
        ``regularised``.
    max_interaction : largest number of different coordinates in one monomial; all by default. Where
        it is smaller than the degree, the monomials are those of the trace's own parameters.
    """

    degree: int = 2
    penalty: LeastSquares | Ridge | Lasso | None = None
    max_interaction: int | None = None

    def __check_init__(self) -> None:
        where = type(self).__name__
        check_count(where, "degree", self.degree, "Use 1, 2 or 3.", most=HIGHEST_DEGREE)
        check_count(
            where, "max_interaction", self.max_interaction, "Leave it out for all.", optional=True
        )
        check_kind(
            where, "penalty", self.penalty, (LeastSquares, Ridge, Lasso, None), "Such as Ridge()."
        )

    @property
    def label(self) -> str:
        return f"{type(self).__name__}(degree={self.degree})"

    @property
    def from_sums(self) -> bool:
        return self.penalty is None or isinstance(self.penalty, LeastSquares)

    def crossfit(self, problem: Problem) -> FoldFit:
        fits = self.linear(problem)
        if fits is None:
            return no_control(problem, Status.TOO_FEW_DRAWS, self.label)
        fit = fits.at_states()
        if not fits.system.families[-1].doubted:
            return fit
        lower = [
            dataclasses.replace(self, degree=self.degree - step).linear(problem) for step in (1, 2)
        ]
        # From degree four on residuals say nothing of what lies beyond the draws; degrees do.
        gap = np.max([np.abs(fit.mean - below.mean) for below in lower if below], axis=0)
        # Exact fits of every degree differ by rounding only, which is no gap.
        inexact = residual_variance(problem, fit.control) > ROUNDING**2
        return fit._replace(doubt=np.hypot(fit.doubt, np.where(inexact, gap, 0.0)))

    def coordinates(self, problem: Problem) -> Problem:
        # A restricted span would turn with the sample covariance, and its means with it.
        restricted = self.max_interaction is not None and self.max_interaction < self.degree
        return problem.unrotated() if restricted else problem

    def families(self, problem: Problem, num_train: int) -> tuple[list[AbstractFamily], list[str]]:
        return linear.affordable(self._named(problem.draws.shape[1]), num_train)

    def fields(self, problem: Problem) -> list[linear.LinearFits]:
        alone = len(self._named(problem.draws.shape[1])) == 1
        simplest = [] if alone else ZeroVariance(1).fields(problem)
        fits = self.linear(problem)
        return simplest if fits is None else [*simplest, fits]

    def _named(self, d: int) -> list[tuple[AbstractFamily, str]]:
        """Return the families, each with those before it, and their labels."""
        labels = [ZeroVariance(degree).label for degree in range(1, self.degree + 1)]
        return list(zip(polynomials(d, self.degree, self.max_interaction), labels, strict=True))

    def linear(self, problem: Problem) -> linear.LinearFits | None:
        """Return the fit without what the degrees below say of it; None of too few draws."""
        if problem.num_train < MIN_TRAIN:
            return None
        problem = self.coordinates(problem)
        families = [family for family, _ in self._named(problem.draws.shape[1])]
        number = sum(family.size for family in families)
        penalty, p = self.penalty, problem.values.shape[1]
        info: dict[str, Any] = {}
        if isinstance(penalty, Lasso):
            system = linear.centred_system(problem, families)
            fits, info["num_selected"] = lasso_fits(system, problem, penalty)
        else:
            system = linear.linear_system(problem, families)
            if penalty is None:
                penalty = (
                    LeastSquares()
                    if problem.num_train >= linear.DRAWS_PER_FEATURE * system.sizes[-1]
                    else Ridge()
                )
            strengths = np.zeros(p)
            if isinstance(penalty, Ridge):
                strengths = ridge_strengths(system, penalty.strength, problem.num_states)
                info["ridge"] = strengths.tolist()
            # A mix exists only with more draws than controls: without it least squares has no
            # solution.
            elif system.mix is None or problem.num_train <= system.sizes[-1]:
                raise InputError(
                    type(self).__name__,
                    f"more than {number + 1} distinct training draws for {number} features "
                    "without a penalty",
                    problem.num_train,
                    "Use penalty=Ridge(), a lower degree, or more draws.",
                )
            groups = [np.flatnonzero(strengths == strength) for strength in np.unique(strengths)]
            size = system.sizes[-1]
            fits = [  # integrands that share a penalty share its factorisations
                (
                    group,
                    linear.Solver(system, strengths[group[0]], size, size).fit(
                        linear.Subsystem.of(system, size, group), halves=True
                    ),
                )
                for group in groups
            ]
        features = system.sizes[-1] - 1
        facts = {
            "degree": self.degree,
            "num_features": features,
            "num_dependent_features": number - features,
            "penalty": type(penalty).__name__,
        }
        status = Status.CONTROLLED if isinstance(penalty, LeastSquares) else Status.REGULARISED
        return linear.LinearFits(
            problem,
            system,
            tuple(fits),
            (status,) * p,
            (self.label,) * p,
            facts | info,
            np.zeros(p),
        )


class VectorFields(ZeroVariance):
    """Regress the integrand on ∇·v + v·s of all polynomial vector fields v up to a total degree.

    `ZeroVariance` of one degree more has the gradients of polynomials among them alone. Where a
    posterior is a Gaussian that was bent or scaled, as effects beside the logarithm of their scale,
    the fields that it needs are no gradients: means of a Gaussian bent by a quadratic and of Neal's
    funnel are exact here at degree two, where polynomials of degree three leave much. The operator
    is Stein's of first order, as in Oates, Girolami and Chopin (2017, doi:10.1111/rssb.12185);
    docs/mathematics.md section 2.

    Parameters
    ----------
    degree : total degree of the entries of v, at least one. There are d C(d+degree, degree)
        features; in one dimension they are those of ``ZeroVariance(degree + 1)``.
    penalty, max_interaction : as for `ZeroVariance`, and of the monomials φ of one degree more,
        from whose partial derivatives the fields are made.
    """

    def __check_init__(self) -> None:
        # One less than of the polynomials, whose gradients are among the fields.
        check_count("VectorFields", "degree", self.degree, "Use 1 or 2.", most=HIGHEST_DEGREE - 1)

    def _named(self, d: int) -> list[tuple[AbstractFamily, str]]:
        gradients = ZeroVariance(self.degree + 1, max_interaction=self.max_interaction)._named(d)
        fields = vector_fields(d, self.degree, self.max_interaction)
        labels = [VectorFields(degree).label for degree in range(1, self.degree + 1)]
        return gradients + list(zip(fields, labels, strict=False))


class Structured(AbstractControlVariate):
    """Regress on the scores and on sums over named dimensions: for hierarchical models of any
    number of parameters.

    Variables are told by their labels, ``z[0, 1]``, ``z_0_1``, ``z.0.1``. Those of more than six
    entries are blocks, exchangeable in prior, and others are global; sums of rows and of columns of
    a grid, which has two such dimensions, take part as blocks. For blocks a, b of one length and
    globals k the controls are z_a·s_b, (Σz_a)(Σs_b), (Σz_a)s_k, quadratics of the globals,
    (z_a·s_b)x_k and (z_a·z_b)s_k, and in a block that is a sequence, or along a dimension of a
    grid, the same of neighbours, up to eight steps apart. Where draws are many there are also x_i
    s_i of every coordinate, and x_i s_j + x_j s_i of those pairs of a global with a block, or of
    two blocks at each index, that the coordinates need most. Each is less its mean, which is known.
    For each quantity the engine takes as many of these families as lower its error, with a ridge
    where draws are few. docs/mathematics.md section 2.

    Parameters
    ----------
    structure : the blocks, as a mapping from a name of each to the labels of its coordinates in
        their order, of a grid to a list of them for each row; others are global. By default those
        that `structure` finds, which a person can correct; ``{}`` for none.
    """

    structure: Any = eqx.field(converter=as_structure, static=True, default=None)

    def __check_init__(self) -> None:
        check_structure("Structured", self.structure)

    @property
    def label(self) -> str:
        return "Structured()"

    @property
    def from_sums(self) -> bool:
        return True

    def crossfit(self, problem: Problem) -> FoldFit:
        linear_problem, system, labels = self._system(problem)
        if system is None:
            return no_control(problem, Status.TOO_FEW_DRAWS, self.label)
        plain = plain_variance(problem)
        return linear.choose_families(
            linear_problem, problem.outline, system, labels, plain
        ).at_states()

    def coordinates(self, problem: Problem) -> Problem:
        return problem.unrotated()

    def families(self, problem: Problem, num_train: int) -> tuple[list[AbstractFamily], list[str]]:
        d = problem.draws.shape[1]
        every = [
            *polynomials(d, 1),
            *structure_families(problem, room_of(num_train, d), self.structure),
        ]
        return linear.affordable([(family, self.label) for family in every], num_train)

    def fields(self, problem: Problem) -> list[linear.LinearFits]:
        linear_problem, system, labels = self._system(problem)
        if system is None:
            return []
        return linear.nested_fits(system, labels, (1, len(labels)), linear_problem)

    def _system(self, problem: Problem) -> tuple[Problem, linear.LinearSystem | None, list[str]]:
        """Return the problem in the families' coordinates, and their sums; None for too few
        draws."""
        linear_problem = self.coordinates(problem)
        if linear_problem.num_train < MIN_TRAIN:
            return linear_problem, None, []
        families, labels = self.families(linear_problem, linear_problem.num_train)
        system = linear.linear_system(linear_problem, families) if families else None
        return linear_problem, system, labels


def ridge_strengths(
    system: linear.LinearSystem, strength: float | None, num_states: int
) -> Float[np.ndarray, " p"]:
    """Return the penalty of each quantity, on coefficients of controls of unit norm, by
    cross-validation.

    Generalised cross-validation RSS/(1 − 1.4·df/m)² on a grid of 25 values from 1e-12 to 1,
    relative to the largest squared singular value of the centred controls; or the `strength` that
    is given, relative to the same.
    """
    # The controls' singular values are the inverses of those of the map to their coefficients.
    _, inverted, turned = np.linalg.svd(system.inverse, full_matrices=False)
    singular = 1 / inverted
    top = singular.max() ** 2
    if strength is not None:
        return np.full(system.start.shape[1], strength * top)
    # θ along the controls' singular directions: the fit of every ridge is a shrinkage of it.
    along = (turned @ system.start[1:]) ** 2
    # What no control explains, the same for every ridge.
    outside = system.moments.squares.sum(axis=0)
    grid = np.logspace(-12, 0, 25)
    scores = []
    for relative in grid:
        # σ²/(σ² + ρ), whose sum are the degrees of freedom.
        shrink = singular**2 / (singular**2 + relative * top)
        rss = ((1 - shrink)[:, None] ** 2 * along).sum(axis=0) + outside
        # No residual degrees of freedom are left: such a ridge is not to be had.
        room = 1 - GCV_INFLATION * (1 + shrink.sum()) / num_states
        scores.append(rss / room**2 if room > 0 else np.full(rss.shape, np.inf))
    best = np.array(scores)
    return np.where(np.isfinite(best).any(axis=0), grid[np.argmin(best, axis=0)], 1.0) * top


NUM_STEPS = 200
"""Accelerated proximal steps per penalty; each penalty starts from the solution of the one
before."""

MAX_SELECTED = 1 / 3
"""Largest number of selected features per training state."""


def lasso_fits(
    system: linear.LinearSystem, problem: Problem, penalty: Lasso
) -> tuple[list[tuple[Int[np.ndarray, " one"], linear.LinearFit]], list[int]]:
    """Regress on controls that an absolute-value penalty selects, and select again without each
    fold.

    Return a fit for each quantity, and how many controls it uses. The penalty is the one with the
    least held-out squared error. Fits on halves keep the controls of the whole. South et al. (2022,
    doi:10.1214/20-EJS1797), who select and regress as here; Leluc, Portier and Segers (2021),
    LSLASSO.

    system : of centred controls.
    """
    moments, num_folds = system.moments, problem.folds.num_folds
    gram, cross, squares = moments.gram[:, 1:, 1:], moments.cross[:, 1:], moments.squares
    # From 0.8 of the penalty at which all coefficients vanish, to a thousandth of it.
    fractions = np.logspace(-0.1, -3, penalty.path_length)
    largest = np.abs(cross.sum(axis=0)).max(axis=0)
    whole, every = moments.over(np.ones((1, num_folds), bool)), ~np.eye(num_folds, dtype=bool)
    inside = np.stack(
        [
            # Without a fold: the whole less its sums, as the controls are centred once for all.
            lasso_path(whole.gram[0, 1:, 1:] - g, whole.cross[0, 1:] - b, fractions, largest)
            for g, b in zip(gram, cross, strict=True)
        ]
    )
    # Σf² − 2θᵀB + θᵀGθ on the held-out fold; (k, l, q, p): folds, penalties, controls, quantities.
    errors = (
        squares[:, None, :]
        - 2 * np.einsum("klqp,kqp->klp", inside, cross)
        + np.einsum("klqp,kqr,klrp->klp", inside, gram, inside, optimize=True)
    ).sum(axis=0)
    best = np.argmin(errors, axis=0)
    path = np.asarray(lasso_path(whole.gram[0, 1:, 1:], whole.cross[0, 1:], fractions, largest))
    halves, quarters = Subsets.of(num_folds)
    sizes = [
        problem.num_states - int(np.count_nonzero(problem.folds.labels == k))
        for k in range(num_folds)
    ]
    fits, num_selected = [], []
    for j, level in enumerate(best):
        column_moments = moments.quantities(np.array([j]))
        chosen = _select(path[level, :, j], problem.num_states)
        without = np.stack(
            [
                _regress(column_moments, _select(inside[k, level, :, j], sizes[k]), every[k])
                for k in range(num_folds)
            ]
        )
        # Least squares on the selected: the penalty that selects would bias the constant.
        mean = system.rule @ _regress(column_moments, chosen, np.ones(num_folds, bool))
        # Halves keep the selection, as refits keep hyper-parameters.
        half_means = np.array(
            [system.rule @ _regress(column_moments, chosen, half) for half in halves]
        )
        refits = Refits(system.rule @ without, half_means, np.full((len(quarters), 1), np.nan))
        fits.append((np.array([j]), linear.LinearFit(mean, refits, without)))
        num_selected.append(int(chosen.sum()))
    return fits, num_selected


def _regress(
    moments: Moments, chosen: Bool[np.ndarray, " q"], folds: Bool[np.ndarray, " k"]
) -> Float[np.ndarray, "q1 one"]:
    """Return the least squares on the constant and the controls chosen, over some of the folds;
    zero elsewhere."""
    sums = moments.over(folds[None])
    index = np.concatenate([[0], 1 + np.flatnonzero(chosen)])
    coefficients = np.zeros((len(chosen) + 1, 1))
    coefficients[index] = PositiveMatrix(sums.gram[0][np.ix_(index, index)]).solve(
        sums.cross[0][index]
    )
    return coefficients


@jax.jit
def lasso_path(
    gram: Float[Array, "q q"],
    moment: Float[Array, "q p"],
    fractions: Float[Array, " l"],
    largest: Float[Array, " p"],
) -> Float[Array, "l q p"]:
    """Minimise ½θᵀGθ − bᵀθ + λ|θ|₁ for λ = fraction·largest, along a decreasing path, by FISTA.

    Beck and Teboulle (2009, doi:10.1137/080716542), step 1/λmax(G).
    """
    # 1/λmax: a longer step need not decrease the quadratic.
    step = 1.0 / jnp.linalg.eigvalsh(gram)[-1]

    def at_penalty(start: Float[Array, "q p"], fraction: Float[Array, ""]) -> tuple[Any, ...]:
        threshold = (step * fraction * largest)[None, :]

        def advance(_: Array, state: tuple[Any, ...]) -> tuple[Any, ...]:
            theta, ahead, momentum = state
            moved = ahead - step * (gram @ ahead - moment)
            # Soft threshold, the proximal map of λ|θ|₁.
            new = jnp.sign(moved) * jnp.maximum(jnp.abs(moved) - threshold, 0.0)
            faster = 0.5 * (1 + jnp.sqrt(1 + 4 * momentum**2))
            return new, new + (momentum - 1) / faster * (new - theta), faster

        theta = jax.lax.fori_loop(0, NUM_STEPS, advance, (start, start, jnp.ones(())))[0]
        return theta, theta

    return jax.lax.scan(at_penalty, jnp.zeros_like(moment), fractions)[1]


def _select(theta: Float[np.ndarray, " q"], num_train: int) -> np.ndarray:
    """Return the mask of the non-zero coefficients, and of the largest only if there are more than
    may be selected."""
    limit = max(1, int(MAX_SELECTED * num_train))
    # A tie at the cut lets both through; zeros are never selected.
    cut = np.sort(np.abs(theta))[-limit] if len(theta) > limit else 0.0
    return (np.abs(theta) >= cut) & (theta != 0)
