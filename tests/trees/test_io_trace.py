"""The data contract: arrays to a tree, trees to a trace, the gate at the edge, and nothing changed
on the way."""

import jax.numpy as jnp
import numpy as np
import pytest
import xarray

from mcmcpost.scores import ScoreError, ScoreWarning
from mcmcpost.trees import (
    attach_scores,
    check_tree,
    from_arrays,
    integrand_values,
    read_trace,
    save_tree,
)


@pytest.fixture
def draws(rng):
    return rng.normal(size=(2, 100, 3))


def nutpie_like(draws, dims=("chain", "draw", "unconstrained_parameter")):
    """A tree as nutpie writes it: labelled coordinates, warm-up groups, and nothing of ours."""
    labels = ["mu", "sigma_log__", "w_simplex___0"]
    order = [("chain", "draw", "unconstrained_parameter").index(dim) for dim in dims]
    stats = xarray.Dataset(
        {
            "depth": (("chain", "draw"), np.full(draws.shape[:2], 3)),
            "gradient": (dims, np.transpose(-draws, order)),
            "unconstrained_draw": (dims, np.transpose(draws, order)),
        },
        coords={
            "unconstrained_parameter": labels,
            "chain": [0, 1],
            "draw": np.arange(draws.shape[1]),
        },
    )
    posterior = xarray.Dataset({"mu": (("chain", "draw"), draws[..., 0])}, coords={"chain": [0, 1]})
    warm = xarray.Dataset(
        {"gradient": (("chain", "draw", "unconstrained_parameter"), np.full((2, 7, 3), np.nan))}
    )
    groups = {
        "posterior": posterior,
        "sample_stats": stats,
        "warmup_sample_stats": warm,
        "unconstrained_posterior": warm,
    }
    return xarray.DataTree.from_dict(groups)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_nutpie_trees_are_read_untouched(draws, order):
    dims = tuple(np.array(["chain", "draw", "unconstrained_parameter"])[list(order)])
    trace = read_trace(nutpie_like(draws, dims))
    np.testing.assert_array_equal(trace.draws, draws)
    np.testing.assert_array_equal(trace.scores, -draws)
    assert trace.names == ("mu", "sigma_log__", "w_simplex___0")


def test_arrays_there_and_back(draws):
    tree = from_arrays(draws, -draws, names=["a", "b[0]", "b[1]"])
    trace = read_trace(tree)
    np.testing.assert_array_equal(trace.draws, draws)
    np.testing.assert_array_equal(trace.scores, -draws)
    assert trace.names == tuple(tree["posterior"].data_vars) == ("a", "b[0]", "b[1]")
    attrs = tree["sample_stats"].attrs
    assert [attrs[k] for k in ("score_sign", "score_jacobian", "score_space")] == [
        "+",
        "included",
        "unconstrained",
    ]
    assert (attrs["score_check"], attrs["score_check_message"]) == ("pass", "")
    assert "mcmcpost_version" in attrs


def test_a_tree_is_read_without_a_copy_and_cannot_be_written_through(draws):
    given = draws.copy()
    tree = from_arrays(given, -draws)
    trace = read_trace(tree)
    assert np.shares_memory(trace.draws, tree["sample_stats/unconstrained_draw"].values)
    for array in (trace.draws, trace.scores, integrand_values(tree, "x[0]").values):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0, 0] = 1.0
    given[0, 0, 0] = 99.0
    np.testing.assert_array_equal(trace.draws, draws)


def test_many_variables_are_not_merged_anew_for_each_of_them(rng, monkeypatch):
    """From 3,000 parameters a tree took minutes, and takes seconds."""
    merges, update = [], xarray.Dataset.update
    monkeypatch.setattr(
        xarray.Dataset, "update", lambda self, other: merges.append(1) or update(self, other)
    )
    x = rng.normal(size=(4, 20, 40))
    tree = from_arrays(x, -x)
    assert len(merges) < 10
    # ArviZ's attributes have the time in them.
    variables = tree["posterior"].to_dataset().variables
    assert len(variables) == 42
    assert not any(variable.attrs for variable in variables.values())


def test_values_become_scalar_variables(draws):
    tree = from_arrays(draws, -draws, np.exp(draws[..., :2]), value_names=("p", "q"))
    assert tuple(tree["posterior"].data_vars) == ("p", "q")
    np.testing.assert_array_equal(tree["posterior"]["q"], np.exp(draws[..., 1]))
    assert read_trace(tree).names == ("x[0]", "x[1]", "x[2]")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scores": np.zeros((2, 100, 2))}, "shape of `draws`"),
        ({"scores": np.zeros((2, 100))}, "chain, draw, d"),
        ({"values": np.zeros((2, 99, 1))}, "chains and draws of `draws`"),
        ({"values": np.zeros((2, 100, 2)), "value_names": ("a", "a")}, "`value_names`, 2 distinct"),
        ({"names": ("a", "b")}, "3 distinct coordinate names"),
        ({"names": ("a", "draw", "c")}, r"other than chain, draw, got \['draw'\]"),
        ({"names": ("a", "b/c", "c")}, r"names without '/'.*got \['b/c'\]"),
        (
            {"draws": [[[1.0]], [[1.0], [2.0]]]},
            r"`draws` with chains of one length, got \[1, 2\].*mp\.moments\(other\)",
        ),
        ({"draws": [[[1.0, 2.0], [1.0]]]}, "`draws` to be one array"),
        (
            {"values": np.ma.masked_less(np.arange(600.0).reshape(2, 100, 3), 4.0)},
            "masked entries, got 4",
        ),
    ],
)
def test_arrays_that_do_not_fit(draws, change, words):
    with pytest.raises(ValueError, match=words):
        from_arrays(**{"draws": draws, "scores": -draws} | change)


def test_draws_that_are_not_finite_are_placed(draws):
    some = draws.copy()
    some[1, 3] = np.inf
    with pytest.raises(ValueError, match=r"the first at chain 1, draw 3. Find out what wrote them"):
        from_arrays(some, -some)
    padded = draws.copy()
    padded[-1, -2:] = np.nan
    size = draws.shape[1]
    words = (
        rf"Chains of different lengths, \[{size}, {size - 2}\] draws, are padded so: "
        r".*moments\(one\) \+ mp\.moments"
    )
    with pytest.raises(ValueError, match=words):
        from_arrays(padded, -padded)


def test_named_dims_may_come_in_any_order(draws):
    labelled = xarray.DataArray(draws, dims=("chain", "draw", "k")).transpose("draw", "k", "chain")
    trace = read_trace(from_arrays(labelled, -draws, labelled))
    np.testing.assert_array_equal(trace.draws, draws)


def test_missing_scores_say_how_to_get_them(draws):
    tree = nutpie_like(draws)
    del tree["sample_stats"]["gradient"]
    with pytest.raises(ValueError, match=r"`sample_stats.gradient`.*attach_scores"):
        read_trace(tree)
    with pytest.raises(ValueError, match=r"groups posterior.*attach_scores"):
        read_trace(xarray.DataTree.from_dict({"posterior": xarray.Dataset()}))


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("score_sign", "-", "Negate"),
        ("score_jacobian", "excluded", "log-Jacobian"),
        ("score_space", "constrained", "unconstrained space"),
    ],
)
@pytest.mark.parametrize("place", ["group", "variable"])
def test_another_declared_convention_is_refused(draws, attribute, value, words, place):
    tree = from_arrays(draws, -draws)
    (tree["sample_stats"] if place == "group" else tree["sample_stats"]["gradient"]).attrs[
        attribute
    ] = value
    with pytest.raises(ValueError, match=words):
        read_trace(tree)


def test_groups_that_disagree(draws):
    tree = from_arrays(draws, -draws)
    shorter = tree.copy()
    shorter["posterior"] = tree["posterior"].isel(draw=slice(50))
    with pytest.raises(ValueError, match="same draws in posterior"):
        read_trace(shorter)
    shifted = tree.copy()
    shifted["posterior"] = xarray.DataTree(
        tree["posterior"].to_dataset().assign_coords(draw=np.arange(100) + 50)
    )
    with pytest.raises(
        ValueError, match=r"same draws in posterior .* label 0 there for 50 at position 0"
    ):
        read_trace(shifted)


def test_what_is_no_tree(draws, tmp_path):
    dataset = from_arrays(draws, -draws)["sample_stats"].to_dataset()
    calls = (
        read_trace,
        attach_scores,
        integrand_values,
        lambda tree: save_tree(tree, tmp_path / "a.nc"),
    )
    for call in calls:
        with pytest.raises(TypeError, match=r"an xarray.DataTree, got Dataset"):
            call(dataset)


def test_statistics_of_another_parameterisation_are_dropped(draws):
    tree = nutpie_like(draws)
    del tree["posterior"]["mu"]
    tree["posterior"] = xarray.DataTree(
        xarray.Dataset({"a": (("chain", "draw", "k"), draws[..., :2])})
    )
    tree["sample_stats"] = xarray.DataTree(
        tree["sample_stats"]
        .to_dataset()[["depth"]]
        .assign(mass=("unconstrained_parameter", np.ones(3)))
    )
    new = attach_scores(tree, logdensity_fn=lambda x: -0.5 * x @ x)
    assert set(new["sample_stats"].data_vars) == {"depth", "gradient", "unconstrained_draw"}
    assert read_trace(new).names == ("a[0]", "a[1]")


def test_wrong_dims(draws):
    tree = from_arrays(draws, -draws)
    stats = tree["sample_stats"].to_dataset().rename(chain="walker")
    with pytest.raises(ValueError, match="dims chain, draw"):
        read_trace(xarray.DataTree.from_dict({"sample_stats": stats}))


def test_two_parameter_dims_of_unequal_length(draws):
    dims = ("chain", "draw")
    stats = xarray.Dataset(
        {"unconstrained_draw": ((*dims, "a"), draws), "gradient": ((*dims, "b"), -draws[..., :2])}
    )
    with pytest.raises(ValueError, match="shape of `draws`"):
        read_trace(xarray.DataTree.from_dict({"sample_stats": stats}))


def test_gate_refuses_and_can_be_overridden(draws):
    with pytest.raises(ScoreError, match=r"wrong sign.*allow_bad_scores=True"):
        from_arrays(draws, draws)
    tree = from_arrays(draws, draws, allow_bad_scores=True)
    assert tree["sample_stats"].attrs["score_check"] == "overridden"
    assert "wrong sign" in tree["sample_stats"].attrs["score_check_message"]
    with pytest.raises(ScoreError, match="wrong sign"):
        check_tree(tree)
    assert check_tree(tree, allow_bad_scores=True).pattern == "sign"


def test_gate_refuses_nan_and_never_invents_scores(draws):
    scores = -draws
    scores[0, 3, 1] = np.nan
    with pytest.raises(ScoreError, match="not finite"):
        from_arrays(draws, scores)
    np.testing.assert_array_equal(
        read_trace(from_arrays(draws, scores, allow_bad_scores=True)).scores, scores
    )


def test_gate_warns_and_records(rng):
    x = rng.exponential(size=(2, 200, 1))
    with pytest.warns(ScoreWarning, match="no gain is possible"):
        tree = from_arrays(x, -np.ones_like(x))
    assert tree["sample_stats"].attrs["score_check"] == "warn"


def test_scores_of_a_log_density(draws):
    stored = from_arrays(draws, -draws, names=("a", "b", "c"))
    bare = nutpie_like(draws)
    del bare["sample_stats"]["gradient"]
    before = bare.copy(deep=True)
    for tree in (stored, bare):
        trace = read_trace(attach_scores(tree, logdensity_fn=lambda x: -0.5 * x @ x))
        np.testing.assert_allclose(trace.scores, -draws, rtol=1e-14)
    assert trace.names == ("mu", "sigma_log__", "w_simplex___0")
    assert bare.identical(before)


def test_posterior_variables_are_taken_in_tree_order(rng):
    posterior = xarray.Dataset(
        {
            "z": (("chain", "draw", "k", "l"), rng.normal(size=(2, 100, 2, 2))),
            "a": (("draw", "chain"), rng.normal(size=(100, 2)).astype(np.float32)),
        }
    )
    tree = xarray.DataTree.from_dict({"posterior": posterior})
    trace = read_trace(attach_scores(tree, logdensity_fn=lambda x: -0.5 * x @ x, batch_size=3))
    assert trace.names == ("z[0, 0]", "z[0, 1]", "z[1, 0]", "z[1, 1]", "a")
    np.testing.assert_array_equal(trace.draws[..., 3], posterior["z"][..., 1, 1])
    np.testing.assert_array_equal(trace.draws[..., 4], posterior["a"].T)


def test_attach_scores_wants_one_source(draws):
    tree = from_arrays(draws, -draws)
    with pytest.raises(ValueError, match="got neither"):
        attach_scores(tree)
    with pytest.raises(ValueError, match="got both"):
        attach_scores(tree, lambda: None, logdensity_fn=jnp.sum)
    with pytest.raises(ValueError, match="a scalar"):
        attach_scores(tree, logdensity_fn=lambda x: x)


def test_the_gate_sees_a_wrong_log_density(draws):
    with pytest.raises(ScoreError, match="wrong sign"):
        attach_scores(from_arrays(draws, -draws), logdensity_fn=lambda x: 0.5 * x @ x)
