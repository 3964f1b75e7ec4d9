"""Gaussian-process regression by iterative solves, with pathwise posterior samples; exact up to
10,000 rows."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Float

from mcmcpost.core.arguments import (
    as_number,
    check_count,
    check_flags,
    check_key,
    check_kind,
    check_number,
)
from mcmcpost.core.errors import InputError, fault, warn
from mcmcpost.core.precision import in_float64
from mcmcpost.gp.data import Prediction, Training, check_inputs, check_training, default_kernel
from mcmcpost.gp.marginal_likelihood import (
    AbstractEstimator,
    LikelihoodFit,
    Pathwise,
    Standard,
    has_random_features,
    maximise_exact_likelihood,
    maximise_likelihood_by_solves,
    sample_prior,
)
from mcmcpost.solve import (
    AbstractIterativeSolver,
    Cholesky,
    ConjugateGradients,
    Outcome,
    Solver,
    factorise,
    solve,
)
from mcmcpost.solve.search import (
    KERNEL_MEMORY,
    LBFGS,
    AbstractScale,
    Hyperparameters,
    Packing,
    Softplus,
)
from mcmcpost.stein import AbstractKernel, gram
from mcmcpost.stein.products import KernelTile, Regularised, TileOperator, kernel_operator

DENSE_LIMIT = 10_000
"""Rows up to which a fit is exact by default.

Its six n×n matrices then take five gigabytes. At 13,500 rows a step takes 2.3 times as long as one
of conjugate gradients, but L-BFGS ends at the optimum, where a hundred steps of Adam need not
(docs/results/gaussian_processes.md).
"""

FACTOR_LIMIT = 12_500
"""Rows up to which one factorisation, with its four n×n matrices, takes no more memory than
that."""

RANK = 500
"""Rank of the preconditioner: half the time of rank 100 at n = 15,000 (``benchmarks.gp.iterative_gp
--ranks``)."""


def choose_solver(n: int) -> Solver:
    """Return Cholesky up to 10,000 rows and conjugate gradients beyond, whatever the machine and
    its load."""
    return Cholesky() if n <= DENSE_LIMIT else ConjugateGradients(rtol=1e-2, budget=200, rank=RANK)


class SubsetStart(eqx.Module):
    """Fit exactly to the nearest neighbours of random rows, several times, and start at the mean of
    the fits.

    Lin et al. (2024), Appendix B, after Lin et al. (2023).

    num_subsets : fits to average. size : rows of each. num_steps : of L-BFGS.
    """

    num_subsets: int = 10
    size: int = 2_000
    num_steps: int = 30

    def __check_init__(self) -> None:
        for name in ("num_subsets", "size", "num_steps"):
            check_count("SubsetStart", name, getattr(self, name), "Use more.")


def start_on_subsets(
    kernel: AbstractKernel,
    noise: float,
    X: Float[np.ndarray, "m d"],
    y: Float[np.ndarray, " m"],
    choice: SubsetStart,
    scale: AbstractScale,
    key: jax.Array,
) -> tuple[AbstractKernel, float]:
    """Return kernel and noise at the mean of the optima of the subsets, as unconstrained
    parameters."""
    start = Hyperparameters(kernel, noise)
    packing = Packing(start, scale, relative=True)
    size = min(choice.size, len(X))
    # Distinct centres: two equal subsets would count one fit twice.
    centres = jax.random.choice(key, len(X), (min(choice.num_subsets, len(X)),), replace=False)
    optimiser = LBFGS(choice.num_steps, memory=KERNEL_MEMORY)
    ends = []
    for centre in np.asarray(centres):
        distance = np.sum((X - X[centre]) ** 2, axis=1)
        rows = np.argpartition(distance, size - 1)[:size]
        fit = maximise_exact_likelihood(
            kernel, noise, X[rows], y[rows], scale=scale, optimiser=optimiser
        )
        # Averaged as unconstrained parameters, where a mean of positive numbers stays positive.
        ends.append(packing.pack(Hyperparameters(fit.kernel, fit.noise)))
    mean = jax.tree.map(np.asarray, packing.unpack(jnp.asarray(np.mean(ends, axis=0))))
    return mean.kernel, float(mean.noise)


EXACT_RTOL = 1e-6

CHUNK = 512
"""New rows whose exact variances are solved for together."""


class FittedIterativeGP(eqx.Module):
    """What `IterativeGP.fit` returns; kernel and noise are those of outputs of unit variance.

    mean_weights : (m,) H⁻¹y. sample_weights : (m, s) H⁻¹(f_j(X) + ε_j), None without random
        features.
    factor : (m, m) Cholesky factor of H after an exact fit, else None.
    sampler, key_data, key_kind : of the prior samples f_j.
    info : JSON-able facts: solver, outcome, residuals, epochs, parameters along the way;
        `fallback`, what conjugate gradients reached before Cholesky took their place.
    """

    training: Training
    kernel: AbstractKernel
    noise: float
    solver: Solver
    sampler: Pathwise
    mean_weights: Float[np.ndarray, " m"]
    sample_weights: Float[np.ndarray, "m s"] | None
    factor: Float[np.ndarray, "m m"] | None
    key_data: np.ndarray
    key_kind: str = eqx.field(static=True)
    info: dict[str, Any]

    def predict(self, X: object, *, noise: bool = True, exact_variance: bool = False) -> Prediction:
        """Return the posterior mean and variance at X (n, d), in units of y and y².

        After an exact fit the variance is exact. After an iterative one it is the mean square of
        the posterior samples about the mean, with relative error √(2/s); `exact_variance` solves
        one more system per row of X, to a relative residual of 1e-6 or the solver's own if that is
        smaller. What is left of it enters to second order and can only enlarge the variance: with c
        = k(X, x), v ≈ H⁻¹c is used as 2vᵀc − vᵀHv ≤ cᵀH⁻¹c.

        noise : whether the variance includes that of a new observation.

        Warns
        -----
        UserWarning : solves of an exact variance that ended before their tolerance.
        """
        check_flags("FittedIterativeGP.predict", noise=noise, exact_variance=exact_variance)
        points = check_inputs("FittedIterativeGP.predict", X, self.training.X.shape[1])
        mean, variance = map(np.asarray, in_float64(self._predict)(points, exact_variance))
        scale, centre = self.training.scale, self.training.centre
        return Prediction(
            centre + scale * mean, scale**2 * (variance + (self.noise if noise else 0.0))
        )

    def sample(self, X: object) -> Float[np.ndarray, "n s"]:
        """Return s posterior functions at X (n, d), without noise; the same functions at every
        call.

        Pathwise conditioning (Wilson et al. 2021): f_j(x) + k(x, X)H⁻¹(y − f_j(X) − ε_j), at no
        further solve.
        """
        points = check_inputs("FittedIterativeGP.sample", X, self.training.X.shape[1])
        if self.sample_weights is None:
            kind = type(self.kernel).__name__
            raise InputError(
                "FittedIterativeGP.sample", "a kernel with random features", kind, "Use predict."
            )
        samples = in_float64(self._samples)(points)
        return np.asarray(self.training.centre + self.training.scale * samples)

    @property
    def _key(self) -> jax.Array:
        return jax.random.wrap_key_data(jnp.asarray(self.key_data), impl=self.key_kind)

    def _samples(self, points: np.ndarray) -> Array:
        assert self.sample_weights is not None
        # k(x, X)H⁻¹(y − f_j − ε_j): one product with the difference of the weights serves all
        # samples.
        weights = jnp.asarray(self.mean_weights[:, None] - self.sample_weights)
        train, new = jnp.asarray(self.training.X), jnp.asarray(points)
        return _posterior_samples(self.kernel, self.sampler, self._key, train, weights, new)

    def _predict(self, points: np.ndarray, exact_variance: bool) -> tuple[np.ndarray, np.ndarray]:
        weights = jnp.asarray(self.mean_weights[:, None])
        mean = np.asarray(
            _cross(self.kernel, jnp.asarray(self.training.X), jnp.asarray(points), weights)
        )[:, 0]
        if self.factor is not None or exact_variance or self.sample_weights is None:
            parts = [
                self._exact_variance(points[i : i + CHUNK]) for i in range(0, len(points), CHUNK)
            ]
            return mean, np.concatenate(parts)
        return mean, np.mean((np.asarray(self._samples(points)) - mean[:, None]) ** 2, axis=1)

    def _exact_variance(self, points: np.ndarray) -> np.ndarray:
        train = jnp.asarray(self.training.X)
        cross, prior = _covariances(self.kernel, train, jnp.asarray(points))
        if self.factor is not None:
            explained = _explained(jnp.asarray(self.factor), cross)
        else:
            system = Regularised(kernel_operator(self.kernel, train), jnp.asarray(self.noise))
            assert isinstance(self.solver, AbstractIterativeSolver)
            tight = dataclasses.replace(self.solver, rtol=min(self.solver.rtol, EXACT_RTOL))
            solution = solve(system, cross, tight, key=self._key)
            if int(solution.outcome) != Outcome.CONVERGED:
                worst = float(solution.residual_norms.max())
                how = f"{Outcome(int(solution.outcome)).name.lower()} at {worst:.1g}"
                wanted = f"exact variances, solved to {tight.rtol:g}"
                cure = (
                    "They are too large. Give the solver more budget or rank, or use sampled "
                    "variances."
                )
                warn(fault("FittedIterativeGP.predict", wanted, how, cure))
            # vᵀc + vᵀr with r = c − Hv, which is the 2vᵀc − vᵀHv of the docstring without another
            # product.
            explained = jnp.sum(solution.value * (cross + solution.residual), axis=0)
        return np.maximum(np.asarray(prior) - np.asarray(explained), 0)


@eqx.filter_jit
def _cross(
    kernel: AbstractKernel,
    train: Float[Array, "m d"],
    points: Float[Array, "n d"],
    weights: Float[Array, "m k"],
) -> Float[Array, "n k"]:
    """Return k(points, train) times weights, tile by tile."""
    # The diagonal is not used: rows and columns of this product are different points.
    operator = TileOperator(KernelTile(kernel), train, jnp.ones(len(train), train.dtype))
    return operator.cross_matmul(points, weights)


@eqx.filter_jit
def _posterior_samples(
    kernel: AbstractKernel,
    sampler: Pathwise,
    key: jax.Array,
    train: Float[Array, "m d"],
    weights: Float[Array, "m s"],
    points: Float[Array, "n d"],
) -> Float[Array, "n s"]:
    prior_key, _ = jax.random.split(key)  # as Pathwise.targets splits it
    # The features of the search again, from the same key: `sample_weights` solve for these f_j.
    number = weights.shape[1]
    prior = sample_prior(
        kernel, prior_key, num_features=sampler.num_features, num_samples=number, like=points
    )
    return prior(points) + _cross(kernel, train, points, weights)


@eqx.filter_jit
def _covariances(
    kernel: AbstractKernel, train: Float[Array, "m d"], points: Float[Array, "n d"]
) -> tuple[Float[Array, "m n"], Float[Array, " n"]]:
    """Return k(train, points) and the prior variance at points."""
    return gram(kernel, train, points), jax.vmap(lambda x: gram(kernel, x[None])[0, 0])(points)


@eqx.filter_jit
def _explained(factor: Float[Array, "m m"], cross: Float[Array, "m n"]) -> Float[Array, " n"]:
    return jnp.sum(solve_triangular(factor, cross, lower=True) ** 2, axis=0)


@eqx.filter_jit
def _targets(
    sampler: Pathwise,
    kernel: AbstractKernel,
    noise: Float[Array, ""],
    X: Float[Array, "m d"],
    key: jax.Array,
) -> Float[Array, "m s"]:
    return sampler.targets(kernel, noise, X, key)


class IterativeGP(eqx.Module):
    """y = f(x) + ε, f ~ GP(c, k), ε ~ N(0, noise), with hyper-parameters by marginal likelihood.

    Up to 10,000 rows are fitted by Cholesky, the analytic gradient and L-BFGS; more by Adam on
    gradients from budgeted, warm-started solves of one block of right-hand sides, which also are
    posterior samples (Lin, Padhy, Antorán, Tripp, Terenin, Szepesvári, Hernández-Lobato and Janz
    2024, Algorithm 1 and section 3). The constant c is the mean of y, and everything is fitted to
    (y − c)/sd(y).

    Parameters
    ----------
    kernel : of (y − c)/sd(y); by default Matérn-3/2 with one lengthscale per coordinate, started at
        its standard deviation, and amplitude 1.
    noise : variance, in units of the variance of y; start or fixed value.
    optimise : whether to fit kernel and noise, or to take them as given.
    solver : by default Cholesky up to 10,000 rows, and conjugate gradients beyond. If these do not
        converge at the last hyper-parameters, Cholesky takes their place up to 12,500 rows, where
        it fits in memory. The tolerance of an iterative solver is relative to y. With little noise,
        lower its `rtol`: a residual of 0.01 can be as large as the posterior standard deviation.
    estimator : of the gradient where the solver is iterative; `Pathwise()` by default, or
        `Standard()` for a kernel without random features.
    scale : the map from unconstrained to positive parameters, `Softplus()` (the default) or
        `Log()`.
    learning_rate : of Adam. num_steps : of Adam or L-BFGS.
    warm_start : start each solve at the last one's solution.
    precision : of an iterative search for hyper-parameters, ``"float64"`` or ``"float32"``, whose
        steps take about half the time; what the process is conditioned on is always solved in
        double precision.
    subset_start : start at the mean of exact fits to subsets of the data, for data too large for
        many steps.
    progress : show a progress bar, on a terminal only.
    """

    kernel: AbstractKernel | None = None
    noise: float = eqx.field(converter=as_number, default=1.0)
    optimise: bool = True
    solver: Solver | None = None
    estimator: AbstractEstimator | None = None
    scale: AbstractScale | None = None
    learning_rate: float = eqx.field(converter=as_number, default=0.1)
    num_steps: int = 100
    warm_start: bool = True
    precision: str = "float64"
    subset_start: SubsetStart | None = None
    progress: bool = False

    def __check_init__(self) -> None:
        check_number("IterativeGP", "noise", self.noise, "It is relative to var(y).")
        check_number("IterativeGP", "learning_rate", self.learning_rate, "Use 0.1.")
        check_flags(
            "IterativeGP",
            optimise=self.optimise,
            warm_start=self.warm_start,
            progress=self.progress,
        )
        if self.precision not in ("float32", "float64"):
            got = repr(self.precision)
            raise InputError("IterativeGP", "`precision` float32 or float64", got, "Use float64.")
        check_count("IterativeGP", "num_steps", self.num_steps, "Or optimise=False.")
        solvers = (Cholesky, AbstractIterativeSolver, None)
        check_kind(
            "IterativeGP", "kernel", self.kernel, (AbstractKernel, None), "Such as Matern32()."
        )
        check_kind("IterativeGP", "solver", self.solver, solvers, "Such as ConjugateGradients().")
        check_kind(
            "IterativeGP",
            "estimator",
            self.estimator,
            (AbstractEstimator, None),
            "Such as Pathwise().",
        )
        check_kind("IterativeGP", "scale", self.scale, (AbstractScale, None), "Such as Softplus().")
        check_kind(
            "IterativeGP",
            "subset_start",
            self.subset_start,
            (SubsetStart, None),
            "Such as SubsetStart().",
        )

    def fit(self, X: object, y: object, *, key: jax.Array | None = None) -> FittedIterativeGP:
        """Return the process fitted to X (m, d) and y (m,).

        key : of probes, samples and random solvers; ``jax.random.key(0)`` by default, so that a fit
            repeats.

        Raises
        ------
        TypeError, ValueError : data that cannot be fitted (shapes, NaN rows, fewer than two rows).

        Warns
        -----
        UserWarning : the last solves ended before their tolerance.
        """
        training = check_training("IterativeGP.fit", X, y)
        check_key("IterativeGP.fit", key, optional=True)
        fitted = in_float64(self._fit)(training, jax.random.key(0) if key is None else key)
        if (
            isinstance(fitted.solver, AbstractIterativeSolver)
            and fitted.info["outcome"] != "converged"
        ):
            wanted = f"solves to a residual of {fitted.solver.rtol:g}"
            how = f"{fitted.info['outcome']} at {fitted.info['residual']:.1g}"
            cure = (
                "Mean and samples are off by more than they say. Give the solver more budget or "
                "rank, or Cholesky()."
            )
            warn(fault("IterativeGP.fit", wanted, how, cure))
        return fitted

    def _fit(self, training: Training, key: jax.Array) -> FittedIterativeGP:
        X, y = training.X, training.outputs
        kernel, noise = default_kernel(X) if self.kernel is None else self.kernel, self.noise
        info: dict[str, Any] = {}
        solver = choose_solver(len(X)) if self.solver is None else self.solver
        # The subsets have a key of their own, so that the probes are the same with and without
        # them.
        subset_key, fit_key = jax.random.split(key)
        likelihood_fit: LikelihoodFit | None = None
        if self.optimise:
            if self.subset_start is not None:
                kernel, noise = start_on_subsets(
                    kernel, noise, X, y, self.subset_start, self._scale, subset_key
                )
            likelihood_fit = self._search(kernel, noise, X, y, solver, fit_key)
            kernel, noise = (
                jax.tree.map(lambda leaf: np.asarray(leaf, float), likelihood_fit.kernel),
                likelihood_fit.noise,
            )
            info["history"] = {
                name: values.tolist() for name, values in likelihood_fit.history.items()
            }
        fitted = self._condition(training, kernel, noise, solver, fit_key, likelihood_fit, info)
        # Only a solver that was chosen here is replaced; one that the user named is kept and warned
        # of.
        if (
            self.solver is not None
            or "residual" not in fitted.info
            or fitted.info["outcome"] == "converged"
        ):
            return fitted
        if len(X) > FACTOR_LIMIT:
            return fitted
        # What the iteration reached is kept in `info`: Cholesky's result alone would not say that
        # it failed.
        reached = {
            name: fitted.info[name]
            for name in ("solver", "outcome", "residual", "probe_residual", "epochs")
        }
        return self._condition(
            training, kernel, noise, Cholesky(), fit_key, None, info | {"fallback": reached}
        )

    def _search(
        self,
        kernel: AbstractKernel,
        noise: float,
        X: np.ndarray,
        y: np.ndarray,
        solver: Solver,
        key: jax.Array,
    ) -> LikelihoodFit:
        if isinstance(solver, Cholesky):
            optimiser = LBFGS(self.num_steps, memory=KERNEL_MEMORY)
            return maximise_exact_likelihood(
                kernel, noise, X, y, scale=self._scale, optimiser=optimiser
            )
        if self.precision == "float32" and has_random_features(kernel):
            # stationary: only distances count, whose digits single precision must keep
            X = X - X.mean(axis=0)
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
        likelihood_fit: LikelihoodFit | None,
        info: dict[str, Any],
    ) -> FittedIterativeGP:
        """Solve for the mean and the samples at the final parameters."""
        X, y = jax.device_put((training.X, training.outputs))
        # The probes of the search were those of this key: their solutions are first guesses here.
        sample_key, solver_key = jax.random.split(key)
        sampler = self._sampler(kernel)
        probes = 0
        right = y[:, None]
        if has_random_features(kernel):
            targets = _targets(sampler, kernel, jnp.asarray(noise), X, sample_key)
            right, probes = jnp.concatenate([right, targets], axis=1), targets.shape[1]
        factor = None
        # The nugget that factorisation needed is noise of the model from here on, also in
        # predictions.
        if isinstance(solver, Cholesky):
            factorisation = factorise(gram(kernel, X), jnp.ones(len(y)), jnp.asarray(noise))
            factor, noise = factorisation.lower, float(factorisation.nugget)
            if bool(jnp.isnan(factor[-1, -1])):
                wanted = "a positive definite covariance"
                raise InputError(
                    "IterativeGP.fit", wanted, f"none up to noise {noise:g}", "Raise `noise`."
                )
            solved = cho_solve((factor, True), right)
            facts: dict[str, Any] = {
                "outcome": "jittered" if bool(factorisation.raised) else "converged"
            }
        else:
            initial = None
            if likelihood_fit is not None and likelihood_fit.solved is not None:
                # A guess for y whatever the probes; solutions of other probes say nothing of these.
                initial = jnp.zeros_like(right).at[:, 0].set(likelihood_fit.solved[:, 0])
                # A search in single precision drew its probes in that precision: they are not these
                # samples.
                if sampler == self._estimator(kernel) and self.precision == "float64":
                    initial = jnp.asarray(likelihood_fit.solved)  # of these very samples
            system = Regularised(kernel_operator(kernel, X), jnp.asarray(noise))
            solution = solve(system, right, solver, initial=initial, probes=probes, key=solver_key)
            solved = solution.value
            facts = {
                "outcome": Outcome(int(solution.outcome)).name.lower(),
                "residual": float(solution.residual_norms[0]),
                "probe_residual": float(jnp.mean(solution.residual_norms[1:])) if probes else 0.0,
                "epochs": float(solution.epochs)
                + float(np.sum(likelihood_fit.history["epochs"]) if likelihood_fit else 0.0),
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
            str(jax.random.key_impl(sample_key)),
            info | {"solver": type(solver).__name__} | facts,
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
