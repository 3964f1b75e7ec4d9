"""The van der Pol posterior of Sun, Barp and Briol (ICML 2023, appendix E.5): one parameter, one
ODE solve.

u″ − θ(1 − u²)u′ + u = 0 from (u, u′)(0) = (0, 2), observed at s = 0, 1, …, 10 with noise of
standard deviation 0.1, and log θ ~ N(0, 0.25²), sampled as `log_theta`. Its log evidence is
10.35590262 (quadrature).

The solve. With one parameter a tangent costs less than an adjoint, so the derivative is a
forward-mode solve in forward and reverse mode alike. At ``TOLERANCE`` (relative and absolute) the
log evidence is right to 2e-8 and the score is wrong by 3e-6 of its standard deviation. Draws of the
prior need 90 to 200 steps; ``MAX_STEPS`` bounds the cost of a proposal far from the posterior, for
which vectorised chains wait. In float32 the tolerance is eight times the machine epsilon.

A failed solve (the cap, or a value that is not finite) has log density −∞ and a score of NaN: the
sampler rejects it.
"""

from collections.abc import Mapping
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float

TIMES = np.arange(11.0)
# fmt: off
OBSERVED = np.array([
    -0.06490137651912407, 2.0253794833657275, 1.5234675467282532, 0.436423900725732,
    -1.7752475581746274, -1.8770352953664626, -1.0546515194496622, 0.9592328217532438,
    1.9585505961295833, 1.4065533263342098, -0.15664748180816496,
])
# fmt: on
NOISE = 0.1
INITIAL = (0.0, 2.0)
PRIOR_SCALE = 0.25

TOLERANCE = 1e-7
MAX_STEPS = 400


class Displacement(NamedTuple):
    """u (n,) at the times asked for, and whether the solve succeeded.

    Where it did not, u is the largest float, whose normal density is −∞, and its derivative is NaN.
    """

    values: Float[Array, " n"]
    solved: Bool[Array, ""]


def solve(
    theta: Float[Array, ""],
    times: Float[np.ndarray, " n"],
    *,
    solver: diffrax.AbstractSolver | None = None,
    tolerance: float = TOLERANCE,
    max_steps: int = MAX_STEPS,
) -> Displacement:
    """Return u at `times`, increasing and not negative."""

    def integrate(theta: Float[Array, ""]) -> Displacement:
        return _integrate(theta, times, solver or diffrax.Tsit5(), tolerance, max_steps)

    @jax.custom_jvp
    def displacement(theta: Float[Array, ""]) -> Displacement:
        return integrate(theta)

    @displacement.defjvp
    def tangent(primals: tuple, tangents: tuple) -> tuple[Displacement, Displacement]:
        solution, slope = jax.jvp(integrate, primals, (jnp.ones_like(primals[0]),))
        nan_if_failed = jnp.where(solution.solved, slope.values, jnp.nan)
        return solution, slope._replace(values=nan_if_failed * tangents[0])

    return displacement(theta)


def _integrate(
    theta: Float[Array, ""],
    times: Float[np.ndarray, " n"],
    solver: diffrax.AbstractSolver,
    tolerance: float,
    max_steps: int,
) -> Displacement:
    tolerance = max(tolerance, 8 * float(jnp.finfo(theta.dtype).eps))
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(_motion),
        solver,
        t0=0.0,
        t1=float(times[-1]),
        dt0=0.05,
        y0=jnp.asarray(INITIAL, theta.dtype),
        args=theta,
        saveat=diffrax.SaveAt(ts=jnp.asarray(times, theta.dtype)),
        stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
        adjoint=diffrax.ForwardMode(),
        max_steps=max_steps,
        throw=False,
    )
    values = solution.ys[:, 0]
    solved = (solution.result == diffrax.RESULTS.successful) & jnp.isfinite(values).all()
    return Displacement(jnp.where(solved, values, jnp.finfo(values.dtype).max), solved)


def _motion(
    time: Float[Array, ""], state: Float[Array, "2"], theta: Float[Array, ""]
) -> Float[Array, "2"]:
    del time
    u, speed = state
    return jnp.stack([speed, theta * (1 - u**2) * speed - u])


def model(
    observed: Float[np.ndarray, " n"],
    *,
    solver: diffrax.AbstractSolver | None = None,
    tolerance: float = TOLERANCE,
    max_steps: int = MAX_STEPS,
) -> None:
    """Declare noisy displacements at s = 0, 1, …"""
    theta = jnp.exp(numpyro.sample("log_theta", dist.Normal(0.0, PRIOR_SCALE)))
    u = solve(
        theta,
        np.arange(float(len(observed))),
        solver=solver,
        tolerance=tolerance,
        max_steps=max_steps,
    ).values
    numpyro.sample("u", dist.Normal(u, NOISE), obs=jnp.asarray(observed, u.dtype))


def data() -> dict[str, object]:
    """Return the arguments of `model`."""
    return {"observed": OBSERVED}


def init() -> dict[str, np.ndarray]:
    """Return constrained values near the posterior mode."""
    return {"log_theta": np.array(-0.015)}


def quantities(draw: Mapping[str, Array]) -> dict[str, Array]:
    """Return θ at one constrained draw."""
    return {"theta": jnp.exp(draw["log_theta"])}
