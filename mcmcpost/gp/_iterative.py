"""Gaussian-process regression by iterative solves, with pathwise posterior samples; exact where that is cheaper."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from mcmcpost._checks import fault, in_float64
from mcmcpost.gp._data import Prediction, Training, check_inputs, check_training, default_kernel
from mcmcpost.gp._solver_choice import choose_solver
from mcmcpost.gp._subset_start import SubsetStart, start_on_subsets
from mcmcpost.hyper import (
    AbstractEstimator,
    AbstractScale,
    LikelihoodFit,
    Pathwise,
    Softplus,
    Standard,
    has_random_features,
    maximise_exact_likelihood,
    maximise_likelihood_by_solves,
    sample_prior,
)
from mcmcpost.kernels import AbstractKernel, gram
from mcmcpost.linops import KernelTile, Regularised, TileOperator, kernel_operator
from mcmcpost.linsolve import Cholesky, Outcome, Solver, factorise, solve

CHUNK = 512
"""New rows whose exact variances are solved for together."""


class Fitted(NamedTuple):
    """What a fit leaves; kernel and noise are those of outputs of unit variance.

    mean_weights : (m,) H⁻¹y. sample_weights : (m, s) H⁻¹(f_j(X) + ε_j), None without random features.
    factor : (m, m) Cholesky factor of H after an exact fit, else None.
    key_data : of the key of the prior samples f_j.
    info : JSON-able facts: solver and why it was chosen, outcome, residuals, epochs, parameters along the way.
    """

    training: Training
    kernel: AbstractKernel
    noise: float
    mean_weights: Float[np.ndarray, " m"]
    sample_weights: Float[np.ndarray, "m s"] | None
    factor: Float[np.ndarray, "m m"] | None
    key_data: np.ndarray
    info: dict[str, Any]


class IterativeGP(eqx.Module):
    """y = f(x) + ε, f ~ GP(c, k), ε ~ N(0, noise), with hyper-parameters by marginal likelihood.

    Small data are fitted by Cholesky, the analytic gradient and L-BFGS; large data by Adam on gradients from budgeted,
    warm-started solves of one block of right-hand sides, which also are posterior samples (Lin, Padhy, Antorán,
    Tripp, Terenin, Szepesvári, Hernández-Lobato and Janz 2024, Algorithm 1 and section 3). The constant c is the mean
    of y, and everything is fitted to (y − c)/sd(y).

    Parameters
    ----------
    kernel : of (y − c)/sd(y); by default Matérn-3/2 with one lengthscale per coordinate, started at its standard
        deviation, and amplitude 1.
    noise : variance, in units of the variance of y; start or fixed value.
    optimise : whether to fit kernel and noise, or to take them as given.
    solver : by default Cholesky where it fits and is predicted to be faster than conjugate gradients.
    estimator : of the gradient where the solver is iterative; `Pathwise()` by default, or `Standard()` for a kernel
        without random features.
    scale : on which parameters move, `Softplus()` (the default) or `Log()`.
    learning_rate : of Adam. num_steps : of Adam or L-BFGS.
    warm_start : start each solve at the last one's solution.
    subset_start : begin at the mean optimum on subsets of neighbours, for data too large for many steps.
    progress : show a progress bar, on a terminal only.
    """

    kernel: AbstractKernel | None = None
    noise: float = eqx.field(converter=float, default=1.0)
    optimise: bool = True
    solver: Solver | None = None
    estimator: AbstractEstimator | None = None
    scale: AbstractScale | None = None
    learning_rate: float = eqx.field(converter=float, default=0.1)
    num_steps: int = 100
    warm_start: bool = True
    subset_start: SubsetStart | None = None
    progress: bool = False
    fitted: Fitted | None = None

    def __check_init__(self) -> None:
        for name in ("noise", "learning_rate"):
            value = getattr(self, name)
            if not 0 < value < np.inf:
                raise ValueError(fault("IterativeGP", f"a positive `{name}`", value, "It is relative to var(y)."))
        if self.num_steps < 1:
            raise ValueError(fault("IterativeGP", "`num_steps` of at least 1", self.num_steps, "Or optimise=False."))

    def fit(self, X: object, y: object, *, key: jax.Array | None = None) -> "IterativeGP":
        """Return the process fitted to X (m, d) and y (m,); `self` is unchanged.

        key : of probes, samples and random solvers; ``jax.random.key(0)`` by default, so that a fit repeats.

        Raises
        ------
        TypeError, ValueError : data that cannot be fitted (shapes, NaN rows, fewer than two rows).
        """
        training = check_training("IterativeGP.fit", X, y)
        fitted = in_float64(self._fit)(training, jax.random.key(0) if key is None else key)
        return eqx.tree_at(lambda gp: gp.fitted, self, fitted, is_leaf=lambda leaf: leaf is None)

    def predict(self, X: object, *, noise: bool = True, exact_variance: bool = False) -> Prediction:
        """Return the posterior mean and variance at X (n, d), in units of y and y².

        After an exact fit the variance is exact. After an iterative one it is the mean square of the posterior samples
        about the mean, with relative error √(2/s); `exact_variance` solves one more system per row of X.

        noise : whether the variance includes that of a new observation.
        """
        fitted = self._require("predict")
        points = check_inputs("IterativeGP.predict", X, fitted.training.X.shape[1])
        mean, variance = map(np.asarray, in_float64(self._predict)(points, exact_variance))
        scale, centre = fitted.training.scale, fitted.training.centre
        return Prediction(centre + scale * mean, scale**2 * (variance + (fitted.noise if noise else 0.0)))

    def sample(self, X: object) -> Float[np.ndarray, "n s"]:
        """Return s posterior functions at X (n, d), without noise; the same functions at every call.

        Pathwise conditioning (Wilson et al. 2021): f_j(x) + k(x, X)H⁻¹(y − f_j(X) − ε_j), at no further solve.
        """
        fitted = self._require("sample")
        points = check_inputs("IterativeGP.sample", X, fitted.training.X.shape[1])
        if fitted.sample_weights is None:
            kind = type(fitted.kernel).__name__
            raise ValueError(fault("IterativeGP.sample", "a kernel with random features", kind, "Use predict."))
        samples = in_float64(self._samples)(points)
        return np.asarray(fitted.training.centre + fitted.training.scale * samples)

    def _require(self, name: str) -> Fitted:
        if self.fitted is None:
            raise ValueError(fault(f"IterativeGP.{name}", "a fitted process", "one that is not", "Call fit first."))
        return self.fitted

    def _fit(self, training: Training, key: jax.Array) -> Fitted:
        X, y = training.X, training.outputs
        kernel, noise = default_kernel(X) if self.kernel is None else self.kernel, self.noise
        info: dict[str, Any] = {}
        solver = self.solver
        estimator = self._estimator(kernel)
        if solver is None:
            choice = choose_solver(kernel, X, 1 + estimator.num_probes)
            solver = choice.solver
            info["choice"] = choice._asdict() | {"solver": type(solver).__name__}
        info["solver"] = type(solver).__name__
        subset_key, fit_key = jax.random.split(key)
        found: LikelihoodFit | None = None
        if self.optimise:
            if self.subset_start is not None:
                kernel, noise = start_on_subsets(kernel, noise, X, y, self.subset_start, self._scale, subset_key)
            found = self._search(kernel, noise, X, y, solver, fit_key)
            kernel, noise = found.kernel, found.noise
            info["history"] = {name: values.tolist() for name, values in found.history.items()}
        return self._condition(training, kernel, noise, solver, fit_key, found, info)

    def _search(
        self, kernel: AbstractKernel, noise: float, X: np.ndarray, y: np.ndarray, solver: Solver, key: jax.Array
    ) -> LikelihoodFit:
        if isinstance(solver, Cholesky):
            return maximise_exact_likelihood(kernel, noise, X, y, scale=self._scale, max_steps=self.num_steps)
        return maximise_likelihood_by_solves(
            kernel,
            noise,
            X,
            y,
            estimator=self._estimator(kernel),
            solver=solver,
            scale=self._scale,
            key=key,
            learning_rate=self.learning_rate,
            num_steps=self.num_steps,
            warm_start=self.warm_start,
            progress=self.progress,
        )

    def _condition(
        self,
        training: Training,
        kernel: AbstractKernel,
        noise: float,
        solver: Solver,
        key: jax.Array,
        found: LikelihoodFit | None,
        info: dict[str, Any],
    ) -> Fitted:
        """Solve for the mean and the samples at the final parameters."""
        X, y = jnp.asarray(training.X), jnp.asarray(training.outputs)
        # The probes of the search were those of this key: their solutions are first guesses here.
        sample_key, solver_key = jax.random.split(key)
        sampler = self._sampler(kernel)
        probes = 0
        right = y[:, None]
        if has_random_features(kernel):
            targets = sampler.targets(kernel, jnp.asarray(noise), X, sample_key)
            right, probes = jnp.concatenate([right, targets], axis=1), targets.shape[1]
        factor = None
        if isinstance(solver, Cholesky):
            found_factor = factorise(gram(kernel, X), jnp.ones(len(y)), jnp.asarray(noise))
            factor, noise = found_factor.lower, float(found_factor.nugget)
            solved = cho_solve((factor, True), right)
            info |= {"outcome": "jittered" if bool(found_factor.raised) else "converged"}
        else:
            same = sampler == self._estimator(kernel) and found is not None and found.solved is not None
            initial = jnp.asarray(found.solved) if same and found is not None else None
            system = Regularised(kernel_operator(kernel, X), jnp.asarray(noise))
            solution = solve(system, right, solver, initial=initial, probes=probes, key=solver_key)
            solved = solution.value
            info |= {
                "outcome": Outcome(int(solution.outcome)).name.lower(),
                "residual": float(solution.residual_norms[0]),
                "probe_residual": float(jnp.mean(solution.residual_norms[1:])) if probes else 0.0,
                "epochs": float(solution.epochs) + float(np.sum(found.history["epochs"]) if found else 0.0),
            }
        weights = np.asarray(solved)
        dense = None if factor is None else np.asarray(factor)
        return Fitted(
            training,
            kernel,
            noise,
            weights[:, 0],
            weights[:, 1:] if probes else None,
            dense,
            np.asarray(jax.random.key_data(sample_key)),
            info,
        )

    @property
    def _scale(self) -> AbstractScale:
        return Softplus() if self.scale is None else self.scale

    def _estimator(self, kernel: AbstractKernel) -> AbstractEstimator:
        if self.estimator is not None:
            return self.estimator
        return Pathwise() if has_random_features(kernel) else Standard()

    def _sampler(self, kernel: AbstractKernel) -> Pathwise:
        estimator = self._estimator(kernel)
        return estimator if isinstance(estimator, Pathwise) else Pathwise(estimator.num_probes)

    def _cross(self, points: Array, weights: Array) -> Array:
        fitted = self._require("predict")
        train = jnp.asarray(fitted.training.X)
        operator = TileOperator(KernelTile(fitted.kernel), train, jnp.ones(len(train), train.dtype))
        return operator.cross_matmul(points, weights)

    def _samples(self, points: np.ndarray) -> Array:
        fitted, new = self._require("sample"), jnp.asarray(points)
        assert fitted.sample_weights is not None
        prior_key, _ = jax.random.split(
            jax.random.wrap_key_data(jnp.asarray(fitted.key_data))
        )  # as Pathwise.targets splits it
        prior = sample_prior(
            fitted.kernel,
            prior_key,
            num_features=self._sampler(fitted.kernel).num_features,
            num_samples=fitted.sample_weights.shape[1],
            like=new,
        )
        weights = jnp.asarray(fitted.mean_weights)[:, None] - jnp.asarray(fitted.sample_weights)
        return prior(new) + self._cross(new, weights)

    def _predict(self, points: np.ndarray, exact_variance: bool) -> tuple[Array, Array]:
        fitted, new = self._require("predict"), jnp.asarray(points)
        mean = self._cross(new, jnp.asarray(fitted.mean_weights)[:, None])[:, 0]
        if fitted.factor is not None or exact_variance or fitted.sample_weights is None:
            parts = [self._exact_variance(new[i : i + CHUNK]) for i in range(0, len(new), CHUNK)]
            return mean, jnp.concatenate(parts)
        return mean, jnp.mean((self._samples(points) - mean[:, None]) ** 2, axis=1)

    def _exact_variance(self, points: Array) -> Array:
        fitted = self._require("predict")
        train = jnp.asarray(fitted.training.X)
        cross = gram(fitted.kernel, train, points)
        prior = jax.vmap(lambda x: gram(fitted.kernel, x[None])[0, 0])(points)
        if fitted.factor is not None:
            explained = jnp.sum(solve_triangular(jnp.asarray(fitted.factor), cross, lower=True) ** 2, axis=0)
        else:
            system = Regularised(kernel_operator(fitted.kernel, train), jnp.asarray(fitted.noise))
            solver = self.solver or choose_solver(fitted.kernel, fitted.training.X, CHUNK).solver
            explained = jnp.sum(
                cross * solve(system, cross, solver, key=jax.random.wrap_key_data(jnp.asarray(fitted.key_data))).value,
                axis=0,
            )
        return jnp.maximum(prior - explained, 0)
