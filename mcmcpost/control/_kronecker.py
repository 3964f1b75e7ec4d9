"""Vector-valued control functionals of integrands that share their draws: one eigendecomposition serves all tasks."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.control._kernel import KernelData, KernelFit, mean_diagonal
from mcmcpost.linops import Tile, tile_gram


@eqx.filter_jit
def crossfit_kronecker(
    tile: Tile, covariance: Float[Array, "t t"], nugget: Float[Array, ""], data: KernelData
) -> KernelFit:
    """Fit A = B̄⊗K₀/mean(diag K₀) + η·I⊗diag(1/n), B̄ = B/mean(diag B), to values (m, t), and leave out each fold.

    With eigendecompositions B̄ = U diag(b) Uᵀ and D^½K₀D^½ = V diag(λ) Vᵀ, D = diag(n), the system falls into t
    diagonal ones: O(t³ + m³ + mt(m + t)), MATH.md section 2 (special case II of Sun, Barp and Briol 2023). With
    P = A⁻¹ − A⁻¹H(HᵀA⁻¹H)⁻¹HᵀA⁻¹ in one eigendirection, the errors at fold F of a fit without it are P_FF⁻¹(Py)_F.

    Where draws are shared and η → 0 the estimates do not depend on B (autokrigeability): it matters with a real ridge.

    Returns
    -------
    KernelFit with p = 1: mean (t, 1), control (k, b, t), fold_means (k, t, 1), model_covariance (1, t, t).
    """
    real = (data.counts > 0).astype(data.values.dtype)
    root = jnp.sqrt(data.counts)
    gram = tile_gram(tile, data.rows) / mean_diagonal(tile, data.rows, data.counts)
    weighted = gram * root[:, None] * root[None, :]
    spectrum, vectors = jnp.linalg.eigh(weighted)
    spectrum = jnp.maximum(spectrum, 0.0)
    between, mixing = jnp.linalg.eigh(covariance / jnp.mean(jnp.diagonal(covariance)))
    rotated = vectors.T @ (root[:, None] * data.values) @ mixing
    basis = vectors.T @ (root[:, None] * data.basis)

    def solve(b: Float[Array, ""], y: Float[Array, " m"]) -> tuple:
        weight = 1.0 / (b * spectrum + nugget)
        half = jnp.sqrt(weight)
        q, r = jnp.linalg.qr(half[:, None] * basis)
        gamma = solve_triangular(r, q.T @ (half * y))
        projected = weight * y - half * (q @ (q.T @ (half * y)))
        inverse = solve_triangular(r, jnp.eye(r.shape[0], dtype=r.dtype))
        energy = y @ projected / (jnp.sum(real) - r.shape[0])

        def leave_out(fold: tuple[Int[Array, " b"], Bool[Array, " b"]]) -> tuple[Array, Array]:
            index, mask = fold
            keep = mask.astype(y.dtype)
            rows = vectors[index] * keep[:, None]
            along = rows @ (half[:, None] * q)
            block = (rows * weight[None, :]) @ rows.T - along @ along.T + jnp.diag(1.0 - keep)
            error = cho_solve(cho_factor(block), rows @ projected)
            rule = inverse @ along.T
            return error * keep, gamma - rule @ error

        errors, gammas = jax.lax.map(leave_out, (data.held_out, data.held_out_mask))
        return gamma, errors, gammas[:, 0], energy, (inverse @ inverse.T)[0, 0]

    gamma, errors, means, energy, factor = jax.lax.map(lambda pair: solve(*pair), (between, rotated.T))
    held = root[data.held_out]
    safe = jnp.where(data.held_out_mask & (held > 0), held, 1.0)
    residual = jnp.einsum("tkb,st->kbs", errors, mixing) / safe[:, :, None]
    fold_means = means.T @ mixing.T
    control = data.values[data.held_out] - residual - fold_means[:, None, :]
    amplitude = jnp.maximum(energy, 0.0) * factor
    return KernelFit(
        mean=(mixing @ gamma[:, 0])[:, None],
        control=jnp.where(data.held_out_mask[:, :, None], control, 0.0),
        fold_means=fold_means[:, :, None],
        model_covariance=((mixing * amplitude[None, :]) @ mixing.T)[None],
        nugget=nugget,
        num_steps=jnp.zeros((), int),
        converged=jnp.all(jnp.isfinite(errors)),
    )


@eqx.filter_jit
def shared_covariance(tile: Tile, nugget: Float[Array, ""], data: KernelData) -> Float[Array, "t t"]:
    """Return the restricted-likelihood covariance of tasks that share their draws, B̂ = YᵀPY/(m − q).

    Exact where the noise is separable too, B⊗(K₀ + ηD⁻¹), or absent. Sun, Barp and Briol (2023), special case II.
    """
    real = data.counts > 0
    gram = tile_gram(tile, data.rows) / mean_diagonal(tile, data.rows, data.counts)
    mask = real.astype(gram.dtype)
    noise = jnp.where(real, nugget / jnp.maximum(data.counts, 1.0), 1.0)
    lower = jnp.linalg.cholesky(gram * mask[:, None] * mask[None, :] + jnp.diag(noise))
    white = solve_triangular(lower, data.values * mask[:, None], lower=True)
    q, _ = jnp.linalg.qr(solve_triangular(lower, data.basis * mask[:, None], lower=True))
    white = white - q @ (q.T @ white)
    return white.T @ white / (jnp.sum(mask) - data.basis.shape[1])
