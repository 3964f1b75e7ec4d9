"""What a first look at a trace should say: R-hat and divergences."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mcmcpost._mcse import rank_rhat
from mcmcpost.io._integrands import constrained_draws, integrand_values

if TYPE_CHECKING:
    import xarray

RHAT_LIMIT = 1.01
"""Vehtari et al. (2021, doi:10.1214/20-BA1221)."""


class Convergence(NamedTuple):
    """The worst R-hat of the posterior's scalars, whose it is, and the divergent transitions after warm-up."""

    max_rhat: float
    worst: str
    divergences: int

    @property
    def complaint(self) -> str | None:
        """Say in one line what is wrong, if anything is."""
        parts = []
        if self.max_rhat > RHAT_LIMIT:
            parts.append(f"R-hat {self.max_rhat:.3f} of {self.worst} is above {RHAT_LIMIT}")
        if self.divergences:
            parts.append(f"{self.divergences} divergent transitions")
        return f"{' and '.join(parts)}: the chains have not converged, do not trust the table" if parts else None


def check_convergence(tree: "xarray.DataTree") -> Convergence:
    """Return the convergence diagnostics of `tree`; R-hat is NaN for one chain, or where nothing varies."""
    variables = integrand_values(tree, list(constrained_draws(tree)))
    with np.errstate(all="ignore"):
        rhat = rank_rhat(variables.values)
    worst = int(np.argmax(np.where(np.isnan(rhat), -np.inf, rhat)))
    stats = tree.children.get("sample_stats")
    diverging = 0 if stats is None or "diverging" not in stats else int(np.asarray(stats["diverging"].values).sum())
    return Convergence(float(rhat[worst]), variables.names[worst], diverging)
