"""Constrained variables of a NumPyro model: simplices, correlation matrices, Cholesky factors,
ordered vectors."""

import arviz as az
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import xarray
from arviz_base import convert_to_dataset
from numpyro.distributions.transforms import OrderedTransform

import mcmcpost as mp
from mcmcpost.app.commands import estimates_text
from mcmcpost.control.problem import first_of_same

CONCENTRATION = np.array([2.0, 3.0, 5.0])


def model():
    factor = numpyro.sample("factor", dist.LKJCholesky(3, 2.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0).expand([3]).to_event(1))
    corr = numpyro.deterministic("corr", factor @ factor.T)
    numpyro.deterministic("cov", scale[:, None] * corr * scale[None, :])
    numpyro.sample("weights", dist.Dirichlet(jnp.array(CONCENTRATION)))
    steps = dist.Normal(0, 1).expand([3]).to_event(1)
    numpyro.sample("cut", dist.TransformedDistribution(steps, OrderedTransform()))
    numpyro.deterministic("fixed", jnp.array([0.0, 2.5]))


@pytest.fixture(scope="module")
def tree():
    """Independent draws of the prior, of which every expectation is known."""
    with jax.numpy_rank_promotion("allow"):  # NumPyro's stick-breaking needs it
        sites = numpyro.infer.Predictive(model, num_samples=1600)(jax.random.key(5))
        posterior = {
            name: np.asarray(values).reshape(4, 400, *values.shape[1:])
            for name, values in sites.items()
        }
        dataset = convert_to_dataset(posterior)
        return mp.attach_scores(xarray.DataTree.from_dict({"posterior": dataset}), model)


@pytest.fixture(scope="module")
def estimate(tree):
    return mp.expectation(tree, method="zv2")


@pytest.mark.slow
def test_means_of_constrained_variables_are_right(estimate):
    truth = {f"corr[{i}, {j}]": 0.0 for i in range(3) for j in range(i)}
    truth |= {f"weights[{i}]": share for i, share in enumerate(CONCENTRATION / CONCENTRATION.sum())}
    truth |= {f"cov[{i}, {j}]": float(i == j) for i in range(3) for j in range(3)}
    truth |= {f"scale[{i}]": np.sqrt(2 / np.pi) for i in range(3)}
    truth |= {f"cut[{i}]": i * np.exp(0.5) for i in range(3)}
    for name, value in truth.items():
        j = estimate.names.index(name)
        assert abs(estimate.mean[j] - value) < 4.5 * estimate.mcse[j] + 1e-12, name
        if name.startswith(("corr", "weights", "scale")):
            assert estimate.mcse[j] < 0.5 * estimate.mcse_plain[j], name


@pytest.mark.slow
def test_the_variance_of_a_correlation_is_that_of_the_lkj_prior(tree):
    """An entry of LKJ(2) of three is 2 Beta(a, a) − 1 with a = 5/2, whose variance is 1/(2a +
    1)."""
    squares = {
        f"{i}, {j}": lambda draw, i=i, j=j: draw["corr"][i, j] ** 2
        for i in range(3)
        for j in range(i)
    }
    found = mp.expectation(tree, squares, method="zv2")
    assert (np.abs(found.mean - 1 / 6) < 4.5 * found.mcse).all()
    assert (found.gain[:2] > 2).all()


@pytest.mark.slow
def test_what_is_constant_up_to_rounding_has_a_value_and_no_error(tree, estimate):
    assert np.ptp(np.asarray(tree["posterior"]["corr"])[..., 2, 2]) > 0
    ones = {f"corr[{i}, {i}]": 1.0 for i in range(3)} | {"factor[0, 0]": 1.0}
    zeros = {"factor[0, 1]": 0.0, "factor[0, 2]": 0.0, "factor[1, 2]": 0.0}
    assert estimate.constants == ones | zeros | {"fixed[0]": 0.0, "fixed[1]": 2.5}
    rows = {row["name"]: row for row in estimate.to_json_dict()["quantities"]}
    for name, value in estimate.constants.items():
        row = rows[name]
        assert (row["mean"], row["mean_cv"], row["sd"], row["mcse"], row["mcse_cv"]) == (
            value,
            value,
            0.0,
            0.0,
            0.0,
        )
        assert row["status"] == mp.Status.CONSTANT
    spread = mp.standard_deviation(tree, ["corr", "fixed"], method="plain")
    assert (
        spread.mean[[0, 4, 8, 9, 10]].tolist()
        == spread.mcse[[0, 4, 8, 9, 10]].tolist()
        == [0.0] * 5
    )
    median = mp.quantile(tree, 0.5, ["corr"], method="plain")
    assert median.constants == {f"corr[{i}, {i}] [0.5]": 1.0 for i in range(3)}
    assert median.duplicates["corr[1, 0] [0.5]"] == "corr[0, 1] [0.5]"


@pytest.mark.slow
def test_a_small_spread_beyond_rounding_is_estimated(tree):
    noise = np.random.default_rng(0).standard_normal((4, 400))
    small = mp.expectation(
        tree, {"x": 1e6 + 1e-6 * noise, "y": 1.0 + 1e-16 * noise}, method="plain"
    )
    assert [str(status) for status in small.status] == ["plain", "constant"]
    single = np.float32(1.0) + np.float32(1e-7) * noise.astype(np.float32)
    wide = 1.0 + 1e-7 * noise
    found = mp.expectation(tree, {"single": single, "double": wide}, method="plain")
    assert [str(status) for status in found.status] == ["constant", "plain"]


@pytest.mark.slow
def test_the_two_halves_of_a_symmetric_matrix_are_one_estimate(tree, estimate):
    doubles = {
        f"{name}[{j}, {i}]": f"{name}[{i}, {j}]"
        for name in ("corr", "cov")
        for i in range(3)
        for j in range(3)
    }
    lower = {double: first for double, first in doubles.items() if double > first}
    assert estimate.duplicates == lower
    for double, first in lower.items():
        i, j = estimate.names.index(double), estimate.names.index(first)
        assert (estimate.mean[i], estimate.mcse[i]) == (estimate.mean[j], estimate.mcse[j])
        np.testing.assert_array_equal(estimate.residuals[..., i], estimate.residuals[..., j])
        assert estimate.covariance[i, j] == pytest.approx(estimate.mcse[i] ** 2)
    alone = mp.expectation(tree, ["cut", "scale"], method="zv2")
    places = [estimate.names.index(name) for name in alone.names]
    np.testing.assert_allclose(estimate.mean[places], alone.mean, rtol=1e-10, atol=1e-12)


def test_the_first_of_the_same_is_found_whatever_lies_between(rng):
    one, two = rng.standard_normal((2, 4, 50))
    events = (rng.random((4, 50, 2)) < 0.5).astype(float)
    events[..., 1] = np.roll(events[..., 0], 1, axis=1)  # the same mean, and other draws
    values = np.stack(
        [one, two, one * (1 + 2**-52), -one, np.ones_like(one), np.ones_like(one), two], axis=-1
    )
    assert first_of_same(values).tolist() == [0, 1, 0, 3, 4, 5, 1]
    assert first_of_same(events).tolist() == [0, 1]
    values[0, 0, 2] = np.nan
    assert first_of_same(values).tolist() == [0, 1, 2, 3, 4, 5, 1]


@pytest.mark.slow
def test_tables_for_readers_name_constants_and_doubles_once(estimate):
    text = estimates_text([estimate])
    listed = [line.split("  ")[0] for line in text.splitlines() if "[" in line and ":" not in line]
    assert (
        set(listed) == set(estimate.names) - estimate.constants.keys() - estimate.duplicates.keys()
    )
    assert (
        "constant: factor[0, 0], corr[0, 0], corr[1, 1], corr[2, 2] = 1" in text
        or "constant: corr[0, 0]" in text
    )
    assert "constant: fixed[1] = 2.5" in text
    assert "the same: corr[1, 0] = corr[0, 1], " in text


@pytest.mark.slow
def test_a_summary_joins_that_of_arviz_without_holes(tree):
    with np.errstate(all="ignore"):
        table = az.summary(tree, var_names=["corr", "weights"], round_to="none")
    joined = table.join(
        mp.summary(tree, ["corr", "weights"], method="zv1", sd=True, quantiles=(0.5,))
    )
    own = joined[
        ["mean_cv", "mcse_cv", "gain", "digits", "sd_cv", "mcse_sd_cv", "q0.5_cv", "mcse_q0.5_cv"]
    ]
    assert np.isfinite(own.to_numpy()).all()
    assert (
        joined.loc["corr[1, 1]", ["mean_cv", "mcse_cv", "sd_cv"]].to_numpy() == [1.0, 0.0, 0.0]
    ).all()


@pytest.mark.slow
def test_a_report_lists_constants_in_a_line(tree):
    pytest.importorskip("jinja2")
    html = mp.html_report(tree, integrands=["corr", "fixed"], method="zv1")
    assert "<p>Constant: corr[0, 0], corr[1, 1], corr[2, 2] = 1</p>" in html
    assert '<th scope="row">corr[0, 1]</th>' in html
    assert '<th scope="row">corr[1, 1]</th>' not in html
    only = mp.html_report(tree, integrands=["fixed"], method="zv1")
    assert "<p>Constant: fixed[1] = 2.5</p>" in only
