"""GP optimisers as optax gradient transformations."""

from typing import Any

import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from mcmcpost.optimize._memory import Memory, empty_memory, remember
from mcmcpost.optimize._methods import AbstractMethod


def scale_by_gp(method: AbstractMethod) -> optax.GradientTransformationExtraArgs:
    """Return the transformation that turns gradients into the method's descent direction.

    To be chained with a line search: ``optax.chain(scale_by_gp(GPX()), optax.scale_by_zoom_linesearch(15,
    initial_guess_strategy="one"))``. `update` needs the parameters. Parameters are any pytree of one dtype.
    """

    def init(params: Any) -> Memory:
        return empty_memory(method.memory, ravel_pytree(params)[0])

    def update(updates: Any, state: Memory, params: Any = None, **extra: Any) -> tuple[Any, Memory]:
        del extra
        if params is None:
            raise ValueError("scale_by_gp: expected the parameters in `update`, got None. Pass `params`.")
        g, unravel = ravel_pytree(updates)
        state = remember(state, ravel_pytree(params)[0], g)
        direction = method.direction(state)
        return unravel(jnp.where(jnp.all(jnp.isfinite(direction)), direction, -g)), state

    return optax.GradientTransformationExtraArgs(init, update)


def gp_optimizer(method: AbstractMethod, *, max_linesearch_steps: int = 20) -> optax.GradientTransformationExtraArgs:
    """Return the method with optax's zoom line search (strong Wolfe); `update` takes value, grad and value_fn."""
    search = optax.scale_by_zoom_linesearch(max_linesearch_steps, initial_guess_strategy="one")
    return optax.chain(scale_by_gp(method), search)
