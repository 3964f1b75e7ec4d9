"""Sums over traces that add: the same numbers whatever the chunks, chains and jobs."""

import itertools

import numpy as np
import pytest
import scipy.special
import xarray

import mcmcpost as mp
from mcmcpost import core, sums
from mcmcpost.control import Layout, Sums, stored_moments, sums_of

MIX = np.array([[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [-0.3, 0.4, 30.0]])
SHAPE = 4.0


def make_tree(
    seed: int, chains: int = 4, draws: int = 200, correlation: float = 0.0
) -> xarray.DataTree:
    """Return a trace of mixed logarithms of gamma variates, each an autoregression on the normal
    scale."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(chains, draws, 3))
    for i in range(1, draws):
        z[:, i] = correlation * z[:, i - 1] + np.sqrt(1 - correlation**2) * z[:, i]
    u = np.log(scipy.special.gammaincinv(SHAPE, scipy.special.ndtr(z)))
    scores = (SHAPE - np.exp(u)) @ np.linalg.inv(MIX)
    tree = mp.from_arrays(u @ MIX.T, scores, names=["a", "b", "c"])
    tree["posterior"] = tree["posterior"].to_dataset().assign(u=(("chain", "draw", "k"), u))
    return tree


QUANTITIES = {
    "x": lambda draw: draw["a"],
    "u": lambda draw: draw["u"],
    "square": lambda draw: draw["u"][0] ** 2,
    "large": lambda draw: (draw["u"][0] > 1.0) * 1.0,
}
MEAN, SPREAD = scipy.special.digamma(SHAPE), scipy.special.polygamma(1, SHAPE)
TRUTH = np.array([*[MEAN] * 4, MEAN**2 + SPREAD, scipy.special.gammaincc(SHAPE, np.e)])


def assert_same(one: mp.Estimate, two: mp.Estimate, rtol: float = 1e-9) -> None:
    for name in ("mean", "mcse", "sd", "mean_plain", "mcse_plain", "variance_ratio"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=rtol, err_msg=name)
    assert one.status == two.status
    assert one.method == two.method


@pytest.mark.slow
def test_sums_do_not_depend_on_the_chunks(rng):
    found = mp.moments(make_tree(0), QUANTITIES)
    draws, scores, values = (rng.normal(size=(4, 200, k)) for k in (3, 3, len(TRUTH)))
    given = (found.features, Layout.of(4, 200), np.arange(4))
    whole = sums_of(*given, draws, scores, values)
    cuts = [0, 3, 4, 90, 137, 200]
    parts = [
        sums_of(*given, *(a[c : c + 2, i:j] for a in (draws, scores, values)), place=(c, i))
        for c in (0, 2)
        for i, j in itertools.pairwise(cuts)
    ]
    added = parts[0]
    for part in parts[1:]:
        added += part
    for one, two in zip(arrays_of(added), arrays_of(whole), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9, atol=1e-9)


def test_sums_are_printed_as_their_counts():
    one = mp.moments(make_tree(0, chains=1, draws=1_500), ["a"], "zv1")
    assert repr(one) == "TraceMoments of 1 chain, 1,500 draws, 1 quantity, 3 controls"


def test_what_is_summed_is_taken_from_other_sums():
    tree = make_tree(1)
    sums = mp.moments(make_tree(0), ["u", "b"], "zv1")
    assert mp.moments(tree, like=sums).features.names == ("u[0]", "u[1]", "u[2]", "b")
    square = {"square": lambda draw: draw["a"] ** 2, "a": lambda draw: draw["a"]}
    functions = mp.moments(make_tree(0), square, "zv1")
    with pytest.raises(mp.InputError, match=r"none named square\. Pass the integrands again"):
        mp.moments(tree, like=functions)
    with pytest.raises(
        mp.InputError, match=r"u\[2\], b only in `like` and square, a only in the trace"
    ):
        mp.moments(tree, square, like=sums)


def arrays_of(sums: Sums) -> list[np.ndarray]:
    # Not the passages of draws, of which those over a cut are left out.
    return [*(part for own in sums.moments for part in own), *sums.chains[3:], *sums[3:6]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "chunks", [{"draw": 400}, {"chain": 1, "draw": 171}, {"chain": 3, "draw": 250}]
)
@pytest.mark.parametrize("start", [0, 30])
def test_draws_in_chunks_of_dask_have_the_sums_of_those_in_memory(chunks, start, monkeypatch):
    pytest.importorskip("dask")
    tree = make_tree(1, draws=1_000)
    values = tree["posterior"]["a"].values ** 2
    found = []
    for one in (tree, tree.chunk(chunks)):
        monkeypatch.setattr(core.arrays, "LARGE", 1_000 if one is not tree else 1 << 22)
        monkeypatch.setattr(sums, "LARGE", 300)
        for asked in (["a", "u"], QUANTITIES, values):
            found.append(mp.expectation(mp.moments(one, asked, start=start)))
    for one, two in zip(found[:3], found[3:], strict=True):
        assert_same(one, two, rtol=1e-6)


@pytest.mark.slow
def test_other_chains_add_to_what_all_chains_say():
    first, second = make_tree(2), make_tree(3)
    sums = mp.moments(first, QUANTITIES)
    both = sums + mp.moments(second, QUANTITIES, like=sums)
    units_of_their_own = mp.expectation(sums + mp.moments(second, QUANTITIES))
    linear = np.array([0, 1, 2, 3])
    assert_same(mp.expectation(both).select(linear), units_of_their_own.select(linear), rtol=1e-6)
    # Of functions of a coordinate, splines with other knots and fields are other controls: they are
    # left out.
    assert all("FunctionOf" not in method for method in units_of_their_own.method)
    assert "FunctionOf" in mp.expectation(both).method[5]
    joined = xarray.DataTree.from_dict(
        {
            name: xarray.concat(
                [tree[name].to_dataset().drop_vars("chain") for tree in (first, second)], "chain"
            )
            for name in ("posterior", "sample_stats")
        }
    )
    every = sums._replace(groups=())  # what is summed, alone
    assert_same(
        mp.expectation(sum([sums, mp.moments(second, QUANTITIES, like=sums)])), mp.expectation(both)
    )
    whole = mp.expectation(mp.moments(joined, QUANTITIES, like=every))
    found = mp.expectation(both)
    assert found.info["num_draws"] == 1_600
    assert (np.abs(found.mean - whole.mean) < whole.mcse).all()  # of eight chains folds are chains
    np.testing.assert_allclose(found.mean_plain, whole.mean_plain, rtol=1e-12)
    np.testing.assert_allclose(found.mcse, whole.mcse, rtol=0.7)


@pytest.mark.slow
def test_chains_of_other_lengths_and_a_run_that_went_on():
    tree = make_tree(4, draws=300)
    sums = mp.moments(tree.isel(draw=slice(200)), QUANTITIES)
    longer = sums + mp.moments(tree, QUANTITIES, like=sums, start=200)
    other = longer + mp.moments(make_tree(5, chains=2, draws=80), QUANTITIES, like=sums)
    assert (longer.num_draws, other.num_draws, other.num_chains) == (1_200, 1_360, 10)
    whole = mp.expectation(tree, QUANTITIES, mp.Auto(kernel=False))
    found = mp.expectation(longer)
    np.testing.assert_allclose(found.mean_plain, whole.mean_plain, rtol=1e-12)
    np.testing.assert_allclose(found.sd, whole.sd, rtol=1e-12)
    for again in (tree, tree.isel(draw=slice(250))):
        with pytest.raises(mp.InputError, match="every draw once"):
            longer + mp.moments(again, QUANTITIES, like=sums)
    assert (np.abs(mp.expectation(other).mean - TRUTH) < 4 * mp.expectation(other).mcse).all()


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [None, {"draw": 171}])
def test_draws_that_are_in_both_wherever_they_are_in_their_chain(chunks, monkeypatch):
    pytest.importorskip("dask")
    monkeypatch.setattr(core.arrays, "LARGE", 1_000)
    whole = make_tree(4, chains=2, draws=1_200)

    def part(start, stop, chains=slice(None)):
        tree = whole.isel(draw=slice(start, stop), chain=chains)
        return mp.moments(tree if chunks is None else tree.chunk(chunks), method="zv1")

    first, later = part(0, 700), part(700, 1_200)
    assert (first + later).num_draws == 2_400  # nothing says that the chains went on
    for other in (part(633, 1_200), part(10, 90, [1]), later + part(100, 180)):
        with pytest.raises(mp.InputError, match="every draw once, got draws that are in both"):
            first + other


@pytest.mark.slow
def test_sums_of_before_are_to_be_made_again():
    tree = mp.moments(make_tree(6), method="zv1").to_datatree()
    old = tree["moments"].to_dataset().drop_vars("passages")
    with pytest.raises(mp.InputError, match=r"twice, got those of .*Sum the trace again"):
        mp.expectation(xarray.DataTree.from_dict({"moments": old}))


@pytest.mark.parametrize("lost", ["shift", "squares_0", "sample_0"])
def test_sums_without_a_part_are_refused(lost):
    whole = mp.moments(make_tree(6), method="zv1").to_datatree()["moments"].to_dataset()
    for group, name in (
        (whole.drop_vars(lost), lost),
        (xarray.Dataset({"x": 3}), "moments"),
    ):
        words = f"moments: .*this version of mcmcpost wrote, got one without {name}. Sum the trace"
        with pytest.raises(mp.InputError, match=words):
            mp.expectation(xarray.DataTree.from_dict({"moments": group}))


@pytest.mark.slow
def test_sums_read_back_say_the_same(tmp_path):
    sums = mp.moments(make_tree(6), QUANTITIES) + mp.moments(
        make_tree(7, chains=1, draws=90), QUANTITIES
    )
    for suffix in ("nc", "zarr"):
        path = mp.save_tree(sums.to_datatree(), tmp_path / f"sums.{suffix}")
        tree = mp.load_tree(path)
        assert_same(mp.expectation(tree), mp.expectation(sums), rtol=1e-14)
        more = mp.moments(make_tree(8), QUANTITIES, like=tree)
        for both in (mp.moments(tree) + more, more + tree):
            assert_same(mp.expectation(sums + more), mp.expectation(both), rtol=1e-12)
    more = mp.save_tree(mp.moments(make_tree(9), QUANTITIES).to_datatree(), tmp_path / "more.nc")
    assert stored_moments(mp.load_tree(path, more)).num_draws == 890 + 800
    with pytest.raises(mp.InputError, match="sums alone"):
        mp.load_tree(path, mp.save_tree(make_tree(9), tmp_path / "trace.nc"))


@pytest.mark.slow
def test_sums_over_named_dimensions_are_read_back_and_added(tmp_path):
    def tree(seed: int) -> xarray.DataTree:
        x = np.random.default_rng(seed).normal(size=(4, 500, 80))
        grid = [f"z[{i}, {j}]" for i in range(8) for j in range(9)]
        return mp.from_arrays(
            x, -x, values=np.tanh(x[..., :2]), names=[*(f"a[{i}]" for i in range(8)), *grid]
        )

    sums = mp.moments(tree(0))
    assert {"BlockSums", "Margins", "Diagonal"} <= {
        type(family).__name__ for family in sums.features.families
    }
    stored = mp.load_tree(mp.save_tree(sums.to_datatree(), tmp_path / "sums.nc"))
    assert_same(mp.expectation(stored), mp.expectation(sums), rtol=1e-14)
    both = stored_moments(stored) + mp.moments(tree(1), like=sums)
    assert both.features.size == sums.features.size
    units_of_their_own = sums + mp.moments(tree(1))
    shared = np.array(
        [True] + [f.serves is None for f in both.features.families for _ in range(f.size)]
    )
    assert units_of_their_own.features.size == shared.sum()  # here all scales are one
    assert_same(
        mp.expectation(both.with_controls(shared)), mp.expectation(units_of_their_own), rtol=1e-6
    )
    kept = shared & (np.arange(len(shared)) % 5 != 4)
    some = sums.with_controls(kept)
    stored = mp.load_tree(mp.save_tree(some.to_datatree(), tmp_path / "some.nc"))
    assert_same(mp.expectation(stored), mp.expectation(some), rtol=1e-14)
    again = sums + mp.moments(tree(2), like=some)  # of the controls that both have
    assert again.features.size == kept.sum()
    assert (mp.expectation(again).gain > 4).all()


@pytest.mark.slow
def test_errors_are_honest_and_gains_those_of_the_draws():
    squares, plain, errors = [], [], []
    for seed in range(24):
        tree = make_tree(100 + seed, draws=250, correlation=0.7 * (seed % 2))
        found = mp.expectation(mp.moments(tree, QUANTITIES))
        squares.append((found.mean - TRUTH) ** 2)
        errors.append(found.mcse**2)
        plain.append((found.mean_plain - TRUTH) ** 2)
    z = np.mean(np.array(squares) / np.array(errors), axis=0)
    assert 0.4 < z.mean() < 1.5, z
    assert z.max() < 2.6, z  # what a fit of the draws themselves has at such gains
    gains = np.median(plain, axis=0) / np.median(squares, axis=0)
    assert (gains[:5] > 500).all(), gains
    assert gains[5] > 1.5


@pytest.mark.slow
def test_functions_of_a_coordinate_gain_from_sums_with_honest_errors():
    """Events and smooth functions in six dimensions, whose polynomials of degree three leave most
    of them."""
    lower = np.linalg.cholesky(0.6 + 0.4 * np.eye(6))
    functions = {
        "cos": lambda draw: np.cos(2 * draw["a"]),
        "tail": lambda draw: (draw["b"] > 1.5) * 1.0,
        "between": lambda draw: ((draw["c"] > -0.5) & (draw["c"] < 1.0)) * 1.0,
    }
    phi = scipy.special.ndtr
    truth = np.array([np.exp(-2.0), phi(-1.5), phi(1.0) - phi(-0.5)])
    z, squares, plain = [], [], []
    for seed in range(12):
        x = np.random.default_rng(seed).normal(size=(4, 600, 6)) @ lower.T
        tree = mp.from_arrays(x, -x @ np.linalg.inv(lower @ lower.T), names=list("abcdef"))
        found = mp.expectation(mp.moments(tree, functions))
        assert all("FunctionOf" in method for method in found.method)
        z.append((found.mean - truth) / found.mcse)
        squares.append((found.mean - truth) ** 2)
        plain.append((found.mean_plain - truth) ** 2)
    assert np.mean(np.square(z)) < 1.8
    # one of 4.4: of a cosine beyond the outermost draws, as of the draws themselves
    assert np.abs(z).max() < 5
    assert (np.median(plain, axis=0) / np.median(squares, axis=0) > 25).all()


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("location", [0.0, 1e6])
def test_rounding_invents_no_gain(size, location, rng):
    """What a control leaves has a known size: neither more nor less is reported, down to the digits
    of the quantity."""
    x = rng.normal(size=(4, 500, 2))
    left = size * rng.normal(size=(4, 500))
    values = location + x[..., 0] + left
    found = mp.expectation(mp.moments(mp.from_arrays(location + x, -x), values))
    rounding = np.finfo(float).eps * max(location, 1.0)
    assert found.mcse[0] > 0.4 * size / np.sqrt(2_000)
    assert found.mcse[0] < 3 * (size + rounding) / np.sqrt(2_000) + 3 * rounding
    assert abs(found.mean[0] - location - left.mean()) < 3 * found.mcse[0] + 3 * rounding


@pytest.mark.slow
def test_scores_that_fail_the_gate_are_not_used():
    x = np.random.default_rng(0).normal(size=(4, 1_000, 2))
    with pytest.warns(mp.scores.ScoreWarning):
        tree = mp.from_arrays(1.1 * x, -1.1 * x, names=["a", "b"])
    for allowed, same in ((False, True), (True, False)):
        with pytest.warns(mp.scores.ScoreWarning):
            sums = mp.moments(tree, allow_bad_scores=allowed)
        found = mp.expectation(sums)
        assert set(found.status) == {"bad_scores"}
        assert np.array_equal(found.mean, found.mean_plain) is same


def normals(seed: int, shape: tuple[int, int], mean: float) -> xarray.DataTree:
    z = np.random.default_rng(seed).normal(size=(*shape, 1))
    return mp.from_arrays(z + mean, -z, names=["a"])


@pytest.mark.parametrize("shape", [(4, 500), (2, 300)])
def test_sums_of_other_posteriors_contradict_each_other(shape):
    """Each is controlled to rounding, and the errors within them know nothing of the distance."""
    sums = mp.moments(normals(0, (4, 500), 0.0)) + mp.moments(normals(1, shape, 0.2))
    with pytest.warns(mp.ConvergenceWarning, match="The sums of a contradict"):
        found = mp.expectation(sums)
    assert 0.1 * 0.2 < found.mcse[0] < 0.2


@pytest.mark.usefixtures("unchecked")
def test_sums_of_one_posterior_have_the_errors_of_all_draws_together():
    """Differences between groups of chains are chance: of 50 pairs few are told apart."""
    ratios = []
    for seed in range(0, 100, 2):
        parts = [mp.moments(normals(k, (2, 100), 0.0), method="plain") for k in (seed, seed + 1)]
        ratios.append(mp.expectation(parts[0] + parts[1]).mcse[0] * 20)
    assert np.mean(np.array(ratios) > 1.3) < 0.1
    assert 0.95 < np.median(ratios) < 1.1


def test_constants_events_and_what_is_not_finite():
    tree = make_tree(10)
    values = np.ones((4, 200, 4))
    values[..., 1] = 0.5
    values[..., 2] = tree["posterior"]["a"].values
    values[1, 3, 2] = np.nan
    values[..., 3] = tree["posterior"]["a"].values
    found = mp.expectation(mp.moments(tree, values))
    assert list(found.status[:3]) == ["unseen", "constant", "undefined"]
    assert found.mcse[0] > 1e-3
    assert np.isnan(found.mean[2])
    assert found.gain[3] > 3


@pytest.mark.slow
def test_many_short_chains():
    tree = make_tree(11, chains=200, draws=5)
    found = mp.expectation(mp.moments(tree, QUANTITIES))
    assert found.info["num_folds"] == 8
    assert (np.abs(found.mean - TRUTH) < 4.5 * found.mcse).all()
    assert (found.gain[:5] > 5).all()


@pytest.mark.slow
def test_a_summary_and_names_of_some_quantities():
    sums = mp.moments(make_tree(12), QUANTITIES)
    table = mp.summary(sums, ["u", "large"])
    assert list(table.index) == ["u[0]", "u[1]", "u[2]", "large"]
    assert_same(
        mp.expectation(sums, "square"), mp.expectation(sums).select(np.array([4])), rtol=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda sums: sums + sums, "every draw once"),
        (lambda sums: sums + mp.moments(make_tree(1)), "same quantities"),
        (lambda sums: mp.moments(make_tree(1), like=sums), "none named x, square, large"),
        (lambda sums: mp.moments(sums, ["a"]), "sums alone, or a trace"),
        (lambda _: mp.moments(make_tree(1), method="cf"), "linear method"),
        (lambda _: mp.moments(make_tree(1), start=200), "at most 199"),
        (lambda _: mp.moments(make_tree(1, chains=2, draws=7)), "8 chains, or draws"),
        (lambda sums: mp.expectation(sums, ["v"]), "names of quantities"),
        (lambda sums: mp.expectation(sums, method="zv1"), "sums alone"),
        (lambda sums: mp.summary(sums, ci_prob=0.9), "means alone"),
    ],
)
def test_what_cannot_be_summed_or_asked_is_refused_in_one_line(ask, message):
    sums = mp.moments(make_tree(0), QUANTITIES)
    with pytest.raises(mp.InputError, match=message) as caught:
        ask(sums)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("other", [1, None, (1, 2), "sums", xarray.DataTree()])
def test_what_is_no_sum_is_not_added(other):
    sums = mp.moments(make_tree(0), ["a"], "plain")
    for add in (lambda: sums + other, lambda: sum([sums, other])):
        with pytest.raises(mp.InputTypeError, match=r"sums of moments\(\) on both sides .*moments"):
            add()
    assert sum([sums]) is sums
    with pytest.raises(mp.InputTypeError, match="got 'int'"):
        1 + sums


@pytest.mark.slow
def test_the_input_is_not_changed():
    tree = make_tree(13)
    before = tree.copy(deep=True)
    sums = mp.moments(tree, QUANTITIES)
    kept = [part.copy() for own in sums.moments for part in own]
    sums + mp.moments(make_tree(14), QUANTITIES)
    mp.expectation(sums)
    after = [part for own in sums.moments for part in own]
    assert all(np.array_equal(one, two) for one, two in zip(kept, after, strict=True))
    xarray.testing.assert_identical(tree, before)
