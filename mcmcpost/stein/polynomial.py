"""Polynomial Stein features: the Langevin operator applied to every monomial, exactly."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mcmcpost._core.errors import InputError

type Points = Float[Array | np.ndarray, "n d"]

_BLOCK_ENTRIES = 1 << 18  # entries of one block of rows: a few such blocks stay in cache


def num_polynomial_features(d: int, degree: int) -> int:
    """Return the number of monomials of total degree 1..degree in d variables, C(d + degree, degree) − 1."""
    return math.comb(d + degree, degree) - 1


def polynomial_exponents(d: int, degree: int, *, max_interaction: int | None = None) -> Int[np.ndarray, "q d"]:
    """Return the exponents (q, d) of all monomials of total degree 1..degree in d variables.

    They are ordered by total degree, then lexicographically with the first variable leading: z₁, z₂, z₁², z₁z₂, z₂², …

    Parameters
    ----------
    max_interaction : the largest number of distinct variables in one monomial; None for no limit.

    Raises
    ------
    ValueError
        if `d`, `degree` or `max_interaction` is below 1.
    """
    for name, value in (("d", d), ("degree", degree), ("max_interaction", max_interaction)):
        if value is not None and value < 1:
            raise InputError("polynomial_exponents", f"`{name}` of at least 1", value, "Use a positive integer.")
    limit = degree if max_interaction is None else max_interaction
    monomials = [
        m
        for total in range(1, degree + 1)
        for m in itertools.combinations_with_replacement(range(d), total)
        if len(set(m)) <= limit
    ]
    exponents = np.zeros((len(monomials), d), dtype=int)
    rows = np.repeat(np.arange(len(monomials)), [len(m) for m in monomials])
    np.add.at(exponents, (rows, np.fromiter(itertools.chain(*monomials), int)), 1)
    return exponents


def polynomial_features(Z: Points, T: Points, exponents: Int[np.ndarray, "q _"]) -> Float[Array, "n q"]:
    """Return the Stein features Δφ_α + ∇φ_α·t of the monomials φ_α(z) = Π z_i^{α_i}, one column per row of exponents.

    Each monomial is built one variable at a time: (φ, Lφ) ← (φ p, Lφ p + φ Lp), with p = z_i^a and
    Lp = a(a−1)z_i^{a−2} + a z_i^{a−1} t_i from tables, as distinct variables have no cross derivative. Time is
    O(n q v), v the largest number of distinct variables in a monomial; no (n, q, d) array is formed.

    Parameters
    ----------
    Z, T : (n, d) draws and scores, of one dtype, which the result follows.
    exponents : (q, d), not traced; see `polynomial_exponents`.

    Raises
    ------
    ValueError
        if the exponents have another d than the draws, are empty, or contain a negative.

    Source: Mira, Solgi and Imparato, Zero variance Markov chain Monte Carlo (Statistics and Computing 2013); Sun, Barp
    and Briol (ICML 2023), appendix C.2.
    """
    powers = np.asarray(exponents)
    if powers.shape[1] != Z.shape[1] or powers.shape[0] == 0 or (powers < 0).any():
        raise InputError(
            "polynomial_features",
            f"`exponents` of shape (q ≥ 1, {Z.shape[1]}), not negative",
            f"shape {powers.shape} with minimum {powers.min(initial=0)}",
            "Build them with polynomial_exponents.",
        )
    slots = max(int((powers > 0).sum(1).max()), 1)
    variables = np.argsort(powers == 0, axis=1, kind="stable")[:, :slots]
    powers = np.take_along_axis(powers, variables, 1)
    return _features(jnp.asarray(Z), jnp.asarray(T), variables.T, powers.T, int(powers.max()))


@functools.partial(jax.jit, static_argnames="degree")
def _features(
    Z: Float[Array, "n d"], T: Float[Array, "n d"], variables: Int[Array, "v q"], powers: Int[Array, "v q"], degree: int
) -> Float[Array, "n q"]:
    """Fill the (n, q) result by blocks of rows, in place; the last block overlaps the one before it."""
    n, q = Z.shape[0], powers.shape[1]
    block = max(1, min(n, _BLOCK_ENTRIES // q))
    index = powers * Z.shape[1] + variables

    def fill(i: Array, out: Array) -> Array:
        start = jnp.minimum(i * block, n - block)
        z, t = jax.lax.dynamic_slice_in_dim(Z, start, block), jax.lax.dynamic_slice_in_dim(T, start, block)
        return jax.lax.dynamic_update_slice_in_dim(out, _block_features(z, t, index, degree), start, 0)

    return jax.lax.fori_loop(0, -(-n // block), fill, jnp.zeros((n, q), Z.dtype))


def _block_features(
    z: Float[Array, "b d"], t: Float[Array, "b d"], index: Int[Array, "v q"], degree: int
) -> Float[Array, "b q"]:
    """Return the features of one block of rows; tables lie transposed, so that a gather copies contiguous rows."""
    z, t = z.T, t.T
    table = [jnp.ones_like(z), z]
    for _ in range(degree - 1):
        table.append(table[-1] * z)
    steined = [jnp.zeros_like(z), t] + [k * table[k - 2] * ((k - 1) + z * t) for k in range(2, degree + 1)]
    value, image = jnp.concatenate(table[: degree + 1]), jnp.concatenate(steined[: degree + 1])
    phi, lphi = value[index[0]], image[index[0]]
    for slot in index[1:]:
        phi, lphi = phi * value[slot], lphi * value[slot] + phi * image[slot]
    return lphi.T
