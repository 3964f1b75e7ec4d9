"""The task covariance B of a separable Stein kernel by alternating minimisation of a convex objective."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mcmcpost._checks import fault
from mcmcpost.control._task_family import task_sizes
from mcmcpost.linsolve import factorise, generalised_least_squares


class TaskCovarianceFit(NamedTuple):
    """B and the control variate that goes with it.

    covariance : (T, T) B. beta : (T,) constants.
    coefficients : (m,) θ of g_t(x) = Σ_j B[t, t_j] k₀(x, x_j) θ_j, the best for `covariance`.
    history : objective after each step, over all δ in turn; it does not increase while δ is the same.
    rungs : the index of δ at each entry of `history`.
    num_steps : steps of all δ together.
    converged : whether B moved by less than the tolerance, relative, in the last step of the last δ.
    nugget_raised : whether a factorisation needed a larger λ than the one asked for.
    """

    covariance: Float[np.ndarray, "t t"]
    coefficients: Float[np.ndarray, " m"]
    beta: Float[np.ndarray, " t"]
    history: Float[np.ndarray, " s"]
    rungs: Int[np.ndarray, " s"]
    num_steps: int
    converged: bool
    nugget_raised: bool


class AlternatingState(NamedTuple):
    """B, and for it the minimisers θ and β, the objective, and whether λ had to be raised."""

    covariance: Float[Array, "t t"]
    coefficients: Float[Array, " m"]
    beta: Float[Array, " t"]
    objective: Float[Array, ""]
    raised: Bool[Array, ""]


def alternating_task_covariance(
    gram: Float[Array | np.ndarray, "m m"],
    tasks: Int[Array | np.ndarray, " m"],
    values: Float[Array | np.ndarray, " m"],
    *,
    penalty: float,
    deltas: Sequence[float] = (1e-1, 1e-2, 1e-3),
    max_steps: int = 200,
    rtol: float = 1e-6,
    start: Float[Array | np.ndarray, "t t"] | None = None,
) -> TaskCovarianceFit:
    """Minimise Σ_t mean_j (f_tj − g_t − β_t)² + λ tr(B⁻¹(C + δ²I)) + ‖B‖²_F jointly for a decreasing sequence of δ.

    All tasks share one target. g(x) = Σ_j k₀(x, x_j) θ̃_j with θ̃_j ∈ ℝ^T, and C = Θ̃ᵀK₀Θ̃: the objective is convex in
    (Θ̃, β, B) for every δ > 0 (Theorem D.1), and each half of a step is its exact minimiser, so the objective falls to
    the global minimum from any start.

    - For fixed B: (B∘K₀ + λ diag(m_t)) θ = f − Zβ, β by generalised least squares, θ̃_j = θ_j B[:, t_j].
    - For fixed Θ̃: 2B = λ B⁻¹(C + δ²I)B⁻¹, so B has the eigenvectors of C and the eigenvalues
      b_i = (λ(c_i + δ²)/2)^{1/3}.

    As printed, δ²I stands inside the double sum over all pairs of draws, so that it is multiplied by λ(Σm_t)²; here
    it is multiplied by λ: a printed δ is ours divided by Σm_t. The weight of ‖B‖² is one, as printed; with values and
    K₀ of unit scale, λ sets the size of B, its eigenvalues being (λc_i/2)^{1/3} in the limit. The cube root compresses:
    tasks that are one function at different draws come out correlated .7–.98, and one only where C is of rank one, as
    with shared draws; read the correlations as a ranking, not as estimates.

    Parameters
    ----------
    gram : (m, m) K₀ between all rows, of mean diagonal one. tasks : (m,) labels 0, …, T − 1. values : (m,).
    penalty : λ > 0.
    deltas : δ, decreasing, each started at the last one's B; the smallest keeps B positive definite.
    max_steps : steps for each δ. rtol : change of B, relative in Frobenius norm, at which one δ is done.
    start : the first B, positive definite; the identity when None.

    Raises
    ------
    ValueError
        if the penalty or a δ is not positive, the δ do not decrease, a task has no rows, or `start` is singular.

    Source: Sun, Barp and Briol (ICML 2023), Appendix D.3, Theorem D.1; Dinuzzo et al. (2011); Ciliberto et al. (2015).
    """
    where = "alternating_task_covariance"
    if not penalty > 0:
        raise ValueError(fault(where, "`penalty` above 0", penalty, "B is undefined without one."))
    if len(deltas) == 0 or min(deltas) <= 0 or any(b >= a for a, b in itertools.pairwise(deltas)):
        raise ValueError(fault(where, "`deltas` positive and decreasing", deltas, "Such as (1e-1, 1e-2, 1e-3)."))
    labels = np.asarray(tasks)
    sizes = task_sizes(where, labels, int(labels.max(initial=0)) + 1)
    kernel, f = jnp.asarray(gram), jnp.asarray(values)
    lam, counts = jnp.asarray(penalty, f.dtype), jnp.asarray(sizes, f.dtype)
    covariance = jnp.eye(len(sizes), dtype=f.dtype) if start is None else jnp.asarray(start, f.dtype)
    if not bool(jnp.isfinite(jnp.linalg.cholesky(covariance)).all()):
        raise ValueError(fault(where, "`start` positive definite", np.asarray(start), "Blend it with the identity."))
    history, rungs, raised, converged = [], [], False, False
    for rung, delta in enumerate(deltas):
        jitter = jnp.asarray(delta**2, f.dtype)
        state = _init(kernel, jnp.asarray(labels), f, counts, lam, jitter, covariance)
        for _ in range(max_steps):
            new = _step(kernel, jnp.asarray(labels), f, counts, lam, jitter, state)
            converged = bool(_close(state.covariance, new.covariance, rtol))
            state, raised = new, raised or bool(new.raised)
            history.append(float(new.objective))
            rungs.append(rung)
            if converged or not np.isfinite(history[-1]):
                break
        covariance = state.covariance
    return TaskCovarianceFit(
        covariance=np.asarray(state.covariance),
        coefficients=np.asarray(state.coefficients),
        beta=np.asarray(state.beta),
        history=np.array(history),
        rungs=np.array(rungs),
        num_steps=len(history),
        converged=converged,
        nugget_raised=raised,
    )


@eqx.filter_jit
def _init(
    gram: Float[Array, "m m"],
    tasks: Int[Array, " m"],
    values: Float[Array, " m"],
    counts: Float[Array, " t"],
    penalty: Float[Array, ""],
    jitter: Float[Array, ""],
    covariance: Float[Array, "t t"],
) -> AlternatingState:
    """Return the minimiser over θ and β for this B, and the objective there: Σ(λ m_t θ)²/m_t + λθᵀGθ + …"""
    noise = counts[tasks]
    across = covariance[tasks][:, tasks] * gram
    factor = factorise(across, noise, penalty)
    indicators = (tasks[:, None] == jnp.arange(counts.shape[0])[None]).astype(gram.dtype)
    solution = generalised_least_squares(factor.lower, indicators, values[:, None])
    theta = solution.dual[:, 0]
    fit = jnp.sum((factor.nugget * theta) ** 2 * noise) + penalty * theta @ across @ theta
    size = penalty * jitter * jnp.trace(jnp.linalg.inv(covariance)) + jnp.sum(covariance**2)
    return AlternatingState(covariance, theta, solution.coefficients[:, 0], fit + size, factor.raised)


@eqx.filter_jit
def _step(
    gram: Float[Array, "m m"],
    tasks: Int[Array, " m"],
    values: Float[Array, " m"],
    counts: Float[Array, " t"],
    penalty: Float[Array, ""],
    jitter: Float[Array, ""],
    state: AlternatingState,
) -> AlternatingState:
    """Minimise over B for the Θ̃ of `state`, then over Θ̃ and β for the new B."""
    covariance = best_covariance(roughness(gram, tasks, state), penalty, jitter)
    return _init(gram, tasks, values, counts, penalty, jitter, covariance)


def roughness(gram: Float[Array, "m m"], tasks: Int[Array, " m"], state: AlternatingState) -> Float[Array, "t t"]:
    """Return C = Θ̃ᵀK₀Θ̃ = B (DᵀK₀D) B, D the coefficients θ_j spread over the columns t_j."""
    columns = jnp.arange(state.covariance.shape[0])[None]
    spread = jnp.where(tasks[:, None] == columns, state.coefficients[:, None], 0)
    return state.covariance @ (spread.T @ gram @ spread) @ state.covariance


def best_covariance(
    roughness: Float[Array, "t t"], penalty: Float[Array, ""], jitter: Float[Array, ""]
) -> Float[Array, "t t"]:
    """Return the minimiser of λ tr(B⁻¹(C + δ²I)) + ‖B‖²_F over B ≻ 0; `jitter` is δ²."""
    size, vectors = jnp.linalg.eigh((roughness + roughness.T) / 2)
    size = jnp.cbrt(penalty * (jnp.maximum(size, 0) + jitter) / 2)
    return (vectors * size[None]) @ vectors.T


def _close(old: Float[Array, "t t"], new: Float[Array, "t t"], rtol: float) -> Bool[Array, ""]:
    return jnp.linalg.norm(new - old) <= rtol * jnp.linalg.norm(new)
