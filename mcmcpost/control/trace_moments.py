"""Sums over the draws of a trace that add: over chunks, chains, jobs and machines, and as a sampler
goes on.

All that a linear estimate and its errors need is in them (docs/mathematics.md section 2), in memory
that does not grow with the draws: of every fold the sums of `Moments`, of every short run of a
chain the sums of controls and quantities, in which residuals are linear, and some evenly spaced
draws for what sums do not show, as tails.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import scipy.stats
from jaxtyping import Bool, Float, Int

from mcmcpost.control.estimate import Estimate, covariance_of
from mcmcpost.control.features.families import NEED, from_json
from mcmcpost.control.features.summed import (
    MOST_RUNS,
    MOST_SAMPLED,
    Chains,
    ControlSet,
    Features,
    Layout,
    check_same_features,
    fewest,
)
from mcmcpost.control.linear import LinearFits, Subsystem, choose_families, system_of
from mcmcpost.control.method import ROUNDING, PlainMean, Refits, columnwise
from mcmcpost.control.moments import Moments, Outline
from mcmcpost.control.problem import MIN_BLOCK, MIN_FOLDS, Options
from mcmcpost.control.standard_errors import (
    DISAGREEMENT,
    Columns,
    Residuals,
    combined_error,
    heavy_tailed,
    reported_columns,
)
from mcmcpost.core.arguments import MOMENTS
from mcmcpost.core.errors import TRUSTED, InputError, InputTypeError, Status, written_whole
from mcmcpost.core.mcse import mcse_mean, participants
from mcmcpost.core.precision import beyond_rounding
from mcmcpost.core.runtime import counts_text
from mcmcpost.scores import effective_size

if TYPE_CHECKING:
    import xarray

LOST = 1e-10
"""Variance of residuals, of a quantity of unit variance, below which differences of sums have no
digits of it."""


def _not_sums(other: object) -> InputTypeError:
    """Return the error of adding what are no sums: Python's own names two types and no cure."""
    cure = "Sum a trace first: moments(tree). Estimates are combined by pool_estimates."
    got = repr(type(other).__name__)
    return InputTypeError("moments", "sums of moments() on both sides of +", got, cure)


BY_CHANCE = 0.01
"""How often groups of chains of one posterior may differ by more than is put down to chance."""

ERROR_FREEDOM = 30
"""Degrees of freedom of the errors within groups, about those of ArviZ's ESS of few chains."""


class TraceMoments(NamedTuple):
    """Sums over traces of one posterior, from `moments`: ``a + b`` are those of the draws of both.

    `expectation` and `summary` estimate from them what they would from the draws, by linear control
    variates. They are as large for any number of draws: 8(q² + pq) numbers for each set of q
    controls that a fit has, and r(p + q) + s(2d + p), of all q controls, p quantities, and up to
    4,000 runs r and sampled draws s.

    features : what is summed. moments, low, high, missing, passages : as in `Sums`. groups : chains
        of one length each.
    verified, bad_scores : what the score gate found, as in `Options`. controlled : whether control
        variates are used.
    seconds : that sampling took; None where a trace has no record of it.
    """

    features: Features
    moments: tuple[Moments, ...]
    low: Float[np.ndarray, " p"]
    high: Float[np.ndarray, " p"]
    missing: Float[np.ndarray, " p"]
    passages: Int[np.ndarray, " k"]
    groups: tuple[Chains, ...]
    verified: bool
    bad_scores: bool
    controlled: bool
    seconds: float | None

    @property
    def num_chains(self) -> int:
        """Chains of all lengths."""
        return sum(group.layout.chains for group in self.groups)

    @property
    def num_draws(self) -> int:
        """Draws of all chains together."""
        return sum(group.layout.chains * group.layout.draws for group in self.groups)

    @property
    def counts(self) -> dict[str, int]:
        """How many draws were summed, and of what."""
        return {
            "chains": self.num_chains,
            "draws": self.num_draws,
            "quantities": len(self.features.names),
            "controls": self.features.size - 1,
        }

    def __repr__(self) -> str:
        """Return the counts: the arrays of a tuple fill screens."""
        return f"TraceMoments of {counts_text(self.counts)}"

    def __add__(self, other: object) -> "TraceMoments":
        """Return the sums over the draws of both, of the controls that both have.

        other : sums, or a tree that has them.

        Raises
        ------
        ValueError : the quantities or the parameters are others; a draw is in both.
        TypeError : `other` is no such sums.
        """
        if MOMENTS in getattr(other, "children", ()):
            other = stored_moments(cast("xarray.DataTree", other))
        if not isinstance(other, TraceMoments):
            raise _not_sums(other)
        self._check_addable(other)
        mine, theirs = self, other
        if not self.features.is_same(other.features):
            change, both = self.features.in_terms_of(other.features)
            mine = self.with_controls(both)
            theirs = other.converted(mine.features, change[:, both])
        # What is kept does not grow with the traces: fewer of the draws of each, and longer runs.
        groups = (*mine.groups, *theirs.groups)
        step = max(group.layout.step for group in groups)
        groups = tuple(group.thinned(step) for group in groups)
        while sum(group.sample[..., 0].size for group in groups) > 2 * MOST_SAMPLED:
            step *= 2
            groups = tuple(group.thinned(step) for group in groups)
        before = 0
        while before != (before := sum(group.counts.size for group in groups)) > 2 * MOST_RUNS:
            groups = tuple(group.with_longer_runs() for group in groups)
        seconds = (
            None if self.seconds is None or other.seconds is None else self.seconds + other.seconds
        )
        return TraceMoments(
            features=mine.features,
            moments=tuple(one + two for one, two in zip(mine.moments, theirs.moments, strict=True)),
            low=np.minimum(self.low, other.low),
            high=np.maximum(self.high, other.high),
            missing=self.missing + other.missing,
            passages=fewest(self.passages, other.passages),
            groups=groups,
            verified=self.verified and other.verified,
            bad_scores=self.bad_scores or other.bad_scores,
            controlled=self.controlled and other.controlled,
            seconds=seconds,
        )

    def __radd__(self, other: object) -> "TraceMoments":
        """Return the sums themselves, where `sum` begins with zero."""
        if not isinstance(other, int | float) or other != 0:
            raise _not_sums(other)
        return self

    def _check_addable(self, other: "TraceMoments") -> None:
        check_same_features(self.features, other.features.names, other.features.coordinates)
        for group in other.groups:
            # The same draws twice would halve the variance of every error.
            before = self.draws_of(group.fingerprints)
            if before > group.layout.start:
                got = f"draws {group.layout.start} to {before - 1} of a chain in both"
                cure = (
                    "Add other chains, or leave these out: moments(tree, like=first, start=draws)."
                )
                raise InputError("moments", "every draw once", got, cure)
        if np.isin(self.passages, other.passages).any():
            cure = "Leave them out of one of them: tree.isel(draw=slice(first, last))."
            raise InputError("moments", "every draw once", "draws that are in both", cure)

    def draws_of(self, fingerprints: Int[np.ndarray, " c"]) -> int:
        """Return the draws of chains that are in the sums: up to where the longest of them is."""
        known = [
            g.layout.start + g.layout.draws
            for g in self.groups
            if np.isin(g.fingerprints, fingerprints).any()
        ]
        return max(known, default=0)

    def with_controls(self, kept: Bool[np.ndarray, " q1"]) -> "TraceMoments":
        """Return the sums of some controls, the first of which is the constant."""
        return (
            self
            if kept.all()
            else self.converted(self.features.select(kept[1:]), np.eye(len(kept))[:, kept])
        )

    def converted(self, features: Features, change: Float[np.ndarray, "q1 r1"]) -> "TraceMoments":
        """Return the sums of the controls xᵀC, and of the quantities, in the units of other
        features."""
        factor = self.features.unit / features.unit
        offset = (self.features.location - features.location) / features.unit
        known = {
            control_set.serves: (control_set, sums)
            for control_set, sums in zip(self.features.sets, self.moments, strict=True)
        }
        moments = []
        for controls in features.sets:
            known_set, (gram, cross, squares) = known[controls.serves]
            by, columns = change[np.ix_(known_set.places, controls.places)], controls.columns
            # f = location + unit·g of both: with the constant among the controls, sums of g follow
            # from their own.
            moved = cross * factor[columns] + gram[:, :, :1] * offset[columns]
            squares = factor[columns] ** 2 * squares + 2 * (factor * offset)[columns] * cross[:, 0]
            squares = squares + offset[columns] ** 2 * gram[:, 0, :1]
            moments.append(Moments(by.T @ gram @ by, by.T @ moved, squares))
        groups = tuple(
            group._replace(
                controls=group.controls @ change,
                values=group.values * factor + group.counts[..., None] * offset,
            )
            for group in self.groups
        )
        return self._replace(features=features, moments=tuple(moments), groups=groups)

    def to_datatree(self) -> "xarray.DataTree":
        """Return a tree with the sums in the group `moments`, which netCDF and Zarr can hold."""
        import xarray

        features, arrays = self.features, dict[str, np.ndarray]()
        for name in ("shift", "scale", "location", "unit", "events"):
            arrays[name] = getattr(features, name)
        arrays |= {name: getattr(self, name) for name in ("low", "high", "missing", "passages")}
        for number, sums in enumerate(self.moments):
            arrays |= {f"{name}_{number}": array for name, array in sums._asdict().items()}
        for number, group in enumerate(self.groups):
            parts = group._asdict().items()
            arrays |= {
                f"{name}_{number}": array
                for name, array in parts
                if name not in ("layout", "start")
            }
        dims = {
            name: [f"{name}_{axis}" for axis in range(array.ndim)] for name, array in arrays.items()
        }
        variables = {
            name: (dims[name], array.astype(np.int8) if array.dtype == bool else array)
            for name, array in arrays.items()
        }
        facts = {
            name: getattr(self, name)
            for name in ("verified", "bad_scores", "controlled", "seconds")
        }
        facts |= {name: getattr(features, name) for name in ("coordinates", "names", "labels")}
        # Families are what they are made of, in JSON: controls are computed anew where they are
        # needed.
        facts |= {"families": [family.to_json() for family in features.families]}
        facts |= {"layouts": [group.layout for group in self.groups]}
        attrs = {"moments": json.dumps(facts), "mcmcpost_version": version("mcmcpost")}
        return xarray.DataTree.from_dict({MOMENTS: xarray.Dataset(variables, attrs=attrs)})

    def select(self, columns: Int[np.ndarray, " k"]) -> "TraceMoments":
        """Return the sums of some quantities."""
        old, parts = self.features, ("location", "unit", "events")
        chosen = {name: getattr(old, name)[columns] for name in parts}
        groups = (
            g._replace(values=g.values[..., columns], sample=g.sample[..., columns])
            for g in self.groups
        )
        features = old._replace(names=tuple(old.names[j] for j in columns), **chosen)
        pairs = zip(old.sets, features.sets, self.moments, strict=True)
        return self._replace(
            features=features,
            moments=tuple(
                sums.quantities(np.searchsorted(before.columns, columns[after.columns]))
                for before, after, sums in pairs
            ),
            low=self.low[columns],
            high=self.high[columns],
            missing=self.missing[columns],
            groups=tuple(groups),
        )

    def estimate(self, options: Options) -> Estimate:
        """Return the expectations: by the linear control variates that lower each error, and else
        plain means.

        `residuals` are means over runs; where chains differ in length, as of one chain.
        """
        features, p = self.features, len(self.low)
        plain, series = (
            self._plain(),
            [group.values / group.counts[..., None] for group in self.groups],
        )
        varying = np.array([status is Status.PLAIN for status in plain.status])
        best, heavy, contradicted = plain, np.zeros(p, bool), self._contradicted(series)
        info: dict[str, Any] = {"num_chains": self.num_chains, "num_draws": self.num_draws}
        folds = self._folds(plain)
        # Those of all fits at the draws that are kept, which only exact ones need: computed once,
        # or never.
        at_kept = cache(self._controls_at_kept)
        for controls, moments in self._fitted(varying) if self.controlled else ():
            columns = controls.columns
            fitted, left, facts = self._controlled(
                controls, moments, folds, plain, options, at_kept
            )
            # Also where plain means are returned because the others contradict each other.
            contradicted[columns] |= self._contradicted(left)
            first = controls.serves is None
            # Functions of a coordinate must be better by 5 per cent (`NEED`), as any richer family.
            better = first | (fitted.used & (fitted.mcse**2 * NEED < best.mcse[columns] ** 2))
            source = np.arange(p)
            source[columns[better]] = p + np.flatnonzero(better)
            best = columnwise(
                lambda *arrays, source=source: np.concatenate(arrays)[source], best, fitted
            )
            for before, after in zip(series, left, strict=True):
                before[..., columns[better & fitted.used]] = after[..., better & fitted.used]
            heavy[columns] = heavy_tailed(self._kept("sample")[None][..., columns])
            if first:
                info |= facts | {"num_folds": int(folds.max()) + 1}
        status = [
            Status.HEAVY_TAIL if h and s in TRUSTED else s
            for h, s in zip(heavy, best.status, strict=True)
        ]
        rows = self._in_rows(series)
        info["num_runs"] = rows.shape[1]
        if contradicted.any():
            info["apart"] = tuple(np.array(features.names)[contradicted].tolist())
        return Estimate(
            names=features.names,
            mean=best.mean,
            mcse=best.mcse,
            gain=best.gain,
            variance_ratio=best.variance_ratio,
            status=tuple(
                Status.BAD_SCORES if self.bad_scores and v else s
                for v, s in zip(varying, status, strict=True)
            ),
            method=best.method,
            sd=plain.sd,
            mean_plain=plain.mean,
            mcse_plain=plain.mcse,
            mean_crossfit=best.mean_crossfit,
            residuals=rows,
            covariance=covariance_of(rows, best.mcse),
            info=info,
        )

    def _contradicted(self, means: Sequence[Float[np.ndarray, "_ _ j"]]) -> Bool[np.ndarray, " j"]:
        """Return for which means over runs the groups of chains contradict each other."""
        within, between, freedom = _variances(self.groups, means)
        limit = scipy.stats.f.isf(DISAGREEMENT, max(freedom, 1), ERROR_FREEDOM) * within
        return (freedom > 0) & (between > np.maximum(limit, ROUNDING**2))

    def _fitted(self, varying: Bool[np.ndarray, " p"]) -> Iterator[tuple[ControlSet, Moments]]:
        """Yield the controls of each fit of quantities that vary, and the moments of both."""
        for whole, moments in zip(self.features.sets, self.moments, strict=True):
            for places, controls in whole.by_steps(self.features.names):
                columns = controls.columns[varying[controls.columns]]
                if len(columns) and controls.families:
                    of = moments.quantities(np.searchsorted(whole.columns, columns))
                    # Of all controls, as of most sets, without a copy.
                    of = of if len(places) == len(whole.places) else of.controls(places)
                    yield controls._replace(columns=columns), of

    def rows(self) -> Float[np.ndarray, "c r p"]:
        """Return the means of the quantities over runs; where chains differ in length, as of one
        chain."""
        return self._in_rows([group.values / group.counts[..., None] for group in self.groups])

    def _in_rows(self, series: Sequence[Float[np.ndarray, "_ _ p"]]) -> Float[np.ndarray, "c r p"]:
        if len({one.shape[1] for one in series}) > 1:
            series = [np.concatenate([one.reshape(1, -1, one.shape[-1]) for one in series], axis=1)]
        return self.features.location + self.features.unit * np.concatenate(series)

    def sample(self) -> Float[np.ndarray, "s p"]:
        """Return the quantities at the draws that are kept."""
        return self._kept("sample")

    def _kept(self, name: str) -> Float[np.ndarray, "s _"]:
        """Return the draws, the scores or the sample of all chains, one after the other."""
        parts = [getattr(group, name) for group in self.groups]
        return np.concatenate([array.reshape(-1, array.shape[-1]) for array in parts])

    def _plain(self) -> Columns:
        """Return the plain means; the error is that of the means of runs (batch means)."""
        features, total = self.features, self.num_draws
        finite = self.missing == 0
        varying = finite & beyond_rounding(np.stack([self.low, self.high])[None])
        unseen = finite & (self.low == self.high) & np.isin(self.low, (0.0, 1.0)) & features.events
        # The first set of controls is that for every quantity.
        first, second = (
            self.moments[0].cross[:, 0].sum(axis=0) / total,
            self.moments[0].squares.sum(axis=0) / total,
        )
        sd = np.sqrt(np.maximum(second - first**2, 0.0) * total / (total - 1))
        error = _error(
            self.groups, [group.values / group.counts[..., None] for group in self.groups]
        )
        # Where the draws that are kept are as good as independent there are more between them: runs
        # tell how many.
        ess = sum(
            float(effective_size(group.draws, group.draws.std(axis=(0, 1))).min())
            for group in self.groups
        )
        if varying.any() and 2 * ess > len(self._kept("draws")):
            by_runs = float(
                ((sd[varying] / np.fmax(error[varying], sd[varying] / np.sqrt(total))) ** 2).min()
            )
            ess = max(ess, by_runs)
        nan = np.where(finite, 0.0, np.nan)
        mean = np.where(varying, features.location + features.unit * first, self.low) + nan
        status = np.where(varying, Status.PLAIN, np.where(unseen, Status.UNSEEN, Status.CONSTANT))
        return Columns(
            mean=mean,
            mcse=np.where(varying, features.unit * error, np.where(unseen, 1 / (ess + 2), 0.0))
            + nan,
            sd=np.where(varying, features.unit * sd, 0.0) + nan,
            gain=1 + nan,
            variance_ratio=1 + nan,
            mean_crossfit=mean,
            status=tuple(map(Status, np.where(finite, status, Status.UNDEFINED))),
            method=(PlainMean().label,) * len(mean),
            used=np.zeros(len(mean), bool),
        )

    def _folds(self, plain: Columns) -> Int[np.ndarray, " eight"]:
        """Return into which of fewer folds the eight go, so that each has `MIN_BLOCK`
        autocorrelation times of a chain.

        That time is the median over the quantities of draws per effective draw.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            times = np.maximum(self.num_draws * (plain.mcse / plain.sd) ** 2, 1.0)
        known = times[~np.isnan(times)]
        time = float(np.median(known)) if len(known) else 1.0
        cut = [group.layout.draws for group in self.groups if not group.layout.of_whole_chains]
        number = MIN_FOLDS
        while number > 2 and cut and min(cut) < number * MIN_BLOCK * time:
            number //= 2
        return np.arange(MIN_FOLDS) * number // MIN_FOLDS

    def _controlled(
        self,
        controls: ControlSet,
        sums: Moments,
        folds: Int[np.ndarray, " eight"],
        plain: Columns,
        options: Options,
        at_kept: Callable[[], list[Float[np.ndarray, "_ q1"]]],
    ) -> tuple[Columns, list[Float[np.ndarray, "_ _ j"]], dict[str, Any]]:
        """Return what is reported of quantities by some controls, means of the residuals over runs,
        and the facts."""
        columns = controls.columns
        outline, fits = self._fits(controls, sums, folds, plain)
        # (k, q + 1, j): without each fold, so that the residual of a run comes from a fit that has
        # not seen it.
        theta = fits.in_controls()
        with np.errstate(invalid="ignore", divide="ignore"):
            ess = np.fmax((plain.sd / plain.mcse) ** 2, 1.0)
        # A probability times the range of an event, which is one but for its units.
        spread = (self.high - self.low)[columns] / self.features.unit[columns]
        fits = fits._replace(
            doubt=fits.doubt + spread * controls.doubt(columns, self.features.names, ess)
        )
        left = [_residuals(group, folds, theta, controls.places, columns) for group in self.groups]
        variance = np.empty(len(columns))
        # Var f − θᵀx from the sums of the folds that the fits have not seen.
        for members, fit in fits.fits:
            variance[members] = Subsystem.of(fits.system, fit.without.shape[1], members).held_out(
                fit
            )[1]
        if (lost := variance < LOST).any():
            known = [kept[:, controls.places] for kept in at_kept()]
            variance[lost] = self._variance_of_sample(theta[..., lost], known, folds, columns[lost])
        return self._judged(fits, variance, left, columns, plain, outline, options), left, fits.info

    def _fits(
        self, controls: ControlSet, sums: Moments, folds: Int[np.ndarray, " eight"], plain: Columns
    ) -> tuple[Outline, LinearFits]:
        """Return the fits of the quantities that vary, of the family and with the ridge that each
        needs."""
        columns = controls.columns
        features, total = self.features, float(self.num_draws)
        moments = sums.over(np.arange(folds.max() + 1)[:, None] == folds)
        sizes, first = moments.gram[:, 0, 0], moments.cross[:, 0]
        draws, sample = self._kept("draws"), self._kept("sample")[:, columns]
        # Of the draws that are kept; all have as large a share of draws that make up the variance.
        share = np.minimum(participants(sample), participants(draws).min()) / len(draws)
        outline = Outline(sizes, share * total, int(total - sizes.max()), len(features.shift))
        mean = first.sum(axis=0) / total
        spread = plain.sd[columns] / features.unit[columns]
        alone = combined_error(
            outline, mean, Refits.of_means(first, sizes), mean, spread / np.sqrt(total)
        )
        system = system_of(moments, total, controls.families)
        return outline, choose_families(None, outline, system, controls.labels, total * alone**2)

    def _judged(
        self,
        fits: LinearFits,
        variance: Float[np.ndarray, " j"],
        left: Sequence[Float[np.ndarray, "_ _ j"]],
        columns: Int[np.ndarray, " j"],
        plain: Columns,
        outline: Outline,
        options: Options,
    ) -> Columns:
        """Return what is reported of the quantities that vary.

        variance : of the residuals. left : their means over runs.
        """
        location, unit = self.features.location[columns], self.features.unit[columns]
        # Runs differ in length by a draw, and chains by any number.
        weighted = [
            np.tensordot(group.counts, residuals, 2)
            for group, residuals in zip(self.groups, left, strict=True)
        ]
        crossfit, error = np.sum(weighted, axis=0) / self.num_draws, _error(self.groups, left)
        seen = Residuals(
            location + unit * crossfit, unit**2 * variance, unit * error, plain.sd[columns] ** 2
        )
        mcse = unit * combined_error(outline, fits.mean, fits.refits, crossfit, error, fits.doubt)
        without = columnwise(lambda field: field[columns], plain)
        return reported_columns(
            location + unit * fits.mean,
            mcse,
            seen,
            without,
            fits.status,
            fits.method,
            outline,
            options,
        )

    def _controls_at_kept(self) -> list[Float[np.ndarray, "_ q1"]]:
        """Return the controls at the draws that are kept, of chains of each length."""
        states = [
            [array.reshape(-1, array.shape[-1]) for array in (group.draws, group.scores)]
            for group in self.groups
        ]
        return [self.features.controls(*pair) for pair in states]

    def _variance_of_sample(
        self,
        theta: Float[np.ndarray, "k q1 p"],
        controls: Sequence[Float[np.ndarray, "_ q1"]],
        folds: Int[np.ndarray, " eight"],
        columns: Int[np.ndarray, " p"],
    ) -> Float[np.ndarray, " p"]:
        """Return the variance of the residuals at the draws that are kept, where these controls
        are."""
        parts = []
        for group, group_controls in zip(self.groups, controls, strict=True):
            layout = group.layout
            label = folds[layout.folds[:, layout.run_of(layout.sampled)]].reshape(-1)
            # The sums' differences have no digits of it: these draws do.
            residual = self.features.standard(group.sample.reshape(len(label), -1))[:, columns]
            for fold, coefficients in enumerate(theta):
                residual[label == fold] -= group_controls[label == fold] @ coefficients
            parts.append(residual)
        return np.concatenate(parts).var(axis=0)


@written_whole("a file of sums", "Sum the trace again.", "moments")
def stored_moments(tree: "xarray.DataTree") -> TraceMoments:
    """Return the sums that `TraceMoments.to_datatree` wrote to a tree."""
    group = tree.children[MOMENTS].to_dataset()
    facts: dict[str, Any] = json.loads(group.attrs["moments"])
    arrays: dict[str, Any] = {
        str(name): variable.values for name, variable in group.data_vars.items()
    }
    if "passages" not in arrays:
        got, cure = f"those of {group.attrs['mcmcpost_version']}", "Sum the trace again."
        raise InputError("moments", "sums with what tells draws that are there twice", got, cure)
    layouts = [Layout(*layout) for layout in facts["layouts"]]
    features = Features(
        coordinates=tuple(facts["coordinates"]),
        shift=arrays["shift"],
        scale=arrays["scale"],
        families=tuple(map(from_json, facts["families"])),
        labels=tuple(facts["labels"]),
        names=tuple(facts["names"]),
        location=arrays["location"],
        unit=arrays["unit"],
        events=arrays["events"].astype(bool),
    )
    return TraceMoments(
        features=features,
        moments=tuple(
            Moments(*(arrays[f"{name}_{number}"] for name in Moments._fields))
            for number in range(len(features.sets))
        ),
        low=arrays["low"],
        high=arrays["high"],
        missing=arrays["missing"],
        passages=arrays["passages"],
        groups=tuple(
            Chains(
                layout,
                arrays[f"fingerprints_{number}"],
                (0, 0, 0),
                *(arrays[f"{name}_{number}"] for name in Chains._fields[3:]),
            )
            for number, layout in enumerate(layouts)
        ),
        verified=facts["verified"],
        bad_scores=facts["bad_scores"],
        controlled=facts["controlled"],
        seconds=facts["seconds"],
    )


def _residuals(
    group: Chains,
    folds: Int[np.ndarray, " eight"],
    theta: Float[np.ndarray, "k q1 p"],
    places: Int[np.ndarray, " q1"],
    columns: Int[np.ndarray, " p"],
) -> Float[np.ndarray, "c r p"]:
    """Return the means over runs of the quantities less their control variates without the run's
    fold."""
    label, residuals, controls = (
        folds[group.layout.folds],
        group.values[..., columns],
        group.controls[..., places],
    )
    for fold, coefficients in enumerate(theta):
        residuals[label == fold] -= controls[label == fold] @ coefficients
    return residuals / group.counts[..., None]


def _error(
    groups: Sequence[Chains], means: Sequence[Float[np.ndarray, "_ _ p"]]
) -> Float[np.ndarray, " p"]:
    """Return the error of the mean of all draws from means over runs, of the chains of each group.

    Groups are independent of each other: variances add, with squared shares. Those of other
    posteriors, or of chains in other modes, differ by more than the errors within them say, and the
    error is then at least what chance does not explain of the one between groups.
    """
    within, between, freedom = _variances(groups, means)
    least = between / scipy.stats.f.isf(BY_CHANCE, freedom, ERROR_FREEDOM) if freedom else 0.0
    return np.sqrt(np.maximum(within, least))


def _variances(
    groups: Sequence[Chains], means: Sequence[Float[np.ndarray, "_ _ p"]]
) -> tuple[Float[np.ndarray, " p"], Float[np.ndarray, " p"], int]:
    """Return the variance of the mean of all draws by the errors within groups, by the differences
    between them, and the degrees of freedom of the latter."""
    sizes = np.array([group.counts.sum() for group in groups])
    share = (sizes / sizes.sum())[:, None]
    within = np.sum(share**2 * np.stack([mcse_mean(one) for one in means]) ** 2, axis=0)
    pairs = zip(groups, means, strict=True)
    each = np.stack([np.tensordot(group.counts, one, 2) for group, one in pairs]) / sizes[:, None]
    freedom = len(groups) - 1
    # Of equal shares it is the variance between groups over their number, as that of any mean.
    squares = share**2 * (each - (share * each).sum(axis=0)) ** 2
    return within, squares.sum(axis=0) * (freedom + 1) / max(freedom, 1), freedom
