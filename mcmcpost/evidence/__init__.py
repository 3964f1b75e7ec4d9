"""Model evidence from power posteriors: sampling the ladder, integrating it, and cross-checks on the same draws."""

from mcmcpost.evidence._adaptive import (
    adaptive_ladder,
)
from mcmcpost.evidence._bridge import (
    bridge_sampling,
)
from mcmcpost.evidence._compare import (
    EvidenceComparison,
    compare_models,
    disagreements,
)
from mcmcpost.evidence._controlled_bridge import (
    controlled_bridge,
)
from mcmcpost.evidence._evaluate import (
    Evaluation,
    evaluate_at,
)
from mcmcpost.evidence._gate import (
    LadderCheck,
    check_ladder,
)
from mcmcpost.evidence._kernel import (
    HamiltonianKernel,
)
from mcmcpost.evidence._ladder import (
    Ladder,
    TemperedTarget,
    check_temperatures,
    geometric_ladder,
    make_ladder,
    power_ladder,
)
from mcmcpost.evidence._laplace import (
    laplace_importance,
)
from mcmcpost.evidence._log_evidence import (
    PATHS,
    Evidence,
    estimate_log_evidence,
)
from mcmcpost.evidence._more_rungs import (
    merge_ladders,
    sample_more_rungs,
)
from mcmcpost.evidence._path import (
    PooledPath,
    pooled_path,
)
from mcmcpost.evidence._record import (
    EvidenceEstimate,
)
from mcmcpost.evidence._rules import (
    corrected_rule,
    discretisation_errors,
    simpson_rule,
    trapezoid_rule,
)
from mcmcpost.evidence._rungs import (
    RungHealth,
    RungMeans,
    control_rungs,
    examine_rungs,
)
from mcmcpost.evidence._sampling import (
    LadderStats,
    SampledLadder,
    sample_ladder,
)
from mcmcpost.evidence._stepping_stone import (
    stepping_stone,
)
from mcmcpost.evidence._stored import (
    LadderWarning,
    gradient_finding,
    likelihood_finding,
    repeated_fraction,
)

__all__ = [
    "PATHS",
    "Evaluation",
    "Evidence",
    "EvidenceComparison",
    "EvidenceEstimate",
    "HamiltonianKernel",
    "Ladder",
    "LadderCheck",
    "LadderStats",
    "LadderWarning",
    "PooledPath",
    "RungHealth",
    "RungMeans",
    "SampledLadder",
    "TemperedTarget",
    "adaptive_ladder",
    "bridge_sampling",
    "check_ladder",
    "check_temperatures",
    "compare_models",
    "control_rungs",
    "controlled_bridge",
    "corrected_rule",
    "disagreements",
    "discretisation_errors",
    "estimate_log_evidence",
    "evaluate_at",
    "examine_rungs",
    "geometric_ladder",
    "gradient_finding",
    "laplace_importance",
    "likelihood_finding",
    "make_ladder",
    "merge_ladders",
    "pooled_path",
    "power_ladder",
    "repeated_fraction",
    "sample_ladder",
    "sample_more_rungs",
    "simpson_rule",
    "stepping_stone",
    "trapezoid_rule",
]
