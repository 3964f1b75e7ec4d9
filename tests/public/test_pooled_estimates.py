"""Estimates of chains that were reduced by themselves: one estimate, whose error is that of all of
them."""

import numpy as np
import pytest
from scipy.stats import chi2

import mcmcpost as mp
from mcmcpost.control import (
    Estimate,
    Options,
    PlainMean,
    Sample,
    ZeroVariance,
    estimate_expectations,
)
from mcmcpost.trace import make_trace
from mcmcpost.trees import ConvergenceWarning

TRUTH = np.array([np.exp(-0.5 * 1.5**2), np.exp(0.125)])


def chains(rng, shape=(2, 128, 2)):
    """Autoregressive draws (lag-one correlation 0.5) of a standard normal."""
    x = rng.normal(size=shape)
    for i in range(1, shape[1]):
        x[:, i] = 0.5 * x[:, i - 1] + np.sqrt(0.75) * x[:, i]
    return x


def integrands(x):
    return np.stack([np.cos(1.5 * x[..., 0]), np.exp(0.5 * x[..., 1])], axis=-1)


def reduced(x):
    return mp.expectation(mp.from_arrays(x, -x), integrands(x), "zv2")


def stated(
    mean, mcse, *, draws=(2, 50), method="ZeroVariance(degree=2)", status="controlled", sd=1.0
):
    """Return an estimate of one quantity that says this of itself."""
    one = np.ones(1)
    return Estimate(
        names=("f",),
        mean=mean * one,
        mcse=mcse * one,
        gain=one,
        variance_ratio=4 * one,
        status=(mp.Status(status),),
        method=(method,),
        sd=sd * one,
        mean_plain=mean * one,
        mcse_plain=2 * mcse * one,
        mean_crossfit=mean * one,
        residuals=np.full((*draws, 1), mean),
        covariance=mcse**2 * np.ones((1, 1)),
        info={},
    )


def test_parts_of_the_same_method_are_weighted_by_their_draws():
    pooled = mp.pool_estimates(stated(1.0, 0.1), stated(1.3, 0.2, draws=(6, 50)))
    np.testing.assert_allclose(pooled.mean, 0.25 * 1.0 + 0.75 * 1.3)
    np.testing.assert_allclose(pooled.mcse, np.hypot(0.25 * 0.1, 0.75 * 0.2))
    np.testing.assert_allclose(pooled.mcse_plain, 2 * pooled.mcse)
    np.testing.assert_allclose(pooled.gain, 4.0)
    np.testing.assert_allclose(pooled.variance_ratio, 4.0)
    np.testing.assert_allclose(pooled.covariance[0, 0], pooled.mcse[0] ** 2)
    np.testing.assert_allclose(pooled.sd**2, 1.0 + 0.25 * 0.75 * 0.3**2)
    np.testing.assert_array_equal(pooled.residuals[:, 0, 0], [1.0] * 2 + [1.3] * 6)
    assert pooled.info["pooled_draws"] == [100, 300]


def test_parts_of_other_methods_are_weighted_by_their_errors():
    pooled = mp.pool_estimates(
        stated(1.0, 0.1), stated(1.3, 0.2, method="PlainMean()", status="plain")
    )
    np.testing.assert_allclose(pooled.mean, 0.8 * 1.0 + 0.2 * 1.3)
    np.testing.assert_allclose(
        pooled.mcse, np.hypot(0.8 * 0.1, 0.2 * 0.2) * np.sqrt(1 + 4 * 2 * 0.16 / 7)
    )
    assert pooled.status == ("controlled",)
    assert pooled.method == ("ZeroVariance(degree=2) + PlainMean()",)


def test_a_part_without_an_error_has_no_weight_and_one_that_is_undefined_is_seen():
    pooled = mp.pool_estimates(stated(1.0, 0.1), stated(5.0, np.nan, status="too_few_draws"))
    np.testing.assert_allclose([pooled.mean[0], pooled.mcse[0]], [1.0, 0.1])
    assert pooled.status == ("too_few_draws",)
    assert np.isnan(mp.pool_estimates(*[stated(1.0, np.nan)] * 2).mcse).all()
    undefined = mp.pool_estimates(
        stated(1.0, 0.1), stated(np.nan, np.nan, status="undefined", sd=np.nan)
    )
    assert np.isnan([undefined.mean, undefined.mcse, undefined.mcse_plain, undefined.gain]).all()
    assert np.isnan(undefined.covariance).all()
    assert undefined.status == ("undefined",)


def test_a_constant_stays_one():
    parts = [stated(2.0, 0.0, status="constant", sd=0.0, method="PlainMean()")] * 2
    pooled = mp.pool_estimates(*parts)
    assert (pooled.mean[0], pooled.mcse[0], pooled.gain[0], pooled.status) == (
        2.0,
        0.0,
        1.0,
        ("constant",),
    )
    with pytest.warns(ConvergenceWarning, match="estimates of f contradict"):
        mp.pool_estimates(
            parts[0], stated(3.0, 0.0, status="constant", sd=0.0, method="PlainMean()")
        )


@pytest.mark.slow
def test_new_chains_are_added_to_a_saved_reduction(rng, tmp_path):
    x = chains(rng, (6, 300, 2))
    parts = [reduced(x[:4]), reduced(x[4:])]
    mp.save_tree(parts[0].to_datatree(), tmp_path / "old.nc")
    pooled, whole = mp.pool_estimates(mp.load_tree(tmp_path / "old.nc"), parts[1]), reduced(x)
    again = mp.pool_estimates(*parts)
    for name in ("mean", "mcse", "covariance", "residuals", "gain"):
        np.testing.assert_array_equal(getattr(pooled, name), getattr(again, name), err_msg=name)
    assert (pooled.names, pooled.status, pooled.method) == (again.names, again.status, again.method)
    np.testing.assert_allclose(pooled.mean_plain, whole.mean_plain, rtol=1e-12)
    assert (np.abs(pooled.mean - whole.mean) < whole.mcse).all()
    np.testing.assert_allclose(pooled.mcse, whole.mcse, rtol=0.5)
    assert pooled.to_dataframe().shape == whole.to_dataframe().shape


def test_a_chain_that_is_in_two_estimates_is_refused(rng, tmp_path):
    x = chains(rng)
    one = reduced(x)
    mp.save_tree(one.to_datatree(), tmp_path / "one.nc")
    for other in (one, mp.load_tree(tmp_path / "one.nc")):
        with pytest.raises(
            mp.InputError,
            match="every chain once, got one of the chains of estimate 0 in estimate 1",
        ):
            mp.pool_estimates(one, other)


@pytest.mark.parametrize("lost", ["mean", "mcse_cv", "status", "residual", "covariance"])
def test_a_stored_estimate_without_a_part_is_refused(lost):
    tree = stated(1.0, 0.1).to_datatree()
    tree["control_variates"] = tree["control_variates"].to_dataset().drop_vars(lost)
    words = f"an estimate that this version of mcmcpost wrote, got one without {lost}. Estimate it"
    with pytest.raises(mp.InputError, match=words):
        mp.pool_estimates(stated(1.0, 0.1), tree)


@pytest.mark.parametrize(("other", "cure"), [("new.nc", r", or load_tree\('new.nc'\)"), (3, "")])
def test_what_is_no_estimate_is_refused(other, cure):
    with pytest.raises(mp.InputTypeError, match=rf"an Estimate or a tree .* returned{cure}\.$"):
        mp.pool_estimates(stated(1.0, 0.1), other)


def test_rare_events_that_look_alike_are_pooled(rng):
    """One draw of sixty in each chain, at the same place in two of them, and chains without any."""
    x = chains(rng, (4, 60, 2))
    rare = np.zeros((4, 60))
    rare[[0, 2], 7] = rare[1, 5] = 1.0
    parts = [
        mp.expectation(mp.from_arrays(x[own], -x[own]), rare[own], "plain")
        for own in (slice(2), slice(2, 4))
    ]
    assert mp.pool_estimates(*parts).mean[0] == pytest.approx(3 / 240)


@pytest.mark.slow
def test_a_joint_estimate_is_pooled_task_by_task(rng):
    x = chains(rng)
    joint = mp.joint_expectation({"a": (mp.from_arrays(x, -x), x[..., 0])})
    with pytest.raises(mp.InputError, match=r"estimates over `quantity`.*pool each task"):
        mp.pool_estimates(joint.to_datatree(), joint["a"])


REPLICATIONS = 200
BAND = chi2.isf(1e-5, REPLICATIONS) / REPLICATIONS


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "methods",
    [(ZeroVariance(2),) * 3, (ZeroVariance(2), PlainMean(), ZeroVariance(1))],
    ids=["alike", "other"],
)
def test_pooled_errors_are_calibrated(seed, methods):
    rng, z = np.random.default_rng(seed), []

    def estimate(x, method):  # without the tree and its tests, which take most of the time
        return estimate_expectations(
            Sample.of(make_trace(x, -x), ("cos", "exp"), integrands(x)), method, Options()
        )

    for _ in range(REPLICATIONS):
        pooled = mp.pool_estimates(*(estimate(chains(rng), method) for method in methods))
        z.append((pooled.mean - TRUTH) / pooled.mcse)
    assert (np.mean(np.square(z), axis=0) < BAND).all()


def test_what_cannot_be_pooled_is_told(rng):
    one = stated(1.0, 0.1)
    cases = {
        "at least two estimates": (one,),
        "same quantities, got .*'g'": (one, one._replace(names=("g",))),
        "chains of one length, got 50 and 40": (one, stated(1.0, 0.1, draws=(2, 40))),
    }
    for message, given in cases.items():
        with pytest.raises(ValueError, match=message):
            mp.pool_estimates(*given)
    with pytest.raises(TypeError, match="an Estimate or a tree that has one"):
        mp.pool_estimates(one, 3.0)
    x = rng.normal(size=(2, 20, 1))
    with pytest.raises(ValueError, match="group control_variates"):
        mp.pool_estimates(one, mp.from_arrays(x, -x))
    with pytest.warns(ConvergenceWarning, match="contradict"):
        mp.pool_estimates(one, stated(4.0, 0.1))


def test_weighted_draws_count_as_many_as_are_effective(rng):
    """One part has as many draws as the other, and a proposal so wide that few of them are
    effective."""
    parts = []
    for width in (1.1, 3.0):
        x = width * rng.normal(size=(1, 400, 1))
        logs = -0.5 * x[..., 0] ** 2 * (1 - 1 / width**2)
        parts.append(
            mp.expectation(mp.from_arrays(x, -x, log_weights=logs), {"f": x[..., 0] ** 2}, "plain")
        )
    pooled, sizes = mp.pool_estimates(*parts), np.array([part.info["ess"] for part in parts])
    assert sizes[1] < 0.7 * sizes[0]
    np.testing.assert_allclose(
        pooled.mean_plain, sizes @ [part.mean_plain for part in parts] / sizes.sum()
    )
    assert pooled.info["ess"] == pytest.approx(sizes.sum())
    assert pooled.info["pareto_khat"] == max(part.info["pareto_khat"] for part in parts)
