"""What the Stein kernels of both orders are checked for alike."""

from collections.abc import Callable, Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from mcmcpost.stein import AbstractKernel


def of_all(kernels: Mapping[str, AbstractKernel]) -> Callable[[Callable], Callable]:
    """Make f(kernel, *arrays) into f(name, *arrays), one program for all kernels: it compiles in
    half the time."""

    def decorate(function: Callable) -> Callable:
        @eqx.filter_jit
        def program(kernels: Mapping[str, AbstractKernel], arrays: tuple[jax.Array, ...]) -> dict:
            return {name: function(kernel, *arrays) for name, kernel in kernels.items()}

        def of_one(name: str, *arrays: np.ndarray) -> np.ndarray | tuple[np.ndarray, ...]:
            return jax.tree.map(np.asarray, program(kernels, arrays)[name])

        return of_one

    return decorate


def rank_three_shapes(jaxpr: jax.extend.core.Jaxpr) -> list[tuple[int, ...]]:
    """Return the shapes of all intermediates with three axes or more."""
    shapes = []
    for equation in jaxpr.eqns:
        shapes += [v.aval.shape for v in equation.outvars if getattr(v.aval, "ndim", 0) >= 3]
        for parameter in jax.tree.leaves(
            list(equation.params.values()),
            is_leaf=lambda p: hasattr(p, "eqns") or hasattr(p, "jaxpr"),
        ):
            inside = getattr(parameter, "jaxpr", parameter)
            if hasattr(inside, "eqns"):
                shapes += rank_three_shapes(inside)
    return shapes


def check_parameter_gradients(
    gram: Callable[..., jax.Array], kernel: AbstractKernel, rng: np.random.Generator
) -> None:
    """Compare the derivatives of a Gram matrix in the kernel's parameters with central differences.

    With a repeated state, where √r is not differentiable.
    """
    X = rng.normal(size=(4, 3))
    X[3] = X[0]
    S, C = -X, rng.normal(size=(4, 4))
    flat, unravel = ravel_pytree(jax.tree.map(jnp.asarray, kernel))

    @jax.jit
    @jax.value_and_grad
    def objective(parameters: jax.Array) -> jax.Array:
        return jnp.sum(C * gram(unravel(parameters), X, S))

    flat, step = np.asarray(flat), 1e-5
    gradient = np.asarray(objective(flat)[1])
    ends = [
        (objective(flat + step * e)[0], objective(flat - step * e)[0]) for e in np.eye(flat.size)
    ]
    numeric = np.diff(np.asarray(ends))[:, 0] / (-2 * step)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-6, atol=1e-7 * np.abs(gradient).max())
