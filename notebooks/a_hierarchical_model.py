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
# # A hierarchical model: what gains, and what it is worth
#
# Intercepts and slopes that vary over 40 groups, correlated with each other, in PyMC and sampled by
# nutpie: 86 parameters. A full quadratic control variate has 3,827 features, more than 4,000 draws
# can determine. `auto` therefore takes sums over the dimension of the groups, which the labels of
# the trace tell.

# %%
import time
import warnings

import jax
import matplotlib.pyplot as plt
import numpy as np
import nutpie
import pymc as pm

import mcmcpost as mp

jax.config.update("jax_enable_x64", True)

GROUPS, EACH = 40, 8
rng = np.random.default_rng(1)
group = np.repeat(np.arange(GROUPS), EACH)
x = rng.normal(size=len(group))
effects = rng.multivariate_normal([1.0, 0.5], [[0.5, 0.1], [0.1, 0.1]], size=GROUPS)
y = effects[group, 0] + effects[group, 1] * x + 0.9 * rng.normal(size=len(group))

with pm.Model() as model:
    mu = pm.Normal("mu", 0, 5, shape=2)
    sds = pm.HalfNormal.dist(1.0, shape=2)
    lower, _, _ = pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=sds, compute_corr=True)
    z = pm.Normal("z", shape=(GROUPS, 2))
    sigma = pm.HalfNormal("sigma", 2.0)
    b = pm.Deterministic("b", mu + z @ lower.T)
    pm.Normal("y", b[group, 0] + b[group, 1] * x, sigma, observed=y)

# %% [markdown]
# nutpie keeps the scores when it is asked to. It records no time, so we do, in the attribute
# `sampling_time`: seconds, with warm-up.

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of the compiler's
    compiled = nutpie.compile_pymc_model(model)
    start = time.monotonic()
    trace = nutpie.sample(
        compiled,
        draws=1_000,
        tune=500,
        chains=4,
        cores=1,
        seed=1,
        store_gradient=True,
        store_unconstrained=True,
        progress_bar=False,
    )
trace.attrs["sampling_time"] = time.monotonic() - start
print(f"{trace['sample_stats'].sizes['unconstrained_parameter']} parameters")

# %% [markdown]
# What people ask for: the means, the standard deviations and their logarithms, the correlation
# matrix, the residual standard deviation, the effects of one group as the sampler has them (`z`)
# and as they are read (`b`), and whether its slope is above a half. A function sees one draw as a
# dict of arrays, with PyMC's deterministics in it.

# %%
quantities = {
    "mu": lambda d: d["mu"],
    "tau": lambda d: d["chol_stds"],
    "log tau": lambda d: jax.numpy.log(d["chol_stds"]),
    "chol_corr": lambda d: d["chol_corr"],
    "sigma": lambda d: d["sigma"],
    "z of group 7": lambda d: d["z"][7],
    "b of group 7": lambda d: d["b"][7],
    "P(slope of group 7 > 0.5)": lambda d: 1.0 * (d["b"][7, 1] > 0.5),
}
start = time.process_time()
estimate = mp.expectation(trace, quantities)
cost = time.process_time() - start
table = estimate.to_dataframe()[["mean", "sd", "mcse", "mean_cv", "mcse_cv", "gain", "method"]]
print(table.iloc[estimate.listed].to_string())
print("constant:", estimate.constants)
print("listed once:", estimate.duplicates)
assert estimate.constants == {"chol_corr[0, 0]": 1.0, "chol_corr[1, 1]": 1.0}
assert estimate.duplicates == {"chol_corr[1, 0]": "chol_corr[0, 1]"}

# %% [markdown]
# The diagonal of the correlation matrix has one value at every draw. It is listed as a constant,
# not as an estimate with an error, and each correlation is listed once.
#
# Means and effects gain much: given the standard deviations their posterior is normal, so that
# linear and some quadratic features reproduce them nearly. The standard deviation of the
# intercepts, of which the data tell most, gains as much. That of the slopes and the correlation
# gain less. An event gains as what it compares, here the slope of the group: what controls the mean
# of the slope controls every function of it.

# %%
gain = dict(zip(estimate.names, estimate.gain, strict=True))
assert min(gain["mu[0]"], gain["b of group 7[0]"], gain["b of group 7[1]"], gain["sigma"]) > 4
assert gain["P(slope of group 7 > 0.5)"] > 4

# %% [markdown]
# ## Is it worth it?
#
# A gain is a factor of draws, and so of the time that they take. The estimate says it in words, as
# do a report and `mcmcpost reduce`:

# %%
print(estimate.info["worth"])
print(f"This reduction took {cost:.1f} CPU seconds.")

# %% [markdown]
# Below, for each quantity, how long sampling would have to go on for the error that the reduction
# gives. Where a bar ends before the line, going on is cheaper, if that quantity is all that is
# asked for. This model takes seconds to sample. Of one that takes an hour the bars are hundreds of
# times as long, and the line stays where it is, because the cost of a reduction depends on the
# numbers of draws, parameters and quantities only.

# %%
seconds = trace.attrs["sampling_time"] * (estimate.gain[estimate.listed] - 1)
figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
axes.barh([estimate.names[j] for j in estimate.listed], seconds, color="0.7")
axes.axvline(cost, color="k", lw=1, label="the reduction, all quantities together")
axes.set_xscale("log")
axes.invert_yaxis()
axes.set_xlabel("seconds of further sampling for the same error")
axes.legend()
plt.show()

# %% [markdown]
# A linear control variate alone takes a fraction of the time. It gains on means and effects. `auto`
# adds the gains on standard deviations and on the correlation, and larger ones on the rest.

# %%
start = time.process_time()
linear = mp.expectation(trace, quantities, "zv1")
print(f"zv1: {time.process_time() - start:.1f} CPU seconds")
for j in estimate.listed:
    print(
        f"{estimate.names[j]:28s} gain {linear.gain[j]:8.1f} with zv1, "
        f"{estimate.gain[j]:8.1f} with auto"
    )
