"""Every benchmark has a quick size, and every table a command that its benchmark takes."""

import importlib
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as runner, _command, _table, collect

ROOT = Path(__file__).parents[2]
FILES = [*(ROOT / "benchmarks").glob("*/[a-z]*.py"), ROOT / "benchmarks" / "gpu.py"]
MODULES = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in FILES)


class Parsed(Exception):
    """The parser of a benchmark, raised in place of running it."""


@pytest.fixture
def parser_of(monkeypatch):
    """Return a function from the name of a benchmark to its parser."""

    def parsed(parser, args=None):
        raise Parsed(parser, args)

    def find(module):
        with monkeypatch.context() as patch:
            patch.setattr(_command.Command, "parse_args", parsed)
            with pytest.raises(Parsed) as found:
                importlib.import_module(module).main()
        return found.value.args[0]

    return find


@pytest.mark.slow
def test_every_benchmark_has_a_quick_size_that_it_takes(parser_of):
    for module in MODULES:
        parser = parser_of(module)
        options = parser.parse_args(["--quick"])
        assert options.quick, module
        small = vars(parser.parse_args(shlex.split(parser.quick)))
        assert vars(options) == small | {"quick": True}, module
        assert not parser.quick or small != vars(parser.parse_args([])), module


@pytest.mark.slow
def test_what_should_run_on_an_accelerator_runs_from_a_clone_without_arviz():
    """Machines with an accelerator often have JAX, NumPyro and diffrax, and neither ArviZ nor this
    package."""
    missing = """
import importlib.metadata, runpy, sys
def absent(name, path=None, target=None):
    absent = "arviz arviz_base arviz_stats arviz_plots pandas typer xarray zarr".split()
    if name.split(".")[0] in absent:
        raise ImportError(f"{name} is not here")
sys.meta_path.insert(0, type("Finder", (), {"find_spec": staticmethod(absent)}))
def version(name, installed=importlib.metadata.version):
    if name in ("arviz", "mcmcpost"):
        raise importlib.metadata.PackageNotFoundError(name)
    return installed(name)
importlib.metadata.version = version
sys.argv = ["benchmarks/gpu.py", "--small"]
runpy.run_module("benchmarks.gpu", run_name="__main__")
"""
    before = {*_table.RESULTS.iterdir()}
    done = subprocess.run(
        [sys.executable, "-c", missing], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    table = done.stdout[done.stdout.index("\nWhat should run") :].splitlines()
    for piece, rows in {"sampling": 2, "sums": 2, "products": 4, "solves": 1}.items():
        lines = [line.split() for line in table if line.split()[1:2] == [piece]]
        assert len(lines) == rows
        for line in lines:
            error = float(line[-3])  # before the words "not told", of the peak of memory
            assert error < (1e-5 if "float32" in line else 1e-7), line
    assert "arviz none" in table[-1]
    assert {*_table.RESULTS.iterdir()} == before


@pytest.mark.slow
def test_every_recorded_command_is_one_that_its_benchmark_takes(parser_of):
    parsers = {module: parser_of(module) for module in MODULES}
    places = {"--peers": Path(sys.executable), "--shared": ROOT, "--diamonds": ROOT}
    for page in collect.PAGES.values():
        for command in runner.recorded(page.tables):
            _, _, module, *words = runner.filled(command, places)
            parsers[module].parse_args(words)  # ends the program where it does not take a word


def test_every_benchmark_belongs_to_a_subject():
    commands = {command for page in collect.PAGES.values() for command in runner.quick(page.tables)}
    assert commands == {f"python -m {module} --quick" for module in MODULES}


def test_quick_options_come_after_those_that_are_given(monkeypatch):
    parser = _command.Command("Title.\n\nMore.", quick="--sizes 1 2")
    parser.add_argument("--sizes", nargs="+", type=int)
    assert parser.parse_args(["--sizes", "7", "--quick"]).sizes == [1, 2]
    monkeypatch.setattr(sys, "argv", ["x", "--sizes", "7"])
    assert parser.parse_args().sizes == [7]


def test_a_quick_run_prints_its_table_and_keeps_none(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(_table, "RESULTS", tmp_path)
    monkeypatch.setattr(sys, "argv", [str(ROOT / "benchmarks/gp/gradient_gram.py"), "--quick"])
    _table.emit("name", "A title", [{"column": 1.5}])
    assert "column" in capsys.readouterr().out
    assert not [*tmp_path.iterdir()]
    monkeypatch.setattr(sys, "argv", sys.argv[:1])
    _table.emit("name", "A title", [{"column": 1.5}])
    assert json.loads((tmp_path / "name.json").read_text())["rows"] == [{"column": 1.5}]


def test_what_is_missing_is_said_in_one_line(tmp_path):
    parser = _command.Command("Title.", quick="")
    parser.add_argument("--peers")
    with pytest.raises(SystemExit, match=r"^/no/python is no program: .* with --peers$"):
        parser.parse_args(["--peers", "/no/python"])
    with pytest.raises(SystemExit, match=r"data is missing: name its place with --shared$"):
        _command.needed(tmp_path / "data", "--shared")
    command = "python -m benchmarks.evidence.peers --shared DATA"
    with pytest.raises(SystemExit, match=re.escape(f"needs DATA, so give --shared: {command}")):
        runner.filled(command, {"--peers": None, "--shared": None})
    assert runner.filled(command, {"--peers": None, "--shared": tmp_path})[1:] == [
        *("-m", "benchmarks.evidence.peers", "--shared", str(tmp_path))
    ]


def test_subjects_and_commands_are_listed(capsys):
    runner.main([])
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [*collect.PAGES]
    runner.main(["scale", "--list"])
    assert capsys.readouterr().out.splitlines() == runner.recorded(collect.PAGES["scale"].tables)
    runner.main(["scale", "--table", "short_chains", "--quick", "--list"])
    assert capsys.readouterr().out == "python -m benchmarks.scale.short_chains --quick\n"
    with pytest.raises(SystemExit):
        runner.main(["scale", "--table", "errors", "--list"])


def test_commands_are_run_one_after_the_other_and_failures_are_named(monkeypatch, tmp_path):
    runs = []

    def run(words, *, cwd, env, check):
        runs.append((words, cwd, env.get(_command.SHARED), check))
        return subprocess.CompletedProcess(words, "short_chains" in words[-2])

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(
        SystemExit, match=r"these failed:\npython -m benchmarks\.scale\.short_chains --quick$"
    ):
        runner.main(["scale", "--quick", "--shared", str(tmp_path)])
    names = ("scale.processes", "scale.short_chains", "scale.projections", "gpu")
    assert [words for words, *_ in runs] == [
        [sys.executable, "-m", f"benchmarks.{name}", "--quick"] for name in names
    ]
    assert {tuple(rest) for _, *rest in runs} == {(ROOT, str(tmp_path), False)}
