"""Probabilistic linear solvers: the quadratic kernel's closed form as an iteration for Ax = b."""

import abc
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float

from mcmcpost.core.arguments import (
    as_float64,
    check_count,
    check_flags,
    check_function,
    check_kind,
    check_number,
    check_size,
)
from mcmcpost.core.errors import InputError
from mcmcpost.gp.gradient_posterior import DiagonalPlusLowRank


class LinearSolution(NamedTuple):
    """The solution of Ax = b and the posterior mean of the matrix.

    value, residual : (d,), Ax − b, of a product with the value. converged : whether ‖residual‖ ≤
        rtol ‖b‖.
    num_steps : steps, each a product with A. estimate : posterior mean of A (`MatrixBased`) or of
        A⁻¹ (`SolutionBased`), None before the first step.
    """

    value: Float[np.ndarray, " d"]
    residual: Float[np.ndarray, " d"]
    converged: bool
    num_steps: int
    estimate: DiagonalPlusLowRank | None


class AbstractBelief(eqx.Module):
    """A Gaussian belief over a symmetric matrix M with prior mean γI, conditioned on MU = V.

    own_metric : whether the prior covariance is Λ ⊗ Λ with Λ the matrix itself, of which only ΛU =
    V is needed: steps are then those of conjugate gradients. Otherwise Λ = I, the paper's choice.
    """

    own_metric: bool = True

    def __check_init__(self) -> None:
        check_flags(type(self).__name__, own_metric=self.own_metric)

    @abc.abstractmethod
    def estimate(
        self, S: Float[np.ndarray, "m d"], Y: Float[np.ndarray, "m d"]
    ) -> DiagonalPlusLowRank:
        """Return the posterior mean given steps S and gradient changes Y = SA."""

    @abc.abstractmethod
    def direction(
        self, estimate: DiagonalPlusLowRank, g: Float[np.ndarray, " d"]
    ) -> Float[np.ndarray, " d"]:
        """Return the step from the current iterate to the solution of the estimate."""


class MatrixBased(AbstractBelief):
    """Infers A itself, the Hessian of the quadratic: section 4.2 with 4.1.1, centred at the current
    iterate.

    The paper fixes the centre at zero, which stalls; differences of iterates need none.
    """

    def estimate(
        self, S: Float[np.ndarray, "m d"], Y: Float[np.ndarray, "m d"]
    ) -> DiagonalPlusLowRank:
        return _symmetric_update(S, Y, Y if self.own_metric else S, (Y[0] @ Y[0]) / (S[0] @ Y[0]))

    def direction(
        self, estimate: DiagonalPlusLowRank, g: Float[np.ndarray, " d"]
    ) -> Float[np.ndarray, " d"]:
        return -estimate.solve(g)


class SolutionBased(AbstractBelief):
    """Infers A⁻¹, so the solution: section 4.2 with 4.1.2, the paper's (29) where Λ = I."""

    def estimate(
        self, S: Float[np.ndarray, "m d"], Y: Float[np.ndarray, "m d"]
    ) -> DiagonalPlusLowRank:
        return _symmetric_update(Y, S, S if self.own_metric else Y, (S[0] @ Y[0]) / (Y[0] @ Y[0]))

    def direction(
        self, estimate: DiagonalPlusLowRank, g: Float[np.ndarray, " d"]
    ) -> Float[np.ndarray, " d"]:
        return -estimate.matvec(g)


def solve_linear(
    A: Callable[[np.ndarray], np.ndarray] | np.ndarray,
    b: object,
    *,
    method: AbstractBelief | None = None,
    x0: object = None,
    rtol: float = 1e-5,
    max_steps: int | None = None,
) -> LinearSolution:
    """Solve Ax = b for symmetric positive definite A by inference on A or A⁻¹, with the optimal
    step length.

    Parameters
    ----------
    A : (d, d), or the function v ↦ Av.
    b : (d,). x0 : (d,), zero when None. method : None is ``SolutionBased()``.
    rtol : relative to ‖b‖. max_steps : budget, None is 2d.

    Source: de Roos, Gessner and Hennig (ICML 2021), sections 4.2 and 5.1; Hennig, Probabilistic
    interpretation of linear solvers (SIAM J. Optim. 2015).

    A direction without positive curvature, of a matrix that is not positive definite, ends the
    solve: `converged` is false with steps to spare.

    Raises
    ------
    TypeError, ValueError : shapes that do not agree, b that is not finite.
    """
    where = "solve_linear"
    right = as_float64(where, "b", b, "d")
    if not len(right) or not np.isfinite(right).all():
        got = "NaN or infinite entries" if len(right) else "no entry"
        raise InputError(where, "`b` finite, of at least one entry", got, "Check how it was made.")
    check_size(where, "b", right[:, None])
    d = len(right)
    check_kind(where, "method", method, (AbstractBelief, None), "Such as SolutionBased().")
    check_number(where, "rtol", rtol, "Use 1e-5.", inside="[0, 1)")
    check_count(where, "max_steps", max_steps, "Leave it out.", least=0, optional=True)
    if callable(A):
        check_function(where, "A", A, 1, "It is the function v ↦ Av.")
    product = (
        _checked_product(A, d) if callable(A) else as_float64(where, "A", A, "d, d").__matmul__
    )
    belief = SolutionBased() if method is None else method
    x = np.zeros_like(right) if x0 is None else as_float64(where, "x0", x0, "d")
    if not np.isfinite(x).all():
        raise InputError(where, "`x0` finite", x0, "Start elsewhere.")
    if x.shape != (d,) or not (callable(A) or np.shape(A) == (d, d)):
        got = f"{'a function' if callable(A) else np.shape(A)} and {x.shape}"
        raise InputError(where, f"A ({d}, {d}) and x0 ({d},) for b ({d},)", got, "Match them.")
    g = product(x) - right
    goal = rtol * np.linalg.norm(right)
    steps: list[np.ndarray] = []
    changes: list[np.ndarray] = []
    estimate = None
    # Exact arithmetic needs d steps; rounding makes it more.
    for _ in range(2 * d if max_steps is None else max_steps):
        if np.linalg.norm(g) <= goal:
            g = product(x) - right  # rounding lets the updated residual drift away from it
        if np.linalg.norm(g) <= goal:
            break
        direction = -g if estimate is None else belief.direction(estimate, g)
        # An estimate that is not positive definite may point uphill, and −g never does.
        if not direction @ g < 0:
            direction = -g
        image = product(direction)
        curvature = direction @ image
        # The quadratic has no minimum along such a direction.
        if not curvature > 0:
            break
        # The minimum along the direction (section 5.1).
        length = -(direction @ g) / curvature
        steps.append(length * direction)
        changes.append(length * image)
        x, g = x + steps[-1], g + changes[-1]
        estimate = belief.estimate(np.stack(steps), np.stack(changes))
    # What is reported is of the solution itself, not the sum of all changes.
    g = product(x) - right
    return LinearSolution(x, g, bool(np.linalg.norm(g) <= goal), len(steps), estimate)


def _checked_product(
    A: Callable[[np.ndarray], np.ndarray], d: int
) -> Callable[[np.ndarray], np.ndarray]:
    def product(v: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
        image = as_float64("solve_linear", "A(v)", A(v), "d")
        if image.shape != (d,):
            raise InputError(
                "solve_linear", f"`A(v)` of shape ({d},)", image.shape, "It is the function v ↦ Av."
            )
        return image

    return product


def _symmetric_update(
    U: Float[np.ndarray, "m d"],
    V: Float[np.ndarray, "m d"],
    W: Float[np.ndarray, "m d"],
    scale: float,
) -> DiagonalPlusLowRank:
    """Return γI + RP⁻¹W + WᵀP⁻¹Rᵀ − WᵀP⁻¹(UR)P⁻¹W, R = V − γU, P = UWᵀ (rows are vectors): it maps
    U to V.

    The closed form of `QuadraticClosedForm` in the metric Λ with W = UΛ.
    """
    # steps shrink: equal rows keep P well conditioned
    size = 1 / np.sqrt(np.sum(U * W, axis=1, keepdims=True))
    U, V, W = U * size, V * size, W * size
    R = V - scale * U
    across = U @ W.T
    # P is symmetric but for rounding, and singular where a step repeats an earlier one.
    inverse = np.linalg.pinv((across + across.T) / 2, hermitian=True)
    corner = -inverse @ (U @ R.T + R @ U.T) @ inverse / 2
    m = len(U)
    core = np.block([[np.zeros((m, m)), inverse], [inverse, corner]])
    return DiagonalPlusLowRank(np.full(U.shape[1], scale), np.concatenate([R, W]).T, core)
