"""Model evidence from power posteriors: sampling the ladder, integrating it, and cross-checks on the same draws."""

from mcmcpost.evidence._evaluate import Evaluation, evaluate_at
from mcmcpost.evidence._kernel import HamiltonianKernel
from mcmcpost.evidence._ladder import (
    Ladder,
    TemperedTarget,
    check_temperatures,
    geometric_ladder,
    make_ladder,
    power_ladder,
)
from mcmcpost.evidence._record import EvidenceEstimate
from mcmcpost.evidence._sampling import LadderStats, SampledLadder, sample_ladder

__all__ = [
    "Evaluation",
    "EvidenceEstimate",
    "HamiltonianKernel",
    "Ladder",
    "LadderStats",
    "SampledLadder",
    "TemperedTarget",
    "check_temperatures",
    "evaluate_at",
    "geometric_ladder",
    "make_ladder",
    "power_ladder",
    "sample_ladder",
]
