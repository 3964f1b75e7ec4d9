"""Direct solvers of the gradient Gram system."""

import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float

from mcmcpost._checks import fault
from mcmcpost.gp._gradient_factor import factor_solve, floored_cholesky, outside_matrix, projected_factor
from mcmcpost.gp._gradient_gram import GradientGram, span_basis
from mcmcpost.gp._gradient_solution import (
    AbstractGradientSolver,
    GradientSolution,
    check_memory,
    direct,
    projected_dimension,
    refuse_values,
)
from mcmcpost.gp._scalar_profile import ScalarProfile
from mcmcpost.kernels import Polynomial


class DenseCholesky(AbstractGradientSolver):
    """Factorise the whole matrix, O(n³d³): the definition, and the fastest for n·d of a few hundred."""

    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        del profile
        check_memory("DenseCholesky", n * (d + with_values))

    def solve(self, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
        matrix = gram.dense()
        factor = floored_cholesky(matrix)
        value = cho_solve((factor.lower, True), right.reshape(-1)).reshape(right.shape)
        return direct(gram, right, value, matrix.shape[0], factor.nugget, factor.raised)


class ProjectedCholesky(AbstractGradientSolver):
    """Factorise in the span of the points, order n·min(d, n − 1), and A₁ (n×n) for all other directions at once.

    Where the points span all of space it is `DenseCholesky`.
    """

    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        check_memory("ProjectedCholesky", n * (projected_dimension(profile.stationary, n, d) + with_values))

    def solve(self, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
        if span_basis(gram.points, stationary=gram.stationary) is None:
            return DenseCholesky().solve(gram, right)
        factor = projected_factor(gram)
        value = factor_solve(factor, right, gram.points.shape[1])
        return direct(gram, right, value, factor.inside.shape[0], factor.nugget, factor.raised)


class Woodbury(AbstractGradientSolver):
    """The paper's solve, an unsymmetric system of order n²; gradients only.

    With U_(ab) = e_a ⊗ δ_ab (stationary; e_a ⊗ u_b for dot products), C vec(M)_ab = c_ab M_ba, c = −A₂ (or A₂) and
    B = (A₁ + σ²I) ⊗ I: z = B⁻¹g − B⁻¹U(I + CUᵀB⁻¹U)⁻¹CUᵀB⁻¹g, the (6) and (8) of the paper without dividing by κ″,
    which may vanish. Kept to compare with: `ProjectedCholesky` is smaller, symmetric and positive definite.
    """

    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        del profile, d
        refuse_values("Woodbury", with_values)
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
        return direct(gram, right, base - cho_solve(lower, pull), n * n, zero, zero > 0)


class QuadraticClosedForm(AbstractGradientSolver):
    """The closed form of Sec. 4.2 for a·(x̃ᵀΛỹ)², O(n²d + n³): for noise-free gradients of a quadratic, n ≤ d.

    With P = ŨŨᵀ, G' = G/(2a) and M = ŨG'ᵀ: V = P⁻¹(G' − ½MP⁻¹Ũ). Right only where M is symmetric, as it is for
    gradients (less that at the centre) of a quadratic; otherwise the residual says so. Of a noisy system it solves the
    noise-free one.
    """

    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        refuse_values("QuadraticClosedForm", with_values)
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
        return direct(gram, right, value, points.shape[0], nugget, raised)
