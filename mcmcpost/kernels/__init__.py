"""Base kernels: profiles of one scalar with closed-form derivatives, and their sums, products and weights.

There is no Matérn-1/2: its sample paths have no gradient, so it has no Stein kernel.
"""

from mcmcpost.kernels.base import AbstractKernel, Product, Scaled, Sum, Weighted, gram, spread
from mcmcpost.kernels.dot_product import ExponentialDotProduct, Polynomial
from mcmcpost.kernels.jet import Field, Jet, Term, contract, inner, product
from mcmcpost.kernels.stationary import InverseMultiquadric, Matern32, Matern52, RationalQuadratic, SquaredExponential

type Stationary = SquaredExponential | Matern32 | Matern52 | RationalQuadratic | InverseMultiquadric
STATIONARY = (SquaredExponential, Matern32, Matern52, RationalQuadratic, InverseMultiquadric)
"""Kernels that are one profile of r = Σ (x_i − y_i)²/ℓ_i²."""
type DotProduct = Polynomial | ExponentialDotProduct
DOT_PRODUCT = (Polynomial, ExponentialDotProduct)
"""Kernels that are one profile of an inner product."""

__all__ = [
    "DOT_PRODUCT",
    "STATIONARY",
    "AbstractKernel",
    "DotProduct",
    "ExponentialDotProduct",
    "Field",
    "InverseMultiquadric",
    "Jet",
    "Matern32",
    "Matern52",
    "Polynomial",
    "Product",
    "RationalQuadratic",
    "Scaled",
    "SquaredExponential",
    "Stationary",
    "Sum",
    "Term",
    "Weighted",
    "contract",
    "gram",
    "inner",
    "product",
    "spread",
]
