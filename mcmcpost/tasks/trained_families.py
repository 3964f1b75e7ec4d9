"""Vector-valued control variates as pytrees: kernels, polynomials and networks."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mcmcpost.core.arguments import check_count, check_function
from mcmcpost.core.errors import InputError
from mcmcpost.stein import (
    AbstractKernel,
    num_polynomial_features,
    polynomial_exponents,
    polynomial_features,
    stein_diagonal,
    stein_gram,
)


class TaskRows(NamedTuple):
    """Draws of all tasks under one another.

    draws : (m, d) in one set of coordinates.
    scores : (m, d), each row's score under its own task's target; no cross-task score is ever
        needed.
    tasks : (m,) integer labels 0, …, T − 1.
    """

    draws: Float[Array | np.ndarray, "m d"]
    scores: Float[Array | np.ndarray, "m d"]
    tasks: Int[Array | np.ndarray, " m"]


def task_sizes(
    where: str, tasks: Int[Array | np.ndarray, " m"], num_tasks: int
) -> Int[np.ndarray, " t"]:
    """Return the number of rows of each task, refusing labels outside 0, …, T − 1 and tasks without
    rows."""
    labels = np.asarray(tasks)
    if labels.size == 0 or labels.min() < 0 or labels.max() >= num_tasks:
        got = f"{labels.min()} to {labels.max()}" if labels.size else "no rows"
        raise InputError(
            where, f"`tasks` in 0, …, {num_tasks - 1}", got, "Number the tasks from zero."
        )
    sizes = np.bincount(labels, minlength=num_tasks)
    if (sizes == 0).any():
        empty = np.flatnonzero(sizes == 0).tolist()
        raise InputError(
            where, "draws of every task", f"none of tasks {empty}", "Leave those tasks out."
        )
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
    """A given B, symmetric and positive semi-definite; a singular B (perfectly related tasks) is
    allowed."""

    value: Float[Array, "t t"] = eqx.field(converter=jnp.asarray)

    def __check_init__(self) -> None:
        value = np.asarray(self.value)
        # Relative to the largest entry, since B has the units of the integrands squared.
        tolerance = np.sqrt(np.finfo(value.dtype).eps) * max(np.abs(value).max(initial=0.0), 1e-300)
        symmetric = (
            value.ndim == 2
            and value.shape[0] == value.shape[1]
            and np.allclose(value, value.T, atol=tolerance)
        )
        if not symmetric or np.linalg.eigvalsh(value)[0] < -tolerance:
            cure = "Pass a covariance matrix over tasks, such as np.eye(num_tasks)."
            raise InputError(
                "FixedCovariance", "a symmetric positive semi-definite matrix", value, cure
            )

    @property
    def matrix(self) -> Float[Array, "t t"]:
        return self.value

    def penalty(self) -> Float[Array, ""]:
        return jnp.zeros((), self.value.dtype)


class CholeskyCovariance(AbstractTaskCovariance):
    """A free B = LLᵀ, L lower triangular with the diagonal exp(log_diagonal) (section 4 of the
    paper).

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
            raise InputError(
                "CholeskyCovariance", "a positive definite matrix", np.asarray(matrix), cure
            )
        return cls(jnp.tril(factor, -1), jnp.log(jnp.diagonal(factor)))

    @property
    def matrix(self) -> Float[Array, "t t"]:
        # The logarithm keeps the diagonal positive, so that L is unique and B never leaves the cone
        # under Adam.
        factor = jnp.tril(self.lower, -1) + jnp.diag(jnp.exp(self.log_diagonal))
        return factor @ factor.T

    def penalty(self) -> Float[Array, ""]:
        return jnp.sum(self.matrix**2)


class AbstractTaskControl(eqx.Module):
    """A family g_θ of vector-valued control variates, E_{Π_t}[(g_θ)_t] = 0 for every θ, to train or
    to evaluate."""

    @property
    @abc.abstractmethod
    def num_tasks(self) -> int:
        """T."""

    @abc.abstractmethod
    def features(self, rows: TaskRows) -> Any:
        """Return what g at these rows needs of the data, a pytree with leading axis b, free of
        trained parameters.

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


def mix(
    along: Float[Array, "b t"], covariance: Float[Array, "t t"], tasks: Int[Array, " b"]
) -> Float[Array, " b"]:
    """Return Σ_t' B[t_i, t'] along[i, t'], the separable structure that kernels and polynomials
    share."""
    # along (b, T') times the rows of B of each draw's own task: a matrix (b, T') and not (b, T,
    # T').
    return jnp.sum(along * covariance[tasks], axis=1)


def release(covariance: AbstractTaskCovariance) -> CholeskyCovariance:
    """Return `covariance` free to move; one that already is stays where it is."""
    match covariance:
        case CholeskyCovariance():
            return covariance
        case _:
            return CholeskyCovariance.start(covariance.matrix)


class AbstractSeparableControl(AbstractTaskControl):
    """A control whose tasks share features and differ by B: of kernels and of polynomials."""

    coefficients: eqx.AbstractVar[Array]
    covariance: eqx.AbstractVar[AbstractTaskCovariance]

    @property
    def num_tasks(self) -> int:
        return self.covariance.matrix.shape[0]

    def squared_norm(self) -> Float[Array, ""]:
        return jnp.sum(self.coefficients**2)

    def covariance_penalty(self) -> Float[Array, ""]:
        return self.covariance.penalty()

    def trainable(self) -> Any:
        frozen = jax.tree.map(lambda _: False, self)
        free = isinstance(self.covariance, CholeskyCovariance)
        # Kernel, training rows and scales never move: only coefficients, and B where it is free.
        chosen = jax.tree.map(lambda _: free, self.covariance)
        return eqx.tree_at(lambda c: (c.coefficients, c.covariance), frozen, (True, chosen))

    def release_covariance(self) -> "AbstractSeparableControl":
        return eqx.tree_at(lambda c: c.covariance, self, release(self.covariance))


class KernelTasks(AbstractSeparableControl):
    """g_t(x) = Σ_j B[t, t_j] k₀(x, s_t(x); x_j, s_j)/scale θ_j over all training rows j.

    One scalar θ_j per datum, not the paper's T: by the representer theorem the others bring nothing
    (docs/mathematics.md section 2), and the cost falls from O(T⁴) to O(T) in the number of tasks.

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
    def start(
        cls, kernel: AbstractKernel, rows: TaskRows, covariance: AbstractTaskCovariance
    ) -> "KernelTasks":
        """Return g = 0 with one coefficient for each of `rows`."""
        draws, scores, tasks = (jnp.asarray(a) for a in rows)
        task_sizes("KernelTasks", tasks, covariance.matrix.shape[0])
        # The unit of B, as in the ridge form of docs/mathematics.md section 2: without it λ and the
        # size of B depend on the scores' units.
        scale = jnp.mean(stein_diagonal(kernel, draws, scores))
        return cls(
            kernel=kernel,
            draws=draws,
            scores=scores,
            tasks=tasks,
            scale=scale,
            coefficients=jnp.zeros(draws.shape[0], draws.dtype),
            covariance=covariance,
        )

    def features(self, rows: TaskRows) -> Float[Array, "b m"]:
        draws, scores = jnp.asarray(rows.draws), jnp.asarray(rows.scores)
        return stein_gram(self.kernel, draws, scores, self.draws, self.scores) / self.scale

    def evaluate(
        self, features: Float[Array, "b m"], tasks: Int[Array, " b"]
    ) -> Float[Array, " b"]:
        # Σ_j B[t, t_j] k₀ θ_j = (K₀ D) Bᵀ with D = θ spread over tasks: one product (b, m)·(m, T),
        # whatever T is.
        spread = self.coefficients[:, None] * jax.nn.one_hot(
            self.tasks, self.num_tasks, dtype=self.coefficients.dtype
        )
        return mix(features @ spread, self.covariance.matrix, tasks)


class PolynomialTasks(AbstractSeparableControl):
    """g_t(x) = Σ_i Σ_t' B_tt' Θ_it' (Δφ_i + ∇φ_i·s_t)/scale_i, φ_i the monomials up to `degree`.

    scale : (q,) root mean square of each feature, fixed. coefficients : (q, T) Θ. covariance : B.
    """

    degree: int = eqx.field(static=True)
    scale: Float[Array, " q"]
    coefficients: Float[Array, "q t"]
    covariance: AbstractTaskCovariance

    @classmethod
    def start(
        cls, rows: TaskRows, covariance: AbstractTaskCovariance, *, degree: int
    ) -> "PolynomialTasks":
        """Return g = 0 with the features' scale taken from `rows`."""
        num_tasks = covariance.matrix.shape[0]
        task_sizes("PolynomialTasks", rows.tasks, num_tasks)
        # Features of degree three are far larger than those of degree one; one λ and one learning
        # rate must serve all.
        features = polynomial_features(
            rows.draws, rows.scores, polynomial_exponents(rows.draws.shape[1], degree)
        )
        scale = jnp.sqrt(jnp.mean(features**2, axis=0))
        coefficients = jnp.zeros(
            (num_polynomial_features(rows.draws.shape[1], degree), num_tasks), scale.dtype
        )
        return cls(
            degree=degree,
            scale=jnp.where(scale > 0, scale, 1.0),
            coefficients=coefficients,
            covariance=covariance,
        )

    def features(self, rows: TaskRows) -> Float[Array, "b q"]:
        exponents = polynomial_exponents(rows.draws.shape[1], self.degree)
        return polynomial_features(rows.draws, rows.scores, exponents) / self.scale[None]

    def evaluate(
        self, features: Float[Array, "b q"], tasks: Int[Array, " b"]
    ) -> Float[Array, " b"]:
        return mix(features @ self.coefficients, self.covariance.matrix, tasks)


class NeuralTasks(AbstractTaskControl):
    """g_t = Σ_r W_tr (∇·φ_r + φ_r·s_t), φ : ℝ^d → ℝ^{r×d} a multilayer perceptron.

    Equation 13 of the paper has one φ and sums B over its second index, so that every u_t is a
    multiple of the same function; here r functions are mixed by W. The divergence is by
    forward-mode differentiation: d products.

    network : d → r·d. mixing : (T, r) W. Both are trained, and both are penalised by λ: W is no
        covariance.
    """

    network: eqx.nn.MLP
    mixing: Float[Array, "t r"]

    @property
    def num_tasks(self) -> int:
        return self.mixing.shape[0]

    def features(self, rows: TaskRows) -> tuple[Float[Array, "b d"], Float[Array, "b d"]]:
        return jnp.asarray(rows.draws), jnp.asarray(rows.scores)

    def evaluate(
        self, features: tuple[Float[Array, "b d"], Float[Array, "b d"]], tasks: Int[Array, " b"]
    ) -> Float[Array, " b"]:
        # Nothing can be computed beforehand: the network itself moves.
        return jax.vmap(self._langevin)(*features, self.mixing[tasks])

    def _langevin(
        self, x: Float[Array, " d"], s: Float[Array, " d"], weights: Float[Array, " r"]
    ) -> Float[Array, ""]:
        """Return ∇·u + u·s of the task's own u = Σ_r W_tr φ_r: mixed first, so r costs nothing."""

        def field(x: Float[Array, " d"]) -> Float[Array, " d"]:
            return weights @ self.network(x).reshape(weights.shape[0], x.shape[0])

        def both(x: Float[Array, " d"]) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
            u = field(x)
            return u, u

        # ∇·u + u·s from one pass: the value comes along as the auxiliary output.
        jacobian, u = jax.jacfwd(both, has_aux=True)(x)
        return jnp.trace(jacobian) + jnp.dot(u, s)

    def squared_norm(self) -> Float[Array, ""]:
        leaves = jax.tree.leaves(eqx.filter((self.network, self.mixing), eqx.is_inexact_array))
        return jnp.sum(jnp.stack([jnp.sum(leaf**2) for leaf in leaves]))

    def covariance_penalty(self) -> Float[Array, ""]:
        return jnp.zeros((), self.mixing.dtype)

    def trainable(self) -> Any:
        return jax.tree.map(eqx.is_inexact_array, self)

    def release_covariance(self) -> "NeuralTasks":
        """Return `self`: the mixing is always free."""
        return self


class NeuralNetwork(eqx.Module):
    """The shape of a neural control variate.

    width, depth : units of a hidden layer, and hidden layers.
    num_functions : r, the number of functions that the tasks combine; None for one per task.
    activation : twice differentiable, for the divergence and its gradient: tanh or silu, not relu.
    """

    width: int = 32
    depth: int = 2
    num_functions: int | None = None
    activation: Callable[[Array], Array] = jax.nn.tanh

    def __check_init__(self) -> None:
        for name, value in (("width", self.width), ("depth", self.depth)):
            check_count("NeuralNetwork", name, value, "Use a positive integer.", most=100_000)
        check_count(
            "NeuralNetwork",
            "num_functions",
            self.num_functions,
            "Leave it out.",
            most=100_000,
            optional=True,
        )
        check_function("NeuralNetwork", "activation", self.activation, 1, "Such as jax.nn.tanh.")

    def start(self, num_tasks: int, dimension: int, *, key: PRNGKeyArray) -> NeuralTasks:
        """Return a network with g = 0: random hidden layers and a last layer of zeros.

        W gives each task one function, plus noise. With fewer functions than tasks, task t gets
        function t mod r.
        """
        functions = num_tasks if self.num_functions is None else self.num_functions
        hidden, mixing = jax.random.split(key)
        outputs = functions * dimension
        network = eqx.nn.MLP(
            dimension,
            outputs,
            self.width,
            self.depth,
            self.activation,
            dtype=np.float64,
            key=hidden,
        )
        # A last layer of zeros makes g = 0: training starts at the plain mean.
        silent = jax.tree.map(jnp.zeros_like, network.layers[-1])
        network = eqx.tree_at(lambda n: n.layers[-1], network, silent)
        # With W exactly one-hot the first steps of each function would see one task only; the noise
        # lets it serve the others too.
        spread = 0.1 * jax.random.normal(mixing, (num_tasks, functions), np.float64)
        turns = jax.nn.one_hot(np.arange(num_tasks) % functions, functions, dtype=np.float64)
        return NeuralTasks(network, turns + spread)
