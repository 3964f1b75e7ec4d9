"""Vector-valued control variates: Kronecker = dense = matrix-free, and what the other tasks are
worth."""

import numpy as np
import pytest
from normal_task_cases import KERNEL, RELATED, joint_problem, normal_task, related_tasks, smooth

from mcmcpost.control import Options, PlainMean, Sample
from mcmcpost.control.features.families import exponents_of_degree, polynomial_basis
from mcmcpost.control.kernels.systems import crossfit_dense, kernel_data
from mcmcpost.control.problem import join, make_problem
from mcmcpost.control.standard_errors import judged_variance
from mcmcpost.solve import ConjugateGradients
from mcmcpost.stein import (
    Coregionalisation,
    SquaredExponential,
    SteinTile,
    matrix_stein_tile,
    stein_gram,
)
from mcmcpost.tasks import ConvexTaskCovariance, TaskInput, TaskREML, VectorValued, estimate_jointly
from mcmcpost.tasks.vector_valued import (
    SCALAR_MARGIN,
    _joint_design,
    crossfit_kronecker,
    shared_covariance,
)
from mcmcpost.trace import make_trace

CHEAP = TaskREML(squared_lengthscales=(30.0,), max_steps=30)


# Kronecker, dense and matrix-free fits.


@pytest.fixture
def shared(rng):
    """Two integrands at the same draws, some of them repeated."""
    x = rng.normal(size=(2, 16, 2))
    x[:, 5:7] = x[:, 4:5]
    return make_problem(
        make_trace(x, -x),
        np.stack([smooth(x), np.cos(x[..., 1]) + x[..., 0]], axis=-1),
        num_folds=4,
    )


def kronecker_data(problem, degree):
    basis = polynomial_basis(problem, exponents_of_degree(2, degree))
    return kernel_data((problem.draws, problem.scores), basis, problem.values, problem)


def halves(covariance, order=1):
    """Two terms that add up to one: they take the dense way even at shared draws."""
    return Coregionalisation(
        (KERNEL, KERNEL), np.stack([0.3 * covariance, 0.7 * covariance]), order
    )


def kronecker_and_dense(problem, kernel, terms, nugget, degree):
    joint = join(tuple(problem.select(np.array([j])) for j in range(problem.values.shape[1])))
    design, _ = _joint_design(joint, degree)
    rows = (joint.draws, joint.scores, joint.indicators)
    dense = crossfit_dense(
        matrix_stein_tile(terms),
        nugget,
        kernel_data(rows, design, joint.values[:, None], joint),
        num_constants=joint.num_tasks,
    )
    tile, data = SteinTile(kernel), kronecker_data(problem, degree)
    covariance = terms.covariances.sum(axis=0)
    return crossfit_kronecker(tile, covariance, nugget, data), dense, joint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("degree", "terms"),
    [(0, Coregionalisation((KERNEL,), RELATED[None])), (2, halves(RELATED))],
    ids=["0", "2"],
)
def test_the_kronecker_fit_is_the_dense_one(shared, degree, terms):
    assert shared.counts.max() > 1
    fast, dense, joint = kronecker_and_dense(shared, KERNEL, terms, 0.05, degree)
    np.testing.assert_allclose(fast.mean, dense.mean, atol=1e-8)
    for quick, slow in zip(fast.refits, dense.refits, strict=True):
        np.testing.assert_allclose(quick[:, :, 0], slow[:, :, 0], atol=1e-7)
    scattered = np.zeros(len(joint.values))
    held_out, mask = joint.folds.held_out()
    scattered[held_out[mask]] = np.asarray(dense.control)[mask][:, 0]
    for k, (rows, mask) in enumerate(zip(*shared.folds.held_out(), strict=True)):
        for t in range(2):
            expected = scattered[joint.rows_of(t)][rows[mask]]
            np.testing.assert_allclose(fast.control[k][mask, t], expected, atol=1e-7)
    # The Kronecker fit has an amplitude for each eigendirection of B, the dense one their mean.
    u = np.linalg.eigh(RELATED)[1]
    each, mean = (u.T @ np.asarray(fit.model_covariance)[0] @ u for fit in (fast, dense))
    for matrix in (each, mean):
        np.testing.assert_allclose(matrix[0, 1], 0.0, atol=1e-8 * np.trace(matrix))
    np.testing.assert_allclose((each.diagonal() / mean.diagonal()).mean(), 1.0, rtol=1e-6)


def test_the_task_covariance_matters_for_shared_draws_only_with_a_ridge(shared):
    data, tile = kronecker_data(shared, 0), SteinTile(SquaredExponential(np.array([0.3, 0.3])))
    covariances = (np.eye(2), RELATED, np.array([[1.0, -0.9], [-0.9, 1.0]]))

    def means(nugget):
        fits = [crossfit_kronecker(tile, b, nugget, data) for b in covariances]
        return np.array([fit.mean[:, 0] for fit in fits])

    assert np.ptp(means(1e-10), axis=0).max() < 1e-6
    assert np.ptp(means(0.3), axis=0).min() > 1e-3


def test_a_singular_task_covariance_has_no_negative_eigenvalue(rng):
    """One of −1.2e-16 by rounding, times a large λ, would outweigh the nugget and make the weights
    negative."""
    x = rng.normal(size=(2, 16, 2))
    values = np.stack([smooth(x), np.cos(x[..., 1]) + x[..., 0], x[..., 1] ** 2], axis=-1)
    data = kronecker_data(make_problem(make_trace(x, -x), values, num_folds=4), 0)
    u = np.array([0.1, -0.1, 0.6])
    spectrum, mixing = np.linalg.eigh(np.outer(u, u) / np.mean(u**2))
    assert spectrum[0] < 0
    fit = crossfit_kronecker(SteinTile(KERNEL), np.outer(u, u), 1e-17, data)
    assert fit.converged
    null = mixing[:, 0]  # a direction that the kernel has no part in keeps its plain mean
    np.testing.assert_allclose(
        null @ fit.mean[:, 0], (np.asarray(data.values) @ null).mean(), atol=1e-12
    )


def test_the_covariance_of_shared_draws_is_the_definition(shared):
    data, nugget = kronecker_data(shared, 1), 1e-2
    found = shared_covariance(SteinTile(KERNEL), nugget, data)
    m = shared.num_states
    gram = np.asarray(stein_gram(KERNEL, shared.draws[:m], shared.scores[:m]))
    inverse = np.linalg.inv(gram / gram.diagonal().mean() + nugget * np.diag(1 / shared.counts[:m]))
    basis, y = np.asarray(data.basis)[:m], shared.values[:m]
    projected = inverse - inverse @ basis @ np.linalg.solve(
        basis.T @ inverse @ basis, basis.T @ inverse
    )
    np.testing.assert_allclose(found, y.T @ projected @ y / (m - basis.shape[1]), rtol=1e-7)


def three_unbalanced(rng):
    integrands = (smooth, lambda x: 1.0 - smooth(x), lambda x: np.cos(x[..., 1]))
    return {
        name: normal_task(rng, n, f)
        for name, n, f in zip("abc", (8, 30, 14), integrands, strict=True)
    }


COVARIANCE = np.array([[1.0, -0.7, 0.1], [-0.7, 1.2, 0.2], [0.1, 0.2, 0.9]])
FIXED = VectorValued(KERNEL, COVARIANCE, 1e-2, guard=False)


@pytest.mark.slow
def test_three_unbalanced_tasks_are_the_definition(rng):
    tasks = list(three_unbalanced(rng).values())
    joint = joint_problem(tasks, num_folds=4)
    fit = FIXED.crossfit_joint(joint)
    m = joint.starts[-1]
    z, s, labels = joint.draws[:m], joint.scores[:m], joint.labels[:m]
    gram = COVARIANCE[np.ix_(labels, labels)] * np.asarray(stein_gram(KERNEL, z, s))
    a = gram / gram.diagonal().mean() + 1e-2 * np.eye(m)
    indicators = np.eye(3)[labels]

    def solve(rows):
        inverse = np.linalg.inv(a[np.ix_(rows, rows)])
        h, y = indicators[rows], joint.values[rows]
        beta = np.linalg.solve(h.T @ inverse @ h, h.T @ inverse @ y)
        return beta, inverse @ (y - h @ beta)

    np.testing.assert_allclose(
        [part.mean[0] for part in fit.fits], solve(np.arange(m))[0], atol=1e-8
    )
    for out, _ in joint.folds.rows():
        train = np.setdiff1d(np.arange(m), out)
        assert set(labels[out]) == {0, 1, 2}  # fold k is left out of every task at once
        expected = (gram / gram.diagonal().mean())[np.ix_(out, train)] @ solve(train)[1]
        found = [fit.fits[labels[i]].control[i - joint.starts[labels[i]], 0] for i in out]
        np.testing.assert_allclose(found, expected, atol=1e-7)


@pytest.mark.slow
def test_the_matrix_free_joint_fit_is_the_dense_one(rng):
    tasks = list(three_unbalanced(rng).values())
    joint = joint_problem(tasks, num_folds=4)
    free = VectorValued(
        KERNEL, COVARIANCE, 1e-2, solver=ConjugateGradients(1e-12, 300, 20), guard=False
    )
    dense, iterative = FIXED.crossfit_joint(joint), free.crossfit_joint(joint)
    assert iterative.fits[0].info["solver"] == "ConjugateGradients"
    assert iterative.fits[0].info["num_products"] > 0
    np.testing.assert_allclose(iterative.model_covariance, dense.model_covariance, atol=1e-6)
    for one, other in zip(dense.fits, iterative.fits, strict=True):
        for field in ("mean", "control"):
            np.testing.assert_allclose(getattr(other, field), getattr(one, field), atol=1e-6)


def joint_fits(tasks, method):
    """Fit without the choice between the control variate and the plain mean, which may hide a
    difference."""
    joint = joint_problem(tasks.values(), num_folds=4)
    return dict(zip(tasks, method.crossfit_joint(joint).fits, strict=True))


def test_permuting_the_tasks_permutes_the_results(rng):
    tasks = three_unbalanced(rng)
    order = [2, 0, 1]
    moved = VectorValued(KERNEL, COVARIANCE[np.ix_(order, order)], 1e-2, guard=False)
    permuted = {"abc"[j]: tasks["abc"[j]] for j in order}
    fits, same = joint_fits(tasks, FIXED), joint_fits(permuted, moved)
    for name in tasks:
        assert np.abs(fits[name].control).max() > 0.1
        for field in ("mean", "control"):
            np.testing.assert_allclose(
                getattr(same[name], field), getattr(fits[name], field), atol=1e-9
            )
    once = estimate_jointly(tasks, FIXED, Options(folds=4))
    again = estimate_jointly(permuted, moved, Options(folds=4))
    assert list(again) == ["c", "a", "b"]
    for name in tasks:
        np.testing.assert_allclose(again[name].mean, once[name].mean, rtol=1e-8)
        np.testing.assert_allclose(again[name].mcse, once[name].mcse, rtol=1e-6)
    np.testing.assert_allclose(
        again.covariance, once.covariance[np.ix_(order, order)], rtol=1e-6, atol=1e-14
    )


def test_a_task_given_twice_is_estimated_twice_the_same(rng):
    tasks = three_unbalanced(rng)
    tasks["c"] = tasks["a"]
    twin = np.array([[1.0, -0.7, 1.0], [-0.7, 1.2, -0.7], [1.0, -0.7, 1.0]]) + 1e-6 * np.eye(3)
    found = joint_fits(tasks, VectorValued(KERNEL, twin, 1e-2, guard=False))
    assert np.abs(found["a"].control).max() > 0.1
    for field in ("mean", "control"):
        np.testing.assert_allclose(
            getattr(found["c"], field), getattr(found["a"], field), rtol=1e-5, atol=1e-6
        )


@pytest.mark.slow
def test_the_same_draws_with_other_scores_are_another_target(rng):
    """As if from importance sampling: only scores decide, so that the joint fit is not the one of
    shared draws."""
    first = normal_task(rng, 28)
    x = first.trace.draws
    tasks = {
        "a": first,
        "b": TaskInput(Sample.of(make_trace(x, -x / 1.1), ("f",), first.sample.values)),
    }
    method = VectorValued(KERNEL, RELATED, 1e-2, guard=False)
    found = estimate_jointly(tasks, method, Options())
    assert "solver" in found["a"].info
    assert found["a"].mean != found["b"].mean
    same = estimate_jointly(tasks | {"b": first}, method, Options())
    assert "solver" not in same["a"].info
    np.testing.assert_allclose(same["a"].mean, same["b"].mean, rtol=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(("order", "degree"), [(1, 2), (2, 0)])
def test_two_terms_on_one_trace_go_the_dense_way_and_one_term_the_kronecker_way(
    shared, order, degree
):
    """The order of the operator is that of the kernel which is given."""
    kernels = (Coregionalisation((KERNEL,), RELATED[None], order), halves(RELATED, order))
    one, two = (
        VectorValued(k, nugget=0.05, degree=degree, guard=False).crossfit(shared) for k in kernels
    )
    assert one.status == two.status == ("controlled",) * 2
    for field in ("mean", "control"):
        np.testing.assert_allclose(getattr(two, field), getattr(one, field), atol=1e-7)


@pytest.mark.slow
def test_a_task_alone_has_the_order_of_the_kernel_that_is_given(rng):
    tasks = list(related_tasks(rng, 16).values())
    joint = joint_problem(tasks, num_folds=4)
    given = VectorValued(Coregionalisation((KERNEL,), RELATED[None], 2), nugget=0.05)
    expected = VectorValued(KERNEL, nugget=0.05, order=2)
    for problem in joint.problems:
        found = given._alone(problem)
        assert found.status == ("controlled",)
        np.testing.assert_array_equal(found.mean, expected._alone(problem).mean)


# What the other tasks are worth.


@pytest.mark.slow
def test_related_tasks_are_better_together_and_the_guard_sees_it(rng):
    """f and 2f + 1 with E f = 0.4, twelve draws each: paired errors (measured: eight times smaller)
    and labels."""
    method = VectorValued(tuning=CHEAP)
    together, alone, joint = [], [], []
    for _ in range(12):
        tasks = related_tasks(rng, 12)
        problem = joint_problem(tasks.values())
        found = method.crossfit_joint(problem)
        scalar = [method._alone(part) for part in problem.problems]
        for truth, own, single, part in zip(
            (0.4, 1.8), found.fits, scalar, problem.problems, strict=True
        ):
            errors = [
                (part.location + part.scale * fit.mean - truth)[0] / part.scale[0]
                for fit in (own, single)
            ]
            together.append(errors[0])
            alone.append(errors[1])
            joint.append(not own.method[0].endswith("alone"))
    assert np.mean(joint) > 0.7
    assert np.median(np.abs(together)) < 0.5 * np.median(np.abs(alone))
    won = np.abs(together) < np.abs(alone)
    assert won[joint].mean() > 0.6


@pytest.mark.slow
def test_a_relation_that_is_not_there_is_refused(rng):
    """A covariance that says two unrelated integrands are one: the guard takes each task's own fit
    instead."""
    wrong = np.array([[1.0, 0.999], [0.999, 1.0]])
    guarded = VectorValued(KERNEL, wrong, 1e-4)
    refused = []
    for _ in range(6):
        tasks = {
            "a": normal_task(rng, 28),
            "b": normal_task(rng, 28, lambda x: np.cos(2 * x[..., 1]) * x[..., 0]),
        }
        joint = joint_problem(tasks.values())
        for problem, found in zip(joint.problems, guarded.crossfit_joint(joint).fits, strict=True):
            alone = guarded._alone(problem)
            assert (
                judged_variance(problem, found)
                <= SCALAR_MARGIN * judged_variance(problem, alone) * (1 + 1e-9)
            ).all()
            assert found.method[0].endswith("alone") is not found.info["joint"][0]
            if found.method[0].endswith("alone"):
                np.testing.assert_allclose(found.mean, alone.mean, rtol=1e-9)
        refused.append(guarded.crossfit_joint(joint).fits[0].info["joint"] == [False])
    assert sum(refused) >= 5
    result = estimate_jointly(tasks, guarded, Options())
    if not all(part.info["joint"][0] for part in result.values()):
        assert result.covariance[0, 1] == 0.0


@pytest.mark.slow
def test_a_task_alone_has_its_nugget_tuned_where_the_tasks_together_have(rng):
    """Steps under a kernel that is given: at 1e-8 alone would be far worse, and the guard a
    farce."""
    step = {
        "a": normal_task(rng, 28, lambda x: 1.0 * (x[..., 0] > 0)),
        "b": normal_task(rng, 28, lambda x: x[..., 1]),
    }
    joint = joint_problem(step.values())
    free = VectorValued(KERNEL)
    assert free._alone(joint.problems[0]).info["nugget"] > 1e-4
    for given in (
        VectorValued(KERNEL, RELATED),
        VectorValued(Coregionalisation((KERNEL,), RELATED[None])),
    ):
        assert given._alone(joint.problems[0]).info["nugget"] == 1e-8
        assert given.crossfit_joint(joint).fits[0].info["nugget"] == 1e-8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"degree": -1}, "`degree` of at least 0"),
        ({"order": 3}, "`order` of at most 2"),
        ({"nugget": 0.0}, "`nugget`, a number in"),
        ({"nugget": np.nan}, "`nugget`, a number in"),
        ({"covariance": np.array([[1.0, 2.0], [2.0, 1.0]])}, "positive definite"),
        (
            {"kernel": Coregionalisation((KERNEL,), np.eye(2)[None]), "covariance": np.eye(2)},
            "no `covariance` beside",
        ),
        (
            {"covariance": np.eye(2), "tuning": ConvexTaskCovariance()},
            "beside ConvexTaskCovariance",
        ),
    ],
)
def test_a_choice_that_cannot_be_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        VectorValued(**options)


def test_a_covariance_of_other_tasks_is_refused(rng):
    for tasks in (
        three_unbalanced(rng),
        {"a": normal_task(rng), "b": normal_task(rng), "c": normal_task(rng)},
    ):
        with pytest.raises(ValueError, match="a covariance of 3 tasks"):
            estimate_jointly(tasks, VectorValued(KERNEL, RELATED), Options())


def test_too_few_draws_for_the_folds_are_plain(rng):
    found = estimate_jointly(
        {"a": normal_task(rng, 5), "b": normal_task(rng, 5)},
        VectorValued(KERNEL, RELATED, 1e-2),
        Options(),
    )
    for part in found.values():
        assert part.status[0] in ("too_few_draws", "plain")
        assert part.mean == part.mean_plain
        assert part.method == (PlainMean().label,)


def test_features_of_every_task_are_counted(rng):
    """Five rows for six columns of each task, and twenty for all of them."""
    tasks = {name: normal_task(rng, 6) for name in "abcd"}
    found = estimate_jointly(
        tasks, VectorValued(KERNEL, np.eye(4), 1e-2, degree=2, guard=False), Options()
    )
    assert {part.status for part in found.values()} == {("too_few_draws",)}


@pytest.mark.slow
def test_a_rank_is_at_most_the_number_of_tasks(rng):
    tasks = {name: normal_task(rng, 20) for name in "abc"}
    found = estimate_jointly(
        tasks,
        VectorValued(tuning=TaskREML(squared_lengthscales=(30.0,), rank=2, max_steps=2)),
        Options(),
    )
    assert all(np.isfinite(part.mean).all() for part in found.values())


@pytest.mark.slow
def test_a_nugget_of_one_is_fitted(rng):
    tasks = {name: normal_task(rng, 30) for name in "ab"}
    found = estimate_jointly(tasks, VectorValued(nugget=1.0, tuning=CHEAP, guard=False), Options())
    assert all(part.info["nugget"] == 1.0 for part in found.values())


@pytest.mark.slow
def test_an_order_that_is_given_is_that_of_every_fit(rng):
    x = rng.normal(size=(2, 60, 2))
    values = np.stack([smooth(x), np.cos(x[..., 0])], axis=-1)
    problem = make_problem(make_trace(x, -x), values)
    for solver in (None, ConjugateGradients(rtol=1e-10)):
        first, second = (
            VectorValued(KERNEL, RELATED, 1e-4, order=o, solver=solver).crossfit(problem)
            for o in (1, 2)
        )
        assert np.abs(first.mean - second.mean).max() > 1e-9
