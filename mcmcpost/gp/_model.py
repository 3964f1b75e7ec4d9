"""What training may move: kernel parameters and noise on log scale, actions as they are."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from mcmcpost.gp._elbo import AbstractObjective
from mcmcpost.gp._training import AbstractOptimiser, TrainingProblem, TrainingRecord, TrainingStatus
from mcmcpost.hyper import is_positive

RANGE = 7.0
"""Log parameters stay within this of their start, a factor of 1,100."""
NOISE_BOUNDS = (1e-6, 1e2)
"""In units of outputs of variance one."""
ACTION_UNIT = 10.0
"""Of L-BFGS, relative to the entries' root mean square: on 1,500 rows of pol with 64 actions the loss per datum after
60 steps is .33 with 1, .23 with 3, .205 with 10 to 100."""


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
    """Minimise the objective over the positive kernel parameters and the noise, if `hyper`, and the actions, if so."""
    marks = Model(
        jax.tree.map(lambda leaf: hyper and is_positive(leaf), model.kernel),
        hyper,
        jax.tree.map(lambda leaf: actions and eqx.is_inexact_array_like(leaf), model.actions),
    )
    free, held = eqx.partition(model, marks)
    begin = _logarithms(free)
    x, restore = ravel_pytree(begin)
    if not x.size:
        value, _ = _value_and_slope(objective, begin, held, X, outputs)
        return model, TrainingRecord(TrainingStatus.FIXED, float(value), np.asarray(value)[None], 0, 0, 0.0)
    logs = ravel_pytree(begin._replace(actions=None))[0]
    units, bounds = np.ones(x.size), np.full((x.size, 2), [-np.inf, np.inf])
    if actions:
        units[logs.size :] = ACTION_UNIT * (np.sqrt(np.mean(np.asarray(x)[logs.size :] ** 2)) or 1.0)
    bounds[: logs.size] = np.asarray(logs)[:, None] + np.array([-RANGE, RANGE])
    if hyper:
        bounds[logs.size - 1] = np.log(NOISE_BOUNDS[0]), np.inf

    def loss(x: Float[np.ndarray, " h"]) -> tuple[float, Float[np.ndarray, " h"]]:
        value, slope = _value_and_slope(objective, restore(jnp.asarray(x)), held, X, outputs)
        return float(value), np.asarray(ravel_pytree(slope)[0])

    best, record = optimiser.minimise(TrainingProblem(loss, np.asarray(x), bounds, units, len(outputs)))
    return _exponentials(restore(jnp.asarray(best)), held), record


@eqx.filter_jit
def _value_and_slope(
    objective: AbstractObjective, free: Model, held: Model, X: Float[Array, "n d"], outputs: Float[Array, " n"]
) -> tuple[Float[Array, ""], Model]:
    @eqx.filter_value_and_grad
    def loss(free: Model) -> Float[Array, ""]:
        model = _exponentials(free, held)
        return objective(model.kernel, model.noise, X, outputs, model.actions)

    return loss(free)


def _logarithms(free: Model) -> Model:
    kernel, noise = jax.tree.map(jnp.log, (free.kernel, free.noise))
    return Model(kernel, noise, jax.tree.map(jnp.asarray, free.actions))


def _exponentials(free: Model, held: Model) -> Model:
    kernel, noise = jax.tree.map(jnp.exp, (free.kernel, free.noise))
    return eqx.combine(Model(kernel, noise, free.actions), held)
