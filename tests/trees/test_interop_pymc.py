"""Traces of nutpie and PyMC, made by the real packages: read as they are, or scored by PyMC's own
gradient."""

import re
import warnings
from contextlib import nullcontext

import jax
import numpy as np
import pytest
import xarray
from cli_cases import refused
from html_cases import Reading
from interop_cases import COUNTS, changepoint_scores, changepoint_truth
from scipy.special import gammaln

import mcmcpost as mp
from mcmcpost.trees import read_trace
from mcmcpost.trees.samplers import check_normalised

pytestmark = pytest.mark.interop
REASON = "needs the extra `interop`"
nutpie = pytest.importorskip("nutpie", reason=REASON)
pymc = pytest.importorskip("pymc", reason=REASON)
transforms = pytest.importorskip("pymc.distributions.transforms", reason=REASON)

UNCONSTRAINED = (
    "mu[0]",
    "mu[1]",
    "sigma_log__",
    "w_simplex__[0]",
    "w_simplex__[1]",
    "upper_logodds__",
)


@pytest.fixture(scope="module")
def model():
    """A model that the project does not know, with a bound that is a parameter and a
    deterministic."""
    y = np.random.default_rng(0).normal(1.0, 2.0, size=30)
    with pymc.Model(coords={"group": ["a", "b"]}) as model:
        mu = pymc.Normal("mu", 0.0, 1.0, dims="group")
        sigma = pymc.HalfNormal("sigma", 2.0)
        w = pymc.Dirichlet("w", 2 * np.ones(3))
        upper = pymc.Beta("upper", 2.0, 2.0)
        pymc.Deterministic("precision", sigma**-2)
        pymc.Normal("y", mu[0] + mu[1] + w[0] + upper, sigma, observed=y)
    return model


@pytest.fixture(scope="module")
def nutpie_tree(model):
    return nutpie.sample(
        nutpie.compile_pymc_model(model),
        draws=500,
        tune=400,
        chains=4,
        cores=1,
        seed=1,
        store_gradient=True,
        store_unconstrained=True,
        progress_bar=False,
    )


@pytest.fixture(scope="module")
def pymc_tree(model):
    with model, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC's own, on deprecations and progress
        return pymc.sample(
            draws=500,
            tune=400,
            chains=4,
            cores=1,
            random_seed=1,
            nuts_sampler="pymc",
            progressbar=False,
        )


@pytest.mark.parametrize("writer", ["save_tree", "nutpie"])
def test_a_nutpie_trace_goes_through_a_file_untouched(nutpie_tree, tmp_path, writer):
    path = tmp_path / "trace.nc"
    if writer == "save_tree":
        mp.save_tree(nutpie_tree, path)
    else:
        nutpie_tree.to_netcdf(path, engine="h5netcdf")
    trace, stored = read_trace(mp.load_tree(path)), read_trace(nutpie_tree)
    np.testing.assert_array_equal(trace.draws, nutpie_tree["sample_stats"]["unconstrained_draw"])
    np.testing.assert_array_equal(trace.scores, nutpie_tree["sample_stats"]["gradient"])
    assert trace.names == stored.names
    assert mp.check_tree(mp.load_tree(path)).verdict == "pass"


def test_a_nutpie_file_becomes_a_report_in_one_command(run, nutpie_tree, tmp_path):
    nutpie_tree.to_netcdf(tmp_path / "trace.nc", engine="h5netcdf")
    done = run("report", tmp_path / "trace.nc", "-o", "report.html", "--method", "zv2")
    assert done.code == 0, done.err
    assert done.out.endswith("scores pass\n")
    reading = Reading((tmp_path / "cwd" / "report.html").read_text())
    assert reading.problems == []
    assert {"mu[a]", "sigma", "w[2]", "precision"} <= set(reading.texts("th"))
    reduced = run("reduce", tmp_path / "trace.nc", "--method", "zv2")
    assert reduced.code == 0
    assert "controlled" in reduced.out


def test_pymc_and_nutpie_agree_on_the_scores(nutpie_tree, model):
    computed, stored = read_trace(mp.attach_scores(nutpie_tree, model)), read_trace(nutpie_tree)
    assert computed.names == UNCONSTRAINED
    np.testing.assert_allclose(computed.draws, stored.draws, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(computed.scores, stored.scores, rtol=1e-6, atol=1e-6)


def test_a_pymc_trace_gets_its_scores_from_the_model(pymc_tree, model, tmp_path):
    bare = mp.load_tree(mp.save_tree(pymc_tree, tmp_path / "bare.nc"))
    before = bare.copy(deep=True)
    tree = mp.attach_scores(bare, model)
    assert bare.identical(before)
    assert read_trace(tree).names == UNCONSTRAINED
    assert mp.check_tree(tree).verdict == "pass"
    assert tree["sample_stats"].attrs["score_evaluations"] == "2000"
    assert "pymc_version" in tree["sample_stats"].attrs
    back = read_trace(mp.load_tree(mp.save_tree(tree, tmp_path / "scored.nc")))
    np.testing.assert_array_equal(back.scores, read_trace(tree).scores)
    table = mp.summary(tree, method="zv2")
    assert (table.loc[["mu[a]", "sigma"], "gain"] > 1).all()


def test_room_for_scores_that_nutpie_was_not_asked_for_is_no_scores(model, tmp_path):
    """Its Zarr store has arrays for them, all NaN."""
    path = tmp_path / "trace.zarr"
    path.mkdir()
    store = nutpie.zarr_store.LocalStore(str(path))
    compiled = nutpie.compile_pymc_model(model)
    nutpie.sample(
        compiled,
        draws=200,
        tune=300,
        chains=2,
        cores=1,
        seed=1,
        zarr_store=store,
        progress_bar=False,
    )
    tree = mp.load_tree(path)
    assert np.isnan(tree["sample_stats"]["gradient"]).all()
    with pytest.raises(
        mp.InputError,
        match=r"`sample_stats\.\w+` in the tree, got one that is all NaN.*attach_scores",
    ):
        mp.check_tree(tree)
    assert mp.check_tree(mp.attach_scores(tree, model)).verdict == "pass"


def test_the_log_density_that_pymc_records_for_numpyro_has_the_other_sign(model):
    with model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = pymc.sample(
            300, tune=300, chains=2, random_seed=1, nuts_sampler="numpyro", progressbar=False
        )
    with pytest.warns(UserWarning, match="minus the log density"):
        scored = mp.attach_scores(tree, model)
    assert mp.check_tree(scored).verdict == "pass"


@pytest.mark.parametrize("suffix", [".nc", ".zarr"])
def test_a_tree_of_sequential_monte_carlo_is_saved_without_its_ragged_statistics(tmp_path, suffix):
    with pymc.Model(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mu = pymc.Normal("mu", 0.0, 1.0)
        pymc.Normal("y", mu, 0.1, observed=np.random.default_rng(0).normal(2.0, 0.1, 200))
        tree = pymc.sample_smc(100, chains=3, cores=1, progressbar=False, random_seed=1)
    # another number of temperatures in each chain
    assert tree["sample_stats"]["beta"].dtype == object
    with pytest.warns(UserWarning, match="without .*/sample_stats/beta of objects"):
        back = mp.load_tree(mp.save_tree(tree, tmp_path / f"smc{suffix}"))
    np.testing.assert_array_equal(back["posterior"]["mu"], tree["posterior"]["mu"])
    assert back["sample_stats"].attrs["threshold"] == 0.5


def test_a_trace_without_scores_says_what_to_do(run, pymc_tree, tmp_path):
    mp.save_tree(pymc_tree, tmp_path / "bare.nc")
    done = run("report", tmp_path / "bare.nc", "-o", "report.html")
    assert refused(done, "attach_scores(tree, model)", f"pm.{ONE_LINE}")
    assert f"pm.{ONE_LINE}" in run("info", tmp_path / "bare.nc").out


ONE_LINE = 'sample(idata_kwargs={"include_transformed": True}, nuts={"store_gradient": True})'


def test_the_line_that_messages_and_guide_print_keeps_the_scores(model, tmp_path):
    """PyMC samples by nutpie; with the one argument alone scores or unconstrained draws are
    missing."""
    asked = {"idata_kwargs": {"include_transformed": True}, "nuts": {"store_gradient": True}}
    assert repr(asked["idata_kwargs"]).replace("'", '"') in ONE_LINE
    with model:
        tree = pymc.sample(draws=250, tune=300, cores=1, random_seed=1, progressbar=False, **asked)
        missing = [
            pymc.sample(
                draws=20, tune=20, chains=1, random_seed=1, progressbar=False, **{name: asked[name]}
            )
            for name in asked
        ]
    assert read_trace(tree).names[:3] == ("mu_0", "mu_1", "sigma_log__")
    computed = read_trace(mp.attach_scores(tree, model))
    np.testing.assert_allclose(read_trace(tree).scores, computed.scores, rtol=1e-6, atol=1e-6)
    path = mp.save_tree(tree, tmp_path / "trace.nc")
    assert (mp.summary(mp.load_tree(path), ["mu"], "zv2")["gain"] > 1).all()
    for part in missing:
        with pytest.raises(mp.InputError, match=re.escape(f"pm.{ONE_LINE}")):
            mp.expectation(part, ["mu"])


def other(size=2, data=0.0, name="mu"):
    with pymc.Model() as model:
        mu = pymc.Normal(name, 0.0, 1.0, shape=size)
        sigma = pymc.HalfNormal("sigma", 2.0)
        w = pymc.Dirichlet("w", 2 * np.ones(3))
        upper = pymc.Beta("upper", 2.0, 2.0)
        y = np.random.default_rng(0).normal(1.0, 2.0, size=30) + data
        pymc.Normal("y", mu[0] + mu[1] + w[0] + upper, sigma, observed=y)
    return model


@pytest.mark.parametrize("sampler", ["pymc", "nutpie"])
def test_the_model_must_be_the_one_that_was_sampled(request, sampler):
    tree = request.getfixturevalue(f"{sampler}_tree")
    with pytest.raises(mp.ScoreError, match=r"recorded `sample_stats.(lp|logp)` by a constant"):
        mp.attach_scores(tree, other(data=0.5))
    with pytest.raises(ValueError, match=r"`mu` of shape \(chain, draw, 3\), got \(4, 500, 2\)"):
        mp.attach_scores(tree, other(size=3))
    with pytest.raises(ValueError, match="without nu"):
        mp.attach_scores(tree, other(name="nu"))
    with pytest.raises(ValueError, match="a model of pymc alone, got 1 arguments"):
        mp.attach_scores(tree, other(), 1.0)


def test_discrete_variables_without_draws_are_refused(pymc_tree):
    with pymc.Model() as discrete:
        pymc.Normal("mu")
        pymc.Bernoulli("k", 0.5)
    with pytest.raises(ValueError, match=r"among the draws, .* without k"):
        mp.attach_scores(pymc_tree, discrete)


def test_a_bound_that_is_a_parameter_takes_its_value_from_the_draw(rng):
    with pymc.Model() as model:
        scale = pymc.HalfNormal("scale", 1.0)
        pymc.Uniform("below", 0.0, scale)
    scale = np.abs(rng.normal(size=(2, 40)))
    below = scale * rng.uniform(size=scale.shape)
    variables = {"scale": (("chain", "draw"), scale), "below": (("chain", "draw"), below)}
    posterior = xarray.DataTree.from_dict({"posterior": xarray.Dataset(variables)})
    trace = read_trace(mp.attach_scores(posterior, model, allow_bad_scores=True))
    assert trace.names == ("scale_log__", "below_interval__")
    # In u = log scale and v = logit(below/scale): −scale²/2 + u, and log σ(v) + log σ(−v).
    np.testing.assert_allclose(trace.draws[..., 1], np.log(below / (scale - below)), rtol=1e-9)
    np.testing.assert_allclose(trace.scores[..., 0], 1 - scale**2, rtol=1e-9)
    np.testing.assert_allclose(trace.scores[..., 1], 1 - 2 * below / scale, rtol=1e-9, atol=1e-12)


def test_a_pymc_model_has_its_evidence():
    y = np.random.default_rng(0).normal(1.0, 2.0, size=20)
    with pymc.Model() as model:
        rate = pymc.Gamma("rate", 3.0, 2.0)
        pymc.Poisson("y", rate, observed=[3, 1, 4, 1, 5])
    draws = np.random.default_rng(1).gamma(17.0, 1 / 7.0, size=(4, 500))
    tree = xarray.DataTree.from_dict(
        {"posterior": xarray.Dataset({"rate": (("chain", "draw"), draws)})}
    )
    found = mp.bridge_evidence(tree, model, key=jax.random.key(0))
    at_one = model.compile_logp(jacobian=False)({"rate_log__": 0.0})
    assert abs(at_one - (3 * np.log(2) - gammaln(3) - 7 - gammaln([4, 2, 5, 2, 6]).sum())) < 1e-8
    # PyMC's log Γ is a few 1e-9 off, more than the bridge
    truth = at_one + 7 + gammaln(17) - 17 * np.log(7)
    assert abs(found.value - truth) < 4.5 * np.hypot(found.mcse, found.discretisation_error) < 0.01
    with pymc.Model() as improper:
        mu = pymc.Flat("mu")
        pymc.Normal("y", mu, 2.0, observed=y)
    with pytest.raises(ValueError, match="expected proper priors, got improper ones of mu"):
        mp.bridge_evidence(tree, improper, key=jax.random.key(0))


NEIGHBOURS = np.array([[0, 1], [1, 0]])


@pytest.mark.parametrize(
    ("prior", "said"),
    [
        (lambda: pymc.ICAR("x", W=NEIGHBOURS), "improper ones of x"),
        (lambda: pymc.CAR("x", mu=np.zeros(2), W=NEIGHBOURS, alpha=0.5, tau=1.0), "got x, a CAR"),
        (
            lambda: pymc.Normal("x", shape=2, transform=transforms.ordered, initval=[0, 1]),
            "transformation Ordered",
        ),
        (
            lambda: pymc.Normal("x", shape=2, transform=transforms.log),
            "transformation LogTransform",
        ),
        (lambda: pymc.HalfNormal("x", shape=2, default_transform=transforms.log_exp_m1), None),
        (lambda: pymc.ZeroSumNormal("x", shape=2), None),
        (lambda: pymc.Dirichlet("x", np.ones(2)), None),
        (lambda: pymc.Uniform("x", shape=2), None),
    ],
)
def test_priors_that_pymc_does_not_normalise_have_no_evidence(prior, said):
    with pymc.Model() as model:
        pymc.Normal("y", prior(), 1.0, observed=np.zeros(2))
    with nullcontext() if said is None else pytest.raises(ValueError, match=said):
        check_normalised("bridge_evidence", model)


def test_chains_of_nutpie_go_on_until_an_error_is_reached(model, key):
    compiled = nutpie.compile_pymc_model(model)
    settings = {
        "key": key,
        "relative": True,
        "num_chains": 2,
        "num_warmup": 300,
        "batch": 200,
        "method": "plain",
    }
    found = mp.sample_until(
        compiled, mcse=0.04, integrands=["mu", "upper"], max_draws=20_000, **settings
    )
    again = mp.sample_until(
        compiled, mcse=0.04, integrands=["mu", "upper"], max_draws=40_000, **settings
    )
    assert found.reached
    assert (found.estimate.mcse <= 0.04 * found.estimate.sd).all()
    assert found.tree["posterior"].sizes["draw"] % 200 == 0
    assert np.array_equal(
        found.estimate.mean, again.estimate.mean
    )  # whatever the clock, and the draws that there may be


def test_values_on_a_boundary_are_named_with_their_draw(rng):
    """Rounding moves them there; their unconstrained values are infinite."""
    r, s = rng.uniform(-0.9, 0.9, size=(2, 50)), rng.uniform(0.5, 2.0, size=(2, 50))
    with pymc.Model() as model:
        pymc.LKJCorr("R", n=2, eta=1)
        pymc.HalfNormal("s")

    def tree():
        factor = np.moveaxis(np.array(((r * 0 + 1, r * 0), (r, np.sqrt(1 - r**2)))), (0, 1), (2, 3))
        variables = {"R": (("chain", "draw", "i", "j"), factor), "s": (("chain", "draw"), s)}
        return xarray.DataTree.from_dict({"posterior": xarray.Dataset(variables)})

    s[0, 3] = 0.0
    with pytest.raises(
        mp.InputError, match=r"1 of 100 draws of `s` on its boundary.* at chain 0, draw 3: 0\.0\."
    ):
        mp.attach_scores(tree(), model)
    s[0, 3], r[1, 7] = 1.0, 1.0
    with pytest.raises(
        mp.InputError, match=r"1 of 100 draws of `R` on its boundary.* at chain 1, draw 7: \[\[1\.0"
    ):
        mp.attach_scores(tree(), model)


def test_compound_steps_give_scores_given_the_discrete_variables(tmp_path):
    """PyMC writes zeros for the log density where the last of its steps has none."""
    places = np.arange(len(COUNTS))
    with pymc.Model() as model, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rate = pymc.Gamma("rate", 2.0, 0.5, shape=2)
        tau = pymc.DiscreteUniform("tau", 1, len(COUNTS) - 1)
        pymc.Bernoulli("coin", 0.3)
        pymc.Poisson("counts", pymc.math.switch(places < tau, rate[0], rate[1]), observed=COUNTS)
        tree = pymc.sample(1000, tune=500, chains=4, cores=1, random_seed=1, progressbar=False)
    bare = mp.load_tree(mp.save_tree(tree, tmp_path / "bare.nc"))
    scored = mp.attach_scores(bare, model)
    trace, posterior = read_trace(scored), tree["posterior"]
    assert trace.names == ("rate_log__[0]", "rate_log__[1]")
    expected = changepoint_scores(posterior["rate"].values, posterior["tau"].values)
    np.testing.assert_allclose(trace.scores, expected, rtol=1e-9, atol=1e-9)
    estimate, true = (
        mp.expectation(scored, ["rate", "tau", "coin"], method="zv2"),
        changepoint_truth(),
    )
    assert (np.abs(estimate.mean - [*true["rate"], true["tau"], 0.3]) < 4.5 * estimate.mcse).all()
    with pytest.raises(mp.InputError, match="continuous free variables, got discrete tau, coin"):
        mp.bridge_evidence(scored, model, key=jax.random.key(0))
    half = posterior.to_dataset().assign(tau=posterior["tau"] + 0.5)
    with pytest.raises(
        mp.InputError,
        match="whole numbers as draws of the discrete `tau`, got float64s that are not",
    ):
        mp.attach_scores(xarray.DataTree.from_dict({"posterior": half}), model)
    with pymc.Model() as counts:
        pymc.Poisson("tau", 3.0)
    with pytest.raises(mp.InputError, match="continuous free variables, got discrete tau alone"):
        mp.attach_scores(tree, counts)
