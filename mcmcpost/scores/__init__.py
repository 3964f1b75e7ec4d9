"""Scores: gradients of a log density at stored draws, and the gate that tests them against those
draws."""

from mcmcpost.scores.gate import (
    ScoreCheck,
    ScoreError,
    ScoreWarning,
    check_scores,
    where_not_finite,
)
from mcmcpost.scores.identities import disagreeing, effective_size, z_zero_mean
from mcmcpost.scores.log_density import batch_scores, check_scalar, misfit, value_and_score

__all__ = [
    "ScoreCheck",
    "ScoreError",
    "ScoreWarning",
    "batch_scores",
    "check_scalar",
    "check_scores",
    "disagreeing",
    "effective_size",
    "misfit",
    "value_and_score",
    "where_not_finite",
    "z_zero_mean",
]
