"""Controls from named dimensions: which coordinates are a block, and that controls are Stein operators of fields."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from control_cases import estimate, structure_fields

from mcmcpost.control import Auto, Structured, ZeroVariance
from mcmcpost.control.features.structure import (
    LAGS,
    Blocks,
    Diagonal,
    Neighbours,
    Pairs,
    Sums,
    SumsByGlobals,
    structure_families,
    structure_of,
)
from mcmcpost.control.problem import make_problem
from mcmcpost.core.errors import InputError, InputTypeError
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
    names = [label.format(i, j) for i in range(7) for j in range(2)] + ["w", "v_1", "chol_corr___0", "chol_corr___1"]
    found = Blocks.of(names)
    assert [block.tolist() for block in found.blocks] == [list(range(0, 14, 2)), list(range(1, 14, 2))]
    assert found.globals.tolist() == [14, 15, 16, 17]


def _entries(form, *sizes):
    return [form.format(*index) for index in np.ndindex(*sizes)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([f"theta{i}" for i in "abcdefgh"], {}),
        (_entries("x[{}]", 100), {"x": 100}),  # bare arrays
        (_entries("unconstrained[{}]", 9), {"unconstrained": 9}),
        (_entries("p_simplex___{}", 8), {"p_simplex__": 8}),  # nutpie, nine shares
        (_entries("P_simplex___{}.{}", 10, 3), {f"P_simplex__[:, {k}]": 10 for k in range(3)}),  # four shares each
        (_entries("a_zerosum___{}.{}", 9, 1), {"a_zerosum__[:, 0]": 9}),
        (_entries("L_cholesky-cov-packed___{}", 15) + _entries("z_{}.{}", 9, 3), {f"z[:, {k}]": 9 for k in range(3)}),
        (_entries("L_cholesky-cov-packed___{}", 21), {"L_cholesky-cov-packed__": 21}),
        (_entries("items[{}, {}]", 12, 8), {"items[:, :]": 96}),  # two long dimensions
        (_entries("z[{}, {}, {}]", 2, 9, 8), {f"z[{k}, :, :]": 72 for k in range(2)}),
        ([f"L[{i}, {j}]" for i in range(5) for j in range(i)], {"L[:, :]": 10}),  # a triangle has no parts alike
        ([f"beta_{i}" for i in range(1, 11)], {"beta": 10}),
        ([f"beta_{i}" for i in range(1, 11)] + _entries("z[{}]", 8), {"z": 8}),
        ([f"beta_{i}" for i in range(1, 11)] + [f"z_1.{i}" for i in range(1, 9)] + ["w.1"], {"z_1": 8}),  # Stan
        (["beta", *_entries("beta_1_{}", 9), *_entries("beta_2_{}", 9)], {f"beta[{k}, :]": 9 for k in (1, 2)}),
        (["z[St. Louis, MN]", *_entries("z[{}]", 7)], {"z": 7}),
    ],
)
def test_blocks_are_told_by_the_way_that_a_trace_writes_its_indices(names, expected):
    assert {name: len(labels) for name, labels in structure_of(names).items()} == expected


def test_controls_are_the_stein_operator_of_their_fields(rng):
    """∇·v + v·s by automatic differentiation: their mean is zero under any density, whatever the coordinates' scale."""
    names = ["mu", *(f"z[{i}, {j}]" for i in range(7) for j in range(2)), "log_sd"]
    d = len(names)
    blocks = Blocks.of(names)
    shift, scale = rng.normal(size=d), np.exp(rng.normal(size=d))
    x, s = rng.normal(size=(6, d)), rng.normal(size=(6, d))
    given = (blocks.globals, blocks.blocks, shift, scale)
    pairs = Pairs(np.repeat(blocks.globals[:1], 7), blocks.blocks[1])
    families = [Sums(*given), SumsByGlobals(*given), Neighbours(*given, lags=(1, 3, 4)), Diagonal(d), pairs]
    found = np.concatenate([family.controls((x - shift) / scale, s * scale) for family in families], axis=1)
    fields = list(structure_fields(blocks, shift, scale, d))
    assert found.shape[1] == len(fields) == sum(family.size for family in families)
    for column, field in zip(found.T, fields, strict=True):
        expected = [jnp.trace(jax.jacfwd(field)(row)) + field(row) @ score for row, score in zip(x, s, strict=True)]
        np.testing.assert_allclose(column, np.array(expected), rtol=1e-9, atol=1e-9)


def test_sequences_are_told_from_groups(rng):
    """A walk by its levels or by its increments, beside groups, whose order means nothing."""
    length, states = 20, 250
    names = [f"{name}[{i}]" for name in ("walk", "steps", "group") for i in range(length)]
    precision = np.zeros((3 * length, 3 * length))
    walk, steps, group = (slice(k * length, (k + 1) * length) for k in range(3))
    forward = np.eye(length) - np.eye(length, k=-1)
    precision[walk, walk] = forward.T @ forward + 0.5 * np.eye(length)
    back = np.linalg.inv(forward)
    precision[steps, steps] = np.eye(length) + 2.0 * back.T @ back
    precision[group, group] = 1.5 * np.eye(length) - 1 / length
    draws = np.linalg.solve(np.linalg.cholesky(precision).T, rng.normal(size=(3 * length, 4 * states))).T
    draws = draws.reshape(4, states, -1)
    problem = make_problem(make_trace(draws, -draws @ precision, names), draws[..., :1]).unrotated()
    near, far = (family for family in structure_families(problem, 0) if isinstance(family, Neighbours))
    assert [block.tolist() for block in near.blocks] == [list(range(length)), list(range(length, 2 * length))]
    assert (near.lags, far.lags) == LAGS


def test_auto_finds_the_structure_of_the_traces_own_coordinates(rng):
    """In rotated ones no neighbours are alike: a walk is a sequence for both methods, with the same controls."""
    length = 15
    forward = np.eye(length) - np.eye(length, k=-1)
    precision = forward.T @ forward + 0.2 * np.eye(length)
    draws = np.linalg.solve(np.linalg.cholesky(precision).T, rng.normal(size=(length, 2_000))).T.reshape(4, 500, -1)
    trace = make_trace(draws, -draws @ precision, [f"walk[{i}]" for i in range(length)])
    values = (draws[..., 1:] * draws[..., :-1]).sum(axis=-1, keepdims=True) ** 2
    structured, auto = (estimate(trace, values, method) for method in (Structured(), Auto(kernel=False, max_degree=2)))
    own = structured.info["num_features"]
    assert own == [15, 17, 19, 27, 41]  # scores, sums, neighbours, farther ones, squares, of which the sums hold one
    assert auto.info["tried"][0]["num_features"][: len(own)] == own


def _hierarchy(rng, chains, draws, groups=20):
    """Return a trace of z | t ~ N(0, e^{2t}), t ~ N(0, 0.3²): the mean of the scale e^t is exp(0.045)."""
    t = 0.3 * rng.normal(size=(chains, draws))
    z = np.exp(t)[..., None] * rng.normal(size=(chains, draws, groups))
    score_z = -z * np.exp(-2 * t)[..., None]
    score_t = -t / 0.3**2 - groups + (z**2).sum(axis=-1) * np.exp(-2 * t)
    names = [*(f"z[{i}]" for i in range(groups)), "t"]
    return make_trace(np.concatenate([z, t[..., None]], -1), np.concatenate([score_z, score_t[..., None]], -1), names)


METHODS = {"structured": Structured, "auto": partial(Auto, kernel=False, max_degree=2)}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_the_scale_of_a_hierarchy_gains(rng, method):
    """First order leaves the scale as it is; its sums do not. Errors hold over replications."""
    deviations, plain = [], []
    for _ in range(12):
        trace = _hierarchy(rng, 4, 150)
        values = np.exp(trace.draws[..., -1:])
        result = estimate(trace, values, method())
        deviations.append((result.mean[0] - np.exp(0.045)) / result.mcse[0])
        plain.append((result.mcse[0] / result.mcse_plain[0]) ** 2)
    first = estimate(trace, values, ZeroVariance(1))
    assert first.gain[0] < 50
    assert np.median(plain) < 1 / 4
    assert np.mean(np.square(deviations)) < 2.5


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_structure_of_a_person_is_that_of_good_names(rng, method):
    """Names of no meaning, or that mislead, are as good as the right ones once they are corrected."""
    trace = _hierarchy(rng, 4, 150)
    values, right = np.exp(trace.draws[..., -1:]), estimate(trace, np.exp(trace.draws[..., -1:]), method())
    plain = tuple(f"theta{chr(97 + i)}" for i in range(20))
    for names in ((*plain, "t"), ("t[0]", *plain[1:], *(["t[1]"]))):
        misled = trace._replace(names=names)
        assert estimate(misled, values, method()).gain[0] < right.gain[0] / 2
        corrected = estimate(misled, values, method(structure={"z": names[:-1]}))
        np.testing.assert_array_equal(corrected.mean, right.mean)
        np.testing.assert_array_equal(corrected.mcse, right.mcse)
        nothing = estimate(trace, values, method(structure={}))
        np.testing.assert_array_equal(nothing.mean, estimate(misled, values, method()).mean)


def test_the_structure_that_is_found_can_be_given(rng):
    trace = _hierarchy(rng, 2, 50, groups=8)
    found = structure_of(trace.names)
    assert found == {"z": trace.names[:-1]}
    method = Structured(structure=found)
    assert replace(method) == method
    assert hash(method) == hash(Structured(structure=dict(found)))
    assert Blocks.of(trace.names, method.structure).globals.tolist() == [8]


@pytest.mark.parametrize(
    ("structure", "error", "said"),
    [
        (["z[0]", "z[1]"], InputTypeError, "Structured: expected `structure` to be a mapping"),
        ((("z", "z[0]", "z[1]"),), InputTypeError, "Structured: expected `structure` to be a mapping"),
        ({"z": "z[0]"}, InputTypeError, "structure: expected `z` to be a list of names, got 'z\\[0\\]'"),
        ({"z": ("z[0]",)}, InputError, "at least two labels in block `z`, got .* Leave it out"),
        ({"z": ("z[0]", "z[1]"), "w": ("t", "z[1]")}, InputError, "once, got z\\[1\\] in z and w"),
        ({"z": ("z[0]", "z[0]")}, InputError, "once, got z\\[0\\] in z and z"),
        ({"z": ("z[0]", "z[11]")}, InputError, "got z\\[11\\] in block `z`. Did you mean 'z\\[1\\]'"),
    ],
)
def test_a_structure_that_cannot_be_is_refused(rng, structure, error, said):
    trace = _hierarchy(rng, 2, 50, groups=8)
    with pytest.raises(error, match=said):
        estimate(trace, trace.draws[..., :1], Structured(structure=structure))


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
