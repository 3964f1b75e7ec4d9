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
# # Two fidelities of one simulator
#
# The borehole function gives the flow of water through a borehole from eight uncertain inputs. There is an accurate
# version and a crude one. Both are cheap here, so the exact means are known, 72.878604 and 57.994853, and we can see
# what a second fidelity buys when only twenty runs of each can be afforded.

# %%
import sys
import warnings

import jax
import matplotlib.pyplot as plt
import numpy as np

import mcmcpost as mp

sys.path.append("..")  # the models lie beside this folder
from models import borehole

jax.config.update("jax_enable_x64", True)
warnings.simplefilter("ignore", mp.ScoreWarning)  # twenty draws are too few to test the scores


def runs(seed, m, flow):
    """Draw m inputs from the prior, run the simulator, and return a trace with the scores of the prior."""
    draws, scores = borehole.sample(np.random.default_rng(seed), m)
    return mp.from_arrays(draws[None], scores[None], values=np.asarray(flow(draws))[None, :, None])


high, low = runs(1, 20, borehole.flow_high), runs(2, 20, borehole.flow_low)
known = (borehole.MEAN, borehole.SD)  # the prior's moments: twenty draws estimate them poorly

# %% [markdown]
# ## Alone, and together
#
# The plain mean of twenty runs is off by several units. A control variate on those twenty alone helps; fitted
# together with the crude version, whose runs are *other* draws, it is better by orders of magnitude.

# %%
alone = mp.joint_expectation({"high": (high, None)}, standardize=known)
joint = mp.joint_expectation({"high": (high, None), "low": (low, None)}, standardize=known)
for label, found in (("alone", alone["high"]), ("joint", joint["high"])):
    print(f"{label}: {found.mean[0]:.5f} ± {found.mcse[0]:.5f}  error {found.mean[0] - borehole.TRUE_FLOW_HIGH:+.5f}")
print(f"plain: {joint['high'].mean_plain[0]:.3f} ± {joint['high'].mcse_plain[0]:.3f}")

# %% [markdown]
# ## The learnt relation
#
# Nobody told the fit that the crude flow is 0.7958 of the accurate one, to six digits. It finds a correlation of one.

# %%
print(np.round(joint.task_correlation, 6))
print(joint.to_datatree()["control_variates"])

# %% [markdown]
# ## Are the errors honest?
#
# Fifteen replications with other draws: the reported error against the one that was made. Points below the line were
# better than reported. The report is cautious: with twenty draws, residuals cannot show all of the gain.

# %%
made, said = [], []
for seed in range(15):
    first, second = runs(100 + seed, 20, borehole.flow_high), runs(200 + seed, 20, borehole.flow_low)
    tasks = {"high": (first, None), "low": (second, None)}
    found = mp.joint_expectation(tasks, standardize=known)["high"]
    made.append(abs(found.mean[0] - borehole.TRUE_FLOW_HIGH))
    said.append(found.mcse[0])
print(f"mean absolute error {np.mean(made):.5f}, mean z² {np.mean((np.array(made) / said) ** 2):.2f}")

figure, axes = plt.subplots(figsize=(4, 4))
axes.loglog(said, made, "o")
axes.loglog([1e-5, 1e-1], [1e-5, 1e-1], color="grey")
axes.set(xlabel="reported mcse", ylabel="error made")
plt.show()

# %% [markdown]
# ## When there is nothing to share
#
# An unrelated second task does no harm: each task is compared with its own fit, and the label says which was kept.

# %%
unrelated = runs(3, 20, lambda x: np.sin(3 * (x[:, 4] - 1050) + (x[:, 5] - 760)))
guarded = mp.joint_expectation({"high": (high, None), "other": (unrelated, None)}, standardize=known)
for name, found in guarded.items():
    print(name, found.method[0], found.status[0], f"{found.mean[0]:.5f} ± {found.mcse[0]:.5f}")
