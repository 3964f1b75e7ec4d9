"""Base kernels: profiles of one scalar with closed-form derivatives, and their sums, products and weights.

There is no Matérn-1/2: its sample paths have no gradient, so it has no Stein kernel.
"""

from mcmcpost.kernels._base import AbstractKernel, Product, Scaled, Sum
from mcmcpost.kernels._dot_product import ExponentialDotProduct, Polynomial
from mcmcpost.kernels._gram import gram
from mcmcpost.kernels._jet import Field, Jet, Term, contract, inner, product
from mcmcpost.kernels._parameters import spread
from mcmcpost.kernels._rational import InverseMultiquadric, RationalQuadratic
from mcmcpost.kernels._stationary import Matern32, Matern52, SquaredExponential
from mcmcpost.kernels._weighted import Weighted

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
