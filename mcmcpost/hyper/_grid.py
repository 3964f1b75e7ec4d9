"""Isotropic lengthscale and nugget per integrand, by restricted likelihood on a fixed grid."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost._blocks import pad_columns
from mcmcpost.hyper._likelihood import negative_restricted_likelihood
from mcmcpost.kernels import SquaredExponential
from mcmcpost.stein import stein_gram

GRID_SPREADS = (0.5, 2.0, 8.0, 32.0)
"""Squared lengthscales as multiples of the median squared distance; long ones are best on smooth posteriors."""
GRID_NUGGETS = (1e-8, 1e-6, 1e-4, 1e-2, 1.0)
"""Relative nuggets η; the large ones serve rough integrands."""


class GridChoice(NamedTuple):
    """Lengthscale and nugget of one group of integrands.

    lengthscale, nugget : floats, on the coordinates given.
    members : indices of the integrands that use them.
    """

    lengthscale: float
    nugget: float
    members: tuple[int, ...]


def median_squared_distance(draws: Float[np.ndarray, "m d"]) -> float:
    """Return the median of ‖x−y‖² over pairs of at most 1,000 evenly spaced draws."""
    from scipy.spatial.distance import pdist

    some = draws[np.linspace(0, len(draws) - 1, min(len(draws), 1000)).astype(int)]
    return float(np.median(pdist(some, "sqeuclidean"))) if len(some) > 1 else 1.0


@jax.jit
def _grid_losses(
    draws: Float[Array, "m d"],
    scores: Float[Array, "m d"],
    basis: Float[Array, "m q"],
    values: Float[Array, "m p"],
    lengthscales: Float[Array, " a"],
    nuggets: Float[Array, " b"],
) -> Float[Array, "a b p"]:
    def of_lengthscale(lengthscale: Float[Array, ""]) -> Float[Array, "b p"]:
        gram = stein_gram(SquaredExponential(lengthscale), draws, scores)
        gram = gram / jnp.mean(jnp.diagonal(gram))
        eye = jnp.eye(gram.shape[0], dtype=gram.dtype)
        return jax.lax.map(
            lambda nugget: negative_restricted_likelihood(gram + nugget * eye, basis, values)[0], nuggets
        )

    return jax.lax.map(of_lengthscale, lengthscales)


def search_grid(
    draws: Float[np.ndarray, "m d"],
    scores: Float[np.ndarray, "m d"],
    basis: Float[np.ndarray, "m q"],
    values: Float[np.ndarray, "m p"],
    *,
    max_groups: int,
) -> tuple[GridChoice, ...]:
    """Choose lengthscale and nugget for every integrand from the grid, in at most `max_groups` groups.

    Every grid point costs one factorisation for all integrands together. Integrands that would like different
    settings are grouped greedily: each further group is the grid point that lowers the summed loss most, so that rough
    integrands (indicators) do not cost smooth ones their accuracy.

    Parameters
    ----------
    draws, scores : (m, d), a subset of distinct states.
    basis : (m, q), the unpenalised part, constant included.
    values : (m, p), integrands of unit scale.
    max_groups : at most so many factorisations later on.
    """
    lengthscales = np.sqrt(np.asarray(GRID_SPREADS) * median_squared_distance(draws))
    nuggets = np.asarray(GRID_NUGGETS)
    losses = np.asarray(_grid_losses(draws, scores, basis, pad_columns(values), lengthscales, nuggets))
    losses = losses[..., : values.shape[1]]
    flat = np.where(np.isfinite(losses), losses, np.inf).reshape(-1, values.shape[1])
    if not np.isfinite(flat).any(axis=0).all():
        flat = np.where(np.isfinite(flat), flat, 1e300)
    chosen: list[int] = []
    best = np.full(values.shape[1], np.inf)
    while len(chosen) < max_groups:
        totals = np.minimum(best, flat).sum(axis=1)
        candidate = int(np.argmin(totals))
        if chosen and not totals[candidate] < best.sum() - 1.0:
            break
        chosen.append(candidate)
        best = np.minimum(best, flat[candidate])
    owner = np.argmin(flat[chosen], axis=0)
    groups = []
    for g, point in enumerate(chosen):
        i, j = divmod(point, len(nuggets))
        members = tuple(int(k) for k in np.flatnonzero(owner == g))
        if members:
            groups.append(GridChoice(float(lengthscales[i]), float(nuggets[j]), members))
    return tuple(groups)
