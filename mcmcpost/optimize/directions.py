"""Search directions inferred by a gradient Gaussian process from the last points and gradients."""

import abc
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mcmcpost._core.arguments import check_count, check_flags, check_kind
from mcmcpost._core.errors import InputError
from mcmcpost.gp import (
    DiagonalPlusLowRank,
    GradientGram,
    ProjectedCholesky,
    ScalarProfile,
    gradient_gram,
    posterior_hessian,
    posterior_mean,
    scalar_profile,
)
from mcmcpost.kernels import AbstractKernel, Matern52

CURVATURE = 1e-10
"""A pair of step and gradient change is used where its cosine exceeds this."""


class Memory(NamedTuple):
    """The last m + 1 evaluations, newest last; only the last `filled` rows hold any. points, gradients : (m + 1, d)."""

    points: Float[Array, "m d"]
    gradients: Float[Array, "m d"]
    filled: Int[Array, ""]


class Secants(NamedTuple):
    """Steps S and gradient changes Y (m, d), zero where unusable; usable : (m,); scale : γ = sᵀy/yᵀy of the newest."""

    S: Float[Array, "p d"]
    Y: Float[Array, "p d"]
    usable: Bool[Array, " p"]
    scale: Float[Array, ""]


def empty_memory(pairs: int, x: Float[Array, " d"]) -> Memory:
    """Return an empty memory for so many pairs."""
    zeros = jnp.zeros((pairs + 1, x.shape[0]), x.dtype)
    return Memory(zeros, zeros, jnp.zeros((), int))


def remember(memory: Memory, x: Float[Array, " d"], gradient: Float[Array, " d"]) -> Memory:
    """Return the memory with one more evaluation, the oldest forgotten."""
    points = jnp.concatenate([memory.points[1:], x[None]])
    gradients = jnp.concatenate([memory.gradients[1:], gradient[None]])
    return Memory(points, gradients, jnp.minimum(memory.filled + 1, len(points)))


def held(memory: Memory) -> Bool[Array, " m"]:
    """Return which rows hold an evaluation."""
    return jnp.arange(len(memory.points)) >= len(memory.points) - memory.filled


def recent(memory: Memory, pairs: int) -> Memory:
    """Return the newest `pairs` + 1 evaluations."""
    points, gradients = memory.points[-pairs - 1 :], memory.gradients[-pairs - 1 :]
    return Memory(points, gradients, jnp.minimum(memory.filled, len(points)))


def secants(memory: Memory) -> Secants:
    """Return the pairs of positive curvature."""
    both = held(memory)[:-1]
    S = jnp.where(both[:, None], jnp.diff(memory.points, axis=0), 0)
    Y = jnp.where(both[:, None], jnp.diff(memory.gradients, axis=0), 0)
    along = jnp.sum(S * Y, 1)
    usable = along > CURVATURE * jnp.linalg.norm(S, axis=1) * jnp.linalg.norm(Y, axis=1)
    S, Y = jnp.where(usable[:, None], S, 0), jnp.where(usable[:, None], Y, 0)
    newest = len(S) - 1 - jnp.argmax(usable[::-1])
    found = usable[newest]
    scale = jnp.where(found, along[newest] / jnp.where(found, jnp.sum(Y[newest] ** 2), 1), 1)
    return Secants(S, Y, usable, scale)


def inverse_hessian(pairs: Secants) -> DiagonalPlusLowRank:
    """Return the L-BFGS inverse Hessian in compact form, γI + [S γY] C [S γY]ᵀ.

    Source: Byrd, Nocedal and Schnabel, Representations of quasi-Newton matrices (Math. Program. 1994), Theorem 2.2.
    """
    gamma, free = pairs.scale, jnp.where(pairs.usable, 0.0, 1.0)
    along = pairs.S @ pairs.Y.T + jnp.diag(free)
    inverse = jnp.linalg.inv(jnp.triu(along))
    corner = inverse.T @ (jnp.diag(jnp.diagonal(along)) + gamma * pairs.Y @ pairs.Y.T) @ inverse
    core = jnp.block([[corner, -inverse.T], [-inverse, jnp.zeros_like(corner)]])
    factor = jnp.concatenate([pairs.S, gamma * pairs.Y]).T
    return DiagonalPlusLowRank(jnp.full(factor.shape[:1], gamma), factor, core)


def hessian(pairs: Secants) -> DiagonalPlusLowRank:
    """Return the L-BFGS Hessian in compact form, σI − [σS Y] M⁻¹ [σS Y]ᵀ, σ = 1/γ (the same source, Theorem 2.3)."""
    sigma, free = 1 / pairs.scale, jnp.diag(jnp.where(pairs.usable, 0.0, 1.0))
    along = pairs.S @ pairs.Y.T
    lower, diagonal = jnp.tril(along, -1), jnp.diag(jnp.diagonal(along))
    middle = jnp.block([[sigma * pairs.S @ pairs.S.T + free, lower], [lower.T, -diagonal - free]])
    factor = jnp.concatenate([sigma * pairs.S, pairs.Y]).T
    return DiagonalPlusLowRank(jnp.full(factor.shape[:1], sigma), factor, -jnp.linalg.inv(middle))


def scaled_identity(scale: Float[Array, ""], d: int) -> DiagonalPlusLowRank:
    """Return scale·I in d dimensions."""
    return DiagonalPlusLowRank(jnp.full((d,), scale), jnp.zeros((d, 1), scale.dtype), jnp.zeros((1, 1), scale.dtype))


def apply(matrix: DiagonalPlusLowRank, V: Float[Array, "m d"]) -> Float[Array, "m d"]:
    """Return the matrix times each row of V, traced by JAX."""
    factor = jnp.asarray(matrix.factor)
    return jnp.asarray(matrix.diagonal)[None] * V + ((V @ factor) @ matrix.core) @ factor.T


NUGGET = 1e-10
"""Relative to the largest slope of κ; evaluations are exact, so it covers rounding in the factorisation only."""

FLOOR = 1e-3
"""Eigenvalues of an inferred Hessian are kept above this multiple of its prior scale."""


class AbstractMethod(eqx.Module):
    """Turns a memory into a descent direction.

    memory : pairs of step and gradient change that are kept, as in L-BFGS.
    kernel : a stationary one; its lengthscale is in units of the last step (of the last gradient change for `GPX`).
        None is Matern52(0.8).
    window : how many of the pairs the process is conditioned on; older ones enter the quasi-Newton matrix only.
    quasi_newton : whether the prior mean is the L-BFGS matrix of the memory, so that the process models the difference
        from it. Otherwise the prior mean is γI; the paper has another γ.
    """

    memory: int = 10
    window: int = 2
    kernel: AbstractKernel | None = None
    quasi_newton: bool = True

    def __check_init__(self) -> None:
        name = type(self).__name__
        check_count(name, "memory", self.memory, "Keep two or more.", most=100_000)
        check_count(name, "window", self.window, "Keep two or more.", most=100_000)
        check_kind(name, "kernel", self.kernel, (AbstractKernel, None), "Such as Matern52(0.8).")
        check_flags(name, quasi_newton=self.quasi_newton)
        profile = self.profile()
        if not profile.stationary:
            kind = type(self.kernel).__name__
            raise InputError(name, "a stationary `kernel`", kind, "Use `solve_linear` for quadratics.")
        shape = np.shape(profile.kernel.lengthscale)  # type: ignore[union-attr]  # stationary kernels have one
        if shape:
            cure = "Its inputs are in units of the last step, as Matern52(0.8)."
            raise InputError(name, "a `kernel` with one lengthscale", f"shape {shape}", cure)

    def profile(self) -> ScalarProfile:
        """Return the kernel's profile."""
        return scalar_profile(type(self).__name__, Matern52(0.8) if self.kernel is None else self.kernel)

    @abc.abstractmethod
    def direction(self, memory: Memory) -> Float[Array, " d"]:
        """Return a descent direction at the newest point; the steepest one while there are no pairs."""


class GPH(AbstractMethod):
    """Hessian inference: d = −|H̄|⁻¹g with the posterior mean H̄ of the Hessian at the current point.

    H̄ is diagonal plus low rank (the corrected (12) of the paper), so its eigenvalues come from a small problem; their
    absolute values, floored, make d a descent direction wherever H̄ is indefinite.

    Source: de Roos, Gessner and Hennig (ICML 2021), section 4.1.1 and Algorithm 1.
    """

    def direction(self, memory: Memory) -> Float[Array, " d"]:
        pairs = secants(memory)
        d = memory.points.shape[1]
        prior = hessian(pairs) if self.quasi_newton else scaled_identity(1 / pairs.scale, d)
        memory = recent(memory, self.window)
        steps, changes = _differences(memory)
        unit = _last(steps)
        gram, white = _white_gram(self.profile(), memory, steps / unit)
        weights = _weights(gram, memory, (changes - apply(prior, steps)) * (unit / white))
        here = jnp.zeros((1, d), steps.dtype)
        learned = posterior_hessian(self.profile(), gram.points, weights, here)
        change = (white / unit) ** 2
        k = prior.core.shape[0]
        factor = jnp.concatenate([prior.factor, learned.factor[0]], axis=1)
        core = jnp.zeros((factor.shape[1],) * 2, factor.dtype).at[:k, :k].set(prior.core)
        core = core.at[k:, k:].set(change * learned.core[0])
        whole = DiagonalPlusLowRank(prior.diagonal + change * learned.diagonal[0], factor, core)
        return -_absolute_solve(whole, memory.gradients[-1], FLOOR / pairs.scale)


class GPX(AbstractMethod):
    """Optimum inference: the process maps gradients to points, and d leads to its prediction for a zero gradient.

    Where that is no descent direction, d is the direction of the prior mean: −γg or the L-BFGS direction.

    Source: de Roos, Gessner and Hennig (ICML 2021), section 4.1.2, (13) with its signs corrected, and Algorithm 1.
    """

    def direction(self, memory: Memory) -> Float[Array, " d"]:
        pairs = secants(memory)
        g = memory.gradients[-1]
        prior = inverse_hessian(pairs) if self.quasi_newton else scaled_identity(pairs.scale, g.shape[0])
        memory = recent(memory, self.window)
        steps, changes = _differences(memory)
        unit = _last(changes)
        gram, white = _white_gram(self.profile(), memory, changes / unit)
        weights = _weights(gram, memory, steps - apply(prior, changes))
        goal = -g[None] / unit * white
        learned = posterior_mean(self.profile(), gram.points, weights, goal)[0, 1:]
        safe = -apply(prior, g[None])[0]
        d = safe + learned
        downhill = jnp.sum(d * g) < -FLOOR * jnp.linalg.norm(d) * jnp.linalg.norm(g)
        return jnp.where(downhill & jnp.all(jnp.isfinite(d)), d, safe)


def _differences(memory: Memory) -> tuple[Float[Array, "m d"], Float[Array, "m d"]]:
    """Return points and gradients relative to the newest, zero where nothing is held."""
    rows = held(memory)[:, None]
    points, gradients = memory.points - memory.points[-1:], memory.gradients - memory.gradients[-1:]
    return jnp.where(rows, points, 0), jnp.where(rows, gradients, 0)


def _last(differences: Float[Array, "m d"]) -> Float[Array, ""]:
    size = jnp.linalg.norm(differences[-2])
    return jnp.where(size > 0, size, 1)


def _white_gram(
    profile: ScalarProfile, memory: Memory, inputs: Float[Array, "m d"]
) -> tuple[GradientGram, Float[Array, ""]]:
    """Return the system at the inputs, in which rows that hold nothing stand apart, and the white scale 1/ℓ."""
    white = profile.root(inputs)[0]
    gram = gradient_gram(profile, inputs * white, jnp.zeros((), inputs.dtype))
    both = held(memory)[:, None] & held(memory)[None, :]
    slope = gram.terms.first[-1, -1]
    terms = gram.terms._replace(
        first=jnp.where(both, gram.terms.first, slope * jnp.eye(len(inputs), dtype=inputs.dtype)),
        second=jnp.where(both, gram.terms.second, 0),
    )
    return GradientGram(gram.points, terms, NUGGET * slope, gram.stationary, gram.with_values), white


def _weights(gram: GradientGram, memory: Memory, right: Float[Array, "m d"]) -> Float[Array, "m d"]:
    return ProjectedCholesky().solve(gram, jnp.where(held(memory)[:, None], right, 0)).value


def _absolute_solve(matrix: DiagonalPlusLowRank, g: Float[Array, " d"], floor: Float[Array, ""]) -> Float[Array, " d"]:
    """Return |H|⁻¹g for H of a constant diagonal, eigenvalues at least `floor` in size."""
    basis, triangle = jnp.linalg.qr(matrix.factor)
    level = matrix.diagonal[0]
    values, vectors = jnp.linalg.eigh(triangle @ matrix.core @ triangle.T)
    within = basis @ vectors
    along = within.T @ g
    outside = (g - within @ along) / jnp.maximum(jnp.abs(level), floor)
    return within @ (along / jnp.maximum(jnp.abs(level + values), floor)) + outside
