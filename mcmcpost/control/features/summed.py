"""The controls of a trace and the quantities, in the units in which both are summed."""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from mcmcpost.control.features.families import AbstractFamily, Some
from mcmcpost.control.features.quantity import FunctionsOf, fields_at
from mcmcpost.core.errors import InputError

SAME = 1e-6
"""Relative distance of a control from the span of others up to which it is a combination of them."""


class ControlSet(NamedTuple):
    """The controls of one fit, which has sums of its own: what no fit has together needs no products.

    serves : the quantities that they are made for; None for any. columns : (k,) their places.
    families, labels : as in `Features`. places : (q + 1,) of the constant and the controls among all.
    """

    serves: tuple[str, ...] | None
    families: tuple[AbstractFamily, ...]
    labels: tuple[str, ...]
    places: Int[np.ndarray, " q1"]
    columns: Int[np.ndarray, " k"]

    @property
    def _steps(self) -> FunctionsOf | None:
        """The family that has the steps of events; None where there is none."""
        first = self.families[0] if self.families else None
        first = first.family if isinstance(first, Some) else first
        return first if isinstance(first, FunctionsOf) else None

    def by_steps(self, names: Sequence[str]) -> "Iterator[tuple[Int[np.ndarray, ' r1'], ControlSet]]":
        """Yield the controls of the quantities that have the same steps, and their places among those of the set.

        The steps of other events would only be noise in a fit, and where two of them are close no fit tells them apart.
        """
        functions = self._steps
        if functions is None:
            yield np.arange(len(self.places)), self
            return
        first = self.families[0]
        kept = first.kept if isinstance(first, Some) else np.ones(functions.size, bool)
        row = dict(zip(functions.names, functions.uses, strict=True))
        splines = np.ones(functions.size - len(functions.steps), bool)
        groups: dict[bytes, list[int]] = {}
        for j in self.columns.tolist():
            groups.setdefault(row[names[j]].tobytes(), []).append(j)
        for columns in groups.values():
            mask = kept & np.concatenate([row[names[columns[0]]], splines])
            among = np.concatenate([[True], mask[kept], np.ones(len(self.places) - 1 - kept.sum(), bool)])
            families = (Some(functions, mask), *self.families[1:])
            at = np.flatnonzero(among)
            yield at, self._replace(families=families, places=self.places[at], columns=np.array(columns))

    def doubt(
        self, columns: Int[np.ndarray, " j"], names: Sequence[str], ess: Float[np.ndarray, " p"]
    ) -> Float[np.ndarray, " j"]:
        """Return the errors of probabilities of not knowing where in a coordinate an event begins and ends.

        That is between two of the draws that are kept. Of the others that lie there the residuals tell, as of a Poisson
        number, to which one is added: where there is none, it may have been by chance.
        """
        functions = self._steps
        jumps = {} if functions is None else dict(zip(functions.names, functions.jumps, strict=True))
        return np.sqrt([jumps.get(names[j], 0) for j in columns]) / ess[columns]


class Features(NamedTuple):
    """The controls of a trace, and the quantities, in the units in which both are summed.

    coordinates : d labels of those that move. shift, scale : (d,) a coordinate is shift + scale·z. The scale is a power
        of two, so that of two traces it is the same but for a few coordinates: products x_i s_j + x_j s_i in units of
        another ratio are other controls.
    families, labels : from small to large, and the method's label with each.
    names : p labels of the quantities. location, unit : (p,) a quantity is location + unit·f. events : as in `Sample`.
    """

    coordinates: tuple[str, ...]
    shift: Float[np.ndarray, " d"]
    scale: Float[np.ndarray, " d"]
    families: tuple[AbstractFamily, ...]
    labels: tuple[str, ...]
    names: tuple[str, ...]
    location: Float[np.ndarray, " p"]
    unit: Float[np.ndarray, " p"]
    events: Bool[np.ndarray, " p"]

    @property
    def size(self) -> int:
        """The number of controls, the constant included."""
        return 1 + sum(family.size for family in self.families)

    @property
    def sets(self) -> list["ControlSet"]:
        """The controls of each fit: those for any quantity first, of which there may be none, then those for some."""
        named = list(zip(self.families, self.labels, strict=True))
        by_quantities: list[tuple[tuple[str, ...] | None, list[tuple[AbstractFamily, str]]]] = []
        if not named or named[0][0].serves is not None:
            by_quantities.append((None, []))
        by_quantities += [(own, list(group)) for own, group in itertools.groupby(named, lambda one: one[0].serves)]
        found, end, place = list[ControlSet](), 1, {name: j for j, name in enumerate(self.names)}
        for serves, group in by_quantities:
            families, labels = tuple(family for family, _ in group), tuple(label for _, label in group)
            start, end = end, end + sum(family.size for family in families)
            if serves is None:
                columns = list(range(len(self.names)))
            else:
                columns = sorted(place[name] for name in serves if name in place)
            places = np.concatenate([[0], np.arange(start, end)])
            found.append(ControlSet(serves, families, labels, places, np.array(columns, int)))
        return found

    def controls(self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b d"]) -> Float[np.ndarray, "b q1"]:
        """Return the constant and the controls at some draws."""
        draws, scores = (draws - self.shift) / self.scale, scores * self.scale
        bare = [family.family if isinstance(family, Some) else family for family in self.families]
        fields = iter(fields_at([family for family in bare if isinstance(family, FunctionsOf)], draws, scores))
        parts = [np.ones((len(draws), 1))]
        for family, own in zip(self.families, bare, strict=True):
            part = own.controls_along(next(fields)) if isinstance(own, FunctionsOf) else own.controls(draws, scores)
            parts.append(part[:, family.kept] if isinstance(family, Some) else part)
        return np.concatenate(parts, axis=1)

    def standard(self, values: Float[np.ndarray, "*b p"]) -> Float[np.ndarray, "*b p"]:
        """Return quantities in the units in which they are summed."""
        return (values - self.location) / self.unit

    def is_same(self, other: "Features") -> bool:
        """Return whether sums of both are sums of the same."""
        arrays = ("shift", "scale", "location", "unit")
        alike = all(np.array_equal(getattr(self, name), getattr(other, name)) for name in arrays)
        return alike and [own.to_json() for own in self.families] == [own.to_json() for own in other.families]

    def select(self, kept: Bool[np.ndarray, " q"]) -> "Features":
        """Return those of some controls."""
        parts = np.split(kept, np.cumsum([family.size for family in self.families])[:-1])
        chosen = [
            (family if part.all() else Some(family, part), label)
            for family, label, part in zip(self.families, self.labels, parts, strict=True)
            if part.any()
        ]
        families, labels = zip(*chosen, strict=True) if chosen else ((), ())
        return self._replace(families=families, labels=labels)

    def in_terms_of(self, other: "Features") -> tuple[Float[np.ndarray, "r1 q1"], Bool[np.ndarray, " q1"]]:
        """Return the map from other controls to these, and which of these are combinations of the others.

        It is read off their values at random points: no family has to know how it changes with the units.
        """
        points = np.random.default_rng(0).normal(size=(2, 2 * max(self.size, other.size) + 8, len(self.shift)))
        draws, scores = self.shift + self.scale * points[0], points[1] / self.scale
        ours, theirs = self.controls(draws, scores), other.controls(draws, scores)
        change, same = np.zeros((other.size, self.size)), np.zeros(self.size, bool)
        change[0, 0], same[0] = 1.0, True
        known = {controls.serves: controls.places[1:] for controls in other.sets}
        for controls in self.sets:
            # Each fit's controls in those of the same fit: only of these are there products.
            own, at = controls.places[1:], known.get(controls.serves, np.empty(0, int))
            norms = np.linalg.norm(theirs[:, at], axis=0)
            norms = np.where(norms > 0, norms, 1.0)
            part = np.linalg.lstsq(theirs[:, at] / norms, ours[:, own], rcond=1e-12)[0] / norms[:, None]
            apart = np.linalg.norm(ours[:, own] - theirs[:, at] @ part, axis=0)
            change[np.ix_(at, own)] = part
            same[own] = apart <= SAME * np.linalg.norm(ours[:, own], axis=0)
        return change, same


@runtime_checkable
class Transform(Protocol):
    """Quantities (b, p) of other quantities (b, r), where draws and scores are known, on the worker that has them."""

    def __call__(
        self, values: Float[np.ndarray, "b r"], draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b d"]
    ) -> Float[np.ndarray, "b p"]:
        """Return them."""


def check_same_features(features: Features, names: Sequence[str], coordinates: Sequence[str]) -> None:
    """Refuse other quantities, or other coordinates that move, than those that are summed."""
    for what, ours, theirs in (
        ("quantities", features.names, names),
        ("parameters", features.coordinates, coordinates),
    ):
        if ours != theirs:
            others = sorted({*ours} ^ {*theirs}) or "another order"
            raise InputError("moments", f"the same {what}", others, "Sum the same of every trace.")
