"""The command line: the main job from another directory, JSON, files, and one-line errors."""

import io
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import xarray
from cli_cases import refused

import mcmcpost
from mcmcpost.app import command_line as cli
from mcmcpost.app.edge import cache_directory, is_user_error, prepare_streams
from mcmcpost.app.options import MethodName, SpreadName
from mcmcpost.control import KINDS
from mcmcpost.core.runtime import digits_of, one_line, significant

GAUSSIAN = """
import numpyro
import numpyro.distributions as dist

def model(loc):
    numpyro.sample("x", dist.Normal(loc, 2.0))
    numpyro.sample("y", dist.Normal(0.0, 1.0).expand([2]).to_event(1))

def data(loc=1.0):
    if loc > 1e6:
        raise ValueError("data: expected a number below a million. Give one.")
    return {"loc": loc}

def quantities(draw):
    return {"square": draw["x"] ** 2}
"""
SHORT = ["--warmup", "200", "--draws", "150", "--chains", "2"]
# the kernels of auto take a minute to compile; .ci/run runs auto on the main job
QUICK = ["--method", "zv2"]
COLUMNS = ["mean", "sd", "mcse", "mean_cv", "mcse_cv", "gain", "method", "status"]


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "gaussian.py"
    path.write_text(GAUSSIAN)
    return path


@pytest.fixture
def trace(tmp_path, rng):
    """A saved trace of exact draws of N(0, 1) × N(0, 1)."""
    draws = rng.normal(size=(4, 200, 2))
    path = tmp_path / "exact.nc"
    mcmcpost.save_tree(mcmcpost.from_arrays(draws, -draws, names=("a", "b[0]")), path)
    return path


@pytest.mark.slow
def test_a_model_file_ends_in_the_table_and_sample_then_reduce_is_reduce(run, model):
    whole = run("reduce", model, *SHORT, *QUICK, "--option", "loc=3", "--json")
    sampled = run("sample", model, "-o", "trace.nc", *SHORT, "--option", "loc=3", "--json")
    assert json.loads(sampled.out)["chains"] == 2
    assert json.loads(sampled.out)["divergences"] == 0
    again = run("reduce", "trace.nc", *QUICK, "--json")
    assert json.loads(again.out) == json.loads(whole.out)
    done = run("reduce", "trace.nc", *QUICK)
    assert done.code == whole.code == 0
    header, *rows = done.out.splitlines()
    assert header.split() == COLUMNS
    table = {row.split()[0]: dict(zip(COLUMNS, row.split()[1:], strict=True)) for row in rows}
    assert list(table) == ["x", "y[0]", "y[1]", "square"]
    assert abs(float(table["x"]["mean_cv"]) - 3.0) < 1e-6
    assert abs(float(table["square"]["mean_cv"]) - 13.0) < 1e-6
    assert table["square"]["status"] == "exact"


@pytest.mark.slow
def test_sample_says_what_it_wrote(run, model):
    model.write_text(GAUSSIAN + 'print("loaded")\n')
    done = run("sample", model, "-o", "trace.zarr", *SHORT, "--option", "loc=3", "--seed", "7")
    assert done.out == "trace.zarr: 2 chains of 150 draws\n"  # and not what the file prints
    assert done.err == "loaded\n"
    tree = mcmcpost.load_tree("trace.zarr")
    assert tree.attrs["seed"] == 7
    assert 0 < tree.attrs["sampling_time"] < 600
    assert tree["generated_quantities"]["square"].shape == (2, 150)


@pytest.mark.slow
def test_sample_keeps_the_log_likelihood(run, tmp_path):
    (tmp_path / "normal.py").write_text(
        "import numpy as np, numpyro, numpyro.distributions as dist\n"
        "def model(y):\n"
        "    mu = numpyro.sample('mu', dist.Normal(0.0, 2.0))\n"
        "    numpyro.sample('y', dist.Normal(mu, 1.0), obs=y)\n"
        "def data():\n"
        "    return {'y': np.arange(5.0)}\n"
    )
    assert run("sample", tmp_path / "normal.py", "-o", "trace.nc", *SHORT).code == 0
    tree = mcmcpost.load_tree("trace.nc")
    assert tree["log_likelihood"]["y"].shape == (2, 150, 5)
    assert mcmcpost.elpd(tree, method="zv2").names[0] == "elpd_loo"


@pytest.mark.slow
def test_expressions_quantiles_and_the_written_tree(run, trace):
    done = run(
        "reduce",
        trace,
        "--expect",
        "p=a > 0 and `b[0]` > 0",
        "--expect",
        "bad=log(a)",
        "--quantile",
        "0.5",
        "--ci",
        "0.5",
        *QUICK,
        "--json",
        "-o",
        "out.nc",
    )
    assert done.code == 0
    rows = {row["name"]: row for row in json.loads(done.out)["quantities"]}
    assert abs(rows["p"]["mean"] - 0.25) < 0.1
    assert rows["bad"]["status"] == "undefined"
    assert rows["bad"]["mean"] is None
    # The quantiles of an indicator are zero and one, and so are the bounds of its interval.
    assert sum("[eti50_" in name for name in rows) == 6
    assert [name for name in rows if "0.5" in name] == ["a [0.5]", "b[0] [0.5]", "bad [0.5]"]
    assert "note: no quantiles of p: they are 0 or 1" in done.err
    tree = mcmcpost.load_tree("out.nc")
    assert {"posterior", "control_variates", "control_variates_quantiles"} <= set(tree.children)
    assert list(tree["control_variates"]["quantity"].values) == ["a", "b[0]", "p", "bad"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["eti", "hdi"])
def test_intervals_are_printed_and_saved_with_their_errors(run, trace, kind):
    asked, title = ["--ci", "0.5", "--ci-kind", kind], f"{kind}50"
    extra = ["--var-names", "a", "--method", "zv1", *asked]
    done = run("reduce", trace, *extra, "--quantile", "0.5", "--json", "-o", "out.nc")
    rows = {row["name"]: row for row in json.loads(done.out)["quantities"]}
    assert list(rows) == ["a", "a [0.5]", f"a [{title}_lb]", f"a [{title}_ub]"]
    for end, sign in (("lb", -1), ("ub", 1)):
        # of N(0, 1), exact
        assert abs(rows[f"a [{title}_{end}]"]["mean_cv"] - sign * 0.6744898) < 1e-6
        assert rows[f"a [{title}_{end}]"]["mcse_cv"] < 1e-3 < rows[f"a [{title}_{end}]"]["mcse"]
    kept = mcmcpost.load_tree("out.nc")
    assert list(kept["control_variates_intervals"]["quantity"].values) == [
        f"a [{title}_lb]",
        f"a [{title}_ub]",
    ]
    assert run("reduce", "out.nc", *extra[:4], "-o", "new.nc").code == 0
    assert not {"control_variates_quantiles", "control_variates_intervals"} & set(
        mcmcpost.load_tree("new.nc").children
    )
    assert f"a [{title}_lb]  " in run("reduce", trace, *extra).out


@pytest.mark.slow
def test_spreads_are_printed_and_saved(run, trace):
    asked = ["--method", "zv2", "--spread", "sd", "--spread", "correlation"]
    done = run("reduce", trace, *asked, "--json", "-o", "out.nc")
    rows = {row["name"]: row for row in json.loads(done.out)["quantities"]}
    assert list(rows) == ["a", "b[0]", "sd(a)", "sd(b[0])", "corr(a, b[0])"]
    # Degree two is exact for the moments of N(0, 1) × N(0, 1).
    assert [rows[name]["mean_cv"] for name in list(rows)[2:]] == pytest.approx(
        [1.0, 1.0, 0.0], abs=1e-9
    )
    kept = mcmcpost.load_tree("out.nc")
    assert list(kept["control_variates_correlation"]["quantity"].values) == ["corr(a, b[0])"]
    assert run("reduce", "out.nc", *asked[:4], "-o", "new.nc").code == 0
    kept = mcmcpost.load_tree("new.nc").children
    assert "control_variates_sd" in kept
    assert "control_variates_correlation" not in kept
    assert "sd(a)  " in run("reduce", trace, *asked).out
    assert refused(
        run("reduce", trace, "--var-names", "a", "--spread", "correlation"), "two integrands"
    )


@pytest.mark.slow
def test_elpd_is_printed_in_total_and_saved_for_each_observation(run, rng):
    # A flat prior and observations of precision 1 and 4: 1/p of the second has no variance under
    # precision 5.
    y, precision = np.array([0.5, -0.5]), np.array([1.0, 4.0])
    centre = (precision * y).sum() / 5
    mu = centre + rng.normal(size=(2, 500, 1)) / np.sqrt(5)
    tree = mcmcpost.from_arrays(mu, -5 * (mu - centre), names=("mu",))
    log_likelihood = 0.5 * np.log(precision / (2 * np.pi)) - 0.5 * precision * (y - mu) ** 2
    tree["log_likelihood"] = xarray.Dataset({"y": (("chain", "draw", "i"), log_likelihood)})
    mcmcpost.save_tree(tree, "with.nc")
    known = mcmcpost.elpd(tree)
    done = run("reduce", "with.nc", "--elpd", "y", "-o", "out.nc")
    assert [line.split()[0] for line in done.out.splitlines()[1:]] == [
        "mu",
        "elpd_loo",
        "lppd",
        "p_loo",
    ]
    assert "1 of 2 observations have a heavy tail: elpd_loo(y[1])" in done.err
    kept = mcmcpost.load_tree("out.nc")["control_variates_elpd"]
    assert list(kept["quantity"].values) == list(known.names)
    np.testing.assert_array_equal(kept["mean_cv"], known.mean)
    assert refused(run("reduce", "with.nc", "--elpd", "z"), "`var_name` among y")
    assert "ZeroVariance" not in run("reduce", "with.nc", "--elpd", "y", "--method", "plain").out


@pytest.mark.slow
def test_reduce_says_what_the_reduction_is_worth(run, trace):
    tree = mcmcpost.load_tree(trace)
    tree.attrs["sampling_time"] = 40.0
    mcmcpost.save_tree(tree, "timed.nc")
    # An event of a normal would be exact, which no sampling is.
    done = run("reduce", "timed.nc", "--expect", "p=exp(a)", "--method", "zv1")
    assert re.search(
        r"note: .*4 × 200 (more )?draws .* 40 s.* This reduction took \S+ (s|min)\.$",
        done.err,
        re.M,
    )
    assert "note" not in run("reduce", trace, "--method", "zv1").err


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (["--var-names", "b[0]"], ["b[0]"]),
        (["--var-names", "b[0]", "--var-names", "a"], ["b[0]", "a"]),
        (["--var-names", "~a"], ["b[0]"]),
        (["--var-names", "b", "--filter-vars", "like"], ["b[0]"]),
        (["--var-names", "^a$", "--filter-vars", "regex"], ["a"]),
        (["--var-names", "a", "--expect", "q=`b[0]` + a"], ["a", "q"]),
    ],
)
def test_variables_are_chosen_as_in_arviz(run, trace, asked, names):
    done = run("reduce", trace, "--method", "plain", "--json", *asked)
    assert [row["name"] for row in json.loads(done.out)["quantities"]] == names


def test_the_method_names_are_those_of_the_library():
    assert [name.value for name in MethodName] == list(mcmcpost.METHODS)
    assert {name.value for name in SpreadName} == {*KINDS}


@pytest.mark.parametrize("method", ["plain", "zv1", "zv2", "zv3"])
def test_the_method_is_the_one_asked_for(run, trace, method):
    done = run("reduce", trace, "--method", method, "--expect", "q=a**2", "--json")
    assert done.code == 0
    rows = {row["name"]: row for row in json.loads(done.out)["quantities"]}
    assert abs(rows["q"]["mean"] - 1.0) < 5 * rows["q"]["mcse"] + 1e-9
    assert (rows["q"]["gain"] > 2) == (method not in ("plain", "zv1"))


@pytest.mark.slow
def test_wrong_scores_are_refused_and_can_be_overridden(run, tmp_path, rng):
    draws = rng.normal(size=(4, 200, 2))
    tree = mcmcpost.from_arrays(draws, draws, allow_bad_scores=True)
    mcmcpost.save_tree(tree, tmp_path / "wrong.nc")
    assert refused(run("reduce", tmp_path / "wrong.nc"), "sign")
    done = run("reduce", tmp_path / "wrong.nc", *QUICK, "--allow-bad-scores")
    assert done.code == 0
    assert "bad_scores" in done.out


@pytest.mark.slow
def test_scores_that_are_not_finite_serve_plain_means_only(run, tmp_path, rng):
    draws = rng.normal(size=(4, 200, 2))
    scores = -draws
    scores[0, 3, 0] = np.inf
    path = tmp_path / "infinite.nc"
    mcmcpost.save_tree(mcmcpost.from_arrays(draws, scores, allow_bad_scores=True), path)
    for options in ([], ["--method", "zv1", "--allow-bad-scores"], ["--method", "plain"]):
        assert refused(run("reduce", path, *options), "chain 0, draw 3", 'method="plain" only')
    done = run("reduce", path, "--method", "plain", "--allow-bad-scores")
    assert (done.code, done.err) == (0, "")
    assert "bad_scores" in done.out


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('{"loc": loc}', '{"location": loc}', "arguments of `model(loc)`"),
        (
            '{"loc": loc}',
            '{"loc": int("abc")}',
            "line 12: expected `data` to run, got ValueError: invalid literal",
        ),
        ('{"loc": loc}', "open(loc)", "line 12: expected `data` to run"),
        ('draw["x"]', 'draw["z"]', "line 15: expected `quantities` to run, got KeyError: 'z'"),
        ('{"square": draw["x"] ** 2}', "None", "`quantities(draw)` to return a dict, got NoneType"),
        ("dist.Normal(loc, 2.0)", "dist.Poisson(loc)", "continuous latent sites, got discrete x"),
        (
            "dist.Normal(loc, 2.0)",
            "dist.Norm(loc, 2.0)",
            "line 6: expected `model` to run, got AttributeError",
        ),
        (
            "import numpyro\n",
            "import numpyroo\n",
            "line 2: expected `<module>` to run, got ModuleNotFoundError",
        ),
    ],
)
def test_a_mistake_in_a_model_file_is_one_line_before_sampling(
    run, model, monkeypatch, old, new, words
):
    monkeypatch.setattr("numpyro.infer.MCMC.run", lambda *_, **__: pytest.fail("sampled first"))
    assert old in GAUSSIAN
    model.write_text(GAUSSIAN.replace(old, new))
    assert refused(run("sample", model, "-o", "trace.nc"), f"Model file {model}", words)


def test_chains_that_mix_slowly_are_noted(run, tmp_path, rng):
    draws = rng.normal(size=(4, 400, 1)) + np.array([-0.3, -0.1, 0.1, 0.3])[:, None, None]
    tree = mcmcpost.from_arrays(draws, -draws)
    mcmcpost.save_tree(tree, tmp_path / "slow.nc")
    done = run("reduce", tmp_path / "slow.nc", "--method", "plain")
    assert re.fullmatch(
        r"mcmcpost: note: R-hat 1\.\d+ of x\[0\] is above 1\.02: the chains mix slowly\. .*\n",
        done.err,
    )


@pytest.mark.filterwarnings("always:Score gate", "always::mcmcpost.ConvergenceWarning")
def test_unconverged_chains_are_reported_on_stderr(run, tmp_path, rng):
    draws = rng.normal(size=(4, 200, 1)) + np.array([0.0, 0.0, 0.0, 3.0])[:, None, None]
    with pytest.warns(mcmcpost.ScoreWarning):
        tree = mcmcpost.from_arrays(draws, -draws, allow_bad_scores=True)
    mcmcpost.save_tree(tree, tmp_path / "stuck.nc")
    done = run("reduce", tmp_path / "stuck.nc", "--allow-bad-scores", "--method", "plain")
    assert re.search(r"mcmcpost: warning: R-hat 1\.\d+ of x\[0\] is above 1\.12: ", done.err)
    assert "mcmcpost: warning: Score gate: " in done.err
    assert all(line.startswith("mcmcpost: warning: ") for line in done.err.splitlines())


@pytest.mark.parametrize("name", ["taken.nc", "taken.zarr"])
def test_an_existing_output_is_refused_before_sampling(run, model, tmp_path, name, monkeypatch):
    monkeypatch.setattr(
        "mcmcpost.app.source.sample_posterior", lambda *_, **__: pytest.fail("sampled first")
    )
    taken = tmp_path / name
    taken.mkdir() if taken.suffix == ".zarr" else taken.write_bytes(b"precious")
    assert refused(run("sample", model, "-o", taken), "which exists", "Nothing is overwritten")
    assert refused(run("reduce", model, "-o", taken), "which exists")
    assert taken.is_dir() or taken.read_bytes() == b"precious"
    assert refused(run("sample", model, "-o", "trace.csv"), ".nc or .zarr")
    assert refused(run("sample", model, "-o", "nowhere/trace.nc"), "existing folder")
    assert refused(run("sample", model, "-o", "/proc/trace.nc"), "folder that can be written to")


def test_what_a_model_file_raises_itself_is_in_its_own_words(run, model):
    model.write_text(
        GAUSSIAN.replace('return {"loc": loc}', 'raise ValueError("Give another loc.")')
    )
    said = run("sample", model, "-o", "trace.nc").err
    assert said == f"mcmcpost: error: Model file {model}, line 12: Give another loc.\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", [["reduce"], ["report", "-o", "report.html"]])
def test_variables_that_are_not_numbers_are_left_out(run, trace, tmp_path, command):
    tree = mcmcpost.load_tree(trace)
    dims, date = ("chain", "draw"), np.datetime64("2026-01-01", "ns")
    more = {
        "observed": ("n", np.ones(3)),
        "label": (dims, np.full((4, 200), "a")),
        "date": (dims, np.full((4, 200), date)),
    }
    tree["posterior"] = tree["posterior"].to_dataset().assign(more)
    mcmcpost.save_tree(tree, tmp_path / "more.nc")
    done = run(
        command[0],
        tmp_path / "more.nc",
        *command[1:],
        "--expect",
        "q=a + 1",
        "--method",
        "zv1",
        "--json",
    )
    assert done.code == 0
    assert done.err.splitlines()[0].startswith(
        "mcmcpost: warning: left out observed, label, date: not a number"
    )
    assert [row["name"] for row in json.loads(done.out)["quantities"]] == ["a", "b[0]", "q"]
    with pytest.raises(TypeError, match="`label` to be a real number"):
        mcmcpost.expectation(tree, ["label"])


@pytest.mark.slow
def test_bad_input_is_one_line(run, trace, model, tmp_path):
    (tmp_path / "foreign.nc").write_text("not netCDF")
    (tmp_path / "cut.nc").write_bytes(trace.read_bytes()[:3000])
    (tmp_path / "empty.py").write_text("x = 1")
    assert refused(run("reduce", tmp_path / "foreign.nc"), "netCDF")
    assert refused(run("reduce", tmp_path / "cut.nc"), "netCDF")
    assert refused(run("reduce", "missing.nc"), "missing.nc")
    assert refused(run("reduce", "missing.py"), "missing.py")
    assert refused(run("reduce", tmp_path / "empty.py"), "no `model`")
    assert refused(run("reduce", trace, "--expect", "a > 0"), "NAME=EXPRESSION")
    assert refused(run("reduce", trace, "--expect", "q=exec(a)"), "not one of the functions")
    assert refused(run("reduce", trace, "--expect", "q=missing"), "not among the variables")
    assert refused(run("reduce", trace, "--expect", "a=a"), "not taken yet")
    assert refused(run("reduce", trace, "--expect", "q=a", "--expect", "q=a"), "distinct names")
    assert refused(run("reduce", trace, "--quantile", "95"), "inside (0, 1)")
    assert refused(run("reduce", trace, "--draws", "9"), "belong to a model file")
    assert refused(run("reduce", model, "--option", "prior=flat"), "options among ['loc']")
    assert refused(run("reduce", model, "--option", "loc=far"), "a number for the option loc")
    assert refused(run("reduce", model, "--option", "loc=1e7"), "data: expected a number below")


def test_usage_errors_end_with_code_two(run, trace):
    assert run("reduce", trace, "--method", "magic").code == 2
    assert run("sample", trace).code == 2
    assert run("reduce", trace, "--warmup", "0").code == 2


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch, trace):
    monkeypatch.setattr("mcmcpost.app.edge.cache_directory", lambda: None)
    monkeypatch.setattr(mcmcpost, "load_tree", lambda *_, **__: np.ones(2) @ np.ones(3))
    monkeypatch.setattr(sys, "argv", ["mcmcpost", "reduce", str(trace)])
    with pytest.raises(ValueError, match="mismatch"):
        cli.run()


def test_debug_shows_the_traceback(monkeypatch, trace):
    monkeypatch.setattr("mcmcpost.app.edge.cache_directory", lambda: None)
    monkeypatch.setenv("MCMCPOST_DEBUG", "1")
    monkeypatch.setattr(sys, "argv", ["mcmcpost", "reduce", str(trace), "--expect", "q"])
    with pytest.raises(ValueError, match="NAME=EXPRESSION"):
        cli.run()


@pytest.mark.slow
def test_the_program_from_another_directory(trace, tmp_path):
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    program = Path(sys.executable).with_name("mcmcpost")
    command = [program, "reduce", str(trace), "--method", "zv2"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.splitlines()[0].split() == COLUMNS
    module = [sys.executable, "-m", "mcmcpost", *command[1:-1], "no"]
    bad = subprocess.run(
        module, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert bad.returncode == 2
    assert bad.stderr.startswith("mcmcpost: error: Invalid value for '--method'")


def test_streams_that_are_closed_or_have_no_dash_are_no_error(monkeypatch):
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", None)
    prepare_streams()
    print("gain –", flush=True)
    print("lost", file=sys.stderr, flush=True)
    assert printed.getvalue() == b"gain ?\n"
    sys.stderr.close()


def test_processes_without_their_number_are_told(run, trace, monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "nonsense")
    done = run("info", trace)
    assert refused(done, "JAX_COORDINATOR_ADDRESS: expected HOST:PORT", "'nonsense': ")


@pytest.mark.parametrize("command", ["info", "reduce", "moments -o sums.nc", "evidence"])
def test_a_link_that_leads_round_is_a_missing_file(run, tmp_path, command):
    link = tmp_path / "loop.nc"
    link.symlink_to(link)
    words = f"an existing file, got {link}. It is a link to {link}, where there is no file"
    assert refused(run(*command.split(), link), words)


def test_version_and_help(run):
    assert run("--version").out == f"mcmcpost {mcmcpost.__version__}\n"
    assert "reduce" in run("--help").out


def test_warnings_are_one_line_and_told_once_a_command(capsys, monkeypatch):
    monkeypatch.setattr("mcmcpost.app.edge.cache_directory", lambda: None)
    with cli._program(), warnings.catch_warnings():
        warnings.simplefilter("always")
        for _ in range(2):
            warnings.warn("two\n  lines", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "mcmcpost: warning: two lines\n"


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.5502700, 0.00034, "0.5503"),
        (61.826, 0.2, "61.8"),
        (1234.5, 30.0, "1234"),
        (-0.6030, 1e-6, "-0.603000"),
        (1.5e-9, 1e-11, "1.50e-09"),
        (2.0, 0.0, "2"),
        (2.0, float("nan"), "2"),
        (float("nan"), 0.1, "nan"),
        (0.0, 0.01, "0.00"),
    ],
)
def test_means_are_printed_to_the_digits_of_their_error(value, error, text):
    assert digits_of(value, error) == text


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        *[
            (0.00123456, 2, "0.0012"),
            (1234.5, 3, "1234"),
            (3.14159, 3, "3.14"),
            (1e-7, 2, "1.0e-07"),
        ],
        *[(0.0, 2, "0"), (float("inf"), 2, "inf"), (5.1e9, 3, "5.10e+09")],
    ],
)
def test_significant_digits(value, digits, text):
    assert significant(value, digits) == text


def test_the_cache_honours_the_users_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "mcmcpost" / "jax"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_directory().parts[-3:] == (".cache", "mcmcpost", "jax")


def test_only_errors_raised_on_purpose_are_the_users():
    def raised(function):
        with pytest.raises(Exception) as info:  # noqa: PT011
            function()
        return info.value

    from mcmcpost.app.expressions import compile_expression

    assert is_user_error(raised(lambda: compile_expression("a.b")))
    assert is_user_error(FileNotFoundError("x"))
    assert not is_user_error(raised(lambda: significant("text", 2)))
    assert not is_user_error(raised(lambda: np.ones(2) @ np.ones(3)))
    assert one_line("a\n b") == "a b"


@pytest.mark.slow
def test_several_traces_are_reduced_as_one(run, tmp_path, rng):
    draws = rng.normal(size=(4, 200, 2))
    paths = []
    for i, chains in enumerate((draws[:2], draws[2:])):
        paths.append(
            mcmcpost.save_tree(mcmcpost.from_arrays(chains, -chains), tmp_path / f"{i}.nc")
        )
    whole = mcmcpost.save_tree(mcmcpost.from_arrays(draws, -draws), tmp_path / "whole.nc")
    several, one = (
        run("reduce", *given, "--method", "zv1", "--json") for given in (paths, [whole])
    )
    assert several.code == 0
    assert json.loads(several.out) == json.loads(one.out)


def test_a_quantity_has_a_name_of_its_own(run, model, tmp_path, rng):
    draws = rng.normal(size=(2, 100, 4)) * [2.0, 1.0, 1.0, 1.0] + [1.0, 0.0, 0.0, 0.0]
    variables = {"x": draws[..., 0], "y": draws[..., 1:3], "square": draws[..., 3]}
    dims = ("chain", "draw", "i")
    posterior = xarray.Dataset(
        {name: (dims[: array.ndim], array) for name, array in variables.items()}
    )
    tree = xarray.DataTree.from_dict({"posterior": posterior})
    mcmcpost.save_tree(tree, tmp_path / "taken.nc")
    assert refused(
        run("reduce", tmp_path / "taken.nc", "--model", model, *QUICK),
        "no variable of the trace",
        "square",
    )


def test_a_filter_needs_names(run, trace):
    assert refused(run("reduce", trace, "--filter-vars", "like"), "names in --var-names")


def test_names_with_a_comma_between_them_are_several_and_a_tilde_is_the_home(
    run, trace, monkeypatch
):
    monkeypatch.setenv("HOME", str(trace.parent))
    done = run("reduce", "~/exact.nc", *QUICK, "--var-names", "b[0],a", "-o", "~/out.nc")
    assert done.code == 0, done.err
    assert [line.split()[0] for line in done.out.splitlines()[1:]] == ["b[0]", "a"]
    assert trace.with_name("out.nc").exists()


def test_the_table_is_printed_before_the_output_is_written_and_its_name_is_tested_before_the_work(
    run, trace, tmp_path, monkeypatch
):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(xarray.DataTree, "to_netcdf", full)
    out = tmp_path / "out.nc"
    done = run("reduce", trace, *QUICK, "-o", out)
    assert (done.code, done.out.count("zv2") or done.out.count("ZeroVariance")) == (2, 2)
    assert done.err == f"mcmcpost: error: [Errno 28] No space left on device: '{out}'\n"
    assert refused(
        run("reduce", trace, *QUICK, "-o", tmp_path / f"{'x' * 300}.nc"), "name too long"
    )
