"""Which actions a computation-aware process takes, as an object."""

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from mcmcpost._checks import fault
from mcmcpost.gp._actions import AbstractActions, DenseActions, SparseActions, balanced_blocks
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


class AbstractPolicy(eqx.Module):
    """Where actions come from."""

    @property
    @abc.abstractmethod
    def learned(self) -> bool:
        """Whether the entries of the actions are optimised with the hyper-parameters."""

    @abc.abstractmethod
    def start(self, outputs: Float[Array, " n"], num_actions: int, *, key: PRNGKeyArray | None) -> AbstractChooser:
        """Return a `Planned` batch, or what chooses each action from the state of the iteration.

        outputs : (n,), of mean zero. num_actions : at most n. key : where the policy is random.
        """


class BlockActions(AbstractPolicy):
    """Block-sparse actions, one for each of i balanced blocks of rows, their n entries learned (CaGP-Opt).

    Wenger et al. (2024), section 4.2. Blocks of n and of n not divisible by i alike keep every row.

    learn : whether the entries are optimised; if not, each action is the mean of its block.
    """

    learn: bool = True

    @property
    def learned(self) -> bool:
        return self.learn

    def start(self, outputs: Float[Array, " n"], num_actions: int, *, key: PRNGKeyArray | None) -> AbstractChooser:  # noqa: ARG002
        rows, mask = balanced_blocks(len(outputs), num_actions)
        return Planned(SparseActions(jnp.where(mask, jnp.ones_like(outputs)[rows], 0), rows, mask))


class ResidualActions(AbstractPolicy):
    """Residuals of conjugate gradients: the posterior mean is that of the unfinished solve (CaGP-CG).

    In training the actions are found anew in each round, at the hyper-parameters of the last.
    """

    @property
    def learned(self) -> bool:
        return False

    def start(self, outputs: Float[Array, " n"], num_actions: int, *, key: PRNGKeyArray | None) -> AbstractChooser:  # noqa: ARG002
        return Residual()


class UnitActions(AbstractPolicy):
    """Unit vectors of evenly spaced rows: the exact process on a subset of the data."""

    @property
    def learned(self) -> bool:
        return False

    def start(self, outputs: Float[Array, " n"], num_actions: int, *, key: PRNGKeyArray | None) -> AbstractChooser:  # noqa: ARG002
        rows = (np.arange(num_actions) * len(outputs)) // num_actions
        ones = jnp.ones((num_actions, 1), outputs.dtype)
        return Planned(SparseActions(ones, rows[:, None], np.ones((num_actions, 1), bool)))


class RandomActions(AbstractPolicy):
    """Independent normal entries, dense; needs a key."""

    @property
    def learned(self) -> bool:
        return False

    def start(self, outputs: Float[Array, " n"], num_actions: int, *, key: PRNGKeyArray | None) -> AbstractChooser:
        if key is None:
            raise ValueError(fault("RandomActions", "a `key`", None, "Pass key=jax.random.key(0) to fit."))
        return Planned(DenseActions(jax.random.normal(key, (len(outputs), num_actions), outputs.dtype)))


class GivenActions(AbstractPolicy):
    """The first columns of a matrix (n, at least i) of the user's.

    learn : whether its entries are optimised.
    """

    matrix: Float[Array | np.ndarray, "n i"]
    learn: bool = False

    @property
    def learned(self) -> bool:
        return self.learn

    def start(self, outputs: Float[Array, " n"], num_actions: int, *, key: PRNGKeyArray | None) -> AbstractChooser:  # noqa: ARG002
        matrix = np.asarray(self.matrix)
        if matrix.shape[0] != len(outputs) or matrix.shape[1] < num_actions or not np.isfinite(matrix).all():
            expected = f"a finite matrix ({len(outputs)}, at least {num_actions})"
            raise ValueError(fault("GivenActions", expected, matrix.shape, "One row for each row of X."))
        return Planned(DenseActions(jnp.asarray(matrix[:, :num_actions], outputs.dtype)))
