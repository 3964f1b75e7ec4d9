"""Estimates of expectations: what is reported of a control variate, and of the plain mean beside
it.

Estimates of other chains of one posterior are pooled as one estimate, which costs nothing but the
new chains. What a reduction is worth is the time that sampling alone would take for the same
errors.
"""

import itertools
import json
from collections.abc import Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Bool, Float, Int, Shaped

from mcmcpost.control.method import AbstractControlVariate, FoldFit, columnwise
from mcmcpost.control.problem import Options, Problem, Sample, column_sd
from mcmcpost.control.standard_errors import (
    DISAGREEMENT,
    Columns,
    Residuals,
    heavy_tailed,
    plain_means,
    reported_columns,
    total_error,
)
from mcmcpost.core.arguments import check_tree_type
from mcmcpost.core.arrays import columns_of, in_blocks
from mcmcpost.core.errors import (
    TRUSTED,
    WITHOUT_GAIN,
    WORST_FIRST,
    InputError,
    InputTypeError,
    Status,
    written_whole,
)
from mcmcpost.core.mcse import GOOD_KHAT, Weights
from mcmcpost.core.runtime import duration, first_rows, json_able, number_of_quantities, significant
from mcmcpost.trace import check_same_posterior

if TYPE_CHECKING:
    import pandas
    import xarray


GROUP = "control_variates"
"""The group of a tree that holds estimates."""

NUMBERS = {
    "mean": "mean_plain",
    "sd": "sd",
    "mcse": "mcse_plain",
    "mean_cv": "mean",
    "mcse_cv": "mcse",
    "gain": "gain",
    "variance_ratio": "variance_ratio",
    "mean_crossfit": "mean_crossfit",
}
"""What is written of a quantity in every table, file and JSON, and the field of `Estimate` that
holds it."""


class Estimate(NamedTuple):
    """Posterior expectations of p integrands; see docs/mathematics.md section 2 for the
    definitions.

    names : p labels.
    mean, mcse : (p,) the estimate and its Monte Carlo standard error, in the integrand's units.
        `mean` is that of the fit on all draws. `mcse` is how far it moves when it is fitted on
        parts of the draws, at least the ESS-based error of the cross-fitted residuals, enlarged for
        heavy tails; see `total_error`.
    gain : (p,) (mcse_plain/mcse)², the factor of draws saved.
    variance_ratio : (p,) Var f / Var residual, cross-fitted.
    status, method : p statuses and what was fitted.
    sd : (p,) posterior standard deviation of the integrand.
    mean_plain, mcse_plain : (p,) without control variates.
    mean_crossfit : (p,) mean of the cross-fitted residuals.
    residuals : (c, n, p) integrand minus held-out control variate; its mean, weighted where the
        draws have weights, estimates the expectation. From sums, of draws in chunks too, they are
        means over n runs of a chain's draws.
    covariance : (p, p) of the estimates: correlation of the residuals times the errors.
    info : JSON-able facts: degrees, kernels, nuggets, costs, folds; of weighted draws, `ess` and
        `pareto_khat`; `trace`, which tells the draws. Lists have an entry for each quantity that
        was fitted: those that are constant are not, and of `duplicates` the first is.
    """

    names: tuple[str, ...]
    mean: Float[np.ndarray, " p"]
    mcse: Float[np.ndarray, " p"]
    gain: Float[np.ndarray, " p"]
    variance_ratio: Float[np.ndarray, " p"]
    status: tuple[Status, ...]
    method: tuple[str, ...]
    sd: Float[np.ndarray, " p"]
    mean_plain: Float[np.ndarray, " p"]
    mcse_plain: Float[np.ndarray, " p"]
    mean_crossfit: Float[np.ndarray, " p"]
    residuals: Float[np.ndarray, "c n p"]
    covariance: Float[np.ndarray, "p p"]
    info: dict[str, Any]

    @property
    def constants(self) -> dict[str, float]:
        """The value of each quantity that is the same at every draw, by name."""
        rows = zip(self.names, self.mean.tolist(), self.status, strict=True)
        return {name: value for name, value, status in rows if status is Status.CONSTANT}

    @property
    def duplicates(self) -> dict[str, str]:
        """The element of a variable that each of these names repeats at every draw, as corr[1, 0]
        does corr[0, 1]."""
        return {
            name: first
            for name, first in self.info.get("duplicates", {}).items()
            if name in self.names
        }

    @property
    def _along(self) -> str:
        """What the residuals of a chain are over: its draws, or runs of them."""
        return "run" if "num_runs" in self.info else "draw"

    def __repr__(self) -> str:
        """Return a row for each of the first quantities: a tuple shows every residual."""
        rows = zip(self.names, self.mean, self.mcse, self.gain, self.status, strict=True)
        return f"Estimate of {number_of_quantities(len(self.names))}\n{first_rows(rows)}"

    def __add__(self, other: object) -> "Estimate":
        """Refuse to add: tuples would be joined end to end, without a word."""
        cure = "Pool estimates of different chains by pool_estimates(one, other)."
        got = repr(type(other).__name__)
        raise InputTypeError("Estimate", "no + between estimates", got, cure)

    def __radd__(self, other: object) -> "Estimate":
        """Refuse to add, as in a sum, which begins with zero."""
        return self + other

    def select(self, places: Int[np.ndarray, " q"]) -> "Estimate":
        """Return the estimates of the quantities at these places, in this order; `info` is that of
        all."""
        return self._replace(
            names=tuple(self.names[j] for j in places),
            status=tuple(self.status[j] for j in places),
            method=tuple(self.method[j] for j in places),
            **{name: getattr(self, name)[places] for name in NUMBERS.values()},
            residuals=columns_of(self.residuals, places),
            covariance=self.covariance[np.ix_(places, places)],
        )

    @property
    def listed(self) -> Int[np.ndarray, " q"]:
        """The places of what a table for readers lists: no constants, and each of `duplicates`
        once."""
        left_out = self.constants.keys() | self.duplicates.keys()
        return np.array([j for j, name in enumerate(self.names) if name not in left_out], dtype=int)

    def to_dataframe(self) -> "pandas.DataFrame":
        """Return one row per quantity: mean, sd, mcse, mean_cv, mcse_cv, gain, method, status,
        digits.

        mean, sd, mcse are the plain posterior mean, standard deviation and Monte Carlo standard
        error, as in ``az.summary``; mean_cv and mcse_cv are the controlled ones; gain is
        (mcse/mcse_cv)²; digits is how many significant digits of mean_cv lie above twice its error.
        A constant has its value and no error.
        """
        import pandas

        return pandas.DataFrame(
            {
                "mean": self.mean_plain,
                "sd": self.sd,
                "mcse": self.mcse_plain,
                "mean_cv": self.mean,
                "mcse_cv": self.mcse,
                "gain": self.gain,
                "method": list(self.method),
                "status": [str(status) for status in self.status],
                "digits": significant_digits(self.mean, self.mcse),
            },
            index=pandas.Index(self.names, name="quantity"),
        )

    def to_json_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Return ``{"quantities": [{"name", "mean", "mcse", "mean_cv", ...}]}`` with None for NaN
        and infinities.

        The names mean what they do in `to_dataframe`.
        """
        digits = significant_digits(self.mean, self.mcse)
        return {
            "quantities": [
                {"name": name}
                | {key: json_able(float(getattr(self, field)[j])) for key, field in NUMBERS.items()}
                | {
                    "method": self.method[j],
                    "status": str(self.status[j]),
                    "digits": int(digits[j]),
                }
                for j, name in enumerate(self.names)
            ]
        }

    def to_datatree(self, tree: "xarray.DataTree | None" = None) -> "xarray.DataTree":
        """Return a new tree with the estimates in the group `control_variates`.

        Parameters
        ----------
        tree : the trace of the estimate, from which the other groups are taken; it is not changed,
            and their arrays are shared with it, as by ``tree.copy()``.

        Returns
        -------
        DataTree : variables `mean`, `sd`, `mcse`, `mean_cv`, `mcse_cv` and `gain`, which mean what
            they do in `to_dataframe`, `variance_ratio`, `mean_crossfit`, `status` and `method` over
            `quantity`; `residual` (chain, draw, quantity), from sums (chain, run, quantity), whose
            spread is that of f − g and not of the posterior; `covariance` (quantity, quantity_bis)
            of `mean_cv`. Attrs: the methods, `info` as JSON with null for what is not finite, its
            scalar entries one by one, and versions.
        """
        import xarray

        names = np.array(self.names, dtype=object)
        variables: dict[str, Any] = {
            name: ("quantity", np.asarray(getattr(self, field))) for name, field in NUMBERS.items()
        }
        variables |= {
            "status": ("quantity", np.array([str(status) for status in self.status], dtype=object)),
            "method": ("quantity", np.array([str(method) for method in self.method], dtype=object)),
            "residual": (("chain", self._along, "quantity"), np.asarray(self.residuals)),
            "covariance": (("quantity", "quantity_bis"), np.asarray(self.covariance)),
        }
        if tree is not None:
            check_tree_type("Estimate.to_datatree", tree)
            check_same_posterior("Estimate.to_datatree", tree, self.info.get("trace"))
        new = xarray.DataTree() if tree is None else tree.copy()
        # Runs of draws, of estimates from sums, have no places in the trace.
        places = _chain_draw(new, self.residuals.shape) if self._along == "draw" else {}
        coords = {"quantity": names, "quantity_bis": names, **places}
        results = xarray.Dataset(variables, coords=coords, attrs=_attrs(self))
        new[GROUP] = xarray.DataTree(results)
        return new


class Curve(NamedTuple):
    """A distribution function or a density of p quantities at t points each.

    at : (p, t) the points, in units of the quantities.
    mean, mcse : (p, t) the estimate and its Monte Carlo standard error.
    mean_plain, mcse_plain : (p, t) without control variates. gain : (p, t) (mcse_plain/mcse)².
    status : (p, t) a `Status` of each.
    """

    names: tuple[str, ...]
    at: Float[np.ndarray, "p t"]
    mean: Float[np.ndarray, "p t"]
    mcse: Float[np.ndarray, "p t"]
    mean_plain: Float[np.ndarray, "p t"]
    mcse_plain: Float[np.ndarray, "p t"]
    gain: Float[np.ndarray, "p t"]
    status: Shaped[np.ndarray, "p t"]

    def __repr__(self) -> str:
        """Return the table, in place of the arrays of a tuple."""
        return repr(self.to_dataframe())

    def to_dataframe(self) -> "pandas.DataFrame":
        """Return a row for each quantity and point; columns are those of
        `Estimate.to_dataframe`."""
        import pandas

        names = np.repeat(np.array(self.names, dtype=object), self.at.shape[1])
        columns = {
            "mean": self.mean_plain,
            "mcse": self.mcse_plain,
            "mean_cv": self.mean,
            "mcse_cv": self.mcse,
        }
        columns |= {"gain": self.gain}
        return pandas.DataFrame(
            {name: values.reshape(-1) for name, values in columns.items()}
            | {"status": list(map(str, self.status.reshape(-1)))},
            index=pandas.MultiIndex.from_arrays(
                [names, self.at.reshape(-1)], names=["quantity", "at"]
            ),
        )

    @classmethod
    def of(cls, at: Float[np.ndarray, " t"], parts: Sequence[Estimate]) -> "Curve":
        """Return the parts of the estimates of one quantity at t points, without its name."""
        names = ("mean", "mcse", "mean_plain", "mcse_plain", "gain")
        numbers = (np.concatenate([getattr(one, name) for one in parts]) for name in names)
        status = np.array([status for one in parts for status in one.status], dtype=object)
        return cls((), *(row[None] for row in (at, *numbers, status)))

    @classmethod
    def side_by_side(cls, rows: "Sequence[Curve]", names: tuple[str, ...]) -> "Curve":
        """Return the curves of several quantities as one."""
        return cls(names, *map(np.concatenate, list(zip(*rows, strict=True))[1:]))


def significant_digits(mean: np.ndarray, mcse: np.ndarray) -> np.ndarray:
    """Return ⌊log₁₀(|mean|/2 mcse)⌋ between 0 and 15; 15 for an exact value and 0 for one that is
    not finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        digits = np.floor(np.log10(np.abs(mean) / (2 * mcse)))
    digits = np.where(mcse == 0, 15.0, np.nan_to_num(digits, nan=0.0, posinf=15.0, neginf=0.0))
    return np.clip(digits, 0, 15).astype(int)


def _chain_draw(tree: "xarray.DataTree", shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    posterior = tree.children.get("posterior")
    sizes = (
        tuple(shape[:2])
        if posterior is None
        else tuple(posterior.sizes.get(dim, 0) for dim in ("chain", "draw"))
    )
    if sizes != tuple(shape[:2]):
        raise InputError(
            "to_datatree",
            f"a tree of {tuple(shape[:2])} chains and draws",
            sizes,
            "Pass its own trace.",
        )
    return {
        dim: posterior.coords[dim].values
        if posterior is not None and dim in posterior.coords
        else np.arange(size)
        for dim, size in zip(("chain", "draw"), shape, strict=False)
    }


def _attrs(estimate: "Estimate") -> dict[str, str | int | float]:
    info = {str(key): json_able(value) for key, value in estimate.info.items()}
    return {
        **{key: value for key, value in info.items() if type(value) in (str, int, float)},
        "method": ", ".join(dict.fromkeys(str(method) for method in estimate.method)),
        "info": json.dumps(info, allow_nan=False),
        "residual_is": "f - g, cross-fitted: its spread is not that of the posterior",
        "mcmcpost_version": version("mcmcpost"),
        "jax_version": version("jax"),
        "arviz_version": version("arviz"),
    }


class Fits(NamedTuple):
    """The fits of the integrands of a sample.

    distinct, place : those that differ, and the place there of each. problem, terms : None where
        nothing can be fitted.
    """

    distinct: Sample
    place: Int[np.ndarray, " p"]
    problem: Problem | None
    terms: FoldFit | None

    @classmethod
    def of(cls, sample: Sample, method: AbstractControlVariate, options: Options) -> "Fits":
        """Return the fits by a method."""
        options.check(sample.trace)
        # The same values are fitted once: a correlation matrix would be fitted twice.
        distinct, place = sample.without_repeats()
        problem = distinct.problem(options)
        return cls(distinct, place, problem, None if problem is None else method.crossfit(problem))

    def expectations(self, sample: Sample, options: Options) -> Estimate:
        """Return the expectations of the integrands of the sample."""
        estimate = assemble(self.distinct, options, self.problem, self.terms)
        return estimate if self.distinct is sample else placed(estimate, sample.names, self.place)


def estimate_expectations(
    sample: Sample, method: AbstractControlVariate, options: Options
) -> Estimate:
    """Estimate the posterior expectation of each integrand with `method`, falling back to the plain
    mean without gain.

    An integrand with a NaN or infinity is returned as NaN, ``undefined``.
    """
    return Fits.of(sample, method, options).expectations(sample, options)


def placed(estimate: Estimate, names: tuple[str, ...], place: Int[np.ndarray, " p"]) -> Estimate:
    """Return the estimates of quantities of which some are the same: for each, that at its place.

    `duplicates` are elements of one variable; what two variables have in common stands in the
    tables of both.
    """
    firsts: dict[tuple[int, str], str] = {}
    doubles = {}
    # By the variable too: corr and cov may agree at every draw and both be wanted.
    for name, at in zip(names, place.tolist(), strict=True):
        first = firsts.setdefault((at, name.partition("[")[0]), name)
        if first != name:
            doubles[name] = first
    return estimate.select(place)._replace(
        names=names, info=estimate.info | {"duplicates": doubles}
    )


def rescaled(estimate: Estimate, units: Float[np.ndarray, " p"]) -> Estimate:
    """Return an estimate of values divided by `units` as that of the values; a covariance may
    overflow or vanish."""
    if (units == 1).all():
        return estimate
    names = ("mean", "mcse", "sd", "mean_plain", "mcse_plain", "mean_crossfit", "residuals")
    scaled = {name: getattr(estimate, name) * units for name in names}
    # A covariance has the square of the units, which may overflow where the errors do not.
    with np.errstate(over="ignore"):
        return estimate._replace(**scaled, covariance=estimate.covariance * units[:, None] * units)


def assemble(
    sample: Sample,
    options: Options,
    problem: Problem | None = None,
    fit: FoldFit | None = None,
    plain: Columns | None = None,
) -> Estimate:
    """Return the estimate: the control variate where one was fitted and is believed, and the plain
    mean elsewhere.

    problem, fit : the `problem` of the sample and its control variate; None where no integrand
        could be fitted.
    plain : the plain means, where their errors are others than those of `plain_means` by itself.
    """
    plain = plain_means(sample) if plain is None else plain
    values, columns, weights = sample.scaled, sample.columns, sample.trace.weights
    # Plain means come first; what is fitted is appended, and `source` says which of both is used.
    parts, residuals = [plain], values.copy()
    source = np.arange(len(plain.mean))
    # By which a tree of other draws is refused.
    info: dict[str, Any] = {"trace": sample.trace.posterior} if sample.trace.posterior else {}
    if problem is not None and fit is not None:
        info |= fit.info | {"num_folds": problem.folds.num_folds, "num_states": problem.num_states}
        source[columns] = len(plain.mean) + np.arange(len(columns))
        for chunk in in_blocks(len(columns), values.shape[0] * values.shape[1]):
            index, subset = columns[chunk], problem.select(chunk)
            selected = columns_of(values, index)
            residual = np.zeros((*values.shape[:2], len(index)))
            # Views of the same memory: blocks of rows are written in place of a copy of all draws.
            rows = residual.reshape(-1, len(index)), selected.reshape(-1, len(index))
            for block in in_blocks(*rows[0].shape):
                # Copies of a state share the control variate; f is that of the draw itself.
                rows[0][block] = (
                    rows[1][block] - fit.control[problem.inverse[block], chunk] * subset.scale
                )
            without = columnwise(lambda fields, index=index: fields[index], plain)
            seen, chosen = Residuals.of(residual, selected, weights), fit.select(chunk)
            mean = subset.location + subset.scale * chosen.mean
            # In the problem's units, in which integrands have unit standard deviation.
            mcse = subset.scale * total_error(subset, chosen, seen.error / subset.scale)
            judged = reported_columns(
                mean, mcse, seen, without, chosen.status, chosen.method, subset.outline, options
            )
            # A control variate that was not believed leaves no trace in residuals and covariance.
            for place, used in enumerate(index):
                if judged.used[place]:
                    residuals[..., used] = residual[..., place]
            parts.append(judged)
    combined = columnwise(lambda *arrays: np.concatenate(arrays)[source], *parts)
    # Scores that failed the gate mark every estimate, plain ones included, unless nothing varies.
    marked = sample.varying & (options.bad_scores and not sample.too_few)
    heavy = np.zeros(len(plain.mean), bool)
    fitted = sample.fitted_values
    if weights is None:
        heavy[columns] = heavy_tailed(fitted)
    else:
        # An event is bounded. Its influence is as heavy as the weights are, and what these are is
        # judged below.
        bounded = ((fitted == 0) | (fitted == 1)).all(axis=(0, 1))
        heavy[columns] = ~bounded
        heavy[columns[~bounded]] = heavy_tailed(weights.influence(fitted[..., ~bounded]))
    doubtful: tuple[Status, ...] = TRUSTED
    if weights is not None:
        heavy |= sample.varying & (weights.khat > GOOD_KHAT)
        # few draws have all the weight, however many there are
        doubtful = (*TRUSTED, Status.TOO_FEW_DRAWS)
        info |= {"pareto_khat": weights.khat, "ess": weights.ess}
    status = [
        Status.HEAVY_TAIL if h and s in doubtful else s
        for h, s in zip(heavy, combined.status, strict=True)
    ]
    estimate = Estimate(
        names=sample.names,
        mean=combined.mean,
        mcse=combined.mcse,
        gain=combined.gain,
        variance_ratio=combined.variance_ratio,
        status=tuple(
            Status.BAD_SCORES if bad else reported
            for bad, reported in zip(marked, status, strict=True)
        ),
        method=combined.method,
        sd=plain.sd,
        mean_plain=plain.mean,
        mcse_plain=plain.mcse,
        mean_crossfit=combined.mean_crossfit,
        residuals=residuals,
        covariance=covariance_of(residuals, combined.mcse, weights),
        info=info,
    )
    return rescaled(estimate, sample.units)


def covariance_of(
    series: Float[np.ndarray, "c n p"],
    mcse: Float[np.ndarray, " p"],
    weights: Weights | None = None,
) -> Float[np.ndarray, "p p"]:
    """Return the correlation of the series (c, n, p), of weighted draws of their influence, times
    the errors (p,)."""
    if weights is not None:
        series = weights.influence(series)
    flat = series.reshape(-1, series.shape[-1])
    correlation = np.zeros((flat.shape[1], flat.shape[1]))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean, norm = flat.mean(axis=0), column_sd(flat) * np.sqrt(len(flat))
        for rows in in_blocks(*flat.shape):
            unit = (flat[rows] - mean) / np.where(norm > 0, norm, 1.0)
            correlation += unit.T @ unit
    # A constant has correlation 1 with itself, where its zero norm would give 0.
    np.fill_diagonal(correlation, 1.0)
    return correlation * mcse[:, None] * mcse[None, :]


def side_by_side(estimates: Sequence[Estimate], weights: Weights | None) -> Estimate:
    """Return the estimates of different quantities of one trace as one, with `info` of the
    first."""
    joined: dict[str, Any] = {
        name: sum(parts, ()) if isinstance(parts[0], tuple) else np.concatenate(parts, axis=-1)
        for name, parts in zip(Estimate._fields, zip(*estimates, strict=True), strict=True)
        if name not in ("covariance", "info")
    }
    with np.errstate(over="ignore"):
        covariance = covariance_of(joined["residuals"], joined["mcse"], weights)
    return estimates[0]._replace(**joined, covariance=covariance)


DOUBLED = 2.0
"""The gain of as many draws again, which divide errors by its root."""


def with_worth(estimate: Estimate, seconds: float) -> Estimate:
    """Return the estimate with what it is worth in `info`, if its draws took so many seconds."""
    sampling_cost = sampling_cost_of(estimate, seconds)
    facts = {"sampling_time": seconds, "worth": sampling_cost} if sampling_cost else {}
    return estimate._replace(info=estimate.info | facts)


def sampling_cost_of(estimate: Estimate, seconds: float) -> str:
    """Return in one or two sentences what sampling more would cost, if the draws of an estimate
    took so many seconds.

    A gain is a factor of draws, and so of the time that they took, in which warm-up counts if the
    sampler's record counts it. Quantities whose gain is not reported are left out; without any
    other the text is empty.
    """
    # Gains of what was not fitted, or is exact, say nothing of the time that sampling would take.
    gains = np.array(
        [estimate.gain[j] for j in estimate.listed if estimate.status[j] not in WITHOUT_GAIN]
    )
    chains, draws, _ = estimate.residuals.shape
    # Sums over traces of several lengths know how many draws there were.
    run = (
        f"{estimate.info['num_draws']:,}"
        if "num_draws" in estimate.info
        else f"{chains} × {draws:,}"
    )
    took = duration(seconds)
    large = gains[gains >= DOUBLED]
    sentences = []
    if len(large):
        few, half, most = (
            duration(float(q) * seconds) for q in np.quantile(large, (0.0, 0.5, 1.0))
        )
        which = "" if len(large) == len(gains) else f" of {len(large)} of {len(gains)} quantities"
        spread = f" (median; {few} to {most})" if len(large) > 1 else ""
        sentences.append(
            f"The same errors{which} by sampling alone would take about {half}{spread}; {run} "
            f"draws took {took}."
        )
    if len(large) < len(gains):
        others = f"the other {len(gains) - len(large)}" if len(large) else "them"
        more = (
            f"{run} more draws would take about {took} and divide errors by "
            f"{significant(DOUBLED**0.5, 2)}"
        )
        sentences.append(f"{more}, which for {others} is more than the reduction does.")
    return " ".join(sentences)


COMPARED = 100
"""Draws at the start of two chains that show whether they are the same."""

TELLING = 10
"""Distinct values among them above which a residual tells chains apart."""

FREEDOM = 7
"""Degrees of freedom that an error from refits has about."""


def pool(estimates: Sequence[Estimate]) -> Estimate:
    """Return one estimate of the same quantities from independent chains, each part weighted.

    Weights are the draws, of weighted draws the effective ones, so that they are not estimated,
    where all parts were made by the same method: variances of their means are then in that ratio.
    Elsewhere they are the inverse variances, whose own noise adds 1 + 4 Σ wᵢ(1 − wᵢ)/7 to the
    variance (Meier 1953, doi:10.2307/3001633). A part without an error has no weight.
    """
    mean, mcse, sd, mean_plain, mcse_plain, ratio, crossfit = (
        np.stack([getattr(estimate, name) for estimate in estimates])
        for name in (
            "mean",
            "mcse",
            "sd",
            "mean_plain",
            "mcse_plain",
            "variance_ratio",
            "mean_crossfit",
        )
    )
    rows = [estimate.residuals.shape[0] * estimate.residuals.shape[1] for estimate in estimates]
    # Estimates from sums have runs in place of draws and know how many draws there were.
    draws = np.array(
        [
            estimate.info.get("num_draws", num_rows)
            for estimate, num_rows in zip(estimates, rows, strict=True)
        ]
    )
    sizes = np.array(
        [estimate.info.get("ess", size) for estimate, size in zip(estimates, draws, strict=True)]
    )
    share = (sizes / sizes.sum())[:, None]
    methods = list(zip(*(estimate.method for estimate in estimates), strict=True))
    # Equal methods have variances in the ratio of the draws: known weights, no noise of their own.
    alike = np.array([len(set(labels)) == 1 for labels in methods], bool)
    weight = _weights(mean, mcse, sd, share, alike)
    noise = np.where(alike, 1.0, 1 + 4 * (weight * (1 - weight)).sum(axis=0) / FREEDOM)
    known = np.isfinite(mcse)
    # Independent parts: squares of weights times errors add. A part without an error has no weight.
    total = np.sqrt(noise * (weight**2 * np.where(known, mcse, 0.0) ** 2).sum(axis=0))
    error = np.where(known.any(axis=0), total, np.nan)
    middle = (share * mean_plain).sum(axis=0)
    plain = np.sqrt((share**2 * mcse_plain**2).sum(axis=0))
    outer = np.zeros((len(total), len(total)))
    for estimate_weight, estimate in zip(weight, estimates, strict=True):
        outer += (
            estimate_weight[:, None]
            * estimate_weight
            * np.where(np.isfinite(estimate.covariance), estimate.covariance, 0.0)
        )
    mean = (weight * mean).sum(axis=0)
    # Of a quantity that is NaN in one part nothing is claimed.
    error = np.where(np.isnan(mean), np.nan, error)
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = np.where(error > 0, (plain / error) ** 2, 1.0)
        # Var f / Var residual of all draws, not the mean of the parts' ratios.
        scattered = (share * sd**2).sum(axis=0) / (share * sd**2 / ratio).sum(axis=0)
    return Estimate(
        names=estimates[0].names,
        mean=mean,
        mcse=error,
        gain=np.where(np.isfinite(error), gain, np.nan),
        variance_ratio=np.where(sd.max(axis=0) > 0, scattered, 1.0),
        status=tuple(
            min(statuses, key=WORST_FIRST.index)
            for statuses in zip(*(p.status for p in estimates), strict=True)
        ),
        method=tuple(" + ".join(dict.fromkeys(labels)) for labels in methods),
        # Variance within parts and between their means.
        sd=np.sqrt((share * (sd**2 + (mean_plain - middle) ** 2)).sum(axis=0)),
        mean_plain=middle,
        mcse_plain=plain,
        mean_crossfit=(weight * crossfit).sum(axis=0),
        residuals=_one_after_the_other([estimate.residuals for estimate in estimates]),
        covariance=np.where(
            np.isnan(mean) | np.isnan(mean)[:, None],
            np.nan,
            outer * np.sqrt(noise[:, None] * noise),
        ),
        info={name: estimates[0].info[name] for name in ("num_runs",) if name in estimates[0].info}
        | {"pooled_draws": draws.tolist(), "duplicates": estimates[0].info.get("duplicates", {})}
        | _weights_of(estimates, float(sizes.sum())),
    )


def _weights_of(estimates: Sequence[Estimate], ess: float) -> dict[str, Any]:
    """Return the effective draws and the largest Pareto k-hat where some draws are weighted; None
    is one not finite."""
    khats: list[Any] = [
        estimate.info["pareto_khat"] for estimate in estimates if "pareto_khat" in estimate.info
    ]
    return {"ess": ess, "pareto_khat": None if None in khats else max(khats)} if khats else {}


def _weights(
    mean: Float[np.ndarray, "k p"],
    mcse: Float[np.ndarray, "k p"],
    sd: Float[np.ndarray, "k p"],
    share: Float[np.ndarray, "k one"],
    alike: Bool[np.ndarray, " p"],
) -> Float[np.ndarray, "k p"]:
    known = np.isfinite(mcse)
    # An exact part has an error of rounding, not of zero: 1/0² would be NaN in the weights.
    rounding = np.finfo(float).eps * (np.abs(mean) + sd) + np.finfo(float).tiny
    with np.errstate(invalid="ignore"):
        precision = 1 / np.maximum(mcse / rounding.max(axis=0), 1.0) ** 2
    weight = np.where(known, np.where(alike, share, precision), 0.0)
    # Where no part has an error, as with too few draws, the draws are the weights.
    weight = np.where(known.any(axis=0), weight, share)
    return weight / weight.sum(axis=0)


def repeated_chain(estimates: Sequence[Estimate]) -> tuple[int, int] | None:
    """Return two estimates that share a chain, whose residuals at its first draws are the same;
    None without one.

    Rare events look alike in different chains: only residuals of many values tell, or an estimate
    that is there twice.
    """
    heads = [np.asarray(estimate.residuals[:, :COMPARED]) for estimate in estimates]
    # The same draws, not the same law: identical heads do not occur in independent chains.
    for (i, ours), (j, theirs) in itertools.combinations(enumerate(heads), 2):
        if np.array_equal(ours, theirs, equal_nan=True) and (np.ptp(ours, axis=1) > 0).any():
            return i, j
        for chain in ours:
            telling = [len(np.unique(column)) > TELLING for column in chain.T]
            if any(telling) and (theirs[..., telling] == chain[:, telling]).all(axis=(1, 2)).any():
                return i, j
    return None


def contradicting(estimates: Sequence[Estimate], pooled: Estimate) -> Bool[np.ndarray, " p"]:
    """Return for which quantities a part contradicts the pooled estimate at the level of five
    standard errors."""
    # What both know exactly may differ by rounding of the sums.
    rounding = 1e-9 * (np.abs(pooled.mean) + pooled.sd) + np.finfo(float).tiny
    contradicts = np.zeros(len(pooled.names), bool)
    for estimate in estimates:
        plain, gap = (
            np.abs(estimate.mean_plain - pooled.mean_plain),
            np.abs(estimate.mean - pooled.mean),
        )
        with np.errstate(invalid="ignore"):
            contradicts |= plain > rounding + scipy.stats.norm.isf(DISAGREEMENT) * np.hypot(
                estimate.mcse_plain, pooled.mcse_plain
            )
            # The errors of fits come from refits with about seven degrees of freedom, hence
            # Student's t.
            contradicts |= gap > rounding + scipy.stats.t.isf(DISAGREEMENT, FREEDOM) * np.hypot(
                estimate.mcse, pooled.mcse
            )
    return contradicts


@written_whole("an estimate", "Estimate it again.", "pool_estimates")
def stored_estimate(tree: "xarray.DataTree") -> Estimate:
    """Return the estimate that `Estimate.to_datatree` wrote to a tree."""
    check_tree_type("pool_estimates", tree)
    if GROUP not in tree.children:
        got, cure = (
            ", ".join(tree.children) or "no group",
            "Write them with estimate.to_datatree().",
        )
        raise InputError("pool_estimates", f"a tree with estimates, in a group {GROUP}", got, cure)
    group = tree.children[GROUP].to_dataset()
    if "quantity" not in group.dims:
        got, cure = (
            f"dims {', '.join(map(str, group.dims))}",
            "Of a joint estimate pool each task by itself.",
        )
        raise InputError("pool_estimates", "estimates over `quantity`", got, cure)
    numbers = {field: group[name].values for name, field in NUMBERS.items()}
    return Estimate(
        names=tuple(map(str, group["quantity"].values)),
        status=tuple(Status(str(status)) for status in group["status"].values),
        method=tuple(map(str, group["method"].values)),
        residuals=group["residual"].transpose("chain", ..., "quantity").values,
        covariance=group["covariance"].values,
        info=json.loads(group.attrs["info"]),
        **numbers,
    )


def _one_after_the_other(parts: Sequence[Float[np.ndarray, "_ n p"]]) -> Float[np.ndarray, "c n p"]:
    chains = sum(len(block) for block in parts)
    return np.concatenate(parts, out=np.zeros((chains, *parts[0].shape[1:])))
