"""Computation-aware Gaussian processes, whose variance includes the uncertainty from limited
computation.

The posterior given the actions and the objective of the training stand first, then the process that
is fitted.
"""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from mcmcpost.core.arguments import check_count, check_flags, check_key, check_kind, check_number
from mcmcpost.core.errors import InputError
from mcmcpost.core.precision import in_float64
from mcmcpost.gp.actions import (
    AbstractActions,
    AbstractChooser,
    AbstractPolicy,
    ActionTask,
    BlockActions,
    DenseActions,
    Planned,
    take_actions,
)
from mcmcpost.gp.data import Prediction, Training, check_inputs, check_training, default_kernel
from mcmcpost.solve import factorise, sampling_factor
from mcmcpost.solve.search import (
    LBFGS,
    AbstractOptimiser,
    Packing,
    TrainingProblem,
    TrainingRecord,
    is_positive,
    join_records,
    share,
)
from mcmcpost.stein import AbstractKernel, gram


class Projection(NamedTuple):
    """The data projected on normalised actions S′, and the posterior weights.

    actions : S′ (n, i).
    image : (n, i), K S′. inner : (i, i), S′ᵀK S′. metric : (i, i), S′ᵀS′, with 1 for a zero column.
    lower : (i, i), factor of S′ᵀ(K + σ²I)S′. weights : (i,), ṽ = (S′ᵀ(K + σ²I)S′)⁻¹S′ᵀy.
    rank : how many actions are linearly independent.
    nugget : added to the diagonal before factorisation. raised : whether it exceeds rounding.
    """

    actions: AbstractActions
    image: Float[Array, "n i"]
    inner: Float[Array, "i i"]
    metric: Float[Array, "i i"]
    lower: Float[Array, "i i"]
    weights: Float[Array, " i"]
    rank: Int[Array, ""]
    nugget: Float[Array, ""]
    raised: Bool[Array, ""]


@eqx.filter_jit
def condition(
    kernel: AbstractKernel,
    noise: Float[Array, ""],
    X: Float[Array, "n d"],
    outputs: Float[Array, " n"],
    actions: AbstractActions,
) -> Projection:
    """Condition on Sᵀy: Algorithm S2 of Wenger et al. (2024), on orthonormalised actions (their eq.
    7).

    The posterior depends on the span of S alone (Lemma S4). A direction that S lacks, because an
    action is zero or depends on others, becomes an observation of pure noise with value zero, which
    changes neither posterior nor bound. The system is then bounded below by σ² and needs no jitter
    beyond rounding.

    Parameters
    ----------
    noise : σ², positive. X : (n, d). outputs : (n,), of mean zero. actions : (n, i).
    """
    actions, dead = actions.normalised()
    image = actions.image(kernel, X)
    inner = actions.project(image)
    # Rounding makes the two triangles differ, and the Cholesky factor reads one of them.
    inner = 0.5 * (inner + inner.T)
    # A dead direction is zero in SᵀKS; the one here makes it an observation of variance σ², see
    # above.
    metric = actions.gram() + jnp.diag(dead.astype(inner.dtype))
    system = inner + noise * metric
    # The nugget is found without derivatives: the ladder is a `while_loop`, which has none in
    # reverse.
    fixed = jax.lax.stop_gradient(system)
    ones = jnp.ones(len(fixed), fixed.dtype)
    factor = factorise(fixed, ones, jnp.finfo(fixed.dtype).eps * jnp.mean(jnp.diagonal(fixed)))
    lower = jnp.linalg.cholesky(
        system + jax.lax.stop_gradient(factor.nugget) * jnp.eye(len(fixed), dtype=fixed.dtype)
    )
    weights = cho_solve((lower, True), actions.project(outputs[:, None])[:, 0])
    rank = jnp.sum(~dead)
    return Projection(
        actions, image, inner, metric, lower, weights, rank, factor.nugget, factor.raised
    )


@eqx.filter_jit
def predict(
    kernel: AbstractKernel, X: Float[Array, "n d"], projection: Projection, Z: Float[Array, "o d"]
) -> tuple[Float[Array, " o"], Float[Array, " o"]]:
    """Return the posterior mean (o,) and variance (o,) of the latent function at Z (o, d): eq.
    5."""
    # Section 5, Gaussian processes: k(x, X)S(SᵀK̂S)⁻¹Sᵀk(X, x) as a sum of squares in the factor.
    cross = projection.actions.cross(kernel, Z, X)
    explained = solve_triangular(projection.lower, cross.T, lower=True)
    return cross @ projection.weights, jnp.maximum(
        prior_variance(kernel, Z) - jnp.sum(explained**2, axis=0), 0
    )


@eqx.filter_jit
def joint_covariance(
    kernel: AbstractKernel, X: Float[Array, "n d"], projection: Projection, Z: Float[Array, "o d"]
) -> Float[Array, "o o"]:
    """Return the posterior covariance (o, o) of the latent function at Z (o, d): eq. 5."""
    explained = solve_triangular(
        projection.lower, projection.actions.cross(kernel, Z, X).T, lower=True
    )
    return gram(kernel, Z) - explained.T @ explained


def prior_variance(kernel: AbstractKernel, Z: Float[Array, "o d"]) -> Float[Array, " o"]:
    """Return k(z, z), (o,)."""
    return jax.vmap(lambda z: gram(kernel, z[None])[0, 0])(Z)


class AbstractObjective(eqx.Module):
    """A loss of kernel, noise and actions."""

    @abc.abstractmethod
    def __call__(
        self,
        kernel: AbstractKernel,
        noise: Float[Array, ""],
        X: Float[Array, "n d"],
        outputs: Float[Array, " n"],
        actions: AbstractActions,
    ) -> Float[Array, ""]:
        """Return the loss in nats, of all data together; differentiable in kernel, noise and
        actions."""


class EvidenceBound(AbstractObjective):
    """−ELBO = NLL + KL(q‖p) ≥ NLL, q the computation-aware posterior: eq. 11 of Wenger et al.
    (2024).

    ½[(‖y − K S ṽ‖² + Σ_j K_i(x_j, x_j))/σ² + (n − i) log σ² + n log 2π + ṽᵀSᵀKSṽ −
    tr((SᵀK̂S)⁻¹SᵀKS) + log det SᵀK̂S − log det SᵀS].
    """

    @eqx.filter_jit
    def __call__(
        self,
        kernel: AbstractKernel,
        noise: Float[Array, ""],
        X: Float[Array, "n d"],
        outputs: Float[Array, " n"],
        actions: AbstractActions,
    ) -> Float[Array, ""]:
        p = condition(kernel, noise, X, outputs, actions)
        n, i = p.image.shape
        # Σ_j K_i(x_j, x_j) = tr K − tr(SᵀKKS(SᵀK̂S)⁻¹); rounding can take it below zero, the bound
        # with it.
        explained = solve_triangular(p.lower, p.image.T, lower=True)
        spread = jnp.maximum(jnp.sum(prior_variance(kernel, X)) - jnp.sum(explained**2), 0)
        misfit = jnp.sum((outputs - p.image @ p.weights) ** 2)
        shrinkage = jnp.trace(cho_solve((p.lower, True), p.inner))
        fit = (misfit + spread) / noise + (n - i) * jnp.log(noise) + n * jnp.log(2 * jnp.pi)
        complexity = p.weights @ p.inner @ p.weights - shrinkage
        # With orthonormal actions log det SᵀS is zero, and its derivative in the entries is not.
        return 0.5 * (fit + complexity + _log_volume(p.lower, p.metric))


def _log_volume(lower: Float[Array, "i i"], metric: Float[Array, "i i"]) -> Float[Array, ""]:
    """Return log det LLᵀ − log det of the metric."""
    reference = jnp.linalg.cholesky(metric)
    return 2 * jnp.sum(jnp.log(jnp.diagonal(lower)) - jnp.log(jnp.diagonal(reference)))


TRAINING_RANGE = np.exp(7.0)
"""Parameters of the kernel stay within this factor of their start, 1,100."""

NOISE_BOUNDS = (1e-6, 1e2)
"""Bounds of the noise variance, for outputs of variance one."""

ACTION_UNIT = 10.0
"""Unit of actions in L-BFGS, relative to the root mean square of their entries.

On 1,500 rows of pol with 64 actions the loss per datum after 60 steps is 0.33 with 1, 0.23 with 3
and 0.205 with 10 to 100.
"""


class Model(NamedTuple):
    """A kernel, a noise variance σ² and actions."""

    kernel: Any
    noise: Any
    actions: Any


def train(
    model: Model,
    X: Float[Array, "n d"],
    outputs: Float[Array, " n"],
    objective: AbstractObjective,
    optimiser: AbstractOptimiser,
    *,
    hyper: bool,
    actions: bool,
) -> tuple[Model, TrainingRecord]:
    """Minimise the objective over the kernel parameters and the noise (`hyper`) and over the
    `actions`."""
    free = Model(
        is_positive if hyper else False, hyper, eqx.is_inexact_array_like if actions else False
    )
    # Entries of actions have either sign: only kernel and noise go through the logarithm.
    packing = Packing(model, free=free, positive=Model(True, True, False))
    start = packing.pack(model)
    bounds, units = packing.box(start, TRAINING_RANGE), np.ones(start.size)
    # Without a floor the bound divides by a noise of zero. No ceiling: where every bound is finite
    # SciPy's first step may run to a corner of the box.
    bounds[packing.where(Model(False, True, False))] = np.log(NOISE_BOUNDS[0]), np.inf
    entries = packing.where(Model(False, False, True))
    if actions:
        # L-BFGS starts as steepest descent: its step in n entries must not be that of a few log
        # parameters.
        units[entries] = ACTION_UNIT * (np.sqrt(np.mean(start[entries] ** 2)) or 1.0)

    def loss(x: Float[np.ndarray, " h"]) -> tuple[Float[Array, ""], Float[Array, " h"]]:
        return _value_and_slope(objective, packing, jnp.asarray(x), X, outputs)

    best, record = optimiser.minimise(TrainingProblem(loss, start, bounds, units, len(outputs)))
    trained: Model = packing.unpack(jnp.asarray(best))
    return trained, record


@eqx.filter_jit
def _value_and_slope(
    objective: AbstractObjective,
    packing: Packing,
    x: Float[Array, " h"],
    X: Float[Array, "n d"],
    outputs: Float[Array, " n"],
) -> tuple[Float[Array, ""], Float[Array, " h"]]:
    def loss(x: Float[Array, " h"]) -> Float[Array, ""]:
        model = packing.unpack(x)
        return objective(model.kernel, model.noise, X, outputs, model.actions)

    return jax.value_and_grad(loss)(x)


SPLIT_LIMIT = 8_192
"""Training rows up to which the exact posterior is computed, for the split of the variance: 0.5
GB."""


class SplitPrediction(NamedTuple):
    """The posterior with its variance in two parts.

    mean : (n,). mathematical : (n,), the variance of the exact posterior, from limited data.
    computational : (n,), the additional variance from limited computation. combined : (n,), their
    sum, the variance of `predict`.
    """

    mean: Float[np.ndarray, " n"]
    mathematical: Float[np.ndarray, " n"]
    computational: Float[np.ndarray, " n"]
    combined: Float[np.ndarray, " n"]


class FittedComputationAwareGP(eqx.Module):
    """A computation-aware process and its data.

    kernel, noise : in units of standardised outputs, y = centre + scale·output.
    projection : the data projected on the actions: `rank` of `num_actions` are independent;
        `nugget` was added to the projected system, `raised` where that is more than rounding.
    record : how training went.
    """

    kernel: AbstractKernel
    noise: float
    projection: Projection
    record: TrainingRecord
    training: Training

    @property
    def num_actions(self) -> int:
        """Actions taken: the number asked for, or n where the data have fewer rows."""
        return self.projection.actions.num_actions

    def predict(self, X: object, *, noise: bool = True) -> Prediction:
        """Return mean and combined variance at X (n, d), in the units of y; the noise is included
        by default.

        Raises
        ------
        TypeError, ValueError : not numbers, not finite, or of other columns than the training
            inputs.
        """
        check_flags("predict", noise=noise)
        inputs = check_inputs("predict", X, self.training.X.shape[1])
        mean, variance = _predict(self.kernel, self.projection, self.training.X, inputs)
        return Prediction(self._mean(mean), self._variance(variance + self.noise * noise))

    def predict_split(self, X: object, *, noise: bool = True) -> SplitPrediction:
        """Return the variance at X (n, d) as mathematical plus computational; the noise is part of
        the mathematical.

        Needs the exact posterior, an n×n factorisation: for up to 8,192 training rows.

        Raises
        ------
        TypeError, ValueError : as `predict`; too many training rows.
        """
        rows = len(self.training.outputs)
        if rows > SPLIT_LIMIT:
            cure = "`predict` gives the combined variance."
            raise InputError("predict_split", f"at most {SPLIT_LIMIT} training rows", rows, cure)
        check_flags("predict_split", noise=noise)
        inputs = check_inputs("predict_split", X, self.training.X.shape[1])
        mean, combined = _predict(self.kernel, self.projection, self.training.X, inputs)
        exact = _exact_variance(self.kernel, np.asarray(self.noise), self.training.X, inputs)
        mathematical = self._variance(exact + self.noise * noise)
        # an exact zero may round below
        computational = self._variance(np.maximum(combined - exact, 0))
        return SplitPrediction(
            self._mean(mean), mathematical, computational, mathematical + computational
        )

    def sample(
        self, X: object, num_samples: int, *, key: PRNGKeyArray, noise: bool = False
    ) -> np.ndarray:
        """Return joint posterior samples (num_samples, n) of the latent function at X (n, d), or of
        y with noise.

        Raises
        ------
        TypeError, ValueError : as `predict`.
        """
        check_flags("sample", noise=noise)
        check_count("sample", "num_samples", num_samples, "Ask for some.")
        check_key("sample", key)
        inputs = check_inputs("sample", X, self.training.X.shape[1])
        added = np.asarray(self.noise * noise)
        mean, lower = _joint(self.kernel, self.projection, self.training.X, inputs, added)
        normal = in_float64(jax.random.normal)(key, (num_samples, len(inputs)))
        return self._mean(mean[None, :] + normal @ lower.T)

    def _mean(self, values: Any) -> np.ndarray:
        return self.training.centre + self.training.scale * values

    def _variance(self, values: Any) -> np.ndarray:
        return self.training.scale**2 * values


@in_float64
@eqx.filter_jit
def _predict(
    kernel: AbstractKernel,
    projection: Projection,
    X: Float[Array | np.ndarray, "m d"],
    Z: Float[Array | np.ndarray, "o d"],
) -> tuple[Float[Array, " o"], Float[Array, " o"]]:
    return predict(kernel, jnp.asarray(X), projection, jnp.asarray(Z))


@in_float64
@eqx.filter_jit
def _exact_variance(
    kernel: AbstractKernel,
    noise: Float[Array | np.ndarray, ""],
    X: Float[Array | np.ndarray, "m d"],
    Z: Float[Array | np.ndarray, "o d"],
) -> Float[Array, " o"]:
    points, inputs = jnp.asarray(X), jnp.asarray(Z)
    # The exact process at equal hyper-parameters, to which `combined` adds what was not computed.
    lower = jnp.linalg.cholesky(gram(kernel, points) + noise * jnp.eye(len(points)))
    explained = solve_triangular(lower, gram(kernel, points, inputs), lower=True)
    return jnp.maximum(prior_variance(kernel, inputs) - jnp.sum(explained**2, axis=0), 0)


@in_float64
@eqx.filter_jit
def _joint(
    kernel: AbstractKernel,
    projection: Projection,
    X: Float[Array | np.ndarray, "m d"],
    Z: Float[Array | np.ndarray, "o d"],
    noise: Float[Array | np.ndarray, ""],
) -> tuple[Float[Array, " o"], Float[Array, "o o"]]:
    """Return the mean and a Cholesky factor of the covariance, raised by rounding where it is
    singular."""
    points, inputs = jnp.asarray(X), jnp.asarray(Z)
    mean, _ = predict(kernel, points, projection, inputs)
    # One jitter for both: the covariance of what is sampled, noise included.
    covariance = joint_covariance(kernel, points, projection, inputs) + noise * jnp.eye(len(inputs))
    return mean, sampling_factor(covariance, jnp.mean(prior_variance(kernel, inputs)) + noise)


NUM_ACTIONS = 256

NOISE = 0.5
"""Noise at which training starts. Adam reaches a lower loss from here than from 0.1, L-BFGS the
same."""

ROUNDS = 5
"""How often training recomputes actions that depend on the hyper-parameters."""


class ComputationAwareGP(eqx.Module):
    """Gaussian-process regression on i linear combinations of the n data.

    The variance is that of the exact process plus the uncertainty about the n − i other directions.
    At equal hyper-parameters it is never below the exact one; with i = n independent actions they
    agree. A product costs n² kernel entries, memory is O(ni).

    Source: Wenger, Wu, Hennig, Gardner, Pleiss and Cunningham, Computation-Aware Gaussian Processes
    (NeurIPS 2024).

    Parameters
    ----------
    kernel : on the inputs as given, for outputs standardised to mean zero and variance one; where
        training starts. By default Matérn-3/2 with a lengthscale for each coordinate.
    noise : variance σ² of the observation noise in units of the standardised outputs; where
        training starts.
    num_actions : i, the budget; where there are fewer rows than that, one action per row, which is
        exact.
    policy : `BlockActions()` (default, learned), `ResidualActions()`, `UnitActions()`,
        `RandomActions()`, `GivenActions(matrix)`.
    objective : the loss of training, `EvidenceBound()` by default.
    optimiser : `LBFGS(...)` (default) or `Adam(...)`.
    optimise : whether kernel and noise are trained; entries of learned actions are in any case.
    """

    kernel: AbstractKernel | None = None
    noise: float = NOISE
    num_actions: int = NUM_ACTIONS
    policy: AbstractPolicy | None = None
    objective: AbstractObjective | None = None
    optimiser: AbstractOptimiser | None = None
    optimise: bool = True

    def __check_init__(self) -> None:
        low, high = NOISE_BOUNDS
        cure = "It is a variance, in units of outputs of variance one."
        check_number("ComputationAwareGP", "noise", self.noise, cure, inside=f"[{low:g}, {high:g}]")
        cure = "Without an action nothing is learned from the data."
        check_count("ComputationAwareGP", "num_actions", self.num_actions, cure)
        for name, kind, cure in (
            ("kernel", AbstractKernel, "Such as Matern32()."),
            ("policy", AbstractPolicy, "Such as UnitActions()."),
            ("objective", AbstractObjective, "Such as EvidenceBound()."),
            ("optimiser", AbstractOptimiser, "Such as LBFGS()."),
        ):
            check_kind("ComputationAwareGP", name, getattr(self, name), (kind, None), cure)
        check_flags("ComputationAwareGP", optimise=self.optimise)

    def fit(
        self, X: object, y: object, *, key: PRNGKeyArray | None = None
    ) -> FittedComputationAwareGP:
        """Return the process fitted to X (m, d) and y (m,); the key is needed by a random policy
        only.

        Raises
        ------
        TypeError, ValueError : data that are not numbers, not finite, of the wrong shape or fewer
            than two rows; a loss that is not finite at the start.
        """
        training = check_training("ComputationAwareGP", X, y)
        check_key("ComputationAwareGP", key, optional=True)
        kernel = default_kernel(training.X) if self.kernel is None else self.kernel
        model, projection, record = _fit(self, kernel, training, key)
        return FittedComputationAwareGP(
            model.kernel, float(model.noise), projection, record, training
        )


@in_float64
def _fit(
    gp: ComputationAwareGP, kernel: AbstractKernel, training: Training, key: PRNGKeyArray | None
) -> tuple[Model, Projection, TrainingRecord]:
    policy, objective, optimiser = (
        gp.policy or BlockActions(),
        gp.objective or EvidenceBound(),
        gp.optimiser or LBFGS(),
    )
    X, outputs = jax.device_put((training.X, training.outputs))
    # More actions than rows would be dependent; as many are the exact process.
    num_actions = min(gp.num_actions, len(outputs))
    chooser = policy.start(ActionTask(X, outputs, num_actions, key))
    model = Model(kernel, jnp.asarray(gp.noise), None)
    if isinstance(chooser, Planned):
        model = model._replace(actions=chooser.actions)
        model, record = train(
            model, X, outputs, objective, optimiser, hyper=gp.optimise, actions=policy.learned
        )
    else:

        def find(model: Model) -> AbstractActions:
            return _conjugate(model, X, outputs, chooser, num_actions)

        model, record = _train_in_rounds(
            model, X, outputs, objective, optimiser, find, hyper=gp.optimise
        )
    return model, condition(model.kernel, model.noise, X, outputs, model.actions), record


def _train_in_rounds(
    start: Model,
    X: Float[Array, "n d"],
    outputs: Float[Array, " n"],
    objective: AbstractObjective,
    optimiser: AbstractOptimiser,
    find: Callable[[Model], AbstractActions],
    *,
    hyper: bool,
) -> tuple[Model, TrainingRecord]:
    """Alternate between finding the actions at the current hyper-parameters and training these with
    actions held."""
    model, records = start, []
    # The gradient with actions held ignores how they follow the hyper-parameters: hence rounds.
    for _ in range(ROUNDS if hyper else 0):
        held = model._replace(actions=find(model))
        model, record = train(
            held, X, outputs, objective, share(optimiser, ROUNDS), hyper=True, actions=False
        )
        records.append(record)
    # Actions at the final hyper-parameters, and the loss there; nothing is free in this round.
    model, last = train(
        model._replace(actions=find(model)),
        X,
        outputs,
        objective,
        optimiser,
        hyper=False,
        actions=False,
    )
    return model, join_records([*records, last])


def _conjugate(
    model: Model,
    X: Float[Array, "n d"],
    outputs: Float[Array, " n"],
    chooser: AbstractChooser,
    num_actions: int,
) -> AbstractActions:
    """Return conjugate directions that span the actions of the iteration."""
    # Directions span what the actions span, and are conjugate already: `normalised` meets no near
    # dependence.
    return DenseActions(
        take_actions(model.kernel, model.noise, X, outputs, chooser, num_actions).directions
    )
