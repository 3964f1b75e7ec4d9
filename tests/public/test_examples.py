"""What the package brings: a small trace that is what it says, and models by their names."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from cli_cases import refused

import mcmcpost as mp
from mcmcpost import examples
from models import lotka_volterra

ROOT = Path(__file__).parents[2]


def test_the_examples_are_small():
    assert sum(path.stat().st_size for path in examples.FOLDER.glob("*.nc")) < 300_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lotka_volterra", "lotka-volterra"])
def test_the_trace_passes_the_score_gate(name):
    tree = mp.load_example(name)
    assert tree.sample_stats.gradient.shape == (4, 250, 8)
    assert tree.sample_stats.attrs["score_check"] == "pass"
    assert not tree.sample_stats.diverging.any()


@pytest.mark.slow
@pytest.mark.usefixtures("rank_promotion")
def test_the_trace_is_one_of_the_model_and_has_converged():
    tree = mp.load_example("lotka_volterra")
    # log densities are compared
    again = mp.attach_scores(tree, lotka_volterra.model, **lotka_volterra.data("stan"))
    kept = tree.sample_stats.gradient
    np.testing.assert_allclose(
        again.sample_stats.gradient, kept, rtol=1e-5, atol=1e-5 * float(kept.std())
    )
    assert mp.score_diagnostics(tree)["r_hat"].max() < 1.02


def test_an_example_that_there_is_not_is_asked_about():
    with pytest.raises(
        mp.InputError,
        match=r"among lotka_volterra, got 'lotka-voltera'. Did you mean 'lotka_volterra'\?",
    ):
        mp.load_example("lotka-voltera")


def test_a_name_stands_for_a_model_where_no_file_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = examples.named_model(Path("lotka-volterra"))
    assert shipped == ROOT / "models" / "lotka_volterra.py"
    assert examples.named_model(Path("van_der_pol")).name == "van_der_pol.py"
    for other in ("lotka", "./x/lotka-volterra", "lotka-volterra.nc", "__init__", ".", ".."):
        assert examples.named_model(Path(other)) == Path(other)
    (tmp_path / "lotka-volterra").touch()
    assert examples.named_model(Path("lotka-volterra")) == Path("lotka-volterra")


def test_the_models_of_the_wheel_come_before_those_of_a_clone(tmp_path, monkeypatch):
    (tmp_path / "van_der_pol.py").touch()
    monkeypatch.setattr(examples, "FOLDER", tmp_path)
    assert examples.named_model(Path("van-der-pol")) == tmp_path / "van_der_pol.py"


@pytest.mark.parametrize(
    "words", [["reduce"], ["sample", "-o", "x.nc"], ["evidence"], ["reduce", "x.nc", "--model"]]
)
def test_every_command_takes_the_name_of_a_model(run, words):
    if "--model" in words:
        Path("x.nc").write_bytes((examples.FOLDER / "lotka_volterra.nc").read_bytes())
    done = run(*words, "lotka-volterra", "--option", "priors=none")
    assert refused(done, "lotka_volterra.py", "one of ['paper', 'stan'], got 'none'")


def test_no_example_has_the_name_of_a_module():
    """They lie in one folder in the wheel, and are imported by path."""
    for path in (ROOT / "models").glob("*.py"):
        assert path.stem.isidentifier()
        assert importlib.util.find_spec(f"mcmcpost.examples.{path.stem}") is None  # of a clone
