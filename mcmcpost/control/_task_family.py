"""Vector-valued control variates as pytrees: one face for kernels, polynomials and networks."""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mcmcpost._checks import fault
from mcmcpost.kernels import AbstractKernel
from mcmcpost.stein import stein_diagonal, stein_gram


class TaskRows(NamedTuple):
    """Draws of all tasks under one another.

    draws : (m, d) in one set of coordinates.
    scores : (m, d), each row's score under its own task's target; no cross-task score is ever needed.
    tasks : (m,) integer labels 0, …, T − 1.
    """

    draws: Float[Array | np.ndarray, "m d"]
    scores: Float[Array | np.ndarray, "m d"]
    tasks: Int[Array | np.ndarray, " m"]


def task_sizes(where: str, tasks: Int[Array | np.ndarray, " m"], num_tasks: int) -> Int[np.ndarray, " t"]:
    """Return the number of rows of each task, refusing labels outside 0, …, T − 1 and tasks without rows."""
    labels = np.asarray(tasks)
    if labels.size == 0 or labels.min() < 0 or labels.max() >= num_tasks:
        got = f"{labels.min()} to {labels.max()}" if labels.size else "no rows"
        raise ValueError(fault(where, f"`tasks` in 0, …, {num_tasks - 1}", got, "Number the tasks from zero."))
    sizes = np.bincount(labels, minlength=num_tasks)
    if (sizes == 0).any():
        empty = np.flatnonzero(sizes == 0).tolist()
        raise ValueError(fault(where, "draws of every task", f"none of tasks {empty}", "Leave those tasks out."))
    return sizes


class AbstractTaskCovariance(eqx.Module):
    """The task covariance B ⪰ 0, T × T, of a separable kernel B k."""

    @property
    @abc.abstractmethod
    def matrix(self) -> Float[Array, "t t"]:
        """B itself."""

    @abc.abstractmethod
    def penalty(self) -> Float[Array, ""]:
        """Return ‖B‖²_F where B is free, zero where it is given: the last term of equation 10."""


class FixedCovariance(AbstractTaskCovariance):
    """A given B, symmetric and positive semi-definite; a singular B (perfectly related tasks) is allowed."""

    value: Float[Array, "t t"] = eqx.field(converter=jnp.asarray)

    def __check_init__(self) -> None:
        value = np.asarray(self.value)
        tolerance = np.sqrt(np.finfo(value.dtype).eps) * max(np.abs(value).max(initial=0.0), 1e-300)
        symmetric = value.ndim == 2 and value.shape[0] == value.shape[1] and np.allclose(value, value.T, atol=tolerance)
        if not symmetric or np.linalg.eigvalsh(value)[0] < -tolerance:
            cure = "Pass a covariance matrix over tasks, such as np.eye(num_tasks)."
            raise ValueError(fault("FixedCovariance", "a symmetric positive semi-definite matrix", value, cure))

    @property
    def matrix(self) -> Float[Array, "t t"]:
        return self.value

    def penalty(self) -> Float[Array, ""]:
        return jnp.zeros((), self.value.dtype)


class CholeskyCovariance(AbstractTaskCovariance):
    """A free B = LLᵀ, L lower triangular with the diagonal exp(log_diagonal) (section 4 of the paper).

    lower : (T, T), of which the strict lower triangle is used. log_diagonal : (T,).
    """

    lower: Float[Array, "t t"]
    log_diagonal: Float[Array, " t"]

    @classmethod
    def start(cls, matrix: Float[Array | np.ndarray, "t t"]) -> "CholeskyCovariance":
        """Return the free B that starts at `matrix`, which must be positive definite."""
        factor = jnp.linalg.cholesky(jnp.asarray(matrix))
        if not bool(jnp.isfinite(factor).all()):
            cure = "Start from a blend with the identity."
            raise ValueError(fault("CholeskyCovariance", "a positive definite matrix", np.asarray(matrix), cure))
        return cls(jnp.tril(factor, -1), jnp.log(jnp.diagonal(factor)))

    @property
    def matrix(self) -> Float[Array, "t t"]:
        factor = jnp.tril(self.lower, -1) + jnp.diag(jnp.exp(self.log_diagonal))
        return factor @ factor.T

    def penalty(self) -> Float[Array, ""]:
        return jnp.sum(self.matrix**2)


class AbstractTaskControl(eqx.Module):
    """A family g_θ of vector-valued control variates, E_{Π_t}[(g_θ)_t] = 0 for every θ, to train or to evaluate."""

    @property
    @abc.abstractmethod
    def num_tasks(self) -> int:
        """T."""

    @abc.abstractmethod
    def features(self, rows: TaskRows) -> Any:
        """Return what g at these rows needs of the data, a pytree with leading axis b, free of trained parameters.

        It is computed once where it fits in memory, and in every mini-batch where it does not.
        """

    @abc.abstractmethod
    def evaluate(self, features: Any, tasks: Int[Array, " b"]) -> Float[Array, " b"]:
        """Return g_{t_i}(x_i) from the features of rows i."""

    @abc.abstractmethod
    def squared_norm(self) -> Float[Array, ""]:
        """Return ‖θ‖², Euclidean, which the penalty λ multiplies (Appendix A.2)."""

    @abc.abstractmethod
    def covariance_penalty(self) -> Float[Array, ""]:
        """Return ‖B‖²_F where B is free, else zero."""

    @abc.abstractmethod
    def trainable(self) -> Any:
        """Return a pytree of the structure of `self`, True at the leaves to train."""

    @abc.abstractmethod
    def release_covariance(self) -> "AbstractTaskControl":
        """Return the same control variate with B free."""

    def __call__(self, rows: TaskRows) -> Float[Array, " b"]:
        """Return g_{t_i}(x_i, s_i), (b,)."""
        return self.evaluate(self.features(rows), jnp.asarray(rows.tasks))


def mix(along: Float[Array, "b t"], covariance: Float[Array, "t t"], tasks: Int[Array, " b"]) -> Float[Array, " b"]:
    """Return Σ_t' B[t_i, t'] along[i, t'], the separable structure that kernels and polynomials share."""
    return jnp.sum(along * covariance[tasks], axis=1)


def release(covariance: AbstractTaskCovariance) -> CholeskyCovariance:
    """Return `covariance` free to move; one that already is stays where it is."""
    match covariance:
        case CholeskyCovariance():
            return covariance
        case _:
            return CholeskyCovariance.start(covariance.matrix)


def separable_trainable(control: Any) -> Any:
    """Return True at `control.coefficients` and at a free `control.covariance`, False elsewhere."""
    frozen = jax.tree.map(lambda _: False, control)
    free = isinstance(control.covariance, CholeskyCovariance)
    chosen = jax.tree.map(lambda _: free, control.covariance)
    return eqx.tree_at(lambda c: (c.coefficients, c.covariance), frozen, (True, chosen))


class KernelTasks(AbstractTaskControl):
    """g_t(x) = Σ_j B[t, t_j] k₀(x, s_t(x); x_j, s_j)/scale θ_j over all training rows j.

    One scalar θ_j per datum, not the paper's T: by the representer theorem the others bring nothing (MATH.md
    section 2), and the cost falls from O(T⁴) to O(T) in the number of tasks.

    kernel, draws, scores, tasks, scale : fixed; `scale` is the mean diagonal of k₀, the unit of B.
    coefficients : (m,) θ. covariance : B.
    """

    kernel: AbstractKernel
    draws: Float[Array, "m d"]
    scores: Float[Array, "m d"]
    tasks: Int[Array, " m"]
    scale: Float[Array, ""]
    coefficients: Float[Array, " m"]
    covariance: AbstractTaskCovariance

    @classmethod
    def start(cls, kernel: AbstractKernel, rows: TaskRows, covariance: AbstractTaskCovariance) -> "KernelTasks":
        """Return g = 0 with one coefficient for each of `rows`."""
        draws, scores, tasks = (jnp.asarray(a) for a in rows)
        task_sizes("KernelTasks", tasks, covariance.matrix.shape[0])
        scale = jnp.mean(stein_diagonal(kernel, draws, scores))
        return cls(kernel, draws, scores, tasks, scale, jnp.zeros(draws.shape[0], draws.dtype), covariance)

    @property
    def num_tasks(self) -> int:
        return self.covariance.matrix.shape[0]

    def features(self, rows: TaskRows) -> Float[Array, "b m"]:
        draws, scores = jnp.asarray(rows.draws), jnp.asarray(rows.scores)
        return stein_gram(self.kernel, draws, scores, self.draws, self.scores) / self.scale

    def evaluate(self, features: Float[Array, "b m"], tasks: Int[Array, " b"]) -> Float[Array, " b"]:
        spread = self.coefficients[:, None] * jax.nn.one_hot(self.tasks, self.num_tasks, dtype=self.coefficients.dtype)
        return mix(features @ spread, self.covariance.matrix, tasks)

    def squared_norm(self) -> Float[Array, ""]:
        return jnp.sum(self.coefficients**2)

    def covariance_penalty(self) -> Float[Array, ""]:
        return self.covariance.penalty()

    def trainable(self) -> Any:
        return separable_trainable(self)

    def release_covariance(self) -> "KernelTasks":
        return eqx.tree_at(lambda c: c.covariance, self, release(self.covariance))
