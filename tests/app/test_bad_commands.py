"""Commands that cannot be done: each ends with code 2 and words about what was wrong, before any
work."""

import json

import numpy as np
import pytest
from cli_cases import refused

import mcmcpost as mp

MODEL = """
import numpyro
import numpyro.distributions as dist

def model(loc):
    x = numpyro.sample("x", dist.Normal(loc, 2.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=0.5)

def data(loc=1.0):
    return {"loc": loc}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A trace, a ladder, a model file, and what is none of them."""
    place = tmp_path_factory.mktemp("commands")
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(4, 50, 2))
    mp.save_tree(mp.from_arrays(draws, -draws, names=("a", "b")), place / "trace.nc")
    levels = np.array([0.0, 0.5, 1.0])
    rungs = rng.normal(size=(2, 20, 3, 1)) / np.sqrt(1 + levels)[:, None]
    ladder = mp.ladder_from_arrays(levels, rungs, -0.5 * (rungs**2).sum(-1), -rungs, -rungs)
    mp.save_tree(ladder, place / "ladder.nc")
    evidence = mp.log_evidence(ladder, "plain", allow_bad_scores=True).to_json_dict()
    (place / "evidence.json").write_text(json.dumps(evidence))
    (place / "model.py").write_text(MODEL)
    (place / "no_model.py").write_text("x = 1\n")
    (place / "no_module.py").write_text("import foobar\n")
    (place / "no_syntax.py").write_text("def model(:\n")
    (place / "no_data.py").write_text("def model(x):\n    pass\n")
    (place / "not_callable.py").write_text("model = 3\ndata = 4\n")
    (place / "text.nc").write_text("text")
    (place / "cut.nc").write_bytes((place / "trace.nc").read_bytes()[:2000])
    (place / "empty.csv").write_text("")
    (place / "short.csv").write_text("a,b\n1,2,3\n4,5,6\n")
    (place / "plain.csv").write_text("a\n1\n2\n")
    (place / "taken.nc").write_bytes(b"precious")
    (place / "taken.html").write_text("precious")
    (place / "folder.html").mkdir()
    return place


REFUSED = [
    # the command, with @ for the folder, and words of the one line
    ("reduce @/missing.nc", "missing.nc. Check the path."),
    ("reduce missing.nc", "missing.nc. Check the path; it is relative to /"),
    ("reduce @/missing.csv", "missing.csv"),
    ("reduce @/trase.nc", "Did you mean 'trace.nc'?"),
    ("reduce @/*.nx", "Patterns are read by the shell, in Python by glob.glob."),
    ("reduce lotka-voltera", "a shipped model, got 'lotka-voltera'. Did you mean 'lotka_"),
    ("sample @/no_module.py -o out.nc", "No module named 'foobar'. Install it beside mcmcpost"),
    ("reduce @/modle.py", "Did you mean 'model.py'?"),
    ("reduce @/trace.nc --var-names c", "There are a, b."),
    ("reduce @/trace.nc --var-names ~c", "names of variables, got c"),
    ("reduce @/trace.nc --var-names a,c", "names of variables, got c"),
    (
        "reduce @/trace.nc --var-names ~a --var-names ~b",
        "~NAME to leave a variable, got ~a, ~b",
    ),
    ("reduce @/trace.nc --var-names ~a,b,~b", "with ~ or without, got b and ~b. There are a, b."),
    ("reduce @/trace.nc --var-names ,", "expected names of variables, got none."),
    ("reduce @/trace.nc --expect chain=a", "names other than chain, draw, got ['chain']"),
    ("reduce @/evidence.json", "an evidence alone. Print it with mcmcpost evidence /"),
    ("sample @/model.py -o out.nc --until 0", "`mcse`, a number in (0, ∞), got 0.0"),
    ("sample @/model.py -o out.nc --until -1", "`mcse`, a number in (0, ∞), got -1.0"),
    ("reduce @/trace.nc --expect p=a^2", "holds ^, which is no power: write **"),
    ("reduce @/trace.nc --var-names c --filter-vars like", "what some variable has in its name"),
    ("reduce @/trace.nc --var-names ( --filter-vars regex", "regular expressions"),
    ("report @/trace.nc -o out.html --var-names c", "There are a, b."),
    ("reduce @/missing.py", "missing.py"),
    ("reduce @", "netCDF"),
    ("reduce @/text.nc", "netCDF"),
    ("reduce @/cut.nc", "netCDF"),
    ("reduce @/empty.csv", "header"),
    ("reduce @/short.csv", "as many values as columns"),
    ("reduce @/plain.csv", "scores"),
    ("reduce @/ladder.nc", "a trace of one target"),
    ("reduce @/trace.nc @/trace.nc", "twice"),
    ("reduce @/trace.nc @/ladder.nc", "same variables of posterior"),
    ("reduce @/trace.nc @/missing.nc", "missing.nc"),
    ("reduce @/trace.nc @/model.py", "traces beside each other"),
    ("reduce @/no_model.py", "no `model`"),
    ("reduce @/no_syntax.py", "line 1"),
    ("reduce @/no_data.py", "no `data`"),
    ("reduce @/not_callable.py", "model"),
    ("reduce @/trace.nc --model @/no_model.py", "no `model`"),
    ("reduce @/trace.nc --model @/missing.py", "missing.py"),
    ("reduce @/trace.nc --model @/trace.nc", "trace.nc"),
    ("reduce @/trace.nc --model @/model.py", "latent sites of the model, x"),
    ("reduce @/trace.nc --model @", "Python file"),
    ("reduce @/model.py --model @/model.py", "--model"),
    ("reduce @/trace.nc --option a=1", "--option"),
    ("reduce @/trace.nc --draws 9", "belong to a model file"),
    ("reduce @/trace.nc --seed 1 --chains 2", "--chains"),
    ("reduce @/model.py --option loc", "NAME=VALUE"),
    ("reduce @/model.py --option loc=1 --option loc=2", "each name once"),
    ("reduce @/model.py --option 1a=2", "NAME=VALUE"),
    ("reduce @/model.py --option zz=2", "options among"),
    ("reduce @/trace.nc --expect a", "NAME=EXPRESSION"),
    ("reduce @/trace.nc --expect =a", "NAME=EXPRESSION"),
    ("reduce @/trace.nc --expect q=", "q"),
    ("reduce @/trace.nc --expect q=a+", "q"),
    ("reduce @/trace.nc --expect q=zz", "not among the variables"),
    ("reduce @/trace.nc --expect q=a.b", "a.b"),
    ("reduce @/trace.nc --expect q=open('x')", "open"),
    ("reduce @/trace.nc --expect q=__import__('os')", "__import__"),
    ("reduce @/trace.nc --expect q='a'", "q"),
    ("reduce @/trace.nc --expect q=[1,2]", "q"),
    ("reduce @/trace.nc --expect q=a[0]", "q"),
    ("reduce @/trace.nc --expect q=lambda:a", "q"),
    ("reduce @/trace.nc --expect a=a", "not taken yet"),
    ("reduce @/trace.nc --expect q=a --expect q=b", "distinct names"),
    ("reduce @/trace.nc --quantile 95", "inside (0, 1)"),
    ("reduce @/trace.nc --ci 89", "number in (0, 1)"),
    ("reduce @/trace.nc --ci nan", "number in (0, 1)"),
    ("reduce @/trace.nc --ci-kind ETI", "ETI"),
    ("reduce @/trace.nc --quantile 0", "inside (0, 1)"),
    ("reduce @/trace.nc --quantile nan", "inside (0, 1)"),
    ("reduce @/trace.nc --quantile -0.5", "inside (0, 1)"),
    ("reduce @/trace.nc -o @/taken.nc", "which exists"),
    ("reduce @/trace.nc -o out.csv", ".nc or .zarr"),
    ("reduce @/trace.nc -o out", ".nc or .zarr"),
    ("reduce @/trace.nc -o no/out.nc", "existing folder"),
    ("reduce @/trace.nc -o @/trace.nc", "which exists"),
    ("sample @/model.py -o out.nc --relative", "--relative: expected --until"),
    ("sample @/model.py -o out.nc --max-draws 10", "--max-draws: expected --until"),
    ("sample @/trace.nc -o out.nc", "trace.nc"),
    ("sample @/missing.py -o out.nc", "missing.py"),
    ("sample @/no_model.py -o out.nc", "no `model`"),
    ("sample @/model.py -o @/taken.nc", "which exists"),
    ("sample @/model.py -o out.txt", ".nc or .zarr"),
    ("sample @/model.py -o out.nc --option zz=1", "options among"),
    ("sample @ -o out.nc", "Python file"),
    ("evidence @/missing.nc", "missing.nc"),
    ("evidence @/trace.nc", "ladder"),
    ("evidence @/text.nc", "netCDF"),
    ("evidence @/plain.csv", "--model FILE.py"),
    ("evidence @/ladder.nc @/ladder.nc", "twice"),
    ("evidence @/ladder.nc --rungs 5", "--rungs"),
    ("evidence @/ladder.nc --exchange 5", "--exchange"),
    ("evidence @/ladder.nc -o @/taken.nc", "which exists"),
    ("evidence @/ladder.nc @/model.py -o out.nc", "one source"),
    ("evidence @/ladder.nc -o out.csv", ".nc or .zarr"),
    ("evidence @/no_model.py", "no `model`"),
    ("evidence @/no_data.py", "no `data`"),
    ("evidence @/ladder.nc --option a=1", "option"),
    ("report @/missing.nc -o out.html", "missing.nc"),
    ("report @/text.nc -o out.html", "netCDF"),
    ("report @/model.py -o out.html", "model file"),
    ("report @/trace.nc -o out.pdf", ".html"),
    ("report @/trace.nc -o out", ".html"),
    ("report @/trace.nc -o @/taken.html", "which exists"),
    ("report @/trace.nc -o @/folder.html", "folder"),
    ("report @/trace.nc -o @/folder.html --force", "folder"),
    ("report @/trace.nc -o no/out.html", "existing folder"),
    ("report @/trace.nc -o out.html --expect q=zz", "not among the variables"),
    ("report @/trace.nc -o out.html --expect a", "NAME=EXPRESSION"),
    ("report @/trace.nc -o out.html --option a=1", "--option"),
    ("report @/trace.nc -o out.html --model @/no_model.py", "no `model`"),
    ("report @/plain.csv -o out.html", "scores"),
]

USAGE = [
    # commands that are misspelt, and words of the line that is printed
    ("redcue @/trace.nc", "Did you mean 'reduce'?"),
    ("@/trace.nc", "A file comes after a command, as in mcmcpost reduce /"),
    ("reduce @/trace.nc --quantile 0.05,0.95", "got '0.05,0.95'. Repeat the option for several."),
    ("reduce @/trace.nc --spread sd,correlation", "'correlation'. Repeat the option for several."),
    ("reduce @/model.py --draws 1e3", "valid integer, got '1e3'."),
    ("reduce @/trace.nc --filter-vars lik", "Did you mean 'like'?"),
    ("reduce @/trace.nc --quantil 0.5", "--quantile"),
    ("reduce @/model.py --seed 9223372036854775808", "seed"),
    ("reduce", "TRACE_OR_MODEL"),
    ("reduce @/trace.nc --methd zv2", "--methd"),
    ("reduce @/trace.nc --method zv22", "Did you mean 'zv2'?"),
    ("reduce @/trace.nc --method ZV1", "Invalid value for '--method': 'ZV1' is not one of"),
    ("reduce @/trace.nc --method ZV1", "Did you mean 'zv1'?"),
    ("reduce @/trace.nc --method", "--method"),
    ("reduce @/trace.nc --quantile half", "quantile"),
    ("reduce @/model.py --draws 0", "draws"),
    ("reduce @/model.py --draws -5", "draws"),
    ("reduce @/model.py --draws many", "integer"),
    ("reduce @/model.py --draws 2.5", "integer"),
    ("reduce @/model.py --warmup 0", "warmup"),
    ("reduce @/model.py --chains 0", "chains"),
    ("reduce @/model.py --seed x", "seed"),
    ("info @/trace.nc --json yes", "unexpected"),
    ("sample @/model.py", "--output"),
    ("sample", "model"),
    ("evidence", "SOURCE"),
    ("evidence @/ladder.nc --path sideways", "sideways"),
    ("evidence @/ladder.nc --rungs 1", "rungs"),
    ("evidence @/ladder.nc --exchange 0", "exchange"),
    ("evidence @/ladder.nc --method magic", "magic"),
    ("report @/trace.nc", "--output"),
    ("report -o out.html", "'TRACE...'"),
    ("doctor now", "unexpected"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "words"), REFUSED, ids=[command.replace("@/", "") for command, _ in REFUSED]
)
def test_one_line(run, folder, command, words):
    done = run(*command.replace("@", str(folder)).split())
    *warnings, last = done.err.splitlines()
    assert (done.code, done.out) == (2, "")
    assert last.startswith("mcmcpost: error: ")
    assert words in last
    assert all(line.startswith("mcmcpost: warning: R-hat") for line in warnings)


@pytest.mark.parametrize(
    ("command", "words"), USAGE, ids=[command.replace("@/", "") for command, _ in USAGE]
)
def test_usage(run, folder, command, words):
    assert refused(run(*command.replace("@", str(folder)).split()), words, "--help.")


def test_nothing_asked_is_answered_by_the_help(run):
    done = run()
    assert done.code == 2
    assert done.out.startswith("Usage: mcmcpost ")


def test_nothing_was_written(folder):
    assert (folder / "taken.nc").read_bytes() == b"precious"
    assert (folder / "taken.html").read_text() == "precious"
