"""Evidence without control variates: the multistate Bennett acceptance ratio and stepping
stones."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int
from scipy import special

from mcmcpost.core.errors import Status
from mcmcpost.core.mcse import mcse_mean
from mcmcpost.evidence.ladder import EvidenceEstimate, Ladder

MAX_STEPS = 200

TOLERANCE = 1e-11
"""Size of a step, relative to the largest |f_j| or one, at which the iteration stops: rounding of
the sums."""


class FreeEnergies(NamedTuple):
    """Log normalising constants of the rungs.

    values : (t,) f_j = log Z(t_j), zero at the prior; minus pymbar's f_k.
    num_steps, converged : of the iteration.
    """

    values: Float[Array, " t"]
    num_steps: Int[Array, ""]
    converged: Bool[Array, ""]


class _State(NamedTuple):
    """f_j, the occupation Σ_n c_n m_j W_nj of every rung (m_j at the solution), and the
    responsibilities (t, n)."""

    values: Float[Array, " t"]
    occupation: Float[Array, " t"]
    shares: Float[Array, "t n"]
    step: Int[Array, ""]
    change: Float[Array, ""]


def tempered(
    temperatures: Float[Array, " t"], log_likelihood: Float[Array, " n"]
) -> Float[Array, "t n"]:
    """Return t·ℓ, zero at the prior even where ℓ = −∞."""
    prior = (temperatures == 0.0)[:, None]
    return jnp.where(
        prior, 0.0, temperatures[:, None] * jnp.where(prior, 0.0, log_likelihood[None, :])
    )


def solve_free_energies(
    temperatures: Float[Array, " t"],
    log_likelihood: Float[Array, " n"],
    counts: Float[Array, " n"],
    sizes: Float[Array, " t"],
    start: Float[Array, " t"],
) -> FreeEnergies:
    """Solve f_i = log Σ_n exp(t_iℓ_n) / Σ_j m_j exp(t_jℓ_n − f_j), up to a constant.

    The f_j minimise the convex Σ_n log Σ_j m_j exp(t_jℓ_n − f_j) + Σ_j m_j f_j: Newton steps, and a
    fixed-point step where Newton's does not bring the rungs' occupations nearer to their sizes. A
    step costs two passes over the (t, n) energies. Shirts and Chodera (2008,
    doi:10.1063/1.2978177), equation 11.

    Parameters
    ----------
    log_likelihood : (n,) ℓ of the draws of all rungs.
    counts : (n,) multiplicity of each draw, zero for one left out.
    sizes : (t,) m_j, the draws counted of each rung.
    start : (t,) first guess.
    """
    energies = tempered(temperatures, log_likelihood)

    def at(values: Array, step: Array, change: Array) -> _State:
        shares = sizes[:, None] * _mixture_weights(energies, sizes, values)
        return _State(values, shares @ counts, shares, step, change)

    def step(state: _State) -> _State:
        # Hessian of the convex function of docs/mathematics.md section 3: (t, t), from the
        # responsibilities at hand.
        hessian = jnp.diag(state.occupation) - (state.shares * counts[None, :]) @ state.shares.T
        # The first rung is the reference; its row would make the system singular.
        direction = jnp.linalg.solve(hessian[1:, 1:], (state.occupation - sizes)[1:])
        newton = jnp.zeros_like(state.values).at[1:].set(direction)
        tried = at(state.values + newton, state.step + 1, jnp.abs(newton).max())
        # The fixed point f_i ← log Σ_n exp(t_iℓ_n)/Σ_j … moves f_i by log(occupation/size). It
        # always converges, slowly.
        simple = jnp.log(state.occupation / sizes)
        simple = simple - simple[0]
        # At the solution occupations are sizes up to rounding and cannot improve: there the size of
        # the step decides.
        better = (
            jnp.abs(tried.occupation / sizes - 1).max()
            < jnp.abs(state.occupation / sizes - 1).max()
        )
        settled = tried.change < _tolerance(tried)
        return jax.lax.cond(
            better | settled,
            lambda: tried,
            lambda: at(state.values + simple, state.step + 1, jnp.abs(simple).max()),
        )

    def unfinished(state: _State) -> Array:
        return (state.step < MAX_STEPS) & ~(state.change < _tolerance(state))

    first = at(start - start[0], jnp.zeros((), int), jnp.full((), jnp.inf))
    last = jax.lax.while_loop(unfinished, step, first)
    return FreeEnergies(last.values, last.step, last.change < _tolerance(last))


def log_mixture(
    temperatures: Float[Array, " t"],
    log_likelihood: Float[Array, " n"],
    sizes: Float[Array, " t"],
    values: Float[Array, " t"],
) -> Float[Array, " n"]:
    """Return log Σ_j m_j exp(t_jℓ_n − f_j), the mixture that all draws together are taken from."""
    return _log_denominator(tempered(temperatures, log_likelihood), sizes, values)


@jax.jit
def asymptotic_covariance(
    temperatures: Float[Array, " t"],
    log_likelihood: Float[Array, " n"],
    sizes: Float[Array, " t"],
    values: Float[Array, " t"],
) -> Float[Array, "t t"]:
    """Return the asymptotic covariance of f_j − f_0 under independent draws.

    Θ = Wᵀ(I − W M Wᵀ)⁺W with W_nj = exp(t_jℓ_n − f_j)/Σ_k m_k exp(t_kℓ_n − f_k) and M = diag(m):
    Shirts and Chodera (2008), equation 8, from the t × t matrix WᵀW alone.
    """
    energies = tempered(temperatures, log_likelihood)
    weights = _mixture_weights(energies, sizes, values)
    spectrum, vectors = jnp.linalg.eigh(weights @ weights.T)
    # With W = U S Vᵀ, Θ = V S (I − S VᵀMV S)⁺ S Vᵀ: the eigenvectors V of WᵀW do, and no (n, n)
    # matrix is formed. A constant added to all f_j is a null direction, hence the pseudo-inverse.
    spread = jnp.sqrt(jnp.maximum(spectrum, 0.0))
    inner = (
        jnp.eye(len(sizes))
        - spread[:, None] * (vectors.T @ (sizes[:, None] * vectors)) * spread[None, :]
    )
    half = vectors * spread[None, :]
    theta = half @ jnp.linalg.pinv(inner, rtol=1e-10, hermitian=True) @ half.T
    return theta - theta[:1, :] - theta[:, :1] + theta[:1, :1]


@jax.jit
def adjacent_overlap(
    temperatures: Float[Array, " t"],
    log_likelihood: Float[Array, " n"],
    counts: Float[Array, " n"],
    sizes: Float[Array, " t"],
    values: Float[Array, " t"],
) -> Float[Array, " t-1"]:
    """Return, for neighbouring rungs, the probability that a draw of one is attributed to the
    other.

    O_{j,j+1} = m_{j+1} Σ_n c_n W_nj W_n,j+1, c_n how many draws each counts for; 0.5 between two
    equal rungs alone, near zero without overlap (Klimovich, Shirts and Mobley, 2015,
    doi:10.1007/s10822-015-9840-9, who ask for 0.03).
    """
    energies = tempered(temperatures, log_likelihood)
    weights = _mixture_weights(energies, sizes, values)
    return sizes[1:] * jnp.sum(counts[None, :] * weights[1:] * weights[:-1], axis=1)


def _log_denominator(
    energies: Float[Array, "t n"], sizes: Float[Array, " t"], values: Float[Array, " t"]
) -> Float[Array, " n"]:
    return logsumexp(energies - values[:, None] + jnp.log(sizes)[:, None], axis=0)


def _tolerance(state: _State) -> Float[Array, ""]:
    return TOLERANCE * jnp.maximum(1.0, jnp.abs(state.values).max())


def _mixture_weights(
    energies: Float[Array, "t n"], sizes: Float[Array, " t"], values: Float[Array, " t"]
) -> Float[Array, "t n"]:
    return jnp.exp(energies - values[:, None] - _log_denominator(energies, sizes, values)[None, :])


def stepping_stones(ladder: Ladder) -> Float[np.ndarray, " _"]:
    """Return log Z(t_{i+1}) − log Z(t_i) of each step, from the draws of its lower rung alone."""
    scaled = ladder.log_likelihood[:, :, :-1] * np.diff(ladder.temperatures)
    return special.logsumexp(scaled, axis=(0, 1)) - np.log(scaled.shape[0] * scaled.shape[1])


def stepping_stone(ladder: Ladder) -> EvidenceEstimate:
    """Return Σ_i log E_{t_i}[exp((t_{i+1} − t_i)ℓ)] with its error by the delta method, ESS-aware,
    rungs independent.

    Xie, Lewis, Fan, Kuo and Chen (2011, doi:10.1093/sysbio/syq085).
    """
    logs = stepping_stones(ladder)
    ratios = np.exp(ladder.log_likelihood[:, :, :-1] * np.diff(ladder.temperatures) - logs)
    error = float(np.sqrt(np.sum(mcse_mean(ratios) ** 2)))
    value = float(logs.sum())
    known = np.isfinite(value) and np.isfinite(error)
    smallest = (ratios.sum(axis=(0, 1)) ** 2 / (ratios**2).sum(axis=(0, 1))).min()
    status = Status.PLAIN if known else Status.UNDEFINED
    return EvidenceEstimate(
        "stepping stone", value, error, status, {"smallest_weight_ess": float(smallest)}
    )


def mbar_estimate(
    ladder: Ladder,
    values: Float[np.ndarray, " t"],
    deleted: Float[np.ndarray, " b"],
    *,
    converged: bool,
) -> EvidenceEstimate:
    """Return MBAR's log Z(1) − log Z(0), its error the larger of the block jackknife and the
    asymptotic one.

    Parameters
    ----------
    values : (t,) the free energies log Z(t_j). deleted : (b,) log Z(1) without each block of draws.
    """
    c, n, t = ladder.log_likelihood.shape
    flat = jax.device_put(ladder.log_likelihood.reshape(-1))
    sizes = jnp.full(t, float(c * n))
    levels, energies = jax.device_put((ladder.temperatures, values))
    covariance = asymptotic_covariance(levels, flat, sizes, energies)
    # It is for independent draws, and the jackknife sees no correlation longer than its blocks: the
    # larger of the two had mean z² of 2.3 to 5.3 on one short chain a rung (docs/results,
    # van_der_pol_mcmc). MBAR is a cross-check.
    asymptotic = float(jnp.sqrt(jnp.maximum(covariance[-1, -1], 0.0)))
    b = len(deleted)
    jackknife = float(np.sqrt((b - 1) / b * ((deleted - deleted.mean()) ** 2).sum()))
    # Each alone is a standard error: where one is not a number, as where MBAR cannot be solved
    # without some block, the other holds, and `max` would take either by the order of its
    # arguments.
    error = float(np.fmax(asymptotic, jackknife))
    info = {"asymptotic_error": asymptotic, "jackknife_error": jackknife}
    status = Status.PLAIN if converged else Status.NOT_CONVERGED
    return EvidenceEstimate("MBAR", float(values[-1] - values[0]), error, status, info)
