"""The names that README's snippets take as given; `.ci/run` runs the snippets after this."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

import mcmcpost as mp

jax.config.update("jax_enable_x64", True)
key = jax.random.key(0)
rng = np.random.default_rng(0)

# Two fidelities of one simulator: each has twenty draws of a standard normal.
trace_high, trace_low = (mp.from_arrays(draws, -draws) for draws in rng.normal(size=(2, 1, 20, 2)))


def model(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(slope * x, scale), obs=y)


x = np.linspace(-1.0, 1.0, 30)
data = {"x": x, "y": x + 0.3 * rng.normal(size=30)}
nuts = MCMC(
    NUTS(model),
    num_warmup=500,
    num_samples=500,
    num_chains=4,
    chain_method="vectorized",
    progress_bar=False,
)
nuts.run(key, **data, extra_fields=("z_grad",))
trace = mp.from_numpyro(nuts)
rival = mp.log_evidence(
    mp.sample_power_posteriors(
        model, kwargs=data | {"x": x**2}, temperatures=mp.power_ladder(16, 5), key=key
    )
)

X = rng.normal(size=(400, 2))
X_new = rng.normal(size=(5, 2))
y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=400)
gradients = np.column_stack([np.cos(X[:, 0]), np.zeros(400)])
