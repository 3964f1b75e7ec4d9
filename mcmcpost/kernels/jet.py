"""First-order jets of a kernel on two sets of points: every contraction is one matrix product.

A gradient ∇ₓk(x_i, y_j) is a sum of (n, m) coefficients times pairwise vectors u_i + v_j, so that no (n, m, d) array
is ever formed: an inner product of two pairwise vectors is one product of (n, 2d+2) and (2d+2, m) matrices. Sums,
products and weights of kernels stay in this form.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float


class Field(NamedTuple):
    """The pairwise vectors left_i + right_j; None is zero. left : (n, d). right : (m, d)."""

    left: Float[Array, "n d"] | None
    right: Float[Array, "m d"] | None


class Term(NamedTuple):
    """coefficient_ij (left_i + right_j), one summand of a kernel gradient. coefficient : (n, m)."""

    coefficient: Float[Array, "n m"]
    field: Field


class Jet(NamedTuple):
    """A kernel and its first mixed derivatives between two sets of points.

    value : (n, m), k(x_i, y_j).
    gradient_x, gradient_y : ∇ₓk and ∇ᵧk, each a sum of terms.
    divergence : (n, m), ∇ₓ·∇ᵧk.
    """

    value: Float[Array, "n m"]
    gradient_x: tuple[Term, ...]
    gradient_y: tuple[Term, ...]
    divergence: Float[Array, "n m"]


def product(left: Float[Array, "n k"], right: Float[Array, "m k"]) -> Float[Array, "n m"]:
    """Return left rightᵀ in the full precision of the dtype (accelerators would round float32 inputs otherwise)."""
    return jnp.matmul(left, right.T, precision="highest")


def inner(a: Field, b: Field) -> Float[Array, "..."]:
    """Return (a_left_i + a_right_j)·(b_left_i + b_right_j), shape (n, m), (n, 1) or (1, m), by one matrix product."""
    pairs = [(p, q) for p, q in ((a.left, b.right), (b.left, a.right)) if p is not None and q is not None]
    total = None
    if pairs:
        total = product(jnp.concatenate([p for p, _ in pairs], 1), jnp.concatenate([q for _, q in pairs], 1))
    if a.left is not None and b.left is not None:
        rows = jnp.sum(a.left * b.left, 1)[:, None]
        total = rows if total is None else total + rows
    if a.right is not None and b.right is not None:
        columns = jnp.sum(a.right * b.right, 1)[None, :]
        total = columns if total is None else total + columns
    if total is None:
        raise ValueError("inner: the two fields have no common side")
    return total


def contract(terms: tuple[Term, ...], field: Field) -> Float[Array, "n m"]:
    """Return Σ_terms coefficient · ⟨term, field⟩, shape (n, m)."""
    parts = [term.coefficient * inner(term.field, field) for term in terms]
    return sum(parts[1:], parts[0])


def scale(factor: Float[Array, "..."], terms: tuple[Term, ...]) -> tuple[Term, ...]:
    """Return `terms` with every coefficient multiplied by `factor` (scalar or (n, m))."""
    return tuple(Term(factor * t.coefficient, t.field) for t in terms)


def multiply(a: Jet, b: Jet) -> Jet:
    """Return the jet of the product of two kernels.

    ∇ₓ·∇ᵧ(k₁k₂) = k₁∇ₓ·∇ᵧk₂ + k₂∇ₓ·∇ᵧk₁ + ∇ₓk₁·∇ᵧk₂ + ∇ᵧk₁·∇ₓk₂.
    """
    pairs = [(t, b.gradient_y) for t in a.gradient_x] + [(t, b.gradient_x) for t in a.gradient_y]
    cross = sum((t.coefficient * contract(others, t.field) for t, others in pairs), jnp.zeros_like(a.value))
    return Jet(
        a.value * b.value,
        scale(a.value, b.gradient_x) + scale(b.value, a.gradient_x),
        scale(a.value, b.gradient_y) + scale(b.value, a.gradient_y),
        a.value * b.divergence + b.value * a.divergence + cross,
    )
