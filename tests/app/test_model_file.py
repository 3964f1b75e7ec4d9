"""Model files: loading by path, the contract's errors, sampling, quantities."""

import jax
import numpy as np
import pytest
from numpyro.infer.util import log_density

from mcmcpost.app.model_file import load_model_file, parse_options
from mcmcpost.app.quantities import Selection, evaluate_quantities, named_scalars, with_quantities
from mcmcpost.app.source import sample_posterior
from mcmcpost.trees import Convergence, check_convergence, from_numpyro, posterior_variables

GAUSSIAN = """
import numpyro
import numpyro.distributions as dist

def model(loc, *, scale):
    numpyro.sample("x", dist.Normal(loc, scale))
    numpyro.sample("rate", dist.Gamma(4.0, 2.0))

def data(loc=1.0):
    return {"loc": loc, "scale": 2.0}

def init(loc=1.0, spread=1.0):
    return {"x": loc, "rate": 2.0 * spread}

def quantities(draw):
    return {"square": draw["x"] ** 2, "q[0.5]": draw["rate"] > 2.0}
"""


@pytest.fixture
def write(tmp_path):
    def write(text, name="gaussian.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def draw(model_file, key, **settings):
    return sample_posterior(
        model_file, key=key, num_warmup=100, num_samples=50, num_chains=2, **settings
    )


@pytest.fixture(scope="module")
def sampled(tmp_path_factory):
    """A model file and one run of it, compiled once for every test that looks at it."""
    path = tmp_path_factory.mktemp("model") / "gaussian.py"
    path.write_text(GAUSSIAN)
    loaded = load_model_file(path)
    return loaded, draw(loaded, jax.random.key(20), options={"loc": 5.0})


def test_the_contract_is_loaded_from_any_directory(write, tmp_path, monkeypatch):
    path = write(GAUSSIAN)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    loaded = load_model_file("../gaussian.py")
    assert loaded.path == path.resolve()
    assert loaded.arguments({"loc": 3.0}) == ((), {"loc": 3.0, "scale": 2.0})
    assert loaded.start({"loc": 3.0}) == {"x": 3.0, "rate": 2.0}


def test_neighbouring_files_can_be_imported_while_it_loads(write):
    write("SCALE = 7.0", "a_neighbour.py")
    loaded = load_model_file(
        write("from a_neighbour import SCALE\ndef model(scale): ...\ndef data(): return (SCALE,)")
    )
    assert loaded.arguments() == ((7.0,), {})
    assert loaded.quantities is None
    assert loaded.start() is None


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (
            "def data(): return {}",
            r"expected a function `model`, got no `model`. A model file defines",
        ),
        ("def model(y): ...", r"expected a function `data`, got no `data`"),
        (
            "model = 3\ndef data(): return {}",
            r"expected a function `model`, got `model` of type int",
        ),
        ("def model(:\n", r"gaussian.py, line 1: expected valid Python, got"),
        ("def model(): ...\ndef data(): ...\nquantities = {}", r"expected a function `quantities`"),
        (
            "class Model:\n    __module__ = 'pymc.model.core'\nmodel = Model()",
            r"got a Model of PyMC\. .*mp\.attach_scores\(tree, model\)",
        ),
    ],
)
def test_a_broken_file_is_named(write, text, match):
    with pytest.raises(ValueError, match=match):
        load_model_file(write(text))


def test_a_model_without_arguments_needs_no_data(write):
    for model in ("def model(): ...", "def model(scale=2.0): ..."):
        loaded = load_model_file(write(model))
        assert loaded.arguments() == ((), {})
        with pytest.raises(ValueError, match=r"options among none, got \['scale'\]"):
            loaded.arguments({"scale": 3.0})


def test_a_file_that_fails_keeps_its_own_error(write):
    with pytest.raises(ZeroDivisionError):
        load_model_file(write("1 / 0"))


def test_a_missing_file_and_a_trace_are_refused(write):
    with pytest.raises(
        FileNotFoundError, match=r"expected an existing Python file, got nowhere\.py"
    ):
        load_model_file("nowhere.py")
    with pytest.raises(ValueError, match="A trace ends in"):
        load_model_file(write("", "trace.nc"))


def test_unknown_options_are_refused(write):
    with pytest.raises(ValueError, match=r"options among \['loc', 'spread'\], got \['prior'\]"):
        load_model_file(write(GAUSSIAN)).arguments({"prior": "flat"})


@pytest.mark.parametrize("option", ["loc", "centred"])
def test_a_text_for_a_number_is_refused(write, option):
    loaded = load_model_file(
        write("def model(**_): ...\ndef data(loc=1.5, centred=True, prior='flat'): return {}")
    )
    with pytest.raises(ValueError, match=f"a number for the option {option} .*, got 'False'"):
        loaded.arguments({option: "False", "prior": "steep"})
    assert loaded.arguments({"loc": 2, "centred": 0, "prior": "steep"}) == ((), {})


def test_data_of_another_type_is_refused(write):
    with pytest.raises(TypeError, match="expected `data\\(\\)` to return a dict"):
        load_model_file(write("def model(): ...\ndef data(): return [1]")).arguments()


@pytest.mark.parametrize(
    ("texts", "options"),
    [
        (["priors=stan"], {"priors": "stan"}),
        (["n=3", " x = 1e-3"], {"n": 3, "x": 1e-3}),
        (["path=a=b"], {"path": "a=b"}),
    ],
)
def test_options_are_parsed(texts, options):
    assert parse_options(texts) == options


@pytest.mark.parametrize("texts", [["priors"], ["=3"], ["a="], ["a b=3"], ["a=1", "a=2"]])
def test_bad_options_are_refused(texts):
    with pytest.raises(ValueError, match="NAME=VALUE"):
        parse_options(texts)


@pytest.mark.slow
def test_sampling_keeps_the_scores(sampled):
    _, mcmc = sampled
    draws, extra = mcmc.get_samples(group_by_chain=True), mcmc.get_extra_fields(group_by_chain=True)
    assert draws["x"].shape == (2, 50)
    np.testing.assert_allclose(extra["z_grad"]["x"], (draws["x"] - 5.0) / 4.0)
    assert {"potential_energy", "num_steps", "diverging"} <= set(extra)


@pytest.mark.slow
@pytest.mark.parametrize("other", [False, True])
def test_sampling_is_reproducible_and_moved_by_the_key(sampled, other):
    loaded, mcmc = sampled
    again = draw(loaded, jax.random.key(21 if other else 20), options={"loc": 5.0})
    same = np.isin(np.asarray(again.get_samples()["x"]), np.asarray(mcmc.get_samples()["x"]))
    assert same.any() != other
    assert same.all() != other


@pytest.mark.slow
def test_one_chain_without_init(write, key):
    text = GAUSSIAN.replace("def init", "def no_init")
    mcmc = sample_posterior(
        load_model_file(write(text)), key=key, num_warmup=50, num_samples=5, num_chains=1
    )
    assert mcmc.get_samples(group_by_chain=True)["x"].shape == (1, 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        (
            '{"x": loc, "rate": 2.0 * spread}',
            '{"x": loc}',
            r"`init\(\)` to name the sites \['x', 'rate'\], got \['x'\]",
        ),
        (
            '"rate": 2.0 * spread',
            '"rate": -1.0',
            r"`init\(\)` inside the support, got \['rate'\] outside",
        ),
        (
            "dist.Normal(loc, scale)",
            "dist.Normal(float('nan') * loc, scale, validate_args=False)",
            "log density is finite",
        ),
    ],
)
def test_a_bad_start_is_named(write, key, old, new, match):
    assert old in GAUSSIAN
    with pytest.raises(ValueError, match=match):
        draw(load_model_file(write(GAUSSIAN.replace(old, new))), key)


@pytest.mark.slow
def test_no_valid_start_without_init_is_named(write, key):
    text = """
import numpyro
def model():
    numpyro.sample("x", numpyro.distributions.Normal())
    numpyro.factor("impossible", -float("inf"))
def data():
    return {}
"""
    with pytest.raises(ValueError, match=r"Define init\(\) near the mode"):
        draw(load_model_file(write(text)), key)


@pytest.mark.parametrize("setting", ["num_warmup", "num_samples", "num_chains"])
def test_counts_below_one_are_refused(write, key, setting):
    with pytest.raises(ValueError, match=f"`{setting}` of at least 1"):
        sample_posterior(load_model_file(write(GAUSSIAN)), key=key, **{setting: 0})


def test_quantities_are_evaluated_at_every_draw(write, rng):
    posterior = {"x": rng.normal(size=(2, 700)), "rate": rng.gamma(4.0, size=(2, 700))}
    values = evaluate_quantities(load_model_file(write(GAUSSIAN)), posterior)
    np.testing.assert_allclose(values["square"], posterior["x"] ** 2)
    np.testing.assert_array_equal(values["q[0.5]"], posterior["rate"] > 2.0)


@pytest.mark.slow
def test_quantities_travel_with_the_tree(sampled):
    loaded, mcmc = sampled
    tree = from_numpyro(mcmc, allow_bad_scores=True)
    more = with_quantities(tree, loaded)
    assert "generated_quantities" not in tree.children
    variables = posterior_variables(more)
    scalars = named_scalars(more, variables, Selection({"p": "square > 1 and `q[0.5]` == 1"}))
    assert list(scalars) == ["rate", "x", "square", "q[0.5]", "p"]
    np.testing.assert_array_equal(scalars["p"], (scalars["square"] > 1) & (scalars["rate"] > 2))
    with pytest.raises(ValueError, match=r"names not taken yet, got \['square'\]"):
        named_scalars(more, variables, Selection({"square": "x"}))


def test_the_log_density_is_that_of_the_file(write):
    loaded = load_model_file(write(GAUSSIAN))
    args, kwargs = loaded.arguments()
    value, _ = log_density(loaded.model, args, kwargs, {"x": 1.0, "rate": 2.0})
    assert np.isfinite(value)


@pytest.mark.slow
def test_convergence_is_quiet_about_good_chains_and_names_a_bad_one(sampled):
    tree = from_numpyro(sampled[1], allow_bad_scores=True)
    posterior = tree["posterior"].to_dataset()
    posterior["rate"] = posterior["rate"] + 9.0 * posterior["chain"]
    tree["posterior"] = type(tree)(posterior)
    found = check_convergence(tree, posterior_variables(tree).scalars())
    assert found.worst == "rate"
    assert "R-hat" in found.complaint
    assert Convergence(1.002, "x", 0, 1.11, 0, 800).complaint is None
    assert Convergence(float("nan"), "", 0, 1.11, 0, 800).complaint is None
    assert "3 of 800 transitions were divergent" in Convergence(1.0, "x", 0, 1.11, 3, 800).complaint
