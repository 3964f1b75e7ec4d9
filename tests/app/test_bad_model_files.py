"""Model files that cannot be sampled: each is refused in one line before the sampling, and no draw
is lost after it."""

from pathlib import Path

import numpy as np
import pytest
from cli_cases import refused

import mcmcpost as mp

GOOD = """
import sys
import diffrax
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

def model(loc):
    x = numpyro.sample("x", dist.Normal(loc, 2.0).expand([3]).to_event(1))
    numpyro.deterministic("twice", 2.0 * x)
    numpyro.sample("y", dist.Normal(x.sum(), 1.0), obs=0.5)

def data(loc=1.0):
    return {"loc": loc}

def quantities(draw):
    return {"q": draw["x"][0] ** 2}

def init():
    return {"x": jnp.zeros(3)}
"""

FAILS = """
    def rate(t, y, args):
        return -y
    term, solver = diffrax.ODETerm(rate), diffrax.Tsit5()
    solve = diffrax.diffeqsolve(term, solver, 0.0, 100.0, 0.01, 1.0, max_steps=4)
    numpyro.factor("ode", solve.ys[0])
"""

BAD = [
    # label, text of the file that is replaced, its replacement, words of the one line
    ("data needs an argument", "data(loc=1.0)", "data(loc)", "--option NAME=VALUE"),
    ("init needs an argument", "def init()", "def init(z)", "arguments of `init(z)`"),
    ("assert", "import sys", "assert 1 == 2", "AssertionError: assert 1 == 2"),
    ("assert in data", 'return {"loc": loc}', "assert loc < 0",
     "line 15: expected `data` to run, got AssertionError"),
    ("raise without text", 'return {"loc": loc}', "raise ValueError",
     "got ValueError: raise ValueError"),
    ("KeyError", 'return {"loc": loc}', 'raise KeyError("mass")', "got KeyError: 'mass'"),
    ("exit", "import sys", "import sys; sys.exit()", "SystemExit: import sys; sys.exit()"),
    ("exit with code 0", 'return {"loc": loc}', "sys.exit(0)",
     "expected `data` to run, got SystemExit"),
    ("exit in the model", "    numpyro.deterministic",
     "    sys.exit(3)\n    numpyro.deterministic", "SystemExit"),
    ("site with a null byte", '"x", dist', r'"a\0b", dist', "names without '/'"),
    ("site without a name", '"x", dist', '"", dist', "names without '/'"),
    ("site called chain", '"x", dist', '"chain", dist', "names other than chain, draw"),
    ("deterministic site called draw", '"twice"', '"draw"', "names other than chain, draw"),
    ("site called as an axis", '"twice"', '"x_dim_0"', "names other than chain, draw, x_dim_0"),
    ("site twice", '"twice"', '"x"', "unique names"),
    ("data of another shape", "x.sum(), 1.0), obs=0.5", "x, 1.0), obs=jnp.zeros(4)",
     "the site `y`, got shape (4,)"),
    ("init too short", "jnp.zeros(3)", "jnp.zeros(2)", "`init()['x']` of shape (3,)"),
    ("init of one element", "jnp.zeros(3)", "jnp.zeros(1)", "`init()['x']` of shape (3,)"),
    ("init of a scalar", "jnp.zeros(3)", "0.0", "`init()['x']` of shape (3,)"),
    ("init in words", "jnp.zeros(3)", '"zero"', "`init()['x']` to return numbers"),
    ("init complex", "jnp.zeros(3)", "jnp.zeros(3) * 1j", "real"),
    ("init ragged", "jnp.zeros(3)", "[[0.0], 0.0]", "`init()['x']` to return numbers"),
    ("init nowhere", "jnp.zeros(3)", "jnp.full(3, jnp.nan)", "invalid loc parameter"),
    ("density of NaN", "numpyro.deterministic",
     'numpyro.factor("f", jnp.nan)\n    numpyro.deterministic', "nan"),
    ("ODE solve that fails", "    numpyro.deterministic", FAILS + "    numpyro.deterministic",
     "throw=False"),
    ("no latent site", '.to_event(1))', '.to_event(1), obs=jnp.zeros(3))',
     "a model with continuous latent sites"),
    ("quantities of a missing site", 'draw["x"][0]', 'draw["z"][0]',
     "expected `quantities` to run, got KeyError: 'z'"),
    ("quantities without argument", "quantities(draw)", "quantities()",
     "a function of one argument"),
    ("quantity of NumPy", 'draw["x"][0] ** 2', '__import__("numpy").exp(draw["x"][0])',
     "Use jax.numpy: jnp.exp"),
    ("a constant site", 'numpyro.deterministic("twice", 2.0 * x)',
     'numpyro.sample("c", dist.Delta(1.0))', "Delta"),
    ("quantity in words", 'draw["x"][0] ** 2', '"two"', "to return numbers, got str"),
    ("quantity of nothing", 'draw["x"][0] ** 2', "None", "to return numbers, got NoneType"),
    ("quantity complex", 'draw["x"][0] ** 2', 'draw["x"] * 1j', "real numbers"),
    ("quantity empty", 'draw["x"][0] ** 2', 'draw["x"][:0]', "real numbers"),
    ("quantity with a slash", '"q"', '"q/r"', "names without '/'"),
    ("quantity called chain", '"q"', '"chain"', "names other than chain, draw"),
    ("quantity called as a site", '"q"', '"twice"',
     "what is no variable of the trace, got ['twice']"),
    ("quantity that is no name", '"q"', "1", "names without '/'"),
    ("quantity in Python numbers", 'draw["x"][0] ** 2', 'float(draw["x"][0])',
     "Abstract tracer value"),
]  # fmt: skip


@pytest.fixture
def write(tmp_path):
    def write(old="", new="", name="model.py"):
        assert old in GOOD
        (tmp_path / name).write_text(GOOD.replace(old, new, 1) if old else GOOD)
        return tmp_path / name

    return write


@pytest.fixture
def not_sampled(monkeypatch):
    monkeypatch.setattr("numpyro.infer.MCMC.run", lambda *_, **__: pytest.fail("sampled first"))
    monkeypatch.setattr(
        "mcmcpost.ladders.power_posteriors.sample_ladder",
        lambda *_, **__: pytest.fail("sampled first"),
    )


@pytest.mark.slow
@pytest.mark.usefixtures("not_sampled")
@pytest.mark.parametrize(
    ("old", "new", "words"), [pytest.param(*case, id=label) for label, *case in BAD]
)
def test_one_line_before_the_sampling(run, write, old, new, words):
    done = run("sample", write(old, new), "-o", "trace.nc")
    assert refused(done, words)
    assert not list(Path.cwd().iterdir())


@pytest.mark.slow
def test_a_solve_that_fails_in_the_warm_up_is_one_line(run, write):
    stiff = FAILS.replace("return -y", "return -jnp.exp(3.0 * x[0]) * y").replace(
        "max_steps=4", "max_steps=30"
    )
    done = run(
        "sample",
        write("    numpyro.deterministic", stiff + "    numpyro.deterministic"),
        "-o",
        "trace.nc",
    )
    assert done.code == 2
    assert (
        "model.py: expected `model` to run at every point, got EquinoxRuntimeError: The max"
        in done.err
    )
    assert "throw=False" in done.err


@pytest.mark.slow
@pytest.mark.usefixtures("not_sampled")
@pytest.mark.filterwarnings("ignore:.*Out-of-support values")
def test_missing_data_are_told(run, write):
    done = run("sample", write("obs=0.5", "obs=jnp.array([0.5, jnp.nan])"), "-o", "trace.nc")
    assert done.code == 2
    assert "expected observed values that are numbers, got NaN in y" in done.err


@pytest.mark.usefixtures("not_sampled")
@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (["--expect", "p=z > 0"], "not among the variables (twice, x, q)"),
        (["--expect", "p=twicee[0] > 0"], "Did you mean 'twice'?"),
        (["--expect", "p=x[3]"], "outside the shape (3,)"),
        (["--expect", "q=x[0]"], "not taken yet"),
        (["--var-names", "twicee"], "Did you mean 'twice'?"),
        (["--seed", "9223372036854775808"], "--seed"),
        (["--option", "lok=3"], "Did you mean 'loc'?"),
        (["--draws", "1000000000000"], "draws that fit into"),
        (["--chains", "99999999999999999999"], "draws that fit into"),
    ],
)
def test_what_is_asked_is_checked_before_the_sampling(run, write, asked, words):
    done = run("reduce", write(), *asked)
    assert done.code == 2
    assert words in done.err


@pytest.mark.usefixtures("not_sampled")
def test_every_model_file_is_checked_before_the_first_ladder(run, write):
    second = write('"x", dist', '"temperature", dist', name="second.py")
    assert refused(
        run("evidence", write(), second), "second.py", "names other than chain, draw, temperature"
    )


@pytest.mark.usefixtures("not_sampled")
@pytest.mark.parametrize("option", ["--draws", "--chains", "--rungs"])
def test_a_ladder_that_no_memory_holds(run, write, option):
    assert refused(run("evidence", write(), option, 10**12), "draws that fit into")


@pytest.mark.slow
def test_what_was_sampled_is_kept_where_the_rest_fails(run, write, monkeypatch, rng):
    draws = rng.normal(size=(4, 50, 1))
    tree = mp.from_arrays(draws, -draws, names=("x",))
    monkeypatch.setattr("mcmcpost.app.source.sample_model", lambda *_, **__: tree)
    with monkeypatch.context() as broken:
        broken.setattr(
            "mcmcpost.app.commands.Answers.expectation", lambda *_: np.ones(2) @ np.ones(3)
        )
        with pytest.raises(ValueError, match="mismatch"):
            run("reduce", write(), "--method", "zv1")
    np.testing.assert_array_equal(mp.load_tree("model-draws.nc")["posterior"]["x"], draws[..., 0])
    Path("trace.nc").write_text("came between")
    monkeypatch.setattr("mcmcpost.app.edge.check_output", lambda _: None)
    done = run("sample", write(), "-o", "trace.nc")
    assert done.code == 2
    assert "the draws are kept in" in done.err
    assert "trace.nc" in done.err.splitlines()[-1]
    assert mp.load_tree("model-draws1.nc").identical(mp.load_tree("model-draws.nc"))
