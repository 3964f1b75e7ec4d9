"""The log marginal likelihood of a Gaussian process: exact by Cholesky, or its gradient from linear solves."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float
from tqdm import tqdm

from mcmcpost._core.errors import InputError, fault
from mcmcpost.hyper.optimisers import Start, minimise_from
from mcmcpost.hyper.parameters import AbstractScale, Template
from mcmcpost.hyper.random_features import sample_prior
from mcmcpost.kernels import AbstractKernel, gram
from mcmcpost.linops import Regularised, bilinear_gradient, kernel_operator
from mcmcpost.linsolve import Solver, invert, solve


class Sides(NamedTuple):
    """½ Σ_s left_sᵀ (∂H) right_s is the gradient.

    left, right : (n, 1 + s).
    """

    left: Float[Array, "n k"]
    right: Float[Array, "n k"]


class AbstractEstimator(eqx.Module):
    """Which systems to solve, and how their solutions give ∂L = ½ v_yᵀ(∂H)v_y − ½ tr(H⁻¹∂H), v_y = H⁻¹y.

    The probes of a key are the same at every call, so that solutions change little from step to step and serve as
    first guesses (Lin et al. 2024, section 4).

    num_probes : s, vectors of the trace estimate.
    """

    num_probes: eqx.AbstractVar[int]

    @abc.abstractmethod
    def targets(
        self, kernel: AbstractKernel, noise: Float[Array, ""], X: Float[Array, "n d"], key: jax.Array
    ) -> Float[Array, "n s"]:
        """Return the probe right-hand sides b_j."""

    @abc.abstractmethod
    def sides(self, solved: Float[Array, "n k"], targets: Float[Array, "n s"]) -> Sides:
        """Return the factors of the gradient from the solutions [v_y, H⁻¹b_1, …]."""


class Standard(AbstractEstimator):
    """Hutchinson's trace estimator: b_j = z_j ~ N(0, I) and tr(H⁻¹∂H) ≈ mean_j (H⁻¹z_j)ᵀ(∂H)z_j (eq. 7).

    num_probes : s.
    """

    num_probes: int = 64

    def __check_init__(self) -> None:
        check_probes(self)

    def targets(
        self, kernel: AbstractKernel, noise: Float[Array, ""], X: Float[Array, "n d"], key: jax.Array
    ) -> Float[Array, "n s"]:
        del kernel, noise  # the probes are white
        return jax.random.normal(key, (X.shape[0], self.num_probes), X.dtype)

    def sides(self, solved: Float[Array, "n k"], targets: Float[Array, "n s"]) -> Sides:
        mean = -1.0 / self.num_probes
        return Sides(
            jnp.concatenate([solved[:, :1], mean * solved[:, 1:]], 1), jnp.concatenate([solved[:, :1], targets], 1)
        )


class Pathwise(AbstractEstimator):
    """b_j = f_j(X) + ε_j ~ N(0, H), so that ẑ_j = H⁻¹b_j ~ N(0, H⁻¹) and tr(H⁻¹∂H) ≈ mean_j ẑ_jᵀ(∂H)ẑ_j (eq. 8–10).

    The solutions start closer to zero, never estimate with more variance than `Standard`, and are posterior samples at
    no further solve. The prior samples f_j come from random features, which bias the gradient by about a per cent at
    2,000 features.

    num_probes : s. num_features : per term of the kernel.
    """

    num_probes: int = 64
    num_features: int = 2_000

    def __check_init__(self) -> None:
        check_probes(self)

    def targets(
        self, kernel: AbstractKernel, noise: Float[Array, ""], X: Float[Array, "n d"], key: jax.Array
    ) -> Float[Array, "n s"]:
        prior_key, noise_key = jax.random.split(key)
        prior = sample_prior(kernel, prior_key, num_features=self.num_features, num_samples=self.num_probes, like=X)
        white = jax.random.normal(noise_key, (X.shape[0], self.num_probes), X.dtype)
        return prior(X) + jnp.sqrt(noise) * white

    def sides(self, solved: Float[Array, "n k"], targets: Float[Array, "n s"]) -> Sides:
        del targets  # only their solutions count
        left = jnp.concatenate([solved[:, :1], -solved[:, 1:] / self.num_probes], 1)
        return Sides(left, solved)


def check_probes(estimator: AbstractEstimator) -> None:
    """Refuse an estimator without probes."""
    if estimator.num_probes < 1:
        where = type(estimator).__name__
        raise InputError(where, "`num_probes` of at least 1", estimator.num_probes, "Use 64.")


RANGE = 1e4
"""L-BFGS keeps every parameter within this factor of its start."""


class LikelihoodFit(NamedTuple):
    """Hyper-parameters at the end of a search.

    kernel, noise : the noise is a variance.
    history : arrays with one entry per step: ``epochs``, ``residual``, ``probe_residual``, ``outcome``, ``parameters``
        (steps, h) positive values at which it was evaluated; ``value`` (the log marginal likelihood) for exact fits,
        in place of the first four.
    solved : (n, 1 + s) last solutions, the next first guess; None after an exact fit.
    """

    kernel: AbstractKernel
    noise: float
    history: dict[str, np.ndarray]
    solved: Float[np.ndarray, "n k"] | None


def log_marginal_likelihood(
    kernel: AbstractKernel, noise: Float[Array, ""] | float, X: Float[Array, "n d"], y: Float[Array, " n"]
) -> Float[Array, ""]:
    """Return log N(y; 0, K + noise·I) by Cholesky; −∞ where the matrix is not positive definite."""
    n = X.shape[0]
    lower = jnp.linalg.cholesky(gram(kernel, X) + noise * jnp.eye(n, dtype=X.dtype))
    white = jax.scipy.linalg.solve_triangular(lower, y, lower=True)
    value = -0.5 * white @ white - jnp.sum(jnp.log(jnp.diagonal(lower))) - 0.5 * n * jnp.log(2 * jnp.pi)
    return jnp.where(jnp.isnan(value), -jnp.inf, value)


def _exact_loss(template: Template, scale: AbstractScale, X: Array, y: Array, walked: Array) -> tuple[Array, Array]:
    """Return −L and its gradient ½(H⁻¹ − vvᵀ)·∂H, by one factorisation and one inverse."""
    inverse = invert(_covariance(template, scale, X, walked))
    precision = jnp.asarray(inverse.matrix)
    v = precision @ y
    loss = 0.5 * (y @ v + inverse.log_determinant + len(y) * jnp.log(2 * jnp.pi))
    return loss, _pull_back(template, scale, X, walked, precision, v)


@eqx.filter_jit
def _covariance(template: Template, scale: AbstractScale, X: Array, walked: Array) -> Array:
    kernel, noise = template.build(scale.positive(walked))
    return gram(kernel, X) + noise * jnp.eye(X.shape[0], dtype=X.dtype)


@eqx.filter_jit
def _pull_back(template: Template, scale: AbstractScale, X: Array, walked: Array, precision: Array, v: Array) -> Array:
    pull_back = jax.vjp(lambda walked: _covariance(template, scale, X, walked), walked)[1]
    return pull_back(0.5 * (precision - v[:, None] * v[None, :]))[0]


def maximise_exact_likelihood(
    kernel: AbstractKernel,
    noise: float,
    X: Float[np.ndarray, "n d"],
    y: Float[np.ndarray, " n"],
    *,
    scale: AbstractScale,
    learning_rate: float | None = None,
    max_steps: int = 100,
) -> LikelihoodFit:
    """Maximise by Cholesky with the analytic gradient: L-BFGS, or Adam where a learning rate is given.

    Raises
    ------
    ValueError, FloatingPointError : no finite likelihood at the start; a gradient that is not finite, of Adam.
    """
    template = Template(kernel)
    start = scale.walked(template.vector(kernel, noise))
    data = jnp.asarray(X), jnp.asarray(y)
    values: list[float] = []
    trail: list[np.ndarray] = []

    def loss(walked: Any) -> tuple[Any, Any]:
        value, slope = _exact_loss(template, scale, *data, jnp.asarray(walked))
        values.append(-float(value))
        trail.append(template.units * np.asarray(scale.positive(jnp.asarray(walked))))
        return value, slope

    if learning_rate is not None:
        walked = _adam(lambda walked: loss(walked)[1], start, learning_rate, max_steps)
    else:
        positive = np.asarray(scale.positive(jnp.asarray(start)))
        bounds = np.stack([scale.walked(positive / RANGE), scale.walked(positive * RANGE)], axis=1)
        bounds[-1, 1] = np.inf  # SciPy's first step is a whole gradient where every bound is finite
        best = minimise_from([Start(loss, start, np.ones(len(start), bool), bounds)], max_steps=max_steps)
        if best is None:
            wanted = "a positive definite covariance at the start"
            raise InputError("maximise_exact_likelihood", wanted, "none", "Start with more noise.")
        walked = best.x
    fitted, level = template.build(scale.positive(jnp.asarray(walked)))
    history = {"value": np.array(values), "parameters": np.array(trail)}
    return LikelihoodFit(_to_numpy(fitted), float(level), history, None)


class StepReport(NamedTuple):
    """One step: the parameters before it, what its solve cost and reached."""

    gradient: Float[Array, " h"]
    solved: Float[Array, "n k"]
    residual: Float[Array, ""]
    probe_residual: Float[Array, ""]
    epochs: Float[Array, ""]
    outcome: Array


@eqx.filter_jit
def estimate_gradient(
    template: Template,
    scale: AbstractScale,
    estimator: AbstractEstimator,
    solver: Solver,
    data: tuple[Array, Array],
    walked: Float[Array, " h"],
    initial: Float[Array, "n k"] | None,
    keys: tuple[jax.Array, jax.Array],
) -> StepReport:
    """Return the estimated gradient of the log marginal likelihood on the walked scale, and what the solve cost.

    keys : of the probes, the same at every step, and of the solver.
    """
    X, y = data
    built, pull_back = jax.vjp(lambda walked: _free(template.build(scale.positive(walked))), walked)
    kernel, noise = eqx.combine(built, template.build(scale.positive(walked)))
    targets = estimator.targets(kernel, noise, X, keys[0])
    solution = solve(
        Regularised(kernel_operator(kernel, X), noise),
        jnp.concatenate([y[:, None], targets], axis=1),
        solver,
        initial=initial,
        probes=estimator.num_probes,
        key=keys[1],
    )
    left, right = estimator.sides(solution.value, targets)
    slope = bilinear_gradient(kernel, X, 0.5 * left, right), 0.5 * jnp.sum(left * right)
    gradient = pull_back(slope)[0]
    norms = solution.residual_norms
    return StepReport(gradient, solution.value, norms[0], jnp.mean(norms[1:]), solution.epochs, solution.outcome)


def maximise_likelihood_by_solves(
    kernel: AbstractKernel,
    noise: float,
    X: Float[np.ndarray, "n d"],
    y: Float[np.ndarray, " n"],
    *,
    estimator: AbstractEstimator,
    solver: Solver,
    scale: AbstractScale,
    key: jax.Array,
    learning_rate: float = 0.1,
    num_steps: int = 100,
    warm_start: bool = True,
    progress: bool = False,
    callback: Callable[[int, StepReport], None] | None = None,
) -> LikelihoodFit:
    """Climb the log marginal likelihood by Adam on estimated gradients (Lin et al. 2024, Algorithm 1).

    Parameters
    ----------
    X, y : their dtype, float32 or float64, is that of the whole search.
    warm_start : start each solve at the last one's solutions; the probes are then those of one key throughout. Without
        it every solve starts at zero, with fresh probes.
    callback : called after every step with its number and report.

    Raises
    ------
    FloatingPointError : a gradient that is not finite; says at which step. The solve before it may be `BROKEN`.
    """
    template = Template(jax.tree.map(lambda leaf: np.asarray(leaf, X.dtype), kernel))
    data = jnp.asarray(X), jnp.asarray(y)
    probe_key, solver_key = jax.random.split(key)
    records: dict[str, list[Any]] = {name: [] for name in ("epochs", "residual", "probe_residual", "outcome")}
    trail: list[np.ndarray] = []
    last: list[Array | None] = [None]

    with tqdm(total=num_steps, desc="marginal likelihood", disable=None if progress else True, leave=False) as bar:

        def slope(walked: Array) -> Array:
            step = len(trail)
            fixed = probe_key if warm_start else jax.random.fold_in(probe_key, step)
            keys = fixed, jax.random.fold_in(solver_key, step)
            report = estimate_gradient(template, scale, estimator, solver, data, walked, last[0], keys)
            last[0] = report.solved if warm_start else None
            for name in records:
                records[name].append(np.asarray(getattr(report, name)))
            trail.append(template.units * np.asarray(scale.positive(walked)))
            if callback is not None:
                callback(step, report)
            bar.update()
            return -report.gradient

        start = scale.walked(template.vector(kernel, noise)).astype(X.dtype)
        walked = _adam(slope, start, learning_rate, num_steps)
    fitted, level = template.build(scale.positive(jnp.asarray(walked)))
    history = {name: np.array(values) for name, values in records.items()} | {"parameters": np.array(trail)}
    return LikelihoodFit(_to_numpy(fitted), float(level), history, None if last[0] is None else np.asarray(last[0]))


def _adam(slope: Callable[[Array], Array], start: np.ndarray, learning_rate: float, num_steps: int) -> np.ndarray:
    optimiser = optax.adam(learning_rate)
    walked = jnp.asarray(start)
    state = optimiser.init(walked)
    for step in range(num_steps):
        gradient = slope(walked)
        if not bool(jnp.isfinite(gradient).all()):
            got = f"{np.asarray(gradient)} at step {step}"
            raise FloatingPointError(
                fault("Adam", "a finite gradient of the likelihood", got, "Start with more noise.")
            )
        change, state = optimiser.update(gradient, state)
        walked = walked + change
    return np.asarray(walked)


def _free(built: tuple[AbstractKernel, Array]) -> tuple[AbstractKernel, Array]:
    """Return what derivatives are taken of."""
    return eqx.filter(built, eqx.is_inexact_array)


def _to_numpy(kernel: AbstractKernel) -> AbstractKernel:
    return jax.tree.map(np.asarray, kernel)
