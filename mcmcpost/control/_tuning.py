"""Kernel and nugget of a control functional: as given, from a grid, or by restricted maximum likelihood."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from mcmcpost.control._basis import Basis
from mcmcpost.control._problem import Problem
from mcmcpost.hyper import maximise_restricted_likelihood, search_grid
from mcmcpost.kernels import AbstractKernel, SquaredExponential
from mcmcpost.linsolve import Cholesky, ConjugateGradients

DEFAULT_NUGGET = 1e-8
MIN_ITERATIVE_NUGGET = 1e-4
"""A tuned nugget is not let below this for conjugate gradients, which would not converge; one that is given is used."""


class REML(eqx.Module):
    """Restricted maximum likelihood by L-BFGS, all integrands jointly, the best of several starts.

    squared_lengthscales : starting points, on standard coordinates; large, because the near-polynomial flat limit is
        where smooth integrands live, and several, because one start leaves rare outliers (MATH.md section 2).
    max_draws : evenly spaced states that the likelihood sees.
    free_nugget : whether the nugget is tuned too, which rough integrands need.
    max_steps : of L-BFGS, from each start; at most twice as many likelihood evaluations.
    """

    squared_lengthscales: tuple[float, ...] = (30.0, 100.0, 1000.0)
    max_draws: int = 400
    free_nugget: bool = True
    max_steps: int = 50


class GridREML(eqx.Module):
    """Restricted maximum likelihood per integrand, first over a fixed grid, then by L-BFGS from its best point.

    The grid has isotropic lengthscales and nuggets, and one factorisation serves all integrands at each point; the
    polish frees one lengthscale per coordinate and the nugget.

    max_draws : evenly spaced states that the likelihood sees.
    max_groups : at most so many different settings, each of which costs a factorisation.
    polish : whether to run L-BFGS after the grid, for at most `max_steps`.
    """

    max_draws: int = 256
    max_groups: int = 3
    polish: bool = True
    max_steps: int = 20


class Setting(NamedTuple):
    """The kernel and nugget of some integrands (`members`)."""

    kernel: AbstractKernel
    nugget: float
    members: tuple[int, ...]

    def describe(self) -> dict[str, Any]:
        """Return JSON-able facts."""
        parameters = [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(self.kernel)]
        return {
            "kernel": type(self.kernel).__name__,
            "parameters": parameters,
            "nugget": self.nugget,
            "integrands": list(self.members),
        }


def tune(
    problem: Problem,
    basis: Basis,
    kernel: AbstractKernel | None,
    nugget: float | None,
    tuning: REML | GridREML | None,
    solver: Cholesky | ConjugateGradients,
) -> tuple[Setting, ...]:
    """Return kernel and nugget for every integrand."""
    everyone = tuple(range(problem.values.shape[1]))
    if tuning is None:
        assert kernel is not None
        return (Setting(kernel, DEFAULT_NUGGET if nugget is None else nugget, everyone),)
    rows = _subset(problem, max(tuning.max_draws, 3 * basis.design.shape[1]))
    draws, scores, values, design = (a[rows] for a in (problem.draws, problem.scores, problem.values, basis.design))
    spread = values.std(axis=0)
    values = values / np.where(spread > 0, spread, 1.0)
    floor = MIN_ITERATIVE_NUGGET if isinstance(solver, ConjugateGradients) and nugget is None else 0.0
    ones = np.ones(draws.shape[1])

    def polish(starts: tuple[AbstractKernel, ...], level: float, free: bool, members: tuple[int, ...]) -> Setting:
        tuned = maximise_restricted_likelihood(
            starts,
            draws,
            scores,
            design,
            values[:, members],
            nugget=level if nugget is None else nugget,
            free_nugget=free and nugget is None,
            max_steps=tuning.max_steps,
        )
        return Setting(tuned.kernel, max(tuned.nugget, floor) if nugget is None else nugget, members)

    if isinstance(tuning, REML):
        starts = tuple(SquaredExponential(np.sqrt(start) * ones) for start in tuning.squared_lengthscales)
        return (polish(starts if kernel is None else (kernel,), DEFAULT_NUGGET, tuning.free_nugget, everyone),)
    settings = []
    for group in search_grid(draws, scores, design, values, max_groups=tuning.max_groups):
        isotropic = SquaredExponential(group.lengthscale * ones)
        if tuning.polish:
            settings.append(polish((isotropic,), group.nugget, True, group.members))
        else:
            settings.append(Setting(isotropic, max(group.nugget, floor) if nugget is None else nugget, group.members))
    return tuple(settings)


def _subset(problem: Problem, size: int) -> np.ndarray:
    """Return evenly spaced rows, a multiple of 32 of them where there are enough, so that programs are shared."""
    size = min(size, problem.num_states)
    size = size // 32 * 32 if size >= 64 else size
    return np.linspace(0, problem.num_states - 1, size).astype(int)
