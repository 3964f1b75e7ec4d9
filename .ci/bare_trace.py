"""Save what a NumPyro user of ArviZ has, a trace without scores, as ./bare.nc: README's `report
--model` reads it."""

import runpy
import sys

import jax
from numpyro.infer import MCMC, NUTS, init_to_value

jax.config.update("jax_enable_x64", True)
pine = runpy.run_path(sys.argv[1])
kernel = NUTS(pine["model"], init_strategy=init_to_value(values=pine["init"]()))
mcmc = MCMC(
    kernel,
    num_warmup=500,
    num_samples=1000,
    num_chains=4,
    chain_method="vectorized",
    progress_bar=False,
)
mcmc.run(jax.random.key(0), **pine["data"]())

import arviz  # noqa: E402  its converter fails where ArviZ, which loads NumPyro lazily, was imported first

arviz.from_numpyro(mcmc).to_netcdf("bare.nc")
