"""Scores: gradients of a log density at stored draws, and the gate that tests them against those draws."""

from mcmcpost.scores._batch import batch_scores
from mcmcpost.scores._convergence import disagreeing
from mcmcpost.scores._gate import ScoreCheck, ScoreError, ScoreWarning, check_scores

__all__ = ["ScoreCheck", "ScoreError", "ScoreWarning", "batch_scores", "check_scores", "disagreeing"]
