"""Stan without Python: what CmdStan wrote, as CmdStan 2.37.0 did (tests/data/README.md), on the
command line."""

import json
import shutil
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import bridgestan_case
import numpy as np
import pandas
import pytest
from cli_cases import refused
from interop_cases import DATA

import mcmcpost as mp
from mcmcpost.trees import read_trace

DIAGNOSTICS = [DATA / f"cmdstan_diagnostic_{chain}.csv" for chain in (1, 2)]
OUTPUTS = [DATA / f"cmdstan_output_{chain}.csv" for chain in (1, 2)]
ZV2 = ("--method", "zv2", "--json")


def rows(done):
    assert done.code == 0, done.err
    return {row["name"]: row for row in json.loads(done.out)["quantities"]}


@pytest.fixture
def outputs(tmp_path):
    """The outputs alone, in a folder of their own."""
    folder = tmp_path / "alone"
    folder.mkdir()
    return [Path(shutil.copy(path, folder)) for path in OUTPUTS]


@pytest.mark.slow
def test_outputs_are_reduced_with_the_scores_beside_them(run, outputs):
    whole = mp.expectation(mp.from_cmdstan(DIAGNOSTICS, OUTPUTS), method="zv2")
    found = rows(run("reduce", *OUTPUTS, *ZV2))
    assert list(found) == list(whole.names)
    np.testing.assert_array_equal([row["mean_cv"] for row in found.values()], whole.mean)
    assert found["sigma_obs"]["gain"] > 2
    for given in (
        ["--diagnostics", DIAGNOSTICS[0], "--diagnostics", DIAGNOSTICS[1]],
        # as the shell makes it of a pattern: the second is an argument
        ["--diagnostics", *DIAGNOSTICS],
        DIAGNOSTICS,
    ):
        assert rows(run("reduce", *outputs, *given, *ZV2)) == found


@pytest.mark.parametrize(
    ("output", "diagnostic"),
    [
        ("cmdstan_output_{}.csv", "cmdstan_diagnostic_{}.csv"),  # as the header says
        ("run-7_{}.csv", "cmdstan_diagnostic_{}.csv"),  # the outputs were renamed
        ("output-{}.csv", "diagnostic-{}.csv"),
        ("eight_{}.csv", "eight-diagnostic_{}.csv"),  # CmdStanPy
        ("my.output_{}.csv", "my.diagnostic_{}.csv"),
    ],
)
def test_diagnostic_files_are_found_by_name(tmp_path, output, diagnostic):
    paths = []
    for chain in (1, 2):
        paths.append(shutil.copy(OUTPUTS[chain - 1], tmp_path / output.format(chain)))
        shutil.copy(DIAGNOSTICS[chain - 1], tmp_path / diagnostic.format(chain))
    tree = mp.load_tree(*paths)
    assert tree["sample_stats"]["gradient"].shape == (2, 100, 5)
    assert {"sigma_obs", "trend"} <= set(tree["posterior"].data_vars)
    assert (tree.attrs["thin"], tree.attrs["num_warmup"], tree.attrs["seed"]) == (2, 500, 5)


def test_diagnostic_files_alone_are_said_to_be_unconstrained(run):
    with pytest.warns(UserWarning, match=r"unconstrained, as .* Give the output files beside"):
        tree = mp.load_tree(*DIAGNOSTICS)
    assert "trend" not in tree["posterior"]
    # The command line prints what would be an error in tests.
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        done = run("info", DIAGNOSTICS[0])
    assert (done.code, done.err.count("Give the output files")) == (0, 1)


def test_of_a_killed_run_the_draws_of_both_files_are_kept(outputs):
    lines = outputs[0].read_text().splitlines(keepends=True)
    # without the times at the end, which a killed run does not write
    last = max(i for i, line in enumerate(lines) if line[0] not in "#l")
    outputs[0].write_text("".join(lines[: last - 19]) + lines[last - 19][:20])
    with (
        pytest.warns(UserWarning, match=r"the last line of .* has no end"),
        pytest.warns(UserWarning, match=r"80 draws in .* and 100 in .*The first 80 are kept"),
        pytest.warns(UserWarning, match=r"1 of 80, 1 of 100 draws.*20 of 180 draws left out"),
    ):
        tree = mp.load_tree(*outputs, *DIAGNOSTICS)
    whole = mp.from_cmdstan(DIAGNOSTICS)
    np.testing.assert_array_equal(read_trace(tree).scores, read_trace(whole).scores[:, :80])
    np.testing.assert_array_equal(
        tree["posterior"]["m"].values, mp.load_tree(*OUTPUTS)["posterior"]["m"].values[:, :80]
    )


def test_chains_of_processes_of_their_own_have_their_own_names(tmp_path):
    for i, chain in enumerate("ab"):
        for source, name in (
            (OUTPUTS[i], f"{chain}.csv"),
            (DIAGNOSTICS[i], f"scores of {chain}.csv"),
        ):
            text = source.read_text().replace("file = cmdstan_output", f"file = {chain}")
            (tmp_path / name).write_text(
                text.replace("= cmdstan_diagnostic", f"= elsewhere/scores of {chain}")
            )
    trace = read_trace(mp.load_tree(tmp_path / "a.csv", tmp_path / "b.csv"))
    np.testing.assert_array_equal(trace.scores, read_trace(mp.from_cmdstan(DIAGNOSTICS)).scores)


def test_warm_up_and_thinning_are_those_of_the_header(run, tmp_path):
    for source, name in (
        (OUTPUTS[0], "cmdstan_output.csv"),
        (DIAGNOSTICS[0], "cmdstan_diagnostic.csv"),
    ):
        text = source.read_text()
        first = next(line for line in text.splitlines() if line[:1] not in "#l")
        warm = "\n".join([first] * 250) + "\n"  # 500 iterations thinned by 2
        text = text.replace("save_warmup = false (Default)", "save_warmup = 1")
        (tmp_path / name).write_text(text.replace(first + "\n", warm + first + "\n", 1))
    done = run("info", tmp_path / "cmdstan_output.csv")
    lines = {line[:14].strip(): line[14:].strip() for line in done.out.splitlines()}
    assert lines["draws"] == "1 chain of 100 draws"
    assert (lines["thin"], lines["num warmup"]) == ("2", "500")
    assert "5 parameters: pass" in done.out


def test_outputs_without_scores_say_how_to_get_them(run, outputs):
    done = run("reduce", *outputs)
    assert refused(
        done, "cmdstan_diagnostic.csv, with --diagnostics", "--model FILE.stan --data FILE.json"
    )
    outputs[0].write_text(
        outputs[0].read_text().replace("diagnostic_file = cmdstan_diagnostic.csv", "")
    )
    assert refused(
        run("reduce", outputs[0]),
        "diagnostic_file=diagnostic.csv",
        "--model FILE.stan --data FILE.json",
    )


def test_files_that_do_not_belong_together(run, outputs, tmp_path):
    folder = outputs[0].parent
    shutil.copy(DIAGNOSTICS[0], folder)
    assert refused(run("reduce", *outputs), "beside each output", f"none for {outputs[1]}")
    shutil.copy(DIAGNOSTICS[1], folder / DIAGNOSTICS[0].name)  # each of the other chain
    shutil.copy(DIAGNOSTICS[0], folder / DIAGNOSTICS[1].name)
    assert refused(run("reduce", *outputs), "got another lp__")
    assert refused(
        run("reduce", *outputs, DIAGNOSTICS[0]), "as many outputs as diagnostic files, got 2 and 1"
    )
    assert refused(
        run("reduce", *OUTPUTS, "--diagnostics", "none.csv"), "an existing file, got none.csv"
    )
    trace = mp.save_tree(mp.load_tree(*OUTPUTS), tmp_path / "trace.nc")
    assert refused(run("reduce", OUTPUTS[0], trace), "CmdStan's own files alone")
    # They were taken for more chains, without a word.
    assert refused(
        run("reduce", trace, "--diagnostics", DIAGNOSTICS[0]), f"got {trace}. Leave it out"
    )
    assert refused(run("reduce", *OUTPUTS, "--diagnostics", trace), "with `output diagnostic_file=")
    other = tmp_path / "other.csv"
    other.write_text(outputs[1].read_text().replace("trend.8", "extra"))
    other.with_name("first.csv").write_text(outputs[0].read_text())
    with pytest.raises(mp.InputError, match="the parameters k, m"):
        mp.load_tree(tmp_path / "first.csv", other)


@pytest.mark.parametrize(
    "change", [lambda t: b"\xef\xbb\xbf" + t, lambda t: t.replace(b"\n", b"\r\n")]
)
def test_files_that_an_editor_has_saved(tmp_path, change):
    for source in (OUTPUTS[0], DIAGNOSTICS[0]):
        (tmp_path / source.name).write_bytes(change(source.read_bytes()))
    tree = mp.load_tree(tmp_path / OUTPUTS[0].name)
    np.testing.assert_array_equal(
        read_trace(tree).scores, read_trace(mp.from_cmdstan(DIAGNOSTICS[0])).scores
    )


def test_draws_that_are_not_of_mcmc_are_refused(run, outputs):
    outputs[0].write_text(outputs[0].read_text().replace("method = sample", "method = variational"))
    assert refused(run("reduce", outputs[0]), "method = variational", "method=sample")


def test_a_chain_that_was_cut_in_warm_up_has_no_draws(outputs):
    text = outputs[0].read_text().replace("save_warmup = false", "save_warmup = true")
    outputs[0].write_text(text)
    with pytest.raises(mp.InputError, match=r"draws after warm-up in .*got none"):
        mp.load_tree(outputs[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_chains_of_unequal_lengths_are_summed(run, tmp_path):
    for source in (*OUTPUTS, *DIAGNOSTICS):
        lines = source.read_text().splitlines(keepends=True)
        last = max(i for i, line in enumerate(lines) if line[0] not in "#l")
        cut = lines if source.stem.endswith("1") else lines[: last - 19] + lines[last + 1 :]
        (tmp_path / source.name).write_text("".join(cut))
    names = [tmp_path / path.name for path in OUTPUTS]
    line = (
        r"mp\.expectation\(mp\.moments\(one\) \+ mp\.moments\(other\)\), on the command line "
        r"mcmcpost reduce ONE OTHER"
    )
    one, other = map(mp.load_tree, names)
    with pytest.warns(UserWarning, match=rf"1 of 100, 1 of 80 draws.*20 of 180 draws.*{line}"):
        tree = mp.load_tree(*names)
    np.testing.assert_array_equal(read_trace(tree).draws[0], read_trace(one).draws[0, :80])
    np.testing.assert_array_equal(read_trace(tree).draws[1], read_trace(other).draws[0])
    # Quantiles need draws side by side: the same as of files that were cut by hand.
    done = run("reduce", *names, "--quantile", "0.05", "--spread", "sd", "--json")
    assert "20 of 180 draws left out" in done.err
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the chains are too short for a diagnostic to be calm
        expected = mp.quantile(tree, 0.05)
    found = {row["name"]: row["mean_cv"] for row in json.loads(done.out)["quantities"]}
    known = dict(zip(expected.names, expected.mean, strict=True))
    assert found["m [0.05]"] == pytest.approx(known["m [0.05]"], rel=1e-9)
    expected = mp.expectation(mp.moments(one, ["m"], "zv2") + mp.moments(other, ["m"], "zv2"))
    beside = [word for path in DIAGNOSTICS for word in ("--diagnostics", tmp_path / path.name)]
    for more in ([], beside):
        done = run(
            "reduce",
            *names,
            *more,
            "--json",
            "--method",
            "zv2",
            "--var-names",
            "m",
            "-o",
            f"{len(more)}.nc",
        )
        assert "note: chains of different lengths: each trace is summed" in done.err
        (found,) = json.loads(done.out)["quantities"]
        assert (found["name"], found["mean_cv"]) == ("m", pytest.approx(expected.mean[0], rel=1e-9))
        assert json.loads(run("info", f"{len(more)}.nc", "--json").out)
    done = run("moments", *names, "-o", "sums.nc", "--json", "--method", "zv2")
    assert (done.code, json.loads(done.out)["draws"]) == (0, 180)
    assert len(rows(run("reduce", "sums.nc", "--json"))) == 13


@pytest.fixture
def stan_program(tmp_path, rng, monkeypatch):
    """Outputs of a program with sigma and a (2, 2) matrix z, as CmdStan has them, and BridgeStan
    that compiles it."""
    compiled = []

    def compile_model(path):
        compiled.append(path)
        return path.with_suffix(".so")

    def model(library, data, *, warn):  # noqa: ARG001  (the real signature)
        if data is None:
            raise RuntimeError(
                "Exception: variable does not exist; processing stage=data initialization"
            )
        assert json.loads(Path(data).read_text()) == {"n": 1}
        return bridgestan_case.StanModel()

    stand_in = SimpleNamespace(compile_model=compile_model, StanModel=model)
    monkeypatch.setitem(sys.modules, "bridgestan", stand_in)
    names = ["sigma", "z.1.1", "z.2.1", "z.1.2", "z.2.2"]
    paths = []
    for chain in range(4):
        sigma, z = np.sqrt(rng.chisquare(2.0, size=250)), rng.normal(size=(250, 4))
        lp = 2 * np.log(sigma) - sigma**2 / 2 - (z**2).sum(axis=1) / 2
        table = pandas.DataFrame(
            np.column_stack([lp, np.ones(250), sigma, z]), columns=["lp__", "accept_stat__", *names]
        )
        paths.append(tmp_path / f"output_{chain + 1}.csv")
        paths[-1].write_text("# method = sample (Default)\n" + table.to_csv(index=False))
    (tmp_path / "m.stan").write_text("parameters { real<lower=0> sigma; matrix[2, 2] z; }")
    (tmp_path / "data.json").write_text('{"n": 1}')
    return paths, tmp_path / "m.stan", tmp_path / "data.json", compiled


@pytest.mark.slow
def test_a_stan_program_gives_the_scores(run, stan_program, monkeypatch):
    """BridgeStan itself wants C++ sources from GitHub: tests/trees/test_interop_stan.py runs it
    where they are."""
    paths, program, data, compiled = stan_program
    found = rows(run("reduce", *paths, "--model", program, "--data", data, *ZV2))
    assert compiled == [program]
    assert list(found) == ["sigma", "z[0, 0]", "z[0, 1]", "z[1, 0]", "z[1, 1]"]
    assert all(abs(found[f"z[{i}, {j}]"]["mean_cv"]) < 1e-12 for i in (0, 1) for j in (0, 1))
    assert found["sigma"]["gain"] > 10
    report = run(
        "report",
        *paths,
        "--model",
        program,
        "--data",
        data,
        "--method",
        "zv2",
        "-o",
        "report.html",
    )
    assert report.out.endswith("scores pass\n")
    assert refused(run("reduce", *paths, "--model", program), "without data", "--data data.json")
    assert refused(
        run("reduce", *paths, "--model", program, "--data", "no.json"),
        "JSON file of data",
        "no.json",
    )
    assert refused(run("reduce", *paths, "--model", "no.stan"), "an existing program")
    assert refused(run("reduce", *paths, "--data", data), "--data", "Add --model")
    assert refused(
        run("reduce", *paths, "--model", program, "--option", "n=1"), "the option data alone"
    )
    assert refused(
        run("evidence", *paths[:1], "--model", program, "--ladder"), "a Python file", "not --ladder"
    )
    assert refused(run("sample", program, "-o", "trace.nc"), "CmdStan samples it")
    folder = program.with_name("folder.stan")
    folder.mkdir()
    assert refused(run("reduce", *paths, "--model", folder), "a program, got the folder")
    assert refused(run("reduce", program), "Sample it with CmdStan")
    monkeypatch.setitem(sys.modules, "bridgestan", None)
    done = run("reduce", *paths, "--model", program, "--data", data)
    assert refused(done, "the package bridgestan", "pip install bridgestan", "C++ compiler")


def test_what_bridgestan_lacks_is_one_line(run, stan_program, monkeypatch):
    paths, program, data, _ = stan_program
    for error, words in (
        (ValueError("Failed to download BridgeStan 2.9.0 from github.com."), "set BRIDGESTAN"),
        (
            RuntimeError(
                "Command make failed with code 2.\nstdout:\n\nstderr:\nSyntax error in "
                "'m.stan', line 1"
            ),
            "line 1",
        ),
    ):

        def fails(path, error=error):  # noqa: ARG001
            print("BridgeStan not found, downloading")
            raise error

        monkeypatch.setattr(sys.modules["bridgestan"], "compile_model", fails)
        assert refused(run("reduce", *paths, "--model", program, "--data", data), words)


def test_tables_of_cmdstanpy_know_their_chains(tmp_path):
    """CmdStanFit.draws_pd(): draw__ counts over all chains, iter__ within one."""
    parts = []
    for i, path in enumerate(OUTPUTS):
        table = pandas.read_csv(path, comment="#")
        n = len(table)
        places = {
            "chain__": i + 1.0,
            "iter__": np.arange(n) + 1.0,
            "draw__": np.arange(n) + n * i + 1.0,
        }
        parts.append(
            table.rename(
                columns=lambda c: c.replace("trend.", "trend[") + "]" * c.startswith("trend.")
            )
        )
        parts[-1] = parts[-1].assign(**places)
    path = tmp_path / "draws.csv"
    pandas.concat(parts).to_csv(path, index=False)
    tree, alone = mp.load_tree(path), mp.load_tree(*OUTPUTS)
    np.testing.assert_array_equal(tree["posterior"]["k"], alone["posterior"]["k"])
    assert tree["posterior"]["trend"].shape == (2, 100, 8)
    assert set(tree["posterior"].data_vars) == set(alone["posterior"].data_vars) | {"delta", "beta"}
    assert tree["sample_stats"]["diverging"].dtype == bool
