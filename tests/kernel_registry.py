"""One table of kernels for every test; a concrete kernel that is missing here fails
`test_kernels`."""

import inspect

import numpy as np

from mcmcpost.stein import (
    AbstractKernel,
    ExponentialDotProduct,
    InverseMultiquadric,
    Matern32,
    Matern52,
    Polynomial,
    Product,
    RationalQuadratic,
    Scaled,
    SquaredExponential,
    Sum,
    Weighted,
)

ARD = np.array([0.7, 1.3, 2.0])

PROFILES: dict[str, AbstractKernel] = {
    "squared_exponential": SquaredExponential(1.5),
    "squared_exponential_ard": SquaredExponential(ARD),
    "matern32": Matern32(1.2),
    "matern52": Matern52(0.9),
    "matern52_ard": Matern52(ARD),
    "rational_quadratic": RationalQuadratic(ARD, 0.8),
    "inverse_multiquadric": InverseMultiquadric(1.3, 0.4),
    "polynomial": Polynomial(3, 0.7, 0.8, 0.3),
    "polynomial_linear": Polynomial(1, 0.0, ARD),
    "exponential_dot_product": ExponentialDotProduct(0.4, ARD),
}

KERNELS: dict[str, AbstractKernel] = PROFILES | {
    "scaled": Scaled(2.5, Matern52(ARD)),
    "sum": SquaredExponential(ARD) + Polynomial(2),
    "product_of_stationary": SquaredExponential(ARD) * Matern32(1.1),
    "product_of_dot_products": Polynomial(2, 1.0, 0.6, ARD) * ExponentialDotProduct(0.3),
    "product_of_both": Product(Matern52(ARD), Polynomial(2)),
    "weighted": Weighted(SquaredExponential(ARD), 0.3),
    "weighted_sum": Weighted(Sum(Matern52(0.9), Polynomial(2)), 0.2),
    "product_of_weighted": Weighted(RationalQuadratic(1.4), 0.3) * Matern32(1.1),
}


def concrete_kernels() -> set[type[AbstractKernel]]:
    """Return every concrete kernel class of the package."""
    found, pending = set(), [AbstractKernel]
    while pending:
        subclasses = pending.pop().__subclasses__()
        pending.extend(subclasses)
        found.update(
            c
            for c in subclasses
            if not inspect.isabstract(c) and c.__module__.startswith("mcmcpost")
        )
    return found
