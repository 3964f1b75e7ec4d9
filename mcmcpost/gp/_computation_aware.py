"""Computation-aware Gaussian processes: what a limited budget leaves unknown is in the variance."""

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from mcmcpost._checks import check_count, check_kind, fault, in_float64
from mcmcpost.gp._actions import AbstractActions, DenseActions
from mcmcpost.gp._computation_aware_fitted import FittedComputationAwareGP
from mcmcpost.gp._computation_aware_posterior import Projection, condition
from mcmcpost.gp._data import Training, check_training, default_kernel
from mcmcpost.gp._elbo import AbstractObjective, EvidenceBound
from mcmcpost.gp._iterative_posterior import AbstractChooser, iterate
from mcmcpost.gp._model import NOISE_BOUNDS, Model, train
from mcmcpost.gp._policies import AbstractPolicy, ActionTask, BlockActions, Planned
from mcmcpost.gp._training import LBFGS, AbstractOptimiser, TrainingRecord, join_records, share
from mcmcpost.kernels import AbstractKernel

NUM_ACTIONS = 256
NOISE = 0.5
"""Where training starts: Adam gets further from here than from 0.1, L-BFGS as far."""
ROUNDS = 5
"""Times that actions which depend on the hyper-parameters are found anew in training."""


class ComputationAwareGP(eqx.Module):
    """Gaussian-process regression on i linear combinations of n data, honest about the rest.

    The variance is that of the exact process plus what the n − i unseen directions leave open, so it is never below
    the exact one at equal hyper-parameters; with i = n independent actions they agree. A product costs n² kernel
    entries, memory is O(ni). Wenger, Wu, Hennig, Gardner, Pleiss and Cunningham, Computation-Aware Gaussian Processes
    (NeurIPS 2024).

    Parameters
    ----------
    kernel : on the inputs as given, for outputs standardised to mean zero and variance one; where training starts. By
        default Matérn-3/2 with a lengthscale for each coordinate.
    noise : variance σ² of the observation noise in units of the standardised outputs; where training starts.
    num_actions : i, the budget; where there are fewer rows than that, one action per row, which is exact.
    policy : `BlockActions()` (default, learned), `ResidualActions()`, `UnitActions()`, `RandomActions()`,
        `GivenActions(matrix)`.
    objective : `EvidenceBound()` (default) or `ProjectedLikelihood()`.
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
        if not low <= self.noise <= high:
            cure = "It is a variance, in units of outputs of variance one."
            raise ValueError(fault("ComputationAwareGP", f"`noise` from {low:g} to {high:g}", self.noise, cure))
        cure = "Without an action nothing is learned from the data."
        check_count("ComputationAwareGP", "num_actions", self.num_actions, cure)
        check_kind("ComputationAwareGP", "kernel", self.kernel, (AbstractKernel, type(None)), "Such as Matern32().")
        check_kind("ComputationAwareGP", "policy", self.policy, (AbstractPolicy, type(None)), "Such as UnitActions().")

    def fit(self, X: object, y: object, *, key: PRNGKeyArray | None = None) -> FittedComputationAwareGP:
        """Return the process fitted to X (m, d) and y (m,); the key is needed by a random policy only.

        Raises
        ------
        TypeError, ValueError : data that are not numbers, not finite, of the wrong shape or fewer than two rows; a loss
            that is not finite at the start.
        """
        training = check_training("ComputationAwareGP", X, y)
        kernel = default_kernel(training.X) if self.kernel is None else self.kernel
        model, projection, record = _fit(self, kernel, training, key)
        return FittedComputationAwareGP(model.kernel, float(model.noise), projection, record, training)


@in_float64
def _fit(
    gp: ComputationAwareGP, kernel: AbstractKernel, training: Training, key: PRNGKeyArray | None
) -> tuple[Model, Projection, TrainingRecord]:
    policy, objective, optimiser = gp.policy or BlockActions(), gp.objective or EvidenceBound(), gp.optimiser or LBFGS()
    X, outputs = jnp.asarray(training.X), jnp.asarray(training.outputs)
    num_actions = min(gp.num_actions, len(outputs))
    chooser = policy.start(ActionTask(X, outputs, num_actions, key))
    model = Model(kernel, jnp.asarray(gp.noise), None)
    if isinstance(chooser, Planned):
        model = model._replace(actions=chooser.actions)
        model, record = train(model, X, outputs, objective, optimiser, hyper=gp.optimise, actions=policy.learned)
    else:

        def find(model: Model) -> AbstractActions:
            return _conjugate(model, X, outputs, chooser, num_actions)

        model, record = _train_in_rounds(model, X, outputs, objective, optimiser, find, hyper=gp.optimise)
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
    """Alternate between finding the actions at the current hyper-parameters and training these with actions held."""
    model, records = start, []
    for _ in range(ROUNDS if hyper else 0):
        held = model._replace(actions=find(model))
        model, record = train(held, X, outputs, objective, share(optimiser, ROUNDS), hyper=True, actions=False)
        records.append(record)
    model, last = train(
        model._replace(actions=find(model)), X, outputs, objective, optimiser, hyper=False, actions=False
    )
    return model, join_records([*records, last])


def _conjugate(
    model: Model, X: Float[Array, "n d"], outputs: Float[Array, " n"], chooser: AbstractChooser, num_actions: int
) -> AbstractActions:
    """Return conjugate directions that span the actions of the iteration."""
    return DenseActions(iterate(model.kernel, model.noise, X, outputs, chooser, num_actions).directions)
