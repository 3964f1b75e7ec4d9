"""Surrogate HMC: the target stays invariant whatever the surrogate, and every evaluation is counted."""

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from surrogate_cases import NUM_TRANSITIONS, TARGETS, banana_potential, frozen_state, make, run, z_scores

import mcmcpost as mp
from mcmcpost.surrogate import SurrogateHMC, _advance, _moves

pytestmark = [
    pytest.mark.filterwarnings("ignore:Some donated buffers were not usable:UserWarning"),
    pytest.mark.usefixtures("rank_promotion"),
]

NUM_CHAINS = 4000
STEPS = 6
START = jax.random.normal(jax.random.key(1), (2, 2))
KERNELS = {
    "plain": {"true_gradient_probability": 0.0},
    "delayed": {"true_gradient_probability": 0.0, "delayed_acceptance": 3},
    "mixture": {"true_gradient_probability": 0.4},
}
SURROGATES = {
    "good": mp.SubspaceSurrogate(num_training=20, tuning_steps=30),
    "poor": mp.SubspaceSurrogate(num_training=4, dimension=1, tuning_steps=1),
    "published": mp.PublishedSurrogate(num_training=5, lengthscale=1.0),
}


@functools.cache
def fitted(target, surrogate):
    draws = jnp.asarray(TARGETS[target].draws(np.random.default_rng(0), 200))
    gradients = jax.vmap(jax.grad(TARGETS[target].potential))(draws)
    return jax.jit(SURROGATES[surrogate].fit)(draws, gradients, jnp.ones(len(draws)))


def stand_still(program, point, adapted, key):
    """Stand in for NUTS, half of the compile time, where the surrogate is used."""
    del program, adapted, key
    none = jnp.zeros((), int)
    return point, _moves.Outcome(jnp.full((), jnp.nan), jnp.asarray(True), none, none, none)


def after_transitions(target, surrogate, settings, rng, key, monkeypatch):
    monkeypatch.setattr(_advance, "_nuts_move", stand_still)
    kernel = make(TARGETS[target], num_steps=STEPS, **settings)
    draws = TARGETS[target].draws(rng, NUM_CHAINS)
    state = frozen_state(kernel, fitted(target, surrogate), draws, key, 0.3)
    step = jax.jit(lambda state: kernel.sample(state, (), {}))
    for _ in range(NUM_TRANSITIONS):
        state = step(state)
    assert np.isfinite(state.accept_prob).all(), "NUTS was reached"
    return state


# Every surrogate and every target with every kernel, but not all triples.
CASES = [
    ("banana2", "poor", "plain"),
    ("gaussian", "published", "delayed"),
    ("banana2", "poor", "delayed"),
    ("banana10", "good", "delayed"),
    ("banana10", "poor", "mixture"),
    ("banana10", "good", "plain"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "surrogate", "kernel"), CASES)
def test_the_target_is_invariant(target, surrogate, kernel, rng, key, monkeypatch):
    state = after_transitions(target, surrogate, KERNELS[kernel], rng, key, monkeypatch)
    scores = z_scores(TARGETS[target], state.z)
    assert max(map(abs, scores.values())) < 4.5, scores
    # The chains did move, and not all proposals were taken.
    assert 0.01 < float(state.accept_prob.mean()) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("target", "kernel"), [("banana2", "plain"), ("gaussian", "delayed"), ("gaussian", "mixture")])
def test_invariance_is_lost_without_the_true_energy(target, kernel, rng, key, monkeypatch):
    monkeypatch.setattr(_moves, "accepts", lambda key, log_ratio: jnp.isfinite(log_ratio) & (key is not None))
    state = after_transitions(target, "published", KERNELS[kernel], rng, key, monkeypatch)
    assert max(map(abs, z_scores(TARGETS[target], state.z).values())) > 4.5


@pytest.mark.slow
@pytest.mark.parametrize("surrogate", list(SURROGATES))
def test_the_gradient_is_that_of_the_surrogate_energy(surrogate):
    found = fitted("banana2", surrogate)
    for x in jnp.array([[0.3, -0.4], [1.5, 3.0], [-4.0, 9.0]]):
        step = 1e-5 * jnp.eye(2)
        slopes = [(found.evaluate(x + e).energy - found.evaluate(x - e).energy) / 2e-5 for e in step]
        np.testing.assert_allclose(found.evaluate(x).gradient, slopes, rtol=2e-5, atol=1e-6)


@pytest.mark.slow
def test_a_surrogate_knows_gradients_it_was_not_given(rng):
    draws, new = (jnp.asarray(TARGETS["banana10"].draws(rng, n)) for n in (400, 300))
    slope = jax.vmap(jax.grad(banana_potential))
    found = jax.jit(mp.SubspaceSurrogate().fit)(draws, slope(draws), jnp.ones(len(draws)))
    error = jnp.linalg.norm(jax.vmap(lambda x: found.evaluate(x).gradient)(new) - slope(new), axis=1)
    size = jnp.sqrt(jnp.mean(jnp.sum(slope(new) ** 2, axis=1)))
    assert jnp.median(error) < 0.02 * size
    # The quadratic alone does not know the bend.
    bent = jax.vmap(lambda x: found._replace(height=jnp.zeros(())).evaluate(x).gradient)(new)
    assert jnp.median(jnp.linalg.norm(bent - slope(new), axis=1)) > 0.1 * size


@pytest.mark.slow
def test_a_quadratic_is_learnt_exactly():
    found = fitted("gaussian", "good")
    x = jnp.array([2.0, -3.0])
    np.testing.assert_allclose(
        found.evaluate(x).gradient, jax.grad(TARGETS["gaussian"].potential)(x), rtol=1e-5, atol=1e-5
    )


@pytest.fixture(scope="module")
def sampled():
    kernel = make(TARGETS["banana2"], num_steps=8, true_gradient_probability=0.3, delayed_acceptance=2, refinement=3)
    return run(kernel, jax.random.key(2), init=START, num_warmup=120, num_samples=150)


@pytest.mark.slow
def test_counts_add_up(sampled):
    fields = sampled.get_extra_fields(group_by_chain=True)
    gradients, energies, cheap = (
        np.asarray(fields[f"num_{name}"]) for name in ("true_gradients", "true_energies", "surrogate_gradients")
    )
    assert fields["surrogate_used"].all()
    steps = np.diff(gradients, axis=1)
    surrogate = np.diff(cheap, axis=1)
    # A surrogate transition: two moves of 8·3 steps and a first gradient. A true one: 8 steps, and a first gradient
    # where that is unknown.
    assert set(np.unique(surrogate)) == {0, 2 * 25}
    assert set(np.unique(steps)) <= {0, 8, 9}
    assert ((steps == 0) == (surrogate > 0)).all()
    assert (np.diff(energies, axis=1) == 1).all()
    # Warm-up: one gradient to start, then 8 an iteration and no surrogate.
    kept = np.minimum(gradients[:, 0], 1 + 120 * 8)
    assert (kept == 1 + 120 * 8).all()
    assert (energies[:, 0] == 1 + 121).all()
    assert (cheap[:, 0] <= 50).all()


@pytest.mark.slow
def test_counts_are_of_calls():
    calls = {"energy": 0, "gradient": 0}

    def note(name):
        def add(_):
            calls[name] += 1

        return add

    @jax.custom_vjp
    def potential(x):
        jax.debug.callback(note("energy"), x[0])
        return banana_potential(x)

    def forward(x):
        jax.debug.callback(note("gradient"), x[0])
        return jax.value_and_grad(banana_potential)(x)

    potential.defvjp(forward, lambda gradient, cotangent: (cotangent * gradient,))
    kernel = SurrogateHMC(potential_fn=potential, num_steps=4, history_size=256)
    mcmc = run(kernel, jax.random.key(0), init=jnp.zeros(2), num_warmup=60, num_samples=40, num_chains=1)
    jax.effects_barrier()
    state = mcmc.last_state
    assert bool(state.surrogate_used)
    # A true trajectory's energy comes with its gradient; the others are energies alone.
    moves = 100 - 60 - int((np.diff(np.asarray(mcmc.get_extra_fields()["num_true_gradients"])) > 0).sum())
    assert calls["gradient"] == int(state.num_true_gradients)
    assert calls["energy"] in (moves, moves - 1)


@pytest.mark.slow
def test_the_surrogate_is_frozen_and_the_same_key_gives_the_same_draws(sampled):
    draws = np.asarray(sampled.get_samples())
    sampled.run(jax.random.key(2), init_params=START)
    np.testing.assert_array_equal(sampled.get_samples(), draws)
    before = jax.tree.leaves((sampled.last_state.surrogate, sampled.last_state.adapt_state.step_size))
    sampled.post_warmup_state = sampled.last_state
    sampled.run(jax.random.key(7))
    after = jax.tree.leaves((sampled.last_state.surrogate, sampled.last_state.adapt_state.step_size))
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)


def ten_bananas(x):
    pairs = x.reshape(10, 2)
    return 0.5 * jnp.sum(pairs[:, 0] ** 2 + (2 * pairs[:, 0] ** 2 - 2 * pairs[:, 1] + 2) ** 2)


def rough(x):
    return 0.5 * jnp.sum(x**2) + 2 * jnp.sum(jnp.abs(x) % 0.3)


def two_modes(x):
    return -jnp.logaddexp(-0.5 * jnp.sum((x - 3) ** 2), -0.5 * jnp.sum((x + 3) ** 2))


def nan_in_places(x):
    return 0.5 * jnp.sum(x**2) + jnp.where(x[0] > 0.5, jnp.nan, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("potential", "d"), [(ten_bananas, 20), (rough, 3)])
def test_a_hard_target_is_declined_and_sampled_by_nuts(potential, d, caplog):
    kernel = SurrogateHMC(potential_fn=potential, num_steps=8, surrogate=mp.SubspaceSurrogate(tuning_steps=20))
    with caplog.at_level(logging.WARNING, "mcmcpost"):
        init = 0.1 * jax.random.normal(jax.random.key(0), (2, d))
        mcmc = run(kernel, jax.random.key(1), init=init, num_warmup=150, num_samples=200)
        jax.effects_barrier()
    fields = mcmc.get_extra_fields(group_by_chain=True)
    assert not fields["surrogate_used"].any()
    assert (fields["gradient_error"] > 0.05).all()
    assert [record.message.count("declined") for record in caplog.records] == [1]
    # Every transition cost true gradients, none a surrogate's.
    assert (np.diff(fields["num_true_gradients"], axis=1) > 0).all()
    assert (fields["num_surrogate_gradients"] == 0).all()
    assert float(fields["accept_prob"].mean()) > 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("potential", "start"), [(two_modes, 3.0), (nan_in_places, -1.0)])
def test_an_awkward_target_gives_finite_draws(potential, start):
    kernel = SurrogateHMC(potential_fn=potential, num_steps=8, surrogate=mp.SubspaceSurrogate(tuning_steps=20))
    init = start + 0.1 * jax.random.normal(jax.random.key(0), (2, 2))
    mcmc = run(kernel, jax.random.key(1), init=init, num_samples=400)
    draws = np.asarray(mcmc.get_samples())
    assert np.isfinite(draws).all()
    assert np.isfinite(np.asarray(jax.vmap(potential)(draws))).all()
    assert draws.std(axis=0).min() > 0.1
    if potential is nan_in_places:
        # The normal cut at one half: mean −φ(.5)/Φ(.5).
        assert abs(draws[:, 0].mean() + 0.509) < 0.25


@pytest.mark.slow
def test_without_warm_up_it_is_nuts_and_says_so():
    kernel = make(TARGETS["gaussian"], step_size=0.5)
    with pytest.warns(UserWarning, match="NUTS with true gradients"):
        mcmc = run(kernel, jax.random.key(1), init=jnp.zeros(2), num_warmup=0, num_samples=300, num_chains=1)
    fields = mcmc.get_extra_fields()
    assert not fields["surrogate_used"].any()
    assert int(fields["num_surrogate_gradients"][-1]) == 0
    assert abs(np.asarray(mcmc.get_samples()).var(axis=0)[0] - np.linalg.inv([[2, 0.9], [0.9, 1]])[0, 0]) < 0.3


def model(y):
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    numpyro.deterministic("twice", 2 * mean)
    numpyro.sample("y", dist.Normal(mean + weights[0], scale), obs=y)


@pytest.fixture(scope="module")
def model_run():
    kernel = SurrogateHMC(model, num_steps=8, true_gradient_probability=0.2, max_gradient_error=0.2)
    y = jnp.array([0.3, 1.2, 0.4, 0.9, -0.2])
    return y, run(kernel, jax.random.key(3), y, num_warmup=300, num_samples=500)


@pytest.mark.slow
def test_a_model_with_constrained_sites_gives_a_tree_with_true_scores(model_run, rng):
    y, mcmc = model_run
    tree = mp.from_numpyro(mcmc)
    assert {"scale", "mean", "weights", "twice"} <= set(tree.posterior.data_vars)
    assert float(tree.posterior["scale"].min()) > 0
    assert {"num_true_gradients", "num_true_energies", "surrogate_used"} <= set(tree.sample_stats.data_vars)
    # True scores were computed after sampling, and are counted apart.
    assert tree.sample_stats.attrs["score_evaluations"] == "1000"
    bare = tree.copy(deep=True)
    bare["sample_stats"] = bare.sample_stats.to_dataset().drop_vars(["gradient", "unconstrained_draw"])
    attached = mp.attach_scores(bare, model, y)
    np.testing.assert_allclose(
        tree.sample_stats["gradient"].values, attached.sample_stats["gradient"].values, rtol=1e-6, atol=1e-8
    )
    # The posterior moments by importance sampling from the prior.
    number = 100_000
    prior = {"scale": 2 * np.abs(rng.normal(size=number)), "mean": rng.normal(size=number)}
    centre = prior["mean"] + rng.beta(1, 2, size=number)
    residuals = (np.asarray(y)[:, None] - centre) / prior["scale"]
    log_weight = -0.5 * np.sum(residuals**2, axis=0) - len(y) * np.log(prior["scale"])
    weight = np.exp(log_weight - log_weight.max())
    for site, values in prior.items():
        mean = np.average(values, weights=weight)
        spread = np.sqrt(np.average((values - mean) ** 2, weights=weight))
        assert abs(np.asarray(mcmc.get_samples()[site]).mean() - mean) < 0.25 * spread


def test_no_gradient_of_a_surrogate_can_be_collected():
    kernel = make(TARGETS["gaussian"], surrogate=mp.SubspaceSurrogate(num_training=20, tuning_steps=1))
    mcmc = numpyro.infer.MCMC(kernel, num_warmup=20, num_samples=5, progress_bar=False)
    with pytest.raises(ValueError, match="attach_scores"):
        mcmc.run(jax.random.key(0), init_params=jnp.zeros(2), extra_fields=("z_grad",))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["sequential", jax.vmap])
def test_chain_methods(method):
    surrogate = mp.SubspaceSurrogate(num_training=10, tuning_steps=5)
    init = {"a": jnp.zeros((2, 1)), "b": jnp.ones(2)}
    kernel = SurrogateHMC(
        potential_fn=lambda z: TARGETS["gaussian"].potential(jnp.append(z["a"], z["b"])),
        num_steps=4,
        surrogate=surrogate,
        history_size=64,
    )
    mcmc = run(kernel, jax.random.key(0), init=init, num_warmup=60, num_samples=40, method=method)
    assert mcmc.get_samples()["a"].shape == (80, 1)
    fields = mcmc.get_extra_fields(group_by_chain=True)
    assert fields["num_true_gradients"].shape == (2, 40)
    assert fields["surrogate_used"].all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "either `model` or `potential_fn`"),
        ({"potential_fn": banana_potential, "num_steps": 0}, "`num_steps` of at least 1"),
        ({"potential_fn": banana_potential, "delayed_acceptance": 0}, "`delayed_acceptance` of at least 1"),
        ({"potential_fn": banana_potential, "true_gradient_probability": 1.5}, "`true_gradient_probability` in"),
        ({"potential_fn": banana_potential, "max_gradient_error": float("nan")}, "`max_gradient_error` not negative"),
    ],
)
def test_settings_that_cannot_run_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        SurrogateHMC(**settings)


def test_a_potential_needs_a_start():
    with pytest.raises(ValueError, match="init_params"):
        make(TARGETS["gaussian"]).init(jax.random.key(0), 10)


def test_a_surrogate_needs_points():
    with pytest.raises(ValueError, match="num_training"):
        mp.SubspaceSurrogate(num_training=0)
