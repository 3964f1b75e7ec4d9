"""Traces from samplers and files as ArviZ trees, and the checks and integrands of such trees."""

from mcmcpost.io.arrays import from_arrays
from mcmcpost.io.attach import Target, attach_scores, read_density, read_target
from mcmcpost.io.convention import read_stored_trace, read_trace, read_weights
from mcmcpost.io.diagnostics import (
    Convergence,
    ConvergenceWarning,
    RowDensity,
    Scored,
    check_agreement,
    check_convergence,
    check_slopes,
    check_tree,
    gate,
    recorded_log_density,
    sampling_seconds,
    warn_of_convergence,
)
from mcmcpost.io.files import load_tree, save_tree
from mcmcpost.io.integrands import Integrands, PosteriorVariables, integrand_values, named_values, posterior_variables
from mcmcpost.io.ladder_traces import ladder_from_traces
from mcmcpost.io.ladder_trees import is_ladder, ladder_to_datatree, last_rung, posterior_rung, read_ladder
from mcmcpost.io.power_posteriors import (
    adaptive_ladder,
    add_rungs,
    barrier_ladder,
    sample_power_posteriors,
    tempered_target,
)
from mcmcpost.io.samplers.blackjax import from_blackjax
from mcmcpost.io.samplers.numpyro import from_numpyro
from mcmcpost.io.samplers.stan import from_cmdstan
from mcmcpost.io.weighted import from_dynesty, resample

__all__ = [
    "Convergence",
    "ConvergenceWarning",
    "Integrands",
    "PosteriorVariables",
    "RowDensity",
    "Scored",
    "Target",
    "adaptive_ladder",
    "add_rungs",
    "attach_scores",
    "barrier_ladder",
    "check_agreement",
    "check_convergence",
    "check_slopes",
    "check_tree",
    "from_arrays",
    "from_blackjax",
    "from_cmdstan",
    "from_dynesty",
    "from_numpyro",
    "gate",
    "integrand_values",
    "is_ladder",
    "ladder_from_traces",
    "ladder_to_datatree",
    "last_rung",
    "load_tree",
    "named_values",
    "posterior_rung",
    "posterior_variables",
    "read_density",
    "read_ladder",
    "read_stored_trace",
    "read_target",
    "read_trace",
    "read_weights",
    "recorded_log_density",
    "resample",
    "sample_power_posteriors",
    "sampling_seconds",
    "save_tree",
    "tempered_target",
    "warn_of_convergence",
]
