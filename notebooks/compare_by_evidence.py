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
# # Two models by their evidence
#
# Which model do the data prefer, and how accurate is the number that says so? The evidence p(y) = ∫
# p(y|x) p(x) dx answers the first question. With the power posteriors p(y|x)ᵗ p(x) between prior (t
# = 0) and posterior (t = 1) it is log p(y) = ∫₀¹ E_t[log p(y|x)] dt. mcmcpost samples all
# temperatures in one program, estimates every mean with control variates, and pools all draws, so
# that the ladder adds no discretisation error.

# %%
import sys

import jax
import matplotlib.pyplot as plt
import numpy as np

import mcmcpost as mp

sys.path.append("..")  # the models lie beside this folder
from models import radiata_pine, van_der_pol

jax.config.update("jax_enable_x64", True)

# %% [markdown]
# ## One ODE, exactly known
#
# The van der Pol oscillator has one parameter, so that quadrature gives its log evidence,
# 10.35590262. The ladder of the paper has 31 rungs; here 40 draws of each chain and rung are
# enough.

# %%
ladder = mp.sample_power_posteriors(
    van_der_pol.model,
    kwargs=van_der_pol.data(),
    temperatures=mp.power_ladder(31, 5),
    key=jax.random.key(1),
    num_warmup=100,
    num_samples=40,
    num_chains=2,
    init=van_der_pol.init(),
)
evidence = mp.log_evidence(ladder)
evidence.to_dataframe()

# %%
print(
    f"error {evidence.value - 10.35590262:+.6f}, reported {evidence.mcse:.6f} and "
    f"{evidence.discretisation_error:.1g}"
)
mp.plot_evidence_path(evidence)
plt.show()

# %% [markdown]
# Every row of the table was computed from the same draws. `pooled` lets each draw serve every
# temperature by the multistate Bennett weights and integrates a continuous path; `corrected`,
# `trapezoid` and `simpson` use the means at the rungs only, and report the error of their
# quadrature; `stepping stone` and `MBAR` use no gradients. They agree within their errors, which
# differ by orders of magnitude. If they did not, `log_evidence` would warn.
#
# ## Two regressions
#
# Radiata pine: is the strength of a piece of wood explained by its density, or by its density
# adjusted for resin? The known Bayes factor is 4862.10 for the adjusted density.

# %%
evidences, ladders = {}, {}
for name in ("x", "z"):
    ladders[name] = mp.sample_power_posteriors(
        radiata_pine.model,
        kwargs=radiata_pine.data(name),
        temperatures=mp.power_ladder(16, 5),
        key=jax.random.key(2),
        num_warmup=300,
        num_samples=250,
        num_chains=4,
        init=radiata_pine.init(),
    )
    evidences[name] = mp.log_evidence(ladders[name])
comparison = mp.compare_evidence(evidences)
comparison.to_dataframe()

# %%
factor = np.exp(comparison.log_bayes_factor[1, 0])
error = factor * comparison.log_bayes_factor_error[1, 0]
print(f"Bayes factor {factor:.2f} ± {error:.2f}, known 4862.10")

# %% [markdown]
# ## A second opinion
#
# Bridge sampling needs only the posterior draws, which are those of the last rung, and evaluates
# the model again. It has nothing else in common with the estimates from the path.

# %%
for name in ("x", "z"):
    posterior = ladders[name].sel(temperature=1.0)
    bridge = mp.bridge_evidence(
        posterior, radiata_pine.model, key=jax.random.key(3), **radiata_pine.data(name)
    )
    print(
        f"{name}: bridge {bridge.value:.4f} ± {bridge.mcse:.4f}, path {evidences[name].value:.4f}"
    )
