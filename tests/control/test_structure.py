"""Controls from named dimensions: which coordinates are a block, and that controls are Stein operators of fields."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from control_cases import estimate, structure_fields

from mcmcpost.control import Auto, Structured, ZeroVariance
from mcmcpost.control.features.structure import (
    Blocks,
    Diagonal,
    Neighbours,
    Pairs,
    Sums,
    SumsByGlobals,
    structure_families,
)
from mcmcpost.control.problem import make_problem
from mcmcpost.trace import make_trace

LABELS = {
    "numpyro": ("mu", *(f"z[{i}]" for i in range(8)), "sigma"),
    "nutpie": ("mu", *(f"z_{i}" for i in range(8)), "sigma_log__"),
    "stan": ("mu", *(f"z.{i + 1}" for i in range(8)), "sigma"),
    "named": ("mu", *(f"z[county {i}]" for i in range(8)), "sigma"),
}


@pytest.mark.parametrize("names", LABELS.values(), ids=LABELS)
def test_a_variable_of_more_than_six_entries_is_a_block(names):
    found = Blocks.of(names)
    assert found.globals.tolist() == [0, 9]
    assert [block.tolist() for block in found.blocks] == [list(range(1, 9))]


@pytest.mark.parametrize("label", ["z[{}, {}]", "z_{}_{}", "z.{}.{}", "z[{},{}]"])
def test_a_short_second_dimension_splits_a_variable(label):
    names = [label.format(i, j) for i in range(7) for j in range(2)] + [
        "w[0]",
        "w[1]",
        "chol_corr___0",
        "chol_corr___1",
    ]
    found = Blocks.of(names)
    assert [block.tolist() for block in found.blocks] == [list(range(0, 14, 2)), list(range(1, 14, 2))]
    assert found.globals.tolist() == [14, 15, 16, 17]


def test_names_that_say_nothing_have_no_block():
    assert Blocks.of([f"theta{i}" for i in "abcdefgh"]).blocks == ()


def test_controls_are_the_stein_operator_of_their_fields(rng):
    """∇·v + v·s by automatic differentiation: their mean is zero under any density, whatever the coordinates' scale."""
    names = ["mu", *(f"z[{i}, {j}]" for i in range(7) for j in range(2)), "log_sd"]
    d = len(names)
    blocks = Blocks.of(names)
    shift, scale = rng.normal(size=d), np.exp(rng.normal(size=d))
    x, s = rng.normal(size=(6, d)), rng.normal(size=(6, d))
    given = (blocks.globals, blocks.blocks, shift, scale)
    pairs = Pairs(np.repeat(blocks.globals[:1], 7), blocks.blocks[1])
    families = [Sums(*given), SumsByGlobals(*given), Neighbours(*given), Diagonal(d), pairs]
    found = np.concatenate([family.controls((x - shift) / scale, s * scale) for family in families], axis=1)
    fields = list(structure_fields(blocks, shift, scale, d))
    assert found.shape[1] == len(fields) == sum(family.size for family in families)
    for column, field in zip(found.T, fields, strict=True):
        expected = [jnp.trace(jax.jacfwd(field)(row)) + field(row) @ score for row, score in zip(x, s, strict=True)]
        np.testing.assert_allclose(column, np.array(expected), rtol=1e-9, atol=1e-9)


def _hierarchy(rng, chains, draws, groups=20):
    """Return a trace of z | t ~ N(0, e^{2t}), t ~ N(0, 0.3²): the mean of the scale e^t is exp(0.045)."""
    t = 0.3 * rng.normal(size=(chains, draws))
    z = np.exp(t)[..., None] * rng.normal(size=(chains, draws, groups))
    score_z = -z * np.exp(-2 * t)[..., None]
    score_t = -t / 0.3**2 - groups + (z**2).sum(axis=-1) * np.exp(-2 * t)
    names = [*(f"z[{i}]" for i in range(groups)), "t"]
    return make_trace(np.concatenate([z, t[..., None]], -1), np.concatenate([score_z, score_t[..., None]], -1), names)


@pytest.mark.parametrize("method", [Structured(), Auto(kernel=False, max_degree=2)], ids=["structured", "auto"])
def test_the_scale_of_a_hierarchy_gains(rng, method):
    """First order leaves the scale as it is; its sums do not. Errors hold over replications."""
    deviations, plain = [], []
    for _ in range(12):
        trace = _hierarchy(rng, 4, 150)
        values = np.exp(trace.draws[..., -1:])
        result = estimate(trace, values, method)
        deviations.append((result.mean[0] - np.exp(0.045)) / result.mcse[0])
        plain.append((result.mcse[0] / result.mcse_plain[0]) ** 2)
    first = estimate(trace, values, ZeroVariance(1))
    assert first.gain[0] < 50
    assert np.median(plain) < 1 / 4
    assert np.mean(np.square(deviations)) < 2.5


def test_shuffled_names_are_no_worse_than_the_scores_alone(rng):
    trace = _hierarchy(rng, 4, 200)
    values = trace.draws[..., :3] + 0.1 * trace.draws[..., :3] ** 3
    order = rng.permutation(len(trace.names))
    shuffled = trace._replace(names=tuple(trace.names[i] for i in order))
    first, useless = estimate(trace, values, ZeroVariance(1)), estimate(shuffled, values, Structured())
    assert (useless.mcse < 1.1 * first.mcse).all()


def test_families_of_single_coordinates_come_in_the_order_of_what_depends_on_them(rng):
    trace = _hierarchy(rng, 4, 300, groups=8)
    extra = rng.normal(size=(4, 300, 1))
    trace = make_trace(
        np.concatenate([trace.draws, extra], -1),
        np.concatenate([trace.scores, -extra], -1),
        (*trace.names, "unrelated"),
    )
    problem = make_problem(trace, trace.draws[..., :1]).unrotated()
    for room, expected in ((100, [8, 9]), (18, [8]), (7, [])):  # ten of the diagonal come first
        families = structure_families(problem, room)
        assert [int(family.first[0]) for family in families if isinstance(family, Pairs)] == expected
