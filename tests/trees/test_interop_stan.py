"""Traces of Stan programs, made by PyStan 3, which compiles them here: scores from PyStan and from
BridgeStan."""

import inspect
import shutil
import warnings

import arviz_base
import jax
import numpy as np
import pytest
from bridgestan_case import StanModel
from scipy import stats

import mcmcpost as mp
from mcmcpost.trees import read_trace

pytestmark = [
    pytest.mark.interop,
    pytest.mark.filterwarnings("ignore:It is recommended to use web.AppKey"),  # of PyStan's server
    # a divergence or two of Stan's
    pytest.mark.filterwarnings("ignore::mcmcpost.ConvergenceWarning"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="a Stan program needs a C++ compiler"),
]
REASON = "needs the extra `interop`"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # escapes in strings of its dependencies
    stan = pytest.importorskip("stan", reason=REASON)
bridgestan = pytest.importorskip("bridgestan", reason=REASON)

CODE = """
data { int<lower=0> n; vector[n] y; }
parameters { real mu; real<lower=0> sigma; simplex[3] w; matrix[2, 3] z; }
transformed parameters { real precision = 1 / square(sigma); }
model {
  mu ~ normal(0, 3);
  sigma ~ normal(0, 2);
  w ~ dirichlet(rep_vector(2, 3));
  to_vector(z) ~ normal(0, 1);
  y ~ normal(mu + w[1] + z[1, 2], sigma);
}
generated quantities { real twice = 2 * mu; }
"""
DATA = {"n": 4, "y": [1.0, 2.0, 0.5, 1.7]}


@pytest.fixture(scope="module")
def fitted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = stan.build(CODE, data=DATA, random_seed=1)
        fit = model.sample(num_chains=4, num_samples=250, num_warmup=500)
        return model, arviz_base.from_pystan(fit, posterior_model=model)


def by_definition(site):
    """∂ log density/∂(mu, log sigma) and /∂z[0, 1], one draw."""
    residual = np.array(DATA["y"]) - site["mu"] - site["w"][0] - site["z"][0, 1]
    precision = site["sigma"] ** -2
    mu = residual.sum() * precision - site["mu"] / 9
    log_sigma = (residual**2).sum() * precision - len(residual) - site["sigma"] ** 2 / 4 + 1
    return mu, log_sigma, residual.sum() * precision - site["z"][0, 1]


def check(tree):
    trace = read_trace(tree)
    posterior = tree["posterior"].to_dataset()
    np.testing.assert_allclose(
        trace.draws[..., 1], np.log(posterior["sigma"]), rtol=1e-9, atol=1e-9
    )
    for chain, draw in ((0, 0), (1, 17), (3, 249)):
        mu, log_sigma, z = by_definition(
            {k: v.values for k, v in posterior.isel(chain=chain, draw=draw).items()}
        )
        scores = trace.scores[chain, draw]
        np.testing.assert_allclose([scores[0], scores[1]], [mu, log_sigma], rtol=1e-8, atol=1e-8)
        # Stan unconstrains a matrix by column: mu, log sigma, two for w, then z[0, 0], z[1, 0],
        # z[0, 1].
        np.testing.assert_allclose(scores[6], z, rtol=1e-8, atol=1e-8)
    assert mp.check_tree(tree).verdict == "pass"
    assert (mp.summary(tree, ["mu", "sigma", "precision"], method="zv2")["gain"] > 1).all()


def test_pystan_gives_the_scores_of_its_traces(fitted, tmp_path):
    model, bare = fitted
    stored = mp.load_tree(mp.save_tree(bare, tmp_path / "bare.nc"))
    tree = mp.attach_scores(stored, model)
    assert read_trace(tree).names[:2] == ("unconstrained[0]", "unconstrained[1]")
    assert "pystan_version" in tree["sample_stats"].attrs
    check(tree)


def test_a_trace_of_another_stan_program_is_refused(fitted):
    model, bare = fitted
    few = bare.isel(draw=slice(10))
    less = few.copy()
    less["posterior"] = few["posterior"].to_dataset().drop_vars("sigma")
    with pytest.raises(ValueError, match=r"parameters of the Stan program among the draws.*sigma"):
        mp.attach_scores(less, model)
    shifted = few.copy()
    shifted["posterior"] = few["posterior"].to_dataset().assign(mu=few["posterior"]["mu"] * 2)
    with pytest.raises(mp.ScoreError, match=r"recorded `sample_stats.lp` by a constant"):
        mp.attach_scores(shifted, model)
    with pytest.raises(ValueError, match="a model of stan alone"):
        mp.attach_scores(few, model, 1.0)
    # PyStan's density has no constants
    with pytest.raises(ValueError, match="Compile the program with BridgeStan"):
        mp.bridge_evidence(few, model, key=jax.random.key(0))


def test_bridgestan_has_the_methods_that_the_stand_in_has():
    for name in (
        "param_names",
        "param_unc_names",
        "param_unconstrain",
        "log_density",
        "log_density_gradient",
    ):
        given = inspect.signature(getattr(StanModel, name)).parameters
        assert set(given) <= set(inspect.signature(getattr(bridgestan.StanModel, name)).parameters)


@pytest.fixture(scope="module")
def bridge(tmp_path_factory):
    home = bridgestan.compile.get_bridgestan_path(download=False)
    if not home:
        pytest.skip("BridgeStan's C++ sources come from GitHub: set BRIDGESTAN to a checkout")
    path = tmp_path_factory.mktemp("stan") / "interop.stan"
    path.write_text(CODE)
    return bridgestan.StanModel(str(path), DATA)


def test_bridgestan_gives_the_scores_of_stan_traces(fitted, bridge):
    tree = mp.attach_scores(fitted[1], bridge)
    assert read_trace(tree).names == tuple(bridge.param_unc_names())
    check(tree)


def test_bridgestan_has_the_evidence_that_quadrature_has(fitted, bridge):
    """μ + w₁ + z₁₂ and its variance given w₁ are normal: an integral over σ and w₁, Beta(2, 4), is
    left."""
    y = np.array(DATA["y"])
    found = mp.bridge_evidence(fitted[1], bridge, key=jax.random.key(0))
    sigma, w = np.meshgrid(
        np.linspace(0.02, 12.0, 1_500), np.linspace(0.0005, 0.9995, 500), indexing="ij"
    )
    covariance = sigma[..., None, None] ** 2 * np.eye(4) + 10.0
    rest = (y - w[..., None])[..., None]
    square = (rest * np.linalg.solve(covariance, rest)).sum(axis=(-2, -1))
    logs = -0.5 * (square + np.linalg.slogdet(2 * np.pi * covariance)[1])
    # Stan does not renormalise at zero
    density = np.exp(logs) * stats.norm(0, 2).pdf(sigma) * stats.beta(2, 4).pdf(w)
    truth = np.log(density.sum() * (sigma[1, 0] - sigma[0, 0]) * (w[0, 1] - w[0, 0]))
    assert abs(found.value - truth) < 4.5 * found.mcse + 1e-3
