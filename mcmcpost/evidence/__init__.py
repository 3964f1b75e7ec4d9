"""Model evidence from power posteriors: sampling the ladder, integrating it, and cross-checks on the same draws."""

from mcmcpost.evidence._bridge import bridge_sampling
from mcmcpost.evidence._ladder import (
    Ladder,
    TemperedTarget,
    check_temperatures,
    geometric_ladder,
    make_ladder,
    power_ladder,
)
from mcmcpost.evidence._laplace import laplace_importance
from mcmcpost.evidence._record import EvidenceEstimate

__all__ = [
    "EvidenceEstimate",
    "Ladder",
    "TemperedTarget",
    "bridge_sampling",
    "check_temperatures",
    "geometric_ladder",
    "laplace_importance",
    "make_ladder",
    "power_ladder",
]
