"""Log predictive densities against their closed form, ArviZ's leave-one-out, and bad input."""

import pickle

import arviz_stats
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray as xr
from numpyro.infer import MCMC, NUTS
from scipy.stats import norm

import mcmcpost as mp

PRIOR = 4.0
"""Variance of the prior of the mean; observations have variance one."""


@pytest.fixture
def y(rng):
    return rng.normal(size=20)


def with_log_likelihood(tree, mean, y):
    values = norm.logpdf(y, loc=mean[..., None])
    new = tree.copy()
    data = xr.Dataset(
        {"y": (("chain", "draw", "obs"), values)},
        {"chain": tree.posterior.chain, "draw": tree.posterior.draw},
    )
    new["log_likelihood"] = xr.DataTree(data)
    return new


@pytest.fixture
def tree(rng, y):
    return make_tree(rng, y)


def make_tree(rng, y, prior=PRIOR):
    variance = 1 / (len(y) + 1 / prior)
    mean = variance * y.sum() + np.sqrt(variance) * rng.normal(size=(4, 200, 1))
    scores = -(mean - variance * y.sum()) / variance
    return with_log_likelihood(mp.from_arrays(mean, scores, names=("mu",)), mean[..., 0], y)


def exact(y, prior=PRIOR):
    """Return log p(yᵢ | y₋ᵢ) and log p(yᵢ | y) of a normal mean."""

    def predictive(others, at):
        variance = 1 / (len(others) + 1 / prior)
        return norm.logpdf(at, variance * np.sum(others), np.sqrt(1 + variance))

    leave_out = np.array([predictive(np.delete(y, i), y[i]) for i in range(len(y))])
    return leave_out, predictive(y, y)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["plain", "zv2", None])
def test_densities_against_the_closed_form(tree, y, method):
    found = mp.elpd(tree) if method is None else mp.elpd(tree, method=method)
    leave_out, within = exact(y)
    truth = np.concatenate(
        [[leave_out.sum(), within.sum(), (within - leave_out).sum()], leave_out, within]
    )
    assert found.names[:4] == ("elpd_loo", "lppd", "p_loo", "elpd_loo(y[0])")
    assert (np.abs(found.mean - truth) < 4.5 * found.mcse).all()
    assert (np.abs(found.mean_plain - truth) < 4.5 * found.mcse_plain).all()
    assert (found.gain[:3] > (0.99 if method == "plain" else 20)).all()
    np.testing.assert_allclose(
        found.residuals.mean(axis=(0, 1))[:3], found.mean_crossfit[:3], rtol=1e-9
    )


@pytest.mark.slow
def test_it_stands_beside_arviz_s(tree):
    ours, theirs = mp.elpd(tree, "y"), arviz_stats.loo(tree, pointwise=True)
    assert abs(ours.mean[0] - theirs.elpd) < 5 * ours.mcse_plain[0]
    n = tree.log_likelihood.sizes["obs"]
    assert (
        np.abs(ours.mean[3 : 3 + n] - theirs.elpd_i.values) < 5 * ours.mcse_plain[3 : 3 + n]
    ).all()


@pytest.mark.slow
def test_arviz_compares_two_of_them(rng, y):
    """Models of two priors, of which both leave-one-out densities are known."""
    trees = {"wide": make_tree(rng, y), "narrow": make_tree(rng, y, 0.02)}
    found = {name: mp.elpd(one) for name, one in trees.items()}
    found["narrow"] = pickle.loads(pickle.dumps(found["narrow"]))
    table = arviz_stats.compare(found, round_to="none")
    truth = {"wide": exact(y)[0], "narrow": exact(y, 0.02)[0]}
    best, other = table.index
    gap, n = truth[other] - truth[best], len(y)
    np.testing.assert_allclose(table["elpd"], [truth[one].sum() for one in table.index], rtol=1e-4)
    np.testing.assert_allclose(table["elpd_diff"], [0.0, gap.sum()], rtol=1e-3)
    np.testing.assert_allclose(table["dse"], [0.0, np.sqrt(n) * gap.std()], rtol=1e-3)
    se = [np.sqrt(n) * truth[one].std() for one in table.index]
    np.testing.assert_allclose(table["se"], se, rtol=1e-3)
    theirs = {name: arviz_stats.loo(one, pointwise=True) for name, one in trees.items()}
    columns = ["elpd", "elpd_diff", "se", "dse", "p", "weight"]
    beside = arviz_stats.compare(theirs, round_to="none")[columns]
    np.testing.assert_allclose(table[columns], beside, atol=0.1)
    heavy = found["wide"]._replace(status=(mp.Status.HEAVY_TAIL,) * len(found["wide"].names))
    said = arviz_stats.compare(found | {"wide": heavy})["diag_elpd"]["wide"]
    assert said.startswith(f"{n} k̂ > 0.6")


def test_an_observation_of_much_influence_is_told(rng):
    y = np.array([3.0])  # alone: 1/p(y | μ) has no variance under a posterior variance of 0.8
    variance = 1 / (len(y) + 1 / PRIOR)
    mean = variance * y.sum() + np.sqrt(variance) * rng.normal(size=(4, 500, 1))
    tree = mp.from_arrays(mean, -(mean - variance * y.sum()) / variance, names=("mu",))
    found = mp.elpd(with_log_likelihood(tree, mean[..., 0], y), method="plain")
    assert found.status[found.names.index("elpd_loo(y[0])")] == "heavy_tail"
    assert found.status[found.names.index("lppd(y[0])")] == "plain"
    # p_loo is made of both totals.
    assert found.status[:3] == ("heavy_tail", "plain", "heavy_tail")


@pytest.mark.slow
@pytest.mark.usefixtures("rank_promotion")
def test_numpyro_keeps_the_log_likelihood(key, y):
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
        with numpyro.plate("obs", len(y)):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    mcmc = MCMC(
        NUTS(model),
        num_warmup=200,
        num_samples=100,
        num_chains=2,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(key, y, extra_fields=("z_grad",))
    tree = mp.from_numpyro(mcmc, log_likelihood=True)
    np.testing.assert_allclose(
        tree.log_likelihood["y"],
        norm.logpdf(y, loc=np.array(tree.posterior["mu"])[..., None]),
        rtol=1e-6,
    )
    assert abs(mp.elpd(tree, method="zv2").mean[0] - exact(y)[0].sum()) < 0.05
    assert "log_likelihood" not in mp.from_numpyro(mcmc).children


@pytest.mark.parametrize(
    ("kept", "name", "words"),
    [(False, None, "group `log_likelihood`"), (True, "z", "`var_name` among y")],
)
def test_a_log_likelihood_that_is_not_there_is_refused(tree, kept, name, words):
    with pytest.raises(mp.InputError, match=words):
        mp.elpd(tree if kept else tree.drop_nodes("log_likelihood"), name)


@pytest.mark.slow
def test_an_observation_that_is_impossible_is_undefined(tree):
    with_it = tree.copy()
    with_it["log_likelihood"] = tree["log_likelihood"].to_dataset() * np.inf
    assert {str(status) for status in mp.elpd(with_it, method="plain").status} == {"undefined"}


def test_the_draw_at_which_an_observation_is_nan_is_named(tree):
    with_it = tree.copy()
    log_likelihood = tree["log_likelihood"].to_dataset().copy(deep=True)
    log_likelihood["y"][0, 3, 2] = np.nan
    with_it["log_likelihood"] = log_likelihood
    size = log_likelihood.sizes["chain"] * log_likelihood.sizes["draw"]
    words = rf"p\(y\[2\]\) at 1 of {size} draws, the first at chain 0, draw 3"
    with pytest.warns(UserWarning, match=words):
        mp.elpd(with_it, method="plain")


def test_one_draw_that_decides_is_told(tree):
    """Beside it the others are zero, and no tail has a Pareto k̂."""
    sharp = tree.copy()
    sharp["log_likelihood"] = tree["log_likelihood"].to_dataset() * 1e6
    found = mp.elpd(sharp, method="plain")
    left_out = {
        str(status) for name, status in zip(found.names, found.status, strict=True) if "loo" in name
    }
    assert left_out == {"heavy_tail"}


def test_one_of_several_must_be_named(tree):
    both = tree.copy()
    both["log_likelihood"]["z"] = both["log_likelihood"]["y"]
    with pytest.raises(mp.InputError, match="`var_name` where there are several"):
        mp.elpd(both)
    assert mp.elpd(both, "z", "plain").names[3] == "elpd_loo(z[0])"


@pytest.mark.slow
def test_a_masked_observation_adds_nothing(tree):
    """Its log likelihood is zero at every draw."""
    masked = tree.copy()
    values = tree["log_likelihood"]["y"]
    masked["log_likelihood"] = xr.DataTree(
        xr.Dataset({"y": xr.where(values["obs"] == 1, 0.0, values)})
    )
    found, left_out = mp.elpd(masked, method="zv2"), tree.copy()
    left_out["log_likelihood"] = xr.DataTree(xr.Dataset({"y": values.isel(obs=[0, *range(2, 20)])}))
    expected = mp.elpd(left_out, method="zv2")
    j = found.names.index("lppd(y[1])")
    assert (found.mean[j], found.mcse[j], found.status[j]) == (0.0, 0.0, "constant")
    np.testing.assert_allclose(found.mcse[:3], expected.mcse[:3], rtol=1e-6)
