"""Traces of standard normal draws with integrands that are related between tasks."""

import numpy as np

from mcmcpost.control import Sample
from mcmcpost.control.problem import make_joint_problem
from mcmcpost.stein import SquaredExponential
from mcmcpost.tasks import TaskInput
from mcmcpost.trace import make_trace

KERNEL = SquaredExponential(np.array([1.5, 2.0]))
RELATED = np.array([[1.0, 0.8], [0.8, 1.5]])


def smooth(x):
    return np.sin(x[..., 0]) + 0.4 * x[..., 1] ** 2


def normal_task(rng, size=12, integrand=smooth, chains=1):
    """A trace of independent standard normal draws and the integrand at them."""
    x = rng.normal(size=(chains, size, 2))
    return TaskInput(Sample.of(make_trace(x, -x), ("f",), integrand(x)[..., None]))


def related_tasks(rng, size=12, slope=2.0):
    return {
        "a": normal_task(rng, size),
        "b": normal_task(rng, size, lambda x: slope * smooth(x) + 1.0),
    }


def joint_problem(tasks, **options):
    tasks = list(tasks)
    return make_joint_problem(
        [task.trace for task in tasks], [task.sample.values for task in tasks], **options
    )
