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
# # What a limited budget costs
#
# A control functional is one linear system with the Stein kernel matrix of the draws. With many draws the system cannot
# be solved to the end. What does an unfinished solve cost, and does the error say so? The trace is the hare–lynx
# posterior: eight parameters, a differential equation in every likelihood.

# %%
import sys
import time

import jax
import matplotlib.pyplot as plt
import numpy as np
from numpyro.infer import MCMC, NUTS, init_to_value

import mcmcpost as mp
from mcmcpost.kernels import SquaredExponential

sys.path.append("..")  # the models lie beside this folder
from models import lotka_volterra

jax.config.update("jax_enable_x64", True)

# %%
mcmc = MCMC(
    NUTS(lotka_volterra.model, dense_mass=True, init_strategy=init_to_value(values=lotka_volterra.init())),
    num_warmup=500,
    num_samples=500,
    num_chains=4,
    chain_method="vectorized",
    progress_bar=False,
)
mcmc.run(jax.random.key(0), extra_fields=("z_grad",), **lotka_volterra.data())
trace = mp.from_numpyro(mcmc)

# %% [markdown]
# Two thousand draws still allow a dense factorisation, so that the exact answer of the same kernel is known. Conjugate
# gradients are then stopped after 1, 2, 4, … products with the kernel matrix. The rule they return always integrates a
# constant exactly, and its variance under the kernel's own model, wᵀAw, counts what the unfinished solve does not know:
# it can only fall as the budget grows.

# %%
kernel, nugget = SquaredExponential(6.0), 1e-4
name = "log_alpha"
draws = trace["posterior"][name].values
exact = mp.stein_weights(trace, method=mp.ControlFunctional(kernel, nugget))
budgets = (1, 2, 4, 8, 16, 32, 64)
rows = []
for budget in budgets:
    solver = mp.ConjugateGradients(rtol=1e-10, rank=50)
    start = time.perf_counter()
    weights = mp.stein_weights(trace, method=mp.ControlFunctional(kernel, nugget, solver=solver, budget=budget))
    rows.append((weights.mean(draws), weights.model_error(draws), weights.variance_factor, time.perf_counter() - start))
mean, error, factor, seconds = map(np.array, zip(*rows, strict=True))
for budget, *row in zip(budgets, mean - exact.mean(draws), error, factor / exact.variance_factor, strict=True):
    print(
        "{:3d} products: off the exact rule by {:+.1e}, reported error {:.1e}, variance {:.2f} times".format(
            budget, *row
        )
    )

# %%
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.errorbar(
    budgets, mean - exact.mean(draws), 2 * error, marker="o", ls="", label="rule after k products, ± 2 errors"
)
axes.axhline(0, color="0.5", lw=1, label="the finished solve")
plain = draws.std() / np.sqrt(draws.size)
axes.axhspan(-2 * plain, 2 * plain, color="0.9", label="plain mean, ± 2 errors of as many independent draws")
axes.set_xscale("log", base=2)
axes.set_xlabel("products with the kernel matrix")
axes.set_ylabel(f"mean of {name}, less the exact rule's")
axes.legend()
plt.show()

# %% [markdown]
# A plain mean of as many independent draws has an error of a few thousandths; two products already leave a tenth of it,
# and thirty-two a hundredth. The variance says how much is still to be had: after thirty-two products twice that of the
# finished solve. Without other instructions weights stop once a product lowers it by less than a thousandth.
#
# The first point is outside its two errors. The model's error counts what the unfinished solve does not know, under the
# kernel's own model, and this kernel alone is no perfect model of `log_alpha`. The error to publish is the
# cross-fitted one of `mp.expectation`.
