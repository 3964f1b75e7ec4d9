"""Write tests/data/arviz_0_23.nc, an InferenceData of ArviZ 0.x, which no environment of ours can
install.

uv venv old && uv pip install --python old 'arviz<1' numpyro netcdf4
PYTHONPATH=tests old/bin/python tests/data/make_arviz_0.py
"""

import arviz
import jax
from interop_cases import DATA, Y, model
from numpyro.infer import MCMC, NUTS

jax.config.update("jax_enable_x64", True)

mcmc = MCMC(
    NUTS(model),
    num_warmup=300,
    num_samples=100,
    num_chains=4,
    chain_method="vectorized",
    progress_bar=False,
)
mcmc.run(jax.random.key(0), Y, extra_fields=("potential_energy", "diverging"))
old = arviz.from_numpyro(
    mcmc, log_likelihood=False, dims={"weights": ["part"]}, coords={"part": ["a", "b", "c"]}
)
old.to_netcdf(str(DATA / "arviz_0_23.nc"), engine="netcdf4")
