"""Solvers of the gradient Gram system: direct, iterative, and the automatic rule."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.core.arguments import check_count, check_flags, check_number
from mcmcpost.core.errors import InputError
from mcmcpost.gp.gradient_operator import (
    GradientGram,
    ScalarProfile,
    check_bytes,
    check_memory,
    fits,
    projected_dimension,
    span_basis,
)
from mcmcpost.gp.gradient_posterior import (
    factor_solve,
    floored_cholesky,
    outside_matrix,
    projected_factor,
)
from mcmcpost.solve import conjugate_gradients, is_accurate
from mcmcpost.stein import Polynomial


class GradientSolution(NamedTuple):
    """Weights of the representation of the posterior mean, and what they cost.

    value : (n, w) white. residual : relative, ‖b − Kv‖/‖b‖, by one product after the solve.
    converged : whether it is within the solver's tolerance. num_products : structured products
    made. order : of the largest matrix factorised.
    nugget : multiple of the identity that a Cholesky factorisation added; raised : whether above
        its floor at rounding.
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


def relative_residual(
    gram: GradientGram, right: Float[Array, "n w"], value: Float[Array, "n w"]
) -> Float[Array, ""]:
    size = jnp.linalg.norm(right)
    return jnp.linalg.norm(right - gram.matmul(value)) / jnp.where(size > 0, size, 1)


def direct(
    gram: GradientGram,
    right: Float[Array, "n w"],
    value: Float[Array, "n w"],
    order: int,
    nugget: Float[Array, ""],
    raised: Bool[Array, ""],
) -> GradientSolution:
    residual = relative_residual(gram, right, value)
    # One product, for the residual: a direct solve makes none by itself.
    one = jnp.ones((), int)
    return GradientSolution(value, residual, is_accurate(residual), one, order, nugget, raised)


class DenseCholesky(AbstractGradientSolver):
    """Factorise the whole matrix, O(n³d³): the definition, and the fastest for n·d of a few
    hundred."""

    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        del profile
        check_memory("DenseCholesky", n * (d + with_values))

    def solve(self, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
        matrix = gram.dense()
        factor = floored_cholesky(matrix)
        value = cho_solve((factor.lower, True), right.reshape(-1)).reshape(right.shape)
        return direct(gram, right, value, matrix.shape[0], factor.nugget, factor.raised)


class ProjectedCholesky(AbstractGradientSolver):
    """Factorise in the span of the points, order n·min(d, n − 1), and A₁ (n×n) for all other
    directions at once.

    Where the points span all of space it is `DenseCholesky`.
    """

    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        check_memory(
            "ProjectedCholesky", n * (projected_dimension(profile.stationary, n, d) + with_values)
        )

    def solve(self, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
        # No complement: the projected system would be the dense one in rotated coordinates.
        if span_basis(gram.points, stationary=gram.stationary) is None:
            return DenseCholesky().solve(gram, right)
        factor = projected_factor(gram)
        value = factor_solve(factor, right, gram.points.shape[1])
        return direct(gram, right, value, factor.inside.shape[0], factor.nugget, factor.raised)


class QuadraticClosedForm(AbstractGradientSolver):
    """The closed form of Sec. 4.2 for a·(x̃ᵀΛỹ)², O(n²d + n³): for noise-free gradients of a
    quadratic, n ≤ d.

    With P = ŨŨᵀ, G' = G/(2a) and M = ŨG'ᵀ: V = P⁻¹(G' − ½MP⁻¹Ũ). Right only where M is symmetric,
    as it is for gradients (less that at the centre) of a quadratic; otherwise the residual says so.
    Of a noisy system it solves the noise-free one.
    """

    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        if with_values:
            cure = "Use ProjectedCholesky or GradientCG."
            raise InputError("QuadraticClosedForm", "gradients only", "values too", cure)
        kernel = profile.kernel
        if (
            not isinstance(kernel, Polynomial)
            or kernel.degree != 2
            or float(kernel.offset) != 0
            or n > d
        ):
            got = f"{type(kernel).__name__}, {n} points in {d} dimensions"
            expected = "Polynomial(2, offset=0) and no more points than dimensions"
            raise InputError("QuadraticClosedForm", expected, got, "Use ProjectedCholesky.")

    def solve(self, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
        points = gram.points
        inner = points @ points.T
        lower, nugget, raised = floored_cholesky(inner)
        factor = (lower, True)
        # κ″ = 2a is one number for all pairs, so that any entry gives it.
        scaled = right / gram.terms.second[0, 0]
        mixed = points @ scaled.T
        # M is symmetric for a quadratic; half the sum with its transpose takes out the rounding.
        value = cho_solve(factor, scaled - 0.25 * (mixed + mixed.T) @ cho_solve(factor, points))
        return direct(gram, right, value, points.shape[0], nugget, raised)


def _check_limits(where: str, rtol: object, max_steps: object) -> None:
    check_number(where, "rtol", rtol, "It is relative: 1e-2 to 1e-10.", inside="(0, 1)")
    check_count(where, "max_steps", max_steps, "Use 5,000.")


CLUSTERED = 0.9
"""Correlation of white gradients of neighbours above which preconditioning pays."""


class GradientCG(AbstractGradientSolver):
    """Conjugate gradients on structured products: O(n² + nd) memory, no Gram matrix.

    rtol : residual relative to the right-hand side. max_steps : budget in products; an unfinished
    solve is returned with ``converged`` false. project : in the span of the points, where d > n.
    precondition : by A₁ ⊗ I (and κ for values), which cuts products 4–13× on trajectories and costs
    twice as much per product; None does so where the points are clustered: half of them have a
    neighbour of A₁ correlation above `CLUSTERED`.
    """

    rtol: float = 1e-8
    max_steps: int = 5000
    project: bool = True
    precondition: bool | None = None

    def __check_init__(self) -> None:
        _check_limits("GradientCG", self.rtol, self.max_steps)
        check_flags("GradientCG", project=self.project)
        if self.precondition is not None:
            check_flags("GradientCG", precondition=self.precondition)

    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        del profile
        # n² entries each: three terms and two factors; the rest are vectors of the iteration.
        check_bytes("GradientCG", 8.0 * (5 * n * n + 8 * n * (d + with_values)))

    def solve(self, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
        n, d = gram.points.shape
        basis = span_basis(gram.points, stationary=gram.stationary) if self.project else None
        small, inside = gram, right
        # A₁ + σ²I is the exact system outside the span and the preconditioner inside it.
        outer = (floored_cholesky(outside_matrix(gram)).lower, True)
        middle = (
            floored_cholesky(gram.terms.value + gram.noise * jnp.eye(n, dtype=right.dtype)).lower,
            True,
        )
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
            # On spread points it does not pay: 8.8 s for 717 products against 3.3 s for 520, of
            # 1,000 gradients in 100 dimensions (docs/results/gradient_gp.md, matrix_free).
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
            # Outside the span no iteration: one solve with the factor at hand.
            across = right[:, -d:] - inside[:, gram.with_values :] @ basis.T
            gradients = value[:, gram.with_values :] @ basis.T + cho_solve(outer, across)
            value = jnp.concatenate([value[:, : gram.with_values], gradients], axis=1)
        residual = relative_residual(gram, right, value)
        zero = jnp.zeros((), right.dtype)
        # One more for the residual below.
        steps = jnp.asarray(solution.num_steps, int) + 1
        # Twice the tolerance: the recursive residual drifts from the true one by rounding.
        used = self.precondition is not False or basis is not None
        return GradientSolution(
            value, residual, residual <= 2 * self.rtol, steps, n if used else 0, zero, zero > 0
        )


class Automatic(AbstractGradientSolver):
    """Choose by the order n·q of the projected system, q = min(d, n − 1), and by the conditioning.

    1. Order at most `dense_order`, eight times that where n > 2d: `ProjectedCholesky`, which is
       dense Cholesky where n > d. Many more points than dimensions are badly conditioned.
    2. Beyond, `GradientCG`, in the span of the points, preconditioned where they are clustered.
       While Cholesky would fit in memory its budget is nq²/30 products, about the time of that
       factorisation, and `solve_system` factorises if they were not enough: an ill-conditioned
       system costs at most about twice the better solver.
    3. Where Cholesky does not fit the budget is `max_steps`.

    Measured: results, "Gradient processes".
    """

    dense_order: int = 300
    rtol: float = 1e-8
    max_steps: int = 5000

    def __check_init__(self) -> None:
        check_count("Automatic", "dense_order", self.dense_order, "Use 300.", least=0)
        _check_limits("Automatic", self.rtol, self.max_steps)

    def choose(
        self, stationary: bool, n: int, d: int, *, with_values: bool
    ) -> AbstractGradientSolver:
        """Return the solver for n points in d dimensions."""
        # q counts the value of a point as one more direction.
        q = projected_dimension(stationary, n, d) + with_values
        if n * q <= self.dense_order * (8 if n > 2 * d else 1):
            # nq²/30 products take about the time of the factorisation that would replace them.
            return ProjectedCholesky()
        return GradientCG(
            self.rtol,
            min(self.max_steps, max(n * q * q // 30, 1)) if fits(n * q) else self.max_steps,
        )

    def check(self, profile: ScalarProfile, n: int, d: int, with_values: bool) -> None:
        self.choose(profile.stationary, n, d, with_values=with_values).check(
            profile, n, d, with_values
        )

    def solve(self, gram: GradientGram, right: Float[Array, "n w"]) -> GradientSolution:
        return self.choose(gram.stationary, *gram.points.shape, with_values=gram.with_values).solve(
            gram, right
        )


def _clustered(gram: GradientGram) -> Bool[Array, ""]:
    n = gram.shape[0]
    # Scale-free: correlations, not covariances, so that one threshold serves every kernel.
    diagonal = jnp.diagonal(gram.terms.first)
    size = jnp.sqrt(jnp.abs(diagonal[:, None] * diagonal[None, :]))
    others = jnp.where(
        jnp.eye(n, dtype=bool), 0, jnp.abs(gram.terms.first) / jnp.where(size > 0, size, 1)
    )
    return jnp.median(jnp.max(others, axis=1)) > CLUSTERED


def solve_system(
    solver: AbstractGradientSolver,
    profile: ScalarProfile,
    gram: GradientGram,
    right: Float[Array, "n w"],
) -> GradientSolution:
    """Return the solution by `solver`; where the automatic rule's conjugate gradients failed, by
    Cholesky if it fits.

    Raises
    ------
    MemoryError, ValueError : as the solver's check.
    """
    n, d = gram.points.shape
    solver.check(profile, n, d, gram.with_values)
    solution = _solve_gradients(solver, gram, right)
    order = n * (projected_dimension(profile.stationary, n, d) + gram.with_values)
    # The true residual decides, not the rule: an ill-conditioned system is known only by trying.
    if isinstance(solver, Automatic) and not bool(solution.converged) and fits(order):
        return _solve_gradients(ProjectedCholesky(), gram, right)
    return solution


@eqx.filter_jit
def _solve_gradients(
    solver: AbstractGradientSolver, gram: GradientGram, right: Float[Array, "n w"]
) -> GradientSolution:
    return solver.solve(gram, right)
