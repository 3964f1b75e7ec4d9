"""Controls of functions of one quantity, from the vector field that controls its mean.

Let v control the mean of h: c = ∇·v + v·s ≈ h − E h. Then φ_g = g′(h) v·∇h + g(h) c has mean zero
for every g of one variable, and where v controls h exactly, φ is the Stein operator of the
distribution of h: probabilities, quantiles and densities are then controlled as well as the mean
is, whatever the dimension (docs/mathematics.md section 2).
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.interpolate import BSpline
from scipy.special import log_ndtr, ndtr
from scipy.stats import rankdata

from mcmcpost.control.features.families import AbstractFamily, controls_of
from mcmcpost.control.problem import Problem

KNOTS = 8
"""Inner knots of the splines, at evenly spaced quantiles."""

COARSE = KNOTS // 2
"""Inner knots of a second fit; see `mcmcpost.control.functions.Splines`."""

OUTERMOST = 0.02
"""Share of the draws beyond the outermost knot on either side."""

CUBIC = 3

WILD = 1.5
"""Standard deviations of v·∇h over its mean from which a field is left out where there is a simpler
one. Fields that served well had up to 1.0 (funnels, bananas, ratios of normals), and those that
turn, 3 to 2,000: of a regression with 400 draws they gave densities of zero."""

FARTHEST = 8.0
"""Normal deviates beyond which the element of a step is constant."""


class QuantityField(NamedTuple):
    """A quantity h at m states, and what its field v does there: c = ∇·v + v·s and v·∇h."""

    value: Float[np.ndarray, " m"]
    control: Float[np.ndarray, " m"]
    along: Float[np.ndarray, " m"]

    def splines(
        self, counts: Float[np.ndarray, " m"], inner_knots: int = KNOTS
    ) -> Float[np.ndarray, "m q"]:
        """Return φ_g of cubic B-splines g, which sum to one, so that c is a combination of them;
        zero on padding."""
        return (
            self.splines_between(knots_of(self.value[counts > 0], inner_knots))
            * (counts > 0)[:, None]
        )

    def splines_between(self, knots: Float[np.ndarray, " t"]) -> Float[np.ndarray, "m q"]:
        """Return the same of splines with these knots."""
        values, slopes = spline_basis(knots, self.value)
        return slopes * self.along[:, None] + values * self.control[:, None]

    def conditional(
        self, counts: Float[np.ndarray, " m"], at: Float[np.ndarray, " t"], ess: float
    ) -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, " t"]]:
        """Return E[v·∇h | h = t] by a regression on the splines, and its standard error for so many
        effective draws."""
        regression = Conditional.of(self, counts)
        return regression.at(at), regression.error(at, ess)

    def unlike_coarse(
        self, counts: Float[np.ndarray, " m"], at: Float[np.ndarray, " t"]
    ) -> Float[np.ndarray, " t"]:
        """Return how far that regression is from one with half the knots: what splines do not
        follow of a corner."""
        return np.abs(
            Conditional.of(self, counts).at(at) - Conditional.of(self, counts, COARSE).at(at)
        )

    def is_wild(self, counts: Float[np.ndarray, " m"]) -> bool:
        """Return whether v·∇h scatters more than it is.

        Among many controls are combinations that are nearly zero and whose fields are not: they
        turn about the density. The mean of h does not feel them, and a regression on v·∇h does.
        """
        mean = counts @ self.along / counts.sum()
        left = counts @ (self.along - mean) ** 2 / counts.sum()
        return bool(left > WILD**2 * mean**2)

    def beyond_zero(self, counts: Float[np.ndarray, " m"]) -> Bool[np.ndarray, " m"]:
        """Return the states beyond a zero of E[v·∇h | h]: nothing is transported to them from the
        others."""
        real = counts > 0
        slope, error = self.conditional(counts, self.value[real], float(counts.sum()))
        beyond = np.zeros(len(counts), bool)
        beyond[real] = np.sign(counts[real] @ slope) * slope < -error
        return beyond

    def steps(
        self, counts: Float[np.ndarray, " m"], at: Float[np.ndarray, " t"]
    ) -> Float[np.ndarray, "m t"]:
        """Return for each threshold t a control that has the step of 1{h ≤ t}; zero on padding."""
        return self.steps_of(self.as_normal(counts), at) * (counts > 0)[:, None]

    def steps_of(
        self, normal: "NormalDensity", at: Float[np.ndarray, " t"]
    ) -> Float[np.ndarray, "m t"]:
        """Return φ_g of the solution g of Stein's equation g′ − xg = 1{x ≤ t} − Φ(t) of a normal
        density.

        See Chen, Goldstein and Shao (2011, *Normal Approximation by Stein's Method*, chapter 2).
        """
        x, t, inside = normal.deviates(self.value, at)
        # √(2π) e^(x²/2) Φ(min) Φ(−max), in logarithms: its factors overflow and vanish from 38 sd
        # on. Those of minima are the minima of logarithms, of which there are fewer: most of the
        # time went there.
        below, above = np.minimum(log_ndtr(x), log_ndtr(t)), np.minimum(log_ndtr(-x), log_ndtr(-t))
        g = np.sqrt(2 * np.pi) * np.exp(0.5 * x**2 + below + above)
        slope = x * g + (self.value[:, None] <= at) - ndtr(t)
        return self._control(g, np.where(inside, slope, 0.0), normal.sd)

    def ramps(
        self, counts: Float[np.ndarray, " m"], at: Float[np.ndarray, " t"]
    ) -> Float[np.ndarray, "m t"]:
        """Return for each threshold t a control that has the step of c 1{h > t}, whose mean is the
        density's.

        As in `steps_of`, of the equation g′ − xg = x 1{x > t} − φ(t).
        """
        return self.ramps_of(self.as_normal(counts), at) * (counts > 0)[:, None]

    def ramps_of(
        self, normal: "NormalDensity", at: Float[np.ndarray, " t"]
    ) -> Float[np.ndarray, "m t"]:
        """Return the same with another normal density."""
        x, t, inside = normal.deviates(self.value, at)
        above = self.value[:, None] > at
        # √(2π) φ(t) e^(x²/2) times Φ(−x) above t, and −Φ(x) below: no factor overflows by itself.
        tail = np.where(above, log_ndtr(-x), log_ndtr(x))
        g = np.exp(0.5 * (x**2 - t**2) + tail) * np.where(above, 1.0, -1.0) - above
        slope = x * g + x * above - np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi)
        return self._control(g, np.where(inside, slope, 0.0), normal.sd)

    def as_normal(self, counts: Float[np.ndarray, " m"]) -> "NormalDensity":
        """Return the normal density that the field implies: of mean E(h − c) and variance |E
        v·∇h|."""
        # The step's jump is exact under any normal; this one only makes what is left of it small.
        total = counts.sum()
        mean = counts @ (self.value - self.control) / total
        return NormalDensity(float(mean), float(np.sqrt(abs(counts @ self.along) / total)) or 1.0)

    def _control(self, g: np.ndarray, slope: np.ndarray, sd: float) -> Float[np.ndarray, "m t"]:
        return slope * (self.along / sd)[:, None] + g * self.control[:, None]


class Conditional(NamedTuple):
    """E[v·∇h | h] by a regression on splines of h.

    inverse : of the mean products of the splines. left : mean square of what the regression leaves.
    """

    knots: Float[np.ndarray, " t"]
    coefficients: Float[np.ndarray, " q"]
    inverse: Float[np.ndarray, "q q"]
    left: float

    @classmethod
    def of(
        cls, field: QuantityField, counts: Float[np.ndarray, " m"], inner_knots: int = KNOTS
    ) -> "Conditional":
        """Return the regression at some states, by how often each is there."""
        real = counts > 0
        shares, knots = counts[real] / counts.sum(), knots_of(field.value[real], inner_knots)
        design, root, along = (
            spline_basis(knots, field.value[real])[0],
            np.sqrt(shares),
            field.along[real],
        )
        coefficients = np.linalg.lstsq(design * root[:, None], along * root, rcond=None)[0]
        inverse = np.linalg.pinv((design * shares[:, None]).T @ design)
        return cls(
            knots, coefficients, inverse, float(shares @ (along - design @ coefficients) ** 2)
        )

    def at(self, h: Float[np.ndarray, " t"]) -> Float[np.ndarray, " t"]:
        """Return the mean of v·∇h where h has these values."""
        return self.basis(h) @ self.coefficients

    def error(self, h: Float[np.ndarray, " t"], ess: float) -> Float[np.ndarray, " t"]:
        """Return the standard error there, of so many effective draws."""
        inside = self.basis(h)
        return np.sqrt(self.left / ess * ((inside @ self.inverse) * inside).sum(axis=1))

    def influence(
        self, field: QuantityField, h: Float[np.ndarray, " t"]
    ) -> Float[np.ndarray, "m t"]:
        """Return what each state adds to the mean there: over other draws the mean of this is what
        `at` has to move."""
        left = field.along - self.at(field.value)
        return left[:, None] * (self.basis(field.value) @ (self.inverse @ self.basis(h).T))

    def basis(self, h: Float[np.ndarray, " t"]) -> Float[np.ndarray, "t q"]:
        """Return the splines."""
        return spline_basis(self.knots, h)[0]


class NormalDensity(NamedTuple):
    """A normal density, to which a quantity is compared."""

    mean: float
    sd: float

    def deviates(
        self, values: Float[np.ndarray, " m"], at: Float[np.ndarray, " t"]
    ) -> tuple[Float[np.ndarray, "m one"], Float[np.ndarray, " t"], Bool[np.ndarray, "m one"]]:
        """Return values and thresholds as normal deviates, and which of those of the values are not
        cut off."""
        raw = ((values - self.mean) / self.sd)[:, None]
        x, t = (
            np.clip(raw, -FARTHEST, FARTHEST),
            np.clip((at - self.mean) / self.sd, -FARTHEST, FARTHEST),
        )
        return x, t, x == raw


def knots_of(h: Float[np.ndarray, " m"], inner_knots: int = KNOTS) -> Float[np.ndarray, " t"]:
    """Return knots at quantiles of a quantity, in order and without repeats.

    The outermost stand inside the draws: splines that end with the draws would leave out all that
    lies beyond, and follow any function to a wrong mean, by the same amount in every fold (cos 2x
    of 1,200 normal draws: z of −10).
    """
    quantiles = np.quantile(
        h, [OUTERMOST, *np.linspace(0, 1, inner_knots + 2)[1:-1], 1 - OUTERMOST]
    )
    return np.unique(quantiles) if quantiles[0] < quantiles[-1] else np.array([h.min(), h.max()])


def spline_basis(
    knots: Float[np.ndarray, " t"], points: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "n k"], Float[np.ndarray, "n k"]]:
    """Return cubic B-splines at points and their derivatives, which are straight beyond the
    outermost knots."""
    spline, derivative = _splines(tuple(knots.tolist()))
    # A cubic beyond the last knot would grow as t³ where there is hardly a draw.
    inside = np.clip(points, knots[0], knots[-1])
    slopes = derivative(inside)
    return spline(inside) + slopes * (points - inside)[:, None], slopes


@lru_cache(maxsize=512)  # the same ones are evaluated at block after block of draws
def _splines(knots: tuple[float, ...]) -> tuple[BSpline, BSpline]:
    low, *inner, high = knots
    ends = np.concatenate([[low] * (CUBIC + 1), inner, [high] * (CUBIC + 1)])
    spline = BSpline(ends, np.eye(len(ends) - CUBIC - 1), CUBIC)
    return spline, spline.derivative()


class FewCoordinates(NamedTuple):
    """A polynomial of a few coordinates: one of them itself, or what stands for a quantity.

    places : (r,) of the coordinates. terms : (k, r) exponents, those of lower degree first, with
        all that divide one.
    weights : (k,).
    """

    places: Int[np.ndarray, " r"]
    terms: Int[np.ndarray, "k r"]
    weights: Float[np.ndarray, " k"]

    @classmethod
    def coordinate(cls, j: int, sign: float = 1.0) -> "FewCoordinates":
        """Return a coordinate itself, or its negative."""
        return cls(np.array([j]), _monomials(1, 1), np.array([0.0, sign]))

    def at(
        self, draws: Float[np.ndarray, "m d"]
    ) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, "m r"]]:
        """Return the values at some draws, and the derivatives by the coordinates."""
        basis, place = (
            _powers(draws[:, self.places], self.terms),
            {tuple(t): k for k, t in enumerate(self.terms)},
        )
        slopes = np.zeros((len(draws), len(self.places)))
        for k in range(len(self.places)):
            # The derivative of a monomial is another, to a factor.
            of = np.flatnonzero(self.terms[:, k])
            lower = self.terms[of] - np.eye(len(self.places), dtype=int)[k]
            slopes[:, k] = basis[:, [place[tuple(t)] for t in lower]] @ (
                self.terms[of, k] * self.weights[of]
            )
        return basis @ self.weights, slopes


@dataclass(frozen=True, eq=False)
class FunctionsOf(AbstractFamily):
    """Controls φ_g of functions g of one quantity, along a field that is known: splines, and the
    steps of events.

    families, coefficients : (q,) the field v, that of the control of these families which these
        coefficients make.
    places, terms, weights : the quantity, as in `FewCoordinates`.
    knots : (t,) of the splines. steps : (s,) thresholds of the quantity, and `normal` what it is
        compared to there.
    names : of the integrands that are functions of the quantity. uses : (k, s) the steps that each
        has.
    jumps : (k,) how many of them may be elsewhere between two draws.
    fine : whether the splines refine those of another family before it.
    ramps : whether steps are those of densities, as in `QuantityField.ramps`.
    """

    families: tuple[AbstractFamily, ...]
    coefficients: Float[np.ndarray, " q"]
    places: Int[np.ndarray, " r"]
    terms: Int[np.ndarray, "m r"]
    weights: Float[np.ndarray, " m"]
    knots: Float[np.ndarray, " t"]
    steps: Float[np.ndarray, " s"]
    normal: tuple[float, float]
    names: tuple[str, ...]
    uses: Bool[np.ndarray, "k s"]
    jumps: Int[np.ndarray, " k"]
    fine: bool
    ramps: bool = False

    @property
    def serves(self) -> tuple[str, ...]:
        return self.names

    @property
    def doubted(self) -> bool:
        # What splines do not follow of a function is the same in every fold, and no refit shows it.
        return self.fine

    @property
    def size(self) -> int:
        return len(self.knots) + CUBIC - 1 + len(self.steps)

    def controls(
        self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b d"]
    ) -> Float[np.ndarray, "b q"]:
        return self.controls_along(self.field(draws, scores))

    def controls_along(self, field: QuantityField) -> Float[np.ndarray, "b q"]:
        """Return the controls at states where the field is known."""
        steps = field.ramps_of if self.ramps else field.steps_of
        return np.concatenate(
            [steps(NormalDensity(*self.normal), self.steps), field.splines_between(self.knots)],
            axis=1,
        )

    def field(
        self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b d"]
    ) -> QuantityField:
        """Return the quantity at some states, and what the field does there."""
        return fields_at([self], draws, scores)[0]


def fields_at(
    functions: Sequence[FunctionsOf],
    draws: Float[np.ndarray, "b d"],
    scores: Float[np.ndarray, "b d"],
) -> list[QuantityField]:
    """Return the field of each at some states.

    The controls that fields are made of are computed once: those of all quantities are mostly the
    same, and there may be hundreds of either.
    """
    # The coarse and the fine splines of a quantity have one field. Families compare by identity: of
    # sums that were read from a file each is made anew, and nothing is shared.
    keys = [(id(function.weights), id(function.coefficients)) for function in functions]
    different = dict(zip(keys, functions, strict=True))
    controls: dict[tuple[AbstractFamily, ...], np.ndarray] = {}
    parts, users = {}, dict[int, list[tuple[tuple[int, int], np.ndarray]]]()
    for key, function in different.items():
        if function.families not in controls:
            controls[function.families] = controls_of(function.families, draws, scores)[:, 1:]
        parts[key], slopes = FewCoordinates(function.places, function.terms, function.weights).at(
            draws
        )
        for place, slope in zip(function.places.tolist(), slopes.T, strict=True):
            users.setdefault(place, []).append((key, slope))
    along = {key: np.zeros(len(draws)) for key in different}
    # v·∇h is the sum of v along the coordinates, and a control is affine in the score: see
    # `AbstractFamily.along`. Of one coordinate after the other, since what it needs may be as large
    # as the controls.
    for place, of in users.items():
        direction, made = (
            np.eye(draws.shape[1])[place],
            dict[AbstractFamily, tuple[np.ndarray, np.ndarray]](),
        )
        for key, slope in of:
            function, end = different[key], 0
            for family in function.families:
                if family not in made:
                    made[family] = family.along(draws, direction)
                which, values = made[family]
                along[key] += slope * (values @ function.coefficients[end + which])
                end += family.size
    fields = {
        key: QuantityField(
            parts[key], controls[function.families] @ function.coefficients, along[key]
        )
        for key, function in different.items()
    }
    return [fields[key] for key in keys]


class Quantity(NamedTuple):
    """A function h of the draws whose gradient is known: a coordinate of the trace, or a polynomial
    of a few.

    value : (m,) at the states, zero on padding.
    slopes : (m, r), or (1, r) where they are constant, derivatives by the coordinates of the
        polynomial in units of their scale.
    explained : R² of the quantity that it stands for; one for a coordinate.
    """

    value: Float[np.ndarray, " m"]
    polynomial: FewCoordinates
    slopes: Float[np.ndarray, "n r"]
    explained: float

    @property
    def places(self) -> Int[np.ndarray, " r"]:
        """The coordinates that it depends on."""
        return self.polynomial.places

    def directions(self, problem: Problem) -> Float[np.ndarray, "r d"]:
        """Return the gradients of its coordinates in those of a problem: of h it is
        slopes·directions."""
        # x = shift + L z, and slopes are by x/|row of L|: the chain rule.
        lower = problem.lower[self.places]
        return lower / np.linalg.norm(lower, axis=1)[:, None]


TELLING_STATES = 500
"""Evenly spaced states by which it is told of which coordinate an integrand is a function."""

ROUGH = 0.2
"""Mean square step between neighbours, relative to twice the variance, above which it is no
function of it."""

SMOOTH = 1e-3
"""The same below which it may be one, since steps are no smaller between so few states."""


def coordinate_of(
    problem: Problem, lowest: Float[np.ndarray, " p"] | float = np.inf
) -> Int[np.ndarray, " p"]:
    """Return the coordinate of which each integrand seems to be a function, −1 where it is one of
    none.

    In the order of that coordinate an integrand moves in small steps, or in few. Half the mean
    square step is the variance that no function of the coordinate explains (von Neumann 1941,
    *Annals of Mathematical Statistics* 12). Its ranks are looked at too: of a lognormal one, the
    step to the largest of the draws may be a fifth of the variance.

    problem : in the trace's own coordinates. lowest : (p,) the variance that may be left, by
        default a fifth.
    """
    rows = np.linspace(0, problem.num_states - 1, min(problem.num_states, TELLING_STATES)).astype(
        int
    )
    draws, values = np.asarray(problem.draws[rows]), problem.values[rows]
    # Ranks do what values do not where a few of these are far out, and events have the same of
    # both.
    both = np.stack([values, rankdata(values, axis=0)])
    size = 2 * len(rows) * both.var(axis=1)
    ratio = np.full((draws.shape[1], values.shape[1]), np.inf)
    for j, order in enumerate(np.argsort(draws, axis=0).T):
        steps = (np.diff(both[:, order], axis=1) ** 2).sum(axis=1)
        ratio[j] = np.where(size > 0, steps / np.where(size > 0, size, 1.0), np.inf).min(axis=0)
    most = np.clip(lowest, SMOOTH, ROUGH)
    return np.where(ratio.min(axis=0) < most, ratio.argmin(axis=0), -1)


def coordinate(problem: Problem, j: int, sign: float = 1.0) -> Quantity:
    """Return a coordinate of the trace, or its negative, in units of its scale.

    problem : in the trace's own coordinates.
    """
    return Quantity(
        sign * _columns(problem, [j])[:, 0],
        FewCoordinates.coordinate(j, sign),
        np.full((1, 1), sign),
        1.0,
    )


def _columns(problem: Problem, places: Sequence[int]) -> Float[np.ndarray, "m r"]:
    """Return some coordinates at all states, in memory."""
    return problem.draws[:, places]


MOST_PLACES = 8
"""Coordinates that a polynomial stands on at most."""

SMALLEST_SHARE = 0.02
"""Coefficient, relative to the largest of a linear regression, below which a coordinate is not
taken at once."""

EXPLAINED = 0.98
"""R² below which a polynomial does not stand for a quantity."""

HOPELESS = 0.3
"""Share of the variance that a quadratic of `MOST_PLACES` coordinates leaves, from which on no
cubic of them is fitted: it would have to take that below 1 − `EXPLAINED`. In four hierarchical
models none did."""

COMPLETE = 1e-7
"""Share of the variance that need not be explained."""

BEYOND_CHANCE = 4.5
"""Normal deviate from which a correlation of what is left is no chance, among some thousand that
are looked at."""

CHOOSING_STATES = 1_000
"""Evenly spaced states on which the coordinates of a polynomial are chosen."""

DRAWS_PER_TERM = 5
"""States for each term of a polynomial."""


def surrogates(problem: Problem, columns: Sequence[int]) -> list[Quantity | None]:
    """Return for each of some integrands a cubic of a few coordinates that stands for it; None
    where there is none.

    Controls that are built on it have mean zero whatever it is: where it is inaccurate they only
    gain less.

    problem : in the trace's own coordinates.
    """
    m = problem.num_states
    rows = np.linspace(0, m - 1, min(m, CHOOSING_STATES)).astype(int)
    z, f = np.asarray(problem.draws[rows]), problem.values[np.ix_(rows, columns)]
    f = (f - f.mean(axis=0)) / f.std(axis=0)
    if len(rows) >= 2 * z.shape[1]:
        along = np.linalg.lstsq(np.concatenate([np.ones((len(z), 1)), z], axis=1), f, rcond=None)[
            0
        ][1:]
    else:
        # Too few states for a regression: of coordinates without correlation it would be this.
        along = z.T @ f / len(z)
    return [_surrogate(problem, z, *of_one) for of_one in zip(columns, f.T, along.T, strict=True)]


def _surrogate(
    problem: Problem,
    z: Float[np.ndarray, "n d"],
    column: int,
    f: Float[np.ndarray, " n"],
    along: Float[np.ndarray, " d"],
) -> Quantity | None:
    """Return the cubic of one integrand; z, f : coordinates and its values at the states by which
    these are chosen."""
    strongest = np.argsort(-np.abs(along), kind="stable")[: MOST_PLACES // 2]
    places = [int(j) for j in strongest if abs(along[j]) >= SMALLEST_SHARE * np.abs(along).max()]
    # The span of their quadratics grows by one coordinate at a time, orthonormal: a regression
    # anew for each, and cubics that were hopeless, took a third of the time of 609 quantiles of a
    # model with 103 parameters.
    span = np.linalg.qr(_powers(z[:, places], _monomials(len(places), 2)))[0]
    left = f - span @ (span.T @ f)
    while True:
        # What is still missing shows by itself, or in its product with what is there, as a log
        # scale in that with z.
        others = np.setdiff1d(np.arange(z.shape[1]), places)
        if left @ left < COMPLETE * len(f) or len(places) == MOST_PLACES or not len(others):
            break
        by = np.concatenate([np.ones((len(z), 1)), z[:, places]], axis=1) * left[:, None]
        seen = np.abs(by.T @ z[:, others]) / np.linalg.norm(by, axis=0)[:, None]
        largest = seen.max(axis=0)
        if largest.max() < BEYOND_CHANCE:
            break
        chosen = int(others[largest.argmax()])
        beside = np.concatenate([np.ones((len(z), 1)), z[:, [*places, chosen]]], axis=1)
        new = z[:, [chosen]] * beside
        for _ in range(2):  # the second time for what rounding leaves
            new -= span @ (span.T @ new)
        new = np.linalg.qr(new)[0]
        span = np.concatenate([span, new], axis=1)
        left -= new @ (new.T @ left)
        places.append(chosen)
    # A sum over many coordinates, of which a cubic of a few would hardly tell more.
    if len(places) == MOST_PLACES and left @ left > HOPELESS * len(f):
        return None
    real = problem.counts > 0
    z, f = _columns(problem, places), problem.values[:, column]
    enough = problem.num_states // DRAWS_PER_TERM
    degree = max((k for k in (1, 2, 3) if comb(len(places) + k, k) <= enough), default=1)
    terms = _monomials(len(places), degree)
    basis, root = _powers(z, terms), np.sqrt(problem.counts)
    polynomial = FewCoordinates(
        np.array(places), terms, np.linalg.lstsq(basis * root[:, None], f * root, rcond=None)[0]
    )
    value, slopes = polynomial.at(problem.draws)
    value = np.where(real, value, 0.0)
    unexplained = problem.counts @ (f - value) ** 2 / problem.counts.sum()
    return (
        Quantity(value, polynomial, slopes, 1 - unexplained)
        if unexplained < 1 - EXPLAINED
        else None
    )


def _monomials(number: int, degree: int) -> Int[np.ndarray, "q r"]:
    """Return the exponents of all monomials up to a degree, those of lower degree first, the
    constant included."""
    every = [np.zeros(number, int)]
    for total in range(1, degree + 1):
        for chosen in itertools.combinations_with_replacement(range(number), total):
            every.append(np.bincount(chosen, minlength=number))
    return np.array(every)


def _powers(z: Float[np.ndarray, "m r"], terms: Int[np.ndarray, "q r"]) -> Float[np.ndarray, "m q"]:
    """Return the monomials of `_monomials`, each made of one of lower degree by one product."""
    monomials = np.ones((len(z), len(terms)), order="F")
    place = {tuple(term): k for k, term in enumerate(terms)}
    for k, term in enumerate(terms):
        if term.any():
            last = int(np.flatnonzero(term)[-1])
            below = term.copy()
            below[last] -= 1
            np.multiply(monomials[:, place[tuple(below)]], z[:, last], out=monomials[:, k])
    return monomials


NODES = (6, 4)
"""Draws about a point through which a map is interpolated, and those that tell how wrong this
is."""

AROUND, TELLING = 4, 50
"""Such draws on either side of a point, and evenly spaced ones, by which it is told how rough a map
is."""

CLOSE = 1e-3
"""Distance of these draws at least, in the range of the coordinate."""


def spaced(
    known: Float[np.ndarray, " k"], image: Float[np.ndarray, " k"]
) -> tuple[Float[np.ndarray, " l"], Float[np.ndarray, " l"]]:
    """Return a map at draws that are not too close: they would divide rounding by their
    distance."""
    gap = np.ptp(image) * CLOSE
    place = np.unique(np.floor((image - image[0]) / gap), return_index=True)[1]
    place = np.append(place, len(image) - 1)
    place = place[np.append(True, np.diff(image[place]) > gap / 4)]
    return known[place], image[place]


def interpolated(
    known: Float[np.ndarray, " k"],
    image: Float[np.ndarray, " k"],
    inside: Float[np.ndarray, " t"],
    count: int,
) -> tuple[Float[np.ndarray, " t"], Float[np.ndarray, " t"], Float[np.ndarray, "two t"]]:
    """Return the polynomial through so many neighbours of those that tell a monotone map, its
    derivative, and the errors of both from independent ones of unit size in the image.

    Monotone cubics are of second order in an uneven gap: the 0.05 quantile of exp(θ) from 2,000
    normal draws was off by 3e-5 of itself, and its density by 1e-3. A quintic leaves 1e-8.

    known, image : increasing values, and where they are mapped to, of `spaced` draws. inside :
        points between the first and the last.
    """
    count = min(count, len(known))
    first = (np.searchsorted(known, inside) - count // 2).clip(0, len(known) - count)
    near = first[:, None] + np.arange(count)
    span = known[near[:, -1]] - known[near[:, 0]]
    powers = ((known[near] - inside[:, None]) / span[:, None])[..., None] ** np.arange(count)
    middle = image[near[:, count // 2]]
    try:
        inverse = np.linalg.inv(powers)[:, :2]
        inverse[:, 1] /= span[:, None]
    except np.linalg.LinAlgError:  # a map so flat that its values are the same to rounding
        inverse = np.full((len(inside), 2, count), np.nan)
    value, slope = (inverse @ (image[near] - middle[:, None])[..., None])[..., 0].T
    return middle + value, slope, np.linalg.norm(inverse, axis=2).T


def roughness(
    known: Float[np.ndarray, " k"], image: Float[np.ndarray, " k"], inside: Float[np.ndarray, " t"]
) -> tuple[Float[np.ndarray, " t"], float]:
    """Return how far the images of draws about each point are from the polynomials through their
    neighbours, root mean square, and of all draws the median, in units of the known values;
    infinite where draws are too few.

    Values that were rounded, to float32 or to six digits, make a map rough, and two polynomials
    through the same draws do not show it: densities and quantiles of exp(θ) rounded to four digits
    were a hundred errors off. Such a map is rough everywhere, and one with a corner there alone.
    """
    size, half = len(known), NODES[0] // 2
    if size <= NODES[0]:
        return np.full(len(inside), np.inf), np.inf
    near = np.searchsorted(known, inside)[:, None] + np.arange(-AROUND, AROUND)
    spread_out = np.linspace(half, size - 1 - half, min(size, TELLING)).astype(int)
    at, place = np.unique(
        np.append(near.clip(half, size - 1 - half), spread_out), return_inverse=True
    )
    around = at[:, None] + np.delete(np.arange(-half, half + 1), half)
    from_middle = known[around] - known[at][:, None]
    powers = (from_middle / np.ptp(from_middle, axis=1)[:, None])[..., None] ** np.arange(NODES[0])
    try:
        left = np.linalg.solve(powers, (image[around] - image[at][:, None])[..., None])[:, 0, 0]
    except np.linalg.LinAlgError:  # as above
        return np.full(len(inside), np.inf), np.inf
    steepness = (known[at + 1] - known[at - 1]) / (image[at + 1] - image[at - 1])
    local = left[place[: near.size]].reshape(near.shape)
    typical = np.median(np.abs(left * steepness)[place[near.size :]])
    return np.sqrt((local**2).mean(axis=1)), float(typical)


NEAR = 10
"""Draws on either side of a step that tell how dense they are there."""


def spread_between(
    ordered: Float[np.ndarray, " n"], after: Int[np.ndarray, " s"]
) -> Float[np.ndarray, " s"]:
    """Return the standard deviation of a level that is uniform between two neighbours, the second
    at `after`."""
    return _density_near(ordered, after) * (ordered[after] - ordered[after - 1]) / np.sqrt(12)


def _density_near(
    ordered: Float[np.ndarray, " n"], after: Int[np.ndarray, " s"]
) -> Float[np.ndarray, " s"]:
    """Return the density of draws where the next one is at `after`."""
    n = len(ordered)
    low, high = np.maximum(after - NEAR, 0), np.minimum(after + NEAR - 1, n - 1)
    return (high - low) / n / np.maximum(ordered[high] - ordered[low], np.finfo(float).tiny)


def doubt_of_steps(
    value: Float[np.ndarray, " m"],
    num_states: int,
    steps: Float[np.ndarray, " s"],
    unsure: Float[np.ndarray, " s"] | None = None,
) -> Float[np.ndarray, " s"]:
    """Return the errors of probabilities of not knowing where steps are: to within `unsure`, or
    between two draws.

    value : (m,) the quantity at the states, whose first are no padding.
    """
    ordered = np.sort(value[:num_states])
    after = np.searchsorted(ordered, steps).clip(1, num_states - 1)
    return (
        spread_between(ordered, after) if unsure is None else _density_near(ordered, after) * unsure
    )
