"""``mcmcpost report``: files, JSON, exit codes, and one-line errors."""

import json

import numpy as np
import pytest
from cli_cases import refused
from html_cases import Reading
from ladder_cases import RUNGS, gaussian_path

import mcmcpost

QUICK = ["--method", "zv2"]


@pytest.fixture
def trace(tmp_path, rng):
    """A saved trace of exact draws of N(0, 1) × N(0, 1)."""
    draws = rng.normal(size=(4, 200, 2))
    path = tmp_path / "exact <b>.nc"
    mcmcpost.save_tree(mcmcpost.from_arrays(draws, -draws, names=("a", "b[0]")), path)
    return path


def test_a_trace_ends_in_a_report(run, trace, tmp_path):
    done = run("report", trace, "-o", "report.html", "--expect", "p=a > 0", *QUICK)
    assert done.code == 0
    assert done.err == ""
    assert done.out.startswith("report.html: 3 quantities, median gain ")
    assert done.out.endswith("scores pass\n")
    reading = Reading((tmp_path / "cwd" / "report.html").read_text())
    assert reading.problems == []
    assert f"Report on {trace.name}" in reading.texts("h1")
    assert {"a", "b[0]", "p"} <= set(reading.texts("th"))
    facts = reading.texts("dd")
    assert f"mcmcpost report '{trace}' -o report.html --expect 'p=a > 0' --method zv2" in facts
    assert {"zv2", str(trace), "a, b[0], p"} <= set(facts)


def test_the_summary_is_that_of_reduce(run, trace):
    written = json.loads(run("report", trace, "-o", "report.html", *QUICK, "--json").out)
    reduced = json.loads(run("reduce", trace, *QUICK, "--json").out)
    assert written["quantities"] == reduced["quantities"]
    assert written["score_check"] == "pass"
    assert written["bytes"] > 10_000


def test_an_existing_report_is_kept_unless_forced(run, trace, tmp_path):
    taken = tmp_path / "taken.html"
    taken.write_text("precious")
    assert refused(run("report", trace, "-o", taken, *QUICK), "which exists", "--force")
    assert taken.read_text() == "precious"
    assert run("report", trace, "-o", taken, "--force", *QUICK).code == 0
    assert Reading(taken.read_text()).problems == []


def test_bad_input_is_one_line(run, trace, tmp_path, rng):
    draws = rng.normal(size=(4, 200, 1))
    tree = mcmcpost.from_arrays(draws, -draws)
    del tree["sample_stats"]
    mcmcpost.save_tree(tree, tmp_path / "noscores.nc")
    mcmcpost.save_tree(mcmcpost.from_arrays(draws, draws, allow_bad_scores=True), tmp_path / "wrong.nc")
    (tmp_path / "foreign.nc").write_text("not netCDF")
    out = ["-o", "report.html"]
    assert refused(run("report", tmp_path / "noscores.nc", *out), "attach_scores")
    assert refused(run("report", tmp_path / "wrong.nc", *out), "sign")
    assert refused(run("report", tmp_path / "foreign.nc", *out), "netCDF")
    assert refused(run("report", "missing.nc", *out), "missing.nc")
    assert refused(run("report", "model.py", *out), "mcmcpost sample")
    assert refused(run("report", trace, "-o", "report.pdf"), ".html")
    assert refused(run("report", trace, "-o", "nowhere/report.html"), "existing folder")
    assert refused(run("report", trace, "-o", "/proc/report.html", "--method", "plain"), "/proc")
    assert refused(run("report", trace, *out, "--expect", "q=missing"), "not among the variables")
    assert refused(run("report", trace, *out, "--expect", "a=a"), "not taken yet")
    assert run("report", trace).code == 2
    assert run("report", trace, *out, "--method", "magic").code == 2
    assert not list((tmp_path / "cwd").iterdir())


def test_a_missing_extra_is_the_users_error(run, trace, monkeypatch):
    monkeypatch.setattr("mcmcpost.report._canvas.find_spec", lambda _: None)
    assert refused(run("report", trace, "-o", "report.html", "--method", "plain"), "mcmcpost[report]")


@pytest.mark.filterwarnings("ignore:Score gate")
def test_warnings_are_said_once(run, tmp_path, rng):
    draws = rng.normal(size=(4, 200, 1)) + np.array([0.0, 0.0, 0.0, 3.0])[:, None, None]
    mcmcpost.save_tree(mcmcpost.from_arrays(draws, -draws, allow_bad_scores=True), tmp_path / "stuck.nc")
    done = run("report", tmp_path / "stuck.nc", "-o", "report.html", "--allow-bad-scores", "--method", "plain")
    assert done.code == 0
    rhat, gate = done.err.splitlines()
    assert rhat.startswith("mcmcpost: warning: R-hat 1.")
    assert gate.startswith("mcmcpost: warning: Score gate: ")


@pytest.mark.slow
def test_a_ladder_has_its_evidence_in_the_report(run, tmp_path, rng):
    path = gaussian_path(1)
    tree = mcmcpost.ladder_from_arrays(*path.ladder(rng, 100, RUNGS, chains=2)[:5])
    mcmcpost.save_tree(tree, tmp_path / "ladder.nc")
    done = run("report", tmp_path / "ladder.nc", "-o", "report.html", *QUICK, "--json")
    found = json.loads(done.out)
    assert abs(found["evidence"]["log_evidence"] - float(path.log_evidence(np.ones(1))[0])) < 1e-6
    assert found["quantities"][0]["status"] == "exact"
    assert "Model evidence" in Reading((tmp_path / "cwd" / "report.html").read_text()).texts("h2")


def test_an_import_that_fails_by_itself_keeps_its_traceback():
    from mcmcpost._cli_edge import is_user_error

    with pytest.raises(ImportError) as info:
        __import__("no_such_module_of_ours")
    assert not is_user_error(info.value)
