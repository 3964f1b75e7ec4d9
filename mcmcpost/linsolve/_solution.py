"""What a solver returns."""

from enum import IntEnum
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


class Outcome(IntEnum):
    """How a solve ended."""

    RUNNING = 0
    """Not a final state."""
    CONVERGED = 1
    """The residual, recomputed from the value, is within twice the tolerance; the solver's own was within it."""
    BUDGET = 2
    """The budget ended first; the value is the last one, whose residual need not be below that of zero."""
    STAGNATED = 3
    """The tolerance is below what this precision and matrix allow."""
    BROKEN = 4
    """The matrix is not positive definite, or a number is not finite; the value is the last finite one."""
    JITTERED = 5
    """Solved, but the matrix was singular in this precision: a multiple of the identity was added to factorise it."""


class Solution(NamedTuple):
    """The state in which a solve of AX = B stopped.

    value : (n, k).
    residual : (n, k) B − A·value.
    residual_norms : (k,) of the residual relative to its right-hand side.
    outcome : an `Outcome`.
    num_steps : of the solver.
    epochs : every entry of A computed once is one; preparation, steps and the check of the residual together.
    """

    value: Float[Array, "n k"]
    residual: Float[Array, "n k"]
    residual_norms: Float[Array, " k"]
    outcome: Int[Array, ""]
    num_steps: Int[Array, ""]
    epochs: Float[Array, ""]


def column_norms(B: Float[Array, "n k"]) -> Float[Array, " k"]:
    """Return the Euclidean norms (k,) of columns, also where their squares would overflow or vanish."""
    peak = jnp.max(jnp.abs(B), axis=0)
    unit = jnp.where(peak > 0, peak, 1)
    return unit * jnp.linalg.norm(B / unit[None], axis=0)
