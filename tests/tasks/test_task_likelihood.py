"""The restricted likelihood by which vector-valued control variates learn kernel, covariance and
nugget."""

import numpy as np
import pytest
from normal_task_cases import KERNEL, RELATED, joint_problem, normal_task, related_tasks, smooth

from mcmcpost.solve.search import LBFGS
from mcmcpost.stein import Coregionalisation, Matern52, SquaredExponential, stein_gram
from mcmcpost.tasks.tuning import maximise_task_likelihood


def likelihood_data(tasks):
    """Return draws, scores, labels, basis, values and counts of the joint problem of the tasks."""
    joint = joint_problem(tasks, num_folds=2)
    m = joint.starts[-1]
    arrays = (joint.draws, joint.scores, joint.labels, joint.indicators, joint.values, joint.counts)
    return tuple(array[:m] for array in arrays)


@pytest.fixture
def searches(monkeypatch):
    """The searches that `maximise_task_likelihood` would have run."""
    caught = []
    monkeypatch.setattr(LBFGS, "minimise_from", lambda _, problems: caught.extend(problems))
    return caught


@pytest.mark.slow
@pytest.mark.parametrize("rank", [None, 1])
def test_the_gradient_is_that_of_the_loss_and_the_loss_is_the_definition(rng, searches, rank):
    data = likelihood_data(
        [normal_task(rng, n, f) for n, f in ((13, smooth), (11, lambda x: np.cos(x[..., 1])))]
    )
    data[-1][0] = 3.0  # a state that was visited three times has a third of the noise
    covariances = np.array([RELATED, [[0.5, -0.1], [-0.1, 0.3]]])
    start = Coregionalisation((2.0 * KERNEL, Matern52(2.0)), covariances)
    options = {"nugget": 1e-2, "free_nugget": True, "rank": rank}
    assert maximise_task_likelihood((start,), *data, **options) is None
    (search,) = searches
    x = search.start + 0.1 * rng.normal(size=len(search.start))
    gradient = np.asarray(search.loss(x)[1])
    step = 1e-5
    for j, e in enumerate(step * np.eye(len(x))):
        slope = (float(search.loss(x + e)[0]) - float(search.loss(x - e)[0])) / (2 * step)
        np.testing.assert_allclose(gradient[j], slope, atol=1e-6 * np.abs(gradient).max())

    if rank is None:  # a covariance of this rank would be another B
        draws, scores, labels, basis, values, counts = data
        a = 1e-2 * np.diag(1 / counts)
        scaled = np.zeros_like(a)
        for kernel, b in zip(start.kernels, covariances, strict=True):
            gram = np.asarray(stein_gram(kernel, draws, scores))
            scaled += b[np.ix_(labels, labels)] * gram / gram.diagonal().mean()
        a += scaled / scaled.diagonal().mean()
        inverse = np.linalg.inv(a)
        information = basis.T @ inverse @ basis
        projected = inverse - inverse @ basis @ np.linalg.solve(information, basis.T @ inverse)
        logs = np.linalg.slogdet(a)[1] + np.linalg.slogdet(information)[1]
        loss = 0.5 * (len(values) - 2) * np.log(values @ projected @ values) + 0.5 * logs
        np.testing.assert_allclose(float(search.loss(search.start)[0]), loss, rtol=1e-9)


@pytest.mark.slow
def test_the_amplitude_of_a_kernel_does_not_matter(rng, searches):
    data = likelihood_data(list(related_tasks(rng).values()))
    for factor in (1.0, 50.0):
        start = Coregionalisation((factor * KERNEL, Matern52(2.0)), np.array([RELATED, np.eye(2)]))
        maximise_task_likelihood((start,), *data, nugget=1e-2, free_nugget=True)
    once, again = (float(search.loss(search.start)[0]) for search in searches)
    np.testing.assert_allclose(again, once, rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("slope", [2.0, -2.0])
def test_the_learnt_covariance_is_the_relation_between_the_tasks(rng, slope):
    data = likelihood_data(list(related_tasks(rng, 12, slope).values()))
    start = Coregionalisation((SquaredExponential(np.array([5.0, 5.0])),), np.eye(2)[None] + 0.2)
    tuned = maximise_task_likelihood((start,), *data, nugget=1e-3, free_nugget=True, max_steps=40)
    b = tuned.kernel.covariances[0]
    assert np.sign(slope) * b[0, 1] / np.sqrt(b[0, 0] * b[1, 1]) > 0.95


@pytest.mark.slow
def test_the_learnt_covariance_of_a_task_given_twice_is_nearly_singular_and_still_one(rng):
    task = normal_task(rng)
    start = Coregionalisation((SquaredExponential(np.array([5.0, 5.0])),), np.eye(2)[None] + 0.2)
    tuned = maximise_task_likelihood(
        (start,), *likelihood_data([task, task]), nugget=1e-3, free_nugget=True
    )
    b = tuned.kernel.covariances[0]
    assert b[0, 1] / np.sqrt(b[0, 0] * b[1, 1]) > 0.999


@pytest.mark.slow
@pytest.mark.parametrize("fixed", ["kernel", "covariance", "everything"])
def test_what_is_given_stays_as_it_is(rng, fixed):
    data = likelihood_data(list(related_tasks(rng).values()))
    start = Coregionalisation((KERNEL,), RELATED[None])
    tuned = maximise_task_likelihood(
        (start,),
        *data,
        nugget=1e-2,
        free_nugget=fixed != "everything",
        learn_kernel=fixed == "covariance",
        learn_covariance=fixed == "kernel",
        max_steps=10,
    )
    same_kernel = np.allclose(tuned.kernel.kernels[0].lengthscale, KERNEL.lengthscale, rtol=1e-9)
    b = tuned.kernel.covariances[0]
    same_covariance = np.allclose(b / b[0, 0], RELATED / RELATED[0, 0], rtol=1e-5)
    assert (same_kernel, same_covariance) == (fixed != "covariance", fixed != "kernel")
    assert (tuned.nugget == 1e-2) == (fixed == "everything")
