"""NumPyro traces: z_grad kept with the right sign, every support transformed, recomputation where
it was not kept."""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray
from interop_cases import (
    COUNTS,
    changepoint,
    changepoint_chains,
    changepoint_scores,
    changepoint_truth,
)
from numpyro.infer import HMC, MCMC, NUTS, DiscreteHMCGibbs, HMCGibbs, MixedHMC
from numpyro.infer.util import potential_energy, unconstrain_fn
from scipy.stats import chi2

import mcmcpost as mp
from mcmcpost.scores import ScoreError
from mcmcpost.trees import attach_scores, from_numpyro, read_trace

pytestmark = pytest.mark.usefixtures("rank_promotion")

DATA = jnp.array([0.1, 0.5, -0.3])


def supports(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("b_scale", dist.HalfNormal(1.0))
    numpyro.sample("a_interval", dist.Uniform(-1.0, 3.0))
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    base = dist.Normal(jnp.zeros(3), 1.0).to_event(1)
    numpyro.sample(
        "ordered", dist.TransformedDistribution(base, dist.transforms.OrderedTransform())
    )
    numpyro.sample("chol", dist.LKJCholesky(3, 2.0))
    numpyro.sample("below", dist.Uniform(0.0, scale))
    numpyro.deterministic("sum", mu + weights[0])
    numpyro.sample("y", dist.Normal(mu + weights[0], scale), obs=y)


def plain(shift=0.0):
    with numpyro.plate("row", 2):
        numpyro.sample("z", dist.Normal(shift, 1.0))
    numpyro.sample("a", dist.LogNormal(0.0, 1.0))


def fixed_step(model=None, **settings):
    """HMC that adapts nothing: it compiles in half the time."""
    still = {"trajectory_length": None, "adapt_step_size": False, "adapt_mass_matrix": False}
    return HMC(model, step_size=0.3, num_steps=5, **still, **settings)


def run(kernel, *args, seed=0, samples=60, chains=2, fields=("z_grad",), init=None):
    mcmc = MCMC(
        kernel,
        num_warmup=60,
        num_samples=samples,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(seed), *args, extra_fields=fields, init_params=init)
    return mcmc


@pytest.fixture(scope="module")
def sampled():
    return run(fixed_step(supports), DATA)


@pytest.fixture(scope="module")
def tree(sampled):
    # Sixty correlated draws need not have converged: the gate has tests of its own.
    return from_numpyro(sampled, allow_bad_scores=True)


@pytest.mark.slow
def test_labels_follow_the_program(tree):
    lower = [f"chol[{i}]" for i in range(3)]
    ordered = [f"ordered[{i}]" for i in range(3)]
    names = ("mu", "b_scale", "a_interval", "weights[0]", "weights[1]", *ordered, *lower, "below")
    assert read_trace(tree).names == names


@pytest.mark.slow
def test_scores_are_those_of_the_potential(tree):
    trace = read_trace(tree)
    sites = ("mu", "b_scale", "a_interval", "weights", "ordered", "chol", "below")

    @jax.jit
    def by_definition(one):
        free = unconstrain_fn(supports, (DATA,), {}, one)
        gradient = jax.grad(lambda free: potential_energy(supports, (DATA,), {}, free))(free)
        return [
            jnp.concatenate([jnp.ravel(part[site]) for site in sites]) for part in (free, gradient)
        ]

    for chain, draw in ((0, 0), (1, 17), (0, 59)):
        free, gradient = by_definition(
            {site: tree["posterior"][site].values[chain, draw] for site in sites}
        )
        np.testing.assert_allclose(trace.draws[chain, draw], free, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(trace.scores[chain, draw], -gradient, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_recomputed_scores_are_the_kept_ones(tree):
    before = tree.copy(deep=True)
    again = attach_scores(tree, supports, DATA, allow_bad_scores=True)
    kept, computed = read_trace(tree), read_trace(again)
    assert kept.names == computed.names
    np.testing.assert_allclose(computed.draws, kept.draws, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(computed.scores, kept.scores, rtol=1e-10, atol=1e-10)
    assert tree.identical(before)


@pytest.mark.slow
def test_the_tree_keeps_what_arviz_gives(tree):
    assert "sum" in tree["posterior"].data_vars
    assert "observed_data" in tree.children
    assert "z_grad" not in tree["sample_stats"].data_vars
    attrs = tree["sample_stats"].attrs
    assert (attrs["score_sign"], attrs["score_jacobian"], attrs["score_space"]) == (
        "+",
        "included",
        "unconstrained",
    )
    assert {"mcmcpost_version", "numpyro_version", "jax_version", "score_check"} <= set(attrs)


@pytest.mark.slow
def test_a_wrong_sign_is_caught(tree, sampled, monkeypatch):
    fields = sampled.get_extra_fields(group_by_chain=True)
    flipped = {"z_grad": jax.tree.map(jnp.negative, fields["z_grad"])}
    monkeypatch.setattr(sampled, "get_extra_fields", lambda **_: flipped)
    with pytest.raises(ScoreError, match="wrong sign"):
        from_numpyro(sampled)
    assert (
        read_trace(from_numpyro(sampled, allow_bad_scores=True)).scores[0, 0, 0]
        == -read_trace(tree).scores[0, 0, 0]
    )


def kept_and_recomputed(mcmc, monkeypatch):
    """Return the trace with the scores that the run kept, and the one of a run that kept none."""
    kept = from_numpyro(mcmc)
    assert kept["sample_stats"].attrs["score_evaluations"] == "0"
    monkeypatch.setattr(mcmc, "get_extra_fields", lambda **_: {})
    recomputed = from_numpyro(mcmc)
    assert recomputed["sample_stats"].attrs["score_evaluations"] != "0"
    return read_trace(kept), read_trace(recomputed)


@pytest.mark.slow
def test_one_chain_in_float32(monkeypatch):
    with jax.enable_x64(False):
        mcmc = run(fixed_step(plain), chains=1, samples=100)
        traces = kept_and_recomputed(mcmc, monkeypatch)
    for trace in traces:
        assert trace.names == ("z[0]", "z[1]", "a")
        assert trace.scores.dtype == np.float64
        np.testing.assert_allclose(trace.scores, -trace.draws, atol=1e-5)


@pytest.mark.slow
def test_arguments_of_the_run_are_used_where_it_kept_no_scores():
    trace = read_trace(from_numpyro(run(fixed_step(plain), 5.0, fields=())))
    np.testing.assert_allclose(trace.scores[..., :2], 5.0 - trace.draws[..., :2], rtol=1e-12)


def quadratic(parameters):
    return sum(0.5 * jnp.sum(leaf**2) for leaf in jax.tree.leaves(parameters))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("init", "names"),
    [
        (jnp.zeros((2, 3)), ("Param:0[0]", "Param:0[1]", "Param:0[2]")),
        ({"b": jnp.zeros((2, 2)), "a": jnp.zeros(2)}, ("a", "b[0]", "b[1]")),
        ((jnp.zeros((2, 2)), jnp.zeros(2)), ("Param:0[0]", "Param:0[1]", "Param:1")),
    ],
    ids=["array", "dict", "tuple"],
)
def test_a_bare_potential(init, names, monkeypatch):
    mcmc = run(fixed_step(potential_fn=quadratic), init=init, samples=100)
    for trace in kept_and_recomputed(mcmc, monkeypatch):
        assert trace.names == names
        np.testing.assert_allclose(trace.scores, -trace.draws, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_bad_runs():
    with pytest.raises(ValueError, match="a finished MCMC run"):
        from_numpyro(MCMC(NUTS(plain), num_warmup=1, num_samples=1))
    with pytest.raises(ValueError, match="without z"):
        from_numpyro(run(fixed_step(plain), fields=("~z.z",), samples=4))


@pytest.mark.slow
def test_bad_models(tree):
    def discrete(y):
        numpyro.sample("k", dist.Bernoulli(0.5))
        supports(y)

    with pytest.raises(ValueError, match="discrete k"):
        attach_scores(tree, discrete, DATA)

    def constant(y):
        numpyro.sample("one", dist.Delta(1.0))
        supports(y)

    with pytest.raises(
        ValueError, match=r"Delta distributions of one\. Write numpyro\.deterministic"
    ):
        attach_scores(tree, constant, DATA)
    with pytest.raises(ValueError, match="without z, a"):
        attach_scores(tree, plain)
    with pytest.raises(ValueError, match="none"):
        attach_scores(tree, lambda: None)

    def larger(y):
        numpyro.sample("mu", dist.Normal(jnp.zeros(4), 1.0).to_event(1))
        return y

    with pytest.raises(ValueError, match=r"site `mu` of shape \(chain, draw, 4\), got \(2, 60\)"):
        attach_scores(tree, larger, DATA)
    with pytest.raises(
        ValueError, match=r"got a list of shape \(3,\) for a Normal of shape \(\). Pass an array"
    ):
        attach_scores(tree, supports, DATA.tolist())


@pytest.mark.slow
def test_draws_on_a_boundary_are_named(tree):
    posterior = tree["posterior"].to_dataset()
    posterior["b_scale"] = posterior["b_scale"].copy()
    posterior["b_scale"][1, 7] = 0.0  # as a small one is in single precision
    words = (
        r"1 of 120 draws of `b_scale` on its boundary or beyond, the first at chain 1, draw 7: "
        r"0\.0\. Pass"
    )
    with pytest.raises(ValueError, match=words):
        attach_scores(xarray.DataTree.from_dict({"posterior": posterior}), supports, DATA)
    posterior["b_scale"][1, 7] = np.nan
    with pytest.raises(ValueError, match="draws with NaN"):
        attach_scores(xarray.DataTree.from_dict({"posterior": posterior}), supports, DATA)


ARVIZ_FIRST = """
import arviz_base
from numpyro.infer import HMC, MCMC
import jax, numpyro.distributions as dist, numpyro, mcmcpost
fixed = {"adapt_step_size": False, "adapt_mass_matrix": False}
kernel = HMC(lambda: numpyro.sample("x", dist.Normal()), **fixed)
mcmc = MCMC(kernel, num_warmup=100, num_samples=200, progress_bar=False)
mcmc.run(jax.random.key(0), extra_fields=("z_grad",))
print(dict(mcmcpost.from_numpyro(mcmc)["posterior"].sizes))
"""


@pytest.mark.slow
def test_arviz_imported_before_numpyro():
    """Its lazy import of NumPyro leaves `numpyro.infer` without its submodules."""
    done = subprocess.run(
        [sys.executable, "-c", ARVIZ_FIRST], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "{'chain': 1, 'draw': 200}", done.stderr


X = np.linspace(-1.0, 1.0, 30)
Z = 0.5 + 2.0 * X + np.random.default_rng(0).normal(size=30)


def line(x, z):
    a, b = (numpyro.sample(name, dist.Normal(0.0, 10.0)) for name in "ab")
    numpyro.sample("z", dist.Normal(a + b * x, 1.0), obs=z)


class Line:
    """A model whose data are in an object, as those of a closure or module: no argument can be
    copied."""

    def __init__(self, x, z):
        self.x, self.z = x, z

    def __call__(self):
        line(self.x, self.z)


class HalfLine(Line):
    """The same model, with half of the line from an argument."""

    def __call__(self, x):
        a, b = (numpyro.sample(name, dist.Normal(0.0, 10.0)) for name in "ab")
        numpyro.sample("z", dist.Normal(a + b * (x / 2) + b * self.x, 1.0), obs=self.z)


def evidence_of_line():
    covariance = 10.0**2 * (1 + np.outer(X, X)) + np.eye(30)
    return -0.5 * (
        Z @ np.linalg.solve(covariance, Z) + np.linalg.slogdet(2 * np.pi * covariance)[1]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("where", "switched"),
    [
        ("object", False),
        ("object", True),
        ("arguments", False),
        ("arguments", True),
        ("both", False),
        ("both", True),
    ],
)
def test_float64_data_of_a_run_in_float32(where, switched):
    """JAX knows the data in float32 alone, whatever the precision now."""
    x, z = X.copy(), Z.copy()
    model, args = {
        "object": (Line(x, z), ()),
        "arguments": (line, (x, z)),
        "both": (HalfLine(x / 2, z), (x,)),
    }[where]
    with jax.enable_x64(False):
        mcmc = run(fixed_step(model), *args, fields=("z_grad", "potential_energy"), samples=400)
    design = np.stack([np.ones(30), X])
    precision = design @ design.T + np.eye(2) / 100
    mean = np.linalg.solve(precision, design @ Z)
    with jax.enable_x64(switched):
        kept = from_numpyro(mcmc, log_likelihood=True)
        bare = xarray.DataTree.from_dict({"posterior": kept["posterior"].to_dataset()})
        scored = attach_scores(bare, model, *args)
        slope = mp.expectation(scored, lambda draw: draw["b"] * jnp.asarray(x).max())
    for tree in (kept, scored):
        trace = read_trace(tree)
        assert trace.scores.dtype == trace.draws.dtype == np.float64
        np.testing.assert_allclose(trace.scores, (mean - trace.draws) @ precision, atol=2e-5)
    np.testing.assert_allclose(slope.mean, mean[1], atol=1e-5)


@pytest.mark.slow
def test_a_ladder_leaves_the_data_of_later_runs_as_they_were():
    """Programs that are kept had kept data in float64, and NumPyro's next run in float32 ended in
    an error of JAX."""
    model = Line(X.copy(), Z.copy())
    with jax.enable_x64(False):
        for _ in range(2):  # with the data unknown to JAX, and known in float32
            ladder = mp.sample_power_posteriors(
                model,
                temperatures=mp.power_ladder(5, 5),
                key=jax.random.key(0),
                num_warmup=200,
                num_samples=100,
            )
            np.testing.assert_allclose(mp.log_evidence(ladder).value, evidence_of_line(), atol=1e-4)
            bare = from_numpyro(run(fixed_step(model), samples=400), allow_bad_scores=True)
        bridge = mp.bridge_evidence(bare, model, key=jax.random.key(1), method="plain")
        laplace = mp.laplace_evidence(bare, model, key=jax.random.key(1))
        for found in (bridge, laplace):
            np.testing.assert_allclose(found.value, evidence_of_line(), atol=5 * found.mcse + 1e-5)
        # Nine thousand observations: −13,000 nats in float32.
        many = Line(np.tile(X, 300), np.tile(Z, 300))
        run(fixed_step(many), samples=2)
        draws = {
            name: (("chain", "draw"), np.linspace(0.49, 2.01, 40).reshape(2, 20)) for name in "ab"
        }
        tree = xarray.DataTree.from_dict({"posterior": xarray.Dataset(draws)})
        with pytest.warns(
            UserWarning, match=r"single precision.*rounded by more than 0\.001 nats\. Switch"
        ):
            mp.laplace_evidence(tree, many, key=jax.random.key(1), num_proposals=200)


@pytest.mark.slow
def test_sites_with_a_slash_have_a_dot_in_the_tree_and_the_program_stays_as_it_is():
    """NumPyro's `scope` and modules put "/" into names, which a tree takes for a path."""

    def scoped():
        numpyro.handlers.scope(plain, prefix="left")()
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=0.3)

    mcmc = run(fixed_step(scoped), samples=200, chains=1)
    with pytest.warns(UserWarning, match=r'"/" in names of sites is "\.".*: left\.a, left\.z'):
        tree = from_numpyro(mcmc)
    assert set(tree["posterior"].data_vars) == {"left.a", "left.z"}
    assert json.loads(tree["sample_stats"].attrs["numpyro_sites"]) == {
        "left.a": "left/a",
        "left.z": "left/z",
    }
    assert set(mcmc.get_samples()) == {"left/a", "left/z"}
    again = read_trace(
        attach_scores(
            xarray.DataTree.from_dict({"posterior": tree["posterior"].to_dataset()}), scoped
        )
    )
    assert again.names == ("left.z[0]", "left.z[1]", "left.a")
    np.testing.assert_allclose(again.scores, read_trace(tree).scores, atol=1e-10)
    np.testing.assert_allclose(again.scores, -again.draws, atol=1e-10)

    def two():
        numpyro.sample("a.b", dist.Normal())
        numpyro.sample("a/b", dist.Normal())

    with pytest.raises(ValueError, match=r"got a\.b and a/b\. Rename"):
        attach_scores(tree, two)


def tree_of(variables):
    arrays = {
        name: (("chain", "draw", *(f"{name}_{i}" for i in range(values.ndim - 2))), values)
        for name, values in variables.items()
    }
    return xarray.DataTree.from_dict({"posterior": xarray.Dataset(arrays)})


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_scores_given_discrete_sites_control_the_joint_posterior(rng):
    """E[g′(x) + g(x) s(x, k)] = 0 given each k, so that what depends on x gains.

    A function of k alone does not: every control has mean zero given k, and so no covariance with
    it.
    """
    draws = changepoint_chains(rng, 4 * 60, 200)
    scored = attach_scores(tree_of(draws), changepoint, COUNTS)
    trace = read_trace(scored)
    assert trace.names == ("rate[0]", "rate[1]")
    np.testing.assert_allclose(trace.draws, np.log(draws["rate"]), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(
        trace.scores, changepoint_scores(draws["rate"], draws["tau"]), rtol=1e-9, atol=1e-9
    )
    true = np.concatenate([np.ravel(value) for value in changepoint_truth().values()])
    estimates = [
        mp.expectation(scored.isel(chain=slice(i, i + 4)), method="zv2") for i in range(0, 240, 4)
    ]
    z = np.array([(one.mean - true) / one.mcse for one in estimates])
    names, gains = estimates[0].names, np.median([one.gain for one in estimates], axis=0)
    assert ((z**2).mean(axis=0) < chi2.isf(1e-5 / len(names), 60) / 60).all()
    assert (np.abs(z.mean(axis=0)) < 4.5 / np.sqrt(60)).all()
    gain = dict(zip(names, gains, strict=True))
    assert min(gain["rate[0]"], gain["rate[1]"], gain["now[1]"], gain["now[14]"]) > 2
    assert gain["tau"] == 1


def test_discrete_sites_whose_draws_are_missing_or_are_others(rng):
    draws = changepoint_chains(rng, 2, 30)
    for change, words in (
        (
            {"tau": None},
            r"or draws of the discrete ones, got discrete tau without draws.*Keep the draws "
            r"of DiscreteHMC",
        ),
        (
            {"tau": draws["tau"] + 0.5},
            "whole numbers as draws of the discrete site `tau`, got float64s that are not",
        ),
        ({"tau": draws["now"]}, r"site `tau` of shape \(chain, draw\), got \(2, 30, 16\)"),
    ):
        given = {name: values for name, values in (draws | change).items() if values is not None}
        with pytest.raises(mp.InputError, match=words):
            attach_scores(tree_of(given), changepoint, COUNTS)

    def summed_out(y):
        x = numpyro.sample("rate", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        k = numpyro.sample("tau", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(x[0] + k, 1.0), obs=y)

    with pytest.raises(mp.InputError, match="marked for enumeration"):
        attach_scores(tree_of(draws), summed_out, 0.0)
    with pytest.raises(mp.InputError, match="continuous latent sites, got discrete tau alone"):
        attach_scores(tree_of(draws), lambda: numpyro.sample("tau", dist.Poisson(3.0)))
    with pytest.raises(
        mp.InputError, match="bridge_evidence: expected continuous latent sites, got discrete tau"
    ):
        mp.bridge_evidence(tree_of(draws), changepoint, COUNTS, key=jax.random.key(0))


def exact_tau(rng_key, hmc_sites, gibbs_sites):  # noqa: ARG001  (NumPyro's signature)
    places = jnp.arange(1, len(COUNTS))
    now = jnp.where(jnp.arange(len(COUNTS)) < places[:, None], *hmc_sites["rate"])
    return {
        "tau": 1
        + dist.Categorical(logits=dist.Poisson(now).log_prob(COUNTS).sum(axis=1)).sample(rng_key)
    }


@pytest.mark.slow
@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize(
    "kernel",
    [
        lambda: DiscreteHMCGibbs(NUTS(changepoint)),
        lambda: MixedHMC(HMC(changepoint, trajectory_length=1.5)),
        lambda: HMCGibbs(NUTS(changepoint), exact_tau, ["tau"]),
    ],
    ids=["DiscreteHMCGibbs", "MixedHMC", "HMCGibbs"],
)
def test_runs_with_discrete_sites(kernel, x64):
    with jax.enable_x64(x64):
        mcmc = MCMC(
            kernel(),
            num_warmup=300,
            num_samples=500,
            num_chains=2,
            chain_method="sequential",
            progress_bar=False,
        )
        mcmc.run(jax.random.key(0), COUNTS)
        tree = from_numpyro(mcmc, log_likelihood=True)
    posterior = {name: tree["posterior"][name].values for name in ("rate", "tau")}
    assert posterior["tau"].dtype.kind == "i"
    expected = changepoint_scores(posterior["rate"].astype(float), posterior["tau"])
    np.testing.assert_allclose(read_trace(tree).scores, expected, atol=1e-9 if x64 else 1e-4)
    again = attach_scores(tree, changepoint, COUNTS)
    np.testing.assert_allclose(read_trace(again).scores, read_trace(tree).scores, atol=1e-9)
    estimate, true = mp.expectation(tree, ["rate", "tau"]), changepoint_truth()
    assert (
        np.abs(estimate.mean - np.append(true["rate"], true["tau"])) < 4.5 * estimate.mcse
    ).all()
    assert (estimate.gain[:2] > 1.2).all()
