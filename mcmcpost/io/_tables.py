"""Estimates as a table and as JSON."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas


def estimate_to_dataframe(estimate: Any) -> "pandas.DataFrame":
    """Return one row per quantity: mean, sd, mcse, mean_cv, mcse_cv, gain, method, status, digits.

    mean, sd, mcse are the plain posterior mean, standard deviation and Monte Carlo standard error, as ``az.summary``
    has them; mean_cv and mcse_cv are the controlled ones; gain is (mcse/mcse_cv)²; digits is how many significant
    digits of mean_cv lie above twice its error.
    """
    import pandas

    return pandas.DataFrame(
        {
            "mean": estimate.mean_plain,
            "sd": estimate.sd,
            "mcse": estimate.mcse_plain,
            "mean_cv": estimate.mean,
            "mcse_cv": estimate.mcse,
            "gain": estimate.gain,
            "method": list(estimate.method),
            "status": [str(status) for status in estimate.status],
            "digits": significant_digits(estimate.mean, estimate.mcse),
        },
        index=pandas.Index(estimate.names, name="quantity"),
    )


def significant_digits(mean: np.ndarray, mcse: np.ndarray) -> np.ndarray:
    """Return ⌊log₁₀(|mean|/2 mcse)⌋ between 0 and 15; 15 for an exact value and 0 for one that is not finite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        digits = np.floor(np.log10(np.abs(mean) / (2 * mcse)))
    digits = np.where(mcse == 0, 15.0, np.nan_to_num(digits, nan=0.0, posinf=15.0, neginf=0.0))
    return np.clip(digits, 0, 15).astype(int)


def estimate_to_json_dict(estimate: Any) -> dict[str, list[dict[str, Any]]]:
    """Return ``{"quantities": [{"name", "mean", "mcse", "gain", ...}]}`` with None for NaN and infinities."""
    table = estimate_to_dataframe(estimate)
    columns = {
        "mean": estimate.mean,
        "mcse": estimate.mcse,
        "gain": estimate.gain,
        "variance_ratio": estimate.variance_ratio,
        "sd": estimate.sd,
        "mean_plain": estimate.mean_plain,
        "mcse_plain": estimate.mcse_plain,
        "mean_crossfit": estimate.mean_crossfit,
    }
    return {
        "quantities": [
            {"name": name}
            | {key: _number(values[j]) for key, values in columns.items()}
            | {
                "method": estimate.method[j],
                "status": str(estimate.status[j]),
                "digits": int(table["digits"].iloc[j]),
            }
            for j, name in enumerate(estimate.names)
        ]
    }


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
