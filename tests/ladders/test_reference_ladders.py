"""Ladders from a normal fitted to earlier draws: exact where all is normal, saved, refused where
the prior counts."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal, norm

import mcmcpost as mp
from mcmcpost.evidence import Normal, TemperedTarget, make_ladder
from mcmcpost.ladders import place_rungs, reference_target
from mcmcpost.trees import ladder_to_datatree, posterior_rung, read_ladder

pytestmark = pytest.mark.usefixtures("rank_promotion")

Y = 1.0
TRUTH = float(norm.logpdf(Y, 0.0, np.sqrt(1.25)))
KERNEL = mp.HamiltonianKernel(num_steps=4)


def model(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 0.5), obs=y)


def log_likelihood(x):
    return dist.Normal(x[0], 0.5).log_prob(Y)


def log_prior(x):
    return dist.Normal(0.0, 1.0).log_prob(x).sum()


def posterior(seed=0, shape=(2, 100)):
    """Return exact draws of the posterior, N(0.8, 0.2)."""
    draws = 0.8 + np.sqrt(0.2) * np.random.default_rng(seed).normal(size=(*shape, 1))
    return mp.from_arrays(draws, 5.0 * (0.8 - draws), names=("x",))


@pytest.fixture(scope="module")
def ladder():
    """The tree of exact draws on the path from N(0.5, 0.36) to the posterior."""
    normal, levels = Normal(np.array([0.5]), np.array([[0.6]])), np.array([0.0, 0.4, 1.0])
    precision = (1 - levels) / 0.36 + levels * 5.0
    mean = ((1 - levels) * 0.5 / 0.36 + levels * 4.0) / precision
    x = mean + np.random.default_rng(3).normal(size=(2, 60, 3)) / np.sqrt(precision)
    base = (0.5 - x) / 0.36
    ratio = norm.logpdf(Y, x, 0.5) + norm.logpdf(x) - norm.logpdf(x, 0.5, 0.6)
    slopes = (5.0 * (0.8 - x) - base)[..., None], base[..., None]
    made = make_ladder(levels, x[..., None], ratio, *slopes, names=("x",), reference=normal)
    return ladder_to_datatree(made)


@pytest.fixture(scope="module")
def sampled():
    return mp.sample_power_posteriors(
        model,
        (Y,),
        reference=posterior(),
        key=jax.random.key(1),
        num_warmup=60,
        num_samples=60,
        num_chains=2,
        kernel=KERNEL,
        exchange=1,
    )


def test_the_target_of_a_reference_is_exactly_normalised(key):
    rng = np.random.default_rng(0)
    lower = np.tril(rng.normal(size=(3, 3))) + 3 * np.eye(3)
    normal = Normal(rng.normal(size=3), lower)
    target = TemperedTarget(lambda x: -(x**4).sum(), lambda x: -(x**2).sum(), None, ("a", "b", "c"))
    made = reference_target(target, normal)
    x = jnp.asarray(rng.normal(size=3))
    exact = multivariate_normal(normal.mean, lower @ lower.T).logpdf(x)
    assert float(made.log_prior(x)) == pytest.approx(exact, rel=1e-12)
    assert float(made.log_prior(x) + made.log_likelihood(x)) == pytest.approx(
        float(-(x**4).sum() - (x**2).sum())
    )
    draws = np.asarray(jax.vmap(made.sample_prior)(jax.random.split(key, 4000)))
    assert np.abs(normal.standardise(draws).mean(axis=0)).max() < 4.5 / np.sqrt(4000)
    np.testing.assert_allclose(np.cov(normal.standardise(draws).T), np.eye(3), atol=0.1)


@pytest.mark.slow
def test_a_gaussian_posterior_has_its_evidence_from_three_rungs(sampled):
    assert sampled["sample_stats"].attrs["reference"] == "normal"
    assert sampled["sample_stats"].sizes["temperature"] == 3
    found = mp.log_evidence(sampled, "zv2", degree=2)
    assert abs(found.value - TRUTH) < 1e-8
    assert found.info["reference"] == "fitted normal"
    assert found.info["round_trips"] > 0
    assert (found.rungs_to_dataframe()["swap_rate"].iloc[:-1] > 0.5).all()
    assert found.rungs_to_dataframe()["error_share"].sum() == pytest.approx(1.0)
    assert found.to_json_dict()["reference"] == "fitted normal"
    assert found.to_datatree()["evidence"].attrs["reference"] == "fitted normal"
    assert "simpson" not in found.to_dataframe().index


@pytest.mark.slow
def test_the_reference_rung_is_the_fitted_normal_itself(sampled):
    read = read_ladder(sampled)
    mean, sd = read.reference.mean[0], read.reference.lower[0, 0]
    # Of a normal posterior the scores at the draws give both.
    np.testing.assert_allclose([mean, sd], [0.8, np.sqrt(0.2)], rtol=1e-12)
    x = read.draws[..., 0]
    joint = norm.logpdf(Y, x, 0.5) + norm.logpdf(x)
    np.testing.assert_allclose(
        read.log_likelihood, joint - norm.logpdf(x, mean, sd), rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(read.score(1.0)[..., 0], 5.0 * (0.8 - x), rtol=1e-9, atol=1e-9)
    assert len(np.unique(x[:, :, 0])) == x[:, :, 0].size
    assert read.exchange.round_trips > 0


@pytest.mark.slow
def test_exact_draws_have_the_exact_evidence(ladder):
    found = mp.log_evidence(ladder, "zv2", degree=2)
    assert found.method == "pooled"
    assert abs(found.value - TRUTH) < 1e-8


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_reference_survives_a_file(ladder, suffix, tmp_path):
    loaded = read_ladder(mp.load_tree(mp.save_tree(ladder, tmp_path / f"ladder{suffix}")))
    kept = read_ladder(ladder)
    for a, b in zip(loaded.reference, kept.reference, strict=True):
        np.testing.assert_array_equal(a, b)
    assert loaded.power == kept.power != 5.0
    broken = ladder.copy()
    broken["sample_stats"] = ladder["sample_stats"].to_dataset().drop_vars("reference_mean")
    with pytest.raises(mp.InputError, match=r"`sample_stats\.reference_mean`"):
        read_ladder(broken)


def test_the_last_rung_is_a_posterior_and_not_a_ladder(ladder):
    rung = posterior_rung(ladder)
    x = rung["sample_stats"]["unconstrained_draw"].values
    np.testing.assert_allclose(
        rung["sample_stats"]["gradient"], 5.0 * (0.8 - x), rtol=1e-9, atol=1e-9
    )
    assert "reference" not in rung["sample_stats"].attrs
    assert "reference_mean" not in rung["sample_stats"]
    assert ladder["sample_stats"].attrs["reference"] == "normal"


def test_what_needs_the_prior_at_zero_refuses(ladder):
    with pytest.raises(
        mp.InputError, match="expected rungs of a ladder from the prior, got one from a fitted ref"
    ):
        mp.ladder_from_traces(ladder, model, (Y,))
    with pytest.raises(
        mp.InputError, match=r"`reference` to be a trace of the posterior, got a ladder"
    ):
        mp.sample_power_posteriors(model, (Y,), reference=ladder, key=jax.random.key(0))


def test_rungs_are_placed_by_the_barrier_whatever_the_start(key):
    """From N(0, s²) to N(0, 1), λ(t) is that of a scaled chi-square and the middle rung shares the
    barrier."""
    target = reference_target(
        TemperedTarget(lambda x: -0.5 * (x**2).sum(), lambda x: 0.0 * x.sum(), None, ("x",)),
        Normal(np.zeros(1), np.full((1, 1), 3.0)),
    )
    draws = np.random.default_rng(0).normal(size=(1000, 1))
    found = place_rungs("here", target, Normal(np.zeros(1), np.full((1, 1), 3.0)), draws, key, 3)
    # ℓ = −(4/9)x² and Var x = 1/(1/9 + 8t/9): λ ∝ Var x, so Λ(t) ∝ log(1 + 8t) and the middle is
    # (√9 − 1)/8.
    np.testing.assert_allclose(found, [0.0, 0.25, 1.0], atol=0.03)


@pytest.mark.slow
def test_functions_need_no_prior_sampler_and_rungs_are_added():
    functions = {"log_likelihood": log_likelihood, "log_prior": log_prior}
    made = mp.sample_power_posteriors(
        **functions,
        reference=posterior(),
        key=jax.random.key(1),
        num_warmup=60,
        num_samples=60,
        num_chains=2,
        kernel=KERNEL,
        temperatures=[0.0, 1.0],
    )
    assert read_ladder(made).names == ("x",)
    more = mp.add_rungs(
        made, [0.4], **functions, key=jax.random.key(2), num_warmup=40, kernel=KERNEL
    )
    both = read_ladder(more)
    np.testing.assert_allclose(
        both.score(1.0)[..., 0], 5.0 * (0.8 - both.draws[..., 0]), rtol=1e-9, atol=1e-9
    )
    assert abs(mp.log_evidence(more, "zv2", degree=2).value - TRUTH) < 1e-8
    assert mp.barrier_ladder(more, 4).shape == mp.adaptive_ladder(more, 4).shape == (4,)
