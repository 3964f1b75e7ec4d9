"""Solvers of the gradient Gram system: iterative, and the automatic rule."""

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float

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


class GradientCG(AbstractGradientSolver):
    """Conjugate gradients on structured products: O(n² + nd) memory, no Gram matrix.

    rtol : residual relative to the right-hand side. max_steps : budget in products; an unfinished solve is returned
    with ``converged`` false. project : in the span of the points, where d > n. precondition : by A₁ ⊗ I (and κ for
    values), which cuts iterations 5–15× on clustered points and costs some on well-spread ones.
    """

    rtol: float = 1e-8
    max_steps: int = 5000
    project: bool = True
    precondition: bool = True

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

        def precondition(residual: Float[Array, "nw k"]) -> Float[Array, "nw k"]:
            if not self.precondition:
                return residual
            R = residual.reshape(inside.shape)
            parts = [cho_solve(middle, R[:, :1])] if gram.with_values else []
            parts.append(cho_solve(outer, R[:, gram.with_values :]))
            return jnp.concatenate(parts, axis=1).reshape(-1, 1)

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
        used = self.precondition or basis is not None
        return GradientSolution(value, residual, residual <= 2 * self.rtol, steps, n if used else 0, zero, zero > 0)


class Automatic(AbstractGradientSolver):
    """Choose by size: dense, projected Cholesky, or projected preconditioned conjugate gradients.

    Measured by ``benchmarks/gradient_gram.py`` (squared exponential, well-spread points): order of the projected
    system up to `dense_order` by Cholesky, whose cost does not depend on conditioning; beyond it `GradientCG`, and
    Cholesky again if that has not converged in its budget and memory allows.
    """

    dense_order: int = 900
    rtol: float = 1e-8
    max_steps: int = 2000

    def choose(self, stationary: bool, n: int, d: int, *, with_values: bool) -> AbstractGradientSolver:
        """Return the solver for n points in d dimensions."""
        order = n * (projected_dimension(stationary, n, d) + with_values)
        return ProjectedCholesky() if order <= self.dense_order else GradientCG(self.rtol, self.max_steps)

    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        self.choose(profile.stationary, n, d, with_values=with_values).check(profile, n, d, with_values)

    def solve(self, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
        return self.choose(gram.stationary, *gram.points.shape, with_values=gram.with_values).solve(gram, right)


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
