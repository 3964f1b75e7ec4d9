"""The state of surrogate Hamiltonian Monte Carlo."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from mcmcpost._checks import fault
from mcmcpost.surrogate._fitted import FittedSurrogate
from mcmcpost.surrogate._history import History


class SurrogateState(NamedTuple):
    """What `MCMC` carries along and collects. Every field but `i` and `surrogate` has an axis of chains if vectorised.

    i : iterations done. z : unconstrained sample sites. potential_energy : true, at z.
    true_gradient : flat, of the potential at z where it was evaluated, else NaN; never the surrogate's.
    accept_prob, diverging : of the last transition. mean_accept_prob : of the transitions of this phase.
    num_true_gradients, num_true_energies, num_surrogate_gradients : of this chain so far, warm-up included. An energy
    is one on which an acceptance rests.
    surrogate_used : whether the gate let the surrogate in; false during warm-up.
    gradient_error : of the surrogate on held-out trajectories, relative; NaN before it was fitted.
    adapt_state : NumPyro's `HMCAdaptState`. rng_key : of the next transition.
    history : the latest trajectories of warm-up. surrogate : frozen once warm-up ends, one for all vectorised chains.
    """

    i: Any
    z: Any
    potential_energy: Any
    true_gradient: Any
    accept_prob: Any
    mean_accept_prob: Any
    diverging: Any
    num_true_gradients: Any
    num_true_energies: Any
    num_surrogate_gradients: Any
    surrogate_used: Any
    gradient_error: Any
    adapt_state: Any
    rng_key: Any
    history: History
    surrogate: FittedSurrogate

    @property
    def z_grad(self) -> Any:
        """Refuse: what NumPyro calls `z_grad` is the true gradient at every draw, which was not evaluated."""
        cure = "Call mcmcpost.from_numpyro(mcmc), or attach_scores on a stored trace: they compute true scores."
        raise ValueError(fault("SurrogateHMC", "no `z_grad` among the extra fields", "one", cure))


SHARED = ("i", "surrogate")


def with_chains(state: SurrogateState) -> SurrogateState:
    """Return the state of one chain as that of a batch of one."""
    return _map_chains(lambda leaf: jnp.asarray(leaf)[None], state)


def without_chains(state: SurrogateState) -> SurrogateState:
    """Return the only state of a batch of one."""
    return _map_chains(lambda leaf: leaf[0], state)


def _map_chains(function: Any, state: SurrogateState) -> SurrogateState:
    batched = {name: value for name, value in state._asdict().items() if name not in SHARED}
    return state._replace(**jax.tree.map(function, batched))
