"""The log marginal likelihood of a Gaussian process: exact by Cholesky, or its gradient from linear
solves.

The pathwise gradient needs prior samples: those of stationary kernels are by random Fourier
features, with the spectral law of each kernel.
"""

import abc
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from tqdm import tqdm

from mcmcpost import stein
from mcmcpost.core.arguments import check_count
from mcmcpost.core.devices import no_bar
from mcmcpost.core.errors import InputError
from mcmcpost.solve import Solver, invert, solve
from mcmcpost.solve.search import (
    AbstractOptimiser,
    AbstractScale,
    Adam,
    Hyperparameters,
    Packing,
    TrainingProblem,
)
from mcmcpost.stein.products import Regularised, bilinear_gradient, device_mesh, kernel_operator

ROWS = 4_096
"""Rows whose features exist at once."""


def has_random_features(kernel: stein.AbstractKernel) -> bool:
    """Return whether `sample_prior` knows the spectral law of this kernel."""
    match kernel:
        case stein.Scaled():
            return has_random_features(kernel.kernel)
        case stein.Sum() | stein.Product():
            return has_random_features(kernel.first) and has_random_features(kernel.second)
        case _:
            return isinstance(kernel, stein.STATIONARY)


class Spectrum(NamedTuple):
    """Equal-weight frequencies of one stationary kernel.

    frequencies : (d, r). amplitude : variance of the process.
    """

    frequencies: Float[Array, "d r"]
    amplitude: Float[Array, ""]


class PriorSample(NamedTuple):
    """Samples f_j(x) = Σ_i √(a/r) (u_ij sin ω_iᵀx + v_ij cos ω_iᵀx), summed over spectra of
    amplitude a.

    weights : (2r, s) per spectrum, standard normal.
    """

    spectra: tuple[Spectrum, ...]
    weights: tuple[Float[Array, "q s"], ...]

    def __call__(self, X: Float[Array, "n d"]) -> Float[Array, "n s"]:
        """Return the samples at X (n, d), as (n, s)."""
        return jax.lax.map(self._at, X, batch_size=ROWS)

    def _at(self, x: Float[Array, " d"]) -> Float[Array, " s"]:
        total = jnp.zeros(self.weights[0].shape[1], x.dtype)
        for spectrum, weight in zip(self.spectra, self.weights, strict=True):
            angles = x @ spectrum.frequencies
            waves = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)])
            # r frequencies of weight a/r each: sin² + cos² sum to the variance a.
            total = total + jnp.sqrt(spectrum.amplitude / angles.shape[0]) * (waves @ weight)
        return total


def sample_prior(
    kernel: stein.AbstractKernel,
    key: jax.Array,
    *,
    num_features: int,
    num_samples: int,
    like: Float[Array, "n d"],
) -> PriorSample:
    """Return samples of the process with this kernel; a smooth function of its parameters for a
    fixed key.

    The law of the frequencies is the kernel's own: normal for the squared exponential, multivariate
    t with 2ν degrees of freedom for Matérn-ν (one χ² per frequency vector, not per coordinate),
    gamma mixtures for the rational kernels; a product adds frequencies, a sum adds samples. Rahimi
    and Recht (2008); the covariance is exact on average over keys only, and `num_features` bound
    its error at one key.

    Parameters
    ----------
    num_features : sines and cosines together, per term of a sum.
    like : (n, d), for its dimension and dtype.

    Raises
    ------
    ValueError : a kernel that is not stationary; use the standard estimator for it.
    """
    frequency_key, weight_key = jax.random.split(key)
    # A sine and a cosine for each frequency; at least one, also for `num_features` 1.
    spectra = _spectra(kernel, frequency_key, max(1, num_features // 2), like)
    keys = jax.random.split(weight_key, len(spectra))
    weights = tuple(
        jax.random.normal(key, (2 * s.frequencies.shape[1], num_samples), like.dtype)
        for key, s in zip(keys, spectra, strict=True)
    )
    return PriorSample(spectra, weights)


def _spectra(
    kernel: stein.AbstractKernel, key: jax.Array, r: int, like: Array
) -> tuple[Spectrum, ...]:
    first, second = jax.random.split(key)
    match kernel:
        case stein.Scaled():
            a = jnp.asarray(kernel.amplitude, like.dtype)
            return tuple(
                Spectrum(s.frequencies, a * s.amplitude)
                for s in _spectra(kernel.kernel, key, r, like)
            )
        case stein.Sum():
            return _spectra(kernel.first, first, r, like) + _spectra(kernel.second, second, r, like)
        case stein.Product():
            # Bochner: the spectrum of a product is that of the sum of two independent frequencies.
            left, right = (
                _spectra(kernel.first, first, r, like),
                _spectra(kernel.second, second, r, like),
            )
            return tuple(
                Spectrum(a.frequencies + b.frequencies, a.amplitude * b.amplitude)
                for a in left
                for b in right
            )
        case stein.SquaredExponential():
            precision = jnp.ones(r, like.dtype)
        case stein.Matern32() | stein.Matern52():
            # ν/Gamma(ν) times a normal square is a multivariate t with 2ν degrees of freedom.
            half = 1.5 if isinstance(kernel, stein.Matern32) else 2.5
            precision = half / jax.random.gamma(second, half, (r,), like.dtype)
        case stein.RationalQuadratic():
            # (1 + r/2α)^{−α} is the mean of e^{−rg/2} over g ~ Gamma(α)/α.
            alpha = jnp.asarray(kernel.alpha, like.dtype)
            precision = jax.random.gamma(second, alpha, (r,), like.dtype) / alpha
        case stein.InverseMultiquadric():
            # (1 + r)^{−e} is the mean of e^{−rg/2} over g ~ 2 Gamma(e).
            exponent = jnp.asarray(0.5 if kernel.exponent is None else kernel.exponent, like.dtype)
            precision = 2 * jax.random.gamma(second, exponent, (r,), like.dtype)
        case _:
            raise InputError(
                "sample_prior",
                "a stationary kernel, or scales, sums and products of them",
                type(kernel).__name__,
                "It has no random Fourier features; use Standard(), or Cholesky().",
            )
    width = stein.spread(type(kernel).__name__, "lengthscale", kernel.lengthscale, like)
    directions = jax.random.normal(first, (like.shape[1], r), like.dtype)
    return (
        Spectrum(directions * jnp.sqrt(precision)[None] / width[:, None], jnp.ones((), like.dtype)),
    )


class Sides(NamedTuple):
    """½ Σ_s left_sᵀ (∂H) right_s is the gradient.

    left, right : (n, 1 + s).
    """

    left: Float[Array, "n k"]
    right: Float[Array, "n k"]


class AbstractEstimator(eqx.Module):
    """The systems to solve, and the gradient from their solutions: ∂L = ½ v_yᵀ(∂H)v_y − ½
    tr(H⁻¹∂H), v_y = H⁻¹y.

    The probes of a key are the same at every call, so that solutions change little from step to
    step and serve as first guesses (Lin et al. 2024, section 4).

    num_probes : s, vectors of the trace estimate.
    """

    num_probes: eqx.AbstractVar[int]

    @abc.abstractmethod
    def targets(
        self,
        kernel: stein.AbstractKernel,
        noise: Float[Array, ""],
        X: Float[Array, "n d"],
        key: jax.Array,
    ) -> Float[Array, "n s"]:
        """Return the probe right-hand sides b_j."""

    @abc.abstractmethod
    def sides(self, solved: Float[Array, "n k"], targets: Float[Array, "n s"]) -> Sides:
        """Return the factors of the gradient from the solutions [v_y, H⁻¹b_1, …]."""


class Standard(AbstractEstimator):
    """Hutchinson's trace estimator: b_j = z_j ~ N(0, I) and tr(H⁻¹∂H) ≈ mean_j (H⁻¹z_j)ᵀ(∂H)z_j
    (eq. 7).

    num_probes : s.
    """

    num_probes: int = 64

    def __check_init__(self) -> None:
        check_probes(self)

    def targets(
        self,
        kernel: stein.AbstractKernel,
        noise: Float[Array, ""],
        X: Float[Array, "n d"],
        key: jax.Array,
    ) -> Float[Array, "n s"]:
        del kernel, noise  # the probes are white
        return jax.random.normal(key, (X.shape[0], self.num_probes), X.dtype)

    def sides(self, solved: Float[Array, "n k"], targets: Float[Array, "n s"]) -> Sides:
        # ½ v_yᵀ(∂H)v_y − ½ mean_j (H⁻¹z_j)ᵀ(∂H)z_j; the factor ½ is applied where the sides are
        # used.
        mean = -1.0 / self.num_probes
        return Sides(
            jnp.concatenate([solved[:, :1], mean * solved[:, 1:]], 1),
            jnp.concatenate([solved[:, :1], targets], 1),
        )


class Pathwise(AbstractEstimator):
    """b_j = f_j(X) + ε_j ~ N(0, H), so that ẑ_j = H⁻¹b_j ~ N(0, H⁻¹) and tr(H⁻¹∂H) ≈ mean_j
    ẑ_jᵀ(∂H)ẑ_j (eq. 8–10).

    The solutions start closer to zero, never estimate with more variance than `Standard`, and are
    posterior samples at no further solve. The prior samples f_j come from random features, which
    bias the gradient by about a per cent at 2,000 features.

    num_probes : s. num_features : per term of the kernel.
    """

    num_probes: int = 64
    num_features: int = 2_000

    def __check_init__(self) -> None:
        check_probes(self)
        check_count("Pathwise", "num_features", self.num_features, "Use 2,000.", most=10_000_000)

    def targets(
        self,
        kernel: stein.AbstractKernel,
        noise: Float[Array, ""],
        X: Float[Array, "n d"],
        key: jax.Array,
    ) -> Float[Array, "n s"]:
        prior_key, noise_key = jax.random.split(key)
        prior = sample_prior(
            kernel, prior_key, num_features=self.num_features, num_samples=self.num_probes, like=X
        )
        white = jax.random.normal(noise_key, (X.shape[0], self.num_probes), X.dtype)
        return prior(X) + jnp.sqrt(noise) * white

    def sides(self, solved: Float[Array, "n k"], targets: Float[Array, "n s"]) -> Sides:
        del targets  # only their solutions count
        left = jnp.concatenate([solved[:, :1], -solved[:, 1:] / self.num_probes], 1)
        return Sides(left, solved)


def check_probes(estimator: AbstractEstimator) -> None:
    """Refuse an estimator without probes."""
    check_count(
        type(estimator).__name__, "num_probes", estimator.num_probes, "Use 64.", most=100_000
    )


EXACT_RANGE = 1e4
"""L-BFGS keeps every parameter within this factor of its start."""


class LikelihoodFit(NamedTuple):
    """Hyper-parameters at the end of a search.

    kernel, noise : the noise is a variance.
    history : arrays with one entry per step: ``epochs``, ``residual``, ``probe_residual``,
        ``outcome``, ``parameters`` (steps, h) positive values at which it was evaluated; ``value``
        (the log marginal likelihood) for exact fits, in place of the first four.
    solved : (n, 1 + s) last solutions, the next first guess; None after an exact fit.
    """

    kernel: stein.AbstractKernel
    noise: float
    history: dict[str, np.ndarray]
    solved: Float[np.ndarray, "n k"] | None


def _exact_loss(packing: Packing, X: Array, y: Array, x: Array) -> tuple[Array, Array]:
    """Return −L and its gradient ½(H⁻¹ − vvᵀ)·∂H, by one factorisation and one inverse."""
    # H⁻¹ serves the quadratic form, the determinant and the gradient: n³ operations in all.
    inverse = invert(_covariance(packing, X, x))
    precision = jnp.asarray(inverse.matrix)
    v = precision @ y
    loss = 0.5 * (y @ v + inverse.log_determinant + len(y) * jnp.log(2 * jnp.pi))
    return loss, _pull_back(packing, X, x, precision, v)


@eqx.filter_jit
def _covariance(packing: Packing, X: Array, x: Array) -> Array:
    kernel, noise = packing.unpack(x)
    return stein.gram(kernel, X) + noise * jnp.eye(X.shape[0], dtype=X.dtype)


@eqx.filter_jit
def _pull_back(packing: Packing, X: Array, x: Array, precision: Array, v: Array) -> Array:
    # ∂H through the kernel only: no derivative of the factorisation is taken.
    pull_back = jax.vjp(lambda x: _covariance(packing, X, x), x)[1]
    return pull_back(0.5 * (precision - v[:, None] * v[None, :]))[0]


def maximise_exact_likelihood(
    kernel: stein.AbstractKernel,
    noise: float,
    X: Float[np.ndarray, "n d"],
    y: Float[np.ndarray, " n"],
    *,
    scale: AbstractScale,
    optimiser: AbstractOptimiser,
) -> LikelihoodFit:
    """Maximise by Cholesky with the analytic gradient.

    Raises
    ------
    ValueError : no finite likelihood at the start.
    """
    start = Hyperparameters(kernel, noise)
    packing = Packing(start, scale, relative=True)
    initial = packing.pack(start)
    bounds = packing.box(initial, EXACT_RANGE)
    bounds[-1, 1] = np.inf  # SciPy's first step is a whole gradient where every bound is finite
    data: tuple[Array, Array] = jax.device_put((X, y))
    trail: list[np.ndarray] = []

    def loss(x: Any) -> tuple[Any, Any]:
        # The trail has every evaluation, those of line searches included, as the record's history
        # has.
        trail.append(np.asarray(packing.values(jnp.asarray(x))))
        return _exact_loss(packing, *data, jnp.asarray(x))

    best, record = optimiser.minimise(TrainingProblem(loss, initial, bounds, size=len(y)))
    history = {"value": -record.history, "parameters": np.array(trail)}
    return _likelihood_fit(packing, best, history, None)


def _likelihood_fit(
    packing: Packing, x: np.ndarray, history: dict[str, np.ndarray], solved: np.ndarray | None
) -> LikelihoodFit:
    kernel, noise = packing.unpack(jnp.asarray(x))
    return LikelihoodFit(jax.tree.map(np.asarray, kernel), float(noise), history, solved)


class StepReport(NamedTuple):
    """One step: the parameters before it, what its solve cost and reached."""

    gradient: Float[Array, " h"]
    solved: Float[Array, "n k"]
    residual: Float[Array, ""]
    probe_residual: Float[Array, ""]
    epochs: Float[Array, ""]
    outcome: Array


STEP_HISTORY = ("epochs", "residual", "probe_residual", "outcome")
"""What a search by solves keeps of each `StepReport`."""


@eqx.filter_jit
def estimate_gradient(
    packing: Packing,
    estimator: AbstractEstimator,
    solver: Solver,
    data: tuple[Array, Array],
    x: Float[Array, " h"],
    initial: Float[Array, "n k"] | None,
    keys: tuple[jax.Array, jax.Array],
) -> StepReport:
    """Return the estimated gradient of the log marginal likelihood in x, and what the solve cost.

    packing : of `Hyperparameters`. x : (h,), unconstrained. initial : first guess of the solutions,
        None for zero.
    keys : of the probes, the same at every step, and of the solver.
    """
    X, y = data
    x = jnp.asarray(x)
    # Two steps: ∂L in kernel and noise from tiles, then through the packing to x, which is cheap.
    built, pull_back = jax.vjp(lambda x: eqx.filter(packing.unpack(x), eqx.is_inexact_array), x)
    kernel, noise = eqx.combine(built, packing.unpack(x))
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
    # H depends on the noise through the identity: its derivative is Σ_s left_s·right_s.
    slope = Hyperparameters(
        bilinear_gradient(kernel, X, 0.5 * left, right, mesh=device_mesh()),
        0.5 * jnp.sum(left * right),
    )
    gradient = pull_back(slope)[0]
    norms = solution.residual_norms
    return StepReport(
        gradient, solution.value, norms[0], jnp.mean(norms[1:]), solution.epochs, solution.outcome
    )


def maximise_likelihood_by_solves(
    kernel: stein.AbstractKernel,
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
) -> LikelihoodFit:
    """Climb the log marginal likelihood by Adam on estimated gradients (Lin et al. 2024, Algorithm
    1).

    Parameters
    ----------
    X, y : their dtype, float32 or float64, is that of the whole search.
    warm_start : start each solve at the last one's solutions; the probes are then those of one key
        throughout. Without it every solve starts at zero, with fresh probes.

    Raises
    ------
    FloatingPointError : a gradient that is not finite; says at which step. The solve before it may
        be `BROKEN`.
    """
    start = Hyperparameters(jax.tree.map(lambda leaf: np.asarray(leaf, X.dtype), kernel), noise)
    packing = Packing(start, scale, relative=True)
    data: tuple[Array, Array] = jax.device_put((X, y))
    probe_key, solver_key = jax.random.split(key)
    reports: list[dict[str, np.ndarray]] = []
    # Zeros rather than no guess: one product more, and one program for all steps.
    last = jnp.zeros((len(y), 1 + estimator.num_probes), X.dtype) if warm_start else None

    with tqdm(
        total=num_steps, desc="marginal likelihood", disable=no_bar(progress), leave=False
    ) as bar:

        def slope(x: np.ndarray) -> Array:
            nonlocal last
            step = len(reports)
            # A warm start needs the targets of the last step, hence one key; without it fresh
            # probes average out.
            fixed = probe_key if warm_start else jax.random.fold_in(probe_key, step)
            keys = fixed, jax.random.fold_in(solver_key, step)
            report = estimate_gradient(packing, estimator, solver, data, jnp.asarray(x), last, keys)
            last = report.solved if warm_start else None
            kept = {name: np.asarray(getattr(report, name)) for name in STEP_HISTORY}
            reports.append(kept | {"parameters": np.asarray(packing.values(jnp.asarray(x)))})
            bar.update()
            return -report.gradient

        initial = packing.pack(Hyperparameters(kernel, noise)).astype(X.dtype)
        # `final=1.0`: a constant rate, as in Lin et al. (2024).
        best = Adam(rate=learning_rate, max_steps=num_steps, final=1.0).follow(slope, initial)
    history = {
        name: np.array([report[name] for report in reports])
        for name in (*STEP_HISTORY, "parameters")
    }
    return _likelihood_fit(packing, best, history, None if last is None else np.asarray(last))
