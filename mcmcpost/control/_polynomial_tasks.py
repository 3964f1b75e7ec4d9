"""Polynomial vector-valued control variates: ridge regression in closed form, linear in the number of draws."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int

from mcmcpost._checks import fault
from mcmcpost.control._task_family import (
    AbstractTaskControl,
    AbstractTaskCovariance,
    TaskRows,
    mix,
    release,
    separable_trainable,
    task_sizes,
)
from mcmcpost.stein import num_polynomial_features, polynomial_exponents, polynomial_features


class TaskRidge(NamedTuple):
    """A ridge fit with a separable structure: (g_t)(x) = Σ_t' B_tt' φ_t(x)·Θ_t', φ_t with the score of task t.

    coefficients : (q, T) Θ. beta : (T,) unpenalised constants.
    objective : Σ_t mean of squared residuals + λ tr(B ΘᵀΘ), at the minimum.
    """

    coefficients: Float[np.ndarray, "q t"]
    beta: Float[np.ndarray, " t"]
    objective: float


def solve_task_ridge(
    features: Float[Array | np.ndarray, "m q"],
    values: Float[Array | np.ndarray, " m"],
    tasks: Int[Array | np.ndarray, " m"],
    covariance: Float[Array | np.ndarray, "t t"],
    *,
    penalty: float,
) -> TaskRidge:
    """Minimise Σ_t (1/m_t) Σ_j (f_tj − β_t − Σ_t' B_tt' φ_tj·Θ_t')² + λ tr(B ΘᵀΘ) over Θ and β.

    This is the kernel fit of equation 8 for K₀ = B ∘ φφᵀ, of which tr(B ΘᵀΘ) is the norm, in the space of features.
    With B = LLᵀ and Γ = ΘL it is an ordinary ridge regression on φ ⊗ L_t. Each task is reduced to the triangular
    factor of its centred features first, so no squared condition number arises: O(m q² + (qT)³).

    Parameters
    ----------
    features : (m, q), those of the own task's score. values : (m,). tasks : (m,) labels 0, …, T − 1.
    covariance : B, positive semi-definite; directions that it excludes are left out of the regression.
    penalty : λ ≥ 0; at zero the least-squares solution of smallest norm.

    Raises
    ------
    ValueError
        if the penalty is negative, an entry is not finite, or a task has no rows.

    Source: Sun, Barp and Briol (ICML 2023), equations 8 and 12 and Appendix C.3. Equation 12 prints one coefficient
    θ_i for all tasks, which would make every u_t a multiple of one function; here it is Θ_it'.
    """
    phi, f, labels, b = (np.asarray(a) for a in (features, values, tasks, covariance))
    where = "solve_task_ridge"
    if not penalty >= 0:
        raise ValueError(fault(where, "`penalty` not negative", penalty, "Use 0 for least squares."))
    if not (np.isfinite(phi).all() and np.isfinite(f).all()):
        raise ValueError(fault(where, "finite features and values", "NaN or infinity", "Leave those rows out."))
    sizes = task_sizes(where, labels, len(b))
    q, root = phi.shape[1], _square_root(b)
    blocks, targets, centres = [], [], []
    for task, size in enumerate(sizes):
        own = np.concatenate([phi[labels == task], f[labels == task][:, None]], axis=1)
        centre = own.mean(axis=0)
        triangle = np.linalg.qr((own - centre) / math.sqrt(size), mode="r")
        blocks.append(np.kron(triangle[:, :q], root[task][None]))
        targets.append(triangle[:, q])
        centres.append(centre)
    unknowns = q * root.shape[1]
    design = np.concatenate([*blocks, math.sqrt(penalty) * np.eye(unknowns)])
    target = np.concatenate([*targets, np.zeros(unknowns)])
    gamma = scipy.linalg.lstsq(design, target, lapack_driver="gelsy")[0]
    objective = float(np.sum((target - design @ gamma) ** 2))
    coefficients = gamma.reshape(q, -1) @ np.linalg.pinv(root)
    middle = np.stack(centres)
    beta = middle[:, q] - np.sum(middle[:, :q] * (coefficients @ b).T, axis=1)
    return TaskRidge(coefficients, beta, objective)


def _square_root(covariance: Float[np.ndarray, "t t"]) -> Float[np.ndarray, "t r"]:
    """Return L of full column rank with LLᵀ = B, or one zero column where B is zero."""
    size, vectors = np.linalg.eigh(covariance)
    keep = size > len(size) * np.finfo(size.dtype).eps * size[-1]
    if not keep.any():
        return np.zeros((len(size), 1))
    return vectors[:, keep] * np.sqrt(size[keep])[None]


def first_order_features(
    draws: Float[np.ndarray, "m d"], scores: Float[np.ndarray, "m d"], *, degree: int, offset: float = 1.0
) -> Float[np.ndarray, "m q"]:
    """Return the features whose product is the first-order Stein kernel of k(x, y) = (x·y + offset)^degree.

    √w_α (∂_r x^α + x^α s_r) for each monomial α of degree up to l and each coordinate r, with
    w_α = l!/(α! (l − |α|)!) offset^{l − |α|}; q = d·C(d + l, l), fewer without an offset. A polynomial kernel is thus
    fitted at a cost linear in m (section 4, computational complexity).
    """
    if degree < 1 or offset < 0:
        got = (degree, offset)
        raise ValueError(fault("first_order_features", "`degree` ≥ 1 and `offset` ≥ 0", got, "As for Polynomial."))
    x, s = np.asarray(draws), np.asarray(scores)
    d = x.shape[1]
    columns = []
    for power in np.concatenate([np.zeros((1, d), int), polynomial_exponents(d, degree)]):
        rest = degree - int(power.sum())
        if rest > 0 and offset == 0:
            continue
        ways = math.factorial(degree) / math.prod(math.factorial(a) for a in (*power.tolist(), rest))
        value = np.prod(x ** power[None], axis=1, keepdims=True)
        slope = np.stack([_derivative(x, power, r) for r in range(d)], axis=1)
        columns.append(math.sqrt(ways * offset**rest) * (slope + value * s))
    return np.concatenate(columns, axis=1)


def _derivative(x: Float[np.ndarray, "m d"], power: Int[np.ndarray, " d"], r: int) -> Float[np.ndarray, " m"]:
    if power[r] == 0:
        return np.zeros(len(x), x.dtype)
    lowered = power.copy()
    lowered[r] -= 1
    return power[r] * np.prod(x ** lowered[None], axis=1)


class PolynomialTasks(AbstractTaskControl):
    """g_t(x) = Σ_i Σ_t' B_tt' Θ_it' (Δφ_i + ∇φ_i·s_t)/scale_i, φ_i the monomials up to `degree`.

    scale : (q,) root mean square of each feature, fixed. coefficients : (q, T) Θ. covariance : B.
    """

    degree: int = eqx.field(static=True)
    scale: Float[Array, " q"]
    coefficients: Float[Array, "q t"]
    covariance: AbstractTaskCovariance

    @classmethod
    def start(cls, rows: TaskRows, covariance: AbstractTaskCovariance, *, degree: int) -> "PolynomialTasks":
        """Return g = 0 with the features' scale taken from `rows`."""
        num_tasks = covariance.matrix.shape[0]
        task_sizes("PolynomialTasks", rows.tasks, num_tasks)
        features = polynomial_features(rows.draws, rows.scores, polynomial_exponents(rows.draws.shape[1], degree))
        scale = jnp.sqrt(jnp.mean(features**2, axis=0))
        coefficients = jnp.zeros((num_polynomial_features(rows.draws.shape[1], degree), num_tasks), scale.dtype)
        return cls(degree, jnp.where(scale > 0, scale, 1.0), coefficients, covariance)

    @property
    def num_tasks(self) -> int:
        return self.covariance.matrix.shape[0]

    def features(self, rows: TaskRows) -> Float[Array, "b q"]:
        exponents = polynomial_exponents(rows.draws.shape[1], self.degree)
        return polynomial_features(rows.draws, rows.scores, exponents) / self.scale[None]

    def evaluate(self, features: Float[Array, "b q"], tasks: Int[Array, " b"]) -> Float[Array, " b"]:
        return mix(features @ self.coefficients, self.covariance.matrix, tasks)

    def squared_norm(self) -> Float[Array, ""]:
        return jnp.sum(self.coefficients**2)

    def covariance_penalty(self) -> Float[Array, ""]:
        return self.covariance.penalty()

    def trainable(self) -> Any:
        return separable_trainable(self)

    def release_covariance(self) -> "PolynomialTasks":
        return eqx.tree_at(lambda c: c.covariance, self, release(self.covariance))


class PolynomialTasksFit(NamedTuple):
    """A polynomial control variate in closed form. control : at the minimiser. beta : (T,). objective : its value."""

    control: PolynomialTasks
    beta: Float[np.ndarray, " t"]
    objective: float


def fit_polynomial_tasks(
    rows: TaskRows,
    values: Float[Array | np.ndarray, " m"],
    covariance: AbstractTaskCovariance,
    *,
    degree: int,
    penalty: float,
) -> PolynomialTasksFit:
    """Return the polynomial control variates of all tasks that minimise equation 8 for the given B.

    The penalty λ acts on features of unit root mean square, in the norm tr(B ΘᵀΘ); see `solve_task_ridge`.
    """
    start = PolynomialTasks.start(rows, covariance, degree=degree)
    ridge = solve_task_ridge(start.features(rows), values, rows.tasks, covariance.matrix, penalty=penalty)
    control = eqx.tree_at(lambda c: c.coefficients, start, jnp.asarray(ridge.coefficients))
    return PolynomialTasksFit(control, ridge.beta, ridge.objective)
