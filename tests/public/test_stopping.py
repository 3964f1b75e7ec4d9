"""Sampling until errors are small enough: what is waited for, how long, and what there is at the
end."""

import warnings
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray

import mcmcpost as mp
from mcmcpost import stopping
from mcmcpost.stopping import until

BATCH = 100


def batches(
    seed: int, shift: float = 0.0, stop_after: int | None = None
) -> Callable[[int], xarray.DataTree]:
    """Return a sampler of four chains of log gamma variates, whose chains lie `shift` apart."""
    rng = np.random.default_rng(seed)
    drawn = []

    def draw(number: int) -> xarray.DataTree:
        if stop_after is not None and len(drawn) >= stop_after:
            raise KeyboardInterrupt
        drawn.append(number)
        u = np.log(rng.gamma(4.0, size=(4, number * BATCH, 2)))
        return mp.from_arrays(
            u + shift * np.arange(4)[:, None, None], 4.0 - np.exp(u), names=["a", "b"]
        )

    draw.drawn = drawn
    return draw


def ask(
    draw: Callable, mcse: object, max_draws: int = 40_000, **options: object
) -> mp.SampledUntil:
    given = {
        "integrands": None,
        "method": "plain",
        "mcse": mcse,
        "relative": False,
        "max_draws": max_draws,
    } | options
    return until(draw, **given, progress=False)


def test_plain_means_need_the_draws_that_their_errors_say():
    draw = batches(0)
    found = ask(draw, 0.006)
    assert found.reached
    assert (found.estimate.mcse <= 0.006).all()
    sizes = found.tree["posterior"].sizes
    # the variance of the logarithm of such a gamma variate is trigamma(4)
    needed = 0.2838 / 0.006**2
    assert 0.85 * needed < sizes["chain"] * sizes["draw"] < 1.4 * needed
    assert draw.drawn[:3] == [1, 1, 2]  # it doubles until the end is in sight
    assert np.array_equal(found.tree["posterior"]["draw"], np.arange(sizes["draw"]))
    before = mp.expectation(found.tree, method="plain")
    assert np.array_equal(before.mean, found.estimate.mean)


def test_looks_at_chains_that_run_are_few_and_come_in_time():
    """A sampler of 100 draws a second after three seconds of warm-up: 12 looks and not 260 for a
    thousand draws."""
    time, wait, before, looks = 0.0, stopping.WAIT, 0, 0
    while (have := int(100 * max(time - 3.0, 0.0))) < 1_000:
        time += wait
        looks += 1
        wait, before = stopping._next_wait(wait, have - before, 1_000 - have), have
    assert looks <= 20
    assert 13.0 <= time < 13.0 + stopping.LONGEST_WAIT
    assert stopping._next_wait(1.0, 100, 1) == stopping.WAIT


def test_controlled_errors_need_a_batch_alone():
    draw = batches(1)
    found = ask(draw, 0.006, method="zv2")
    assert found.reached
    assert draw.drawn == [1]


def test_only_what_is_named_is_waited_for_and_aims_may_be_relative():
    draw = batches(2)
    found = ask(
        draw,
        {"a": 0.03},
        integrands={"a": lambda x: x["a"], "wide": lambda x: 100 * x["b"]},
        relative=True,
    )
    assert found.reached
    error = found.estimate.mcse / found.estimate.sd
    assert 0.02 < error[0] <= 0.03
    with pytest.raises(mp.InputError, match="names of quantities in `mcse`"):
        ask(batches(2), {"c": 0.1})


@pytest.mark.parametrize(("aim", "shown"), [(0.001, r"0\.0010"), (1e-300, "1.0e-300")])
def test_a_budget_ends_it_with_a_warning(aim, shown):
    """An aim whose distance has no square in floats too."""
    with pytest.warns(
        UserWarning, match=f"1,000 draws do not suffice, the error of [ab] is .*, asked {shown}"
    ):
        found = ask(batches(3), aim, max_draws=1_000)
    assert not found.reached
    assert found.tree["posterior"].sizes["draw"] == 200


def test_chains_that_have_not_converged_are_not_done():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert not ask(batches(4, shift=1.0), 10.0, max_draws=2_000).reached
    texts = [str(one.message) for one in caught]
    assert any("do not suffice" in text for text in texts)
    assert any("R-hat" in text for text in texts)


def test_an_interrupt_returns_what_there_is():
    with pytest.warns(UserWarning, match="interrupted: the error of"):
        found = ask(batches(5, stop_after=2), 0.001)
    assert found.tree["posterior"].sizes["draw"] == 2 * BATCH
    with pytest.raises(KeyboardInterrupt):
        ask(batches(5, stop_after=0), 0.001)


def test_an_interrupt_of_the_first_look_keeps_the_draws(monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(stopping, "look", interrupted)
    with pytest.warns(UserWarning, match="at the first look"):
        found = ask(batches(6), 0.001)
    assert not found.reached
    assert found.tree["posterior"].sizes["draw"] == BATCH
    assert np.isfinite(found.estimate.mcse).all()


@pytest.mark.slow
def test_chains_of_numpyro_go_on(key):
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    y = jnp.array([0.3, 1.1, 0.2])
    settings = {"num_chains": 2, "num_warmup": 100, "batch": 50, "progress": False}
    found = mp.sample_until(
        model, y, mcse=0.04, key=key, method="plain", max_draws=5_000, **settings
    )
    draws = found.tree["posterior"]["mu"].values
    assert found.reached
    assert draws.shape[1] > 100
    assert draws.shape[1] % 50 == 0
    truth = 1.6 / (3 + 1 / 9)
    assert abs(found.estimate.mean[0] - truth) < 5 * found.estimate.mcse[0]
    assert len(np.unique(draws)) > 0.5 * draws.size  # no batch is there twice
    controlled = mp.sample_until(model, mcse=1e-9, key=key, model_kwargs={"y": y}, **settings)
    assert controlled.tree["posterior"].sizes["draw"] == 50
    np.testing.assert_allclose(controlled.estimate.mean, truth, rtol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mcse": 0.0}, "mcse"),
        ({"mcse": {"mu": -1.0}}, "mu"),
        ({"mcse": {}}, "at least one quantity"),
        ({"mcse": 0.1, "model": "model.py"}, "model"),
        ({"mcse": 0.1, "batch": 0}, "batch"),
        ({"mcse": 0.1, "max_draws": 10}, "max_draws"),
    ],
)
def test_what_cannot_be_reached_is_refused(wrong, message):
    given = {"model": lambda: numpyro.sample("mu", dist.Normal()), "key": jax.random.key(0)} | wrong
    with pytest.raises((mp.InputError, mp.InputTypeError), match=message):
        mp.sample_until(**given)


def test_names_that_no_variable_has_are_refused_before_the_warm_up(monkeypatch):
    def model(y):
        tau = numpyro.sample("tau", dist.HalfNormal())
        numpyro.deterministic("scales/variance", tau**2)
        numpyro.sample("z", dist.Categorical(jnp.ones(3) / 3), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(0.0, tau), obs=y)

    def drew(*_, **__):
        raise AssertionError("drew")

    monkeypatch.setattr("mcmcpost.stopping.until", drew)
    ask = partial(mp.sample_until, model, jnp.ones(3), key=jax.random.key(0))
    for known in ("tau", "scales.variance", "z"):
        with pytest.raises(AssertionError, match="drew"):
            ask(mcse={known: 0.1})
    with pytest.raises(mp.InputError, match=r'Did you mean "?.?tau'):
        ask(mcse={"tua": 0.1})
    with pytest.raises(mp.InputError, match="the arguments of `model"):
        mp.sample_until(model, mcse=0.1, key=jax.random.key(0))
