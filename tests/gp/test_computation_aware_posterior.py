"""The algebra of computation-aware posteriors against dense definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cagp_cases import (
    KERNEL,
    NOISE,
    block_actions,
    central_difference,
    dense_bound,
    dense_posterior,
    dense_projected,
    exact_posterior,
    make_case,
    matrix,
    partial_actions,
    random_actions,
)

from benchmarks.gp._projected_likelihood import ProjectedLikelihood
from mcmcpost.gp import BlockActions, actions as block_product
from mcmcpost.gp.actions import (
    ActionTask,
    DenseActions,
    GivenActions,
    Planned,
    RandomActions,
    ResidualActions,
    SparseActions,
    UnitActions,
    balanced_blocks,
    take_actions,
)
from mcmcpost.gp.computation_aware import EvidenceBound, condition, joint_covariance, predict
from mcmcpost.solve import conjugate_gradients
from mcmcpost.stein import Matern32, Scaled, gram

SIGMA2 = jnp.asarray(NOISE)
N, I = 43, 6
"""Of what is compared with dense definitions; blocks of 7 and 8 rows."""
ACTIONS = {"blocks": block_actions, "partial": partial_actions, "dense": random_actions}
OBJECTIVES = {
    "bound": (EvidenceBound(), dense_bound),
    "projected": (ProjectedLikelihood(), dense_projected),
}
POLICIES = {
    "blocks": BlockActions(),
    "residuals": ResidualActions(),
    "unit": UnitActions(),
    "random": RandomActions(),
    "given": GivenActions(np.linspace(-1, 1, 23 * 6).reshape(23, 6) ** 2 + np.eye(23, 6)),
}


@pytest.mark.parametrize(("n", "i"), [(203, 20), (20, 20), (7, 1), (200, 20), (1000, 999)])
def test_blocks_are_balanced_and_keep_every_row(n, i):
    rows, mask = balanced_blocks(n, i)
    assert sorted(rows[mask]) == list(range(n))
    sizes = mask.sum(axis=1)
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.slow
def test_blocks_of_near_rows_keep_every_row_and_are_nearer_than_consecutive_ones(rng):
    X = jnp.asarray(rng.normal(size=(203, 2)))
    task = ActionTask(X, jnp.zeros(203), 20, None)
    spread = {}
    for near in (False, True):
        actions = BlockActions(near=near).start(task).actions
        rows, mask = np.asarray(actions.rows), np.asarray(actions.mask)
        assert sorted(rows[mask]) == list(range(203))
        spread[near] = np.mean(
            [np.var(X[r[m]], axis=0).sum() for r, m in zip(rows, mask, strict=True)]
        )
    assert spread[True] < 0.3 * spread[False]


@pytest.mark.parametrize("i", [0, 8])
def test_more_blocks_than_rows_or_none_are_refused(i):
    with pytest.raises(ValueError, match="between 1 and 7 actions"):
        balanced_blocks(7, i)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "i"),
    [
        (21, 8),
        (50, 3),
        (43, 6),
        (40, 5),
        (13, 1),
        (6, 6),
    ],
)
def test_the_product_with_blocks_is_the_dense_one_whatever_the_tiles(n, i, rng, monkeypatch):
    """Tiles of at most eight rows: blocks that share a tile, that fill one, and that spread over
    several.

    The derivatives of its inner product with any matrix, by kernel and entries, are those of the
    dense product.
    """
    monkeypatch.setattr(block_product, "TILE_ROWS", 8)
    X, S, slope = (
        jnp.asarray(make_case(rng, n).X),
        block_actions(rng, n, i),
        jnp.asarray(rng.normal(size=(n, i))),
    )

    def tiled(kernel, values):
        return SparseActions(values, S.rows, S.mask, whole=True).image(kernel, X)

    def whole(kernel, values):
        matrix = (
            jnp.zeros((n, i)).at[S.rows, jnp.arange(i)[:, None]].add(jnp.where(S.mask, values, 0))
        )
        return gram(kernel, X, X) @ matrix

    # One program: the same operations one by one compile eighty.
    @jax.jit
    def both(kernel, values):
        images, pullbacks = zip(*(jax.vjp(f, kernel, values) for f in (tiled, whole)), strict=True)
        return images, [pullback(slope) for pullback in pullbacks]

    images, gradients = both(jax.tree.map(jnp.asarray, KERNEL), S.values)
    np.testing.assert_allclose(*images, rtol=1e-12, atol=1e-13)
    for mine, theirs in zip(*map(jax.tree.leaves, gradients), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("actions", ACTIONS)
def test_products_with_other_rows_are_the_dense_ones_in_several_row_blocks(actions, rng):
    case = make_case(rng, N)
    S = ACTIONS[actions](rng, N, I)
    found = S.cross(KERNEL, jnp.asarray(case.Z), jnp.asarray(case.X), tile=3 * N)
    np.testing.assert_allclose(
        found, gram(KERNEL, case.Z, case.X) @ matrix(S, N), rtol=1e-12, atol=1e-13
    )


@pytest.mark.slow
@pytest.mark.parametrize("actions", ACTIONS)
def test_posterior_is_the_dense_definition(actions, rng):
    n, i = N, I
    case = make_case(rng, n)
    S = ACTIONS[actions](rng, n, i)
    projection = condition(KERNEL, SIGMA2, jnp.asarray(case.X), jnp.asarray(case.y), S)
    mean, variance = predict(KERNEL, jnp.asarray(case.X), projection, jnp.asarray(case.Z))
    covariance = joint_covariance(KERNEL, jnp.asarray(case.X), projection, jnp.asarray(case.Z))
    dense = dense_posterior(KERNEL, NOISE, case, case.Z, matrix(S, n))
    np.testing.assert_allclose(mean, dense.mean, atol=1e-11)
    np.testing.assert_allclose(covariance, dense.covariance, atol=1e-11)
    np.testing.assert_allclose(variance, np.diag(dense.covariance), atol=1e-11)
    assert int(projection.rank) == i
    assert not bool(projection.raised)


@pytest.mark.slow
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("actions", ACTIONS)
def test_objectives_are_the_dense_definitions(objective, actions, rng):
    """Eq. 11 is NLL + KL, and eq. 9 the evidence of orthonormal projections."""
    n, i = N, I
    case = make_case(rng, n)
    S = ACTIONS[actions](rng, n, i)
    fast, slow = OBJECTIVES[objective]
    value = fast(KERNEL, SIGMA2, jnp.asarray(case.X), jnp.asarray(case.y), S)
    np.testing.assert_allclose(value, slow(KERNEL, NOISE, case, matrix(S, n)), rtol=1e-8)


@pytest.mark.slow
def test_bound_falls_to_the_evidence_as_the_budget_grows_to_n(rng):
    case, n = make_case(rng, 30), 30
    X, y = jnp.asarray(case.X), jnp.asarray(case.y)
    S = rng.normal(size=(n, n))
    budgets = [DenseActions(S * (np.arange(n) < i)) for i in (1, 10, 20, 30)]
    values = [float(EvidenceBound()(KERNEL, SIGMA2, X, y, actions)) for actions in budgets]
    K = np.asarray(gram(KERNEL, case.X)) + NOISE * np.eye(n)
    nll = 0.5 * (case.y @ np.linalg.solve(K, case.y) + np.linalg.slogdet(2 * np.pi * K)[1])
    assert np.all(np.diff(values) < 0)
    np.testing.assert_allclose(values[-1], nll, rtol=1e-8)


@pytest.mark.slow
def test_variance_is_never_below_the_exact_one_and_falls_with_nested_actions(rng):
    case, n = make_case(rng, 40, 200), 40
    S = rng.normal(size=(n, n))
    exact = exact_posterior(KERNEL, NOISE, case, case.Z)
    before = np.inf
    for i in (1, 5, 20, 39, 40):
        actions = DenseActions(S * (np.arange(n) < i))
        projection = condition(KERNEL, SIGMA2, jnp.asarray(case.X), jnp.asarray(case.y), actions)
        mean, variance = predict(KERNEL, jnp.asarray(case.X), projection, jnp.asarray(case.Z))
        assert (variance >= np.diag(exact.covariance) - 1e-12).all()
        assert (variance <= before + 1e-12).all()
        assert i == n or (variance > np.diag(exact.covariance) + 1e-9).any()
        before = np.asarray(variance)
    np.testing.assert_allclose(mean, exact.mean, atol=1e-9)
    np.testing.assert_allclose(variance, np.diag(exact.covariance), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_one_action_at_a_time_is_the_batch(policy, key, rng):
    case, n, i = make_case(rng, 23), 23, 6
    X, y, Z = map(jnp.asarray, case)
    chooser = POLICIES[policy].start(ActionTask(X, y, i, key))
    state = take_actions(KERNEL, SIGMA2, X, y, chooser, i)
    actions = chooser.actions if isinstance(chooser, Planned) else DenseActions(state.directions)
    projection = condition(KERNEL, SIGMA2, X, y, actions)
    mean, variance = predict(KERNEL, X, projection, Z)
    cross = gram(KERNEL, Z, X)
    explained = jnp.sum((cross @ state.directions) ** 2, axis=1)
    np.testing.assert_allclose(cross @ state.weights, mean, atol=1e-12)
    np.testing.assert_allclose(jnp.diagonal(gram(KERNEL, Z)) - explained, variance, atol=1e-12)
    K = gram(KERNEL, X) + NOISE * jnp.eye(n)
    np.testing.assert_allclose(state.residual, y - K @ state.weights, atol=1e-12)
    np.testing.assert_allclose(state.directions.T @ K @ state.directions, np.eye(i), atol=1e-10)
    assert int(state.rank) == int(state.step) == int(projection.rank) == i


@pytest.mark.slow
@pytest.mark.parametrize("i", [1, 10])
def test_residual_actions_give_the_iterates_of_conjugate_gradients(i, key, rng):
    case = make_case(rng, 40)
    X, y = jnp.asarray(case.X), jnp.asarray(case.y)
    K = gram(KERNEL, X) + NOISE * jnp.eye(40)
    chooser = ResidualActions().start(ActionTask(X, y, i, key))
    state = take_actions(KERNEL, SIGMA2, X, y, chooser, i)
    solved = conjugate_gradients(
        lambda v: K @ v, y[:, None], precondition=lambda r: r, rtol=0.0, max_steps=i
    )
    np.testing.assert_allclose(state.weights, solved.value[:, 0], rtol=1e-9, atol=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["zero", "dependent", "equal"])
def test_actions_without_full_rank_are_those_of_their_span(kind, rng):
    """Zero or dependent actions add nothing, make no NaN, and are counted."""
    n = 29
    X, y, Z = map(jnp.asarray, make_case(rng, n))
    S = rng.normal(size=(n, 5))
    extra = {"zero": np.zeros(n), "dependent": S @ np.arange(5.0), "equal": S[:, 2]}[kind]
    wide = np.column_stack([S[:, :2], extra, S[:, 2:]])
    full, spanned = (condition(KERNEL, SIGMA2, X, y, DenseActions(A)) for A in (wide, S))
    assert int(full.rank) == int(spanned.rank) == 5
    for mine, theirs in zip(
        predict(KERNEL, X, full, Z), predict(KERNEL, X, spanned, Z), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-9)
    for objective, _ in OBJECTIVES.values():
        mine, theirs = (objective(KERNEL, SIGMA2, X, y, DenseActions(A)) for A in (wide, S))
        np.testing.assert_allclose(mine, theirs, rtol=1e-9)
    state = take_actions(KERNEL, SIGMA2, X, y, Planned(DenseActions(wide)), 6)
    assert (int(state.step), int(state.rank)) == (6, 5)
    np.testing.assert_allclose(
        gram(KERNEL, Z, X) @ state.weights, predict(KERNEL, X, full, Z)[0], atol=1e-9
    )


@pytest.mark.slow
@pytest.mark.parametrize("actions", ACTIONS)
def test_actions_that_are_all_zero_leave_the_prior(actions, rng):
    case = make_case(rng, N)
    none = jax.tree.map(
        lambda leaf: 0 * leaf if leaf.dtype == float else leaf, ACTIONS[actions](rng, N, I)
    )
    projection = condition(KERNEL, SIGMA2, jnp.asarray(case.X), jnp.asarray(case.y), none)
    mean, variance = predict(KERNEL, jnp.asarray(case.X), projection, jnp.asarray(case.Z))
    assert int(projection.rank) == 0
    np.testing.assert_array_equal(mean, 0)
    np.testing.assert_allclose(variance, 1.3)


@pytest.mark.slow
def test_duplicated_rows_condition_well(rng):
    case = make_case(rng, 12)
    X, y = np.repeat(case.X, 3, axis=0), np.repeat(case.y, 3)
    projection = condition(
        KERNEL, jnp.asarray(1e-6), jnp.asarray(X), jnp.asarray(y), DenseActions(np.eye(36))
    )
    mean, _ = predict(KERNEL, jnp.asarray(X), projection, jnp.asarray(case.X))
    np.testing.assert_allclose(mean, case.y, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("actions", "objective"),
    [
        ("blocks", "bound"),
        ("dense", "bound"),
        ("dense", "projected"),
    ],
)
def test_gradients_are_central_differences(objective, actions, rng):
    case, n, i = make_case(rng, 17), 17, 3
    S = ACTIONS[actions](rng, n, i)
    entries = S.values if actions == "blocks" else S.matrix

    def loss(logs, entries):
        kernel = Scaled(jnp.exp(logs[0]), Matern32(jnp.exp(logs[1:4])))
        moved = (
            SparseActions(entries, S.rows, S.mask, S.whole)
            if actions == "blocks"
            else DenseActions(entries)
        )
        return OBJECTIVES[objective][0](
            kernel, jnp.exp(logs[4]), jnp.asarray(case.X), jnp.asarray(case.y), moved
        )

    logs = jnp.log(jnp.array([1.3, 0.7, 1.0, 1.4, 0.05]))
    both = jax.jit(jax.value_and_grad(loss, (0, 1)))
    _, (of_logs, of_entries) = both(logs, entries)
    tolerance = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(
        of_logs, central_difference(lambda x: both(x, entries)[0], logs), **tolerance
    )
    np.testing.assert_allclose(
        of_entries, central_difference(lambda x: both(logs, x)[0], entries), **tolerance
    )


@pytest.mark.slow
def test_eager_jit_and_vmap_agree(rng):
    case, n = make_case(rng, 19), 19
    S = block_actions(rng, n, 4)
    X, y = jnp.asarray(case.X), jnp.asarray(case.y)
    noises = jnp.array([0.01, 0.1, 1.0])

    def both(noise):
        mean, variance = predict(KERNEL, X, condition(KERNEL, noise, X, y, S), jnp.asarray(case.Z))
        return EvidenceBound()(KERNEL, noise, X, y, S), mean, variance

    eager = [both(noise) for noise in noises]
    for together, apart in zip(
        jax.jit(jax.vmap(both))(noises), zip(*eager, strict=True), strict=True
    ):
        np.testing.assert_allclose(together, np.stack(apart), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [True, False])
def test_a_training_step_never_holds_the_matrix(whole):
    """Value and gradient at n = 4096 need a few tiles and n×i arrays, not n×n ones."""
    n, i, tile = 4096, 8, 2**19
    rows, mask = balanced_blocks(n, i)

    def loss(noise, values, X, y):
        return EvidenceBound()(Matern32(1.0), noise, X, y, SparseActions(values, rows, mask, whole))

    arguments = (0.1, np.ones(rows.shape), np.zeros((n, 2)), np.zeros(n))
    stats = jax.jit(jax.value_and_grad(loss, (0, 1))).lower(*arguments).compile().memory_analysis()
    assert stats.temp_size_in_bytes < 8 * (8 * tile + 40 * n * i) < 0.5 * 8 * n * n
