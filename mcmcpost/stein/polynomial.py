"""Polynomial Stein features: the Langevin operator applied to every monomial, exactly."""

import functools
import itertools
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mcmcpost._core.arguments import as_real, check_count, check_kind
from mcmcpost._core.errors import InputError

type Points = Float[Array | np.ndarray, "n d"]

MAX_ENTRIES = 1 << 27
"""Exponents, a gigabyte, that are built at most."""

_BLOCK_ENTRIES = 1 << 18  # entries of one block of rows: a few such blocks stay in cache


def num_polynomial_features(d: int, degree: int) -> int:
    """Return the number of monomials of total degree 1..degree in d variables, C(d + degree, degree) − 1."""
    for name, value in (("d", d), ("degree", degree)):
        check_count("num_polynomial_features", name, value, "Use a positive integer.", least=0)
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
        if `d`, `degree` or `max_interaction` is below 1, or the exponents would take more than a gigabyte.
    """
    where, cure = "polynomial_exponents", "Use a positive integer."
    check_count(where, "d", d, cure)
    check_count(where, "degree", degree, cure)
    check_count(where, "max_interaction", max_interaction, cure, optional=True)
    limit = min(d, degree if max_interaction is None else min(max_interaction, degree))
    # of all monomials, C(d, k) C(degree, k) have exactly k distinct variables
    number = sum(math.comb(d, k) * math.comb(degree, k) for k in range(1, min(limit, MAX_ENTRIES) + 1))
    if number * d > MAX_ENTRIES:
        got = f"degree {degree} in {d} variables, {number:.3g} monomials" if number < 10**300 else f"degree {degree}"
        cure = "Use a lower `degree`, or max_interaction=1."
        raise InputError(where, f"at most {MAX_ENTRIES / d:.3g} monomials of {d} variables", got, cure)
    monomials = sorted(
        (m for k in range(1, limit + 1) for own in itertools.combinations(range(d), k) for m in _spread(own, degree)),
        key=lambda m: (len(m), m),
    )
    exponents = np.zeros((len(monomials), d), dtype=int)
    rows = np.repeat(np.arange(len(monomials)), [len(m) for m in monomials])
    np.add.at(exponents, (rows, np.fromiter(itertools.chain(*monomials), int)), 1)
    return exponents


def _spread(variables: tuple[int, ...], degree: int) -> Iterator[tuple[int, ...]]:
    """Yield the monomials, as sorted variables with repeats, that have each of these variables, up to a degree."""
    for total in range(degree - len(variables) + 1):
        for more in itertools.combinations_with_replacement(variables, total):
            yield tuple(sorted(variables + more))


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
    powers = as_real("polynomial_features", "exponents", exponents)
    for name, points in (("Z", Z), ("T", T)):
        check_kind("polynomial_features", name, points, (np.ndarray, jax.Array), "Pass an array (n, d).")
        if points.ndim != 2 or points.shape != Z.shape:
            raise InputError("polynomial_features", "`Z` and `T` (n, d)", f"{Z.shape}, {T.shape}", "Match them.")
    whole = powers.ndim == 2 and powers.dtype.kind in "iu"
    if not whole or powers.shape[1] != Z.shape[1] or powers.shape[0] == 0 or (powers < 0).any():
        raise InputError(
            "polynomial_features",
            f"`exponents`, integers of shape (q ≥ 1, {Z.shape[1]}), not negative",
            f"shape {powers.shape} with minimum {powers.min(initial=0)}",
            "Build them with polynomial_exponents.",
        )
    slots = max(int((powers > 0).sum(1).max()), 1)
    variables = np.argsort(powers == 0, axis=1, kind="stable")[:, :slots]
    powers = np.take_along_axis(powers, variables, 1)
    return _features(Z, T, variables.T, powers.T, int(powers.max()))


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
