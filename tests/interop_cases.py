"""A small posterior that other packages have sampled too, and where the files are that they wrote."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

DATA = Path(__file__).parent / "data"
Y = np.array([0.1, 0.5, -0.3, 1.2])


def model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    scale = numpyro.sample("b_scale", dist.HalfNormal(1.0))
    numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    numpyro.sample("y", dist.Normal(mu, scale), obs=y)
