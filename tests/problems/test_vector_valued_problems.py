"""The benchmark problems for vector-valued control variates: shapes, scores, independence and
truths."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import mcmcpost as mp
from benchmarks.control import _vector_valued_problems as problems
from models import borehole

BUILD = {
    "borehole": lambda rng: problems.borehole(rng, 30, 20),
    "step": lambda rng: problems.step(rng, 40),
    "south": lambda rng: problems.south(rng, 50, 1.25),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILD)
def test_tasks_are_single_chains_with_draws_of_their_own(name, rng):
    first, second = BUILD[name](rng).values()
    for task in (first, second):
        assert task.values.shape[0] == 1
        assert task.draws.shape == task.scores.shape == (*task.values.shape, task.draws.shape[-1])
    m = min(first.values.size, second.values.size)
    assert not np.isclose(first.draws[:, :m], second.draws[:, :m], rtol=1e-12).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILD)
def test_a_replication_is_repeated_by_its_generator(name, seed):
    once, again = (BUILD[name](np.random.default_rng(seed)) for _ in range(2))
    for task, other in zip(once.values(), again.values(), strict=True):
        np.testing.assert_array_equal(task.draws, other.draws)
        np.testing.assert_array_equal(task.values, other.values)


@pytest.mark.parametrize("sigma2", problems.SOUTH_VARIANCES)
def test_truths_of_one_dimension_are_those_of_quadrature(sigma2, rng):
    step, south = problems.step(rng, 2), problems.south(rng, 2, sigma2)
    for task, integrand, variance in (
        (step["high"], problems.step_high, 1.0),
        (step["low"], problems.step_low, 1.0),
        (south["first"], problems.south_first, 1.0),
        (south["second"], problems.south_second, sigma2),
    ):
        density = norm(scale=np.sqrt(variance)).pdf
        halves = [
            quad(lambda x, f=integrand, p=density: f(x) * p(x), *ends)[0]
            for ends in ((-12, 0), (0, 12))
        ]
        np.testing.assert_allclose(sum(halves), task.truth, rtol=1e-8)
        np.testing.assert_array_equal(task.values[0], integrand(task.draws[0, :, 0]))
        np.testing.assert_allclose(task.scores, -task.draws / variance)


def test_the_wider_target_is_the_second(rng):
    tasks = problems.south(rng, 40_000, 1.25)
    assert abs(tasks["first"].draws.var() - 1.0) < 0.03
    assert abs(tasks["second"].draws.var() - 1.25) < 0.04


@pytest.mark.slow
def test_a_task_is_a_trace_that_reduces_to_its_truth(rng):
    task = problems.borehole(rng, 100, 10)["high"]
    found = mp.expectation(task.tree(), ["f[0]"], "zv2", standardize=(borehole.MEAN, borehole.SD))
    assert found.mean.shape == (1,)
    np.testing.assert_allclose(found.mean, task.truth, atol=0.05)
