"""The Lotka–Volterra posterior of the hare–lynx counts, 1900–1920: eight parameters, one ODE solve
per likelihood.

Two prior sets share one likelihood. ``"paper"`` is the parameterisation on R⁸ of Sun, Barp and
Briol (ICML 2023, appendix E.6): every parameter is the logarithm of its natural value, with a
normal prior, in the order α β δ γ. ``"stan"`` is posteriordb's ``hudson_lynx_hare-lotka_volterra``:
``theta`` in the order α β γ δ, ``z_init`` and ``sigma``, all positive.

The solve. With x = log prey and y = log predator, dx/ds = α − β eʸ and dy/ds = δ eˣ − γ:
populations stay positive without clipping, and at equal tolerance Tsit5 takes three quarters of the
steps of the natural scale. At ``TOLERANCE`` (relative and absolute alike, on the log populations)
the score is wrong by 3e-6 of its standard deviation, against Dopri8 at 1e-12. That must stay well
below what the control variates leave: their errors here are 2e-5 posterior standard deviations, and
a score wrong by 7e-5, as at 1e-6, may bias a mean by more than its error. Posterior draws need
about 75 steps and no draw in 4,000 from either prior needs ``MAX_STEPS``, which bounds the cost of
a proposal far from the posterior, for which vectorised chains wait. In float32 the tolerance is
eight times the machine epsilon.

A failed solve (the cap, or a step that is not finite) has log density −∞ and a score of NaN in
every coordinate, and its ``quantities`` are NaN: the sampler rejects it, and no failed solve gives
a finite value.

``data(limited=True)`` is a rival model for either prior set: predators limit themselves, dy/ds = δ
eˣ − γ − κ eʸ, with log κ ~ N(−5, 1).
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Bool, Float

# fmt: off
HARE = np.array([
    30.0, 47.2, 70.2, 77.4, 36.3, 20.6, 18.1, 21.4, 22.0, 25.4, 27.1,
    40.3, 57.0, 76.6, 52.3, 19.5, 11.2, 7.6, 14.6, 16.2, 24.7,
])
LYNX = np.array([
    4.0, 6.1, 9.8, 35.2, 59.4, 41.7, 19.0, 13.0, 8.3, 9.1, 7.4,
    8.0, 12.3, 19.5, 45.7, 51.1, 29.7, 15.8, 9.7, 10.1, 8.6,
])
# fmt: on
"""Pelts in thousands, one pair a year (Hudson's Bay Company, as in Stan's example)."""

FIRST_YEAR = 1900
TASK_YEARS = tuple(round(1912 + 0.2 * i, 1) for i in range(20))
"""The paper's task times s′, 1912 to 1915.8."""

TOLERANCE = 1e-7
MAX_STEPS = 512


class Parameters(NamedTuple):
    """Parameters on the natural scale, the same for both prior sets; populations and noise are
    (prey, predator).

    kappa : self-limitation of the predators, None in the model without it.
    """

    alpha: Float[Array, ""]
    beta: Float[Array, ""]
    delta: Float[Array, ""]
    gamma: Float[Array, ""]
    initial: Float[Array, "2"]
    noise: Float[Array, "2"]
    kappa: Float[Array, ""] | None = None


class Populations(NamedTuple):
    """Log populations (n, 2) and whether the solve succeeded.

    Where it did not, they are the largest float, whose log-normal density is −∞, and their
    derivatives are NaN.
    """

    log: Float[Array, "n 2"]
    solved: Bool[Array, ""]


def paper_priors() -> Parameters:
    """Sample the paper's eight unconstrained parameters."""

    def log_normal(name: str, loc: float, scale: float) -> Float[Array, ""]:
        return jnp.exp(numpyro.sample(f"log_{name}", dist.Normal(loc, scale)))

    alpha, beta = log_normal("alpha", 0.0, 0.5), log_normal("beta", -3.0, 0.5)
    delta, gamma = log_normal("delta", -3.0, 0.5), log_normal("gamma", 0.0, 0.5)
    initial = [log_normal(name, np.log(10.0), 1.0) for name in ("prey0", "predator0")]
    noise = [log_normal(name, -1.0, 1.0) for name in ("sigma_prey", "sigma_predator")]
    return Parameters(alpha, beta, delta, gamma, jnp.stack(initial), jnp.stack(noise))


def stan_priors() -> Parameters:
    """Sample the parameters of Stan's example: `theta` = (α, β, γ, δ), `z_init`, `sigma`."""
    loc, scale = np.array([1.0, 0.05, 1.0, 0.05]), np.array([0.5, 0.05, 0.5, 0.05])
    theta = numpyro.sample("theta", dist.TruncatedNormal(loc, scale, low=0.0).to_event(1))
    initial = numpyro.sample("z_init", dist.LogNormal(np.log(10.0), 1.0).expand([2]).to_event(1))
    noise = numpyro.sample("sigma", dist.LogNormal(-1.0, 1.0).expand([2]).to_event(1))
    return Parameters(theta[0], theta[1], theta[3], theta[2], initial, noise)


def limited_paper_priors() -> Parameters:
    """Sample the paper's parameters and the self-limitation."""
    return _limited(paper_priors())


def limited_stan_priors() -> Parameters:
    """Sample the parameters of Stan's example and the self-limitation."""
    return _limited(stan_priors())


def _limited(parameters: Parameters) -> Parameters:
    return parameters._replace(kappa=jnp.exp(numpyro.sample("log_kappa", dist.Normal(-5.0, 1.0))))


PRIORS: dict[str, Callable[[], Parameters]] = {"paper": paper_priors, "stan": stan_priors}
LIMITED: dict[str, Callable[[], Parameters]] = {
    "paper": limited_paper_priors,
    "stan": limited_stan_priors,
}


def solve(
    parameters: Parameters,
    times: Float[np.ndarray, " n"],
    *,
    solver: diffrax.AbstractSolver | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    tolerance: float = TOLERANCE,
    max_steps: int = MAX_STEPS,
) -> Populations:
    """Return the log populations at `times`, years after 1900, increasing and positive.

    adjoint : how derivatives are taken, by default backwards; ``diffrax.ForwardMode()`` serves
        forward ones only.
    """
    tolerance = max(tolerance, 8 * float(jnp.finfo(parameters.initial.dtype).eps))
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(_growth),
        diffrax.Tsit5() if solver is None else solver,
        t0=0.0,
        t1=float(times[-1]),
        dt0=0.1,
        y0=jnp.log(parameters.initial),
        args=parameters,
        saveat=diffrax.SaveAt(ts=jnp.asarray(times, parameters.initial.dtype)),
        stepsize_controller=diffrax.PIDController(rtol=tolerance, atol=tolerance),
        adjoint=diffrax.RecursiveCheckpointAdjoint() if adjoint is None else adjoint,
        max_steps=max_steps,
        throw=False,
    )
    solved = (solution.result == diffrax.RESULTS.successful) & jnp.isfinite(solution.ys).all()
    # parameters enter `_poison` themselves: after an early failure the solve no longer depends on
    # them at all
    flat = jnp.concatenate([jnp.ravel(p) for p in jax.tree.leaves(parameters)])
    return Populations(_poison(solution.ys, flat, solved), solved)


def _growth(time: Float[Array, ""], log: Float[Array, "2"], rates: Parameters) -> Float[Array, "2"]:
    del time
    prey, predator = jnp.exp(log)
    gain = rates.delta * prey - rates.gamma
    if rates.kappa is not None:
        gain = gain - rates.kappa * predator
    return jnp.stack([rates.alpha - rates.beta * predator, gain])


@jax.custom_jvp
def _poison(
    log: Float[Array, "n 2"], parameters: Float[Array, " p"], solved: Bool[Array, ""]
) -> Float[Array, "n 2"]:
    """Return `log` if `solved`, else the largest float, whose derivatives in all parameters are
    NaN."""
    del parameters
    # not ∞: NumPyro refuses that as an argument
    return jnp.where(solved, log, jnp.finfo(log.dtype).max)


@_poison.defjvp
def _poison_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    log, parameters, solved = primals
    log_dot, parameters_dot, _ = tangents
    nan_if_failed = jnp.where(solved, 0.0, jnp.nan).astype(log.dtype)
    return _poison(log, parameters, solved), log_dot + nan_if_failed * parameters_dot.sum()


def model(
    hare: Float[np.ndarray, " n"],
    lynx: Float[np.ndarray, " n"],
    *,
    priors: Callable[[], Parameters],
    solver: diffrax.AbstractSolver | None = None,
    adjoint: diffrax.AbstractAdjoint | None = None,
    tolerance: float = TOLERANCE,
    max_steps: int = MAX_STEPS,
) -> None:
    """Declare yearly counts with log-normal noise about the solution, the first year about the
    initial state."""
    parameters = priors()
    times = np.arange(1.0, len(hare))
    later = solve(
        parameters, times, solver=solver, adjoint=adjoint, tolerance=tolerance, max_steps=max_steps
    ).log
    log = jnp.concatenate([jnp.log(parameters.initial)[None], later])
    numpyro.sample(
        "hare", dist.LogNormal(log[:, 0], parameters.noise[0]), obs=jnp.asarray(hare, log.dtype)
    )
    numpyro.sample(
        "lynx", dist.LogNormal(log[:, 1], parameters.noise[1]), obs=jnp.asarray(lynx, log.dtype)
    )


def data(priors: str = "paper", limited: bool = False) -> dict[str, object]:
    """Return the arguments of `model` for the prior set ``"paper"`` or ``"stan"``; `limited` adds
    self-limitation."""
    _check_priors("data", priors)
    return {"hare": HARE, "lynx": LYNX, "priors": (LIMITED if limited else PRIORS)[priors]}


def init(priors: str = "paper", limited: bool = False) -> dict[str, np.ndarray]:
    """Return constrained values near the posterior mode."""
    _check_priors("init", priors)
    extra = {"log_kappa": np.array(-6.0)} if limited else {}
    if priors == "stan":
        return extra | {
            "theta": np.array([0.55, 0.028, 0.8, 0.024]),
            "z_init": np.array([34.0, 5.9]),
            "sigma": np.array([0.25, 0.25]),
        }
    natural = {
        "alpha": 0.55, "beta": 0.028, "delta": 0.024, "gamma": 0.8,
        "prey0": 34.0, "predator0": 5.9, "sigma_prey": 0.25, "sigma_predator": 0.25,
    }  # fmt: skip
    return {f"log_{name}": np.log(value) for name, value in natural.items()} | extra


def quantities(draw: Mapping[str, Array]) -> dict[str, Array]:
    """Return the paper's integrands v₁(s′), named by year, and natural-scale parameters, at one
    constrained draw."""
    natural = {
        name.removeprefix("log_"): jnp.exp(value)
        for name, value in draw.items()
        if name.startswith("log_")
    }
    populations = solve(_parameters(draw), np.array(TASK_YEARS) - FIRST_YEAR)
    prey = jnp.where(populations.solved, jnp.exp(populations.log[:, 0]), jnp.nan)
    return natural | {
        f"prey[{year:.1f}]": value for year, value in zip(TASK_YEARS, prey, strict=True)
    }


def _parameters(draw: Mapping[str, Array]) -> Parameters:
    if "log_kappa" in draw:
        free = {name: value for name, value in draw.items() if name != "log_kappa"}
        return _parameters(free)._replace(kappa=jnp.exp(draw["log_kappa"]))
    if "theta" in draw:
        alpha, beta, gamma, delta = jnp.asarray(draw["theta"])
        return Parameters(
            alpha, beta, delta, gamma, jnp.asarray(draw["z_init"]), jnp.asarray(draw["sigma"])
        )
    value = {name.removeprefix("log_"): jnp.exp(value) for name, value in draw.items()}
    return Parameters(
        *(value[name] for name in ("alpha", "beta", "delta", "gamma")),
        initial=jnp.stack([value["prey0"], value["predator0"]]),
        noise=jnp.stack([value["sigma_prey"], value["sigma_predator"]]),
    )


def _check_priors(where: str, priors: object) -> None:
    if priors not in PRIORS:
        raise ValueError(
            f"lotka_volterra.{where}: expected `priors` to be one of {sorted(PRIORS)}, got "
            f"{priors!r}. Choose a prior set, as in --option priors=stan."
        )
