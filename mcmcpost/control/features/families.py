"""Families of controls: functions of a draw and its score whose mean is zero; and polynomials as
columns, which kernels leave unpenalised."""

import abc
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float, Int

from mcmcpost.control.problem import Problem
from mcmcpost.core.arrays import in_blocks
from mcmcpost.stein import polynomial_exponents, polynomial_features

GAP_DEGREE = 4
"""Degree from which the error includes the distance of the mean from those of the two degrees
below."""

NEED = 1.05
"""A larger family must lower the error variance by this factor, or the smaller one is kept."""

NEED_OF_FIELDS = 4.0
"""The same of vector fields: where they are what is missing they lower it a hundredfold, and
elsewhere their many controls hide errors. With 1.05 they made errors too small by chance (scales of
a Gaussian process, chains of AR(0.9): z² of 3.1, with this factor 1.5)."""

SMOOTH = 1e-2, 1e3
"""Part of the variance up to which an integrand is one that polynomials follow, and the factor that
vector fields then need. What is left lies beyond the outermost draws, where no residual shows what
more controls do: of logarithms of gamma variables z² was 5.0 with a thousandth here, and is 2.3 as
without vector fields."""

RANK_TOLERANCE = 1e-10
"""Relative to columns of unit norm."""


@dataclass(frozen=True, eq=False)
class AbstractFamily(abc.ABC):
    """Controls of one kind, in the coordinates of the draws and scores that it is given."""

    @property
    def doubted(self) -> bool:
        """Whether the error includes the distance of the mean from those with one and two families
        fewer."""
        return False

    def need(self, left: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        """Return by which factor the controls must lower the error variance, or fewer are taken.

        left : (p,) that variance of the smaller families, relative to the integrand's.
        """
        return np.full(len(left), NEED)

    @property
    def serves(self) -> tuple[str, ...] | None:
        """The quantities that the controls are made for; None for any."""
        return None

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """The number of controls."""

    @abc.abstractmethod
    def controls(
        self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b d"]
    ) -> Float[np.ndarray, "b q"]:
        """Return the controls at some states, of which some may be padding: zeros."""

    def to_json(self) -> dict[str, Any]:
        """Return what the family is made of, of which `from_json` makes it again."""
        return {"kind": type(self).__name__} | {
            field.name: _as_json(getattr(self, field.name)) for field in fields(self) if field.repr
        }

    def along(
        self, draws: Float[np.ndarray, "b d"], direction: Float[np.ndarray, " d"]
    ) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, "b n"]]:
        """Return which controls have a vector field v along a direction somewhere, and how far it
        goes along it.

        Every control ∇·v + v·s is affine in the score s: with the direction in its place, less what
        it is at zero, it is v·direction. No family has to know more than its controls.
        """
        scores = np.broadcast_to(direction, draws.shape)
        return np.arange(self.size), self.controls(draws, scores) - self.controls(
            draws, np.zeros_like(draws)
        )


@dataclass(frozen=True, eq=False)
class Monomials(AbstractFamily):
    """The Stein features Δφ + ∇φ·s of monomials φ (Mira, Solgi and Imparato 2013,
    doi:10.1007/s11222-012-9344-6).

    exponents : (q, d).
    """

    exponents: Int[np.ndarray, "q d"]

    @property
    def size(self) -> int:
        return len(self.exponents)

    @property
    def doubted(self) -> bool:
        # Such polynomials follow the integrand between the draws and depart from it beyond the
        # outermost one.
        return bool(self.exponents.sum(axis=1).max() >= GAP_DEGREE)

    def controls(
        self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b d"]
    ) -> Float[np.ndarray, "b q"]:
        return np.asarray(polynomial_features(draws, scores, self.exponents))


@dataclass(frozen=True, eq=False)
class FirstOrder(AbstractFamily):
    """The scores themselves: the features of the monomials of degree one, of which there may be
    thousands."""

    num_coordinates: int

    @property
    def size(self) -> int:
        return self.num_coordinates

    def controls(
        self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b d"]
    ) -> Float[np.ndarray, "b q"]:
        del draws  # the features of z are the scores alone
        return np.asarray(scores)

    def along(
        self, draws: Float[np.ndarray, "b d"], direction: Float[np.ndarray, " d"]
    ) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, "b n"]]:
        # Each field is one coordinate everywhere: of thousands those along the direction are few.
        moving = np.flatnonzero(direction)
        return moving, np.broadcast_to(direction[moving], (len(draws), len(moving)))


def polynomials(d: int, degree: int, max_interaction: int | None = None) -> list[AbstractFamily]:
    """Return a family for each total degree up to `degree`: those before it span the polynomials of
    lower degree."""
    # Degree one by itself: its exponents would be a matrix of d² zeros and ones.
    families: list[AbstractFamily] = [FirstOrder(d)] if degree else []
    if degree > 1:
        exponents = polynomial_exponents(d, degree, max_interaction=max_interaction)
        total = exponents.sum(axis=1)
        families += [Monomials(exponents[total == k]) for k in range(2, degree + 1)]
    return families


@dataclass(frozen=True, eq=False)
class Fields(AbstractFamily):
    """The controls ∂ᵢx^β + x^β sᵢ of vector fields along one coordinate, v = x^β eᵢ.

    exponents : (q, d) β. directions : (q,) i.
    """

    exponents: Int[np.ndarray, "q d"]
    directions: Int[np.ndarray, " q"]

    def need(self, left: Float[np.ndarray, " p"]) -> Float[np.ndarray, " p"]:
        smooth, factor = SMOOTH
        return np.where(left > smooth, NEED_OF_FIELDS, factor)

    @property
    def size(self) -> int:
        return len(self.directions)

    @property
    def doubted(self) -> bool:
        return bool(self.exponents.sum(axis=1).max() + 1 >= GAP_DEGREE)

    def controls(
        self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b d"]
    ) -> Float[np.ndarray, "b q"]:
        # ∂ᵢx^β = βᵢ x^(β−eᵢ); where βᵢ is zero the term is, and 0⁻¹ must not be evaluated.
        place = np.arange(self.size)
        power = self.exponents[place, self.directions]
        lower = self.exponents.copy()
        lower[place, self.directions] = np.maximum(power - 1, 0)
        return power * _monomials(draws, lower) + _monomials(draws, self.exponents) * np.asarray(
            scores[:, self.directions]
        )

    def along(
        self, draws: Float[np.ndarray, "b d"], direction: Float[np.ndarray, " d"]
    ) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, "b n"]]:
        moving = np.flatnonzero(direction[self.directions])
        # x^β eᵢ goes along the direction by x^β times its i-th entry.
        lengths = direction[self.directions[moving]]
        return moving, _monomials(draws, self.exponents[moving]) * lengths


def _monomials(
    draws: Float[np.ndarray, "b d"], exponents: Int[np.ndarray, "q d"]
) -> Float[np.ndarray, "b q"]:
    """Return x^β for each β; few of its entries are not zero."""
    # Coordinate by coordinate: all powers at once would take d times the memory.
    values = np.ones((len(draws), len(exponents)))
    for x, powers in zip(np.asarray(draws).T, exponents.T, strict=True):
        involved = np.flatnonzero(powers)
        values[:, involved] *= x[:, None] ** powers[involved]
    return values


def vector_fields(d: int, degree: int, max_interaction: int | None = None) -> list[AbstractFamily]:
    """Return a family for each total degree up to `degree`, none in one dimension: with the
    `polynomials` of degree k + 1, those up to k span all polynomial vector fields of degree k.

    The fields x^(α−eᵢ)eᵢ of a monomial x^α add up to its gradient but for factors, hence one fewer
    of each.
    """
    # x^(α−eᵢ)eᵢ for every i with αᵢ > 0, of the monomials of the next degree.
    monomials = polynomial_exponents(d, degree + 1, max_interaction=max_interaction)
    of, directions = np.nonzero(monomials)
    beside = np.diff(of, prepend=-1) == 0  # all directions of a monomial but its first
    exponents, directions = monomials[of[beside]], directions[beside]
    exponents[np.arange(len(exponents)), directions] -= 1
    total = exponents.sum(axis=1)
    families: list[AbstractFamily] = []
    for k in range(1, degree + 1):
        if (total == k).any():
            families.append(Fields(exponents[total == k], directions[total == k]))
    return families


def controls_of(
    families: Sequence[AbstractFamily],
    draws: Float[np.ndarray, "b d"],
    scores: Float[np.ndarray, "b d"],
) -> Float[np.ndarray, "b q1"]:
    """Return the constant one and the controls of all families, side by side."""
    parts = [family.controls(draws, scores) for family in families]
    return np.concatenate([np.ones((len(draws), 1)), *parts], axis=1)


def _as_json(value: Any) -> Any:
    if isinstance(value, AbstractFamily):
        return value.to_json()
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": str(value.dtype)}
    return [_as_json(item) for item in value] if isinstance(value, tuple) else value


def from_json(value: Any) -> Any:
    """Return the family, or the part of one, that `AbstractFamily.to_json` wrote."""
    if isinstance(value, list):
        return tuple(map(from_json, value))
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return np.array(value["array"], value["dtype"])
    renamed = {"Some": "Subset", "Sums": "BlockSums"}  # since 0.2.0, whose sums may be read
    wanted = renamed.get(value["kind"], value["kind"])
    # Looked up among the classes that are there: what a file says is never imported.
    kinds: list[Any] = [AbstractFamily]
    while (kind := kinds.pop()).__name__ != wanted:
        kinds += kind.__subclasses__()
    return kind(**{name: from_json(item) for name, item in value.items() if name != "kind"})


@dataclass(frozen=True, eq=False)
class Subset(AbstractFamily):
    """A subset of the controls of a family.

    kept : (q,) of the family's controls.
    """

    family: AbstractFamily
    kept: Bool[np.ndarray, " q"]

    @property
    def doubted(self) -> bool:
        return self.family.doubted

    @property
    def serves(self) -> tuple[str, ...] | None:
        return self.family.serves

    @property
    def size(self) -> int:
        return int(np.count_nonzero(self.kept))

    def controls(
        self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b d"]
    ) -> Float[np.ndarray, "b q"]:
        return self.family.controls(draws, scores)[:, self.kept]


def independent_columns(design: Float[np.ndarray, "m q"]) -> Bool[np.ndarray, " q"]:
    """Return which columns to keep so that none is, to rounding, a combination of the others.

    Columns are of unit norm; the first, the constant, always stays. A pivoted QR, which is slower,
    is made only where a plain one shows that a column is dependent.
    """
    size = design.shape[1]
    if (
        design.shape[0] >= size
        and (np.abs(np.diagonal(np.linalg.qr(design, mode="r"))) > RANK_TOLERANCE).all()
    ):
        return np.ones(size, bool)
    # The constant is projected out, since pivoting may not leave it out for a column like it.
    residual = design[:, 1:] - design[:, :1] * (
        design[:, 0] @ design[:, 1:] / (design[:, 0] @ design[:, 0])
    )
    r, order = scipy.linalg.qr(residual, mode="r", pivoting=True)
    rank = int((np.abs(np.diagonal(r)) > RANK_TOLERANCE).sum())
    keep = np.zeros(size, bool)
    keep[0] = True
    keep[1 + order[:rank]] = True
    return keep


class MonomialFeatures(NamedTuple):
    """Stein features of monomials, divided by their norms.

    exponents : (a, d). norms : (a,).
    """

    exponents: Int[np.ndarray, "a d"]
    norms: Float[np.ndarray, " a"]

    def of(
        self, draws: Float[np.ndarray, "m d"], scores: Float[np.ndarray, "m d"]
    ) -> Float[np.ndarray, "m a"]:
        """Return the features at some states."""
        if not len(self.norms):
            return np.zeros((len(draws), 0))
        return np.asarray(polynomial_features(draws, scores, self.exponents)) / self.norms


def polynomial_basis(
    problem: Problem, exponents: Int[np.ndarray, "a d"]
) -> Float[np.ndarray, "m q"]:
    """Return the constant one and the Stein features L∇φ of some monomials φ, of which there may be
    none.

    Features have unit weighted norm and are zero on padding; those that are combinations of others
    are left out.
    """
    return basis_with_features(problem, exponents)[0]


def basis_with_features(
    problem: Problem, exponents: Int[np.ndarray, "a d"]
) -> tuple[Float[np.ndarray, "m q"], MonomialFeatures]:
    """Return what `polynomial_basis` returns, and its features, with which it can be made of other
    states."""
    real = (problem.counts > 0).astype(float)[:, None]
    if not len(exponents):
        return real, MonomialFeatures(exponents, np.zeros(0))
    draws, scores = np.asarray(problem.draws), np.asarray(problem.scores)
    features = np.asarray(polynomial_features(draws, scores, exponents)) * real
    norms = np.sqrt(problem.counts @ features**2)
    # A feature that is zero at all draws is left out below, and not divided by zero here.
    norms = np.where(norms > 0, norms, 1.0)
    unit = np.concatenate([real / np.sqrt(problem.counts.sum()), features / norms], axis=1)
    keep = independent_columns(unit * np.sqrt(problem.counts)[:, None])
    # Unit norm was for the rank: the coefficient of the constant is that of one.
    unit[:, 0] = real[:, 0]
    return unit[:, keep], MonomialFeatures(exponents[keep[1:]], norms[keep[1:]])


def exponents_of_degree(
    num_parameters: int, degree: int, max_interaction: int | None = None
) -> np.ndarray:
    """Return the monomials of total degree 1 to `degree`; none for degree zero."""
    if degree == 0:
        return np.zeros((0, num_parameters), int)
    return polynomial_exponents(num_parameters, degree, max_interaction=max_interaction)


def by_fold(labels: Int[np.ndarray, " m"], width: int) -> Iterator[tuple[int, slice]]:
    """Yield blocks of rows with one label each, those of padding, −1, left out; see `in_blocks`."""
    ends = np.append(np.flatnonzero(np.diff(labels)) + 1, len(labels))
    for start, end in itertools.pairwise([0, *ends.tolist()]):
        for block in in_blocks(end - start, width) if labels[start] >= 0 else ():
            yield int(labels[start]), slice(start + block.start, start + block.stop)
