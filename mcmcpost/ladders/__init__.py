"""Ladders of power posteriors: how they are sampled, from models, functions and other programs'
traces."""

from mcmcpost.ladders.lanes import Evaluation, HamiltonianKernel, evaluate_at
from mcmcpost.ladders.power_posteriors import (
    adaptive_ladder,
    add_rungs,
    barrier_ladder,
    place_rungs,
    reference_target,
    sample_power_posteriors,
    tempered_target,
)
from mcmcpost.ladders.sampling import SampledLadder, sample_ladder, sample_more_rungs
from mcmcpost.ladders.traces import ladder_from_traces

__all__ = [
    "Evaluation",
    "HamiltonianKernel",
    "SampledLadder",
    "adaptive_ladder",
    "add_rungs",
    "barrier_ladder",
    "evaluate_at",
    "ladder_from_traces",
    "place_rungs",
    "reference_target",
    "sample_ladder",
    "sample_more_rungs",
    "sample_power_posteriors",
    "tempered_target",
]
