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
# # Sampling an expensive posterior with fewer gradients
#
# A gradient of the hare–lynx posterior costs an ODE solve and its adjoint. `SurrogateHMC` evaluates
# true gradients during warm-up, fits a surrogate of the energy to them, and then simulates
# trajectories with the gradient of the fixed surrogate. Every proposal is accepted or rejected with
# the true energy, so that the draws are those of the posterior even if the surrogate is poor.
# Control variates then reduce the errors further. This notebook counts gradients, and shows a case
# in which the surrogate does not help.

# %%
import sys

import jax
import jax.numpy as jnp
import numpy as np
from arviz_stats.base import array_stats
from numpyro.infer import MCMC, init_to_value

import mcmcpost as mp

sys.path.append("..")  # the models lie beside this folder
from models import lotka_volterra

jax.config.update("jax_enable_x64", True)


def sample(kernel, num_warmup, num_samples, init=None, **data):
    mcmc = MCMC(
        kernel,
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jax.random.key(1), init_params=init, **data)
    return mcmc


def bill(mcmc):
    """Return the true gradients and energies of all chains, and the held-out gradient error of the
    surrogate."""
    fields = mcmc.get_extra_fields(group_by_chain=True)
    counts = ("num_warmup_gradients", "num_true_gradients", "num_true_energies")
    warmup, gradients, energies = (int(fields[name][:, -1].sum()) for name in counts)
    return {
        "surrogate used": bool(fields["surrogate_used"][0, -1]),
        "gradient error": round(float(fields["gradient_error"][0, -1]), 4),
        "true gradients in warm-up": warmup,
        "true gradients since": gradients,
        "true energies since": energies,
    }


# %% [markdown]
# ## Hares and lynxes
# Eight parameters, correlated up to 0.94. Warm-up is 150 trajectories of 1 to 16 steps in each of
# four chains. The kernel counts what warm-up cost, and by itself what each draw has cost since the
# start of sampling.

# %%
kernel = mp.SurrogateHMC(
    lotka_volterra.model, dense_mass=True, init_strategy=init_to_value(values=lotka_volterra.init())
)
hares = sample(kernel, 150, 300, **lotka_volterra.data())
bill(hares)

# %% [markdown]
# Warm-up takes about 5,000 gradients, and 300 draws of each chain about 1,400, since nine tenths of
# the trajectories use none. For 4 × 1,000 draws the surrogate takes 8,900 gradients with warm-up,
# and NUTS 56,400 (the benchmarks have effective sample sizes too). On held-out trajectories the
# error of the gradient is 4 per cent.
#
# The gradient of the surrogate is not used as a score. True scores are computed now, one for each
# draw, and counted.

# %%
tree = mp.from_numpyro(hares)
found = mp.expectation(tree, method="zv2")
print("gradients for scores:", tree["sample_stats"].attrs["score_evaluations"])
found.to_dataframe()

# %% [markdown]
# A gain of g is worth g times as many draws, and multiplies what the surrogate saved.
#
# ## A banana in 100 dimensions
# One direction is curved and 98 are Gaussian. The quadratic part of the surrogate describes the
# Gaussian directions, and the Gaussian process the curved one.


# %%
def banana(x):
    return 0.5 * (x[0] ** 2 + (2 * x[0] ** 2 - 2 * x[1] + 2) ** 2 + 2 * jnp.sum(x[2:] ** 2))


start = jax.random.normal(jax.random.key(0), (4, 100))
curved = sample(mp.SurrogateHMC(potential_fn=banana), 150, 1500, start)
beyond = np.abs(np.asarray(curved.get_samples(group_by_chain=True))[..., 0]) > 2
error = float(array_stats.mcse(beyond.astype(float), chain_axis=0, draw_axis=1))
print(f"P(|x₁| > 2) = {beyond.mean():.3f} ± {error:.3f}; the truth is 0.0455")
bill(curved)

# %% [markdown]
# The surrogate is least accurate in the tail, where it has few training points. One trajectory in
# ten therefore uses true gradients. Without them chains seldom enter the tail, and rarely leave it.
#
# ## Ten bananas
# All 20 dimensions are curved here. The surrogate, which has eight directions, cannot describe this
# density: its held-out error is large, it is not used, and sampling continues as NUTS. The draws
# are correct, and cost as much as with NUTS plus the warm-up.


# %%
def ten_bananas(x):
    return sum(banana(pair) for pair in x.reshape(10, 2))


many = sample(mp.SurrogateHMC(potential_fn=ten_bananas), 100, 50, start[:, :20])
bill(many)
