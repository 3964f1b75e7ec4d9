"""Traces from samplers and files as ArviZ trees, and the checks and integrands of such trees."""

from mcmcpost.trees.attach import Target, attach_scores, read_density, read_target
from mcmcpost.trees.convention import draws_and_scores, read_trace, read_weights
from mcmcpost.trees.diagnostics import (
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
    score_diagnostics,
    warn_of_convergence,
)
from mcmcpost.trees.files import load_tree, save_tree
from mcmcpost.trees.integrands import (
    Integrands,
    PosteriorVariables,
    integrand_values,
    named_values,
    posterior_variables,
)
from mcmcpost.trees.ladder_trees import (
    is_evidence_alone,
    is_ladder,
    ladder_to_datatree,
    last_rung,
    posterior_rung,
    read_ladder,
)
from mcmcpost.trees.plain_arrays import from_arrays
from mcmcpost.trees.samplers import from_blackjax, from_numpyro
from mcmcpost.trees.stan import from_cmdstan
from mcmcpost.trees.weighted import from_dynesty, resample

__all__ = [
    "Convergence",
    "ConvergenceWarning",
    "Integrands",
    "PosteriorVariables",
    "RowDensity",
    "Scored",
    "Target",
    "attach_scores",
    "check_agreement",
    "check_convergence",
    "check_slopes",
    "check_tree",
    "draws_and_scores",
    "from_arrays",
    "from_blackjax",
    "from_cmdstan",
    "from_dynesty",
    "from_numpyro",
    "gate",
    "integrand_values",
    "is_evidence_alone",
    "is_ladder",
    "ladder_to_datatree",
    "last_rung",
    "load_tree",
    "named_values",
    "posterior_rung",
    "posterior_variables",
    "read_density",
    "read_ladder",
    "read_target",
    "read_trace",
    "read_weights",
    "recorded_log_density",
    "resample",
    "sampling_seconds",
    "save_tree",
    "score_diagnostics",
    "warn_of_convergence",
]
