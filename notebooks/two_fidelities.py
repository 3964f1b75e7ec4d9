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
# The borehole function gives the flow of water through a borehole from eight uncertain inputs.
# There is an accurate version and a crude one. Both are cheap here, so that the exact means are
# known, 72.878604 and 57.994853, and we can measure the effect of a second fidelity with 20 runs of
# each.

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
    """Draw m inputs from the prior, run the simulator, and return a trace with the scores of the
    prior."""
    draws, scores = borehole.sample(np.random.default_rng(seed), m)
    return mp.from_arrays(draws[None], scores[None], values=np.asarray(flow(draws))[None, :, None])


high, low = runs(1, 20, borehole.flow_high), runs(2, 20, borehole.flow_low)
known = (borehole.MEAN, borehole.SD)  # the prior's moments: twenty draws estimate them poorly

# %% [markdown]
# ## One fidelity, and both together
#
# The plain mean of 20 runs has an error of several units. A control variate of these runs alone
# helps. Fitted together with the crude version, whose runs are *other* draws, its error is smaller
# by orders of magnitude.

# %%
alone = mp.joint_expectation({"high": (high, None)}, standardize=known)
joint = mp.joint_expectation({"high": (high, None), "low": (low, None)}, standardize=known)
for label, found in (("alone", alone["high"]), ("joint", joint["high"])):
    print(
        f"{label}: {found.mean[0]:.5f} ± {found.mcse[0]:.5f}  error "
        f"{found.mean[0] - borehole.TRUE_FLOW_HIGH:+.5f}"
    )
print(f"plain: {joint['high'].mean_plain[0]:.3f} ± {joint['high'].mcse_plain[0]:.3f}")

# %% [markdown]
# ## The learnt relation
#
# The crude flow is 0.7958 times the accurate one, to six digits. The fit does not use this, and
# finds a correlation of one.

# %%
print(np.round(joint.task_correlation, 6))
print(joint.to_datatree()["control_variates"])

# %% [markdown]
# ## Reported and actual errors
#
# The reported error against the actual one in 15 replications with other draws. Below the line the
# actual error is the smaller one. The reported errors are conservative: with 20 draws the residuals
# cannot show all of the gain.

# %%
actual, reported = [], []
for seed in range(15):
    first, second = (
        runs(100 + seed, 20, borehole.flow_high),
        runs(200 + seed, 20, borehole.flow_low),
    )
    tasks = {"high": (first, None), "low": (second, None)}
    found = mp.joint_expectation(tasks, standardize=known)["high"]
    actual.append(abs(found.mean[0] - borehole.TRUE_FLOW_HIGH))
    reported.append(found.mcse[0])
print(
    f"mean absolute error {np.mean(actual):.5f}, mean z² "
    f"{np.mean((np.array(actual) / reported) ** 2):.2f}"
)

figure, axes = plt.subplots(figsize=(4, 4))
axes.loglog(reported, actual, "o")
axes.loglog([1e-5, 1e-1], [1e-5, 1e-1], color="grey")
axes.set(xlabel="reported mcse", ylabel="actual error")
plt.show()

# %% [markdown]
# ## Unrelated tasks
#
# An unrelated second task does no harm: the joint fit of each task is compared with a fit of its
# own, and the method names the one that was kept.

# %%
unrelated = runs(3, 20, lambda x: np.sin(3 * (x[:, 4] - 1050) + (x[:, 5] - 760)))
guarded = mp.joint_expectation(
    {"high": (high, None), "other": (unrelated, None)}, standardize=known
)
for name, found in guarded.items():
    print(name, found.method[0], found.status[0], f"{found.mean[0]:.5f} ± {found.mcse[0]:.5f}")
