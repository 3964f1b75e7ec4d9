"""Gaussian-process regression on kernel systems of any size."""

from mcmcpost.gp.actions import AbstractPolicy, BlockActions, GivenActions, RandomActions, ResidualActions, UnitActions
from mcmcpost.gp.computation_aware import ComputationAwareGP, FittedComputationAwareGP, SplitPrediction
from mcmcpost.gp.computation_aware_model import AbstractObjective, EvidenceBound
from mcmcpost.gp.data import Prediction
from mcmcpost.gp.gradient import FittedGradientGP, GradientGP, GradientPrediction, GradientSample
from mcmcpost.gp.gradient_operator import GradientGram, ScalarProfile, cross_matmul, gradient_gram, scalar_profile
from mcmcpost.gp.gradient_posterior import (
    DiagonalPlusLowRank,
    gradient_log_likelihood,
    posterior_hessian,
    posterior_mean,
)
from mcmcpost.gp.gradient_solvers import (
    AbstractGradientSolver,
    Automatic,
    DenseCholesky,
    GradientCG,
    GradientSolution,
    ProjectedCholesky,
    QuadraticClosedForm,
    solve_system,
)
from mcmcpost.gp.iterative import FittedIterativeGP, IterativeGP, SubsetStart
from mcmcpost.hyper import LBFGS, Adam, TrainingRecord, TrainingStatus

__all__ = [
    "LBFGS",
    "AbstractGradientSolver",
    "AbstractObjective",
    "AbstractPolicy",
    "Adam",
    "Automatic",
    "BlockActions",
    "ComputationAwareGP",
    "DenseCholesky",
    "DiagonalPlusLowRank",
    "EvidenceBound",
    "FittedComputationAwareGP",
    "FittedGradientGP",
    "FittedIterativeGP",
    "GivenActions",
    "GradientCG",
    "GradientGP",
    "GradientGram",
    "GradientPrediction",
    "GradientSample",
    "GradientSolution",
    "IterativeGP",
    "Prediction",
    "ProjectedCholesky",
    "QuadraticClosedForm",
    "RandomActions",
    "ResidualActions",
    "ScalarProfile",
    "SplitPrediction",
    "SubsetStart",
    "TrainingRecord",
    "TrainingStatus",
    "UnitActions",
    "cross_matmul",
    "gradient_gram",
    "gradient_log_likelihood",
    "posterior_hessian",
    "posterior_mean",
    "scalar_profile",
    "solve_system",
]
