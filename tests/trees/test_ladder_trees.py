"""Ladders as trees: from a NumPyro model, back from files, with new rungs, and from traces run
elsewhere."""

import warnings
import zlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.util import potential_energy

import mcmcpost as mp
from mcmcpost.ladders import tempered_target
from mcmcpost.trees import read_ladder

pytestmark = pytest.mark.usefixtures("rank_promotion")

DATA = np.array([0.4, 1.1, -0.3, 0.9])
KEY = jax.random.key(zlib.crc32(b"ladder trees"))
KERNEL = mp.HamiltonianKernel(num_steps=4)
LEVELS = (0.0, 0.05, 0.3, 1.0)


def model(y):
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    numpyro.deterministic("twice", 2 * mu)
    with numpyro.plate("n", len(y)):
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)


@pytest.fixture(scope="module")
def tree():
    return mp.sample_power_posteriors(
        model,
        (DATA,),
        temperatures=LEVELS,
        key=KEY,
        num_warmup=60,
        num_samples=50,
        num_chains=2,
        kernel=KERNEL,
        init={"mu": 0.5, "sigma": 0.6},
    )


@pytest.mark.slow
def test_every_variable_has_a_temperature(tree):
    for group in ("posterior", "sample_stats"):
        for name, variable in tree[group].data_vars.items():
            assert "temperature" in variable.dims, name
            assert variable.dims[0] == "chain"
    posterior, stats = tree["posterior"], tree["sample_stats"]
    assert list(posterior.data_vars) == ["sigma", "mu", "twice"]
    np.testing.assert_allclose(posterior["twice"], 2 * posterior["mu"])
    np.testing.assert_allclose(
        np.exp(stats["unconstrained_draw"].values[..., 0]), posterior["sigma"]
    )
    assert list(stats["unconstrained_parameter"].values) == ["sigma", "mu"]
    mu, sigma = posterior["mu"].values[..., None], posterior["sigma"].values[..., None]
    exact = (-0.5 * ((DATA - mu) / sigma) ** 2 - np.log(sigma * np.sqrt(2 * np.pi))).sum(axis=-1)
    np.testing.assert_allclose(stats["log_likelihood_total"], exact, rtol=1e-10)
    np.testing.assert_allclose(stats["gradient_log_prior"][..., 1], -mu[..., 0] / 4, rtol=1e-10)
    assert stats.attrs["num_warmup"] == 60
    assert stats.attrs["lockstep_evaluations"] >= stats.attrs["gradient_evaluations"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Score gate")
def test_the_last_rung_is_a_trace_of_the_posterior(tree):
    rung = mp.trees.posterior_rung(tree)
    np.testing.assert_array_equal(rung["posterior"]["mu"], tree["posterior"]["mu"][:, :, -1])
    again = mp.attach_scores(rung, model, DATA, allow_bad_scores=True)
    np.testing.assert_allclose(
        rung["sample_stats"]["gradient"], again["sample_stats"]["gradient"], rtol=1e-10
    )


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_ladder_survives_a_file(tree, suffix, tmp_path):
    loaded = mp.load_tree(mp.save_tree(tree, tmp_path / f"ladder{suffix}"))
    for a, b in zip(read_ladder(loaded), read_ladder(tree), strict=True):
        np.testing.assert_array_equal(a, b)
    assert list(loaded["posterior"].data_vars) == ["sigma", "mu", "twice"]


@pytest.mark.slow
def test_dims_in_any_order(tree):
    turned = tree.copy()
    turned["sample_stats"] = (
        turned["sample_stats"].to_dataset().transpose("temperature", ..., "chain", "draw")
    )
    for a, b in zip(read_ladder(turned), read_ladder(tree), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.drop_vars("log_likelihood_total"), "the log likelihood of every draw"),
        (lambda s: s.drop_vars("gradient_log_likelihood"), "gradients of the log likelihood"),
        (lambda s: s.drop_vars("unconstrained_draw"), "unconstrained draws"),
        (lambda s: s.isel(temperature=slice(1, None)), "from 0 .the prior. to 1"),
        (lambda s: s.isel(temperature=[0, 2, 1, 3]), "unsorted"),
        (lambda s: s.isel(temperature=[0, 1, 1, 3]), "repeated"),
        (lambda s: s.isel(temperature=0), "a dim and coordinate `temperature`"),
        (lambda s: s.assign_attrs(score_sign="-"), "score_sign"),
    ],
)
def test_what_is_missing_is_said(tree, change, words):
    broken = tree.copy()
    broken["sample_stats"] = change(broken["sample_stats"].to_dataset())
    with pytest.raises(ValueError, match=words):
        read_ladder(broken)


@pytest.mark.slow
def test_an_expectation_of_a_ladder_says_what_it_is(tree):
    with pytest.raises(
        ValueError, match=r"got a ladder, with a dim temperature\. Use log_evidence"
    ):
        mp.expectation(tree)


class Near(eqx.Module):
    """−2(x − centre)²; it holds an array, and has no hash."""

    centre: jax.Array

    def __call__(self, x):
        return -2 * (x[0] - self.centre) ** 2


@pytest.mark.slow
def test_functions_instead_of_a_model(key):
    made = mp.sample_power_posteriors(
        log_likelihood=Near(jnp.array(1.0)),
        log_prior=lambda x: -0.5 * (x**2).sum() - 0.5 * jnp.log(2 * jnp.pi),
        sample_prior=lambda key: jax.random.normal(key, (1,)),
        temperatures=LEVELS,
        key=key,
        num_warmup=60,
        num_samples=50,
        num_chains=2,
        kernel=KERNEL,
        exchange=1,
    )
    assert read_ladder(made).names == ("x[0]",)
    assert (made["sample_stats"]["swap_rate"].values[:, :-1] > 0).all()
    with_evidence = mp.log_evidence(made).to_datatree(made)
    more = mp.add_rungs(
        with_evidence,
        [0.6],
        log_likelihood=lambda x: -2 * (x[0] - 1) ** 2,
        log_prior=lambda x: -0.5 * (x**2).sum(),
        sample_prior=lambda key: jax.random.normal(key, (1,)),
        key=key,
        num_warmup=40,
        kernel=KERNEL,
    )
    assert more["posterior"]["temperature"].values.tolist() == [0.0, 0.05, 0.3, 0.6, 1.0]
    assert ("evidence" in with_evidence.children, "evidence" in more.children) == (True, False)
    for group in ("posterior", "sample_stats"):
        old = more[group].sel(temperature=list(LEVELS)).to_dataset()
        assert old.equals(made[group].to_dataset()[list(old.data_vars)])
    assert abs(
        float(more["posterior"]["x[0]"].sel(temperature=0.6).mean()) - 2.4 / 3.4
    ) < 6 * 0.55 / np.sqrt(50)
    assert len(mp.adaptive_ladder(more, 9)) == 9


def improper(y):
    mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def discrete(y):
    k = numpyro.sample("k", dist.Bernoulli(0.5))
    numpyro.sample("y", dist.Normal(k, 1.0), obs=y)


def masked(y):
    with handlers.mask(mask=jnp.array(False)):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def scaled(y):
    with handlers.scale(scale=0.5):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def unobserved(y):
    del y
    numpyro.sample("mu", dist.Normal(0.0, 1.0))


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (improper, "an improper prior has no evidence"),
        (discrete, "discrete k"),
        (masked, "scaled, subsampled or masked mu"),
        (scaled, "scaled, subsampled or masked mu"),
        (unobserved, "no likelihood"),
    ],
)
def test_models_without_evidence_are_refused(program, words, key):
    with pytest.raises(ValueError, match=f"(?i)sample_power_posteriors: .*{words}"):
        mp.sample_power_posteriors(program, (DATA,), temperatures=LEVELS, key=key)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({}, ValueError, "got neither"),
        ({"model": model, "log_prior": jnp.sum}, ValueError, "got a model, log_prior"),
        ({"model": model, "args": DATA}, TypeError, "`args` to be a tuple"),
        ({"model": model, "args": (DATA,), "init": {"mu": 0.0}}, ValueError, "without sigma"),
    ],
)
def test_what_to_sample_must_be_clear(arguments, error, words, key):
    with pytest.raises(error, match=words):
        mp.sample_power_posteriors(**arguments, temperatures=LEVELS, key=key)


def hierarchical(y):
    """Plates, a scaled and a masked likelihood, a factor, a simplex, and a scan with latent
    sites."""
    from numpyro.contrib.control_flow import scan

    scale = numpyro.sample("scale", dist.LogNormal(0.0, 1.0))
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("row", 2):
        rows = numpyro.sample("rows", dist.Uniform(-scale, scale))
    _, path = scan(
        lambda before, _: (numpyro.sample("path", dist.LogNormal(before, 1.0)),) * 2,
        jnp.zeros(()),
        None,
        length=3,
    )
    numpyro.factor("extra", 3.0 * weights[0])
    with (
        handlers.scale(scale=2.5),
        numpyro.plate("n", len(y)),
        handlers.mask(mask=jnp.array([True, False, True, True])),
    ):
        numpyro.sample("y", dist.Normal(rows.sum() + path.sum(), scale), obs=y)


@pytest.mark.slow
def test_prior_and_likelihood_add_up_to_the_potential(key):
    target, probed = tempered_target("test", hierarchical, (DATA,), {})
    draw = 0.3 * jax.random.normal(key, (len(target.names),))

    @jax.jit
    def terms(draw, key):
        whole = -potential_energy(probed.model, (DATA,), {}, probed.unravel(draw))
        prior = target.sample_prior(key)
        return target.log_prior(draw), target.log_likelihood(draw), whole, target.log_prior(prior)

    *ours, whole, at_prior_draw = terms(draw, key)
    np.testing.assert_allclose(ours[0] + ours[1], whole, rtol=1e-10)
    assert np.isfinite(at_prior_draw)
    sites = {name: value[0] for name, value in probed.constrain(np.asarray(draw)[None]).items()}
    at = sites["rows"].sum() + sites["path"].sum()
    exact = dist.Normal(at, sites["scale"]).log_prob(DATA)[jnp.array([0, 2, 3])].sum()
    np.testing.assert_allclose(ours[1], 2.5 * exact + 3 * sites["weights"][0], rtol=1e-10)


@pytest.mark.slow
def test_the_prior_sampler_draws_from_the_prior(key):
    """Its draws satisfy Stein's identity with the gradient of the log prior: sampler and density
    agree."""
    target, _ = tempered_target("test", model, (DATA,), {})
    draws = jax.jit(jax.vmap(target.sample_prior))(jax.random.split(key, 4000))
    scores = jax.jit(jax.vmap(jax.grad(target.log_prior)))(draws)
    for values, truth in ((scores, np.zeros(2)), (draws * scores, -np.ones(2))):
        z = (values.mean(axis=0) - truth) / (values.std(axis=0) / np.sqrt(4000))
        assert np.abs(z).max() < 4.5


def pieces(tree):
    """Return the ladder as one trace for each temperature."""
    return {float(t): tree.isel(temperature=i, missing_dims="ignore") for i, t in enumerate(LEVELS)}


def changed(tree, **changes):
    new = tree.copy()
    stats = new["sample_stats"].to_dataset()
    new["sample_stats"] = stats.assign(
        {name: change(stats[name]) for name, change in changes.items()}
    )
    return new


def assert_equal_ladders(one, other):
    for a, b in zip(one[:5], other[:5], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)
    assert one.names == other.names


@pytest.mark.slow
def test_traces_become_a_ladder(tree, tmp_path):
    truth = read_ladder(tree)
    assert_equal_ladders(read_ladder(mp.ladder_from_traces(pieces(tree))), truth)
    assert_equal_ladders(
        read_ladder(mp.ladder_from_traces(list(pieces(tree).items())[::-1])), truth
    )
    paths = {
        t: mp.save_tree(part, tmp_path / f"{i}.nc")
        for i, (t, part) in enumerate(pieces(tree).items())
    }
    assert_equal_ladders(read_ladder(mp.ladder_from_traces(paths)), truth)
    bare = {t: part.drop_nodes("sample_stats") for t, part in pieces(tree).items()}
    made = mp.ladder_from_traces(bare, model, (DATA,))
    assert_equal_ladders(read_ladder(made), truth)
    assert made["sample_stats"].attrs["findings"] == ""
    with pytest.raises(
        ValueError,
        match=r"`sample_stats\.unconstrained_draw`, got none in the trace at temperature 0",
    ):
        mp.ladder_from_traces(bare)


@pytest.mark.slow
def test_a_ladder_without_gradients_is_completed(tree):
    stats = (
        tree["sample_stats"]
        .to_dataset()
        .drop_vars(["gradient_log_likelihood", "gradient_log_prior"])
    )
    partial = tree.copy()
    partial["sample_stats"] = stats
    with pytest.raises(ValueError, match=r"`sample_stats\.gradient_log_likelihood`, got none"):
        mp.ladder_from_traces(partial)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = mp.ladder_from_traces(partial, model, (DATA,))
    assert_equal_ladders(read_ladder(made), read_ladder(tree))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"log_likelihood_total": lambda v: v + 15.220112}, "additive constant of 15.220112"),
        ({"log_likelihood_total": lambda v: v * 1.1}, "differs from the model's at 100.0%"),
        (
            {"gradient_log_likelihood": lambda v: 0.9 * v},
            r"off by 10\.0% of its size, 0\.900 times",
        ),
        ({"gradient_log_prior": lambda v: -v}, "the wrong sign"),
    ],
)
def test_what_is_wrong_in_a_stored_ladder_is_detected(tree, changes, words):
    with pytest.warns(mp.LadderWarning, match=words):
        made = mp.ladder_from_traces(changed(tree, **changes), model, (DATA,))
    assert_equal_ladders(read_ladder(made), read_ladder(tree))
    assert "stored" in made["sample_stats"].attrs["findings"]


@pytest.mark.slow
def test_repeated_states_are_counted(tree):
    repeat = np.minimum(np.arange(50), 34)
    made = mp.ladder_from_traces(tree.isel(draw=repeat, missing_dims="ignore"))
    fraction = made["sample_stats"]["repeated_fraction"].values
    assert fraction[0] == pytest.approx(0.3)
    assert (fraction >= 0.3 - 1e-12).all()
    assert made["sample_stats"].attrs["repeated_states"] == pytest.approx(fraction.mean())


@pytest.mark.slow
def test_traces_must_be_alike(tree):
    parts = pieces(tree)
    parts[0.3] = parts[0.3].isel(draw=slice(20), missing_dims="ignore")
    with pytest.raises(ValueError, match="as many chains and draws at every temperature"):
        mp.ladder_from_traces(parts)
    del parts[0.3], parts[0.0]
    with pytest.raises(ValueError, match=r"from 0 \(the prior\) to 1"):
        mp.ladder_from_traces(parts)
    with pytest.raises(ValueError, match="a tree with a dim `temperature`"):
        mp.ladder_from_traces(parts[1.0])


@pytest.mark.slow
def test_sites_are_taken_where_stored_draws_have_labels_of_their_own(tree):
    """Draws of another program may be in any order: its labels are not the model's."""
    parts = pieces(tree)
    for t, part in parts.items():
        stats = part["sample_stats"].to_dataset()
        turned = stats.isel(unconstrained_parameter=slice(None, None, -1))
        labels = [f"{name}_raw" for name in turned["unconstrained_parameter"].values]
        parts[t] = part.copy()
        parts[t]["sample_stats"] = turned.assign_coords(unconstrained_parameter=labels)[
            ["unconstrained_draw"]
        ]
    made = mp.ladder_from_traces(parts, model, (DATA,))
    expected, found = (read_ladder(each).draws for each in (tree, made))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
def test_rungs_in_another_order_of_parameters_are_refused(tree):
    parts = pieces(tree)
    turned = parts[1.0]["sample_stats"].to_dataset()
    labels = turned["unconstrained_parameter"].values
    parts[1.0] = parts[1.0].copy()
    parts[1.0]["sample_stats"] = turned.sel(unconstrained_parameter=labels[::-1])
    for arguments in ((), (model, (DATA,))):
        with pytest.raises(
            ValueError, match=r"one order of the parameters in the trace at .* at position 0"
        ):
            mp.ladder_from_traces(parts, *arguments)
