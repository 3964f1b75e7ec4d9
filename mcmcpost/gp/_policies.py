"""Which actions a computation-aware process takes, as an object."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from mcmcpost._checks import fault
from mcmcpost.gp._actions import AbstractActions, DenseActions, SparseActions, balanced_blocks, near_order
from mcmcpost.gp._iterative_posterior import AbstractChooser, IterationState


class Planned(AbstractChooser):
    """Actions known before any computation."""

    actions: AbstractActions

    def choose(self, state: IterationState) -> Float[Array, " n"]:
        return self.actions.column(state.step, len(state.weights))


class Residual(AbstractChooser):
    """The residual of the representer weights, as in conjugate gradients."""

    def choose(self, state: IterationState) -> Float[Array, " n"]:
        return state.residual


class ActionTask(NamedTuple):
    """What a policy may look at.

    X : (n, d). outputs : (n,), of mean zero. num_actions : at most n. key : None where the user gave none.
    """

    X: Float[Array, "n d"]
    outputs: Float[Array, " n"]
    num_actions: int
    key: PRNGKeyArray | None


class AbstractPolicy(eqx.Module):
    """Where actions come from."""

    @property
    @abc.abstractmethod
    def learned(self) -> bool:
        """Whether the entries of the actions are optimised with the hyper-parameters."""

    @abc.abstractmethod
    def start(self, task: ActionTask) -> AbstractChooser:
        """Return a `Planned` batch, or what chooses each action from the state of the iteration."""


class BlockActions(AbstractPolicy):
    """Block-sparse actions, one for each of i balanced blocks of rows, their n entries learned (CaGP-Opt).

    Wenger et al. (2024), section 4.2. They start as the sums of their blocks. Near rows share a block: an action then
    starts as a local mean instead of one over all the inputs.

    learn : whether the entries are optimised. near : whether blocks are of near rows, instead of consecutive ones.
    """

    learn: bool = True
    near: bool = True

    @property
    def learned(self) -> bool:
        return self.learn

    def start(self, task: ActionTask) -> AbstractChooser:
        rows, mask = balanced_blocks(len(task.outputs), task.num_actions)
        if self.near:
            rows = near_order(np.asarray(task.X), rows.shape[1])[rows]
        return Planned(SparseActions(jnp.asarray(mask, task.outputs.dtype), rows, mask))


class ResidualActions(AbstractPolicy):
    """Residuals of conjugate gradients: the posterior mean is that of the unfinished solve (CaGP-CG).

    In training the actions are found anew in each round, at the hyper-parameters of the last.
    """

    @property
    def learned(self) -> bool:
        return False

    def start(self, task: ActionTask) -> AbstractChooser:  # noqa: ARG002
        return Residual()


class UnitActions(AbstractPolicy):
    """Unit vectors of evenly spaced rows: the exact process on a subset of the data."""

    @property
    def learned(self) -> bool:
        return False

    def start(self, task: ActionTask) -> AbstractChooser:
        rows = (np.arange(task.num_actions) * len(task.outputs)) // task.num_actions
        used = np.ones((task.num_actions, 1), bool)
        return Planned(SparseActions(jnp.asarray(used, task.outputs.dtype), rows[:, None], used))


class RandomActions(AbstractPolicy):
    """Independent normal entries, dense; needs a key."""

    @property
    def learned(self) -> bool:
        return False

    def start(self, task: ActionTask) -> AbstractChooser:
        if task.key is None:
            raise ValueError(fault("RandomActions", "a `key`", None, "Pass key=jax.random.key(0) to fit."))
        shape = len(task.outputs), task.num_actions
        return Planned(DenseActions(jax.random.normal(task.key, shape, task.outputs.dtype)))


class GivenActions(AbstractPolicy):
    """The first columns of a matrix (n, at least i) of the user's.

    learn : whether its entries are optimised.
    """

    matrix: Float[Array | np.ndarray, "n i"]
    learn: bool = False

    @property
    def learned(self) -> bool:
        return self.learn

    def start(self, task: ActionTask) -> AbstractChooser:
        matrix, n, i = np.asarray(self.matrix), len(task.outputs), task.num_actions
        if matrix.ndim != 2 or matrix.shape[0] != n or matrix.shape[1] < i or not np.isfinite(matrix).all():
            expected = f"a finite matrix ({n}, at least {i})"
            raise ValueError(fault("GivenActions", expected, matrix.shape, "One row for each row of X."))
        return Planned(DenseActions(jnp.asarray(matrix[:, :i], task.outputs.dtype)))
