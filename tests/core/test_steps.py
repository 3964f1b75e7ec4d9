"""Steps of long work: what is said, and to whom."""

import numpy as np
import pytest

import mcmcpost as mp
from mcmcpost.core.runtime import listening, say_step


def test_a_step_is_said_to_the_inner_listener_and_to_nobody_outside():
    outer, inner = [], []
    say_step("before")
    with listening(outer.append):
        say_step("one")
        with listening(inner.append):
            say_step("two")
        say_step("three")
    say_step("after")
    assert (outer, inner) == (["one", "three"], ["two"])


@pytest.mark.slow
def test_auto_says_which_methods_it_fits(rng):
    draws = rng.standard_normal((4, 40, 5))
    tree, values, steps = mp.from_arrays(draws, -draws), np.exp(draws[..., :2]), []
    with listening(steps.append):
        mp.expectation(tree, values, mp.Auto(max_degree=2))
    assert steps == ["VectorFields(degree=1)", "SemiExact(degree=2)"]
