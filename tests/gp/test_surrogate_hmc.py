"""Surrogate HMC: the target stays invariant whatever the surrogate, and every evaluation is
counted."""

import contextlib
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from surrogate_cases import (
    NUM_TRANSITIONS,
    TARGETS,
    D,
    banana_potential,
    energy,
    frozen_state,
    make,
    padded,
    run,
    z_scores,
)

import mcmcpost as mp
from mcmcpost.gp import SurrogateHMC, surrogate_moves

pytestmark = [
    pytest.mark.filterwarnings("ignore:Some donated buffers were not usable:UserWarning"),
    pytest.mark.usefixtures("rank_promotion"),
]

NUM_CHAINS = 4000
STEPS = 6
START = jax.random.normal(jax.random.key(1), (2, 2))
KERNELS = {
    "plain": {"true_gradient_probability": 0.0, "delayed_acceptance": 1},
    "delayed": {"true_gradient_probability": 0.0, "delayed_acceptance": 3},
    "mixture": {"true_gradient_probability": 0.4, "delayed_acceptance": 1},
}
SURROGATES = {
    "good": mp.SubspaceSurrogate(num_training=20, tuning_steps=30),
    "poor": mp.SubspaceSurrogate(num_training=4, dimension=1, tuning_steps=1),
}


@eqx.filter_jit
def fit(surrogate, draws, gradients):
    return surrogate.fit(draws, gradients, jnp.ones(len(draws)))


@jax.jit
def evaluate(found, points):
    return jax.vmap(found.evaluate)(points)


@functools.cache
def slopes(target):
    return jax.jit(jax.vmap(jax.grad(TARGETS[target].potential)))


@functools.cache
def fitted(target, surrogate):
    """Return a surrogate of the target; "wrong" is the poor one with half of its quadratic."""
    draws = jnp.asarray(TARGETS[target].draws(np.random.default_rng(0), 200))
    if surrogate == "wrong":
        poor = fitted(target, "poor")
        return poor._replace(precision=poor.precision / 2, slope=poor.slope / 2)
    return padded(fit(SURROGATES[surrogate], draws, slopes(target)(draws)))


def stand_still(program, point, adapted, key):
    """Stand in for NUTS, half of the compile time, where the surrogate is used."""
    del program, adapted, key
    none = dict.fromkeys(surrogate_moves.MoveResult._fields, jnp.zeros((), int))
    nan = {name: jnp.full((), jnp.nan) for name in none if name.endswith("accept_prob")}
    return point, surrogate_moves.MoveResult(**none | nan | {"diverging": jnp.asarray(True)})


@contextlib.contextmanager
def without_nuts(accepts=surrogate_moves.accepts):
    """Trace with the stand-in, for what is checked to use the surrogate, and with another
    acceptance."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(surrogate_moves, "_nuts_move", stand_still)
        patch.setattr(surrogate_moves, "accepts", accepts)
        yield


def acceptance(always):
    """Return the package's rule, or where `always` one that accepts whatever the true energy is."""
    rule = surrogate_moves.accepts
    return lambda key, log_ratio: jnp.where(always, jnp.isfinite(log_ratio), rule(key, log_ratio))


@functools.cache
def compiled_transitions(delayed_acceptance):
    """Return one program for all targets, surrogates, chances of a true gradient and both
    acceptances."""

    @jax.jit
    def program(which, chance, always, surrogate, draws, key):
        kernel = SurrogateHMC(
            potential_fn=functools.partial(energy, which),
            surrogate=SURROGATES["poor"],
            num_steps=STEPS,
            delayed_acceptance=delayed_acceptance,
        )
        kernel.settings = kernel.settings._replace(true_gradient_probability=chance)
        state = frozen_state(kernel, surrogate, draws, key, 0.3)
        with without_nuts(acceptance(always)):
            return jax.lax.fori_loop(
                0, NUM_TRANSITIONS, lambda _, state: kernel.sample(state, (), {}), state
            )

    return program


def after_transitions(target, surrogate, kernel, rng, key, always=False):
    chance, delayed_acceptance = KERNELS[kernel].values()
    draws = jnp.asarray(TARGETS[target].draws(rng, NUM_CHAINS))
    program = compiled_transitions(delayed_acceptance)
    state = program(
        list(TARGETS).index(target), chance, always, fitted(target, surrogate), draws, key
    )
    assert np.isfinite(state.accept_prob).all(), "NUTS was reached"
    return state


# Every surrogate and every target with every kernel, but not all triples.
CASES = [
    ("banana", "poor", "plain"),
    ("gaussian", "wrong", "delayed"),
    ("banana", "poor", "delayed"),
    ("banana", "good", "delayed"),
    ("banana", "poor", "mixture"),
    ("banana", "good", "plain"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("target", "surrogate", "kernel"), CASES)
def test_the_target_is_invariant(target, surrogate, kernel, rng, key):
    state = after_transitions(target, surrogate, kernel, rng, key)
    scores = z_scores(TARGETS[target], state.z)
    assert max(map(abs, scores.values())) < 4.5, scores
    # The chains did move, and not all proposals were taken.
    assert 0.01 < float(state.accept_prob.mean()) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "kernel"), [("banana", "plain"), ("gaussian", "delayed"), ("gaussian", "mixture")]
)
def test_invariance_is_lost_without_the_true_energy(target, kernel, rng, key):
    state = after_transitions(target, "wrong", kernel, rng, key, always=True)
    assert max(map(abs, z_scores(TARGETS[target], state.z).values())) > 4.5


@pytest.mark.slow
@pytest.mark.parametrize("surrogate", [*SURROGATES, "wrong"])
def test_the_gradient_is_that_of_the_surrogate_energy(surrogate):
    found = fitted("banana", surrogate)
    points = np.zeros((3, D))
    points[:, :2] = [[0.3, -0.4], [1.5, 3.0], [-4.0, 9.0]]
    points[1, 2:] = np.linspace(-1, 1, D - 2)
    above, below = (
        [evaluate(found, points + e[None]).energy for e in h * np.eye(D)] for h in (1e-5, -1e-5)
    )
    wanted = (np.stack(above, axis=1) - np.stack(below, axis=1)) / 2e-5
    np.testing.assert_allclose(evaluate(found, points).gradient, wanted, rtol=2e-5, atol=1e-6)


@pytest.mark.slow
def test_a_surrogate_knows_gradients_it_was_not_given(rng):
    draws, new = (jnp.asarray(TARGETS["banana"].draws(rng, n)) for n in (400, 300))
    found = fit(mp.SubspaceSurrogate(), draws, slopes("banana")(draws))
    wanted = np.asarray(slopes("banana")(new))
    error = np.linalg.norm(evaluate(found, new).gradient - wanted, axis=1)
    size = np.sqrt(np.mean(np.sum(wanted**2, axis=1)))
    assert np.median(error) < 0.02 * size
    # The quadratic alone does not know the bend.
    bent = evaluate(found._replace(height=jnp.zeros(())), new).gradient
    assert np.median(np.linalg.norm(bent - wanted, axis=1)) > 0.1 * size


@pytest.mark.slow
def test_a_quadratic_is_learnt_exactly():
    x = np.append([2.0, -3.0], np.linspace(-1, 1, D - 2))[None]
    found = evaluate(fitted("gaussian", "good"), x).gradient
    np.testing.assert_allclose(found, slopes("gaussian")(x), rtol=1e-5, atol=1e-5)


@pytest.fixture(scope="module")
def sampled():
    kernel = make(
        TARGETS["banana"],
        num_steps=8,
        true_gradient_probability=0.3,
        delayed_acceptance=2,
        refinement=3,
    )
    with without_nuts():
        return run(kernel, jax.random.key(2), init=START, num_warmup=120, num_samples=150)


@pytest.mark.slow
def test_counts_add_up(sampled):
    fields = sampled.get_extra_fields(group_by_chain=True)
    gradients, energies, cheap = (
        np.asarray(fields[f"num_{name}"])
        for name in ("true_gradients", "true_energies", "surrogate_gradients")
    )
    assert fields["surrogate_used"].all()
    steps = np.diff(gradients, axis=1)
    surrogate = np.diff(cheap, axis=1)
    # A surrogate transition: a first gradient and two moves of 8·3 steps. A true one: 1 to 8 steps,
    # as many for every chain, and a first gradient where that is unknown.
    assert set(np.unique(surrogate)) == {0, 1 + 2 * 24}
    assert set(range(9)) <= set(np.unique(steps)) <= set(range(10))
    assert (np.ptp(steps, axis=0) <= 1).all()
    assert ((steps == 0) == (surrogate > 0)).all()
    assert (np.diff(energies, axis=1) == 1).all()
    # They start at the first draw, whose cost they include.
    assert (gradients[:, 0] <= 9).all()
    assert (energies[:, 0] == 1).all()
    assert (cheap[:, 0] <= 49).all()
    # Warm-up: one gradient to start, then 4.5 ± √5.25 an iteration and no surrogate.
    before = np.asarray(fields["num_warmup_gradients"])
    assert (np.ptp(before, axis=1) == 0).all()
    assert (np.abs(before[:, 0] - 1 - 120 * 4.5) < 4.5 * np.sqrt(120 * 5.25)).all()
    assert (fields["num_warmup_energies"] == 1 + 120).all()


COUNTS = [
    f"num_{name}"
    for name in ("true_gradients", "true_energies", "warmup_gradients", "warmup_energies")
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:SurrogateHMC. expected a warm-up:UserWarning")
@pytest.mark.parametrize("num_warmup", [0, 12])
def test_counts_tell_warm_up_from_sampling(num_warmup):
    """Through NumPyro's own phases: a collected warm-up, sampling, and sampling again."""
    kernel = make(TARGETS["banana"], num_steps=4)
    mcmc = numpyro.infer.MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=8,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )

    def counts():
        found = mcmc.get_extra_fields(group_by_chain=True)
        return [np.asarray(found[name]) for name in COUNTS]

    before = np.ones((2, 2))  # of the first state
    if num_warmup:
        mcmc.warmup(jax.random.key(0), init_params=START, collect_warmup=True)
        true_gradients, true_energies, gradients, energies = counts()
        assert not true_gradients.any()
        assert not true_energies.any()
        assert (np.diff(gradients, axis=1) > 0).all()
        assert (energies == 1 + np.arange(1, num_warmup + 1)[None]).all()
        before = np.stack([gradients[:, -1], energies[:, -1]])
    mcmc.run(jax.random.key(1), init_params=None if num_warmup else START)
    true_gradients, true_energies, gradients, energies = counts()
    for after, then in zip((gradients, energies), before, strict=True):
        np.testing.assert_array_equal(after, then[:, None].repeat(8, 1))
    assert (true_gradients[:, 0] > 0).all()
    assert (np.diff(true_gradients, axis=1) > 0).all()
    assert (true_energies[:, -1] >= 8).all()
    last = true_gradients[:, -1]
    mcmc.post_warmup_state = mcmc.last_state
    mcmc.run(jax.random.key(2))
    true_gradients, _, gradients, _ = counts()
    assert (true_gradients[:, 0] > last).all()
    np.testing.assert_array_equal(gradients[:, -1], before[0])


@pytest.mark.slow
@pytest.mark.parametrize("done", [3, 40])
def test_a_refresh_is_counted_to_its_phase(done):
    kernel = SurrogateHMC(potential_fn=banana_potential, num_steps=4)
    state = kernel.init(jax.random.split(jax.random.key(0), 2), 40, START, (), {})._replace(
        i=jnp.asarray(done)
    )
    new = kernel.refresh(state, (), {})
    added = [
        int(value) for name in COUNTS for value in (getattr(new, name) - getattr(state, name))[:1]
    ]
    assert added == ([0, 0, 1, 1] if done < 40 else [1, 1, 0, 0])
    np.testing.assert_allclose(new.potential_energy, [banana_potential(x) for x in START])


@pytest.mark.slow
def test_a_step_keeps_the_types_of_the_state():
    """A progress bar compiles the step for the types of every state that it meets."""
    kernel = SurrogateHMC(potential_fn=banana_potential, num_steps=4)
    state = kernel.init(jax.random.split(jax.random.key(0), 4), 40, jnp.zeros((4, 2)), (), {})

    def types(tree):
        return [(leaf.dtype, leaf.shape, leaf.weak_type) for leaf in jax.tree.leaves(tree)]

    first = jax.eval_shape(lambda state: state, state)
    assert types(jax.eval_shape(lambda state: kernel.sample(state, (), {}), state)) == types(first)


@pytest.mark.slow
def test_counts_are_of_calls_and_chains_of_one_key_are_the_same():
    """By sequential chains, each traced anew, of a target whose parameters are a tree."""
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
    kernel = SurrogateHMC(
        potential_fn=lambda z: potential(jnp.append(z["a"], z["b"])),
        num_steps=4,
        refinement=2,
        history_size=256,
    )
    keys = jnp.stack([jax.random.key(0)] * 2)
    init = {"a": jnp.zeros((2, 1)), "b": jnp.zeros(2)}
    with without_nuts():
        mcmc = run(kernel, keys, init=init, num_warmup=60, num_samples=40, method="sequential")
    jax.effects_barrier()
    draws, fields = (
        mcmc.get_samples(group_by_chain=True),
        mcmc.get_extra_fields(group_by_chain=True),
    )
    assert (draws["a"].shape, draws["b"].shape) == ((2, 40, 1), (2, 40))
    assert fields["surrogate_used"].all()
    for values in (*draws.values(), *fields.values()):
        np.testing.assert_array_equal(values[0], values[1])
    # A true trajectory's energy comes with its gradient; the others, of 4·2 steps and a first
    # gradient, need one alone.
    gradients = fields["num_warmup_gradients"] + fields["num_true_gradients"]
    assert calls["gradient"] == gradients[:, -1].sum()
    assert calls["energy"] == fields["num_surrogate_gradients"][:, -1].sum() / 9


@pytest.mark.slow
def test_the_surrogate_is_frozen(sampled):
    before = jax.tree.leaves(
        (sampled.last_state.surrogate, sampled.last_state.adapt_state.step_size)
    )
    sampled.post_warmup_state = sampled.last_state
    with without_nuts():
        sampled.run(jax.random.key(7))
    after = jax.tree.leaves(
        (sampled.last_state.surrogate, sampled.last_state.adapt_state.step_size)
    )
    for old, new in zip(before, after, strict=True):
        np.testing.assert_array_equal(old, new)


def model(y):
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    numpyro.deterministic("twice", 2 * mean)
    numpyro.sample("y", dist.Normal(mean + weights[0], scale), obs=y)


@pytest.fixture(scope="module")
def model_run():
    kernel = SurrogateHMC(model, num_steps=8, true_gradient_probability=0.2)
    y = jnp.array([0.3, 1.2, 0.4, 0.9, -0.2])
    with without_nuts():
        return y, run(kernel, jax.random.key(3), y, num_warmup=300, num_samples=500)


@pytest.mark.slow
def test_a_model_with_constrained_sites_gives_a_tree_with_true_scores(model_run, rng):
    y, mcmc = model_run
    assert mcmc.get_extra_fields()["surrogate_used"].all()
    tree = mp.from_numpyro(mcmc)
    assert {"scale", "mean", "weights", "twice"} <= set(tree.posterior.data_vars)
    assert float(tree.posterior["scale"].min()) > 0
    assert {"num_true_gradients", "num_true_energies", "surrogate_used"} <= set(
        tree.sample_stats.data_vars
    )
    # True scores were computed after sampling, and are counted apart.
    assert tree.sample_stats.attrs["score_evaluations"] == "1000"
    bare = tree.copy(deep=True)
    bare["sample_stats"] = bare.sample_stats.to_dataset().drop_vars(
        ["gradient", "unconstrained_draw"]
    )
    attached = mp.attach_scores(bare, model, y)
    np.testing.assert_allclose(
        tree.sample_stats["gradient"].values,
        attached.sample_stats["gradient"].values,
        rtol=1e-6,
        atol=1e-8,
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


@pytest.mark.slow
def test_no_gradient_of_a_surrogate_can_be_collected():
    kernel = make(
        TARGETS["gaussian"], surrogate=mp.SubspaceSurrogate(num_training=20, tuning_steps=1)
    )
    mcmc = numpyro.infer.MCMC(kernel, num_warmup=20, num_samples=5, progress_bar=False)
    with pytest.raises(ValueError, match="attach_scores"):
        mcmc.run(jax.random.key(0), init_params=jnp.zeros(2), extra_fields=("z_grad",))


@pytest.mark.slow
def test_chains_may_be_vectorised_by_jax():
    kernel = make(
        TARGETS["gaussian"],
        num_steps=4,
        surrogate=mp.SubspaceSurrogate(num_training=10, tuning_steps=5),
        history_size=64,
    )
    with without_nuts():
        mcmc = run(
            kernel,
            jax.random.key(0),
            init=jnp.ones((2, 2)),
            num_warmup=40,
            num_samples=10,
            method=jax.vmap,
        )
    assert mcmc.get_samples().shape == (20, 2)
    fields = mcmc.get_extra_fields(group_by_chain=True)
    assert fields["num_true_gradients"].shape == (2, 10)
    assert fields["surrogate_used"].all()
    assert np.isfinite(fields["accept_prob"]).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "either `model` or `potential_fn`"),
        ({"potential_fn": banana_potential, "num_steps": 0}, "`num_steps` of at least 1"),
        (
            {"potential_fn": banana_potential, "delayed_acceptance": 0},
            "`delayed_acceptance` of at least 1",
        ),
        (
            {"potential_fn": banana_potential, "true_gradient_probability": 1.5},
            "`true_gradient_probability`, a number in",
        ),
        (
            {"potential_fn": banana_potential, "max_gradient_error": float("nan")},
            "`max_gradient_error`, a number in",
        ),
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
