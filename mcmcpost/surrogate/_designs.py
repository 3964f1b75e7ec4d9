"""Surrogates to choose from: how training points, prior mean, kernel and lengthscales follow from what warm-up saw."""

import abc
import math

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mcmcpost._checks import fault
from mcmcpost.kernels import AbstractKernel, Scaled, SquaredExponential
from mcmcpost.surrogate._fitted import FittedSurrogate
from mcmcpost.surrogate._history import HELD_OUT
from mcmcpost.surrogate._process import Tuned, condition, farthest_points, fit_quadratic, tune


class AbstractSurrogate(eqx.Module):
    """Turns gradients into a frozen energy, within JAX and in fixed shapes."""

    @abc.abstractmethod
    def min_gradients(self, d: int) -> int:
        """Return how many gradients in d dimensions a fit needs at least."""

    @abc.abstractmethod
    def fit(
        self, points: Float[Array, "n d"], gradients: Float[Array, "n d"], kept: Float[Array, " n"]
    ) -> FittedSurrogate:
        """Fit to the gradients of the potential at the points whose `kept` is one; where it is zero, both are zero."""


class SubspaceSurrogate(AbstractSurrogate):
    """A quadratic fitted to all gradients, and a Gaussian process on what it leaves, in the directions where it is.

    Coordinates are standardised. The quadratic is least squares on the gradients, its eigenvalues at least 1/(2d),
    half of what a Gaussian of standardised coordinates can have. The active subspace is spanned by the leading
    eigenvectors of the second moments of the residual gradients; training points are farthest-point in it; one
    lengthscale per direction, amplitude and noise maximise the marginal likelihood of the first of them within bounds.

    num_training, num_tuning : points conditioned on at most, and how many of them the kernel is tuned on: tuning
    factorises a matrix of order q·num_tuning at every step.
    dimension : q, of the active subspace. The eight-dimensional hare–lynx posterior needs all eight: its gradient error
    is .21 with four and 50 points, .080 with eight and 100, .041 with eight and 200.
    kernel : the start of tuning, on active coordinates of unit variance and gradients of unit mean square. None is the
    squared exponential.
    tuning_steps : of Adam.

    Source: MATH.md section 4.
    """

    num_training: int = eqx.field(static=True, default=200)
    dimension: int = eqx.field(static=True, default=8)
    kernel: AbstractKernel | None = None
    num_tuning: int = eqx.field(static=True, default=50)
    tuning_steps: int = eqx.field(static=True, default=100)

    def __check_init__(self) -> None:
        for name in ("num_training", "dimension", "num_tuning", "tuning_steps"):
            if getattr(self, name) < 1:
                raise ValueError(
                    fault("SubspaceSurrogate", f"`{name}` of at least 1", getattr(self, name), "Ask for more.")
                )

    def min_gradients(self, d: int) -> int:
        del d
        return min(self.num_training, self.num_tuning)

    def fit(
        self, points: Float[Array, "n d"], gradients: Float[Array, "n d"], kept: Float[Array, " n"]
    ) -> FittedSurrogate:
        q = min(self.dimension, points.shape[1])
        number = jnp.maximum(jnp.sum(kept), 1)
        centre = kept @ points / number
        spread = jnp.sqrt(kept @ (points - centre[None]) ** 2 / number)
        scale = jnp.where(spread > 0, spread, 1)
        w = (points - centre[None]) / scale[None] * kept[:, None]
        slopes = gradients * scale[None]
        bowl = fit_quadratic(w, slopes, kept)
        residual = (slopes - w @ bowl.precision - bowl.slope[None]) * kept[:, None]
        directions = jnp.linalg.eigh(residual.T @ residual)[1][:, ::-1][:, :q].T
        directions = directions / jnp.sqrt(jnp.sum((w @ directions.T) ** 2, 0) / number)[:, None]
        active = w @ directions.T
        most = len(points) - len(points) // HELD_OUT  # the rest is held out: it must not be chosen, nor a point twice
        chosen = farthest_points(active, kept, min(self.num_training, most))
        # Gradients in active coordinates: those of h, E(x) = h(Dw), are D⁺ᵀ∇_w E, and rows of D are orthogonal.
        lengths = jnp.sum(directions**2, 1)
        wanted = residual[chosen] @ directions.T / lengths[None]
        size = jnp.mean(jnp.sum(slopes**2, 1)) * jnp.finfo(points.dtype).eps
        height = jnp.sqrt(jnp.mean(wanted**2) + size)
        start = _default_kernel(q) if self.kernel is None else self.kernel
        few = chosen[: self.num_tuning]
        tuned = tune(start, active[few], wanted[: self.num_tuning] / height, self.tuning_steps)
        process = condition(tuned, active[chosen], wanted / height)
        return FittedSurrogate(
            centre,
            scale,
            bowl.precision,
            bowl.slope,
            process.root[:, None] * directions,
            process.root * process.origin,
            process.points,
            process.weights,
            height,
            process.profile,
        )


class PublishedSurrogate(AbstractSurrogate):
    """The surrogate of the paper, to compare with: zero mean, isotropic squared exponential in all d dimensions.

    ⌊√d⌋ points and ℓ² = 0.4 d unless given. The paper trains on the first points a lengthscale apart; these are
    farthest-point.

    Source: de Roos, Gessner and Hennig (ICML 2021), section 5.3 and appendix F.3.
    """

    num_training: int | None = eqx.field(static=True, default=None)
    lengthscale: float | None = eqx.field(static=True, default=None)

    def min_gradients(self, d: int) -> int:
        return max(2, math.isqrt(d)) if self.num_training is None else self.num_training

    def fit(
        self, points: Float[Array, "n d"], gradients: Float[Array, "n d"], kept: Float[Array, " n"]
    ) -> FittedSurrogate:
        d = points.shape[1]
        lengthscale = math.sqrt(0.4 * d) if self.lengthscale is None else self.lengthscale
        chosen = farthest_points(points, kept, self.min_gradients(d))
        tuned = Tuned(SquaredExponential(lengthscale), jnp.zeros((), points.dtype))
        process = condition(tuned, points[chosen], gradients[chosen])
        one, zero = jnp.ones(d, points.dtype), jnp.zeros(d, points.dtype)
        return FittedSurrogate(
            zero,
            one,
            jnp.zeros((d, d), points.dtype),
            zero,
            jnp.diag(process.root),
            process.root * process.origin,
            process.points,
            process.weights,
            jnp.ones((), points.dtype),
            process.profile,
        )


def _default_kernel(q: int) -> AbstractKernel:
    """Return a squared exponential of lengthscale √(2q), the distance of two points, and gradients of unit variance."""
    with jax.ensure_compile_time_eval():
        return Scaled(2.0 * q, SquaredExponential(jnp.full(q, math.sqrt(2 * q))))
