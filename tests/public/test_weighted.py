"""Weighted draws: exact values, honest errors, and what does not know weights refuses them."""

import warnings

import jax
import numpy as np
import pytest
import xarray as xr
from scipy.special import logsumexp

import mcmcpost as mp
from mcmcpost.core.mcse import Weights, mcse_mean

COVARIANCE = np.array([[1.0, 0.6], [0.6, 2.0]])
MEAN = np.array([0.5, -1.0])
PRECISION = np.linalg.inv(COVARIANCE)


def log_density(x):
    return -0.5 * (x - MEAN) @ PRECISION @ (x - MEAN)


def student_draws(rng, size=2_000):
    """Return draws of a Student t around the normal, the scores of the normal, and their log
    weights."""
    z = rng.normal(size=(size, 2)) / np.sqrt(rng.chisquare(5, size=(size, 1)) / 5)
    x = MEAN + 0.2 + 1.2 * z @ np.linalg.cholesky(COVARIANCE).T
    shifted, centred = x - MEAN - 0.2, x - MEAN
    log_g = -3.5 * np.log1p(np.einsum("ni,ij,nj->n", shifted, PRECISION, shifted) / (5 * 1.44))
    log_p = -0.5 * np.einsum("ni,ij,nj->n", centred, PRECISION, centred)
    return x[None], -(centred @ PRECISION)[None], (log_p - log_g)[None]


def nested_run(rng, live=200, dimension=3, size=5.0):
    """Return dead points of a run in a ball, exactly: radii from the volumes, likelihood −r²/2, and
    their log weights.

    The prior is uniform in a ball, so that the points of a run are a Poisson process in the log
    volume.
    """
    steps = live * 12
    log_volume = np.cumsum(np.log(rng.beta(live, 1, size=steps)))
    radius = size * np.exp(log_volume / dimension)
    direction = rng.normal(size=(steps, dimension))
    x = radius[:, None] * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    believed = -np.arange(1, steps + 1) / live
    return x[None], -x[None], (believed - 0.5 * radius**2)[None], np.full((1, steps), live)


@pytest.fixture
def tree(rng):
    draws, scores, logs = student_draws(rng)
    return mp.from_arrays(draws, scores, log_weights=logs, names=("a", "b"))


@pytest.fixture
def nested(rng):
    draws, scores, logs, live = nested_run(rng)
    return mp.from_arrays(draws, scores, log_weights=logs, num_live=live)


def test_weighted_means_and_their_errors_are_those_of_the_formula(tree):
    found = mp.expectation(tree, method="plain")
    x = np.stack([tree["posterior"][name].values[0] for name in ("a", "b")], axis=-1)
    logs = tree["sample_stats"]["log_weight"].values[0]
    share = np.exp(logs - logsumexp(logs))
    mean = share @ x
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(found.sd, np.sqrt(share @ (x - mean) ** 2), rtol=1e-12)
    delta = np.sqrt(share**2 @ (x - mean) ** 2)
    assert (found.mcse >= 0.999 * delta).all()
    assert (found.mcse <= 1.2 * delta).all()
    assert found.info["ess"] == pytest.approx(1 / (share**2).sum())
    np.testing.assert_allclose(
        mp.quantile(tree, 0.5, "a", "plain").mean, _median(x[:, 0], share), atol=0.01
    )


def _median(values, share):
    order = np.argsort(values)
    return values[order][np.searchsorted(np.cumsum(share[order]), 0.5)]


def test_plain_means_are_weighted_where_scores_are_not_finite_and_in_chunks_of_dask(
    tree, monkeypatch
):
    monkeypatch.setattr("mcmcpost.core.arrays.LARGE", 0)
    expected = mp.expectation(tree, method="plain")
    chunked = tree.map_over_datasets(lambda part: part.chunk(draw=500) if part.dims else part)
    broken = tree.copy(deep=True)
    broken["sample_stats"]["gradient"].values[0, 3, 0] = np.inf
    for other in (chunked, broken):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", mp.ScoreWarning)
            found = mp.expectation(other, method="plain", allow_bad_scores=True)
        np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-12)
        np.testing.assert_allclose(found.mcse, expected.mcse, rtol=1e-12)


@pytest.mark.slow
def test_equal_weights_change_nothing(rng):
    draws = rng.normal(size=(4, 200, 2))
    with_weights = mp.from_arrays(draws, -draws, log_weights=np.full((4, 200), -3.0))
    without = mp.from_arrays(draws, -draws)
    asked = {"e": np.exp(0.5 * draws[..., 0]), "q": draws[..., 1] ** 3}
    one, two = (mp.expectation(each, asked, "zv2") for each in (with_weights, without))
    np.testing.assert_allclose(one.mean, two.mean, rtol=1e-9)
    np.testing.assert_allclose(one.mcse, two.mcse, rtol=0.25)
    one, two = (mp.quantile(each, [0.1, 0.9], asked, "plain") for each in (with_weights, without))
    np.testing.assert_allclose(one.mean, two.mean, rtol=1e-9)


@pytest.mark.parametrize("kind", ["tree", "nested"])
def test_quadratics_of_a_normal_are_exact(request, kind):
    weighted = request.getfixturevalue(kind)
    before = weighted.copy(deep=True)
    mean, cov = (MEAN, COVARIANCE) if kind == "tree" else (np.zeros(3), np.eye(3))
    np.testing.assert_allclose(mp.expectation(weighted, method="zv1").mean, mean, atol=1e-9)
    found = mp.covariance(weighted, method="zv2")
    np.testing.assert_allclose(found.mean, cov[np.triu_indices(len(mean))], atol=1e-8)
    assert (np.abs(found.mean_plain - found.mean) < 6 * found.mcse_plain).all()
    assert weighted.identical(before)


def test_the_error_of_a_nested_sampling_run_includes_its_volumes(rng):
    """Of r², whose mean is that of the volumes alone, and of a coordinate, over 200 runs."""
    found = []
    for _ in range(200):
        x, _, logs, live = nested_run(rng, live=50)
        values = np.stack([(x**2).sum(-1), x[..., 0]], axis=-1)
        weights = Weights.of(logs, live.astype(float))
        found.append([weights.mean(values), mcse_mean(values, weights)])
    mean, error = np.moveaxis(np.array(found), 1, 0)
    z = (mean - [3.0, 0.0]) / error
    assert ((z**2).mean(axis=0) < 1.6).all()
    assert ((z**2).mean(axis=0) > 0.6).all()


def test_an_event_has_no_heavy_tail_and_what_is_unbounded_may(nested, rng):
    """The weights of a run span many orders of magnitude, and so does the influence of a draw on
    any mean."""
    x = nested["posterior"]["x[0]"].values
    tail = 1 / rng.uniform(size=x.shape)
    events = {f"P(x > {t})": x > t for t in (0.0, 1.0, 1.5, 2.0)}
    found = mp.expectation(nested, events | {"tail": tail}, "plain")
    assert dict(zip(found.names, map(str, found.status), strict=True)) == dict.fromkeys(
        events, "plain"
    ) | {"tail": "heavy_tail"}
    assert set(mp.expectation(nested, events, "plain").status) == {"plain"}


def test_independent_shares_alone_would_be_too_small_for_a_nested_run(rng):
    x, _, logs, live = nested_run(rng, live=50)
    squares = (x**2).sum(-1)[..., None]
    weights = Weights.of(logs, live.astype(float))
    naive = np.sqrt((Weights.of(logs).influence(squares) ** 2).sum()) / logs.size
    assert mcse_mean(squares, weights)[0] > 1.5 * naive


@pytest.mark.slow
def test_controlled_means_of_weighted_draws_are_calibrated(rng):
    z = []
    for _ in range(30):
        draws, scores, logs = student_draws(rng, 600)
        tree = mp.from_arrays(draws, scores, log_weights=logs)
        found = mp.expectation(tree, {"exp": np.exp(0.5 * draws[..., 0])}, "zv2")
        assert found.gain[0] > 3
        z.append((found.mean[0] - np.exp(0.25 + 0.125)) / found.mcse[0])
    assert np.mean(np.square(z)) < 2.0


@pytest.mark.slow
def test_kernels_take_weighted_draws(tree):
    """The integrand is no polynomial: exp of the first coordinate, whose mean is that of a
    log-normal."""
    method = mp.SemiExact(1, mp.stein.SquaredExponential(4.0), max_states=200)
    found = mp.expectation(tree, {"exp": lambda draw: jax.numpy.exp(draw["a"])}, method)
    assert found.gain[0] > 30
    assert found.info["num_fitted"] <= 200
    assert abs(found.mean[0] - np.exp(1.0)) < 5 * found.mcse[0]


@pytest.mark.filterwarnings("ignore::mcmcpost.ScoreWarning")
@pytest.mark.parametrize(
    ("cut", "khat"),
    [
        (lambda logs: np.minimum(logs, 0.5), -np.inf),
        (lambda logs: np.where(logs < 0, -1e4, logs), 0.5),
    ],
    ids=["above", "below"],
)
def test_weights_that_are_cut_off_have_a_tail_or_none(rng, cut, khat):
    x = rng.normal(size=(4, 250, 1))
    logs = cut(0.6 * x[..., 0])  # the target is N(0.6, 1) before the cut
    tree = mp.from_arrays(x, 0.6 - x, log_weights=logs, allow_bad_scores=True)
    found = mp.expectation(tree, method="plain", allow_bad_scores=True)
    assert found.info["pareto_khat"] <= khat


@pytest.mark.filterwarnings("ignore::mcmcpost.ScoreWarning")
def test_weights_that_a_few_draws_decide_are_told(rng):
    draws = rng.normal(size=(1, 1_000, 6)) * 0.4
    logs = -0.5 * (draws**2).sum(-1) + 0.5 * (draws**2).sum(-1) / 0.16
    tree = mp.from_arrays(draws, -draws, log_weights=logs, allow_bad_scores=True)
    with pytest.warns(mp.ConvergenceWarning, match=r"k-hat .* of the weights is above 0.7"):
        found = mp.expectation(tree, method="zv1", allow_bad_scores=True)
    assert found.info["pareto_khat"] > 0.7
    with pytest.warns(mp.ConvergenceWarning, match="k-hat"):
        assert set(mp.expectation(tree, method="plain").status) == {"heavy_tail"}


def test_wrong_scores_of_weighted_draws_are_recognised(rng):
    draws, scores, logs = student_draws(rng)
    with pytest.raises(mp.ScoreError, match="sign"):
        mp.from_arrays(draws, -scores, log_weights=logs)


@pytest.mark.parametrize(
    "ask",
    [
        lambda tree: mp.stein_weights(tree),
        lambda tree: mp.stein_thinning(tree, 5),
        lambda tree: mp.kernel_stein_discrepancy(tree),
        lambda tree: mp.joint_expectation({"t": (tree, None)}),
        lambda tree: mp.reweight_prior(tree, lambda draw: -draw["a"]),
        lambda tree: mp.hyper_derivatives(tree, lambda draw: draw["a"]),
        lambda tree: mp.sample_power_posteriors(
            log_likelihood=log_density, log_prior=log_density, reference=tree, key=jax.random.key(0)
        ),
        lambda tree: mp.ladder_from_traces({0.0: tree, 1.0: tree}),
        lambda tree: mp.html_report(tree),
        lambda tree: mp.expectation(tree, method=mp.VectorValued()),
    ],
)
def test_what_knows_no_weights_refuses_them(tree, ask):
    with pytest.raises(mp.InputError, match=r"equal weight.*resample\(tree"):
        ask(tree)


@pytest.mark.slow
def test_every_weighted_quantity_reads_the_weights(tree):
    """The draws are around 0.2 more than the mean, and wider."""
    for estimator, truth in (
        (mp.standard_deviation, np.sqrt(np.diagonal(COVARIANCE))),
        (mp.variance, [1.0, 2.0]),
    ):
        found = estimator(tree, method="plain")
        assert (np.abs(found.mean - truth) < 5 * found.mcse).all()
    ratio = mp.delta_method(tree, {"r": lambda mean: mean["a"] / mean["b"]}, method="plain")
    assert abs(ratio.mean[0] + 0.5) < 5 * ratio.mcse[0]
    table = mp.summary(tree, method="zv2", sd=True, quantiles=(0.5,))
    np.testing.assert_allclose(table["mean_cv"], MEAN, atol=1e-8)
    np.testing.assert_allclose(table["sd_cv"], np.sqrt(np.diagonal(COVARIANCE)), atol=1e-7)
    assert (np.abs(table["q0.5_cv"] - MEAN) < 5 * table["mcse_q0.5_cv"]).all()


def test_elpd_reads_the_weights(tree):
    values = tree["posterior"]["a"].values[..., None]
    weighted = tree.copy()
    weighted["log_likelihood"] = xr.DataTree(
        xr.Dataset({"y": (("chain", "draw", "i"), -0.1 * values**2)})
    )
    found = mp.elpd(weighted, method="plain")
    share = np.exp(tree["sample_stats"]["log_weight"].values[0])
    expected = -np.log(share @ np.exp(0.1 * values[0, :, 0] ** 2) / share.sum())
    assert found.mean[0] == pytest.approx(expected, rel=1e-9)


def test_draws_without_scores_are_resampled(tree):
    bare = tree.copy()
    bare["sample_stats"].dataset = tree["sample_stats"].to_dataset()[["log_weight"]]
    few = mp.resample(bare, key=jax.random.key(1), num_draws=30)
    assert few["posterior"].sizes["draw"] == 30
    assert not few["sample_stats"].data_vars


def test_what_counts_all_draws_alike_refuses_weights(tree):
    with pytest.raises(ValueError, match="draws of equal weight"):
        mp.expectation(tree, method=mp.VectorValued())


@pytest.mark.slow
def test_resampled_draws_have_equal_weights_and_the_same_means(tree, nested):
    for weighted, mean in ((tree, MEAN), (nested, np.zeros(3))):
        found = mp.resample(weighted, key=jax.random.key(1))
        assert "log_weight" not in found["sample_stats"]
        assert "num_live" not in found["sample_stats"]
        plain = mp.expectation(found, method="plain")
        assert (np.abs(plain.mean - mean) < 5 * plain.mcse).all()
        assert mp.check_tree(found).verdict == "pass"
    more = tree.copy()
    chains, draws = (tree["posterior"].sizes[dim] for dim in ("chain", "draw"))
    more["prior"] = xr.DataTree(
        xr.Dataset({"a": (("chain", "draw"), np.arange(chains * draws).reshape(chains, draws))})
    )
    more["other"] = xr.DataTree(xr.Dataset({"a": (("chain", "draw"), np.arange(50.0)[None])}))
    more["posterior/labels"] = xr.DataTree(xr.Dataset({"q": ("k", [1, 2])}))
    more["posterior"].dataset = more["posterior"].to_dataset().assign(fixed=("school", [1.0, 2.0]))
    few = mp.resample(more, key=jax.random.key(1), num_draws=70)
    assert {name: few["posterior"].sizes[name] for name in ("chain", "draw")} == {
        "chain": 1,
        "draw": 70,
    }
    assert few["posterior"]["fixed"].dims == ("school",)
    assert few["posterior/labels"]["q"].values.tolist() == [1, 2]
    for name in ("prior", "other"):
        assert few[name].to_dataset().equals(more[name].to_dataset())
    evidence = mp.bridge_evidence(
        mp.resample(tree, key=jax.random.key(1)),
        logdensity_fn=log_density,
        key=jax.random.key(2),
        method="plain",
    )
    truth = np.log(2 * np.pi) + 0.5 * np.linalg.slogdet(COVARIANCE)[1]
    assert abs(evidence.value - truth) < 5 * evidence.error < 0.5


def test_weights_survive_a_file_and_a_table(tree, tmp_path):
    before = mp.expectation(tree, method="zv1").mean
    path = mp.save_tree(tree, tmp_path / "weighted.nc")
    np.testing.assert_array_equal(mp.expectation(mp.load_tree(path), method="zv1").mean, before)
    stats = tree["sample_stats"].to_dataset()
    columns = {name: tree["posterior"][name].values[0] for name in ("a", "b")}
    columns |= {
        f"gradient_{name}": stats["gradient"].values[0, :, i] for i, name in enumerate(("a", "b"))
    }
    columns |= {"log_weight": stats["log_weight"].values[0]}
    table = tmp_path / "weighted.csv"
    np.savetxt(
        table,
        np.stack(list(columns.values()), 1),
        delimiter=",",
        header=",".join(columns),
        comments="",
    )
    read = mp.load_tree(table)
    assert set(read["posterior"].data_vars) == {"a", "b"}
    np.testing.assert_allclose(mp.expectation(read, method="zv1").mean, before, rtol=1e-9)


class Results:
    """Results as dynesty has them."""

    def __init__(self, rng, live):
        x, _, logs, self.samples_n = (part[0] for part in nested_run(rng, live=live))
        self.samples, self.logwt = x, logs
        self.logz, self.logzerr = np.logaddexp.accumulate(logs), np.full(len(logs), 0.1)


def test_results_of_dynesty_become_a_tree(rng):
    results = Results(rng, 100)
    tree = mp.from_dynesty(results, names=("a", "b", "c"))
    stats = tree["sample_stats"]
    assert stats.attrs["log_evidence"] == results.logz[-1]
    assert stats["log_weight"].values.min() > stats["log_weight"].values.max() + np.log(1e-20)
    scored = mp.attach_scores(tree, logdensity_fn=lambda x: -0.5 * x @ x)
    found = mp.expectation(scored, method="zv1")
    np.testing.assert_allclose(found.mean, 0.0, atol=1e-9)
    whole = mp.from_arrays(
        results.samples[None],
        -results.samples[None],
        log_weights=results.logwt[None],
        num_live=[results.samples_n],
    )
    np.testing.assert_allclose(
        found.mcse_plain, mp.expectation(whole, method="plain").mcse, rtol=1e-9
    )
    del results.samples_n
    results.nlive = 100
    live = mp.from_dynesty(results)["sample_stats"]["num_live"].values[0]
    assert live[0] == 100
    with pytest.raises(mp.InputTypeError, match="results with samples, logwt"):
        mp.from_dynesty(np.zeros(3))


@pytest.mark.parametrize(
    "logs", [lambda x: np.where(x == x.max(), 500.0, 0.0), lambda x: 40 * x, lambda x: 3 * x]
)
def test_a_few_draws_with_all_the_weight_have_no_error_at_rounding(rng, logs):
    x = rng.normal(size=(4, 100, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tree = mp.from_arrays(x, -x, log_weights=logs(x[..., 0]))
        for found in (mp.expectation(tree), mp.quantile(tree, 0.5)):
            assert set(found.status) == {mp.Status.HEAVY_TAIL}
            assert (np.isnan(found.mcse) | (found.mcse > 0.1)).all()
