"""Sampling a ladder: exact moments on a Gaussian path, an iid prior rung, exchange, resuming,
failures."""

import os
import signal
import subprocess
import sys
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import mcmcpost as mp
from mcmcpost.core.mcse import mcse_mean
from mcmcpost.evidence import TemperedTarget, equidistributed_ladder, make_ladder, power_ladder
from mcmcpost.ladders import HamiltonianKernel, sample_ladder, sample_more_rungs, sampling
from mcmcpost.ladders.lanes import potential

pytestmark = pytest.mark.usefixtures("rank_promotion")

HMC = HamiltonianKernel(num_steps=4)  # compiles in half the time of NUTS


def gaussian(d, y=1.3, noise=0.5):
    """Return the target of y ~ N(x, noise²), x ~ N(0, 1) in d dimensions."""
    constant = 0.5 * d * np.log(2 * np.pi)
    return TemperedTarget(
        lambda x: -0.5 * (((y - x) / noise) ** 2).sum() - d * np.log(noise) - constant,
        lambda x: -0.5 * (x**2).sum() - constant,
        lambda key: jax.random.normal(key, (d,)),
        tuple(f"x[{i}]" for i in range(d)),
    )


def gaussian_moments(t, y=1.3, noise=0.5):
    variance = 1 / (1 + t / noise**2)
    return t * y / noise**2 * variance, variance


def z_scores(ladder):
    """Return (value − truth) / mcse of mean and variance of every rung."""
    scores = []
    for i, t in enumerate(ladder.temperatures):
        mean, variance = gaussian_moments(t)
        draws = ladder.draws[:, :, i]
        for values, truth in ((draws, mean), ((draws - mean) ** 2, variance)):
            scores.append((values.mean(axis=(0, 1)) - truth) / mcse_mean(values))
    return np.abs(scores)


@pytest.mark.slow
def test_nuts_gives_every_rung_its_moments(key):
    ladder, stats = sample_ladder(
        gaussian(1), power_ladder(6, 3), key=key, num_warmup=200, num_samples=400
    )
    assert z_scores(ladder).max() < 4.5
    x = ladder.draws
    np.testing.assert_allclose(ladder.gradient_log_likelihood, (1.3 - x) / 0.25, rtol=1e-12)
    np.testing.assert_allclose(ladder.gradient_log_prior, -x, rtol=1e-12)
    np.testing.assert_allclose(
        ladder.log_likelihood, -2 * (1.3 - x[..., 0]) ** 2 - 0.5 * np.log(np.pi / 2), rtol=1e-9
    )
    assert stats.acceptance_rate[:, :, 1:].mean() > 0.6
    assert np.isfinite(stats.step_size[:, 1:]).all()
    assert np.isnan(stats.swap_rate).all()
    assert stats.lockstep_evaluations >= stats.gradient_evaluations > 0


TEN = gaussian(10)
LEVELS = power_ladder(5, 3)
SETTINGS = {"num_warmup": 100, "num_samples": 500, "num_chains": 4, "kernel": HMC, "exchange": 1}
KEY = jax.random.key(zlib.crc32(b"ladder"))


@pytest.fixture(scope="module")
def exchanged():
    return sample_ladder(TEN, LEVELS, key=KEY, **SETTINGS)


@pytest.mark.slow
def test_hmc_with_exchange_gives_every_rung_its_moments(exchanged):
    assert z_scores(exchanged.ladder).max() < 4.5
    assert (exchanged.stats.num_steps[:, :, 1:] == 4).all()


@pytest.mark.slow
def test_the_prior_rung_is_iid(exchanged):
    prior = exchanged.ladder.draws[:, :, 0]
    correlation = (prior[:, 1:] * prior[:, :-1]).mean(axis=(0, 1))
    assert np.abs(correlation).max() < 4.5 / np.sqrt(2000)
    assert (exchanged.stats.num_steps[:, :, 0] == 0).all()
    assert len(np.unique(prior.reshape(-1, 10), axis=0)) == 2000


def assert_same(one, other):
    for a, b in zip(one.ladder[:5], other.ladder[:5], strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(one.stats, other.stats, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_resumed_run_is_the_uninterrupted_one(exchanged, tmp_path, monkeypatch):
    path = tmp_path / "run.npz"
    save, calls = sampling.save_checkpoint, []

    def interrupted(*args):
        save(*args)
        calls.append(args[1])
        if len(calls) in (3, 31):  # in warm-up, and among the draws
            raise KeyboardInterrupt

    def run(**change):
        return sample_ladder(TEN, LEVELS, checkpoint=path, **{"key": KEY, **SETTINGS, **change})

    monkeypatch.setattr(sampling, "save_checkpoint", interrupted)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run()
    assert_same(run(), exchanged)
    assert calls[2] < 100 < calls[30] < calls[-1] == 600
    assert_same(run(), exchanged)
    with pytest.raises(ValueError, match=r"checkpoint: expected the run that .*key="):
        run(key=jax.random.key(1))
    np.savez(path, a=1)
    with pytest.raises(ValueError, match="checkpoint: expected a file of this function"):
        run()


KILLED = """
import os, pathlib, signal, sys
import test_ladder_sampling as case
path, save, calls = pathlib.Path(sys.argv[1]), case.sampling.save_checkpoint, []

def killed(*args):
    calls.append(args)
    if len(calls) == 20:  # while it writes, among the draws
        path.with_name(f".{path.name}.part").write_bytes(path.read_bytes()[:99])
        os.kill(os.getpid(), signal.SIGKILL)
    save(*args)

case.sampling.save_checkpoint = killed
case.sample_ladder(case.TEN, case.LEVELS, checkpoint=path, key=case.KEY, **case.SETTINGS)
"""


@pytest.mark.slow
def test_a_killed_process_leaves_a_checkpoint_to_go_on_from(exchanged, tmp_path):
    path = tmp_path / "run.checkpoint"
    place = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", KILLED, str(path)], env=place, check=False)
    assert done.returncode == -signal.SIGKILL
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        ".run.checkpoint.part",
        "run.checkpoint",
    ]
    resumed = sample_ladder(TEN, LEVELS, checkpoint=path, key=KEY, **SETTINGS)
    for got, wanted in zip(
        (*resumed.ladder[:5], *resumed.stats),
        (*exchanged.ladder[:5], *exchanged.stats),
        strict=True,
    ):
        np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)
    assert [file.name for file in tmp_path.iterdir()] == ["run.checkpoint"]


def modes(distance=4.0, scale=0.4):
    """Return a likelihood with modes at ±distance, zero between −1 and 1, where its gradient looks
    finite."""

    def log_likelihood(x):
        left, right = (-0.5 * ((x[0] - mode) / scale) ** 2 for mode in (-distance, distance))
        return jnp.where(jnp.abs(x[0]) < 1, -jnp.inf, jnp.logaddexp(left, right))

    return TemperedTarget(
        log_likelihood,
        lambda x: (-0.5 * (x / 3.0) ** 2).sum() - np.log(3.0 * np.sqrt(2 * np.pi)),
        lambda key: 3.0 * jax.random.normal(key, (1,)),
        ("x",),
    )


@pytest.fixture(scope="module")
def bimodal():
    """From one mode, only states that come down the ladder reach the other: half of the draws, by
    symmetry."""
    return sample_ladder(
        modes(),
        power_ladder(6, 4),
        key=KEY,
        init=[4.0],
        exchange=1,
        num_warmup=100,
        num_samples=800,
        num_chains=4,
        kernel=HMC,
    )


@pytest.mark.slow
def test_exchange_mixes_two_modes_and_reports_its_rates(bimodal):
    right = (bimodal.ladder.draws[:, :, -1] > 0).astype(float)
    assert abs(right.mean() - 0.5) < 4.5 * mcse_mean(right)[0]
    assert mcse_mean(right)[0] < 0.1
    rates = bimodal.stats.swap_rate
    assert rates.shape == (4, 6)
    assert np.isnan(rates[:, -1]).all()
    assert ((rates[:, :-1] > 0.05) & (rates[:, :-1] <= 1)).all()


@pytest.mark.slow
def test_likelihood_zero_at_prior_draws(bimodal):
    ladder = bimodal.ladder
    failed = np.abs(ladder.draws[..., 0]) < 1
    assert 0.15 < failed[:, :, 0].mean() < 0.35
    assert not failed[:, :, 1:].any()
    assert (ladder.log_likelihood[failed] == -np.inf).all()
    assert np.isnan(ladder.gradient_log_likelihood[failed]).all()
    assert np.isfinite(ladder.gradient_log_likelihood[~failed]).all()
    assert np.isfinite(ladder.gradient_log_prior).all()


def steep(x):
    """Return a log likelihood that overflows nowhere near its draws, but whose slope squared
    does."""
    return -jnp.exp(2 * x[0]) * (1 + x[1:] @ x[1:])


def test_a_density_that_is_zero_to_rounding_is_zero():
    """The slope of a larger one gives a kinetic energy that overflows, to −∞ where a fused product
    comes first."""
    target = gaussian(3)._replace(log_likelihood=steep)
    near, far = jnp.array([1.0, 0.5, -0.5]), jnp.array([185.0, 150.0, -120.0])
    assert np.isfinite(steep(far))
    np.testing.assert_allclose(
        potential(target, near, jnp.array(0.5)), -(target.log_prior(near) + 0.5 * steep(near))
    )
    assert potential(target, far, jnp.array(1e-3)) == np.inf
    assert np.isfinite(potential(target, far, jnp.array(0.0)))


@pytest.mark.slow
# the processor's rounding decides
@pytest.mark.filterwarnings("ignore:[0-9] of 16000 transitions were divergent")
def test_chains_of_a_heavy_scale_stay_where_the_density_is():
    """Eight schools under a half-Cauchy scale: with this key a chain ended at a log likelihood of
    −4.5e101."""
    effects = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    errors = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

    def schools():
        eta = numpyro.sample("eta", dist.Normal(0.0, 1.0).expand([8]).to_event(1))
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
        numpyro.sample("y", dist.Normal(mu + tau * eta, errors).to_event(1), obs=effects)

    ladder = mp.sample_power_posteriors(
        schools,
        temperatures=power_ladder(16, 5),
        key=jax.random.key(1),
        num_warmup=250,
        num_samples=250,
    )
    values = ladder["sample_stats"]["log_likelihood_total"].values
    assert values[:, :, 1:].min() > -1e10
    found = mp.log_evidence(ladder, degree=2)
    assert found.status is mp.Status.CONTROLLED
    assert abs(found.value + 31.3113) < 4.5 * found.error < 0.05


@pytest.mark.slow
def test_a_start_must_exist(key):
    nowhere = TEN._replace(log_likelihood=lambda x: -jnp.inf * (1 + x[0] ** 2))
    with pytest.raises(ValueError, match="expected a finite likelihood at some prior draw"):
        sample_ladder(nowhere, LEVELS, key=key, **SETTINGS)
    with pytest.raises(ValueError, match="expected `init` where prior and likelihood are finite"):
        sample_ladder(modes(), LEVELS, key=key, init=[0.0], **SETTINGS)
    flat = TEN._replace(log_prior=lambda x: jnp.inf * (1 + x[0] ** 2))
    with pytest.raises(ValueError, match="expected a prior whose log density is finite"):
        sample_ladder(flat, LEVELS, key=key, **SETTINGS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"num_chains": 0}, "`num_chains` of at least 1"),
        ({"exchange": 0}, "`exchange` of at least 1"),
        ({"init": [1.0]}, "`init` of 10 finite numbers"),
        ({"kernel": HamiltonianKernel(num_steps=0)}, "`num_steps` of at least 1"),
        ({"kernel": HamiltonianKernel(max_tree_depth=(0, 3))}, "`max_tree_depth` of at least 1"),
        (
            {"kernel": HamiltonianKernel(max_tree_depth=[6, 8])},
            "a tuple of two for `max_tree_depth`",
        ),
        ({"kernel": HamiltonianKernel(target_accept=1.0)}, "`target_accept`, a number in"),
        ({"checkpoint": "/nowhere/run.npz"}, "a file in an existing folder"),
    ],
)
def test_bad_settings_are_refused(change, words, key):
    with pytest.raises(ValueError, match=words):
        sample_ladder(TEN, LEVELS, key=key, **{**SETTINGS, **change})


@pytest.mark.slow
def test_new_rungs_must_be_new(exchanged, key):
    with pytest.raises(ValueError, match="temperatures that are new"):
        sample_more_rungs(exchanged.ladder, TEN, [LEVELS[1]], key=key)
    with pytest.raises(ValueError, match=r"inside \(0, 1\)"):
        sample_more_rungs(exchanged.ladder, TEN, [1.5], key=key)
    with pytest.raises(ValueError, match="a target on"):
        sample_more_rungs(exchanged.ladder, gaussian(2), [0.5], key=key)


def test_an_equidistributed_ladder_equidistributes_the_error():
    """On exact variances the trapezoid's error is below the power ladder's, and all intervals
    contribute alike."""

    def exact(t):
        mean, variance = gaussian_moments(t)
        # any draws of the right scale
        draws = mean + np.sqrt(variance) * np.linspace(-2.5, 2.5, 400)[None, :, None]
        values = -0.5 * ((1.3 - draws) / 0.5) ** 2
        return make_ladder(t, draws[..., None], values, draws[..., None], draws[..., None])

    temperatures = equidistributed_ladder(exact(power_ladder(41, 3)), 11)
    assert temperatures[0] == 0
    assert temperatures[-1] == 1
    assert (np.diff(temperatures) > 0).all()
    fine = exact(temperatures)
    share = np.abs(np.diff(fine.log_likelihood.var(axis=(0, 1)))) * np.diff(temperatures) ** 2
    assert share.max() < 3 * share.min()
    with pytest.raises(ValueError, match="`size` of at least 2"):
        equidistributed_ladder(fine, 1)


DEVICES = """
import os
flags = "--xla_force_host_platform_device_count=3 --xla_backend_optimization_level=0"
os.environ["XLA_FLAGS"] = flags
import jax, numpy as np
from mcmcpost.evidence import TemperedTarget
from mcmcpost.ladders import HamiltonianKernel, sample_ladder
assert jax.device_count() == 3
target = TemperedTarget(
    lambda x: -2.0 * ((1.3 - x) ** 2).sum(),
    lambda x: -0.5 * (x**2).sum(),
    lambda key: jax.random.normal(key, (2,)),
    ("a", "b"),
)
ladder, stats = sample_ladder(
    target, [0.0, 0.2, 1.0], key=jax.random.key(0), num_warmup=30, num_samples=100, num_chains=2,
    kernel=HamiltonianKernel(num_steps=3), exchange=2,
)
t = ladder.temperatures
assert ladder.draws.shape == (2, 100, 3, 2)
assert (np.abs(ladder.draws.mean((0, 1, 3)) - 5.2 * t / (1 + 4 * t)) < 0.3).all()
"""


@pytest.mark.slow
def test_lanes_spread_over_devices():
    """Four lanes on three devices: padding fills the last one, and none of it is kept."""
    subprocess.run([sys.executable, "-c", DEVICES], check=True)
