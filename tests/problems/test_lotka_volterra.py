"""The hare–lynx model: its solve, its failures, its scores, and a short run of its sampler."""

import functools
import sys
from pathlib import Path

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import compute_log_probs, log_density, potential_energy, unconstrain_fn
from scipy.integrate import solve_ivp
from scipy.special import softmax
from scipy.stats import multivariate_t

from mcmcpost.app.model_file import load_model_file
from mcmcpost.app.quantities import evaluate_quantities

FILE = load_model_file(Path(__file__).parents[2] / "models" / "lotka_volterra.py")
lv = sys.modules[FILE.model.__module__]
TIMES = np.arange(1.0, 21.0)

# 10,000 reference draws of posteriordb's hudson_lynx_hare-lotka_volterra: mean and sd
REFERENCE = {
    "theta": ([0.546864, 0.027747, 0.800095, 0.024086], [0.0631, 0.00416, 0.0894, 0.00353]),
    "z_init": ([34.0352, 5.9359], [2.917, 0.531]),
    "sigma": ([0.248057, 0.251017], [0.0433, 0.0436]),
}


@functools.cache
def unconstrained_mode(priors):
    free = jax.jit(lambda values: unconstrain_fn(lv.model, (), lv.data(priors), values))(
        lv.init(priors)
    )
    return {name: np.asarray(value) for name, value in free.items()}


def near_mode(priors, rng, size=None, spread=0.03):
    """Return unconstrained values about the mode, with a leading axis if `size` is given."""
    lead = () if size is None else (size,)
    return {
        k: v + spread * rng.normal(size=lead + v.shape)
        for k, v in unconstrained_mode(priors).items()
    }


@functools.partial(jax.jit, static_argnums=0)
def log_probs(priors, values):
    return compute_log_probs(lv.model, (), lv.data(priors), values)[0]


def energy(priors, **settings):
    return lambda z: potential_energy(lv.model, (), lv.data(priors) | settings, z)


# compiled once: every caller brings BATCH states
SCORES = jax.jit(jax.vmap(jax.value_and_grad(energy("paper"))))
BATCH = 32


def flat(gradient):
    return np.concatenate(
        [np.asarray(v).reshape(v.shape[0], -1) for v in gradient.values()], axis=1
    )


@pytest.mark.slow
def test_the_solve_agrees_with_scipy():
    parameters = lv._parameters(lv.init())
    tight = lv.solve(parameters, TIMES, solver=diffrax.Dopri8(), tolerance=1e-13, max_steps=4096)
    a, b, d, g = (float(x) for x in parameters[:4])
    truth = solve_ivp(
        lambda _, v: [(a - b * v[1]) * v[0], (d * v[0] - g) * v[1]],
        (0.0, 20.0),
        np.asarray(parameters.initial),
        method="DOP853",
        t_eval=TIMES,
        rtol=1e-13,
        atol=1e-13,
    )
    assert tight.solved
    np.testing.assert_allclose(np.exp(tight.log), truth.y.T, rtol=1e-10)
    np.testing.assert_allclose(np.exp(lv.solve(parameters, TIMES).log), truth.y.T, rtol=5e-6)


@pytest.mark.slow
def test_both_prior_sets_give_the_same_likelihood():
    natural = jax.tree.leaves(lv._parameters(lv.init("stan")))
    paper = dict(
        zip(
            lv.init("paper"), jnp.log(jnp.concatenate([jnp.ravel(x) for x in natural])), strict=True
        )
    )
    ours, theirs = log_probs("paper", paper), log_probs("stan", lv.init("stan"))
    for name in ("hare", "lynx"):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-9)


@pytest.mark.slow
def test_the_paper_priors_are_the_papers():
    assert lv.data()["priors"] is lv.data("paper")["priors"]
    zeros = log_probs("paper", dict.fromkeys(lv.init(), np.zeros(())))
    loc = np.array([0.0, -3.0, -3.0, 0.0, np.log(10), np.log(10), -1.0, -1.0])
    scale = np.array([0.5] * 4 + [1.0] * 4)
    expected = -0.5 * (loc / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose([zeros[name] for name in lv.init()], expected, rtol=1e-12)


@pytest.mark.slow
def test_a_failed_solve_has_no_density_and_no_score(rng):
    """Thirty steps end after several years are saved near the mode, and before the first at a wild
    state."""
    z = near_mode("stan", rng, size=2)
    z["theta"][1, [0, 2]] = 5.0
    density, gradient = jax.jit(jax.vmap(jax.value_and_grad(energy("stan", max_steps=30))))(z)
    assert np.all(np.asarray(density) == np.inf)
    assert all(np.isnan(g).all() for g in gradient.values())


@pytest.mark.slow
def test_a_failure_at_one_state_leaves_its_neighbours_alone(rng):
    z = near_mode("paper", rng, size=BATCH)
    z["log_alpha"][1] = z["log_gamma"][1] = 5.0  # hundreds of oscillations in twenty years
    density, gradient = SCORES(z)
    others = np.arange(BATCH) != 1
    assert np.isinf(density[1])
    assert np.isnan(flat(gradient)[1]).all()
    assert np.isfinite(density[others]).all()
    assert np.isfinite(flat(gradient)[others]).all()


@pytest.mark.slow
def test_score_accuracy_is_as_documented(rng):
    z = near_mode("paper", rng, size=BATCH)
    tight = energy("paper", solver=diffrax.Dopri8(), tolerance=1e-12, max_steps=4096)
    truth = flat(jax.jit(jax.vmap(jax.grad(tight)))(z))
    error = np.sqrt(((flat(SCORES(z)[1]) - truth) ** 2).mean(axis=0)) / truth.std(axis=0)
    assert error.max() < 5e-6


@pytest.mark.slow
def test_single_precision_works(rng):
    z = near_mode("paper", rng, size=BATCH)
    double = flat(SCORES(z)[1])
    with jax.enable_x64(False):
        _, single = jax.jit(jax.vmap(jax.value_and_grad(energy("paper"))))(
            {k: jnp.asarray(v, jnp.float32) for k, v in z.items()}
        )
        assert all(g.dtype == jnp.float32 for g in single.values())
        single = flat(single)
    np.testing.assert_allclose(single, double, atol=1e-3 * np.abs(double).max())


@pytest.mark.slow
def test_the_sampler_survives_failures_and_a_wild_start_and_keeps_no_wrong_score(key):
    """At this cap many proposals fail: what the sampler keeps has the score of the solve without a
    cap."""
    starts = {name: jnp.array([value, value - 2.0]) for name, value in lv.init().items()}
    mcmc = MCMC(
        NUTS(lv.model, dense_mass=True, max_tree_depth=3),
        num_warmup=20,
        num_samples=BATCH // 2,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    fields = ("z_grad", "potential_energy", "diverging")
    mcmc.run(key, extra_fields=fields, init_params=starts, **lv.data("paper"), max_steps=76)
    extra, draws = mcmc.get_extra_fields(), mcmc.get_samples()
    assert extra["diverging"].any()
    assert np.isfinite(extra["potential_energy"]).all()
    _, uncapped = SCORES(draws)
    np.testing.assert_allclose(
        flat(extra["z_grad"]), flat({k: uncapped[k] for k in extra["z_grad"]}), rtol=1e-8
    )


@jax.jit
@jax.vmap
def stan_log_density(draw):
    sites = {"theta": draw[:4], "z_init": draw[4:6], "sigma": draw[6:]}
    return log_density(lv.model, (), lv.data("stan"), sites)[0]


@pytest.mark.slow
def test_stan_priors_reproduce_the_reference_means(rng):
    """By importance sampling on the log scale: a proposal that learns from three others is near the
    posterior."""
    mean, sd = (np.concatenate([moments[i] for moments in REFERENCE.values()]) for i in range(2))
    proposal = multivariate_t(np.log(mean), np.diag((sd / mean) ** 2), df=7)
    for sharpness in (0.3, 0.6, 1.0, 1.0):
        log = proposal.rvs(2000, random_state=rng)
        log_weights = (
            np.asarray(stan_log_density(np.exp(log))) + log.sum(axis=1) - proposal.logpdf(log)
        )
        weights, tempered = softmax(log_weights), softmax(sharpness * log_weights)
        proposal = multivariate_t(tempered @ log, 1.2 * np.cov(log.T, aweights=tempered), df=7)
    found = weights @ np.exp(log)
    error = np.sqrt(weights**2 @ (np.exp(log) - found) ** 2)
    assert (error < 0.05 * sd).all()
    np.testing.assert_array_less(np.abs(found - mean), 4.5 * np.hypot(error, sd / 100))


@pytest.mark.slow
def test_quantities_are_the_prey_at_the_papers_times(rng):
    z = {name: value.reshape(2, 3) for name, value in near_mode("paper", rng, size=6).items()}
    values = evaluate_quantities(FILE, z)
    years = [name for name in values if name.startswith("prey[")]
    assert years[0] == "prey[1912.0]"
    assert years[-1] == "prey[1915.8]"
    assert len(years) == 20
    assert all(v.shape == (2, 3) for v in values.values())
    np.testing.assert_allclose(values["alpha"], np.exp(z["log_alpha"]))
    yearly = lv.solve(lv._parameters({k: v[1, 2] for k, v in z.items()}), TIMES).log
    np.testing.assert_allclose(values["prey[1913.0]"][1, 2], np.exp(yearly[12, 0]), rtol=1e-5)


@pytest.mark.slow
def test_quantities_of_a_failed_solve_are_nan():
    wild = lv.init() | {"log_alpha": np.float64(5.0), "log_gamma": np.float64(5.0)}
    assert all(
        np.isnan(value) for name, value in lv.quantities(wild).items() if name.startswith("prey[")
    )


def test_an_unknown_prior_set_is_refused():
    with pytest.raises(ValueError, match=r"expected `priors` to be one of .*got 'flat'"):
        lv.data("flat")
