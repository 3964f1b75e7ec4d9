"""Chains that mix slowly."""

import numpy as np


def ar1(rng: np.random.Generator, shape: tuple[int, ...], rho: float) -> np.ndarray:
    """Return stationary AR(1) chains with standard normal margins, shape (c, n, d)."""
    noise = rng.normal(size=shape)
    x = np.empty(shape)
    x[:, 0] = noise[:, 0]
    for i in range(1, shape[1]):
        x[:, i] = rho * x[:, i - 1] + np.sqrt(1 - rho**2) * noise[:, i]
    return x
