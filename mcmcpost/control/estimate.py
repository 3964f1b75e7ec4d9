"""Estimates with honest errors, of expectations and of quantiles: the cross-fitted residual series decides."""

import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.stats
from jaxtyping import Bool, Float

from mcmcpost._core.arrays import copy_of, in_blocks
from mcmcpost._core.errors import InputError
from mcmcpost._core.mcse import mcse_mean
from mcmcpost._core.status import Status
from mcmcpost._core.text import json_able
from mcmcpost.control.errors import feature_inflation, tail_inflation, total_error
from mcmcpost.control.method import ROUNDING, AbstractControlVariate, ControlFit, PlainMean
from mcmcpost.control.problem import Problem, column_sd, make_problem
from mcmcpost.trace import Trace, distinct_states

if TYPE_CHECKING:
    import pandas
    import xarray

MIN_STATES = 4
"""Below so many distinct states nothing is known about the error, not even of a constant."""


DISAGREEMENT = 2.9e-7
"""Probability, one tail, beyond which the controlled and the plain mean contradict each other: five standard errors."""


GROUP = "control_variates"
"""The group of a tree that holds estimates."""

NUMBERS = ("mean", "mcse", "gain", "variance_ratio", "sd", "mean_plain", "mcse_plain", "mean_crossfit")
"""The fields of `Estimate` that are one number a quantity."""


class Estimate(NamedTuple):
    """Posterior expectations of p integrands; see docs/mathematics.md section 2 for the definitions.

    names : p labels.
    mean, mcse : (p,) the estimate and its Monte Carlo standard error, in the integrand's units. `mean` is that of the
        fit on all draws. `mcse` starts from the ESS-based error of the cross-fitted residuals, which is not enough
        where a flexible fit nearly interpolates: mcse² = max(cross-fitted, jackknife)²·inflation + doubt², see
        `total_error`, `tail_inflation`, `feature_inflation` and `mean_doubt`.
    gain : (p,) (mcse_plain/mcse)², the factor of draws saved.
    variance_ratio : (p,) Var f / Var residual, cross-fitted.
    status, method : p statuses and what was fitted.
    sd : (p,) posterior standard deviation of the integrand.
    mean_plain, mcse_plain : (p,) without control variates.
    mean_crossfit : (p,) mean of the cross-fitted residuals.
    residuals : (c, n, p) integrand minus held-out control variate; its mean estimates the expectation.
    covariance : (p, p) of the estimates: correlation of the residuals times the errors.
    info : JSON-able facts: degrees, kernels, nuggets, costs, folds.
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

    def to_dataframe(self) -> "pandas.DataFrame":
        """Return one row per quantity: mean, sd, mcse, mean_cv, mcse_cv, gain, method, status, digits.

        mean, sd, mcse are the plain posterior mean, standard deviation and Monte Carlo standard error, as in
        ``az.summary``; mean_cv and mcse_cv are the controlled ones; gain is (mcse/mcse_cv)²; digits is how many
        significant digits of mean_cv lie above twice its error.
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
        """Return ``{"quantities": [{"name", "mean", "mcse", "gain", ...}]}`` with None for NaN and infinities."""
        table = self.to_dataframe()
        columns = {
            "mean": self.mean,
            "mcse": self.mcse,
            "gain": self.gain,
            "variance_ratio": self.variance_ratio,
            "sd": self.sd,
            "mean_plain": self.mean_plain,
            "mcse_plain": self.mcse_plain,
            "mean_crossfit": self.mean_crossfit,
        }
        return {
            "quantities": [
                {"name": name}
                | {key: json_able(float(values[j])) for key, values in columns.items()}
                | {
                    "method": self.method[j],
                    "status": str(self.status[j]),
                    "digits": int(table["digits"].iloc[j]),
                }
                for j, name in enumerate(self.names)
            ]
        }

    def to_datatree(self, tree: "xarray.DataTree | None" = None) -> "xarray.DataTree":
        """Return a new tree with the estimates in the group `control_variates`.

        Parameters
        ----------
        tree : the trace of the estimate, from which the other groups are taken; it is not changed, and their arrays are
            shared with it, as by ``tree.copy()``.

        Returns
        -------
        DataTree : variables `mean`, `mcse`, `gain`, `variance_ratio`, `sd`, `mean_plain`, `mcse_plain`,
            `mean_crossfit`, `status` and `method` over `quantity`; `residual` (chain, draw, quantity), whose spread is
            that of f − g and not of the posterior; `covariance` (quantity, quantity_bis). Attrs: the methods, `info` as
            JSON with null for what is not finite, its scalar entries one by one, and versions.
        """
        import xarray

        names = np.array(self.names, dtype=object)
        variables: dict[str, Any] = {name: ("quantity", np.asarray(getattr(self, name))) for name in NUMBERS}
        variables |= {
            "status": ("quantity", np.array([str(status) for status in self.status], dtype=object)),
            "method": ("quantity", np.array([str(method) for method in self.method], dtype=object)),
            "residual": (("chain", "draw", "quantity"), np.asarray(self.residuals)),
            "covariance": (("quantity", "quantity_bis"), np.asarray(self.covariance)),
        }
        new = xarray.DataTree() if tree is None else tree.copy()
        coords = {"quantity": names, "quantity_bis": names, **_chain_draw(new, self.residuals.shape)}
        results = xarray.Dataset(variables, coords=coords, attrs=_attrs(self))
        new[GROUP] = xarray.DataTree(results)
        return new


def significant_digits(mean: np.ndarray, mcse: np.ndarray) -> np.ndarray:
    """Return ⌊log₁₀(|mean|/2 mcse)⌋ between 0 and 15; 15 for an exact value and 0 for one that is not finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        digits = np.floor(np.log10(np.abs(mean) / (2 * mcse)))
    digits = np.where(mcse == 0, 15.0, np.nan_to_num(digits, nan=0.0, posinf=15.0, neginf=0.0))
    return np.clip(digits, 0, 15).astype(int)


def _chain_draw(tree: "xarray.DataTree", shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    posterior = tree.children.get("posterior")
    sizes = tuple(shape[:2]) if posterior is None else tuple(posterior.sizes.get(dim, 0) for dim in ("chain", "draw"))
    if sizes != tuple(shape[:2]):
        raise InputError("to_datatree", f"a tree of {tuple(shape[:2])} chains and draws", sizes, "Pass its own trace.")
    return {
        dim: posterior.coords[dim].values if posterior is not None and dim in posterior.coords else np.arange(size)
        for dim, size in zip(("chain", "draw"), shape, strict=False)
    }


def _attrs(estimate: "Estimate") -> dict[str, str | int | float]:
    info = {str(key): json_able(value) for key, value in estimate.info.items()}
    scalars = {
        key: value for key, value in info.items() if isinstance(value, (str, int, float)) and type(value) is not bool
    }
    return {
        **scalars,
        "method": ", ".join(dict.fromkeys(str(method) for method in estimate.method)),
        "info": json.dumps(info, allow_nan=False),
        "residual_is": "f - g, cross-fitted: its spread is not that of the posterior",
        "mcmcpost_version": version("mcmcpost"),
        "jax_version": version("jax"),
        "arviz_version": version("arviz"),
    }


def estimate_expectations(
    trace: Trace,
    names: tuple[str, ...],
    values: Float[np.ndarray, "c n p"],
    method: AbstractControlVariate,
    *,
    num_folds: int | None = None,
    moments: tuple[Any, Any] | None = None,
    bad_scores: bool = False,
    fallback: bool = True,
) -> Estimate:
    """Estimate the posterior expectation of each integrand with `method`, falling back to the plain mean without gain.

    Parameters
    ----------
    trace : draws and scores.
    values : (c, n, p) integrands at the draws; one with a NaN or infinity is returned as NaN, ``undefined``.
    num_folds : folds of the cross-fitting; about eight by default.
    moments : known mean and standard deviation of the draws (unconstrained space), instead of the sample's.
    bad_scores : mark every result as resting on scores that failed the gate, and believe it all the same.
    fallback : return the plain mean where the controlled error is not smaller; otherwise a gain below one is reported.
    """
    columns = controllable(trace, values)
    if len(columns):
        asked = values if len(columns) == values.shape[-1] else np.ascontiguousarray(values[..., columns])
        problem = make_problem(trace, asked, num_folds=num_folds, moments=moments)
        part = assemble(
            names, values, columns, method.crossfit(problem), problem, fallback=fallback, believe=bad_scores
        )
    else:
        part = plain_estimate(names, values)
    return mark(part, trace, values, bad_scores=bad_scores)


def controllable(trace: Trace, values: Float[np.ndarray, "c n p"]) -> np.ndarray:
    """Return the columns to which a control variate may be fitted: finite, not constant, at four states or more."""
    if len(distinct_states(trace).counts) < MIN_STATES:
        return np.zeros(0, int)
    return np.flatnonzero(_varying(values))


def mark(part: Estimate, trace: Trace, values: Float[np.ndarray, "c n p"], *, bad_scores: bool) -> Estimate:
    """Return the estimate with the statuses that the data alone decide: undefined, too few draws, bad scores."""
    finite, varying = np.isfinite(values).all(axis=(0, 1)), _varying(values)
    few = len(distinct_states(trace).counts) < MIN_STATES
    status = list(part.status)
    for j in range(len(status)):
        if not finite[j]:
            status[j] = Status.UNDEFINED
        elif few:
            status[j] = Status.TOO_FEW_DRAWS
            part.mcse[j] = part.mcse_plain[j] = part.covariance[j] = part.covariance[:, j] = np.nan
        elif bad_scores and varying[j]:
            status[j] = Status.BAD_SCORES
    return part._replace(status=tuple(status))


def _varying(values: Float[np.ndarray, "c n p"]) -> Bool[np.ndarray, " p"]:
    """Return which integrands are finite and not constant."""
    with np.errstate(invalid="ignore"):
        low, high = values.min(axis=(0, 1)), values.max(axis=(0, 1))
        return np.isfinite(low) & np.isfinite(high) & (high > low)


def plain_estimate(names: tuple[str, ...], values: Float[np.ndarray, "c n p"]) -> Estimate:
    """Return plain means; a constant integrand is exact."""
    p = values.shape[-1]
    finite = np.isfinite(values).all(axis=(0, 1))
    safe = values if finite.all() else np.where(finite, values, 0.0)
    constant = ~_varying(safe)
    mean = np.where(constant, safe[0, 0], safe.mean(axis=(0, 1)))
    nan = np.where(finite, 0.0, np.nan)
    mcse = np.where(constant, 0.0, mcse_mean(safe)) + nan
    ones = np.ones(p) + nan
    many = values.shape[0] * values.shape[1] > 1
    sd = (column_sd(safe.reshape(-1, p), ddof=1) if many else np.full(p, np.nan)) + nan
    return Estimate(
        names=names,
        mean=mean + nan,
        mcse=mcse,
        gain=ones,
        variance_ratio=ones.copy(),
        status=tuple(Status.EXACT if c and f else Status.PLAIN for c, f in zip(constant, finite, strict=True)),
        method=(PlainMean().label,) * p,
        sd=np.where(constant, 0.0, sd) + nan,
        mean_plain=mean + nan,
        mcse_plain=mcse.copy(),
        mean_crossfit=mean + nan,
        residuals=copy_of(values),
        covariance=covariance_of(values, mcse),
        info={},
    )


def assemble(
    names: tuple[str, ...],
    values: Float[np.ndarray, "c n p"],
    columns: np.ndarray,
    fit: ControlFit,
    problem: Problem,
    *,
    fallback: bool = True,
    believe: bool = False,
) -> Estimate:
    """Combine a fit of some columns with the plain estimate of all.

    believe : keep a controlled mean that contradicts the plain one, for callers who overrode the score gate.
    """
    base = plain_estimate(names, values)
    facts = fit.info | {"num_folds": len(problem.held_out), "num_states": problem.num_states}
    status, method = list(base.status), list(base.method)
    for some in in_blocks(len(columns), values.shape[0] * values.shape[1]):
        _put(base, status, method, values, columns[some], fit.select(some), problem.select(some), fallback, believe)
    covariance = covariance_of(base.residuals, base.mcse)
    return base._replace(status=tuple(status), method=tuple(method), covariance=covariance, info=facts)


def _put(
    out: Estimate,
    status: list[Status],
    method: list[str],
    values: Float[np.ndarray, "c n p"],
    columns: np.ndarray,
    fit: ControlFit,
    problem: Problem,
    fallback: bool,
    believe: bool,
) -> None:
    """Put the fit of `columns` into `out`, `status` and `method`, which hold their plain estimates."""
    control = (fit.control[problem.inverse] * problem.scale).reshape(*values.shape[:2], len(columns))
    residual = values[..., columns] - control
    sd, plain = out.sd[columns], out.mcse_plain[columns]
    with np.errstate(invalid="ignore", divide="ignore"):
        seen = mcse_mean(residual)
        size = np.abs(out.mean_plain[columns]) + sd
        parts = np.maximum(residual.std(axis=(0, 1)), problem.scale * np.maximum(fit.jackknife, fit.doubt))
        exact = np.isfinite(seen) & (parts <= ROUNDING * size)
        ess = (sd / plain) ** 2
        inflation = tail_inflation(residual.reshape(-1, len(columns))) * feature_inflation(fit.num_features, ess)
        mcse = np.where(exact, seen, problem.scale * total_error(seen / problem.scale, fit, inflation))
        usable = np.isfinite(mcse) & np.isfinite(fit.mean) & ((mcse < plain) | (not fallback))
        gain = (plain / mcse) ** 2
        ratio = values[..., columns].var(axis=(0, 1)) / residual.var(axis=(0, 1))
        mean = problem.location + problem.scale * fit.mean
        slack = plain * np.sqrt(tail_inflation(values[..., columns].reshape(-1, len(columns))))
        limit = scipy.stats.t.isf(DISAGREEMENT, np.maximum(ess - 1, 1)) * np.hypot(slack, mcse)
        contradicted = np.abs(mean - out.mean_plain[columns]) > limit
    mcse = np.where(exact, np.maximum(mcse, np.finfo(float).eps * size), mcse)

    for k, j in enumerate(columns):
        if fit.status[k] in (Status.PLAIN, Status.TOO_FEW_DRAWS):
            status[j] = fit.status[k]
            continue
        if not usable[k]:
            status[j] = Status.PLAIN if np.isfinite(plain[k]) else Status.TOO_FEW_DRAWS
            continue
        if contradicted[k] and not believe:
            status[j] = Status.BAD_SCORES
            continue
        status[j] = Status.EXACT if exact[k] and fit.status[k] is not Status.NOT_CONVERGED else fit.status[k]
        method[j] = fit.method[k]
        out.mean[j] = mean[k]
        out.mcse[j], out.gain[j], out.variance_ratio[j] = mcse[k], gain[k], ratio[k]
        out.mean_crossfit[j] = residual[..., k].mean()
        out.residuals[..., j] = residual[..., k]


def covariance_of(series: Float[np.ndarray, "c n p"], mcse: Float[np.ndarray, " p"]) -> Float[np.ndarray, "p p"]:
    """Return the correlation of the series (c, n, p) times the errors (p,)."""
    flat = series.reshape(-1, series.shape[-1])
    correlation = np.zeros((flat.shape[1], flat.shape[1]))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean, norm = flat.mean(axis=0), column_sd(flat) * np.sqrt(len(flat))
        for rows in in_blocks(*flat.shape):
            unit = (flat[rows] - mean) / np.where(norm > 0, norm, 1.0)
            correlation += unit.T @ unit
    np.fill_diagonal(correlation, 1.0)
    return correlation * mcse[:, None] * mcse[None, :]


NUM_PASSES = 2


def estimate_quantiles(
    trace: Trace,
    names: tuple[str, ...],
    values: Float[np.ndarray, "c n p"],
    probabilities: Float[np.ndarray, " a"],
    method: AbstractControlVariate,
    *,
    num_folds: int | None = None,
    bad_scores: bool = False,
) -> Estimate:
    """Estimate quantiles of each integrand, one result per (integrand, probability).

    The empirical distribution function F̂, moved by the control variate's correction at the quantile itself, is
    inverted: q solves F̂(q) = π − (F_cv(q₀) − F̂(q₀)) with q₀ the quantile of the pass before, two passes. The error
    is half the distance between the empirical quantiles at π moved by ± the mcse of F_cv, as ArviZ does for plain
    quantiles. An indicator is rough, so gains are modest; where there is none the status is ``plain``.

    Parameters
    ----------
    values : (c, n, p). probabilities : in (0, 1).
    """
    p, a = values.shape[-1], len(probabilities)
    flat = np.repeat(values.reshape(-1, p), a, axis=1)
    levels = np.tile(probabilities, p)
    labels = tuple(f"{name} [{level:g}]" for name in names for level in probabilities)
    finite = np.isfinite(flat).all(axis=0)
    safe = np.where(finite, flat, 0.0)
    ordered = np.sort(safe, axis=0)
    plain = _invert(ordered, levels)
    quantile = plain
    for _ in range(NUM_PASSES):
        below = np.where(finite, safe <= quantile, np.nan).reshape(*values.shape[:2], -1)
        estimate = estimate_expectations(trace, labels, below, method, num_folds=num_folds, bad_scores=bad_scores)
        quantile = _invert(ordered, levels - (estimate.mean - estimate.mean_plain))
    nan = np.where(finite, 0.0, np.nan)
    shifted = levels - (estimate.mean - estimate.mean_plain)
    half = 0.5 * (_invert(ordered, shifted + estimate.mcse) - _invert(ordered, shifted - estimate.mcse))
    plain_half = 0.5 * (_invert(ordered, levels + estimate.mcse_plain) - _invert(ordered, levels - estimate.mcse_plain))
    crossfit = _invert(ordered, levels - (estimate.mean_crossfit - estimate.mean_plain))
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = estimate.covariance / estimate.mcse[:, None] / estimate.mcse[None, :]
        gain = np.where(half > 0, (plain_half / half) ** 2, estimate.gain)
    return estimate._replace(
        mean=quantile + nan,
        mcse=half + nan,
        mean_plain=plain + nan,
        mcse_plain=plain_half + nan,
        mean_crossfit=crossfit + nan,
        gain=gain + nan,
        sd=safe.std(axis=0, ddof=1) + nan,
        covariance=correlation * half[:, None] * half[None, :],
        info=estimate.info | {"note": "residuals are those of the indicator of each quantile"},
    )


def _invert(ordered: Float[np.ndarray, "n q"], levels: Float[np.ndarray, " q"]) -> Float[np.ndarray, " q"]:
    """Return the order statistics' quantiles at `levels`, one level per column, linearly interpolated.

    A NaN level belongs to a column that is reported as NaN.
    """
    position = np.clip(np.nan_to_num(levels), 0.0, 1.0) * (len(ordered) - 1)
    low = np.floor(position).astype(int)
    high = np.minimum(low + 1, len(ordered) - 1)
    column = np.arange(ordered.shape[1])
    return ordered[low, column] + (position - low) * (ordered[high, column] - ordered[low, column])
