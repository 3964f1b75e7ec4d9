"""Scores from a log density, and scores against one that was recorded.

Gradients of a log density at stored draws are compiled once and computed in batches, over all
devices. Recorded scores are compared with the differences of a recorded log density between near
draws.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.stats import chi2

from mcmcpost.core.arguments import as_float64, check_count
from mcmcpost.core.devices import BATCH_SIZE, map_rows
from mcmcpost.core.errors import InputError, InputTypeError
from mcmcpost.core.precision import NOT_TRACEABLE, in_either_precision, not_traceable


def batch_scores(
    logdensity_fn: Callable[..., Array],
    draws: object,
    *,
    given: Any = None,
    batch_size: int = BATCH_SIZE,
) -> Float[np.ndarray, "c n d"]:
    """Return the gradient of a log density at every stored draw, in float64.

    s = ∇ log p(x). The gradient is compiled once and vectorised over blocks of equal size, each
    device taking its share; a terminal shows a progress bar. A draw at which log p is NaN or
    infinite gets a NaN score (see `value_and_score`).

    Parameters
    ----------
    logdensity_fn : log density of one unconstrained draw, (d,) → scalar, written in JAX.
    draws : (c, n, d) unconstrained draws.
    given : a pytree of arrays (c, n, ...), whose values at a draw are the second argument of
        `logdensity_fn` there, as discrete parameters.
    batch_size : draws differentiated at a time on each device; memory grows with it.

    Returns
    -------
    (c, n, d) scores.

    Raises
    ------
    ValueError : `draws` is not (chain, draw, d), `batch_size` is below one, or the log density is
        not a scalar.
    """
    where = "batch_scores"
    points = as_float64(where, "draws", draws, "chain, draw, d")
    check_count(where, "batch_size", batch_size, "Use 512.")
    if points.size == 0:
        raise InputError(
            where, "at least one chain, draw and parameter", points.shape, "Sample first."
        )
    rows = (points, *(() if given is None else (given,)))

    def at_first(draw: Array) -> Array:
        return logdensity_fn(draw, *jax.tree.map(lambda leaf: jnp.asarray(leaf[0, 0]), rows[1:]))

    check_scalar(where, at_first, points.shape[-1])
    scores = map_rows(
        lambda row: value_and_score(lambda draw: logdensity_fn(draw, *row[1:]), row[0]).score,
        jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rows),
        batch_size=batch_size,
        progress="scores",
    )
    return scores.reshape(points.shape).astype(np.float64)


def check_scalar(
    where: str, logdensity_fn: Callable[[Array], Array], d: int, name: str = "logdensity_fn"
) -> None:
    """Refuse a log density that does not map one draw (d,) to a real scalar, or that JAX cannot
    trace."""
    expected, cure = f"`{name}` to map one draw (d,) to a scalar", "Sum its terms."

    def checked(draw: Array) -> Array:
        value = logdensity_fn(draw)
        if not isinstance(value, jax.Array | np.ndarray | np.generic | float):
            raise InputTypeError(where, expected, type(value).__name__, cure)
        if np.shape(value) != () or not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            raise InputError(
                where, expected, f"shape {np.shape(value)} of {jnp.result_type(value)}", cure
            )
        return jnp.asarray(value)

    try:
        # JAX warns of float64 where `in_either_precision` tries the other one.
        in_either_precision(
            lambda: jax.eval_shape(checked, jax.ShapeDtypeStruct((d,), jnp.result_type(float)))
        )
    except NOT_TRACEABLE as error:
        raise not_traceable(where, name, logdensity_fn, error) from error


class ValueAndScore(NamedTuple):
    """A log density at one draw (d,), and its gradient."""

    value: Float[Array, ""]
    score: Float[Array, " d"]


def value_and_score(
    logdensity_fn: Callable[[Array], Array], draw: Array, *, forward_mode: bool = False
) -> ValueAndScore:
    """Return a log density and its gradient at one draw; the gradient is NaN where the value is not
    finite.

    There automatic differentiation may give a finite gradient, which is wrong: a masked failure of
    an ODE solver does.

    Parameters
    ----------
    logdensity_fn : (d,) → scalar.
    forward_mode : differentiate in forward mode, d directional derivatives.
    """
    if forward_mode:
        basis = jnp.eye(draw.shape[0], dtype=draw.dtype)
        value, slope = jax.vmap(
            lambda unit: jax.jvp(logdensity_fn, (draw,), (unit,)), out_axes=(None, 0)
        )(basis)
    else:
        value, slope = jax.value_and_grad(logdensity_fn)(draw)
    return ValueAndScore(value, jnp.where(jnp.isfinite(value), slope, jnp.nan))


FEWEST_PER_COEFFICIENT, PER_COEFFICIENT = 10, 12
"""Different draws for each coefficient, the factor and the shifts, below which nothing is told;
and how many are taken, since some may be the same."""

ENOUGH, MOST_DRAWS = 1_000, 2_000
"""Draws that are compared: so many, and more only where there are many coefficients. The work is
that of all their distances: 1,000 take .03 CPU s and 2,000 .11, which see scores of group effects
in five dimensions that are shifted by .03 sd."""

NEIGHBOURS = (1, 4, 16, 64)
"""Ranks of the neighbours that a draw is paired with: the weights choose between near ones and
rounding."""

LEVEL = 1e-6

LARGEST = 0.01
"""By how much the factor may differ from one, and the shift in white coordinates from zero."""

SETTLED = 1e-3
"""Weights that are the same but for a factor, to a thousandth, are weighted no further."""

DOMINANT = 9.0
"""Wrong scores must explain so many times the squared misfit that third derivatives leave, which
look alike to 4."""


class Misfit(NamedTuple):
    """How scores miss the differences of a log density.

    factor : the scores are too large by this factor.
    shift : (d,) and by these shifts, in units of one over the standard deviation.
    wrong : whether that is significant, large, and explains the misfit.
    known : whether neither is beyond `LARGEST`, and three standard errors of them are not either.
    """

    factor: float
    shift: Float[np.ndarray, " d"]
    wrong: bool
    known: bool


def misfit(
    draws: Float[np.ndarray, "m d"],
    scores: Float[np.ndarray, "m d"],
    log_density: Float[np.ndarray, " m"],
) -> Misfit | None:
    """Compare ℓ(y) − ℓ(x) with ½(s(x) + s(y))·(y − x) over near pairs of draws, which differ by
    O(|y − x|³).

    The differences of the two are regressed on the second and on y − x, with weights for errors of
    third order and for the rounding of ℓ. A log density of the other sign, as some programs record,
    is turned. Draws at which none was recorded (NaN, or an infinity) are left out.

    Returns
    -------
    None where there are too few different draws, for so many parameters, to tell.
    """
    rows = np.flatnonzero(np.isfinite(log_density))
    if not rows.size:
        return None
    wanted = min(max(ENOUGH, PER_COEFFICIENT * (draws.shape[1] + 1)), MOST_DRAWS, len(rows))
    kept = rows[np.linspace(0, len(rows) - 1, wanted).astype(int)]
    # Repeated states are pairs of zero distance, in which nothing is compared.
    x, first = np.unique(draws[kept], axis=0, return_index=True)
    s, values = scores[kept][first], log_density[kept][first]
    m, d = x.shape
    with np.errstate(over="ignore"):
        sd, levels = x.std(axis=0), np.unique(values)
    if m < FEWEST_PER_COEFFICIENT * (d + 1) or len(levels) < 2 or not np.isfinite(sd).all():
        return None
    # White coordinates, so that "near" and the shifts have no units: scores turn by the transposed
    # map.
    unit = (x - x.mean(axis=0)) / sd
    spread = np.linalg.cholesky(unit.T @ unit / m + 1e-12 * np.eye(d))
    z, t = np.linalg.solve(spread, unit.T).T, (s * sd) @ spread
    # All distances by one matrix product: in many dimensions no tree is faster, and the ranks bear
    # its rounding.
    squares = (z**2).sum(axis=1)
    distances = squares[:, None] + squares - 2 * z @ z.T
    np.fill_diagonal(distances, np.inf)
    ranks = np.array([rank for rank in NEIGHBOURS if rank < m]) - 1
    other = np.argpartition(distances, ranks, axis=1)[:, ranks].ravel()
    one, two = np.unique(
        np.sort(np.c_[np.repeat(np.arange(m), len(ranks)), other], axis=1), axis=0
    ).T
    step = z[two] - z[one]
    # The error of the trapezoid is of third order; the floor keeps its inverse square finite.
    cubic = np.maximum(np.linalg.norm(step, axis=1), 1e-12) ** 3
    predicted = 0.5 * ((t[one] + t[two]) * step).sum(axis=1)
    recorded = values[two] - values[one]
    if np.median(np.abs(recorded + predicted) / cubic) < np.median(
        np.abs(recorded - predicted) / cubic
    ):
        recorded = -recorded
    error = recorded - predicted
    # The smallest difference of a rounded density is its rounding, that of others is next to
    # nothing.
    rounding = np.diff(levels).min() + 1e-13 * np.abs(levels).max()
    regressors = np.c_[predicted, step]
    weight = 1 / np.hypot(np.median(np.abs(error) / cubic) * cubic, rounding)
    # Reweighted least squares: the size of third order and the fit depend on each other.
    for _ in range(5):
        weighted = regressors * weight[:, None]
        bread = np.linalg.pinv(weighted.T @ weighted, hermitian=True)
        coefficients = bread @ (weighted.T @ (error * weight))
        residual = error - regressors @ coefficients
        third = (residual**2 - rounding**2 / 6) / cubic**2  # the difference of two rounded numbers
        # Winsorised: a few pairs across a ridge must not decide what is usual.
        size = (
            np.minimum(np.maximum(third, 0.0), 20 * np.median(np.abs(third))) @ cubic / cubic.sum()
        )
        before, weight = weight, 1 / np.hypot(np.sqrt(size) * cubic, rounding)
        # Where rounding is nothing beside third order, weights in proportion give the same fit.
        ratio = weight / before
        if np.ptp(ratio) < SETTLED * ratio.max():
            break
    # Pairs that share a draw are correlated: the sandwich sums over the pairs of each first draw.
    influence = np.zeros((m, d + 1))
    np.add.at(influence, one, regressors * (residual * weight**2)[:, None])
    bread = np.linalg.pinv(
        (regressors * weight[:, None]).T @ (regressors * weight[:, None]), hermitian=True
    )
    covariance = bread @ (influence.T @ influence) @ bread
    missed = np.abs(coefficients).max()
    explained = np.sum((regressors @ coefficients * weight) ** 2)
    significant = (
        chi2.sf(coefficients @ np.linalg.pinv(covariance, hermitian=True) @ coefficients, d + 1)
        < LEVEL
    )
    unsure = np.sqrt(np.maximum(np.diagonal(covariance), 0.0)).max()
    return Misfit(
        factor=1 / (1 + coefficients[0]),
        shift=np.linalg.solve(spread.T, -coefficients[1:]),
        wrong=bool(
            significant
            and missed > LARGEST
            and explained > DOMINANT * size * np.sum((cubic * weight) ** 2)
        ),
        known=bool(max(missed, 3 * unsure) < LARGEST),
    )
