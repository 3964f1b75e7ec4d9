"""AX = B for any system and solver, differentiable in both A and B."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mcmcpost.core.arguments import as_real, check_count, check_key, check_kind
from mcmcpost.core.errors import InputError
from mcmcpost.solve.dense import Cholesky, solve_dense
from mcmcpost.solve.iterative import AbstractIterativeSolver, Solution, iterate
from mcmcpost.solve.row_methods import StochasticGradientDescent
from mcmcpost.stein.products import Regularised

type Solver = Cholesky | AbstractIterativeSolver


def solve(
    system: Regularised,
    right: object,
    solver: Solver,
    *,
    initial: object = None,
    probes: int = 0,
    key: jax.Array | None = None,
) -> Solution:
    """Solve AX = B for a symmetric positive definite system.

    The value is differentiable in A and B by a second solve at the solution (implicit
    differentiation); residuals and counts carry no derivative.

    Parameters
    ----------
    system : A, with its noise.
    right : (n, k), B, an array or what makes one; solved in the precision of A.
    solver : `Cholesky`, `ConjugateGradients`, `AlternatingProjections` or
        `StochasticGradientDescent`.
    initial : (n, k) a first guess, such as the solution of a system nearby (a warm start); zero
        without one. Iterates of conjugate gradients from zero are Galerkin, which the
        computation-aware variance needs. `Cholesky` needs no guess and takes none.
    probes : how many of the last columns are probe vectors: the mean of their residual norms is
        held to the tolerance, that of every other column by itself (Lin et al. 2024, Algorithm 1,
        which runs while either is above).
    key : for `StochasticGradientDescent`, which needs one.

    Raises
    ------
    TypeError : a system or solver that is none.
    ValueError : shapes that do not agree, a first guess for Cholesky, no key for a random solver.
    """
    check_kind(
        "solve",
        "system",
        system,
        Regularised,
        "Such as Regularised(kernel_operator(kernel, X), noise).",
    )
    check_kind(
        "solve",
        "solver",
        solver,
        (Cholesky, AbstractIterativeSolver),
        "Such as ConjugateGradients().",
    )
    check_count("solve", "probes", probes, "They are the last columns of B.", least=0)
    check_key("solve", key, optional=True)
    columns = (
        right if isinstance(right, jax.Array) else jnp.asarray(as_real("solve", "right", right))
    )
    if columns.ndim != 2:
        raise InputError(
            "solve", "B of shape (n, k)", columns.shape, "One right-hand side is b[:, None]."
        )
    known = initial is None or isinstance(initial, jax.Array)
    guess: Any = initial if known else jnp.asarray(as_real("solve", "initial", initial))
    guess = None if guess is None else guess.astype(system.dtype)
    return _solve(system, columns.astype(system.dtype), solver, guess, probes, key)


@eqx.filter_jit
def _solve(
    system: Regularised,
    right: Float[Array, "n k"],
    solver: Solver,
    initial: Float[Array, "_ _"] | None,
    probes: int,
    key: jax.Array | None,
) -> Solution:
    n, k = right.shape
    if n != system.shape[0] or not 0 <= probes < k:
        got = f"B {right.shape} with {probes} probes for A {system.shape}"
        raise InputError(
            "solve", "B (n, k) with at least one column that is no probe", got, "Match them."
        )
    if initial is not None and initial.shape != right.shape:
        raise InputError(
            "solve", f"`initial` {right.shape}", initial.shape, "Give one guess per column."
        )
    if isinstance(solver, StochasticGradientDescent) and key is None:
        raise InputError(
            "solve", "a `key` for StochasticGradientDescent", None, "Pass jax.random.key(...)."
        )
    random = jax.random.key(0) if key is None else key  # unused by every other solver

    def forward(_: Callable[[Array], Array], b: Array) -> tuple[Array, Solution]:
        return _answer(_fixed(system), b, solver, initial, probes, random)

    def backward(_: Callable[[Array], Array], b: Array) -> tuple[Array, Solution]:
        return _answer(_fixed(system), b, solver, None, 0, random)

    value, solution = jax.lax.custom_linear_solve(
        system.matmul, right, forward, backward, symmetric=True, has_aux=True
    )
    return jax.tree.map(jax.lax.stop_gradient, solution)._replace(value=value)


def _fixed(system: Regularised) -> Regularised:
    return jax.tree.map(
        lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_array_like(leaf) else leaf, system
    )


def _answer(
    system: Regularised,
    right: Array,
    solver: Solver,
    initial: Array | None,
    probes: int,
    key: jax.Array,
) -> tuple[Array, Solution]:
    if isinstance(solver, Cholesky):
        if initial is not None:
            raise InputError("solve", "no `initial` for Cholesky", "one", "Leave it out.")
        solution = solve_dense(system.dense(), right)
    else:
        solution = iterate(system, right, solver, initial, probes, key)
    return solution.value, solution
