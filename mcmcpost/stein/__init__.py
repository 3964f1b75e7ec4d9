"""Stein operators: Stein kernels, polynomial Stein features, kernel Stein discrepancy."""

from mcmcpost.stein._discrepancy import kernel_stein_discrepancy
from mcmcpost.stein._kernel import SteinTile, stein_diagonal, stein_gram, stein_operator
from mcmcpost.stein._polynomial import num_polynomial_features, polynomial_exponents, polynomial_features

__all__ = [
    "SteinTile",
    "kernel_stein_discrepancy",
    "num_polynomial_features",
    "polynomial_exponents",
    "polynomial_features",
    "stein_diagonal",
    "stein_gram",
    "stein_operator",
]
