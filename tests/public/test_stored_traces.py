"""Traces in the chunks of dask: means come from sums over each, and whatever needs every draw reads
them."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import xarray
from dask.callbacks import Callback

import mcmcpost as mp
from mcmcpost.core import arrays
from mcmcpost.stein import SquaredExponential
from mcmcpost.trees import integrand_values

FIELDS = (
    "mean",
    "mcse",
    "gain",
    "variance_ratio",
    "sd",
    "mean_plain",
    "mcse_plain",
    "mean_crossfit",
    "residuals",
)

SHAPE = (3, 400, 4)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every array for a large one, and blocks of some dozen draws for small ones."""
    monkeypatch.setattr(arrays, "LARGE", 1_000)
    monkeypatch.setattr(arrays, "ENTRIES", 3_000)
    monkeypatch.setattr("mcmcpost.sums.LARGE", 100)


def test_pieces_grow_with_a_trace_until_a_worker_has_enough():
    """Of 10⁹ draws of 50 parameters dask is told of 3,000 pieces, not of 48,000."""
    assert [arrays.piece_size(n) for n in (10**6, 10**10, 5 * 10**10)] == [
        1 << 20,
        5 * 10**6,
        1 << 24,
    ]
    assert arrays.piece_size(10**6, 1 << 22) == 1 << 22


@pytest.fixture
def nothing_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("draws or scores were read whole")

    monkeypatch.setattr(arrays, "read_chunks", refuse)


def skewed_tree(
    rng: np.random.Generator, *, repeats: bool = True, dtype: type = np.float64
) -> xarray.DataTree:
    """Return draws of a correlated normal, the first half of each chain's states repeated, and a
    fixed coordinate."""
    mixing = np.array([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [-0.3, 0.2, 2.0]])
    z = rng.normal(size=(*SHAPE[:2], 3))
    if repeats:
        z[:, 1:200:2] = z[:, 0:200:2]
    draws = np.concatenate([1.0 + z @ mixing.T, np.full((*SHAPE[:2], 1), 2.0)], axis=-1).astype(
        dtype
    )
    moved = np.linalg.solve(mixing, (draws[..., :3] - 1.0).reshape(-1, 3).T)
    scores = np.zeros_like(draws)
    scores[..., :3] = -np.linalg.solve(mixing.T, moved).T.reshape(*SHAPE[:2], 3)
    values = np.stack(
        [np.exp(0.3 * draws[..., 0]), draws[..., 1] ** 3, np.cos(draws[..., 2])], axis=-1
    )
    return mp.from_arrays(draws, scores, values=values)


def in_chunks(tree: xarray.DataTree, **sizes: int) -> xarray.DataTree:
    def chunked(data: xarray.Dataset) -> xarray.Dataset:
        return data.chunk({dim: size for dim, size in sizes.items() if dim in data.dims})

    return xarray.DataTree.from_dict(
        {name: chunked(group.to_dataset()) for name, group in tree.children.items()}
    )


CHUNKS = {
    "uneven blocks of draws": {"chain": 1, "draw": 37},
    "all chains, and columns apart": {"chain": 3, "draw": 90, "unconstrained_parameter": 2},
    "one chunk": {},
}


@pytest.mark.slow
@pytest.mark.usefixtures("small", "nothing_whole")
@pytest.mark.parametrize(
    "method", [mp.ZeroVariance(2, mp.LeastSquares()), "auto", "structured", "plain"]
)
def test_means_come_from_sums_which_no_chunk_changes(rng, method):
    tree = skewed_tree(rng)
    found = mp.expectation(mp.moments(tree, None, method))
    in_memory = mp.expectation(tree, None, mp.Auto(kernel=False) if method == "auto" else method)
    for sizes in CHUNKS.values():
        lazy = in_chunks(tree, **sizes)
        own = mp.expectation(lazy, method=method)
        assert own.names == found.names == in_memory.names
        assert own.status == found.status
        for name in set(FIELDS) - {"gain", "variance_ratio"}:  # some gains are rounding
            np.testing.assert_allclose(
                getattr(own, name), getattr(found, name), rtol=1e-6, atol=1e-9, err_msg=name
            )
        assert all(isinstance(v.data, da.Array) for v in lazy["posterior"].data_vars.values())
    np.testing.assert_allclose(found.mean_plain, in_memory.mean_plain, rtol=1e-12)
    assert (np.abs(found.mean - in_memory.mean) < 2 * in_memory.mcse + 1e-12).all()


@pytest.mark.slow
@pytest.mark.usefixtures("small", "nothing_whole")
def test_a_summary_of_means_and_its_tree_read_nothing_whole(rng, tmp_path):
    lazy = in_chunks(skewed_tree(rng), draw=90)
    estimate = mp.expectation(lazy)
    assert mp.summary(lazy)["mean_cv"].to_list() == estimate.mean.tolist()
    tree = estimate.to_datatree(lazy)
    assert tree["control_variates/residual"].dims == ("chain", "run", "quantity")
    mp.save_tree(estimate.to_datatree(), tmp_path / "estimate.nc")
    both = mp.pool_estimates(
        mp.load_tree(tmp_path / "estimate.nc"), mp.expectation(in_chunks(skewed_tree(rng)))
    )
    assert both.info["pooled_draws"] == [1_200, 1_200]


@pytest.mark.slow
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("method", "options"),
    [
        (mp.ControlFunctional(SquaredExponential(2.0), 1e-4, max_states=90), {}),
        (mp.ZeroVariance(2, mp.Ridge()), {}),
        ("zv1", {"folds": 5}),
        ("zv1", {"standardize": (1.0, 1.5)}),
    ],
    ids=["kernel", "ridge", "folds", "standardize"],
)
def test_what_needs_every_draw_reads_them(rng, method, options):
    tree = skewed_tree(rng)
    found = mp.expectation(tree, method=method, **options)
    own = mp.expectation(in_chunks(tree, draw=70), method=method, **options)
    assert own.status == found.status
    for name in FIELDS:
        np.testing.assert_allclose(
            getattr(own, name), getattr(found, name), rtol=1e-8, atol=1e-10, err_msg=name
        )


@pytest.mark.slow
@pytest.mark.usefixtures("small", "nothing_whole")
def test_functions_of_a_draw_are_evaluated_chunk_by_chunk(rng):
    tree = skewed_tree(rng)
    tree["posterior"] = xarray.DataTree(
        tree["posterior"].to_dataset().assign(constant=("place", np.arange(3.0)))
    )
    functions = {
        "product": lambda draw: draw["f[0]"] * draw["f[1]"],
        "not of JAX": lambda draw: float(np.exp(float(draw["f[2]"]) / 4)),
    }
    lazy = in_chunks(tree, draw=70)
    # one in memory beside those in chunks, without chains and draws
    lazy["posterior"]["constant"].load()
    found, own = mp.expectation(mp.moments(tree, functions)), mp.expectation(lazy, functions)
    np.testing.assert_allclose(own.mean, found.mean, rtol=1e-9)
    np.testing.assert_allclose(own.residuals, found.residuals, rtol=1e-6, atol=1e-9)


QUESTIONS = {
    "quantiles": lambda tree: mp.quantile(tree, [0.1, 0.9], method="zv2"),
    "an interval": lambda tree: mp.distribution(tree, method="zv2").interval(0.8),
    "a side": lambda tree: mp.distribution(tree, method="zv2").probability(lower=1.0),
    "spreads": lambda tree: mp.standard_deviation(tree, method="zv2"),
    "correlations": lambda tree: mp.correlation(tree, method="zv2"),
    "a ratio": lambda tree: mp.delta_method(
        tree, {"ratio": lambda mean: mean["f[0]"] / (3 + mean["f[2]"])}, method="zv2"
    ),
}


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_whole")
@pytest.mark.parametrize("question", QUESTIONS.values(), ids=QUESTIONS)
def test_what_is_a_function_of_means_comes_from_sums_which_no_chunk_changes(
    rng, monkeypatch, question
):
    monkeypatch.setattr(arrays, "LARGE", 1_000)
    monkeypatch.setattr("mcmcpost.sums.LARGE", 1_000)
    tree = skewed_tree(rng, repeats=False)
    found, *others = (question(in_chunks(tree, **sizes)) for sizes in CHUNKS.values())
    in_memory = question(tree)
    assert found.names == in_memory.names
    for name in ("mean", "mcse", "mean_plain", "mcse_plain"):
        for own in others:
            np.testing.assert_allclose(
                getattr(own, name), getattr(found, name), rtol=1e-6, atol=1e-9, err_msg=name
            )
    assert (
        np.abs(found.mean - in_memory.mean) < 2 * np.hypot(found.mcse, in_memory.mcse) + 1e-9
    ).all()
    np.testing.assert_allclose(
        found.mean_plain, in_memory.mean_plain, atol=0.3 * in_memory.mcse_plain.max()
    )
    np.testing.assert_allclose(found.mcse_plain, in_memory.mcse_plain, rtol=0.5)


@pytest.mark.slow
def test_quantiles_of_all_draws_are_looked_for_about_those_of_a_few(monkeypatch):
    """Of what is normal all are exact; of its exponential, and of what has few values, as near as
    the draws say."""
    monkeypatch.setattr("mcmcpost.distributions.PILOT", 1_024)
    rng = np.random.default_rng(3)
    draws = rng.normal(size=(4, 8_192, 2)) + 1.0
    tree = mp.from_arrays(draws, 1.0 - draws, names=["a", "b"])
    posterior = tree["posterior"].to_dataset()
    posterior = posterior.assign(
        e=np.exp(posterior["b"]), k=np.floor(posterior["a"]), same=posterior["a"] * 0 + 2
    )
    tree["posterior"] = xarray.DataTree(posterior)
    monkeypatch.setattr(arrays, "LARGE", 1_000)
    levels = np.array([0.02, 0.5, 0.9])
    found = mp.quantile(tree.chunk(draw=4_096), levels.tolist(), ["a", "e", "k", "same"])
    normal = scipy.stats.norm.ppf(levels) + 1
    truth = np.concatenate([normal, np.exp(normal), np.floor(normal)])
    np.testing.assert_allclose(found.mean[:3], normal, atol=1e-11)
    assert (np.abs(found.mean[:9] - truth) <= 4 * found.mcse[:9]).all()
    assert (np.abs(found.mean_plain[:6] - truth[:6]) <= 4 * found.mcse_plain[:6]).all()
    assert (found.gain[3:6] > 50).all()
    assert (found.mcse[6:9] < 0.5).all()
    assert found.status[9:] == ("constant",) * 3
    assert found.mean[9:].tolist() == [2.0] * 3
    # What is the same at the few draws may not be at others.
    other = posterior["a"].copy()
    other[2, 5] = np.nan
    rare = posterior["a"] * 0
    rare[1, 77] = 1.0
    tree["posterior"] = xarray.DataTree(posterior.assign(other=other, rare=rare))
    with (
        dask.config.set(scheduler="synchronous"),
        pytest.warns(UserWarning, match="other at 1 of 32768 draws"),
    ):
        found = mp.quantile(tree.chunk(draw=4_096), 0.5, ["a", "other", "rare", "same"])
    assert found.status[1:] == ("undefined", "plain", "constant")
    for alone, status in (("rare", "plain"), ("same", "constant")):
        assert mp.quantile(tree.chunk(draw=4_096), 0.5, alone).status == (status,)
    dist = mp.distribution(tree.chunk(draw=4_096), ["a", "e"])
    curve = dist.cdf([0.0, 1.0, 2.5])
    np.testing.assert_allclose(curve.mean[0], scipy.stats.norm.cdf([-1.0, 0.0, 1.5]), atol=1e-12)
    assert dist.select(np.array([1])).quantile(0.5).names == ("e [0.5]",)


@pytest.mark.slow
def test_quantiles_of_chunks_beside_an_atom_and_of_what_the_few_draws_do_not_see(monkeypatch):
    monkeypatch.setattr("mcmcpost.distributions.PILOT", 1_024)
    monkeypatch.setattr(arrays, "LARGE", 1_000)
    draws = np.random.default_rng(4).normal(size=(4, 8_192, 1))
    tree = mp.from_arrays(draws, -draws, names=["a"])
    posterior = tree["posterior"].to_dataset()
    # every second draw is one
    turns = xarray.zeros_like(posterior["a"]) + np.tile([1.0, -1.0], 4_096)
    tree["posterior"] = xarray.DataTree(
        posterior.assign(
            positive=np.maximum(posterior["a"], 0.0), side=posterior["a"] > 0, turns=turns
        )
    )
    lazy = tree.chunk(draw=4_096)
    found = mp.quantile(lazy, [0.2, 0.5, 0.9], ["positive", "side"])
    truth = np.array([0.0, 0.0, scipy.stats.norm.ppf(0.9), 0.0, 0.0, 1.0])
    assert (np.abs(found.mean - truth) <= 4 * found.mcse).all()
    assert "unseen" not in found.status
    assert mp.quantile(lazy, 0.3, "turns").status == ("undefined",)
    never = (posterior["a"] > 9).values * 1.0
    error = mp.expectation(lazy, {"turns": turns.values, "never": never}).mcse[1]
    assert 0.99 / draws.size < error < 0.01  # whatever means of runs of the other are


@pytest.mark.slow
def test_densities_and_shortest_intervals_of_all_draws_are_looked_for_about_those_of_a_few(
    monkeypatch,
):
    """As are those of a product, for which a polynomial stands; of what is normal densities are
    exact."""
    monkeypatch.setattr("mcmcpost.distributions.PILOT", 1_024)
    monkeypatch.setattr(arrays, "LARGE", 1_000)
    draws = np.random.default_rng(5).normal(size=(4, 8_192, 2)) * [1.0, 0.2] + [1.0, 2.0]
    tree = mp.from_arrays(draws, ([1.0, 2.0] - draws) / [1.0, 0.04], names=["a", "b"])
    posterior = tree["posterior"].to_dataset()
    posterior = posterior.assign(e=np.exp(0.3 * posterior["a"]), same=posterior["a"] * 0 + 2)
    tree["posterior"] = xarray.DataTree(posterior.assign(product=posterior["a"] * posterior["b"]))
    lazy = tree.chunk(draw=4_096)
    dist, at = mp.distribution(lazy, ["a", "e", "product", "same"]), np.array([0.5, 2.0, 6.0])
    at = np.stack([at / 2, 1 + at / 6, at, at])
    found, few = dist.pdf(at), dist._replace(over_all=None).pdf(at)
    levels = np.linspace(0, 1, 10_001)[1:-1]
    product = scipy.stats.norm.pdf(at[2, :, None] / scipy.stats.norm.ppf(levels, 2.0, 0.2), 1.0)
    truth = np.stack(
        [
            scipy.stats.norm.pdf(at[0], 1.0),
            scipy.stats.lognorm.pdf(at[1], 0.3, scale=np.exp(0.3)),
            (product / scipy.stats.norm.ppf(levels, 2.0, 0.2)).mean(axis=1),
        ]
    )
    np.testing.assert_allclose(found.mean[0], truth[0], atol=1e-11)
    assert (np.abs(found.mean[:3] - truth) <= 4 * found.mcse[:3] + 1e-7).all()
    assert (np.abs(found.mean_plain[:3] - truth) <= 4 * found.mcse_plain[:3]).all()
    assert (found.mcse[2] < 0.6 * few.mcse[2]).all()  # of 32 times the draws
    assert (found.gain[:3] > 3).all()
    assert set(found.status[3]) == {"constant"}
    ends = dist.interval(0.8, "hdi")
    np.testing.assert_allclose(
        ends.mean[:2], scipy.stats.norm.interval(0.8, 1.0), atol=4 * ends.mcse[:2].max()
    )
    assert (ends.mcse[:2] < 1e-3).all()
    # In logarithms the densities of a lognormal are the same at ends that are symmetric about m −
    # s².
    normal = scipy.stats.norm(0.3, 0.3)
    reach = scipy.optimize.brentq(
        lambda x: np.diff(normal.cdf([0.21 - x, 0.21 + x]))[0] - 0.8, 0.0, 3.0
    )
    assert (
        np.abs(ends.mean[2:4] - np.exp([0.21 - reach, 0.21 + reach])) <= 4 * ends.mcse[2:4]
    ).all()
    assert (ends.mcse[2:4] < 0.02).all()
    assert (
        ends.mcse[4:6] < 0.65 * dist._replace(over_all=None).interval(0.8, "hdi").mcse[4:6]
    ).all()
    assert ends.names[0] == "a [hdi80_lb]"
    assert ends.status[6:] == ("constant",) * 2
    # What is not finite at a draw that is not one of the few is told, and has neither.
    other = posterior["a"].copy()
    other[2, 5] = np.nan
    tree["posterior"] = xarray.DataTree(posterior.assign(other=other))
    dist = mp.distribution(tree.chunk(draw=4_096), ["a", "other"])
    with (
        dask.config.set(scheduler="synchronous"),
        pytest.warns(UserWarning, match="other at 1 of 32768 draws"),
    ):
        assert set(dist.pdf(at[:2]).status[1]) == {"undefined"}
    with (
        dask.config.set(scheduler="synchronous"),
        pytest.warns(UserWarning, match="other at 1 of 32768 draws"),
    ):
        assert dist.interval(0.8, "hdi").status[2:] == ("undefined",) * 2


@pytest.mark.usefixtures("small", "nothing_whole")
def test_single_precision_is_converted_by_chunks(rng):
    tree = skewed_tree(rng)
    single = tree.map_over_datasets(
        lambda data: data.map(lambda v: v.astype(np.float32), keep_attrs=True)
    )
    found = mp.expectation(mp.moments(single, None, "zv1"))
    np.testing.assert_allclose(
        mp.expectation(in_chunks(single, draw=70), method="zv1").mean, found.mean, rtol=1e-9
    )


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_divergences_are_counted_at_every_draw(rng):
    tree = skewed_tree(rng)
    diverging = np.zeros(SHAPE[:2], bool)
    diverging[1, 7] = True
    stats = tree["sample_stats"].to_dataset().assign(diverging=(("chain", "draw"), diverging))
    tree["sample_stats"] = xarray.DataTree(stats)
    with pytest.warns(mp.trees.ConvergenceWarning, match="1 of 1200"):
        mp.expectation(in_chunks(tree, draw=70))


@pytest.mark.slow
@pytest.mark.usefixtures("small", "nothing_whole")
def test_quantities_that_are_not_finite_somewhere_are_counted_at_every_draw(rng):
    tree = skewed_tree(rng)
    values = tree["posterior"]["f[1]"].values.copy()
    values[1, 11] = np.nan
    tree["posterior"] = xarray.DataTree(
        tree["posterior"].to_dataset().assign({"f[1]": (("chain", "draw"), values)})
    )
    # In one thread: beartype's `catch_warnings` in two would leave the filters of one of them
    # behind.
    with (
        dask.config.set(scheduler="synchronous"),
        pytest.warns(UserWarning, match=r"f\[1\] at 1 of 1200 draws\."),
    ):
        found = mp.expectation(in_chunks(tree, draw=70))
    assert found.status[1] == "undefined"


class Largest(Callback):
    """The entries of the largest array that a task of dask returned."""

    def __init__(self) -> None:
        self.entries = 0
        super().__init__(posttask=self._look)

    def _look(self, _key: object, value: object, *_: object) -> None:
        self.entries = max(self.entries, getattr(value, "size", 0))


def generated(rng: np.random.Generator, shape: tuple[int, int, int], draws: int) -> xarray.DataTree:
    """Return a trace of independent normals that dask computes when it is asked for."""
    d = shape[2]
    x = da.random.default_rng(int(rng.integers(2**32))).normal(size=shape, chunks=(1, draws, d))
    dims = ("chain", "draw", "unconstrained_parameter")
    stats = xarray.Dataset({"unconstrained_draw": (dims, x), "gradient": (dims, -x)})
    posterior = xarray.Dataset(
        {"first": (dims[:2], x[..., 0]), "square": (dims[:2], x[..., 0] ** 2)}
    )
    return xarray.DataTree.from_dict({"posterior": posterior, "sample_stats": stats})


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_whole")
def test_no_more_than_a_chunk_is_held(rng, monkeypatch):
    import tracemalloc

    monkeypatch.setattr(arrays, "LARGE", 20_000)
    monkeypatch.setattr("mcmcpost.sums.LARGE", 10_000)
    monkeypatch.setattr("mcmcpost.sums.SAMPLED", 20_000)
    monkeypatch.setattr("mcmcpost.control.features.summed.MOST_SAMPLED", 200)
    shape = (2, 16_000, 150)
    tree = generated(rng, shape, 250)
    mp.expectation(tree, ["first"], "zv1")  # compiles
    with dask.config.set(scheduler="synchronous"), Largest() as largest:
        tracemalloc.start()
        found = mp.expectation(tree, ["first"], "zv1")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert found.status == ("on_trust",)
    assert largest.entries == 250 * 150
    assert peak < 8 * np.prod(shape)  # draws and scores are twice as much


@pytest.mark.usefixtures("small", "nothing_whole")
@pytest.mark.parametrize("place", [(1, 250, 1), (2, 399, 0)])
def test_what_is_not_finite_is_found_in_every_chunk(rng, place):
    tree = skewed_tree(rng)
    broken = tree.copy(deep=True)
    broken["sample_stats"]["unconstrained_draw"].values[place] = np.nan
    with pytest.raises(ValueError, match=f"finite draws.*chain {place[0]}, draw {place[1]}"):
        mp.expectation(in_chunks(broken, draw=70), method="zv1")


@pytest.mark.usefixtures("small")
def test_scores_that_are_not_finite_are_named(rng):
    broken = skewed_tree(rng).copy(deep=True)
    broken["sample_stats"]["gradient"].values[1, 250, 1] = np.inf
    with pytest.raises(mp.ScoreError, match="first at chain 1, draw 250"):
        mp.expectation(in_chunks(broken, draw=70), method="zv1")


@pytest.mark.usefixtures("small", "nothing_whole")
def test_scores_of_the_wrong_sign_are_refused(rng):
    tree = skewed_tree(rng, repeats=False)
    tree["sample_stats"]["gradient"] = -tree["sample_stats"]["gradient"]
    with pytest.raises(mp.ScoreError, match="wrong sign"):
        mp.expectation(in_chunks(tree, draw=70), method="zv1")


@pytest.mark.slow
@pytest.mark.usefixtures("small", "nothing_whole")
def test_a_cluster_of_two_workers_returns_the_same_numbers(rng):
    distributed = pytest.importorskip("distributed")
    tree = skewed_tree(rng)
    found = mp.expectation(mp.moments(tree, None, "zv1"))
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster),
    ):
        own = mp.expectation(in_chunks(tree, draw=70), method="zv1")
    for name in FIELDS:
        np.testing.assert_allclose(
            getattr(own, name), getattr(found, name), rtol=1e-10, atol=1e-12, err_msg=name
        )


@pytest.mark.usefixtures("small")
def test_a_function_may_return_whole_numbers_first_and_others_later(monkeypatch):
    """Draw by draw, since JAX cannot trace it, and a piece of the draws at a time."""
    monkeypatch.setattr("mcmcpost.trees.integrands.ENTRIES", 100)
    values = np.repeat([0.0, 0.5], [1500, 500])[None]
    tree = xarray.DataTree.from_dict(
        {"posterior": xarray.Dataset({"x": (("chain", "draw"), values)})}
    )
    for own in (tree, in_chunks(tree, draw=50)):
        found = integrand_values(
            own, {"half": lambda draw: float(draw["x"]) if draw["x"] > 0 else 0}
        ).values
        np.testing.assert_array_equal(found[..., 0], values)
    with pytest.raises(ValueError, match="one shape for every draw"):
        integrand_values(
            in_chunks(tree, draw=50), {"f": lambda draw: np.ones(1 + int(draw["x"] > 0))}
        )
