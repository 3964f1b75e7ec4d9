"""Traces of BlackJAX, emcee and dynesty, made by the real packages: gradients kept where there are,
else JAX's own."""

import arviz_base
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtri

import mcmcpost as mp
from mcmcpost.trees import read_trace

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("rank_promotion")]
REASON = "needs the extra `interop`"
blackjax = pytest.importorskip("blackjax", reason=REASON)
emcee = pytest.importorskip("emcee", reason=REASON)
dynesty = pytest.importorskip("dynesty", reason=REASON)

MEAN = np.array([1.0, -0.5, 2.0])  # of b[0], b[1] and of a
START = {"b": jnp.zeros(2), "a": jnp.zeros(())}


def logdensity(position):
    """Two coordinates of unit variance, and one of 1/4: the scores are MEAN − b and 4(MEAN − a)."""
    return -0.5 * jnp.sum((position["b"] - MEAN[:2]) ** 2) - 2.0 * (position["a"] - MEAN[2]) ** 2


def run_chains(kernel, start, chains=4, draws=400):
    def one(key):
        first = kernel.init(start)
        _, states = jax.lax.scan(
            lambda s, k: (lambda t: (t[0], t))(kernel.step(k, s)),
            first,
            jax.random.split(key, draws),
        )
        return states

    return jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), chains))


@pytest.fixture(scope="module")
def nuts():
    return run_chains(
        blackjax.nuts(logdensity, step_size=0.5, inverse_mass_matrix=jnp.ones(3)), START
    )


def by_definition(draws):
    return np.concatenate([4 * (MEAN[2] - draws[..., :1]), MEAN[:2] - draws[..., 1:]], axis=-1)


def check(tree, tmp_path):
    trace = read_trace(tree)
    np.testing.assert_allclose(trace.scores, by_definition(trace.draws), rtol=1e-10, atol=1e-10)
    back = mp.load_tree(mp.save_tree(tree, tmp_path / "trace.nc"))
    assert back.identical(tree)
    table = mp.summary(tree, method="zv2")
    assert set(table["status"]) == {"exact"}
    np.testing.assert_allclose(table["mean_cv"], MEAN[[2, 0, 1]], atol=1e-8)
    return trace


def test_nuts_keeps_its_gradients(nuts, tmp_path):
    states, info = nuts
    tree = mp.from_blackjax(states, info)
    trace = check(tree, tmp_path)
    assert trace.names == ("a", "b[0]", "b[1]")
    assert tree["posterior"]["b"].shape == (4, 400, 2)
    np.testing.assert_array_equal(tree["posterior"]["a"], states.position["a"])
    np.testing.assert_array_equal(tree["sample_stats"]["lp"], states.logdensity)
    assert not tree["sample_stats"]["diverging"].any()
    assert tree["sample_stats"].attrs["score_evaluations"] == "0"


@pytest.mark.parametrize("dims", [("draw", "chain"), ("draw",)])
def test_other_leading_axes(nuts, dims):
    states, _ = nuts
    change = (lambda x: jnp.swapaxes(x, 0, 1)) if len(dims) == 2 else (lambda x: x[0])
    trace = read_trace(mp.from_blackjax(jax.tree.map(change, states), dims=dims))
    whole = read_trace(mp.from_blackjax(states))
    np.testing.assert_array_equal(trace.scores, whole.scores[: trace.scores.shape[0]])


def test_a_position_that_is_an_array():
    def target(x):
        return -0.5 * x @ x

    states, _ = run_chains(blackjax.mala(target, 0.5), jnp.zeros(2), draws=50)
    trace = read_trace(mp.from_blackjax(states, allow_bad_scores=True))
    assert trace.names == ("x[0]", "x[1]")
    np.testing.assert_allclose(trace.scores, -trace.draws, rtol=1e-12)


def test_a_kernel_without_gradients_needs_the_log_density(tmp_path):
    walk = blackjax.additive_step_random_walk(
        logdensity, blackjax.mcmc.random_walk.normal(0.8 * jnp.ones(3))
    )
    states, info = run_chains(walk, {"b": MEAN[:2], "a": MEAN[2]}, draws=3000)
    with pytest.raises(ValueError, match=r"`logdensity_grad`, got RWState.*logdensity_fn"):
        mp.from_blackjax(states, info)
    tree = mp.from_blackjax(states, info, logdensity_fn=logdensity)
    check(tree, tmp_path)
    assert tree["sample_stats"].attrs["score_evaluations"] == "12000"


def test_a_sequential_sampler_has_weights():
    particles = {"b": MEAN[:2] + 1.3 * jax.random.normal(jax.random.key(2), (3_000, 2))}
    particles |= {"a": MEAN[2] + 0.65 * jax.random.normal(jax.random.key(3), (3_000,))}
    reference = jax.vmap(lambda x: logdensity(x) / 1.69)(particles)
    tempering = blackjax.smc.tempered.init(particles)
    logs = jax.vmap(logdensity)(particles) - reference
    states = tempering._replace(weights=jax.nn.softmax(logs), tempering_param=1.0)
    tree = mp.from_blackjax(states, logdensity_fn=logdensity, dims=("draw",))
    found = mp.expectation(tree, method="zv2")
    np.testing.assert_allclose(found.mean, MEAN[[2, 0, 1]], atol=1e-8)
    assert (np.abs(found.mean_plain - MEAN[[2, 0, 1]]) < 5 * found.mcse_plain).all()
    share = np.exp(np.asarray(logs))
    assert found.info["ess"] == pytest.approx(share.sum() ** 2 / (share**2).sum(), rel=1e-6)
    with pytest.raises(ValueError, match="logdensity_fn"):
        mp.from_blackjax(states, dims=("draw",))


def test_a_nested_sampling_run_has_weights_and_live_points():
    """The prior is a normal of sd 5 in each coordinate, the likelihood one of sd 1: the posterior
    is normal."""

    def log_likelihood(x):
        return -0.5 * float(np.sum((x - MEAN[:2]) ** 2))

    rng = np.random.default_rng(4)
    sampler = dynesty.NestedSampler(
        log_likelihood, lambda u: 5 * ndtri(u), 2, nlive=100, rstate=rng, sample="unif"
    )
    sampler.run_nested(print_progress=False)
    tree = mp.from_dynesty(sampler.results, names=("u", "v"))
    live = tree["sample_stats"]["num_live"].values[0]
    assert (live[0], live[-1]) == (100, 1)
    truth = -np.log(26) - (MEAN[:2] @ MEAN[:2]) / 52
    attrs = tree["sample_stats"].attrs
    assert abs(attrs["log_evidence"] - truth) < 4 * attrs["log_evidence_error"]
    scored = mp.attach_scores(
        tree, logdensity_fn=lambda x: -0.5 * jnp.sum((x - MEAN[:2]) ** 2) - 0.5 * jnp.sum(x**2) / 25
    )
    found = mp.expectation(scored, method="zv1")
    np.testing.assert_allclose(found.mean, MEAN[:2] * 25 / 26, atol=1e-9)
    assert (np.abs(found.mean_plain - found.mean) < 5 * found.mcse_plain).all()


def test_bad_states(nuts):
    states, _ = nuts
    with pytest.raises(ValueError, match="`dims` of chain and draw"):
        mp.from_blackjax(states, dims=("chain", "step"))
    with pytest.raises(TypeError, match="states with a `position`, got dict"):
        mp.from_blackjax(states.position)
    with pytest.raises(ValueError, match="start with chain, draw"):
        mp.from_blackjax(jax.tree.map(lambda x: x[0, 0], states))
    with pytest.raises(mp.ScoreError, match="wrong sign"):
        mp.from_blackjax(
            states._replace(logdensity_grad=jax.tree.map(jnp.negative, states.logdensity_grad))
        )
    other = {f"{name}2": leaf for name, leaf in states.logdensity_grad.items()}
    with pytest.raises(mp.InputError, match="`logdensity_grad` of the shapes"):
        mp.from_blackjax(states._replace(logdensity_grad=other))
    fewer = jax.tree.map(lambda leaf: leaf[:, :3], nuts[1])
    with pytest.raises(mp.InputError, match=r"as the positions, got . chains of 3 draws"):
        mp.from_blackjax(states, fewer)


@pytest.fixture(scope="module")
def walkers():
    sampler = emcee.EnsembleSampler(
        8, 3, lambda x: -2.0 * (x[0] - MEAN[2]) ** 2 - 0.5 * np.sum((x[1:] - MEAN[:2]) ** 2)
    )
    sampler.random_state = np.random.RandomState(3).get_state()
    sampler.run_mcmc(MEAN[[2, 0, 1]] + np.random.default_rng(3).normal(size=(8, 3)), 1500)
    return arviz_base.from_emcee(sampler, var_names=["a", "b"], slices=[0, slice(1, None)])


def flat(x):
    return logdensity({"a": x[0], "b": x[1:]})


def test_emcee_gets_its_scores_from_a_log_density(walkers, tmp_path):
    tree = mp.attach_scores(walkers, logdensity_fn=flat)
    trace = check(tree, tmp_path)
    assert trace.draws.shape == (8, 1500, 3)
    np.testing.assert_array_equal(
        trace.draws[..., 0], walkers["posterior"]["a"].transpose("chain", "draw")
    )


def test_emcee_recorded_another_density(walkers):
    with pytest.raises(mp.ScoreError, match=r"recorded `sample_stats.lp` by a constant"):
        mp.attach_scores(walkers, logdensity_fn=lambda x: flat(x) - 0.1 * x[1])
