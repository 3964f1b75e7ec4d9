"""A stored evidence is the one that was written: tables, figures, comparisons; and what is refused
instead of one."""

import json

import jax
import numpy as np
import pandas
import pytest
from ladder_cases import short_ladder

import mcmcpost as mp
from mcmcpost.evidence import BRIDGE_GROUP, EVIDENCE_GROUP, BridgeOverlap


def normal_trace(rng: np.random.Generator) -> object:
    draws = rng.normal(size=(2, 200, 2))
    return mp.from_arrays(draws, -draws)


@pytest.fixture
def ladder(rng):
    drawn, _ = short_ladder(rng)
    return mp.ladder_from_arrays(*drawn[:5])


@pytest.fixture
def bridge(rng, key):
    """A bridge to the evidence of `ladder`, from draws of a normal."""
    truth = float(short_ladder(rng)[1].log_evidence(np.ones(1))[0])

    def density(x: jax.Array) -> jax.Array:
        return truth - np.log(2 * np.pi) - 0.5 * (x @ x)

    return mp.bridge_evidence(normal_trace(rng), logdensity_fn=density, key=key, method="plain")


def test_an_evidence_is_printed_as_its_value_and_every_method_beside_it(bridge):
    first, *others = repr(bridge).split("\n  ")
    assert first.startswith(f"log evidence: {bridge.value:.1f}")
    assert first.endswith(f", {bridge.status}")
    assert [line.partition(":")[0] for line in others] == [e.method for e in bridge.estimates]


def same(one: mp.Evidence, other: mp.Evidence, *, overlap: bool = True) -> None:
    """Fail unless two evidences say the same, up to what only an estimation needs."""
    for name in (
        "value",
        "mcse",
        "discretisation_error",
        "error",
        "status",
        "method",
        "complaints",
    ):
        ours, theirs = getattr(one, name), getattr(other, name)
        assert ours == theirs or (ours != ours and theirs != theirs), name
    for table in ("to_dataframe", "rungs_to_dataframe", "path_to_dataframe"):
        pandas.testing.assert_frame_equal(
            getattr(one, table)(), getattr(other, table)(), check_dtype=False
        )
    assert one.to_json_dict() == other.to_json_dict()
    np.testing.assert_array_equal(
        [e.error for e in one.estimates], [e.error for e in other.estimates]
    )
    if isinstance(one.diagnostics, BridgeOverlap):
        if overlap:
            jax.tree.map(np.testing.assert_array_equal, one.diagnostics, other.diagnostics)
        else:
            assert other.diagnostics is None
    elif one.diagnostics is not None:
        jax.tree.map(np.testing.assert_array_equal, one.diagnostics, other.diagnostics)
    assert (one.bridge is None) == (other.bridge is None)
    if one.bridge is not None:
        same(one.bridge, other.bridge, overlap=overlap)


def printed(evidence: mp.Evidence, path) -> object:
    """Return the tree of an evidence in a file as the command line prints it."""
    path.write_text(
        json.dumps({"evidence": [{"source": "x.nc"} | evidence.to_json_dict()]}, allow_nan=False)
    )
    return mp.load_tree(path)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["nc", "zarr", "json"])
@pytest.mark.parametrize("path", ["auto", "rungs"])
def test_the_evidence_of_a_ladder_is_read_as_it_was_written(ladder, bridge, tmp_path, path, suffix):
    found = mp.log_evidence(ladder, "zv2", path=path, degree=2, bridge=bridge)
    if suffix == "json":
        tree = printed(found, tmp_path / "one.json")
    else:
        tree = mp.load_tree(mp.save_tree(found.to_datatree(ladder), tmp_path / f"one.{suffix}"))
    read = mp.Evidence.from_datatree(tree)
    same(found, read, overlap=suffix != "json")
    same(read, mp.Evidence.from_datatree(read.to_datatree()), overlap=suffix != "json")
    for show in ("mean", "barrier"):
        assert len(mp.plot_evidence_path(read, show=show, backend="none")) == len(
            mp.plot_evidence_path(found, show=show, backend="none")
        )


@pytest.mark.parametrize("suffix", ["nc", "zarr", "json"])
def test_a_bridge_is_read_as_it_was_written(bridge, tmp_path, suffix):
    info = bridge.info | {"participants": np.nan, "controls": [["zv2", "plain"], ["zv2", "zv1"]]}
    noted = bridge._replace(complaints=("one; with a semicolon", "another"), info=info)
    if suffix == "json":
        tree = printed(noted, tmp_path / "one.json")
    else:
        tree = mp.load_tree(mp.save_tree(noted.to_datatree(), tmp_path / f"one.{suffix}"))
    same(noted, mp.Evidence.from_datatree(tree), overlap=suffix != "json")


@pytest.mark.slow
def test_what_is_undefined_is_stored_too(ladder, tmp_path):
    """Of a ladder with a rung that is left out, and without its last one, which rules cannot do
    without."""
    likelihood = ladder["sample_stats"]["log_likelihood_total"].copy()
    likelihood[{"temperature": [1, -1], "draw": 0, "chain": 0}] = np.nan
    ladder["sample_stats"]["log_likelihood_total"] = likelihood
    with pytest.warns(mp.EvidenceWarning, match="the rung"):
        found = mp.log_evidence(ladder, "zv2", degree=2)
    lost = found._replace(value=np.nan, mcse=np.nan, status=mp.Status.UNDEFINED)
    for evidence in (found, lost):
        same(evidence, mp.Evidence.from_datatree(printed(evidence, tmp_path / "lost.json")))
        same(evidence, mp.Evidence.from_datatree(evidence.to_datatree(ladder)))


@pytest.mark.slow
def test_trees_are_compared_as_their_evidences_are(ladder, bridge, tmp_path):
    found = mp.log_evidence(ladder, "zv2", degree=2)
    expected = mp.compare_evidence({"a": found, "b": bridge})
    got = mp.compare_evidence(
        {"a": found.to_datatree(ladder), "b": printed(bridge, tmp_path / "b.json")}
    )
    pandas.testing.assert_frame_equal(expected.to_dataframe(), got.to_dataframe())


@pytest.mark.slow
def test_a_bridge_beside_a_ladder_is_kept_when_the_ladder_is_estimated_again(ladder, bridge):
    found = mp.log_evidence(ladder, "zv2", degree=2, bridge=bridge)
    kept = found.to_datatree(ladder)
    again = mp.log_evidence(kept, "zv2", degree=2)
    same(found, again)
    # A bridge alone, written to the tree of the ladder, is one too; and one that is given takes its
    # place.
    same(found, mp.log_evidence(bridge.to_datatree(ladder), "zv2", degree=2))
    other = bridge._replace(value=bridge.value + 1e-9)
    assert mp.log_evidence(kept, "zv2", degree=2, bridge=other).bridge.value == other.value
    assert BRIDGE_GROUP not in mp.log_evidence(ladder, "zv2", degree=2).to_datatree(kept).children


@pytest.mark.slow
def test_what_holds_no_evidence_is_refused(ladder, bridge, rng, tmp_path):
    trace = normal_trace(rng)
    with pytest.raises(
        mp.InputError, match="compare_evidence: a: expected a tree with an evidence, got the groups"
    ):
        mp.compare_evidence({"a": trace, "b": bridge})
    stored = mp.log_evidence(ladder, "zv2", degree=2).to_datatree(ladder)
    thinned = stored.isel(draw=slice(None, None, 2))
    with pytest.raises(
        mp.InputError, match=r"an evidence of the draws in the tree \(30 draws\), got one of 60"
    ):
        mp.Evidence.from_datatree(thinned)
    for change in (lambda attrs: attrs.pop("status"), lambda attrs: attrs.pop("info")):
        older = stored.copy()
        change(older[EVIDENCE_GROUP].attrs)
        with pytest.raises(
            mp.InputError, match="this version of mcmcpost wrote, got a group `evidence` without"
        ):
            mp.Evidence.from_datatree(older)
    for lost in ("method_status", "rung_ess", "path_mean"):
        older = stored.copy()
        older[EVIDENCE_GROUP] = older[EVIDENCE_GROUP].to_dataset().drop_vars(lost)
        with pytest.raises(mp.InputError, match="this version of mcmcpost wrote, got one without"):
            mp.Evidence.from_datatree(older)
    with pytest.raises(mp.InputTypeError, match="DataTree"):
        mp.Evidence.from_datatree(None)
    path = tmp_path / "some.json"
    record = bridge.to_json_dict()
    for text, words in (
        ("{", "JSONDecodeError"),
        ("[1, 2]", "one evidence, got 2"),
        ('{"quantities": []}', "got the keys quantities"),
        ("3", "got a int"),
        ('{"log_evidence": 1.0}', "without mcse"),
        (json.dumps({"evidence": [record, record]}), "one evidence, got 2"),
        (json.dumps(record | {"methods": [3]}), "another kind of value"),
        (json.dumps(record | {"status": "magic"}), "another kind of value"),
        (json.dumps(record | {"mcse": -1.0}), "got a mcse of -1.0 with"),
        (json.dumps(record | {"discretisation_error": -3}), "got a discretisation_error of -3"),
        (json.dumps(record | {"log_evidence": None, "status": "controlled"}), "evidence of nan"),
        (json.dumps(record | {"methods": [record["methods"][0] | {"mcse": -1}]}), "mcse of -1"),
        (json.dumps(record | {"methods": [{"method": "x"}]}), "got one without "),
    ):
        path.write_text(text)
        with pytest.raises(mp.InputError, match=words):
            mp.load_tree(path)
    path.write_text(json.dumps(record))
    with pytest.raises(mp.InputError, match="several files of draws"):
        mp.load_tree(path, path)


def test_models_of_other_data_are_not_compared(bridge):
    def tree(y: np.ndarray) -> object:
        import xarray

        data = xarray.DataTree(xarray.Dataset({"y": ("obs", y)}))
        return bridge.to_datatree(xarray.DataTree(children={"observed_data": data}))

    y = np.array([1.0, np.nan, 3.0])
    assert len(mp.compare_evidence({"a": tree(y), "b": tree(y.copy())}).names) == 2
    with pytest.raises(
        mp.InputError, match=r"models of the same data, y of a \(3,\), got other values in b \(2,\)"
    ):
        mp.compare_evidence({"a": tree(y), "b": tree(y[:2])})


@pytest.mark.slow
def test_chains_of_several_files_have_no_evidence_of_one(bridge, rng, tmp_path):
    paths = [
        mp.save_tree(bridge.to_datatree(normal_trace(rng)), tmp_path / f"{i}.nc") for i in range(2)
    ]
    joined = mp.load_tree(*paths)
    assert EVIDENCE_GROUP not in joined.children
    assert joined["sample_stats"].sizes["chain"] == 4
