"""Model evidence from power posteriors: sampling the ladder, integrating it, and cross-checks on the same draws."""

from mcmcpost.evidence._adaptive import adaptive_ladder
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
from mcmcpost.evidence._more_rungs import merge_ladders, sample_more_rungs
from mcmcpost.evidence._record import EvidenceEstimate
from mcmcpost.evidence._sampling import LadderStats, SampledLadder, sample_ladder
from mcmcpost.evidence._stored import LadderWarning, gradient_finding, likelihood_finding, repeated_fraction

__all__ = [
    "Evaluation",
    "EvidenceEstimate",
    "HamiltonianKernel",
    "Ladder",
    "LadderStats",
    "LadderWarning",
    "SampledLadder",
    "TemperedTarget",
    "adaptive_ladder",
    "check_temperatures",
    "evaluate_at",
    "geometric_ladder",
    "gradient_finding",
    "likelihood_finding",
    "make_ladder",
    "merge_ladders",
    "power_ladder",
    "repeated_fraction",
    "sample_ladder",
    "sample_more_rungs",
]
