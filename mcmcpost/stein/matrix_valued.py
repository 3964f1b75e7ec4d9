"""Matrix-valued Stein kernels: one entry for every pair of tasks, each task with its own target."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mcmcpost._core.arguments import as_float64, as_real, check_count, check_kind
from mcmcpost._core.errors import InputError
from mcmcpost.kernels import AbstractKernel
from mcmcpost.stein.first_order import SteinTile
from mcmcpost.stein.second_order import SecondOrderSteinTile

SYMMETRY = 1e-10

type TaskRows = tuple[Float[Array, "n d"], Float[Array, "n d"], Float[Array, "n t"]]

type OtherTaskRows = tuple[Float[Array, "m d"], Float[Array, "m d"], Float[Array, "m t"]]


class Coregionalisation(eqx.Module):
    """The matrix-valued kernel K(x, y) = Σ_q B_q k_q(x, y), the linear model of coregionalisation.

    One term is the separable kernel B⊗k of Sun, Barp and Briol (2023), special cases I (several targets) and II (one);
    several terms are not separable. Its Stein kernel is (K₀(x, y))_{tt'} = Σ_q (B_q)_{tt'} k₀,q(x, y), with the score
    of Π_t at x and of Π_t' at y (Theorem 3.1; Theorem C.1 for the second-order operator).

    Parameters
    ----------
    kernels : the k_q, on standardised coordinates.
    covariances : (q, t, t), the B_q; each symmetric and positive definite. Only their size relative to each other and
        to the nugget's unit, the mean of diag K₀, matters.
    order : of the Langevin operator, 1 or 2.

    Raises
    ------
    ValueError : a B_q that is not symmetric positive definite, or not one for each kernel; another order.
    """

    kernels: tuple[AbstractKernel, ...]
    covariances: Float[Array | np.ndarray, "q t t"] = eqx.field(
        converter=lambda b: as_real("Coregionalisation", "covariances", b).astype(float)
    )
    order: int = eqx.field(static=True, default=1)

    def __check_init__(self) -> None:
        where, b = "Coregionalisation", np.asarray(self.covariances)
        check_kind(where, "kernels", self.kernels, tuple, "Such as (SquaredExponential(2.0),).")
        for kernel in self.kernels:
            check_kind(where, "kernels", kernel, AbstractKernel, "Such as (SquaredExponential(2.0),).")
        check_count(where, "order", self.order, "It is that of the Langevin operator.", most=2)
        if b.ndim != 3 or b.shape[0] != len(self.kernels) or b.shape[1] != b.shape[2] or not b.size:
            expected = f"`covariances` of shape ({len(self.kernels)}, tasks, tasks), as many as `kernels`"
            raise InputError(where, expected, b.shape, "Give one covariance of the tasks for each kernel.")
        for matrix in b:
            check_covariance(where, matrix)

    @property
    def num_tasks(self) -> int:
        """The number of tasks t."""
        return int(np.shape(self.covariances)[-1])


class MatrixSteinTile(eqx.Module):
    """Σ_q (B_q)_{tt'} k₀,q(x, y) as a tile function of rows (points, scores, tasks one-hot)."""

    kernels: tuple[AbstractKernel, ...]
    covariances: Float[Array, "q t t"]
    order: int = eqx.field(static=True)

    def __call__(self, rows: TaskRows, columns: OtherTaskRows) -> Float[Array, "n m"]:
        (*left, task_left), (*right, task_right) = rows, columns
        total = jnp.zeros((left[0].shape[0], right[0].shape[0]), left[0].dtype)
        for kernel, covariance in zip(self.kernels, self.covariances, strict=True):
            tile = SteinTile(kernel) if self.order == 1 else SecondOrderSteinTile(kernel)
            between = jnp.matmul(task_left @ covariance, task_right.T, precision="highest")
            total = total + between * tile((left[0], left[1]), (right[0], right[1]))
        return total


def matrix_stein_tile(kernel: Coregionalisation) -> MatrixSteinTile:
    """Return the Stein kernel of `kernel` as a tile function."""
    return MatrixSteinTile(kernel.kernels, jnp.asarray(kernel.covariances), kernel.order)


def check_covariance(where: str, covariance: object) -> None:
    """Raise an error unless `covariance` is a finite symmetric positive definite covariance (t, t) of tasks."""
    matrix = as_float64(where, "covariance", covariance, "task, task")
    cure = "A covariance of tasks is B = LLᵀ with a positive diagonal of L; add a little to its diagonal."
    expected = "`covariance`, a symmetric positive definite matrix of the tasks"
    if matrix.shape[0] != matrix.shape[1] or not matrix.size or not np.isfinite(matrix).all():
        raise InputError(where, expected, f"shape {matrix.shape}, finite {np.isfinite(matrix).all()}", cure)
    size = np.abs(matrix).max()
    if np.abs(matrix - matrix.T).max() > SYMMETRY * size:
        raise InputError(where, expected, "a matrix that is not symmetric", cure)
    lowest = float(np.linalg.eigvalsh(matrix)[0])
    if not lowest > 0:
        raise InputError(where, expected, f"smallest eigenvalue {lowest:.3g}", cure)
