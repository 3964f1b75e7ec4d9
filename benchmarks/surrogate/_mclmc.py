"""BlackJAX's adjusted microcanonical sampler (Robnik, Cohn-Gordon and Seljak, arXiv 2503.01707),
gradients counted."""

from collections.abc import Callable
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.mcmc import adjusted_mclmc_dynamic
from jaxtyping import Array, Float, Int

TARGET_ACCEPTANCE = 0.9
"""As in the paper."""

GRADIENTS_PER_STEP = 2
"""The default integrator, McLachlan's, evaluates two gradients in each of its steps."""


LEAST_TUNING = 2500
"""BlackJAX tunes on three tenths as many transitions as there are draws, here of at least so many
draws."""


class AdjustedMCLMC(NamedTuple):
    """The settings of a run; all else is BlackJAX's default.

    length : mean number of integrator steps of a proposal, uniform about it. BlackJAX adapts the
        step size to it; its default is 2.
    dense : precondition with the covariance of a first run of a quarter of the draws, pooled over
        chains, besides the diagonal that the tuning finds itself.
    draws_per_step : draws in place of one of the other methods are this over `length`.
    """

    length: float = 2.0
    dense: bool = False
    draws_per_step: float = 5.0


class Chains(NamedTuple):
    """A run of c chains. draws : (c, n, d). warm_up, gradients : true gradients of all chains,
    until and after tuning.

    energies : transitions of all chains, those of tuning included, since an acceptance rests on one
        energy.
    accepted : mean probability of acceptance.
    """

    draws: np.ndarray
    warm_up: int
    gradients: int
    energies: int
    accepted: float


class Path(NamedTuple):
    """The draws of one chain with its steps in tuning and in all transitions after it."""

    draws: Float[Array, "n d"]
    accept_prob: Float[Array, " n"]
    tuning_steps: Int[Array, ""]
    steps: Int[Array, ""]

    def gradients(self) -> tuple[int, int]:
        """Return the true gradients until the end of tuning, with those of the first states, and
        after it."""
        chains = self.tuning_steps.size
        return chains + GRADIENTS_PER_STEP * int(self.tuning_steps.sum()), GRADIENTS_PER_STEP * int(
            self.steps.sum()
        )


def run(
    settings: AdjustedMCLMC,
    logdensity: Callable[[Any], Any],
    start: Float[Array, "c d"],
    num_samples: int,
) -> Chains:
    """Tune and run each chain from `start`; the draws are `num_samples` by the settings."""
    number = round(num_samples * settings.draws_per_step / settings.length)
    first_key, key = jax.random.split(jax.random.key(0))
    warm_up, energies = 0, _transitions(number)
    centre, root = jnp.zeros(start.shape[1]), jnp.eye(start.shape[1])
    if settings.dense:
        pilot = _sample(logdensity, start, first_key, number // 4, settings.length)
        warm_up, energies = sum(pilot.gradients()), energies + _transitions(number // 4)
        flat = np.asarray(pilot.draws).reshape(-1, start.shape[1])
        centre, root = jnp.asarray(flat.mean(0)), jnp.asarray(np.linalg.cholesky(np.cov(flat.T)))
        start = jnp.linalg.solve(root, (pilot.draws[:, -1] - centre).T).T
    found = _sample(lambda x: logdensity(centre + root @ x), start, key, number, settings.length)
    tuning, sampling = found.gradients()
    draws = np.asarray(centre) + np.asarray(found.draws) @ np.asarray(root).T
    return Chains(
        draws, warm_up + tuning, sampling, len(draws) * energies, float(found.accept_prob.mean())
    )


def _transitions(number: int) -> int:
    """Return those of tuning, two tenths and again one tenth, and of the draws themselves."""
    return number + 3 * int(0.1 * max(number, LEAST_TUNING))


def _sample(
    logdensity: Callable[[Any], Any], start: Any, key: Array, number: int, length: float
) -> Path:
    chain = jax.jit(jax.vmap(lambda x, k: sample_chain(logdensity, x, k, number, length)))
    return jax.device_get(chain(start, jax.random.split(key, len(start))))


def sample_chain(
    logdensity: Callable[[Any], Any],
    start: Float[Array, " d"],
    key: Array,
    number: int,
    length: float,
) -> Path:
    """Tune one chain as BlackJAX does and take `number` draws."""
    init_key, tune_key, sample_key = jax.random.split(key, 3)
    steps = adjusted_mclmc_dynamic.make_random_trajectory_length_fn(True)
    kernel = adjusted_mclmc_dynamic.build_kernel(integration_steps_fn=steps)
    state, tuned, tuning_steps = blackjax.adjusted_mclmc_find_L_and_step_size(
        mclmc_kernel=kernel,
        logdensity_fn=logdensity,
        num_steps=max(number, LEAST_TUNING),
        state=adjusted_mclmc_dynamic.init(start, logdensity, init_key),
        rng_key=tune_key,
        target=TARGET_ACCEPTANCE,
        target_num_integration_steps=length,
    )

    def step(state: Any, key: Array) -> tuple[Any, Any]:
        new, info = kernel(
            rng_key=key,
            state=state,
            logdensity_fn=logdensity,
            step_size=tuned.step_size,
            inverse_mass_matrix=tuned.inverse_mass_matrix,
            integration_steps_params=(tuned.L / tuned.step_size,),
        )
        return new, (new.position, info.acceptance_rate, info.num_integration_steps)

    draws, accept_prob, taken = jax.lax.scan(step, state, jax.random.split(sample_key, number))[1]
    return Path(draws, accept_prob, tuning_steps, taken.sum())
