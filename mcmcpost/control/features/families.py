"""Families of controls: functions of a draw and its score whose mean is zero."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from mcmcpost.stein import polynomial_exponents, polynomial_features

GAP_DEGREE = 4
"""Degree from which the error includes the distance of the mean from those of the two degrees
below."""


@dataclass(frozen=True, eq=False)
class AbstractFamily(abc.ABC):
    """Controls of one kind, in the coordinates of the draws and scores that it is given."""

    @property
    def doubted(self) -> bool:
        """Whether the error includes the distance of the mean from those with one and two families
        fewer."""
        return False

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
        """Return the controls at some states."""

    def to_json(self) -> dict[str, Any]:
        """Return what the family is made of, of which `from_json` makes it again."""
        return {"kind": type(self).__name__} | {
            part.name: _as_json(getattr(self, part.name)) for part in fields(self) if part.repr
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
        moving = np.flatnonzero(direction)
        return moving, np.broadcast_to(direction[moving], (len(draws), len(moving)))


def polynomials(d: int, degree: int, max_interaction: int | None = None) -> list[AbstractFamily]:
    """Return a family for each total degree up to `degree`: those before it span the polynomials of
    lower degree."""
    families: list[AbstractFamily] = [FirstOrder(d)] if degree else []
    if degree > 1:
        exponents = polynomial_exponents(d, degree, max_interaction=max_interaction)
        total = exponents.sum(axis=1)
        families += [Monomials(exponents[total == k]) for k in range(2, degree + 1)]
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
    return [_as_json(part) for part in value] if isinstance(value, tuple) else value


def from_json(value: Any) -> Any:
    """Return the family, or the part of one, that `AbstractFamily.to_json` wrote."""
    if isinstance(value, list):
        return tuple(map(from_json, value))
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return np.array(value["array"], value["dtype"])
    kinds: list[Any] = [AbstractFamily]
    while (kind := kinds.pop()).__name__ != value["kind"]:
        kinds += kind.__subclasses__()
    return kind(**{name: from_json(part) for name, part in value.items() if name != "kind"})


@dataclass(frozen=True, eq=False)
class Some(AbstractFamily):
    """Some of the controls of a family.

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
