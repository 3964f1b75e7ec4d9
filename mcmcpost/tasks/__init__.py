"""Control variates of several related tasks together: joint estimates of related expectations."""

from mcmcpost.tasks.joint import JointEstimate, TaskInput, estimate_jointly, joint_expectation
from mcmcpost.tasks.trained import (
    ChainVariance,
    KernelFamily,
    MeanSquare,
    PolynomialFamily,
    Stochastic,
    TrainedVectorValued,
)
from mcmcpost.tasks.trained_families import NeuralNetwork
from mcmcpost.tasks.tuning import ConvexTaskCovariance, TaskREML
from mcmcpost.tasks.vector_valued import VectorValued

__all__ = [
    "ChainVariance",
    "ConvexTaskCovariance",
    "JointEstimate",
    "KernelFamily",
    "MeanSquare",
    "NeuralNetwork",
    "PolynomialFamily",
    "Stochastic",
    "TaskInput",
    "TaskREML",
    "TrainedVectorValued",
    "VectorValued",
    "estimate_jointly",
    "joint_expectation",
]
