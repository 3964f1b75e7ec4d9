"""NumPyro's HMC and NUTS with the inverse temperature as an argument, vectorised over lanes (rung × chain)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mcmcpost._checks import fault
from mcmcpost.evidence._ladder import TemperedTarget

JITTER = 0.2
"""Half-width of the uniform relative jitter of the step size of HMC, whose fixed length may resonate otherwise."""


class HamiltonianKernel(NamedTuple):
    """The Markov kernel of every rung: NUTS, or HMC of fixed length, with step size and mass matrix adapted per chain.

    num_steps : leapfrog steps of HMC; None for NUTS. Lanes run in lockstep: equal lengths waste nothing, NUTS adapts.
    max_tree_depth : of NUTS, in warm-up and in sampling. One deep tree keeps every lane waiting.
    target_accept : of the step size adaptation.
    dense_mass : adapt a dense mass matrix; otherwise a diagonal one.
    forward_mode : differentiate in forward mode, which suits ODE solves with one to three parameters.
    """

    num_steps: int | None = None
    max_tree_depth: tuple[int, int] = (6, 8)
    target_accept: float = 0.8
    dense_mass: bool = True
    forward_mode: bool = False


class KernelFunctions(NamedTuple):
    """The kernel on lanes.

    init : (keys, starts, temperatures, inverse_mass) → state.
    step : (state, temperatures, jitter) → state; the jitter is uniform in (−1, 1) and independent of the state's key.
    """

    init: Callable[[Array, Array, Array, Array], Any]
    step: Callable[[Any, Array, Array], Any]


def check_kernel(where: str, kernel: HamiltonianKernel) -> None:
    """Refuse settings that cannot run."""
    steps, depths = kernel.num_steps, kernel.max_tree_depth
    if steps is not None and steps < 1:
        raise ValueError(fault(where, "`num_steps` of at least 1", steps, "Use None for NUTS."))
    if len(depths) != 2 or min(depths) < 1:
        raise ValueError(fault(where, "two values of `max_tree_depth` of at least 1", depths, "Use (6, 8)."))
    if not 0 < kernel.target_accept < 1:
        raise ValueError(fault(where, "`target_accept` inside (0, 1)", kernel.target_accept, "Use 0.8."))


def potential(target: TemperedTarget, draw: Array, temperature: Array) -> Float[Array, ""]:
    """Return −log p(x) − tℓ(x), infinite where either is not finite."""
    value = target.log_prior(draw) + temperature * target.log_likelihood(draw)
    return jnp.where(jnp.isfinite(value), -value, jnp.inf)


def make_kernel(target: TemperedTarget, kernel: HamiltonianKernel, num_warmup: int) -> KernelFunctions:
    """Return the vectorised kernel; all lanes share the iteration, so that adaptation stops for all at once."""
    from numpyro.infer.hmc import HMCState, hmc
    from numpyro.infer.hmc_util import HMCAdaptState

    init_kernel, sample_kernel = hmc(
        potential_fn_gen=lambda temperature: lambda draw: potential(target, draw, temperature),
        algo="NUTS" if kernel.num_steps is None else "HMC",
    )

    def init(key: Array, start: Array, temperature: Array, inverse_mass: Array) -> Any:
        return init_kernel(
            start,
            num_warmup=num_warmup,
            inverse_mass_matrix=inverse_mass if kernel.dense_mass else jnp.diagonal(inverse_mass),
            dense_mass=kernel.dense_mass,
            target_accept_prob=kernel.target_accept,
            num_steps=kernel.num_steps,
            trajectory_length=None,
            max_tree_depth=kernel.max_tree_depth,
            forward_mode_differentiation=kernel.forward_mode,
            model_args=(temperature,),
            rng_key=key,
        )

    def step(state: Any, temperature: Array, jitter: Array) -> Any:
        if kernel.num_steps is None:
            return sample_kernel(state, model_args=(temperature,))
        # NumPyro keeps a fixed number of steps: a random step size varies the length.
        adapted = state.adapt_state
        factor = jnp.where(state.i < num_warmup, 1.0, 1 + JITTER * jitter)
        varied = state._replace(adapt_state=adapted._replace(step_size=factor * adapted.step_size))
        new = sample_kernel(varied, model_args=(temperature,))
        kept = jnp.where(state.i < num_warmup, new.adapt_state.step_size, adapted.step_size)
        return new._replace(adapt_state=new.adapt_state._replace(step_size=kept))

    # The iteration is one number for all lanes: conditions on it stay conditions, instead of computing both sides.
    adaptation = HMCAdaptState(**dict.fromkeys(HMCAdaptState._fields, 0) | {"window_idx": None})
    axes = HMCState(**dict.fromkeys(HMCState._fields, 0) | {"i": None, "adapt_state": adaptation})
    return KernelFunctions(
        jax.vmap(init, out_axes=axes),
        jax.vmap(step, in_axes=(axes, 0, 0), out_axes=axes),
    )
