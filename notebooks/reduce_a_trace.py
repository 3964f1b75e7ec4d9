# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From a trace to smaller errors
#
# Eight schools, non-centred: a hierarchical model whose posterior is narrow near `tau` = 0, where
# the group scale `tau` mixes worst. We sample it with NUTS, keep the gradients, and compare plain
# with controlled means.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS

import mcmcpost as mp

jax.config.update("jax_enable_x64", True)

EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def model():
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    eta = numpyro.sample("eta", dist.Normal(0.0, 1.0).expand([8]).to_event(1))
    numpyro.sample("y", dist.Normal(mu + tau * eta, ERRORS), obs=EFFECTS)


kernel = NUTS(model, target_accept_prob=0.95)
mcmc = MCMC(
    kernel,
    num_warmup=500,
    num_samples=500,
    num_chains=4,
    chain_method="vectorized",
    progress_bar=False,
)
mcmc.run(jax.random.key(1), extra_fields=("z_grad", "diverging"))
trace = mp.from_numpyro(mcmc)

# %% [markdown]
# `mean` and `mcse` are ArviZ's; `mean_cv` and `mcse_cv` are controlled. The exact posterior means
# are E[mu] = 4.3968 and E[tau] = 3.5977 (quadrature).

# %%
estimate = mp.expectation(
    trace,
    {
        "mu": lambda d: d["mu"],
        "tau": lambda d: d["tau"],
        "theta1": lambda d: d["mu"] + d["tau"] * d["eta"][0],
    },
)
print(estimate.to_dataframe().to_string())
z = (estimate.mean - np.array([4.396820714, 3.597705484, 6.211884204])) / estimate.mcse
print("errors in units of their mcse:", z.round(2))
assert (np.abs(z) < 4.5).all()

# %% [markdown]
# The polynomial degrees and the kernel one by one. The gain is the factor of draws saved, from the
# whole error. Where a method is not better than the plain mean, the plain mean is returned.

# %%
for name in ("zv1", "zv2", "zv3", "secf"):
    other = mp.expectation(trace, ["mu", "tau"], name)
    print(f"{name:5s} gain {other.gain.round(1)}  status {[str(s) for s in other.status]}")

# %% [markdown]
# The estimate is the average of the residual series. Its standard deviation is that of f − g, not
# of the posterior.

# %%
figure, axes = plt.subplots(1, 2, figsize=(9, 3), sharey=True)
axes[0].plot(np.asarray(trace["posterior"]["mu"])[0], lw=0.5)
axes[0].set_title("mu, chain 0")
axes[1].plot(estimate.residuals[0, :, 0], lw=0.5)
axes[1].set_title("mu − control variate, chain 0")
figure.tight_layout()
