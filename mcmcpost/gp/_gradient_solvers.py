"""Solvers of the gradient Gram system: iterative, and the automatic rule."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float

from mcmcpost.gp._gradient_direct import ProjectedCholesky
from mcmcpost.gp._gradient_factor import floored_cholesky, outside_matrix
from mcmcpost.gp._gradient_gram import GradientGram, span_basis
from mcmcpost.gp._gradient_solution import (
    AbstractGradientSolver,
    GradientSolution,
    check_bytes,
    fits,
    projected_dimension,
    relative_residual,
)
from mcmcpost.gp._scalar_profile import ScalarProfile
from mcmcpost.linsolve import conjugate_gradients

CLUSTERED = 0.9
"""Correlation of white gradients of neighbours above which preconditioning pays."""


class GradientCG(AbstractGradientSolver):
    """Conjugate gradients on structured products: O(n² + nd) memory, no Gram matrix.

    rtol : residual relative to the right-hand side. max_steps : budget in products; an unfinished solve is returned
    with ``converged`` false. project : in the span of the points, where d > n. precondition : by A₁ ⊗ I (and κ for
    values), which cuts products 4–13× on trajectories and costs twice as much per product; None does so where the
    points are clustered: half of them have a neighbour of A₁ correlation above `CLUSTERED`.
    """

    rtol: float = 1e-8
    max_steps: int = 5000
    project: bool = True
    precondition: bool | None = None

    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        del profile
        check_bytes("GradientCG", 8.0 * (5 * n * n + 8 * n * (d + with_values)))

    def solve(self, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
        n, d = gram.points.shape
        basis = span_basis(gram.points, stationary=gram.stationary) if self.project else None
        small, inside = gram, right
        outer = (floored_cholesky(outside_matrix(gram)).lower, True)
        middle = (floored_cholesky(gram.terms.value + gram.noise * jnp.eye(n, dtype=right.dtype)).lower, True)
        if basis is not None:
            small = gram.project(basis)
            inside = jnp.concatenate([right[:, :-d], right[:, -d:] @ basis], axis=1)

        def scaled(residual: Float[Array, "nw k"]) -> Float[Array, "nw k"]:
            R = residual.reshape(inside.shape)
            parts = [cho_solve(middle, R[:, :1])] if gram.with_values else []
            parts.append(cho_solve(outer, R[:, gram.with_values :]))
            return jnp.concatenate(parts, axis=1).reshape(-1, 1)

        close = _clustered(gram)

        def precondition(residual: Float[Array, "nw k"]) -> Float[Array, "nw k"]:
            if self.precondition is None:
                return jax.lax.cond(close, scaled, lambda same: same, residual)
            return scaled(residual) if self.precondition else residual

        solution = conjugate_gradients(
            lambda v: small.matmul(v.reshape(inside.shape)).reshape(-1, 1),
            inside.reshape(-1, 1),
            precondition=precondition,
            rtol=self.rtol,
            max_steps=self.max_steps,
        )
        value = solution.value.reshape(inside.shape)
        if basis is not None:
            across = right[:, -d:] - inside[:, gram.with_values :] @ basis.T
            gradients = value[:, gram.with_values :] @ basis.T + cho_solve(outer, across)
            value = jnp.concatenate([value[:, : gram.with_values], gradients], axis=1)
        residual = relative_residual(gram, right, value)
        zero = jnp.zeros((), right.dtype)
        steps = jnp.asarray(solution.num_steps, int) + 1
        used = self.precondition is not False or basis is not None
        return GradientSolution(value, residual, residual <= 2 * self.rtol, steps, n if used else 0, zero, zero > 0)


class Automatic(AbstractGradientSolver):
    """Choose by the order n·q of the projected system, q = min(d, n − 1), and by what conditioning shows.

    1. Order at most `dense_order`, eight times that where n > 2d: `ProjectedCholesky`, which is dense Cholesky where
       n > d. Many more points than dimensions are badly conditioned.
    2. Beyond, `GradientCG`, in the span of the points, preconditioned where they are clustered. While Cholesky would
       fit in memory its budget is nq²/30 products, about the time of that factorisation, and `solve_system` factorises
       if they were not enough: an ill-conditioned system costs at most about twice the better solver.
    3. Where Cholesky does not fit the budget is `max_steps`.

    Measured by ``benchmarks/gradient_gram.py``.
    """

    dense_order: int = 300
    rtol: float = 1e-8
    max_steps: int = 5000

    def choose(self, stationary: bool, n: int, d: int, *, with_values: bool) -> AbstractGradientSolver:
        """Return the solver for n points in d dimensions."""
        q = projected_dimension(stationary, n, d) + with_values
        if n * q <= self.dense_order * (8 if n > 2 * d else 1):
            return ProjectedCholesky()
        return GradientCG(self.rtol, min(self.max_steps, n * q * q // 30) if fits(n * q) else self.max_steps)

    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        self.choose(profile.stationary, n, d, with_values=with_values).check(profile, n, d, with_values)

    def solve(self, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
        return self.choose(gram.stationary, *gram.points.shape, with_values=gram.with_values).solve(gram, right)


def _clustered(gram: GradientGram) -> Bool[Array, ""]:
    n = gram.shape[0]
    diagonal = jnp.diagonal(gram.terms.first)
    size = jnp.sqrt(jnp.abs(diagonal[:, None] * diagonal[None, :]))
    others = jnp.where(jnp.eye(n, dtype=bool), 0, jnp.abs(gram.terms.first) / jnp.where(size > 0, size, 1))
    return jnp.median(jnp.max(others, axis=1)) > CLUSTERED


def solve_system(
    solver: AbstractGradientSolver, profile: ScalarProfile, gram: GradientGram, right: Float[Array, "n w"]
) -> GradientSolution:
    """Return the solution by `solver`; where the automatic rule's conjugate gradients failed, by Cholesky if it fits.

    Raises
    ------
    MemoryError, ValueError : as the solver's check.
    """
    n, d = gram.points.shape
    solver.check(profile, n, d, gram.with_values)
    solution = _solve(solver, gram, right)
    order = n * (projected_dimension(profile.stationary, n, d) + gram.with_values)
    if isinstance(solver, Automatic) and not bool(solution.converged) and fits(order):
        return _solve(ProjectedCholesky(), gram, right)
    return solution


@eqx.filter_jit
def _solve(solver: AbstractGradientSolver, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
    return solver.solve(gram, right)
