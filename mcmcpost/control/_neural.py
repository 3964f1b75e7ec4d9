"""Neural vector-valued control variates: one network, shared by all tasks through a mixing matrix."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mcmcpost._checks import fault
from mcmcpost.control._task_family import AbstractTaskControl, TaskRows


class NeuralTasks(AbstractTaskControl):
    """g_t = Σ_r W_tr (∇·φ_r + φ_r·s_t), φ : ℝ^d → ℝ^{r×d} a multilayer perceptron.

    Equation 13 of the paper has one φ and sums B over its second index, so that every u_t is a multiple of the same
    function; here r functions are mixed by W. The divergence is by forward-mode differentiation: d products.

    network : d → r·d. mixing : (T, r) W. Both are trained, and both are penalised by λ: W is no covariance.
    """

    network: eqx.nn.MLP
    mixing: Float[Array, "t r"]

    @property
    def num_tasks(self) -> int:
        return self.mixing.shape[0]

    def features(self, rows: TaskRows) -> tuple[Float[Array, "b d"], Float[Array, "b d"]]:
        return jnp.asarray(rows.draws), jnp.asarray(rows.scores)

    def evaluate(
        self, features: tuple[Float[Array, "b d"], Float[Array, "b d"]], tasks: Int[Array, " b"]
    ) -> Float[Array, " b"]:
        return jax.vmap(self._langevin)(*features, self.mixing[tasks])

    def _langevin(self, x: Float[Array, " d"], s: Float[Array, " d"], weights: Float[Array, " r"]) -> Float[Array, ""]:
        """Return ∇·u + u·s of the task's own u = Σ_r W_tr φ_r: mixed first, so r costs nothing."""

        def field(x: Float[Array, " d"]) -> Float[Array, " d"]:
            return weights @ self.network(x).reshape(weights.shape[0], x.shape[0])

        def both(x: Float[Array, " d"]) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
            u = field(x)
            return u, u

        jacobian, u = jax.jacfwd(both, has_aux=True)(x)
        return jnp.trace(jacobian) + jnp.dot(u, s)

    def squared_norm(self) -> Float[Array, ""]:
        leaves = jax.tree.leaves(eqx.filter((self.network, self.mixing), eqx.is_inexact_array))
        return jnp.sum(jnp.stack([jnp.sum(leaf**2) for leaf in leaves]))

    def covariance_penalty(self) -> Float[Array, ""]:
        return jnp.zeros((), self.mixing.dtype)

    def trainable(self) -> Any:
        return jax.tree.map(eqx.is_inexact_array, self)

    def release_covariance(self) -> "NeuralTasks":
        """Return `self`: the mixing is always free."""
        return self


class NeuralNetwork(eqx.Module):
    """The shape of a neural control variate.

    width, depth : units of a hidden layer, and hidden layers.
    num_functions : r, the functions that the tasks mix; None for one per task.
    activation : twice differentiable, for the divergence and its gradient: tanh or silu, not relu.
    """

    width: int = 32
    depth: int = 2
    num_functions: int | None = None
    activation: Callable[[Array], Array] = jax.nn.tanh

    def __check_init__(self) -> None:
        functions = 1 if self.num_functions is None else self.num_functions
        for name, value in (("width", self.width), ("depth", self.depth), ("num_functions", functions)):
            if value < 1:
                raise ValueError(fault("NeuralNetwork", f"`{name}` of at least 1", value, "Use a positive integer."))

    def start(
        self, num_tasks: int, dimension: int, *, key: PRNGKeyArray, dtype: np.dtype | type = np.float64
    ) -> NeuralTasks:
        """Return a network with g = 0: random hidden layers, a last layer of zeros, W one function per task plus noise.

        With fewer functions than tasks they are dealt out in turn, so no task starts deaf.
        """
        functions = num_tasks if self.num_functions is None else self.num_functions
        hidden, mixing = jax.random.split(key)
        network = eqx.nn.MLP(
            dimension, functions * dimension, self.width, self.depth, self.activation, dtype=dtype, key=hidden
        )
        silent = jax.tree.map(jnp.zeros_like, network.layers[-1])
        network = eqx.tree_at(lambda n: n.layers[-1], network, silent)
        spread = 0.1 * jax.random.normal(mixing, (num_tasks, functions), dtype)
        turns = jax.nn.one_hot(np.arange(num_tasks) % functions, functions, dtype=dtype)
        return NeuralTasks(network, turns + spread)
