"""Training data, default kernel and predictions of every Gaussian process, with the checks of the
input."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from mcmcpost.core.arguments import as_float64, check_size
from mcmcpost.core.errors import InputError
from mcmcpost.stein import AbstractKernel, Matern32, Scaled


class Prediction(NamedTuple):
    """The posterior at new inputs.

    mean, variance : (n,), in the units of the outputs and their square.
    """

    mean: Float[np.ndarray, " n"]
    variance: Float[np.ndarray, " n"]


class Training(NamedTuple):
    """Checked data; the process is fitted to outputs of mean zero and unit variance, y = centre +
    scale·outputs.

    X : (m, d) inputs.
    outputs : (m,).
    """

    X: Float[np.ndarray, "m d"]
    outputs: Float[np.ndarray, " m"]
    centre: float
    scale: float


def check_training(where: str, X: object, y: object) -> Training:
    """Return the data in float64, refusing what cannot be fitted.

    Raises
    ------
    TypeError, ValueError : not numbers, of the wrong shape, not finite (says in which rows), fewer
        than two rows.
    """
    inputs = check_inputs(where, X, None)
    targets = as_float64(where, "y", y, "m")
    if len(targets) != len(inputs) or len(targets) < 2:
        got = f"{len(inputs)} rows of X and {len(targets)} values"
        raise InputError(
            where, "one value of `y` for each of at least two rows of `X`", got, "Match them."
        )
    refuse_rows(where, "y", ~np.isfinite(targets))
    check_size(where, "y", targets[:, None])
    centre, scale = float(targets.mean()), float(targets.std())
    # constant outputs: nothing to scale
    scale = scale if scale > np.finfo(float).eps * abs(centre) else 1.0
    return Training(inputs, (targets - centre) / scale, centre, scale)


def check_inputs(where: str, X: object, d: int | None) -> Float[np.ndarray, "m d"]:
    """Return inputs (m, d) in float64; `d` is what the fit had, None before it."""
    inputs = as_float64(where, "X", X, "m, d")
    if d is not None and inputs.shape[1] != d:
        raise InputError(
            where,
            f"`X` with {d} columns",
            inputs.shape,
            "Give the coordinates that the fit was given.",
        )
    if not inputs.size:
        raise InputError(
            where, "`X` with at least one row and column", inputs.shape, "Give some inputs."
        )
    refuse_rows(where, "X", ~np.isfinite(inputs).all(axis=1))
    check_size(where, "X", inputs)
    return inputs


def default_kernel(X: Float[np.ndarray, "m d"]) -> AbstractKernel:
    """Return Matérn-3/2 of unit amplitude with one lengthscale per coordinate, its standard
    deviation to start with.

    A constant coordinate has the lengthscale 1, which has no effect.
    """
    spread = X.std(axis=0)
    tiny = np.finfo(float).eps * np.abs(X).max(axis=0)
    return Scaled(1.0, Matern32(np.where(spread > tiny, spread, 1.0)))


def refuse_rows(where: str, name: str, bad: np.ndarray) -> None:
    """Refuse data that are not finite, and say in which rows; `bad` (m,) marks them."""
    if bad.any():
        rows = np.flatnonzero(bad)
        shown = ", ".join(map(str, rows[:5])) + ("…" if len(rows) > 5 else "")
        raise InputError(
            where,
            f"finite values of `{name}`",
            f"{len(rows)} rows that are not: {shown}",
            "Drop these rows.",
        )
