"""Estimates of other chains of one posterior as one estimate, which costs nothing but the new chains."""

import itertools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.stats
from jaxtyping import Bool, Float

from mcmcpost._core.arguments import check_tree_type
from mcmcpost._core.errors import InputError
from mcmcpost._core.large_arrays import zeros
from mcmcpost._core.status import WORST_FIRST, Status
from mcmcpost.control.estimates.estimate import GROUP, NUMBERS, Estimate
from mcmcpost.control.estimates.judgement import DISAGREEMENT

if TYPE_CHECKING:
    import xarray

COMPARED = 100
"""Draws at the start of two chains that show whether they are the same."""

TELLING = 10
"""Distinct values among them above which a residual tells chains apart."""

FREEDOM = 7
"""Degrees of freedom that an error from refits has about."""


def pool(estimates: Sequence[Estimate]) -> Estimate:
    """Return one estimate of the same quantities from independent chains, each part weighted.

    Weights are the draws, of weighted draws the effective ones, so that they are not estimated, where all parts were
    made by the same method: variances of their means are then in that ratio. Elsewhere they are the inverse variances,
    whose own noise adds 1 + 4 Σ wᵢ(1 − wᵢ)/7 to the variance (Meier 1953, doi:10.2307/3001633). A part without an error
    has no weight.
    """
    mean, mcse, sd, mean_plain, mcse_plain, ratio, crossfit = (
        np.stack([getattr(part, name) for part in estimates])
        for name in ("mean", "mcse", "sd", "mean_plain", "mcse_plain", "variance_ratio", "mean_crossfit")
    )
    draws = np.array([part.residuals.shape[0] * part.residuals.shape[1] for part in estimates])
    sizes = np.array([part.info.get("ess", size) for part, size in zip(estimates, draws, strict=True)])
    share = (sizes / sizes.sum())[:, None]
    methods = list(zip(*(part.method for part in estimates), strict=True))
    alike = np.array([len(set(own)) == 1 for own in methods], bool)
    weight = _weights(mean, mcse, sd, share, alike)
    noise = np.where(alike, 1.0, 1 + 4 * (weight * (1 - weight)).sum(axis=0) / FREEDOM)
    known = np.isfinite(mcse)
    total = np.sqrt(noise * (weight**2 * np.where(known, mcse, 0.0) ** 2).sum(axis=0))
    error = np.where(known.any(axis=0), total, np.nan)
    middle = (share * mean_plain).sum(axis=0)
    plain = np.sqrt((share**2 * mcse_plain**2).sum(axis=0))
    outer = np.zeros((len(total), len(total)))
    for own, part in zip(weight, estimates, strict=True):
        outer += own[:, None] * own * np.where(np.isfinite(part.covariance), part.covariance, 0.0)
    mean = (weight * mean).sum(axis=0)
    error = np.where(np.isnan(mean), np.nan, error)
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = np.where(error > 0, (plain / error) ** 2, 1.0)
        scattered = (share * sd**2).sum(axis=0) / (share * sd**2 / ratio).sum(axis=0)
    return Estimate(
        names=estimates[0].names,
        mean=mean,
        mcse=error,
        gain=np.where(np.isfinite(error), gain, np.nan),
        variance_ratio=np.where(sd.max(axis=0) > 0, scattered, 1.0),
        status=tuple(min(own, key=WORST_FIRST.index) for own in zip(*(p.status for p in estimates), strict=True)),
        method=tuple(" + ".join(dict.fromkeys(own)) for own in methods),
        sd=np.sqrt((share * (sd**2 + (mean_plain - middle) ** 2)).sum(axis=0)),
        mean_plain=middle,
        mcse_plain=plain,
        mean_crossfit=(weight * crossfit).sum(axis=0),
        residuals=_one_after_the_other([part.residuals for part in estimates]),
        covariance=np.where(np.isnan(mean) | np.isnan(mean)[:, None], np.nan, outer * np.sqrt(noise[:, None] * noise)),
        info={"pooled_draws": draws.tolist(), "duplicates": estimates[0].info.get("duplicates", {})}
        | _weights_of(estimates, float(sizes.sum())),
    )


def _weights_of(estimates: Sequence[Estimate], ess: float) -> dict[str, Any]:
    """Return the effective draws and the largest Pareto k-hat where some draws are weighted; None is one not finite."""
    khats: list[Any] = [part.info["pareto_khat"] for part in estimates if "pareto_khat" in part.info]
    return {"ess": ess, "pareto_khat": None if None in khats else max(khats)} if khats else {}


def _weights(
    mean: Float[np.ndarray, "k p"],
    mcse: Float[np.ndarray, "k p"],
    sd: Float[np.ndarray, "k p"],
    share: Float[np.ndarray, "k one"],
    alike: Bool[np.ndarray, " p"],
) -> Float[np.ndarray, "k p"]:
    known = np.isfinite(mcse)
    rounding = np.finfo(float).eps * (np.abs(mean) + sd) + np.finfo(float).tiny
    with np.errstate(invalid="ignore"):
        precision = 1 / np.maximum(mcse / rounding.max(axis=0), 1.0) ** 2
    weight = np.where(known, np.where(alike, share, precision), 0.0)
    weight = np.where(known.any(axis=0), weight, share)
    return weight / weight.sum(axis=0)


def repeated_chain(estimates: Sequence[Estimate]) -> tuple[int, int] | None:
    """Return two estimates that share a chain, whose residuals at its first draws are the same; None without one.

    Rare events look alike in different chains: only residuals of many values tell, or an estimate that is there twice.
    """
    heads = [np.asarray(part.residuals[:, :COMPARED]) for part in estimates]
    for (i, ours), (j, theirs) in itertools.combinations(enumerate(heads), 2):
        if np.array_equal(ours, theirs, equal_nan=True) and (np.ptp(ours, axis=1) > 0).any():
            return i, j
        for chain in ours:
            telling = [len(np.unique(column)) > TELLING for column in chain.T]
            if any(telling) and (theirs[..., telling] == chain[:, telling]).all(axis=(1, 2)).any():
                return i, j
    return None


def contradicting(estimates: Sequence[Estimate], pooled: Estimate) -> Bool[np.ndarray, " p"]:
    """Return for which quantities a part contradicts the pooled estimate at the level of five standard errors."""
    rounding = 1e-9 * (np.abs(pooled.mean) + pooled.sd) + np.finfo(float).tiny
    found = np.zeros(len(pooled.names), bool)
    for part in estimates:
        plain, gap = np.abs(part.mean_plain - pooled.mean_plain), np.abs(part.mean - pooled.mean)
        with np.errstate(invalid="ignore"):
            found |= plain > rounding + scipy.stats.norm.isf(DISAGREEMENT) * np.hypot(
                part.mcse_plain, pooled.mcse_plain
            )
            found |= gap > rounding + scipy.stats.t.isf(DISAGREEMENT, FREEDOM) * np.hypot(part.mcse, pooled.mcse)
    return found


def stored_estimate(tree: "xarray.DataTree") -> Estimate:
    """Return the estimate that `Estimate.to_datatree` wrote to a tree."""
    check_tree_type("pool_estimates", tree)
    if GROUP not in tree.children:
        got, cure = ", ".join(tree.children) or "no group", "Write them with estimate.to_datatree()."
        raise InputError("pool_estimates", f"a tree with estimates, in a group {GROUP}", got, cure)
    group = tree.children[GROUP].to_dataset()
    if "quantity" not in group.dims:
        got, cure = f"dims {', '.join(map(str, group.dims))}", "Of a joint estimate pool each task by itself."
        raise InputError("pool_estimates", "estimates over `quantity`", got, cure)
    numbers = {field: group[name].values for name, field in NUMBERS.items()}
    return Estimate(
        names=tuple(map(str, group["quantity"].values)),
        status=tuple(Status(str(status)) for status in group["status"].values),
        method=tuple(map(str, group["method"].values)),
        residuals=group["residual"].transpose("chain", "draw", "quantity").values,
        covariance=group["covariance"].values,
        info=json.loads(group.attrs["info"]),
        **numbers,
    )


def _one_after_the_other(parts: Sequence[Float[np.ndarray, "_ n p"]]) -> Float[np.ndarray, "c n p"]:
    chains = sum(len(part) for part in parts)
    return np.concatenate(parts, out=zeros((chains, *parts[0].shape[1:])))
