"""The solver of the gradient Gram system that de Roos, Gessner and Hennig (2021) print."""

import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float

from mcmcpost.gp.gradient_operator import GradientGram, ScalarProfile
from mcmcpost.gp.gradient_solvers import AbstractGradientSolver, GradientSolution

MEMORY = 4e9
"""Bytes that the system, its factor and a work copy may take."""
ACCURATE = 1e-6
"""Relative residual up to which a solve counts as converged."""


class Woodbury(AbstractGradientSolver):
    """The paper's solve, an unsymmetric system of order n²; gradients only.

    With U_(ab) = e_a ⊗ δ_ab (stationary; e_a ⊗ u_b for dot products), C vec(M)_ab = c_ab M_ba, c =
    −A₂ (or A₂) and B = (A₁ + σ²I) ⊗ I: z = B⁻¹g − B⁻¹U(I + CUᵀB⁻¹U)⁻¹CUᵀB⁻¹g, the (6) and (8) of
    the paper without dividing by κ″, which may vanish.
    """

    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        del profile, d
        if with_values:
            raise ValueError(
                "Woodbury: expected gradients only, got values too. Use ProjectedCholesky or "
                "GradientCG."
            )
        if 24.0 * n**4 > MEMORY:
            raise MemoryError(
                f"Woodbury: expected at most {MEMORY:.0e} bytes, got {n} points. Use fewer."
            )

    def solve(self, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
        n = gram.shape[0]
        points, dtype = gram.points, gram.points.dtype
        lower = cho_factor(gram.terms.first + gram.noise * jnp.eye(n, dtype=dtype), lower=True)
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
        system = c[:, :, None, None] * jnp.swapaxes(blocks, 0, 1) + jnp.eye(
            n * n, dtype=dtype
        ).reshape((n,) * 4)
        solved = jnp.linalg.solve(system.reshape(n * n, n * n), (c * along.T).reshape(-1)).reshape(
            n, n
        )
        pull = (
            jnp.sum(solved, 1)[:, None] * points - solved @ points
            if gram.stationary
            else solved @ points
        )
        value = base - cho_solve(lower, pull)
        size = jnp.linalg.norm(right)
        residual = jnp.linalg.norm(right - gram.matmul(value)) / jnp.where(size > 0, size, 1)
        zero = jnp.zeros((), dtype)
        return GradientSolution(
            value, residual, residual <= ACCURATE, jnp.ones((), int), n * n, zero, zero > 0
        )
