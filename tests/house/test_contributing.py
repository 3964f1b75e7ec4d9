"""The family of controls that CONTRIBUTING.md shows is one: it runs as printed, and so do the tests
it asks for."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mcmcpost.control.features.families import from_json

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.fixture(scope="module")
def family():
    """The printed family, made once, so that `from_json` finds one class of that name."""
    (program,) = re.findall(r"<!-- family -->\n```python\n(.*?)```", TEXT, re.DOTALL)
    names = {"__name__": __name__}
    exec(program, names)
    return names["Bumps"](np.array([0.5, 1.0, 3.0]))


def test_its_controls_are_the_stein_operator_of_its_fields(family, rng):
    draws, scores = rng.normal(size=(2, 6, 4))
    found = family.controls(draws, scores)
    assert found.shape == (6, family.size)
    for column, width in zip(found.T, family.widths, strict=True):
        field = jax.grad(lambda x, width=width: jnp.exp(-0.5 * jnp.sum(x**2) / width**2))
        expected = [
            jnp.trace(jax.jacfwd(field)(x)) + field(x) @ s
            for x, s in zip(draws, scores, strict=True)
        ]
        np.testing.assert_allclose(column, np.array(expected), rtol=1e-12, atol=1e-14)


def test_it_is_made_again_from_what_is_saved(family, rng):
    draws, scores = rng.normal(size=(2, 6, 4))
    again = from_json(family.to_json())
    np.testing.assert_array_equal(again.controls(draws, scores), family.controls(draws, scores))
    _, along = family.along(draws, scores[0])
    assert along.shape == (6, family.size)


def test_what_the_page_names_is_there():
    for name in re.findall(r"`((?:tests|mcmcpost|docs|benchmarks)/[\w./]+)`", TEXT):
        assert (ROOT / name).exists(), name
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "control").glob("*.py"))
    for name in re.findall(r"`(test_\w+)`", TEXT):
        assert f"def {name}(" in tests, name
