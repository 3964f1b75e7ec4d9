"""A small regression problem, its kernel, and the dense definitions that computation-aware
processes are tested by."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mcmcpost.gp.actions import AbstractActions, DenseActions, SparseActions, balanced_blocks
from mcmcpost.stein import AbstractKernel, Matern32, Scaled, gram

KERNEL = Scaled(1.3, Matern32(np.array([0.7, 1.0, 1.4])))
NOISE = 0.05


class Case(NamedTuple):
    X: np.ndarray
    y: np.ndarray
    Z: np.ndarray


class Dense(NamedTuple):
    """The posterior of the definition: C = S(SᵀK̂S)⁺Sᵀ."""

    mean: np.ndarray
    covariance: np.ndarray


def make_case(rng: np.random.Generator, n: int, o: int = 7) -> Case:
    X, Z = rng.normal(size=(n, 3)), rng.normal(size=(o, 3))
    y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * rng.normal(size=n)
    return Case(X, y - y.mean(), Z)


def block_actions(rng: np.random.Generator, n: int, i: int) -> SparseActions:
    """Blocks of rows in a random order."""
    rows, mask = balanced_blocks(n, i)
    return SparseActions(
        jnp.asarray(rng.normal(size=rows.shape)), rng.permutation(n)[rows], mask, whole=True
    )


def partial_actions(rng: np.random.Generator, n: int, i: int) -> SparseActions:
    """Groups that leave the last row of each block out."""
    actions = block_actions(rng, n, i)
    return SparseActions(actions.values[:, :-1], actions.rows[:, :-1], actions.mask[:, :-1])


def random_actions(rng: np.random.Generator, n: int, i: int) -> DenseActions:
    return DenseActions(jnp.asarray(rng.normal(size=(n, i))))


def matrix(actions: AbstractActions, n: int) -> np.ndarray:
    return np.stack(
        [np.asarray(actions.column(jnp.asarray(j), n)) for j in range(actions.num_actions)], 1
    )


def dense_posterior(
    kernel: AbstractKernel, noise: float, case: Case, at: np.ndarray, S: np.ndarray
) -> Dense:
    """Eq. 5 of Wenger et al. (2024) with the pseudo-inverse of the projected system."""
    K = np.asarray(gram(kernel, case.X))
    C = (
        S
        @ np.linalg.pinv(S.T @ (K + noise * np.eye(len(K))) @ S, rcond=1e-13, hermitian=True)
        @ S.T
    )
    cross = np.asarray(gram(kernel, at, case.X))
    return Dense(cross @ C @ case.y, np.asarray(gram(kernel, at)) - cross @ C @ cross.T)


def exact_posterior(kernel: AbstractKernel, noise: float, case: Case, at: np.ndarray) -> Dense:
    return dense_posterior(kernel, noise, case, at, np.eye(len(case.X)))


def dense_bound(kernel: AbstractKernel, noise: float, case: Case, S: np.ndarray) -> float:
    """NLL + KL(q‖p) on the n training values, both by dense algebra: the definition of eq. 10."""
    n, K = len(case.y), np.asarray(gram(kernel, case.X))
    shifted = K + noise * np.eye(n)
    nll = 0.5 * (
        case.y @ np.linalg.solve(shifted, case.y) + np.linalg.slogdet(2 * np.pi * shifted)[1]
    )
    q, p = (
        f(kernel, noise, case, case.X, *a)
        for f, a in ((dense_posterior, (S,)), (exact_posterior, ()))
    )
    gap = p.mean - q.mean
    ratio = np.linalg.solve(p.covariance, q.covariance)
    volume = np.linalg.slogdet(p.covariance)[1] - np.linalg.slogdet(q.covariance)[1]
    kl = 0.5 * (np.trace(ratio) - n + gap @ np.linalg.solve(p.covariance, gap) + volume)
    return float(nll + kl)


def dense_projected(kernel: AbstractKernel, noise: float, case: Case, S: np.ndarray) -> float:
    """−log N(S′ᵀy; 0, S′ᵀK̂S′) with S′ an orthonormal basis of the span of S: eq. 9."""
    U, s, _ = np.linalg.svd(S, full_matrices=False)
    basis = U[:, s > 1e-10 * s[0]]
    system = basis.T @ (np.asarray(gram(kernel, case.X)) + noise * np.eye(len(case.y))) @ basis
    data = basis.T @ case.y
    return float(
        0.5 * (data @ np.linalg.solve(system, data) + np.linalg.slogdet(2 * np.pi * system)[1])
    )


def central_difference(function: object, x: jax.Array, step: float = 1e-5) -> np.ndarray:
    flat = np.asarray(x, float).ravel()
    slope = np.empty(flat.size)
    for j in range(flat.size):
        ends = []
        for sign in (1, -1):
            moved = flat.copy()
            moved[j] += sign * step
            ends.append(float(function(jnp.asarray(moved.reshape(np.shape(x))))))
        slope[j] = (ends[0] - ends[1]) / (2 * step)
    return slope.reshape(np.shape(x))
