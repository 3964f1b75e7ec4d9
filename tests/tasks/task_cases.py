"""Two Gaussian targets with related integrands, and quadrature for each."""

import numpy as np

from mcmcpost.tasks.trained_families import TaskRows

MEANS = np.array([[0.0, 0.0], [0.5, -0.3]])
SCALES = np.array([1.0, 1.3])


def rows_at(points, tasks):
    return TaskRows(points, -(points - MEANS[tasks]) / SCALES[tasks][:, None] ** 2, tasks)


def draw_rows(rng, sizes):
    tasks = np.repeat(np.arange(2), sizes)
    return rows_at(MEANS[tasks] + SCALES[tasks][:, None] * rng.normal(size=(len(tasks), 2)), tasks)


def integrand(rows):
    x = rows.draws
    return np.sin(x[:, 0]) + 0.5 * x[:, 1] + 0.3 * rows.tasks * x[:, 0]


def quadrature(task, order=60):
    node, weight = np.polynomial.hermite_e.hermegauss(order)
    grid = np.stack(np.meshgrid(node, node), -1).reshape(-1, 2)
    points = MEANS[task] + SCALES[task] * grid
    return rows_at(points, np.full(len(points), task)), np.outer(
        weight, weight
    ).ravel() / weight.sum() ** 2


def means_by_quadrature(control):
    """Return E_t[g_t] and the root mean square of g_t for both tasks."""
    found = []
    for task in range(2):
        rows, weight = quadrature(task)
        g = np.asarray(control(rows))
        found.append((weight @ g, np.sqrt(weight @ g**2)))
    return np.array(found).T


def variance_ratio(control, rng, size=2000):
    """Return Var f / Var(f − g) per task on fresh draws."""
    rows = draw_rows(rng, (size, size))
    f = integrand(rows)
    residual = f - np.asarray(control(rows))
    return np.array([f[rows.tasks == t].var() / residual[rows.tasks == t].var() for t in range(2)])
