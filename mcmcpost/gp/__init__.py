"""Gaussian-process regression on kernel systems of any size."""

from mcmcpost.gp._computation_aware import (
    ComputationAwareGP,
)
from mcmcpost.gp._computation_aware_fitted import (
    FittedComputationAwareGP,
    SplitPrediction,
)
from mcmcpost.gp._data import (
    Prediction,
)
from mcmcpost.gp._elbo import (
    AbstractObjective,
    EvidenceBound,
    ProjectedLikelihood,
)
from mcmcpost.gp._fitted_gradient_gp import (
    FittedGradientGP,
    GradientPrediction,
    GradientSample,
)
from mcmcpost.gp._gradient_direct import (
    DenseCholesky,
    ProjectedCholesky,
    QuadraticClosedForm,
    Woodbury,
)
from mcmcpost.gp._gradient_gp import (
    GradientGP,
)
from mcmcpost.gp._gradient_gram import (
    GradientGram,
    cross_matmul,
    gradient_gram,
)
from mcmcpost.gp._gradient_likelihood import (
    gradient_log_likelihood,
)
from mcmcpost.gp._gradient_posterior import (
    posterior_hessian,
    posterior_mean,
)
from mcmcpost.gp._gradient_solution import (
    AbstractGradientSolver,
    GradientSolution,
)
from mcmcpost.gp._gradient_solvers import (
    Automatic,
    GradientCG,
    solve_system,
)
from mcmcpost.gp._iterative import (
    IterativeGP,
)
from mcmcpost.gp._iterative_fitted import (
    FittedIterativeGP,
)
from mcmcpost.gp._low_rank import (
    DiagonalPlusLowRank,
)
from mcmcpost.gp._policies import (
    AbstractPolicy,
    BlockActions,
    GivenActions,
    RandomActions,
    ResidualActions,
    UnitActions,
)
from mcmcpost.gp._scalar_profile import (
    ScalarProfile,
    scalar_profile,
)
from mcmcpost.gp._subset_start import (
    SubsetStart,
)
from mcmcpost.gp._training import (
    LBFGS,
    Adam,
    TrainingRecord,
    TrainingStatus,
)

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
    "ProjectedLikelihood",
    "QuadraticClosedForm",
    "RandomActions",
    "ResidualActions",
    "ScalarProfile",
    "SplitPrediction",
    "SubsetStart",
    "TrainingRecord",
    "TrainingStatus",
    "UnitActions",
    "Woodbury",
    "cross_matmul",
    "gradient_gram",
    "gradient_log_likelihood",
    "posterior_hessian",
    "posterior_mean",
    "scalar_profile",
    "solve_system",
]
