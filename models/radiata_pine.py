"""Radiata pine: two rival simple regressions whose evidence is known by one-dimensional quadrature.

Compressive strength y of 42 specimens on density x (model 1) or density adjusted for resin z (model
2), each centred: y ~ N(α + β(x − x̄), σ²), α ~ N(3000, 10⁶), β ~ N(185, 10⁴), σ² ~ InvGamma(3,
2·300²). Williams (1959); priors and the published Bayes factor 4862 of Friel and Pettitt (2008,
doi:10.1111/j.1467-9868.2007.00650.x).

ln Z = −309.924327665 (x) and −301.435101851 (z): Bayes factor 4862.10 for z.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Float

# fmt: off
STRENGTH = np.array([
    3040.0, 2470.0, 3610.0, 3480.0, 3810.0, 2330.0, 1800.0, 3110.0, 3160.0, 2310.0, 4360.0, 1880.0,
    3670.0, 1740.0, 2250.0, 2650.0, 4970.0, 2620.0, 2900.0, 1670.0, 2540.0, 3840.0, 3800.0, 4600.0,
    1900.0, 2530.0, 2920.0, 4990.0, 1670.0, 3310.0, 3450.0, 3600.0, 2850.0, 1590.0, 3770.0, 3850.0,
    2480.0, 3570.0, 2620.0, 1890.0, 3030.0, 3030.0,
])
DENSITY = np.array([
    29.2, 24.7, 32.3, 31.3, 31.5, 24.5, 19.9, 27.3, 27.1, 24.0, 33.8, 21.5, 32.2, 22.5, 27.5, 25.6,
    34.5, 26.2, 26.7, 21.1, 24.1, 30.7, 32.7, 32.6, 22.1, 25.3, 30.8, 38.9, 22.1, 29.2, 30.1, 31.4,
    26.7, 22.1, 30.3, 32.0, 23.2, 30.3, 29.9, 20.8, 33.2, 28.2,
])
ADJUSTED = np.array([
    25.4, 22.2, 32.2, 31.0, 30.9, 23.9, 19.2, 27.2, 26.3, 23.9, 33.2, 21.0, 29.0, 22.0, 23.8, 25.3,
    34.2, 25.7, 26.4, 20.0, 23.9, 30.7, 32.6, 32.5, 20.8, 23.1, 29.8, 38.1, 21.3, 28.5, 29.2, 31.4,
    25.9, 21.4, 29.8, 30.6, 22.6, 30.3, 23.8, 18.4, 29.4, 28.2,
])
# fmt: on
PREDICTORS = {"x": DENSITY, "z": ADJUSTED}


def model(strength: Float[np.ndarray, " n"], predictor: Float[np.ndarray, " n"]) -> None:
    """Declare a regression on a predictor, which is centred here."""
    alpha = numpyro.sample("alpha", dist.Normal(3000.0, 1000.0))
    beta = numpyro.sample("beta", dist.Normal(185.0, 100.0))
    variance = numpyro.sample("variance", dist.InverseGamma(3.0, 2 * 300.0**2))
    line = alpha + beta * jnp.asarray(predictor - predictor.mean())
    numpyro.sample("strength", dist.Normal(line, jnp.sqrt(variance)), obs=jnp.asarray(strength))


def data(predictor: str = "x") -> dict[str, object]:
    """Return the arguments of `model` for the predictor ``"x"`` (density) or ``"z"`` (adjusted
    density)."""
    if predictor not in PREDICTORS:
        raise ValueError(
            f"radiata_pine.data: expected `predictor` to be one of {sorted(PREDICTORS)}, got "
            f"{predictor!r}. Choose one, as in --option predictor=z."
        )
    return {"strength": STRENGTH, "predictor": PREDICTORS[predictor]}


def init() -> dict[str, np.ndarray]:
    """Return constrained values near both posterior modes."""
    return {"alpha": np.array(2992.0), "beta": np.array(184.0), "variance": np.array(9.0e4)}
