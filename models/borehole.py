"""Water flow through a borehole, at two fidelities, under independent normal inputs: a model
without data.

The inputs are x = (r_w, r, T_u, T_l, H_u, H_l, L, K_w): radii of the borehole and of its influence,
transmissivity and head of the upper and of the lower aquifer, length and hydraulic conductivity.
Both flows and the priors are those of Sun, Barp and Briol (ICML 2023, appendix E.4 and Table 4). In
that table the second argument of every normal is its variance; for r_w it is a squared standard
deviation, written out.

Truths, by Gauss–Hermite quadrature (tests/problems/test_borehole.py): E f_H = 72.878604 and E f_L =
57.994853. The paper's "true value" 72.8904, the mean of half a million draws, is off by 0.0118 and
should not be used.

The inputs are unconstrained, so the score of the program is (mean − x)/variance. f_L/f_H is 0.79577
throughout, with standard deviation 4e-7, because the constants 1 and 1.5 vanish beside terms of
3e5. The normal prior of r_w is negative with probability 3.2e-10. There log(r/r_w) is not defined,
both flows are NaN, and estimates from such a draw are ``undefined``. At zero the flows take their
limit, 0.
"""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float

INPUTS = ("r_w", "r", "T_u", "T_l", "H_u", "H_l", "L", "K_w")
MEAN = np.array([0.1, 100.0, 89335.0, 89.55, 1050.0, 760.0, 1400.0, 10950.0])
VARIANCE = np.array([0.0161812**2, 0.01, 20.0, 1.0, 1.0, 1.0, 10.0, 30.0])
SD = np.sqrt(VARIANCE)
"""The prior's moments in the order of `INPUTS`, for ``standardize=(MEAN, SD)``."""

TRUE_FLOW_HIGH = 72.8786041938
TRUE_FLOW_LOW = 57.9948530303


class Sample(NamedTuple):
    """Independent draws of the inputs and their scores, both (n, 8)."""

    draws: Float[np.ndarray, "n 8"]
    scores: Float[np.ndarray, "n 8"]


def sample(rng: np.random.Generator, n: int) -> Sample:
    """Return `n` independent draws of the inputs with their scores, (mean − x)/variance."""
    draws = MEAN + SD * rng.standard_normal((n, len(INPUTS)))
    return Sample(draws, (MEAN - draws) / VARIANCE)


def flow_high(x: Float[Array, "... 8"]) -> Float[Array, "..."]:
    """Return f_H = 2π T_u (H_u − H_l) / {log(r/r_w) (1 + 2 L T_u / (log(r/r_w) r_w² K_w) +
    T_u/T_l)}."""
    return _flow(x, 2 * np.pi, 1.0)


def flow_low(x: Float[Array, "... 8"]) -> Float[Array, "..."]:
    """Return f_L, which is f_H with 5 for 2π and 1.5 for the leading 1."""
    return _flow(x, 5.0, 1.5)


def _flow(x: Float[Array, "... 8"], factor: float, constant: float) -> Float[Array, "..."]:
    r_w, r, t_u, t_l, h_u, h_l, length, k_w = jnp.moveaxis(jnp.asarray(x), -1, 0)
    log = jnp.log(r / r_w)
    return (
        factor
        * t_u
        * (h_u - h_l)
        / (log * (constant + t_u / t_l) + 2 * length * t_u / (r_w**2 * k_w))
    )


def model() -> None:
    """Declare the eight inputs."""
    for name, mean, sd in zip(INPUTS, MEAN, SD, strict=True):
        numpyro.sample(name, dist.Normal(mean, sd))


def data() -> dict[str, object]:
    """Return the arguments of `model`: none."""
    return {}


def init() -> dict[str, np.ndarray]:
    """Return the prior means: NumPyro's own start, within 2 of zero, is 20,000 standard deviations
    away."""
    return dict(zip(INPUTS, MEAN, strict=True))


def quantities(draw: Mapping[str, Array]) -> dict[str, Array]:
    """Return both flows at one draw of the inputs."""
    x = jnp.stack([jnp.asarray(draw[name]) for name in INPUTS])
    return {"flow_high": flow_high(x), "flow_low": flow_low(x)}
