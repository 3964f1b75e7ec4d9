"""Surrogate HMC where its surrogate cannot serve: hard targets are declined, and what is drawn
stays right."""

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from surrogate_cases import TARGETS, make, run

import mcmcpost as mp
from mcmcpost.core.mcse import mcse_mean
from mcmcpost.gp import SurrogateHMC

pytestmark = [
    pytest.mark.filterwarnings("ignore:Some donated buffers were not usable:UserWarning"),
    pytest.mark.usefixtures("rank_promotion"),
]


def ten_bananas(x):
    pairs = x.reshape(10, 2)
    return 0.5 * jnp.sum(pairs[:, 0] ** 2 + (2 * pairs[:, 0] ** 2 - 2 * pairs[:, 1] + 2) ** 2)


def rough(x):
    return 0.5 * jnp.sum(x**2) + 2 * jnp.sum(jnp.abs(x[:3]) % 0.3)


def two_modes(x):
    return -jnp.logaddexp(-0.5 * jnp.sum((x - 3) ** 2), -0.5 * jnp.sum((x + 3) ** 2))


def nan_in_places(x):
    return 0.5 * jnp.sum(x**2) + jnp.where(x[0] > 0.5, jnp.nan, 0.0)


AWKWARD = (ten_bananas, rough, two_modes, nan_in_places)
NUM_WARMUP = 150


@functools.cache
def twenty_dimensional():
    """Return one compiled program for all awkward targets: what is collected, by chain and draw."""

    @jax.jit
    def program(which, key, init):
        kernel = SurrogateHMC(
            potential_fn=functools.partial(jax.lax.switch, which, AWKWARD),
            num_steps=8,
            surrogate=mp.SubspaceSurrogate(tuning_steps=20),
        )

        def step(state, _):
            state = kernel.sample(state, (), {})
            return state, {name: getattr(state, name) for name in kernel.default_fields}

        state = kernel.init(jax.random.split(key, len(init)), NUM_WARMUP, init)
        return jax.lax.scan(step, state, None, length=NUM_WARMUP + 400)[1]

    return program


def sample_awkward(potential, start):
    init = start + 0.1 * jax.random.normal(jax.random.key(0), (2, 20))
    fields = twenty_dimensional()(AWKWARD.index(potential), jax.random.key(1), init)
    jax.effects_barrier()
    return {name: np.swapaxes(values[NUM_WARMUP:], 0, 1) for name, values in fields.items()}


@pytest.mark.slow
@pytest.mark.parametrize("potential", [ten_bananas, rough])
def test_a_hard_target_is_declined_and_sampled_by_nuts(potential, caplog):
    with caplog.at_level(logging.WARNING, "mcmcpost"):
        fields = sample_awkward(potential, 0.0)
    assert not fields["surrogate_used"].any()
    assert (fields["gradient_error"] > 0.2).all()
    assert [record.message.count("declined") for record in caplog.records] == [1]
    # Every transition cost true gradients, none a surrogate's.
    assert (np.diff(fields["num_true_gradients"], axis=1) > 0).all()
    assert (fields["num_surrogate_gradients"] == 0).all()
    # Second moments, averaged over coordinates of one law: one where it is standard normal, else by
    # quadrature.
    squares = np.asarray(fields["z"]) ** 2
    if potential is rough:
        grid = np.linspace(-8.0, 8.0, 160_001)
        mass = np.exp(-0.5 * grid**2 - 2 * (np.abs(grid) % 0.3))
        moments = [(slice(0, 3), np.sum(mass * grid**2) / np.sum(mass)), (slice(3, 20), 1.0)]
    else:
        moments = [(slice(0, 20, 2), 1.0)]
    for alike, moment in moments:
        series = squares[..., alike].mean(axis=-1)
        assert abs(series.mean() - moment) < 4.5 * mcse_mean(series)


@pytest.mark.slow
@pytest.mark.parametrize(("potential", "start"), [(two_modes, 3.0), (nan_in_places, -1.0)])
def test_an_awkward_target_gives_finite_draws(potential, start):
    draws = sample_awkward(potential, start)["z"].reshape(-1, 20)
    assert np.isfinite(draws).all()
    assert np.isfinite(jax.jit(jax.vmap(potential))(draws)).all()
    assert draws.std(axis=0).min() > 0.1
    if potential is nan_in_places:
        # The normal cut at one half: mean −φ(0.5)/Φ(0.5).
        assert abs(draws[:, 0].mean() + 0.509) < 0.25


@pytest.mark.slow
def test_without_warm_up_it_is_nuts_and_says_so():
    kernel = make(TARGETS["gaussian"], step_size=0.5)
    with pytest.warns(UserWarning, match="NUTS with true gradients"):
        mcmc = run(
            kernel,
            jax.random.key(1),
            init=jnp.zeros(2),
            num_warmup=0,
            num_samples=300,
            num_chains=1,
        )
    fields = mcmc.get_extra_fields()
    assert not fields["surrogate_used"].any()
    assert int(fields["num_surrogate_gradients"][-1]) == 0
    assert (fields["num_warmup_gradients"] == 1).all()  # of the first state
    assert (
        abs(
            np.asarray(mcmc.get_samples()).var(axis=0)[0]
            - np.linalg.inv([[2, 0.9], [0.9, 1]])[0, 0]
        )
        < 0.3
    )


@pytest.mark.slow
def test_a_history_that_is_too_short_is_not_cured_by_warm_up():
    """Whatever the warm-up, 64 points hold four trajectories of 16 steps."""
    kernel = make(TARGETS["gaussian"], history_size=64, num_steps=16)
    with pytest.warns(UserWarning, match="Use a larger `history_size`"):
        kernel.init(jax.random.key(0), 1_000, jnp.zeros(2), (), {})
