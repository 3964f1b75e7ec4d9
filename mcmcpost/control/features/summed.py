"""The controls of a trace and the quantities, in the units in which both are summed, and the sums
of a chunk."""

import itertools
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from mcmcpost.control.features.families import AbstractFamily, Subset
from mcmcpost.control.features.quantity import FunctionsOf, fields_at
from mcmcpost.control.moments import Moments
from mcmcpost.control.problem import MIN_FOLDS
from mcmcpost.core.arrays import in_blocks
from mcmcpost.core.errors import InputError
from mcmcpost.scores import ScoreError
from mcmcpost.trace import listed, passages_of

SAME = 1e-6
"""Relative distance of a control from the span of others up to which it is a combination of
them."""


class ControlSet(NamedTuple):
    """The controls of one fit, which has sums of its own: what no fit has together needs no
    products.

    serves : the quantities that they are made for; None for any. columns : (k,) their places.
    families, labels : as in `Features`. places : (q + 1,) of the constant and the controls among
        all.
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
        first = first.family if isinstance(first, Subset) else first
        return first if isinstance(first, FunctionsOf) else None

    def by_steps(
        self, names: Sequence[str]
    ) -> "Iterator[tuple[Int[np.ndarray, ' r1'], ControlSet]]":
        """Yield the controls of the quantities that have the same steps, and their places among
        those of the set.

        The steps of other events would only be noise in a fit, and where two of them are close no
        fit tells them apart.
        """
        functions = self._steps
        if functions is None:
            yield np.arange(len(self.places)), self
            return
        first = self.families[0]
        kept = first.kept if isinstance(first, Subset) else np.ones(functions.size, bool)
        row = dict(zip(functions.names, functions.uses, strict=True))
        splines = np.ones(functions.size - len(functions.steps), bool)
        # Quantities that have the same steps share a fit.
        groups: dict[bytes, list[int]] = {}
        for j in self.columns.tolist():
            groups.setdefault(row[names[j]].tobytes(), []).append(j)
        for columns in groups.values():
            mask = kept & np.concatenate([row[names[columns[0]]], splines])
            # The constant, and the families behind the functions, are in every fit.
            among = np.concatenate(
                [[True], mask[kept], np.ones(len(self.places) - 1 - kept.sum(), bool)]
            )
            families = (Subset(functions, mask), *self.families[1:])
            at = np.flatnonzero(among)
            yield (
                at,
                self._replace(families=families, places=self.places[at], columns=np.array(columns)),
            )

    def doubt(
        self, columns: Int[np.ndarray, " j"], names: Sequence[str], ess: Float[np.ndarray, " p"]
    ) -> Float[np.ndarray, " j"]:
        """Return the errors of probabilities of not knowing where in a coordinate an event begins
        and ends.

        That is between two of the draws that are kept. Of the others that lie there the residuals
        tell, as of a Poisson number, to which one is added: where there is none, it may have been
        by chance.
        """
        functions = self._steps
        jumps = (
            {} if functions is None else dict(zip(functions.names, functions.jumps, strict=True))
        )
        return np.sqrt([jumps.get(names[j], 0) for j in columns]) / ess[columns]


class Features(NamedTuple):
    """The controls of a trace, and the quantities, in the units in which both are summed.

    coordinates : d labels of those that move. shift, scale : (d,) a coordinate is shift + scale·z.
        The scale is a power of two, so that of two traces it is the same but for a few coordinates:
        products x_i s_j + x_j s_i in units of another ratio are other controls.
    families, labels : from small to large, and the method's label with each.
    names : p labels of the quantities. location, unit : (p,) a quantity is location + unit·f.
        events : as in `Sample`.
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
        """The controls of each fit: those for any quantity first, of which there may be none, then
        those for some."""
        named = list(zip(self.families, self.labels, strict=True))
        by_quantities: list[tuple[tuple[str, ...] | None, list[tuple[AbstractFamily, str]]]] = []
        # The constant alone, for quantities that no family serves.
        if not named or named[0][0].serves is not None:
            by_quantities.append((None, []))
        by_quantities += [
            (served, list(group))
            for served, group in itertools.groupby(named, lambda one: one[0].serves)
        ]
        control_sets, end, place = (
            list[ControlSet](),
            1,
            {name: j for j, name in enumerate(self.names)},
        )
        for serves, group in by_quantities:
            families, labels = (
                tuple(family for family, _ in group),
                tuple(label for _, label in group),
            )
            start, end = end, end + sum(family.size for family in families)
            if serves is None:
                columns = list(range(len(self.names)))
            else:
                # A selection of quantities may lack some that the families are for.
                columns = sorted(place[name] for name in serves if name in place)
            places = np.concatenate([[0], np.arange(start, end)])
            control_sets.append(
                ControlSet(serves, families, labels, places, np.array(columns, int))
            )
        return control_sets

    def controls(
        self, draws: Float[np.ndarray, "b d"], scores: Float[np.ndarray, "b d"]
    ) -> Float[np.ndarray, "b q1"]:
        """Return the constant and the controls at some draws."""
        # A score is a derivative: it is multiplied by what the draws are divided by.
        draws, scores = (draws - self.shift) / self.scale, scores * self.scale
        bare = [family.family if isinstance(family, Subset) else family for family in self.families]
        # Of all families together, since some have their field in common.
        fields = iter(
            fields_at([family for family in bare if isinstance(family, FunctionsOf)], draws, scores)
        )
        parts = [np.ones((len(draws), 1))]
        for family, inner in zip(self.families, bare, strict=True):
            columns = (
                inner.controls_along(next(fields))
                if isinstance(inner, FunctionsOf)
                else inner.controls(draws, scores)
            )
            parts.append(columns[:, family.kept] if isinstance(family, Subset) else columns)
        return np.concatenate(parts, axis=1)

    def standard(self, values: Float[np.ndarray, "*b p"]) -> Float[np.ndarray, "*b p"]:
        """Return quantities in the units in which they are summed."""
        return (values - self.location) / self.unit

    def is_same(self, other: "Features") -> bool:
        """Return whether sums of both are sums of the same."""
        arrays = ("shift", "scale", "location", "unit")
        alike = all(np.array_equal(getattr(self, name), getattr(other, name)) for name in arrays)
        return alike and [family.to_json() for family in self.families] == [
            family.to_json() for family in other.families
        ]

    def select(self, kept: Bool[np.ndarray, " q"]) -> "Features":
        """Return those of some controls."""
        parts = np.split(kept, np.cumsum([family.size for family in self.families])[:-1])
        chosen = [
            (family if mask.all() else Subset(family, mask), label)
            for family, label, mask in zip(self.families, self.labels, parts, strict=True)
            if mask.any()
        ]
        families, labels = zip(*chosen, strict=True) if chosen else ((), ())
        return self._replace(families=families, labels=labels)

    def in_terms_of(
        self, other: "Features"
    ) -> tuple[Float[np.ndarray, "r1 q1"], Bool[np.ndarray, " q1"]]:
        """Return the map from other controls to these, and which of these are combinations of the
        others.

        It is read off their values at random points: no family has to know how it changes with the
        units.
        """
        points = np.random.default_rng(0).normal(
            size=(2, 2 * max(self.size, other.size) + 8, len(self.shift))
        )
        draws, scores = self.shift + self.scale * points[0], points[1] / self.scale
        ours, theirs = self.controls(draws, scores), other.controls(draws, scores)
        change, same = np.zeros((other.size, self.size)), np.zeros(self.size, bool)
        change[0, 0], same[0] = 1.0, True
        known = {controls.serves: controls.places[1:] for controls in other.sets}
        for controls in self.sets:
            # Each fit's controls in those of the same fit: only of these are there products.
            places, at = controls.places[1:], known.get(controls.serves, np.empty(0, int))
            norms = np.linalg.norm(theirs[:, at], axis=0)
            norms = np.where(norms > 0, norms, 1.0)
            coefficients = (
                np.linalg.lstsq(theirs[:, at] / norms, ours[:, places], rcond=1e-12)[0]
                / norms[:, None]
            )
            distance = np.linalg.norm(ours[:, places] - theirs[:, at] @ coefficients, axis=0)
            change[np.ix_(at, places)] = coefficients
            same[places] = distance <= SAME * np.linalg.norm(ours[:, places], axis=0)
        return change, same


@runtime_checkable
class Transform(Protocol):
    """Quantities (b, p) of other quantities (b, r), where draws and scores are known, on the worker
    that has them."""

    def __call__(
        self,
        values: Float[np.ndarray, "b r"],
        draws: Float[np.ndarray, "b d"],
        scores: Float[np.ndarray, "b d"],
    ) -> Float[np.ndarray, "b p"]:
        """Return them."""


def check_same_features(
    features: Features,
    names: Sequence[str],
    coordinates: Sequence[str],
    sides: tuple[str, str] = ("the first sums", "the second"),
) -> None:
    """Refuse other quantities, or other coordinates that move, than those that are summed.

    sides : what the error calls what has the features, and what has the names.
    """
    for what, ours, theirs in (
        ("quantities", features.names, names),
        ("parameters", features.coordinates, coordinates),
    ):
        if ours != theirs:
            alone = [
                f"{', '.join(lone[:8]) + ', …' * (len(lone) > 8)} only in {side}"
                for side, known, other in zip(sides, (ours, theirs), (theirs, ours), strict=True)
                if (lone := [name for name in known if name not in other])
            ]
            got, cure = " and ".join(alone) or "another order", "Sum the same of every trace"
            if what == "quantities":
                cure += ": pass the integrands again, on the command line --expect"
            raise InputError("moments", f"the same {what}", got, f"{cure}.")


MOST_RUNS = 2_048
"""Runs of which one trace has sums; twice as many after traces were added."""

MOST_SAMPLED = 2_048
"""Evenly spaced draws that are kept of one trace, likewise: a standard deviation is known to 2 %
from so many."""


class Layout(NamedTuple):
    """How the draws of chains of one length are cut into runs and folds, and which are kept,
    whatever their chunks.

    There are eight folds: whole chains where there are as many, and else eighths of every chain. A
    run is in one fold.

    chains, draws : c, n. runs : r of each chain. step : of the draws that are kept.
    start : draws of the same chains before these, as where a run went on.
    """

    chains: int
    draws: int
    runs: int
    step: int
    start: int = 0

    @classmethod
    def of(cls, chains: int, draws: int, start: int = 0) -> "Layout":
        """Return that of so many chains and draws."""
        runs = 1 if chains >= MIN_FOLDS else MIN_FOLDS
        if draws < runs:
            cure = "Sum eight chains at once, or longer ones."
            raise InputError(
                "moments", f"{MIN_FOLDS} chains, or draws of each", f"{chains} of {draws}", cure
            )
        # Powers of two, so that runs of twice the length, and every second draw, are those of
        # longer traces.
        while 2 * runs * chains <= MOST_RUNS and 2 * runs <= draws:
            runs *= 2
        step = 1
        while chains * -(-draws // step) > MOST_SAMPLED and step < draws:
            step *= 2
        return cls(chains, draws, runs, step, start)

    @property
    def of_whole_chains(self) -> bool:
        """Whether folds are whole chains."""
        return self.chains >= MIN_FOLDS

    @property
    def sampled(self) -> Int[np.ndarray, " s"]:
        """The draws of each chain that are kept."""
        return np.arange(0, self.draws, self.step)

    @property
    def folds(self) -> Int[np.ndarray, "c r"]:
        """The fold of each run."""
        if self.of_whole_chains:
            return np.repeat(np.arange(self.chains)[:, None] % MIN_FOLDS, self.runs, axis=1)
        return np.repeat(np.arange(self.runs)[None] * MIN_FOLDS // self.runs, self.chains, axis=0)

    def run_of(self, draws: Int[np.ndarray, " b"]) -> Int[np.ndarray, " b"]:
        """Return in which run of a chain each draw is."""
        return draws * self.runs // self.draws


class Chains(NamedTuple):
    """Chains of one length: sums over their runs, and some of their draws.

    layout : of the chains. fingerprints : numbers that tell each from others; see
        `fingerprints_of`.
    start : of sums over a chunk the first chain, run and kept draw that the arrays are of; zeros of
        whole chains.
    counts : (c, r) draws of each run. controls, values : (c, r, q + 1), (c, r, p) sums over it, as
        summed in `Moments`.
    draws, scores, sample : (c, s, d) twice, (c, s, p) the draws that are kept, and the quantities
        there, as given.
    """

    layout: Layout
    fingerprints: Int[np.ndarray, " c0"]
    start: tuple[int, int, int]
    counts: Float[np.ndarray, "c r"]
    controls: Float[np.ndarray, "c r q1"]
    values: Float[np.ndarray, "c r p"]
    draws: Float[np.ndarray, "c s d"]
    scores: Float[np.ndarray, "c s d"]
    sample: Float[np.ndarray, "c s p"]

    @classmethod
    def zero(
        cls,
        layout: Layout,
        fingerprints: Int[np.ndarray, " c0"],
        features: Features,
        chains: slice,
        draws: slice,
    ) -> "Chains":
        """Return those of no draw, with room for a chunk."""
        (first, last), step = layout.run_of(np.array([draws.start, draws.stop - 1])), layout.step
        kept = -(-draws.start // step), -(-draws.stop // step)
        c, r, s = chains.stop - chains.start, last + 1 - first, kept[1] - kept[0]
        d, p = len(features.shift), len(features.names)
        shapes = [(c, r), (c, r, features.size), (c, r, p), (c, s, d), (c, s, d), (c, s, p)]
        return cls(
            layout, fingerprints, (chains.start, int(first), kept[0]), *map(np.zeros, shapes)
        )

    def __add__(self, other: "Chains") -> "Chains":  # type: ignore[override]
        """Return the sums over other draws of the same chains too."""
        chain, run, kept = map(min, self.start, other.start)
        (c, r, k), (c1, r1, k1) = self.start, other.start
        runs = (
            sum_at(one, (c, r), two, (c1, r1))
            for one, two in zip(self[3:6], other[3:6], strict=True)
        )
        draws = (
            sum_at(one, (c, k), two, (c1, k1)) for one, two in zip(self[6:], other[6:], strict=True)
        )
        return Chains(self.layout, self.fingerprints, (chain, run, kept), *runs, *draws)

    def thinned(self, step: int) -> "Chains":
        """Return the chains with every `step`-th draw kept, a multiple of the present step by a
        power of two."""
        draws, scores, sample = (array[:, :: step // self.layout.step] for array in self[6:])
        return self._replace(
            layout=self.layout._replace(step=step), draws=draws, scores=scores, sample=sample
        )

    def with_longer_runs(self) -> "Chains":
        """Return sums over runs of twice the length, if there are two in a fold."""
        c, r = self.counts.shape
        if r == (1 if self.layout.of_whole_chains else MIN_FOLDS):
            return self
        sums = (array.reshape(c, r // 2, 2, *array.shape[2:]).sum(axis=2) for array in self[3:6])
        counts, controls, values = sums
        return self._replace(
            layout=self.layout._replace(runs=r // 2),
            counts=counts,
            controls=controls,
            values=values,
        )


def sum_at(
    one: Float[np.ndarray, "..."],
    start: tuple[int, ...],
    two: Float[np.ndarray, "..."],
    other: tuple[int, ...],
) -> Float[np.ndarray, "..."]:
    """Return the sum of two parts of one array, which begin at these places, on the smallest box
    that holds both."""
    axes = len(start)
    low = np.minimum(start, other)
    high = np.maximum(np.add(start, one.shape[:axes]), np.add(other, two.shape[:axes]))
    # Chunks next to each other have a run in common, where their sums overlap.
    total = np.zeros((*(high - low), *one.shape[axes:]))
    for term, place in ((one, start), (two, other)):
        total[tuple(slice(i, i + n) for i, n in zip(place - low, term.shape, strict=False))] += term
    return total


class Sums(NamedTuple):
    """The sums over some draws of chains of one length.

    fold : the first of which there are moments; zero of all draws. moments : of folds, for each set
        of controls that a fit has, as in `Features.sets`. chains : of runs.
    low, high : (p,) the range of each quantity. missing : (p,) draws at which it is not finite.
    passages : (k,) some of the draws' `passages_of`; see `fewest`.
    """

    fold: int
    moments: tuple[Moments, ...]
    chains: Chains
    low: Float[np.ndarray, " p"]
    high: Float[np.ndarray, " p"]
    missing: Float[np.ndarray, " p"]
    passages: Int[np.ndarray, " k"]

    def __add__(self, other: "Sums") -> "Sums":  # type: ignore[override]
        """Return the sums over other draws of the same chains too."""
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        starts = (self.fold,), (other.fold,)
        moments = tuple(
            Moments(*(sum_at(a, starts[0], b, starts[1]) for a, b in zip(one, two, strict=True)))
            for one, two in zip(self.moments, other.moments, strict=True)
        )
        chains, missing = self.chains + other.chains, self.missing + other.missing
        passages = fewest(self.passages, other.passages)
        return Sums(min(self.fold, other.fold), moments, chains, low, high, missing, passages)


def sums_of(
    features: Features,
    layout: Layout,
    fingerprints: Int[np.ndarray, " chains"],
    draws: Float[np.ndarray, "c b d"],
    scores: Float[np.ndarray, "c b d"],
    values: Float[np.ndarray, "c b _"],
    place: tuple[int, int] = (0, 0),
    transform: Transform | None = None,
) -> Sums:
    """Return the sums over a chunk of a trace.

    layout, fingerprints : of the trace. draws, scores : of the coordinates that move.
    place : the chain and the draw at which the chunk begins. transform : to the quantities of the
        features.
    """
    p, (c, n), sets = len(features.names), draws.shape[:2], features.sets
    chains, every = slice(place[0], place[0] + c), np.arange(place[1], place[1] + n)
    totals = Chains.zero(layout, fingerprints, features, chains, slice(place[1], place[1] + n))
    _, run, kept_before = totals.start
    # Only the runs and folds that the chunk has: what comes back of it is small beside the sums
    # over all draws.
    folds = layout.folds[chains, layout.run_of(every)]
    fold, num_folds = int(folds.min()), int(folds.max() - folds.min()) + 1
    moments = [
        Moments.zero(num_folds, len(control_set.places), len(control_set.columns))
        for control_set in sets
    ]
    low, high, missing = np.full(p, np.inf), np.full(p, -np.inf), np.zeros(p)
    passages = fewest(*map(passages_of, draws))
    for chain, chain_arrays in enumerate(zip(draws, scores, values, strict=True)):
        for block in in_blocks(n, features.size + p):
            x, s, f = (array[block].astype(float) for array in chain_arrays)
            # Here, since there may be hundreds of them for each of the quantities that a chunk has.
            f, at = f if transform is None else transform(f, x, s), every[block]
            where = (place[0] + chain, layout.start + at)
            _check_finite(x, s if features.families else x, features.coordinates, *where)
            low, high, finite = (
                np.fmin(low, f.min(axis=0)),
                np.fmax(high, f.max(axis=0)),
                np.isfinite(f),
            )
            missing += (~finite).sum(axis=0)
            kept = np.flatnonzero(at % layout.step == 0)
            for sample, array in zip(
                (totals.draws, totals.scores, totals.sample), (x, s, f), strict=True
            ):
                sample[chain, at[kept] // layout.step - kept_before] = array[kept]
            controls, f = features.controls(x, s), np.where(finite, features.standard(f), 0.0)
            runs = layout.run_of(at) - run
            first = np.flatnonzero(np.diff(runs, prepend=-1))
            # A run that goes on in another block, or chunk, has sums in both.
            totals.counts[chain, runs[first]] += np.diff(first, append=len(at))
            totals.controls[chain, runs[first]] += np.add.reduceat(controls, first)
            totals.values[chain, runs[first]] += np.add.reduceat(f, first)
            label, ones = folds[chain, block] - fold, np.ones(len(at))
            # Each fit by itself: products of the controls of two would be most of the work, and
            # none needs them.
            for k, of in enumerate(sets):
                moments[k] += Moments.of(
                    controls[:, of.places], f[:, of.columns], label, ones, num_folds
                )
    return Sums(fold, tuple(moments), totals, low, high, missing, passages)


MOST_PASSAGES = 500


def fewest(*parts: Int[np.ndarray, " _"]) -> Int[np.ndarray, " k"]:
    """Return the smallest numbers of passages of draws, `MOST_PASSAGES` of them.

    What is smallest of some draws and of others is so of both (Broder 1997,
    doi:10.1109/SEQUEN.1997.666900): where sums share a hundredth of their draws, they share five
    such numbers on average, wherever those draws are.
    """
    return np.unique(np.concatenate(parts))[:MOST_PASSAGES]


TELLING = 8
"""Draws at the start of a chain that tell it from others."""


def fingerprints_of(starts: Float[np.ndarray, "c t d"]) -> Int[np.ndarray, " c"]:
    """Return numbers that tell chains from others, by their first draws, `TELLING` of them."""
    rows = np.ascontiguousarray(starts[:, :TELLING], dtype=float)
    return np.array([zlib.crc32(row.tobytes()) for row in rows], np.int64)


def _check_finite(
    x: Float[np.ndarray, "b d"],
    s: Float[np.ndarray, "b d"],
    names: tuple[str, ...],
    chain: int,
    at: np.ndarray,
) -> None:
    for what, rows, error in (("draws", x, InputError), ("scores", s, ScoreError)):
        missing = ~np.isfinite(rows)
        if missing.any():
            bad = missing.any(axis=1)
            got = (
                f"NaN or infinity in {listed(names, missing.any(axis=0))} at chain {chain}, draw "
                f"{at[np.argmax(bad)]}, the first of {bad.sum()} in a block"
            )
            # Scores have mean zero over all draws: without these the controls would move the means.
            cure = "Find out what wrote them, or compute the scores again; keep these draws."
            raise error("moments", f"finite {what}", got, cure)
