"""Controls from named dimensions: which coordinates are a block, and that controls are Stein
operators of fields."""

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from control_cases import estimate, structure_fields

import mcmcpost as mp
from mcmcpost.control import Auto, Structured, ZeroVariance
from mcmcpost.control.features.families import Subset, from_json
from mcmcpost.control.features.structure import (
    LAGS,
    Blocks,
    BlockSums,
    Diagonal,
    Margins,
    Neighbours,
    Pairs,
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
    names = [label.format(i, j) for i in range(7) for j in range(2)] + [
        "w",
        "v_1",
        "chol_corr___0",
        "chol_corr___1",
    ]
    found = Blocks.of(names)
    assert [block.tolist() for block in found.blocks] == [
        list(range(0, 14, 2)),
        list(range(1, 14, 2)),
    ]
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
        # four shares each
        (_entries("P_simplex___{}.{}", 10, 3), {f"P_simplex__[:, {k}]": 10 for k in range(3)}),
        (_entries("a_zerosum___{}.{}", 9, 1), {"a_zerosum__[:, 0]": 9}),
        (
            _entries("L_cholesky-cov-packed___{}", 15) + _entries("z_{}.{}", 9, 3),
            {f"z[:, {k}]": 9 for k in range(3)},
        ),
        (_entries("L_cholesky-cov-packed___{}", 21), {"L_cholesky-cov-packed__": 21}),
        (_entries("items[{}, {}]", 12, 8), {"items[:, :]": 96}),  # two long dimensions
        (_entries("z[{}, {}, {}]", 2, 9, 8), {f"z[{k}, :, :]": 72 for k in range(2)}),
        # a triangle has no parts alike
        ([f"L[{i}, {j}]" for i in range(5) for j in range(i)], {"L[:, :]": 10}),
        ([f"beta_{i}" for i in range(1, 11)], {"beta": 10}),
        ([f"beta_{i}" for i in range(1, 11)] + _entries("z[{}]", 8), {"z": 8}),
        # Stan
        (
            [f"beta_{i}" for i in range(1, 11)] + [f"z_1.{i}" for i in range(1, 9)] + ["w.1"],
            {"z_1": 8},
        ),
        (
            ["beta", *_entries("beta_1_{}", 9), *_entries("beta_2_{}", 9)],
            {f"beta[{k}, :]": 9 for k in (1, 2)},
        ),
        (["z[St. Louis, MN]", *_entries("z[{}]", 7)], {"z": 7}),
    ],
)
def test_blocks_are_told_by_the_way_that_a_trace_writes_its_indices(names, expected):
    assert {name: np.size(labels) for name, labels in structure_of(names).items()} == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (_entries("z[{}, {}]", 8, 7), {"z[:, :]": (8, 7)}),
        (_entries("z_{}.{}", 8, 7), {"z[:, :]": (8, 7)}),
        # Stan, columns first
        ([f"z.{i}.{j}" for j in range(1, 8) for i in range(1, 9)], {"z[:, :]": (8, 7)}),
        (_entries("z[{}, {}, {}]", 8, 2, 7), {f"z[:, {k}, :]": (8, 7) for k in range(2)}),
        (_entries("z[{}, {}]", 8, 7)[:-1], {"z[:, :]": (55,)}),  # no complete table
        (_entries("z[{}, {}, {}]", 7, 8, 9), {"z[:, :, :]": (504,)}),
    ],
)
def test_two_long_dimensions_are_a_grid(names, expected):
    found = structure_of(names)
    assert {name: np.shape(labels) for name, labels in found.items()} == expected
    for name, labels in found.items():
        if np.ndim(labels) == 2:
            index = [[re.findall(r"\d+", label) for label in row] for row in labels]
            rows, columns = (np.array(index)[..., [0, -1]].astype(int)).transpose(2, 0, 1)
            assert (rows == rows[:, :1]).all(), name
            assert (columns == columns[:1]).all(), name


@pytest.mark.slow
def test_controls_are_the_stein_operator_of_their_fields(rng):
    """∇·v + v·s by automatic differentiation: their mean is zero under any density, whatever the
    coordinates' scale."""
    names = ["mu", *(f"z[{i}, {j}]" for i in range(7) for j in range(2)), "log_sd"]
    d = len(names)
    blocks = Blocks.of(names)
    shift, scale = rng.normal(size=d), np.exp(rng.normal(size=d))
    x, s = rng.normal(size=(6, d)), rng.normal(size=(6, d))
    given = (blocks.globals, blocks.blocks, shift, scale)
    pairs = Pairs(np.repeat(blocks.globals[:1], 7), blocks.blocks[1])
    families = [
        BlockSums(*given),
        SumsByGlobals(*given),
        Neighbours(*given, lags=(1, 3, 4)),
        Diagonal(d),
        pairs,
    ]
    found = np.concatenate(
        [family.controls((x - shift) / scale, s * scale) for family in families], axis=1
    )
    fields = list(structure_fields(blocks, shift, scale, d))
    assert found.shape[1] == len(fields) == sum(family.size for family in families)
    for column, field in zip(found.T, fields, strict=True):
        expected = [
            jnp.trace(jax.jacfwd(field)(row)) + field(row) @ score
            for row, score in zip(x, s, strict=True)
        ]
        np.testing.assert_allclose(column, np.array(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("unchecked")
def test_nothing_depends_on_the_origin_of_a_block_or_on_the_order_of_coordinates(rng):
    """Effects about a mean that is not zero, and a scale that their number hardly tells."""
    names = ["mu", *(f"theta[{i}]" for i in range(8)), "log_tau"]
    mu, log_tau = rng.normal(size=(2, 4, 100, 1)) * np.reshape([1.0, 0.3], (2, 1, 1, 1))
    theta = mu + np.exp(0.5 * log_tau) * rng.normal(size=(4, 100, 8))
    pull = (theta - mu) / np.exp(log_tau)
    of_tau = -log_tau / 0.09 - 4 + 0.5 * (pull * (theta - mu)).sum(-1, keepdims=True)
    draws = np.concatenate([mu, theta, log_tau], -1)
    scores = np.concatenate([pull.sum(-1, keepdims=True) - mu, -pull, of_tau], -1)
    values = (theta**2).mean(-1, keepdims=True)
    found = mp.expectation(mp.from_arrays(draws, scores, names=names), values, "structured")
    assert (found.gain > 3).all()
    shift = np.where([name.startswith("theta") for name in names], 7.0, 0.0)
    turned = [names[j] for j in range(9, -1, -1)]
    forth, back = (
        make_problem(make_trace(draws[..., order], scores[..., order]), values)
        for order in (slice(None), slice(None, None, -1))
    )
    assert back.fewest == pytest.approx(forth.fewest)
    for tree in (
        mp.from_arrays(draws + shift, scores, names=names),
        mp.from_arrays(draws[..., ::-1], scores[..., ::-1], names=turned),
    ):
        same = mp.expectation(tree, values, "structured")
        np.testing.assert_allclose(same.mean, found.mean, atol=1e-6)
        np.testing.assert_allclose(same.mcse, found.mcse, rtol=1e-4)


def _grid_fields(blocks, shift, scale):
    """Yield the vector fields of `Margins`, in order: two globals, a block of three, and grids of 3
    × 4 and 3 × 3."""
    unit = jnp.eye(len(shift))
    a, z, w = blocks.blocks
    along = [unit[a], unit[z.ravel()], unit[w.ravel()]]  # (m, d) each
    along += [
        unit[block].sum(1 - axis) / np.sqrt(block.shape[1 - axis])
        for block in (z, w)
        for axis in (0, 1)
    ]
    grid = [0, 1, 2, 1, 1, 2, 2]
    own = jnp.diag(scale)[blocks.globals]

    def u(x):
        return ((x - shift) / scale)[blocks.globals]

    for p, q in np.ndindex(7, 7):
        if max(p, q) < 3 or len(along[p]) != len(along[q]):
            continue
        m, field = len(along[p]), lambda x, p=p, q=q: (along[p] @ x) @ along[q]
        yield field
        for k in range(2):
            yield lambda x, k=k, field=field: field(x) * u(x)[k]
        if grid[p] != grid[q]:
            yield lambda x, p=p, q=q, m=m: jnp.sum(along[p] @ x) * along[q].sum(0) / m
        if p <= q:
            for k in range(2):
                yield (
                    lambda x, p=p, q=q, m=m, k=k: (
                        (jnp.dot(along[p] @ x, along[q] @ x) / m - 1) * own[k]
                    )
                )
    for block in (z, w, w.T):  # z has four columns
        yield lambda x, block=block: (x[block] * x[a][:, None]).ravel() @ unit[block.ravel()]
        yield lambda x, block=block: (x[block] ** 2).mean(1) @ unit[a]


def _neighbour_fields(grid, shift, scale, k, lag):
    """Yield the vector fields of `Neighbours` along the rows of a grid and along the sums of its
    columns."""
    unit = jnp.eye(len(shift))
    for lines in (unit[grid], unit[grid].sum(0, keepdims=True) / np.sqrt(len(grid))):  # (l, m, d)
        ahead = lambda x, e=lines: jnp.einsum("lm,lmd->d", (e @ x)[:, :-lag], e[:, lag:])  # noqa: E731
        back = lambda x, e=lines: jnp.einsum("lm,lmd->d", (e @ x)[:, lag:], e[:, :-lag])  # noqa: E731
        yield ahead
        yield back
        yield lambda x, field=ahead: field(x) * (x[k] - shift[k]) / scale[k]
        yield lambda x, field=back: field(x) * (x[k] - shift[k]) / scale[k]
        size = lines[..., 0].size
        yield (
            lambda x, e=lines, n=size: (
                jnp.sum((e @ x)[:, :-lag] * (e @ x)[:, lag:]) / n * scale[k] * unit[k]
            )
        )


@pytest.mark.slow
def test_controls_of_grids_are_the_stein_operator_of_their_fields(rng):
    """Directions of rows and columns meet in a square grid, and there only: a wrong divergence is a
    bias."""
    names = [
        "mu",
        *(f"a{i}" for i in range(3)),
        *_entries("z{}{}", 3, 4),
        *_entries("w{}{}", 3, 3),
        "log_sd",
    ]
    d = len(names)
    tables = {
        "a": names[1:4],
        "z": np.reshape(names[4:16], (3, 4)),
        "w": np.reshape(names[16:25], (3, 3)),
    }
    blocks = Blocks.of(names, Structured(structure=tables).structure)
    assert [block.shape for block in blocks.blocks] == [(3,), (3, 4), (3, 3)]
    shift, scale = rng.normal(size=d), np.exp(rng.normal(size=d))
    x, s = rng.normal(size=(3, d)), rng.normal(size=(3, d))
    margins = Margins(*blocks, shift, scale)
    sequence = Neighbours(blocks.globals[:1], (blocks.blocks[1],), shift, scale, lags=(1, 2))
    fields = list(_grid_fields(blocks, shift, scale))
    fields += [
        field
        for lag in (1, 2)
        for field in _neighbour_fields(blocks.blocks[1], shift, scale, 0, lag)
    ]
    families = [margins, sequence]
    found = np.concatenate(
        [family.controls((x - shift) / scale, s * scale) for family in families], axis=1
    )
    along = np.concatenate(
        [family.along((x - shift) / scale, s[0] * scale)[1] for family in families], axis=1
    )
    assert found.shape[1] == len(fields) == sum(family.size for family in families)
    order = _in_order_of_lags(margins.size)
    for column, affine, field in zip(found.T[order], along.T[order], fields, strict=True):
        values = [field(row) for row in x]
        expected = [
            jnp.trace(jax.jacfwd(field)(row)) + value @ score
            for row, value, score in zip(x, values, s, strict=True)
        ]
        np.testing.assert_allclose(column, np.array(expected), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(
            affine, np.array([value @ s[0] for value in values]), rtol=1e-9, atol=1e-9
        )


def _in_order_of_lags(first):
    """Return the order of columns such that those of lag 1 come before those of lag 2, as fields
    do."""
    both = first + np.arange(20).reshape(2, 2, 5)  # lines and sums, lags, controls
    return np.concatenate([np.arange(first), both.transpose(1, 0, 2).ravel()])


def test_sums_of_rows_are_exact_where_rows_are_alike(rng):
    """Under a normal density of rows with a common part Σ_i(Σ_j x_ij)² is a sum over rows, not over
    all entries."""
    rows, columns, common = 8, 10, 1.5
    one_row = np.eye(columns) + common * np.ones((columns, columns)) / columns
    precision = np.kron(np.eye(rows), one_row)
    draws = np.linalg.solve(
        np.linalg.cholesky(precision).T, rng.normal(size=(rows * columns, 1_200))
    ).T
    trace = make_trace(
        draws.reshape(4, 300, -1),
        -(draws @ precision).reshape(4, 300, -1),
        _entries("z[{}, {}]", rows, columns),
    )
    values = (trace.draws.reshape(4, 300, rows, columns).sum(-1) ** 2).sum(-1, keepdims=True)
    result = estimate(trace, values, Structured())
    assert str(result.status[0]) == "exact"
    np.testing.assert_allclose(result.mean, rows * columns / (1 + common), rtol=1e-8)
    one_block = {"z": [label for row in structure_of(trace.names)["z[:, :]"] for label in row]}
    assert estimate(trace, values, Structured(structure=one_block)).gain[0] < 100


def test_sequences_of_a_grid_are_told_along_each_dimension(rng):
    """Walks of sites, time first: neighbours in the flattened order are sites, which mean
    nothing."""
    length, sites, states = 12, 8, 1_000
    forward = np.eye(length) - np.eye(length, k=-1)
    precision = np.kron(forward.T @ forward + 0.3 * np.eye(length), np.eye(sites))
    draws = np.linalg.solve(
        np.linalg.cholesky(precision).T, rng.normal(size=(length * sites, states))
    ).T
    draws = draws.reshape(4, states // 4, -1)
    names = _entries("level[{}, {}]", length, sites)
    problem = make_problem(make_trace(draws, -draws @ precision, names), draws[..., :1]).unrotated()
    found = [family for family in structure_families(problem, 0) if isinstance(family, Neighbours)]
    assert [family.lags for family in found] == list(LAGS)
    for family in found:
        assert [block.tolist() for block in family.blocks] == [
            np.arange(96).reshape(length, sites).T.tolist()
        ]


def test_margins_of_many_grids_leave_room_for_what_is_small(rng):
    names = ["mu", "sd", *(label for k in "abcde" for label in _entries(k + "[{}, {}]", 7, 7))]
    draws = rng.normal(size=(4, 300, len(names)))
    for number, expected in ((1, 1), (5, 0)):
        d = 2 + 49 * number
        problem = make_problem(
            make_trace(draws[..., :d], -draws[..., :d], names[:d]), draws[..., :1]
        ).unrotated()
        families = structure_families(problem, 0)
        assert sum(isinstance(family, Margins) for family in families) == expected
        assert isinstance(families[-1], Diagonal)


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
    draws = np.linalg.solve(
        np.linalg.cholesky(precision).T, rng.normal(size=(3 * length, 4 * states))
    ).T
    draws = draws.reshape(4, states, -1)
    problem = make_problem(make_trace(draws, -draws @ precision, names), draws[..., :1]).unrotated()
    near, far = (
        family for family in structure_families(problem, 0) if isinstance(family, Neighbours)
    )
    assert [block.tolist() for block in near.blocks] == [
        list(range(length)),
        list(range(length, 2 * length)),
    ]
    assert (near.lags, far.lags) == LAGS


def test_auto_finds_the_structure_of_the_traces_own_coordinates(rng):
    """In rotated ones no neighbours are alike: a walk is a sequence for both methods, with the same
    controls."""
    length = 15
    forward = np.eye(length) - np.eye(length, k=-1)
    precision = forward.T @ forward + 0.2 * np.eye(length)
    draws = np.linalg.solve(
        np.linalg.cholesky(precision).T, rng.normal(size=(length, 2_000))
    ).T.reshape(4, 500, -1)
    trace = make_trace(draws, -draws @ precision, [f"walk[{i}]" for i in range(length)])
    values = (draws[..., 1:] * draws[..., :-1]).sum(axis=-1, keepdims=True) ** 2
    structured, auto = (
        estimate(trace, values, method)
        for method in (Structured(), Auto(kernel=False, max_degree=2))
    )
    own = structured.info["num_features"]
    # scores, sums, neighbours, farther ones, squares, of which the sums hold one
    assert own == [15, 17, 19, 27, 41]
    assert auto.info["tried"][0]["num_features"][: len(own)] == own


def _hierarchy(rng, chains, draws, groups=20):
    """Return a trace of z | t ~ N(0, e^{2t}), t ~ N(0, 0.3²): the mean of the scale e^t is
    exp(0.045)."""
    t = 0.3 * rng.normal(size=(chains, draws))
    z = np.exp(t)[..., None] * rng.normal(size=(chains, draws, groups))
    score_z = -z * np.exp(-2 * t)[..., None]
    score_t = -t / 0.3**2 - groups + (z**2).sum(axis=-1) * np.exp(-2 * t)
    names = [*(f"z[{i}]" for i in range(groups)), "t"]
    return make_trace(
        np.concatenate([z, t[..., None]], -1),
        np.concatenate([score_z, score_t[..., None]], -1),
        names,
    )


METHODS = {"structured": Structured, "auto": partial(Auto, kernel=False, max_degree=2)}


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_a_structure_of_a_person_is_that_of_good_names(rng, method):
    """Names of no meaning, or that mislead, are as good as the right ones once they are
    corrected."""
    trace = _hierarchy(rng, 4, 150)
    values, right = (
        np.exp(trace.draws[..., -1:]),
        estimate(trace, np.exp(trace.draws[..., -1:]), method()),
    )
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
        (
            (("z", "z[0]", "z[1]"),),
            InputTypeError,
            "Structured: expected `structure` to be a mapping",
        ),
        (
            {"z": "z[0]"},
            InputTypeError,
            "structure: expected `z` to be a list of names, got 'z\\[0\\]'",
        ),
        ({"z": ("z[0]",)}, InputError, "at least two labels in block `z`, got .* Leave it out"),
        ({"z": ("z[0]", "z[1]"), "w": ("t", "z[1]")}, InputError, "once, got z\\[1\\] in z and w"),
        ({"z": ("z[0]", "z[0]")}, InputError, "once, got z\\[0\\] in z and z"),
        (
            {"z": (("z[0]", "z[1]"), ("z[2]",))},
            InputError,
            "rows of one length, .* in grid `z`, got rows of 2, 1",
        ),
        ({"z": (("z[0]",), ("z[1]",))}, InputError, "at least two, in grid `z`, got rows of 1, 1"),
        ({"z": (("z[0]", "z[1]"), ("z[2]", "z[1]"))}, InputError, "once, got z\\[1\\] in z and z"),
        ({"z": (("z[0]", "z[1]"), "z[2]")}, InputTypeError, "expected `z` to be a list of names"),
        (
            {"z": ("z[0]", "z[11]")},
            InputError,
            "got z\\[11\\] in block `z`. Did you mean 'z\\[1\\]'",
        ),
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
    first, useless = (
        estimate(trace, values, ZeroVariance(1)),
        estimate(shuffled, values, Structured()),
    )
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
        assert [
            int(family.first[0]) for family in families if isinstance(family, Pairs)
        ] == expected


def test_families_in_sums_of_the_release_before_are_read():
    """Two of them had other names."""
    blocks = Blocks.of(LABELS["numpyro"])
    sums = BlockSums(blocks.globals, blocks.blocks, np.zeros(10), np.ones(10))
    stored = Subset(sums, np.arange(sums.size) > 1).to_json()
    before = {**stored, "kind": "Some", "family": {**stored["family"], "kind": "Sums"}}
    assert from_json(before).to_json() == stored
