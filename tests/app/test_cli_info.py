"""``mcmcpost info``: what is in a file, as text and as JSON."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import xarray
from cli_cases import refused
from ladder_cases import short_ladder

import mcmcpost as mp

FOREIGN = Path(__file__).parents[1] / "data" / "arviz_0_23.nc"


def facts(run, path):
    done = run("info", path, "--json")
    assert (done.code, done.err) == (0, "")
    return json.loads(done.out)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trace.nc", "trace.zarr"])
def test_a_trace(run, tmp_path, rng, name):
    draws = rng.normal(size=(4, 200, 2))
    tree = mp.from_arrays(draws, -draws, names=("a", "b"))
    stats = tree["sample_stats"].to_dataset()
    dims = ("chain", "draw")
    diverging = np.zeros((4, 200), bool)
    diverging[1, :7] = True
    tree["sample_stats"] = stats.assign(
        diverging=(dims, diverging), lp=(dims, -0.5 * (draws**2).sum(-1))
    )
    tree.attrs |= {"seed": 7, "model_file": "model.py", "sampling_time": 342.28996113100584}
    path = mp.save_tree(tree, tmp_path / name)
    found = facts(run, path)
    assert (found["kind"], found["chains"], found["draws"], found["temperatures"]) == (
        "trace",
        4,
        200,
        None,
    )
    stein = found["scores"].pop("stein")
    assert list(stein) == ["stein_z0", "stein_z1", "stein_z2"]
    assert all(worst["z"] < 5 and worst["parameter"] in ("a", "b") for worst in stein.values())
    assert found["scores"] == {"parameters": 2, "check": "pass", "message": ""}
    assert (found["log_density"], found["divergences"]) == (["lp"], 7)
    assert (found["seed"], found["model_file"]) == (7, "model.py")
    assert found["max_rhat"] < 1.05
    assert found["versions"]["mcmcpost"] == mp.__version__
    gradient = {"dims": {"chain": 4, "draw": 200, "unconstrained_parameter": 2}, "type": "float64"}
    assert found["groups"]["/sample_stats"]["gradient"] == gradient
    assert found["bytes"] > 10_000
    lines = run("info", path).out.splitlines()
    assert "scores         of 2 parameters: pass" in lines
    assert "divergences    7" in lines
    assert "sampling time  342 s" in lines
    assert any(
        line.split() == ["posterior.a", "chain", "4,", "draw", "200", "float64"] for line in lines
    )


@pytest.mark.slow
def test_the_structure_that_the_labels_tell(run, tmp_path, rng):
    draws = rng.normal(size=(4, 200, 23))
    names = [
        "mu",
        *(f"z[{i}, {k}]" for i in range(7) for k in range(2)),
        *(f"w[{i}]" for i in range(8)),
    ]
    path = mp.save_tree(mp.from_arrays(draws, -draws, names=names), tmp_path / "trace.nc")
    assert facts(run, path)["structure"] == {
        "globals": 1,
        "blocks": {"z[:, 0]": 7, "z[:, 1]": 7, "w": 8},
    }
    lines = [line.split(maxsplit=3) for line in run("info", path).out.splitlines()]
    assert ["globals", "1"] in lines
    assert [line[3] for line in lines if line[:2] == ["blocks", "of"]] == ["z[:, 0], z[:, 1]", "w"]
    grid = rng.normal(size=(4, 200, 57))
    names = [*(f"z[{i}, {j}]" for i in range(7) for j in range(8)), "mu"]
    path = mp.save_tree(mp.from_arrays(grid, -grid, names=names), tmp_path / "grid.nc")
    assert facts(run, path)["structure"] == {"globals": 1, "blocks": {"z[:, :]": [7, 8]}}
    assert "grids of 7 × 8  z[:, :]" in run("info", path).out
    path = mp.save_tree(mp.from_arrays(draws[..., :2], -draws[..., :2]), tmp_path / "short.nc")
    assert facts(run, path)["structure"] == {"globals": 2, "blocks": {}}
    assert "none: the labels tell no variable of more than six entries" in run("info", path).out


def test_scores_that_fail_the_gate_are_an_answer_and_no_error(run, tmp_path, rng):
    draws = rng.normal(size=(4, 200, 1))
    path = mp.save_tree(mp.from_arrays(draws, draws, allow_bad_scores=True), tmp_path / "wrong.nc")
    assert facts(run, path)["scores"]["check"] == "error"
    assert "of 1 parameters: error" in run("info", path).out


def test_a_name_of_two_lines_is_one(run, tmp_path, rng):
    draws = rng.normal(size=(4, 200, 1))
    path = mp.save_tree(
        mp.from_arrays(draws, -draws, value_names=("rate\nof growth",)), tmp_path / "trace.nc"
    )
    lines = run("info", path).out.splitlines()
    assert any(line.startswith("posterior.rate of growth  ") for line in lines)


def test_a_trace_of_another_program_without_scores(run):
    found = facts(run, FOREIGN)
    assert (found["scores"]["check"], found["structure"]) == (None, None)
    assert (found["sampler"], found["log_density"], found["divergences"]) == ("numpyro", ["lp"], 0)
    assert found["groups"]["/posterior"]["weights"]["dims"] == {"chain": 4, "draw": 100, "part": 3}
    assert (
        "scores         none. Attach scores with attach_scores(tree, model, *args)"
        in run("info", FOREIGN).out
    )


@pytest.mark.slow
def test_a_ladder(run, tmp_path, rng):
    drawn, _ = short_ladder(rng)
    path = mp.save_tree(mp.ladder_from_arrays(*drawn[:5]), tmp_path / "ladder.nc")
    found = facts(run, path)
    assert found["kind"] == "ladder"
    np.testing.assert_allclose(found["temperatures"], drawn[0])
    assert found["scores"]["check"] == "pass"
    assert f"temperatures   {len(drawn[0])}: 0, " in run("info", path).out


def test_a_table(run, tmp_path):
    (tmp_path / "draws.csv").write_text("a,gradient_a\n0.5,-0.5\n-1,1\n")
    found = facts(run, tmp_path / "draws.csv")
    assert (found["chains"], found["draws"], found["max_rhat"], found["divergences"]) == (
        1,
        2,
        None,
        None,
    )


@pytest.mark.slow
def test_weighted_draws(run, tmp_path, rng):
    draws = 1.3 * rng.normal(size=(1, 800, 1))
    logs = -0.5 * draws[..., 0] ** 2 * (1 - 1 / 1.69)
    tree = mp.from_arrays(draws, -draws, log_weights=logs, names=("a",))
    path = mp.save_tree(tree, tmp_path / "weighted.nc")
    found = facts(run, path)
    share = np.exp(logs)
    assert found["weights"]["ess"] == pytest.approx(share.sum() ** 2 / (share**2).sum())
    assert found["weights"]["pareto_khat"] < 0.7
    assert found["max_rhat"] is None
    assert found["scores"]["check"] == "pass"
    assert any(line.startswith("weights ") for line in run("info", path).out.splitlines())
    reduced = json.loads(run("reduce", path, "--method", "plain", "--json").out)["quantities"][0]
    assert reduced["mean"] == pytest.approx((share * draws[..., 0]).sum() / share.sum(), abs=1e-12)


@pytest.mark.slow
def test_a_stored_evidence_is_told(run, tmp_path, rng):
    drawn, path = short_ladder(rng)
    tree = mp.ladder_from_arrays(*drawn[:5])
    saved = mp.save_tree(mp.log_evidence(tree, "zv2").to_datatree(tree), tmp_path / "ladder.nc")
    found = facts(run, saved)["evidence"]
    assert abs(found["log_evidence"] - path.log_evidence(np.ones(1))[0]) < 1e-6
    assert (found["status"], found["method_reported"]) == ("controlled", "pooled")
    assert any(
        line.startswith("log evidence ") and "pooled, controlled" in line
        for line in run("info", saved).out.splitlines()
    )


def test_facts_of_the_whole_run_come_before_those_of_a_group(run, tmp_path, rng):
    """An array is a fact too; divergences of a ladder are those of every rung."""
    drawn, _ = short_ladder(rng)
    tree = mp.ladder_from_arrays(*drawn[:5])
    divergent = np.zeros(drawn[2].shape)
    divergent[0, :3, 0] = 1
    stats = tree["sample_stats"].to_dataset()
    tree["sample_stats"] = xarray.DataTree(
        stats.assign(diverging=(stats["log_likelihood_total"].dims, divergent))
    )
    tree["sample_stats"].attrs["seed"] = "[0, 7]"
    tree.attrs |= {"seed": np.array([0, 42]), "num_warmup": 100}
    path = mp.save_tree(tree, tmp_path / "ladder.nc")
    lines = run("info", path).out.splitlines()
    assert any(line.split() == ["seed", "[", "0", "42]"] for line in lines)
    assert any(line.split() == ["divergences", "3"] for line in lines)


@pytest.mark.slow
@pytest.mark.filterwarnings("default:.*draws left out")
def test_sums_of_traces_are_told_and_reduced(run, tmp_path, rng):
    first, second, more = (
        rng.normal(size=shape) for shape in ((4, 100, 2), (2, 60, 2), (4, 50, 2))
    )
    one, two, longer = (
        mp.save_tree(mp.from_arrays(x, -x, names=["a", "b"]), tmp_path / f"trace{i}.nc")
        for i, x in enumerate((first, second, np.concatenate([first, more], axis=1)))
    )
    sums, grown, unused = (tmp_path / name for name in ("sums.nc", "grown.zarr", "unused.nc"))
    assert (
        run("moments", one, two, "-o", sums).out
        == "6 chains, 520 draws, 2 quantities, 30 controls\n"
    )
    done = run("moments", longer, "--append", sums, "-o", grown, "--json")
    assert json.loads(done.out) == {"chains": 10, "draws": 720, "quantities": 2, "controls": 30}
    lines = run("info", grown).out.splitlines()
    assert "a file of sums" in lines[0]
    assert lines[1].endswith("10 chains, 720 draws, 2 quantities, 30 controls")
    reduced = json.loads(run("reduce", grown, "--var-names", "b", "--json").out)
    assert [row["name"] for row in reduced["quantities"]] == ["b"]
    assert abs(reduced["quantities"][0]["mean_cv"]) < 1e-12
    assert refused(run("reduce", grown, "--ci", "0.9"), "means of what was summed")
    for number, asked in enumerate((["--var-names", "b"], ["--expect", "s=a**2"])):
        made, added = (tmp_path / f"{kind}{number}.nc" for kind in ("made", "added"))
        assert run("moments", one, *asked, "-o", made).code == 0
        done = run("moments", two, "--append", made, "-o", added)
        assert done.code == 0, done.err
    # What was asked for is that of the file, and goes on with it.
    again = run("moments", longer, "--append", added, "-o", tmp_path / "again.nc", "--json")
    assert json.loads(again.out)["quantities"] == 3, again.err
    tree = mp.load_tree(tmp_path / "again.nc")
    draws = np.concatenate([x[..., 0].ravel() for x in (first, second, more)])
    np.testing.assert_allclose(mp.expectation(tree).mean_plain[2], np.mean(draws**2), rtol=1e-12)
    plain = mp.save_tree(mp.moments(mp.load_tree(one), {"s": first[..., 0]}).to_datatree(), unused)
    done = run("moments", two, "--append", plain, "-o", tmp_path / "no.nc")
    assert refused(done, "none named s.", "--expect")
    unused.unlink()
    # Each is told in the words of its command, and never as of a trace or of Python arguments.
    of_sums, model = "a file of sums, which has no draws", tmp_path / "model.py"
    model.write_text("def model():\n    pass\n")
    for more in (
        ("report", grown, "-o", tmp_path / "report.html"),
        ("evidence", grown),
        ("evidence", grown, "--model", model),
        ("reduce", grown, "--model", model),
        ("moments", grown, "-o", unused),
    ):
        assert refused(run(*more), of_sums)
    assert refused(run("reduce", grown, "--method", "zv1"), "no other --method")
    assert refused(run("reduce", grown, "--allow-bad-scores"), "nothing on scores")
    again = ("moments", one, "--append", sums, "-o", unused)
    assert refused(run(*again, "--method", "zv1"), "no --method beside it")
    assert refused(run(*again), "not summed yet")
    tree = mp.load_tree(grown)
    for sums_alone in (tree, mp.moments(mp.load_tree(one))):
        for ask in (partial(mp.quantile, probabilities=0.5), mp.structure, mp.check_tree):
            with pytest.raises(ValueError, match="sums of one, which have no draws"):
                ask(sums_alone)
    assert refused(run("moments", one, "--append", two, "-o", unused), "a file of sums")
    # Chains of other lengths are added by `reduce` too.
    both = run("reduce", one, two, "--json")
    assert "weighs as many draws as it has" in both.err
    assert [row["name"] for row in json.loads(both.out)["quantities"]] == ["a", "b"]
    # Quantiles need draws side by side: those that all chains have.
    both = run("reduce", one, two, "--ci", "0.9", "--json")
    assert "draws left out" in both.err, both.err
    assert len(json.loads(both.out)["quantities"]) == 6
