"""Least squares with an unpenalised constant: the rule, and its residuals with whole folds left out."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.scipy.linalg import cho_factor, cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float, Int

RANK_TOLERANCE = 1e-10
"""Relative to columns of unit norm."""


class LinearFit(NamedTuple):
    """A penalised least-squares fit, constant first.

    mean : (p,) its intercept.
    control : (k, b, p) the fitted part without the constant at held-out rows, fitted without their fold.
    fold_means : (k, p) the intercept fitted without each fold.
    """

    mean: Float[Array, " p"]
    control: Float[Array, "k b p"]
    fold_means: Float[Array, "k p"]


def independent_columns(design: Float[np.ndarray, "m q"]) -> Bool[np.ndarray, " q"]:
    """Return which columns to keep so that none is, to rounding, a combination of the others.

    Columns are of unit norm; the first, the constant, always stays. A pivoted QR is paid for only where a plain one
    shows that something is dependent.
    """
    size = design.shape[1]
    if design.shape[0] >= size and (np.abs(np.diagonal(np.linalg.qr(design, mode="r"))) > RANK_TOLERANCE).all():
        return np.ones(size, bool)
    rest = design[:, 1:] - design[:, :1] * (design[:, 0] @ design[:, 1:] / (design[:, 0] @ design[:, 0]))
    r, order = scipy.linalg.qr(rest, mode="r", pivoting=True)
    rank = int((np.abs(np.diagonal(r)) > RANK_TOLERANCE).sum())
    keep = np.zeros(size, bool)
    keep[0] = True
    keep[1 + order[:rank]] = True
    return keep


@jax.jit
def fit_linear(
    design: Float[Array, "m q"],
    penalty: Float[Array, " q"],
    values: Float[Array, "m p"],
    counts: Float[Array, " m"],
    held_out: Int[Array, "k b"],
    mask: Bool[Array, "k b"],
) -> LinearFit:
    """Minimise Σ nᵢ(fᵢ − xᵢᵀθ)² + Σ penaltyⱼθⱼ² and leave out each fold exactly.

    With QR = [N^½X; Λ^½] the hat matrix is QQᵀ (its upper rows), the residuals of a fit without fold F are
    δ = e_F + Q_F(I − Q_FᵀQ_F)⁻¹Q_Fᵀe_F, and the intercept w'f moves by −w_Fᵀδ: no fit is repeated.

    Parameters
    ----------
    design : (m, q), first column the constant.
    penalty : (q,), zero for the constant.
    counts : (m,) weights nᵢ; zero for padding.
    held_out, mask : (k, b) rows of each fold.
    """
    root = jnp.sqrt(counts)[:, None]
    rows = design.shape[0]
    q_all, r = jnp.linalg.qr(jnp.concatenate([design * root, jnp.diag(jnp.sqrt(penalty))]))
    q = q_all[:rows]
    target = values * root
    coefficients = q.T @ target
    error = target - q @ coefficients
    first = jnp.zeros(r.shape[0], r.dtype).at[0].set(1.0)
    rule = solve_triangular(r, first, lower=False, trans=1)
    mean = rule @ coefficients
    weight = q @ rule

    def leave_out(fold: tuple) -> tuple[Float[Array, "b p"], Float[Array, " p"]]:
        index, real = fold
        keep = real[:, None].astype(design.dtype)
        q_f, e_f, w_f = q[index] * keep, error[index] * keep, weight[index] * keep[:, 0]
        if q_f.shape[1] <= q_f.shape[0]:
            inner = jnp.eye(q_f.shape[1], dtype=q.dtype) - q_f.T @ q_f
            delta = e_f + q_f @ cho_solve(cho_factor(inner), q_f.T @ e_f)
        else:
            delta = cho_solve(cho_factor(jnp.eye(q_f.shape[0], dtype=q.dtype) - q_f @ q_f.T), e_f)
        intercept = mean - w_f @ delta
        root_f = jnp.where(real, root[index, 0], 1.0)[:, None]
        return values[index] - delta / root_f - intercept[None, :], intercept

    control, fold_means = jax.lax.map(leave_out, (held_out, mask))
    return LinearFit(mean, control, fold_means)
