"""The voice in which bad input is refused; classes are called with types that the tests' own
checker lets through."""

import jax
import numpy as np
import pytest

from mcmcpost.core.arguments import check_count, check_key, check_kind
from mcmcpost.core.precision import as_points
from mcmcpost.stein import AbstractKernel, Matern32


@pytest.mark.parametrize("value", [0, 2.5, True, "3", None])
def test_a_count_is_an_integer_in_range(value):
    with pytest.raises(ValueError, match="here: expected `size` of at least 1, an integer, got"):
        check_count("here", "size", value, "Cure.")


def test_counts_of_numpy_are_counts():
    check_count("here", "size", np.int64(3), "Cure.")
    check_count("here", "size", 0, "Cure.", least=0)


@pytest.mark.parametrize(
    ("value", "got"), [("rbf", "'rbf'"), (Matern32, "<class .*Matern32'>"), (3.0, "a float")]
)
def test_a_name_or_a_class_is_not_the_thing(value, got):
    with pytest.raises(
        TypeError, match=f"here: expected `kernel` to be a Kernel or None, got {got}"
    ):
        check_kind("here", "kernel", value, (AbstractKernel, type(None)), "Cure.")


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey])
def test_several_keys_are_refused_in_one_line(make):
    keys = jax.random.split(make(0), 3)
    with pytest.raises(TypeError, match="here: expected `key` to be a JAX key, got") as caught:
        check_key("here", keys)
    assert "\n" not in str(caught.value)
    if make is jax.random.key:
        assert str(caught.value).endswith("got 3 keys. Pass one of them: key=keys[0].")
    check_key("here", keys[0])


def test_points_are_floating_rows():
    assert as_points("here", "X", [[1, 2]]).dtype == np.float64
    with pytest.raises(ValueError, match=r"here: expected `X` of shape \(n, d\), got \(3,\)"):
        as_points("here", "X", np.arange(3))
