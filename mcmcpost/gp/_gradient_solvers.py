"""Solvers of the gradient Gram system: one contract, an object per choice, one automatic rule."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Bool, Float, Int

from mcmcpost._checks import fault
from mcmcpost.gp._gradient_factor import factor_solve, floored_cholesky, outside_matrix, projected_factor
from mcmcpost.gp._gradient_gram import GradientGram, span_basis
from mcmcpost.gp._scalar_profile import ScalarProfile
from mcmcpost.kernels import Polynomial
from mcmcpost.linsolve import conjugate_gradients

MEMORY = 4e9
"""Bytes that a dense factorisation may take: its matrix, the factor and one work copy."""
ACCURATE = 1e-6
"""Relative residual up to which a direct solve counts as converged."""


class GradientSolution(NamedTuple):
    """Weights of the representation of the posterior mean, and what they cost.

    value : (n, w) white. residual : relative, ‖b − Kv‖/‖b‖, by one product after the solve. converged : whether it is
    within the solver's tolerance. num_products : structured products made. order : of the largest matrix factorised.
    nugget : multiple of the identity that a Cholesky factorisation added; raised : whether above its floor at rounding.
    """

    value: Float[Array, "n w"]
    residual: Float[Array, ""]
    converged: Bool[Array, ""]
    num_products: Int[Array, ""]
    order: int
    nugget: Float[Array, ""]
    raised: Bool[Array, ""]


class AbstractGradientSolver(eqx.Module):
    """Solves the system of a `GradientGram`."""

    @abc.abstractmethod
    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        """Refuse a system that the solver cannot take: of another structure, or beyond memory."""

    @abc.abstractmethod
    def solve(self, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
        """Return (K + σ²I)⁻¹ right with its status and cost; traced by JAX."""


class DenseCholesky(AbstractGradientSolver):
    """Factorise the whole matrix, O(n³d³): the definition, and the fastest for n·d of a few hundred."""

    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        del profile
        check_memory("DenseCholesky", n * (d + with_values))

    def solve(self, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
        matrix = gram.dense()
        factor = floored_cholesky(matrix)
        value = cho_solve((factor.lower, True), right.reshape(-1)).reshape(right.shape)
        return _direct(gram, right, value, matrix.shape[0], factor.nugget, factor.raised)


class ProjectedCholesky(AbstractGradientSolver):
    """Factorise in the span of the points, order n·min(d, n − 1), and A₁ (n×n) for all other directions at once."""

    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        check_memory("ProjectedCholesky", n * (projected_dimension(profile.stationary, n, d) + with_values))

    def solve(self, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
        factor = projected_factor(gram)
        value = factor_solve(factor, right, gram.points.shape[1])
        return _direct(gram, right, value, factor.inside.shape[0], factor.nugget, factor.raised)


class Woodbury(AbstractGradientSolver):
    """The paper's solve, an unsymmetric system of order n²; gradients only.

    With U_(ab) = e_a ⊗ δ_ab (stationary; e_a ⊗ u_b for dot products), C vec(M)_ab = c_ab M_ba, c = −A₂ (or A₂) and
    B = (A₁ + σ²I) ⊗ I: z = B⁻¹g − B⁻¹U(I + CUᵀB⁻¹U)⁻¹CUᵀB⁻¹g, the (6) and (8) of the paper without dividing by κ″,
    which may vanish. Kept to compare with: `ProjectedCholesky` is smaller, symmetric and positive definite.
    """

    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        del profile, d
        _gradients_only("Woodbury", with_values)
        check_memory("Woodbury", n * n)

    def solve(self, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
        n = gram.shape[0]
        points, dtype = gram.points, gram.points.dtype
        lower = cho_factor(outside_matrix(gram), lower=True)
        inverse = cho_solve(lower, jnp.eye(n, dtype=dtype))
        base = cho_solve(lower, right)
        products = points @ points.T
        along = base @ points.T
        if gram.stationary:
            # (u_a − u_b)·(u_c − u_d) for all four indices.
            inner = (
                products[:, None, :, None]
                - products[:, None, None, :]
                - products[None, :, :, None]
                + products[None, :, None, :]
            )
            along, c = jnp.diagonal(along)[:, None] - along, -gram.terms.second
        else:
            inner, c = jnp.broadcast_to(products[None, :, None, :], (n, n, n, n)), gram.terms.second
        blocks = inverse[:, None, :, None] * inner
        system = c[:, :, None, None] * jnp.swapaxes(blocks, 0, 1) + jnp.eye(n * n, dtype=dtype).reshape((n,) * 4)
        solved = jnp.linalg.solve(system.reshape(n * n, n * n), (c * along.T).reshape(-1)).reshape(n, n)
        pull = jnp.sum(solved, 1)[:, None] * points - solved @ points if gram.stationary else solved @ points
        zero = jnp.zeros((), dtype)
        return _direct(gram, right, base - cho_solve(lower, pull), n * n, zero, zero > 0)


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
        need = 8.0 * (5 * n * n + 8 * n * (d + with_values))
        if need > MEMORY:
            raise MemoryError(fault("GradientCG", f"at most {MEMORY:.0e} bytes", f"{need:.1e}", "Use fewer points."))

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
        residual = _residual(gram, right, value)
        zero = jnp.zeros((), right.dtype)
        steps = jnp.asarray(solution.num_steps, int) + 1
        used = self.precondition or basis is not None
        return GradientSolution(value, residual, residual <= 2 * self.rtol, steps, n if used else 0, zero, zero > 0)


class QuadraticClosedForm(AbstractGradientSolver):
    """The closed form of Sec. 4.2 for a·(x̃ᵀΛỹ)², O(n²d + n³): for noise-free gradients of a quadratic, n ≤ d.

    With P = ŨŨᵀ, G' = G/(2a) and M = ŨG'ᵀ: V = P⁻¹(G' − ½MP⁻¹Ũ). Right only where M is symmetric, as it is for
    gradients (less that at the centre) of a quadratic; otherwise the residual says so. Of a noisy system it solves the
    noise-free one.
    """

    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        _gradients_only("QuadraticClosedForm", with_values)
        kernel = profile.kernel
        if not isinstance(kernel, Polynomial) or kernel.degree != 2 or float(kernel.offset) != 0 or n > d:
            got = f"{type(kernel).__name__}, {n} points in {d} dimensions"
            expected = "Polynomial(2, offset=0) and no more points than dimensions"
            raise ValueError(fault("QuadraticClosedForm", expected, got, "Use ProjectedCholesky."))

    def solve(self, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
        points = gram.points
        inner = points @ points.T
        lower, nugget, raised = floored_cholesky(inner)
        factor = (lower, True)
        scaled = right / gram.terms.second[0, 0]
        mixed = points @ scaled.T
        value = cho_solve(factor, scaled - 0.25 * (mixed + mixed.T) @ cho_solve(factor, points))
        return _direct(gram, right, value, points.shape[0], nugget, raised)


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


def projected_dimension(stationary: bool, n: int, d: int) -> int:
    """Return q, the dimension of the span of the rank-one terms."""
    return min(d, max(n - 1, 1) if stationary else n)


def fits(order: int) -> bool:
    """Return whether a matrix of that order, its factor and a work copy fit in `MEMORY`."""
    return 24.0 * order**2 <= MEMORY


def check_memory(where: str, order: int) -> None:
    """Refuse to factorise a matrix whose work arrays would not fit.

    Raises
    ------
    MemoryError : says how large, and what to use instead.
    """
    if not fits(order):
        got = f"{24.0 * order**2:.1e} for a matrix of order {order}"
        raise MemoryError(fault(where, f"at most {MEMORY:.0e} bytes", got, "Use GradientCG, or fewer points."))


def _gradients_only(where: str, with_values: bool) -> None:
    if with_values:
        raise ValueError(fault(where, "gradients only", "values too", "Use ProjectedCholesky or GradientCG."))


def _residual(gram: GradientGram, right: Float[Array, "n w"], value: Float[Array, "n w"]) -> Float[Array, ""]:
    size = jnp.linalg.norm(right)
    return jnp.linalg.norm(right - gram.matmul(value)) / jnp.where(size > 0, size, 1)


def _direct(
    gram: GradientGram,
    right: Float[Array, "n w"],
    value: Float[Array, "n w"],
    order: int,
    nugget: Float[Array, ""],
    raised: Bool[Array, ""],
) -> GradientSolution:
    residual = _residual(gram, right, value)
    one = jnp.ones((), int)
    return GradientSolution(value, residual, residual <= ACCURATE, one, order, nugget, raised)
