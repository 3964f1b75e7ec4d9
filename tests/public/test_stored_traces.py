"""Traces in the chunks of dask: the numbers of the same trace in memory, and never more than a chunk at a time."""

import dask
import dask.array as da
import numpy as np
import pytest
import xarray
from dask.callbacks import Callback

import mcmcpost as mp
from mcmcpost.control.kernels import functional
from mcmcpost.core import arrays
from mcmcpost.core.arrays import StoredArray, StoredRows
from mcmcpost.stein import SquaredExponential
from mcmcpost.trace import StoredTrace, distinct_states
from mcmcpost.trees import integrand_values, read_stored_trace, read_trace

FIELDS = ("mean", "mcse", "gain", "variance_ratio", "sd", "mean_plain", "mcse_plain", "mean_crossfit", "residuals")

SHAPE = (3, 400, 4)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every array for a large one, and blocks of a hundred numbers, or ten states of a kernel, for small ones."""
    monkeypatch.setattr(arrays, "LARGE", 1_000)
    monkeypatch.setattr(arrays, "ENTRIES", 100)
    monkeypatch.setattr(functional, "STATE_WIDTH", 10)
    monkeypatch.setattr(arrays, "SAMPLED", 2_000)


@pytest.fixture
def nothing_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("draws or scores were read whole")

    monkeypatch.setattr(StoredArray, "__array__", refuse)
    monkeypatch.setattr(StoredRows, "__array__", refuse)


def skewed_tree(rng: np.random.Generator, *, repeats: bool = True, dtype: type = np.float64) -> xarray.DataTree:
    """Return draws of a correlated normal, the first half of each chain's states repeated, and a fixed coordinate."""
    mixing = np.array([[1.0, 0.0, 0.0], [0.5, 1.0, 0.0], [-0.3, 0.2, 2.0]])
    z = rng.normal(size=(*SHAPE[:2], 3))
    if repeats:
        z[:, 1:200:2] = z[:, 0:200:2]
    draws = np.concatenate([1.0 + z @ mixing.T, np.full((*SHAPE[:2], 1), 2.0)], axis=-1).astype(dtype)
    moved = np.linalg.solve(mixing, (draws[..., :3] - 1.0).reshape(-1, 3).T)
    scores = np.zeros_like(draws)
    scores[..., :3] = -np.linalg.solve(mixing.T, moved).T.reshape(*SHAPE[:2], 3)
    values = np.stack([np.exp(0.3 * draws[..., 0]), draws[..., 1] ** 3, np.cos(draws[..., 2])], axis=-1)
    return mp.from_arrays(draws, scores, values=values)


def in_chunks(tree: xarray.DataTree, **sizes: int) -> xarray.DataTree:
    def chunked(data: xarray.Dataset) -> xarray.Dataset:
        return data.chunk({dim: size for dim, size in sizes.items() if dim in data.dims})

    return xarray.DataTree.from_dict({name: chunked(group.to_dataset()) for name, group in tree.children.items()})


CHUNKS = {
    "uneven blocks of draws": {"chain": 1, "draw": 37},
    "all chains, and columns apart": {"chain": 3, "draw": 90, "unconstrained_parameter": 2},
    "one chunk": {},
}


@pytest.mark.usefixtures("small", "nothing_whole")
@pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("method", [mp.ZeroVariance(1), mp.ZeroVariance(2, mp.LeastSquares()), "plain"])
def test_numbers_are_those_of_the_tree_in_memory(rng, sizes, method):
    tree = skewed_tree(rng)
    lazy, found = in_chunks(tree, **sizes), mp.expectation(tree, method=method)
    assert isinstance(read_stored_trace(lazy), StoredTrace)
    own = mp.expectation(lazy, method=method)
    assert own.names == found.names
    assert own.status == found.status
    for name in FIELDS:
        np.testing.assert_allclose(getattr(own, name), getattr(found, name), rtol=1e-10, atol=1e-12, err_msg=name)
    assert own.info["num_states"] == 900
    assert all(isinstance(v.data, da.Array) for v in lazy["posterior"].data_vars.values())


@pytest.mark.usefixtures("small", "nothing_whole")
@pytest.mark.parametrize("sizes", [{"chain": 1, "draw": 37}, {}], ids=["blocks", "one chunk"])
def test_kernels_of_some_states_are_evaluated_chunk_by_chunk(rng, sizes):
    tree = skewed_tree(rng)
    kernel = SquaredExponential(2.0)
    for method in (mp.ControlFunctional(kernel, 1e-4, max_states=90), mp.SemiExact(1, kernel, 1e-4, max_states=90)):
        found, own = mp.expectation(tree, method=method), mp.expectation(in_chunks(tree, **sizes), method=method)
        assert own.status == found.status
        assert "controlled" in own.status
        for name in FIELDS:
            np.testing.assert_allclose(getattr(own, name), getattr(found, name), rtol=1e-8, atol=1e-10, err_msg=name)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("method", [mp.ZeroVariance(2, mp.Ridge()), mp.ZeroVariance(2, max_interaction=1)])
def test_methods_that_need_all_rows_at_once_read_them(rng, method):
    tree = skewed_tree(rng)
    found, own = mp.expectation(tree, method=method), mp.expectation(in_chunks(tree, draw=70), method=method)
    assert own.status == found.status
    np.testing.assert_allclose(own.mean, found.mean, rtol=1e-8)
    np.testing.assert_allclose(own.mcse, found.mcse, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("small", "nothing_whole")
def test_auto_chooses_as_it_does_in_memory(rng, monkeypatch):
    monkeypatch.setattr("mcmcpost.control.auto.KERNEL_STATES", 200)
    tree = skewed_tree(rng, repeats=False)
    found, own = (mp.expectation(each, method=mp.Auto(max_degree=2)) for each in (tree, in_chunks(tree, draw=70)))
    assert own.method == found.method
    assert any("SemiExact" in method for method in own.method)
    assert (np.abs(own.mean - found.mean) < 0.01 * found.mcse).all()
    np.testing.assert_allclose(own.mcse, found.mcse, rtol=1e-3)  # tuned nuggets are small: rounding grows


@pytest.mark.usefixtures("small", "nothing_whole")
def test_functions_of_a_draw_are_evaluated_chunk_by_chunk(rng):
    tree = skewed_tree(rng)
    functions = {
        "product": lambda draw: draw["f[0]"] * draw["f[1]"],
        "not of JAX": lambda draw: float(np.exp(float(draw["f[2]"]) / 4)),
    }
    found, own = (mp.expectation(each, functions, "zv1") for each in (tree, in_chunks(tree, draw=70)))
    np.testing.assert_allclose(own.mean, found.mean, rtol=1e-10)
    np.testing.assert_allclose(own.residuals, found.residuals, rtol=1e-10)


@pytest.mark.usefixtures("small", "nothing_whole")
def test_quantiles_and_spreads_are_those_of_the_tree_in_memory(rng):
    tree = skewed_tree(rng, repeats=False)
    lazy = in_chunks(tree, draw=70)
    for question in (
        lambda each: mp.quantile(each, 0.9, method="zv1"),
        lambda each: mp.standard_deviation(each, method="zv1"),
    ):
        found, own = question(tree), question(lazy)
        np.testing.assert_allclose(own.mean, found.mean, rtol=1e-10)
        np.testing.assert_allclose(own.mcse, found.mcse, rtol=1e-9, atol=1e-16)  # some are rounding


@pytest.mark.usefixtures("small", "nothing_whole")
def test_single_precision_is_converted_by_chunks(rng):
    tree = skewed_tree(rng)
    single = tree.map_over_datasets(lambda data: data.map(lambda v: v.astype(np.float32), keep_attrs=True))
    found = mp.expectation(single, method="zv1")
    np.testing.assert_allclose(mp.expectation(in_chunks(single, draw=70), method="zv1").mean, found.mean, rtol=1e-10)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_repeated_states_are_found_by_their_labels(rng, dtype):
    draws = np.round(rng.normal(size=(3, 500, 2)), 1).astype(dtype)
    draws[0, :3] = [[0.0, 1.0], [-0.0, 1.0], [1.0, 0.0]]
    tree = mp.from_arrays(draws, -draws, allow_bad_scores=True)
    single = tree.map_over_datasets(lambda data: data.map(lambda v: v.astype(dtype), keep_attrs=True))
    found = distinct_states(read_trace(single))
    own = distinct_states(read_stored_trace(in_chunks(single, draw=60)))
    np.testing.assert_array_equal(own.inverse, found.inverse)
    np.testing.assert_array_equal(own.counts, found.counts)
    np.testing.assert_array_equal(np.asarray(own.draws), found.draws)
    assert len(own.counts) < 1_400


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
    posterior = xarray.Dataset({"first": (dims[:2], x[..., 0]), "square": (dims[:2], x[..., 0] ** 2)})
    return xarray.DataTree.from_dict({"posterior": posterior, "sample_stats": stats})


@pytest.mark.usefixtures("nothing_whole")
def test_no_more_than_a_chunk_is_held(rng, monkeypatch):
    import tracemalloc

    monkeypatch.setattr(arrays, "LARGE", 20_000)
    monkeypatch.setattr(arrays, "ENTRIES", 10_000)
    monkeypatch.setattr(arrays, "SAMPLED", 20_000)
    shape = (2, 4_000, 150)
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
    with pytest.raises(ValueError, match="finite draws"):
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


@pytest.mark.usefixtures("small")
def test_rows_are_read_in_the_order_asked(rng):
    values = rng.normal(size=(3, 400, 2))
    array = StoredArray.of(da.from_array(values, chunks=(2, 90, 1)))
    rows = array.rows(np.arange(0, 1_200, 2))
    index = rng.integers(600, size=(5, 7))
    np.testing.assert_array_equal(rows[index], values.reshape(-1, 2)[::2][index])
    np.testing.assert_array_equal(rows[3:9], values.reshape(-1, 2)[6:18:2])
    np.testing.assert_array_equal(np.asarray(array), values)
    np.testing.assert_array_equal(
        (rows @ np.array([[2.0], [1.0]]))[3:5], values.reshape(-1, 2)[6:10:2] @ [[2.0], [1.0]]
    )


@pytest.mark.slow
@pytest.mark.usefixtures("small", "nothing_whole")
def test_a_cluster_of_two_workers_returns_the_same_numbers(rng):
    distributed = pytest.importorskip("distributed")
    tree = skewed_tree(rng)
    found = mp.expectation(tree, method="zv1")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        distributed.Client(cluster),
    ):
        own = mp.expectation(in_chunks(tree, draw=70), method="zv1")
    for name in FIELDS:
        np.testing.assert_allclose(getattr(own, name), getattr(found, name), rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.usefixtures("small")
def test_a_function_may_return_whole_numbers_first_and_others_later(monkeypatch):
    """Draw by draw, since JAX cannot trace it, and a piece of the draws at a time."""
    monkeypatch.setattr("mcmcpost.trees.integrands.ENTRIES", 100)
    values = np.repeat([0.0, 0.5], [1500, 500])[None]
    tree = xarray.DataTree.from_dict({"posterior": xarray.Dataset({"x": (("chain", "draw"), values)})})
    for own in (tree, in_chunks(tree, draw=50)):
        found = integrand_values(own, {"half": lambda draw: float(draw["x"]) if draw["x"] > 0 else 0}).values
        np.testing.assert_array_equal(found[..., 0], values)
    with pytest.raises(ValueError, match="one shape for every draw"):
        integrand_values(in_chunks(tree, draw=50), {"f": lambda draw: np.ones(1 + int(draw["x"] > 0))})
