"""``mcmcpost report`` and ``mcmcpost doctor``: files, JSON, exit codes, and one-line errors."""

import json

import numpy as np
import pytest
import xarray
from cli_cases import refused
from html_cases import Reading
from ladder_cases import short_ladder

import mcmcpost
from mcmcpost.app import command_line as cli
from mcmcpost.app.edge import SETTING, doctor_text, examine
from mcmcpost.app.source import load_trace
from mcmcpost.core.runtime import version_of

QUICK = ["--method", "zv2"]


@pytest.fixture
def trace(tmp_path, rng):
    """A saved trace of exact draws of N(0, 1) × N(0, 1)."""
    draws = rng.normal(size=(4, 200, 2))
    path = tmp_path / "exact <b>.nc"
    mcmcpost.save_tree(mcmcpost.from_arrays(draws, -draws, names=("a", "b[0]")), path)
    return path


@pytest.mark.slow
def test_a_trace_ends_in_a_report(run, trace, tmp_path):
    done = run("report", trace, "-o", "report.html", "--expect", "p=exp(a)", *QUICK)
    assert done.code == 0
    assert done.err == ""
    assert done.out.startswith("report.html: 3 quantities, median gain ")
    assert done.out.endswith("scores pass\n")
    reading = Reading((tmp_path / "cwd" / "report.html").read_text())
    assert reading.problems == []
    assert f"Report on {trace.name}" in reading.texts("h1")
    assert {"a", "b[0]", "p"} <= set(reading.texts("th"))
    facts = reading.texts("dd")
    assert f"mcmcpost report '{trace}' -o report.html --expect 'p=exp(a)' --method zv2" in facts
    assert {"zv2", str(trace), "a, b[0], p"} <= set(facts)


@pytest.mark.slow
def test_chains_in_several_files_are_one_report(run, trace, tmp_path):
    tree = mcmcpost.load_tree(trace)
    for i in range(2):
        mcmcpost.save_tree(tree.isel(chain=slice(2 * i, 2 * i + 2)), f"part{i}.nc")
    done = run("report", "part0.nc", "part1.nc", "-o", "report.html", *QUICK, "--json")
    reduced = json.loads(run("reduce", trace, *QUICK, "--json").out)
    assert json.loads(done.out)["quantities"] == reduced["quantities"], done.err
    reading = Reading((tmp_path / "cwd" / "report.html").read_text())
    assert "Report on part0.nc and 1 more" in reading.texts("h1")
    assert "part0.nc, part1.nc" in reading.texts("dd")
    assert refused(run("report", "part0.nc", "part0.nc", "-o", "x.html"), "part0.nc twice")


@pytest.mark.slow
def test_the_summary_is_that_of_reduce(run, trace):
    written = json.loads(run("report", trace, "-o", "report.html", *QUICK, "--json").out)
    reduced = json.loads(run("reduce", trace, *QUICK, "--json").out)
    assert written["quantities"] == reduced["quantities"]
    assert written["score_check"] == "pass"
    assert written["bytes"] > 10_000


@pytest.mark.slow
def test_quantiles_and_chosen_variables_are_in_the_report(run, trace, tmp_path):
    options = ["--quantile", "0.5", "--var-names", "a", "--method", "zv1", "--json"]
    done = run("report", trace, "-o", "report.html", *options)
    rows = json.loads(done.out)["quantities"]
    assert [row["name"] for row in rows] == ["a", "a [0.5]"]
    assert rows == json.loads(run("reduce", trace, *options).out)["quantities"]
    reading = Reading((tmp_path / "cwd" / "report.html").read_text())
    assert reading.problems == []
    assert {"a", "a [0.5]"} <= set(reading.texts("th"))
    assert "b[0]" not in reading.texts("th")
    assert refused(run("report", trace, "-o", "other.html", "--quantile", "5"), "inside (0, 1)")


@pytest.mark.slow
def test_intervals_are_in_the_report(run, trace, tmp_path):
    options = ["--ci", "0.5", "--ci-kind", "hdi", "--var-names", "a", "--method", "zv1", "--json"]
    rows = json.loads(run("report", trace, "-o", "report.html", *options).out)["quantities"]
    assert [row["name"] for row in rows] == ["a", "a [hdi50_lb]", "a [hdi50_ub]"]
    assert rows == json.loads(run("reduce", trace, *options).out)["quantities"]
    reading = Reading((tmp_path / "cwd" / "report.html").read_text())
    assert reading.problems == []
    assert {"a", "a [hdi50_lb]", "a [hdi50_ub]"} <= set(reading.texts("th"))
    assert any(
        "the posterior mean and the intervals of 1 quantity" in text.lower()
        for text in reading.texts("p")
    )
    assert refused(run("report", trace, "-o", "other.html", "--ci", "89"), "(0, 1)")


@pytest.mark.slow
def test_an_existing_report_is_kept_unless_forced(run, trace, tmp_path):
    taken = tmp_path / "taken.html"
    taken.write_text("precious")
    assert refused(run("report", trace, "-o", taken, *QUICK), "which exists", "--force")
    assert taken.read_text() == "precious"
    assert run("report", trace, "-o", taken, "--force", *QUICK).code == 0
    assert Reading(taken.read_text()).problems == []


@pytest.mark.slow
def test_bad_input_is_one_line(run, trace, tmp_path, rng):
    draws = rng.normal(size=(4, 200, 1))
    tree = mcmcpost.from_arrays(draws, -draws)
    del tree["sample_stats"]
    mcmcpost.save_tree(tree, tmp_path / "noscores.nc")
    mcmcpost.save_tree(
        mcmcpost.from_arrays(draws, draws, allow_bad_scores=True), tmp_path / "wrong.nc"
    )
    (tmp_path / "foreign.nc").write_text("not netCDF")
    out = ["-o", "report.html"]
    assert refused(run("report", tmp_path / "noscores.nc", *out), "attach_scores")
    assert refused(run("report", tmp_path / "wrong.nc", *out), "sign")
    assert refused(run("report", tmp_path / "foreign.nc", *out), "netCDF")
    assert refused(run("report", "missing.nc", *out), "missing.nc")
    assert refused(run("report", "model.py", *out), "mcmcpost sample")
    assert refused(run("report", trace, "-o", "report.pdf"), ".html")
    assert refused(run("report", trace, "-o", "nowhere/report.html"), "existing folder")
    assert refused(
        run("report", "missing.nc", "-o", "/proc/report.html"), "folder that can be written to"
    )
    assert refused(run("report", trace, *out, "--expect", "q=missing"), "not among the variables")
    assert refused(run("report", trace, *out, "--expect", "a=a"), "not taken yet")
    assert run("report", trace).code == 2
    assert run("report", trace, *out, "--method", "magic").code == 2
    assert not list((tmp_path / "cwd").iterdir())


@pytest.mark.slow
def test_a_report_of_a_trace_that_stays_in_its_file_comes_from_sums(
    run, trace, tmp_path, monkeypatch
):
    pytest.importorskip("dask")
    monkeypatch.setattr("mcmcpost.trees.files.LAZY", 1_000)
    monkeypatch.setattr("mcmcpost.core.arrays.LARGE", 1_000)
    done = run("report", trace, "-o", "report.html", "--quantile", "0.9", *QUICK)
    assert done.code == 0
    reading = Reading((tmp_path / "cwd" / "report.html").read_text())
    assert reading.problems == []
    assert "4 chains of 200 draws, 2 unconstrained parameters" in reading.texts("dd")
    # Runs of draws say nothing about lags.
    assert "Gain per quantity" in reading.texts("h2")
    assert "What the control variates leave" not in reading.texts("h2")


def test_a_missing_extra_is_the_users_error(run, trace, monkeypatch):
    monkeypatch.setattr("mcmcpost.app.canvas.find_spec", lambda _: None)
    assert refused(
        run("report", trace, "-o", "report.html", "--method", "plain"), "mcmcpost[report]"
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Score gate")
def test_warnings_are_said_once(run, tmp_path, rng):
    draws = rng.normal(size=(4, 200, 1)) + np.array([0.0, 0.0, 0.0, 3.0])[:, None, None]
    mcmcpost.save_tree(
        mcmcpost.from_arrays(draws, -draws, allow_bad_scores=True), tmp_path / "stuck.nc"
    )
    done = run(
        "report",
        tmp_path / "stuck.nc",
        "-o",
        "report.html",
        "--allow-bad-scores",
        "--method",
        "plain",
    )
    assert done.code == 0
    rhat, gate = done.err.splitlines()
    assert rhat.startswith("mcmcpost: warning: R-hat 1.")
    assert gate.startswith("mcmcpost: warning: Score gate: ")


@pytest.mark.slow
@pytest.mark.parametrize(("scratch", "times"), [(2**27, 1), (1_000, 2)])
def test_a_ladder_is_read_again_only_for_what_stayed_in_its_file(
    tmp_path, rng, monkeypatch, scratch, times
):
    pytest.importorskip("dask")
    mcmcpost.save_tree(
        mcmcpost.ladder_from_arrays(*short_ladder(rng)[0][:5]), tmp_path / "ladder.nc"
    )
    read = []

    def load_tree(*paths, **options):
        read.append(paths)
        return load(*paths, **options)

    load = mcmcpost.load_tree
    monkeypatch.setattr(mcmcpost, "load_tree", load_tree)
    monkeypatch.setattr("mcmcpost.trees.files.LAZY", scratch)
    tree = load_trace([tmp_path / "ladder.nc"], None, None)
    assert len(read) == times
    assert not any(variable.chunks for node in tree.subtree for variable in node.data_vars.values())


@pytest.mark.slow
def test_a_ladder_has_its_evidence_in_the_report(run, tmp_path, rng):
    drawn, path = short_ladder(rng)
    mcmcpost.save_tree(mcmcpost.ladder_from_arrays(*drawn[:5]), tmp_path / "ladder.nc")
    done = run("report", tmp_path / "ladder.nc", "-o", "report.html", *QUICK, "--json")
    found = json.loads(done.out)
    assert abs(found["evidence"]["log_evidence"] - float(path.log_evidence(np.ones(1))[0])) < 1e-6
    assert found["quantities"][0]["status"] == "on_trust"
    assert "Model evidence" in Reading((tmp_path / "cwd" / "report.html").read_text()).texts("h2")


def test_doctor_says_what_there_is(run):
    done = run("doctor")
    assert done.code == 0
    lines = dict(line.split(None, 1) for line in done.out.splitlines())
    assert lines["precision"] == "float64"
    assert lines["mcmcpost"] == mcmcpost.__version__
    assert {"python", "jax", "numpyro", "diffrax", "arviz", "devices", "cores"} <= set(lines)
    facts = json.loads(run("doctor", "--json").out)
    assert facts["versions"]["jax"] == version_of("jax")
    assert facts["cpu_devices"] >= 1
    assert facts["devices"][0].startswith(f"{facts['backend']}:")
    assert facts["optional"]["matplotlib"] == version_of("matplotlib")


def test_doctor_gives_hints(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    monkeypatch.setattr("mcmcpost.app.edge.version_of", lambda _: None)
    monkeypatch.setattr("jax.devices", lambda *_: __import__("jax").local_devices()[:1])
    facts = examine()
    assert any(f"{SETTING}=3" in hint for hint in facts["hints"])
    assert any("mcmcpost[report]" in hint for hint in facts["hints"])
    text = doctor_text(facts)
    assert "not installed (traces of PyMC)" in text
    assert text.count("\nhint: ") == 2
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0}, raising=False)
    assert not any(SETTING in hint for hint in examine()["hints"])


def test_exit_codes_and_completion_are_in_the_help(run):
    text = " ".join(run("--help").out.split())
    assert "Exit codes: 0 done; 1 a fault of mcmcpost" in text
    assert "2 bad input or usage" in text
    assert "--install-completion" in text
    assert {"report", "doctor"} <= set(text.split())


def test_a_shell_is_offered_completion(monkeypatch, capsys):
    monkeypatch.setenv("_MCMCPOST_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "mcmcpost re")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit):
        cli.app(prog_name="mcmcpost")
    assert capsys.readouterr().out.split() == ["reduce", "report"]


def test_an_import_that_fails_by_itself_keeps_its_traceback():
    from mcmcpost.app.edge import is_user_error

    with pytest.raises(ImportError) as info:
        __import__("no_such_module_of_ours")
    assert not is_user_error(info.value)


@pytest.mark.slow
def test_a_ladder_s_report_knows_all_of_its_rungs(run, tmp_path, rng):
    """Divergences at any temperature and gradients of another density are told, not those of the
    last rung alone."""
    drawn, _ = short_ladder(rng)
    temperatures, draws, likelihood, slopes, prior = drawn[:5]
    wrong = np.where(temperatures[:, None] < 1, 0.5, 0.0)
    tree = mcmcpost.ladder_from_arrays(
        temperatures, draws, likelihood, slopes + wrong, prior - wrong
    )
    stats = tree["sample_stats"].to_dataset()
    divergent = np.zeros(likelihood.shape)
    divergent[0, :3, 0] = 1
    tree["sample_stats"] = xarray.DataTree(
        stats.assign(diverging=(stats["log_likelihood_total"].dims, divergent))
    )
    mcmcpost.save_tree(tree, tmp_path / "ladder.nc")
    done = run("report", tmp_path / "ladder.nc", "-o", "report.html", "--json", *QUICK)
    page = (tmp_path / "cwd" / "report.html").read_text()
    assert "3 divergent transitions" in page
    assert "bad_scores)." in page
    assert "Evidence: at t = " in page
    assert json.loads(done.out)["divergences"] == 3


@pytest.mark.slow
def test_a_report_does_not_claim_what_was_not_recorded(run, trace, tmp_path):
    done = run("report", trace, "-o", "report.html", "--json", *QUICK)
    assert json.loads(done.out)["divergences"] is None
    assert (
        "Divergent transitions were not recorded." in (tmp_path / "cwd" / "report.html").read_text()
    )
