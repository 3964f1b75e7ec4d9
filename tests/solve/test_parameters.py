"""Parameters as one vector, and the minimum over several starts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mcmcpost.solve.search import (
    LBFGS,
    Hyperparameters,
    Log,
    Packing,
    Softplus,
    TrainingProblem,
    is_positive,
)
from mcmcpost.stein import Matern32, Polynomial, Scaled

KERNEL = Scaled(4.0, Matern32(np.array([0.5, 1e3])))
TREE = Hyperparameters(KERNEL, np.asarray(0.09))


def same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("scale", [Log(), Softplus()])
def test_unpacking_is_the_inverse_of_packing(scale, relative):
    packing = Packing(TREE, scale, relative=relative)
    other = Hyperparameters(Scaled(1.5, Matern32(np.array([0.7, 2e3]))), np.asarray(0.3))
    for tree in (TREE, other):
        same(packing.unpack(jnp.asarray(packing.pack(tree))), tree)


def test_relative_parameters_are_deviations_and_multiples_of_the_start():
    packing = Packing(TREE, Softplus(), relative=True)
    x = jnp.asarray(packing.pack(TREE))
    np.testing.assert_allclose(packing.values(x), [2.0, 0.5, 1e3, 0.3], rtol=1e-12)
    np.testing.assert_allclose(Softplus().positive(x), [2.0, 1.0, 1.0, 0.3], rtol=1e-12)


def test_what_is_not_free_keeps_its_value_and_has_no_place_in_the_vector():
    kernel = Polynomial(2, 1.0, np.array([0.5, 0.7]), centre=-1.0)
    packing = Packing(
        Hyperparameters(kernel, np.asarray(0.09)), free=Hyperparameters(is_positive, False)
    )
    x = packing.pack(Hyperparameters(kernel, np.asarray(0.09)))
    np.testing.assert_allclose(np.exp(x), [1.0, 0.5, 0.7])
    moved = packing.unpack(jnp.asarray(x + 1))
    assert (float(moved.noise), float(moved.kernel.centre)) == (0.09, -1.0)
    assert not packing.where(Hyperparameters(False, True)).any()


def test_entries_that_are_not_positive_are_taken_as_they_are():
    entries = np.array([[2.0, -1.0, 3.0], [1.0, 0.0, 5.0]])
    marks = Hyperparameters(True, np.array([True, False, True]))
    packing = Packing(
        Hyperparameters(Matern32(2.0), entries),
        free=Hyperparameters(is_positive, True),
        positive=marks,
    )
    x = packing.pack(Hyperparameters(Matern32(2.0), entries))
    np.testing.assert_allclose(x, [np.log(2), np.log(2), -1, np.log(3), 0, 0, np.log(5)])
    same(packing.unpack(jnp.asarray(x)), Hyperparameters(Matern32(2.0), entries))
    box = packing.box(x, np.e)
    scaled = packing.where(marks)
    np.testing.assert_allclose(box[scaled], x[scaled, None] + [[-1, 1]])
    assert np.isinf(box[~scaled]).all()


@pytest.mark.parametrize("scale", [Log(), Softplus()])
def test_the_box_is_a_factor_of_the_values(scale):
    packing = Packing(TREE, scale, relative=True)
    x = packing.pack(TREE)
    low, middle, high = (
        packing.values(jnp.asarray(row)) for row in np.insert(packing.box(x, 10.0).T, 1, x, axis=0)
    )
    np.testing.assert_allclose(low * 10, middle, rtol=1e-9)
    np.testing.assert_allclose(high / 10, middle, rtol=1e-9)


def double_well(x):
    """Two minima, the lower one near −1; not finite beyond 3."""
    if abs(x[0]) > 3:
        return np.nan, np.full(1, np.nan)
    return float((x[0] ** 2 - 1) ** 2 + 0.3 * x[0]), np.array([4 * x[0] * (x[0] ** 2 - 1) + 0.3])


def starts(*points):
    return [
        TrainingProblem(double_well, np.array([x]), np.array([[-10.0, np.inf]])) for x in points
    ]


def test_the_best_of_several_starts_is_found_and_broken_starts_are_skipped():
    best = LBFGS().minimise_from(starts(5.0, 0.9, -0.9))
    assert best.start == 2
    np.testing.assert_allclose(best.x, -1.0355, atol=1e-3)
    assert best.value == pytest.approx(double_well(best.x)[0])
    assert best.num_evaluations > 3
    assert LBFGS().minimise_from(starts(5.0, -4.0)) is None
