"""``mcmcpost evidence``: from a model file or a saved ladder to the log evidence, and one-line
errors."""

import json
import os
import warnings
from contextlib import nullcontext

import jax
import numpy as np
import pytest
from cli_cases import refused
from ladder_cases import short_ladder
from scipy.stats import norm

import mcmcpost
from mcmcpost.app import commands
from mcmcpost.app.commands import Source, source_evidence

CONJUGATE = """
import numpyro
import numpyro.distributions as dist

def model(y):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 0.5), obs=y)

def data(y=1.0):
    return {"y": y}
"""
SHORT = ["--rungs", "5", "--warmup", "100", "--draws", "60", "--chains", "2"]
TRUTH = norm.logpdf(1.0, 0.0, np.sqrt(1.25))


@pytest.fixture
def ladder(tmp_path, rng):
    """A saved ladder of exact draws, and its log evidence."""
    drawn, path = short_ladder(rng)
    mcmcpost.save_tree(mcmcpost.ladder_from_arrays(*drawn[:5]), tmp_path / "ladder.nc")
    return tmp_path / "ladder.nc", float(path.log_evidence(np.ones(1))[0])


@pytest.mark.slow
def test_a_model_file_ends_in_its_evidence(run, tmp_path):
    model = tmp_path / "conjugate.py"
    model.write_text(CONJUGATE)
    done = run("evidence", model, *SHORT, "--method", "zv2", "-o", "ladder.nc")
    assert done.code == 0
    assert f"log evidence {TRUTH:.4f}" in done.out
    assert "stepping stone" in done.out
    assert "rhat" in done.out
    tree = mcmcpost.load_tree("ladder.nc")
    assert abs(tree["evidence"].attrs["log_evidence"] - TRUTH) < 1e-6
    assert refused(run("evidence", model, "-o", "ladder.nc"), "which exists")


@pytest.fixture
def trace(tmp_path, rng):
    """A saved trace of exact draws of the conjugate model with y = 1, its model file, and log
    p(y)."""
    model = tmp_path / "conjugate.py"
    model.write_text(CONJUGATE)
    draws = 0.8 + np.sqrt(0.2) * rng.normal(size=(4, 250, 1))
    mcmcpost.save_tree(
        mcmcpost.from_arrays(draws, 5.0 * (0.8 - draws), names=["x"]), tmp_path / "trace.nc"
    )
    return tmp_path / "trace.nc", model


@pytest.mark.slow
def test_a_trace_and_its_model_file_end_in_the_evidence(run, trace, tmp_path):
    path, model = trace
    done = run("evidence", path, "--model", model, "--method", "zv2", "-o", tmp_path / "with.nc")
    assert done.code == 0
    assert f"log evidence {TRUTH:.4f}" in done.out
    assert "bridge (warp-III)" in done.out
    assert "discretisation_error" in done.out
    # Of a normal posterior the scores give the density that is bridged to, and plain bridges are
    # exact.
    assert mcmcpost.load_tree(tmp_path / "with.nc")["evidence"].attrs["status"] == "plain"
    other = tmp_path / "other.nc"
    other.write_bytes(path.read_bytes())
    found = json.loads(
        run(
            "evidence", path, other, "--model", model, "--seed", "3", "--method", "zv2", "--json"
        ).out
    )
    assert [abs(e["log_evidence"] - TRUTH) < 1e-12 for e in found["evidence"]] == [True, True]


@pytest.mark.slow
def test_a_ladder_from_the_trace_stands_beside_its_bridge(run, trace):
    path, model = trace
    short = ["--warmup", "60", "--draws", "60", "--chains", "2", "--rungs", "3", "--exchange", "1"]
    done = run(
        "evidence", path, "--model", model, "--ladder", *short, "--method", "zv2", "-o", "ladder.nc"
    )
    assert done.code == 0
    assert f"log evidence {TRUTH:.4f}" in done.out
    assert "3 rungs from the fitted normal; barrier" in done.out
    assert all(word in done.out for word in ("pooled", "bridge (warp-III)", "swap_rate"))
    again = run("evidence", "ladder.nc", "--method", "zv2", "--json")
    assert json.loads(again.out)["evidence"][0]["reference"] == "fitted normal"


def test_a_ladder_whose_rungs_are_not_placed_yet_may_have_32(run, trace, monkeypatch):
    def sampled(*_):
        raise mcmcpost.InputError("it is sampled")

    path, model = trace
    monkeypatch.setattr(commands, "ladder_of_model", sampled)
    # 4 MB
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}.__getitem__)
    asked = ["evidence", path, "--model", model, "--ladder", "--draws", 2_500]  # 0.24 MB for a rung
    assert refused(run(*asked), "draws that fit into", "fewer than 32 --rungs")
    assert refused(run(*asked, "--rungs", 9), "it is sampled")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_trace_without_its_model_says_what_to_do(run, trace, ladder):
    (path, model), (stored, _) = trace, ladder
    assert refused(run("evidence", path), "--model FILE.py")
    assert refused(
        run("evidence", path, "--model", model, "--draws", "9"), "belong to a model file"
    )
    assert refused(
        run("evidence", path, "--model", model, "--model", model, "--model", model), "one for all"
    )
    assert refused(run("evidence", stored, "--model", model), "Leave --model out")
    assert refused(run("evidence", stored, "--ladder"), "Leave --ladder out")
    assert refused(run("evidence", path, "--model", model, "--rungs", "9"), "add --ladder")
    assert refused(
        run("evidence", path, "--model", model, "--path", "rungs"), "expected a ladder with --path"
    )


OTHERS = {
    "another prior": (
        CONJUGATE.replace("dist.Normal(0.0, 1.0)", "dist.Normal(0.0, 2.0)"),
        "gradients that differ by",
    ),
    "other data": (CONJUGATE.replace("y=1.0", "y=1.05"), "gradients that differ by"),
    "another site": (
        CONJUGATE.replace('"x"', '"theta"'),
        "expected the latent sites of the model, theta",
    ),
    "another shape": (
        CONJUGATE.replace("dist.Normal(0.0, 1.0)", "dist.Normal(0.0, 1.0).expand([2])"),
        "shape (chain, draw, 2), got (4, 250)",
    ),
    "an improper prior": (
        CONJUGATE.replace(
            "dist.Normal(0.0, 1.0)", "dist.ImproperUniform(dist.constraints.real, (), ())"
        ),
        "improper prior has no evidence",
    ),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_trace_with_a_model_that_was_not_sampled_is_refused(run, trace, tmp_path, other):
    text, words = OTHERS[other]
    (tmp_path / "other.py").write_text(text)
    assert refused(
        run("evidence", trace[0], "--model", tmp_path / "other.py", "--method", "zv2"), words
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_trace_without_gradients_is_told_that_the_model_is_another(run, trace, tmp_path):
    path, model = trace
    tree = mcmcpost.load_tree(path)
    mcmcpost.save_tree(
        type(tree).from_dict({"posterior": tree["posterior"].to_dataset()}), tmp_path / "bare.nc"
    )
    done = run(
        "evidence", tmp_path / "bare.nc", "--model", model, "--option", "y=9.0", "--method", "zv2"
    )
    assert done.code == 0
    assert "bad_scores" in done.out
    assert "the draws are not of this model" in done.err


TWO_MODES = CONJUGATE.replace("dist.Normal(0.0, 1.0)", "dist.Normal(0.0, 10.0)").replace(
    "(x, 0.5)", "(abs(x), 0.5)"
)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    ("stuck", "head", "said"),
    [(False, "plain", ""), (True, "not_converged", "the chains, or their halves, disagree on x")],
)
def test_two_modes_are_bridged_where_chains_visit_both(run, tmp_path, rng, stuck, head, said):
    model = tmp_path / "modes.py"
    model.write_text(TWO_MODES.replace("y=1.0", "y=8.0"))
    precision = 4.01
    size = 32 / precision + rng.normal(size=(4, 250, 1)) / np.sqrt(precision)
    draws = size * (
        np.array([1, 1, -1, -1])[:, None, None] if stuck else rng.choice([-1, 1], size=size.shape)
    )
    scores = np.sign(draws) * (32 - precision * np.abs(draws))
    with pytest.warns(mcmcpost.ScoreWarning, match="disagree on x") if stuck else nullcontext():
        tree = mcmcpost.from_arrays(draws, scores, names=["x"], allow_bad_scores=True)
    mcmcpost.save_tree(tree, tmp_path / "modes.nc")
    done = run("evidence", tmp_path / "modes.nc", "--model", model, "--method", "zv2", "--json")
    assert done.code == 0
    assert said in done.err
    found = json.loads(done.out)["evidence"][0]
    assert found["status"] == head
    truth = np.log(2.0) + norm.logpdf(8.0, 0.0, np.sqrt(100.25))
    assert abs(found["log_evidence"] - truth) < 4.5 * found["mcse"] + 0.01


@pytest.mark.slow
def test_a_ladder_whose_bridge_cannot_be_had_is_reported_alone(trace, ladder, capsys):
    source = Source(trace[1], mcmcpost.load_tree(ladder[0]), None)  # of other sites than the model
    found = source_evidence(
        source, None, path="auto", method="zv2", seed=None, allow_bad_scores=False
    )
    assert found.method == "pooled"
    assert "no bridge beside the ladder" in capsys.readouterr().err


@pytest.mark.slow
def test_saved_ladders_are_compared(run, ladder, tmp_path):
    path, truth = ladder
    other = tmp_path / "other.nc"
    other.write_bytes(path.read_bytes())
    done = run("evidence", path, other, "--method", "zv2", "--json")
    found = json.loads(done.out)
    assert [abs(e["log_evidence"] - truth) < 1e-6 for e in found["evidence"]] == [True, True]
    assert found["comparison"][0]["probability"] == pytest.approx(0.5)
    assert "probability" in run("evidence", path, other, "--method", "zv2").out


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_an_evidence_that_is_undefined_is_left_out_of_a_comparison(run, ladder, tmp_path):
    path, truth = ladder
    tree = mcmcpost.load_tree(path)
    stats = tree["sample_stats"].to_dataset().load()
    stats["log_likelihood_total"][:, 0, 0] = -np.inf  # the rules over the rungs need the mean there
    tree["sample_stats"] = stats
    lost = mcmcpost.save_tree(tree, tmp_path / "lost.nc")
    done = run("evidence", path, lost, "--path", "rungs", "--method", "zv2", "--json")
    assert done.code == 0
    found = json.loads(done.out)
    ours = found["evidence"][0]
    assert (
        abs(ours["log_evidence"] - truth)
        < 4.5 * np.hypot(ours["mcse"], ours["discretisation_error"])
        < 2
    )
    assert found["evidence"][1]["log_evidence"] is None
    assert "comparison" not in found
    assert f"not compared: the log evidence of {lost} is undefined" in done.err


def test_bad_input_is_one_line(run, ladder, tmp_path):
    path, _ = ladder
    assert refused(run("evidence", path, "--draws", "10"), "belong to a model file")
    assert refused(run("evidence", path, path), "distinct sources")
    assert refused(
        run("evidence", path, path.parent / ".." / path.parent.name / path.name), "distinct sources"
    )
    assert refused(run("evidence", path, tmp_path / "b.nc", "-o", "x.nc"), "one source")
    improper = tmp_path / "improper.py"
    improper.write_text(
        CONJUGATE.replace(
            "dist.Normal(0.0, 1.0)", "dist.ImproperUniform(dist.constraints.real, (), ())"
        )
    )
    assert refused(run("evidence", improper, *SHORT), "improper prior has no evidence")


def test_a_model_is_no_option_of_a_ladder(run, ladder, tmp_path):
    (tmp_path / "conjugate.py").write_text(CONJUGATE)
    assert refused(
        run("reduce", ladder[0], "--model", tmp_path / "conjugate.py"),
        "got a ladder",
        "Leave --model out",
    )


def test_settings_belong_to_the_model_files_among_the_sources(run, ladder, tmp_path):
    """They are refused where nothing is sampled; here the missing file is the first thing that is
    wrong."""
    path, _ = ladder
    assert refused(run("evidence", path, "--draws", "10"), "belong to a model file")
    assert (
        "belong to a model file"
        not in run("evidence", path, tmp_path / "gone.py", "--draws", "10").err
    )


@pytest.mark.slow
def test_a_ladder_from_a_trace_is_kept_where_what_follows_fails(
    run, trace, ladder, tmp_path, monkeypatch
):
    def broken(*_, **__):
        raise OSError("no space left on device")

    path, model = trace
    monkeypatch.setattr(commands, "ladder_of_model", lambda *_: mcmcpost.load_tree(ladder[0]))
    monkeypatch.setattr(mcmcpost, "log_evidence", broken)
    done = run("evidence", path, "--model", model, "--ladder", "--method", "plain")
    assert done.code != 0
    assert "the draws are kept in" in done.err
    kept = mcmcpost.load_tree(tmp_path / "cwd" / "conjugate-draws.nc")
    assert kept["sample_stats"].sizes["temperature"] == len(
        mcmcpost.load_tree(ladder[0])["sample_stats"].temperature
    )


@pytest.fixture
def stored(ladder, trace, tmp_path):
    """A ladder and a trace with their evidence, and the second as it is printed."""
    tree = mcmcpost.load_tree(ladder[0])
    with warnings.catch_warnings(action="ignore", category=mcmcpost.EvidenceWarning):
        of_ladder = mcmcpost.log_evidence(tree, "zv2", degree=2)
    # without rules, which disagree on five rungs
    of_ladder = of_ladder._replace(estimates=of_ladder.estimates[:2])
    mcmcpost.save_tree(of_ladder.to_datatree(tree), tmp_path / "kept.nc")
    tree, key = mcmcpost.load_tree(trace[0]), jax.random.key(0)
    found = mcmcpost.bridge_evidence(
        tree, logdensity_fn=lambda x: 2.5 * (1.6 - x[0]) * x[0], key=key, method="plain"
    )
    mcmcpost.save_tree(found.to_datatree(tree), tmp_path / "with.zarr")
    (tmp_path / "printed.json").write_text(
        json.dumps({"evidence": [{"source": "x"} | found.to_json_dict()]})
    )
    return [tmp_path / name for name in ("kept.nc", "with.zarr", "printed.json")], found


@pytest.mark.slow
def test_stored_evidences_are_printed_and_compared_as_they_are(run, stored, monkeypatch):
    paths, found = stored
    for name in ("log_evidence", "bridge_evidence"):
        monkeypatch.setattr(mcmcpost, name, None)
    done = run("evidence", *paths, "--json")
    assert done.code == 0, done.err
    records = json.loads(done.out)["evidence"]
    assert [record["source"] for record in records] == list(map(str, paths))
    assert records[1] == records[2] | {"source": str(paths[1])}
    assert records[1]["log_evidence"] == found.value
    text = run("evidence", *paths)
    assert text.out.count("log evidence") >= 3
    assert "log_bayes_factor" in text.out
    assert run("evidence", paths[0], "-o", "again.nc").code == 0
    assert mcmcpost.load_tree("again.nc").identical(mcmcpost.load_tree(paths[0]))


@pytest.mark.slow
def test_a_stored_evidence_is_estimated_again_where_that_is_asked_for(
    run, stored, trace, monkeypatch
):
    asked = []
    monkeypatch.setattr(
        mcmcpost, "log_evidence", lambda *_, **__: asked.append("ladder") or stored[1]
    )
    monkeypatch.setattr(
        mcmcpost, "bridge_evidence", lambda *_, **__: asked.append("bridge") or stored[1]
    )
    paths, _ = stored
    for options in (["--path", "auto"], ["--method", "auto"], ["--allow-bad-scores"]):
        assert run("evidence", paths[0], *options).code == 0
    assert run("evidence", paths[0], paths[1], "--model", trace[1]).code == 0
    assert asked == ["ladder", "ladder", "ladder", "bridge"]


@pytest.mark.slow
def test_a_report_has_the_evidence_that_is_stored(run, stored, monkeypatch, tmp_path):
    monkeypatch.setattr("mcmcpost.app.page.evidence_of", None)
    paths, found = stored
    for path, quantities in zip(paths, (True, True, False), strict=True):
        done = run("report", path, "-o", f"{path.stem}.html", "--json")
        assert done.code == 0, done.err
        facts = json.loads(done.out)
        assert ("quantities" in facts) == quantities
        assert facts["evidence"]["log_evidence"] is not None
        assert "Model evidence" in (tmp_path / "cwd" / f"{path.stem}.html").read_text()
    done = run("report", paths[2], "-o", "line.html")
    assert f"log evidence {found.value:.2f}"[:16] in done.out
    assert "Model evidence" in mcmcpost.html_report(mcmcpost.load_tree(paths[2]))


@pytest.mark.slow
def test_what_cannot_be_made_of_a_stored_evidence_is_said_in_one_line(run, stored, tmp_path):
    paths, found = stored
    printed = paths[2]
    assert refused(
        run("evidence", printed, "--method", "zv2"), "an evidence alone", "Leave them out"
    )
    assert refused(run("evidence", printed, "--rungs", "5"), "got the stored evidence")
    assert refused(run("report", printed, "-o", "x.html", "--expect", "a=x"), "an evidence alone")
    assert refused(run("reduce", printed), "posterior")
    thinned = tmp_path / "thinned.nc"
    mcmcpost.save_tree(mcmcpost.load_tree(paths[1]).isel(draw=slice(100)), thinned)
    for command in (["evidence", thinned], ["report", thinned, "-o", "x.html"]):
        assert refused(
            run(*command), "evidence of the draws in the tree (100 draws), got one of 250"
        )
    several = tmp_path / "several.json"
    several.write_text(json.dumps({"evidence": [found.to_json_dict()] * 2}))
    assert refused(run("evidence", several), "one evidence, got 2")
    (tmp_path / "estimates.json").write_text('{"quantities": []}')
    assert refused(
        run("evidence", tmp_path / "estimates.json"),
        "the JSON of an evidence, got the keys quantities",
    )
