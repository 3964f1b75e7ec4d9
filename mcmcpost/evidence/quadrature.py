"""Nested quadrature of the path: Gauss–Legendre nodes and Kronrod's extension of them."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import eigh_tridiagonal


class PathRule(NamedTuple):
    """A rule for ∫₀¹ μ(t) dt and one within it, which uses every second node.

    temperatures : (k,) nodes, k odd. weights, coarse : (k,) of the rule, and of the one within, zero elsewhere.
    """

    temperatures: Float[np.ndarray, " k"]
    weights: Float[np.ndarray, " k"]
    coarse: Float[np.ndarray, " k"]


def path_rule(num_nodes: int, power: float) -> PathRule:
    """Return Gauss–Legendre of `num_nodes` and its Kronrod extension for ∫₀¹ μ(s^a)·a s^(a−1) ds, with the power a.

    The extension has `num_nodes` + 1 further nodes, docs/mathematics.md section 3. The weights of each rule add up to
    one, to the last digit: a log likelihood of 1e6 has its constant in every node.
    """
    nodes, weights = kronrod(num_nodes)
    coarse = np.zeros_like(weights)
    coarse[1::2] = np.polynomial.legendre.leggauss(num_nodes)[1]
    s = 0.5 * (nodes + 1.0)
    speed = 0.5 * power * s ** (power - 1.0)
    fine, within = speed * weights, speed * coarse
    return PathRule(s**power, fine / fine.sum(), within / within.sum())


def kronrod(n: int) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """Return the 2n + 1 nodes on (−1, 1), increasing, and the weights of Kronrod's extension of n Gauss–Legendre nodes.

    The nodes are the eigenvalues of a Jacobi matrix, whose elements follow from those of the Legendre polynomials by
    Laurie's recursion; a weight is the squared first component of the eigenvector. The rule is exact to degree 3n + 1.
    Laurie (1997, doi:10.1090/S0025-5718-97-00861-2), whose diagonal is zero here by symmetry.
    """
    squares = _kronrod_recurrence(n)
    nodes, vectors = eigh_tridiagonal(np.zeros(2 * n + 1), np.sqrt(squares))
    return 0.5 * nodes, 2.0 * vectors[0] ** 2


def _kronrod_recurrence(n: int) -> Float[np.ndarray, " k"]:
    """Return the squared elements beside the diagonal of the Jacobi–Kronrod matrix on (−2, 2), where they tend to one.

    Gautschi's ``r_kronrod``, in which b[0] takes part as a factor alone.
    """
    k = np.arange(1, 2 * n + 1)
    b = np.concatenate([[1.0], 4.0 / (4.0 - 1.0 / k**2)])
    b[(3 * n + 1) // 2 + 1 :] = 0.0
    s, t = np.zeros((2, n // 2 + 2))
    t[1] = b[n + 1]
    for m in range(n - 1):
        total = 0.0
        for i in range((m + 1) // 2, -1, -1):
            total += b[i + n + 1] * s[i] - b[m - i] * s[i + 1]
            s[i + 1] = total
        s, t = t, s
    s[1:] = s[:-1].copy()
    for m in range(n - 1, 2 * n - 2):
        total = 0.0
        for i in range(m + 1 - n, (m - 1) // 2 + 1):
            j = n - 1 - (m - i)
            total += b[m - i] * s[j + 2] - b[i + n + 1] * s[j + 1]
            s[j + 1] = total
        if m % 2:
            b[(m + 1) // 2 + n + 1] = s[j + 1] / s[j + 2]
        s, t = t, s
    return b[1:]
