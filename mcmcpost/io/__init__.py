"""Trees in, trees out: the only layer that knows xarray and ArviZ."""

from mcmcpost.io._arrays import (
    from_arrays,
)
from mcmcpost.io._attach import (
    attach_scores,
)
from mcmcpost.io._blackjax import (
    from_blackjax,
)
from mcmcpost.io._cmdstan import (
    from_cmdstan,
)
from mcmcpost.io._convention import (
    read_trace,
)
from mcmcpost.io._convergence import (
    check_convergence,
)
from mcmcpost.io._estimate import (
    estimate_to_datatree,
)
from mcmcpost.io._evidence import (
    comparison_to_dataframe,
    evidence_methods,
    evidence_path,
    evidence_rungs,
    evidence_to_datatree,
    evidence_to_json_dict,
)
from mcmcpost.io._files import (
    load_tree,
    save_tree,
)
from mcmcpost.io._gate import (
    check_tree,
    gate,
)
from mcmcpost.io._integrands import (
    Integrands,
    integrand_values,
)
from mcmcpost.io._joint import (
    joint_estimate_to_datatree,
)
from mcmcpost.io._ladder import (
    is_ladder,
    ladder_to_datatree,
    posterior_rung,
    read_ladder,
)
from mcmcpost.io._ladder_traces import (
    ladder_from_traces,
)
from mcmcpost.io._numpyro import (
    from_numpyro,
)
from mcmcpost.io._power_posteriors import (
    adaptive_ladder,
    add_rungs,
    sample_power_posteriors,
)
from mcmcpost.io._tables import (
    estimate_to_dataframe,
    estimate_to_json_dict,
)
from mcmcpost.io._target import (
    Target,
    read_target,
)
from mcmcpost.io._tempered import (
    tempered_target,
)
from mcmcpost.io._weights import (
    weights_to_datatree,
)

__all__ = [
    "Integrands",
    "Target",
    "adaptive_ladder",
    "add_rungs",
    "attach_scores",
    "check_convergence",
    "check_tree",
    "comparison_to_dataframe",
    "estimate_to_dataframe",
    "estimate_to_datatree",
    "estimate_to_json_dict",
    "evidence_methods",
    "evidence_path",
    "evidence_rungs",
    "evidence_to_datatree",
    "evidence_to_json_dict",
    "from_arrays",
    "from_blackjax",
    "from_cmdstan",
    "from_numpyro",
    "gate",
    "integrand_values",
    "is_ladder",
    "joint_estimate_to_datatree",
    "ladder_from_traces",
    "ladder_to_datatree",
    "load_tree",
    "posterior_rung",
    "read_ladder",
    "read_target",
    "read_trace",
    "sample_power_posteriors",
    "save_tree",
    "tempered_target",
    "weights_to_datatree",
]
