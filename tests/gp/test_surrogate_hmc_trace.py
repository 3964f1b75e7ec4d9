"""A trace of surrogate HMC goes where any other goes: the table, the report, a file and the command
line."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import surrogate_cases
from html_cases import Reading

import mcmcpost as mp

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Some donated buffers were not usable:UserWarning"),
]

DATA = np.array([0.3, 1.2, 0.4, 0.9, -0.2])
MEANS = {
    "centre": DATA.sum() / (len(DATA) + 1),
    "width": np.exp(0.125),
    "both[0]": 0.0,
    "both[1]": 0.0,
}
"""Of the posterior: that of `centre` is normal, of the others the prior."""


def model(y):
    centre = numpyro.sample("centre", dist.Normal(0.0, 1.0))
    numpyro.sample("width", dist.LogNormal(0.0, 0.5))
    numpyro.sample("both", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    numpyro.sample("y", dist.Normal(centre, 1.0), obs=y)


@pytest.fixture(scope="module")
def tree():
    kernel = mp.SurrogateHMC(
        model, num_steps=8, surrogate=mp.SubspaceSurrogate(num_training=20, tuning_steps=5)
    )
    with jax.numpy_rank_promotion("allow"):  # NumPyro's own code promotes ranks
        mcmc = surrogate_cases.run(kernel, jax.random.key(4), DATA, num_warmup=100, num_samples=250)
        assert mcmc.get_extra_fields()["surrogate_used"].all()
        return mp.from_numpyro(mcmc)


def test_its_counts_are_in_the_tree(tree):
    stats = tree["sample_stats"]
    assert int(stats.attrs["score_evaluations"]) == stats.sizes["chain"] * stats.sizes["draw"]
    for name in ("num_true_gradients", "num_true_energies", "num_surrogate_gradients"):
        assert (np.diff(stats[name].values, axis=1) >= 0).all()
    assert (stats["num_true_energies"].values[:, 0] == 1).all()
    assert (stats["num_warmup_energies"].values == 101).all()


def test_its_summary_has_the_posterior_means(tree):
    table = mp.summary(tree)
    assert set(table.index) == set(MEANS)
    assert (table["gain"] > 1).all()
    found = mp.expectation(tree, method="zv2")
    for name, mean, mcse in zip(found.names, found.mean, found.mcse, strict=True):
        assert abs(mean - MEANS[name]) < 4.5 * mcse + 1e-8


def test_its_report_is_whole(tree, tmp_path):
    document = mp.html_report(tree, tmp_path / "report.html", method="zv1")
    assert (tmp_path / "report.html").read_text() == document
    reading = Reading(document)
    assert reading.problems == []
    assert all(any(name in text for _, text in reading.text) for name in MEANS)


def test_a_file_of_it_is_reduced_and_reported(tree, tmp_path, run):
    path = tmp_path / "trace.nc"
    mp.save_tree(tree, path)
    back = mp.load_tree(path)
    for name in ("num_true_gradients", "num_warmup_gradients", "surrogate_used", "gradient"):
        np.testing.assert_array_equal(
            back["sample_stats"][name].values, tree["sample_stats"][name].values
        )
    done = run("reduce", path, "--method", "zv1", "--json")
    assert done.code == 0, done.err
    wanted = mp.expectation(tree, method="zv1")
    rows = json.loads(done.out)["quantities"]
    assert [row["name"] for row in rows] == list(wanted.names)
    np.testing.assert_allclose([row["mean_cv"] for row in rows], wanted.mean, rtol=1e-10)
    done = run("report", path, "-o", tmp_path / "report.html", "--method", "zv1")
    assert done.code == 0, done.err
    assert Reading((tmp_path / "report.html").read_text()).problems == []
