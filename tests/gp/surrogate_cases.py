"""Targets of the surrogate tests, with iid draws, and a frozen kernel started from them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import MCMC

from mcmcpost.gp import SurrogateHMC
from mcmcpost.gp.gradient_operator import ScalarProfile
from mcmcpost.stein import SquaredExponential

NUM_TRANSITIONS = 8


class IID(NamedTuple):
    """A potential, its iid draws and the expectations to monitor: name ↦ (function of draws (n, d),
    value)."""

    potential: object
    draws: object
    expectations: dict


def banana_potential(x):
    """Equation 30 of the paper: x₁ ~ N(0, 1), 2x₁² − 2x₂ + 2 ~ N(0, 1), the others N(0, ½)."""
    return 0.5 * (x[0] ** 2 + (2 * x[0] ** 2 - 2 * x[1] + 2) ** 2 + 2 * jnp.sum(x[2:] ** 2))


D = 10
"""Of the draws of all targets: one program serves them. The potentials take any number of
dimensions."""


def _banana_draws(rng, n):
    x = rng.standard_normal((n, D))
    x[:, 1] = x[:, 0] ** 2 + 1 - x[:, 1] / 2
    x[:, 2:] *= np.sqrt(0.5)
    return x


def banana():
    expectations = {
        "x1": (lambda x: x[:, 0], 0.0),
        "x1^2": (lambda x: x[:, 0] ** 2, 1.0),
        "|x1|>2": (lambda x: abs(x[:, 0]) > 2, 0.04550026),
        "x2": (lambda x: x[:, 1], 2.0),
        "bend^2": (lambda x: (2 * x[:, 0] ** 2 - 2 * x[:, 1] + 2) ** 2, 1.0),
        "rest^2": (lambda x: np.sum(x[:, 2:] ** 2, 1), (D - 2) / 2),
    }
    return IID(banana_potential, _banana_draws, expectations)


def gaussian():
    """Two correlated coordinates, the others standard normal."""
    precision = np.array([[2.0, 0.9], [0.9, 1.0]])
    covariance = np.linalg.inv(precision)
    root = np.linalg.cholesky(covariance)
    return IID(
        lambda x: 0.5 * (x[:2] @ jnp.asarray(precision) @ x[:2] + jnp.sum(x[2:] ** 2)),
        lambda rng, n: np.concatenate(
            [rng.standard_normal((n, 2)) @ root.T, rng.standard_normal((n, D - 2))], axis=1
        ),
        {
            "x1": (lambda x: x[:, 0], 0.0),
            "x1^2": (lambda x: x[:, 0] ** 2, covariance[0, 0]),
            "x1 x2": (lambda x: x[:, 0] * x[:, 1], covariance[0, 1]),
            "E": (lambda x: 0.5 * np.sum(x[:, :2] @ precision * x[:, :2], 1), 1.0),
            "rest^2": (lambda x: np.sum(x[:, 2:] ** 2, 1), D - 2.0),
        },
    )


TARGETS = {"gaussian": gaussian(), "banana": banana()}


def energy(which, x):
    """Return the potential of the target that `which` counts to."""
    return jax.lax.switch(which, [target.potential for target in TARGETS.values()], x)


def padded(fitted, number=20):
    """Return the same surrogate on `number` points and in all directions, so that all share
    programs.

    What is added has no weight.
    """
    q, d = fitted.projection.shape
    more, wider = number - len(fitted.points), min(d, 8) - q
    amplitude = jnp.asarray(fitted.profile.amplitude, fitted.points.dtype)
    return fitted._replace(
        projection=jnp.pad(fitted.projection, ((0, wider), (0, 0))),
        offset=jnp.pad(fitted.offset, (0, wider)),
        points=jnp.pad(fitted.points, ((0, more), (0, wider))),
        weights=jnp.pad(fitted.weights, ((0, more), (0, wider))),
        profile=ScalarProfile(SquaredExponential(1.0), amplitude),
    )


def frozen_state(kernel, fitted, draws, key, step_size):
    """Return the state of one chain per draw, sampling with the surrogate given."""
    with pytest.warns(UserWarning, match="warm-up"):
        state = kernel.init(jax.random.split(key, len(draws)), 0, jnp.asarray(draws))
    return state._replace(
        surrogate=fitted,
        surrogate_used=jnp.ones(len(draws), bool),
        gradient_error=jnp.zeros(len(draws)),
        adapt_state=state.adapt_state._replace(step_size=jnp.full(len(draws), step_size)),
    )


def z_scores(target, draws):
    """Return by how many standard errors each mean over independent draws misses its
    expectation."""
    found = {}
    for name, (function, truth) in target.expectations.items():
        values = np.asarray(function(np.asarray(draws)), float)
        found[name] = (values.mean() - truth) / (values.std(ddof=1) / np.sqrt(len(values)))
    return found


def run(
    kernel,
    key,
    *args,
    num_warmup=100,
    num_samples=50,
    num_chains=2,
    method="vectorized",
    init=None,
    **kwargs,
):
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=num_chains,
        chain_method=method,
        progress_bar=False,
    )
    mcmc.run(key, *args, init_params=init, **kwargs)
    return mcmc


def make(target, **settings):
    return SurrogateHMC(potential_fn=target.potential, **settings)
