"""Stein operators: Stein kernels, polynomial Stein features, kernel Stein discrepancy."""

from mcmcpost.stein.discrepancy import Thinned, kernel_stein_discrepancy, stein_thin
from mcmcpost.stein.first_order import SteinTile, stein_diagonal, stein_gram, stein_operator
from mcmcpost.stein.matrix_valued import (
    Coregionalisation,
    MatrixSteinTile,
    check_covariance,
    matrix_stein_tile,
)
from mcmcpost.stein.polynomial import num_polynomial_features, polynomial_exponents, polynomial_features
from mcmcpost.stein.second_order import SecondOrderSteinTile, second_order_stein_diagonal, second_order_stein_gram

__all__ = [
    "Coregionalisation",
    "MatrixSteinTile",
    "SecondOrderSteinTile",
    "SteinTile",
    "Thinned",
    "check_covariance",
    "kernel_stein_discrepancy",
    "matrix_stein_tile",
    "num_polynomial_features",
    "polynomial_exponents",
    "polynomial_features",
    "second_order_stein_diagonal",
    "second_order_stein_gram",
    "stein_diagonal",
    "stein_gram",
    "stein_operator",
    "stein_thin",
]
