"""Surrogate Hamiltonian Monte Carlo step by step: the moves of one chain, and one iteration of all
chains.

A chain moves by leapfrog with true gradients, or with surrogate gradients and delayed acceptance.
An iteration chooses the kind of transition, moves, adapts, records, and fits at the end of warm-up.
"""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int

from mcmcpost.core.arguments import check_count, check_kind, check_number
from mcmcpost.core.errors import InputError
from mcmcpost.gp.surrogate import (
    AbstractSurrogate,
    EnergyAndGradient,
    FittedSurrogate,
    History,
    Trajectory,
    pooled,
    record,
    relative_error,
)

STEP_FACTORS = (0.2, 1.2)
"""The step size of a trajectory is the adapted one times a factor uniform between these. No length
resonates, and short steps leave tails in which long ones are rejected."""

DIVERGENCE = 1000.0
"""Energy error from which a trajectory counts as divergent, as in NumPyro."""


class Potential(NamedTuple):
    """The true potential energy on the flat unconstrained space: alone, and with its gradient."""

    energy: Callable[[Any], Array]
    evaluate: Callable[[Any], EnergyAndGradient]


def flat_target(potential: Callable[[Any], Any], z: Any) -> Potential:
    """Return the potential on flat draws; z : a batch of draws, a pytree of which the structure
    counts."""
    # Of one chain: the batch's leading axis is dropped for the shapes.
    unravel = ravel_pytree(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), z))[1]

    def energy(x: Float[Array, " d"]) -> Float[Array, ""]:
        return potential(unravel(x))

    return Potential(energy, lambda x: EnergyAndGradient(*jax.value_and_grad(energy)(x)))


class Point(NamedTuple):
    """A state of the chain. gradient : true, NaN where it was never evaluated."""

    x: Float[Array, " d"]
    energy: Float[Array, ""]
    gradient: Float[Array, " d"]


class Metric(NamedTuple):
    """Adapted step size and mass: inverse mass matrix and square root of the mass matrix, (d,) or
    (d, d)."""

    step_size: Float[Array, ""]
    inverse_mass: Float[Array, "..."]
    mass_root: Float[Array, "..."]

    def momentum(self, key: Array, d: int) -> Float[Array, " d"]:
        """Draw a momentum."""
        noise = jax.random.normal(key, (d,), self.step_size.dtype)
        return self.mass_root * noise if self.mass_root.ndim == 1 else self.mass_root @ noise

    def velocity(self, p: Float[Array, " d"]) -> Float[Array, " d"]:
        """Return M⁻¹p."""
        return self.inverse_mass * p if self.inverse_mass.ndim == 1 else self.inverse_mass @ p

    def kinetic(self, p: Float[Array, " d"]) -> Float[Array, ""]:
        """Return ½pᵀM⁻¹p."""
        return 0.5 * p @ self.velocity(p)


class MoveResult(NamedTuple):
    """The result of a move and its cost.

    path_accept_prob : mean acceptance probability over the points of the trajectory. The step size
        is adapted to it: it is less noisy than that of the last point and leads to larger steps,
        those of NUTS.
    true_energies : those that an acceptance depends on; that of a true trajectory came with its
        last gradient.
    """

    accept_prob: Float[Array, ""]
    path_accept_prob: Float[Array, ""]
    diverging: Bool[Array, ""]
    true_gradients: Int[Array, ""]
    true_energies: Int[Array, ""]
    surrogate_gradients: Int[Array, ""]


class Leapfrog(NamedTuple):
    """The points of a trajectory (leading axis l) with potential and kinetic energies, infinite
    beyond its end."""

    points: Float[Array, "l d"]
    gradients: Float[Array, "l d"]
    energies: Float[Array, " l"]
    kinetic: Float[Array, " l"]

    def errors(self, point: Point, kinetic: Float[Array, ""]) -> Float[Array, " l"]:
        """Return by how much the Hamiltonian differs from that at the start."""
        return self.energies + self.kinetic - point.energy - kinetic


def leapfrog(
    evaluate: Callable[[Any], EnergyAndGradient],
    metric: Metric,
    x: Float[Array, " d"],
    p: Float[Array, " d"],
    gradient: Float[Array, " d"],
    step_size: Float[Array, ""],
    num_steps: int | Int[Array, ""],
    most: int,
) -> Leapfrog:
    """Return the trajectory of (x, p), given the gradient at x; num_steps : at most `most`, the
    length l."""

    def step(i: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        x, p, gradient, path = carry
        # Half a kick, drift, half a kick: reversible and volume preserving for any gradient field
        # of an energy.
        p = p - 0.5 * step_size * gradient
        x = x + step_size * metric.velocity(p)
        energy, gradient = evaluate(x)
        p = p - 0.5 * step_size * gradient
        new = Leapfrog(x, gradient, energy, metric.kinetic(p))
        return x, p, gradient, jax.tree.map(lambda all, one: all.at[i].set(one), path, new)

    # Infinite beyond the end: `pooled` drops such points, and their acceptance probability is zero.
    none, far = jnp.zeros((most, len(x)), x.dtype), jnp.full(most, jnp.inf, x.dtype)
    return jax.lax.fori_loop(0, num_steps, step, (x, p, gradient, Leapfrog(none, none, far, far)))[
        3
    ]


def accepts(key: Array, log_ratio: Float[Array, ""]) -> Bool[Array, ""]:
    """Accept with probability min(1, ratio)."""
    return jnp.log(jax.random.uniform(key, (), log_ratio.dtype)) < log_ratio


def hamiltonian_move(
    target: Potential,
    point: Point,
    metric: Metric,
    key: Array,
    num_steps: int | Int[Array, ""],
    most: int,
) -> tuple[Point, MoveResult, Leapfrog]:
    """Move by Hamiltonian Monte Carlo on the gradients of `target`, by `num_steps`, which are at
    most `most`."""
    key_p, key_step, key_accept = jax.random.split(key, 3)
    p = metric.momentum(key_p, len(point.x))
    step_size = _jittered(key_step, metric.step_size)
    path = leapfrog(target.evaluate, metric, point.x, p, point.gradient, step_size, num_steps, most)
    errors = path.errors(point, metric.kinetic(p))
    # The number of steps is traced: the last point is at an index, not at the end of the array.
    last = num_steps - 1
    moved = Point(path.points[last], path.energies[last], path.gradients[last])
    new, outcome = _finish(key_accept, point, moved, errors[last], (num_steps, 1, 0))
    # Points beyond the end add exp(−∞) = 0, so that the mean is over the steps taken.
    return new, outcome._replace(path_accept_prob=jnp.sum(_accept_prob(errors)) / num_steps), path


def surrogate_move(
    target: Potential,
    surrogate: FittedSurrogate,
    point: Point,
    metric: Metric,
    key: Array,
    num_steps: int,
    num_moves: int,
) -> tuple[Point, MoveResult]:
    """Move along the surrogate's energy and accept with the true one.

    One move: its leapfrog is reversible and keeps volume, so the ratio is that of the true
    Hamiltonian. Several, each accepted with the surrogate's energy Ê: together they are reversible
    with respect to exp(−Ê), so the second stage accepts with exp(E(x) − Ê(x) − E(y) + Ê(y))
    (Christen and Fox, 2005).
    """
    key_moves, key_accept = jax.random.split(key)
    # No true gradient; one true energy; a surrogate gradient at the start and at each step.
    cost = (0, 1, 1 + num_moves * num_steps)
    if num_moves == 1:
        key_p, key_step = jax.random.split(key_moves)
        p = metric.momentum(key_p, len(point.x))
        start = surrogate.evaluate(point.x)
        step_size = _jittered(key_step, metric.step_size)
        path = leapfrog(
            surrogate.evaluate, metric, point.x, p, start.gradient, step_size, num_steps, num_steps
        )
        end = path.points[-1]
        energy = target.energy(end)
        # The potential of the surrogate does not enter: acceptance is with the true Hamiltonian.
        error = energy + path.kinetic[-1] - point.energy - metric.kinetic(p)
    else:
        start = surrogate.evaluate(point.x)
        model = Potential(lambda x: surrogate.evaluate(x).energy, surrogate.evaluate)

        def inner(inside: Point, key: Array) -> tuple[Point, None]:
            return hamiltonian_move(model, inside, metric, key, num_steps, num_steps)[0], None

        stop = jax.lax.scan(inner, Point(point.x, *start), jax.random.split(key_moves, num_moves))[
            0
        ]
        energy, end = target.energy(stop.x), stop.x
        # E(y) − Ê(y) − E(x) + Ê(x): kinetic energies were settled in the inner moves.
        error = energy - stop.energy - point.energy + start.energy
    # The true gradient at the new point was not evaluated, and NaN says so to `_with_gradient`.
    return _finish(key_accept, point, Point(end, energy, jnp.full_like(end, jnp.nan)), error, cost)


def _jittered(key: Array, step_size: Float[Array, ""]) -> Float[Array, ""]:
    return step_size * jax.random.uniform(key, (), step_size.dtype, *STEP_FACTORS)


def _finish(
    key: Array, point: Point, moved: Point, error: Float[Array, ""], cost: tuple[Any, int, int]
) -> tuple[Point, MoveResult]:
    taken = accepts(key, -error)  # not where it is NaN
    new = jax.tree.map(lambda to, stay: jnp.where(taken, to, stay), moved, point)
    counts = (jnp.asarray(count, int) for count in cost)
    chance = _accept_prob(error)
    # Not `error > DIVERGENCE`: an error of NaN is divergent too.
    return new, MoveResult(chance, chance, ~(error <= DIVERGENCE), *counts)


def _accept_prob(error: Float[Array, "..."]) -> Float[Array, "..."]:
    # NaN as an infinite error: a probability of NaN would spoil the adaptation of the step size.
    return jnp.minimum(1, jnp.exp(-jnp.where(jnp.isnan(error), jnp.inf, error)))


class Settings(NamedTuple):
    """The settings of `SurrogateHMC`, by the same names."""

    surrogate: AbstractSurrogate
    num_steps: int
    refinement: int
    true_gradient_probability: float
    delayed_acceptance: int
    max_gradient_error: float
    history_size: int


def check_settings(settings: Settings) -> None:
    """Refuse settings that cannot run.

    Raises
    ------
    ValueError : says which.
    """
    where = "SurrogateHMC"
    for name in ("num_steps", "refinement", "delayed_acceptance", "history_size"):
        check_count(where, name, getattr(settings, name), "Use a positive integer.")
    chance, error = settings.true_gradient_probability, settings.max_gradient_error
    check_number(where, "true_gradient_probability", chance, "Use 0.1.", inside="[0, 1]")
    check_number(where, "max_gradient_error", error, "Use 0.2.", inside="[0, inf]")
    check_kind(
        where, "surrogate", settings.surrogate, AbstractSurrogate, "Such as SubspaceSurrogate()."
    )


class SurrogateState(NamedTuple):
    """The state that `MCMC` carries. Every field but `i` and `surrogate` has an axis of chains if
    vectorised.

    i : iterations done. z : unconstrained sample sites. potential_energy : true, at z.
    true_gradient : flat, of the potential at z where it was evaluated, else NaN; never the
        surrogate's.
    accept_prob, diverging : of the last transition. mean_accept_prob : of the transitions of this
        phase.
    num_true_gradients, num_true_energies, num_surrogate_gradients : of this chain since the start
    of sampling, zero
        during warm-up. They go on in a later ``MCMC.run`` from the same warm-up. Only energies that
        an acceptance depends on are counted.
    num_warmup_gradients, num_warmup_energies : true ones of this chain during warm-up, with those
        of the first state. They no longer change once sampling has started; a total is the sum of
        both counts.
    surrogate_used : whether the surrogate passed the test on held-out trajectories; false during
        warm-up.
    gradient_error : of the surrogate on held-out trajectories, relative; NaN before it was fitted.
    adapt_state : NumPyro's `HMCAdaptState`. rng_key : of the next transition.
    history : the latest trajectories of warm-up. surrogate : frozen once warm-up ends, one for all
        vectorised chains.
    """

    i: Any
    z: Any
    potential_energy: Any
    true_gradient: Any
    accept_prob: Any
    mean_accept_prob: Any
    diverging: Any
    num_true_gradients: Any
    num_true_energies: Any
    num_surrogate_gradients: Any
    num_warmup_gradients: Any
    num_warmup_energies: Any
    surrogate_used: Any
    gradient_error: Any
    adapt_state: Any
    rng_key: Any
    history: History
    surrogate: FittedSurrogate

    @property
    def z_grad(self) -> Any:
        """Refuse: what NumPyro calls `z_grad` is the true gradient at every draw, which was not
        evaluated."""
        cure = (
            "Call mcmcpost.from_numpyro(mcmc), or attach_scores on a stored trace: they compute "
            "true scores."
        )
        raise InputError("SurrogateHMC", "no `z_grad` among the extra fields", "one", cure)


SHARED = ("i", "surrogate")


def with_chains(state: SurrogateState) -> SurrogateState:
    """Return the state of one chain as that of a batch of one."""
    return _map_chains(lambda leaf: jnp.asarray(leaf)[None], state)


def without_chains(state: SurrogateState) -> SurrogateState:
    """Return the only state of a batch of one."""
    return _map_chains(lambda leaf: leaf[0], state)


def _map_chains(function: Any, state: SurrogateState) -> SurrogateState:
    batched = {name: value for name, value in state._asdict().items() if name not in SHARED}
    return state._replace(**jax.tree.map(function, batched))


logger = logging.getLogger("mcmcpost")


class Iteration(NamedTuple):
    """The parts of an iteration.

    nuts : NumPyro's NUTS of one chain, state ↦ state. adapt : its adaptation of one chain. target :
        on flat draws.
    num_warmup : iterations of warm-up. fits : whether a surrogate is fitted at their end.
    """

    settings: Settings
    nuts: Callable[[Any], Any]
    adapt: Callable[..., Any]
    target: Potential
    num_warmup: int
    fits: bool


class Fit(NamedTuple):
    """A surrogate and its relative error on held-out trajectories."""

    surrogate: FittedSurrogate
    error: Float[Array, ""]


def fit_history(surrogate: AbstractSurrogate, history: History) -> Fit:
    """Fit a surrogate to the trajectories of warm-up."""
    rows = pooled(history)
    fitted = surrogate.fit(rows.points, rows.gradients, rows.training)
    return Fit(fitted, relative_error(fitted, rows.points, rows.gradients, rows.held_out))


def advance(program: Iteration, state: SurrogateState) -> SurrogateState:
    """Return the next state of a batch of chains."""
    keys = jax.vmap(lambda key: jax.random.split(key, 3))(state.rng_key)
    warm = state.i < program.num_warmup
    point, outcome, path = _transition(program, state, keys, warm)
    adapt = jax.lax.cond(
        warm, lambda: _adapted(program, state, point, outcome), lambda: state.adapt_state
    )
    history = record(state.history, path, state.i, warm)
    most = program.settings.max_gradient_error
    fit = Fit(state.surrogate, state.gradient_error[0])
    if program.fits:
        last = state.i == program.num_warmup - 1
        fit = jax.lax.cond(
            last, lambda: fit_history(program.settings.surrogate, history), lambda: fit
        )
        # A callback, because inside `scan` the host cannot branch on the error.
        jax.debug.callback(_report, last, fit.error, most)
    error = jnp.broadcast_to(fit.error, state.gradient_error.shape)
    # The running mean starts again with the draws.
    count = state.i + 1 - jnp.where(warm, 0, program.num_warmup)
    unravel = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], state.z))[1]
    return SurrogateState(
        i=state.i + 1,
        z=jax.vmap(unravel)(point.x),
        potential_energy=point.energy,
        true_gradient=point.gradient,
        accept_prob=outcome.accept_prob,
        mean_accept_prob=state.mean_accept_prob
        + (outcome.accept_prob - state.mean_accept_prob) / count,
        diverging=outcome.diverging,
        num_surrogate_gradients=state.num_surrogate_gradients + outcome.surrogate_gradients,
        **true_counts(state, outcome.true_gradients, outcome.true_energies, warm),
        # never weakly typed: a progress bar would compile twice
        surrogate_used=(error <= most).astype(bool),
        gradient_error=error,
        adapt_state=adapt,
        rng_key=keys[:, 0],
        history=history,
        surrogate=fit.surrogate,
    )


def true_counts(state: SurrogateState, gradients: Any, energies: Any, warm: Any) -> dict[str, Any]:
    """Return the counts of the state with new true gradients and energies, as those of warm-up
    where `warm`."""
    return {
        "num_true_gradients": state.num_true_gradients + jnp.where(warm, 0, gradients),
        "num_true_energies": state.num_true_energies + jnp.where(warm, 0, energies),
        "num_warmup_gradients": state.num_warmup_gradients + jnp.where(warm, gradients, 0),
        "num_warmup_energies": state.num_warmup_energies + jnp.where(warm, energies, 0),
    }


def _transition(
    program: Iteration, state: SurrogateState, keys: Array, warm: Bool[Array, ""]
) -> tuple[Point, MoveResult, Trajectory]:
    """Move all chains in the same way and equally far, so that only one kind of transition is
    computed."""
    settings, target, adapted = program.settings, program.target, state.adapt_state
    point = Point(
        jax.vmap(lambda z: ravel_pytree(z)[0])(state.z), state.potential_energy, state.true_gradient
    )
    metric = Metric(adapted.step_size, adapted.inverse_mass_matrix, adapted.mass_matrix_sqrt)
    # Smaller steps on the surrogate cost no true gradient and leave less of its own Hamiltonian
    # error.
    finer = metric._replace(step_size=metric.step_size / settings.refinement)
    steps = settings.num_steps * settings.refinement
    # The first chain's key decides for all: mixed kinds would all be computed under `vmap`.
    key_coin, key_length = jax.random.split(keys[0, 2])
    nothing = Trajectory(*(jnp.zeros_like(leaf[:, 0]) for leaf in state.history))
    type Moved = tuple[Point, MoveResult, Trajectory]

    coin = jax.random.uniform(key_coin) < settings.true_gradient_probability
    # 0: true gradients. 1: NUTS, of a surrogate that was declined. 2: surrogate.
    kind = jnp.where(warm, 0, jnp.where(state.surrogate_used[0], jnp.where(coin, 0, 2), 1))
    # Before the choice, and not in each of the two that need it: its program is compiled once.
    known, extra = _with_gradient(target, point, kind != 2)

    def truly() -> Moved:
        most = settings.num_steps
        num_steps = jax.random.randint(key_length, (), 1, most + 1)
        move: Callable[..., Any] = jax.vmap(
            lambda p, m, k: hamiltonian_move(target, p, m, k, num_steps, most)
        )
        moved, outcome, path = move(known, metric, keys[:, 1])
        return (
            moved,
            _charge(outcome, extra),
            Trajectory(path.points, path.gradients, path.energies),
        )

    def by_nuts() -> Moved:
        moved, outcome = jax.vmap(lambda p, a, k: _nuts_move(program, p, a, k))(
            known, adapted, keys[:, 1]
        )
        return moved, _charge(outcome, extra), nothing

    def surrogately() -> Moved:
        move: Callable[..., Any] = jax.vmap(
            lambda p, m, k: surrogate_move(
                target, state.surrogate, p, m, k, steps, settings.delayed_acceptance
            )
        )
        return *move(point, finer, keys[:, 1]), nothing

    return jax.lax.switch(kind, (truly, by_nuts, surrogately))


def _with_gradient(
    target: Potential, point: Point, wanted: Bool[Array, ""]
) -> tuple[Point, Int[Array, " c"]]:
    """Return the points with their true gradients where `wanted`, and how many each chain had to
    evaluate."""
    # After a surrogate move the true gradient is NaN: it is evaluated only where a true one
    # follows.
    unknown = wanted & ~jnp.isfinite(point.gradient).all(1)
    gradient = jax.lax.cond(
        unknown.any(), lambda: jax.vmap(target.evaluate)(point.x).gradient, lambda: point.gradient
    )
    return point._replace(gradient=gradient), unknown.astype(int)


def _charge(outcome: MoveResult, extra: Int[Array, " c"]) -> MoveResult:
    return outcome._replace(true_gradients=outcome.true_gradients + extra)


def _nuts_move(
    program: Iteration, point: Point, adapted: Any, key: Array
) -> tuple[Point, MoveResult]:
    from numpyro.infer.hmc import HMCState

    none, zero = jnp.zeros((), int), jnp.zeros_like(point.energy)
    # its steps do not vary: it takes the mean of those that were adapted
    if program.num_warmup > 0:
        adapted = adapted._replace(step_size=adapted.step_size * sum(STEP_FACTORS) / 2)
    # At the end of warm-up, so that NumPyro's kernel adapts nothing.
    start = HMCState(
        i=none + program.num_warmup,
        z=point.x,
        z_grad=point.gradient,
        potential_energy=point.energy,
        energy=point.energy,
        r=None,
        trajectory_length=None,
        num_steps=none,
        accept_prob=zero,
        mean_accept_prob=zero,
        diverging=jnp.asarray(False),
        adapt_state=adapted,
        rng_key=key,
    )
    new = program.nuts(start)
    outcome = MoveResult(
        new.accept_prob, new.accept_prob, new.diverging, new.num_steps, new.num_steps, none
    )
    return Point(new.z, new.potential_energy, new.z_grad), outcome


def _adapted(program: Iteration, state: SurrogateState, point: Point, outcome: MoveResult) -> Any:
    from numpyro.infer.hmc_util import IntegratorState

    at = IntegratorState(z=point.x, r=None, potential_energy=point.energy, z_grad=point.gradient)
    adapt = jax.vmap(program.adapt, in_axes=(None, 0, 0, 0))
    # All chains are at one iteration; step size and mass are adapted for each by itself.
    return adapt(state.i, outcome.path_accept_prob, at, state.adapt_state)


def _report(last: Any, error: Any, most: Any) -> None:
    if last and not error <= most:
        logger.warning(
            "SurrogateHMC: the surrogate's gradient has a relative error of %.3g on held-out "
            "trajectories, above max_gradient_error=%.3g. It is declined: sampling continues "
            "as NUTS with true gradients.",
            error,
            most,
        )
