"""Surrogates of a potential energy, fitted to the trajectories of warm-up."""

import abc
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.core.arguments import check_count, check_kind
from mcmcpost.gp.gradient_operator import ScalarProfile, gradient_gram, scalar_profile
from mcmcpost.gp.gradient_posterior import gradient_log_likelihood, posterior_mean
from mcmcpost.gp.gradient_solvers import ProjectedCholesky
from mcmcpost.solve.search import Packing
from mcmcpost.stein import AbstractKernel, Scaled, SquaredExponential

HELD_OUT = 5
"""One trajectory in this many is held out, for the test of the surrogate."""

ENERGY_RANGE = 6.0
"""Points whose energy exceeds the upper quartile by more interquartile ranges than this are not
trained on."""


class Trajectory(NamedTuple):
    """The points of one trajectory per chain. points, gradients : (c, l, d). energies : (c, l)."""

    points: Float[Array, "c l d"]
    gradients: Float[Array, "c l d"]
    energies: Float[Array, "c l"]


class History(NamedTuple):
    """The latest s trajectories of every chain; energies are infinite in slots not yet used."""

    points: Float[Array, "c s l d"]
    gradients: Float[Array, "c s l d"]
    energies: Float[Array, "c s l"]


class Rows(NamedTuple):
    """All points of all chains. points, gradients : (n, d). training, held_out : (n,) one where
    used, else zero."""

    points: Float[Array, "n d"]
    gradients: Float[Array, "n d"]
    training: Float[Array, " n"]
    held_out: Float[Array, " n"]


def empty_history(c: int, s: int, l: int, d: int) -> History:
    """Return room for s trajectories of l points in d dimensions for c chains."""
    return History(jnp.zeros((c, s, l, d)), jnp.zeros((c, s, l, d)), jnp.full((c, s, l), jnp.inf))


def record(
    history: History, new: Trajectory, iteration: Int[Array, ""], write: Bool[Array, ""]
) -> History:
    """Overwrite the oldest trajectory where `write`."""
    slot = iteration % history.points.shape[1]
    return History(
        *(
            old.at[:, slot].set(jnp.where(write, n, old[:, slot]))
            for old, n in zip(history, new, strict=True)
        )
    )


def pooled(history: History) -> Rows:
    """Return the points of all chains, without those where something is not finite or the energy
    far above the rest.

    Trajectories are held out whole: their points are neighbours.
    """
    c, s, l, d = history.points.shape
    points, gradients = history.points.reshape(-1, d), history.gradients.reshape(-1, d)
    energies = history.energies.reshape(-1)
    sound = jnp.isfinite(energies) & jnp.isfinite(points).all(1) & jnp.isfinite(gradients).all(1)
    # Far from the rest, as in the first transient of warm-up, energies would bend the quadratic.
    lower, upper = jnp.nanquantile(jnp.where(sound, energies, jnp.nan), jnp.array([0.25, 0.75]))
    sound = sound & (energies <= upper + ENERGY_RANGE * (upper - lower))
    held = jnp.broadcast_to(
        (jnp.arange(s) % HELD_OUT == HELD_OUT - 1)[None, :, None], (c, s, l)
    ).reshape(-1)
    return Rows(
        jnp.where(sound[:, None], points, 0),
        jnp.where(sound[:, None], gradients, 0),
        (sound & ~held).astype(points.dtype),
        (sound & held).astype(points.dtype),
    )


class EnergyAndGradient(NamedTuple):
    """A potential energy and its gradient at one point (d,)."""

    energy: Float[Array, ""]
    gradient: Float[Array, " d"]


class FittedSurrogate(NamedTuple):
    """Ê(x) = ½wᵀSw + bᵀw + γ m(Pw − o), w = (x − centre)/scale, m the posterior mean of a process,
    up to a constant.

    centre, scale : (d,). precision, slope : S (d, d) and b (d,) of the quadratic. projection,
    offset : P (q, d) and o (q,), into the white coordinates of the process. points, weights : (m,
    q), its training points and solution.
    height : γ. profile : of its kernel.
    """

    centre: Float[Array, " d"]
    scale: Float[Array, " d"]
    precision: Float[Array, "d d"]
    slope: Float[Array, " d"]
    projection: Float[Array, "q d"]
    offset: Float[Array, " q"]
    points: Float[Array, "m q"]
    weights: Float[Array, "m q"]
    height: Float[Array, ""]
    profile: ScalarProfile

    def evaluate(self, x: Float[Array, " d"]) -> EnergyAndGradient:
        """Return Ê and ∇Ê: the gradient field is that of an energy, so its leapfrog keeps volume
        and is reversible."""
        w = (x - self.centre) / self.scale
        # S w serves the energy and the gradient.
        pull = self.precision @ w
        mean = posterior_mean(
            self.profile, self.points, self.weights, (self.projection @ w - self.offset)[None]
        )[0]
        energy = 0.5 * (w @ pull) + self.slope @ w + self.height * mean[0]
        return EnergyAndGradient(
            energy, (pull + self.slope + self.height * (self.projection.T @ mean[1:])) / self.scale
        )


def relative_error(
    surrogate: FittedSurrogate,
    points: Float[Array, "n d"],
    gradients: Float[Array, "n d"],
    kept: Float[Array, " n"],
) -> Float[Array, ""]:
    """Return the root mean square error of ∇Ê over that of the gradient, both times `scale`;
    infinite without points.

    kept : (n,) one for the points to use, zero for the others.
    """
    predicted = jax.lax.map(lambda x: surrogate.evaluate(x).gradient, points, batch_size=256)
    square = jnp.sum(((predicted - gradients) * surrogate.scale[None]) ** 2, axis=1) @ kept
    size = jnp.sum((gradients * surrogate.scale[None]) ** 2, axis=1) @ kept
    # 0/0 without held-out points is NaN, and as infinity declines the surrogate.
    error = jnp.sqrt(square / size)
    return jnp.where(jnp.isfinite(error), error, jnp.inf)


TUNING_RANGE = math.log(30.0)
"""Largest distance of log lengthscales and log amplitude from their start in tuning."""

NOISE = 1e-4
"""Noise that tuning starts from, relative to the mean square of the white gradients."""

LEARNING_RATE = 0.1


class Quadratic(NamedTuple):
    """½wᵀSw + bᵀw. precision : S (d, d), positive definite. slope : b (d,)."""

    precision: Float[Array, "d d"]
    slope: Float[Array, " d"]


class TunedKernel(NamedTuple):
    """A kernel and the noise of its white gradients."""

    kernel: AbstractKernel
    noise: Float[Array, ""]


class Process(NamedTuple):
    """A conditioned process: profile, origin and root of its white coordinates (q,), points and
    weights (m, q)."""

    profile: ScalarProfile
    origin: Float[Array, " q"]
    root: Float[Array, " q"]
    points: Float[Array, "m q"]
    weights: Float[Array, "m q"]


def fit_quadratic(
    w: Float[Array, "n d"], gradients: Float[Array, "n d"], kept: Float[Array, " n"]
) -> Quadratic:
    """Return the least-squares quadratic of gradients at standardised points, its eigenvalues at
    least 1/(2d).

    A Gaussian in d standardised coordinates has no eigenvalue below 1/d.
    """
    d = w.shape[1]
    design = jnp.concatenate([w, jnp.ones_like(w[:, :1])], axis=1) * kept[:, None]
    # Relative to the number of points: it decides only where these do not span the coordinates.
    ridge = jnp.sqrt(jnp.finfo(w.dtype).eps) * jnp.sum(kept) * jnp.eye(d + 1, dtype=w.dtype)
    solved = jnp.linalg.solve(design.T @ design + ridge, design.T @ gradients)
    # A least-squares slope is not symmetric; the symmetric part is the one that an energy has.
    values, vectors = jnp.linalg.eigh((solved[:d] + solved[:d].T) / 2)
    return Quadratic((vectors * jnp.maximum(values, 0.5 / d)[None]) @ vectors.T, solved[d])


def farthest_points(
    points: Float[Array, "n q"], kept: Float[Array, " n"], number: int
) -> Int[Array, " m"]:
    """Return rows chosen one by one, each the farthest from those before, from the one nearest to
    the middle on."""

    def distance(row: Int[Array, ""]) -> Float[Array, " n"]:
        return jnp.sum((points - points[row][None]) ** 2, 1)

    middle = kept @ points / jnp.maximum(jnp.sum(kept), 1)
    first = jnp.argmin(jnp.where(kept > 0, jnp.sum((points - middle[None]) ** 2, 1), jnp.inf))

    def choose(nearest: Float[Array, " n"], _: None) -> tuple[Float[Array, " n"], Int[Array, ""]]:
        row = jnp.argmax(nearest)
        return jnp.minimum(nearest, distance(row)), row

    # Points that are not kept are at −∞, and `minimum` leaves them there: they are never chosen.
    start = jnp.where(kept > 0, distance(first), -jnp.inf)
    others = jax.lax.scan(choose, start, None, length=number - 1)[1]
    return jnp.concatenate([first[None], others])


def tune_surrogate(
    start: AbstractKernel, points: Float[Array, "m q"], gradients: Float[Array, "m q"], steps: int
) -> TunedKernel:
    """Return the best kernel and noise of `steps` of Adam on the marginal likelihood, in
    logarithms, within bounds."""
    packing = Packing(start)
    white = jnp.mean((gradients / scalar_profile("SurrogateHMC", start).root(points)[None]) ** 2)
    initial = jnp.append(jnp.asarray(packing.pack(start), points.dtype), jnp.log(NOISE * white))
    # The noise may fall to √eps of its start, and rise to the mean square of the gradients.
    below = jnp.append(
        jnp.full(len(initial) - 1, TUNING_RANGE),
        0.5 * math.log(1 / float(jnp.finfo(points.dtype).eps)),
    )
    above = jnp.append(jnp.full(len(initial) - 1, TUNING_RANGE), -math.log(NOISE))

    def loss(x: Float[Array, " h"]) -> Float[Array, ""]:
        kernel = packing.unpack(x[:-1])
        return -gradient_log_likelihood(kernel, jnp.exp(x[-1]), points, gradients) / points.size

    optimiser = optax.adam(LEARNING_RATE)

    def step(carry: tuple[Any, ...], _: None) -> tuple[tuple[Any, ...], None]:
        x, state, best, least = carry
        value, slope = jax.value_and_grad(loss)(x)
        better = value < least
        best, least = jnp.where(better, x, best), jnp.where(better, value, least)
        # A slope that is not finite counts as zero: NaN would stay in Adam's moments for good.
        update, state = optimiser.update(jnp.where(jnp.isfinite(slope), slope, 0), state)
        return (jnp.clip(x + update, initial - below, initial + above), state, best, least), None

    carry = (initial, optimiser.init(initial), initial, jnp.asarray(jnp.inf, points.dtype))
    best = jax.lax.scan(step, carry, None, length=steps)[0][2]
    return TunedKernel(packing.unpack(best[:-1]), jnp.exp(best[-1]))


def condition_on_gradients(
    tuned: TunedKernel, points: Float[Array, "m q"], gradients: Float[Array, "m q"]
) -> Process:
    """Return the process given its gradients."""
    profile = scalar_profile("SurrogateHMC", tuned.kernel)
    origin, root = profile.origin(points), profile.root(points)
    white = (points - origin[None]) * root[None]
    solution = ProjectedCholesky().solve(
        gradient_gram(profile, white, tuned.noise), gradients / root[None]
    )
    return Process(profile, origin, root, white, solution.value)


class AbstractSurrogate(eqx.Module):
    """A way to fit an energy to gradients, within JAX and in fixed shapes."""

    @abc.abstractmethod
    def min_gradients(self, d: int) -> int:
        """Return how many gradients in d dimensions a fit needs at least."""

    @abc.abstractmethod
    def fit(
        self, points: Float[Array, "n d"], gradients: Float[Array, "n d"], kept: Float[Array, " n"]
    ) -> FittedSurrogate:
        """Fit to the gradients at the points whose `kept` is one; the other points and gradients
        are zero."""


class SubspaceSurrogate(AbstractSurrogate):
    """A quadratic fitted to all gradients, and a Gaussian process on the residual in its active
    subspace.

    Coordinates are standardised. The quadratic is least squares on the gradients, its eigenvalues
    at least 1/(2d), half of what a Gaussian of standardised coordinates can have. The active
    subspace is spanned by the leading eigenvectors of the second moments of the residual gradients;
    training points are farthest-point in it; one lengthscale per direction, amplitude and noise
    maximise the marginal likelihood of the first of them within bounds.

    Parameters
    ----------
    num_training : largest number of points that the process is conditioned on.
    dimension : dimension q of the active subspace. The eight-dimensional hare–lynx posterior needs
        all eight: its gradient error is 0.21 with four and 50 points, 0.080 with eight and 100,
        0.041 with eight and 200.
    kernel : start of tuning, on active coordinates of unit variance and gradients of unit mean
        square. None is the squared exponential.
    num_tuning : number of training points that the kernel is tuned on: each step factorises a
        matrix of order q·num_tuning.
    tuning_steps : number of steps of Adam.

    Source: docs/mathematics.md section 4.
    """

    num_training: int = eqx.field(static=True, default=200)
    dimension: int = eqx.field(static=True, default=8)
    kernel: AbstractKernel | None = None
    num_tuning: int = eqx.field(static=True, default=50)
    tuning_steps: int = eqx.field(static=True, default=100)

    def __check_init__(self) -> None:
        for name in ("num_training", "dimension", "num_tuning", "tuning_steps"):
            check_count("SubspaceSurrogate", name, getattr(self, name), "Use a positive integer.")
        check_kind(
            "SubspaceSurrogate",
            "kernel",
            self.kernel,
            (AbstractKernel, None),
            "Such as Matern52().",
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
        # Ascending eigenvalues: the last q, of the second moments of the residual gradients.
        directions = jnp.linalg.eigh(residual.T @ residual)[1][:, ::-1][:, :q].T
        # Active coordinates of unit variance: the kernel's start and its bounds are in these units.
        directions = directions / jnp.sqrt(jnp.sum((w @ directions.T) ** 2, 0) / number)[:, None]
        active = w @ directions.T
        # the rest is held out: it must not be chosen, nor a point twice
        most = len(points) - len(points) // HELD_OUT
        chosen = farthest_points(active, kept, min(self.num_training, most))
        # Gradients in active coordinates: those of h, E(x) = h(Dw), are D⁺ᵀ∇_w E, and rows of D are
        # orthogonal.
        lengths = jnp.sum(directions**2, 1)
        wanted = residual[chosen] @ directions.T / lengths[None]
        # A residual of zero, as of a normal target, must not give a height of zero to divide by.
        size = jnp.mean(jnp.sum(slopes**2, 1)) * jnp.finfo(points.dtype).eps
        height = jnp.sqrt(jnp.mean(wanted**2) + size)
        start = _default_kernel(q) if self.kernel is None else self.kernel
        # A leading part of a farthest-point sequence is spread over the whole set too.
        few = chosen[: self.num_tuning]
        tuned = tune_surrogate(
            start, active[few], wanted[: self.num_tuning] / height, self.tuning_steps
        )
        process = condition_on_gradients(tuned, active[chosen], wanted / height)
        return FittedSurrogate(
            centre,
            scale,
            bowl.precision,
            bowl.slope,
            # Into the white coordinates of the process, (Dw − origin)·root, in one matrix.
            process.root[:, None] * directions,
            process.root * process.origin,
            process.points,
            process.weights,
            height,
            process.profile,
        )


def _default_kernel(q: int) -> AbstractKernel:
    """Return a squared exponential of lengthscale √(2q), the distance of two points, and gradients
    of unit variance."""
    with jax.ensure_compile_time_eval():
        return Scaled(2.0 * q, SquaredExponential(jnp.full(q, math.sqrt(2 * q))))
