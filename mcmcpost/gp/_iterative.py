"""Gaussian-process regression by iterative solves, with pathwise posterior samples; exact where that is cheaper."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve

from mcmcpost._checks import check_count, check_kind, fault, in_float64
from mcmcpost.gp._data import Training, check_training, default_kernel
from mcmcpost.gp._iterative_fitted import FittedIterativeGP
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
)
from mcmcpost.kernels import AbstractKernel, gram
from mcmcpost.linops import Regularised, kernel_operator
from mcmcpost.linsolve import AbstractIterativeSolver, Cholesky, Outcome, Solver, factorise, solve


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
    solver : by default Cholesky where it fits and is predicted to be faster than conjugate gradients. The mean is as
        good as its tolerance, which is relative to y: with little noise a residual of .01 can be much of a posterior
        standard deviation: ask for less there.
    estimator : of the gradient where the solver is iterative; `Pathwise()` by default, or `Standard()` for a kernel
        without random features.
    scale : on which parameters move, `Softplus()` (the default) or `Log()`.
    learning_rate : of Adam. num_steps : of Adam or L-BFGS.
    warm_start : start each solve at the last one's solution.
    precision : of an iterative search for hyper-parameters, ``"float64"`` or ``"float32"``, whose steps take about half
        the time; what the process is conditioned on is always solved in double precision.
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
    precision: str = "float64"
    subset_start: SubsetStart | None = None
    progress: bool = False

    def __check_init__(self) -> None:
        for name in ("noise", "learning_rate"):
            value = getattr(self, name)
            if not 0 < value < np.inf:
                raise ValueError(fault("IterativeGP", f"a positive `{name}`", value, "It is relative to var(y)."))
        if self.precision not in ("float32", "float64"):
            got = repr(self.precision)
            raise ValueError(fault("IterativeGP", "`precision` float32 or float64", got, "Use float64."))
        check_count("IterativeGP", "num_steps", self.num_steps, "Or optimise=False.")
        solvers = (Cholesky, AbstractIterativeSolver, type(None))
        check_kind("IterativeGP", "kernel", self.kernel, (AbstractKernel, type(None)), "Such as Matern32().")
        check_kind("IterativeGP", "solver", self.solver, solvers, "Such as ConjugateGradients().")

    def fit(self, X: object, y: object, *, key: jax.Array | None = None) -> FittedIterativeGP:
        """Return the process fitted to X (m, d) and y (m,).

        key : of probes, samples and random solvers; ``jax.random.key(0)`` by default, so that a fit repeats.

        Raises
        ------
        TypeError, ValueError : data that cannot be fitted (shapes, NaN rows, fewer than two rows).
        """
        training = check_training("IterativeGP.fit", X, y)
        return in_float64(self._fit)(training, jax.random.key(0) if key is None else key)

    def _fit(self, training: Training, key: jax.Array) -> FittedIterativeGP:
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
            kernel, noise = jax.tree.map(lambda leaf: np.asarray(leaf, float), found.kernel), found.noise
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
            X.astype(self.precision),
            y.astype(self.precision),
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
    ) -> FittedIterativeGP:
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
            if bool(jnp.isnan(factor[-1, -1])):
                wanted = "a positive definite covariance"
                raise ValueError(fault("IterativeGP.fit", wanted, f"none up to noise {noise:g}", "Raise `noise`."))
            solved = cho_solve((factor, True), right)
            info |= {"outcome": "jittered" if bool(found_factor.raised) else "converged"}
        else:
            initial = None
            if found is not None and found.solved is not None:
                initial = jnp.zeros_like(right).at[:, 0].set(found.solved[:, 0])
                if sampler == self._estimator(kernel) and self.precision == "float64":
                    initial = jnp.asarray(found.solved)  # of these very samples
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
        return FittedIterativeGP(
            training,
            kernel,
            noise,
            solver,
            sampler,
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
