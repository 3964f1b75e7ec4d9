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
# # A costly posterior, cheaper
#
# A gradient of the hare–lynx posterior costs an ODE solve and its adjoint. `SurrogateHMC` asks for true gradients while
# it warms up, fits an energy to them, freezes it, and from then on follows the *surrogate's* gradient. Every proposal
# is accepted or refused with the true energy, so the draws are those of the posterior whatever the surrogate is worth.
# Control variates then take the draws further. This notebook counts gradients; where the surrogate is no help it says
# so.

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
    """Return the true gradients and energies of all chains, and the held-out gradient error of the surrogate."""
    fields = mcmc.get_extra_fields(group_by_chain=True)
    gradients, energies = (int(fields[f"num_true_{of}"][:, -1].sum()) for of in ("gradients", "energies"))
    return {
        "surrogate used": bool(fields["surrogate_used"][0, -1]),
        "gradient error": round(float(fields["gradient_error"][0, -1]), 4),
        "true gradients": gradients,
        "true energies": energies,
    }


# %% [markdown]
# ## Hares and lynxes
# Eight parameters, correlated up to 0.94. Warm-up is 150 trajectories of 1 to 16 steps in each of four chains.

# %%
kernel = mp.SurrogateHMC(
    lotka_volterra.model, dense_mass=True, init_strategy=init_to_value(values=lotka_volterra.init())
)
hares = sample(kernel, 150, 300, **lotka_volterra.data())
bill(hares)

# %% [markdown]
# Five thousand of these gradients are the warm-up's; three hundred draws of each chain added some fourteen hundred,
# nine tenths of all trajectories having used none. For 4 × 1,000 draws the surrogate spends 8,900, warm-up included,
# and NUTS 56,400 (`benchmarks/RESULTS.md`, with effective sizes). The gradient is off by four per cent on trajectories
# that were held out.
#
# The surrogate's gradient is never passed off as a score. True scores are computed now, one a draw, and counted.

# %%
tree = mp.from_numpyro(hares)
found = mp.expectation(tree, method="zv2")
print("gradients for scores:", tree["sample_stats"].attrs["score_evaluations"])
found.to_dataframe()

# %% [markdown]
# A gain of g is worth g times the draws, on top of what the surrogate saved: both together are the product.
#
# ## A banana in a hundred dimensions
# One direction is bent, ninety-eight are Gaussian. The quadratic takes the latter, the process the former.


# %%
def banana(x):
    return 0.5 * (x[0] ** 2 + (2 * x[0] ** 2 - 2 * x[1] + 2) ** 2 + 2 * jnp.sum(x[2:] ** 2))


start = jax.random.normal(jax.random.key(0), (4, 100))
bent = sample(mp.SurrogateHMC(potential_fn=banana), 150, 1500, start)
beyond = np.abs(np.asarray(bent.get_samples(group_by_chain=True))[..., 0]) > 2
error = float(array_stats.mcse(beyond.astype(float), chain_axis=0, draw_axis=1))
print(f"P(|x₁| > 2) = {beyond.mean():.3f} ± {error:.3f}; the truth is .0455")
bill(bent)

# %% [markdown]
# The tail is where a surrogate is wrong: it saw few points there. One trajectory in ten therefore uses true gradients;
# without them chains seldom enter the tail, and once there do not leave.
#
# ## Ten bananas
# Twenty dimensions, all of them bent. Eight directions cannot carry that; the held-out error says so, the surrogate is
# declined, and sampling goes on as NUTS. Nothing is wrong with the draws: they cost what NUTS costs, plus the warm-up.


# %%
def ten_bananas(x):
    return sum(banana(pair) for pair in x.reshape(10, 2))


many = sample(mp.SurrogateHMC(potential_fn=ten_bananas), 100, 50, start[:, :20])
bill(many)
