"""The choice of the kernel and nugget of each integrand, by restricted likelihood: on a grid, or by
L-BFGS."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, PyTree

from mcmcpost.control.problem import Problem
from mcmcpost.core.arguments import check_count, check_flags, check_kind, check_numbers
from mcmcpost.solve import Cholesky, ConjugateGradients
from mcmcpost.solve.restricted import (
    GRID_NUGGETS,
    RESTRICTED_RANGE,
    maximise_restricted_likelihood,
    search_grid,
)
from mcmcpost.stein import AbstractKernel, SquaredExponential

DEFAULT_NUGGET = 1e-8

MIN_ITERATIVE_NUGGET = 1e-4
"""Smallest tuned nugget for conjugate gradients, which converge slowly below it. A nugget that is
given is used."""


class REML(eqx.Module):
    """Restricted maximum likelihood by L-BFGS, one kernel for all integrands together, the best of
    several starts.

    An estimate then depends on what else is asked for.

    squared_lengthscales : starting points, on standard coordinates. They are large, because smooth
        integrands are fitted best near the flat, polynomial limit, and several, because one start
        fails now and then (docs/mathematics.md section 2).
    max_draws : largest number of states in the likelihood, evenly spaced.
    free_nugget : whether the nugget is tuned too, which rough integrands need.
    max_steps : of L-BFGS, from each start; at most twice as many likelihood evaluations.
    """

    squared_lengthscales: tuple[float, ...] = (30.0, 100.0, 1000.0)
    max_draws: int = 400
    free_nugget: bool = True
    max_steps: int = 50

    def __check_init__(self) -> None:
        check_numbers(
            "REML", "squared_lengthscales", self.squared_lengthscales, "Such as (30.0, 100.0)."
        )
        check_count("REML", "max_draws", self.max_draws, "Use 400.")
        check_count("REML", "max_steps", self.max_steps, "Use 50.")
        check_flags("REML", free_nugget=self.free_nugget)


POLISH_STATES = 1_000
"""Fitted states up to which `GridREML` polishes by default: every integrand then has factorisations
of its own."""

POLISH_DRAWS = 160
"""States in the likelihood of the polish, or three for each unpenalised feature: a step takes a
millisecond."""

SHORTEST = 0.5
"""Smallest lengthscale of the polish relative to the grid's. Shorter ones fit noise and steps; long
ones are free."""


LOG_STEPS = 50
"""Polished parameters are rounded to this many steps for a factor of e, two per cent each."""


class GridREML(eqx.Module):
    """Restricted maximum likelihood, each integrand by itself: a grid of isotropic kernels, then
    L-BFGS.

    An integrand's kernel does not depend on what else is asked for. L-BFGS starts at the best
    lengthscale of the grid, moves one for each coordinate, rounded to two per cent, and keeps the
    nugget; its kernel is used where it gains more than one nat for each of them. Integrands with
    the same kernel share its factorisations: of the grid's 25 two or three dozen integrands use six
    to ten.

    max_draws : largest number of states in the likelihood of the grid, evenly spaced.
    polish : whether L-BFGS follows the grid; by default, with more than one coordinate and at most
        1,000 fitted states.
    max_steps : of L-BFGS.
    shared : whether all integrands get the one setting that is best for them together, as Stein
        weights need.
    """

    max_draws: int = 256
    polish: bool | None = None
    max_steps: int = 12
    shared: bool = False

    def __check_init__(self) -> None:
        check_count("GridREML", "max_draws", self.max_draws, "Use 256.")
        check_count("GridREML", "max_steps", self.max_steps, "Use 12.")
        check_kind(
            "GridREML", "polish", self.polish, (bool, None), "Pass True or False, or leave it out."
        )
        check_flags("GridREML", shared=self.shared)


LEAST_NATS = 60.0
"""Nats from which `OwnGridREML` fits an integrand: on `POLISH_DRAWS` states, half of the
variance."""


class OwnGridREML(GridREML):
    """`GridREML` for the integrands alone whose own lengthscales gain `least` nats; others are not
    fitted."""

    polish: bool | None = True
    least: float = LEAST_NATS


class Setting(NamedTuple):
    """The kernel and nugget of some integrands (`members`)."""

    kernel: AbstractKernel
    nugget: float
    members: tuple[int, ...]

    def num_resolved(self, d: int) -> float:
        """Return in how many of d coordinates the kernel varies: Σ (ℓ_min/ℓ_j)², or all of them."""
        # Sums, products and weights have no one lengthscale a coordinate: they count as all.
        if not isinstance(self.kernel, SquaredExponential):
            return float(d)
        lengthscale = np.broadcast_to(np.asarray(self.kernel.lengthscale), (d,))
        return float(np.sum((lengthscale.min() / lengthscale) ** 2))

    def describe(self) -> dict[str, Any]:
        """Return JSON-able facts."""
        return {
            "kernel": type(self.kernel).__name__,
            "parameters": kernel_parameters(self.kernel),
            "nugget": self.nugget,
            "integrands": list(self.members),
        }


def kernel_parameters(kernel: PyTree) -> list[Any]:
    """Return the numbers of a kernel, or of a tuple of kernels, as JSON-able scalars and lists, in
    order."""
    return [
        np.asarray(leaf).tolist() for leaf in jax.tree.leaves(eqx.filter(kernel, eqx.is_array_like))
    ]


def tune(
    problem: Problem,
    basis: Float[np.ndarray, "m q"],
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
    # A nugget that was given is the user's; one that is tuned must let the solver converge.
    floor = (
        MIN_ITERATIVE_NUGGET if isinstance(solver, ConjugateGradients) and nugget is None else 0.0
    )
    ones = np.ones(problem.draws.shape[1])
    arrays = _evenly_spaced(problem, basis, tuning.max_draws)
    if isinstance(tuning, REML):
        # One lengthscale for each coordinate: L-BFGS moves them apart.
        starts = tuple(
            SquaredExponential(np.sqrt(start) * ones) for start in tuning.squared_lengthscales
        )
        tuned = maximise_restricted_likelihood(
            starts if kernel is None else (kernel,),
            *arrays,
            nugget=DEFAULT_NUGGET if nugget is None else nugget,
            free_nugget=tuning.free_nugget and nugget is None,
            max_steps=tuning.max_steps,
        )
        return (
            Setting(tuned.kernel, max(tuned.nugget, floor) if nugget is None else nugget, everyone),
        )
    # A nugget that is given leaves the lengthscale alone to the grid.
    nuggets = (
        tuple(level for level in GRID_NUGGETS if level >= floor) if nugget is None else (nugget,)
    )
    groups = search_grid(*arrays, shared=tuning.shared, nuggets=nuggets)
    settings = [
        Setting(SquaredExponential(g.lengthscale * ones), g.nugget, g.members) for g in groups
    ]
    # Every polished integrand has factorisations of its own: on many states that is the whole cost.
    few = problem.folds.num_everyone <= POLISH_STATES
    if len(ones) == 1 or not (few if tuning.polish is None else tuning.polish):
        return tuple(settings)
    return tuple(
        polished
        for setting in settings
        for polished in _polish(problem, basis, setting, nuggets, tuning)
    )


def _polish(
    problem: Problem,
    basis: Float[np.ndarray, "m q"],
    setting: Setting,
    nuggets: tuple[float, ...],
    tuning: GridREML,
) -> Iterator[Setting]:
    """Yield the settings of those integrands to which lengthscales of their own are worth it, and
    that of the rest unless these are not to be fitted.

    One kernel for all integrands is sought more widely, with the nugget free where several
    `nuggets` are allowed.
    """
    free = tuning.shared and len(nuggets) > 1
    size, shortest = (
        (tuning.max_draws, 1 / RESTRICTED_RANGE) if tuning.shared else (POLISH_DRAWS, SHORTEST)
    )
    draws, scores, design, values = _evenly_spaced(problem, basis, size)
    per_integrand = isinstance(tuning, OwnGridREML)
    # A nat for each lengthscale: what as many parameters gain from noise.
    least = tuning.least if isinstance(tuning, OwnGridREML) else problem.draws.shape[1]
    left = setting.members
    # One by one, so that an integrand's kernel does not depend on what else is asked for.
    for members in [left] if tuning.shared else [(member,) for member in left]:
        tuned = maximise_restricted_likelihood(
            (setting.kernel,),
            draws,
            scores,
            design,
            values[:, members],
            nugget=setting.nugget,
            free_nugget=free,
            shortest=shortest,
            max_steps=tuning.max_steps,
        )
        if tuning.shared or tuned.gain > least:
            # L-BFGS may end below the grid's least nugget: conjugate gradients would not converge
            # there.
            yield Setting(
                rounded(tuned.kernel),
                max(tuned.nugget, nuggets[0]) if free else setting.nugget,
                members,
            )
            left = tuple(member for member in left if member not in members)
    if left and not per_integrand:
        yield setting._replace(members=left)


def rounded(kernel: AbstractKernel) -> AbstractKernel:
    """Return the kernel with the logarithm of every parameter rounded to a multiple of
    1/`LOG_STEPS`.

    The fourth digit of the point where L-BFGS stops is rounding error, which the error of the
    estimate shows tenfold. Without it the numbers hardly depend on the processor and on the units
    of the draws.
    """
    return jax.tree.map(
        lambda leaf: jnp.exp(jnp.round(LOG_STEPS * jnp.log(leaf)) / LOG_STEPS), kernel
    )


def _evenly_spaced(
    problem: Problem, basis: Float[np.ndarray, "m q"], size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return draws, scores, basis and values of unit scale at evenly spaced states, at least three
    for each feature."""
    rows = _subset(problem, max(size, 3 * basis.shape[1]))
    values = problem.values[rows]
    # Of unit scale on these rows, which the likelihood's floor and start assume.
    spread = values.std(axis=0)
    return (
        problem.draws[rows],
        problem.scores[rows],
        basis[rows],
        values / np.where(spread > 0, spread, 1.0),
    )


def _subset(problem: Problem, size: int) -> np.ndarray:
    """Return evenly spaced rows, a multiple of 32 of them where there are enough, so that programs
    are shared."""
    rows = np.arange(problem.num_states)
    if problem.weighted:
        rows = problem.folds.everyone
    size = min(size, len(rows))
    # A multiple of 32: few shapes, few compilations.
    size = size // 32 * 32 if size >= 64 else size
    return rows[np.linspace(0, len(rows) - 1, size).astype(int)]
